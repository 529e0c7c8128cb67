"""The proxy's rules and its shuffle: what is taken, what is let go, and that its output says
nothing of who sent what or when."""

import secrets

import numpy as np
import pytest
from scipy import stats

from sottovoce.core.messages import BitReports
from sottovoce.errors import ConfigError, MessageError
from sottovoce.parties import shuffler as proxies
from sottovoce.parties.shuffler import Shuffler, ShufflerRules, in_parts


def bits(tier, reports=3, round=0, sender=None):
    n = len(tier)
    values = np.arange(n * reports, dtype=np.uint32).reshape(n, reports)
    who = np.arange(n, dtype=np.int64) if sender is None else np.array(sender)
    return BitReports(round, who, np.array(tier, dtype=np.int32), values)


def test_one_batch_for_each_tier_that_has_its_minimum():
    proxy = Shuffler([2, 3, 1], 3)
    sent = bits([0, 1, 0, 1, 0])
    (batch,) = proxy.collect(sent)
    assert (batch.round, batch.tier, batch.devices) == (0, 0, 3)
    assert sorted(batch.reports) == sorted(sent.reports[[0, 2, 4]].ravel())
    assert proxy.held == {1: 2}
    batches = proxy.collect(bits([2, 1, 1, 1], round=1))
    assert [(b.tier, b.devices, len(b.reports)) for b in batches] == [(1, 3, 9), (2, 1, 3)]
    assert proxy.held == {1: 2}


@pytest.mark.parametrize("minimum", [2, 20, 21])
def test_a_chain_waits_for_devices_to_spare_also_in_memory(minimum):
    """As the first shuffler of one does (test_chain_hop.py): engines let the same batches go."""
    least = minimum + {2: 1, 20: 1, 21: 2}[minimum]
    for shufflers, enough in ((1, minimum), (2, least), (3, least)):
        proxy = Shuffler([minimum], 3, shufflers)
        assert proxy.collect(bits([0] * (enough - 1))) == []
        assert proxy.held == {0: enough - 1}
        (batch,) = proxy.collect(bits([0] * enough, round=1))
        assert (batch.devices, len(batch.reports)) == (enough, 3 * enough)


def test_nobody_is_a_round_too():
    assert Shuffler([2], 3).collect(bits([])) == []


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (bits([0, 0, 0], reports=2), "must send 3"),
        (bits([0, 0, 0], reports=4), "must send 3"),
        (bits([0, 2, 0]), "tier"),
        (bits([0, -1, 0]), "tier"),
        (bits([0, 1, 0], sender=[5, 6, 5]), "twice"),
        (bits([0, 1, 0], sender=[5, 6]), "must"),
        (BitReports(0, np.arange(3), np.zeros(2, np.int32), np.zeros((3, 3), np.uint32)), "tier"),
    ],
)
def test_what_breaks_the_rules_is_refused_whole(sent, words):
    proxy = Shuffler([1, 1], 3)
    with pytest.raises(MessageError, match=words):
        proxy.collect(sent)
    assert len(proxy.collect(bits([0, 0, 0]))) == 1, "and leaves the round open"


def test_a_round_is_collected_once():
    proxy = Shuffler([1], 3)
    proxy.collect(bits([0], round=4))
    for round in (4, 3):
        with pytest.raises(MessageError, match="over"):
            proxy.collect(bits([0], round=round))


def test_rules():
    rules = ShufflerRules(3, (5, 2), (8, 1), hold_seconds=10.0)
    assert not rules.releases(0, 4, 1e9), "never below the minimum"
    assert not rules.releases(0, 5, 9.9)
    assert rules.releases(0, 5, 10.0)
    assert rules.releases(0, 8, 0.0)
    assert not rules.releases(1, 1, 1e9), "a goal does not lower the minimum"
    assert rules.releases(1, 2, 0.0)
    for wrong in (
        {"reports": 0},
        {"minimum": ()},
        {"minimum": (0,)},
        {"minimum": (1, 1), "goal": (1,)},
        {"hold_seconds": float("nan")},
        {"hold_seconds": -1.0},
        {"hold_seconds": float("inf")},
    ):
        with pytest.raises(ConfigError):
            ShufflerRules(**{"reports": 1, "minimum": (1,), **wrong})


# --- batches in parts -----------------------------------------------------------------------------


def records_of(content, size=6):
    return [content[at : at + size] for at in range(0, len(content), size)]


def numbered(n, size=6):
    """Records that say which they are."""
    table = np.zeros((n, size), dtype=np.uint8)
    table[:, :4] = np.arange(n, dtype="<u4").view(np.uint8).reshape(n, 4)
    return table


def numbers(parts, size=6):
    table = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, size)[:, :4]
    return np.ascontiguousarray(table).view("<u4").ravel()


def rows_of(table, step=7):
    return lambda: (table[at : at + step] for at in range(0, len(table), step))


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(proxies, "_BUCKET_BYTES", 100)
    monkeypatch.setattr(proxies, "_AT_ONCE", 3)


@pytest.mark.parametrize("n", [1, 16, 17, 160, 1_001])
def test_parts_are_all_records_in_one_order(small_buckets, n):
    seed = bytes(range(32))
    table = numbered(n)
    parts = list(in_parts(rows_of(table), n, 6, seed, per_part=50))
    assert [len(p) // 6 for p in parts] == [50] * (n // 50) + [n % 50] * (n % 50 > 0)
    assert sorted(numbers(parts)) == list(range(n))
    again = list(in_parts(rows_of(table, 100), n, 6, seed, per_part=50))
    assert again == parts, "however the rows are read"
    for first in range(len(parts) + 1):
        rest = list(in_parts(rows_of(table), n, 6, seed, per_part=50, first=first))
        assert rest == parts[first:]


def test_rows_that_changed_are_noticed(small_buckets):
    table = numbered(200)
    with pytest.raises((MessageError, ValueError)):
        list(in_parts(rows_of(table[:190]), 200, 6, bytes(32), per_part=50))


def order_statistic(counts, trials):
    """p-value of every record being equally likely in every place."""
    n = len(counts)
    expected = trials / n
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / n
    return stats.chi2.sf(statistic, (n - 1) ** 2)


def counted(batches, n):
    counts, trials = np.zeros((n, n)), 0
    for order in batches:
        counts[order, np.arange(n)] += 1
        trials += 1
    assert counts.sum() == trials * n
    return order_statistic(counts, trials)


def test_the_order_of_small_batches_is_uniform(small_buckets):
    """χ² over 10⁴ batches of 24 records, with seeds from the operating system."""
    n, table = 24, numbered(24)

    def batches():
        for _ in range(10_000):
            seed = secrets.token_bytes(32)
            yield numbers(in_parts(rows_of(table, 24), n, 6, seed, per_part=50))

    assert counted(batches(), n) > 1e-6


def test_an_order_that_keeps_a_little_of_arrival_is_caught():
    """Control: now and then a batch is passed on as it came."""
    rng = np.random.default_rng(1)
    orders = (np.arange(24) if rng.random() < 0.01 else rng.permutation(24) for _ in range(10_000))
    assert counted(orders, 24) < 1e-6


DEVICES, REPORTS, BATCHES = 20, 5, 2_000


def pairs_by_distance(batches):
    """How often records at each distance are of one device: what an attacker who knows only places
    can go by."""
    same = np.zeros(DEVICES * REPORTS - 1)
    for order in batches:
        device = order // REPORTS
        for distance in range(1, len(device)):
            same[distance - 1] += np.sum(device[distance:] == device[:-distance])
    return same


def best_gain(same, batches):
    """Largest deviation from chance over all distances, in standard deviations."""
    n = DEVICES * REPORTS
    chance = (REPORTS - 1) / (n - 1)
    tried = batches * (n - np.arange(1, n))
    return np.max((same - tried * chance) / np.sqrt(tried * chance * (1 - chance)))


def test_two_reports_of_one_device_cannot_be_paired_by_place():
    proxy = Shuffler([1], REPORTS)

    def batches():
        for round in range(BATCHES):
            sent = bits([0] * DEVICES, REPORTS, round)
            yield proxy.collect(sent)[0].reports.astype(np.int64)

    assert best_gain(pairs_by_distance(batches()), BATCHES) < 5.0


def test_the_linkage_attack_finds_a_proxy_that_mixes_devices_only():
    """Control: devices in a random order, half of their reports still side by side."""
    rng = np.random.default_rng(2)

    def batches():
        for _ in range(BATCHES // 10):
            order = np.arange(DEVICES * REPORTS).reshape(DEVICES, REPORTS)
            order = order[rng.permutation(DEVICES)].ravel()
            swapped = rng.permutation(np.flatnonzero(rng.random(len(order)) < 0.5))
            order[np.sort(swapped)] = order[swapped]
            yield order

    assert best_gain(pairs_by_distance(batches()), BATCHES // 10) > 10.0
