"""Rows of sums of many that are one user's, for whoever knows the users' vectors more or less from
elsewhere, from other data, say. Whose row it is the sum does not tell.

A1 on UC-FedRec: a row counts its senders, so that the server sees which rows are a single device's.
Such a row is near a multiple of her embedding, along it for an item of hers and against it for
another.

A4 on FCF: its sum of a row is −A·v, A being the sum of x·xᵀ over all users, and a multiple of the
vectors of those who have the item. Without A nothing of it can be read. Whoever knows the users'
vectors knows A; what is left of a row whose item has one user is then a multiple of her vector.
Most items of sparse data have one user.
"""

from __future__ import annotations

from collections.abc import Iterator
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
Ints = NDArray[np.int64]
NEAR = 0.999
"""Cosine between what is left of a row and the vector that it is taken for a multiple of."""
_AT_ONCE = 256


def _aligned(rows: Floats, vectors: Floats) -> Iterator[tuple[slice, Ints, Floats]]:
    """Row by row, in parts: the user along whose vector it lies, or against it, and how long it is
    in that direction."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.where(length > 0, length, 1.0)
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        along = rows[part] @ directions.T
        nearest = np.abs(along).argmax(axis=1)
        yield part, nearest, along[np.arange(len(along)), nearest]


def _claims(users: list[Ints], items: list[Ints]) -> Claims:
    none = np.zeros(0, dtype=np.int64)
    return Claims(np.concatenate([none, *users]), np.concatenate([none, *items]))


# --- A1: rows of UC-FedRec's sums that have one sender --------------------------------------------

_UPDATES = "rows of one sender in the sum"
_SENT_ALONE = "In a sum of many nobody sees what I alone have sent."


class LoneUpdates(NamedTuple):
    """Rows of items in a round's sum that have one sender."""

    round: int
    items: Ints
    moved: Floats


def _updates_need(view: View) -> str:
    if not view.messages(SummedReports):
        return "it needs an opened sum"
    if view.link.noise:
        return "if sums have noise, rows do not count their senders"
    return ""


def _guess_updates(view: View) -> list[LoneUpdates]:
    found = []
    for opened in view.messages(SummedReports):
        alone = (opened.item < view.n_items) & (opened.sums[:, -1] == int(GRID))
        moved = opened.sums[alone, :-1] / GRID
        found.append(LoneUpdates(opened.round, opened.item[alone].astype(np.int64), moved))
    return found


def _judge_updates(guess: list[LoneUpdates], truth: Truth) -> Result:
    users, items = [], []
    for lone in guess:
        known = truth.own.get("vectors", {}).get(lone.round, truth.vectors).astype(np.float64)
        for part, nearest, along in _aligned(lone.moved, known):
            users.append(nearest[along > 0])
            items.append(lone.items[part][along > 0])
    rows = sum(len(lone.items) for lone in guess) / max(1, len(guess))
    detail = (
        f"{rows:.4g} rows of the sum a round have one sender; whose they are is told by whoever "
        "knows the embeddings from elsewhere"
    )
    claims = _claims(users, items)
    return judge_claims(_UPDATES, "A1", "server", _SENT_ALONE, claims, truth.train, detail=detail)


LONE_UPDATES = ATTACKS.add(
    "lone-updates",
    Attack(
        _UPDATES, "server", _SENT_ALONE, _guess_updates, _judge_updates, "A1",
        against=frozenset({"uc"}), needs=_updates_need, remedy=SECURE_SUM,
        elsewhere="it is about UC-FedRec's rows, which count their senders",
    ),
)  # fmt: skip


# --- A4: items of FCF's sums that one user alone has ----------------------------------------------

_ITEMS = "items of one user in the sum"
_HAVE_ALONE = "In a sum of many nobody sees what I alone have."


class SumOnModel(NamedTuple):
    """A round's sum, and the model that it belongs to."""

    round: int
    items: Floats
    sums: Floats


def _items_need(view: View) -> str:
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


def _judge_items(guess: list[SumOnModel], truth: Truth) -> Result:
    """`truth.own["vectors"]` has the vectors by round, as they were before it: those of a round
    stand under the next."""
    users, items = [], []
    for one in guess:
        known = truth.own.get("vectors", {}).get(one.round + 1)
        if known is None:
            continue
        known = known.astype(np.float64)
        left = one.sums + one.items @ (known.T @ known)
        size = np.maximum(np.linalg.norm(left, axis=1), 1e-12)
        for part, nearest, along in _aligned(left, known):
            sure = np.flatnonzero(along > NEAR * size[part])
            users.append(nearest[sure])
            items.append(part.start + sure)
    claims = _claims(users, items)
    detail = "for whoever knows the users' vectors from elsewhere, and for nobody else"
    return judge_claims(_ITEMS, "A4", "server", _HAVE_ALONE, claims, truth.train, detail=detail)


LONE_ITEMS = ATTACKS.add(
    "lone-items",
    Attack(
        _ITEMS, "server", _HAVE_ALONE, _opened, _judge_items, "A4", against=frozenset({"fcf"}),
        elsewhere="it is about FCF's sums", needs=_items_need, remedy=SECURE_SUM,
    ),
)  # fmt: skip
