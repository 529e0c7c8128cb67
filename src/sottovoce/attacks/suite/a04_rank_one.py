"""A4: FCF's upload is the product of two vectors.

A device sends c_i (p_i − x·v_i) x for every item i. Every row lies along x, so x is known but for
its length and sign. For items that she has not touched the row is −(x·v_i) x, in which only |x|² is
unknown; it is the median of what single rows give, since most items are not hers. What then differs
from −(x·v_i) x is hers.

Under a secure sum the server tries the same on the sum, and claims what it finds of everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.pairs import (
    Floats,
    Ints,
    attacked,
    joined,
    models,
    of_everyone,
    opened,
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
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.core.redacted import Redacted

PROMISE = "My data stay on my device, so nobody learns what I liked."
_MOST_ITEMS = 200
_AT_LEAST = 0.01
"""Share of |x| by which a row must differ; a positive's differs by about 1 + α."""
_ROUNDING = 16.0 / GRID


@dataclass(frozen=True, slots=True, repr=False)
class RankOneGuess(Redacted):
    claims: Claims
    users: Ints
    round: int
    summed: bool


def _guess(view: View) -> RankOneGuess:
    """From the last round that was recorded: one upload tells all."""
    known = models(view)
    plain = view.algorithm.variant == "fpl"
    reports = [r for r in view.messages(DeviceReports) if r.round in known]
    if reports:
        last = max(r.round for r in reports)
        parts = [r for r in reports if r.round == last]
        users = attacked(np.concatenate([np.unique(r.sender) for r in parts]))
        claims = [c for r in parts for c in _of_message(r, users, known[last], plain)]
        return RankOneGuess(joined(claims), users, last, summed=False)
    sums = [one for one in opened(view) if one.round in known]
    if not sums:
        return RankOneGuess(joined([]), np.zeros(0, np.int64), -1, summed=True)
    one = sums[-1]
    table = np.zeros_like(known[one.round])
    table[one.item] = one.values
    far = departures(table, known[one.round])
    items = np.argsort(-far, kind="stable")[:_MOST_ITEMS]
    claims = [of_everyone(items[far[items] > 0], one.senders)]
    return RankOneGuess(joined(claims), np.unique(claims[0].users), one.round, summed=True)


def _of_message(message: DeviceReports, users: Ints, model: Floats, plain: bool) -> list[Claims]:
    found = []
    order = np.argsort(message.sender, kind="stable")
    starts = np.searchsorted(message.sender[order], users, side="left")
    stops = np.searchsorted(message.sender[order], users, side="right")
    for user, start, stop in zip(users.tolist(), starts, stops, strict=True):
        mine = order[start:stop]
        items = message.item[mine].astype(np.int64)
        if not plain:  # else positives are all that is sent
            table = np.zeros_like(model)
            table[items] = message.values[mine] / GRID
            items = np.flatnonzero(departures(table, model) > 1.0)
        found.append(Claims(np.full(len(items), user), items))
    return found


def departures(upload: Floats, model: Floats) -> Floats:
    """How far each row is from that of an item that was not touched; above 1 nothing else explains
    it."""
    direction = np.linalg.eigh(upload.T @ upload)[1][:, -1]
    along, views = upload @ direction, model @ direction
    # Rows that hardly move along the direction say little about its length.
    telling: NDArray[np.bool_] = np.abs(views) > np.median(np.abs(views))
    if not telling.any():
        return np.zeros(len(model))
    square = float(np.median(-along[telling] / views[telling]))
    length = np.sqrt(max(square, 0.0))
    apart: Floats = np.abs(along + square * views)
    far: Floats = apart / (_AT_LEAST * length + _ROUNDING * np.sqrt(model.shape[1]))
    return far


def _judge(guess: RankOneGuess, truth: Truth) -> Result:
    where = "the sum" if guess.summed else "their uploads"
    detail = f"{len(guess.users):,} users, from {where} of one round"
    return judge_claims(
        "rank one", "A4", "server", PROMISE, guess.claims, truth.train, detail=detail
    )


ATTACK = ATTACKS.add(
    "rank-one",
    Attack(
        "rank one", "server", PROMISE, _guess, _judge, "A4", against=frozenset({"fcf"}),
        elsewhere="it is for FCF's updates", needs=why_not_read, remedy=SECURE_SUM,
        claimed=attrgetter("claims"),
    ),
)  # fmt: skip
