"""One-bit reports: the promise on every bit, exact tables, and coins that match the standard."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce import rng as chacha
from sottovoce.core import one_bit
from sottovoce.core.one_bit import COINS, ReportRule
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams, words_of

EPSILONS = st.floats(1e-4, 16.0)


def block(key: bytes, nonce: bytes, counter: int) -> bytes:
    out = np.zeros(16, dtype=np.uint32)
    chacha.chacha_words(
        np.frombuffer(key, "<u4").astype(np.uint32),
        np.frombuffer(nonce, "<u4").astype(np.uint32),
        counter,
        out,
    )
    return out.astype("<u4").tobytes()


# --- the promise ---------------------------------------------------------------------------------


def log_odds(low: int) -> Decimal:
    """ln((2**32 − low)/low), the privacy cost that a threshold has in truth."""
    with localcontext() as context:
        context.prec = 50
        return (Decimal(COINS - low) / Decimal(low)).ln()


@given(EPSILONS)
@example(1e-4)
@example(2.5)
@example(16.0)
def test_no_two_values_differ_by_more_than_epsilon_and_no_coin_is_wasted(epsilon: float) -> None:
    low = one_bit.lowest(epsilon)
    assert log_odds(low) <= Decimal(epsilon)
    assert log_odds(low - 1) > Decimal(epsilon)


@settings(deadline=None)
@given(EPSILONS, st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
@example(16.0, -1.0, 1.0)
@example(1e-4, 1.0, math.nextafter(-1.0, 0.0))
@example(8.0, 0.0, -1e-300)
def test_the_ratio_holds_after_all_rounding(epsilon: float, y: float, z: float) -> None:
    low = one_bit.lowest(epsilon)
    mine, yours = (int(one_bit.threshold(v, np.uint64(low))) for v in (y, z))
    for chosen in (mine, yours):
        assert low <= chosen <= COINS - low
    most = Fraction(COINS - low, low)  # at most e^ε, by the test above
    assert Fraction(mine, yours) <= most
    assert Fraction(COINS - mine, COINS - yours) <= most
    assert mine >= yours or y < z


@settings(deadline=None)
@given(EPSILONS, st.floats(-1.0, 1.0))
def test_a_threshold_is_right_within_one_coin(epsilon: float, y: float) -> None:
    low = one_bit.lowest(epsilon)
    exact = low + (Fraction(y) + 1) / 2 * (COINS - 2 * low)
    assert abs(int(one_bit.threshold(y, np.uint64(low))) - exact) <= 1
    assert int(one_bit.threshold(-1.0, np.uint64(low))) == low
    assert int(one_bit.threshold(1.0, np.uint64(low))) == COINS - low


@given(EPSILONS)
def test_contrast_is_what_the_paper_divides_by(epsilon: float) -> None:
    assert one_bit.contrast(epsilon) == pytest.approx(math.tanh(epsilon / 2), abs=2**-31)
    assert one_bit.contrast(epsilon) > 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 9e-5, 16.01, 1000.0, math.inf, math.nan])
def test_epsilons_that_coins_cannot_keep_are_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="ε"):
        one_bit.lowest(epsilon)


# --- reports as numbers --------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans())))
def test_reports_unpack_to_what_was_packed(pairs: list[tuple[int, bool]]) -> None:
    at = np.array([c for c, _ in pairs], dtype=np.int64)
    bit = np.array([b for _, b in pairs], dtype=bool)
    reports = one_bit.pack(at, bit)
    assert reports.dtype == np.uint32
    assert reports.tolist() == [2 * c + b for c, b in pairs]
    assert np.array_equal(one_bit.coordinates(reports), at)
    assert np.array_equal(one_bit.bits(reports), bit)


@pytest.mark.parametrize("coordinate", [-1, 2**31])
def test_a_coordinate_out_of_range_is_refused(coordinate: int) -> None:
    with pytest.raises(ConfigError):
        one_bit.pack(np.array([coordinate]), np.array([1]))


def test_one_coordinate_out_of_range_is_enough() -> None:
    for row in ([5, -1], [2**31, 5]):
        with pytest.raises(ConfigError, match="coordinate"):
            one_bit.pack(np.array(row), np.array([0, 1]))


# --- coordinates ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**31))
def test_words_are_scaled_exactly(word: int, n: int) -> None:
    assert int(one_bit.scaled(np.uint64(word), n)) == (word * n) >> 64


# --- private coins -------------------------------------------------------------------------------


def test_chacha_gives_the_blocks_of_rfc_8439() -> None:
    example = block(bytes(range(32)), bytes.fromhex("000000090000004a00000000"), 1)  # 2.3.2
    assert example.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    zero = block(bytes(32), bytes(12), 0)  # A.1, test vector 1
    assert zero.hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )


@settings(deadline=None)  # compiles
@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=12, max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_chacha_is_the_librarys(key: bytes, nonce: bytes, counter: int) -> None:
    cipher = Cipher(ChaCha20(key, counter.to_bytes(4, "little") + nonce), mode=None)
    assert block(key, nonce, counter) == cipher.encryptor().update(bytes(64))


def test_noise_keys_are_keyed_hashes_of_the_user_alone() -> None:
    root = one_bit.noise_root(Streams.from_seed(4).key)
    users = np.array([5, 0, 2**40, 7])
    keys = one_bit.noise_keys(root, users)
    assert keys.shape == (4, 8)
    for user, key in zip(users.tolist(), keys, strict=True):
        digest = hashlib.blake2b(user.to_bytes(8, "little"), key=root, digest_size=32).digest()
        assert key.astype("<u4").tobytes() == digest
    assert np.array_equal(keys[2:3], one_bit.noise_keys(root, users[2:3]))
    assert one_bit.noise_keys(root, users[:0]).shape == (0, 8)


def test_other_streams_have_other_roots_and_a_short_root_is_refused() -> None:
    assert one_bit.noise_root(1) != one_bit.noise_root(2)
    assert len(one_bit.noise_root(1)) == 32
    with pytest.raises(ConfigError):
        one_bit.noise_keys(b"short", np.arange(3))


def test_the_nonce_is_the_round() -> None:
    assert one_bit.nonce(2**32 + 5).tolist() == [5, 1, 0]


# --- the rule ------------------------------------------------------------------------------------


def rule(n: int = 3) -> ReportRule:
    users = np.arange(n)
    return ReportRule(
        keys=Streams.from_seed(1).keys(users),
        noise=one_bit.noise_keys(one_bit.noise_root(2), users),
        round=4,
        low=np.full(n, one_bit.lowest(2.5), dtype=np.uint64),
        reports=10,
        scale=1.0,
    )


def test_a_rule_does_not_show_its_keys() -> None:
    assert repr(rule()) == "<ReportRule round=4 devices=3, redacted>"


@pytest.mark.parametrize(
    "change",
    [
        {"noise": np.zeros((2, 8), np.uint32)},
        {"low": np.zeros(3, np.uint64)},
        {"low": np.full(3, 2**31 + 1, np.uint64)},
        {"low": np.full(2, 2**31, np.uint64)},
        {"reports": 0},
        {"scale": 0.0},
        {"scale": math.nan},
        {"scale": math.inf},
        {"round": -1},
    ],
)
def test_a_rule_that_would_break_its_promise_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(rule(), **change)  # type: ignore[arg-type]


# --- the definition -------------------------------------------------------------------------------


def test_coordinates_are_drawn_exactly() -> None:
    """Of a word of 64 bits: of n coordinates the one at word·n / 2**64."""
    asked = rule()
    words = [[int(word) for word in row] for row in words_of(asked.keys, asked.reports)]
    for n in (7, 2**31, 2**31 - 1):
        expected = [[word * n >> 64 for word in row] for row in words]
        assert one_bit.drawn_coordinates(asked, n).tolist() == expected


def test_what_is_not_one_finite_number_for_each_coordinate_is_not_randomised() -> None:
    asked = rule()
    drawn = one_bit.drawn_coordinates(asked, 50)
    values = np.zeros(drawn.shape)
    for wrong in (values[:, :1], values[:1], values.astype(np.float32), values.ravel()):
        with pytest.raises(ConfigError, match="one number for each coordinate"):
            one_bit.randomised(asked, drawn, wrong)
    values[1, 3] = np.inf
    with pytest.raises(Diverged, match="nothing was sent"):
        one_bit.randomised(asked, drawn, values)


def test_a_bit_is_told_by_a_coin_below_its_threshold() -> None:
    """Coin by coin, with coins of the library and thresholds in whole numbers."""
    asked = replace(rule(), reports=40, scale=0.5)
    drawn = one_bit.drawn_coordinates(asked, 50)
    values = np.linspace(-4.0, 4.0, drawn.size).reshape(drawn.shape)
    values[0, :4] = (-2.0, 2.0, -1e300, 1e300)
    reports = one_bit.randomised(asked, drawn, values)
    assert np.array_equal(one_bit.coordinates(reports), drawn)
    low = one_bit.lowest(2.5)
    start = np.array(one_bit.nonce(4), dtype="<u4").tobytes()
    for device in range(3):
        key = asked.noise[device].astype("<u4").tobytes()
        stream = b"".join(block(key, start, counter) for counter in range(3))
        coins = np.frombuffer(stream, dtype="<u4")[:40].astype(np.int64)
        y = np.clip(values[device] * 0.5, -1.0, 1.0)
        limit = low + np.rint((y + 1) / 2 * (COINS - 2 * low)).astype(np.int64)
        assert np.array_equal(one_bit.bits(reports[device]), coins < limit)
        # A value whose threshold is the coin itself, or the next number.
        within = np.clip(coins, low, COINS - low - 1)
        for more, told in ((0, False), (1, True)):
            y = 2 * (within + more - low) / (COINS - 2 * low) - 1
            again = one_bit.randomised(asked, drawn, np.tile(2 * y, (3, 1)))
            assert (one_bit.bits(again[device])[within == coins] == told).all()
