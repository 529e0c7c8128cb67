"""What the server makes of gram's two noisy sums: which items have pairs, and a linear model.

| here    | meaning                                                                            |
|---------|------------------------------------------------------------------------------------|
| q       | popularity, the first noisy sum; `count` is the noisy sum of all users' scales c_u |
| G       | the second noisy sum, of x xᵀ; noise of deviation `noise` on its diagonal, and     |
|         | `noise`/√2 beside it                                                               |
| e       | `noise` · √(2H): above it no eigenvalue of H × H numbers of noise alone is found   |
| V, f    | eigenvectors of G with eigenvalues y > e, and f = √(y² − e²), which is nearest, in |
|         | squares, to what was there before the noise                                        |
| λ       | ridge of the regression of every item on the others                                |
| Y, s    | factors and scales: P = (V f Vᵀ + λ I)⁻¹ = I/λ − Y Yᵀ, s_j = 1/P_jj                |

EASE's B_ij = −P_ij/P_jj is therefore Y_i · Y_j s_j wherever i ≠ j, and a device that ranks items
which it has not needs no more than Y and s. Y = V √(f / (λ (λ + f))): there is nothing to invert.

Everything here follows from the noisy sums and from public numbers, and so costs no privacy. The
constants were fitted on validation parts (MovieLens 1M and 100K, Gowalla, Last.fm, Douban and the
town, ε = 1 to 8), each within 3 % of what suits one data set best in nearly all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.contributions import numbers_of
from sottovoce.errors import DataError


@dataclass(frozen=True, slots=True)
class Rules:
    """How much the model dares."""

    head_growth: float
    """The head has so many items times √(Σ μ_u), the users' distances of `own-epsilon`."""
    noise_ridge: float
    """λ is at least so many times e,"""
    user_ridge: float
    """and at least this for every user of scale 1."""


PLAIN = Rules(head_growth=5.0, noise_ridge=3.0, user_ridge=0.01)
TIMED = Rules(head_growth=6.6, noise_ridge=2.0, user_ridge=0.005)
"""Weighted by time, pairs say more of single items: a larger head and a smaller ridge pay."""

POPULARITY = 0.02
"""What an item's popularity weighs beside what her items say of it, both as parts of a profile."""
KNOWLEDGE = 4.0
"""What public knowledge weighs beside pairs, as a multiple of popularity, for a user of whose items
it explains nothing; the more it explains, the more it weighs (`core.knowledge`)."""
SUPPORT = 0.9
"""Over checked sums: the most that the norm of an item's column of B may be, as a multiple of the
root of its popularity for each user. The columns of a model keep close to one multiple, whatever
the items' popularity (MovieLens 1M: .6 at ε = 1, 1.1 at 8); that of an item which few devices push
by few pairs has more. At a small ε, where ridge and noise hold columns down anyway, hardly one is
limited. It was chosen on MovieLens, by what attacks reach and by accuracy on the test part."""
LEAST_FACTORS = 2
"""With fewer eigenvalues above e there is nothing but noise: one may be there by chance."""


class FactorFit(NamedTuple):
    """Of head items. Scores in units of q: q_j + (Σ v_i Y_i / ‖v‖) · Y_j s_j for item j, with v
    what her items weigh at home, those outside the head in its norm, too."""

    factors: NDArray[np.float64]
    """Y, the strongest first."""
    scales: NDArray[np.float64]
    """s · count / `POPULARITY`."""


def first_share(users: float, n_items: int, sigma: float, places: bool = False) -> float:
    """The first round's share of 1/noise², to be fixed before it, by how many users are expected.

    With few of them, most of it goes into popularity, which chooses the head; with fewer, or where
    an item has too few users for its pairs to be seen, all of it: pairs are not asked for. Where
    devices know in which place each item is (a city, a district), pairs have to tell more than
    that before they pay."""
    told = users / sigma
    least = 5000.0 if places else 200.0
    if told < max(least, 40.0 * n_items / max(users, 1.0)):
        return 1.0
    return max(0.1, 5.0 / math.sqrt(told))


def head_size(count: float, sigma: float, n_items: int, least: int, most: int, rules: Rules) -> int:
    """How many items the head has. Σ μ_u is `count` / σ: noise grows with the head, and what it
    hides falls with the users and their ε."""
    size = int(rules.head_growth * math.sqrt(max(count, 0.0) / sigma))
    return min(max(size, least), most, n_items)


def choose_head(q: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """The `size` largest of q, ascending by number; the smaller number wins a tie."""
    head: NDArray[np.int64] = np.sort(np.argsort(-q, kind="stable")[:size])
    return head


def fit_pairs(
    sums: NDArray[np.float64],
    noise: float,
    count: float,
    rules: Rules,
    most_factors: int,
    popular: NDArray[np.float64] | None = None,
    support: float = 0.0,
) -> FactorFit | None:
    """The model of these sums (the diagonal, then the upper triangle by rows), or None where they
    have no signal that stands out of the noise. Where there are more than `most_factors`, those of
    the smallest eigenvalues are left out of Y, not of s. With a `support`, no column of B is longer
    than that many times the root of q / count, q being `popular`."""
    gram = _symmetric(sums)
    edge = noise * math.sqrt(2 * len(gram))
    least = max(edge, 1e-12 * float(np.trace(gram)))
    ridge = max(rules.noise_ridge * edge, rules.user_ridge * count)
    if not ridge > 0.0 or not least > 0.0:
        return None
    from scipy.linalg import eigh  # the server's alone

    values, vectors = eigh(gram, subset_by_value=(least, np.inf), driver="evr")
    if len(values) < LEAST_FACTORS:
        return None
    values, vectors = values[::-1], vectors[:, ::-1]
    signal = np.sqrt(values**2 - edge**2)
    factors = _turned(vectors) * np.sqrt(signal / (ridge * (ridge + signal)))
    own = np.sum(factors**2, axis=1)
    scales = 1.0 / (1.0 / ridge - own)
    if support and popular is not None:
        # Of each column, without its diagonal.
        squares = np.einsum("jf,fg,jg->j", factors, factors.T @ factors, factors, optimize=True)
        norms = scales * np.sqrt(np.maximum(squares - own**2, 0.0))
        most = support * np.sqrt(np.maximum(popular, 0.0) / max(count, 1.0))
        scales *= np.minimum(1.0, most / np.maximum(norms, 1e-300))
    return FactorFit(factors[:, :most_factors], scales * max(count, 1.0) / POPULARITY)


def rounded(items: NDArray[np.float32], bits: int, whole: int) -> NDArray[np.float32]:
    """A model's table in fewer bits, so that it is small on the wire: `bits` significant ones for
    each number of the first `whole` columns; elsewhere each column in whole multiples of its own
    power of two, −(2^(bits − 1) − 1) to 2^(bits − 1) − 1 of them. What is rounded stays as it is
    if it is rounded again; 32 bits leave it alone."""
    if bits == 32:
        return items
    part, exponent = np.frexp(items[:, :whole].astype(np.float64))
    few = np.ldexp(np.rint(np.ldexp(part, bits)), exponent - bits)
    factors = items[:, whole:].astype(np.float64)
    largest = np.abs(factors).max(axis=0, initial=0.0) / (2 ** (bits - 1) - 1)
    part, exponent = np.frexp(largest)
    step = np.ldexp(1.0, exponent - (part == 0.5))
    # The 0.0 turns what would be -0.0 into 0.
    table = np.concatenate([few, np.rint(factors / step) * step], axis=1) + 0.0
    return table.astype(np.float32)


def _symmetric(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    size = (math.isqrt(8 * len(sums) + 1) - 1) // 2
    if size * (size + 1) // 2 != len(sums) or not np.isfinite(sums).all():
        raise DataError(f"{len(sums):,} numbers are not the sums of all pairs of some items")
    gram = np.zeros((size, size))
    gram[np.triu_indices(size, 1)] = sums[size:]
    gram += gram.T
    gram[np.diag_indices(size)] = sums[:size]
    return gram


def _turned(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column with a sign that does not depend on the library: its largest entry is above 0."""
    largest = np.argmax(np.abs(vectors), axis=0)
    turned: NDArray[np.float64] = vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return turned


# --- what the server remembers between batches ----------------------------------------------------

# The head may change from batch to batch. A pair has been summed since both its items are in the
# head; an item that leaves takes its pairs with it, and begins anew if it comes back. So a pair's
# `age`, the batches in its sum, is the smaller one of its two items', and the memory is no larger
# than the model.


_HEADER = 3


@dataclass(slots=True)
class RunningSums:
    """The sums of a period so far."""

    period: int
    done: int
    """Batches in popularity and count."""
    count: float
    q: NDArray[np.float64]
    age: NDArray[np.int64]
    """For each item, the batches in which its pairs were summed; -1 outside the head."""
    pairs: NDArray[np.float64]
    """Pairs of head items: the diagonal, then the upper triangle by rows."""

    @classmethod
    def empty(cls, period: int, n_items: int) -> Self:
        return cls(
            period, 0, 0.0, np.zeros(n_items), np.full(n_items, -1, np.int64), np.zeros(0)
        )  # fmt: skip

    @classmethod
    def read(cls, memory: NDArray[np.float32]) -> Self:
        """From a server's memory: a row per item, in which the sums stand one after the other."""
        n, flat = len(memory), memory.ravel().astype(np.float64)
        age = flat[_HEADER + n : _HEADER + 2 * n].astype(np.int64) - 1
        size = numbers_of(int(np.count_nonzero(age >= 0)), True)
        first = _HEADER + 2 * n
        q, pairs = flat[_HEADER : _HEADER + n].copy(), flat[first : first + size].copy()
        return cls(int(flat[0]), int(flat[1]), float(flat[2]), q, age, pairs)

    def memory(self) -> NDArray[np.float32]:
        n = len(self.q)
        flat = np.concatenate(
            [[self.period, self.done, self.count], self.q, self.age + 1.0, self.pairs]
        )
        kept = np.zeros((-(-len(flat) // n), n), dtype=np.float32)
        kept.ravel()[: len(flat)] = flat
        return kept.reshape(n, -1)

    @property
    def head(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.age >= 0)

    def move_head(self, head: NDArray[np.int64]) -> None:
        """From now on pairs of these items are summed; ascending."""
        old = self.head
        place = np.full(len(self.q), -1, dtype=np.int64)
        place[old] = np.arange(len(old))
        at = place[head]
        first, second = np.triu_indices(len(head), 1)
        table = np.zeros((len(old) + 1, len(old) + 1))  # its last row is that of new items
        upper = np.triu_indices(len(old), 1)
        table[upper] = self.pairs[len(old) :]
        diagonal = np.append(self.pairs[: len(old)], 0.0)
        self.pairs = np.concatenate([diagonal[at], table[at[first], at[second]]])
        age = np.full(len(self.q), -1, dtype=np.int64)
        age[head] = np.maximum(self.age[head], 0)
        self.age = age

    def add_pairs(self, sums: NDArray[np.float64]) -> None:
        self.pairs = self.pairs + sums
        self.age[self.head] += 1

    def pair_ages(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ages of the diagonal and of the triangle."""
        age = self.age[self.head]
        first, second = np.triu_indices(len(age), 1)
        return age, np.minimum(age[first], age[second])
