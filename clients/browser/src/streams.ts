/**
 * Draws that nobody without the secret can tell from chance, and that a device can make again: ChaCha20
 * under keys that are derived by purpose and number. The twin of `sottovoce.rng.SecretStreams`.
 */

import { type Bytes, u32s, utf8 } from "./bytes.ts";
import { blake2b } from "./crypto.ts";
import { KeyTrouble } from "./errors.ts";
import { fill } from "./masking.ts";

const SECRET_BYTES = 32;
const MASK = (1n << 64n) - 1n;
const GAMMA = 0x9e3779b97f4a7c15n;

export class Streams {
  readonly #secret: Bytes;

  /** `secret` is drawn once (`randomBytes(32)`) and kept. */
  constructor(secret: Bytes) {
    if (secret.length !== SECRET_BYTES) throw new KeyTrouble(`a secret has ${SECRET_BYTES} bytes`);
    this.#secret = secret;
  }

  /** The streams of a purpose, or of a number. */
  child(...names: readonly (string | number)[]): Streams {
    let secret = this.#secret;
    for (const name of names) {
      const what = typeof name === "string" ? `name:${name}` : `number:${name}`;
      secret = blake2b(utf8(what), SECRET_BYTES, secret);
    }
    return new Streams(secret);
  }

  /** The draws of these streams. */
  draws(): Draws {
    return new Draws(u32s(this.#secret));
  }
}

/** The words of one key, by number. */
export class Draws {
  private readonly block = new Uint32Array(16);
  private made = -1;

  constructor(private readonly key: Uint32Array) {}

  /** The upper 32 bits of word `number`. */
  high(number: number): number {
    return this.words(number)[2 * (number % 8) + 1]!;
  }

  /** The lower 32 bits of word `number`. */
  low(number: number): number {
    return this.words(number)[2 * (number % 8)]!;
  }

  /** Word `number`, of 64 bits. */
  word(number: number): bigint {
    return (BigInt(this.high(number)) << 32n) | BigInt(this.low(number));
  }

  /** Uniform on [0, 1). */
  uniform(number: number): number {
    return (this.high(number) * 2 ** 21 + (this.low(number) >>> 11)) * 2 ** -53;
  }

  private words(number: number): Uint32Array {
    const block = Math.floor(number / 8);
    if (block !== this.made) {
      fill(this.block, this.key, 0, 0, 0, block, 1);
      this.made = block;
    }
    return this.block;
  }
}

/** A 32-bit word scaled to [0, n), n at most 2^31. */
export function below(word: number, n: number): number {
  const high = (word >>> 16) * n;
  return Math.floor((high + Math.floor(((word & 0xffff) * n) / 65536)) / 65536);
}

/** The word that takes the place of one that was rejected. */
export function again(word: bigint): bigint {
  let z = (word + GAMMA) & MASK;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return z ^ (z >> 31n);
}
