"""Devices in a store: the same numbers as in simulation, and nothing lost or sent by a crash."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger, totals_of
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import FactorScorer, recommend
from sottovoce.engines.simulation import SimulatedDevices, Simulation
from sottovoce.errors import (
    ConsentError,
    DataNotFound,
    MessageError,
    StoreError,
    UsageError,
)
from sottovoce.parties.device import Devices
from sottovoce.parties.leaving import Booked, body_of
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Nothing
from sottovoce.stores.session import DeviceSession, Prepared
from sottovoce.testing import random_world
from sottovoce.wire import reports as report_wire
from sottovoce.wire.terms import Terms

N_ITEMS, WIDTH = 40, 5
TERMS = Terms.of("town", N_ITEMS, FPLConfig(embedding_size=WIDTH - 1), 6, ShareFraction())
ITEMS = [(str(i), f"Venue number {i}") for i in range(N_ITEMS)]
RNG = Streams.from_seed(3)
SHARING = Choice(share_positives=0.5)
COLUMNS = Ledger().pending().schema.names
AT_HOME = Choice(takes_part=False)


def host(path, train, numbers, consent, terms=TERMS):
    """A store with these users of a world, ready for rounds."""
    store = CohortStore.create(path, [(int(n), f"user {n}") for n in numbers], root_key=RNG.key)
    store.set_catalogue(ITEMS)
    store.add_histories(train.take_users(numbers))
    store.set_choices(consent.take(numbers))
    hosted = DeviceSession(store)
    hosted.agree(terms)
    return hosted


def simulate(train, consent, terms=TERMS, rounds=5, cohort_size=None):
    """The same federation in simulation."""
    users = np.arange(train.n_users, dtype=np.int64)
    algorithm = terms.build()
    cohort = Cohort(users, train, consent, algorithm.device_init(users, RNG))
    devices = SimulatedDevices.behind_door(algorithm, cohort, terms.release, Ledger(), RNG)
    server = Server.start(algorithm, train.n_items, RNG)
    Simulation(server, devices, cohort_size or len(devices.willing()), rounds).run()
    return server, devices


def models(train, consent, rounds, terms=TERMS):
    """The models that the rounds of a simulation start from."""
    return [
        ModelView(round, simulate(train, consent, terms, round)[0].items) for round in range(rounds)
    ]


def world(seed=0, n_users=17):
    train = random_world(n_users, N_ITEMS, 6 * n_users, seed)
    which = np.random.default_rng(seed).integers(0, 4, n_users)
    choices = [SHARING, Choice(share_positives=1.0), Choice(), AT_HOME]
    return train, Consent.of(np.arange(n_users), choices, which)


def rows_of(table):
    """A ledger as comparable rows."""
    names = ("round", "user", *COLUMNS[2:])
    return sorted(tuple(line[name] for name in names) for line in table.to_pylist())


@pytest.fixture
def phone(tmp_path):
    """One device that takes part, in its store."""
    train = random_world(3, N_ITEMS, 30, seed=1)
    everyone = Consent.uniform(np.arange(3), SHARING)
    hosted = host(tmp_path / "phone", train, np.array([2]), everyone)
    yield hosted
    hosted.store.close()


def view(round=0, seed=0):
    rng = np.random.default_rng([round, seed])
    return ModelView(round, rng.normal(scale=0.3, size=(N_ITEMS, WIDTH)).astype(np.float32))


def send(hosted, round=0, attempt=0, seed=0):
    prepared = hosted.prepare(view(round, seed), attempt, summed=True)
    hosted.leaving(prepared)
    return prepared


# --- what a transport gets ------------------------------------------------------------------------


def test_what_leaves_is_what_the_store_has_whatever_a_caller_shows(phone):
    prepared = phone.prepare(view(), 0, summed=False)
    forged = Prepared(0, 0, b"the whole history", prepared.nonce, 1, "prepared")
    left = phone.leaving(forged)
    assert body_of(left) == prepared.message
    assert left.booked == Booked((2,), "report", len(prepared.message), math.inf)
    again = phone.leaving(prepared)
    assert body_of(again) == body_of(left)
    assert phone.store.ledger().num_rows == 1, "the same bytes are booked once"


def test_a_contact_is_booked_and_is_no_release(phone):
    left = phone.contact("enrolment", "proxy", b"keys")
    assert (body_of(left), left.booked) == (b"keys", Booked((2,), "enrolment", 4, 0.0))
    phone.contact("check-in", "server", b"")
    store = phone.store
    rows = [(c.number, c.party, c.what, c.bytes, c.epsilon) for c in store.contacts(2)]
    assert rows == [(2, "proxy", "enrolment", 4, 0.0), (2, "server", "check-in", 0, 0.0)]
    assert store.contacts(1) == []
    assert (store.ledger().num_rows, store.budget(), store.spent().tolist()) == (0, [], [0.0])
    with pytest.raises(ConsentError, match="more in it than it should"):
        phone.contact("enrolment", "server", bytes(100_000))
    store.set_choice(2, AT_HOME)
    with pytest.raises(ConsentError, match="takes no part"):
        phone.contact("check-in", "server", b"")
    store.set_choice(2, SHARING)
    with pytest.raises(ConsentError, match="changed the terms"):
        phone.meet(Terms.of("town", N_ITEMS, TERMS.algorithm, 7, ShareFraction()))
    with pytest.raises(ConsentError):
        phone.contact("check-in", "server", b"")
    assert len(store.contacts()) == 2


def test_a_gateway_books_whom_it_names_for_the_first_time(tmp_path):
    train = random_world(4, N_ITEMS, 60, seed=1)
    hosted = host(tmp_path / "s", train, np.arange(4), Consent.uniform(np.arange(4), SHARING))
    store = hosted.store

    def named():
        told = np.frombuffer(body_of(hosted.willing()), "<u4").tolist()
        return told, [c.number for c in store.contacts()]

    with store:
        store.set_choice(1, AT_HOME)
        assert named() == ([0, 2, 3], [0, 2, 3])
        assert named() == ([0, 2, 3], [0, 2, 3])
        store.set_choice(2, AT_HOME)
        store.set_choice(1, SHARING)
        assert named() == ([0, 1, 3], [0, 2, 3, 1])
        store.set_choice(2, SHARING)
        assert named() == ([0, 1, 2, 3], [0, 2, 3, 1, 2])
        assert {(c.party, c.what, c.bytes) for c in store.contacts()} == {("server", "check-in", 4)}


# --- the same numbers as in simulation ------------------------------------------------------------


@pytest.mark.parametrize("per", ["item", "draw"])
@pytest.mark.parametrize("how", ["three gateways", "a store per user"])
def test_stores_give_what_simulation_gives(tmp_path, per, how):
    summed = how == "three gateways"
    train, consent = world(n_users=17 if summed else 8)
    terms = Terms.of("town", N_ITEMS, TERMS.algorithm, 6, ShareFraction(per))
    reference, devices = simulate(train, consent, terms)
    cuts = [1, 6] if summed else np.arange(1, train.n_users)
    parts = np.split(np.arange(train.n_users), cuts)
    hosts = [host(tmp_path / str(k), train, p, consent, terms) for k, p in enumerate(parts)]
    server = Server.start(terms.build(), N_ITEMS, RNG)
    for round in range(5):
        published, shape = server.publish(), {"n_items": N_ITEMS, "width": WIDTH, "round": round}
        sums, reports = [], []
        for hosted, part in zip(hosts, parts, strict=True):
            prepared = hosted.prepare(published, 0, summed=summed)
            willing = consent.takes_part[part].sum()
            nothing = isinstance(prepared, Nothing)
            assert (0 if nothing else prepared.devices) == willing
            if nothing:
                continue
            hosted.leaving(prepared)
            if summed:
                sums.append(report_wire.decode_sum(prepared.message, **shape))
            else:
                reports.append(
                    report_wire.decode_report(prepared.message, sender=int(part[0]), **shape)
                )
            hosted.arrived(round, 0)
        server.fold(server.add_sums(sums) if summed else server.sum_reports(reports))
    assert np.array_equal(server.items, reference.items)
    vectors = np.concatenate([hosted.vectors() for hosted in hosts])
    assert np.array_equal(vectors, devices.cohort.vectors)
    ledger = [row for hosted in hosts for row in rows_of(hosted.store.ledger())]
    assert sorted(ledger) == rows_of(devices.ledger.pending())
    spent = [s for hosted in hosts for s in hosted.store.budget()]
    assert sum(s.bytes for s in spent) == devices.ledger.totals.bytes
    assert sum(s.releases for s in spent) == devices.ledger.totals.releases
    # Recommendations, also of those who take no part.
    at_home = devices.vectors_at_home(reference.publish())
    items = reference.items
    scorer = FactorScorer(at_home, items[:, :-1].copy(), items[:, -1].copy())
    for hosted in hosts:
        hosted.keep_model(server.publish())
        for user in hosted.store.users.tolist():
            found, scores = recommend(scorer, user, train, 7)
            expected = [
                (*ITEMS[i], s) for i, s in zip(found.tolist(), scores.tolist(), strict=True)
            ]
            assert hosted.recommend(user, 7) == expected
        hosted.store.close()


def test_only_the_asked_devices_learn(tmp_path):
    train, consent = world(seed=2)
    reference, devices = simulate(train, consent, rounds=4, cohort_size=5)
    everyone = np.arange(train.n_users)
    hosted = host(tmp_path / "gate", train, everyone, consent)
    server = Server.start(TERMS.build(), N_ITEMS, RNG)
    pool = devices.willing()
    for round in range(4):
        asked = pool[server.select(len(pool), 5)]
        prepared = hosted.prepare(server.publish(), 0, asked, summed=True)
        hosted.leaving(prepared)
        part = report_wire.decode_sum(prepared.message, n_items=N_ITEMS, width=WIDTH, round=round)
        hosted.arrived(round, 0)
        server.fold(server.add_sums([part]))
    assert np.array_equal(server.items, reference.items)
    assert np.array_equal(hosted.vectors(), devices.cohort.vectors)
    at_home = np.flatnonzero(~consent.takes_part)
    assert isinstance(hosted.prepare(server.publish(), 0, at_home, summed=True), Nothing)
    with pytest.raises(MessageError, match="not in this store"):
        hosted.prepare(server.publish(), 0, np.array([999]), summed=True)
    hosted.store.close()


def test_users_with_nothing_to_learn_from_send_nothing(tmp_path):
    with CohortStore.create(tmp_path / "s", [(0, "me")]) as store:
        store.set_catalogue(ITEMS)
        store.set_choice(0, SHARING)
        hosted = DeviceSession(store)
        hosted.agree(TERMS)
        assert isinstance(hosted.prepare(view(), 0, summed=False), Nothing)
        store.add_history(0, [item for item, _ in ITEMS])
        assert isinstance(hosted.prepare(view(), 0, summed=False), Nothing)


# --- attempts and fates ---------------------------------------------------------------------------


def test_a_round_that_was_given_up_does_not_count(phone):
    """Also for a device that the next attempt does not ask."""
    initial = phone.vectors()
    send(phone, 0)
    phone.arrived(0, 0)
    phone.follow(0, 0)
    assert not np.array_equal(phone.vectors(), initial)
    phone.follow(0, 1)
    assert np.array_equal(phone.vectors(), initial)
    waiting = phone.prepare(view(1), 0, summed=True)
    phone.follow(2, 0)
    with pytest.raises(ConsentError, match="dropped"):
        phone.leaving(waiting)


def test_what_was_never_sent_cannot_have_arrived(phone):
    for call in (phone.arrived, lambda r, a: phone.refused(r, a, "late")):
        with pytest.raises(StoreError, match="has left"):
            call(0, 0)
    prepared = phone.prepare(view(), 0, summed=True)
    with pytest.raises(StoreError, match="has left"):
        phone.arrived(0, 0)
    assert phone.store.ledger().num_rows == 0
    assert phone.unresolved() is None
    phone.prepare(view(1), 0, summed=True)
    with pytest.raises(ConsentError, match="over"):
        phone.leaving(prepared)
    assert phone.store.ledger().num_rows == 0


def test_another_model_for_the_same_attempt_is_refused_once_it_left(phone):
    """A server could otherwise learn more from a device than one report per round."""
    first = phone.prepare(view(seed=0), 0, summed=True)
    second = phone.prepare(view(seed=1), 0, summed=True)
    assert second.message != first.message
    with pytest.raises(ConsentError, match="dropped"):
        phone.leaving(first)
    phone.leaving(second)
    with pytest.raises(MessageError, match="only a new attempt"):
        phone.prepare(view(seed=0), 0, summed=True)
    phone.prepare(view(seed=0), 1, summed=True)


def test_bad_requests_are_refused(phone):
    with pytest.raises(MessageError, match="shape"):
        phone.prepare(ModelView(0, np.zeros((3, WIDTH), np.float32)), 0, summed=True)
    for round, attempt in ((2**32, 0), (-1, 0), (0, 2**32), (0, -1)):
        with pytest.raises(MessageError, match="counters"):
            phone.prepare(ModelView(round, view().items), attempt, summed=True)
    with pytest.raises(MessageError, match="shape"):
        phone.keep_model(ModelView(0, np.zeros((3, WIDTH), np.float32)))


def test_one_message_carries_one_device(tmp_path):
    train, _ = world()
    everyone = Consent.uniform(np.arange(17), SHARING)
    hosted = host(tmp_path / "s", train, np.array([1, 2]), everyone)
    with pytest.raises(UsageError, match="2 devices"):
        hosted.prepare(view(), 0, summed=False)
    assert hosted.prepare(view(), 0, np.array([2]), summed=False).devices == 1
    hosted.store.close()


# --- consent --------------------------------------------------------------------------------------

CHANGE = """
import sys
from pathlib import Path
from sottovoce.core.consent import Choice
from sottovoce.stores.device import CohortStore
with CohortStore.open(Path(sys.argv[1])) as store:
    store.set_choice(2, Choice(takes_part=sys.argv[2] == "part", share_positives=0.1))
"""


def change(phone, how):
    """The owner changes her mind, in a process of her own."""
    path = str(phone.store.path)
    done = subprocess.run([sys.executable, "-c", CHANGE, path, how], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_withdraws_before_it_leaves_sends_nothing(phone):
    prepared = phone.prepare(view(), 0, summed=False)
    change(phone, "no part")
    with pytest.raises(ConsentError, match="does not leave"):
        phone.leaving(prepared)
    with pytest.raises(ConsentError, match="dropped"):
        phone.leaving(prepared)
    assert isinstance(phone.prepare(view(), 0, summed=False), Nothing)
    assert (phone.store.ledger().num_rows, phone.store.budget()) == (0, [])
    assert phone.latest().message == b""


def test_who_shares_less_sends_less(phone):
    first = phone.prepare(view(), 0, summed=False)
    change(phone, "part")
    with pytest.raises(ConsentError, match="choice was changed"):
        phone.leaving(first)
    second = phone.prepare(view(), 0, summed=False)
    phone.leaving(second)
    assert len(second.message) < len(first.message)
    most = 0.1 * phone.store.history().n_interactions
    assert phone.store.ledger()["positive_rows"].to_pylist()[0] <= most
    assert phone.store.budget()[0].releases == 1


def test_a_change_of_mind_while_the_device_learns_is_in_force(phone, monkeypatch):
    report, changed = Devices.report, []

    def slow(devices, *arguments):
        if not changed:
            changed.append(True)
            change(phone, "no part")
        return report(devices, *arguments)

    monkeypatch.setattr(Devices, "report", slow)
    assert isinstance(phone.prepare(view(), 0, summed=False), Nothing)
    assert phone.latest() is None


def test_no_consent_no_message(tmp_path):
    train, _ = world()
    with CohortStore.create(tmp_path / "s", [(0, "me")]) as store:
        hosted = DeviceSession(store)
        with pytest.raises(ConsentError, match="terms"):
            hosted.prepare(view(), 0, summed=True)
        hosted.agree(TERMS)
        store.set_catalogue(ITEMS)
        store.add_history(0, [str(i) for i in train.row(0)])
        assert isinstance(hosted.prepare(view(), 0, summed=True), Nothing)  # she has not chosen yet
        store.set_choice(0, Choice(epsilon=1.0, max_reports=3))
        with pytest.raises(ConsentError, match="adds no noise"):
            hosted.prepare(view(), 0, summed=True)
        assert hosted.latest() is None


# --- terms and recommendations --------------------------------------------------------------------


def test_other_terms_stop_everything_until_they_are_agreed_to(phone):
    send(phone)
    phone.arrived(0, 0)
    learnt = phone.vectors()
    phone.meet(TERMS)
    other = Terms.of("town", N_ITEMS, TERMS.algorithm, 9, ShareFraction("draw"))
    for _ in range(2):
        with pytest.raises(ConsentError, match=r"changed the terms.*device agree"):
            phone.meet(other)
    assert (phone.terms, phone.offered, phone.pending) == (TERMS, other, other)
    with pytest.raises(ConsentError, match="nobody has agreed"):
        phone.prepare(view(1), 0, summed=True)
    phone.meet(TERMS)  # the server has thought better of it
    assert phone.pending is None
    with pytest.raises(ConsentError):
        phone.meet(other)
    phone.agree(other)
    assert (phone.terms, phone.offered, phone.pending) == (other, None, None)
    phone.meet(other)
    assert np.array_equal(phone.vectors(), learnt)  # they still fit
    send(phone, 1)
    assert phone.store.ledger()["kind"].to_pylist() == ["share-item", "share-draw"]


@pytest.mark.parametrize("triples", [6, N_ITEMS])
def test_all_terms_want_the_owners_own_word(tmp_path, triples):
    """The usual ones as well as those under which one round tells much."""
    first = Terms.of("town", N_ITEMS, TERMS.algorithm, triples, ShareFraction())
    why = "nobody has agreed" if triples == 6 else "single report may tell the history"
    with CohortStore.create(tmp_path / "s", [(0, "me")]) as store:
        hosted = DeviceSession(store)
        with pytest.raises(ConsentError, match="not seen"):
            hosted.require_agreed()
        store.set_choice(0, SHARING)  # before she could know the terms
        hosted.meet(first)
        for _ in range(2):
            assert hosted.pending == first
            with pytest.raises(ConsentError, match=why):
                hosted.require_agreed()
            with pytest.raises(ConsentError, match=why):
                hosted.prepare(view(), 0, summed=False)
            hosted.meet(first)
        hosted.agree(first)
        assert hosted.require_agreed() == first
        other = Terms.of("town", N_ITEMS, TERMS.algorithm, N_ITEMS + 1, ShareFraction())
        with pytest.raises(ConsentError, match="changed the terms"):
            hosted.meet(other)
        hosted.agree(first)  # a slow answer to what was asked before
        assert hosted.pending == other
        hosted.agree(other)
        assert hosted.require_agreed() == other


def test_what_is_ready_does_not_leave_once_other_terms_are_shown(phone):
    ready = phone.prepare(view(), 0, summed=True)
    other = Terms.of("town", N_ITEMS, TERMS.algorithm, 9, ShareFraction("draw"))
    with pytest.raises(ConsentError, match="changed the terms"):
        phone.meet(other)
    with pytest.raises(ConsentError, match="nobody has agreed"):
        phone.leaving(ready)
    assert phone.store.ledger().num_rows == 0
    phone.meet(TERMS)
    phone.leaving(ready)


def test_terms_that_were_seen_elsewhere_are_agreed_to_when_they_come(tmp_path):
    other = Terms.of("town", N_ITEMS, TERMS.algorithm, 9, ShareFraction("draw"))
    with CohortStore.create(tmp_path / "s", [(0, "me")]) as store:
        hosted = DeviceSession(store, foreseen=TERMS.digest())
        hosted.meet(TERMS)
        assert hosted.require_agreed() == TERMS
        with pytest.raises(ConsentError, match="changed the terms"):
            hosted.meet(other)  # which nobody has foreseen
        assert hosted.pending == other
        DeviceSession(store, foreseen=other.digest()).meet(other)
        assert DeviceSession(store).require_agreed() == other
    with CohortStore.create(tmp_path / "t", [(0, "me")]) as store:
        DeviceSession(store).meet(TERMS)
        DeviceSession(store, foreseen=TERMS.digest()).meet(TERMS)
        assert DeviceSession(store).pending is None


def test_another_federation_starts_anew_and_the_ledger_goes_on(phone):
    send(phone)
    phone.arrived(0, 0)
    phone.keep_model(view(1))
    initial = TERMS.build().device_init(np.array([2]), RNG)
    phone.agree(Terms.of("city", N_ITEMS, TERMS.algorithm, 6, ShareFraction()))
    assert np.array_equal(phone.vectors(), initial)
    assert phone.model() is None
    send(phone, 0)
    assert phone.store.ledger()["round"].to_pylist() == [0, 0]
    assert phone.store.budget()[0].releases == 2


def test_recommendations_need_a_model_and_a_user(phone):
    with pytest.raises(DataNotFound, match="no model yet"):
        phone.recommend(2, 5)
    phone.keep_model(view(7))
    kept = phone.model()
    assert kept.round == 7
    assert np.array_equal(kept.items, view(7).items)
    assert len(phone.recommend(2, 5)) == 5
    assert len(phone.recommend(2, 1000)) == N_ITEMS - phone.store.history().n_interactions
    with CohortStore.open(phone.store.path, readonly=True) as reader:
        assert DeviceSession(reader).recommend(2, 5) == phone.recommend(2, 5)


def test_a_catalogue_that_does_not_fit_is_told(phone):
    phone.store.set_catalogue(ITEMS[:-1])
    with pytest.raises(MessageError, match="39 items, the federation 40"):
        phone.prepare(view(), 0, summed=True)


# --- crashes --------------------------------------------------------------------------------------

CRASH = """
import json, os, shutil, signal, sys
from pathlib import Path
import numpy as np
from sottovoce.errors import SottovoceError
from sottovoce.core.messages import ModelView
from sottovoce.stores import file as store_file
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.device import CohortStore

base, work = Path(sys.argv[1]), Path(sys.argv[2])
models, rounds, step = np.load(sys.argv[3])["models"], int(sys.argv[4]), int(sys.argv[5])
connect = store_file._connect

def live(dying):
    '''Go on with the rounds from wherever the store is; die before the n-th statement.'''
    left, said = [dying], []

    def count(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def watched(*arguments):
        connection = connect(*arguments)
        connection.exec_trace = count
        return connection

    store_file._connect = watched
    with CohortStore.open(work, agent=True) as store:
        hosted = DeviceSession(store)
        latest = hosted.unresolved()
        if latest is not None:
            hosted.leaving(latest)
            hosted.arrived(latest.round, latest.attempt)
        latest = hosted.latest()
        first = 0 if latest is None else latest.round + (latest.state == "arrived")
        for round in range(first, rounds):
            prepared = hosted.prepare(ModelView(round, models[round]), 0, summed=True)
            hosted.leaving(prepared)
            hosted.arrived(round, 0)
        sums = store.file.rows("SELECT round, digest FROM rounds ORDER BY round")
        return {
            "statements": -left[0],
            "digests": sums,
            "vectors": hosted.vectors().tobytes().hex(),
            "ledger": [[*map(str, line.values())] for line in store.ledger().to_pylist()],
            "states": sorted(set(store.ledger_rows()["state"].to_pylist())),
            "releases": [spent.releases for spent in store.budget()],
            "history": store.history().fingerprint(),
            "consent": store.choices().takes_part.tolist(),
            "whole": store.file.row("PRAGMA integrity_check"),
        }

def fresh():
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)

fresh()
life = live(0)  # undisturbed; it also loads the kernels that all the others inherit
print(json.dumps(life), flush=True)
for dying in range(1, life["statements"] + 1, step):
    fresh()
    for moment in (dying, 0):
        child = os.fork()
        if child == 0:
            life = live(moment)
            print(json.dumps(life), flush=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.waitstatus_to_exitcode(status) != (-signal.SIGKILL if moment else 0):
            sys.exit(f"statement {dying}: ended with {status}")
"""


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_no_crash_loses_or_repeats_anything(tmp_path, step):
    """A gateway that is killed before one statement of its life, any one, and goes on."""
    train, consent = world(seed=4, n_users=6)
    rounds = 3
    published = models(train, consent, rounds)
    _, devices = simulate(train, consent, rounds=rounds)
    hosted = host(tmp_path / "s", train, np.arange(train.n_users), consent)
    hosted.store.close()
    np.savez(tmp_path / "models.npz", models=np.stack([m.items for m in published]))
    arguments = [tmp_path / "s", tmp_path / "work", tmp_path / "models.npz", rounds, step]
    done = subprocess.run(
        [sys.executable, "-c", CRASH, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lives) > 100 / step
    for life in lives:
        del life["statements"]
        assert life == lives[0]
    life = lives[0]
    vectors = np.frombuffer(bytes.fromhex(life["vectors"]), np.float32)
    assert np.array_equal(vectors.reshape(-1, WIDTH - 1), devices.cohort.vectors)
    sent = [tuple(str(line[n]) for n in COLUMNS) for line in devices.ledger.pending().to_pylist()]
    assert sorted(map(tuple, life["ledger"])) == sorted(sent)
    assert life["states"] == ["arrived"]
    assert set(life["releases"]) == {rounds}
    assert life["history"] == train.fingerprint()
    assert life["consent"] == consent.takes_part.tolist()
    assert life["whole"] == ["ok"]


def test_an_owner_may_look_and_change_while_rounds_run(phone):
    """Two connections at once, as an agent and a command line have them."""
    stop, troubles = threading.Event(), []

    def look():
        with CohortStore.open(phone.store.path) as store:
            number = 0
            while not stop.is_set():
                number += 1
                store.add_history(2, [f"new-{number}"])
                try:
                    spent = store.budget(2)
                    with store.file.snapshot():
                        rows, after = store.ledger(2), store.budget(2)
                    releases = after[0].releases if after else 0
                    if releases != rows.num_rows or (spent and releases < spent[0].releases):
                        troubles.append((releases, rows.num_rows))
                except StoreError as error:
                    troubles.append(error)

    owner = threading.Thread(target=look)
    owner.start()
    try:
        for round in range(40):
            send(phone, round)
            phone.arrived(round, 0)
    finally:
        stop.set()
        owner.join()
    assert troubles == []


# --- every order of events ------------------------------------------------------------------------


class Life(RuleBasedStateMachine):
    """A small gateway through rounds, refusals, crashes and changes of mind, beside a model of it
    that knows no store: only which vectors count, and what has left."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.lives = 0
        train = random_world(3, N_ITEMS, 18, seed=8)
        self.numbers = np.array([0, 1, 2])
        self.train = train
        self.choices = [SHARING, AT_HOME, Choice(share_positives=1.0)]
        self.hosted = host(self.folder / "0", train, self.numbers, self.consent())
        self.settled = TERMS.build().device_init(self.numbers, RNG)
        self.learnt = self.settled
        self.round, self.attempt, self.state = -1, 0, "none"
        self.prepared, self.minds = None, 0
        self.left = {}
        self.spent = {}

    def teardown(self):
        self.hosted.store.close()
        shutil.rmtree(self.folder)

    def consent(self):
        return Consent.of(self.numbers, self.choices, self.numbers)

    def at_door(self):
        """What the door would give now, without any store."""
        ledger = Ledger()
        cohort = Cohort(self.numbers, self.train, self.consent(), self.settled.copy())
        devices = SimulatedDevices.behind_door(TERMS.build(), cohort, TERMS.release, ledger, RNG)
        rows = devices.willing()
        if not len(rows):
            return None
        message = report_wire.encode_sum(devices.report_summed(view(self.round), rows))
        return message, cohort.vectors, rows_of(ledger.pending())

    def begin(self, round, attempt):
        """The server opens a round; the gateway prepares it."""
        before = self.round, self.attempt, self.state, self.settled
        if round > self.round and self.state == "arrived":
            self.settled = self.learnt
        self.round, self.attempt = round, attempt
        expected = self.at_door()
        prepared = self.hosted.prepare(view(round), attempt, summed=True)
        assert isinstance(prepared, Nothing) == (expected is None)
        if expected is None:
            self.round, self.attempt, self.state, self.settled = before
            return
        self.state, self.prepared, self.minds = "prepared", prepared, 0
        message, self.learnt, self.rows = expected
        assert prepared.message == message
        assert prepared.state == "prepared"

    @initialize()
    def first(self):
        self.begin(0, 0)

    @rule()
    def next_round(self):
        self.begin(self.round + 1, 0)

    @precondition(lambda self: self.round >= 0)
    @rule()
    def next_attempt(self):
        self.begin(self.round, self.attempt + 1)

    @precondition(lambda self: self.state in ("prepared", "left", "arrived", "refused"))
    @rule()
    def asked_again(self):
        if self.minds:
            if self.state == "prepared":
                self.state = "dropped"
                self.begin(self.round, self.attempt)
                return
            willing = any(choice.takes_part for choice in self.choices)
            if willing:
                with pytest.raises(ConsentError):
                    self.hosted.prepare(view(self.round), self.attempt, summed=True)
            else:
                assert isinstance(
                    self.hosted.prepare(view(self.round), self.attempt, summed=True), Nothing
                )
            self.state = "refused" if self.state == "left" else self.state
            return
        again = self.hosted.prepare(view(self.round), self.attempt, summed=True)
        assert (again.message, again.nonce) == (self.prepared.message, self.prepared.nonce)
        assert again.state == self.state

    @precondition(lambda self: self.state in ("prepared", "left", "arrived", "refused"))
    @rule()
    def leave(self):
        if self.minds:
            with pytest.raises(ConsentError):
                self.hosted.leaving(self.prepared)
            self.state = {"prepared": "dropped", "left": "refused"}.get(self.state, self.state)
            return
        self.hosted.leaving(self.prepared)
        if self.state == "prepared":
            assert all(self.choices[row[1]].takes_part for row in self.rows)
            self.left[self.round, self.attempt] = self.rows
        self.state = "arrived" if self.state == "arrived" else "left"

    @precondition(lambda self: self.state in ("left", "arrived", "refused"))
    @rule()
    def arrive(self):
        self.hosted.arrived(self.round, self.attempt)
        self.state = "arrived"

    @precondition(lambda self: self.state in ("left", "arrived", "refused"))
    @rule()
    def refuse(self):
        self.hosted.refused(self.round, self.attempt, "late")
        self.state = "refused"

    @rule(who=st.integers(0, 2), share=st.sampled_from([None, 0.0, 0.5, 1.0]))
    def choose(self, who, share):
        choice = AT_HOME if share is None else Choice(share_positives=share)
        with CohortStore.open(self.hosted.store.path) as owner:
            owner.set_choice(who, choice)
        if choice != self.choices[who] and self.state not in ("none", "dropped"):
            self.minds += any(row[1] == who for row in self.rows)
        self.choices[who] = choice

    @rule(who=st.integers(0, 2), item=st.integers(0, N_ITEMS - 2))
    def visit(self, who, item):
        self.hosted.store.add_history(who, [str(item)])
        self.train = self.hosted.store.history()

    @rule()
    def crash(self):
        """Go on with the files as a killed process would have left them."""
        self.lives += 1
        path = self.folder / str(self.lives)
        shutil.copytree(self.hosted.store.path, path, ignore=shutil.ignore_patterns("*-shm"))
        self.hosted.store.close()
        self.hosted = DeviceSession(CohortStore.open(path, agent=True))

    @invariant()
    def vectors_follow(self):
        now = self.learnt if self.state == "arrived" else self.settled
        assert np.array_equal(self.hosted.vectors(), now)

    @invariant()
    def the_ledger_is_what_left(self):
        expected = sorted(row for rows in self.left.values() for row in rows)
        assert rows_of(self.hosted.store.ledger()) == expected

    @invariant()
    def the_budget_is_the_ledger_and_never_falls(self):
        for number in self.numbers.tolist():
            totals = totals_of(self.hosted.store.ledger(number))
            spent = self.hosted.store.budget(number)
            found = (spent[0].releases, spent[0].bytes, spent[0].epsilon) if spent else (0, 0, 0.0)
            assert found == (totals.releases, totals.bytes, totals.epsilon)
            assert found >= self.spent.get(number, (0, 0, 0.0))
            self.spent[number] = found


class TestLife(Life.TestCase):
    settings = settings(max_examples=10, stateful_step_count=20, deadline=None)


@pytest.mark.slow
class TestManyLives(Life.TestCase):
    settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# --- size -----------------------------------------------------------------------------------------


def test_a_gateway_of_thousands_is_served_in_bulk(tmp_path, monkeypatch):
    """The number of statements of a round does not grow with the number of users."""
    counts = []
    for n_users in (20, 2000):
        train = random_world(n_users, N_ITEMS, 5 * n_users, seed=5)
        consent = Consent.uniform(np.arange(n_users), SHARING)
        hosted = host(tmp_path / str(n_users), train, np.arange(n_users), consent)
        store, calls = hosted.store, []
        for name in ("rows", "write", "write_many"):
            plain = getattr(type(store.file), name)

            def counted(file, *arguments, plain=plain, calls=calls):
                calls.append(1)
                return plain(file, *arguments)

            monkeypatch.setattr(type(store.file), name, counted)
        send(hosted)
        hosted.arrived(0, 0)
        monkeypatch.undo()
        counts.append(len(calls))
        assert store.ledger().num_rows == n_users
        store.close()
    assert counts[0] == counts[1]
