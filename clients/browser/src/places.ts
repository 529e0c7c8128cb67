/**
 * How a device comes without an invitation: it asks the server for a challenge, works on it for a
 * while, and enrols its own key with what it found.
 *
 * The work is a number whose hash together with the challenge, the federation and the key begins
 * with enough zero bits. It is good for this key alone.
 */

import { ascii, type Bytes, concat, fromHex, toHex, u32, utf8 } from "./bytes.ts";
import { type SigningKey, sha256 } from "./crypto.ts";
import { MessageError, Unsupported } from "./errors.ts";
import { PROTOCOL } from "./wire/frames.ts";

/** More zero bits would keep a tab busy for too long. */
const MOST_BITS = 24;
const LONGEST_CHALLENGE = 512;
const WORK_BYTES = 8;
/** Hashes before whoever else waits has a turn. */
const AT_ONCE = 2048;
const ZERO = new Uint8Array(1);

export interface Challenge {
  readonly content: Bytes;
  readonly bits: number;
  /** In which it has to be answered. */
  readonly seconds: number;
}

/** From what a server answered. Raises where it is none, or asks for too much. */
export function challengeFromTable(table: Record<string, unknown>, federation: string): Challenge {
  const { bits, seconds } = table;
  const content = fromHex(table["challenge"], "a challenge");
  if (
    table["protocol"] !== PROTOCOL ||
    table["federation"] !== federation ||
    !Number.isInteger(bits) ||
    typeof seconds !== "number" ||
    content.length > LONGEST_CHALLENGE
  ) {
    throw new MessageError("the challenge of the server makes no sense; nothing was sent");
  }
  if (!((bits as number) >= 0 && (bits as number) <= MOST_BITS)) {
    throw new Unsupported(
      `the server asks for more work (${bits} bits) than a tab does for a place; nothing was sent`,
    );
  }
  return { content, bits: bits as number, seconds };
}

/** What a device posts to enrol its key with an answered challenge. */
export async function placeRequest(
  key: SigningKey,
  federation: string,
  challenge: Challenge,
): Promise<Bytes> {
  const { content } = challenge;
  const work = await worked(federation, challenge, key.publicKey);
  const signature = await key.sign(
    await bound("sottovoce place", federation, content, key.publicKey),
  );
  const parts = {
    challenge: toHex(content),
    work: toHex(work),
    public_key: toHex(key.publicKey),
    signature: toHex(signature),
  };
  return utf8(JSON.stringify({ protocol: PROTOCOL, ...parts }));
}

/** The first number from 0 on that is work enough. Others have their turn meanwhile. */
export async function worked(
  federation: string,
  challenge: Challenge,
  publicKey: Bytes,
): Promise<Bytes> {
  const about = await bound("sottovoce work", federation, challenge.content, publicKey);
  const hash = new Hash(about);
  for (let number = 0; ; number++) {
    const first = hash.with(number);
    if (challenge.bits === 0 || first < 2 ** (32 - challenge.bits)) return hash.work.slice();
    if (number % AT_ONCE === AT_ONCE - 1) await new Promise((turn) => setTimeout(turn));
  }
}

/** To one purpose, federation, challenge and key. */
async function bound(
  purpose: string,
  federation: string,
  challenge: Bytes,
  publicKey: Bytes,
): Promise<Bytes> {
  const name = utf8(federation);
  const hashed = await sha256(challenge);
  return concat(ascii(purpose), ZERO, u32(name.length), name, hashed, publicKey);
}

// --- SHA-256 (FIPS 180-4) of one text with many endings: WebCrypto would be asked once for each -----

const PRIMES = [...Array(312).keys()].filter(
  (n) => n > 1 && ![...Array(n).keys()].some((d) => d > 1 && n % d === 0),
);
const part = (root: number): number => Math.floor((root % 1) * 2 ** 32);
const START = Uint32Array.from(PRIMES.slice(0, 8), (prime) => part(Math.sqrt(prime)));
const ROUNDS = Uint32Array.from(PRIMES, (prime) => part(Math.cbrt(prime)));

class Hash {
  readonly work: Bytes = new Uint8Array(WORK_BYTES);
  /** After all whole blocks of the text, which have no part in the endings. */
  readonly #begun = START.slice();
  readonly #blocks: DataView[] = [];
  readonly #words = new Uint32Array(64);
  readonly #at: number;
  readonly #rest: Bytes;

  constructor(text: Bytes) {
    const whole = text.length - (text.length % 64);
    this.#at = text.length - whole;
    const length = this.#at + WORK_BYTES;
    this.#rest = new Uint8Array(Math.ceil((length + 9) / 64) * 64);
    this.#rest.set(text.subarray(whole));
    this.#rest[length] = 0x80;
    const last = new DataView(this.#rest.buffer);
    last.setUint32(this.#rest.length - 4, (text.length + WORK_BYTES) * 8);
    for (let at = 0; at < whole; at += 64) {
      this.#compress(this.#begun, new DataView(text.buffer, text.byteOffset + at, 64));
    }
    for (let at = 0; at < this.#rest.length; at += 64) {
      this.#blocks.push(new DataView(this.#rest.buffer, at, 64));
    }
  }

  /** The first 32 bits of the hash with this number behind the text. */
  with(number: number): number {
    const view = new DataView(this.work.buffer);
    view.setUint32(0, number % 2 ** 32, true);
    view.setUint32(4, Math.floor(number / 2 ** 32), true);
    this.#rest.set(this.work, this.#at);
    const state = this.#begun.slice();
    for (const block of this.#blocks) this.#compress(state, block);
    return state[0] as number;
  }

  #compress(state: Uint32Array, block: DataView): void {
    const w = this.#words;
    const turned = (x: number, by: number): number => (x >>> by) | (x << (32 - by));
    for (let t = 0; t < 16; t++) w[t] = block.getUint32(4 * t);
    for (let t = 16; t < 64; t++) {
      const [x, y] = [w[t - 15]!, w[t - 2]!];
      const low = turned(x, 7) ^ turned(x, 18) ^ (x >>> 3);
      const high = turned(y, 17) ^ turned(y, 19) ^ (y >>> 10);
      w[t] = w[t - 16]! + low + w[t - 7]! + high;
    }
    let [a, b, c, d, e, f, g, h] = state as unknown as number[] as Eight;
    for (let t = 0; t < 64; t++) {
      const chosen = (e & f) ^ (~e & g);
      const one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + chosen + ROUNDS[t]! + w[t]!;
      const most = (a & b) ^ (a & c) ^ (b & c);
      const two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + most;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    for (const [k, value] of [a, b, c, d, e, f, g, h].entries()) state[k]! += value;
  }
}

type Eight = [number, number, number, number, number, number, number, number];
