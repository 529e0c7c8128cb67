"""MF-NP against dense linear algebra and its own loss."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.baselines import MFNP, mf_np
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.rng import Streams

RNG = Streams.from_seed(3)


def loss(config: MFNP, train: Interactions, model: FactorScorer) -> float:
    table = np.zeros((train.n_users, train.n_items))
    table[train.users, train.items] = 1.0
    error = table - model.user_factors.astype(np.float64) @ model.item_factors.T
    squares = (model.user_factors**2).sum() + (model.item_factors**2).sum()
    return float(((1 + config.alpha * table) * error**2).sum() + config.reg * squares)


def dense(
    config: MFNP, factors: NDArray[np.float32], own: NDArray[np.int32]
) -> NDArray[np.float64]:
    """The best vector for one row, from the definition."""
    wide = factors.astype(np.float64)
    weight = np.ones(len(wide))
    weight[own] += config.alpha
    left = wide.T @ (weight[:, None] * wide) + config.reg * np.eye(wide.shape[1])
    return np.linalg.solve(left, (1 + config.alpha) * wide[own].sum(axis=0))


def test_users_are_at_their_optimum(sparse: Interactions) -> None:
    for solver in ("als", "adam"):
        config = MFNP(4, reg=0.5, epochs=5, solver=solver)
        model = config.fit(sparse, RNG)
        for user in (0, 7, 39):
            best = dense(config, model.item_factors, sparse.row(user))
            np.testing.assert_allclose(model.user_factors[user], best, atol=1e-4)
        assert not model.item_bias.any()


def test_items_are_solved_from_the_users_before(sparse: Interactions) -> None:
    config = MFNP(4, reg=0.5, epochs=1)
    start = MFNP(4, reg=0.5, epochs=1, solver="adam", learning_rate=1e-9).fit(sparse, RNG)
    model = config.fit(sparse, RNG)
    users_of = {i: np.flatnonzero([i in sparse.row(u) for u in range(40)]) for i in (0, 3, 29)}
    for item, users in users_of.items():
        best = dense(config, start.user_factors, users.astype(np.int32))
        np.testing.assert_allclose(model.item_factors[item], best, atol=1e-4)


def test_steps_come_near_the_exact_solver(sparse: Interactions) -> None:
    exact = MFNP(3, reg=1.0, epochs=60)
    steps = MFNP(3, reg=1.0, epochs=600, solver="adam", learning_rate=0.02)
    bound = loss(exact, sparse, exact.fit(sparse, RNG))
    assert loss(steps, sparse, steps.fit(sparse, RNG)) < 1.03 * bound


@pytest.mark.parametrize("solver", ["als", "adam"])
def test_threads_do_not_matter(
    solver: str, sparse: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(mf_np, "default_threads", lambda threads=threads: threads)
        found.append(MFNP(4, epochs=3, solver=solver).fit(sparse, RNG))  # type: ignore[arg-type]
    one, two = found
    np.testing.assert_array_equal(one.user_factors, two.user_factors)
    np.testing.assert_array_equal(one.item_factors, two.item_factors)
