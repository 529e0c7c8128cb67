/** A small federation of gram that answers in this process, and devices that can be killed. */

import { IDBFactory } from "fake-indexeddb";

import { type Bytes, equal, fromHex, textOf, toHex, utf8 } from "../src/bytes.ts";
import { publicOf, randomBytes, sha256, signingKeyOf } from "../src/crypto.ts";
import { Device } from "../src/device.ts";
import { Door } from "../src/door.ts";
import { type Disk, type Found, IndexedDisk, type StoreKeys } from "../src/store/disk.ts";
import { type ChoiceChange, changedChoice, Reading, Writing } from "../src/store/records.ts";
import { Vault } from "../src/store/vault.ts";
import { Transport } from "../src/transport.ts";
import { PROTOCOL } from "../src/wire/frames.ts";
import { openEnvelope, signedBy } from "../src/wire/signing.ts";
import { termsDigest, termsFromTable } from "../src/wire/terms.ts";
import { encodeModel } from "../src/wire/versions.ts";

export const URL_OF_SERVER = "https://federation.example";
export const ITEMS = 12;
export const FEDERATION = "little-town";
const GRAM_WIDTH = 2 + 4;
const FPL_WIDTH = 4 + 1;

const NO_PLACE = { error: "no_place", detail: "nobody comes in here without an invitation" };

export class Killed extends Error {}

export interface Posted {
  readonly path: string;
  readonly body: Bytes;
}

/** The server, as far as one device sees it. */
export class World {
  time = 1_700_000_000;
  round = 0;
  attempt = 0;
  state: "waiting" | "open" | "finished" = "open";
  selection: "all" | "list" = "all";
  selected: number[] = [];
  /** For what the server says that rounds wait. */
  waits: unknown = undefined;
  readonly posted: Posted[] = [];
  readonly asked: string[] = [];
  /** Bodies that count, by round and attempt. */
  readonly counted = new Map<string, Bytes>();
  publicKey: Bytes | null = null;
  /** Makes something else of an answer. */
  change: (path: string, response: Response) => Response | Promise<Response> = (_, same) => same;
  table: Record<string, unknown>;
  titles: string[] = Array.from({ length: ITEMS }, (_, at) => `Place ${at}`);
  categories: Record<string, unknown> | undefined;
  /** Whether devices without an invitation get one. */
  places = false;
  readonly token = "ab".repeat(32);
  width = GRAM_WIDTH;
  /** The private half of the helper's key. */
  readonly helper = randomBytes(32);
  model: (round: number) => Float32Array = (round) => {
    const items = new Float32Array(ITEMS * this.width);
    for (let row = 0; row < ITEMS; row++) {
      if (this.width === FPL_WIDTH) {
        items.set([0.5, -0.25, row / 16, round / 8, 0.125], row * this.width);
        continue;
      }
      items[row * this.width] = ITEMS - row;
      if (round % 2 && row < 6) items.set([1, 0.5, -0.25, 0.125, row / 16], row * this.width + 1);
    }
    return items;
  };

  /** The same town, as a federation of FPL over a secure sum, or straight to the server. */
  static fpl(direct = false): World {
    const world = new World();
    world.width = FPL_WIDTH;
    world.table = {
      ...world.table,
      algorithm: {
        ...{ name: "fpl", embedding_size: 4, learning_rate: 0.1, cohort_size: "all", triples: 6 },
        ...{ epochs: 1, rounds: 8, reg_bias: 0, init_scale: 0.1, init_bias: "normal" },
      },
      release: { name: "share-fraction", per: "item" },
      link: direct ? { name: "direct" } : world.table["link"],
    };
    return world;
  }

  constructor(release: Record<string, unknown> = {}, algorithm: Record<string, unknown> = {}) {
    this.table = {
      protocol: PROTOCOL,
      federation: FEDERATION,
      n_items: ITEMS,
      algorithm: {
        ...{ name: "gram", embedding_size: 4, recency: true, memory: 8, popularity_share: 0.3 },
        ...{ least_head: 4, most_head: 8, batches: 1, pairs_from: 0, quality_share: 0 },
        ...{ held_out: 0.1, noise: "independent", model_bits: 8, support: 0, ...algorithm },
      },
      release: {
        ...{ name: "own-epsilon", epsilon: 8, delta: 1e-6, parts: 0, period_days: 0, ...release },
      },
      link: {
        ...{ name: "secure-sum", min_devices: 3, clip: 0, noise: 0, groups: 1, bits: 32 },
        ...{ url: "https://helper.example", authority: "", key: toHex(publicOf(this.helper)) },
      },
    };
  }

  get invitation() {
    const server = URL_OF_SERVER;
    return { server, ca: "", token: this.token, number: 7, federation: FEDERATION };
  }

  get digest(): string {
    return termsDigest(termsFromTable(this.table));
  }

  readonly fetcher: typeof fetch = async (input, options) => {
    const { pathname, search } = new URL(String(input));
    const method = options?.method ?? "GET";
    this.asked.push(`${method} ${pathname}${search}`);
    const answer =
      method === "POST"
        ? await this.#post(pathname, new Uint8Array(options?.body as Bytes))
        : await this.#get(pathname);
    return this.change(pathname, answer);
  };

  get catalogueBytes(): Bytes {
    const items = this.titles.map((title, at) => [`item-${at}`, title]);
    const more = this.categories === undefined ? {} : { categories: this.categories };
    return utf8(JSON.stringify({ items, ...more }));
  }

  async #get(path: string): Promise<Response> {
    if (path === "/v1/round") {
      return Response.json({
        ...{ protocol: PROTOCOL, federation: FEDERATION, terms: this.digest, round: this.round },
        ...{ attempt: this.attempt, state: this.state, selection: this.selection },
        ...{ model: this.round, poll_seconds: 1, catalogue: toHex(await sha256(this.catalogueBytes)) },
        ...(this.waits !== undefined && { waits: this.waits }),
      });
    }
    if (path === "/v1/challenge" && this.places) {
      const challenge = toHex(randomBytes(40));
      const about = { protocol: PROTOCOL, federation: FEDERATION, challenge, bits: 6 };
      return Response.json({ ...about, seconds: 600 });
    }
    if (path === "/v1/challenge") return Response.json(NO_PLACE, { status: 403 });
    if (path === "/v1/terms") return Response.json(this.table);
    if (path === "/v1/catalogue") return new Response(this.catalogueBytes);
    if (path.startsWith("/v1/model/")) {
      const round = Number(path.split("/").at(-1));
      const view = { round, rows: ITEMS, width: this.width, items: this.model(round) };
      return new Response(encodeModel(view));
    }
    if (path.endsWith("/selected")) return new Response(new Uint32Array(this.selected));
    return Response.json({ error: "missing", detail: "nothing is here" }, { status: 404 });
  }

  async #post(path: string, body: Bytes): Promise<Response> {
    this.posted.push({ path, body });
    const refuse = (status: number, error: string) =>
      Response.json({ error, detail: "no" }, { status });
    if (path === "/v1/enrol") {
      const told = JSON.parse(textOf(body));
      const key = fromHex(told.public_key);
      if (told.work !== undefined && this.places) {
        this.publicKey = key;
        return Response.json({ number: 7 });
      }
      if (told.token !== this.token) return refuse(403, "bad_token");
      if (this.publicKey !== null && !equal(this.publicKey, key)) return refuse(403, "bad_token");
      this.publicKey = key;
      return Response.json({ number: 7 });
    }
    if (this.publicKey === null) return refuse(401, "unknown_device");
    const envelope = openEnvelope(body);
    const purpose = path === "/v1/reports" ? "report" : "check-in";
    if (!(await signedBy(envelope, this.publicKey, FEDERATION, purpose))) {
      return refuse(401, "bad_signature");
    }
    if (purpose === "check-in") return Response.json({});
    const key = `${envelope.round}.${envelope.attempt}`;
    const before = this.counted.get(key);
    if (before !== undefined) return refuse(409, equal(before, body) ? "replay" : "second_submission");
    if (key !== `${this.round}.${this.attempt}`) return refuse(410, "late");
    this.counted.set(key, body);
    return Response.json({});
  }

  reports(): Posted[] {
    return this.posted.filter(({ path }) => path === "/v1/reports");
  }
}

/** Counts what a device does outside of itself, and kills it at one of these moments: before it is
 * done, or after, when the device does not hear of it. */
export class Fate {
  calls = 0;
  dead = false;

  constructor(
    readonly at = Number.POSITIVE_INFINITY,
    readonly after = false,
  ) {}

  async meet<T>(work: () => Promise<T>): Promise<T> {
    if (this.dead) throw new Killed();
    const now = this.calls++ === this.at;
    if (now) this.dead = true;
    if (now && !this.after) throw new Killed();
    const found = await work();
    if (this.dead) throw new Killed();
    return found;
  }
}

/** A disk whose device may be killed. */
class MortalDisk implements Disk {
  constructor(
    private readonly disk: Disk,
    private readonly fate: Fate,
  ) {}

  keys(make: () => Promise<StoreKeys>) {
    return this.fate.meet(() => this.disk.keys(make));
  }

  read(names: readonly string[]): Promise<Found> {
    return this.fate.meet(() => this.disk.read(names));
  }

  commit(generation: number, changes: ReadonlyMap<string, Bytes | null>): Promise<boolean> {
    return this.fate.meet(() => this.disk.commit(generation, changes));
  }

  destroy(): Promise<void> {
    return this.fate.meet(() => this.disk.destroy());
  }

  close(): void {
    this.disk.close();
  }
}

export interface Opened {
  readonly vault: Vault;
  readonly door: Door;
  readonly device: Device;
  readonly events: [string, Readonly<Record<string, unknown>>][];
}

function all<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function database(factory: IDBFactory): Promise<IDBDatabase> {
  return all(factory.open("store", 1));
}

/** The browser in which a device lives: its store stays when the device is killed. */
export class Browser {
  readonly factory = new IDBFactory();

  constructor(
    readonly world: World,
    readonly disk: (disk: Disk) => Disk = (same) => same,
    readonly invited = true,
  ) {}

  /** Another one, with a copy of the profile as it is. */
  async copy(): Promise<Browser> {
    const found = new Browser(this.world, this.disk, this.invited);
    const disks = [this, found].map(({ factory }) => IndexedDisk.open("store", factory));
    for (const disk of await Promise.all(disks)) disk.close();
    const [from, to] = await Promise.all([this, found].map(({ factory }) => database(factory)));
    if (from === undefined || to === undefined) throw new Error("there is no store");
    for (const name of from.objectStoreNames) {
      const store = from.transaction(name).objectStore(name);
      const [keys, values] = await Promise.all([all(store.getAllKeys()), all(store.getAll())]);
      const writing = to.transaction(name, "readwrite").objectStore(name);
      await Promise.all(keys.map((key, k) => all(writing.put(values[k], key))));
    }
    for (const one of [from, to]) one.close();
    return found;
  }

  async open(fate = new Fate(), silent = 20): Promise<Opened> {
    const { world } = this;
    const disk = await IndexedDisk.open("store", this.factory);
    const vault = await Vault.open(new MortalDisk(this.disk(disk), fate));
    await vault.change(async (draft) => {
      const store = new Writing(draft);
      await store.ownSecret();
      if ((await store.membership()) === null) {
        const invitation = this.invited ? world.invitation : null;
        const number = invitation?.number ?? null;
        store.setMembership({ server: URL_OF_SERVER, federation: FEDERATION, invitation, number });
      }
    });
    if (vault.keys.signing === undefined) throw new Error("this node makes no Ed25519 keys");
    const key = signingKeyOf(vault.keys.signing);
    const clock = () => world.time;
    const fetcher: typeof fetch = (...given) => fate.meet(() => world.fetcher(...given));
    const transport = new Transport(URL_OF_SERVER, fetcher, {
      ...{ silent, short: silent, longest: silent },
    });
    const door = new Door(vault, key, clock);
    const events: Opened["events"] = [];
    const log = (event: string, details: Readonly<Record<string, unknown>>): void => {
      events.push([event, details]);
    };
    const device = new Device(vault, door, transport, key, clock, log);
    return { vault, door, device, events };
  }
}

export function write<T>(opened: Opened, work: (store: Writing) => Promise<T>): Promise<T> {
  return opened.vault.change((draft) => work(new Writing(draft)));
}

export function read<T>(opened: Opened, work: (store: Reading) => Promise<T>): Promise<T> {
  return opened.vault.read((view) => work(new Reading(view)));
}

export function choose(opened: Opened, change: ChoiceChange): Promise<void> {
  return write(opened, async (store) =>
    store.setChoice(changedChoice((await store.choice()).choice, change), 0),
  );
}

export const VISITS = [1, 2, 3, 5, 8].map((at, k) => [`item-${at}`, 1_600_000_000 + k] as const);

/** Somebody with a history who has agreed and takes part. */
export async function settle(opened: Opened, world: World): Promise<void> {
  await write(opened, (store) => store.visited(VISITS));
  await opened.device.read();
  await opened.door.agree(world.digest);
  const own = { takesPart: true, epsilon: 1, totalEpsilon: 4 };
  const shares = { takesPart: true, sharePositives: 0.5 };
  await choose(opened, world.width === FPL_WIDTH ? shares : own);
}

/** What she has on record, and what it has cost. */
export async function bookOf(opened: Opened) {
  return read(opened, async (store) => {
    const rounds = await store.rounds();
    const { totals, spent } = await store.budget();
    return {
      rounds,
      releases: totals.reduce((sum, one) => sum + one.releases, 0),
      spent: spent.reduce((sum, [epsilon, many]) => sum + epsilon * many, 0),
    };
  });
}
