"""Caps against malicious devices: what they bound, and that they leave honest sums alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.messages import GRID, DeviceReports, add_up
from sottovoce.errors import ConfigError
from sottovoce.parties.defence import Allowances, Defence, defended_groups, row_norms

WIDTH = 3
HIGH = Defence(burst=1000.0, max_sum_norm=1e6)


def report(sender, rows, round=0):
    """{item: row} in units, as one device's message."""
    item = np.array(sorted(rows), dtype=np.int32)
    values = np.array([rows[i] for i in item.tolist()], dtype=np.float64).reshape(-1, WIDTH)
    whole = np.rint(values * GRID).astype(np.int64)
    return DeviceReports(round, np.full(len(item), sender, np.int64), item, whole)


def defended(defence, batches):
    """One round under a defence that has seen no other."""
    return defence.guard().sum_reports(0, batches, WIDTH)


def equal(one, other):
    return (
        np.array_equal(one.item, other.item)
        and np.array_equal(one.sums, other.sums)
        and (one.round, one.devices) == (other.round, other.devices)
    )


def norms(total):
    return dict(zip(total.item.tolist(), row_norms(total.sums) / GRID, strict=True))


numbers = st.floats(-5.0, 5.0, width=32)
tables = st.dictionaries(st.integers(0, 6), st.tuples(*[numbers] * WIDTH), max_size=4)
crowds = st.lists(tables, min_size=1, max_size=6).map(
    lambda found: [report(sender, rows) for sender, rows in enumerate(found)]
)
caps = st.builds(
    Defence,
    burst=st.sampled_from([0.0, 0.5, 3.0]),
    max_sum_norm=st.sampled_from([0.0, 1.5]),
)


@settings(deadline=None)
@given(crowds)
def test_caps_that_nobody_reaches_change_nothing(batches):
    plain = add_up(0, batches, WIDTH)
    assert equal(defended(Defence(), batches), plain)
    assert equal(defended(HIGH, batches), plain)


@settings(deadline=None)
@given(crowds, caps, st.randoms(use_true_random=False))
def test_neither_order_nor_batching_matters(batches, defence, chance):
    shuffled = list(batches)
    chance.shuffle(shuffled)
    one = DeviceReports(
        0,
        np.concatenate([b.sender for b in shuffled]),
        np.concatenate([b.item for b in shuffled]),
        np.concatenate([b.values for b in shuffled]),
    )
    expected = defended(defence, batches)
    assert equal(defended(defence, shuffled), expected)
    assert equal(defended(defence, [one]), replace(expected))


@settings(deadline=None)
@given(crowds, st.floats(0.1, 3.0))
def test_one_device_moves_a_row_by_the_cap_at_most(batches, cap):
    without, loud = batches[1:], batches[0]
    alone = defended(Defence(burst=cap), [loud])
    assert all(length <= cap + 1e-6 for length in norms(alone).values())
    before = defended(Defence(burst=cap), without).dense(7)
    after = defended(Defence(burst=cap), batches).dense(7)
    assert (row_norms(after - before) / GRID <= cap + 1e-6).all()


def test_a_burst_comes_back_over_the_rounds():
    guard = Defence(burst=1.0, refill_rounds=10).guard()

    def counted(round, sender=7, item=0):
        message = report(sender, {item: (5, 0, 0)}, round)
        return norms(guard.sum_reports(round, [message], WIDTH)).get(item, 0.0)

    assert counted(0) == pytest.approx(1.0, abs=1e-6)
    assert counted(1) == pytest.approx(0.1, abs=1e-6)
    assert counted(1, sender=8) == pytest.approx(1.0, abs=1e-6), "every device has its own"
    assert counted(1, item=3) == pytest.approx(1.0, abs=1e-6), "and for every item"
    assert counted(6) == pytest.approx(0.5, abs=1e-6)
    assert counted(99) == pytest.approx(1.0, abs=1e-6)


def test_a_guard_without_memory_is_found_out():
    """The broken control: a fresh allowance in each round lets a device push for ever."""
    defence, sent = Defence(burst=1.0, refill_rounds=100), report(7, {0: (5, 0, 0)})
    guard = defence.guard()

    def moved(sum_reports):
        sums = [sum_reports(round, [replace(sent, round=round)], WIDTH) for round in range(20)]
        return sum(norms(total)[0] for total in sums)

    def forgetful(round, batches, width):
        return defence.guard().sum_reports(round, batches, width)

    assert moved(guard.sum_reports) <= 1.2
    assert moved(forgetful) > 19.9


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), unique=True, max_size=20), min_size=1, max_size=30))
def test_buckets_are_those_of_a_plain_table(rounds):
    """Beside a dictionary that forgets nothing; the table is made to grow on the way."""
    left, levels = Allowances(1.0, 0.25), {}
    for round, pairs in enumerate(rounds):
        many = np.array([*pairs, *range(1000 * round + 51, 1000 * round + 551)], dtype=np.int64)
        amounts = 0.1 + (many % 7) / 5.0
        shares = left.shares(round, many, amounts)
        levels = {pair: max(0.0, level - 0.25) for pair, level in levels.items()}
        for pair, amount, share in zip(pairs, amounts, shares, strict=False):
            room = 1.0 - levels.get(pair, 0.0)
            assert share == pytest.approx(min(1.0, room / amount), abs=1e-9)
            levels[pair] = levels.get(pair, 0.0) + amount * min(1.0, room / amount)


def test_a_sum_is_capped_by_its_median_row():
    batches = [report(0, {i: (1, 0, 0) for i in range(5)} | {9: (0, 400, 0)})]
    total = add_up(0, batches, WIDTH)
    found = norms(Defence(max_sum_norm=3.0).guard().sum_opened(total))
    assert found == pytest.approx({0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 9: 3}, abs=1e-6)
    assert equal(Defence(max_sum_norm=500.0).guard().sum_opened(total), total)


def test_a_loud_device_spoils_its_group_alone():
    quiet = [add_up(0, [report(n, {0: (0, 0.5, 0)})], WIDTH) for n in range(3)]
    loud = add_up(0, [report(9, {0: (1e5, 0, 0)})], WIDTH)
    total = defended_groups(0, [*quiet, loud], 1.0, WIDTH)
    assert total.devices == 4
    assert (total.sums[0] / GRID).tolist() == pytest.approx([1.0, 1.5, 0.0], abs=1e-6)


@pytest.mark.parametrize("fields", [{"burst": -1.0}, {"max_sum_norm": -1.0}, {"refill_rounds": 0}])
def test_caps_that_make_no_sense_are_refused(fields):
    with pytest.raises(ConfigError, match="defence"):
        Defence(**fields)


def test_allowances_tell_nobody_anything():
    left = Allowances(1.0, 0.1)
    left.shares(0, np.array([123456789]), np.array([1.0]))
    assert "123456789" not in repr(left)
