"""The server as a process: rounds, starts and stops, and what it says where it cannot start."""

import json
import os
import socket
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from server_world import USERS, Client, Fleet, ServerProcess, new_folder, simulated, terms

from sottovoce.errors import ConfigError, ServiceError, UsageError
from sottovoce.stores.database import SCHEMA, Database, meta
from sottovoce.stores.keys import init_keys
from sottovoce.stores.server_folder import create_folder, invite, open_folder


def test_rounds_give_the_model_of_simulation_and_the_process_stops_cleanly(tmp_path):
    folder, fleet = new_folder(tmp_path, rounds=3), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        assert client.get("/health").body == b"ok"
        assert client.round()["state"] == "waiting"
        fleet.enrol(folder, client)
        for round in range(3):
            client.wait(round=round, state="open")
            assert fleet.run_round(client) == [204] * USERS
        client.wait(round=3, state="finished")
        assert np.array_equal(client.model(3).items, simulated(3))
        status = client.status()
        assert (status["enrolled"], status["active"], status["refused"]) == (USERS, USERS, {})
        assert [p["outcome"] for p in status["rounds"]] == ["goal"] * 3

        assert client.operator("POST", "/v1/operator/target", {"rounds": 4}).json() == {"rounds": 4}
        client.wait(round=3, state="open")
        fleet.run_round(client)
        client.wait(round=4, state="finished")
        assert np.array_equal(client.model(4).items, simulated(4))

        assert server.stop() == 0
    assert not (tmp_path / "server.json").exists()
    for line in server.log.read_text().splitlines():
        found = json.loads(line)
        assert found["level"] == "info"
        assert not {"number", "devices", "client"} & set(found)


def test_who_cannot_start_says_why(tmp_path):
    folder = new_folder(tmp_path / "town")

    def complaint(path=tmp_path / "town", **options):
        with ServerProcess(path, wait=False, **options) as server:
            code = server.process.wait(timeout=60)
            text = server.log.read_text().strip()
        assert code == 7, text
        assert len(text.splitlines()) == 1
        assert text.startswith("error: ")
        return text

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "in use" in complaint(port=taken.getsockname()[1])

    with ServerProcess(tmp_path / "town"):
        assert "another process" in complaint()

    (tmp_path / "empty").mkdir()
    assert "federation.json is not there" in complaint(tmp_path / "empty")

    (folder.keys / "server.key").rename(folder.keys / "elsewhere")
    assert "server.key is not there" in complaint()
    (folder.keys / "elsewhere").rename(folder.keys / "server.key")

    os.rename(folder.keys, tmp_path / "good")
    init_keys(folder.keys, days=1, now=datetime.now(UTC) - timedelta(days=30))
    assert "expired" in complaint()
    for file in folder.keys.iterdir():
        file.unlink()
    folder.keys.rmdir()
    os.rename(tmp_path / "good", folder.keys)

    database = Database.sqlite(tmp_path / "town" / "server.db")
    with database.writing() as link:
        link.execute(meta.update().where(meta.c.key == "schema").values(value="99"))
    database.close()
    assert f"has format 99, and this release reads format {SCHEMA} alone" in complaint()
    (tmp_path / "town" / "server.db").write_bytes(b"not a database at all, by any means" * 40)
    assert "cannot be used" in complaint()


def test_plaintext_is_for_loopback(tmp_path):
    from sottovoce.services.kit.serving import serve
    from sottovoce.services.server.process import ServerService

    new_folder(tmp_path)
    with pytest.raises(UsageError, match="loopback"):
        serve(ServerService(), tmp_path, "0.0.0.0", 0, plaintext=True)
    with ServerProcess(tmp_path, plaintext=True) as server:
        assert server.url.startswith("http://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert link.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_folders_are_checked(tmp_path):
    new_folder(tmp_path)
    with pytest.raises(UsageError, match="already"):
        new_folder(tmp_path)
    with pytest.raises(ConfigError, match="items"):
        create_folder(tmp_path / "b", terms(), [("a", "A")])
    table = json.loads((tmp_path / "federation.json").read_text())
    for change in (
        {"format": 2},
        {"rounds": "many"},
        {"cohort_size": None},
        {"terms": {**table["terms"], "protocol": 9}},
        {"rules": {"min_fraction": 7.0}},
        {"rules": 3},
    ):
        (tmp_path / "federation.json").write_text(json.dumps({**table, **change}))
        with pytest.raises(ServiceError):
            open_folder(tmp_path)
    (tmp_path / "federation.json").write_text("{")
    with pytest.raises(ServiceError, match="JSON"):
        open_folder(tmp_path)
    assert (tmp_path / "federation.json").stat().st_mode & 0o077 == 0


def test_invitations_are_unique_and_only_hashes_are_kept(tmp_path):
    folder = new_folder(tmp_path)
    database = folder.database()
    first = invite(folder, database, "https://example.org", count=2)
    more = invite(folder, database, "https://example.org", [7, 9])
    last = invite(folder, database, "https://example.org")
    assert [i.number for i in [*first, *more, *last]] == [0, 1, 7, 9, 10]
    with pytest.raises(UsageError, match="device 7"):
        invite(folder, database, "https://example.org", [6, 7])
    with pytest.raises(UsageError, match="number"):
        invite(folder, database, "https://example.org", [2**32])
    database.close()
    content = (tmp_path / "server.db").read_bytes()
    for invitation in first:
        assert bytes.fromhex(invitation.token) not in content
        assert invitation.token.encode() not in content
        assert invitation.token not in repr(invitation)


def test_who_comes_after_a_round_was_opened_takes_nobodys_place(tmp_path):
    """With everybody asked, a late comer reports first: the round still waits for those it asked,
    and says how many they were."""
    folder = new_folder(tmp_path, rounds=1, min_devices=2)
    fleet = Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client, numbers=[0, 2])
        client.wait(round=0, state="open")
        fleet.enrol(folder, client, numbers=[5])
        assert fleet.run_round(client, [5, 0]) == [204, 204]
        assert fleet.run_round(client, [5]) == [409], "the same again counts once"
        status = client.status()
        assert (status["reported"], status["goal"], status["asked"]) == (2, 3, 3)
        assert client.round()["state"] == "open", "one who was asked is missing"
        assert fleet.run_round(client, [2]) == [204]
        client.wait(round=1, state="finished")
        (past,) = client.status()["rounds"]
    assert (past["asked"], past["reported"], past["missing"]) == (3, 3, [])
    assert past["outcome"] == "goal"
