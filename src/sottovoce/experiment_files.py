"""Files that come with the package: experiments, also by path, and benchmarks by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from sottovoce import resources
from sottovoce.errors import UsageError


def find(name: str) -> Path:
    """A path to a TOML file, or the name of an installed one ("demo", "presets/pfpl", "pfpl")."""
    given = Path(name)
    if given.is_file():
        return given
    if given.is_dir():
        raise UsageError(f"{name} is a folder, not an experiment file")
    known = installed()
    asked = given.as_posix().removesuffix(".toml")
    matches = [path for path in known if asked in (path, path.rsplit("/", 1)[-1])]
    if f"presets/{asked}" in matches:
        return known[f"presets/{asked}"]
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        raise UsageError(f"{name} could be {' or '.join(sorted(matches))}; say which")
    raise UsageError(
        f"there is no experiment file {name}; those that come with the package are "
        f"{', '.join(known)}"
    )


def installed() -> dict[str, Path]:
    """Names of the experiment files of this installation, without suffix, and their paths."""
    root = resources.folder("experiments")
    found = sorted(p for p in root.rglob("*.toml") if p.parent.name != "reproduce")
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in found}


def load_benchmark(name: str) -> Any:
    """The benchmark `name` as a module; dashes in the name are underscores in the file's name."""
    root = resources.folder("benchmarks")
    known = {
        path.stem.replace("_", "-"): path
        for path in sorted(root.glob("*.py"))
        if not path.name.startswith("_")
    }
    path = known.get(name.replace("_", "-"))
    if path is None:
        listed = ", ".join(known) or "none in this installation"
        raise UsageError(f"there is no benchmark {name}; there are: {listed}")
    spec = importlib.util.spec_from_file_location(f"sottovoce_benchmark_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the benchmark {name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, "run"):
        raise UsageError(f"the benchmark {name} has no function run")
    return module
