"""The npm package as web developers get it: packed, installed into a project of their own, and
brought into a page by their bundler."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from people_world import Shop
from tab_world import CLIENT, built, require, run

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A shop</title>
<link rel="icon" href="data:,"></head><body><main><h1>A shop</h1><div id="root"></div></main>
<script type="module" src="{script}"></script></body></html>"""
MAIN = """import "sottovoce/elements";
import { openDevice } from "sottovoce";

window.open_device = async (options) => {
  window.device = await openDevice({ federation: location.origin, ...options });
  for (const part of document.querySelectorAll(".private")) part.device = window.device;
};
for (const name of ["sottovoce-recommendations", "sottovoce-consent"]) {
  const part = document.createElement(name);
  part.className = "private";
  document.getElementById("root").append(part);
}
document.body.dataset.ready = "";
"""


@cache
def packed(folder):
    """The package's archive, as `npm pack` makes it."""
    built()
    told = run(["npm", "pack", "--ignore-scripts", "--json", "--pack-destination", str(folder)])
    require(told.returncode == 0, f"npm pack did not work: {told.stdout}")
    found = json.loads(told.stdout[told.stdout.index("[") :])
    return Path(folder) / found[0]["filename"]


class Project:
    """A project in a fresh folder with the package and these tools installed from the registry."""

    def __init__(self, folder, tools=()):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.write("package.json", json.dumps({"name": "shop", "private": True, "type": "module"}))
        archive = packed(folder.parent)
        npm = shutil.which("npm") or "npm"
        told = self.run(npm, "install", "--no-audit", "--no-fund", str(archive), *tools)
        require(told.returncode == 0, f"npm install did not work: {told.stdout}")

    def write(self, name, content):
        (self.folder / name).write_text(content, encoding="utf-8")

    def run(self, *command, **more):
        return subprocess.run(
            command, cwd=self.folder, env={**os.environ, **more}, timeout=600, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def tool(self, name, *given):
        """Run an installed tool, which must succeed."""
        told = self.run(str(self.folder / "node_modules" / ".bin" / name), *given)
        assert told.returncode == 0, told.stdout
        return told.stdout


class BuiltShop(Shop):
    """A shop whose site is a folder that a bundler has made, under the strict policy."""

    def __init__(self, site):
        super().__init__()
        self.pages = {}
        self.site = Path(site).resolve()

    def _own(self, path):
        place = (self.site / (path.lstrip("/") or "index.html")).resolve()
        if self.site in place.parents and place.is_file():
            return self._sent(place.read_bytes(), place.suffix)
        return super()._own(path)


__all__ = ["CLIENT", "MAIN", "PAGE", "BuiltShop", "Project", "packed"]
