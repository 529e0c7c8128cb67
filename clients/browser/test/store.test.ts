/** The store, the door and the loop of a tab, over an IndexedDB in this process. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { equal, textOf, toHex } from "../src/bytes.ts";
import { sha256, signingKeyFromSeed } from "../src/crypto.ts";
import { Leaving } from "../src/door.ts";
import { ConsentError, MessageError, StorageTrouble, Unreachable, UsageError } from "../src/errors.ts";
import { exported, isGone, ledgerRows } from "../src/ledger.ts";
import { challengeFromTable, placeRequest } from "../src/places.ts";
import type { Disk } from "../src/store/disk.ts";
import { Transport } from "../src/transport.ts";
import { binding, decodeMasked, modelName, openSeed } from "../src/wire/masked.ts";
import { openEnvelope } from "../src/wire/signing.ts";
import { DEVICES, ROUNDS, words } from "../src/waiting.ts";
import { termsFromTable } from "../src/wire/terms.ts";
import {
  Browser,
  bookOf,
  choose,
  Fate,
  ITEMS,
  type Opened,
  type Posted,
  read,
  settle,
  URL_OF_SERVER,
  VISITS,
  World,
  write,
} from "./store_world.ts";

declare const ROOT: string;

async function settled(world = new World(), browser = new Browser(world)) {
  const opened = await browser.open();
  await settle(opened, world);
  return { world, browser, opened };
}

/** Bytes around masked numbers and their seed, which no ledger counts: envelope and frame. */
const AROUND = 96 + 16;

test("a device takes part in both stages of a period, and no more", async () => {
  const { world, opened } = await settled();
  await opened.device.visit();
  world.round = 1;
  await opened.device.visit();
  assert.deepEqual([...world.counted.keys()], ["0.0", "1.0"]);
  const { rounds, budget } = await read(opened, async (store) => ({
    rounds: await store.rounds(),
    budget: await store.budget(),
  }));
  assert.deepEqual(
    rounds.map((one) => one.state),
    ["arrived", "arrived"],
  );
  const spent = rounds.reduce((sum, one) => sum + one.released.epsilon, 0);
  assert.ok(Math.abs(spent - 1) < 1e-9, `a period costs her ε, not ${spent}`);
  for (const { released, bodyBytes } of rounds) assert.equal(released.bytes, bodyBytes - AROUND);
  assert.equal(budget.totals[0]?.releases, 2);
  world.attempt = 1;
  await opened.device.visit();
  assert.equal(world.reports().length, 2, "contributions come once");
});

/** The sentences of this event, in the order in which they were told. */
const reasons = (opened: Opened, event: string) =>
  opened.events.filter(([name]) => name === event).map(([, { why }]) => why);

for (const [kind, visits, choice] of [
  ["no_history", [], {}],
  ["kept_back", VISITS, { neverSend: VISITS.map(([item]) => item) }],
] as const) {
  test(`a device that cannot learn says why it sends nothing (${kind})`, async () => {
    const world = World.fpl();
    const opened = await new Browser(world).open();
    await write(opened, (store) => store.visited(visits));
    await opened.device.visit(); // she takes no part yet, and reads the terms
    await opened.door.agree(world.digest);
    await choose(opened, { takesPart: true, ...choice });
    await opened.device.visit();
    assert.deepEqual(reasons(opened, "nothing sent"), [DEVICES[kind]]);
    assert.equal((await opened.device.show()).detail, DEVICES[kind]);
    assert.deepEqual(world.reports(), []);
  });
}

test("a device that has contributed says so, and one whose limit is used up says that", async () => {
  const { world, opened } = await settled(new World({}, { batches: 2 }));
  await choose(opened, { epsilon: 1, totalEpsilon: 1.5 });
  await opened.device.visit();
  world.round = 2; // the same stage, for others
  await opened.device.visit();
  world.round = 3;
  await opened.device.visit();
  assert.deepEqual([...world.counted.keys()], ["0.0", "3.0"]);
  world.round = 4; // another period
  await opened.device.visit();
  assert.deepEqual(reasons(opened, "nothing sent"), [DEVICES["contributed"], DEVICES["limit"]]);
});

test("why rounds wait is told once, in the words of the server", async () => {
  const { world, opened } = await settled();
  world.state = "waiting";
  for (const waits of ["helper_away", "helper_away", undefined, "helper_away", "new_kind", 7, "x".repeat(65)]) {
    world.waits = waits;
    await opened.device.visit();
  }
  world.change = () => {
    throw new TypeError("Failed to fetch");
  };
  await assert.rejects(opened.device.visit(), Unreachable);
  const kinds = opened.events.filter(([name]) => name === "round waits").map(([, { kind }]) => kind);
  assert.deepEqual(kinds, ["helper_away", "helper_away", "other", "no_server"]);
  const away = ROUNDS["helper_away"];
  const told = [away, away, words("new_kind"), ROUNDS["no_server"]];
  assert.deepEqual(reasons(opened, "round waits"), told);
});

test("nothing is sent for somebody who takes no part or has not agreed", async () => {
  const world = new World();
  const opened = await new Browser(world).open();
  await write(opened, (store) => store.visited(VISITS));
  await opened.device.visit();
  await choose(opened, { takesPart: true, epsilon: 1 });
  await assert.rejects(opened.device.visit(), ConsentError);
  assert.equal((await opened.device.show()).why, "not agreed");
  await choose(opened, { takesPart: false });
  await opened.door.agree(world.digest);
  await opened.device.visit();
  await assert.rejects(opened.door.contact("enrolment", new Uint8Array(3)), ConsentError);
  assert.deepEqual(world.posted, []);
  await choose(opened, { takesPart: true });
  await write(opened, (store) => store.mark({ stopped: true }));
  assert.equal(await opened.device.visit(), null);
  const asked = world.asked.length;
  await opened.device.visit();
  assert.equal(world.asked.length, asked, "not even a question");
});

test("the number of a version comes back from nobody who takes no part", async () => {
  const { world, opened } = await settled();
  await choose(opened, { takesPart: false });
  const models = () => world.asked.filter((one) => one.includes("model"));
  for (let day = 0; day < 3; day++) {
    await opened.device.visit();
    world.round += 1; // a server may show each device a number of its own
    world.time += 86_400;
  }
  assert.deepEqual(models(), [0, 1, 2].map((round) => `GET /v1/model/${round}`));
  await choose(opened, { takesPart: true });
  await opened.device.visit(); // what she sends now bears her name
  assert.equal(models().at(-1), "GET /v1/model/3?since=2");
});

test("other terms stop everything until she agrees", async () => {
  const { world, opened } = await settled();
  world.table = { ...world.table, link: { ...(world.table["link"] as object), min_devices: 2 } };
  await assert.rejects(opened.device.visit(), /changed the terms/);
  assert.deepEqual(world.posted, []);
  await assert.rejects(opened.door.agree("00".repeat(16)), ConsentError);
  await opened.door.agree(world.digest);
  await opened.device.visit();
  assert.deepEqual([...world.counted.keys()], ["0.0"]);
});

test("what is shown is what leaves, and nothing where it has changed", async () => {
  const { world, opened } = await settled();
  const shown = await opened.device.show();
  assert.deepEqual(
    shown.messages.map(({ what }) => what),
    ["enrolment", "report"],
  );
  assert.deepEqual(world.posted, []);
  assert.equal((await opened.device.show()).name, shown.name);
  await choose(opened, { epsilon: 2 });
  await assert.rejects(opened.device.press(shown.name), ConsentError);
  assert.deepEqual(world.posted, []);
  const again = await opened.device.show();
  await opened.device.press(again.name);
  const sent: readonly Posted[] = world.posted;
  for (const [k, { body }] of again.messages.entries()) {
    assert.ok(equal(sent[k]?.body as Uint8Array, body));
  }
  assert.equal(sent.length, 2);
});

test("what is never sent is in nothing that is prepared, whatever it is called later", async () => {
  const world = new World();
  const opened = await new Browser(world).open();
  await settle(opened, world);
  await choose(opened, { neverSend: ["Place 3", "item-8", "bars"] });
  world.titles[3] = "Renamed";
  world.categories = { names: ["bars"], of: world.titles.map((_, at) => (at === 5 ? [0] : [])) };
  await opened.device.show();
  const { report } = await opened.device.show();
  assert.deepEqual(report?.round.contents.items, [1, 2]);
  world.categories = undefined; // what it was known by, it is known by
  assert.deepEqual((await opened.device.show()).report?.round.contents.items, [1, 2]);
  await write(opened, (store) => store.removed(["item-2"], 0));
  assert.equal((await opened.door.latest())?.state, "dropped");
  assert.deepEqual((await opened.device.show()).report?.round.contents.items, [1]);
});

test("a rule takes back none that was made elsewhere meanwhile", async () => {
  const { opened } = await settled();
  await choose(opened, { neverSend: ["bars"] });
  await Promise.all([
    choose(opened, { neverSend: { add: ["item-8"] } }),
    choose(opened, { neverSend: { add: ["item-5"], drop: ["bars"] } }),
    choose(opened, { epsilon: 0.5 }),
  ]);
  const { choice } = await read(opened, (store) => store.choice());
  assert.deepEqual([choice.neverSend, choice.epsilon], [["item-5", "item-8"], 0.5]);
  for (const strange of ["all", null, { add: "all" }, { add: [1] }, [1]]) {
    await assert.rejects(choose(opened, { neverSend: strange as never }), UsageError);
  }
  assert.deepEqual((await read(opened, (store) => store.choice())).choice, choice);
});

test("two choices between a look and a press leave the budget alone", async () => {
  const { world, opened } = await settled();
  const { report } = await opened.device.show();
  assert.ok(report);
  await choose(opened, { epsilon: 0.5 });
  await assert.rejects(opened.door.leaving(report), ConsentError);
  assert.deepEqual((await read(opened, (store) => store.budget())).totals, []);
  await opened.device.visit();
  await choose(opened, { totalEpsilon: 0.5 });
  world.round = 2; // the first stage of another period
  await opened.device.visit();
  assert.deepEqual([...world.counted.keys()], ["0.0"], "the limit has no room for another period");
});

test("a limit is looked at again when a report is about to leave", async () => {
  const { world, opened } = await settled();
  const { report } = await opened.device.show();
  assert.ok(report);
  // Another tab has let something leave meanwhile.
  await opened.vault.change(async (draft) => {
    draft.write("budget", { totals: [], spent: [[3.5, 1]] });
  });
  await assert.rejects(opened.door.leaving(report), /more than the limit/);
  assert.deepEqual(world.posted, []);
  assert.equal((await opened.door.latest())?.state, "dropped");
});

test("between two periods a device rests by its own clock", async () => {
  const { world, opened } = await settled(new World({ period_days: 7 }));
  await opened.device.visit();
  world.round = 1;
  await opened.device.visit();
  world.round = 2;
  world.time -= 20 * 86_400; // a clock that was put back does not shorten it
  await opened.device.visit();
  world.time += 26 * 86_400;
  await opened.device.visit();
  assert.equal(world.counted.size, 2);
  assert.match(JSON.stringify(opened.events.at(-1)), /too short ago/);
  world.time += 2 * 86_400;
  await opened.device.visit();
  assert.equal(world.counted.size, 3);
});

test("only the door makes what a transport takes", async () => {
  const { world, opened } = await settled();
  const transport = new Transport("https://federation.example", world.fetcher);
  const booked = { what: "report", bytes: 1, epsilon: 0 } as const;
  assert.throws(() => new Leaving(Symbol("the door"), new Uint8Array(1), booked), ConsentError);
  const { report } = await opened.device.show();
  assert.ok(report);
  const leaving = await opened.door.leaving(report);
  const forged = [
    new Uint8Array(3),
    { body: new Uint8Array(3) },
    Object.create(Leaving.prototype),
    structuredClone({ ...leaving }),
    new Proxy(leaving, {}),
  ];
  for (const one of forged) {
    assert.throws(() => transport.post("/v1/reports", one as Leaving), ConsentError);
  }
  assert.throws(() => Object.assign(leaving, { booked }), TypeError);
  assert.deepEqual(world.posted, []);
  await transport.post("/v1/reports", leaving);
  assert.equal(world.posted.length, 1);
});

test("a ledger is exported whole, and no cell is a formula", async () => {
  const { world, opened } = await settled();
  world.titles[1] = "=HYPERLINK";
  await opened.device.visit();
  const { rounds, contacts } = await read(opened, async (store) => ({
    rounds: await store.rounds(),
    contacts: await store.contacts(),
  }));
  const rows = ledgerRows(rounds, contacts, (place) => `=item,${place}`);
  assert.deepEqual(
    rows.map((row) => row.what),
    ["enrolment", "report"],
  );
  const sent = world.reports()[0]?.body as Uint8Array;
  assert.equal(rows[1]?.sha256, toHex(await sha256(sent)));
  assert.equal(rows[1]?.bytes, sent.length);
  const csv = exported(rows, "csv");
  assert.equal(csv.trim().split("\r\n").length, 3);
  assert.doesNotMatch(csv, /(^|,|")=/m);
  assert.equal(JSON.parse(exported(rows, "ndjson").split("\n")[1] as string).items.length, 5);
});

// --- without an invitation --------------------------------------------------------------------------

test("a device without an invitation works for a place, once she takes part", async () => {
  const world = new World();
  const opened = await new Browser(world, undefined, false).open();
  await settle(opened, world);
  await assert.rejects(opened.device.visit(), /no place for this device/);
  assert.deepEqual(world.posted, []);
  world.places = true;
  const shown = await opened.device.show();
  assert.deepEqual([shown.why, shown.messages.length], ["no place", 1]);
  assert.deepEqual(world.posted, []);
  await opened.device.press(shown.name);
  const sent: readonly Posted[] = world.posted;
  assert.ok(equal(sent[0]?.body as Uint8Array, shown.messages[0]?.body as Uint8Array));
  await opened.device.visit();
  assert.deepEqual([...world.counted.keys()], ["0.0"]);
});

test("work and request for a place are those of a Python device", async () => {
  const key = await signingKeyFromSeed(Uint8Array.from({ length: 32 }, (_, k) => k));
  const content = Uint8Array.from({ length: 40 }, (_, k) => k);
  const body = await placeRequest(key, "little-town", { content, bits: 12, seconds: 600 });
  const told = JSON.parse(textOf(body));
  assert.equal(told.work, "dc0f000000000000");
  assert.equal(
    told.signature,
    "cebc250903196cf249d3a201ff7e88b2e2324c18d5f373b379ae9e496e3986975f18bf2c2f47e280e9c4aa274ef79854d6c3c03e54ea85f154317d922a54ca02",
  );
  const asked = { protocol: 2, federation: "little-town", challenge: "00", bits: 40, seconds: 600 };
  assert.throws(() => challengeFromTable(asked, "little-town"), /more work/);
  assert.throws(() => challengeFromTable({ ...asked, bits: 8 }, "elsewhere"), /no sense/);
});

// --- by construction --------------------------------------------------------------------------------

test("nothing but the door lets anything leave, and nothing is drawn elsewhere", () => {
  const files = readdirSync(`${ROOT}/clients/browser/src`, { recursive: true, encoding: "utf8" });
  const sources = files
    .filter((file) => file.endsWith(".ts"))
    .map((file) => [file, readFileSync(`${ROOT}/clients/browser/src/${file}`, "utf8")] as const);
  const where = (text: RegExp) => sources.filter(([, code]) => text.test(code)).map(([file]) => file);
  assert.deepEqual(where(/new Leaving\(/), ["door.ts"]);
  assert.deepEqual(where(/Leaving\.body\(/), ["transport.ts"]);
  const fetching = ["sentences.ts", "service-worker.ts", "transport.ts", "worker.ts"];
  assert.deepEqual(where(/[^.#\w]fetch\(/).sort(), fetching);
  // What reads files of the page has nothing of hers at hand.
  assert.deepEqual(where(/^import\b|\bimport\(/m).filter((file) => file === "sentences.ts"), []);
  assert.deepEqual(where(/Math\.random|XMLHttpRequest|WebSocket|sendBeacon|EventSource/), []);
  assert.deepEqual(where(/method: "POST"/), ["transport.ts"]);
});

// --- a store that fails, and tabs beside each other -------------------------------------------------

test("nothing is sent where the browser's store has no room", async () => {
  const world = new World();
  let full = false;
  const browser = new Browser(world, (disk): Disk => ({
    keys: (make) => disk.keys(make),
    read: (names) => disk.read(names),
    commit: (generation, changes) => {
      if (full) {
        const error = new DOMException("full", "QuotaExceededError");
        return Promise.reject(Object.assign(new StorageTrouble("no room"), { cause: error }));
      }
      return disk.commit(generation, changes);
    },
    destroy: () => disk.destroy(),
    close: () => disk.close(),
  }));
  const opened = await browser.open();
  await settle(opened, world);
  full = true;
  await assert.rejects(opened.device.visit(), StorageTrouble);
  assert.deepEqual(world.posted, []);
  full = false;
  await opened.device.visit();
  assert.equal(world.counted.size, 1);
});

for (const [name, town] of [
  ["gram", () => new World()],
  ["FPL over a secure sum", () => World.fpl()],
  ["FPL straight to the server", () => World.fpl(true)],
] as const) {
  test(`a profile that was copied sends the very same report (${name})`, async () => {
    const { world, browser, opened } = await settled(town());
    const copies = [await (await browser.copy()).open(), await (await browser.copy()).open()];
    for (const one of [opened, ...copies]) await one.device.visit();
    const sent = world.reports().map(({ body }) => toHex(body));
    assert.equal(sent.length, 3);
    assert.equal(new Set(sent).size, 1, "in the same bytes");
    assert.equal(world.counted.size, 1);
    for (const one of [opened, ...copies]) {
      assert.deepEqual((await bookOf(one)).rounds.map(({ state }) => state), ["arrived"]);
    }
  });

  test(`no key of a report serves another content, round or attempt (${name})`, async () => {
    const { world, browser, opened } = await settled(town());
    const other = await (await browser.copy()).open();
    await write(other, (store) => store.visited([["item-10", 1_600_000_100]]));
    for (const one of [opened, other]) await one.device.visit();
    const [first, second] = world.reports().map(({ body }) => openEnvelope(body));
    assert.ok(first !== undefined && second !== undefined);
    assert.notEqual(toHex(first.nonce), toHex(second.nonce));
    assert.equal(world.counted.size, 1, "the second one is refused");
    assert.equal((await bookOf(other)).rounds[0]?.state, "refused");
    if (world.table["link"] && (world.table["link"] as { name: string }).name === "direct") return;
    const terms = termsFromTable(world.table);
    const seeds = await Promise.all([first, second].map(async ({ body }) => {
      const numbers = new DataView(body.buffer, body.byteOffset).getUint32(12, true);
      const { record } = decodeMasked(body, terms, 0, 0, numbers);
      const view = { round: 0, rows: ITEMS, width: world.width, items: world.model(0) };
      const told = terms.contributes ? numbers : null;
      const bound = await binding(terms, 0, 0, await modelName(view), told);
      return openSeed(record, world.helper, bound);
    }));
    assert.ok(seeds[0] && seeds[1] && !equal(seeds[0], seeds[1]));
  });
}

test("tabs that write at once lose nothing", async () => {
  const { world, browser, opened } = await settled();
  const tabs = await Promise.all([1, 2, 3].map(() => browser.open()));
  const items = (tab: number) => Array.from({ length: 8 }, (_, k) => `new-${tab}-${k}`);
  const writing = tabs.flatMap((tab, at) =>
    items(at).map((item) => write(tab, (store) => store.visited([[item, 1]]))),
  );
  await Promise.all(writing);
  assert.equal((await read(opened, (store) => store.visits())).size, VISITS.length + 24);
  // Both prepare the same round: one of them is first, and its bytes are the only ones.
  const [one, other] = tabs as [(typeof tabs)[0], (typeof tabs)[0]];
  await Promise.allSettled([one.device.visit(), other.device.visit(), opened.device.visit()]);
  await opened.device.visit();
  assert.equal(world.counted.size, 1);
  const bodies = new Set(world.reports().map(({ body }) => toHex(body)));
  assert.equal(bodies.size, 1);
  assert.equal((await read(opened, (store) => store.budget())).totals[0]?.releases, 1);
});

test("what lies in the browser's store can neither be read nor exchanged", async () => {
  const { browser, opened } = await settled();
  await opened.device.visit();
  const database = await new Promise<IDBDatabase>((resolve) => {
    const request = browser.factory.open("store", 1);
    request.onsuccess = () => resolve(request.result);
  });
  const all = <T>(store: string, what: "getAll" | "getAllKeys") =>
    new Promise<T[]>((resolve) => {
      const request = database.transaction([store], "readwrite").objectStore(store)[what]();
      request.onsuccess = () => resolve(request.result as T[]);
    });
  const names = await all<string>("records", "getAllKeys");
  const records = await all<Uint8Array | number>("records", "getAll");
  const [keys] = await all<{ content: CryptoKey; signing: { privateKey: CryptoKey } }>(
    "keys",
    "getAll",
  );
  for (const key of [keys?.content, keys?.signing.privateKey]) {
    assert.equal(key?.extractable, false);
  }
  const found = records.map((one) => (typeof one === "number" ? "" : Buffer.from(one).toString("latin1")));
  const text = [...names, ...found].join(" ");
  assert.doesNotMatch(text, /item|Place|history|choice|federation|token/);
  // A record in the place of another is not taken for it.
  const swapped = names.filter((name) => name !== "generation");
  await new Promise<void>((resolve) => {
    const transaction = database.transaction(["records"], "readwrite");
    const store = transaction.objectStore("records");
    for (const [k, name] of swapped.entries()) {
      const at = names.indexOf(swapped[(k + 1) % swapped.length] as string);
      store.put(records[at], name);
    }
    transaction.oncomplete = () => resolve();
  });
  database.close();
  await assert.rejects(browser.open(), StorageTrouble);
});

// --- a lying server ---------------------------------------------------------------------------------

const LIES: [string, RegExp, (world: World) => void][] = [
  ["another federation", /another federation/, (world) => {
    world.change = changed("/v1/round", (table) => ({ ...table, federation: "elsewhere" }));
  }],
  ["terms that are not those of the round", /about to change its terms/, (world) => {
    world.change = changed("/v1/terms", (table) => ({ ...table, n_items: 13 }));
  }],
  ["another protocol", /version/, (world) => {
    world.change = changed("/v1/round", (table) => ({ ...table, protocol: 99 }));
  }],
  ["a catalogue of another name", /about to change its catalogue/, (world) => {
    world.change = changed("/v1/catalogue", (table) => ({ ...table, more: 1 }));
  }],
  ["a model of another size", /shape|length|model/, (world) => {
    const small = (round: number) => world.model(round).slice(0, 6);
    world.change = (path, same) =>
      path.startsWith("/v1/model")
        ? new Response(new Uint8Array(small(0).buffer as ArrayBuffer))
        : same;
  }],
  ["a model without end", /far more/, (world) => {
    world.change = (path, same) => (path.startsWith("/v1/model") ? endless() : same);
  }],
  ["terms of a huge model", /a browser tab takes at most 64/, (world) => {
    const { algorithm } = world.table as { algorithm: object };
    world.table = { ...world.table, n_items: 5000, algorithm: { ...algorithm, embedding_size: 4000 } };
  }],
  ["terms of a huge message", /too large for a tab/, (world) => {
    const { algorithm } = world.table as { algorithm: object };
    const large = { ...algorithm, embedding_size: 1, most_head: 20_000 };
    world.table = { ...world.table, n_items: 20_000, algorithm: large };
  }],
  ["a descriptor without end", /far more/, (world) => {
    world.change = (path, same) => (path === "/v1/round" ? endless() : same);
  }],
  ["no JSON", /JSON/, (world) => {
    world.change = (path, same) => (path === "/v1/round" ? new Response("<html>") : same);
  }],
];

function changed(where: string, change: (table: Record<string, unknown>) => unknown) {
  return async (path: string, same: Response): Promise<Response> =>
    path === where ? Response.json(change((await same.json()) as Record<string, unknown>)) : same;
}

function endless(): Response {
  return new Response(
    new ReadableStream({ pull: (stream) => stream.enqueue(new Uint8Array(65_536)) }),
  );
}

for (const [what, sentence, lie] of LIES) {
  test(`nothing is sent to a server that shows ${what}`, async () => {
    const world = new World();
    const opened = await new Browser(world).open();
    await write(opened, (store) => store.visited(VISITS));
    const [honest, table] = [world.change, world.table];
    if (!/terms|catalogue/.test(what)) await settle(opened, world);
    else await choose(opened, { takesPart: true, epsilon: 1 });
    lie(world);
    if (/model/.test(what)) await write(opened, async (store) => store.forgetModel());
    await assert.rejects(opened.device.visit(), (error: Error) => {
      assert.match(error.message, sentence);
      return true;
    });
    assert.deepEqual(world.reports(), []);
    world.change = honest;
    world.table = table;
    await opened.device.visit().catch((error) => assert.ok(error instanceof ConsentError));
  });
}

test("a server that says nothing is given up, and one that moves items is refused", async () => {
  const world = new World();
  const opened = await new Browser(world).open(new Fate(), 0.05);
  await settle(opened, world);
  world.change = () => new Promise(() => undefined);
  const fetcher = world.fetcher;
  Object.defineProperty(world, "fetcher", {
    value: (input: string, options: RequestInit) =>
      Promise.race([
        fetcher(input, options),
        new Promise((_, reject) => options.signal?.addEventListener("abort", reject)),
      ]),
  });
  await assert.rejects(opened.device.visit(), (error: Error) => {
    assert.ok(error instanceof Unreachable);
    assert.match(error.message, /too long/);
    return true;
  });
  const { world: moved, opened: other } = await settled();
  const catalogue = moved.titles;
  Object.defineProperty(moved, "catalogueBytes", {
    get: () => {
      const items = catalogue.map((title, at) => [`item-${at ^ 1}`, title]);
      return new TextEncoder().encode(JSON.stringify({ items }));
    },
  });
  await assert.rejects(other.device.visit(), MessageError);
  assert.deepEqual(moved.posted, []);
});

test("another model for the same attempt is not answered", async () => {
  const { world, opened } = await settled();
  await opened.device.visit();
  const view = (shift: number) => {
    const items = world.model(0).map((value) => value + shift);
    return { round: 0, rows: 12, width: 6, items };
  };
  const first = await opened.door.prepare(view(0), 0);
  assert.ok("round" in first);
  assert.equal(first.round.state, "arrived");
  await assert.rejects(opened.door.prepare(view(1), 0), /another model/);
});

test("a model that was tagged for one device is in no sum with another", async () => {
  const { world, opened } = await settled();
  const honest = world.model;
  world.model = (round) => honest(round).with(0, 11.5);
  await write(opened, async (store) => store.forgetModel());
  await opened.device.visit();
  const terms = termsFromTable(world.table);
  const { body } = openEnvelope(world.reports()[0]?.body as Uint8Array);
  const { record } = decodeMasked(body, terms, 0, 0, ITEMS + 1);
  const opens = async (items: Float32Array) => {
    const name = await modelName({ round: 0, rows: ITEMS, width: world.width, items });
    return openSeed(record, world.helper, await binding(terms, 0, 0, name, ITEMS + 1));
  };
  assert.notEqual(await opens(world.model(0)), null);
  assert.equal(await opens(honest(0)), null, "the helper cannot open her seed for the others' sum");
});

test("an answer may drip, but not for ever; and a slow line has time for what leaves", async () => {
  const drips = () =>
    new Response(
      new ReadableStream({
        async pull(stream) {
          await new Promise((turn) => setTimeout(turn, 5));
          stream.enqueue(new Uint8Array(1));
        },
      }),
    );
  const timeouts = { silent: 0.1, short: 0.2, longest: 0.5 };
  const dripping = new Transport(URL_OF_SERVER, cancelled(async () => drips()), timeouts);
  await assert.rejects(dripping.get("/v1/round"), /takes too long/);
  await assert.rejects(dripping.get("/v1/model/0", 1 << 20), /takes too long/);
  const { world, opened } = await settled();
  const { report } = await opened.device.show();
  const leaving = await opened.door.leaving(report as NonNullable<typeof report>);
  const hurried = { silent: 0.01, short: 0.01, longest: 0.01 };
  const slowly = cancelled(async (...given) => {
    await new Promise((turn) => setTimeout(turn, 25));
    return world.fetcher(...given);
  });
  // Some hundred bytes at 4 KiB a second.
  assert.ok(leaving.length > 200);
  await new Transport(URL_OF_SERVER, slowly, hurried).post("/v1/reports", leaving);
  await assert.rejects(new Transport(URL_OF_SERVER, slowly, hurried).get("/v1/round"), /too long/);
});

/** Breaks off where it is told to, as a browser's does. */
function cancelled(fetcher: typeof fetch): typeof fetch {
  return (input, options) => {
    const stop = options?.signal as AbortSignal;
    const end = new Promise<never>((_, reject) => stop.addEventListener("abort", reject));
    return Promise.race([
      end,
      fetcher(input, options).then((found) => {
        if (found.body === null) return found;
        const through = new TransformStream<Uint8Array, Uint8Array>();
        found.body.pipeTo(through.writable, { signal: stop }).catch(() => undefined);
        return new Response(through.readable, { status: found.status });
      }),
    ]);
  };
}

// --- killed at any moment ---------------------------------------------------------------------------

/** A period in which the device may be killed at any moment, and is opened again. */
async function killed(at: number, after: boolean, world = new World(), price = 1) {
  const browser = new Browser(world);
  const first = await browser.open();
  await settle(first, world);
  first.vault.close();
  const fate = new Fate(at, after);
  let died = false;
  try {
    const opened = await browser.open(fate);
    await opened.device.visit();
    world.round = 1;
    await opened.device.visit();
  } catch (error) {
    if (!fate.dead) throw error;
    died = true;
  }
  const opened = await browser.open();
  const before = await bookOf(opened);
  // What a server has seen was booked before.
  const rounds = new Map(before.rounds.map((one) => [`${one.round}.${one.attempt}`, one]));
  for (const [key, body] of world.counted) {
    const entry = rounds.get(key);
    assert.ok(entry && isGone(entry), `${key} was seen, and is ${entry?.state}`);
    assert.equal(entry.bodySha256, toHex(await sha256(body)));
  }
  const gone = before.rounds.filter(isGone);
  assert.equal(before.releases, gone.length, "each release is counted once");
  for (let visits = 0; visits < 2; visits++) await opened.device.visit();
  if (world.round === 0) {
    world.round = 1;
    await opened.device.visit();
  }
  const end = await bookOf(opened);
  assert.ok(end.spent >= before.spent, "a budget never falls");
  const bodies = new Map<string, Set<string>>();
  for (const { body } of world.reports()) {
    const key = toHex(body.slice(0, 16));
    bodies.set(key, (bodies.get(key) ?? new Set()).add(toHex(body)));
  }
  for (const each of bodies.values()) assert.equal(each.size, 1, "the very same bytes");
  assert.deepEqual([...world.counted.keys()], ["0.0", "1.0"]);
  assert.equal(end.releases, 2);
  assert.ok(Math.abs(end.spent - price) < 1e-9, `the period cost ${end.spent}`);
  assert.deepEqual(
    end.rounds.map((one) => one.state),
    ["arrived", "arrived"],
  );
  return { died, calls: fate.calls };
}

test("killed at any moment, a device mixes nothing up", async () => {
  const { calls, died } = await killed(Number.POSITIVE_INFINITY, false);
  assert.ok(!died && calls > 40, `${calls} moments`);
  for (let at = 0; at < calls; at++) {
    for (const after of [false, true]) {
      const one = await killed(at, after);
      assert.ok(one.died, `at ${at} of ${calls}`);
    }
  }
});

test("in FPL, too, and what was learnt counts where the report does", async () => {
  const { calls } = await killed(Number.POSITIVE_INFINITY, false, World.fpl(), 0);
  for (let at = 0; at < calls; at += 4) {
    const one = await killed(at, at % 8 === 0, World.fpl(), 0);
    assert.ok(one.died, `at ${at} of ${calls}`);
  }
});

for (const direct of [true, false]) {
  test(`FPL ${direct ? "straight to the server" : "over a secure sum"} goes on from what counted`, async () => {
    const { world, opened } = await settled(World.fpl(direct));
    await opened.device.visit();
    const first = await read(opened, (store) => store.vector("learnt"));
    assert.equal(first?.length, 4);
    // A later attempt at the round starts where the first one did.
    world.attempt = 1;
    await opened.device.visit();
    assert.deepEqual(await read(opened, (store) => store.vector("learnt")), first);
    world.round = 1;
    world.attempt = 0;
    await opened.device.visit();
    assert.deepEqual(await read(opened, (store) => store.vector("vector")), first);
    const second = await read(opened, (store) => store.vector("learnt"));
    assert.notDeepEqual(second, first);
    const rounds = await read(opened, (store) => store.rounds());
    assert.deepEqual(
      rounds.map((one) => one.state),
      ["refused", "arrived", "arrived"],
    );
    const own = new Set(rounds.flatMap((one) => one.contents.items));
    assert.ok(own.size <= 2, "half of her five items, at most, are ever in it");
    assert.equal(rounds[0]?.released.epsilon, Number.POSITIVE_INFINITY);
    for (const { released, bodyBytes } of rounds) {
      const rows = released.positiveRows + released.negativeRows;
      assert.equal(released.bytes, direct ? 24 * rows : bodyBytes - AROUND);
    }
    await write(opened, (store) => store.removed(["item-1"], 0));
    assert.equal(await read(opened, (store) => store.vector("learnt")), null);
    await choose(opened, { epsilon: 1 });
    world.round = 2;
    await opened.device.visit();
    assert.match(JSON.stringify(opened.events.at(-1)), /no noise to keep to it/);
    assert.equal(world.counted.size, 3);
  });
}
