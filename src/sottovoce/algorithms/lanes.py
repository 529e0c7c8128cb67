"""Whole rows of a table as values inside numba kernels, so that a kernel reads like its equations.

    p, q = load(vectors, u, width), load(model, i, width)     # rows of float32
    x = total(p * q)                                          # their inner product
    add_to(table, i, on_grid(s * p - reg * q))                # a row of int32, added to a table

A row is `width` numbers, a multiple of 16 known at compile time. It lives in vector registers; LLVM
cuts it to whatever the machine has. Three things follow that loops over arrays do not give:

- it is always vectorised, without run-time checks for overlapping arrays;
- every operation is elementwise and strict (IEEE single precision, no contraction, no
  reordering), and `total` adds in one written-down order, so results are the same bit for bit in
  every kernel and on every machine;
- nothing is allocated.

There are no bounds checks: callers hand over C-contiguous tables of the right width and row numbers
that are in range.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class Row(types.Type):  # type: ignore[misc]
    """`width` numbers of one kind, kept as chunks of 16."""

    def __init__(self, width: int, kind: str) -> None:
        self.width = width
        self.kind = kind
        super().__init__(name=f"Row({width}, {kind})")

    @property
    def chunks(self) -> int:
        return self.width // LANES

    @property
    def lane(self) -> Any:
        return _F32 if self.kind == "f4" else _I32

    def llvm(self) -> Any:
        return ir.ArrayType(ir.VectorType(self.lane, LANES), self.chunks)


@register_model(Row)
class _RowModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, row: Row) -> None:
        super().__init__(manager, row, row.llvm())


def _each(builder: Any, row: Row, make: Any) -> Any:
    """A row whose chunk c is make(c)."""
    value = ir.Constant(row.llvm(), ir.Undefined)
    for c in range(row.chunks):
        value = builder.insert_value(value, make(c), c)
    return value


def _splat(builder: Any, scalar: Any, lane: Any) -> Any:
    one = ir.VectorType(lane, LANES)
    first = builder.insert_element(ir.Constant(one, ir.Undefined), scalar, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(one, ir.Undefined), zeros)


# --- a ∘ b, for rows and for a number and a row --------------------------------------------------

_OPERATORS = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul"}


def _operation(op: Any, name: str) -> None:
    @infer_global(op)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            rows = [a for a in args if isinstance(a, Row)]
            if len(args) != 2 or not rows or any(r != rows[0] for r in rows):
                return None
            if any(not isinstance(a, Row) and a != types.float32 for a in args):
                return None
            return signature(rows[0], *args)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row = sig.return_type
        sides = [
            (lambda c, v=value: builder.extract_value(v, c))
            if isinstance(kind, Row)
            else (lambda c, v=_splat(builder, value, row.lane): v)
            for kind, value in zip(sig.args, args, strict=True)
        ]
        return _each(builder, row, lambda c: getattr(builder, name)(sides[0](c), sides[1](c)))

    lower_builtin(op, Row, Row)(lower)
    lower_builtin(op, types.Float, Row)(lower)
    lower_builtin(op, Row, types.Float)(lower)


for _op, _name in _OPERATORS.items():
    _operation(_op, _name)


# --- tables to rows and back ---------------------------------------------------------------------


def _pointer(context: Any, builder: Any, kind: Any, table: Any, start: Any, to: Any) -> Any:
    """The address of element `start` of a contiguous table, as a pointer to `to`."""
    data = context.make_array(kind)(context, builder, table).data
    return builder.bitcast(builder.gep(data, [start]), to.as_pointer())


@intrinsic(prefer_literal=True)
def load(typingctx, table, row, width):  # type: ignore[no-untyped-def]
    """Row `row` of a float32 or int32 table of this width."""
    kind = Row(width.literal_value, "f4" if table.dtype == types.float32 else "i4")

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = builder.mul(args[1], _I64(kind.width))
        whole = ir.VectorType(kind.lane, LANES)

        def chunk(c):  # type: ignore[no-untyped-def]
            at = builder.add(start, _I64(c * LANES))
            return builder.load(
                _pointer(context, builder, sig.args[0], args[0], at, whole), align=4
            )

        return _each(builder, kind, chunk)

    return kind(table, types.int64, width), lower


@intrinsic
def store(typingctx, table, row, values):  # type: ignore[no-untyped-def]
    """Writes row `row` of a table whose width is the row's."""

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = builder.mul(args[1], _I64(values.width))
        for c in range(values.chunks):
            at = builder.add(start, _I64(c * LANES))
            value = builder.extract_value(args[2], c)
            pointer = _pointer(context, builder, sig.args[0], args[0], at, value.type)
            builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return types.none(table, types.int64, values), lower


def _pieces(size: int, width: int) -> list[tuple[int, int, int]]:
    """(chunk, first column, columns in use) of a row of `size` numbers padded to `width`."""
    return [
        (c, c * LANES, max(0, min(LANES, size - c * LANES))) for c in range(width // LANES)
    ]


@intrinsic(prefer_literal=True)
def load_extended(typingctx, table, row, size, width):  # type: ignore[no-untyped-def]
    """Row `row` of a float32 table of width `size`, then a 1, then zeros up to `width`."""
    kind = Row(width.literal_value, "f4")
    n = size.literal_value

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = builder.mul(args[1], _I64(n))
        made = []
        for _, column, used in _pieces(n, kind.width):
            ending = [1.0 if column + lane == n else 0.0 for lane in range(LANES)]
            ends = ir.Constant(ir.VectorType(_F32, LANES), ending)
            if used == 0:
                made.append(ends)
                continue
            some = ir.VectorType(_F32, used)
            at = builder.add(start, _I64(column))
            part = builder.load(_pointer(context, builder, sig.args[0], args[0], at, some), align=4)
            if used < LANES:
                spread = [lane if lane < used else 0 for lane in range(LANES)]
                part = _shuffled(builder, part, spread)
                choose = [lane if lane < used else LANES + lane for lane in range(LANES)]
                part = builder.shuffle_vector(
                    part, ends, ir.Constant(ir.VectorType(_I32, LANES), choose)
                )
            made.append(part)
        return _each(builder, kind, lambda c: made[c])

    return kind(table, types.int64, size, width), lower


@intrinsic(prefer_literal=True)
def store_first(typingctx, table, row, size, values):  # type: ignore[no-untyped-def]
    """Writes the first `size` numbers of a row to row `row` of a table of that width."""
    n = size.literal_value

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = builder.mul(args[1], _I64(n))
        for c, column, used in _pieces(n, values.width):
            if used == 0:
                continue
            value = builder.extract_value(args[3], c)
            if used < LANES:
                value = _shuffled(builder, value, list(range(used)))
            at = builder.add(start, _I64(column))
            pointer = _pointer(context, builder, sig.args[0], args[0], at, value.type)
            builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return types.none(table, types.int64, size, values), lower


def _shuffled(builder: Any, vector: Any, lanes: list[int]) -> Any:
    pick = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), pick)


@intrinsic
def prefetch(typingctx, table, row):  # type: ignore[no-untyped-def]
    """Asks for the first cache line of a row, ahead of its use. Has no other effect."""

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        array = context.make_array(sig.args[0])(context, builder, args[0])
        width = cgutils.unpack_tuple(builder, array.shape)[-1] if table.ndim == 2 else _I64(1)
        byte = ir.IntType(8).as_pointer()
        pointer = builder.bitcast(builder.gep(array.data, [builder.mul(args[1], width)]), byte)
        ask = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32]), "llvm.prefetch"
        )
        builder.call(ask, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.none(table, types.int64), lower


# --- sums, and the grid --------------------------------------------------------------------------


@intrinsic
def total(typingctx, values):  # type: ignore[no-untyped-def]
    """The sum of a row, in a fixed order: chunk by chunk, then halves of the 16 lanes."""

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        left = builder.extract_value(args[0], 0)
        for c in range(1, values.chunks):
            left = builder.fadd(left, builder.extract_value(args[0], c))
        half = LANES // 2
        while half:
            low = _shuffled(builder, left, list(range(half)))
            high = _shuffled(builder, left, list(range(half, 2 * half)))
            left = builder.fadd(low, high)
            half //= 2
        return builder.extract_element(left, _I32(0))

    return types.float32(values), lower


@intrinsic
def rounded(typingctx, values, limit):  # type: ignore[no-untyped-def]
    """A row of int32: the nearest whole numbers (ties to even) after clamping to ±limit, which must
    fit. What is not a number becomes −limit."""
    kind = Row(values.width, "i4")

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        whole = ir.VectorType(_F32, LANES)
        most = _splat(builder, args[1], _F32)
        least = _splat(builder, builder.fneg(args[1]), _F32)
        nearest = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(whole, [whole]), f"llvm.rint.v{LANES}f32"
        )

        def chunk(c):  # type: ignore[no-untyped-def]
            value = builder.extract_value(args[0], c)
            value = builder.select(builder.fcmp_ordered(">", value, least), value, least)
            value = builder.select(builder.fcmp_ordered("<", value, most), value, most)
            return builder.fptosi(builder.call(nearest, [value]), ir.VectorType(_I32, LANES))

        return _each(builder, kind, chunk)

    return kind(values, types.float32), lower


@intrinsic
def as_float(typingctx, values):  # type: ignore[no-untyped-def]
    """A row of int32 as float32, each number rounded once."""
    kind = Row(values.width, "f4")

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        whole = ir.VectorType(_F32, LANES)
        return _each(
            builder, kind, lambda c: builder.sitofp(builder.extract_value(args[0], c), whole)
        )

    return kind(values), lower


@intrinsic
def add_to(typingctx, table, row, values):  # type: ignore[no-untyped-def]
    """Adds a row to row `row` of an int32 table, modulo 2**32. True where any number overflowed."""

    def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start = builder.mul(args[1], _I64(values.width))
        whole = ir.VectorType(_I32, LANES)
        spilt = None
        for c in range(values.chunks):
            at = builder.add(start, _I64(c * LANES))
            pointer = _pointer(context, builder, sig.args[0], args[0], at, whole)
            value = builder.extract_value(args[2], c)
            old = builder.load(pointer, align=4)
            new = builder.add(old, value)
            builder.store(new, pointer, align=4)
            # Overflow: the sum's sign differs from that of both addends.
            signs = builder.and_(builder.xor(old, new), builder.xor(value, new))
            spilt = signs if spilt is None else builder.or_(spilt, signs)
        lanes = builder.icmp_signed("<", spilt, ir.Constant(whole, [0] * LANES))
        mask = builder.bitcast(lanes, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", mask, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(table, types.int64, values), lower
