"""What one device runs without the compiler gives the bits that compiled loops give."""

import itertools
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce import compiled
from sottovoce.algorithms.gram.kernels import add_factors
from sottovoce.algorithms.pairwise import factors, kernels
from sottovoce.core import arrays, contributions, portable, recommender, shares
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import DeviceReports
from sottovoce.privacy import central, mechanisms
from sottovoce.rng import SecretStreams, Streams, chacha_words, draw, words_of

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=25, deadline=None)
HELD = {
    "sottovoce.rng": {"chacha_words", "_secret_words", "mix", "below"},
    "sottovoce.algorithms.pairwise.kernels": {
        *("is_marked", "mark", "holds", "checked", "known", "draw_device"),
        *("exponential", "slope", "score", "moved", "pull", "push"),  # within learn_rows
    },
    "sottovoce.core.arrays": {"_sum_groups", "_add_at", "ascending", "find_entries"},
    "sottovoce.core.contributions": {"_fill", "_filled"},
    "sottovoce.core.portable": {"exp", "log", "scaled_erfc", "gaussian_delta", "_exp_all"},
    "sottovoce.algorithms.gram.kernels": {"add_factors"},
    "sottovoce.core.shares": {"_below"},
    "sottovoce.core.recommender": {"pack_items", "rank_factors", "rank_scores", "score_pairs"},
    "sottovoce.privacy.mechanisms": {"_flag_smallest"},
    "sottovoce.privacy.central": {"_add_squares"},
}
"""The kernels that have a form for one device; those below call every one of them."""


def same(work):
    """What `work` gives, which is the same with and without the compiler, byte for byte."""
    with compiled.left_out(False):
        expected = work()
    whole, compiled.Kernel.compiled = compiled.Kernel.compiled, property(_refuse)
    try:
        with compiled.left_out():
            found = work()
    finally:
        compiled.Kernel.compiled = whole
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    return found


def _refuse(kernel):
    raise AssertionError(f"{kernel.__name__} was compiled")


def test_every_kernel_with_a_form_for_one_device_is_held_to_the_other():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("sottovoce."):
            for kernel in vars(module).values():
                if isinstance(kernel, compiled.Kernel) and kernel.plain is not None:
                    found.setdefault(kernel.__module__, set()).add(kernel.__name__)
    assert found == HELD


def test_a_kernel_without_such_a_form_is_compiled():
    @compiled.njit
    def add(a, b):
        return a + b

    with compiled.left_out():
        assert add(1, 2) == 3
    assert add.compiled.signatures


def test_a_form_that_differs_is_found():
    @compiled.njit
    def wrong(a):
        return a + 1

    @wrong.alone
    def _(a):
        return a + 2

    with pytest.raises(AssertionError):
        same(lambda: [wrong(1)])


@FEW
@given(SEEDS, st.integers(0, 100), st.integers(1, 40), st.booleans())
def test_draws(seed, first, many, secret):
    keys = (SecretStreams if secret else Streams).from_seed(seed).keys(np.arange(3))
    words = same(lambda: [words_of(keys, many, first)])[0]
    assert draw(keys[1], first) == words[1, 0]
    block = np.random.default_rng(seed).integers(0, 2**32, (2, 8), dtype=np.uint32)

    def blocks():
        out = np.empty(16, np.uint32)
        chacha_words(block[0], block[1, :3], first, out)
        return [out]

    same(blocks)


@FEW
@given(
    SEEDS, st.integers(1, 60), st.integers(1, 40), st.booleans(),
    st.sampled_from([0.01, 1.0, 60.0, 1e6]),
)  # fmt: skip
def test_pairwise_steps(seed, count, triples, secret, large):
    """Few interactions are marked, many searched; large numbers meet the limits. Rows have a chunk
    of 16 numbers and one of 8; agents in other tests have rows of 8."""
    rng, n_items, size = np.random.default_rng(seed), 64, 20
    items = np.sort(rng.choice(n_items, count, replace=False)).astype(np.int32)
    model = factors.padded((large * rng.normal(size=(n_items, size + 1))).astype(np.float32))
    vector = rng.normal(size=(1, size)).astype(np.float32)
    keys = (SecretStreams if secret else Streams).from_seed(seed).keys(np.array([3]))
    step = factors.PairStep(0.1, 0.01, 0.02, 0.03, 0.04)

    def learn():
        moved, row, indptr = vector.copy(), np.array([0]), np.array([0, count])
        made = factors.learn_rows(step, model, moved, row, indptr, items, keys, triples)
        return [moved, *made]

    same(learn)
    assert kernels.kernels(size).learn_rows.plain is not None


def a_profile(rng, n, pairs):
    size = 3 * n
    place = np.sort(rng.choice(size, n, replace=False)).astype(np.int32)
    value = rng.gamma(0.5, size=n) + 1e-6
    value /= np.sqrt((value**2).sum()) * (1 + 1e-9)
    many = np.array([n], np.int32)
    return contributions.Profile(np.array([0, n]), place, value, size, pairs, many)


@FEW
@given(SEEDS, st.integers(1, 200), st.floats(0.01, 1.0), st.booleans(), st.sampled_from([0, 40]))
def test_dithered_contributions(seed, n, scale, pairs, loudness):
    profile = a_profile(np.random.default_rng(seed), n, pairs)
    grid = contributions.Grid(step=4, most=7, unit=16, loudness=loudness)
    keys = SecretStreams.from_seed(seed).keys(np.array([1]))

    def cut():
        made = contributions.cut_to(profile, np.array([scale]), "it", grid, keys)
        return [made.place, made.steps]

    same(cut)


@FEW
@given(st.binary(min_size=32, max_size=32), st.integers(1, 500))
def test_shares(secret, many):
    same(lambda: [shares.drawn(secret, many)])


def test_shares_leave_out_what_is_no_residue():
    words = np.array([shares.P, 5, 2**32 - 1, 2**31 + 6, 7], np.uint32)

    def kept():
        mine = words.copy()
        many = shares._below(mine)
        return [many, mine[:many]]

    assert same(kept)[1].tolist() == [5, 6, 7]


NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=300, deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_product_is_added_and_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    with np.errstate(all="ignore"):
        found = np.float32(recommender.fma(np.float32(a), np.float32(b), np.float32(c)))
    if not np.isfinite(found):
        assert abs(exact) > Fraction(3.4028234e38)
        return
    for near in (np.nextafter(found, np.float32(np.inf)), np.nextafter(found, np.float32(-np.inf))):
        if np.isfinite(near):
            assert abs(Fraction(float(found)) - exact) <= abs(Fraction(float(near)) - exact)


@FEW
@given(SEEDS, st.integers(1, 120), st.integers(1, 20), st.integers(1, 30), st.integers(0, 20))
def test_recommendations(seed, n_items, size, n, known):
    rng = np.random.default_rng(seed)
    scorer = recommender.FactorScorer(
        rng.normal(size=(2, size)).astype(np.float32),
        rng.integers(-2, 3, (n_items, size)).astype(np.float32) / np.float32(3),
        rng.choice([0.0, 0.5, -np.inf], n_items).astype(np.float32),
    )
    seen = np.unique(rng.integers(0, n_items, known))
    same(lambda: recommender.recommend(scorer, 1, seen, n))
    wanted = rng.integers(-1, n_items, (2, 5))
    same(lambda: [recommender.score_items(scorer, [0, 1], wanted)])

    class Table:
        n_items = len(scorer.item_bias)

        def scores(self, users):
            return np.repeat(scorer.item_bias[None], len(users), axis=0)

    same(lambda: recommender.recommend(Table(), 1, seen, n))


@FEW
@given(SEEDS, st.integers(1, 40), st.integers(0, 100))
def test_what_may_leave_and_what_is_added_up(seed, count, share):
    rng = np.random.default_rng(seed)
    items = np.sort(rng.choice(100, count, replace=False)).astype(np.int32)
    history = Interactions(np.array([0, count]), items, 100)
    users = np.array([seed % 1000])
    consent = Consent.uniform(users, Choice(share_positives=share / 100))
    streams = SecretStreams.from_seed(seed)
    same(lambda: [mechanisms.share_subsets(users, consent, history, streams)])
    wanted = rng.integers(0, 100, 20)
    same(lambda: [history.find(np.zeros(20, np.int64), wanted)])
    every = np.arange(100, dtype=np.int32)
    found = same(lambda: [history.find(np.zeros(100, np.int64), every)])[0]
    assert found.tolist() == [items.tolist().index(k) if k in items else -1 for k in range(100)]
    values = rng.integers(-(2**40), 2**40, (30, 3))
    order, starts = rng.permutation(30), np.array([0, 4, 5, 19])
    same(lambda: [arrays.sum_groups(values, order, starts)])
    for most in (9, 1000):  # in a table of all numbers, and sorted
        number = rng.integers(0, most, 30).astype(np.int32)
        told, sums = same(lambda n=number: arrays.sum_by_number(n, values))
        assert told.tolist() == sorted(set(number.tolist()))
        assert sums.tolist() == [values[number == k].sum(axis=0).tolist() for k in told]
    outer, inner = np.sort(rng.integers(0, 4, 6)), rng.integers(0, 9, 6)
    pairs = list(zip(outer.tolist(), inner.tolist(), strict=True))
    in_order = all(one < other for one, other in itertools.pairwise(pairs))
    assert same(lambda: [arrays.ascending(outer, inner)])[0] == in_order
    assert arrays.distinct(inner).tolist() == sorted(set(inner.tolist()))
    squares = rng.integers(-(2**30), 2**30, (30, 5))
    owner = np.sort(rng.integers(0, 3, 30))

    def added():
        sums = np.zeros(3)
        central._add_squares(squares, owner, sums)
        return [sums]

    same(added)
    rows, weights = rng.normal(size=(100, 7)).astype(np.float32), rng.random(count)

    def factors_added():
        found = np.empty((1, 7), dtype=np.float32)
        add_factors(history.indptr, items, weights, rows, found)
        return [found]

    same(factors_added)


@FEW
@given(st.floats(-800, 800), st.floats(1e-6, 60), st.floats(0, 64))
def test_arithmetic_that_every_device_computes_alike(x, distance, epsilon):
    same(lambda: [portable.exp(x), portable.exp_of(np.array([x, -x]))])
    same(lambda: [portable.log(distance), portable.scaled_erfc(distance)])
    same(lambda: [portable.gaussian_delta(distance, epsilon)])


def test_reports_are_clipped_alike():
    values = np.array([[3 << 24, 0], [0, 4 << 24], [1, 1]])
    reports = DeviceReports(0, np.array([0, 0, 1]), np.array([1, 2, 1], np.int32), values)
    same(lambda: [central.clip_reports(reports, 2.0).values])
