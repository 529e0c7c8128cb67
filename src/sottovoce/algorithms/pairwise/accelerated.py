"""`factors.learn_summed` and `factors.fold` for a cohort that stays on a GPU between rounds.

A round has two stages, over chunks of devices. *Draw*: every (device, draw) at once picks the
positive, the negative and whether the positive's update leaves, packed into one 64-bit word, and
counts the distinct rows that each device sends. *Learn*: some devices per warp go through their
draws in order, because a device's vector moves after each; item rows are read and sums are added
to where they lie, in the L2 cache.

Two implementations of the same two stages: Triton kernels, and plain torch, which runs on any torch
device and defines what the kernels must do.

**What is deterministic.** Draws and counts equal the CPU's exactly. Updates are rounded to the same
grid (`core.messages`) and added as 64-bit whole numbers, so on one kind of GPU a run gives the same
bits every time, whatever the chunking and the order in which devices are computed. Between CPU, GPU
and torch the updates themselves differ by the rounding of single precision (another order of the
dot product, another exponential): a few steps of the grid per draw.

**Two sums to a word.** Atomic additions are what a round waits for, and they cost by the 32 bytes
that they touch. So a chunk of devices adds two neighbouring columns to one 64-bit word, 32 bits for
each, and the word of a row's bias carries above that its *load*: for every update a bound on its
numbers. If no load is above `MOST_LOAD`, no sum has left its half, and the chunk is taken apart and
added to 64-bit sums; else the devices' vectors are put back and the chunk is learnt
again with a word for each number, and the next ones are smaller. Either way the sums are exact.

**Hot rows.** Additions to one row queue up behind each other, and popular items would hold up
everyone. Popular items therefore have several rows of halves, which neighbouring warps use in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.pairwise import triton as factors_triton
from sottovoce.algorithms.pairwise.factors import PairStep, fold_rate
from sottovoce.algorithms.pairwise.triton import LANES, MOST_LOAD, ROW_BITS
from sottovoce.algorithms.torch_draws import LOW32, member, mixed, shifted, signed
from sottovoce.core.consent import thresholds
from sottovoce.core.messages import GRID, LIMIT
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import GAMMA

_CHUNK = 1 << 25
"""Draws per chunk: 256 MB of packed words. Torch, which keeps a dozen such, takes smaller ones."""
_HALVES_CHUNK = 1 << 23
"""Draws per chunk that adds two sums to a word; `triton.MOST_UNITS` relies on it."""
_LEAST_HALVES = 1 << 19
"""Draws below which that does not pay."""
_ROWS = 1 << 17
"""Rows of halves that popular items share, about."""
_LOW31 = (1 << 31) - 1
_SCALE = float(GRID)
_LIMIT = float(LIMIT * GRID)

Rows = Tensor | NDArray[np.int64] | None
"""Distinct rows of a cohort; None for all."""


@dataclass(slots=True)
class ChunkPace:
    """Draws of the next part of a chunk that adds two sums to a word."""

    draws: int = _HALVES_CHUNK

    def after(self, loads: list[int]) -> None:
        """Smaller parts where one had too large a load, larger ones where all had small ones."""
        if max(loads) > MOST_LOAD:
            self.draws //= 2
        elif 4 * max(loads) < MOST_LOAD:
            self.draws = min(_HALVES_CHUNK, 2 * self.draws)


@dataclass(frozen=True, slots=True, repr=False)
class Tables:
    """The model and the sums of a round. The columns of sums are interleaved so that neighbouring
    threads, which hold `LANES` columns each, add to neighbouring words; `totals` undoes that."""

    factors: Tensor
    """float32 [M, width], zeros from the embedding size on."""
    bias: Tensor
    """float32 [M]."""
    sums: Tensor
    """int64 [M, width], in steps of the grid."""
    bias_sums: Tensor
    """int64 [M]."""
    halves: Tensor
    """int64 [rows, width / 2]: sums of a chunk, two to a word; no rows where there is no GPU."""
    bias_halves: Tensor
    """int64 [rows]: the bias's sums, and the row's load above them."""
    spare: Tensor
    """int32 [M]: the first of an item's rows of halves, and above `ROW_BITS` how many it has."""
    owner: Tensor
    """int32 [rows]: whose row it is."""
    pace: ChunkPace

    @classmethod
    def of(cls, items: Tensor, embedding_size: int, popularity: Tensor | None = None) -> Tables:
        """From rows [M, embedding_size + 1] or wider, the bias in column `embedding_size`. Where
        `popularity` (interactions per item) is given, there are halves, and popular items have
        several rows of them."""
        n_items, device = len(items), items.device
        width = max(16, 1 << (embedding_size - 1).bit_length())
        factors = torch.zeros(n_items, width, device=device)
        factors[:, :embedding_size] = items[:, :embedding_size]
        logs = torch.zeros(0, dtype=torch.int64, device=device)
        if popularity is not None and n_items < 1 << (ROW_BITS - 2):
            share = popularity.double() / popularity.sum().clamp(min=1) + 1.0 / n_items
            logs = (share * (_ROWS / 2)).clamp(1.0, _ROWS).log2().ceil().long()
        copies = torch.ones_like(logs) << logs
        first = copies.cumsum(0) - copies
        number = torch.arange(len(logs), dtype=torch.int32, device=device)
        owner = torch.repeat_interleave(number, copies)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            factors=factors,
            bias=items[:, embedding_size].to(torch.float32, copy=True).contiguous(),
            sums=zeros(n_items, width),
            bias_sums=zeros(n_items),
            halves=zeros(len(owner), width // 2),
            bias_halves=zeros(len(owner)),
            spare=(first | logs << ROW_BITS).int(),
            owner=owner,
            pace=ChunkPace(),
        )

    def totals(self) -> tuple[Tensor, Tensor]:
        """The sums of all updates since the last fold: factors [M, width] and biases [M]."""
        n_items, width = self.factors.shape
        natural = _interleaved(self.sums).transpose(1, 2).reshape(n_items, width)
        return natural, self.bias_sums.clone()

    def clear(self) -> None:
        """Sums start again at 0."""
        self.sums.zero_()
        self.bias_sums.zero_()


@dataclass(frozen=True, slots=True, repr=False)
class ResidentCohort:
    """What the devices hold, a row each, on the GPU."""

    vectors: Tensor
    """float32 [N, embedding_size]; moves in place."""
    indptr: Tensor
    """int64 [N + 1]."""
    items: Tensor
    """int32, ascending within a row."""
    users: Tensor
    """int64 [N]: the number that a device's draws are keyed by."""
    threshold: Tensor
    """int64 [N]: a positive's update may leave where the draw's 32-bit coin lies below this."""
    takes_part: Tensor
    """bool [N]. A device that does not take part neither learns nor sends."""
    allowed: Tensor | None = None
    """bool per interaction: whether the item's update may ever leave; None allows all."""

    def __len__(self) -> int:
        return len(self.users)


def learn_summed_cuda(
    step: PairStep,
    tables: Tables,
    cohort: ResidentCohort,
    round_key: int,
    share_key: int,
    triples: int,
    rows: Rows = None,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """One round of the devices in `rows`: adds every update that may leave to `tables`, moves
    `cohort.vectors`, and returns each device's number of distinct positive and negative rows sent
    (int32; 0 for a device that does not take part, has no positives or has every item). The
    draws of a device are keyed by `Streams(round_key).child(user)`, its coins by
    `Streams(share_key).child(user)`.

    `fused` chooses the Triton kernels (True) or torch (False); by default whatever is there.
    """
    if triples < 1:
        raise ConfigError(f"triples must be at least 1, not {triples}")
    device = cohort.vectors.device
    if fused is None:
        fused = (
            factors_triton.AVAILABLE and device.type == "cuda" and torch.version.cuda is not None
        )
    if fused and not factors_triton.AVAILABLE:
        raise ConfigError("the fused kernels need the package triton")
    n = len(cohort) if rows is None else len(rows)
    keys = torch.tensor([signed(round_key), signed(share_key)], device=device)
    largest = _largest(step, tables) if fused and n * triples >= _LEAST_HALVES else np.inf
    halves = len(tables.owner) > 0 and largest < np.inf
    chunk = _CHUNK if fused else _CHUNK // 16
    most = max(1, min(n, chunk // triples))
    counts = torch.zeros(2, n, dtype=torch.int32, device=device)
    words = torch.empty(triples * most, dtype=torch.int64, device=device)
    for start in range(0, n, most):
        part = slice(start, min(start + most, n))
        if rows is None:
            chosen = torch.arange(part.start, part.stop, device=device)
        else:
            chosen = torch.as_tensor(rows[part], device=device)
        packed = words[: triples * len(chosen)].view(triples, len(chosen))
        if not fused:
            _draw_torch(cohort, len(tables.bias), chosen, keys, packed, counts[:, part])
            _learn_torch(step, tables, cohort, chosen, packed)
        else:
            factors_triton.draw(cohort, len(tables.bias), chosen, keys, packed, counts[:, part])
            if halves and triples <= tables.pace.draws >= _LEAST_HALVES // 16:
                saved = cohort.vectors[part].clone() if rows is None else cohort.vectors[chosen]
                _learn_halves(step, tables, cohort, chosen, packed, saved, largest)
            else:
                factors_triton.learn(step, tables, cohort, chosen, packed)
    tables.pace.draws = max(tables.pace.draws, _LEAST_HALVES // 16)
    return counts[0], counts[1]


def _learn_halves(
    step: PairStep,
    tables: Tables,
    cohort: ResidentCohort,
    rows: Tensor,
    packed: Tensor,
    saved: Tensor,
    largest: float,
) -> None:
    """A chunk, in parts that add two sums to a word; parts for which that was too much are learnt
    again, from the vectors that their devices had before."""
    parts = torch.split(rows, tables.pace.draws // len(packed))
    loads = torch.zeros(len(parts), dtype=torch.int64, device=rows.device)
    start, spans = 0, []
    for part, load in zip(parts, loads, strict=True):
        span = slice(start, start + len(part))
        factors_triton.learn(step, tables, cohort, part, packed[:, span], load, largest)
        spans.append(span)
        start = span.stop
    found = loads.tolist()
    for part, span, load in zip(parts, spans, found, strict=True):
        if load > MOST_LOAD:
            cohort.vectors[part] = saved[span]
            factors_triton.learn(step, tables, cohort, part, packed[:, span])
    tables.pace.after(found)


def _largest(step: PairStep, tables: Tables) -> float:
    """The largest factor, which bounds updates; infinite where biases are beyond bounds."""
    found = torch.stack([tables.factors.abs().amax(), tables.bias.abs().amax()]).tolist()
    return float(found[0]) if step.reg_bias * found[1] < 0.5 else float("inf")


def fold_cuda(step: PairStep, tables: Tables) -> None:
    """model += α · sums, as `factors.fold` does it bit for bit; the sums start again at 0."""
    rate = float(fold_rate(step))
    sums, bias_sums = tables.totals()
    tables.factors.add_(sums.float() * rate)
    tables.bias.add_(bias_sums.float() * rate)
    tables.clear()


@dataclass(slots=True, repr=False)
class CudaFederation(Redacted):
    """A federation whose devices and server stay on the GPU: `load` once, then `round` after
    `round`; `model`, `vectors` and `sums` copy back to the host."""

    step: PairStep
    tables: Tables
    cohort: ResidentCohort

    @classmethod
    def load(
        cls,
        step: PairStep,
        items: NDArray[np.float32],
        vectors: NDArray[np.float32],
        indptr: NDArray[np.int64],
        history: NDArray[np.int32],
        share: NDArray[np.floating],
        *,
        users: NDArray[np.int64] | None = None,
        takes_part: NDArray[np.bool_] | None = None,
        allowed: NDArray[np.bool_] | None = None,
        device: str = "cuda",
    ) -> CudaFederation:
        """`items` is the model, [M, embedding_size + 1] or padded; `share` is π per device;
        `allowed`, a flag per interaction, may be empty; `users` are the devices' numbers, counted
        from 0 where they are not given."""
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("there is no GPU that torch can use; choose the device cpu")
        n, size = vectors.shape
        if len(indptr) != n + 1 or len(share) != n:
            raise ConfigError(
                "vectors, row pointers and shares must agree on the number of devices"
            )
        if items.shape[1] <= size:
            raise ConfigError("item rows need a bias after the factors")
        if not 0 < len(items) <= _LOW31:
            raise ConfigError(f"a catalogue of {len(items)} items does not fit")

        def put(values: NDArray[np.generic]) -> Tensor:
            return torch.tensor(values, device=device)

        held = put(history)
        cohort = ResidentCohort(
            vectors=put(vectors.astype(np.float32, copy=False)),
            indptr=put(indptr),
            items=held,
            users=put(np.arange(n) if users is None else users),
            threshold=put(thresholds(share).astype(np.int64)),
            takes_part=put(np.ones(n, dtype=bool) if takes_part is None else takes_part),
            allowed=None if allowed is None or len(allowed) == 0 else put(allowed),
        )
        popularity = torch.bincount(held, minlength=len(items)) if device != "cpu" else None
        return cls(step, Tables.of(put(items), size, popularity), cohort)

    def learn(
        self, round_key: int, share_key: int, triples: int, rows: Rows = None
    ) -> tuple[Tensor, Tensor]:
        """The devices' half of a round; see `learn_summed_cuda`."""
        return learn_summed_cuda(
            self.step, self.tables, self.cohort, round_key, share_key, triples, rows
        )

    def fold(self) -> None:
        """The server's half of a round; see `fold_cuda`."""
        fold_cuda(self.step, self.tables)

    def round(
        self, round_key: int, share_key: int, triples: int, rows: Rows = None
    ) -> tuple[Tensor, Tensor]:
        """A whole round; the counts of rows sent stay on the GPU."""
        counts = self.learn(round_key, share_key, triples, rows)
        self.fold()
        return counts

    def sums(self) -> NDArray[np.int64]:
        """What `factors.learn_summed` would return, without its padding, between learn and fold."""
        sums, bias_sums = self.tables.totals()
        size = self.cohort.vectors.shape[1]
        whole: NDArray[np.int64] = torch.column_stack([sums[:, :size], bias_sums]).cpu().numpy()
        return whole

    def model(self) -> NDArray[np.float32]:
        """Item rows, [M, embedding_size + 1]."""
        size = self.cohort.vectors.shape[1]
        items = torch.column_stack([self.tables.factors[:, :size], self.tables.bias])
        if not bool(torch.isfinite(items).all()):
            raise Diverged("the model ran off to infinity; lower learning_rate or cohort_size")
        rows: NDArray[np.float32] = items.cpu().numpy()
        return rows

    def vectors(self) -> NDArray[np.float32]:
        """User vectors, [N, embedding_size]."""
        copied: NDArray[np.float32] = self.cohort.vectors.cpu().numpy().copy()
        return copied


def _interleaved(sums: Tensor) -> Tensor:
    return sums.view(len(sums), LANES, sums.shape[1] // LANES)


# --- torch: words of a draw are item << 32 | leaves << 31 | negative, or -1 for "not a client" ---


def _draw_torch(
    cohort: ResidentCohort,
    n_items: int,
    rows: Tensor,
    keys: Tensor,
    packed: Tensor,
    counts: Tensor,
) -> None:
    start = cohort.indptr[rows]
    count = cohort.indptr[rows + 1] - start
    active = cohort.takes_part[rows] & (count > 0) & (count < n_items)
    packed.fill_(-1)
    rows, start, count = rows[active], start[active], count[active]
    if len(rows) == 0:
        return
    gamma = signed(int(GAMMA))
    number = (cohort.users[rows] + 1) * gamma
    offset = torch.arange(1, len(packed) + 1, device=rows.device)[:, None] * gamma
    word = mixed(mixed(keys[0] + number) + offset)
    entry = start + ((shifted(word, 32) * count) >> 32)
    i = cohort.items[entry].long()
    j = ((word & LOW32) * n_items) >> 32
    while bool((again := member(cohort.items, start, count, j)).any()):
        word = torch.where(again, mixed(word + gamma), word)
        j = torch.where(again, ((word & LOW32) * n_items) >> 32, j)
    coin = shifted(mixed(mixed(keys[1] + number) + offset), 32)
    leaves = coin < cohort.threshold[rows]
    if cohort.allowed is not None:
        leaves &= cohort.allowed[entry]
    packed[:, active] = i << 32 | leaves.long() << 31 | j
    counts[0, active] = _distinct(torch.where(leaves, i, -1))
    counts[1, active] = _distinct(j)


def _distinct(items: Tensor) -> Tensor:
    """Distinct non-negative items per column."""
    ranked = items.sort(0).values
    fresh = ranked >= 0
    fresh[1:] &= ranked[1:] != ranked[:-1]
    return fresh.sum(0, dtype=torch.int32)


def _learn_torch(
    step: PairStep, tables: Tables, cohort: ResidentCohort, rows: Tensor, packed: Tensor
) -> None:
    active = packed[0] != -1
    rows, packed = rows[active], packed[:, active]
    size, width = cohort.vectors.shape[1], tables.factors.shape[1]
    p = torch.zeros(len(rows), width, device=packed.device)
    p[:, :size] = cohort.vectors[rows]
    sums = _interleaved(tables.sums)

    def send(item: Tensor, values: Tensor, bias: Tensor) -> None:
        steps = torch.round(values.clamp(-_LIMIT, _LIMIT)).long()
        sums.index_add_(0, item, steps.view(len(item), width // LANES, LANES).transpose(1, 2))
        tables.bias_sums.index_add_(0, item, torch.round(bias.clamp(-_LIMIT, _LIMIT)).long())

    reg_i, reg_j, reg_b = (
        float(np.float32(reg)) * _SCALE
        for reg in (step.reg_positive, step.reg_negative, step.reg_bias)
    )
    for word in packed:
        i, j, leaves = word >> 32, word & _LOW31, (word >> 31) & 1 == 1
        q_i, q_j, b_i, b_j = tables.factors[i], tables.factors[j], tables.bias[i], tables.bias[j]
        gap = q_i - q_j
        s = 1.0 / (1.0 + torch.exp((p * gap).sum(1) + (b_i - b_j)))
        pull, pull_bias = (s * _SCALE)[:, None] * p, s * _SCALE
        send(j, -pull - reg_j * q_j, -pull_bias - reg_b * b_j)
        send(i[leaves], (pull - reg_i * q_i)[leaves], (pull_bias - reg_b * b_i)[leaves])
        p += step.learning_rate * (s[:, None] * gap - step.reg_user * p)
    cohort.vectors[rows] = p[:, :size]
