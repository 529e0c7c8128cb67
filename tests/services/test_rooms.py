"""Room for bodies: taken by what is here, shared out by sender."""

import asyncio

import pytest

from sottovoce.services.kit import connections as rooms
from sottovoce.services.kit.answers import content_length, read_body
from sottovoce.services.kit.connections import FREE, Room, Share, neighbourhood, sender_of
from sottovoce.wire.refusals import Refused

KB = 1 << 10


def scope(length=None, host=None):
    headers = [] if length is None else [(b"content-length", length)]
    return {"headers": headers, "client": None if host is None else (host, 1)}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b"0", 0),
        (b"2", 2),
        (b"0" * 5000 + b"2", 2),
        (b"0" * 5000, 0),
        (b"9" * 5000, 10**15),
        (b"999999999999999", 999999999999999),
        (b"", None),
        (b"-1", None),
        (b"+1", None),
        (b"1e3", None),
        (b"0x10", None),
        (b"1 ", None),
        (b"1_0", None),
        ("٣".encode(), None),
        (b"\xb2", None),
    ],
)
def test_a_length_is_digits_and_never_raises(said, meant):
    assert content_length(scope(said)) == meant


def test_a_head_without_a_length():
    assert content_length(scope()) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_who_counts_as_one_sender(one, other, same):
    assert (neighbourhood(one) == neighbourhood(other)) == same
    assert (sender_of(scope(host=one)) == sender_of(scope(host=other))) == same


class Coming:
    """Bodies that come as a test wants it."""

    def __init__(self, room):
        self.room, self.tasks = room, {}

    async def begin(self, name, sender, size, limit=10 << 20, prove=None):
        """`size` bytes of a body are here, and the rest does not come."""
        parts = [bytes(16 * KB)] * (size // (16 * KB))
        gone = asyncio.Event()

        async def receive():
            if not parts:
                await gone.wait()
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.request", "body": parts.pop(), "more_body": True}

        async def read():
            with Share(self.room, sender, prove) as share:
                return len(await read_body(scope(), receive, limit, 60.0, share))

        self.tasks[name] = asyncio.ensure_future(read()), gone
        await asyncio.sleep(0.01)

    async def end(self):
        """What became of each: its size, or the reason for which it was refused."""
        found = {}
        for name, (task, gone) in self.tasks.items():
            gone.set()
            try:
                found[name] = await task
            except Refused as error:
                found[name] = error.reason
        return found


def run(room, *bodies, then=None):
    async def go():
        coming = Coming(room)
        for body in bodies:
            await coming.begin(*body)
        if then is not None:
            then()
        return await coming.end()

    return asyncio.run(go())


def test_what_is_announced_takes_no_room():
    room = Room("the server", 100 * KB, 50 * KB)
    found = run(room, *[(n, n, 0) for n in range(50)], ("honest", "h", 96 * KB))
    assert found["honest"] == 96 * KB
    assert room.bytes == 0


def test_small_messages_get_through_where_there_is_no_room():
    room = Room("the server", 64 * KB, 64 * KB)
    with Share(room, "eve") as held:
        held.take(bytes(80 * KB), bytes)
        with Share(room, "anna") as small:
            small.take(bytes(FREE), bytes)
            with pytest.raises(Refused):
                small.take(b"x", bytes)


def test_one_sender_has_so_much_and_others_have_theirs():
    room = Room("the server", 1000 * KB, 100 * KB)
    found = run(room, (0, "eve", 64 * KB), (1, "eve", 64 * KB), (2, "anna", 96 * KB))
    assert found == {0: 64 * KB, 1: "overload", 2: 96 * KB}


def test_the_only_body_of_a_sender_may_be_longer_than_its_part():
    assert run(Room("the server", 1000 * KB, 10 * KB), (0, "anna", 256 * KB)) == {0: 256 * KB}


def test_the_oldest_is_taken_however_large_it_is():
    found = run(Room("the server", 100 * KB, 10 * KB), (0, "a", 256 * KB), (1, "b", 64 * KB))
    assert found == {0: 256 * KB, 1: "overload"}


def test_who_holds_most_in_several_gives_way():
    room = Room("the server", 256 * KB, 256 * KB)
    bodies = [(n, "eve", 64 * KB) for n in range(4)]
    found = run(room, *bodies, ("anna", "anna", 64 * KB))
    assert found["anna"] == 64 * KB
    assert sorted(map(str, found.values())) == ["65536"] * 4 + ["overload"]


def test_a_body_that_gets_on_is_not_cut_for_a_newcomer_and_one_that_does_not_is(monkeypatch):
    """Otherwise none would get through where honest ones come faster than they can be taken."""
    bodies = [(n, n, 64 * KB) for n in range(4)]
    room = Room("the server", 256 * KB, 256 * KB)
    assert run(room, *bodies, ("late", "late", 64 * KB))["late"] == "overload"
    monkeypatch.setattr(rooms, "_STEP_SECONDS", -1.0)
    assert run(room, *bodies, ("late", "late", 64 * KB))["late"] == 64 * KB


def test_who_proves_who_it_is_has_room_of_its_own():
    strangers, devices = (
        Room("the server", 64 * KB, 64 * KB),
        Room("the server", 512 * KB, 512 * KB),
    )
    asked = []

    def prove(begun):
        asked.append(len(begun))
        return devices, 7, 256 * KB

    found = run(
        strangers,
        ("eve", "eve", 64 * KB),
        ("device", "eve", 256 * KB, 10 << 20, prove),
        ("stranger", "mallory", 64 * KB, 10 << 20, lambda begun: None),
    )
    assert found == {"eve": 64 * KB, "device": 256 * KB, "stranger": "overload"}
    assert asked == [16 * KB], "once, with the beginning"
    assert strangers.bytes == devices.bytes == 0


def test_room_is_given_back_whatever_happens():
    room = Room("the server", 128 * KB, 32 * KB)
    bodies = [(n, n % 3, 16 * KB * (n % 5)) for n in range(40)]
    run(room, *bodies)
    assert room.bytes == 0
    assert (room._shares, room._of, +room._held) == ({}, {}, {})
