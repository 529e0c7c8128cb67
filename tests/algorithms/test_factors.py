"""The pair-wise step: against the printed equations, and the same bits in every setting."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import fingerprint_without_vector_instructions
from numba import njit
from numpy.typing import NDArray

from sottovoce.algorithms.pairwise import factors
from sottovoce.algorithms.pairwise import kernels as pair_kernels
from sottovoce.algorithms.pairwise.factors import PairStep
from sottovoce.core.consent import ShareRule, thresholds
from sottovoce.core.messages import GRID, LIMIT
from sottovoce.errors import DataError
from sottovoce.rng import GAMMA, Streams

STEP = PairStep(0.05, reg_user=0.02, reg_positive=0.03, reg_negative=0.01, reg_bias=0.005)
SIZES = (3, 10, 23)
"""Rows of one half chunk, one chunk, and a chunk and a half."""
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class World:
    """A small federation, and one round's keys."""

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]
    model: NDArray[np.float32]
    vectors: NDArray[np.float32]
    learn: Streams
    share: Streams

    @property
    def n_users(self) -> int:
        return len(self.vectors)

    @property
    def size(self) -> int:
        return self.vectors.shape[1]

    def row(self, user: int) -> NDArray[np.int32]:
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def users(self) -> NDArray[np.int64]:
        return np.arange(self.n_users)

    def rule(
        self, share: float, users: Any = None, allowed: NDArray[np.bool_] | None = None
    ) -> ShareRule:
        users = self.users() if users is None else users
        return ShareRule(
            self.share.keys(users),
            thresholds(np.full(len(users), share)),
            np.zeros(0, dtype=bool) if allowed is None else allowed,
        )

    def rows(self, triples: int, users: Any = None, step: PairStep = STEP) -> Any:
        """Entries, items and values of every draw, and the vectors afterwards."""
        users = self.users() if users is None else users
        vectors = self.vectors.copy()
        drawn = factors.learn_rows(
            step, factors.padded(self.model), vectors, users, self.indptr, self.items,
            self.learn.keys(users), triples,
        )  # fmt: skip
        return *drawn, vectors

    def summed(self, triples: int, rule: ShareRule, users: Any = None, **options: Any) -> Any:
        """Sums, positives, negatives, and the vectors afterwards."""
        users = self.users() if users is None else users
        vectors = options.pop("vectors", self.vectors).copy()
        result = factors.learn_summed(
            options.pop("step", STEP), factors.padded(self.model), vectors, users, self.indptr,
            self.items, self.learn.keys(users), triples, rule, **options,
        )  # fmt: skip
        return *result, vectors


def world(
    size: int = 3,
    n_users: int = 20,
    n_items: int = 40,
    *,
    seed: int = 0,
    scale: float = 0.5,
    counts: list[int] | None = None,
) -> World:
    generator = np.random.default_rng(seed)
    if counts is None:
        counts = generator.integers(1, n_items, n_users).tolist()
    rows = [np.sort(generator.choice(n_items, c, replace=False)) for c in counts]
    root = Streams.from_seed(seed)
    return World(
        indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        items=np.concatenate(rows).astype(np.int32),
        model=generator.normal(0, scale, (n_items, size + 1)).astype(np.float32),
        vectors=generator.normal(0, scale, (len(counts), size)).astype(np.float32),
        learn=root.child("learn"),
        share=root.child("share"),
    )


worlds = st.builds(
    world,
    size=st.sampled_from(SIZES),
    n_users=st.integers(1, 30),
    n_items=st.integers(2, 130),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.01, 0.5, 20.0]),
)


def left(w: World, entry: Any, triples: int, rule: ShareRule) -> NDArray[np.bool_]:
    """Which updates of `learn_rows` may leave: every negative's, and what the rule says."""
    sends = (w.share.words(w.users(), triples) >> np.uint64(32)) < rule.threshold[:, None]
    sends = sends.ravel()
    if len(rule.allowed):
        sends = sends & rule.allowed[entry]
    return np.stack([np.ones_like(sends), sends], axis=1).ravel()


def total(w: World, item: Any, values: Any) -> NDArray[np.int64]:
    sums = np.zeros((len(w.model), factors.padded_width(w.size)), dtype=np.int64)
    np.add.at(sums[:, : w.size + 1], item, values.astype(np.int64))
    return sums


def distinct(w: World, item: Any, keep: Any, triples: int, positive: bool) -> list[int]:
    items, kept = item.reshape(-1, triples, 2), keep.reshape(-1, triples, 2)
    side = int(positive)
    return [len(np.unique(items[n, :, side][kept[n, :, side]])) for n in range(w.n_users)]


# --- the same bits in every setting --------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(w=worlds, triples=st.integers(1, 12), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_sums_are_those_of_the_rows(w: World, triples: int, share: float) -> None:
    rule = w.rule(share)
    entry, item, values, vectors = w.rows(triples)
    sums, positives, negatives, moved = w.summed(triples, rule)
    keep = left(w, entry, triples, rule)
    assert np.array_equal(moved, vectors)
    assert np.array_equal(sums, total(w, item[keep], values[keep]))
    assert positives.tolist() == distinct(w, item, keep, triples, True)
    assert negatives.tolist() == distinct(w, item, keep, triples, False)


@settings(max_examples=20, deadline=None)
@given(w=worlds, users=st.integers(1, 80), scale=st.sampled_from([0.5, 1e4]))
def test_one_draw_of_each_gives_the_same_sums_with_a_sieve(
    w: World, users: int, scale: float
) -> None:
    """More devices than go together, in any order, and sums that 32 bits do not hold."""
    some = np.random.default_rng(users).permutation(w.n_users)[:users]
    allowed = np.random.default_rng(users).random(len(w.items)) < 0.7
    rule = w.rule(0.6, some, allowed)
    vectors = (scale * w.vectors).astype(np.float32)
    sieve = factors.make_sieve(w.indptr, w.items)
    plain = w.summed(1, rule, some, vectors=vectors)
    for options in ({"sieve": sieve}, {"sieve": sieve, "threads": 2}):
        again = w.summed(1, rule, some, vectors=vectors, **options)
        assert all(np.array_equal(one, other) for one, other in zip(plain, again, strict=True))
    one_by_one = [
        w.summed(1, w.rule(0.6, some[k:][:1], allowed), some[k:][:1], vectors=vectors)
        for k in range(len(some))
    ]
    assert np.array_equal(plain[0], sum(one[0] for one in one_by_one))


@settings(max_examples=40, deadline=None)
@given(w=worlds, triples=st.integers(1, 6), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_rounds_of_one_client_are_summed_rounds_folded(
    w: World, triples: int, share: float
) -> None:
    rounds = np.random.default_rng(triples).integers(0, w.n_users, 40)
    keys = np.array([w.learn.child(r, int(u)).key for r, u in enumerate(rounds)], dtype=np.uint64)
    rule = replace(w.rule(share, rounds), keys=keys ^ np.uint64(99))
    together, vectors = factors.padded(w.model), w.vectors.copy()
    counts = factors.learn_rounds(
        STEP, together, vectors, rounds, w.indptr, w.items, keys, triples, rule
    )
    single, moved = factors.padded(w.model), w.vectors.copy()
    for r in range(len(rounds)):
        one = slice(r, r + 1)
        own = ShareRule(rule.keys[one], rule.threshold[one], rule.allowed)
        sums, positives, negatives = factors.learn_summed(
            STEP, single, moved, rounds[one], w.indptr, w.items, keys[one], triples, own
        )
        factors.fold(STEP, single, sums)
        assert (counts[0][r], counts[1][r]) == (positives[0], negatives[0])
    assert np.array_equal(together, single)
    assert np.array_equal(vectors, moved)


@settings(max_examples=20, deadline=None)
@given(w=worlds, seed=st.integers(0, 99), threads=st.integers(1, 2))
def test_each_device_may_have_a_number_of_draws_of_its_own(
    w: World, seed: int, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    own, rule = rng.integers(1, 9, w.n_users), w.rule(0.5)
    together = w.summed(own, rule, threads=threads)
    vectors = w.vectors.copy()
    sums = np.zeros_like(together[0])
    for u in range(w.n_users):
        alone = np.array([u])
        found = w.summed(int(own[u]), w.rule(0.5, alone), alone, vectors=vectors)
        sums += found[0]
        vectors = found[-1]
        assert (together[1][u], together[2][u]) == (found[1][0], found[2][0])
    assert np.array_equal(together[0], sums)
    assert np.array_equal(together[-1], vectors)
    rounds = rng.integers(0, w.n_users, 30)
    keys = np.array([w.learn.child(r, int(u)).key for r, u in enumerate(rounds)], dtype=np.uint64)
    rule, draws = w.rule(0.5, rounds), own[rounds]
    model, moved = factors.padded(w.model), w.vectors.copy()
    many = factors.learn_rounds(STEP, model, moved, rounds, w.indptr, w.items, keys, draws, rule)
    single, vectors = factors.padded(w.model), w.vectors.copy()
    for r in range(len(rounds)):
        one = slice(r, r + 1)
        mine = ShareRule(rule.keys[one], rule.threshold[one], rule.allowed)
        few = factors.learn_rounds(
            STEP, single, vectors, rounds[one], w.indptr, w.items, keys[one], int(draws[r]), mine
        )
        assert (many[0][r], many[1][r]) == (few[0][0], few[1][0])
    assert np.array_equal(model, single)
    assert np.array_equal(moved, vectors)
    with pytest.raises(DataError, match="one number of draws"):
        w.summed(own[:-1], w.rule(0.5))


@pytest.mark.parametrize("size", SIZES)
def test_a_subset_of_items_may_be_all_that_is_ever_sent(size: int) -> None:
    w = world(size, n_users=25)
    allowed = np.random.default_rng(1).random(len(w.items)) < 0.4
    rule = w.rule(0.7, allowed=allowed)
    entry, item, values, _ = w.rows(9)
    keep = left(w, entry, 9, rule)
    sums, positives, _, _ = w.summed(9, rule)
    assert np.array_equal(sums, total(w, item[keep], values[keep]))
    assert positives.tolist() == distinct(w, item, keep, 9, True)
    assert allowed[entry[keep[1::2]]].all()
    # and in rounds of one client, with one draw and with several
    for triples in (1, 4):
        model, vectors = factors.padded(w.model), w.vectors.copy()
        again, moved = factors.padded(w.model), w.vectors.copy()
        keys = w.learn.keys(w.users())
        factors.learn_rounds(
            STEP, model, vectors, w.users(), w.indptr, w.items, keys, triples, rule
        )
        for u in range(w.n_users):
            own = ShareRule(rule.keys[u : u + 1], rule.threshold[u : u + 1], allowed)
            sums, _, _ = factors.learn_summed(
                STEP, again, moved, np.array([u]), w.indptr, w.items, keys[u : u + 1], triples, own
            )
            factors.fold(STEP, again, sums)
        assert np.array_equal(model, again)
        assert np.array_equal(vectors, moved)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "_WORTH_A_THREAD", 1)
    w = world(10, n_users=101)
    rule = w.rule(0.5)
    alone = w.summed(7, rule)
    for threads in (2, 3, 64, 500):
        for one, other in zip(alone, w.summed(7, rule, threads=threads), strict=True):
            assert np.array_equal(one, other)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 36))
def test_batches_and_their_order_change_nothing(seed: int, cut: int) -> None:
    w = world(10, n_users=37, seed=seed)
    whole, positives, negatives, moved = w.summed(5, w.rule(0.4))
    order = np.random.default_rng(seed).permutation(37)
    sums, vectors = np.zeros_like(whole), w.vectors
    for batch in (order[:cut], order[cut:]):
        part, some, others, vectors = w.summed(5, w.rule(0.4, batch), batch, vectors=vectors)
        sums += part
        assert np.array_equal(some, positives[batch])
        assert np.array_equal(others, negatives[batch])
    assert np.array_equal(sums, whole)
    assert np.array_equal(vectors, moved)


def test_a_sieve_changes_nothing_but_the_time() -> None:
    w = world(3, n_users=50, n_items=200)
    rounds = np.random.default_rng(0).integers(0, 50, 500)
    keys = w.learn.keys(np.arange(500))
    results = []
    for sieve in (None, np.zeros(0, np.uint8), factors.make_sieve(w.indptr, w.items)):
        model, vectors = factors.padded(w.model), w.vectors.copy()
        factors.learn_rounds(
            STEP, model, vectors, rounds, w.indptr, w.items, keys, 1, w.rule(0.5, rounds), sieve
        )
        results.append((model, vectors))
    for model, vectors in results[1:]:
        assert np.array_equal(model, results[0][0])
        assert np.array_equal(vectors, results[0][1])


def test_unaligned_and_read_only_tables_give_the_same() -> None:
    w = world(10)
    expected = w.summed(5, w.rule(0.5))[0]
    raw = np.zeros(w.model.shape[0] * 16 + 1, dtype=np.float32)[1:].reshape(-1, 16)
    raw[:, :11] = w.model
    raw.flags.writeable = False
    sums, _, _ = factors.learn_summed(
        STEP, raw, w.vectors.copy(), w.users(), w.indptr, w.items, w.learn.keys(w.users()), 5,
        w.rule(0.5),
    )  # fmt: skip
    assert np.array_equal(sums, expected)


def fingerprint() -> str:
    """Every kernel's results on inputs that come from whole numbers alone."""
    digest = hashlib.blake2b(digest_size=8)
    root = Streams.from_seed(11)
    for size in SIZES:
        w = world(size, n_users=40, n_items=70)
        for table, name in ((w.model, "model"), (w.vectors, "vectors")):
            spread = root.child(name).uniform(np.arange(len(table)), table.shape[1])
            table[:] = (2 * spread - 1).astype(np.float32)
        model, vectors, rule = factors.padded(w.model), w.vectors.copy(), w.rule(0.5)
        where = (w.users(), w.indptr, w.items, w.learn.keys(w.users()))
        sums, _, _ = factors.learn_summed(STEP, model, vectors, *where, 40, rule)
        factors.fold(STEP, model, sums)
        for triples in (1, 9):
            factors.learn_rounds(STEP, model, vectors, *where, triples, rule)
        _, _, values = factors.learn_rows(STEP, model, vectors, *where, 3)
        for result in (sums, values, model, vectors):
            digest.update(result.astype(result.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def test_results_do_not_depend_on_the_machine() -> None:
    """A change here changes every model trained from a seed: say so under "Results change"."""
    assert fingerprint() == "49d539c168c377b4"


@pytest.mark.slow
def test_results_do_not_depend_on_vector_instructions(tmp_path: Path) -> None:
    assert fingerprint_without_vector_instructions("test_factors", tmp_path) == fingerprint()


# --- draws ---------------------------------------------------------------------------------------


def drawn(w: World, user: int, number: int) -> tuple[int, int]:
    """The draw as the contract words it, in plain integers: entry and negative."""
    owned = set(w.row(user).tolist())
    word = _mix(w.learn.child(user).key + (number + 1) * int(GAMMA))
    entry = int(w.indptr[user]) + (((word >> 32) * len(owned)) >> 32)
    while (negative := ((word & 0xFFFFFFFF) * len(w.model)) >> 32) in owned:
        word = _mix(word + int(GAMMA))
    return entry, negative


def _mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("n_items", [2, 63, 64, 65, 127, 128, 129])
def test_draws_follow_the_written_rule_at_the_edges_of_a_word(n_items: int) -> None:
    counts = [1, n_items - 1, max(1, n_items // 2), min(n_items - 1, 64)]
    w = world(3, n_items=n_items, counts=counts)
    entry, item, _, _ = w.rows(30)
    expected = [drawn(w, u, t) for u in range(4) for t in range(30)]
    assert list(zip(entry.tolist(), item[0::2].tolist(), strict=True)) == expected
    assert np.array_equal(item[1::2], w.items[entry])


def test_draws_are_uniform_and_negatives_are_strangers() -> None:
    w = world(3, n_items=50, counts=[1, 20, 49])
    n = 20_000
    _, item, _, _ = w.rows(n)
    for user in range(3):
        own = w.row(user)
        negatives, positives = item[0::2][user * n :][:n], item[1::2][user * n :][:n]
        strangers = np.setdiff1d(np.arange(50), own)
        assert chi_square(positives, own) < 5.0
        assert chi_square(negatives, strangers) < 5.0


def chi_square(values: Any, support: Any) -> float:
    """How many standard deviations Pearson's statistic lies above its mean."""
    assert np.isin(values, support).all()
    expected = len(values) / len(support)
    observed = np.array([(values == v).sum() for v in support])
    free = len(support) - 1
    return (((observed - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free + 1e-9)


# --- the step against the printed equations ------------------------------------------------------


def regs(size: int) -> list[NDArray[np.float64]]:
    """λ_i and λ_j per column of an item row, the last being the bias."""
    return [
        np.append(np.full(size, r), STEP.reg_bias) for r in (STEP.reg_positive, STEP.reg_negative)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
def test_a_step_is_what_is_printed(size: int, scale: float) -> None:
    w = world(size, n_users=60, scale=scale)
    _, item, values, vectors = w.rows(1)
    model, before = w.model.astype(np.float64), w.vectors.astype(np.float64)
    q_j, q_i = model[item[0::2]], model[item[1::2]]
    p = np.column_stack([before, np.ones(60)])
    x = (p * (q_i - q_j)).sum(axis=1, keepdims=True)
    s = 1 / (1 + np.exp(x))
    reg_i, reg_j = regs(size)
    tolerance = 4e-7 * max(1.0, scale) ** 3 * GRID
    assert np.abs(values[0::2] - (-s * p - reg_j * q_j) * GRID).max() < tolerance
    assert np.abs(values[1::2] - (s * p - reg_i * q_i) * GRID).max() < tolerance
    after = before + STEP.learning_rate * (s * (q_i - q_j)[:, :size] - STEP.reg_user * before)
    assert np.abs(vectors - after).max() < 4e-7 * max(1.0, scale) ** 3


def test_many_steps_stay_close_to_double_precision() -> None:
    w = world(10, n_users=5, n_items=60, counts=[10] * 5)
    _, item, _, vectors = w.rows(200)
    items = item.reshape(5, 200, 2)
    for user in range(5):
        p = w.vectors[user].astype(np.float64)
        for j, i in items[user]:
            d = w.model[i].astype(np.float64) - w.model[j]
            s = 1 / (1 + math.exp(p @ d[:10] + d[10]))
            p = p + STEP.learning_rate * (s * d[:10] - STEP.reg_user * p)
        assert np.abs(vectors[user] - p).max() < 1e-5


def test_the_exponential_is_within_two_units_in_the_last_place() -> None:
    @njit
    def every(x: Any, out: Any) -> None:
        for k in range(x.shape[0]):
            out[k] = pair_kernels.exponential(x[k])

    x = np.linspace(-87, 88, 1_000_001).astype(np.float32)
    out = np.empty_like(x)
    every(x, out)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(out - exact) / np.spacing(exact.astype(np.float32))).max() < 2
    every(np.array([-np.inf, np.inf, np.nan], dtype=np.float32), out)
    assert np.isfinite(out[:3]).all()


# --- extremes ------------------------------------------------------------------------------------


def test_updates_are_clamped_and_their_sums_are_exact() -> None:
    """Clamped updates fill 32 bits in two draws, so every sum here overflows them."""
    w = world(10, n_users=60, n_items=4, scale=5.0, counts=[1] * 60)
    w = replace(w, vectors=np.full_like(w.vectors, 900.0), model=w.model * 0)
    frozen = PairStep(0.0, 0.0, 0.0, 0.0, 0.0)
    entry, item, values, _ = w.rows(40, step=frozen)
    assert int(np.abs(values).max()) == int(LIMIT * GRID)
    rule = w.rule(0.5)
    keep = left(w, entry, 40, rule)
    sums = w.summed(40, rule, step=frozen)[0]
    assert np.abs(sums).max() > 2**33
    assert np.array_equal(sums, total(w, item[keep], values[keep]))


def test_rounds_keep_sums_exact_beyond_32_bits() -> None:
    w = world(10, n_users=6, n_items=4, scale=5.0, counts=[1] * 6)
    w = replace(w, vectors=np.full_like(w.vectors, 900.0), model=w.model * 0)
    step = PairStep(1e-6, 0.0, 0.0, 0.0, 0.0)
    keys, rule = w.learn.keys(w.users()), w.rule(1.0)
    model, vectors = factors.padded(w.model), w.vectors.copy()
    factors.learn_rounds(step, model, vectors, w.users(), w.indptr, w.items, keys, 30, rule)
    again, moved = factors.padded(w.model), w.vectors.copy()
    for u in range(6):
        own = ShareRule(rule.keys[u : u + 1], rule.threshold[u : u + 1], rule.allowed)
        sums, _, _ = factors.learn_summed(
            step, again, moved, np.array([u]), w.indptr, w.items, keys[u : u + 1], 30, own
        )
        assert u or np.abs(sums).max() > 2**31
        factors.fold(step, again, sums)
    assert np.array_equal(model, again)
    assert np.array_equal(vectors, moved)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_broken_model_does_not_crash_and_stays_visible(bad: float) -> None:
    w = world(10, n_users=30)
    w.model[:] = bad
    w.model[::2] *= -1
    rule = w.rule(0.5)
    sums, _, _, vectors = w.summed(4, rule)
    assert np.abs(sums).max() <= 30 * 8 * LIMIT * GRID
    assert not np.isfinite(vectors).all()
    for triples in (1, 3):
        model, keys = factors.padded(w.model), w.learn.keys(w.users())
        factors.learn_rounds(
            STEP, model, w.vectors.copy(), w.users(), w.indptr, w.items, keys, triples, rule
        )


@pytest.mark.parametrize("counts", [[3, 0], [3, 5]])
def test_users_with_nothing_or_everything_are_refused(counts: list[int]) -> None:
    w = world(3, n_items=5, counts=counts)
    with pytest.raises(DataError, match="every item"):
        w.rows(2)
    for triples in (1, 2):
        with pytest.raises(DataError, match="every item"):
            w.summed(triples, w.rule(1.0))
        with pytest.raises(DataError, match="every item"):
            factors.learn_rounds(
                STEP, factors.padded(w.model), w.vectors.copy(), w.users(), w.indptr, w.items,
                w.learn.keys(w.users()), triples, w.rule(1.0),
            )  # fmt: skip


def test_tables_of_the_wrong_shape_are_refused() -> None:
    w = world(3)
    model, keys = factors.padded(w.model), w.learn.keys(w.users())
    good = (model, w.vectors.copy(), w.users(), w.indptr, w.items, keys)
    bad: list[tuple[int, Any]] = [
        (0, w.model),
        (0, model.astype(np.float64)),
        (1, np.zeros((20, 20), dtype=np.float32)),
        (1, w.vectors.T),
        (2, w.users() + 1),
        (2, w.users() - 1),
        (3, w.indptr[:-1]),
        (4, w.items[:-1]),
        (4, np.full_like(w.items, 40)),
        (4, np.full_like(w.items, -1)),
        (5, keys[:-1]),
    ]
    for place, value in bad:
        tables: list[Any] = list(good)
        tables[place] = value
        for triples in (1, 2):
            with pytest.raises(DataError):
                factors.learn_summed(STEP, *tables, triples, w.rule(1.0))
            with pytest.raises(DataError):
                factors.learn_rounds(STEP, *tables, triples, w.rule(1.0))
    for rule in (w.rule(1.0, np.array([0])), w.rule(1.0, allowed=np.ones(3, dtype=bool))):
        with pytest.raises(DataError):
            factors.learn_summed(STEP, *good, 2, rule)
    with pytest.raises(DataError, match="sieve"):
        factors.learn_rounds(STEP, *good, 1, w.rule(1.0), np.zeros(5, dtype=np.uint8))
    with pytest.raises(DataError, match="sieve"):
        factors.learn_summed(STEP, *good, 1, w.rule(1.0), sieve=np.zeros(5, dtype=np.uint8))
    with pytest.raises(DataError, match="do not fit"):
        factors.fold(STEP, model, np.zeros((3, 16), dtype=np.int64))
    with pytest.raises(DataError, match="at least once"):
        factors.learn_summed(STEP, *good, 0, w.rule(1.0))


def test_padding() -> None:
    for size, width in ((1, 16), (15, 16), (16, 32), (50, 64)):
        rows = factors.padded(np.ones((3, size + 1), dtype=np.float32))
        assert rows.shape == (3, width)
        assert rows.sum() == 3 * (size + 1)
        assert rows.ctypes.data % 64 == 0
