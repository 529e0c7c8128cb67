"""A4 on sums: items that one user alone has.

FCF's sum of a row is −A·v, A being the sum of x·xᵀ over all users, and a multiple of the vectors of
those who have the item. Without A nothing of it can be read. Whoever knows the users' vectors from
elsewhere, more or less, knows A; what is left of a row whose item has one user is then a multiple
of her vector. Most items of sparse data have one user.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from sottovoce.core.messages import GRID, SummedReports

Floats = NDArray[np.float64]
PROMISE = "In a sum of many nobody sees what I alone have."
NAME = "items of one user in the sum"
NEAR = 0.999
"""Cosine between what is left of a row and the vector that it is taken for a multiple of."""
_AT_ONCE = 1024


class SumOnModel(NamedTuple):
    """A round's sum, and the model that it belongs to."""

    round: int
    items: Floats
    sums: Floats


def _needs(view: View) -> str:
    return "" if _opened(view) else "it needs an opened sum and the model that it belongs to"


def _opened(view: View) -> list[SumOnModel]:
    found = []
    for seen in view.rounds:
        for message in seen.messages:
            if isinstance(message, SummedReports) and seen.published is not None:
                items = seen.published.items.astype(np.float64)
                sums = message.dense(len(items)) / GRID
                found.append(SumOnModel(seen.round, items, sums))
    return found


def _judge(guess: list[SumOnModel], truth: Truth) -> Result:
    """`truth.own["vectors"]` has the vectors by round, as they were before it: those of a round
    stand under the next."""
    users: list[NDArray[np.int64]] = []
    items: list[NDArray[np.int64]] = []
    for one in guess:
        known = truth.own.get("vectors", {}).get(one.round + 1)
        if known is None:
            continue
        known = known.astype(np.float64)
        left = one.sums + one.items @ (known.T @ known)
        length = np.linalg.norm(known, axis=1, keepdims=True)
        directions = known / np.where(length > 0, length, 1.0)
        for start in range(0, len(left), _AT_ONCE):
            part = left[start : start + _AT_ONCE]
            size = np.maximum(np.linalg.norm(part, axis=1), 1e-12)
            along = part @ directions.T / size[:, None]
            nearest = along.argmax(axis=1)
            sure = np.flatnonzero(along[np.arange(len(part)), nearest] > NEAR)
            users.append(nearest[sure].astype(np.int64))
            items.append(start + sure)
    none = np.zeros(0, dtype=np.int64)
    claims = Claims(np.concatenate([none, *users]), np.concatenate([none, *items]))
    detail = "for whoever knows the users' vectors from elsewhere, and for nobody else"
    return judge_claims(NAME, "A4", "server", PROMISE, claims, truth.train, detail=detail)


ATTACK = ATTACKS.add(
    "lone-items",
    Attack(
        NAME, "server", PROMISE, _opened, _judge, "A4", against=frozenset({"fcf"}),
        elsewhere="it is about FCF's sums", needs=_needs, remedy=SECURE_SUM,
    ),
)  # fmt: skip
