/**
 * X25519 (RFC 7748), Ed25519 (RFC 8032) and BLAKE2b (RFC 7693), for what WebCrypto has not: the last
 * nowhere, the first two in browsers before 2025. Whole numbers of any size do the arithmetic, and how
 * long that takes depends on the numbers, so that the curves are used where WebCrypto lacks them alone.
 */

import type { Bytes } from "./bytes.ts";

const P = 2n ** 255n - 19n;
/** The order of the base point. */
const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n;
const BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202n;
const BASE_Y = 46316835694926478169428394003475163141307993866256225615783033603165251855960n;

function mod(x: bigint, m = P): bigint {
  const rest = x % m;
  return rest < 0n ? rest + m : rest;
}

function power(base: bigint, exponent: bigint): bigint {
  let found = 1n;
  for (let rest = exponent, x = base; rest > 0n; rest >>= 1n, x = (x * x) % P) {
    if (rest & 1n) found = (found * x) % P;
  }
  return found;
}

const inverse = (x: bigint): bigint => power(x, P - 2n);

function numberOf(bytes: Uint8Array): bigint {
  let found = 0n;
  for (let k = bytes.length - 1; k >= 0; k--) found = (found << 8n) | BigInt(bytes[k]!);
  return found;
}

function bytesOf(value: bigint, size: number): Bytes {
  const bytes = new Uint8Array(size);
  for (let k = 0, rest = value; k < size; k++, rest >>= 8n) bytes[k] = Number(rest & 255n);
  return bytes;
}

/** 32 bytes as a scalar of either curve. */
const clamped = (bytes: Uint8Array): bigint =>
  (numberOf(bytes) & (2n ** 254n - 8n)) | 2n ** 254n;

// --- X25519 ------------------------------------------------------------------------------------------

/** What a private key makes of a public one; all zeros for a public key of low order. */
export function x25519(privateKey: Uint8Array, publicKey: Uint8Array): Bytes {
  const scalar = clamped(privateKey);
  const u = mod(numberOf(publicKey) & (2n ** 255n - 1n));
  let [x2, z2, x3, z3] = [1n, 0n, u, 1n];
  for (let t = 254n, swapped = 0n; t >= -1n; t--) {
    const bit = t < 0n ? 0n : (scalar >> t) & 1n;
    if (bit !== swapped) [x2, z2, x3, z3] = [x3, z3, x2, z2];
    swapped = bit;
    if (t < 0n) break;
    const [a, b, c, d] = [x2 + z2, x2 - z2 + P, x3 + z3, x3 - z3 + P];
    const [aa, bb, da, cb] = [(a * a) % P, (b * b) % P, (d * a) % P, (c * b) % P];
    const e = aa - bb + P;
    x3 = ((da + cb) * (da + cb)) % P;
    z3 = (u * (((da - cb + P) * (da - cb + P)) % P)) % P;
    x2 = (aa * bb) % P;
    z2 = (e * ((aa + 121665n * e) % P)) % P;
  }
  return bytesOf((x2 * inverse(z2)) % P, 32);
}

/** The public half of an X25519 key. */
export function x25519Public(privateKey: Uint8Array): Bytes {
  return x25519(privateKey, bytesOf(9n, 32));
}

// --- Ed25519 -----------------------------------------------------------------------------------------

type Point = readonly [x: bigint, y: bigint, z: bigint, t: bigint];
type Sha512 = (...parts: Uint8Array[]) => Promise<Uint8Array>;

function add(one: Point, other: Point): Point {
  const a = mod((one[1] - one[0]) * (other[1] - other[0]));
  const b = mod((one[1] + one[0]) * (other[1] + other[0]));
  const c = mod(2n * D * one[3] * other[3]);
  const d = mod(2n * one[2] * other[2]);
  const [e, f, g, h] = [b - a, d - c, d + c, b + a];
  return [mod(e * f), mod(g * h), mod(f * g), mod(e * h)];
}

/** `scalar` times the base point, as it is written. */
function timesBase(scalar: bigint): Bytes {
  let [sum, doubled]: [Point, Point] = [
    [0n, 1n, 1n, 0n],
    [BASE_X, BASE_Y, 1n, mod(BASE_X * BASE_Y)],
  ];
  for (let t = 0n; t < 255n; t++) {
    const more = add(sum, doubled); // also where it is not wanted
    if ((scalar >> t) & 1n) sum = more;
    doubled = add(doubled, doubled);
  }
  const z = inverse(sum[2]);
  const x = mod(sum[0] * z);
  return bytesOf(mod(sum[1] * z) | ((x & 1n) << 255n), 32);
}

/** The public half of an Ed25519 key. */
export async function ed25519Public(seed: Uint8Array, sha512: Sha512): Promise<Bytes> {
  return timesBase(clamped((await sha512(seed)).subarray(0, 32)));
}

export async function ed25519Sign(
  seed: Uint8Array,
  publicKey: Uint8Array,
  message: Uint8Array,
  sha512: Sha512,
): Promise<Bytes> {
  const hash = await sha512(seed);
  const secret = clamped(hash.subarray(0, 32));
  const r = mod(numberOf(await sha512(hash.subarray(32), message)), L);
  const point = timesBase(r);
  const challenge = mod(numberOf(await sha512(point, publicKey, message)), L);
  const signature = new Uint8Array(64);
  signature.set(point);
  signature.set(bytesOf(mod(r + challenge * secret, L), 32), 32);
  return signature;
}

// --- BLAKE2b -----------------------------------------------------------------------------------------

const IV: readonly bigint[] = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
/** In which order the words of a block come, round by round. */
const ORDERS: readonly string[] = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
  "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a",
  "6fe9b308c2d714a5", "a2847615fb9e3cd0",
];
const WORD = 2n ** 64n - 1n;

/** BLAKE2b of `size` bytes, with a key and a purpose of 16 bytes where they are given. */
export function blake2b(
  message: Uint8Array,
  size: number,
  key: Uint8Array = new Uint8Array(0),
  person: Uint8Array = new Uint8Array(16),
): Bytes {
  const h = [...IV];
  h[0]! ^= BigInt(0x01010000 | (key.length << 8) | size);
  h[6]! ^= numberOf(person.subarray(0, 8));
  h[7]! ^= numberOf(person.subarray(8));
  const padded = key.length ? 128 : 0;
  const whole = new Uint8Array(Math.max(128, Math.ceil((padded + message.length) / 128) * 128));
  whole.set(key);
  whole.set(message, padded);
  for (let at = 0; at < whole.length; at += 128) {
    const last = at + 128 === whole.length;
    compress(h, whole.subarray(at, at + 128), last ? padded + message.length : at + 128, last);
  }
  return bytesOf(h.reduceRight((sum, word) => (sum << 64n) | word, 0n), 64).slice(0, size);
}

function compress(h: bigint[], block: Uint8Array, count: number, last: boolean): void {
  const v = [...h, ...IV];
  v[12]! ^= BigInt(count);
  if (last) v[14]! ^= WORD;
  const m = Array.from({ length: 16 }, (_, k) => numberOf(block.subarray(8 * k, 8 * k + 8)));
  const turn = (x: bigint, by: bigint): bigint => ((x >> by) | (x << (64n - by))) & WORD;
  const mix = (a: number, b: number, c: number, d: number, x: bigint, y: bigint): void => {
    v[a] = (v[a]! + v[b]! + x) & WORD;
    v[d] = turn(v[d]! ^ v[a]!, 32n);
    v[c] = (v[c]! + v[d]!) & WORD;
    v[b] = turn(v[b]! ^ v[c]!, 24n);
    v[a] = (v[a]! + v[b]! + y) & WORD;
    v[d] = turn(v[d]! ^ v[a]!, 16n);
    v[c] = (v[c]! + v[d]!) & WORD;
    v[b] = turn(v[b]! ^ v[c]!, 63n);
  };
  for (let round = 0; round < 12; round++) {
    const order = ORDERS[round % 10]!;
    const word = (k: number): bigint => m[parseInt(order[k]!, 16)]!;
    for (let k = 0; k < 4; k++) mix(k, k + 4, k + 8, k + 12, word(2 * k), word(2 * k + 1));
    for (let k = 0; k < 4; k++) {
      mix(k, 4 + ((k + 1) & 3), 8 + ((k + 2) & 3), 12 + ((k + 3) & 3), word(8 + 2 * k), word(9 + 2 * k));
    }
  }
  for (let k = 0; k < 8; k++) h[k]! ^= v[k]! ^ v[k + 8]!;
}
