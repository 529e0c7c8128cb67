/** How long a contribution and a list of recommendations take, measured in times that this machine
 * takes to go once through a model; the best of several, since it may be busy with something else. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { cut, whole } from "../src/contributions.ts";
import { Gram } from "../src/gram.ts";
import { masked } from "../src/masking.ts";
import { termsFromTable } from "../src/wire/terms.ts";
import type { History, ModelView } from "../src/wire/types.ts";
import { draws } from "./help.ts";

const draw = draws(11);

function terms(nItems: number) {
  return termsFromTable({
    protocol: 2, federation: "town", n_items: nItems,
    algorithm: { name: "gram", embedding_size: 128, popularity_share: 0.3 },
    release: { name: "own-epsilon" }, link: { name: "secure-sum", bits: 32 },
  });
}

function model(rows: number, headed: number): ModelView {
  const items = Float32Array.from({ length: rows * 130 }, () => draw() - 0.5);
  for (let row = 0; row < rows; row++) items[row * 130 + 1] = row < headed ? 1.5 : 0;
  return { round: 1, rows, width: 130, items };
}

function history(nItems: number, many: number): History {
  const items = Int32Array.from({ length: many }, (_, k) => k);
  return { items, times: Float64Array.from(items, () => Math.floor(1e9 * draw())), nItems };
}

function best(run: () => unknown, times = 12): number {
  let found = Infinity;
  for (let k = 0; k < times; k++) {
    const begin = performance.now();
    run();
    found = Math.min(found, performance.now() - begin);
  }
  return found;
}

/** How often this machine goes through a model of 5,000 items meanwhile. */
function passes(run: () => unknown): number {
  const numbers = model(5000, 0).items;
  let sum = 0;
  const pass = best(() => {
    for (let k = 0; k < numbers.length; k++) sum += numbers[k]! * numbers[k]!;
  }, 20);
  assert.ok(sum > 0);
  return best(run) / pass;
}

test("a contribution of 200 items with a head of 500", (context) => {
  const [gram, view, mine] = [new Gram(terms(5000)), model(5000, 500), history(5000, 200)];
  for (const bits of [32, 64]) {
    const took = passes(() => {
      const numbers = whole(cut(gram.profile(view, mine, null), 0.5, "gram"));
      assert.equal(numbers.length, 125_250);
      masked(numbers, new Uint8Array(32).fill(bits), bits);
    });
    context.diagnostic(`made and masked with ${bits} bits in ${took.toFixed(1)} passes`);
    assert.ok(took < 30, `${took} passes`);
  }
});

test("recommendations from 5,000 items of 130 columns", (context) => {
  const gram = new Gram(terms(5000));
  const mine = history(5000, 200);
  for (const headed of [1000, 5000]) {
    const view = model(5000, headed);
    const took = passes(() => assert.equal(gram.recommend(view, mine, 10).length, 10));
    context.diagnostic(`with ${headed} items in the head: ${took.toFixed(1)} passes`);
    assert.ok(took < 30, `${took} passes`);
  }
});
