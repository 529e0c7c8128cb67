"""Shares and checks: sums that are right whatever is shared, corruptions that none gets through,
and single aggregators that see uniform numbers."""

import hashlib
import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sottovoce.core import shares as shares_module
from sottovoce.core.shares import (
    AGGREGATORS,
    CHECKS,
    Form,
    P,
    Pair,
    added,
    bits_of,
    check_parts,
    drawn,
    opened,
    share,
    split,
    sum_parts,
    zeros,
)
from sottovoce.errors import ConfigError, MessageError

PAIRS = Form(9, (1, 2, 4, 8, 16, 26), 65536, True)
LOUD = Form(9, (1, 2, 4, 8, 16, 26), 65536, True, 15_000)
PLACES = Form(23, (1, 2, 4, 8), 4096, False)
CHALLENGE = bytes(range(32))
BLINDS = [bytes([k + 1]) * 32 for k in range(AGGREGATORS)]


def vectors(form, n, seed=0):
    """Within the bounds, some right at them."""
    rng = np.random.default_rng(seed)
    found = np.zeros((n, form.places), dtype=np.int64)
    for place in rng.permutation(form.places):
        room = np.floor(np.sqrt(form.bound - (found**2).sum(axis=1)))
        most = np.minimum(form.most, room)
        found[:, place] = np.minimum(most, rng.random(n) * (form.most + 1))
    while form.loudness and (loud := found.max(axis=1) * found.sum(axis=1) > form.loudness).any():
        found[loud] = found[loud] * 9 // 10
    return found


def uniform_shares(bits, seed):
    """Shares of known bits, by a generator that is faster than ChaCha20."""
    rng = np.random.default_rng(seed)
    first, second = (rng.integers(0, P, bits.shape, dtype=np.uint32) for _ in range(2))
    third = ((bits.astype(np.int64) - first - second) % P).astype(np.uint32)
    return [first, second, third]


def pair(shares, number):
    return Pair(shares[number], shares[(number + 1) % AGGREGATORS])


def shared_with(number):
    return BLINDS[number], BLINDS[number - 1]


def open_checks(form, shares, challenge=CHALLENGE, blinded=True):
    n, parts = len(shares[0]), []
    for number in range(AGGREGATORS):
        part = check_parts(form, number, pair(shares, number), challenge)
        blind = zeros(shared_with(number), b"checks", n * CHECKS).reshape(n, CHECKS)
        parts.append(added([part, blind]) if blinded else part)
    return added(parts)


def open_sum(form, shares, kept=None):
    parts = [
        added(
            [
                sum_parts(form, pair(shares, number), kept),
                zeros(shared_with(number), b"sum", form.numbers),
            ]
        )
        for number in range(AGGREGATORS)
    ]
    return opened(added(parts))


def plain(form, entries):
    if not form.pairs:
        return entries.sum(axis=0)
    whole = entries.T @ entries
    return np.concatenate([np.diag(whole), whole[np.triu_indices(form.places, 1)]])


# --- what opens is right -------------------------------------------------------------------------


@pytest.mark.parametrize("form", [PAIRS, PLACES, LOUD], ids=["pairs", "places", "loud"])
def test_a_device_shares_and_three_aggregators_open_the_sum(form):
    """From secrets and what travels, as it really goes."""
    entries, n = vectors(form, 40), 40
    bits = bits_of(form, entries)
    own = [[secrets.token_bytes(32) for _ in range(AGGREGATORS)] for _ in range(n)]
    travelled = [split(one, mine) for one, mine in zip(bits, own, strict=True)]
    shares = [
        np.stack([share(form, k, own[u][k], travelled[u]) for u in range(n)])
        for k in range(AGGREGATORS)
    ]
    assert np.array_equal(added(shares), bits)
    assert not open_checks(form, shares).any()
    assert np.array_equal(open_sum(form, shares), plain(form, entries))
    kept = np.arange(n) % 3 > 0
    assert np.array_equal(open_sum(form, shares, kept), plain(form, entries[kept]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.booleans(), st.integers(0, 2**32))
def test_sums_are_those_of_the_vectors(places, n, pairs, seed):
    form = Form(places, PAIRS.weights if pairs else PLACES.weights, 4096, pairs)
    entries = vectors(form, n, seed)
    shares = uniform_shares(bits_of(form, entries), seed)
    assert not open_checks(form, shares).any()
    assert np.array_equal(open_sum(form, shares), plain(form, entries))


def test_sums_are_exact_where_shares_are_as_large_as_can_be():
    """Floats that multiply halves of numbers of 31 bits lose nothing."""
    form, n = Form(5, (1, 2, 4, 8, 16, 26), 65536, True), 700
    entries = np.full((n, 5), 57)
    bits = bits_of(form, entries).astype(np.int64)
    first = np.full(bits.shape, P - 1, dtype=np.uint32)
    second = first.copy()
    third = ((bits - first - second.astype(np.int64)) % P).astype(np.uint32)
    assert np.array_equal(open_sum(form, [first, second, third]), plain(form, entries))
    assert not open_checks(form, [first, second, third]).any()


def test_every_entry_has_bits_and_nothing_beyond_the_bounds_is_shared():
    form = Form(1, (1, 2, 4, 8, 16, 26), 65536, True)
    every = np.arange(form.most + 1)[:, None]
    bits = bits_of(form, every)
    assert np.array_equal(bits[:, :6] @ np.array(form.weights), every[:, 0])
    assert set(np.unique(bits).tolist()) == {0, 1}
    for bad in ([[form.most + 1]], [[-1]]):
        with pytest.raises(MessageError, match="beyond the bounds"):
            bits_of(form, np.array(bad))
    tight = Form(3, (1, 2, 4, 8), 12, False)
    bits_of(tight, np.array([[2, 2, 2]]))
    with pytest.raises(MessageError, match="beyond the bounds"):
        bits_of(tight, np.array([[2, 2, 3]]))
    with pytest.raises(MessageError, match="beyond the bounds"):
        bits_of(tight, np.array([[2, 2, 2], [2, 2, 3], [0, 0, 0]]))
    three = Form(3, (1, 2, 4, 8), 400, True, 300)
    bits_of(three, np.array([[10, 10, 10], [15, 5, 0]]))  # 300 and 300 loud
    for bad in ([16, 0, 0], [-1, 3, 0], [15, 13, 5], [10, 10, 11]):
        with pytest.raises(MessageError, match="beyond the bounds"):
            bits_of(three, np.array([bad]))
    long = Form(3, (1, 2, 4, 8), 40, True, 300)
    with pytest.raises(MessageError, match="beyond the bounds"):
        bits_of(long, np.array([[6, 3, 0]]))  # 45 long, 54 loud


@pytest.mark.parametrize("form", [PAIRS, PLACES, LOUD], ids=["pairs", "places", "loud"])
def test_a_vector_of_nothing_says_how_far_it_is_below_the_bounds(form):
    bits = bits_of(form, np.zeros((2, form.places), int))
    expected = np.zeros(form.elements, np.uint32)
    at = form.places * len(form.weights)
    expected[at : at + form.slack] = [form.bound >> k & 1 for k in range(form.slack)]
    loud = [form.loudness >> k & 1 for k in range(form.loud_slack)]
    expected[form.elements - form.loud_slack :] = loud
    assert np.array_equal(bits, [expected, expected])


def test_no_devices_and_no_places_are_shared_as_such():
    for form in (PAIRS, PLACES, LOUD):
        assert bits_of(form, np.zeros((0, form.places), int)).shape == (0, form.elements)
    for form in (Form(0, (1,), 5, False), Form(0, (1,), 5, True, 3)):
        assert np.array_equal(
            bits_of(form, np.zeros((2, 0), int)),
            np.hstack([np.tile([1, 0, 1], (2, 1)), np.tile([0, 1, 1], (2, 1))])[:, : form.elements],
        )


@pytest.mark.parametrize("shape", [(9,), (4, 8), (4, 10), (2, 2, 9), (2, 9, 2)])
def test_vectors_of_another_shape_are_refused(shape):
    with pytest.raises(MessageError, match="a shared vector has 9 places"):
        bits_of(PAIRS, np.zeros(shape, int))


def test_forms_that_could_wrap_around_are_refused():
    with pytest.raises(ConfigError, match="wrap around"):
        Form(700_000, PAIRS.weights, 65536, True)
    with pytest.raises(ConfigError, match="reach every number"):
        Form(3, (1, 2, 5), 100, False)
    # 238,609,293 entries of up to 3 leave room for 10 below p.
    fits = 238_609_293
    assert P - 9 * fits == 10
    for bound, loudness in ((7, 0), (1, 7), (7, 7)):
        Form(fits, (1, 2), bound, False, loudness)
    for places, bound, loudness in ((fits, 8, 0), (fits, 1, 8), (fits + 1, 1, 0)):
        with pytest.raises(ConfigError, match="wrap around"):
            Form(places, (1, 2), bound, False, loudness)
    Form(P - 3, (1,), 1, False)
    with pytest.raises(ConfigError, match="wrap around"):
        Form(P - 2, (1,), 1, False)  # p itself


@pytest.mark.parametrize(
    ("places", "weights", "bound", "loudness"),
    [(3, (), 1, 0), (-1, (1,), 1, 0), (3, (1,), 0, 0), (3, (1,), 1, -1)],
    ids=["no bits", "places below 0", "no bound", "loudness below 0"],
)
def test_a_form_needs_bits_and_a_bound(places, weights, bound, loudness):
    with pytest.raises(ConfigError, match="needs bits and a bound"):
        Form(places, weights, bound, False, loudness)


@pytest.mark.parametrize("form", [PAIRS, PLACES], ids=["pairs", "places"])
def test_the_field_has_room_for_so_many_devices_and_no_more(form):
    """All of them as loud as can be, and noise that is furthest out."""
    one = {True: 57 * 57, False: 15}[form.pairs]
    for sigma, furthest in ((0.0, 40.0), (1000.0, 40.0), (12_345.6, 7.0)):
        most = form.most_devices(sigma, furthest)
        assert most * one + furthest * sigma <= 2**30 < (most + 1) * one + furthest * sigma
    assert form.most_devices(1000.0) == form.most_devices(1000.0, 40.0)
    assert form.most_devices((2**30 - one) / 40) == 1
    assert form.most_devices(2**30) == 0


def test_numbers_are_drawn_below_p_and_uniform():
    many = drawn(b"s" * 32, 400_000)
    assert many.max() < P
    counts = np.bincount((many // (P // 64 + 1)).astype(int), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-6
    assert np.array_equal(drawn(b"s" * 32, 10), many[:10])


# --- as every device and every aggregator has to do it --------------------------------------------


def by_definition(secret, many):
    """Words of ChaCha20, the lower 31 bits of each, but for those that are p."""
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(4 * many + 400)), "<u4") & P
    return words[words != P][:many]


def bound_to(secret, said):
    return hashlib.blake2b(said, digest_size=32, key=secret, person=b"shares").digest()


def test_numbers_are_those_of_chacha20():
    for many in (0, 1, 7, 5000):
        assert np.array_equal(drawn(CHALLENGE, many), by_definition(CHALLENGE, many))


def test_more_are_drawn_where_too_many_are_not_below_p(monkeypatch):
    stream = np.array([P, 2 * P + 1] * 5 + [3, 1 << 31 | 4, *range(5, 40)], np.uint32)
    asked = []

    def expand(secret, numbers, bits):
        assert not asked or numbers > asked[-1]
        asked.append(numbers)
        return stream[:numbers].copy()

    monkeypatch.setattr(shares_module, "expand", expand)
    assert drawn(bytes(32), 6).tolist() == [3, 4, 5, 6, 7, 8]
    assert len(asked) > 1


def test_parts_of_zero_are_bound_to_what_was_said():
    after, before = BLINDS[1], BLINDS[0]
    for said in (b"set", b"s" * 40):
        mine, theirs = (by_definition(bound_to(one, said), 30) for one in (after, before))
        expected = (mine.astype(np.int64) - theirs) % P
        assert np.array_equal(zeros((after, before), said, 30), expected)


def part_by_definition(form, number, first, second):
    """Of one device, in whole numbers of Python."""
    n, width = len(first), len(form.weights)
    s, t = first.tolist(), second.tolist()
    found = []
    for check in range(CHECKS):
        r = by_definition(bound_to(CHALLENGE, check.to_bytes(4, "little")), form._checked).tolist()
        total = sum(r[j] * (s[j] ** 2 + 2 * s[j] * t[j] - s[j]) for j in range(n))

        def entry(of, at):
            return sum(w * of[at + k] for k, w in enumerate(form.weights))

        def slack(at, many):
            return sum(s[at + k] << k for k in range(many))

        spans = [place * width for place in range(form.places)]
        norm = sum(entry(s, at) ** 2 + 2 * entry(s, at) * entry(t, at) for at in spans)
        norm += slack(form.places * width, form.slack) - (form.bound if number == 0 else 0)
        total += r[n] * norm
        if form.loudness:
            below = form.places * width + form.slack
            top = below + form.places * width
            for place, at in enumerate(spans):
                rest = entry(s, at) + entry(s, below + at) - entry(s, top)
                total += r[n + 1 + place] * rest
            sums = [sum(entry(of, at) for at in spans) for of in (s, t)]
            loud = entry(s, top) * sum(sums) + entry(t, top) * sums[0]
            loud += slack(top + width, form.loud_slack)
            loud -= form.loudness if number == 0 else 0
            total += r[n + 1 + form.places] * loud
        found.append(total % P)
    return found


@pytest.mark.parametrize("form", [PAIRS, PLACES, LOUD], ids=["pairs", "places", "loud"])
def test_an_aggregators_part_of_the_checks_is_what_the_protocol_says(form):
    """Whatever was shared, and whatever the other aggregators run."""
    rng = np.random.default_rng(3)
    shares = [rng.integers(0, P, (7, form.elements), dtype=np.uint32) for _ in range(AGGREGATORS)]
    for number in range(AGGREGATORS):
        mine = pair(shares, number)
        expected = [part_by_definition(form, number, *both) for both in zip(*mine, strict=True)]
        for threads in (1, 3):
            found = check_parts(form, number, mine, CHALLENGE, threads)
            assert found.tolist() == expected


@pytest.mark.parametrize(
    "own",
    [[b"s" * 32] * 2, [b"s" * 32] * 4, [b"s" * 32] * 2 + [b"s" * 31], [b"s" * 31] * 3, []],
    ids=["two", "four", "a short one", "short ones", "none"],
)
def test_a_device_shares_by_three_secrets(own):
    with pytest.raises(MessageError, match="3 secrets of 32 bytes"):
        split(np.zeros(PLACES.elements, np.uint32), own)


@pytest.mark.parametrize("many", [None, 0, PLACES.elements - 1, PLACES.elements + 1])
def test_a_last_share_needs_all_that_travels(many):
    travelled = None if many is None else np.zeros(many, np.uint32)
    with pytest.raises(MessageError, match=f"{PLACES.elements} numbers travel"):
        share(PLACES, AGGREGATORS - 1, CHALLENGE, travelled)
    for number in range(AGGREGATORS - 1):
        mine = share(PLACES, number, CHALLENGE, travelled)
        assert np.array_equal(mine, by_definition(CHALLENGE, PLACES.elements))


def test_sums_are_opened_around_zero():
    half = P // 2
    total = np.array([0, 1, half - 1, half, half + 1, P - 1], np.uint32)
    assert opened(total).tolist() == [0, 1, half - 1, half, -half, -1]


# --- soundness -----------------------------------------------------------------------------------


def is_good(form, bits):
    """By the definition, from what was shared."""
    good = np.all(bits <= 1, axis=1)
    whole, n = bits[good].astype(np.int64), len(form.weights)
    entries = whole[:, : form.places * n].reshape(len(whole), form.places, n) @ form.weights
    slack, rest = np.split(whole[:, form.places * n :], [form.slack], axis=1)
    slack = slack @ (1 << np.arange(form.slack))
    within = (entries**2).sum(axis=1) + slack == form.bound
    if form.loudness:
        below, most, quiet = np.split(rest, [form.places * n, (form.places + 1) * n], axis=1)
        most = most @ form.weights
        below = below.reshape(len(whole), form.places, n) @ form.weights
        within &= np.all(entries + below == most[:, None], axis=1)
        loud = most * entries.sum(axis=1) + quiet @ (1 << np.arange(form.loud_slack))
        within &= loud == form.loudness
    good[good] = within
    return good


def corrupted(form, bits, rng):
    """One corruption of each device, of many kinds; what is shared then."""
    bad = bits.astype(np.int64)
    rows, n = np.arange(len(bad)), form.elements
    kind, at, other = rng.integers(0, 8, len(bad)), *rng.integers(0, n, (2, len(bad)))
    word = rng.integers(0, P, len(bad))
    small = rng.integers(-3, 4, len(bad))
    for k, value in enumerate(
        [
            bad[rows, at] + word,  # any number
            bad[rows, at] + small,  # a small one
            1 - bad[rows, at],  # another bit: right, but for the norm
            -bad[rows, at],  # minus a bit
            (P + 1) // 2 + 0 * at,  # a half, which doubled wraps around to 1
            P - 1 + 0 * at,  # minus one, whose square is 1
            bad[rows, at] + word,  # two of them that cancel out in a sum
            1 - bad[rows, at],  # another bit, and another one back
        ]
    ):
        mine = kind == k
        bad[rows[mine], at[mine]] = value[mine]
        if k == 6:
            bad[rows[mine], other[mine]] -= word[mine]
        if k == 7:
            bad[rows[mine], other[mine]] = 1 - bad[rows[mine], other[mine]]
    return (bad % P).astype(np.uint32)


@pytest.mark.parametrize(
    "form",
    [Form(4, (1, 2, 3), 60, True), Form(5, (1, 2), 30, False), Form(4, (1, 2, 3), 60, True, 40)],
)
def test_of_a_million_corruptions_none_gets_through(form):
    """What is accepted keeps to the bounds, by the definition; so none changes a sum by more than
    an honest device could. (Corruptions that are within the bounds again are accepted.)"""
    rng, tried, accepted = np.random.default_rng(5), 0, 0
    while tried < 350_000:
        bits = corrupted(form, bits_of(form, vectors(form, 50_000, tried)), rng)
        passed = ~open_checks(form, uniform_shares(bits, tried), rng.bytes(32)).any(axis=1)
        good = is_good(form, bits)
        assert np.array_equal(passed, good)
        tried, accepted = tried + len(bits), accepted + int(good.sum())
    assert 0 < accepted < tried / 4


@pytest.mark.parametrize(
    "name", ["an entry above the largest", "louder than permitted", "a largest that is too small"]
)
def test_who_is_too_loud_is_named(name):
    entries = vectors(LOUD, 20)
    bits = bits_of(LOUD, entries)
    n, top = len(LOUD.weights), LOUD.elements - LOUD.loud_slack - len(LOUD.weights)
    plain_form = Form(LOUD.places, LOUD.weights, LOUD.bound, True, 10**6)
    if name == "louder than permitted":
        loud = bits_of(plain_form, np.full((1, LOUD.places), 57))[0]
        bits[7, : top + n] = loud[: top + n]
        bits[7, top + n :] = 0
    elif name == "an entry above the largest":
        bits[7, top - n : top] = [1, 1, 1, 1, 1, 1]
    else:
        bits[7, top : top + n] = 0
    out = open_checks(LOUD, uniform_shares(bits, 3)).any(axis=1)
    assert np.flatnonzero(out).tolist() == [7]


def test_loudness_is_limited_when_it_is_shared():
    with pytest.raises(MessageError, match="beyond the bounds"):
        bits_of(LOUD, np.full((1, 9), 57))
    assert bits_of(LOUD, np.full((1, 9), 40)).shape == (1, LOUD.elements)


# --- every check is needed -----------------------------------------------------------------------

WEIGHTS = (1, 2, 4, 8, 16, 26)
LIMITED = {
    "places": Form(23, (1, 2, 4, 8), 4096, False),
    "pairs": Form(9, WEIGHTS, 20_000, True),
    "loud": Form(9, WEIGHTS, 20_000, True, 22_000),
}
"""Forms with vectors that are too long or too loud."""


class Claim:
    """What a device shares that claims to have these entries, and to have this largest one. Numbers
    that bits cannot say are left at 0."""

    def __init__(self, form, entries, largest=None):
        self.form, n = form, len(form.weights)
        entries = np.asarray(entries)
        largest = int(entries.max()) if largest is None else largest
        self.short = form.bound - int((entries**2).sum())
        parts = [*(self._bits(form.weights, one) for one in entries.tolist())]
        parts.append(self._bits(self._powers(form.slack), self.short))
        self.quiet = form.loudness - largest * int(entries.sum())
        if form.loudness:
            parts += [self._bits(form.weights, largest - one) for one in entries.tolist()]
            parts.append(self._bits(form.weights, largest))
            parts.append(self._bits(self._powers(form.loud_slack), self.quiet))
        self.elements = np.concatenate(parts).astype(np.int64)
        self.slack = form.places * n
        self.below = self.slack + form.slack
        self.top = self.below + form.places * n

    @staticmethod
    def _powers(many):
        return tuple(1 << k for k in range(many))

    @staticmethod
    def _bits(weights, number):
        bits = np.zeros(len(weights), np.int64)
        for k in reversed(range(len(weights))) if 0 <= number <= sum(weights) else ():
            bits[k] = number >= weights[k]
            number -= bits[k] * weights[k]
        return bits

    def with_number(self, start, weights, at, number, also=()):
        """The elements from `start` on add up to this number modulo p, by one that is no bit at
        place `at` and ones at `also`."""
        self.elements[start : start + len(weights)] = 0
        for k in also:
            self.elements[start + k] = 1
        rest = number - sum(weights[k] for k in also)
        value = rest * pow(weights[at], -1, P) % P
        assert value > 1
        self.elements[start + at] = value
        return self


def cheat(form, check):
    """What breaks this check alone, of all that a device has to pass: too long, too loud, an entry
    below 0 or above the largest, by a number that wraps around in the field."""
    n, size = len(form.weights), form.places
    threes, long = np.full(size, 3), np.full(size, 48 if form.pairs else 15)
    loud, above = np.array([57] + [45] * (size - 1)), threes.copy()
    honest = Claim(form, threes)
    if check < honest.slack:  # a bit of an entry: minus three, whose square is nine
        place, k = divmod(check, n)
        entries = threes.copy()
        entries[place] = -3
        return Claim(form, entries).with_number(place * n, form.weights, k, -3)
    if check < honest.below:
        made, k = Claim(form, long), check - honest.slack
        return made.with_number(made.slack, made._powers(form.slack), k, made.short)
    if check == form.elements:
        return Claim(form, long)
    if check < honest.top:  # an entry above the largest
        place, k = divmod(check - honest.below, n)
        above[place] = 7
        made = Claim(form, above, 5)
        return made.with_number(made.below + place * n, form.weights, k, -2)
    if check < honest.top + n:  # the largest entry, written with a number that is no bit
        k = check - honest.top
        return honest.with_number(honest.top, form.weights, k, 3, also=[(k + 3) % n])
    if check < form.elements:
        made, k = Claim(form, loud), check - honest.top - n
        return made.with_number(made.top + n, made._powers(form.loud_slack), k, made.quiet)
    if check <= form.elements + size:
        above[check - form.elements - 1] = 7
        return Claim(form, above, 5)
    return Claim(form, loud)


@pytest.mark.parametrize("form", LIMITED.values(), ids=LIMITED)
def test_each_check_refuses_what_no_other_check_refuses(form, monkeypatch):
    """For every element (of entries, of what is below the largest one, of both slacks) and every
    equation there is a cheat that this check alone notices. With the check left out it passes."""
    every = [cheat(form, check) for check in range(form._checked)]
    bits = (np.stack([one.elements for one in every]) % P).astype(np.uint32)
    assert bits.shape == (form._checked, form.elements)
    assert open_checks(form, uniform_shares(bits, 1)).all(), "each is refused by both checks"
    real = shares_module.drawn
    for check in range(form._checked):

        def without(secret, many, check=check):
            found = real(secret, many)
            if many == form._checked:
                found[check] = 0
            return found

        with monkeypatch.context() as patch:
            patch.setattr(shares_module, "drawn", without)
            passed = ~open_checks(form, uniform_shares(bits, 2), blinded=False).any(axis=1)
        assert passed[check]
        assert np.flatnonzero(passed).tolist() == [check], "no other cheat needs this check"


@pytest.mark.parametrize("at", range(LIMITED["places"].slack))
def test_a_slack_that_wraps_around_hides_no_long_vector(at):
    """A vector of norm² 5,175, where 4,096 are permitted."""
    form = LIMITED["places"]
    bits = np.ones(form.elements, np.int64)
    bits[-form.slack :] = 0
    need = form.bound - form.places * form.most**2
    assert need == 4096 - 5175
    bits[form.places * len(form.weights) + at] = need * pow(1 << at, -1, P) % P
    found = open_checks(form, uniform_shares(bits[None].astype(np.uint32), at))
    assert found.all()


@pytest.mark.parametrize("at", range(LIMITED["loud"].loud_slack))
def test_a_slack_that_wraps_around_hides_no_loud_vector(at):
    """Of loudness 23,769, where 22,000 is permitted; its norm is within the bound."""
    form = LIMITED["loud"]
    made = Claim(form, [57] + [45] * 8)
    assert (made.short, made.quiet) == (20_000 - 19_449, 22_000 - 23_769)
    made.elements[form.elements - form.loud_slack + at] = made.quiet * pow(1 << at, -1, P) % P
    found = open_checks(form, uniform_shares(made.elements[None].astype(np.uint32), at))
    assert found.all()


def garbled(form, name):
    """What a device might share that does not keep to the rules."""
    n, size = len(form.weights), form.places
    entries = vectors(form, 1, 3)
    bits = bits_of(form, entries)[0].astype(np.int64)
    if name == "an entry out of range":
        bits[:n] = [2, 0, 0, 0, 0, 2][:n]
    elif name == "a bit that is none":
        bits[0] = 2
    elif name == "one too long":
        bits[size * n] = 1 - bits[size * n]
    elif name == "much too long":
        bits[: size * n], bits[size * n : size * n + form.slack] = 1, 0
    elif name == "a slack that wraps around":
        bits[: size * n] = 1
        bits[size * n : size * n + form.slack] = 0
        bits[size * n] = (form.bound - form.most**2 * size) % P
    elif name == "halves":
        bits[0] = (P + 1) // 2
    elif name == "minus one":
        bits[0] = P - 1
    return (bits % P).astype(np.uint32)


@pytest.mark.parametrize("form", [PAIRS, PLACES, LOUD], ids=["pairs", "places", "loud"])
@pytest.mark.parametrize(
    "name",
    [
        "an entry out of range",
        "a bit that is none",
        "one too long",
        "much too long",
        "a slack that wraps around",
        "halves",
        "minus one",
    ],
)
def test_one_of_many_is_named_and_the_others_go_on(form, name):
    entries = vectors(form, 20)
    bits = bits_of(form, entries)
    bits[7] = garbled(form, name)
    shares = uniform_shares(bits, 1)
    out = open_checks(form, shares).any(axis=1)
    assert np.flatnonzero(out).tolist() == [7]
    assert np.array_equal(open_sum(form, shares, ~out), plain(form, np.delete(entries, 7, 0)))


def test_shares_that_do_not_fit_each_other_are_noise():
    """One aggregator has another second share than the next one has as its first."""
    bits = bits_of(PAIRS, vectors(PAIRS, 5))
    shares = uniform_shares(bits, 2)
    other = shares[1].copy()
    other[2, 0] = (other[2, 0] + 1) % P
    parts = [
        check_parts(PAIRS, 0, Pair(shares[0], other), CHALLENGE),
        check_parts(PAIRS, 1, Pair(shares[1], shares[2]), CHALLENGE),
        check_parts(PAIRS, 2, Pair(shares[2], shares[0]), CHALLENGE),
    ]
    assert np.flatnonzero(added(parts).any(axis=1)).tolist() == [2]


def test_who_knows_the_challenge_can_cheat_and_nobody_else():
    """Why coins are told after everybody has committed: errors in two bits that cancel out in the
    first check. (Two checks need three.)"""
    form = Form(4, (1, 2), 40, False)
    bits = bits_of(form, vectors(form, 1)).astype(np.int64)
    at = form.places * 2  # slack bits, so that the norm is mended by another one

    def residual(shared, challenge):
        return open_checks(form, uniform_shares((shared % P).astype(np.uint32), 4), challenge)[0]

    rng = np.random.default_rng(0)
    # Of many forgeries the one that opens to 0 in one check, for a challenge that was known.
    r = drawn_for(form, CHALLENGE)
    t = 5
    # b² − b = t² − t at one bit, times r; cancelled at another by a root of the right number.
    for seed in range(200):
        forged = bits.copy()
        forged[0, at] = t + seed
        forged[0, at + 1] = bits[0, at + 1]
        norm = (forged[0, at] - bits[0, at]) % P
        need = (-(r[at] * (forged[0, at] ** 2 - forged[0, at]) + r[-1] * norm)) % P
        # Solve r' (y² − y) + r_norm · 2 (y − b) = need for the second slack bit y.
        a, b = int(r[at + 1]), int((-r[at + 1] + 2 * r[-1]) % P)
        c = int((-need - 2 * r[-1] * bits[0, at + 1]) % P)
        root = square_root((b * b - 4 * a * c) % P)
        if root is None:
            continue
        forged[0, at + 1] = (-b + root) * pow(2 * a, -1, P) % P
        found = residual(forged, CHALLENGE)
        assert found[0] == 0
        assert found[1] != 0  # the second check catches it
        assert residual(forged, rng.bytes(32)).all()
        return
    raise AssertionError("no forgery was found")


def drawn_for(form, challenge):
    """The first check's numbers, as the module draws them."""
    from sottovoce.core.shares import _derived

    return [int(one) for one in drawn(_derived(challenge, 0), form.elements + 1)]


def square_root(a):
    """Modulo p, which is 3 modulo 4; None where there is none."""
    root = pow(int(a), (P + 1) // 4, P)
    return root if root * root % P == a % P else None


# --- privacy -------------------------------------------------------------------------------------


def seen_by(number, form, bits, how="right"):
    """All numbers that an aggregator gets of devices that share these bits: two shares, and what
    travels."""
    rows, own = [], [secrets.token_bytes(32) for _ in range(AGGREGATORS)]
    for one in bits:
        if how != "a mask is used again":
            own = [secrets.token_bytes(32) for _ in range(AGGREGATORS)]
        if how == "the first share is left out":
            travelled = (
                one.astype(np.int64) - drawn(own[1], len(one)) + drawn(own[2], len(one))
            ) % P
            travelled = travelled.astype(np.uint32)
        else:
            travelled = split(one, own)
        mine = [share(form, (number + k) % 3, own[(number + k) % 3], travelled) for k in range(2)]
        rows.append(np.concatenate([*mine, travelled]))
    return np.stack(rows)


def tells_apart(one, other):
    """Whether the two look different: p-values of the distributions in 16 classes, of each kind of
    number against uniform ones and against each other, and of differences within a table."""
    found = []
    for table in (one, other):
        for values in (table, (table[1:].astype(np.int64) - table[:-1]) % P):
            counts = np.bincount((values.ravel() // (P // 16 + 1)).astype(int), minlength=16)
            found.append(stats.chisquare(counts).pvalue)
    third = one.shape[1] // 3
    for at in range(3):
        for table in (one, other):
            part = table[:, at * third : (at + 1) * third]
            counts = np.bincount((part.ravel() // (P // 16 + 1)).astype(int), minlength=16)
            found.append(stats.chisquare(counts).pvalue)
            # Nor is it the bits plus something that does not change.
            sums = (table[:, :third].astype(np.int64) + table[:, third : 2 * third]) % P
            counts = np.bincount((sums.ravel() // (P // 16 + 1)).astype(int), minlength=16)
            found.append(stats.chisquare(counts).pvalue)
    small = [(np.abs(opened(t)) < 64).sum() for t in (one, other)]
    return min(found) < 1e-6 or max(small) > 5


@pytest.mark.parametrize("number", range(AGGREGATORS))
def test_one_aggregator_sees_uniform_numbers_whatever_is_shared(number):
    empty = bits_of(PAIRS, np.zeros((400, PAIRS.places), int))
    full = bits_of(PAIRS, np.tile(vectors(PAIRS, 1, 9), (400, 1)))
    one, other = seen_by(number, PAIRS, empty), seen_by(number, PAIRS, full)
    assert not tells_apart(one, other)


@pytest.mark.parametrize("how", ["a mask is used again", "the first share is left out"])
def test_broken_sharing_is_caught(how):
    empty = bits_of(PAIRS, np.zeros((400, PAIRS.places), int))
    full = bits_of(PAIRS, np.tile(vectors(PAIRS, 1, 9), (400, 1)))
    number = 1
    assert tells_apart(seen_by(number, PAIRS, empty, how), seen_by(number, PAIRS, full, how))


def test_told_parts_are_uniform_and_unblinded_ones_give_the_noise_away():
    """An aggregator's noise is safe in its part only because the part is blinded: the server knows
    one of the two shares that it is made of."""
    shares = uniform_shares(bits_of(PLACES, vectors(PLACES, 30)), 8)
    noise = np.random.default_rng(1).integers(-50, 51, PLACES.numbers)
    part = sum_parts(PLACES, pair(shares, 1))  # of the first helper: its share 1, which 0 has too
    known = sum_parts(PLACES, Pair(shares[1], shares[2]))
    without = opened(added([part, noise, P - known.astype(np.int64)]))
    assert np.array_equal(without, noise)  # unblinded, the server reads the noise
    told = [
        opened(
            added([part, noise, P - known.astype(np.int64), zeros(shared_with(1), said, len(part))])
        )
        for said in (bytes([k % 256, k // 256]) for k in range(400))
    ]
    values = np.stack(told) + P // 2
    counts = np.bincount((values.ravel() // (P // 16 + 1)).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_parts_of_zero_add_up_to_zero_for_who_agrees():
    same = [zeros(shared_with(k), b"set", 50) for k in range(AGGREGATORS)]
    assert not added(same).any()
    same[2] = zeros(shared_with(2), b"another set", 50)
    assert np.count_nonzero(added(same)) == 50
    assert np.abs(opened(added(same))).min() > 1000
