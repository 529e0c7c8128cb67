/**
 * What devices sign (Ed25519): everything that they post, and that an enrolled key is their own.
 *
 * An envelope's signature covers the federation, what is being sent, the device's number, round,
 * attempt, a nonce and the hash of the body.
 */

import { ascii, type Bytes, concat, toHex, u32, utf8 } from "../bytes.ts";
import * as crypto from "../crypto.ts";
import { MessageError } from "../errors.ts";
import { ENVELOPE } from "./frames.ts";

export type Purpose = "report" | "check-in";

export const NONCE_BYTES = 16;
/** Bytes that an envelope adds to what is in it. */
export const OVERHEAD = ENVELOPE.size + crypto.SIGNATURE_BYTES;
/** The header in which a large message says the hash of its body beforehand. */
export const DIGEST_HEADER = "sottovoce-digest";

export interface Place {
  /** Which device says this. */
  readonly number: number;
  readonly round: number;
  readonly attempt: number;
  readonly nonce: Uint8Array;
}

export interface Envelope extends Place {
  readonly body: Bytes;
  readonly signature: Bytes;
}

/** The envelope as bytes. The caller draws the nonce (`randomBytes`). */
export async function sealEnvelope(
  key: crypto.SigningKey,
  federation: string,
  purpose: Purpose,
  sent: Place & { readonly body: Uint8Array },
): Promise<Bytes> {
  if (sent.nonce.length !== NONCE_BYTES) {
    throw new MessageError(`a nonce has ${NONCE_BYTES} bytes`);
  }
  const head = headOf(sent);
  const digest = await crypto.sha256(sent.body);
  const signature = await key.sign(statement(federation, purpose, head, digest));
  return concat(head, signature, sent.body);
}

/** The parts of an envelope, not yet verified. Raises where it is none. */
export function openEnvelope(payload: Uint8Array): Envelope {
  const [number, round, attempt] = ENVELOPE.unpack(payload) as [number, number, number];
  if (payload.length < OVERHEAD) throw new MessageError("envelope too short");
  return {
    number,
    round,
    attempt,
    nonce: ENVELOPE.tailOf(payload),
    body: payload.slice(OVERHEAD) as Bytes,
    signature: payload.slice(ENVELOPE.size, OVERHEAD) as Bytes,
  };
}

/** Whether the device with this key signed it. */
export async function signedBy(
  envelope: Envelope,
  publicKey: Uint8Array,
  federation: string,
  purpose: Purpose,
): Promise<boolean> {
  const digest = await crypto.sha256(envelope.body);
  const said = statement(federation, purpose, headOf(envelope), digest);
  return isSigned(publicKey, said, envelope.signature);
}

/** What `DIGEST_HEADER` says of an envelope. */
export async function digestOf(payload: Uint8Array): Promise<string> {
  return toHex(await crypto.sha256(payload.subarray(OVERHEAD)));
}

function headOf(place: Place): Bytes {
  return ENVELOPE.pack([place.number, place.round, place.attempt], place.nonce);
}

function statement(
  federation: string,
  purpose: Purpose,
  head: Uint8Array,
  digest: Uint8Array,
): Bytes {
  const name = utf8(federation);
  const zero = new Uint8Array(1);
  return concat(
    ascii("sottovoce"), zero, ascii(purpose), zero, u32(name.length), name, zero, head, digest,
  );
}

// --- enrolment -----------------------------------------------------------------------------------

const FIELD = 2n ** 255n - 19n;
const EIGHTH = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
/** The y of every point whose order divides 8. */
const SMALL_ORDER: readonly bigint[] = [0n, 1n, FIELD - 1n, EIGHTH, FIELD - EIGHTH];

/** Whether this is no Ed25519 key of a single holder: of another length, or a point of small order
 * in any spelling, under which signatures can be made without a private key. */
export function isWeak(publicKey: Uint8Array): boolean {
  if (publicKey.length !== crypto.KEY_BYTES) return true;
  const whole = BigInt(`0x${toHex(Uint8Array.from(publicKey).reverse())}`);
  return SMALL_ORDER.includes((whole & (2n ** 255n - 1n)) % FIELD);
}

/** The signature with which a device enrols its own key by an invitation's token. */
export async function prove(
  key: crypto.SigningKey,
  federation: string,
  token: Uint8Array,
): Promise<Bytes> {
  const name = utf8(federation);
  const digest = await crypto.sha256(token);
  const purpose = concat(ascii("sottovoce enrolment"), new Uint8Array(1));
  return key.sign(concat(purpose, u32(name.length), name, digest, key.publicKey));
}

/** Whether the one holder of this key has signed that. */
export async function isSigned(
  publicKey: Uint8Array,
  said: Uint8Array,
  signature: Uint8Array,
): Promise<boolean> {
  return !isWeak(publicKey) && (await crypto.isSigned(publicKey, said, signature));
}
