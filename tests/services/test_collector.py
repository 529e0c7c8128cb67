"""Rounds with a proxy, without a network: what counts, what is left out, what a crash leaves."""

import secrets
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from collector_world import (
    FACTORS,
    BatchesWorld,
    K,
    folded,
    parts_of,
    proxied_terms,
    some_reports,
)
from rounds_world import maker
from server_world import ITEMS, SEED, quick_rules

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.core.links import Hop, Proxied
from sottovoce.core.messages import Batch, SummedReports
from sottovoce.errors import ConfigError, KeyTrouble
from sottovoce.parties import shuffler as duplicates
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import Everything
from sottovoce.rng import Streams
from sottovoce.services.kit import openers
from sottovoce.services.server.shuffled_rounds import ShuffledBatches
from sottovoce.stores import batches
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.database import Database, models
from sottovoce.stores.keys import KEPT_ROUNDS, ReportKeys
from sottovoce.wire.sealing import SEALED_BYTES, key_id, seal_reports
from sottovoce.wire.shuffled import BatchPart
from sottovoce.wire.terms import Terms


def chained_terms():
    """Of two shufflers."""
    hop = Hop("https://127.0.0.1:2", "PEM", "ab" * 32)
    return proxied_terms(link=Proxied("https://127.0.0.1:1", "PEM", (hop,)))


world = maker(BatchesWorld)


@pytest.fixture(params=[False, True], ids=["here", "by helpers"])
def who_opens(request, monkeypatch):
    """Whether helpers open the reports, as they do those of large batches."""
    if request.param:
        monkeypatch.setattr(openers, "WORTH_IT", 1)
        monkeypatch.setattr(openers, "_cores", lambda: range(2))
        monkeypatch.setattr(openers.Openers, "_here", None)


# --- when rounds open and end ---------------------------------------------------------------------


def test_a_round_asks_nobody_and_ends_when_every_tier_is_here(world):
    here = world(rounds=2)
    assert here.step() == ["opened"]
    now = here.position()
    assert (now.state, now.asked, now.reported) == ("open", 0, 0)
    assert now.report_key == here.keys.newest().public
    first = here.hand_over(0, seed=1)
    assert here.step() == []
    second = here.hand_over(1, seed=2, parts=3)
    assert here.position().reported == 8
    assert here.step() == ["closing"]
    assert here.step() == ["goal", "opened"]
    assert np.array_equal(here.model(1), folded([{0: first, 1: second}]))
    assert not np.array_equal(here.model(1), here.model(0))
    past = here.past()[0]
    assert (past.outcome, past.asked, past.reported, past.missing) == ("goal", 0, 8, ())
    assert here.bodies() == 0, "what was folded is not kept"


def test_several_rounds_are_the_servers_own_arithmetic(world, who_opens):
    here = world(rounds=3)
    here.step()
    rounds = []
    for number in range(3):
        rounds.append(
            {0: here.hand_over(0, seed=10 + number), 1: here.hand_over(1, seed=20 + number)}
        )
        here.restart()
        assert "goal" in here.close_round()
    assert here.position().state == "finished"
    assert np.array_equal(here.model(3), folded(rounds))


def test_at_the_deadline_one_batch_is_enough_and_none_is_waited_for(world):
    here = world(rounds=2, deadline_seconds=60.0)
    here.step()
    here.time += 100_000
    assert here.step() == [], "nobody is asked to report a second time"
    assert here.position().attempt == 0
    reports = here.hand_over(1)
    assert here.close_round() == ["deadline", "opened"]
    assert np.array_equal(here.model(1), folded([{1: reports}]))
    here.hand_over(0)
    here.time += 59
    assert here.step() == []
    here.time += 2
    assert here.step() == ["closing"]


def test_a_batch_of_which_a_part_is_here_is_waited_for_a_while(world):
    """Its devices have paid; the shuffler is sending the rest."""
    here = world(rounds=3, deadline_seconds=60.0, grace_seconds=20.0)
    for tail_comes in (True, False):
        here.step()
        now = here.position()
        reports, rest = here.hand_over(0), some_reports(4, 1)
        first, last = parts_of(rest, now.report_key, round=now.round, tier=1, parts=2)
        here.accept(first)
        here.time += 79
        assert here.step() == []
        if tail_comes:
            assert here.accept(last) is True
            assert here.close_round() == ["goal", "opened"]
            assert np.array_equal(here.model(1), folded([{0: reports, 1: rest}]))
        else:
            here.time += 1
            assert here.close_round() == ["deadline", "opened"]


def test_only_randomised_reports_go_through_a_proxy(tmp_path):
    plan = Plan(_fcf_terms(), "all", 1, 1, quick_rules())
    with pytest.raises(ConfigError):
        ShuffledBatches(plan, ReportKeys(tmp_path))


# --- parts ----------------------------------------------------------------------------------------


def test_a_part_counts_once_also_after_a_restart(world):
    here = world()
    here.step()
    sent = parts_of(some_reports(5, 1), here.position().report_key, parts=3)
    assert here.accept(sent[1]) is False
    assert here.reason(sent[1]) == ("replay", 409)
    here.restart()
    assert here.reason(sent[1]) == ("replay", 409)
    assert here.accept(sent[0]) is False
    assert here.accept(sent[2]) is True
    assert here.position().reported == 5
    for part in sent:
        assert here.reason(part) == ("replay", 409)
    other = parts_of(some_reports(5, 1), here.position().report_key)
    assert here.reason(other[0]) == ("second_submission", 409), "of a tier that has one"
    assert here.position().reported == 5
    assert here.step() == []
    here.time += 4000
    here.close_round()
    here.restart()
    assert here.reason(sent[0]) == ("replay", 409), "also when its round is over"
    assert here.reason(other[0]) == ("second_submission", 409), "also when its round is over"
    assert here.bodies() == 0


def test_a_batch_that_was_begun_or_announced_does_not_give_way_to_another(world):
    """In which one device more or less would be seen."""
    here = world()
    here.step()
    key = here.position().report_key
    begun = parts_of(some_reports(5, 1), key, parts=2)
    here.accept(begun[0])
    (other,) = parts_of(some_reports(4, 1), key)
    assert here.reason(other) == ("second_submission", 409)
    announced = parts_of(some_reports(5, 1), key, tier=1, body=b"", sealed=b"")[0]
    for _ in range(2):
        assert here.accept(announced) is False
    (other,) = parts_of(some_reports(4, 1), key, tier=1)
    for part in (other, replace(other, body=b"")):
        assert here.reason(part) == ("second_submission", 409), "before anything of it has come"
    assert here.position().reported == 0
    assert here.accept(begun[1]) is True
    assert [head.complete for head in here.heads()] == [True, False]


def dropped(here, tier, devices=3):
    key = here.position().report_key
    round = here.position().round
    return BatchPart(round, tier, key_id(key), devices, 0, 0, secrets.token_bytes(16), b"")


def test_a_batch_that_a_shuffler_dropped_ends_the_round_with_its_reason(world):
    here = world(rounds=4, terms=chained_terms())
    here.step()
    reports = here.hand_over(0, seed=1)
    assert here.step() == []
    notice = dropped(here, 1)
    assert here.accept(notice) is True
    assert here.reason(notice) == ("replay", 409)
    assert here.step() == ["closing"]
    with here.database.leading() as leader:
        over = here.coordinator.step(leader)[0]
    assert over.what == "goal"
    assert "dropped the batch of tier 1, of which fewer reports could be opened" in over.notices[0]
    assert np.array_equal(here.model(1), folded([{0: reports}]))
    for tier in (0, 1):
        assert here.accept(dropped(here, tier)) is True
    assert here.close_round() == ["dropped", "opened"]
    assert np.array_equal(here.model(2), here.model(1))
    assert [(p.outcome, p.reported) for p in here.past()] == [("goal", 4), ("dropped", 0)]
    here.accept(dropped(here, 0))
    assert here.step() == []
    here.time += 100_000
    assert here.close_round() == ["dropped", "opened"], "nobody waits longer than the deadline"


def test_reports_are_counted_without_those_that_were_left_out_on_the_way(world):
    here = world(terms=chained_terms())
    here.step()
    (part,) = parts_of(some_reports(4, 1), here.position().report_key, tier=1)
    part = replace(part, devices=5)
    with here.database.writing() as link:
        assert batches.accept(link, part, K, 3 * K)
    assert here.position().reported == 4


@pytest.mark.parametrize(
    "wrong", [{"devices": 5}, {"devices": 3}, {"parts": 3}, {"body": bytes(SEALED_BYTES * 9)}]
)
def test_a_part_that_contradicts_the_others_is_refused(world, wrong):
    here = world()
    here.step()
    good = parts_of(some_reports(4, 1), here.position().report_key, parts=2, mark=bytes(16))
    bad = replace(good[1], **wrong)
    here.accept(good[0])
    assert here.reason(bad) == ("malformed", 400)
    assert here.accept(good[1]) is True


def test_a_batch_with_too_few_reports_is_never_complete(world):
    here = world()
    here.step()
    key = here.position().report_key
    sealed = seal_reports(some_reports(4, 1)[:-1], key, federation="little-town", round=0, tier=0)
    first, last = parts_of(some_reports(4, 1), key, parts=2, sealed=sealed)
    assert here.accept(first) is False
    assert here.reason(last) == ("malformed", 400)
    assert not here.heads()[0].complete


def test_rounds_that_are_not_open_take_nothing(world):
    here = world()
    (part,) = parts_of(some_reports(4, 1), here.keys.newest().public)
    assert here.reason(part) == ("late", 409)
    here.step()
    here.hand_over(0)
    here.hand_over(1)
    here.step()
    (part,) = parts_of(some_reports(4, 1), here.keys.newest().public, tier=1)
    assert here.reason(part) == ("second_submission", 409), "the tier's batch has come"
    assert here.position().state == "closing"


# --- what is left out -----------------------------------------------------------------------------


def test_what_is_no_report_of_the_round_is_left_out_and_counted(world, who_opens):
    here = world()
    here.step()
    key, good = here.position().report_key, some_reports(10, 5)
    place = {"federation": "little-town", "round": 0, "tier": 0}
    sealed = bytearray(seal_reports(good, key, **place))

    def put(at, blob):
        sealed[at * SEALED_BYTES : (at + 1) * SEALED_BYTES] = blob

    beyond = np.array([2 * ITEMS * FACTORS, 2**32 - 1], np.uint32)
    other = ReportKeys(here.path / "other")
    (here.path / "other").mkdir()
    strangers = [
        seal_reports(good[:1], key, **{**place, "tier": 1}),
        seal_reports(good[:1], key, **{**place, "round": 1}),
        seal_reports(good[:1], key, **{**place, "federation": "city"}),
        seal_reports(good[:1], other.create().public, **place),
        bytes(SEALED_BYTES),
    ]
    for at, blob in enumerate(strangers):
        put(at, blob)
    put(5, seal_reports(beyond[:1], key, **place))
    put(6, seal_reports(beyond[1:], key, **place))
    for at in (7, 8, 30):
        put(at, sealed[39 * SEALED_BYTES :])  # one report four times
    sealed[20 * SEALED_BYTES + 40] ^= 1
    for part in parts_of(good, key, parts=4, sealed=bytes(sealed)):
        here.accept(part)
    here.time += 4000
    here.close_round()
    assert here.refused() == {"undecryptable": 6, "out_of_range": 2, "duplicate": 3}
    kept = good[[*range(9, 20), *range(21, 30), *range(31, 40)]]
    expected = Server.start(here.plan.terms.build(), ITEMS, Streams.from_seed(SEED))
    counts = expected.count([Batch(0, 0, 10, kept)])
    expected.fold(counts)
    assert counts.reports == (29, 0)
    assert np.array_equal(here.model(1), expected.items)


def test_a_batch_in_which_nothing_is_good_leaves_the_model(world):
    here = world()
    here.step()
    for tier in (0, 1):
        here.hand_over(tier, sealed=bytes(4 * K * SEALED_BYTES))
    assert here.close_round() == ["goal", "opened"]
    assert np.array_equal(here.model(1), here.model(0))
    assert sum(here.refused().values()) == 2 * 4 * K


@pytest.mark.parametrize("at_once", [1, 7, 1 << 24])
def test_duplicates_are_found_with_little_memory(monkeypatch, at_once):
    monkeypatch.setattr(duplicates, "AT_ONCE", at_once)
    rng = np.random.default_rng(3)
    table = rng.integers(0, 256, (60, SEALED_BYTES)).astype(np.uint8)
    table[[5, 50]] = table[31]
    table[59] = table[0]
    parts = [table[start : start + 20].tobytes() for start in (0, 20, 40)]
    refused = Counter()
    kept = b"".join(duplicates.once(lambda: iter(parts), 60, SEALED_BYTES, refused))
    assert refused == {"duplicate": 3}
    expected = np.delete(table, [31, 50, 59], axis=0)
    assert kept == expected.tobytes()


# --- keys -----------------------------------------------------------------------------------------


def test_a_new_key_is_for_the_next_round_and_the_former_one_goes(world):
    here = world(rounds=10)
    here.step()
    first = here.keys.newest()
    second = here.keys.rotate()
    assert here.position().report_key == first.public
    rounds = []
    for number in range(KEPT_ROUNDS + 1):
        rounds.append({0: here.hand_over(0, seed=number), 1: here.hand_over(1, seed=number)})
        assert here.close_round() == ["goal", "opened"]
        assert here.position().report_key == second.public
        with here.database.reading() as link:
            here.coordinator.tidy(link)
        assert (first in here.keys.all()) == (number + 1 < KEPT_ROUNDS), number
    assert here.keys.all() == [second]
    assert np.array_equal(here.model(KEPT_ROUNDS + 1), folded(rounds))


def test_without_its_key_a_round_waits_and_nothing_is_lost(world):
    here = world()
    here.step()
    rounds = [{0: here.hand_over(0), 1: here.hand_over(1)}]
    here.step()
    place = here.path / "report-keys.json"
    place.rename(here.path / "elsewhere")
    here.keys.create()
    with pytest.raises(KeyTrouble, match=key_id(here.position().report_key).hex()):
        here.step()
    (here.path / "elsewhere").rename(place)
    assert here.step() == ["goal", "opened"]
    assert np.array_equal(here.model(1), folded(rounds))


# --- what the server keeps beside the model -------------------------------------------------------


def _fcf_terms():
    return Terms("little-town", ITEMS, FCFConfig(embedding_size=FACTORS), Everything())


def test_adams_memory_is_as_durable_as_the_model(tmp_path):
    """A new process in every round gives the model of one that never stopped."""
    root = Streams.from_seed(SEED)
    plan = Plan(_fcf_terms(), "all", 4, root.key, quick_rules())
    server = Server.start(plan.terms.build(), ITEMS, root)
    assert server.memory.shape[1] > 0
    rng = np.random.default_rng(1)
    sums = [rng.integers(-(10**6), 10**6, (ITEMS, FACTORS)) for _ in range(4)]
    items = np.arange(ITEMS, dtype=np.int32)
    for number in range(4):
        database = Database.sqlite(tmp_path / "server.db")
        database.create()
        coordinator = Coordinator(plan, lambda: 0.0)
        with database.writing() as link:
            coordinator.start(link)
            before = records.model(link, number, FACTORS)[0]
            memory = records.memory(link, number, ITEMS)
            here = coordinator._server(before, number, memory)
            here.fold(SummedReports(number, items, sums[number], 5))
            changed = np.zeros(ITEMS, np.int32)
            records.save_model(link, number + 1, here.items, changed, here.memory)
            kept = link.execute(models.select().order_by(models.c.round)).all()
            assert [row.memory is not None for row in kept] == [False] * (len(kept) - 1) + [True]
        database.close()
        server.fold(SummedReports(number, items, sums[number], 5))
        assert np.array_equal(here.items, server.items)
        assert np.array_equal(here.memory, server.memory)
    forgetful = Server(plan.terms.build(), before, root, 3)
    forgetful.fold(SummedReports(3, items, sums[3], 5))
    assert not np.array_equal(forgetful.items, server.items), "the memory matters"
