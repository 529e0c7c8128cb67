"""Rounds with data owners, without processes: real owners on disk and the real store; the post is a
dictionary, time is moved by hand, and everything that is said goes through its wire format."""

import itertools
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift import untouched
from sottovoce.algorithms.drift.blocks import Events, first_rows
from sottovoce.algorithms.drift.messages import RowRequest
from sottovoce.algorithms.drift.replay import exchange_together, replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner, User
from sottovoce.engines.flower.members import OnlineNode, Reply
from sottovoce.engines.flower.silo_conductor import DORMANT_AFTER, SiloConductor
from sottovoce.engines.flower.silo_node import OwnerNode
from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams
from sottovoce.stores.conductor import read_status
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.owner import DataOwner
from sottovoce.wire.interactions import Identity, begin
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import Application
from sottovoce.wire.silo_rounds import (
    QueryRows,
    TaskRows,
    decode_gradients,
    decode_row_request,
    encode_gradients,
    encode_row_request,
)

pytestmark = pytest.mark.usefixtures("quick_stores")

ROOT = Streams.from_seed(12)
ISSUER = Issuer("town")
CONFIG = DRIFTConfig(theta=2, learning_rate=0.1, window=7)
HOLDINGS = {"alba": [0, 1, 4], "bora": [1, 2, 3, 4], "corso": [3, 4, 5]}
N_USERS, N_ITEMS = 5, 6


def node_key():
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()


NODE_KEYS = [node_key() for _ in range(5)]


def events_of(n, seed):
    draw = np.random.default_rng(seed)
    return Events(
        draw.integers(0, N_USERS, n),
        draw.integers(0, N_ITEMS, n).astype(np.int32),
        draw.random(n) < 0.5,
        np.sort(draw.integers(0, n, n)),
        "time",
    )


class Crash(BaseException):
    """The conductor is killed."""


class Town:
    """A federation in a folder: the orchestrator's store, and owners that people write to."""

    def __init__(self, path, config=CONFIG):
        self.path, self.config = path, config
        names = [f"item {n}" for n in range(N_ITEMS)]
        self.store = OrchestratorStore.create(path / "server", "town", config, names, ROOT.key)
        self.keys = [Identity() for _ in range(N_USERS)]
        self.store.add_users([key.public for key in self.keys])
        self.owners, self.identity, self.sessions, self.said = {}, Identity(), {}, {}
        for name, items in HOLDINGS.items():
            self.admit(name, items)

    def admit(self, name, items):
        apply = Application(
            name, "http://127.0.0.1:1", self.identity.public, "",
            NODE_KEYS[len(self.owners)], tuple(items),
        )  # fmt: skip
        number = self.store.admit_owner(apply)
        self.owners[number] = DataOwner.create(
            self.path / name, number=number, name=name, federation="town", issuer=ISSUER.public,
            settings=self.config, items=items, identity=self.identity,
            draws=untouched.of_owner(ROOT, number).root,
        )  # fmt: skip
        return number

    def close(self):
        self.store.close()
        for owner in self.owners.values():
            owner.close()

    def reopen_store(self):
        self.store.close()
        self.store = OrchestratorStore.open(self.path / "server")

    def reopen_owner(self, number):
        self.owners[number].close()
        name = self.owners[number].name
        self.owners[number] = DataOwner.open(self.path / name, self.identity)
        self.sessions = {k: s for k, s in self.sessions.items() if k[1] != number}

    def say(self, user, number, kind, item=0, time=0):
        """One sealed message to one owner."""
        owner = self.owners[number]
        sequence = self.said[user, number] = self.said.get((user, number), -1) + 1
        if (user, number) in self.sessions:
            sender, session = self.sessions[user, number]
            sealed = sender.seal(sequence, kind, item, time)
        else:
            key = self.keys[user]
            offer, once = owner.offer(ISSUER.admit(user, key.public))
            sender, hello = begin(user, key, number, self.identity.public, once)
            sealed = sender.seal(sequence, kind, item, time)
            session = owner.accept(offer, hello, sealed)
            self.sessions[user, number] = sender, session
        taken = owner.take(session, [sealed])
        assert taken.taken == 1, taken

    def send(self, events, k):
        """An event to whoever holds the item."""
        item, kind = int(events.item[k]), "positive" if events.positive[k] else "negative"
        for number, owner in self.owners.items():
            if item in owner.items:
                self.say(int(events.user[k]), number, kind, item, int(events.time[k]))

    def block(self, user, number, items=(1, 4), time=0):
        """A finished block of a negative and a positive."""
        self.say(user, number, "negative", items[0], time)
        self.say(user, number, "positive", items[1], time)
        self.say(user, number, "end")

    def conduct(self, office, rounds=1, **options):
        options = {"deadline_seconds": 20.0, **options}
        conductor = SiloConductor(self.store, office, target=self.store.round + rounds, **options)
        conductor.run()
        return conductor

    def model(self):
        return self.store.load().model


@pytest.fixture
def town(tmp_path):
    town = Town(tmp_path)
    yield town
    town.close()


class Office:
    """A post office with real owners behind it. `fault(number, kind, asked)` may be "lost" (the
    letter), "mute" (the answer), "error", "twice" (the letter), a Crash that kills the conductor
    before or ("after") when the letter has arrived, or a function that changes the answer."""

    def __init__(self, town, fault=None):
        self.town, self.fault = town, fault or (lambda number, kind, asked: None)
        self.since, self.away = dict.fromkeys(range(9), "a"), set()
        self.nodes, self.waiting, self.sent, self.time = {}, {}, [], 0.0
        self.strangers = []

    def online(self):
        known = [
            OnlineNode(100 + o.number, o.identity, self.since[o.number])
            for o in self.town.store.owners()
            if o.number not in self.away
        ]
        return known + self.strangers

    def deliver(self, number, kind, letter):
        owner = self.town.owners[number]
        if self.nodes.get(number, (None,))[0] is not owner:
            self.nodes[number] = owner, OwnerNode(owner)
        node = self.nodes[number][1]
        if kind == "query":
            return node.answer_query(QueryRows.from_content(letter)).to_content()
        return node.answer_task(TaskRows.from_content(letter)).to_content()

    def send(self, kind, letters, seconds):
        names = {}
        for node, letter in letters.items():
            number, name = node - 100, f"{kind} {len(self.sent)}"
            self.sent.append((kind, number, letter))
            asked = (TaskRows if kind == "train" else QueryRows).from_content(letter)
            fault = self.fault(number, kind, asked)
            names[node] = name
            if isinstance(fault, Crash) and fault.args != ("after",):
                raise fault
            if fault == "lost":
                continue
            answer = self.deliver(number, kind, letter)
            if fault == "twice":
                assert self.deliver(number, kind, letter) == answer
            if isinstance(fault, Crash):
                raise fault
            if fault == "error":
                self.waiting[name] = Reply(name, None, "it fell over")
            elif fault != "mute":
                self.waiting[name] = Reply(name, fault(answer) if callable(fault) else answer)
        return names

    def collect(self, messages):
        found = [self.waiting.pop(name) for name in messages if name in self.waiting]
        return found + found[:1]  # one comes twice

    def clock(self):
        return self.time

    def wait(self, seconds):
        assert seconds > 0
        self.time += seconds


class Mishaps:
    """Owners, the post and the conductor fail, by round: what does not last, once."""

    def __init__(self, town, sim, faults, closings):
        self.town, self.sim, self.faults, self.closings = town, sim, faults, closings
        self.tasked = defaultdict(set)
        self.office = Office(town, self._fault)
        self._used, self._closed = set(), set()

    def turns(self, events):
        """Nine interactions, a round; the last one is for those who were left out. Yields what the
        simulation has updated, who was away, and the round's record."""
        edges = [*range(0, len(events), 9), len(events)]
        windows = [*(range(a, b) for a, b in itertools.pairwise(edges)), ()]
        for turn, window in enumerate(windows):
            for k in window:
                self.town.send(events, k)
                self.sim.send(events, k)
            flush = turn >= len(windows) - 2
            if flush:
                self.town.store.request_flush()
            if not window:
                self.faults.clear()
            self._conduct(turn + 1)
            away = {}
            for kind, k in itertools.product(("train", "query"), range(3)):
                if what := self._lasting(turn, k, kind):
                    away[k] = kind, what
            yield turn, self.sim.round(flush, away), away, self.town.store.rounds()[-1]

    def _lasting(self, round, number, kind):
        """Whether the letter or the answer is lost however often it is asked."""
        what, *only = self.faults.get((round, number, kind), "nothing").split()
        return what if what in ("lost", "mute") and only in ([], [kind]) else None

    def _fault(self, number, kind, asked):
        if kind == "train":
            self.tasked[asked.round].add(number)
        if lasting := self._lasting(asked.round, number, kind):
            return lasting
        where = asked.round, number, kind
        if where in self._used:
            return None
        self._used.add(where)
        if self.faults.get(where) == "restart":
            self.town.reopen_owner(number)
            self.office.since[number] += "b"
            return "lost"
        return {
            "error once": "error",
            "twice": "twice",
            "crash": Crash(),
            "crash after": Crash("after"),
        }.get(self.faults.get(where))

    def _conduct(self, target):
        town = self.town
        while town.store.round < target:
            self._crashing(town.store)
            try:
                SiloConductor(town.store, self.office, target=target, deadline_seconds=3.0).run()
            except Crash:
                self.office.waiting.clear()
                town.reopen_store()

    def _crashing(self, store):
        real = store.close_round

        def close(record, *rest, **named):
            when = self.closings.get(record.round)
            if when == "before" and record.round not in self._closed:
                self._closed.add(record.round)
                raise Crash
            real(record, *rest, **named)
            if when == "after":
                raise Crash

        store.close_round = close


def same(one, other):
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)


class Simulated:
    """The same federation as objects of the algorithm."""

    def __init__(self, config=CONFIG):
        self.orchestrator = Orchestrator(config, ROOT)
        self.owners = {k: Owner(k, h, config) for k, h in enumerate(HOLDINGS.values())}
        for k, items in enumerate(HOLDINGS.values()):
            self.orchestrator.add_items(k, items)
        self.users = {u: User(u, self.orchestrator.table) for u in range(N_USERS)}
        for u in self.users:
            self.orchestrator.join_user(u)
            for owner in self.owners.values():
                owner.admit(u)

    def send(self, events, k):
        item, flag = int(events.item[k]), bool(events.positive[k])
        for message in self.users[int(events.user[k])].interact(item, flag, int(events.time[k])):
            self.owners[message.owner].receive(message)

    def round(self, flush, away):
        """`away` says in which way owners are; one that the question does not reach flushes
        nothing."""
        due = []
        for k, owner in self.owners.items():
            if flush and away.get(k) != ("query", "lost"):
                for user in sorted(owner.users):
                    owner.end_stream(user)
            if k not in away and (flush or owner.due):
                due.append(owner)
        return exchange_together(due, self.orchestrator)


# --- the same model ------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1, 3])
def test_rounds_equal_the_replay(tmp_path, theta):
    config = replace(CONFIG, theta=theta)
    events, sim, town = events_of(60, 1), Simulated(config), Town(tmp_path, config)
    office = Office(town)
    for _ in range(2):
        for k in range(len(events)):
            town.send(events, k)
            if (k + 1) % 7 == 0 and k + 1 < len(events):
                town.conduct(office)
        town.store.request_flush()
        town.conduct(office)
    done = [replay(events, sim.users, sim.owners, sim.orchestrator, 7) for _ in range(2)]
    assert same(town.model(), sim.orchestrator.model)
    records = town.store.rounds()
    assert sum(len(r.updated) for r in records) == sum(d.updates for d in done) > 8
    assert [r.flush for r in records] == ([False] * 8 + [True]) * 2
    assert {(r.asked, r.silent, r.refused) for r in records} == {(tuple(HOLDINGS), (), ())}
    assert records[-1].version == sim.orchestrator.version
    assert not town.store.refused()
    town.close()


FAULTS = ["lost", "mute", "error once", "twice", "crash", "crash after", "restart"]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 60),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 6), st.integers(0, 2), st.sampled_from(["query", "train"])),
        st.sampled_from(FAULTS),
        max_size=8,
    ),
    closings=st.dictionaries(st.integers(0, 6), st.sampled_from(["before", "after"]), max_size=3),
)
def test_the_model_is_the_simulations_whatever_is_lost_doubled_or_killed(
    tmp_path, seed, n, faults, closings
):
    """Who is left out of a round takes part in the next one; a conductor that is killed is followed
    by another one, which changes nothing."""
    events, place = events_of(n, seed), Path(tempfile.mkdtemp(dir=tmp_path))
    town, sim = Town(place), Simulated()
    mishaps, turns = Mishaps(town, sim, faults, closings), 0
    for turn, updates, away, record in mishaps.turns(events):
        assert len(record.updated) == updates
        silent = {k for k in away if away[k][0] == "query" or k in mishaps.tasked[turn]}
        assert set(record.silent) == {list(HOLDINGS)[k] for k in silent}
        turns += 1
    assert same(town.model(), sim.orchestrator.model)
    assert town.store.load().version == sim.orchestrator.version
    assert not town.store.refused()
    assert [r.round for r in town.store.rounds()] == list(range(turns))
    assert all(owner.counts()["waiting"] == 0 for owner in town.owners.values())
    town.close()


def test_a_question_that_was_overtaken_takes_nothing_from_anybody(town):
    """The one of round 0 comes once more when round 0 was counted and there are new blocks."""
    office = Office(town)
    for user in (0, 1):
        town.block(user, 1)
    town.conduct(office, 2)
    (late,) = [x for kind, n, x in office.sent if (kind, n, x["round"]) == ("query", 1, 0)]
    for user in (0, 1):
        town.block(user, 1, time=5)
    assert "is over" in office.deliver(1, "query", late)["problem"]
    town.conduct(office, 2)
    assert [r.updated for r in town.store.rounds()] == [("bora",), (), ("bora",), ()]


def test_a_conductor_that_holds_goes_on_when_the_target_is_raised(town):
    stops = []

    class Waiting(Office):
        def wait(self, seconds):
            super().wait(seconds)
            status = read_status(town.store.folder)
            if status["state"] == "finished":
                stops.append(status["round"])
                if len(stops) == 3:
                    raise Crash
                with OrchestratorStore.open(town.store.folder) as other:
                    other.raise_target(status["round"] + 2)

    with pytest.raises(Crash):
        town.conduct(Waiting(town), hold=True)
    assert stops == [1, 3, 5]


# --- silence -------------------------------------------------------------------------------------


def test_a_silent_owner_is_named_and_nobody_waits_for_it_for_ever(town):
    def fault(number, kind, asked):
        return "lost" if number == 1 and asked.round < 4 else None

    for number, items in ((0, (1, 4)), (1, (1, 2)), (2, (3, 5))):
        for user in (0, 1):
            town.block(user, number, items)
    town.conduct(Office(town, fault), 5)
    records = town.store.rounds()
    assert [r.silent for r in records] == [("bora",)] * 4 + [()]
    assert [r.updated for r in records] == [("alba", "corso"), (), (), (), ("bora",)]
    assert all(20.0 <= r.seconds < 21.0 for r in records[:DORMANT_AFTER])
    assert all(r.seconds < 1.0 for r in records[DORMANT_AFTER:])
    status = read_status(town.store.folder)
    assert (status["silent"], status["state"], status["round"]) == ([], "finished", 5)
    assert status["online"] == list(HOLDINGS)


def test_the_owners_of_a_round_do_not_make_each_other_stale(tmp_path):
    """Not even where rows may be of the present version alone: all are of the same one."""
    town = Town(tmp_path, replace(CONFIG, max_age=0))
    for number, items in ((0, (1, 4)), (1, (1, 2)), (2, (3, 5))):
        for user in (0, 1):
            town.block(user, number, items)
    town.conduct(Office(town))
    assert town.store.rounds()[0].updated == tuple(HOLDINGS)
    assert town.store.rounds()[0].version == 3
    assert not town.store.refused()
    town.close()


def test_the_status_says_who_is_waited_for_and_who_was_silent(town):
    seen = []

    class Looking(Office):
        def wait(self, seconds):
            super().wait(seconds)
            seen.append(read_status(town.store.folder))

    def fault(number, kind, asked):
        return "mute" if number == 2 else None

    town.conduct(Looking(town, fault), 2)
    assert {"open"} == {status["state"] for status in seen}
    assert {tuple(status["waiting_for"]) for status in seen} == {("corso",)}
    assert {tuple(status["silent"]) for status in seen} == {(), ("corso",)}


def test_where_all_are_silent_the_deadline_passes_in_every_round(town):
    office = Office(town, lambda number, kind, asked: "lost")
    town.conduct(office, DORMANT_AFTER + 2)
    assert all(r.seconds >= 20.0 for r in town.store.rounds())


def test_an_owner_that_is_away_is_named_but_not_waited_for(town):
    office = Office(town)
    office.away = {0}
    for number in (0, 1):
        for user in (0, 1):
            town.block(user, number)
    town.conduct(office)
    office.away = set()
    town.conduct(office)
    first, second = town.store.rounds()
    assert (first.silent, first.updated) == (("alba",), ("bora",))
    assert first.seconds < 1.0
    assert (second.silent, second.updated) == ((), ("alba",))


def test_rounds_wait_for_owners_as_long_as_they_are_told_to(town):
    office = Office(town)
    office.away = {0, 1, 2}

    class Late(Office):
        def wait(self, seconds):
            super().wait(seconds)
            gone = {0: 5.0, 1: 11.0, 2: 30.0}
            self.away = {n for n, when in gone.items() if self.time < when}

    office = Late(town)
    office.away = {0, 1, 2}
    town.conduct(office, 1, owners=2)
    assert 11.0 <= office.time < 13.0
    assert town.store.rounds()[-1].silent == ("corso",)
    town.conduct(office, 1, patience_seconds=60.0)
    assert 30.0 <= office.time < 33.0
    assert town.store.rounds()[-1].silent == ()


def test_a_round_begins_every_so_often_and_at_once_for_a_flush(town):
    begun, pauses = [], []

    class Timed(Office):
        def wait(self, seconds):
            super().wait(seconds)
            pauses.append(read_status(town.store.folder)["state"])
            if town.store.round == 2 and self.time > 70:
                town.store.request_flush()
            if self.time > 200:
                raise Crash

    def fault(number, kind, asked):
        if number == 0:
            begun.append(office.time)

    office = Timed(town, fault)
    conductor = SiloConductor(town.store, office, every_seconds=60.0)
    with pytest.raises(Crash):
        conductor.run()
    assert begun[0] < 1 <= 60 <= begun[1] < 62
    assert 70 < begun[2] < 73
    assert 130 <= begun[3] < 134
    assert [r.flush for r in town.store.rounds()[:4]] == [False, False, True, False]
    assert set(pauses) == {"pausing"}


@pytest.mark.parametrize(
    "wrong",
    [{"deadline_seconds": 0.0}, {"every_seconds": -1.0}, {"patience_seconds": float("nan")}],
)
def test_times_are_checked(town, wrong):
    with pytest.raises(ConfigError, match="seconds"):
        SiloConductor(town.store, Office(town), **wrong)


# --- refusals ------------------------------------------------------------------------------------


def inside(**fields):
    """What becomes of the request or the gradients in an answer."""

    def change(answer):
        name = "request" if "request" in answer else "gradients"
        read, write = CODECS[name]
        return {name: write(replace(read(answer[name]), **fields))}

    return change


CODECS = {
    "request": (decode_row_request, encode_row_request),
    "gradients": (decode_gradients, encode_gradients),
}


def floats(value, width=4):
    return np.full((2, width), value, np.float32)


def numbers(*values):
    return np.array(values, np.int64)


def of_owner(number):
    """Another owner's answer, through and through."""
    return lambda answer: {**inside(owner=number)(answer), "owner": number}


WRONG = {
    "unknown_owner": [("query", of_owner(0)), ("train", of_owner(7))],
    "stale": [("query", {"round": 9}), ("train", {"round": 9}), ("train", inside(version=5))],
    "foreign_item": [("query", inside(items=numbers(1, 5)))],
    "unknown_user": [("query", inside(users=numbers(0, 88)))],
    "unknown_item": [("query", {"items": numbers(1, 4, 6).astype("<u4").tobytes()})],
    "not_asked": [
        ("train", inside(users=numbers(0, 2))),
        ("train", inside(items=numbers(1, 2))),
    ],
    "not_finite": [
        ("train", inside(user_rows=floats(np.nan))),
        ("train", inside(item_rows=floats(np.inf))),
        ("train", inside(item_rows=floats(-3e38), user_rows=floats(3e38))),
    ],
    "malformed": [
        ("query", {"items": b"abc"}),
        ("query", inside(items=numbers(4, 1))),
        ("query", inside(items=numbers())),
        ("query", inside(owner=0)),
        ("query", {"owner": 0}),
        ("train", inside(user_rows=floats(0.0, 2), item_rows=floats(0.0, 2))),
        ("train", inside(user_rows=floats(0.0, 3))),
        ("train", inside(users=numbers(1, 0))),
        ("train", {"gradients": True}),
        ("train", {"gradients": b"abc"}),
        ("train", {"owner": 7}),
        ("train", {"owner": "bora"}),
        ("train", {"owner": -1}),
    ],
    "version": [("query", {"protocol": 1}), ("train", {"protocol": None})],
    "owner_problem": [("query", {"problem": "x"}), ("train", {"problem": "disk\x1b full"})],
}


@pytest.mark.parametrize(
    ("reason", "kind", "change"),
    [(reason, *case) for reason, cases in WRONG.items() for case in cases],
)
def test_what_is_off_is_refused_whole_and_counted_and_the_others_go_on(town, reason, kind, change):
    def fault(number, said, asked):
        if (number, said, asked.round) == (1, kind, 0):
            changed = change if callable(change) else lambda answer: change
            return lambda answer: {**answer, **changed(answer)}
        return None

    sim = Simulated()
    for number in (0, 1):
        for user in (0, 1):
            town.block(user, number)
    before = town.store.load()
    if change is WRONG["not_finite"][2][1]:
        town.store.settings = replace(CONFIG, learning_rate=2.0)  # so that it leaves the range
    town.conduct(Office(town, fault))
    (record,) = town.store.rounds()
    assert (record.updated, record.refused, record.silent) == (("alba",), ("bora",), ())
    assert town.store.refused() == {reason: 1}
    assert record.seconds < 1.0
    assert np.isfinite(town.model().items).all()
    assert town.store.counted(1) == -1
    if reason == "owner_problem":
        said = {"bora": change["problem"].replace("\x1b", "?")}
        assert read_status(town.store.folder)["problems"] == said
    town.conduct(Office(town))
    assert town.store.rounds()[1].updated == ("bora",), "what was refused waits at the owner"
    assert town.store.load().version == before.version + 2
    assert [o.items for o in town.store.owners()] == [tuple(h) for h in HOLDINGS.values()]
    assert read_status(town.store.folder)["problems"] == {}
    assert sim.orchestrator.model.items.shape == town.model().items.shape


def test_content_that_is_none_of_ours_is_refused(town):
    town.conduct(Office(town, lambda number, kind, asked: lambda answer: {}))
    assert town.store.refused() == {"version": 3}
    assert town.store.rounds()[0].refused == tuple(HOLDINGS)


def test_a_node_whose_key_was_not_admitted_is_not_spoken_to(town):
    office = Office(town)
    office.strangers = [OnlineNode(777, "0" * 64, "a")]
    town.conduct(office)
    assert {number for _, number, _ in office.sent} == {0, 1, 2}
    assert read_status(town.store.folder)["not_admitted"] == 1


def test_an_owner_of_another_federation_says_so(town):
    town.owners[1].federation = "elsewhere"
    town.conduct(Office(town))
    assert "is part of the federation elsewhere" in str(
        read_status(town.store.folder)["problems"]["bora"]
    )


# --- coming and going ----------------------------------------------------------------------------


def test_an_owner_joins_and_another_one_leaves_in_the_middle(town):
    office = Office(town)
    for user in (0, 1):
        town.block(user, 0)
    town.conduct(office)
    before = town.model()
    with OrchestratorStore.open(town.store.folder) as operator:
        dora = town.admit("dora", [0, 5])
        operator.remove_owner(0)
    for user in (0, 1):
        town.block(user, 0, time=3)
        town.block(user, dora, (0, 5))
    town.conduct(office)
    records = town.store.rounds()
    assert records[1].asked == ("bora", "corso", "dora")
    assert records[1].updated == ("dora",)
    after = town.model()
    np.testing.assert_array_equal(after.items[1:5], before.items[1:5])
    assert (after.items[[0, 5]] != before.items[[0, 5]]).all()


def test_an_owner_that_is_removed_in_mid_round_does_not_count(town):
    def fault(number, kind, asked):
        if (number, kind, asked.round) == (1, "train", 0):
            with OrchestratorStore.open(town.store.folder) as operator:
                operator.remove_owner(1)

    for number in (0, 1):
        for user in (0, 1):
            town.block(user, number)
    town.conduct(Office(town, fault), 2)
    first, second = town.store.rounds()
    assert (first.updated, first.refused) == (("alba",), ("bora",))
    assert town.store.refused() == {"unknown_owner": 1}
    assert second.asked == ("alba", "corso")


def test_items_that_owners_bring_and_withdraw_are_taken_in_with_the_same_round(town):
    office, version = Office(town), town.store.directory_version
    town.conduct(office)
    assert town.store.directory_version == version
    town.owners[0].add_items([5])
    town.owners[2].withdraw_items([5])
    town.owners[1].withdraw_items([2])
    for user in (0, 1):
        town.block(user, 0, (0, 5))
    town.conduct(office)
    assert [o.items for o in town.store.owners()] == [(0, 1, 4, 5), (1, 3, 4), (3, 4)]
    assert town.store.directory_version > version
    assert town.store.rounds()[-1].updated == ("alba",)
    assert 2 not in town.store.recommend(0, 9)[0]
    assert not town.store.refused()


def test_the_catalogue_grows_while_the_conductor_runs(town):
    def fault(number, kind, asked):
        if (number, kind, asked.round) == (0, "query", 1):
            with OrchestratorStore.open(town.store.folder) as operator:
                operator.set_catalogue((*operator.catalogue, "item 6"))
            town.owners[0].add_items([6])
            for user in (0, 1):
                town.block(user, 0, (0, 6))

    town.conduct(Office(town, fault), 2)
    assert not town.store.refused()
    assert town.store.rounds()[1].updated == ("alba",)
    assert (town.model().items[6] != first_rows("items", [6], 4, ROOT)[0]).all()


def test_a_user_who_joins_in_mid_round_is_known_at_once(town):
    def fault(number, kind, asked):
        if (number, kind) == (0, "query"):
            with OrchestratorStore.open(town.store.folder) as front:
                town.keys.append(Identity())
                assert front.add_users([town.keys[-1].public]) == [5]
            town.block(5, 0)
            town.block(0, 0)

    town.conduct(Office(town, fault))
    assert town.store.rounds()[0].updated == ("alba",)
    assert (town.model().users[5] != first_rows("users", [5], 4, ROOT)[0]).all()


@pytest.mark.parametrize("when", ["between", "query", "train"])
def test_a_user_who_leaves_is_forgotten_by_all_and_her_part_is_not_folded(town, when):
    """In whichever moment of a round she leaves."""

    def leave():
        with OrchestratorStore.open(town.store.folder) as front:
            front.leave_user(1)

    def fault(number, kind, asked):
        if (number, kind, asked.round) == (1, when, 0):
            return lambda answer: leave() or answer
        return None

    for user in (0, 1, 2):
        town.block(user, 1)
    row = town.model().users[1].tobytes()
    if when == "between":
        leave()
    town.conduct(Office(town, fault), 2)
    first, second = town.store.rounds()
    if when == "between":
        assert (first.updated, second.updated) == (("bora",), ())
    else:
        assert (first.refused, second.updated) == (("bora",), ("bora",))
        assert town.store.refused() == {"departed_user": 1}
    sim = Simulated()
    for user in (0, 2):
        for item, flag in ((1, False), (4, True)):
            (message,) = (m for m in sim.users[user].interact(item, flag, 0) if m.owner == 1)
            sim.owners[1].receive(message)
    sim.round(True, {})
    sim.orchestrator.leave_user(1)
    assert same(town.model(), sim.orchestrator.model)
    assert town.owners[1].counts()["users"] == 2
    assert not any(row in path.read_bytes() for path in town.store.folder.iterdir())
    with pytest.raises(DataError, match="joined"):
        town.store.recommend(1, 2)


@pytest.mark.parametrize("state", ["pausing", "finished"])
def test_a_user_who_leaves_between_rounds_leaves_the_conductors_memory_too(town, state):
    """Also where the next round is far away."""
    left, known = [], []

    class Waiting(Office):
        def wait(self, seconds):
            super().wait(seconds)
            if read_status(town.store.folder)["state"] != state:
                return
            if left:
                known.append([user for user, _ in conductor.orchestrator.known_rows("users")])
                if len(known) == 2:
                    raise Crash
                return
            left.append(1)
            with OrchestratorStore.open(town.store.folder) as front:
                front.leave_user(1)

    rounds = 5 if state == "pausing" else 1
    conductor = SiloConductor(
        town.store, Waiting(town), target=rounds, hold=True, every_seconds=3600.0
    )
    with pytest.raises(Crash):
        conductor.run()
    assert known[-1] == [0, 2, 3, 4]


def test_nothing_is_folded_where_everybody_concerned_has_left(town):
    def fault(number, kind, asked):
        if (number, kind) == (1, "train"):
            for user in (0, 1):
                town.owners[1].forget(user)

    for user in (0, 1):
        town.block(user, 1)
    before = town.model()
    town.conduct(Office(town, fault), 2)
    first, second = town.store.rounds()
    assert (first.updated, first.silent, first.refused) == ((), (), ())
    assert (second.updated, second.version) == ((), 0)
    assert same(town.model(), before)


def test_nothing_private_is_shown(town):
    query = QueryRows("town", 3, 2, False, np.array([987654]))
    rows = town.store.load().answer(RowRequest(1, np.array([0]), np.array([1])))
    shown = [query, TaskRows("town", 3, rows), OwnerNode(town.owners[1])]
    assert "987" not in repr(shown)
    assert str(rows.user_rows[0, 0])[:6] not in repr(shown)
