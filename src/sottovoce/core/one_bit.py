"""One-bit reports: which coordinate is drawn, which bit is sent, and what it is worth.

A report is one 32-bit number, (coordinate << 1) | bit, where coordinate = item · F + factor and
bit 1 stands for +B. For a value y in [−1, 1] and a private 32-bit coin,

    bit = coin < T(y),    T(y) = low + round((y + 1)/2 · (high − low)),    high = 2**32 − low.

T never leaves [low, high], and `lowest` rounds low up. So whatever y is, and however it was
rounded, no two values differ in the probability of a bit by more than the factor e^ε: the promise
holds exactly, not up to rounding. The mean of ±1 is `contrast(ε)` · y, within 2**−31.

Coordinates are read by the server, and whoever could tell which of them were drawn by one device
would undo the shuffle. So a real device draws them from ChaCha20 under a key of 256 bits, as
`rng.SecretStreams` does; a simulation may draw them from the fast counter stream. Coins are private
and always come from ChaCha20, with another key per device and the round as nonce, so that who knows
some of a device's coins learns nothing about the others. A key and a round make one set of reports,
never two.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import LOW32, Keys, chacha_words, words_of

if TYPE_CHECKING:
    pass

COINS = 1 << 32
"""Coins run from 0 to this, exclusive."""
MOST_COORDINATES = 1 << 31
SMALLEST_EPSILON = 1e-4
LARGEST_EPSILON = 16.0
"""Beyond these ε, 32-bit coins would be too coarse for the promised probabilities."""
BLOCK_COINS = 16
"""Coins in a block of ChaCha20."""


@dataclass(frozen=True, slots=True, repr=False)
class ReportRule:
    """How reports are made, in the form the kernels read, a row per device of a round."""

    keys: Keys
    """The stream of coordinates of (round, user)."""
    noise: NDArray[np.uint32]
    """[n, 8]: each device's ChaCha20 key."""
    round: int
    low: NDArray[np.uint64]
    """T(−1) of each device, from `lowest`."""
    reports: int
    """k: reports per device."""
    scale: float
    """Gradients are multiplied by it before they are clipped to [−1, 1]."""

    def __post_init__(self) -> None:
        n = len(self.keys)
        if self.noise.shape != (n, 8) or self.low.shape != (n,):
            raise ConfigError("a rule needs one key, one noise key and one threshold per device")
        if n and not 1 <= int(self.low.min()) <= int(self.low.max()) <= COINS // 2:
            raise ConfigError("a threshold must lie between 1 and half of all coins")
        if self.reports < 1:
            raise ConfigError(f"a device must send at least one report, not {self.reports}")
        if not 0.0 < self.scale < math.inf:
            raise ConfigError("gradients must be scaled by a positive number")
        if not 0 <= self.round < 1 << 64:
            raise ConfigError("rounds are numbered from 0")

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"<ReportRule round={self.round} devices={len(self)}, redacted>"


# --- what a bit is worth -------------------------------------------------------------------------


def lowest(epsilon: float) -> int:
    """`low`: the coins, of 2**32, that lead to bit 1 at y = −1. The smallest whole number for which
    (2**32 − low)/low ≤ e^ε holds exactly."""
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise ConfigError(
            f"ε of a one-bit report must lie in [{SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}], "
            f"not {epsilon:g}"
        )
    from decimal import Decimal, localcontext

    with localcontext() as context:
        # Rounded far below the distance to any whole number, so the ceiling is the true one.
        context.prec = 60
        return math.ceil(COINS / (Decimal(float(epsilon)).exp() + 1))


def contrast(epsilon: float) -> float:
    """The mean of a report's ±1 is this times y: (e^ε − 1)/(e^ε + 1), as `low` has it."""
    return (COINS - 2 * lowest(epsilon)) / COINS


@njit(inline="always")
def threshold(y, low):
    """T(y) for y in [−1, 1]."""
    return low + uint64(np.rint((y + 1.0) * 0.5 * np.float64(uint64(COINS) - low - low)))


# --- reports as numbers --------------------------------------------------------------------------


def pack(
    coordinate: NDArray[np.integer], bit: NDArray[np.integer] | NDArray[np.bool_]
) -> NDArray[np.uint32]:
    """Reports from coordinates below 2**31 and bits."""
    at = np.asarray(coordinate)
    if at.size and not 0 <= int(at.min()) <= int(at.max()) < MOST_COORDINATES:
        raise ConfigError("a coordinate must lie in [0, 2**31)")
    return (at.astype(np.uint32) << np.uint32(1)) | np.asarray(bit).astype(np.bool_)


def coordinates(reports: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The coordinate of each report."""
    return (reports >> np.uint32(1)).astype(np.int64)


def bits(reports: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """The bit of each report; true stands for +B."""
    return (reports & np.uint32(1)).astype(np.bool_)


# --- coordinates ---------------------------------------------------------------------------------


@njit(inline="always")
def scaled(word, n):
    """A 64-bit word scaled to [0, n), n ≤ 2**32: off uniform by n / 2**64 at most, relatively."""
    high, low = word >> uint64(32), word & LOW32
    return (high * uint64(n) + ((low * uint64(n)) >> uint64(32))) >> uint64(32)


# --- private coins -------------------------------------------------------------------------------


def noise_root(key: int) -> bytes:
    """32 bytes from which a simulation's devices get their noise keys; `key` is a stream's."""
    size = 8 if key < 1 << 64 else 32
    return hashlib.blake2b(
        key.to_bytes(size, "little"), digest_size=32, person=b"one-bit noise"
    ).digest()


def noise_keys(root: bytes, users: NDArray[np.int64]) -> NDArray[np.uint32]:
    """[n, 8]: a ChaCha20 key for each user; without the root no key tells anything of another."""
    if len(root) != 32:
        raise ConfigError("a noise root has 32 bytes")
    keyed = hashlib.blake2b(digest_size=32, key=root)
    out = bytearray()
    for user in np.asarray(users, dtype=np.int64).tolist():
        one = keyed.copy()
        one.update(user.to_bytes(8, "little", signed=True))
        out += one.digest()
    return np.frombuffer(bytes(out), dtype="<u4").astype(np.uint32).reshape(-1, 8)


def nonce(round: int) -> NDArray[np.uint32]:
    """The round as ChaCha20's nonce."""
    return np.array([round & 0xFFFFFFFF, round >> 32, 0], dtype=np.uint32)


# --- the definition -------------------------------------------------------------------------------


def drawn_coordinates(rule: ReportRule, coordinates: int) -> NDArray[np.int64]:
    """[n, k]: the coordinates that each device's reports are about, of so many; drawn before
    anything private is looked at."""
    words = words_of(rule.keys, rule.reports)
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    total = np.uint64(coordinates)
    return ((high * total + ((low * total) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def randomised(
    rule: ReportRule, coordinates: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.uint32]:
    """[n, k]: a report for each coordinate and its value, which is scaled, cut to [−1, 1] and told
    by a private coin alone."""
    if values.shape != coordinates.shape or values.dtype != np.float64:
        raise ConfigError("a report needs one number for each coordinate that was drawn")
    if not np.isfinite(values).all():
        raise Diverged("a value to report is not finite; nothing was sent")
    y = np.clip(rule.scale * values, -1.0, 1.0)
    low = rule.low[:, None]
    wide = (np.uint64(COINS) - low - low).astype(np.float64)
    limit = low + np.rint((y + 1.0) * 0.5 * wide).astype(np.uint64)
    blocks = -(-rule.reports // BLOCK_COINS)
    coins = np.empty((len(rule), blocks, BLOCK_COINS), dtype=np.uint32)
    for device, block in np.ndindex(coins.shape[:2]):
        chacha_words(rule.noise[device], nonce(rule.round), block, coins[device, block])
    mine = coins.reshape(len(rule), -1)[:, : rule.reports]
    return pack(coordinates, mine.astype(np.uint64) < limit)
