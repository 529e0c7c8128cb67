"""UC-FedRec's networks: shapes, neighbours, and stacked copies that each work for themselves."""

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sottovoce.algorithms.uc.networks import (  # noqa: E402
    DEEP,
    Attribute,
    Recommender,
    UCModel,
    divergence,
    guess,
)

RNG = Streams.from_seed(5)


KINDS = ["mf", "ncf", "gnn", "neumf"]


def model_of(kind, attributes=(), size=6):
    return UCModel.init(Recommender(kind, size), 30, 20, attributes, RNG)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("kind", "width"), [("mf", 6), ("neumf", 6), ("ncf", 12), ("gnn", 12)])
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
    blind_gnn = UCModel(gnn.recommender, (), gnn.users, gnn.items, blind, ())
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


@pytest.mark.parametrize("width", [5, 16, 50])
@pytest.mark.parametrize("classes", [2, 21])
def test_a_filter_reads_one_user_the_same_in_any_company(width, classes):
    """To the last bit, and so do its slopes."""
    attribute = Attribute("age", classes)
    copies = [attribute.init(Recommender("mf", width), RNG.child(c)) for c in range(9)]
    draw = torch.Generator().manual_seed(0)
    rows, pull = torch.randn(9, 1, width, generator=draw), torch.randn(9, classes, generator=draw)

    def slopes(some):
        leaves = [rows[some], *(torch.stack([copies[c][n] for c in some]) for n in copies[0])]
        for leaf in leaves:
            leaf.requires_grad_()
        told = guess(leaves[0], dict(zip(copies[0], leaves[1:], strict=True)))[:, 0]
        return told, *torch.autograd.grad((told * pull[some]).sum(), leaves)

    together = slopes(list(range(9)))
    for c in range(9):
        for left, right in zip(together, slopes([c]), strict=True):
            assert torch.equal(left[c], right[0])


def test_the_deep_filter_is_as_large_as_the_published_one():
    weights = Attribute("gender", 2, DEEP).init(Recommender("ncf", 128), RNG)
    assert sum(w.numel() for w in weights.values()) == pytest.approx(1.35e6, rel=0.01)
    small = Attribute("gender", 2).init(Recommender("ncf", 128), RNG)
    assert sum(w.numel() for w in small.values()) == 256 * 128 + 128 + 2 * 128 + 2


def test_divergence_is_nought_at_the_target_alone():
    target = torch.tensor([0.5, 0.5, 0.0])
    rows = torch.tensor([[0.5, 0.5, 1e-30], [0.1, 0.8, 0.1]]).log()
    found = divergence(target, rows)
    assert found[0].abs() < 1e-6
    assert found[1] > 0.3


def test_neumf_is_the_published_network():
    """40 numbers: 8 factors, and a network of 64-32-16-8; its output weighs 8 + 8."""
    shapes = Recommender("neumf", 40).shapes()
    layers = {name: shape for name, shape in shapes.items() if name.startswith("weight")}
    assert layers == {"weight0": (32, 64), "weight1": (16, 32), "weight2": (8, 16)}
    assert shapes["out"] == (1, 16)
    model = model_of("neumf", size=40)
    assert not any(w.any() for name, w in model.towers.items() if "bias" in name)
    for name, shape in shapes.items():
        if len(shape) == 2:
            weight, bound = model.towers[name], np.sqrt(6 / sum(shape))
            assert 0.8 * bound < weight.abs().max() <= bound


def test_neumf_scores_by_its_formula():
    model = model_of("neumf", size=11)
    towers = {name: w.numpy().astype(float) for name, w in model.towers.items()}
    for name in ("bias0", "bias1", "bias2", "out_bias"):
        towers[name] += 0.1
    weights = {name: torch.tensor(w, dtype=torch.float32) for name, w in towers.items()}
    model = UCModel(model.recommender, (), model.users, model.items, weights, ())
    found = model.scores(torch.tensor([4, 17]))
    for row, u in enumerate((4, 17)):
        for i in range(20):
            user, item = model.users[u].numpy(), model.items[i].numpy()
            values = np.concatenate([user[2:], item[2:]])
            for layer in range(3):
                sums = towers[f"weight{layer}"] @ values + towers[f"bias{layer}"]
                values = np.maximum(sums, 0)
            both = np.concatenate([user[:2] * item[:2], values])
            expected = (towers["out"] @ both + towers["out_bias"])[0]
            assert found[row, i] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [6, 40])
def test_scores_are_those_that_clients_learn_from(kind, size, monkeypatch):
    """For any rows, in any order, however small the slabs."""
    model, rows = model_of(kind, size=size), torch.tensor([7, 0, 29, 7])
    users, items = model.represent()
    towers = {name: w.expand(4, *w.shape) for name, w in model.towers.items()}
    expected = model.recommender.score(users[rows][:, None], items.expand(4, -1, -1), towers)
    found = model.scores(rows)
    assert found.shape == (4, 20)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert model.scores(rows[:0]).shape == (0, 20)
    for slab in (1, 4 * size * 7, 4 * size * 45):
        monkeypatch.setattr("sottovoce.algorithms.uc.networks._SLAB", slab)
        assert torch.allclose(model.scores(rows), expected, rtol=1e-5, atol=1e-7)


class Largest(TorchDispatchMode):
    """Watches how many numbers an operation leaves at most."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.numbers = max(self.numbers, found.untyped_storage().nbytes() // 4)
        return found


@pytest.mark.parametrize("kind", ["gnn", "neumf"])
def test_scores_hold_little_beside_the_result(kind):
    """A layer of all pairs at once would be 32 times as large as the result."""
    model = UCModel.init(Recommender(kind, 40), 3000, 500, (), RNG)
    with Largest() as watch:
        result = model.scores(torch.arange(3000))
    # No more than a few of these are there at a time.
    assert watch.numbers <= max(result.numel(), 1 << 22)


def test_wrong_shapes_and_names_are_refused():
    for wrong in (("svd", 4), ("mf", 0), ("neumf", 4)):
        with pytest.raises(ConfigError):
            Recommender(*wrong)
    for classes, hidden in ((1, (8,)), (2, (8, 0))):
        with pytest.raises(ConfigError, match="gender"):
            Attribute("gender", classes, hidden)
    model, age = model_of("mf"), Attribute("age", 3)
    with pytest.raises(DataError, match="rows of 6"):
        UCModel(model.recommender, (), model.users[:, :3], model.items, {}, ())
    with pytest.raises(DataError, match="one filter per attribute"):
        UCModel(model.recommender, (age,), model.users, model.items, {}, ())
    with pytest.raises(DataError, match="age: the filter"):
        UCModel(
            model.recommender,
            (age,),
            model.users,
            model.items,
            {},
            (age.init(Recommender("mf", 5), RNG),),
        )
    for kind in ("ncf", "gnn", "neumf"):
        towers, other = model_of(kind).towers, model_of(kind, size=7).towers
        for wrong in ({}, other, {**towers, "more": torch.zeros(6)}):
            with pytest.raises(DataError, match=f"towers .* {kind}"):
                UCModel(Recommender(kind, 6), (), model.users, model.items, wrong, ())
