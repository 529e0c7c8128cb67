"""`sottovoce device join`: from an invitation to taking part, and nothing leaves before she says
so."""

import contextlib
import json
import re
import signal

import forked
import pytest
from forwarder import Forwarder
from server_world import ServerProcess, new_folder
from terminal import ask

from sottovoce.cli import call
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import invite
from sottovoce.stores.session import DeviceSession


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("server")
    folder = new_folder(place / "town", rounds=5, min_devices=1)
    with (
        ServerProcess(place / "town", plaintext=True) as process,
        contextlib.closing(folder.database()) as database,
    ):
        yield folder, process, database


@pytest.fixture
def town(server, tmp_path):
    """An invitation, and the line to the server, of which every byte is recorded."""
    folder, process, database = server
    with Forwarder(process.port, record=True) as line:
        [card] = invite(folder, database, f"http://127.0.0.1:{line.port}")
        card.write(tmp_path / "card.json")
        (tmp_path / "visits.csv").write_text("item\nv1\nv4\nv7\n")
        yield line, tmp_path


@pytest.fixture
def join(town, capsys):
    place = town[1]

    def run(*words, code=0, card=True):
        capsys.readouterr()
        invited = ["--invitation", place / "card.json"] if card else []
        given = [place / "phone", *invited, *words, "--plaintext", "--json"]
        assert call(["device", "join", *map(str, given)]) == code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


def requests(line):
    return re.findall(rb"(?m)^([A-Z]+) (/\S*) HTTP/1\.1\r$", bytes(line.requests))


def only_looked(line):
    return {method for method, _ in requests(line)} <= {b"GET"}


def stands(place):
    """Whether she has agreed, takes part, and how many things she has."""
    with CohortStore.open(place / "phone", readonly=True) as store:
        hosted = DeviceSession(store)
        agreed = hosted.terms is not None and hosted.pending is None
        return agreed, store.choice(int(store.users[0])).takes_part, store.count_history()


LOOKED = ["--take-part", "--share-positives", "0"]


def test_elsewhere_than_on_a_terminal_nothing_is_agreed_to_by_itself(town, join):
    line, place = town
    told = join("--history", place / "visits.csv")
    assert (told["agreed"], told["takes_part"], told["added"]) == (False, False, 3)
    assert stands(place) == (False, False, 3)
    assert only_looked(line)
    assert len(told["terms"]) == 32


def test_the_digest_of_what_she_saw_agrees_and_she_takes_part(town, join):
    line, place = town
    digest = join()["terms"]
    assert only_looked(line)
    told = join("--agree", digest, *LOOKED, "--history", place / "visits.csv", card=False)
    assert (told["agreed"], told["takes_part"]) == (True, True)
    assert stands(place) == (True, True, 3)
    assert (b"POST", b"/v1/enrol") in requests(line)
    again = join(card=False)
    assert (again["agreed"], again["added"]) == (True, 0)


def test_another_digest_agrees_to_nothing(town, join):
    line, place = town
    told = join("--agree", "0" * 32, *LOOKED, code=2)
    assert "nothing was agreed to" in told["error"]
    assert stands(place) == (False, False, 0)
    assert only_looked(line)


def test_taking_part_is_no_agreement(town, join):
    line, place = town
    told = join(*LOOKED, "--history", place / "visits.csv")
    assert (told["agreed"], told["takes_part"]) == (False, True)
    join(card=False)
    assert only_looked(line)
    assert stands(place) == (False, True, 3)


def test_a_file_that_is_wrong_is_told_before_anything_is_made(town, join):
    line, place = town
    (place / "bad.csv").write_text("place\nx\n")
    assert "no column 'item'" in join("--history", place / "bad.csv", code=3)["error"]
    assert "there is no file" in join("--history", place / "nowhere.csv", code=3)["error"]
    assert "--invitation" in join(card=False, code=2)["error"]
    assert "given twice" in join(place / "card.json", code=2)["error"]
    assert "no data owners" in join("--refuse", "Library", code=2)["error"]
    assert not (place / "phone").exists()
    assert requests(line) == []


def test_a_server_that_is_away_leaves_a_store_with_which_to_call_again(town, join):
    place = town[1]
    away = "--server", "http://127.0.0.1:1"
    told = join(*away, "--history", place / "visits.csv", code=7)
    assert "nothing has left; call this again later" in told["error"]
    assert stands(place) == (False, False, 0)
    assert join("--history", place / "visits.csv", card=False)["added"] == 3


YES = [
    ("Agree to these terms?", "y"),
    ("Take part?", "y"),
    ("1-4", "3"),
]


def on_a_terminal(place, typed, *words):
    return ask(place / "said", typed, "device", "join", place / "phone", *words, "--plaintext")


def test_on_a_terminal_she_is_shown_and_asked(town):
    line, place = town
    files = "--invitation", place / "card.json", "--history", place / "visits.csv"
    code, said = on_a_terminal(place, YES, *files, "--name", "Anna")
    assert code == 0, said
    shown = ["Who sees what:", "What you would agree to:", "Fingerprint of the terms", "Agree to"]
    assert [said.index(words) for words in shown] == sorted(said.index(words) for words in shown)
    assert "Anna: takes part. Of the things in the history, 50% may be used." in said
    assert stands(place) == (True, True, 3)
    assert (b"POST", b"/v1/enrol") in requests(line)


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [([("Agree to these terms?", "n")], False), ([YES[0], ("Take part?", "n")], True)],
)
def test_whoever_says_no_has_a_store_from_which_nothing_leaves(town, typed, agreed):
    line, place = town
    files = "--invitation", place / "card.json", "--history", place / "visits.csv"
    code, said = on_a_terminal(place, typed, *files)
    assert code == 0, said
    assert stands(place) == (agreed, False, 3)
    for _ in range(2):  # nor does the agent send anything
        command = ["serve", "device", str(place / "phone"), "--once", "--plaintext"]
        assert call(command) == 0
    assert only_looked(line)
    assert call(["device", "recommend", str(place / "phone"), "--json"]) == 0


KILLED = """
import os, signal, sys
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
def killed(*given, **more):
    os.kill(os.getpid(), signal.SIGKILL)
where = {"store": CohortStore, "session": DeviceSession}[sys.argv[1]]
setattr(where, sys.argv[2], killed)
from sottovoce.cli import main
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    "point", ["store.accept", "session.agree", "store.add_history", "store.set_choice"]
)
def test_killed_in_the_middle_it_goes_on_the_next_time(server, town, join, point):
    line, place = town
    digest = server[0].plan.terms.digest()
    words = ["device", "join", place / "phone", "--invitation", place / "card.json", "--plaintext"]
    words += ["--agree", digest, *LOOKED, "--history", place / "visits.csv"]
    done = forked.ForkedProcess(KILLED, *point.split("."), *words)
    said = done.communicate(timeout=60)
    assert done.returncode == -signal.SIGKILL, said
    assert only_looked(line)
    told = join("--agree", digest, *LOOKED, "--history", place / "visits.csv")
    assert (told["agreed"], told["takes_part"]) == (True, True)
    assert stands(place) == (True, True, 3)


def test_the_same_command_again_asks_nothing_and_takes_nobody_out(town):
    place = town[1]
    files = "--invitation", place / "card.json", "--history", place / "visits.csv"
    assert on_a_terminal(place, YES, *files)[0] == 0
    (place / "visits.csv").write_text("item\nv1\nv4\nv7\nv9\n")
    code, said = on_a_terminal(place, [], *files)
    assert code == 0, said
    assert "?" not in said
    assert "What you would agree to" not in said
    assert re.search(r"You agreed to these terms on \d+ \w+ \d{4}\.", said)
    assert "me: takes part. Of the things in the history, 50% may be used." in said
    assert f"To change your choice: sottovoce device consent {place / 'phone'}" in said
    assert "One thing was added to your history. 3 were there already." in said
    assert stands(place) == (True, True, 4)


def test_whoever_said_no_is_not_asked_again(town):
    line, place = town
    files = "--invitation", place / "card.json"
    assert on_a_terminal(place, [YES[0], ("Take part?", "n")], *files)[0] == 0
    code, said = on_a_terminal(place, [], *files)
    assert code == 0, said
    assert "me: takes no part, so nothing leaves." in said
    assert "?" not in said
    assert only_looked(line)


def test_while_her_agent_runs_it_says_so_and_not_that_nothing_has_left(server, town, join):
    place = town[1]
    join("--agree", server[0].plan.terms.digest(), *LOOKED, "--history", place / "visits.csv")
    with CohortStore.open(place / "phone", agent=True):
        told = join(code=7)["error"]
        assert f"another program works with the store {place / 'phone'} now" in told
        assert f"sottovoce device status {place / 'phone'}" in told
        assert "nothing has left" not in told
    away = join("--server", "http://127.0.0.1:1", code=7)["error"]
    assert "nothing has left" not in away
    assert "is as it was; call this again later" in away


def test_who_stays_is_not_told_to_start_the_agent(town):
    place = town[1]
    words = [*YES, ('"serving"', "\x03")]
    code, said = on_a_terminal(place, words, "--invitation", place / "card.json", "--stay")
    assert code == 0, said
    assert "To take part in what comes next" not in said
    away = "--server", "http://127.0.0.1:1"  # also while the server is away
    code, said = on_a_terminal(place, [('"serving"', "\x03")], "--stay", *away)
    assert code == 0, said
    assert "takes part." in said
    assert "?" not in said
