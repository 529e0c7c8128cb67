/**
 * An ε of her own: how loudly a user adds to the sums of a period, and what that costs her.
 *
 * Noise of one size is measured by the largest ε that the terms permit. A user who accepts less is
 * scaled by c = μ(ε) / μ(ε_max), where μ(ε) is the distance at which two Gaussians of variance 1 are
 * (ε, δ)-indistinguishable. A stage costs what it adds to what she has spent in its period. The twin
 * of `sottovoce.privacy.own_epsilon` and of `price` in `central`, bit for bit.
 */

import { Unsupported, UsageError } from "./errors.ts";
import { gaussianDelta, log } from "./portable.ts";
import type { Choice, OwnEpsilonSettings, Spent } from "./wire/types.ts";

/** Smallest ε of a user that anything is sent for. */
export const LEAST_EPSILON = 1e-3;
const STAGES = 256;
/** A distance at which the two terms of δ differ by less than their rounding. */
const FAR = 1e6;

/** The stages of the period of a mark, or of `Spent.sent`, as bits. */
export function stagesOf(mark: number): number {
  return mark % STAGES;
}

export function periodOf(mark: number): number {
  return Math.floor(mark / STAGES);
}

/** What `Spent.sent` says of a device that was in this round alone: the period, and below it eight
 * bits, one for each stage that she was in. */
export function markOf(round: number, stages: number, batches: number): number {
  const whole = stages * batches;
  return Math.floor(round / whole) * STAGES + (1 << ((round % whole) % stages));
}

/** `sent` after a round of this mark. A new period begins with nothing done, and what comes late of
 * an old one changes nothing. */
export function marked(sent: number, mark: number): number {
  const [before, now] = [periodOf(sent), periodOf(mark)];
  if (before === now) return now * STAGES + (stagesOf(sent) | stagesOf(mark));
  return before > now ? sent : mark;
}

/** Whether a device was in the stage of this mark, or in a later period, by `sent`. */
export function wasIn(sent: number, mark: number): boolean {
  const [before, now] = [periodOf(sent), periodOf(mark)];
  return before > now || (before === now && (stagesOf(sent) & stagesOf(mark)) !== 0);
}

/** Of 1/noise² in these stages, given by their bits; 1 of all. */
export function shareOf(stages: number, shares: readonly number[]): number {
  const share = exactSum(shares.filter((_, k) => (stages >> k) & 1));
  return Math.abs(share - 1.0) <= 1e-12 ? 1.0 : share;
}

/** What was told in these stages of a period beyond what they tell at the loudness of `now`, as a
 * share of a whole period; `then` are share and loudness of each contribution as it left. */
export function beyond(
  then: readonly (readonly [share: number, loudness: number])[],
  stages: number,
  shares: readonly number[],
  now: number,
): number {
  if (now === 0) return 0.0;
  const told = exactSum(then.map(([share, mu]) => share * ((mu / now) * (mu / now))));
  return told - exactSum(shares.filter((_, k) => (stages >> k) & 1));
}

/** Whether one more release of this cost stays within the limit; the last digits are forgiven. */
export function affords(spent: number, cost: number, limit: number): boolean {
  return spent + cost <= limit * (1.0 + 1e-12);
}

/** The sum, rounded once (as Python's `math.fsum`). */
export function exactSum(numbers: readonly number[]): number {
  const parts: number[] = [];
  for (let x of numbers) {
    let kept = 0;
    for (let y of parts) {
      if (Math.abs(x) < Math.abs(y)) [x, y] = [y, x];
      const high = x + y;
      const low = y - (high - x);
      if (low) parts[kept++] = low;
      x = high;
    }
    parts.length = kept;
    parts.push(x);
  }
  let sum = 0;
  let low = 0;
  let at = parts.length;
  while (at > 0) {
    const x = sum;
    const y = parts[--at] as number;
    sum = x + y;
    low = y - (sum - x);
    if (low) break;
  }
  // Half-way cases round to even as if all parts had been there.
  if (at > 0 && ((low < 0 && (parts[at - 1] as number) < 0) || (low > 0 && (parts[at - 1] as number) > 0))) {
    const y = low * 2;
    const x = sum + y;
    if (y === x - sum) sum = x;
  }
  return sum;
}

// --- the price of noise ------------------------------------------------------------------------------

/** ε, at this δ, of one contribution of norm 1 to a sum with noise of this standard deviation. */
export function price(noise: number, delta: number): number {
  if (!(noise >= 0 && noise < Infinity)) throw new UsageError("noise is 0 or above and finite");
  if (noise === 0) return Infinity;
  const distance = 1.0 / noise;
  let low = 0.0;
  let high = (distance * distance) / 2 + distance * Math.sqrt(2 * log(1 / delta));
  if (distance > FAR) return high;
  if (gaussianDelta(distance, 0.0) <= delta) return 0.0;
  while (high - low > 1e-11 * high) {
    const middle = (low + high) / 2;
    if (gaussianDelta(distance, middle) > delta) low = middle;
    else high = middle;
  }
  return high;
}

/** The least noise of which the price is at most ε. */
export function noiseFor(epsilon: number, delta: number): number {
  if (!(epsilon > 0 && epsilon < Infinity)) throw new UsageError("ε is above 0 and finite");
  let low = 0.0;
  let high = 1.0;
  while (price(high, delta) > epsilon) [low, high] = [high, 2 * high];
  while (high - low > 1e-10 * high) {
    const middle = (low + high) / 2;
    if (price(middle, delta) > epsilon) low = middle;
    else high = middle;
  }
  return high;
}

// --- the release -------------------------------------------------------------------------------------

/** The release of gram, by its terms. */
export class OwnEpsilon {
  /** Standard deviation of the noise of a whole period, for a sensitivity of 1. */
  readonly sigma: number;
  private readonly distances = new Map<number, number>();
  private readonly paid = new Map<string, number>();

  constructor(readonly settings: OwnEpsilonSettings) {
    if (settings.parts > 0) {
      throw new Unsupported(
        "in this federation devices add the noise themselves, which a tab cannot do yet",
      );
    }
    this.sigma = 1.0 / this.distance(settings.epsilon);
  }

  /** μ of whoever accepts this ε: by how much of the noise of a whole period she moves its sums; 0
   * where it permits nothing. */
  loudness(epsilon: number): number {
    const own = Math.min(epsilon, this.settings.epsilon);
    return own >= LEAST_EPSILON ? this.distance(own) : 0.0;
  }

  /** c of whoever accepts this ε, which counts in single precision, as records of consent have it. */
  scale(epsilon: number): number {
    return Math.min(this.loudness(Math.fround(epsilon)) * this.sigma, 1.0);
  }

  /** What a period costs under this choice; null where nothing leaves. */
  cost(choice: Choice): number | null {
    const own = Math.min(choice.epsilon, this.settings.epsilon);
    return choice.takesPart && own >= LEAST_EPSILON ? own : null;
  }

  /** Why nothing leaves under this choice of somebody who takes part; empty where something may. */
  objection(choice: Choice): string {
    const own = this.cost(choice);
    if (own === null) {
      return (
        "The federation asks for one contribution, of which you choose the ε, and this choice " +
        `permits none: nothing leaves. Choose an ε from ${LEAST_EPSILON} to ${this.settings.epsilon}.`
      );
    }
    if (!(own <= choice.totalEpsilon * (1.0 + 1e-12))) {
      return (
        `A contribution would cost ε = ${own}, and this choice permits ${choice.totalEpsilon} in ` +
        "all: nothing leaves. Choose a smaller ε."
      );
    }
    return "";
  }

  /** What this round adds to what she has spent. */
  costs(
    choice: Choice,
    round: number,
    shares: readonly number[],
    batches: number,
    spent: Spent,
  ): number {
    const mark = markOf(round, shares.length, batches);
    const same = periodOf(spent.sent) === periodOf(mark);
    const done = same ? stagesOf(spent.sent) : 0;
    const more = same ? spent.beyond : 0.0;
    const after = this.added(choice, done | stagesOf(mark), shares, more);
    return Math.max(after - this.added(choice, done, shares, more), 0.0);
  }

  /** Whether her limit has room for what is left of the period, and she may be in this round: who
   * was in its stage in this period, or in a later period, may not. Without a round: in some stage of
   * the period in which she was last. */
  room(
    choice: Choice,
    spent: Spent,
    shares: readonly number[],
    round: number | null,
    batches: number,
  ): boolean {
    const every = 2 ** shares.length - 1;
    let done = stagesOf(spent.sent);
    let more = spent.beyond;
    let open = done !== every;
    if (round !== null) {
      const mark = markOf(round, shares.length, batches);
      const same = periodOf(spent.sent) === periodOf(mark);
      done = same ? done : 0;
      more = same ? more : 0.0;
      open = !wasIn(spent.sent, mark);
    }
    if (!choice.takesPart || !open || this.scale(choice.epsilon) === 0) return false;
    const rest =
      this.added(choice, done | every, shares, more) - this.added(choice, done, shares, more);
    return affords(spent.epsilon, rest, choice.totalEpsilon);
  }

  /** ε of her part in these stages, given by their bits, and of what she has told beyond them. */
  private added(
    choice: Choice,
    done: number,
    shares: readonly number[],
    more: number,
  ): number {
    return this.priceOf(this.scale(choice.epsilon), Math.max(shareOf(done, shares) + more, 0.0));
  }

  /** ε of a part in sums that have this share of 1/noise². */
  priceOf(scale: number, share: number): number {
    if (scale === 0 || share === 0) return 0.0;
    const name = `${scale} ${share}`;
    let found = this.paid.get(name);
    if (found === undefined) {
      found = price(this.sigma / (scale * Math.sqrt(share)), this.settings.delta);
      this.paid.set(name, found);
    }
    return found;
  }

  private distance(epsilon: number): number {
    let found = this.distances.get(epsilon);
    if (found === undefined) {
      found = 1.0 / noiseFor(epsilon, this.settings.delta);
      this.distances.set(epsilon, found);
    }
    return found;
  }
}
