"""Rounds without a network: when they open, how they end, and what a crash leaves behind."""

import json
from dataclasses import replace

import numpy as np
import pytest
from plain_world import PlainWorld
from rounds_world import maker
from server_world import ITEMS, USERS, acting, quick_rules, simulated, terms

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.links import SecureSum
from sottovoce.errors import ServiceError, UsageError
from sottovoce.parties.defence import Defence
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.services.server.state import RoundState
from sottovoce.stores import server as records
from sottovoce.stores import server as roster
from sottovoce.stores.coordinator import Coordinator, Plan, longest_message
from sottovoce.stores.server import Submission
from sottovoce.wire.terms import Terms

world = maker(PlainWorld)


def test_the_first_round_waits_for_devices(world):
    here = world(devices=0, min_devices=3)
    assert here.position().state == "waiting"
    here.enrol([4, 7])
    assert here.step() == []
    here.enrol([1])
    assert here.step() == ["opened"]
    assert (here.position().state, here.position().goal) == ("open", 3)
    assert here.selected() == [1, 4, 7]


def test_goal_ends_a_round_and_opens_the_next(world):
    here = world(rounds=2)
    here.step()
    assert here.report(*range(7)) == ["accepted"] * 7
    assert here.step() == []
    assert here.report(7) == ["accepted"]
    assert here.step() == ["goal", "opened"]
    here.report(*range(8))
    assert here.step() == ["goal"]
    assert here.position().state == "finished"
    assert np.array_equal(here.model(2)[0], simulated(2))
    assert [p.outcome for p in here.past()] == ["goal", "goal"]
    assert here.step() == []


def test_a_raised_target_goes_on(world):
    here = world(rounds=1)
    here.step()
    here.report(*range(8))
    here.step()
    assert here.position().state == "finished"
    with here.database.writing() as link:
        assert records.raise_target(link, 2) == 2
        assert records.raise_target(link, 1) == 2
    assert here.step() == ["opened"]
    here.report(*range(8))
    here.step()
    assert np.array_equal(here.model(2)[0], simulated(2))


def test_the_deadline_ends_a_round_with_enough_reports(world):
    here = world(min_fraction=0.5, deadline_seconds=60.0)
    here.step()
    here.report(0, 1, 2, 5)
    here.time += 59
    assert here.step() == []
    here.time += 2
    assert here.step() == ["deadline", "opened"]
    over = here.past()[0]
    assert (over.outcome, over.reported, over.missing) == ("deadline", 4, (3, 4, 6, 7))
    assert over.seconds == 61.0


# --- grace after the deadline ---------------------------------------------------------------------


def descriptor(here):
    """What devices read of the round."""
    state = RoundState(here.database, here.plan)
    return json.loads(state.refresh().descriptor.body)["state"]


def test_after_its_deadline_a_round_takes_in_what_is_on_its_way(world):
    """A round that ended at its deadline, or at the report that made up its minimum, refused what
    devices had paid for and were sending."""
    here = world(rounds=2, min_fraction=0.375, deadline_seconds=60.0, grace_seconds=20.0)
    here.step()
    here.report(0, 1, 2)
    here.time += 59
    assert here.step() == []
    assert descriptor(here) == "open"
    here.time += 2
    assert here.step() == ["last_call"]
    assert 0 < here.coordinator.seconds_left() <= 20.0
    assert descriptor(here) == "waiting", "nobody begins a report that may be late"
    assert here.report(3, 4) == ["accepted"] * 2
    assert here.step() == []
    here.time += 19
    assert here.report(5) == ["accepted"]
    assert here.step() == []
    here.time += 1
    assert here.step() == ["deadline", "opened"]
    assert descriptor(here) == "open"
    assert [(p.reported, p.missing) for p in here.past()] == [(6, (6, 7))]


def test_too_few_at_the_deadline_may_be_enough_after_it(world):
    here = world(rounds=2, min_fraction=0.5, deadline_seconds=60.0, grace_seconds=20.0)
    here.step()
    here.report(0, 1, 2)
    here.time += 61
    assert here.step() == ["last_call"]
    here.report(3)
    here.time += 20
    assert here.step() == ["deadline", "opened"]
    here.time += 61
    assert here.step() == ["last_call"]
    here.time += 20
    assert here.step() == ["abandoned", "opened"]


def test_nobody_is_waited_for_when_all_are_there(world):
    here = world(rounds=3, min_fraction=0.5, deadline_seconds=60.0, grace_seconds=20.0)
    here.step()
    here.report(*range(USERS))
    assert here.step() == ["goal", "opened"]
    here.report(*range(USERS - 1))
    here.time += 61
    assert here.step() == ["last_call"]
    here.report(USERS - 1)
    assert here.step() == ["goal", "opened"]


def test_a_device_that_has_just_come_is_waited_for(world):
    """It is asked when it reports; all who were asked before may be there a moment earlier."""
    *first, last = range(USERS)
    here = world(
        rounds=3, devices=last, min_devices=last, deadline_seconds=60.0, grace_seconds=20.0
    )
    here.step()
    here.enrol([last])
    here.report(*first)
    assert here.step() == ["last_call"]
    late = replace(here.submission(last), joined=True)
    with here.database.writing() as link:
        assert records.accept(link, [late]) == ["accepted"]
    assert here.step() == ["goal", "opened"]
    here.report(*first)
    assert here.step() == []
    here.time += 61
    assert here.step() == ["last_call"]
    here.time += 20
    assert here.step() == ["deadline", "opened"]


def test_another_process_that_takes_over_begins_the_deadline_and_the_grace_anew(world):
    here = world(rounds=2, min_fraction=0.375, deadline_seconds=60.0, grace_seconds=20.0)
    here.step()
    here.report(0, 1, 2)
    here.time += 61
    assert here.step() == ["last_call"]
    here.restart()
    assert here.step() == []
    assert descriptor(here) == "open"
    here.time += 61
    assert here.step() == ["last_call"]
    here.time += 20
    assert here.step() == ["deadline", "opened"]


@pytest.mark.parametrize(
    ("rules", "seconds"),
    [
        ({}, 30.0),
        ({"deadline_seconds": 12.0}, 12.0),
        ({"poll_seconds": 600.0}, 35.0),
        ({"grace_seconds": 0.0}, 0.0),
        ({"grace_seconds": 90.0, "deadline_seconds": 12.0}, 90.0),
    ],
)
def test_the_grace_is_the_time_of_the_slowest_line(world, rules, seconds):
    here = world()
    plan = replace(here.plan, rules=RoundRules(**{"poll_seconds": 1.0, **rules}))
    assert plan.grace == seconds


def test_long_messages_have_a_longer_grace():
    """The model comes and the message goes on a line of 32 KiB a second."""
    link = SecureSum(min_devices=3, url="https://h", key="00" * 32, bits=64)
    big = Terms.of("town", 25_000, FPLConfig(embedding_size=20), 10, ShareFraction(), link)
    plan = Plan(big, "all", 1, 1, RoundRules(poll_seconds=1.0))
    assert longest_message(big) > 25_000 * 21 * 8
    assert plan.grace == (25_000 * 21 * 4 + longest_message(big)) / 32768
    assert 180 < plan.grace < 200


def test_too_few_reports_abandon_the_attempt(world):
    here = world(cohort_size=4, min_fraction=0.75, deadline_seconds=60.0)
    here.step()
    first = here.selected()
    before = here.model(0)[0]
    here.report(*first[:2])
    here.time += 61
    assert here.step() == ["abandoned", "opened"]
    now = here.position()
    assert (now.round, now.attempt, now.reported) == (0, 1, 0)
    assert here.selected() != first
    assert np.array_equal(here.model(0)[0], before)
    with here.database.reading() as link:
        assert records.marks(link, 0, 0, first) == {}
    assert here.report(*here.selected()) == ["accepted"] * 4
    assert here.step() == ["goal", "opened"]
    assert [(p.attempt, p.outcome) for p in here.past()] == [(0, "abandoned"), (1, "goal")]


def test_over_selection_asks_more_and_needs_the_goal(world):
    here = world(cohort_size=4, over_selection=0.5)
    here.step()
    assert len(here.selected()) == 6
    assert here.report(*here.selected()[:3]) == ["accepted"] * 3
    assert here.step() == []
    here.report(here.selected()[3])
    assert here.step()[0] == "goal"
    assert (here.past()[0].asked, len(here.past()[0].missing)) == (6, 2)


def test_selection_is_that_of_simulation(world):
    here = world(cohort_size=3, rounds=4)
    for _ in range(4):
        here.step()
        here.report(*here.selected())
    here.step()
    assert np.array_equal(here.model(4)[0], simulated(4, cohort_size=3))


def test_silent_devices_go_dormant_and_come_back(world):
    here = world(min_fraction=0.5, deadline_seconds=10.0, dormant_after=2, rounds=9)
    here.step()
    for _ in range(2):
        here.report(*range(7))
        here.time += 11
        here.step()
    assert here.active() == list(range(7))
    assert here.position().goal == 7
    with here.database.writing() as link:
        roster.seen(link, [7])
    assert here.active() == list(range(8))


def test_a_report_makes_up_for_a_miss(world):
    here = world(min_fraction=0.5, deadline_seconds=10.0, dormant_after=2, rounds=9)
    here.step()
    for missing in (7, 6, 7, 6):
        here.report(*(n for n in range(8) if n != missing))
        here.time += 11
        here.step()
    assert here.active() == list(range(8))


def test_no_round_opens_that_could_not_count(world):
    """Devices would report for nothing."""
    here = world(cohort_size=8, min_fraction=0.75, deadline_seconds=10.0, dormant_after=1)
    here.step()
    here.report(0, 1, 2)
    here.time += 11
    assert here.step() == ["abandoned"]
    assert here.position().state == "waiting"
    with here.database.writing() as link:
        roster.seen(link, [3, 4, 5])
    assert here.step() == ["opened"]
    assert (here.position().attempt, here.selected()) == (1, [0, 1, 2, 3, 4, 5])
    here.report(*range(6))
    assert here.step()[0] == "goal", "everyone who was asked has reported"


def test_only_the_first_submission_of_a_device_counts(world):
    here = world()
    here.step()
    first, same = here.submission(2), here.submission(2)
    other = Submission(0, 0, 2, b"x" * 16, first.body)
    with here.database.writing() as link:
        found = records.accept(link, [first, same, other])
    assert found == ["accepted", "replay", "second_submission"]
    with here.database.writing() as link:
        assert records.accept(link, [other, same]) == ["second_submission", "replay"]
    assert here.position().reported == 1


def test_nothing_comes_in_once_a_round_is_closing(world):
    here = world(min_fraction=0.5)
    here.step()
    here.report(*range(6))
    late, there, other = here.submission(7), here.submission(1), here.submission(2)
    other = Submission(0, 0, 2, b"x" * 16, other.body)
    with here.database.writing() as link:
        records.move_round(link, 0, 0, "open", "closing", outcome="deadline")
        assert records.accept(link, [late, there, other]) == ["late", "replay", "late"]


class Crash(Exception):
    pass


@pytest.mark.parametrize("where", ["move_round", "save_model", "forget_reports", "open_round"])
def test_a_crash_while_closing_is_made_good(world, monkeypatch, where):
    here = world(rounds=2)
    here.step()
    here.report(*range(8))
    real, calls = getattr(records, where), []

    def crashing(*arguments, **options):
        calls.append(arguments)
        if where != "move_round" or len(calls) == 2:  # the first one is the begin of closing
            raise Crash
        return real(*arguments, **options)

    monkeypatch.setattr(records, where, crashing)
    with pytest.raises(Crash):
        here.step()
    assert here.position().round == 0
    assert here.position().state == "closing"
    monkeypatch.undo()
    here.restart()
    assert here.step() == ["goal", "opened"]
    here.report(*range(8))
    here.step()
    assert np.array_equal(here.model(2)[0], simulated(2))
    assert [(p.round, p.reported) for p in here.past()] == [(0, 8), (1, 8)]


def test_who_takes_over_a_closing_round_counts_its_own_seconds(world, monkeypatch):
    here = world()
    here.step()
    here.report(*range(8))
    monkeypatch.setattr(records, "save_model", lambda *_: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        here.step()
    monkeypatch.undo()
    here.restart()
    assert here.step() == ["goal", "opened"]
    assert here.past()[0].seconds == 0.0, "not the machine's uptime"


def test_the_deadline_starts_anew_with_the_server(world):
    here = world(deadline_seconds=60.0)
    here.step()
    here.time += 59
    here.restart()
    here.time += 59
    assert here.step() == []
    here.time += 61
    assert here.step()[0] == "abandoned"


def test_reports_are_forgotten_when_they_are_in_the_model(world):
    here = world(rounds=6)
    here.step()
    for _ in range(5):
        here.report(*range(8))
        here.step()
    with here.database.reading() as link:
        rows = link.execute(records.submissions.select()).all()
    assert {row.round for row in rows} == {2, 3, 4}
    assert all(row.body is None for row in rows)
    assert here.model(5) is not None
    assert here.model(4) is not None
    assert here.model(3) is None


def test_changed_rows_are_remembered(world):
    here = world(rounds=3)
    here.step()
    models = [here.model(0)[0]]
    for round in range(3):
        here.report(*range(8))
        here.step()
        models.append(here.model(round + 1)[0])
    changed = here.model(3)[1]
    for item in range(ITEMS):
        last = 0
        for version in (1, 2, 3):
            if not np.array_equal(models[version][item], models[version - 1][item]):
                last = version
        assert changed[item] == last


def test_a_database_of_other_terms_is_refused(world, tmp_path):
    here = world()
    other = Plan(terms(learning_rate=0.1), "all", 3, 1, quick_rules())
    with pytest.raises(ServiceError, match="another federation"), here.database.writing() as link:
        Coordinator(other, lambda: 0.0).start(link)


def test_who_is_shut_out_is_not_asked_and_not_heard(world):
    here = world(rounds=3, min_fraction=0.5, deadline_seconds=10.0)
    here.step()
    here.report(3)
    acting(here.database).shut_out([3, 5])
    assert here.report(3, 5, 0) == ["shut_out", "shut_out", "accepted"]
    assert here.active() == [0, 1, 2, 4, 6, 7]
    here.report(1, 2, 4, 6, 7)
    here.time += 11
    assert here.step() == ["deadline", "opened"]
    assert here.past()[0].reported == 7, "what was accepted before counts"
    assert here.selected() == [0, 1, 2, 4, 6, 7]
    with here.database.reading() as link:
        assert roster.count_devices(link) == (6, 6)
    acting(here.database).readmit([3, 5])
    assert len(here.active()) == 6, "nobody waits for those who may not know it yet"
    with here.database.writing() as link:
        roster.seen(link, [3, 5])
    assert len(here.active()) == 8
    with pytest.raises(UsageError, match="device 99 was never invited"):
        acting(here.database).shut_out([3, 99])
    assert len(here.active()) == 8


def test_a_database_that_was_set_back_skips_what_devices_have_seen(world):
    """The model stays, its number is new, and nothing that was there before counts."""
    here = world(rounds=9)
    here.step()
    here.report(*range(8))
    here.step()
    here.report(0, 1)
    before = here.model(1)[0]
    here.restart()
    with pytest.raises(UsageError, match="at round 1"), here.database.writing() as link:
        here.coordinator.skip_to(link, 1)
    with here.database.writing() as link:
        here.coordinator.skip_to(link, 6)
    items, changed = here.model(6)
    assert np.array_equal(items, before)
    assert (changed == 6).all(), "no device takes a difference to a version that is lost"
    assert here.step() == ["opened"]
    assert (here.position().round, here.position().reported) == (6, 0)
    assert here.past()[-1].outcome == "abandoned"
    here.report(*range(8))
    assert here.step() == ["goal", "opened"]
    assert here.position().round == 7


def test_a_model_that_is_not_finite_is_not_published(world, monkeypatch):
    here = world(rounds=2)
    here.step()
    here.report(*range(8))
    infinite = here.model(0)[0] * np.inf
    monkeypatch.setattr(Server, "fold", lambda server, _: setattr(server, "items", infinite))
    assert here.step() == ["diverged", "opened"]
    assert (here.position().round, here.position().attempt) == (0, 1)
    monkeypatch.undo()
    for number in range(8):
        here.fleet.sent.pop((0, 0, number))
    assert here.report(*range(8)) == ["accepted"] * 8
    assert here.step() == ["goal", "opened"]


def test_values_beyond_the_limit_are_cut_and_the_round_goes_on(world):
    """One device cannot move the model further than the limit lets it."""
    here = world(rounds=1, max_value=1e-4)
    here.step()
    before, asked = here.model(0)[0], here.selected()
    here.report(*asked)
    assert here.step() == ["goal"]
    moved = np.abs(here.model(1)[0] - before).max()
    most = here.plan.terms.algorithm.learning_rate * len(asked) * 1e-4
    assert 0 < moved <= 1.01 * most


def test_caps_hold_as_in_simulation(world, monkeypatch):
    """Also where submissions are read in parts."""
    defence = Defence(burst=0.1)
    monkeypatch.setattr(records, "AT_ONCE", 3)
    here = world(rounds=2, defence=defence)
    here.step()
    for _ in range(2):
        assert set(here.report(*range(USERS))) == {"accepted"}
        here.step()
    defended = simulated(2, defence=defence)
    assert np.array_equal(here.model(2)[0], defended)
    assert not np.array_equal(defended, simulated(2))
