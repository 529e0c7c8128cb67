/** The worker of a page, and of two pages that share a store, without a browser. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { IDBFactory } from "fake-indexeddb";

import { serverAddress } from "../src/transport.ts";
import { type Asked, serveWorker, type Status, type Told, type WorkerScope } from "../src/worker.ts";
import { URL_OF_SERVER, VISITS, World } from "./store_world.ts";

/** Web Locks, as far as they are used: one after the other. */
function locks(): LockManager {
  const queues = new Map<string, Promise<unknown>>();
  const request = (name: string, ...rest: unknown[]) => {
    const work = rest.at(-1) as () => Promise<unknown>;
    const { signal } = (rest.length > 1 ? rest[0] : {}) as { signal?: AbortSignal };
    const before = queues.get(name) ?? Promise.resolve();
    const turn = before.then(() => (signal?.aborted ? Promise.reject(signal.reason) : work()));
    queues.set(name, turn.catch(() => undefined));
    return turn;
  };
  return { request } as unknown as LockManager;
}

/** A page with its worker. */
class Page {
  readonly events: string[] = [];
  readonly #waiting = new Map<number, (told: Told) => void>();
  readonly #scope: WorkerScope;
  #next = 0;

  constructor(shared: LockManager) {
    this.#scope = {
      onmessage: null,
      navigator: { locks: shared },
      postMessage: (told) => {
        if ("event" in told) this.events.push(told.event);
        else this.#waiting.get(told.id)?.(structuredClone(told));
      },
    };
    serveWorker(this.#scope);
  }

  async ask<T>(call: Asked["call"], ...given: unknown[]): Promise<T> {
    const id = this.#next++;
    const told = await new Promise<Told>((resolve) => {
      this.#waiting.set(id, resolve);
      this.#scope.onmessage?.(new MessageEvent<Asked>("message", { data: { id, call, given } }));
    });
    if ("found" in told) return told.found as T;
    throw new Error("error" in told ? `${told.error.name}: ${told.error.message}` : "");
  }

  status(): Promise<Status> {
    return this.ask("status");
  }
}

async function until(found: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + 20_000;
  while (!(await found())) {
    assert.ok(Date.now() < end, "it did not happen");
    await new Promise((turn) => setTimeout(turn, 10));
  }
}

async function twoPages(world: World, fetcher: typeof fetch = world.fetcher) {
  Object.assign(globalThis, { indexedDB: new IDBFactory(), fetch: fetcher });
  const shared = locks();
  const [one, other] = [new Page(shared), new Page(shared)];
  const invitation = { protocol: 2, ...world.invitation };
  await one.ask("open", { federation: `${URL_OF_SERVER}/`, invitation, poll: 1000 });
  await until(async () => (await one.status()).pending !== null);
  await other.ask("open", { federation: URL_OF_SERVER, poll: 1000 });
  const close = async (): Promise<void> => {
    for (const page of [one, other]) await page.ask("close").catch(() => undefined);
  };
  return { one, other, close };
}

test("one of two tabs works, and what she clicks in any of them moves nothing", async () => {
  const world = new World();
  const { one, other, close } = await twoPages(world);
  await until(async () => (await one.status()).visitedAt !== null);
  assert.deepEqual(
    [(await one.status()).fresh, (await other.status()).fresh],
    [true, false],
  );
  assert.equal((await other.status()).working, false);
  const before = world.asked.length;
  for (const [item] of VISITS) await other.ask("visited", item);
  await other.ask("visited", "not in the catalogue");
  await one.ask("visible", false);
  await one.ask("visible", true);
  await new Promise((turn) => setTimeout(turn, 300));
  assert.equal(world.asked.length, before, "no click is a reason to ask the server");
  assert.equal((await one.status()).items, VISITS.length + 1);
  const things = await one.ask<{ id: string; known: boolean }[]>("things");
  assert.deepEqual(
    things.filter((one) => !one.known).map((one) => one.id),
    ["not in the catalogue"],
  );
  const [best] = await other.ask<{ id: string; title: string }[]>("recommend", 1);
  assert.equal(best?.title, "Place 0");
  // What she decides is: in whichever tab she does.
  await other.ask("agree", (await other.status()).pending?.digest);
  await other.ask("choose", { takesPart: true, epsilon: 1 });
  await until(async () => (await one.status()).report?.state === "arrived");
  assert.deepEqual([...world.counted.keys()], ["0.0"]);
  assert.ok(one.events.includes("counted") && other.events.includes("change"));
  const csv = await other.ask<string>("export", "csv");
  assert.equal(csv.trim().split("\r\n").length, 3);
  await one.ask("close");
  await until(async () => (await other.status()).working);
  await close();
});

test("every spelling of one address opens the same store", async () => {
  const world = new World();
  Object.assign(globalThis, { indexedDB: new IDBFactory(), fetch: world.fetcher });
  const spellings = [
    ...["https://federation.example", "HTTPS://Federation.Example/", "https://federation.example:443"],
    ...["https://federation.example.", "https://federation.example///", "https://federation.example/a/.."],
    ...["https://federation.example/%2E", "https:\\\\federation.example", " https://federation.example"],
    ...["https://federation.example/?", "https://federation.example/#"],
  ];
  const opened: Status[] = [];
  for (const federation of spellings) {
    const page = new Page(locks());
    opened.push(await page.ask<Status>("open", { federation, automatic: false, poll: 1000 }));
    await page.ask("visited", `item-${opened.length}`);
    await page.ask("close");
  }
  assert.deepEqual(opened.map(({ fresh }) => fresh), spellings.map((_, at) => at === 0));
  assert.deepEqual(opened.map(({ items }) => items), [...spellings.keys()]);
  assert.equal((await indexedDB.databases()).length, 1);
  const other = ["https://federation.example/a%2fb", "https://federation.example/a%2Fb"];
  assert.deepEqual(other.map(serverAddress), Array(2).fill("https://federation.example/a%2Fb"));
  assert.notEqual(serverAddress("https://federation.example/a/b"), serverAddress(other[0] as string));
  assert.equal(serverAddress("http://[::1]:8080/%7Eme/"), "http://[::1]:8080/~me");
  // As a load balancer that merges slashes reads them.
  for (const path of ["//api", "/api//", "///api/"]) {
    assert.equal(serverAddress(`https://federation.example${path}`), "https://federation.example/api");
  }
});

test("nothing that a device asks or sends is kept by the browser", async () => {
  const world = new World();
  const given: [string, RequestInit][] = [];
  const { one, other, close } = await twoPages(world, (address, options) => {
    given.push([String(address), options ?? {}]);
    return world.fetcher(address, options);
  });
  await one.ask("agree", (await one.status()).pending?.digest);
  await one.ask("choose", { takesPart: true, epsilon: 1 });
  for (const [item] of VISITS) await one.ask("visited", item);
  await until(async () => (await one.status()).report?.state === "arrived");
  world.round = 1;
  await other.ask("refresh");
  await close();
  const paths = new Set(given.map(([address]) => new URL(address).pathname.replace(/\d+$/, "N")));
  for (const path of ["round", "terms", "catalogue", "model/N", "enrol", "reports"]) {
    assert.ok(paths.has(`/v1/${path}`), `${path} among ${[...paths]}`);
  }
  for (const [address, { cache, headers }] of given) {
    assert.equal(cache, "no-store", address);
    assert.deepEqual(Object.keys(headers ?? {}).filter((name) => /^(if-|range)/i.test(name)), []);
  }
});

test("erased in one tab, the others have no device any more", async () => {
  const world = new World();
  const { one, other, close } = await twoPages(world);
  await one.ask("visited", "item-3");
  await one.ask("erase", "everything");
  await until(() => other.events.includes("erased"));
  const asked = world.asked.length;
  await assert.rejects(other.ask("visited", "item-4"), /StorageTrouble/);
  await assert.rejects(other.ask("refresh"), /StorageTrouble|stopped everything/);
  assert.equal(world.asked.length, asked);
  await close();
});

test("stopped in one tab, nothing leaves in the other, and erased it is a new device", async () => {
  const world = new World();
  const { one, other, close } = await twoPages(world);
  await other.ask("stop");
  const before = world.asked.length;
  await assert.rejects(one.ask("refresh"), /stopped everything/);
  assert.equal((await one.ask<{ why: string }>("preview")).why, "stopped");
  assert.equal(world.asked.length, before);
  await assert.rejects(one.ask("choose", { epsilon: -1 }), /UsageError: epsilon/);
  await assert.rejects(one.ask("choose", { unknown: 1 }), /UsageError/);
  await assert.rejects(one.ask("body", 3), /UsageError/);
  await assert.rejects(one.ask("constructor" as Asked["call"]), /UsageError/);
  await other.ask("start");
  await one.ask("visited", "item-3");
  await one.ask("erase", "everything");
  await assert.rejects(other.status(), /StorageTrouble/);
  await close();
  const again = new Page(locks());
  const opened = await again.ask<Status>("open", { federation: URL_OF_SERVER, poll: 1000 });
  assert.deepEqual([opened.fresh, opened.items, opened.number], [true, 0, null]);
  await again.ask("close");
  assert.deepEqual(world.posted, []);
});
