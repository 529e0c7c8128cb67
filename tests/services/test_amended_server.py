"""A running server whose terms and items are changed by commands: it takes them up without dropping
a connection, whichever of several processes coordinates, and wherever it is killed."""

import contextlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from forked import run
from server_world import ITEMS, RUN, USERS, Client, Fleet, ServerProcess, new_folder, program, terms
from talk import until

from sottovoce.stores import amending
from sottovoce.stores import server as records
from sottovoce.stores.acts import Actor, Acts
from sottovoce.stores.server_folder import open_folder

NEW = "item,title\n" + "".join(f"new-{n},New {n}\n" for n in range(5))


def command(*arguments, code=0):
    done = run(*arguments, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def check_in(fleet, client, *numbers):
    now = client.round()
    for number in numbers:
        sent = fleet.sealed(number, now["round"], now["attempt"], b"", "check-in")
        assert client.post("/v1/checkin", sent).status == 204


def test_items_come_and_go_while_a_round_is_open(tmp_path):
    folder, fleet = new_folder(tmp_path), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        before = client.wait(state="open")
        assert client.get("/v1/catalogue").json()["items"][3][1] == "Venue 3"
        line, view = client.link, client.model(0)
        assert client.post("/v1/reports", fleet.report(0, view)).status == 204
        command("serve", "catalogue", tmp_path, "--gone", "v3")
        until(lambda: client.round()["catalogue"] != before["catalogue"])
        after = client.round()
        assert (after["round"], after["state"], after["terms"]) == (0, "open", before["terms"])
        assert client.get("/v1/catalogue").json()["items"][3] == ["v3", ""]
        for number in range(1, USERS):
            assert client.post("/v1/reports", fleet.report(number, view)).status == 204
        client.wait(round=1, state="open")
        assert client.link is line, "nobody was cut off"
        (tmp_path / "new.csv").write_text(NEW)
        said = command("serve", "catalogue", tmp_path, "--add", tmp_path / "new.csv", code=2)
        assert "`sottovoce serve terms --add` makes more" in said


def test_terms_change_under_a_running_server(tmp_path):
    folder, fleet = new_folder(tmp_path, rounds=6), Fleet()
    (tmp_path / "new.csv").write_text(NEW)
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        first = client.wait(state="open")["terms"]
        line = client.link
        change = "--set", "algorithm.learning_rate=0.07", "--add", tmp_path / "new.csv"
        told = json.loads(command("serve", "terms", tmp_path, *change, "--json"))
        digest = told["amendment"]["digest"]
        assert told["digest"] == first
        assert client.status()["amendment"]["digest"] == digest
        assert fleet.run_round(client) == [204] * USERS, "the open round goes on to its end"
        now = client.wait(terms=digest)
        assert (now["round"], now["state"]) == (2, "waiting")
        assert client.link is line
        folder = client.folder = open_folder(tmp_path)
        assert folder.plan.terms.digest() == digest
        assert len(client.get("/v1/catalogue").json()["items"]) == ITEMS + 5
        assert client.get("/v1/terms").json()["n_items"] == ITEMS + 5
        items = client.model(2).items
        assert items.shape[0] == ITEMS + 5
        status = client.status()
        assert (status["amendment"], status["terms"]) == (None, digest)
        assert (
            status["reason"]["what"]
            == f"0 of {USERS} devices have agreed to the changed terms by now"
        )
        # What was sent under the former terms counts for nothing now.
        late = client.post("/v1/reports", fleet.sealed(0, 0, 0, b"x"))
        assert late.error in ("late", "malformed")
        check_in(fleet, client, *range(6))
        client.wait(state="open", round=2)
        shown = command("serve", "terms", tmp_path)
        assert "algorithm.learning_rate" in shown
        assert f"n_items: {ITEMS} → {ITEMS + 5}" in shown
        said = command("serve", "terms", tmp_path, "--set", "algorithm.x=1", code=2)
        assert "nothing was done" in said
        said = command("serve", "terms", tmp_path, "--set", "n_items=99", code=2)
        assert "only settings of algorithm, release, link change" in said
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        assert client.wait(state="open")["terms"] == digest


DIE = """
import os, signal
from sottovoce.stores import amending, server_folder
from sottovoce.services.server import process
def die(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)
where = {"amending": amending, "folder": server_folder, "running": process.Running}
module, name = options.pop("die")
setattr(where[module], name, die)
"""
POINTS = [
    ("amending", "_carry"),
    ("amending", "_forget"),
    ("folder", "replace_file"),
    ("running", "follow"),
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_middle_of_a_change(tmp_path, point):
    """kill -9 of the real process, at the point and wherever it stands then."""
    folder, fleet = new_folder(tmp_path, rounds=6), Fleet()
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(state="open")
        assert fleet.run_round(client) == [204] * USERS
        client.wait(round=1, state="open")
        view = client.model(1)
        for number in range(5):
            assert client.post("/v1/reports", fleet.report(number, view)).status == 204
    (tmp_path / "new.csv").write_text(NEW)
    command("serve", "terms", tmp_path, "--add", tmp_path / "new.csv")
    dying = program("server.process", "ServerService", DIE)
    with ServerProcess(tmp_path, program=dying, die=point) as server:
        with Client(folder, server.port) as client:
            for number in range(5):
                got = client.post("/v1/reports", fleet.report(number, view))
                assert got.error == "replay", "an acknowledged report was lost"
            with contextlib.suppress(OSError, AssertionError):
                for number in range(5, USERS):
                    client.post("/v1/reports", fleet.report(number, view))
        assert server.process.wait(timeout=120) != 0
    with ServerProcess(tmp_path, program=RUN) as server:
        folder = open_folder(tmp_path)
        with Client(folder, server.port) as client:
            now = client.wait(round=3, state="waiting")
            folder = client.folder = open_folder(tmp_path)
            assert now["terms"] == folder.plan.terms.digest() != terms().digest()
            grown = client.model(3).items
            past = client.status()["rounds"]
    assert [(one["round"], one["reported"]) for one in past] == [(0, USERS), (1, USERS)]
    with contextlib.closing(folder.database()) as store, store.reading() as link:
        assert len(amending.history(link)) == 2
        assert np.array_equal(records.model(link, 2, 5)[0], grown[:ITEMS]), "folded once"


def test_processes_that_share_a_database_take_it_up_each_with_its_own_files(tmp_path, postgres):
    url = postgres.fresh("amended")
    folder, fleet = new_folder(tmp_path / "one", rounds=6), Fleet()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with (
        ServerProcess(tmp_path / "one", database=url) as one,
        ServerProcess(tmp_path / "two", database=url) as two,
        Client(folder, one.port) as first,
        Client(folder, two.port) as second,
    ):
        fleet.enrol(folder, first, url)
        for client in (first, second):
            client.wait(state="open")
        table = json.loads(json.dumps(terms().to_table()))
        table["algorithm"]["learning_rate"] = 0.07
        with contextlib.closing(folder.database(url)) as store:
            acts = Acts(folder, store, Actor("anna", "command"))
            digest = acts.propose(table)["digest"]
        assert fleet.run_round(second) == [204] * USERS
        for client in (first, second):
            client.wait(terms=digest, state="waiting")
        check_in(fleet, first, *range(4))
        check_in(fleet, second, *range(4, USERS))
        for client in (first, second):
            client.wait(terms=digest, state="open", round=2)
        fleet.devices.algorithm = replace(terms(), algorithm=folder.plan.terms.algorithm).build()
        assert fleet.run_round(second) == [204] * USERS
        first.wait(round=3, state="open")
        for name in ("one", "two"):
            assert open_folder(tmp_path / name).plan.terms.digest() == digest
    old = new_folder(tmp_path / "three", rounds=6)
    shutil.copytree(folder.path / "keys", old.path / "keys", dirs_exist_ok=True)
    assert old.plan.terms == terms()
    with (
        ServerProcess(tmp_path / "three", database=url) as third,
        Client(old, third.port) as client,
    ):
        assert client.wait(state="open")["terms"] == digest, "files of before are brought up to it"
    assert open_folder(tmp_path / "three").plan.terms.digest() == digest
