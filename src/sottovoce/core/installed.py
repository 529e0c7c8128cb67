"""What comes with the package, where it is on this machine, and how to add to it.

In a checkout, pages, experiment files, benchmarks, examples and files for deployment lie beside
`src`. A wheel has them inside of the package.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sottovoce.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]

EXTRA_OF = {
    "flwr": "web,flower",
    "torch": "torch",
    **dict.fromkeys(("sklearn", "threadpoolctl"), "attacks"),
    "optuna": "tune",
    **dict.fromkeys(("pandas", "polars"), "frames"),
    **dict.fromkeys(("implicit", "cornac"), "dev"),
    **dict.fromkeys(
        (
            *("apsw", "cryptography", "httpcore2", "httptools", "httpx2", "prometheus_client"),
            *("psycopg", "sqlalchemy", "starlette", "structlog", "uvicorn", "uvloop"),
        ),
        "web",
    ),
}
"""Which extra brings a library that simulation does without."""


# --- files ----------------------------------------------------------------------------------------


def checkout() -> Path | None:
    """The folder of the sources that this is run from; None if it was installed."""
    root = _PACKAGE.parents[1]
    return root if (root / "pyproject.toml").is_file() and _PACKAGE.parent.name == "src" else None


def shipped_folder(name: str) -> Path:
    """The folder `name` of this installation, such as "experiments", "docs" or "deploy"."""
    for place in (_PACKAGE / name, (checkout() or _PACKAGE) / name):
        if place.is_dir():
            return place
    raise UsageError(f"this installation has no folder of {name}")


def pages() -> dict[str, Path]:
    """The pages of this installation by name: `privacy` is docs/privacy.md, `deploy` may be
    docs/deploy/index.md, and `security` is SECURITY.md."""
    root = checkout() or _PACKAGE
    found = [
        *sorted((root / "docs").rglob("*.md")),
        *sorted(root.glob("*.md")),
        *(root / folder / "README.md" for folder in ("deploy", "benchmarks")),
    ]
    return {_page_name(path.relative_to(root).as_posix()): path for path in found if path.is_file()}


def find_page(name: str) -> Path:
    """A page by its name, or as documents write it: "privacy", "docs/privacy.md", "SECURITY.md"."""
    known, asked = pages(), _page_name(name.partition("#")[0])
    if asked in known:
        return known[asked]
    import difflib

    near = difflib.get_close_matches(asked, known, n=3)
    near += [page for page in known if page.endswith(f"/{asked}") and page not in near]
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    raise UsageError(f"there is no page {name!r}{hint} `sottovoce docs` lists the pages")


def _page_name(path: str) -> str:
    name = path.lower().strip("/").removesuffix(".md").removeprefix("docs/")
    return name.removesuffix("/index")


# --- libraries ------------------------------------------------------------------------------------


def program(name: str) -> list[str]:
    """The words with which a shell starts a program of this environment. It is named by its place
    if the shell would not find this one."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == beside.resolve():
        return [name]
    if beside.is_file():
        return [_from_here(beside)]
    return [_from_here(Path(sys.executable)), "-m", name]


def _from_here(place: Path) -> str:
    """Relative, if it lies below."""
    here = Path.cwd()
    return str(place.relative_to(here)) if place.is_relative_to(here) else str(place)


def needs(module: str) -> str:
    """The end of a sentence about something that a missing library is needed for."""
    said = f"needs {module}, which is not installed"
    extra = EXTRA_OF.get(module.partition(".")[0])
    return said if extra is None else f"{said}; install it with: {installing(extra)}"


def installing(extra: str) -> str:
    """The command that adds an extra to this installation, from the place that it came from."""
    root, here = checkout(), Path.cwd()
    if root is not None:
        limits = "constraints.txt" if root == here else str(root / "constraints.txt")
        source = [*("-c", limits), *("-e", f"{'.' if root == here else root}[{extra}]")]
        return shlex.join([*program("pip"), "install", *source])
    place = _origin()
    source = [f"sottovoce[{extra}] @ {place}" if place else f"sottovoce[{extra}]"]
    command = shlex.join([*program("pip"), "install", *source])
    parts = urlsplit(place)
    if parts.scheme == "file" and not Path(unquote(parts.path)).exists():
        return f"{command} (that file is gone: put it back there, or name its new place)"
    return command


def _origin() -> str:
    """Where the package came from, as pip has noted it; empty if that was an index."""
    from importlib import metadata

    try:
        noted = metadata.distribution("sottovoce").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(noted) if noted else {}
    url, versions = str(origin.get("url", "")), origin.get("vcs_info")
    return url if versions is None else f"{versions['vcs']}+{url}@{versions['commit_id']}"
