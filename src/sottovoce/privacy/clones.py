"""Hiding among the clones: what one report costs once it is shuffled among n users', and what many
such reports cost together.

Papers: Feldman, McMillan and Talwar, "Hiding among the clones" (2021); Zhu, Dong and
Wang (2022) for composing dominating pairs; Doroshenko et al. (2022) for the discretisation.

    ε0  budget of one report          τ  e^ε0 / (e^ε0 + 1)
    n   users in the batch            C  clones among the other n − 1, Bin(n − 1, e^−ε0)
    m   C + 1                         a  of these m, the ones that speak for the victim's data

Whatever the shuffled batch tells about one user can be computed from the pair

    P = (a, m − a) with a = A + Δ       Q = (a, m − a) with a = A + 1 − Δ
    C ~ Bin(n − 1, e^−ε0),  A ~ Bin(C, 1/2),  Δ ~ Bern(τ)

in which P(a | m) = Bin(a; m, 1/2) · 2(τa + (1 − τ)(m − a))/m, and Q has a and m − a exchanged. So
the loss is ln[(τa + (1 − τ)(m − a)) / ((1 − τ)a + τ(m − a))], and both directions cost the same:
exchanging a and m − a turns (P, Q) into (Q, P).

Every step here errs towards more loss. C is rounded down (a pair with fewer clones gives one with
more by tossing further coins), each loss is split over its two neighbours on a grid (merging them
again is post-processing), and tails that are cut off, what an FFT of finite length wraps around,
and the FFT's own rounding are added to δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_REPORTS = 10_000_000
"""Reports of one user that may be composed."""
_TAIL = 1e-14
"""Mass cut off per tail and report, as a share of δ: at most 6e-7 of δ over MOST_REPORTS."""
_CLONE_STEP = 5e-4
"""C is rounded down by at most this share of itself."""
_RESOLUTION = 20
"""Grid steps in one standard deviation of the loss."""
_FINE_RESOLUTION = 64
"""The same where releases of several kinds share a grid."""
_FINEST_GRID = 1 << 17
_LONGEST_WINDOW = 1 << 23
_UNIT = float(np.finfo(np.float64).eps)


def clone_rate(epsilon: float) -> float:
    """The chance that another user's report is a clone, for every ε0-LDP randomiser (2021)."""
    return math.exp(-epsilon)


@dataclass(frozen=True, slots=True)
class LossDistribution:
    """Privacy loss of one release under P: `mass[i]` at the loss `(first + i) · step`.

    `lost` is mass of which nothing is known; it counts as a loss without bound. `largest` is the
    loss that one release cannot exceed, or infinity.
    """

    step: float
    first: int
    mass: Floats
    lost: float = 0.0
    largest: float = math.inf

    def losses(self) -> Floats:
        places: Floats = self.step * (self.first + np.arange(len(self.mass), dtype=np.float64))
        return places

    @property
    def reach(self) -> float:
        """The largest loss, either way, that has mass."""
        return self.step * max(abs(self.first), abs(self.first + len(self.mass) - 1))


Part = tuple[LossDistribution, int]
"""A release and how many times it is made."""


def shuffled_report(users: int, epsilon: float, delta: float) -> LossDistribution:
    """The loss of one ε0-LDP report among those of `users` users, fit for δ of `delta` and more.

    Assumes the same randomiser and ε0 for all of them, one report each, a shuffler that tells
    nobody the order, and neighbours that differ in one user's data.
    """
    return _shuffled_report(users, epsilon, _TAIL * delta)


@lru_cache(maxsize=32)
def _shuffled_report(users: int, epsilon: float, tail: float) -> LossDistribution:
    certain = 1.0 / (1.0 + math.exp(-epsilon))  # τ
    flipped = math.exp(-epsilon) * certain  # 1 − τ, which 1.0 − certain would round
    lowest, clones = _binomial(users - 1, clone_rate(epsilon), tail)
    stride = max(1, int(_CLONE_STEP * lowest))
    levels = lowest + np.arange(0, len(clones), stride)
    weights = np.add.reduceat(clones, np.arange(0, len(clones), stride))
    losses, masses = [], []
    for level, weight in zip(levels.tolist(), weights.tolist(), strict=True):
        m = level + 1
        fewest, chances = _binomial(m, 0.5, tail)
        a = fewest + np.arange(len(chances), dtype=np.float64)
        for_p, for_q = certain * a + flipped * (m - a), flipped * a + certain * (m - a)
        losses.append(np.log(for_p / for_q))
        masses.append(weight * chances * (2.0 / m) * for_p)
    loss, mass = np.concatenate(losses), np.concatenate(masses)
    # A tail of C, and two of A whose chances the victim's own report at most doubles.
    lost = 6.0 * tail
    mass *= 1.0 / mass.sum()
    return _on_grid(np.clip(loss, -epsilon, epsilon), mass, lost, epsilon)


def _on_grid(loss: Floats, mass: Floats, lost: float, largest: float) -> LossDistribution:
    """Each atom split over its two neighbours so that its mass under P and under Q stays."""
    mean = float(mass @ loss)
    spread = math.sqrt(max(float(mass @ (loss - mean) ** 2), 0.0))
    top = float(np.abs(loss).max())
    half = _FINEST_GRID
    if top < _FINEST_GRID * spread / _RESOLUTION:
        half = max(64, math.ceil(_RESOLUTION * top / spread))
    return _split(loss, mass, top / half, half, lost, largest)


def _split(
    loss: Floats, mass: Floats, step: float, half: int, lost: float, largest: float
) -> LossDistribution:
    """The atoms on a grid of this step from -half to half; no loss lies beyond it."""
    below = np.clip(np.floor(loss / step), -half, half - 1)
    rest = np.clip(loss - step * below, 0.0, step)
    up = mass * (np.expm1(-rest) / math.expm1(-step))
    index = below.astype(np.int64) + half
    grid: Floats = np.bincount(index, mass - up, 2 * half + 1).astype(np.float64)
    grid += np.bincount(index + 1, up, 2 * half + 1)
    used = np.flatnonzero(grid)
    kept = grid[used[0] : used[-1] + 1]
    kept.setflags(write=False)
    return LossDistribution(step, int(used[0]) - half, kept, lost, largest)


def _binomial(trials: int, rate: float, tail: float) -> tuple[int, Floats]:
    """Bin(trials, rate) between two cuts, beyond each of which lies at most `tail`; sums to one."""
    if trials == 0 or rate >= 1.0:
        return trials, np.ones(1)
    mode = min(trials, int((trials + 1) * rate))
    limit = -math.log(tail)

    def beyond(k: int) -> bool:
        """Chernoff: no more than `tail` lies from k on outwards."""
        share = k / trials
        kept = share * math.log(share / rate) if k else 0.0
        left = (1 - share) * math.log((1 - share) / (1 - rate)) if k < trials else 0.0
        return trials * (kept + left) >= limit

    low = _last(lambda k: beyond(mode - k), mode)
    high = _last(lambda k: beyond(mode + k), trials - mode)
    first, last = mode - low, mode + high
    k = np.arange(first, last, dtype=np.float64)
    ratios = np.log((trials - k) / (k + 1)) + math.log(rate / (1 - rate))
    # Summed outwards from the mode, so that rounding grows only where there is little mass.
    down, up = ratios[: mode - first][::-1], ratios[mode - first :]
    logs = np.concatenate([-np.cumsum(down)[::-1], np.zeros(1), np.cumsum(up)])
    weights = np.exp(logs)
    return first, weights / weights.sum()


def _last(cut: Callable[[int], bool], most: int) -> int:
    """The largest distance up to `most` that is not cut; `cut` is monotone."""
    if not cut(most):
        return most
    kept, gone = 0, most
    while gone - kept > 1:
        middle = (kept + gone) // 2
        kept, gone = (kept, middle) if cut(middle) else (middle, gone)
    return kept


def first_below(f: Callable[[int], float], low: int, high: int) -> int:
    """The smallest whole number above `low` at which a falling f is below zero.

    f(low) is not below zero and f(high) is. False position in turn with halving: few calls where f
    is smooth, never more than twice as many as halving takes.
    """
    at_low, at_high = f(low), f(high)
    straight = True
    while high - low > 1:
        middle = (low + high) // 2
        if straight:
            guess = low + (high - low) * (at_low / (at_low - at_high))
            # One beyond the guess, on the side of the nearer end, so that both ends close in.
            middle = round(guess) + (1 if guess < middle else -1)
            middle = min(max(middle, low + 1), high - 1)
        value = f(middle)
        if value < 0:
            high, at_high = middle, value
        else:
            low, at_low = middle, value
        straight = not straight
    return high


def composed_epsilon(one: LossDistribution, times: int, delta: float) -> float:
    """An ε for which `times` releases together are (ε, δ)-differentially private.

    The releases may be chosen one after the other in the light of earlier ones, as long as each
    is dominated by the same pair. Never below the truth; never above `times · largest`.
    """
    return jointly_composed_epsilon([(one, times)], delta)


def jointly_composed_epsilon(releases: Sequence[Part], delta: float) -> float:
    """The same for releases of several kinds, each so many times; 0 for none. How many there are
    of which kind must not depend on what is protected."""
    parts = [(one, times) for one, times in releases if times]
    largest = sum(times * one.largest for one, times in parts)
    left = delta - sum(times * one.lost for one, times in parts)
    if left <= 0 or not parts:
        return largest
    parts = _on_one_grid(parts)
    tilt, bound = _renyi(parts, left)
    fft = _fft_epsilon(parts, left, tilt)
    found = max(0.0, min(bound, fft)) * (1.0 + 1e-9)  # more than the last digits can be off by
    return min(largest, found)


def _on_one_grid(parts: list[Part]) -> list[Part]:
    """The same releases with one step for all: fine beside what they vary by, all together."""
    if len({one.step for one, _ in parts}) == 1:
        return parts
    variance = 0.0
    for one, times in parts:
        losses = one.losses()
        mean = float(one.mass @ losses)
        variance += times * float(one.mass @ (losses - mean) ** 2)
    # The spread of one release on average, so that the window grows with the root of their number.
    spread = math.sqrt(variance / sum(times for _, times in parts))
    step = max(spread / _FINE_RESOLUTION, max(one.reach for one, _ in parts) / _FINEST_GRID)
    return [(_regrid(one, step), times) for one, times in parts]


def _regrid(one: LossDistribution, step: float) -> LossDistribution:
    half = math.ceil(one.reach / step)
    return _split(one.losses(), one.mass, step, half, one.lost, one.largest)


def _log_moment(mass: Floats, values: Floats, order: float) -> float:
    """ln E[exp(order · value)]."""
    logs = order * values
    top = float(logs.max())
    return top + math.log(float(mass @ np.exp(logs - top)))


def _renyi(parts: list[Part], delta: float) -> tuple[float, float]:
    """The best moment bound on ε and its order; a valid bound by itself, a little loose.

    δ(ε) = E[(1 − e^(ε − L))+] is at most E[e^λ(L − ε)] · λ^λ / (1 + λ)^(1 + λ) for every λ > 0.
    """
    used = [(one.mass > 0, one, times) for one, times in parts]
    atoms = [(one.mass[some], one.losses()[some], times) for some, one, times in used]

    def bound(log_order: float) -> float:
        order = math.exp(log_order)
        moment = sum(times * _log_moment(mass, losses, order) for mass, losses, times in atoms)
        factor = order * math.log(order) - (1 + order) * math.log1p(order)
        return (moment + factor - math.log(delta)) / order

    orders = np.linspace(math.log(1e-3), math.log(1e7), 47).tolist()
    best = min(range(47), key=[bound(order) for order in orders].__getitem__)
    low, high = orders[max(0, best - 1)], orders[min(46, best + 1)]
    for _ in range(25):  # golden section
        reach = 0.381966 * (high - low)
        left, right = low + reach, high - reach
        low, high = (low, right) if bound(left) <= bound(right) else (left, high)
    chosen = (low + high) / 2
    return math.exp(chosen), bound(chosen)


def _fft_epsilon(parts: list[Part], delta: float, tilt: float) -> float:
    """ε from the exact sum of all losses on their grid.

    The FFT works on the distribution tilted by e^(tilt · loss), which has its centre where δ is
    decided: so the rounding of the FFT is small beside δ, however small that is.
    """
    step, scale, origin = parts[0][0].step, 0.0, 0
    summands = []
    for one, times in parts:
        losses = one.losses()
        moment = _log_moment(one.mass, losses, tilt)
        mass = one.mass * np.exp(tilt * losses - moment)
        places = np.arange(len(mass), dtype=np.float64)
        centre = round(float(mass @ places))
        summands.append(_Summand(mass, places - centre, times))
        scale += times * moment  # ln of the factor that undoes the tilt at a loss of zero
        origin += times * (one.first + centre)
    length, start, beyond = _window(summands)

    folded, spectra = [], []
    for summand in summands:
        where = summand.places.astype(np.int64) % length
        folded.append(np.bincount(where, summand.mass, length).astype(np.float64))
        spectra.append(np.fft.rfft(folded[-1]))
    counts = [summand.times for summand in summands]
    product = spectra[0] ** counts[0]
    for spectrum, times in zip(spectra[1:], counts[1:], strict=True):
        product *= spectrum**times
    total = np.fft.irfft(product, length)
    rounding = _rounding(folded, spectra, total, counts)
    total = np.roll(np.maximum(total, 0.0), -(start % length)) + rounding

    lowest = step * (origin + start)  # the loss of the first entry

    ahead = step * np.arange(length)
    for_slope = np.exp(-(1.0 + tilt) * ahead)
    # Not the difference of two sums: the first entry counts in both and could drown the rest.
    for_delta = np.exp(-tilt * ahead) * -np.expm1(-ahead)

    def above(entry: int) -> tuple[float, float]:
        """δ at the loss of this entry, and the slope of δ against e^ε below it, both times
        e^(tilt · loss − scale), and the slope also times e^loss."""
        rest = total[entry:]
        here, slope = rest @ for_delta[: len(rest)], rest @ for_slope[: len(rest)]
        return float(here) + beyond, float(slope)

    def excess(entry: int) -> float:
        """ln of δ at the loss of this entry over the δ there is."""
        scaled = max(above(entry)[0], 5e-324)
        return math.log(scaled) + scale - tilt * (lowest + step * entry) - log_delta

    log_delta = math.log(delta)
    if excess(0) < 0:
        return lowest
    if excess(length - 1) >= 0:
        return math.inf
    entry = first_below(excess, 0, length - 1)
    # Between two entries δ is a straight line in e^ε.
    at = lowest + step * entry
    here, slope = above(entry)
    spare = math.exp(min(log_delta - scale + tilt * at, 700.0)) - here
    if spare >= slope:
        return at - step
    return at + max(-step, min(0.0, math.log1p(-spare / slope)))


@dataclass(frozen=True, slots=True)
class _Summand:
    """A tilted loss that is summed `times` times: mass, places on the grid, and their moments."""

    mass: Floats
    places: Floats
    times: int
    mean: float = 0.0
    variance: float = 0.0

    def __post_init__(self) -> None:
        mean = float(self.mass @ self.places)
        object.__setattr__(self, "mean", mean)
        # One place may hold it all.
        variance = max(float(self.mass @ (self.places - mean) ** 2), 1e-3)
        object.__setattr__(self, "variance", variance)


def _window(summands: list[_Summand]) -> tuple[int, int, float]:
    """Length and first place of an FFT window around the sum, and a bound on the mass above it."""
    support = sum(s.times * (len(s.mass) - 1) for s in summands) + 1
    lowest = sum(s.times * int(s.places[0]) for s in summands)
    mean = sum(s.times * s.mean for s in summands)
    variance = sum(s.times * s.variance for s in summands)
    wanted = 20.0 * math.sqrt(variance) + 64.0
    while True:
        length = 1 << math.ceil(math.log2(min(wanted, support + 1.0)))
        if length >= support:
            return length, lowest, 0.0
        start = round(mean) - length // 2
        reach = start + length - mean
        order = reach / variance
        above = min(
            sum(s.times * _log_moment(s.mass, s.places - s.mean, part * order) for s in summands)
            - part * order * reach
            for part in (0.25, 0.5, 1.0)
        )
        if above < math.log(1e-13) or length >= _LONGEST_WINDOW:
            return length, start, math.exp(min(above, 0.0))
        wanted = 2.0 * length


def _rounding(
    folded: list[Floats],
    spectra: list[NDArray[np.complex128]],
    total: Floats,
    counts: list[int],
) -> float:
    """A bound on what rounding does to one entry of the sum (Higham 2002, chapter 24)."""
    relative = 8.0 * _UNIT * math.log2(2 * len(total))
    sizes = [np.minimum(np.abs(spectrum), 1.0) for spectrum in spectra]
    forward = 0.0
    for k, (own, times) in enumerate(zip(folded, counts, strict=True)):
        # What a small error of one factor's spectrum becomes in the product.
        fewer = sizes[k] ** (times - 1)
        for other, count in zip(
            sizes[:k] + sizes[k + 1 :], counts[:k] + counts[k + 1 :], strict=True
        ):
            fewer = fewer * other**count
        forward += times * float(np.linalg.norm(own)) * math.sqrt(float(np.mean(fewer**2)))
    powers = float(np.mean(fewer * sizes[-1]))
    steps = sum(counts) + len(counts) - 1
    return relative * (forward + float(np.linalg.norm(total)) + steps * powers)
