from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset, Labels, PublishedSplit
from sottovoce.data.splitting import (
    Split,
    keep_active,
    leave_one_out,
    published_split,
    random_holdout,
    temporal_holdout,
    validation_split,
)
from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams

RNG = Streams.from_seed(5)


@st.composite
def tables(draw: st.DrawFn) -> Interactions:
    """Small tables with many equal times and items of all popularities."""
    n_users, n_items = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    pair = st.tuples(st.integers(0, n_users - 1), st.integers(0, n_items - 1), st.integers(0, 4))
    events = draw(st.lists(pair, max_size=60))
    users, items, times = (np.array([e[k] for e in events], dtype=np.int64) for k in range(3))
    return Interactions.from_pairs(users, items, n_users=n_users, n_items=n_items, timestamps=times)


SPLITTERS: list[Callable[[Interactions], Split]] = [
    lambda t: temporal_holdout(t, 0.2),
    lambda t: temporal_holdout(t, 0.5),
    lambda t: random_holdout(t, 0.4, RNG),
    lambda t: leave_one_out(t),
    lambda t: leave_one_out(t, "random", RNG),
]


def triples(part: Interactions, item_map: np.ndarray) -> list[tuple[int, int, int]]:
    assert part.timestamps is not None
    items = item_map[part.items]
    return list(zip(part.users.tolist(), items.tolist(), part.timestamps.tolist(), strict=True))


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(table=tables())
def test_every_interaction_lands_in_exactly_one_part(
    splitter: Callable[[Interactions], Split], table: Interactions
) -> None:
    split = splitter(table)
    both = triples(split.train, split.item_map) + triples(split.test, split.item_map)
    assert sorted(both) == sorted(triples(table, np.arange(table.n_items)))


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(table=tables())
def test_trainable_items_come_first_in_old_order(
    splitter: Callable[[Interactions], Split], table: Interactions
) -> None:
    split = splitter(table)
    n = split.train.n_items
    assert (split.train.item_counts > 0).all()
    assert (split.test.item_counts[n:] > 0).all()
    assert len(set(split.item_map.tolist())) == split.n_items
    assert (np.diff(split.item_map[:n]) > 0).all()
    assert (np.diff(split.item_map[n:]) > 0).all()
    names = table.items_vocabulary().names(split.item_map)
    assert split.test.items_vocabulary().names() == names
    assert split.train.items_vocabulary().names() == names[:n]


@given(table=tables(), fraction=st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.9]))
def test_temporal_holdout_takes_the_latest_share(table: Interactions, fraction: float) -> None:
    split = temporal_holdout(table, fraction)
    train, test = triples(split.train, split.item_map), triples(split.test, split.item_map)
    for user in range(table.n_users):
        mine = sorted((t, i) for u, i, t in train if u == user)
        held = sorted((t, i) for u, i, t in test if u == user)
        assert len(held) == int(fraction * (len(mine) + len(held)) + 1e-9)
        if held:
            assert mine[-1] < held[0]


@given(table=tables())
def test_leave_one_out_takes_the_latest_of_two_or_more(table: Interactions) -> None:
    split = leave_one_out(table)
    assert split.test.counts.tolist() == (table.counts > 1).tolist()
    train, test = triples(split.train, split.item_map), triples(split.test, split.item_map)
    for user, item, time in test:
        assert all((t, i) < (time, item) for u, i, t in train if u == user)


def test_the_share_is_exact_where_floats_are_not() -> None:
    table = Interactions.from_pairs(np.zeros(100, int), np.arange(100), timestamps=np.arange(100))
    assert 0.29 * 100 < 29
    assert temporal_holdout(table, 0.29).test.n_interactions == 29


def test_ratings_and_times_follow_their_interaction() -> None:
    table = Interactions.from_pairs(
        [0, 0, 0, 1, 1], [0, 1, 2, 1, 0], timestamps=[30, 10, 20, 5, 6], ratings=[3, 1, 2, 5, 4]
    )
    split = leave_one_out(table)
    # Item 0 is the latest of both users, so it is known to the test part alone.
    assert split.item_map.tolist() == [1, 2, 0]
    assert split.train.n_items == 2
    assert split.test.items.tolist() == [2, 2]
    assert split.test.ratings is not None
    assert split.test.ratings.tolist() == [3.0, 4.0]
    assert split.train.timestamps is not None
    assert split.train.timestamps.tolist() == [10, 20, 5]
    assert split.dataset_items(np.array([2])).tolist() == [0]


def test_a_random_draw_depends_on_the_user_alone() -> None:
    users, items = np.repeat(np.arange(40), 10), np.tile(np.arange(10), 40)
    every = Interactions.from_pairs(users, items)
    half = Interactions.from_pairs(users[:200], items[:200])
    first = leave_one_out(every, "random", RNG)
    again = leave_one_out(half, "random", RNG)
    held = first.dataset_items(first.test.items)
    assert held[:20].tolist() == again.dataset_items(again.test.items).tolist()
    other = leave_one_out(every, "random", Streams.from_seed(6))
    assert held.tolist() != other.dataset_items(other.test.items).tolist()
    # Forty draws out of ten items: every item should have been chosen, none by most users.
    counts = np.bincount(held, minlength=10)
    assert counts.min() >= 1
    assert counts.max() <= 12


def test_without_times_the_error_says_what_to_use() -> None:
    table = Interactions.from_pairs([0, 0], [0, 1])
    with pytest.raises(DataError, match="no time stamps; hold out random"):
        leave_one_out(table)
    with pytest.raises(DataError, match="no time stamps; hold out random"):
        temporal_holdout(table)
    with pytest.raises(ConfigError, match="needs rng"):
        leave_one_out(table, "random")


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_bad_fractions_are_refused(fraction: float) -> None:
    table = Interactions.from_pairs([0, 0], [0, 1], timestamps=[1, 2])
    with pytest.raises(ConfigError, match="fraction"):
        temporal_holdout(table, fraction)


@given(table=tables())
def test_validation_leads_back_to_the_source(table: Interactions) -> None:
    outer = temporal_holdout(table, 0.3)
    inner = validation_split(outer, 0.3)
    parts = triples(inner.train, inner.item_map) + triples(inner.test, inner.item_map)
    assert sorted(parts) == sorted(triples(outer.train, outer.item_map))
    assert validation_split(outer, None).test.counts.max(initial=0) <= 1


def test_keep_active_filters_users_then_items_once() -> None:
    # Users 0 and 1 have three items, user 2 has two; item 3 then has one visitor left.
    table = Interactions.from_pairs([0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 2, 0, 1, 3, 3, 2])
    kept = keep_active(table, min_user=3)
    assert kept.users_vocabulary().names() == ["0", "1"]
    assert kept.items_vocabulary().names() == ["0", "1", "2", "3"]
    once = keep_active(table, min_user=3, min_item=2)
    assert once.counts.tolist() == [2, 2]
    assert once.items_vocabulary().names() == ["0", "1"]
    with pytest.raises(DataError, match="nobody is left"):
        keep_active(table, min_user=4)


def test_keep_active_keeps_side_tables_aligned() -> None:
    table = Interactions.from_pairs([0, 0, 1, 2, 2], [0, 3, 1, 2, 3], n_items=4)
    dataset = Dataset(
        "x",
        table,
        user_attributes={"gender": Labels.of(["F", "M", "M"])},
        item_titles=("a", "b", "c", "d"),
        item_categories=(("p",), (), ("q",), ("r",)),
    )
    kept = keep_active(dataset, min_user=2)
    assert kept.user_attributes["gender"].texts() == ["F", "M"]
    assert kept.item_titles == ("a", "c", "d")
    assert kept.item_categories == (("p",), ("q",), ("r",))
    assert [kept.title(i) for i in kept.interactions.row(1)] == ["c", "d"]


def test_a_published_split_brings_its_candidates() -> None:
    table = Interactions.from_pairs([0, 0, 1, 1], [0, 2, 1, 2])
    held_out = np.array([True, False, False, True])
    dataset = Dataset(
        "x", table, published=PublishedSplit(held_out, np.array([[1], [0]], np.int32))
    )
    split = published_split(dataset)
    assert split.item_map.tolist() == [1, 2, 0]
    assert split.negatives is not None
    assert split.dataset_items(split.negatives).tolist() == [[1], [0]]
    with pytest.raises(DataError, match="no published split"):
        published_split(Dataset("x", table))


@pytest.mark.data
def test_italy_has_the_counts_of_the_paper(real: Callable[[str], Dataset]) -> None:
    split = temporal_holdout(keep_active(real("foursquare-italy"), min_user=20).interactions, 0.2)
    assert split.n_users == 1_353
    assert split.train.n_interactions == 54_088
    assert split.train.n_items == 25_498


@pytest.mark.data
def test_the_published_ncf_split_is_leave_one_out(real: Callable[[str], Dataset]) -> None:
    split = published_split(real("movielens-1m-ncf"))
    assert (split.test.counts == 1).all()
    assert split.negatives is not None
    assert split.negatives.shape == (6_040, 99)
    seen = split.train.users * split.n_items + split.train.items
    drawn = np.arange(6_040)[:, None] * split.n_items + split.negatives
    assert not np.isin(drawn, seen).any()
