"""DRIFT: the parties, the same model by messages and at once, and who may come and go."""

from dataclasses import replace

import numpy as np
import pytest
from drift_world import DRIFT, RNG, by_messages, door, membership, parties, world
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift.blocks import Blocks as BlockTable
from sottovoce.algorithms.drift.blocks import (
    DriftModel,
    EndedBlock,
    Events,
    first_rows,
    gradient,
    learn,
)
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable, RowRequest
from sottovoce.algorithms.drift.replay import exchange, plan, replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.baselines.saros import SAROS
from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, MessageError, RunError

SEVERAL = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 1]], dtype=bool)
"""Six items, three owners; items 1, 3 and 4 belong to several."""


def same(one, other):
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)


# --- the same model ------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", ["rows", "pairs"])
def test_one_owner_theta_one_user_by_user_is_saros(ridge):
    train = world(30, 25, 600, seed=1)
    settings_ = {"learning_rate": 0.05, "ridge": ridge}
    central = SAROS(lower=0.0, upper=1.0, positive_from=3.0, **settings_)
    saros = central.fit_steps(train, RNG, [1, 4])
    config = DRIFTConfig(theta=1, order="user", **settings_)
    whole = np.ones((25, 1), dtype=bool)
    drift = DRIFT(config).fit_steps(train, OwnerTable.of_membership(whole), RNG, [1, 4])
    assert same(saros[0], drift[0])
    assert same(saros[1], drift[1])
    assert not same(saros[0], saros[1])
    _, sent, updates = by_messages(config, train, whole, epochs=4)
    assert same(saros[1], sent.model)
    assert updates == 4 * len(central.blocks(train, RNG))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 80),
    n_owners=st.integers(1, 4),
    theta=st.integers(1, 7),
    order=st.sampled_from(["user", "time"]),
    window=st.sampled_from([0, 1, 2, 5, 20, 100]),
    refusals=st.booleans(),
)
def test_messages_and_the_plan_give_the_same_model(
    seed, n, n_owners, theta, order, window, refusals
):
    train, member = world(5, 9, n, seed), membership(9, n_owners, seed)
    table = OwnerTable.of_membership(member)
    refused = None
    if refusals:
        refused = np.random.default_rng(seed).random((5, len(table.all_owners()))) < 0.4
    config = DRIFTConfig(theta=theta, order=order, learning_rate=0.1, window=window)
    _, sent, updates = by_messages(config, train, member, epochs=2, refused=refused)
    events, told = door(table, 5, refused).would_leave(Events.of(train, 3.0, order))
    blocks = plan(events, table, theta, window, told)
    planned = DriftModel.start(5, 9, config.embedding_size, RNG)
    for _ in range(2):
        learn(planned, blocks, config.step())
    assert updates == 2 * blocks.steps
    assert same(sent.model, planned)
    if not refusals:
        assert same(planned, DRIFT(config).fit_steps(train, table, RNG, [2])[0])


def test_a_round_takes_all_its_owners_however_many_there_are():
    """Each fold is a version; the owners of a round do not make each other stale."""
    n, config = 130, replace(CONFIG, theta=1, window=100_000)
    draw = np.random.default_rng(3)
    train = Interactions.from_pairs(
        np.repeat(np.arange(9), n), np.tile(np.arange(n), 9), n_users=9, n_items=n,
        timestamps=np.arange(9 * n), ratings=draw.integers(1, 6, 9 * n),
    )  # fmt: skip
    member = np.eye(n, dtype=bool) | np.roll(np.eye(n, dtype=bool), 1, axis=1)
    _, sent, updates = by_messages(config, train, member)
    assert updates > config.max_age + 1
    table = OwnerTable.of_membership(member)
    (planned,) = DRIFT(config).fit_steps(train, table, RNG, [1])
    assert same(sent.model, planned)


def test_owners_of_a_round_start_from_the_same_rows():
    """Both owners hold the item, so that serving them in turn would give another model."""
    train, table = world(9, 6, 90, seed=8), OwnerTable.of_membership(np.ones((6, 2), dtype=bool))
    config = DRIFTConfig(learning_rate=0.5, positive_from=4.0)
    together, in_turn = (
        DRIFT(replace(config, window=w)).fit_steps(train, table, RNG, [1])[0] for w in (30, 0)
    )
    assert not same(together, in_turn)
    blocks = plan(Events.of(train, 4.0, "time"), table, 2, 30)
    assert blocks.rounds is not None
    assert np.diff(blocks.rounds).tolist() == [2, 2]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), late=st.permutations(range(5)))
def test_an_update_does_not_depend_on_whose_message_came_first(seed, late):
    """One user's messages stay in their order; those of others may overtake them."""
    events = Events.of(world(5, 9, 60, seed), 3.0, "time")
    first, second = (Owner(0, range(9), DRIFTConfig(theta=1)) for _ in range(2))
    turns = np.argsort(np.argsort(late)[events.user], kind="stable")
    for owner, turn in ((first, np.arange(len(events))), (second, turns)):
        for user in range(5):
            owner.admit(user)
        for k in turn.tolist():
            user, item = int(events.user[k]), int(events.item[k])
            owner.receive(Interaction(0, user, item, bool(events.positive[k]), int(events.time[k])))
    assert (first.request() is None) == (second.request() is None)
    assert [(u, b.negatives, b.positives) for u, b in first.asked] == [
        (u, b.negatives, b.positives) for u, b in second.asked
    ]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    stop=st.integers(0, 60),
    negatives=st.sampled_from(["touched", "untouched"]),
)
def test_a_restored_owner_goes_on_as_if_nothing_had_happened(seed, stop, negatives):
    events = Events.of(world(5, 9, 60, seed), 3.0, "time")
    config = DRIFTConfig(theta=2, negatives=negatives)
    owner, other = (Owner(0, range(9), config, RNG) for _ in range(2))
    for user in range(5):
        owner.admit(user)
        other.admit(user)
    for k in range(len(events)):
        if k == stop:
            streams = {u: s for u in owner.users if (s := owner.stream(u)) is not None}
            touched = {u: owner.touched(u) for u in owner.users}
            owner = Owner.restore(
                0, owner.items, config, owner.users, streams, owner.saved, owner.asked, RNG, touched
            )
        message = Interaction(
            0, int(events.user[k]), int(events.item[k]), bool(events.positive[k]), k
        )
        assert owner.receive(message) == other.receive(message)
    for user in range(5):
        assert owner.stream(user) == other.stream(user)
        assert owner.end_stream(user) == other.end_stream(user)
    assert owner.saved == other.saved


def test_owners_need_not_be_numbered_without_gaps():
    train, member = world(9, 6, 90, seed=8), SEVERAL
    dense, sparse = OwnerTable.of_membership(member), OwnerTable()
    for k in range(3):
        sparse.add(1000 * k + 7, dense.items(k))
    one, other = (DRIFT(DRIFTConfig()).fit_steps(train, t, RNG, [1])[0] for t in (dense, sparse))
    assert same(one, other)


def test_an_epoch_goes_on_without_an_owner_that_does_not_answer():
    train, member = world(9, 6, 60, seed=6), SEVERAL
    events = Events.of(train, 3.0, "time")
    users, owners, orchestrator = parties(DRIFTConfig(), member, train.n_users)
    del owners[1]
    done = replay(events, users, owners, orchestrator)
    assert done.undelivered == member[train.items, 1].sum() > 0
    others = OwnerTable()
    for k in (0, 2):
        others.add(k, np.flatnonzero(member[:, k]).tolist())
    known = train.select(member[train.items][:, [0, 2]].any(axis=1))
    (alone,) = DRIFT(DRIFTConfig()).fit_steps(known, others, RNG, [1])
    assert same(orchestrator.model, alone)


def test_an_owner_that_is_silent_for_a_round_keeps_its_blocks_for_the_next():
    train, member = world(9, 12, 120, seed=8), membership(12, 3, 8)
    config = DRIFTConfig(window=30, learning_rate=0.3)
    events, n = Events.of(train, 3.0, "time"), 0
    models = []
    for silent in ({}, {0: [1], 1: [1]}, {0: [1], 1: [1, 2], (len(events) - 1) // 30: [0, 1, 2]}):
        users, owners, orchestrator = parties(config, member, 9)
        replay(events, users, owners, orchestrator, 30, silent)
        models.append(orchestrator.model)
        n = sum(len(owner.saved) for owner in owners.values())
        assert n == 0 or len(silent) == 3
    assert n > 0  # of the last round, in which nobody answered
    assert not same(models[0], models[1])
    assert not same(models[1], models[2])


def test_events_of_somebody_who_has_not_joined_are_refused():
    users, owners, orchestrator = parties(DRIFTConfig(), SEVERAL, 2)
    with pytest.raises(DataError, match="has not joined"):
        replay(Events.of(world(9, 6, 60, seed=7), 3.0, "user"), users, owners, orchestrator)


# --- the owner -----------------------------------------------------------------------------------

CONFIG = DRIFTConfig(theta=2, learning_rate=0.1)


def small(config=CONFIG):
    return parties(config, SEVERAL, 3)


def send(users, owners, user, item, positive, time=0):
    return [owners[m.owner].receive(m) for m in users[user].interact(item, positive, time)]


def fill(users, owners, user, first=0):
    """Events that end one block at owner 0, with η = {0} and Π = {1}."""
    for k, (item, positive) in enumerate([(0, False), (1, True), (0, False)]):
        send(users, owners, user, item, positive, first + k)


def test_a_user_addresses_every_owner_of_the_item():
    users, _, _ = small()
    assert [m.owner for m in users[0].interact(4, True, 9)] == [0, 1, 2]
    assert [m.owner for m in users[0].interact(0, True, 9)] == [0]
    with pytest.raises(DataError, match="no data owner holds"):
        users[0].interact(77, True, 9)


def test_an_update_is_due_with_theta_blocks_of_anybody():
    users, owners, _ = small()
    fill(users, owners, 0)
    assert not owners[0].due
    fill(users, owners, 1)
    assert owners[0].due
    request = owners[0].request()
    assert (request.users.tolist(), request.items.tolist()) == ([0, 1], [0, 1])
    assert not owners[0].due
    assert owners[1].request() is None


def test_gradients_are_those_of_the_sum_of_the_blocks():
    users, owners, orchestrator = small()
    fill(users, owners, 0)
    fill(users, owners, 2)
    found = owners[0].gradients(orchestrator.answer(owners[0].request()))
    blocks = BlockTable.one_by_one(
        np.array([0, 2]), np.array([[0, 1, 1, 2]] * 2), np.array([0, 1], np.int32)
    )
    by_users, by_items = gradient(orchestrator.model, blocks, CONFIG.step())
    np.testing.assert_array_equal(found.users, [0, 2])
    np.testing.assert_array_equal(found.user_rows, by_users[[0, 2]].astype(np.float32))
    np.testing.assert_array_equal(found.item_rows, by_items[[0, 1]].astype(np.float32))


def test_the_end_of_a_stream_ends_its_block_and_its_clock():
    users, owners, orchestrator = small(replace(CONFIG, theta=1))
    send(users, owners, 0, 0, False, 10)
    send(users, owners, 0, 1, True, 11)
    assert owners[0].end_stream(0)
    assert not owners[1].end_stream(0)
    assert exchange(owners[0], orchestrator)
    send(users, owners, 0, 0, False, 3)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Interaction(1, 0, 1, True, 0), "addressed to another"),
        (Interaction(0, 9, 0, True, 0), "has not joined"),
        (Interaction(0, 0, 5, True, 0), "does not hold"),
        (Interaction(0, 0, 99, True, 0), "does not hold"),
        (Interaction(0, 0, 0, True, 4), "older than"),
    ],
)
def test_bad_interactions_are_refused_and_change_nothing(message, why):
    users, owners, _ = small()
    fill(users, owners, 0, first=3)
    before = state(owners[0])
    with pytest.raises(MessageError, match=why) as refusal:
        owners[0].receive(message)
    assert state(owners[0]) == before
    assert str(message.item) not in str(refusal.value)


def state(owner):
    """All that an owner keeps, down to the values."""
    plain = {name: value for name, value in vars(owner).items() if name != "_config"}
    plain["_open"] = {u: (b.negatives[:], b.positives[:]) for u, b in owner._open.items()}
    return {name: repr_of(value) for name, value in plain.items()}


def repr_of(value):
    if isinstance(value, EndedBlock):
        return (value.negatives, value.positives)
    if isinstance(value, dict):
        return sorted((k, repr_of(v)) for k, v in value.items())
    if isinstance(value, list | tuple | set):
        return [repr_of(v) for v in (sorted(value) if isinstance(value, set) else value)]
    return value


def test_equal_times_are_in_order():
    users, owners, _ = small()
    send(users, owners, 0, 0, False, 5)
    assert send(users, owners, 0, 1, True, 5) == [False, False]


# --- the orchestrator ----------------------------------------------------------------------------


def ready(config=CONFIG):
    """An owner whose gradients wait to be sent."""
    users, owners, orchestrator = small(config)
    fill(users, owners, 0)
    fill(users, owners, 1)
    return owners[0], orchestrator, owners[0].gradients(orchestrator.answer(owners[0].request()))


def test_a_fold_moves_the_named_rows_alone():
    _, orchestrator, gradients = ready()
    before = orchestrator.model
    orchestrator.fold(gradients)
    after = orchestrator.model
    assert orchestrator.version == 1
    assert np.flatnonzero((after.users != before.users).any(axis=1)).tolist() == [0, 1]
    assert np.flatnonzero((after.items != before.items).any(axis=1)).tolist() == [0, 1]
    step = before.users[0] - 0.1 * gradients.user_rows[0].astype(np.float64)
    np.testing.assert_array_equal(after.users[0], step.astype(np.float32))


def test_stale_rows_are_refused_and_the_blocks_are_kept():
    owner, orchestrator, gradients = ready(replace(CONFIG, max_age=1))
    orchestrator.fold(gradients)
    orchestrator.fold(gradients)
    kept = orchestrator.model
    with pytest.raises(MessageError, match=r"version 0, the model is at 2 .* ask again"):
        orchestrator.fold(gradients)
    with pytest.raises(MessageError, match="version 9"):
        orchestrator.fold(replace(gradients, version=9))
    assert same(orchestrator.model, kept)
    owner.settle(accepted=False)
    assert owner.due
    assert exchange(owner, orchestrator)
    assert orchestrator.version == 3
    assert not exchange(owner, orchestrator)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"owner": 7}, "owner 7 has not joined"),
        ({"users": np.array([0, 9])}, "cannot have"),
        ({"users": np.array([-1, 0])}, "cannot have"),
        ({"items": np.array([0, 5])}, "cannot have"),
        ({"users": np.array([1, 0])}, "ascend"),
        ({"users": np.array([1, 1])}, "ascend"),
        ({"users": np.array([0])}, "single precision"),
        ({"user_rows": np.zeros((2, 3), np.float32)}, "4 numbers"),
        ({"user_rows": np.zeros((2, 4))}, "single precision"),
        ({"item_rows": np.full((2, 4), np.nan, np.float32)}, "not finite"),
    ],
)
def test_bad_gradients_are_refused_whole(change, why):
    _, orchestrator, gradients = ready()
    before = orchestrator.model
    with pytest.raises(MessageError, match=why):
        orchestrator.fold(replace(gradients, **change))
    assert same(orchestrator.model, before)
    assert orchestrator.version == 0


def test_refused_blocks_go_before_those_that_ended_since():
    users, owners, orchestrator = small()
    fill(users, owners, 0)
    fill(users, owners, 2)
    waiting, without_request = state(owners[0])["_saved"], small()
    owners[0].request()
    fill(users, owners, 1)
    owners[0].settle(accepted=False)
    for user in (0, 2, 1):
        fill(without_request[0], without_request[1], user)
    assert state(owners[0]) == state(without_request[1][0])
    assert state(owners[0])["_saved"][:2] == waiting
    assert exchange(owners[0], orchestrator)
    assert orchestrator.version == 1


def test_an_owner_asks_for_its_own_items_alone():
    _, _, orchestrator = small()
    with pytest.raises(MessageError, match="cannot have"):
        orchestrator.answer(RowRequest(0, np.array([0]), np.array([5])))
    with pytest.raises(MessageError, match="cannot have"):
        orchestrator.answer(RowRequest(0, np.array([8]), np.array([0])))


def test_a_wrong_answer_is_refused_by_the_owner():
    users, owners, orchestrator = small()
    fill(users, owners, 0)
    fill(users, owners, 1)
    rows = orchestrator.answer(owners[0].request())
    for wrong, why in [
        (replace(rows, users=np.array([0, 2])), "lacks rows"),
        (replace(rows, user_rows=rows.user_rows[:, :2]), "4 numbers"),
        (replace(rows, item_rows=rows.item_rows * np.float32(np.inf)), "not finite"),
    ]:
        with pytest.raises(MessageError, match=why):
            owners[0].gradients(wrong)
    with pytest.raises(RunError, match="waits for the answer"):
        owners[0].request()
    assert owners[0].gradients(rows) is not None


def test_recommendations_leave_out_what_is_seen_and_what_nobody_holds():
    _, _, orchestrator = small()
    every, scores = orchestrator.recommend(1, [], 10)
    assert sorted(every.tolist()) == list(range(6))
    model = orchestrator.model
    np.testing.assert_allclose(scores, (model.items @ model.users[1])[every], rtol=1e-6)
    assert orchestrator.recommend(1, every[:2].tolist(), 3)[0].tolist() == every[2:5].tolist()
    orchestrator.withdraw_items(0, [0])
    orchestrator.withdraw_items(0, [1])
    left = orchestrator.recommend(1, [], 10)[0].tolist()
    assert 0 not in left
    assert 1 in left, "owner 1 still holds it"
    with pytest.raises(DataError, match="joined"):
        orchestrator.recommend(44, [], 3)


# --- coming and going ----------------------------------------------------------------------------


def test_nothing_of_a_departed_user_remains_at_the_owner():
    users, owners, _ = small()
    for user in (0, 2):
        fill(users, owners, user)
    owners[0].request()
    for user in (0, 2):
        fill(users, owners, user, first=5)
    with_both = state(owners[0])
    for owner in owners.values():
        owner.forget(2)
    lone_users, lone, _ = small()
    for owner in lone.values():
        owner.forget(2)
    fill(lone_users, lone, 0)
    lone[0].request()
    fill(lone_users, lone, 0, first=5)
    assert state(owners[0]) == state(lone[0]) != with_both
    with pytest.raises(MessageError, match="has not joined"):
        send(users, owners, 2, 0, True, 99)


def test_a_departed_users_row_is_erased_and_the_update_goes_on_without_her():
    users, owners, orchestrator = small()
    for user in (0, 1):
        fill(users, owners, user)
    rows = orchestrator.answer(owners[0].request())
    whole = owners[0].gradients(rows)
    owners[0].forget(1)
    orchestrator.leave_user(1)
    assert not orchestrator.model.users[1].any()
    with pytest.raises(MessageError, match="cannot have"):
        orchestrator.fold(whole)
    gradients = owners[0].gradients(rows)
    assert gradients.users.tolist() == [0]
    orchestrator.fold(gradients)
    owners[0].forget(0)
    assert owners[0].gradients(rows) is None
    with pytest.raises(DataError, match="joined"):
        orchestrator.recommend(1, [], 3)
    orchestrator.join_user(1)
    np.testing.assert_array_equal(orchestrator.model.users[1], first_rows("users", [1], 4, RNG)[0])


def test_withdrawn_items_leave_every_block():
    users, owners, orchestrator = small()
    fill(users, owners, 0)
    send(users, owners, 1, 1, False, 0)
    send(users, owners, 1, 0, False, 1)
    send(users, owners, 1, 4, True, 2)
    owners[0].withdraw_items([0])
    orchestrator.withdraw_items(0, [0])
    assert not owners[0].end_stream(0), "a block without negatives is none"
    owners[0].end_stream(1)
    request = owners[0].request()
    assert (request.users.tolist(), request.items.tolist()) == ([1], [1, 4])
    orchestrator.answer(request)
    with pytest.raises(MessageError, match="does not hold"):
        owners[0].receive(Interaction(0, 0, 0, True, 9))
    with pytest.raises(DataError, match="no data owner holds"):
        users[0].interact(0, True, 9)


def test_owners_and_items_join_in_the_middle_and_the_model_goes_on():
    users, owners, orchestrator = small()
    fill(users, owners, 0)
    before = orchestrator.model
    orchestrator.add_items(3, [2, 40])
    owners[3] = Owner(3, [2, 40], CONFIG)
    for user in users:
        owners[3].admit(user)
    after = orchestrator.model
    np.testing.assert_array_equal(after.items[:6], before.items)
    np.testing.assert_array_equal(after.items[40], first_rows("items", [40], 4, RNG)[0])
    assert 40 in orchestrator.recommend(0, [], 99)[0]
    assert 20 not in orchestrator.recommend(0, [], 99)[0]
    assert [m.owner for m in users[0].interact(2, False, 9)] == [1, 3]
    for user in (0, 1):
        send(users, owners, user, 2, False, 20)
        send(users, owners, user, 40, True, 21)
        owners[3].end_stream(user)
    assert exchange(owners[3], orchestrator)
    assert (orchestrator.model.items[40] != after.items[40]).all()


def test_an_owner_that_leaves_takes_its_items_and_the_others_go_on():
    users, owners, orchestrator = small()
    fill(users, owners, 0)
    fill(users, owners, 1)
    orchestrator.leave_owner(0)
    with pytest.raises(MessageError, match="owner 0 has not joined"):
        exchange(owners[0], orchestrator)
    assert owners[0].due, "what was refused is still there"
    assert orchestrator.table.all_owners() == [1, 2]
    assert 0 not in orchestrator.recommend(0, [], 10)[0]
    assert [m.owner for m in users[0].interact(4, True, 30)] == [1, 2]
    rows = orchestrator.model.items
    orchestrator.add_items(0, [0])
    np.testing.assert_array_equal(orchestrator.model.items, rows)
    assert 0 in orchestrator.recommend(0, [], 10)[0]


def test_an_owner_without_items_does_nothing():
    orchestrator = Orchestrator(CONFIG, RNG)
    orchestrator.add_items(0, [])
    assert orchestrator.table.all_owners() == []
    empty = Owner(0, [], CONFIG)
    assert not exchange(empty, orchestrator)
    assert not empty.end_stream(4)


# --- the table, and settings ---------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.sets(st.integers(0, 5))), max_size=12)
)
def test_the_table_is_what_was_added_less_what_was_withdrawn(changes):
    table, held = OwnerTable(), {k: set() for k in range(4)}
    for added, owner, items in changes:
        if added:
            table.add(owner, items)
            held[owner] |= items
        else:
            table.withdraw(owner, items & held[owner])
            held[owner] -= items
    assert table.all_owners() == [k for k in held if held[k]]
    for k, items in held.items():
        assert table.items(k) == items
    for item in range(6):
        expected = tuple(k for k in held if item in held[k])
        if expected:
            assert table.owners(item) == expected
        else:
            with pytest.raises(DataError):
                table.owners(item)
    assert sorted(table) == sorted(set().union(*held.values()))
    pointer, holders, count = table.arrays(7)
    assert count == len(table.all_owners())
    for item in range(7):
        row = [table.all_owners()[h] for h in holders[pointer[item] : pointer[item + 1]]]
        assert row == [k for k in held if item in held[k]]


def test_the_table_refuses_what_cannot_be():
    table = OwnerTable.of_membership(SEVERAL)
    with pytest.raises(DataError, match="does not hold"):
        table.withdraw(0, [5])
    with pytest.raises(DataError, match="numbered from 0"):
        table.add(0, [-1])
    with pytest.raises(DataError, match="no data owner holds"):
        DRIFT(CONFIG).fit(world(4, 30, 60, seed=0), table, RNG)
    with pytest.raises(DataError, match="numbered from 0 to"):
        Orchestrator(CONFIG, RNG).join_user(1 << 40)
