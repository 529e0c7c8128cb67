"""UC-FedRec's local training and fold: batching changes nothing, consent does what it says."""

import numpy as np
import pytest

from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged, MessageError
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc_fold import Fold, fold  # noqa: E402
from sottovoce.algorithms.uc_local import (  # noqa: E402
    Clients,
    LocalTraining,
    Pairs,
    train,
    words,
)
from sottovoce.algorithms.uc_networks import (  # noqa: E402
    Attribute,
    Model,
    Recommender,
    divergence,
    guess,
)

USERS, ITEMS = 12, 40
RNG = Streams.from_seed(3)
ATTRIBUTES = (Attribute("gender", 2), Attribute("age", 3, (8, 6)))
PRIORS = (torch.tensor([0.7, 0.3]), torch.tensor([0.2, 0.5, 0.3]))
HOW = LocalTraining(epochs=4, pairs=16, filter_rate=0.1)
KINDS = ["mf", "ncf", "gnn"]


@pytest.fixture(autouse=True)
def one_thread():
    """Tables this small gain nothing from more, and on a busy machine threads wait in vain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_of(kind, attributes=ATTRIBUTES):
    return Model.init(Recommender(kind, 6), USERS, ITEMS, attributes, Streams.from_seed(1))


def clients_of(hidden=None, strength=0.5, attributes=ATTRIBUTES):
    draw = np.random.default_rng(0)
    rows = [np.sort(draw.choice(ITEMS, size, replace=False)) for size in range(3, 3 + USERS)]
    history = Interactions.from_pairs(
        np.repeat(np.arange(USERS), [len(row) for row in rows]),
        np.concatenate(rows),
        n_users=USERS,
        n_items=ITEMS,
    )
    labels = np.stack([draw.integers(0, a.classes, USERS) for a in attributes] or [[]] * USERS)
    labels = labels.T.astype(np.int64) if attributes else np.zeros((USERS, 0), np.int64)
    if hidden is None:
        hidden = draw.random(labels.shape) < 0.5
    hidden = np.broadcast_to(hidden, labels.shape).copy()
    beta = np.full(USERS, strength, np.float32)
    return Clients(np.arange(USERS), history, labels, hidden, beta)


def everything(updates):
    networks = [updates.towers, *updates.filters]
    return [updates.users, updates.items, *(c for some in networks for c in some.values())]


def same(one, other):
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left, right)


def weights_of(model):
    networks = [model.towers, *model.filters]
    return [model.users, model.items, *(w for some in networks for w in some.values())]


def test_words_are_those_of_the_streams():
    keys = torch.from_numpy(RNG.keys(np.arange(5)).view(np.int64))
    expected = RNG.words(np.arange(5), 9).view(np.int64)
    assert np.array_equal(words(keys, 9).numpy(), expected)
    assert np.array_equal(words(keys, 4, first=5).numpy(), expected[:, 5:])


def test_pairs_are_one_of_hers_and_one_that_is_not():
    clients = clients_of()
    pairs = Pairs.draw(clients, LocalTraining(epochs=30, pairs=64), RNG, torch.device("cpu"))
    for c in range(USERS):
        hers = clients.history.items[clients.history.indptr[c] : clients.history.indptr[c + 1]]
        drawn = pairs.items[c][pairs.positives[:, c].flatten()].numpy()
        other = pairs.items[c][pairs.negatives[:, c].flatten()].numpy()
        assert set(drawn) == set(hers)
        assert set(other) == set(range(ITEMS)) - set(hers)
        # Uniform: no item is drawn far more often than another.
        assert np.bincount(other).max() < 2.2 * 1920 / (ITEMS - len(hers))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("move_nearest", [False, True])
def test_a_cohort_of_n_is_n_cohorts_of_one(kind, move_nearest):
    model, clients = model_of(kind), clients_of()
    how = LocalTraining(epochs=4, pairs=16, move_nearest=move_nearest)
    together = fold(model, [train(model, clients, how, RNG, PRIORS)])
    order = np.random.default_rng(1).permutation(USERS)
    apart = fold(
        model, (train(model, clients.take(order[[n]]), how, RNG, PRIORS) for n in range(USERS))
    )
    for left, right in zip(weights_of(together), weights_of(apart), strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-6)
        assert not torch.equal(left, torch.zeros_like(left))


@pytest.mark.parametrize("kind", KINDS)
def test_without_private_attributes_it_is_the_base_model(kind):
    bare = train(model_of(kind, ()), clients_of(attributes=()), HOW, RNG)
    shared = train(model_of(kind), clients_of(hidden=False), HOW, RNG)
    same(everything(bare), everything(shared)[: len(everything(bare))])
    assert all(bool(change.any()) for weights in shared.filters for change in weights.values())


@pytest.mark.parametrize("kind", KINDS)
def test_strength_nought_asks_for_nothing(kind):
    bare = train(model_of(kind, ()), clients_of(attributes=()), HOW, RNG)
    hidden = train(model_of(kind), clients_of(hidden=True, strength=0.0), HOW, RNG, PRIORS)
    same(everything(bare), everything(hidden)[: len(everything(bare))])


@pytest.mark.parametrize("kind", KINDS)
def test_filters_stay_when_nobody_shares(kind):
    model = model_of(kind)
    after = fold(model, [train(model, clients_of(hidden=True), HOW, RNG, PRIORS)])
    for before, now in zip(model.filters, after.filters, strict=True):
        same(before.values(), now.values())
    assert not torch.equal(model.items, after.items)


def test_an_unknown_attribute_is_a_hidden_one():
    known, unknown = clients_of(hidden=False), clients_of(hidden=False)
    known.hidden[4, 1] = True
    unknown.labels[4, 1] = -1
    model = model_of("ncf")
    same(
        everything(train(model, known, HOW, RNG, PRIORS)),
        everything(train(model, unknown, HOW, RNG, PRIORS)),
    )


def test_a_change_of_mind_alters_that_client_alone():
    before, after = clients_of(hidden=False), clients_of(hidden=False)
    after.hidden[7, 0] = True
    model = model_of("gnn")
    one, two = (train(model, c, HOW, RNG, PRIORS) for c in (before, after))
    rest = np.arange(USERS) != 7
    for left, right in zip(everything(one), everything(two), strict=True):
        assert torch.allclose(left[rest], right[rest], rtol=0, atol=1e-7)
    assert not torch.equal(one.users[7], two.users[7])
    assert not two.filters[0]["weight0"][7].any()
    assert two.shared[:, 0].tolist() == rest.tolist()


def test_a_label_that_is_hidden_changes_nothing():
    """What must not be learnt is not even read."""
    one, two = clients_of(hidden=True), clients_of(hidden=True)
    two.labels[:] = 0
    model = model_of("gnn")
    same(
        everything(train(model, one, HOW, RNG, PRIORS)),
        everything(train(model, two, HOW, RNG, PRIORS)),
    )


@pytest.mark.parametrize("target", ["uniform", "prior"])
def test_the_pull_brings_the_filters_guess_to_the_target(target):
    model, clients = model_of("mf"), clients_of(hidden=True, strength=0.9)
    # A filter that is sure of itself.
    loud = tuple({n: 2 * w for n, w in weights.items()} for weights in model.filters)
    model = Model(model.recommender, model.attributes, 5 * model.users, model.items, {}, loud)
    how = LocalTraining(epochs=60, pairs=16, rate=0.02, target=target)
    after = fold(model, [train(model, clients, how, RNG, PRIORS)])

    def distance(some):
        total = 0.0
        for t, attribute in enumerate(ATTRIBUTES):
            goal = PRIORS[t] if target == "prior" else torch.full((attribute.classes,), 1.0)
            filters = {n: w[None] for n, w in some.filters[t].items()}
            log_q = guess(some.users[None], filters)[0].log_softmax(dim=1)
            total += float(divergence(goal / goal.sum(), log_q).sum())
        return total

    assert distance(after) < 0.1 * distance(model)


def test_one_plain_step_is_the_gradient_of_the_stated_loss():
    """One client, one epoch, no momentum or dropout to speak of: against the formula, by hand."""
    how = LocalTraining(epochs=1, pairs=8, dropout=0.0, reg=0.01, clip=1e9, target="uniform")
    model, clients = model_of("mf"), clients_of(hidden=True, strength=0.75).take(np.array([2]))
    sent = train(model, clients, how, RNG)
    pairs = Pairs.draw(clients, how, RNG.child("pairs"), torch.device("cpu"))
    user = model.users[2].clone().requires_grad_()
    items = model.items.clone().requires_grad_()
    i, j = (items[pairs.items[0][p[0, 0]]] for p in (pairs.positives, pairs.negatives))
    loss = -torch.log(torch.sigmoid(i @ user - j @ user)).mean()
    norms = 8 * user.square().sum() + i.square().sum() + j.square().sum()
    loss = loss + 0.01 / (2 * 8) * norms
    for t, attribute in enumerate(ATTRIBUTES):
        filters = {n: w[None] for n, w in model.filters[t].items()}
        q = guess(user[None, None], filters)[0, 0].softmax(dim=0)
        even = torch.full_like(q, 1 / attribute.classes)
        loss = loss + 3.0 * (even * (even / q).log()).sum()
    loss.backward()
    assert torch.allclose(sent.users[0, 0], -0.1 * user.grad, atol=1e-7)
    there = sent.item_rows[0]
    assert torch.allclose(sent.items[0], -0.1 * items.grad[there], atol=1e-7)


def test_filters_learn_from_those_who_share():
    model = model_of("mf")
    model = Model(
        model.recommender, model.attributes, 8 * model.users, model.items, {}, model.filters
    )
    clients = clients_of(hidden=False)
    how = LocalTraining(epochs=10, pairs=4, rate=1e-6, filter_rate=0.05)
    for number in range(20):
        model = fold(model, [train(model, clients, how, RNG.child(number))])
    labels = torch.from_numpy(clients.labels)
    for t, weights in enumerate(model.filters):
        told = guess(model.users[None], {n: w[None] for n, w in weights.items()})[0].argmax(dim=1)
        assert (told == labels[:, t]).float().mean() > 0.85


def test_what_leaves_is_clipped():
    how = LocalTraining(epochs=4, pairs=16, clip=0.01)
    sent = train(model_of("gnn"), clients_of(), how, RNG, PRIORS)
    rest = [sent.users, sent.items, *sent.towers.values()]
    filters = [c for weights in sent.filters for c in weights.values()]
    for changes in (rest, filters):
        norms = sum(c.flatten(1).double().square().sum(dim=1) for c in changes).sqrt()
        assert norms.max() <= 0.01 * (1 + 1e-5)


def test_rows_nobody_touched_stay():
    model, clients = model_of("gnn"), clients_of().take(np.array([3]))
    sent = train(model, clients, LocalTraining(epochs=1, pairs=2), RNG, PRIORS)
    after = fold(model, [sent])
    moved = (after.items != model.items).any(dim=1).nonzero()[:, 0]
    assert set(moved.tolist()) == set(sent.item_rows[0].tolist())
    assert (after.users != model.users).any(dim=1).nonzero()[:, 0].tolist() == [3]


def test_the_fold_ignores_order_and_batches():
    model, clients = model_of("gnn"), clients_of()
    how = LocalTraining(epochs=4, pairs=16, move_nearest=True)
    sent = [train(model, clients.take(np.array([n])), how, RNG, PRIORS) for n in range(USERS)]
    same(weights_of(fold(model, sent)), weights_of(fold(model, sent[::-1])))


def test_bad_updates_are_refused_and_nothing_is_lost():
    model = model_of("ncf")
    good = train(model, clients_of(), HOW, RNG, PRIORS)
    sums = Fold.of(model)
    sums.add(good)
    wild = train(model, clients_of(), HOW, RNG, PRIORS)
    wild.items[3, 0, 0] = torch.nan
    with pytest.raises(Diverged):
        sums.add(wild)
    strange = train(model, clients_of(), HOW, RNG, PRIORS)
    strange.item_rows[0, 0] = ITEMS
    with pytest.raises(MessageError):
        sums.add(strange)
    with pytest.raises(MessageError):
        sums.add(train(model_of("mf"), clients_of(), HOW, RNG, PRIORS))
    same(weights_of(sums.result()), weights_of(fold(model, [good])))


def test_bad_input_is_named():
    clients, empty = clients_of(), Interactions.from_pairs([], [], n_users=1, n_items=ITEMS)
    clients.labels[0, 0] = 2
    with pytest.raises(DataError, match="class"):
        train(model_of("mf"), clients, HOW, RNG, PRIORS)
    with pytest.raises(DataError, match="shares of every attribute"):
        train(model_of("mf"), clients_of(hidden=True), HOW, RNG)
    with pytest.raises(DataError, match="some, but not all"):
        Clients(np.zeros(1, np.int64), empty, *np.zeros((2, 1, 0)), np.zeros(1, np.float32))
    with pytest.raises(DataError, match="one column per filter"):
        train(model_of("mf"), clients_of(attributes=()), HOW, RNG)
    with pytest.raises(Diverged):
        train(model_of("mf"), clients_of(), LocalTraining(rate=1e30, item_rate=1e30), RNG, PRIORS)
    for wrong in ({"epochs": 0}, {"rate": float("nan")}, {"dropout": 1.0}, {"target": "x"}):
        with pytest.raises(ConfigError):
            LocalTraining(**wrong)


def test_private_data_is_not_printed():
    clients = clients_of()
    for thing in (clients, train(model_of("mf"), clients, HOW, RNG, PRIORS)):
        assert "redacted" in repr(thing)
        assert "array" not in repr(thing)
