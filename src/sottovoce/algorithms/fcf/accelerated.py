"""FCF's rounds by torch, on a GPU or not: the same results as `FCF.device_learn_summed`, the
devices' histories and vectors resident there.

No loop runs over devices. Sums of items' products come from `embedding_bag`; Cholesky's factors and
all that follows are computed for many devices at once, by single multiplications and additions, in
the order in which the compiled kernels (closed_form_kernels.py) do them. That, and whole numbers
in the sums, makes the results the same bit for bit. Needs Triton to be fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.closed_form.kernels import TINY
from sottovoce.algorithms.closed_form.vectors import LARGEST
from sottovoce.algorithms.fpl.accelerated import require
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.messages import GRID, LIMIT, ModelView
from sottovoce.errors import DataError, Diverged, UsageError

if TYPE_CHECKING:
    from torch import Tensor

_SOLVE_BYTES = 64 << 20
"""Memory for the systems that are solved at once; on a GPU, a quarter of what is free."""
_CHUNK_BYTES = {"cuda": 512 << 20, "cpu": 1 << 20}
"""Memory for scores, and for updates, at a time: on a core what its cache holds."""
_COLUMNS = 16
"""Columns that one step of a factorisation takes at a time, so that there are fewer steps."""


@dataclass(slots=True, repr=False)
class FCFOnTorch:
    """An `Accelerator` (parties/device.py) for one cohort."""

    confidence: closed_form.Confidence
    cohort: Cohort
    indptr: Tensor
    history: Tensor
    resident: Tensor
    """The devices' vectors, [n, F]."""

    @classmethod
    def load(
        cls, confidence: closed_form.Confidence, cohort: Cohort, device: str = "cuda"
    ) -> FCFOnTorch:
        """Move the cohort to `device`."""
        require(device)
        import torch

        try:
            place = torch.device(device)
            vectors = torch.tensor(cohort.vectors, dtype=torch.float32, device=place)
        except RuntimeError:  # of many kinds, all of which mean this
            raise UsageError(f"torch cannot use the device {device!r} here") from None
        return cls(
            confidence,
            cohort,
            torch.tensor(cohort.history.indptr, dtype=torch.int64, device=place),
            torch.tensor(cohort.history.items, dtype=torch.int64, device=place),
            vectors,
        )

    def vectors(self) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self.resident.cpu().numpy().copy()
        return vectors

    def learn_summed(
        self, view: ModelView, rows: NDArray[np.int64], learn_key: int, share_key: int
    ) -> tuple[NDArray[np.int64], RowCounts]:
        """One round of these devices. FCF draws nothing, so the keys are not used."""
        import torch

        n_items, size = view.items.shape
        if n_items != self.cohort.history.n_items or size != self.resident.shape[1]:
            raise DataError("the model has another shape than the devices' histories and vectors")
        place = self.resident.device
        items = torch.tensor(view.items, dtype=torch.float32, device=place)
        refuse_wild("item", items)
        sums = torch.zeros((size, n_items), dtype=torch.int64, device=place)
        memory = torch.cuda.mem_get_info(place)[0] // 4 if place.type == "cuda" else _SOLVE_BYTES
        chosen = torch.tensor(rows, dtype=torch.int64, device=place)
        system = ClosedFormSystem.of(self.confidence, view.items, items)
        step = max(1, memory // (24 * size * size))
        for start in range(0, len(rows), step):
            part = chosen[start : start + step]
            bags = self.bags(part)
            vectors = system.solve(bags)
            refuse_wild("user", vectors)
            self.resident[part] = vectors
            system.add_updates(vectors, bags, sums)
        return (
            np.ascontiguousarray(sums.cpu().numpy().T),
            self.confidence.rows_sent(self.cohort.history.counts[rows], n_items),
        )

    def bags(self, rows: Tensor) -> _Bags:
        import torch

        starts, counts = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        first = counts.cumsum(0) - counts
        total = int(counts.sum())
        owner = torch.repeat_interleave(counts, output_size=total)
        entry = torch.arange(total, device=rows.device) + (starts - first)[owner]
        return _Bags(owner, self.history[entry], first)


@dataclass(slots=True, repr=False)
class _Bags:
    """The histories of a chunk of devices, one behind the other."""

    owner: Tensor
    item: Tensor
    first: Tensor
    """Where each device's items begin."""

    def between(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Owners, counted from `start`, and items of devices start to stop."""
        begin = int(self.first[start])
        end = int(self.first[stop]) if stop < len(self.first) else len(self.item)
        return self.owner[begin:end] - start, self.item[begin:end]


@dataclass(slots=True, repr=False)
class ClosedFormSystem:
    """A model, and what follows from it for all devices."""

    confidence: closed_form.Confidence
    items: Tensor
    base: Tensor
    """other V'V + λI, in double precision."""

    @classmethod
    def of(
        cls, confidence: closed_form.Confidence, published: NDArray[np.float32], items: Tensor
    ) -> ClosedFormSystem:
        import torch

        gram = confidence.other * closed_form.gram(published)
        base = gram + confidence.reg * np.eye(len(gram))
        return cls(confidence, items, torch.from_numpy(base).to(items.device))

    def solve(self, bags: _Bags) -> Tensor:
        """x_u of each device, [n, F]."""
        import torch

        size = self.items.shape[1]
        wide = self.items.double()
        lower = torch.tril_indices(size, size, device=wide.device)
        table = torch.cat([wide[:, lower[0]] * wide[:, lower[1]], wide], dim=1)
        sums = torch.nn.functional.embedding_bag(bags.item, table, bags.first, mode="sum")
        # Devices last: every step below then runs along them.
        products, right = sums.T[: lower.shape[1]], sums.T[lower.shape[1] :]
        matrix = torch.zeros((size, size, len(sums)), dtype=torch.float64, device=wide.device)
        extra = self.confidence.positive - self.confidence.other
        matrix[lower[0], lower[1]] = extra * products + self.base[lower[0], lower[1], None]
        right = self.confidence.positive * right
        if not _factor(matrix):
            raise Diverged("a device's vector is not determined by its items; set reg above 0")
        _substitute(matrix, right)
        solved: Tensor = right.T.float().contiguous()
        return solved

    def add_updates(self, vectors: Tensor, bags: _Bags, sums: Tensor) -> None:
        """sums[f, i] += every device's update of item i, rounded to the grid."""
        n_items = len(self.items)
        if self.confidence.other == 0.0:
            self._add_positives(vectors, bags, sums)
            return
        weigh, add = _loops(vectors)
        columns = self.items.T.contiguous()
        step = max(1, _CHUNK_BYTES["cuda" if vectors.is_cuda else "cpu"] // (4 * n_items))
        for start in range(0, len(vectors), step):
            some = vectors[start : start + step]
            weights = weigh(some, columns, -self.confidence.other)
            owner, item = bags.between(start, start + len(some))
            weights[owner, item] = self._positive(some, owner, item)
            add(weights, GRID * some, sums)

    def _add_positives(self, vectors: Tensor, bags: _Bags, sums: Tensor) -> None:
        """`add_updates` where nothing but positives counts."""
        weights = self._positive(vectors, bags.owner, bags.item)
        for f, row in enumerate(sums):
            steps = weights * (GRID * vectors[bags.owner, f])
            row.index_add_(0, bags.item, steps.clamp_(-LIMIT * GRID, LIMIT * GRID).round_().long())

    def _positive(self, vectors: Tensor, owner: Tensor, item: Tensor) -> Tensor:
        """positive · (1 − x·v) of each item of each device."""
        columns = self.items.T.contiguous()
        dots = vectors[owner, 0] * columns[0, item]
        for f in range(1, len(columns)):
            dots += vectors[owner, f] * columns[f, item]
        return self.confidence.positive * (1.0 - dots)


def _loops(vectors: Tensor) -> tuple[Callable[..., Tensor], Callable[..., None]]:
    """`_weigh` and `_add`, or the same in one pass each where Triton can run."""
    if vectors.is_cuda:
        from sottovoce.algorithms.fcf import triton as fcf_triton

        if fcf_triton.AVAILABLE:
            return fcf_triton.weigh, fcf_triton.add
    return _weigh, _add


def _weigh(vectors: Tensor, columns: Tensor, factor: float) -> Tensor:
    """factor · (x·v) of every device and item, [n, n_items]."""
    dots = vectors[:, :1] * columns[0]
    for f in range(1, len(columns)):
        dots += vectors[:, f : f + 1] * columns[f]
    return dots.mul_(factor)


def _add(weights: Tensor, factors: Tensor, sums: Tensor) -> None:
    """sums[f, i] += Σ_u weights[u, i] · factors[u, f], each product cut and rounded."""
    import torch

    largest = weights.abs().amax(1) * factors.abs().amax(1)
    cut = bool(largest.amax() > LIMIT * GRID)
    memory = _CHUNK_BYTES["cuda" if weights.is_cuda else "cpu"]
    few = max(1, memory // (4 * sums.numel()))
    for first in range(0, len(weights), few):
        span = slice(first, first + few)
        steps = weights[span, None, :] * factors[span, :, None]
        if cut:
            steps.clamp_(-LIMIT * GRID, LIMIT * GRID)
        # Exact: whole numbers below 2**31, and far fewer than 2**22 of them.
        sums += steps.round_().sum(0, dtype=torch.float64).long()


def _factor(matrix: Tensor) -> bool:
    """The lower Cholesky factors of [F, F, n], in place. False where any is singular or nearly."""
    import torch

    size = len(matrix)
    whole = torch.stack([matrix[a, a] for a in range(size)])
    left = torch.empty_like(whole)
    for c in range(size):
        left[c] = matrix[c, c]
        matrix[c, c].sqrt_()
        matrix[c + 1 :, c] /= matrix[c, c]
        for b in range(c + 1, size, _COLUMNS):
            row = matrix[b : b + _COLUMNS, c]
            matrix[b:, b : b + _COLUMNS] -= matrix[b:, c, None] * row
    return bool((left > size * TINY * whole).all())


def _substitute(factor: Tensor, right: Tensor) -> None:
    """right becomes x of (factor factor') x = right, for [F, F, n] and [F, n]."""
    size = len(right)
    for c in range(size):
        right[c] /= factor[c, c]
        right[c + 1 :] -= factor[c + 1 :, c] * right[c]
    for a in reversed(range(size)):
        for product in factor[a + 1 :, a] * right[a + 1 :]:
            right[a] -= product
        right[a] /= factor[a, a]


def refuse_wild(what: str, table: Tensor) -> None:
    if table.numel() and not float(table.abs().max()) <= LARGEST:
        raise Diverged(f"the {what} vectors are not finite, or beyond {LARGEST:g}; step less")
