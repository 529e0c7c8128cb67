"""Many tabs and many agents in Python in one federation: tabs are closed and browsers killed while
their reports are under way. Every model is the simulation's, bit for bit; every device counts once
in each stage; every ledger and budget is that of the same user in the simulation.

A gateway on Flower cannot be in this federation: a server over HTTPS and a conductor on Flower each
keep a book of rounds of their own, and the sum of a gateway is one message for many devices, which
the server over HTTPS would count as one. So gateways make the same experiment's model beside it."""

import hashlib
import json
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from playwright.sync_api import sync_playwright
from tab_world import (
    ARGUMENTS,
    CHROMIUM,
    TABLE,
    Chromium,
    Front,
    asked,
    built,
    opened,
    tab_in,
    take_part,
    trial_of,
    until,
    upstream_of,
)

from sottovoce.engines.flower.trial import FlowerTrial
from sottovoce.engines.observers import Periodically
from sottovoce.stores import server as records
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import open_folder

pytestmark = pytest.mark.usefixtures("forked_children")

ROUNDS = 2
HEAD = struct.Struct("<4sIII")
"""Of an envelope: its magic, the device's number, round and attempt."""


@dataclass(frozen=True)
class Size:
    killed: int
    """Browsers with a profile on disk, each of which is killed once."""
    origins: int
    """Tabs of each of these, each a device of its own since its page has an origin of its own."""
    browsers: int
    contexts: int
    """Of each of these, with one tab each: separate storages, which end with their browser."""
    closed: int
    """Tabs that are closed while their report is under way."""
    agents: int
    venues: int = 40
    poll: float = 0.2

    @property
    def tabs(self):
        return self.killed * self.origins + self.browsers * self.contexts

    def table(self):
        mix = [{"weight": 1, "epsilon": 64.0}, {"weight": 1, "epsilon": 16.0}]
        return {
            "town": {"residents": self.tabs + self.agents, "venues": self.venues, "districts": 1},
            "service": {**TABLE["service"], "poll_seconds": self.poll},
            "consent": {"mix": mix},
        }


SMALL = Size(killed=1, origins=2, browsers=1, contexts=2, closed=1, agents=4)
MIDDLE = Size(killed=2, origins=3, browsers=2, contexts=7, closed=4, agents=20, poll=3.0)
LARGE = Size(
    killed=2, origins=10, browsers=4, contexts=20, closed=10, agents=100, venues=120, poll=15.0
)


@dataclass(eq=False)
class Cut:
    """The end of a tab, or of a browser, in the middle of a report."""

    end: Callable[[], None]
    counted: bool
    """Whether the report has reached the server by then, which has counted it."""
    status: int | None = None
    """Of the server's answer, which never arrives."""
    reached: threading.Event = field(default_factory=threading.Event)


class Way(Front):
    """Passes on what devices send, but for reports that are `cuts`, by number and round: they get
    no answer, and whoever has sent it ends while it waits for one."""

    def __init__(self, cuts):
        super().__init__()
        self.cuts = cuts

    def _forward(self, handler, body):
        cut = None
        if handler.path == "/v1/reports":
            _, number, round, _ = HEAD.unpack_from(body)
            cut = self.cuts.pop((number, round), None)
        if cut is None:
            return super()._forward(handler, body)
        if cut.counted:
            cut.status = super()._forward(handler, body)[0]
        cut.reached.set()
        # Whoever drops the connection first gets the same once more from Chromium itself.
        handler.connection.settimeout(60)
        handler.connection.recv(1)
        raise ConnectionAbortedError("nobody waits for an answer any more")


@dataclass
class Tab:
    """A device: a tab that may be closed and come back."""

    row: int
    way: Way
    show: Callable[[], object]
    """Opens a page in what has this device's storage."""
    page: object = None

    def come(self, trial, *, fresh):
        self.page = self.show()
        status = opened(self.page, self.way, trial.invitation(self.row))
        assert status["fresh"] is fresh, self.row


class Browsers:
    """All of them, and the tabs in them."""

    def __init__(self, playwright, folder, size, ways):
        self.kept, self.others, self.tabs = [], [], []
        rows = iter(range(size.tabs))
        for number in range(size.killed):
            kept = Chromium(playwright, folder / f"profile-{number}", ways[0])
            kept.start()
            self.kept.append((kept, []))
            for way in ways:
                tab = Tab(next(rows), way, partial(kept.tab, way.url))
                self.kept[-1][1].append(tab)
        for _ in range(size.browsers):
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
            self.others.append(browser)
            for _ in range(size.contexts):
                shown = partial(tab_in, browser.new_context(), ways[0].url)
                self.tabs.append(Tab(next(rows), ways[0], shown))

    def all(self):
        return [*(tab for _, tabs in self.kept for tab in tabs), *self.tabs]

    def close(self):
        for kept, _ in self.kept:
            kept.stop()
        for browser in self.others:
            browser.close()

    def plan(self, size):
        """Who ends in which round, and how: by number and round. Half of the reports have reached
        the server by then; nobody ends twice."""
        cuts = {}
        for number, (kept, tabs) in enumerate(self.kept):
            round = (number + 1) % ROUNDS
            cuts[tabs[0].row, round] = Cut(kept.bury, counted=number % 2 == 0)
        for number, tab in enumerate(self.tabs[:: len(self.tabs) // size.closed][: size.closed]):
            end = partial(lambda tab: tab.page.close(), tab)
            cuts[tab.row, number % ROUNDS] = Cut(end, counted=number // ROUNDS % 2 == 1)
        return cuts


def contribute(trial, browsers, cuts, round):
    """One round in which these reports are cut; whoever has ended comes back once all have, and
    everybody else goes on meanwhile."""
    now = {row: cut for (row, at), cut in cuts.items() if at == round}
    trial.operator().raise_target(round + 1)
    waiting = list(now.values())
    while waiting:
        cut = until(lambda: next((one for one in waiting if one.reached.is_set()), None), 240)
        waiting.remove(cut)
        cut.end()
    assert {cut.status // 100 for cut in now.values() if cut.counted} <= {2}
    if not all(cut.counted for cut in now.values()):
        assert trial.round() == round, "nobody is left out"
    for kept, tabs in browsers.kept:
        if kept.context is None:
            kept.start()
            for tab in tabs:
                tab.come(trial, fresh=False)
    for tab in browsers.tabs:
        if tab.page.is_closed():
            tab.come(trial, fresh=False)
    until(lambda: trial.round() == round + 1, 240)
    return trial.operator().model(round + 1, trial.world.terms).items


def counted(trial):
    """Who is in which stage, by the server's own database."""
    database = open_folder(trial.folder / "server").database()
    try:
        with database.reading() as link:
            return [records.reporters(link, round, 0).tolist() for round in range(ROUNDS)]
    finally:
        database.close()


def by_user(table):
    found = defaultdict(list)
    for row in table.to_pylist():
        found[row["user"]].append(row)
    return found


def simulated_models(simulated):
    models = []
    simulated.run([Periodically(1, lambda moment: models.append(moment.items.copy()))])
    return models


def check_tab(tab, expected, spent, posted):
    """Her own view of what has left is the simulation's, and names the bytes that did."""
    until(lambda: asked(tab.page, "status")["report"] == {**ARRIVED, "round": ROUNDS - 1})
    rows = [json.loads(line) for line in asked(tab.page, "export", "ndjson").splitlines()]
    assert [row["what"] for row in rows].count("enrolment") == 1
    told = [row for row in rows if row["what"] == "report"]
    assert [row["state"] for row in told] == ["arrived"] * ROUNDS
    shared = {"round": "round", "kind": "kind", "epsilon": "epsilon"}
    shared |= {"positive_rows": "positiveRows", "negative_rows": "negativeRows"}
    for mine, theirs in zip(told, expected, strict=True):
        assert {name: mine[own] for name, own in shared.items()} == {n: theirs[n] for n in shared}
        (body,) = posted[tab.row, mine["round"]]
        assert (mine["bytes"], mine["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    budget = asked(tab.page, "status")["budget"]
    (totals,) = budget["totals"]
    assert totals["releases"] == ROUNDS
    assert totals["bytes"] == sum(row["bytes"] for row in expected)
    assert budget["spent"] == totals["epsilon"] == spent
    assert not tab.page.troubles


def check_agent(store, row, expected, spent):
    assert store.ledger().to_pylist() == expected, row
    assert set(store.ledger_rows()["state"].to_pylist()) == {"arrived"}
    assert store.spent().tolist() == [spent], row


ARRIVED = {"attempt": 0, "state": "arrived"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(SMALL, id="small", marks=pytest.mark.timeout(900)),
        pytest.param(MIDDLE, id="middle", marks=pytest.mark.timeout(900)),
        pytest.param(LARGE, id="large", marks=pytest.mark.timeout(1500)),
    ],
)
def test_closed_tabs_and_killed_browsers_leave_the_simulations_model_and_ledgers(tmp_path, size):
    built()
    simulated, trial = trial_of(tmp_path / "services", **size.table())
    everybody = list(range(size.tabs + size.agents))
    assert simulated.schedule.devices == len(everybody)
    trial.tabs, cuts, models = range(size.tabs), {}, []
    with ExitStack() as stack:
        ways = [Way(cuts) for _ in range(size.origins)]
        for way in ways:
            stack.callback(way.close)
        browsers = Browsers(stack.enter_context(sync_playwright()), tmp_path, size, ways)
        stack.callback(browsers.close)
        stack.enter_context(trial.running())
        for way in ways:
            way.upstream = upstream_of(trial)
        for tab in browsers.all():
            tab.come(trial, fresh=True)
            epsilon = float(trial.world.cohort.consent.epsilon[tab.row])
            take_part(tab.page, trial.visits(tab.row), epsilon=epsilon)
        cuts |= browsers.plan(size)
        assert len(cuts) == size.killed + size.closed
        planned = dict(cuts)
        models = [contribute(trial, browsers, planned, round) for round in range(ROUNDS)]
        assert not cuts, "all of them have ended once"
        (log, refused), stages = trial.log(), counted(trial)

        expected_models = simulated_models(simulated)
        rows = by_user(simulated.devices.ledger.pending())
        spent = simulated.devices.cohort.spent.tolist()
        sent = defaultdict(list)
        for path, body in (one for way in ways for one in way.posted):
            if path == "/v1/reports":
                sent[HEAD.unpack_from(body)[1:3]].append(body)
        posted = {place: set(bodies) for place, bodies in sent.items()}
        for tab in browsers.all():
            check_tab(tab, rows[tab.row], spent[tab.row], posted)
    for row in everybody[size.tabs :]:
        with CohortStore.open(trial.store(row), readonly=True) as store:
            check_agent(store, row, rows[row], spent[row])
    assert len(models) == len(expected_models) == ROUNDS
    for mine, theirs in zip(models, expected_models, strict=True):
        assert np.array_equal(mine, theirs), "to the last bit"
    assert models[-1][:, 2:].any(), "pairs were counted"
    assert stages == [everybody] * ROUNDS, "everybody once"
    assert [(past["round"], past["reported"], past["missing"]) for past in log] == [
        (round, len(everybody), []) for round in range(ROUNDS)
    ]
    assert not {"second_submission", "bad_signature", "malformed", "late"} & refused.keys()
    times = {place: len(sent[place]) for place in planned}
    assert times == dict.fromkeys(planned, 2), "sent again"
    assert {len(bodies) for bodies in posted.values()} == {1}, "the very same bytes"


@pytest.mark.slow
def test_gateways_on_flower_make_the_same_model_and_ledgers(tmp_path):
    """Of the same users as the large federation: one gateway is no secure sum, so there are two."""
    simulated, trial = trial_of(tmp_path / "services", **LARGE.table())
    terms = trial.world.terms
    world = replace(trial.world, terms=replace(terms, link=replace(terms.link, min_devices=2)))
    gateways = FlowerTrial(world, tmp_path / "gateways", 2)
    with gateways.running():
        gateways.advance(ROUNDS, lambda _: None)
        got, log = gateways.gather(), gateways.log()[0]
    models = simulated_models(simulated)
    assert np.array_equal(got.items, models[-1]), "to the last bit"
    assert [past["reported"] for past in log] == [LARGE.tabs + LARGE.agents] * ROUNDS
    found = [row for path in gateways._cohorts() for row in ledger_rows(path)]
    theirs = simulated.devices.ledger.pending().to_pylist()
    assert sorted(found, key=in_order) == sorted(theirs, key=in_order)


def ledger_rows(path):
    with CohortStore.open(path, readonly=True) as store:
        return store.ledger().to_pylist()


def in_order(row):
    return row["round"], row["user"]
