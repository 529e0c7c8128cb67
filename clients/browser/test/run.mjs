// Bundles every test with esbuild, which takes the types out, and runs them with node's own runner.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const built = join(here, "..", ".built");
const named = process.argv.slice(2);
const tests = readdirSync(here)
  .filter((name) => name.endsWith(".test.ts"))
  .filter((name) => named.length === 0 || named.some((one) => name.startsWith(one)));
if (tests.length === 0) {
  console.error("there is no such test");
  process.exit(1);
}
const out = join(built, String(process.pid));
mkdirSync(out, { recursive: true });
try {
  await build({
    entryPoints: tests.map((name) => join(here, name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    logLevel: "warning",
    define: { ROOT: JSON.stringify(join(here, "..", "..", "..")) },
  });
  const files = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
  const run = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" });
  process.exitCode = run.status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
