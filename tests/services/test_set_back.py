"""A federation with changed items and terms that is set back to the copy from before runs again:
nobody agrees again, and nothing is sent twice."""

import contextlib
import json
import shutil
import time
from dataclasses import replace

import pytest
from secure_sum_world import TOKEN
from server_world import ITEMS, Client, ServerProcess, new_folder
from talk import until
from test_server_operators import owner, take_part, visit
from waits_world import CATALOGUE, WaitsTown

from sottovoce.errors import MessageError
from sottovoce.services.copies.copying import make_backup
from sottovoce.services.server.operator import status
from sottovoce.services.server.shuffled_rounds import coordinator_of
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.database import devices
from sottovoce.stores.helper_folder import HelperIntroduction
from sottovoce.stores.server_folder import invite
from sottovoce.stores.session import DeviceSession


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
