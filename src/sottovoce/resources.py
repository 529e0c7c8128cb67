"""Where experiment files and benchmarks lie: in the installed package, or in the checkout."""

from __future__ import annotations

from pathlib import Path

from sottovoce.errors import UsageError


def folder(name: str) -> Path:
    """The folder `name` ("experiments" or "benchmarks") of this installation."""
    package = Path(__file__).resolve().parent
    for place in (package / name, package.parents[1] / name):
        if place.is_dir():
            return place
    raise UsageError(f"this installation has no folder of {name}")
