/** Documents and messages that are nearly right. */

import { type Bytes, concat, toHex, utf8 } from "../src/bytes.ts";
import { encodeReport } from "../src/wire/reports.ts";
import { encodeModel } from "../src/wire/versions.ts";
import { CHANGES_STEPS, MODEL_CHANGES, MODEL_STEPS } from "../src/wire/frames.ts";
import { drawnBytes } from "./help.ts";
import { type Draw, fplTerms, gramTerms, N_ITEMS } from "./inputs.ts";

const below = (draw: Draw, n: number): number => Math.floor(n * draw());
const one = <T>(draw: Draw, from: readonly T[]): T => from[below(draw, from.length)]!;

const STRANGE: readonly unknown[] = [
  null, true, false, 0, -1, 1, 2, 3, 1.5, -0.5, 1e308, 2 ** 31, 2 ** 32, 2 ** 53, "", "x", "0", "2", "all",
  "gram", "fpl", "open", "\ud800", "é", "\u0000", "a".repeat(700), "ff".repeat(32), [], {}, [[]], [null],
  [1, 2], { name: "gram" }, { name: 3 }, { names: [], of: [] }, [["a", "b"]],
];
const strange = (draw: Draw): unknown => structuredClone(one(draw, STRANGE));
const KEYS = ["name", "protocol", "__proto__", "constructor", "toString", "extra", "bits"];

/** A JSON text with something changed in it: a value, a field, or a byte. */
export function mutatedText(draw: Draw, text: string): string {
  if (draw() < 0.3) {
    const bytes = mutatedBytes(draw, utf8(text));
    return String.fromCharCode(...bytes.subarray(0, 20_000));
  }
  const whole = { it: JSON.parse(text) as unknown };
  for (let k = 0; k < 1 + below(draw, 3); k++) change(draw, whole);
  return JSON.stringify(whole.it) ?? "null";
}

function change(draw: Draw, tree: unknown, depth = 0): void {
  if (typeof tree !== "object" || tree === null) return;
  const table = tree as Record<string, unknown>;
  const names = Object.keys(table);
  const name = one(draw, names.length ? names : ["it"]);
  const inner = table[name];
  if (typeof inner === "object" && inner !== null && draw() < 0.8 && depth < 5) {
    return change(draw, inner, depth + 1);
  }
  const what = draw();
  if (what < 0.6) table[name] = strange(draw);
  else if (what < 0.75) delete table[name];
  else if (what < 0.9) {
    Object.defineProperty(table, one(draw, KEYS), {
      value: strange(draw), enumerable: true, configurable: true, writable: true,
    });
  } else if (Array.isArray(tree)) tree.push(strange(draw));
}

export function mutatedBytes(draw: Draw, bytes: Uint8Array): Bytes {
  let made = new Uint8Array(bytes);
  for (let k = 0; k < 1 + below(draw, 3); k++) {
    const at = below(draw, made.length + 1);
    const what = draw();
    if (what < 0.5 && made.length) made[at % made.length] = one(draw, [0, 1, 127, 128, 255, below(draw, 256)]);
    else if (what < 0.65) made = made.slice(0, at);
    else if (what < 0.8) made = concat(made, drawnBytes(draw, below(draw, 9)));
    else if (what < 0.9) made = concat(made.subarray(0, at), drawnBytes(draw, 1), made.subarray(at));
    else made = concat(made.subarray(0, at), made.subarray(Math.min(made.length, at + 4)));
  }
  return made;
}

// --- what is right ---------------------------------------------------------------------------------

export const descriptorText = (draw: Draw): string =>
  JSON.stringify({
    protocol: 2, federation: "town", terms: "ab", round: below(draw, 99), attempt: 1,
    state: one(draw, ["waiting", "open", "finished"]), selection: one(draw, ["all", "list"]), model: 3,
    poll_seconds: 2.5, published: one(draw, [null, 3]), catalogue: "c", roster: "",
    report_key: null,
  });

export const invitationText = (): string =>
  JSON.stringify({
    protocol: 2, server: "https://a.example", ca: "", token: "00ff", number: 7, federation: "town",
  });

export function catalogueText(draw: Draw): string {
  const items = Array.from({ length: N_ITEMS }, (_, k) => [`item ${k}`, draw() < 0.8 ? `Title ${k}` : ""]);
  if (draw() < 0.4) return JSON.stringify({ items });
  const of = items.map(() => [0, 1, 2].filter(() => draw() < 0.4));
  return JSON.stringify({ items, categories: { names: ["bar", "café", "zoo"], of } });
}

export const termsText = (draw: Draw): string => (draw() < 0.5 ? gramTerms(draw) : fplTerms(draw));

export const SHAPE = { rows: 20, width: 3 };

/** A model in any of its four forms. */
export function modelBytes(draw: Draw): Bytes {
  const { rows, width } = SHAPE;
  const items = Float32Array.from({ length: rows * width }, () => below(draw, 9) / 4 - 1);
  const what = draw();
  if (what < 0.25) return encodeModel({ round: 5, rows, width, items });
  const few = one(draw, [0, 1, 5, rows]);
  const picked = Array.from({ length: few }, (_, k) => k);
  const flags = new Uint8Array(3);
  for (const k of picked) flags[k >> 3]! |= 128 >> (k & 7);
  const listed = new Uint8Array(new Uint32Array(picked).buffer);
  const places = 4 * few <= 3 ? listed : flags;
  const steps = (count: number): Bytes =>
    concat(
      Uint8Array.from([254, 129, 128]), drawnBytes(draw, count),
      planes(draw, count), planes(draw, count),
    );
  if (what < 0.5) return concat(MODEL_STEPS.pack([5, 0, rows, rows, width]), steps(rows));
  const head = [5, 4, rows, few, width];
  if (what < 0.75) return concat(CHANGES_STEPS.pack(head), places, steps(few));
  return concat(MODEL_CHANGES.pack(head), places, planes(draw, few * width));
}

/** Numbers between 1 and 2, say: their highest bytes are 63. */
function planes(draw: Draw, count: number): Bytes {
  return concat(drawnBytes(draw, 3 * count).map((byte) => byte & 127) as Bytes, new Uint8Array(count).fill(63));
}

export function reportBytes(draw: Draw): Bytes {
  const item = Int32Array.from([1, 4, 7, 19].slice(0, 1 + below(draw, 4)));
  const far = one(draw, [100, 2 ** 20, 2 ** 45]);
  const values = Float64Array.from({ length: 3 * item.length }, () => Math.floor((draw() - 0.5) * far));
  return encodeReport(5, item, values, 3);
}

/** A table with something changed in it, or no JSON at all: whoever calls the Python side has seen
 * that it is a table. Halves of characters and numbers beyond 2^52 are for the fuzzer alone. */
function mutatedTable(draw: Draw, text: string): string {
  for (;;) {
    const made = mutatedText(draw, text);
    if (/\\ud800|\d{16}|\d\.0|\d[eE]/.test(made)) continue;
    try {
      const found: unknown = JSON.parse(made);
      if (namesTwice(found)) continue; // which a tab refuses, and Python's catalogue does not look for
      if (typeof found === "object" && found !== null && !Array.isArray(found)) return made;
    } catch {
      return made;
    }
  }
}

function namesTwice(table: unknown): boolean {
  const items = (table as { items?: unknown } | null)?.items;
  if (!Array.isArray(items)) return false;
  return new Set(items.map((one: unknown) => (Array.isArray(one) ? one[0] : one))).size < items.length;
}

/** Inputs for `FUNCTIONS` of which most are to be refused, in both languages. */
export const WRONG: Record<string, (draw: Draw) => unknown> = {
  invitation: (draw) => ({ text: mutatedTable(draw, invitationText()) }),
  descriptor: (draw) => ({ text: mutatedTable(draw, descriptorText(draw)) }),
  terms: (draw) => ({ text: mutatedTable(draw, termsText(draw)) }),
  catalogue_of: (draw) => ({
    terms: gramTerms(draw), body: toHex(utf8(mutatedTable(draw, catalogueText(draw)))),
  }),
  model: (draw) => ({
    bytes: toHex(draw() < 0.2 ? modelBytes(draw) : mutatedBytes(draw, modelBytes(draw))),
    n_rows: SHAPE.rows, width: SHAPE.width, have_round: 4,
    have: toHex(new Uint8Array(4 * SHAPE.rows * SHAPE.width)),
  }),
  read_report: (draw) => ({
    bytes: toHex(mutatedBytes(draw, reportBytes(draw))), round: 5, n_rows: 20, width: 3, max_rows: 10,
  }),
  open_envelope: (draw) => ({
    bytes: toHex(mutatedBytes(draw, concat(utf8("SVE1"), drawnBytes(draw, 110)))),
    public: "174553b456dddfc6908ecab1c101fe6ab21e2baa0617795b7d43a63482993fd5",
    federation: "town", purpose: "report",
  }),
  cut: (draw) => ({
    place: one(draw, [[0, 2], [2, 0], [0, 0], [-1, 1], [0, 9]]), size: one(draw, [3, 10]),
    value: one(draw, [["3fe0000000000000", "3fe0000000000000"], ["bfe0000000000000", "0000000000000000"], ["7ff0000000000000", "0000000000000000"], ["7ff8000000000000", "0000000000000000"], ["3ff0000000000000", "3fe0000000000000"], ["4010000000000000", "0000000000000000"]]),
    pairs: draw() < 0.5, scale: one(draw, ["3ff0000000000000", "3fe0000000000000", "3f50624dd2f1a9fc"]),
  }),
  hpke_open: (draw) => ({
    private: toHex(drawnBytes(draw, 32)), info: "", sealed: toHex(drawnBytes(draw, below(draw, 99))),
  }),
};
