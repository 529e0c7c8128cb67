/**
 * Keys, signatures, seals and digests.
 *
 * WebCrypto does what it can, with keys that cannot be taken out of it. Where it lacks Ed25519 or
 * X25519, which are recent, `curves` does these two alone; a signing key is then bytes, which the
 * store keeps encrypted. Without WebCrypto nothing works, and `requireCrypto` says so.
 * Everything random comes from `crypto.getRandomValues`.
 */

import { ascii, type Bytes, concat, owned } from "./bytes.ts";
import * as curves from "./curves.ts";
import { KeyTrouble, Unsupported } from "./errors.ts";

export const KEY_BYTES = 32;
export const SIGNATURE_BYTES = 64;
/** What a seal adds: a key that serves once, and a tag. */
export const SEAL_BYTES = 48;

/** Raises where this browser, or this page, has no cryptography. */
export function requireCrypto(): void {
  subtle();
}

export function randomBytes(count: number): Bytes {
  subtle();
  const bytes = new Uint8Array(count);
  for (let at = 0; at < count; at += 65536) {
    globalThis.crypto.getRandomValues(bytes.subarray(at, at + 65536));
  }
  return bytes;
}

export async function sha256(bytes: Uint8Array): Promise<Bytes> {
  return new Uint8Array(await subtle().digest("SHA-256", owned(bytes)));
}

async function sha512(...parts: readonly Uint8Array[]): Promise<Bytes> {
  return new Uint8Array(await subtle().digest("SHA-512", concat(...parts)));
}

/** BLAKE2b of so many bytes, with a key and a purpose where they are given. */
export function blake2b(bytes: Uint8Array, size: number, key?: Uint8Array, person = ""): Bytes {
  const purpose = new Uint8Array(16);
  purpose.set(ascii(person));
  return curves.blake2b(bytes, size, key, purpose);
}

function subtle(): SubtleCrypto {
  const found = globalThis.crypto?.subtle;
  if (found === undefined || typeof globalThis.crypto.getRandomValues !== "function") {
    throw new Unsupported(
      "this page has no cryptography: open it over https, or in a newer browser",
    );
  }
  return found;
}

// --- signing -------------------------------------------------------------------------------------

/** What a store keeps of a signing key. The first kind never shows its private half; the second is
 * for browsers without Ed25519, and must be kept encrypted. */
export type KeptKey =
  | { readonly kind: "webcrypto"; readonly privateKey: CryptoKey; readonly publicKey: Bytes }
  | { readonly kind: "bytes"; readonly privateKey: Bytes; readonly publicKey: Bytes };

export interface SigningKey {
  readonly publicKey: Bytes;
  readonly kept: KeptKey;
  sign(message: Uint8Array): Promise<Bytes>;
}

/** A new key, made here. */
export async function newSigningKey(): Promise<SigningKey> {
  if (await has("Ed25519")) {
    const made = (await subtle().generateKey({ name: "Ed25519" }, false, [
      "sign",
      "verify",
    ])) as CryptoKeyPair;
    const publicKey = new Uint8Array(await subtle().exportKey("raw", made.publicKey));
    return signingKeyOf({ kind: "webcrypto", privateKey: made.privateKey, publicKey });
  }
  return signingKeyFromSeed(randomBytes(KEY_BYTES));
}

/** The key of 32 private bytes, for tests and for browsers without Ed25519. */
export async function signingKeyFromSeed(seed: Uint8Array): Promise<SigningKey> {
  if (seed.length !== KEY_BYTES) throw new KeyTrouble(`a private key has ${KEY_BYTES} bytes`);
  const publicKey = await curves.ed25519Public(seed, sha512);
  return signingKeyOf({ kind: "bytes", privateKey: owned(seed), publicKey });
}

/** The key that a store has kept. */
export function signingKeyOf(kept: KeptKey): SigningKey {
  return {
    publicKey: kept.publicKey,
    kept,
    async sign(message) {
      if (kept.kind === "bytes") {
        return curves.ed25519Sign(kept.privateKey, kept.publicKey, message, sha512);
      }
      try {
        return new Uint8Array(
          await subtle().sign({ name: "Ed25519" }, kept.privateKey, owned(message)),
        );
      } catch {
        throw new KeyTrouble("this browser no longer signs with the key that it has made");
      }
    },
  };
}

/** Whether the holder of this key has signed that, where WebCrypto has Ed25519: a device checks no
 * signatures. Weak keys are for `wire/signing` to refuse. */
export async function isSigned(
  publicKey: Uint8Array,
  statement: Uint8Array,
  signature: Uint8Array,
): Promise<boolean> {
  try {
    const how = { name: "Ed25519" };
    const key = await subtle().importKey("raw", owned(publicKey), how, true, ["verify"]);
    return await subtle().verify(how, key, owned(signature), owned(statement));
  } catch {
    return false;
  }
}

/** What was found out, by WebCrypto and name. */
const known = new WeakMap<SubtleCrypto, Map<string, Promise<boolean>>>();

/** Whether WebCrypto has this curve. */
function has(name: "Ed25519" | "X25519"): Promise<boolean> {
  const engine = subtle();
  const here = known.get(engine) ?? new Map<string, Promise<boolean>>();
  known.set(engine, here);
  let found = here.get(name);
  if (found === undefined) {
    const uses: KeyUsage[] = name === "Ed25519" ? ["sign", "verify"] : ["deriveBits"];
    found = engine
      .generateKey({ name }, false, uses)
      .then(
        () => true,
        () => false,
      );
    here.set(name, found);
  }
  return found;
}

// --- sealing: HPKE (RFC 9180), base mode, X25519, HKDF-SHA256, AES-128-GCM -------------------------

const KEM = concat(ascii("KEM"), new Uint8Array([0, 0x20]));
const SUITE = concat(ascii("HPKE"), new Uint8Array([0, 0x20, 0, 1, 0, 1]));
const VERSION = ascii("HPKE-v1");
const NOTHING = new Uint8Array(0);

/** `plain`, sealed to a public key for `info` alone. The key that serves once is drawn here; a test
 * may give its private half. */
export async function hpkeSeal(
  plain: Uint8Array,
  publicKey: Uint8Array,
  info: Uint8Array,
  ephemeral?: Uint8Array,
): Promise<Bytes> {
  if (publicKey.length !== KEY_BYTES) throw new KeyTrouble(`a public key has ${KEY_BYTES} bytes`);
  const [enc, agreed] = await agree(publicKey, ephemeral);
  const { key, nonce } = await schedule(agreed, concat(enc, publicKey), info);
  const sealed = await subtle().encrypt({ name: "AES-GCM", iv: nonce }, key, owned(plain));
  return concat(enc, new Uint8Array(sealed));
}

/** What was sealed for `info` to the key with this private half; null where nothing was. */
export async function hpkeOpen(
  sealed: Uint8Array,
  privateKey: Uint8Array,
  info: Uint8Array,
): Promise<Bytes | null> {
  if (sealed.length < SEAL_BYTES) return null;
  const enc = sealed.subarray(0, KEY_BYTES);
  try {
    const agreed = refuseNothing(curves.x25519(privateKey, enc));
    const { key, nonce } = await schedule(agreed, concat(enc, publicOf(privateKey)), info);
    const rest = owned(sealed.subarray(KEY_BYTES));
    return new Uint8Array(await subtle().decrypt({ name: "AES-GCM", iv: nonce }, key, rest));
  } catch {
    return null;
  }
}

/** The public half of an X25519 key. */
export function publicOf(privateKey: Uint8Array): Bytes {
  return curves.x25519Public(privateKey);
}

/** A key that serves once, and what it agrees on with `publicKey`. */
async function agree(publicKey: Uint8Array, ephemeral?: Uint8Array): Promise<[Bytes, Bytes]> {
  try {
    if (ephemeral === undefined && (await has("X25519"))) {
      const once = (await subtle().generateKey({ name: "X25519" }, false, [
        "deriveBits",
      ])) as CryptoKeyPair;
      const other = await subtle().importKey("raw", owned(publicKey), { name: "X25519" }, true, []);
      const how = { name: "X25519", public: other };
      const bits = await subtle().deriveBits(how, once.privateKey, 256);
      const enc = new Uint8Array(await subtle().exportKey("raw", once.publicKey));
      return [enc, refuseNothing(new Uint8Array(bits))];
    }
    const own = ephemeral ?? randomBytes(KEY_BYTES);
    return [publicOf(own), refuseNothing(curves.x25519(own, publicKey))];
  } catch {
    throw new KeyTrouble("the key to which it is to be sealed is not good; nothing was sealed");
  }
}

/** With a public key of low order nothing would be secret. */
function refuseNothing(agreed: Bytes): Bytes {
  if (agreed.every((byte) => byte === 0)) throw new KeyTrouble("nothing was agreed on");
  return agreed;
}

async function schedule(
  agreed: Uint8Array,
  context: Uint8Array,
  info: Uint8Array,
): Promise<{ key: CryptoKey; nonce: Bytes }> {
  const eae = await extract(KEM, NOTHING, "eae_prk", agreed);
  const secretShared = await expandLabelled(KEM, eae, "shared_secret", context, 32);
  const names = concat(
    new Uint8Array(1),
    await extract(SUITE, NOTHING, "psk_id_hash", NOTHING),
    await extract(SUITE, NOTHING, "info_hash", info),
  );
  const secret = await extract(SUITE, secretShared, "secret", NOTHING);
  const raw = await expandLabelled(SUITE, secret, "key", names, 16);
  const nonce = await expandLabelled(SUITE, secret, "base_nonce", names, 12);
  const key = await subtle().importKey("raw", raw, "AES-GCM", false, ["encrypt", "decrypt"]);
  return { key, nonce };
}

async function extract(
  name: Uint8Array,
  salt: Uint8Array,
  label: string,
  key: Uint8Array,
): Promise<Bytes> {
  return hmac(salt.length ? salt : new Uint8Array(32), concat(VERSION, name, ascii(label), key));
}

async function expandLabelled(
  name: Uint8Array,
  key: Uint8Array,
  label: string,
  info: Uint8Array,
  length: number,
): Promise<Bytes> {
  const head = new Uint8Array([0, length]);
  const one = new Uint8Array([1]);
  const made = await hmac(key, concat(head, VERSION, name, ascii(label), info, one));
  return made.slice(0, length);
}

async function hmac(key: Uint8Array, message: Uint8Array): Promise<Bytes> {
  const how = { name: "HMAC", hash: "SHA-256" };
  const made = await subtle().importKey("raw", owned(key), how, false, ["sign"]);
  return new Uint8Array(await subtle().sign("HMAC", made, owned(message)));
}
