"""A11: fresh pseudo items protect nothing; what is left where they are fixed."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import DataError
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from sottovoce_papers.wu_graph import device_part  # noqa: E402
from sottovoce_papers.wu_item_sets import (  # noqa: E402
    by_direction,
    by_popularity,
    by_recurrence,
    score,
    sights,
)
from sottovoce_papers.wu_matcher import Matcher  # noqa: E402
from sottovoce_papers.wu_system import Uploads, WuConfig, WuFedGNN  # noqa: E402

SEED = Streams.from_seed(5)
TOWN = generate_town(TownConfig(residents=80, venues=700, visits_per_resident=30)).interactions
PSEUDO = 150
PRINTED = WuConfig(
    embedding_size=16,
    learning_rate=0.03,
    item_rate=5.0,
    user_rate=0.03,
    cohort_size=80,
    epochs=4,
    pseudo_items=PSEUDO,
)
"""Clip and noise as printed; everybody sends once in a round."""


def seen(config):
    """What the server sees in a run, and the truth."""
    rounds = []
    WuFedGNN(config).fit(
        TOWN, SEED, Matcher(5), key=bytes(32), observe=lambda _r, _m, up: rounds.append(up)
    )
    own = device_part(TOWN, np.arange(TOWN.n_users), config.most_items, SEED.child("fedgnn"))
    return rounds, own


def outcome(attack, rounds, own, *options):
    sight = sights(rounds)
    return score(attack(sight, *options), sight, own)


@pytest.fixture(scope="module")
def fresh():
    return seen(PRINTED)


@pytest.fixture(scope="module")
def fixed():
    return seen(replace(PRINTED, pseudo="fixed"))


@pytest.fixture(scope="module")
def quiet():
    return seen(replace(PRINTED, pseudo="fixed", noise=0.0))


@pytest.fixture(scope="module")
def long():
    return seen(replace(PRINTED, pseudo="fixed", epochs=40))


def test_fresh_pseudo_items_are_seen_through(fresh):
    """As printed: noise on the numbers hides nothing of this."""
    found = outcome(by_recurrence, *fresh)
    assert found.succeeds
    assert found.recall == 1.0
    assert found.precision > 0.8
    assert found.precision_interval.low > 5 * found.base_rate


def test_more_uploads_see_better_and_one_says_nothing(fresh):
    rounds, own = fresh
    by_uploads = [outcome(by_recurrence, rounds[:n], own) for n in (2, 3, 4)]
    assert sorted(o.precision for o in by_uploads) == [o.precision for o in by_uploads]
    once = outcome(by_recurrence, rounds[:1], own)
    assert (once.claimed, once.succeeds) == (0, False)


def test_fixed_pseudo_items_do_not_recur_less(fixed):
    found = outcome(by_recurrence, *fixed)
    assert not found.succeeds
    assert found.precision == pytest.approx(found.base_rate)
    assert found.recall == 1.0


def test_popular_items_stand_out_among_either_kind(fresh, fixed):
    """What remains, from the first upload on, as pseudo items are drawn from all alike."""
    for rounds, own in (fresh, fixed):
        found = outcome(by_popularity, rounds[:1], own, PSEUDO)
        assert found.succeeds
        assert found.precision < 0.5


def test_without_noise_rows_give_fixed_pseudo_items_away(quiet):
    rounds, own = quiet
    found = outcome(by_direction, rounds, own, PSEUDO)
    assert found.succeeds
    assert found.precision > 0.9
    assert outcome(by_direction, rounds[:1], own, PSEUDO).succeeds


def test_the_printed_noise_hides_them_in_a_few_uploads(fixed):
    few = outcome(by_direction, fixed[0], fixed[1], PSEUDO)
    assert few.precision < 3 * few.base_rate


@pytest.mark.slow
def test_the_printed_noise_does_not_hide_them_in_many(long):
    many = outcome(by_direction, long[0], long[1], PSEUDO)
    assert many.succeeds
    assert many.precision > 0.5


def test_nobody_is_seen_before_the_first_round():
    assert sights([]) == []
    nothing = score(by_popularity([], PSEUDO), [], TOWN)
    assert (nothing.claimed, nothing.succeeds) == (0, False)


def test_sights_are_what_was_sent():
    one = Uploads(
        np.array([3, 8]),
        np.array([[1, 4], [0, -1]]),
        np.array([[[1.0], [2.0]], [[5.0], [0.0]]], dtype=np.float32),
        np.zeros((2, 5), dtype=np.float32),
    )
    two = replace(one, items=np.array([[2, 4], [0, -1]]))
    first, second = sights([one, two])
    assert (first.user, first.uploads, first.sent) == (3, 2, 2)
    assert (first.items.tolist(), first.times.tolist()) == ([1, 2, 4], [1, 1, 2])
    assert first.rows.tolist() == [[1.0], [1.0], [2.0]]
    assert (second.user, second.items.tolist(), second.sent) == (8, [0], 1)
    assert "redacted" in repr(first)
    with pytest.raises(DataError, match="every sender"):
        score(by_recurrence([first]), [first], TOWN.take_users(np.arange(3)))
