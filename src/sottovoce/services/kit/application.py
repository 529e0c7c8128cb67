"""What the HTTP interfaces of all services have in common: addresses, what is answered if something
is refused, what every operator asks for, and a pulse by which a service knows that it is late."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
    bearer,
    is_crowded,
    read_body,
    refuse,
)
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.cors import NO_ORIGINS, Origins, is_preflight
from sottovoce.services.kit.metrics import (
    Figure,
    RequestCounts,
    build,
    exposition,
    of_process,
    of_service,
)
from sottovoce.stores.keys import Role, RoleTokens
from sottovoce.wire.refusals import Reason, RefusalCounts, Refused

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Routes = Mapping[str, tuple[str, Handler]]
_OPERATORS = 16
"""Requests of the operator that wait."""
_BEAT = 0.05
_READY_SECONDS, _READY_PATIENCE = 1.0, 3.0
"""Seconds for which an answer of `/ready` is reused, and seconds to wait for it."""


class Unserved(ServiceError):
    """A request that gets an error for an answer and is not counted: nothing is there, or it is
    for the operator alone."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.error = status, error


def not_found() -> Unserved:
    return Unserved(404, "not_found", "there is nothing at this address")


L = TypeVar("L", bound=Limits)


T = TypeVar("T")


class BoundedExecutor:
    """An executor with a limit: whoever brings more is told to come back."""

    def __init__(self, name: str, limit: int, threads: int = 1) -> None:
        """`name` is the service's."""
        self._name, self._limit = name, limit
        self._waiting = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="executor")

    async def __call__(self, work: Callable[[], T]) -> T:
        if self._waiting >= self._limit:
            raise Refused("overload", f"{self._name} has too much to do; come back later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Tarpit:
    """Lets whoever guesses wait for the answer: one guess a connection in so many seconds. It costs
    a timer, and nobody else waits."""

    _MOST = 4096

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting = 0

    async def __call__(self) -> None:
        if self._waiting >= self._MOST:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self._waiting -= 1


@dataclass(frozen=True, slots=True, repr=False)
class Hosting(Generic[L]):
    """What every application is given."""

    tokens: RoleTokens
    """Tokens of those who operate the service."""
    tally: RefusalCounts
    limits: L
    failed: Callable[[ServiceError], None] = lambda error: None
    """Told if what was sent cannot be stored."""
    died: Callable[[], None] = lambda: None
    """Told if a thread ends by an error that nobody has foreseen."""


class HttpApplication(ABC, Generic[L]):
    """An ASGI application with a handler for each address and method. Everything that is refused is
    counted; who bears a token of a role is let in if there are too many connections."""

    name: ClassVar[str]
    """In a sentence, as "the server"."""
    prefix: ClassVar[str] = ""
    """Prefix of the names of its metrics."""
    logs_refusals: ClassVar[bool] = False
    """Whether the log has them, by reason. Where devices ask themselves it has not: even when one
    was refused is not for a log."""

    def __init__(self, hosting: Hosting[L]) -> None:
        self._tokens, self._tally = hosting.tokens, hosting.tally
        self._limits: L = hosting.limits
        self._ends: list[Callable[[], None]] = []
        self._operators = self._executor(_OPERATORS)
        self._routes: Routes = {}
        """By path; one that ends in a slash is for all addresses below it."""
        self._origins, self._for_pages = NO_ORIGINS, frozenset[str]()
        """Pages whose browsers may talk to some of these."""
        self._next_look, self._trouble = 0.0, ""
        self._looking: asyncio.Future[None] | None = None
        self.requests = RequestCounts()
        self.failed: Callable[[ServiceError], None] = lambda error: None
        """Told if a request finds that the disk cannot be used."""
        self.refused: Callable[[Reason], None] = lambda reason: None
        """Told why a request is refused, and nothing else of it."""

    def _serve(
        self, routes: Routes, origins: Origins = NO_ORIGINS, pages: Iterable[str] = ()
    ) -> None:
        """These addresses, and those of every service; to pages of these `origins` those that are
        for `pages`, and no others."""
        self._origins, self._for_pages = origins, frozenset(pages) if origins else frozenset()
        own = {
            "/health": ("GET", _health),
            "/ready": ("GET", self._ready),
            "/metrics": ("GET", self._operator(self._metrics, "look")),
        }
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
        send = self.requests.counted(self._route(scope["path"]), send)
        retry, crowded = self._limits.retry_seconds, is_crowded(scope)
        if self._for_pages and self._route(scope["path"]) in self._for_pages:
            send = self._origins.on(scope, send)
        try:
            if crowded and self._tokens.role_of(bearer(scope)) is None:
                raise self.busy
            await self._handler(scope)(scope, receive, send)
        except Refused as error:
            self._count(error.reason)
            # Another connection would cost more than this one does.
            close = crowded or error.reason != "overload"
            wait = error.retry_seconds or retry
            await refuse(send, error.status, error.reason, str(error), wait, close=close)
        except Unserved as error:
            await refuse(send, error.status, error.error, str(error), retry)
        except ServiceError as error:
            self.failed(error)
            self._count("unavailable")
            problem = f"{self.name} cannot use its disk or database now"
            await refuse(send, 503, "unavailable", problem, retry)

    def _count(self, reason: Reason) -> None:
        self._tally.count(reason)
        self.refused(reason)

    def _handler(self, scope: Scope) -> Handler:
        route = self._route(scope["path"])
        if route is None:
            raise not_found()
        method, handler = self._routes[route]
        if route in self._for_pages and is_preflight(scope):
            return lambda scope, receive, send: self._origins.preflight(scope, send, method)
        if method != ("GET" if scope["method"] == "HEAD" else scope["method"]):
            raise Unserved(405, "method", f"this address takes {method} only")
        return handler

    def _route(self, path: str) -> str | None:
        """The one of `_routes` at which this address is."""
        if path in self._routes:
            return path
        above = "/".join([*path.split("/")[:3], ""])
        return above if above in self._routes else None

    def _executor(self, limit: int, threads: int = 1) -> BoundedExecutor:
        made = BoundedExecutor(self.name, limit, threads)
        self._ends.append(made.close)
        return made

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell balancers and containers whether the service can do its work now. Anybody may ask,
        so requests within a second share one check."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_look:
            self._next_look = now + _READY_SECONDS
            self._trouble = await self._look()
        if self._trouble:
            raise Unserved(503, "not_ready", self._trouble)
        await answer(send, 200, [TEXT, (b"cache-control", b"no-store")], b"ready")

    async def _look(self) -> str:
        """Return why the service is not ready; empty if it is. A look that hangs is waited for
        again, and no other one begun: strangers would fill the room of operators with them."""
        look = self._looking
        if look is None or look.done():
            look = self._looking = asyncio.ensure_future(self._operators(self.require_ready))
            look.add_done_callback(_forget)
        try:
            await asyncio.wait_for(asyncio.shield(look), _READY_PATIENCE)
        except TimeoutError:
            return f"{self.name} waits for its disk or database"
        except (ServiceError, Refused):
            return f"{self.name} cannot use its disk or database now"
        return ""

    def require_ready(self) -> None:
        """Raise `ServiceError` if the service cannot do its work now; runs in a thread. Whoever
        cannot read what its figures are of cannot."""
        for _ in self.figures():
            pass

    async def _body(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        return await read_body(scope, receive, limit, self._limits.body_seconds)

    # --- what the operator asks -------------------------------------------------------------------

    def _operator(self, handler: Handler, role: Role = "act") -> Handler:
        """For whoever bears the token of this role. Who may act may also look."""

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            borne = self._tokens.role_of(bearer(scope))
            if borne is None:
                raise Unserved(401, "unauthorized", "this needs the operator's token")
            if role == "act" and borne != "act":
                problem = "the viewer's token is for looking only; this needs the operator's"
                raise Unserved(403, "forbidden", problem)
            try:
                await handler(scope, receive, send)
            except (DataError, UsageError) as error:
                raise Unserved(400, "not_possible", str(error)) from None

        return checked

    def _status(self, table: Callable[[], Mapping[str, Any]]) -> Handler:
        """Tells the operator where the service stands."""

        async def show(scope: Scope, receive: Receive, send: Send) -> None:
            await answer_json(send, dict(await self._operators(table)))

        return self._operator(show, "look")

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = await self._operators(self._exposed)
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)

    def _exposed(self) -> bytes:
        service = of_service(self.name.removeprefix("the "), self._tokens.folder)
        figures = itertools.chain(service, self.requests.figures(), build(type(self).name))
        return exposition(self.prefix, self.figures()) + exposition("", figures) + of_process()


def _forget(late: asyncio.Future[None]) -> None:
    """Take the result of a check that nobody waits for any more."""
    if not late.cancelled():
        late.exception()


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
