"""DP-ALS: alternating least squares from noisy sums (Chien et al. 2021, Krichene et al. 2023).

A trusted curator keeps all histories. First it publishes how popular items are, then, in each of a
few rounds, the vectors of the H most popular ones, the *head*:

    she      x_u = (V'V + Σ_mine v v' + pull I)⁻¹ Σ_mine v, made a unit vector
    curator  A_i = Σ_u w̄ x x',  b_i = Σ_u w̄ x over i's users,  K = Σ_u x x' over all, with noise
    V        v_i = (A_i + W (20 K / tr K + 50 I / size))⁻¹ b_i,  W = Σ_head q_i / H

with A_i and K cut to what is positive semi-definite. All w̄ of a user are alike, and their squares
add up to 1. In the end she solves x_u once more, where later items may weigh more (`memory`), and
ranks the head; the other items come below it, by popularity.

**What it promises.** The popularity and all vectors that are ever published are together (ε, δ)-
differentially private toward everybody but the curator; neighbours are: one user with all her
items, or without her. Her own lists follow from what is published and her own history.
- A round: her share of the sums is (√s₁ w̄ x x' and √s₂ w̄ x for each of her items, √s₃ x x'), with
  symmetric tables told as their diagonal and √2 times what is above it. As s₁ + s₂ + s₃ = 1 and
  |x| ≤ 1, its norm is at most 1.
- Popularity q: √.9 w̄ for each of her items, and √.1 in the place that counts users: norm 1.
- Numbers are scaled by 2²⁰ and cut toward 0, and a share whose squares add up to more than 2⁴⁰, in
  whole numbers, is left out. Noise is that of privacy/central.py, on whole numbers.
- A Gaussian mechanism of sensitivity 1 and noise σ is (ε, δ) (`noise_for`). Popularity gets σ/√p,
  each of T rounds σ/√((1 − p)/T): adaptively composed they are exactly as private as σ alone.
Settings are taken as public. Who knows the seed of a simulation knows the noise.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf.system import initial_items
from sottovoce.baselines import ials
from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions, recency
from sottovoce.core.links import LEAST_SIGMA, MOST_SIGMA
from sottovoce.core.recommender import FactorScorer, default_threads
from sottovoce.errors import ConfigError
from sottovoce.privacy.accountant import DELTA
from sottovoce.privacy.central import gaussian_noise, noise_for
from sottovoce.rng import Streams

STEPS = 1 << 20
"""Whole steps in 1."""
SHARES = (0.05, 0.9, 0.05)
"""Shares of a round's squared norm: for A, for b, and for K."""
COUNT = 0.1
"""Share of the popularity's squared norm that goes to the number of users."""
_MARGIN = 1.0 - 1e-6
"""What rounding could add to a norm is taken off before."""
_UNOBSERVED, _REG = 20.0, 50.0
"""Weight of all pairs together, as a multiple of that of the positives, and the pull of items'
vectors to 0 in the same measure."""
_LEAST_HEAD, _MOST_HEAD = 200, 5_000
_BLOCK = 256
"""Users worked on at a time. Results do not depend on it."""


@BASELINES.register("dpals")
@dataclass(frozen=True, slots=True)
class DPALS(Baseline):
    """DP-ALS: alternating least squares on noisy sums, with an ε for each user.

    Example:
        ```python
        fitted = sv.fit(sv.DPALS(epsilon=4.0), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "DP-ALS"
    listed_at = 85

    epsilon: float = 1.0
    """What a user pays for all that is published."""
    delta: float = DELTA
    """The probability with which the bound epsilon may fail; δ."""
    rounds: int = 4
    """How often items' vectors are published."""
    embedding_size: int = 12
    """Length of a user's or item's vector."""
    head: int = 0
    """Popular items that get a vector. 0: 6.6 √(users / σ), from 200 to 5,000."""
    popularity_share: float = 0.1
    """Share of the privacy cost that popularity gets; the rounds share the rest equally."""
    memory: float = 0.0
    """An item's weight at home falls by e with so many later ones; 0 weighs all alike."""

    def __post_init__(self) -> None:
        require_number("epsilon", self.epsilon, 0.0, 1e6)
        require_number("delta", self.delta, 0.0, 0.1)
        require_whole("rounds", self.rounds, 1, 1000)
        require_whole("embedding_size", self.embedding_size, 1, closed_form.MOST_FACTORS)
        require_whole("head", self.head, 0, _MOST_HEAD)
        require_number("popularity_share", self.popularity_share, 0.0, 0.99)
        require_number("memory", self.memory, 0.0, 1e9, above=False)
        least, most = (bound / STEPS for bound in (LEAST_SIGMA, MOST_SIGMA))
        if not all(least <= sigma <= most for sigma in self.sigmas()):
            raise ConfigError(
                f"epsilon = {self.epsilon:g} with delta = {self.delta:g} needs noise outside of "
                f"[{least:.2g}, {most:.2g}], which cannot be drawn; take another epsilon, or fewer "
                "rounds"
            )

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        noise = _Noise(rng.child("dpals-noise"))
        first, each = self.sigmas()
        told = noise.added(popularity_sums(train, unit_weights(train)), first)
        popular, count = told[:-1] / (1.0 - COUNT) ** 0.5, float(told[-1]) / COUNT**0.5
        head = np.sort(np.argsort(-popular, kind="stable")[: self.head_size(count)])
        mine, entries = _within(train, head)
        weights, units = np.ones(mine.n_interactions), unit_weights(mine)
        items = initial_items(len(head), self.embedding_size, 1.0, rng)
        share = max(1.0, float(popular[head].sum())) / max(1, len(head))
        for number in range(self.rounds):
            pointing = _units(self._at_home(items, mine, weights))
            told = noise.added(round_sums(pointing, mine, units), each)
            items = self._items(told, len(head), share)
            if progress is not None:
                progress(number + 1, self.rounds)
        vectors = self._at_home(items, mine, recency(train, self.memory)[entries])
        return _ranked(vectors, items, head, popular)

    def fold_in(
        self, fitted: FactorScorer, train: Interactions, histories: Interactions
    ) -> FactorScorer:
        head = np.flatnonzero(fitted.item_bias == 0.0)  # all others lie below it
        mine, entries = _within(histories, head)
        weights = recency(histories, self.memory)[entries]
        vectors = self._at_home(fitted.item_factors[head], mine, weights)
        return replace(fitted, user_factors=vectors)

    def sigmas(self) -> tuple[float, float]:
        """The noise of the popularity, and that of each round, for sums of sensitivity 1."""
        sigma = noise_for(self.epsilon, 1, self.delta)
        rest = (1.0 - self.popularity_share) / self.rounds
        return sigma / self.popularity_share**0.5, sigma / rest**0.5

    def head_size(self, count: float) -> int:
        """How many items get vectors where there are about so many users."""
        sigma = noise_for(self.epsilon, 1, self.delta)
        by_rule = 6.6 * (max(0.0, count) / sigma) ** 0.5
        return self.head or round(min(max(by_rule, _LEAST_HEAD), _MOST_HEAD))

    def _at_home(
        self, items: NDArray[np.float32], mine: Interactions, weights: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        if not len(items):
            return np.zeros((mine.n_users, self.embedding_size), dtype=np.float32)
        base = closed_form.gram(items)
        # As strong as the mean eigenvalue of V'V.
        pull = max(1e-12, float(np.trace(base)) / len(base))
        threads = default_threads()
        return ials.solve(items, mine, weights, base, np.full(mine.n_users, pull), threads)

    def _items(self, told: NDArray[np.float64], n: int, share: float) -> NDArray[np.float32]:
        """New vectors of the head from a round's sums as they are published."""
        size = self.embedding_size
        half = size * (size + 1) // 2
        table = told[: n * (half + size)].reshape(n, half + size)
        own = _positive(_unpacked(table[:, :half] / SHARES[0] ** 0.5, size))
        every = _positive(_unpacked(told[None, -half:] / SHARES[2] ** 0.5, size))[0]
        left = share * _UNOBSERVED / max(1.0, float(np.trace(every))) * every
        left = own + left + share * _REG / size * np.eye(size)
        solved = np.linalg.solve(left, table[:, half:, None] / SHARES[1] ** 0.5)
        return np.asarray(solved[..., 0], dtype=np.float32)


# --- what a user adds to the sums ----------------------------------------------------------------


def unit_weights(history: Interactions) -> NDArray[np.float64]:
    """Return one weight for each interaction: all of a user's are alike, and their squares add up
    to 1."""
    weights: NDArray[np.float64] = 1.0 / np.sqrt(history.counts[history.users].astype(np.float64))
    return weights


def popularity_share(weights: NDArray[np.float64]) -> tuple[NDArray[np.int64], int]:
    """What entries of these unit weights add to popularity, and each user to the count."""
    scale = _MARGIN * STEPS
    own = (scale * (1.0 - COUNT) ** 0.5 * weights).astype(np.int64)
    return own, int(scale * COUNT**0.5)


def popularity_sums(history: Interactions, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """By item, in whole steps; last the number of users who have items, in the same way."""
    own, one = popularity_share(weights)
    norm = np.zeros(history.n_users, dtype=np.int64)
    np.add.at(norm, history.users, own**2)
    fits = (history.counts > 0) & (norm + one**2 <= STEPS**2)
    sums = np.zeros(history.n_items + 1, dtype=np.int64)
    np.add.at(sums, history.items, np.where(fits[history.users], own, 0))
    sums[-1] = one * int(fits.sum())
    return sums


def round_share(
    vectors: NDArray[np.float64], users: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What users with these unit vectors add, in whole steps: each entry, of a user and a unit
    weight, to A and b of its item, and each user to K. A share longer than `STEPS`, and that of a
    user without entries, is left out."""
    first, second = np.triu_indices(vectors.shape[1])
    squares = vectors[:, first] * vectors[:, second]
    squares *= np.where(first == second, 1.0, 2.0**0.5)
    scale = _MARGIN * STEPS
    whole = scale * np.hstack((SHARES[0] ** 0.5 * squares, SHARES[1] ** 0.5 * vectors))
    own = (weights[:, None] * whole[users]).astype(np.int64)
    every = (scale * SHARES[2] ** 0.5 * squares).astype(np.int64)
    norm = (every**2).sum(axis=1)
    np.add.at(norm, users, (own**2).sum(axis=1))
    left_out = (norm > STEPS**2) | (np.bincount(users, minlength=len(vectors)) == 0)
    own[left_out[users]], every[left_out] = 0, 0
    return own, every


def round_sums(
    vectors: NDArray[np.float64], mine: Interactions, weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The shares of all users: A and b item by item, then K."""
    size = vectors.shape[1]
    half = size * (size + 1) // 2
    table = np.zeros((mine.n_items, half + size), dtype=np.int64)
    total = np.zeros(half, dtype=np.int64)
    users = mine.users
    for start in range(0, mine.n_users, _BLOCK):
        stop = min(start + _BLOCK, mine.n_users)
        part = slice(mine.indptr[start], mine.indptr[stop])
        own, every = round_share(vectors[start:stop], users[part] - start, weights[part])
        _add(mine.items[part], own, table)
        total += every.sum(axis=0)
    return np.concatenate((table.ravel(), total))


@njit(nogil=True, cache=True)
def _add(items, own, table):
    """Each entry to the row of its item."""
    for e in range(len(own)):
        row = table[items[e]]
        for c in range(own.shape[1]):
            row[c] += own[e, c]


@dataclass(slots=True)
class _Noise:
    """The curator's noise: a fresh one for every sum."""

    rng: Streams
    told: int = 0

    def added(self, sums: NDArray[np.int64], sigma: float) -> NDArray[np.float64]:
        """Noisy sums, in units of a user's whole share."""
        key = self.rng.words(np.arange(4, dtype=np.int64), 1).astype("<u8").tobytes()
        noise = gaussian_noise(key, self.told, len(sums), sigma * STEPS)
        self.told += 1
        return (sums + noise) / STEPS


# --- from sums to lists --------------------------------------------------------------------------


def _within(train: Interactions, head: NDArray[np.int64]) -> tuple[Interactions, NDArray[np.bool_]]:
    """The histories within the head, whose items are numbered anew, and which entries these are."""
    place = np.full(train.n_items, -1, dtype=np.int32)
    place[head] = np.arange(len(head), dtype=np.int32)
    kept = place[train.items] >= 0
    chosen = train.select(kept)
    return replace(chosen, items=place[chosen.items], n_items=len(head), item_ids=None), kept


def _units(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """The same directions with length 1, or 0."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    units: NDArray[np.float64] = np.divide(
        wide, length, out=np.zeros_like(wide), where=length > 0.0
    )
    return units


def _unpacked(packed: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Symmetric tables from their diagonals and √2 times what is above."""
    first, second = np.triu_indices(size)
    values = packed / np.where(first == second, 1.0, 2.0**0.5)
    tables = np.zeros((len(packed), size, size))
    tables[:, first, second] = values
    tables[:, second, first] = values
    return tables


def _positive(tables: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest tables without negative eigenvalues."""
    values, axes = np.linalg.eigh(tables)
    near: NDArray[np.float64] = (axes * np.maximum(values, 0.0)[:, None, :]) @ axes.swapaxes(1, 2)
    return near


def _ranked(
    vectors: NDArray[np.float32],
    items: NDArray[np.float32],
    head: NDArray[np.int64],
    popular: NDArray[np.float64],
) -> FactorScorer:
    """The head by vectors, all other items below it by popularity."""
    factors = np.zeros((len(popular), items.shape[1]), dtype=np.float32)
    factors[head] = items
    longest = [float(np.linalg.norm(rows, axis=1).max(initial=0.0)) for rows in (vectors, items)]
    scale = float(np.abs(popular).max(initial=1.0))
    bias = -longest[0] * longest[1] * 1.001 - 2.0 + popular / scale
    bias[head] = 0.0
    return FactorScorer(vectors, factors, bias.astype(np.float32))
