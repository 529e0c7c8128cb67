"""`sottovoce serve setup`: its answers, what it makes of them, and what is left where it fails."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import forked
import pytest
from terminal import ask

from sottovoce.cli import call
from sottovoce.engines.processes import free_port
from sottovoce.stores import server as records
from sottovoce.stores.helper_folder import open_helper
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.shuffler_folder import open_shuffler_folder

PLACES = "item,title\n" + "".join(f"p{n},Place {n}\n" for n in range(30))
MADE = {"catalogue.csv", "experiment.toml", "server", "setup.json", "setup.lock"}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "places.csv").write_text(PLACES)
    return tmp_path


@pytest.fixture
def setup(place, capsys):
    """Makes and does not start: what was emitted, and what was said beside."""

    def run(*words, code=0, start="--no-start", file="places.csv"):
        capsys.readouterr()
        catalogue = ["--catalogue", place / file] if file else []
        ports = [] if "--port" in words else ["--port", 0]
        ports += [] if "--helper-port" in words else ["--helper-port", 0]
        given = [place / "town", *catalogue, *words, *ports, start, "--yes", "--json"]
        assert call(["serve", "setup", *map(str, given)]) == code, capsys.readouterr().err
        told = capsys.readouterr()
        return json.loads(told.out), told.err

    return run


def names(folder):
    return {path.name for path in folder.iterdir()}


# --- what is made ---------------------------------------------------------------------------------


def test_gram_with_a_helper_on_this_machine(place, setup):
    told, said = setup("--least", 3, "--invite", 3, "--port", 0, "--helper-port", 0)
    town = place / "town"
    assert names(town) == {*MADE, "helper", "invitations"}
    terms = open_folder(town / "server").plan.terms
    helper = open_helper(town / "helper").introduction
    assert helper.terms == terms
    assert told["terms"] == terms.digest()
    link = terms.secure_sum
    assert (link.min_devices, link.url) == (3, f"https://127.0.0.1:{told['beside_port']}")
    assert terms.release.period_days == 0, "on this machine periods follow each other"
    assert terms.n_items == 30 + 10
    assert told["invitations"] == [str(town / "invitations" / f"device-{n}.json") for n in range(3)]
    card = json.loads(Path(told["invitations"][0]).read_text())
    assert card["server"] == told["url"] == f"https://localhost:{told['port']}"
    assert "10 places are kept" in said
    assert "another organisation has to run the helper" in said
    assert town.stat().st_mode & 0o777 == 0o700
    for secret in ("setup.json", "helper/seal.key", "server/federation.json"):
        assert not (town / secret).stat().st_mode & 0o077, secret
    experiment = tomllib.loads((town / "experiment.toml").read_text())
    assert experiment["link"]["min_devices"] == 3
    assert names(place) == {"places.csv", "town"}, "something else is left"


def test_commands_take_the_folder_of_setup_and_say_how_it_is_started(place, setup, capsys):
    setup("--least", 3, "--invite", 2)
    town = place / "town"

    def said(*words, code=0):
        capsys.readouterr()
        assert call([*map(str, words)]) == code
        told = capsys.readouterr()
        return told.out if code == 0 else told.err

    shown = said("serve", "status", town)
    assert shown == said("serve", "status", town / "server")
    assert f"No server runs; to start it: sottovoce serve setup {town}\n" in shown
    assert f"start it with `sottovoce serve setup {town}`" in said("console", town, code=2)
    said("serve", "pause", town)
    assert "Paused since" in said("serve", "status", town)
    assert "rounds paused" in said("serve", "log", town)
    assert "up to her loudness once more" in said("serve", "target", town, "--rounds", 99)
    said("serve", "invite", town / "server", "--server", "https://localhost:1")
    assert names(town / "invitations") == {f"device-{n}.json" for n in range(3)}
    shown = said("serve", "terms", town, "--set", "release.epsilon=2")
    digest = json.loads(said("serve", "terms", town, "--json"))["amendment"]["digest"]
    assert f"comes into force when that runs: sottovoce serve setup {town}\n" in shown
    assert "Whoever runs the helper has to agree" in shown
    assert f"sottovoce serve helper DIR --introduction FILE --agree {digest}\n" in shown


def test_invitations_that_were_used_are_not_shown_again(place, setup):
    told, _ = setup("--invite", 3)
    cards = told["invitations"]
    assert len(cards) == 3
    server = open_folder(place / "town" / "server")
    with contextlib.closing(server.database()) as store, store.writing() as link:
        token = bytes.fromhex(json.loads(Path(cards[1]).read_text())["token"])
        records.enrol(link, token, bytes(32))
        records.shut(link, [2])
    assert setup(file=None)[0]["invitations"] == cards[:1]


def test_without_tls_for_pages_on_this_machine(place, setup, capsys):
    told, _ = setup("--least", 2, "--plaintext", "--origin", "http://localhost:8000")
    assert told["url"] == f"http://localhost:{told['port']}"
    again = ["serve", "setup", str(place / "town"), "--no-start"]
    assert call([*again, "--plaintext"]) == 0
    assert f"serve site {place / 'town'} --out site --server http://" in capsys.readouterr().out
    assert call(again) == 0
    assert "serve site" not in capsys.readouterr().out, "it is said at each start"


def test_a_period_lasts_a_while_unless_everything_is_on_this_machine(place, setup):
    """Without days between two periods a server could ask for one after the other."""
    setup("--least", 3, "--name", "town.example.org")
    assert open_folder(place / "town" / "server").plan.terms.release.period_days == 30


def test_fmf_with_a_shuffler_on_this_machine(place, setup):
    told, _ = setup("--learn", "fmf", "--least", 4, "--name", "town.example.org")
    shuffler = open_shuffler_folder(place / "town" / "shuffler").introduction
    terms = open_folder(place / "town" / "server").plan.terms
    assert shuffler.server == f"https://town.example.org:{told['port']}"
    there = f"https://town.example.org:{told['beside_port']}"
    assert terms.link.mixing.url == there, "devices come there"
    assert [tier.min_devices for tier in terms.reporting.tiers] == [4]


def test_a_helper_elsewhere_comes_first(place, setup):
    told, _ = setup("--elsewhere")
    assert (told["made"], names(place)) == (False, {"places.csv"})
    assert "sottovoce serve helper masks --init" in " ".join(told["next"])
    assert call(["serve", "helper", str(place / "masks"), "--init"]) == 0
    files = "--proxy-ca", place / "masks/keys/ca.crt", "--proxy-key", place / "masks/seal.pub"
    setup("--proxy", "https://masks.example.net:8447", *files, "--least", 20)
    town = place / "town"
    assert names(town) == {*MADE, "introduction.json"}
    assert not (town / "introduction.json").stat().st_mode & 0o077
    helper = str(place / "masks"), "--introduction", str(town / "introduction.json")
    from sottovoce.stores.helper_folder import HelperIntroduction, create_helper

    create_helper(Path(helper[0]), HelperIntroduction.read(Path(helper[2])))
    assert open_folder(town / "server").plan.terms.secure_sum.min_devices == 20


def test_settings_go_into_the_terms(place, setup):
    setup("--set", "release.epsilon=2.0", "--spare", 0)
    terms = open_folder(place / "town" / "server").plan.terms
    assert (terms.release.epsilon, terms.n_items) == (2.0, 30)


def test_on_a_terminal_it_asks(place):
    typed = [
        ("A file with the items", str(place / "places.csv")),
        ("What is learnt", ""),
        ("The name by which", ""),
        ("at least in a sum", "3"),
        ("Where the helper runs", ""),
        ("shall be invited now", "2"),
    ]
    ports = "--port", 0, "--helper-port", 0
    code, said = ask(place / "said", typed, "serve", "setup", place / "town", "--no-start", *ports)
    assert code == 0, said
    assert "about 1,000 are needed" in " ".join(said.split()), "it says what few mean"
    assert said.index("three are enough to try") < said.index("People at least in a sum")
    assert len(list((place / "town" / "invitations").iterdir())) == 2


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
def test_a_question_that_is_left_makes_nothing(place, key):
    words = "serve", "setup", place / "town", "--catalogue", place / "places.csv"
    code, said = ask(place / "said", [("What is learnt", key)], *words)
    assert code == 130, said
    assert "the question was not answered" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert names(place) == {"places.csv", "said"}


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "file", "sentence"),
    [
        ([], "nowhere.csv", "is not there"),
        ([], "bad.csv", "needs a column called item"),
        ([], "twice.csv", "more than once"),
        ([], None, "say --catalogue"),
        (["--name", "not a host"], "places.csv", "is the name or address of a machine"),
        (["--name", "300.1.2.3"], "places.csv", "is the name or address of a machine"),
        (["--name", "https://example.org"], "places.csv", "is the name or address of a machine"),
        (["--learn", "magic"], "places.csv", "--learn is gram or fmf"),
        (["--with", "magic"], "places.csv", "--with is https or flower"),
        (["--with", "flower", "--learn", "fmf"], "places.csv", "fmf has devices of its own"),
        (["--with", "flower", "--invite", "3"], "places.csv", "need no invitations"),
        (["--least", "1"], "places.csv", "needs 2 people at least"),
        (["--port", "FREE", "--helper-port", "FREE"], "places.csv", "a port of its own"),
        (["--proxy", "https://a.example"], "places.csv", "--proxy and --proxy-ca go together"),
        (["--set", "release.loudness=3"], "places.csv", "loudness"),
        (["--plaintext", "--invite", "3"], "places.csv", "invitations name an address with TLS"),
        (["--plaintext", "--host", "0.0.0.0"], "places.csv", "is for a loopback address"),
        (["--plaintext", "--with", "flower"], "places.csv", "not for Flower"),
    ],
)
def test_bad_input_is_one_sentence_and_makes_nothing(place, setup, words, file, sentence):
    (place / "bad.csv").write_text("name\nx\n")
    (place / "twice.csv").write_text("item\nx\nx\n")
    before = names(place)
    port = free_port()
    words = [port if word == "FREE" else word for word in words]
    told, _ = setup(*words, file=file, code=3 if file and "places" not in file else 2)
    assert sentence in told["error"]
    assert names(place) == before


@pytest.mark.parametrize("option", ["--port", "--helper-port"])
def test_a_port_that_is_taken(place, setup, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told, _ = setup(option, taken.getsockname()[1], code=7)
    assert "cannot be used" in told["error"]
    assert names(place) == {"places.csv"}


def test_a_folder_that_is_something_else(place, setup):
    (place / "town").mkdir()
    (place / "town" / "letters").write_text("mine")
    assert "is not empty" in setup(code=2)[0]["error"]
    (place / "town" / "letters").unlink()
    setup()  # an empty one is as good as none
    assert names(place / "town") >= MADE
    (place / "file").write_text("")
    assert call(["serve", "setup", str(place / "file"), "--yes"]) == 2


def test_what_is_not_of_setup_is_not_emptied(place, setup):
    beside, letters = place / ".town.new", place / "letters"
    letters.mkdir()
    (letters / "mine").write_text("dear")
    (letters / "setup.lock").touch()
    beside.symlink_to(letters)
    assert "is in the way" in setup(code=2)[0]["error"]
    beside.unlink()
    beside.write_text("a file")
    assert "is in the way" in setup(code=2)[0]["error"]
    beside.unlink()
    beside.mkdir()
    (beside / "mine").write_text("dear")
    assert "is in the way" in setup(code=2)[0]["error"]
    assert names(beside) == {"mine"}
    if os.geteuid() == 0:  # only root can give it away
        (beside / "setup.lock").touch()
        os.chown(beside, 65534, 65534)
        assert "is in the way" in setup(code=2)[0]["error"]
        os.chown(beside, 0, 0)
    (beside / "setup.lock").touch()  # as one that was killed has left it
    (beside / "server").symlink_to(letters)
    setup()
    assert not beside.exists()
    assert names(letters) == {"mine", "setup.lock"}


def test_elsewhere_than_on_a_terminal_nothing_is_guessed(place):
    words = ["serve", "setup", place / "town", "--catalogue", place / "places.csv"]
    done = subprocess.run(
        [sys.executable, "-m", "sottovoce", *map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert names(place) == {"places.csv"}


def test_what_is_made_is_not_made_otherwise(place, setup):
    first, _ = setup("--least", 3, "--port", 0)
    again, _ = setup(file=None)
    assert again == first
    again, _ = setup("--least", 3, "--port", 0)
    assert again == first
    assert "made already, with --least 3" in setup("--least", 4, code=2)[0]["error"]
    (place / "town" / "setup.json").write_text('{"learn": 3}')
    assert "put the right file back" in setup(code=7)[0]["error"]


# --- killed ---------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import sottovoce.cli.making, sottovoce.cli.serve_setup as serve_setup
import sottovoce.stores.helper_folder as helpers, sottovoce.stores.server_folder as servers
place, name = {"making": sottovoce.cli.making, "serve_setup": serve_setup, "helpers": helpers,
               "servers": servers, "os": os}[sys.argv[1]], sys.argv[2]
def killed(*given, **more):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(place, name, killed)
from sottovoce.cli import main
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    "point",
    ["helpers.init_helper", "making.make_federation", "helpers.create_helper", "servers.invite",
     "serve_setup.keep_answers", "os.rename"],
)  # fmt: skip
def test_killed_while_it_is_made_it_is_made_the_next_time(place, setup, point):
    words = ["--least", "3", "--invite", "2", "--port", "0", "--helper-port", "0", "--no-start"]
    given = ["serve", "setup", place / "town", "--catalogue", place / "places.csv", *words, "--yes"]
    done = forked.ForkedProcess(KILLED, *point.split("."), *given)
    done.communicate(timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not (place / "town").exists(), "half of it is there"
    told, _ = setup(*words[:-1])
    assert len(told["invitations"]) == 2
    assert names(place) == {"places.csv", "town"}


def test_two_at_once_make_one(place):
    words = ["--least", "3", "--invite", "2", "--port", "0", "--helper-port", "0", "--no-start"]
    given = ["serve", "setup", place / "town", "--catalogue", place / "places.csv", *words, "--yes"]
    both = [forked.ForkedProcess(forked.COMMAND, *given) for _ in range(2)]
    said = [one.communicate(timeout=60)[1] for one in both]
    codes = [one.returncode for one in both]
    assert 0 in codes
    assert set(codes) <= {0, 2, 7}, said
    assert all("Traceback" not in text for text in said)
    assert names(place) == {"places.csv", "town"}
    assert len(names(place / "town" / "invitations")) == 2
    terms = open_folder(place / "town" / "server").plan.terms
    assert open_helper(place / "town" / "helper").introduction.terms == terms


# --- running --------------------------------------------------------------------------------------


class Running:
    def __init__(self, place, *more):
        self.town, self.log = place / "town", place / "said"
        with self.log.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sottovoce", "serve", "setup", str(self.town), *more],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    def pid(self, party):
        name = {"helper": "masker.json", "server": "server.json"}[party]
        try:
            return json.loads((self.town / party / name).read_text())["pid"]
        except (OSError, ValueError):
            return None

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def running(place, setup):
    setup("--least", 3, "--port", free_port(), "--helper-port", free_port())
    found = Running(place)
    try:
        found.wait(lambda: "To watch it" in found.log.read_text())
        yield found
    finally:
        if found.process.poll() is None:
            os.killpg(found.process.pid, signal.SIGKILL)
            found.process.wait()


@pytest.mark.slow
def test_without_tls_a_page_of_the_origin_named_may_ask(place, setup):
    told, _ = setup("--least", 2, "--plaintext")
    found = Running(place, "--plaintext", "--origin", "http://localhost:8000")
    try:
        found.wait(lambda: "To watch it" in found.log.read_text())
        asked = urllib.request.Request(
            f"http://127.0.0.1:{told['port']}/v1/terms", headers={"Origin": "http://localhost:8000"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            allowed = answer.headers["Access-Control-Allow-Origin"]
        assert allowed == "http://localhost:8000"
    finally:
        found.process.send_signal(signal.SIGINT)
        assert found.process.wait(30) == 0


def test_a_part_that_dies_is_started_again_and_all_end_together(running, setup):
    before = running.pid("server")
    assert (
        "is made or run by another process" in setup(file=None, start="--start", code=7)[0]["error"]
    )
    os.kill(before, signal.SIGKILL)
    running.wait(lambda: running.log.read_text().count("the server is ready") == 2)
    assert "the server has ended (exit code -9)" in running.log.read_text()
    parts = [running.pid("server"), running.pid("helper")]
    assert before not in parts
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 0
    assert not any(map(is_there, parts))
    assert running.pid("server") is None


@pytest.mark.slow
def test_killed_it_leaves_no_process_and_starts_again(running, place):
    parts = [running.pid("server"), running.pid("helper")]
    running.process.kill()
    running.process.wait()
    running.wait(lambda: not any(map(is_there, parts)))
    again = Running(place)
    try:
        again.wait(lambda: "To watch it" in again.log.read_text())
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(30) == 0
    finally:
        if again.process.poll() is None:
            os.killpg(again.process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_part_that_does_not_stay_ends_all(running):
    helper = running.pid("helper")
    (running.town / "server" / "federation.json").rename(running.town / "federation.json")
    os.kill(running.pid("server"), signal.SIGKILL)
    assert running.process.wait(60) == 7
    assert "the server does not stay" in running.log.read_text().splitlines()[-1]
    assert not is_there(helper)
