/** Random inputs in both languages: what a tab computes is what Python computes, bit for bit.
 *
 * SOTTOVOCE_PYTHON names a Python in which the project is installed; without it there is nothing to
 * compare with.
 * SOTTOVOCE_INPUTS is how many inputs the quick functions get (10,000 for a long run), SOTTOVOCE_ONLY
 * names some of them. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { answered } from "./functions.ts";
import { draws, root } from "./help.ts";
import { INPUTS } from "./inputs.ts";
import { WRONG } from "./mutations.ts";

const PYTHON = process.env["SOTTOVOCE_PYTHON"] ?? "";
const MANY = Number(process.env["SOTTOVOCE_INPUTS"] ?? "100");
const SEED = Number(process.env["SOTTOVOCE_SEED"] ?? "1");
const home = process.env["SOTTOVOCE_ORACLE"] ?? root();
const oracle = join(home, "tests", "worlds", "cross_language.py");
const why =
  PYTHON === ""
    ? "SOTTOVOCE_PYTHON names no Python to compare with"
    : existsSync(oracle)
      ? false
      : "there is no oracle to compare with";

test("both languages compute the same", { skip: why }, async (context) => {
  const child = spawn(PYTHON, [oracle], {
    env: { ...process.env, PYTHONPATH: `${join(home, "src")}:${join(home, "tests", "worlds")}` },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  try {
    const right = Object.entries(INPUTS).map(([name, one]) => [name, name, ...one] as const);
    const wrong = Object.entries(WRONG).map(
      ([name, make]) => [`${name}, nearly right`, name, 10, make] as const,
    );
    const only = (process.env["SOTTOVOCE_ONLY"] ?? "").split(",");
    for (const [what, name, fewer, make] of [...right, ...wrong]) {
      if (!only.some((one) => what.startsWith(one))) continue;
      await context.test(what, async () => {
        const draw = draws(SEED * 1000 + what.length);
        let refused = 0;
        const count = Math.max(5, Math.ceil(MANY / fewer));
        for (let done = 0; done < count; ) {
          // Some at a time, so that neither side waits for the other, nor a pipe for a reader.
          const asked = Array.from({ length: Math.min(50, count - done) }, () => make(draw));
          for (const given of asked) child.stdin.write(`${JSON.stringify({ call: name, in: given })}\n`);
          const theirs: unknown[] = [];
          for (const _ of asked) {
            const line = await lines.next();
            assert.ok(line.done !== true, "the oracle has ended");
            theirs.push(JSON.parse(line.value));
          }
          for (const [k, given] of asked.entries()) {
            const mine = await answered(name, given);
            assert.deepEqual(mine, theirs[k], `${name} of ${JSON.stringify(given)}`);
            if ("refused" in (mine as object)) refused++;
          }
          done += asked.length;
        }
        assert.ok(refused < count || what !== name, "everything was refused");
      });
    }
  } finally {
    child.stdin.end();
    child.kill();
  }
});
