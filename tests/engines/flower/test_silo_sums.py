"""Rounds with data owners that send sums over people, without processes: the simulation's model,
and what the orchestrator sees, as it comes off the wire."""

import itertools
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_silo_conductor import (
    HOLDINGS,
    N_ITEMS,
    N_USERS,
    ROOT,
    Mishaps,
    Office,
    Town,
    events_of,
)

from sottovoce.algorithms.drift.aggregated import AggregatedPlan as Plan
from sottovoce.algorithms.drift.aggregated import AggregatingOwner, Aggregation, own_vector
from sottovoce.algorithms.drift.blocks import DriftModel
from sottovoce.algorithms.drift.messages import Gradients, RowRequest
from sottovoce.algorithms.drift.replay import exchange, exchange_together, replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, User
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.engines.flower.members import Reply
from sottovoce.engines.silo_simulation import SIGHT
from sottovoce.errors import StoreError, UsageError
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.wire.silo_rounds import GradientsSent, RowsWanted, TaskRows

CONFIG = DRIFTConfig(release="aggregated", min_users=2, learning_rate=0.1)


class Simulated:
    """The same federation as objects of the algorithm."""

    def __init__(self, config):
        self.config, self.orchestrator = config, Orchestrator(config, ROOT)
        self.owners = {
            k: AggregatingOwner(k, h, config, of_owner(ROOT, k))
            for k, h in enumerate(HOLDINGS.values())
        }
        for k, items in enumerate(HOLDINGS.values()):
            self.orchestrator.add_items(k, items)
        self.users = {u: User(u, self.orchestrator.table) for u in range(N_USERS)}
        for u, owner in itertools.product(self.users, self.owners.values()):
            owner.admit(u)

    def send(self, events, k):
        item, flag = int(events.item[k]), bool(events.positive[k])
        for message in self.users[int(events.user[k])].interact(item, flag, int(events.time[k])):
            self.owners[message.owner].receive(message)

    def round(self, flush, away):
        for k, owner in self.owners.items():
            if flush and away.get(k) != ("query", "lost"):
                for user in sorted(owner.users):
                    owner.end_stream(user)
        there = [owner for k, owner in self.owners.items() if k not in away]
        if self.config.window:
            return exchange_together(there, self.orchestrator)
        return sum(exchange(owner, self.orchestrator) for owner in there) if flush else 0


def check_same(town, sim):
    """Rows at the orchestrator, vectors at the owners, and what waits there, bit for bit."""
    assert town.model().items.tobytes() == sim.orchestrator.model.items.tobytes()
    for k, owner in sim.owners.items():
        assert town.owners[k].counts()["withheld"] == owner.withheld()
        for user in range(N_USERS):
            mine, its = town.owners[k].vector(user), owner.vector(user)
            assert (mine is None and its is None) or mine.tobytes() == its.tobytes()


# --- the same model ------------------------------------------------------------------------------


@pytest.mark.parametrize("negatives", ["touched", "untouched"])
@pytest.mark.parametrize("window", [0, 7])
def test_rounds_equal_the_replay_and_the_fast_simulation(tmp_path, window, negatives):
    """A round at the end of each epoch, in turn, or one after every window, together."""
    config = replace(CONFIG, window=window, negatives=negatives)
    events, sim, town = events_of(60, 1), Simulated(config), Town(tmp_path, config)
    office = Office(town)
    for _ in range(2):
        for k in range(len(events)):
            town.send(events, k)
            if window and (k + 1) % window == 0 and k + 1 < len(events):
                town.conduct(office)
        town.store.request_flush()
        town.conduct(office)
    done = [replay(events, sim.users, sim.owners, sim.orchestrator, window) for _ in range(2)]
    first = Orchestrator(config, ROOT)
    first.add_items(0, range(N_ITEMS))
    assert not np.array_equal(town.model().items, first.model.items)
    check_same(town, sim)
    table = sim.orchestrator.table
    passes = (config.drawing(ROOT, known=known) for known in (False, True))
    begun, plan = (Plan.of(events, table, window, drawing=drawing) for drawing in passes)
    fast = Aggregation(plan, config, N_USERS, N_ITEMS, ROOT, begun)
    fast.epoch()
    fast.epoch()
    given = [[o.vector(u) for o in town.owners.values()] for u in range(N_USERS)]
    users = [own_vector([v for v in one if v is not None], 4, config.start) for one in given]
    at_home = DriftModel(np.stack(users), town.store.rows_to_rank())
    assert at_home.users.tobytes() == fast.model().users.tobytes()
    assert at_home.items.tobytes() == fast.model().items.tobytes()
    records = town.store.rounds()
    assert sum(len(r.updated) for r in records) == sum(d.updates for d in done)
    assert {(r.updated, r.silent, r.refused) for r in records} == {(tuple(HOLDINGS), (), ())}
    assert not town.store.refused()
    town.close()


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 50),
    window=st.sampled_from([0, 9]),
    negatives=st.sampled_from(["touched", "untouched"]),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from(["query", "train"])),
        st.sampled_from(
            ["lost", "mute query", "error once", "twice", "crash", "crash after", "restart"]
        ),
        max_size=8,
    ),
    closings=st.dictionaries(st.integers(0, 5), st.sampled_from(["before", "after"]), max_size=3),
)
def test_the_model_is_the_simulations_whatever_is_lost_doubled_or_killed(
    tmp_path,
    seed,
    n,
    window,
    negatives,
    faults,
    closings,
):
    """Orchestrator and owners go on from their disks, in the middle of a round, too."""
    config = replace(CONFIG, window=window, negatives=negatives)
    events, place = events_of(n, seed), Path(tempfile.mkdtemp(dir=tmp_path))
    town, sim = Town(place, config), Simulated(config)
    for _, updates, _, record in Mishaps(town, sim, faults, closings).turns(events):
        assert len(record.updated) == updates
    check_same(town, sim)
    assert not town.store.refused()
    assert all(owner.counts()["waiting"] == 0 for owner in town.owners.values())
    town.close()


def test_an_answer_that_comes_too_late_is_in_the_next_round(tmp_path):
    """As it was: the orchestrator may have seen it."""
    town, tasks = Town(tmp_path, replace(CONFIG, window=7)), []

    def fault(number, kind, asked):
        if (number, kind, asked.round) == (1, "train", 0):
            tasks.append(asked.to_content())
            return "mute"
        return None

    for user in (0, 1):
        town.block(user, 1)
    office = Office(town, fault)
    before = town.model().items
    town.conduct(office, deadline_seconds=3.0)
    assert town.store.rounds()[-1].silent == ("bora",)
    assert np.array_equal(town.model().items, before)
    late = GradientsSent.from_content(office.deliver(1, "train", tasks[0])).gradients
    town.block(2, 1)
    town.conduct(office)
    pull = 0.1 * late.item_rows[[0, 3]].astype(np.float64)
    moved = (before[[1, 4]].astype(np.float64) - pull).astype(np.float32)
    assert np.array_equal(town.model().items[[1, 4]], moved)
    assert town.owners[1].counts()["withheld"] == 2, "user 2 waits for somebody"
    town.conduct(office, 2)
    assert np.array_equal(town.model().items[[1, 4]], moved), "once"
    town.close()


@pytest.mark.parametrize("how", ["late", "refused"])
def test_owners_are_told_which_answers_came_in_also_where_none_was_counted(tmp_path, how):
    """So that an older copy of a store is found out: the orchestrator has seen what it lacks."""
    town = Town(tmp_path, CONFIG)

    def fault(number, kind, asked):
        if (number, kind, asked.round) == (1, "train", 0):
            return "mute" if how == "late" else bounded
        return None

    def bounded(content):
        sent = GradientsSent.from_content(content).gradients
        rows = np.full_like(sent.item_rows, 1e6)
        said = Gradients(1, sent.version, sent.users, sent.items, sent.user_rows, rows)
        return GradientsSent(1, 0, said).to_content()

    for user in (0, 1):
        town.block(user, 1)
    town.owners[1].close()
    shutil.copytree(tmp_path / "bora", tmp_path / "copy")
    town.reopen_owner(1)
    office = Office(town, fault)
    town.store.request_flush()
    conductor = town.conduct(office, deadline_seconds=3.0)
    assert town.store.counted(1) == -1
    if how == "late":
        task = next(x for k, n, x in office.sent if (k, n) == ("train", 1))
        for name in conductor._late:
            office.waiting[name] = Reply(name, office.deliver(1, "train", task))
    else:
        assert town.store.refused() == {"out_of_bounds": 1}
    town.owners[1].close()
    shutil.rmtree(tmp_path / "bora")
    shutil.copytree(tmp_path / "copy", tmp_path / "bora")
    town.reopen_owner(1)
    conductor.target = 2
    conductor.run()
    assert town.store.rounds()[-1].refused == ("bora",)
    assert "older copy" in conductor._problems[1]
    town.close()


# --- what the orchestrator sees ------------------------------------------------------------------


class Recording(Office):
    """Everything that an owner sends, as it is read from the wire, and what is in its blocks."""

    def __init__(self, town):
        super().__init__(town)
        self.requests, self.gradients, self.behind, self.sizes = [], [], [], []

    def deliver(self, number, kind, letter):
        owner, held = self.town.owners[number]._known().owner, {}
        for user, block in owner.asked:
            for item in block.negatives + block.positives:
                held.setdefault(item, set()).add(user)
        for item, people in owner.waiting_people().items():
            held.setdefault(item, set()).update(people)
        answer = super().deliver(number, kind, letter)
        self.sizes.append((number, kind, sum(len(v) for v in answer.values() if type(v) is bytes)))
        if kind == "query":
            self.requests.append(RowsWanted.from_content(answer))
        else:
            self.gradients.append(GradientsSent.from_content(answer))
            self.behind.append(held)
        return answer


def test_the_orchestrator_sees_what_the_table_says_and_nobody_is_named(tmp_path):
    """Requests and rows of all of an owner's items, in every round alike, and a row that is not of
    zeros where `min_users` people are behind it, and nowhere else."""
    config = replace(CONFIG, window=7, min_users=3)
    events, town = events_of(120, 1), Town(tmp_path, config)
    office = Recording(town)
    for k in range(len(events)):
        town.send(events, k)
        if (k + 1) % 7 == 0:
            town.conduct(office)
    town.conduct(office, 2)  # in which nothing has happened
    rounds = town.store.round
    assert len(office.requests) == len(office.gradients) == 3 * rounds
    for asked in office.requests:
        request = asked.request
        assert {f.name for f in fields(request)} == SIGHT["orchestrator"]["RowRequest"]
        assert request.users.tolist() == []
        assert request.items.tolist() == list(HOLDINGS.values())[asked.owner]
        assert asked.problem == ""
    shown = hidden = 0
    for sent, held in zip(office.gradients, office.behind, strict=True):
        found = sent.gradients
        assert {f.name for f in fields(found)} == SIGHT["orchestrator"]["Gradients"]
        assert (found.users.tolist(), found.user_rows.tolist()) == ([], [])
        assert found.items.tolist() == list(HOLDINGS.values())[sent.owner]
        for item, row in zip(found.items.tolist(), found.item_rows, strict=True):
            enough = len(held.get(item, ())) >= 3
            assert row.any() == enough
            shown, hidden = shown + enough, hidden + (not enough)
    assert shown > 5
    assert hidden > 20
    for kind, letter in ((k, x) for k, _, x in office.sent if k == "train"):
        assert TaskRows.from_content(letter).rows.users.tolist() == [], kind
    assert len(set(office.sizes)) == 6, "lengths are the owner's, and never change"
    town.close()


def test_the_orchestrators_store_has_no_vector_and_says_so(tmp_path):
    town = Town(tmp_path, CONFIG)
    for user in range(3):
        town.block(user, 1)
    town.store.request_flush()
    town.conduct(Office(town))
    assert town.model().users.shape == (0, 4)
    assert town.store._file.rows("SELECT DISTINCT length(row) FROM users") == [(0,)]
    vectors = [town.owners[1].vector(user).tobytes() for user in range(3)]
    stored = b"".join(f.read_bytes() for f in (tmp_path / "server").iterdir() if f.is_file())
    assert not any(vector in stored for vector in vectors)
    with pytest.raises(UsageError, match="data owners keep them"):
        town.store.recommend(0, 3)
    town.store._file.write("UPDATE users SET row = zeroblob(16) WHERE number = 0")
    town.close()
    with pytest.raises(StoreError, match="make a new federation"):
        OrchestratorStore.open(tmp_path / "server")


def named(content):
    """The owner says who it was."""
    sent = GradientsSent.from_content(content).gradients
    users, rows = np.array([0]), np.ones((1, 4), np.float32)
    said = Gradients(1, sent.version, users, sent.items, rows, sent.item_rows)
    return GradientsSent(1, 0, said).to_content()


def fewer(content):
    sent = GradientsSent.from_content(content).gradients
    said = Gradients(
        1, sent.version, sent.users, sent.items[1:], sent.user_rows, sent.item_rows[1:]
    )
    return GradientsSent(1, 0, said).to_content()


def asked_for_some(content):
    asked = RowsWanted.from_content(content)
    request = RowRequest(1, asked.request.users, asked.request.items[1:])
    return RowsWanted(1, 0, asked.items, request).to_content()


def asked_by_name(content):
    asked = RowsWanted.from_content(content)
    request = RowRequest(1, np.array([0]), asked.request.items)
    return RowsWanted(1, 0, asked.items, request).to_content()


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("train", named, "not_asked"),
        ("train", fewer, "malformed"),
        ("query", asked_for_some, "malformed"),
        ("query", asked_by_name, "malformed"),
    ],
)
def test_what_says_more_than_sums_is_not_taken(tmp_path, kind, change, why):
    town = Town(tmp_path, CONFIG)
    for user in (0, 1):
        town.block(user, 1)
    before = town.model().items
    town.store.request_flush()
    town.conduct(
        Office(town, lambda number, k, asked: change if (number, k) == (1, kind) else None)
    )
    assert town.store.refused() == {why: 1}
    assert town.store.rounds()[-1].refused == ("bora",)
    assert np.array_equal(town.model().items, before)
    town.close()
