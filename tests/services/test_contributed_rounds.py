"""Rounds of gram at the server: a batch below its minimum waits, a sum without room ends a round, a
spoiled one ends its batch, and a server that was set back begins with a batch."""

import pytest
from contributed_world import DEVICES, ContributedWorld

from sottovoce.algorithms.gram.system import SCALE
from sottovoce.core.contributions import STEPS
from sottovoce.stores import search as searches
from sottovoce.stores import server as records


@pytest.fixture
def world(tmp_path):
    made = ContributedWorld(tmp_path)
    yield made
    made.close()


def test_a_batch_below_its_minimum_waits_and_nothing_is_lost(world):
    assert world.step() == ["opened"]
    world.send(0, 1, 2)
    world.time += 1000.0
    assert world.step() == []
    assert world.position().state == "open"
    world.send(3)
    assert world.step() == ["closing"]
    assert world.step() == ["deadline", "published", "opened"]
    assert (world.position().round, world.position().attempt) == (1, 0)
    assert (world.view().items[:, SCALE] > 0).sum() >= 4


def test_whose_seeds_do_not_open_do_not_make_a_minimum(world):
    world.step()
    world.send(0, 1, 2)
    world.send(3, foreign=True)
    world.time += 1000.0
    with world.database.leading() as leader:
        world.coordinator.collection._add_up(leader, world.position())
    assert world.step() == []
    world.send(4)
    assert world.step() == ["closing"]
    assert "deadline" in world.step()
    assert world.position().round == 1


def test_no_stage_of_a_batch_is_lost_to_a_device_whose_seed_does_not_open(world):
    """Three batches of two stages; in each somebody else spoils the minimum after the deadline.
    Those who are good contribute once, and wait for one more."""
    assert world.step() == ["opened"]
    for round in range(6):
        bad = 4 + round % 4
        assert world.send(0, 1, 2) == ["accepted"] * 3
        world.send(bad, foreign=True)
        world.time += 1000.0
        assert world.step() == ["closing"]
        assert world.step() == ["reopened"]
        assert world.step() == []
        assert world.send(0, 1, 2, bad) == ["second_submission"] * 4
        assert world.send(3) == ["accepted"]
        assert world.step() == ["closing"]
        assert "deadline" in world.step()
        assert (world.position().round, world.position().attempt) == (round + 1, 0)
    assert world.position().state == "finished"
    with world.database.reading() as at:
        past = records.past_rounds(at)
        assert [(one.reported, one.outcome) for one in past] == [(5, "deadline")] * 6
        assert records.refused(at) == {"undecryptable": 6}
        assert records.shut_numbers(at) == []


def test_a_round_ends_when_its_sum_has_no_room_for_another(world):
    world.step()
    assert world.send(0, 1, 2, 3, 4, most=3)[-2:] == ["busy", "busy"]


def test_garbage_ends_the_batch_and_the_next_one_begins_with_its_first_stage(world):
    world.step()
    world.send(*range(DEVICES - 1))
    world.send(DEVICES - 1, size=STEPS << 14)
    assert world.step() == ["closing"]
    assert world.step() == ["wrong_sum", "opened"]
    assert world.position().round == 2
    assert not world.view().items.any()
    with world.database.reading() as at:
        assert not searches.found(at).on, "contributions come once: nobody is looked for"


def test_a_server_that_was_set_back_goes_on_with_a_batch(world):
    world.step()
    with world.database.writing() as at:
        world.coordinator.skip_to(at, 3)
    assert world.position().round == 4
