"""FedGNN's third party: what it answers, and what it can still make of what it is given."""

import numpy as np
import pytest

from sottovoce.errors import ConfigError, KeyTrouble, MessageError
from sottovoce.rng import Streams
from sottovoce.testing import random_world

pytest.importorskip("torch")

from sottovoce.data.town import TownConfig, generate_town
from sottovoce_papers.wu_graph import device_tokens
from sottovoce_papers.wu_item_sets import by_frequency, score_names
from sottovoce_papers.wu_matcher import MOST, Matcher

KEY = bytes(range(32))
SEED = Streams.from_seed(1)


def named(n):
    """Embeddings by which a test, but not a device, knows whose they are."""
    return np.stack([np.arange(n), np.arange(n) * 0.5], axis=1).astype(np.float32)


def told(history, most=MOST, seed=SEED):
    matcher = Matcher(most)
    tokens = device_tokens(KEY, history.items)
    matcher.submit(tokens, history.indptr, named(history.n_users), seed)
    return matcher


def by_entry(answer):
    """Whose embeddings a device got, for each token that it sent."""
    return np.split(answer.embeddings[:, 0].astype(int), np.cumsum(answer.counts)[:-1])


def test_tokens_are_equal_for_equal_items_under_one_key_only():
    items = np.array([5, 0, 5, 70_000])
    tokens = device_tokens(KEY, items)
    assert tokens.dtype == np.uint64
    assert tokens[0] == tokens[2]
    assert len(set(tokens.tolist())) == 3
    assert not set(tokens.tolist()) & set(device_tokens(bytes(32), items).tolist())
    assert device_tokens(KEY, items[:0]).shape == (0,)
    with pytest.raises(KeyTrouble, match="32 bytes"):
        device_tokens(b"short", items)


def test_an_answer_is_everybody_else_who_has_the_item():
    history = random_world(30, 20, 120, seed=4)
    asked = np.array([7, 3, 29])
    found = by_entry(told(history).answer(asked))
    expected = [
        [other for other in range(30) if other != user and item in history.row(other)]
        for user in asked
        for item in history.row(user)
    ]
    assert [sorted(row.tolist()) for row in found] == expected


def test_an_answer_has_so_many_at_most_and_they_are_drawn_evenly():
    history = random_world(12, 3, 200, seed=4)
    sharers = [u for u in range(12) if u != 0 and history.row(0)[0] in history.row(u)]
    assert len(sharers) > 6
    rounds, drawn = 2000, np.zeros(12)
    for seed in range(rounds):
        answer = told(history, most=4, seed=Streams.from_seed(seed)).answer(np.array([0]))
        assert answer.counts.max() == 4
        first = by_entry(answer)[0]
        assert len(set(first.tolist())) == 4
        drawn[first] += 1
    share = 4 / len(sharers)
    bound = 4.5 * np.sqrt(rounds * share * (1 - share))
    assert set(np.flatnonzero(drawn).tolist()) == set(sharers)
    assert np.abs(drawn[sharers] - rounds * share).max() < bound


def test_an_answer_says_nothing_but_counts_and_embeddings():
    history = random_world(30, 20, 120, seed=4)
    answer = told(history).answer(np.arange(30))
    assert {name for name in dir(answer) if not name.startswith("_")} == {"counts", "embeddings"}
    # Nor by its order: neighbours of an entry are not sorted by device.
    assert any((np.diff(row) < 0).any() for row in by_entry(answer))


def test_a_new_submission_replaces_the_old_one_unless_it_is_bad():
    history = random_world(6, 8, 20, seed=4)
    matcher = told(history)
    before = matcher.answer(np.arange(6))
    tokens, indptr, rows = device_tokens(KEY, history.items), history.indptr, named(6)
    twice = tokens.copy()
    twice[indptr[1] - 1] = twice[0]
    assert indptr[1] > 1
    bad = [
        (tokens, indptr, rows * np.float32(np.nan)),
        (tokens, indptr, rows[:5]),
        (tokens, indptr, rows[:, 0]),
        (tokens[1:], indptr, rows),
        (tokens, indptr[::-1], rows),
        (twice, indptr, rows),
    ]
    for submission in bad:
        with pytest.raises(MessageError):
            matcher.submit(*submission, SEED)
        np.testing.assert_array_equal(matcher.answer(np.arange(6)).embeddings, before.embeddings)
    matcher.submit(tokens, indptr, rows + 1, SEED)
    after = matcher.answer(np.arange(6)).embeddings
    np.testing.assert_array_equal(after, before.embeddings + np.float32(1))


def test_strangers_get_no_answer():
    matcher = told(random_world(6, 8, 20, seed=4))
    for stranger in (6, -1):
        with pytest.raises(MessageError, match="not submitted"):
            matcher.answer(np.array([stranger]))
        with pytest.raises(MessageError, match="no such device"):
            matcher.shared(0, stranger)
    with pytest.raises(MessageError):
        Matcher().answer(np.array([0]))
    with pytest.raises(ConfigError):
        Matcher(-1)


# --- what it can still do ------------------------------------------------------------------------


def test_it_counts_what_two_devices_have_in_common():
    history = random_world(10, 12, 50, seed=4)
    matcher = told(history)
    for one, other in ((0, 1), (4, 9), (3, 3)):
        assert matcher.shared(one, other) == len(
            np.intersect1d(history.row(one), history.row(other))
        )


def test_it_names_popular_items_where_it_knows_how_popular_they_are():
    """Almost all of the first ten where it knows exactly; some where it knows from other users."""
    town = generate_town(TownConfig(residents=4000, venues=300)).interactions
    here, elsewhere = (town.take_users(np.arange(k, 4000, 2)) for k in (0, 1))
    counted, truth = told(here).counted(), device_tokens(KEY, np.arange(town.n_items))
    exact, near = (
        score_names(*by_frequency(*counted, known.item_counts, top=10), truth)
        for known in (here, elsewhere)
    )
    assert exact.precision >= 0.8
    assert near.succeeds


def test_with_one_devices_key_it_names_every_token():
    history = random_world(10, 12, 50, seed=4)
    tokens, counts = told(history).counted()
    names = {token: item for item, token in enumerate(device_tokens(KEY, np.arange(12)).tolist())}
    popularity = history.item_counts
    assert [popularity[names[t]] for t in tokens.tolist()] == counts.tolist()
