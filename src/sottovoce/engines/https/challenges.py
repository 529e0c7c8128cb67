"""Challenges: words that somebody must sign soon, and once, so that nothing signed before is any
good.

A challenge carries its own time and a tag under a key that lives as long as this process: those
that were never answered cost no memory, and after a restart nobody knows the old ones. Only the
clock of whoever asks matters.
"""

from __future__ import annotations

import hmac
import secrets
import struct
import threading
import time
from collections.abc import Callable

from sottovoce.engines.https.refusals import Refused

CHALLENGE_BYTES = 48
SECONDS = 60
"""In which a challenge must be answered."""
_HEAD = struct.Struct("<Q16s")
_MILLI = 1000


class Challenges:
    """Any thread may use it."""

    def __init__(self, *, most: int = 200_000, clock: Callable[[], float] = time.monotonic) -> None:
        """Remembers at most `most` that were answered in the last minute; whoever answers more is
        told to come back."""
        self._key = secrets.token_bytes(32)
        self._most, self._clock = most, clock
        self._turn = threading.Lock()
        self._spent: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return "<Challenges, redacted>"

    def new(self) -> bytes:
        head = _HEAD.pack(int(self._clock() * _MILLI), secrets.token_bytes(16))
        return head + self._tag(head)

    def spend(self, challenge: bytes) -> None:
        """To be called when everything else about the answer is good. Raises where the challenge is
        not ours, too old, or was answered before."""
        head, tag = challenge[: _HEAD.size], challenge[_HEAD.size :]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(self._tag(head), tag):
            raise Refused("late", "the challenge is not ours, or of before our start; ask again")
        now, made = self._clock(), _HEAD.unpack(head)[0] / _MILLI
        if now - made > SECONDS:
            raise Refused("late", f"the challenge is older than {SECONDS} seconds; ask again")
        with self._turn:
            if challenge in self._spent:
                raise Refused("replay", "this challenge was answered before")
            if len(self._spent) >= self._most:
                self._spent = {c: end for c, end in self._spent.items() if end >= now}
                if len(self._spent) >= self._most:
                    raise Refused("overload", "too many enrol at once; come back later")
            self._spent[challenge] = made + SECONDS

    def _tag(self, head: bytes) -> bytes:
        return hmac.digest(self._key, head, "sha256")[: CHALLENGE_BYTES - _HEAD.size]
