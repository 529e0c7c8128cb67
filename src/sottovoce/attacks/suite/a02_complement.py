"""A2: what a device never sends.

Negatives are drawn from everything that she has not touched. What has come as a negative is not
hers; what has not may be. The longer the server listens, the less is left.

The measure is the chance that an item of hers ranks above an item that somebody else likes and she
does not, where items that she has never sent as a negative come first. Two users are set against
each other, the items of the one against those of the other, so that what is liked by all, or sent
by all, counts for nothing: without the attack the chance is ½.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.pairs import (
    FPL,
    NOT_FPL,
    Ints,
    attacked,
    device_rows,
    models,
    opened,
    slopes,
    why_not_read,
)
from sottovoce.attacks.views import (
    ATTACKS,
    CONFIDENCE_Z,
    SECURE_SUM,
    Attack,
    Claims,
    Result,
    Truth,
    View,
)
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import DeviceReports
from sottovoce.core.redacted import Redacted
from sottovoce.rng import Streams

PROMISE = "Things I have not touched say nothing about what I liked."


@dataclass(frozen=True, slots=True, repr=False)
class ComplementGuess(Redacted):
    users: Ints
    free: NDArray[np.bool_]
    """[users, items]: never seen as a negative of hers."""
    rounds: int


def _guess(view: View) -> ComplementGuess:
    known, step = models(view), view.algorithm.step()
    if view.messages(DeviceReports):
        rows = device_rows(view)
        rows = rows.take(slopes(rows, known, step) > 0)
        users = np.unique(rows.sender)
        free = np.ones((len(users), view.n_items), np.bool_)
        free[np.searchsorted(users, rows.sender), rows.item] = False
        return ComplementGuess(users, free, len(np.unique(rows.round)))
    sums = [one for one in opened(view) if one.round in known]
    users = attacked(np.concatenate([np.zeros(0, np.int64), *(one.senders for one in sums)]))
    free = np.ones((len(users), view.n_items), np.bool_)
    for one in sums:
        rows = one.rows()
        negative = rows.item[slopes(rows, known, step) > 0]
        free[np.ix_(np.isin(users, one.senders), negative)] = False
    return ComplementGuess(users, free, len(sums))


def _judge(guess: ComplementGuess, truth: Truth) -> Result:
    values = duels(guess.users, guess.free, truth.train)
    n = len(values)
    if not n:
        return Result("A2", "complement", "server", PROMISE, "AUC", 0.5, (0.0, 1.0), 0.5)
    value = round(float(values.mean()), 12)
    half = CONFIDENCE_Z * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.5
    interval = max(0.0, round(value - half, 12)), min(1.0, round(value + half, 12))
    left = guess.free.mean(axis=1)
    return Result(
        "A2", "complement", "server", PROMISE, "AUC", value, interval, 0.5, claims=2 * n,
        detail=f"after {guess.rounds:,} rounds {left.mean():.1%} of all items are left that may be "
        "a user's own",
    )  # fmt: skip


def duels(users: Ints, scores: NDArray[np.generic], train: Interactions) -> NDArray[np.float64]:
    """Users two by two: how often an item that one of them has and the other has not ranks above
    one of the other's, by the score of whose item it is; the mean of both sides. Scores that do not
    depend on the user give ½ exactly."""
    order = Streams.from_seed(0).child("duels").keys(users).argsort(kind="stable")
    found = []
    for a, b in zip(order[0::2], order[1::2], strict=False):
        mine, hers = train.row(int(users[a])), train.row(int(users[b]))
        mine, hers = np.setdiff1d(mine, hers), np.setdiff1d(hers, mine)
        if len(mine) and len(hers):
            first = _above(scores[a, mine], scores[a, hers])
            found.append((first + _above(scores[b, hers], scores[b, mine])) / 2.0)
    return np.array(found)


def _above(own: NDArray[np.generic], other: NDArray[np.generic]) -> float:
    """The chance that one of `own` ranks above one of `other`; ties count half."""
    pool = np.sort(other)
    below = np.searchsorted(pool, own, side="left").mean()
    upto = np.searchsorted(pool, own, side="right").mean()
    return float(below + upto) / (2.0 * len(pool))


def _left(guess: ComplementGuess) -> Claims:
    """Everything that may be a user's own."""
    place, items = np.nonzero(guess.free)
    return Claims(guess.users[place], items.astype(np.int64))


ATTACK = ATTACKS.add(
    "complement",
    Attack(
        "complement", "server", PROMISE, _guess, _judge, "A2",
        against=FPL, elsewhere=NOT_FPL, needs=why_not_read, remedy=SECURE_SUM,
        claimed=_left, grows_with="users",
    ),
)  # fmt: skip
