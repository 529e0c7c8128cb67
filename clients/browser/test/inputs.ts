/** Random inputs for the functions of `functions.ts`: what a device may meet, and what is at the edge
 * of that. */

import { toHex, utf8 } from "../src/bytes.ts";
import { publicOf } from "../src/crypto.ts";
import { asTable, f32, f64 } from "./functions.ts";
import { drawnBytes } from "./help.ts";

export type Draw = () => number;

const below = (draw: Draw, n: number): number => Math.floor(n * draw());
const between = (draw: Draw, low: number, high: number): number => low + (high - low) * draw();
const one = <T>(draw: Draw, from: readonly T[]): T => from[below(draw, from.length)]!;
const many = <T>(draw: Draw, most: number, make: () => T): T[] =>
  Array.from({ length: below(draw, most + 1) }, make);
const bytes = (draw: Draw, count: number): string => toHex(drawnBytes(draw, count));

/** A double with all of its bits. */
const fine = (draw: Draw): number => draw() + draw() * 2 ** -32;
const number = (draw: Draw, low: number, high: number): string => f64(low + (high - low) * fine(draw));
const spread = (draw: Draw, low: number, high: number): number =>
  Math.exp(between(draw, Math.log(low), Math.log(high)));

/** So many of 0 … n − 1, in any order. */
function some(draw: Draw, n: number, count: number): number[] {
  const found = new Set<number>();
  while (found.size < Math.min(count, n)) found.add(below(draw, n));
  return [...found];
}

const ascending = (numbers: number[]): number[] => numbers.sort((a, b) => a - b);

const name = (draw: Draw): string =>
  many(draw, 12, () => one(draw, ["a", "Z", "é", "界", "𝛑", "\\", '"', "/", "\u007f", " ", "\n", "9"])).join("");

const KEY = toHex(publicOf(new Uint8Array(32).fill(7)));

function link(draw: Draw): Record<string, unknown> {
  const made: Record<string, unknown> = {
    name: "secure-sum", min_devices: 2 + below(draw, 30), clip: 0.0, noise: 0.0,
    url: "https://helper.example", authority: name(draw), key: KEY,
  };
  if (draw() < 0.7) made["groups"] = 1 + below(draw, 64);
  if (draw() < 0.8) made["bits"] = one(draw, [32, 40, 48, 64]);
  return made;
}

export const N_ITEMS = 24;

export function gramTerms(draw: Draw): string {
  const algorithm = {
    name: "gram", embedding_size: 5, recency: draw() < 0.7, memory: one(draw, [0, 2.5, 8]),
    popularity_share: one(draw, [0.0, 0.3, between(draw, 0.01, 0.99), 1.0]), least_head: 2,
    most_head: 10 + below(draw, 10), batches: 1 + below(draw, 3), pairs_from: 0,
    quality_share: one(draw, [0, 0, 0.1, 0.25]), held_out: one(draw, [0.1, 0.3, 0.5]),
    noise: "independent", model_bits: one(draw, [8, 12, 32]), support: one(draw, [0, 1e-5, 0.7]),
  };
  const release = {
    name: "own-epsilon", epsilon: one(draw, [0.5, 2, 8, 64]), delta: one(draw, [1e-6, 1e-9, 1e-3]),
    parts: 0, period_days: below(draw, 40),
  };
  return JSON.stringify({
    protocol: 2, federation: name(draw), n_items: N_ITEMS, algorithm, release, link: link(draw),
  });
}

/** Python compiles FPL for each size anew, which only a long run pays for. */
const SIZES = Number(process.env["SOTTOVOCE_INPUTS"] ?? "0") < 1000 ? [4] : [4, 7, 8, 15, 20];

export function fplTerms(draw: Draw, sizes: readonly number[] = SIZES): string {
  const sum = draw() < 0.5;
  const algorithm: Record<string, unknown> = {
    name: "fpl", embedding_size: one(draw, sizes), learning_rate: between(draw, 0.001, 0.5),
    cohort_size: "all", triples: 1 + below(draw, 12), epochs: 20, rounds: below(draw, 5),
    reg_bias: one(draw, [0, 0.01]), init_scale: 0.1, init_bias: one(draw, ["normal", "zero"]),
  };
  if (draw() < 0.5) algorithm["reg_user"] = draw() / 10;
  if (draw() < 0.5) algorithm["reg_positive"] = draw() / 10;
  if (draw() < 0.5) algorithm["reg_negative"] = draw() / 10;
  if (draw() < 0.3) algorithm["draws_by"] = draw() < 0.5 ? "positives" : "interaction";
  if (draw() < 0.3) algorithm["server_rate"] = between(draw, 0.01, 0.5);
  const made = sum ? { ...link(draw), clip: one(draw, [0, 0.5]) } : { name: "direct" };
  return JSON.stringify({
    protocol: 2, federation: name(draw), n_items: N_ITEMS, algorithm,
    release: { name: "share-fraction", per: one(draw, ["item", "draw"]) }, link: made,
  });
}

const widthOf = (terms: string, more: number): number =>
  (JSON.parse(terms) as { algorithm: { embedding_size: number } }).algorithm.embedding_size + more;

export function gramModel(draw: Draw, width: number, rows = N_ITEMS): string {
  const items = new Float32Array(rows * width);
  const coarse = draw() < 0.5;
  for (let row = 0; row < rows; row++) {
    items[row * width] = coarse ? below(draw, 8) : between(draw, -1, 40);
    items[row * width + 1] = draw() < 0.3 ? 0 : between(draw, -2, 6);
    for (let c = 2; c < width; c++) {
      items[row * width + c] = coarse ? below(draw, 5) / 4 - 0.5 : between(draw, -1, 1) * spread(draw, 1e-6, 1);
    }
  }
  return asTable(items);
}

function model(draw: Draw, rows: number, width: number, size = 1): string {
  return asTable(Float32Array.from({ length: rows * width }, () => between(draw, -size, size)));
}

function history(draw: Draw, n = N_ITEMS): { items: number[]; times: number[] | null } {
  const items = some(draw, n, below(draw, n - 1));
  const far = one(draw, [3, 1000, 2e9]);
  return { items, times: draw() < 0.2 ? null : items.map(() => below(draw, far)) };
}

function profile(draw: Draw): Record<string, unknown> {
  const size = 1 + below(draw, 60);
  const place = ascending(some(draw, size, below(draw, size + 1)));
  const raw = place.map(() => (draw() < 0.2 ? 0 : spread(draw, 1e-3, 1)));
  const norm = Math.sqrt(raw.reduce((sum, x) => sum + x * x, 0)) || 1;
  // Some are a little, or much, too long.
  const factor = one(draw, [1, 1, 1, 1, 1 + 2 ** -39, 1.001, 0.5, 3]);
  const value = raw.map((x) => f64((x / norm) * factor));
  return { place, value, size, pairs: draw() < 0.5 };
}

const c = (draw: Draw): string => f64(one(draw, [0, 1, fine(draw), spread(draw, 1e-6, 1), 0.25, 1 / 3]));
const release = (draw: Draw) => ({
  epsilon: f64(one(draw, [0.5, 1, 8, 64, spread(draw, 1e-3, 64)])), delta: f64(one(draw, [1e-6, 1e-9, 1e-3])),
});
const signed = (draw: Draw): number => (draw() < 0.5 ? -1 : 1);

/** By function: an input, and how many times fewer of them than of the quick ones. */
export const INPUTS: Record<string, readonly [fewer: number, make: (draw: Draw) => unknown]> = {
  exp: [1, (draw) => ({ x: f64(one(draw, [between(draw, -760, 720), between(draw, -2, 2), 0, -0])) })],
  log: [1, (draw) => ({ x: f64(one(draw, [spread(draw, 1e-300, 1e300), 1 + between(draw, -1e-9, 1e-9), fine(draw) + 1e-9])) })],
  scaled_erfc: [1, (draw) => ({ x: f64(one(draw, [between(draw, 0, 8), spread(draw, 1e-9, 1e9)])) })],
  gaussian_delta: [1, (draw) => ({ distance: f64(spread(draw, 1e-4, 100)), epsilon: f64(between(draw, 0, 64)) })],
  exp32: [1, (draw) => ({ x: f32(between(draw, -100, 100)) })],
  sigmoid32: [1, (draw) => ({ x: f32(one(draw, [between(draw, -100, 100), between(draw, -3, 3), 1e30])) })],
  exact_sum: [1, (draw) => ({ numbers: many(draw, 6, () => f64(signed(draw) * spread(draw, 1e-12, 1e3))) })],
  price: [10, (draw) => ({ noise: f64(spread(draw, 1e-2, 1e5)), delta: f64(spread(draw, 1e-12, 1e-3)) })],
  noise_for: [100, (draw) => ({ epsilon: f64(spread(draw, 1e-3, 64)), delta: f64(spread(draw, 1e-12, 1e-3)) })],
  scale: [50, (draw) => ({ release: release(draw), epsilon: f64(one(draw, [0, 1e-4, 0.7, spread(draw, 1e-3, 100)])) })],
  mark: [1, (draw) => ({ round: below(draw, 5000), stages: 1 + below(draw, 3), batches: 1 + below(draw, 5), sent: below(draw, 300) * 256 + below(draw, 8) })],
  beyond: [1, (draw) => ({ then: many(draw, 3, () => [number(draw, 0, 1), f64(spread(draw, 1e-3, 9))]), stages: below(draw, 8), shares: [f64(0.3), f64(0.6), f64(0.1)], now: f64(one(draw, [0, 1, spread(draw, 1e-3, 9)])) })],
  cost: [50, (draw) => {
    const first = between(draw, 0.05, 0.95);
    const shares = one(draw, [[1], [first, 1 - first], [first * 0.8, (1 - first) * 0.8, 0.2]]);
    const batches = 1 + below(draw, 3);
    const round = below(draw, 4 * shares.length * batches);
    return {
      release: release(draw), epsilon: f64(one(draw, [0, 0.7, spread(draw, 1e-3, 70)])), total: f64(one(draw, [Infinity, spread(draw, 0.01, 100)])),
      shares: shares.map(f64), batches, round, sent: below(draw, 5) * 256 + below(draw, 2 ** shares.length),
      beyond: f64(one(draw, [0, 0, between(draw, -0.5, 2)])), spent: f64(one(draw, [0, between(draw, 0, 20)])),
    };
  }],
  has_room: [1, (draw) => ({ spent: number(draw, 0, 2), cost: number(draw, 0, 1), limit: f64(one(draw, [Infinity, 1, 0, between(draw, 0, 3)])) })],
  positions: [1, (draw) => ({ ...history(draw), n_items: N_ITEMS })],
  home_weights: [1, (draw) => ({ ...history(draw), n_items: N_ITEMS, memory: f64(one(draw, [0, 8, spread(draw, 0.1, 100)])) })],
  held_out: [1, (draw) => ({ ...history(draw), n_items: N_ITEMS, share: f64(one(draw, [0.1, 0.5, 0, between(draw, 0, 0.5)])) })],
  home_vector: [10, (draw) => ({ terms: gramTerms(draw), model: gramModel(draw, 7), ...history(draw) })],
  gram_list: [10, (draw) => ({ terms: gramTerms(draw), model: gramModel(draw, 7), ...history(draw), many: 1 + below(draw, N_ITEMS) })],
  ranked: [2, (draw) => {
    const size = 1 + below(draw, 9);
    const far = one(draw, [1, 1e-20, 1e15]);
    return { vector: model(draw, 1, size, far), items: model(draw, 30, size), bias: model(draw, 30, 1, one(draw, [far, 1, 0])), size, seen: ascending(some(draw, 30, below(draw, 25))), many: 1 + below(draw, 12) };
  }],
  profile: [10, (draw) => {
    const longer = draw() < 0.2 ? 20 : N_ITEMS;
    return { terms: gramTerms(draw), round: below(draw, 12), model: gramModel(draw, 7), published: draw() < 0.5 ? null : gramModel(draw, 7, longer), ...history(draw) };
  }],
  hits: [10, (draw) => ({ terms: gramTerms(draw), model: gramModel(draw, 7), published: draw() < 0.5 ? null : gramModel(draw, 7), ...history(draw) })],
  cut: [1, (draw) => ({ ...profile(draw), scale: c(draw) })],
  contribution: [2, (draw) => {
    const size = 1 + below(draw, 20);
    const place = ascending(some(draw, size, below(draw, size + 1)));
    return { place, steps: place.map(() => below(draw, 257)), size, pairs: draw() < 0.7 };
  }],
  mask: [1, (draw) => ({ seed: bytes(draw, 32), numbers: below(draw, one(draw, [5, 40, 700])), bits: one(draw, [32, 40, 48, 64]) })],
  hidden: [1, (draw) => ({ seed: bytes(draw, 32), bits: one(draw, [32, 40, 48, 64]), values: many(draw, 30, () => Math.floor(signed(draw) * spread(draw, 1, 2 ** 53))) })],
  words: [1, (draw) => ({ key: bytes(draw, 32), first: below(draw, 1e6), many: below(draw, 20) })],
  hpke_seal: [1, (draw) => ({ public: toHex(publicOf(drawnBytes(draw, 32))), info: bytes(draw, below(draw, 90)), plaintext: bytes(draw, below(draw, 70)), ephemeral: bytes(draw, 32) })],
  public_keys: [1, (draw) => ({ private: bytes(draw, 32) })],
  weak_key: [1, (draw) => ({ public: one(draw, [bytes(draw, 32), bytes(draw, 31), "00".repeat(32), `01${"00".repeat(31)}`, `ec${"ff".repeat(30)}7f`, `ec${"ff".repeat(31)}`, "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"]) })],
  envelope: [1, (draw) => ({ private: bytes(draw, 32), federation: name(draw), purpose: one(draw, ["report", "check-in"]), number: below(draw, 2 ** 32), round: below(draw, 2 ** 32), attempt: below(draw, 9), nonce: bytes(draw, draw() < 0.05 ? 15 : 16), body: bytes(draw, below(draw, 99)) })],
  open_envelope: [1, (draw) => {
    const key = "174553b456dddfc6908ecab1c101fe6ab21e2baa0617795b7d43a63482993fd5";
    return { bytes: toHex(utf8("SVE1")) + bytes(draw, below(draw, 200)), public: key, federation: "town", purpose: "report" };
  }],
  enrol: [2, (draw) => ({ private: bytes(draw, 32), invitation: JSON.stringify({ protocol: 2, server: one(draw, ["https://a.example", "ftp://a"]), ca: "", token: one(draw, [bytes(draw, 32), "zz"]), number: below(draw, 2 ** 33), federation: name(draw) }) })],
  model_name: [2, (draw) => ({ model: model(draw, 5, 3), width: 3 })],
  binding: [5, (draw) => ({ terms: gramTerms(draw), round: below(draw, 2 ** 32), attempt: below(draw, 99), model_name: bytes(draw, 32), numbers: one(draw, [null, below(draw, 1e6)]) })],
  sealed_seed: [5, (draw) => ({ terms: gramTerms(draw), round: below(draw, 99), attempt: 1, model_name: bytes(draw, 32), numbers: below(draw, 1e6), seed: bytes(draw, 32), private: bytes(draw, 32), ephemeral: bytes(draw, 32) })],
  terms: [20, (draw) => ({ text: draw() < 0.5 ? gramTerms(draw) : fplTerms(draw) })],
  same_places: [1, (draw) => {
    const items = Array.from({ length: 5 }, (_, k) => [one(draw, [`item ${k}`, `~spare-${k}`]), "x"]);
    const after = items.slice(0, one(draw, [5, 5, 4])).map(([id, title]) => [draw() < 0.9 ? id : "other", title]);
    return { before: items, after };
  }],
  pairs_drawn: [2, (draw) => {
    const n = one(draw, [3, 30, 1000, 2 ** 20]);
    return { key: bytes(draw, 32), triples: 1 + below(draw, 20), items: some(draw, n, 1 + below(draw, Math.min(n - 1, 40))), n_items: n };
  }],
  share_subset: [1, (draw) => ({ key: bytes(draw, 32), items: some(draw, 1000, 1 + below(draw, 30)), share: f64(one(draw, [0, 1, 0.1, 0.7, draw()])) })],
  coins: [1, (draw) => ({ key: bytes(draw, 32), draws: below(draw, 30), share: f64(one(draw, [0, 1, 0.1, draw()])) })],
  learn: [5, (draw) => {
    const terms = fplTerms(draw);
    const size = widthOf(terms, 0);
    return { terms, model: model(draw, N_ITEMS, size + 1, one(draw, [0.2, 5])), vector: model(draw, 1, size), items: some(draw, N_ITEMS, 1 + below(draw, N_ITEMS - 1)), key: bytes(draw, 32) };
  }],
  clip: [2, (draw) => {
    const width = 1 + below(draw, 5);
    const item = ascending(some(draw, 30, 1 + below(draw, 8)));
    return { item, values: item.map(() => Array.from({ length: width }, () => Math.floor(signed(draw) * spread(draw, 1, 2 ** 31)))), largest: f64(one(draw, [1, 8, spread(draw, 1e-6, 1e3)])) };
  }],
  report: [2, (draw) => {
    const width = 1 + below(draw, 5);
    const item = ascending(some(draw, 30, below(draw, 8)));
    const far = one(draw, [10, 127, 128, 2 ** 15, 2 ** 40]);
    return item.length === 0 ? { round: 1, item: [0], values: [[0]] } : { round: below(draw, 99), item, values: item.map(() => Array.from({ length: width }, () => Math.floor(signed(draw) * far * draw()))) };
  }],
  gram_message: [20, (draw) => ({
    terms: gramTerms(draw), round: below(draw, 6), attempt: 1 + below(draw, 3), model: gramModel(draw, 7), published: one(draw, [null, gramModel(draw, 7)]),
    ...history(draw), epsilon: f64(one(draw, [0, 0.5, 1, spread(draw, 1e-3, 70)])), total: f64(one(draw, [Infinity, spread(draw, 0.1, 100)])),
    spent: f64(one(draw, [0, 1])), sent: one(draw, [0, 0, 1, 257]), beyond: f64(0), seed: bytes(draw, 32), private: bytes(draw, 32), ephemeral: bytes(draw, 32),
  })],
};
