/**
 * What a device's store holds, record by record: who she is in which federation, her choices and
 * history, the terms, the model, and the book of rounds. Each function here is part of one step of
 * a `Vault`; rules about what may leave are the door's.
 */

import type { Bytes } from "../bytes.ts";
import { randomBytes } from "../crypto.ts";
import { DataError, UsageError } from "../errors.ts";
import {
  type Contact,
  type Contents,
  compareKeys,
  type Round,
  type State,
  sameKey,
  type Totals,
} from "../ledger.ts";
import { termsFromTable, termsTable } from "../wire/terms.ts";
import type { Catalogue, Choice, History, Invitation, ModelView, Terms } from "../wire/types.ts";
import type { Draft, View } from "./vault.ts";

/** Rows that lie in one record. */
const CHUNK = 64;
const LONGEST_NAME = 500;
const SECRET_BYTES = 32;

/** Who has not chosen takes no part. */
export const AT_HOME: Choice = {
  takesPart: false,
  sharePositives: 0,
  epsilon: 0,
  totalEpsilon: Number.POSITIVE_INFINITY,
  neverSend: [],
};

export interface Membership {
  /** The address at which this device asks. */
  readonly server: string;
  readonly federation: string;
  readonly invitation: Invitation | null;
  /** By which the server knows this device; null before it does, without an invitation. */
  readonly number: number | null;
}

export interface ChoiceRecord {
  readonly version: number;
  readonly choice: Choice;
  readonly at: number;
}

/** Small things that the loop and the door remember, by name. */
export interface Marks {
  /** Whether no byte is to leave, not even a question for what is published. */
  readonly stopped?: boolean;
  readonly enrolled?: number;
  readonly checkedIn?: number;
  readonly refreshed?: number;
  /** The attempt at which the server was told last that this device waits. */
  readonly waited?: string;
  readonly roster?: string;
  /** Name of the whole catalogue that is kept. */
  readonly catalogue?: string;
  readonly shutOut?: { readonly why: string; readonly since: number; readonly asked: number };
  /** Terms that the server has published since, which nobody has agreed to. */
  readonly offered?: unknown;
  /** Digest of the terms that the owner has agreed to. */
  readonly agreed?: string;
  readonly agreedAt?: number;
}

interface KeptTerms {
  readonly era: number;
  readonly table: unknown;
  readonly at: number;
}

interface KeptBudget {
  readonly totals: readonly Totals[];
  /** ε of releases that have one, and how many of each. */
  readonly spent: readonly (readonly [epsilon: number, releases: number])[];
}

/** What is to be changed of a choice, and no more. */
/** Names that are added to a list and dropped from it, whatever else is in it. */
export interface NamesChange {
  readonly add?: readonly string[];
  readonly drop?: readonly string[];
}

export type ChoiceChange = Partial<Omit<Choice, "neverSend">> & {
  readonly neverSend?: readonly string[] | NamesChange;
};

/** The choice with these changes; raises where a value is none. */
export function changedChoice(choice: Choice, change: ChoiceChange): Choice {
  const known = Object.keys(AT_HOME);
  const strange = Object.keys(change).find((name) => !known.includes(name));
  if (strange !== undefined) throw new UsageError(`a choice has no field ${strange}`);
  const neverSend = namesAfter(choice.neverSend, change.neverSend);
  const found: Choice = { ...choice, ...change, neverSend };
  if (typeof found.takesPart !== "boolean") throw new UsageError("takesPart must be true or false");
  const most = { sharePositives: 1, epsilon: Infinity, totalEpsilon: Infinity } as const;
  for (const name of ["sharePositives", "epsilon", "totalEpsilon"] as const) {
    const value = found[name];
    if (typeof value !== "number" || !(value >= 0 && value <= most[name])) {
      throw new UsageError(`${name} must be a number from 0 to ${most[name]}`);
    }
  }
  if (!Number.isFinite(found.epsilon)) throw new UsageError("epsilon must be finite");
  return found;
}

/** A list of names after a change; raises where there is something else in it. */
function namesAfter(now: readonly string[], change: ChoiceChange["neverSend"]): string[] {
  if (change === undefined) return [...now];
  const isList = (one: unknown): boolean =>
    Array.isArray(one) && one.every((name) => typeof name === "string");
  const asked = Array.isArray(change) ? { add: change, drop: now } : (change as NamesChange | null);
  const { add = [], drop = [] } = asked ?? {};
  if (asked === null || typeof asked !== "object" || !isList(add) || !isList(drop)) {
    throw new UsageError("neverSend must be a list of names, or names to add and to drop");
  }
  const kept = now.filter((name) => !drop.includes(name));
  return [...new Set([...kept, ...add])].sort();
}

function sameChoice(one: Choice, other: Choice): boolean {
  const plain = (choice: Choice) =>
    JSON.stringify([
      choice.takesPart,
      choice.sharePositives,
      choice.epsilon,
      String(choice.totalEpsilon),
      choice.neverSend,
    ]);
  return plain(one) === plain(other);
}

/** What is in a store. */
export class Reading {
  constructor(protected readonly view: View) {}

  async membership(): Promise<Membership | null> {
    return (await this.view.json<Membership>("membership")) ?? null;
  }

  async marks(): Promise<Marks> {
    return (await this.view.json<Marks>("marks")) ?? {};
  }

  // --- choices ----------------------------------------------------------------------------------

  async choices(): Promise<readonly ChoiceRecord[]> {
    return (await this.view.json<ChoiceRecord[]>("choices")) ?? [];
  }

  /** The choice in force and its version, 0 before the first. */
  async choice(): Promise<{ choice: Choice; version: number }> {
    const last = (await this.choices()).at(-1);
    return last ?? { choice: AT_HOME, version: 0 };
  }

  // --- catalogue and history --------------------------------------------------------------------

  async catalogue(): Promise<Catalogue> {
    return (await this.view.json<Catalogue>("catalogue")) ?? { items: [], categories: [] };
  }

  /** Her items and when she came to each. */
  async visits(): Promise<Map<string, number | null>> {
    return new Map((await this.view.json<[string, number | null][]>("history")) ?? []);
  }

  /** All that is in her history and in the catalogue, or (`sendable`) what of it may ever leave. */
  async history(sendable: Choice | null = null): Promise<History> {
    const visits = await this.visits();
    const { items } = await this.catalogue();
    const kept = sendable === null ? new Set<number>() : await this.placesNamed(sendable.neverSend);
    const found: number[] = [];
    const times: (number | null)[] = [];
    for (const [place, [id]] of items.entries()) {
      const at = visits.get(id);
      if (at === undefined || kept.has(place)) continue;
      found.push(place);
      times.push(at);
    }
    const timed = times.every((at) => at !== null) && times.length > 0;
    return {
      items: Int32Array.from(found),
      times: timed ? Float64Array.from(times as number[]) : null,
      nItems: items.length,
    };
  }

  /** By which a choice can name each item: its id, titles that it has and had, its categories. */
  async names(): Promise<ReadonlySet<string>[]> {
    const { items, categories } = await this.catalogue();
    const had = await this.formerTitles();
    return items.map(
      ([id, title], place) => new Set([id, title, ...(had.get(id) ?? []), ...(categories[place] ?? [])]),
    );
  }

  async placesNamed(names: readonly string[]): Promise<Set<number>> {
    if (!names.length) return new Set();
    const every = await this.names();
    const named = every.flatMap((each, place) => (names.some((one) => each.has(one)) ? [place] : []));
    return new Set(named);
  }

  async formerTitles(): Promise<Map<string, readonly string[]>> {
    return new Map((await this.view.json<[string, string[]][]>("titles")) ?? []);
  }

  // --- terms ------------------------------------------------------------------------------------

  async allTerms(): Promise<readonly KeptTerms[]> {
    return (await this.view.json<KeptTerms[]>("terms")) ?? [];
  }

  /** The terms that were written down last, and how many before them. */
  async latestTerms(): Promise<{ era: number; terms: Terms } | null> {
    const last = (await this.allTerms()).at(-1);
    return last === undefined ? null : { era: last.era, terms: termsFromTable(last.table) };
  }

  // --- model ------------------------------------------------------------------------------------

  async model(): Promise<ModelView | null> {
    const content = await this.view.bytes("model");
    if (content === undefined) return null;
    const [round, rows, width] = new Uint32Array(content.slice(0, 12).buffer) as unknown as number[];
    const items = new Float32Array(content.slice(12).buffer);
    return { round: round as number, rows: rows as number, width: width as number, items };
  }

  async vector(which: "vector" | "learnt"): Promise<Float32Array | null> {
    const content = await this.view.bytes(which);
    return content === undefined ? null : new Float32Array(content.slice().buffer);
  }

  /** From which all is drawn that must not be told from chance; null before anything was. */
  async secret(): Promise<Bytes | null> {
    return (await this.view.bytes("secret")) ?? null;
  }

  // --- the book ---------------------------------------------------------------------------------

  rounds(): Promise<Round[]> {
    return this.rows<Round>("rounds");
  }

  contacts(): Promise<Contact[]> {
    return this.rows<Contact>("contacts");
  }

  /** The latest round under the terms in force. */
  async latest(): Promise<Round | null> {
    const era = (await this.allTerms()).at(-1)?.era;
    let found: Round | null = null;
    for (const one of await this.rounds()) {
      const later = found && compareKeys([one.round, one.attempt], [found.round, found.attempt]) < 0;
      if (one.era === era && !later) found = one;
    }
    return found;
  }

  /** Of the latest round, while it may still be needed. */
  async message(): Promise<Bytes | null> {
    return (await this.view.bytes("message")) ?? null;
  }

  async budget(): Promise<KeptBudget> {
    return (await this.view.json<KeptBudget>("budget")) ?? { totals: [], spent: [] };
  }

  protected async rows<T>(name: string): Promise<T[]> {
    const found: T[] = [];
    for (let chunk = 0; ; chunk++) {
      const part = await this.view.json<T[]>(`${name}/${chunk}`);
      if (part !== undefined) found.push(...part);
      if (part === undefined || part.length < CHUNK) return found;
    }
  }
}

/** A step that changes what is in a store. */
export class Writing extends Reading {
  constructor(private readonly draft: Draft) {
    super(draft);
  }

  setMembership(membership: Membership): void {
    this.draft.write("membership", membership);
  }

  async mark(marks: { readonly [name in keyof Marks]: Marks[name] | undefined }): Promise<void> {
    this.draft.write("marks", { ...(await this.marks()), ...marks });
  }

  // --- choices ----------------------------------------------------------------------------------

  /** In force from now on; what was prepared under another does not leave. Who makes the same
   * choice again has not changed her mind. */
  async setChoice(choice: Choice, now: number): Promise<void> {
    const records = await this.choices();
    const before = records.at(-1)?.choice ?? AT_HOME;
    if (records.length && sameChoice(before, choice)) return;
    if (choice.neverSend.some((name) => !before.neverSend.includes(name))) this.forgetVectors();
    await this.addChoice(choice, now);
    await this.dropOutdated("a choice was changed");
  }

  private async addChoice(choice: Choice, now: number): Promise<void> {
    const records = await this.choices();
    const version = (records.at(-1)?.version ?? 0) + 1;
    this.draft.write("choices", [...records, { version, choice, at: now }]);
  }

  /** A history has lost something: what was learnt with it is forgotten, and what was prepared
   * with it does not leave. */
  private async startAnew(now: number): Promise<void> {
    this.forgetVectors();
    const { choice, version } = await this.choice();
    if (version) await this.addChoice(choice, now);
    await this.dropOutdated("a history was changed");
  }

  private async dropOutdated(reason: string): Promise<void> {
    const latest = await this.latest();
    if (latest?.state === "prepared" && latest.consent < (await this.choice()).version) {
      await this.drop(latest, reason);
    }
  }

  // --- catalogue and history --------------------------------------------------------------------

  /** Keep the latest time of each. */
  async visited(items: readonly (readonly [item: string, at: number | null])[]): Promise<void> {
    const visits = await this.visits();
    for (const [item, at] of items) {
      if (!item || item.length > LONGEST_NAME) {
        throw new DataError(`an item's id has 1 to ${LONGEST_NAME} signs; nothing was kept`);
      }
      if (at !== null && !Number.isSafeInteger(at)) {
        throw new DataError("a time is a whole number of seconds; nothing was kept");
      }
      const before = visits.get(item);
      const later = before === undefined || before === null || (at !== null && at > before);
      if (later) visits.set(item, at ?? before ?? null);
    }
    this.draft.write("history", [...visits]);
  }

  /** Forget that she has these; how many she had. A report that was prepared does not leave. */
  async removed(items: readonly string[] | "all", now: number): Promise<number> {
    const visits = await this.visits();
    const gone = items === "all" ? [...visits.keys()] : items.filter((item) => visits.has(item));
    for (const item of gone) visits.delete(item);
    if (gone.length) {
      this.draft.write("history", [...visits]);
      await this.startAnew(now);
    }
    return gone.length;
  }

  /** A title that an item had stays a name for it: what is never sent by that name does not leave
   * when it is called otherwise, or is gone. */
  async setCatalogue(catalogue: Catalogue, now: number): Promise<void> {
    if (new Set(catalogue.items.map(([id]) => id)).size < catalogue.items.length) {
      throw new DataError("a catalogue must not name two items alike; nothing is sent");
    }
    const before = await this.keptBack();
    const titles = new Map(catalogue.items);
    const had = await this.formerTitles();
    for (const [id, title] of (await this.catalogue()).items) {
      const known = had.get(id) ?? [];
      const lost = title && titles.get(id) !== title && !known.includes(title);
      if (lost) had.set(id, [...known, title]);
    }
    this.draft.write("titles", [...had]);
    this.draft.write("catalogue", catalogue);
    const after = await this.keptBack();
    if ([...after].some((item) => !before.has(item))) await this.startAnew(now);
  }

  /** What is in her history and never sent. */
  private async keptBack(): Promise<Set<string>> {
    const { neverSend } = (await this.choice()).choice;
    const visits = await this.visits();
    const found = new Set(neverSend.filter((name) => visits.has(name)));
    const { items } = await this.catalogue();
    for (const place of await this.placesNamed(neverSend)) {
      const id = items[place]?.[0];
      if (id !== undefined && visits.has(id)) found.add(id);
    }
    return found;
  }

  // --- terms and model --------------------------------------------------------------------------

  async addTerms(terms: Terms, now: number): Promise<void> {
    const before = await this.allTerms();
    const era = (before.at(-1)?.era ?? -1) + 1;
    this.draft.write("terms", [...before, { era, table: termsTable(terms), at: now }]);
  }

  keepModel(view: ModelView): void {
    const content = new Uint8Array(12 + view.items.byteLength);
    new Uint32Array(content.buffer, 0, 3).set([view.round, view.rows, view.width]);
    const { buffer, byteOffset, byteLength } = view.items;
    content.set(new Uint8Array(buffer, byteOffset, byteLength), 12);
    this.draft.put("model", content);
  }

  forgetModel(): void {
    this.draft.put("model", null);
  }

  keepVector(which: "vector" | "learnt", vector: Float32Array | null): void {
    this.draft.put(which, vector && new Uint8Array(Float32Array.from(vector).buffer));
  }

  /** The secret of this store, from which all is drawn. Made at once, so that copies of the store
   * have the same one. */
  async ownSecret(): Promise<Bytes> {
    const kept = await this.secret();
    if (kept !== null) return kept;
    const drawn = randomBytes(SECRET_BYTES);
    this.keepSecret(drawn);
    return drawn;
  }

  keepSecret(secret: Bytes): void {
    this.draft.put("secret", secret);
  }

  forgetVectors(): void {
    this.keepVector("vector", null);
    this.keepVector("learnt", null);
  }

  // --- the book ---------------------------------------------------------------------------------

  /** Write a prepared round with its message. One that was dropped makes room for it. */
  async add(entry: Round, message: Bytes): Promise<void> {
    const rounds = await this.rounds();
    const place = rounds.findIndex((one) => sameKey(one, entry));
    await this.setRow("rounds", place < 0 ? rounds.length : place, entry);
    this.draft.put("message", message);
  }

  /** Forget a prepared round: nothing of it has left, and nothing will. */
  async drop(entry: Round, reason: string): Promise<void> {
    const nothing: Contents = { items: [], weight: [] };
    const released = { ...entry.released, positiveRows: 0, negativeRows: 0, bytes: 0, epsilon: 0 };
    const dropped: Round = { ...entry, state: "dropped", reason, contents: nothing, released };
    await this.replace(dropped);
    this.keepVector("learnt", null);
    this.forgetMessage();
  }

  forgetMessage(): void {
    this.draft.put("message", null);
  }

  /** Book a prepared round as left: it counts towards the budget from here on. */
  async markLeft(entry: Round, now: number): Promise<void> {
    await this.replace({ ...entry, state: "left", leftAt: now, reason: "" });
    const { totals, spent } = await this.budget();
    const { kind, positiveRows, negativeRows, bytes, epsilon } = entry.released;
    const none = { kind, releases: 0, positiveRows: 0, negativeRows: 0, bytes: 0, epsilon: 0 };
    const so = totals.find((one) => one.kind === kind) ?? none;
    const after: Totals = {
      kind,
      releases: so.releases + 1,
      positiveRows: so.positiveRows + positiveRows,
      negativeRows: so.negativeRows + negativeRows,
      bytes: so.bytes + bytes,
      epsilon: so.epsilon + epsilon,
    };
    const costs = new Map(spent);
    if (epsilon > 0 && Number.isFinite(epsilon)) costs.set(epsilon, (costs.get(epsilon) ?? 0) + 1);
    const others = totals.filter((one) => one.kind !== kind);
    this.draft.write("budget", { totals: [...others, after], spent: [...costs] });
  }

  async setState(entry: Round, state: State, reason: string): Promise<void> {
    await this.replace({ ...entry, state, reason });
  }

  /** Note the bytes in which a report leaves. */
  async sentAs(entry: Round, bytes: number, sha256: string): Promise<void> {
    await this.replace({ ...entry, bodyBytes: bytes, bodySha256: sha256 });
  }

  async addContact(contact: Contact): Promise<void> {
    await this.setRow("contacts", (await this.contacts()).length, contact);
  }

  private async replace(entry: Round): Promise<void> {
    const place = (await this.rounds()).findIndex((one) => sameKey(one, entry));
    if (place < 0) throw new DataError("this round is not in the book");
    await this.setRow("rounds", place, entry);
  }

  private async setRow<T>(name: string, at: number, row: T): Promise<void> {
    const place = `${name}/${Math.floor(at / CHUNK)}`;
    const rows = (await this.view.json<T[]>(place)) ?? [];
    rows[at % CHUNK] = row;
    this.draft.write(place, rows);
  }
}
