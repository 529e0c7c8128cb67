/** Documents and messages that are nearly right: each is read, or refused with an error of our tree,
 * at once and in little room. SOTTOVOCE_FUZZ is how many of each kind. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { whole } from "../src/contributions.ts";
import { SottovoceError } from "../src/errors.ts";
import { Fpl } from "../src/fpl.ts";
import { expand } from "../src/masking.ts";
import { catalogueFromTable } from "../src/wire/catalogue.ts";
import { descriptorFromTable } from "../src/wire/descriptor.ts";
import { Fields, readJson } from "../src/wire/fields.ts";
import { invitationFromText } from "../src/wire/invitations.ts";
import { decodeMasked, sealedSeedOf } from "../src/wire/masked.ts";
import { refusalOf } from "../src/wire/refusals.ts";
import { decodeReport } from "../src/wire/reports.ts";
import { openEnvelope } from "../src/wire/signing.ts";
import { termsFromTable } from "../src/wire/terms.ts";
import { decodeModel } from "../src/wire/versions.ts";
import { drawnBytes, draws, refuses } from "./help.ts";
import { type Draw, fplTerms, gramTerms, N_ITEMS } from "./inputs.ts";
import {
  catalogueText, descriptorText, invitationText, modelBytes, mutatedBytes, mutatedText, reportBytes,
  SHAPE, termsText,
} from "./mutations.ts";

const MANY = Number(process.env["SOTTOVOCE_FUZZ"] ?? "1000");
const terms = termsFromTable(readJson(gramTerms(draws(3))));
const have = { ...SHAPE, round: 4, items: new Float32Array(SHAPE.rows * SHAPE.width) };

const KINDS: Record<string, (draw: Draw) => unknown> = {
  invitation: (draw) => invitationFromText(mutatedText(draw, invitationText())),
  descriptor: (draw) => descriptorFromTable(readJson(mutatedText(draw, descriptorText(draw)))),
  terms: (draw) => termsFromTable(readJson(mutatedText(draw, termsText(draw)))),
  catalogue: (draw) => catalogueFromTable(readJson(mutatedText(draw, catalogueText(draw))), N_ITEMS),
  refusal: (draw) => refusalOf(400, mutatedText(draw, '{"error": "late", "detail": "too late"}')),
  fields: (draw) => Fields.ofJson(drawnBytes(draw, 9)).whole("a"),
  model: (draw) => decodeModel(mutatedBytes(draw, modelBytes(draw)), SHAPE.rows, SHAPE.width, have),
  report: (draw) =>
    decodeReport(mutatedBytes(draw, reportBytes(draw)), { nItems: 20, width: 3, round: 5, maxRows: 10 }),
  envelope: (draw) => openEnvelope(mutatedBytes(draw, drawnBytes(draw, 110))),
  masked: (draw) => decodeMasked(mutatedBytes(draw, drawnBytes(draw, 300)), terms, 5, 1, 20),
  seed: (draw) => sealedSeedOf(drawnBytes(draw, Math.floor(300 * draw()))),
};

for (const [kind, read] of Object.entries(KINDS)) {
  test(`${kind}: whatever comes is read or refused`, async () => {
    const draw = draws(kind.length + 17);
    let refused = 0;
    for (let k = 0; k < MANY; k++) {
      const begin = process.cpuUsage();
      try {
        await read(draw);
      } catch (error) {
        if (!(error instanceof SottovoceError)) throw error;
        assert.ok(error.message.length > 5 && error.message.length < 700, error.message);
        refused++;
      }
      // Its own time: a busy machine is no fault of a document.
      const { user, system } = process.cpuUsage(begin);
      assert.ok(user + system < 1e6, "it took too long");
    }
    assert.ok(kind === "refusal" || refused > MANY / 10, `${refused} of ${MANY} were refused`);
  });
}

test("what says that it is large takes no room", async () => {
  const before = process.memoryUsage().arrayBuffers;
  const head = new Uint8Array(64).fill(255);
  for (const magic of ["SVV1", "SVV2", "SVD1", "SVD2", "SVU3", "SVM1"]) {
    head.set([...magic].map((sign) => sign.charCodeAt(0)));
    await refuses(() => decodeModel(head, 2 ** 32 - 1, 2 ** 32 - 1, null));
    await refuses(() => decodeModel(head, 20, 3, have));
    const where = { nItems: 2 ** 31, width: 65535, round: 2 ** 32 - 1, maxRows: 2 ** 32 };
    await refuses(() => decodeReport(head, where));
    await refuses(() => decodeMasked(head, terms, 2 ** 32 - 1, 2 ** 32 - 1, 2 ** 32 - 1));
  }
  const large = { place: new Int32Array(0), steps: new Int32Array(0), size: 20_000, pairs: true };
  await refuses(() => whole({ ...large, items: 0 }));
  await refuses(() => expand(new Uint8Array(32), 2 ** 33, 32));
  const fpl = readJson(fplTerms(draws(4))) as { algorithm: object };
  const most = { ...fpl.algorithm, embedding_size: 4096, triples: 1_000_000 };
  await refuses(() => new Fpl(termsFromTable({ ...fpl, algorithm: most })));
  await refuses(() => readJson("[".repeat(1_000_000)));
  await refuses(() => readJson('{"a":'.repeat(1_000_000)));
  assert.ok(process.memoryUsage().arrayBuffers - before < 2 ** 24);
});
