"""What operators and gateways type."""

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer

from sottovoce import cli
from sottovoce.cli import serve_flower
from sottovoce.cli.making import make_federation
from sottovoce.core.consent import Choice
from sottovoce.engines.flower import superlink
from sottovoce.engines.flower.cohort import read_choices
from sottovoce.engines.flower.gateway import Site, start_gateway
from sottovoce.engines.flower.launch import LocalFlower, NodePlan
from sottovoce.engines.flower.quiet import flower_environment
from sottovoce.engines.flower.supernode import Connection
from sottovoce.engines.flower.trial import FlowerTrial
from sottovoce.engines.processes import free_port
from sottovoce.errors import (
    ConfigError,
    CorruptData,
    DataError,
    DataNotFound,
    KeyTrouble,
    ServiceError,
    StoreError,
    UsageError,
)
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import helper_introduction, init_helper
from sottovoce.stores.keys import init_keys, node_keys

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


def test_choices_with_an_epsilon(tmp_path):
    file = tmp_path / "choices.csv"
    file.write_text("user,epsilon,total_epsilon\nada,0.5,\nbea,1,2.5\ncleo,,0\n")
    assert read_choices(file) == {
        "ada": Choice(epsilon=0.5),
        "bea": Choice(epsilon=1.0, total_epsilon=2.5),
        "cleo": Choice(total_epsilon=0.0),
    }


GRAM = """
name = "gateways"
[town]
residents = 20
venues = 60
districts = 2
[algorithm]
name = "gram"
popularity_share = 0.2
[consent]
mix = [{ weight = 1, epsilon = 1.0 }]
[link]
min_devices = 4
"""


def test_a_federation_of_gateways_with_a_secure_sum_has_a_helper(tmp_path):
    (tmp_path / "gram.toml").write_text(GRAM)
    key = init_helper(tmp_path / "helper", ["masks.example.org"])
    ca, public = tmp_path / "helper" / "keys" / "ca.crt", tmp_path / "helper" / "seal.pub"
    words = "superlink", tmp_path / "town", "--experiment", tmp_path / "gram.toml"
    with pytest.raises(ConfigError, match="needs a proxy"):
        call(*words)
    with pytest.raises(UsageError, match="go together"):
        call(*words, "--proxy", "https://masks.example.org:8447")
    with pytest.raises(UsageError, match="go with --experiment"):
        call(*words[:2], "--proxy", "https://masks.example.org:8447", "--proxy-ca", ca)
    folder = make_federation(
        *(tmp_path / "town", str(tmp_path / "gram.toml"), [], None, [], None),
        *(("https://masks.example.org:8447", ca), public),
        gateways=True,
    )
    link = folder.plan.terms.secure_sum
    assert (link.key, link.min_devices, folder.plan.rounds) == (key, 4, 2)
    assert helper_introduction(folder).link == link


def test_a_trial_needs_as_many_gateways_as_a_sum(tmp_path, capsys):
    (tmp_path / "gram.toml").write_text(GRAM)
    words = "run", tmp_path / "gram.toml", "--engine", "flower", "--out", tmp_path / "out"
    assert cli.call([*map(str, words)]) == 2
    told = capsys.readouterr().err
    assert "3 are fewer than link.min_devices = 4" in told
    assert not (tmp_path / "out").exists()


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
        ("user,epsilon\nada,-1\n", CorruptData, "line 2: epsilon"),
        ("user,total_epsilon\nada,nan\n", CorruptData, "line 2: total_epsilon"),
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


@pytest.fixture
def operator(town, tmp_path, monkeypatch):
    """An operator whose SuperLink seems to run, with keys of two organisations beside it."""
    town.found()
    (town.folder / "superlink.json").write_text(json.dumps({"port": 1, "pid": os.getpid()}))
    monkeypatch.setattr(superlink, "register_nodes", lambda place, paths: len(paths))
    monkeypatch.chdir(tmp_path)
    for name in ("library", "school"):
        node_keys(tmp_path / "nodes", name)
        (tmp_path / "nodes" / f"{name}.pub").rename(tmp_path / f"{name}.pub")
    return town.folder.relative_to(tmp_path)


def given(folder, capsys):
    capsys.readouterr()
    assert cli.call(["serve", "status", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["numbers"]


def test_a_node_is_let_in_with_numbers_of_its_own(operator, capsys):
    let_in = ("flower", operator, "--register-only", "--node", "library.pub")
    with pytest.raises(UsageError, match=r"which devices library\.pub may answer for"):
        call(*let_in)
    call(*let_in, "--numbers", "1000-1999")
    call(*let_in)  # it has its numbers
    assert given(operator, capsys) == {"library": "1000-1999"}
    with pytest.raises(UsageError, match="1999 are those of the node library"):
        call(
            "flower", operator, "--register-only", "--node", "school.pub", "--numbers", "1999-2998"
        )
    with pytest.raises(UsageError, match="one --numbers for each --node"):
        call(*let_in, "--node", "school.pub", "--numbers", "5-9")
    with pytest.raises(UsageError, match="each --node must be another one"):
        call(*let_in, "--node", "library.pub", "--numbers", "5-9", "--numbers", "10-12")
    with pytest.raises(UsageError, match="no range of device numbers"):
        call(*let_in, "--numbers", "many")
    call(*let_in, "--node", "school.pub", "--numbers", "3000-3999", "--numbers", "7,1000-1999")
    assert given(operator, capsys) == {"library": "3000-3999", "school": "7, 1000-1999"}
    assert cli.call(["serve", "status", str(operator)]) == 0
    assert "  school: 7, 1000-1999\n" in capsys.readouterr().out


def test_a_node_is_released(operator, capsys):
    with pytest.raises(UsageError, match="no node has devices here yet"):
        call("flower", operator)
    call("flower", operator, "--register-only", "--node", "library.pub", "--numbers", "1000-1999")
    with pytest.raises(UsageError, match="goes without --node"):
        call("flower", operator, "--release", "library.pub", "--node", "school.pub")
    with pytest.raises(UsageError, match=r"school\.pub has no devices"):
        call("flower", operator, "--release", "school.pub")
    (operator / "superlink.json").unlink()  # it need not run for this
    call("flower", operator, "--release", "library.pub")
    assert "library no longer answers for 1000-1999" in capsys.readouterr().err
    assert given(operator, capsys) == {}


def test_a_file_that_is_no_public_key_is_refused(operator):
    Path("noise.pub").write_text("noise")
    with pytest.raises(KeyTrouble, match="keys node"):
        call("flower", operator, "--register-only", "--node", "noise.pub", "--numbers", "1-2")
    with pytest.raises(DataNotFound, match=r"ends in \.pub"):
        call("flower", operator, "--release", "nowhere.pub")


def test_flower_and_nginx_get_absolute_paths(town, tmp_path, monkeypatch):
    town.found()
    key = node_keys(tmp_path / "nodes", "alba")
    monkeypatch.chdir(tmp_path)
    keys, work = Path("server/keys"), Path("work")
    place = superlink.SuperLinkPlace(work, 1, keys)
    place.prepare()
    settings = tomllib.loads((work / "flwr" / "config.toml").read_text())
    there = settings["superlink"]["sottovoce"]["root-certificates"]
    assert there == str(tmp_path / "server" / "keys" / "ca.crt")
    assert place.environment["FLWR_HOME"] == str(tmp_path / "work" / "flwr")
    node = NodePlan("alba", Path("stores/alba"), key.relative_to(tmp_path))
    local = LocalFlower(Path("trial"), [node], keys=keys)
    assert local.keys == tmp_path / keys
    assert (local.nodes[0].store, local.nodes[0].key) == (town.stores["alba"], key)
    assert local.access_log.is_absolute()
    assert local.place.work == tmp_path / "trial" / "superlink"
    assert FlowerTrial(None, Path("services"), 2).folder == tmp_path / "services"
    words = Connection("example.org:1", keys / "ca.crt", Path("nodes/alba")).words()
    assert words[2:] == [
        *("--root-certificates", tmp_path / keys / "ca.crt"),
        *("--auth-supernode-private-key", key),
    ]
    text = Site(keys, 1, 2, access_log=Path("log")).render()
    assert f"ssl_certificate     {tmp_path}/server/keys/server.crt;" in text
    assert f"access_log {tmp_path}/log " in text


def test_nobody_else_can_read_a_superlinks_folder(tmp_path):
    old = tmp_path / "work" / "objects"
    old.mkdir(parents=True, mode=0o755)
    (tmp_path / "work" / "superlink.db").touch(0o644)
    (old / "sum").touch(0o644)
    superlink.SuperLinkPlace(tmp_path / "work", 1, None).prepare()
    everything = [tmp_path / "work", *(tmp_path / "work").rglob("*")]
    assert len(everything) == 6
    assert {p.name for p in everything if p.stat().st_mode & 0o077} == set()


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


def test_a_flood_is_stopped_at_the_gateway(tmp_path, nginx):
    """No SuperLink is behind it: what is let through is answered with 502."""
    init_keys(tmp_path / "keys")
    port = free_port()
    site = Site(
        *(tmp_path / "keys", free_port(), port, "127.0.0.1", tmp_path / "access.log"),
        nodes_per_address=1,
        report_bytes=3 * 2**20,
    )
    trust = ssl.create_default_context(cafile=tmp_path / "keys" / "ca.crt")

    def connect():
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trust)

    def post(call, size=1):
        link = connect()
        try:
            link.request("POST", f"/v1/fleet/{call}", body=b"x" * size)
            return link.getresponse().status
        except (BrokenPipeError, ConnectionResetError):
            return "cut off"
        finally:
            link.close()

    with start_gateway(site, tmp_path / "gateway", flower_environment(tmp_path)):
        assert post("push-object", 2**21 + 2**19) == 502
        assert post("push-object", 2**22) in (413, "cut off")
        assert post("pull-messages", 2**19) == 502
        assert post("pull-messages", 2**21) in (413, "cut off")
        held = [connect() for _ in range(16)]
        for link in held:  # each promises a report and sends none
            link.putrequest("POST", "/v1/fleet/push-object")
            link.putheader("Content-Length", "1000")
            link.endheaders()
        end = time.monotonic() + 120
        while (answer := post("pull-messages")) != 429 and time.monotonic() < end:
            time.sleep(0.05)
        assert answer == 429
        for link in held:
            link.close()
        while (answer := post("pull-messages")) != 502 and time.monotonic() < end:
            time.sleep(0.05)
        assert answer == 502
        time.sleep(2)
        # In one piece: how fast this process asks does not matter.
        asked = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n"
        link, got = connect(), b""
        link.connect()
        with link.sock as line:
            line.sendall((asked + b"\r\nx") * 399 + asked + b"connection: close\r\n\r\nx")
            while part := line.recv(1 << 16):
                got += part
    answers = re.findall(rb"HTTP/1.1 (\d+)", got)
    assert answers[:40] == [b"502"] * 40
    assert b"429" in answers
    modes = {p.stat().st_mode & 0o077 for p in [tmp_path / "gateway", tmp_path / "access.log"]}
    assert modes == {0}


def test_a_run_says_for_whom_it_waits_and_once(capsys):
    from sottovoce.cli.serve_flower import _WaitingWords

    said = _WaitingWords()

    def look(**status):
        said.look({"round": 0, "target": 3, **status})
        return [line.partition(" for ")[2] for line in capsys.readouterr().err.splitlines()]

    away = {"state": "waiting", "nodes": 1, "devices": 4, "away": ["club", "school"]}
    first, second = look(**away)
    assert first.startswith("the gateway of club: it is not connected")
    assert "`sottovoce serve supernode` has to run" in second
    assert look(**away) == [], "it was said"
    [problem] = look(state="waiting", nodes=3, devices=0, away=[], problems=["nobody has agreed"])
    assert problem == "whoever runs a gateway, which says: nobody has agreed"
    [people] = look(state="waiting", nodes=3, devices=1, away=[], problems=[])
    assert people.startswith("people: 1 behind 3 gateways take part")
    [helper] = look(state="summing", helper="it does not answer")
    assert helper == "the helper: it does not answer"
    assert look(state="open", nodes=3) == []
    said.look({"round": 1, "target": 3, "state": "open"})
    assert "round 1 of 3 is done" in capsys.readouterr().err
