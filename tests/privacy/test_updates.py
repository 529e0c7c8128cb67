"""Clipped updates: the noise follows its law, ε is what is promised and no less is claimed than is
true, and consent is kept to."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from audits import lower_bound
from scipy import stats

from sottovoce.core.consent import ALWAYS, Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import GRID, DeviceReports, add_up
from sottovoce.core.one_bit import noise_keys, noise_root
from sottovoce.errors import ConfigError, ConsentError, DataError
from sottovoce.privacy import laplace
from sottovoce.privacy.laplace import MOST_SCALE, ROUNDING, add_laplace, add_laplace_sums
from sottovoce.privacy.updates import LIMIT, Clipped, noise_scale, steps, within_l1
from sottovoce.rng import Streams, chacha_words
from sottovoce.wire.reports import decode_report, encode_report

ROOT = noise_root(17)
RNG = Streams.from_seed(3)
ONE = int(GRID)
SHARES = Choice(share_positives=1.0)
SCALES = [1, 2, 3, 31, 63, 64, 1000]
HUGE = [2**28, 2**33 + 12345, MOST_SCALE]


def draws(scale, n=200_000, user=0, round=0, root=ROOT):
    """The noise of the first n coordinates of a table."""
    table = np.zeros((n // 50, 50), dtype=np.int64)
    add_laplace_sums(table, noise_keys(root, np.array([user])), np.array([scale]), round, 50)
    return table.ravel()


# --- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_every_value_has_its_probability(scale):
    drawn = draws(scale)
    ratio = math.exp(-1 / scale)
    most = int(6 * scale)
    inside = np.bincount(np.clip(drawn, -most, most) + most, minlength=2 * most + 1)
    value = np.arange(-most, most + 1)
    expected = (1 - ratio) / (1 + ratio) * ratio ** np.abs(value)
    expected[[0, -1]] = ratio**most / (1 + ratio)  # and all beyond
    expected *= len(drawn)
    # Neighbours are taken together until there are enough of them.
    group = np.cumsum(expected).astype(int) // 40
    seen = np.bincount(group, inside)
    there = np.bincount(group, expected)
    assert stats.chisquare(seen[there > 0], there[there > 0]).pvalue > 1e-4


@pytest.mark.parametrize("scale", HUGE)
def test_large_scales_follow_the_law_and_use_every_bit(scale):
    drawn = draws(scale)
    fine = (drawn + 0.5) / scale
    assert stats.kstest(fine, stats.laplace.cdf).pvalue > 1e-4
    for bit in range(8):
        ones = int(((np.abs(drawn) >> bit) & 1).sum())
        assert stats.binomtest(ones, len(drawn)).pvalue > 1e-5


@pytest.mark.parametrize("scale", [3, 2**28])
def test_tails_are_as_heavy_as_they_should_be_and_never_end(scale):
    """Beyond 4 s the table starts again, beyond 8 s a third time."""
    drawn = np.abs(draws(scale, 2_000_000))
    ratio = math.exp(-1 / scale)
    for times in (4, 6, 8, 10):
        far = math.ceil(times * scale)
        expected = 2 * ratio**far / (1 + ratio)
        assert stats.binomtest(int((drawn >= far).sum()), len(drawn), expected).pvalue > 1e-4
    assert drawn.max() > 11 * scale


@pytest.mark.parametrize("scale", [64, 2**28, MOST_SCALE])
def test_low_bits_fall_off_as_they_should(scale):
    """Within 2^m steps, by which the table proceeds, the law still falls: by e^(-1/64) from the one
    half to the other."""
    half = scale >> 6
    upper = int((np.abs(draws(scale, 2_000_000)) // half % 2).sum())
    ratio = math.exp(-1 / scale)
    # 0 has one sign, all else two.
    expected = 1 / (1 + math.exp(1 / 64)) * 2 / (1 + ratio)
    assert stats.binomtest(upper, 2_000_000, expected).pvalue > 1e-4


@pytest.mark.parametrize("scale", [*SCALES, *HUGE, MOST_SCALE - 1])
def test_rounding_is_no_larger_than_stated(scale):
    """What thresholds and coins miss of the true probabilities, in exact arithmetic."""
    cuts, _, last, shift, _ = laplace._table(scale)
    with localcontext() as context:
        context.prec = 60
        ratio = (-Decimal(1 << shift) / Decimal(scale)).exp()
        edges = [0, *(int(cut) for cut in cuts[:last])]
        worst = Decimal(0)
        for j in range(last):
            exact = (1 - ratio) * ratio**j
            worst = max(worst, abs(Decimal(edges[j + 1] - edges[j]) / 2**64 / exact - 1))
        behind = abs((1 - Decimal(edges[-1]) / 2**64) / ratio**last - 1)
        coin = Decimal(0)
        for low in np.linspace(0, (1 << shift) - 1, 300).astype(np.int64).tolist():
            kept = math.ceil(math.exp(-low / scale) * 2.0**53)
            exact = (-Decimal(low) / Decimal(scale)).exp()
            coin = max(coin, abs(Decimal(kept) / 2**53 / exact - 1))
        # On either side of a ratio; and 50 more starts, which nobody will see.
        assert 2 * (worst + coin + 50 * behind) < Decimal(ROUNDING)
        assert (1 << shift) - 1 <= -scale * math.log(laplace._SURE / 2**26)


# --- the stream ----------------------------------------------------------------------------------


def by_hand(key, round, at, scale):
    """The noise of one coordinate, written down again in plain numbers."""

    def words():
        out = np.empty(16, dtype=np.uint32)
        chacha_words(key, np.array([round, 0, 1], np.uint32), at // 4, out)
        for half in (0, 2):
            w = 4 * (at % 4) + half
            yield int(out[w]) | int(out[w + 1]) << 32
        for stream in range(2, 1000):
            chacha_words(key, np.array([round, 0, stream], np.uint32), at, out)
            for w in range(0, 16, 2):
                yield int(out[w]) | int(out[w + 1]) << 32

    cuts, _, last, shift, _ = laplace._table(scale)
    places = [int(cut) for cut in cuts[:last]]
    word = words()
    while True:
        high = 0
        while (first := next(word)) >= places[-1]:
            high += last
        high += next(j for j, cut in enumerate(places) if first < cut)
        second = next(word)
        low, coin = (second >> 1) % (1 << shift), second >> 38
        if coin >= laplace._SURE:
            coin = (coin << 27) | (next(word) >> 37)
            if coin >= math.exp(-low / scale) * 2.0**53:
                continue
        length = (high << shift) | low
        if second % 2 == 0 or length:
            return -length if second % 2 else length


@pytest.mark.parametrize("scale", [1, 40, 2**28])
def test_noise_is_a_function_of_key_round_and_coordinate(scale):
    key = noise_keys(ROOT, np.array([5]))
    rows = np.array([0, 1, 7, 8, 90_000_000])
    values = np.zeros((5, 50), dtype=np.int64)
    add_laplace(values, rows, np.zeros(5, np.int64), key, np.array([scale]), 6, 47)
    wanted = [[by_hand(key[0], 6, 47 * row + f, scale) for f in range(47)] for row in rows.tolist()]
    assert values[:, :47].tolist() == wanted
    assert not values[:, 47:].any()


@pytest.mark.parametrize("threads", [1, 3])
def test_many_devices_at_once_get_what_each_gets_alone(threads):
    n, rows, width = 7, 61, 14
    keys, scales = noise_keys(ROOT, np.arange(n)), 1000 * np.arange(1, n + 1)
    given = np.random.default_rng(1).integers(-999, 999, (n, rows, width))
    alone = given.copy()
    for d in range(n):
        one = slice(d, d + 1)
        every = np.arange(rows), np.zeros(rows, dtype=np.int64)
        add_laplace(alone[d], *every, keys[one], scales[one], 4, width - 1)
    together = given.copy().reshape(-1, width)
    where = np.tile(np.arange(rows), n), np.repeat(np.arange(n), rows)
    add_laplace(together, *where, keys, scales, 4, width - 1, threads)
    assert np.array_equal(together.reshape(alone.shape), alone)
    sums = given.sum(axis=0)
    add_laplace_sums(sums, keys, scales, 4, width - 1, threads)
    assert np.array_equal(sums, alone.sum(axis=0))
    some = np.array([3, 40])  # nor does it matter which rows are there
    few = given[2][some]
    add_laplace(few, some, np.full(2, 2), keys, scales, 4, width - 1)
    assert np.array_equal(few, alone[2][some])


def test_devices_rounds_roots_and_coordinates_have_noise_of_their_own():
    scale, n = 1 << 20, 40_000
    base = draws(scale, n)
    others = [
        draws(scale, n, user=1), draws(scale, n, round=1), draws(scale, n, round=1 << 32),
        draws(scale, n, root=noise_root(18)), np.roll(base, 1), np.roll(base, 4), np.roll(base, 64),
    ]  # fmt: skip
    for other in others:
        assert (base == other).mean() < 0.001
        cells = np.zeros((6, 6))
        edges = scale * np.array([-1.5, -0.5, 0.0, 0.5, 1.5])
        np.add.at(cells, (np.searchsorted(edges, base), np.searchsorted(edges, other)), 1)
        assert stats.chi2_contingency(cells).pvalue > 1e-4


@pytest.mark.parametrize("scale", [0, -1, MOST_SCALE + 1])
def test_a_scale_that_cannot_be_is_refused(scale):
    with pytest.raises(ConfigError, match="scale"):
        draws(scale, 50)


def test_noise_that_does_not_fit_its_table_is_refused():
    keys, scales, zero = noise_keys(ROOT, np.arange(2)), np.array([9, 9]), np.array([0])
    table = np.zeros((1, 4), dtype=np.int64)
    for wrong in (
        (table.astype(np.float64), zero, zero, keys, scales, 0, 3),
        (table, zero, zero, keys, scales, 0, 5),
        (table, zero, zero, keys[:1], scales, 0, 3),
        (table, zero - 1, zero, keys, scales, 0, 3),
        (table, zero + 2**32, zero, keys, scales, 0, 3),
        (table, zero, zero + 2, keys, scales, 0, 3),
        (table, np.array([0, 1]), zero, keys, scales, 0, 3),
    ):
        with pytest.raises(DataError):
            add_laplace(*wrong)
    assert not table.any()


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"norm": "l3"}, "norm"),
        ({"clip": 0.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"clip": 128.0, "norm": "scalar", "epsilon": 1.0}, "clip"),
        ({"epsilon": 1.0}, "adds no noise"),
        ({"hiding_epsilon": 1.0}, "adds no noise"),
        ({"norm": "l1"}, "epsilon above 0"),
        ({"norm": "scalar"}, "epsilon above 0"),
        ({"norm": "l1", "hiding_epsilon": 0.5}, "epsilon above 0"),
        ({"norm": "l1", "epsilon": -1.0}, "epsilon"),
        ({"norm": "l1", "epsilon": math.inf}, "epsilon"),
        ({"norm": "l1", "epsilon": math.nan}, "epsilon"),
        ({"norm": "l1", "epsilon": 1.0, "hiding_epsilon": 1.1}, "hiding_epsilon"),
        ({"norm": "l1", "epsilon": 1e-6}, "noise"),
        ({"norm": "l1", "epsilon": 1.0, "hiding_epsilon": 1e-6}, "noise"),
    ],
)
def test_settings_that_promise_what_they_cannot_keep_are_refused(wrong, named):
    with pytest.raises(ConfigError, match=named):
        Clipped(**wrong)


def test_the_range_of_settings():
    for clip in (1.5 / GRID, 2.0**20):
        assert Clipped(clip).clip == clip
    for clip in (1 / GRID, 2.0**20 + 1):
        with pytest.raises(ConfigError, match=r"release\.clip must"):
            Clipped(clip)
    assert Clipped(1.0, "l1", 1e6).epsilon == 1e6
    for name in ("epsilon", "hiding_epsilon"):
        for value in (-0.1, 1e6 + 1):
            with pytest.raises(ConfigError, match=rf"release\.{name} must lie"):
                Clipped(1.0, "l1", **{"epsilon": 1.0, name: value})
    with pytest.raises(ConfigError, match=r"release\.norm must"):
        Clipped(norm="l3", epsilon=1.0)
    most = LIMIT
    assert Clipped(most, "scalar", 1.0).clip == most
    with pytest.raises(ConfigError, match="for each number"):
        Clipped(most * 1.01, "scalar", 1.0)
    assert Clipped(1.0, "l1", 1.0, 1.0).hiding_epsilon == 1.0
    assert Clipped(2 * most, "l1", 1.0).clip == 2 * most


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("clip", [0.1, 1 / 3, 8.0])
def test_noise_is_never_less_than_two_clips_by_epsilon(clip, epsilon):
    scale, whole = noise_scale(clip, epsilon), steps(clip)
    assert whole <= clip * GRID < whole + 1
    # A million numbers of rounding included.
    assert 2 * whole / scale + 1e6 * ROUNDING < epsilon < 2.001 * whole / scale


@pytest.mark.parametrize("epsilon", [0.3, 0.7, 1.1])
def test_rounding_elsewhere_is_paid_for_in_full(epsilon):
    wanted = 2 * ONE / Fraction(epsilon) * (1 + Fraction(1, 1 << 16))
    assert wanted <= noise_scale(1.0, epsilon) < wanted + 1


# --- consent -------------------------------------------------------------------------------------

SOUND = Clipped(clip=1.0, norm="l1", epsilon=0.5)
PRINTED = Clipped(clip=1.0, norm="scalar", epsilon=0.5)
PLAIN = Clipped(clip=1.0)


def people(*choices, attributes=("age",)):
    return Consent.of(np.arange(len(choices)), choices, np.arange(len(choices)), attributes)


def bound(release, consent, root=ROOT):
    n = len(consent)
    history = Interactions.from_pairs(np.arange(n), np.zeros(n, np.int64), n_users=n, n_items=4)
    return release.bind(consent.users, consent, history, RNG, root)


@pytest.mark.parametrize("release", [SOUND, PRINTED, PLAIN])
def test_everything_leaves_and_attributes_may_be_hidden(release):
    release = bound(release, people(SHARES, replace(SHARES, hidden_attributes=("age",))))
    rule = release.rule(np.array([1, 0]), np.array([3]))
    assert rule.may_leave(np.repeat([0, 1], 50), np.zeros(100, dtype=np.int64)).all()
    assert rule.threshold.tolist() == [ALWAYS] * 2
    assert release.round_key(1) != release.round_key(2)


@pytest.mark.parametrize(
    ("wish", "named", "who"),
    [
        ({"max_reports": 5}, "max_reports", (SOUND, PRINTED, PLAIN)),
        ({"epsilon": 1.0}, "cannot keep", (PRINTED, PLAIN)),
        ({"total_epsilon": 9.0}, "cannot keep", (PRINTED, PLAIN)),
        ({"share_positives": 0.99}, "share_positives", (SOUND, PRINTED)),
        ({"share_positives": 0.0}, "share_positives", (SOUND, PRINTED)),
        ({"epsilon": 1e-6}, "noise", (SOUND,)),
    ],
)
def test_what_it_cannot_do_is_refused_not_ignored(wish, named, who):
    for release in who:
        with pytest.raises((ConsentError, ConfigError), match=named):
            bound(release, people(SHARES, replace(SHARES, **wish)))
        bound(release, people(SHARES, replace(SHARES, takes_part=False, **wish)))


def test_who_shares_nothing_takes_part_where_rows_say_nothing_and_a_cost_is_accepted():
    release = bound(SOUND, people(Choice(epsilon=0.2), Choice(epsilon=4.0), SHARES))
    assert release.epsilons.tolist() == pytest.approx([0.2, 0.5, 0.5])


def test_an_upload_costs_each_device_what_its_owner_accepts():
    release = replace(SOUND, epsilon=0.7, hiding_epsilon=0.3)
    hides = {"hidden_attributes": ("age",)}
    consent = people(
        SHARES,
        replace(SHARES, **hides),
        Choice(epsilon=0.1, **hides),
        Choice(epsilon=0.5, **hides),
        Choice(epsilon=0.7),
        Choice(epsilon=0.1),
    )
    costs = bound(release, consent).epsilons
    assert costs == pytest.approx([0.7, 0.3, 0.1, 0.3, 0.7, 0.1])
    assert costs[4] == 0.7
    assert bound(release, consent).epsilons.max() == 0.7
    per_number = bound(replace(release, norm="scalar"), people(SHARES, replace(SHARES, **hides)))
    assert per_number.epsilons.tolist() == [math.inf, math.inf]
    assert per_number.price_per_number(1000).tolist() == pytest.approx([700.0, 300.0])
    assert per_number.price_per_number(np.array([10]), np.array([1])).tolist() == pytest.approx([3])


def test_who_hides_one_of_two_attributes_hides_and_pays_as_all_do_where_all_are_treated_alike():
    hides = replace(SHARES, hidden_attributes=("age",))
    consent = people(SHARES, hides, attributes=("age", "sex"))
    assert bound(SOUND, consent).epsilons.tolist() == [0.5, 0.5]
    assert bound(replace(SOUND, hiding_epsilon=0.25), consent).epsilons.tolist() == [0.5, 0.25]


def test_only_noise_of_their_own_shows_who_hides_something():
    assert not replace(SOUND, hiding_epsilon=0.0).shows_hiding
    assert replace(SOUND, hiding_epsilon=0.25).shows_hiding


def test_where_rows_say_nothing_nothing_is_held_back():
    """Her positives are in the noise; to leave them out as well would spoil the model alone."""
    rule = bound(SOUND, people(Choice(epsilon=0.2), SHARES)).rule(np.arange(2), np.array([3]))
    assert rule.may_leave(np.arange(2), np.arange(2)).all()
    nobody = bound(PLAIN, people(Choice(), Choice())).rule(np.arange(2), np.array([3]))
    assert not nobody.may_leave(np.arange(2), np.arange(2)).any()
    plain = bound(PLAIN, people(SHARES, Choice(), replace(SHARES, takes_part=False)))
    rule = plain.rule(np.arange(3), np.array([3]))
    assert rule.may_leave(np.arange(3), np.arange(3)).tolist() == [True, False, True]


def test_so_much_noise_as_the_server_takes_may_be_asked_for():
    """An eighth of the smallest ε of the terms, to the last digit."""
    for release, least in ((SOUND, 0.5 / 8), (replace(SOUND, hiding_epsilon=0.25), 0.25 / 8)):
        bound(release, people(SHARES, Choice(epsilon=least)))
        with pytest.raises(ConsentError, match="so much noise"):
            bound(release, people(SHARES, Choice(epsilon=least * 0.999)))


def test_noise_on_sums_keeps_a_limit_that_the_release_alone_cannot():
    consent = people(replace(SHARES, total_epsilon=2.0))
    history = Interactions.from_pairs([0], [0], n_users=1, n_items=4)
    with pytest.raises(ConsentError, match="epsilon or total_epsilon is set"):
        PLAIN.bind(consent.users, consent, history, RNG, ROOT)
    PLAIN.bind(consent.users, consent, history, RNG, ROOT, noisy_sums=True)
    own = people(replace(SHARES, epsilon=1.0))
    with pytest.raises(ConsentError, match="epsilon is set"):
        PLAIN.bind(own.users, own, history, RNG, ROOT, noisy_sums=True)


def test_what_it_says_of_its_noise_is_what_it_adds():
    hides = replace(SHARES, hidden_attributes=("age",))
    consent = people(hides, SHARES, hides)
    expected = [2 / 0.25, 2 / 0.5, 2 / 0.25]
    for release in (SOUND, PRINTED):
        assert not replace(release, norm="l2", epsilon=0.0).adds_noise
        release = bound(replace(release, hiding_epsilon=0.25), consent)
        assert release.scales() == pytest.approx(expected, rel=1e-4)
        assert (release.scales() >= expected).all()
        assert release.per_row == (release.kind == "clipped-scalar")
    plain = bound(PLAIN, consent)
    assert (plain.scales().tolist(), plain.per_row) == ([0.0] * 3, False)


def test_what_an_upload_costs_does_not_depend_on_its_size_where_it_has_one_price():
    consent = people(Choice(epsilon=0.2), SHARES)
    for release, costs in ((SOUND, [0.2, 0.5]), (PLAIN, [math.inf, math.inf])):
        if release is PLAIN:
            consent = people(SHARES, SHARES)
        one = bound(release, consent)
        assert one.price_per_number(1000).tolist() == pytest.approx(costs)
        assert one.price_per_number(1000, np.array([1])).tolist() == pytest.approx(costs[1:])


def test_several_uploads_are_paid_for_before_the_first():
    consent = people(*[replace(SHARES, total_epsilon=1.0)] * 3)
    times = np.array([0, 2, 3])
    assert bound(SOUND, consent).permits(np.zeros(3), times).tolist() == [True, True, False]
    assert not bound(SOUND, consent).permits(np.ones(3), times).any(), "one is asked for"


def test_what_leaves_is_charged():
    for release in (SOUND, PRINTED, PLAIN):
        assert bound(release, people(SHARES)).spends


def test_a_limit_for_all_time_permits_as_many_uploads_as_it_pays_for():
    consent = people(replace(SHARES, total_epsilon=1.5), replace(SHARES, total_epsilon=0.4), SHARES)
    release, spent, sent = bound(SOUND, consent), np.zeros(3), np.zeros(3, dtype=int)
    for _ in range(5):
        permitted = release.permits(spent)
        sent += permitted
        spent += np.where(permitted, release.epsilons, 0.0)
    assert sent.tolist() == [3, 0, 5]
    assert bound(PLAIN, people(SHARES)).permits(np.array([math.inf])).all()


def test_what_gives_no_guarantee_says_so():
    for release in (PRINTED, PLAIN):
        release = bound(release, people(SHARES))
        assert np.all(release.epsilons == math.inf)
        assert not release.dense
    assert bound(SOUND, people(SHARES)).dense
    assert {r.kind for r in (SOUND, PRINTED, PLAIN)} == {
        "clipped-l1", "clipped-scalar", "clipped-l2",
    }  # fmt: skip


def test_nothing_private_is_shown():
    shown = repr(bound(SOUND, people(SHARES)))
    assert "redacted" in shown
    assert "noise" not in shown


# --- reports -------------------------------------------------------------------------------------

N_ROWS, WIDTH = 6, 5


def report(*rows, round=2):
    """Rows of (sender, item, values); the last number counts."""
    values = [[*line, ONE] for _, _, line in rows]
    return DeviceReports(
        round,
        np.array([sender for sender, _, _ in rows], dtype=np.int64),
        np.array([item for _, item, _ in rows], dtype=np.int32),
        np.array(values, dtype=np.int64).reshape(-1, WIDTH),
    )


SPARSE = report((0, 1, [5, 0, 0, -3]), (0, 4, [0, 0, 2, 0]), (2, 3, [-9, 1, 1, 1]))
ASKED = np.array([0, 1, 2])  # the second has nothing to say


def test_dense_reports_have_every_row_of_every_device_and_count_it():
    release = bound(SOUND, people(SHARES, SHARES, SHARES))
    noisy = release.add_noise(SPARSE, ASKED, N_ROWS, WIDTH)
    assert noisy.sender.tolist() == np.repeat(ASKED, N_ROWS).tolist()
    assert noisy.item.tolist() == list(range(N_ROWS)) * 3
    assert (noisy.values[:, -1] == ONE).all()
    assert np.all(noisy.values[:, :-1] != 0)
    # The noise is that of each device's whole table, on top of what it sent.
    noise = np.zeros((3, N_ROWS, WIDTH), dtype=np.int64)
    for d in range(3):
        key, scale = noise_keys(ROOT, np.array([d])), np.array([noise_scale(1.0, 0.5)])
        add_laplace_sums(noise[d], key, scale, 2, WIDTH - 1)
    noise[SPARSE.sender, SPARSE.item, :-1] += SPARSE.values[:, :-1]
    assert np.array_equal(noisy.values.reshape(noise.shape)[..., :-1], noise[..., :-1])


@pytest.mark.parametrize("threads", [1, 2])
def test_messages_and_sums_are_the_same_to_the_last_bit(threads):
    hides = replace(SHARES, hidden_attributes=("age",))
    release = bound(replace(SOUND, hiding_epsilon=0.1), people(SHARES, hides, Choice(epsilon=0.2)))
    one_by_one = []
    for row in ASKED:
        mine = SPARSE.sender == row
        own = replace(
            SPARSE, sender=SPARSE.sender[mine], item=SPARSE.item[mine], values=SPARSE.values[mine]
        )
        noisy = release.add_noise(own, np.array([row]), N_ROWS, WIDTH)
        sent = decode_report(encode_report(noisy), sender=row, n_items=N_ROWS, width=WIDTH, round=2)
        assert np.array_equal(sent.values, noisy.values)
        one_by_one.append(sent)
    single = add_up(2, one_by_one, WIDTH).dense(N_ROWS)
    together = release.add_noise(SPARSE, ASKED, N_ROWS, WIDTH, threads)
    assert np.array_equal(add_up(2, [together], WIDTH).dense(N_ROWS), single)
    plain = add_up(2, [SPARSE], WIDTH).dense(N_ROWS)
    before = plain.copy()
    assert np.array_equal(release.add_noise_to_sums(plain, ASKED, 2, threads), single)
    assert np.array_equal(plain, before)


def test_printed_noise_goes_to_the_rows_that_are_sent_and_to_no_count():
    release = bound(PRINTED, people(SHARES, SHARES, SHARES))
    noisy = release.add_noise(SPARSE, ASKED, N_ROWS, WIDTH)
    assert np.array_equal(noisy.item, SPARSE.item)
    assert (noisy.values[:, -1] == ONE).all()
    assert np.all(noisy.values[:, :-1] != SPARSE.values[:, :-1])
    with pytest.raises(ConfigError, match="messages"):
        release.add_noise_to_sums(np.zeros((N_ROWS, WIDTH), np.int64), ASKED, 2)


def test_without_noise_reports_stay_as_they_are():
    release = bound(PLAIN, people(SHARES, SHARES, SHARES))
    assert release.add_noise(SPARSE, ASKED, N_ROWS, WIDTH) is SPARSE
    table = np.ones((N_ROWS, WIDTH), np.int64)
    assert release.add_noise_to_sums(table, ASKED, 2) is table


def test_an_update_that_noise_cannot_hide_does_not_leave():
    everyone = people(SHARES, SHARES, SHARES)
    half = ONE // 2
    fits = report((0, 1, [half, 0, 0, -half]), (1, 1, [ONE, 0, 0, 0]))
    beyond = report((0, 1, [half, 0, 0, -half]), (0, 2, [1, 0, 0, 0]))
    bound(SOUND, everyone).add_noise(fits, ASKED, N_ROWS, WIDTH)
    with pytest.raises(ConsentError, match="larger"):
        bound(SOUND, everyone).add_noise(beyond, ASKED, N_ROWS, WIDTH)
    bound(PRINTED, everyone).add_noise(beyond, ASKED, N_ROWS, WIDTH)
    with pytest.raises(ConsentError, match="larger"):
        bound(PRINTED, everyone).add_noise(
            report((0, 1, [0, 0, -ONE - 1, 0])), ASKED, N_ROWS, WIDTH
        )
    table = np.zeros((N_ROWS, WIDTH), dtype=np.int64)
    table[0, 0] = 3 * ONE + 1
    with pytest.raises(ConsentError, match="larger"):
        bound(SOUND, everyone).add_noise_to_sums(table, ASKED, 2)


def test_the_norm_is_measured_on_whole_numbers():
    values = np.array([[3, -4], [0, 1]])
    assert within_l1(values, 8 / GRID)
    assert not within_l1(values, 7.99 / GRID)
    assert within_l1(np.full(1 << 20, 16, dtype=np.int32), 1.0)
    assert not within_l1(np.full((1 << 20) + 1, 16, dtype=np.int32), 1.0)


def test_a_report_of_strangers_or_of_another_shape_is_refused():
    release = bound(SOUND, people(SHARES, SHARES, SHARES))
    for wrong in (
        (SPARSE, np.array([0, 1]), N_ROWS, WIDTH),
        (SPARSE, ASKED, 4, WIDTH),
        (SPARSE, ASKED, N_ROWS, WIDTH + 1),
        (replace(SPARSE, item=SPARSE.item - SPARSE.item.min() - 1), ASKED, N_ROWS, WIDTH),
        (replace(SPARSE, values=SPARSE.values[:, :1]), ASKED, N_ROWS, 1),
        (replace(SPARSE, values=SPARSE.values[:, 0]), ASKED, N_ROWS, WIDTH),
    ):
        with pytest.raises(DataError):
            release.add_noise(*wrong)
    with pytest.raises(DataError, match="rows of 1 numbers"):
        release.add_noise(replace(SPARSE, values=SPARSE.values[:, :1]), ASKED, N_ROWS, 1)


def test_a_row_of_one_number_and_its_count_is_a_row():
    narrow = replace(report((0, 1, [5, 0, 0, 0])), values=np.array([[5, ONE]]))
    noisy = bound(SOUND, people(SHARES)).add_noise(narrow, np.array([0]), N_ROWS, 2)
    assert noisy.values.shape == (N_ROWS, 2)


def test_devices_may_be_asked_in_any_order_or_not_at_all():
    release = bound(SOUND, people(*[SHARES] * 4))
    rows = np.array([2, 0, 3])
    sent = report((0, 1, [5, 0, 0, 0]), (2, 1, [7, 0, 0, 0]))
    noisy = release.add_noise(sent, rows, N_ROWS, WIDTH)
    for row, value in ((2, 7), (0, 5), (3, 0)):
        alone = release.add_noise(report(), np.array([row]), N_ROWS, WIDTH).values
        added = noisy.values[noisy.sender == row] - alone
        assert added[1, 0] == value
        assert np.abs(added).sum() == value
    for sent in (report((1, 1, [5, 0, 0, 0])), report((0, 1, [5, 0, 0, 0]), (1, 1, [5, 0, 0, 0]))):
        with pytest.raises(DataError, match="not asked"):
            release.add_noise(sent, rows, N_ROWS, WIDTH)
    nobody = np.zeros(0, dtype=np.int64)
    assert not release.add_noise_to_sums(np.zeros((2, 3), np.int64), nobody, 2).any()


def test_a_model_too_large_for_its_epsilon_is_refused():
    release = bound(replace(SOUND, epsilon=1e-4, clip=0.001), people(SHARES))
    with pytest.raises(ConfigError, match="too large"):
        release._scales(np.array([0]), 1 << 20)


def test_all_numbers_of_a_model_and_of_a_sum_count():
    """Rounding is paid for by the number, and the norm is that of every column but the last."""
    numbers, nothing = N_ROWS * (WIDTH - 1), np.zeros((N_ROWS, WIDTH), dtype=np.int64)
    for epsilon, fits in ((numbers / 2**32, True), (numbers / 2**32 * 0.999, False)):
        release = bound(replace(SOUND, epsilon=epsilon, clip=2 / GRID), people(SHARES))
        ways = (
            lambda release=release: release.add_noise(
                report((0, 1, [1, 0, 0, 0])), np.array([0]), N_ROWS, WIDTH
            ),
            lambda release=release: release.add_noise_to_sums(nothing, np.array([0]), 2),
        )
        for way in ways:
            if fits:
                way()
            else:
                with pytest.raises(ConfigError, match="too large"):
                    way()
    for clip in (0.5, 2.0):
        release = bound(replace(SOUND, clip=clip), people(SHARES, SHARES, SHARES))
        for column in range(WIDTH - 1):
            table = nothing.copy()
            table[1, column] = round(3 * clip * ONE)
            release.add_noise_to_sums(table, ASKED, 2)
            table[0, 0] -= 1
            with pytest.raises(ConsentError, match="larger"):
                release.add_noise_to_sums(table, ASKED, 2)


# --- the price, audited --------------------------------------------------------------------------

TRIALS = 30_000


def uploads(release, update, round):
    """What TRIALS devices with this update [rows, numbers] send: [devices, numbers]."""
    n_rows, size = update.shape
    users = np.arange(TRIALS)
    release = bound(release, Consent.uniform(users, SHARES, ("age",)))
    values = np.concatenate([update, np.full((n_rows, 1), ONE)], axis=1)
    reports = DeviceReports(
        round,
        np.repeat(users, n_rows),
        np.tile(np.arange(n_rows, dtype=np.int32), TRIALS),
        np.tile(values, (TRIALS, 1)).astype(np.int64),
    )
    noisy = release.add_noise(reports, users, n_rows, size + 1)
    assert len(noisy) == TRIALS * n_rows
    return noisy.values[:, :-1].reshape(TRIALS, -1).astype(np.float64)


def measured(release, one, other):
    """ε as the likelihood of the noise tells two updates apart; two events fixed beforehand."""
    scale = noise_scale(release.clip, release.epsilon)
    hits = []
    for round, update in enumerate((one, other)):
        seen = uploads(release, update, round)
        gap = np.abs(seen - other.ravel()).sum(axis=1) - np.abs(seen - one.ravel()).sum(axis=1)
        far = 0.9 * np.abs(one - other).sum() / scale
        hits.append([(gap / scale >= far).sum(), (gap / scale <= -far).sum()])
    return lower_bound(hits[0], TRIALS, hits[1], TRIALS)


def corner(size=1):
    table = np.zeros((2, 3), dtype=np.int64)
    table[0, 0] = size * ONE
    return table


SPREAD = np.full((2, 3), ONE // 6, dtype=np.int64)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("update", [corner(), SPREAD])
def test_a_whole_upload_costs_epsilon(epsilon, update):
    """The two updates are as far from each other as updates can be."""
    found = measured(replace(SOUND, epsilon=epsilon), update, -update)
    assert found <= epsilon
    if update[0, 1] == 0:
        assert found > 0.9 * epsilon


def test_the_audit_convicts_half_the_noise():
    assert measured(replace(SOUND, epsilon=2.0), corner(), -corner()) > 1.5


def test_printed_noise_costs_its_epsilon_many_times_over():
    """ε = 0.5 as the cited works state it, on 24 numbers: an upload costs more than eight times
    that, by what 30,000 of them show."""
    update = np.full((4, 6), ONE, dtype=np.int64)
    release = PRINTED
    scale = noise_scale(1.0, 0.5)
    hits = []
    for round, sign in enumerate((1, -1)):
        seen = uploads(release, sign * update, round)
        gap = np.clip(2 * seen / scale, -0.5, 0.5).sum(axis=1)
        hits.append([(gap >= 4).sum(), (gap <= -4).sum()])
    found = lower_bound(hits[0], TRIALS, hits[1], TRIALS)
    price = bound(release, people(SHARES)).price_per_number(update.size)[0]
    assert price == 12.0
    assert 8 * release.epsilon < found <= price
