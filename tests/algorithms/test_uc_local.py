"""UC-FedRec's local training: batching changes nothing, consent does what it says."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, Diverged
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from uc_world import (  # noqa: E402
    ATTRIBUTES,
    HOW,
    ITEMS,
    KINDS,
    PRIORS,
    RNG,
    USERS,
    changes,
    clients_of,
    everything,
    model_of,
    same,
)

from sottovoce.algorithms.uc import training  # noqa: E402
from sottovoce.algorithms.uc.networks import UCModel, divergence, guess  # noqa: E402
from sottovoce.algorithms.uc.training import (  # noqa: E402  # noqa: E402
    Clients,
    Drops,
    ItemPairs,
    LocalTraining,
    clip,
    train,
    user_keys,
    words,
)

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(clients, how, rng=RNG):
    """The items of a round with this stream."""
    keys = user_keys(clients.users, rng.child("pairs"), CPU)
    return ItemPairs.draw(keys, clients.history, how.epochs, how.pairs, how.negatives)


# --- draws --------------------------------------------------------------------------------------


def test_words_are_those_of_the_streams():
    keys = user_keys(np.arange(5), RNG, CPU)
    expected = RNG.words(np.arange(5), 9).view(np.int64)
    assert np.array_equal(words(keys, 9).numpy(), expected)
    assert np.array_equal(words(keys, 4, first=5).numpy(), expected[:, 5:])


@pytest.mark.parametrize("negatives", [1, 4])
def test_pairs_are_one_of_hers_and_some_that_are_not(negatives):
    clients = clients_of()
    pairs = drawn(clients, LocalTraining(epochs=30, pairs=64, negatives=negatives))
    assert pairs.negatives.shape == (30, USERS, 64, negatives)
    for c in range(USERS):
        hers = clients.history.items[clients.history.indptr[c] : clients.history.indptr[c + 1]]
        liked = pairs.items[c][pairs.positives[:, c].flatten()].numpy()
        other = pairs.items[c][pairs.negatives[:, c].flatten()].numpy()
        assert set(liked) == set(hers)
        assert set(other) == set(range(ITEMS)) - set(hers)
        # Uniform: no item is drawn far more often than another.
        assert np.bincount(other).max() < 2.2 * negatives * 1920 / (ITEMS - len(hers))


def test_draws_follow_the_user_and_not_her_row():
    clients = clients_of()
    elsewhere = replace(clients, rows=clients.rows[::-1].copy())
    model = model_of("mf")
    rest = (model.items, model.towers, model.filters)
    turned = UCModel(model.recommender, model.attributes, model.users.flip(0), *rest)
    same(
        everything(train(model, clients, HOW, RNG, PRIORS)),
        everything(train(turned, elsewhere, HOW, RNG, PRIORS)),
    )


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    drops = Drops(user_keys(np.arange(20), RNG, CPU), 64, 13)
    for_user, for_items = drops.kept(3, 50)
    assert for_user.shape == (20, 1, 13)
    assert for_items.shape == (20, 50, 13)
    assert set(for_items.unique().tolist()) == {0.0, np.float32(256 / 192).item()}
    # 13,000 draws: four standard errors are 0.015.
    assert (for_items == 0).float().mean() == pytest.approx(0.25, abs=0.015)
    assert not torch.equal(for_items, drops.kept(4, 50)[1])
    alone = Drops(user_keys(np.array([7]), RNG, CPU), 64, 13).kept(3, 50)
    same(alone, (for_user[7:8], for_items[7:8]))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_concerns_towers_alone(kind):
    sent = [
        train(model_of(kind), clients_of(), replace(HOW, dropout=dropout), RNG, PRIORS).items
        for dropout in (0.0, 0.5)
    ]
    assert torch.equal(*sent) == (kind in ("mf", "neumf"))


# --- a cohort of n is n cohorts of one ----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("how", [HOW, LocalTraining(epochs=2, pairs=20, negatives=3, clip=0.05)])
def test_a_cohort_of_n_is_n_cohorts_of_one_to_the_last_bit(kind, size, how):
    model, clients = model_of(kind, size=size), clients_of()
    together = train(model, clients, how, RNG, PRIORS)
    for n in range(USERS):
        alone = train(model, clients.take(np.array([n])), how, RNG, PRIORS)
        hers = alone.item_rows.shape[1]
        assert torch.equal(together.item_rows[n, :hers], alone.item_rows[0])
        assert not together.items[n, hers:].any()
        together_hers = [together.users, together.items[:, :hers], *changes(together)[1:]]
        same([change[n] for change in together_hers], [change[0] for change in everything(alone)])


@pytest.mark.parametrize("size", [5, 7, 16, 33])
@pytest.mark.parametrize("norm", ["l2", "l1", "scalar"])
def test_mf_with_two_filters_is_the_same_in_any_batch_whatever_its_sizes(size, norm):
    how = LocalTraining(epochs=3, pairs=13, filter_rate=0.1, clip=0.02, norm=norm)
    model, clients = model_of("mf", size=size), clients_of()
    halves = [clients.take(rows) for rows in (np.arange(5), np.arange(5, USERS))]
    parts = [train(model, half, how, RNG, PRIORS) for half in halves]
    for n in range(USERS):
        alone = train(model, clients.take(np.array([n])), how, RNG, PRIORS)
        part, c = (parts[0], n) if n < 5 else (parts[1], n - 5)
        hers = alone.item_rows.shape[1]
        found = [part.users, part.items[:, :hers], *changes(part)[1:]]
        same([change[c] for change in found], [change[0] for change in everything(alone)])


# --- consent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_strength_nought_asks_for_nothing(kind):
    bare = train(model_of(kind, ()), clients_of(attributes=()), HOW, RNG)
    hidden = train(model_of(kind), clients_of(hidden=True, strength=0.0), HOW, RNG, PRIORS)
    same(everything(bare), everything(hidden)[: len(everything(bare))])


@pytest.mark.parametrize("kind", KINDS)
def test_hiding_moves_the_user_and_trains_no_filter(kind):
    base = train(model_of(kind), clients_of(hidden=False), HOW, RNG)
    hidden = train(model_of(kind), clients_of(hidden=True), HOW, RNG, PRIORS)
    assert (base.users != hidden.users).any(dim=1).all()
    assert not any(bool(change.any()) for weights in hidden.filters for change in weights.values())
    assert not hidden.shared.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [0, 99])
def test_a_label_that_is_hidden_changes_nothing(kind, other):
    """What must not be learnt is not even read, whether or not it names a class."""
    one, two = clients_of(), clients_of()
    two.labels[two.hidden] = other
    assert (one.labels != two.labels).any()
    model = model_of(kind)
    same(
        everything(train(model, one, HOW, RNG, PRIORS)),
        everything(train(model, two, HOW, RNG, PRIORS)),
    )


@pytest.mark.parametrize("target", ["uniform", "prior"])
@pytest.mark.parametrize("kind", ["mf", "neumf"])
def test_the_pull_brings_the_filters_guess_to_the_target(kind, target):
    model, clients = model_of(kind), clients_of(hidden=True, strength=0.9)
    # A filter that is sure of itself.
    loud = tuple({n: 2 * w for n, w in weights.items()} for weights in model.filters)
    users = 5 * model.users
    model = UCModel(model.recommender, model.attributes, users, model.items, model.towers, loud)
    how = LocalTraining(epochs=60, pairs=16, rate=0.02, tower_rate=0.02, target=target)
    after = users + train(model, clients, how, RNG, PRIORS).users

    def distance(rows):
        total = 0.0
        for t, attribute in enumerate(ATTRIBUTES):
            goal = PRIORS[t] if target == "prior" else torch.full((attribute.classes,), 1.0)
            filters = {n: w[None] for n, w in model.filters[t].items()}
            log_q = guess(rows[None], filters)[0].log_softmax(dim=1)
            total += float(divergence(goal / goal.sum(), log_q).sum())
        return total

    assert distance(after) < 0.1 * distance(users)


# --- the stated loss ----------------------------------------------------------------------------


def loss_by_hand(model, how, weight, liked, other, reads):
    """The module's formula in double precision, straight from numpy. `reads(name)` is a table."""
    user, items = reads("users")[2], reads("items")
    size = model.recommender.size

    def score(item):
        if model.recommender.kind == "mf":
            return user @ items[item]
        part = size // 5
        values = np.concatenate([user[part:], items[item][part:]])
        for layer in range(3):
            sums = reads(f"weight{layer}") @ values + reads(f"bias{layer}")
            values = np.maximum(sums, 0.0)
        both = np.concatenate([user[:part] * items[item][:part], values])
        return float(reads("out")[0] @ both + reads("out_bias")[0])

    def miss(margin):
        return np.log1p(np.exp(-margin))

    pairs = [(i, j) for i, some in zip(liked, other, strict=True) for j in some]
    if model.recommender.kind == "mf":
        loss = np.mean([miss(score(i) - score(j)) for i, j in pairs])
    else:
        loss = np.mean([miss(score(i)) for i in liked] + [miss(-score(j)) for _, j in pairs])
    touched = list(liked) + [j for _, j in pairs]
    length = user @ user + sum(items[i] @ items[i] for i in touched) / len(liked)
    loss += how.reg / 2 * length
    for t, attribute in enumerate(ATTRIBUTES):
        values = user
        layers = len(model.filters[t]) // 2
        for layer in range(layers):
            values = np.where(values > 0, values, 0.2 * values) if layer else values
            weights = model.filters[t]
            values = weights[f"weight{layer}"].double().numpy() @ values
            values = values + weights[f"bias{layer}"].double().numpy()
        q = np.exp(values) / np.exp(values).sum()
        even = 1.0 / attribute.classes
        loss += weight * np.sum(even * np.log(even / q))
    return loss


@pytest.mark.parametrize("kind", ["mf", "neumf"])
@pytest.mark.parametrize("negatives", [1, 3])
def test_one_plain_step_is_the_slope_of_the_stated_loss(kind, negatives):
    """One client, one step: against finite differences of the formula, for every weight."""
    how = LocalTraining(
        epochs=1, pairs=8, negatives=negatives, dropout=0.0, reg=0.01, clip=1e9, target="uniform"
    )
    model = model_of(kind, size=10)
    clients = clients_of(hidden=True, strength=0.75).take(np.array([2]))
    sent = train(model, clients, how, RNG)
    pairs = drawn(clients, how)
    liked = pairs.items[0][pairs.positives[0, 0]].tolist()
    other = pairs.items[0][pairs.negatives[0, 0]].tolist()
    tables = {"users": model.users, "items": model.items, **model.towers}
    numbers = {name: table.double().numpy().copy() for name, table in tables.items()}

    def slope(name, places):
        found = []
        for place in places:
            ends = []
            for step in (1e-6, -1e-6):
                moved = {**numbers, name: numbers[name].copy()}
                moved[name][place] += step
                ends.append(loss_by_hand(model, how, 3.0, liked, other, moved.__getitem__))
            found.append((ends[0] - ends[1]) / 2e-6)
        return np.array(found)

    networks = {name: change[0] for name, change in sent.towers.items()}
    for name, change in {"users": sent.users[0], "items": sent.items[0], **networks}.items():
        if name == "users":
            places = [(2, k) for k in range(10)]
        elif name == "items":
            places = [(int(i), k) for i in sent.item_rows[0][:6] for k in range(10)]
            change = change[:6]
        else:
            places = list(np.ndindex(*numbers[name].shape))
        expected = -0.1 * slope(name, places)
        assert np.allclose(change.flatten().numpy(), expected, rtol=1e-3, atol=1e-7), name
        assert np.abs(expected).max() > 1e-5


# --- what leaves --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_leaves_is_clipped_and_the_users_embedding_is_not(kind):
    free = train(model_of(kind), clients_of(), replace(HOW, clip=np.inf), RNG, PRIORS)
    for norm in ("l2", "l1", "scalar"):
        how = replace(HOW, clip=1e-3, norm=norm)
        sent = train(model_of(kind), clients_of(), how, RNG, PRIORS)
        assert torch.equal(sent.users, free.users)
        rest = [sent.items, *sent.towers.values()]
        filters = [c for weights in sent.filters for c in weights.values()]
        for together in [rest, filters] if norm == "l2" else [rest + filters]:
            flat = torch.cat([c.flatten(1) for c in together], dim=1).double()
            if norm == "scalar":
                length = flat.abs().amax(dim=1)
            else:
                length = torch.linalg.vector_norm(flat, ord=int(norm[1]), dim=1)
            # Those who share nothing send no filters.
            length = length[flat.any(dim=1)]
            assert length.max() <= np.float32(1e-3)
            assert length.min() > 0.999e-3


def test_clipping_shortens_and_does_not_turn():
    draw = torch.Generator().manual_seed(2)
    parts = [torch.randn(3, 4, 5, generator=draw), torch.randn(3, 7, generator=draw)]
    parts[0][1] *= 1e-3
    parts[1][1] *= 1e-3
    parts[0][2] = parts[1][2] = 0.0
    before = torch.cat([p.flatten(1) for p in parts], dim=1).double()
    for norm, order in (("l2", 2), ("l1", 1)):
        now = [p.clone() for p in parts]
        clip(now, 0.5, norm)
        flat = torch.cat([p.flatten(1) for p in now], dim=1).double()
        expected = before[0] * 0.5 / torch.linalg.vector_norm(before[0], ord=order)
        assert torch.allclose(flat[0], expected, rtol=1e-5, atol=0)
        assert torch.equal(flat[1:], before[1:])
    now = [p.clone() for p in parts]
    clip(now, 0.5, "scalar")
    same(now, [p.clamp(-0.5, 0.5) for p in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_at_home_the_users_embedding_alone_learns(kind):
    model, clients = model_of(kind), clients_of()
    how = replace(HOW, tower_rate=0.0, item_rate=0.0, filter_rate=0.0, epochs=20)
    sent = train(model, clients, how, RNG, PRIORS)
    assert sent.users.any(dim=1).all()
    assert not any(bool(change.any()) for change in changes(sent))
    learnt = train(model, clients, replace(HOW, epochs=20), RNG, PRIORS)
    assert [c.shape for c in everything(sent)] == [c.shape for c in everything(learnt)]
    alone = train(model, clients.take(np.array([4])), how, RNG, PRIORS)
    assert torch.equal(sent.users[4], alone.users[0])
    # It is the same step as in a round.
    one, home = (train(model, clients, replace(some, epochs=1), RNG, PRIORS) for some in (HOW, how))
    assert torch.equal(one.users, home.users)


def test_a_rate_of_nought_keeps_its_part():
    model = model_of("neumf")
    for name, part in (("rate", "users"), ("item_rate", "items"), ("tower_rate", "towers")):
        sent = train(model, clients_of(), replace(HOW, **{name: 0.0}), RNG, PRIORS)
        parts = {"users": [sent.users], "items": [sent.items], "towers": sent.towers.values()}
        for other, tensors in parts.items():
            assert any(bool(change.any()) for change in tensors) == (other != part)


# --- bad input ----------------------------------------------------------------------------------


def test_a_label_without_a_class_is_named():
    clients = clients_of(hidden=False)
    clients.labels[0, 1] = 3
    with pytest.raises(DataError, match=r"age: .*class"):
        train(model_of("mf"), clients, HOW, RNG, PRIORS)
    clients.labels[0, 1] = -2
    with pytest.raises(DataError, match=r"age: .*class"):
        train(model_of("mf"), clients, HOW, RNG, PRIORS)


@pytest.mark.parametrize(
    "priors", [(), PRIORS[:1], PRIORS[::-1], (torch.zeros(2), PRIORS[1]), (-PRIORS[0], PRIORS[1])]
)
def test_shares_that_do_not_fit_are_named(priors):
    with pytest.raises(DataError, match="share"):
        train(model_of("mf"), clients_of(hidden=True), HOW, RNG, priors)


def test_users_without_items_or_with_all_are_named():
    row = np.zeros(1, np.int64)
    rest = (np.zeros((1, 0), np.int64), np.zeros((1, 0), bool), np.zeros((1, 0), np.float32))
    for items in ([], np.arange(ITEMS)):
        history = Interactions.from_pairs([0] * len(items), items, n_users=1, n_items=ITEMS)
        with pytest.raises(DataError, match="some, but not all"):
            Clients(row, row, history, *rest)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_numbers_are_named(kind):
    """Before anything is learnt from them."""
    for place in range(len(everything(train(model_of(kind), clients_of(), HOW, RNG, PRIORS)))):
        model = model_of(kind)
        tables = [model.users, model.items]
        tables += [w for some in (model.towers, *model.filters) for w in some.values()]
        tables[place].flatten()[-1] = torch.nan
        with pytest.raises(Diverged, match="not finite"):
            train(model, clients_of(), HOW, RNG, PRIORS)


def test_rates_that_are_too_high_are_named():
    for wild in ({"rate": 1e30}, {"item_rate": 1e30}, {"filter_rate": 1e38}):
        for norm in ("l2", "l1", "scalar"):
            how = replace(HOW, epochs=8, norm=norm, **wild)
            with pytest.raises(Diverged, match="lower the rates"):
                train(model_of("mf"), clients_of(), how, RNG, PRIORS)


def test_cohorts_that_do_not_fit_the_model_are_named():
    model, clients = model_of("mf"), clients_of()
    with pytest.raises(DataError, match="one column per filter"):
        train(model, clients_of(attributes=()), HOW, RNG)
    with pytest.raises(DataError, match="at least one"):
        train(model, clients.take(np.zeros(0, np.int64)), HOW, RNG, PRIORS)
    with pytest.raises(DataError, match="no row"):
        train(model, replace(clients, rows=clients.rows + 1), HOW, RNG, PRIORS)
    fewer = UCModel.init(model.recommender, USERS, ITEMS - 1, ATTRIBUTES, Streams.from_seed(1))
    with pytest.raises(DataError, match="other items"):
        train(fewer, clients, HOW, RNG, PRIORS)
    for name, value in {
        "rows": clients.rows[:3],
        "strength": clients.strength[:3],
        "hidden": clients.hidden[:, :1],
        "labels": clients.labels[:3],
    }.items():
        with pytest.raises(DataError):
            replace(clients, **{name: value})
    for strength in (1.0, -0.1, np.nan):
        with pytest.raises(DataError, match="strength"):
            replace(clients, strength=np.full((USERS, 2), strength, np.float32))


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_who_is_far_from_the_clip_keeps_every_bit(monkeypatch, norm):
    """Leaving out the exact norm changes nothing, near the limit nor far from it."""
    draw = torch.Generator().manual_seed(5)
    changes = [torch.randn(40, 7, 16, generator=draw), torch.randn(40, 9, generator=draw)]
    order = 2 if norm == "l2" else 1
    length = torch.cat([c.flatten(1) for c in changes], dim=1).norm(order, dim=1)
    for most in (0.5, 0.97, 0.99, 1.0, 1.01):
        for change in (limited := [c.clone() for c in changes]):
            change *= (most * 8.0 / length).view(-1, *[1] * (change.ndim - 1))
        exact = [c.clone() for c in limited]
        training.clip(limited, 8.0, norm)
        with monkeypatch.context() as patched:
            patched.setattr(training, "_FAR", 0.0)
            training.clip(exact, 8.0, norm)
        assert all(torch.equal(a, b) for a, b in zip(limited, exact, strict=True))
