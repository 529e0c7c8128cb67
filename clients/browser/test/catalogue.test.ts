// Ids that are reserved for places without an item: such a place may change its id.
import assert from "node:assert/strict";
import { test } from "node:test";

import { catalogueFromTable, requireSamePlaces, sparePlaces } from "../src/wire/catalogue.ts";

const HEALTH = { names: ["Health"], of: [[], [0]] };

test("an id that could move has no title and no category", () => {
  const spare = [["a", "A"], ["~spare-1", ""]];
  assert.deepEqual(sparePlaces(catalogueFromTable({ items: spare }, 2).items), [1]);
  for (const table of [
    { items: [["a", "A"], ["~spare-1", "Clinic"]] },
    { items: spare, categories: HEALTH },
  ]) {
    assert.throws(() => catalogueFromTable(table, 2), /has a title or a category/);
  }
});

test("a place to spare that was given a title is not free", () => {
  const before: [string, string][] = [["a", "A"], ["~spare-1", "Clinic"]];
  assert.throws(() => requireSamePlaces(before, [["a", "A"], ["d", "D"]]), /another item in place 1/);
});
