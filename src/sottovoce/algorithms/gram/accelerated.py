"""`sum_pairs` by torch, on a GPU or not: the same whole numbers, users' profiles resident there.

Users are written out in full, a chunk at a time, and multiplied as matrices, many chunks at once.
A GPU multiplies in half precision, which holds every step up to 1024, and adds up in single
precision, which holds every whole number up to 2**24. Why that is exact: products are whole and
none is negative, so sums only rise; while a sum is below 2**24 every addition to it is exact, and
once it is not, rounding leaves it there. So a diagonal that comes out below 2**24 is right; and no
number beside the diagonal is above the larger of the two diagonal numbers of its row and column
(Cauchy and Schwarz), so it is right, too. A chunk with a diagonal that is not below is taken again
in halves; fifteen users never reach it. Chunks are added up in double precision, whose whole
numbers end at 2**53, and then in 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.fpl.accelerated import require
from sottovoce.algorithms.gram.kernels import LARGEST_STEP, bad_profiles, check_rows
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_EXACT = 1 << 24
"""Whole numbers below this are exact in single precision, and so is their sum if it is."""
_FEWEST, _MOST = 8, 4096
"""Users of a chunk. Of the fewest, no sum can reach `_EXACT`."""
_BYTES = {"cuda": 1 << 30, "cpu": 32 << 20}
"""Memory for the products of the chunks that are multiplied at once."""
_CHECKED = 1 << 26
"""Places that are looked at in one go."""


def sum_pairs_on(
    indptr: NDArray[np.int64],
    place: NDArray[np.integer],
    steps: NDArray[np.integer],
    size: int,
    device: str = "cuda",
) -> NDArray[np.int64]:
    """`kernels.sum_pairs`, by torch on `device`: the same bits."""
    return ResidentProfiles.load(indptr, place, steps, size, device).sum_pairs()


@dataclass(frozen=True, slots=True, repr=False)
class ResidentProfiles:
    """Users' places and steps on a device, four bytes for both where 15 bits hold a place."""

    indptr: Tensor
    place: Tensor
    steps: Tensor
    size: int

    @classmethod
    def load(
        cls,
        indptr: NDArray[np.int64],
        place: NDArray[np.integer],
        steps: NDArray[np.integer],
        size: int,
        device: str = "cuda",
    ) -> ResidentProfiles:
        """Move profiles to `device`, where they are checked as `kernels.sum_pairs` does."""
        require(device)
        import torch

        check_rows(indptr, len(place), len(steps))
        if not _within(place, steps, size):
            raise bad_profiles(size)
        narrow = np.int16 if size <= 1 << 15 else np.int32
        try:
            there = torch.empty(0, device=device).device
        except RuntimeError:  # of many kinds, all of which mean this
            raise UsageError(f"torch cannot use the device {device!r} here") from None
        made = cls(
            torch.tensor(indptr, dtype=torch.int64, device=there),
            torch.tensor(place.astype(narrow, copy=False), device=there),
            torch.tensor(steps.astype(np.int16, copy=False), device=there),
            size,
        )
        if not made._ascend():
            raise bad_profiles(size)
        return made

    def _ascend(self) -> bool:
        """Whether places ascend within every user; where they do not, a user must begin."""
        import torch

        starts = self.indptr[:-1]
        for first in range(1, len(self.place), _CHECKED):
            span = slice(first, min(first + _CHECKED, len(self.place)))
            falls = self.place[span] <= self.place[span.start - 1 : span.stop - 1]
            edges = torch.searchsorted(starts, torch.tensor([span.start, span.stop]).to(starts))
            falls[starts[int(edges[0]) : int(edges[1])] - span.start] = False
            if bool(falls.any()):
                return False
        return True

    def sum_pairs(self) -> NDArray[np.int64]:
        """The sum over all users: diagonal first, then the upper triangle row by row."""
        import torch

        total = torch.zeros((self.size, self.size), dtype=torch.int64, device=self.place.device)
        memory = _BYTES["cuda" if total.is_cuda else "cpu"]
        at_once = max(1, memory // (4 * self.size * self.size))
        first, chunk, n = 0, _FEWEST, len(self.indptr) - 1
        with _exact_products():
            while first < n:
                stop = min(n, first + at_once * chunk)
                share = self._add(first, stop, chunk, total) / _EXACT
                first = stop
                # As many users as hardly ever reach the limit: a chunk is better large.
                if not 0.6 < share < 0.9:
                    chunk = _even(chunk * min(16.0, 0.8 / max(share, 1e-9)))
        square = total.cpu().numpy()
        return np.concatenate([np.diagonal(square), square[~np.tri(self.size, dtype=bool)]])

    def _add(self, first: int, stop: int, chunk: int, total: Tensor) -> float:
        """total += the pairs of users first to stop, `chunk` of them to a product. Returns the
        largest number of any product."""
        import torch

        x = self._dense(first, stop, chunk)
        if x.dtype == torch.float16:
            products = torch.bmm(x.mT, x, out_dtype=torch.float32)
        else:
            products = torch.bmm(x.mT, x)
        products = products[:, : self.size, : self.size]
        largest = products.diagonal(dim1=1, dim2=2).amax(1).cpu()
        good = largest < _EXACT
        if not bool(good.all()):
            products = products[good.to(products.device)]
        total += products.sum(0, dtype=torch.float64).long()
        for bad in (~good).nonzero().ravel().tolist():
            begin = first + bad * chunk
            self._add(begin, min(stop, begin + chunk), max(_FEWEST, chunk // 2), total)
        return float(largest.max())

    def _dense(self, first: int, stop: int, chunk: int) -> Tensor:
        """Users first to stop, [chunks, users, places]; both padded with zeros."""
        import torch

        edges = self.indptr[first : stop + 1]
        begin, end = int(edges[0]), int(edges[-1])
        owner = torch.repeat_interleave(edges.diff(), output_size=end - begin)
        n_chunks, width = -(-(stop - first) // chunk), -(-self.size // 8) * 8
        kind = _half_or_single(self.place.device)
        x = torch.zeros((n_chunks, chunk, width), dtype=kind, device=owner.device)
        spot = owner.mul_(width).add_(self.place[begin:end])
        x.view(-1).scatter_(0, spot, self.steps[begin:end].to(kind))
        return x


def _within(place: Any, steps: Any, size: int) -> bool:
    """Whether no place and no step, of arrays or tensors, is out of range."""
    return all(
        not len(values) or 0 <= int(values.min()) <= int(values.max()) <= most
        for values, most in ((place, size - 1), (steps, LARGEST_STEP))
    )


def _even(users: float) -> int:
    """The next lower size of a chunk that suits matrix units."""
    whole = int(users) // 64 * 64 or int(users) // _FEWEST * _FEWEST
    return min(_MOST, max(_FEWEST, whole))


@cache
def _half_or_single(device: Any) -> Any:
    """What profiles are multiplied in: half precision where its products come in single."""
    import torch

    if device.type != "cuda":
        return torch.float32
    one = torch.ones((1, 8, 8), dtype=torch.float16, device=device)
    try:
        torch.bmm(one, one, out_dtype=torch.float32)
    except (TypeError, RuntimeError):  # torch before 2.8
        return torch.float32
    return torch.float16


@contextmanager
def _exact_products() -> Iterator[None]:
    """Torch may not round sums or factors of products below single precision meanwhile."""
    import torch

    settings: Any = torch.backends.cuda.matmul
    names = [
        name
        for name in ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
        if hasattr(settings, name)
    ]
    before = {name: getattr(settings, name) for name in names}
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        for name in names:
            setattr(settings, name, False)
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for name, value in before.items():
            setattr(settings, name, value)
