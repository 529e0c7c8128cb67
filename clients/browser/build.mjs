// Builds what a page loads into dist/, what the npm package has into lib/, and prints what
// both weigh. `node build.mjs --core` measures the core alone and writes nothing.
import { copyFileSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { generateDtsBundle } from "dts-bundle-generator";
import { build } from "esbuild";
import typescript from "typescript";

const here = dirname(fileURLToPath(import.meta.url));
const source = join(here, "..", "..", "src", "sottovoce");
const dist = join(here, "dist");
/** The npm package's files, beside `dist`. */
const LIB = "../lib";
const MOST = 60_000;
const MOST_CORE = 30_000;
const MOST_PAGE = 60_000;
const MOST_PACKAGE = 45_000;
const CORE = ["contributions", "epsilon", "fpl", "gram", "masking", "streams"];
const WIRE = [
  "catalogue", "descriptor", "invitations", "masked", "refusals", "reports", "sealing", "signing",
  "terms", "versions",
];
// Sentences of commands, report cards and the demo, which no tab says.
const ELSEWHERE = ["attack", "device", "hiding", "terminal", "shop"];
const IN_ELEMENTS = [
  "page.title", "page.recommend_empty", "tab.for_you", "tab.for_you_help",
  "tab.open_centre", "tab.open_centre_help", "tab.no_frame",
];
const options = {
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  platform: "browser",
  legalComments: "eof",
  logLevel: "warning",
  absWorkingDir: here,
};
const weight = (content) => gzipSync(content, { level: 9 }).length;
const said = (what, bytes, most) => {
  console.log(`${what}: ${bytes.toLocaleString("en")} bytes (gzip), at most ${most.toLocaleString("en")}`);
  if (bytes > most) {
    console.error(`${what} is too large`);
    process.exitCode = 1;
  }
};

// Pages of one head.
const ABOUT_FRAME = `
    <!-- Origins of pages that may have this one in a frame, with a space between; name them in the header
         Content-Security-Policy: frame-ancestors, too. -->
    <meta name="sottovoce-pages" content="">
    <!-- Where the federation's server is, if it is not at this page's own origin; name that in
         connect-src, too. -->
    <meta name="sottovoce-federation" content="">`;
const PAGES = {
  consent: { policy: "", about: "", class: ' class="centre"' },
  frame: { policy: " worker-src 'self';", about: ABOUT_FRAME, class: "" },
};
const pageOf = (parts) =>
  readFileSync(join(here, "pages", "page.html"), "utf8").replace(/\{(\w+)\}/g, (_, name) => parts[name]);

// Everything that the core exports, as if a page used all of it.
const contents = [...CORE, ...WIRE.map((name) => `wire/${name}`)]
  .map((name) => `export * as ${name.replace("wire/", "wire_")} from "./src/${name}.ts";`)
  .join("\n");
const core = await build({ ...options, write: false, stdin: { contents, resolveDir: here, loader: "ts" } });
said("core", weight(core.outputFiles[0].contents), MOST_CORE);

/** The part of TOML in which the catalogue is written: tables, and strings or lists on one line. */
function toml(name) {
  const found = {};
  let into = found;
  for (const line of readFileSync(join(source, "core", "words", `${name}.toml`), "utf8").split("\n")) {
    const table = /^\[([\w.-]+)\]\s*$/.exec(line);
    const entry = /^("?)([\w.-]+)\1\s*=\s*(["[].*)$/.exec(line);
    const at = (start, path) => path.split(".").reduce((into, part) => (into[part] ??= {}), start);
    if (table) into = at(found, table[1]);
    else if (entry) {
      const path = entry[1] ? [entry[2]] : entry[2].split(".");
      const last = path.pop();
      (path.length ? at(into, path.join(".")) : into)[last] = JSON.parse(entry[3]);
    } else if (line.trim() && !line.startsWith("#")) throw new Error(`${name}.toml: ${line}`);
  }
  return found;
}

const flat = (table, before = "") =>
  Object.entries(table).flatMap(([name, value]) =>
    typeof value === "string" ? [[before + name, value]] : flat(value, `${before + name}.`),
  );

function sentences(language) {
  const kept = flat(toml(language)).filter(([key]) => !ELSEWHERE.includes(key.split(".")[0]));
  return Object.fromEntries(kept);
}

/** Whoever loads the file meanwhile gets the old one or the new one, whole. */
function put(name, content) {
  const path = join(dist, name);
  const half = `${path}.${process.pid}`;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(half, content);
  renameSync(half, path);
}

async function bundle(entryPoints, plugins = [], folder = "") {
  const made = await build({ ...options, entryPoints, outdir: dist, plugins, write: false });
  for (const { path, contents } of made.outputFiles) put(join(folder, basename(path)), contents);
}

if (!process.argv.includes("--core")) {
  const words = { en: sentences("en"), it: sentences("it") };
  const few = Object.entries(words).map(([language, every]) => [
    language, Object.fromEntries(IN_ELEMENTS.map((key) => [key, every[key]])),
  ]);
  const look = [join(source, "core", "look.css"), join(source, "web", "pages", "style.css")];
  const style = look.map((file) => readFileSync(file)).join("\n");
  const glossary = toml("glossary");
  const contents = {
    words: JSON.stringify(Object.fromEntries(few)),
    sentences: JSON.stringify({ ...words, glossary }),
    style: JSON.stringify(style),
  };
  const inlined = {
    name: "inlined",
    setup(building) {
      building.onResolve({ filter: /^sottovoce:/ }, ({ path }) => ({
        path: path.replace("sottovoce:", ""), namespace: "inlined",
      }));
      building.onLoad({ filter: /.*/, namespace: "inlined" }, ({ path }) => ({
        contents: contents[path], loader: "json",
      }));
    },
  };
  // Files that are loaded beside each other have one of each: the library with its worker, and the
  // pages' errors, which are known by their class.
  const beside = (name, filter) => ({
    name: "beside",
    setup: (building) =>
      building.onResolve({ filter }, () => ({ path: `./${name}.js`, external: true })),
  });
  const sdk = { sottovoce: "src/index.ts", "service-worker": "src/service-worker.ts" };
  const page = { elements: "src/elements.ts", consent: "src/consent.ts" };
  await bundle(sdk);
  await bundle(page, [inlined]);
  const frame = { frame: "src/frame.ts" };
  const library = beside("sottovoce", /^\.\/index\.ts$/);
  await bundle(frame, [inlined, library]);
  const provider = { provider: "src/provider.ts" };
  await bundle(provider, [beside("trouble", /pages\/trouble\.js$/)]);
  put("consent.css", style);
  for (const [language, every] of Object.entries(words)) {
    put(`words/${language}.json`, JSON.stringify(every));
  }
  put("words/glossary.json", JSON.stringify(glossary));
  for (const [name, parts] of Object.entries(PAGES)) put(`${name}.html`, pageOf({ script: name, ...parts }));
  const all = (...names) =>
    names.reduce((sum, name) => sum + weight(readFileSync(join(dist, name))), 0);
  said("SDK", all("sottovoce.js", "service-worker.js"), MOST);
  said("consent centre, one language", all(
    "elements.js", "consent.html", "consent.js", "consent.css", "words/en.json",
  ), MOST_PAGE);

  // The npm package: files that bundlers bring along one by one, with types.
  const inPackage = {
    name: "package",
    setup: (building) =>
      building.onResolve({ filter: /^\.\/(self-worker|frame-page)\.ts$/ }, ({ path, resolveDir }) => ({
        path: join(resolveDir, path.replace("self-", "package-").replace("frame-", "package-")),
      })),
  };
  const files = {
    index: "src/index.ts", elements: "src/elements.ts", worker: "src/worker-main.ts",
    consent: "src/package-consent.ts", "service-worker": "src/service-worker.ts",
  };
  await bundle(files, [inlined, inPackage], LIB);
  const entryOfTypes = join(here, "src", "index.ts");
  const output = { noBanner: true, exportReferencedTypes: false };
  const [typed] = generateDtsBundle([{ filePath: entryOfTypes, output }], {
    preferredConfigPath: join(here, "tsconfig.json"),
  });
  put(join(LIB, "index.d.ts"), typed);
  // The elements' types name the library's, so that a device of one is a device of the other.
  const entry = join(here, "src", "elements.ts");
  const { config } = typescript.readConfigFile(join(here, "tsconfig.json"), typescript.sys.readFile);
  const { options: asked } = typescript.parseJsonConfigFileContent(config, typescript.sys, here);
  const program = typescript.createProgram([entry, join(here, "src", "words.d.ts")], {
    ...asked, noEmit: false, declaration: true, emitDeclarationOnly: true,
  });
  program.emit(program.getSourceFile(entry), (_, text) =>
    put(join(LIB, "elements.d.ts"), text.replaceAll("./index.ts", "./index.js")),
  );
  copyFileSync(join(here, "..", "..", "LICENSE"), join(here, "LICENSE"));
  said("package", all("../lib/index.js", "../lib/worker.js"), MOST_PACKAGE);
  said("package: elements and consent centre", all("../lib/elements.js", "../lib/consent.js"), MOST_PAGE);
}
