"""Which web pages may talk to a service from a browser (CORS).

A browser lets a page read an answer of another origin if that answer names the page's origin, and
asks beforehand (a preflight) if the page wants to send more than a form could. Nothing here lets
anybody in: a device is known by what it signs. No answer ever allows credentials, so that no cookie
and no certificate of a visitor takes part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sottovoce.errors import UsageError
from sottovoce.services.kit.answers import Headers, Scope, Send, answer, header
from sottovoce.wire.refusals import Refused
from sottovoce.wire.signing import DIGEST_HEADER

ANY, NULL = b"*", b"null"
PREFLIGHT_SECONDS = 7200
"""So long a browser need not ask again; none remembers it longer than a day, some two hours."""
_PORTS = {"https": 443, "http": 80}
_HERE = ("localhost", "127.0.0.1", "::1")
_MAY_SEND = {
    "GET": b"if-none-match, range",
    "POST": f"content-type, {DIGEST_HEADER}".encode(),
}
"""Headers of a device, by method, for which a browser asks."""
_MAY_READ = (b"access-control-expose-headers", b"etag, retry-after, content-range")
_VARY = b"vary"


@dataclass(frozen=True, slots=True)
class Origins:
    """Pages that may talk to a service; none, and every answer is as if there were no browsers."""

    allowed: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, texts: Sequence[str] | None) -> Origins:
        """As an operator names them. Raises with one sentence where something is no origin."""
        return cls(frozenset(_origin(text) for text in texts or ()))

    def __bool__(self) -> bool:
        return bool(self.allowed)

    def named(self, origin: bytes) -> bytes:
        """What an answer to a page of this origin says; nothing where it may not read it. `*` is
        every origin but `null`, which pages of no origin have: that is named, or not meant."""
        if origin in self.allowed:
            return origin
        return ANY if origin not in (b"", NULL) and ANY in self.allowed else b""

    def on(self, scope: Scope, send: Send) -> Send:
        """Sends the same with what a browser needs to let the page read it."""
        mine = self._headers(header(scope, b"origin"))

        async def sent(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": merged(message["headers"], mine)}
            await send(message)

        return sent

    async def preflight(self, scope: Scope, send: Send, method: str) -> None:
        """What a browser asks before a page may send something here. Another origin is refused, and
        counted."""
        if not self.named(header(scope, b"origin")):
            raise Refused("other_origin", "pages of this origin may not talk to this service")
        headers: Headers = [
            (b"access-control-allow-methods", method.encode()),
            (b"access-control-allow-headers", _MAY_SEND[method]),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        ]
        await answer(send, 204, headers, b"")

    def at_rest(self, headers: Headers) -> Headers:
        """Headers of an answer that is ready beforehand, for whoever says no origin."""
        return merged(headers, self._headers(b""))

    def _headers(self, origin: bytes) -> Headers:
        if not self.allowed:
            return []
        named = self.named(origin)
        told: Headers = [(b"access-control-allow-origin", named), _MAY_READ] if named else []
        # Also where nothing is allowed: a cache must not hand that to somebody who may.
        return [(_VARY, b"origin"), *told]


NO_ORIGINS = Origins()


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a page may send."""
    return scope["method"] == "OPTIONS" and bool(header(scope, b"access-control-request-method"))


def merged(headers: Headers, more: Headers) -> Headers:
    """Both, with one Vary: some caches look at a single one."""
    vary = [value for name, value in (*headers, *more) if name == _VARY]
    rest = [one for one in (*headers, *more) if one[0] != _VARY]
    return [*rest, (_VARY, b", ".join(vary))] if vary else rest


def _origin(text: str) -> bytes:
    """As browsers write it: scheme, name, and a port that is not the scheme's own."""
    if text in ("*", "null"):
        return text.encode()
    wrong = UsageError(
        f"--origin is the beginning of a page's address, like https://shop.example, not {text!r}"
    )
    try:
        parts = urlsplit(text.lower().removesuffix("/"))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None
    name = f"[{host}]" if ":" in host else host
    bare = _with_port(name, port)
    if parts.scheme not in _PORTS or not re.fullmatch(r"[a-z0-9.:_\[\]-]+", name):
        raise wrong
    if parts.netloc != bare or parts.path or parts.query or parts.fragment:
        raise wrong
    if parts.scheme == "http" and host not in _HERE:
        raise UsageError(
            f"--origin {text!r} is not encrypted: whoever is on the way could put another page "
            "there; use https://"
        )
    return f"{parts.scheme}://{_with_port(name, port, _PORTS[parts.scheme])}".encode()


def _with_port(name: str, port: int | None, usual: int | None = None) -> str:
    return name if port is None or port == usual else f"{name}:{port}"
