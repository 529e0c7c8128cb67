"""Public knowledge of items as a prior at home."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from sottovoce.core.interactions import Interactions
from sottovoce.core.knowledge import Knowledge, Prior, WithKnowledge, prior, threshold
from sottovoce.core.recommender import FactorScorer
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment
from sottovoce.runs.train import run_experiment

CITY = np.repeat([0, 1], 10)
"""Items 0 to 9 are in one city, 10 to 19 in another."""


def known(groups=CITY):
    cells = (np.ones(20), (np.arange(20), groups))
    return Knowledge({"city": csr_array(cells, shape=(20, int(groups.max()) + 1))})


def of(*rows, n_items=20):
    users = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    items = np.concatenate([np.array(row, int) for row in rows])
    return Interactions.from_pairs(users, items, n_users=len(rows), n_items=n_items)


def scores(found):
    return found.users @ found.items.T


def test_who_keeps_to_a_city_is_shown_its_popular_places():
    popularity = np.tile(np.arange(10.0, 0.0, -1.0), 2)
    table = scores(prior(known(), of([0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]), popularity))
    for row, mine, other in ((table[0], slice(6, 10), slice(16, 20)),
                             (table[1], slice(16, 20), slice(6, 10))):  # fmt: skip
        assert np.all(row[mine] > 1.5 * row[other])
        assert np.all(np.diff(row[mine]) < 0)  # by popularity within


def test_a_kind_that_says_nothing_of_her_choices_weighs_little():
    """Items that alternate between groups: then popularity alone is left, nearly."""
    popularity = np.arange(20.0, 0.0, -1.0)
    mixed = prior(known(np.arange(20) % 2), of(list(range(10))), popularity)
    row = scores(mixed)[0] / popularity
    assert row.max() / row.min() < 1.1


def test_who_has_nothing_gets_popularity():
    popularity = np.arange(20.0, 0.0, -1.0)
    row = scores(prior(known(), of([], [1, 2]), popularity))[0]
    assert np.argsort(-row, kind="stable").tolist() == list(range(20))


def test_items_of_which_nothing_is_known_are_neither_favoured_nor_left_out():
    cells = (np.ones(10), (np.arange(10), np.zeros(10, int)))
    half = Knowledge({"city": csr_array(cells, shape=(20, 1))})
    row = scores(prior(half, of([10, 11, 12]), np.ones(20)))[0]
    assert np.all(row > 0)
    assert row[15] == pytest.approx(1.0)


def test_what_does_not_stand_out_of_the_noise_counts_little():
    rng = np.random.default_rng(0)
    popularity = rng.normal(size=5000)
    popularity[:5] += 50.0
    kept = threshold(popularity, 1.0)
    assert np.all(kept[:5] > 40)
    assert kept[5:].max() < 0.1
    assert np.all(kept >= 0)
    assert np.array_equal(threshold(popularity, 0.0), np.maximum(popularity, 0.0))


def test_factors_and_tables_add_up():
    rng = np.random.default_rng(1)
    trust = np.array([1.0, 2.0, 0.5], np.float32)
    found = Prior(rng.random((3, 2), np.float32), rng.random((20, 2), np.float32), trust)
    plain = FactorScorer(
        rng.random((3, 4), np.float32), rng.random((20, 4), np.float32), np.zeros(20, np.float32)
    )
    users = np.array([2, 0, 1])
    told, known_ = plain.scores(users), scores(found)[users]
    wanted = told + 2.0 * trust[users, None] * known_
    assert found.added(plain, 2.0).scores(users) == pytest.approx(wanted, rel=1e-5)
    mixed = WithKnowledge(plain, found, 0.5).scores(users)
    apart = [t / t.std(axis=1, keepdims=True) for t in (told, known_)]
    assert mixed == pytest.approx(apart[0] + 0.5 * trust[users, None] * apart[1], rel=1e-4)


def test_it_is_trusted_by_what_it_explains():
    """Of somebody who keeps to one city, somebody in both, and somebody without any item."""
    rows = list(range(8)), [0, 1, 2, 3, 10, 11, 12, 13], []
    trust = prior(known(), of(*rows), np.ones(20)).trust
    # Half of all choices are in her city: what she has gets twice its popularity, by 8 of 9.
    assert trust[0] == pytest.approx((2 * 8 / 9) ** 2, rel=1e-2)
    assert trust[1] == pytest.approx(1.0, abs=0.3)
    assert trust[2] == 1.0


def test_of_one_city_among_many_the_trust_stays_finite():
    cells = (np.ones(2000), (np.arange(2000), np.arange(2000) // 10))
    many = Knowledge({"city": csr_array(cells, shape=(2000, 200))})
    found = prior(many, of(list(range(10)), n_items=2000), np.ones(2000))
    assert np.isfinite(found.trust).all()
    assert np.isfinite(scores(found)).all()


def test_a_data_set_says_what_is_known_of_its_items():
    town = generate_town(TownConfig(residents=30))
    vocabulary = town.interactions.items_vocabulary()
    some = vocabulary.take(np.array([5, 3, 100]))
    kinds = town.knowledge(some).kinds
    assert "categories" in kinds
    for table in kinds.values():
        assert table.shape[0] == 3
        assert np.asarray(table.sum(axis=1)).ravel() == pytest.approx(np.ones(3))


def test_in_the_town_it_is_worth_more_than_popularity_and_costs_nothing():
    table = {
        "algorithm": {"name": "gram", "popularity_share": 0.3}, "town": {"residents": 400},
        "consent": {"epsilon": 4.0}, "release": {"epsilon": 4.0}, "baselines": {"top-pop": {}},
        "seed": 3,
    }  # fmt: skip
    plain = run_experiment(Experiment.from_table(table))
    home = {"knowledge": True}
    known_ = run_experiment(Experiment.from_table({**table, "home": home}))
    for name in ("gram", "top-pop"):
        without, with_ = (run.evaluations[name].mean("P@10") for run in (plain, known_))
        assert with_ > 1.2 * without
    one, other = (run.federation for run in (plain, known_))
    assert np.array_equal(one.server.items, other.server.items)
    assert one.devices.ledger.totals == other.devices.ledger.totals
    # With so few residents the district says more than pairs: by itself it asks for none.
    alone = run_experiment(
        Experiment.from_table({**table, "algorithm": {"name": "gram"}, "home": home})
    )
    totals = alone.federation.devices.ledger.totals
    assert totals.releases == 400
    assert totals.epsilon == pytest.approx(one.devices.ledger.totals.epsilon, rel=1e-6)
    assert alone.evaluations["gram"].mean("P@10") > known_.evaluations["gram"].mean("P@10")


def test_where_nothing_is_known_a_sentence_says_so(monkeypatch):
    table = {"algorithm": {"name": "gram"}, "town": {"residents": 100}, "home": {"knowledge": True},
             "consent": {"epsilon": 4.0}}  # fmt: skip
    monkeypatch.setattr(
        "sottovoce.data.dataset.Dataset.knowledge", lambda self, items: Knowledge({})
    )
    with pytest.raises(ConfigError, match="nothing is known of the items of town"):
        run_experiment(Experiment.from_table(table))
