"""A DRIFT user's store and door: what she permits leaves, once, and is on record."""

import contextlib
import itertools
import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.consent import Choice
from sottovoce.errors import (
    ConsentError,
    DataError,
    KeyTrouble,
    MessageError,
    StoreError,
    UsageError,
)
from sottovoce.parties.leaving import body_of
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.interactions import Identity, Offer
from sottovoce.wire.passes import PASS_BYTES, Issuer
from sottovoce.wire.silo_files import UserInvitation

CATALOGUE = tuple("abcdefgh")
ALPHA, BETA = 0, 1
HELD = {"alpha": (0, 1, 2, 3), "beta": (2, 3, 4, 5)}
"""c and d are both's; g and h are nobody's."""
ISSUER, ORCHESTRATOR = Issuer("films"), Identity()
KEYS = {name: Identity() for name in HELD}
EVERYBODY = Choice()


def directory(version=1, held=HELD, catalogue=CATALOGUE, issuer=ISSUER, config=None):
    entries = [
        OwnerEntry(n, name, f"https://{name}.example", KEYS[name].public, "", held[name])
        for n, name in enumerate(HELD)
        if name in held
    ]
    return Directory(
        "films", issuer.public, version, config or DRIFTConfig(), catalogue, tuple(entries)
    ).sign(issuer)


def invitation(**changes):
    table = {
        "federation": "films",
        "issuer": ISSUER.public,
        "url": "http://127.0.0.1:1",
        "ca": "",
        "token": b"t" * 32,
    }
    return UserInvitation(**(table | changes))


def hasty(store):
    """A store that does not wait for the disk; only a machine that fails would show it."""
    store.file.pragma("synchronous", "off")
    return store


def new_store(path, users=1, choice=EVERYBODY):
    store = hasty(UserStore.create(path, "films", ISSUER.public, "http://127.0.0.1:1", ""))
    people = [Identity() for _ in range(users)]
    passes = [(one, ISSUER.admit(n, one.public)) for n, one in enumerate(people)]
    store.add_users(passes, ORCHESTRATOR.public)
    store.keep_directory(directory())
    door = UserDoor(store)
    if choice is not None:
        with store.file.transaction():
            for user in range(users):
                door.choose(user, choice)
    return store, door


@pytest.fixture
def place(tmp_path):
    store, door = new_store(tmp_path / "store")
    with store:
        yield store, door


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A store of many users, of whom each example takes another one."""
    store, door = new_store(tmp_path_factory.mktemp("many") / "store", users=800)
    with store:
        yield store, door, itertools.count()


@dataclass
class Receipt:
    sequence: int
    repeated: int = 0
    refused: tuple = ()


class OwnerSide:
    """An owner as the door sees it: numbers in, receipts out."""

    def __init__(self):
        self.last, self.taken = -1, []

    def take(self, departure):
        repeated = 0
        for message in departure.messages:
            if message.sequence <= self.last:
                repeated += 1
            elif message.kind == "leave":
                self.last, self.taken = -1, []
            else:
                self.last = message.sequence
                self.taken.append((message.kind, message.item, message.time))
        return Receipt(self.last, repeated)


def deliver(door, user, owner, side, most=2000):
    while (departure := door.depart(user, owner, most, 16)) is not None:
        door.settle(departure, side.take(departure))


def states(store, user=0):
    return store.counts(user)


# --- the store -----------------------------------------------------------------------------------


def test_nothing_may_leave_a_new_store(tmp_path):
    with UserStore.join(tmp_path / "s", invitation()) as store:
        store.keep_directory(directory())
        door = UserDoor(store)
        assert not store.choice(0).takes_part
        said = door.interact(0, 0, True, 1)
        assert (said.messages, said.at_home) == (0, 1)
        assert door.pairs() == []
        assert store.ledger() == []
        assert store.seen(0) == {0}
        with pytest.raises(ConsentError, match="before you take part"):
            door.enrolling(0, bytes(100))
        with pytest.raises(ConsentError):
            door.asking(0, bytes(100))
        assert store.ledger() == []


def test_only_its_owner_can_read_the_files(tmp_path):
    store, door = new_store(tmp_path / "s")
    door.interact(0, 7, True, 1234567890123456789)
    for file in (tmp_path / "s").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    private = store.person(0).identity.private_bytes()
    store.close()
    for file in (tmp_path / "s").iterdir():
        content = file.read_bytes()
        assert private not in content
        assert b"films" not in content
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(tmp_path / "s/store.db").execute("SELECT * FROM users")


def test_secrets_are_in_no_repr(place):
    store, door = place
    door.interact(0, 0, True, 5)
    departure = door.depart(0, ALPHA, 10, 0)
    private = store.person(0).identity.private_bytes().hex()
    for thing in (store, door, store.person(0), departure, departure.messages[0]):
        assert "redacted" in repr(thing)
        assert private not in repr(thing)


def test_joining_twice_keeps_key_and_choice(tmp_path):
    with UserStore.join(tmp_path / "s", invitation()) as store:
        store.keep_directory(directory())
        UserDoor(store).choose(0, EVERYBODY)
        public = store.person(0).identity.public
    moved = invitation(url="http://127.0.0.1:2", token=b"u" * 32)
    with UserStore.join(tmp_path / "s", moved) as store:
        assert store.person(0).identity.public == public
        assert store.choice(0).takes_part
        assert (store.url, store.token) == ("http://127.0.0.1:2", b"u" * 32)
    with pytest.raises(UsageError, match="another federation"):
        UserStore.join(tmp_path / "s", invitation(federation="books"))


def test_the_pass_must_be_hers_and_the_federations(tmp_path):
    with UserStore.join(tmp_path / "s", invitation()) as store:
        public = store.person(0).identity.public
        with pytest.raises(MessageError, match="another key"):
            store.enrolled(0, ISSUER.admit(3, Identity().public), b"o" * 32)
        with pytest.raises(KeyTrouble):
            store.enrolled(0, Issuer("films").admit(3, public), b"o" * 32)
        assert store.person(0).given is None
        assert store.token
        store.enrolled(0, ISSUER.admit(3, public), b"o" * 32)
        assert store.person(0).given.user == 3
        assert store.token is None


def test_a_directory_is_never_replaced_by_an_older_or_a_forged_one(place):
    store, _ = place
    assert not store.keep_directory(directory(1))
    assert store.keep_directory(directory(5))
    for bad, error in (
        (directory(4), MessageError),
        (directory(5, held={"alpha": (0,)}), MessageError),
        (directory(9, issuer=Issuer("films")), KeyTrouble),
        (directory(9).replace(b"alpha.example", b"gamma.example"), KeyTrouble),
        (directory(9, catalogue=("x", *CATALOGUE[1:])), MessageError),
        (b"nonsense", MessageError),
    ):
        with pytest.raises(error):
            store.keep_directory(bad)
        assert store.world.directory.version == 5
        assert len(store.world.directory.owners) == 2
    assert store.keep_directory(directory(6, catalogue=(*CATALOGUE, "new")))


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("change", [{"name": "gamma"}, {"public": Identity().public}])
def test_a_data_owners_number_is_never_anothers_whatever_the_issuer_signs(place, change, between):
    """So an owner that she refuses cannot come back under another name, and nobody gets what is
    sealed for it by putting another key in its place."""
    store, _ = place
    if between:  # not even when it was gone for a while
        assert store.keep_directory(directory(2, held={"beta": HELD["beta"]}))
    before = store.world.directory
    shown = Directory.read(directory(3), "films", ISSUER.public)
    owners = (replace(shown.owners[0], **change), *shown.owners[1:])
    with pytest.raises(MessageError, match="another name or key for data owner 0"):
        store.keep_directory(replace(shown, owners=owners).sign(ISSUER))
    assert store.world.directory == before
    moved = (replace(shown.owners[0], url="https://new.example", items=(0,)), *shown.owners[1:])
    assert store.keep_directory(replace(shown, owners=moved).sign(ISSUER))


def test_a_file_of_a_device_is_no_users_store(tmp_path):
    from sottovoce.stores.device import CohortStore

    CohortStore.create(tmp_path / "device", [(0, "me")]).close()
    with pytest.raises(StoreError, match="in no federation of data owners"):
        UserStore.open(tmp_path / "device")
    with pytest.raises(StoreError, match="sottovoce device"):
        UserStore.open(tmp_path / "nothing")


def test_one_process_sends(tmp_path):
    store, _ = new_store(tmp_path / "s")
    store.close()
    with UserStore.open(tmp_path / "s", agent=True):
        with pytest.raises(StoreError, match="in use"):
            UserStore.open(tmp_path / "s", agent=True)
        with UserStore.open(tmp_path / "s") as other:  # she may still change her mind
            UserDoor(other).choose(0, Choice(takes_part=False))


def test_the_database_itself_forgets_nothing_that_left(place):
    store, door = place
    door.interact(0, 0, True, 1)
    door.depart(0, ALPHA, 10, 0)
    for sql in (
        "DELETE FROM contacts",
        "UPDATE contacts SET bytes = 0",
        "UPDATE contacts SET interactions = 0",
        "DELETE FROM messages",
        "UPDATE messages SET state = 'waiting'",
        "UPDATE messages SET sends = 0",
        "DELETE FROM consent",
        "UPDATE consent SET choice = ''",
        "UPDATE consent SET shown = 9",
        "UPDATE counters SET next = 0",
        "DELETE FROM counters",
        "UPDATE messages SET unanswered = -1",
        "DELETE FROM owners",
        "UPDATE owners SET name = 'x'",
    ):
        with pytest.raises(StoreError):
            store.file.write(sql)


# --- who is told what ----------------------------------------------------------------------------


def test_of_what_she_never_sends_nobody_is_told_and_nothing_waits(place):
    store, door = place
    for item in range(3):
        door.interact(0, item, True, item)
    # c waits for both, and has left for one of them.
    door.depart(0, BETA, 10, 0)
    hides = Choice(never_send=("c", "f", "no such item"))
    assert door.choose(0, hides) == 2
    assert states(store) == {ALPHA: {"waiting": 2, "dropped": 1}, BETA: {"given_up": 1}}
    assert door.interact(0, 2, False, 9).at_home == 1
    assert door.interact_many([(0, 5, True, 10), (0, 4, True, 11)]).messages == 1
    alpha, beta = OwnerSide(), OwnerSide()
    deliver(door, 0, ALPHA, alpha)
    deliver(door, 0, BETA, beta)
    assert [item for _, item, _ in alpha.taken] == [0, 1]
    assert [item for _, item, _ in beta.taken] == [4]
    assert store.seen(0) == {0, 1, 2, 4, 5}, "at home it counts"
    door.choose(0, EVERYBODY)
    assert door.interact(0, 5, True, 12).messages == 1


def test_what_waits_is_looked_at_once_more_when_it_leaves(place):
    """Another process has written the choice, and has not looked at the outbox."""
    store, door = place
    door.interact(0, 2, True, 1)
    store.record_choice(0, Choice(never_send=("c",)), looked=True)
    assert door.introduce(0, ALPHA) is None
    assert door.depart(0, ALPHA, 10, 0) is None
    assert store.ledger() == []


def test_a_changed_mind_holds_at_once_also_for_what_waits(place):
    store, door = place
    for time in range(3):
        door.interact(0, 2, True, time)
    assert door.choose(0, Choice(refused_owners=("beta",))) == 3
    assert states(store) == {ALPHA: {"waiting": 3}, BETA: {"dropped": 3}}
    assert door.choose(0, Choice(takes_part=False)) == 3
    assert door.pairs() == []
    assert door.depart(0, ALPHA, 10, 0) is None
    assert store.ledger() == []
    # Later agreement does not reach back.
    door.choose(0, EVERYBODY)
    assert door.depart(0, ALPHA, 10, 0) is None
    assert len(store.records(0)) == 4


def test_nothing_leaves_before_she_could_see_who_reads_what(tmp_path):
    """The orchestrator did not answer when she joined: there is nothing yet that she could agree
    to."""
    with hasty(UserStore.join(tmp_path / "one", invitation())) as one:
        door = UserDoor(one)
        with pytest.raises(ConsentError, match="who would read what is not known yet"):
            door.choose(0, EVERYBODY)
        assert not one.choice(0).takes_part
        door.choose(0, Choice(takes_part=False))
        one.record_choice(0, EVERYBODY, looked=True)  # however that came about
        one.keep_directory(directory())
        for leaving in (door.enrolling, door.asking):
            with pytest.raises(ConsentError, match="before you have seen who reads what"):
                leaving(0, bytes(100))
        assert one.ledger() == []
        door.choose(0, EVERYBODY)
        door.enrolling(0, bytes(100))
        assert [release.what for release in one.ledger()] == ["enrolment"]


@pytest.mark.parametrize("change", [{"release": "aggregated"}, {"min_users": 2}, {"theta": 1}])
def test_settings_that_change_who_reads_what_are_not_taken(place, change):
    store, _ = place
    kept = store.world.directory
    with pytest.raises(MessageError, match="changed the settings"):
        store.keep_directory(directory(7, config=DRIFTConfig(**change)))
    assert store.world.directory == kept
    assert store.keep_directory(directory(8))


def test_an_owner_that_comes_after_she_chose_is_told_nothing_until_she_chooses_again(tmp_path):
    with hasty(
        UserStore.create(tmp_path / "one", "films", ISSUER.public, "http://127.0.0.1:1", "")
    ) as one:
        person = Identity()
        one.add_users([(person, ISSUER.admit(0, person.public))], ORCHESTRATOR.public)
        one.keep_directory(directory(1, held={"alpha": HELD["alpha"]}))
        door = UserDoor(one)
        door.choose(0, EVERYBODY)
        assert one.unseen_owners(0) == ()
        one.keep_directory(directory(2))
        assert one.unseen_owners(0) == ("beta",)
        assert one.in_force(0).refused_owners == ("beta",)
        assert door.interact(0, 2, True, 1).messages == 1
        assert door.pairs() == [(0, ALPHA)]
        assert door.interact(0, 4, True, 2).at_home == 1
        door.leave(0, "alpha")  # says nothing about the new one
        assert one.unseen_owners(0) == ("beta",)
        door.choose(0, EVERYBODY)
        assert one.unseen_owners(0) == ()
        assert door.interact(0, 4, True, 3).messages == 1
        assert (0, BETA) in door.pairs()


def test_a_choice_by_another_process_is_read_just_before_leaving(place, tmp_path):
    store, door = place
    door.interact(0, 2, True, 1)
    given = door.introduce(0, BETA)
    assert len(given) == PASS_BYTES
    with UserStore.open(tmp_path / "store") as other:
        # Not even through the door: only the record, as a crash in the middle would leave it.
        other.record_choice(0, Choice(takes_part=False), looked=True)
    assert door.depart(0, BETA, 10, 0) is None
    assert states(store)[BETA] == {"dropped": 1}


def test_what_left_and_was_not_answered_is_given_up_when_she_refuses(place):
    store, door = place
    door.interact(0, 0, True, 1)
    departure = door.depart(0, ALPHA, 10, 0)
    door.choose(0, Choice(refused_owners=("alpha",)))
    assert states(store)[ALPHA] == {"given_up": 1}
    assert door.depart(0, ALPHA, 10, 0) is None
    door.settle(departure, Receipt(0))  # the answer comes after all
    assert states(store)[ALPHA] == {"arrived": 1}


def test_an_owner_or_item_that_is_gone_is_told_nothing(place):
    store, door = place
    for item in (0, 1, 4):
        door.interact(0, item, True, 1)
    store.keep_directory(directory(2, held={"alpha": (1, 2, 3)}))
    assert [m.item for m in door.depart(0, ALPHA, 10, 0).messages] == [1]
    assert door.introduce(0, BETA) is None
    assert store.reasons(0) == {ALPHA: {"item": 1}, BETA: {"owner": 1}}


def test_the_same_is_told_once_unless_said_again(place):
    _store, door = place
    assert door.interact(0, 0, True, 1).messages == 1
    assert door.interact(0, 0, True, 1).known == 1
    assert door.interact_many([(0, 1, True, 1), (0, 1, True, 1)]).known == 1
    assert door.interact(0, 0, True, 2).messages == 1
    assert door.interact(0, 0, True, 1, again=True).messages == 1
    # What never left may be told after all.
    door.choose(0, Choice(takes_part=False))
    door.choose(0, EVERYBODY)
    assert door.interact(0, 0, True, 1).messages == 1


@pytest.mark.parametrize("event", [(0, 8, True, 1), (0, -1, True, 1), (0, 0, True, 1 << 63)])
def test_bad_interactions_are_refused_whole(place, event):
    store, door = place
    with pytest.raises(DataError):
        door.interact_many([(0, 0, True, 1), event])
    assert store.seen(0) == frozenset()
    assert door.waiting() == 0
    with pytest.raises(DataError, match="no user 5"):
        door.interact(5, 0, True, 1)


# --- numbers and receipts ------------------------------------------------------------------------


def test_what_is_sealed_opens_at_its_owner_alone_with_the_users_number(tmp_path):
    store, door = new_store(tmp_path / "s", users=3)
    with store:
        door.interact(2, 3, True, 77)
        offer = Offer(ALPHA, KEYS["alpha"])
        sender, hello = door.begin(2, ALPHA, offer.public)
        receiver = offer.accept(2, store.person(2).identity.public, hello)
        departure = door.depart(2, ALPHA, 10, 48)
        sealed = body_of(departure.seal(sender, b"".join))
        opened = receiver.open(sealed)
        assert (opened.user, opened.item, opened.kind, opened.time) == (2, 3, "positive", 77)
        row = store.ledger(2)[-1]
        assert (row.party, row.interactions, row.bytes) == ("alpha", 1, 48 + len(sealed))
        assert row.epsilon == math.inf


@pytest.mark.parametrize("known", [3, 7, 8, 30])
def test_an_old_copy_of_a_store_puts_its_messages_behind_the_owners_numbers(place, known):
    """The store was put back from a copy: it gives out numbers that the owner has seen."""
    store, door = place
    side = OwnerSide()
    side.last = known
    for time in range(9):
        door.interact(0, 0, True, time)
    first = door.depart(0, ALPHA, 1, 0)  # as an agent does at the start of a session
    door.settle(first, side.take(first))
    deliver(door, 0, ALPHA, side, most=4)
    assert [time for _, _, time in side.taken] == list(range(9))
    assert states(store)[ALPHA] == {"arrived": 9}
    door.interact(0, 0, True, 99)
    deliver(door, 0, ALPHA, side)
    assert side.taken[-1] == ("positive", 0, 99)


def test_what_the_owner_refuses_is_refused_for_good_and_says_why(place):
    store, door = place
    for time in range(3):
        door.interact(0, 0, True, time)
    settled = door.settle(door.depart(0, ALPHA, 10, 0), Receipt(2, 0, ((1, "time"),)))
    assert (settled.arrived, settled.refused, settled.open) == (2, 1, 0)
    assert store.reasons(0) == {ALPHA: {"time": 1}}
    assert door.pairs() == []


def test_what_did_not_open_goes_again_under_a_number_that_the_owner_does_not_have(place):
    _store, door = place
    for time in range(3):
        door.interact(0, 0, True, time)
    # The second was damaged on the way, the third came through: the owner's count has passed it.
    settled = door.settle(door.depart(0, ALPHA, 10, 0), Receipt(2, 0, ((1, "tag"),)))
    assert (settled.arrived, settled.open) == (2, 1)
    side = OwnerSide()
    side.last = 2
    deliver(door, 0, ALPHA, side)
    assert [time for _, _, time in side.taken] == [1]


def test_what_did_not_open_is_told_already_where_it_was_sent_before_and_the_owner_counts_it(place):
    _store, door = place
    for time in range(3):
        door.interact(0, 0, True, time)
    door.depart(0, ALPHA, 2, 0)  # the answer is lost
    wrong = ((0, "tag"), (1, "tag"), (2, "tag"))
    settled = door.settle(door.depart(0, ALPHA, 10, 0), Receipt(1, 0, wrong))
    assert (settled.arrived, settled.open, settled.again) == (2, 1, True)
    assert [m.time for m in door.depart(0, ALPHA, 10, 0).messages] == [2]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["do", "send", "turned away"]), st.integers(0, 1), st.integers(1, 4)
        ),
        max_size=40,
    )
)
def test_two_copies_of_a_store_lose_and_double_nothing_while_answers_arrive(many, steps):
    """Whoever begins a session ends the other's, and its first message goes alone."""
    _store, door, numbers = many
    copies, side, told, session = [next(numbers), next(numbers)], OwnerSide(), [[], []], None
    for time, (what, which, how) in enumerate(steps):
        if what == "do":
            door.interact(copies[which], 0, True, time)
            told[which].append(time)
        elif what == "send":
            departure = door.depart(copies[which], ALPHA, how if session == which else 1, 0)
            if departure is not None:
                door.settle(departure, side.take(departure))
                session = which
        elif session == 1 - which:
            departure = door.depart(copies[which], ALPHA, how, 0)
            if departure is not None:
                door.turned_away(departure)
    for user in copies:
        deliver(door, user, ALPHA, side, most=1)
    taken = [time for _, _, time in side.taken]
    assert sorted(taken) == sorted(told[0] + told[1])
    for mine in told:
        assert [time for time in taken if time in mine] == mine


def test_a_mad_count_of_an_owner_settles_nothing(place):
    store, door = place
    door.interact(0, 0, True, 1)
    departure = door.depart(0, ALPHA, 10, 0)
    with pytest.raises(MessageError, match="beyond all numbers"):
        door.settle(departure, Receipt(1 << 63))
    assert states(store)[ALPHA] == {"left": 1}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("do"), st.integers(0, 5), st.booleans()),
            st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 4)),
            st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 4)),
        ),
        max_size=40,
    )
)
def test_whatever_is_lost_every_owner_gets_everything_once_in_order(many, steps):
    store, door, numbers = many
    user, sides, told = next(numbers), [OwnerSide(), OwnerSide()], [[], []]
    for time, (what, which, how) in enumerate(steps):
        if what == "do":
            door.interact(user, which, how, time)
            for owner, held in enumerate(HELD.values()):
                if which in held:
                    told[owner].append(("positive" if how else "negative", which, time))
            continue
        departure = door.depart(user, which, how, 0)
        if departure is not None:
            receipt = sides[which].take(departure)
            if what == "send":
                door.settle(departure, receipt)
    for owner, side in enumerate(sides):
        deliver(door, user, owner, side)
    assert [side.taken for side in sides] == told
    left = sum(r.interactions for r in store.ledger(user) if r.what == "interactions")
    assert left == sum(map(len, told))


# --- ending and leaving --------------------------------------------------------------------------


def test_a_stream_ends_where_something_was_told(place):
    _store, door = place
    assert door.end_stream(0) == 0
    door.interact(0, 0, True, 1)
    alpha = OwnerSide()
    deliver(door, 0, ALPHA, alpha)
    assert door.end_stream(0) == 1
    assert door.end_stream(0, "beta") == 0
    with pytest.raises(DataError, match="there are: alpha, beta"):
        door.end_stream(0, "gamma")
    deliver(door, 0, ALPHA, alpha)
    assert alpha.taken[-1][0] == "end"


def test_a_stream_ends_behind_what_waits(place):
    _store, door = place
    alpha = OwnerSide()
    door.interact(0, 0, True, 1)
    assert door.end_stream(0) == 1
    deliver(door, 0, ALPHA, alpha)
    assert [kind for kind, *_ in alpha.taken] == ["positive", "end"]
    door.interact(0, 1, True, 2)
    door.leave(0, "alpha")
    assert door.end_stream(0) == 0


def test_leaving_one_owner_drops_what_waits_and_asks_it_to_forget(place):
    store, door = place
    alpha = OwnerSide()
    door.interact(0, 2, True, 1)
    deliver(door, 0, ALPHA, alpha)
    door.interact(0, 2, True, 2)
    assert door.leave(0, "alpha") == ["alpha"]
    assert door.leave(0, "alpha") == []  # asked already
    assert store.choice(0).refused_owners == ("alpha",)
    assert store.choice(0).takes_part
    (departure,) = [door.depart(0, ALPHA, 10, 0)]
    assert [m.kind for m in departure.messages] == ["leave"]
    assert departure.last_words
    door.settle(departure, alpha.take(departure))
    assert alpha.taken == []
    assert door.pairs() == [(0, BETA)]
    # Back again, all may be told anew.
    door.choose(0, EVERYBODY)
    assert door.interact(0, 2, True, 1).messages == 1


def test_a_leave_that_the_owner_took_for_old_is_said_again(place):
    _store, door = place
    side = OwnerSide()
    side.last = 50
    door.interact(0, 0, True, 1)
    side.take(door.depart(0, ALPHA, 1, 0))
    door.leave(0, "alpha")
    first = door.depart(0, ALPHA, 10, 0)
    assert door.settle(first, side.take(first)).open == 1
    deliver(door, 0, ALPHA, side)
    assert side.last == -1


def test_who_was_never_enrolled_leaves_without_a_word(tmp_path):
    with UserStore.join(tmp_path / "s", invitation()) as store:
        assert UserDoor(store).leave(0) == []
        assert store.person(0).departure == "done"
        assert store.departing() == []


# --- crashes -------------------------------------------------------------------------------------


class Crash(Exception):
    pass


@contextlib.contextmanager
def crashing(file, after):
    """Within, the store's file breaks for good at the n-th statement; yields whether it did."""
    left = [after, False]

    def breaking(method):
        def call(*args):
            if left[0] <= 0:
                left[1] = True
                raise Crash
            left[0] -= 1
            return method(*args)

        return call

    names = ("rows", "write", "write_many")
    for name in names:
        setattr(file, name, breaking(getattr(file, name)))
    try:
        yield left
    except Crash:
        pass
    finally:
        for name in names:
            delattr(file, name)


def a_life(door, user, sides, sent):
    """Everything that happens to a user of a store; `sent` is what left."""
    for time in range(3):
        door.interact(user, 2, bool(time % 2), time)
    for owner in (ALPHA, BETA):
        if door.introduce(user, owner) is None:
            continue
        while (departure := door.depart(user, owner, 2, 16)) is not None:
            sent.append(len(departure.messages))
            door.settle(departure, sides[owner].take(departure))
    door.choose(user, Choice(refused_owners=("beta",)))
    door.leave(user, "alpha")


def live_and_crash(store, user, statement):
    """A life that ends at this statement, and another one after it; whether it ended."""
    sides, sent = [OwnerSide(), OwnerSide()], []
    with crashing(store.file, statement) as ended:
        a_life(UserDoor(store), user, sides, sent)
    door = UserDoor(store)
    rows = [r for r in store.ledger(user) if r.what == "interactions"]
    assert sum(r.messages for r in rows) >= sum(sent)  # nothing left unrecorded
    if ended[1]:
        a_life(door, user, sides, [])
    beta = [time for _, _, time in sides[BETA].taken]
    # Nothing twice, nothing out of order; what is missing she forbade.
    assert beta == sorted(set(beta))
    deliver(door, user, ALPHA, sides[ALPHA])
    assert (sides[ALPHA].taken, sides[ALPHA].last) == ([], -1)
    assert door.pairs() == []
    return ended[1]


def test_a_crash_at_any_statement_loses_and_doubles_nothing(tmp_path):
    store, _ = new_store(tmp_path / "s", users=300)
    with store:
        statement = 0
        while live_and_crash(store, statement, statement):
            statement += 1
    assert statement > 50


_KILLED = """
import sys
from pathlib import Path
from sottovoce.stores.user_door import UserDoor
from sottovoce.stores.user import UserStore

store = UserStore.open(Path(sys.argv[1]), agent=True)
door = UserDoor(store)
for time in range(10**6):
    door.interact(0, 2, True, time)
    print(time, flush=True)
"""


def test_kill_9_keeps_what_was_acknowledged(tmp_path):
    store, _ = new_store(tmp_path / "s")
    store.close()
    code = textwrap.dedent(_KILLED)
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "s"], stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if int(line) >= 30:
                break
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read()
    last = int((line + rest).split()[-1])
    with UserStore.open(tmp_path / "s", agent=True) as store:
        counts = states(store)
        assert counts[ALPHA] == counts[BETA]
        assert counts[ALPHA]["waiting"] in (last + 1, last + 2)
