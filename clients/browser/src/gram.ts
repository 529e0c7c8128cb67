/**
 * The device half of gram: what it could tell in each stage of a period, and what it recommends.
 *
 * Stage 0: her items, weighted, as one vector of norm 1, and that she is there. Stage 1: the products
 * of all pairs of her items in the head, the items with a scale above 0 in the model. A last stage,
 * where there is one, says whether the model would have recommended an item that she held out. The
 * twin of `sottovoce.algorithms.gram`, bit for bit.
 */

import { DataError, UsageError } from "./errors.ts";
import { numbersOf } from "./contributions.ts";
import { positions, recency, requireHistory, select, unit } from "./history.ts";
import { best, chain } from "./ranking.ts";
import type {
  GramSettings,
  History,
  ModelView,
  Profile,
  RankedItem,
  Terms,
} from "./wire/types.ts";

/** The square of what the count has of stage 0's norm. */
const COUNTED = 0.1;
/** What the first stage has where nobody says how many users there are. */
const FIRST_SHARE = 0.1;
/** Columns of the model: popularity, scale, and the first factor. */
const [Q, SCALE, FACTORS] = [0, 1, 2];
/** Whoever has fewer items holds none out. */
const FEWEST = 5;
/** Recommendations among which a hit is looked for. */
const CUTOFF = 10;
/** By the new model, by the published one, by popularity. */
const WHICH = 3;
/** Shuffles items that came at once, alike on all devices (Knuth's multiplier). */
const SPREAD = 2654435761;

export class Gram {
  readonly settings: GramSettings;
  /** How a period's ε is divided among its stages: their shares of 1/noise². */
  readonly shares: readonly number[];
  readonly batches: number;
  /** The square of what the count has of stage 0's norm. */
  readonly counted = COUNTED;
  private readonly nItems: number;

  constructor(terms: Terms) {
    if (terms.algorithm.name !== "gram") throw new UsageError("these terms are not gram's");
    this.settings = terms.algorithm;
    this.nItems = terms.nItems;
    this.batches = terms.algorithm.batches;
    const first = this.settings.popularity_share || FIRST_SHARE;
    const last = this.settings.quality_share;
    const learnt = first < 1.0 ? [first, 1.0 - first] : [1.0];
    this.shares = last ? [...learnt.map((share) => (1.0 - last) * share), last] : learnt;
  }

  stage(round: number): number {
    return round % this.shares.length;
  }

  batch(round: number): number {
    return Math.floor(round / this.shares.length) % this.batches;
  }

  period(round: number): number {
    return Math.floor(round / (this.shares.length * this.batches));
  }

  /** Whether there is this round at all. */
  held(round: number): boolean {
    return this.stage(round) === 0 || this.batch(round) >= this.settings.pairs_from;
  }

  /** Whether this round is about how good the model is. */
  asks(round: number): boolean {
    return this.settings.quality_share > 0 && this.stage(round) === this.shares.length - 1;
  }

  /** Numbers of a contribution to this round. */
  reportShape(view: ModelView): number {
    if (this.asks(view.round)) return 2 * WHICH;
    if (this.stage(view.round) === 0) return view.rows + 1;
    return numbersOf(head(view).length, true);
  }

  /** What this device could tell: a vector of norm 1 at most. `history` is what may ever be sent;
   * `published` is the model that people recommend by, null where no other than the round's is
   * known. */
  profile(view: ModelView, history: History, published: ModelView | null): Profile {
    this.require(view, history);
    let mine = history;
    if (this.settings.quality_share) {
      const { kept, held } = parted(history, this.settings.held_out);
      if (this.asks(view.round)) return this.told(view, published, kept, held);
      mine = kept;
    }
    const weights = this.sentWeights(mine);
    return this.stage(view.round) === 0
      ? withCount(mine, unit(weights))
      : inHead(head(view), mine, weights);
  }

  /** Which item each place of a profile is about; −1 where it is about none. */
  itemsAt(view: ModelView, places: Int32Array): Int32Array {
    if (this.asks(view.round)) return new Int32Array(places.length).fill(-1);
    if (this.stage(view.round) === 0) {
      return places.map((place) => (place < view.rows ? place : -1));
    }
    const items = head(view);
    return places.map((place) => items[place]!);
  }

  /** Her items' factors, added up by what each weighs at home. */
  vector(view: ModelView, history: History): Float32Array {
    const memory = this.settings.recency ? this.settings.memory : 0.0;
    const weights = unit(recency(history, memory));
    const size = view.width - FACTORS;
    const sums = new Float64Array(size);
    for (let e = 0; e < weights.length; e++) {
      const at = history.items[e]! * view.width + FACTORS;
      const weight = weights[e]!;
      for (let f = 0; f < size; f++) sums[f]! += weight * view.items[at + f]!;
    }
    return Float32Array.from(sums);
  }

  /** Of every item: popularity and, in the head, what her items say of it. */
  scores(view: ModelView, history: History): Float32Array {
    this.require(view, history);
    const vector = this.vector(view, history);
    const found = new Float32Array(view.rows);
    const scaled = new Float32Array(view.width - FACTORS);
    for (let item = 0, at = 0; item < view.rows; item++, at += view.width) {
      const scale = Math.abs(view.items[at + SCALE]!);
      const popularity = view.items[at + Q]!;
      if (scale === 0) {
        found[item] = popularity;
        continue;
      }
      for (let f = 0; f < scaled.length; f++) scaled[f] = view.items[at + FACTORS + f]! * scale;
      found[item] = chain(popularity, vector, scaled, 0);
    }
    return found;
  }

  /** At most n items that she has not, the best first; `leave` leaves more of them out. */
  recommend(
    view: ModelView,
    history: History,
    n: number,
    leave: (item: number) => boolean = () => false,
  ): RankedItem[] {
    const seen = new Set(history.items);
    return best(this.scores(view, history), n, (item) => seen.has(item) || leave(item));
  }

  private require(view: ModelView, history: History): void {
    requireHistory(history);
    if (view.rows !== history.nItems || view.rows !== this.nItems) {
      throw new DataError(
        `the model is of another catalogue, with ${view.rows} items; this device knows ` +
          `${history.nItems}`,
      );
    }
    if (view.width !== FACTORS + this.settings.embedding_size) {
      throw new DataError("the model has other columns than the terms say");
    }
  }

  /** Of each item in what is sent: more, the later it came. */
  private sentWeights(history: History): Float64Array {
    const many = history.items.length;
    if (!this.settings.recency) return new Float64Array(many).fill(1);
    return positions(history).map((place) => Math.sqrt((place + 1.0) / many));
  }

  /** A hit or a miss by each of three models; nothing where nothing was held out. */
  private told(
    view: ModelView,
    published: ModelView | null,
    kept: History,
    held: History,
  ): Profile {
    const size = 2 * WHICH;
    const nothing = { size, pairs: false, items: 0 };
    if (held.items.length === 0) {
      return { ...nothing, place: new Int32Array(0), value: new Float64Array(0) };
    }
    const found = this.hits(view, published, kept, held);
    return {
      place: Int32Array.from(found, (hit, k) => 2 * k + (hit ? 0 : 1)),
      value: new Float64Array(WHICH).fill(Math.sqrt(1.0 / WHICH)),
      size,
      pairs: false,
      items: held.items.length,
    };
  }

  /** Whether one of ten recommendations is among the items held out: by the model of the round, by
   * the published one, and by popularity alone. */
  hits(view: ModelView, published: ModelView | null, kept: History, held: History): boolean[] {
    const popular = { ...view, items: view.items.slice() };
    for (let row = 0; row < view.rows; row++) {
      popular.items.fill(0, row * view.width + SCALE, (row + 1) * view.width);
    }
    const other = published === null ? view : asLong(published, view.rows);
    const wanted = new Set(held.items);
    return [view, other, popular].map((one) =>
      this.recommend(one, kept, CUTOFF).some(({ item }) => wanted.has(item)),
    );
  }
}

/** Items whose pairs are summed, by the model that is published, ascending. */
export function head(view: ModelView): Int32Array {
  const found: number[] = [];
  for (let item = 0, at = SCALE; item < view.rows; item++, at += view.width) {
    if (view.items[at]! > 0) found.push(item);
  }
  return Int32Array.from(found);
}

/** What may be contributed, and her latest items, which are held out: this share of them, at least
 * one, and none where she has few. */
export function parted(history: History, share: number): { kept: History; held: History } {
  const many = history.items.length;
  const out = many >= FEWEST ? Math.max(1, Math.floor(share * many)) : 0;
  const spread = (k: number): number => Math.imul(history.items[k]!, SPREAD) >>> 0;
  const time = (k: number): number => history.times?.[k] ?? 0;
  const order = [...history.items.keys()].sort((a, b) => time(a) - time(b) || spread(a) - spread(b));
  const late = new Set(order.slice(many - out));
  return {
    kept: select(history, (k) => !late.has(k)),
    held: select(history, (k) => late.has(k)),
  };
}

/** Her items, and behind all of them that she is there. */
function withCount(history: History, weights: Float64Array): Profile {
  const many = history.items.length;
  const place = new Int32Array(many + 1);
  place.set(history.items);
  place[many] = history.nItems;
  const value = new Float64Array(many + 1);
  const part = Math.sqrt(1.0 - COUNTED);
  for (let k = 0; k < many; k++) value[k] = part * weights[k]!;
  value[many] = Math.sqrt(COUNTED);
  return { place, value, size: history.nItems + 1, pairs: false, items: many };
}

/** Her items in the head, by their places in it. */
function inHead(items: Int32Array, history: History, weights: Float64Array): Profile {
  const at = new Map<number, number>();
  items.forEach((item, place) => at.set(item, place));
  const kept = [...history.items.keys()].filter((k) => at.has(history.items[k]!));
  return {
    place: Int32Array.from(kept, (k) => at.get(history.items[k]!)!),
    value: unit(Float64Array.from(kept, (k) => weights[k]!)),
    size: items.length,
    pairs: true,
    items: kept.length,
  };
}

/** A model of before items came, which are added at the end: it knows of them what it knows of its
 * least popular one. */
function asLong(older: ModelView, rows: number): ModelView {
  if (older.rows === rows) return older;
  const items = new Float32Array(rows * older.width);
  items.set(older.items.subarray(0, items.length));
  let least = 0;
  for (let row = 0; row < older.rows; row++) {
    least = Math.min(least, older.items[row * older.width + Q]!);
  }
  for (let row = older.rows; row < rows; row++) items[row * older.width + Q] = least;
  return { round: older.round, rows, width: older.width, items };
}
