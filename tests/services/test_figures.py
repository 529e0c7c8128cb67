"""What services expose to Prometheus: every series is named from the start, in the format, and says
what the status says."""

import contextlib
import json
import ssl
import time

import httpx2
import pytest
from app_world import exposed
from flower_world import ITEMS, TRAIN
from server_world import acting
from versions_world import BAD, GOOD, VersionsWorld, answering

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.errors import ServiceError
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import Offered, Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.services.kit.metrics import exposition, unix
from sottovoce.services.server.figures import figures
from sottovoce.services.superlink import exposing
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.conductor import (
    Checkpoint,
    ConductedRound,
    only_one,
    write_status,
)
from sottovoce.stores.database import rounds
from sottovoce.stores.keys import CA_CERTIFICATE, init_keys, operator_token
from sottovoce.stores.server import PastRound
from sottovoce.stores.server_folder import create_folder
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.terms import Terms


def of_server(here):
    return exposed(exposition("", figures(here.database, RefusalCounts(), 7, here.plan)))


def state_of(found, name="sottovoce_state"):
    (now,) = [labels[0] for labels, value in found[name].items() if value == 1]
    assert set(found[name].values()) <= {0.0, 1.0}
    return now


def waits_for(found, name="sottovoce_waiting"):
    return [labels[0] for labels, value in found[name].items() if value]


@pytest.fixture
def here(tmp_path, monkeypatch):
    answering(monkeypatch, GOOD, BAD)
    made = VersionsWorld(tmp_path, 5)
    yield made
    made.database.close()


def test_a_servers_figures_follow_its_rounds(here):
    first = of_server(here)
    assert state_of(first) == "waiting"
    assert waits_for(first) == []
    for name in ("last_round_seconds", "round_opened_timestamp_seconds", "published_version",
                 "quality", "last_round_end_timestamp_seconds"):  # fmt: skip
        assert first[f"sottovoce_{name}"] == {}, name
    assert set(first["sottovoce_rounds"].values()) == {0.0}
    before = int(time.time())
    here.step()
    found = of_server(here)
    assert state_of(found) == "open"
    assert waits_for(found) == ["devices"]
    opened = found["sottovoce_round_opened_timestamp_seconds"][()]
    assert before <= opened <= time.time()
    assert found["sottovoce_waiting_since_timestamp_seconds"][()] == opened
    for _ in range(4):
        here.run_round()
    found = of_server(here)
    assert found["sottovoce_rounds"]["goal",] == 4
    assert found["sottovoce_last_round_contributions"][()] > 0
    assert found["sottovoce_last_round_seconds"][()] >= 0
    assert before <= found["sottovoce_last_round_end_timestamp_seconds"][()] <= time.time()
    assert found["sottovoce_published_version"][()] == 2
    assert found["sottovoce_versions_held_back"][()] == 1
    assert found["sottovoce_database_bytes"][()] > 4096
    assert found["sottovoce_in_flight_bytes"][()] == 7
    rate = BAD.rate("published")  # the newest sums that tell of version 2
    quality = found["sottovoce_quality"]
    assert quality["value", "published"] == pytest.approx(rate.value)
    assert quality["low", "published"] == pytest.approx(rate.low)
    assert quality["high", "popularity"] == pytest.approx(BAD.rate("popularity").high)
    assert quality["value", "newest"] == pytest.approx(BAD.rate("candidate").value)
    assert found["sottovoce_quality_trouble"][()] == 0
    here.publish(4)
    assert of_server(here)["sottovoce_quality_trouble"][()] == 1
    here.run_round()
    found = of_server(here)
    assert state_of(found) == "finished"
    assert waits_for(found) == ["operator"]
    assert found["sottovoce_round_opened_timestamp_seconds"] == {}


def test_rounds_that_are_over_are_counted_once_and_read_once(here):
    outcomes = operating.Outcomes()
    for done in range(1, 6):
        here.run_round()
        for _ in range(2):  # a look between rounds, and another one
            with here.database.reading() as link:
                assert outcomes.count(link) == {"goal": done}
                assert operating.Outcomes().count(link) == {"goal": done}
    with here.database.writing() as link:
        link.execute(rounds.delete())
    with here.database.reading() as link:
        assert outcomes.count(link) == {"goal": 5}  # nothing of them was read again


def test_a_pause_is_a_state_where_no_round_is_open(here, tmp_path):
    acts = acting(here.database)
    acts.pause("a walk")
    found = of_server(here)
    assert state_of(found) == "paused"
    assert waits_for(found) == ["operator"]
    assert found["sottovoce_paused"][()] == 1
    acts.go_on()
    here.step()
    acts.pause()
    found = of_server(here)
    assert (state_of(found), found["sottovoce_paused"][()]) == ("open", 1)


def test_another_party_that_is_away_is_named(here):
    here.step()
    with here.database.writing() as link:
        records.set_fact(link, "waits", "the helper does not answer")
        operating.keep_since(link, operating.AWAY, "it is away", "helper")
    assert waits_for(of_server(here)) == ["helper"]


# --- a training on Flower -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    terms = Terms.of("town", TRAIN.n_items, FPLConfig(embedding_size=4), 6, ShareFraction())
    made = create_folder(
        tmp_path / "town", terms, [(item, item) for item in ITEMS], cohort_size="all", rounds=3,
        root_key=Streams.from_seed(3).key, rules=RoundRules(),
    )  # fmt: skip
    if not (made.path / "keys" / CA_CERTIFICATE).exists():
        init_keys(made.path / "keys")
    return made


class Scraper:
    """Prometheus, as far as it is needed."""

    def __init__(self, folder, url):
        trusted = ssl.create_default_context(cafile=str(folder.keys / CA_CERTIFICATE))
        self.http = httpx2.Client(base_url=url, verify=trusted, trust_env=False)
        self.token = operator_token(folder.keys)

    def ask(self, path="/metrics", token=None):
        bearer = f"Bearer {self.token if token is None else token}"
        return self.http.get(path, headers={"authorization": bearer} if token != "" else {})

    def look(self):
        got = self.ask()
        assert got.status_code == 200
        return exposed(got.content)


def test_a_training_on_flower_is_seen_from_its_first_round_to_its_last(folder):
    with exposing(folder.path, 0) as url, contextlib.ExitStack() as stack:
        assert url.startswith("https://127.0.0.1:")
        there = Scraper(folder, url)
        stack.callback(there.http.close)
        first = there.look()  # before the first run
        assert state_of(first, "sottovoce_flower_state") == "stopped"
        assert first["sottovoce_flower_last_round_seconds"] == {}
        items = Server.start(folder.plan.terms.build(), TRAIN.n_items, Streams.from_seed(1)).items
        with Checkpoint(folder.path) as checkpoint:
            checkpoint.begin(items, folder.plan.terms.digest())
            checkpoint.raise_target(3)
            found = there.look()
            assert state_of(found, "sottovoce_flower_state") == "stopped"
            assert waits_for(found, "sottovoce_flower_waiting") == ["operator"]
            numbers = TRAIN.items[:0].astype("int64")
            with only_one(folder.path):
                status = {"run": "1", "state": "open", "target": 3, "nodes": 2, "devices": 8}
                write_status(folder.path, {**status, "asked": 8, "goal": 8, "reported": 5})
                before = int(time.time())  # times are kept to the second
                checkpoint.open(ConductedRound(0, 0, 8, numbers))
                opened = unix(checkpoint.opened())
                checkpoint.open(ConductedRound(0, 0, 9, numbers))  # asks one more
                assert unix(checkpoint.opened()) == opened
                found = there.look()
                assert state_of(found, "sottovoce_flower_state") == "open"
                assert waits_for(found, "sottovoce_flower_waiting") == ["nodes"]
                at = found["sottovoce_flower_round_opened_timestamp_seconds"][()]
                assert before <= at == pytest.approx(opened)
                assert found["sottovoce_flower_reported"][()] == 5
                write_status(folder.path, {**status, "state": "summing", "helper": "away"})
                assert waits_for(there.look(), "sottovoce_flower_waiting") == ["helper"]
                record = PastRound(0, 0, "goal", 8, 8, (), 12.5)
                offered = [Offered(1, "", GOOD), Offered(2, "worse", BAD, 1)]
                changed = TRAIN.items[: TRAIN.n_items].astype("int64") * 0
                checkpoint.close_round(record, numbers, items, changed, None, offered)
            found = there.look()  # the run was cut off
        assert state_of(found, "sottovoce_flower_state") == "stopped"
        assert found["sottovoce_flower_last_round_seconds"][()] == 12.5
        assert found["sottovoce_flower_last_round_contributions"][()] == 8
        assert before <= found["sottovoce_flower_last_round_end_timestamp_seconds"][()]
        assert found["sottovoce_flower_rounds"]["goal",] == 1
        assert found["sottovoce_flower_round_opened_timestamp_seconds"] == {}
        assert found["sottovoce_flower_published_version"][()] == 1
        assert found["sottovoce_flower_versions_held_back"][()] == 1
        rate = BAD.rate("published")
        assert found["sottovoce_flower_quality"]["low", "published"] == pytest.approx(rate.low)
        assert ("server", "SuperLink") in found["sottovoce_certificate_expires_timestamp_seconds"]


def test_only_who_bears_a_token_sees_figures_and_nothing_else_is_there(folder):
    with exposing(folder.path, 0) as url, contextlib.ExitStack() as stack:
        there = Scraper(folder, url)
        stack.callback(there.http.close)
        assert there.ask("/health", token="").text == "ok"
        for token in ("", "00" * 32):
            assert there.ask(token=token).status_code == 401
        assert there.ask("/v1/operator/status").status_code == 404
        port = int(url.rpartition(":")[2])
        with pytest.raises(ServiceError, match="--metrics-port"), exposing(folder.path, port):
            pass
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health", verify=False, trust_env=False)


def test_a_damaged_checkpoint_is_said_and_does_not_end_it(folder):
    with exposing(folder.path, 0) as url, contextlib.ExitStack() as stack:
        there = Scraper(folder, url)
        stack.callback(there.http.close)
        (folder.path / "flower.db").write_bytes(b"nothing of the kind" * 300)
        assert there.ask().status_code == 503
        (folder.path / "flower.db").unlink()
        (folder.path / "flower-status.json").write_text(json.dumps({"state": 7, "target": "x"}))
        assert there.ask().status_code == 200
        assert there.ask("/health").text == "ok"
