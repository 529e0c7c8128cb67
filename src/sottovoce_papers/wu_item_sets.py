"""A11: what FedGNN's server, and its third party, can guess about which items a user has.

An upload (`wu_system.py`) names a user's items among pseudo items, with a row of numbers each.
Three attacks of an honest but curious server:

- `by_recurrence`: her items come again in each of her uploads, pseudo items that are drawn anew do
  not. Against pseudo items that are drawn once per device it claims everything, and is right as
  often as a guess. (A new item of hers still shows, as one that was not there before.)
- `by_popularity`: pseudo items are drawn from all alike, so that what many users send is likely to
  be somebody's own. It needs no second upload and works against either kind.
- `by_direction`: slopes of the pairs of a user lie along one line, that of her representation; of
  items of hers they point one way, of the negatives the other, and Gaussian ones anywhere. Rows of
  several uploads are averaged, so that the printed noise hides most in a handful of uploads and
  little in dozens.

And one of the third party: `by_frequency` names the tokens of popular items.

How many items of a device are her own the server knows without any attack: all but as many as there
are pseudo items. The last three attacks claim so many. Base rate: the share of her own items among
those that she sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.drift import ClaimOutcome
from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError
from sottovoce_papers.wu_system import Uploads

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SHARPNESS = 16
"""The power of cosines by which the line that most rows lie along is found."""


# --- what is seen --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Sight:
    """What the server knows of one sender after some rounds."""

    user: int
    uploads: int
    sent: int
    """Items per upload."""
    items: Ints
    """Every item that she has sent, ascending."""
    times: Ints
    """In how many uploads each was."""
    rows: Floats
    """[items, d]: the mean of an item's rows."""

    def __repr__(self) -> str:
        return f"<Sight of {self.uploads:,} uploads, redacted>"

    def own(self, pseudo_items: int) -> int:
        """How many of the items sent are her own, as the number of pseudo items is public."""
        return max(1, self.sent - pseudo_items)


def sights(rounds: Iterable[Uploads]) -> list[Sight]:
    """What the server has seen, sender by sender."""
    listed = list(rounds)
    if not listed:
        return []
    there = [uploads.items >= 0 for uploads in listed]
    user = np.concatenate(
        [np.repeat(u.users, kept.sum(axis=1)) for u, kept in zip(listed, there, strict=True)]
    )
    item = np.concatenate([u.items[kept] for u, kept in zip(listed, there, strict=True)])
    row = np.concatenate([u.rows[kept] for u, kept in zip(listed, there, strict=True)])
    senders, uploads = np.unique(np.concatenate([u.users for u in listed]), return_counts=True)
    order = np.lexsort((item, user))
    edges = np.searchsorted(user[order], senders)
    found = []
    for sender, taken, mine in zip(senders, uploads, np.split(order, edges[1:]), strict=True):
        items, first, times = np.unique(item[mine], return_index=True, return_counts=True)
        sums = np.add.reduceat(row[mine].astype(np.float64), first, axis=0)
        rows = sums / times[:, None]
        found.append(Sight(int(sender), int(taken), len(mine) // int(taken), items, times, rows))
    return found


@dataclass(frozen=True, slots=True, repr=False)
class ItemClaims:
    """That these users have these items."""

    attack: str
    users: Ints
    items: Ints

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<ItemClaims {self.attack}, {len(self):,}, redacted>"


def score(claims: ItemClaims, seen: Sequence[Sight], own: Interactions) -> ClaimOutcome:
    """Claims against the truth: the items of users that are in uploads, a row for every user."""
    if any(not 0 <= sight.user < own.n_users for sight in seen):
        raise DataError("there must be a row of items for every sender")
    there = sum(len(own.row(sight.user)) for sight in seen)
    sent = sum(sight.sent for sight in seen)
    known = own.users * own.n_items + own.items
    right = int(np.isin(claims.users * own.n_items + claims.items, known).sum())
    base = there / sent if sent else 0.0
    return ClaimOutcome(claims.attack, "server", len(claims), right, there, base)


# --- the server ----------------------------------------------------------------------------------


def by_recurrence(seen: Sequence[Sight]) -> ItemClaims:
    """What was in all of a sender's uploads. Of one who sent a single time nothing is claimed."""
    again = [sight for sight in seen if sight.uploads > 1]
    return _claims("recurrence", again, [s.items[s.times == s.uploads] for s in again])


def by_popularity(seen: Sequence[Sight], pseudo_items: int) -> ItemClaims:
    """Of each sender's items, those that are most often in anybody's uploads, as many as are her
    own."""
    if not seen:
        return _claims("popularity", [], [])
    items = np.concatenate([sight.items for sight in seen])
    often = np.bincount(items, np.concatenate([sight.times / sight.uploads for sight in seen]))
    return _claims(
        "popularity", seen, [_top(s.items, often[s.items], s.own(pseudo_items)) for s in seen]
    )


def by_direction(seen: Sequence[Sight], pseudo_items: int) -> ItemClaims:
    """Of what was in all of a sender's uploads, the items whose rows lie along the line that most
    rows lie along, as many as are her own, at the end where they are longer: an item of hers is in
    a pair of every upload, another one now and then. From a single upload the line can be found,
    but hardly its end."""
    chosen = []
    for sight in seen:
        again = sight.times == sight.uploads
        rows = sight.rows[again]
        length = np.linalg.norm(rows, axis=1)
        units = rows / np.where(length > 0, length, 1.0)[:, None]
        along = units @ _line(units)
        places = np.arange(len(along))
        ends = [_top(places, sign * along, sight.own(pseudo_items)) for sign in (1, -1)]
        far = [np.abs(along[end] * length[end]).sum() for end in ends]
        chosen.append(sight.items[again][ends[int(np.argmax(far))]])
    return _claims("direction", seen, chosen)


def _line(units: Floats) -> Floats:
    """The direction, up to its sign, that most of these lie along or against."""
    near = np.abs(units @ units.T) ** SHARPNESS
    weights = near[near.sum(axis=1).argmax()]
    direction: Floats = np.linalg.eigh((units * weights[:, None]).T @ units)[1][:, -1]
    return direction


def _top(items: Ints, values: NDArray[np.number], count: int) -> Ints:
    return items[np.argsort(-values, kind="stable")[:count]]


def _claims(attack: str, seen: Sequence[Sight], items: Sequence[Ints]) -> ItemClaims:
    users = [np.full(len(chosen), sight.user) for sight, chosen in zip(seen, items, strict=True)]
    none = np.zeros(0, dtype=np.int64)
    return ItemClaims(attack, np.concatenate([none, *users]), np.concatenate([none, *items]))


# --- the third party -----------------------------------------------------------------------------


def by_frequency(
    tokens: NDArray[np.uint64], counts: Ints, popularity: NDArray[np.number], top: int
) -> tuple[NDArray[np.uint64], Ints]:
    """Tokens of the most frequent items and which items it takes them for: the most frequent token
    is the most popular item's, and so on. `popularity` of every item is public, or known from other
    users; its scale does not matter."""
    if tokens.shape != counts.shape:
        raise DataError("every token needs a count")
    top = min(top, len(tokens), len(popularity))
    frequent = np.argsort(-counts, kind="stable")[:top]
    return tokens[frequent], np.argsort(-popularity, kind="stable")[:top]


def score_names(tokens: NDArray[np.uint64], items: Ints, truth: NDArray[np.uint64]) -> ClaimOutcome:
    """Named tokens against the truth, the token of each item."""
    right = int((truth[items] == tokens).sum())
    return ClaimOutcome("frequency", "third party", len(items), right, len(items), 1.0 / len(truth))
