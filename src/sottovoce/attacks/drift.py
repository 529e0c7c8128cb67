"""What DRIFT's orchestrator can guess about interactions, which never reach it.

Two attacks of an honest but curious orchestrator, or of whoever reads its messages:

- The request log: a request names users and items, so they were together in finished blocks. With
  one user in a request, everything is known but the sign.
- Cosine: less the ridge, which the orchestrator knows, the gradient of an item is a combination of
  the vectors of the users who touched it, and the orchestrator has these vectors. The coefficient
  of one who liked the item is negative. A gradient in single precision says its direction to seven
  digits, so that among thousands of users one alone fits, whatever else is in the update. Up to
  size − 1 users of an item can be told from each other; beyond that any combination fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.blocks import BlockStep, DriftModel
from sottovoce.algorithms.drift.messages import Gradients
from sottovoce.attacks.views import CONFIDENCE_Z, Remedy
from sottovoce.core.redacted import Redacted
from sottovoce.errors import DoesNotApply
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
DRIFT = frozenset({"drift"})
"""The algorithms whose messages these attacks read."""
ORCHESTRATOR_ALONE = "this is what DRIFT's orchestrator could do, from what it gets"
AGGREGATED = Remedy(
    "aggregated",
    'owners that add up over many people (algorithm.release = "aggregated"), or refusing owners',
)
ROUNDING = 1.5 * 2.0**-24
"""How far a combination may be from the gradient, as a share of its length: what rounding to
single precision explains, and a little."""
MOST_SUBSETS = 50_000
"""Combinations of users that are tried for an update."""
AT_ONCE = 8_000_000
"""Pairs of a request log that are sorted at once."""


# --- how good a guess is -------------------------------------------------------------------------


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """What an attack claimed, held against the truth."""

    attack: str
    party: str
    claimed: int
    right: int
    """Claims that are true."""
    there: int
    """Things that could have been claimed."""
    base_rate: float
    """Precision of the best guess without the attack."""

    @property
    def precision(self) -> float:
        return self.right / self.claimed if self.claimed else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.there if self.there else 0.0

    @property
    def precision_interval(self) -> Interval:
        """95 %, after Wilson, as if claims were independent."""
        return wilson(self.right, self.claimed)

    @property
    def recall_interval(self) -> Interval:
        return wilson(self.right, self.there)

    @property
    def succeeds(self) -> bool:
        """Whether the attack is better than the base rate, beyond chance."""
        return self.precision_interval.low > self.base_rate

    def to_table(self) -> dict[str, object]:
        return {
            "attack": self.attack,
            "party": self.party,
            "value": self.precision,
            "interval": list(self.precision_interval),
            "recall": self.recall,
            "recall_interval": list(self.recall_interval),
            "base_rate": self.base_rate,
            "verdict": "guesses" if self.succeeds else "no better than chance",
        }


def wilson(right: int, tried: int) -> Interval:
    """The 95 % interval of a share; everything where nothing was tried."""
    if not tried:
        return Interval(0.0, 1.0)
    z2, p = CONFIDENCE_Z**2, right / tried
    middle = (p + z2 / (2 * tried)) / (1 + z2 / tried)
    half = CONFIDENCE_Z / (1 + z2 / tried) * math.sqrt(p * (1 - p) / tried + z2 / (4 * tried**2))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True, slots=True, repr=False)
class DriftTruth(Redacted):
    """What was behind the gradients that the orchestrator got, numbered as they came."""

    message: Ints
    user: Ints
    item: Ints
    liked: NDArray[np.bool_]
    """An entry for everything in the blocks of each message."""
    rows: Ints
    """[n, 3]: message, item, and how many people are behind the row, for rows that are not 0."""
    members: Ints
    """Users who interacted at all."""
    n_users: int


# --- the request log -----------------------------------------------------------------------------


class ItemRequest(Protocol):
    """A request, as far as it matters here."""

    @property
    def users(self) -> Ints: ...

    @property
    def items(self) -> Ints: ...


def request_pairs(requests: Iterable[ItemRequest]) -> Ints:
    """Every user and item that a request names together: [n, 2], each pair once, ascending."""
    every = np.zeros(0, dtype=np.int64)
    waiting: list[Ints] = []
    size = 0
    for request in requests:
        waiting.append(_keys(request.users[:, None], request.items).ravel())
        size += len(waiting[-1])
        if size > AT_ONCE:
            every, waiting, size = np.unique(np.concatenate([every, *waiting])), [], 0
    every = np.unique(np.concatenate([every, *waiting]))
    return np.stack([every >> 32, every & 0xFFFFFFFF], axis=1)


def score_pairs(claimed: Ints, truth: Ints, rng: Streams) -> ClaimOutcome:
    """Claimed user–item pairs against those that were. The base rate: the same users and items,
    put together by chance."""
    known = np.unique(_keys(truth[:, 0], truth[:, 1]))
    by_chance = rng.generator().permutation(claimed[:, 1])

    def right(items: Ints) -> int:
        keys = _keys(claimed[:, 0], items)
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return int((known[place] == keys).sum()) if len(known) else 0

    base = right(by_chance) / max(1, len(claimed))
    return ClaimOutcome(
        "request log", "orchestrator", len(claimed), right(claimed[:, 1]), len(known), base
    )


def _keys(users: Ints, items: Ints) -> Ints:
    return (users << 32) | items


# --- cosine --------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """That this user touched the item, and whether she liked it."""

    user: int
    item: int
    liked: bool


def cosine_claims(
    gradients: Gradients, model: DriftModel, step: BlockStep, *, named: bool
) -> list[Claim]:
    """Who touched each item of an update, and with which sign; nothing is claimed of an item where
    no combination of fewer users than a vector has numbers fits, or several do. `model` is the
    orchestrator's own, of the version that the gradients belong to. With `named`, it is told the
    update's users; otherwise it compares with everybody, and looks for combinations among those
    whom it has found alone."""
    if step.ridge != "rows":
        raise DoesNotApply('the attack knows the pull to 0 of ridge="rows" alone')
    users = gradients.users if named else np.flatnonzero(model.users.any(axis=1))
    vectors = model.users[users].astype(np.float64)
    seen = gradients.item_rows.astype(np.float64)
    pull = 2.0 * step.reg * model.items[gradients.items].astype(np.float64)
    allowed = ROUNDING * np.linalg.norm(seen, axis=1)
    claims: list[Claim] = []
    open_items = np.arange(len(seen))
    for k in range(1, vectors.shape[1]):
        if not len(open_items) or len(users) < k or math.comb(len(users), k) > MOST_SUBSETS:
            break
        # An item of k users lies in k blocks, and the ridge counts once for each.
        left = seen[open_items] - k * pull[open_items]
        best, fits = _fit(left, vectors, k, allowed[open_items])
        found: set[int] = set()
        for at in np.flatnonzero(fits).tolist():
            chosen = best[at]
            weights = np.linalg.lstsq(vectors[chosen].T, left[at], rcond=None)[0]
            item = int(gradients.items[open_items[at]])
            for one, weight in zip(chosen.tolist(), weights.tolist(), strict=True):
                claims.append(Claim(int(users[one]), item, weight < 0))
                found.add(one)
        open_items = open_items[~fits]
        if k == 1 and not named:
            chosen_users = np.array(sorted(found), dtype=np.int64)
            users, vectors = users[chosen_users], vectors[chosen_users]
    return claims


def _fit(left: Floats, vectors: Floats, k: int, allowed: Floats) -> tuple[Ints, NDArray[np.bool_]]:
    """For each row, the k vectors that it is nearest to a combination of: [rows, k], and whether
    these and no others come within `allowed` of it."""
    if k == 1:
        subsets = np.arange(len(vectors), dtype=np.int64)[:, None]
        length = np.linalg.norm(vectors, axis=1)
        bases = (vectors / np.where(length > 0, length, 1.0)[:, None])[:, :, None]
    else:
        subsets = np.array(list(combinations(range(len(vectors)), k)), dtype=np.int64)
        bases = np.linalg.qr(np.swapaxes(vectors[subsets], 1, 2))[0]
    # Squares lose half of the digits, so the nearest few are compared again as they are.
    along = np.zeros((len(left), len(subsets)))
    for axis in range(k):
        along += (left @ bases[:, :, axis].T) ** 2
    few = min(3, len(subsets))
    near = _largest(along, few)
    chosen = bases[near]
    inside = np.einsum("nsdk,nsk->nsd", chosen, np.einsum("nsdk,nd->nsk", chosen, left))
    distance = np.linalg.norm(left[:, None, :] - inside, axis=2)
    first = distance.argmin(axis=1)
    best = subsets[near[np.arange(len(left)), first]]
    alone: NDArray[np.bool_] = (distance <= allowed[:, None]).sum(axis=1) == 1
    return best, alone & (np.linalg.norm(left, axis=1) > allowed)


def _largest(values: Floats, few: int) -> Ints:
    """The places of the largest values of each row; overwrites them."""
    rows = np.arange(len(values))
    places = np.empty((len(values), few), dtype=np.int64)
    for k in range(few):
        places[:, k] = values.argmax(axis=1)
        values[rows, places[:, k]] = -1.0
    return places


class Cosine(Redacted):
    """Collects the claims of many updates and what is true of them."""

    def __init__(self, *, named: bool) -> None:
        self.named = named
        self._claimed = self._right = 0
        self._there = self._liked = 0
        self._chance = 0.0
        self._by_user: dict[int, int] = {}

    def take(self, claims: Iterable[Claim], truth: Iterable[Claim], users: int) -> None:
        """Count the claims about one update, which has so many users."""
        known, listed = set(truth), list(claims)
        self._claimed += len(listed)
        self._right += sum(c in known for c in listed)
        self._there += len(known)
        self._liked += sum(c.liked for c in known)
        self._chance += len(known) / users if users else 0.0
        for c in known:
            self._by_user[c.user] = self._by_user.get(c.user, 0) + 1

    def outcome(self) -> ClaimOutcome:
        """User and sign right. The base rate: the sign that is more frequent, and one of the
        update's users, or, where they are not named, the user who is most often there."""
        there = max(1, self._there)
        liked = max(self._liked, self._there - self._liked) / there
        most = max(self._by_user.values(), default=0) / there
        who = self._chance / there if self.named else most
        name = "cosine, users named" if self.named else "cosine, users not named"
        return ClaimOutcome(
            name, "orchestrator", self._claimed, self._right, self._there, liked * who
        )
