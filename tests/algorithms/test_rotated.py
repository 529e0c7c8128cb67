"""Reports about rotated histories: what is reported, and what the server makes of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from sottovoce.algorithms.fmf.system import FMF, FMFConfig, rotated
from sottovoce.core.arrays import count_bits
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.messages import BitCounts
from sottovoce.core.one_bit import ReportRule, bits, coordinates, lowest, noise_keys, noise_root
from sottovoce.errors import DataError, Diverged
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

TRAIN = random_world(60, 50, 600, seed=1)
USERS = np.arange(60, dtype=np.int64)
ITEMS = Streams(5).normal(np.arange(50, dtype=np.int64), 3).astype(np.float32)


def rule(reports, epsilon=16.0, round=0, users=USERS):
    return ReportRule(
        keys=Streams(3).child(round).keys(users),
        noise=noise_keys(noise_root(4), users),
        round=round,
        low=np.full(len(users), lowest(epsilon), np.uint64),
        reports=reports,
        scale=1.0,
    )


def true_values(items=ITEMS, train=TRAIN):
    """sign(z_f · t_h) of every user and coordinate, written out with SciPy's Hadamard matrix."""
    matrix = hadamard(rotated.order(train.n_items))[:, rotated.columns(train.n_items)]
    member = np.zeros((train.n_users, train.n_items))
    member[train.users, train.items] = 1.0
    z, t = member @ items.astype(np.float64), member @ matrix.T
    return np.sign(t[:, :, None] * z[:, None, :])


def test_a_nearly_certain_report_is_the_sign_of_the_history_through_one_row():
    sent = rotated.learn_reports(ITEMS, USERS, TRAIN.indptr, TRAIN.items, rule(400))
    at, bit = coordinates(sent), bits(sent)
    value = true_values().reshape(60, -1)[USERS[:, None], at]
    agree = np.where(bit, 1.0, -1.0) == value
    assert agree[value != 0].all()  # at ε = 16 one bit in nine million is wrong
    assert 0.4 < bit[value == 0].mean() < 0.6  # nothing to tell: a fair coin
    assert set(np.unique(at)) == set(range(64 * 3))


@pytest.mark.parametrize("epsilon", [0.5, 2.5])
def test_bits_agree_with_the_sign_as_often_as_epsilon_says_and_no_more(epsilon):
    sent = rotated.learn_reports(ITEMS, USERS, TRAIN.indptr, TRAIN.items, rule(4000, epsilon))
    value = true_values().reshape(60, -1)[USERS[:, None], coordinates(sent)]
    agree = (np.where(bits(sent), 1.0, -1.0) == value)[value != 0]
    promised = 1.0 / (1.0 + np.exp(-epsilon))
    assert abs(agree.mean() - promised) < 4 * np.sqrt(promised * (1 - promised) / len(agree))


@given(st.integers(2, 3000))
@settings(max_examples=60, deadline=None)
def test_every_item_has_a_column_of_its_own(n_items):
    found = rotated.columns(n_items)
    assert len(np.unique(found)) == n_items
    assert found.max() < rotated.order(n_items) < 2 * max(n_items, 2)


@given(st.integers(2, 70), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_turning_back_is_multiplying_with_the_matrix(n_items, size):
    values = np.random.default_rng(n_items).normal(size=(rotated.order(n_items), size))
    matrix = hadamard(len(values))[:, rotated.columns(n_items)]
    assert np.allclose(rotated.turned_back(values, n_items), matrix.T @ values)


def test_the_estimate_is_the_mean_of_what_devices_hold_turned_back():
    """Unbiased, with noise, over many rounds; dividing by the devices instead is rejected."""
    algorithm, total, rounds, k = FMF(FMFConfig("rotated", 3), (1.5,)), 0.0, 300, 50
    for round in range(rounds):
        sums = np.zeros((1, algorithm.coordinates(50)), np.int64)
        sent = rotated.learn_reports(ITEMS, USERS, TRAIN.indptr, TRAIN.items, rule(k, 1.5, round))
        assert count_bits(sent.ravel(), sums[0])
        counts = BitCounts(round, (60,), (60 * k,), sums)
        total = total + algorithm.estimate(ITEMS, counts) / rounds
    expected = rotated.turned_back(true_values().mean(axis=0), 50) / 64
    slope = (total * expected).sum() / (expected**2).sum()
    # Each number is 1/(64·q) times a mean of ±1/contrast, q = 1/(64·3).
    sd = 3 / np.tanh(0.75) / np.sqrt(60 * k * rounds) / np.sqrt((expected**2).sum())
    assert abs(slope - 1.0) < 4 * sd < 0.1
    assert abs(k * slope - 1.0) > 4 * k * sd


def test_alone_in_a_batch_and_in_threads_the_reports_are_the_same():
    many = random_world(5000, 300, 20000, seed=3)
    users = np.arange(5000, dtype=np.int64)
    items = Streams(1).normal(np.arange(300, dtype=np.int64), 4).astype(np.float32)
    asked = rule(20, 2.0, users=users)
    one = rotated.learn_reports(items, users, many.indptr, many.items, asked, 1)
    two = rotated.learn_reports(items, users, many.indptr, many.items, asked, 2)
    assert np.array_equal(one, two)
    alone = rule(20, 2.0, users=users[[77]])
    single = rotated.learn_reports(items, users[[77]], many.indptr, many.items, alone)
    assert np.array_equal(single[0], one[77])


def test_a_device_without_items_sends_fair_coins():
    nobody = np.zeros(2, np.int64)
    sent = rotated.learn_reports(
        ITEMS, np.array([0]), nobody, np.zeros(0, np.int32), rule(4000, users=USERS[:1])
    )
    assert 0.46 < bits(sent).mean() < 0.54


def test_what_cannot_be_reported_about_is_refused():
    broken = ITEMS.copy()
    broken[3, 1] = np.nan
    with pytest.raises(Diverged):
        rotated.learn_reports(broken, USERS, TRAIN.indptr, TRAIN.items, rule(5))
    with pytest.raises(DataError):
        rotated.learn_reports(ITEMS[:20], USERS, TRAIN.indptr, TRAIN.items, rule(5))


def test_columns_come_out_orthogonal_by_falling_weight_and_without_a_sign():
    rng = np.random.default_rng(2)
    moved = rotated.moved(rng.normal(size=(40, 5)), rng.normal(size=(40, 5)), 0.3)
    overlap = moved.T @ moved
    assert np.allclose(overlap, np.diag(np.diag(overlap)), atol=1e-12)
    assert (moved.sum(axis=0) >= 0).all()
    assert np.isfinite(rotated.moved(np.zeros((6, 3)), np.zeros((6, 3)), 1.0)).all()


def test_with_little_noise_it_finds_what_users_have_in_common():
    """Two kinds of users, each with its own half of the items: one direction tells them apart."""
    rng = np.random.default_rng(7)
    kind = np.arange(400) % 2
    pairs = [(u, 2 * i + kind[u]) for u in range(400) for i in rng.choice(20, 8, replace=False)]
    from sottovoce.core.interactions import Interactions

    train = Interactions.from_pairs(*zip(*pairs, strict=True), n_users=400, n_items=40)
    users = np.arange(400, dtype=np.int64)
    consent = Consent.uniform(users, Choice(epsilon=6.0, max_reports=200))
    made = Federation.build(
        FMFConfig("rotated", 2, alpha=1.0, rounds=15),
        train, consent, KReports(200, (Tier(6.0, 10),)), Streams(2),
    )  # fmt: skip
    made.run()
    sides = np.sign(made.server.items)
    apart = [set(c[0::2]) == {-d} and set(c[1::2]) == {d} for c in sides.T for d in (-1.0, 1.0)]
    alike = [len(set(c)) == 1 for c in sides.T]
    assert any(apart), "no direction tells the kinds apart"
    assert any(alike), "no direction is what all have in common"
