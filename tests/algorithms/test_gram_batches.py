"""gram in batches: running sums, a head that changes, and each user once a period."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.gram.model import RunningSums
from sottovoce.algorithms.gram.system import FACTORS, SCALE, GramConfig, Q
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS, numbers_of
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView, SummedReports
from sottovoce.engines.observers import AtRounds
from sottovoce.engines.simulation import joining
from sottovoce.errors import ConfigError, Stalled
from sottovoce.privacy.own_epsilon import OwnEpsilon, mark_of
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import RunCheckpoint
from sottovoce.testing import random_world

N, M = 120, 25
TRAIN = random_world(N, M, 1200, seed=1)
TRAIN = replace(TRAIN, timestamps=np.random.default_rng(0).permutation(TRAIN.n_interactions))
CONFIG = GramConfig(least_head=8, most_head=8, embedding_size=6, batches=4, popularity_share=0.3)


def federation(config=CONFIG, epsilon=8.0, train=TRAIN, choices=None, least=20):
    users = np.arange(train.n_users)
    mix = choices or [Choice(epsilon=epsilon)]
    consent = Consent.of(users, mix, users % len(mix))
    release, link = OwnEpsilon(epsilon), SecureSum(least)
    return Federation.build(config, train, consent, release, Streams.from_seed(3), link=link)


def tables(made, stops=range(1, 9), messages=()):
    seen = {}

    def look(moment):
        seen[moment.round] = moment.items.copy(), moment.memory.copy(), moment.cohort.sent.copy()

    made.run([AtRounds(tuple(stops), look)], messages)
    return seen


def told(round, sums):
    every = np.arange(len(sums), dtype=np.int32)
    return SummedReports(round, every, np.rint(sums * STEPS).astype(np.int64)[:, None], 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.data())
def test_running_sums_come_back_from_a_servers_memory(n, data):
    head = data.draw(st.lists(st.integers(0, n - 1), unique=True).map(sorted))
    rng = np.random.default_rng(n)
    kept = RunningSums.empty(3, n)
    kept.q, kept.count, kept.done = rng.integers(0, 99, n) / 4.0, 12.5, 2
    kept.move_head(np.array(head, dtype=np.int64))
    kept.add_pairs(rng.integers(-50, 99, numbers_of(len(head), True)) / 8.0)
    memory = kept.memory()
    assert (len(memory), memory.dtype) == (n, np.float32)
    again = RunningSums.read(memory)
    assert (again.period, again.done, again.count) == (3, 2, 12.5)
    for name in ("q", "age", "pairs"):
        assert np.array_equal(getattr(again, name), getattr(kept, name))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, unique=True).map(sorted), min_size=1))
def test_a_pair_has_the_sums_since_both_items_are_in_the_head(heads):
    kept, model = RunningSums.empty(0, 10), {}
    for turn, head in enumerate(heads):
        kept.move_head(np.array(head))
        pairs = [(i, i) for i in head] + [(i, j) for i in head for j in head if i < j]
        model = {pair: model.get(pair, (0.0, 0)) for pair in pairs}
        kept.add_pairs(np.full(len(pairs), turn + 1.0))
        model = {pair: (total + turn + 1, age + 1) for pair, (total, age) in model.items()}
        assert kept.pairs.tolist() == [model[pair][0] for pair in pairs]
        # An item that left and came back is new, whatever the other one of the pair is.
        assert np.concatenate(kept.pair_ages()).tolist() == [model[pair][1] for pair in pairs]


def test_sums_in_batches_come_to_what_they_are_at_once():
    """With nothing hidden: the same model, whatever the batches."""
    config = replace(CONFIG, least_head=M, most_head=M)
    once, later = (
        replace(config, batches=b).build_under(OwnEpsilon(64.0), None, 1) for b in (1, 4)
    )
    rng = np.random.default_rng(5)
    profiles = rng.random((40, M)) * (rng.random((40, M)) < 0.3)
    profiles /= np.linalg.norm(profiles, axis=1, keepdims=True) + 1e-9
    upper = np.triu_indices(M, 1)

    def pairs(rows):
        whole = profiles[rows].T @ profiles[rows]
        return np.concatenate([np.diag(whole), whole[upper]])

    def count(rows):
        return np.append(profiles[rows].sum(axis=0), len(rows) * np.sqrt(0.1))

    made = []
    for algorithm, parts in ((once, [np.arange(40)]), (later, np.split(np.arange(40), 4))):
        quiet = replace(algorithm, sigma=1e-6)
        items, memory = quiet.server_init(M, Streams.from_seed(0)), quiet.server_memory(M)
        for batch, rows in enumerate(parts):
            items, memory = quiet.server_fold(items, memory, told(2 * batch, count(rows)))
            items, memory = quiet.server_fold(items, memory, told(2 * batch + 1, pairs(rows)))
        factors = items[:, FACTORS:]
        made.append((items[:, Q], (factors @ factors.T) * items[:, SCALE]))
    assert np.allclose(made[0][0], made[1][0], rtol=1e-2)  # 8 bits are published
    largest = np.abs(made[0][1]).max()
    assert np.abs(made[0][1] - made[1][1]).max() < 0.05 * largest


@pytest.mark.parametrize("noise", ["independent", "factorised"])
def test_everybody_is_in_each_stage_once_from_her_batch_on_and_pays_her_epsilon(noise):
    made = federation(
        replace(CONFIG, noise=noise), choices=[Choice(epsilon=8.0), Choice(epsilon=2)]
    )
    joins = joining(TRAIN, np.arange(N), 4)
    first = [TRAIN.timestamps[TRAIN.users == user].min() for user in range(N)]
    assert np.array_equal(np.argsort(first), np.argsort(joins * 10**6 + first))
    assert np.bincount(joins).tolist() == [30] * 4
    seen = tables(made)
    for round, (_, _, sent) in seen.items():
        done = np.where(joins < round // 2, 0b11, np.where(joins == round // 2, round % 2, 0))
        assert np.array_equal(sent, done)
    assert np.allclose(made.devices.cohort.spent[::2], 8.0, rtol=1e-8)
    assert np.allclose(made.devices.cohort.spent[1::2], 2.0, rtol=1e-8)
    ledger = made.devices.ledger.pending()
    booked = set(zip(ledger["user"].to_pylist(), ledger["round"].to_pylist(), strict=True))
    assert booked == {(user, 2 * joins[user] + stage) for user in range(N) for stage in (0, 1)}


@pytest.mark.parametrize("noise", ["independent", "factorised"])
def test_after_popularity_of_a_later_batch_the_model_before_still_recommends(noise):
    made = federation(replace(CONFIG, noise=noise), epsilon=64.0)
    seen, algorithm = tables(made), made.server.algorithm
    moved = 0
    for round in (3, 5, 7):
        before, after = seen[round - 1][0], seen[round][0]
        assert np.array_equal(before[:, FACTORS:], after[:, FACTORS:])
        assert np.array_equal(np.abs(before[before[:, SCALE] > 0, SCALE]),
                              np.abs(after[before[:, SCALE] > 0, SCALE]))  # fmt: skip
        coming = np.flatnonzero(after[:, SCALE] > 0)
        assert len(coming) == 8
        moved += len(np.setdiff1d(coming, np.flatnonzero(before[:, SCALE] > 0)))
        shape = algorithm.report_shape(ModelView(round, after))
        assert shape == (numbers_of(8, True), 1)
        vectors = np.ones((1, 6), np.float32)
        scores = [algorithm.device_scorer(vectors, table) for table in (before, after)]
        assert np.array_equal(scores[0].item_factors, scores[1].item_factors)
    assert moved, "no head has changed: the test says nothing"


def test_who_never_contributes_is_served_like_who_does():
    """A user who joins tomorrow: her history at home and the model are enough."""
    mine = TRAIN.users == 0
    twins = Interactions.from_pairs(
        np.append(TRAIN.users, np.full(mine.sum(), N)),
        np.append(TRAIN.items, TRAIN.items[mine]),
        timestamps=np.append(TRAIN.timestamps, TRAIN.timestamps[mine]),
        n_users=N + 1,
        n_items=M,
    )
    users = np.arange(N + 1)
    consent = Consent.of(users, [Choice(epsilon=64.0), Choice(takes_part=False)], users // N)
    made = Federation.build(
        CONFIG, twins, consent, OwnEpsilon(64.0), Streams.from_seed(3), link=SecureSum(20)
    )
    made.run()
    vectors = made.vectors()
    assert made.devices.cohort.sent[N] == made.devices.cohort.spent[N] == 0
    assert vectors[N].any()
    assert np.array_equal(vectors[N], vectors[0])


class Ears:
    def __init__(self):
        self.heard = 0

    def on_message(self, party, message):
        self.heard += 1


@pytest.mark.parametrize("noise", ["independent", "factorised"])
def test_masked_messages_and_a_run_that_was_stopped_come_to_the_same(noise):
    config, ears = replace(CONFIG, noise=noise), Ears()
    plain, masked = federation(config), federation(config)
    seen = tables(plain)
    tables(masked, messages=[ears])
    assert ears.heard == 8 * (1 + 2 + 1 + 1)  # published, masked, seeds, masks: all was written out
    assert np.array_equal(plain.server.items, masked.server.items)
    assert np.array_equal(plain.server.memory, masked.server.memory)
    for stop in (3, 4):
        items, memory, sent = seen[stop]
        again = federation(config)
        half = federation(config)
        half.schedule = replace(half.schedule, rounds=stop)
        half.run()
        saved = RunCheckpoint(
            stop, items, half.devices.cohort.vectors, half.devices.ledger.totals,
            memory=memory, spent=half.devices.cohort.spent, sent=sent,
        )  # fmt: skip
        again.restore(saved)
        again.run()
        assert np.array_equal(plain.server.items, again.server.items)


def test_one_batch_is_what_it_was_whatever_the_noise():
    one, other = (
        federation(replace(CONFIG, batches=1, noise=n)) for n in ("independent", "factorised")
    )
    one.run()
    other.run()
    assert np.array_equal(one.server.items, other.server.items)
    assert one.server.memory.shape == (M, 1)


def test_the_noise_on_the_popularity_of_a_year_is_what_the_algorithm_says():
    train = random_world(40, 4000, 200, seed=2)
    for noise in ("independent", "factorised"):
        config = replace(CONFIG, noise=noise, most_head=20)
        made = federation(config, epsilon=1.0, train=train, least=5)
        seen = tables(made, stops=(1, 7))
        each = made.server.algorithm.sigma / np.sqrt(0.3 * 0.9)
        for round, done in ((1, 1), (7, 4)):
            q = RunningSums.read(seen[round][1]).q
            assert np.std(q) == pytest.approx(each * config.deviation(done), rel=0.05)


def test_a_new_period_begins_with_nothing_and_the_model_stays_until_its_pairs_are_in():
    made = federation(epsilon=64.0)
    made.run()
    algorithm, items = made.server.algorithm, made.server.items
    sums = np.zeros(M + 1)
    sums[3], sums[-1] = 5.0, 3.0
    after, memory = algorithm.server_fold(items, made.server.memory, told(8, sums))
    kept = RunningSums.read(memory)
    assert (kept.period, kept.done) == (1, 1)
    assert not kept.pairs.any()
    assert kept.age.max() == 0
    assert np.argmax(after[:, Q]) == 3
    assert after[3, SCALE] > 0
    assert np.array_equal(after[:, FACTORS:], items[:, FACTORS:])


@pytest.mark.parametrize("noise", ["independent", "factorised"])
def test_pairs_may_begin_later_and_then_everybody_who_has_joined_is_in_them(noise):
    config = replace(CONFIG, noise=noise, pairs_from=2)
    made, joins = federation(config, epsilon=64.0), joining(TRAIN, np.arange(N), 4)
    seen = tables(made)
    assert all(not seen[round][0][:, FACTORS:].any() for round in range(1, 6))
    assert seen[6][0][:, FACTORS:].any()
    assert np.array_equal(seen[5][2], np.where(joins <= 2, 1, 0))
    assert np.array_equal(seen[6][2], np.where(joins <= 2, 3, 0))
    assert (made.devices.cohort.sent == 3).all()
    assert np.allclose(made.devices.cohort.spent, 64.0, rtol=1e-8)
    ledger = made.devices.ledger.pending()["round"].to_numpy()
    assert np.bincount(ledger).tolist() == [30, 0, 30, 0, 30, 90, 30, 30]
    with pytest.raises(ConfigError, match="pairs_from"):
        replace(CONFIG, pairs_from=4)
    for later in (config, replace(CONFIG, noise="factorised")):
        if later.factorised or later.pairs_from:
            with pytest.raises(ConfigError, match="simulation alone"):
                later.check_terms()


def test_rounds_are_stages_of_batches_of_periods_and_one_that_is_given_up_ends_its_batch():
    algorithm = CONFIG.build_under(OwnEpsilon(8.0), None, 1)
    where = [(algorithm.period(r), algorithm.batch(r), algorithm.stage(r)) for r in range(20)]
    assert where == [(r // 8, r // 2 % 4, r % 2) for r in range(20)]
    assert [algorithm.after_given_up(r) for r in range(5)] == [2, 2, 4, 4, 6]
    for round in range(20):
        after = algorithm.after_given_up(round)
        assert algorithm.stage(after) == 0
        assert mark_of(after, 2, 4) & 1


def test_without_times_users_come_in_the_order_of_their_numbers():
    plain = replace(TRAIN, timestamps=None)
    rows = np.arange(0, N, 2)
    joins = joining(plain, rows, 3)
    assert np.array_equal(joins[rows], np.repeat([0, 1, 2], 20))
    assert (joins[1::2] == -1).all()


def test_bad_settings_and_batches_that_are_too_small_get_a_sentence():
    for batches in (0, 521, 1.5):
        with pytest.raises(ConfigError, match="batches"):
            replace(CONFIG, batches=batches)
    with pytest.raises(ConfigError, match="independent or factorised"):
        replace(CONFIG, noise="none")
    with pytest.raises(Stalled, match="may still send"):
        federation(least=31).run()


def test_a_server_that_was_set_back_begins_with_a_batch():
    gram = GramConfig(popularity_share=0.3, batches=3).build_under(OwnEpsilon(8.0), None, 1)
    assert [gram.begins_at(round) for round in range(6)] == [0, 2, 2, 4, 4, 6]
    assert [gram.after_given_up(round) for round in range(4)] == [2, 2, 4, 4]
