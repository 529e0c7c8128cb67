"""Puts what pyproject.toml cannot name into the wheel and the source archive: the pages at the root
of the repository, the pages of the papers with links to where the wheel has the code, and the files
for browser tabs if they were built (`make browser`).

Whoever installs the package needs no Node; whoever builds it without Node gets one without tabs.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGES = ("CHANGELOG.md", "CITATION.cff", "README.md", "SECURITY.md")
TABS = "clients/browser/dist"
PAPERS, CODE = "docs/papers", "src/sottovoce/"


class ShippedFiles(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return  # an editable installation reads them where they are
        root, wheel = Path(self.root), self.target_name == "wheel"
        included: dict[str, str] = build_data["force_include"]
        if wheel:
            included |= {str(root / name): f"sottovoce/{name}" for name in PAGES}
            self.copies = TemporaryDirectory()  # removed with this object
            for page in sorted((root / PAPERS).glob("*.md")):
                copy = Path(self.copies.name, page.name)
                text = page.read_text(encoding="utf-8").replace(f"](../../{CODE}", "](../../")
                copy.write_text(text, encoding="utf-8")
                included[str(copy)] = f"sottovoce/{PAPERS}/{page.name}"
        if (root / TABS / "sottovoce.js").is_file():
            included[str(root / TABS)] = "sottovoce/browser" if wheel else TABS
        elif wheel:
            self.app.display_warning(
                "The files for browser tabs are not built, and this wheel is without them: with "
                "Node 20, `make browser` builds them."
            )
