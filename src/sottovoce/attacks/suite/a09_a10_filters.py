"""A9: the class of whoever trains UC-FedRec's filters, from how these move; A10: who hides an
attribute, from how much of its filter a device sends.

Where updates are masked both are tried on the masked numbers, and A9 on the sums that are opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.drift import wilson
from sottovoce.attacks.filters import label_from_bias, label_from_moments, rank
from sottovoce.attacks.pairs import opened_sums
from sottovoce.attacks.views import ATTACKS, SECURE_SUM, Attack, Result, Truth, View
from sottovoce.core.messages import GRID, DeviceReports, MaskedReports

Ints = NDArray[np.int64]
_NAME: Final = "filter bias"
_PROMISE: Final = "My device helps to train the filters, and nobody reads from that what I am."
UC: Final = frozenset({"uc"})
NO_FILTERS: Final = "Only UC-FedRec with attributes has filters."
MOST_NUMBERS = 50_000_000
"""Numbers of a filter's changes that are looked at, over all devices."""


class FilterRows(NamedTuple):
    """What arrived of one attribute's filter."""

    attribute: str
    users: Ints
    sent: NDArray[np.bool_]
    """Whether a device ever sent it."""
    changes: Mapping[str, NDArray[Any]]
    """By weight, a row per device; over all rounds, where messages can be read."""


def needs(view: View) -> str:
    if not view.algorithm.attributes:
        return NO_FILTERS
    if not view.messages(DeviceReports) and not view.messages(MaskedReports):
        return "The server got no message of a single device."
    return ""


def read_filters(view: View) -> list[FilterRows]:
    """Every filter, device by device: as sent, or, where that is all there is, masked."""
    from sottovoce.algorithms.uc.rows import ModelLayout  # needs PyTorch

    settings = view.algorithm
    layout, size = ModelLayout.of(settings, view.n_items), settings.embedding_size
    plain, hidden = view.messages(DeviceReports), view.messages(MaskedReports)
    senders = [*(m.sender for m in plain), *(m.sender for m in hidden)]
    users = np.unique(np.concatenate(senders)).astype(np.int64)
    found = []
    for attribute, part in zip(settings.attributes, layout.filters, strict=True):
        few = users[: max(30, MOST_NUMBERS // (part.rows * size))]
        table = np.zeros((len(few), part.rows, size), dtype=np.float64)
        sent = np.zeros(len(few), dtype=bool)
        for report in plain:
            mine = np.isin(report.sender, few)
            mine &= (report.item >= part.first) & (report.item < part.stop)
            who = np.searchsorted(few, report.sender[mine])
            table[who, report.item[mine] - part.first] += report.values[mine, :size] / GRID
            sent[who] = True
        for masked in hidden:
            mine = np.isin(masked.sender, few)
            whole = masked.masked[mine].view(np.int64).reshape(int(mine.sum()), -1, size + 1)
            who = np.searchsorted(few, masked.sender[mine])
            table[who] = whole[:, part.first : part.stop, :size] / GRID
            sent[who] = True
        found.append(FilterRows(attribute.name, few, sent, weights(part, table)))
    return found


def weights(part: Any, table: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """A filter's changes by weight, from its rows."""
    import torch

    return {name: change.numpy() for name, change in part.weights(torch.from_numpy(table)).items()}


Guesses = list[tuple[str, Ints, Ints]]
"""By attribute: users, and the class that each is taken to be of; −1 where there is no guess."""


def _guess(view: View) -> Guesses:
    return [(f.attribute, f.users, _labels(f.changes)) for f in read_filters(view)]


def _labels(changes: Mapping[str, NDArray[Any]]) -> Ints:
    """Labels would only score the guesses, so there are none here."""
    unknown = np.full(len(next(iter(changes.values()))), -1, dtype=np.int64)
    read = label_from_moments if "means" in changes else label_from_bias
    return read(changes, unknown).guesses


def _sum_needs(view: View) -> str:
    if not view.algorithm.attributes:
        return NO_FILTERS
    return "" if opened_sums(view) else "The server opened no sum: it got each update by itself."


def _guess_sum(view: View) -> Guesses:
    """For everybody in them, the class that the opened sums speak for."""
    from sottovoce.algorithms.uc.rows import ModelLayout

    settings = view.algorithm
    layout, size = ModelLayout.of(settings, view.n_items), settings.embedding_size
    total = np.sum([one.sums for one in opened_sums(view)], axis=0)[:, :size]
    users = np.unique(np.concatenate([m.sender for m in view.messages(MaskedReports)]))
    found = []
    for attribute, part in zip(settings.attributes, layout.filters, strict=True):
        label = _labels(weights(part, np.ascontiguousarray(total[part.first : part.stop])[None]))
        found.append((attribute.name, users, np.full(len(users), label[0], dtype=np.int64)))
    return found


def _judge(guesses: Guesses, truth: Truth) -> Result:
    """Guesses about users whose device knows the label. The attribute that is read best counts,
    the others are named."""
    found, detail = [], []
    for name, users, guess in guesses:
        scored = (guess >= 0) & (truth.labels[name][users] >= 0)
        real = truth.labels[name][users[scored]]
        if not len(real):
            continue
        right, tried = int((guess[scored] == real).sum()), len(real)
        majority = int(np.bincount(real).max()) / tried
        ends = wilson(right, tried)
        found.append((ends.low - majority, right / tried, ends, majority, tried))
        detail.append(f"{name} {right / tried:.3f} right, the majority is {majority:.3f}")
    if not found:
        nothing = "no filter's part arrived of anybody whose value is known"
        return _result(0.0, (0.0, 1.0), 0.0, 0, nothing)
    _, value, ends, majority, tried = max(found)
    return _result(value, (ends.low, ends.high), majority, tried, "; ".join(detail))


def _result(
    value: float, interval: tuple[float, float], base: float, claims: int, detail: str
) -> Result:
    return Result(
        "A9", _NAME, "server", _PROMISE, "precision", value, interval, base,
        claims=claims, detail=detail,
    )  # fmt: skip


BIAS = ATTACKS.add(
    "filter-bias",
    Attack(
        _NAME, "server", _PROMISE, _guess, _judge, "A9",
        against=UC, elsewhere=NO_FILTERS, needs=needs, remedy=SECURE_SUM,
    ),
)  # fmt: skip
OF_SUM = ATTACKS.add(
    "filter-bias-of-sum",
    Attack(
        f"{_NAME} of the sum", "server", _PROMISE, _guess_sum, _judge, "A9",
        against=UC, elsewhere=NO_FILTERS, needs=_sum_needs, remedy=SECURE_SUM,
    ),
)  # fmt: skip


_HIDING: Final = "consent detection"
_HIDDEN: Final = "Nobody can tell that I hide something."
Scores = list[tuple[str, NDArray[np.int64], NDArray[np.float64]]]
"""By attribute: users, and how little each sent."""


def _guess_hiding(view: View) -> Scores:
    """A part that is missing counts as the smallest. Masked numbers are ranked by their size, too,
    though it has nothing to say."""
    found = []
    for rows in read_filters(view):
        square = np.zeros(len(rows.users))
        for change in rows.changes.values():
            square += (change.reshape(len(rows.users), -1) ** 2).sum(axis=1)
        found.append((rows.attribute, rows.users, -np.where(rows.sent, square, -1.0)))
    return found


def _judge_hiding(scores: Scores, truth: Truth) -> Result:
    """The AUC of telling those who hide an attribute from the others. The attribute of which it is
    told best counts, the others are named."""
    found, detail = [], []
    for name, users, score in scores:
        known = truth.hidden.get(name)
        if known is None or not 0 < int(known[users].sum()) < len(users):
            continue
        hides = known[users]
        ranking = rank(_HIDING, score, hides)
        half = ranking.chance.high - 0.5
        ends = (max(0.0, ranking.auc - half), min(1.0, ranking.auc + half))
        found.append((ends[0], ranking.auc, ends, len(users)))
        detail.append(f"{name} {ranking.auc:.3f}")
    if not found:
        return _told(0.5, (0.0, 1.0), 0, "everybody, or nobody, hides anything")
    _, value, ends, tried = max(found)
    return _told(value, ends, tried, "; ".join(detail))


def _told(value: float, interval: tuple[float, float], claims: int, detail: str) -> Result:
    return Result(
        "A10", _HIDING, "server", _HIDDEN, "AUC", value, interval, 0.5, claims=claims, detail=detail
    )


CONSENT = ATTACKS.add(
    "consent",
    Attack(
        _HIDING, "server", _HIDDEN, _guess_hiding, _judge_hiding, "A10",
        against=UC, elsewhere=NO_FILTERS, needs=needs, remedy=SECURE_SUM,
    ),
)  # fmt: skip
