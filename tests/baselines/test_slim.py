"""SLIM against scikit-learn's elastic net, column by column."""

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet

from sottovoce.baselines import SLIM, slim
from sottovoce.rng import Streams
from sottovoce.testing import random_world

RNG = Streams.from_seed(1)


def dense(train):
    table = np.zeros((train.n_users, train.n_items))
    table[train.users, train.items] = 1.0
    return table


@pytest.fixture
def to_the_end(monkeypatch):
    """Sweeps until nothing moves any more."""
    monkeypatch.setattr(slim, "_TOLERANCE", 1e-10)
    monkeypatch.setattr(slim, "_SWEEPS", 10_000)


@pytest.mark.parametrize(("reg", "reg_l1"), [(2.0, 1.0), (0.5, 3.0), (10.0, 0.25)])
def test_columns_are_elastic_nets(reg, reg_l1, to_the_end):
    train = random_world(60, 25, 420, seed=4)
    table, n = dense(train), train.n_users
    ours = SLIM(reg=reg, reg_l1=reg_l1).weights(train).toarray()
    theirs = np.zeros_like(ours)
    for j in range(train.n_items):
        others = np.delete(np.arange(train.n_items), j)
        net = ElasticNet(
            alpha=(reg + reg_l1) / n, l1_ratio=reg_l1 / (reg + reg_l1), fit_intercept=False,
            positive=True, tol=1e-10, max_iter=100_000,
        ).fit(table[:, others], table[:, j])  # fmt: skip
        theirs[others, j] = net.coef_
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert (ours > 0).any()
    assert (ours >= 0).all()
    assert not ours.diagonal().any()


def test_neighbours_threads_and_pulls(monkeypatch):
    train = random_world(80, 30, 700, seed=2)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(slim, "default_threads", lambda threads=threads: threads)
        found.append(SLIM(reg=2.0).weights(train))
    whole = found[0]
    assert abs(whole - found[1]).nnz == 0
    few = SLIM(reg=2.0, neighbors=3).weights(train).toarray()
    shared = dense(train).T @ dense(train)
    np.fill_diagonal(shared, -1)
    for j in range(30):
        mine = np.flatnonzero(few[:, j])
        assert len(mine) <= 3
        assert not len(mine) or shared[mine, j].min() >= np.sort(shared[:, j])[-3]
    assert SLIM(reg_l1=1e6).weights(train).nnz == 0
    sparse = SLIM(reg=2.0, reg_l1=4.0).weights(train).nnz
    assert 0 < sparse < whole.nnz


def test_a_user_is_scored_by_her_items():
    train = random_world(40, 20, 200, seed=3)
    model = SLIM(reg=1.0, reg_l1=0.5)
    found = model.fit(train, RNG).scores(np.arange(40))
    np.testing.assert_allclose(found, dense(train) @ model.weights(train).toarray(), atol=1e-5)
