"""What an old copy of each party has forgotten, and that nothing of it is done again."""

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from collector_world import proxied_folder
from orchestrator_world import let_in
from orchestrator_world import new_folder as new_orchestrator
from owner_world import World as OwnerWorld
from proxy_world import App, Device, proxied
from secure_sum_world import (
    TOKEN,
    MaskerApp,
    SeedKeeper,
    SummedWorld,
    masker_folder,
    question,
)
from server_world import ITEMS, USERS, new_folder
from talk import until
from unpacked import unpacked

from sottovoce.cli import call
from sottovoce.core.consent import Choice
from sottovoce.errors import KeyTrouble, ServiceError, UsageError
from sottovoce.parties.helper import Answered
from sottovoce.services.copies.copying import make_backup, restore_backup
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.stores import server as records
from sottovoce.stores.conductor import Checkpoint, ConductedRound
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import (
    Answers,
    HelperIntroduction,
    init_helper,
    open_helper,
)
from sottovoce.stores.keys import ReportKeys
from sottovoce.stores.orchestrator_folder import invite, open_orchestrator_folder
from sottovoce.stores.owner_folder import open_owner_folder
from sottovoce.stores.server import PastRound
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.shuffler_folder import open_shuffler_folder
from sottovoce.stores.user import UserStore, releases
from sottovoce.wire.interactions import Identity
from sottovoce.wire.shuffled import decode_part


def contents(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def lose(folder):
    """With everything in it, as a disk is lost."""
    shutil.rmtree(folder)


# --- the proxy of a secure sum --------------------------------------------------------------------


@pytest.fixture
def masks(tmp_path):
    """A proxy that has told a sum of round 2, was copied, and told another of round 3."""
    folder, devices = masker_folder(tmp_path / "masks"), [SeedKeeper() for _ in range(6)]
    with MaskerApp(folder) as app:
        assert app.sums(question(folder.introduction.terms, 2, devices)).status == 200
        make_backup(folder.path, tmp_path / "b")
        asked = question(folder.introduction.terms, 3, devices)
        told = app.sums(asked)
        assert told.status == 200
    devices[0].asked, devices[0].told = asked, told.body
    return folder, devices


def ask_again(folder, round, devices):
    with MaskerApp(open_helper(folder.path)) as app:
        return app.sums(question(folder.introduction.terms, round, devices))


def test_a_restored_proxy_goes_on_from_what_the_former_folder_has_told(masks, tmp_path):
    folder, devices = masks
    done = restore_backup(tmp_path / "b", folder.path)
    assert done.settled.next_round == 4
    assert ask_again(folder, 3, devices[1:]).error == "second_submission"
    with MaskerApp(open_helper(folder.path)) as app:  # the same set, the same answer
        assert app.sums(devices[0].asked).body == devices[0].told
    assert ask_again(folder, 2, devices[1:]).error == "late"
    assert ask_again(folder, 4, devices[1:]).status == 200


def test_a_restored_proxy_keeps_terms_that_were_changed_since(masks, tmp_path):
    """With those of the copy it refused every sum (`other_terms`) until its operator had agreed
    to the changed ones anew."""
    folder, devices = masks
    before = folder.introduction.terms
    after, next_ones = (replace(before, n_items=before.n_items + more) for more in (5, 9))
    folder.agree(HelperIntroduction(after, TOKEN))
    with MaskerApp(folder) as app:
        assert app.sums(question(after, 4, devices)).status == 200
    open_helper(folder.path).agree(HelperIntroduction(next_ones, TOKEN))
    done = restore_backup(tmp_path / "b", folder.path)
    folder = open_helper(folder.path)
    assert folder.introduction.terms == after
    assert [one.terms for one in folder.agreed()] == [next_ones]
    assert "Terms were changed after the copy" in " ".join(done.settled.means)
    with MaskerApp(folder) as app:
        assert app.sums(question(before, 5, devices)).error == "other_terms"
        assert app.sums(question(after, 5, devices)).status == 200
    # A copy that is newer than the folder that it replaces keeps its own.
    make_backup(folder.path, tmp_path / "newer")
    lose(folder.path)
    restore_backup(tmp_path / "b", folder.path, next_round=5)
    assert open_helper(folder.path).introduction.terms == before
    restore_backup(tmp_path / "newer", folder.path)
    assert open_helper(folder.path).introduction.terms == after


@pytest.mark.parametrize("gone", ["folder", "answers", "damaged"])
def test_a_restored_proxy_that_cannot_know_needs_to_be_told(masks, tmp_path, gone):
    folder, devices = masks
    there = folder.path / "answered.json"
    if gone == "folder":
        lose(folder.path)
    elif gone == "damaged":
        there.write_text("{")
    else:
        there.unlink()
    if gone == "answers":  # it is no whole folder, so it is not even looked at
        with pytest.raises(UsageError, match="move it away first"):
            restore_backup(tmp_path / "b", folder.path, next_round=20)
        folder.path.rename(tmp_path / "away")
    with pytest.raises(UsageError, match="--next-round"):
        restore_backup(tmp_path / "b", folder.path)
    assert folder.path.exists() == (gone == "damaged")
    done = restore_backup(tmp_path / "b", folder.path, next_round=20)
    assert done.settled.next_round == 20
    for round in (2, 3, 4, 18):
        assert ask_again(folder, round, devices[1:]).error == "late"
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.sums(devices[0].asked).error == "late"
    assert ask_again(folder, 19, devices).error == "second_submission"
    assert ask_again(folder, 20, devices).status == 200


def test_copies_that_disagree_tell_nothing_of_that_round(masks, tmp_path):
    """Somebody has let two of them run."""
    folder, devices = masks
    make_backup(folder.path, tmp_path / "c")
    answers = Answers(folder.path / "answered.json")
    answers.keep(Answered(answers.last.round, b"\xab" * 32))
    restore_backup(tmp_path / "c", folder.path)
    with MaskerApp(open_helper(folder.path)) as app:
        assert app.sums(devices[0].asked).error == "second_submission"
    assert ask_again(folder, 4, devices).status == 200


def test_a_proxy_that_has_keys_and_no_federation_yet_can_be_copied(tmp_path):
    init_helper(tmp_path / "masks")
    assert make_backup(tmp_path / "masks", tmp_path / "b").manifest.federation == ""
    done = restore_backup(tmp_path / "b", tmp_path / "masks")
    assert done.settled.next_round == 0


def test_a_server_gives_rounds_up_until_its_restored_proxy_tells_again(tmp_path):
    here = SummedWorld(tmp_path, rounds=5)
    try:
        assert here.step() == ["opened"]
        make_backup(here.folder.path, tmp_path / "b")
        for ends in ("goal", "sum_refused", "sum_refused", "goal"):
            here.report(*range(USERS))
            assert here.step() == ["closing"]
            assert here.step()[0] == ends
            if here.position().round == 1:  # the proxy's machine is lost after round 0
                here.proxy.__exit__()
                lose(here.folder.path)
                restore_backup(tmp_path / "b", here.folder.path, next_round=3)
                here.proxy = MaskerApp(here.folder).__enter__()
        assert here.refused() == {"sum_refused": 2}
    finally:
        here.close()


# --- a proxy that shuffles ------------------------------------------------------------------------


def sends(app, device, round):
    """What the proxy answers, once it has heard from the server."""
    for _ in range(200):
        got = app.submit(device.submission(round))
        if got.status != 503:
            return got
        time.sleep(0.05)
    raise AssertionError(got.body)


def test_a_restored_proxy_hands_nothing_over_twice_and_holds_no_report(tmp_path):
    """A batch and a part of it would show the server which reports belong together."""
    with proxied(tmp_path) as (server, folder):
        devices = [Device(server) for _ in range(5)]
        server.move(4)
        with App(folder, goal={None: 4}, hold_seconds=600.0) as app:
            for device in devices:
                device.enrol(app.ask)
            for device in devices[:3]:  # enough for a batch, which waits for more
                assert sends(app, device, 4).status == 204
            make_backup(folder.path, tmp_path / "b")
            assert sends(app, devices[3], 4).status == 204
            until(lambda: server.batch(4, 0))
        kept = contents(unpacked(tmp_path / "b", tmp_path / "content"))
        records = {record for device in devices[:4] for record in device.records(4)}
        assert {*server.batch(4, 0)} == records
        assert not any(record in kept for record in records)

        # The former folder is there; then it is lost, and so are the marks of what has left.
        for next_round in (None, 5):
            if next_round:
                folder.marks().place.unlink()
                server.announced.clear()
                lose(folder.path)
                with pytest.raises(UsageError, match="--next-round"):
                    restore_backup(tmp_path / "b", folder.path)
            done = restore_backup(tmp_path / "b", folder.path, next_round=next_round)
            assert done.settled.next_round == 5
            server.move(4)
            server.seen.clear()
            with App(open_shuffler_folder(folder.path), goal={None: 3}) as app:
                assert (app.store.accounts(), app.store.held()) == (5, [])
                until(lambda: app.forwarder.terms is not None and app.log.lines)
                for device in devices:
                    assert app.submit(device.submission(4)).status != 204
                server.move(5)
                for device in devices[:3]:
                    device.sent.pop((5, 0), None)
                    assert sends(app, device, 5).status == 204
                until(lambda: server.batch(5, 0))
            assert {decode_part(body).round for _, body in server.seen} == {5}
            server.parts = {where: part for where, part in server.parts.items() if where[0] == 4}


def test_a_restored_shuffler_follows_terms_that_were_changed_since(tmp_path):
    with proxied(tmp_path) as (server, folder):
        folder.keep_terms(server.terms)
        make_backup(folder.path, tmp_path / "b")
        after, next_ones = (replace(server.terms, n_items=ITEMS + more) for more in (5, 9))
        for terms in (after, next_ones):
            folder.agree(terms)
        folder.keep_terms(after)
        done = restore_backup(tmp_path / "b", folder.path)
        folder = open_shuffler_folder(folder.path)
        assert (folder.terms(), folder.agreed()) == (after, [next_ones])
        assert "Terms were changed after the copy" in " ".join(done.settled.means)


# --- the server -----------------------------------------------------------------------------------


def test_a_checkpoint_of_flower_goes_on_with_a_round_that_nobody_has_seen(tmp_path):
    town = new_folder(tmp_path / "town").path
    items = np.arange(160, dtype=np.float32).reshape(40, 4)
    with Checkpoint(town) as checkpoint:
        checkpoint.begin(items, "terms")
        checkpoint.open(ConductedRound(0, 0, 2, np.arange(2)))
    (town / "superlink").mkdir()
    (town / "superlink" / "superlink.db").write_bytes(b"sums of nodes")
    made = make_backup(town, tmp_path / "b")
    assert "superlink/, is not in it" in made.notes[0]
    assert b"sums of nodes" not in contents(unpacked(tmp_path / "b", tmp_path / "content"))
    with Checkpoint(town) as checkpoint:  # seven rounds more, before the copy is put back
        for round in range(7):
            checkpoint.open(ConductedRound(round, 0, 2, np.arange(2)))
            record = PastRound(round, 0, "goal", 2, 2, (), 1.0)
            checkpoint.close_round(record, np.arange(2), items, np.zeros(40, np.int64))
    assert restore_backup(tmp_path / "b", town).settled.next_round == 8
    with Checkpoint(town) as checkpoint:
        saved = checkpoint.load()
        assert (saved.round, saved.attempt, checkpoint.open_round()) == (8, 0, None)
        assert np.array_equal(saved.items, items)
        assert (saved.changed == 8).all()
        assert checkpoint.terms() == "terms"
    (town / "superlink.json").write_text(json.dumps({"port": 1, "pid": os.getpid()}))
    with pytest.raises(ServiceError, match="is served by process"):
        restore_backup(tmp_path / "b", town)


def started(folder):
    with contextlib.closing(folder.database()) as store, store.writing() as link:
        coordinator_of(folder.plan, time.monotonic, folder.keys).start(link)
    return folder


def test_a_server_with_a_proxy_uses_no_key_of_an_old_copy_again(tmp_path):
    """It may have been destroyed since, so that nobody can read what was sealed to it."""
    folder = started(proxied_folder(tmp_path / "town"))
    old = ReportKeys(folder.keys).newest().id
    make_backup(folder.path, tmp_path / "b")
    done = restore_backup(tmp_path / "b", folder.path)
    assert done.settled.next_round == 1
    assert any("can be read by whoever has the copy" in said for said in done.settled.means)
    assert [key.id == old for key in ReportKeys(folder.keys).all()] == [True, False]
    with contextlib.closing(open_folder(folder.path).database()) as store, store.reading() as link:
        assert records.position(link).round == 1


def test_a_server_without_its_database_is_no_whole_folder(tmp_path):
    folder = new_folder(tmp_path / "town")
    folder.database().close()
    (folder.path / "server.db").unlink()
    with pytest.raises(ServiceError, match="the state of this federation was in it"):
        make_backup(folder.path, tmp_path / "b")


# --- data owners and their orchestrator -----------------------------------------------------------


def test_a_data_owner_comes_back_with_its_keys_and_what_it_held(tmp_path):
    world = OwnerWorld(tmp_path)
    path = world.folder.path
    make_backup(path, tmp_path / "b")
    before = {name: (path / name).read_bytes() for name in ("identity.key", "node", "node.pub")}
    lose(path)
    done = restore_backup(tmp_path / "b", path)
    assert {name: (path / name).read_bytes() for name in before} == before
    assert any(
        "are back in it until the orchestrator's next round" in s for s in done.settled.means
    )
    with contextlib.closing(open_owner_folder(path).owner()) as owner:
        assert owner.number == world.admission.number
        with pytest.raises(ServiceError, match="is served by another process"):
            restore_backup(tmp_path / "b", path)
    with pytest.raises(UsageError, match="leave --next-round out"):
        restore_backup(tmp_path / "b", path, next_round=4)


def users(store, count):
    return store.add_users([Identity().public for _ in range(count)])


@pytest.mark.parametrize("lost", [False, True])
def test_a_restored_orchestrator_gives_no_number_twice(tmp_path, lost):
    folder = new_orchestrator(tmp_path)
    with contextlib.closing(folder.store()) as store:
        assert users(store, 3) == [0, 1, 2]
        let_in(folder, store, tmp_path, "Bakery", [1, 2])
        make_backup(folder.path, tmp_path / "b")
        assert users(store, 2) == [3, 4]
        store.leave_user(1)
        let_in(folder, store, tmp_path, "Library", [3])
        seen, version = store.counters(), store.directory_version
    if lost:
        lose(folder.path)
    done = restore_backup(tmp_path / "b", folder.path)
    folder = open_orchestrator_folder(folder.path)
    with contextlib.closing(folder.store()) as store:
        assert users(store, 1)[0] > 4
        if lost:
            let_in(folder, store, tmp_path, "Library", [3])
        [_, library] = store.owners()
        assert library.number > (1 if lost else 0)
        assert store.directory_version > version
        assert all(store.counters()[name] >= seen[name] for name in seen if name != "round")
        assert store.round == (0 if lost else seen["round"] + 1)
        # Where it can be known, who has left stays away.
        assert (store.public(1) is None) == (not lost)
        assert store.departed() == ([] if lost else [1])
        invite(folder, store, 1, "https://127.0.0.1:1")
    said = "numbers are given to nobody" if lost else "are those of the former folder"
    assert any(said in sentence for sentence in done.settled.means)


def test_an_orchestrators_older_copy_has_the_items_users_and_owners_of_today(tmp_path):
    """Users' stores refuse a directory without items that they know, and data owners and users
    that came since the copy were strangers to it: nothing went on until all was made again."""
    folder = new_orchestrator(tmp_path)
    with contextlib.closing(folder.store()) as store:
        first = store.invite(2)
        assert [store.enrol(token, Identity().public) for token in first] == [0, 1]
        let_in(folder, store, tmp_path, "Bakery", [1, 2])
        let_in(folder, store, tmp_path, "Museum", [3])
        make_backup(folder.path, tmp_path / "b")
        names = (*store.catalogue, "a new item")
        store.set_catalogue(names)
        store.leave_user(0)
        (late,) = store.invite(1)
        key = Identity().public
        assert store.enrol(late, key) == 2
        (waiting,) = store.invite(1)
        store.remove_owner(store.owners()[1].number)
        let_in(folder, store, tmp_path, "Library", [3, len(names) - 1])
        store.raise_target(7)
        store.hear(0, 5)
        owners, directory = store.owners(), store.directory(bytes(32))
    done = restore_backup(tmp_path / "b", folder.path)
    with contextlib.closing(open_orchestrator_folder(folder.path).store()) as store:
        assert store.catalogue == names
        assert store.owners() == owners
        now = store.directory(bytes(32))
        assert (now.catalogue, now.owners) == (directory.catalogue, directory.owners)
        assert now.version > directory.version
        assert (store.departed(), store.public(0), store.public(2)) == ([0], None, key)
        assert store.enrol(late, key) == 2
        with pytest.raises(KeyTrouble):
            store.enrol(first[0], Identity().public)
        assert store.enrol(waiting, Identity().public) > 2
        assert (store.target(), store.all_heard()) == (7, {0: 5})
        assert np.isfinite(store.load().model.items).all()
    assert "Items, users, invitations" in " ".join(done.settled.means)
    # An older copy in the place of a newer one takes nothing away from that.
    with contextlib.closing(open_orchestrator_folder(folder.path).store()) as store:
        make_backup(folder.path, tmp_path / "newer")
    restore_backup(tmp_path / "b", folder.path, next_round=0)
    with contextlib.closing(open_orchestrator_folder(folder.path).store()) as store:
        assert (store.catalogue, store.departed()) == (names, [0])


def test_keys_of_another_are_not_taken(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    mine, other = new_orchestrator(tmp_path / "a").path, new_orchestrator(tmp_path / "b").path
    make_backup(mine, tmp_path / "copy", keys=False)
    lose(mine)
    with pytest.raises(ServiceError, match="not the key of this federation"):
        restore_backup(tmp_path / "copy", mine, keys=other)
    assert not mine.exists()


# --- stores ---------------------------------------------------------------------------------------

LIMITED = Choice(share_positives=0.3, epsilon=1.0, max_reports=5, total_epsilon=60.0)


@pytest.fixture
def store(tmp_path):
    with CohortStore.create(tmp_path / "her", [(0, "Anna"), (1, "Bruno"), (2, "Carla")]) as store:
        store.add_history(0, ["a secret place"])
        store.set_choice(0, LIMITED)
        store.set_choice(1, Choice(share_positives=0.5))
        yield store


def spend(store, releases):
    """As if so much had left."""
    store.file.write(
        "INSERT INTO budget VALUES (0, 'k-reports', ?, 0, 0, 10, 5.0, 5) ON CONFLICT DO UPDATE SET "
        "releases = excluded.releases",
        [releases],
    )


def test_a_store_is_copied_while_its_agent_runs_and_stays_encrypted(store, tmp_path):
    with CohortStore.open(tmp_path / "her", agent=True) as agent:
        agent.add_history(1, ["another one"])
        made = make_backup(tmp_path / "her", tmp_path / "b")
        with pytest.raises(ServiceError, match="is served by another process"):
            restore_backup(tmp_path / "b", tmp_path / "her")
    assert made.manifest.kind == "device"
    copy = (unpacked(tmp_path / "b", tmp_path / "content") / "store.db").read_bytes()
    assert b"secret place" not in copy
    assert not copy.startswith(b"SQLite format 3")
    restore_backup(tmp_path / "b", tmp_path / "new")
    with CohortStore.open(tmp_path / "new") as again:
        assert again.interactions(1) == [("another one", None)]
        assert again.file.pragma("journal_mode") == "wal"


def test_nothing_leaves_a_store_that_was_put_back_until_its_owner_says_so(store, tmp_path):
    spend(store, 3)
    coins = store.noise(0)
    make_backup(tmp_path / "her", tmp_path / "b")
    done = restore_backup(tmp_path / "b", tmp_path / "new")
    assert "too low by that" in done.settled.means[0]
    with CohortStore.open(tmp_path / "new") as again:
        assert again.choice(0) == replace(LIMITED, takes_part=False, total_epsilon=0.0)
        assert again.choice(1) == Choice(takes_part=False, share_positives=0.5)
        assert again.choice(2) == Choice(takes_part=False)
        assert not again.choices().takes_part.any()
        assert again.records(0)[0].choice == LIMITED, "the record stays"
        assert releases(again) == 3
        assert again.noise(0) != coins


def test_a_store_that_knows_of_more_that_left_is_not_replaced(store, tmp_path):
    spend(store, 3)
    make_backup(tmp_path / "her", tmp_path / "b")
    spend(store, 5)
    store.close()
    with pytest.raises(UsageError, match="knows of 2 report"):
        restore_backup(tmp_path / "b", tmp_path / "her")
    with CohortStore.open(tmp_path / "her") as again:
        assert releases(again) == 5
        assert again.choice(0) == LIMITED
    (tmp_path / "her" / "store.db").write_bytes(os.urandom(40_000))  # it cannot be read
    for name in ("store.db-wal", "store.db-shm"):
        (tmp_path / "her" / name).unlink(missing_ok=True)
    restore_backup(tmp_path / "b", tmp_path / "her")
    with CohortStore.open(tmp_path / "her") as again:
        assert releases(again) == 3


def test_a_store_without_its_key_is_of_no_use(store, tmp_path):
    made = make_backup(tmp_path / "her", tmp_path / "b", keys=False)
    assert made.manifest.left_out == ("store.key",)
    key = (tmp_path / "her" / "store.key").read_bytes()
    assert key.strip() not in contents(unpacked(tmp_path / "b", tmp_path / "content"))
    with pytest.raises(UsageError, match=r"store\.key is not there"):
        restore_backup(tmp_path / "b", tmp_path / "new")
    with CohortStore.create(tmp_path / "other", [(0, "Dora")]):
        pass
    with pytest.raises(UsageError, match="not those of the backup"):
        restore_backup(tmp_path / "b", tmp_path / "new", keys=tmp_path / "other")
    with pytest.raises(UsageError, match="holds another one"):
        restore_backup(tmp_path / "b", tmp_path / "other")
    restore_backup(tmp_path / "b", tmp_path / "new", keys=tmp_path / "her")
    with CohortStore.open(tmp_path / "new") as again:
        assert again.name(0) == "Anna"


def test_a_users_store_takes_no_part_either_when_it_was_put_back(tmp_path):
    with UserStore.create(tmp_path / "her", "town", bytes(32), "https://x", "") as store:
        store.file.write(
            "INSERT INTO users (number, name, private) VALUES (0, 'me', ?)", [bytes(32)]
        )
        store.record_choice(0, Choice(), looked=False)
    assert make_backup(tmp_path / "her", tmp_path / "b").manifest.kind == "user"
    restore_backup(tmp_path / "b", tmp_path / "new")
    with UserStore.open(tmp_path / "new") as again:
        assert again.federation == "town"
        assert not again.choice(0).takes_part


# --- what a device tells its owner ----------------------------------------------------------------


def test_an_export_to_standard_output_leaves_no_file(store, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(["device", "export", "her", "-"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {
        "kind": "interaction",
        "number": 0,
        "item": "a secret place",
        "timestamp": None,
    } in lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["her"]
    assert call(["device", "export", "her", "-", "--json"]) == 2
    assert "leave --json out" in capfd.readouterr().err


def test_an_export_is_shown_on_a_terminal_only_if_that_is_meant(
    store, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call(["device", "export", str(tmp_path / "her"), "-"]) == 2
    said = capfd.readouterr()
    assert ("secret place" in said.out, "pipe it on" in said.err) == (False, True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert call(["device", "export", str(tmp_path / "her"), "-"]) == 0
    assert "secret place" in capfd.readouterr().out


def test_text_says_what_an_old_copy_means(store, tmp_path, capsys):
    store.close()
    assert call(["backup", str(tmp_path / "her"), str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert "Its keys are in it: guard it like" in said
    (tmp_path / "b").chmod(0o755)
    assert call(["restore", str(tmp_path / "b"), str(tmp_path / "her")]) == 0
    said = capsys.readouterr().out
    assert "a store as it was at 20" in said
    assert "What was there is in" in said
    assert "A limit on ε over all rounds is 0 now" in said
    assert "may be read by others" in said


def test_a_plain_sqlite_file_is_no_store(tmp_path):
    (tmp_path / "x").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "x" / "store.db")) as link, link:
        link.execute("CREATE TABLE t (x)")
    with pytest.raises((ServiceError, UsageError)):
        make_backup(tmp_path / "x", tmp_path / "b")
