/**
 * The one door. Everything that leaves this device leaves here; nothing else makes a `Leaving`, and
 * a transport takes nothing else.
 *
 * What the algorithm could tell is worked out from the history without what is never sent, as if
 * she had never had it. It is scaled by her own ε, cut and masked; the budget is read, the round is
 * written down as prepared with the very bytes, and when these are about to leave, consent, terms
 * and budget are read again and the round is booked as left: in one step, durable before the first
 * byte leaves. What has left is spent, whatever becomes of it. What only says that this device is
 * there (an enrolment, a check-in) passes here, too, and is on record.
 */

import {
  type Before,
  hasRoom,
  isOwn,
  type OwnTerms,
  restsUntil,
  spentSoFar,
  spentUnder,
} from "./budget.ts";
import { type Bytes, concat, fromHex, toHex, u32, utf8 } from "./bytes.ts";
import { cut, numbersOf, whole } from "./contributions.ts";
import { blake2b, type SigningKey, sha256 } from "./crypto.ts";
import { markOf, OwnEpsilon, wasIn } from "./epsilon.ts";
import { ConsentError, DataError, MessageError, Unsupported } from "./errors.ts";
import { Fpl } from "./fpl.ts";
import { Gram } from "./gram.ts";
import { type Contents, compareKeys, isGone, type Released, type Round } from "./ledger.ts";
import { masked, SEED_BYTES } from "./masking.ts";
import { Reading, Writing } from "./store/records.ts";
import type { Vault } from "./store/vault.ts";
import { Streams } from "./streams.ts";
import { SEALED_SEED_BYTES, sealMasked } from "./wire/masked.ts";
import { encodeReport } from "./wire/reports.ts";
import { sealEnvelope } from "./wire/signing.ts";
import { termsDigest, termsFromTable, termsTable } from "./wire/terms.ts";
import type { Choice, Contribution, History, ModelView, Terms } from "./wire/types.ts";

const NONCE_BYTES = 16;
const COUNTERS = 2 ** 32;
const TRIES = 5;
/** Bytes of an enrolment or a check-in: more than keys and signatures need. */
const LARGEST_CONTACT = 2048;
const KEY = Symbol("the door");

/** What the store has on record of something that leaves. */
export interface Booked {
  readonly what: "report" | "enrolment" | "check-in";
  readonly bytes: number;
  readonly epsilon: number;
}

/** Bytes that may leave, and that are on record as having left. */
export class Leaving {
  readonly #body: Bytes;
  readonly booked: Booked;

  constructor(key: symbol, body: Bytes, booked: Booked) {
    if (key !== KEY || new.target !== Leaving) {
      throw new ConsentError("only the door lets anything leave; ask it, and send what it returns");
    }
    this.#body = body.slice();
    this.booked = Object.freeze({ ...booked });
    Object.freeze(this);
  }

  get length(): number {
    return this.#body.length;
  }

  /** The bytes, for a transport; raises where no door has let them go. */
  static body(leaving: unknown): Bytes {
    if (!(typeof leaving === "object" && leaving !== null && #body in leaving)) {
      throw new ConsentError("a device sends what its door has let go, and nothing else");
    }
    return leaving.#body.slice();
  }
}

Object.freeze(Leaving);
Object.freeze(Leaving.prototype);

/** A report that is ready to leave, or that has left already. */
export interface Prepared {
  readonly round: Round;
  /** The envelope, as it leaves. */
  readonly body: Bytes;
}

/** What a device knows when it works out what could leave. */
interface Home {
  readonly era: number;
  readonly terms: Terms;
  readonly latest: Round | null;
  readonly choice: Choice;
  readonly version: number;
  /** Without what is never sent. */
  readonly history: History;
  /** Whether something of her history is never sent. */
  readonly keptBack: boolean;
  readonly published: ModelView | null;
  readonly before: Before;
  readonly number: number;
  /** What she has learnt so far; null before anything was. */
  readonly vector: Float32Array | null;
  /** What she has learnt in the latest round. */
  readonly learnt: Float32Array | null;
}

/** Keys of a report that serve for it alone. */
interface Once {
  readonly nonce: Bytes;
  /** Of the mask, */
  readonly seed: Bytes;
  /** and of the seal around that seed. */
  readonly ephemeral: Bytes;
}

/** No message is made, for a reason of this kind (`waiting.ts`). */
export interface Nothing {
  readonly nothing: string;
}

interface Made {
  /** What the envelope carries. */
  readonly message: Bytes;
  readonly keys: Once;
  readonly released: Released;
  readonly contents: Contents;
  /** Her vector after the round, if it counts. */
  readonly learnt: Float32Array | null;
}

export class Door {
  constructor(
    readonly vault: Vault,
    private readonly signing: SigningKey,
    /** Seconds since 1970, by this device. */
    private readonly clock: () => number,
  ) {}

  get now(): number {
    return Math.floor(this.clock());
  }

  // --- terms: which the server showed, and which their owner has agreed to -----------------------

  /** The terms that this device goes by: those that she agreed to last or, before she has agreed to
   * any, the first that the server showed, which serve at home. */
  terms(): Promise<Terms | null> {
    return this.vault.read(async (view) => (await new Reading(view).latestTerms())?.terms ?? null);
  }

  /** Terms that wait for the owner's word; nothing leaves meanwhile. */
  pending(): Promise<Terms | null> {
    return this.vault.read((view) => pendingTerms(new Reading(view)));
  }

  /** The server shows its terms. They are kept for the owner to look at. Raises where they are
   * others than before: what may leave does not change behind her back. */
  async meet(terms: Terms): Promise<void> {
    const changed = await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const known = await store.latestTerms();
      if (known === null) await store.addTerms(terms, this.now);
      const other = known !== null && known.terms.canonical !== terms.canonical;
      const { offered } = await store.marks();
      if (other || offered !== undefined) {
        await store.mark({ offered: other ? termsTable(terms) : undefined });
      }
      return other;
    });
    if (changed) {
      throw new ConsentError(
        "the server changed the terms of the federation; look at what is new in them and agree, until then nothing leaves",
      );
    }
  }

  /** The owner has seen the terms of this digest and agrees to them. */
  async agree(digest: string): Promise<void> {
    const found = await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const known = await store.latestTerms();
      const { offered } = await store.marks();
      const shown = [known?.terms, offered === undefined ? undefined : termsFromTable(offered)];
      const current = offered === undefined ? shown[0] : shown[1];
      if (known === null || current === undefined || termsDigest(current) !== digest) return false;
      if (known.terms.canonical !== current.canonical) {
        await this.#settle(store, null);
        if (!sameSpace(known.terms, current)) {
          store.forgetVectors();
          store.forgetModel();
        }
        await store.addTerms(current, this.now);
      }
      await store.mark({ offered: undefined, agreed: digest, agreedAt: this.now });
      return true;
    });
    if (!found) {
      throw new ConsentError(
        "these are not the terms that the federation shows now; look at them again, nothing leaves until you agree",
      );
    }
  }

  /** The terms in force; raises where their owner has not agreed to them. */
  requireAgreed(): Promise<Terms> {
    return this.vault.read((view) => agreedTerms(new Reading(view)));
  }

  /** Why nothing can leave under her choice, in a sentence, so that nobody is told that she is
   * there; empty where something may. */
  objection(terms: Terms): Promise<string> {
    return this.vault.read(async (view) => {
      const { choice } = await new Reading(view).choice();
      return objectionTo(terms, choice);
    });
  }

  // --- rounds ------------------------------------------------------------------------------------

  /** One round through the door. The result is durable; asked again for the same round and attempt,
   * this gives the very same bytes. Returns why if nothing is to be sent. */
  async prepare(view: ModelView, attempt: number): Promise<Prepared | Nothing> {
    const terms = await this.requireAgreed();
    checkShape(view, terms);
    if (![view.round, attempt].every((n) => Number.isInteger(n) && n >= 0 && n < COUNTERS)) {
      throw new MessageError("a round's number and attempt must be 32-bit counters");
    }
    const asked = await digestOfModel(view);
    for (let tries = 0; tries < TRIES; tries++) {
      const again = await this.vault.change((draft) =>
        this.#again(new Writing(draft), view.round, attempt, asked),
      );
      if (again !== null) return again;
      const made = await this.#learn(view, attempt, asked);
      if (made !== null) return made;
    }
    throw new ConsentError("choices changed while the round was being prepared; try again");
  }

  /** The report, for a transport. Consent, terms and budget are read again: where a choice has
   * changed since, or a limit has no room, the round is dropped and this raises. Otherwise the
   * round is in the ledger and in the budget when this returns, once however often it is sent. */
  async leaving(prepared: Prepared): Promise<Leaving> {
    const digest = toHex(await sha256(prepared.body));
    const found = await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const entry = await latestOf(store, prepared.round.round, prepared.round.attempt);
      await agreedTerms(store);
      await requireWilling(store, "a report");
      const message = await store.message();
      if (entry.state === "dropped" || entry.nonce !== prepared.round.nonce || message === null) {
        return { why: `the report for round ${entry.round} was dropped; prepare anew` };
      }
      const { choice, version } = await store.choice();
      const { spent } = await store.budget();
      const cost = entry.released.epsilon;
      const beyond = entry.state === "prepared" && !hasRoom(cost, choice, { spent });
      if (version > entry.consent || beyond) {
        await this.#withdraw(store, entry);
        const why = beyond
          ? `the report for round ${entry.round} would cost more than the limit leaves, so that it does not leave`
          : `a choice was changed since the report for round ${entry.round} was prepared, so that it does not leave`;
        return { why };
      }
      if (entry.state === "prepared") {
        await store.sentAs(entry, message.length, digest);
        const booked = await latestOf(store, entry.round, entry.attempt);
        await store.markLeft(booked, this.now);
      } else if (entry.state === "refused") {
        await store.setState(entry, "left", "");
      }
      return { message, cost };
    });
    if (found.why !== undefined) throw new ConsentError(found.why);
    const { message, cost } = found;
    return new Leaving(KEY, message, { what: "report", bytes: message.length, epsilon: cost });
  }

  /** A request that says that this device is there, and has keys and signatures in it, nothing of a
   * history. Each gets its row before it leaves. */
  async contact(what: "enrolment" | "check-in", body: Bytes): Promise<Leaving> {
    if (body.length > LARGEST_CONTACT) {
      throw new ConsentError(`${what} of ${body.length} bytes has more in it than it should`);
    }
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      await agreedTerms(store);
      await requireWilling(store, what === "enrolment" ? "an enrolment" : "a check-in");
      await store.addContact({ what, party: "server", bytes: body.length, at: this.now });
    });
    return new Leaving(KEY, body, { what, bytes: body.length, epsilon: 0 });
  }

  /** The report was acknowledged: what was learnt counts. */
  async arrived(round: number, attempt: number): Promise<void> {
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const entry = await goneOf(store, round, attempt);
      if (entry !== null) await store.setState(entry, "arrived", "");
    });
  }

  /** The report does not count. What left stays in the ledger and in the budget. */
  async refused(round: number, attempt: number, reason: string): Promise<void> {
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const entry = await goneOf(store, round, attempt);
      if (entry !== null) await store.setState(entry, "refused", reason);
    });
  }

  /** The server says that this round is open: an earlier attempt at it was given up, also if it was
   * acknowledged, and what was prepared for an earlier one will not leave. */
  async follow(round: number, attempt: number): Promise<void> {
    await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const entry = await store.latest();
      if (entry === null || compareKeys([entry.round, entry.attempt], [round, attempt]) >= 0) return;
      if (entry.state === "prepared") await store.drop(entry, "overtaken");
      else if (entry.round === round && (entry.state === "left" || entry.state === "arrived")) {
        await store.setState(entry, "refused", "the server tried the round again");
      }
    });
  }

  /** The latest round, whatever became of it. */
  latest(): Promise<Round | null> {
    return this.vault.read((view) => new Reading(view).latest());
  }

  /** The report that has left, but of which nobody knows whether it arrived. */
  unresolved(): Promise<Prepared | null> {
    return this.vault.read(async (view) => {
      const store = new Reading(view);
      const entry = await store.latest();
      const body = await store.message();
      return entry?.state === "left" && body !== null ? { round: entry, body } : null;
    });
  }

  // --- helpers -----------------------------------------------------------------------------------

  /** What was prepared before for this round and attempt, if it may still leave. */
  async #again(
    store: Writing,
    round: number,
    attempt: number,
    asked: string,
  ): Promise<Prepared | null> {
    const entry = await store.latest();
    if (entry === null) return null;
    const order = compareKeys([entry.round, entry.attempt], [round, attempt]);
    if (order < 0) return null;
    if (order > 0) {
      throw new MessageError(
        `the server asks for attempt ${attempt} at round ${round}, which is over for this device: it has been in attempt ${entry.attempt} at round ${entry.round}; nothing is sent until the server goes on with a later one`,
      );
    }
    if (entry.state === "dropped") return null;
    if (entry.asked !== asked && isGone(entry)) {
      throw new MessageError(
        `the server asks for another model in round ${round}, attempt ${attempt}, than it did before; only a new attempt may do so, and nothing is sent`,
      );
    }
    const { version } = await store.choice();
    const body = await store.message();
    if (entry.asked === asked && version <= entry.consent && body !== null) {
      return { round: entry, body };
    }
    await this.#withdraw(store, entry);
    return null;
  }

  /** Through the door, and into the store; null if something has changed meanwhile. */
  async #learn(view: ModelView, attempt: number, asked: string): Promise<Prepared | Nothing | null> {
    const home = await this.vault.read((found) => homeOf(new Reading(found)));
    if (!home.choice.takesPart) return { nothing: "no_part" };
    const why = objectionTo(home.terms, home.choice);
    if (why) throw new ConsentError(why);
    const { latest } = home;
    const made = await this.#made(view, attempt, home);
    if ("nothing" in made) return made;
    const same = latest !== null && latest.round === view.round && latest.attempt === attempt;
    if (same && isGone(latest)) {
      throw new ConsentError(
        `a report for round ${view.round} has left already under an earlier choice; the new choice holds from the next round on`,
      );
    }
    const { nonce } = made.keys;
    const body = await this.#envelope(view.round, attempt, nonce, made.message);
    const entry: Round = {
      ...{ era: home.era, round: view.round, attempt, state: "prepared", asked },
      ...{ consent: home.version, nonce: toHex(nonce), sha256: toHex(await sha256(made.message)) },
      ...{ preparedAt: this.now, leftAt: null, reason: "", bodyBytes: 0, bodySha256: "" },
      ...{ released: made.released, contents: made.contents },
    };
    const kept = await this.vault.change(async (draft) => {
      const store = new Writing(draft);
      const { version } = await store.choice();
      const era = (await store.latestTerms())?.era;
      if (version !== home.version || era !== home.era) return false;
      if (!sameRound(await store.latest(), latest)) return false;
      await this.#settle(store, view.round);
      await store.add(entry, body);
      if (made.learnt !== null) store.keepVector("learnt", made.learnt);
      return true;
    });
    return kept ? { round: entry, body } : null;
  }

  /** What would leave, made from what she permits, or why nothing would. */
  async #made(view: ModelView, attempt: number, home: Home): Promise<Made | Nothing> {
    const { terms } = home;
    if (isOwn(terms)) return this.#contribution(view, attempt, home, terms);
    if (terms.algorithm.name === "fpl") return this.#rows(view, attempt, home);
    throw new Unsupported("a browser tab does not know the algorithm of this federation");
  }

  /** Rows of the model, of which no ε bounds what they tell. */
  async #rows(view: ModelView, attempt: number, home: Home): Promise<Made | Nothing> {
    const { terms, history, number, choice } = home;
    const fpl = new Fpl(terms);
    if (!fpl.able(history)) return { nothing: home.keptBack ? "kept_back" : "no_history" };
    const streams = await this.streams(home.era);
    const start = await this.#vectorFor(view.round, home, fpl);
    const updates = fpl.learn(view, history, start, streams, number);
    // Which of her items may ever leave is drawn once for all terms.
    const release = terms.release.name === "share-fraction" ? terms.release.per : "item";
    const drawn = release === "item" ? await this.streams(0) : streams;
    const rule = fpl.rule(history, choice.sharePositives, drawn, number, view.round);
    const rows = fpl.leaving(updates, rule);
    if (!updates.vector.every(Number.isFinite)) {
      throw new DataError("her vector ran off to infinity; nothing was sent");
    }
    let message: Bytes;
    const plain = encodeReport(view.round, rows.item, rows.values, view.width);
    const keys = await this.#keysOf(terms, view, attempt, plain);
    // A row is the number of its item and its values, of four bytes each.
    let bytes = rows.item.length * (4 + 4 * view.width);
    if (terms.link.name === "secure-sum") {
      const { seed, ephemeral } = keys;
      const numbers = fpl.reportShape(view);
      const hidden = masked(fpl.whole(view, rows), seed, terms.bits);
      const key = this.signing;
      message = await sealMasked(terms, attempt, view, hidden, numbers, seed, key, ephemeral);
      bytes = hidden.length + SEALED_SEED_BYTES;
    } else {
      message = plain;
    }
    const negativeRows = rows.item.length - rows.positive;
    return {
      ...{ message, keys },
      released: {
        ...{ kind: `share-${release}`, positiveRows: rows.positive, negativeRows },
        ...{ bytes, epsilon: Number.POSITIVE_INFINITY },
      },
      contents: ownRows(rows, view.width, history),
      learnt: updates.vector,
    };
  }

  /** What is drawn under the terms of this era, from a secret of this device alone. */
  async streams(era: number): Promise<Streams> {
    const root = new Streams(await this.#secret());
    return era ? root.child("terms", era) : root;
  }

  #secret(): Promise<Bytes> {
    return this.vault.change((draft) => new Writing(draft).ownSecret());
  }

  /** The same for the same content under the same terms, model, round and attempt. So a copy of this
   * store makes the very same bytes, which a server counts once; and no key serves two contents, from
   * whose difference a server could read how they differ. */
  async #keysOf(terms: Terms, view: ModelView, attempt: number, content: Bytes): Promise<Once> {
    const about = await Promise.all([
      sha256(utf8(terms.canonical)),
      digestOfModel(view).then(fromHex),
      sha256(content),
    ]);
    const root = blake2b(
      concat(utf8("report"), u32(view.round), u32(attempt), ...about), SEED_BYTES, await this.#secret(),
    );
    const key = (purpose: string) => blake2b(utf8(purpose), SEED_BYTES, root);
    return { nonce: key("nonce").slice(0, NONCE_BYTES), seed: key("seed"), ephemeral: key("seal") };
  }

  /** Her vector as a round starts with it, or (null) as it is now. */
  async #vectorFor(round: number | null, home: Home, fpl: Fpl): Promise<Float32Array> {
    const { latest, learnt, vector } = home;
    if (learnt !== null && latest?.state === "arrived" && latest.round !== round) return learnt;
    return vector ?? fpl.firstVector(await this.streams(0), home.number);
  }

  /** Her vector by which FPL recommends. Who takes no part, or never sends something, fits it to
   * the published model at home: nothing leaves by that. */
  async vectorAtHome(view: ModelView, terms: Terms, whole: History): Promise<Float32Array> {
    const fpl = new Fpl(terms);
    const home = await this.vault.read((found) => homeOf(new Reading(found)));
    const vector = await this.#vectorFor(null, home, fpl);
    const less = home.history.items.length < whole.items.length;
    const fits = (!home.choice.takesPart || less) && fpl.able(whole);
    return fits ? fpl.fit(view, whole, vector, await this.streams(0), home.number) : vector;
  }

  async #contribution(
    view: ModelView,
    attempt: number,
    home: Home,
    terms: OwnTerms,
  ): Promise<Made | Nothing> {
    const { choice, before } = home;
    const gram = new Gram(terms);
    const own = new OwnEpsilon(terms.release);
    const spent = spentUnder(terms, choice, before);
    if (!own.room(choice, spent, gram.shares, view.round, gram.batches)) {
      const mark = markOf(view.round, gram.shares.length, gram.batches);
      if (wasIn(spent.sent, mark)) return { nothing: "contributed" };
      if (spent.sent) return { nothing: "limit" };
      throw new ConsentError(
        `the limit on ε is reached: ${round10(spentSoFar(before))} of ${round10(choice.totalEpsilon)} is spent, and another round does not fit; nothing leaves any more`,
      );
    }
    const until = restsUntil(terms, home.era, view.round, before);
    if (until > this.now) {
      const day = new Date(until * 1000).toISOString().slice(0, 10);
      throw new ConsentError(
        `what left in an earlier period is too short ago: the next contribution may leave on ${day}, and nothing does until then`,
      );
    }
    const profile = gram.profile(view, home.history, home.published);
    const made = cut(profile, own.scale(choice.epsilon), "gram");
    const numbers = numbersOf(made.size, made.pairs);
    if (numbers !== gram.reportShape(view)) {
      throw new MessageError(
        "gram gave a profile of another size than the round's; nothing was sent",
      );
    }
    const epsilon = own.costs(choice, view.round, gram.shares, gram.batches, spent);
    const numbered = whole(made);
    const keys = await this.#keysOf(terms, view, attempt, new Uint8Array(numbered.slice().buffer));
    const { seed, ephemeral } = keys;
    const hidden = masked(numbered, seed, terms.bits);
    const key = this.signing;
    const message = await sealMasked(terms, attempt, view, hidden, numbers, seed, key, ephemeral);
    const bytes = hidden.length + SEALED_SEED_BYTES;
    return {
      ...{ message, keys },
      released: { kind: terms.release.name, positiveRows: made.items, negativeRows: 0, bytes, epsilon },
      contents: contentsOf(made, gram.itemsAt(view, made.place), home.history),
      learnt: null,
    };
  }

  async #envelope(round: number, attempt: number, nonce: Bytes, body: Bytes): Promise<Bytes> {
    const member = await this.vault.read((view) => new Reading(view).membership());
    if (member === null || member.number === null) {
      throw new ConsentError("the server has given this device no number yet; nothing leaves");
    }
    const { number } = member;
    const about = { number, round, attempt, nonce, body };
    return sealEnvelope(this.signing, member.federation, "report", about);
  }

  /** Close the latest round, because `round` (or, null, whatever comes next) begins. */
  async #settle(store: Writing, round: number | null): Promise<void> {
    const entry = await store.latest();
    if (entry === null) return;
    if (entry.state === "arrived" && entry.round !== round) {
      const learnt = await store.vector("learnt");
      if (learnt !== null) store.keepVector("vector", learnt);
    } else if (entry.state === "prepared") {
      await store.drop(entry, "overtaken");
    } else if (entry.state === "left" || entry.state === "arrived") {
      const again = entry.round === round;
      const reason = again ? "the server tried the round again" : "never confirmed";
      await store.setState(entry, "refused", reason);
    }
    store.keepVector("learnt", null);
    store.forgetMessage();
  }

  /** What has not left will not, and what may have left is not sent again. */
  async #withdraw(store: Writing, entry: Round): Promise<void> {
    if (entry.state === "prepared") {
      await store.drop(entry, "a choice was changed, or something else was asked for");
    } else if (entry.state === "left") {
      await store.setState(entry, "refused", "a choice was changed before it was confirmed");
    }
  }
}

/** Under which choices nothing leaves, although she takes part. */
export function objectionTo(terms: Terms, choice: Choice): string {
  if (terms.algorithm.name === "fpl") {
    if (terms.link.name === "secure-sum" && terms.link.noise > 0) {
      return "the sums of this federation have noise, whose price a browser tab cannot count yet: nothing leaves";
    }
    return choice.epsilon > 0
      ? "an ε is chosen, and this federation has no noise to keep to it: nothing leaves; choose an ε of 0"
      : "";
  }
  if (!isOwn(terms)) return "a browser tab does not know what leaves in this federation: nothing does";
  if (terms.release.parts > 0) {
    return "devices of this federation add noise themselves, which a browser tab does not do yet: nothing leaves";
  }
  if (choice.sharePositives > 0) {
    return "a share of items is chosen, to which this federation does not keep: nothing leaves; choose a share of 0";
  }
  return new OwnEpsilon(terms.release).objection(choice);
}

export function checkShape(view: ModelView, terms: Terms): void {
  if (view.rows !== terms.nItems || view.width !== terms.width) {
    throw new MessageError("the model has another shape than the federation's terms say");
  }
}

async function pendingTerms(store: Reading): Promise<Terms | null> {
  const { offered, agreed } = await store.marks();
  if (offered !== undefined) return termsFromTable(offered);
  const known = await store.latestTerms();
  return known === null || termsDigest(known.terms) === agreed ? null : known.terms;
}

async function agreedTerms(store: Reading): Promise<Terms> {
  const known = await store.latestTerms();
  if (known === null) {
    throw new ConsentError("this device has not seen the terms of any federation; nothing leaves");
  }
  if ((await pendingTerms(store)) !== null) {
    throw new ConsentError(
      "nobody has agreed to the terms of the federation yet; until then nothing leaves",
    );
  }
  return known.terms;
}

async function requireWilling(store: Reading, what: string): Promise<void> {
  const { stopped } = await store.marks();
  const { choice } = await store.choice();
  if (stopped || !choice.takesPart) {
    throw new ConsentError(
      `the owner of this device takes no part${stopped ? ", and has stopped everything" : ""}: ${what} does not leave`,
    );
  }
}

async function homeOf(store: Reading): Promise<Home> {
  const known = await store.latestTerms();
  if (known === null) throw new ConsentError("this device has not seen any terms; nothing leaves");
  const { choice, version } = await store.choice();
  const history = await store.history(choice);
  const keptBack = (await store.history()).items.length > history.items.length;
  if (history.nItems !== known.terms.nItems) {
    throw new MessageError(
      `the catalogue has ${history.nItems} items, the federation ${known.terms.nItems}; nothing is sent`,
    );
  }
  const all = await store.allTerms();
  const before: Before = {
    rounds: await store.rounds(),
    spent: (await store.budget()).spent,
    choices: await store.choices(),
    terms: new Map(all.map((one) => [one.era, termsFromTable(one.table)])),
  };
  const latest = await store.latest();
  const published = await store.model();
  const number = (await store.membership())?.number ?? 0;
  const [vector, learnt] = [await store.vector("vector"), await store.vector("learnt")];
  const about = { choice, version, history, keptBack, latest, published, before };
  return { ...known, ...about, number, vector, learnt };
}

/** The entry of a round that is the latest. */
async function latestOf(store: Reading, round: number, attempt: number): Promise<Round> {
  const entry = await store.latest();
  const order = entry && compareKeys([entry.round, entry.attempt], [round, attempt]);
  if (entry === null || (order as number) < 0) {
    throw new DataError(`nothing was prepared for round ${round}, attempt ${attempt}`);
  }
  if (order !== 0) {
    throw new ConsentError(`round ${round} is over for this device; its report does not leave`);
  }
  return entry;
}

/** The round of which something is said, unless it was settled before. */
async function goneOf(store: Reading, round: number, attempt: number): Promise<Round | null> {
  const entry = await store.latest();
  const order = entry && compareKeys([entry.round, entry.attempt], [round, attempt]);
  if (entry !== null && (order as number) > 0) return null;
  if (entry === null || order !== 0 || !isGone(entry)) {
    throw new DataError(`no report for round ${round}, attempt ${attempt}, has left this device`);
  }
  return entry;
}

function sameRound(one: Round | null, other: Round | null): boolean {
  if (one === null || other === null) return one === other;
  const of = (round: Round) => [round.era, round.round, round.attempt, round.state, round.nonce];
  return of(one).join() === of(other).join();
}

/** Vectors mean something within one federation, algorithm and size alone; more items change
 * nothing. */
function sameSpace(one: Terms, other: Terms): boolean {
  const of = (terms: Terms) => [terms.federation, terms.algorithm.name, terms.width].join("\0");
  return of(one) === of(other) && other.nItems >= one.nItems;
}

function contentsOf(made: Contribution, items: Int32Array, history: History): Contents {
  const own = new Set(history.items);
  const sums = new Map<number, number>();
  for (const [k, item] of items.entries()) {
    const weight = Math.abs(made.steps[k] as number);
    if (own.has(item)) sums.set(item, (sums.get(item) ?? 0) + weight);
  }
  const found = [...sums].sort(([one], [other]) => one - other);
  return { items: found.map(([item]) => item), weight: found.map(([, weight]) => weight) };
}

/** How much of each of her own items is in rows that leave. */
function ownRows(
  rows: { readonly item: Int32Array; readonly values: Float64Array },
  width: number,
  history: History,
): Contents {
  const own = new Set(history.items);
  const found = [...rows.item.keys()].filter((k) => own.has(rows.item[k] as number));
  const norm = (k: number) => Math.hypot(...rows.values.subarray(k * width, (k + 1) * width));
  return { items: found.map((k) => rows.item[k] as number), weight: found.map(norm) };
}

async function digestOfModel(view: ModelView): Promise<string> {
  const { buffer, byteOffset, byteLength } = view.items;
  return toHex(await sha256(new Uint8Array(buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer)));
}

function round10(value: number): string {
  return Number.isFinite(value) ? String(Number(value.toPrecision(10))) : "no limit";
}
