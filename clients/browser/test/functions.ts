/** What a device computes, function by function, from JSON to JSON, by the names of
 * `tests/worlds/device_functions.py`. Numbers that are not whole are the hexadecimal of their bits. */

import { type Bytes, fromHex, toHex, u32s, utf8 } from "../src/bytes.ts";
import { cut, whole } from "../src/contributions.ts";
import { hpkeOpen, hpkeSeal, publicOf, sha256, signingKeyFromSeed } from "../src/crypto.ts";
import * as own from "../src/epsilon.ts";
import { MessageError, SottovoceError } from "../src/errors.ts";
import { clipped, Fpl, learnRows, slope, exponential, stepOf, subset, thresholdOf } from "../src/fpl.ts";
import { Gram, parted } from "../src/gram.ts";
import * as at from "../src/history.ts";
import { expand, masked } from "../src/masking.ts";
import * as portable from "../src/portable.ts";
import { best, chain } from "../src/ranking.ts";
import { Draws } from "../src/streams.ts";
import { catalogueFromTable, catalogueLimit, requireSamePlaces } from "../src/wire/catalogue.ts";
import { descriptorFromTable } from "../src/wire/descriptor.ts";
import { readJson } from "../src/wire/fields.ts";
import { MASKED } from "../src/wire/frames.ts";
import { invitationFromText } from "../src/wire/invitations.ts";
import {
  binding, encodeMasked, helperKey, messageBytes, modelName, sealedSeedOf, sealMasked, sealSeed,
} from "../src/wire/masked.ts";
import { decodeReport, encodeReport } from "../src/wire/reports.ts";
import { digestOf, isWeak, openEnvelope, prove, sealEnvelope, signedBy } from "../src/wire/signing.ts";
import { mostNumbers, termsDigest, termsFromTable, termsName } from "../src/wire/terms.ts";
import type { Choice, History, ModelView, Profile, Terms } from "../src/wire/types.ts";
import { decodeModel } from "../src/wire/versions.ts";

// --- as JSON ---------------------------------------------------------------------------------------

const room = new DataView(new ArrayBuffer(8));

export function f64(x: number): string {
  room.setFloat64(0, x);
  return toHex(new Uint8Array(room.buffer, 0, 8));
}

export function f32(x: number): string {
  room.setFloat32(0, x);
  return toHex(new Uint8Array(room.buffer, 0, 4));
}

export function d(text: string): number {
  fromHex(text).forEach((byte, k) => room.setUint8(k, byte));
  return room.getFloat64(0);
}

export function s(text: string): number {
  fromHex(text).forEach((byte, k) => room.setUint8(k, byte));
  return room.getFloat32(0);
}

/** A table of single precision from its bytes, and back. */
export function table(content: string): Float32Array {
  return new Float32Array(u32s(fromHex(content)).buffer);
}

export function asTable(values: Float32Array): string {
  return toHex(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
}

function viewOf(round: number, content: string, width: number): ModelView {
  const items = table(content);
  return { round, rows: items.length / width, width, items };
}

function historyOf(items: readonly number[], times: readonly number[] | null, nItems: number): History {
  const order = [...items.keys()].sort((a, b) => items[a]! - items[b]!);
  const found = {
    items: Int32Array.from(order, (k) => items[k]!),
    times: times === null ? null : Float64Array.from(order, (k) => times[k]!),
    nItems,
  };
  at.requireHistory(found);
  return found;
}

const termsOf = (text: string): Terms => termsFromTable(readJson(text));
const all = (values: Iterable<number>): string[] => Array.from(values, f64);
const drawsOf = (key: string): Draws => new Draws(u32s(fromHex(key)));
const keyOf = (seed: string) => signingKeyFromSeed(fromHex(seed));

interface Release { epsilon: string; delta: string }

function releaseOf(release: Release): own.OwnEpsilon {
  const [epsilon, delta] = [d(release.epsilon), d(release.delta)];
  return new own.OwnEpsilon({ name: "own-epsilon", epsilon, delta, parts: 0, period_days: 0 });
}

function choiceOf(epsilon: string, total = "7ff0000000000000"): Choice {
  return { takesPart: true, sharePositives: 0, epsilon: d(epsilon), totalEpsilon: d(total), neverSend: [] };
}

function profileOf(given: any): Profile {
  return {
    place: Int32Array.from(given.place), value: Float64Array.from(given.value, d),
    size: given.size, pairs: given.pairs, items: given.place.length,
  };
}

// --- functions -------------------------------------------------------------------------------------

export const FUNCTIONS: Record<string, (given: any) => unknown> = {
  exp: ({ x }) => f64(portable.exp(d(x))),
  log: ({ x }) => f64(portable.log(d(x))),
  scaled_erfc: ({ x }) => f64(portable.scaledErfc(d(x))),
  gaussian_delta: ({ distance, epsilon }) => f64(portable.gaussianDelta(d(distance), d(epsilon))),
  exp32: ({ x }) => f32(exponential(s(x))),
  sigmoid32: ({ x }) => f32(slope(s(x))),
  exact_sum: ({ numbers }) => f64(own.exactSum(numbers.map(d))),
  price: ({ noise, delta }) => f64(own.price(d(noise), d(delta))),
  noise_for: ({ epsilon, delta }) => f64(own.noiseFor(d(epsilon), d(delta))),
  scale: ({ release, epsilon }) => {
    const made = releaseOf(release);
    return {
      sigma: f64(made.sigma), loudness: f64(made.loudness(Math.fround(d(epsilon)))),
      scale: f64(made.scale(d(epsilon))),
    };
  },
  mark: ({ round, stages, batches, sent }) => {
    const mark = own.markOf(round, stages, batches);
    return { mark, sent: own.marked(sent, mark) };
  },
  beyond: ({ then, stages, shares, now }) =>
    f64(own.beyond(then.map(([a, b]: [string, string]) => [d(a), d(b)]), stages, shares.map(d), d(now))),
  cost: ({ release, epsilon, total, shares, batches, round, sent, beyond, spent }) => {
    const [made, choice] = [releaseOf(release), choiceOf(epsilon, total)];
    const before = { epsilon: d(spent), sent, beyond: d(beyond) };
    return {
      cost: f64(made.costs(choice, round, shares.map(d), batches, before)),
      room: made.room(choice, before, shares.map(d), round, batches),
    };
  },
  has_room: ({ spent, cost, limit }) => own.affords(d(spent), d(cost), d(limit)),
  positions: ({ items, times, n_items }) => all(at.positions(historyOf(items, times, n_items))),
  home_weights: ({ items, times, n_items, memory }) =>
    all(at.recency(historyOf(items, times, n_items), d(memory))),
  held_out: ({ items, times, n_items, share }) => {
    const { kept, held } = parted(historyOf(items, times, n_items), d(share));
    return { before: [...kept.items], held: [...held.items] };
  },
  home_vector: ({ terms, model, items, times }) => {
    const found = termsOf(terms);
    const mine = historyOf(items, times, found.nItems);
    return asTable(new Gram(found).vector(viewOf(0, model, found.width), mine));
  },
  gram_list: ({ terms, model, items, times, many }) => {
    const found = termsOf(terms);
    const mine = historyOf(items, times, found.nItems);
    const list = new Gram(found).recommend(viewOf(0, model, found.width), mine, many);
    return { items: list.map((one) => one.item), scores: list.map((one) => f32(one.score)) };
  },
  ranked: ({ vector, items, bias, size, seen, many }) => {
    const [mine, factors, first] = [table(vector), table(items), table(bias)];
    const scores = first.map((one, k) => chain(one, mine, factors, k * size));
    const list = best(scores, many, (item) => seen.includes(item));
    return { items: list.map((one) => one.item), scores: list.map((one) => f32(one.score)) };
  },
  profile: ({ terms, round, model, published, items, times }) => {
    const found = termsOf(terms);
    const before = published === null ? null : viewOf(0, published, found.width);
    const mine = historyOf(items, times, found.nItems);
    const made = new Gram(found).profile(viewOf(round, model, found.width), mine, before);
    return {
      place: [...made.place], value: all(made.value), size: made.size, pairs: made.pairs,
      items: made.items,
    };
  },
  hits: ({ terms, model, published, items, times }) => {
    const found = termsOf(terms);
    const gram = new Gram(found);
    const before = published === null ? null : viewOf(0, published, found.width);
    const { kept, held } = parted(historyOf(items, times, found.nItems), gram.settings.held_out);
    return gram.hits(viewOf(0, model, found.width), before, kept, held);
  },
  cut: (given) => [...cut(profileOf(given), d(given.scale), "gram").steps],
  contribution: ({ place, steps, size, pairs }) => [
    ...whole({ place: Int32Array.from(place), steps: Int32Array.from(steps), size, pairs, items: 0 }),
  ],
  mask: ({ seed, numbers, bits }) => toHex(expand(fromHex(seed), numbers, bits)),
  hidden: ({ values, seed, bits }) =>
    toHex(masked(Float64Array.from(values), fromHex(seed), bits)),
  words: ({ key, first, many }) => {
    const draws = drawsOf(key);
    const found = new Uint32Array(2 * many);
    for (let k = 0; k < many; k++) found.set([draws.low(first + k), draws.high(first + k)], 2 * k);
    return toHex(new Uint8Array(found.buffer));
  },
  hpke_seal: async ({ public: to, info, plaintext, ephemeral }) =>
    toHex(await hpkeSeal(fromHex(plaintext), fromHex(to), fromHex(info), fromHex(ephemeral))),
  hpke_open: async ({ private: key, info, sealed }) => {
    const found = await hpkeOpen(fromHex(sealed), fromHex(key), fromHex(info));
    if (found === null) throw new MessageError("this was not sealed for this");
    return toHex(found);
  },
  public_keys: async ({ private: key }) => ({
    ed25519: toHex((await keyOf(key)).publicKey), x25519: toHex(publicOf(fromHex(key))),
  }),
  weak_key: ({ public: key }) => isWeak(fromHex(key)),
  envelope: async ({ private: key, federation, purpose, number, round, attempt, nonce, body }) => {
    const sent = { number, round, attempt, nonce: fromHex(nonce), body: fromHex(body) };
    const made = await sealEnvelope(await keyOf(key), federation, purpose, sent);
    return { bytes: toHex(made), digest: await digestOf(made) };
  },
  open_envelope: async ({ bytes, public: key, federation, purpose }) => {
    const found = openEnvelope(fromHex(bytes));
    return {
      number: found.number, round: found.round, attempt: found.attempt, nonce: toHex(found.nonce),
      body: toHex(found.body), signed: await signedBy(found, fromHex(key), federation, purpose),
    };
  },
  enrol: async ({ private: key, invitation }) => {
    const [mine, found] = [await keyOf(key), invitationFromText(invitation)];
    const signature = toHex(await prove(mine, found.federation, fromHex(found.token)));
    return { protocol: 2, token: found.token, public_key: toHex(mine.publicKey), signature };
  },
  model_name: async ({ model, width }) => toHex(await modelName(viewOf(0, model, width))),
  binding: async ({ terms, round, attempt, model_name, numbers }) =>
    toHex(await binding(termsOf(terms), round, attempt, fromHex(model_name), numbers)),
  sealed_seed: async ({ terms, round, attempt, model_name, numbers, seed, private: key, ephemeral }) => {
    const found = termsOf(terms);
    const bound = await binding(found, round, attempt, fromHex(model_name), numbers);
    const made = await sealSeed(fromHex(seed), await keyOf(key), helperKey(found), bound, fromHex(ephemeral));
    return toHex(made.device) + toHex(made.sealed) + toHex(made.signature);
  },
  masked_message: ({ terms, round, attempt, masked_words, record }) =>
    toHex(
      encodeMasked(termsOf(terms), fromHex(masked_words), sealedSeedOf(fromHex(record)), round, attempt),
    ),
  invitation: ({ text }) => invitationFromText(text),
  terms: async ({ text }) => {
    const found = termsOf(text);
    const { algorithm, release, link, nItems } = found;
    const triples = algorithm.name === "fpl" ? algorithm.triples : 0;
    const told: Record<string, unknown> = {
      digest: termsDigest(found), name: toHex(await termsName(found)), federation: found.federation,
      n_items: nItems, width: found.width, n_rows: nItems, triples,
      max_rows: triples ? Math.min(2 * triples, nItems) : nItems,
      revealing: algorithm.name === "fpl" && 4 * triples > nItems, contributes: found.contributes,
    };
    if (link.name === "secure-sum") {
      Object.assign(told, { bits: found.bits, most_numbers: mostNumbers(algorithm, nItems) });
    }
    if (release.name === "own-epsilon") {
      const gram = new Gram(found);
      Object.assign(told, {
        shares: all(gram.shares), batches: gram.batches, counted: f64(gram.counted),
        sigma: f64(new own.OwnEpsilon(release).sigma),
      });
    }
    return told;
  },
  descriptor: async ({ text }) => {
    const found = await descriptorFromTable(readJson(text));
    return {
      federation: found.federation, terms: found.terms, round: found.round, attempt: found.attempt,
      state: found.state, selection: found.selection, model: found.model,
      poll_seconds: f64(found.pollSeconds), published: found.published, catalogue: found.catalogue,
      roster: found.roster, report_key: found.reportKey === null ? "" : toHex(found.reportKey),
    };
  },
  catalogue_of: async ({ terms, body }) => {
    const [found, content] = [termsOf(terms), fromHex(body)];
    if (content.length > catalogueLimit(found.nItems)) throw new MessageError("it is too long");
    const made = catalogueFromTable(readJson(content), found.nItems);
    return { name: toHex(await sha256(content)), items: made.items, categories: made.categories };
  },
  same_places: ({ before, after }) => {
    requireSamePlaces(before, after);
    return null;
  },
  model: ({ bytes, n_rows, width, have_round, have }) => {
    const known = have === null ? null : viewOf(have_round, have, width);
    const found = decodeModel(fromHex(bytes), n_rows, width, known);
    return { round: found.round, items: asTable(found.items) };
  },
  pairs_drawn: ({ key, triples, items, n_items }) => {
    const mine = historyOf(items, null, n_items);
    const view = { round: 0, rows: n_items, width: 2, items: new Float32Array(2 * n_items) };
    const made = learnRows(STILL, view, mine, new Float32Array(1), drawsOf(key), triples);
    const every = [...made.item];
    return {
      positive: every.filter((_, k) => k % 2 === 1), negative: every.filter((_, k) => k % 2 === 0),
    };
  },
  share_subset: ({ key, items, share }) => {
    const mine = historyOf(items, null, 2 ** 31 - 1);
    const allowed = subset(mine, Math.fround(d(share)), drawsOf(key));
    return [...mine.items].filter((_, k) => allowed[k] === 1);
  },
  coins: ({ key, draws, share }) => {
    const [coins, limit] = [drawsOf(key), thresholdOf(d(share))];
    return Array.from({ length: draws }, (_, k) => coins.high(k) < limit);
  },
  learn: ({ terms, model, vector, items, key }) => {
    const found = termsOf(terms);
    const { settings } = new Fpl(found);
    const mine = historyOf(items, null, found.nItems);
    const view = viewOf(0, model, found.width);
    const made = learnRows(stepOf(settings), view, mine, table(vector), drawsOf(key), settings.triples);
    const values = [...made.item.keys()].map((k) => [
      ...made.values.subarray(k * found.width, (k + 1) * found.width),
    ]);
    return { item: [...made.item], values, vector: asTable(made.vector) };
  },
  clip: ({ values, largest }) => {
    const width = values[0]?.length ?? 1;
    const flat = clipped(Float64Array.from(values.flat()), d(largest));
    return values.map((_: unknown, k: number) => [...flat.subarray(k * width, (k + 1) * width)]);
  },
  report: ({ round, item, values }) =>
    toHex(
      encodeReport(round, Int32Array.from(item), Float64Array.from(values.flat()), values[0]?.length ?? 0),
    ),
  read_report: ({ bytes, round, n_rows, width, max_rows }) => {
    const where = { nItems: n_rows, width, round, maxRows: max_rows };
    const { item, values } = decodeReport(fromHex(bytes), where);
    return {
      item: [...item],
      values: [...item.keys()].map((k) => [...values.subarray(k * width, (k + 1) * width)]),
    };
  },
  gram_message: async (given) => {
    const found = termsOf(given.terms);
    const view = viewOf(given.round, given.model, found.width);
    const before = given.published === null ? null : viewOf(0, given.published, found.width);
    const mine = historyOf(given.items, given.times, found.nItems);
    const choice = choiceOf(given.epsilon, given.total);
    const spent = { epsilon: d(given.spent), sent: given.sent, beyond: d(given.beyond) };
    if (found.release.name !== "own-epsilon") throw new MessageError("these terms are not gram's");
    const [gram, release] = [new Gram(found), new own.OwnEpsilon(found.release)];
    if (!release.room(choice, spent, gram.shares, given.round, gram.batches)) {
      throw new MessageError("a device was asked to report beyond what its owner permits");
    }
    const made = cut(gram.profile(view, mine, before), release.scale(choice.epsilon), "gram");
    const seed: Bytes = fromHex(given.seed);
    const numbers = whole(made);
    const body = await sealMasked(
      found, given.attempt, view, masked(numbers, seed, found.bits), numbers.length, seed,
      await keyOf(given.private), fromHex(given.ephemeral),
    );
    const epsilon = release.costs(choice, given.round, gram.shares, gram.batches, spent);
    return {
      body: toHex(body), epsilon: f64(epsilon),
      bytes: messageBytes(found, numbers.length) - MASKED.size, positive_rows: made.items,
      sent: own.marked(spent.sent, own.markOf(given.round, gram.shares.length, gram.batches)),
      spent: f64(spent.epsilon + epsilon),
    };
  },
};

const STILL = { rate: 0, decay: 0, positive: 0, negative: 0, bias: 0 };

/** What a function makes of this, or that it refuses it. An error of another tree is nobody's. */
export async function answered(name: string, given: unknown): Promise<unknown> {
  const made = FUNCTIONS[name];
  if (made === undefined) throw new Error(`there is no function ${name} here`);
  try {
    return JSON.parse(JSON.stringify({ out: (await made(given)) ?? null }));
  } catch (error) {
    if (error instanceof SottovoceError) return { refused: true };
    throw error;
  }
}

export const text = (value: unknown): string => JSON.stringify(value);
export const bytesOf = utf8;
