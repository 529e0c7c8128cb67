"""The release of randomised reports: who is in which tier, what it costs, whose coins are whose."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.one_bit import lowest, noise_keys, noise_root, nonce
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.reports import (
    MOST_REPORTS,
    MOST_TIERS,
    SEALED_BYTES,
    KReports,
    Tier,
)
from sottovoce.rng import Streams, chacha_words

RNG = Streams.from_seed(3)
ROOT = noise_root(17)


def people(*choices, attributes=()):
    return Consent.of(np.arange(len(choices)), choices, np.arange(len(choices)), attributes)


def bound(release, consent, root=ROOT, rng=RNG):
    return release.bind(consent.users, consent, None, rng, root)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-5, 16.5, 709.0, 1e300, np.inf, np.nan])
def test_an_epsilon_that_promises_nothing_or_cannot_be_kept_is_refused(epsilon):
    with pytest.raises(ConfigError, match="ε"):
        Tier(epsilon)
    with pytest.raises(ConfigError, match="ε"):
        lowest(epsilon)


@pytest.mark.parametrize("k", [0, -1, MOST_REPORTS + 1, 2.0, True, "5", None, np.nan])
def test_a_number_of_reports_that_cannot_be_is_refused(k):
    with pytest.raises(ConfigError, match="max_reports"):
        KReports(k)


@pytest.mark.parametrize("epsilon", [True, "1", None])
def test_an_epsilon_that_is_no_number_is_refused(epsilon):
    with pytest.raises(ConfigError, match="must be a number"):
        Tier(epsilon)


def test_as_many_reports_as_may_be():
    assert KReports(MOST_REPORTS).max_reports == MOST_REPORTS
    assert KReports(1).max_reports == 1


def test_tiers_are_tiers():
    with pytest.raises(ConfigError, match="list of tables"):
        KReports(5, (Tier(1.0), 2.0))
    assert KReports(5, [Tier(1.0, 2)]).tiers == (Tier(1.0, 2),)


@pytest.mark.parametrize("n", [1, 0, -5, 2.5, True])
def test_a_batch_that_hides_nobody_is_refused(n):
    with pytest.raises(ConfigError, match=r"min_devices must be (a whole|at least)"):
        Tier(1.0, n)


@pytest.mark.parametrize("epsilons", [(), (2.0, 1.0), (1.0, 1.0), (0.5, 2.0, 1.0)])
def test_tiers_must_be_there_and_ascend(epsilons):
    with pytest.raises(ConfigError, match="tiers"):
        KReports(5, tuple(Tier(e) for e in epsilons))


def test_a_tier_is_a_byte_on_the_wire():
    steps = np.linspace(0.1, 3.0, MOST_TIERS + 1)
    assert len(KReports(5, tuple(Tier(e) for e in steps[1:])).tiers) == 255
    with pytest.raises(ConfigError, match="255"):
        KReports(5, tuple(Tier(e) for e in steps))


# --- tiers and budgets ---------------------------------------------------------------------------

TIERS = KReports(10, (Tier(0.5), Tier(0.7), Tier(2.5)))


@pytest.mark.parametrize(
    ("accepted", "tier"),
    [(0.0, -1), (0.49, -1), (0.5, 0), (0.69, 0), (0.7, 1), (2.4999, 1), (2.5, 2), (np.inf, 2)],
)
def test_a_device_reports_at_the_largest_epsilon_its_owner_accepts(accepted, tier):
    consent = people(Choice(epsilon=accepted, max_reports=10))
    assert TIERS.tier_of(consent).tolist() == [tier]
    cost = bound(TIERS, consent).cost()
    assert cost.tolist() == [0.0 if tier < 0 else 10 * TIERS.tiers[tier].epsilon]


@pytest.mark.parametrize(("permitted", "tier"), [(0, -1), (9, -1), (10, 2), (11, 2)])
def test_who_accepts_fewer_reports_sends_none_instead_of_fewer(permitted, tier):
    """A device that sent fewer would stand out."""
    assert TIERS.tier_of(people(Choice(epsilon=3.0, max_reports=permitted))).tolist() == [tier]


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("rounds", [1, 3, 20, 1000])
def test_a_limit_of_t_rounds_permits_t_rounds(epsilon, k, rounds):
    """The sums of 0.1 that floating point makes must cost nobody a round, and win nobody one."""
    each = k * epsilon
    consent = people(
        Choice(epsilon=epsilon, max_reports=k, total_epsilon=rounds * each),
        Choice(epsilon=epsilon, max_reports=k, total_epsilon=rounds * each * (1 - 1e-9)),
        Choice(epsilon=epsilon, max_reports=k),
    )
    release = bound(KReports(k, (Tier(epsilon),)), consent)
    spent, sent = np.zeros(3), np.zeros(3, dtype=int)
    for _ in range(rounds + 2):
        permitted = release.permits(spent)
        sent += permitted
        spent += np.where(permitted, release.cost(), 0.0)
    assert sent.tolist() == [rounds, rounds - 1, rounds + 2]


def test_no_budget_permits_nothing_and_no_tier_neither():
    consent = people(
        Choice(epsilon=1.0, max_reports=10, total_epsilon=0.0), Choice(), Choice(epsilon=1.0)
    )
    assert not bound(TIERS, consent).permits(np.zeros(3)).any()


def test_what_is_spent_beyond_the_limit_permits_nothing():
    """A limit that was lowered after the fact."""
    consent = people(Choice(epsilon=0.5, max_reports=10, total_epsilon=5.0))
    assert not bound(TIERS, consent).permits(np.array([50.0])).any()


def test_several_rounds_are_paid_for_before_the_first():
    consent = people(*[Choice(epsilon=0.5, max_reports=10, total_epsilon=10.0)] * 3)
    times = np.array([0, 2, 3])
    assert bound(TIERS, consent).permits(np.zeros(3), times).tolist() == [True, True, False]
    assert not bound(TIERS, consent).permits(np.full(3, 10.0), times).any(), "one is asked for"


def test_what_leaves_is_charged():
    release = bound(TIERS, people(Choice(epsilon=0.5, max_reports=10)))
    assert release.spends
    assert np.array_equal(release.epsilons, release.cost())


def test_who_has_chosen_what_it_cannot_give_is_in_no_tier():
    yes = Choice(epsilon=3.0, max_reports=10)
    consent = people(
        yes, replace(yes, share_positives=0.1), replace(yes, hidden_attributes=("age",)),
        attributes=("age",),
    )  # fmt: skip
    assert TIERS.tier_of(consent).tolist() == [2, -1, -1]


def test_the_ledger_rows_say_all_of_it():
    tiers = KReports(10, (Tier(0.5, 30), Tier(2.5, 70)))
    consent = people(*(Choice(epsilon=e, max_reports=50) for e in (3.0, 0.6, 2.5)))
    rows = bound(tiers, consent).entries(np.array([0, 1, 2]), round=6)
    assert rows.kind == "k-reports"
    assert rows.epsilon.tolist() == [25.0, 5.0, 25.0]
    assert rows.report_epsilon.tolist() == [2.5, 0.5, 2.5]
    assert rows.reports.tolist() == [10] * 3
    assert rows.batch.tolist() == [70, 30, 70]
    assert rows.round.tolist() == [6] * 3
    assert rows.bytes.tolist() == [10 * SEALED_BYTES] * 3
    assert not rows.positive_rows.any()
    assert not rows.negative_rows.any()


# --- consent that it cannot keep to --------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "named"),
    [({"share_positives": 0.1}, "share_positives"), ({"hidden_attributes": ("age",)}, "hides")],
)
def test_what_it_cannot_do_is_refused_not_ignored(wish, named):
    willing = Choice(epsilon=1.0, max_reports=10)
    with pytest.raises(ConsentError, match=named):
        bound(TIERS, people(willing, replace(willing, **wish), attributes=("age",)))
    at_home = Choice(takes_part=False, **wish)  # nothing of theirs leaves
    bound(TIERS, people(willing, at_home, attributes=("age",)))


@pytest.mark.parametrize("root", [b"", b"x" * 31, b"x" * 33])
def test_coins_need_a_whole_root(root):
    with pytest.raises(ConfigError, match="32 bytes"):
        bound(TIERS, people(Choice(epsilon=1.0, max_reports=10)), root)


# --- coins and coordinates -----------------------------------------------------------------------


def coins(rule, row, blocks=4):
    """The coins that a kernel tosses for a device."""
    out = np.empty((blocks, 16), dtype=np.uint32)
    for block in range(blocks):
        chacha_words(rule.noise[row], nonce(rule.round), block, out[block])
    return out.ravel()


def rule_of(round=0, root=ROOT, rng=RNG, n=30, rows=None):
    consent = Consent.uniform(np.arange(n), Choice(epsilon=1.0, max_reports=10))
    rows = np.arange(n) if rows is None else rows
    return bound(TIERS, consent, root, rng).report_rule(rows, round, 1.0)


def test_no_two_devices_rounds_or_roots_share_a_coin_stream():
    other = noise_root(18)
    streams = [
        coins(rule_of(round, root), row)
        for round in (0, 1, 2**32, 2**40)
        for root in (ROOT, other)
        for row in range(30)
    ]
    assert len({s.tobytes() for s in streams}) == 240
    words = np.concatenate(streams)
    assert len(np.unique(words)) > len(words) - 10  # nor a part of one


def test_coins_depend_on_root_user_and_round_alone():
    """Not on the seed that draws coordinates, which the server knows, nor on who else is there."""
    plain, seeded = rule_of(5), rule_of(5, rng=Streams.from_seed(99))
    assert np.array_equal(plain.noise, seeded.noise)
    assert not np.array_equal(plain.keys, seeded.keys)
    some = rule_of(5, rows=np.array([7, 3]))
    assert np.array_equal(some.noise, plain.noise[[7, 3]])
    assert np.array_equal(some.keys, plain.keys[[7, 3]])


def test_coordinates_differ_between_rounds_and_devices_and_not_with_the_root():
    keys = np.concatenate([rule_of(round).keys for round in range(20)])
    assert len(np.unique(keys)) == 600
    assert np.array_equal(rule_of(3).keys, rule_of(3, root=noise_root(18)).keys)


def test_a_devices_key_is_a_keyed_hash_of_its_number():
    key = hashlib.blake2b((41).to_bytes(8, "little"), key=ROOT, digest_size=32).digest()
    assert noise_keys(ROOT, np.array([41])).astype("<u4").tobytes() == key


def test_thresholds_follow_the_tier():
    consent = people(*(Choice(epsilon=e, max_reports=10) for e in (0.5, 0.7, 9.0)))
    rule = bound(TIERS, consent).report_rule(np.array([2, 0, 1]), 0, 1.0)
    assert rule.low.tolist() == [lowest(2.5), lowest(0.5), lowest(0.7)]


def test_nothing_private_is_shown():
    consent = people(Choice(epsilon=1.0, max_reports=10))
    release = bound(TIERS, consent)
    rule = release.report_rule(np.array([0]), 0, 1.0)
    for shown in (repr(release), repr(rule), str(rule)):
        assert str(rule.noise[0, 0]) not in shown
        assert len(shown) < 120
