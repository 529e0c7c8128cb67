/** A browser's store that fails: at any one call of IndexedDB, in any of its ways, during a whole
 * period. Nothing is mixed up, nothing is counted twice, and one true sentence is said. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { IDBDatabase, IDBFactory, IDBObjectStore } from "fake-indexeddb";

import { toHex } from "../src/bytes.ts";
import { sha256 } from "../src/crypto.ts";
import { StorageTrouble } from "../src/errors.ts";
import { isGone } from "../src/ledger.ts";
import { bookOf, Browser, type Opened, settle, World } from "./store_world.ts";

/** How a call fails: at once; later, with its transaction; or for want of room. */
const WAYS = ["throws", "aborts", "is full"] as const;
type Way = (typeof WAYS)[number];

/** Every call in every way, or only some of them. */
const LONG = process.env["SOTTOVOCE_FAULTS"] === "all";

const CALLS = [
  [IDBFactory.prototype, ["open"]],
  [IDBDatabase.prototype, ["transaction"]],
  [IDBObjectStore.prototype, ["get", "put", "delete"]],
] as const;

/** `work`, in which call number `at` fails; how many there were, and what it threw. */
async function failing(at: number, way: Way, work: () => Promise<void>) {
  let calls = 0;
  const undo: (() => void)[] = [];
  for (const [kind, names] of CALLS) {
    const owner = kind as unknown as Record<string, (...given: unknown[]) => unknown>;
    for (const name of names) {
      const real = owner[name] as (...given: unknown[]) => unknown;
      undo.push(() => void (owner[name] = real));
      owner[name] = function (this: { transaction?: unknown }, ...given: unknown[]) {
        if (calls++ !== at) return real.apply(this, given);
        if (way === "is full") throw new DOMException("full", "QuotaExceededError");
        if (way === "throws" || name === "open") throw new DOMException("broken", "UnknownError");
        const made = real.apply(this, given);
        const transaction = name === "transaction" ? made : this.transaction;
        (transaction as IDBTransaction).abort();
        return made;
      };
    }
  }
  try {
    await work();
    return { calls, error: null };
  } catch (error) {
    return { calls, error };
  } finally {
    for (const one of undo) one();
  }
}

/** A period in which one call fails; the same tab goes on then, or (`anew`) another one. */
async function period(at: number, way: Way, anew: boolean, world = new World()) {
  const browser = new Browser(world);
  const first = await browser.open();
  await settle(first, world);
  first.vault.close();
  let opened: Opened | null = null;
  let before = 0;
  const { calls, error } = await failing(at, way, async () => {
    opened = await browser.open();
    for (; world.round < 2; world.round++) {
      before = world.posted.length;
      await opened.device.visit();
    }
  });
  world.round = Math.min(world.round, 1);
  if (error !== null) {
    assert.ok(error instanceof StorageTrouble, `${at} ${way}: ${error}`);
    assert.match(error.message, /^[^.]+$/, "one sentence");
    const posted = world.posted.length > before;
    assert.ok(!posted || !/nothing was sent/.test(error.message), "which is true");
  }
  const again: Opened = anew || opened === null ? await browser.open() : opened;
  const book = await bookOf(again);
  const rounds = new Map(book.rounds.map((one) => [`${one.round}.${one.attempt}`, one]));
  for (const { body } of world.reports()) {
    const [round, attempt] = new Uint32Array(body.slice(8, 16).buffer);
    const entry = rounds.get(`${round}.${attempt}`);
    assert.ok(entry && isGone(entry), `round ${round} was sent, and is ${entry?.state}`);
    assert.equal(entry.bodySha256, toHex(await sha256(body)));
  }
  assert.equal(book.releases, book.rounds.filter(isGone).length, "each release counts once");
  for (; world.round < 2; world.round++) await again.device.visit();
  const end = await bookOf(again);
  assert.ok(end.spent >= book.spent, "a budget never falls");
  assert.deepEqual(end.rounds.map((one) => one.state), ["arrived", "arrived"]);
  assert.deepEqual([...world.counted.keys()], ["0.0", "1.0"]);
  assert.equal(end.releases, 2);
  const bodies = new Set(world.reports().map(({ body }) => toHex(body)));
  assert.equal(bodies.size, 2, "the very same bytes");
  again.vault.close();
  return { calls, failed: error !== null, spent: end.spent };
}

test("whichever call fails, a period is contributed to once", async (context) => {
  const { calls } = await period(Number.POSITIVE_INFINITY, "throws", false);
  assert.ok(calls > 100, `${calls} calls`);
  context.diagnostic(`${calls} calls`);
  for (let at = 0; at < calls; at += LONG ? 1 : 4) {
    for (const way of LONG ? WAYS : [WAYS[at % WAYS.length] as Way]) {
      const one = await period(at, way, at % 2 === 0);
      assert.ok(Math.abs(one.spent - 1) < 1e-9, `the period cost ${one.spent}`);
      assert.ok(one.failed, `call ${at}, which ${way}, was told of`);
    }
  }
});

test("in FPL, too", async () => {
  const { calls } = await period(Number.POSITIVE_INFINITY, "aborts", false, World.fpl());
  for (let at = 0; at < calls; at += LONG ? 1 : 48) {
    const one = await period(at, "aborts", at % 2 === 0, World.fpl());
    assert.ok(one.failed, `call ${at}`);
  }
});
