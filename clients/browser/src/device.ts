/**
 * A device: it asks the server whether there is a round, learns at home, and sends what its owner
 * permits. Nothing is sent, not even an enrolment, for an owner who takes no part or has not agreed
 * to the terms: such a device only reads what is published.
 *
 * What is sent is let go by the door, which has it on record before its first byte leaves. A report
 * is durable in the store, and sent again, the very same bytes, until the server has said what
 * became of it; so a tab may be closed at any moment.
 */

import { type Bytes, fromHex, toHex, u32s, utf8 } from "./bytes.ts";
import { randomBytes, type SigningKey, sha256 } from "./crypto.ts";
import { type Booked, checkShape, Door, type Nothing, type Prepared } from "./door.ts";
import {
  ConsentError,
  KeyTrouble,
  MessageError,
  SottovoceError,
  Unreachable,
  Unsupported,
  UsageError,
} from "./errors.ts";
import { compareKeys } from "./ledger.ts";
import { requireRoom } from "./masking.ts";
import { challengeFromTable, placeRequest } from "./places.ts";
import { type Marks, type Membership, Reading, Writing } from "./store/records.ts";
import type { Vault } from "./store/vault.ts";
import { type Answer, Busy, good, type Transport } from "./transport.ts";
import {
  catalogueFromTable,
  catalogueLimit,
  requireSamePlaces,
  withFormerCategories,
} from "./wire/catalogue.ts";
import { descriptorFromTable } from "./wire/descriptor.ts";
import { PROTOCOL } from "./wire/frames.ts";
import { DIGEST_HEADER, digestOf, prove, sealEnvelope } from "./wire/signing.ts";
import { mostNumbers, termsDigest, termsFromTable } from "./wire/terms.ts";
import { ROUNDS, words } from "./waiting.ts";
import type { Descriptor, ModelView, Terms } from "./wire/types.ts";
import { decodeModel, fullSize } from "./wire/versions.ts";

const REFRESH_SECONDS = 86_400;
const CHECK_IN_SECONDS = 3600;
const ASK_SECONDS = 86_400;
const LARGEST_LIST = 1 << 26;
/** Bytes of a model: a tab holds it in memory a few times over. */
const LARGEST_MODEL = 1 << 26;
const NONCE_BYTES = 16;
const OUT = "shut_out";

/** What the loop tells: an event and its details, none of them private. */
export type Log = (event: string, details: Readonly<Record<string, unknown>>) => void;

/** Why no report is among what would leave. */
export type Why =
  | ""
  | "stopped"
  | "no part"
  | "no place"
  | "not agreed"
  | "no round"
  | "not asked"
  | "sent"
  | "nothing"
  | "choice"
  | "shut out";

export interface ShownMessage {
  readonly what: Booked["what"];
  readonly to: "server";
  readonly body: Bytes;
}

/** What would leave now. */
export interface Shown {
  readonly messages: readonly ShownMessage[];
  readonly report: Prepared | null;
  readonly why: Why;
  /** The same in a sentence, where the device has more to say. */
  readonly detail: string;
  /** Another for other bytes; empty where nothing would leave. */
  readonly name: string;
}

/** The server takes nothing from this device. */
export class ShutOut extends SottovoceError {}

export class Device {
  #known: Terms | null = null;
  #learning: ModelView | null = null;
  #asked: { key: string; asked: boolean } | null = null;
  #presence: { key: string; nonce: Bytes } | null = null;
  /** What enrols this device without an invitation, until when it is good. */
  #place: { body: Bytes; until: number } | null = null;
  #returned = true;
  #agreed: string | null = null;
  #asksIn = true;
  #roster = "";
  #said = "";
  #waits = "";

  constructor(
    readonly vault: Vault,
    readonly door: Door,
    readonly transport: Transport,
    private readonly signing: SigningKey,
    private readonly clock: () => number,
    private readonly log: Log = () => undefined,
  ) {}

  // --- what a device reads of what is published --------------------------------------------------

  /** Where the federation is. Sends nothing of hers. */
  async look(): Promise<Descriptor> {
    const answer = good(await this.#round(), this.transport.url);
    const now = await descriptorFromTable(answer.table());
    const expected = (await this.#membership()).federation;
    if (expected && now.federation !== expected) {
      throw new MessageError(
        `the server at ${this.transport.url} serves another federation than the one that this device belongs to; nothing was sent to it`,
      );
    }
    this.#roster = now.roster;
    return now;
  }

  async #round(): Promise<Answer> {
    try {
      return await this.transport.get("/v1/round");
    } catch (error) {
      if (error instanceof Unreachable && !(error instanceof Busy)) this.#sayWaits("no_server");
      throw error;
    }
  }

  /** Log for what the federation's rounds wait, once, in the words of its operator. */
  #sayWaits(kind: string): void {
    if (kind && kind !== this.#waits) {
      this.log("round waits", { kind: Object.hasOwn(ROUNDS, kind) ? kind : "other", why: words(kind) });
    }
    this.#waits = kind;
  }

  /** The same, and what is published is kept: terms, catalogue and model. */
  async read(): Promise<Descriptor> {
    const now = await this.look();
    await this.#refresh(now, await this.#meet(now));
    return now;
  }

  /** The terms that this device goes by. Others than those that are known raise until the owner
   * agrees; until then she has what is published, as far as it fits hers. */
  async #meet(now: Descriptor): Promise<Terms> {
    const kept = await this.door.terms();
    const pending = await this.door.pending();
    let terms = this.#known ?? kept;
    if (kept === null || pending !== null || termsDigest(kept) !== now.terms) {
      const answer = good(await this.transport.get("/v1/terms"), this.transport.url);
      const told = termsFromTable(answer.table());
      if (termsDigest(told) !== now.terms || told.federation !== now.federation) {
        throw new Unreachable(
          `the server at ${this.transport.url} is about to change its terms, or shows others than it goes by; nothing was sent`,
        );
      }
      requireFits(told);
      await this.#join(told);
      try {
        await this.door.meet(told);
      } catch (error) {
        if (error instanceof ConsentError && kept !== null && isAsLarge(kept, told)) {
          await this.#knowCatalogue(now, kept);
          await this.#refresh(now, kept);
        }
        throw error;
      }
      terms = told;
    } else {
      terms = kept;
    }
    this.#known = terms;
    await this.#knowCatalogue(now, terms);
    return terms;
  }

  /** Whoever came without an invitation belongs to the federation that she has seen first. */
  async #join(terms: Terms): Promise<void> {
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const member = await store.membership();
      if (member !== null && !member.federation) {
        store.setMembership({ ...member, federation: terms.federation });
      }
    });
  }

  async #knowCatalogue(now: Descriptor, terms: Terms): Promise<void> {
    const [many, marks] = await this.vault.read(async (view) => {
      const store = new Reading(view);
      return [(await store.catalogue()).items.length, await store.marks()] as const;
    });
    if (many === terms.nItems && marks.catalogue === now.catalogue) return;
    const limit = catalogueLimit(terms.nItems);
    const answer = good(await this.transport.get("/v1/catalogue", limit), this.transport.url);
    if (now.catalogue && toHex(await sha256(answer.body)) !== now.catalogue) {
      // A cache on the way may have the one before, which must not be taken for this one.
      throw new Unreachable(
        `the server at ${this.transport.url} is about to change its catalogue; nothing was sent`,
      );
    }
    const told = catalogueFromTable(answer.table(), terms.nItems);
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const before = await store.catalogue();
      // More places come behind those that are known; none in the place of another.
      if (before.items.length) requireSamePlaces(before.items, told.items);
      // Else a server could let leave what its owner never sends.
      const known = before.categories.length ? before.categories : before.items.map(() => []);
      const after = withFormerCategories(before.items, known, told.items, told.categories);
      await store.setCatalogue({ items: told.items, categories: after }, this.#now);
      await store.mark({ catalogue: now.catalogue });
    });
  }

  /** The model to learn from in the round. Where recommendations are made by an earlier one, that
   * stays in the store, and this one is not kept. With `changes`, only what changed is asked for, by
   * the number of the version that is there. The server chose that number: by one for each device it
   * would know them again. So only who tells the server who it is, in this very visit, may say it. */
  async #model(now: Descriptor, terms: Terms, changes = false): Promise<ModelView> {
    if (now.published === null || now.published === now.model) {
      return this.#keep(now.model, terms, changes);
    }
    if (this.#learning === null || this.#learning.round !== now.model) {
      this.#learning = null;
      this.#learning = await this.#fetch(now.model, terms, changes ? await this.#kept() : null);
    }
    return this.#learning;
  }

  /** The published model, in the store. */
  async #keep(round: number, terms: Terms, changes: boolean): Promise<ModelView> {
    const kept = await this.#kept();
    if (kept !== null && kept.round === round && kept.rows === terms.nItems) return kept;
    const view = await this.#fetch(round, terms, changes ? kept : null);
    checkShape(view, terms);
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      store.keepModel(view);
      await store.mark({ refreshed: this.#now });
    });
    this.log("model", { round });
    return view;
  }

  /** A model; with the one that is there, only what changed, where that is shorter. */
  async #fetch(round: number, terms: Terms, kept: ModelView | null): Promise<ModelView> {
    const fits = kept && kept.round <= round && kept.rows === terms.nItems;
    const have = fits && kept.width === terms.width ? kept : null;
    try {
      return await this.#download(round, terms, have);
    } catch (error) {
      if (have === null || !(error instanceof MessageError)) throw error;
      return this.#download(round, terms, null);
    }
  }

  async #download(round: number, terms: Terms, kept: ModelView | null): Promise<ModelView> {
    const limit = fullSize(terms.nItems, terms.width) + terms.nItems + 1024;
    const since = kept === null ? "" : `?since=${kept.round}`;
    const answer = await this.transport.get(`/v1/model/${round}${since}`, limit);
    if (answer.status === 404 || answer.status === 410) {
      throw new Busy("the round went on while its model was asked for", 0);
    }
    const { body } = good(answer, this.transport.url);
    const view = decodeModel(body, terms.nItems, terms.width, kept);
    if (view.round !== round) throw new MessageError("the server sent the model of another round");
    return view;
  }

  /** Keep a model for recommendations while offline: the published version, or, where every model
   * is published, the last one, or one a day old. */
  async #refresh(now: Descriptor, terms: Terms, changes = false): Promise<void> {
    const kept = (await this.#kept())?.round ?? null;
    if (now.published !== null) {
      if (kept !== now.published) await this.#keep(now.published, terms, changes);
      return;
    }
    const { refreshed } = await this.#marks();
    const last = now.state === "finished" && kept !== now.model;
    if (kept === null || last || this.#older(refreshed, REFRESH_SECONDS)) {
      await this.#model(now, terms);
    }
  }

  // --- a visit -----------------------------------------------------------------------------------

  /** Ask once, and do what there is to do; null where its owner has stopped everything. */
  async visit(): Promise<Descriptor | null> {
    if ((await this.#marks()).stopped) return null;
    const now = await this.look();
    this.#sayWaits(now.waits);
    const terms = await this.#meet(now);
    if (await this.#takesPart()) {
      try {
        await this.door.requireAgreed();
        // Whoever has not said to be there since is not asked under changed terms.
        this.#returned ||= this.#agreed !== null && this.#agreed !== now.terms;
        this.#agreed = now.terms;
        await this.#serve(now, terms);
      } catch (error) {
        if (error instanceof ConsentError) {
          await this.#refresh(now, terms);
          if (await this.#takesPart()) throw error;
          return now; // she has changed her mind meanwhile
        }
        if (!(error instanceof ShutOut)) throw error; // recommendations go on
      }
    }
    await this.#refresh(now, terms);
    return now;
  }

  /** What there is to do for one who takes part and has agreed. */
  async #serve(now: Descriptor, terms: Terms): Promise<void> {
    if (now.state === "open") await this.door.follow(now.round, now.attempt);
    const why = await this.door.objection(terms);
    if (why) {
      this.#sayOnce(now, why);
      return;
    }
    await this.#enrol();
    const before = await this.door.unresolved();
    if (before !== null) await this.#send(before);
    if (now.state === "open") await this.#takePart(now, terms);
    else if (now.state === "waiting" && now.round + now.attempt > 0) await this.#waitWith(now);
    if (await this.#rosterIsNew()) await this.#sayPresent(now, randomBytes(NONCE_BYTES));
  }

  async #takePart(now: Descriptor, terms: Terms): Promise<void> {
    const latest = await this.door.latest();
    const same = latest && compareKeys([latest.round, latest.attempt], keyOf(now)) === 0;
    if (same) {
      if (latest.state === "arrived" || latest.state === "refused") return;
    } else if (!(await this.#isAsked(now))) {
      await this.#checkIn(now);
      return;
    }
    if (now.published !== null) await this.#refresh(now, terms, true);
    const view = await this.#model(now, terms, true);
    let prepared: Prepared | Nothing;
    try {
      prepared = await this.door.prepare(view, now.attempt);
    } catch (error) {
      if (!(error instanceof ConsentError)) throw error;
      this.#sayOnce(now, error.message);
      return;
    }
    if ("nothing" in prepared) this.#sayOnce(now, words(prepared.nothing));
    else if (prepared.round.state === "prepared" || prepared.round.state === "left") {
      await this.#send(prepared);
    }
  }

  // --- what leaves -------------------------------------------------------------------------------

  /** Once: the invitation's token for the right to sign with this device's own key. */
  async #enrol(): Promise<void> {
    const marks = await this.#marks();
    if (marks.enrolled !== undefined) return;
    const out = marks.shutOut;
    if (out !== undefined && !this.#asksIn) {
      const lately = Math.abs(this.clock() - out.asked) < ASK_SECONDS;
      if (lately && !(await this.#rosterIsNew())) throw new ShutOut(out.why);
    }
    const { number, invitation } = await this.#membership();
    const leaving = await this.door.contact("enrolment", await this.#enrolment());
    const answer = await this.transport.post("/v1/enrol", leaving);
    this.#place = null;
    if (answer.reason === OUT) throw await this.#toldOut(answer);
    if (answer.status === 403 && invitation === null) {
      throw new KeyTrouble(`the server has no place for this device: ${answer.detail}`);
    }
    if (answer.status === 403) {
      throw new KeyTrouble(
        "the server did not accept the invitation, which may have been used before; ask the operator for another one",
      );
    }
    const given = good(answer, this.transport.url).table()["number"];
    const counts = typeof given === "number" && Number.isInteger(given) && given >= 0;
    if (!counts || given >= 2 ** 32 || (number !== null && given !== number)) {
      throw new MessageError(
        "the server knows this device by another number than it has; ask the operator for another invitation",
      );
    }
    this.#asksIn = true;
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const member = await store.membership();
      if (member !== null) store.setMembership({ ...member, number: given });
      await store.mark({ enrolled: this.#now, shutOut: undefined, checkedIn: this.#now });
    });
    this.#returned = false;
    await this.#keepRoster();
    this.log(out === undefined ? "enrolled" : "let in again", {});
  }

  async #enrolment(): Promise<Bytes> {
    const { invitation } = await this.#membership();
    if (invitation === null) return this.#placeAsked();
    const { token, federation } = invitation;
    const proof = await prove(this.signing, federation, fromHex(token));
    const content = {
      protocol: PROTOCOL,
      token,
      public_key: toHex(this.signing.publicKey),
      signature: toHex(proof),
    };
    return utf8(JSON.stringify(content));
  }

  /** The same of a device that was not invited. Who asks for a challenge is not named. */
  async #placeAsked(): Promise<Bytes> {
    if (this.#place !== null && this.clock() < this.#place.until) return this.#place.body;
    const { federation } = await this.#membership();
    const asked = this.clock();
    const answer = await this.transport.get("/v1/challenge");
    if (answer.reason === "no_place") {
      throw new KeyTrouble(`the server has no place for this device: ${answer.detail}`);
    }
    const told = good(answer, this.transport.url).table();
    const challenge = challengeFromTable(told, federation);
    const body = await placeRequest(this.signing, federation, challenge);
    this.#place = { body, until: asked + challenge.seconds / 2 };
    return body;
  }

  /** The server has shut this device out, and nothing leaves any more: but for a question whether
   * that still holds, when the tab is opened, when somebody was shut out or let in, and once a
   * day. */
  async #toldOut(answer: Answer): Promise<ShutOut> {
    const before = (await this.#marks()).shutOut;
    const now = this.#now;
    const out = { why: answer.detail, since: before?.since ?? now, asked: now };
    await this.#mark({ shutOut: out, enrolled: undefined });
    await this.#keepRoster();
    if (this.#asksIn) this.log("shut out", { why: answer.detail });
    this.#asksIn = false;
    return new ShutOut(answer.detail);
  }

  /** Let a report leave, and write down what became of it. */
  async #send(prepared: Prepared): Promise<void> {
    const { round, attempt } = prepared.round;
    let leaving: Awaited<ReturnType<Door["leaving"]>>;
    try {
      leaving = await this.door.leaving(prepared);
    } catch (error) {
      if (!(error instanceof ConsentError)) throw error;
      this.log("nothing sent", { round, why: error.message });
      return;
    }
    const told = { [DIGEST_HEADER]: await digestOf(prepared.body) };
    const answer = await this.transport.post("/v1/reports", leaving, told);
    const details = { round, attempt, bytes: leaving.length };
    const taken = answer.status >= 200 && answer.status < 300;
    if (taken || (answer.status === 409 && answer.reason === "replay")) {
      await this.door.arrived(round, attempt);
      if (taken) await this.#keepRoster(); // else it says nothing of now
      this.log("counted", details);
      return;
    }
    if ([404, 405, 426].includes(answer.status)) good(answer, this.transport.url);
    if (answer.reason === "unknown_device") await this.#mark({ enrolled: undefined });
    const reason = answer.reason || `status ${answer.status}`;
    await this.door.refused(round, attempt, reason);
    this.log("refused", { ...details, reason, why: answer.detail });
    if (reason === OUT) throw await this.#toldOut(answer);
  }

  /** Whether this device is asked in the open round. */
  async #isAsked(now: Descriptor): Promise<boolean> {
    if (now.selection === "all") return true;
    const key = keyOf(now).join(".");
    if (this.#asked?.key !== key) {
      const path = `/v1/rounds/${now.round}/${now.attempt}/selected`;
      const answer = await this.transport.get(path, LARGEST_LIST);
      if (answer.status === 404 || answer.status === 410) return false;
      const { number } = await this.#membership();
      const list = u32s(good(answer, this.transport.url).body);
      const asked = number !== null && list.includes(number);
      this.#asked = { key, asked };
    }
    return this.#asked.asked;
  }

  /** Tell a server that may have given this device up that it is there: when the tab was opened,
   * and then at most once an hour. */
  async #checkIn(now: Descriptor): Promise<void> {
    const { checkedIn } = await this.#marks();
    if (!this.#older(checkedIn, CHECK_IN_SECONDS) && !this.#returned) return;
    await this.#sayPresent(now, randomBytes(NONCE_BYTES));
  }

  /** The server may be waiting for those it has given up: tell it once for each attempt, however
   * short ago it was told before, unless it has this device's report. */
  async #waitWith(now: Descriptor): Promise<void> {
    const latest = await this.door.latest();
    const same = latest && compareKeys([latest.round, latest.attempt], keyOf(now)) === 0;
    if (same && latest.state === "arrived") return;
    const here = keyOf(now).join(".");
    const told = (await this.#marks()).waited === here;
    this.#returned ||= !told;
    await this.#checkIn(now);
    if (!told) await this.#mark({ waited: here });
  }

  async #sayPresent(now: Descriptor, nonce: Bytes): Promise<void> {
    const leaving = await this.door.contact("check-in", await this.#present(now, nonce));
    const answer = await this.transport.post("/v1/checkin", leaving);
    if (answer.reason === OUT) throw await this.#toldOut(answer);
    if (answer.reason === "unknown_device") await this.#mark({ enrolled: undefined });
    if (answer.reason === "late") return; // the next visit sees where the server is
    good(answer, this.transport.url);
    this.#returned = false;
    await this.#mark({ checkedIn: this.#now });
    await this.#keepRoster();
    this.log("checked in", { round: now.round });
  }

  async #present(now: Descriptor, nonce: Bytes): Promise<Bytes> {
    const { number, federation } = await this.#membership();
    if (number === null) throw new UsageError("the server has given this device no number yet");
    const body = new Uint8Array(0);
    const about = { number, round: now.round, attempt: now.attempt, nonce, body };
    return sealEnvelope(this.signing, federation, "check-in", about);
  }

  // --- in its owner's hand -----------------------------------------------------------------------

  /** What would leave now, by the door and in the store, so that it is the very same bytes that
   * leave when she says so. Asks for what is published and sends nothing of hers. */
  async show(): Promise<Shown> {
    return (await this.#shown()).shown;
  }

  /** Send what was shown under this name. Raises, and nothing leaves, where something else would
   * leave by now. */
  async press(name: string): Promise<Shown> {
    const { shown, now } = await this.#shown();
    if (!name || shown.name !== name || now === null) {
      throw new ConsentError(
        "what would leave is not what was shown any more, so that nothing was sent; look again",
      );
    }
    for (const { what } of shown.messages) {
      if (what === "enrolment") {
        this.#asksIn = true; // she does
        await this.#enrol();
      } else if (what === "check-in" && this.#presence !== null) {
        await this.#sayPresent(now, this.#presence.nonce);
        this.#presence = null;
      } else if (shown.report !== null) await this.#send(shown.report);
    }
    return shown;
  }

  async #shown(): Promise<{ shown: Shown; now: Descriptor | null }> {
    const only = async (why: Why, detail = "") => named([], null, why, detail);
    if ((await this.#marks()).stopped) return { shown: await only("stopped"), now: null };
    const now = await this.look();
    let terms: Terms;
    try {
      terms = await this.#meet(now);
    } catch (error) {
      if (!(error instanceof ConsentError)) throw error;
      return { shown: await only("not agreed", error.message), now };
    }
    await this.#refresh(now, terms);
    if (!(await this.#takesPart())) return { shown: await only("no part"), now };
    if ((await this.door.pending()) !== null) return { shown: await only("not agreed"), now };
    const why = await this.door.objection(terms);
    if (why) return { shown: await only("choice", why), now };
    return { shown: await this.#wouldLeave(now, terms), now };
  }

  /** For one who takes part and has agreed. */
  async #wouldLeave(now: Descriptor, terms: Terms): Promise<Shown> {
    if (now.state === "open") await this.door.follow(now.round, now.attempt);
    const messages: ShownMessage[] = [];
    const marks = await this.#marks();
    if (marks.enrolled === undefined) {
      messages.push({ what: "enrolment", to: "server", body: await this.#enrolment() });
      if (marks.shutOut !== undefined) return named(messages, null, "shut out", "");
      const { number } = await this.#membership();
      if (number === null) return named(messages, null, "no place", "");
    }
    const { report, why, detail } = await this.#report(now, terms);
    if (report !== null) messages.push({ what: "report", to: "server", body: report.body });
    else if (why === "not asked" && !messages.length) {
      const key = keyOf(now).join(".");
      if (this.#presence?.key !== key) this.#presence = { key, nonce: randomBytes(NONCE_BYTES) };
      const body = await this.#present(now, this.#presence.nonce);
      messages.push({ what: "check-in", to: "server", body });
    }
    return named(messages, report, why, detail);
  }

  async #report(
    now: Descriptor,
    terms: Terms,
  ): Promise<{ report: Prepared | null; why: Why; detail: string }> {
    const before = await this.door.unresolved();
    if (before !== null) return { report: before, why: "", detail: "" };
    const none = (why: Why, detail = "") => ({ report: null, why, detail });
    if (now.state !== "open") return none("no round");
    const latest = await this.door.latest();
    const same = latest && compareKeys([latest.round, latest.attempt], keyOf(now)) === 0;
    if (same) {
      if (latest.state === "arrived" || latest.state === "refused") return none("sent");
    } else if (!(await this.#isAsked(now))) return none("not asked");
    const view = await this.#model(now, terms);
    try {
      const report = await this.door.prepare(view, now.attempt);
      return "nothing" in report ? none("nothing", words(report.nothing)) : { report, why: "", detail: "" };
    } catch (error) {
      if (!(error instanceof ConsentError)) throw error;
      return none("choice", error.message);
    }
  }

  // --- helpers -----------------------------------------------------------------------------------

  get #now(): number {
    return Math.floor(this.clock());
  }

  #membership(): Promise<Membership> {
    return this.vault.read(async (view) => {
      const found = await new Reading(view).membership();
      if (found === null) throw new UsageError("this device belongs to no federation yet");
      return found;
    });
  }

  #marks(): Promise<Marks> {
    return this.vault.read((view) => new Reading(view).marks());
  }

  #mark(marks: Parameters<Writing["mark"]>[0]): Promise<void> {
    return this.vault.change((draft) => new Writing(draft).mark(marks));
  }

  #kept(): Promise<ModelView | null> {
    return this.vault.read((view) => new Reading(view).model());
  }

  #takesPart(): Promise<boolean> {
    return this.vault.read(async (view) => (await new Reading(view).choice()).choice.takesPart);
  }

  /** Whether somebody was shut out or let in since the server last told this device that it is in,
   * or out. */
  async #rosterIsNew(): Promise<boolean> {
    return this.#roster !== "" && (await this.#marks()).roster !== this.#roster;
  }

  /** The server has told this device so just now. */
  async #keepRoster(): Promise<void> {
    if (await this.#rosterIsNew()) await this.#mark({ roster: this.#roster });
  }

  /** Whether what was stamped lies so far back; a clock that jumped counts as far. */
  #older(stamped: number | undefined, seconds: number): boolean {
    return stamped === undefined || Math.abs(this.clock() - stamped) >= seconds;
  }

  #sayOnce(now: Descriptor, why: string): void {
    const said = `${now.round}.${now.attempt} ${why}`;
    if (this.#said !== said) this.log("nothing sent", { round: now.round, why });
    this.#said = said;
  }
}

/** Raises where a federation is too large for a tab, before anything of it is fetched or sent. */
function requireFits({ algorithm, nItems, width, link }: Terms): void {
  const bytes = 4 * nItems * width;
  if (bytes > LARGEST_MODEL) {
    throw new Unsupported(
      `this federation has a model of ${Math.ceil(bytes / 2 ** 20)} MiB, and a browser tab takes at most ${LARGEST_MODEL / 2 ** 20}: it cannot take part, and nothing was sent`,
    );
  }
  if (link.name === "secure-sum") requireRoom(mostNumbers(algorithm, nItems));
  if (algorithm.name === "fpl") requireRoom(2 * algorithm.triples * width);
}

function keyOf(now: Descriptor): readonly [number, number] {
  return [now.round, now.attempt];
}

/** Whether what a server publishes under the others serves at home under these, too. */
function isAsLarge(terms: Terms, others: Terms): boolean {
  const of = (one: Terms) =>
    [one.federation, one.algorithm.name, one.width, one.nItems].join("\0");
  return of(terms) === of(others);
}

async function named(
  messages: readonly ShownMessage[],
  report: Prepared | null,
  why: Why,
  detail: string,
): Promise<Shown> {
  if (!messages.length) return { messages, report, why, detail, name: "" };
  let text = report?.round.nonce ?? "";
  for (const { what, body } of messages) text += ` ${what} ${toHex(await sha256(body))}`;
  const name = toHex(await sha256(utf8(text))).slice(0, 32);
  return { messages, report, why, detail, name };
}
