"""The public documents of a federation as static files, for any web server or CDN.

`files/` holds terms, catalogue, model and the script for pages, each under a name with its own hash
in it: such a file never changes. `index.json` names those in force, with hashes that browsers check
(SRI), and says where the live server is. It is replaced last and at once: whoever reads it finds
everything it names. What it named until now stays for a day, for those who have read it before.

`sottovoce/` holds all that pages load, under the names by which its files know each other: script,
elements, consent page, service worker, and the frame, into which the addresses of the live server
and of pages around it are written. A page beside it works as it is.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import html
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

import sottovoce
from sottovoce.core.messages import ModelView
from sottovoce.errors import ServiceError, UsageError
from sottovoce.stores import server as records
from sottovoce.stores.locking import try_lock
from sottovoce.stores.server import catalogue_name
from sottovoce.stores.server_folder import ServerFolder
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import encode_model

INDEX, FILES, LIBRARY, HEADERS = "index.json", "files", "sottovoce", "nginx.conf"
SCRIPT, _FRAME, _CONSENT, _ELEMENTS = "sottovoce.js", "frame.html", "consent.html", "elements.js"
KEPT_SECONDS = 86400
"""So long a file stays after the index has named it last."""
_LOCK = ".site.lock"
_HALVES = f"{LIBRARY}/**/.*.new"
_HASH_DIGITS = 20


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A content under a name that says which content it is."""

    stem: str
    ending: str
    content: bytes

    @property
    def name(self) -> str:
        mark = hashlib.sha256(self.content).hexdigest()[:_HASH_DIGITS]
        return f"{FILES}/{self.stem}-{mark}.{self.ending}"

    def entry(self, **more: Any) -> dict[str, Any]:
        """As the index has it."""
        digest = base64.b64encode(hashlib.sha384(self.content).digest()).decode()
        told = {"file": self.name, "integrity": f"sha384-{digest}", "bytes": len(self.content)}
        return told | more


@dataclass(frozen=True, slots=True)
class StaticSite:
    """What is published of a federation."""

    index: Mapping[str, Any]
    files: tuple[SiteFile, ...]
    headers: str
    library: Mapping[str, bytes]
    """What pages load, by name; nothing where it is not beside the script."""

    @property
    def script(self) -> str:
        """The tag with which a page takes the script from `BASE`; empty where there is none."""
        entry = self.index["script"]
        if entry is None:
            return ""
        return (
            f'<script type="module" src="BASE/{entry["file"]}" integrity="{entry["integrity"]}" '
            'crossorigin="anonymous"></script>'
        )


_PACKAGE = Path(sottovoce.__file__).parent


def library_source() -> Path | None:
    """Where the script for pages is made; None where this is no checkout."""
    place = _PACKAGE.parents[1] / "clients" / "browser"
    return place if (place / "package.json").is_file() else None


def built_script() -> Path | None:
    """The script for pages, as it is in an installed package, or built in a checkout. Its folder
    has what goes with it."""
    places = _PACKAGE / "browser" / SCRIPT, _PACKAGE.parents[1] / "clients/browser/dist" / SCRIPT
    return next((place for place in places if place.is_file()), None)


def site_of(
    folder: ServerFolder,
    link: sa.Connection,
    server: str,
    script: Path | None,
    pages: Sequence[str] = (),
) -> StaticSite:
    """What devices are told now: the same bytes that the live server publishes. `pages` are the
    origins of those that may have the frame in them."""
    folder = folder.caught_up(link)
    terms, now = folder.plan.terms, records.position(link)
    catalogue = folder.catalogue(link)
    told = SiteFile("terms", "json", json.dumps(terms.to_table()).encode())
    items = SiteFile("catalogue", "json", catalogue)
    round = now.round if now.published is None else now.published
    found, model = records.model(link, round, terms.width), None
    if found is not None:
        model = SiteFile(f"model-{round}", "bin", encode_model(ModelView(round, found[0])))
    code = None if script is None else SiteFile("sottovoce", "js", _read(script))
    library = {} if script is None else _library(script.parent, server, pages)
    index = {
        "protocol": PROTOCOL,
        "federation": terms.federation,
        "server": server,
        "terms": told.entry(digest=terms.digest()),
        "catalogue": items.entry(name=catalogue_name(catalogue)),
        "model": None if model is None else model.entry(round=round),
        "script": None if code is None else code.entry(),
        "library": LIBRARY if library else None,
    }
    files = tuple(one for one in (told, items, model, code) if one is not None)
    return StaticSite(index, files, _headers(terms, server, pages), library)


def _library(folder: Path, server: str, pages: Sequence[str]) -> dict[str, bytes]:
    if not (folder / _ELEMENTS).is_file():
        return {}
    found = {
        place.relative_to(folder).as_posix(): _read(place)
        for place in sorted(folder.rglob("*"))
        if place.suffix in _KINDS and place.is_file() and place.name not in _ELSEWHERE
    }
    if _FRAME in found:
        found[_FRAME] = framed(found[_FRAME].decode(), server, pages).encode()
    return found


_ELSEWHERE = ("provider.js",)
"""Which goes with the pages of the demo."""
_KINDS = {".js": "text/javascript", ".html": "text/html", ".css": "text/css"}
_KINDS |= {".json": "application/json"}


def framed(page: str, server: str, pages: Sequence[str]) -> str:
    """The frame, with what an operator would write into it."""
    parts = urlsplit(server)
    told = {
        'name="sottovoce-pages" content=""': f'name="sottovoce-pages" content="{" ".join(pages)}"',
        'name="sottovoce-federation" content=""': (
            f'name="sottovoce-federation" content="{html.escape(server)}"'
        ),
        "connect-src 'self'": (
            f"connect-src 'self' {html.escape(f'{parts.scheme}://{parts.netloc}')}"
        ),
    }
    for place, content in told.items():
        if page.count(place) != 1:
            raise UsageError(f"{_FRAME} is not of this release; build the files for pages again")
        page = page.replace(place, content)
    return page


def write_site(site: StaticSite, out: Path, *, now: float | None = None) -> bool:
    """Whether anything has changed. Who is cut off leaves what was there before."""
    try:
        (out / FILES).mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = try_lock(out / _LOCK)
        if lock is None:
            raise UsageError(f"{out} is being written by another process; stop that one first")
        with lock:
            return _written(site, out, time.time() if now is None else now)
    except OSError as error:
        raise ServiceError(f"{out} cannot be written: {error.strerror or error}") from None


def _written(site: StaticSite, out: Path, now: float) -> bool:
    for half in [*out.glob(".*.new"), *out.glob(f"{FILES}/.*.new"), *out.glob(_HALVES)]:
        half.unlink(missing_ok=True)
    for file in site.files:
        _place(out / file.name, file.content)
        # The same bytes from the same content, also at another time.
        _place(out / f"{file.name}.gz", gzip.compress(file.content, 9, mtime=0))
    for name, content in site.library.items():
        place = out / LIBRARY / name
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _place(place, content)
        _place(place.with_name(f"{place.name}.gz"), gzip.compress(content, 9, mtime=0))
    _place(out / HEADERS, site.headers.encode())
    for name in _named(out):  # until now
        with contextlib.suppress(FileNotFoundError):
            os.utime(out / name, (now, now))
    changed = _place(out / INDEX, json.dumps(dict(site.index), indent=1).encode() + b"\n")
    named = {name for file in site.files for name in (file.name, f"{file.name}.gz")}
    for old in (out / FILES).iterdir():
        gone = f"{FILES}/{old.name}" not in named and old.stat().st_mtime < now - KEPT_SECONDS
        if gone:
            old.unlink(missing_ok=True)
    return changed


def _named(out: Path) -> list[str]:
    """Files that the index names which is there; none where it is not one of ours."""
    try:
        index = json.loads((out / INDEX).read_bytes())
        found = [part["file"] for part in index.values() if isinstance(part, dict)]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []
    own = [name for name in found if isinstance(name, str) and name.startswith(f"{FILES}/")]
    return [name for one in own if one.count("/") == 1 for name in (one, f"{one}.gz")]


def _place(place: Path, content: bytes) -> bool:
    """Whole or not at all, for everybody to read; whether it was another one before."""
    with contextlib.suppress(OSError):
        if place.read_bytes() == content:
            return False
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, place)
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def _headers(terms: Terms, server: str, pages: Sequence[str]) -> str:
    """For nginx, within a `server` block whose root is the folder."""
    live = [server]
    if terms.link.mixing is not None and terms.link.mixing.url:
        parts = urlsplit(terms.link.mixing.url)
        live.append(f"{parts.scheme}://{parts.netloc}")
    policy = (
        f"default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self' "
        f"{' '.join(live)}; img-src 'self' data:; style-src 'self'; frame-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    kinds = "; ".join(f"{kind} {ending[1:]}" for ending, kind in _KINDS.items())
    around = " ".join(pages) or "'none'"
    return f"""\
# Made by `sottovoce serve site`. Include this in a server block of nginx whose root is this folder.
# Everything here is public, and no request needs a cookie: so any page may read it.

location = /{INDEX} {{
    default_type application/json;
    add_header Cache-Control "public, max-age=60" always;
    add_header Access-Control-Allow-Origin "*" always;
    add_header X-Content-Type-Options nosniff always;
}}
location /{FILES}/ {{
    gzip_static on;
    gzip_vary on;
    types {{ application/json json; text/javascript js; application/octet-stream bin; }}
    add_header Cache-Control "public, max-age=31536000, immutable";
    add_header Access-Control-Allow-Origin "*";
    add_header Cross-Origin-Resource-Policy cross-origin;
    add_header X-Content-Type-Options nosniff;
}}
location /{LIBRARY}/ {{
    gzip_static on;
    gzip_vary on;
    types {{ {kinds}; }}
    add_header Cache-Control "no-cache";
    add_header Access-Control-Allow-Origin "*";
    add_header Cross-Origin-Resource-Policy cross-origin;
    add_header X-Content-Type-Options nosniff;
}}
location = /{LIBRARY}/{_FRAME} {{
    types {{ {kinds}; }}
    add_header Cache-Control "no-cache" always;
    add_header X-Content-Type-Options nosniff always;
    add_header Content-Security-Policy "frame-ancestors {around}" always;
}}
location = /{LIBRARY}/{_CONSENT} {{
    types {{ {kinds}; }}
    add_header Cache-Control "no-cache" always;
    add_header X-Content-Type-Options nosniff always;
    add_header Content-Security-Policy "frame-ancestors 'self'" always;
}}
location = /{HEADERS} {{ return 404; }}
location ~ /\\. {{ return 404; }}

# For the pages that have the script: what they may load, to whom they may talk, and who may have
# them in a frame. If these files come from another origin, name it in script-src, worker-src and
# connect-src.
# add_header Content-Security-Policy "{policy}" always;
# add_header Referrer-Policy no-referrer always;
"""
