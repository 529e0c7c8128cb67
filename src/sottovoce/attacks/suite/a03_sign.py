"""A3: the sign of the bias.

A device wants its positives to score higher and its negatives lower. So the last number of each row
that it sends says which of the two the item is. Under a secure sum the server reads the signs of
the sum, and claims them of everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from sottovoce.attacks.pairs import (
    FPL,
    NOT_FPL,
    DrawnPositives,
    Ints,
    device_rows,
    joined,
    models,
    of_everyone,
    opened,
    slopes,
    why_not_read,
)
from sottovoce.attacks.views import (
    ATTACKS,
    SECURE_SUM,
    Attack,
    Claims,
    Result,
    Truth,
    View,
    judge_claims,
)
from sottovoce.core.messages import DeviceReports
from sottovoce.core.redacted import Redacted

PROMISE = "Nobody can tell which of the rows I send are of things I liked."
_MOST_ITEMS = 200


@dataclass(frozen=True, slots=True, repr=False)
class SignGuess(Redacted):
    claims: Claims
    users: Ints
    rounds: Ints
    summed: bool


def _guess(view: View) -> SignGuess:
    known, step = models(view), view.algorithm.step()
    if view.messages(DeviceReports):
        rows = device_rows(view)
        users, rounds = np.unique(rows.sender), np.unique(rows.round)
        rows = rows.take(slopes(rows, known, step) < 0)
        return SignGuess(Claims(rows.sender, rows.item), users, rounds, summed=False)
    sums = [one for one in opened(view) if one.round in known]
    parts = []
    for one in sums:
        rows = one.rows()
        s = slopes(rows, known, step)
        best = np.argsort(s, kind="stable")[:_MOST_ITEMS]
        parts.append(of_everyone(rows.item[best[s[best] < 0]], one.senders))
    claims = joined(parts)
    rounds = np.array([one.round for one in sums], np.int64)
    return SignGuess(claims, np.unique(claims.users), rounds, summed=True)


def _judge(guess: SignGuess, truth: Truth) -> Result:
    drawn, wanted = truth.own.get("drawn"), None
    if isinstance(drawn, DrawnPositives):
        wanted = drawn.among(guess.users, guess.rounds)
    what = "the sums of" if guess.summed else "what they sent in"
    detail = f"{len(guess.users):,} users, by the signs in {what} {len(guess.rounds):,} rounds"
    return judge_claims("sign", "A3", "server", PROMISE, guess.claims, truth.train, wanted, detail)


ATTACK = ATTACKS.add(
    "sign",
    Attack(
        "sign", "server", PROMISE, _guess, _judge, "A3",
        against=FPL, elsewhere=NOT_FPL, needs=why_not_read, remedy=SECURE_SUM,
        claimed=attrgetter("claims"),
    ),
)  # fmt: skip
