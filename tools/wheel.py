"""Puts the files for browser tabs into the wheel, where they were built (`make browser`).

Whoever installs the package needs no Node; whoever builds it without Node gets one without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BrowserFiles(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = Path(self.root) / "clients" / "browser" / "dist"
        if version == "standard" and (built / "sottovoce.js").is_file():
            build_data["force_include"][str(built)] = "sottovoce/browser"
