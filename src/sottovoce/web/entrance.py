"""Who may come in to a page on loopback: whoever has opened a link, from the page itself, as the
same user of this machine."""

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


@dataclass(frozen=True, slots=True, repr=False)
class Guest:
    """For whom a link was made."""

    role: str = ""
    """What they may do, where not everybody may do everything."""
    name: str = ""
    holds: Callable[[], bool] = lambda: True
    """Whether what let them in still does."""


ANYBODY = Guest()


@dataclass(slots=True, repr=False)
class PageSession:
    """One browser's stay."""

    cookie: str
    token: str
    """Is in the page, and with every request that changes something."""
    seen: float
    guest: Guest
    user: int | None = None
    """Of this machine, who has opened the link; None where the system does not tell."""


class Entrance:
    """Links, each of which works once and for a while, and the sessions that they began. As a rule
    there is one of both, and a new link ends the former ones."""

    def __init__(
        self, clock: Clock = awake_or_not, draw: Draw = secrets.token_bytes, *, most: int = 1
    ) -> None:
        """With room for so many links and sessions of each role; the oldest makes way."""
        self._clock, self._draw, self._most = clock, draw, most
        self._links: dict[str, tuple[float, Guest]] = {}
        self._sessions: list[PageSession] = []
        self._turned_away: list[str] = []

    def fresh_key(self, guest: Guest = ANYBODY) -> str:
        """For a new link."""
        key = self._secret()
        alike = [one for one, (_, other) in self._links.items() if other.role == guest.role]
        for old in alike[: max(0, len(alike) + 1 - self._most)]:
            del self._links[old]
        self._links[key] = self._clock(), guest
        self._make_room(guest.role)
        return key

    def open(self, key: str, user: int | None = None) -> PageSession | None:
        """A session for whoever has the key; None where it was used, is too old or wrong."""
        found = [known for known in self._links if same(key, known)]
        if not found:
            return None
        (made, guest), now = self._links.pop(found[0]), self._clock()
        if now - made > LINK_SECONDS or not guest.holds():
            return None
        self._make_room(guest.role)
        session = PageSession(self._secret(), self._secret(), now, guest, user)
        self._sessions.append(session)
        return session

    def session(self, cookies: Iterable[str], user: int | None = None) -> PageSession | None:
        """The session that one of these belongs to, which goes on from now. To another user of this
        machine it belongs as little as to a stranger."""
        held, now = list(cookies), self._clock()
        self._sessions = [one for one in self._sessions if now - one.seen <= SESSION_SECONDS]
        for session in self._sessions:
            ours = any(same(cookie, session.cookie) for cookie in held)
            if not ours or user != session.user:
                continue
            if not session.guest.holds():
                self.end(session)
                return None
            session.seen = now
            return session
        return None

    def end(self, session: PageSession) -> None:
        """It was ended before its time; whoever asks with its cookie can be told so."""
        self._sessions.remove(session)
        self._turned_away = [*self._turned_away[-self._most :], session.cookie]

    def was_ended(self, cookies: Iterable[str]) -> bool:
        """Whether one of these belonged to a session that ended because what had let it in does so
        no more."""
        return any(same(cookie, ended) for cookie in cookies for ended in self._turned_away)

    def _make_room(self, role: str) -> None:
        """For one more: whoever may only look pushes nobody out who may act."""
        alike = [one for one in self._sessions if one.guest.role == role]
        for old in alike[: max(0, len(alike) + 1 - self._most)]:
            self._sessions.remove(old)

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


def user_behind(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Whose the other end of a connection on loopback is, as Linux tells; None where no system
    tells."""
    theirs, ours = (f"{_hex(host)}:{port:04X}" for host, port in (peer, here))
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[_LOCAL].endswith(theirs) and columns[_REMOTE].endswith(ours):
                return int(columns[_UID])
    return None


def is_another_user(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Whether it is somebody else's than this process; where no system tells, nobody is."""
    return user_behind(peer, here) not in (None, os.geteuid())


def _hex(host: str) -> str:
    """An IPv4 address as the table has it; in the second one it follows a prefix."""
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}"
