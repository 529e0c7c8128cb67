"""What a server, or a device, that means harm may try with an honest proxy: to have reports that it
can tell apart in one batch, to learn more than a batch, to keep others out."""

import asyncio
import contextlib
import secrets
import shutil
import sqlite3
import threading
import time

import pytest
from fake_server import Reply
from proxy_world import App, Device, proxied, proxy_terms
from test_proxy_service import count, devices, kept, opened, wait_for

from sottovoce.errors import MessageError
from sottovoce.stores.shuffler import ShufflerPosition, ShufflerStore
from sottovoce.stores.shuffler_folder import ShufflerFolder
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import SealedSubmission, decode_part
from sottovoce.wire.terms import Terms


@pytest.fixture
def world(tmp_path):
    with proxied(tmp_path) as (server, folder):
        yield server, folder


def said(app, words):
    return any(words in str(line) for line in app.log.lines)


# --- a server that wants to tell reports apart ----------------------------------------------------


@pytest.mark.parametrize("between", ["open", "waiting"])
def test_a_batch_has_one_key_whatever_the_server_shows_meanwhile(world, between):
    """A server that shows everybody a key of her own would know whose each report is."""
    server, folder = world
    with App(folder, hold_seconds=0.0) as app:
        opened(app)
        some = devices(app, server, 4)
        first = server.public
        for device in some[:2]:
            assert app.submit(device.submission(0)).status == 204
        if between == "waiting":
            server.state = "waiting"
            wait_for(lambda: not app.store.position.open)
        server.move(0)
        assert server.public != first
        wait_for(lambda: said(app, "another key"))
        marked = app.submit(some[2].submission(0))
        assert marked.status == 409
        assert [held.devices for held in app.store.held()] == [2]
        server.public = first
        wait_for(lambda: app.store.position.open)
        assert app.submit(some[3].submission(0)).status == 204
        batch = wait_for(lambda: server.batch(0, 0))
        assert sorted(batch) == sorted(r for d in (*some[:2], some[3]) for r in d.records(0))


def test_the_key_of_a_round_outlives_a_crash(tmp_path):
    one, other = bytes([1]) * 32, bytes([2]) * 32
    with contextlib.closing(ShufflerStore(tmp_path / "proxy.db")) as store:
        store.move(ShufflerPosition(3, True, one))
        store.move(ShufflerPosition(3, False, b""))
    with contextlib.closing(ShufflerStore(tmp_path / "proxy.db")) as store:
        with pytest.raises(MessageError, match="another key"):
            store.move(ShufflerPosition(3, True, other))
        assert store.position == ShufflerPosition(3, False, one)
        sealed = memoryview(secrets.token_bytes(SEALED_BYTES))
        made = SealedSubmission(bytes(16), 3, 0, other, bytes(16), sealed)
        assert store.accept([made], {}) == ["late"]
        store.move(ShufflerPosition(4, True, other))
        assert store.position.key == other


def test_reports_made_under_other_terms_are_not_mixed_with_those_under_ours(world):
    """Under other terms a device draws from other coordinates, or counts on a larger batch."""
    server, folder = world
    with App(folder) as app:
        opened(app)
        (device,) = devices(app, server, 1)
        theirs = device.submission(0, terms=proxy_terms(minimum=(1000, 1000)), fresh=True)
        got = app.submit(theirs)
        assert (got.status, got.error) == (409, "other_terms")
        assert app.store.held() == []
        assert app.submit(device.submission(0)).status == 204


def test_a_device_can_ask_which_terms_the_proxy_follows(world):
    server, folder = world
    server.down = True
    with App(folder) as app:
        got = app.ask("GET", "/v1/terms")
        assert (got.status, got.error) == (503, "unavailable")
        server.down = False
        opened(app)
        assert Terms.from_table(app.ask("GET", "/v1/terms").json()) == server.terms


def test_terms_that_are_not_those_of_the_round_are_not_kept(world):
    server, folder = world
    announced = server.descriptor
    server.descriptor = lambda: announced() | {"terms": "ab" * 16}
    with App(folder) as app:
        wait_for(lambda: said(app, "terms"))
        assert folder.terms() is None
        server.descriptor = announced
        opened(app)
        assert folder.terms() == server.terms


def test_terms_that_were_half_written_are_not_there(world, monkeypatch):
    server, folder = world

    class Killed(BaseException):
        pass

    def killed(handle):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", killed)
        with pytest.raises(Killed):
            folder.keep_terms(server.terms)
    assert folder.terms() is None
    folder.keep_terms(server.terms)
    assert folder.terms() == server.terms


# --- what is left of a batch ----------------------------------------------------------------------


def leftovers(folder, bodies):
    found = b"".join(p.read_bytes() for p in folder.path.iterdir() if p.name.startswith("proxy.db"))
    return sum(body in found for body in bodies)


def test_nothing_of_a_batch_stays_in_any_file_though_somebody_was_reading(world):
    server, folder = world
    with App(folder, hold_seconds=0.0) as app:
        opened(app)
        some = devices(app, server, 3)
        reader = sqlite3.connect(folder.path / "proxy.db", isolation_level=None)
        for device in some[:2]:
            assert app.submit(device.submission(0)).status == 204
        sealed = [record for device in some[:2] for record in device.records(0)]
        assert leftovers(folder, sealed) == len(sealed)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM reports_0").fetchall()
        assert app.submit(some[2].submission(0)).status == 204
        wait_for(lambda: count(folder, "reports") == 0)
        time.sleep(0.6)
        reader.execute("ROLLBACK")
        wait_for(lambda: not leftovers(folder, sealed + some[2].records(0)))
        reader.close()


def test_what_a_crash_left_in_the_log_is_wiped_at_the_next_start(world, tmp_path):
    server, folder = world
    with App(folder, hold_seconds=0.0, forwarder=False) as app:
        store = app.store
        store.move(ShufflerPosition(0, True, server.key))
        body = secrets.token_bytes(4 * SEALED_BYTES)
        store.accept(
            [SealedSubmission(bytes(16), 0, 0, server.key, bytes(16), memoryview(body))], {}
        )
        store.move(ShufflerPosition(1, False, b""))
        while store.forget():
            pass
        shutil.copytree(folder.path, tmp_path / "copy")
    server.move(1)
    copy = ShufflerFolder(tmp_path / "copy", folder.introduction)
    assert leftovers(copy, [body]) == 1
    with App(copy) as app:
        wait_for(lambda: not leftovers(copy, [body]))


# --- a server that moves on while it is handed a batch --------------------------------------------


def test_a_batch_whose_last_part_ends_the_round_was_handed_over(world):
    server, folder = world
    taken = server._take
    waiting, moved = threading.Event(), threading.Event()

    def slow(request):
        reply = taken(request)
        assert decode_part(request.body).devices == 3
        server.move(1)
        waiting.set()
        moved.wait(10)
        return reply

    server._take = slow
    with App(folder, hold_seconds=0.0) as app:
        opened(app)
        some = devices(app, server, 4)
        for device in some[:3]:
            assert app.submit(device.submission(0)).status == 204
        assert waiting.wait(10)
        assert app.submit(some[3].submission(1)).status == 204, "the next round does not wait"
        moved.set()
        wait_for(lambda: count(folder, "outcomes"))
        wait_for(lambda: count(folder, "reports") == 1)
        assert kept(folder, "SELECT * FROM outcomes") == [("handed_over", 0, 3)]
        assert not said(app, "batch dropped")


def test_a_batch_that_was_sealed_before_a_crash_and_came_too_late_is_dropped(world):
    server, folder = world
    server.answers = [Reply(503) for _ in range(1000)]
    with App(folder, hold_seconds=0.0) as app:
        opened(app)
        for device in devices(app, server, 3):
            assert app.submit(device.submission(0)).status == 204
        wait_for(lambda: [held.state for held in app.store.held()] == ["sealed"])
    server.move(1)
    server.answers = []
    with App(folder, hold_seconds=0.0) as app:
        opened(app, 1)
        wait_for(lambda: count(folder, "reports") == 0)
        assert kept(folder, "SELECT * FROM outcomes") == [("dropped", 0, 3)]
    assert server.batch(0, 0) is None


# --- devices that ask too much --------------------------------------------------------------------


def test_an_account_has_one_submission_on_its_way_at_a_time(world):
    """One device could otherwise fill every place that others wait for."""
    server, folder = world
    with App(folder, hold_seconds=60.0) as app:
        opened(app)
        one, two = devices(app, server, 2)
        blocker = sqlite3.connect(
            folder.path / "proxy.db", isolation_level=None, check_same_thread=False
        )
        blocker.execute("BEGIN IMMEDIATE")

        async def at_once():
            bodies = [one.submission(0), one.submission(0, fresh=True), two.submission(0)]
            work = [asyncio.create_task(app.asked("POST", "/v1/submissions", b)) for b in bodies]
            await asyncio.sleep(0.3)
            blocker.execute("ROLLBACK")
            return await asyncio.gather(*work)

        answers = app.run(at_once())
        blocker.close()
        assert [got.status for got in answers] == [204, 429, 204]
        assert answers[1].error == "too_often"
        assert int(answers[1].headers["retry-after"]) > 0
        assert app.submit(one.submission(0)).error == "replay", "later it is answered again"


def test_many_accounts_are_not_all_kept_in_memory(world, monkeypatch):
    server, folder = world
    monkeypatch.setattr("sottovoce.services.shuffler._KNOWN_ACCOUNTS", 5)
    with App(folder) as app:
        opened(app)
        some = [Device(server).enrol(app.ask) for _ in range(12)]
        assert len(app.service._accounts._known) <= 5
        assert app.submit(some[0].submission(0)).status == 204
