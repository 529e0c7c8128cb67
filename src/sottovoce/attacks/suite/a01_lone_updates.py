"""UC-FedRec's sums: rows that one device alone has sent.

A row counts its senders, so that the server sees in the sum which rows are a single device's. Such
a row is near a multiple of her embedding, along it for an item of hers and against it for another.
Whose embedding it is the sum does not say; here it is taken to be known to whoever knows the
embeddings more or less, from other data, say.
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
PROMISE = "In a sum of many nobody sees what I alone have sent."
NAME = "rows of one sender in the sum"
_AT_ONCE = 256


class LoneUpdates(NamedTuple):
    """Rows of items in a round's sum that have one sender."""

    round: int
    items: NDArray[np.int64]
    moved: Floats


def _needs(view: View) -> str:
    if not view.messages(SummedReports):
        return "it needs an opened sum"
    if view.link.noise:
        return "if sums have noise, rows do not count their senders"
    return ""


def _guess(view: View) -> list[LoneUpdates]:
    found = []
    for opened in view.messages(SummedReports):
        alone = (opened.item < view.n_items) & (opened.sums[:, -1] == int(GRID))
        moved = opened.sums[alone, :-1] / GRID
        found.append(LoneUpdates(opened.round, opened.item[alone].astype(np.int64), moved))
    return found


def _judge(guess: list[LoneUpdates], truth: Truth) -> Result:
    users: list[NDArray[np.int64]] = []
    items: list[NDArray[np.int64]] = []
    for lone in guess:
        known = truth.own.get("vectors", {}).get(lone.round, truth.vectors).astype(np.float64)
        known = known / np.maximum(np.linalg.norm(known, axis=1, keepdims=True), 1e-12)
        for start in range(0, len(lone.items), _AT_ONCE):
            along = lone.moved[start : start + _AT_ONCE] @ known.T
            nearest = np.abs(along).argmax(axis=1)
            hers = along[np.arange(len(along)), nearest] > 0
            users.append(nearest[hers].astype(np.int64))
            items.append(lone.items[start : start + _AT_ONCE][hers])
    none = np.zeros(0, dtype=np.int64)
    claims = Claims(np.concatenate([none, *users]), np.concatenate([none, *items]))
    rows = sum(len(lone.items) for lone in guess) / max(1, len(guess))
    detail = (
        f"{rows:.4g} rows of the sum a round have one sender; whose they are is told by whoever "
        "knows the embeddings from elsewhere"
    )
    return judge_claims(NAME, "A1", "server", PROMISE, claims, truth.train, detail=detail)


ATTACK = ATTACKS.add(
    "lone-updates",
    Attack(
        NAME, "server", PROMISE, _guess, _judge, "A1", against=frozenset({"uc"}),
        elsewhere="it is about UC-FedRec's rows, which count their senders",
        needs=_needs, remedy=SECURE_SUM,
    ),
)  # fmt: skip
