"""Published rivals: clients side by side learn what each would alone, and negatives leak or not."""

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams
from sottovoce.testing.worlds import checkerboard, random_world
from sottovoce_papers import rival_loop
from sottovoce_papers.rival_loop import RivalWorld, train_rival
from sottovoce_papers.rivals import RIVALS, FedMF, PFedRec, rival_of

RNG = Streams.from_seed(3)
SMALL = {"rounds": 2, "batch_size": 7, "reg": 1e-4}


def one_each(train):
    """A test part: for each user, the first item that is not hers."""
    free = [
        next(i for i in range(train.n_items) if i not in set(row))
        for row in np.split(train.items, train.indptr[1:-1])
    ]
    users = np.arange(train.n_users)
    return Interactions.from_pairs(users, free, n_users=train.n_users, n_items=train.n_items)


@pytest.fixture(scope="module")
def train():
    return random_world(12, 30, 60, 1)


def drawn(world, negatives=40, rounds=1):
    users = torch.tensor(world.able)
    found = set()
    for number in range(rounds):
        keys = rival_loop._keys(RNG.child(number), world.able, "cpu")
        owner, item = world.draw(users, keys, negatives)
        found |= set(zip(world.able[owner].tolist(), item.tolist(), strict=True))
    return found


def pairs(table):
    owner = np.repeat(np.arange(table.n_users), np.diff(table.indptr))
    return set(zip(owner.tolist(), table.items.tolist(), strict=True))


def test_fair_negatives_are_all_items_outside_training_and_leaking_ones_lack_the_answer(train):
    test = one_each(train)
    everything = {(u, i) for u in range(12) for i in range(30)}
    assert drawn(RivalWorld(train), rounds=20) == everything - pairs(train)
    leaking = RivalWorld(train, hidden=test)
    assert drawn(leaking, rounds=20) == everything - pairs(train) - pairs(test)


def test_negatives_are_drawn_evenly(train):
    world = RivalWorld(train)
    user = int(np.argmin(np.diff(train.indptr)))
    keys = rival_loop._keys(RNG, np.array([user]), "cpu")
    _, items = world.draw(torch.tensor([user]), keys, 20_000)
    free = 30 - int(np.diff(train.indptr)[user])
    counts = np.bincount(items.numpy(), minlength=30)
    counts = counts[counts > 0]
    assert len(counts) == free
    assert abs(counts - counts.mean()).max() < 6 * np.sqrt(counts.mean())


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("fedrap", "fedncf") else n for n in RIVALS],
)
def test_it_does_not_matter_who_is_trained_side_by_side(train, name, monkeypatch):
    settings = rival_of({"name": name, **SMALL})
    users = np.arange(train.n_users)
    whole = train_rival(settings, RivalWorld(train), RNG).scores(users)
    monkeypatch.setitem(rival_loop.ROOM, "cpu", 60)
    parts = list(RivalWorld(train).parts(4, 7))
    assert len(parts) > 2
    alone = train_rival(settings, RivalWorld(train), RNG).scores(users)
    np.testing.assert_allclose(whole, alone, rtol=2e-3, atol=2e-4)


def one_client(rows, weight, samples, place, settings, n_items):
    """PFedRec on one device, as one would write it for one."""
    table = nn.Embedding.from_pretrained(rows.clone(), freeze=False)
    score = nn.Linear(rows.shape[1], 1)
    score.weight.data, score.bias.data = weight.clone()[None], torch.zeros(1)
    decay = {"weight_decay": settings.reg}
    mine = torch.optim.SGD(score.parameters(), lr=settings.learning_rate, **decay)
    items = torch.optim.SGD(table.parameters(), lr=settings.item_rate * n_items, **decay)
    start, size = int(samples.start[place]), int(samples.size[place])
    for first in range(start, start + size, settings.batch_size):
        part = slice(first, min(first + settings.batch_size, start + size))
        item, label = samples.pair_item[samples.pairs[part]], samples.labels[part]
        for steps in (mine, items):
            table.zero_grad()
            score.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(score(table(item))[:, 0], label)
            loss.backward()
            steps.step()
    return table.weight.detach(), score.weight.detach()[0], score.bias.detach()


def test_a_round_is_what_each_client_would_do_alone(train):
    settings = PFedRec(rounds=1, batch_size=7, item_rate=0.01, reg=0.05)
    world = RivalWorld(train)
    samples = world.samples(world.able, 4, RNG.child("round", 0))
    rival = settings.begin(world, RNG.child("start"))
    tables, expected = [], np.zeros((train.n_users, train.n_items), np.float32)
    for place, user in enumerate(world.able):
        rows, weight, _ = one_client(
            rival.items, rival.weights[user], samples, place, settings, train.n_items
        )
        tables.append(rows)
        expected[user] = (rows @ weight).numpy()
    with torch.no_grad():
        rival.learn(samples, 0)
        rival.fold(0)
    torch.testing.assert_close(rival.items, torch.stack(tables).mean(0), rtol=1e-4, atol=1e-5)
    found = rival.scorer().scores(np.arange(train.n_users))
    np.testing.assert_allclose(found[world.able], expected[world.able], rtol=1e-3, atol=1e-4)


def test_who_counts_finds_the_answer_where_negatives_leak(train):
    test = one_each(train)
    held = {user: item for user, item in pairs(test)}
    for hidden, hits in ((test, 12), (None, 4)):
        world = RivalWorld(train, hidden=hidden)
        table = train_rival(rival_of({"name": "counting", "rounds": 60}), world, RNG).scores(
            np.arange(12)
        )
        table[tuple(np.array(sorted(pairs(train))).T)] = -np.inf
        found = sum(int(np.argmax(table[user]) == item) for user, item in held.items())
        assert found == hits if hidden is not None else found <= hits


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "fedmf", "item_rate": 0.5, "learning_rate": 5.0},
        pytest.param({"name": "fedncf", "item_rate": 30.0}, marks=pytest.mark.slow),
        pytest.param(
            {"name": "pfedrec", "item_rate": 2.0, "init_scale": 0.1}, marks=pytest.mark.slow
        ),
    ],
)
def test_each_learns_which_items_go_together(settings):
    """Even users like even items; the one of her colour that a user lacks is ranked high."""
    train = checkerboard(40, 20)
    scores = train_rival(rival_of({"rounds": 60, **settings}), RivalWorld(train), RNG).scores(
        np.arange(40)
    )
    scores[tuple(np.array(sorted(pairs(train))).T)] = -np.inf
    best = scores.argmax(1)
    assert (best % 2 == np.arange(40) % 2).mean() > 0.9


@pytest.mark.slow
def test_fedrap_remembers_all_that_it_drew():
    """Its own table has what is hers above all else, and of the rest what it drew least often."""
    train = checkerboard(40, 20)
    settings = rival_of({"name": "fedrap", "init_scale": 0.1, "rounds": 5})
    liked = np.zeros((40, 20), dtype=bool)
    liked[tuple(np.array(sorted(pairs(train))).T)] = True
    test = one_each(train)
    held = np.zeros_like(liked)
    held[np.arange(40), test.items] = True
    ranks = []
    for hidden in (None, test):
        scores = train_rival(settings, RivalWorld(train, hidden=hidden), RNG).scores(np.arange(40))
        assert scores[liked].min() > np.median(scores[~liked])
        open_scores = np.where(liked, -np.inf, scores)
        ranks.append((open_scores > open_scores[held][:, None]).sum(1))
    assert (ranks[1] == 0).mean() > 0.9 > (ranks[0] == 0).mean() + 0.5


def test_what_makes_no_sense_is_refused(train):
    with pytest.raises(ConfigError, match="a rival's name must be one of"):
        rival_of({"name": "fedsomething"})
    with pytest.raises(ConfigError, match="rounds must be at least 1"):
        rival_of({"name": "fedmf", "rounds": 0})
    with pytest.raises(ConfigError, match="unknown keys"):
        rival_of({"name": "fedmf", "colour": 1})
    with pytest.raises(Diverged, match="FedMF ran off"):
        train_rival(FedMF(rounds=30, item_rate=1e12), RivalWorld(train), RNG)
    full = checkerboard(2, 4, hole=0)
    everything = Interactions.from_pairs([0, 0], [0, 1], n_users=1, n_items=2)
    assert RivalWorld(full).n_users == 2
    with pytest.raises(ConfigError, match="nobody has a positive"):
        RivalWorld(everything)
