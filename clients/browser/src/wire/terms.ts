/**
 * The terms of a federation: what every party must know and agree on.
 *
 * The server publishes them; a device keeps the ones it agreed to and refuses others. They are named
 * by a text that is the same in every language: JSON with sorted keys, in which every setting is
 * written out, also where it has its default.
 */

import { toHex, utf8, type Bytes } from "../bytes.ts";
import { blake2b, sha256 } from "../crypto.ts";
import { MessageError, Unsupported } from "../errors.ts";
import { isTable, isWhole, own, type Table } from "./fields.ts";
import { checkProtocol, PROTOCOL } from "./frames.ts";
import type {
  DirectSettings,
  FplSettings,
  GramSettings,
  OwnEpsilonSettings,
  SecureSumSettings,
  ShareFractionSettings,
  Terms,
} from "./types.ts";

/** Bytes of a model's numbers, at most. */
export const LARGEST_MODEL = 2 ** 29;
/** Bytes of a masked update, at most. */
export const LARGEST_MASKED = 990_000_000;
export const GRID = 2 ** 24;
const [LEAST_SIGMA, MOST_SIGMA] = [32, 2 ** 41];
const FIELDS = ["algorithm", "federation", "link", "n_items", "protocol", "release"];

// --- settings, each with what it may be ------------------------------------------------------------

type Setting = boolean | number | string | null;

/** What a setting may be, its default, and how it stands in the text. */
interface Rule {
  readonly fallback: Setting;
  readonly fits: (value: unknown) => boolean;
  readonly float: boolean;
}

function whole(fallback: number, low: number, high = 2 ** 53 - 1): Rule {
  const fits = (value: unknown): boolean => isWhole(value) && value >= low && value <= high;
  return { fallback, fits, float: false };
}

function number(fallback: number, low: number, high: number, above = false): Rule {
  const fits = (value: unknown): boolean =>
    typeof value === "number" && (above ? value > low : value >= low) && value <= high;
  return { fallback, fits, float: true };
}

function text(fallback = ""): Rule {
  return { fallback, fits: (value) => typeof value === "string", float: false };
}

function flag(fallback: boolean): Rule {
  return { fallback, fits: (value) => typeof value === "boolean", float: false };
}

function one(...known: readonly Setting[]): Rule {
  return { fallback: known[0]!, fits: (value) => known.includes(value as Setting), float: false };
}

function either(first: Rule, ...others: readonly Setting[]): Rule {
  const fits = (value: unknown): boolean => others.includes(value as Setting) || first.fits(value);
  return { fallback: others[0]!, fits, float: first.float };
}

type Rules = Readonly<Record<string, Rule>>;

/** Below 1000. */
const REGULARISATION = number(0, 0, 1000 - 2 ** -43);
const ALGORITHMS: Readonly<Record<string, Rules>> = {
  gram: {
    embedding_size: whole(128, 1, 4096),
    recency: flag(true),
    memory: number(8, 0, 1e6),
    popularity_share: number(0, 0, 1),
    least_head: whole(100, 2, 20_000),
    most_head: whole(1000, 2, 20_000),
    batches: whole(1, 1, 520),
    pairs_from: whole(0, 0),
    quality_share: number(0, 0, 0.9),
    held_out: number(0.1, 0, 0.5),
    noise: one("independent", "factorised"),
    model_bits: whole(8, 2, 32),
    support: number(0, 0, 1e6),
  },
  fpl: {
    embedding_size: whole(10, 1, 4096),
    learning_rate: number(0.05, 0, 10, true),
    server_rate: either(number(0.1, 0, 10, true), null),
    cohort_size: either(whole(1, 1), "all"),
    triples: either(whole(1, 1, 1_000_000), "mean"),
    draws_by: either(one("positives", "interaction"), null),
    epochs: whole(20, 1, 1_000_000),
    rounds: whole(0, 0, 1e12),
    reg_user: either(REGULARISATION, null),
    reg_positive: either(REGULARISATION, null),
    reg_negative: either(REGULARISATION, null),
    reg_bias: REGULARISATION,
    init_scale: { ...REGULARISATION, fallback: 0.1 },
    init_bias: one("normal", "zero"),
  },
};
const RELEASES: Readonly<Record<string, Rules>> = {
  "own-epsilon": {
    epsilon: number(8, 1e-3, 64),
    delta: number(1e-6, 1e-12, 1e-3),
    parts: whole(0, 0, 1 << 20),
    period_days: whole(0, 0, 36_500),
  },
  "share-fraction": { per: one("item", "draw") },
};
const LINKS: Readonly<Record<string, Rules>> = {
  direct: {},
  "secure-sum": {
    min_devices: whole(20, 2),
    clip: number(0, 0, 2 ** 20),
    noise: number(0, 0, 1e6),
    groups: whole(1, 1, 64),
    bits: one(64, 0, 32, 40, 48),
    url: text(),
    authority: text(),
    key: text(),
  },
};
/** Algorithms, and what they go with. */
const FITTING: Readonly<Record<string, { releases: string[]; links: string[] }>> = {
  gram: { releases: ["own-epsilon"], links: ["secure-sum"] },
  fpl: { releases: ["share-fraction"], links: ["direct", "secure-sum"] },
};
/** What other devices speak, and a tab does not. */
const ELSEWHERE: Readonly<Record<string, readonly string[]>> = {
  algorithm: ["fmf", "fcf", "uc", "drift"],
  release: ["k-reports", "everything", "clipped"],
  link: ["proxy", "checked-sum"],
};

function settings(
  table: unknown,
  kinds: Readonly<Record<string, Rules>>,
  where: string,
): Record<string, Setting> & { name: string } {
  if (!isTable(table)) {
    throw new MessageError("the terms of a federation have a field of the wrong type");
  }
  const name = own(table, "name");
  if (typeof name !== "string" || !Object.hasOwn(kinds, name)) {
    if (typeof name === "string" && ELSEWHERE[where]!.includes(name)) {
      throw new Unsupported(`this federation has the ${where} ${name}, which a tab cannot take part in`);
    }
    throw noSense(`${where}.name is none that is known here`);
  }
  const rules = kinds[name]!;
  const found: Record<string, Setting> & { name: string } = { name };
  for (const key of Object.keys(table)) {
    if (key !== "name" && !Object.hasOwn(rules, key)) throw noSense(`${where} has unknown keys`);
  }
  for (const [key, rule] of Object.entries(rules)) {
    const value = Object.hasOwn(table, key) ? table[key] : rule.fallback;
    if (!rule.fits(value)) throw noSense(`${where}.${key} is not what it may be`);
    found[key] = value as Setting;
  }
  return found;
}

function noSense(why: string): MessageError {
  return new MessageError(`the terms of the federation make no sense: ${why}`);
}

// --- terms -----------------------------------------------------------------------------------------

/** From what a server published. Raises where the version differs, it makes no sense, or it is for
 * devices of another kind. */
export function termsFromTable(table: unknown): Terms {
  if (!isTable(table)) throw new MessageError("the terms of a federation must be a table");
  checkProtocol(own(table, "protocol"), "the server speaks");
  if (Object.keys(table).sort().join() !== FIELDS.join()) {
    throw new MessageError(`the terms of a federation must have the fields ${FIELDS.join(", ")}`);
  }
  const [federation, nItems] = [own(table, "federation"), own(table, "n_items")];
  if (typeof federation !== "string" || !isWhole(nItems) || /\p{Cs}/u.test(federation)) {
    throw new MessageError("the terms of a federation have a field of the wrong type");
  }
  const algorithm = settings(own(table, "algorithm"), ALGORITHMS, "algorithm") as unknown as
    GramSettings | FplSettings;
  const release = settings(own(table, "release"), RELEASES, "release") as unknown as
    OwnEpsilonSettings | ShareFractionSettings;
  const link = settings(own(table, "link"), LINKS, "link") as unknown as
    DirectSettings | SecureSumSettings;
  const fitting = FITTING[algorithm.name]!;
  if (!fitting.releases.includes(release.name) || !fitting.links.includes(link.name)) {
    throw noSense("its algorithm does not go with its release or link");
  }
  if (nItems < 2) throw noSense("a federation needs at least two items");
  const width = algorithm.embedding_size + (algorithm.name === "gram" ? 2 : 1);
  if (nItems * width * 4 > LARGEST_MODEL) throw noSense("its model is too large");
  if (algorithm.name === "gram") checkGram(algorithm);
  else if (typeof algorithm.triples !== "number") throw noSense("triples must be a number");
  if (link.name === "secure-sum") checkSum(link, algorithm, release, nItems);
  const terms = {
    federation,
    nItems,
    algorithm,
    release,
    link,
    width,
    bits: (link.name === "secure-sum" && link.bits) || 64,
    contributes: release.name === "own-epsilon",
  };
  return { ...terms, canonical: canonical(termsTable(terms)) };
}

function checkGram(algorithm: GramSettings): void {
  if (algorithm.most_head < algorithm.least_head) throw noSense("most_head is below least_head");
  if (algorithm.pairs_from >= algorithm.batches) throw noSense("pairs_from is out of range");
  if ((algorithm.noise === "factorised" && algorithm.batches > 1) || algorithm.pairs_from > 0) {
    throw noSense("factorised noise and pairs_from run in simulation alone");
  }
}

function checkSum(
  link: SecureSumSettings,
  algorithm: GramSettings | FplSettings,
  release: OwnEpsilonSettings | ShareFractionSettings,
  nItems: number,
): void {
  const sigma = link.noise * link.clip * GRID;
  if (link.noise > 0 && !(sigma >= LEAST_SIGMA && sigma <= MOST_SIGMA)) {
    throw noSense("there is no noise of this size");
  }
  if (release.name === "own-epsilon") {
    if (link.clip || link.noise) throw noSense("gram has a bound and noise of its own");
    if (release.parts > link.min_devices) throw noSense("release.parts is above link.min_devices");
  }
  if (algorithm.name === "fpl" && typeof algorithm.cohort_size === "number") {
    if (algorithm.cohort_size < link.min_devices) throw noSense("too few devices are asked");
  }
  const numbers = mostNumbers(algorithm, nItems);
  if (Math.floor((numbers * (link.bits || 64)) / 8) >= LARGEST_MASKED) {
    throw noSense("a masked update would be too large");
  }
}

/** Numbers of a device's masked message in any round, at most. */
export function mostNumbers(algorithm: GramSettings | FplSettings, nItems: number): number {
  if (algorithm.name === "fpl") return nItems * (algorithm.embedding_size + 1);
  const head = Math.min(algorithm.most_head, nItems);
  return Math.max(nItems + 1, (head * (head + 1)) / 2);
}

/** As they are published. */
export function termsTable(
  terms: Pick<Terms, "federation" | "nItems" | "algorithm" | "release" | "link">,
): Table {
  const algorithm = Object.entries(terms.algorithm).filter(([, value]) => value !== null);
  const link: Record<string, unknown> = { ...terms.link };
  if (terms.link.name === "secure-sum") {
    // What was agreed to before there were groups and shorter numbers says nothing of them.
    if (terms.link.groups === 1) delete link["groups"];
    if (terms.link.bits === 64) delete link["bits"];
  }
  return {
    protocol: PROTOCOL,
    federation: terms.federation,
    n_items: terms.nItems,
    algorithm: Object.fromEntries(algorithm),
    release: { ...terms.release },
    link,
  };
}

/** Equal for equal terms, and different for different ones: what a descriptor says of them. */
export function termsDigest(terms: Terms): string {
  return toHex(blake2b(utf8(terms.canonical), 16));
}

/** The same for equal terms alone, also where somebody looks for others of the same name. */
export function termsName(terms: Terms): Promise<Bytes> {
  return sha256(utf8(terms.canonical));
}

// --- the text --------------------------------------------------------------------------------------

function canonical(table: Table): string {
  const known: Readonly<Record<string, Readonly<Record<string, Rules>>>> = {
    algorithm: ALGORITHMS,
    release: RELEASES,
    link: LINKS,
  };
  return written(table, (name, value) => {
    const kinds = known[name];
    if (kinds === undefined || !isTable(value)) return plain(value);
    const rules = kinds[String(value["name"])]!;
    return written(value, (key, each) =>
      rules[key]?.float === true ? floatText(each as number) : plain(each),
    );
  });
}

function written(table: Table, each: (name: string, value: unknown) => string): string {
  const names = Object.keys(table).sort();
  return `{${names.map((name) => `${plain(name)}: ${each(name, table[name])}`).join(", ")}}`;
}

/** Text, a whole number, true or false, as ASCII. */
function plain(value: unknown): string {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** A number as Python writes it: the shortest digits that stand for it, at least one behind the
 * point, and a power where it is below 1e-4 or from 1e16 on. */
export function floatText(value: number): string {
  const [digits, power] = value.toExponential().split("e") as [string, string];
  const exponent = Number(power);
  if (value !== 0 && (exponent < -4 || exponent >= 16)) {
    const sign = exponent < 0 ? "-" : "+";
    return `${digits}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const found = exponent < 0 && value !== 0 ? small(digits, exponent) : String(value);
  const signed = Object.is(value, -0) ? "-0" : found;
  return signed.includes(".") ? signed : `${signed}.0`;
}

function small(digits: string, exponent: number): string {
  const sign = digits.startsWith("-") ? "-" : "";
  return `${sign}0.${"0".repeat(-exponent - 1)}${digits.replace(/[-.]/g, "")}`;
}
