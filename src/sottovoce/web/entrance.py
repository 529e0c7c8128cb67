"""Who may come in to a page on loopback: whoever has opened the one link, from the page itself, as
the same user of this machine."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LINK_SECONDS = 300.0
SESSION_SECONDS = 1800.0
_SECRET_BYTES = 32
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns of these tables."""

Clock = Callable[[], float]
Draw = Callable[[int], bytes]
"""So many bytes that nobody can guess."""


def awake_or_not() -> float:
    """Seconds, also those in which the machine slept, where the system counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True, repr=False)
class PageSession:
    """One browser's stay."""

    cookie: str
    token: str
    """Is in the page, and with every request that changes something."""
    seen: float


class Entrance:
    """One link, which works once and for a while, and the one session that it began."""

    def __init__(self, clock: Clock = awake_or_not, draw: Draw = secrets.token_bytes) -> None:
        self._clock, self._draw = clock, draw
        self._key: str | None = None
        self._made = 0.0
        self._session: PageSession | None = None

    def fresh_key(self) -> str:
        """For a new link. The former one and the session that it began end."""
        self._key, self._made, self._session = self._secret(), self._clock(), None
        return self._key

    def open(self, key: str) -> PageSession | None:
        """A session for whoever has the key; None where it was used, is too old or wrong."""
        if self._key is None or not same(key, self._key):
            return None
        self._key, now = None, self._clock()
        if now - self._made > LINK_SECONDS:
            return None
        self._session = PageSession(self._secret(), self._secret(), now)
        return self._session

    def session(self, cookies: Iterable[str]) -> PageSession | None:
        """The session that one of these belongs to, which goes on from now."""
        session, now = self._session, self._clock()
        if session is None:
            return None
        if now - session.seen > SESSION_SECONDS:
            self._session = None
            return None
        if not any(same(cookie, session.cookie) for cookie in cookies):
            return None
        session.seen = now
        return session

    def _secret(self) -> str:
        return self._draw(_SECRET_BYTES).hex()


def same(given: str, wanted: str) -> bool:
    """Takes as long whatever is given."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


# --- where a request comes from -------------------------------------------------------------------

Headers = Mapping[bytes, list[bytes]]


def is_our_host(headers: Headers, port: int) -> bool:
    """Whether the browser believes to talk to this machine: a name that somebody else's DNS has
    pointed here is none of ours."""
    hosts = headers.get(b"host", [])
    return len(hosts) == 1 and hosts[0] in (b"127.0.0.1:%d" % port, b"localhost:%d" % port)


def is_our_page(headers: Headers, *, document: bool, opening: bool) -> bool:
    """Whether a request that has passed `is_our_host` is from a page of ours, as far as the browser
    says. A `document` may also be asked for by hand, and the link (`opening`) also by another page
    or a file: who comes with it is known by its key."""
    own = b"http://" + headers[b"host"][0]
    if any(origin != own for origin in headers.get(b"origin", [])) or b"upgrade" in headers:
        return False
    whole = all(kind == b"document" for kind in headers.get(b"sec-fetch-dest", []))
    if opening:  # in a frame it is somebody else's; fetched ahead it would be used up
        return whole and b"sec-purpose" not in headers and b"purpose" not in headers
    sites = headers.get(b"sec-fetch-site", [])
    if all(site == b"same-origin" for site in sites):
        return True
    return document and whole and sites == [b"none"]


def cookies_called(name: str, headers: Headers) -> list[str]:
    """The values of cookies with this name. A browser sends those of other ports, too."""
    pairs = (
        pair.strip().partition("=")
        for line in headers.get(b"cookie", [])
        for pair in line.decode("latin-1").split(";")
    )
    return [value for key, _, value in pairs if key == name]


def is_another_user(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Whether the other end of a connection on loopback is somebody else's, as Linux tells; where
    no system tells, nobody is."""
    theirs, ours = (f"{_hex(host)}:{port:04X}" for host, port in (peer, here))
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[_LOCAL].endswith(theirs) and columns[_REMOTE].endswith(ours):
                return int(columns[_UID]) != os.geteuid()
    return False


def _hex(host: str) -> str:
    """An IPv4 address as the table has it; in the second one it follows a prefix."""
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}"
