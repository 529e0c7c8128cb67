"""`make wheel`, `make sbom`, `make release`: what is handed out, and whether a stranger can use it.

Bills of materials are made here from the lock files, which know every hash: a tool for that would
bring more packages into the locks than this takes lines. They lie beside the wheel and not in it:
a wheel's own bill (PEP 770) is for what is inside of it, and nothing of others is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BILLS = ("core", "web", "torch", "dev")
"""Locks that have a bill of materials."""
COMMANDS = (
    ("--version",),
    ("docs", "privacy", "--path"),
    ("demo",),
    ("recommend", "runs/demo", "--user", "r00003"),
    ("reproduce", "fpl-table3", "--quick"),
)
"""What a wheel must be able to do where there is nothing else of Sottovoce."""


def version() -> str:
    text = (ROOT / "src" / "sottovoce" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("src/sottovoce/__init__.py has no __version__")
    return found[1]


def build(out: Path, *targets: str) -> list[Path]:
    """Source archive and wheel, or one of them, by hatchling of this environment."""
    names = {
        "sdist": f"sottovoce-{version()}.tar.gz",
        "wheel": f"sottovoce-{version()}-py3-none-any.whl",
    }
    made = [out / names[target] for target in targets or names]
    for target in targets or names:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(f"the {target} cannot be built:\n{done.stdout}{done.stderr}")
        for line in done.stderr.splitlines():  # warnings, and where the file is
            if line.strip() and Path(line.strip()).name not in names.values():
                print(line, file=sys.stderr)
    return made


# --- bills of materials ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Locked:
    name: str
    version: str
    marker: str
    """Where it is needed; empty if everywhere."""
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version.replace('+', '%2B')}"


def locked(path: Path) -> list[Locked]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith("#")]
    found = []
    for line in lines:
        asked, *hashes = line.split("--hash=sha256:")
        pinned, _, marker = asked.partition(";")
        name, _, number = pinned.partition("==")
        found.append(
            Locked(name.strip(), number.strip(), marker.strip(), tuple(h.strip() for h in hashes))
        )
    return found


def bill(lock: Path) -> dict[str, Any]:
    """What the package is installed with by this lock, as CycloneDX 1.6."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = [_component(one) for one in locked(lock)]
    ours = f"pkg:pypi/sottovoce@{version()}"
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    direct = {re.split(r"[^\w.-]", one)[0].lower() for one in asked}
    needed = sorted(part["bom-ref"] for part in parts if part["name"] in direct)
    content: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": _timestamp(),
            "component": {
                "type": "application",
                "bom-ref": ours,
                "name": "sottovoce",
                "version": version(),
                "purl": ours,
                "licenses": [{"license": {"id": project["license"]}}],
            },
            "properties": [{"name": "sottovoce:lock", "value": f"requirements/{lock.name}"}],
        },
        "components": parts,
        "dependencies": [{"ref": ours, "dependsOn": needed}],
    }
    same = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {**content, "serialNumber": f"urn:uuid:{same}"}


def _component(one: Locked) -> dict[str, Any]:
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": one.purl,
        "name": one.name,
        "version": one.version,
        "purl": one.purl,
        # A package has many files, for many platforms: their hashes belong to its distribution.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{one.name}/{one.version}/#files",
                "hashes": [{"alg": "SHA-256", "content": found} for found in one.hashes],
            }
        ],
    }
    if one.marker:
        part["scope"] = "optional"
        part["properties"] = [{"name": "sottovoce:marker", "value": one.marker}]
    licences = _licences(one)
    return {**part, "licenses": licences} if licences else part


def _licences(one: Locked) -> list[dict[str, Any]]:
    """As the package itself says, if this version is installed here."""
    try:
        about = metadata.metadata(one.name)
    except metadata.PackageNotFoundError:
        return []
    if about["Version"] != one.version:
        return []
    if expressions := about.get_all("License-Expression"):
        return [{"expression": expressions[0]}]
    classified = [line for line in about.get_all("Classifier") or [] if line.startswith("License")]
    names = [line.rsplit(" :: ", 1)[-1] for line in classified]
    said = (about.get_all("License") or [""])[0].strip()
    if not names and said and "\n" not in said and len(said) < 60:
        names = [said]
    return [{"license": {"name": name}} for name in names]


def _timestamp() -> str:
    """The same for the same sources: when they were released, unless the builder says otherwise."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        return datetime.fromtimestamp(int(given), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.search(r'^date-released: "(.+)"$', cited, re.MULTILINE)
    return f"{released[1] if released else '1980-01-01'}T00:00:00Z"


def write_bills(out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name in BILLS:
        place = out / f"sottovoce-{version()}-{name}.cdx.json"
        content = bill(ROOT / "requirements" / f"{name}.lock")
        place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        made.append(place)
    return made


def write_sums(out: Path, files: Sequence[Path]) -> Path:
    """As `sha256sum -c` reads them."""
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files)
    ]
    place = out / "SHA256SUMS"
    place.write_text("".join(lines), encoding="utf-8")
    return place


# --- a stranger -----------------------------------------------------------------------------------


def smoke(wheel: Path, folder: Path, *, limits: Path | None = None) -> None:
    """Install the wheel into a fresh environment and use it, away from the repository. Raises with
    what was said if anything fails. Without `limits` libraries are the newest, as a stranger has
    them."""
    settings = {"PATH": os.defpath, "HOME": str(folder / "home"), "MPLBACKEND": "agg"}
    kept = ("PIP_", "SSL_", "HTTP", "http", "LANG", "LC_", "NO_PROXY", "no_proxy")
    settings |= {key: value for key, value in os.environ.items() if key.startswith(kept)}
    (folder / "home").mkdir(parents=True)
    programs = folder / "environment" / "bin"

    def step(label: str, *command: str) -> None:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=settings, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(f"{label} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        print(f"{time.perf_counter() - began:7.1f} s  {label}", flush=True)

    venv.create(folder / "environment", with_pip=True)
    options = ["--quiet", "--disable-pip-version-check", *(["-c", str(limits)] if limits else [])]
    step("pip install", str(programs / "pip"), "install", *options, str(wheel))
    for words in COMMANDS:
        step(f"sottovoce {' '.join(words)}", str(programs / "sottovoce"), *words)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("what", choices=["wheel", "sbom", "release", "smoke"])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where files go")
    options = parser.parse_args(arguments)
    out: Path = options.out.resolve()
    files: list[Path] = []
    if options.what in ("wheel", "release"):
        files += build(out)
    if options.what in ("sbom", "release"):
        files += write_bills(out)
    if options.what == "release":
        files.append(write_sums(out, files))
    for file in files:
        print(file)
    if options.what in ("smoke", "release"):
        with tempfile.TemporaryDirectory(prefix="sottovoce-release-") as folder:
            smoke(out / f"sottovoce-{version()}-py3-none-any.whl", Path(folder).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
