"""Questions that users prove to be theirs (`wire.users.ask`): believed, answered once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sottovoce.errors import KeyTrouble
from sottovoce.services.kit.connections import Limits
from sottovoce.wire.interactions import Identity
from sottovoce.wire.refusals import Refused, read_or_refuse
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
