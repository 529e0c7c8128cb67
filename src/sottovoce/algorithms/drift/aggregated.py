"""DRIFT with `release = "aggregated"`: owners keep users' vectors, and send sums over many people.

As printed, a request names users and items, and an item's gradient is a multiple of the vector of
the user who touched it. Here the orchestrator holds item rows alone:

- An owner keeps a vector for each of its users, for its own items, and moves it with its own steps.
  All of them start as one and the same public vector, so that nobody can know one without knowing
  what its user did.
- Where owners draw negatives (untouched.py), those for whom an item was merely drawn are in its sum
  and do not count as people behind it.
- An owner always asks for the rows of all its items, and always answers with one row for each of
  them. A row is the sum of the gradients since the item's last row, once `min_users` people are
  behind it; until then it is zeros, and the sum waits at the owner, which works with it meanwhile.
- Owners are served after every `window` interactions, together, or, with window = 0, once at the
  end of an epoch, in turn. Θ has no meaning. Windows tell when an item got its people, to one who
  also watches the users' lines (A7); a whole epoch does not.
- A user asks her owners for her vectors, and ranks with their mean and the published rows. An item
  of which no row has been sent yet counts as an average one.

What a row still tells: how many people touched the item, about, and whether they liked it, in sum.
There is no noise in it, so this is no bound on what somebody who knows all others could find.

`AggregatingOwner` is the definition; `Aggregation` does the same for all owners at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift import blocks as kernels
from sottovoce.algorithms.drift.blocks import (
    Blocks,
    DriftModel,
    Events,
    Ints,
    add_block,
    first_rows,
    gradient,
    move,
    width,
)
from sottovoce.algorithms.drift.messages import Gradients, OwnerTable, RowRequest, Rows
from sottovoce.algorithms.drift.replay import Addressed, plan_windows
from sottovoce.algorithms.drift.system import DRIFTConfig, Owner
from sottovoce.algorithms.drift.untouched import Drawing
from sottovoce.compiled import njit
from sottovoce.core.redacted import Redacted
from sottovoce.errors import CorruptData, Diverged, MessageError, RunError
from sottovoce.rng import Streams

# --- the compiled half ---------------------------------------------------------------------------
# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"


@njit(nogil=True, error_model="numpy", cache=True)
def _touch(slot, user, enough, count, people):
    """Notes that a user touched what is in a slot; nothing is noted beyond `enough` people."""
    n = count[slot]
    if n >= enough:
        return
    for k in range(n):
        if people[slot, k] == user:
            return
    people[slot, n] = user
    count[slot] = n + 1


@njit(nogil=True, error_model="numpy", cache=True)
def work_through(
    vectors, seat, local, rows, base, user, entries, spans, drawn, low, high, rate, ridge, by_pairs,
    scratch, waiting, enough, count, people, pull_user, pull_items, touched, seen, simd_row,
):  # fmt: skip
    """One owner's turn: a step for each of the blocks low..high, on the owner's vectors (`seat` is
    the row of each block's user) and on its own copy of the rows. What is known of item i at this
    owner is in slot base + i. The last drawn[b] negatives of block b were not touched. Returns how
    many items were in the blocks."""
    size = width(vectors, simd_row)
    gradient = np.empty(size, dtype=np.float32)
    items = 0
    for b in range(low, high):
        span, v = spans[b], seat[b]
        for side in range(2):
            for at in range(span[2 * side], span[2 * side + 1]):
                i = entries[at]
                if not seen[i]:
                    seen[i] = True
                    touched[items] = i
                    items += 1
                    for f in range(size):
                        local[i, f] = np.float32(
                            np.float64(rows[i, f]) - rate * waiting[base + i, f]
                        )
                for f in range(size):
                    pull_items[i, f] = 0.0
                if side or at < span[1] - drawn[b]:
                    _touch(base + i, user[b], enough, count, people)
        pull_user[0, :] = 0.0
        add_block(
            vectors, v, local, entries, span, ridge, by_pairs, scratch, pull_user, 0, pull_items,
            simd_row,
        )  # fmt: skip
        for f in range(size):
            gradient[f] = np.float32(pull_user[0, f])
        move(vectors, v, gradient, rate, simd_row)
        for side in range(2):
            for at in range(span[2 * side], span[2 * side + 1]):
                i = entries[at]
                for f in range(size):
                    gradient[f] = np.float32(pull_items[i, f])
                    pull_items[i, f] = 0.0
                    waiting[base + i, f] += np.float64(gradient[f])
                move(local, i, gradient, rate, simd_row)
    return items


@njit(nogil=True, error_model="numpy", cache=True)
def _send(waiting, slot, gradient, count, simd_row):
    """Takes what waits in a slot, in single precision, and empties it."""
    for f in range(width(waiting, simd_row)):
        gradient[f] = np.float32(waiting[slot, f])
        waiting[slot, f] = 0.0
    count[slot] = 0


@njit(nogil=True, error_model="numpy", cache=True)
def learn(
    vectors, rows, user, seat, entries, spans, drawn, updates, rounds, owner, rate, ridge, by_pairs,
    scratch, waiting, enough, count, people, published, simd_row,
):  # fmt: skip
    """An epoch: update k is the turn of owner[k], the updates rounds[r]..rounds[r + 1] start from
    the same rows. Returns how many rows were sent that were not zeros, and notes their items in
    `published`."""
    n_items, size = rows.shape
    local = np.empty_like(rows)
    pull_user, pull_items = np.zeros((1, size)), np.zeros((n_items, size))
    touched, seen = np.empty(n_items, dtype=np.int64), np.zeros(n_items, dtype=np.bool_)
    gradient = np.empty(size, dtype=np.float32)
    most = 0
    for r in range(rounds.shape[0] - 1):
        most = max(most, rounds[r + 1] - rounds[r])
    sent_items = np.empty(most * n_items if most > 1 else 0, dtype=np.int64)
    sent_rows = np.empty((sent_items.shape[0], size), dtype=np.float32)
    total = 0
    for r in range(rounds.shape[0] - 1):
        kept = 0
        alone = rounds[r + 1] - rounds[r] == 1
        for k in range(rounds[r], rounds[r + 1]):
            base = owner[k] * n_items
            items = work_through(
                vectors, seat, local, rows, base, user, entries, spans, drawn, updates[k],
                updates[k + 1], rate, ridge, by_pairs, scratch, waiting, enough, count, people,
                pull_user, pull_items, touched, seen, simd_row,
            )  # fmt: skip
            for t in range(items):
                i = touched[t]
                seen[i] = False
                if count[base + i] < enough:
                    continue
                total += 1
                published[i] = True
                _send(waiting, base + i, gradient, count, simd_row)
                if alone:
                    move(rows, i, gradient, rate, simd_row)
                else:
                    sent_items[kept] = i
                    sent_rows[kept] = gradient
                    kept += 1
        for t in range(kept):
            move(rows, sent_items[t], sent_rows[t], rate, simd_row)
    return total


START = np.float32(0.5)
"""Every number of every vector at the start as printed: the mean of what rows start as. `start` of
the settings says what it is."""
LARGEST_NUMBER = 100.0
"""In a row or a vector, between parties that are apart. Training stays far below it, or runs off to
infinity. Numbers without bounds would let rows be chosen of which overflow tells who is here."""
NOBODY = np.zeros(0, dtype=np.int64)
Row = NDArray[np.float32]


# --- the data owner's half -----------------------------------------------------------------------


@dataclass(slots=True, repr=False)
class Learnt(Redacted):
    """What an owner has learnt and not sent. Private."""

    vectors: dict[int, Row] = field(default_factory=dict)
    waiting: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """By item: the sum of gradients since its last row."""
    people: dict[int, frozenset[int]] = field(default_factory=dict)
    """By item: who touched it and is in that sum, up to as many as it needs."""
    drew: dict[int, set[int]] = field(default_factory=dict)
    """By item: for whom it was drawn and who is in that sum."""

    def copy(self) -> Learnt:
        drew = {item: set(users) for item, users in self.drew.items()}
        return Learnt(dict(self.vectors), dict(self.waiting), dict(self.people), drew)

    def drop(self, items: Iterable[int]) -> None:
        for item in items:
            for known in (self.waiting, self.people, self.drew):
                known.pop(item, None)

    def forget(self, user: int) -> None:
        """With every sum that she is in: she cannot be taken out of it."""
        self.vectors.pop(user, None)
        both: tuple[Mapping[int, Collection[int]], ...] = self.people, self.drew
        self.drop([item for known in both for item, who in known.items() if user in who])


class AggregatingOwner(Owner):
    """An owner that tells nobody about single users. The blocks of a turn are worked through in the
    order of their users, a step for each."""

    def __init__(
        self,
        number: int,
        items: Iterable[int],
        config: DRIFTConfig,
        rng: Streams | None = None,
    ) -> None:
        super().__init__(number, items, config, rng)
        self._kept = Learnt()
        self._staged: Learnt | None = None
        self._asking = False

    @property
    def due(self) -> bool:
        """Where there are windows, after each: when an owner speaks must not say what it holds."""
        return self._config.window > 0

    def vector(self, user: int) -> Row | None:
        """What a user is told who asks for her own vector; nothing where she has no block here."""
        found = self._kept.vectors.get(user)
        return None if found is None else found.copy()

    @property
    def learnt(self) -> Learnt:
        """As of the last update that was settled; for the owner's own disk."""
        return self._kept.copy()

    def take_up(self, learnt: Learnt) -> None:
        """Go on from what `learnt` showed."""
        self._kept = learnt.copy()

    def withheld(self) -> int:
        """Items that wait for more people."""
        return len(self._kept.people)

    def waiting_people(self) -> dict[int, frozenset[int]]:
        """By item: who is in the sum that waits."""
        return dict(self._kept.people)

    def request(self) -> RowRequest:
        """Asks for the rows of all its items, whatever happened."""
        if self._asking:
            raise RunError("the owner waits for the answer to a request; settle that one first")
        super().request()
        self._asking = True
        return self.request_again()

    def request_again(self) -> RowRequest:
        return RowRequest(self.number, NOBODY, self._all_items())

    def gradients(self, rows: Rows) -> Gradients:
        """A row for each of its items; zeros where too few people are behind one."""
        items, size = self._all_items(), self._config.embedding_size
        rows.check(size)
        if not np.array_equal(rows.items, items):
            raise MessageError("the answer lacks rows that were asked for")
        sent = np.zeros((len(items), size), dtype=np.float32)
        self._staged = kept = self._work_through(rows)
        ready = [i for i, who in kept.people.items() if len(who) >= self._config.min_users]
        for item in ready:
            sent[np.searchsorted(items, item)] = kept.waiting[item].astype(np.float32)
        kept.drop(ready)
        none = np.zeros((0, size), dtype=np.float32)
        return Gradients(self.number, rows.version, NOBODY, items, none, sent)

    def settle(self, accepted: bool) -> None:
        if accepted and self._staged is not None:
            self._kept = self._staged
        self._staged, self._asking = None, False
        super().settle(accepted)

    def forget(self, user: int) -> None:
        super().forget(user)
        for kept in (self._kept, self._staged):
            if kept is not None:
                kept.forget(user)

    def withdraw_items(self, items: Iterable[int]) -> None:
        gone = list(items)
        super().withdraw_items(gone)
        for kept in (self._kept, self._staged):
            if kept is not None:
                kept.drop(gone)

    def _all_items(self) -> Ints:
        return np.array(sorted(self._items), dtype=np.int64)

    def _work_through(self, rows: Rows) -> Learnt:
        """The blocks that were asked about, on its own copy of the rows, less what waits."""
        kept, rate = self._kept.copy(), self._config.learning_rate
        place = {item: k for k, item in enumerate(rows.items.tolist())}
        local = rows.item_rows.copy()
        for item, sum_ in kept.waiting.items():
            local[place[item]] = (local[place[item]].astype(np.float64) - rate * sum_).astype(
                np.float32
            )
        start = np.full(local.shape[1], self._config.start)
        for user, block in self._asked:
            own = np.array(sorted({*block.lower, *block.positives}), dtype=np.int64)
            at = np.array([place[item] for item in own.tolist()], dtype=np.int64)
            vector = kept.vectors.get(user, start)[None].copy()
            entries = np.searchsorted(own, np.array(block.lower + block.positives))
            a, b = len(block.lower), len(entries)
            one = Blocks.one_by_one(
                np.zeros(1, np.int64), np.array([[0, a, a, b]]), entries.astype(np.int32)
            )
            by_user, by_item = gradient(DriftModel(vector, local[at]), one, self._config.step())
            pulls = by_item.astype(np.float32)
            kernels.move_rows(vector, np.zeros(1, np.int64), by_user.astype(np.float32), rate)
            kernels.move_rows(local, at, pulls, rate)
            kept.vectors[user] = vector[0]
            drawn = set(block.drawn)
            for item, pull in zip(own.tolist(), pulls.astype(np.float64), strict=True):
                kept.waiting[item] = kept.waiting.get(item, 0.0) + pull
                if item in drawn:
                    kept.drew.setdefault(item, set()).add(user)
                    continue
                people = kept.people.get(item, frozenset())
                if len(people) < self._config.min_users:  # that is all that is asked of it
                    kept.people[item] = people | {user}
        return kept


def owner_of(
    number: int, items: Iterable[int], config: DRIFTConfig, rng: Streams | None = None
) -> Owner:
    """An owner of the kind that the settings ask for."""
    kind = AggregatingOwner if config.sums_over_people else Owner
    return kind(number, items, config, rng)


def in_turn(config: DRIFTConfig) -> bool:
    """Whether the owners of a round are served one after the other, each with the rows that the one
    before it has moved."""
    return config.sums_over_people and not config.window


# --- the user's half -----------------------------------------------------------------------------


def own_vector(given: Sequence[Row], size: int, start: np.float32 = START) -> Row:
    """What a user ranks with: the mean of what her owners gave her, in their order."""
    if not given:
        return np.full(size, start)
    total = np.zeros(size)
    for row in given:
        total += row
    return (total / len(given)).astype(np.float32)


def ranked_rows(rows: Row, sent: NDArray[np.bool_]) -> Row:
    """The published rows, with the average one for items of which none was sent."""
    if sent.all() or not sent.any():
        return rows
    average = rows[sent].mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.where(sent[:, None], rows, average)


# --- all owners at once --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class AggregatedPlan(Redacted):
    """An epoch of a fixed federation. Private."""

    blocks: Blocks
    """Update k is an owner's turn; in it there is a step for each block."""
    owner: Ints
    """Of each update, as the table counts them."""
    owners: int

    @classmethod
    def of(
        cls,
        events: Events,
        table: OwnerTable,
        window: int,
        told: Addressed | None = None,
        drawing: Drawing | None = None,
    ) -> AggregatedPlan:
        every = window or max(1, len(events))
        found, owner = plan_windows(events, table, 1, every, told, drawing)
        if not window:  # in turn
            found = replace(found, rounds=None)
        return cls(found, owner, len(table.all_owners()))

    def owner_of_blocks(self) -> Ints:
        return np.repeat(self.owner, np.diff(self.blocks.updates))

    def people(self, n_items: int) -> Ints:
        """[owners, items]: how many people touch an item at an owner, in blocks of an epoch."""
        a, b, _, d = self.blocks.spans.T  # without gaps in a plan
        place, drawn = np.arange(len(self.blocks.entries)), _drawn(self.blocks)
        touched = (place < np.repeat(b - drawn, d - a)) | (place >= np.repeat(b, d - a))
        slot = np.repeat(self.owner_of_blocks(), d - a) * n_items + self.blocks.entries
        users = np.repeat(self.blocks.user, d - a)
        slot, users = slot[touched], users[touched]
        several = int(users.max(initial=0)) + 1
        pairs = np.unique(slot * several + users) // several
        counts: Ints = np.bincount(pairs, minlength=self.owners * n_items)
        return counts.reshape(self.owners, n_items)


def _drawn(blocks: Blocks) -> Ints:
    return np.zeros(len(blocks), dtype=np.int64) if blocks.drawn is None else blocks.drawn


def _seats_of(plan: AggregatedPlan) -> Ints:
    """Of each block: her vector at its owner, as one number."""
    return plan.blocks.user * plan.owners + plan.owner_of_blocks()


class Aggregation(Redacted):
    """All owners and the orchestrator's rows, at full speed: bit for bit what `AggregatingOwner`
    and `Orchestrator` come to by messages. `first` is the plan of the first epoch, where it is
    another one."""

    def __init__(
        self,
        plan: AggregatedPlan,
        config: DRIFTConfig,
        n_users: int,
        n_items: int,
        rng: Streams,
        first: AggregatedPlan | None = None,
    ) -> None:
        size, slots = config.embedding_size, plan.owners * n_items
        self._plan, self._config, self._n_users = plan, config, n_users
        self._first = first
        self.rows = first_rows("items", range(n_items), size, rng, config.spread)
        every = [_seats_of(p) for p in (plan, first) if p is not None]
        self._seats = np.unique(np.concatenate(every))
        self.vectors = np.full((len(self._seats), size), config.start)
        """Of every user at every owner where she has a block, by user, then owner."""
        self._waiting = np.zeros((slots, size))
        self._count = np.zeros(slots, dtype=np.int64)
        self._people = np.zeros((slots, config.min_users), dtype=np.int32)
        self.sent = np.zeros(n_items, dtype=bool)
        """Items of which a row was sent."""

    def epoch(self) -> int:
        """Goes through it once; how many rows were sent that were not zeros."""
        plan, config = self._first or self._plan, self._config
        blocks, self._first = plan.blocks, None
        seat = np.searchsorted(self._seats, _seats_of(plan))
        rounds = np.arange(blocks.steps + 1) if blocks.rounds is None else blocks.rounds
        longest = int((blocks.spans[:, 1] - blocks.spans[:, 0]).max(initial=1))
        size = config.embedding_size
        sent = learn(
            self.vectors, self.rows, blocks.user, seat, blocks.entries, blocks.spans,
            _drawn(blocks), blocks.updates, rounds, plan.owner, config.learning_rate, config.reg,
            config.ridge == "pairs", np.empty((2, longest)), self._waiting, config.min_users,
            self._count, self._people, self.sent, (0,) * size if size <= 16 else None,
        )  # fmt: skip
        if not np.isfinite(self.rows).all() or not np.isfinite(self.vectors).all():
            raise Diverged("the model ran off to infinity; lower learning_rate")
        return int(sent)

    def state(self) -> dict[str, NDArray[Any]]:
        """All that epochs change. Private."""
        # Where nobody waits there is nothing, unless it was drawn for somebody.
        slots = np.flatnonzero((self._count > 0) | self._waiting.any(axis=1))
        return {
            "rows": self.rows,
            "vectors": self.vectors,
            "sent": self.sent,
            "slots": slots,
            "waiting": self._waiting[slots],
            "count": self._count[slots],
            "people": self._people[slots],
        }

    def take_up(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` showed of the same plan."""
        try:
            slots = state["slots"]
            self.rows[:], self.vectors[:] = state["rows"], state["vectors"]
            self.sent[:], self._waiting[slots] = state["sent"], state["waiting"]
            self._count[slots], self._people[slots] = state["count"], state["people"]
            self._first = None
        except (KeyError, ValueError, IndexError):
            raise CorruptData("what was kept of the owners is not of this federation") from None

    def withheld(self) -> int:
        """Rows that wait for more people."""
        return int((self._count > 0).sum())

    def model(self) -> DriftModel:
        """What users rank with: each her own mean, and the rows as `ranked_rows` has them."""
        user, size = self._seats // self._plan.owners, self._config.embedding_size
        counts = np.bincount(user, minlength=self._n_users)
        columns = [np.bincount(user, self.vectors[:, f], self._n_users) for f in range(size)]
        vectors = (np.stack(columns, axis=1) / np.maximum(counts, 1)[:, None]).astype(np.float32)
        vectors[counts == 0] = self._config.start
        return DriftModel(vectors, ranked_rows(self.rows, self.sent))
