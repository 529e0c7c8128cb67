"""A page as a web application on loopback: the consent centre, and by other calls the console.

Everything but the link needs the session that the link has begun, and whatever changes something
needs a token besides, which only the page has. `entrance.py` says who comes in; here is what they
get. Work that may block is done beside the event loop, in threads that nobody waits for at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import html
import json
import os
import queue
import re
import threading
import tomllib
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import sottovoce
from sottovoce import core
from sottovoce.core import words
from sottovoce.core.words import LANGUAGES, Said, catalogue, said, say
from sottovoce.errors import MessageError, SottovoceError, Told, Unreachable, UsageError
from sottovoce.web import calls as take
from sottovoce.web.calls import Call, Refusal, bad, call
from sottovoce.web.entrance import (
    Entrance,
    Headers,
    PageSession,
    cookies_called,
    is_our_host,
    is_our_page,
    same,
)

PAGES = Path(__file__).parent / "pages"
LOOK = Path(core.__file__).parent / "look.css"
"""What all our pages share, reports as well."""
BODY_BYTES = 1 << 20
BODY_SECONDS = 10.0
_THREADS, _WAITING = 4, 32
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src {whom}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    "content-security-policy": _POLICY.format(whom="'self'"),
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
JSON = "application/json"
_TYPES_ABOVE = re.compile(rb"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*$", re.MULTILINE | re.DOTALL)
"""A comment with types that has its lines to itself."""
ELSEWHERE = (
    *("attack.", "device.", "terminal.", "tab.", "attributes.becomes", "attributes.head"),
    *("attributes.name", "attributes.no_", "attributes.nothing", "attributes.unknown"),
    *("attributes.value", "costs.helper", "costs.next", "costs.plain"),
    *("costs.reports", "costs.sums", "erase.leave", "field.total_epsilon.period"),
    *("field.total_epsilon.round", "hiding.broken", "hiding.far", "hiding.head", "hiding.moved"),
    *("hiding.nothing", "hiding.tired", "learn.about", "learn.verdict.", "ledger.contacts"),
    *("ledger.day", "ledger.directory", "ledger.never", "ledger.number", "ledger.quality"),
    *("ledger.randomised_reports", "ledger.terms", "ledger.timeline", "ledger.total_words."),
    *("ledger.who", "odds.assumes", "odds.caption", "odds.report", "preview.bytes"),
    *("preview.once", "preview.round", "preview.saved", "preview.send", "quiet.nobody"),
    *("sees.difference", "stands.meter.", "stands.meter_full"),
    *("stands.meter_nothing", "stands.meter_periods", "stands.meter_weak", "step.means."),
    *("terms.agree_hint", "terms.agreed_on", "terms.changes", "terms.digest", "terms.rounds"),
    *("terms.until", "verdict.ask", "verdict.kept", "verdict.printed", "verdict.sound"),
)
"""Prefixes of the sentences that only commands, report cards and browser tabs say. The pages of an
agent are sent without them."""
_SHOP = "shop"
"""Those of one page, in a file of their own."""

Answer = Mapping[str, Any]
ForPrograms = Callable[[Request], Awaitable[Response]]


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


# --- its calls -----------------------------------------------------------------------------------

PAGED: dict[str, Any] = {"offset": (take.number, 0), "limit": (take.rows, 100)}
CALLS = (
    call("GET state", "state"),
    call("POST weigh", "weigh", store=take.text, change=take.table),
    call("POST choose", "choose", store=take.text, change=take.table),
    call("GET things", "things", store=take.text, query=(take.text, ""), **PAGED),
    call("POST preview", "preview", store=take.text),
    call("GET preview/body", "body", store=take.text, index=take.number),
    call("POST send", "send", store=take.text, nonce=take.text),
    call("GET ledger", "ledger", store=take.text, **PAGED),
    call("GET ledger/row", "row", store=take.text, row=take.text),
    call("GET ledger/export", "export", store=take.text, format=take.one_of("csv", "ndjson")),
    call("POST agree", "agree", store=take.text, digest=take.text),
    call(
        "POST stop",
        "stop",
        store=(take.or_none(take.text), None),
        everything=(take.yes_or_no, False),
    ),
    call("POST start", "start", store=take.text),
    call("POST remove", "remove", store=take.text, items=take.texts),
    call("POST erase", "erase", store=take.text, what=take.one_of("history", "everything")),
    call("POST learn", "learn", store=take.text),
    call("GET learn", "learnt", store=take.text),
    call("POST recommend", "recommend", store=take.text, change=(take.or_none(take.table), None)),
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


def as_json(content: Any) -> bytes:
    """Halves of characters become question marks."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def as_served(place: Path, pages: Path) -> bytes:
    """A file of a page as a browser needs it: without the types of its modules, which are a tenth
    of it. Lines keep their numbers."""
    content = place.read_bytes()
    if place.suffix != ".js" or not place.is_relative_to(pages):
        return content
    return _TYPES_ABOVE.sub(lambda found: b"\n" * found[0].count(b"\n"), content)


def _public(pages: Path, library: Path | None) -> dict[str, _File]:
    """Every file that is served, by its path. Nothing else is ever looked for on the disk. What
    pages and library call alike is the page's."""
    places = {
        place.relative_to(folder).as_posix(): place
        for folder in (library, pages)
        if folder is not None
        for place in sorted(folder.rglob("*"))
    }
    found = {
        f"/static/{name}": _file(as_served(place, pages), kind)
        for name, place in {**places, LOOK.name: LOOK}.items()
        if place.is_file() and (kind := _TYPES.get(place.suffix))
    }
    for language in LANGUAGES:
        every: dict[str, dict[str, str]] = {"": {}, _SHOP: {}}
        for key, text in catalogue(language).items():
            group = key.partition(".")[0]
            if not key.startswith(ELSEWHERE):
                every[group if group in every else ""][key] = text
        for group, sentences in every.items():
            name = f"{language}-{group}" if group else language
            found[f"/words/{name}.json"] = _file(as_json(sentences), JSON)
    glossary = Path(words.__file__).parent / "glossary.toml"
    if glossary.is_file():
        table = tomllib.loads(glossary.read_text(encoding="utf-8"))
        found["/words/glossary.json"] = _file(as_json(table), JSON)
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
    """Answers those whom an entrance lets in, at one port."""

    def __init__(
        self,
        provider: Callable[[PageSession], Any],
        entrance: Entrance,
        port: int,
        *,
        calls: Sequence[Call] = CALLS,
        programs: Mapping[str, ForPrograms] = MappingProxyType({}),
        start: str = "consent.html",
        pages: Path = PAGES,
        library: Path | None = None,
        talks_to: str = "",
        language: str | None = None,
        body_seconds: float = BODY_SECONDS,
        opened: Callable[[], None] = lambda: None,
        log: Any = None,
    ) -> None:
        """What is asked for by `calls`, a session's provider answers; it has a method for each, and
        the page begins with `start`. With the `library` of tabs, a folder, it is a device itself,
        which `talks_to` a server of another origin. To the addresses of `programs` comes who has a
        secret of their own and no session. Without a language it is the browser's. `opened` is told
        when the link was used."""
        self._provider, self._entrance, self._port = provider, entrance, port
        self._language, self._body_seconds = language, body_seconds
        self._opened, self._log, self._programs = opened, log, programs
        self.cookie = f"sottovoce-{port}"
        self._workers = Workers(_THREADS, _WAITING)
        self._public = _public(pages, library)
        # Also with the script of the worker that such a page starts.
        policy = _POLICY.format(whom=f"'self' {talks_to}".rstrip())
        self._always = _encoded(ALWAYS | {"content-security-policy": policy})
        loader = FileSystemLoader(pages)
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        self._template = environment.get_template(start)
        routes = [
            Route("/open", self._open, methods=["GET"]),
            Route("/", self._page, methods=["GET"]),
            *(Route(path, self._static, methods=["GET"]) for path in self._public),
            *(Route(one.path, partial(self._answer, one), methods=[one.method]) for one in calls),
            *(Route(path, answer, methods=["POST"]) for path, answer in programs.items()),
        ]
        self._roles = {(one.method, one.path): one.role for one in calls}
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
                message["headers"] = _complete(message["headers"], self._always)
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

    def seen_as(self, user: int | None) -> ASGIApp:
        """What answers this user of this machine, on one connection."""
        return self if user in (None, os.geteuid()) else self.turn_away

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
        if opening or (method == "POST" and path in self._programs):
            return None
        cookies = cookies_called(self.cookie, headers)
        session = self._entrance.session(cookies, scope.get("user"))
        if session is None:
            raise self.no_session(document, self._entrance.was_ended(cookies))
        if path not in self._methods:
            raise Refusal(404, "trouble.refused")
        if method not in self._methods[path]:
            raise Refusal(405, "trouble.refused")
        if method == "POST":
            tokens = headers.get(b"x-sottovoce-token", [])
            if len(tokens) != 1 or not same(tokens[0].decode("latin-1"), session.token):
                raise Refusal(403, "trouble.refused")
            if headers.get(b"content-type") != [JSON.encode()]:
                raise Refusal(415, "trouble.refused")
        if self._roles.get((method, path), "") not in ("", session.guest.role):
            raise self.not_allowed()
        return session

    def no_session(self, document: bool, ended: bool) -> Refusal:
        """What somebody is told who is not in; `ended` says that what had let them in does so no
        more."""
        return Refusal(401, "trouble.link" if document else "trouble.session")

    def not_allowed(self) -> Refusal:
        """What somebody is told whose role this is not."""
        return Refusal(403, "trouble.refused")

    # --- pages ------------------------------------------------------------------------------------

    async def _open(self, request: Request) -> Response:
        """The link. Who comes from elsewhere goes on by a page of ours, since a browser would not
        show the cookie to a mere redirection of somebody else's."""
        name, _, key = request.scope["query_string"].decode("latin-1").partition("=")
        user = request.scope.get("user")
        session = self._entrance.open(key, user) if name == "key" else None
        if session is None:
            return self._trouble(request.scope, self.used_link())
        self._opened()
        response: Response = RedirectResponse("/", 303)
        if request.headers.get("sec-fetch-site") not in (None, "none", "same-origin"):
            response = self._document(request.scope, 200, "…", _ONWARDS)
        response.set_cookie(self.cookie, session.cookie, path="/", httponly=True, samesite="strict")
        return response

    def used_link(self) -> Refusal:
        """What somebody is told who comes with a link that opens nothing."""
        return Refusal(403, "trouble.link")

    async def _page(self, request: Request) -> Response:
        language = self._language_of(request.scope)
        text = self._template.render(
            token=request.scope["session"].token,
            language=language,
            waiting=say(said("page.working"), language),
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
            provider = self._provider(request.scope["session"])
            return await self._workers(partial(_ask, provider, call, call.arguments(given)))
        except Refusal as refusal:
            return self._trouble(request.scope, refusal)
        except SottovoceError as error:
            return _error(_status(error), _said_of(error))

    async def _given(self, call: Call, request: Request) -> dict[str, Any]:
        if call.method == "POST":
            return await self._body(request)
        try:
            query = request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=8)
        except ValueError:
            bad()
        given = dict(pairs)
        return given if len(given) == len(pairs) else bad()

    async def _body(self, request: Request, most: int = BODY_BYTES) -> dict[str, Any]:
        promised = request.headers.get("content-length", "0")
        if len(promised) > len(str(most)) or int(promised) > most:
            raise Refusal(413, "trouble.too_much")
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise Refusal(413, "trouble.too_much")
        except TimeoutError:
            raise Refusal(408, "trouble.slow") from None
        try:
            content = json.loads(body.decode(), parse_constant=lambda _: bad())
            json.dumps(content, ensure_ascii=False).encode()  # raises for halves of characters
        except (ValueError, RecursionError):
            bad()
        return take.table(content)

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


def _ask(provider: Any, call: Call, arguments: dict[str, Any]) -> Response:
    """In a thread: what the provider says, made ready to be sent."""
    found = getattr(provider, call.name)(**arguments)
    if isinstance(found, bytes):
        headers = _attached("message.bin")
        return Response(found, headers=headers, media_type="application/octet-stream")
    if isinstance(found, tuple):  # whole or not at all: half a ledger is none
        name, parts = found
        return Response(b"".join(parts), headers=_attached(name), media_type="text/plain")
    return Response(as_json(found), media_type=JSON)


def _error(status: int, what: Said) -> Response:
    return Response(as_json({"error": what.to_json()}), status, media_type=JSON)


def _headers(scope: Scope) -> Headers:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, []).append(value)
    return found


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


OWN_HEADERS = _encoded(ALWAYS)
"""Of an answer that is not kept."""


def _complete(
    headers: Iterable[tuple[bytes, bytes]], always: Iterable[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """What an answer says itself goes before."""
    own = dict(headers)
    return [*headers, *(pair for pair in always if pair[0] not in own)]


# --- work that may block --------------------------------------------------------------------------


T = TypeVar("T")


class TooBusy(Told):
    """More was brought than may wait."""


class Workers:
    """So many threads and so much that waits for them; whoever brings more is told so. They end
    with the process, also in the midst of something: stores bear that at any moment."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._free = threads + waiting
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def __call__(self, work: Callable[[], T]) -> T:
        if self._free <= 0:
            raise TooBusy("trouble.busy")
        self._free -= 1
        future: Future[T] = Future()
        future.add_done_callback(self._done(asyncio.get_running_loop()))
        self._work.put(lambda: _settle(future, work))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """What has not begun is not done any more."""
        for _ in self._threads:
            self._work.put(None)

    def _done(self, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Any]], None]:
        def free() -> None:
            self._free += 1

        def tell(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before this
                loop.call_soon_threadsafe(free)

        return tell

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    """Whoever waits for it gets what comes out, an error as well."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
