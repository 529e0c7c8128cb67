"""What can be tried on one device's own messages, without anybody else's.

Each of these is an attack by whoever has one message and knows the protocol: on what is masked or
shared, on the noisy sum that everybody sees, on what two parties read together, and on randomised
reports whose sender is known. Whoever tries them knows the answers, and counts how many guesses are
right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sottovoce.algorithms.base import Cohort, Contributing, Reporting
from sottovoce.attacks.one_shot import SumTarget, right_guesses
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
from sottovoce.privacy.central import gaussian_noise
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Secret = Callable[[int], bytes]
"""So many bytes that nobody knows."""
_AT_MOST, _AT_LEAST = 10_000, 100
"""Draws with her and as many without."""
_ROOM = 1_000_000
"""Numbers of noise in memory together."""
_SEVERAL = 3.0
"""Standard deviations of a device's own noise above which a number is taken for an item's."""


@dataclass(frozen=True, slots=True)
class Guessed:
    """How many guesses were right of how many, where a coin is right in half of them."""

    right: int
    of: int
    permitted: float = 0.5
    """What share may be right by what was promised."""


def draws_for(numbers: int, room: float) -> int:
    """How often so many numbers can be drawn."""
    return int(np.clip(room // max(1, numbers), _AT_LEAST, _AT_MOST))


# --- one party alone ------------------------------------------------------------------------------


def dense_update(reports: DeviceReports, shape: tuple[int, int]) -> Ints:
    """One device's update with a row for every row of the model, as it is masked."""
    table = np.zeros(shape, np.int64)
    table[reports.item] = reports.values
    return table.ravel()


def guess_masked(numbers: Ints, width: int, secret: Secret) -> Guessed:
    """Whether a masked message holds these numbers or zeros, for whoever knows the numbers: masked
    words of `width` bits are held against them."""
    draws = draws_for(len(numbers), 2e7)
    looked_for = numbers.astype(np.float64)

    def along(whole: Ints) -> float:
        words = masked(whole, secret(32), width).astype(np.uint64) << np.uint64(64 - width)
        return float(words.view(np.int64).astype(np.float64) @ looked_for)

    return _counted(along, numbers, np.zeros_like(numbers), draws)


def guess_shared(form: Form, entries: Ints, secret: Secret) -> Guessed:
    """The same for an aggregator, which has two of three shares."""
    hers, nothing = (bits_of(form, one[None])[0] for one in (entries, np.zeros_like(entries)))
    looked_for = hers.astype(np.float64) - nothing

    def along(whole: Elements) -> float:
        drawn = [secret(32) for _ in range(AGGREGATORS)]
        travelled = split(whole, drawn)
        two = added([share(form, number, drawn[number], travelled) for number in (1, 2)])
        around = np.where(two > P // 2, two.astype(np.int64) - P, two.astype(np.int64))
        return float(around @ looked_for)

    return _counted(along, hers, nothing, draws_for(form.elements, 2e6))


def _counted(score: Callable[..., float], hers: object, nothing: object, draws: int) -> Guessed:
    """Above 0 it is taken for hers."""
    inside = sum(score(hers) > 0 for _ in range(draws))
    outside = sum(score(nothing) <= 0 for _ in range(draws))
    return Guessed(int(inside + outside), 2 * draws)


# --- the sum that everybody sees ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Added(Redacted):
    """What one device adds to one sum, and the noise that is claimed for it."""

    round: int
    numbers: Ints
    sigmas: Floats
    """Of each number, in its steps."""


def claimed_noise(algorithm: Contributing, round: int, numbers: int, sigma: float) -> Floats:
    """On each number of a round's sum, for noise of `sigma` in a period."""
    spans = algorithm.noise_spans(round, numbers)
    many, size = [each for each, _ in spans], [size for _, size in spans]
    return np.repeat(np.array(size) * sigma * STEPS, many)


def guess_in_sum(parts: Sequence[Added], permitted: float, secret: Secret) -> Guessed:
    """Whether she is in these sums, for whoever knows everybody else. `permitted` is the distance
    at which she may stand out, in standard deviations. Noise is drawn where she adds something: it
    is independent elsewhere, and says nothing."""
    hers = [one.numbers != 0 for one in parts]
    target = SumTarget(
        tuple(one.numbers[at] for one, at in zip(parts, hers, strict=True)),
        tuple(one.sigmas[at] for one, at in zip(parts, hers, strict=True)),
    )
    numbers = sum(int(at.sum()) for at in hers)
    draws = draws_for(numbers, 2e7)
    right = right_guesses(target, _Noise(target.sigmas, numbers, secret), draws)
    return Guessed(right, 2 * draws, float(ndtr(permitted / 2)))


class _Noise:
    """Noise by the code that adds it to sums, so many draws at a time as there is room for."""

    def __init__(self, sigmas: Sequence[Floats], numbers: int, secret: Secret) -> None:
        self._sigmas, self._secret = sigmas, secret
        self._at_once, self._block = max(1, _ROOM // numbers), -1
        self._drawn: list[Ints] = []

    def __call__(self, draw: int) -> list[Ints]:
        block, place = divmod(draw, self._at_once)
        if block != self._block:
            self._block, self._drawn = block, [self._made(each) for each in self._sigmas]
        return [each[place] for each in self._drawn]

    def _made(self, sigmas: Floats) -> Ints:
        noise = np.zeros((self._at_once, len(sigmas)), np.int64)
        for sigma in np.unique(sigmas).tolist():
            at = np.flatnonzero(sigmas == sigma)
            made = gaussian_noise(self._secret(32), 0, self._at_once * len(at), sigma)
            noise[:, at] = made.reshape(self._at_once, len(at))
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
    """Of pairs of items, one hers and one not: which is hers? All her other items are known."""

    history: Interactions
    """Hers first, then with the other item of each pair in the place of the one."""
    hers: Ints
    others: Ints

    @classmethod
    def about(cls, own: Ints, n_items: int, most: int, rng: Streams) -> Questions:
        """So many at most, of a user with these items."""
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
    """Of each of these histories, the logarithm of how likely it made what one device sent, with
    this ε for each report."""
    n, reports = history.n_users, sent.reports[0]
    users = np.arange(n, dtype=np.int64)
    vectors = np.zeros((n, algorithm.config.embedding_size), np.float32)
    cohort = Cohort(users, history, Consent.uniform(users, Choice()), vectors)
    about = np.tile(coordinates(reports), (n, 1))
    scale, _ = algorithm.sampling(view.items)
    said = np.clip(scale * algorithm.device_values(view, cohort, users, about), -1.0, 1.0)
    low = lowest(epsilon) / COINS
    one = low + (said + 1.0) * 0.5 * (1.0 - 2.0 * low)
    found: Floats = np.log(np.where(bits(reports), one, 1.0 - one)).sum(axis=1)
    return found


def answers(weights: Floats) -> Floats:
    """Of each question, by the likelihoods of all histories: 1 where hers was said, ½ where neither
    was more likely."""
    said: Floats = (np.sign(np.round(weights[0] - weights[1:], 9)) + 1.0) / 2.0
    return said
