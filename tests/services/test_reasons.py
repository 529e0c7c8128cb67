"""Why no round moves on: which party, since when, what to do, for every kind of federation."""

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from checked_world import checked_folders
from hypothesis import given
from hypothesis import strategies as st
from proxy_world import proxy_terms
from secure_sum_world import SummedWorld, summed_terms
from server_world import USERS, acting, quick_rules, terms

from sottovoce.core.links import Hop, Proxied
from sottovoce.core.waiting import WAITS
from sottovoce.services.server.operator import status
from sottovoce.services.server.reasons import Situation, reason
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.stores.server import Position

OPENED, ENDED = "2026-11-17T17:04:00+00:00", "2026-11-17T16:59:30+00:00"
SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
PARTIES = {"devices", "helper", "shuffler", "aggregator 1", "aggregator 2", "operator", "server"}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    return checked_folders(tmp_path_factory.mktemp("checked"))[0]


def plan(ours, cohort_size="all", **rules):
    return Plan(ours, cohort_size, 9, 1, quick_rules(**rules))


DIRECT = plan(terms())
SUMMED = plan(summed_terms("ab" * 32, min_devices=6), min_devices=2)
SHUFFLED = plan(proxy_terms())


def told(position, enrolled=8, active=8, ours=DIRECT, **more):
    more = {"opened": OPENED, "ended": ENDED} | more
    found = reason(Situation(position, enrolled, active, ours, **more))
    if found is not None:
        assert set(found) == {"kind", "words", "party", "since", "what", "do"}
        assert found["words"] == WAITS[found["kind"]].words
        assert found["party"] in PARTIES
        assert not any(found[name].endswith(".") for name in ("what", "do"))
    return found


def waiting(round=3, attempt=0):
    return Position(round, attempt, "waiting", 9)


def opened(reported, goal=8, asked=8):
    return Position(3, 0, "open", 9, goal, asked, reported)


def deadline(ours=DIRECT):
    return datetime.fromtimestamp(
        datetime.fromisoformat(SOON).timestamp() + ours.rules.deadline_seconds
    ).strftime("%H:%M")


def test_before_the_first_round_it_says_how_many_have_enrolled():
    found = told(waiting(0), enrolled=5, active=5)
    assert found["party"] == "devices"
    assert found["what"] == "5 of the 8 devices that the first round needs have enrolled"
    assert "serve invite" in found["do"]
    assert told(waiting(0), enrolled=8) is None, "it opens by itself"
    assert told(waiting(0), enrolled=5, ours=SHUFFLED)["party"] == "devices"
    assert told(waiting(0, 1), enrolled=5, active=5) is None, "a second attempt needs no more"


def test_too_few_that_can_be_asked():
    found = told(waiting(), enrolled=8, active=0)
    assert (found["party"], found["since"]) == ("devices", ENDED)
    assert (
        found["what"] == "0 of 8 enrolled devices can be asked, and a round needs 1; 8 are silent"
    )
    assert "--which silent" in found["do"]
    ours = plan(terms(), 6, min_fraction=0.7)
    assert told(waiting(), active=4, ours=ours)["what"].endswith(
        "and a round needs 5; 4 are silent"
    )
    assert told(waiting(), active=5, ours=ours) is None
    found = told(waiting(), active=5, ours=SUMMED)
    assert found["what"] == (
        "5 of 8 enrolled devices can be asked, and a round needs 6; 3 are silent"
    )
    assert told(waiting(), active=6, ours=SUMMED) is None
    assert told(waiting(), active=0, ours=SHUFFLED) is None, "nobody is asked by name"


def test_a_checked_sum_needs_its_minimum(checked):
    ours = plan(checked, min_devices=1)
    assert told(waiting(), active=3, ours=ours)["what"].endswith("a round needs 4; 5 are silent")
    found = told(opened(3, goal=8), ours=ours, summed=2)
    assert found["what"] == (
        "3 of 8 reports of round 3 are here, 2 of which can be summed; it needs at least 6"
    )
    found = told(opened(3, goal=4), ours=ours, summed=3)
    assert found["what"] == "3 of 4 reports of round 3 are here; its sum needs at least 4"
    assert found["do"].startswith("the round stays open until then: look who is silent")


def test_an_open_round_waits_for_reports_until_its_deadline():
    found = told(opened(3), opened=SOON)
    assert (found["party"], found["since"]) == ("devices", SOON)
    assert found["what"] == "3 of 8 reports of round 3 are here; it needs at least 6"
    assert found["do"].startswith(f"wait until {deadline()}, the deadline: it is tried again")
    found = told(opened(7), opened=SOON)
    assert found["what"] == "7 of 8 reports of round 3 are here"
    assert found["do"].endswith("it ends then")
    found = told(opened(0, goal=1, asked=1))
    assert found["what"] == "0 of 1 reports of round 3 are here; it needs at least 1", "no sum"
    for unknown in (None, OPENED):  # in a round that was opened again, the deadline is a later one
        found = told(opened(3), opened=unknown)
        assert found["do"].startswith("wait for the round's deadline: it is tried again then")
    found = told(opened(5), ours=SUMMED, summed=5)
    assert found["what"] == "5 of 8 reports of round 3 are here; its sum needs at least 6"


def test_a_round_that_is_open_again_has_no_deadline_for_those_who_are_missing():
    """Bad submissions were left out, and what the others have sent is kept until more come."""
    found = told(opened(7), ours=SUMMED, summed=5)
    assert found["what"] == (
        "7 of 8 reports of round 3 are here, 5 of which can be summed; its sum needs at least 6"
    )
    assert found["do"].startswith("the round stays open until others come in their place: look")
    some = plan(summed_terms("ab" * 32, min_devices=6), cohort_size=8, min_devices=2)
    assert "it is tried again then" in told(opened(7), ours=some, summed=5)["do"]


def test_through_a_shuffler_batches_are_waited_for():
    found = told(opened(0, 5, 0), ours=SHUFFLED)
    assert (found["party"], found["since"]) == ("shuffler", OPENED)
    assert found["what"] == ("no batch of tier 0, 1 of round 3 is here; one has at least 2 devices")
    found = told(opened(3, 5, 0), ours=SHUFFLED, batches=[(0, 2, 2)])
    assert found["what"].startswith("no batch of tier 1 of round 3")
    found = told(opened(0, 5, 0), ours=SHUFFLED, batches=[(0, 2, 2), (1, 1, 4)])
    assert found["what"] == "1 of 4 parts of the batch of tier 1 are here"
    assert found["party"] == "shuffler"
    found = told(opened(0, 5, 0), enrolled=1, ours=SHUFFLED)
    assert found["party"] == "devices"
    assert found["what"] == "1 of the 2 devices that a batch has at least have enrolled"
    chain = Proxied(chain=(Hop(),))  # the first shuffler waits for one device more
    ours = plan(replace(proxy_terms(), link=chain))
    found = told(opened(0, 5, 0), enrolled=2, ours=ours)
    assert found["what"] == "2 of the 3 devices that a batch has at least have enrolled"
    assert "one has at least 3 devices" in told(opened(0, 5, 0), enrolled=3, ours=ours)["what"]


def test_a_pause_is_the_reason_once_nothing_is_open():
    pause = {"since": ENDED, "who": "anna", "why": "lunch"}
    found = told(waiting(), paused=pause)
    assert (found["party"], found["since"]) == ("operator", ENDED)
    assert found["what"] == "anna has paused rounds: lunch"
    assert "serve pause DIR --undo" in found["do"]
    assert told(waiting(), paused=pause | {"why": ""})["what"] == "anna has paused rounds"
    assert told(opened(3), paused=pause)["party"] == "devices", "an open round goes on"
    assert told(waiting(), ours=SHUFFLED, paused=pause)["party"] == "operator"
    assert told(waiting(), ours=None, paused=pause)["party"] == "operator"


def test_the_target_the_server_and_its_trouble():
    found = told(Position(9, 0, "finished", 9))
    assert (found["party"], found["since"]) == ("operator", ENDED)
    assert found["kind"] == "done"
    assert found["what"] == "9 of 9"
    assert found["do"].startswith("ask for more than 9 with `sottovoce serve target")
    for position in (waiting(), opened(3), Position(0, 0, "finished", 0)):
        found = told(position, running=False)
        assert (found["party"], found["what"]) == ("server", "no server runs from this folder")
    trouble = {"party": "server", "since": ENDED, "what": "the database is full"}
    found = told(opened(3), trouble=trouble)
    assert (found["party"], found["since"], found["what"]) == ("server", ENDED, trouble["what"])
    assert told(Position(3, 0, "closing", 9, 8, 8, 8)) is None, "it is being folded"
    assert told(opened(3), ours=None)["what"] == "round 3 waits for reports"


LATER, LAST = "2026-11-17T18:00:00+00:00", "2026-11-17T18:30:00+00:00"


def test_who_cannot_be_asked_is_named():
    found = told(waiting(), enrolled=2, active=2, ours=SUMMED, shut_out=[3])
    assert found["what"].endswith("and a round needs 6; 1 is shut out: 3")
    many = {"shut_out": range(30), "unagreed": 2, "changed": LATER}
    found = told(waiting(), enrolled=8, active=5, ours=SUMMED, **many)
    assert "; 30 are shut out: 0, 1, " in found["what"]
    assert "19, …; 2 have not agreed to the changed terms yet, or have not asked" in found["what"]
    assert found["what"].endswith("; 1 is silent")


@pytest.mark.parametrize("cause", ["changed", "acted", "ended"])
def test_it_waits_for_devices_since_the_last_of_what_led_to_it(cause):
    times = {"ended": ENDED, "changed": OPENED, "acted": OPENED} | {cause: LATER}
    assert told(waiting(), active=0, **times)["since"] == LATER
    assert told(waiting(0), enrolled=5, active=5, **times)["since"] == LATER
    assert told(waiting(), active=0, gathering=8, **times)["since"] == LATER


def test_all_is_done_or_paused_since_the_end_of_a_round_or_a_change_of_terms():
    done = Position(9, 0, "finished", 9)
    assert told(done, changed=LATER)["since"] == LATER
    assert told(done, changed=LATER, ended=LAST)["since"] == LAST
    assert told(done, acted=LATER)["since"] == ENDED, "a device that is shut out does not end it"
    pause = {"since": LATER, "who": "anna", "why": ""}
    assert told(waiting(), paused=pause)["since"] == LATER
    assert told(waiting(), paused=pause, ended=LAST)["since"] == LAST


def test_what_operators_did_counts_if_rounds_came_to_wait_by_it(tmp_path):
    with contextlib.closing(Database.sqlite(tmp_path / "server.db")) as database:
        database.create()

        def note(at, what, before=None):
            with database.writing() as link:
                operating.note_act(link, "anna", "command", what, {}, {"before": before}, at=at)

        def acted(round):
            with database.reading() as link:
                return operating.last_acted(link, round)

        assert acted(3) is None
        note(OPENED, "target", 3)
        assert acted(3) == OPENED
        assert acted(2) is None, "rounds went on anyway"
        note(LATER, "shut_out")
        note(LAST, "label")
        assert acted(3) == acted(2) == LATER
        note(LAST, "go_on")
        assert acted(3) == LAST


@given(
    state=st.sampled_from(["waiting", "open", "closing", "finished"]),
    counts=st.lists(st.integers(0, 12), min_size=7, max_size=7),
    ours=st.sampled_from([None, DIRECT, SUMMED, SHUFFLED]),
    flags=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_whatever_the_situation_is_there_is_a_reason_or_it_moves(state, counts, ours, flags):
    round, attempt, goal, reported, enrolled, active, parts = counts
    since = {"since": ENDED, "what": "x", "party": "helper", "who": "anna", "why": ""}
    position = Position(round, attempt, state, 9, goal, goal, reported)
    found = told(
        position, enrolled, min(enrolled, active), ours,
        opened=OPENED if flags[0] else None,
        paused=since if flags[1] else None,
        away=since if flags[2] else None,
        trouble=since if flags[3] else None,
        running=flags[4],
        batches=[(0, min(parts, 3), 3)] if ours is SHUFFLED else [],
        summed=reported if ours is SUMMED else None,
    )  # fmt: skip
    if found is None:
        assert state in ("waiting", "closing")
        assert not any(flags[2:4])
        assert not (flags[1] and state == "waiting")


def test_who_is_away_is_kept_with_since_when_until_it_answers(tmp_path):
    with contextlib.closing(Database.sqlite(tmp_path / "server.db")) as database:
        database.create()
        with database.writing() as link:
            operating.keep_since(link, operating.AWAY, "nobody answers", "helper")
            first = operating.since_when(link, operating.AWAY)
            kept = records.fact(link, operating.AWAY)
            records.set_fact(link, operating.AWAY, kept.replace("20", "19", 1))
            operating.keep_since(link, operating.AWAY, "it refuses", "helper")
            later = operating.since_when(link, operating.AWAY)
            assert later["since"] == "19" + first["since"][2:]
            assert (later["party"], later["what"]) == ("helper", "it refuses")
            records.drop_fact(link, operating.AWAY)
            assert operating.since_when(link, operating.AWAY) is None


def test_status_says_when_rounds_were_opened_and_ended(tmp_path):
    here = SummedWorld(tmp_path, rounds=2)
    with contextlib.closing(here):
        here.step()
        told = status(here.database, plan=here.plan)
        assert told["opened"] == told["reason"]["since"]
        here.report(*range(USERS))
        here.step()
        here.step()
        told = status(here.database, plan=here.plan)
        [past] = told["rounds"]
        assert past["opened"] <= past["ended"] <= told["opened"]
        assert datetime.fromisoformat(past["opened"]).utcoffset().total_seconds() == 0
        acting(here.database).pause("lunch")
        here.report(*range(USERS))
        here.step()
        here.step()
        told = status(here.database, plan=here.plan)
        assert (told["state"], told["opened"]) == ("finished", None)
        acting(here.database).raise_target(3)
        assert here.step() == [], "no round is opened"
        told = status(here.database, plan=here.plan)
        assert (told["state"], told["paused"]["why"]) == ("waiting", "lunch")
        assert told["reason"]["party"] == "operator"
        acting(here.database).go_on()
        assert here.step() == ["opened"]


def test_a_paused_round_that_is_given_up_is_not_tried_again_before_the_end_of_the_pause(tmp_path):
    here = SummedWorld(tmp_path, deadline_seconds=10.0)
    with contextlib.closing(here):
        here.step()
        acting(here.database).pause()
        here.time += 11
        assert here.step() == ["abandoned"]
        assert here.step() == []
        acting(here.database).go_on()
        assert here.step() == ["opened"]
        past = status(here.database, plan=here.plan)["rounds"][0]
        assert (past["round"], past["attempt"]) == (0, 0)
        assert past["ended"] is not None


def test_as_many_must_agree_to_changed_terms_as_the_sum_needs():
    """Most of them are not enough if the sum needs all."""
    found = told(waiting(), enrolled=6, active=5, ours=SUMMED, gathering=6)
    assert found["kind"] == "few_agreed"
    assert found["do"] == "wait; a round opens when 6 have agreed"
    ours = plan(terms(), min_fraction=0.7)
    found = told(waiting(), enrolled=8, active=5, ours=ours, gathering=8)
    assert found["do"].startswith("wait; a round opens when 6 have agreed, or at the end of")
