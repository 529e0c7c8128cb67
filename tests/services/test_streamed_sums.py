"""Masked messages are added up as they come and forgotten: what the server keeps and waits for, and
that nothing is lost, doubled or left open on the way."""

import json

import numpy as np
import pytest
import sqlalchemy as sa
from rounds_world import maker
from secure_sum_world import SummedWorld, folded
from server_world import ITEMS

from sottovoce.core.masking import from_bytes, sum_masks, unmasked
from sottovoce.engines.client import Answer
from sottovoce.errors import ServiceError
from sottovoce.services.server.summed_rounds import MaskedSums
from sottovoce.stores import sums
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.database import Database, submissions, summed_seeds, unsummed
from sottovoce.stores.database import sums as sum_table
from sottovoce.stores.private import STAMP_BYTES
from sottovoce.stores.sums import most_summed
from sottovoce.wire.frames import MASK_SUM
from sottovoce.wire.masked import SEALED_SEED_BYTES, decode_question, message_bytes

SOME, PART = 40, 20
"""Devices, and so many of them that what they send is added up before the others come."""
EVERYONE, FIRST, REST = range(SOME), range(PART), range(PART, SOME)
NUMBERS = ITEMS * 5
TABLES = (unsummed, sum_table, summed_seeds)


class Killed(BaseException):
    pass


def killed(_):
    raise Killed


def begun(path, **options):
    here = SummedWorld(path, **{"users": SOME, "rounds": 1, **options})
    here.step()
    return here


world = maker(begun)


def rows(here, table):
    with here.database.reading() as link:
        return link.execute(sa.select(sa.func.count()).select_from(table)).scalar()


def accept(here, sent):
    with here.database.writing() as link:
        return sums.accept(link, sent, most_summed(here.terms))


def finish(here, *numbers):
    """Whatever is left of the round, and what becomes of it."""
    if numbers:
        assert set(here.report(*numbers)) == {"accepted"}
    assert here.step() == ["closing"]
    return here.step()


def one_round(counted=EVERYONE):
    return folded([(EVERYONE, counted)], users=SOME)


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [48, 64])
def test_messages_are_gone_when_they_are_added_up_and_the_model_is_the_same(world, bits):
    here = world(link={"bits": bits})
    plain = [here.plain(n) for n in FIRST]
    for n in FIRST:
        here.report(n, values=plain[n])
    assert len(here.bodies()) == PART
    assert here.step() == []
    assert here.bodies() == {}
    total, seeds = here.kept()
    assert (list(seeds), len(total)) == (list(FIRST), NUMBERS * bits // 8)
    assert {len(one) for one in seeds.values()} == {SEALED_SEED_BYTES}
    masks = sum_masks([here.keepers[n].seed(0) for n in FIRST], NUMBERS, bits=bits)
    assert np.array_equal(unmasked(from_bytes(total, bits), masks, 5, bits), sum(plain))
    assert not here.asked, "no sum of masks is told before the round is over"
    assert finish(here, *REST) == ["goal"]
    assert np.array_equal(here.model(), one_round())
    assert [len(decode_question(asked).records) for asked in here.asked] == [SOME]
    assert [rows(here, table) for table in TABLES] == [0, 0, 0]


def test_what_is_kept_of_a_round_is_a_sum_and_seeds(world):
    """Bytes, not only rows: a message is nowhere else in the database."""
    here = world()
    sent = here.submissions(*FIRST)
    accept(here, sent)
    here.step()
    with here.database.reading() as link:
        assert link.execute(sa.select(submissions.c.body)).scalars().all() == [None] * PART
        stored = link.execute(sa.select(sum_table.c.total)).scalars().all()
        seeds = link.execute(sa.select(summed_seeds.c.sealed)).scalars().all()
    assert [len(one) for one in stored] == [8 * NUMBERS + STAMP_BYTES]
    assert sum(map(len, seeds)) == PART * SEALED_SEED_BYTES
    assert len(sent[0].body) == message_bytes(here.terms, NUMBERS)


def test_few_messages_wait_for_more(world):
    here = world()
    here.report(*range(15))
    assert here.step() == []
    assert (len(here.bodies()), here.kept(), here.seeds_asked) == (15, (None, {}), [])
    here.report(15)
    here.step()
    assert (here.bodies(), len(here.kept()[1]), len(here.seeds_asked)) == ({}, 16, 1)


def test_many_messages_are_added_up_in_parts(world, monkeypatch):
    monkeypatch.setattr("sottovoce.services.server.summed_rounds._AT_ONCE", 7)
    here = world()
    here.report(*FIRST)
    here.step()
    assert [len(decode_question(asked).records) for asked in here.seeds_asked] == [7, 7, 6]
    assert len(here.kept()[1]) == PART
    assert finish(here, *REST) == ["goal"]
    assert np.array_equal(here.model(), one_round())


def test_who_is_added_up_cannot_send_again(world):
    here = world()
    sent = here.submissions(*FIRST)
    for said in ("accepted", "replay"):
        assert accept(here, sent) == [said] * PART
        here.step()
    assert here.report(0) == ["second_submission"]
    assert (here.bodies(), len(here.kept()[1])) == ({}, PART)
    assert here.position().reported == PART


def test_a_round_that_is_tried_again_begins_from_nothing(world):
    here = world(min_fraction=0.9, deadline_seconds=60.0)
    here.report(*FIRST)
    here.step()
    here.time += 61
    assert here.step() == ["abandoned", "opened"]
    assert [rows(here, table) for table in TABLES] == [0, 0, 0]
    assert here.position().attempt == 1
    assert finish(here, *EVERYONE) == ["goal"]
    expected = folded([(FIRST, "again"), (EVERYONE, EVERYONE)], users=SOME)
    assert np.array_equal(here.model(), expected)


def test_an_operator_who_skips_a_round_leaves_nothing_of_it(world):
    here = world(rounds=3)
    here.report(*range(30))
    here.step()
    here.report(*range(30, 35))
    with here.database.writing() as link:
        here.coordinator.skip_to(link, 1)
    assert [rows(here, table) for table in TABLES] == [0, 0, 0]
    assert here.step() == ["opened"]
    assert finish(here, *EVERYONE) == ["goal", "opened"]


def test_no_more_than_a_number_has_room_for(world):
    """Of 40 bits: for twelve devices of this model."""
    here = world(users=14, min_devices=14, link={"bits": 40})
    most = most_summed(here.terms)
    assert most == 12 == int(2**38 / (here.terms.largest_value * 2**24))
    assert here.report(*range(11)) == ["accepted"] * 11
    assert here.report(11, 12, 13) == ["accepted", "busy", "busy"]
    assert finish(here) == ["goal"]
    assert np.array_equal(here.model(), folded([(range(12), range(12))], users=14))


# --- seeds ----------------------------------------------------------------------------------------


def test_a_seed_that_cannot_be_opened_is_left_out_at_once_and_named_in_the_end(world):
    here = world()
    unopened = here.keepers[3].record(here.terms, 0, sealed_for=(here.terms, 9, 0))
    here.report(3, record=unopened)
    here.report(*(n for n in FIRST if n != 3))
    here.step()
    assert here.bodies() == {}
    assert list(here.kept()[1]) == [n for n in FIRST if n != 3]
    here.restart()  # who was left out is not in memory alone
    assert finish(here, *REST) == ["goal"]
    others = [n for n in EVERYONE if n != 3]
    assert np.array_equal(here.model(), one_round(others))
    assert here.refused() == {"undecryptable": 1}
    (notice,) = here.events[0].notices
    assert notice == "the helper could not open the seeds of devices 3; left out"
    assert len(here.asked) == 1


def test_a_helper_that_confirms_a_seed_and_cannot_open_it_later_costs_the_round(world):
    here = world(rounds=2)
    here.seeds_change = lambda told: Answer(200, "", b'{"which": []}')
    here.report(3, record=here.keepers[3].record(here.terms, 0, sealed_for=(here.terms, 9, 0)))
    here.report(*(n for n in EVERYONE if n != 3))
    before = here.model()
    assert finish(here) == ["sum_refused", "opened"]
    assert here.events[0].trouble == (
        "round 0 does not count: the helper cannot open the seeds of devices 3, which it could "
        "open before"
    )
    assert np.array_equal(here.model(), before)
    assert [rows(here, table) for table in TABLES] == [0, 0, 0]
    here.seeds_change = None
    assert finish(here, *EVERYONE) == ["goal"]
    expected = folded([(EVERYONE, None), (EVERYONE, EVERYONE)], users=SOME)
    assert np.array_equal(here.model(), expected)


@pytest.mark.parametrize(
    "said",
    [{}, {"which": None}, {"which": [PART]}, {"which": [-1]}, {"which": ["0"]}, {"which": [True]}],
    ids=str,
)
def test_what_a_helper_says_of_seeds_is_checked(world, said):
    """Nothing is added up, and nothing lost, before it says something that can be."""
    here = world()
    here.report(*FIRST)
    here.seeds_change = lambda told: Answer(200, "", json.dumps(said).encode())
    with pytest.raises(ServiceError, match="round 0: the helper did not say which seeds"):
        here.step()
    assert (len(here.bodies()), here.kept()) == (PART, (None, {}))
    here.seeds_change, here.time = None, here.time + 5
    assert here.step() == []
    assert here.bodies() == {}
    assert finish(here, *REST) == ["goal"]
    assert np.array_equal(here.model(), one_round())


@pytest.mark.parametrize("bits", [48, 64])
def test_a_helper_that_tells_a_sum_of_no_numbers_costs_the_round_and_not_the_server(world, bits):
    here = world(rounds=2, link={"bits": bits})
    here.change = lambda told: Answer(200, "", MASK_SUM.pack(0, SOME, 0))
    assert finish(here, *EVERYONE) == ["wrong_sum", "opened"]
    assert "another size" in here.events[0].trouble
    here.change = None
    assert finish(here, *EVERYONE) == ["goal"]


# --- the helper is away ---------------------------------------------------------------------------


def test_while_the_helper_is_away_messages_wait_and_no_more_than_there_is_room_for(
    world, monkeypatch
):
    monkeypatch.setattr(sums, "WAITING_BYTES", 1)  # so that the fewest messages count
    here = world()
    here.down, sent, room = True, here.submissions(*EVERYONE), sums.LEAST_WAITING
    assert accept(here, sent[:PART]) == ["accepted"] * room + ["busy"] * (PART - room)
    with pytest.raises(ServiceError, match="round 0 waits for the helper"):
        here.step()
    assert accept(here, sent[PART:]) == ["busy"] * len(REST)
    assert here.step() == [], "it is not asked at every step"
    assert (len(here.bodies()), here.position().reported) == (room, room)
    here.down, here.time = False, here.time + 2
    assert here.step() == []
    assert here.bodies() == {}
    for first in (room, 2 * room):
        said = accept(here, sent[first:])
        left = SOME - first
        assert said == ["accepted"] * min(room, left) + ["busy"] * max(0, left - room)
        here.step()
    assert here.position().state == "closing"
    assert here.step() == ["goal"]
    assert np.array_equal(here.model(), one_round())


def test_a_round_that_is_over_while_the_helper_is_away_waits_for_it(world):
    here = world(min_fraction=0.5, deadline_seconds=60.0)
    here.report(*FIRST)
    here.step()
    here.down = True
    here.report(*range(PART, 38))
    tries = closed = 0
    for _ in range(100):
        here.time += 1
        try:
            closed += here.step() == ["closing"]
        except ServiceError:
            tries += 1
    assert closed == 1
    assert 4 <= tries <= 20, "less and less often"
    assert (here.position().state, len(here.bodies())) == ("closing", 18)
    here.down, here.time = False, here.time + 61
    assert here.step() == ["deadline"]
    assert np.array_equal(here.model(), folded([(range(38), range(38))], users=SOME))


# --- a server that ends in between ----------------------------------------------------------------


def test_a_server_killed_while_it_adds_up_counts_everybody_once(world, monkeypatch):
    here = world()
    here.report(*FIRST)
    here.seeds_change = killed
    with pytest.raises(Killed):
        here.step()
    here.seeds_change = None
    here.restart()
    with monkeypatch.context() as patch:  # after all was written, before it was confirmed
        added = sums.added
        patch.setattr(sums, "added", lambda *args: added(*args) or killed(None))
        with pytest.raises(Killed):
            here.step()
    here.restart()
    assert (len(here.bodies()), here.kept()) == (PART, (None, {}))
    here.step()
    assert finish(here, *REST) == ["goal"]
    assert np.array_equal(here.model(), one_round())


def test_a_server_killed_after_the_sum_was_told_asks_for_the_same_one(world):
    here, told = world(), []
    here.report(*FIRST)
    here.step()
    here.report(*REST)
    here.step()
    here.change = lambda answer: told.append(answer.body) or killed(answer)
    with pytest.raises(Killed):
        here.step()
    here.change = lambda answer: told.append(answer.body) or answer
    here.restart()
    assert here.step() == ["goal"]
    assert told[0] == told[1]
    assert here.asked[0] == here.asked[1]
    assert np.array_equal(here.model(), one_round())


@pytest.mark.parametrize(
    ("column", "said"),
    [(unsummed.c.body, "a masked report"), (sum_table.c.total, "the sum of masked reports")],
    ids=["a message", "the sum"],
)
def test_what_the_disk_has_changed_is_not_added_up(world, column, said):
    here = world()
    here.report(*FIRST)
    here.step()
    here.report(*range(PART, 25))
    with here.database.writing() as link:
        content = link.execute(sa.select(column).limit(1)).scalar()
        broken = bytes([content[0] ^ 1]) + content[1:]
        link.execute(sa.update(column.table).values({column: broken}))
    here.report(*range(25, SOME))
    with pytest.raises(ServiceError, match=f"{said} .*damaged"):
        here.step()
    assert not here.asked


# --- while somebody is looked for -----------------------------------------------------------------


def test_in_a_search_all_wait_until_groups_are_drawn(world, monkeypatch):
    monkeypatch.setattr(sums, "WAITING_BYTES", 1)
    here = world(rounds=3, link={"groups": 4})
    garbage = np.random.default_rng(0).integers(-(2**63), 2**63, (ITEMS, 5))
    for first in range(0, SOME, 8):
        for n in range(first, first + 8):
            kinds = {"values": garbage} if n == 5 else {}
            assert here.report(n, **kinds) == ["accepted"]
        here.step()
    assert here.step() == ["wrong_sum", "opened"]
    here.seeds_asked.clear()
    assert set(here.report(*EVERYONE[1:])) == {"accepted"}
    assert here.step() == []
    assert (len(here.bodies()), here.seeds_asked) == (SOME - 1, [])
    assert finish(here, 0) == ["goal", "opened"]
    assert len(here.asked) == 1 + 4
    assert [rows(here, table) for table in TABLES] == [0, 0, 0]


# --- on PostgreSQL --------------------------------------------------------------------------------


def test_messages_are_added_up_on_postgresql(world, postgres):
    here = world(database=Database.at(postgres.fresh("sums")), link={"bits": 48})
    here.report(*FIRST)
    here.step()
    assert (here.bodies(), len(here.kept()[1])) == ({}, PART)
    here.restart()
    assert finish(here, *REST) == ["goal"]
    assert np.array_equal(here.model(), one_round())
    assert [rows(here, table) for table in TABLES] == [0, 0, 0]


def test_another_coordinator_on_the_same_database_goes_on(world, postgres):
    """The right to coordinate went to another process between two messages."""
    here = world(database=Database.at(postgres.fresh("turns")))
    first = here.coordinator
    other = Coordinator(here.plan, lambda: here.time, MaskedSums(here.plan, here.ask))
    with here.database.writing() as link:
        other.start(link)
    here.report(*FIRST)
    here.coordinator = other
    here.step()
    assert len(here.kept()[1]) == PART
    here.coordinator = first
    assert finish(here, *REST) == ["goal"]
    assert np.array_equal(here.model(), one_round())
