"""A data owner's process: killed, stopped, started twice, crowded, and fed with nonsense. What it
has acknowledged is on its disk, once."""

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from owner_world import ITEMS, OwnerProcess, World, reference, stored
from proxy_world import Link, Log
from server_world import Answer
from talk import until

from sottovoce.engines.processes import descendants
from sottovoce.errors import KeyTrouble
from sottovoce.stores.keys import authority_pem, device_context
from sottovoce.wire.interactions import begin
from sottovoce.wire.owners import OfferMade, OwnerReceipt, encode_interactions, encode_session

# Python leaves a socket open whose peer is killed in the middle of the handshake.
half_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Restarting:
    """A service that is killed and started again."""

    def __init__(self, folder, **options):
        self.folder, self.options, self.kills = folder, options, 0
        self.process = OwnerProcess(folder, **options)

    def kill_and_restart(self):
        self.process.kill()
        self.kills += 1
        self.process = OwnerProcess(self.folder, **self.options)


class Phone:
    """A user who sends her events in order, a few at a time, until all are acknowledged; what was
    not answered she sends again, by the same numbers."""

    def __init__(self, person, here, events, rng):
        self.person, self.here, self.events, self.rng = person, here, events, rng
        self.acknowledged = self.repeated = 0
        self.link, self.answers = None, []

    def run_until(self, over):
        """Does more than was given to her, as long as it is not over."""
        self.run()
        while not over():
            self.events += events_of(self.rng, 100)
            self.run()

    def run(self):
        end = time.monotonic() + 120
        while self.acknowledged < len(self.events):
            assert time.monotonic() < end, "no answer"
            try:
                self.step()
            except (OSError, http.client.HTTPException):
                self.close()
                self.person.session = None
                time.sleep(0.05)
        self.close()

    def step(self):
        stop = min(len(self.events), self.acknowledged + int(self.rng.integers(1, 6)))
        if self.person.session is None:
            offered = self.ask("POST", "/v1/offers", self.person.given.encode())
            if offered.status == 503:
                time.sleep(0.001)
                return
            made, person = OfferMade.decode(offered.body), self.person
            public = person.world.folder.application.public
            person.sender, hello = begin(person.number, person.identity, 3, public, made.public)
            sealed = self.sealed(stop)
            got = self.ask("POST", "/v1/sessions", encode_session(made.offer, hello, sealed))
        else:
            sealed = self.sealed(stop)
            got = self.ask(
                "POST", "/v1/interactions", encode_interactions(self.person.session, sealed)
            )
        if got.status == 401:
            assert got.error == "session"
            self.person.session = None
        if got.status in (401, 503):
            time.sleep(0.001)
            return
        assert got.status == 200, got.body
        receipt = OwnerReceipt.decode(got.body, len(sealed))
        assert receipt.refused == ()
        assert receipt.sequence >= stop - 1
        self.person.session = receipt.session or self.person.session
        self.acknowledged, self.repeated = stop, self.repeated + receipt.repeated

    def sealed(self, stop):
        return [
            self.person.seal_one(n, self.events[n], time=n) for n in range(self.acknowledged, stop)
        ]

    def ask(self, method, path, body):
        port = self.here.process.port
        if self.link is None or self.link.port != port:
            self.close()
            context = device_context(authority_pem(self.here.folder.keys))
            self.link = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
        self.link.request(method, path, body=body)
        got = self.link.getresponse()
        told = {name.lower(): value for name, value in got.getheaders()}
        self.answers.append(Answer(got.status, told, got.read()))
        return self.answers[-1]

    def close(self):
        if self.link is not None:
            self.link.close()
        self.link = None


def events_of(rng, count):
    return [(int(rng.choice(ITEMS)), bool(rng.random() < 0.5)) for _ in range(count)]


def run_with_kills(path, *, users, kills, seed):
    rng = np.random.default_rng(seed)
    world = World(path)
    here = Restarting(world.folder)
    phones = [
        Phone(world.user(user), here, [], np.random.default_rng([seed, user]))
        for user in range(users)
    ]
    stop = threading.Event()

    def killer():
        while here.kills < kills and not stop.wait(rng.uniform(0.1, 0.8)):
            here.kill_and_restart()

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        with ThreadPoolExecutor(users) as pool:
            over = [pool.submit(phone.run_until, lambda: here.kills >= kills) for phone in phones]
            for done in over:
                done.result()
    finally:
        stop.set()
        thread.join()
        here.process.kill()
    assert here.kills >= kills
    histories = {phone.person.number: phone.events for phone in phones}
    assert stored(world.folder, histories) == reference(histories), "none lost, none doubled"


@half_open
def test_killed_under_load(tmp_path):
    run_with_kills(tmp_path, users=6, kills=3, seed=1)


# --- starting and stopping ------------------------------------------------------------------------


def test_stopped_and_started_again(tmp_path):
    world = World(tmp_path)
    eve = world.user()
    with OwnerProcess(world.folder) as process:
        with Link(world.folder, process.port) as link:
            eve.begin(link.ask, (41, False), (42, True))
        said = process.log.read_text()
        with OwnerProcess(world.folder, wait=False) as second:
            assert second.process.wait(30) == 7
            assert "in use by another process" in second.log.read_text()
            assert "Traceback" not in second.log.read_text()
        assert process.stop() == 0
        assert not world.folder.ready_file.exists()
    assert "serving users only" in said
    with OwnerProcess(world.folder) as process, Link(world.folder, process.port) as link:
        sealed = eve.seal((43, False))
        gone = link.ask("POST", "/v1/interactions", encode_interactions(eve.session, sealed))
        assert (gone.status, gone.error) == (401, "session")
        offer, hello = eve.offer(link.ask)
        again = [eve.seal_one(n, e, 1000 + n) for n, e in enumerate([(41, False), (42, True)])]
        got = link.ask("POST", "/v1/sessions", encode_session(offer, hello, again))
        assert OwnerReceipt.decode(got.body, 2).repeated == 2
        process.stop()
        log = process.log.read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    assert [line["event"] for line in lines][-1] == "stopped"


# --- as a Flower node -----------------------------------------------------------------------------


def test_a_node_that_is_not_let_in_knocks_again_and_ends_when_told(tmp_path, monkeypatch):
    supernode = pytest.importorskip("sottovoce.engines.flower.supernode")
    silo_node = pytest.importorskip("sottovoce.engines.flower.silo_node")
    let_in, died = threading.Event(), threading.Event()
    tries = []

    def serve_app(app, connection, keep_node, node, stop):
        assert (app, connection.address) == ("app of Bakery", "127.0.0.1:9")
        tries.append(node())
        keep_node(b"77")
        if len(tries) < 3:
            raise KeyTrouble("the SuperLink does not let this node in")
        let_in.set()
        stop.wait()

    monkeypatch.setattr(supernode, "serve_app", serve_app)
    monkeypatch.setattr(silo_node, "build_owner_app", lambda owner, log: f"app of {owner.name}")
    monkeypatch.setattr(silo_node, "_FIRST_PAUSE", 0.01)
    world, log = World(tmp_path), Log()
    with contextlib.closing(world.folder.owner()) as owner:
        node = silo_node.Participation(world.folder, world.admission, owner, log)
        node.start(died.set)
        assert let_in.wait(10)
        assert node.state == "running"
        node.stop()
        assert not died.is_set()
        assert tries == [None, b"77", b"77"]
        assert [what for what, _ in log.lines].count("not part of the orchestrator's rounds") == 2

        monkeypatch.setattr(silo_node, "build_owner_app", lambda owner, log: owner.mistake)
        monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
        silo_node.Participation(world.folder, world.admission, owner, log).start(died.set)
        assert died.wait(10), "the process must not go on without its node, and say nothing"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL"])
def test_users_are_served_while_the_orchestrator_is_away(tmp_path, ending):
    pytest.importorskip("flwr")
    world = World(tmp_path)
    eve = world.user()
    with OwnerProcess(world.folder, users_only=False) as process:
        with Link(world.folder, process.port) as link:
            assert eve.begin(link.ask, (41, False)).taken == 1
            until(lambda: descendants(process.process.pid))
            children = [pid for pid, _ in descendants(process.process.pid)]
            assert eve.send(link.ask, (42, True)).taken == 1
        if ending == "SIGTERM":
            process.process.terminate()
            assert process.process.wait(30) == 0
        else:
            os.kill(process.process.pid, signal.SIGKILL)
            process.process.wait()
        until(lambda: not any(alive(pid) for pid in children))
    assert stored(world.folder, [7])[7][0].positives == (42,)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as source:
            return source.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
