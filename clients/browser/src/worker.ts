/**
 * The device in a worker: a page asks, this does, and the page's thread is never held up.
 *
 * Tabs of one origin share one store. One of them works: it holds a lock, asks the server and
 * sends. The others show, and take over when it is closed. Whoever acts at all (a visit, a look at
 * what would leave, sending) does so under a second lock, so that no two act at once.
 */

import type { Visit } from "./arguments.ts";
import { spentSoFar } from "./budget.ts";
import { type Bytes, fromHex, toHex } from "./bytes.ts";
import {
  type KeptKey,
  newSigningKey,
  requireCrypto,
  type SigningKey,
  sha256,
  signingKeyFromSeed,
  signingKeyOf,
} from "./crypto.ts";
import { Device, type Shown } from "./device.ts";
import { Door } from "./door.ts";
import { ConsentError, SottovoceError, Unsupported, UsageError } from "./errors.ts";
import { Fpl } from "./fpl.ts";
import { Gram } from "./gram.ts";
import { exported, type LedgerRow, ledgerRows, type Totals } from "./ledger.ts";
import { Pace } from "./pacing.ts";
import { type Disk, IndexedDisk } from "./store/disk.ts";
import {
  type ChoiceChange,
  type ChoiceRecord,
  changedChoice,
  type Membership,
  Reading,
  Writing,
} from "./store/records.ts";
import { Vault } from "./store/vault.ts";
import { Busy, isLoopback, serverAddress, Transport } from "./transport.ts";
import { invitationFromTable, invitationFromText } from "./wire/invitations.ts";
import { termsDigest, termsFromTable, termsTable } from "./wire/terms.ts";
import type {
  Catalogue,
  Choice,
  Descriptor,
  History,
  ModelView,
  RankedItem,
  Terms,
} from "./wire/types.ts";

/** Seconds between visits of a tab that nobody looks at, at least. */
const HIDDEN_SECONDS = 60;
const FIRST_RECOMMENDED = 10;

export interface Opening {
  /** Address of the federation's server. */
  readonly federation: string;
  /** The content of an invitation, as text or as an object. */
  readonly invitation?: unknown;
  /** Whether it takes part by itself once its owner has agreed and chosen to. Otherwise it only
   * reads what is published, and sends when she says so. */
  readonly automatic?: boolean;
  /** Seconds between visits, whatever the server says. */
  readonly poll?: number;
}

/** What a page is told of terms. */
export interface TermsShown {
  readonly digest: string;
  readonly table: unknown;
}

export interface Status {
  /** Nothing was here before: a new device. Site data may have been cleared. */
  readonly fresh: boolean;
  readonly server: string;
  readonly federation: string;
  readonly number: number | null;
  /** Whether this tab is the one that works. */
  readonly working: boolean;
  readonly automatic: boolean;
  readonly stopped: boolean;
  readonly enrolled: boolean;
  /** Why the server takes nothing from this device; empty where it does. */
  readonly shutOut: string;
  readonly terms: TermsShown | null;
  /** Digests of all terms that this device went by, in their order. */
  readonly eras: readonly string[];
  readonly agreedAt: number | null;
  /** Terms that wait for a word; nothing leaves meanwhile. */
  readonly pending: TermsShown | null;
  readonly choice: Choice;
  readonly items: number;
  readonly budget: { readonly totals: readonly Totals[]; readonly spent: number };
  /** Round of the model by which it recommends. */
  readonly model: number | null;
  readonly round: { readonly round: number; readonly attempt: number; readonly state: string } | null;
  /** What became of the latest report. */
  readonly report: { readonly round: number; readonly attempt: number; readonly state: string } | null;
  /** When the server last answered, and what stands in the way since, in a sentence. */
  readonly visitedAt: number | null;
  readonly trouble: string;
}

export interface Preview {
  /** To be given back with `send`; empty where nothing would leave. */
  readonly name: string;
  readonly why: string;
  readonly detail: string;
  readonly messages: readonly { what: string; to: string; bytes: number; sha256: string }[];
  readonly round: number | null;
  readonly epsilon: number;
  readonly items: readonly { id: string; title: string; weight: number }[];
  readonly others: number;
}

export interface Recommended {
  readonly id: string;
  readonly title: string;
  readonly score: number;
}

export interface Thing {
  readonly id: string;
  readonly title: string;
  readonly categories: readonly string[];
  readonly at: number | null;
  /** Titles that it had before. */
  readonly former: readonly string[];
  /** Whether nothing of it ever leaves, */
  readonly neverSent: boolean;
  /** and by what of it that was chosen. */
  readonly by: "item" | "category" | null;
  /** Whether the federation knows it. */
  readonly known: boolean;
}

/** What a device needs of the browser; tests give others. */
export interface Surroundings {
  readonly disk: (name: string) => Promise<Disk>;
  readonly fetcher: typeof fetch;
  readonly clock: () => number;
  readonly locks: LockManager | undefined;
  /** Tells the page, and other tabs. */
  readonly tell: (event: string, details: Readonly<Record<string, unknown>>) => void;
}

/** One opened device. */
export class Host {
  readonly #device: Device;
  readonly #vault: Vault;
  readonly #pace: Pace;
  readonly #automatic: boolean;
  readonly #closed = new AbortController();
  #working = false;
  #hidden = false;
  #wake: () => void = () => undefined;
  #visitedAt: number | null = null;
  #trouble = "";
  #now: Descriptor | null = null;
  #shown: Shown | null = null;

  private constructor(
    private readonly around: Surroundings,
    vault: Vault,
    device: Device,
    /** By which tabs that share its store know each other. */
    readonly name: string,
    opening: Opening,
  ) {
    this.#vault = vault;
    this.#device = device;
    this.#automatic = opening.automatic ?? true;
    this.#pace = new Pace(opening.poll ?? null, isLoopback(device.transport.url));
  }

  static async open(opening: Opening, around: Surroundings): Promise<Host> {
    requireCrypto();
    if (around.locks === undefined) {
      throw new Unsupported("this browser cannot keep two tabs apart, so that nothing is sent");
    }
    const url = serverAddress(opening.federation);
    const name = `sottovoce ${url}`;
    const vault = await Vault.open(await around.disk(name));
    await join(vault, url, opening.invitation);
    const marks = () => vault.read((view) => new Reading(view).marks());
    const stopped = async () => (await marks()).stopped ?? false;
    const transport = new Transport(url, around.fetcher, undefined, stopped);
    const key = await signingKey(vault);
    const door = new Door(vault, key, around.clock);
    const device = new Device(vault, door, transport, key, around.clock, around.tell);
    return new Host(around, vault, device, name, opening);
  }

  /** Work as long as this tab is open, once it is its turn. */
  async run(): Promise<void> {
    const turn = { signal: this.#closed.signal };
    try {
      await this.#locks.request(`${this.name} lead`, turn, async () => {
        this.#working = true;
        this.around.tell("change", {});
        while (!this.#closed.signal.aborted) await this.#sleep(await this.#visit());
      });
    } catch (error) {
      if (!this.#closed.signal.aborted) throw error;
    }
  }

  close(): void {
    this.#closed.abort();
    this.#device.transport.halt(true);
    this.#wake();
    this.#vault.close();
  }

  /** In another tab its owner has decided something. What she clicks there is no reason to ask the
   * server: it would see when she does. */
  async heard(): Promise<void> {
    const { stopped } = await this.#vault.read((view) => new Reading(view).marks());
    this.#device.transport.halt(stopped ?? false);
    this.#wake();
  }

  // --- what a page asks --------------------------------------------------------------------------

  /** A tab that nobody looks at rests longer. It asks nothing in the moment in which somebody looks
   * again. */
  visible(visible: boolean): void {
    this.#hidden = !visible;
  }

  /** Keep that the user came to these items, now or at a time (in seconds); return those that a
   * known catalogue does not have. */
  async visited(items: string | readonly Visit[]): Promise<readonly string[]> {
    const now = Math.floor(this.around.clock());
    const many = typeof items === "string" ? [items] : items;
    const timed = many.map((one) => (typeof one === "string" ? ([one, now] as const) : one));
    return this.#changed(async (store) => {
      await store.visited(timed);
      const known = new Set((await store.catalogue()).items.map(([id]) => id));
      return known.size ? timed.map(([id]) => id).filter((id) => !known.has(id)) : [];
    });
  }

  remove(items: string | readonly string[]): Promise<number> {
    const many = typeof items === "string" ? [items] : items;
    return this.#changed((store) => store.removed(many, this.#seconds));
  }

  async choose(change: ChoiceChange): Promise<Choice> {
    const found = await this.#changed(async (store) => {
      const choice = changedChoice((await store.choice()).choice, change);
      await store.setChoice(choice, this.#seconds);
      return choice;
    });
    this.#decided();
    return found;
  }

  async agree(digest: string): Promise<void> {
    await this.#device.door.agree(digest);
    this.#told();
    this.#decided();
  }

  /** What would leave now. Sends nothing of hers. */
  preview(): Promise<Preview> {
    return this.#acting(async () => {
      this.#shown = await this.#device.show();
      this.#told();
      return this.#previewOf(this.#shown);
    });
  }

  /** The bytes of one message that was shown. */
  body(index: number): Bytes {
    const message = this.#shown?.messages[index];
    if (message === undefined) throw new UsageError("nothing like this was shown; look again");
    return message.body;
  }

  /** Send what was shown last, or under this name: exactly that, or nothing. */
  send(name = this.#shown?.name ?? ""): Promise<Preview> {
    return this.#acting(async () => {
      try {
        const sent = await this.#device.press(name);
        return this.#previewOf(sent);
      } finally {
        this.#told();
      }
    });
  }

  /** Read what is published, now. */
  async refresh(): Promise<void> {
    await this.#acting(async () => {
      this.#now = await this.#device.read();
      this.#visitedAt = this.#seconds;
    });
    this.#told();
  }

  async recommend(n = FIRST_RECOMMENDED): Promise<Recommended[]> {
    const found = await this.#vault.read(async (view) => {
      const store = new Reading(view);
      const model = await store.model();
      const all = await store.allTerms();
      const fits = (terms: Terms) => model?.rows === terms.nItems && model.width === terms.width;
      const terms = all.map((one) => termsFromTable(one.table)).findLast(fits);
      const catalogue = await store.catalogue();
      return { model, terms, catalogue, history: await store.history() };
    });
    const { model, terms, catalogue } = found;
    if (model === null || terms === undefined) {
      throw new UsageError(
        "there is no model here yet; it comes when the federation's server can be reached",
      );
    }
    const { items } = catalogue;
    const untitled = (place: number) => !items[place]?.[1];
    const history = firstItems(found.history, model.rows);
    const best = await this.#ranked(terms, model, history, n, untitled);
    return best.map(({ item, score }) => ({
      id: items[item]?.[0] ?? "",
      title: items[item]?.[1] ?? "",
      score,
    }));
  }

  async #ranked(
    terms: Terms,
    model: ModelView,
    history: History,
    n: number,
    left: (place: number) => boolean,
  ): Promise<readonly RankedItem[]> {
    if (terms.algorithm.name === "gram") return new Gram(terms).recommend(model, history, n, left);
    const vector = await this.#device.door.vectorAtHome(model, terms, history);
    return new Fpl(terms).recommend(model, history, vector, n, left);
  }

  /** All that is in her history, latest first. */
  things(): Promise<Thing[]> {
    return this.#vault.read(async (view) => {
      const store = new Reading(view);
      const { items, categories } = await store.catalogue();
      const { neverSend } = (await store.choice()).choice;
      const never = new Set(neverSend);
      const had = await store.formerTitles();
      const place = new Map(items.map(([id], at) => [id, at]));
      const found = [...(await store.visits())].map(([id, at]): Thing => {
        const where = place.get(id);
        const title = (where === undefined ? "" : items[where]?.[1]) || id;
        const of = where === undefined ? [] : (categories[where] ?? []);
        const former = had.get(id) ?? [];
        const called = [id, title, ...former].some((name) => never.has(name));
        const by = called ? "item" : of.some((name) => never.has(name)) ? "category" : null;
        const known = where !== undefined;
        return { id, title, categories: of, at, former, neverSent: by !== null, by, known };
      });
      return found.sort((one, other) => (other.at ?? 0) - (one.at ?? 0));
    });
  }

  /** Everything that the federation knows, by place. */
  catalogue(): Promise<Catalogue> {
    return this.#vault.read((view) => new Reading(view).catalogue());
  }

  ledger(): Promise<LedgerRow[]> {
    return this.#vault.read(async (view) => {
      const store = new Reading(view);
      const { items } = await store.catalogue();
      return ledgerRows(
        await store.rounds(),
        await store.contacts(),
        (place) => items[place]?.[0] ?? String(place),
      );
    });
  }

  async export(format: "csv" | "ndjson"): Promise<string> {
    return exported(await this.ledger(), format);
  }

  choices(): Promise<readonly ChoiceRecord[]> {
    return this.#vault.read((view) => new Reading(view).choices());
  }

  async status(): Promise<Status> {
    return this.#vault.read(async (view) => {
      const store = new Reading(view);
      const member = await store.membership();
      const marks = await store.marks();
      const known = await store.latestTerms();
      const { totals, spent } = await store.budget();
      const latest = await store.latest();
      const offered = marks.offered === undefined ? null : termsFromTable(marks.offered);
      const terms = known === null ? null : shownTerms(known.terms);
      const waits = terms !== null && terms.digest !== marks.agreed ? terms : null;
      return {
        fresh: this.#vault.fresh,
        server: member?.server ?? "",
        federation: member?.federation ?? "",
        number: member?.number ?? null,
        working: this.#working,
        automatic: this.#automatic,
        stopped: marks.stopped ?? false,
        enrolled: marks.enrolled !== undefined,
        shutOut: marks.shutOut?.why ?? "",
        terms,
        eras: (await store.allTerms()).map((one) => termsDigest(termsFromTable(one.table))),
        agreedAt: marks.agreedAt ?? null,
        pending: offered === null ? waits : shownTerms(offered),
        choice: (await store.choice()).choice,
        items: (await store.visits()).size,
        budget: { totals, spent: spentSoFar({ spent }) },
        model: (await store.model())?.round ?? null,
        round: this.#now && pick(this.#now),
        report: latest && pick(latest),
        visitedAt: this.#visitedAt,
        trouble: this.#trouble,
      };
    });
  }

  /** No byte leaves any more, not even a question; or (false) it only takes no part any more. */
  async stop(everything = true): Promise<void> {
    if (everything) this.#device.transport.halt(true);
    await this.#changed(async (store) => {
      const { choice } = await store.choice();
      if (everything) await store.mark({ stopped: true });
      else await store.setChoice({ ...choice, takesPart: false }, this.#seconds);
    });
    this.#decided();
  }

  async start(): Promise<void> {
    await this.#changed((store) => store.mark({ stopped: undefined }));
    this.#device.transport.halt(false);
    this.#decided();
  }

  /** Forget her history here, or everything. What has left cannot be taken back. */
  async erase(what: "history" | "everything"): Promise<void> {
    if (what === "history") {
      await this.#changed((store) => store.removed("all", this.#seconds));
      return;
    }
    this.#device.transport.halt(true);
    await this.#acting(() => this.#vault.destroy());
    this.around.tell("gone", {});
    this.close();
  }

  // --- helpers -----------------------------------------------------------------------------------

  get #seconds(): number {
    return Math.floor(this.around.clock());
  }

  get #locks(): LockManager {
    return this.around.locks as LockManager;
  }

  async #acting<T>(work: () => Promise<T>): Promise<T> {
    return (await this.#locks.request(`${this.name} act`, work)) as T;
  }

  async #changed<T>(work: (store: Writing) => Promise<T>): Promise<T> {
    const found = await this.#vault.change((draft) => work(new Writing(draft)));
    this.#told();
    return found;
  }

  #told(): void {
    this.around.tell("change", {});
  }

  /** The loop goes on soon after she has, in whichever tab it is. */
  #decided(): void {
    this.around.tell("decided", {});
    this.#wake();
  }

  /** One visit; how many seconds to wait then. */
  async #visit(): Promise<number> {
    try {
      const now = await this.#acting(() =>
        this.#automatic ? this.#device.visit() : this.#looked(),
      );
      this.#trouble = "";
      if (now === null) return HIDDEN_SECONDS;
      this.#now = now;
      this.#visitedAt = this.#seconds;
      return this.#pace.afterSuccess(now.pollSeconds);
    } catch (error) {
      this.#trouble = sentence(error);
      this.around.tell("trouble", { why: this.#trouble });
      if (error instanceof ConsentError) return this.#pace.whileAsked();
      return this.#pace.afterFailure(error instanceof Busy ? error.retryAfter : 0);
    } finally {
      this.#told();
    }
  }

  async #looked(): Promise<Descriptor | null> {
    const { stopped } = await this.#vault.read((view) => new Reading(view).marks());
    return stopped ? null : this.#device.read();
  }

  #sleep(seconds: number): Promise<void> {
    const wait = this.#hidden ? Math.max(seconds, HIDDEN_SECONDS) : seconds;
    return new Promise((resolve) => {
      if (this.#closed.signal.aborted) {
        resolve();
        return;
      }
      const timer = setTimeout(resolve, wait * 1000);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #previewOf(shown: Shown): Promise<Preview> {
    const { items } = await this.#vault.read((view) => new Reading(view).catalogue());
    const round = shown.report?.round;
    const messages = shown.messages.map(async ({ what, to, body }) => ({
      ...{ what, to, bytes: body.length },
      sha256: toHex(await sha256(body)),
    }));
    const own = round?.contents ?? { items: [], weight: [] };
    return {
      name: shown.name,
      why: shown.why,
      detail: shown.detail,
      messages: await Promise.all(messages),
      round: round?.round ?? null,
      epsilon: round?.released.epsilon ?? 0,
      items: own.items.map((place, k) => ({
        id: items[place]?.[0] ?? "",
        title: items[place]?.[1] ?? "",
        weight: own.weight[k] ?? 0,
      })),
      others: round?.released.negativeRows ?? 0,
    };
  }
}

/** The federation that this store is of; raises where it is another. */
async function join(vault: Vault, server: string, given: unknown): Promise<void> {
  const invitation =
    given === undefined || given === null
      ? null
      : typeof given === "string"
        ? invitationFromText(given)
        : invitationFromTable(given);
  await vault.change(async (draft) => {
    const store = new Writing(draft);
    const kept = await store.membership();
    const federation = kept?.federation || invitation?.federation || "";
    const other =
      invitation !== null &&
      (invitation.federation !== federation ||
        (typeof kept?.number === "number" && kept.number !== invitation.number));
    if (other) {
      throw new UsageError(
        "this browser is invited to another federation at this address, or as another device; forget everything here first",
      );
    }
    await store.ownSecret();
    const held = invitation ?? kept?.invitation ?? null;
    const number = kept?.number ?? held?.number ?? null;
    const member: Membership = { server, federation, invitation: held, number };
    if (JSON.stringify(member) !== JSON.stringify(kept)) store.setMembership(member);
  });
}

/** The store's own; where the browser keeps no such keys, it lies encrypted among the records. */
async function signingKey(vault: Vault): Promise<SigningKey> {
  const { signing } = vault.keys;
  if (signing !== undefined) return signingKeyOf(signing);
  return vault.change(async (draft) => {
    const kept = await draft.json<{ seed: string }>("signing");
    if (kept !== undefined) return signingKeyFromSeed(fromHex(kept.seed));
    const made = await newSigningKey();
    const bytes = made.kept as Extract<KeptKey, { kind: "bytes" }>;
    draft.write("signing", { seed: toHex(bytes.privateKey) });
    return made;
  });
}

/** A history as a model sees it that knows fewer items. */
function firstItems(history: History, many: number): History {
  if (history.nItems <= many) return history;
  const kept = [...history.items.keys()].filter((k) => (history.items[k] as number) < many);
  const { times } = history;
  return {
    items: Int32Array.from(kept, (k) => history.items[k] as number),
    times: times && Float64Array.from(kept, (k) => times[k] as number),
    nItems: many,
  };
}

function shownTerms(terms: Terms): TermsShown {
  return { digest: termsDigest(terms), table: termsTable(terms) };
}

function pick(found: { round: number; attempt: number; state: string }) {
  return { round: found.round, attempt: found.attempt, state: found.state };
}

/** What went wrong, in words that hold nothing private. */
function sentence(error: unknown): string {
  if (error instanceof SottovoceError) return error.message;
  return "this device cannot go on, and sends nothing more; if it lasts, tell the authors of Sottovoce";
}

// --- between a page and its worker -----------------------------------------------------------------

/** What a page may ask, by name. */
export const CALLS = [
  ...(["visited", "remove", "choose", "agree", "preview", "body", "send", "refresh"] as const),
  ...(["recommend", "things", "ledger", "export", "choices", "status", "stop", "start"] as const),
  ...(["erase", "visible", "close", "catalogue"] as const),
];
export type Call = (typeof CALLS)[number];
/** Events that other tabs hear of: something has changed, was decided, or everything is gone. */
const BETWEEN_TABS: readonly string[] = ["change", "decided", "gone"];

export interface Asked {
  readonly id: number;
  readonly call: Call | "open";
  readonly given: readonly unknown[];
}

export type Told =
  | { readonly id: number; readonly found: unknown }
  | { readonly id: number; readonly error: { readonly name: string; readonly message: string } }
  | { readonly event: string; readonly details: Readonly<Record<string, unknown>> };

/** Of a worker's global scope, what is used here. */
export interface WorkerScope {
  onmessage: ((message: MessageEvent<Asked>) => void) | null;
  postMessage(told: Told): void;
  readonly navigator: { readonly locks?: LockManager };
}

/** Serve the page that made this worker. */
export function serveWorker(scope: WorkerScope): void {
  let host: Host | null = null;
  let channel: BroadcastChannel | null = null;
  const post = (told: Told): void => scope.postMessage(told);
  const tell: Surroundings["tell"] = (event, details) => {
    post({ event, details });
    if (BETWEEN_TABS.includes(event)) channel?.postMessage(event);
  };
  const around: Surroundings = {
    disk: (name) => IndexedDisk.open(name),
    fetcher: (...given) => fetch(...given),
    clock: () => Date.now() / 1000,
    locks: scope.navigator.locks,
    tell,
  };
  const answer = async ({ call, given }: Asked): Promise<unknown> => {
    if (call === "open") {
      if (host !== null) throw new UsageError("this device is open already");
      const opening = given[0] as Opening;
      const opened = await Host.open(opening, around);
      host = opened;
      channel = new BroadcastChannel(opened.name);
      channel.onmessage = ({ data }) => {
        if (data === "decided") opened.heard().catch(() => undefined);
        else if (data === "gone") {
          opened.close();
          post({ event: "erased", details: {} });
        } else post({ event: "change", details: {} });
      };
      opened.run().catch((error) => post({ event: "trouble", details: { why: sentence(error) } }));
      return opened.status();
    }
    if (host === null || !CALLS.includes(call)) throw new UsageError("open the device first");
    if (call === "close") channel?.close();
    const asked = host[call] as (...given: unknown[]) => unknown;
    return asked.apply(host, [...given]);
  };
  scope.onmessage = async (message: MessageEvent<Asked>) => {
    const { id } = message.data;
    try {
      post({ id, found: await answer(message.data) });
    } catch (error) {
      const { name } = error instanceof SottovoceError ? error : SottovoceError.prototype;
      post({ id, error: { name, message: sentence(error) } });
    }
  };
}
