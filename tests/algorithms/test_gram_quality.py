"""gram's round about quality: what is held out, what is told, and whether the intervals hold."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.gram import quality
from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS, cut
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import top_n
from sottovoce.experiment import Experiment
from sottovoce.parties.server import quality_trouble
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.report import write_run_report
from sottovoce.runs.train import run_experiment
from sottovoce.testing import checkerboard, random_world

TOWN = {
    "algorithm": {"name": "gram", "quality_share": 0.2}, "data": {"source": "town"},
    "town": {"residents": 150}, "consent": {"epsilon": 8.0}, "release": {"epsilon": 8.0},
    "seed": 5, "baselines": {},
}  # fmt: skip


def timed(table, seed=0):
    times = np.random.default_rng(seed).permutation(table.n_interactions)
    return replace(table, timestamps=times)


WORLD = timed(random_world(200, 40, 2400, seed=2))


def federation(table=WORLD, epsilon=8.0, seed=3, consent=None, **changes):
    given = {"least_head": 10, "most_head": 20, "embedding_size": 12, "quality_share": 0.2}
    records = consent or Consent.uniform(np.arange(table.n_users), Choice(epsilon=epsilon))
    return Federation.build(
        GramConfig(**given | changes), table, records, OwnEpsilon(epsilon),
        Streams.from_seed(seed), link=SecureSum(20),
    )  # fmt: skip


def by_hand(made, table, share):
    """The rates of hits of everybody who holds something out, ranked one by one."""
    algorithm, server = made.server.algorithm, made.server
    before, held = quality.parted(table, share)
    popular = server.items.copy()
    popular[:, SCALE:] = 0
    rates = []
    for items in (server.items, server.published.items, popular):
        cohort = replace(made.devices.cohort.take(np.arange(table.n_users)), history=before)
        algorithm.device_fit(ModelView(0, items), cohort, Streams.from_seed(0))
        lists, _ = top_n(
            algorithm.device_scorer(cohort.vectors, items), range(table.n_users), before, 10
        )
        hit = [set(lists[u]) & set(held.row(u)) for u in range(table.n_users) if len(held.row(u))]
        rates.append(np.mean([bool(found) for found in hit]))
    return rates


# --- what is held out -----------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.floats(0.0, 0.5), st.booleans())
@settings(max_examples=50)
def test_the_latest_are_held_out_and_nothing_is_lost(seed, share, with_times):
    table = random_world(20, 30, 150, seed=seed)
    if with_times:
        times = np.random.default_rng(seed).integers(0, 9, table.n_interactions)
        table = replace(table, timestamps=times)
    before, held = quality.parted(table, share)
    for user in range(20):
        many, mine = len(table.row(user)), held.row(user)
        assert sorted([*before.row(user), *mine]) == table.row(user).tolist()
        assert len(mine) == (max(1, int(share * many)) if many >= 5 else 0)
        if with_times and len(mine):
            span = slice(table.indptr[user], table.indptr[user + 1])
            when = dict(zip(table.row(user), table.timestamps[span], strict=True))
            assert max([when[i] for i in before.row(user)]) <= min(when[i] for i in mine)


def test_without_times_the_choice_says_nothing_of_the_numbers_of_items():
    table = random_world(300, 100, 6000, seed=4)
    _, held = quality.parted(table, 0.2)
    assert abs(held.items.mean() - table.items.mean()) < 4 * 29 / math.sqrt(len(held.items))
    again = quality.parted(table.take_users(np.array([7])), 0.2)[1]
    assert again.row(0).tolist() == held.row(7).tolist()  # alone as among others


def test_what_is_held_out_is_in_no_earlier_sum():
    """The first two sums are those of who never had it."""
    before, held = quality.parted(WORLD, 0.1)
    assert len(held.items)
    one, other = federation(WORLD, held_out=0.1), federation(before, quality_share=0.0)
    for round in range(2):
        views = ModelView(round, one.server.items), ModelView(round, one.server.items)
        sums = [
            made.devices.report_summed(view, np.arange(200))
            for made, view in zip((one, other), views, strict=True)
        ]
        numbers = one.server.algorithm.report_shape(views[0])[0]
        assert np.array_equal(sums[0].dense(numbers), sums[1].dense(numbers))
        one.server.fold(sums[0])


# --- what is told ---------------------------------------------------------------------------------


def test_what_is_told_has_norm_1_whatever_the_answers():
    held = Interactions.from_pairs([0, 1, 3], [0, 1, 2], n_users=4, n_items=5)
    answers = (np.array([1, 0, 1, 0], bool), np.array([0, 0, 1, 1], bool), np.ones(4, bool))
    profile = quality.told(answers, held)
    made = cut(profile, np.ones(4), "gram")
    rows = np.array([made.whole(user) for user in range(4)]) / STEPS
    assert np.array_equal(rows[2], np.zeros(6))  # she held nothing out
    assert (np.sum(rows**2, axis=1)[[0, 1, 3]] <= 1.0).all()
    assert np.sum(rows**2, axis=1)[[0, 1, 3]] == pytest.approx(1.0, abs=1e-4)
    assert (rows[0] > 0).tolist() == [True, False, False, True, True, False]
    assert (rows[3] > 0).tolist() == [False, True, True, False, True, False]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_exact_sums_say_the_true_rates(share):
    made = federation(held_out=share, epsilon=64.0)
    made.schedule = replace(made.schedule, rounds=2)
    made.run()
    assert made.server.round == 2
    made.devices.cohort.published = made.server.published.items
    sums = made.devices.report_summed(made.server.publish(), made.devices.willing(2)).dense(6)
    found = quality.quality_of(sums[:, 0] / STEPS, 0.0)
    wanted = by_hand(made, WORLD, share)
    for which, rate in zip(("candidate", "published", "popularity"), wanted, strict=True):
        assert found.rate(which).value == pytest.approx(rate, abs=1e-4)
    assert found.users == pytest.approx(
        np.sum(quality.parted(WORLD, share)[1].counts > 0), rel=1e-3
    )


@pytest.mark.parametrize("gone", [(0, 0), (3, 0), (0, 4), (3, 4)], ids=str)
def test_a_published_model_of_before_items_came_or_with_fewer_factors_is_still_compared(gone):
    """It is not taken for the candidate, which would say that nothing is worse than itself."""
    items, factors = gone
    made = federation(epsilon=64.0)
    made.schedule = replace(made.schedule, rounds=2)
    made.run()
    n, width = made.server.items.shape
    older = np.random.default_rng(1).permutation(made.server.items)[: n - items, : width - factors]
    before, held = quality.parted(WORLD, 0.1)
    algorithm, table = made.server.algorithm, made.server.items
    found = algorithm._hits(table, older, before, held)
    longer = np.zeros((n, width), np.float32)
    longer[:, 0] = older[:, 0].min()
    longer[: n - items, : width - factors] = older
    same = algorithm._hits(table, longer, before, held)
    assert np.array_equal(found[1], same[1])
    assert not np.array_equal(found[1], found[0])


def test_alone_as_among_others_and_written_out_as_summed():
    one, other = federation(), federation()
    one.run()
    other.run(threads=2, message_observers=[Everything()])
    assert np.array_equal(one.server.memory, other.server.memory)
    assert one.server.offered == other.server.offered
    assert one.devices.ledger.totals.epsilon == pytest.approx(200 * 8.0, rel=1e-6)


class Everything:
    def on_message(self, party, message):
        pass


def test_the_model_stays_and_is_offered_after_its_last_round():
    made = federation()
    rounds = []
    made.run(observers=[Look(rounds)])
    assert np.array_equal(rounds[1], rounds[2])
    assert [one.version for one in made.server.offered] == [1, 3]
    assert made.server.offered[0].quality is None
    assert made.server.offered[1].quality.users == pytest.approx(200, abs=40)


class Look:
    def __init__(self, seen):
        self.seen = seen

    def next_stop(self, round):
        return round + 1

    def look(self, moment):
        self.seen.append(moment.items)


def test_without_a_share_nothing_is_held_out_and_nobody_is_asked():
    plain, also = federation(quality_share=0.0), federation(quality_share=0.0, held_out=0.5)
    plain.run()
    also.run()
    assert np.array_equal(plain.server.items, also.server.items)
    assert plain.server.algorithm.quality(plain.server.memory) is None
    assert [one.version for one in plain.server.offered] == [1, 2]


@pytest.mark.parametrize("popularity", [0.0, 0.3, 1.0])
def test_the_shares_are_one_in_all(popularity):
    config = GramConfig(popularity_share=popularity, quality_share=0.05)
    assert sum(config.shares) == pytest.approx(1.0, abs=1e-12)
    assert config.shares[-1] == 0.05
    assert config.rounds == len(config.shares) == (2 if popularity == 1.0 else 3)


# --- whether the intervals hold -------------------------------------------------------------------


def test_a_model_made_worse_on_purpose_is_held_back():
    """The second batch's factors are given to other items before its quality is asked for."""
    table = timed(checkerboard(800, 20), 1)
    consent = Consent.uniform(np.arange(800), Choice(epsilon=16.0))
    outcomes = []
    for spoil in (False, True):
        made = federation(
            table, 16.0, consent=consent, batches=2, least_head=20, most_head=20, held_out=0.2
        )
        made.schedule = replace(made.schedule, rounds=3)
        made.run()
        made.devices.cohort.sent[:] = 0  # as others who come with the next batch
        made.devices.cohort.spent[:] = 0
        made.schedule = replace(made.schedule, rounds=5)
        made.run()
        if spoil:
            items = made.server.items.copy()
            items[:, SCALE:] = np.random.default_rng(1).permutation(items[:, SCALE:])
            made.server.items = items
        made.schedule = replace(made.schedule, rounds=6)
        made.run()
        outcomes.append((made.server.offered[-1].held_back, made.server.recommending.round))
    assert outcomes[0] == ("", 6)
    assert "worse than version 3" in outcomes[1][0]
    assert outcomes[1][1] == 3


def test_a_bad_model_that_is_published_all_the_same_is_seen_in_the_next_round_about_quality():
    """By the operator's word, say. The next batch is compared with it, and tells of it, too."""
    table = timed(checkerboard(800, 20), 1)
    made = federation(
        table, 16.0, batches=2, least_head=20, most_head=20, held_out=0.2,
        consent=Consent.uniform(np.arange(800), Choice(epsilon=16.0)),
    )  # fmt: skip
    made.schedule = replace(made.schedule, rounds=3)
    made.run()
    assert made.server.recommending.round == 3
    assert quality_trouble(3, made.server.offered) == ""
    bad = made.server.items.copy()
    bad[:, SCALE:] = np.random.default_rng(1).permutation(bad[:, SCALE:])
    made.server.published = ModelView(3, bad)
    made.devices.cohort.sent[:] = 0  # as others who come with the next batch
    made.devices.cohort.spent[:] = 0
    made.schedule = replace(made.schedule, rounds=6)
    made.run()
    newest = made.server.offered[-1]
    assert (newest.version, newest.against, newest.held_back) == (6, 3, "")
    trouble = quality_trouble(3, made.server.offered)
    assert trouble.startswith("version 3, which is published, is worse than")
    assert quality_trouble(6, made.server.offered) == ""


def test_batches_before_the_first_pairs_are_offered_and_nobody_is_asked_about_them():
    made = federation(batches=3, pairs_from=1)
    made.schedule = replace(made.schedule, rounds=3)
    made.run()
    assert [(one.version, one.quality) for one in made.server.offered] == [(1, None)]
    for batch in (1, 2):
        made.devices.cohort.sent[:] = 0  # as others who come with the next batch
        made.devices.cohort.spent[:] = 0
        made.schedule = replace(made.schedule, rounds=3 * batch + 3)
        made.run()
    found = made.server.offered
    assert [one.version for one in found] == [1, 6, 9]
    assert all(one.quality.users > 100 for one in found[1:])


# --- in a run -------------------------------------------------------------------------------------


def test_a_run_says_how_good_its_versions_are(tmp_path):
    outcome = run_experiment(Experiment.from_table(TOWN), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())["model_versions"]
    assert [one["version"] for one in told] == [1, 3]
    rate = told[1]["quality"]["candidate"]
    assert rate["low"] <= rate["value"] <= rate["high"]
    page = write_run_report(outcome).read_text()
    assert "by what devices say" in page
    assert (tmp_path / "run" / "figures" / "versions.svg").is_file()
    again = run_experiment(Experiment.from_table(TOWN), tmp_path / "run", resume=True)
    assert [one.to_table() for one in again.federation.server.offered] == told
