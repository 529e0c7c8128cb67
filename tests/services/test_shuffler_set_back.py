"""A shuffler whose folder is set back by a file copy: no second batch of a round and tier leaves.
At the least, whoever takes batches refuses it before anything of it has left."""

import os
import shutil
from pathlib import Path

import pytest
from proxy_world import App, Device, proxied, proxy_terms
from talk import until
from test_proxy_service import count, devices, kept, opened

from sottovoce.errors import ConfigError, ServiceError, UsageError
from sottovoce.services import trial
from sottovoce.services.copies.copying import make_backup, restore_backup
from sottovoce.stores.noted import ENVIRONMENT, Left, notes_folder
from sottovoce.wire.frames import BATCH_PART
from sottovoce.wire.sealing import SEALED_BYTES

LATER = {"hold_seconds": 60.0, "goal": {None: 13}}
"""A batch waits for a thirteenth device."""


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_MARKS", str(tmp_path / "marks"))
    with proxied(tmp_path, terms=proxy_terms(minimum=(12, 2))) as (server, folder):
        folder.marks().begin()  # as when it is started first
        yield server, folder


def copied(path, name="copy"):
    return Path(shutil.copytree(path, path.with_name(f"{path.name}-{name}")))


def put_back(copy, path):
    shutil.rmtree(path)
    shutil.copytree(copy, path)


def logged(app, what="set back"):
    return [facts for said, facts in app.log.lines if said == what]


def batches(server):
    """The sets of records that the server has got, of each round and tier, whatever it stored."""
    found = {}
    for _, body in server.seen:
        head = BATCH_PART.unpack(body)
        records = body[BATCH_PART.size :]
        cut = {records[n : n + SEALED_BYTES] for n in range(0, len(records), SEALED_BYTES)}
        found.setdefault(head[:2], []).append(cut)
    return found


def twelve_and_one_more(server, folder):
    """Twelve devices send, the folder is copied, a thirteenth sends, a batch of 13 leaves."""
    with App(folder, **LATER) as app:
        opened(app)
        some = devices(app, server, 13)
        for device in some[:12]:
            assert app.submit(device.submission(0)).status == 204
    copy = copied(folder.path)
    with App(folder, **LATER) as app:
        opened(app)
        assert app.submit(some[12].submission(0)).status == 204
        until(lambda: count(folder, "outcomes"))
    assert len(server.batch(0, 0)) == 13 * 4
    return copy, some


def test_what_was_held_before_a_copy_was_put_back_does_not_leave_again(world):
    """The server works against the shuffler: the round stays open, and it takes whatever comes. The
    difference of the two batches would be the reports of the thirteenth device."""
    server, folder = world
    copy, some = twelve_and_one_more(server, folder)
    put_back(copy, folder.path)
    server.remembers = False
    server.parts.clear()
    with App(folder) as app:
        assert app.store.position.round == 1, "found at the start"
        (said,) = logged(app)
        assert "nothing is taken before round 1" in said["detail"]
        assert kept(folder, "SELECT * FROM outcomes") == [("dropped", 0, 12)]
        (again,) = devices(app, server, 1)
        for device in (again, some[0]):
            device.account, device.account_key = again.account, again.account_key
            got = app.submit(device.submission(0, tier=1, fresh=True))
            assert (got.status, got.error) == (409, "late"), "no tier takes anything for the round"
        server.move(1)
        opened(app, 1)
        assert app.submit(again.submission(1)).status == 204
    assert {where: len(sets) for where, sets in batches(server).items()} == {(0, 0): 1}


def test_where_the_marks_are_set_back_too_the_server_refuses_before_anything_leaves(world):
    """As by a snapshot of the whole machine. This protects as long as the server is honest."""
    server, folder = world
    with App(folder, **LATER) as app:
        opened(app)
        for device in devices(app, server, 12):
            assert app.submit(device.submission(0)).status == 204
    copy, marks = copied(folder.path), copied(notes_folder())
    with App(folder, **LATER) as app:
        opened(app)
        assert app.submit(Device(server).enrol(app.ask).submission(0)).status == 204
        until(lambda: count(folder, "outcomes"))
    put_back(copy, folder.path)
    put_back(marks, notes_folder())
    with App(folder) as app:
        (said,) = until(lambda: logged(app))
        assert "the server has had another batch of this round and tier" in said["detail"]
        assert app.forwarder.set_back == 1
        assert not logged(app, "batch handed over")
        assert kept(folder, "SELECT outcome FROM outcomes") == [("dropped",)]
    assert {where: len(sets) for where, sets in batches(server).items()} == {(0, 0): 1}


def test_of_two_copies_that_run_at_once_one_hands_over(world, tmp_path):
    server, folder = world
    with App(folder, **LATER) as app:
        opened(app)
        some = devices(app, server, 13)
        for device in some[:12]:
            assert app.submit(device.submission(0)).status == 204
    other = type(folder)(copied(folder.path), folder.introduction)
    with App(other, hold_seconds=60.0, goal={None: 12}, forwarder=False) as second:
        with App(folder, **LATER) as app:
            opened(app)
            assert app.submit(some[12].submission(0)).status == 204
            until(lambda: count(folder, "outcomes"))
        server.remembers = False
        server.parts.clear()
        second.forwarder.start(lambda: None)
        try:
            (said,) = until(lambda: logged(second))
        finally:
            second.forwarder.stop()
        assert "another batch of this round and tier has left" in said["detail"]
    assert len(batches(server)[0, 0]) == 1


@pytest.mark.parametrize("when", ["nobody has sent", "some have sent", "sealed", "gone"])
def test_whenever_the_copy_was_made_no_second_set_of_reports_leaves(world, when):
    server, folder = world
    copy = None

    def moment(name):
        nonlocal copy
        if name == when:
            copy = copied(folder.path)

    moment("nobody has sent")
    with App(folder, **LATER) as app:
        opened(app)
        some = devices(app, server, 13)
        for device in some[:12]:
            assert app.submit(device.submission(0)).status == 204
    moment("some have sent")
    server.down = True
    with App(folder, forwarder=False) as app:
        app.store.seal(app.store.held()[0])
    moment("sealed")
    server.down = False
    with App(folder) as app:
        until(lambda: count(folder, "outcomes"))
    moment("gone")
    put_back(copy, folder.path)
    server.remembers = False
    server.parts.clear()
    with App(folder) as app:
        if when in ("sealed", "gone"):
            opened(app)
            until(lambda: kept(folder, "SELECT devices FROM outcomes") == [(12,)])
            assert not logged(app), "it says the same again, or nothing"
        else:
            assert logged(app)
    sets = batches(server)[0, 0]
    assert all(each == sets[0] for each in sets)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_process_that_dies_while_it_notes_what_leaves_hands_it_over_later(world, done):
    server, folder = world
    with App(folder, **LATER) as app:
        opened(app)
        for device in devices(app, server, 12):
            assert app.submit(device.submission(0)).status == 204
    with App(folder, forwarder=False) as app:
        held = app.store.seal(app.store.held()[0])
        if done:
            assert folder.marks().commit(0, 0, held.mark)
    with App(folder) as app:
        until(lambda: server.batch(0, 0))
        until(lambda: kept(folder, "SELECT * FROM outcomes") == [("handed_over", 0, 12)])
        assert not logged(app)


# --- where the marks are not there ----------------------------------------------------------------


def test_a_copy_without_marks_is_not_started_and_goes_on_without_what_it_held(world):
    """On another machine, for example."""
    server, folder = world
    copy, _ = twelve_and_one_more(server, folder)
    put_back(copy, folder.path)
    os.rename(notes_folder(), notes_folder().with_name("elsewhere"))
    with pytest.raises(ServiceError, match="start once with --next-round"):
        App(folder).__enter__()
    with pytest.raises(UsageError, match="knows of round 0"):
        folder.discard_before(0)
    folder.discard_before(3)
    server.move(3)
    with App(folder) as app:
        opened(app, 3)
        assert not app.store.held()
        assert not logged(app)
        assert folder.marks().read() == Left(3)
    assert len(batches(server)[0, 0]) == 1


def test_a_new_folder_begins_its_marks_where_it_is_started(world):
    """It may have been made by another user, as by `serve setup`, or on another machine."""
    _, folder = world
    os.rename(notes_folder(), notes_folder().with_name("elsewhere"))
    with App(folder, forwarder=False) as app:
        assert folder.marks().read() == Left()
        assert not logged(app)
    with App(folder) as app:  # again, before it has heard of a round
        opened(app)
        assert not logged(app)
    os.rename(notes_folder(), notes_folder().with_name("lost"))
    with pytest.raises(ServiceError, match="start once with --next-round"):
        App(folder).__enter__()


def test_marks_that_a_copy_of_the_folder_would_have_are_refused(world, monkeypatch):
    _, folder = world
    monkeypatch.setenv("SOTTOVOCE_MARKS", str(folder.path / "marks"))
    with pytest.raises(ConfigError, match="must be outside"):
        folder.marks()


def test_a_shuffler_whose_marks_are_gone_is_there_and_not_ready(world):
    _, folder = world
    with App(folder) as app:
        opened(app)
        assert app.ask("GET", "/ready").status == 200
        folder.marks().place.unlink()
        until(lambda: app.ask("GET", "/ready").status == 503)
        assert app.ask("GET", "/health").status == 200


def test_damaged_marks_are_not_taken_for_none(world):
    _, folder = world
    folder.marks().place.write_text("{}")
    with pytest.raises(ServiceError, match="is damaged"):
        App(folder).__enter__()


def test_marks_of_rounds_that_are_long_over_are_dropped_and_nothing_leaves_for_them(world):
    _, folder = world
    marks = folder.marks()
    for round in range(6):
        assert marks.commit(round, 0, bytes([round]))
    assert sorted(marks.read().marks) == [(3, 0), (4, 0), (5, 0)]
    assert marks.commit(5, 0, bytes([5]))
    assert marks.commit(4, 0, bytes([4])), "it is on its way"
    for round, tier, mark in ((5, 0, b"x"), (4, 1, b"x"), (0, 0, bytes([0]))):
        assert not marks.commit(round, tier, mark)
    assert marks.commit(5, 1, b"y")


def test_a_backup_that_is_put_back_goes_on_after_what_has_left(world, tmp_path):
    """The folder is lost, its marks are not: they say the round, and the operator need not."""
    server, folder = world
    make_backup(folder.path, tmp_path / "backup")
    twelve_and_one_more(server, folder)
    shutil.rmtree(folder.path)
    done = restore_backup(tmp_path / "backup", folder.path)
    assert done.settled.next_round == 1
    server.move(1)
    with App(folder) as app:
        opened(app, 1)
        assert not logged(app)


def test_a_trial_notes_what_left_within_its_own_folder(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(trial, "Child", lambda *_, log, environment: given.append(environment))
    trial.HttpsTrial(None, tmp_path / "run", 0)._start("shuffler", "serve", "shuffler")
    assert given[0][ENVIRONMENT] == str(tmp_path / "run" / "marks")
