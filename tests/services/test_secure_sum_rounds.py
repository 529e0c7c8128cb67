"""Rounds of a secure sum without a network: the server over its database, the proxy's application,
and whatever goes wrong between the two."""

import json
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa
from rounds_world import maker
from secure_sum_world import LEAST, NOISY, SeedKeeper, SummedWorld, folded, question
from server_world import USERS, acting, simulated

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import MaskSum
from sottovoce.engines.client import Answer
from sottovoce.engines.helper_client import HelperClient
from sottovoce.errors import ConfigError, ServiceError, UsageError
from sottovoce.parties.helper import noise_of, sum_name
from sottovoce.services.server.summing import doubled
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.database import devices
from sottovoce.wire.masked import (
    binding,
    decode_mask_sum,
    decode_question,
    encode_mask_sum,
)

EVERYONE = tuple(range(USERS))


world = maker(SummedWorld)


def run_round(here, *numbers):
    assert here.report(*(numbers or EVERYONE)) == ["accepted"] * len(numbers or EVERYONE)
    assert here.step() == ["closing"]
    return here.step()


def test_three_rounds_give_the_simulations_model_to_the_last_bit(world):
    here = world(rounds=3)
    assert here.step() == ["opened"]
    assert run_round(here) == ["goal", "opened"]
    here.restart_proxy()
    assert run_round(here) == ["goal", "opened"]
    here.restart()
    assert run_round(here) == ["goal"]
    assert here.position().state == "finished"
    assert np.array_equal(here.model(), simulated(3))
    assert np.array_equal(here.model(), folded([(EVERYONE, EVERYONE)] * 3))
    assert len(here.asked) == 3


def test_the_proxys_noise_is_in_what_is_folded(world):
    here = world(rounds=1, link=NOISY)
    here.step()
    run_round(here)
    link = here.terms.secure_sum
    question = decode_question(here.asked[0])
    bound = binding(here.terms, 0, 0, question.model)
    name = sum_name(bound, [one.device + one.sealed for one in question.records])
    noise = noise_of(link, 0, here.model().size, here.folder.noise_secret().of_sum(name))
    assert np.abs(noise).max() > 0
    exact = folded([(EVERYONE, EVERYONE)], clip=NOISY["clip"])
    assert not np.array_equal(here.model(), exact)
    # FPL adds the sum of updates times its rate, so that the noise can be seen in the model.
    moved = (here.model().astype(np.float64) - exact).ravel()
    assert np.allclose(moved, FPLConfig().learning_rate * noise / 2**24, atol=1e-6)


def test_who_drops_out_does_not_count(world):
    here = world(rounds=2, min_fraction=0.5, deadline_seconds=60.0)
    here.step()
    here.report(0, 2, 3, 6, 7)
    assert here.step() == []
    here.time += 61
    assert here.step() == ["closing"]
    assert here.step() == ["deadline", "opened"]
    assert len(decode_question(here.asked[0]).records) == 5
    assert here.past()[0].missing == (1, 4, 5)
    assert np.array_equal(here.model(), folded([((0, 2, 3, 6, 7), (0, 2, 3, 6, 7))]))


@pytest.mark.parametrize("count", [0, 1, LEAST - 1])
def test_too_few_are_never_shown_to_the_proxy(world, count):
    """Whatever the rules of rounds permit."""
    here = world(min_fraction=0.0, deadline_seconds=60.0)
    here.step()
    here.report(*range(count))
    here.time += 61
    assert here.step() == ["abandoned", "opened"]
    now = here.position()
    assert (now.round, now.attempt) == (0, 1), "the proxy was not asked: it may be tried again"
    assert not here.asked
    assert run_round(here)[0] == "goal"
    expected = folded([(range(count), "again"), (EVERYONE, EVERYONE)])
    assert np.array_equal(here.model(), expected)


def test_a_round_waits_for_enough_devices(world):
    here = world(link={"min_devices": USERS + 1})
    assert here.step() == []
    assert here.position().state == "waiting"


def test_a_plan_asks_no_fewer_than_the_minimum(world):
    with pytest.raises(ConfigError, match="min_devices"):
        world(cohort_size=LEAST - 1)


def test_a_server_killed_between_asking_and_folding_goes_on_with_the_same_answer(world):
    here = world(rounds=1)
    here.step()
    here.report(*EVERYONE)
    here.step()
    answers = []

    class Killed(BaseException):
        pass

    def killed(told):
        answers.append(told.body)
        raise Killed

    here.change = killed
    with pytest.raises(Killed):
        here.step()
    here.change = lambda told: answers.append(told.body) or told
    here.restart()
    here.restart_proxy()
    assert here.step() == ["goal"]
    assert answers[0] == answers[1]
    assert np.array_equal(here.model(), folded([(EVERYONE, EVERYONE)]))


def spoiled(answer, how, terms):
    told = decode_mask_sum(answer.body, terms)
    rng = np.random.default_rng(0)
    changed = {
        "other seeds": MaskSum(0, 8, rng.integers(0, 2**64, len(told.masks), np.uint64)),
        "one mask too few": MaskSum(0, 8, told.masks - rng.integers(0, 2**64, 200, np.uint64)),
        "nothing": MaskSum(0, 8, np.zeros_like(told.masks)),
        "one number": MaskSum(0, 8, told.masks + (np.arange(200) == 7) * np.uint64(1 << 50)),
        "another round": MaskSum(1, 8, told.masks),
        "fewer devices": MaskSum(0, 7, told.masks),
        "another shape": MaskSum(0, 8, told.masks[:-1]),
    }
    return Answer(200, "", encode_mask_sum(changed[how]) if how in changed else how)


@pytest.mark.parametrize(
    "how",
    ["other seeds", "one mask too few", "nothing", "one number", "another round", "fewer devices",
     "another shape", b"", b"SVK1", b"no sum at all, and long enough to be one"],
)  # fmt: skip
def test_a_wrong_sum_is_found_and_the_federation_goes_on(world, how):
    here = world(rounds=3)
    here.step()
    before = here.model()
    here.change = lambda told: spoiled(told, how, here.terms)
    here.report(*EVERYONE)
    here.step()
    assert here.step() == ["wrong_sum", "opened"]
    assert "round 0 does not count" in here.events[0].trouble
    now = here.position()
    assert (now.round, now.attempt, now.state) == (1, 0, "open"), "never a second attempt"
    assert np.array_equal(here.model(), before), "nothing was folded"
    assert here.refused() == {"wrong_sum": 1}
    assert here.past()[0].outcome == "abandoned"
    assert not here.bodies()
    here.change = None
    assert run_round(here) == ["goal", "opened"]
    assert run_round(here) == ["goal"]
    given_up = (EVERYONE, None)
    expected = folded([given_up, (EVERYONE, EVERYONE), (EVERYONE, EVERYONE)])
    assert np.array_equal(here.model(), expected)


def test_where_too_few_can_be_opened_the_proxy_is_not_asked_for_their_sum(world):
    here = world(rounds=2, min_fraction=0.0, deadline_seconds=60.0)
    here.step()
    for n in (0, 1):
        made = here.keepers[n].record(here.terms, 0, sealed_for=(here.terms, 9, 0))
        here.report(n, record=made)
    here.report(2, 3)
    here.time += 61
    here.step()
    assert here.step() == ["reopened"]
    assert here.events[0].notices == (
        "2 good submissions are left, and a sum needs 3; the helper was not asked; the round is "
        "open again",
        "the helper could not open the seeds of devices 0, 1; left out",
    )
    assert (len(here.seeds_asked), here.asked) == (1, [])
    # Those who are good need not send again, and those who were left out cannot.
    here.time += 1000
    assert here.step() == []
    assert (here.position().round, here.position().attempt, here.position().state) == (0, 0, "open")
    assert here.report(0) == ["second_submission"]
    here.report(4)
    assert here.step() == ["closing"]
    assert here.step() == ["deadline", "opened"]
    assert "devices 0, 1; left out" in here.events[0].notices[0]
    assert np.array_equal(here.model(), folded([((2, 3, 4), (2, 3, 4))]))
    assert here.refused() == {"undecryptable": 2}


def test_whoever_sends_what_cannot_be_used_in_three_rounds_is_shut_out(world):
    here = world(rounds=6)
    here.step()
    others = tuple(n for n in EVERYONE if n != 3)
    for round in range(3):
        made = here.keepers[3].record(here.terms, round, sealed_for=(here.terms, 9, 0))
        here.report(3, record=made)
        assert run_round(here, *others) == ["goal", "opened"]
        assert here.events[0].notices[0] == (
            "the helper could not open the seeds of devices 3; left out"
        )
        assert here.shut_numbers() == ([3] if round == 2 else [])
        here.restart()
    assert here.events[0].notices[1] == "device 3 was shut out: it was left out of 3 rounds"
    assert here.position().asked == USERS - 1
    with here.database.reading() as link:
        why = records.why_shut(link, [3])[3]
    assert why == (
        "the server has shut this device out, because what it sent could not be used in 3 rounds"
    )
    # An operator who lets it in again has nothing left against it.
    acting(here.database).readmit([3])
    with here.database.writing() as link:
        assert sums.offended(link, [3]) == {}


def test_a_helper_that_opens_hardly_any_seed_has_nobody_shut_out(world):
    """Honest devices are not to blame for a key that was lost."""
    here = world(rounds=9)
    here.step()
    here.seeds_change = lambda told: Answer(200, "", b'{"which": [0, 1, 2, 3, 4]}')
    for _ in range(5):
        here.report(*EVERYONE)
        here.step()
        assert here.step() == ["goal", "opened"]
        assert "devices 0, 1, 2, 3, 4; left out" in here.events[0].notices[0]
    assert here.shut_numbers() == []
    here.seeds_change = lambda told: Answer(200, "", json.dumps({"which": [*EVERYONE]}).encode())
    here.report(*EVERYONE)
    here.step()
    assert here.step() == ["sum_refused", "opened"], "there is nobody to keep the round open for"
    assert "devices 0, 1, 2, 3, 4, 5, 6, 7; left out" in here.events[0].notices[0]
    assert here.shut_numbers() == []


def test_whoever_is_left_out_is_not_counted_as_good_while_its_record_is_kept(world):
    """Otherwise an aggregator that refuses most devices would have them shut out."""
    with world().database.writing() as link:
        sums.taken(link, 0, 0, {number: b"sealed" for number in EVERYONE}, {})
        sums.leave_out(link, 0, 0, dict.fromkeys(range(5), "out_of_range"), keep_records=True)
        assert len(sums.seeds(link, 0, 0)) == USERS, "the same set is asked about after a crash"
        assert sums.there(link, 0, 0) == USERS - 5


def test_who_is_asked_by_a_list_gets_the_time_of_a_round_again(world):
    here = world(rounds=2, cohort_size=4, min_fraction=0.0, deadline_seconds=60.0, over_selection=1)
    here.step()
    here.report(0, 1)
    made = here.keepers[2].record(here.terms, 0, sealed_for=(here.terms, 9, 0))
    here.report(2, record=made)
    here.time += 61
    here.step()
    assert here.step() == ["reopened"]
    here.time += 59
    assert here.step() == []
    here.time += 2
    assert here.step() == ["abandoned", "opened"]
    assert here.events[0].notices == ("the helper could not open the seeds of devices 2; left out",)
    assert (here.position().round, here.position().attempt) == (0, 1)


# --- one key under two numbers --------------------------------------------------------------------


def double(here, number, first):
    """Write the key of `first` under another number, too, past the index that forbids it."""
    with here.database.writing() as link:
        link.execute(sa.text("DROP INDEX devices_one_key"))
        key = records.public_key(link, first)
        at = devices.c.number == number
        link.execute(devices.update().where(at).values(public_key=key))
    here.keepers[number] = here.keepers[first]


@pytest.mark.parametrize("searching", [False, True], ids=["one sum", "groups"])
def test_a_key_under_two_numbers_costs_no_round(world, searching):
    here = world(rounds=3, link={"groups": 2} if searching else None)
    double(here, 6, 1)
    if searching:
        with here.database.writing() as link:
            searches.keep(link, replace(searches.found(link), on=True))
    here.step()
    for n in EVERYONE:
        here.keepers[n].seeds = {}  # two messages of one device have their own seeds
        here.report(n)
    here.step()
    assert here.step()[0] == "goal"
    assert "devices 6 have the key of another one; left out" in here.events[0].notices
    assert here.refused() == {"doubled_key": 1}


def test_a_message_by_another_numbers_key_costs_that_number_nothing(world):
    """It comes first, and the key is the second one's."""
    here = world()
    with here.database.reading() as link:
        key = records.public_key(link, 6)
    with here.database.leading() as leader:
        assert doubled(leader, {1: key, 6: key}) == {1: "doubled_key"}


def test_a_refusal_of_the_proxy_gives_the_round_up(world):
    """It has told this round's sum before, to whoever had the server's token."""
    here = world(rounds=2)
    here.step()
    here.report(*EVERYONE)
    others = [SeedKeeper() for _ in range(3)]
    assert here.proxy.sums(question(here.terms, 0, others)).status == 200
    here.step()
    assert here.step() == ["sum_refused", "opened"]
    assert "second_submission" in here.events[0].trouble
    assert here.refused() == {"sum_refused": 1}
    assert run_round(here) == ["goal"]


@pytest.mark.parametrize("address", ["change", "seeds_change"])
@pytest.mark.parametrize("status", [401, 404, 426])
def test_services_that_are_set_up_wrong_cost_no_round(world, status, address):
    here = world(rounds=1)
    here.step()
    here.report(*EVERYONE)
    here.step()
    wrong = Answer(status, "", b'{"error": "unknown_server", "detail": "no"}')
    setattr(here, address, lambda told: wrong)
    with pytest.raises(ServiceError, match=f"status {status}"):
        here.step()
    assert here.position().state == "closing"
    setattr(here, address, None)
    here.time += 5
    assert here.step() == ["goal"]


def test_the_servers_line_needs_a_proxy(tmp_path):
    with pytest.raises(ConfigError, match="no helper"):
        HelperClient(SecureSum(), "ab", 10)
    with pytest.raises(UsageError, match="this machine"):
        HelperClient(SecureSum(url="http://example.org", key="ab"), "ab", 10)
