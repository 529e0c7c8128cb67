"""The folder of a server: its state is where it was, or the operator is told."""

import contextlib
import json
import os
import shutil
import socket

import pytest
from server_world import ITEMS, ServerProcess, new_folder

from sottovoce.errors import ServiceError, UsageError
from sottovoce.stores import server as roster
from sottovoce.stores.locking import write_ready_file
from sottovoce.stores.server_folder import DATABASE_VARIABLE, invite, open_folder
from sottovoce.wire.catalogue import as_table


@pytest.fixture
def town(tmp_path):
    """A federation that has invited somebody."""
    folder = new_folder(tmp_path / "town")
    with contextlib.closing(folder.database()) as database:
        invite(folder, database, "https://example.org")
    return open_folder(tmp_path / "town")


def invited(folder):
    with contextlib.closing(folder.database()) as database, database.reading() as link:
        return roster.known_numbers(link, range(10))


def remove_state(folder):
    for place in folder.path.glob("server.db*"):
        place.unlink()


def test_a_lost_database_is_not_replaced_by_an_empty_one(town, tmp_path):
    assert list(invited(town)) == [0]
    shutil.copy(town.path / "server.db", tmp_path / "copy")
    remove_state(town)
    for _ in range(2):
        with pytest.raises(ServiceError, match=r"server\.db is not there, but"):
            town.database()
    assert not list(town.path.glob("server.db*")), "nothing was made"
    with ServerProcess(town.path, wait=False) as server:
        assert server.process.wait(timeout=60) == 7
        assert "is not there, but" in server.log.read_text()
        assert len(server.log.read_text().splitlines()) == 1
    (town.path / "server.db").touch()
    for _ in range(2):
        with pytest.raises(ServiceError, match="is empty, but"):
            town.database()
    remove_state(town)
    shutil.copy(tmp_path / "copy", town.path / "server.db")
    assert list(invited(town)) == [0]


def test_the_state_is_in_one_place(town, monkeypatch):
    elsewhere = "postgresql://town@/town?host=/nowhere"
    with pytest.raises(
        ServiceError, match="in SQLite, not in PostgreSQL; unset SOTTOVOCE_DATABASE"
    ):
        town.database(elsewhere)
    monkeypatch.setenv(DATABASE_VARIABLE, elsewhere)
    with pytest.raises(ServiceError, match="is in SQLite"):
        town.database()
    monkeypatch.delenv(DATABASE_VARIABLE)
    (town.path / "state.json").write_text(json.dumps({"kept_in": "postgresql"}))
    remove_state(town)
    with pytest.raises(
        ServiceError, match="in PostgreSQL, not in SQLite; name it in SOTTOVOCE_DATA"
    ):
        town.database()
    assert not list(town.path.glob("server.db*"))
    for content in ("{", "[]", '{"kept_in": "the moon"}'):
        (town.path / "state.json").write_text(content)
        with pytest.raises(ServiceError, match="does not say"):
            town.database()


def test_a_database_that_could_not_be_reached_leaves_the_choice_open(tmp_path):
    folder = new_folder(tmp_path / "town")
    with pytest.raises(ServiceError, match="cannot be used"):
        folder.database(f"postgresql://town@/town?host={tmp_path}")
    folder.database().close()
    folder.database().close()


@pytest.mark.parametrize(
    "server",
    [
        "example.org",
        "https://",
        "https://example.org/",
        "https://example.org/path",
        "https://example.org?x=1",
        "https://example.org#x",
        "https://me:secret@example.org",
        "https://example.org:port",
        "https://example.org:0",
        "https://example.org:99999",
        "https://exa mple.org",
        "https://[::1",
        "ftp://example.org",
        "https://example.org\n",
        "",
    ],
)
def test_an_address_that_is_none_uses_no_number(town, server):
    with contextlib.closing(town.database()) as database:
        with pytest.raises(UsageError, match="address like"):
            invite(town, database, server)
        assert invite(town, database, "https://example.org")[0].number == 1


@pytest.mark.parametrize(
    "server", ["https://example.org:8443", "http://127.0.0.1:80", "https://[::1]:8443"]
)
def test_addresses(town, server):
    with contextlib.closing(town.database()) as database:
        assert invite(town, database, server)[0].server == server


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"items": [["v", "V"]] * (ITEMS - 1)}, f"{ITEMS - 1} items"),
        ({"items": [["v", "V"]] * (ITEMS + 1)}, f"{ITEMS + 1} items"),
        ({"items": [["v"]] * ITEMS}, "no catalogue"),
        ({"items": [[1, 2]] * ITEMS}, "no catalogue"),
        ({"items": 3}, "no catalogue"),
        ([], "no catalogue"),
    ],
)
def test_a_catalogue_of_another_federation_is_refused(town, content, words):
    place = town.path / "catalogue.json"
    place.write_text(json.dumps(content))
    with pytest.raises(ServiceError, match=words):
        town.catalogue()


def test_the_server_does_not_start_with_a_wrong_catalogue(town):
    (town.path / "catalogue.json").write_text('{"items": []}')
    with ServerProcess(town.path, wait=False) as server:
        assert server.process.wait(timeout=60) == 7
        assert f"has 0 items, the terms of the federation {ITEMS}" in server.log.read_text()
        assert len(server.log.read_text().splitlines()) == 1


def test_a_command_and_a_server_that_write_at_once_leave_whole_files(tmp_path, monkeypatch):
    """Both bring the files up to the database, and neither waits for the other."""
    folder = new_folder(tmp_path / "town")
    there = {place.name for place in folder.path.iterdir()}
    many = folder.plan.terms.n_items
    short, long = (
        json.dumps(as_table([(f"v{n}", title) for n in range(many)], ())).encode()
        for title in ("short", "a longer title")
    )
    sync, others = os.fsync, [short]

    def another_one_first(handle):
        if others:
            folder.write_down(others.pop())
            assert folder.catalogue() == short
        sync(handle)

    monkeypatch.setattr(os, "fsync", another_one_first)
    folder.write_down(long)
    assert not others
    assert folder.catalogue() == long
    assert {place.name for place in folder.path.iterdir()} == there


def test_servers_on_one_folder_have_a_ready_file_each(town, monkeypatch):
    """Two containers on one volume: each listens at the same port, as a process of its own."""
    for host, port in (("one", 8443), ("two", 8443), ("two", 8444)):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        monkeypatch.setattr(os, "getpid", lambda port=port: os.getppid() if port == 8443 else 1)
        more = {"console": "http://127.0.0.1:1"} if port == 8444 else {}
        place = town.ready_file(port, shared=True)
        write_ready_file(place, f"https://{host}:{port}", port, **more)
    monkeypatch.undo()
    assert len(list(town.path.glob("server-*.json"))) == 3
    for host, url in (("one", "https://one:8443"), ("two", "https://two:8444")):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        assert town.running()["url"] == url, "the one with a console goes first"


def test_a_ready_file_of_a_server_that_was_killed_goes(town):
    place = town.ready_file(8443, shared=True)
    write_ready_file(place, "https://localhost:8443", 8443)
    place.write_text(place.read_text().replace(str(os.getpid()), str(2**22 + 1)))
    assert town.running() is None
    town.ready_file(8443, shared=True)
    assert not place.exists()
