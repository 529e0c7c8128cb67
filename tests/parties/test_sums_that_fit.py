"""How many bits a masked number has: as few as a sum of so many devices needs, and what shows of
sums that cannot be."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SEALED_SEED_BYTES, Direct, SecureSum
from sottovoce.core.masking import BITS, masked, no_words, seeds_from
from sottovoce.core.messages import GRID, MaskedReports, MaskSeeds
from sottovoce.errors import ConfigError, MessageError, SpoiledSum, WrongSum
from sottovoce.parties.helper import Helper
from sottovoce.parties.secure_sum import (
    LENIENT,
    MaskedSum,
    fitted,
    most_devices,
    sigma_of,
    sum_limit,
)
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon

ROWS, WIDTH, DEVICES = 6, 5, 10
NUMBERS = ROWS * WIDTH
KEY = bytes(range(32))


# --- how many devices there is room for -----------------------------------------------------------


@given(
    bits=st.sampled_from(BITS),
    largest=st.floats(0.5, 2.0**45),
    sigma=st.floats(0.0, 2.0**24),
    clip=st.sampled_from([0.0, 0.5, 16.0]),
)
def test_the_most_devices_just_fit_and_one_more_does_not(bits, largest, sigma, clip):
    link = SecureSum(bits=bits, clip=clip)
    most = most_devices(link, largest, sigma)
    assume(0 < most < 2**40)  # beyond, devices are not counted one by one
    assert sum_limit(link, most, largest, sigma) <= 1 << (bits - 2)
    # Where a device is worth less than a step, a few of them are none.
    more = 1 + math.ceil(1 / (min(largest, clip * GRID) if clip else largest))
    with pytest.raises(ConfigError, match=f"{bits} bits have no room; ask fewer"):
        sum_limit(link, most + more, largest, sigma)


def test_the_most_devices_by_hand():
    link = SecureSum(bits=32)
    assert most_devices(link, 2.0**16, 0.0) == 2**14
    assert sum_limit(link, 2**14, 2.0**16, 0.0) == 2**30
    with pytest.raises(ConfigError, match=r"16,385 devices .* beyond 2\*\*30, for which 32 bits"):
        sum_limit(link, 2**14 + 1, 2.0**16, 0.0)
    assert most_devices(link, 2.0**16, 2.0**16) == 2**14 - 40, "noise takes its room"
    assert most_devices(SecureSum(bits=40), 2.0**16, 0.0) == 2**22
    assert most_devices(SecureSum(), 2.0**16, 0.0) == 2**46, "64 where nothing is said"


# --- the fewest bits ------------------------------------------------------------------------------

GRAM, OWN = GramConfig(least_head=8, most_head=8, embedding_size=6), OwnEpsilon(4.0)
FPL, SHARED = FPLConfig(embedding_size=4, triples=10), ShareFraction()


def fit(settings, release, link, devices, draws=10):
    return fitted(settings.build_under(release, link, draws), release, link, draws, devices)


def needs(settings, release, link, devices, draws=10):
    """The largest number that must be told from garbage."""
    algorithm = settings.build_under(release, link, draws)
    largest = release.largest_value(draws) * release.steps
    most = sum_limit(link.of_bits(64), devices, largest, sigma_of(algorithm, release, link))
    return most * (1 if release.contributing else LENIENT + 1)


@given(
    st.one_of(st.integers(2, 2**22), st.integers(1, 22).map(lambda k: 2**k + 1)),
    st.sampled_from(
        [
            (GRAM, OWN, SecureSum()),
            (FPL, SHARED, SecureSum()),
            (FPL, SHARED, SecureSum(clip=0.01)),
            (FPL, SHARED, SecureSum(clip=0.01, noise=1.0)),
        ]
    ),
)
def test_the_fewest_bits_that_have_room_are_taken(devices, how):
    found = fit(*how, devices)
    assert found == how[2].of_bits(found.bits), "and nothing else changes"
    most = needs(*how, devices)
    fewer = [bits for bits in BITS if bits < found.bits]
    assert found.bits == 64 or most <= 1 << (found.bits - 2)
    assert all(most > 1 << (bits - 2) for bits in fewer)


def test_gram_sums_of_thousands_have_32_bits_and_of_a_million_40():
    for devices, bits in ((1000, 32), (10_000, 32), (20_000, 40), (10**6, 40)):
        assert fit(GRAM, OWN, SecureSum(), devices).bits == bits


def test_bits_that_are_said_are_kept_or_refused():
    link = SecureSum(bits=48)
    assert fit(GRAM, OWN, link, 1000) == link
    most = most_devices(
        SecureSum(bits=40), SHARED.largest_value(10) * SHARED.steps, SecureSum().sigma
    )
    assert fit(FPL, SHARED, SecureSum(bits=40), most).bits == 40
    with pytest.raises(ConfigError, match="40 bits have no room"):
        fit(FPL, SHARED, SecureSum(bits=40), most + 1)
    assert fit(FPL, SHARED, Direct(), 10**9) == Direct()


@pytest.mark.parametrize("bits", [-1, 1, 8, 31, 33, 63, 65, 128])
def test_other_widths_are_none(bits):
    with pytest.raises(ConfigError, match="one of 32, 40, 48 and 64"):
        SecureSum(bits=bits)


@pytest.mark.parametrize("bits", [0, *BITS])
def test_a_message_has_the_bytes_of_its_numbers(bits):
    (many,) = SecureSum(bits=bits).message_bytes(np.array([3]), 99, NUMBERS)
    assert many == NUMBERS * (bits or 64) // 8 + SEALED_SEED_BYTES


def test_terms_of_64_bits_are_those_of_the_former_release():
    assert "bits" not in SecureSum(bits=64).table()
    assert SecureSum(bits=40).table()["bits"] == 40


# --- sums of every width --------------------------------------------------------------------------


class Round:
    """Masked updates of some devices and what the helper tells of them."""

    def __init__(self, bits, garbage=0, noise=0.0):
        clip = 2.0**-9 if noise else 0.0
        self.link = SecureSum(min_devices=3, bits=bits, noise=noise, clip=clip)
        self.largest = 2.0**15
        rng, users = np.random.default_rng(bits), np.arange(DEVICES)
        most = int(self.largest)
        self.values = rng.integers(-most, most + 1, (DEVICES, ROWS, WIDTH))
        self.values[0, 0], self.values[1:, 0] = -most, -most
        sent = self.values.copy()
        sent[:garbage] = rng.integers(-(2**63), 2**63, (garbage, ROWS, WIDTH))
        seeds = tuple(seeds_from(KEY, users, 0))
        hidden = no_words(DEVICES * NUMBERS, bits).reshape(DEVICES, -1)
        for row, seed in enumerate(seeds):
            hidden[row] = masked(sent[row], seed, bits)
        self.reports, self.seeds = MaskedReports(0, users, hidden), MaskSeeds(0, users, seeds)

    def total(self, threads=1):
        made = MaskedSum(0, ROWS, WIDTH, self.link, self.largest)
        made.add(self.reports, threads)
        return made

    def told(self):
        return Helper(self.link, NUMBERS, KEY).sum_masks(self.seeds)

    @property
    def exact(self):
        return self.values.sum(axis=0)


@pytest.mark.parametrize("bits", BITS)
def test_sums_are_exact_at_every_width_and_may_be_negative(bits):
    here = Round(bits)
    for threads in (1, 3):
        found = here.total(threads).open(here.told()).dense(ROWS)
        assert np.array_equal(found, here.exact)
    assert found.min() == -DEVICES * here.largest, "the largest that can be"


@pytest.mark.parametrize("bits", BITS)
def test_the_helpers_noise_is_the_same_at_every_width(bits):
    here, wide = Round(bits, noise=1.0), Round(64, noise=1.0)
    noise = here.total().open(here.told()).dense(ROWS) - here.exact
    assert np.array_equal(noise, wide.total().open(wide.told()).dense(ROWS) - wide.exact)
    assert 0.5 < noise.std() / here.link.sigma < 1.5


@pytest.mark.parametrize("leniency", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("bits", BITS)
def test_garbage_shows_at_every_width(bits, leniency):
    for many in (1, 4, DEVICES):
        here = Round(bits, garbage=many)
        with pytest.raises(SpoiledSum):
            here.total().open(here.told(), leniency)


@pytest.mark.parametrize("bits", BITS)
def test_a_wrong_sum_of_masks_shows_at_every_width(bits):
    here = Round(bits)
    told, fewer = here.told(), replace(here.seeds, sender=np.arange(9), seeds=here.seeds.seeds[:9])
    wrong = Helper(here.link, NUMBERS, KEY).sum_masks(fewer)
    for answer in (replace(wrong, devices=DEVICES), replace(told, masks=np.zeros_like(told.masks))):
        with pytest.raises(SpoiledSum):
            here.total().open(answer)
    for other in set(BITS) - {bits}:
        with pytest.raises(WrongSum, match="another size"):
            here.total().open(Round(other).told())


@pytest.mark.parametrize("bits", BITS)
def test_a_sum_goes_on_from_what_was_kept(bits):
    here = Round(bits)
    first, second = (
        replace(here.reports, sender=here.reports.sender[part], masked=here.reports.masked[part])
        for part in (slice(0, 4), slice(4, None))
    )
    before = MaskedSum(0, ROWS, WIDTH, here.link, here.largest)
    before.add(first)
    kept = before.total.copy()
    after = MaskedSum(0, ROWS, WIDTH, here.link, here.largest)
    after.go_on(kept, {0, 1, 2, 3})
    after.add(second)
    assert after.devices == DEVICES
    assert np.array_equal(after.open(here.told()).dense(ROWS), here.exact)
    assert np.array_equal(kept, before.total), "what was handed over is left alone"
    with pytest.raises(MessageError, match="twice"):
        after.add(first)
    for wrong in (no_words(NUMBERS - 1, bits), no_words(NUMBERS, 64 if bits == 32 else 32)):
        with pytest.raises(MessageError, match="numbers of the round"):
            after.go_on(wrong, set())
