"""DRIFT with sums over people: the same model by messages and at once, and what leaves an owner."""

from dataclasses import replace

import numpy as np
import pytest
from drift_world import RNG, by_messages, door, membership, world
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift.aggregated import (
    START,
    AggregatedPlan,
    AggregatingOwner,
    Aggregation,
    own_vector,
    owner_of,
    ranked_rows,
)
from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable, Rows
from sottovoce.algorithms.drift.replay import exchange
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, MessageError, RunError

CONFIG = DRIFTConfig(release="aggregated", min_users=2, learning_rate=0.1)


class Watched(AggregatingOwner):
    """Keeps everything that leaves it, and whose gradients are in it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked_for, self.messages, self.behind = [], [], []

    def request(self):
        self.asked_for.append(super().request())
        return self.asked_for[-1]

    def gradients(self, rows):
        before = {i: set(people) for i, people in self._kept.people.items()}
        for user, block in self.asked:
            for item in block.negatives + block.positives:
                before.setdefault(item, set()).add(user)
        self.messages.append(super().gradients(rows))
        self.behind.append(before)
        return self.messages[-1]


def watched(config, train, member, epochs, refused=None):
    return by_messages(config, train, member, epochs, refused, Watched)[:2]


def at_once(config, train, member, epochs, refused=None):
    table = OwnerTable.of_membership(member)
    events = Events.of(train, config.positive_from, config.order)
    events, told = door(table, train.n_users, refused).would_leave(events)
    first, plan = (
        AggregatedPlan.of(events, table, config.window, told, config.drawing(RNG, known=known))
        for known in (False, True)
    )
    found = Aggregation(plan, config, train.n_users, train.n_items, RNG, first)
    for _ in range(epochs):
        found.epoch()
    return found


# --- the same model ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 90),
    n_owners=st.integers(1, 4),
    min_users=st.integers(1, 4),
    order=st.sampled_from(["user", "time"]),
    window=st.sampled_from([0, 1, 5, 20, 100]),
    ridge=st.sampled_from(["rows", "pairs"]),
    refusals=st.booleans(),
    negatives=st.sampled_from(["touched", "untouched"]),
)
def test_messages_and_the_plan_give_the_same_model(
    seed, n, n_owners, min_users, order, window, ridge, refusals, negatives
):
    train, member = world(5, 9, n, seed), membership(9, n_owners, seed)
    refused = np.random.default_rng(seed).random((5, n_owners)) < 0.3 if refusals else None
    config = replace(
        CONFIG, min_users=min_users, order=order, window=window, ridge=ridge, negatives=negatives
    )
    owners, orchestrator = watched(config, train, member, 3, refused)
    fast = at_once(config, train, member, 3, refused)
    assert np.array_equal(orchestrator.model.items, fast.rows)
    assert sum(o.withheld() for o in owners.values()) == fast.withheld()
    sent = np.zeros(9, bool)
    for owner in owners.values():
        for message in owner.messages:
            sent[message.items[message.item_rows.any(axis=1)]] = True
    assert (sent <= fast.sent).all(), "a sum of people may by chance be 0"
    vectors = fast.model().users
    for user in range(5):
        given_ = [v for o in owners.values() if (v := o.vector(user)) is not None]
        assert np.array_equal(own_vector(given_, 4, config.start), vectors[user])


def test_a_federation_of_everybody_learns():
    """Training loss falls, on a world with a taste in it."""
    draw = np.random.default_rng(1)
    taste, kind = draw.integers(0, 2, 60), draw.integers(0, 2, 40)
    users, items = (a.ravel() for a in np.meshgrid(np.arange(60), np.arange(40), indexing="ij"))
    liked = np.where(
        draw.random(2_400) < 0.9, taste[users] == kind[items], draw.random(2_400) < 0.5
    )
    train = Interactions.from_pairs(
        users, items, n_users=60, n_items=40, timestamps=draw.permutation(2_400),
        ratings=np.where(liked, 5, 1),
    )  # fmt: skip
    member = np.arange(2) == (np.arange(40) % 2)[:, None]
    model = at_once(replace(CONFIG, min_users=5), train, member, 60).model()
    scores = model.users @ model.items.T
    same = taste[:, None] == kind
    better = [(scores[u][same[u]][:, None] > scores[u][~same[u]]).mean() for u in range(60)]
    assert np.mean(better) > 0.9


# --- what leaves an owner ------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 40])
def test_requests_are_the_same_whatever_happened_and_no_user_is_named(window):
    config = replace(CONFIG, window=window, min_users=3)
    member = membership(30, 3, seed=2)
    train = world(12, 30, 300, seed=2)
    owners, _ = watched(config, train, member, 2)
    rounds = 1 if not window else -(-train.n_interactions // window)
    for k, owner in owners.items():
        assert len(owner.asked_for) == 2 * rounds
        for message in owner.asked_for + owner.messages:
            assert message.users.tolist() == []
            assert message.items.tolist() == np.flatnonzero(member[:, k]).tolist()


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("min_users", [5, 6])
def test_a_row_has_at_least_so_many_people_behind_it(window, min_users):
    config = replace(CONFIG, window=window, min_users=min_users)
    owners, _ = watched(config, world(12, 30, 300, seed=3), membership(30, 3, seed=3), 2)
    sent = zeros = 0
    for owner in owners.values():
        for message, behind in zip(owner.messages, owner.behind, strict=True):
            for item, row in zip(message.items.tolist(), message.item_rows, strict=True):
                enough = len(behind.get(item, ())) >= min_users
                assert row.any() == enough
                sent, zeros = sent + enough, zeros + (not enough)
    assert sent > 20
    assert zeros > 20


def test_nothing_of_a_user_alone_reaches_the_orchestrator():
    """What she does changes nothing that leaves, as long as nobody else is there."""
    member = np.ones((6, 1), bool)
    alone = world(1, 6, 40, seed=5)
    owners, orchestrator = watched(replace(CONFIG, window=5), alone, member, 3)
    assert not any(m.item_rows.any() for m in owners[0].messages)
    assert orchestrator.model.users.shape == (0, 4)
    assert owners[0].withheld() > 0
    assert not np.array_equal(owners[0].vector(0), np.full(4, START)), "she gets her own"


def block(owner, user, negative, positive, time):
    owner.receive(Interaction(owner.number, user, negative, False, time))
    owner.receive(Interaction(owner.number, user, positive, True, time + 1))
    owner.end_stream(user)


def joined(min_users=2, items=range(6), users=range(4)):
    config = replace(CONFIG, min_users=min_users)
    orchestrator, owner = Orchestrator(config, RNG), AggregatingOwner(0, items, config)
    orchestrator.add_items(0, items)
    for user in users:
        owner.admit(user)
    return orchestrator, owner


def test_what_waits_is_in_the_next_sum():
    """Two people, one after the other, move the row as far as both at once."""
    orchestrator, owner = joined()
    first = orchestrator.model.items
    block(owner, 0, 1, 2, 10)
    exchange(owner, orchestrator)
    assert np.array_equal(orchestrator.model.items, first)
    block(owner, 1, 1, 3, 20)
    exchange(owner, orchestrator)
    moved = (orchestrator.model.items != first).any(axis=1)
    assert moved.tolist() == [False, True, False, False, False, False]
    other, both = joined()
    block(both, 0, 1, 2, 10)
    block(both, 1, 1, 3, 20)
    exchange(both, other)
    assert np.array_equal(other.model.items, orchestrator.model.items)


def test_the_same_person_twice_is_one_person():
    orchestrator, owner = joined()
    first = orchestrator.model.items
    for time in (10, 20, 30):
        block(owner, 0, 1, 2, time)
        exchange(owner, orchestrator)
    assert np.array_equal(orchestrator.model.items, first)


def test_a_refused_update_changes_nothing_and_waits():
    orchestrator, owner = joined()
    block(owner, 0, 1, 2, 10)
    block(owner, 1, 1, 2, 10)
    owner.request()
    with pytest.raises(RunError, match="settle"):
        owner.request()
    sent = owner.gradients(orchestrator.answer(owner.request_again()))
    owner.settle(False)
    assert owner.vector(0) is None
    owner.request()
    again = owner.gradients(orchestrator.answer(owner.request_again()))
    assert np.array_equal(sent.item_rows, again.item_rows)
    assert sent.item_rows.any()


def test_other_rows_than_asked_for_are_refused():
    orchestrator, owner = joined()
    rows = orchestrator.answer(owner.request())
    fewer = Rows(rows.version, rows.users, rows.items[1:], rows.user_rows, rows.item_rows[1:])
    with pytest.raises(MessageError, match="lacks"):
        owner.gradients(fewer)


# --- who comes and goes --------------------------------------------------------------------------


def test_who_leaves_takes_every_sum_with_her_that_she_is_in():
    orchestrator, owner = joined(min_users=3)
    block(owner, 0, 1, 2, 10)
    block(owner, 1, 1, 3, 10)
    exchange(owner, orchestrator)
    assert owner.withheld() == 3
    owner.forget(0)
    assert owner.vector(0) is None
    assert owner.withheld() == 1, "item 3, which only user 1 touched"
    block(owner, 2, 1, 4, 20)
    block(owner, 3, 1, 4, 20)
    first = orchestrator.model.items
    exchange(owner, orchestrator)
    assert np.array_equal(orchestrator.model.items, first), "two people, not four"


def test_withdrawn_items_are_asked_for_no_more():
    orchestrator, owner = joined(min_users=3)
    block(owner, 0, 1, 2, 10)
    exchange(owner, orchestrator)
    owner.withdraw_items([1])
    orchestrator.withdraw_items(0, [1])
    assert owner.withheld() == 1
    assert owner.request().items.tolist() == [0, 2, 3, 4, 5]


def test_settings():
    assert DRIFTConfig().release == "printed"
    assert type(owner_of(0, [1], DRIFTConfig())) is Owner
    assert isinstance(owner_of(0, [1], CONFIG), AggregatingOwner)
    with pytest.raises(ConfigError, match="release"):
        replace(CONFIG, release="hidden")
    with pytest.raises(ConfigError, match="min_users"):
        replace(CONFIG, min_users=0)


def test_items_without_a_row_count_as_average_ones():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    shown = ranked_rows(rows, np.array([True, False, True]))
    assert shown.tolist() == [rows[0].tolist(), [4, 5, 6, 7], rows[2].tolist()]
    assert ranked_rows(rows, np.zeros(3, bool)) is rows
