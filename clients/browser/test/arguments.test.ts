/** What a page gives to a device: wrong kinds are refused by name, and the device goes on. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BrowserDevice, openDevice } from "../src/index.ts";

/** A worker that answers every call, and remembers them. */
class Obliging {
  readonly asked: string[] = [];
  onmessage: ((message: { data: unknown }) => void) | null = null;
  onerror = null;
  onmessageerror = null;
  unknown: string[] = [];

  postMessage({ id, call }: { id: number; call: string }): void {
    this.asked.push(call);
    const found = call === "visited" ? this.unknown : null;
    queueMicrotask(() => this.onmessage?.({ data: { id, found } }));
  }

  terminate(): void {}
}

async function opened(): Promise<{ device: BrowserDevice; worker: Obliging }> {
  const worker = new Obliging();
  Object.assign(globalThis, {
    document: { hidden: false, addEventListener: () => {}, removeEventListener: () => {} },
    ...("navigator" in globalThis ? {} : { navigator: {} }),
  });
  const options = { federation: "https://example.org", worker: worker as unknown as Worker };
  return { device: await openDevice(options), worker };
}

const WRONG: readonly [call: string, given: readonly unknown[], words: RegExp][] = [
  ["visited", [42], /visited\(items\): expected an item id \(a text\), got 42/],
  ["visited", [undefined], /visited\(items\): .* got undefined/],
  ["visited", [""], /expected an item id .* got ""/],
  ["visited", [["a", 7]], /expected an item id .* got 7/],
  ["visited", [[["a", 1.5]]], /expected a time in whole seconds since 1970, or null, .* got 1\.5/],
  ["visited", [{}], /got an object \(Object\)/],
  ["remove", [null], /remove\(items\): expected an item id .* got null/],
  ["recommend", [2.5], /recommend\(n\): expected a whole number from 1, got 2\.5/],
  ["recommend", [-1], /recommend\(n\): .* got -1/],
  ["recommend", [0], /recommend\(n\): .* got 0/],
  ["recommend", ["10"], /recommend\(n\): .* got "10"/],
  ["choose", [undefined], /choose\(change\): expected an object such as/],
  ["agree", [undefined], /agree\(termsDigest\): expected a text, got undefined/],
  ["body", [-1], /body\(index\): expected a whole number from 0/],
  ["send", [7], /send\(name\): expected a text, got 7/],
  ["export", ["xml"], /export\(format\): expected "csv" or "ndjson", got "xml"/],
  ["erase", ["all"], /erase\(what\): expected "history" or "everything", got "all"/],
  ["stop", ["yes"], /stop\(everything\): expected true or false, got "yes"/],
];

test("a wrong argument is a TypeError that names it, and the device goes on", async () => {
  const { device, worker } = await opened();
  const before = worker.asked.length;
  for (const [call, given, words] of WRONG) {
    const method = device[call as "visited"] as (...given: unknown[]) => Promise<unknown>;
    await assert.rejects(method.apply(device, [...given]), (error: unknown) => {
      assert.ok(error instanceof TypeError, `${call}: ${String(error)}`);
      assert.match(error.message, words);
      return true;
    });
  }
  assert.equal(worker.asked.length, before, "nothing wrong reaches the worker");
  await device.visited(["a", ["b", null], ["c", 1_700_000_000]]);
  await device.recommend();
  assert.deepEqual(worker.asked.slice(before), ["visited", "recommend"]);
});

test("openDevice names what is missing", async () => {
  for (const [options, words] of [
    [undefined, /openDevice\(options\): expected an object such as/],
    [{}, /openDevice\(options\): federation: expected a text, got undefined/],
    [{ federation: "https://example.org", poll: 0 }, /poll: expected seconds above 0, got 0/],
  ] as const) {
    await assert.rejects(openDevice(options as never), (error: unknown) => {
      assert.ok(error instanceof TypeError);
      assert.match(error.message, words);
      return true;
    });
  }
});

test("an item that the federation does not know is named to developers once, without its id", async () => {
  const { device, worker } = await opened();
  worker.unknown = ["secret-7"];
  const said: string[] = [];
  const { warn } = console;
  console.warn = (line: string) => void said.push(line);
  try {
    await device.visited("secret-7");
    await device.visited("secret-7");
  } finally {
    console.warn = warn;
  }
  assert.equal(said.length, 1);
  assert.match(said[0] ?? "", /catalogue does not have/);
  assert.doesNotMatch(said[0] ?? "", /secret-7/);
});
