"""The stages of `pairwise.accelerated` as Triton kernels; where Triton is missing, constants alone.

A thread holds `LANES` columns of an item row, which is what a 16-byte read brings. Two neighbouring
columns are added to one 64-bit word of a row's sums; it says why that is exact.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sottovoce.core.messages import GRID, LIMIT
from sottovoce.rng import _M1, _M2, GAMMA

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.algorithms.pairwise.accelerated import ResidentCohort, Tables
    from sottovoce.algorithms.pairwise.factors import PairStep

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU builds of torch come without it
    triton = None

LANES = 4
ROW_BITS = 26
"""Of `Tables.spare`: the first of an item's rows of sums; above them, the logarithm of how many it
has. Neighbouring warps use them in turn."""
LOAD_SHIFT, UNIT, MOST_LOAD = 36, 2.0**20, 1000
"""The word of a row's bias has above `LOAD_SHIFT` bits the row's load: for every update a bound on
its numbers, in units of the grid's steps. Up to this load, sums are exact."""
MOST_UNITS = 31
"""A bound of one update, beyond which nothing is added in halves of words. With at most 2**23
updates a chunk, no load passes 28 bits."""
BIAS_BITS = 25
"""Of a bias's update: the load then keeps their sum below 2**35."""
TILE = 128
"""Columns times devices per warp in the learning stage. Not below 32 · `LANES`: Triton would give
one column to two threads, and the assembly in `_send` would add it twice."""
AVAILABLE = triton is not None

if triton is not None:
    _gamma = tl.constexpr(int(GAMMA))
    _m1, _m2 = tl.constexpr(int(_M1)), tl.constexpr(int(_M2))
    _lanes, _row_bits = tl.constexpr(LANES), tl.constexpr(ROW_BITS)
    _row_mask = tl.constexpr((1 << ROW_BITS) - 1)
    _half_load = tl.constexpr(1 << (LOAD_SHIFT - 1))
    _beyond, _most_load = tl.constexpr(1 << 40), tl.constexpr(MOST_LOAD)
    _scale, _limit = tl.constexpr(float(GRID)), tl.constexpr(float(LIMIT * GRID))
    _load, _unit = tl.constexpr(LOAD_SHIFT), tl.constexpr(UNIT)
    _units, _most_bias = tl.constexpr(MOST_UNITS), tl.constexpr(2.0**BIAS_BITS)
    _ptx = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
    _round = tl.constexpr("cvt.rni.s32.f32 $0, $1;")
    _red = tl.constexpr(
        "{ .reg .pred sent; setp.ne.s32 sent, $3, 0;"
        " @sent red.relaxed.gpu.global.add.u64 [$1], $2;"
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

    @triton.jit
    def _count(  # type: ignore[no-untyped-def]
        packed, positives, negatives, size, triples, at, inside, U: tl.constexpr, B: tl.constexpr
    ):  # fmt: skip
        """Distinct rows that each device sends."""
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
        _count(packed, positives, negatives, size, triples, at, inside, U, B)

    @triton.jit
    def _whole(values):  # type: ignore[no-untyped-def]
        """Steps of the grid, rounded."""
        if _ptx:
            return tl.inline_asm_elementwise(
                _round, "=r,f", [values], dtype=tl.int32, is_pure=True, pack=1
            ).to(tl.int64)
        return tl.floor(values.to(tl.float64) + 0.5).to(tl.int64)

    @triton.jit
    def _add(spot, words, sent):  # type: ignore[no-untyped-def]
        """The assembly keeps each thread's words where they are; through `tl.atomic_add` they would
        first change places among the threads."""
        if _ptx:
            tl.inline_asm_elementwise(
                _red, "=r,l,l,r", [spot.to(tl.int64), words, sent.to(tl.int32)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.atomic_add(spot, words, mask=sent, sem="relaxed")

    @triton.jit
    def _send(  # type: ignore[no-untyped-def]
        sums, bias_sums, spare, item, c, values, bias, load, ok,
        F: tl.constexpr, W: tl.constexpr, U: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        """Round to the grid and add: each number to a word of its own where `WIDE`, else two."""
        values = tl.clamp(values, -_limit, _limit)
        bias = _whole(tl.clamp(bias, -_limit, _limit))
        if WIDE:
            spot = item[:, None] * W + ((c % _lanes) * (W // _lanes) + c // _lanes)
            _add(sums + spot, _whole(values), ok[:, None] & (c < F))
            tl.atomic_add(bias_sums + item, bias, mask=ok, sem="relaxed")
        else:
            where = tl.load(spare + item)
            copies = (tl.full(where.shape, 1, tl.int32) << (where >> _row_bits)) - 1
            row = (where & _row_mask) + (tl.program_id(0) & copies)
            even, odd = tl.split(tl.reshape(values, [U, W // 2, 2]))
            h = tl.arange(0, W // 2)[None, :]
            spot = row[:, None] * (W // 2) + ((h % 2) * (W // 4) + h // 2)
            word = _whole(even) + (_whole(odd) << 32)
            _add(sums + spot, word, ok[:, None] & (2 * h < F))
            tl.atomic_add(bias_sums + row, bias + (load << _load), mask=ok, sem="relaxed")

    @triton.jit(do_not_specialize=["size", "stride", "triples"])
    def learn_kernel(  # type: ignore[no-untyped-def]
        size, stride, rows, packed, vectors, factors, biases, sums, bias_sums, spare, load_of,
        triples, rate, reg_user, reg_i, reg_j, reg_b, reg_most,
        F: tl.constexpr, W: tl.constexpr, U: tl.constexpr, WIDE: tl.constexpr,
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
        over = tl.zeros([U], tl.int32)
        for t in range(triples):
            i = tl.where(active, word >> 32, 0)
            j = tl.where(active, word & 0x7FFFFFFF, 0)
            leaves = active & (((word >> 31) & 1) != 0)
            more = inside & (t + 1 < triples)
            spot = packed + (t + 1) * stride + at
            word = tl.load(spot, mask=more, other=-1, eviction_policy="evict_first")
            q_i = tl.load(factors + i[:, None] * W + c, eviction_policy="evict_last")
            q_j = tl.load(factors + j[:, None] * W + c, eviction_policy="evict_last")
            b_i, b_j = tl.load(biases + i), tl.load(biases + j)
            gap = q_i - q_j
            s = 1.0 / (1.0 + tl.exp(tl.sum(p * gap, 1) + (b_i - b_j)))
            pull_bias = s * _scale
            pull = pull_bias[:, None] * p
            bound = pull_bias * tl.max(tl.abs(p), 1) + reg_most
            # What is not a number is beyond, too.
            over += (active & ((bound < (_units - 1.0) * _unit) == 0)).to(tl.int32)
            load = tl.minimum(bound / _unit, _units - 1.0).to(tl.int64) + 1
            down, down_bias = -pull - reg_j * q_j, -pull_bias - reg_b * b_j
            up, up_bias = pull - reg_i * q_i, pull_bias - reg_b * b_i
            _send(sums, bias_sums, spare, j, c, down, down_bias, load, active, F, W, U, WIDE)
            _send(sums, bias_sums, spare, i, c, up, up_bias, load, leaves, F, W, U, WIDE)
            p += rate * (s[:, None] * gap - reg_user * p)
        if not WIDE:
            wild = tl.full([U], _beyond, tl.int64)
            tl.store(load_of + tl.zeros_like(at), wild, mask=over > 0)
        keep = held & active[:, None]
        tl.store(home, p, mask=keep, eviction_policy="evict_first")

    @triton.jit(do_not_specialize=["n_rows"])
    def load_kernel(bias_sums, load_of, n_rows, R: tl.constexpr):  # type: ignore[no-untyped-def]
        """The largest load of any row."""
        r = tl.program_id(0) * R + tl.arange(0, R)
        word = tl.load(bias_sums + r, mask=r < n_rows, other=0)
        tl.atomic_max(load_of, tl.max((word + _half_load) >> _load), sem="relaxed")

    @triton.jit(do_not_specialize=["n_rows"])
    def gather_kernel(  # type: ignore[no-untyped-def]
        sums, bias_sums, owner, totals, bias_totals, load_of, n_rows,
        W: tl.constexpr, R: tl.constexpr,
    ):  # fmt: skip
        """totals += the rows of sums, taken apart, if no load is too large; these start again at 0
        either way."""
        r = tl.program_id(0) * R + tl.arange(0, R)
        good = tl.load(load_of) <= _most_load
        inside = r < n_rows
        item = tl.load(owner + r, mask=inside, other=0)
        h = tl.arange(0, W // 2)[None, :]
        spot = sums + r[:, None].to(tl.int64) * (W // 2) + ((h % 2) * (W // 4) + h // 2)
        mask = inside[:, None] & (h < W)
        word = tl.load(spot, mask=mask, other=0)
        low = word.to(tl.int32).to(tl.int64)
        high = (word - low) >> 32
        there = item[:, None].to(tl.int64) * W + (2 * h % _lanes) * (W // _lanes) + 2 * h // _lanes
        tl.atomic_add(totals + there, low, mask=mask & (low != 0) & good, sem="relaxed")
        there += W // _lanes
        tl.atomic_add(totals + there, high, mask=mask & (high != 0) & good, sem="relaxed")
        tl.store(spot, tl.zeros_like(word), mask=mask)
        word = tl.load(bias_sums + r, mask=inside, other=0)
        load = (word + _half_load) >> _load
        bias = word - (load << _load)
        tl.atomic_add(bias_totals + item, bias, mask=inside & (bias != 0) & good, sem="relaxed")
        tl.store(bias_sums + r, tl.zeros_like(word), mask=inside)


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
    step: PairStep,
    tables: Tables,
    cohort: ResidentCohort,
    rows: Tensor,
    packed: Tensor,
    load: Tensor | None = None,
    largest: float = 0.0,
) -> None:
    """Sums go to `tables.sums`; or, where there is room for the load, first two to a word of
    `tables.halves`, and on from there if the load says so. `largest` is a factor's."""
    size, width = cohort.vectors.shape[1], tables.factors.shape[1]
    devices = max(1, TILE // width)
    sums = (tables.sums, tables.bias_sums)
    if load is not None:
        sums = (tables.halves, tables.bias_halves)
    most = GRID * max(step.reg_positive, step.reg_negative) * largest
    learn_kernel[(-(-len(rows) // devices),)](
        len(rows), packed.stride(0), rows, packed, cohort.vectors, tables.factors,
        tables.bias, *sums, tables.spare, tables.bias_sums if load is None else load, len(packed),
        step.learning_rate, step.reg_user,
        step.reg_positive * GRID, step.reg_negative * GRID, step.reg_bias * GRID, most,
        size, width, devices, load is None, num_warps=1,
    )  # fmt: skip
    if load is None:
        return
    n_rows, block = len(tables.owner), 32
    load_kernel[(-(-n_rows // 1024),)](tables.bias_halves, load, n_rows, 1024, num_warps=4)
    gather_kernel[(-(-n_rows // block),)](
        tables.halves, tables.bias_halves, tables.owner, tables.sums, tables.bias_sums, load,
        n_rows, width, block, num_warps=4,
    )  # fmt: skip
