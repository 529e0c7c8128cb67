/**
 * What a choice is worth before it is kept, who sees what, and what she would agree to: the twin of
 * `sottovoce.web.weighing` and `sottovoce.wire.plainly`, for the federations that a tab takes part
 * in. Sentences are keys of the same catalogue.
 */

import { isOwn, type OwnTerms } from "./budget.ts";
import { LEAST_EPSILON, noiseFor, OwnEpsilon } from "./epsilon.ts";
import { exp, scaledErfc } from "./portable.ts";
import type { Choice, Terms } from "./wire/types.ts";

export const said = (key: string, values: Record<string, unknown> = {}): Said => ({ key, values });

const COIN = 50;
/** Of 100 guesses: so few right ones protect, more than so many protect nothing. */
const [FEW, ALL] = [75, 99];
const NOTHING = 10;
/** A limit on everything that protects. */
const PROTECTS = 4;
const LOUDNESS = [
  [0.25, "whisper"],
  [1, "low"],
  [2, "normal"],
  [4, "loud"],
] as const;
const SHARES = [
  [0, "none"],
  [0.1, "some"],
  [0.5, "half"],
  [1, "all"],
] as const;

/** To three digits behind the point, so that what is shown is still a bound. */
export function roundedUp(epsilon: number): number {
  if (!Number.isFinite(epsilon)) return epsilon;
  return Math.ceil(Number((epsilon * 1000).toFixed(6))) / 1000;
}

const known = new Map<string, number>();

/** In how many of 100 cases ε permits a guess between two to be right, at worst: Φ(μ/2). */
export function guess(epsilon: number, delta: number): number {
  if (epsilon <= 0) return COIN;
  if (!Number.isFinite(epsilon)) return 100;
  const name = `${epsilon} ${delta}`;
  let right = known.get(name);
  if (right === undefined) {
    const x = 1 / noiseFor(epsilon, delta) / (2 * Math.SQRT2);
    right = 100 * (1 - 0.5 * exp(-x * x) * scaledErfc(x));
    known.set(name, right);
  }
  return right;
}

export function verdict(epsilon: number, delta: number): "good" | "weak" | "nothing" {
  const right = guess(epsilon, delta);
  if (epsilon > NOTHING || right > ALL) return "nothing";
  return right <= FEW ? "good" : "weak";
}

/** The release of gram under these terms, where a tab can take part in it; null elsewhere. */
function own(terms: Terms): (OwnTerms & { readonly one: OwnEpsilon }) | null {
  if (!isOwn(terms) || terms.release.parts > 0) return null;
  return { ...terms, one: new OwnEpsilon(terms.release) };
}

/** Why nothing leaves under this choice of somebody who takes part; null where something may. */
export function inTheWay(choice: Choice, terms: Terms): Said | null {
  const gram = own(terms);
  if (gram === null) {
    const noisy = terms.link.name === "secure-sum" && terms.link.noise > 0;
    if (terms.algorithm.name !== "fpl" || noisy) return said("tab.not_yet");
    return choice.epsilon > 0 ? said("objection.no_noise") : null;
  }
  if (choice.sharePositives > 0) return said("objection.no_share");
  if (!gram.one.objection(choice)) return null;
  const cost = gram.one.cost(choice);
  if (cost !== null) return said("objection.limit", { cost, limit: choice.totalEpsilon });
  return said("objection.loudness", { least: LEAST_EPSILON, most: gram.release.epsilon });
}

/** What this choice means under these terms, if so much is used already. */
export function weigh(
  choice: Choice,
  changed: readonly string[],
  terms: Terms | null,
  used: number,
): Weighed {
  const found = (
    right: number | null,
    odds: Said | null,
    worth: Weighed["verdict"],
    words: Said[],
    objection: Said | null = null,
  ): Weighed => ({
    odds: odds === null || right === null ? null : { right: Math.round(right), of: 100, said: odds },
    verdict: worth,
    said: words,
    objection,
    technical: [],
  });
  if (!choice.takesPart) return found(COIN, said("odds.coin"), "good", [said("verdict.no_part")]);
  const gram = terms === null ? null : own(terms);
  const delta = gram?.release.delta ?? 0;
  const limit = changed.includes("total_epsilon") ? limitWords(choice.totalEpsilon, terms) : [];
  const kept = limit.length && Number.isFinite(choice.totalEpsilon) && gram !== null;
  const worth = kept ? verdict(choice.totalEpsilon, delta) : null;
  if (terms === null) return found(null, null, worth ?? "none", limit);
  const why = inTheWay(choice, terms);
  if (why !== null) return found(null, null, worth ?? "none", limit, why);
  const cost = gram?.one.cost(choice) ?? null;
  if (cost === null) return found(null, null, "none", [said("verdict.none"), ...limit]);
  const right = guess(cost, delta);
  let once: Weighed["verdict"] = verdict(cost, delta);
  let words = said(`verdict.${once}`);
  if (once === "good" && !Number.isFinite(choice.totalEpsilon)) {
    [once, words] = ["weak", said("verdict.once")];
  }
  const odds = said(Math.round(right) >= 100 ? "odds.sure" : "odds.said", { right: Math.round(right) });
  return found(right, odds, worth ?? once, [words, ...limit, ...lasting(choice, used, cost)]);
}

/** What a limit on everything is worth. */
function limitWords(limit: number, terms: Terms | null): Said[] {
  const gram = terms === null ? null : own(terms);
  if (terms !== null && gram === null) {
    return Number.isFinite(limit) ? [said("verdict.limit_useless")] : [];
  }
  if (!Number.isFinite(limit)) return [said("verdict.limit_none")];
  if (gram === null) return [];
  const worth = verdict(limit, gram.release.delta);
  const words = [said(`verdict.limit_${worth}`, { limit })];
  if (worth !== "good") words.push(said("verdict.try_instead", { limit: PROTECTS }));
  return words;
}

/** What a period uses, and for how many the limit has room. */
function lasting(choice: Choice, used: number, cost: number): Said[] {
  const each = said("costs.period", { cost: roundedUp(cost) });
  const limit = choice.totalEpsilon;
  if (!Number.isFinite(limit)) return [each, said("costs.no_limit")];
  // The small number: 0.3 / 0.1 is three.
  const room = limit * (1 + 1e-12) - used;
  const left = Math.max(0, Math.floor((room / cost) * (1 + 1e-12)));
  if (left < 1) return [each, said("costs.no_room", { limit })];
  return [each, said("costs.lasts_periods", { n: left, limit })];
}

/** What a message uses, and the period that it is of. */
export function costWords(epsilon: number, terms: Terms, choice: Choice): Said {
  if (!Number.isFinite(epsilon)) return said("preview.no_bound");
  const period = own(terms)?.one.cost(choice) ?? epsilon;
  return said("preview.uses_part", { epsilon: roundedUp(epsilon), period: roundedUp(period) });
}

/** Whether an ε bounds what leaves. */
export function isBounded(terms: Terms): boolean {
  return isOwn(terms) || (terms.link.name === "secure-sum" && terms.link.noise > 0);
}

/** Whether the server reads single reports that nothing bounds, as the papers have it. */
export function isPrinted(terms: Terms): boolean {
  return terms.link.name !== "secure-sum" && !isBounded(terms);
}

/** What she is asked for under these terms. */
export function fieldsOf(choice: Choice, terms: Terms | null): Field[] {
  const field = (name: string, kind: Field["kind"], value: unknown, words = name): Field => ({
    ...{ name, kind, value, label: said(`field.${words}.label`), help: said(`field.${words}.help`) },
    ...{ least: 0, most: 1, steps: [], options: [] },
  });
  const steps = (found: readonly (readonly [number, string])[]): Step[] =>
    found.map(([value, name]) => ({ value, label: said(`step.${name}`) }));
  const found = [field("takes_part", "switch", choice.takesPart)];
  const gram = terms === null ? null : own(terms);
  if (gram !== null) {
    const most = gram.release.epsilon;
    const named = LOUDNESS.filter(([value]) => most >= 4 || value < most);
    const loud = most >= 4 ? named : [...named, [most, "loud"] as const];
    const right = (epsilon: number) => Math.round(guess(epsilon, gram.release.delta));
    found.push({
      ...field("epsilon", "epsilon", choice.epsilon, "epsilon.own"),
      ...{ least: LEAST_EPSILON, most },
      steps: steps(loud).map((step) => ({ ...step, right: right(step.value) })),
    });
    const limit = Number.isFinite(choice.totalEpsilon) ? choice.totalEpsilon : null;
    found.push({ ...field("total_epsilon", "limit", limit), most: null, steps: steps(LOUDNESS) });
  } else if (terms?.algorithm.name === "fpl") {
    const share = field("share_positives", "share", choice.sharePositives);
    found.push({ ...share, steps: steps(SHARES) });
  }
  return [...found, field("never_send", "things", [...choice.neverSend])];
}

/** Who sees what of somebody who takes part. */
export function onlookers(terms: Terms): Reader[] {
  const reader = (who: string, sees: string, values = {}): Reader => ({
    who: said(`reads.${who}`),
    sees: said(`sees.${sees}`, values),
  });
  const { link } = terms;
  if (link.name !== "secure-sum") {
    return [
      reader("server", "rows_guess"),
      reader("server", "share_none"),
      reader("everybody", "model"),
    ];
  }
  const n = link.min_devices;
  const found = [reader("server", "masked"), reader("helper", "seed")];
  const parts = isOwn(terms) ? terms.release.parts : 0;
  if (parts > 0) found.push(reader("everybody", "sum_parts", { n, parts }));
  else if (isBounded(terms)) {
    found.push(reader("everybody", "sum", { n }), reader("helper", "noise_too"));
  } else found.push(reader("everybody", "sum_plain", { n }));
  found.push(reader("together", "both"));
  if (isOwn(terms)) found.push(reader("nobody", "loudness"));
  return [...found, reader("everybody", "model")];
}

/** What whoever agrees should know besides. */
export function agreedTo(terms: Terms): Said[] {
  const { link } = terms;
  const summed = link.name === "secure-sum";
  const found = [said("terms.federation", { name: terms.federation })];
  if (summed && link.url) found.push(said("terms.runs_helper", { address: link.url }));
  found.push(summed ? said("terms.least_people", { n: link.min_devices }) : said("terms.no_least"));
  const parts = isOwn(terms) ? terms.release.parts : 0;
  if (parts > 0) found.push(said("terms.noise_by_devices", { n: parts }));
  else found.push(said(isBounded(terms) ? "terms.noise_by_helper" : "terms.noise_none"));
  if (isOwn(terms)) {
    const { epsilon, delta, period_days } = terms.release;
    found.push(said("terms.most_loud", { most: epsilon }));
    found.push(said("terms.chance", { n: Math.round(1 / delta) }));
    if (period_days) found.push(said("terms.period", { n: period_days }));
  }
  found.push(said("terms.no_end"));
  if (summed) found.push(said("terms.helper_apart"), said("terms.others_real"));
  if (isPrinted(terms)) found.push(said("terms.printed"));
  return found;
}

const RISES: Readonly<Record<string, readonly [rises: string, falls: string]>> = {
  "link.min_devices": ["more_people", "fewer_people"],
  "link.noise": ["more_noise", "less_noise"],
  "release.epsilon": ["louder", "quieter"],
  "release.period_days": ["longer", "sooner"],
};
const MEANS: readonly (readonly [RegExp, string])[] = [
  [/\.urls?$/, "moved"],
  [/\.(keys?|authority|authorities)$/, "other_key"],
  [/^n_items$/, "other_things"],
  [/^algorithm\./, "other_model"],
  [/^link\./, "other_way"],
  [/^release\./, "other_sent"],
];

/** What the change of one setting means to whoever agreed to the former. */
export function ofChange(setting: string, before: unknown, after: unknown): Said | null {
  const rises = RISES[setting];
  if (rises && typeof before === "number" && typeof after === "number") {
    return said(`terms.${after < before ? rises[1] : rises[0]}`);
  }
  const means = MEANS.find(([pattern]) => pattern.test(setting));
  return means ? said(`terms.${means[1]}`) : null;
}

/** Settings one by one, by their names. */
export function settingsOf(table: unknown): Map<string, unknown> {
  const found = new Map<string, unknown>();
  for (const [key, value] of Object.entries(table as Record<string, unknown>)) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) found.set(key, value);
    else for (const [name, one] of Object.entries(value)) found.set(`${key}.${name}`, one);
  }
  return new Map([...found].sort(([one], [other]) => (one < other ? -1 : 1)));
}
