/**
 * The device half of FPL, federated pair-wise learning: what a device learns from pairs of items, and
 * what of it may leave.
 *
 * One step, for a vector p, a positive item i and a negative item j (rows q, the last column being the
 * item's bias, so that p is extended by a 1), in single precision, each operation rounded:
 *
 *     x  = p·(q_i − q_j)            s = σ(−x)
 *     Δj = −s·p − λ_j q_j           Δi = s·p − λ_i q_i          (rounded to the grid)
 *     p ← p + α (s (q_i − q_j) − λ_u p)
 *
 * Negatives always leave, positives by her share π. This hides nothing from a server that reads single
 * reports, which can compute her items from them; over a secure sum it reads sums alone. The twin of
 * `sottovoce.algorithms.fpl` and of the release "share-fraction", bit for bit.
 */

import { ConsentError, DataError, UsageError } from "./errors.ts";
import { requireHistory } from "./history.ts";
import { requireRoom } from "./masking.ts";
import { frexp, powerOfTwo } from "./portable.ts";
import { best, chain } from "./ranking.ts";
import { again, below, type Draws, type Streams } from "./streams.ts";
import type { FplSettings, History, ModelView, RankedItem, Terms } from "./wire/types.ts";
import { GRID } from "./wire/terms.ts";

const LIMIT = 127 * GRID;
const LANES = 16;
const HALF = LANES / 2;
/** The threshold of a coin that always leaves. */
const ALWAYS = 2 ** 32;
const HOME_DRAWS = 500;

/** What a device has learnt in a round: two updates a draw, the negative's first. It stays at home. */
export interface Updates {
  /** Of each update, the item. */
  readonly item: Int32Array;
  /** Of each draw, which of her items it was about, by its place in the history. */
  readonly entry: Int32Array;
  /** `width` whole numbers of the grid for each update. */
  readonly values: Int32Array;
  /** Her vector after the round. */
  readonly vector: Float32Array;
}

/** Rows that leave: of each item once, ascending. */
export interface Rows {
  readonly item: Int32Array;
  /** `width` whole numbers of the grid for each. */
  readonly values: Float64Array;
  /** How many are of items that she has. */
  readonly positive: number;
}

/** Which of her items may leave. */
export interface ShareRule {
  /** By place in the history; null where that does not matter. */
  readonly allowed: Uint8Array | null;
  /** A positive leaves where its coin lies below this. */
  readonly threshold: number;
  readonly coins: Draws;
}

export class Fpl {
  readonly settings: FplSettings;
  private readonly step: Step;
  private readonly width: number;

  constructor(private readonly terms: Terms) {
    if (terms.algorithm.name !== "fpl") throw new UsageError("these terms are not FPL's");
    this.settings = terms.algorithm;
    this.width = terms.width;
    this.step = stepOf(terms.algorithm);
    requireRoom(2 * terms.algorithm.triples * terms.width);
  }

  /** Numbers of a masked report. */
  reportShape(view: ModelView): number {
    return view.rows * view.width;
  }

  /** Whether she has an item, and lacks one. */
  able(history: History): boolean {
    return history.items.length > 0 && history.items.length < history.nItems;
  }

  /** Her vector before she has learnt anything. */
  firstVector(streams: Streams, user: number): Float32Array {
    const size = this.settings.embedding_size;
    const draws = streams.child("init-users", user).draws();
    return Float32Array.from({ length: size }, (_, k) => {
      const radius = Math.sqrt(-2.0 * Math.log1p(-draws.uniform(k)));
      return this.settings.init_scale * (radius * Math.cos(2.0 * Math.PI * draws.uniform(size + k)));
    });
  }

  /** One round's learning. `history` is what may ever be sent. Nothing leaves by this. */
  learn(
    view: ModelView,
    history: History,
    vector: Float32Array,
    streams: Streams,
    user: number,
  ): Updates {
    this.require(view, history, vector);
    const draws = streams.child("learn", view.round, user).draws();
    return learnRows(this.step, view, history, vector, draws, this.draws(history));
  }

  /** By which of her items may leave in this round, under her share π. */
  rule(
    history: History,
    share: number,
    streams: Streams,
    user: number,
    round: number,
  ): ShareRule {
    if (!(share >= 0 && share <= 1)) throw new ConsentError("share_positives must lie in [0, 1]");
    const release = this.terms.release;
    if (release.name !== "share-fraction") throw new UsageError("FPL goes with share-fraction");
    const coins = streams.child("share", round, user).draws();
    if (release.per === "draw") {
      return { allowed: null, threshold: thresholdOf(share), coins };
    }
    const words = streams.child("share-subset", user).draws();
    return { allowed: subset(history, Math.fround(share), words), threshold: ALWAYS, coins };
  }

  /** What leaves of these updates, clipped where the terms say so. */
  leaving(updates: Updates, rule: ShareRule): Rows {
    const rows = merged(updates, this.width, (draw) => {
      const entry = updates.entry[draw]!;
      if (rule.allowed !== null && rule.allowed[entry] === 0) return false;
      return rule.threshold === ALWAYS || rule.coins.high(draw) < rule.threshold;
    });
    const link = this.terms.link;
    const clip = link.name === "secure-sum" ? link.clip : 0;
    return clip > 0 ? { ...rows, values: clipped(rows.values, clip) } : rows;
  }

  /** Rows that leave, with a row for every row of the model, as they are masked. */
  whole(view: ModelView, rows: Rows): Float64Array {
    requireRoom(this.reportShape(view));
    const found = new Float64Array(this.reportShape(view));
    rows.item.forEach((item, k) => {
      found.set(rows.values.subarray(k * view.width, (k + 1) * view.width), item * view.width);
    });
    return found;
  }

  /** Her vector after at least 500 draws from this model, at home. */
  fit(
    view: ModelView,
    history: History,
    vector: Float32Array,
    streams: Streams,
    user: number,
  ): Float32Array {
    let found = vector;
    for (let turn = 0; turn < Math.ceil(HOME_DRAWS / this.draws(history)); turn++) {
      found = this.learn(view, history, found, streams.child("home", turn), user).vector;
    }
    return found;
  }

  scores(view: ModelView, vector: Float32Array): Float32Array {
    const found = new Float32Array(view.rows);
    for (let item = 0, at = 0; item < view.rows; item++, at += view.width) {
      found[item] = chain(view.items[at + vector.length]!, vector, view.items, at);
    }
    return found;
  }

  /** At most n items that she has not, the best first; `leave` leaves more of them out. */
  recommend(
    view: ModelView,
    history: History,
    vector: Float32Array,
    n: number,
    leave: (item: number) => boolean = () => false,
  ): RankedItem[] {
    this.require(view, history, vector);
    const seen = new Set(history.items);
    return best(this.scores(view, vector), n, (item) => seen.has(item) || leave(item));
  }

  /** How often she draws: as the terms say, or as often as she has positives, by interaction
   * rounded down to a power of two; `triples` times at most. */
  private draws(history: History): number {
    const { draws_by, triples } = this.settings;
    if (draws_by === null) return triples;
    const held = Math.max(1, history.items.length);
    return Math.min(triples, draws_by === "positives" ? held : 2 ** (31 - Math.clz32(held)));
  }

  private require(view: ModelView, history: History, vector: Float32Array): void {
    requireHistory(history);
    if (view.rows !== history.nItems || view.width !== this.width) {
      throw new DataError("the model has another shape than the terms and the history say");
    }
    if (vector.length !== this.settings.embedding_size) {
      throw new DataError("the vector of this device has another length than the terms say");
    }
  }
}

// --- the step ----------------------------------------------------------------------------------------

/** The constants of a step in single precision; the last three in steps of the grid. */
export interface Step {
  readonly rate: number;
  readonly decay: number;
  readonly positive: number;
  readonly negative: number;
  readonly bias: number;
}

export function stepOf(settings: FplSettings): Step {
  const rate = settings.learning_rate;
  return {
    rate: Math.fround(rate),
    decay: Math.fround(rate * (settings.reg_user ?? rate / 20)),
    positive: Math.fround((settings.reg_positive ?? rate / 20) * GRID),
    negative: Math.fround((settings.reg_negative ?? rate / 200) * GRID),
    bias: Math.fround(settings.reg_bias * GRID),
  };
}

/** All draws of a round, and what each moves. */
export function learnRows(
  step: Step,
  view: ModelView,
  history: History,
  vector: Float32Array,
  draws: Draws,
  triples: number,
): Updates {
  const many = history.items.length;
  if (many < 1 || many >= history.nItems) {
    throw new DataError("a user with no item, or with every item, cannot learn from pairs");
  }
  const { width, items } = view;
  const last = width - 1;
  const has = new Set(history.items);
  const entry = new Int32Array(triples);
  const item = new Int32Array(2 * triples);
  const values = new Int32Array(2 * triples * width);
  const p = new Float32Array(width);
  p.set(vector);
  p[last] = 1;
  const products = new Float32Array(Math.ceil(width / HALF) * HALF);
  const differ = new Float32Array(width);
  for (let t = 0; t < triples; t++) {
    entry[t] = below(draws.high(t), many);
    let negative = below(draws.low(t), history.nItems);
    for (let word = 0n; has.has(negative); ) {
      word = again(word === 0n ? draws.word(t) : word);
      negative = below(Number(word & 0xffffffffn), history.nItems);
    }
    const [i, j] = [history.items[entry[t]!]!, negative];
    item[2 * t] = j;
    item[2 * t + 1] = i;
    const [at, to] = [i * width, j * width];
    for (let f = 0; f < width; f++) {
      differ[f] = items[at + f]! - items[to + f]!;
      products[f] = p[f]! * differ[f]!;
    }
    const s = slope(total(products));
    const size = Math.fround(GRID * s);
    const rate = Math.fround(step.rate * s);
    const [pulled, pushed] = [2 * t * width, (2 * t + 1) * width];
    for (let f = 0; f < width; f++) {
      const pull = Math.fround(size * p[f]!);
      const down = Math.fround((f === last ? step.bias : step.negative) * items[to + f]!);
      const up = Math.fround((f === last ? step.bias : step.positive) * items[at + f]!);
      values[pulled + f] = -onGrid(Math.fround(pull + down));
      values[pushed + f] = onGrid(Math.fround(pull - up));
    }
    for (let f = 0; f < last; f++) {
      const moves = Math.fround(rate * differ[f]!);
      const decays = Math.fround(step.decay * p[f]!);
      p[f] = p[f]! + Math.fround(moves - decays);
    }
  }
  return { item, entry, values, vector: p.slice(0, last) };
}

/** The sum of a row, in a fixed order: chunks of 16 lane by lane, from the left; then halves onto
 * halves, a last chunk of 8 joining when 8 lanes are left. `row` is padded with zeros to whole
 * eights. */
export function total(row: Float32Array): number {
  const short = row.length % LANES === HALF;
  const stop = short ? row.length - HALF : row.length;
  if (stop === 0) return folded(row.slice(), HALF);
  const sums = row.slice(0, LANES);
  for (let at = LANES; at < stop; at += LANES) {
    for (let k = 0; k < LANES; k++) sums[k]! += row[at + k]!;
  }
  for (let k = 0; k < HALF; k++) sums[k]! += sums[HALF + k]!;
  if (short) for (let k = 0; k < HALF; k++) sums[k]! += row[stop + k]!;
  return folded(sums, HALF);
}

function folded(sums: Float32Array, lanes: number): number {
  for (let half = lanes / 2; half >= 1; half /= 2) {
    for (let k = 0; k < half; k++) sums[k]! += sums[half + k]!;
  }
  return sums[0]!;
}

const f = Math.fround;
const LOG2E = f(1.44269504088896341);
const LN2_HIGH = f(0.693359375);
const LN2_LOW = f(-2.1219444e-4);
const [E2, E3, E4, E5, E6, E7] = [
  5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.98756915e-4,
].map(f) as [number, number, number, number, number, number];
/** Adding and taking it away rounds a number of single precision below 2^22 to the nearest whole. */
const ROUNDS = 12582912;

/** σ(−x) in strict single precision. */
export function slope(x: number): number {
  return f(1 / f(1 + exponential(x)));
}

/** e^x in strict single precision, constant below −87 and above 88. */
export function exponential(x: number): number {
  x = x < 88 ? x : 88;
  x = x > -87 ? x : -87;
  const n = f(f(f(x * LOG2E) + ROUNDS) - ROUNDS);
  const r = f(f(x - f(n * LN2_HIGH)) - f(n * LN2_LOW));
  const r2 = f(r * r);
  const inner = f(f(E4 + f(E5 * r)) + f(r2 * f(E6 + f(E7 * r))));
  const tail = f(f(E2 + f(E3 * r)) + f(r2 * inner));
  return f(f(1 + f(r + f(r2 * tail))) * powerOfTwo(n));
}

/** The nearest whole number (ties to even) after clamping; what is not a number becomes −limit. */
function onGrid(value: number): number {
  const above = value > -LIMIT ? value : -LIMIT;
  return halfEven(above < LIMIT ? above : LIMIT);
}

/** The nearest whole number, ties to even, of a number below 2^51. */
function halfEven(value: number): number {
  return value + 6755399441055744 - 6755399441055744;
}

// --- what leaves -------------------------------------------------------------------------------------

/** A positive leaves where its coin lies below this. π counts in single precision, as records of
 * consent have it. */
export function thresholdOf(share: number): number {
  return halfEven(Math.fround(share) * ALWAYS);
}

/** A flag for each of her items: those that may ever be sent, no more than π of them. */
export function subset(history: History, share: number, words: Draws): Uint8Array {
  const many = history.items.length;
  const wanted = Math.min(Math.floor(share * many + 1e-3), many);
  const drawn = Array.from(history.items, (item) => words.word(item));
  const order = [...drawn.keys()].sort((a, b) => (drawn[a]! < drawn[b]! ? -1 : 1));
  const allowed = new Uint8Array(many);
  for (const k of order.slice(0, wanted)) allowed[k] = 1;
  return allowed;
}

/** Leaving updates summed by item, items ascending. */
function merged(updates: Updates, width: number, leaves: (draw: number) => boolean): Rows {
  const sums = new Map<number, Float64Array>();
  const positives = new Set<number>();
  for (let u = 0; u < updates.item.length; u++) {
    const positive = u % 2 === 1;
    if (positive && !leaves(u >> 1)) continue;
    const item = updates.item[u]!;
    if (positive) positives.add(item);
    let row = sums.get(item);
    if (row === undefined) sums.set(item, (row = new Float64Array(width)));
    for (let f = 0; f < width; f++) row[f]! += updates.values[u * width + f]!;
  }
  const item = Int32Array.from(sums.keys()).sort();
  const values = new Float64Array(item.length * width);
  item.forEach((one, k) => values.set(sums.get(one)!, k * width));
  return { item, values, positive: positives.size };
}

/** A whole update, scaled down to an L2 norm of at most `clip`. Numbers are rounded toward 0, so that
 * the norm keeps below it. What is no longer stays as it is. */
export function clipped(values: Float64Array, clip: number): Float64Array {
  if (values.length === 0) return values;
  let squares = 0;
  for (const value of values) squares += value * value;
  // What the floating-point sum of so many squares may be off by, relatively.
  const slack = (values.length + 16) * 2 ** -52;
  const limit = clip * GRID;
  const most = limit * limit;
  let over = squares > most * (1.0 + slack);
  if (!over && squares > most * (1.0 - slack)) over = isAbove(values, limit);
  if (!over) return values;
  const factor = (limit / Math.sqrt(squares)) * (1.0 - slack);
  return values.map((value) => Math.trunc(value * factor));
}

/** Whether the squares of these whole numbers add up to more than limit², exactly. */
function isAbove(values: Float64Array, limit: number): boolean {
  let squares = 0n;
  for (const value of values) squares += BigInt(value) * BigInt(value);
  // limit = part · 2^-shift with whole numbers.
  const [fraction, power] = frexp(limit);
  const part = BigInt(fraction * 2 ** 53);
  const shift = 2n * BigInt(53 - power);
  return shift >= 0n ? squares << shift > part * part : squares > (part * part) << -shift;
}
