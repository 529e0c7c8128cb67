"""Randomised reports as Triton kernels: a device's coins, and what its reports add to the counts.

Multiplications and additions are kept apart (`enable_fp_fusion=False`) and come in the order of
`closed_form.kernels.reporter`, so that every report is the CPU's, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.rng import _M1, _M2, GAMMA

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.algorithms.fmf.accelerated import ReportRound

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU builds of torch come without it
    triton = None

AVAILABLE = triton is not None

if triton is not None:
    _gamma = tl.constexpr(int(GAMMA))
    _m1, _m2 = tl.constexpr(int(_M1)), tl.constexpr(int(_M2))
    _rint = tl.constexpr("cvt.rni.s64.f64 $0, $1;")

    @triton.jit
    def _mix(z):  # type: ignore[no-untyped-def]
        z = (z ^ (z >> 30)) * _m1
        z = (z ^ (z >> 27)) * _m2
        return z ^ (z >> 31)

    @triton.jit
    def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]
        a = a + b
        d = d ^ a
        d = (d << 16) | (d >> 16)
        c = c + d
        b = b ^ c
        b = (b << 12) | (b >> 20)
        a = a + b
        d = d ^ a
        d = (d << 8) | (d >> 24)
        c = c + d
        b = b ^ c
        b = (b << 7) | (b >> 25)
        return a, b, c, d

    @triton.jit(do_not_specialize=["size", "low", "high"])
    def coins_kernel(noise, rows, coins, size, low, high, U: tl.constexpr):  # type: ignore[no-untyped-def]
        """coins[16 b + w, n]: word w of block b of ChaCha20 under device n's key."""
        n = tl.program_id(0) * U + tl.arange(0, U)
        inside = n < size
        block = tl.program_id(1)
        key = noise + tl.load(rows + n, mask=inside, other=0) * 8
        k0 = tl.load(key, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k1 = tl.load(key + 1, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k2 = tl.load(key + 2, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k3 = tl.load(key + 3, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k4 = tl.load(key + 4, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k5 = tl.load(key + 5, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k6 = tl.load(key + 6, mask=inside, other=0).to(tl.uint32, bitcast=True)
        k7 = tl.load(key + 7, mask=inside, other=0).to(tl.uint32, bitcast=True)
        zero = tl.zeros([U], tl.uint32)
        c0, c1 = zero + 0x61707865, zero + 0x3320646E
        c2, c3 = zero + 0x79622D32, zero + 0x6B206574
        n0, n1 = zero + block.to(tl.uint32), zero + low.to(tl.uint32)
        n2, n3 = zero + high.to(tl.uint32), zero
        a0, a1, a2, a3 = c0, c1, c2, c3
        b0, b1, b2, b3 = k0, k1, k2, k3
        e0, e1, e2, e3 = k4, k5, k6, k7
        d0, d1, d2, d3 = n0, n1, n2, n3
        for _ in range(10):
            a0, b0, e0, d0 = _quarter(a0, b0, e0, d0)
            a1, b1, e1, d1 = _quarter(a1, b1, e1, d1)
            a2, b2, e2, d2 = _quarter(a2, b2, e2, d2)
            a3, b3, e3, d3 = _quarter(a3, b3, e3, d3)
            a0, b1, e2, d3 = _quarter(a0, b1, e2, d3)
            a1, b2, e3, d0 = _quarter(a1, b2, e3, d0)
            a2, b3, e0, d1 = _quarter(a2, b3, e0, d1)
            a3, b0, e1, d2 = _quarter(a3, b0, e1, d2)
        out = coins + block.to(tl.int64) * 16 * size + n
        tl.store(out, (a0 + c0).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + size, (a1 + c1).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 2 * size, (a2 + c2).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 3 * size, (a3 + c3).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 4 * size, (b0 + k0).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 5 * size, (b1 + k1).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 6 * size, (b2 + k2).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 7 * size, (b3 + k3).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 8 * size, (e0 + k4).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 9 * size, (e1 + k5).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 10 * size, (e2 + k6).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 11 * size, (e3 + k7).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 12 * size, (d0 + n0).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 13 * size, (d1 + n1).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 14 * size, (d2 + n2).to(tl.int32, bitcast=True), mask=inside)
        tl.store(out + 15 * size, (d3 + n3).to(tl.int32, bitcast=True), mask=inside)

    @triton.jit(do_not_specialize=["size", "n_items", "reports"])
    def count_kernel(  # type: ignore[no-untyped-def]
        size, rows, users, tiers, lows, indptr, history, vectors, items, key, coins, sums, bad,
        n_items, reports, numbers,
        F: tl.constexpr, W: tl.constexpr, U: tl.constexpr, B: tl.constexpr,
    ):  # fmt: skip
        """sums[tier, coordinate] += 1 or -1 for every report. `numbers` are positive, other and
        scale, in double precision."""
        at = tl.program_id(0) * U + tl.arange(0, U)
        inside = at < size
        row = tl.load(rows + at, mask=inside, other=0)
        number = (tl.load(users + row).to(tl.uint64) + 1) * _gamma
        own = _mix(tl.load(key).to(tl.uint64, bitcast=True) + number)[None, :]
        tier = tl.load(tiers + row).to(tl.int64)
        low = tl.load(lows + tier)[None, :]
        wide = (4294967296 - low - low).to(tl.float64)
        start = tl.load(indptr + row)
        count = (tl.load(indptr + row + 1) - start).to(tl.int32)[None, :]
        start = start[None, :]
        many = n_items.to(tl.uint64) * F
        positive, other, scale = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
        where = sums + (tier * n_items * F)[None, :]
        for first in range(0, reports, B):
            j = (first + tl.arange(0, B))[:, None]
            live = inside[None, :] & (j < reports)
            word = _mix(own + (j.to(tl.uint64) + 1) * _gamma)
            up, down = word >> 32, word & 0xFFFFFFFF
            coordinate = ((up * many + ((down * many) >> 32)) >> 32).to(tl.int64)
            i = coordinate // F
            f = coordinate - i * F
            from_, to = tl.zeros([B, U], tl.int32), tl.zeros([B, U], tl.int32) + count
            span = tl.max(count)
            while span > 0:
                middle = (from_ + to) >> 1
                searching = live & (from_ < to)
                less = tl.load(history + start + middle, mask=searching, other=0) < i
                from_ = tl.where(searching & less, middle + 1, from_)
                to = tl.where(searching & (less == 0), middle, to)
                span = span >> 1
            within = live & (from_ < count)
            mine = within & (tl.load(history + start + from_, mask=within, other=-1) == i)
            dot = tl.zeros([B, U], tl.float64)
            x = tl.zeros([B, U], tl.float64)
            for a in tl.static_range(F):
                mine_a = tl.load(vectors + row * F + a).to(tl.float64)[None, :]
                v = tl.load(items + i * W + a, mask=live, other=0.0).to(tl.float64)
                dot = dot + mine_a * v
                x = tl.where(f == a, mine_a, x)
            weight = tl.where(mine, positive * (1.0 - dot), other * (0.0 - dot))
            y = scale * (-2.0 * weight * x)
            wild = live & ((tl.abs(y) < float("inf")) == 0)
            tl.store(bad + tl.zeros([B, U], tl.int32), tl.full([B, U], 1, tl.int32), mask=wild)
            y = tl.minimum(1.0, tl.maximum(-1.0, y))
            limit = low + tl.inline_asm_elementwise(
                _rint, "=l,d", [(y + 1.0) * 0.5 * wide], dtype=tl.int64, is_pure=True, pack=1
            )
            coin = tl.load(coins + j.to(tl.int64) * size + at[None, :], mask=live, other=0)
            coin = coin.to(tl.uint32, bitcast=True).to(tl.int64)
            step = tl.where(coin < limit, 1, -1).to(tl.int64)
            tl.atomic_add(where + coordinate, step, mask=live, sem="relaxed")


def make_coins(noise: Tensor, rows: Tensor, round: int, blocks: int) -> Tensor:
    """[16 · blocks, len(rows)]: the coins of `core.one_bit`, as 32 bits with a sign."""
    size, devices = len(rows), 128
    coins = noise.new_empty((16 * blocks, size))
    words = [_signed(word) for word in (round & 0xFFFFFFFF, round >> 32)]
    coins_kernel[(-(-size // devices), blocks)](
        noise, rows, coins, size, *words, devices, num_warps=4
    )
    return coins


def count(asked: ReportRound, rows: Tensor, coins: Tensor, sums: Tensor, bad: Tensor) -> None:
    """Every report of these devices, added to the counts."""
    n_items, size = asked.n_items, asked.vectors.shape[1]
    devices, block = 32, 4
    count_kernel[(-(-len(rows) // devices),)](
        len(rows), rows, asked.users, asked.tiers, asked.lows, asked.indptr, asked.history,
        asked.vectors, asked.items, asked.key, coins, sums, bad, n_items, asked.reports,
        asked.numbers, size, asked.items.shape[1], devices, block,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
