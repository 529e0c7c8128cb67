"""From `device init` to the first report, by the real commands against a real server: whoever only
follows what the commands print has been shown who reads what before the first byte leaves."""

import contextlib
import json
import re

import forked
import pytest
from forwarder import Forwarder
from server_world import ServerProcess, new_folder, terms

from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import invite
from sottovoce.stores.session import DeviceSession

COMMAND = re.compile(r"sottovoce ((?:device|serve) [^;,`\n]*[^;,.`\s])")
KNOWN_HEADERS = {b"host", b"accept-encoding", b"range"}


class Owner:
    """Types what she is told to, and remembers what she was shown."""

    def __init__(self, store, forwarder):
        self.store, self.forwarder = store, forwarder
        self.shown = ""

    def type(self, *words, code=0):
        """The commands that the answer names."""
        words = [str(word) for word in words]
        plain = ["--plaintext"] if words[:2] == ["serve", "device"] else []
        done = forked.run(*words, *plain, timeout=60)
        assert done.returncode == code, done.stderr
        said = done.stdout + done.stderr
        self.shown += said
        return [found[1].split() for found in COMMAND.finditer(said)]

    def follow(self, commands, *start, code=0):
        """The command that begins like this, which she was told to type."""
        (words,) = {tuple(each) for each in commands if tuple(each[: len(start)]) == start}
        return self.type(*words, code=code)

    @property
    def methods(self):
        """Of all requests at the socket so far."""
        return re.findall(rb"(?m)^([A-Z]+) (/\S*) HTTP/1\.1\r$", bytes(self.forwarder.requests))

    def check_only_public_questions(self):
        """Every byte belongs to a question for what is published: no body, nothing of hers."""
        sent = bytes(self.forwarder.requests)
        assert {method for method, _ in self.methods} <= {b"GET"}
        heads = [part for part in sent.split(b"\r\n\r\n") if part]
        assert all(re.match(rb"GET /v1/\S+ HTTP/1\.1\r\n", head) for head in heads)
        names = {line.split(b":")[0].lower() for line in sent.split(b"\r\n") if b": " in line}
        assert names <= KNOWN_HEADERS

    def settle(self, commands):
        """Until a report has left: nothing but what the agent says to do, and the agent."""
        for _ in range(20):
            self.type("serve", "device", self.store, "--once")
            if (b"POST", b"/v1/reports") in self.methods:
                return
        raise AssertionError("no report left")


@pytest.fixture
def town(tmp_path):
    """A server, and an owner with an invitation whose every byte to it is recorded."""
    folder = new_folder(tmp_path / "town", rounds=5, min_devices=1)
    with (
        ServerProcess(tmp_path / "town", plaintext=True) as server,
        Forwarder(server.port, record=True) as forwarder,
        contextlib.closing(folder.database()) as database,
    ):
        [card] = invite(folder, database, f"http://127.0.0.1:{forwarder.port}", [0])
        card.write(tmp_path / "card.json")
        (tmp_path / "history.csv").write_text("item\nv1\nv4\nv7\n")
        yield Owner(tmp_path / "phone", forwarder), tmp_path


WHAT_THE_SERVER_CAN_COMPUTE = (
    "Whoever runs the server: Sees rows by name.",
    "It can work out what you have, and what you like.",
    "It can do so even if you share none of your things.",
)


@pytest.mark.parametrize("hasty", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_whoever_follows_the_commands_is_shown_who_reads_what_before_a_byte_leaves(town, hasty):
    """`hasty` takes part before she has seen anything, as the finding had it."""
    owner, place = town
    told = owner.type("device", "init", owner.store, "--invitation", place / "card.json")
    owner.type("device", "import", owner.store, place / "history.csv")
    take_part = ("device", "consent", owner.store, "--take-part", "--share-positives", "0")
    if hasty:
        told = owner.type(*take_part)
    assert not any(words in owner.shown for words in WHAT_THE_SERVER_CAN_COMPUTE)
    # The first contact fetches the terms and stops; a second one does, too.
    for _ in range(2):
        after = owner.follow(told, "serve", "device", code=5 if hasty else 0)
        owner.check_only_public_questions()
    told = after or told
    told = owner.follow(told, "device", "agree")
    owner.check_only_public_questions()
    assert all(words in owner.shown for words in WHAT_THE_SERVER_CAN_COMPUTE)
    first = owner.shown.index("Who sees what:")
    assert first < owner.shown.index("What you would agree to:"), "it is not the first thing shown"
    assert first < owner.shown.index("--terms")
    shown = owner.shown
    owner.type("device", "agree", owner.store, "--json")
    exact = json.loads(owner.shown.removeprefix(shown))
    assert all(words in " ".join(exact["what_leaves"]) for words in WHAT_THE_SERVER_CAN_COMPUTE)
    assert exact["terms"]["algorithm"]["embedding_size"]
    owner.check_only_public_questions()
    with CohortStore.open(owner.store) as store:
        assert DeviceSession(store).pending == terms()
        assert store.secret("signing-key") is None
    agree = [words for words in told if "--terms" in words]
    if not hasty:
        owner.type(*take_part)
        owner.type("serve", "device", owner.store, "--once", code=5)
        owner.check_only_public_questions()
    owner.follow(agree, "device", "agree")
    owner.check_only_public_questions()
    owner.settle(told)
    posts = [path for method, path in owner.methods if method == b"POST"]
    assert posts[0] == b"/v1/enrol"
    assert b"/v1/reports" in posts


def test_while_an_agreement_is_pending_status_says_that_nothing_leaves(town):
    owner, place = town
    owner.type("device", "init", owner.store, "--invitation", place / "card.json")
    owner.type("device", "consent", owner.store, "--take-part", "--share-positives", "0.5")
    owner.shown = ""
    owner.type("device", "status", owner.store)
    assert "Nothing leaves yet" in owner.shown
    owner.type("serve", "device", owner.store, "--once", code=5)
    owner.shown = ""
    (agree,) = owner.type("device", "status", owner.store)
    assert "Nothing leaves yet: you have not agreed to the terms." in owner.shown
    owner.type(*agree)
    owner.shown = ""
    owner.type("device", "status", owner.store)
    assert "Nothing leaves" not in owner.shown
    assert "Whoever runs the server: Sees rows by name." in owner.shown
