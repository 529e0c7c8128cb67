"""The consent centre as a web application on loopback, and its process.

What it serves is for one person and one browser: everything but the link needs the session that the
link has begun, and whatever changes something needs a token besides, which only the page has.
`entrance.py` says who comes in; here is what they get.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import html
import json
import re
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

import sottovoce
from sottovoce.core import words
from sottovoce.core.words import LANGUAGES, Said, catalogue, said, say
from sottovoce.errors import MessageError, SottovoceError, Told, Unreachable, UsageError
from sottovoce.web.entrance import (
    Entrance,
    Headers,
    PageSession,
    cookies_called,
    is_our_host,
    is_our_page,
    same,
)
from sottovoce.web.workers import TooBusy, Workers

PAGES = Path(__file__).parent / "pages"
BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0
_THREADS, _WAITING = 4, 32
_MOST_ROWS, _MOST_NUMBER, _LONGEST_TEXT = 10_000, 2**53, 1000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": (
        "camera=(), microphone=(), geolocation=(), display-capture=(), usb=(), payment=()"
    ),
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""With every answer; public files may be kept, if they are asked for again."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
_JSON = "application/json"
_ELSEWHERE = ("attack", "device", "terminal")
"""Sentences of commands and report cards, which no page says."""

Answer = Mapping[str, Any]


class Provider(Protocol):
    """What a page asks. The methods may block; each is called in a thread of its own, several at
    once. They raise `Told` with what a person should read."""

    def state(self) -> Answer: ...
    def weigh(self, store: str, change: dict[str, Any]) -> Answer: ...
    def choose(self, store: str, change: dict[str, Any]) -> Answer: ...
    def things(self, store: str, query: str, offset: int, limit: int) -> Answer: ...
    def preview(self, store: str) -> Answer: ...
    def body(self, store: str, index: int) -> bytes: ...
    def send(self, store: str, nonce: str) -> Answer: ...
    def ledger(self, store: str, offset: int, limit: int) -> Answer: ...
    def row(self, store: str, row: str) -> Answer: ...
    def export(self, store: str, format: str) -> tuple[str, Iterator[bytes]]:
        """The name of the file, and what is in it."""

    def agree(self, store: str, digest: str) -> Answer: ...
    def stop(self, store: str | None, everything: bool) -> Answer: ...
    def start(self, store: str) -> Answer: ...
    def remove(self, store: str, items: list[str]) -> Answer: ...
    def erase(self, store: str, what: str) -> Answer: ...
    def learn(self, store: str) -> Answer: ...
    def learnt(self, store: str) -> Answer: ...
    def recommend(self, store: str, change: dict[str, Any] | None) -> Answer: ...


# --- what a call takes ----------------------------------------------------------------------------


class Refusal(Exception):
    """A request that is not answered with what it asks for."""

    def __init__(self, status: int, key: str) -> None:
        super().__init__(key)
        self.status, self.said = status, said(key)


def _bad() -> NoReturn:
    raise Refusal(400, "trouble.refused")


def _text(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_TEXT else _bad()


def _number(value: Any, most: int = _MOST_NUMBER) -> int:
    """Of a query, so that it is text."""
    if not re.fullmatch(r"[0-9]{1,16}", value) or int(value) > most:
        _bad()
    return int(value)


def _yes_or_no(value: Any) -> bool:
    return value if isinstance(value, bool) else _bad()


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else _bad()


def _texts(value: Any) -> list[str]:
    return [_text(one) for one in value] if isinstance(value, list) else _bad()


def _one_of(*names: str) -> Callable[[Any], str]:
    return lambda value: value if value in names else _bad()


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_rows = partial(_number, most=_MOST_ROWS)


@dataclass(frozen=True, slots=True)
class Call:
    """One of the provider's methods, and where it is reached."""

    method: str
    path: str
    name: str
    takes: Mapping[str, Callable[[Any], Any]]
    usual: Mapping[str, Any]
    """For what is left out."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the method is given. Raises where something is missing, strange or unknown."""
        told = {**self.usual, **given}
        if told.keys() != self.takes.keys():
            _bad()
        read = {name: take(given[name]) for name, take in self.takes.items() if name in given}
        return {**self.usual, **read}


def _call(where: str, name: str, **takes: Any) -> Call:
    """A way to read each argument, or that with what is usual."""
    method, path = where.split()
    usual = {key: one[1] for key, one in takes.items() if isinstance(one, tuple)}
    reads = {key: one[0] if isinstance(one, tuple) else one for key, one in takes.items()}
    return Call(method, f"/api/{path}", name, reads, usual)


_PAGED = {"offset": (_number, 0), "limit": (_rows, 100)}
CALLS = (
    _call("GET state", "state"),
    _call("POST weigh", "weigh", store=_text, change=_table),
    _call("POST choose", "choose", store=_text, change=_table),
    _call("GET things", "things", store=_text, query=(_text, ""), **_PAGED),
    _call("POST preview", "preview", store=_text),
    _call("GET preview/body", "body", store=_text, index=_number),
    _call("POST send", "send", store=_text, nonce=_text),
    _call("GET ledger", "ledger", store=_text, **_PAGED),
    _call("GET ledger/row", "row", store=_text, row=_text),
    _call("GET ledger/export", "export", store=_text, format=_one_of("csv", "ndjson")),
    _call("POST agree", "agree", store=_text, digest=_text),
    _call("POST stop", "stop", store=(_or_none(_text), None), everything=(_yes_or_no, False)),
    _call("POST start", "start", store=_text),
    _call("POST remove", "remove", store=_text, items=_texts),
    _call("POST erase", "erase", store=_text, what=_one_of("history", "everything")),
    _call("POST learn", "learn", store=_text),
    _call("GET learn", "learnt", store=_text),
    _call("POST recommend", "recommend", store=_text, change=(_or_none(_table), None)),
)


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """Something public that the page consists of, read at the start."""

    body: bytes
    packed: bytes
    """The same, compressed: it is public, so that its length tells nothing."""
    kind: str
    etag: str


def _file(body: bytes, kind: str) -> _File:
    packed = gzip.compress(body, mtime=0)
    return _File(body, packed, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _as_json(content: Any) -> bytes:
    """Halves of characters become question marks."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _public(pages: Path) -> dict[str, _File]:
    """Every file that is served, by its path. Nothing else is ever looked for on the disk."""
    found = {
        f"/static/{place.relative_to(pages).as_posix()}": _file(place.read_bytes(), kind)
        for place in sorted(pages.rglob("*"))
        if place.is_file() and (kind := _TYPES.get(place.suffix))
    }
    for language in LANGUAGES:
        sentences = {
            key: text
            for key, text in catalogue(language).items()
            if key.partition(".")[0] not in _ELSEWHERE
        }
        found[f"/words/{language}.json"] = _file(_as_json(sentences), _JSON)
    glossary = Path(words.__file__).parent / "glossary.toml"
    if glossary.is_file():
        table = tomllib.loads(glossary.read_text(encoding="utf-8"))
        found["/words/glossary.json"] = _file(_as_json(table), _JSON)
    return found


def _status(error: SottovoceError) -> int:
    if isinstance(error, Unreachable):
        return 502
    if isinstance(error, TooBusy):
        return 503
    return 400 if isinstance(error, UsageError | MessageError) else 409


def _said_of(error: SottovoceError) -> Said:
    if isinstance(error, Told):
        return Said(error.key, error.values)
    return said("trouble.other", why=str(error))


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].lstrip(".") or "file"


def _attached(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{_safe_name(name)}"'}


_DOCUMENT = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>Sottovoce</title>{more}</head>
<body><p>{text}</p></body></html>
"""
_ONWARDS = '<meta http-equiv="refresh" content="0;url=/">'


class PageApplication:
    """Answers one browser, at one port."""

    def __init__(
        self,
        provider: Provider,
        entrance: Entrance,
        port: int,
        *,
        pages: Path = PAGES,
        language: str | None = None,
        body_seconds: float = BODY_SECONDS,
        opened: Callable[[], None] = lambda: None,
        log: Any = None,
    ) -> None:
        """Without a language it is the browser's. `opened` is told when the link was used."""
        self._provider, self._entrance, self._port = provider, entrance, port
        self._language, self._body_seconds = language, body_seconds
        self._opened, self._log = opened, log
        self.cookie = f"sottovoce-{port}"
        self._workers = Workers(_THREADS, _WAITING)
        self._public = _public(pages)
        loader = FileSystemLoader(pages)
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        self._template = environment.get_template("consent.html")
        routes = [
            Route("/open", self._open, methods=["GET"]),
            Route("/", self._page, methods=["GET"]),
            *(Route(path, self._static, methods=["GET"]) for path in self._public),
            *(
                Route(call.path, partial(self._answer, call), methods=[call.method])
                for call in CALLS
            ),
        ]
        self._router = Router(routes, redirect_slashes=False)
        self._methods: dict[str, set[str]] = {}
        for route in routes:
            self._methods.setdefault(route.path, set()).update((route.methods or set()) - {"HEAD"})

    def close(self) -> None:
        self._workers.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What nobody has foreseen becomes a sentence without details."""
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = _complete(message["headers"])
            await send(message)

        task = asyncio.ensure_future(self._checked(scope, receive, with_headers))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        error = task.exception()
        if error is None or isinstance(error, ClientDisconnect):
            return
        self._note(error)
        if not begun:
            response = self._trouble(scope, Refusal(500, "trouble.unforeseen"))
            await response(scope, receive, with_headers)

    async def turn_away(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers another user of this machine in the place of all else."""
        message = self._trouble(scope, Refusal(403, "trouble.not_yours"))
        message.headers.update(ALWAYS)
        await message(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["session"] = self._admit(scope)
        except Refusal as refusal:
            await self._trouble(scope, refusal)(scope, receive, send)
            return
        await self._router(scope, receive, send)

    def _admit(self, scope: Scope) -> PageSession | None:
        """The session of who asks; None for who brings the link. Raises for everybody else, and
        tells them nothing of what is here."""
        headers, path, method = _headers(scope), scope["path"], scope["method"]
        if scope.get("crowded"):
            raise Refusal(503, "trouble.busy")
        if not is_our_host(headers, self._port):
            raise Refusal(421, "trouble.origin")
        opening = method == "GET" and path == "/open"
        document = method == "GET" and path == "/"
        if not is_our_page(headers, document=document, opening=opening):
            raise Refusal(403, "trouble.origin")
        if opening:
            return None
        session = self._entrance.session(cookies_called(self.cookie, headers))
        if session is None:
            raise Refusal(401, "trouble.link" if document else "trouble.session")
        if path not in self._methods:
            raise Refusal(404, "trouble.refused")
        if method not in self._methods[path]:
            raise Refusal(405, "trouble.refused")
        if method == "POST":
            tokens = headers.get(b"x-sottovoce-token", [])
            if len(tokens) != 1 or not same(tokens[0].decode("latin-1"), session.token):
                raise Refusal(403, "trouble.refused")
            if headers.get(b"content-type") != [_JSON.encode()]:
                raise Refusal(415, "trouble.refused")
        return session

    # --- pages ------------------------------------------------------------------------------------

    async def _open(self, request: Request) -> Response:
        """The link. Who comes from elsewhere goes on by a page of ours, since a browser would not
        show the cookie to a mere redirection of somebody else's."""
        name, _, key = request.scope["query_string"].decode("latin-1").partition("=")
        session = self._entrance.open(key) if name == "key" else None
        if session is None:
            return self._trouble(request.scope, Refusal(403, "trouble.link"))
        self._opened()
        response: Response = RedirectResponse("/", 303)
        if request.headers.get("sec-fetch-site") not in (None, "none", "same-origin"):
            response = self._document(request.scope, 200, "…", _ONWARDS)
        response.set_cookie(self.cookie, session.cookie, path="/", httponly=True, samesite="strict")
        return response

    async def _page(self, request: Request) -> Response:
        text = self._template.render(
            token=request.scope["session"].token,
            language=self._language_of(request.scope),
            version=sottovoce.__version__,
        )
        return Response(text, media_type="text/html")

    async def _static(self, request: Request) -> Response:
        file = self._public[request.scope["path"]]
        headers = {"etag": file.etag, "cache-control": "private, no-cache"}
        headers["vary"] = "accept-encoding"
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        headers["content-type"] = file.kind
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers={**headers, "content-encoding": "gzip"})
        return Response(file.body, headers=headers)

    def _document(self, scope: Scope, status: int, text: str, more: str = "") -> Response:
        language = self._language_of(scope)
        filled = _DOCUMENT.format(language=language, text=html.escape(text), more=more)
        return Response(filled, status, media_type="text/html")

    def _language_of(self, scope: Scope) -> str:
        asked = b",".join(_headers(scope).get(b"accept-language", [])).decode("latin-1")
        tags = (part.strip()[:2].lower() for part in asked.split(","))
        return self._language or next((tag for tag in tags if tag in LANGUAGES), LANGUAGES[0])

    # --- the provider -----------------------------------------------------------------------------

    async def _answer(self, call: Call, request: Request) -> Response:
        try:
            given = await self._given(call, request)
            return await self._workers(partial(self._ask, call, call.arguments(given)))
        except Refusal as refusal:
            return self._trouble(request.scope, refusal)
        except SottovoceError as error:
            return _error(_status(error), _said_of(error))

    def _ask(self, call: Call, arguments: dict[str, Any]) -> Response:
        """In a thread: what the provider says, made ready to be sent."""
        found = getattr(self._provider, call.name)(**arguments)
        if isinstance(found, bytes):
            headers = _attached("message.bin")
            return Response(found, headers=headers, media_type="application/octet-stream")
        if isinstance(found, tuple):  # whole or not at all: half a ledger is none
            name, parts = found
            return Response(b"".join(parts), headers=_attached(name), media_type="text/plain")
        return Response(_as_json(found), media_type=_JSON)

    async def _given(self, call: Call, request: Request) -> dict[str, Any]:
        if call.method == "POST":
            return await self._body(request)
        try:
            query = request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=8)
        except ValueError:
            _bad()
        given = dict(pairs)
        return given if len(given) == len(pairs) else _bad()

    async def _body(self, request: Request) -> dict[str, Any]:
        promised = request.headers.get("content-length", "0")
        if len(promised) > len(str(BODY_BYTES)) or int(promised) > BODY_BYTES:
            raise Refusal(413, "trouble.too_much")
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > BODY_BYTES:
                        raise Refusal(413, "trouble.too_much")
        except TimeoutError:
            raise Refusal(408, "trouble.slow") from None
        try:
            content = json.loads(body.decode(), parse_constant=lambda _: _bad())
            json.dumps(content, ensure_ascii=False).encode()  # raises for halves of characters
        except (ValueError, RecursionError):
            _bad()
        return _table(content)

    # --- trouble ----------------------------------------------------------------------------------

    def _trouble(self, scope: Scope, refusal: Refusal) -> Response:
        """A sentence: in a document where one was asked for, as JSON elsewhere."""
        if scope["method"] == "GET" and scope["path"] in ("/", "/open"):
            text = say(refusal.said, self._language_of(scope))
            response = self._document(scope, refusal.status, text)
        else:
            response = _error(refusal.status, refusal.said)
        response.headers["connection"] = "close"  # what more comes on it is nobody's concern
        return response

    def _note(self, error: BaseException) -> None:
        """To the log: which kind, and where, without what was in it."""
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        if self._log is not None:
            self._log.error("unforeseen", kind=type(error).__name__, where=where)


def _error(status: int, what: Said) -> Response:
    return Response(_as_json({"error": what.to_json()}), status, media_type=_JSON)


def _headers(scope: Scope) -> Headers:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, []).append(value)
    return found


OWN_HEADERS = [(name.encode(), value.encode()) for name, value in ALWAYS.items()]
"""Of an answer that is not kept."""


def _complete(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What an answer says itself goes before."""
    own = dict(headers)
    return [*headers, *(pair for pair in OWN_HEADERS if pair[0] not in own)]
