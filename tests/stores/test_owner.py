"""A data owner with its state on disk: the same as in memory, whatever is killed or forged."""

import contextlib
import copy
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drift_world import DRIFT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sottovoce.algorithms.drift.blocks import EndedBlock, Events
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, KeyTrouble, MessageError, StoreError
from sottovoce.rng import Streams
from sottovoce.stores import owner as owner_door
from sottovoce.stores.owner import DataOwner, Taken, UnknownSession
from sottovoce.stores.owner_store import OwnerFacts, OwnerStore
from sottovoce.wire.interactions import Identity, begin
from sottovoce.wire.passes import Issuer

pytestmark = pytest.mark.usefixtures("quick_stores")

ISSUER, KEYS = Issuer("spring"), Identity()
CONFIG = DRIFTConfig(theta=2, learning_rate=0.1)
ITEMS = range(8)
RNG = Streams.from_seed(3)


def made(path, items=ITEMS, number=0, config=CONFIG, **other):
    facts = {"name": "films", "federation": "spring", "issuer": ISSUER.public, **other}
    return DataOwner.create(
        path, number=number, items=items, settings=config, identity=KEYS, **facts
    )


class Person:
    """A user with her keys, her pass and her own count of what she said to one owner."""

    def __init__(self, number, owner=0):
        self.number, self.owner, self.keys = number, owner, Identity()
        self.given = ISSUER.admit(number, self.keys.public)
        self.sender = self.session = None
        self.said = 0

    def seal(self, kind, item=0, time=0, sequence=None):
        if sequence is None:
            sequence, self.said = self.said, self.said + 1
        return self.sender.seal(sequence, kind, item, time)

    def knock(self, at, keys=None):
        """An offer, and her half of the session; with other keys, somebody who has her pass."""
        offer, public = at.offer(self.given)
        self.sender, hello = begin(self.number, keys or self.keys, self.owner, KEYS.public, public)
        return offer, hello

    def enter(self, at, kind="end", *args):
        """A new session, and its first message, which is taken."""
        offer, hello = self.knock(at)
        first = self.seal(kind, *args)
        self.session = at.accept(offer, hello, first)
        return at.take(self.session, [first])

    def say(self, at, *messages):
        return at.take(self.session, [self.seal(*message) for message in messages])


@pytest.fixture
def owner(tmp_path):
    owner = made(tmp_path / "o")
    yield owner
    owner.close()


def reopened(owner, path):
    owner.close()
    return DataOwner.open(path, KEYS)


def by_user(saved):
    found = defaultdict(list)
    for user, block in saved:
        found[user].append((block.negatives, block.positives))
    return dict(found)


def state(owner):
    """All that `drift.Owner` keeps; the blocks that wait are in order user by user."""
    return (
        owner.items,
        {user: owner.stream(user) for user in owner.users},
        by_user(owner.saved),
        by_user(owner.asked),
        len(owner.saved),
    )


def held(owner):
    memory = owner._known()
    return state(memory.owner), dict(memory.sequences), memory.asked_round


def on_disk(owner):
    """As a process would find it that starts now, after this one was killed."""
    place = Path(tempfile.mkdtemp())
    try:
        copy_killed(owner, place / "o")
        with contextlib.closing(DataOwner.open(place / "o", KEYS)) as again:
            return held(again)
    finally:
        shutil.rmtree(place)


def copy_killed(owner, place):
    folder = owner._store.path.parent
    place.mkdir()
    for name in ("owner.db", "owner.db-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, place / name)


def rows_for(request, version=0, size=4):
    """Some rows, the same for the same numbers."""
    users, items = (np.sin(np.outer(n + 1, np.arange(1, size + 1))).astype(np.float32)
                    for n in (request.users, request.items))  # fmt: skip
    return Rows(version, request.users, request.items, users, items)


def as_bytes(gradients):
    return None if gradients is None else (
        gradients.owner, gradients.version, gradients.users.tobytes(), gradients.items.tobytes(),
        gradients.user_rows.tobytes(), gradients.item_rows.tobytes(),
    )  # fmt: skip


def as_lists(request):
    return None if request is None else (request.users.tolist(), request.items.tolist())


def fill(person, owner, first=0):
    """One finished block, of item 0 against item 1."""
    return person.say(
        owner, ("negative", 0, first), ("positive", 1, first + 1), ("negative", 0, first + 2)
    )


# --- the same as in memory ------------------------------------------------------------------------

kinds = st.sampled_from(["negative", "negative", "positive", "positive", "end"])
spoken = st.lists(
    st.tuples(kinds, st.integers(0, 9), st.integers(0, 6), st.booleans()), min_size=1, max_size=6
)


class Life(RuleBasedStateMachine):
    """Against a plain `drift.Owner`, which is told what should have been taken."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.place = self.folder / "0"
        self.owner = made(self.place)
        self.plain = Owner(0, ITEMS, CONFIG)
        self.people = [Person(n) for n in range(4)]
        self.last, self.clock = {}, {}
        self.round, self.counted, self.asked, self.flushed = 0, -1, -1, -1

    def teardown(self):
        self.owner.close()
        shutil.rmtree(self.folder)

    def expect(self, person, sequence, kind, item, time):
        """What a plain owner makes of a message that opens; the word for it."""
        user = person.number
        if sequence <= self.last.get(user, -1):
            return "repeated"
        self.plain.admit(user)
        self.last[user] = sequence
        if kind == "end":
            self.plain.end_stream(user)
            return ""
        if item not in self.plain.items:
            return "item"
        try:
            self.plain.receive(Interaction(0, user, item, kind == "positive", time))
        except MessageError:
            return "time"
        return ""

    def batch(self, person, messages):
        """Sealed messages of one session, and what should come of them."""
        if person.session is None:
            offer, hello = person.knock(self.owner)
            first = person.seal("end")
            person.session = self.owner.accept(offer, hello, first)
            sealed, words = [first], [self.expect(person, person.said - 1, "end", 0, 0)]
        else:
            sealed, words = [], []
        for kind, item, moment, fresh in messages:
            sequence = None if fresh or not person.said else person.said - 1
            sealed.append(person.seal(kind, item, moment, sequence))
            sequence = person.said - 1 if sequence is None else sequence
            words.append(self.expect(person, sequence, kind, item, moment))
        answer = Taken(
            self.last.get(person.number, -1),
            words.count(""),
            words.count("repeated"),
            tuple((k, word) for k, word in enumerate(words) if word not in ("", "repeated")),
        )
        return (person.session, sealed), answer

    @rule(who=st.lists(st.integers(0, 3), min_size=1, max_size=3), messages=spoken)
    def speak(self, who, messages):
        made_of = [self.batch(self.people[k], messages) for k in who]
        assert self.owner.take_many([b for b, _ in made_of]) == [answer for _, answer in made_of]
        sealed = made_of[0][0]
        if sealed[0] == self.people[who[0]].session:
            again = self.owner.take(*sealed)
            assert (again.taken, again.refused) == (0, ()), "the answer was lost; sent again"
            assert again.repeated == len(sealed[1])

    @rule(who=st.integers(0, 3), messages=spoken)
    def speak_while_the_disk_fails(self, who, messages):
        (session, sealed), answer = self.batch(self.people[who], messages)
        before = on_disk(self.owner)
        with failing(self.owner), pytest.raises(StoreError, match="still there"):
            self.owner.take(session, sealed)
        assert held(self.owner) == before == on_disk(self.owner)
        assert self.owner.take(session, sealed) == answer

    @rule(who=st.integers(0, 3), bit=st.integers(0, 8 * 53 - 1))
    def forge(self, who, bit):
        person = self.people[who]
        if person.session is None:
            return
        sealed = bytearray(person.seal("positive", 0, 99, sequence=1 << 40))
        sealed[bit // 8] ^= 1 << bit % 8
        answer = self.owner.take(person.session, [bytes(sealed)])
        assert answer.taken == 0
        assert answer.refused in (((0, "tag"),), ())

    @rule(who=st.integers(0, 3), messages=spoken)
    def leave(self, who, messages):
        """She speaks, leaves and speaks on, while somebody else speaks before and after her."""
        person, other = self.people[who], self.people[(who + 1) % 4]
        before, answer = self.batch(other, messages)
        (session, sealed), hers = self.batch(person, messages)
        leaves = [person.seal("leave"), person.seal("positive", 0, 99)]
        after, later = self.batch(other, messages)
        taken = self.owner.take_many([before, (session, sealed + leaves), after])
        assert taken[0] == answer
        assert taken[1] == Taken(
            person.said - 2,
            hers.taken + 1,
            hers.repeated,
            (*hers.refused, (len(sealed) + 1, "left")),
        )
        assert taken[2] == later
        self.gone(who)

    @rule(who=st.integers(0, 3))
    def forget(self, who):
        self.owner.forget(who)
        self.gone(who)

    def gone(self, user):
        self.plain.forget(user)
        self.last.pop(user, None)
        self.people[user] = Person(user)

    @rule(items=st.sets(st.integers(0, 7), max_size=3), withdrawn=st.booleans())
    def change_items(self, items, withdrawn):
        if withdrawn:
            items = items & self.plain.items
            self.owner.withdraw_items(items)
            self.plain.withdraw_items(items)
        else:
            self.owner.add_items(items)
            self.plain.add_items(items)

    def ask(self, flush, departed=()):
        if self.asked != self.round or (flush and self.flushed != self.round):
            if self.asked >= 0:
                self.plain.settle(self.asked == self.counted)
                self.asked = -1
            if flush and self.flushed != self.round:
                self.flushed = self.round
                for user in self.plain.users:
                    self.plain.end_stream(user)
            if self.plain.due or (flush and self.plain.saved):
                self.plain.request()
                self.asked = self.round
        request = self.owner.request(self.round, self.counted, flush=flush, departed=departed)
        wanted = self.plain.request_again() if self.asked == self.round else None
        assert as_lists(request) == as_lists(wanted)
        return request

    @rule(
        flush=st.booleans(), counts=st.booleans(), departed=st.sets(st.integers(0, 3), max_size=1)
    )
    def go_round(self, flush, counts, departed):
        for user in departed:
            self.gone(user)
        request = self.ask(flush, departed)
        if request is None and self.asked == self.round:  # everybody concerned has left since
            assert self.owner.gradients(self.round, rows_for(Blank)) is None
        elif request is None:
            with pytest.raises(MessageError, match="has not asked"):
                self.owner.gradients(self.round, rows_for(Blank))
        else:
            rows = rows_for(request, self.round)
            sent = as_bytes(self.owner.gradients(self.round, rows))
            assert sent == as_bytes(self.plain.gradients(rows))
            self.crash()
            assert sent == as_bytes(self.owner.gradients(self.round, rows))
            assert as_lists(self.ask(False)) == as_lists(request)
            for other in (self.round - 1, self.round + 1, -1):
                with pytest.raises(MessageError, match="has not asked"):
                    self.owner.gradients(other, rows)
            if counts:
                self.counted = self.round
        self.round += 1

    @rule(flush=st.booleans())
    def begin_a_round_that_is_asked_again(self, flush):
        self.ask(flush)

    @precondition(lambda self: self.asked != self.round)
    @rule(flush=st.booleans())
    def ask_while_the_disk_fails(self, flush):
        before = on_disk(self.owner)
        with failing(self.owner), pytest.raises(StoreError):
            self.owner.request(self.round, self.counted, flush=flush)
        assert held(self.owner) == before
        self.ask(flush)

    @rule()
    def crash(self):
        """Go on with the files as a killed process would have left them."""
        place = self.folder / str(int(self.place.name) + 1)
        copy_killed(self.owner, place)
        self.owner.close()
        self.owner, self.place = DataOwner.open(place, KEYS), place
        for person in self.people:
            if person.session is not None:
                with pytest.raises(UnknownSession):
                    self.owner.take(person.session, [])
            person.session = None

    @rule()
    def restart(self):
        self.owner = reopened(self.owner, self.place)
        for person in self.people:
            person.session = None

    @invariant()
    def it_is_what_the_plain_owner_is(self):
        found = held(self.owner)
        assert found == (state(self.plain), self.last, self.asked)
        counts = self.owner.counts()
        assert counts["waiting"] == len(self.plain.saved)
        assert counts["asked"] == len(self.plain.asked)
        assert counts["users"] == len(self.plain.users)


class Blank:
    users = items = np.zeros(0, dtype=np.int64)


@contextlib.contextmanager
def failing(owner):
    """The disk cannot commit."""

    def fail():
        raise sqlite3.OperationalError("disk I/O error")

    owner._store._commit = fail
    try:
        yield
    finally:
        del owner._store._commit


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    window=st.sampled_from([7, 20]),
    theta=st.integers(1, 4),
    negatives=st.sampled_from(["touched", "untouched"]),
)
def test_rounds_with_crashes_give_the_model_of_the_simulation(seed, window, theta, negatives):
    """Owners and the orchestrator are killed at any point of a round, which is then made again."""
    draw = np.random.default_rng(seed)
    config = DRIFTConfig(theta=theta, learning_rate=0.3, window=window, negatives=negatives)
    train = Interactions.from_pairs(
        draw.integers(0, 4, 60), draw.integers(0, 8, 60), n_users=4, n_items=8,
        timestamps=draw.integers(0, 60, 60), ratings=draw.integers(1, 6, 60),
    )  # fmt: skip
    events = Events.of(train, config.positive_from, "time")
    table = OwnerTable()
    table.add(0, range(6))
    table.add(1, range(3, 8))
    (expected,) = DRIFT(config).fit_steps(train, table, RNG, [1])

    center, counted = Orchestrator(config, RNG), {0: -1, 1: -1}
    folder = Path(tempfile.mkdtemp())
    owners = {
        k: made(folder / str(k), table.items(k), k, config, draws=of_owner(RNG, k).root)
        for k in (0, 1)
    }
    people = {(u, k): Person(u, k) for u in range(4) for k in (0, 1)}
    for k in (0, 1):
        center.add_items(k, table.items(k))
    for u in range(4):
        center.join_user(u)

    def perhaps_crash(k):
        if draw.random() < 0.3:
            owners[k] = reopened(owners[k], folder / str(k))
            for u in range(4):
                people[u, k].session = None

    def round_(number, flush):
        asking = {}
        for k in (0, 1):
            perhaps_crash(k)
            asking[k] = owners[k].request(number, counted[k], flush=flush)
            perhaps_crash(k)
        rows = {k: center.answer(request) for k, request in asking.items() if request is not None}
        for k, sent in rows.items():
            gradients = owners[k].gradients(number, sent)
            perhaps_crash(k)
            center.fold(gradients)
            counted[k] = number

    number = 0
    for at in range(len(events)):
        user, item = int(events.user[at]), int(events.item[at])
        kind = "positive" if events.positive[at] else "negative"
        for k in table.owners(item):
            person = people[user, k]
            message = (kind, item, int(events.time[at]))
            if person.session is None:
                person.enter(owners[k], *message)
            else:
                person.say(owners[k], message)
            perhaps_crash(k)
        last = at + 1 == len(events)
        if (at + 1) % window == 0 or last:
            checkpoint = copy.deepcopy((center, counted))
            while draw.random() < 0.4:
                round_(number, last)
                center, counted = copy.deepcopy(checkpoint)
            round_(number, last)
            number += 1
    for owner in owners.values():
        owner.close()
    shutil.rmtree(folder)
    np.testing.assert_array_equal(center.model.users, expected.users)
    np.testing.assert_array_equal(center.model.items, expected.items)


# --- killed, full, in use -------------------------------------------------------------------------


def take_for_ever(path, people, out):
    """What is said is known from its number: first `end`, then interactions."""
    owner = DataOwner.open(path, KEYS)
    for person in people:
        person.said = person.enter(owner).sequence + 1
    while True:
        for person in people:
            numbers = range(person.said, person.said + 5)
            batch = [person.seal(*said(n)) for n in numbers]
            sequence = owner.take(person.session, batch).sequence
            os.write(out, struct.pack("<II", person.number, sequence))


def said(n):
    return ("positive" if n % 3 else "negative", n % 8, n)


def test_a_kill_loses_no_acknowledged_interaction_and_doubles_none(tmp_path):
    made(tmp_path / "o").close()
    acknowledged, rng = {0: -1, 1: -1}, np.random.default_rng(2)
    people = [Person(n) for n in range(2)]
    for _ in range(10):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                take_for_ever(tmp_path / "o", people, writing)
            os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            first = pipe.read(16)  # both have been answered
            time.sleep(0.1 * rng.random())
            os.kill(child, signal.SIGKILL)
            told = first + pipe.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for user, sequence in struct.iter_unpack("<II", told):
            assert sequence > acknowledged[user]
            acknowledged[user] = sequence
        with contextlib.closing(DataOwner.open(tmp_path / "o", KEYS)) as owner:
            memory, plain = owner._known(), Owner(0, ITEMS, CONFIG)
            for user, last in memory.sequences.items():
                assert acknowledged[user] <= last <= acknowledged[user] + 5
                plain.admit(user)
                for n in range(1, last + 1):
                    kind, item, moment = said(n)
                    plain.receive(Interaction(0, user, item, kind == "positive", moment))
            assert state(memory.owner) == state(plain)
            assert owner.counts()["taken"] == sum(n + 1 for n in memory.sequences.values())
    assert min(acknowledged.values()) >= 50


def test_a_full_disk_changes_nothing_and_the_same_messages_are_taken_later(owner):
    person = Person(1)
    person.enter(owner)
    pages = owner._store.pragma("page_count")
    owner._store.pragma("max_page_count", pages + 2)
    before, n = held(owner), 0
    sealed = [person.seal("negative", k % 8, n) for k in range(500)]

    def fill_up():
        nonlocal before, n, sealed
        while n < 100:
            assert owner.take(person.session, sealed).taken == 500
            before, n = held(owner), n + 1
            sealed = [person.seal("negative", k % 8, n) for k in range(500)]

    with pytest.raises(StoreError, match="no space left"):
        fill_up()
    assert held(owner) == before == on_disk(owner)
    assert owner.counts()["taken"] == 1 + 500 * n
    owner._store.pragma("max_page_count", 100000)
    assert owner.take(person.session, sealed).taken == 500
    assert owner.counts()["taken"] == 1 + 500 * (n + 1)
    assert held(owner) == on_disk(owner)


def test_an_owner_goes_on_when_it_could_not_even_read(owner, monkeypatch):
    person = Person(1)
    person.enter(owner)
    before = held(owner)
    sealed = [person.seal("negative", 1, 1)]

    def unreadable(self):
        raise StoreError("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(OwnerStore, "load", unreadable)
        with failing(owner), pytest.raises(StoreError):
            owner.take(person.session, sealed)
        with pytest.raises(StoreError, match="away"):
            owner.take(person.session, sealed)
    assert held(owner) == before
    assert owner.take(person.session, sealed).taken == 1


def test_one_process_at_a_time(tmp_path, owner):
    for refused in (lambda: DataOwner.open(tmp_path / "o", KEYS), lambda: made(tmp_path / "o")):
        with pytest.raises(StoreError, match="in use by another process"):
            refused()
    code = (
        "import sys; from pathlib import Path; from sottovoce.stores.owner_store import *\n"
        "try: OwnerStore.open(Path(sys.argv[1]))\nexcept StoreError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "o"], capture_output=True, text=True, check=True
    )
    assert "in use by another process" in done.stdout
    owner.close()
    owner.close()
    with pytest.raises(StoreError, match="already"):
        made(tmp_path / "o")
    with pytest.raises(StoreError, match="closed"):
        owner.counts()
    DataOwner.open(tmp_path / "o", KEYS).close()


def test_bad_folders_and_keys_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(StoreError, match="there is no data owner in"):
        DataOwner.open(tmp_path, KEYS)
    made(tmp_path / "o").close()
    with pytest.raises(KeyTrouble, match="not the one with which data owner films"):
        DataOwner.open(tmp_path / "o", Identity())
    again = DataOwner.open(tmp_path / "o", KEYS)
    facts = (again.number, again.name, again.federation, again.issuer, again.settings, again.items)
    assert facts == (0, "films", "spring", ISSUER.public, CONFIG, frozenset(ITEMS))
    again._store.write("UPDATE meta SET value = 99 WHERE name = 'schema'")
    again.close()
    with pytest.raises(StoreError, match="has format 99, and this release reads formats 3 and 5"):
        DataOwner.open(tmp_path / "o", KEYS)
    (tmp_path / "o" / "owner.db").write_bytes(b"a letter, which is no database" * 99)
    with pytest.raises(StoreError, match="cannot be used"):
        DataOwner.open(tmp_path / "o", KEYS)
    for wrong, error in (
        ({"number": -1}, DataError), ({"items": [-1]}, DataError),
        ({"items": [1 << 40]}, DataError), ({"issuer": b"short"}, KeyTrouble),
    ):  # fmt: skip
        with pytest.raises(error):
            made(tmp_path / "new", **wrong)
        assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="no data owner can be made"):
        made(tmp_path / "file")


def test_an_owner_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(StoreError, match="No space left"):
            made(tmp_path / "o")
    assert [p.name for p in (tmp_path / "o").iterdir()] == ["owner.lock"]
    owner = made(tmp_path / "o")
    Person(1).enter(owner)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "o").iterdir()}
    assert set(modes) >= {"owner.db", "owner.db-wal", "owner.lock"}
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "o").stat().st_mode & 0o077 == 0
    owner.close()


# --- messages -------------------------------------------------------------------------------------


def test_several_sessions_go_to_the_disk_together(owner):
    people = [Person(n) for n in range(3)]
    for person in people[:2]:
        person.enter(owner)
    commits = []
    owner._store._commit = lambda: (commits.append(1), owner._store.write("COMMIT"))
    batches = [(p.session, [p.seal("negative", 1, 1)]) for p in people[:2]]
    first, unknown, second = owner.take_many([batches[0], (bytes(16), []), batches[1]])
    assert (first.taken, second.taken, len(commits)) == (1, 1, 1)
    assert isinstance(unknown, UnknownSession)


def test_threads_share_an_owner(owner):
    people = [Person(n) for n in range(6)]
    plain = Owner(0, ITEMS, CONFIG)
    for person in people:
        plain.admit(person.number)
    errors, asked = [], []

    def speak(person):
        try:
            person.enter(owner)
            for n in range(30):
                person.say(owner, ("positive" if n % 3 else "negative", n % 8, n))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=speak, args=(p,)) for p in people]
    for thread in threads:
        thread.start()
    for round in range(20):
        asked.append(owner.request(round, -1, flush=False))
    for thread in threads:
        thread.join()
    assert not errors
    owner.request(20, -1, flush=True)
    for person in people:
        for n in range(30):
            plain.receive(Interaction(0, person.number, n % 8, n % 3 > 0, n))
        plain.end_stream(person.number)
    plain.request()
    assert state(owner._known().owner) == state(plain)
    assert held(owner) == on_disk(owner)


def bytes_written():
    """What this process has handed to the system so far."""
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])


def test_ten_thousand_interactions_take_little_writing_and_space(owner):
    """Also of a user who has but negatives, whose open block grows all the while."""
    person, others = Person(0), [Person(n) for n in range(1, 50)]
    for p in (person, *others):
        p.enter(owner)
    batches = [[(p.session, [p.seal("negative" if n % 4 else "positive", n % 8, n)])
                for p in others] for n in range(100)]  # fmt: skip
    long = [[person.seal("negative", k % 8, n) for k in range(50)] for n in range(100)]
    for batch in batches:
        owner.take_many(batch)
    begun = bytes_written()
    for sealed in long[:50]:
        assert owner.take(person.session, sealed).taken == 50
    half = bytes_written()
    for sealed in long[50:]:
        assert owner.take(person.session, sealed).taken == 50
    first, second = half - begun, bytes_written() - half
    assert second < 2 * first, "what there is already is not written again"
    written = sum(p.stat().st_size for p in owner._store.path.parent.iterdir())
    assert written < 20e6
    assert held(owner) == on_disk(owner)


# --- sessions -------------------------------------------------------------------------------------


def test_offers_and_sessions_are_bounded_and_the_oldest_goes(owner, monkeypatch):
    monkeypatch.setattr(owner_door, "MOST_OFFERS", 6)
    monkeypatch.setattr(owner_door, "MOST_OFFERS_EACH", 3)
    monkeypatch.setattr(owner_door, "MOST_SESSIONS", 4)
    early, flood = Person(1), Person(2)
    kept = early.knock(owner)
    offers = [flood.knock(owner) for _ in range(20)]
    door = owner._door
    assert (len(door._offers), len(door._offers_of[2])) == (4, 3)
    with pytest.raises(UnknownSession):
        owner.accept(*offers[-4], bytes(53))
    first = early.seal("end")
    early.session = owner.accept(*kept, first)
    for n in range(10, 20):
        Person(n).knock(owner)
    assert len(door._offers) == 6 == sum(map(len, door._offers_of.values()))
    people = [Person(n) for n in range(30, 37)]
    for person in people:
        person.enter(owner)
        if person is not people[-1]:
            owner.take(early.session, [])  # who speaks is not the oldest
    assert owner.counts()["sessions"] == 4
    assert len(door._session_of) == 4
    owner.take(early.session, [first])
    with pytest.raises(UnknownSession):
        owner.take(people[0].session, [])


# --- rounds ---------------------------------------------------------------------------------------


def ready(owner, *numbers):
    people = [Person(n) for n in numbers]
    for person in people:
        person.enter(owner)
        fill(person, owner)
    return people


def test_a_count_of_a_round_in_which_it_was_silent_changes_nothing(owner):
    ready(owner, 1, 2)
    owner.request(4, 3, flush=False)
    owner.request(9, 4, flush=False)
    assert owner.counts()["asked"] == 0
    for round, counted in ((3, 3), (-1, -1), (5, -2), (5, 8)):
        with pytest.raises(MessageError, match="must come after"):
            owner.request(round, counted, flush=False)


def test_a_late_copy_of_a_question_takes_nothing_from_anybody(tmp_path, owner):
    """Asked under the old number, new blocks would be taken for those that were counted in it."""
    (one, _) = ready(owner, 1, 2)
    assert owner.request(1, -1, flush=False) is not None
    assert owner.request(2, 1, flush=False) is None
    fill(one, owner, first=5)
    owner = reopened(owner, tmp_path / "o")
    with pytest.raises(MessageError, match="is over"):
        owner.request(1, -1, flush=True)
    assert owner.counts()["waiting"] == 1
    assert owner.request(3, 1, flush=True) is not None
    owner.close()


def test_rows_must_be_those_that_were_asked_for(owner):
    ready(owner, 1, 2)
    request = owner.request(3, -1, flush=False)
    rows = rows_for(request, 17)
    assert owner.gradients(3, rows).version == 17
    with pytest.raises(MessageError, match="lacks rows"):
        owner.gradients(3, replace(rows, users=np.array([1, 3])))
    with pytest.raises(MessageError, match="numbers in single precision"):
        owner.gradients(3, replace(rows, item_rows=rows.item_rows[:, :2]))
    with pytest.raises(MessageError, match="not finite"):
        owner.gradients(3, replace(rows, user_rows=rows.user_rows * np.float32(np.nan)))
    with pytest.raises(MessageError, match="has not asked for rows in round 2"):
        owner.gradients(2, rows)
    assert as_bytes(owner.gradients(3, rows)) == as_bytes(owner.gradients(3, rows))


def test_users_who_left_the_federation_are_forgotten_in_every_round(owner):
    one, two = ready(owner, 1, 2)
    pending = two.knock(owner)
    assert owner.request(0, -1, flush=False, departed=[2, 99]) is None
    assert owner.counts()["users"] == 1
    with pytest.raises(UnknownSession):
        owner.take(two.session, [])
    with pytest.raises(UnknownSession):
        owner.accept(*pending, two.seal("end"))
    two.enter(owner)
    fill(two, owner)
    assert as_lists(owner.request(1, -1, flush=True, departed=[2, 99])) == ([1], [0, 1])
    assert owner.counts()["users"] == 1
    assert one.say(owner, ("negative", 1, 9)).taken == 1


def test_blocks_that_come_later_are_not_those_that_were_asked_for(tmp_path, owner):
    """Everybody concerned leaves, and the owner starts again."""
    ready(owner, 1, 2)
    owner.request(0, -1, flush=False)
    for user in (1, 2):
        owner.forget(user)
    owner = reopened(owner, tmp_path / "o")
    ready(owner, 3)
    owner = reopened(owner, tmp_path / "o")
    counts = owner.counts()
    assert (counts["asked"], counts["waiting"]) == (0, 1)
    assert as_lists(owner.request(1, 0, flush=True)) == ([3], [0, 1])
    owner.close()


def test_an_owner_without_items_does_nothing(tmp_path):
    with contextlib.closing(made(tmp_path / "o", items=[])) as owner:
        person = Person(1)
        person.enter(owner)
        assert person.say(owner, ("positive", 0, 1)).refused == ((0, "item"),)
        assert owner.request(0, -1, flush=True) is None
        owner.add_items([0])
        assert person.say(owner, ("negative", 0, 1)).taken == 1
        with pytest.raises(DataError, match="does not hold"):
            owner.withdraw_items([0, 1])
        assert owner.items == {0}


# --- leaving --------------------------------------------------------------------------------------

RARE = (101_030_213, 101_030_217, 101_030_221)
PACKED = [struct.pack("<I", item) for item in RARE]


def traces(path):
    """How often her items stand in the files, as they are packed in blocks."""
    return sum(p.read_bytes().count(mark) for p in path.iterdir() for mark in PACKED)


def test_no_byte_of_a_user_who_leaves_remains(tmp_path):
    owner = made(tmp_path / "o", items=(*ITEMS, *RARE))
    her, other = Person(3), Person(1)
    for person in (her, other):
        person.enter(owner)
    fill(other, owner)
    for n in range(40):
        her.say(owner, ("negative", RARE[0], n), ("positive", RARE[1], n), ("positive", RARE[2], n))
        if n == 20:
            owner.request(0, -1, flush=False)
    assert traces(tmp_path / "o") > 100
    alone = made(tmp_path / "alone", items=(*ITEMS, *RARE))
    other_there = Person(1)
    other_there.enter(alone)
    fill(other_there, alone)
    alone.request(0, -1, flush=True)
    last = her.said
    answer = her.say(owner, ("leave",), ("positive", RARE[1], 99))
    assert answer == Taken(last, 1, 0, ((1, "left"),))
    assert traces(tmp_path / "o") == 0
    assert by_user(owner._known().owner.asked) == by_user(alone._known().owner.asked)
    assert held(owner) == on_disk(owner)
    assert owner.counts()["users"] == 1
    with pytest.raises(UnknownSession):
        owner.take(her.session, [])
    assert her.enter(owner, "negative", 1, 0).taken == 1, "she may come back, as somebody new"
    assert held(owner) == on_disk(owner)
    owner.close()
    alone.close()
    assert traces(tmp_path / "o") == 0


@pytest.mark.parametrize("seed", [3, 13, 23, 30])
def test_no_traces_are_left_by_pages_that_were_rearranged(tmp_path, seed):
    """SQLite overwrites what it deletes, but not the copies it makes when it moves rows about; with
    these seeds some are left by that alone."""
    draw = np.random.default_rng(seed)
    facts = OwnerFacts(0, "films", "spring", ISSUER.public, CONFIG, KEYS.public)
    store = OwnerStore.create(tmp_path / "o", facts, ITEMS)
    for _ in range(40):
        with store.transaction():
            for _ in range(draw.integers(1, 8)):
                hers = draw.random() < 0.15
                user = 25 if hers else int(draw.integers(0, 50))
                items = (RARE[0] if hers else 7,) * int(draw.choice([1, 2, 5, 30, 150, 300]))
                if draw.random() < 0.5:
                    store.add_blocks([(user, EndedBlock(items, items))])
                elif draw.random() < 0.6:
                    store.add_parts([(user, items, items)])
                else:
                    store.drop_parts([user])
    assert traces(tmp_path / "o") > 0
    with store.transaction():
        store.forget(25)
    store.erase_traces()
    assert traces(tmp_path / "o") == 0
    store.close()


def test_a_kill_before_the_traces_are_erased_is_made_good(tmp_path, monkeypatch):
    owner = made(tmp_path / "o", items=(*ITEMS, *RARE))
    her = Person(3)
    her.enter(owner, "negative", RARE[0], 1)
    with monkeypatch.context() as patched:
        patched.setattr(OwnerStore, "erase_traces", lambda self: None)
        her.say(owner, ("leave",))
    copy_killed(owner, tmp_path / "killed")
    assert traces(tmp_path / "killed") > 0
    again = DataOwner.open(tmp_path / "killed", KEYS)
    assert traces(tmp_path / "killed") == 0
    assert held(again) == held(owner)
    for each in (again, owner):
        each.close()


def test_who_is_told_nothing_may_say_so_again(owner, monkeypatch):
    """The traces could not be erased, so that the message was not acknowledged."""
    her, other = ready(owner, 3, 4)

    def full(self):
        raise StoreError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(OwnerStore, "erase_traces", full)
        batches = [(her.session, [her.seal("leave")]), (other.session, [other.seal("end")])]
        with pytest.raises(StoreError):
            owner.take_many(batches)
    gone, repeated = owner.take_many(batches)
    assert isinstance(gone, UnknownSession)
    assert (repeated.taken, repeated.repeated) == (0, 1)
    assert her.enter(owner, "leave").taken == 1
    assert owner.counts()["users"] == 1


def test_traces_that_could_not_be_erased_are_erased_before_the_next_round(tmp_path, monkeypatch):
    owner = made(tmp_path / "o", items=(*ITEMS, *RARE))
    her = Person(3)
    her.enter(owner, "negative", RARE[0], 1)

    def full(self):
        raise StoreError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(OwnerStore, "erase_traces", full)
        for _ in range(2):  # said as long as it lasts, and nothing is asked for
            with pytest.raises(StoreError, match="no space"):
                owner.request(0, -1, flush=True, departed=[3])
    assert owner.counts()["users"] == 0
    assert traces(tmp_path / "o") > 0
    owner.request(0, -1, flush=True, departed=[3])
    assert traces(tmp_path / "o") == 0
    owner.close()


def test_who_has_nothing_here_leaves_without_the_store_being_written_anew(owner, monkeypatch):
    """That takes time with the size of the store, and anybody who was let in could ask for it
    again and again."""

    def anew(self):
        raise AssertionError("written anew")

    monkeypatch.setattr(OwnerStore, "erase_traces", anew)
    for number in range(3):
        assert Person(number).enter(owner, "leave").taken == 1
    assert owner.counts()["sessions"] == 0


def test_nobody_else_gets_in_under_her_number_not_even_with_a_pass(owner, tmp_path):
    """An issuer that gives a number out twice, by malice or from an old copy of its store."""
    her, false, quick = Person(3), Person(3), Person(3)
    early = false.knock(owner)
    her.enter(owner, "negative", 1, 0)
    first = false.seal("leave")
    with pytest.raises(KeyTrouble, match="somebody else"):
        owner.accept(*early, first)
    again = reopened(owner, tmp_path / "o")
    with pytest.raises(KeyTrouble, match="somebody else"):
        again.offer(false.given)
    her.enter(again, "positive", 2, 1)
    # Where both came at once, the second one's session is none any more.
    again.forget(3)
    quick.session = again.accept(*(quick.knock(again)), taken := quick.seal("end"))
    first = her.knock(again)
    assert again.take(quick.session, [taken]).taken == 1
    with pytest.raises(KeyTrouble):
        again.accept(*first, her.seal("end"))
    again.forget(3)
    assert her.enter(again, "end").taken == 1, "she is not known any more"
    again.close()


def test_nothing_private_is_shown(owner, caplog):
    person = Person(987654)
    person.enter(owner, "negative", 1, 987655)
    person.say(owner, ("positive", 2, 987656))
    memory = owner._known()
    shown = [owner, owner._store, owner._door, memory, owner._store.load(), person.given,
             UnknownSession("x"), owner.counts()]  # fmt: skip
    text = " ".join(map(repr, shown)) + " ".join(map(str, shown)) + caplog.text
    assert "98765" not in text
    assert os.fspath(owner._store.path) not in text
    refusal = person.say(owner, ("positive", 987657, 987658))
    assert "98765" not in repr(refusal)
