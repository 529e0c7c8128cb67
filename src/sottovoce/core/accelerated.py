"""The compiled loops of `recommender`, by the same chain of operations; loaded with the compiler.

Items are scored for `GROUP` users at a time in registers: 6 × 16 float32 sums fit the 16 AVX2
registers as well as AVX-512. LLVM does not find that shape in a plain loop (measured: half the
speed), hence `score_panel`, which is written for it.
"""

# Kernels, LLVM's builder and numba's hooks carry no types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, unreachable"

from __future__ import annotations

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from sottovoce.compiled import njit
from sottovoce.core.recommender import CHUNK, GROUP, SIMD_ROWS


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


def pack_items(factors, bias):
    """Panels [n, 1 + size, SIMD_ROWS]; places past the last item have a bias of -inf."""
    n_items, size = factors.shape
    panels = np.zeros(((n_items + SIMD_ROWS - 1) // SIMD_ROWS, size + 1, SIMD_ROWS), np.float32)
    panels[:, 0] = -np.inf
    for i in range(n_items):
        panel, lane = i // SIMD_ROWS, i % SIMD_ROWS
        panels[panel, 0, lane] = bias[i]
        for f in range(size):
            panels[panel, f + 1, lane] = factors[i, f]
    return panels


@njit(cache=True, nogil=True, inline="always")
def _insert(score, item, items, scores):
    """Keep a list ordered; called with ascending items, so ties stay in item order."""
    k = len(scores) - 1
    while k > 0 and scores[k - 1] < score:
        scores[k] = scores[k - 1]
        items[k] = items[k - 1]
        k -= 1
    scores[k] = score
    items[k] = item


def rank_factors(vectors, panels, users, rows, indptr, seen, items, scores):
    """Fill `items` and `scores` [tile, n], which come in as -1 and -inf.

    `users` index `vectors`; `rows` index the seen items (`indptr`, `seen`).
    """
    n_users, size = len(users), vectors.shape[1]
    last = items.shape[1] - 1
    groups = (n_users + GROUP - 1) // GROUP
    packed = np.zeros((groups, size, GROUP), np.float32)
    cursor = np.empty(n_users, np.int64)
    for u in range(n_users):
        cursor[u] = indptr[rows[u]]
        for f in range(size):
            packed[u // GROUP, f, u % GROUP] = vectors[users[u], f]
    flat_panels, flat_users = panels.reshape(-1), packed.reshape(-1)
    worst = np.full((groups, GROUP), np.float32(-np.inf))
    allowed = np.empty((GROUP, CHUNK), np.uint16)
    out = np.empty((GROUP, SIMD_ROWS), np.float32)
    hits = np.empty(GROUP, np.uint16)
    for first in range(0, len(panels), CHUNK):
        stop = min(first + CHUNK, len(panels))
        for group in range(groups):
            members = min(GROUP, n_users - group * GROUP)
            allowed[:] = 0xFFFF
            for g in range(members):
                u = group * GROUP + g
                entry, end = cursor[u], indptr[rows[u] + 1]
                while entry < end and seen[entry] < stop * SIMD_ROWS:
                    place = seen[entry] - first * SIMD_ROWS
                    allowed[g, place // SIMD_ROWS] &= ~np.uint16(1 << (place % SIMD_ROWS))
                    entry += 1
                cursor[u] = entry
            for panel in range(first, stop):
                at = panel * (size + 1) * SIMD_ROWS
                score_panel(
                    flat_panels,
                    at,
                    size,
                    flat_users,
                    group * size * GROUP,
                    worst[group],
                    out,
                    hits,
                )
                for g in range(members):
                    left = hits[g] & allowed[g, panel - first]
                    while left != 0:
                        lane = lowest_bit(left)
                        left &= left - np.uint16(1)
                        score = out[g, lane]
                        if score > worst[group, g]:
                            u = group * GROUP + g
                            _insert(score, panel * SIMD_ROWS + lane, items[u], scores[u])
                            worst[group, g] = scores[u, last]


def rank_scores(table, rows, indptr, seen, items, scores):
    """The same from a table of scores [tile, n_items]."""
    n_users, n_items = table.shape
    last = items.shape[1] - 1
    for u in range(n_users):
        entry, end = indptr[rows[u]], indptr[rows[u] + 1]
        for i in range(n_items):
            if entry < end and seen[entry] == i:
                entry += 1
            elif table[u, i] > scores[u, last]:
                _insert(table[u, i], i, items[u], scores[u])


def score_pairs(vectors, factors, bias, users, items, out):
    """out[r, c] = score of (users[r], items[r, c]), bit for bit as in `rank_factors`; -1: -inf."""
    for r in range(len(users)):
        for c in range(items.shape[1]):
            i = items[r, c]
            if i < 0:
                out[r, c] = -np.inf
                continue
            total = bias[i]
            for f in range(factors.shape[1]):
                total = fma(vectors[users[r], f], factors[i, f], total)
            out[r, c] = total
