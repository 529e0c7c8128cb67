"""Words that whoever enrols must answer soon: a shuffler asks for them, and a server whose places
are open to all."""

from __future__ import annotations

import hmac
import secrets
import struct
import threading
import time
from collections.abc import Callable

from sottovoce.wire.refusals import Refused
from sottovoce.wire.shuffled import CHALLENGE_BYTES

SECONDS = 60
"""In which a challenge must be answered."""
_HEAD = struct.Struct("<Q16s")
_DRAWN = 16
_MILLI = 1000


class Challenges:
    """Words that somebody must sign soon, so that nothing signed before is any good.

    A challenge carries its own time and a tag under a key: those that were never answered cost no
    memory. The key lives as long as this process, so that after a restart nobody knows the old
    ones, unless several processes have one in common. Only the clock of whoever asks matters. Any
    thread may use it.
    """

    def __init__(
        self,
        *,
        most: int = 200_000,
        clock: Callable[[], float] = time.monotonic,
        key: bytes | None = None,
        seconds: int = SECONDS,
    ) -> None:
        """Remembers at most `most` that were answered lately (`spend`); whoever answers more is
        told to come back. Processes with the same `key` have a clock in common, too."""
        self._key = secrets.token_bytes(32) if key is None else key
        self._most, self._clock, self._seconds = most, clock, seconds
        self._turn = threading.Lock()
        self._spent: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return "<Challenges, redacted>"

    def new(self, said: bytes = b"") -> bytes:
        """A challenge that says this besides, at most 8 bytes."""
        drawn = said + secrets.token_bytes(_DRAWN - len(said))
        head = _HEAD.pack(int(self._clock() * _MILLI), drawn)
        return head + self._tag(head)

    def opened(self, challenge: bytes) -> bytes:
        """What a challenge of ours says, and behind it what was drawn. Raises where it is not ours,
        or too old; it may have been answered before."""
        head, tag = challenge[: _HEAD.size], challenge[_HEAD.size :]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(self._tag(head), tag):
            raise Refused("late", "the challenge is not ours, or of before our start; ask again")
        made, drawn = _HEAD.unpack(head)
        if abs(self._clock() - made / _MILLI) > self._seconds:
            raise Refused("late", f"the challenge is older than {self._seconds} seconds; ask again")
        return bytes(drawn)

    def spend(self, challenge: bytes) -> None:
        """To be called when everything else about the answer is good. Raises where the challenge is
        not ours, too old, or was answered before."""
        self.opened(challenge)
        now, made = self._clock(), _HEAD.unpack(challenge[: _HEAD.size])[0] / _MILLI
        with self._turn:
            if challenge in self._spent:
                raise Refused("replay", "this challenge was answered before")
            if len(self._spent) >= self._most:
                self._spent = {c: end for c, end in self._spent.items() if end >= now}
                if len(self._spent) >= self._most:
                    raise Refused("overload", "too many enrol at once; come back later")
            self._spent[challenge] = made + self._seconds

    def _tag(self, head: bytes) -> bytes:
        return hmac.digest(self._key, head, "sha256")[: CHALLENGE_BYTES - _HEAD.size]
