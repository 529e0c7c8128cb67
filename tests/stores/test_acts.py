"""What operators do to a federation: once each, with a line in the log, and in turns."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_world import USERS, acting, new_folder

from sottovoce.errors import UsageError
from sottovoce.parties.server import Offered
from sottovoce.stores import operating, versions
from sottovoce.stores import server as records
from sottovoce.stores.acts import past_acts
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.keys import VIEWER_TOKEN, operator_token

SERVER = "https://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path):
    return new_folder(tmp_path / "town")


@pytest.fixture
def store(folder):
    database = folder.database()
    with database.writing() as link:
        Coordinator(folder.plan, lambda: 0.0).start(link)
    yield database
    database.close()


@pytest.fixture
def invited(folder, store):
    acting(store, folder).invite(SERVER, USERS)
    return store


def logged(store):
    with store.reading() as link:
        return past_acts(link, 0, 100)[1]


def fact(store, name):
    with store.reading() as link:
        return records.fact(link, name)


def test_every_act_has_a_line_in_the_log(folder, store):
    anna, bruno = acting(store, folder), acting(store, folder, "bruno", "console")
    made = anna.invite(SERVER, 3, label="Via Roma")
    bruno.shut_out([1, 2])
    bruno.readmit([2])
    anna.label(0, "Signora Rossi")
    anna.pause("the heating is off")
    bruno.go_on()
    anna.raise_target(9)
    anna.note("backup", {"place": "/media/safe"})
    told = logged(store)[::-1]
    whats = ["invite", "shut_out", "readmit", "label", "pause", "go_on", "target", "backup"]
    assert [one["what"] for one in told] == whats
    assert [one["who"] for one in told] == ["anna", "bruno", "bruno", "anna", "anna", "bruno"] + [
        "anna"
    ] * 2
    assert told[1]["how"] == "console"
    assert told[1]["outcome"] == {"numbers": [1, 2]}
    assert told[0]["outcome"] == {"numbers": "0-2"}
    assert all(one.token not in json.dumps(told) for one in made)
    with store.reading() as link:
        assert operating.label_of(link, 0) == "Signora Rossi"
        assert operating.label_of(link, 1) == "Via Roma"
        assert records.shut_numbers(link) == [1]
        assert records.position(link).target == 9
        assert past_acts(link, 1, 2) == (8, told[::-1][1:3])


def test_the_same_key_does_nothing_twice(invited, folder):
    anna, bruno = acting(invited, folder), acting(invited, folder, "bruno")
    first = anna.pause("lunch", key="click-1")
    anna.go_on(key="click-2")
    assert bruno.pause("supper", key="click-1") == first
    with invited.reading() as link:
        assert operating.paused(link) is None
    assert anna.shut_out([1], key="click-3") == {"numbers": [1]}
    assert anna.shut_out([1], key="click-3") == {"numbers": [1]}
    with pytest.raises(UsageError, match="used for something else"):
        anna.readmit([1], key="click-3")
    made = anna.invite(SERVER, 2, key="click-4")
    assert [one.number for one in made] == [USERS, USERS + 1]
    with pytest.raises(UsageError, match=r"devices 8-9 were made .* cannot be shown again"):
        anna.invite(SERVER, 2, key="click-4")
    token = anna.rotate_token(key="click-5") and operator_token(folder.keys)
    anna.rotate_token(key="click-5")
    assert operator_token(folder.keys) == token
    assert len(logged(invited)) == 6


def test_an_act_without_a_point_says_who_did_what_when(invited, folder):
    anna, bruno = acting(invited, folder), acting(invited, folder, "bruno")
    before = len(logged(invited))
    for act, sentence in (
        (lambda one: one.go_on(), "rounds are not paused; nothing was done"),
        (lambda one: one.readmit([3]), "device 3 is not shut out; nothing was done"),
        (lambda one: one.shut_out([99]), "device 99 was never invited"),
        (lambda one: one.label(99, "x"), "device 99 was never invited"),
        (lambda one: one.label(2**70, "x"), "was never invited"),
        (lambda one: one.shut_out([1, -1]), "device -1 was never invited"),
        (lambda one: one.raise_target(2**70), "at most 2,147,483,647 rounds"),
        (lambda one: one.publish(2**70), "no versions to choose from"),
        (lambda one: one.publish(0, seen=3), "no version is published by now; nothing was done"),
        (lambda one: one.shut_out([]), "no device was named"),
        (lambda one: one.raise_target(1), "can only be raised"),
        (lambda one: one.publish(1), "no versions to choose from"),
        (lambda one: one.label(1, "two\nlines"), "one line of at most 80 characters"),
        (lambda one: one.pause("x" * 201), "one line of at most 200 characters"),
        (lambda one: one.pause(key="\0"), "a key is one line"),
    ):
        with pytest.raises(UsageError, match=sentence):
            act(bruno)
    assert len(logged(invited)) == before
    for act, sentence in (
        (lambda one: one.pause(), r"rounds were paused at \d\d:\d\d by anna; nothing was done"),
        (lambda one: one.go_on(), r"rounds were let go on at \d\d:\d\d by anna; nothing"),
        (lambda one: one.shut_out([3]), r"device 3 was shut out at \d\d:\d\d by anna; nothing"),
        (lambda one: one.readmit([3]), r"device 3 was let in again at \d\d:\d\d by anna; nothing"),
        (lambda one: one.label(3, "x"), r"device 3 was given this label at \d\d:\d\d by anna"),
    ):
        act(anna)
        with pytest.raises(UsageError, match=sentence):
            act(bruno)
    with invited.writing() as link:
        records.shut(link, [5], "it spoils sums")
    with pytest.raises(UsageError, match=r"by the server \(it spoils sums\); nothing was done"):
        anna.shut_out([5])
    assert anna.shut_out([5, 6]) == {"numbers": [6]}, "who is not out yet is shut out"


def test_a_version_is_published_only_by_who_saw_which_one_is(invited):
    with invited.writing() as link:
        versions.keep(link, Offered(0), "2026-01-01T00:00:00Z")
        versions.publish(link, 0)
        records.set_fact(link, records.PUBLISHED, "4")
    with pytest.raises(UsageError, match="version 4 is published by now; nothing was done"):
        acting(invited).publish(0, seen=3)
    assert acting(invited).publish(0, seen=4) == {
        "published": 0,
        "before": 4,
        "pinned": None,
    }
    with pytest.raises(UsageError, match=r"version 0 was published at \d\d:\d\d by anna"):
        acting(invited, who="bruno").publish(0, seen=4)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["anna", "bruno"]),
        st.sampled_from(["shut_out", "readmit", "label", "pause", "go_on", "raise_target"]),
        st.integers(0, 3),
        st.sampled_from(["", *(f"click-{n}" for n in range(6))]),
    ),
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(operations=OPERATIONS)
def test_any_acts_in_any_order_do_what_a_plain_book_of_them_says(tmp_path_factory, operations):
    """A key does its act once; what has no point is refused, changes nothing and is not logged."""
    folder = new_folder(tmp_path_factory.mktemp("town") / "town", rounds=0)
    with contextlib.closing(folder.database()) as store:
        acting(store, folder).invite(SERVER, 4)
        out, labels, paused, target, keys, lines = (
            set(),
            dict.fromkeys(range(4), ""),
            None,
            0,
            {},
            1,
        )
        for who, what, value, key in operations:
            given = {
                "shut_out": ([value],), "readmit": ([value],), "label": (value % 2, f"L{value}"),
                "raise_target": (value,),
            }.get(what, ())  # fmt: skip
            act = getattr(acting(store, folder, who), what)
            name = what.removeprefix("raise_")
            if key in keys:
                if keys[key][0] == name:
                    assert act(*given, key=key) == keys[key][1]
                else:
                    with pytest.raises(UsageError, match="used for something else"):
                        act(*given, key=key)
                continue
            pointless = {
                "shut_out": value in out,
                "readmit": value not in out,
                "label": labels[value % 2] == f"L{value}",
                "pause": paused is not None,
                "go_on": paused is None,
                "raise_target": value <= target,
            }[what]
            if pointless:
                with pytest.raises(UsageError, match=r"nothing was done|only be raised"):
                    act(*given, key=key)
                continue
            done = act(*given, key=key)
            lines += 1
            if key:
                keys[key] = name, done
            if what == "shut_out":
                out.add(value)
            elif what == "readmit":
                out.discard(value)
            elif what == "label":
                labels[value % 2] = f"L{value}"
            elif what == "raise_target":
                target = value
            else:
                paused = who if what == "pause" else None
        with store.reading() as link:
            assert records.shut_numbers(link) == sorted(out)
            assert {n: operating.label_of(link, n) for n in labels} == labels
            found = operating.paused(link)
            assert (None if found is None else found["who"]) == paused
            assert records.position(link).target == target
            assert past_acts(link, 0, 1)[0] == lines


def test_a_token_that_cannot_be_logged_is_not_rotated(invited, folder, monkeypatch):

    before = {p.name: p.read_bytes() for p in folder.keys.iterdir()}

    def full(*args, **more):
        raise UsageError("the disk is full")

    monkeypatch.setattr(operating, "note_act", full)
    (folder.keys / VIEWER_TOKEN).unlink()
    for role in ("act", "look"):
        with pytest.raises(UsageError, match="disk is full"):
            acting(invited, folder).rotate_token(role)
    del before[VIEWER_TOKEN]
    assert {p.name: p.read_bytes() for p in folder.keys.iterdir()} == before
