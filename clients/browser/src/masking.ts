/**
 * Masks: a device's whole numbers, hidden so that only a sum of many can be read.
 *
 * A mask is as many numbers below 2^bits as there are to hide, drawn with ChaCha20 (RFC 8439) from a
 * seed of 32 bytes that serves once. What leaves is number + mask modulo 2^bits, little-endian. A
 * number of 32 bits takes one word of the stream, any other two, of which the upper bits do not
 * travel.
 */

import { type Bytes, u32s } from "./bytes.ts";
import { MessageError, Unsupported, UsageError } from "./errors.ts";

export const SEED_BYTES = 32;
export const BITS: readonly number[] = [32, 40, 48, 64];
/** Numbers of one message, at most: a tab holds it in memory a few times over. */
export const MOST_NUMBERS = 2 ** 25;

const AT_ONCE = 256;
const WORD = 2 ** 32;

/** Whole numbers, masked, as they travel. None is beyond ±2^53. */
export function masked(values: Int32Array | Float64Array, seed: Uint8Array, bits: number): Bytes {
  if (seed.length !== SEED_BYTES) {
    throw new MessageError(`the seed of a mask has ${SEED_BYTES} bytes`);
  }
  if (!BITS.includes(bits)) throw new UsageError("a masked number has 32, 40, 48 or 64 bits");
  requireRoom(values.length);
  const key = u32s(seed);
  return bits === 32 ? short(values, key) : long(values, key, bits / 8);
}

/** Raises where a message of so many numbers is more than a tab should hold. */
export function requireRoom(numbers: number): void {
  if (!(numbers <= MOST_NUMBERS)) {
    throw new Unsupported(`a message of ${numbers} numbers is too large for a tab; nothing was sent`);
  }
}

/** The mask of a seed, as it would travel: that of zeros. */
export function expand(seed: Uint8Array, numbers: number, bits: number): Bytes {
  requireRoom(numbers);
  return masked(new Int32Array(numbers), seed, bits);
}

function short(values: Int32Array | Float64Array, key: Uint32Array): Bytes {
  const out = new Uint8Array(4 * values.length);
  const stream = new Uint32Array(16 * AT_ONCE);
  for (let at = 0, block = 0; at < values.length; at += stream.length, block += AT_ONCE) {
    const many = Math.min(stream.length, values.length - at);
    fill(stream, key, 0, 0, 0, block, Math.ceil(many / 16));
    let to = 4 * at;
    for (let k = 0; k < many; k++) {
      // `|` takes a number modulo 2^32, whatever its size.
      const word = (stream[k]! + (values[at + k]! | 0)) | 0;
      out[to++] = word;
      out[to++] = word >>> 8;
      out[to++] = word >>> 16;
      out[to++] = word >>> 24;
    }
  }
  return out;
}

function long(values: Int32Array | Float64Array, key: Uint32Array, size: number): Bytes {
  const out = new Uint8Array(size * values.length);
  const stream = new Uint32Array(16 * AT_ONCE);
  const per = stream.length / 2;
  for (let at = 0, block = 0, to = 0; at < values.length; at += per, block += AT_ONCE) {
    const many = Math.min(per, values.length - at);
    fill(stream, key, 0, 0, 0, block, Math.ceil(many / 8));
    for (let k = 0; k < many; k++) {
      const value = values[at + k]!;
      const sum = stream[2 * k]! + (value >>> 0);
      const carry = sum >= WORD ? 1 : 0;
      const upper = (stream[2 * k + 1]! + Math.floor(value / WORD) + carry) | 0;
      out[to++] = sum;
      out[to++] = sum >>> 8;
      out[to++] = sum >>> 16;
      out[to++] = sum >>> 24;
      for (let b = 4, rest = upper; b < size; b++, rest >>>= 8) out[to++] = rest;
    }
  }
  return out;
}

/** So many blocks of ChaCha20 from block `counter` on, into `out`. */
export function fill(
  out: Uint32Array,
  key: Uint32Array,
  n0: number,
  n1: number,
  n2: number,
  counter: number,
  blocks: number,
): void {
  const k0 = key[0]!, k1 = key[1]!, k2 = key[2]!, k3 = key[3]!;
  const k4 = key[4]!, k5 = key[5]!, k6 = key[6]!, k7 = key[7]!;
  for (let b = 0, at = 0; b < blocks; b++, at += 16) {
    const count = (counter + b) | 0;
    let x0 = 0x61707865, x1 = 0x3320646e, x2 = 0x79622d32, x3 = 0x6b206574;
    let x4 = k0 | 0, x5 = k1 | 0, x6 = k2 | 0, x7 = k3 | 0;
    let x8 = k4 | 0, x9 = k5 | 0, xa = k6 | 0, xb = k7 | 0;
    let xc = count, xd = n0 | 0, xe = n1 | 0, xf = n2 | 0;
    for (let round = 0; round < 10; round++) {
      x0 = (x0 + x4) | 0; xc ^= x0; xc = (xc << 16) | (xc >>> 16);
      x8 = (x8 + xc) | 0; x4 ^= x8; x4 = (x4 << 12) | (x4 >>> 20);
      x0 = (x0 + x4) | 0; xc ^= x0; xc = (xc << 8) | (xc >>> 24);
      x8 = (x8 + xc) | 0; x4 ^= x8; x4 = (x4 << 7) | (x4 >>> 25);
      x1 = (x1 + x5) | 0; xd ^= x1; xd = (xd << 16) | (xd >>> 16);
      x9 = (x9 + xd) | 0; x5 ^= x9; x5 = (x5 << 12) | (x5 >>> 20);
      x1 = (x1 + x5) | 0; xd ^= x1; xd = (xd << 8) | (xd >>> 24);
      x9 = (x9 + xd) | 0; x5 ^= x9; x5 = (x5 << 7) | (x5 >>> 25);
      x2 = (x2 + x6) | 0; xe ^= x2; xe = (xe << 16) | (xe >>> 16);
      xa = (xa + xe) | 0; x6 ^= xa; x6 = (x6 << 12) | (x6 >>> 20);
      x2 = (x2 + x6) | 0; xe ^= x2; xe = (xe << 8) | (xe >>> 24);
      xa = (xa + xe) | 0; x6 ^= xa; x6 = (x6 << 7) | (x6 >>> 25);
      x3 = (x3 + x7) | 0; xf ^= x3; xf = (xf << 16) | (xf >>> 16);
      xb = (xb + xf) | 0; x7 ^= xb; x7 = (x7 << 12) | (x7 >>> 20);
      x3 = (x3 + x7) | 0; xf ^= x3; xf = (xf << 8) | (xf >>> 24);
      xb = (xb + xf) | 0; x7 ^= xb; x7 = (x7 << 7) | (x7 >>> 25);
      x0 = (x0 + x5) | 0; xf ^= x0; xf = (xf << 16) | (xf >>> 16);
      xa = (xa + xf) | 0; x5 ^= xa; x5 = (x5 << 12) | (x5 >>> 20);
      x0 = (x0 + x5) | 0; xf ^= x0; xf = (xf << 8) | (xf >>> 24);
      xa = (xa + xf) | 0; x5 ^= xa; x5 = (x5 << 7) | (x5 >>> 25);
      x1 = (x1 + x6) | 0; xc ^= x1; xc = (xc << 16) | (xc >>> 16);
      xb = (xb + xc) | 0; x6 ^= xb; x6 = (x6 << 12) | (x6 >>> 20);
      x1 = (x1 + x6) | 0; xc ^= x1; xc = (xc << 8) | (xc >>> 24);
      xb = (xb + xc) | 0; x6 ^= xb; x6 = (x6 << 7) | (x6 >>> 25);
      x2 = (x2 + x7) | 0; xd ^= x2; xd = (xd << 16) | (xd >>> 16);
      x8 = (x8 + xd) | 0; x7 ^= x8; x7 = (x7 << 12) | (x7 >>> 20);
      x2 = (x2 + x7) | 0; xd ^= x2; xd = (xd << 8) | (xd >>> 24);
      x8 = (x8 + xd) | 0; x7 ^= x8; x7 = (x7 << 7) | (x7 >>> 25);
      x3 = (x3 + x4) | 0; xe ^= x3; xe = (xe << 16) | (xe >>> 16);
      x9 = (x9 + xe) | 0; x4 ^= x9; x4 = (x4 << 12) | (x4 >>> 20);
      x3 = (x3 + x4) | 0; xe ^= x3; xe = (xe << 8) | (xe >>> 24);
      x9 = (x9 + xe) | 0; x4 ^= x9; x4 = (x4 << 7) | (x4 >>> 25);
    }
    out[at] = x0 + 0x61707865; out[at + 1] = x1 + 0x3320646e;
    out[at + 2] = x2 + 0x79622d32; out[at + 3] = x3 + 0x6b206574;
    out[at + 4] = x4 + k0; out[at + 5] = x5 + k1; out[at + 6] = x6 + k2; out[at + 7] = x7 + k3;
    out[at + 8] = x8 + k4; out[at + 9] = x9 + k5; out[at + 10] = xa + k6; out[at + 11] = xb + k7;
    out[at + 12] = xc + count; out[at + 13] = xd + n0; out[at + 14] = xe + n1; out[at + 15] = xf + n2;
  }
}
