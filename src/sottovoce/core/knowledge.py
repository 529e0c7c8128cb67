"""What everybody knows of the items, as a prior at home: it costs no ε, and nothing leaves for it.

Items belong to groups of several kinds: categories, a city. A user's history, which is at home,
says which groups she keeps to, and popularity which items of a group are worth a visit:

    prior(u, j) = pop_j · (w_u0 + Σ_k w_uk · lift_k(u, j)),   lift_k(u, j) = Σ_g m_jg a_ug / Q_g

with m_jg the part of item j in group g, a_ug the part of her items in g (the latest most), and Q_g
the part of all choices in g, by the public popularity. How far she keeps to each kind (w_u) is what
explains her own items best, each left out in turn: some rounds of expectation and maximisation, on
her device. So a kind that says nothing of her choices weighs nothing.

Beside a model, the prior weighs the more, the better it explains her: exp(2 · gain), where the gain
is the mean logarithm of what multiplies the popularity of her items, each left out. It is near 0
for genres of films and above 1 for the city that somebody lives in.

Popularity is a public table: the noisy sum of a release, or, of those who protect nothing, counts.
Where it is noisy (`noise`, its standard deviation), what does not stand out of the noise counts
little: in a large catalogue the largest of many noises would come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions, recency
from sottovoce.core.recommender import FactorScorer, Scorer

MEMORY = 8.0
"""Later items after which one weighs less by e."""
STEPS = 20
"""Steps of expectation and maximisation."""
PLAIN = 1.0
"""Items' worth of doubt that she keeps to any kind."""
_LEAST = 1e-3
"""The least share of all choices that a group has."""
_MOST_THRESHOLD = 4.0
"""Standard deviations of noise that popularity is cut by at most."""
_TRUST = 2.0
"""How much more the prior weighs by what it explains, and"""
_MOST_TRUST = 12.0
"""up to which logarithm."""
_FAINT = 1e-3
"""What popularity below the threshold still weighs, so that no two items are alike."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Knowledge:
    """Items by groups, one kind after the other."""

    kinds: Mapping[str, Any]
    """By name: a CSR array [items, groups]; an item that belongs to several has a part in each."""

    @property
    def n_groups(self) -> int:
        return sum(int(table.shape[1]) for table in self.kinds.values())


@dataclass(frozen=True, slots=True, repr=False)
class Prior:
    """prior(u, j) as a product of factors."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]
    trust: NDArray[np.float32]
    """For each user, the weight of knowledge next to a model."""

    def added(self, scorer: FactorScorer, weight: float) -> FactorScorer:
        """A scorer's scores, and so many times the prior, as each user may trust it."""
        return FactorScorer(
            np.hstack([scorer.user_factors, np.float32(weight) * self.trust[:, None] * self.users]),
            np.hstack([scorer.item_factors, self.items]),
            scorer.item_bias,
        )


def threshold(popularity: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Popularity with what may be noise taken off: σ²/mean, as the best guess under exponential
    popularity takes off, up to a limit."""
    above = np.maximum(popularity, 0.0)
    if not noise:
        return above
    mean = max(float(popularity.mean()), 1e-3 * noise)
    off = min(noise / mean, _MOST_THRESHOLD) * noise
    kept: NDArray[np.float64] = np.maximum(popularity - off, 0.0) + _FAINT * above
    return kept


def prior(
    knowledge: Knowledge,
    history: Interactions,
    popularity: NDArray[np.float64],
    noise: float = 0.0,
    memory: float = MEMORY,
) -> Prior:
    """Return the prior of each user of `history`; `popularity` has a number for each item."""
    from scipy.sparse import csr_array  # of all that a device loads, knowledge alone needs it

    pop = threshold(popularity, noise)
    users, n, total = history.users, history.n_users, np.zeros(history.n_users)
    weights = recency(history, memory)
    np.add.at(total, users, weights)
    mine = csr_array((weights, history.items, history.indptr), shape=(n, history.n_items))
    fits, parts, features = [np.ones(len(users))], [], []
    for table in knowledge.kinds.values():
        known = np.asarray(table.sum(axis=1)).ravel()
        share = np.maximum(np.asarray(table.T @ popularity).ravel(), 0.0)
        share = np.maximum(share / max(float(share.sum()), 1e-12), _LEAST)
        share /= share.sum()
        scaled = (table / share[None, :]).tocsr()
        held = np.asarray((mine @ table).todense())
        entry, own = scaled[history.items], table[history.items]
        left_out = np.asarray((entry * held[users]).sum(axis=1)).ravel()
        left_out -= weights * np.asarray((entry * own).sum(axis=1)).ravel()
        lift = np.maximum(left_out, 0.0) / np.maximum(total[users] - weights, 1e-9)
        fits.append(np.where(known[history.items] > 0, lift, 1.0))
        parts.append(held / np.maximum(total, 1e-9)[:, None])
        features.append((np.asarray(scaled.todense()), known > 0))
    explained = np.stack(fits, axis=1)
    kept = _kinds_kept_to(explained, users, n)
    user_columns, item_columns = [kept[:, :1]], [pop[:, None]]
    for number, (part, (table, known)) in enumerate(zip(parts, features, strict=True), 1):
        user_columns += [kept[:, number : number + 1] * part, kept[:, number : number + 1]]
        item_columns += [table * pop[:, None], np.where(known, 0.0, pop)[:, None]]
    logs = np.log(np.maximum((kept[users] * explained).sum(axis=1), 1e-300))
    gain = np.bincount(users, logs, minlength=n) / np.maximum(history.counts, 1)
    return Prior(
        np.hstack(user_columns).astype(np.float32),
        np.hstack(item_columns).astype(np.float32),
        np.exp(np.minimum(_TRUST * gain, _MOST_TRUST)).astype(np.float32),
    )


def _kinds_kept_to(
    fits: NDArray[np.float64], users: NDArray[np.int64], n: int
) -> NDArray[np.float64]:
    """[n, 1 + kinds]: how far each user keeps to no kind, and to each."""
    kinds = fits.shape[1]
    kept = np.full((n, kinds), 1.0 / kinds)
    for _ in range(STEPS):
        owed = kept[users] * fits
        owed /= np.maximum(owed.sum(axis=1, keepdims=True), 1e-300)
        kept = np.stack([np.bincount(users, owed[:, k], minlength=n) for k in range(kinds)], axis=1)
        kept[:, 0] += PLAIN
        kept /= kept.sum(axis=1, keepdims=True)
    return kept


@dataclass(frozen=True, slots=True, repr=False)
class WithKnowledge:
    """Any recommender's scores and a prior, each in units of its own spread over the items, the
    prior as far as each user may trust it."""

    scorer: Scorer
    prior: Prior
    weight: float = 0.2

    @property
    def n_items(self) -> int:
        return self.scorer.n_items

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        first = np.asarray(self.scorer.scores(users), dtype=np.float64)
        second = self.prior.users[users].astype(np.float64) @ self.prior.items.T
        weight = self.weight * self.prior.trust[users].astype(np.float64)
        mixed = _spread(first) + weight[:, None] * _spread(second)
        return mixed.astype(np.float32)


def _spread(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows in units of their standard deviation; a row without any stays as it is."""
    finite = np.where(np.isfinite(table), table, 0.0)
    scale = finite.std(axis=1, keepdims=True)
    return table / np.where(scale > 0, scale, 1.0)
