"""UC-FedRec at the server: what a cohort sent becomes the next model.

Towers move by the mean change over all clients, a row of an embedding by the mean over the clients
that touched it, a filter by the mean over the clients that share its attribute; what nobody touched
stays as it is. Changes are rounded to a grid and added as whole numbers, so that neither the order
of clients nor how they are batched matters to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.algorithms.uc_networks import Model, Weights
from sottovoce.errors import Diverged, MessageError

GRID = 2.0**32
"""Steps of the grid per unit."""
LIMIT = 2.0**10
"""Largest absolute change of one number; two million of them still fit their sum."""
_CELLS = 1 << 26
"""Numbers that are rounded at a time."""


@dataclass(frozen=True, slots=True, repr=False)
class Updates:
    """What each client of a cohort sends: its weights less those it was given, clipped.

    Rows beyond a client's own are numbered -1 and hold zeros. Filters that a client does not train
    hold zeros, and `shared` tells which those are."""

    user_rows: Tensor
    users: Tensor
    """[C, k, d], for the users in `user_rows` [C, k]."""
    item_rows: Tensor
    items: Tensor
    """[C, R, d], for the items in `item_rows` [C, R]."""
    towers: Weights
    filters: tuple[Weights, ...]
    shared: Tensor

    def __len__(self) -> int:
        return len(self.user_rows)

    def __repr__(self) -> str:
        return f"<Updates of {len(self):,}, redacted>"


@dataclass(slots=True, repr=False)
class Fold:
    """The sums of a round."""

    model: Model
    users: _Rows
    items: _Rows
    towers: dict[str, Tensor]
    filters: tuple[dict[str, Tensor], ...]
    clients: int
    sharing: Tensor
    """Clients that trained each filter."""

    @classmethod
    def of(cls, model: Model) -> Fold:
        def zeros(weights: Weights) -> dict[str, Tensor]:
            return {n: torch.zeros_like(w, dtype=torch.int64) for n, w in weights.items()}

        return cls(
            model,
            _Rows.of(model.users),
            _Rows.of(model.items),
            zeros(model.towers),
            tuple(zeros(weights) for weights in model.filters),
            0,
            torch.zeros(len(model.filters), dtype=torch.int64, device=model.items.device),
        )

    def add(self, updates: Updates) -> None:
        """Take in what some clients sent; all or, where it does not fit the model, nothing."""
        self._check(updates)
        self.users.add(updates.user_rows, updates.users)
        self.items.add(updates.item_rows, updates.items)
        for name, change in updates.towers.items():
            self.towers[name] += _whole(change).sum(dim=0)
        for t, weights in enumerate(updates.filters):
            shared = updates.shared[:, t]
            for name, change in weights.items():
                self.filters[t][name] += _whole(change[shared]).sum(dim=0)
        self.clients += len(updates)
        self.sharing += updates.shared.sum(dim=0)

    def result(self, rate: float = 1.0) -> Model:
        """The next model: the mean change, times `rate`."""
        old, sharing = self.model, self.sharing.tolist()
        return Model(
            old.recommender,
            old.attributes,
            self.users.moved(old.users, rate),
            self.items.moved(old.items, rate),
            _moved(old.towers, self.towers, self.clients, rate),
            tuple(
                _moved(weights, sums, count, rate)
                for weights, sums, count in zip(old.filters, self.filters, sharing, strict=True)
            ),
        )

    def _check(self, updates: Updates) -> None:
        model, n = self.model, len(updates)
        pairs = [(self.towers, updates.towers)]
        if len(updates.filters) != len(model.filters):
            raise MessageError("an update needs one part per filter")
        pairs += list(zip(self.filters, updates.filters, strict=True))
        for sums, changes in pairs:
            shapes = {name: (n, *total.shape) for name, total in sums.items()}
            if {name: tuple(change.shape) for name, change in changes.items()} != shapes:
                raise MessageError("an update's networks have another shape than the model's")
        if updates.shared.shape != (n, len(model.filters)):
            raise MessageError("an update must tell of every filter whether it was trained")
        tables = [(updates.user_rows, updates.users, model.users)]
        tables += [(updates.item_rows, updates.items, model.items)]
        for rows, moves, table in tables:
            if moves.shape != (*rows.shape, table.shape[1]) or len(rows) != n:
                raise MessageError("an update's rows have another shape than the model's")
            if rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < len(table):
                raise MessageError("an update names a row that the model does not have")
        for change in _all(updates):
            # NaN fails the comparison too.
            if change.numel() and not bool(change.abs().max() <= LIMIT):
                raise Diverged("an update is not finite, or is far too large")


@dataclass(slots=True, repr=False)
class _Rows:
    """Sums of the changes of a table's rows, and how many clients touched each."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def of(cls, table: Tensor) -> _Rows:
        counts = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        return cls(torch.zeros_like(table, dtype=torch.int64), counts)

    def add(self, rows: Tensor, changes: Tensor) -> None:
        step = max(1, _CELLS // max(1, changes[0].numel())) if len(changes) else 1
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            there = part >= 0
            known = part[there]
            self.counts.index_add_(0, known, torch.ones_like(known))
            self.sums.index_add_(0, known, _whole(changes[start : start + step][there]))

    def moved(self, table: Tensor, rate: float) -> Tensor:
        mean = self.sums.double() / GRID / self.counts.clamp(min=1)[:, None]
        return (table.double() + rate * mean).float()


def fold(model: Model, updates: Iterable[Updates], rate: float = 1.0) -> Model:
    """The model after a round in which clients sent these, in any batches and order."""
    sums = Fold.of(model)
    for some in updates:
        sums.add(some)
    return sums.result(rate)


def _moved(weights: Weights, sums: Weights, count: int, rate: float) -> dict[str, Tensor]:
    share = rate / GRID / max(1, count)
    return {n: (w.double() + share * sums[n].double()).float() for n, w in weights.items()}


def _whole(change: Tensor) -> Tensor:
    return (change.double() * GRID).round().long()


def _all(updates: Updates) -> list[Tensor]:
    networks = [updates.towers, *updates.filters]
    return [updates.users, updates.items, *(c for some in networks for c in some.values())]
