/** Every message of `tests/vectors/federation.json` that a device writes or reads: the same bytes
 * here as in Python, and what must be refused is. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { toHex, u32s, utf8 } from "../src/bytes.ts";
import { hpkeSeal, publicOf, signingKeyFromSeed } from "../src/crypto.ts";
import { readJson } from "../src/wire/fields.ts";
import {
  binding, decodeMasked, encodeMasked, isSigned, openSeed, sealedSeedOf, sealSeed,
} from "../src/wire/masked.ts";
import { decodeReport, encodeReport } from "../src/wire/reports.ts";
import { keyId, layerInfo, openRecords, openReports, reportInfo } from "../src/wire/sealing.ts";
import { openEnvelope, prove, sealEnvelope, signedBy } from "../src/wire/signing.ts";
import { termsFromTable, termsName, termsTable } from "../src/wire/terms.ts";
import type { ModelView, Terms } from "../src/wire/types.ts";
import { decodeModel, encodeModel } from "../src/wire/versions.ts";
import { hex, refuses, type Vector, vectorFile } from "./help.ts";

const FILE = vectorFile("federation.json");
const KEYS = FILE.private_keys;
const here = hex(KEYS["here"]!);
const there = hex(KEYS["there"]!);
const ephemeral = hex(KEYS["ephemeral"]!);
const signer = await signingKeyFromSeed(hex(KEYS["signer"]!));
const place = { federation: "town", round: 5, tier: 1 };
const before: ModelView = { round: 4, rows: 40, width: 2, items: new Float32Array(80).fill(1) };

const of = (kind: string): Vector[] => FILE.vectors.filter((one) => one.kind === kind);

/** The terms behind the masked messages: those of the vector, over a secure sum. */
function summed(more: Record<string, unknown> = {}): Terms {
  const table = readJson(hex(of("terms")[0]!.bytes)) as Record<string, unknown>;
  const link = {
    name: "secure-sum", min_devices: 3, clip: 0, noise: 0, groups: 8, url: "https://127.0.0.1:1",
    authority: "", key: toHex(publicOf(there)), ...more,
  };
  return termsFromTable({ ...table, link });
}

async function each(
  kind: string,
  read: (bytes: Uint8Array) => unknown,
  check: (one: Vector, says: any) => unknown,
): Promise<void> {
  const found = of(kind);
  assert.ok(found.length > 0, kind);
  for (const one of found) {
    await check(one, one.says);
    for (const wrong of one.refused) await refuses(() => read(hex(wrong)));
  }
}

test("report", async () => {
  const where = { nItems: 40, width: 2, round: 5, maxRows: 30 };
  await each("report", (bytes) => decodeReport(bytes, where), (one, says) => {
    const { item, values } = decodeReport(hex(one.bytes), where);
    assert.deepEqual([...item], says.item);
    assert.deepEqual([...values], says.values.flat());
    assert.equal(toHex(encodeReport(5, item, values, 2)), one.bytes);
  });
});

test("model, whole and in changes", async () => {
  const read = (bytes: Uint8Array): ModelView => decodeModel(bytes, 40, 2, before);
  await each("model", read, (one, says) => {
    const view = read(hex(one.bytes));
    assert.equal(view.round, says.round);
    assert.deepEqual([...view.items], says.items.flat());
    assert.deepEqual(decodeModel(encodeModel(view), 40, 2), view);
    if (one.bytes.startsWith(toHex(utf8("SVV1")))) assert.equal(toHex(encodeModel(view)), one.bytes);
  });
});

test("envelope", async () => {
  await each("envelope", openEnvelope, async (one, says) => {
    const found = openEnvelope(hex(one.bytes));
    assert.equal(toHex(found.body), says.body);
    assert.equal(toHex(found.nonce), says.nonce);
    assert.deepEqual([found.number, found.round, found.attempt], [2, 5, 1]);
    assert.equal(await signedBy(found, signer.publicKey, "town", "report"), says.signed);
    assert.equal(await signedBy(found, signer.publicKey, "town", "check-in"), false);
    if (says.signed) {
      assert.equal(toHex(await sealEnvelope(signer, "town", "report", found)), one.bytes);
    }
  });
});

for (const [kind, terms] of [
  ["masked update", summed()],
  ["masked update of 40 bits", summed({ bits: 40 })],
] as const) {
  test(kind, async () => {
    const read = (bytes: Uint8Array) => decodeMasked(bytes, terms, 5, 1, 200);
    await each(kind, read, async (one, says) => {
      const { masked, record } = read(hex(one.bytes));
      const size = terms.bits / 8;
      const numbers = Array.from({ length: 200 }, (_, k) =>
        [...masked.subarray(k * size, (k + 1) * size)].reduceRight((sum, byte) => 256 * sum + byte, 0),
      );
      assert.deepEqual(numbers, says.masked);
      assert.equal(toHex(record.device), says.record.device);
      assert.equal(toHex(encodeMasked(terms, masked, record, 5, 1)), one.bytes);
    });
  });
}

test("sealed seed", async () => {
  const bound = await binding(summed(), 5, 1, new Uint8Array(32), null);
  await each("sealed seed", sealedSeedOf, async (one, says) => {
    const record = sealedSeedOf(hex(one.bytes));
    assert.equal(await isSigned(record, bound), says.signed);
    assert.equal(toHex((await openSeed(record, there, bound))!), says.seed);
    assert.equal(await openSeed(record, here, bound), null);
    if (!says.signed) return;
    const made = await sealSeed(hex(says.seed), signer, publicOf(there), bound, ephemeral);
    assert.equal(toHex(made.device) + toHex(made.sealed) + toHex(made.signature), one.bytes);
  });
});

test("terms, their text and their name", async () => {
  const question = of("question for masks")[0]!.says as { terms: string };
  assert.equal(toHex(await termsName(summed())), question.terms);
  await each("terms", (bytes) => termsFromTable(readJson(bytes)), (one, says) => {
    const terms = termsFromTable(readJson(hex(one.bytes)));
    assert.deepEqual(termsTable(terms), says);
    assert.equal(toHex(utf8(terms.canonical)), one.bytes);
  });
});

test("sealed and layered reports", async () => {
  const read = (bytes: Uint8Array) => openReports(bytes, there, place);
  await each("sealed reports", read, async (one, says) => {
    const { opened, refused } = await read(hex(one.bytes));
    assert.deepEqual([[...u32s(opened)], refused], [says.reports, says.refused]);
    const info = await reportInfo(publicOf(there), place);
    const first = await hpkeSeal(new Uint8Array([8, 0, 0, 0]), publicOf(there), info, ephemeral);
    assert.equal(toHex(first), one.bytes.slice(0, 104));
  });
  const key = await keyId(publicOf(there));
  const layer = await layerInfo(publicOf(here), { ...place, hop: 1, key, terms: new Uint8Array(32) });
  const peel = (bytes: Uint8Array) => openRecords(bytes, 100, here, layer);
  await each("layered reports", peel, async (one, says) => {
    const { opened, refused } = await peel(hex(one.bytes));
    assert.deepEqual([toHex(opened), refused], [says.records, says.refused]);
  });
});

test("enrolment of a device", async () => {
  const told = FILE["enrolment of a device"] as { token: string; signature: string };
  assert.equal(toHex(await prove(signer, "town", hex(told.token))), told.signature);
});
