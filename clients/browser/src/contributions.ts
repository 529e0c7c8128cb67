/**
 * What a device adds to a sum that is opened once: a short vector, or all products of its pairs.
 *
 * A profile is a vector of real numbers, none below 0, with a norm of at most 1. It is scaled by what
 * its user permits and cut, down, to whole steps k. What leaves is k itself, or, where a round is
 * about pairs, k kᵀ: a number for each place (the diagonal) and then one for each pair of places
 * a < b, row by row. With a scale c, |k| ≤ c · STEPS; of pairs, the squares of k add up to at most
 * c · PAIR_STEPS². Both hold exactly, in whole numbers.
 */

import { MessageError } from "./errors.ts";
import { requireRoom } from "./masking.ts";
import { frexp } from "./portable.ts";
import type { Contribution, Profile } from "./wire/types.ts";

/** Steps to the unit of all that leaves. */
export const STEPS = 2 ** 16;
/** Steps to the unit of a profile whose pairs are sent. */
export const PAIR_STEPS = 2 ** 8;
/** Pays for the rounding of a profile's norm, so that an honest one is never above its bound. */
const SPARE = 1.0 - 2 ** -40;

/** Numbers of a contribution with so many places. */
export function numbersOf(size: number, pairs: boolean): number {
  return pairs ? (size * (size + 1)) / 2 : size;
}

/** Where the product of the pair first < second stands. */
export function pairPlace(first: number, second: number, size: number): number {
  return size + (first * (2 * size - first - 1)) / 2 + (second - first - 1);
}

/** What of a profile may leave, given its scale c in [0, 1]. Raises, and nothing leaves, where it is
 * none. */
export function cut(profile: Profile, scale: number, name: string): Contribution {
  const { place, value, size, pairs } = profile;
  let good = place.length === value.length && scale >= 0 && scale <= 1;
  for (let k = 0; good && k < place.length; k++) {
    good = value[k]! >= 0 && value[k]! < Infinity && place[k]! >= 0 && place[k]! < size;
    good &&= k === 0 || place[k]! > place[k - 1]!;
  }
  if (!good) {
    throw new MessageError(
      `${name} gave a profile with numbers below 0, places that there are not, or places out of ` +
        "order; nothing was sent",
    );
  }
  const unit = pairs ? PAIR_STEPS : STEPS;
  const factor = (pairs ? Math.sqrt(scale) : scale) * (unit * SPARE);
  const steps = new Int32Array(place.length);
  let long = false;
  let squares = 0;
  for (let k = 0; k < place.length; k++) {
    long ||= value[k]! > 2.0;
    const step = Math.floor(Math.min(value[k]!, 2.0) * factor);
    steps[k] = step;
    squares += step * step;
  }
  const most = (pairs ? scale : scale * scale) * (unit * unit);
  // Sums of squares of whole numbers below 2^53 are exact; the limit is compared exactly where
  // rounding could matter.
  if (long || (squares > most * (1.0 - 2 ** -40) && isLonger(steps, scale, pairs))) {
    throw new MessageError(`${name} gave a profile that is longer than 1; nothing was sent`);
  }
  return { place, steps, size, pairs, items: profile.items };
}

/** Whether a cut profile is longer than its scale permits, exactly. */
export function isLonger(steps: Int32Array, scale: number, pairs: boolean): boolean {
  let squares = 0n;
  for (const step of steps) squares += BigInt(step) * BigInt(step);
  if (scale === 0) return squares > 0n;
  // scale = part · 2^-shift with whole numbers.
  const [fraction, power] = frexp(scale);
  const part = BigInt(fraction * 2 ** 53);
  const shift = BigInt(53 - power);
  const limit = pairs ? part * BigInt(PAIR_STEPS) ** 2n : (part * BigInt(STEPS)) ** 2n;
  return squares << (pairs ? shift : 2n * shift) > limit;
}

/** A contribution, written out. */
export function whole(made: Contribution): Int32Array {
  const { place, steps, size } = made;
  requireRoom(numbersOf(size, made.pairs));
  const found = new Int32Array(numbersOf(size, made.pairs));
  if (!made.pairs) {
    for (let k = 0; k < place.length; k++) found[place[k]!] = steps[k]!;
    return found;
  }
  for (let a = 0; a < place.length; a++) {
    const [first, step] = [place[a]!, steps[a]!];
    found[first] = step * step;
    const row = pairPlace(first, first + 1, size) - first - 1;
    for (let b = a + 1; b < place.length; b++) found[row + place[b]!] = step * steps[b]!;
  }
  return found;
}
