"""`rows.py` for the compiler: whole rows of a table as values inside numba kernels.

    p = load_extended(vectors, u, F)              # (p, 1): a row of float32
    q_i, q_j = load(model, i, F + 1), load(model, j, F + 1)
    x = total(p * (q_i - q_j))
    add_to(sums, i, rounded(s * p - reg * q_i, limit))

A row lives in vector registers, sixteen numbers to a chunk; LLVM cuts chunks to what the machine
has. Three things follow that loops over arrays do not give:

- it is always vectorised, without run-time checks for overlapping arrays;
- every operation is elementwise and strict (IEEE single precision, no contraction, no
  reordering), and `total` adds in one written-down order, so results are the same bit for bit in
  every kernel and on every machine;
- nothing is allocated.

Tables are C-contiguous, and a row of `width` numbers takes `row_stride(width)` of them, zeros at
the end. There are no bounds checks: row numbers must be in range.
"""

# LLVM's builder and numba's hooks carry no types.
# mypy: allow-untyped-calls, allow-untyped-defs

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from sottovoce.algorithms.rows import HALF, LANES, row_stride, row_width

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class SimdRow(types.Type):
    """Numbers of one kind: chunks of 16, the last one of 8 where that holds the rest."""

    def __init__(self, width: int, kind: str) -> None:
        self.kind = kind
        self.width = row_width(width)
        self.stride = row_stride(width)
        super().__init__(name=f"Row({self.width}, {kind})")

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """(first column, columns) of each chunk."""
        return [(c, min(LANES, self.width - c)) for c in range(0, self.width, LANES)]

    def vector(self, columns: int) -> Any:
        return ir.VectorType(_F32 if self.kind == "f4" else _I32, columns)

    def llvm(self) -> Any:
        return ir.LiteralStructType([self.vector(n) for _, n in self.chunks])


@register_model(SimdRow)
class _RowModel(models.PrimitiveModel):
    def __init__(self, manager: Any, row: SimdRow) -> None:
        super().__init__(manager, row, row.llvm())


def _each(builder: Any, row: SimdRow, make: Callable[[int, int, int], Any]) -> Any:
    """A row whose chunk is make(number, first column, columns)."""
    value = ir.Constant(row.llvm(), ir.Undefined)
    for c, (column, n) in enumerate(row.chunks):
        value = builder.insert_value(value, make(c, column, n), c)
    return value


def _splat(builder: Any, scalar: Any, n: int) -> Any:
    one = ir.VectorType(scalar.type, n)
    first = builder.insert_element(ir.Constant(one, ir.Undefined), scalar, _I32(0))
    return _shuffled(builder, first, [0] * n)


def _shuffled(builder: Any, vector: Any, lanes: list[int], other: Any = None) -> Any:
    pick = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    other = ir.Constant(vector.type, ir.Undefined) if other is None else other
    return builder.shuffle_vector(vector, other, pick)


def _pointer(context: Any, builder: Any, kind: Any, table: Any, start: Any, to: Any) -> Any:
    """The address of element `start` of a contiguous table, as a pointer to `to`."""
    data = context.make_array(kind)(context, builder, table).data
    return builder.bitcast(builder.gep(data, [start]), to.as_pointer())


# --- a + b, a - b, a * b: rows, or a number and a row --------------------------------------------


def _operation(op: Any, name: str) -> None:
    @infer_global(op)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            rows = [a for a in args if isinstance(a, SimdRow)]
            numbers = [a for a in args if a == types.float32]
            if len(args) != 2 or not rows or len(rows) + len(numbers) != 2:
                return None
            if any(r != rows[0] or r.kind != "f4" for r in rows):
                return None
            return signature(rows[0], *args)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def side(k: int, c: int, n: int) -> Any:
            if isinstance(sig.args[k], SimdRow):
                return builder.extract_value(args[k], c)
            return _splat(builder, args[k], n)

        return _each(
            builder,
            sig.return_type,
            lambda c, _, n: getattr(builder, name)(side(0, c, n), side(1, c, n)),
        )

    for left, right in ((SimdRow, SimdRow), (types.Float, SimdRow), (SimdRow, types.Float)):
        lower_builtin(op, left, right)(lower)


_operation(operator.add, "fadd")
_operation(operator.sub, "fsub")
_operation(operator.mul, "fmul")


# --- tables to rows and back ---------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def load(typingctx, table, row, width):
    """Row `row` of a float32 or int32 table."""
    kind = SimdRow(width.literal_value, "f4" if table.dtype == types.float32 else "i4")

    def lower(context, builder, sig, args):
        start = builder.mul(args[1], _I64(kind.stride))

        def chunk(c, column, n):
            at = builder.add(start, _I64(column))
            pointer = _pointer(context, builder, sig.args[0], args[0], at, kind.vector(n))
            return builder.load(pointer, align=4)

        return _each(builder, kind, chunk)

    return kind(table, types.int64, width), lower


@intrinsic
def store(typingctx, table, row, values):
    """Writes row `row` of a table."""

    def lower(context, builder, sig, args):
        start = builder.mul(args[1], _I64(values.stride))
        for c, (column, n) in enumerate(values.chunks):
            at = builder.add(start, _I64(column))
            pointer = _pointer(context, builder, sig.args[0], args[0], at, values.vector(n))
            builder.store(builder.extract_value(args[2], c), pointer, align=4)
        return context.get_dummy_value()

    return types.none(table, types.int64, values), lower


@intrinsic(prefer_literal=True)
def load_extended(typingctx, table, row, size):
    """Row `row` of a float32 table without padding, `size` wide, then a 1, then zeros."""
    F = size.literal_value
    kind = SimdRow(F + 1, "f4")

    def lower(context, builder, sig, args):
        start = builder.mul(args[1], _I64(F))

        def chunk(c, column, n):
            ends = [1.0 if column + lane == F else 0.0 for lane in range(n)]
            rest = ir.Constant(kind.vector(n), ends)
            used = min(n, F - column)
            if used <= 0:
                return rest
            at = builder.add(start, _I64(column))
            pointer = _pointer(context, builder, sig.args[0], args[0], at, kind.vector(used))
            part = builder.load(pointer, align=4)
            wide = _shuffled(builder, part, [min(lane, used - 1) for lane in range(n)])
            choose = [lane if lane < used else n + lane for lane in range(n)]
            return _shuffled(builder, wide, choose, rest)

        return _each(builder, kind, chunk)

    return kind(table, types.int64, size), lower


@intrinsic(prefer_literal=True)
def store_first(typingctx, table, row, size, values):
    """Writes the first `size` numbers of a row to row `row` of a table without padding."""
    F = size.literal_value

    def lower(context, builder, sig, args):
        start = builder.mul(args[1], _I64(F))
        for c, (column, n) in enumerate(values.chunks):
            used = min(n, F - column)
            if used > 0:
                value = _shuffled(builder, builder.extract_value(args[3], c), list(range(used)))
                at = builder.add(start, _I64(column))
                pointer = _pointer(context, builder, sig.args[0], args[0], at, value.type)
                builder.store(value, pointer, align=4)
        return context.get_dummy_value()

    return types.none(table, types.int64, size, values), lower


@intrinsic(prefer_literal=True)
def constant(typingctx, value, size, last):
    """A row with `value` in the first `size` columns, `last` in the next, zeros after it."""
    F = size.literal_value
    kind = SimdRow(F + 1, "f4")

    def lower(context, builder, sig, args):
        def chunk(c, column, n):
            if column + n <= F:
                return _splat(builder, args[0], n)
            zeros = ir.Constant(kind.vector(n), [0.0] * n)
            choose = [lane if column + lane < F else n + lane for lane in range(n)]
            part = _shuffled(builder, _splat(builder, args[0], n), choose, zeros)
            return builder.insert_element(part, args[2], _I32(F - column))

        return _each(builder, kind, chunk)

    return kind(types.float32, size, types.float32), lower


@intrinsic(prefer_literal=True)
def with_one(typingctx, values, column):
    """The row with a 1 in one column."""
    at = column.literal_value

    def lower(context, builder, sig, args):
        c = at // LANES
        chunk = builder.extract_value(args[0], c)
        chunk = builder.insert_element(chunk, _F32(1.0), _I32(at - c * LANES))
        return builder.insert_value(args[0], chunk, c)

    return values(values, column), lower


@intrinsic(prefer_literal=True)
def prefetch(typingctx, table, row, width):
    """Asks for the first `width` numbers of a row, ahead of their use. Has no other effect."""

    def lower(context, builder, sig, args):
        array = context.make_array(sig.args[0])(context, builder, args[0])
        stride = cgutils.unpack_tuple(builder, array.shape)[-1] if table.ndim == 2 else _I64(1)
        start = builder.mul(args[1], stride)
        byte = ir.IntType(8).as_pointer()
        ask = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32]),
            "llvm.prefetch",
        )
        for column in range(0, width.literal_value, LANES):
            at = builder.gep(array.data, [builder.add(start, _I64(column))])
            # To read (0), to be kept in every cache (3), data (1).
            builder.call(ask, [builder.bitcast(at, byte), _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.none(table, types.int64, width), lower


# --- sums, and whole numbers ---------------------------------------------------------------------


@intrinsic
def total(typingctx, values):
    """The sum of a row, in a fixed order: chunks of 16 lane by lane, from the left; then halves
    onto halves, a last chunk of 8 joining when 8 lanes are left."""

    def lower(context, builder, sig, args):
        parts: list[Any] = [builder.extract_value(args[0], c) for c in range(len(values.chunks))]
        short: Any = parts.pop() if values.chunks[-1][1] == HALF else None
        sums = parts[0] if parts else short
        for part in parts[1:]:
            sums = builder.fadd(sums, part)
        if parts and short is not None:
            sums = builder.fadd(_folded(builder, sums), short)
        while sums.type.count > 1:
            sums = _folded(builder, sums)
        return builder.extract_element(sums, _I32(0))

    return types.float32(values), lower


def _folded(builder: Any, vector: Any) -> Any:
    half = vector.type.count // 2
    low = _shuffled(builder, vector, list(range(half)))
    return builder.fadd(low, _shuffled(builder, vector, list(range(half, 2 * half))))


@intrinsic
def rounded(typingctx, values, limit):
    """A row of int32: the nearest whole numbers (ties to even) after clamping to ±limit, which must
    fit. What is not a number becomes −limit."""
    kind = SimdRow(values.width, "i4")

    def lower(context, builder, sig, args):
        def chunk(c, _, n):
            vector = values.vector(n)
            most = _splat(builder, args[1], n)
            least = _splat(builder, builder.fneg(args[1]), n)
            nearest = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector]), f"llvm.rint.v{n}f32"
            )
            value = builder.extract_value(args[0], c)
            value = builder.select(builder.fcmp_ordered(">", value, least), value, least)
            value = builder.select(builder.fcmp_ordered("<", value, most), value, most)
            return builder.fptosi(builder.call(nearest, [value]), kind.vector(n))

        return _each(builder, kind, chunk)

    return kind(values, types.float32), lower


@intrinsic
def as_float(typingctx, values):
    """A row of int32 as float32, each number rounded once."""
    kind = SimdRow(values.width, "f4")

    def lower(context, builder, sig, args):
        return _each(
            builder,
            kind,
            lambda c, _, n: builder.sitofp(builder.extract_value(args[0], c), kind.vector(n)),
        )

    return kind(values), lower


def _accumulate(table, values, minus):
    def lower(context, builder, sig, args):
        start = builder.mul(args[1], _I64(values.stride))
        spilt = []
        for c, (column, n) in enumerate(values.chunks):
            at = builder.add(start, _I64(column))
            pointer = _pointer(context, builder, sig.args[0], args[0], at, values.vector(n))
            value = builder.extract_value(args[2], c)
            old = builder.load(pointer, align=4)
            new = builder.sub(old, value) if minus else builder.add(old, value)
            builder.store(new, pointer, align=4)
            # The sign bit tells an overflow: the result left the sign that both sides agreed on.
            agreed = builder.xor(value, old if minus else new)
            signs = builder.and_(builder.xor(old, new), agreed)
            lanes = values.chunks[0][1]
            zeros = ir.Constant(signs.type, [0] * n)
            spilt.append(_shuffled(builder, signs, [min(k, n) for k in range(lanes)], zeros))
        anywhere = functools.reduce(builder.or_, spilt)
        bits = builder.icmp_signed("<", anywhere, ir.Constant(anywhere.type, [0] * lanes))
        mask = ir.IntType(lanes)
        return builder.icmp_unsigned("!=", builder.bitcast(bits, mask), mask(0))

    return types.boolean(table, types.int64, values), lower


@intrinsic
def add_to(typingctx, table, row, values):
    """Adds a row to row `row` of an int32 table, modulo 2**32. True where a number overflowed."""
    return _accumulate(table, values, False)


@intrinsic
def take_from(typingctx, table, row, values):
    """Subtracts a row, modulo 2**32. True where a number overflowed."""
    return _accumulate(table, values, True)
