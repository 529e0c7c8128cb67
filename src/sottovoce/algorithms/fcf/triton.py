"""The two long loops of `fcf_torch` as Triton kernels, each number's steps in the same order.

Multiplications and additions are kept apart (`enable_fp_fusion=False`): fused, they would round
once where the compiled kernels of the CPU round twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.core.messages import GRID, LIMIT

if TYPE_CHECKING:
    from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU builds of torch come without it
    triton = None

AVAILABLE = triton is not None
_DEVICES_PER_PROGRAM = 1024
"""In `add`: more of them are fewer additions to the same sums, fewer are more programs at once."""

if triton is not None:
    _limit = tl.constexpr(float(LIMIT * GRID))
    _round = tl.constexpr("cvt.rni.s32.f32 $0, $1;")

    @triton.jit(do_not_specialize=["n", "n_items"])
    def weigh_kernel(  # type: ignore[no-untyped-def]
        vectors, columns, weights, n, n_items, factor,
        F: tl.constexpr, U: tl.constexpr, ITEMS: tl.constexpr,
    ):  # fmt: skip
        u = tl.program_id(1) * U + tl.arange(0, U)
        i = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
        dots = tl.zeros([U, ITEMS], tl.float32)
        for f in range(F):
            x = tl.load(vectors + u * F + f, mask=u < n, other=0.0)
            v = tl.load(columns + f * n_items + i, mask=i < n_items, other=0.0)
            dots += x[:, None] * v[None, :]
        spot = weights + u[:, None].to(tl.int64) * n_items + i[None, :]
        tl.store(spot, factor * dots, mask=(u < n)[:, None] & (i < n_items)[None, :])

    @triton.jit(do_not_specialize=["n", "n_items"])
    def add_kernel(  # type: ignore[no-untyped-def]
        weights, factors, sums, n, n_items,
        F: tl.constexpr, EACH: tl.constexpr, U: tl.constexpr, ITEMS: tl.constexpr,
    ):  # fmt: skip
        # Programs that read the same weights come next to each other, so that a cache has them.
        f = tl.program_id(0)
        i = tl.program_id(1) * ITEMS + tl.arange(0, ITEMS)
        total = tl.zeros([U, ITEMS], tl.int64)
        for first in range(0, EACH, U):
            u = tl.program_id(2) * EACH + first + tl.arange(0, U)
            spot = weights + u[:, None].to(tl.int64) * n_items + i[None, :]
            inside = (u < n)[:, None] & (i < n_items)[None, :]
            weight = tl.load(spot, mask=inside, other=0.0)
            factor = tl.load(factors + u * F + f, mask=u < n, other=0.0)
            value = tl.clamp(weight * factor[:, None], -_limit, _limit)
            total += tl.inline_asm_elementwise(
                _round, "=r,f", [value], dtype=tl.int32, is_pure=True, pack=1
            ).to(tl.int64)
        spot = sums + f * n_items + i
        tl.atomic_add(spot, tl.sum(total, 0), mask=i < n_items, sem="relaxed")


def weigh(vectors: Tensor, columns: Tensor, factor: float) -> Tensor:
    """factor · (x·v) of every device and item, [n, n_items]."""
    (n, size), n_items = vectors.shape, columns.shape[1]
    weights = vectors.new_empty((n, n_items))
    devices, items = 32, 128
    weigh_kernel[(-(-n_items // items), -(-n // devices))](
        vectors, columns, weights, n, n_items, factor, size, devices, items,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return weights


def add(weights: Tensor, factors: Tensor, sums: Tensor) -> None:
    """sums[f, i] += Σ_u weights[u, i] · factors[u, f], each product cut and rounded."""
    (n, n_items), size = weights.shape, factors.shape[1]
    each, devices, items = _DEVICES_PER_PROGRAM, 8, 256
    add_kernel[(size, -(-n_items // items), -(-n // each))](
        weights, factors, sums, n, n_items, size, each, devices, items,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
