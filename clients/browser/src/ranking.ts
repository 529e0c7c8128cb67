/** Scores in, ranked lists out: by score, descending; ties go to the smaller item number. */

import type { RankedItem } from "./wire/types.ts";

/** a · b + c in single precision, rounded once, of numbers of single precision. */
export function fma32(a: number, b: number, c: number): number {
  const product = a * b; // exact: 48 bits
  const sum = product + c;
  const found = Math.fround(sum);
  const off = sum - found;
  if (off === 0) return found;
  const other = found + 2 * off;
  if (Math.fround(other) !== other) return found;
  // `sum` lies half-way between two numbers of single precision: what was lost of it decides.
  const part = sum - product;
  const lost = product - (sum - part) + (c - part);
  if (lost === 0) return found;
  return lost > 0 === off > 0 ? other : found;
}

/** bias + Σ vector · factors, a fixed chain of fused multiply-adds, as on every device. */
export function chain(
  bias: number,
  vector: Float32Array,
  factors: Float32Array,
  at: number,
): number {
  let total = bias;
  for (let f = 0; f < vector.length; f++) total = fma32(vector[f]!, factors[at + f]!, total);
  return total;
}

/** The n best items, but for those that `leave` says to leave out. */
export function best(
  scores: Float32Array,
  n: number,
  leave: (item: number) => boolean,
): RankedItem[] {
  const found: RankedItem[] = [];
  for (let item = 0; item < scores.length; item++) {
    const score = scores[item]!;
    const last = found.length < n ? -Infinity : found[found.length - 1]!.score;
    if (!(score > last) || leave(item)) continue;
    if (found.length === n) found.pop();
    let k = found.length;
    while (k > 0 && found[k - 1]!.score < score) k--;
    found.splice(k, 0, { item, score });
  }
  return found;
}
