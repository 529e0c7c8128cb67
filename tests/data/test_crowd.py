"""A crowd: users who follow from their numbers alone."""

import numpy as np
import pytest

from sottovoce.data.crowd import HEAD, SeededCrowd, SeededCrowdConfig
from sottovoce.errors import ConfigError

CROWD = SeededCrowd(SeededCrowdConfig(items=300, count=11, tastes=4, held_out=True, seed=5))


def test_a_user_is_the_same_in_any_range_and_with_any_threads():
    whole, out = CROWD.generate(0, 400)
    some, held = CROWD.generate(123, 150, threads=2)
    assert np.array_equal(whole.items[1230:1500], some.items)
    assert np.array_equal(out[123:150], held)


def test_items_ascend_and_what_is_held_out_is_not_among_them():
    train, out = CROWD.generate(0, 2000)
    rows = train.items.reshape(2000, 10)
    assert (np.diff(rows, axis=1) > 0).all()
    assert not (rows == out[:, None]).any()
    whole, none = SeededCrowd(SeededCrowdConfig(items=300, count=11, tastes=4, seed=5)).generate(
        0, 2000
    )
    assert np.array_equal(np.sort(np.column_stack([rows, out]), axis=1).ravel(), whole.items)
    assert (none == -1).all()
    assert len(np.unique(out // 30)) == 10  # of all strata


def test_popularity_is_the_law_of_each_stratum():
    config = SeededCrowdConfig(items=100, count=5)
    train, _ = SeededCrowd(config).generate(0, 40_000)
    law = (
        SeededCrowd(config)
        ._rng.child("common")
        .generator()
        .permutation(1.0 / (np.arange(100) + HEAD))
    )
    expected = (law.reshape(5, 20) / law.reshape(5, 20).sum(1, keepdims=True)).ravel()
    found = np.bincount(train.items, minlength=100) / 40_000
    error = np.sqrt(expected * (1 - expected) / 40_000)
    assert (np.abs(found - expected) < 5 * error).all()


def test_tastes_are_told_apart_by_what_users_have():
    """Two users of one taste share more items than two others do."""
    plain, own = (
        SeededCrowd(SeededCrowdConfig(items=400, count=40, tastes=tastes, own=1.0)).generate(
            0, 300
        )[0]
        for tastes in (1, 2)
    )

    def shared(train):
        dense = np.zeros((300, 400))
        dense[np.repeat(np.arange(300), 40), train.items] = 1
        products = dense @ dense.T
        return products[np.triu_indices(300, 1)]

    assert shared(own).std() > 1.3 * shared(plain).std()


@pytest.mark.parametrize(
    "bad",
    [{"items": 1}, {"count": 0}, {"count": 1, "held_out": True}, {"count": 20_000},
     {"tastes": 0}, {"own": 1.5}, {"tastes": 4096, "items": 10**6}],
)  # fmt: skip
def test_bad_settings_are_refused(bad):
    with pytest.raises(ConfigError):
        SeededCrowdConfig(**bad)
