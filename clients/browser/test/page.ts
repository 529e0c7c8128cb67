/** What a real browser is asked: the functions of the vectors, and how long a contribution takes. */

import { cut, whole } from "../src/contributions.ts";
import { newSigningKey } from "../src/crypto.ts";
import { Gram } from "../src/gram.ts";
import { masked } from "../src/masking.ts";
import { termsFromTable } from "../src/wire/terms.ts";
import { answered, FUNCTIONS } from "./functions.ts";

/** Milliseconds of a contribution of 200 items with a head of 500, and of a list of ten, the best of
 * several. */
function speed(): { contribution: number; list: number } {
  const [rows, width] = [5000, 130];
  const terms = termsFromTable({
    protocol: 2, federation: "town", n_items: rows,
    algorithm: { name: "gram", embedding_size: 128, popularity_share: 0.3 },
    release: { name: "own-epsilon" }, link: { name: "secure-sum", bits: 32 },
  });
  const gram = new Gram(terms);
  const model = (headed: number) => ({
    round: 1, rows, width,
    items: Float32Array.from({ length: rows * width }, (_, k) =>
      k % width === 1 ? Number(k < headed * width) : Math.random() - 0.5,
    ),
  });
  const items = Int32Array.from({ length: 200 }, (_, k) => k);
  const history = { items, times: Float64Array.from(items, (k) => k * 7 % 50), nItems: rows };
  const best = (run: () => unknown): number => {
    const took = Array.from({ length: 10 }, () => {
      const begin = performance.now();
      run();
      return performance.now() - begin;
    });
    return Math.min(...took);
  };
  const [some, all] = [model(500), model(rows)];
  return {
    contribution: best(() =>
      masked(whole(cut(gram.profile(some, history, null), 0.5, "gram")), new Uint8Array(32), 32),
    ),
    list: best(() => gram.recommend(all, history, 10)),
  };
}

Object.assign(globalThis, {
  speed,
  functions: Object.keys(FUNCTIONS),
  answeredAll: (name: string, all: readonly unknown[]) =>
    Promise.all(all.map((given) => answered(name, given))),
  kindOfKey: async () => (await newSigningKey()).kept.kind,
});
