"""What `recommender` has in vector registers, written for LLVM; loaded with the compiler."""

# LLVM's builder and numba's hooks carry no types.
# mypy: allow-untyped-calls, allow-untyped-defs

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP, SIMD_ROWS = 6, 16


@intrinsic
def score_panel(typingctx, panels, at, size, users, users_at, worst, out, hits):
    """`SIMD_ROWS` items scored for `GROUP` users into `out`; bit w of `hits[g]`: beats `worst`."""

    def generate(context, builder, signature, args):
        def data(k):
            return context.make_array(signature.args[k])(context, builder, args[k]).data

        vector = ir.VectorType(ir.FloatType(), SIMD_ROWS)
        word = ir.IntType(32)
        nothing = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(word, SIMD_ROWS), [0] * SIMD_ROWS)
        number = args[1].type
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{SIMD_ROWS}f32"
        )

        def shift(index, by):
            return builder.add(index, ir.Constant(number, by))

        def vector_at(base, index):
            return builder.bitcast(builder.gep(base, [index]), vector.as_pointer())

        def splat(base, index):
            value = builder.load(builder.gep(base, [index]))
            one = builder.insert_element(nothing, value, ir.Constant(word, 0))
            return builder.shuffle_vector(one, nothing, zeros)

        panel, vectors, bar, scores, bits = (data(k) for k in (0, 3, 5, 6, 7))
        sums = [cgutils.alloca_once(builder, vector) for _ in range(GROUP)]
        bias = builder.load(vector_at(panel, args[1]), align=4)
        for total in sums:
            builder.store(bias, total)
        with cgutils.for_range(builder, args[2], intp=number) as loop:
            row = builder.mul(shift(loop.index, 1), ir.Constant(number, SIMD_ROWS))
            factor = builder.load(vector_at(panel, builder.add(args[1], row)), align=4)
            column = builder.add(args[4], builder.mul(loop.index, ir.Constant(number, GROUP)))
            for g, total in enumerate(sums):
                weight = splat(vectors, shift(column, g))
                builder.store(builder.call(fma, [weight, factor, builder.load(total)]), total)
        for g, total in enumerate(sums):
            value = builder.load(total)
            place = vector_at(scores, ir.Constant(number, g * SIMD_ROWS))
            builder.store(value, place, align=4)
            above = builder.fcmp_ordered(">", value, splat(bar, ir.Constant(number, g)))
            flags = builder.bitcast(above, ir.IntType(SIMD_ROWS))
            builder.store(flags, builder.gep(bits, [ir.Constant(number, g)]))
        return context.get_dummy_value()

    return types.void(panels, at, size, users, users_at, worst, out, hits), generate


@intrinsic
def lowest_bit(typingctx, value):
    """The position of the lowest set bit; undefined for 0."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return value(value), generate


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c in float32, rounded once."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32")
        return builder.call(fma, args)

    return types.float32(types.float32, types.float32, types.float32), generate
