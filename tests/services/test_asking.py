"""A user who is asked each time: she looks while her agent runs, nothing leaves before her yes, and
what she says no to costs nothing."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from consent_world import GramTown, gram_terms, newcomer
from fake_federation import CATALOGUE, CHOICE, TERMS, Federation, make_store
from forked import COMMAND, ForkedProcess

from sottovoce.cli import call
from sottovoce.core import waiting
from sottovoce.errors import ConsentError, Told, UsageError
from sottovoce.services.agent.by_hand import AskingAgent
from sottovoce.stores import timeline, word
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.web.centre import Centre


@pytest.fixture
def town(tmp_path):
    return GramTown(gram_terms(tmp_path))


@pytest.fixture
def her(tmp_path, town):
    """Her store: she has agreed, takes part, and is asked each time. A round opens when she has
    enrolled."""
    with town.serve() as server:
        newcomer(tmp_path / "me", town, server.url)
        with Centre([tmp_path / "me"], plaintext=True) as centre:
            centre.preview("s0")
            centre.agree("s0", state(centre)["terms"]["digest"])
            choice = {"takes_part": True, "epsilon": 1.0, "total_epsilon": 8.0, "asks_first": True}
            centre.choose("s0", choice)
        yield tmp_path / "me"


def state(centre):
    (found,) = centre.state()["stores"]
    return found


class Running:
    """Her agent, visiting again and again in a thread of its own, with the store's lock."""

    def __init__(self, path):
        self.events, self.store = [], CohortStore.open(path, agent=True)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        def log(event, **details):
            self.events.append((event, details))

        agent = AskingAgent(self.store, plaintext=True, poll=0.05, log=log)
        self.task = self.loop.create_task(agent.run())
        try:
            self.loop.run_until_complete(self.task)
        except asyncio.CancelledError:
            self.loop.run_until_complete(agent.close())

    def until(self, condition):
        end = time.monotonic() + 600
        while not condition():
            assert time.monotonic() < end, self.events
            time.sleep(0.01)

    def asked(self):
        return [details for event, details in self.events if event == "waits for your word"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join()
        self.loop.close()
        self.store.close()


def posts(town):
    return [one for one in town.heard if one.method == "POST"]


def test_she_looks_through_the_running_agent_and_nothing_leaves_before_her_yes(her, town):
    with Running(her) as agent, Centre([her], plaintext=True) as centre:
        agent.until(agent.asked)
        assert posts(town) == [], "not even that she is there"
        first = centre.preview("s0")
        assert first["messages"][0]["what"]["key"] == "preview.enrolment"
        bodies = [centre.body("s0", n) for n in range(len(first["messages"]))]
        assert posts(town) == []
        assert centre.send("s0", first["nonce"])["state"] == "arrived"
        assert [one.body for one in posts(town)] == bodies
        while not town.bodies():  # the enrolment first, then the report
            shown = centre.preview("s0")
            body = centre.body("s0", 0)
            assert posts(town)[-1].body == bodies[-1]
            assert centre.send("s0", shown["nonce"])["state"] == "arrived"
            assert town.bodies() == [body]
        # The next round is another message, and she is asked again.
        before, asked = len(posts(town)), len(agent.asked())
        town.next_round()
        agent.until(lambda: len(agent.asked()) > asked)
        assert agent.asked()[-1]["round"] == 1
        visits = len(town.heard)
        agent.until(lambda: len(town.heard) > visits + 10)
        assert len(posts(town)) == before
        spent = state(centre)["contributions"]
        again = centre.preview("s0")
        assert again["round"] == 1
        assert spent == 1


def report_shown(centre):
    """What is shown once she is enrolled."""
    shown = centre.preview("s0")
    if shown["round"] is None:
        centre.send("s0", shown["nonce"])
        shown = centre.preview("s0")
    return shown


def test_what_she_says_no_to_is_booked_as_not_sent_and_costs_nothing(her, town):
    with Centre([her], plaintext=True) as centre:
        shown = report_shown(centre)
        with CohortStore.open(her) as store:
            lines, spent = timeline.count(store.file, 0), store.budget(0)
        assert centre.decline("s0", shown["nonce"])["said"]["key"] == "preview.declined"
        with CohortStore.open(her) as store:
            latest = DeviceSession(store).latest()
            assert latest.state == "dropped"
            assert store.file.value("SELECT reason FROM rounds") == "not sent: its user said no"
            assert (timeline.count(store.file, 0), store.budget(0)) == (lines, spent)
        assert centre.preview("s0")["said"]["key"] == "quiet.declined"
        with pytest.raises(Told, match="changed"):
            centre.send("s0", shown["nonce"])
        with pytest.raises(Told, match="changed"):
            centre.decline("s0", shown["nonce"])
    before = len(posts(town))
    with Running(her) as agent:
        visits = len(town.heard)
        agent.until(lambda: len(town.heard) > visits + 10)
        assert agent.asked() == [], "she is not asked for the same round again"
        town.next_round()
        agent.until(agent.asked)
        assert agent.asked()[-1]["round"] == 1
    assert len(posts(town)) == before
    assert town.bodies() == []


def test_a_no_to_an_enrolment_and_a_report_is_a_no_to_both(her, town):
    town.state = "open"
    with Centre([her], plaintext=True) as centre:
        shown = centre.preview("s0")
        assert len(shown["messages"]) == 2
        centre.decline("s0", shown["nonce"])
        assert centre.preview("s0")["said"]["key"] == "quiet.declined"
        town.next_round()
        assert len(centre.preview("s0")["messages"]) == 2
    assert posts(town) == []


def test_a_yes_is_for_these_bytes_alone(her, town):
    with Centre([her], plaintext=True) as centre:
        shown = report_shown(centre)
        before = len(posts(town))
        with CohortStore.open(her) as store:
            session = DeviceSession(store)
            with pytest.raises(ConsentError, match="has not said yes"):
                session.leaving(session.latest())
            with pytest.raises(ConsentError, match="has not said yes"):
                session.contact("check-in", "server", b"x")
            word.allow(store, [word.of_report(session.latest().nonce)])
        # Her choice is another one now, and so is the message.
        centre.choose("s0", {"never_send": ["Food"]})
    with Running(her) as agent:
        agent.until(agent.asked)
    assert len(posts(town)) == before
    with Centre([her], plaintext=True) as centre:
        assert centre.preview("s0")["nonce"] != shown["nonce"]


def test_when_she_is_no_longer_asked_the_agent_goes_on_by_itself(her, town):
    with Running(her) as agent, Centre([her], plaintext=True) as centre:
        agent.until(agent.asked)
        assert posts(town) == []
        centre.choose("s0", {"asks_first": False})
        agent.until(town.bodies)
        # She can still look, and what she sees is not hers to send.
        town.next_round()
        shown = centre.preview("s0")
        assert shown["nonce"] is None
        with pytest.raises(Told, match="sends"):
            centre.send("s0", "0" * 32)


def test_a_yes_without_an_agent_is_sent_from_the_page(her, town):
    with Centre([her], plaintext=True) as centre:
        shown = report_shown(centre)
        body = centre.body("s0", len(shown["messages"]) - 1)
        assert centre.send("s0", shown["nonce"])["state"] == "arrived"
        assert town.bodies() == [body]


def test_a_check_in_waits_for_her_word_once(tmp_path):
    """She was given up, and the server waits."""
    federation = Federation(rounds=9, devices=2)
    with federation.serve() as server:
        path = make_store(tmp_path / "me", federation, server.url, "", 0)
        with Centre([path], plaintext=True) as centre:
            centre.preview("s0")
            with CohortStore.open(path) as store:
                DeviceSession(store).agree(TERMS)
                word.set_asks_first(store, True)
            federation.state, federation.attempt = "waiting", 1
            shown = centre.preview("s0")
            centre.send("s0", shown["nonce"])  # enrols
            with running_there(centre, path) as agent:
                agent.until(agent.asked)
                assert federation.checked_in == []
                shown = centre.preview("s0")
                assert [one["what"]["key"] for one in shown["messages"]] == ["preview.check_in"]
                assert centre.send("s0", shown["nonce"])["state"] == "arrived"
                assert len(federation.checked_in) == 1
                assert centre.preview("s0")["messages"] == []


def test_why_rounds_wait_and_why_nothing_is_sent_is_in_the_log(tmp_path):
    federation = Federation(rounds=9)
    describe, federation.state = federation.descriptor, "open"
    federation.descriptor = lambda: {**describe(), "waits": "reports"}
    kept_back = replace(CHOICE, never_send=tuple(item for item, _ in CATALOGUE))
    with federation.serve() as server:
        path = make_store(tmp_path / "me", federation, server.url, choice=kept_back)
        with Centre([path], plaintext=True) as centre:
            centre.preview("s0")
            with CohortStore.open(path) as store:
                DeviceSession(store).agree(TERMS)
                word.set_asks_first(store, True)
            centre.send("s0", centre.preview("s0")["nonce"])  # enrols
            with running_there(centre, path) as agent:
                agent.until(lambda: len(agent.events) > 1)
            said = {event: details["why"] for event, details in agent.events}
    assert said == {
        "round waits": waiting.words("reports"),
        "nothing sent": waiting.words("kept_back"),
    }


def running_there(centre, path):
    """An agent beside a page that has been the agent until now."""
    (desk,) = centre._desks.values()
    desk.store.file._lock.close()
    desk.store.file._lock, desk.serves = None, False
    return Running(path)


def test_a_store_of_several_cannot_be_asked(tmp_path):
    with CohortStore.create(tmp_path / "many", [(0, "a"), (1, "b")]) as store:
        with pytest.raises(UsageError, match="several people"):
            word.set_asks_first(store, True)
        store.set_secret("asks-first", b"1")
        DeviceSession(store).agree(TERMS)
        with pytest.raises(ConsentError, match="a gateway asks nobody"):
            DeviceSession(store).willing()


def test_who_leaves_and_joins_again_is_still_asked(tmp_path):
    with CohortStore.create(tmp_path / "me", [(0, "me")]) as store:
        word.set_asks_first(store, True)
        store.leave_federation()
        assert word.asks_first(store)


def told(capsys, *words):
    assert call([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_with_real_processes_she_looks_says_no_and_says_yes(her, town, capsys):
    """`serve device` runs all the time; she types commands beside it."""
    assert told(capsys, "device", "consent", her)["ask_first"] is True
    agent = ForkedProcess(COMMAND, "serve", "device", her, "--poll", "0.05", "--plaintext")
    try:
        preview = "device", "preview", her, "--plaintext"
        with CohortStore.open(her, readonly=True) as store:
            while not store.file.served():
                assert agent.poll() is None
                time.sleep(0.02)
        shown = told(capsys, *preview)["preview"]
        assert shown["nonce"]
        assert posts(town) == []
        assert told(capsys, *preview, "--send", "--yes")["sent"]["state"] == "arrived"
        assert len(town.enrolments) == 1
        assert told(capsys, *preview, "--decline")["sent"]["state"] == "declined"
        assert told(capsys, *preview)["preview"]["ready"] is False
        assert town.bodies() == []
        with CohortStore.open(her, readonly=True) as store:
            assert store.budget(0) == []
        town.next_round()
        with Centre([her], plaintext=True) as page:
            shown = page.preview("s0")
            assert shown["round"] == 1
            body = page.body("s0", 0)
            assert town.bodies() == []
            assert page.send("s0", shown["nonce"])["state"] == "arrived"
        assert town.bodies() == [body]
        assert agent.poll() is None
        told(capsys, "device", "consent", her, "--by-itself")
    finally:
        agent.terminate()
        _, lines = agent.communicate(timeout=60)
    events = [json.loads(line) for line in lines.splitlines()]
    asked = [one["round"] for one in events if one["event"] == "waits for your word"]
    assert sorted({*asked}) == [0, 1]
    assert [one["round"] for one in events if one["event"] == "counted"] == [1]


def test_the_commands_of_the_page_do_what_it_says(her, town, capsys):
    page = (Path(__file__).parents[2] / "docs" / "deploy" / "users.md").read_text(encoding="utf-8")
    part = page.split("## Being asked each time")[1].split("```bash")[1].split("```")[0]
    consent, send, decline = [line.split() for line in part.splitlines() if "device" in line]
    states = []
    for words in (consent, send, send, decline):
        typed = [str(her) if word.startswith("~") else word for word in words[1:]]
        more = [] if words is consent else ["--plaintext", "--yes"]
        states.append(told(capsys, *typed, *more).get("sent"))
        if len(town.bodies()) == 1:
            town.next_round()
    assert states == [None, *({"state": one} for one in ("arrived", "arrived", "declined"))]
    assert len(town.bodies()) == 1
