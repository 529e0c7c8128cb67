"""The proxy's interface: what is taken, what is refused and with which word, what is held and what
is handed over."""

import asyncio
import json
import secrets
import sqlite3
import struct
import time

import pytest
from proxy_world import App, Device, challenge_of, proxied, proxy_terms
from talk import until

from sottovoce.services.shuffler import ShufflerLimits
from sottovoce.stores.keys import operator_token
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import encode_submission, terms_name


@pytest.fixture
def world(tmp_path):
    with proxied(tmp_path) as (server, folder):
        yield server, folder


def opened(app, round=0):
    until(lambda: app.store.position.round == round and app.store.position.open)


def devices(app, server, count):
    return [Device(server).enrol(app.ask) for _ in range(count)]


def test_a_tier_that_reaches_its_minimum_is_handed_over_whole_and_forgotten(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        some = devices(app, server, 5)
        for device in some[:2]:
            assert app.submit(device.submission(0)).status == 204
        time.sleep(0.3)
        assert not server.seen, "nothing leaves below the minimum"
        assert app.submit(some[2].submission(0)).status == 204
        batch = until(lambda: server.batch(0, 0))
        assert sorted(batch) == sorted(r for d in some[:3] for r in d.records(0))
        late = app.submit(some[3].submission(0))
        assert (late.status, late.error) == (409, "late")
        again = app.submit(some[0].submission(0))
        assert (again.status, again.error) == (409, "replay")
        other = app.submit(some[0].submission(0, tier=1))
        assert (other.status, other.error) == (409, "second_submission"), "whatever the tier"
        until(lambda: not count(folder, "reports"))
        assert count(folder, "batches") == 1
        assert kept(folder, "SELECT seed, mark FROM batches") == [(None, None)]


def count(folder, table):
    """Rows; "reports" are those of all batches, which have a table each."""
    if table != "reports":
        return kept(folder, f"SELECT count(*) FROM {table}")[0][0]
    link = sqlite3.connect(folder.path / "proxy.db", timeout=10, isolation_level=None)
    try:
        link.execute("BEGIN")
        tables = link.execute("SELECT name FROM sqlite_master WHERE name GLOB 'reports_*'")
        names = [name for (name,) in tables.fetchall()]
        return sum(link.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names)
    finally:
        link.close()


def kept(folder, query):
    link = sqlite3.connect(folder.path / "proxy.db", timeout=10)
    try:
        return link.execute(query).fetchall()
    finally:
        link.close()


def test_below_the_minimum_nothing_leaves_and_the_next_round_drops_it(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        for device in devices(app, server, 2):
            assert app.submit(device.submission(0)).status == 204
        server.move(1)
        opened(app, 1)
        until(lambda: not count(folder, "reports"))
        assert not server.seen
        assert kept(folder, "SELECT * FROM outcomes") == [("dropped", 0, 2)]
        assert ("batch dropped", {"round": 0, "tier": 0, "devices": 2}) in app.log.lines


def test_a_batch_waits_for_its_goal_or_until_it_has_waited_long_enough(world):
    server, folder = world
    with App(folder, hold_seconds=3600.0, goal={0: 4, None: 50}) as app:
        opened(app)
        some = devices(app, server, 6)
        for device in some[:3]:
            assert app.submit(device.submission(0)).status == 204
        time.sleep(0.3)
        assert not server.seen, "it has its minimum, and waits for more"
        assert app.submit(some[3].submission(0)).status == 204
        until(lambda: server.batch(0, 0))
    with App(folder, hold_seconds=1.0, goal={0: 4, None: 50}) as app:
        opened(app)
        begun = time.monotonic()
        for device in some[4:]:
            assert app.submit(device.submission(0, tier=1)).status == 204
        until(lambda: server.batch(0, 1))
        assert time.monotonic() - begun > 0.8


def test_every_refusal_has_its_word(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        one, two = devices(app, server, 2)
        good = one.submission(0)
        assert app.submit(good).status == 204
        sealed = secrets.token_bytes(4 * SEALED_BYTES)
        account, key = two.account, two.account_key

        def made(round=0, tier=0, name=server.key, body=sealed, account=account, key=key):
            terms = terms_name(server.terms)
            return encode_submission(account, key, round, tier, name, body, terms=terms)

        flipped = bytearray(made())
        flipped[-1] ^= 1
        stolen = bytearray(made())
        stolen[4:20] = one.account
        for payload, status, error in [
            (good, 409, "replay"),
            (one.submission(0, fresh=True), 409, "second_submission"),
            (one.submission(0, tier=1, fresh=True), 409, "second_submission"),
            (b"", 400, "malformed"),
            (made()[:-1], 400, "malformed"),
            (made() + b"x", 413, "oversized"),
            (made(body=sealed[:-SEALED_BYTES]), 400, "malformed"),
            (made(tier=2), 400, "malformed"),
            (b"SVL2" + made()[4:], 426, "version"),
            (b"SVE1" + made()[4:], 400, "malformed"),
            (with_size(made(), 51), 400, "malformed"),
            (made(account=bytes(16)), 401, "unknown_account"),
            (made(key=bytes(32)), 401, "bad_mac"),
            (bytes(flipped), 401, "bad_mac"),
            (bytes(stolen), 401, "bad_mac"),
            (made(round=1), 409, "early"),
            (made(round=2**32 - 1), 409, "early"),
            (made(name=bytes(32)), 409, "wrong_key"),
        ]:
            got = app.submit(payload)
            assert (got.status, got.error) == (status, error)
        assert app.submit(made()).status == 204, "none of these has used up the account's round"
        server.move(1)
        opened(app, 1)
        for payload, error in [
            (good, "replay"),
            (made(), "replay"),
            (made(body=bytes(4 * SEALED_BYTES)), "second_submission"),
            (devices(app, server, 1)[0].submission(0), "late"),
        ]:
            got = app.submit(payload)
            assert (got.status, got.error) == (409, error)
        assert count(folder, "seen") == 2


def with_size(payload, size):
    at = struct.calcsize("<4s16sIB32s32sH")
    return payload[:at] + struct.pack("<H", size) + payload[at + 2 :]


def test_who_sent_is_forgotten_after_a_few_rounds(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        (device,) = devices(app, server, 1)
        assert app.submit(device.submission(0)).status == 204
        for round in (1, 2):
            server.move(round)
            opened(app, round)
            assert app.submit(device.submission(0)).error == "replay"
        server.move(3)
        opened(app, 3)
        until(lambda: not count(folder, "batches") and not count(folder, "seen"))
        assert app.submit(device.submission(0)).error == "late"


def test_a_round_that_the_device_heard_of_first(world):
    server, folder = world
    server.poll_seconds = 60.0
    with App(folder) as app:
        opened(app)
        (device,) = devices(app, server, 1)
        server.move(1)
        assert app.submit(device.submission(1)).status == 204


def test_enrolment(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        device = Device(server).enrol(app.ask)
        account, old = device.account, device.account_key
        before = device.submission(0, fresh=True)
        device.enrol(app.ask)
        assert device.account == account
        assert device.account_key != old
        assert app.submit(before).error == "bad_mac", "the key before is good no more"
        assert app.submit(device.submission(0)).status == 204
        other = Device(server)
        for changes, status, error in [
            ({"protocol": 1}, 426, "version"),
            ({"federation": "elsewhere"}, 403, "bad_admission"),
            ({"signature": "00" * 64}, 403, "bad_admission"),
            ({"admission": "00" * 64}, 403, "bad_admission"),
            (
                {"public_key": device.key.public_key().public_bytes_raw().hex()},
                403,
                "bad_admission",
            ),
            ({"public_key": "zz"}, 400, "malformed"),
            ({"public_key": None}, 400, "malformed"),
            ({"signature": "00"}, 400, "malformed"),
        ]:
            body = other.enrolment(challenge_of(app.ask), **changes)
            got = app.ask("POST", "/v1/enrol", body)
            assert (got.status, got.error) == (status, error)
        for body in (b"", b"[]", b"{", b"\xff", b"[" * 4000):
            assert app.ask("POST", "/v1/enrol", body).status == 400
        assert app.ask("POST", "/v1/enrol", b" " * 5000).status == 413
        assert kept(folder, "SELECT count(*), max(generation) FROM accounts") == [(1, 1)]
    with App(folder) as app:
        opened(app)
        assert app.submit(device.submission(0)).error == "replay", "also after a restart"


def test_what_the_operator_sees_names_no_one(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        some = devices(app, server, 4)
        for device in some[:3]:
            app.submit(device.submission(0))
        until(lambda: count(folder, "outcomes"))
        app.submit(some[3].submission(0, tier=1))
        app.submit(b"nonsense")
        token = operator_token(folder.keys)
        text = app.ask(
            "GET", "/metrics", headers={"authorization": f"Bearer {token}"}
        ).body.decode()
        assert 'sottovoce_proxy_held{round="0",state="open",tier="1"} 1.0' in text
        assert 'sottovoce_proxy_devices_total{outcome="handed_over",tier="0"} 3.0' in text
        assert 'sottovoce_proxy_refused_total{reason="malformed"} 1.0' in text
        told = text + json.dumps(app.log.lines)
    for device in some:
        assert device.account.hex() not in told
        assert device.key.public_key().public_bytes_raw().hex() not in told


def test_without_the_server_nothing_is_taken_at_first_and_all_is_held_later(world):
    server, folder = world
    server.down = True
    with App(folder) as app:
        device = Device(server).enrol(app.ask)
        got = app.submit(device.submission(0))
        assert (got.status, got.error) == (503, "unavailable")
        assert int(got.headers["retry-after"]) > 0
        server.down = False
        opened(app)
        assert app.submit(device.submission(0)).status == 204
    server.down = True
    with App(folder) as app:
        some = devices(app, server, 2)
        for other in some:
            assert app.submit(other.submission(0)).status == 204, (
                "the round was open when last heard"
            )
        until(lambda: [h.state for h in app.store.held()] == ["sealed"])  # and tries again
        server.down = False
        batch = until(lambda: server.batch(0, 0))
        assert sorted(batch) == sorted(r for d in [device, *some] for r in d.records(0))


def test_terms_are_followed_as_they_were_at_first(world):
    server, folder = world
    with App(folder) as app:
        opened(app)
        some = devices(app, server, 3)
    server.terms = proxy_terms(minimum=(2, 2))
    server.move(1)
    with App(folder) as app:
        until(lambda: any("changed the terms" in str(line) for line in app.log.lines))
        for device in some[:2]:
            app.submit(device.submission(1))
        time.sleep(0.3)
        assert not server.seen
        assert app.store.position.round == 0


def test_a_server_that_goes_back_is_not_followed(world):
    server, folder = world
    server.move(5)
    with App(folder) as app:
        opened(app, 5)
        server.move(4)
        until(lambda: any("went back" in str(line) for line in app.log.lines))
        assert app.store.position.round == 5


def test_a_full_disk_is_told_and_counts_nothing(world, monkeypatch):
    server, folder = world
    with App(folder) as app:
        opened(app)
        one, two = devices(app, server, 2)
        assert app.submit(one.submission(0)).status == 204

        def full():
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(app.store._writer, "_commit", full)
        got = app.submit(two.submission(0))
        assert (got.status, got.error) == (503, "unavailable")
        assert [h.devices for h in app.store.held()] == [1]
        monkeypatch.undo()
        assert app.submit(two.submission(0)).status == 204
        assert [h.devices for h in app.store.held()] == [2]


def test_a_proxy_that_is_late_with_its_work_takes_nothing_more_on(tmp_path):
    limits = ShufflerLimits(lag_seconds=0.3)
    with proxied(tmp_path) as (server, folder), App(folder, limits=limits) as app:
        opened(app)
        (device,) = devices(app, server, 1)
        payload = device.submission(0)

        async def after_a_pause():
            time.sleep(1.0)
            await asyncio.sleep(0.001)
            return await app.asked("POST", "/v1/submissions", payload)

        got = app.run(after_a_pause())
        assert (got.status, got.error) == (503, "overload")
        until(lambda: app.submit(payload).status == 204)
