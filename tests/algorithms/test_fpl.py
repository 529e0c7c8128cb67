"""FPL's configurations, schedule, published costs and equivalences."""

import numpy as np
import pytest

from sottovoce.algorithms.base import Schedule, Signs
from sottovoce.algorithms.fpl.system import CONFIGURATIONS, FPL, FPLConfig, published_cost, schedule
from sottovoce.baselines.bpr_mf import BPRMF
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.messages import ModelView, SummedReports
from sottovoce.errors import ConfigError, Diverged
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.testing import random_world, small_run
from sottovoce_papers.files import installed

PRINTED = installed("fpl-table3")["values"]
BRAZIL = PRINTED["counts"]


def test_sfpl_with_everything_shared_is_bpr_mf_bit_for_bit():
    train = random_world(37, 81, 700, seed=11)
    epochs = 3
    config = FPLConfig(configuration="sFPL", embedding_size=8, epochs=epochs)
    plan = schedule(config, train.n_users, train.n_interactions)
    federated = small_run(
        FPL(config, plan.triples),
        train,
        rounds=plan.rounds,
        cohort_size=1,
        choice=Choice(share_positives=1.0),
        seed=5,
        written=True,
    )
    central = BPRMF(embedding_size=8, epochs=epochs).fit(train, Streams.from_seed(5))
    assert np.array_equal(federated.items[:, :-1], central.item_factors)
    assert np.array_equal(federated.items[:, -1], central.item_bias)
    assert np.array_equal(federated.vectors, central.user_factors)


def test_bpr_mf_follows_the_printed_equations():
    """An independent double-precision loop on the same triples."""
    train = random_world(15, 40, 150, seed=3)
    size, rate = 8, 0.05
    fitted = BPRMF(embedding_size=size, learning_rate=rate, epochs=2).fit(
        train, Streams.from_seed(9)
    )
    rng = Streams.from_seed(9)
    start = FPL(FPLConfig(configuration="sFPL", embedding_size=size, learning_rate=rate), 1)
    items = start.server_init(train.n_items, rng).astype(np.float64)
    q, b = items[:, :size].copy(), items[:, size].copy()
    p = start.device_init(np.arange(train.n_users), rng).astype(np.float64)
    mask = (1 << 64) - 1
    for step in range(2 * train.n_interactions):
        u = int(rng.child("select", step).choose(train.n_users, 1)[0])
        row = train.row(u)
        word = int(rng.child("learn", step).words(np.array([u]), 1)[0, 0])
        i = int(row[((word >> 32) * len(row)) >> 32])
        j = ((word & 0xFFFFFFFF) * train.n_items) >> 32
        while j in row:
            word = _mix((word + 0x9E3779B97F4A7C15) & mask)
            j = ((word & 0xFFFFFFFF) * train.n_items) >> 32
        x = b[i] + p[u] @ q[i] - b[j] - p[u] @ q[j]
        s = 1.0 / (1.0 + np.exp(x))
        old, qi, qj = p[u].copy(), q[i].copy(), q[j].copy()
        p[u] += rate * (s * (qi - qj) - rate / 20 * old)
        q[i] += rate * (s * old - rate / 20 * qi)
        q[j] += rate * (-s * old - rate / 200 * qj)
        b[i] += rate * s
        b[j] -= rate * s
    assert np.allclose(fitted.user_factors, p, atol=2e-6)
    assert np.allclose(fitted.item_factors, q, atol=2e-6)
    assert np.allclose(fitted.item_bias, b, atol=2e-6)


def _mix(z):
    mask = (1 << 64) - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@pytest.mark.parametrize("triples", [1, 5])
def test_pfpl_with_one_user_is_sfpl(triples):
    train = random_world(1, 30, 12, seed=2)
    algorithm = FPL(FPLConfig(embedding_size=3), triples)
    parallel = small_run(algorithm, train, rounds=25, fuse=False, threads=2)
    sequential = small_run(algorithm, train, rounds=25, cohort_size=1, fuse=True)
    assert parallel.equals(sequential)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("per", ["draw", "item"])
def test_batching_and_messages_do_not_change_any_configuration(name, per):
    train = random_world(60, 100, 1100, seed=8)
    config = FPLConfig(configuration=name, embedding_size=8, rounds=8)
    plan = schedule(config, train.n_users, train.n_interactions)
    users = np.arange(train.n_users)
    consent = Consent.of(
        users,
        [Choice(share_positives=share) for share in (0.0, 0.3, 1.0)],
        users % 3,
    )
    runs = [
        small_run(
            FPL(config, plan.triples),
            train,
            rounds=plan.rounds,
            cohort_size=plan.cohort_size,
            consent=consent,
            release=ShareFraction(per),
            **how,
        )
        for how in ({}, {"threads": 2}, {"fuse": False}, {"written": True})
    ]
    assert all(runs[0].equals(other) for other in runs[1:])


def test_brazil_communication_cost_to_the_last_digit():
    for share, single, plus in PRINTED["cost"]:
        n, m, x = BRAZIL["users"], BRAZIL["items"], BRAZIL["positives"]
        assert round(published_cost(n, m, x, False, share)) == single
        assert round(published_cost(n, m, x, True, share)) == plus


def test_brazil_freshness():
    for name, percent in PRINTED["freshness"].items():
        plan = schedule(FPLConfig(configuration=name), BRAZIL["users"], BRAZIL["positives"])
        assert round(100 * plan.freshness, 4) == percent


def test_schedule_of_the_four_configurations():
    expect = {"sFPL": (1, 1, 1000), "sFPL+": (1, 25, 1000), "pFPL": (40, 1, 25),
              "pFPL+": (40, 25, 25)}  # fmt: skip
    for name, (size, triples, per_epoch) in expect.items():
        plan = schedule(FPLConfig(configuration=name, epochs=3), 40, 1000)
        assert (plan.cohort_size, plan.triples, plan.rounds_per_epoch) == (size, triples, per_epoch)
        assert plan.rounds == 3 * per_epoch


def test_impossible_schedules_raise():
    with pytest.raises(ConfigError, match="no device can take part"):
        schedule(FPLConfig(), 0, 0)
    with pytest.raises(ConfigError, match="fewer positives than devices"):
        schedule(FPLConfig(), 10, 9)
    with pytest.raises(ConfigError, match="only 3 devices"):
        schedule(FPLConfig(cohort_size=4), 3, 30)


def test_a_model_that_runs_off_is_reported():
    train = random_world(200, 20, 2000, seed=1)
    algorithm = FPL(FPLConfig(embedding_size=3, learning_rate=10.0, reg_user=1.0), 40)
    with pytest.raises(Diverged, match="learning_rate"):
        small_run(algorithm, train, rounds=400, choice=Choice(share_positives=1.0))


def test_initial_values_have_the_stated_spread_and_do_not_depend_on_the_cohort():
    algorithm = FPL(FPLConfig(embedding_size=16), 1)
    rng = Streams.from_seed(4)
    vectors = algorithm.device_init(np.arange(4000), rng)
    assert abs(vectors.std() - 0.1) < 0.002
    assert abs(vectors.mean()) < 0.002
    assert np.array_equal(algorithm.device_init(np.array([17, 3]), rng), vectors[[17, 3]])
    zero = FPL(FPLConfig(embedding_size=16, init_bias="zero"), 1).server_init(50, rng)
    assert np.all(zero[:, -1] == 0)
    assert np.any(algorithm.server_init(50, rng)[:, -1] != 0)


def test_a_server_by_adagrad_takes_the_same_steps_whatever_the_number_of_devices():
    """Twice the devices make twice the sum, and not a larger step; rows that nobody names stay."""
    config = FPLConfig(embedding_size=3, server_rate=0.2)
    server = FPL(config, 5)
    items = server.server_init(6, Streams.from_seed(1))
    memory = server.server_memory(6)
    assert memory.shape == (6, 4)
    rows = np.array([1, 4], dtype=np.int32)
    sums = np.array([[5, -3, 0, 7], [1, 2, 4, 8]], dtype=np.int64) << 20

    def folded(times):
        at, kept = items, memory
        for round in range(3):
            told = SummedReports(round, rows, times * sums * (1 - 2 * (round == 1)), 9)
            at, kept = server.server_fold(at, kept, told)
        return at, kept

    one, many = folded(1), folded(1000)
    assert np.allclose(one[0], many[0], atol=1e-6)
    first = server.server_fold(items, memory, SummedReports(0, rows, sums, 9))[0]
    assert np.allclose((first - items)[rows], 0.2 * np.sign(sums), atol=1e-6)
    untouched = [0, 2, 3, 5]
    assert np.array_equal(one[0][untouched], items[untouched])
    assert not one[1][untouched].any()
    # 1 − 1/√2 + 1/√3 of a step, in three rounds of which the second goes back.
    assert np.allclose(
        (one[0] - items)[rows], 0.2 * np.sign(sums) * (1 - 0.5**0.5 + 3**-0.5), atol=1e-5
    )


def test_rows_of_zeros_and_rows_that_are_missing_are_the_same_to_adagrad():
    server = FPL(FPLConfig(embedding_size=3, server_rate=0.2), 5)
    items, memory = server.server_init(6, Streams.from_seed(1)), server.server_memory(6)
    some = np.array([[1, 2, 3, 4]], dtype=np.int64)
    every = np.zeros((6, 4), dtype=np.int64)
    every[2] = some
    sparse = server.server_fold(
        items, memory, SummedReports(0, np.array([2], dtype=np.int32), some, 3)
    )
    dense = server.server_fold(
        items, memory, SummedReports(0, np.arange(6, dtype=np.int32), every, 3)
    )
    assert all(np.array_equal(a, b) for a, b in zip(sparse, dense, strict=True))


def test_one_device_a_round_is_not_fused_where_the_server_divides():
    train = random_world(12, 30, 120, seed=2)
    config = FPLConfig(embedding_size=3, cohort_size=1, triples=3, server_rate=0.1)
    runs = [
        small_run(
            FPL(config, 3), train, rounds=25, cohort_size=1, choice=Choice(share_positives=1.0),
            seed=5, written=written,
        )
        for written in (True, False)
    ]  # fmt: skip
    assert np.array_equal(runs[0].items, runs[1].items)
    plain = small_run(
        FPL(FPLConfig(embedding_size=3, cohort_size=1, triples=3), 3), train, rounds=25,
        cohort_size=1, choice=Choice(share_positives=1.0), seed=5,
    )  # fmt: skip
    assert not np.allclose(runs[0].items, plain.items, atol=1e-3)


def test_what_a_model_looks_like_names_the_setting():
    plan = Schedule(100, 1000, 100, 10, 10, 200)
    config = FPLConfig(server_rate=0.2, reg_user=0.5)
    assert "reg_user (0.5)" in config.suspects(plan, Signs(1.0, 0.97))[0]
    assert "server_rate (0.2)" in config.suspects(plan, Signs(80.0, 0.97))[0]
    few = Schedule(100, 1000, 100, 10, 10, 2)
    assert "algorithm.rounds (there were 2)" in config.suspects(few, Signs(1.0, 0.97))[0]
    assert (
        "learning_rate (0.001)"
        in (FPLConfig(learning_rate=0.001, reg_user=0.01).suspects(plan, Signs(1.0, 0.97))[0])
    )
    assert "reg_user (0.5) is likely too small" in config.suspects(plan, Signs(1.0, 0.1))[0]
    assert config.suspects(plan, Signs(1.0, 0.5)) == ()


def by_interaction(triples=16, **more):
    return FPLConfig(embedding_size=3, triples=triples, draws_by="interaction", **more)


def test_by_interaction_a_device_draws_as_often_as_it_has_positives():
    config = by_interaction()
    held = np.array([1, 2, 3, 4, 7, 8, 15, 16, 17, 900])
    assert config.own_draws(held, 16).tolist() == [1, 2, 2, 4, 4, 8, 8, 16, 16, 16]
    assert FPLConfig().own_draws(held, 16).tolist() == [16] * 10
    assert schedule(FPLConfig(draws_by="interaction"), 10, 1005).triples == 201
    exact = FPLConfig(draws_by="positives")
    assert exact.own_draws(held, 16).tolist() == [1, 2, 3, 4, 7, 8, 15, 16, 16, 16]
    assert schedule(exact, 10, 1005).triples == 1005
    assert exact.draws_each(schedule(exact, 10, 1005)) == 100.5
    assert exact.most_draws(held, 1005) == 900
    with pytest.raises(ConfigError, match="draws_by"):
        FPLConfig(draws_by="device")


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("draws_by", ["interaction", "positives"])
def test_by_interaction_messages_and_sums_are_the_same(share, draws_by):
    """What devices write out, added up, is what simulations sum; a device alone draws the same."""
    train = random_world(23, 61, 500, seed=4)
    config = FPLConfig(embedding_size=3, triples=16, draws_by=draws_by, server_rate=0.1)
    runs = [
        small_run(
            FPL(config, 16), train, rounds=6, cohort_size=cohort,
            choice=Choice(share_positives=share), seed=5, written=written,
        )
        for written in (True, False)
        for cohort in (23,)
    ]  # fmt: skip
    assert np.array_equal(runs[0].items, runs[1].items)
    assert np.array_equal(runs[0].vectors, runs[1].vectors)
    alike = small_run(
        FPL(FPLConfig(embedding_size=3, triples=16, server_rate=0.1), 16), train, rounds=6,
        cohort_size=23, choice=Choice(share_positives=share), seed=5,
    )  # fmt: skip
    assert not np.array_equal(runs[0].items, alike.items)


def test_rounds_of_one_device_may_be_fused_where_draws_follow_positives():
    train = random_world(23, 61, 500, seed=4)
    config = FPLConfig(embedding_size=3, triples=16, draws_by="positives", cohort_size=1)
    runs = [
        small_run(FPL(config, 16), train, rounds=90, cohort_size=1, seed=5, written=written)
        for written in (True, False)
    ]
    assert FPL(config, 16).fuses
    assert np.array_equal(runs[0].items, runs[1].items)
    assert np.array_equal(runs[0].vectors, runs[1].vectors)


def test_by_interaction_no_device_sends_more_than_it_has_drawn():
    train = random_world(23, 61, 500, seed=4)
    algorithm, users = FPL(by_interaction(), 16), np.arange(23, dtype=np.int64)
    rng = Streams.from_seed(3)
    consent = Consent.uniform(users, Choice(share_positives=1.0))
    cohort = Cohort(users, train, consent, algorithm.device_init(users, rng))
    view = ModelView(0, algorithm.server_init(61, rng))
    able = np.flatnonzero(cohort.able())
    made = algorithm.device_learn(view, cohort, able, rng)
    own = by_interaction().own_draws(train.counts[able], 16)
    assert np.array_equal(np.bincount(made.row, minlength=len(able)), 2 * own)
    assert (np.diff(made.row) >= 0).all()
    assert np.array_equal(made.item[1::2], train.items[made.entry[1::2]])
