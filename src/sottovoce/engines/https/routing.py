"""What the small services have in common: addresses, what is answered where something is refused,
and a pulse by which a service knows that it is late."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

from sottovoce.engines.https.answers import Receive, Scope, Send, bears, is_crowded, refuse
from sottovoce.engines.https.refusals import Refused, Tally
from sottovoce.errors import ServiceError

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
_BEAT = 0.05


class Routed(ABC):
    """An ASGI application with a handler for each address and method. Everything that is refused is
    counted; who bears the operator's token is let in where there are too many connections."""

    def __init__(self, name: str, token: str, tally: Tally, *, retry_seconds: int) -> None:
        self._name, self._token, self._tally = name, token, tally
        self._retry_seconds = retry_seconds
        self._routes: Mapping[str, tuple[str, Handler]] = {}
        self.failed: Callable[[ServiceError], None] = lambda error: None
        """Told where a request finds that the disk cannot be used."""

    @property
    def busy(self) -> Refused:
        """The refusal where there is too much to do."""
        return Refused("overload", f"{self._name} has too much to do; come back later")

    @abstractmethod
    def close(self) -> None:
        """End what was started for the service."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        retry = self._retry_seconds
        found = self._routes.get(scope["path"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if found is None:
            await refuse(send, 404, "not_found", "there is nothing at this address", retry)
            return
        if found[0] != method:
            await refuse(send, 405, "method", f"this address takes {found[0]} only", retry)
            return
        crowded = is_crowded(scope)
        try:
            if crowded and not bears(scope, self._token):
                raise self.busy
            await found[1](scope, receive, send)
        except Refused as error:
            self._tally.count(error.reason)
            # Another connection would cost more than this one does.
            close = crowded or error.reason != "overload"
            await refuse(send, error.status, error.reason, str(error), retry, close=close)
        except ServiceError as error:
            self.failed(error)
            self._tally.count("unavailable")
            problem = f"{self._name} cannot use its disk now"
            await refuse(send, 503, "unavailable", problem, retry)


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
