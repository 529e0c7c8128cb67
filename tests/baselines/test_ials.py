"""iALS against dense linear algebra and its own loss."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.baselines import IALS, MFNP, ials
from sottovoce.core.interactions import Interactions, recency
from sottovoce.core.recommender import FactorScorer
from sottovoce.rng import Streams

RNG = Streams.from_seed(3)


def dense(train: Interactions) -> NDArray[np.float64]:
    table = np.zeros((train.n_users, train.n_items))
    table[train.users, train.items] = 1.0
    return table


def pulls(config: IALS, train: Interactions) -> list[NDArray[np.float64]]:
    """Of users and of items, from the definition."""
    table, (alpha, reg) = dense(train), config.weights(train)
    work = [table.sum(axis=1 - a) + alpha * table.shape[1 - a] for a in (0, 1)]
    return [reg * (w / w.mean()) ** config.frequency for w in work]


def loss(config: IALS, train: Interactions, model: FactorScorer) -> float:
    table, (alpha, _) = dense(train), config.weights(train)
    users, items = (m.astype(np.float64) for m in (model.user_factors, model.item_factors))
    scores = users @ items.T
    both = zip(pulls(config, train), (users, items), strict=True)
    return float(
        (table * (1 - scores) ** 2).sum()
        + alpha * (scores**2).sum()
        + sum((pull[:, None] * rows**2).sum() for pull, rows in both)
    )


@pytest.mark.parametrize("memory", [0.0, 4.0])
@pytest.mark.parametrize("frequency", [0.0, 1.0])
def test_users_are_at_their_optimum(frequency: float, memory: float, sparse: Interactions) -> None:
    config = IALS(4, unobserved=0.3, reg=0.5, frequency=frequency, epochs=3, memory=memory)
    model = config.fit(sparse, RNG)
    items = model.item_factors.astype(np.float64)
    weights = recency(sparse, memory)
    for user in (0, 7, 39):
        entries = slice(sparse.indptr[user], sparse.indptr[user + 1])
        mine, w = items[sparse.row(user)], weights[entries]
        left = 0.3 * items.T @ items + (mine.T * w) @ mine
        left += pulls(config, sparse)[0][user] * np.eye(4)
        best = np.linalg.solve(left, mine.T @ w)
        np.testing.assert_allclose(model.user_factors[user], best, atol=1e-5)
    assert not model.user_factors[7].any()


def test_memory_is_for_users_alone(sparse: Interactions) -> None:
    plain, late = (IALS(4, epochs=3, memory=m).fit(sparse, RNG) for m in (0.0, 4.0))
    np.testing.assert_array_equal(plain.item_factors, late.item_factors)
    assert not np.allclose(plain.user_factors, late.user_factors, atol=1e-3)


def test_the_loss_falls_with_every_pass(sparse: Interactions) -> None:
    losses = []
    for epochs in (1, 2, 4, 8, 16):
        config = IALS(5, unobserved=0.2, reg=0.1, epochs=epochs)
        losses.append(loss(config, sparse, config.fit(sparse, RNG)))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]


def test_it_is_mf_np_with_other_names(sparse: Interactions) -> None:
    """A scale apart, which ranks nothing otherwise."""
    ours = IALS(4, unobserved=0.25, reg=0.5, frequency=0.0, epochs=200).fit(sparse, RNG)
    # MF-NP asks positives for 1, where this asks them for 1 / (1 + α) with weight 1 + α.
    theirs = MFNP(4, alpha=4.0, reg=0.5 * 5.0, epochs=200).fit(sparse, RNG)
    users = np.arange(sparse.n_users)
    a, b = ours.scores(users), theirs.scores(users)
    np.testing.assert_allclose(a * 1.25, b, atol=0.02)


def test_long_rows_are_added_up_in_blocks() -> None:
    rng = np.random.default_rng(1)
    columns = rng.normal(size=(700, 3)).astype(np.float32)
    table = Interactions.from_pairs(
        np.zeros(600, dtype=int), np.arange(600), n_users=2, n_items=700
    )
    weights = rng.random(600)
    found = ials.solve(columns, table, weights, np.eye(3), np.array([2.0, 2.0]))
    mine = columns[:600].astype(np.float64)
    left = 3.0 * np.eye(3) + (mine.T * weights) @ mine
    np.testing.assert_allclose(found[0], np.linalg.solve(left, mine.T @ weights), rtol=1e-4)
    assert not found[1].any()


def test_settings_follow_from_the_data(sparse: Interactions) -> None:
    n = sparse.n_interactions
    alpha, reg = IALS().weights(sparse)
    assert alpha == pytest.approx(50 * n / (40 * 30))
    assert reg == pytest.approx(1.5 * (n / (40 * 30) ** 0.5) ** 0.5)
    assert IALS(unobserved=0.1, reg=7.0).weights(sparse) == (0.1, 7.0)


def test_threads_do_not_matter(sparse: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(ials, "default_threads", lambda threads=threads: threads)
        found.append(IALS(4, epochs=3).fit(sparse, RNG))
    one, three = found
    np.testing.assert_array_equal(one.user_factors, three.user_factors)
    np.testing.assert_array_equal(one.item_factors, three.item_factors)
