"""UC-FedRec's networks: shapes, neighbours, and stacked copies that each work for themselves."""

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc_networks import (  # noqa: E402
    DEEP,
    Attribute,
    Model,
    Recommender,
    divergence,
    guess,
)

RNG = Streams.from_seed(5)


def model_of(kind, attributes=()):
    return Model.init(Recommender(kind, 6), 30, 20, attributes, RNG)


@pytest.mark.parametrize(("kind", "width"), [("mf", 6), ("ncf", 12), ("gnn", 12)])
def test_representations_hold_the_embedding_and_a_unit_vector(kind, width):
    model = model_of(kind)
    for rows, table in zip(model.represent(), (model.users, model.items), strict=True):
        assert rows.shape == (len(table), width)
        assert width == model.recommender.width
        assert torch.equal(rows[:, :6], table)
        if width > 6:
            assert torch.allclose(rows[:, 6:].norm(dim=1), torch.ones(len(table)))


def test_a_gnn_is_an_ncf_that_looks_around():
    """Without the weights for the nearest users there is no difference."""
    gnn, ncf = model_of("gnn"), model_of("ncf")
    blind = {**gnn.towers, "around": torch.zeros(6, 6)}
    blind_gnn = Model(gnn.recommender, (), gnn.users, gnn.items, blind, ())
    for left, right in zip(blind_gnn.represent(), ncf.represent(), strict=True):
        assert torch.allclose(left, right)
    assert not torch.allclose(gnn.represent()[0], ncf.represent()[0])


def test_the_nearest_begin_with_oneself():
    model = model_of("gnn")
    near = model.nearest(torch.arange(30), 4).numpy()
    users = model.users.numpy().astype(float)
    units = users / np.linalg.norm(users, axis=1, keepdims=True)
    assert np.array_equal(near, np.argsort(-(units @ units.T), axis=1)[:, :4])
    assert np.array_equal(near[:, 0], np.arange(30))
    assert model.nearest(torch.arange(2), 100).shape == (2, 30)


@pytest.mark.parametrize("hidden", [(), (128,), (7, 5, 3)])
def test_stacked_copies_guess_each_for_itself(hidden):
    attribute = Attribute("age", 4, hidden)
    copies = [attribute.init(12, RNG.child(c)) for c in range(3)]
    rows = torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(0))
    stacked = guess(rows, {n: torch.stack([copy[n] for copy in copies]) for n in copies[0]})
    assert stacked.shape == (3, 2, 4)
    for c, copy in enumerate(copies):
        alone = guess(rows[c][None], {n: w[None] for n, w in copy.items()})[0]
        assert torch.allclose(stacked[c], alone, atol=1e-6)


def test_the_deep_filter_is_as_large_as_the_published_one():
    weights = Attribute("gender", 2, DEEP).init(256, RNG)
    assert sum(w.numel() for w in weights.values()) == pytest.approx(1.35e6, rel=0.01)
    small = Attribute("gender", 2).init(256, RNG)
    assert sum(w.numel() for w in small.values()) == 256 * 128 + 128 + 2 * 128 + 2


def test_divergence_is_nought_at_the_target_alone():
    target = torch.tensor([0.5, 0.5, 0.0])
    rows = torch.tensor([[0.5, 0.5, 1e-30], [0.1, 0.8, 0.1]]).log()
    found = divergence(target, rows)
    assert found[0].abs() < 1e-6
    assert found[1] > 0.3


def test_filters_change_nothing_of_the_rest():
    bare, more = model_of("gnn"), model_of("gnn", (Attribute("age", 3),))
    assert torch.equal(bare.items, more.items)
    assert torch.equal(bare.towers["around"], more.towers["around"])


def test_wrong_shapes_and_names_are_refused():
    for wrong in (("svd", 4), ("mf", 0)):
        with pytest.raises(ConfigError):
            Recommender(*wrong)
    with pytest.raises(ConfigError):
        Attribute("gender", 1)
    model = model_of("mf")
    with pytest.raises(DataError):
        Model(model.recommender, (), model.users[:, :3], model.items, {}, ())
    with pytest.raises(DataError):
        Model(model.recommender, (Attribute("age", 3),), model.users, model.items, {}, ())
