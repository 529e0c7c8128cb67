"""A15: what can still be told of an attribute after its user has changed her mind.

She shared it, then hid it in a model that was trained already, and her embedding moved at once
until the published filter told nothing more of it. The attackers of A8 hold all embeddings of that
moment and learn from those who go on sharing; they guess it of those who changed their minds, from
the embeddings as they were before and as they are after. Those who hid it from the start are
neither learnt from nor guessed.

An attacker who kept the embeddings of before has what he had: the first number is his.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.suite.a08_attributes import Inference, TooLittle, infer
from sottovoce.attacks.suite.a09_a10_filters import NO_FILTERS, UC
from sottovoce.attacks.views import ATTACKS, Attack, Result, Truth, View
from sottovoce.core.redacted import Redacted
from sottovoce.data.dataset import Labels
from sottovoce.errors import DataError
from sottovoce.rng import Streams

_NAME: Final = "attributes of changed minds"
_PROMISE: Final = "What I hide from today on cannot be guessed from my device's numbers any more."
_RNG = Streams.from_seed(15)


@dataclass(frozen=True, slots=True, repr=False)
class MindsSeen(Redacted):
    """What somebody got hold of who had all embeddings of the moment of a change."""

    round: int
    before: NDArray[np.float64]
    """[users, width]: what filters read of everybody."""
    after: NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False)
class MindsTruth(Redacted):
    """Who changed her mind there, and who shares what from then on."""

    changed: dict[str, NDArray[np.bool_]]
    """By attribute."""
    hidden: dict[str, NDArray[np.bool_]]
    """Who hides it after the change."""


def _needs(view: View) -> str:
    if not view.own.get("minds"):
        return "Nobody changed her mind in this run (consent.changes)."
    return ""


def _guess(view: View) -> tuple[MindsSeen, ...]:
    return tuple(view.own["minds"])


def _judge(seen: tuple[MindsSeen, ...], truth: Truth) -> Result:
    """The attribute and change that are guessed best after it count; all are named, with the AUC
    before."""
    found: list[tuple[bool, float, Inference]] = []
    detail = []
    for moment, known in zip(seen, truth.own["minds"], strict=True):
        for name, changed in sorted(known.changed.items()):
            try:
                before, after = (
                    _infer(table, truth, known, name, changed)
                    for table in (moment.before, moment.after)
                )
            except TooLittle:
                continue
            best = after.by_auc
            found.append((best.ranks, best.auc or 0.5, after))
            detail.append(
                f"{name}, hidden after round {moment.round:,} by {after.private:,} users: AUC "
                f"{_auc(before)} before, {_auc(after)} after"
            )
    if not found:
        return _result(0.5, (0.0, 1.0), 0, "too few changed their minds, or share it still")
    _, value, worst = max(found, key=lambda one: one[:2])
    low, high = worst.by_auc.auc_interval
    low = low if worst.by_auc.ranks else min(low, 0.5)
    return _result(value, (low, high), worst.by_auc.tried, "; ".join(detail))


def _infer(
    table: NDArray[np.float64],
    truth: Truth,
    known: MindsTruth,
    name: str,
    changed: NDArray[np.bool_],
) -> Inference:
    codes = truth.labels[name]
    if len(table) != len(codes):
        raise DataError("every user needs a row of representations and a label")
    asked = np.where(known.hidden[name] & ~changed, -1, codes)
    values = tuple(str(c) for c in range(int(codes.max(initial=0)) + 1))
    labels = Labels(asked.astype(np.int32), values)
    return infer(table, labels, changed | (asked < 0), _RNG, attribute=name)


def _auc(found: Inference) -> str:
    best = found.by_auc
    low, high = best.auc_interval
    return f"{best.auc or 0.5:.3f} ({low:.3f} to {high:.3f})"


def _result(value: float, interval: tuple[float, float], claims: int, detail: str) -> Result:
    return Result(
        "A15", _NAME, "anyone", _PROMISE, "AUC", value, interval, 0.5, claims=claims, detail=detail
    )


ATTACK = ATTACKS.add(
    "changed-minds",
    Attack(
        _NAME, "anyone", _PROMISE, _guess, _judge, "A15",
        against=UC, elsewhere=NO_FILTERS, needs=_needs, grows_with="users",
    ),
)  # fmt: skip
