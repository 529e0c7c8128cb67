/** `tests/vectors/device`: what a device computes, function by function, as Python computed it. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { answered, FUNCTIONS } from "./functions.ts";
import { root } from "./help.ts";

const folder = join(root(), "tests", "vectors", "device");

interface Case {
  readonly in: Record<string, string>;
  readonly out?: unknown;
  readonly refused?: true;
}

/** What this language, or this library, does otherwise, and why that does no harm. */
function differs(name: string, given: Record<string, string>): boolean {
  // JSON has one kind of number: 1.0 is a whole number here.
  if (name === "descriptor") return given["text"]!.includes('"round": 1.0');
  // Checked sums are for other devices.
  if (name === "terms") return given["text"]!.includes('"checked-sum"');
  // A tab reads no compressed reports, and writes none.
  return name === "read_report" && given["bytes"]!.slice(10, 12) === "01";
}

for (const file of readdirSync(folder).sort()) {
  const content = JSON.parse(readFileSync(join(folder, file), "utf-8")) as Record<string, Case[]>;
  for (const [name, cases] of Object.entries(content)) {
    const missing = !(name in FUNCTIONS) && "a tab does not speak it";
    test(`${file}: ${name}`, { skip: missing }, async () => {
      assert.ok(cases.length > 0);
      for (const [k, one] of cases.entries()) {
        const { in: given, ...wanted } = one;
        if (differs(name, given)) continue;
        assert.deepEqual(await answered(name, given), wanted, `case ${k}`);
      }
    });
  }
}
