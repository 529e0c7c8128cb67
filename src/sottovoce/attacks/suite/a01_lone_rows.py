"""A1 on sums: rows of a sum to which one device alone has added.

A secure sum hides whose an update is, not what the sum holds. Where a round makes few draws per
item, many rows of the sum are a single device's, and everybody sees sums: the server opens them,
and two published models in a row differ by one. Where the server goes by Adagrad (`server_rate`)
models differ by less than that, and the sums that it opens are attacked in their place. A row that
comes of one negative draw gives a vector away, and the score that the hidden positive had; where
some item has just this score, the row was one draw's, and this is the item. Whose vector it is the
sum does not say; here it is taken to be known to whoever knows the users' vectors more or less,
from other data, say. Among many items some score is near by chance, of rows that are sums of
several, too. What comes of those is nobody's vector: it is left out where it is not clearly nearer
to one user's than to any other's.

Draws per item and round decide: with twenty and more such rows are next to none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.pairs import FPL, opened_sums
from sottovoce.attacks.views import (
    ATTACKS,
    Attack,
    Claims,
    Party,
    Remedy,
    Result,
    Truth,
    View,
    judge_claims,
)

Floats = NDArray[np.float64]
NEAR = 1e-5
"""How near in score the hidden item must be: what rounding to single precision explains."""
CLEARLY = 0.5
"""How near the nearest user's vector must be, as a share of the distance to the next."""
SMALLEST_STEP = 1e-3
"""Biases that moved less say too little in single precision."""
_AT_ONCE = 256
PROMISE = "In a sum of many nobody sees what I alone have sent."


class LoneRows(NamedTuple):
    """What single rows of a round's sum give away."""

    round: int
    vectors: Floats
    """[rows, factors]"""
    items: NDArray[np.int64]
    """The hidden positive of each."""


def lone_rows(before: Floats, moved: Floats, config: FPLConfig, round: int) -> LoneRows:
    """From the model before a round, factors and bias, and the sum that the round came to."""
    step = config.step()
    factors, bias = before[:, :-1], before[:, -1]
    slope = -(moved[:, -1] + step.reg_bias * bias)
    rows = np.flatnonzero((slope > SMALLEST_STEP) & (slope < 1.0))
    slope = slope[rows]
    vectors = -(moved[rows, :-1] + step.reg_negative * factors[rows]) / slope[:, None]
    found, items = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        scores, place = bias + vectors[part] @ factors.T, np.arange(len(rows[part]))
        hidden = np.log((1.0 - slope[part]) / slope[part]) + scores[place, rows[part]]
        distance = np.abs(scores - hidden[:, None])
        distance[place, rows[part]] = np.inf
        items[part] = distance.argmin(axis=1)
        found[part] = distance[place, items[part]] < NEAR
    return LoneRows(round, vectors[found], items[found])


def _needs(view: View) -> str:
    if view.algorithm.server_rate is not None:
        return "models differ by a step of Adagrad; the sums that the server opens are attacked"
    if not _pairs(view):
        return "it needs the models of two rounds in a row"
    return ""


def _needs_sums(view: View) -> str:
    if view.algorithm.server_rate is None:
        return "models that are published tell the sums to everybody, who is the attacker then"
    if view.link.noise or not any(one.published for one in opened_sums(view)):
        return "it needs an opened sum without noise, and the model before it"
    return ""


def _pairs(view: View) -> list[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
    models = {seen.round: seen.published.items for seen in view.rounds if seen.published}
    return [(r, m, models[r + 1]) for r, m in sorted(models.items()) if r + 1 in models]


def _guess(view: View) -> list[LoneRows]:
    rate = view.algorithm.learning_rate
    return [
        lone_rows(
            before.astype(np.float64),
            (after.astype(np.float64) - before) / rate,
            view.algorithm,
            round,
        )
        for round, before, after in _pairs(view)
    ]


def _guess_sums(view: View) -> list[LoneRows]:
    return [
        lone_rows(one.published.items.astype(np.float64), one.sums, view.algorithm, one.round)
        for one in opened_sums(view)
        if one.published is not None
    ]


def _judge(guess: list[LoneRows], truth: Truth) -> Result:
    return _judged("rows of one device in the sum", "anyone", guess, truth)


def _judge_sums(guess: list[LoneRows], truth: Truth) -> Result:
    return _judged("rows of one device in the opened sum", "server", guess, truth)


def _judged(name: str, party: Party, guess: list[LoneRows], truth: Truth) -> Result:
    """Judge guesses of vectors. A vector is taken for that of the user whose true vector is
    nearest: before the round if `truth.own["vectors"]` has them by round, else at the end."""
    none = np.zeros(0, dtype=np.int64)
    users, items = [none], [none]
    for lone in guess:
        known = truth.own.get("vectors", {}).get(lone.round, truth.vectors).astype(np.float64)
        for start in range(0, len(lone.vectors), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            nearest, clear = _whose(lone.vectors[part], known)
            users.append(nearest[clear])
            items.append(lone.items[part][clear])
    claims = Claims(np.concatenate(users), np.concatenate(items))
    rounds = max(1, len(guess))
    detail = (
        f"{len(claims) / rounds:.4g} rows of single devices a round can be read in the sums; "
        "whose they are is told by whoever knows the vectors from elsewhere; more draws "
        "per device and round (algorithm.triples) or noise on the sum (link.noise) close it"
    )
    return judge_claims(name, "A1", party, PROMISE, claims, truth.train, detail=detail)


def _whose(vectors: Floats, known: Floats) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The user whose vector is nearest, and whether it clearly is."""
    apart = (known**2).sum(axis=1) - 2.0 * vectors @ known.T
    apart += (vectors**2).sum(axis=1, keepdims=True)
    nearest, place = apart.argmin(axis=1), np.arange(len(apart))
    least = np.maximum(apart[place, nearest], 0.0)
    apart[place, nearest] = np.inf
    return nearest.astype(np.int64), least < CLEARLY**2 * apart.min(axis=1)


ATTACK = ATTACKS.add(
    "lone-rows",
    Attack(
        "rows of one device in the sum", "anyone", PROMISE, _guess, _judge, "A1",
        against=FPL, elsewhere="it is about FPL's rows", needs=_needs,
        remedy=Remedy(words="more draws for each item in a round, so that no row is one device's"),
    ),
)  # fmt: skip
ON_SUMS = ATTACKS.add(
    "lone-rows-opened",
    Attack(
        "rows of one device in the opened sum", "server", PROMISE, _guess_sums, _judge_sums, "A1",
        against=FPL, elsewhere="it is about FPL's rows", needs=_needs_sums, remedy=ATTACK.remedy,
    ),
)  # fmt: skip
