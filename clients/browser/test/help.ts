/** What several tests need. */

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { type Bytes, fromHex } from "../src/bytes.ts";
import { SottovoceError } from "../src/errors.ts";

/** The root of the repository; the bundler puts it in. */
declare const ROOT: string;

export function root(): string {
  return ROOT;
}

export interface Vector {
  readonly kind: string;
  readonly bytes: string;
  readonly says: never;
  readonly refused: readonly string[];
}

export interface VectorFile {
  readonly given: Record<string, never>;
  readonly private_keys: Record<string, string>;
  readonly vectors: readonly Vector[];
  readonly [more: string]: unknown;
}

export function hasVectors(name: string): boolean {
  return existsSync(join(ROOT, "tests", "vectors", name));
}

export function vectorFile(name: string): VectorFile {
  return JSON.parse(readFileSync(join(ROOT, "tests", "vectors", name), "utf-8")) as VectorFile;
}

export function hex(text: string): Bytes {
  return fromHex(text);
}

/** Raises unless this raises an error of our tree, with one sentence. */
export async function refuses(what: () => unknown): Promise<void> {
  try {
    await what();
  } catch (error) {
    assert.ok(error instanceof SottovoceError, `an error of another tree: ${String(error)}`);
    assert.ok(error.message.length > 5 && !error.message.includes("\n"), error.message);
    return;
  }
  assert.fail("it was not refused");
}

/** Numbers that repeat with a seed (xorshift). */
export function draws(seed: number): () => number {
  let state = (seed * 2654435761 + 1) >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 2 ** 32;
  };
}

export function drawnBytes(draw: () => number, count: number): Bytes {
  return Uint8Array.from({ length: count }, () => Math.floor(256 * draw()));
}
