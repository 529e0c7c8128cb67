"""DPLCF: the estimates are unbiased, and without noise it is Item-kNN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sottovoce.baselines import DPLCF, ItemKNN, dplcf
from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams

RNG = Streams.from_seed(4)
SILENT = 60.0
"""An ε at which no bit is ever flipped."""


def interactions(table: NDArray[np.bool_]) -> Interactions:
    users, items = np.nonzero(table)
    return Interactions.from_pairs(users, items, n_users=len(table), n_items=table.shape[1])


@settings(max_examples=150, deadline=None)
@given(
    table=st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(lambda s: arrays(np.bool_, s)),
    k=st.integers(1, 14),
)
def test_without_noise_it_is_item_knn(table: NDArray[np.bool_], k: int) -> None:
    train, users = interactions(table), np.arange(len(table))
    ours = DPLCF(SILENT, k).fit(train, RNG)
    plain = ItemKNN(k).fit(train, RNG)
    np.testing.assert_array_equal((ours.right > 0).toarray(), (plain.right > 0).toarray())
    np.testing.assert_allclose(ours.scores(users), plain.scores(users), rtol=1e-6)


def estimates(epsilon: float, bits: NDArray[np.bool_], seeds: int) -> NDArray[np.float64]:
    """n_ij of three items by (stream, i, j); n_i on the diagonal is not debiased this way."""
    mechanism, users = DPLCF(epsilon), np.arange(len(bits))
    found = []
    for seed in range(seeds):
        sent = mechanism.randomised(bits, users, Streams.from_seed(seed)).astype(np.float64)
        both, one = sent.T @ sent, sent.sum(axis=0)
        found.append(mechanism.estimated(both, one, one, len(bits)))
    return np.array(found)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.5])
def test_common_counts_are_estimated_without_bias(epsilon: float) -> None:
    rng = np.random.default_rng(1)
    bits = np.zeros((2000, 3), dtype=bool)
    bits[:, 0] = rng.random(2000) < 0.4
    bits[:, 1] = bits[:, 0] & (rng.random(2000) < 0.5)
    bits[:, 2] = rng.random(2000) < 0.1
    truth = bits.T.astype(float) @ bits
    found = estimates(epsilon, bits, 200)
    off = ~np.eye(3, dtype=bool)
    error = found.std(axis=0) / np.sqrt(len(found))
    apart = np.abs(found.mean(axis=0) - truth) / error
    assert apart[off].max() < 4.5
    # The plain counts of the randomised bits fail the same test by far.
    p = DPLCF(epsilon).flip()
    raw = found * (1 - 2 * p) ** 2
    assert (np.abs(raw.mean(axis=0) - truth) / (error * (1 - 2 * p) ** 2))[off].max() > 20


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("bit", [False, True])
def test_bits_are_flipped_as_often_as_claimed(epsilon: float, bit: bool) -> None:
    rows = np.full((500, 401), bit)
    sent = DPLCF(epsilon).randomised(rows, np.arange(500), RNG)
    p = 1 / (1 + np.exp(epsilon))
    assert abs((sent != bit).mean() - p) < 4.5 * np.sqrt(p * (1 - p) / rows.size)
    assert DPLCF(epsilon).flip() >= p
    assert DPLCF(epsilon).flip() - p < 2.0**-31


def test_recommends_from_the_true_history(sparse: Interactions) -> None:
    scorer = DPLCF(0.2, neighbors=5).fit(sparse, RNG)
    table = np.zeros((sparse.n_users, sparse.n_items))
    table[sparse.users, sparse.items] = 1
    np.testing.assert_array_equal(scorer.left.toarray(), table)
    assert not scorer.scores(np.array([7])).any()


def test_cosines_stay_within_one(sparse: Interactions) -> None:
    near = DPLCF(0.3, neighbors=30).fit(sparse, RNG).right
    assert near.data.min() > 0
    assert near.data.max() <= 1
    assert not near.diagonal().any()


def test_result_does_not_depend_on_blocks(
    sparse: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = np.arange(sparse.n_users)
    whole = DPLCF(1.0, 4).fit(sparse, RNG).scores(users)
    monkeypatch.setattr(dplcf, "BLOCK", 7)
    seen: list[tuple[int, int]] = []
    parts = DPLCF(1.0, 4).fit(sparse, RNG, lambda done, total: seen.append((done, total)))
    np.testing.assert_array_equal(parts.scores(users), whole)
    assert seen == [(step, 11) for step in range(1, 12)]
