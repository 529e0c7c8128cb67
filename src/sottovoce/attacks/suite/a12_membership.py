"""A12: what the published model tells of those from whom it was learnt."""

from __future__ import annotations

from typing import Final

import numpy as np

from sottovoce.attacks.membership import (
    LEAST_CONTROL,
    Comparison,
    Home,
    Question,
    against_chance,
    against_others,
    against_same,
    tell_participants,
)
from sottovoce.attacks.views import ATTACKS, Attack, Remedy, Result, Truth, View
from sottovoce.errors import DataError
from sottovoce.rng import Streams

_RNG = Streams.from_seed(12)
_HELD: Final = "Nobody can tell from the published model which of my items it was learnt from."
_PART: Final = "Nobody can tell from the published model whether I took part."
_CLOSED: Final = (
    "a secure sum does not change this, as it is the model itself that tells; noise on the sum "
    "(link.noise) does"
)


def _needs(view: View) -> str:
    if view.algorithm.family != "devices":
        return "No model of items is published here to which a vector could be fitted at home."
    return ""


def _judge_held(home: Home, truth: Truth) -> Result:
    """The control, best first: `truth.own["control"]`, the item table of the same system learnt
    without the targets; users who did not take part in this run; popularity alone."""
    question = Question.held_or_not(truth.train, truth.test, _RNG)
    inside = truth.takes_part[question.users]
    if not inside.any():
        return _result("A12", "member items", _HELD, Comparison(0.5, 0.5, (0.0, 1.0)), 0, "")
    wins = question.wins(home, _RNG)
    users, mine = question.users[inside], wins[inside]
    outside = np.unique(question.users[~inside])
    control = truth.own.get("control")
    if control is not None:
        table = np.asarray(control, dtype=np.float32)
        if table.shape != home.model.items.shape:
            raise DataError('truth.own["control"] must be an item table like the published one')
        other = question.wins(home.with_model(table), _RNG)[inside]
        found, by = against_same(users, mine, other), "a model that was learnt without them"
    elif len(outside) >= LEAST_CONTROL:
        found = against_others(users, mine, question.users[~inside], wins[~inside])
        by = f"{len(outside):,} users who did not take part"
    else:
        found = against_same(users, mine, question.popular_wins()[inside])
        by = "popularity alone, which overstates the leak where taste drifts: a control is missing"
    detail = f"held against {by}; {_CLOSED}"
    return _result("A12", "member items", _HELD, found, len(mine), detail)


def _judge_part(home: Home, truth: Truth) -> Result:
    question = Question.took_part(truth.train, _RNG)
    users = np.unique(question.users)
    inside = truth.takes_part[users]
    if min(int(inside.sum()), int((~inside).sum())) < LEAST_CONTROL:
        detail = "everybody took part, or nearly nobody: there is nothing to tell"
        blank = against_chance(np.zeros(1, np.int64), np.full(1, 0.5))
        return _result("A12", "participation", _PART, blank, 0, detail)
    ranking = tell_participants(question, question.wins(home, _RNG), truth.takes_part)
    half = ranking.chance.high - 0.5
    ends = (max(0.0, ranking.auc - half), min(1.0, ranking.auc + half))
    found = Comparison(ranking.auc, 0.5, ends)
    return _result("A12", "participation", _PART, found, len(users), _CLOSED)


def _result(
    code: str, name: str, promise: str, found: Comparison, claims: int, detail: str
) -> Result:
    return Result(
        code, name, "anyone", promise, "AUC", found.auc, found.interval, found.control,
        claims=claims, detail=detail,
    )  # fmt: skip


_NOISE: Final = Remedy("noise", "noise on the sum (link.clip, link.noise), at a loss of accuracy")
HELD = ATTACKS.add(
    "member-items",
    Attack(
        "member items", "anyone", _HELD, Home.of, _judge_held, "A12", needs=_needs, remedy=_NOISE
    ),
)
PART = ATTACKS.add(
    "participation",
    Attack(
        "participation", "anyone", _PART, Home.of, _judge_part, "A12", needs=_needs, remedy=_NOISE
    ),
)
