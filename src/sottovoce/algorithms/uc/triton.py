"""The items' side of a local step as Triton kernels: towers, scores, slopes and momentum in four
passes over the items' numbers, where torch takes some forty. `training` defines what they must do;
against it they differ by the rounding of single precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sottovoce.algorithms.uc.networks import SLOPE

if TYPE_CHECKING:
    from torch import Tensor

    from sottovoce.algorithms.uc.networks import Recommender, Weights

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU builds of torch come without it
    triton = None

_ROWS = 32
"""Items in a program: as many as registers hold."""
_SMALLEST = 1e-12
"""What `torch.nn.functional.normalize` divides by at least."""

if triton is not None:
    from sottovoce.algorithms.pairwise.triton import _gamma, _mix_word

    _slope, _smallest = tl.constexpr(SLOPE), tl.constexpr(_SMALLEST)

    @triton.jit
    def _kept(keys, client, row, first, share, scale, ROWS: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
        """[ROWS, D]: what dropout leaves of the units, by the bytes of the client's words."""
        key = tl.load(keys + client).to(tl.uint64, bitcast=True)
        number = first + (row[:, None] + 1) * (D // 8) + tl.arange(0, D // 8)[None, :] + 1
        word = _mix_word(key + number.to(tl.uint64) * _gamma)
        bits = (8 * tl.arange(0, 8)).to(tl.uint64)
        byte = (word[:, :, None] >> bits[None, None, :]) & 255
        return tl.where(tl.reshape(byte, [ROWS, D]).to(tl.int32) >= share, scale, 0.0)

    @triton.jit
    def _units(  # type: ignore[no-untyped-def]
        units, bias, keys, client, row, spot, inside, first, share, scale,
        ROWS: tl.constexpr, D: tl.constexpr, DROPS: tl.constexpr,
    ):  # fmt: skip
        """Of a tower: its units of length 1, their length, and what goes back through them."""
        column = tl.arange(0, D)
        sums = tl.load(units + spot, mask=inside, other=0.0)
        sums += tl.load(bias + client * D + column)[None, :]
        through = tl.where(sums > 0, 1.0, _slope)
        if DROPS:
            through *= _kept(keys, client, row, first, share, scale, ROWS, D)
        active = sums * through
        length = tl.sqrt(tl.sum(active * active, axis=1))
        return active / tl.maximum(length, _smallest)[:, None], length, through

    @triton.jit(do_not_specialize=["first"])
    def score_kernel(  # type: ignore[no-untyped-def]
        rows, units, bias, user, keys, scores, n, first, share, scale,
        ROWS: tl.constexpr, D: tl.constexpr, TOWER: tl.constexpr, DROPS: tl.constexpr,
    ):  # fmt: skip
        client, column = tl.program_id(0), tl.arange(0, D)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        inside = (row < n)[:, None]
        spot = (client.to(tl.int64) * n + row)[:, None] * D + column[None, :]
        width = 2 * D if TOWER else D
        own = tl.load(user + client * width + column)[None, :]
        told = tl.sum(tl.load(rows + spot, mask=inside, other=0.0) * own, axis=1)
        if TOWER:
            unit, _, _ = _units(
                units, bias, keys, client, row, spot, inside, first, share, scale, ROWS, D, DROPS
            )
            told += tl.sum(unit * tl.load(user + client * width + D + column)[None, :], axis=1)
        tl.store(scores + client.to(tl.int64) * n + row, told, mask=row < n)

    @triton.jit(do_not_specialize=["first"])
    def slope_kernel(  # type: ignore[no-untyped-def]
        rows, units, bias, user, keys, pulls, slopes, parts, n, first, share, scale, reg,
        ROWS: tl.constexpr, D: tl.constexpr, TOWER: tl.constexpr, DROPS: tl.constexpr,
    ):  # fmt: skip
        """Slopes of items but for what comes through their tower, those of its units in place of
        these, and of each block of items its part of the slopes of the user and the bias."""
        client, block, column = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < n)[:, None]
        spot = (client.to(tl.int64) * n + row)[:, None] * D + column[None, :]
        width = 2 * D if TOWER else D
        pull = tl.load(pulls + client.to(tl.int64) * n + row, mask=row < n, other=0.0)[:, None]
        own = tl.load(user + client * width + column)[None, :]
        x = tl.load(rows + spot, mask=inside, other=0.0)
        tl.store(slopes + spot, pull * own + reg * x, mask=inside)
        part = parts + (client.to(tl.int64) * tl.num_programs(1) + block) * 3 * D + column
        tl.store(part, tl.sum(pull * x, axis=0))
        if TOWER:
            unit, length, through = _units(
                units, bias, keys, client, row, spot, inside, first, share, scale, ROWS, D, DROPS
            )
            slope = pull * tl.load(user + client * width + D + column)[None, :] + reg * unit
            along = tl.where(length > _smallest, tl.sum(unit * slope, axis=1), 0.0)[:, None]
            slope = (slope - unit * along) / tl.maximum(length, _smallest)[:, None] * through
            slope = tl.where(inside, slope, 0.0)
            tl.store(units + spot, slope, mask=inside)
            tl.store(part + D, tl.sum(pull * unit, axis=0))
            tl.store(part + 2 * D, tl.sum(slope, axis=0))

    @triton.jit(do_not_specialize=["n"])
    def move_kernel(items, speed, there, n, momentum, rate, ROWS: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        live = (tl.load(there + row, mask=row < n, other=-1) >= 0)[:, None]
        spot = row[:, None] * D + tl.arange(0, D)[None, :]
        fast = momentum * tl.load(speed + spot, mask=live, other=0.0)
        x = tl.load(items + spot, mask=live, other=0.0)
        tl.store(speed + spot, fast, mask=live)
        tl.store(items + spot, x - rate * fast, mask=live)


def usable(recommender: Recommender, items: Tensor, momentum: float) -> bool:
    """Whether the kernels are for such a step."""
    size = recommender.size
    fits = 16 <= size <= 256 and size & (size - 1) == 0 and momentum > 0
    return triton is not None and items.is_cuda and recommender.pairwise and fits


class _ItemLoss(torch.autograd.Function):
    """A number whose slopes are those of the loss of items; its value says nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        user: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        keys: Tensor,
        dropout: tuple[int, int],
        pairs: int,
        reg: float,
    ) -> Tensor:
        """`rows` [C, B, d], liked ones first, and h_u [C, 1, width]; `dropout` is how much of 256
        is left out, and the number of the step."""
        n_clients, n, size = rows.shape
        share, step = dropout
        first = step * (n + 1) * (size // 8)
        blocks = -(-n // _ROWS)
        told = user.contiguous()
        units = rows if weight is None else rows @ weight.mT
        edge = told if bias is None else bias.contiguous()
        shape = {"ROWS": _ROWS, "D": size, "TOWER": weight is not None, "DROPS": share > 0}
        drops = first, share, 256 / (256 - share)
        scores = rows.new_empty((n_clients, n))
        grid = (n_clients, blocks)
        score_kernel[grid](rows, units, edge, told, keys, scores, n, *drops, **shape)
        margin = scores[:, :pairs, None] - scores[:, pairs:].view(n_clients, pairs, -1)
        pull = 1.0 / (1.0 + margin.exp()) / margin[0].numel()
        pulls = torch.cat([-pull.sum(dim=2), pull.flatten(1)], dim=1)
        slopes = torch.empty_like(rows)
        parts = rows.new_empty((n_clients, blocks, 3, size))
        slope_kernel[grid](
            rows, units, edge, told, keys, pulls, slopes, parts, n, *drops, reg / pairs, **shape
        )
        if weight is None:
            ctx.slopes = slopes, parts[:, :, 0].sum(dim=1)[:, None], None, None
        else:
            sums = parts.sum(dim=1)
            torch.baddbmm(slopes, units, weight, out=slopes)
            ctx.slopes = slopes, sums[:, :2].flatten(1)[:, None], units.mT @ rows, sums[:, 2]
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        slopes, ctx.slopes = ctx.slopes, None
        return (*slopes, None, None, None, None)


def item_loss(
    rows: Tensor,
    user: Tensor,
    towers: Weights,
    keys: Tensor,
    dropout: tuple[int, int],
    pairs: int,
    reg: float,
) -> Tensor:
    """In its slopes what `training` takes for the loss of the items in `rows` [C, B, d]."""
    given = towers.get("item"), towers.get("item_bias")
    found: Tensor = _ItemLoss.apply(rows, user, *given, keys, dropout, pairs, reg)  # type: ignore[no-untyped-call]
    return found


def move(
    items: Tensor,
    speed: Tensor,
    slopes: Tensor,
    place: Tensor,
    there: Tensor,
    pace: tuple[float, float],
) -> None:
    """speed = momentum · speed + slopes at `place`, and items move against it; rows that `there`
    numbers below 0 stay. `pace` is momentum and rate."""
    momentum, rate = pace
    speed.index_add_(0, place, slopes, alpha=1.0 / momentum)
    n, size = items.shape
    grid = (-(-n // _ROWS),)
    move_kernel[grid](items, speed, there, n, momentum, rate, ROWS=_ROWS, D=size)
