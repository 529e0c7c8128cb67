"""LightGCN's propagation, loss and gradient against dense matrix algebra."""

import numpy as np
import pytest

from sottovoce.baselines import LightGCN
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import Streams
from sottovoce.testing import random_world

torch = pytest.importorskip("torch")
from sottovoce.baselines import lightgcn_training as training  # noqa: E402

RNG = Streams.from_seed(1)


@pytest.fixture(scope="module")
def world():
    return random_world(25, 18, 110, seed=6)


def normalised(train):
    """From the definition: the adjacency matrix divided by the roots of both degrees."""
    n = train.n_users + train.n_items
    table = np.zeros((n, n))
    table[train.users, train.n_users + train.items] = 1.0
    table += table.T
    degree = table.sum(axis=0)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    return scale[:, None] * table * scale


def whole(train, layers):
    """(I + M + … + Mᴷ) / (K + 1)."""
    step = normalised(train)
    return sum(np.linalg.matrix_power(step, k) for k in range(layers + 1)) / (layers + 1)


def test_the_graph_is_normalised_on_both_sides(world):
    np.testing.assert_allclose(training.adjacency(world).toarray(), normalised(world), atol=1e-7)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_propagation_and_gradient_are_the_dense_ones(world, layers):
    n, rng = world.n_users + world.n_items, np.random.default_rng(2)
    start, back = rng.normal(size=(n, 5)), rng.normal(size=(n, 5))
    graph = training._on(training.adjacency(world), torch.device("cpu"))
    rows = torch.tensor(start, dtype=torch.float32, requires_grad=True)
    final = training.Propagation.apply(graph, rows, layers)
    matrix = whole(world, layers)
    np.testing.assert_allclose(final.detach().numpy(), matrix @ start, atol=1e-5)
    final.backward(torch.tensor(back, dtype=torch.float32))
    np.testing.assert_allclose(rows.grad.numpy(), matrix.T @ back, atol=1e-5)


def test_the_loss_is_the_papers(world):
    n, rng = world.n_users + world.n_items, np.random.default_rng(3)
    start, final = rng.normal(size=(n, 4)), rng.normal(size=(n, 4))
    triples = np.array([[0, 3, 3], [25, 30, 41], [28, 26, 25]])
    user, positive, negative = final[triples]
    gap = (user * positive).sum(1) - (user * negative).sum(1)
    pull = sum((start[rows] ** 2).sum() for rows in triples)
    known = (-np.log(1 / (1 + np.exp(-gap))).sum() + 0.05 * pull) / 3
    found = training.batch_loss(*map(torch.tensor, (start, final, triples)), 0.1)
    assert float(found) == pytest.approx(known)


def test_negatives_are_drawn_from_everything_else(world):
    users = np.repeat(np.arange(world.n_users), 400)
    drawn = training.draw_negatives(world, users, np.random.default_rng(4))
    for user in range(world.n_users):
        mine = np.bincount(drawn[users == user], minlength=world.n_items)
        assert not mine[world.row(user)].any()
        assert (np.delete(mine, world.row(user)) > 0).all()


def test_scores_are_of_the_propagated_rows(world):
    found = LightGCN(4, epochs=1, learning_rate=1e-9).fit(world, RNG)
    start = training._initial(world, 4, RNG.child("lightgcn").child("init")).numpy()
    rows = whole(world, 3) @ start
    known = rows[: world.n_users] @ rows[world.n_users :].T
    known[world.counts == 0] = 0.0
    np.testing.assert_allclose(found.scores(np.arange(world.n_users)), known, atol=1e-5)


def test_wrong_settings_and_data(world, monkeypatch):
    for wrong in ({"layers": -1}, {"embedding_size": 0}, {"reg": -1.0}, {"learning_rate": 0.0},
                  {"epochs": 0}, {"batch_size": 0}):  # fmt: skip
        with pytest.raises(ConfigError):
            LightGCN(**wrong)
    with pytest.raises(ConfigError, match="device must be"):
        LightGCN(device="abacus").check()
    with pytest.raises(DataError, match="at least one user with a positive"):
        LightGCN(epochs=1).fit(world.select(np.zeros(world.n_interactions, dtype=bool)), RNG)
    monkeypatch.setattr(training, "batch_loss", lambda start, *_: (start * np.inf).sum())
    with pytest.raises(Diverged, match="lightgcn diverged in epoch 1; use a learning_rate below"):
        LightGCN(4, epochs=9).fit(world, RNG)
