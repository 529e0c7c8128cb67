"""Shares: a device's short vector in three parts, of which no one alone tells anything, and what
three aggregators compute of it without seeing it.

**Field.** Whole numbers modulo p = 2³¹ − 1. A vector is written as bits: each of its entries is a
sum of bits with public weights (so that it lies between 0 and their sum), and some more bits, the
slack, say how far the sum of its squares is below the bound. Every bit is shared,
x = x₀ + x₁ + x₂ mod p, where x₀ and x₁ are drawn with ChaCha20 from a secret each, and what travels
is x₂ plus the numbers drawn from a third secret. Aggregator i knows secrets i and i + 1 (mod 3), so
that it has xᵢ and xᵢ₊₁: two uniform tables, whatever x is.

**Products for nothing.** (x₀ + x₁ + x₂)(y₀ + y₁ + y₂) is the sum over i of
xᵢyᵢ + xᵢyᵢ₊₁ + xᵢ₊₁yᵢ, and aggregator i can compute its part alone. So each of them has a part of
whatever has degree two: of Σ x xᵀ over devices, of b² − b of a bit, of the sum of squares.
A part is blinded before it is told (`zeros`): three numbers that add up to 0, drawn from secrets
that two aggregators share each and bound to all that was said before. Where two of them were told
different things, what opens is noise.

**Checks.** For every device opens Σ rⱼ(bⱼ² − bⱼ) + r(Σ x² + slack − bound), twice, for numbers r
that are drawn after all devices have committed. It is 0 for whoever keeps to the rules, and for
anybody else with a chance of p⁻². Since entries are sums of bits, nothing wraps around: Σ x² is
below p. Where a form limits loudness, a device tells in bits a number m, too, and how far below it
every entry is; m Σ x has a bound then, in the same way: nobody can be loud about one item and add
it to many others.

Why this prime, and not 2⁶¹ − 1: half the bytes a bit, products by four times fewer multiplications
of exact floats; two checks of 31 bits are as good as one of 61. Sums must stay below 2³⁰
(`Form.most_devices`).
"""

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated"

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.arrays import each, equal_spans
from sottovoce.core.contributions import numbers_of
from sottovoce.core.masking import SEED_BYTES, expand
from sottovoce.errors import ConfigError, MessageError

P = (1 << 31) - 1
AGGREGATORS = 3
CHECKS = 2
"""Numbers that open for every device; each is 0 by chance once in p times."""
NUMBER_BYTES = 4
_HALF = 1 << 30
"""The inverse of 2 modulo p, and the limit of honest sums."""
_DEVICES_AT_ONCE = 256

Elements = NDArray[np.uint32]
"""Numbers below p."""


@dataclass(frozen=True, slots=True)
class Form:
    """What devices share in a round, and what is checked of it."""

    places: int
    weights: tuple[int, ...]
    """Weights of the bits of an entry, ascending; none is above 1 plus the sum of those before it.
    """
    bound: int
    """What the squares of a vector's entries add up to at most."""
    pairs: bool
    """Whether all products of pairs are summed, or the entries themselves."""
    loudness: int = 0
    """What the largest entry times the sum of all is at most; 0 does not limit it."""

    def __post_init__(self) -> None:
        below = 0
        for weight in self.weights:
            if not 1 <= weight <= below + 1:
                raise ConfigError("bits of an entry must reach every number up to the largest")
            below += weight
        if not self.weights or self.places < 0 or self.bound < 1 or self.loudness < 0:
            raise ConfigError("a shared vector needs bits and a bound")
        if self.places * self.most**2 + (1 << max(self.slack, self.loud_slack)) >= P:
            raise ConfigError(
                f"the squares of {self.places:,} entries of up to {self.most} could wrap around in "
                "the field of checked sums"
            )

    @property
    def most(self) -> int:
        """The largest entry."""
        return sum(self.weights)

    @property
    def slack(self) -> int:
        """Bits that say how far the sum of squares is below the bound."""
        return self.bound.bit_length()

    @property
    def loud_slack(self) -> int:
        """The same of loudness."""
        return self.loudness.bit_length()

    @property
    def elements(self) -> int:
        """Numbers that are shared of each device."""
        width = len(self.weights)
        loud = (self.places + 1) * width + self.loud_slack if self.loudness else 0
        return self.places * width + self.slack + loud

    @property
    def _checked(self) -> int:
        """Numbers by which a device is checked: one for each bit, the norm, what is below the
        largest entry, and loudness."""
        return self.elements + 1 + (self.places + 1 if self.loudness else 0)

    @property
    def numbers(self) -> int:
        """Number of values in the sum."""
        return numbers_of(self.places, self.pairs)

    def most_devices(self, sigma: float, furthest: float = 40.0) -> int:
        """For the sum of which the field has room, with noise of this standard deviation."""
        one = self.most**2 if self.pairs else self.most
        return max(0, int((_HALF - furthest * sigma) // one))


# --- a device's half -----------------------------------------------------------------------------


def bits_of(form: Form, entries: NDArray[np.integer]) -> Elements:
    """The bits of vectors, [devices, places]: of each place, then of the slack; where loudness is
    limited, of what each place is below the largest, of the largest, and of that slack. Raises
    where a vector is beyond the bounds."""
    whole = entries.astype(np.int64)
    if whole.ndim != 2 or whole.shape[1] != form.places:
        raise MessageError(f"a shared vector has {form.places:,} places")
    slack = form.bound - (whole**2).sum(axis=1)
    largest = whole.max(axis=1, initial=0)
    quiet = form.loudness - largest * whole.sum(axis=1) if form.loudness else slack
    within = not whole.size or (whole.min() >= 0 and whole.max() <= form.most)
    if not within or min(slack.min(initial=0), quiet.min(initial=0)) < 0:
        raise MessageError("a vector is beyond the bounds that are checked; nothing was shared")
    parts = [_weighed(form.weights, whole), _powers(slack, form.slack)]
    if form.loudness:
        parts.append(_weighed(form.weights, largest[:, None] - whole))
        parts.append(_weighed(form.weights, largest[:, None]))
        parts.append(_powers(quiet, form.loud_slack))
    return np.hstack(parts)


def _weighed(weights: tuple[int, ...], whole: NDArray[np.int64]) -> Elements:
    """The bits of numbers by these weights, [rows, numbers · weights]."""
    left, bits = whole.copy(), np.empty((*whole.shape, len(weights)), dtype=np.uint32)
    for k in reversed(range(len(weights))):
        on = left >= weights[k]
        bits[:, :, k] = on
        left -= on * weights[k]
    return bits.reshape(len(whole), whole.shape[1] * len(weights))


def _powers(whole: NDArray[np.int64], many: int) -> Elements:
    """The bits of numbers by powers of two, [rows, many]."""
    return (whole[:, None] >> np.arange(many) & 1).astype(np.uint32)


def drawn(secret: bytes, many: int) -> Elements:
    """Return uniform numbers below p, drawn from a secret of 32 bytes that is used once."""
    more = 0
    while True:
        words = expand(secret, many + 8 + more, 32).astype(np.uint32, copy=False)
        if _below(words) >= many:
            return words[:many]
        more += many


def split(bits: Elements, secrets: Sequence[bytes]) -> Elements:
    """What travels of one device's bits, given its three secrets."""
    first, second, third = (drawn(one, len(bits)).astype(np.int64) for one in _three(secrets))
    return ((bits.astype(np.int64) - first - second + third) % P).astype(np.uint32)


# --- an aggregator's half ------------------------------------------------------------------------


class Pair(NamedTuple):
    """The two shares of each of some devices that an aggregator has, [devices, elements]."""

    first: Elements
    second: Elements

    @property
    def devices(self) -> int:
        return len(self.first)


def share(form: Form, number: int, secret: bytes, travelled: Elements | None) -> Elements:
    """Share `number` of a device, from its secret and, for the last one, what travelled."""
    mine = drawn(secret, form.elements)
    if number != AGGREGATORS - 1:
        return mine
    if travelled is None or travelled.shape != mine.shape:
        raise MessageError(f"{form.elements:,} numbers travel of a device in this round")
    _subtract(travelled, mine)
    return mine


def check_parts(
    form: Form, number: int, shares: Pair, challenge: bytes, threads: int = 1
) -> Elements:
    """Aggregator `number`'s part of what opens for each device, [devices, CHECKS], not blinded."""
    r = np.stack([drawn(_derived(challenge, k), form._checked) for k in range(CHECKS)])
    found = np.empty((shares.devices, CHECKS), dtype=np.uint32)
    shape = np.array([form.places, form.slack, form.loud_slack])
    # Numbers that are known to all are in the first one's part.
    limits = np.array([form.bound, form.loudness] if number == 0 else [0, 0], np.uint64)
    weights = np.array(form.weights, np.uint64)

    def part(span: slice) -> None:
        _check(shares.first[span], shares.second[span], weights, shape, limits, r, found[span])

    each(part, equal_spans(shares.devices, threads), threads)
    return found


def sum_parts(form: Form, shares: Pair, kept: NDArray[np.bool_] | None = None) -> Elements:
    """An aggregator's part of the sum over these devices (of those that are `kept`), not
    blinded: of the entries, or of the products of all pairs as `contributions` writes them."""
    total = np.zeros((form.places, form.places) if form.pairs else form.places, dtype=np.uint64)
    rows = np.arange(shares.devices) if kept is None else np.flatnonzero(kept)
    for at in range(0, len(rows), _DEVICES_AT_ONCE):
        some = rows[at : at + _DEVICES_AT_ONCE]
        first = _entries(form, shares.first[some])
        if not form.pairs:
            total += first.sum(axis=0)
            continue
        second = _entries(form, shares.second[some])
        total += _product(first, (second + first * np.uint64(_HALF) % np.uint64(P)) % np.uint64(P))
    total %= np.uint64(P)
    if not form.pairs:
        return total.astype(np.uint32)
    whole = (total + total.T) % np.uint64(P)
    upper = whole[np.triu_indices(form.places, 1)]
    return np.concatenate([np.diagonal(whole), upper]).astype(np.uint32)


def zeros(shared: tuple[bytes, bytes], said: bytes, many: int) -> Elements:
    """An aggregator's part of so many zeros. `shared` are the secrets that it shares with the next
    aggregator and with the one before; `said` names all that they must agree on."""
    after, before = (drawn(_derived(one, said), many).astype(np.int64) for one in shared)
    return ((after - before) % P).astype(np.uint32)


def added(parts: Sequence[NDArray[np.integer]]) -> Elements:
    """The sum of parts modulo p; numbers below 0 count as such."""
    total = sum(one.astype(np.int64) % P for one in parts)
    return (np.asarray(total) % P).astype(np.uint32)


def opened(total: Elements) -> NDArray[np.int64]:
    """Whole numbers whose sum modulo p this is, around 0."""
    found = total.astype(np.int64)
    return np.where(found > P // 2, found - P, found)


# --- helpers -------------------------------------------------------------------------------------


def _three(secrets: Sequence[bytes]) -> Sequence[bytes]:
    if len(secrets) != AGGREGATORS or any(len(one) != SEED_BYTES for one in secrets):
        raise MessageError(f"a device shares by {AGGREGATORS} secrets of {SEED_BYTES} bytes")
    return secrets


def _derived(secret: bytes, what: bytes | int) -> bytes:
    said = what.to_bytes(4, "little") if isinstance(what, int) else what
    return hashlib.blake2b(said, digest_size=SEED_BYTES, key=secret, person=b"shares").digest()


def _entries(form: Form, shares: Elements) -> NDArray[np.uint64]:
    """Shares of entries, from those of their bits."""
    width = len(form.weights)
    bits = shares[:, : form.places * width].reshape(len(shares), form.places, width)
    total = np.zeros(bits.shape[:2], dtype=np.uint64)
    for k, weight in enumerate(form.weights):
        total += bits[:, :, k] * np.uint64(weight)
    return total % np.uint64(P)


def _product(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """firstᵀ second modulo p, by floats that are exact: halves of 16 bits, whose products add up to
    less than 2⁵³ over so few devices."""
    places = first.shape[1]

    def halves(of: NDArray[np.uint64]) -> NDArray[np.float64]:
        return np.hstack([of & np.uint64(0xFFFF), of >> np.uint64(16)]).astype(np.float64)

    whole = (halves(first).T @ halves(second)).astype(np.uint64) % np.uint64(P)
    low, high = whole[:places], whole[places:]
    middle = (low[:, places:] + high[:, :places]) % np.uint64(P)
    # 2³² is 2 modulo p.
    found: NDArray[np.uint64] = low[:, :places] + (middle << np.uint64(16)) % np.uint64(P)
    return (found + (high[:, places:] << np.uint64(1))) % np.uint64(P)


@njit(inline="always")
def _reduced(a):
    """Below 2⁶⁴, modulo p."""
    p = uint64(P)
    a = (a & p) + (a >> uint64(31))
    a = (a & p) + (a >> uint64(31))
    return a - p if a >= p else a


@njit(nogil=True, cache=True)
def _below(words):
    """Leaves the lower 31 bits of each that is not p then, in their order; how many these are."""
    at = 0
    for k in range(len(words)):
        word = words[k] & uint32(P)
        words[at] = word
        if word != uint32(P):
            at += 1
    return at


@_below.alone
def _(words):
    words &= uint32(P)
    found = words[words != uint32(P)]
    words[: len(found)] = found
    return len(found)


@njit(nogil=True, cache=True)
def _subtract(whole, part):
    """part = whole - part modulo p."""
    for k in range(len(part)):
        a, b = whole[k], part[k]
        part[k] = a - b if a >= b else a + uint32(P) - b


@njit(inline="always")
def _number(shares, at, weights):
    """The share of a number, from those of its bits."""
    found = uint64(0)
    for k in range(len(weights)):
        found += weights[k] * uint64(shares[at + k])
    return _reduced(found)


@njit(inline="always")
def _slack(shares, at, many):
    found = uint64(0)
    for k in range(many):
        found += _reduced(uint64(shares[at + k]) << uint64(k))
    return found


@njit(nogil=True, cache=True)
def _check(first, second, weights, shape, limits, r, found):
    p, width, n = uint64(P), len(weights), first.shape[1]
    places, slack, loud = shape
    for u in range(len(first)):
        one, other = uint64(0), uint64(0)
        for j in range(n):
            s, t = uint64(first[u, j]), uint64(second[u, j])
            # A part of b² − b: s² + 2st − s.
            z = _reduced(s * _reduced(s + uint64(2) * t + p - uint64(1)))
            a, b = uint64(r[0, j]) * z, uint64(r[1, j]) * z
            one += (a & p) + (a >> uint64(31))
            other += (b & p) + (b >> uint64(31))
        norm, sum_one, sum_other = uint64(0), uint64(0), uint64(0)
        below = places * width + slack
        top = below + places * width
        m, m_other = uint64(0), uint64(0)
        if loud:
            m, m_other = _number(first[u], top, weights), _number(second[u], top, weights)
        for place in range(places):
            x = _number(first[u], place * width, weights)
            y = _number(second[u], place * width, weights)
            norm += _reduced(x * _reduced(x + uint64(2) * y))
            if loud:
                sum_one += x
                sum_other += y
                rest = _number(first[u], below + place * width, weights)
                z = _reduced(x + rest + p - m)
                a, b = uint64(r[0, n + 1 + place]) * z, uint64(r[1, n + 1 + place]) * z
                one += (a & p) + (a >> uint64(31))
                other += (b & p) + (b >> uint64(31))
        norm += _slack(first[u], places * width, slack)
        norm = _reduced(_reduced(norm) + p - limits[0])
        if loud:
            sum_one, sum_other = _reduced(sum_one), _reduced(sum_other)
            z = _reduced(m * _reduced(sum_one + sum_other)) + _reduced(m_other * sum_one)
            z += _slack(first[u], top + width, loud)
            z = _reduced(_reduced(z) + p - limits[1])
            last = n + 1 + places
            one += _reduced(uint64(r[0, last]) * z)
            other += _reduced(uint64(r[1, last]) * z)
        found[u, 0] = _reduced(_reduced(one) + _reduced(uint64(r[0, n]) * norm))
        found[u, 1] = _reduced(_reduced(other) + _reduced(uint64(r[1, n]) * norm))
