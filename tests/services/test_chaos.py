"""A chaos run: each party is killed again and again under load, on a disk that is full or fails in
between. What it has acknowledged is there afterwards, once.

    pytest -m slow tests/services/test_chaos.py -s            all of it, with figures
    pytest -m slow tests/services/test_chaos.py -k owner      one party
"""

import contextlib
import http.client
import itertools
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orchestrator_world
import owner_world
import pytest
import secure_sum_world
from chaos_world import Forked, Mishaps, Nursery
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hop_world import BEFORE, layered, parts, random_records, second_of
from proxy_world import PATIENT, App, Link, proxied, proxy_terms
from server_world import USERS, Client, Fleet, new_folder, simulated
from talk import until
from test_owner_process import Phone
from test_proxy_service import devices

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.contributions import STEPS
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import masked
from sottovoce.core.messages import MaskedReports, MaskSeeds
from sottovoce.core.one_bit import noise_root
from sottovoce.engines.trial import prepare_helper, start_helper
from sottovoce.parties.helper import Helper, noise_spans
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.secure_sum import summed
from sottovoce.parties.server import Server
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import streams_of
from sottovoce.stores import server as records
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.orchestrator_folder import invite
from sottovoce.stores.server_folder import create_folder
from sottovoce.wire.masked import seal_masked
from sottovoce.wire.shuffled import encode_part
from sottovoce.wire.signing import seal
from sottovoce.wire.terms import Terms

KILLS = 50
FEW = 3
often = pytest.param(KILLS, marks=pytest.mark.slow)
AWAY = OSError, http.client.HTTPException
# Python leaves a socket open whose peer is killed in the middle of the handshake.
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Senders:
    """Connections of many threads to a service that comes and goes."""

    def __init__(self, here, folder):
        self.here, self._folder = here, folder
        self._own, self._all = threading.local(), []

    def ask(self, method, path, body=None, headers=None, seconds=120):
        """The answer in the end, whatever happens meanwhile; whether one may have been lost. `body`
        may be made anew for each time."""
        lost, got, end = False, None, time.monotonic() + seconds
        while time.monotonic() < end:
            link = getattr(self._own, "link", None)
            if link is None or link.port != self.here.port:
                link = self._own.link = Link(self._folder, self.here.port)
                self._all.append(link)
            try:
                got = link.ask(method, path, body() if callable(body) else body, headers)
            except AWAY:
                link.close()
                lost = True
                time.sleep(0.02)
                continue
            if got.status != 503:
                self.here.figures.answers += 1
                return got, lost
            assert got.error in ("unavailable", "overload"), got.body
            self.here.figures.turned_away += 1
            time.sleep(0.02)
        raise AssertionError(f"no answer but {got}: {self.here.process.log.read_text()}")

    def close(self):
        for link in self._all:
            link.close()


def settled(figures, got, lost, good=204):
    """Count a report that was accepted, or was before its answer was lost."""
    if got.status == good:
        figures.acknowledged += 1
    else:
        # `Link` sends once more where a connection breaks, so that a lost answer may go unnoticed.
        assert got.error == "replay", got.body
        figures.again += 1


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_server(tmp_path):
    """Rounds of which everybody must be a part, or they do not close."""
    folder, fleet = new_folder(tmp_path, rounds=10_000, min_fraction=1.0), Fleet()
    with Nursery("server", tmp_path) as nursery:
        here = Mishaps(nursery, lambda: Forked(nursery, tmp_path), kills=KILLS, seed=1)
        senders = Senders(here, folder)
        with Client(folder, here.port) as client:
            fleet.enrol(folder, client)
            fleet.report(0, client.model(client.wait(state="open")["round"]))  # compiles
        with here, ThreadPoolExecutor(USERS) as pool:
            for round in itertools.count():
                view, attempt = _opened(here, folder, round)
                payloads = [fleet.report(n, view, attempt) for n in range(USERS)]
                posts = [("POST", "/v1/reports", payload) for payload in payloads]
                for got, lost in pool.map(lambda post: senders.ask(*post), posts):
                    settled(here.figures, got, lost)
                for got, _ in pool.map(lambda post: senders.ask(*post), posts[:2]):
                    assert got.error in ("replay", "late"), "it would count twice"
                if here.over.is_set():
                    break
            rounds = round + 1
            _opened(here, folder, rounds)
            with Client(folder, here.port) as client:
                assert np.array_equal(client.model(rounds).items, simulated(rounds))
                past = client.status()["rounds"]
            senders.close()
    assert {past["reported"] for past in past} == {USERS}
    assert here.figures.acknowledged + here.figures.again == rounds * USERS
    here.figures.say(f"server ({rounds} rounds)")


@pytest.mark.parametrize("kills", [FEW, often])
def test_server_that_adds_up(tmp_path, kills):
    """gram's, which forgets what it has added up: everybody is in each sum, once; the helper is
    killed now and then, too."""
    crowd = Crowd(tmp_path)
    helper = start_helper(tmp_path, crowd.folder, tmp_path)
    with Nursery("server", crowd.folder.path) as nursery:
        here = Mishaps(nursery, lambda: Forked(nursery, crowd.folder.path), kills=kills, seed=6)
        senders = Senders(here, crowd.folder)
        with here, ThreadPoolExecutor(8) as pool:
            for round in itertools.count():
                view, attempt = _opened(here, crowd.folder, round)
                payloads = [crowd.payload(n, view, attempt) for n in range(len(crowd.keys))]
                posts = [("POST", "/v1/reports", payload) for payload in payloads]
                for got, lost in pool.map(lambda post: senders.ask(*post), posts):
                    settled(here.figures, got, lost)
                for got, _ in pool.map(lambda post: senders.ask(*post), posts[:2]):
                    assert got.error in ("replay", "late"), "it would count twice"
                if round % 4 == 1:
                    helper.kill()
                    helper = start_helper(tmp_path, crowd.folder, tmp_path)
                if here.over.is_set():
                    break
            rounds = round + 1
            _opened(here, crowd.folder, rounds)
            with Client(crowd.folder, here.port) as client:
                assert np.array_equal(client.model(rounds).items, crowd.simulated(rounds))
                past = client.status()["rounds"]
            senders.close()
    helper.stop()
    assert {past["reported"] for past in past} == {len(crowd.keys)}
    assert here.figures.acknowledged + here.figures.again == rounds * len(crowd.keys)
    here.figures.say(f"server that adds up ({rounds} rounds)")


class Crowd:
    """Enough devices for the server to add up before a round ends."""

    def __init__(self, path, many=40, items=30):
        config, release = GramConfig(popularity_share=1.0, batches=500), OwnEpsilon(8.0)
        link = SecureSum(min_devices=many, bits=32)
        self.terms = Terms("crowd", items, config, release, prepare_helper(path, link, 1))
        self.items, self.keys = items, [Ed25519PrivateKey.generate() for _ in range(many)]
        self.folder = create_folder(
            path / "server",
            self.terms,
            [(f"i{n}", f"Item {n}") for n in range(items)],
            rounds=500,
            root_key=1,
            rules=RoundRules(min_devices=many, deadline_seconds=3600.0, poll_seconds=0.05),
        )
        tokens = [secrets.token_bytes(32) for _ in self.keys]
        database = self.folder.database()
        with database.writing() as at:
            records.invite(at, range(many), tokens)
            for token, key in zip(tokens, self.keys, strict=True):
                records.enrol(at, token, key.public_key().public_bytes_raw())
        database.close()

    def contribution(self, number, round):
        rng = np.random.default_rng([number, round])
        return rng.integers(0, STEPS // 8, self.items + 1)

    def payload(self, number, view, attempt):
        seed, who = secrets.token_bytes(32), np.array([number])
        hidden = masked(self.contribution(number, view.round), seed, self.terms.bits)
        reports = MaskedReports(view.round, who, hidden[None, :])
        seeds = MaskSeeds(view.round, who, (seed,))
        key, about = self.keys[number], {"number": number, "round": view.round, "attempt": attempt}
        body = seal_masked(self.terms, attempt, view, reports, seeds, key)
        return seal(key, "crowd", "report", **about, nonce=secrets.token_bytes(16), body=body)

    def simulated(self, rounds):
        """The model after rounds of which everybody was a part."""
        algorithm, rng = self.terms.build(), streams_of(1)
        server, many = Server.start(algorithm, self.items, rng), self.items + 1
        key, spans = (
            noise_root(rng.child("masker").root),
            noise_spans(algorithm, self.terms.release),
        )
        helper = Helper(self.terms.secure_sum, many, key, spans)
        for round in range(rounds):
            sums = sum(self.contribution(n, round) for n in range(len(self.keys)))
            sums = (sums + helper.noise(round, many)).reshape(-1, 1)
            server.fold(summed(round, sums, len(self.keys)))
        return server.items


def _opened(here, folder, round):
    """The model and the attempt of a round, when it is open."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        with contextlib.suppress(*AWAY), Client(folder, here.port) as client:
            now = client.round()
            if (now["round"], now["state"]) == (round, "open"):
                return client.model(round), now["attempt"]
        time.sleep(0.01)
    raise AssertionError(f"round {round} does not open")


# --- the shuffler ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_shuffler(tmp_path):
    """The batch of a round is exactly what was acknowledged in it."""
    users = 24
    with proxied(tmp_path, terms=proxy_terms(minimum=(users, 2))) as (server, folder):
        with App(folder, forwarder=False) as app:
            some = devices(app, server, users)
        options = {"hold_seconds": 0.0, "limits": PATIENT}
        with Nursery("proxy", tmp_path) as nursery:
            here = Mishaps(
                nursery, lambda: Forked(nursery, folder.path, **options), kills=KILLS, seed=2
            )
            senders = Senders(here, folder)
            with here, ThreadPoolExecutor(8) as pool:
                for round in itertools.count():
                    posts = [("POST", "/v1/submissions", d.submission(round)) for d in some]
                    for got, lost in pool.map(lambda post: _submit(senders, post), posts):
                        settled(here.figures, got, lost)
                    batch = until(lambda r=round: server.batch(r, 0), 180)
                    expected = [record for device in some for record in device.records(round)]
                    assert sorted(batch) == sorted(expected), "none lost, none doubled"
                    if here.over.is_set():
                        break
                    server.move(round + 1)
                senders.close()
        marks = {}
        for part in server.parts.values():
            marks.setdefault((part.round, part.tier), set()).add(part.mark)
    assert all(len(names) == 1 for names in marks.values()), "one batch by one name"
    here.figures.say(f"shuffler ({round + 1} rounds)")


def _submit(senders, post):
    """The proxy may not have heard of the round yet."""
    while True:
        got, lost = senders.ask(*post)
        if got.status == 204 or got.error != "early":
            return got, lost
        time.sleep(0.02)


@pytest.mark.parametrize("kills", [FEW, often])
def test_shuffler_behind_another_one(tmp_path, kills):
    """Of each batch that it has acknowledged every report goes on, once, without its layer."""
    devices_of, many = 30, 6
    with second_of(tmp_path, minimum=(devices_of, 2)) as (server, folder):
        with Nursery("proxy", tmp_path) as nursery:
            options = {"limits": PATIENT}
            here = Mishaps(
                nursery, lambda: Forked(nursery, folder.path, **options), kills=kills, seed=7
            )
            senders = Senders(here, folder)
            with here:
                for round in itertools.count():
                    inner = random_records(devices_of * 4)
                    sealed = layered(server, inner)
                    for part in parts(server, sealed, devices_of, many=many):
                        post = ("POST", "/v1/batches", encode_part(part), BEFORE)
                        settled(here.figures, *_submit(senders, post))
                    batch = until(lambda r=round: server.batch(r, 0), 180)
                    assert sorted(batch) == sorted(inner), "none lost, none doubled"
                    if here.over.is_set():
                        break
                    server.move(round + 1)
                senders.close()
        names = {(part.round, part.mark) for part in server.parts.values()}
    assert len(names) == round + 1, "one batch by one name"
    here.figures.say(f"shuffler behind another one ({round + 1} rounds)")


# --- the masker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", [FEW, often])
def test_masker(tmp_path, kills):
    """Rivals ask for different sets of the same devices: one is told in a round, always the same
    bytes, whatever happened since."""
    folder = secure_sum_world.masker_folder(tmp_path / "masker", **secure_sum_world.NOISY)
    terms = folder.introduction.terms
    keepers = [secure_sum_world.SeedKeeper() for _ in range(6)]
    bearer = {"authorization": f"Bearer {secure_sum_world.TOKEN}"}
    with Nursery("masker", tmp_path) as nursery:
        here = Mishaps(nursery, lambda: Forked(nursery, folder.path), kills=kills, seed=3)
        senders = Senders(here, folder)

        def ask(question):
            return senders.ask("POST", "/v1/sums", question, bearer)[0]

        with here, ThreadPoolExecutor(4) as pool:
            for round in itertools.count():
                sets = [[k for k in keepers if k is not without] for without in keepers[:3]]
                rivals = [secure_sum_world.question(terms, round, some) for some in sets]
                told = {}
                for _ in range(4):
                    for number, got in zip(range(3), pool.map(ask, rivals), strict=True):
                        if got.status == 200:
                            assert told.setdefault(number, got.body) == got.body
                            here.figures.acknowledged += 1
                        else:
                            assert got.error == "second_submission", got.body
                    assert len(told) == 1, "from two sums one device's would follow"
                if here.over.is_set():
                    break
            senders.close()
        with secure_sum_world.MaskerApp(folder) as app:
            ((number, body),) = told.items()
            assert app.sums(rivals[number]).body == body
            assert app.sums(rivals[(number + 1) % 3]).error == "second_submission"
    here.figures.say(f"masker ({round + 1} rounds)")


# --- a data owner ---------------------------------------------------------------------------------


class Walker(Phone):
    """As `Phone`, on a service that may not be there."""

    def ask(self, method, path, body):
        got = super().ask(method, path, body)
        self.answers.clear()
        self.here.figures.turned_away += got.status == 503
        self.here.figures.answers += got.status == 200
        return got


class Here:
    """What a phone knows of the service."""

    def __init__(self, mishaps, folder):
        self._mishaps, self.folder, self.figures = mishaps, folder, mishaps.figures

    @property
    def process(self):
        return self._mishaps


@pytest.mark.slow
@pytest.mark.parametrize("release", ["printed", "aggregated"])
def test_owner(tmp_path, release):
    settings = owner_world.DRIFTConfig(release=release)
    world = owner_world.World(tmp_path, settings=settings)
    options = {"limits": owner_world.PATIENT}
    kills = KILLS if release == "printed" else KILLS // 5
    with Nursery("owner", tmp_path) as nursery:
        here = Mishaps(
            nursery, lambda: Forked(nursery, world.folder.path, **options), kills=kills, seed=4
        )
        phones = [
            Walker(world.user(n), Here(here, world.folder), [], np.random.default_rng([4, n]))
            for n in range(8)
        ]
        with here, ThreadPoolExecutor(len(phones)) as pool:
            for done in [pool.submit(phone.run_until, here.over.is_set) for phone in phones]:
                done.result()
    histories = {phone.person.number: phone.events for phone in phones}
    kept = owner_world.stored(world.folder, histories)
    assert kept == owner_world.reference(histories, settings=settings), "none lost, none doubled"
    here.figures.acknowledged = sum(map(len, histories.values()))
    here.figures.again = sum(phone.repeated for phone in phones)
    here.figures.say(f"owner, {release}")


# --- the orchestrator -----------------------------------------------------------------------------


@pytest.mark.parametrize("kills", [FEW, often])
def test_orchestrator(tmp_path, kills):
    """Invitations are good for one person each, who is there until she leaves, and then is not."""
    folder = orchestrator_world.new_folder(tmp_path)
    with Nursery("orchestrator", tmp_path) as nursery:
        here = Mishaps(nursery, lambda: Forked(nursery, folder.path), kills=kills, seed=5)
        senders = Senders(here, folder)

        def ask(*request):
            got, lost = senders.ask(*request)
            here.figures.again += lost
            return got

        def live(number):
            """Enrols, also twice, and every third one leaves."""
            user = orchestrator_world.User(invitations[number])
            assert user.enrol(ask).status == 200
            first = user.given.user
            assert user.enrol(ask).status == 200
            assert user.given.user == first
            thief = orchestrator_world.User(invitations[number])
            assert thief.enrol(ask).error == "bad_token", "an invitation is good once"
            here.figures.acknowledged += 1
            if number % 3:
                return first, user, False
            # Questions from before a start are not heard, and none is heard twice.
            while (got := ask("POST", "/v1/leave", lambda: user.asks("leave"))).status != 204:
                assert got.error == "replay", got.body
            here.figures.acknowledged += 1
            return first, user, True

        lives = []
        with here, ThreadPoolExecutor(6) as pool:
            while not here.over.is_set():
                with contextlib.closing(OrchestratorStore.open(folder.path)) as store:
                    invitations = invite(folder, store, 24, "https://127.0.0.1:1")
                lives += pool.map(live, range(24))
            senders.close()
    with contextlib.closing(OrchestratorStore.open(folder.path)) as store:
        numbers = [number for number, _, _ in lives]
        assert len(set(numbers)) == len(numbers), "a number is given once"
        assert sorted(numbers) == list(range(len(numbers))), "and none is lost"
        assert set(store.departed()) == {number for number, _, left in lives if left}
        for number, user, left in lives:
            assert store.public(number) == (None if left else user.identity.public)
        assert store.n_users == sum(not left for *_, left in lives)
    here.figures.say("orchestrator")
