"""Central protection: it stops, by the rule it names, and touches only whom it was asked to."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.errors import ConfigError, DataError, UsageError
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc.networks import (  # noqa: E402
    Attribute,
    Recommender,
    UCModel,
    tells,
)
from sottovoce.algorithms.uc.protect import REASONS, Stopping, protect  # noqa: E402

ATTRIBUTES = (Attribute("gender", 2, (8,)), Attribute("age", 4, (8,)))
MOMENTS = (Attribute("gender", 2, None),)
USERS = np.array([3, 17, 4, 29], dtype=np.int64)
PLACES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))]  # fmt: skip


def new_model(kind="gnn", scale=3.0, place="cpu", attributes=ATTRIBUTES):
    """A model whose filters are sure of what they say."""
    model = UCModel.init(Recommender(kind, 12), 40, 25, attributes, Streams.from_seed(5))
    if attributes is MOMENTS:
        means = torch.from_numpy(Streams.from_seed(6).normal(np.arange(1), 12)).float()
        away = model.users - model.users.mean(dim=0)
        filters = (
            {
                "center": model.users.mean(dim=0),
                "moments": away.T @ away / len(away),
                "means": 0.05 * scale * torch.cat([means, -means]),
            },
        )
    else:
        filters = tuple({n: scale * w for n, w in f.items()} for f in model.filters)
    return replace(model, filters=filters).to(place)


def tell(model, rows, column, target):
    user = model.represent()[0][torch.from_numpy(rows)]
    return tells(user[None], model.filters[column], target)[0]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["mf", "ncf", "gnn", "neumf"])
@pytest.mark.parametrize("attributes", [ATTRIBUTES, MOMENTS], ids=["layers", "moments"])
def test_the_filter_tells_nothing_afterwards(kind, place, attributes):
    model = new_model(kind, place=place, attributes=attributes)
    target = torch.tensor([0.3, 0.7])
    found = protect(model, USERS, "gender", target, Stopping(steps=2000))
    assert (found.before > 0.01).any()
    assert (found.after < 0.01).all()
    assert set(found.reason) == {REASONS.index("the filter tells nothing")}
    if kind != "gnn":  # whose neighbours are looked up again
        after = tell(found.applied(model).to("cpu"), USERS, 0, target)
        assert np.allclose(after.numpy(), found.after, atol=1e-5)


@pytest.mark.parametrize("kind", ["mf", "gnn"])
def test_nothing_but_the_users_embeddings_changes(kind):
    model = new_model(kind)
    given = model.to("cpu")
    copies = given.users.clone(), given.items.clone(), [
        {n: w.clone() for n, w in f.items()} for f in (*given.filters, given.towers)
    ]  # fmt: skip
    found = protect(model, USERS, "age")
    after = found.applied(model)
    others = np.setdiff1d(np.arange(40), USERS)
    assert torch.equal(after.users[others], copies[0][others])
    assert not torch.equal(after.users[USERS], copies[0][USERS])
    assert torch.equal(model.users, copies[0])
    assert torch.equal(after.items, copies[1])
    for weights, old in zip((*after.filters, after.towers), copies[2], strict=True):
        assert all(torch.equal(weight, old[name]) for name, weight in weights.items())


def test_it_is_gradient_descent_for_each_user_by_herself():
    model, how = new_model("ncf", scale=1.0), Stopping(rate=0.05, below=0.0, steps=3)
    target = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = protect(model, USERS, "age", target, how)
    weights = model.filters[1]
    towers = {name: weight[None] for name, weight in model.towers.items()}
    for place, user in enumerate(USERS):
        leaf = model.users[user].clone()
        for _ in range(3):
            leaf.requires_grad_()
            rows = leaf[None, None]
            kl = tells(model.recommender.user(rows, rows, towers), weights, target)
            (slope,) = torch.autograd.grad(kl.sum(), leaf)
            leaf = (leaf - 0.05 * slope).detach()
        assert torch.allclose(leaf, found.embeddings[place], atol=1e-5)
    alone = protect(model, USERS[2:3], "age", target, how)
    assert torch.allclose(alone.embeddings[0], found.embeddings[2], atol=1e-6)


def test_no_step_makes_it_worse():
    model = new_model("mf", scale=30.0)
    wild = protect(model, USERS, "age", how=Stopping(rate=1e3, below=0.0, steps=40))
    assert (wild.after <= wild.before).all()
    assert (wild.after < wild.before).any()


def test_every_rule_stops_and_says_so():
    model = new_model("mf")
    patient = protect(model, USERS, "gender", how=Stopping(below=0.0, steps=7))
    assert patient.counts() == dict.fromkeys(REASONS, 0) | {REASONS[2]: 4}
    assert set(patient.steps) == {7}
    near = protect(model, USERS, "gender", how=Stopping(below=0.0, furthest=0.002))
    assert near.counts()[REASONS[1]] == 4
    assert np.all(near.moved <= 0.002 * (1 + 1e-3))
    assert near.steps.max() < 100
    content = protect(model, USERS, "gender", how=Stopping(below=1e3))
    assert content.counts()[REASONS[0]] == 4
    assert set(content.steps) == {0}
    assert torch.equal(content.embeddings, model.users[USERS])


def test_no_way_and_no_steps_leave_everything_where_it_was():
    model = new_model("mf")
    for how in (Stopping(furthest=0.0, below=0.0), Stopping(steps=0, below=0.0)):
        found = protect(model, USERS, "gender", how=how)
        assert torch.equal(found.embeddings, model.users[USERS])
        assert not found.moved.any()


def test_nobody_to_protect_is_no_work():
    found = protect(new_model(), np.zeros(0, dtype=np.int64), "gender")
    assert len(found) == 0
    assert sum(found.counts().values()) == 0
    assert torch.equal(found.applied(new_model()).users, new_model().users)


def test_bad_requests_are_refused():
    model = new_model()
    with pytest.raises(UsageError, match="income"):
        protect(model, USERS, "income")
    for users in ([1, 1], [40], [-1], [[1]]):
        with pytest.raises(DataError):
            protect(model, np.array(users), "gender")
    for target in ([0.5, 0.3, 0.2], [1.0, -1.0], [0.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(DataError, match="gender"):
            protect(model, USERS, "gender", torch.tensor(target))
    for wrong in ({"rate": 0.0}, {"below": -1.0}, {"furthest": -1.0}, {"steps": -1}):
        with pytest.raises(ConfigError):
            Stopping(**wrong)


def test_where_a_filter_gives_no_number_a_user_stays_and_the_others_move():
    model = new_model("mf")
    table = model.users.clone()
    table[USERS[0]] = torch.inf
    found = protect(replace(model, users=table), USERS, "gender", how=Stopping(below=0.0))
    alone = protect(model, USERS[1:], "gender", how=Stopping(below=0.0))
    assert found.counts()["the filter gives no number"] == 1
    assert (found.before[0], found.after[0], found.moved[0], found.steps[0]) == (0, 0, 0, 0)
    assert torch.equal(found.embeddings[0], table[USERS[0]])
    assert torch.equal(found.embeddings[1:], alone.embeddings)
    assert np.array_equal(found.moved[1:], alone.moved)
