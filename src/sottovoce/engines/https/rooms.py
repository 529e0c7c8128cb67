"""Room for the bodies of requests. It is taken by bytes that have arrived, never by what a head
promises, and shared out by sender: who sends most gives way first."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from sottovoce.engines.https.refusals import Refused

FREE = 4096
"""Bytes of every body that need no room: so much is held by connections, whose number has a limit
of its own, and small messages get through when there is no room at all."""
_STEP, _STEP_SECONDS = 64 << 10, 4.0
"""A body of which so many bytes more take longer than this does not get on: half as fast as the
slowest line that is waited for."""
_PREFIX_BYTES = 8
"""Of an IPv6 address: a household or a rented machine has a /64 and all addresses in it."""


def neighbourhood(host: str) -> str:
    """Whom limits per address are for: an IPv4 address, or a /64 of IPv6."""
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host
    if packed[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return packed[:_PREFIX_BYTES].hex()


def sender_of(scope: dict[str, Any]) -> Hashable:
    """Who sends this request, as far as its connection tells."""
    found: Hashable = scope.get("sender")
    if found is None and scope.get("client"):
        return neighbourhood(scope["client"][0])
    return found


class Room:
    """At most so many bytes at once, and so many of one sender. Where it is full, a sender of
    several bodies loses one to somebody who holds less, and a body that does not get on gives way
    to any other. The oldest body of all is taken however large it is, and so is a sender's only one
    where there is room."""

    def __init__(self, name: str, most: int, per_sender: int) -> None:
        self._name, self._most, self._per_sender = name, most, per_sender
        self._shares: dict[Share, None] = {}
        self._of: dict[Hashable, dict[Share, None]] = {}
        self._held: Counter[Hashable] = Counter()
        self.bytes = 0

    @property
    def full(self) -> Refused:
        """The refusal where there is no room."""
        return Refused("overload", f"{self._name} has too much to do; come back later")

    def enter(self, share: Share) -> None:
        self._shares[share] = None
        self._of.setdefault(share.sender, {})[share] = None

    def grow(self, share: Share, size: int) -> None:
        """Raises where there is no room for so many bytes more."""
        if size <= 0:
            return
        sender = share.sender
        wanted = self._held[sender] + size
        if wanted > self._per_sender and next(iter(self._of[sender])) is not share:
            raise self.full
        while self.bytes + size > self._most:
            victim = self._greediest(wanted) or self._slowest(share)
            if victim is not None:
                victim.cut()
            elif next(iter(self._shares)) is share:
                break
            else:
                raise self.full
        share.counted += size
        self._held[sender] += size
        self.bytes += size

    def leave(self, share: Share) -> None:
        if share not in self._shares:
            return
        del self._shares[share], self._of[share.sender][share]
        self.bytes -= share.counted
        self._held[share.sender] -= share.counted
        share.counted = 0
        if not self._of[share.sender]:
            del self._of[share.sender], self._held[share.sender]

    def _greediest(self, wanted: int) -> Share | None:
        """The largest body of who holds most, where that is more than `wanted` and several are
        coming."""
        for sender, held in self._held.most_common(1):
            coming = [share for share in self._of[sender] if share.clock is not None]
            if held > wanted and len(coming) > 1:
                return max(coming, key=lambda share: share.counted)
        return None

    def _slowest(self, other: Share) -> Share | None:
        """A body that does not get on."""
        late = time.monotonic() - _STEP_SECONDS
        for share in self._shares:
            if share.clock is not None and share.got_on < late and share is not other:
                return share
        return None


Prove = Callable[[bytes], tuple[Room, Hashable, int] | None]
"""Is given the beginning of a body, more than `FREE` bytes. It says which other room has a place
for it, in whose name and for how many bytes."""


class Share:
    """The room of one body, from its first byte until it is dealt with: within a `with`."""

    def __init__(self, room: Room, sender: Hashable, prove: Prove | None = None) -> None:
        self._room, self._prove = room, prove
        self.sender = self if sender is None else sender
        self._size = 0
        self.counted = 0
        self.clock: asyncio.Timeout | None = None
        """Runs while the body is being received; only then can its room be taken away."""
        self.was_cut = False
        self.got_on = time.monotonic()
        """When another step of it was here."""

    def __enter__(self) -> Share:
        self._room.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.clock = None
        self._room.leave(self)

    @property
    def full(self) -> Refused:
        return self._room.full

    def take(self, part: bytes, begun: Callable[[], bytes]) -> None:
        """Another part of the body has come, and what is here by now is `begun`. Raises where
        there is no room for it."""
        if self.was_cut:
            raise self.full
        if (self._size + len(part)) // _STEP > self._size // _STEP:
            self.got_on = time.monotonic()
        self._size += len(part)
        if self._prove is not None and self._size > FREE:
            found, self._prove = self._prove(begun()), None
            if found is not None:
                self.move(*found)
        self._room.grow(self, max(0, self._size - FREE) - self.counted)

    def move(self, room: Room, sender: Hashable, size: int = 0) -> None:
        """To another room, where so many bytes are kept free for the body, or those that are here.
        There all of them count. Raises where it has no place for them."""
        size = max(self._size, size)
        self._room.leave(self)
        self._room, self.sender = room, sender
        room.enter(self)
        room.grow(self, size)

    def cut(self) -> None:
        """Give the room back now; what is being received is refused."""
        self.was_cut = True
        self._room.leave(self)
        if self.clock is not None:
            self.clock.reschedule(asyncio.get_running_loop().time())
