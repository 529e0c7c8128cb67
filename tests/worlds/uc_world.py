"""A dozen clients with two attributes, for the tests of UC-FedRec's local training and fold."""

import numpy as np
import torch

from sottovoce.algorithms.uc.networks import Attribute, Recommender, UCModel
from sottovoce.algorithms.uc.training import Clients, LocalTraining
from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams

USERS, ITEMS = 12, 40
RNG = Streams.from_seed(3)
ATTRIBUTES = (Attribute("gender", 2), Attribute("age", 3, (8, 6)))
PRIORS = (torch.tensor([0.7, 0.3]), torch.tensor([0.2, 0.5, 0.3]))
HOW = LocalTraining(epochs=4, pairs=16, filter_rate=0.1)
KINDS = ["mf", "ncf", "gnn", "neumf"]


def model_of(kind, attributes=ATTRIBUTES, size=6):
    return UCModel.init(Recommender(kind, size), USERS, ITEMS, attributes, Streams.from_seed(1))


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
    beta = np.full(labels.shape, strength, np.float32)
    return Clients(np.arange(USERS), np.arange(USERS), history, labels, hidden, beta)


def changes(updates):
    """All that clients send."""
    networks = [updates.towers, *updates.filters]
    return [updates.items, *(c for some in networks for c in some.values())]


def everything(updates):
    return [updates.users, *changes(updates)]


def same(one, other):
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left, right)
