"""What the HTTP interfaces of all services have in common: addresses, what is answered if something
is refused, what every operator asks for, and a pulse by which a service knows that it is late."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from sottovoce.errors import DataError, ServiceError, UsageError
from sottovoce.services.kit.answers import (
    TEXT,
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    bears,
    is_crowded,
    read_body,
    refuse,
)
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.executor import BoundedExecutor
from sottovoce.services.kit.metrics import Figure, exposition
from sottovoce.wire.refusals import RefusalCounts, Refused

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Routes = Mapping[str, tuple[str, Handler]]
_OPERATORS = 16
"""Requests of the operator that wait."""
_BEAT = 0.05


class Unserved(ServiceError):
    """A request that gets an error for an answer and is not counted: nothing is there, or it is
    for the operator alone."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.error = status, error


def not_found() -> Unserved:
    return Unserved(404, "not_found", "there is nothing at this address")


L = TypeVar("L", bound=Limits)


@dataclass(frozen=True, slots=True, repr=False)
class Hosting(Generic[L]):
    """What every application is given."""

    token: str
    """The operator's."""
    tally: RefusalCounts
    limits: L
    failed: Callable[[ServiceError], None] = lambda error: None
    """Told if what was sent cannot be stored."""
    died: Callable[[], None] = lambda: None
    """Told if a thread ends by an error that nobody has foreseen."""


class HttpApplication(ABC, Generic[L]):
    """An ASGI application with a handler for each address and method. Everything that is refused is
    counted; who bears the operator's token is let in if there are too many connections."""

    name: ClassVar[str]
    """In a sentence, as "the server"."""
    prefix: ClassVar[str] = ""
    """Of the names of its figures."""

    def __init__(self, hosting: Hosting[L]) -> None:
        self._token, self._tally = hosting.token, hosting.tally
        self._limits: L = hosting.limits
        self._ends: list[Callable[[], None]] = []
        self._operators = self._executor(_OPERATORS)
        self._routes: Routes = {}
        """By path; one that ends in a slash is for all addresses below it."""
        self.failed: Callable[[ServiceError], None] = lambda error: None
        """Told if a request finds that the disk cannot be used."""

    def _serve(self, routes: Routes) -> None:
        """These addresses, and those of every service."""
        own = {"/health": ("GET", _health), "/metrics": ("GET", self._operator(self._metrics))}
        self._routes = {**own, **routes}

    @abstractmethod
    def figures(self) -> Iterable[Figure]:
        """What the operator's Prometheus is told; counts, which reveal no one."""

    @property
    def busy(self) -> Refused:
        """The refusal if there is too much to do."""
        return Refused("overload", f"{self.name} has too much to do; come back later")

    def close(self) -> None:
        """End what was started for the service."""
        for end in self._ends:
            end()

    def at_hand(self, url: bytes) -> tuple[bytes, bytes] | None:
        """What anybody gets who asks for all that is at this address, as `ready_answer` makes it;
        None where that takes more than a look."""
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        retry, crowded = self._limits.retry_seconds, is_crowded(scope)
        try:
            if crowded and not bears(scope, self._token):
                raise self.busy
            await self._handler(scope)(scope, receive, send)
        except Refused as error:
            self._tally.count(error.reason)
            # Another connection would cost more than this one does.
            close = crowded or error.reason != "overload"
            await refuse(send, error.status, error.reason, str(error), retry, close=close)
        except Unserved as error:
            await refuse(send, error.status, error.error, str(error), retry)
        except ServiceError as error:
            self.failed(error)
            self._tally.count("unavailable")
            problem = f"{self.name} cannot use its disk or database now"
            await refuse(send, 503, "unavailable", problem, retry)

    def _handler(self, scope: Scope) -> Handler:
        path = scope["path"]
        found = self._routes.get(path) or self._routes.get("/".join([*path.split("/")[:3], ""]))
        if found is None:
            raise not_found()
        method, handler = found
        if method != ("GET" if scope["method"] == "HEAD" else scope["method"]):
            raise Unserved(405, "method", f"this address takes {method} only")
        return handler

    def _executor(self, limit: int, threads: int = 1) -> BoundedExecutor:
        made = BoundedExecutor(self.name, limit, threads)
        self._ends.append(made.close)
        return made

    async def _body(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        return await read_body(scope, receive, limit, self._limits.body_seconds)

    # --- what the operator asks -------------------------------------------------------------------

    def _operator(self, handler: Handler) -> Handler:
        """For whoever bears the operator's token."""

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if not bears(scope, self._token):
                raise Unserved(401, "unauthorized", "this needs the operator's token")
            try:
                await handler(scope, receive, send)
            except (DataError, UsageError) as error:
                raise Unserved(400, "not_possible", str(error)) from None

        return checked

    def _status(self, table: Callable[[], Mapping[str, Any]]) -> Handler:
        """Tells the operator where the service stands."""

        async def show(scope: Scope, receive: Receive, send: Send) -> None:
            await answer_json(send, dict(await self._operators(table)))

        return self._operator(show)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = await self._operators(lambda: exposition(self.prefix, self.figures()))
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)


async def _health(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 200, [TEXT], b"ok")


class Pulse:
    """How late the event loop is with what is due."""

    def __init__(self) -> None:
        self.lag = 0.0
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _BEAT
        self._next = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        self._next.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        self.lag = now - self._due
        self._due = now + _BEAT
        self._next = self._loop.call_at(self._due, self._beat)
