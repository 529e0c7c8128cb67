"""Simulated DRIFT is held to its definition: users at their doors, message by message. The fast way
gives the same messages, the same ledger and the same model, for both releases."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift.aggregated import own_vector, owner_of
from sottovoce.algorithms.drift.blocks import Events, learn
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.engines.silo import SiloWorld
from sottovoce.parties.silo_door import SEALED_BYTES, InteractionDoor
from sottovoce.rng import Streams

USERS, ITEMS, EPOCHS = 6, 9, 2
ROOT = Streams.from_seed(4)


class World:
    """A small world with everything drawn from a seed."""

    def __init__(self, seed, n, n_owners, refusing, staying, hiding, config):
        draw = np.random.default_rng(seed)
        train = Interactions.from_pairs(
            draw.integers(0, USERS, n), draw.integers(0, ITEMS, n), n_users=USERS, n_items=ITEMS,
            timestamps=draw.integers(0, n + 1, n), ratings=draw.integers(1, 6, n),
        )  # fmt: skip
        self.member = draw.random((ITEMS, n_owners)) < 0.4
        self.member[np.arange(ITEMS), np.arange(ITEMS) % n_owners] = True
        self.refused = draw.random((USERS, n_owners)) < refusing
        self.there = draw.random(USERS) >= staying
        self.never = draw.random((USERS, ITEMS)) < hiding
        self.without = Events.of(
            train.select(~self.never[train.users, train.items]), 4.0, config.order
        )
        """What those did who never had what they never send."""
        self.config, self.events = config, Events.of(train, 4.0, config.order)
        self.names = tuple(f"shop {k}" for k in range(n_owners))
        self.catalogue = tuple(map(str, range(ITEMS)))

    def door(self, never=True):
        consent = Consent.uniform(np.arange(USERS), Choice(), owners=self.names)
        consent = replace(consent, takes_part=self.there, refused_owners=self.refused)
        named = {name: np.array([item], np.int32) for item, name in enumerate(self.catalogue)}
        if never:
            consent = replace(consent, never_send=self.never, things=self.catalogue)
        table = OwnerTable.of_membership(self.member)
        return InteractionDoor(consent, self.names, table, named)

    def fast(self):
        return SiloWorld.of(self.config, self.door(), self.events, self.catalogue, ROOT)

    def absent(self):
        """Of those who never had it."""
        door = self.door(never=False)
        return SiloWorld.of(self.config, door, self.without, self.catalogue, ROOT)


class ByMessages:
    """The definition: what each owner got, what the door booked, and the parties at the end."""

    def __init__(self, world):
        config, self.door = world.config, world.door()
        self.orchestrator = Orchestrator(config, ROOT)
        self.owners, self.got, users = {}, [], self.door.users()
        for k in range(len(world.names)):
            items = self.door.table.items(k)
            self.orchestrator.add_items(k, items)
            self.owners[k] = owner_of(k, items, config, of_owner(ROOT, k))
            self._listen(self.owners[k])
        for user in users:
            if config.release == "printed":
                self.orchestrator.join_user(user)
            for owner in self.owners.values():
                owner.admit(user)
        events = self.door.joined(world.events)
        for _ in range(config.epochs):
            replay(events, users, self.owners, self.orchestrator, config.window)
        self.door.close(config.epochs)

    def _listen(self, owner):
        receive = owner.receive

        def heard(message):
            self.got.append(message)
            return receive(message)

        owner.receive = heard


worlds = {
    "seed": st.integers(0, 10**6),
    "n": st.integers(0, 90),
    "n_owners": st.sampled_from([1, 1, 2, 3, 4]),
    "refusing": st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    "staying": st.sampled_from([0.0, 0.3, 1.0]),
    "hiding": st.sampled_from([0.0, 0.0, 0.3, 1.0]),
}
ways = {
    "order": st.sampled_from(["user", "time"]),
    "window": st.sampled_from([0, 1, 5, 20, 100]),
    "theta": st.integers(1, 4),
    "negatives": st.sampled_from(["touched", "untouched"]),
}


def of(release, order, window, theta, negatives="touched"):
    return DRIFTConfig(
        release=release, order=order, window=window, theta=theta, epochs=EPOCHS, min_users=2,
        learning_rate=0.1, negatives=negatives, negatives_per_positive=3,
    )  # fmt: skip


@pytest.mark.parametrize("release", ["printed", "aggregated"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_fast_way_is_what_messages_through_the_door_come_to(release, data):
    config = of(release, **{name: data.draw(kind) for name, kind in ways.items()})
    world = World(**{name: data.draw(kind) for name, kind in worlds.items()}, config=config)
    fast, slow = world.fast(), ByMessages(world)
    messages = [m for part in fast.departed.messages() for m in part]
    assert messages * EPOCHS == slow.got
    assert fast.door.ledger.pending().equals(slow.door.ledger.pending())
    assert fast.door.ledger.totals == slow.door.ledger.totals
    if release == "printed":
        learning = fast.learning(fast.blocks(), fast.first_model())
        for _ in range(EPOCHS):
            learning.epoch()
        model = learning.model()
        found = slow.orchestrator.model
        joined = np.flatnonzero(world.there)
        assert np.array_equal(model.users[joined], found.users[joined])
        assert np.array_equal(model.items, found.items)
        return
    aggregation = fast.aggregation()
    for _ in range(EPOCHS):
        aggregation.epoch()
    assert np.array_equal(aggregation.rows, slow.orchestrator.model.items)
    vectors = aggregation.model().users
    for user in range(USERS):
        given_ = [v for o in slow.owners.values() if (v := o.vector(user)) is not None]
        mine = own_vector(given_, config.embedding_size, config.start)
        assert np.array_equal(mine, vectors[user])


@settings(max_examples=150, deadline=None)
@given(**worlds, order=ways["order"])
def test_what_leaves_is_permitted_complete_and_booked(order, **drawn):
    world = World(**drawn, config=of("printed", order, 0, 2))
    fast = world.fast()
    sent = [m for part in fast.departed.messages() for m in part]
    for m in sent:
        assert world.there[m.user]
        assert not world.refused[m.user, m.owner]
        assert world.member[m.item, m.owner]
        assert not world.never[m.user, m.item]
    e = world.events
    expected = [
        (k, u, i, bool(p), t)
        for u, i, p, t in zip(*map(list, (e.user, e.item, e.positive, e.time)), strict=True)
        for k in range(len(world.names))
        if world.there[u] and world.member[i, k] and not world.refused[u, k]
        and not world.never[u, i]
    ]  # fmt: skip
    assert [(m.owner, m.user, m.item, m.positive, m.time) for m in sent] == expected
    booked = {}
    for row in fast.door.ledger.pending().to_pylist():
        assert row["bytes"] == SEALED_BYTES * (row["positive_rows"] + row["negative_rows"])
        assert row["epsilon"] == np.inf
        place = row["user"], world.names.index(row["kind"].removeprefix("interactions:"))
        assert place not in booked
        booked[place] = row["positive_rows"], row["negative_rows"]
    left = {}
    for m in sent:
        positive, negative = left.get((m.user, m.owner), (0, 0))
        left[m.user, m.owner] = positive + EPOCHS * m.positive, negative + EPOCHS * (not m.positive)
    assert booked == left


@settings(max_examples=60, deadline=None)
@given(**worlds, window=ways["window"], order=ways["order"], negatives=ways["negatives"])
def test_what_is_never_sent_might_as_well_never_have_been(window, order, negatives, **drawn):
    world = World(**drawn, config=of("printed", order, window, 2, negatives))
    never, absent = world.fast(), world.absent()
    assert list(never.departed.messages()) == list(absent.departed.messages())
    assert never.door.ledger.pending().equals(absent.door.ledger.pending())
    models = []
    for one in (never, absent):
        model = one.first_model()
        learn(model, one.blocks(), world.config.step())
        models.append(model)
    assert np.array_equal(models[0].items, models[1].items)
    assert np.array_equal(models[0].users, models[1].users)


@settings(max_examples=60, deadline=None)
@given(**worlds, window=ways["window"])
def test_owners_learn_from_nothing_else(window, **drawn):
    """Every item of a user's blocks was in a message of hers, as often and with the same sign."""
    fast = World(**drawn, config=of("printed", "time", window, 2)).fast()
    left, learnt = {}, {}
    for m in (m for part in fast.departed.messages() for m in part):
        left[m.user, m.item, m.positive] = left.get((m.user, m.item, m.positive), 0) + 1
    blocks = fast.blocks()
    for user, (a, b, c, d) in zip(blocks.user.tolist(), blocks.spans.tolist(), strict=True):
        for liked, side in ((False, blocks.entries[a:b]), (True, blocks.entries[c:d])):
            for item in side.tolist():
                learnt[user, item, liked] = learnt.get((user, item, liked), 0) + 1
    assert all(times <= left.get(entry, 0) for entry, times in learnt.items())
