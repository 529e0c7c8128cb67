"""A10: who hides an attribute, from how much of its filter a device sends."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.filters import rank
from sottovoce.attacks.suite.a09_filter_bias import NO_FILTERS, UC, needs, read_filters
from sottovoce.attacks.views import ATTACKS, SECURE_SUM, Attack, Result, Truth, View

_NAME: Final = "consent detection"
_PROMISE: Final = "Nobody can tell that I hide something."
Scores = list[tuple[str, NDArray[np.int64], NDArray[np.float64]]]
"""By attribute: users, and how little each sent."""


def _guess(view: View) -> Scores:
    """A part that is missing counts as the smallest. Masked numbers are ranked by their size, too,
    though it has nothing to say."""
    found = []
    for rows in read_filters(view):
        square = np.zeros(len(rows.users))
        for change in rows.changes.values():
            square += (change.reshape(len(rows.users), -1) ** 2).sum(axis=1)
        found.append((rows.attribute, rows.users, -np.where(rows.sent, square, -1.0)))
    return found


def _judge(scores: Scores, truth: Truth) -> Result:
    """The AUC of telling those who hide an attribute from the others. The attribute of which it is
    told best counts, the others are named."""
    found, detail = [], []
    for name, users, score in scores:
        known = truth.hidden.get(name)
        if known is None or not 0 < int(known[users].sum()) < len(users):
            continue
        hides = known[users]
        ranking = rank(_NAME, score, hides)
        half = ranking.chance.high - 0.5
        ends = (max(0.0, ranking.auc - half), min(1.0, ranking.auc + half))
        found.append((ends[0], ranking.auc, ends, len(users)))
        detail.append(f"{name} {ranking.auc:.3f}")
    if not found:
        return _result(0.5, (0.0, 1.0), 0, "everybody, or nobody, hides anything")
    _, value, ends, tried = max(found)
    return _result(value, ends, tried, "; ".join(detail))


def _result(value: float, interval: tuple[float, float], claims: int, detail: str) -> Result:
    return Result(
        "A10", _NAME, "server", _PROMISE, "AUC", value, interval, 0.5, claims=claims, detail=detail
    )


ATTACK = ATTACKS.add(
    "consent",
    Attack(
        _NAME, "server", _PROMISE, _guess, _judge, "A10",
        against=UC, elsewhere=NO_FILTERS, needs=needs, remedy=SECURE_SUM,
    ),
)  # fmt: skip
