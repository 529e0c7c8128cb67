/** The service worker, over a Cache Storage in this process. */

import assert from "node:assert/strict";
import { test } from "node:test";

const ORIGIN = "https://shop.example";

/** Cache Storage, as far as it is used. Its keys are whole addresses, as browsers show them. */
class Caches {
  readonly all = new Map<string, Map<string, Response>>();
  /** Whether there is room. */
  full = false;
  /** Whether no cache can be opened. */
  broken = false;

  async keys() {
    return [...this.all.keys()];
  }
  async has(name: string) {
    return this.all.has(name);
  }
  async delete(name: string) {
    return this.all.delete(name);
  }
  async match(address: string, { cacheName }: { cacheName: string }) {
    return this.all.get(cacheName)?.get(address)?.clone();
  }
  async open(name: string) {
    if (this.broken) throw new DOMException("the disk does not answer", "UnknownError");
    const held = this.all.get(name) ?? new Map<string, Response>();
    this.all.set(name, held);
    const put = async (address: string | Request, response: Response) => {
      const name = typeof address === "string" ? address : address.url;
      if (response.headers.get("vary") === "*") throw new TypeError("Vary header contains *");
      if (this.full) throw new DOMException("no room", "QuotaExceededError");
      held.set(name, response);
    };
    return {
      put,
      match: async (address: string) => held.get(address)?.clone(),
      delete: async (address: string) => held.delete(address),
      addAll: async (files: readonly string[]) => {
        for (const file of files) await put(file, await fetch(file));
      },
    };
  }
}

const kept = new Caches();
let answer: (address: string) => Response | Promise<Response>;
let registered = true;
const heard = new Map<string, (event: unknown) => void>();
Object.assign(globalThis, {
  caches: kept,
  location: new URL(`${ORIGIN}/service-worker.js`),
  addEventListener: (name: string, hear: (event: unknown) => void) => heard.set(name, hear),
  skipWaiting: async () => undefined,
  clients: { claim: async () => undefined },
  registration: { unregister: async () => !(registered = false) },
  fetch: async (asked: string | Request) => answer(typeof asked === "string" ? asked : asked.url),
});
const ready = import("../src/service-worker.ts");

/** What becomes of an event that is waited for. */
async function told(name: string, more: Record<string, unknown> = {}): Promise<void> {
  await ready;
  const work: Promise<unknown>[] = [];
  heard.get(name)?.({ ...more, waitUntil: (one: Promise<unknown>) => work.push(one) });
  await Promise.all(work);
}

/** What a page gets; undefined if the service worker leaves the request alone. */
async function asked(path: string, more: Record<string, unknown> = {}): Promise<string | undefined> {
  await ready;
  let given: Promise<Response> | undefined;
  const url = new URL(path, ORIGIN).href;
  const request = { url, method: "GET", cache: "default", ...more };
  heard.get("fetch")?.({ request, respondWith: (one: Promise<Response>) => (given = one) });
  return given && (await given).text();
}

const addresses = () => [...kept.all.values()].flatMap((one) => [...one.keys()]);
const down = (): Response => {
  throw new TypeError("Failed to fetch");
};

test("a page that was named opens without a network", async () => {
  answer = (address) => new Response(`first ${new URL(address).pathname}`);
  await told("message", { data: { keep: ["/", "sottovoce.js", "https://elsewhere.example/x.js"] } });
  assert.deepEqual(addresses(), [`${ORIGIN}/`, `${ORIGIN}/sottovoce.js`]);
  answer = down;
  assert.equal(await asked("/sottovoce.js"), "first /sottovoce.js");
  await assert.rejects(asked("/other.js"), TypeError);
});

for (const [why, headers, full] of [
  ["Vary: *", { vary: "*" }, false],
  ["no room", {}, true],
] as const) {
  test(`a script that arrived is never replaced by an older one (${why})`, async () => {
    answer = () => new Response("old SDK");
    await told("message", { data: { keep: ["/sottovoce.js"] } });
    answer = () => new Response("new SDK", { headers });
    kept.full = full;
    assert.equal(await asked("/sottovoce.js"), "new SDK");
    kept.full = false;
    answer = down;
    await assert.rejects(asked("/sottovoce.js"), TypeError, "and what is older is not kept");
  });
}

test("a script that arrived is given to the page also if no cache can be opened", async () => {
  answer = () => new Response("old SDK");
  await told("message", { data: { keep: ["/sottovoce.js"] } });
  answer = () => new Response("new SDK");
  kept.broken = true;
  assert.equal(await asked("/sottovoce.js"), "new SDK");
  kept.broken = false;
  answer = down;
  await assert.rejects(asked("/sottovoce.js"), TypeError, "and what is older is not kept");
});

test("a file that the server has taken away is not kept", async () => {
  answer = () => new Response("a page");
  await told("message", { data: { keep: ["/old.html"] } });
  answer = () => new Response("gone", { status: 404 });
  assert.equal(await asked("/old.html"), "gone");
  answer = down;
  await assert.rejects(asked("/old.html"), TypeError);
});

test("what a device reads of its federation passes by, and is not kept", async () => {
  answer = (address) => new Response(address);
  const before = addresses();
  for (const path of ["/v1/model/3", "/v1/catalogue", "/v1/round"]) {
    assert.equal(await asked(path, { cache: "no-store" }), undefined);
    await asked(path);
    assert.equal(await asked(`https://federation.example${path}`), undefined);
  }
  assert.deepEqual(addresses(), before);
});

test("an invitation behind the # is in no key", async () => {
  answer = () => new Response("a page");
  await told("message", { data: { keep: ["/shop#sv=secret"] } });
  await asked("/shop#sv=secret");
  assert.ok(addresses().includes(`${ORIGIN}/shop`));
  assert.ok(!addresses().some((one) => one.includes("secret")), String(addresses()));
  answer = down;
  assert.equal(await asked("/shop#sv=another"), "a page");
});

test("it forgets what it keeps, and goes", async () => {
  answer = () => new Response("a page");
  await told("message", { data: { keep: ["/"] } });
  await kept.open("a cache of the shop");
  const { port1, port2 } = new MessageChannel();
  const gone = new Promise((resolve) => (port2.onmessage = ({ data }) => resolve(data)));
  await told("message", { data: { forget: "sottovoce" }, ports: [port1] });
  assert.equal(await gone, true);
  port2.close();
  assert.equal(registered, false);
  // The page is open yet: nothing that it loads brings the cache back.
  await asked("/");
  assert.deepEqual([...kept.all.keys()], ["a cache of the shop"]);
});

test("a file that comes while everything is forgotten is not kept", async () => {
  answer = () => new Response("a page");
  await told("message", { data: { keep: ["/"] } });
  const has = kept.has;
  kept.has = async (name) => {
    const there = await has.call(kept, name);
    await told("message", { data: { forget: "sottovoce" }, ports: [] });
    return there;
  };
  assert.equal(await asked("/"), "a page");
  kept.has = has;
  assert.deepEqual(addresses().filter((one) => one.startsWith(ORIGIN)), []);
});

test("what an earlier one kept is gone", async () => {
  await kept.open("sottovoce-1");
  await told("activate");
  assert.ok(!kept.all.has("sottovoce-1"));
});
