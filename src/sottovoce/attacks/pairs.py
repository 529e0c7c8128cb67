"""What FPL's updates tell, and how it is scored: shared by the attacks on pair-wise learning.

A row that one device sends for a negative draw is −s·p − λ_j q_j, and −s − λ_b b_j in the bias's
place. All but p and s is public, so both follow, and with them the score that the hidden positive
must have: ln((1 − s) / s) + b_j + p·q_j. Whoever has the nearest score is the item. How near it can
be is known, too: numbers are rounded to the grid, and the device computes in single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.pairwise.factors import PairStep
from sottovoce.attacks.views import Claims, View
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.masking import unmasked
from sottovoce.core.messages import (
    GRID,
    DeviceReports,
    MaskedReports,
    MaskSum,
    ModelView,
    SummedReports,
)
from sottovoce.core.redacted import Redacted
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FPL = frozenset({"fpl"})
"""The algorithms whose updates these attacks read."""
NOT_FPL = "it is for FPL's updates"
ATTACKED = 300
"""Users of a view that are attacked, drawn once and for all."""
_SCORES = 1_000_000_000
"""Scores that one attack works out at most: rows times items."""
_AT_ONCE = 1 << 24
"""Scores in memory together."""
_STEP = 1.0 / GRID
_NEAR, _LEAD = 3.0, 0.25
"""How near an item must be, and how much nearer than the next, as multiples of the rounding."""


def attacked(senders: Ints, most: int = ATTACKED) -> Ints:
    """The users to look at, the same in every round: a sample that depends on nothing else."""
    users = np.unique(senders)
    order = np.argsort(Streams.from_seed(0).child("attacked").keys(users), kind="stable")
    chosen: Ints = np.sort(users[order[:most]])
    return chosen


def why_not_read(view: View) -> str:
    """Why nothing can be read of updates."""
    if not any(seen.published for seen in view.rounds):
        return "it needs the published model of a round that was recorded"
    kinds = (DeviceReports, SummedReports, MaskSum)
    if not any(isinstance(m, kinds) for seen in view.rounds for m in seen.messages):
        return "the view holds neither updates nor a sum of updates"
    return ""


# --- what reached the server ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class UpdateRows(Redacted):
    """Rows of updates in real numbers, each with the round and the device it came from."""

    round: Ints
    sender: Ints
    item: Ints
    values: Floats
    """[n, width]."""

    def __len__(self) -> int:
        return len(self.round)

    def take(self, which: NDArray[np.bool_] | Ints) -> UpdateRows:
        return UpdateRows(
            self.round[which], self.sender[which], self.item[which], self.values[which]
        )

    @classmethod
    def joined(cls, parts: list[UpdateRows], width: int) -> UpdateRows:
        none = np.zeros(0, np.int64)
        parts = [cls(none, none, none, np.zeros((0, width))), *parts]
        return cls(
            np.concatenate([p.round for p in parts]),
            np.concatenate([p.sender for p in parts]),
            np.concatenate([p.item for p in parts]),
            np.concatenate([p.values for p in parts]),
        )


def models(view: View) -> dict[int, Floats]:
    """The published model of every round of which there is one."""
    return {
        seen.round: seen.published.items.astype(np.float64)
        for seen in view.rounds
        if seen.published is not None
    }


def device_rows(view: View, most: int = ATTACKED) -> UpdateRows:
    """What a sample of devices sent openly, in rounds whose model is known."""
    known = {seen.round for seen in view.rounds if seen.published is not None}
    reports = [r for r in view.messages(DeviceReports) if r.round in known]
    users = attacked(
        np.concatenate([np.zeros(0, np.int64), *(np.unique(r.sender) for r in reports)]), most
    )
    parts = []
    for r in reports:
        mine = np.isin(r.sender, users)
        parts.append(
            UpdateRows(
                np.full(int(mine.sum()), r.round, np.int64),
                r.sender[mine].astype(np.int64),
                r.item[mine].astype(np.int64),
                r.values[mine].astype(np.float64) * _STEP,
            )
        )
    return UpdateRows.joined(parts, view.final.shape[1])


@dataclass(frozen=True, slots=True, repr=False)
class OpenedSum:
    """A round's sum, as the server opens it, with the noise of the terms."""

    round: int
    published: ModelView | None
    senders: Ints
    """Devices whose updates are in it, as far as they are named."""
    devices: int
    item: Ints
    values: Floats
    n_rows: int
    """Rows of the model."""

    def __repr__(self) -> str:
        return f"<OpenedSum round={self.round} devices={self.devices}>"

    def rows(self) -> UpdateRows:
        """As if one device, number −1, had sent it."""
        n = len(self.item)
        return UpdateRows(np.full(n, self.round), np.full(n, -1), self.item, self.values)

    @property
    def sums(self) -> Floats:
        """[rows of the model, width]."""
        table = np.zeros((self.n_rows, self.values.shape[1]))
        table[self.item] = self.values
        return table


def opened_sums(view: View) -> list[OpenedSum]:
    """All sums that the server of a secure sum opens: masked updates less the masks, or, if the
    view was too large to hold every masked update, the sum itself (`SummedReports`), with those
    who are in it named by `MaskedReports`, be they empty."""
    found, (rows, width) = [], view.final.shape
    for seen in view.rounds:
        masked = [m for m in seen.messages if isinstance(m, MaskedReports)]
        senders = np.unique(np.concatenate([np.zeros(0, np.int64), *(m.sender for m in masked)]))
        sums = next((m for m in seen.messages if isinstance(m, SummedReports)), None)
        told = next((m for m in seen.messages if isinstance(m, MaskSum)), None)
        if sums is not None:
            item, values, devices = sums.item.astype(np.int64), sums.sums, sums.devices
        elif told is not None and told.devices == len(senders):
            total = np.zeros_like(told.masks)
            for message in masked:
                total += message.masked.sum(axis=0, dtype=total.dtype)
            table = unmasked(total, told.masks, width, told.bits)
            item, devices = np.flatnonzero(table.any(axis=1)), told.devices
            values = table[item]
        else:
            continue
        real = values.astype(np.float64) * _STEP
        found.append(OpenedSum(seen.round, seen.published, senders, devices, item, real, rows))
    return found


def opened(view: View) -> list[OpenedSum]:
    """Those of somebody who is named: of nobody else something could be claimed."""
    return [one for one in opened_sums(view) if len(one.senders)]


def masked_updates(view: View, most: int) -> list[MaskedReports]:
    """The first masked updates that the view holds, of all rounds alike."""
    there = [m for m in view.messages(MaskedReports) if m.masked.size]
    each = max(1, most // max(1, len({m.round for m in there})))
    found, taken = [], dict.fromkeys((m.round for m in there), 0)
    for m in there:
        few = min(len(m), each - taken[m.round])
        taken[m.round] += few
        if few:
            found.append(MaskedReports(m.round, m.sender[:few], m.masked[:few]))
    return found


# --- inversion -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Inverted(Redacted):
    """What follows from rows, each taken for a single negative draw."""

    item: Ints
    """The item with the nearest score."""
    sure: NDArray[np.bool_]
    """It is as near as rounding explains, and no other is about as near. Rows of two draws, or of
    two devices, hardly ever pass."""


def slopes(rows: UpdateRows, models: dict[int, Floats], step: PairStep) -> Floats:
    """s of each row, had it been one negative draw; negative for a positive's."""
    bias = np.zeros(len(rows))
    for number in np.unique(rows.round):
        here = rows.round == number
        bias[here] = models[int(number)][rows.item[here], -1]
    s: Floats = -(rows.values[:, -1] + step.reg_bias * bias)
    return s


def single_draws(rows: UpdateRows, models: dict[int, Floats], step: PairStep) -> UpdateRows:
    """The rows that can be one negative draw at all, of as many rounds (one at least) as may be
    worked through."""
    s = slopes(rows, models, step)
    rows = rows.take((s > _STEP) & (s < 1.0 - _STEP))
    rounds, counts = np.unique(rows.round, return_counts=True)
    work = np.cumsum(counts * [len(models[int(number)]) for number in rounds])
    fits = int(np.searchsorted(work, _SCORES, side="right"))
    return rows.take(np.isin(rows.round, rounds[: max(1, fits)]))


def invert(
    rows: UpdateRows, models: dict[int, Floats], step: PairStep, known_negatives: bool = True
) -> Inverted:
    """The hidden positive of every row. `known_negatives`: what its sender has sent as negatives is
    not hers."""
    item, sure = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for number in np.unique(rows.round):
        model = models[int(number)]
        here = np.flatnonzero(rows.round == number)
        at_once = max(1, _AT_ONCE // len(model))
        for start in range(0, len(here), at_once):
            part = here[start : start + at_once]
            own = rows.take(part)
            banned = _sent_by(own.sender, rows) if known_negatives else None
            item[part], sure[part] = _invert_round(own, model, step, banned)
    return Inverted(item, sure)


def _sent_by(senders: Ints, rows: UpdateRows) -> tuple[Ints, Ints]:
    """(place in `senders`, item) for everything that they have sent in `rows`."""
    order = np.argsort(rows.sender, kind="stable")
    starts = np.searchsorted(rows.sender[order], senders, side="left")
    counts = np.searchsorted(rows.sender[order], senders, side="right") - starts
    place = np.repeat(np.arange(len(senders)), counts)
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, rows.item[order][np.repeat(starts, counts) + within]


def _invert_round(
    rows: UpdateRows, model: Floats, step: PairStep, banned: tuple[Ints, Ints] | None
) -> tuple[Ints, NDArray[np.bool_]]:
    q, b, lines = model[:, :-1], model[:, -1], np.arange(len(rows))
    s = np.clip(-(rows.values[:, -1] + step.reg_bias * b[rows.item]), _STEP, 1.0 - _STEP)
    p = -(rows.values[:, :-1] + step.reg_negative * q[rows.item]) / s[:, None]
    far = p @ q.T
    far += b
    far -= (np.log((1.0 - s) / s) + far[lines, rows.item])[:, None]
    np.abs(far, out=far)
    far[lines, rows.item] = np.inf
    if banned is not None:
        far[banned] = np.inf
    nearest = far.argmin(axis=1)
    # About one standard deviation of what rounding does to s, to p and to the device's own score.
    length, reach = np.linalg.norm(p, axis=1), np.linalg.norm(q[nearest] - q[rows.item], axis=1)
    rounding = _STEP * np.sqrt(
        (0.3 + s**2) / (s * (1.0 - s)) ** 2
        + ((1.0 + length) * reach / s) ** 2 / 12.0
        + (length * reach) ** 2
    )
    gap = far[lines, nearest]
    far[lines, nearest] = np.inf
    lead = far.min(axis=1) - gap
    return nearest, (gap < _NEAR * rounding) & (lead > _LEAD * rounding)


# --- what was so ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class DrawnPositives(Redacted):
    """The positives that devices drew, for scoring: `Truth.own["drawn"]`."""

    round: Ints
    user: Ints
    item: Ints

    def among(self, users: Ints, rounds: Ints) -> Claims:
        """Those of these users in these rounds, each once."""
        mine = np.isin(self.user, users) & np.isin(self.round, rounds)
        return Claims(self.user[mine], self.item[mine]).unique()


def drawn_positives(
    algorithm: Any, train: Interactions, rounds: dict[int, Ints], rng: Streams
) -> DrawnPositives:
    """What the devices of a simulation drew: draws depend on its seed alone. `algorithm` has both
    halves; `rounds` says who was in each; `rng` is the federation's."""
    config = algorithm.config
    table = np.zeros((train.n_items, config.width), np.float32)
    parts = []
    for number, users in rounds.items():
        some = np.asarray(users, np.int64)
        cohort = Cohort(
            some,
            train.take_users(some),
            Consent.uniform(some, Choice()),
            np.zeros((len(some), config.embedding_size), np.float32),
        )
        rows = np.arange(len(some))
        updates = algorithm.device_learn(ModelView(number, table), cohort, rows, rng)
        drawn = updates.positive
        parts.append((number, some[updates.row[drawn]], updates.item[drawn].astype(np.int64)))
    return DrawnPositives(
        np.concatenate([np.zeros(0, np.int64), *(np.full(len(u), n) for n, u, _ in parts)]),
        np.concatenate([np.zeros(0, np.int64), *(u for _, u, _ in parts)]),
        np.concatenate([np.zeros(0, np.int64), *(i for _, _, i in parts)]),
    )


# --- scoring -------------------------------------------------------------------------------------


def of_everyone(items: Ints, senders: Ints, most: int = ATTACKED) -> Claims:
    """That each of (a sample of) these senders has each of these items."""
    users = attacked(senders, most)
    return Claims(np.repeat(users, len(items)), np.tile(items, len(users)))


def joined(parts: list[Claims]) -> Claims:
    none = np.zeros(0, np.int64)
    return Claims(
        np.concatenate([none, *(p.users for p in parts)]),
        np.concatenate([none, *(p.items for p in parts)]),
    )
