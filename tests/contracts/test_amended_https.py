"""The terms of a running federation are changed and five items come: those who agree go on with
their budgets, the others send nothing and still get recommendations; server and helper are killed
again and again meanwhile."""

import json
import time
from copy import deepcopy

import numpy as np
import pytest
from forked import run
from forwarder import Forwarder
from test_gram_https import TOWN, parties
from test_secure_sum_https import nobody
from test_services_killed import Killed

from sottovoce.engines.trial import hop_folder
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores import amending
from sottovoce.stores import server as records
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import open_helper
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.session import DeviceSession

DEVICES, WILLING = 64, 40
NEW = 5


class Amended(Killed):
    """One agent for those who will agree, one for the others."""

    def _start_agents(self, url):
        for number, rows in enumerate((range(WILLING), range(WILLING, DEVICES))):
            stores = [self.store(row) for row in rows]
            command = "serve", "device", *stores, "--server", url
            self.agents.append(self._start(f"agent-{number}", *command))

    def stored(self, read):
        database = open_folder(self.folder / "server").database()
        try:
            with database.reading() as link:
                return read(link)
        finally:
            database.close()


def command(*arguments):
    done = run(*arguments, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def looked_at(trial, rows):
    """What has left, and what that says, by device."""
    found = {}
    for row in rows:
        with CohortStore.open(trial.store(row), readonly=True) as store:
            ledger = store.ledger_rows()
            rounds = list(
                zip(ledger["round"].to_pylist(), ledger["terms"].to_pylist(), strict=True)
            )
            releases = sum(one.releases for one in store.budget())
            found[row] = rounds, float(store.spent()[0]), releases, len(store.contacts())
    return found


@pytest.mark.slow
def test_64_devices_of_which_40_agree(tmp_path):
    town = deepcopy(TOWN["town"]) | {"residents": DEVICES}
    algorithm = TOWN["algorithm"] | {"batches": 1}
    service = {"deadline_seconds": 25.0, "min_devices": DEVICES, "poll_seconds": 0.5}
    link = {"min_devices": 20}
    _, world = parties(town=town, algorithm=algorithm, service=service, link=link)
    items = world.terms.n_items
    with Forwarder(1) as way:
        trial = Amended(world, tmp_path / "services", 2, way)
        with trial.running():
            server, helper = tmp_path / "services/server", tmp_path / "services/proxy"
            trial.advance(2, nobody)
            before = looked_at(trial, range(DEVICES))
            assert all(rounds == [(0, 0), (1, 0)] for rounds, *_ in before.values())
            assert all(spent > 0 for _, spent, *_ in before.values())
            # --- proposed; rounds under the former terms go on while the helper has not agreed
            (tmp_path / "new.csv").write_text(
                "item,title\n" + "".join(f"new-{n},New {n}\n" for n in range(NEW))
            )
            change = "--set", "release.epsilon=4", "--add", tmp_path / "new.csv"
            told = json.loads(command("serve", "terms", server, *change, "--json"))
            digest, first = told["amendment"]["digest"], told["digest"]
            wait_until(lambda: (trial.operator().status()["amendment"] or {}).get("waits"))
            status = trial.operator().status()
            assert (status["reason"]["party"], status["terms"]) == ("helper", first)
            assert "does not keep the new terms" in status["reason"]["what"]
            trial.advance(4, nobody)
            assert trial.operator().status()["terms"] == first
            before = looked_at(trial, range(DEVICES))
            assert all(len(rounds) == 4 for rounds, *_ in before.values())
            # --- the helper's operator looks, and agrees; the server is killed all the while
            card = tmp_path / "card.json"
            command("serve", "introduce", server, "--out", card)
            shown = json.loads(command("serve", "helper", helper, "--introduction", card, "--json"))
            assert (shown["agreed"], shown["digest"]) == (False, digest)
            assert {one["setting"] for one in shown["changes"]} == {"release.epsilon", "n_items"}
            agree = "--introduction", card, "--agree", digest
            command("serve", "helper", helper, *agree)
            kills, rng = 0, np.random.default_rng(3)
            while trial.stored(lambda link: records.fact(link, "terms")) != digest:
                time.sleep(rng.uniform(0.0, 1.2))
                trial.kill_server()
                kills += 1
                if kills % 2:
                    trial.kill_proxy()
                assert kills < 40, "the terms do not change"
            trial.kill_server()
            wait_until(lambda: trial.operator().status()["terms"] == digest)
            print(f"\nchanged after {kills} kills")
            now = trial.operator().status()
            assert (now["round"], now["target"], now["amendment"]) == (6, 6, None)
            assert open_folder(server).plan.terms.digest() == digest
            assert len(json.loads(open_folder(server).catalogue())["items"]) == items + NEW
            assert len(trial.stored(amending.history)) == 2
            # --- 40 owners agree
            for row in range(WILLING):
                wait_until(lambda row=row: pending(trial, row) == digest)
                with CohortStore.open(trial.store(row)) as store:
                    hosted = DeviceSession(store)
                    assert hosted.recommend(row, 3)
                    hosted.agree(hosted.pending)
                    assert hosted.recommend(row, 3), "by the model from before"
            trial.operator().raise_target(8)
            wait_until(lambda: trial.round() >= 7, 120.0)
            trial.kill_server()
            trial.kill_proxy()
            wait_until(lambda: trial.round() >= 8, 120.0)
            status = trial.operator().status()
            counted = [one for one in status["rounds"] if one["outcome"] != "abandoned"]
            time.sleep(2.0)
            after = looked_at(trial, range(DEVICES))
            view = trial.operator().model(status["published"], open_folder(server).plan.terms)
    assert [(one["round"], one["reported"]) for one in counted][-2:] == [(6, 40), (7, 40)]
    assert [one["round"] for one in counted] == [0, 1, 2, 3, 6, 7], "none twice"
    assert view.items.shape[0] == items + NEW
    assert open_helper(helper).introduction.terms.digest() == digest
    for row in range(DEVICES):
        rounds, spent, releases, _ = after[row]
        former, had, released, _ = before[row]
        if row >= WILLING:
            assert after[row] == before[row], "nothing has left, not even that it is there"
        else:
            assert rounds == [*former, (6, 1), (7, 1)]
            assert spent > had > 0
            assert releases == released + 2
        with CohortStore.open(trial.store(row), readonly=True) as store:
            hosted = DeviceSession(store)
            own = min(store.choice(row).epsilon, 4.0)
            if row < WILLING:
                assert spent == pytest.approx(had + own, rel=1e-6), "another period, at its ε"
            assert hosted.terms.digest() == (digest if row < WILLING else first)
            assert len(store.catalogue()) == items + (NEW if row < WILLING else 0)
            assert len(hosted.recommend(row, 10)) == 10
            assert hosted.model().round == (8 if row < WILLING else 4)


def pending(trial, row):
    with CohortStore.open(trial.store(row), readonly=True) as store:
        found = DeviceSession(store).pending
        return None if found is None else found.digest()


FMF = {
    "name": "fmf-for-real",
    "seed": 5,
    "town": {"residents": 8, "venues": 60, "districts": 2},
    "algorithm": {"name": "fmf", "embedding_size": 3, "rounds": 4},
    "release": {"max_reports": 20, "tiers": [{"epsilon": 1.0, "min_devices": 3}]},
    "consent": {"epsilon": 1.5, "max_reports": 20, "total_epsilon": 1000.0},
    "service": {"deadline_seconds": 20.0, "poll_seconds": 0.5, "min_devices": 8},
    "link": {"chain": [{}]},
}


@pytest.mark.slow
def test_a_chain_of_shufflers_follows_once_both_operators_have_agreed(tmp_path):
    what = Experiment.from_table(FMF)
    prepared = what.prepared(what.dataset())
    made = federation_of(prepared)
    trial = HttpsTrial(world_of(what, prepared.dataset, made), tmp_path / "services", 1)
    with trial.running():
        server = tmp_path / "services/server"
        trial.advance(2, nobody)
        spent = [spent_of(trial, row) for row in range(8)]
        (tmp_path / "new.csv").write_text("item,title\nnew,New\n")
        change = "--set", "algorithm.reg=0.05", "--add", tmp_path / "new.csv"
        told = json.loads(command("serve", "terms", server, *change, "--json"))
        digest, card = told["amendment"]["digest"], tmp_path / "terms.json"
        command("serve", "terms", server, "--out", card)
        for number, hop in enumerate((hop_folder(trial.folder, 0), hop_folder(trial.folder, 1)), 1):
            waited = f"shuffler number {number} does not follow the new terms yet"
            wait_until(lambda waited=waited: waiting(trial) == waited)
            shown = command("serve", "shuffler", hop, "--terms", card)
            assert "Nothing was agreed to" in shown
            command("serve", "shuffler", hop, "--terms", card, "--agree", digest)
        wait_until(lambda: trial.operator().status()["terms"] == digest)
        for row in range(8):
            wait_until(lambda row=row: pending(trial, row) == digest)
            with CohortStore.open(trial.store(row)) as store:
                hosted = DeviceSession(store)
                hosted.agree(hosted.pending)
        target = trial.round() + 1
        trial.advance(target, nobody)
        status = trial.operator().status()
        items = trial.operator().model(status["round"], open_folder(server).plan.terms).items
    assert items.shape[0] == trial.world.terms.n_items + 1
    assert [one["reported"] for one in status["rounds"]] == [8, 8, 8]
    for row in range(8):
        assert spent_of(trial, row) == pytest.approx(1.5 * spent[row]), "as much a round as before"


def waiting(trial):
    return (trial.operator().status()["amendment"] or {}).get("waits")


def spent_of(trial, row):
    with CohortStore.open(trial.store(row), readonly=True) as store:
        return float(store.spent()[0])


def wait_until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.1)
