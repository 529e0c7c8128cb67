"""What operators and gateways type."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from sottovoce.cli import serve_flower
from sottovoce.consent import Choice
from sottovoce.engines.flower.environment import flower_environment
from sottovoce.engines.flower.gateway import Site, start_gateway
from sottovoce.engines.flower.supernode import Connection
from sottovoce.engines.https.keys import init_keys, node_keys
from sottovoce.engines.processes import Child, free_port
from sottovoce.errors import (
    CorruptData,
    DataError,
    DataNotFound,
    KeyTrouble,
    ServiceError,
    StoreError,
    UsageError,
)
from sottovoce.parties.hosted import Hosted
from sottovoce.parties.store import CohortStore

ROOT = Path(__file__).parents[3]
COMMANDS = ("superlink", "supernode", "cohort", "flower", "nginx")
MAIN = """
import sys, typer
from sottovoce.cli import serve_flower
from sottovoce.errors import SottovoceError
app = typer.Typer(pretty_exceptions_enable=False)
for name in {commands}:
    app.command(name)(getattr(serve_flower, name))
try:
    app(sys.argv[1:], standalone_mode=False)
except SottovoceError as error:
    print("error:", error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def call(*words):
    app = typer.Typer(pretty_exceptions_enable=False)
    for name in COMMANDS:
        app.command(name)(getattr(serve_flower, name))
    app([str(word) for word in words], standalone_mode=False)


def command(*words):
    code = MAIN.format(commands=COMMANDS)
    return [sys.executable, "-c", code, *map(str, words)]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "visits.csv").write_text(
        "user,item,timestamp\nada,bread,10\nada,milk,11\nbea,milk,12\ncleo,sand,13\n"
    )
    (tmp_path / "items.csv").write_text("item,title\nmilk,Milk\nbread,Bread\njam,Jam\n")
    (tmp_path / "catalogue.json").write_text(
        json.dumps({"items": [["milk", "Milk"], ["bread", "Bread"], ["jam", "Jam"]]})
    )
    (tmp_path / "choices.csv").write_text("user,takes_part,share_positives\nada,yes,0.5\nbea,no,\n")
    return tmp_path


@pytest.mark.parametrize("catalogue", ["items.csv", "catalogue.json"])
def test_a_cohort_from_files(files, capsys, catalogue):
    call(
        *("cohort", files / "shop", files / "visits.csv", "--first", 20, "--json"),
        *("--catalogue", files / catalogue, "--consent", files / "choices.csv"),
    )
    said = json.loads(capsys.readouterr().out)
    assert (said["users"], said["first"], said["interactions"]) == (3, 20, 4)
    assert (said["take_part"], said["unknown_items"]) == (1, 1)
    with CohortStore.open(files / "shop") as store:
        assert store.users.tolist() == [20, 21, 22]
        assert [store.name(n) for n in (20, 21, 22)] == ["ada", "bea", "cleo"]
        assert store.history().row(0).tolist() == [0, 1]
        assert store.choice(20) == Choice(share_positives=0.5)
        assert not store.choice(21).takes_part
        assert not store.choice(22).takes_part


def test_a_cohort_of_a_named_data_set_takes_no_part_until_told(tmp_path, capsys):
    call("cohort", tmp_path / "all", "town")
    assert "0 take part" in capsys.readouterr().out
    with CohortStore.open(tmp_path / "all") as store:
        assert len(store.catalogue()) == store.history().n_items


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("user,share_positives\nzoe,0.5\n", DataError, "'zoe', who is not in the data"),
        ("user,share_positives\nada,1.5\n", CorruptData, "line 2: share_positives"),
        ("user,share_positives\nada,much\n", CorruptData, "line 2: share_positives"),
        ("user,takes_part\nada,perhaps\n", CorruptData, "takes_part must be yes or no"),
        ("who,takes_part\nada,yes\n", CorruptData, "the user is missing"),
        ("user\nada\nada\n", CorruptData, "there twice"),
    ],
)
def test_a_wrong_consent_file_makes_no_store(files, text, error, sentence):
    (files / "choices.csv").write_text(text)
    with pytest.raises(error, match=sentence):
        call("cohort", files / "shop", files / "visits.csv", "--consent", files / "choices.csv")
    assert not (files / "shop").exists()


def test_missing_files_are_named(files):
    with pytest.raises(DataNotFound, match="nowhere"):
        call("cohort", files / "shop", files / "visits.csv", "--consent", files / "nowhere.csv")
    with pytest.raises(DataNotFound, match=r"nowhere\.json"):
        call("cohort", files / "shop", files / "visits.csv", "--catalogue", files / "nowhere.json")
    (files / "catalogue.json").write_text("[]")
    with pytest.raises(CorruptData, match="no catalogue"):
        call("cohort", files / "s", files / "visits.csv", "--catalogue", files / "catalogue.json")
    with pytest.raises(StoreError, match="already"):
        call("cohort", files, files / "visits.csv")


def test_a_gateway_needs_its_keys(town, tmp_path):
    store = town.stores["alba"]
    with pytest.raises(UsageError, match="give --ca and --key"):
        call("supernode", store, "--superlink", "localhost:1")
    with pytest.raises(UsageError, match="goes without"):
        call("supernode", store, "--superlink", "localhost:1", "--plaintext", "--ca", store)
    with pytest.raises(UsageError, match="loopback only"):
        call("supernode", store, "--superlink", "192.0.2.1:9092", "--plaintext")
    with pytest.raises(UsageError, match="HOST:PORT"):
        Connection("https://example.org", None, None)
    with pytest.raises(KeyTrouble, match="is not there"):
        Connection("example.org:9092", tmp_path / "ca.crt", tmp_path / "key")


def test_two_gateways_on_one_store_are_refused(town):
    with CohortStore.open(town.stores["alba"], agent=True):
        done = subprocess.run(
            command("supernode", town.stores["alba"], "--superlink", "127.0.0.1:9", "--plaintext"),
            capture_output=True,
            text=True,
        )
    assert done.returncode == StoreError.exit_code
    assert len(done.stderr.splitlines()) == 1
    assert "use" in done.stderr


def test_a_superlink_needs_a_federation_a_free_port_and_keys(town, tmp_path):
    with pytest.raises(ServiceError, match="make a federation"):
        call("superlink", tmp_path / "nothing")
    with pytest.raises(UsageError, match="go with --experiment"):
        call("superlink", tmp_path / "nothing", "--rounds", 3)
    town.found()
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServiceError, match="choose another one"):
            call("superlink", town.folder, "--port", taken.getsockname()[1])
    (town.folder / "keys" / "server.key").unlink()
    with pytest.raises(KeyTrouble, match="keys init"):
        call("superlink", town.folder, "--port", free_port())


def test_training_needs_a_superlink(town):
    town.found()
    with pytest.raises(ServiceError, match="no SuperLink runs"):
        call("flower", town.folder)


def test_the_gateway_configuration_is_printed(town, capsys, tmp_path):
    town.found()
    call("nginx", town.folder, "--port", 9999, "--superlink-port", 8888)
    text = capsys.readouterr().out
    assert "listen 0.0.0.0:9999 ssl;" in text
    assert "server 127.0.0.1:8888;" in text
    assert str(town.folder / "keys" / "server.crt") in text
    with pytest.raises(KeyTrouble, match="keys init"):
        call("nginx", tmp_path / "nothing")
    with pytest.raises(UsageError, match="without blanks"):
        Site(Path("/a b"), 1, 2).render()


def test_the_shipped_configuration_is_the_one_that_is_tested():
    shipped = (ROOT / "deploy" / "nginx" / "sottovoce-gateway.conf").read_text()
    assert shipped == Site(Path("/srv/sottovoce/keys"), 9091, 9092).render()


def test_nginx_takes_the_configuration_and_closes_what_is_not_named(tmp_path, nginx):
    init_keys(tmp_path / "keys")
    port = free_port()
    site = Site(tmp_path / "keys", free_port(), port, "127.0.0.1", tmp_path / "access.log")
    with start_gateway(site, tmp_path / "gateway", flower_environment(tmp_path)) as gateway:
        assert gateway.alive
        with pytest.raises(ServiceError, match="choose another one"):
            start_gateway(site, tmp_path / "second", flower_environment(tmp_path))
    error_log = (tmp_path / "gateway" / "error.log").read_text()
    assert not re.search(r"\[(warn|emerg|crit)\]", error_log)


@pytest.mark.slow
def test_an_operator_and_three_gateways_by_the_commands(town, tmp_path, nginx):
    """As the documentation tells it: superlink, nginx, register, gateways, train, look."""
    town.found(rounds=2)
    keys = {name: node_keys(tmp_path / "nodes", name) for name in town.stores}
    port, entrance = free_port(), free_port()
    environment = flower_environment(tmp_path / "home")
    logs = tmp_path / "logs"
    children = []

    def start(name, *words):
        child = Child(name, command(*words), log=logs / f"{name}.log", environment=environment)
        children.append(child)
        return child

    try:
        link = start("superlink", "superlink", town.folder, "--port", port)
        end = time.monotonic() + 90
        while not (town.folder / "superlink.json").exists():
            assert link.alive, (logs / "superlink.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        site = Site(town.folder / "keys", port, entrance, "127.0.0.1", tmp_path / "access.log")
        children.append(start_gateway(site, tmp_path / "gateway", environment))
        publics = [word for key in keys.values() for word in ("--node", f"{key}.pub")]
        for _ in range(2):  # the second time they are known already
            done = subprocess.run(
                command("flower", town.folder, *publics, "--register-only"),
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
        for name, path in town.stores.items():
            start(
                *(name, "supernode", path, "--superlink", f"127.0.0.1:{entrance}"),
                *("--ca", town.folder / "keys" / "ca.crt", "--key", keys[name]),
            )
        done = subprocess.run(
            command("flower", town.folder, "--json"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["state"], said["round"], said["nodes"], said["devices"]) == (
            *("finished", 2, 3, 8),
        )
        assert [r["reported"] for r in said["rounds"]] == [8, 8]
        assert np.array_equal(town.vectors(), town.simulate(2)[1])
        begin = time.monotonic()
        for child in children:
            child.process.send_signal(signal.SIGTERM)
        for child in children:
            assert child.process.wait(30) == 0, child
        assert time.monotonic() - begin < 30
        with CohortStore.open(town.stores["corso"]) as store:
            assert len(Hosted(store).recommend(3, 5)) == 5
    finally:
        for child in reversed(children):
            child.stop()
