"""Noise on a sum of updates: a user's whole update is clipped, the sum of many gets Gaussian noise.

What it promises, and against whom. The noisy sums of all rounds, and the models that follow from
them, are (ε, δ)-differentially private with the ε of `price`, toward everybody who sees them, the
server included. It is the *proxy* that adds the noise: this holds while proxy and server do not put
together what they have, and against the two together nothing is promised. Neighbours are: one
user's updates counted, or left out. Who takes part in which round, and how many, is public and must
not follow from anybody's data; so there is no amplification by sampling, and a user pays for the
rounds in which she takes part, each at its full price. `rounds_within` turns that round: how many
rounds a limit on ε has room for.

**Clipping** is on the grid: the squares of a clipped update's whole numbers add up to no more than
the square of the limit, exactly.

**Noise.** Sums are whole numbers x, and what is told is x + round(Z) with a Gaussian Z. That is
round(x + Z), hence a function of x + Z alone: rounding takes away and adds nothing to what the
continuous mechanism tells, and the price of that one holds.

Z itself is not a rounded logarithm, which would leave gaps between far numbers. |Z| is 2^m·H + L,
with 2^m at most σ/32. The cell H is drawn by thresholds of 128 bits, up to 13 σ. L has 38 bits, m
of them before the point and at least one behind it, and is kept with the probability by which the
density has fallen since its cell began, by a coin of 53 bits. So every whole number within 12 σ can
come, and none is favoured. The end at 13 σ and the rounding of thresholds concern fewer than 2^−115
of all draws, which counts toward δ: less than 2^−80 for a billion numbers. The rounding of coins
moves the others by a part in 2^50, which counts toward ε: at most `ROUNDING` for each number, or
10^−6 for half a billion of them. `price` leaves both out.

Coins are ChaCha20's (RFC 8439). The noise of a number is a function of key, round and place. A key
and a round are for one sum, never for two: the difference of two would be free of noise.

**Factorised noise** (`core.running`) puts the draws of several rounds together, each drawn again
from its key, so that nobody has to remember one. Draws are as above, in steps of 2^-12 of the grid
(larger ones where σ is above 2^28); they are added up in double precision, and what comes out is
rounded to whole numbers, which is post-processing. That draws lie on a lattice moves a contribution
by half a step of it in each number at most: a part in 10^5 of its norm for a million numbers.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy import float64, int64, uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.links import require_sigma
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.core.one_bit import nonce
from sottovoce.core.portable import gaussian_delta, log
from sottovoce.core.running import Draws, weights
from sottovoce.errors import ConfigError
from sottovoce.privacy.accountant import DELTA
from sottovoce.privacy.laplace import _AT_ONCE, _LANES, chacha_lanes
from sottovoce.rng import chacha_words

ROUNDING = 2.0**-49
"""What sampling may add to the privacy cost of one number."""
MOST_NUMBERS = 1 << 32
MOST_ROUNDS = 10**12
_FAR = 1e6
"""A distance at which the two terms of δ differ by less than the rounding of their logarithms."""
_AHEAD = 5
"""2^m is at most σ / 2^5, so that few L are thrown away."""
_REACH = 13
"""Standard deviations that the cells cover."""
_LOW_BITS = 38
"""Low bits of L; m of them stand before the point."""
_FINE_BITS = 12
"""Bits behind the point of draws that are put together."""
_COIN_BITS = 25
"""Coins of so many bits are enough for nearly all L."""


# --- clipping ------------------------------------------------------------------------------------


def clip_reports(reports: DeviceReports, clip: float) -> DeviceReports:
    """Every sender's whole update, scaled down to an L2 norm of at most `clip`. Numbers are rounded
    toward 0, so that the norm keeps below it. Updates that are no longer stay bit for bit."""
    if not 0.0 < clip < math.inf:
        raise ConfigError(f"the largest norm of an update is above 0 and finite, not {clip:g}")
    if not reports.values.size:
        return reports
    _, owner = np.unique(reports.sender, return_inverse=True)
    values = np.ascontiguousarray(reports.values, dtype=np.int64)
    squares = np.zeros(int(owner.max()) + 1)
    _add_squares(values, owner.astype(np.int64), squares)
    # What the floating-point sum of a sender's squares may be off by, relatively. Hers alone: what
    # she sends must not depend on who else is there.
    slack = (np.bincount(owner) * values.shape[1] + 16) * 2.0**-52
    limit = clip * GRID
    over = squares > limit**2 * (1.0 + slack)
    for close in np.flatnonzero(~over & (squares > limit**2 * (1.0 - slack))):
        exact = sum(number * number for number in values[owner == close].ravel().tolist())
        up, down = float(limit).as_integer_ratio()
        over[close] = exact * down**2 > up**2
    if not over.any():
        return reports
    factor = np.ones(len(squares))
    factor[over] = limit / np.sqrt(squares[over]) * (1.0 - slack[over])
    long = np.flatnonzero(over[owner])
    clipped = values.copy()
    clipped[long] = np.trunc(values[long] * factor[owner[long], None]).astype(np.int64)
    return replace(reports, values=clipped)


@njit(nogil=True, cache=True)
def _add_squares(values, owner, squares):
    """One number after another, so that a sum does not depend on who else is there."""
    for k in range(len(values)):
        total = squares[owner[k]]
        for f in range(values.shape[1]):
            total += float64(values[k, f]) * float64(values[k, f])
        squares[owner[k]] = total


@_add_squares.alone
def _(values, owner, squares):
    for one in np.unique(owner):
        mine = np.square(values[owner == one].astype(np.float64)).ravel()
        squares[one] = np.cumsum(np.concatenate([squares[one : one + 1], mine]))[-1]


# --- the price -----------------------------------------------------------------------------------


def price(noise: float, rounds: int, delta: float = DELTA) -> float:
    """ε, at this δ, of a user who took part in so many rounds, `noise` being the standard deviation
    of the noise as a multiple of the clipping norm. Exact for the Gaussian mechanism (rounded up in
    the tenth digit): T sums, even where each depends on those before, tell as much as one with √T
    times less noise. Of an ε above 10¹¹, which protects nothing, only a bound. Infinite without
    noise. Every device computes it alike, bit for bit (`core.portable`)."""
    _check(rounds, delta)
    if not 0.0 <= noise < math.inf:
        raise ConfigError(f"the noise multiplier is 0 or above and finite, not {noise:g}")
    if not noise:
        return math.inf
    distance = math.sqrt(rounds) / noise
    low, high = 0.0, distance * distance / 2 + distance * math.sqrt(2 * float(log(1 / delta)))
    if distance > _FAR:
        return high
    if gaussian_delta(distance, 0.0) <= delta:
        return 0.0
    while high - low > 1e-11 * high:
        middle = (low + high) / 2
        if gaussian_delta(distance, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def noise_for(epsilon: float, rounds: int, delta: float = DELTA) -> float:
    """The least `noise` of which the price of so many rounds is at most ε."""
    _check(rounds, delta)
    if not 0.0 < epsilon < math.inf:
        raise ConfigError(f"ε is above 0 and finite, not {epsilon:g}")
    low, high = 0.0, 1.0
    while price(high, rounds, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if price(middle, rounds, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=4096)
def rounds_within(noise: float, limit: float, delta: float = DELTA) -> int:
    """The most rounds of which the price is at most `limit`, or `MOST_ROUNDS`, whatever is less.
    The last digits are forgiven, as in `affords`."""

    def fits(rounds: int) -> bool:
        return price(noise, rounds, delta) <= limit * (1.0 + 1e-12)

    if not limit >= 0.0:
        raise ConfigError(f"a limit on ε is 0 or above, not {limit:g}")
    if fits(MOST_ROUNDS):
        return MOST_ROUNDS
    fitting, beyond = 0, 1
    while fits(beyond):
        fitting, beyond = beyond, min(2 * beyond, MOST_ROUNDS)
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if fits(middle):
            fitting = middle
        else:
            beyond = middle
    return fitting


def room_for_sums(
    noise: float,
    sent: NDArray[np.int64],
    spent: NDArray[np.float64],
    limit: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Whether one more round fits into each owner's limit, where she has sent in so many rounds of
    this noise and has spent so much ε on other releases, which adds to the price of the rounds.
    Where there is no limit there is room, however many rounds there were."""
    rests, which = np.unique(limit - spent, return_inverse=True)
    most = [rounds_within(noise, rest) if rest >= 0.0 else 0 for rest in rests.tolist()]
    fits: NDArray[np.bool_] = sent < np.array(most, dtype=np.int64)[which]
    return fits | np.isinf(limit)


def _check(rounds: int, delta: float) -> None:
    if not 1 <= rounds <= MOST_ROUNDS:
        raise ConfigError(f"rounds must lie in 1 to {MOST_ROUNDS:,}, not at {rounds:,}")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"δ must lie between 0 and 1, not at {delta:g}")


# --- noise ---------------------------------------------------------------------------------------


def gaussian_noise(key: bytes, round: int, numbers: int, sigma: float) -> NDArray[np.int64]:
    """Gaussian noise of this standard deviation, rounded to whole numbers. `key` is 32 bytes that
    nobody else knows; a key and a round serve for one sum."""
    if not 0 <= numbers <= MOST_NUMBERS:
        raise ConfigError("a table has too many numbers")
    words, noise = _key_words(key, round, sigma), np.empty(numbers, dtype=np.int64)
    _fill(noise, words, nonce(round), *_table(float(sigma)))
    return noise


def gaussian_noise_at(
    key: bytes, round: int, places: NDArray[np.int64], sigma: float
) -> NDArray[np.int64]:
    """`gaussian_noise` at these places alone."""
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < MOST_NUMBERS:
        raise ConfigError("a table has too many numbers")
    words, noise = _key_words(key, round, sigma), np.empty(len(places), dtype=np.int64)
    _fill_at(noise, places.astype(np.int64), words, nonce(round), *_table(float(sigma)))
    return noise


def _key_words(key: bytes, round: int, sigma: float) -> NDArray[np.uint32]:
    if len(key) != 32:
        raise ConfigError("the key of noise has 32 bytes")
    if not 0 <= round < 1 << 64:
        raise ConfigError("rounds are numbered from 0")
    require_sigma(sigma)
    return np.frombuffer(key, dtype="<u4").astype(np.uint32)


Spans = Sequence[tuple[int, float]]
"""How many numbers of a sum, one after the other, get noise of which standard deviation, in steps
of the grid."""


def noise_on(spans: Spans, key: bytes, round: int, draws: Draws | None = None) -> NDArray[np.int64]:
    """Gaussian noise on a sum, span by span. Each span but the first has a key of its own. With
    `draws` it is factorised, and `spans` are of the draws."""
    if draws is not None and draws.rounds[:1] != (round,):
        raise ConfigError("the noise of a round begins with the draws of that round")
    parts = []
    for place, (numbers, sigma) in enumerate(spans):
        own = key
        if place:
            person, which = b"noise of a span", place.to_bytes(4, "little")
            own = hashlib.blake2b(which, digest_size=32, key=key, person=person).digest()
        if draws is None:
            parts.append(gaussian_noise(own, round, numbers, sigma))
        else:
            places, lags = draws.places[place], draws.lags[place]
            if not len(places) == len(lags) == numbers or len(np.unique(places)) != numbers:
                raise ConfigError("every number of a sum needs draws of its own")
            parts.append(_put_together(own, draws.rounds, places, lags, sigma))
    return np.concatenate(parts)


def _put_together(
    key: bytes,
    rounds: tuple[int, ...],
    places: NDArray[np.int64],
    lags: NDArray[np.int64],
    sigma: float,
) -> NDArray[np.int64]:
    """The noise of numbers that go back to so many earlier rounds each."""
    if len(set(rounds)) != len(rounds):
        raise ConfigError("the draws of a round are used once")
    fine = 2.0 ** max(0, min(_FINE_BITS, 40 - math.ceil(math.log2(sigma))))
    total = np.zeros(len(places))
    for back, (round, weight) in enumerate(zip(rounds, weights(len(rounds)), strict=True)):
        reach = np.flatnonzero(lags >= back)
        if not len(reach):
            break
        total[reach] += weight * gaussian_noise_at(key, round, places[reach], sigma * fine)
    return np.rint(total / fine).astype(np.int64)


@lru_cache(maxsize=64)
def _table(
    sigma: float,
) -> tuple[
    NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], int, float
]:
    """Return the tables of all cells: the high and low words of the thresholds P(H ≤ j) · 2^128,
    the coins that keep any L, where to begin to look by the highest eight bits of a word, m, and σ.
    """
    shift = max(0, math.floor(math.log2(sigma)) - _AHEAD)
    cell = (1 << shift) / sigma
    cells = math.ceil(_REACH / cell)
    with localcontext() as context:
        context.prec = 60
        step = Decimal(1 << shift) / Decimal(sigma)
        weights = [(-((step * j) ** 2) / 2).exp() for j in range(cells)]
        total, so_far, cuts = sum(weights), Decimal(0), []
        for weight in weights:
            so_far += weight
            cuts.append(min(int((2**128 * so_far / total).to_integral_value()), 2**128 - 1))
    cuts[-1] = 2**128 - 1
    high = np.array([cut >> 64 for cut in cuts], dtype=np.uint64)
    low = np.array([cut & (2**64 - 1) for cut in cuts], dtype=np.uint64)
    fallen = [math.exp(-(2 * j + 1) * cell**2 / 2) for j in range(cells)]
    sure = np.array([int(2**_COIN_BITS * one * (1 - 1e-12)) for one in fallen], dtype=np.uint64)
    starts = np.arange(256, dtype=np.uint64) << np.uint64(56)
    guide = np.searchsorted(high, starts, side="right").astype(np.int64)
    return high, low, sure, guide, shift, sigma


@njit(nogil=True, cache=True)
def _fill(noise, key, nonce, high, low, sure, guide, shift, sigma):
    words, block = np.empty((16, _LANES), dtype=np.uint32), np.empty(16, dtype=np.uint32)
    drop = uint64(_LOW_BITS - shift - 1)
    below = (uint64(1) << uint64(_LOW_BITS)) - uint64(1)
    for begin in range(0, len(noise), _AT_ONCE):
        chacha_lanes(key, nonce, uint32(begin // 4), words)
        for k in range(min(_AT_ONCE, len(noise) - begin)):
            lane, w = k >> 2, 4 * (k & 3)
            first = uint64(words[w, lane]) | (uint64(words[w + 1, lane]) << uint64(32))
            second = uint64(words[w + 2, lane]) | (uint64(words[w + 3, lane]) << uint64(32))
            j = guide[first >> uint64(56)]
            while first >= high[j] and j < len(high) - 1:
                j += 1
            # The high word alone decides, unless it is a threshold's own.
            clear = first != high[j] and (j == 0 or first != high[j - 1])
            if clear and (second >> uint64(64 - _COIN_BITS)) < sure[j]:
                # One bit behind the point is left, and rounds.
                length = (int64((second & below) >> drop) + 1) >> 1
                sign = int64((second >> uint64(_LOW_BITS)) & uint64(1))
                noise[begin + k] = (((j << shift) + length) ^ -sign) + sign
            else:
                noise[begin + k] = _slow(
                    first, second, key, nonce, begin + k, block, high, low, sure, shift, sigma
                )


@njit(nogil=True, cache=True)
def _fill_at(noise, places, key, nonce, high, low, sure, guide, shift, sigma):
    """By the definition, which `_fill` is faster than."""
    words, block = np.empty(16, dtype=np.uint32), np.empty(16, dtype=np.uint32)
    for k in range(len(places)):
        at = places[k]
        if k == 0 or at >> 2 != places[k - 1] >> 2:
            chacha_words(key, nonce, uint32(at >> 2), words)
        w = 4 * (at & 3)
        first = uint64(words[w]) | (uint64(words[w + 1]) << uint64(32))
        second = uint64(words[w + 2]) | (uint64(words[w + 3]) << uint64(32))
        noise[k] = _slow(first, second, key, nonce, at, block, high, low, sure, shift, sigma)


@njit(nogil=True, cache=True)
def _slow(first, second, key, nonce, at, block, high, low, sure, shift, sigma):
    """The noise of a number by its definition; `first` and `second` are the words that it starts
    with, and it has four more for each time that it must draw again."""
    more = np.array([nonce[0], nonce[1], uint32(0)])
    drop = uint64(_LOW_BITS - shift - 1)
    below = (uint64(1) << uint64(_LOW_BITS)) - uint64(1)
    while True:
        more[2] += uint32(1)
        chacha_words(key, more, uint32(at), block)
        extra = uint64(block[0]) | (uint64(block[1]) << uint64(32))
        last = uint64(block[2]) | (uint64(block[3]) << uint64(32))
        j = 0
        while j < len(high) - 1 and (first > high[j] or (first == high[j] and extra >= low[j])):
            j += 1
        coin = second >> uint64(64 - _COIN_BITS)
        kept = coin < sure[j]
        if not kept:
            coin = (coin << uint64(53 - _COIN_BITS)) | (last >> uint64(11 + _COIN_BITS))
            # In standard deviations, in the middle of what L stands for.
            cell = 2.0**shift / sigma
            part = (float64(second & below) + 0.5) * 2.0**-_LOW_BITS
            kept = float64(coin) < math.exp(-(2.0 * j + part) * part * cell * cell / 2.0) * 2.0**53
        if kept:
            length = (int64((second & below) >> drop) + 1) >> 1
            value = (int64(j) << shift) + length
            return -value if (second >> uint64(_LOW_BITS)) & uint64(1) else value
        first = uint64(block[4]) | (uint64(block[5]) << uint64(32))
        second = uint64(block[6]) | (uint64(block[7]) << uint64(32))
