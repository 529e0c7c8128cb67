"""A small world for DRIFT: ratings, who holds which items, and parties that have all joined."""

from dataclasses import dataclass, replace

import numpy as np

from sottovoce.algorithms.drift.blocks import DriftModel, Events, learn
from sottovoce.algorithms.drift.replay import plan, replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner, User
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.rng import Streams

RNG = Streams.from_seed(12)


def world(n_users, n_items, n, seed):
    draw = np.random.default_rng(seed)
    return Interactions.from_pairs(
        draw.integers(0, n_users, n), draw.integers(0, n_items, n), n_users=n_users,
        n_items=n_items, timestamps=draw.integers(0, n, n), ratings=draw.integers(1, 6, n),
    )  # fmt: skip


def membership(n_items, n_owners, seed):
    member = np.random.default_rng(seed).random((n_items, n_owners)) < 0.4
    member[np.arange(n_items), np.arange(n_items) % n_owners] = True
    return member


def parties(config, member, n_users, refused=None, kind=Owner):
    """The users and owners of a fixed federation. The orchestrator knows no user where owners send
    it sums over people."""
    orchestrator = Orchestrator(config, RNG)
    owners = {}
    for k in range(member.shape[1]):
        items = np.flatnonzero(member[:, k]).tolist()
        orchestrator.add_items(k, items)
        owners[k] = kind(k, items, config, of_owner(RNG, k))
    users = {u: User(u, orchestrator.table) for u in range(n_users)}
    if refused is not None:
        users = door(orchestrator.table, n_users, refused).users()
    for u in users:
        if config.release == "printed":
            orchestrator.join_user(u)
        for owner in owners.values():
            owner.admit(u)
    return users, owners, orchestrator


def door(table, n_users, refused=None, home=()):
    """The door of users who refuse these owners, [users, owners]. Some stay at home."""
    names = tuple(f"owner {k}" for k in table.all_owners())
    records = Consent.uniform(np.arange(n_users), Choice(), owners=names)
    if refused is not None:
        records = replace(records, refused_owners=refused)
    there = ~np.isin(np.arange(n_users), list(home))
    return InteractionDoor(replace(records, takes_part=there), names, table)


def by_messages(config, train, member, epochs=1, refused=None, kind=Owner):
    """Owners and orchestrator after so many epochs, and how many updates there were."""
    users, owners, orchestrator = parties(config, member, train.n_users, refused, kind)
    events = Events.of(train, config.positive_from, config.order)
    window = config.window
    epoch_by_epoch = [replay(events, users, owners, orchestrator, window) for _ in range(epochs)]
    return owners, orchestrator, sum(done.updates for done in epoch_by_epoch)


@dataclass(frozen=True)
class DRIFT:
    """All parties of a fixed federation at once, at full speed."""

    config: DRIFTConfig

    def fit(self, train, table, rng):
        (model,) = self.fit_steps(train, table, rng, [self.config.epochs])
        return FactorScorer.of(model.users, model.items)

    def fit_steps(self, train, table, rng, epochs):
        """The model after each of these epochs (ascending), from one training run."""
        config, kept = self.config, []
        events = Events.of(train, config.positive_from, config.order)
        first, later = (
            plan(events, table, config.theta, config.window, drawing=config.drawing(rng, known=k))
            for k in (False, True)
        )
        size = config.embedding_size
        model = DriftModel.start(train.n_users, train.n_items, size, rng, config.spread)
        for epoch in range(1, max(epochs) + 1):
            learn(model, first if epoch == 1 else later, config.step())
            model.check()
            if epoch in epochs:
                kept.append(model.copy())
        return kept
