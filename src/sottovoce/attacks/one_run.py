"""One run, many canaries: how much a whole system gives away at the very least.

After Steinke, Nasr and Jagielski (2023). Each of m canaries, devices of the auditor's own, is in
the run or not by a fair coin of its own. From what a party saw, the auditor gives each a score,
guesses r of them to be in or out, and counts how many guesses are right. Under a promise of
(ε, δ) these are few, as follows.

Let the coins of the first i − 1 canaries be known, and all that the party saw be t. Let a and b be
the probabilities of t with canary i in and out, the later coins averaged over. A guess "in" is
right with probability a/(a + b), which exceeds p = e^ε/(1 + e^ε) by (a − e^ε b)/((a + b)(1 + e^ε)).
Over all t, which have probability (a + b)/2 each, the excess is δ/(1 + e^ε) on average at most,
both guesses together, since Σ (a − e^ε b)₊ ≤ δ. So the number of right guesses is no larger than a
binomial number of r trials at p, plus one of mean mδ/(1 + e^ε) ≤ mδ/2, and by Markov's inequality

    P[at least v right] ≤ P[Bin(r, p) ≥ v] + mδ/2.

The coins must be independent, and r fixed before the run. Nothing else is assumed: canaries may be
correlated in every other way. A bound above the promise convicts; one below proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf.system import FCFConfig, solved
from sottovoce.algorithms.fmf import rotated
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.attacks.pairs import opened_sums
from sottovoce.attacks.suite.a12_known_others import opened_once
from sottovoce.attacks.views import View
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import Contributions, cut
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import Batch, ModelView
from sottovoce.core.one_bit import bits, contrast, coordinates
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
CONFIDENCE = 0.95
SHARES = (0.04, 0.2, 1.0)
"""Shares of the canaries that are guessed. Each share is tried, and the confidence is divided among
them."""
LARGEST = 60.0
"""No ε beyond this is looked for."""


# --- the bound -----------------------------------------------------------------------------------


def lower_bound(
    right: int, guesses: int, canaries: int, delta: float = 0.0, confidence: float = CONFIDENCE
) -> float:
    """The ε that so many right guesses prove; 0 where they prove none."""
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must lie between 0 and 1, not at {confidence:g}")
    if not 0.0 <= delta < 1.0:
        raise ConfigError(f"δ must lie between 0 and 1, not at {delta:g}")
    if not 0 <= right <= guesses <= canaries:
        raise DataError("there cannot be more right guesses than guesses, or guesses than canaries")
    room = 1.0 - confidence - canaries * delta / 2

    def proved(epsilon: float) -> bool:
        return bool(bdtrc(right - 1, guesses, 1.0 / (1.0 + math.exp(-epsilon))) <= room)

    if not guesses or not proved(0.0):
        return 0.0
    low, high = 0.0, LARGEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if proved(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Audit:
    """What one run proved."""

    canaries: int
    guesses: int
    right: int
    """Right answers among the guesses that prove most."""
    epsilon: float
    """At least this much was given away, at the confidence asked for."""
    claimed: float
    """What the accountant says of the same run."""
    delta: float

    @property
    def convicted(self) -> bool:
        """Whether more was given away than is claimed."""
        return self.epsilon > self.claimed

    def describe(self) -> str:
        found = (
            f"{self.right:,} of {self.guesses:,} guesses about {self.canaries:,} planted devices "
            f"were right: at least ε = {self.epsilon:.2f} was given away"
        )
        verdict = "more than" if self.convicted else "within"
        return f"{found}, {verdict} the ε = {self.claimed:.2f} claimed at δ = {self.delta:g}"


def audit(
    scores: Floats,
    included: Mask,
    claimed: float,
    delta: float = 0.0,
    shares: Sequence[float] = SHARES,
    confidence: float = CONFIDENCE,
) -> Audit:
    """From a score for each canary, higher where it looks to be in: the highest are guessed to be
    in, as many of the lowest to be out. `claimed` is what the bound is held against."""
    if scores.shape != included.shape or scores.ndim != 1 or not bool(np.isfinite(scores).all()):
        raise DataError("every canary needs a finite score and a coin")
    if not len(shares) or not all(0.0 < share <= 1.0 for share in shares):
        raise ConfigError("shares of canaries to guess must lie above 0 and up to 1")
    m = len(scores)
    ordered = included[np.argsort(-scores, kind="stable")]
    best = Audit(m, 0, 0, 0.0, claimed, delta)
    for share in shares:
        side = max(1, int(m * share / 2))
        guesses = min(2 * side, m)
        right = int(ordered[:side].sum() + (~ordered[m - (guesses - side) :]).sum())
        each = 1.0 - (1.0 - confidence) / len(shares)
        epsilon = lower_bound(right, guesses, m, delta, each)
        if epsilon > best.epsilon or not best.guesses:
            best = Audit(m, guesses, right, epsilon, claimed, delta)
    return best


# --- canaries ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Canaries(Redacted):
    """Planted devices, the first ones of a run: what each holds if it is in, and if it is out."""

    inside: Interactions
    outside: Interactions
    """Without any item where a canary that is out does not take part."""
    included: Mask

    def __post_init__(self) -> None:
        shapes = {(h.n_users, h.n_items) for h in (self.inside, self.outside)}
        if shapes != {(len(self.included), self.inside.n_items)}:
            raise DataError("every canary needs a coin and two histories of the same items")

    def __len__(self) -> int:
        return len(self.included)

    @classmethod
    def single_items(cls, n: int, n_items: int, rng: Streams, absent: bool) -> Canaries:
        """An item of its own for each that is in. One that is out has another, or, with `absent`,
        does not take part."""
        need = n if absent else 2 * n
        if n_items < need:
            raise ConfigError(f"{n:,} canaries of one item each need {need:,} items")
        items = rng.child("canary items").generator().permutation(n_items)
        everyone = np.arange(n)
        inside = Interactions.from_pairs(everyone, items[:n], n_users=n, n_items=n_items)
        there = np.zeros(0, np.int64) if absent else everyone
        other = np.zeros(0, np.int64) if absent else items[n : 2 * n]
        outside = Interactions.from_pairs(there, other, n_users=n, n_items=n_items)
        return cls(inside, outside, rng.child("canary coins").generator().random(n) < 0.5)

    @classmethod
    def pairs(cls, n: int, items: NDArray[np.integer], n_items: int, rng: Streams) -> Canaries:
        """Two of these items for each that is in, no two canaries the same; one that is out does
        not take part."""
        first, second = np.triu_indices(len(items), 1)
        if len(first) < n:
            raise ConfigError(f"{n:,} canaries of two items each need more than {len(items):,}")
        chosen = rng.child("canary items").choose(len(first), n)
        two = np.stack([items[first[chosen]], items[second[chosen]]], axis=1)
        inside = Interactions.from_pairs(
            np.repeat(np.arange(n), 2), two.ravel(), n_users=n, n_items=n_items
        )
        none = Interactions.from_pairs([], [], n_users=n, n_items=n_items)
        return cls(inside, none, rng.child("canary coins").generator().random(n) < 0.5)

    def histories(self, others: Interactions | None = None) -> Interactions:
        """The histories of the run: the canaries', by their coins, then those of `others`."""
        users, items, n = [], [], len(self)
        for which, history in ((self.included, self.inside), (~self.included, self.outside)):
            mine = which[history.users]
            users.append(history.users[mine])
            items.append(history.items[mine])
        if others is not None:
            users.append(others.users + n)
            items.append(others.items)
            n += others.n_users
        return Interactions.from_pairs(
            np.concatenate(users), np.concatenate(items), n_users=n, n_items=self.inside.n_items
        )


def audit_run(
    canaries: Canaries,
    run: Callable[[Canaries], View],
    score: Callable[[View, Canaries], Floats],
    claimed: float,
    delta: float,
) -> Audit:
    """The whole system once, with the canaries in it: `run` gives what the server saw, `score` is
    `score_reports` or `score_sums`."""
    return audit(score(run(canaries), canaries), canaries.included, claimed, delta)


# --- randomised reports --------------------------------------------------------------------------


def values_before_coins(
    settings: FMFConfig, items: NDArray[np.float32], history: Interactions
) -> NDArray[np.float32]:
    """What each device of FMF-LDP would say about every coordinate if there were no coins, in
    [−1, 1]; [devices, coordinates]."""
    n_items, size = items.shape
    users, wide = history.users, items.astype(np.float64)
    if settings.variant == "rotated":
        order, half = rotated.order(n_items), 1
        table = np.zeros((order, history.n_users))
        table[rotated.columns(n_items)[history.items], users] = 1.0
        while half < order:
            pairs = table.reshape(-1, 2, half, history.n_users)
            table = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            half *= 2
        sums = table.reshape(order, history.n_users).T
        along = np.zeros((history.n_users, size))
        np.add.at(along, users, wide[history.items])
        said = np.sign(sums[:, :, None] * along[:, None, :])
    else:
        confidence = settings.confidence()
        rows = np.arange(history.n_users, dtype=np.int64)
        vectors = closed_form.solve(confidence, items, rows, history.indptr, history.items)
        left = -(vectors.astype(np.float64) @ wide.T) * confidence.other
        at = (users, history.items)
        left[at] = confidence.positive * (1.0 - (vectors[users] * wide[history.items]).sum(axis=1))
        said = -2.0 * left[:, :, None] * vectors[:, None, :].astype(np.float64) * settings.scale
    return np.clip(said, -1.0, 1.0).reshape(history.n_users, -1).astype(np.float32)


class Counted(NamedTuple):
    """A round's batches, as the server counts them."""

    published: ModelView
    total: Floats
    """For every coordinate, reports with bit 1 less those with bit 0, each weighed by what a report
    of its tier is worth."""
    own: float
    """What a device that says 1 about everything adds to each of these, on average."""
    spread: float
    """The variance of each by the coins alone."""


def counted(view: View) -> list[Counted]:
    """What a server behind a proxy knows of each round."""
    settings, release = view.algorithm, view.release
    if settings.name != "fmf":
        raise DataError("randomised reports are those of FMF-LDP")
    rows = rotated.order(view.n_items) if settings.variant == "rotated" else view.n_items
    places, found = rows * settings.embedding_size, []
    for seen in view.rounds:
        batches = [m for m in seen.messages if isinstance(m, Batch)]
        if not batches or seen.published is None:
            continue
        total, own, spread = np.zeros(places), 0.0, 0.0
        devices = sum(batch.devices for batch in batches)
        for batch in batches:
            worth = contrast(release.tiers[batch.tier].epsilon)
            signs = np.where(bits(batch.reports), worth, -worth)
            total += np.bincount(coordinates(batch.reports), signs, places)
            own += worth**2 * len(batch.reports) / (devices * places)
            spread += worth**2 * len(batch.reports) / places
        found.append(Counted(seen.published, total, own, spread))
    return found


def score_reports(view: View, canaries: Canaries) -> Floats:
    """From the server's batches, for an auditor who knows both histories of every canary and all
    that the server knows: how much better the reports fit to the one than to the other."""
    clues = Clues.none(len(canaries))
    for seen in counted(view):
        one, other = (
            seen.own
            * values_before_coins(view.algorithm, seen.published.items, history).astype(np.float64)
            for history in (canaries.inside, canaries.outside)
        )
        clues = clues.and_also(one - other, seen.total - (one + other).sum(axis=0) / 2, seen.spread)
    return clues.scores()


class Clues(NamedTuple):
    """What rounds tell of the canaries' coins c in ±½: each adds Σ c_u · marks_u and noise. The
    best linear guess also tells canaries apart that have much in common."""

    gram: Floats
    along: Floats

    @classmethod
    def none(cls, canaries: int) -> Clues:
        return cls(np.zeros((canaries, canaries)), np.zeros(canaries))

    def and_also(self, marks: Floats, rest: Floats, variance: float) -> Clues:
        """With a round: `marks` are [canaries, numbers], `rest` what it told, less what half of all
        canaries would have added."""
        gram = marks @ marks.T
        # Rounding is noise as well.
        noise = max(variance, 1e-9 * float(gram.trace()) / max(1, len(gram)), 1e-300)
        return Clues(self.gram + gram / noise, self.along + marks @ rest / noise)

    def scores(self) -> Floats:
        """One for each canary; 4 is how sure the auditor is of ±½ before the first round."""
        found = np.linalg.solve(self.gram + 4.0 * np.eye(len(self.gram)), self.along)
        return np.asarray(found, dtype=np.float64)


# --- sums ----------------------------------------------------------------------------------------


def fcf_updates(
    settings: FCFConfig, published: ModelView, history: Interactions, clip: float
) -> Floats:
    """What each device of FCF sends, clipped as a whole; [devices, numbers]."""
    confidence, items = settings.confidence(), published.items.astype(np.float64)
    everyone = np.arange(history.n_users, dtype=np.int64)
    consent = Consent.uniform(everyone, Choice(share_positives=1.0))
    cohort = Cohort(everyone, history, consent, np.zeros((len(everyone), items.shape[1]), "f4"))
    vectors = solved(confidence, published, cohort, None, 1).astype(np.float64)
    left = -(vectors @ items.T) * confidence.other
    at = (history.users, history.items)
    left[at] = confidence.positive * (1.0 - (vectors[at[0]] * items[at[1]]).sum(axis=1))
    updates = (left[:, :, None] * vectors[:, None, :]).reshape(len(vectors), -1)
    if clip:
        length = np.linalg.norm(updates, axis=1, keepdims=True)
        updates *= np.minimum(1.0, clip / np.maximum(length, 1e-300))
    return updates


def score_sums(view: View, canaries: Canaries) -> Floats:
    """From the sums that the server has opened, for an auditor who knows what every canary would
    send (FCF's devices do nothing at random): whether the sum looks as if it were in."""
    settings = view.algorithm
    if settings.name != "fcf":
        raise DataError("canaries of a secure sum are devices of FCF")
    clip = view.link.clip
    variance = (view.link.noise * clip) ** 2
    clues = Clues.none(len(canaries))
    for one in opened_sums(view):
        if one.published is None:
            raise DataError("the model that a round started from is missing")
        updates = fcf_updates(settings, one.published, canaries.inside, clip)
        clues = clues.and_also(updates, one.sums.ravel() - updates.sum(axis=0) / 2, variance)
    return clues.scores()


def score_contributions(
    view: View, canaries: Canaries, others: Interactions | None = None
) -> Floats:
    """From the sums that gram's server has opened, for an auditor who knows what every canary would
    add, and what all `others` have added, who permit the largest ε. A canary that is out does not
    take part."""
    told, algorithm = opened_once(view), view.algorithm.build_under(view.release, view.link, 1)
    clues = Clues.none(len(canaries))
    published = {s.round: s.published for s in view.rounds if s.published is not None}

    def contributions(model: ModelView, history: Interactions) -> Contributions:
        users = np.arange(history.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(epsilon=view.release.epsilon))
        cohort = Cohort(users, history, consent, algorithm.device_init(users, Streams(0)))
        if model.round and 1 in published:  # the first version that devices recommend by
            cohort.published = published[1].items
        profile = algorithm.device_profile(model, cohort, users)
        return cut(profile, np.ones(len(users)), view.algorithm.name)

    for round, (sums, sigma) in enumerate(zip(told.sums, told.sigmas, strict=True)):
        made = contributions(published[round], canaries.inside)
        if others is not None:
            theirs = contributions(published[round], others)
            sums = sums - algorithm.sum_contributions(theirs, 1)
        # A number that stands for two places has noise that is smaller by √2.
        weight = np.ones(made.numbers)
        weight[made.size :] = math.sqrt(2.0)
        marks = np.stack([made.whole(row) * weight for row in range(len(made))])
        looked = marks.any(axis=0)  # nothing else tells of canaries
        marks, rest = marks[:, looked], (sums * weight)[looked]
        clues = clues.and_also(marks, rest - marks.sum(axis=0) / 2, sigma**2)
    return clues.scores()


SCORES: Mapping[str, Callable[[View, Canaries], Floats]] = {
    "fmf": score_reports,
    "fcf": score_sums,
    "gram": score_contributions,
}
"""By algorithm, how canaries are scored; those of others cannot be."""
