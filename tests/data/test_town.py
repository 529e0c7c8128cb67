from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.config import build
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.foursquare import TOP_CATEGORIES, top_category
from sottovoce.data.splitting import Split, temporal_holdout
from sottovoce.data.town import (
    KINDS,
    START,
    YEAR,
    TownConfig,
    _grouped,
    _world,
    generate_town,
    stream_town,
)
from sottovoce.errors import ConfigError

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def town() -> Dataset:
    return generate_town()


def dense(split: Split) -> Floats:
    matrix = np.zeros((split.n_users, split.train.n_items))
    matrix[split.train.users, split.train.items] = 1.0
    return matrix


def precision_at_10(split: Split, scores: Floats) -> float:
    scores = scores.copy()
    scores[split.train.users, split.train.items] = -np.inf
    top = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    relevant = np.zeros((split.n_users, split.n_items), dtype=bool)
    relevant[split.test.users, split.test.items] = True
    return float(np.take_along_axis(relevant, top, axis=1).mean())


def item_knn(matrix: Floats, neighbours: int = 40) -> Floats:
    overlap = matrix.T @ matrix
    norm = np.sqrt(np.diag(overlap))
    similar = overlap / np.outer(norm, norm)
    np.fill_diagonal(similar, 0.0)
    far = np.argsort(-similar, axis=1, kind="stable")[:, neighbours:]
    np.put_along_axis(similar, far, 0.0, axis=1)
    scores: Floats = matrix @ similar.T
    return scores


def auc(positive: NDArray[np.bool_], scores: Floats) -> float:
    rank = np.empty(len(scores))
    rank[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    n = int(positive.sum())
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


def gender_auc(town: Dataset) -> float:
    """Naive Bayes on histories: even residents to learn, odd ones to guess."""
    table = town.interactions
    matrix = np.zeros((table.n_users, table.n_items))
    matrix[table.users, table.items] = 1.0
    woman = town.attribute("gender").codes == town.attribute("gender").values.index("F")
    known = np.arange(table.n_users) % 2 == 0
    log_odds = np.log(matrix[known & woman].mean(axis=0) + 1e-3)
    log_odds -= np.log(matrix[known & ~woman].mean(axis=0) + 1e-3)
    return auc(woman[~known], (matrix @ log_odds)[~known])


def test_the_default_town_is_small_and_complete(town: Dataset) -> None:
    table = town.interactions
    assert table.n_users == 1_000
    assert 550 <= table.n_items <= 600
    assert 25 <= table.n_interactions / table.n_users <= 40
    assert table.counts.min() >= 5
    assert (table.item_counts > 0).all()
    assert table.timestamps is not None
    assert table.timestamps.min() >= START
    assert table.timestamps.max() < START + YEAR
    assert town.item_titles is not None
    assert len(set(town.item_titles)) == table.n_items
    assert town.category_names() == TOP_CATEGORIES
    assert {k: len(v.values) for k, v in town.user_attributes.items()} == {
        "gender": 2,
        "age": 5,
        "occupation": 8,
        "district": 8,
    }
    assert table.users_vocabulary().name(42) == "r0042"


def test_kinds_lie_where_foursquare_puts_them() -> None:
    assert all(top_category(kind.leaf) == kind.top for kind in KINDS)


@pytest.mark.parametrize("seed", [2024, 1, 2])
def test_taste_can_be_learnt(seed: int) -> None:
    split = temporal_holdout(generate_town(TownConfig(seed=seed)).interactions)
    matrix = dense(split)
    popular = precision_at_10(split, np.tile(matrix.sum(axis=0), (split.n_users, 1)))
    chance = precision_at_10(split, np.random.default_rng(0).random(matrix.shape))
    assert precision_at_10(split, item_knn(matrix)) >= 1.3 * popular
    assert popular >= 2.0 * chance


def test_histories_tell_gender_and_can_be_made_silent(town: Dataset) -> None:
    assert gender_auc(town) > 0.7
    assert abs(gender_auc(generate_town(TownConfig(leaning=0.0))) - 0.5) < 0.08


def test_ratings_follow_the_venue_and_the_resident(town: Dataset) -> None:
    table = town.interactions
    assert table.ratings is not None
    assert set(np.unique(table.ratings).tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert 0.15 < float((table.ratings < 3).mean()) < 0.35
    centred = table.ratings - table.ratings.mean()
    counts = table.item_counts
    odd = np.arange(table.n_interactions) % 2 == 1
    seen = counts >= 40
    halves = [
        np.bincount(table.items[part], centred[part], table.n_items)[seen]
        / np.maximum(1, np.bincount(table.items[part], minlength=table.n_items)[seen])
        for part in (odd, ~odd)
    ]
    assert np.corrcoef(*halves)[0, 1] > 0.8, "a venue is as good for others"
    venue = np.bincount(table.items, centred, table.n_items) / np.maximum(1, counts)
    rest = centred - venue[table.items]
    kind = town.item_attributes["kind"].codes[table.items]
    cell = table.users * (kind.max() + 1) + kind
    same = np.flatnonzero(cell[1:] == cell[:-1])
    assert np.corrcoef(rest[same], rest[same + 1])[0, 1] > 0.05, "she likes the kind, or not"


def test_residents_do_not_depend_on_the_shards() -> None:
    config = TownConfig(residents=70, venues=120, visits_per_resident=12.0)
    (whole,) = stream_town(config, 1_000)
    parts = list(stream_town(config, 16))
    assert [part.first for part in parts] == [0, 16, 32, 48, 64]
    for column in ("items", "timestamps", "ratings"):
        joined = np.concatenate([getattr(part.interactions, column) for part in parts])
        assert np.array_equal(joined, getattr(whole.interactions, column))
    counts = np.concatenate([part.interactions.counts for part in parts])
    assert np.array_equal(counts, whole.interactions.counts)
    for name, labels in whole.attributes.items():
        joined = np.concatenate([part.attributes[name].codes for part in parts])
        assert np.array_equal(joined, labels.codes)


def test_more_residents_leave_the_first_ones_alone() -> None:
    few = next(stream_town(TownConfig(residents=20, venues=100)))
    more = next(stream_town(TownConfig(residents=500, venues=100), 20))
    assert np.array_equal(few.interactions.items, more.interactions.items)
    assert few.interactions.ratings is not None
    assert more.interactions.ratings is not None
    assert np.array_equal(few.interactions.ratings, more.interactions.ratings)


def test_shares_within_a_group_are_exact_however_rare_its_venues() -> None:
    """Group 2 is a billion billion times rarer than group 0, and group 1 is empty."""
    group = np.array([2, 0, 2, 0, 0])
    popularity = np.array([3e-30, 1.0, 1e-30, 2.0, 1.0])
    start, venues, mass = _grouped(group, 3, popularity)
    assert start.tolist() == [0, 3, 3, 5]
    assert venues.tolist() == [1, 3, 4, 0, 2]
    assert mass == pytest.approx([0.25, 0.75, 1.0, 0.75, 1.0], abs=1e-12)


def test_venues_are_visited_by_their_popularity() -> None:
    """Residents seen at one venue made one visit, but for a few who came back to it; so they show
    the law without the flattening that collapsed repeats bring."""
    config = TownConfig(residents=20_000, venues=36 * 4, districts=1, visits_per_resident=1.0)
    world, visits = _world(config), next(stream_town(config)).interactions
    single = visits.select((visits.counts == 1)[visits.users])
    seen = single.item_counts
    for kind in np.unique(world.kind):
        first, end = world.town_start[kind], world.town_start[kind + 1]
        members = world.town_venues[first:end]
        share = np.diff(world.town_mass[first:end], prepend=0.0).clip(0.0, 1.0)
        total = seen[members].sum()
        spread = np.sqrt(total * share * (1 - share))
        assert np.all(np.abs(seen[members] - total * share) <= 5 * spread + 5)


def test_the_seed_decides_everything(town: Dataset) -> None:
    assert generate_town().fingerprint() == town.fingerprint()
    assert generate_town(TownConfig(seed=7)).fingerprint() != town.fingerprint()


def test_a_bigger_town_still_has_distinct_names() -> None:
    town = generate_town(TownConfig(residents=400, venues=20_000, districts=20))
    assert town.item_titles is not None
    assert len(set(town.item_titles)) == len(town.item_titles) > 4_000


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"residents": 0}, "residents"),
        ({"residents": 2.5}, "residents"),
        ({"venues": 10}, "venues must be a number from 36"),
        ({"taste": "strong"}, "taste"),
        ({"seed": "x"}, "seed"),
        ({"locality": 1.5}, "locality"),
        ({"visits_per_resident": float("nan")}, "visits_per_resident"),
        ({"inhabitants": 10}, r"unknown keys \['inhabitants'\]"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build(TownConfig, values, "town")
