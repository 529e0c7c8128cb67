"""What can be tried on one device's own messages, without anybody else's.

Each of these is an attack by whoever has one message and knows the protocol: on what is masked or
shared, on the noisy sum that everybody sees, on what two parties read together, and on randomised
reports whose sender is known. Whoever tries them knows the answers, and counts how many guesses are
right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sottovoce.algorithms.base import Contributing, Reporting
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS, Contributions, numbers_of
from sottovoce.core.interactions import Interactions
from sottovoce.core.masking import expand, masked, unmasked
from sottovoce.core.messages import (
    BitReports,
    DeviceReports,
    MaskedReports,
    MaskSeeds,
    ModelView,
    SharedReports,
)
from sottovoce.core.one_bit import COINS, bits, coordinates, lowest
from sottovoce.core.redacted import Redacted
from sottovoce.core.shares import AGGREGATORS, Elements, Form, P, added, bits_of, share, split
from sottovoce.errors import ConfigError, DataError
from sottovoce.privacy.central import gaussian_noise
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Secret = Callable[[int], bytes]
"""Returns so many bytes that nobody knows."""
Noise = Callable[[int], Sequence[Ints]]
"""Returns the noise on each of the sums for a draw, given by its number. No two draws have noise in
common."""
_MASKED, _SHARED, _SUMMED = 2_500, 1_500, 10_000
"""Draws with her and as many without, of what is masked, shared and summed."""
_LOOKED_AT, _SHARED_PLACES, _DRAWN = 2_000, 250, 250
"""Numbers that are looked at of what is masked and shared; of sums, those that have draws of their
own."""
_UNIT = 1 << 24
"""Steps to a standard deviation, of numbers that are put together as one."""
_SEVERAL = 3.0
"""Standard deviations of a device's own noise above which a number is taken for an item's."""


@dataclass(frozen=True, slots=True)
class RightGuesses:
    """How many guesses were right of how many, where a coin is right in half of them."""

    right: int
    of: int
    permitted: float = 0.5
    """What share may be right by what was promised."""


# --- one party alone ------------------------------------------------------------------------------


def dense_update(reports: DeviceReports, shape: tuple[int, int]) -> Ints:
    """One device's update with a row for every row of the model, as it is masked."""
    table = np.zeros(shape, np.int64)
    table[reports.item] = reports.values
    return table.ravel()


def guess_masked(numbers: Ints, width: int, secret: Secret) -> RightGuesses:
    """Whether a masked message holds these numbers or zeros, for whoever knows the numbers: masked
    words of `width` bits are held against the largest of them."""
    hers = _largest(numbers, _LOOKED_AT)
    looked_for = hers.astype(np.float64)

    def along(whole: Ints) -> float:
        words = masked(whole, secret(32), width).astype(np.uint64) << np.uint64(64 - width)
        return float(words.view(np.int64).astype(np.float64) @ looked_for)

    return _counted(along, hers, np.zeros_like(hers), _MASKED)


def guess_shared(form: Callable[[int], Form], entries: Ints, secret: Secret) -> RightGuesses:
    """The same for an aggregator, which has two of three shares of entries; `form` is that of so
    many."""
    largest = _largest(entries, _SHARED_PLACES)
    made = form(len(largest))
    hers, nothing = (bits_of(made, one[None])[0] for one in (largest, np.zeros_like(largest)))
    looked_for = hers.astype(np.float64) - nothing

    def along(whole: Elements) -> float:
        drawn = [secret(32) for _ in range(AGGREGATORS)]
        travelled = split(whole, drawn)
        two = added([share(made, number, drawn[number], travelled) for number in (1, 2)])
        around = np.where(two > P // 2, two.astype(np.int64) - P, two.astype(np.int64))
        return float(around @ looked_for)

    return _counted(along, hers, nothing, _SHARED)


def _largest(numbers: Ints, most: int) -> Ints:
    """Return at most `most` of the numbers that are not 0, and at least one."""
    many = max(1, min(most, np.count_nonzero(numbers)))
    return numbers[np.argsort(-np.abs(numbers), kind="stable")[:many]]


def _counted(
    score: Callable[..., float], hers: object, nothing: object, draws: int
) -> RightGuesses:
    """Above 0 it is taken for hers."""
    inside = sum(score(hers) > 0 for _ in range(draws))
    outside = sum(score(nothing) <= 0 for _ in range(draws))
    return RightGuesses(int(inside + outside), 2 * draws)


# --- the sum that everybody sees ------------------------------------------------------------------


# --- noisy sums that are opened once --------------------------------------------------------------
# An attacker who knows everybody else takes what the others have added off what was published. What
# is left is noise, and the target's contribution x if the target is in. With Gaussian noise of σ on
# each number, over all sums together, the best that she can look at is one number: ⟨rest/σ², x⟩ by
# its own standard deviation. Out it is a Gaussian of variance 1 around 0, in it is one around
# μ = ‖x/σ‖. So an attack on one user has an AUC of Φ(μ/√2) and never a better one, and μ at (ε, δ)
# is the price of the sums (`privacy.central`).


@dataclass(frozen=True, slots=True, repr=False)
class SumTarget(Redacted):
    """A user, and what there is to hide her."""

    added: tuple[Ints, ...]
    """What she adds to each sum, number by number, in steps of the grid."""
    sigmas: tuple[Floats, ...]
    """For each of these numbers, the standard deviation of the noise that is claimed."""

    def __post_init__(self) -> None:
        if [x.shape for x in self.added] != [s.shape for s in self.sigmas]:
            raise DataError("every number of a contribution needs the noise that is claimed for it")
        if not any(x.any() for x in self.added) or not all((s > 0).all() for s in self.sigmas):
            raise DataError("a target adds something, to sums that have noise")

    @property
    def distance(self) -> float:
        """μ: by how many standard deviations she moves what is published."""
        parts = [float(((x / s) ** 2).sum()) for x, s in zip(self.added, self.sigmas, strict=True)]
        return math.sqrt(math.fsum(parts))

    def statistic(self, rests: Sequence[Ints]) -> float:
        """Return the statistic of what is left of the sums without the others: 0 on average if she
        is out, μ if she is in."""
        parts = [
            float((rest / s * (x / s)).sum())
            for rest, x, s in zip(rests, self.added, self.sigmas, strict=True)
        ]
        return math.fsum(parts) / self.distance


def right_guesses(target: SumTarget, noise: Noise, draws: int) -> int:
    """How many of 2 · `draws` guesses are right, half of them with the target in, by whoever knows
    all but that. Φ(μ/2) of them are, on average, if the noise is what is claimed."""
    if draws < 1:
        raise ConfigError("there is nothing to count without a draw")
    middle = target.distance / 2
    moved = target.statistic(target.added)
    inside = sum(moved + target.statistic(noise(n)) > middle for n in range(draws))
    outside = sum(target.statistic(noise(draws + n)) <= middle for n in range(draws))
    return int(inside + outside)


@dataclass(frozen=True, slots=True, repr=False)
class Added(Redacted):
    """What one device adds to one sum, and the noise that is claimed for it."""

    round: int
    numbers: Ints
    sigmas: Floats
    """The standard deviation of each number, in its steps."""


def claimed_noise(algorithm: Contributing, round: int, numbers: int, sigma: float) -> Floats:
    """On each number of a round's sum, for noise of `sigma` in a period."""
    spans = algorithm.noise_spans(round, numbers)
    many, size = [each for each, _ in spans], [size for _, size in spans]
    return np.repeat(np.array(size) * sigma * STEPS, many)


def guess_in_sum(parts: Sequence[Added], permitted: float, secret: Secret) -> RightGuesses:
    """Whether she is in these sums, for whoever knows everybody else. `permitted` is the distance
    at which she may stand out, in standard deviations.

    Noise is drawn where she adds something: it is independent elsewhere, and says nothing. Where
    she adds little to each of many numbers, these are put together as one, with noise as it is
    along them."""
    added = np.concatenate([one.numbers for one in parts])
    sigmas = np.concatenate([one.sigmas for one in parts])
    far = np.abs(added / sigmas)
    order = np.argsort(-far, kind="stable")[: np.count_nonzero(far)]
    kept, rest = order[:_DRAWN], order[_DRAWN:]
    target = SumTarget(
        (added[kept], np.array([round(_UNIT * float(np.linalg.norm(far[rest])))])),
        (sigmas[kept], np.array([float(_UNIT)])),
    )
    noise = [_drawn(each, 2 * _SUMMED, secret) for each in target.sigmas]
    right = right_guesses(target, lambda n: [each[n] for each in noise], _SUMMED)
    return RightGuesses(right, 2 * _SUMMED, float(ndtr(permitted / 2)))


def _drawn(sigmas: Floats, draws: int, secret: Secret) -> Ints:
    """[draws, numbers]: noise by the code that adds it to sums."""
    noise = np.zeros((draws, len(sigmas)), np.int64)
    for sigma in np.unique(sigmas).tolist():
        at = np.flatnonzero(sigmas == sigma)
        made = gaussian_noise(secret(32), 0, draws * len(at), sigma)
        noise[:, at] = made.reshape(draws, len(at))
    return noise


# --- two parties together -------------------------------------------------------------------------


def read_masked(hidden: MaskedReports, seeds: MaskSeeds, width: int) -> Ints:
    """A device's numbers, by whoever has both its masked message and the seed of its mask."""
    words = hidden.masked[0]
    return unmasked(words, expand(seeds.seeds[0], len(words), width), 1, width)[:, 0]


def read_shared(form: Form, first: SharedReports, second: SharedReports) -> Ints:
    """A device's entries, by aggregators 0 and 1, who have all three shares between them."""
    secrets = (first.secrets[0][0], first.secrets[0][1], second.secrets[0][1])
    travelled = first.travelled[0]
    parts = [share(form, number, one, travelled) for number, one in enumerate(secrets)]
    width = len(form.weights)
    told = added(parts)[: form.places * width].reshape(form.places, width)
    entries: Ints = told.astype(np.int64) @ np.array(form.weights, np.int64)
    return entries


def contribution_of(entries: Ints, step: int, pairs: bool) -> Ints:
    """The numbers of a sum to which these entries add."""
    place = np.flatnonzero(entries).astype(np.int32)
    steps = (entries[place] * step).astype(np.int32)
    ends, told = np.array([0, len(place)]), np.array([len(place)], np.int32)
    return Contributions(ends, place, steps, len(entries), pairs, told).whole(0)


def items_in(
    algorithm: Contributing, view: ModelView, numbers: Ints, noise: Floats | None = None
) -> Ints:
    """The items that a contribution tells of; `noise` is what its device has added to each number
    itself."""
    size, pairs = algorithm.contribution(view.round, len(numbers))
    if numbers_of(size, pairs) != len(numbers):
        return np.zeros(0, np.int64)
    least = np.zeros(size) if noise is None else _SEVERAL * noise[:size]
    found = algorithm.items_at(view, np.flatnonzero(numbers[:size] > least).astype(np.int32))
    return np.unique(found[found >= 0])


# --- randomised reports whose sender is known -----------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Questions(Redacted):
    """Questions about pairs of items, one of them the user's: which one is it? All her other items
    are known."""

    history: Interactions
    """Hers first, then with the other item of each pair in the place of the one."""
    hers: Ints
    others: Ints

    @classmethod
    def about(cls, own: Ints, n_items: int, most: int, rng: Streams) -> Questions:
        """Draw at most so many questions about a user with these items."""
        strangers = np.setdiff1d(np.arange(n_items), own)
        many = min(len(own), len(strangers), most)
        hers = own[rng.child("hers").choose(len(own), many)]
        others = strangers[rng.child("others").choose(len(strangers), many)]
        rows = [own, *(np.where(own == i, j, own) for i, j in zip(hers, others, strict=True))]
        history = Interactions.from_pairs(
            np.repeat(np.arange(many + 1), len(own)), np.concatenate(rows),
            n_users=many + 1, n_items=n_items,
        )  # fmt: skip
        return cls(history, hers.astype(np.int64), others.astype(np.int64))

    def __len__(self) -> int:
        return len(self.hers)


def likelihoods(
    algorithm: Reporting,
    view: ModelView,
    history: Interactions,
    sent: BitReports,
    epsilon: float,
) -> Floats:
    """Return, for each of these histories, the logarithm of how likely it made what one device
    sent, with this ε for each report."""
    n, reports = history.n_users, sent.reports[0]
    users = np.arange(n, dtype=np.int64)
    vectors = np.zeros((n, algorithm.config.embedding_size), np.float32)
    cohort = Cohort(users, history, Consent.uniform(users, Choice()), vectors)
    about = np.tile(coordinates(reports), (n, 1))
    said = np.clip(algorithm.scale * algorithm.device_values(view, cohort, users, about), -1.0, 1.0)
    low = lowest(epsilon) / COINS
    one = low + (said + 1.0) * 0.5 * (1.0 - 2.0 * low)
    found: Floats = np.log(np.where(bits(reports), one, 1.0 - one)).sum(axis=1)
    return found


def answers(weights: Floats) -> Floats:
    """Return the answer to each question by the likelihoods of all histories: 1 if the user's item
    was named, ½ if neither was more likely."""
    said: Floats = (np.sign(np.round(weights[0] - weights[1:], 9)) + 1.0) / 2.0
    return said
