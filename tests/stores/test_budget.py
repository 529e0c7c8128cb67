"""A budget that is spent stays spent: whatever is restarted, killed, moved or changed."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger, totals_of
from sottovoce.core.links import Proxied
from sottovoce.core.messages import ModelView
from sottovoce.core.one_bit import noise_root
from sottovoce.errors import ConsentError, UsageError
from sottovoce.parties.device import Devices
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Nothing
from sottovoce.stores.session import DeviceSession
from sottovoce.testing import random_world
from sottovoce.wire import reports as report_wire
from sottovoce.wire.terms import Terms

N_ITEMS, FACTORS = 20, 3
ITEMS = [(str(i), f"Venue number {i}") for i in range(N_ITEMS)]
ME = 5
ROOT = 77


def terms(*tiers, reports=3, federation="town"):
    release = KReports(reports, tuple(Tier(e, 10 * (k + 2)) for k, e in enumerate(tiers)))
    return Terms(federation, N_ITEMS, FMFConfig(embedding_size=FACTORS), release, Proxied())


def view(round=0, seed=0):
    rng = np.random.default_rng([round, seed])
    return ModelView(round, rng.normal(scale=0.3, size=(N_ITEMS, FACTORS)).astype(np.float32))


def limited(limit, epsilon=10.0, reports=100):
    return Choice(epsilon=epsilon, max_reports=reports, total_epsilon=limit)


def phone(path, limit, tiers=(0.5,), reports=3, root_key=ROOT):
    """A device in its store that takes part up to this limit."""
    store = CohortStore.create(path, [(ME, "me")], root_key=root_key)
    store.set_catalogue(ITEMS)
    store.add_history(ME, ["1", "4", "7"])
    store.set_choice(ME, limited(limit))
    hosted = DeviceSession(store)
    hosted.agree(terms(*tiers, reports=reports))
    return hosted


def send(hosted, round=0, attempt=0, seed=0):
    prepared = hosted.prepare(view(round, seed), attempt, summed=False)
    hosted.leaving(prepared)
    return prepared


def reopened(hosted):
    path = hosted.store.path
    hosted.store.close()
    return DeviceSession(CohortStore.open(path, agent=True))


def spent(hosted):
    (found,) = hosted.store.spent()
    return float(found)


# --- the same numbers as in simulation ------------------------------------------------------------


def test_stores_report_what_simulation_reports(tmp_path):
    train = random_world(6, N_ITEMS, 40, seed=1)
    agreed = terms(0.5, 2.0, reports=7)
    users = np.arange(6, dtype=np.int64)
    choices = [limited(math.inf, 0.5), limited(math.inf, 3.0), Choice(takes_part=False)]
    consent = Consent.of(users, choices, np.array([0, 1, 1, 0, 2, 1]))
    rng = Streams.from_seed(3)
    cohort = Cohort(users, train, consent, agreed.build().device_init(users, rng))
    devices = Devices.behind_door(agreed.build(), cohort, agreed.release, Ledger(), rng)
    rows = devices.willing()
    rounds = [devices.report_bits(view(round), rows) for round in range(3)]
    for number in users.tolist():
        store = CohortStore.create(tmp_path / str(number), [(number, "")], root_key=rng.key)
        with store:
            store.set_catalogue(ITEMS)
            store.add_histories(train.take_users(users[[number]]))
            store.set_choices(consent.take(users[[number]]))
            hosted = DeviceSession(store)
            hosted.agree(agreed)
            for round, expected in enumerate(rounds):
                if number not in expected.sender:
                    assert isinstance(hosted.prepare(view(round), 0, summed=False), Nothing)
                    continue
                own = report_wire.decode_bits(send(hosted, round).message, sender=number)
                where = np.flatnonzero(expected.sender == number)
                assert np.array_equal(own.reports, expected.reports[where])
                assert np.array_equal(own.tier, expected.tier[where])
                hosted.arrived(round, 0)
            assert store.spent()[0] == cohort.spent[number]
            mine = devices.ledger.pending().to_pylist()
            assert store.ledger().to_pylist() == [line for line in mine if line["user"] == number]


def test_what_has_left_is_added_up(tmp_path):
    hosted = phone(tmp_path / "s", math.inf)
    for round in range(2):
        send(hosted, round)
        hosted.arrived(round, 0)
    (told,), rows = hosted.store.budget(), hosted.store.ledger().to_pydict()
    assert (told.kind, told.releases, told.reports, told.epsilon) == ("k-reports", 2, 6, 3.0)
    assert told.bytes == sum(rows["bytes"]) > 0
    assert (told.positive_rows, told.negative_rows) == (0, 0)
    hosted.store.close()


def test_a_budget_is_told_of_one_or_of_all(tmp_path):
    with CohortStore.create(tmp_path / "s", [(3, ""), (5, "")], root_key=ROOT) as store:
        for number, epsilon, reports in ((5, 0.5, 4), (3, 2.0, 1), (5, 0.25, 2)):
            store.file.write("INSERT INTO spent VALUES (?, ?, 20, ?)", [number, epsilon, reports])
        store.file.write("INSERT INTO budget VALUES (5, 'k-reports', 2, 0, 0, 9, 2.5, 6)", [])
        told = [(s.number, s.epsilon, s.reports) for s in store.sent_reports()]
        assert told == [(3, 2.0, 1), (5, 0.25, 2), (5, 0.5, 4)]
        assert [s.epsilon for s in store.sent_reports(5)] == [0.25, 0.5]
        assert ([s.number for s in store.budget(5)], store.budget(3)) == ([5], [])
        assert store.spent().tolist() == [2.0, 2.5]


# --- where it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "reports", "limit", "rounds"),
    [
        (0.1, 1, 0.3, 3),
        (0.3, 3, 9, 10),
        (0.7, 7, 49.0, 10),
        (2.5, 100, 1000, 4),
        (2.5, 100, 999.999, 3),
        (0.1, 3, 0.29999, 0),
        (1.1, 10, 0, 0),
        (0.1, 10, 30, 30),
    ],
)
def test_a_limit_of_so_many_rounds_means_so_many(tmp_path, epsilon, reports, limit, rounds):
    hosted = phone(tmp_path / "s", limit, (epsilon,), reports)
    for round in range(rounds):
        send(hosted, round)
        if round % 3:
            hosted.arrived(round, 0)
    with pytest.raises(ConsentError, match="limit"):
        hosted.prepare(view(rounds), 0, summed=False)
    (sent,) = hosted.store.sent_reports() or [None]
    if sent is not None:
        assert (sent.number, sent.epsilon, sent.batch) == (ME, epsilon, 20)
    assert (sent.reports if sent else 0) == rounds * reports
    assert spent(hosted) == pytest.approx(rounds * reports * epsilon, rel=1e-12)
    hosted.store.close()


def test_past_her_limit_a_device_sends_nothing_whatever_is_done(tmp_path):
    hosted = phone(tmp_path / "s", 3.0)
    send(hosted, 0)
    hosted.arrived(0, 0)
    send(hosted, 1)
    hosted.refused(1, 0, "late")  # it has left all the same
    assert spent(hosted) == 3.0
    for turn in range(2, 5):
        with pytest.raises(ConsentError, match=r"3 of 3 is spent"):
            hosted.prepare(view(turn), 0, summed=False)
        hosted = reopened(hosted)
    for now in (0.0, 4e9, -1e9, 1.0):
        path = hosted.store.path
        hosted.store.close()
        file = CohortStore.open(path).file
        moved = DeviceSession(CohortStore(file, clock=lambda now=now: now))
        assert moved.store.now() == now
        with pytest.raises(ConsentError, match="limit"):
            moved.prepare(view(9), 0, summed=False)
        moved.store.close()
        hosted = DeviceSession(CohortStore.open(path))
    assert spent(hosted) == 3.0
    hosted.store.close()


def test_a_lower_limit_stops_and_a_higher_one_goes_on(tmp_path):
    hosted = phone(tmp_path / "s", 6.0)
    send(hosted, 0)
    hosted.arrived(0, 0)
    waiting = hosted.prepare(view(1), 0, summed=False)
    hosted.store.set_choice(ME, limited(1.0))  # less than was spent already
    with pytest.raises(ConsentError, match="choice was changed"):
        hosted.leaving(waiting)
    with pytest.raises(ConsentError, match=r"1\.5 of 1 is spent"):
        hosted.prepare(view(1), 0, summed=False)
    assert spent(hosted) == 1.5
    hosted.store.set_choice(ME, limited(3.0))
    send(hosted, 1)
    hosted.arrived(1, 0)
    with pytest.raises(ConsentError, match="limit"):
        hosted.prepare(view(2), 0, summed=False)
    hosted.store.set_choice(ME, limited(math.inf))
    send(hosted, 2)
    assert spent(hosted) == 4.5
    hosted.store.close()


def test_a_choice_that_permits_no_tier_is_told(tmp_path):
    hosted = phone(tmp_path / "s", math.inf, (0.5, 2.0))
    for choice in (limited(9.0, epsilon=0.49), limited(9.0, reports=2)):
        hosted.store.set_choice(ME, choice)
        with pytest.raises(ConsentError, match="than the choice permits"):
            hosted.prepare(view(), 0, summed=False)
    hosted.store.set_choice(ME, limited(9.0, epsilon=1.9))
    send(hosted)
    assert [s.epsilon for s in hosted.store.sent_reports()] == [0.5]
    hosted.store.set_choice(ME, limited(math.inf, epsilon=2.0))
    send(hosted, 1)
    assert [(s.epsilon, s.batch) for s in hosted.store.sent_reports()] == [(0.5, 20), (2.0, 30)]
    assert spent(hosted) == 1.5 + 6.0
    hosted.store.close()


def test_the_budget_is_read_again_before_the_first_byte_leaves(tmp_path):
    hosted = phone(tmp_path / "s", 2.0)
    prepared = hosted.prepare(view(), 0, summed=False)
    with hosted.store.file.transaction():  # as if another process had let something leave
        hosted.store.file.write("INSERT INTO spent VALUES (?, 1.0, 0, 1)", [ME])
    with pytest.raises(ConsentError, match="more than the limit leaves"):
        hosted.leaving(prepared)
    with pytest.raises(ConsentError, match="dropped"):
        hosted.leaving(prepared)
    assert (spent(hosted), hosted.store.ledger().num_rows) == (1.0, 0)
    hosted.store.close()


def test_other_terms_and_federations_go_on_with_the_same_budget(tmp_path):
    hosted = phone(tmp_path / "s", 40.0, reports=40)
    first = send(hosted)
    hosted.arrived(0, 0)
    village = terms(0.5, reports=40, federation="village")
    for offered, before in ((terms(0.7), 20.0), (village, 22.1)):
        hosted.agree(offered)
        assert spent(hosted) == pytest.approx(before)
        if offered != village:
            send(hosted)
            hosted.arrived(0, 0)
    with pytest.raises(ConsentError, match="limit"):
        hosted.prepare(view(), 0, summed=False)
    hosted.store.set_choice(ME, limited(42.1))
    again = send(hosted)  # the same round, model, history and ε, but other coins
    before, after = (report_wire.decode_bits(sent.message).reports for sent in (first, again))
    assert np.array_equal(before >> 1, after >> 1)
    assert not np.array_equal(before, after)
    assert spent(hosted) == pytest.approx(42.1)
    hosted.store.close()


# --- coins ----------------------------------------------------------------------------------------


def test_coins_come_from_the_operating_system_and_serve_one_set_of_terms(tmp_path):
    roots = set()
    for name in ("a", "b"):
        with CohortStore.create(tmp_path / name, [(ME, "")]) as store:
            roots |= {store.noise(era) for era in range(3)}
            assert store.noise(0) == store.noise(0)
            kept = store.noise(1)
        with CohortStore.open(tmp_path / name, readonly=True) as store:
            assert store.noise(1) == kept
    assert len(roots) == 6
    assert {len(root) for root in roots} == {32}
    with CohortStore.create(tmp_path / "trial", [(ME, "")], root_key=ROOT) as store:
        assert store.noise(0) == noise_root(ROOT)
        assert store.noise(1) not in roots | {noise_root(ROOT)}


def test_the_coins_of_a_round_serve_once(tmp_path):
    hosted = phone(tmp_path / "s", math.inf, reports=40)
    first = hosted.prepare(view(), 0, summed=False)
    other = hosted.prepare(view(seed=1), 1, summed=False)  # nothing has left yet
    assert other.message != first.message
    hosted.leaving(other)
    for fate in ("left", "arrived", "refused"):
        if fate != "left":
            hosted.arrived(0, 1)
        if fate == "refused":
            hosted.refused(0, 1, "late")
        for attempt in (2, 3):
            with pytest.raises(ConsentError, match="earlier attempt"):
                hosted.prepare(view(seed=2), attempt, summed=False)
        assert hosted.prepare(view(seed=1), 1, summed=False).message == other.message
        hosted = reopened(hosted)
    hosted.follow(0, 4)
    with pytest.raises(ConsentError, match="earlier attempt"):
        hosted.prepare(view(seed=1), 4, summed=False)
    assert spent(hosted) == 20.0
    send(hosted, 1)
    assert spent(hosted) == 40.0
    hosted.store.close()


def test_the_same_report_again_costs_nothing(tmp_path):
    hosted = phone(tmp_path / "s", 1.5)
    prepared = send(hosted)
    hosted.refused(0, 0, "overload")
    hosted.leaving(hosted.prepare(view(), 0, summed=False))
    assert hosted.unresolved().message == prepared.message
    assert spent(hosted) == 1.5
    hosted = reopened(hosted)
    hosted.leaving(hosted.unresolved())
    hosted.arrived(0, 0)
    assert spent(hosted) == 1.5
    assert hosted.store.budget()[0].reports == 3
    hosted.store.close()


def test_reports_are_not_summed_and_not_anothers(tmp_path):
    with CohortStore.create(tmp_path / "s", [(1, "a"), (2, "b")], root_key=ROOT) as store:
        store.set_catalogue(ITEMS)
        for number, limit in ((1, 1.5), (2, math.inf)):
            store.add_history(number, ["1", "4"])
            store.set_choice(number, limited(limit))
        hosted = DeviceSession(store)
        hosted.agree(terms(0.5))
        with pytest.raises(UsageError, match="not as a sum"):
            hosted.prepare(view(), 0, summed=True)
        with pytest.raises(UsageError, match="2 devices"):
            hosted.prepare(view(), 0, summed=False)
        for round, number in enumerate([1, 2]):
            hosted.leaving(hosted.prepare(view(round), 0, np.array([number]), summed=False))
        assert store.spent().tolist() == [1.5, 1.5]
        with pytest.raises(ConsentError, match="limit"):
            hosted.prepare(view(2), 0, np.array([1]), summed=False)
        hosted.leaving(hosted.prepare(view(2), 0, np.array([2]), summed=False))
        assert store.spent().tolist() == [1.5, 3.0]


def test_recommendations_do_not_depend_on_the_budget(tmp_path):
    hosted = phone(tmp_path / "s", 1.5)
    hosted.keep_model(view(3))
    before = hosted.recommend(ME, 5)
    assert not {item for item, _, _ in before} & {"1", "4", "7"}
    send(hosted)
    hosted.store.set_choice(ME, Choice(share_positives=0.5))  # which these terms have no use for
    assert hosted.recommend(ME, 5) == before
    hosted.store.close()


# --- kills ----------------------------------------------------------------------------------------

LIFE = """
import json, os, shutil, signal, sys
from pathlib import Path
import numpy as np
from sottovoce.errors import ConsentError
from sottovoce.core.messages import ModelView
from sottovoce.stores import file as store_file
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.device import CohortStore

base, work, wire, step = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
connect = store_file._connect

def live(dying):
    '''Five rounds from wherever the store is, of which two may leave; die before a statement.'''
    left = [dying]

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
        gone = hosted.unresolved()
        if gone is not None:
            hosted.leaving(gone)
            with wire.open("a") as out:
                out.write(f"{gone.round} {gone.message.hex()}\\n")
            hosted.arrived(gone.round, gone.attempt)
        latest = hosted.latest()
        first = 0 if latest is None else latest.round + latest.state.startswith("a")
        for round in range(first, 5):
            model = np.full((20, 3), 0.1 * (round + 1), np.float32)
            try:
                prepared = hosted.prepare(ModelView(round, model), 0, summed=False)
                hosted.leaving(prepared)
            except ConsentError:
                break
            with wire.open("a") as out:
                out.write(f"{round} {prepared.message.hex()}\\n")
            hosted.arrived(round, 0)
        return -left[0], store.spent().tolist(), store.ledger().num_rows

def fresh():
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)
    wire.unlink(missing_ok=True)

fresh()
statements, spent, rows = live(0)
print(json.dumps([spent, rows, sorted(set(wire.read_text().splitlines()))]), flush=True)
for dying in range(1, statements + 1, step):
    fresh()
    for moment in (dying, 0):
        child = os.fork()
        if child == 0:
            _, spent, rows = live(moment)
            told = sorted(set(wire.read_text().splitlines()))
            print(json.dumps([spent, rows, told]), flush=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.waitstatus_to_exitcode(status) != (-signal.SIGKILL if moment else 0):
            sys.exit(f"statement {dying}: ended with {status}")
"""


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_no_kill_lets_a_device_spend_more_or_forget(tmp_path, step):
    """Killed before any one statement of its life, it sends the same two rounds' reports."""
    hosted = phone(tmp_path / "s", 3.0)
    hosted.store.close()
    arguments = [tmp_path / "s", tmp_path / "work", tmp_path / "wire", step]
    done = subprocess.run(
        [sys.executable, "-c", LIFE, *map(str, arguments)],
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lives) > 60 / step
    assert lives[0][:2] == [[3.0], 2]
    assert [line.split()[0] for line in lives[0][2]] == ["0", "1"]
    for life in lives:
        assert life == lives[0]


# --- every order of events ------------------------------------------------------------------------

TIERS = (0.1, 0.7)
REPORTS = 3


class Purse(RuleBasedStateMachine):
    """One device through rounds, attempts, crashes, moved clocks and changes of mind, beside a
    model of its budget in exact fractions."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.lives, self.time = 0, 1000.0
        self.choice = limited(2.4)
        self.hosted = phone(self.folder / "0", 2.4, TIERS, REPORTS)
        self.round, self.attempt, self.state = -1, 0, "none"
        self.prepared, self.cost, self.changed = None, Fraction(0), False
        self.sent_rounds = set()
        self.spent, self.seen = Fraction(0), 0.0
        self.reports = 0

    def teardown(self):
        self.hosted.store.close()
        shutil.rmtree(self.folder)

    def price(self):
        """Of a round under the choice in force; None where there is no tier for it."""
        fitting = [e for e in TIERS if e <= self.choice.epsilon]
        if not fitting or self.choice.max_reports < REPORTS:
            return None
        return REPORTS * Fraction(str(fitting[-1]))

    def begin(self, round, attempt):
        price, limit = self.price(), self.choice.total_epsilon
        room = price is not None and (
            math.isinf(limit) or self.spent + price <= Fraction(str(limit))
        )
        if not self.choice.takes_part:
            assert isinstance(self.hosted.prepare(view(round), attempt, summed=False), Nothing)
            return
        if not room or round in self.sent_rounds:
            with pytest.raises(ConsentError):
                self.hosted.prepare(view(round), attempt, summed=False)
            return
        self.prepared = self.hosted.prepare(view(round), attempt, summed=False)
        self.round, self.attempt, self.state = round, attempt, "prepared"
        self.cost, self.changed = price, False

    @rule()
    def next_round(self):
        self.begin(self.round + 1, 0)

    @precondition(lambda self: self.round >= 0)
    @rule()
    def next_attempt(self):
        self.begin(self.round, self.attempt + 1)

    @precondition(lambda self: self.state in ("prepared", "left", "arrived", "refused"))
    @rule()
    def leave(self):
        if self.changed:
            with pytest.raises(ConsentError):
                self.hosted.leaving(self.prepared)
            self.state = {"prepared": "dropped", "left": "refused"}.get(self.state, self.state)
            return
        self.hosted.leaving(self.prepared)
        if self.state == "prepared":
            self.spent += self.cost
            self.reports += REPORTS
            self.sent_rounds.add(self.round)
            limit = self.choice.total_epsilon
            assert math.isinf(limit) or self.spent <= Fraction(str(limit))
        self.state = "arrived" if self.state == "arrived" else "left"

    @precondition(lambda self: self.state in ("left", "arrived", "refused"))
    @rule(arrives=st.booleans())
    def fate(self, arrives):
        if arrives:
            self.hosted.arrived(self.round, self.attempt)
        else:
            self.hosted.refused(self.round, self.attempt, "late")
        self.state = "arrived" if arrives else "refused"

    @rule(
        epsilon=st.sampled_from([0.0, 0.1, 0.7, 5.0]),
        reports=st.sampled_from([2, 3, 9]),
        limit=st.sampled_from([0.0, 0.3, 0.6, 2.4, 4.5, 9.0, math.inf]),
        part=st.sampled_from([True, True, True, False]),
    )
    def choose(self, epsilon, reports, limit, part):
        choice = Choice(takes_part=part, epsilon=epsilon, max_reports=reports, total_epsilon=limit)
        with CohortStore.open(self.hosted.store.path) as owner:
            owner.set_choice(ME, choice)
        self.changed |= choice != self.choice
        self.choice = choice

    @rule(seconds=st.sampled_from([-1e9, -60.0, 60.0, 1e9]))
    def move_the_clock(self, seconds):
        self.time += seconds
        self.hosted = DeviceSession(CohortStore(self.hosted.store.file, clock=lambda: self.time))

    @rule()
    def crash(self):
        """Go on with the files as a killed process would have left them."""
        self.lives += 1
        path = self.folder / str(self.lives)
        shutil.copytree(self.hosted.store.path, path, ignore=shutil.ignore_patterns("*-shm"))
        self.hosted.store.close()
        self.hosted = DeviceSession(CohortStore.open(path, agent=True))

    @invariant()
    def what_left_is_spent_and_nothing_else(self):
        found = spent(self.hosted)
        assert found == pytest.approx(float(self.spent), rel=1e-13)
        assert found >= self.seen
        self.seen = found
        store = self.hosted.store
        rows = store.ledger()
        assert totals_of(rows).epsilon == pytest.approx(found, rel=1e-12)
        assert totals_of(rows).reports == self.reports
        assert sum(s.reports for s in store.sent_reports()) == self.reports


class TestPurse(Purse.TestCase):
    settings = settings(max_examples=6, stateful_step_count=25, deadline=None)


@pytest.mark.slow
class TestManyPurses(Purse.TestCase):
    settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
