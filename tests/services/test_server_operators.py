"""What an operator does to a server: raising the target, shutting devices out, new certificates,
and a database that was set back to an older copy."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import ssl
import stat
import threading
import time
from dataclasses import replace

import httpx2
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import Client, Fleet, ServerProcess, enrolment, new_folder, program, simulated
from talk import until
from unpacked import unpacked

from sottovoce.cli.serve_server import make_federation
from sottovoce.core.consent import Choice
from sottovoce.errors import ConfigError, KeyTrouble, UsageError
from sottovoce.services.agent.agent import Agent
from sottovoce.services.server.operator import Operator
from sottovoce.stores.device import CohortStore
from sottovoce.stores.keys import SERVER_CERTIFICATE, renew_keys
from sottovoce.stores.server_folder import invite
from sottovoce.stores.session import DeviceSession, expelled
from sottovoce.wire.invitations import keep_invitation, kept_invitation


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_and_the_database_are_the_owners_alone(tmp_path):
    town = tmp_path / "town"
    town.mkdir(mode=0o755)
    town.chmod(0o755)
    folder, fleet = new_folder(town), Fleet()
    assert mode(town) == 0o700
    with ServerProcess(town) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(state="open")
        fleet.run_round(client, [0, 1])
        files = [town / f"server.db{end}" for end in ("", "-wal", "-shm")]
        assert [mode(path) for path in files] == [0o600] * 3
        server.kill()
    for path in files:
        path.chmod(0o644)
    town.chmod(0o755)
    with ServerProcess(town):
        assert [mode(path) for path in [town, *files]] == [0o700, 0o600, 0o600, 0o600]


@pytest.mark.parametrize("line", ["", 'configuration = "pFPL+"', 'configuration = "sFPL+"'])
def test_the_advice_about_triples_helps(tmp_path, line):
    (tmp_path / "my.toml").write_text(f"[algorithm]\n{line}\nrounds = 3\n")
    (tmp_path / "items.csv").write_text("item\n" + "".join(f"v{n}\n" for n in range(4)))

    def make(settings):
        file, items = str(tmp_path / "my.toml"), tmp_path / "items.csv"
        return make_federation(tmp_path / "town", file, settings, items, [], None)

    with pytest.raises(ConfigError, match="triples must be a number") as told:
        make([])
    advice = shlex.split(str(told.value).split("; use ")[1].removesuffix(", say"))
    assert set(advice[::2]) == {"--set"}
    plan = make(advice[1::2]).plan
    assert plan.terms.algorithm.triples == 50
    assert plan.cohort_size == (1 if "sFPL+" in line else "all")


def test_a_remote_status_needs_two_files_and_nothing_else(tmp_path, ask):
    town, away = tmp_path / "town", tmp_path / "away"
    folder = new_folder(town)
    away.mkdir()
    ca, token = away / "ca.crt", away / "operator.token"
    for path in (ca, token):
        shutil.copy(folder.keys / path.name, path)
    with ServerProcess(town) as server:
        remote = ask("serve", "status", server.url, "--ca", ca, "--token", token)
        assert remote == ask("serve", "status", town)
        assert "--token" in ask("serve", "status", server.url, code=2)["error"]
        assert "ca.crt" in ask("serve", "status", server.url, "--token", token, code=2)["error"]
        unclear = ask("serve", "status", town, "--ca", ca, code=2)["error"]
        assert "not with a folder" in unclear
        elsewhere = "http://example.org:8443"
        with pytest.raises(UsageError, match="not encrypted"):
            Operator.at(elsewhere, ca, token)
        token.chmod(0o644)
        with pytest.raises(KeyTrouble, match="chmod 600"):
            Operator.at(server.url, ca, token)
        token.chmod(0o600)
        with pytest.raises(KeyTrouble, match="no certificate"):
            Operator.at(server.url, token, token)
        token.write_text("0" * 64)
        assert "token" in ask(
            "serve", "status", server.url, "--ca", ca, "--token", token, code=7
        )["error"]  # fmt: skip
        with pytest.raises(KeyTrouble, match="cannot be read"):
            Operator.at(server.url, away / "nothing", token)


def shown(client):
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", client.port))


def test_a_renewed_certificate_is_taken_up_and_nobody_is_cut_off(tmp_path):
    folder = new_folder(tmp_path)
    place = folder.keys / SERVER_CERTIFICATE
    with ServerProcess(tmp_path) as server, Client(folder, server.port) as client:
        before = shown(client)
        client.round()
        kept = client.link.sock
        renew_keys(folder.keys)
        os.kill(server.process.pid, signal.SIGHUP)
        until(lambda: shown(client) != before)
        after = shown(client)
        assert after.strip() == place.read_text().strip()
        with Client(folder, server.port) as other:
            assert other.round()["state"] == "waiting"

        refused = "certificate not renewed"
        for times, broken in enumerate(["no certificate", before.replace("A", "B")], start=1):
            place.write_text(broken)
            os.kill(server.process.pid, signal.SIGHUP)
            until(lambda n=times: server.log.read_text().count(refused) == n)
            assert shown(client) == after, "the old one stays in use"
        client.round()
        assert client.link.sock is kept, "the connection was kept"
        lines = [json.loads(line)["event"] for line in server.log.read_text().splitlines()]
        assert lines == ["listening", "certificate renewed", refused, refused]
        assert server.stop() == 0


def test_without_tls_there_is_nothing_to_renew(tmp_path):
    new_folder(tmp_path)
    with ServerProcess(tmp_path, plaintext=True) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        time.sleep(0.1)
        assert httpx2.get(f"{server.url}/health", trust_env=False).text == "ok"
        assert server.stop() == 0


def visit(store, url):
    """One visit of her agent; the reports that were acknowledged."""

    async def once():
        agent = Agent(store, server=url)
        try:
            await agent.visit()
        finally:
            await agent.close()
        return agent.tally.counted

    return asyncio.run(once())


def take_part(store, server, folder, rounds):
    with Client(folder, server.port) as client:
        for round in rounds:
            client.wait(round=round, state="open")
            assert visit(store, server.url) == 1
        return client.wait(round=rounds[-1] + 1, state="open")


def owner(path, folder, number=0):
    """The store of a device, invited and willing."""
    with contextlib.closing(folder.database()) as database:
        [invitation] = invite(folder, database, "https://127.0.0.1:1", [number])
    store = CohortStore.create(path, [(number, "me")])
    keep_invitation(store, invitation)
    store.add_history(number, [f"v{n}" for n in range(10)], list(range(10)))
    store.set_choice(number, Choice(share_positives=0.5))
    DeviceSession(store).agree(folder.plan.terms)
    return store


@contextlib.contextmanager
def living(url, *stores):
    """The agents of these devices, which go on until the end; what they say."""
    said, loop = [], asyncio.new_event_loop()

    def log(number):
        return lambda event, **details: said.append((number, event))

    async def live():
        agents = [Agent(s, server=url, poll=0.05, log=log(int(s.users[0]))) for s in stores]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        await ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for agent in agents:
            await agent.close()

    ended = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    thread.start()
    try:
        yield said
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def test_a_device_that_is_shut_out_while_nothing_goes_on_is_told_and_let_in_again(tmp_path, ask):
    """Its agent is not started anew, and no round waits for it until the deadline."""
    town = tmp_path / "town"
    folder = new_folder(town, rounds=10_000, min_devices=2, deadline_seconds=600.0)
    with (
        owner(tmp_path / "her", folder) as store,
        owner(tmp_path / "his", folder, 1) as other,
        ServerProcess(town) as server,
        Client(folder, server.port) as client,
        living(server.url, store, other) as said,
    ):
        until(lambda: said.count((0, "counted")) > 0)
        ask("serve", "pause", town)
        until(lambda: client.status()["state"] == "waiting")
        until(lambda: (0, "checked in") in said)
        ask("serve", "shut-out", town, 0)
        until(lambda: expelled(store) is not None)
        assert expelled(store).said.key == "quiet.shut_out"
        assert ask("device", "status", tmp_path / "her")["shut_out"] is not None
        ask("serve", "shut-out", town, 0, "--undo")
        until(lambda: (0, "let in again") in said)
        assert ask("device", "status", tmp_path / "her")["shut_out"] is None
        assert client.status()["active"] == 2
        before, round = said.count((0, "counted")), client.status()["round"]
        ask("serve", "pause", town, "--undo")
        until(lambda: said.count((0, "counted")) > before + 1)
        assert client.status()["round"] > round
        assert said.count((0, "shut out")) == 1
        assert (1, "shut out") not in said


def test_a_device_that_is_shut_out_after_its_report_is_told_in_the_same_round(tmp_path, ask):
    town = tmp_path / "town"
    folder = new_folder(town, rounds=50, min_devices=2, deadline_seconds=600.0)
    with (
        owner(tmp_path / "her", folder) as store,
        owner(tmp_path / "his", folder, 1) as other,
        ServerProcess(town) as server,
        Client(folder, server.port) as client,
    ):
        visit(other, server.url)  # enrols, and comes no more
        with living(server.url, store) as said:
            until(lambda: (0, "counted") in said)
            ask("serve", "shut-out", town, 0)
            until(lambda: (0, "shut out") in said)
            assert client.status()["round"] == 0
            refused = client.status()["refused"]["shut_out"]
            time.sleep(0.5)
            assert client.status()["refused"]["shut_out"] == refused, "and says nothing more"
        other.set_choice(1, Choice(takes_part=False))
        ask("serve", "shut-out", town, 0, "--undo")
        with living(server.url, other) as said:
            time.sleep(0.5)
        assert {what for _, what in said} <= {"round waits"}, (
            "who takes no part does not come because others do"
        )
        assert client.status()["active"] == 1, "who was let in is not waited for until it is there"
        visit(store, server.url)
        assert client.status()["active"] == 2


def test_who_holds_a_withdrawn_invitation_is_told_so_and_strangers_are_not(tmp_path, ask):
    folder = new_folder(tmp_path / "town", min_devices=1)
    with (
        owner(tmp_path / "her", folder) as store,
        ServerProcess(tmp_path / "town", limits={"guess_seconds": 0.5}) as server,
        Client(folder, server.port) as client,
    ):
        ask("serve", "shut-out", tmp_path / "town", 0)
        visit(store, server.url)
        assert expelled(store).said.key == "quiet.withdrawn"
        guess = replace(kept_invitation(store), token="ab" * 32)
        began = time.monotonic()
        got = client.post("/v1/enrol", enrolment(guess, Ed25519PrivateKey.generate()))
        assert (got.status, got.error) == (403, "bad_token")
        assert time.monotonic() - began >= 0.5, "guesses wait"
        ask("serve", "shut-out", tmp_path / "town", 0, "--undo")
        visit(store, server.url)
        assert client.status()["enrolled"] == 1


def test_a_backup_is_put_back_over_a_log_that_was_left_behind(tmp_path, ask):
    """A server that was killed leaves its newest state in SQLite's log. A copy that is simply put
    in the database's place is overruled by that; `restore` puts the log aside as well, and
    goes on with a round that no device has seen."""
    town, backup = tmp_path / "town", tmp_path / "backup"
    folder = new_folder(town, rounds=50, min_devices=1)
    with owner(tmp_path / "her", folder) as store:
        with ServerProcess(town) as server:
            visit(store, server.url)  # enrols
            take_part(store, server, folder, [0, 1])
            assert ask("backup", town, backup)["kind"] == "server"
            take_part(store, server, folder, [2, 3])
            said = ask("restore", backup, town, code=7)
            assert "stop that one" in said["error"]
            server.kill()
        assert (town / "server.db-wal").stat().st_size > 0
        naive = tmp_path / "naive"
        shutil.copytree(town, naive)
        shutil.copy(unpacked(backup, tmp_path / "content") / "server.db", naive / "server.db")
        assert ask("serve", "status", naive)["round"] == 4, "the control: the newer state stays"

        said = ask("restore", backup, town)
        assert said["next_round"] == 5
        assert "stays spent" in " ".join(said["means"])
        assert ask("serve", "status", said["before"])["round"] == 4
        assert ask("serve", "status", town)["round"] == 5
        with ServerProcess(town) as server, Client(folder, server.port) as client:
            client.wait(round=5, state="open")
            take_part(store, server, folder, [5, 6])
            assert server.stop() == 0
        assert len(store.ledger_rows()) == 6

        # The folder is lost: what is known of rounds is what the operator says.
        shutil.rmtree(town)
        assert ask("restore", backup, town)["next_round"] == 2
        shutil.rmtree(town)
        assert ask("restore", backup, town, "--next-round", 30)["next_round"] == 30
        with ServerProcess(town) as server:
            take_part(store, server, folder, [30])


OF_VERSIONS = program(
    "server.process",
    "ServerService",
    """
from sottovoce.algorithms.fpl.system import FPL
from sottovoce.core.quality import Quality
worse = Quality((10.0, 60.0, 40.0), (90.0, 40.0, 60.0), 2.0)
answers = iter([None, worse])
FPL.versioned = True
FPL.quality = lambda self, memory: next(answers)
""",
)
"""A server of whose second model the devices say that it is bad."""


def test_a_model_that_is_worse_is_held_back_until_the_operators_word(tmp_path, ask):
    folder, fleet = new_folder(tmp_path / "town", rounds=2), Fleet()
    town = tmp_path / "town"
    assert ask("serve", "versions", town)["versions"] == []
    with ServerProcess(town, program=OF_VERSIONS) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        for round in range(2):
            client.wait(round=round, state="open")
            fleet.run_round(client)
        client.wait(round=2, state="finished", published=1)
        assert np.array_equal(client.model(1).items, simulated(1))
        told = ask("serve", "versions", town)
        assert told["published"] == 1
        assert told["versions"] == client.status()["versions"]
        assert "worse than version 1" in told["versions"][1]["held_back"]
        held = [line for line in server.log.read_text().splitlines() if "held back" in line]
        assert json.loads(held[0])["version"] == 2
        server.kill()
    with ServerProcess(town, program=OF_VERSIONS) as server, Client(folder, server.port) as client:
        client.wait(round=2, state="finished", published=1)
        said = ask("serve", "publish", town, 2)
        assert (said["published"], said["before"]) == (2, 1)
        client.wait(published=2)
        assert "these are: 1, 2" in ask("serve", "publish", town, 3, code=2)["error"]
        assert ask("serve", "versions", town)["pinned"] is None
        assert ask("serve", "publish", town, 1)["before"] == 2
        assert ask("serve", "versions", town)["pinned"] == 1
        client.wait(published=1)
        assert np.array_equal(client.model(1).items, simulated(1))
        ask("backup", town, tmp_path / "copy")
    ask("restore", tmp_path / "copy", tmp_path / "again")
    assert ask("serve", "versions", tmp_path / "again")["published"] == 1
