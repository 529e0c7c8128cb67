/**
 * Sealing: every report is encrypted by itself to the server's key, so that whoever passes it on can
 * neither read it nor tell it from another one.
 *
 * HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and AES-128-GCM. What a report is sealed for
 * (federation, round, tier, key) is bound to it. On its way through a chain of shufflers it has a
 * layer more for each of them but the first.
 */

import { ascii, type Bytes, bytesOfU32s, concat, u32, utf8 } from "../bytes.ts";
import { hpkeOpen, hpkeSeal, KEY_BYTES, publicOf, SEAL_BYTES, sha256 } from "../crypto.ts";
import { KeyTrouble, MessageError } from "../errors.ts";

export const REPORT_BYTES = 4;
/** Of one report that is sealed to the server alone. */
export const SEALED_BYTES = SEAL_BYTES + REPORT_BYTES;

const ZERO = new Uint8Array(1);

/** What a report is sealed for. */
export interface ReportPlace {
  readonly federation: string;
  readonly round: number;
  readonly tier: number;
}

/** The name of a public key: all of its hash. */
export function keyId(publicKey: Uint8Array): Promise<Bytes> {
  return sha256(publicKey);
}

/** Every report sealed by itself, one after the other: other bytes each time. */
export async function sealReports(
  reports: Uint32Array,
  publicKey: Uint8Array,
  place: ReportPlace,
): Promise<Bytes> {
  const info = await reportInfo(publicKey, place);
  return sealRecords(bytesOfU32s(reports), REPORT_BYTES, publicKey, info);
}

/** Every record of `size` bytes sealed by itself. */
export async function sealRecords(
  records: Uint8Array,
  size: number,
  publicKey: Uint8Array,
  info: Uint8Array,
): Promise<Bytes> {
  if (publicKey.length !== KEY_BYTES) throw new KeyTrouble(`a report key has ${KEY_BYTES} bytes`);
  const sealed: Bytes[] = [];
  for (let at = 0; at < records.length; at += size) {
    sealed.push(await hpkeSeal(records.subarray(at, at + size), publicKey, info));
  }
  return concat(...sealed);
}

/** What was in those records of `size` bytes that were sealed for exactly this, and how many were
 * not. */
export async function openRecords(
  sealed: Uint8Array,
  size: number,
  privateKey: Uint8Array,
  info: Uint8Array,
): Promise<{ opened: Bytes; refused: number }> {
  if (sealed.length % size) throw new MessageError(`sealed reports have ${size} bytes each`);
  const opened: Bytes[] = [];
  let refused = 0;
  for (let at = 0; at < sealed.length; at += size) {
    const found = await hpkeOpen(sealed.subarray(at, at + size), privateKey, info);
    if (found === null) refused++;
    else opened.push(found);
  }
  return { opened: concat(...opened), refused };
}

/** The reports that were sealed for exactly this, and how many were not. */
export async function openReports(
  sealed: Uint8Array,
  privateKey: Uint8Array,
  place: ReportPlace,
): Promise<{ opened: Bytes; refused: number }> {
  const info = await reportInfo(publicOf(privateKey), place);
  return openRecords(sealed, SEALED_BYTES, privateKey, info);
}

/** What a report is sealed for, to the server's key. */
export async function reportInfo(publicKey: Uint8Array, place: ReportPlace): Promise<Bytes> {
  return concat(
    ascii("sottovoce report"), ZERO, utf8(place.federation), ZERO,
    placed(place, await keyId(publicKey)),
  );
}

/** What a layer is sealed for: `publicKey` is the shuffler's and `hop` its place from 0, `key` the
 * name of the server's key, `terms` that of the terms. */
export async function layerInfo(
  publicKey: Uint8Array,
  place: ReportPlace & { readonly hop: number; readonly key: Uint8Array; readonly terms: Uint8Array },
): Promise<Bytes> {
  return concat(
    ascii("sottovoce layer"), ZERO, utf8(place.federation), ZERO, placed(place, place.key),
    new Uint8Array([place.hop]), await keyId(publicKey), place.terms,
  );
}

function placed(place: ReportPlace, key: Uint8Array): Bytes {
  return concat(u32(place.round), new Uint8Array([place.tier]), key);
}
