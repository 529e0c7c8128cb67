"""Experiment files by path, or by name among those that come with the package."""

from __future__ import annotations

from pathlib import Path

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
    found = sorted(root.rglob("*.toml"))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in found}
