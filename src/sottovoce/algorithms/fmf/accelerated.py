"""FMF-LDP's epochs by torch, on a GPU or not: the counts that the server would make of the devices'
reports, bit for bit, with histories, vectors and noise keys resident there.

Reports are not written out: each is drawn, computed, randomised by its private coin and counted.
Who shuffles them changes no count. Solves are FCF's (`fcf.accelerated`). Needs Triton to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.fcf.accelerated import ClosedFormSystem, FCFOnTorch, refuse_wild
from sottovoce.algorithms.fmf import triton as fmf_triton
from sottovoce.core.cohort import Cohort
from sottovoce.core.messages import ModelView
from sottovoce.core.one_bit import BLOCK_COINS, COINS, BitTerms, nonce
from sottovoce.data.crowd_torch import LOW32, member, mixed, shifted, signed
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import GAMMA

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.algorithms.closed_form.vectors import Confidence

_CHUNK = {"cuda": 1 << 19, "cpu": 1 << 10}
"""Devices whose coins are there at a time."""


@dataclass(frozen=True, slots=True, repr=False)
class ReportRound:
    """What the reports of a round follow from."""

    key: Tensor
    """Of the round's coordinates: user u draws from its child u."""
    items: Tensor
    """float32 [n_items, width], zeros from the embedding size on."""
    vectors: Tensor
    """float32 [n, F], a row for each device of the cohort."""
    users: Tensor
    tiers: Tensor
    """int32: the tier of each device; who is in none is not asked."""
    lows: Tensor
    """int64: T(−1) of each tier."""
    indptr: Tensor
    history: Tensor
    numbers: Tensor
    """positive, other and scale."""
    reports: int

    @property
    def n_items(self) -> int:
        return len(self.items)


@dataclass(slots=True, repr=False)
class FMFOnTorch:
    """A `ReportCounter` (`core.one_bit`) for one cohort."""

    solver: FCFOnTorch
    terms: BitTerms
    users: Tensor
    tiers: Tensor
    noise: Tensor
    """int32 [n, 8]."""
    scale: float

    @classmethod
    def load(
        cls,
        confidence: Confidence,
        cohort: Cohort,
        terms: BitTerms,
        scale: float,
        device: str = "cuda",
    ) -> FMFOnTorch:
        """Move the cohort to `device`."""
        import torch

        if len(terms.noise) != len(cohort) or len(terms.tier) != len(cohort):
            raise DataError("there must be a tier and a noise key for each device")
        solver = FCFOnTorch.load(confidence, cohort, device)
        place = solver.resident.device
        return cls(
            solver,
            terms,
            torch.tensor(cohort.users, dtype=torch.int64, device=place),
            torch.tensor(terms.tier, dtype=torch.int32, device=place),
            torch.tensor(terms.noise.view(np.int32), device=place),
            scale,
        )

    def vectors(self) -> NDArray[np.float32]:
        return self.solver.vectors()

    def count_reports(
        self, view: ModelView, rows: NDArray[np.int64], round_key: int
    ) -> NDArray[np.int64]:
        """[tiers, coordinates]: of these devices' reports of a round, those with bit 1 less those
        with bit 0. The devices' vectors move."""
        import torch

        n_items, size = view.items.shape
        solver, terms, place = self.solver, self.terms, self.users.device
        if n_items != solver.cohort.history.n_items or size != solver.resident.shape[1]:
            raise DataError("the model has another shape than the devices' histories and vectors")
        if len(rows) and int(terms.tier[rows].min()) < 0:
            raise ConfigError("a device without a tier was asked to report")
        items = torch.tensor(view.items, dtype=torch.float32, device=place)
        refuse_wild("item", items)
        system = ClosedFormSystem.of(solver.confidence, view.items, items)
        padded = torch.zeros((n_items, max(8, -(-size // 4) * 4)), device=place)
        padded[:, :size] = items
        conf = solver.confidence
        asked = ReportRound(
            key=torch.tensor([signed(round_key)], device=place),
            items=padded,
            vectors=solver.resident,
            users=self.users,
            tiers=self.tiers,
            lows=torch.tensor(terms.lows.astype(np.int64), device=place),
            indptr=solver.indptr,
            history=solver.history,
            numbers=torch.tensor(
                [conf.positive, conf.other, self.scale], dtype=torch.float64, device=place
            ),
            reports=terms.reports,
        )
        sums = torch.zeros((len(terms.lows), n_items * size), dtype=torch.int64, device=place)
        bad = torch.zeros(1, dtype=torch.int32, device=place)
        fused = place.type == "cuda" and fmf_triton.AVAILABLE
        coins_of, count = (fmf_triton.make_coins, fmf_triton.count) if fused else (_coins, _count)
        blocks = -(-terms.reports // BLOCK_COINS)
        step = _CHUNK["cuda" if place.type == "cuda" else "cpu"]
        for start in range(0, len(rows), step):
            part = torch.tensor(rows[start : start + step], device=place)
            vectors = system.solve(solver.bags(part))
            refuse_wild("user", vectors)
            solver.resident[part] = vectors
            count(asked, part, coins_of(self.noise, part, view.round, blocks), sums, bad)
        if int(bad[0]):
            raise Diverged("a value to report is not finite; nothing was sent")
        found: NDArray[np.int64] = sums.cpu().numpy()
        return found


# --- the same by torch ----------------------------------------------------------------------------


def _coins(noise: Tensor, rows: Tensor, round: int, blocks: int) -> Tensor:
    """[16 · blocks, len(rows)]: the coins of `core.one_bit`."""
    import torch

    key = (noise[rows].long() & LOW32).T
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    first, second, third = (int(word) for word in nonce(round))
    out = []
    for block in range(blocks):
        before = [torch.full_like(key[0], word) for word in start]
        before += list(key)
        before += [torch.full_like(key[0], word) for word in (block, first, second, third)]
        state = list(before)

        def quarter(a: int, b: int, c: int, d: int, s: list[Tensor] = state) -> None:
            for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) & LOW32
                mixed = s[z] ^ s[x]
                s[z] = ((mixed << turn) | (mixed >> (32 - turn))) & LOW32

        for _ in range(10):
            for column in range(4):
                quarter(column, 4 + column, 8 + column, 12 + column)
            for column in range(4):
                quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
        out += [(a + b) & LOW32 for a, b in zip(state, before, strict=True)]
    return torch.stack(out)


def _count(asked: ReportRound, rows: Tensor, coins: Tensor, sums: Tensor, bad: Tensor) -> None:
    """Every report of these devices, added to the counts."""
    import torch

    size, many = asked.vectors.shape[1], asked.n_items * asked.vectors.shape[1]
    gamma = signed(int(GAMMA))
    own = mixed(asked.key[0] + (asked.users[rows] + 1) * gamma)
    j = torch.arange(asked.reports, device=rows.device)[:, None]
    word = mixed(own + (j + 1) * gamma)
    coordinate = (shifted(word, 32) * many + (((word & LOW32) * many) >> 32)) >> 32
    item, factor = coordinate // size, coordinate % size
    start = asked.indptr[rows]
    mine = member(asked.history, start, asked.indptr[rows + 1] - start, item)
    vectors = asked.vectors[rows].double()
    dot = torch.zeros_like(coordinate, dtype=torch.float64)
    for f in range(size):
        dot += vectors[:, f] * asked.items[item, f].double()
    positive, other, scale = asked.numbers.tolist()
    weight = torch.where(mine, positive * (1.0 - dot), other * (0.0 - dot))
    y = scale * (-2.0 * weight * vectors.gather(1, factor.T).T)
    bad |= int(not bool(torch.isfinite(y).all()))
    low = asked.lows[asked.tiers[rows].long()]
    wide = (COINS - 2 * low).double()
    limit = low + torch.round((y.clamp(-1.0, 1.0) + 1.0) * 0.5 * wide).nan_to_num().long()
    step = torch.where(coins[: asked.reports] < limit, 1, -1)
    place = asked.tiers[rows].long() * many + coordinate
    sums.view(-1).index_add_(0, place.ravel(), step.ravel())
