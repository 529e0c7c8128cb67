"""The npm package in projects of other people: bundled, typed, rendered on a server, and at work in
a real Chromium under a strict policy."""

import json
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager

import pytest
from chromium import browser  # noqa: F401
from consent_world import GramTown, gram_terms
from package_world import CLIENT, MAIN, PAGE, BuiltShop, Project
from playwright.sync_api import expect
from tab_world import require
from talk import until

from sottovoce.wire.invitations import Invitation

WEBPACK = """export default { mode: "production", entry: "./main.js",
  output: { path: import.meta.dirname + "/site", publicPath: "auto" } };
"""
STRICT = {
    "target": "ES2022", "module": "ESNext", "moduleResolution": "bundler", "strict": True,
    "lib": ["ES2023", "DOM"], "noEmit": True, "skipLibCheck": False, "types": [],
    "exactOptionalPropertyTypes": True, "noUncheckedIndexedAccess": True,
}  # fmt: skip
TYPED = """import { type BrowserDevice, openDevice, type Recommended, UsageError } from "sottovoce";
import type { Consent } from "sottovoce/elements";

export async function first(federation: string): Promise<readonly Recommended[]> {
  const device: BrowserDevice = await openDevice({ federation });
  await device.visited(["a", ["b", 1_700_000_000]]);
  const consent: Consent = document.createElement("sottovoce-consent");
  consent.device = device;
  document.createElement("sottovoce-recommendations").card = ({ title }) => new Text(title);
  return device.recommend(3).catch((error: unknown) => {
    if (error instanceof UsageError) return [];
    throw error;
  });
}
// @ts-expect-error: an item id is a text
export const wrong = (device: BrowserDevice) => device.visited(42);
"""


def blocks(language):
    """The code of this language in the package's README."""
    text = (CLIENT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def with_vite(project):
    project.write("index.html", PAGE.format(script="/main.js"))
    project.tool("vite", "build", "--outDir", "site", "--logLevel", "warn")


def with_esbuild(project):
    """esbuild brings no file along: the two are copied beside its bundle."""
    project.tool("esbuild", "main.js", "--bundle", "--format=esm", "--outdir=site")
    beside(project)


def beside(project):
    package = project.folder / "node_modules" / "sottovoce" / "lib"
    for name in ("worker.js", "consent.js"):
        shutil.copy(package / name, project.folder / "site" / name)
    project.write("site/index.html", PAGE.format(script="/main.js"))


def with_webpack(project):
    project.write("webpack.config.js", WEBPACK)
    project.tool("webpack")
    project.write("site/index.html", PAGE.format(script="/main.js"))


BUNDLERS = {
    "vite": (with_vite, ["vite@7.3.8"]),
    "esbuild": (with_esbuild, ["esbuild@0.28.2"]),
    "webpack": (with_webpack, ["webpack@5.112.2", "webpack-cli@7.3.1"]),
}


def listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def participating(page, town, shop):
    """Open a device in the page, take part in a round, and get the model."""
    told = Invitation(shop.url, "", town.tokens[0].hex(), 0, town.terms.federation)
    page.evaluate("(given) => window.open_device({ invitation: given })", told.to_table())
    page.evaluate("window.device.visited(['venue-0', 'venue-1', 'venue-2'])")
    page.evaluate("window.device.refresh()")
    digest = page.evaluate("window.device.status().then((now) => now.pending.digest)")
    page.evaluate("(digest) => window.device.agree(digest)", digest)
    page.evaluate("window.device.choose({ takesPart: true, epsilon: 1 })")
    until(lambda: "/v1/reports" in [path for path, _ in shop.posted])
    town.next_round()
    page.evaluate("window.device.refresh()")


@pytest.fixture
def at_work(tmp_path, browser):  # noqa: F811
    """A function that opens a built site, with a federation behind it."""

    @contextmanager
    def opened(site):
        town = GramTown(gram_terms(tmp_path))
        with BuiltShop(site) as shop, town.serve() as server:
            shop.upstream = server.url
            with browser.new_context() as context:
                page = context.new_page()
                amiss = []
                page.on("pageerror", lambda error: amiss.append(str(error)))
                page.goto(shop.url)
                page.wait_for_selector("[data-ready]")
                yield page, town, shop
                assert amiss == []

    return opened


@pytest.mark.parametrize(
    "bundler",
    ["vite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("esbuild", "webpack"))],
)
def test_a_bundled_shop_recommends_and_contributes(tmp_path, at_work, bundler):
    make, tools = BUNDLERS[bundler]
    project = Project(tmp_path / "shop", tools)
    cards = blocks("js")[1]
    project.write("main.js", MAIN + cards)
    make(project)
    with at_work(project.folder / "site") as (page, town, shop):
        participating(page, town, shop)
        frame = page.frame_locator("sottovoce-consent iframe")
        expect(frame.locator("[data-ready]")).to_be_visible()
        expect(page.locator("sottovoce-recommendations li figcaption")).to_have_count(10)


def test_the_page_of_the_readme_is_a_shop(tmp_path, at_work):
    """Its script and its elements, as somebody pastes them."""
    project = Project(tmp_path / "shop", ["esbuild@0.28.2"])
    script = blocks("js")[0].replace('"https://federation.example"', "location.origin")
    ready = "window.device = device; document.body.dataset.ready = '';"
    project.write("main.js", f"{script}\n{ready}")
    with_esbuild(project)
    place = project.folder / "site" / "index.html"
    place.write_text(place.read_text().replace('<div id="root"></div>', blocks("html")[0]))
    with at_work(project.folder / "site") as (page, _, _):
        frame = page.frame_locator("sottovoce-consent iframe")
        expect(frame.locator("[data-ready]")).to_be_visible()
        assert page.evaluate("window.device.things().then((all) => all[0].id)") == "item-7"


REACT = """import { createRoot } from "react-dom/client";
import { useRecommendations } from "./useRecommendations";

function Shop() {
  const { device, items } = useRecommendations(location.origin, 3);
  if (device === undefined) return <p>Wait</p>;
  window.device = device;
  document.body.dataset.ready = "";
  return <ol>{items.map(({ id, title }) => <li key={id}>{title}</li>)}</ol>;
}
createRoot(document.getElementById("root")!).render(<Shop />);
declare global { interface Window { device: unknown } }
"""


@pytest.mark.slow
def test_the_hook_of_the_readme_works_in_react(tmp_path, at_work):
    tools = ["esbuild@0.28.2", "typescript@5.9.3", "react@19.2.0", "react-dom@19.2.0",
             "@types/react@19.2.2", "@types/react-dom@19.2.2"]  # fmt: skip
    project = Project(tmp_path / "shop", tools)
    project.write("useRecommendations.tsx", blocks("ts")[0])
    project.write("main.tsx", REACT)
    options = {**STRICT, "jsx": "react-jsx"}
    project.write("tsconfig.json", json.dumps({"compilerOptions": options, "files": ["main.tsx"]}))
    project.tool("tsc", "-p", ".")
    project.tool(
        "esbuild", "main.tsx", "--bundle", "--format=esm", "--outdir=site", "--jsx=automatic"
    )
    beside(project)
    with at_work(project.folder / "site") as (page, town, _):
        town.next_round()
        page.evaluate("window.device.visited(['venue-0', 'venue-1'])")
        page.evaluate("window.device.refresh()")
        expect(page.locator("li")).to_have_count(3)


@pytest.mark.slow
def test_vite_serves_the_package_while_one_works_on_a_shop(tmp_path, browser):  # noqa: F811
    """`vite dev`, configured as the README says."""
    project = Project(tmp_path / "shop", ["vite@7.3.8"])
    project.write("main.js", MAIN)
    project.write("index.html", PAGE.format(script="/main.js"))
    excluded = 'export default { optimizeDeps: { exclude: ["sottovoce"] } };'
    project.write("vite.config.js", excluded)
    assert 'optimizeDeps: { exclude: ["sottovoce"] }' in (CLIENT / "README.md").read_text()
    vite = project.folder / "node_modules" / ".bin" / "vite"
    with socket.create_server(("127.0.0.1", 0)) as line:
        port = line.getsockname()[1]
    command = [str(vite), "--port", str(port), "--strictPort", "--host", "127.0.0.1"]
    town = GramTown(gram_terms(tmp_path))
    with town.serve() as server, subprocess.Popen(command, cwd=project.folder) as running:
        try:
            with browser.new_context(bypass_csp=True, ignore_https_errors=True) as context:
                page = context.new_page()
                until(lambda: listens(port))
                page.goto(f"http://127.0.0.1:{port}/")
                page.wait_for_selector("[data-ready]")
                page.evaluate("(url) => window.open_device({ federation: url })", server.url)
                page.evaluate("window.device.visited('venue-0')")
                assert page.evaluate("window.device.things().then((all) => all.length)") == 1
                frame = page.frame_locator("sottovoce-consent iframe")
                expect(frame.locator("[data-ready]")).to_be_visible()
        finally:
            running.terminate()


def test_the_package_has_types_and_is_imported_on_a_server(tmp_path):
    """TypeScript at its strictest, and an import where there is no document, as frameworks that
    render on a server do it."""
    project = Project(tmp_path / "shop", ["typescript@5.9.3"])
    project.write("tsconfig.json", json.dumps({"compilerOptions": STRICT, "files": ["shop.ts"]}))
    project.write("shop.ts", TYPED)
    project.tool("tsc", "-p", ".")
    names = "Object.keys({ ...await import('sottovoce'), ...await import('sottovoce/elements') })"
    node = shutil.which("node")
    require(node, "Node is not installed")
    told = project.run(node, "--input-type=module", "-e", f"console.log({names}.join())")
    assert told.returncode == 0, told.stdout
    assert {"openDevice", "Consent", "Recommendations"} <= set(told.stdout.strip().split(","))
