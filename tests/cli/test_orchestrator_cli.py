"""`sottovoce serve orchestrator` as its operator uses it: what it makes and says, what it refuses,
and, with real data owners, that rounds go on whatever is killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time

import pytest

import sottovoce.cli
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.engines.flower.gateway import find_nginx
from sottovoce.engines.processes import descendants, free_port, sottovoce_command
from sottovoce.rng import Streams
from sottovoce.stores.keys import authority_pem, init_keys, node_keys
from sottovoce.stores.orchestrator_folder import (
    create_orchestrator_folder,
    open_orchestrator_folder,
)
from sottovoce.wire.interactions import Identity
from sottovoce.wire.silo_files import Admission, Application, FederationFile, UserInvitation


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Exit code, standard output and standard error of one command."""
    monkeypatch.chdir(tmp_path)

    def call(*words, party="orchestrator"):
        capsys.readouterr()
        code = sottovoce.cli.call(["serve", party, *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def good(run, *words, **more):
    code, out, err = run(*words, "--json", **more)
    assert code == 0, err
    (line,) = out.splitlines()
    return json.loads(line)


def sentence(run, code, *words):
    found, out, err = run(*words)
    (line,) = err.splitlines()
    assert (found, out) == (code, ""), err
    return line.removeprefix("error: ")


@pytest.fixture
def items(tmp_path):
    place = tmp_path / "items.csv"
    place.write_text("item,title\n" + "".join(f"film {n},Film {n}\n" for n in range(5)))
    return place


@pytest.fixture
def town(run, items):
    good(run, "town", "--make", "--catalogue", items, "--set", "theta=3", "--seed", "7")
    return open_orchestrator_folder(items.parent / "town")


@pytest.fixture
def application(tmp_path):
    init_keys(tmp_path / "owner")
    node_keys(tmp_path / "owner", "node")
    return Application(
        "Bakery",
        "https://127.0.0.1:8445",
        Identity().public,
        authority_pem(tmp_path / "owner"),
        (tmp_path / "owner" / "node.pub").read_text(),
        (0, 2),
    )


def test_a_federation_is_made_once(run, items, town):
    about = FederationFile.read(town.federation_file)
    assert about.catalogue == tuple(f"film {n}" for n in range(5))
    assert about.settings == DRIFTConfig(theta=3)
    assert about.federation.startswith("town-")
    with contextlib.closing(town.store()) as store:
        assert store.root_key == Streams.from_seed(7).key
        assert (store.federation, store.settings) == (about.federation, about.settings)
    assert (town.path / "keys" / "superexec.secret").exists()
    words = sentence(run, 2, "town", "--make", "--catalogue", items)
    assert "holds a federation already" in words
    assert FederationFile.read(town.federation_file) == about
    made = good(run, "two", "--make", "--catalogue", items, "--name", "My two", "--alias", "a.org")
    assert made["federation"].startswith("My two-")
    assert made["items"] == 5


def test_owners_are_admitted_named_and_removed(run, town, application, tmp_path):
    application.write(tmp_path / "application.json")
    admit = ("town", "--admit", "application.json")
    assert "--gateway HOST:PORT" in sentence(run, 2, *admit)
    found = good(run, *admit, "--gateway", "example.org:9092", "--out", "bakery.json")
    assert (found["number"], found["name"]) == (0, "Bakery")
    admission = Admission.read(tmp_path / "bakery.json")
    assert (admission.number, admission.gateway) == (0, "example.org:9092")
    assert (admission.federation, admission.ca) == (town.federation, authority_pem(town.keys))
    again = sentence(run, 2, *admit, "--gateway", "example.org:9092", "--out", "bakery.json")
    assert "not overwritten" in again
    assert good(run, *admit, "--gateway", "example.org:1")["number"] == 0, "lost, and asked again"
    assert Admission.read(tmp_path / "admission.json").gateway == "example.org:1"
    status = good(run, "town", party="status")
    assert [(o["number"], o["name"], o["items"]) for o in status["owners"]] == [(0, "Bakery", 2)]
    assert (status["held"], status["items"], status["running"]) == (2, 5, False)
    assert "0 Bakery: 2 items, no update yet" in run("town", party="status")[1]
    assert "there are: Bakery" in sentence(run, 2, "town", "--remove", "Cake shop")
    assert good(run, "town", "--remove", "Bakery")["number"] == 0
    assert good(run, "town", party="status")["owners"] == []


def test_an_application_for_other_items_is_refused(run, town, application, tmp_path):
    table = {**application.to_table(), "items": [5]}
    Application.from_table(table).write(tmp_path / "application.json")
    words = sentence(run, 2, "town", "--admit", "application.json", "--gateway", "example.org:1")
    assert "the catalogue has 5; it needs the newest federation.json" in words
    assert not (tmp_path / "admission.json").exists()
    assert good(run, "town", party="status")["owners"] == []


def test_users_are_invited(run, town, tmp_path):
    invite = ("town", "--invite", "2")
    assert "--url" in sentence(run, 2, *invite)
    found = good(run, *invite, "--url", "https://example.org:8446", "--out", "here")
    assert found["files"] == ["here/invitation-1.json", "here/invitation-2.json"]
    more = good(run, *invite, "--url", "https://example.org:8446", "--out", "here")
    assert more["files"] == ["here/invitation-3.json", "here/invitation-4.json"]
    read = [UserInvitation.read(path) for path in sorted((tmp_path / "here").iterdir())]
    assert len({invitation.token for invitation in read}) == 4
    assert {i.federation for i in read} == {town.federation}
    assert {i.issuer for i in read} == {town.issuer().public}
    assert all(p.stat().st_mode & 0o077 == 0 for p in (tmp_path / "here").iterdir())
    with contextlib.closing(town.store()) as store:
        assert store.enrol(read[3].token, Identity().public) == 0
    assert "is an address like" in sentence(run, 2, *invite, "--url", "example.org")
    assert "https://" in sentence(run, 2, *invite, "--url", "http://example.org:8446")


def test_the_catalogue_grows_and_a_flush_is_noted(run, town, tmp_path):
    (tmp_path / "more.csv").write_text("item\nfilm 4\nfilm 5\n")
    assert good(run, "town", "--catalogue", "more.csv") == {"folder": "town", "new": 1, "items": 6}
    assert good(run, "town", "--catalogue", "more.csv")["new"] == 0
    assert FederationFile.read(town.federation_file).catalogue[-1] == "film 5"
    assert good(run, "town", "--flush")["flush_requested"] is True
    assert "the next one ends all streams" in run("town", party="status")[1]


@pytest.fixture(scope="module")
def shared_town(tmp_path_factory):
    """For what must not change it."""
    root = tmp_path_factory.mktemp("shared")
    (root / "items.csv").write_text("item\na\nb\n")
    return create_orchestrator_folder(root / "town", ["a", "b"], DRIFTConfig())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 7, "holds no orchestrator"),
        (["new", "--make"], 2, "--make needs --catalogue"),
        (["new", "--make", "--catalogue", "none.csv"], 3, "none.csv is not there"),
        (["new", "--make", "--catalogue", "items.csv", "--set", "theta=0"], 2, "theta must be"),
        (["new", "--make", "--catalogue", "items.csv", "--set", "thet=1"], 2, "unknown keys"),
        (["new", "--make", "--catalogue", "items.csv", "--set", "theta"], 2, "key=value"),
        (["new", "--make", "--catalogue", "items.csv", "--name", "<b>"], 2, "--name must be"),
        (["new", "--make", "--catalogue", "items.csv", "--alias", "a b"], 2, "a b"),
        (["town", "--set", "theta=1"], 2, "go with --make"),
        (["town", "--seed", "1", "--flush"], 2, "go with --make"),
        (["town", "--gateway", "a:1"], 2, "--gateway goes with --admit"),
        (["town", "--url", "https://a"], 2, "--url goes with --invite"),
        (["town", "--out", "x", "--flush"], 2, "--out goes with"),
        (["town", "--flush", "--remove", "a"], 2, "choose one of --remove and --flush"),
        (["town", "--invite", "0"], 2, "--invite"),
        (["town", "--invite", "1000000", "--url", "https://a"], 2, "1 to 100,000 users"),
        (["town", "--admit", "none.json", "--gateway", "a:1"], 2, "cannot be read"),
        (["town", "--admit", "items.csv", "--gateway", "a:1"], 2, "is no application"),
        (["town", "--admit", "town/federation.json", "--gateway", "a:1"], 2, "has the fields"),
        (["town", "--catalogue", "none.csv"], 3, "none.csv is not there"),
        (["town", "--plaintext", "--host", "0.0.0.0", "--users-only"], 2, "loopback"),
        (["town", "--users-only", "--rounds", "3"], 2, "goes without --rounds"),
        (["town", "--users-only", "--host", "no such host"], 7, "no address to listen at"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    run, shared_town, monkeypatch, words, code, said
):
    root = shared_town.path.parent
    monkeypatch.chdir(root)
    before = (root / "town" / "federation.json").read_bytes()
    assert said in sentence(run, code, *words)
    assert (root / "town" / "federation.json").read_bytes() == before
    assert not (root / "new" / "federation.json").exists()


def test_a_port_that_is_taken_is_said_before_anything_starts(run, shared_town):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = sentence(run, 7, shared_town.path, "--users-only", "--port", port)
        assert f"port {port}" in words
        assert "choose another" in words


# --- as processes ---------------------------------------------------------------------------------


class Command:
    """One of the package's commands as a process, with its output in a file."""

    def __init__(self, log, *words):
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                sottovoce_command(*words),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def wait_for(ready, command, seconds=600.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ready():
            return found
        assert command.process.poll() is None, command.log.read_text()
        time.sleep(0.2)
    raise AssertionError(command.log.read_text())


def alive(family):
    def there(pid):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return [pid for pid, _ in family if there(pid)]


def test_the_command_serves_users_until_it_is_stopped(town, tmp_path):
    log = tmp_path / "log"
    words = ("serve", "orchestrator", town.path, "--users-only", "--port", "0")
    with Command(log, *words) as command:
        found = wait_for(town.running, command)
        with Command(tmp_path / "second", *words) as second:
            assert second.process.wait(60) == 7
            assert "served by another process already" in second.log.read_text()
        assert command.stop() == 0
    assert f"Users are served at {found['url']}" in log.read_text()
    assert town.running() is None


@pytest.mark.slow
@pytest.mark.skipif(find_nginx() is None, reason="nodes come in through nginx")
def test_rounds_go_on_whatever_is_killed(run, town, items, tmp_path):
    """One owner is there from the start, one is admitted while rounds are held, and one has no
    part; the orchestrator is killed, started again, and stopped."""
    ports = free_port(), free_port()
    serve = ("serve", "orchestrator", town.path, "--port", "0", "--every", "0.5")
    serve = (*serve, "--deadline", "20", "--superlink-port", ports[0], "--gateway-port", ports[1])

    def owner(name, admitted=True):
        url = f"https://127.0.0.1:{free_port()}"
        make = ("--make", town.federation_file, "--name", name, "--items", items, "--url", url)
        assert sottovoce.cli.call(["serve", "owner", name, *map(str, make)]) == 0
        out = f"{name}-admission.json"
        file = tmp_path / name / "application.json"
        gateway = f"127.0.0.1:{ports[1]}"
        good(run, "town", "--admit", file, "--gateway", gateway, "--out", out)
        assert sottovoce.cli.call(["serve", "owner", name, "--admission", out]) == 0
        if not admitted:
            good(run, "town", "--remove", name)
        return Command(tmp_path / f"{name}.log", "serve", "owner", name, "--port", "0")

    store = town.store()
    with contextlib.ExitStack() as stack:
        stack.callback(store.close)
        first = stack.enter_context(owner("first"))
        command = stack.enter_context(Command(tmp_path / "log", *map(str, serve)))
        wait_for(lambda: store.round >= 2, command)
        assert store.rounds()[-1].asked == ("first",)
        stack.enter_context(owner("second"))
        stranger = stack.enter_context(owner("stranger", admitted=False))
        wait_for(lambda: store.rounds()[-1].asked == ("first", "second"), command)
        wait_for(lambda: store.rounds()[-1].silent == (), command)
        good(run, "town", "--flush")
        wait_for(lambda: any(r.flush for r in store.rounds()), command)

        family = descendants(command.process.pid)
        assert len(family) >= 3
        command.stop(signal.SIGKILL)
        wait_for(lambda: not alive(family), first, 30.0)

        done = store.round
        command = stack.enter_context(Command(tmp_path / "log", *map(str, serve)))
        wait_for(lambda: store.round >= done + 2, command)
        wait_for(lambda: store.rounds()[-1].silent == (), command)
        status = good(run, "town", party="status")
        assert status["running"]
        assert status["training"]["online"] == ["first", "second"]
        assert "stranger" not in {name for past in store.rounds() for name in past.asked}
        assert stranger.process.poll() is None

        family = descendants(command.process.pid)
        assert command.stop() == 0
        assert not alive(family)
    assert store.folder == town.path
