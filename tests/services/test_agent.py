"""The device agent, visit by visit, against a made-up federation with the real parties."""

import asyncio
import contextlib
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from fake_federation import CATALOGUE, CHOICE, TERMS, Federation, make_store, refusal, simulated
from fake_server import Reply
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.consent import Choice
from sottovoce.engines.client import Client
from sottovoce.errors import (
    ConsentError,
    KeyTrouble,
    MessageError,
    ServiceError,
    StoreError,
    Unreachable,
    UsageError,
    VersionMismatch,
)
from sottovoce.services.agent.agent import Agent
from sottovoce.services.kit.pacing import LONGEST_BACK_OFF, Pace
from sottovoce.stores import keys
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import things_named
from sottovoce.stores.server import catalogue_name
from sottovoce.stores.session import DeviceSession, expelled
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.refusals import SHUT_OUT_BY_OPERATOR, WITHDRAWN
from sottovoce.wire.versions import encode_model

pytestmark = pytest.mark.usefixtures("quick_stores")


class Devices:
    """Agents of one federation, on stores in a folder, whose visits a test counts out."""

    def __init__(self, federation, server, ca, path):
        self.federation, self.server, self.ca, self.path = federation, server, ca, path
        self.events = []
        self.stores = {}
        self.foreseen = federation.terms.digest()  # the owners have seen these terms elsewhere

    def store(self, number=0, **settings):
        if number not in self.stores:
            path = self.path / f"device-{number}"
            if not path.exists():
                make_store(path, self.federation, self.server.url, self.ca, number, **settings)
            self.stores[number] = CohortStore.open(path, agent=True)
        return self.stores[number]

    def agent(self, number=0, **settings):
        def log(event, **details):
            self.events.append((event, details))

        return Agent(self.store(number), log=log, foreseen=self.foreseen, **settings)

    def visit(self, *numbers, times=1, **settings):
        """One visit of each, each as a new agent, which is what a restart is."""
        for _ in range(times):
            for number in numbers or [0]:
                asyncio.run(self._visit(self.agent(number, **settings)))

    async def _visit(self, agent):
        try:
            return await agent.visit()
        finally:
            await agent.close()

    def hosted(self, number=0):
        return DeviceSession(self.store(number))

    def posts(self):
        return [r for r in self.server.requests if r.method == "POST"]

    def close(self):
        for store in self.stores.values():
            store.close()


@pytest.fixture
def start(folder, tmp_path):
    opened = []

    def begin(federation):
        server = federation.serve(keys.server_context(folder)).__enter__()
        devices = Devices(federation, server, keys.authority_pem(folder), tmp_path)
        opened.append(devices)
        return devices

    yield begin
    for devices in opened:
        devices.close()
        devices.server.__exit__()


@pytest.fixture
def one(start):
    """A federation of one device."""
    return start(Federation(rounds=5, devices=1))


# Taking part.


def test_a_federation_over_https_is_the_simulated_one(start):
    devices = start(Federation(rounds=4, devices=6))
    devices.visit(*range(6))
    devices.visit(*range(6), times=5)
    federation, expected = devices.federation, simulated(4)
    assert federation.state == "finished"
    assert np.array_equal(federation.server.items, expected.items)
    vectors = np.concatenate([devices.hosted(n).vectors() for n in range(6)])
    assert np.array_equal(vectors, expected.vectors)
    rows = [devices.store(n).ledger().num_rows for n in range(6)]
    assert rows == [4] * 6
    # Everybody has the last model at home, and recommends from it with the server gone.
    devices.server.__exit__()
    assert np.array_equal(devices.hosted(3).model().items, expected.items)
    assert len(devices.hosted(3).recommend(3, 4)) == 4


def test_a_device_enrols_once_and_terms_and_catalogue_come_once(one):
    one.visit(times=4)
    paths = [request.path for request in one.server.requests]
    assert (len(one.federation.enrolments), one.federation.round) == (1, 3)
    assert paths.count("/v1/terms") == paths.count("/v1/catalogue") == 1
    # The second model and those after it come as changes.
    assert [p for p in paths if "model" in p] == [
        "/v1/model/0",
        "/v1/model/1?since=0",
        "/v1/model/2?since=1",
    ]


def contacts(store):
    return [(c.party, c.what, c.bytes, c.epsilon) for c in store.contacts()]


def test_enrolment_and_check_in_are_on_record_before_they_leave(start):
    devices = start(Federation(rounds=5, devices=2))
    devices.federation.asked = [0]
    devices.visit(0)
    sent = []

    def look(request):
        if request.method == "POST":
            with CohortStore.open(devices.path / "device-1", readonly=True) as store:
                sent.append((len(request.body), contacts(store)))

    devices.federation.hook = look
    devices.visit(1)
    devices.visit(1, clock=lambda: 3e9)
    store = devices.store(1)
    rows = contacts(store)
    assert [row[:2] for row in rows] == [("server", "enrolment"), ("server", "check-in")]
    assert sent == [(rows[0][2], rows[:1]), (rows[1][2], rows)]
    assert all(row[3] == 0.0 for row in rows)
    # They cost nothing and are no releases.
    assert (store.ledger().num_rows, store.budget(), store.spent().tolist()) == (0, [], [0.0])
    with pytest.raises(StoreError, match="stays on record"):
        store.file.write("DELETE FROM contacts")
    with pytest.raises(StoreError, match="stays on record"):
        store.file.write("UPDATE contacts SET bytes = 0")


def test_an_enrolment_that_is_tried_again_is_booked_again(one):
    busy = [refusal(503, "busy")] * 2
    one.federation.hook = lambda r: busy.pop() if r.path == "/v1/enrol" and busy else None
    for _ in range(2):
        with pytest.raises(Unreachable):
            one.visit()
    one.visit()
    tried = [len(r.body) for r in one.posts() if r.path == "/v1/enrol"]
    booked = [c.bytes for c in one.store().contacts() if c.what == "enrolment"]
    assert (booked, len(booked)) == (tried, 3)


@pytest.mark.parametrize("step", ["/v1/enrol", "/v1/checkin"])
def test_who_stops_taking_part_during_a_visit_is_not_said_to_be_there(start, monkeypatch, step):
    devices = start(Federation(rounds=5, devices=2))
    devices.federation.asked = [0]
    if step == "/v1/checkin":
        devices.visit(0, 1)
    store, before = devices.store(1), len(devices.posts())
    agent = devices.agent(1, clock=lambda: 3e9)
    signing = agent._signing_key

    def changes_her_mind():
        store.set_choice(1, Choice(takes_part=False))
        return signing()

    monkeypatch.setattr(agent, "_signing_key", changes_her_mind)
    booked = store.contacts()
    asyncio.run(devices._visit(agent))
    assert len(devices.posts()) == before
    assert store.contacts() == booked


def test_a_visit_with_nothing_new_is_one_short_question(one):
    one.federation.target = 0

    async def visits():
        agent = one.agent()
        await agent.visit()
        await agent.visit()
        before = len(one.server.requests), agent.client.traffic.received
        await agent.visit()
        received = agent.client.traffic.received - before[1]
        await agent.close()
        return len(one.server.requests) - before[0], received

    count, received = asyncio.run(visits())
    assert count == 1
    descriptor = json.dumps(one.federation.descriptor())
    assert received < len(descriptor) + 100, "the descriptor and a short head"


def test_a_round_that_was_answered_is_not_answered_again(start):
    devices = start(Federation(rounds=2, devices=2))
    devices.visit(0, 1)
    devices.visit(0, times=4)
    assert [p[:3] for p in devices.federation.posted] == [(0, 0, 0)]
    devices.visit(1, 0, 1)
    assert devices.federation.state == "finished"


def test_who_comes_while_everyone_is_asked_takes_part_at_once(start):
    federation = Federation(rounds=3, devices=2)
    devices = start(federation)
    federation.state = "open"
    devices.visit(0, 1)
    assert [p[:3] for p in federation.posted] == [(0, 0, 0), (0, 0, 1)]


def test_who_comes_while_others_are_asked_waits_quietly(start):
    federation = Federation(rounds=3, devices=2)
    devices = start(federation)
    federation.state, federation.asked = "open", [0]
    devices.visit(1, times=3)
    assert (federation.posted, federation.checked_in) == ([], [])


# What an owner decides.


@pytest.mark.parametrize("choice", [None, Choice(takes_part=False, share_positives=1.0)])
def test_who_takes_no_part_only_reads(start, choice):
    federation = Federation(rounds=2, devices=1)
    devices = start(federation)
    devices.store(0, choice=choice)
    federation.state = "open"
    devices.visit(times=5)
    assert {request.method for request in devices.server.requests} == {"GET"}
    assert {len(request.body) for request in devices.server.requests} == {0}
    assert devices.store().secret("signing-key") is None
    assert devices.store().ledger().num_rows == 0
    # She has the model all the same, and recommendations from it.
    assert len(devices.hosted().recommend(0, 3)) == 3


def test_the_number_of_a_version_comes_back_from_nobody_who_takes_no_part(start, monkeypatch):
    """A server that gave each device a version of its own would know it again by `since`, from
    whatever address it asks."""
    federation = Federation(rounds=9, devices=2)
    devices, now, went_on = start(federation), 1e9, []
    real = Client.download

    async def download(client, path, limit, *, resume):
        went_on.append(resume)
        return await real(client, path, limit, resume=resume)

    monkeypatch.setattr(Client, "download", download)
    devices.store(1, choice=Choice(takes_part=False))
    federation.state, federation.asked = "open", [0]
    for _ in range(3):
        devices.visit(1, clock=lambda at=now: at)
        devices.visit(0)
        now += 86400
    asked = [r.path for r in devices.server.requests if "model" in r.path]
    seen = [path for path in asked if "since" not in path]
    assert seen == ["/v1/model/0", "/v1/model/0", "/v1/model/1", "/v1/model/2"], asked
    assert devices.hosted(1).model().round == 2
    assert went_on == [False, True] * 3, "nor the place at which a download was cut off"


def test_a_choice_changed_while_the_model_is_on_its_way_is_in_force(one):
    one.visit(times=2)

    def change(request):
        if "/v1/model" in request.path:
            with CohortStore.open(one.path / "device-0") as other_process:
                other_process.set_choice(0, Choice(takes_part=False))

    one.federation.hook = change
    one.visit()
    one.federation.hook = lambda request: None
    one.visit(times=2)
    assert [p[0] for p in one.federation.posted] == [0]
    assert one.store().ledger().num_rows == 1


def test_a_report_of_unknown_fate_is_not_sent_again_against_a_new_choice(one):
    one.visit()
    one.federation.hook = lambda r: Reply(raw=b"") if r.path == "/v1/reports" else None
    with pytest.raises(Unreachable):
        one.visit()
    one.federation.hook = lambda request: None
    before = len(one.posts())
    with CohortStore.open(one.path / "device-0") as other_process:
        other_process.set_choice(0, Choice(takes_part=False))
    one.visit(times=3)
    assert len(one.posts()) == before
    # It may have left, so it stays in the ledger.
    assert one.store().ledger().num_rows == 1


def test_changed_terms_stop_everything_until_the_owner_agrees(one):
    one.visit(times=2)
    federation = one.federation
    assert federation.round == 1
    others = replace(TERMS, algorithm=replace(TERMS.algorithm, learning_rate=0.001))
    federation.terms = others
    for _ in range(3):
        with pytest.raises(ConsentError, match=r"changed the terms.*device agree"):
            one.visit()
    assert len(federation.posted) == 1
    assert one.hosted().terms == TERMS
    one.hosted().agree(others)
    one.visit()
    assert len(federation.posted) == 2
    assert one.hosted().terms == others


# What may be lost on the way.


def test_a_lost_answer_to_an_enrolment(one):
    def lose(request):
        if request.path == "/v1/enrol":
            one.federation.honest(request)
            return Reply(raw=b"")
        return None

    one.federation.hook = lose
    with pytest.raises(Unreachable):
        one.visit()
    one.federation.hook = lambda request: None
    one.visit()
    assert len(one.federation.enrolments) >= 2
    assert len({e["public_key"] for e in one.federation.enrolments}) == 1
    assert one.federation.round == 1


def test_a_lost_answer_to_a_report_is_asked_for_with_the_same_bytes(one):
    one.visit()
    accepted = []

    def lose(request):
        if request.path == "/v1/reports":
            one.federation.honest(request)
            accepted.append(request.body)
            return Reply(raw=b"")
        return None

    one.federation.hook = lose
    with pytest.raises(Unreachable):
        one.visit()
    assert one.hosted().unresolved() is not None
    one.federation.hook = lambda request: None
    one.visit(times=3)
    first = [p[3] for p in one.federation.posted if p[0] == 0]
    assert len(set(first)) == 1
    assert len(first) >= 2
    assert np.array_equal(
        one.federation.server.items, simulated(one.federation.round, users=1).items
    )
    assert one.store().ledger().num_rows == one.federation.round


def test_a_report_that_came_too_late_does_not_count_at_home(one):
    one.visit()
    before = one.hosted().vectors()
    one.federation.hook = lambda r: refusal(410, "late") if r.path == "/v1/reports" else None
    one.visit()
    one.visit()
    assert len([r for r in one.posts() if r.path == "/v1/reports"]) == 1
    assert np.array_equal(one.hosted().vectors(), before)
    assert one.store().ledger().num_rows == 1
    assert ("refused", "late") in [(e, d.get("reason")) for e, d in one.events]


def test_a_round_that_is_tried_again_starts_from_the_same_vectors(start):
    devices = start(Federation(rounds=2, devices=2))
    devices.visit(0, 1)
    devices.visit(0)  # counted, and then the attempt is given up
    devices.federation.abandon()
    devices.visit(0, 1)
    devices.visit(0, 1)
    expected = simulated(2, users=2)
    assert [p[:3] for p in devices.federation.posted][:3] == [(0, 0, 0), (0, 1, 0), (0, 1, 1)]
    assert np.array_equal(devices.federation.server.items, expected.items)
    assert np.array_equal(devices.hosted(0).vectors(), expected.vectors[:1])


@pytest.mark.parametrize("reason", ["second_submission", "malformed", "not_selected", "whatever"])
def test_other_refusals_end_the_round_for_the_device(one, reason):
    one.visit()
    one.federation.hook = lambda r: refusal(400, reason) if r.path == "/v1/reports" else None
    one.visit(times=3)
    assert len([r for r in one.posts() if r.path == "/v1/reports"]) == 1
    one.federation.hook = lambda r: None
    one.federation.abandon()
    one.visit()
    assert one.federation.round == 1


def test_a_server_that_forgot_the_device_is_told_again(one):
    one.visit()
    one.federation.keys.clear()
    one.visit()
    assert one.events[-1][1]["reason"] == "unknown_device"
    one.federation.abandon()
    one.visit()  # enrols again, with the key it has
    assert len(one.federation.enrolments) == 2
    assert len({e["public_key"] for e in one.federation.enrolments}) == 1
    assert one.federation.round == 1


def test_a_device_that_was_shut_out_says_so_once_and_asks_once_a_day(one):
    """It sends nothing more, and goes on by itself when it is let in again."""
    now = [1.8e9]
    one.visit()

    def out(request):
        return refusal(403, "shut_out") if request.method == "POST" else None

    async def live():
        agent = one.agent(clock=lambda: now[0])
        try:
            await agent.visit()  # its report is refused
            for _ in range(5):
                now[0] += 3600
                await agent.visit()
            assert len(one.posts()) == posts + 1
            now[0] += 86400
            await agent.visit()  # asks whether it is let in
            await agent.visit()
            assert [p.path for p in one.posts()][posts:] == ["/v1/reports", "/v1/enrol"]
            assert agent.tally.failures == 0
            one.federation.hook = lambda r: None
            one.federation.abandon()
            await agent.visit()
            assert len(one.posts()) == posts + 2
            now[0] += 86400
            await agent.visit()
        finally:
            await agent.close()

    one.federation.hook, posts = out, len(one.posts())
    asyncio.run(live())
    said = [event for event, _ in one.events]
    assert said.count("shut out") == 1
    assert "failed" not in said
    assert "let in again" in said
    assert expelled(one.store()) is None
    assert one.federation.round == 1


def test_when_somebody_was_shut_out_or_let_in_each_device_asks_once(one):
    """That tells it whether it is meant, in any state of the round; and it goes on by itself when
    it is let in again."""

    def paths():
        return [post.path for post in one.posts()]

    async def live():
        agent = one.agent(clock=lambda: 1.8e9)
        try:
            await agent.visit()
            await agent.visit()  # enrolled, and reported
            one.federation.state, one.federation.roster = "finished", "a"
            sent = len(paths())
            for _ in range(3):
                await agent.visit()
            assert paths()[sent:] == ["/v1/checkin"], "somebody else was meant"
            one.federation.roster = "b"
            one.federation.hook = out
            for _ in range(3):
                await agent.visit()
            assert paths()[sent:] == ["/v1/checkin"] * 2
            assert expelled(one.store()).said.key == "quiet.shut_out_server"
            one.federation.roster = "c"  # of somebody else
            for _ in range(3):
                await agent.visit()
            assert paths()[sent:] == ["/v1/checkin"] * 2 + ["/v1/enrol"]
            one.federation.roster, one.federation.hook = "d", lambda r: None
            for _ in range(3):
                await agent.visit()
            assert paths()[sent:] == ["/v1/checkin"] * 2 + ["/v1/enrol"] * 2
            assert expelled(one.store()) is None
            assert agent.tally.failures == 0
        finally:
            await agent.close()

    def out(request):
        return refusal(403, "shut_out") if request.method == "POST" else None

    asyncio.run(live())
    said = [event for event, _ in one.events]
    assert (said.count("shut out"), said.count("let in again")) == (1, 1)


def test_a_report_is_asking_enough_whether_one_is_in(one):
    one.visit()
    one.federation.roster = "a"
    one.visit(times=3)
    assert not [post for post in one.posts() if post.path == "/v1/checkin"]


def test_who_has_not_agreed_does_not_ask_because_the_roster_has_changed(one):
    one.visit()
    one.federation.state, posts = "finished", len(one.posts())
    one.store().set_choice(0, Choice(takes_part=False))
    one.federation.roster = "a"
    one.visit(times=2)
    one.store().set_choice(0, CHOICE)
    other = replace(TERMS.algorithm, learning_rate=0.001)
    one.federation.terms = replace(TERMS, algorithm=other)
    with pytest.raises(ConsentError):
        one.visit()
    one.federation.terms = TERMS
    one.store().set_stopped(True)
    asyncio.run(one.agent().run(once=True))
    assert len(one.posts()) == posts
    one.store().set_stopped(False)
    one.visit()
    assert len(one.posts()) == posts + 1


def test_a_device_that_was_shut_out_still_gets_what_is_published(one):
    one.visit()
    one.federation.hook = lambda r: refusal(403, "shut_out") if r.method == "POST" else None
    one.visit()
    one.federation.state = "finished"
    with contextlib.suppress(ConsentError):
        one.visit()
    found = expelled(one.store())
    assert found.said.key == "quiet.shut_out_server", "whoever says nothing known did it itself"
    assert one.hosted().model_round() == one.federation.round
    one.federation.hook = lambda r: None
    one.visit()  # a new start asks at once
    assert expelled(one.store()) is None


@pytest.mark.parametrize(
    ("detail", "key"), [(WITHDRAWN, "withdrawn"), (SHUT_OUT_BY_OPERATOR, "shut_out")]
)
def test_an_invitation_that_was_withdrawn_is_told_in_one_sentence(one, detail, key):
    body = json.dumps({"error": "shut_out", "detail": detail}).encode()
    one.federation.hook = lambda r: Reply(403, body) if r.path == "/v1/enrol" else None
    one.visit(times=2)
    told = [details["why"] for event, details in one.events if event == "shut out"]
    assert told == [detail, detail], "once at each start"
    assert expelled(one.store()).said.key == f"quiet.{key}"


def test_an_invitation_that_was_used_by_another(one):
    one.federation.keys[0] = "ab" * 32
    with pytest.raises(KeyTrouble, match="used before; ask the operator") as caught:
        one.visit()
    assert one.federation.tokens[0].hex() not in str(caught.value)


# Being asked.


def test_only_those_on_the_list_report(start):
    devices = start(Federation(rounds=2, devices=3))
    devices.visit(0, 1, 2)
    devices.federation.asked = [0, 2]
    devices.visit(0, 1, 2)
    assert {p[2] for p in devices.federation.posted if p[0] == 0} == {0, 2}


def test_who_is_never_asked_checks_in_at_most_hourly(start):
    devices = start(Federation(rounds=2, devices=2))
    now = [1e9]
    devices.visit(0, 1, clock=lambda: now[0])
    devices.federation.asked = [0]
    now[0] += 4000
    for _ in range(5):
        devices.visit(1, clock=lambda: now[0])
        now[0] += 600
    assert devices.federation.checked_in == [1]
    now[0] += 3600
    devices.visit(1, clock=lambda: now[0])
    now[0] -= 1e8  # a clock that jumps back does not silence the device
    devices.visit(1, clock=lambda: now[0])
    assert devices.federation.checked_in == [1, 1, 1]


def test_who_comes_back_checks_in_at_once(start):
    devices = start(Federation(rounds=2, devices=2))
    devices.visit(0, 1)
    devices.federation.asked = [0]
    run(devices, 4, number=1)
    run(devices, 4, number=1)
    assert devices.federation.checked_in == [1, 1]


def test_a_server_that_waits_for_those_it_gave_up_hears_from_them(start):
    """Where everybody fell silent no round is open; without a sign of life none ever would be."""
    devices = start(Federation(rounds=3, devices=2))
    devices.visit(0, 1)
    assert devices.federation.checked_in == []  # at the very start nobody was given up
    devices.visit(0, 1)
    assert devices.federation.round == 1
    devices.federation.state = "waiting"
    run(devices, 2, number=0)
    assert devices.federation.checked_in == [0]


def test_a_second_outage_within_the_hour_is_no_silence(start):
    """Once for each attempt that the server waits with, also where every visit is a new agent."""
    devices = start(Federation(rounds=3, devices=2))
    devices.visit(0, 1)
    devices.visit(0, 1)
    federation = devices.federation
    federation.state = "waiting"
    for attempt in range(1, 4):
        federation.abandon()
        devices.visit(0, times=3)
        assert federation.checked_in == [0] * attempt


def test_a_server_that_has_the_report_is_told_nothing_while_it_adds_up(start):
    devices = start(Federation(rounds=3, devices=2))
    devices.visit(0, 1)
    devices.visit(0, 1)
    devices.visit(0)
    devices.federation.state = "waiting"
    devices.visit(0, times=2)
    assert devices.federation.checked_in == []


def test_an_attempt_that_was_given_up_is_not_sent_again(one):
    one.visit()
    one.federation.hook = lambda r: Reply(raw=b"") if r.path == "/v1/reports" else None
    with pytest.raises(Unreachable):
        one.visit()
    one.federation.hook = lambda r: None
    one.federation.abandon()
    one.visit()
    assert [p[:2] for p in one.federation.posted] == [(0, 1)]


def test_a_list_that_is_cut_short(one):
    one.visit()
    one.federation.asked = [0]
    one.federation.hook = lambda r: Reply(200, b"12345") if "selected" in r.path else None
    with pytest.raises(MessageError, match="cut short"):
        one.visit()


def test_a_model_that_is_gone_is_looked_for_again(one):
    one.visit(times=2)
    one.federation.hook = lambda r: refusal(410, "gone") if "model" in r.path else None
    with pytest.raises(Unreachable, match="went on"):
        one.visit()
    one.federation.hook = lambda r: None
    one.visit()
    assert one.federation.round == 2


def test_changes_that_do_not_fit_are_replaced_by_the_whole_model(one):
    one.visit(times=2)

    def wrong(request):
        if "since=" in request.path:
            return Reply(200, b"SVD1 is not a change", {"ETag": '"x"'})
        return None

    one.federation.hook = wrong
    one.visit(times=2)
    assert np.array_equal(
        one.federation.server.items, simulated(one.federation.round, users=1).items
    )


def test_who_is_not_asked_fetches_the_model_once_a_day(start):
    devices = start(Federation(rounds=9, devices=2))
    now = [1e9]
    devices.visit(0, 1, clock=lambda: now[0])
    devices.federation.asked = [0]
    for _ in range(4):
        devices.visit(1, 0, clock=lambda: now[0])
    devices.visit(1, clock=lambda: now[0])
    before = [r.path for r in devices.server.requests].count("/v1/model/4")
    now[0] += 86400
    devices.visit(1, clock=lambda: now[0])
    after = [r.path for r in devices.server.requests].count("/v1/model/4")
    assert (before, after) == (0, 1)


# Servers that are not what they should be.


def versions_of(federation, published):
    """The federation keeps all of its models, and says by which to recommend."""
    kept, honest = {}, federation.honest

    def answer(request):
        path = request.path.partition("?")[0]
        kept[federation.round] = federation.server.publish()
        if path == "/v1/round":
            table = {**federation.descriptor(), "published": published[0]}
            return Reply(200, json.dumps(table).encode())
        if path.startswith("/v1/model/") and int(path.split("/")[-1]) != federation.round:
            return Reply(200, encode_model(kept[int(path.split("/")[-1])]))
        return honest(request)

    federation.honest = answer
    return kept


def test_a_device_learns_from_the_newest_and_recommends_by_the_published(start):
    devices = start(Federation(rounds=4, devices=6))
    published = [0]
    kept = versions_of(devices.federation, published)
    devices.visit(*range(6))
    for version in (0, 2, 2, 1):  # also back to an earlier one
        published[0] = min(version, devices.federation.round)
        devices.visit(*range(6))
        found = devices.hosted(0).model()
        assert found.round == published[0]
        assert np.array_equal(found.items, kept[published[0]].items)
    devices.visit(*range(6), times=3)
    # What is learnt is what it would have been.
    assert np.array_equal(devices.federation.server.items, simulated(4).items)
    assert devices.hosted(5).model().round == 1


def test_the_model_of_a_round_is_fetched_once_by_one_agent(one):
    versions_of(one.federation, [0])
    one.visit(times=2)
    assert one.federation.round == 1
    agent = one.agent()
    one.federation.hook = lambda r: refusal(503, "busy") if r.path == "/v1/reports" else None

    async def thrice():
        for _ in range(3):
            with contextlib.suppress(Unreachable):
                await agent.visit()
        await agent.close()

    asyncio.run(thrice())
    asked = [r.path for r in one.server.requests if r.path.startswith("/v1/model/1")]
    assert len(asked) == 1


@pytest.mark.parametrize("protocol", [0, 1, "2", None])
def test_another_version_is_one_sentence(one, protocol):
    one.federation.protocol = protocol
    with pytest.raises(VersionMismatch, match=r"install the same release .* on both sides"):
        one.visit()
    assert one.posts() == []


def test_a_server_that_finds_the_version_wrong(one):
    one.visit()
    one.federation.hook = lambda r: refusal(426, "version") if r.path == "/v1/reports" else None
    with pytest.raises(VersionMismatch, match="install the same release"):
        one.visit()
    one.federation.hook = lambda r: None
    one.visit()
    assert one.federation.round >= 1


def test_another_federation_gets_nothing(one):
    one.store()
    one.federation.terms = replace(TERMS, federation="other")
    with pytest.raises(MessageError, match="another federation than town-1"):
        one.visit()
    assert one.posts() == []


GOOD = Federation().descriptor()


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"round": True},
        {"round": 2**32},
        {"attempt": "0"},
        {"model": None},
        {"state": "closed"},
        {"selection": "some"},
        {"poll_seconds": "60"},
        {"poll_seconds": float("nan")},
        {"poll_seconds": 10**400},
        {"poll_seconds": True},
        {"terms": 1},
        {"federation": None},
        {"published": -1},
        {"published": "1"},
        {"published": True},
        {"roster": 7},
        {"roster": None},
        {"roster": "x" * 65},
    ],
)
def test_a_descriptor_that_makes_no_sense(change):
    assert Descriptor.from_table(GOOD | {"more": 1}).published is None
    assert Descriptor.from_table(GOOD | {"published": 0}).published == 0
    with pytest.raises(MessageError, match="makes no sense"):
        Descriptor.from_table(GOOD | change)


@pytest.mark.parametrize("items", [None, [], [["a", "b"]], [["x", 1]] * 20, [["x", "y"]] * 20])
def test_a_catalogue_that_makes_no_sense(one, items):
    body = json.dumps({"items": items}).encode()
    one.federation.hook = lambda r: Reply(200, body) if "catalogue" in r.path else None
    with pytest.raises(Exception, match="catalogue"):
        one.visit()
    assert one.posts() == []


@pytest.mark.parametrize("path", ["/v1/round", "/v1/terms", "/v1/catalogue", "/v1/model/0"])
@pytest.mark.parametrize("status", [200, 400, 404, 500, 503])
def test_garbage_from_every_address_loses_nothing(one, path, status):
    garbage = Reply(status, b"\xff<html>" * 10)
    one.federation.hook = lambda r: garbage if r.path == path else None
    with pytest.raises((Unreachable, MessageError)):
        one.visit(times=2)
    one.federation.hook = lambda r: None
    one.visit(times=2)
    assert one.federation.round >= 1
    assert np.array_equal(
        one.federation.server.items, simulated(one.federation.round, users=1).items
    )


# The store.


def test_a_full_disk_loses_nothing_and_sends_nothing(start):
    one = start(Federation(rounds=60, devices=1))
    one.visit(times=2)
    store = one.store()
    unlimited = store.file.pragma("max_page_count")
    store.file.pragma("max_page_count", store.file.pragma("page_count"))
    with pytest.raises(StoreError, match="no space left"):
        one.visit(times=55)
    sent = len(one.federation.posted)
    for _ in range(2):
        with pytest.raises(StoreError, match="no space left"):
            one.visit()
    assert len(one.federation.posted) == sent
    assert store.ledger().num_rows in (sent, sent + 1)
    assert sum(spent.releases for spent in store.budget()) == store.ledger().num_rows
    store.file.pragma("max_page_count", unlimited)
    one.visit(times=60)
    assert one.federation.state == "finished"
    assert np.array_equal(one.federation.server.items, simulated(60, users=1).items)


def test_a_store_without_an_invitation_or_with_many_users(tmp_path):
    with (
        CohortStore.create(tmp_path / "a", [(0, "x")]) as store,
        pytest.raises(UsageError, match=r"no invitation; .*device init"),
    ):
        Agent(store)
    with (
        CohortStore.create(tmp_path / "b", [(0, "x"), (1, "y")]) as store,
        pytest.raises(UsageError, match="holds 2 users"),
    ):
        Agent(store)


def test_who_has_no_history_sends_nothing(one):
    path = one.path / "device-0"
    make_store(path, one.federation, one.server.url, one.ca)
    with CohortStore.open(path) as store:
        store.file.write("DELETE FROM history")
    one.visit(times=3)
    assert one.federation.posted == []
    assert ("nothing sent", "there is no history to learn from yet") in [
        (event, details.get("why")) for event, details in one.events
    ]


def test_logs_name_no_item_and_no_secret(one):
    one.visit(times=3)
    text = json.dumps(one.events)
    assert "counted" in text
    for item, title in CATALOGUE:
        assert item not in text
        assert title not in text
    assert one.federation.tokens[0].hex() not in text
    assert one.store().secret("signing-key").hex() not in text


REVEALING = replace(TERMS, algorithm=replace(TERMS.algorithm, triples=30))


@pytest.mark.parametrize(("terms", "why"), [(TERMS, "nobody has agreed"), (REVEALING, "30 draws")])
def test_the_first_contact_fetches_the_terms_and_stops_until_the_owner_agrees(start, terms, why):
    """Taking part is no agreement to terms that she has not seen: she is not even enrolled."""
    devices = start(Federation(rounds=2, devices=1, terms=terms))
    devices.federation.state, devices.foreseen = "open", ""
    for _ in range(2):
        with pytest.raises(ConsentError, match=rf"{why}.*device agree .*nothing leaves"):
            devices.visit()
    assert {request.method for request in devices.server.requests} == {"GET"}
    assert devices.store().secret("signing-key") is None
    assert len(devices.hosted().recommend(0, 3)) == 3  # it is served all the same
    devices.hosted().agree(terms)
    devices.visit()
    devices.visit()
    assert (0, 0, 0) in [p[:3] for p in devices.federation.posted]


def test_a_server_that_goes_back_to_what_was_agreed_is_served_again(one):
    one.visit(times=2)
    before = len(one.federation.posted)
    one.federation.terms = REVEALING
    with pytest.raises(ConsentError, match="changed the terms"):
        one.visit()
    one.federation.terms = TERMS
    one.visit(times=2)
    assert len(one.federation.posted) > before


# A server that means ill.


@pytest.mark.parametrize(("n_items", "size"), [(200_000, 4095), (2**40, 1), (2**200, 1)])
def test_a_model_too_large_for_a_device_is_not_even_asked_for(one, n_items, size):
    algorithm = one.federation.terms.to_table()["algorithm"] | {"embedding_size": size}
    large = one.federation.terms.to_table() | {"n_items": n_items, "algorithm": algorithm}

    def hook(request):
        told = json.dumps(large).encode()
        return Reply(200, told) if request.path == "/v1/terms" else None

    one.federation.hook = hook
    with pytest.raises(MessageError, match=r"larger than 512 MiB"):
        one.visit()
    assert one.hosted().terms is None
    assert {r.path for r in one.server.requests} == {"/v1/round", "/v1/terms"}


@pytest.mark.parametrize("packed", [False, True])
def test_a_catalogue_too_large_for_its_items_is_thrown_away(one, packed):
    content = json.dumps({"items": [[item, "x" * 10_000] for item, _ in CATALOGUE]}).encode()
    headers = {"Content-Encoding": "zstd"} if packed else {}
    if packed:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(content)
        content = sink.getvalue().to_pybytes()
        assert len(content) < 10_000
    one.federation.hook = lambda r: (
        Reply(200, content, headers) if r.path == "/v1/catalogue" else None
    )
    with pytest.raises(Unreachable, match="far more than it should"):
        one.visit()
    assert one.store().catalogue() == []


@pytest.mark.parametrize("place", [0, 1])
def test_text_that_cannot_be_stored_is_no_catalogue(one, place):
    items = [list(item) for item in CATALOGUE]
    items[3][place] = "\ud800"
    content = json.dumps({"items": items}).encode()
    one.federation.hook = lambda r: Reply(200, content) if r.path == "/v1/catalogue" else None
    with pytest.raises(MessageError, match="catalogue"):
        one.visit()
    assert one.store().catalogue() == []


@pytest.mark.parametrize("error", [ValueError, MemoryError, KeyError, OverflowError])
def test_a_fault_is_one_sentence_without_its_words(one, monkeypatch, error):
    def broken(*_, **__):
        raise error("venue-7")

    one.visit()
    monkeypatch.setattr(DeviceSession, "prepare", broken)
    waits, agent = run(one, 2)
    assert (len(waits), agent.tally.failures) == (2, 2)
    told = [details["why"] for event, details in one.events if event == "failed"]
    assert error.__name__ in told[0]
    assert "venue-7" not in told[0]
    with pytest.raises(ServiceError, match=error.__name__):
        asyncio.run(one.agent().run(once=True))


# Waiting.


class Waits(Exception):
    """Ends a run after so many waits."""


def run(one, count, *, draw=lambda: 0.5, **settings):
    """The first waits of a run, none of them waited for."""
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        if len(waits) == count:
            raise Waits

    async def whole():
        agent = one.agent(sleep=sleep, draw=draw, **settings)
        try:
            with pytest.raises(Waits):
                await agent.run()
        finally:
            await agent.close()
        return agent

    return waits, asyncio.run(whole())


def test_polls_are_spread_around_what_the_server_says(one):
    one.federation.poll_seconds = 60
    for draw, expected in ((0.0, 45), (0.5, 60), (0.999, 75)):
        waits, _ = run(one, 2, draw=lambda draw=draw: draw)
        assert waits == pytest.approx([expected] * 2, rel=0.01)
    assert run(one, 1, poll=7.0)[0] == [7.0]


def test_failures_back_off_to_a_quarter_of_an_hour_and_recover(one):
    one.federation.poll_seconds = 60
    one.visit()
    calls = []

    def down(request):
        calls.append(request.path)
        return Reply(500) if 1 < calls.count("/v1/round") < 9 else None

    one.federation.hook = down
    waits, agent = run(one, 12, draw=lambda: 1.0)
    assert waits[:9] == pytest.approx([75, 60, 120, 240, 480, 900, 900, 900, 75])
    assert agent.tally.failures == 7
    failures = [details for event, details in one.events if event == "failed"]
    assert len(failures) == 7
    assert "fault of its own" in failures[0]["why"]


def test_retry_after_is_honoured(one):
    one.federation.poll_seconds = 1
    busy = Reply(503, b"{}", {"Retry-After": "300"})
    one.federation.hook = lambda r: busy
    waits, _ = run(one, 3, draw=lambda: 0.0)
    assert waits == [300, 300, 300]
    waits, _ = run(one, 1, draw=lambda: 1.0)
    assert waits == pytest.approx([330])


def test_a_server_elsewhere_cannot_make_a_device_ask_without_a_pause():
    for told in (-5.0, 0.0, 0.05, 1.0):
        assert Pace(draw=lambda: 0.5).after_success(told) == 1.0
        assert Pace(0.2, lambda: 0.5).after_success(told) == 0.2  # her own word
    assert Pace(draw=lambda: 0.5, near=True).after_success(0.05) == 0.05


def test_no_connection_is_open_during_a_long_wait(one):
    one.federation.poll_seconds = 60
    run(one, 4)
    assert len({r.connection for r in one.server.requests}) == 4
    one.server.requests.clear()
    run(one, 6, poll=0.1)
    assert len({r.connection for r in one.server.requests}) == 1


@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(0, 1e6), st.floats(0, 86400), st.floats(0, 1)),
        max_size=40,
    ),
    st.none() | st.floats(0.01, 1e5),
)
def test_waits_are_never_absurd(steps, fixed):
    draws = iter([])
    pace = Pace(fixed, lambda: next(draws))
    for good, told, retry_after, drawn in steps:
        draws = iter([drawn] * 2)
        wait = pace.after_success(told) if good else pace.after_failure(retry_after)
        poll = pace._poll
        if good:
            assert 0.75 * poll <= wait <= 1.25 * poll
        else:
            assert wait >= retry_after
            assert wait >= 0.5 * min(poll, LONGEST_BACK_OFF)
            assert wait <= max(LONGEST_BACK_OFF, poll, 1.1 * retry_after)


def published(federation, items, **more):
    """The server has another catalogue from now on."""
    content = json.dumps({"items": items, **more}).encode()
    told = {"catalogue": catalogue_name(content)}
    federation.hook = lambda r: (
        Reply(200, content)
        if r.path == "/v1/catalogue"
        else Reply(200, json.dumps({**federation.descriptor(), **told}).encode())
        if r.path == "/v1/round"
        else None
    )


def test_items_that_come_and_go_reach_a_device_and_none_takes_anothers_place(one):
    before = [list(item) for item in CATALOGUE]
    before[-1] = ["~spare-last", ""]
    published(one.federation, before)
    one.federation.state = "open"
    one.visit()
    asked = [r.path for r in one.server.requests].count("/v1/catalogue")
    one.visit()
    assert [r.path for r in one.server.requests].count("/v1/catalogue") == asked, "it is known"
    after = [[before[0][0], ""], *before[1:-1], ["new", "New"]]
    published(one.federation, after)
    one.visit()
    assert one.store().catalogue() == [tuple(item) for item in after]
    named = [item for item, _, _ in one.hosted().recommend(0, len(after))]
    assert before[0][0] not in named
    assert "~spare-last" not in named
    # Two items that have changed places would make her history another's.
    wrong = [after[0], after[2], after[1], *after[3:]]
    published(one.federation, wrong)
    posts = len(one.posts())
    with pytest.raises(MessageError, match="in the place of"):
        one.visit()
    assert one.store().catalogue() == [tuple(item) for item in after]
    (refusal,) = one.posts()[posts:]
    assert (refusal.path, refusal.body[-9:]) == ("/v1/checkin", b"catalogue"), "once, and no more"
    with pytest.raises(MessageError, match="in the place of"):
        one.visit()
    assert len(one.posts()) == posts + 1


def test_an_item_that_is_kept_back_does_not_move_by_an_id_of_a_place_to_spare(one):
    """In the place of an item to be, with a category that the user keeps back; then the place is
    free, and the same id stands in another place, in another category."""
    before = [list(item) for item in CATALOGUE]
    before[-2] = ["~spare-7", "Clinic"]
    of = [[0] if item == before[-2] else [] for item in before]
    published(one.federation, before, categories={"names": ["Health"], "of": of})
    one.federation.state = "open"
    known = one.store().catalogue()
    with pytest.raises(MessageError, match="reserved for places without an item"):
        one.visit()
    assert one.store().catalogue() == known


def test_categories_reach_a_device_and_none_is_taken_back(one):
    items = [list(item) for item in CATALOGUE]
    none = [()] * len(items)
    published(one.federation, items)
    one.visit()
    assert one.store().categories() == none
    first = {"names": ["Fun", "Shop"], "of": [[0, 1], *([] for _ in items[1:])]}
    published(one.federation, items, categories=first)
    one.visit()
    assert one.store().categories() == [("Fun", "Shop"), *none[1:]]
    # What she never sends by a category's name stays where it is, whatever a server says later.
    later = {"names": ["Food"], "of": [[], [0], *([] for _ in items[2:])]}
    published(one.federation, items, categories=later)
    one.visit()
    assert one.store().categories() == [("Fun", "Shop"), ("Food",), *none[2:]]
    published(one.federation, items, categories={"names": ["Food"], "of": [[0]]})
    posts = len(one.posts())
    with pytest.raises(MessageError, match="categories"):
        one.visit()
    assert len(one.posts()) == posts
    assert one.store().categories() == [("Fun", "Shop"), ("Food",), *none[2:]]


def test_what_is_never_sent_by_its_title_stays_so_when_a_server_calls_it_otherwise(one):
    items = [list(item) for item in CATALOGUE]
    published(one.federation, items)
    one.visit()
    for title in ("", "Harmless", items[1][1]):
        published(one.federation, [items[0], [items[1][0], title], *items[2:]])
        one.visit()
        assert one.store().catalogue()[1][1] == title
        named = things_named(one.store(), [items[1][1]])
        assert named[items[1][1]].tolist() == [1]
    assert one.store().former_titles()[1] == ("Harmless",)
