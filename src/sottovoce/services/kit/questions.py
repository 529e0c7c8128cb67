"""Questions that users prove to be theirs (`wire.users.ask`): believed, answered once. Also the
challenges that a device must answer soon when it enrols at a shuffler or takes an open place."""

from __future__ import annotations

import hmac
import secrets
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sottovoce.errors import KeyTrouble
from sottovoce.services.kit.connections import Limits
from sottovoce.wire.interactions import Identity
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.shuffled import CHALLENGE_BYTES
from sottovoce.wire.users import PROOF_SECONDS, Purpose, UserQuestion, read_question

_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingLimits(Limits):
    """Those of a service that users ask."""

    per_minute: int = 60
    """Questions of one user."""
    nonces: int = 200_000
    """Questions of all users within the time in which a proof is good."""


class Once:
    """Sees to it that a question is answered once, and nobody asks too often.

    What was asked before this process began is not known here: such questions are told to come
    again. (Who has a clock that is ahead is the exception, for as long as it is ahead.)
    """

    def __init__(
        self, name: str, limits: AskingLimits, clock: Callable[[], float] = time.time
    ) -> None:
        self._name, self._limits, self._clock = name, limits, clock
        self._began = int(clock())
        self._turn = threading.Lock()
        self._nonces: dict[tuple[int, bytes], float] = {}
        self._asked: Counter[int] = Counter()
        self._minute = 0

    def admit(self, question: UserQuestion) -> None:
        """Note the question, which is proven. Raises where it is not answered."""
        now = self._clock()
        if abs(now - question.time) > PROOF_SECONDS:
            raise Refused(
                "late",
                f"the question is from another time; clocks may be {PROOF_SECONDS} seconds apart",
            )
        if question.time < self._began:
            raise Refused("unavailable", f"{self._name} has just started; ask again")
        user = question.given.user
        with self._turn:
            self._forget(now)
            mark = (user, question.nonce)
            if mark in self._nonces:
                raise Refused("replay", "this question was asked before")
            if self._asked[user] >= self._limits.per_minute:
                raise Refused("too_often", "you ask too often; wait a minute")
            if len(self._nonces) >= self._limits.nonces:
                raise Refused("overload", f"{self._name} has too much to do; come back later")
            self._asked[user] += 1
            self._nonces[mark] = question.time + PROOF_SECONDS

    def _forget(self, now: float) -> None:
        """What is too old to be asked again, once a minute."""
        minute = int(now // _MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._asked.clear()
            self._nonces = {mark: end for mark, end in self._nonces.items() if end >= now}


def proven(
    body: bytes, purpose: Purpose, federation: str, issuer: bytes, asked: Identity
) -> UserQuestion:
    """A question to whoever has the key `asked`, by whoever has the pass and its key. Raises where
    it is none."""
    question = read_or_refuse(read_question, body)
    try:
        question.given.check(issuer, federation)
    except KeyTrouble:
        raise Refused("bad_pass", "this federation's issuer has not given this pass") from None
    if not question.is_proven(purpose, federation, asked):
        raise Refused("bad_mac", "the question was not asked with the key of the pass")
    return question


# --- challenges -----------------------------------------------------------------------------------


SECONDS = 60
"""Seconds in which a challenge must be answered."""
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
