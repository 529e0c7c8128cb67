/**
 * What a device of a secure sum sends.
 *
 * A message is the masked numbers, and behind them the sealed seed: the device's public key, the
 * mask's seed sealed to the helper's key (HPKE, RFC 9180), and the device's signature over it. All
 * messages of a round have one length. Seal and signature are bound to the federation, its terms,
 * round, attempt, device and the model that was learnt from.
 */

import { ascii, type Bytes, concat, fromHex, isHex, LITTLE, u32, utf8 } from "../bytes.ts";
import { hpkeOpen, hpkeSeal, KEY_BYTES, SEAL_BYTES, sha256, type SigningKey } from "../crypto.ts";
import { KeyTrouble, MessageError, UsageError } from "../errors.ts";
import { SEED_BYTES } from "../masking.ts";
import { MASKED } from "./frames.ts";
import * as signing from "./signing.ts";
import { termsName } from "./terms.ts";
import type { ModelView, Terms } from "./types.ts";

const SEALED = SEAL_BYTES + SEED_BYTES;
/** Of a mask's seed on its way to the helper: the device's key, the sealed seed, a signature. */
export const SEALED_SEED_BYTES = KEY_BYTES + SEALED + 64;

const ZERO = new Uint8Array(1);
const SEALED_FOR = concat(ascii("sottovoce mask seed"), ZERO);
const SIGNED_FOR = concat(ascii("sottovoce sealed mask seed"), ZERO);

/** A device's sealed seed, as the server passes it on. */
export interface SealedSeed {
  readonly device: Bytes;
  readonly sealed: Bytes;
  readonly signature: Bytes;
}

/** The same for equal models alone. */
export function modelName(view: ModelView): Promise<Bytes> {
  const items = LITTLE ? view.items : Float32Array.from(view.items);
  const bytes = new Uint8Array(items.buffer, items.byteOffset, items.byteLength);
  if (!LITTLE) {
    const swapping = new DataView(bytes.buffer);
    view.items.forEach((value, k) => swapping.setFloat32(4 * k, value, true));
  }
  return sha256(bytes);
}

/** What a record is good for. `numbers` are those of a contribution; null where they are those of
 * the model. */
export async function binding(
  terms: Terms,
  round: number,
  attempt: number,
  model: Uint8Array,
  numbers: number | null,
): Promise<Bytes> {
  const name = utf8(terms.federation);
  const many = numbers === null ? new Uint8Array(0) : u32(numbers);
  return concat(
    u32(name.length), u32(round), u32(attempt), name, await termsName(terms), model, many,
  );
}

/** The helper's key, to which devices seal. */
export function helperKey(terms: Terms): Bytes {
  const key = terms.link.name === "secure-sum" ? terms.link.key : "";
  if (!isHex(key) || key.length !== 2 * KEY_BYTES) {
    throw new KeyTrouble(
      "the terms of the federation name no good key of the helper, so that nothing can be sealed " +
        "to it; tell the operator",
    );
  }
  return fromHex(key);
}

/** Sealing draws a key that serves once: the same seed gives other bytes each time, unless a test
 * gives that key. */
export async function sealSeed(
  seed: Uint8Array,
  key: SigningKey,
  helper: Uint8Array,
  bound: Uint8Array,
  ephemeral?: Uint8Array,
): Promise<SealedSeed> {
  const device = key.publicKey;
  const sealed = await hpkeSeal(seed, helper, concat(SEALED_FOR, bound, device), ephemeral);
  const signature = await key.sign(concat(SIGNED_FOR, bound, sealed));
  return { device, sealed, signature };
}

/** The seed; null where this was not sealed by this device for this. */
export async function openSeed(
  record: SealedSeed,
  privateKey: Uint8Array,
  bound: Uint8Array,
): Promise<Bytes | null> {
  const info = concat(SEALED_FOR, bound, record.device);
  const seed = await hpkeOpen(record.sealed, privateKey, info);
  return seed !== null && seed.length === SEED_BYTES ? seed : null;
}

/** Whether the device whose key it names has signed this for this. */
export function isSigned(record: SealedSeed, bound: Uint8Array): Promise<boolean> {
  const said = concat(SIGNED_FOR, bound, record.sealed);
  return signing.isSigned(record.device, said, record.signature);
}

/** The last bytes of a device's message. */
export function sealedSeedOf(content: Uint8Array): SealedSeed {
  if (content.length < SEALED_SEED_BYTES) throw new MessageError("this is no sealed seed");
  const found = content.slice(content.length - SEALED_SEED_BYTES) as Bytes;
  const ends = KEY_BYTES + SEALED;
  return {
    device: found.slice(0, KEY_BYTES),
    sealed: found.slice(KEY_BYTES, ends),
    signature: found.slice(ends),
  };
}

/** The length of a device's message with so many numbers; there is no other. */
export function messageBytes(terms: Terms, numbers: number): number {
  return MASKED.size + (numbers * terms.bits) / 8 + SEALED_SEED_BYTES;
}

export function encodeMasked(
  terms: Terms,
  masked: Uint8Array,
  record: SealedSeed,
  round: number,
  attempt: number,
): Bytes {
  const numbers = (masked.length * 8) / terms.bits;
  const head = MASKED.pack([round, attempt, numbers]);
  return concat(head, masked, record.device, record.sealed, record.signature);
}

/** The message of whoever has this key: masked numbers (`masking.masked`) that were learnt from this
 * model, and the seed of their mask, sealed to the helper and signed. */
export async function sealMasked(
  terms: Terms,
  attempt: number,
  view: ModelView,
  masked: Uint8Array,
  numbers: number,
  seed: Uint8Array,
  key: SigningKey,
  ephemeral?: Uint8Array,
): Promise<Bytes> {
  if (terms.link.name !== "secure-sum") {
    throw new UsageError("only a secure sum takes masked updates");
  }
  if (masked.length * 8 !== numbers * terms.bits) {
    throw new UsageError("the masked update has other bits than the terms say");
  }
  const told = terms.contributes ? numbers : null;
  const bound = await binding(terms, view.round, attempt, await modelName(view), told);
  const record = await sealSeed(seed, key, helperKey(terms), bound, ephemeral);
  return encodeMasked(terms, masked, record, view.round, attempt);
}

/** The inverse of `encodeMasked`. Rejects whatever is not of this round, which has so many numbers,
 * and these terms. */
export function decodeMasked(
  payload: Uint8Array,
  terms: Terms,
  round: number,
  attempt: number,
  numbers: number,
): { masked: Bytes; record: SealedSeed } {
  const [sentRound, sentAttempt, sent] = MASKED.unpack(payload);
  if (sentRound !== round || sentAttempt !== attempt) {
    throw new MessageError(
      `masked update for attempt ${sentAttempt} at round ${sentRound}, it is attempt ${attempt} ` +
        `at round ${round}`,
    );
  }
  if (sent !== numbers || payload.length !== messageBytes(terms, numbers)) {
    throw new MessageError(`a masked update has ${numbers} numbers in this round`);
  }
  const masked = payload.slice(MASKED.size, payload.length - SEALED_SEED_BYTES) as Bytes;
  return { masked, record: sealedSeedOf(payload) };
}
