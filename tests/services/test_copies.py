"""Backups of folders in general: as secret as what they copy from the first byte on, there whole or
not at all, and put back only where everything is right."""

import contextlib
import errno
import gzip
import io
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from secure_sum_world import masker_folder
from server_world import new_folder
from unpacked import unpacked

from sottovoce.errors import CorruptData, DataNotFound, ServiceError, UsageError, VersionMismatch
from sottovoce.services.copies import copying as backups
from sottovoce.services.copies.copying import make_backup, restore_backup
from sottovoce.stores.server_folder import open_folder

MONDAY = datetime(2026, 11, 16, 10, 0, tzinfo=UTC)


@pytest.fixture
def town(tmp_path):
    """A server's folder with a database."""
    folder = new_folder(tmp_path / "town")
    folder.database().close()
    return folder.path


@pytest.fixture
def masks(tmp_path):
    return masker_folder(tmp_path / "masks").path


def contents(folder):
    """Everything in a folder, byte by byte, but for files that only say that somebody is there."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def readable_by_others(folder):
    places = [folder, *folder.rglob("*")]
    return [str(p) for p in places if stat.S_IMODE(p.lstat().st_mode) & 0o077]


def seen_by_others(root, act):
    """What anybody else could have opened anywhere below `root` while `act` ran: a watcher that
    looks as often as it can, and after every write."""
    found, stop = set(), threading.Event()

    def look():
        for folder, folders, names in os.walk(root):
            for name in [*folders, *names]:
                place = os.path.join(folder, name)
                try:
                    mode = os.lstat(place).st_mode
                except FileNotFoundError:
                    continue
                if stat.S_IMODE(mode) & 0o077:
                    found.add(place)

    def watch():
        while not stop.is_set():
            look()

    before = os.umask(0)
    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        act()
    finally:
        stop.set()
        watcher.join()
        os.umask(before)
    look()
    return found


def test_nobody_else_can_read_a_backup_or_what_was_put_back_at_any_moment(town, tmp_path):
    """Under umask 0, with somebody looking all the time."""
    safe = tmp_path / "safe"
    safe.mkdir()
    assert not seen_by_others(safe, lambda: make_backup(town, safe / "monday"))
    assert not readable_by_others(safe / "monday")
    assert not seen_by_others(safe, lambda: restore_backup(safe / "monday", safe / "town"))
    assert not readable_by_others(safe / "town")
    # The watcher does see what is written as others do it.
    assert seen_by_others(safe, lambda: shutil.copytree(town, safe / "copied"))


def test_a_backup_is_there_whole_or_not_at_all(town, tmp_path, monkeypatch):
    """The disk is full at every file in turn, then at the manifest."""
    safe = tmp_path / "safe"
    real, left = backups._add, [0]

    def full(archive, name, content):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return real(archive, name, content)

    monkeypatch.setattr(backups, "_add", full)
    fits = 0
    while not (safe / "monday").exists():
        left[0] = fits
        with contextlib.suppress(OSError):
            make_backup(town, safe / "monday")
        assert [path.name for path in safe.iterdir()] in ([], ["monday"])
        fits += 1
    assert fits == len(contents(unpacked(safe / "monday", tmp_path / "content"))) + 1
    assert fits > 5


def test_a_full_disk_is_one_sentence(town, tmp_path, monkeypatch, ask):
    def full(archive, name, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    monkeypatch.setattr(backups, "_add", full)
    said = ask("backup", town, tmp_path / "b", code=4)
    assert "No space left on device; free some space" in said["error"]
    assert not (tmp_path / "b").exists()


def test_nothing_that_is_there_is_overwritten(town, tmp_path, ask):
    taken = tmp_path / "taken"
    taken.mkdir()
    for target in (taken, town / "keys" / "ca.crt"):
        said = ask("backup", town, target, code=2)
        assert "is there already and is not overwritten" in said["error"]
    assert "lies in" in ask("backup", town, town / "inside", code=2)["error"]
    assert "there is no folder" in ask("backup", tmp_path / "no", taken / "b", code=2)["error"]
    assert "is not the folder of a service" in ask("backup", taken, tmp_path / "b", code=2)["error"]
    assert list(taken.iterdir()) == []


def test_of_a_folder_of_setup_each_part_is_named(tmp_path, ask):
    for part in ("server", "helper"):
        (tmp_path / "all" / part).mkdir(parents=True)
    (tmp_path / "all" / "setup.json").write_text("{}")
    said = ask("backup", tmp_path / "all", tmp_path / "b", code=2)["error"]
    assert said.endswith(f"{tmp_path}/all/server and {tmp_path}/all/helper")


def test_one_that_comes_first_is_not_overwritten_either(town, tmp_path, monkeypatch):
    target, real = tmp_path / "b", backups._pack

    def come_first(*given):
        target.mkdir()
        return real(*given)

    monkeypatch.setattr(backups, "_pack", come_first)
    with pytest.raises(UsageError, match="is there already"):
        make_backup(town, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "town"]
    assert list(target.iterdir()) == []


def test_the_manifest_says_what_it_is(town, tmp_path, ask):
    said = ask("backup", town, tmp_path / "b")
    assert (said["kind"], said["federation"]) == ("server", "little-town")
    assert said["left_out"] == said["notes"] == []
    found = contents(unpacked(tmp_path / "b", tmp_path / "content"))
    table = json.loads(found.pop("backup.json"))
    assert (table["format"], table["kind"]) == (backups.FORMAT, "server")
    assert said["files"] == len(found)
    assert said["bytes"] == (tmp_path / "b").stat().st_size
    assert {"server.db", "federation.json", "catalogue.json", "state.json"} < set(found)
    assert "keys/ca.key" in found
    assert datetime.strptime(table["created"], "%Y-%m-%dT%H:%M:%SZ")


def test_what_is_put_back_is_what_was_copied(masks, tmp_path, ask):
    there = contents(masks)
    ask("backup", masks, tmp_path / "b")
    shutil.rmtree(masks)
    said = ask("restore", tmp_path / "b", masks, "--next-round", 1)
    assert said["before"] is None
    now = contents(masks)
    told = json.loads(now.pop("answered.json"))
    del there["answered.json"]
    assert now == there
    # No room for rounds in groups either: how many there were is forgotten.
    assert (told["round"], told["set"], told["spent"]) == (0, "", 256)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "masks"]


def test_everything_in_a_backup_is_checked_before_anything_is_changed(masks, tmp_path, ask):
    """Wherever a byte is another one, it is damaged, unless what is in it is still the same."""
    backup = tmp_path / "b"
    make_backup(masks, backup)
    there, good = contents(masks), backup.read_bytes()
    whole = contents(unpacked(backup, tmp_path / "whole"))
    for at in [*range(12), *range(12, len(good), 97), *range(len(good) - 9, len(good))]:
        backup.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with tempfile.TemporaryDirectory(dir=tmp_path) as partial:
            try:
                backups._unpack(backup, Path(partial))
            except (CorruptData, DataNotFound):
                continue
            # Gzip's head and the bits that fill a byte up say nothing: what is packed is the same.
            assert gzip.decompress(backup.read_bytes()) == gzip.decompress(good), at
            assert contents(Path(partial)).items() == whole.items() - {
                ("backup.json", whole["backup.json"])
            }
    for body in (good[: len(good) // 2], good[:-1], good[:-9], good + b"more", b"", b"no archive"):
        backup.write_bytes(body)
        said = ask("restore", backup, masks, code=3)["error"]
        assert "is damaged; nothing was changed, use another backup" in said or "no backup" in said
    backup.unlink()
    ask("restore", backup, masks, code=3)
    assert contents(masks) == there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masks", "whole"]
    backup.write_bytes(good)
    ask("restore", backup, masks)


def rewritten(backup, *more, **changes):
    """The same backup with other words about itself, and with more entries."""
    with tempfile.TemporaryDirectory() as folder:
        found = contents(unpacked(backup, Path(folder)))
    table = json.loads(found.pop("backup.json")) | changes
    with tarfile.open(backup, "w:gz") as archive:
        for name, body in [*found.items(), *more, ("backup.json", json.dumps(table).encode())]:
            backups._add(archive, name, io.BytesIO(body))


def test_a_backup_writes_nothing_but_what_belongs_there(masks, tmp_path):
    backup = tmp_path / "b"

    def refused(error, match, *more, **changes):
        backup.unlink(missing_ok=True)
        make_backup(masks, backup)
        rewritten(backup, *more, **changes)
        with pytest.raises(error, match=match):
            restore_backup(backup, masks)

    for name in ("../evil", "keys/../../evil", "/etc/evil", "keys//evil", "a b", ".", "seal.key"):
        refused(CorruptData, "is damaged", (name, b"00"))
    for name in ("../evil", "keys/../../evil"):
        refused(CorruptData, "no part of", left_out=[name])
    refused(CorruptData, "no part of", ("evil.so", b"00"))
    refused(CorruptData, "is damaged", created="yesterday")
    refused(CorruptData, "is damaged", kind=["helper"])
    refused(CorruptData, "is damaged", left_out=[1])
    refused(CorruptData, "is damaged", ("keys", b"00"))
    refused(CorruptData, "is damaged", ("answered.json/a", b"00"))
    refused(VersionMismatch, "does not know", kind="nobody")
    refused(VersionMismatch, "has format 1, and this release reads format 2 alone", format=1)
    backup.unlink()
    with tarfile.open(backup, "w:gz") as archive:
        link = tarfile.TarInfo("keys")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
    with pytest.raises(CorruptData, match="is damaged"):
        restore_backup(backup, masks)
    with pytest.raises(DataNotFound, match="is a folder, and a backup is one file"):
        restore_backup(tmp_path, masks)


def test_a_backup_of_another_kind_or_federation_is_refused(masks, town, tmp_path, ask):
    ask("backup", town, tmp_path / "b")
    there = contents(masks)
    said = ask("restore", tmp_path / "b", masks, code=2)
    assert "the backup is of the server of a federation, and" in said["error"]
    assert contents(masks) == there
    ask("backup", masks, tmp_path / "m")
    other = masker_folder(tmp_path / "other").path
    said = ask("restore", tmp_path / "m", other, code=2)
    assert "holds another one, of little-town" in said["error"]
    said = ask("restore", tmp_path / "b", tmp_path / "m", code=2)
    assert "is no folder" in said["error"]


def test_a_folder_that_is_served_is_not_replaced(masks, tmp_path, ask):
    ask("backup", masks, tmp_path / "b")
    holds = (
        "import sys, time; from pathlib import Path; from sottovoce.stores.locking import "
        "locked\nwith locked(Path(sys.argv[1])):\n print('holds', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", holds, str(masks / "masker.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"holds\n"
        there = contents(masks)
        said = ask("restore", tmp_path / "b", masks, code=7)
        assert "is served by another process already; stop that one first" in said["error"]
        ask("backup", masks, tmp_path / "while it runs")
        child.kill()
    assert contents(masks) == there
    assert ask("restore", tmp_path / "b", masks)["next_round"] == 0


def test_one_that_serves_from_postgresql_is_known_by_its_process(town, tmp_path, ask):
    """Where there is no lock."""
    (town / "state.json").write_text('{"kept_in": "postgresql"}')
    (town / "server.db").unlink()
    said = ask("backup", town, tmp_path / "b")
    assert "copy it with pg_dump" in said["notes"][0]
    assert "server.db" not in contents(unpacked(tmp_path / "b", tmp_path / "content"))
    ready = town / "server-8443.json"
    ready.write_text(json.dumps({"url": "https://x", "pid": os.getpid(), "port": 8443}))
    said = ask("restore", tmp_path / "b", town, code=7)
    assert f"served by process {os.getpid()}" in said["error"]
    ready.unlink()
    said = ask("restore", tmp_path / "b", town, "--next-round", 9, code=2)
    assert "--skip-to-round" in said["error"]
    said = ask("restore", tmp_path / "b", town)
    assert "pg_restore" in said["means"][0]
    assert said["next_round"] is None
    assert open_folder(town).kept_in() == "postgresql"


def test_keys_that_were_left_out_come_from_elsewhere(masks, tmp_path, ask):
    ends = (".key", "secret", "token", "introduction.json")
    secret = {name: body for name, body in contents(masks).items() if name.endswith(ends)}
    assert len(secret) >= 5
    said = ask("backup", masks, tmp_path / "b", "--without-keys")
    assert set(secret) < set(said["left_out"])
    kept = b"".join(contents(unpacked(tmp_path / "b", tmp_path / "content")).values())
    assert not any(body.strip() in kept for body in secret.values())
    ask("restore", tmp_path / "b", masks)  # they are there
    assert {name: contents(masks)[name] for name in secret} == secret
    elsewhere = tmp_path / "elsewhere"
    masks.rename(elsewhere)
    lost = ("restore", tmp_path / "b", masks, "--next-round", 3)
    assert "name the folder that has it with --keys" in ask(*lost, code=2)["error"]
    wrong = masker_folder(tmp_path / "wrong").path
    assert "is not the key of seal.pub" in ask(*lost, "--keys", wrong, code=7)["error"]
    assert not masks.exists()
    ask(*lost, "--keys", elsewhere)
    assert {name: contents(masks)[name] for name in secret} == secret


def test_what_was_replaced_is_kept_and_is_nobodys_business(masks, tmp_path):
    make_backup(masks, tmp_path / "b")
    (masks / "notes.txt").write_text("mine")
    masks.chmod(0o755)
    there = contents(masks)
    done = restore_backup(tmp_path / "b", masks, now=MONDAY)
    assert done.aside == tmp_path / "masks.before-20261116-100000"
    assert contents(done.aside) == there
    assert stat.S_IMODE(done.aside.stat().st_mode) == 0o700
    # Twice within a second: neither what was there first nor what is there now is lost.
    again = restore_backup(tmp_path / "b", masks, now=MONDAY)
    assert again.aside == tmp_path / "masks.before-20261116-100000-2"
    assert contents(done.aside) == there
    assert (masks / "seal.key").is_file()


def test_a_move_that_fails_leaves_everything_in_its_place(masks, tmp_path, monkeypatch):
    make_backup(masks, tmp_path / "b")
    there = contents(masks)

    def busy(first, second, flag):
        if flag == backups._EXCHANGE:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(second))
        return real(first, second, flag)

    real = backups._renamed
    monkeypatch.setattr(backups, "_renamed", busy)
    with pytest.raises(OSError, match="busy"):
        restore_backup(tmp_path / "b", masks)
    assert contents(masks) == there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "masks"]


def test_it_works_where_the_system_cannot_exchange(masks, tmp_path, monkeypatch):
    make_backup(masks, tmp_path / "b")
    there = contents(masks)
    monkeypatch.setattr(backups, "_renamed", lambda *_: False)
    done = restore_backup(tmp_path / "b", masks)
    assert contents(done.aside) == contents(masks) == there
    with pytest.raises(UsageError, match="is there already"):
        make_backup(masks, tmp_path / "b")


KILLED = """
import os, signal, sys
from pathlib import Path
from sottovoce.services.copies import copying as files
from sottovoce.services.copies.copying import restore_backup
steps, last = [0], int(sys.argv[3])
def die(real):
    def then(*given, **named):
        for moment in (0, 1):
            if steps[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            steps[0] += 1
            done = done if moment else real(*given, **named)
        return done
    return then
os.fsync, files._renamed = die(os.fsync), die(files._renamed)
restore_backup(Path(sys.argv[1]), Path(sys.argv[2]))
print(steps[0])
"""


@pytest.mark.slow
def test_whenever_it_is_killed_the_folder_is_the_former_or_the_restored_one(masks, tmp_path):
    """Before and after each move, and before and after some of the writes."""
    make_backup(masks, tmp_path / "b")
    restored, ends = contents(unpacked(tmp_path / "b", tmp_path / "content")), []
    del restored["backup.json"]

    def restore(step):
        (masks / "notes.txt").write_text("mine")
        command = [sys.executable, "-c", KILLED, tmp_path / "b", masks, str(step)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == (0 if step < 0 else -signal.SIGKILL), done.stderr
        now = contents(masks)
        assert now in (restored | {"notes.txt": b"mine"}, restored)
        if now == restored:  # and what was there is still to be found
            [aside] = [place for place in tmp_path.glob("*masks?*") if place.is_dir()]
            assert contents(aside) == restored | {"notes.txt": b"mine"}
        ends.append(now == restored)
        for rest in tmp_path.glob("*masks?*"):
            shutil.rmtree(rest)
        return done.stdout

    steps = int(restore(-1))
    for step in [*range(0, steps - 8, 8), *range(steps - 8, steps)]:
        restore(step)
    assert {*ends} == {True, False}


# --- databases ------------------------------------------------------------------------------------


def test_a_copy_of_a_database_in_use_is_of_one_moment(town, tmp_path):
    """A writer moves two numbers together, as fast as it can."""
    place, stop = town / "server.db", threading.Event()
    link = sqlite3.connect(place, check_same_thread=False, isolation_level=None, timeout=10)
    link.execute("CREATE TABLE pair (a INTEGER, b INTEGER, filler BLOB)")
    link.executemany("INSERT INTO pair VALUES (0, 0, ?)", [(bytes(4000),)] * 200)
    wrote = [0]

    def write():
        while not stop.is_set():
            link.execute("BEGIN IMMEDIATE")
            link.execute("UPDATE pair SET a = a + 1")
            link.execute("UPDATE pair SET b = b + 1")
            link.execute("COMMIT")
            wrote[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(5):
            make_backup(town, tmp_path / f"b{n}")
    finally:
        stop.set()
        writer.join()
        link.close()
    moments = []
    for n in range(5):
        copy = unpacked(tmp_path / f"b{n}", tmp_path / f"content{n}") / "server.db"
        assert not list(copy.parent.glob("server.db-*"))
        with sqlite3.connect(copy) as found:
            [(a, b, rows)] = found.execute("SELECT min(a), max(b), count(*) FROM pair")
        assert (a, rows) == (b, 200)
        moments.append(a)
    assert moments == sorted(moments)
    assert 0 < moments[-1] <= wrote[0]


def test_a_damaged_database_is_not_copied(town, tmp_path):
    place = town / "server.db"
    body = bytearray(place.read_bytes())
    body[5000:9000] = os.urandom(4000)
    place.write_bytes(body)
    with pytest.raises((CorruptData, ServiceError), match=r"server\.db"):
        make_backup(town, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["town"]


def test_a_key_ring_that_is_written_over_meanwhile_is_copied_whole(town, tmp_path, monkeypatch):
    """The server destroys old keys by writing zeros over the former file."""
    place, real, once = town / "keys" / "server.key", Path.read_bytes, []

    def read(source):
        if source == place and not once:
            once.append(1)
            body = real(place)
            with place.open("r+b") as file:
                file.write(bytes(len(body)))
            found = real(source)
            place.write_bytes(body)
            return found
        return real(source)

    monkeypatch.setattr(Path, "read_bytes", read)
    make_backup(town, tmp_path / "b")
    assert once
    copy = unpacked(tmp_path / "b", tmp_path / "content") / "keys" / "server.key"
    assert copy.read_bytes() == place.read_bytes()
