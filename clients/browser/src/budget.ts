/**
 * Whether an owner's limit has room for what is about to leave, and when she may be asked again.
 *
 * What counts is all that has left, or may have, under whatever terms and whatever became of it.
 * It never counts down.
 */

import { affords, beyond, exactSum, markOf, marked, OwnEpsilon } from "./epsilon.ts";
import { isGone, type Round } from "./ledger.ts";
import type { ChoiceRecord } from "./store/records.ts";
import { AT_HOME } from "./store/records.ts";
import type { Choice, GramSettings, OwnEpsilonSettings, Spent, Terms } from "./wire/types.ts";
import { Gram } from "./gram.ts";

const DAY = 86_400;
/** Bits of `Spent.sent` that say which stages of a period are done. */
const STAGES = 256;

/** Terms under which what leaves is bounded by an ε of her own. */
export type OwnTerms = Terms & {
  readonly algorithm: GramSettings;
  readonly release: OwnEpsilonSettings;
};

/** What has left so far, as a store has it. */
export interface Before {
  readonly rounds: readonly Round[];
  readonly spent: readonly (readonly [epsilon: number, releases: number])[];
  /** By version, oldest first. */
  readonly choices: readonly ChoiceRecord[];
  /** The terms of each era. */
  readonly terms: ReadonlyMap<number, Terms>;
}

export function isOwn(terms: Terms): terms is OwnTerms {
  return terms.release.name === "own-epsilon" && terms.algorithm.name === "gram";
}

/** ε of all releases that have one, by plain composition. */
export function spentSoFar(before: Pick<Before, "spent">): number {
  return exactSum(before.spent.map(([epsilon, releases]) => epsilon * releases));
}

/** What decides about the next contribution under these terms. */
export function spentUnder(terms: OwnTerms, choice: Choice, before: Before): Spent {
  const sent = stagesDone(terms, before);
  return { epsilon: spentSoFar(before), sent, beyond: toldBeyond(terms, choice, before, sent) };
}

/** To which stages of her latest period she has contributed, as the terms in force divide rounds. */
function stagesDone(terms: OwnTerms, before: Before): number {
  const gram = new Gram(terms);
  let sent = 0;
  for (const one of contributed(terms, before)) {
    sent = marked(sent, markOf(one.round, gram.shares.length, gram.batches));
  }
  return sent;
}

/** What she has told in the period of these stages beyond what they tell at her ε of today: each
 * contribution counts by the choice and the terms under which it left. */
function toldBeyond(terms: OwnTerms, choice: Choice, before: Before, sent: number): number {
  if (!sent) return 0;
  const gram = new Gram(terms);
  const told: [share: number, loudness: number][] = [];
  for (const one of contributed(terms, before)) {
    const mark = markOf(one.round, gram.shares.length, gram.batches);
    if (Math.floor(mark / STAGES) !== Math.floor(sent / STAGES)) continue;
    const then = before.terms.get(one.era);
    if (then === undefined || !isOwn(then)) continue;
    const { shares } = new Gram(then);
    const { epsilon } = choiceAt(before.choices, one.consent);
    const loudness = new OwnEpsilon(then.release).loudness(Math.fround(epsilon));
    told.push([shares[one.round % shares.length] as number, loudness]);
  }
  const now = new OwnEpsilon(terms.release).loudness(Math.fround(choice.epsilon));
  return beyond(told, sent % STAGES, gram.shares, now);
}

/** The time, in seconds, before which nothing of hers leaves for this round, because she has
 * contributed to another period, which it is under other terms, however they number their rounds;
 * before all times if she has not, whatever her clock says. */
export function restsUntil(terms: OwnTerms, era: number, round: number, before: Before): number {
  const days = terms.release.period_days;
  if (!days) return Number.NEGATIVE_INFINITY;
  const gram = new Gram(terms);
  let until = Number.NEGATIVE_INFINITY;
  for (const one of contributed(terms, before)) {
    const another = one.era !== era || gram.period(one.round) !== gram.period(round);
    if (another) until = Math.max(until, (one.leftAt ?? one.preparedAt) + DAY * days);
  }
  return until;
}

/** Whether a prepared release of this cost fits. One that nothing bounds has no limit to keep to. */
export function hasRoom(cost: number, choice: Choice, before: Pick<Before, "spent">): boolean {
  return !Number.isFinite(cost) || affords(spentSoFar(before), cost, choice.totalEpsilon);
}

function contributed(terms: OwnTerms, before: Before): Round[] {
  return before.rounds.filter((one) => isGone(one) && one.released.kind === terms.release.name);
}

function choiceAt(choices: readonly ChoiceRecord[], version: number): Choice {
  return choices.findLast((one) => one.version <= version)?.choice ?? AT_HOME;
}
