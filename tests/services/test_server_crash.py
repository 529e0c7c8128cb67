"""kill -9, a full disk, too much at once: nothing that was acknowledged is lost, nothing counts
twice, and memory stays bounded."""

import contextlib
import http.client
import resource
import socket
import sqlite3
import threading
import time

import numpy as np
import pytest
from server_world import USERS, Client, Fleet, ServerProcess, new_folder, simulated
from talk import until

ROUNDS = 3


class Restarting:
    """A server that is killed and started again, and devices that send until they are answered."""

    def __init__(self, path, folder, fleet):
        self.path, self.folder, self.fleet = path, folder, fleet
        self.server = ServerProcess(path)
        self.acknowledged = []

    def kill_and_restart(self):
        self.server.kill()
        self.server = ServerProcess(self.path)

    def client(self):
        return Client(self.folder, self.server.port)

    def send(self, payload):
        """The answer that a device gets in the end."""
        end = time.monotonic() + 600
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException), self.client() as client:
                got = client.post("/v1/reports", payload)
                if got.status != 503:
                    return got
            time.sleep(0.02)
        raise AssertionError("no answer")


@pytest.mark.parametrize("acknowledged", [0, pytest.param(3, marks=pytest.mark.slow), 8])
def test_a_killed_server_goes_on_where_it_was(tmp_path, acknowledged):
    """Killed in each round after so many reports, at the latest right after the last one."""
    folder, fleet = new_folder(tmp_path, rounds=ROUNDS, min_fraction=1.0), Fleet()
    here = Restarting(tmp_path, folder, fleet)
    try:
        with here.client() as client:
            fleet.enrol(folder, client)
        for round in range(ROUNDS):
            with here.client() as client:
                now = client.wait(round=round, state="open")
                view = client.model(round)
            payloads = [fleet.report(n, view, now["attempt"]) for n in range(USERS)]
            for payload in payloads[:acknowledged]:
                assert here.send(payload).status == 204
            here.kill_and_restart()
            for payload in payloads[:acknowledged]:
                assert here.send(payload).error == "replay", "an acknowledged report was lost"
            for payload in payloads[acknowledged:]:
                assert here.send(payload).status == 204
        with here.client() as client:
            client.wait(round=ROUNDS, state="finished")
            assert np.array_equal(client.model(ROUNDS).items, simulated(ROUNDS))
            past = client.status()["rounds"]
        assert [(p["round"], p["reported"]) for p in past] == [(r, USERS) for r in range(ROUNDS)]
    finally:
        here.server.kill()


def test_a_full_disk_is_told_and_survived(tmp_path):
    folder, fleet = new_folder(tmp_path, rounds=2, min_fraction=1.0), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        view = client.model(0)
        assert client.post("/v1/reports", fleet.report(0, view)).status == 204
        pid, (_, hard) = server.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        for number in (1, 2):
            got = client.post("/v1/reports", fleet.report(number, view))
            assert (got.status, got.error) == (503, "unavailable")
            assert int(got.headers["retry-after"]) > 0
        assert client.get("/v1/round").status == 200
        assert client.get("/v1/model/0").status == 200
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert client.status()["reported"] == 1
        for number in range(1, USERS):
            assert client.post("/v1/reports", fleet.report(number, view)).status == 204
        client.wait(round=1, state="open")
        fleet.run_round(client)
        client.wait(round=2, state="finished")
        assert np.array_equal(client.model(2).items, simulated(2))
        assert client.status()["refused"]["unavailable"] >= 2


def test_a_disk_that_is_full_when_a_round_closes(tmp_path):
    """The round is closed when there is room again, with the same model."""
    folder, fleet = new_folder(tmp_path, rounds=1, deadline_seconds=8.0, min_fraction=0.5), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        fleet.run_round(client, range(7))
        pid, (_, hard) = server.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        time.sleep(9.0)
        assert client.round()["round"] == 0
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        client.wait(round=1, state="finished")
        over = client.status()["rounds"]
        assert [(p["outcome"], p["missing"]) for p in over] == [("deadline", [7])]


def test_overload_is_told_and_memory_is_bounded(tmp_path):
    """While the disk does not answer, a few reports wait and the rest come back later."""
    folder, fleet = new_folder(tmp_path, rounds=1, min_fraction=1.0), Fleet()
    limits = {"waiting": 2, "retry_seconds": 7}
    with ServerProcess(tmp_path, limits=limits) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        view = client.model(0)
        payloads = [fleet.report(n, view) for n in range(USERS)]
        blocker = sqlite3.connect(tmp_path / "server.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        answers = {}

        def send(number):
            with Client(folder, server.port) as own:
                answers[number] = own.post("/v1/reports", payloads[number])

        senders = [threading.Thread(target=send, args=(n,)) for n in range(USERS)]
        for sender in senders:
            sender.start()
        end = time.monotonic() + 60
        while len(answers) < USERS - 4 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(1.0)  # the last of them
        turned_away = dict(answers)
        assert len(turned_away) >= USERS - 4
        for got in turned_away.values():
            assert (got.status, got.error) == (503, "overload")
            assert got.headers["retry-after"] == "7"
        assert client.get("/v1/round").status == 200, "everything else goes on"
        blocker.execute("ROLLBACK")
        blocker.close()
        for sender in senders:
            sender.join()
        waited = [n for n in range(USERS) if n not in turned_away]
        assert [answers[n].status for n in waited] == [204] * len(waited)
        for number in turned_away:
            assert client.post("/v1/reports", payloads[number]).status == 204
        client.wait(round=1, state="finished")
        assert np.array_equal(client.model(1).items, simulated(1))
        assert client.status()["refused"]["overload"] == len(turned_away)


def begin_report(folder, server, length=900):
    """Somebody who announces a report and does not send it."""
    other = Client(folder, server.port)
    other.get("/health")
    other.link.putrequest("POST", "/v1/reports")
    other.link.putheader("Content-Length", str(length))
    other.link.endheaders(b"x")
    return other


def test_slow_senders_and_too_many_connections_are_turned_away(tmp_path):
    folder = new_folder(tmp_path)
    limits = {"connections": 6, "body_seconds": 2.0, "in_flight": 2000, "unproven": 2000}
    with ServerProcess(tmp_path, limits=limits) as server, Client(folder, server.port) as client:
        holding = [begin_report(folder, server) for _ in range(3)]
        statuses = [other.link.getresponse().status for other in holding]
        assert statuses == [400] * 3, "it did not arrive in time; what was announced took no room"
        many = [Client(folder, server.port) for _ in range(8)]
        found = [other.get("/health").status for other in many]
        assert found == [200] * 8, "the idle ones give way"
        busy = [begin_report(folder, server) for _ in range(6)]
        assert client.get("/health").status == 503, "the busy ones do not"
        assert client.operator("GET", "/v1/operator/status").status == 200
        for other in [*many, *holding, *busy]:
            other.close()
        until(lambda: client.get("/health").status == 200)


def test_a_head_must_be_short(tmp_path):
    folder = new_folder(tmp_path)
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        for head in (b"x-long: " + b"y" * 100_000, b"x: y\r\n" * 20_000):
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                link = client.context.wrap_socket(raw, server_hostname="127.0.0.1")
                answer = b"400"
                with contextlib.suppress(OSError):  # it is cut off, perhaps before it was read
                    link.sendall(b"GET /health HTTP/1.1\r\n" + head)
                    answer = link.recv(100) or answer
                assert b"400" in answer
                link.close()
        assert client.get("/health", X_Long="y" * 8000).status == 200


BROKEN = """
import sys
from pathlib import Path
from sottovoce.services.kit.serving import serve
from sottovoce.services.server.process import ServerService
from sottovoce.stores import server as records
from sottovoce.errors import ServiceError

def broken(*_):
    raise KeyError("a mistake of ours")

records.accept = broken
try:
    serve(ServerService(), Path(sys.argv[1]), port=0)
except ServiceError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_server_with_a_mistake_stops_rather_than_hang(tmp_path):
    folder, fleet = new_folder(tmp_path), Fleet()
    with ServerProcess(tmp_path, program=BROKEN) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        payload = fleet.report(0, client.model(0))
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert client.post("/v1/reports", payload).status != 204
        assert server.process.wait(timeout=60) == 7
        assert "nobody has foreseen" in server.log.read_text()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        assert client.post("/v1/reports", payload).status == 204
