"""The two stages of `factors_cuda` as Triton kernels; where Triton is missing, constants alone.

A thread holds `LANES` columns of an item row, which is what a 16-byte read brings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sottovoce.core.messages import GRID, LIMIT
from sottovoce.rng import _M1, _M2, GAMMA

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.algorithms.pairwise.cuda import ResidentCohort, Tables
    from sottovoce.algorithms.pairwise.factors import PairStep

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU builds of torch come without it
    triton = None

LANES = 4
COPIES = 32
"""Spare rows of sums that a popular item has; neighbouring warps use them in turn."""
TILE = 256
"""Columns times devices per warp in the learning stage. Not below 32 · `LANES`: Triton would give
one column to two threads, and the assembly in `_send` would add it twice."""
AVAILABLE = triton is not None

if triton is not None:
    _gamma = tl.constexpr(int(GAMMA))
    _m1, _m2 = tl.constexpr(int(_M1)), tl.constexpr(int(_M2))
    _lanes, _copies = tl.constexpr(LANES), tl.constexpr(COPIES)
    _scale, _limit = tl.constexpr(float(GRID)), tl.constexpr(float(LIMIT * GRID))
    _ptx = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
    _round = tl.constexpr("cvt.rni.s32.f32 $0, $1;")
    _add = tl.constexpr(
        "{ .reg .pred sent; .reg .s32 steps; .reg .s64 wide;"
        " setp.ne.s32 sent, $3, 0;"
        " cvt.rni.s32.f32 steps, $2; cvt.s64.s32 wide, steps;"
        " @sent red.relaxed.gpu.global.add.u64 [$1], wide;"
        " mov.b32 $0, 0; }"
    )

    @triton.jit
    def _mix_word(z):  # type: ignore[no-untyped-def]
        z = (z ^ (z >> 30)) * _m1
        z = (z ^ (z >> 27)) * _m2
        return z ^ (z >> 31)

    @triton.jit
    def _below(word, n):  # type: ignore[no-untyped-def]
        return ((word * n.to(tl.uint64)) >> 32).to(tl.int32)

    @triton.jit
    def _search(items, start, count, wanted, live):  # type: ignore[no-untyped-def]
        low = tl.zeros_like(wanted)
        high = low + count
        span = tl.max(count)
        while span > 0:
            middle = (low + high) >> 1
            searching = live & (low < high)
            less = tl.load(items + start + middle, mask=searching, other=0) < wanted
            low = tl.where(searching & less, middle + 1, low)
            high = tl.where(searching & (less == 0), middle, high)
            span = span >> 1
        inside = live & (low < count)
        return inside & (tl.load(items + start + low, mask=inside, other=-1) == wanted)

    @triton.jit(do_not_specialize=["size", "n_items", "triples"])
    def draw_kernel(  # type: ignore[no-untyped-def]
        size, rows, users, indptr, items, takes_part, threshold, allowed, keys, packed,
        positives, negatives, n_items, triples,
        BY_ITEM: tl.constexpr, U: tl.constexpr, B: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * U + tl.arange(0, U)
        inside = at < size
        row = tl.load(rows + at, mask=inside, other=0)
        start = tl.load(indptr + row)
        count = (tl.load(indptr + row + 1) - start).to(tl.int32)
        active = inside & (tl.load(takes_part + row) != 0) & (count > 0) & (count < n_items)
        number = (tl.load(users + row).to(tl.uint64) + 1) * _gamma
        limit = tl.load(threshold + row)[None, :]
        key = _mix_word(tl.load(keys).to(tl.uint64, bitcast=True) + number)[None, :]
        coin_key = _mix_word(tl.load(keys + 1).to(tl.uint64, bitcast=True) + number)[None, :]
        start, count = start[None, :], count[None, :]
        for first in range(0, triples, B):
            t = (first + tl.arange(0, B))[:, None]
            live = active[None, :] & (t < triples)
            offset = (t.to(tl.uint64) + 1) * _gamma
            word = _mix_word(key + offset)
            entry = start + _below(word >> 32, count)
            i = tl.load(items + entry, mask=live, other=0)
            j = _below(word & 0xFFFFFFFF, n_items)
            again = _search(items, start, count, j, live)
            while tl.max(again.to(tl.int32)) > 0:
                word = tl.where(again, _mix_word(word + _gamma), word)
                j = tl.where(again, _below(word & 0xFFFFFFFF, n_items), j)
                again = _search(items, start, count, j, again)
            leaves = (_mix_word(coin_key + offset) >> 32).to(tl.int64) < limit
            if BY_ITEM:
                leaves = leaves & (tl.load(allowed + entry, mask=live, other=0) != 0)
            drawn = (i.to(tl.int64) << 32) | (leaves.to(tl.int64) << 31) | j.to(tl.int64)
            spot = packed + t * size + at[None, :]
            tl.store(spot, tl.where(live, drawn, -1), mask=inside[None, :] & (t < triples))
        tl.debug_barrier()
        n_positive = tl.zeros([U], tl.int32)
        n_negative = tl.zeros([U], tl.int32)
        for first in range(0, triples, B):  # a draw counts where no earlier one has sent its row
            t = (first + tl.arange(0, B))[:, None]
            mask = inside[None, :] & (t < triples)
            drawn = tl.load(packed + t * size + at[None, :], mask=mask, other=-1)
            live = drawn != -1
            i, j = (drawn >> 31).to(tl.int32), (drawn & 0x7FFFFFFF).to(tl.int32)
            fresh_i, fresh_j = live & ((i & 1) != 0), live
            for k in range(0, tl.minimum(first + B, triples)):
                other = tl.load(packed + k * size + at, mask=inside, other=-1)[None, :]
                fresh_i = fresh_i & ((k >= t) | (i != (other >> 31).to(tl.int32)))
                fresh_j = fresh_j & ((k >= t) | (j != (other & 0x7FFFFFFF).to(tl.int32)))
            n_positive += tl.sum(fresh_i.to(tl.int32), 0)
            n_negative += tl.sum(fresh_j.to(tl.int32), 0)
        tl.store(positives + at, n_positive, mask=inside)
        tl.store(negatives + at, n_negative, mask=inside)

    @triton.jit
    def _send(  # type: ignore[no-untyped-def]
        sums, bias_sums, spare, item, c, values, bias, ok, F: tl.constexpr, W: tl.constexpr
    ):
        """Round to the grid and add. The assembly keeps each thread's columns where they are;
        through `tl.atomic_add` they would first change places among the threads."""
        copy = tl.load(spare + item)
        row = tl.where(copy < 0, item, copy + tl.program_id(0) % _copies)
        spot = sums + row[:, None] * W + ((c % _lanes) * (W // _lanes) + c // _lanes)
        sent = ok[:, None] & (c < F)
        values = tl.clamp(values, -_limit, _limit)
        bias = tl.clamp(bias, -_limit, _limit)
        if _ptx:
            tl.inline_asm_elementwise(
                _add, "=r,l,f,r", [spot.to(tl.int64), values, sent.to(tl.int32)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
            whole = tl.inline_asm_elementwise(
                _round, "=r,f", [bias], dtype=tl.int32, is_pure=True, pack=1
            ).to(tl.int64)
        else:
            steps = tl.floor(values.to(tl.float64) + 0.5).to(tl.int64)
            tl.atomic_add(spot, steps, mask=sent, sem="relaxed")
            whole = tl.floor(bias.to(tl.float64) + 0.5).to(tl.int64)
        tl.atomic_add(bias_sums + row, whole, mask=ok, sem="relaxed")

    @triton.jit(do_not_specialize=["size", "triples"])
    def learn_kernel(  # type: ignore[no-untyped-def]
        size, rows, packed, vectors, factors, biases, sums, bias_sums, spare, triples,
        rate, reg_user, reg_i, reg_j, reg_b, F: tl.constexpr, W: tl.constexpr, U: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * U + tl.arange(0, U)
        inside = at < size
        c = tl.arange(0, W)[None, :]
        row = tl.load(rows + at, mask=inside, other=0)
        home = vectors + row[:, None] * F + c
        held = inside[:, None] & (c < F)
        p = tl.load(home, mask=held, other=0.0, eviction_policy="evict_first")
        word = tl.load(packed + at, mask=inside, other=-1, eviction_policy="evict_first")
        active = word != -1
        for t in range(triples):
            i = tl.where(active, word >> 32, 0)
            j = tl.where(active, word & 0x7FFFFFFF, 0)
            leaves = active & (((word >> 31) & 1) != 0)
            more = inside & (t + 1 < triples)
            spot = packed + (t + 1) * size + at
            word = tl.load(spot, mask=more, other=-1, eviction_policy="evict_first")
            q_i = tl.load(factors + i[:, None] * W + c, eviction_policy="evict_last")
            q_j = tl.load(factors + j[:, None] * W + c, eviction_policy="evict_last")
            b_i, b_j = tl.load(biases + i), tl.load(biases + j)
            gap = q_i - q_j
            s = 1.0 / (1.0 + tl.exp(tl.sum(p * gap, 1) + (b_i - b_j)))
            pull_bias = s * _scale
            pull = pull_bias[:, None] * p
            down, down_bias = -pull - reg_j * q_j, -pull_bias - reg_b * b_j
            up, up_bias = pull - reg_i * q_i, pull_bias - reg_b * b_i
            _send(sums, bias_sums, spare, j, c, down, down_bias, active, F, W)
            _send(sums, bias_sums, spare, i, c, up, up_bias, leaves, F, W)
            p += rate * (s[:, None] * gap - reg_user * p)
        tl.store(home, p, mask=held & active[:, None], eviction_policy="evict_first")


def draw(
    cohort: ResidentCohort,
    n_items: int,
    rows: Tensor,
    keys: Tensor,
    packed: Tensor,
    counts: Tensor,
) -> None:
    devices, block = 32, 4
    allowed = cohort.takes_part if cohort.allowed is None else cohort.allowed
    draw_kernel[(-(-len(rows) // devices),)](
        len(rows), rows, cohort.users, cohort.indptr, cohort.items, cohort.takes_part,
        cohort.threshold, allowed, keys, packed, counts[0], counts[1], n_items, len(packed),
        cohort.allowed is not None, devices, block, num_warps=2,
    )  # fmt: skip


def learn(
    step: PairStep, tables: Tables, cohort: ResidentCohort, rows: Tensor, packed: Tensor
) -> None:
    size, width = cohort.vectors.shape[1], tables.factors.shape[1]
    devices = max(1, TILE // width)
    learn_kernel[(-(-len(rows) // devices),)](
        len(rows), rows, packed, cohort.vectors, tables.factors, tables.bias, tables.sums,
        tables.bias_sums, tables.spare, len(packed), step.learning_rate, step.reg_user,
        step.reg_positive * GRID, step.reg_negative * GRID, step.reg_bias * GRID,
        size, width, devices, num_warps=1,
    )  # fmt: skip
