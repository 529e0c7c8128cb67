/** Keys and seals by WebCrypto and without it; both give what the other takes. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import { toHex, utf8 } from "../src/bytes.ts";
import {
  blake2b, hpkeOpen, hpkeSeal, isSigned, newSigningKey, publicOf, randomBytes, requireCrypto,
  signingKeyFromSeed, signingKeyOf,
} from "../src/crypto.ts";
import { KeyTrouble, Unsupported } from "../src/errors.ts";
import { drawnBytes, draws, hex } from "./help.ts";

const real = globalThis.crypto;

function withCrypto(made: unknown): void {
  Object.defineProperty(globalThis, "crypto", { value: made, configurable: true, writable: true });
}

test("a key of WebCrypto signs, is kept, and cannot be taken out", async () => {
  const made = await newSigningKey();
  assert.equal(made.kept.kind, "webcrypto");
  const again = signingKeyOf(structuredClone({ ...made.kept }));
  const signature = await again.sign(utf8("hello"));
  assert.ok(await isSigned(made.publicKey, utf8("hello"), signature));
  assert.ok(!(await isSigned(made.publicKey, utf8("hallo"), signature)));
  const kept = made.kept as { privateKey: CryptoKey };
  assert.equal(kept.privateKey.extractable, false);
  await assert.rejects(real.subtle.exportKey("pkcs8", kept.privateKey));
});

test("keys of bytes sign as RFC 8032 has it, and WebCrypto agrees", async () => {
  const key = await signingKeyFromSeed(
    hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"),
  );
  assert.equal(
    toHex(key.publicKey), "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
  );
  assert.equal(
    toHex(await key.sign(new Uint8Array([0x72]))),
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da" +
      "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
  );
  const draw = draws(5);
  for (let k = 0; k < 20; k++) {
    const one = await signingKeyFromSeed(drawnBytes(draw, 32));
    const message = drawnBytes(draw, k);
    assert.ok(await isSigned(one.publicKey, message, await one.sign(message)));
  }
});

test("what is sealed is opened by its key, for its purpose, and by nothing else", async () => {
  const [mine, other] = [randomBytes(32), randomBytes(32)];
  const sealed = await hpkeSeal(utf8("a seed"), publicOf(mine), utf8("this"));
  assert.equal(toHex((await hpkeOpen(sealed, mine, utf8("this")))!), toHex(utf8("a seed")));
  assert.equal(await hpkeOpen(sealed, mine, utf8("that")), null);
  assert.equal(await hpkeOpen(sealed, other, utf8("this")), null);
  assert.equal(await hpkeOpen(sealed.subarray(1), mine, utf8("this")), null);
  assert.notDeepEqual(await hpkeSeal(utf8("a seed"), publicOf(mine), utf8("this")), sealed);
});

const LOW = [
  "00".repeat(32), `01${"00".repeat(31)}`,
  "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
  `ec${"ff".repeat(30)}7f`,
];

test("nothing is sealed to a key with which nothing would be secret", async () => {
  for (const low of LOW) {
    await assert.rejects(hpkeSeal(utf8("x"), hex(low), utf8("")), KeyTrouble);
    await assert.rejects(hpkeSeal(utf8("x"), hex(low), utf8(""), randomBytes(32)), KeyTrouble);
  }
  await assert.rejects(hpkeSeal(utf8("x"), new Uint8Array(31), utf8("")), KeyTrouble);
});

test("blake2b is blake2b", () => {
  const draw = draws(9);
  for (const size of [0, 1, 63, 127, 128, 129, 255, 256, 1000]) {
    const message = drawnBytes(draw, size);
    const known = createHash("blake2b512").update(message).digest("hex");
    assert.equal(toHex(blake2b(message, 64)), known);
  }
});

test("a browser without these curves makes keys of bytes, and seals all the same", async () => {
  const subtle = new Proxy(real.subtle, {
    get: (target, name) =>
      name === "generateKey"
        ? () => Promise.reject(new DOMException("no", "NotSupportedError"))
        : (target[name as keyof SubtleCrypto] as () => unknown).bind(target),
  });
  withCrypto({ subtle, getRandomValues: real.getRandomValues.bind(real) });
  try {
    const made = await newSigningKey();
    assert.equal(made.kept.kind, "bytes");
    const mine = randomBytes(32);
    const sealed = await hpkeSeal(utf8("a seed"), publicOf(mine), utf8("this"));
    withCrypto(real);
    assert.ok(await isSigned(made.publicKey, utf8("x"), await made.sign(utf8("x"))));
    assert.equal(toHex((await hpkeOpen(sealed, mine, utf8("this")))!), toHex(utf8("a seed")));
  } finally {
    withCrypto(real);
  }
});

test("a page without cryptography is told so in one sentence", () => {
  for (const poor of [undefined, {}, { getRandomValues: () => 0 }, { subtle: {} }]) {
    withCrypto(poor);
    try {
      assert.throws(requireCrypto, Unsupported);
      assert.throws(() => randomBytes(3), Unsupported);
    } finally {
      withCrypto(real);
    }
  }
});
