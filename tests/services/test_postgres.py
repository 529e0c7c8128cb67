"""Several server processes on one PostgreSQL, which the test starts by itself."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import (
    USERS,
    Client,
    Fleet,
    ServerProcess,
    acting,
    enrolment,
    new_folder,
    selected,
    simulated,
)
from talk import until

from sottovoce.errors import ServiceError, UsageError
from sottovoce.stores import places
from sottovoce.stores import server as records
from sottovoce.stores.database import Database
from sottovoce.stores.server_folder import invite


def coordinates(server):
    return "round o" in server.log.read_text()


def test_two_processes_share_a_federation_and_one_is_killed(tmp_path, postgres):
    """Reports are spread over both; the one that coordinates dies in the middle of a round."""
    url = postgres.fresh("two")
    rounds = 4
    folder, fleet = new_folder(tmp_path, rounds=rounds, min_fraction=1.0), Fleet()
    with (
        ServerProcess(tmp_path, database=url) as one,
        ServerProcess(tmp_path, database=url) as two,
        Client(folder, one.port) as first,
        Client(folder, two.port) as second,
    ):
        fleet.enrol(folder, first, url, [0, 1, 2, 3])
        fleet.enrol(folder, second, url, [4, 5, 6, 7])
        for round in range(2):
            for client in (first, second):
                client.wait(round=round, state="open")
            view = first.model(round)
            assert np.array_equal(second.model(round).items, view.items)
            for number in range(USERS):
                # Also a device that enrolled with the other process.
                client = (first, second)[(number + round) % 2]
                payload = fleet.report(number, view)
                assert client.post("/v1/reports", payload).status == 204
                if number < USERS - 1:
                    other = (second, first)[(number + round) % 2]
                    assert other.post("/v1/reports", payload).error == "replay"
                    again = fleet.sealed(number, round, 0, payload[-200:])
                    assert other.post("/v1/reports", again).status in (400, 409)
        for client in (first, second):
            client.wait(round=2, state="open")
        assert [coordinates(one), coordinates(two)].count(True) == 1
        view = second.model(2)
        for number in range(5):
            client = (first, second)[number % 2]
            assert client.post("/v1/reports", fleet.report(number, view)).status == 204
        dying, living = (one, second) if coordinates(one) else (two, first)
        dying.kill()
        for number in range(5):
            got = living.post("/v1/reports", fleet.report(number, view))
            assert got.error == "replay", "an acknowledged report was lost"
        for number in range(5, USERS):
            assert living.post("/v1/reports", fleet.report(number, view)).status == 204
        living.wait(round=3, state="open")
        assert fleet.run_round(living) == [204] * USERS
        living.wait(round=4, state="finished")
        assert np.array_equal(living.model(4).items, simulated(4))
        status = living.status()
        assert [(p["round"], p["reported"]) for p in status["rounds"]] == [
            (r, USERS) for r in range(rounds)
        ]
        assert status["refused"]["replay"] >= 12


def test_a_device_may_ask_the_process_that_lags_behind(tmp_path, postgres):
    """What one process published the other one has, too, at once."""
    url = postgres.fresh("lag")
    folder, fleet = new_folder(tmp_path, rounds=3, cohort_size=4), Fleet()
    with (
        ServerProcess(tmp_path, database=url, wait=False) as one,
        ServerProcess(tmp_path, database=url) as two,  # both at once, on an empty database
        Client(folder, two.port) as second,
    ):
        one.wait_until_ready()
        first = Client(folder, one.port)
        fleet.enrol(folder, first, url)
        for round in range(3):
            now = first.wait(round=round, state="open")
            asked = selected(second, round, now["attempt"])
            view = second.model(round)
            for number in asked:
                assert second.post("/v1/reports", fleet.report(number, view)).status == 204
        first.wait(round=3, state="finished")
        assert len(list(tmp_path.glob("server-*.json"))) == 2
        first.close()
        assert one.stop() == 0
        [left] = tmp_path.glob("server-*.json")
        assert json.loads(left.read_text())["port"] == two.port
        assert np.array_equal(second.model(3).items, simulated(3, cohort_size=4))


def test_who_is_shut_out_is_out_in_every_process_at_once(tmp_path, postgres):
    url = postgres.fresh("shut")
    folder, fleet = new_folder(tmp_path, rounds=3), Fleet()
    with (
        ServerProcess(tmp_path, database=url) as one,
        ServerProcess(tmp_path, database=url) as two,
        Client(folder, one.port) as first,
        Client(folder, two.port) as second,
    ):
        fleet.enrol(folder, first, url)
        view = first.wait(round=0, state="open") and first.model(0)
        database = folder.database(url)
        acting(database).shut_out([4])
        for client in (first, second):
            got = client.post("/v1/reports", fleet.report(4, view))
            assert (got.status, got.error) == (403, "shut_out")
        acting(database).readmit([4])
        database.close()
        assert second.post("/v1/reports", fleet.report(4, view)).status == 204


def test_a_server_without_its_database_is_there_and_not_ready(tmp_path, postgres):
    url = postgres.fresh("ready")
    folder = new_folder(tmp_path)
    with ServerProcess(tmp_path, database=url) as server, Client(folder, server.port) as client:

        def answers(path, status):
            end = time.monotonic() + 600
            while (got := client.get(path)).status != status:
                assert time.monotonic() < end, got
                time.sleep(0.1)
            return got.body

        assert answers("/ready", 200) == b"ready"
        postgres.stop()
        assert b"cannot use its disk or database" in answers("/ready", 503)
        assert client.get("/health").body == b"ok"
        postgres.start()
        assert answers("/ready", 200) == b"ready"


def test_concurrent_reports_of_one_device_count_once(postgres):
    """The database decides, whichever process was asked."""
    database = Database.at(postgres.fresh("race"))
    database.create()
    database.create()
    with database.writing() as link:
        records.open_round(link, 0, 0, 5, np.arange(5))

    def send(turn):
        mark = bytes([turn]) * 16
        with database.writing() as link:
            return records.accept(link, [records.Submission(0, 0, 3, mark, b"body")])[0]

    with ThreadPoolExecutor(8) as pool:
        found = sorted(pool.map(send, range(24)))
    assert found == ["accepted"] + ["second_submission"] * 23
    with database.reading() as link:
        assert list(records.bodies(link, 0, 0)) == [[(3, b"body")]]
    database.close()


def test_one_key_posted_to_two_servers_at_once_gets_one_number(tmp_path, postgres):
    """Two invitations with one key, at the same moment, both got 200: then two messages of one
    device were in every sum, and the helper refused all of them."""
    url, races = postgres.fresh("key"), 12
    folder = new_folder(tmp_path, min_devices=races + 1)
    with (
        ServerProcess(tmp_path, database=url) as one,
        ServerProcess(tmp_path, database=url) as two,
        Client(folder, one.port) as first,
        Client(folder, two.port) as second,
        contextlib.closing(folder.database(url)) as database,
        ThreadPoolExecutor(2) as pool,
    ):
        invitations = invite(folder, database, "https://127.0.0.1:1", range(2 * races))
        together = threading.Barrier(2, timeout=30)

        def post(client, invitation, key):
            body = enrolment(invitation, key)
            together.wait()
            return client.post("/v1/enrol", body)

        for race in range(races):
            key, mine = Ed25519PrivateKey.generate(), invitations[2 * race : 2 * race + 2]
            got = list(pool.map(post, (first, second), mine, (key, key)))
            assert sorted(answer.status for answer in got) == [200, 400]
            won = [answer.status for answer in got].index(200)
            assert got[1 - won].error == "duplicate"
            assert "under another number" in got[1 - won].json()["detail"]
            # Wherever the loser asks again, and whoever lost the answer.
            for client in (first, second):
                again = client.post("/v1/enrol", enrolment(mine[1 - won], key))
                assert (again.status, again.error) == (400, "duplicate")
                assert client.post("/v1/enrol", enrolment(mine[won], key)).status == 200
        with database.reading() as link:
            assert records.count_keys(link) == races


def test_a_key_that_comes_by_invitation_and_as_a_stranger_at_once_gets_one_number(postgres):
    """Whoever has no invitation gets a place; one process takes its turn, the other does not."""
    races, url = 12, postgres.fresh("places")
    databases = [Database.at(url), Database.at(url)]
    databases[0].create()
    tokens = [bytes([race]) * 16 for race in range(races)]
    with databases[0].writing() as link:
        records.invite(link, range(100, 100 + races), tokens)
    together = threading.Barrier(2, timeout=30)

    def invited(race):
        with databases[0].writing() as link:
            together.wait()
            return records.enrol(link, tokens[race], bytes([race]) * 32)

    def stranger(race):
        with databases[1].writing() as link:
            databases[1].take_turn(link)
            together.wait()
            return places.give_place(link, bytes([race]) * 32, 100)

    with ThreadPoolExecutor(2) as pool:
        for race in range(races):
            asked = [pool.submit(one, race) for one in (invited, stranger)]
            by_token, by_place = (one.result(60) for one in asked)
            assert by_place is not None
            assert by_token in (None, by_place)
    with databases[0].reading() as link:
        assert records.count_keys(link) == races
        assert places.count_places(link) <= races
    for database in databases:
        database.close()


def test_what_is_on_its_way_at_the_deadline_counts_whichever_server_it_reaches(tmp_path, postgres):
    """Three of eight were enough, and the other five got `late` for what they had booked."""
    url = postgres.fresh("grace")
    rules = {"deadline_seconds": 5.0, "grace_seconds": 60.0, "min_fraction": 0.375}
    folder, fleet = new_folder(tmp_path, rounds=1, **rules), Fleet()
    with (
        ServerProcess(tmp_path, database=url) as one,
        ServerProcess(tmp_path, database=url) as two,
        Client(folder, one.port) as first,
        Client(folder, two.port) as second,
    ):
        view = first.model(0)
        sent = [fleet.report(number, view) for number in range(USERS)]
        fleet.enrol(folder, first, url)
        first.wait(round=0, state="open")
        assert [first.post("/v1/reports", body).status for body in sent[:3]] == [204] * 3
        second.wait(round=0, state="waiting")
        late = [(first, second)[n % 2].post("/v1/reports", body) for n, body in enumerate(sent[3:])]
        assert [answer.status for answer in late] == [204] * 5
        first.wait(round=1, state="finished")
        (past,) = first.status()["rounds"]
        assert (past["reported"], past["missing"], past["outcome"]) == (USERS, [], "goal")


def test_an_attempt_that_cannot_be_is_late_and_no_failure(tmp_path, postgres):
    """A number that no column holds was "the database cannot be used"."""
    url = postgres.fresh("attempts")
    folder, fleet = new_folder(tmp_path, rounds=2), Fleet()
    with ServerProcess(tmp_path, database=url) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client, url)
        client.wait(round=0, state="open")
        assert fleet.run_round(client) == [204] * USERS
        client.wait(round=1, state="open")
        for attempt in (1, 2**31 - 1, 2**31, 2**32 - 1):
            for purpose, path in (("report", "/v1/reports"), ("check-in", "/v1/checkin")):
                got = client.post(path, fleet.sealed(0, 0, attempt, b"", purpose))
                assert (got.status, got.error) == (410, "late")
        assert client.status()["refused"] == {"late": 8}


def test_one_leader_at_a_time(postgres):
    databases = [Database.at(postgres.fresh("leaders")), Database.at(postgres.url("leaders"))]
    with databases[0].leading() as leader:
        assert leader is not None
        with databases[1].leading() as other:
            assert other is None
    with databases[1].leading() as other:
        assert other is not None
    for database in databases:
        database.close()


def test_the_server_outlives_a_restart_of_the_database(tmp_path, postgres):
    url = postgres.fresh("restart")
    folder, fleet = new_folder(tmp_path, rounds=1, min_fraction=1.0), Fleet()
    with ServerProcess(tmp_path, database=url) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client, url)
        client.wait(round=0, state="open")
        view = client.model(0)
        assert client.post("/v1/reports", fleet.report(0, view)).status == 204
        postgres.stop()
        got = client.post("/v1/reports", fleet.report(1, view))
        assert (got.status, got.error) == (503, "unavailable")
        assert client.get("/v1/round").status == 200
        postgres.start()
        for number in range(1, USERS):
            report = fleet.report(number, view)
            until(lambda r=report: client.post("/v1/reports", r).status == 204)
        client.wait(round=1, state="finished")
        assert np.array_equal(client.model(1).items, simulated(1))


def test_other_databases_and_wrong_urls_are_refused(tmp_path):
    for url in ("mysql://a@b/c", "nonsense", "sqlite:///x.db"):
        with pytest.raises(UsageError):
            Database.at(url)
    absent = Database.at(f"postgresql://town:geheim@/town?host={tmp_path}")
    with pytest.raises(ServiceError) as caught:
        absent.create()
    assert "geheim" not in str(caught.value)
    absent.close()


def test_an_emptied_database_is_not_taken_for_a_new_federation(tmp_path, postgres):
    folder = new_folder(tmp_path)
    folder.database(postgres.fresh("used")).close()
    folder.database(postgres.url("used")).close()
    with pytest.raises(ServiceError, match="is empty, but"):
        folder.database(postgres.fresh("vanished"))
    with pytest.raises(ServiceError, match="PostgreSQL"):
        folder.database()
