"""Whether an owner's limit on ε has room for what is about to leave her store.

What counts is all that has left, or may have, under whatever terms and whatever became of it.
Rounds of noisy sums are counted in rounds of the noise in force: T of them tell as much as one with
√T times less noise, so that a round under other terms counts as (noise now / noise then)² of them,
rounded up in all. A release without noise, which nothing bounds, is beyond any limit, and counts as
one. Whatever has an ε of its own is in `spent` and adds to the price of the rounds.
"""

from __future__ import annotations

import json
import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.consent import affords
from sottovoce.parties.store import CohortStore
from sottovoce.parties.store_rounds import Round, RoundBook
from sottovoce.privacy.central import MOST_ROUNDS, room_for_sums
from sottovoce.terms import Terms


def sum_noise(terms: Terms | None) -> float:
    """The noise on sums under these terms, as a multiple of their clip; 0 where there is none."""
    link = None if terms is None else terms.secure_sum
    return 0.0 if link is None else link.noise


def rounds_sent(store: CohortStore, noise: float) -> NDArray[np.int64]:
    """In how many rounds of this noise each of the store's users has sent, as explained above; none
    where there is no noise to count by."""
    users = store.users
    if not noise:
        return np.zeros(len(users), dtype=np.int64)
    book = RoundBook(store.file)
    weight = {era: _weight(noise, content) for era, content in book.all_terms()}
    sent = dict.fromkeys(users.tolist(), 0.0)
    for number, era, releases in book.unbounded_releases():
        sent[number] += releases * weight[era]
    return np.array([min(math.ceil(each), MOST_ROUNDS) for each in sent.values()], dtype=np.int64)


def has_room(store: CohortStore, terms: Terms, entry: Round) -> bool:
    """Whether everybody in a prepared round has room for what it costs."""
    costs = RoundBook(store.file).costs(entry)
    row = np.searchsorted(store.users, np.array([number for number, _ in costs], dtype=np.int64))
    cost, limit = np.array([each for _, each in costs]), store.choices().total_epsilon
    noise = sum_noise(terms)
    if noise:
        room = room_for_sums(noise, rounds_sent(store, noise), store.spent(), limit)
        return bool(room[row].all())
    bounded = np.isfinite(cost)
    return bool(affords(store.spent()[row], cost, limit[row])[bounded].all())


def _weight(noise: float, content: str) -> float:
    """Rounds of this noise that count as one under those terms. Read as far as needed: a former
    release may have written what this one does not know."""
    link = json.loads(content).get("link")
    then = float(link.get("noise", 0.0)) if isinstance(link, dict) else 0.0
    return (noise / then) ** 2 if then > 0.0 else 1.0
