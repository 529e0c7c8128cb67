/**
 * What the consent centre asks, answered by a device in a tab. The page is the agent's own
 * (`sottovoce/web/pages`), and its types say what each call gives; sentences are keys of the same
 * catalogue. Whatever goes wrong is told as a `Trouble`.
 */

import { Trouble } from "../../../src/sottovoce/web/pages/trouble.js";
import { type Bytes, toHex, utf8 } from "./bytes.ts";
import { sha256 } from "./crypto.ts";
import type { BrowserDevice, ChoiceChange, LedgerRow, Preview, Status } from "./index.ts";
import { sentencesOf } from "./sentences.ts";
import {
  agreedTo,
  costWords,
  fieldsOf,
  inTheWay,
  isBounded,
  isPrinted,
  ofChange,
  onlookers,
  roundedUp,
  said,
  settingsOf,
  weigh,
} from "./weighing.ts";
import { termsFromTable } from "./wire/terms.ts";
import type { Choice, Terms } from "./wire/types.ts";

/** Of a preview. */
const [SHOWN_ITEMS, SHOWN_BYTES] = [500, 512];
const RECOMMENDED = 10;
const RECEIPT = "sottovoce-receipt-1";
/** The only store of a tab. */
const ID = "tab";
const QUIET: Readonly<Record<string, string>> = {
  stopped: "quiet.stopped",
  "no part": "quiet.off",
  "no round": "quiet.waiting",
  "not asked": "quiet.waiting",
  sent: "quiet.period_open",
};
const OUT: Readonly<Record<string, string>> = {
  "the operator has shut this device out": "quiet.shut_out",
  "the operator has withdrawn this invitation": "quiet.withdrawn",
};
const SPOKEN: Readonly<Record<string, keyof Choice>> = {
  takes_part: "takesPart",
  share_positives: "sharePositives",
  epsilon: "epsilon",
  total_epsilon: "totalEpsilon",
  never_send: "neverSend",
};

export interface TabOptions {
  /** Address of the folder with the catalogue of sentences, or what reads a file of it. */
  readonly words?: string | URL | ((name: string) => Promise<unknown>);
}

/** The provider of a consent centre in a tab. */
export function tab(device: BrowserDevice, options: TabOptions = {}): Provider {
  const { words = "words/" } = options;
  if (typeof words === "function") return new Tab(device, words).calls();
  const folder = new URL(words, globalThis.document?.baseURI ?? import.meta.url);
  return new Tab(device, (name) => sentencesOf(folder, name)).calls();
}

class Tab {
  /** Whether everything was forgotten. */
  #gone = false;
  #listed = "";
  #version = 0;

  constructor(
    private readonly device: BrowserDevice,
    private readonly words: (name: string) => Promise<unknown>,
  ) {
    device.addEventListener("erased", () => (this.#gone = true));
  }

  calls(): Provider {
    const told =
      <G extends unknown[], T>(call: (...given: G) => Promise<T>) =>
      (...given: G): Promise<T> =>
        call(...given).catch((error) => {
          throw troubleOf(error);
        });
    return {
      words: told((language) => this.#words(language)),
      glossary: told(() => this.#file("glossary")),
      state: told(() => this.#state()),
      weigh: told((_, change) => this.#weigh(change)),
      choose: told(async (_, change) => {
        await this.device.choose(changeOf(change));
        return this.#store();
      }),
      things: told((_, asked) => this.#things(asked)),
      preview: told(() => this.#preview()),
      body: told(async (_, index) => copied(await this.device.body(index))),
      send: told((_, nonce) => this.#send(nonce)),
      ledger: told((_, asked) => this.#ledger(asked)),
      row: told((_, id) => this.#row(id)),
      export: told(async (_, format) => new Blob([await this.device.export(format)])),
      agree: told(async (_, digest) => {
        await this.device.agree(digest);
        return this.#store();
      }),
      stop: told(async (_, everything) => {
        await this.device.stop(false);
        if (everything) await this.device.stop();
        return this.#state();
      }),
      start: told(async () => {
        await this.device.start();
        return this.#state();
      }),
      remove: told(async (_, items) => {
        await this.device.remove(items);
        return this.#store();
      }),
      erase: told(async (_, what) => {
        await this.device.erase(what);
        this.#gone = what === "everything";
        return this.#state();
      }),
      // Our attacks are written in Python: here none is tried, and the page says so.
      learn: told(async () => NO_ATTACK),
      learnt: told(async () => NO_ATTACK),
      recommend: told(() => this.#recommend()),
    };
  }

  // --- sentences ---------------------------------------------------------------------------------

  /** The catalogue, in which what a program on a computer would say is said as a tab says it. */
  async #words(language: string): Promise<Record<string, string>> {
    const found = (await this.#file(language)) as Record<string, string>;
    const automatic = !this.#gone && (await this.device.status()).automatic;
    for (const group of ["tab.instead.", ...(automatic ? ["tab.by_itself."] : [])]) {
      for (const [key, text] of Object.entries(found)) {
        if (key.startsWith(group)) found[key.slice(group.length)] = text;
      }
    }
    return found;
  }

  async #file(name: string): Promise<never> {
    const found = await this.words(name);
    if (found === null) throw new Trouble("said", said("trouble.not_found"));
    return found as never;
  }

  // --- where she stands --------------------------------------------------------------------------

  async #state(): Promise<State> {
    return { version: "tab", stores: this.#gone ? [] : [await this.#store()] };
  }

  async #store(): Promise<Store> {
    const status = await this.device.status();
    const [things, rows] = [await this.device.things(), await this.device.ledger()];
    const terms = termsOf(status.pending ?? status.terms);
    const { choice } = status;
    const off = things.filter((one) => one.neverSent).length;
    const listed = JSON.stringify(things);
    if (listed !== this.#listed) [this.#listed, this.#version] = [listed, this.#version + 1];
    const contributions = releases(status);
    const last = rows.at(-1)?.at ?? null;
    const history = { items: things.length, off, unknown: things.filter((one) => !one.known).length };
    return {
      ...{ id: ID, name: ID, federation: status.federation || null, kind: "devices" },
      address: status.server || null,
      stands: standsOf(status, contributions, last),
      quiet: quietOf(status, terms, history),
      takes_part: choice.takesPart,
      stopped: status.stopped,
      printed: terms !== null && isPrinted(terms),
      fields: fieldsOf(choice, terms),
      choice: plainChoice(choice),
      meter: meterOf(status, terms),
      terms: terms && (await agreement(status, terms)),
      readers: terms === null ? [] : onlookers(terms),
      history: { ...history, version: this.#version },
      contributions,
      last,
    };
  }

  async #weigh(change: Change): Promise<Weighed> {
    const status = await this.device.status();
    const { neverSend } = status.choice;
    const choice = { ...status.choice, ...changeOf(change), neverSend };
    const terms = termsOf(status.pending ?? status.terms);
    return weigh(choice, Object.keys(change), terms, status.budget.spent);
  }

  async #things(asked: { query: string; offset: number; limit: number }): Promise<ThingsPage> {
    const [things, { categories }] = [await this.device.things(), await this.device.catalogue()];
    const never = new Set((await this.device.status()).choice.neverSend);
    const counts = new Map(categories.flat().map((name) => [name, 0]));
    for (const name of things.flatMap((one) => one.categories)) {
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    const query = asked.query.toLowerCase();
    const found = things
      .filter((one) => `${one.title}\n${one.id}`.toLowerCase().includes(query))
      .map(({ id, title, at, by, former, ...one }): Thing => ({
        ...{ item: id, title, when: at, categories: [...one.categories] },
        ...{ on: by === null, by, former: [...former] },
      }));
    return {
      total: found.length,
      things: found.slice(asked.offset, asked.offset + asked.limit),
      categories: [...counts].sort().map(([name, count]) => ({ name, count, on: !never.has(name) })),
    };
  }

  // --- what would leave --------------------------------------------------------------------------

  async #preview(): Promise<Previewed> {
    const shown = await this.device.preview();
    const status = await this.device.status();
    const terms = termsOf(status.terms);
    const messages: Message[] = [];
    for (const [index, { what, bytes, sha256 }] of shown.messages.entries()) {
      const start = (await this.device.body(index)).subarray(0, SHOWN_BYTES);
      messages.push({
        what:
          what === "enrolment" && status.number === null
            ? said("tab.place")
            : messageWords(what, terms, "preview"),
        ...{ to: said("reads.server"), bytes, sha256 },
        ...{ start: btoa(String.fromCharCode(...start)), exact: true },
      });
    }
    const cost = shown.round === null || terms === null ? null : shown.epsilon;
    const largest = Math.max(...shown.items.map((one) => one.weight)) || 1;
    const items = shown.items
      .map(({ id, title, weight }) => ({ item: id, title: title || id, weight: weight / largest }))
      .sort((one, other) => other.weight - one.weight);
    return {
      ready: messages.length > 0,
      said: messages.length ? readyWords(status, shown) : await this.#nothing(shown, status, terms),
      why: shown.detail,
      nonce: shown.name || null,
      round: shown.round,
      epsilon: cost === null || !Number.isFinite(cost) ? null : roundedUp(cost),
      cost: cost === null || terms === null ? null : costWords(cost, terms, status.choice),
      items: items.slice(0, SHOWN_ITEMS),
      total: items.length,
      others: shown.others,
      kept_back: (await this.device.things()).filter((one) => one.neverSent).length,
      messages,
      readers: terms === null ? [] : onlookers(terms),
    };
  }

  async #nothing(shown: Preview, status: Status, terms: Terms | null): Promise<Said> {
    if (shown.why === "not agreed") {
      return said(status.agreedAt === null ? "quiet.terms" : "quiet.terms_changed");
    }
    if (shown.why === "choice" || shown.why === "nothing") {
      const known = (await this.#store()).quiet ?? (terms && inTheWay(status.choice, terms));
      return known ?? said(shown.why === "choice" ? "quiet.choice" : "preview.nothing");
    }
    return said(QUIET[shown.why] ?? "preview.nothing");
  }

  async #send(nonce: string): Promise<{ state: string; said: Said; store: Store }> {
    const before = (await this.device.ledger()).length;
    let sent: Preview;
    try {
      sent = await this.device.send(nonce);
    } catch (error) {
      const name = nameOf(error);
      if (name === "ConsentError") throw new Trouble("said", said("preview.changed"));
      const unsure = (await this.device.status()).report?.state === "left";
      // What is in the ledger has left, or may have.
      if (unsure || (await this.device.ledger()).length > before) {
        throw new Trouble("said", said("trouble.maybe_sent"));
      }
      throw error;
    }
    const report = sent.round === null ? null : (await this.device.status()).report;
    const state = sent.round === null ? "arrived" : (report?.state ?? "nothing");
    const known = ["arrived", "refused", "left"].includes(state);
    const words = said(`preview.${known ? state : "nothing_sent"}`);
    return { state: known ? state : "nothing", said: words, store: await this.#store() };
  }

  // --- what has left -----------------------------------------------------------------------------

  async #ledger(asked: { offset: number; limit: number }): Promise<{ total: number; rows: Row[] }> {
    const rows = await this.device.ledger();
    const found = await this.#rows(rows);
    const newest = found.reverse().slice(asked.offset, asked.offset + asked.limit);
    return { total: rows.length, rows: newest };
  }

  async #rows(rows: readonly LedgerRow[]): Promise<Row[]> {
    const status = await this.device.status();
    const terms = termsOf(status.terms);
    return rows.map((row): Row => ({
      id: nameOfRow(row),
      when: row.at,
      what: messageWords(row.what, terms, "ledger"),
      to: said("reads.server"),
      bytes: row.bytes,
      epsilon: Number.isFinite(row.epsilon) ? row.epsilon : null,
      bounded: Number.isFinite(row.epsilon),
      state: said(`ledger.states.${row.what === "report" ? row.state : "sent"}`),
      items: row.items.length,
      sha256: row.sha256 || null,
    }));
  }

  async #row(id: string | number): Promise<Booked> {
    const rows = await this.device.ledger();
    const at = rows.findIndex((row) => nameOfRow(row) === id);
    const [row, shown] = [rows[at], (await this.#rows(rows))[at]];
    if (row === undefined || shown === undefined) throw new Trouble("said", said("trouble.not_found"));
    const titles = new Map((await this.device.catalogue()).items);
    const largest = Math.max(...row.weights) || 1;
    const items = row.items.map((item, k) => ({
      ...{ item, title: titles.get(item) || item },
      weight: (row.weights[k] ?? 0) / largest,
    }));
    items.sort((one, other) => other.weight - one.weight);
    const status = await this.device.status();
    const choice = (await this.device.choices()).findLast((one) => one.at <= row.at)?.choice;
    const receipt = {
      version: RECEIPT,
      id: `${ID}/${id}`,
      time: new Date(row.at * 1000).toISOString(),
      federation: status.federation || null,
      controller: status.server || null,
      terms: row.what === "report" ? (status.eras[row.terms] ?? null) : null,
      round: row.round,
      choice_in_force: choice ? plainChoice(choice) : null,
      what: row.what,
      bytes: row.bytes,
      sha256: row.sha256 || null,
      epsilon: shown.epsilon,
      items: row.items.length,
      state: row.state,
    };
    return { row: shown, items, receipt };
  }

  async #recommend(): Promise<{ now: Titles; after: Titles | null }> {
    let found: Awaited<ReturnType<BrowserDevice["recommend"]>> = [];
    try {
      found = await this.device.recommend(RECOMMENDED);
    } catch (error) {
      if (!["UsageError", "DataError", "ConsentError"].includes(nameOf(error))) throw error;
    }
    const now = found.map(({ id, title }) => ({ item: id, title: title || id }));
    return { now, after: null };
  }
}

const NO_ATTACK: Learnt = { done: 0, total: 0, findings: [], error: null };

// --- sentences about a device ------------------------------------------------------------------------

function standsOf(status: Status, n: number, last: number | null): Said {
  if (status.stopped) return said("stands.stopped");
  const { choice } = status;
  if (last === null && status.fresh) return said("tab.fresh");
  if (last === null) return said(choice.takesPart ? "stands.nothing" : "stands.nothing_off");
  if (!n) return said("stands.presence", { last });
  if (!Number.isFinite(usedOf(status))) return said("stands.no_bound", { n, last });
  const values = { n, last, spent: usedOf(status) };
  if (!Number.isFinite(choice.totalEpsilon)) return said("stands.no_limit", values);
  return said("stands.spent", { ...values, limit: choice.totalEpsilon });
}

/** Why nothing leaves now, as far as this device knows. */
function quietOf(
  status: Status,
  terms: Terms | null,
  history: { readonly items: number; readonly off: number },
): Said | null {
  if (status.stopped) return said("quiet.stopped");
  if (!status.choice.takesPart) return said("quiet.off");
  if (status.shutOut) return said(OUT[status.shutOut] ?? "quiet.shut_out_server");
  if (terms === null) return said("quiet.no_terms");
  if (status.pending !== null) {
    return said(status.agreedAt === null ? "quiet.terms" : "quiet.terms_changed");
  }
  const why = inTheWay(status.choice, terms);
  if (why !== null) return why;
  if (!history.items) return said("quiet.no_history");
  return history.off === history.items ? said("quiet.all_off") : null;
}

function meterOf(status: Status, terms: Terms | null): Store["meter"] {
  const { totalEpsilon } = status.choice;
  const spent = roundedUp(status.budget.spent);
  if (!spent && (terms === null || !isBounded(terms))) return null;
  if (!Number.isFinite(totalEpsilon)) {
    return { spent, limit: null, said: said("stands.meter_open", { spent }) };
  }
  const words = said("stands.meter_plain", { spent, limit: totalEpsilon });
  return { spent, limit: totalEpsilon, said: words };
}

async function agreement(status: Status, terms: Terms): Promise<Agreement> {
  const shown = status.pending ?? status.terms;
  const settings = settingsOf(shown?.table ?? {});
  const before = settingsOf(status.pending && status.terms ? status.terms.table : {});
  const changes: Difference[] = [];
  if (status.pending && status.terms && status.pending.digest !== status.terms.digest) {
    for (const setting of [...new Set([...before.keys(), ...settings.keys()])].sort()) {
      const [one, other] = [before.get(setting), settings.get(setting)];
      if (JSON.stringify(one) === JSON.stringify(other)) continue;
      const values = { before: await short(one), after: await short(other) };
      changes.push({ setting, ...values, said: ofChange(setting, one, other) });
    }
  }
  const every = [...settings].map(async ([name, value]) => ({ name, value: await short(value) }));
  return {
    digest: shown?.digest ?? "",
    agreed: status.pending === null,
    said: agreedTo(terms),
    changes,
    settings: await Promise.all(every),
  };
}

function readyWords(status: Status, shown: Preview): Said {
  return said(shown.round !== null && status.report?.state === "left" ? "preview.left" : "preview.ready");
}

/** What a message is called. */
function messageWords(what: string, terms: Terms | null, where: "preview" | "ledger"): Said {
  if (what === "enrolment") return said(`${where}.enrolment`);
  if (what === "check-in") return said(`${where}.check_in`);
  return said(`${where}.${terms?.link.name === "secure-sum" ? "contribution" : "update"}`);
}

// --- helpers -----------------------------------------------------------------------------------------

function termsOf(shown: Status["terms"]): Terms | null {
  return shown === null ? null : termsFromTable(shown.table);
}

function releases(status: Status): number {
  return status.budget.totals.reduce((sum, one) => sum + one.releases, 0);
}

/** What has been used; infinite where something left that nothing bounds. */
function usedOf(status: Status): number {
  const open = status.budget.totals.some((one) => !Number.isFinite(one.epsilon));
  return open ? Number.POSITIVE_INFINITY : roundedUp(status.budget.spent);
}

function plainChoice(choice: Choice): Change {
  const { totalEpsilon } = choice;
  const found = Object.entries(SPOKEN).map(([name, own]) => [name, choice[own]]);
  return {
    ...Object.fromEntries(found),
    total_epsilon: Number.isFinite(totalEpsilon) ? totalEpsilon : null,
  };
}

function changeOf(change: Change): ChoiceChange {
  const found: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(change)) {
    const own = SPOKEN[name];
    if (own === undefined) throw new Trouble("said", said("trouble.not_here"));
    found[own] = name === "total_epsilon" && value === null ? Number.POSITIVE_INFINITY : value;
  }
  return found as ChoiceChange;
}

/** A setting on one line; a certificate by its fingerprint. */
async function short(value: unknown): Promise<string> {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") return String(value);
  if (!value.includes("-----BEGIN")) return value;
  return `certificate ${toHex(await sha256(utf8(value))).slice(0, 32)}`;
}

/** It stays the same, whatever the clock says when others come. */
function nameOfRow({ what, at, round, attempt }: LedgerRow): string {
  return [what, at, ...(round === null ? [] : [round, attempt])].join("-");
}

function copied(bytes: Bytes): ArrayBuffer {
  return bytes.slice().buffer as ArrayBuffer;
}

function nameOf(error: unknown): string {
  return error instanceof Error || (error as Error)?.name ? (error as Error).name : "";
}

/** What went wrong, as she would say it. */
function troubleOf(error: unknown): Trouble {
  if (error instanceof Trouble) return error;
  const why = (error as Error)?.message ?? "";
  switch (nameOf(error)) {
    case "StorageTrouble":
      return new Trouble("said", said(/no room/.test(why) ? "trouble.disk_full" : "trouble.store_broken"));
    case "Unreachable":
      return new Trouble("said", said("trouble.server_gone"));
    case "MessageError":
      return new Trouble("said", said("trouble.untrusted"));
    case "KeyTrouble":
      if (/no place/.test(why)) return new Trouble("said", said("tab.no_place"));
      return new Trouble("said", said("quiet.withdrawn"));
    case "Unsupported":
      if (/was closed/.test(why)) return new Trouble("over", said("trouble.session"));
      if (/was deleted/.test(why)) return new Trouble("said", said("trouble.no_store"));
      return new Trouble("said", said("trouble.bad_input", { what: why }));
    case "ConsentError":
      if (/not the terms/.test(why)) return new Trouble("said", said("trouble.terms_other"));
      return new Trouble("said", said("trouble.bad_input", { what: why }));
    case "":
      return new Trouble("said", said("trouble.unforeseen"));
    default:
      return new Trouble("said", said("trouble.bad_input", { what: why }));
  }
}
