"""Whether an owner's limit on ε has room for what is about to leave her store.

What counts is all that has left, or may have, under whatever terms and whatever became of it.
Rounds of noisy sums are counted in rounds of the noise in force: T of them tell as much as one with
√T times less noise, so that a round under other terms counts as (noise now / noise then)² of them,
rounded up in all. A release without noise on sums that has no ε of its own, which nothing bounds,
is beyond any limit, and counts as one. Whatever has an ε of its own is in `CohortStore.spent` and
adds to the price of the rounds.

Where sums have no noise under the terms in force, there are no rounds to count by: the price of
noisy sums under former terms adds to what costs an ε of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing
from sottovoce.core.consent import affords
from sottovoce.privacy.central import MOST_ROUNDS, price, room_for_sums
from sottovoce.privacy.own_epsilon import EVERY_STAGE, MOST_STAGES, beyond, mark_of, marked
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_rounds import RoundBook, kept_terms
from sottovoce.stores.person import choice_of
from sottovoce.wire.terms import Terms

_DAY = 86_400


def sum_noise(terms: Terms | None) -> float:
    """The noise on sums under these terms, as a multiple of their clip; 0 where there is none."""
    link = None if terms is None else terms.secure_sum
    return 0.0 if link is None else link.noise


def rounds_sent(store: CohortStore, noise: float) -> NDArray[np.int64]:
    """In how many rounds of this noise each of the store's users has sent, as explained above, at
    most `MOST_ROUNDS`; none where there is no noise to count by."""
    if not noise:
        return np.zeros(len(store.users), dtype=np.int64)
    sent = [
        sum(n * (_square(noise / then) if then else 1.0) for then, n in releases.items())
        for releases in _by_noise(store)
    ]
    return np.array([math.ceil(min(each, MOST_ROUNDS)) for each in sent], dtype=np.int64)


def stages_done(store: CohortStore, terms: Terms) -> NDArray[np.int64]:
    """To which stages of her latest period each of the store's users has contributed
    (`Cohort.sent`), as the terms in force divide rounds."""
    shares, batches = _divided(terms)
    row = {number: at for at, number in enumerate(store.users.tolist())}
    sent = np.zeros(len(row), dtype=np.int64)
    for number, round, *_ in RoundBook(store.file).rounds_of(terms.release.name):
        mark, one = mark_of(round, len(shares), batches), [row[number]]
        sent[one] = marked(sent[one], mark)
    return sent


def told_beyond(store: CohortStore, terms: Terms, sent: NDArray[np.int64]) -> NDArray[np.float64]:
    """What each of the store's users has told in the period of these stages (`stages_done`) beyond
    what they tell at her ε of today (`own_epsilon.beyond`): each contribution counts by the choice
    and the terms under which it left."""
    now, book = terms.release.contributing, RoundBook(store.file)
    found = np.zeros(len(sent))
    if now is None or not sent.any():
        return found
    row = {number: at for at, number in enumerate(store.users.tolist())}
    shares, batches = _divided(terms)
    told: dict[int, list[tuple[float, float]]] = {}
    before: dict[int, Terms] = {}
    written = dict(book.all_terms())
    for number, era, round, choice in book.contributed(terms.release.name):
        if mark_of(round, len(shares), batches) >> MOST_STAGES != sent[row[number]] >> MOST_STAGES:
            continue
        if era not in before:
            before[era] = kept_terms(written[era])
        then, own = _divided(before[era])[0], before[era].release.contributing
        epsilon = float(np.float32(choice_of(choice).epsilon))  # as `Consent` has it
        mu = 0.0 if own is None else own.loudness(epsilon)
        told.setdefault(row[number], []).append((then[round % len(then)], mu))
    epsilons = store.choices().epsilon.astype(np.float64)
    for at, each in told.items():
        stages = int(sent[at]) & EVERY_STAGE
        found[at] = beyond(each, stages, shares, now.loudness(float(epsilons[at])))
    return found


def _divided(terms: Terms) -> tuple[tuple[float, ...], int]:
    """A period's stages by their shares, and its batches."""
    algorithm = cast(Contributing, terms.build())
    return algorithm.shares, algorithm.batches


def rests_until(store: CohortStore, terms: Terms, round: int) -> NDArray[np.int64]:
    """The time, in seconds, before which nothing of each user leaves for this round, because she
    has contributed to another period (`OwnEpsilon.period_days`), which it is under other terms,
    however they number their rounds; before all times if she has not, whatever her clock says."""
    until = np.full(len(store.users), np.iinfo(np.int64).min)
    own = terms.release.contributing
    if own is None or not own.period_days:
        return until
    algorithm = cast(Contributing, terms.build())
    row = {number: at for at, number in enumerate(store.users.tolist())}
    book = RoundBook(store.file)
    known = book.latest_terms()
    for number, before, era, left_at in book.rounds_of(terms.release.name):
        former = known is not None and era != known[0]
        if former or algorithm.period(before) != algorithm.period(round):
            ready = left_at + _DAY * own.period_days
            until[row[number]] = max(until[row[number]], ready)
    return until


def plain_releases(store: CohortStore) -> NDArray[np.int64]:
    """How many releases that nothing bounds have left each of the store's users, or may have."""
    return np.array([releases.get(0.0, 0) for releases in _by_noise(store)], dtype=np.int64)


def spent_on_sums(store: CohortStore) -> NDArray[np.float64]:
    """ε of all rounds of noisy sums together in which each of the store's users has sent."""
    told = [
        sum(n * _square(1 / then) for then, n in releases.items() if then)
        for releases in _by_noise(store)
    ]
    # A price takes a moment, and most users of a store have sent as often as others.
    prices = {each: price(1 / math.sqrt(each), 1) if each else 0.0 for each in set(told)}
    return np.array([prices[each] for each in told])


def spent_before(store: CohortStore, terms: Terms | None) -> NDArray[np.float64]:
    """ε to which each user's next release under these terms adds; where their sums have noise,
    rounds of noisy sums are left out, which are counted then."""
    return store.spent() if sum_noise(terms) else store.spent() + spent_on_sums(store)


def has_room(store: CohortStore, terms: Terms, costs: Sequence[tuple[int, float]]) -> bool:
    """Whether these users have room for what a prepared round costs each of them."""
    row = np.searchsorted(store.users, np.array([number for number, _ in costs], dtype=np.int64))
    cost, limit = np.array([each for _, each in costs]), store.choices().total_epsilon
    noise, spent = sum_noise(terms), spent_before(store, terms)
    if noise:
        room = room_for_sums(noise, rounds_sent(store, noise), spent, limit)
        return bool(room[row].all())
    bounded = np.isfinite(cost)
    return bool(affords(spent[row], cost, limit[row])[bounded].all())


def _by_noise(store: CohortStore) -> list[dict[float, int]]:
    """Return, for each user of the store, how many releases without an ε of their own have left, or
    may have, by the noise on sums (0 for none)."""
    book = RoundBook(store.file)
    noise = {era: _noise_then(content) for era, content in book.all_terms()}
    found: dict[int, dict[float, int]] = {number: {} for number in store.users.tolist()}
    for number, era, releases in book.unbounded_releases():
        mine, then = found[number], noise[era]
        mine[then] = mine.get(then, 0) + releases
    return list(found.values())


def _noise_then(content: str) -> float:
    """The noise on sums under former terms. Read as far as needed: a former release may have
    written what this one does not know."""
    link = json.loads(content).get("link")
    return max(0.0, float(link.get("noise", 0.0))) if isinstance(link, dict) else 0.0


def _square(number: float) -> float:
    """Infinite where it is too large for a number."""
    return number * number
