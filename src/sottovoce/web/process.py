"""The page's process: it listens on loopback alone, says where, and ends at once when told to."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import httpx2
import uvloop

from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, UsageError
from sottovoce.services.kit.answers import Headers
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.protocol import BoundedProtocol
from sottovoce.services.kit.serving import HttpListener, listen, logger, unforeseen
from sottovoce.stores.keys import Role, proof_by, read_token, role_token
from sottovoce.stores.server_folder import ServerFolder, start_command
from sottovoce.web.calls import Call
from sottovoce.web.entrance import LINK_SECONDS, Entrance, user_behind
from sottovoce.web.page import (
    BODY_SECONDS,
    CALLS,
    OWN_HEADERS,
    PAGES,
    PageApplication,
)
from sottovoce.wire.refusals import RefusalCounts

HOST = "127.0.0.1"
LIMITS = Limits(
    connections=64,
    per_address=64,
    head_seconds=10.0,
    body_seconds=BODY_SECONDS,
    idle_seconds=60,
)
_GRACE_SECONDS = 0.4
"""For what is being answered when the process ends."""


class PageConnection(BoundedProtocol):
    """One of which the application knows whose it is: to another user of this machine it may tell
    nothing."""

    always: ClassVar[Headers] = OWN_HEADERS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer, here = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        known = peer and here
        user = user_behind(peer[:2], here[:2]) if known else None
        self.app = self.app.seen_as(user) if known else self.app.turn_away


class LinkFile:
    """A private file that leads a browser to the link. On a browser's command line, which everybody
    on a machine can read, the link itself would be no secret."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._end: asyncio.TimerHandle | None = None

    def write(self, url: str) -> Path:
        self.remove()
        self._folder = tempfile.TemporaryDirectory(prefix="sottovoce-page-")
        place = Path(self._folder.name) / "open.html"
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(
                '<!doctype html><meta charset="utf-8"><title>Sottovoce</title>'
                '<meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">\n'
            )
        return place

    def remove_later(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().call_later(seconds, self.remove)

    def remove(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class PageProcess:
    """Serves a provider to one browser, until it is told to stop."""

    def __init__(
        self,
        provider: Any,
        invite: Callable[[str], None],
        *,
        port: int = 0,
        pages: Path = PAGES,
        language: str | None = None,
        browser: bool = False,
        entrance: Entrance | None = None,
        limits: Limits = LIMITS,
        calls: Sequence[Call] = CALLS,
        start: str = "consent.html",
        library: Path | None = None,
        talks_to: str = "",
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`invite` is told each link. With `browser` one is opened with it. Port 0 takes a free
        one. Raises with one sentence where it is taken. `beside` goes on while the page is served,
        in the same thread; the page ends with it if it fails. `calls` and what follows is as in
        `PageApplication`."""
        self._calls, self._start, self._beside = calls, start, beside
        self._library, self._talks_to = library, talks_to
        self._provider, self._invite = provider, invite
        self._pages, self._language, self._browser = pages, language, browser
        self._entrance, self._limits = entrance or Entrance(), limits
        self._file = LinkFile()
        self._listener = listen(HOST, port)
        self.port: int = self._listener.getsockname()[1]
        self._stop: Callable[[], object] = lambda: None

    def run(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP. On a terminal, Enter makes a new link."""
        uvloop.run(self.serve(of_process=True))

    def stop(self) -> None:
        """From any thread."""
        self._stop()

    async def serve(self, *, of_process: bool = False) -> None:
        loop, log = asyncio.get_running_loop(), logger()
        with contextlib.ExitStack() as stack:
            stack.callback(self._listener.close)
            stack.callback(self._file.remove)
            application = PageApplication(
                lambda session: self._provider,
                self._entrance,
                self.port,
                calls=self._calls,
                start=self._start,
                pages=self._pages,
                library=self._library,
                talks_to=self._talks_to,
                language=self._language,
                body_seconds=self._limits.body_seconds,
                opened=self._file.remove,
                log=log,
            )
            stack.callback(application.close)
            server = HttpListener(
                application, self._limits, None, RefusalCounts(), self.new_link, PageConnection
            )
            # The library takes parts of a second as well.
            server.config.timeout_graceful_shutdown = cast(int, _GRACE_SECONDS)
            self._stop = lambda: loop.call_soon_threadsafe(server.stop)
            loop.set_exception_handler(unforeseen(log))
            if of_process:
                for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    loop.add_signal_handler(signum, server.stop)
                    stack.callback(loop.remove_signal_handler, signum)
                self._listen_to_enter(loop, stack)
            await self._served(server)

    async def _served(self, server: HttpListener) -> None:
        if self._beside is None:
            await server.serve(sockets=[self._listener])
            return
        beside = asyncio.create_task(self._beside())
        beside.add_done_callback(lambda _: server.stop())
        try:
            await server.serve(sockets=[self._listener])
        finally:
            beside.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beside

    def new_link(self) -> None:
        """It ends the former one, and the session that it began."""
        url = f"http://{HOST}:{self.port}/open?key={self._entrance.fresh_key()}"
        self._invite(url)
        if self._browser:
            place = self._file.write(url).as_uri()
            self._file.remove_later(LINK_SECONDS)
            # Some browsers keep whoever has started them waiting.
            threading.Thread(target=webbrowser.open, args=[place], daemon=True).start()

    def _listen_to_enter(
        self, loop: asyncio.AbstractEventLoop, stack: contextlib.ExitStack
    ) -> None:
        if sys.stdin is None or not sys.stdin.isatty():
            return
        terminal = sys.stdin.fileno()

        def heard() -> None:
            try:
                if os.tcgetpgrp(terminal) != os.getpgrp():  # what is typed is for somebody else
                    return
                typed = os.read(terminal, 4096)
            except OSError:
                typed = b""
            if typed:
                self.new_link()
            else:  # the terminal is gone
                loop.remove_reader(terminal)

        loop.add_reader(terminal, heard)
        stack.callback(loop.remove_reader, terminal)


# --- links of the console -------------------------------------------------------------------------

# How `sottovoce console` asks a running server for a link. The file that says where a server
# listens may be of one that is gone, and somebody else may listen there by now. So both sides prove
# that they have the role's token, for this port, and neither shows it: first the server, for a
# number that the asker has drawn, then the asker, for one that the server drew when it started.


SERVES, ASKS = "serves a console", "asks for a link"
"""What is proved."""
NONCE_BYTES = 32
_SECONDS = 10.0
_LONGEST = 1 << 16


def ask_for_link(folder: ServerFolder, role: Role, name: str) -> str:
    """A link that opens the console once, with this role, for somebody of this name. Raises with
    one sentence where there is none to be had."""
    running = folder.running()
    if running is None:
        raise UsageError(
            f"no server runs from {folder.path}; start it with `{start_command(folder.path)}`"
        )
    address = running.get("console")
    if not address:
        raise UsageError(
            "this server has no console, since it was started with --no-console or by an earlier "
            "release; start it anew"
        )
    token = read_token(role_token(folder.keys, role))
    nonce = secrets.token_hex(NONCE_BYTES)
    try:
        port = urlsplit(address).port or 0
        with httpx2.Client(base_url=address, timeout=_SECONDS, trust_env=False) as client:
            met = _ask(client, {"role": role, "nonce": nonce})
            theirs = str(met["nonce"])
            proof = proof_by(token, SERVES, port, role, nonce, theirs)
            if not hmac.compare_digest(proof.encode(), str(met["proof"]).encode()):
                raise KeyTrouble(
                    f"whoever listens at {address} does not have the token in {folder.keys} and "
                    f"was not told it; start the server of {folder.path} anew"
                )
            proof = proof_by(token, ASKS, port, role, name, nonce, theirs)
            asked = {"role": role, "nonce": nonce, "name": name, "proof": proof}
            return f"{address}/open?key={_ask(client, asked, proven=True)['key']}"
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unreachable(f"the console at {address} does not answer: {error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreachable(
            f"what listens at {address} is no console; start the server anew"
        ) from None


def _ask(client: httpx2.Client, asked: dict[str, str], *, proven: bool = False) -> dict[str, Any]:
    """What is answered; the words of a refusal are shown of nobody but the server."""
    with client.stream("POST", "/link", json=asked) as answer:
        content = bytearray()
        for part in answer.iter_bytes():
            content += part
            if len(content) > _LONGEST:
                raise ValueError("it says too much")
    found: dict[str, Any] = dict(json.loads(content))
    if answer.is_error:
        why = f"status {answer.status_code}"
        if proven:
            why = found.get("error", {}).get("values", {}).get("why", why)
        raise ServiceError(f"the console at {client.base_url} gave no link: {why}")
    return found
