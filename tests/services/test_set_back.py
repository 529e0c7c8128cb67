"""A federation with changed items and terms that is set back to the copy from before runs again:
nobody agrees again, and nothing is sent twice."""

import contextlib
import json
import shutil
import time
from dataclasses import replace

import pytest
from forked import COMMAND, ForkedProcess
from secure_sum_world import TOKEN
from server_world import ITEMS, Client, ServerProcess, new_folder
from talk import until
from test_server_operators import owner, take_part, visit
from waits_world import CATALOGUE, WaitsTown

from sottovoce.core.consent import Choice
from sottovoce.errors import MessageError
from sottovoce.services.copies.copying import make_backup
from sottovoce.services.server.operator import status
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.database import devices
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import HelperIntroduction
from sottovoce.stores.server_folder import invite, open_folder
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.invitations import keep_invitation

MANY = 3


class Devices:
    """Stores, each with `sottovoce serve device` at work on it."""

    def __init__(self, place, folder, url):
        self.paths, self.agents = [place / f"device-{n}" for n in range(MANY)], []
        with contextlib.closing(folder.database()) as database:
            invitations = invite(folder, database, url, range(MANY))
        for number, (path, invitation) in enumerate(zip(self.paths, invitations, strict=True)):
            with CohortStore.create(path, [(number, "me")]) as store:
                keep_invitation(store, invitation)
                store.add_history(number, [f"v{n}" for n in range(10)], list(range(10)))
                store.set_choice(number, Choice(share_positives=0.5))
                DeviceSession(store).agree(folder.plan.terms)

    def start(self):
        for path in self.paths:
            log = path.with_suffix(".log").open("a")
            words = "serve", "device", path, "--poll", "0.1"
            self.agents.append(ForkedProcess(COMMAND, *words, output=log))
            log.close()

    def agree(self, terms):
        for path in self.paths:
            with CohortStore.open(path) as store:
                session = DeviceSession(store)
                until(lambda session=session: session.pending is not None)
                assert session.pending == terms
                session.agree(terms)

    def rounds(self):
        """Of each device: the rounds of which something is in its ledger, oldest first."""
        found = []
        for path in self.paths:
            with CohortStore.open(path, readonly=True) as store:
                found.append(store.ledger_rows()["round"].to_pylist())
        return found

    def lines(self, event):
        logs = [path.with_suffix(".log").read_text().splitlines() for path in self.paths]
        told = [json.loads(line) for log in logs for line in log]
        return [one for one in told if one["event"] == event]


@contextlib.contextmanager
def server(town, port):
    """`sottovoce serve server`, once it is ready."""
    log = (town.parent / "server.log").open("a")
    process = ForkedProcess(COMMAND, "serve", "server", town, "--port", port, output=log)
    log.close()
    ready = town / "server.json"
    try:
        until(lambda: ready.exists() and json.loads(ready.read_text())["pid"] == process.pid)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.slow
def test_a_federation_that_is_set_back_runs_again_after_two_commands(tmp_path, ask):
    town, copy = tmp_path / "town", tmp_path / "copy"
    folder = new_folder(town, rounds=200, min_devices=MANY)
    (tmp_path / "new.csv").write_text("item,title\nnew-0,New 0\nnew-1,New 1\n")
    with server(town, 0) as ready:
        devices = Devices(tmp_path, folder, ready["url"])
        devices.start()
        try:
            until(lambda: all(len(rounds) > 1 for rounds in devices.rounds()))
            ask("backup", town, copy)
            ask("serve", "catalogue", town, "--gone", "v3")
            change = "--set", "algorithm.learning_rate=0.07", "--add", tmp_path / "new.csv"
            digest = ask("serve", "terms", town, *change)["amendment"]["digest"]
            until(lambda: open_folder(town).plan.terms.digest() == digest)
            terms = open_folder(town).plan.terms
            devices.agree(terms)
            before = [len(rounds) for rounds in devices.rounds()]
            until(lambda: all(len(r) > n for r, n in zip(devices.rounds(), before, strict=True)))
        except BaseException:
            stop(devices)
            raise
    try:
        last = max(map(max, devices.rounds()))
        # Two commands: the copy is put back, and the server is started.
        said = " ".join(ask("restore", copy, town)["means"])
        assert "Items were changed" in said
        assert "Terms were changed" in said
        counted = len(devices.lines("counted"))
        with server(town, ready["port"]):
            until(lambda: all(max(rounds) > last for rounds in devices.rounds()))
            until(lambda: len(devices.lines("counted")) > counted + MANY)
            status = ask("serve", "status", town)
            assert (status["terms"], status["enrolled"]) == (digest, MANY)
            items = json.loads((town / "catalogue.json").read_text())["items"]
            assert (items[3], items[ITEMS]) == (["v3", ""], ["new-0", "New 0"])
    finally:
        stop(devices)
    for path, rounds in zip(devices.paths, devices.rounds(), strict=True):
        assert len(rounds) == len(set(rounds)), "no round is paid for twice"
        with CohortStore.open(path, readonly=True) as store:
            assert DeviceSession(store).pending is None, "nobody is asked again"
            assert store.budget()[0].releases == len(rounds)
    why = {one["why"] for one in devices.lines("failed")}
    assert not [one for one in why if "in the place of" in one]


@pytest.mark.slow  # three rounds of four agents with a helper: seconds of processor time
def test_a_secure_sum_that_is_set_back_goes_on_with_the_terms_of_its_helper(tmp_path):
    """The helper keeps the changed terms, and devices have paid under them."""
    everyone = range(4)
    with WaitsTown(tmp_path, rounds=40) as town:
        town.join(*everyone)
        town.visit(*everyone)
        town.round(*everyone)
        make_backup(town.folder.path, tmp_path / "copy")
        town.acts().change_items((), [CATALOGUE[3][0]])
        config = replace(town.folder.plan.terms.algorithm, popularity_share=0.5)
        terms = town.summed_terms(config)
        town.helper.folder.agree(HelperIntroduction(terms, TOKEN))
        town.acts().propose(terms.to_table())
        for _ in range(3):
            town.step(1000.0)
        assert town.folder.plan.terms == terms
        for store in town.stores.values():
            DeviceSession(store).agree(terms)
        town.visit(*everyone)  # they say that they are still there
        town.round(*everyone)
        last = town.state.now.position.round

        def paid():
            return [store.ledger_rows()["round"].to_pylist() for store in town.stores.values()]

        before = paid()
        said = town.set_back(tmp_path / "copy")
        assert "Terms were changed" in said
        assert "Items were changed" in said
        assert town.folder.plan.terms == terms
        heard = town.visit(*everyone)
        assert not [event for _, event, _ in heard if event == "failed"], heard
        town.round(*everyone)
        assert town.state.now.position.round > last + 1
        newest = status(town.database, plan=town.folder.plan)["rounds"][0]
        assert (newest["outcome"], newest["reported"]) == ("goal", 4)
        for were, are, store in zip(before, paid(), town.stores.values(), strict=True):
            assert are[:-1] == were, "nothing is lost"
            assert are[-1] > last, "a round that nobody has paid for"
            assert store.budget()[0].releases == len(are)
            assert DeviceSession(store).pending is None, "nobody is asked again"


def stop(devices):
    for agent in devices.agents:
        agent.terminate()
    for agent in devices.agents:
        agent.wait(timeout=60)


def test_devices_that_refuse_a_catalogue_are_counted_with_their_reason(tmp_path, ask):
    """The former folder is lost, and with it a name that devices know."""
    town = tmp_path / "town"
    folder = new_folder(town, rounds=50, min_devices=1)
    place = folder.path / "catalogue.json"
    items = json.loads(place.read_text())["items"]
    spare = [*items[:-1], [f"~spare-{ITEMS - 1}", ""]]
    place.write_text(json.dumps({"items": spare}))
    (tmp_path / "new.csv").write_text("item,title\nnew-0,New 0\n")
    with owner(tmp_path / "her", folder) as store:
        with ServerProcess(town) as running:
            visit(store, running.url)
            ask("backup", town, tmp_path / "copy")
            ask("serve", "catalogue", town, "--add", tmp_path / "new.csv")
            with Client(folder, running.port) as client:
                client.wait(state="open")
                until(lambda: client.get("/v1/catalogue").json()["items"][-1][0] == "new-0")
            take_part(store, running, folder, [0])
            assert store.catalogue()[-1][0] == "new-0"
        shutil.rmtree(town)
        ask("restore", tmp_path / "copy", town, "--next-round", 30)
        reports = len(store.ledger_rows())
        with ServerProcess(town) as running, Client(folder, running.port) as client:
            for _ in range(3):
                with pytest.raises(MessageError, match="another item in the place of new-0"):
                    visit(store, running.url)
            told = client.status()
            assert told["objections"] == {"catalogue": 1}
            assert [one.what for one in store.requests()].count("check-in") == 1, "it says so once"
            assert len(store.ledger_rows()) == reports
            (row,) = ask("serve", "devices", town)["rows"]
            assert row["why"] == "refuses the catalogue: another item is in a place that it knows"
            # The operator makes the same change again, and the device goes on.
            ask("serve", "catalogue", town, "--add", tmp_path / "new.csv")
            until(lambda: client.get("/v1/catalogue").json()["items"][-1][0] == "new-0")
            until(lambda: visit(store, running.url) == 1)
            until(lambda: client.status()["objections"] == {})
            assert len(store.ledger_rows()) == reports + 1


def test_a_reason_names_those_who_refuse(tmp_path):
    folder = new_folder(tmp_path / "town", min_devices=2)
    with contextlib.closing(folder.database()) as database:
        invite(folder, database, "https://127.0.0.1:1", range(2))
        with database.writing() as link:
            coordinator_of(folder.plan, time.monotonic, folder.keys).start(link)
            records.raise_target(link, 9)
            for number in range(2):
                values = {"public_key": bytes([number]) * 32}
                link.execute(devices.update().where(devices.c.number == number).values(**values))
                operating.set_objection(link, number, "catalogue")
        told = status(database, plan=folder.plan)
        why = told["reason"]
        assert told["objections"] == {"catalogue": 2}
        assert "2 refuse the catalogue: the catalogue has another item" in why["what"]
        assert "put back the catalogue that devices know" in why["do"]
        with database.writing() as link:
            for number in range(2):
                records.seen(link, [number])
        assert status(database, plan=folder.plan)["reason"] is None


def test_a_device_that_has_reported_since_refuses_nothing_if_it_falls_silent(tmp_path):
    folder = new_folder(tmp_path / "town", min_devices=2)
    with contextlib.closing(folder.database()) as database:
        invite(folder, database, "https://127.0.0.1:1", range(2))
        with database.writing() as link:
            link.execute(devices.update().values(public_key=devices.c.token_hash))
            operating.set_objection(link, 0, "catalogue")
            operating.set_objection(link, 0, "catalogue")
            assert operating.count_objections(link) == {"catalogue": 1}
            records.seen(link, [0, 1])  # as after a round in which both have reported
            assert operating.count_objections(link) == {}
            records.missed(link, [0], 1)
            assert operating.count_objections(link) == {}
            assert operating.list_devices(link, 0, 9, "", "silent")["rows"][0]["why"] == ""
