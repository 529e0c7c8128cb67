"""Blocks of interactions, as SAROS and DRIFT cut a stream, and the step that is taken on them.

A block is a run η of negatives and the run Π of positives behind it. It ends when a negative
follows positives, or with the stream. Positives before the first negative are in no block, and a
run of negatives that no positive follows is none. (Where owners draw negatives, too, blocks are
those of untouched.py.) What a block loses:

    1/(|η||Π|) Σ_p Σ_n ln(1 + exp(−v·(ψ_p − ψ_n))) + μ(|v|² + Σ_p |ψ_p|² + Σ_n |ψ_n|²)

over the positives p and the negatives n; with `ridge="pairs"` the last two sums are means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.rows import prefetch
from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import Streams

# --- the gradient of a block's loss, and the loops around it -------------------------------------
# Gradients are added up in double precision in the order of the blocks, rounded once to single
# precision, as they travel, and then subtracted. So a row moves by the same bits whether a loop
# here moves it or a data owner and the orchestrator do so by messages.

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"


AHEAD = 8
"""Blocks before its turn a user's row is fetched: rows of many users are in no near cache."""


@njit(nogil=True, error_model="numpy", cache=True)
def width(table, simd_row):
    """The length of a row. If there is a `simd_row`, a tuple as long as a row, it is known when the
    kernel is compiled, and loops of a few steps cost half as much."""
    if simd_row is None:
        return table.shape[1]
    return len(simd_row)


@njit(nogil=True, error_model="numpy", cache=True)
def score(vectors, u, rows, i, simd_row):
    total = 0.0
    for f in range(width(vectors, simd_row)):
        total += np.float64(vectors[u, f]) * np.float64(rows[i, f])
    return total


@njit(nogil=True, error_model="numpy", cache=True)
def add_block(
    vectors, u, rows, entries, span, ridge, by_pairs, scratch, pull_user, own, pull_items, simd_row
):  # fmt: skip
    """Adds the gradient of one block's loss to row `own` of `pull_user` and to the rows of the
    block's items in `pull_items`. `scratch` is [2, the longest η]."""
    n_neg, n_pos = span[1] - span[0], span[3] - span[2]
    decay_neg = 2.0 * ridge / n_neg if by_pairs else 2.0 * ridge
    decay_pos = 2.0 * ridge / n_pos if by_pairs else 2.0 * ridge
    weight = 1.0 / (n_neg * n_pos)
    size = width(vectors, simd_row)
    for k in range(n_neg):
        scratch[0, k] = score(vectors, u, rows, entries[span[0] + k], simd_row)
        scratch[1, k] = 0.0
    for f in range(size):
        pull_user[own, f] += 2.0 * ridge * np.float64(vectors[u, f])
    for at in range(span[2], span[3]):
        p = entries[at]
        high = score(vectors, u, rows, p, simd_row)
        push = 0.0
        for k in range(n_neg):
            e = weight / (1.0 + math.exp(high - scratch[0, k]))
            push += e
            scratch[1, k] += e
        for f in range(size):
            v, q = np.float64(vectors[u, f]), np.float64(rows[p, f])
            pull_items[p, f] += decay_pos * q - push * v
            pull_user[own, f] -= push * q
    for k in range(n_neg):
        n = entries[span[0] + k]
        pull = scratch[1, k]
        for f in range(size):
            v, q = np.float64(vectors[u, f]), np.float64(rows[n, f])
            pull_items[n, f] += decay_neg * q + pull * v
            pull_user[own, f] += pull * q


@njit(nogil=True, error_model="numpy", cache=True)
def add_blocks(
    vectors, user, rows, entries, spans, ridge, by_pairs, scratch, pull_user, pull_items, simd_row
):  # fmt: skip
    """`add_block` for some blocks, one after the other; `pull_user` has a row for every user."""
    for k in range(spans.shape[0]):
        add_block(
            vectors, user[k], rows, entries, spans[k], ridge, by_pairs, scratch, pull_user,
            user[k], pull_items, simd_row,
        )  # fmt: skip


@njit(nogil=True, error_model="numpy", cache=True)
def move(table, row, gradient, rate, simd_row):
    """row −= rate · gradient, where the gradient has been rounded to single precision."""
    for f in range(width(table, simd_row)):
        table[row, f] = np.float32(np.float64(table[row, f]) - rate * np.float64(gradient[f]))


@njit(nogil=True, error_model="numpy", cache=True)
def move_rows(table, row, gradient, rate, simd_row=None):
    """`move` for one row after the other."""
    for k in range(row.shape[0]):
        move(table, row[k], gradient[k], rate, simd_row)


@njit(nogil=True, error_model="numpy", cache=True)
def _take(touched, count, seen, row):
    """Notes a row that the present round has not met; how many it has met."""
    if seen[row]:
        return count
    seen[row] = True
    touched[count] = row
    return count + 1


@njit(nogil=True, error_model="numpy", cache=True)
def _apply(table, pull, touched, count, seen, rate, gradient, simd_row):
    """Moves the touched rows and leaves `pull` and `seen` as zeros."""
    for t in range(count):
        row = touched[t]
        for f in range(width(table, simd_row)):
            gradient[f] = np.float32(pull[row, f])
            pull[row, f] = 0.0
        seen[row] = False
        move(table, row, gradient, rate, simd_row)


@njit(nogil=True, error_model="numpy", cache=True)
def _add_update(
    vectors, rows, user, entries, spans, low, high, ridge, by_pairs, scratch, who, pull_user,
    pull_items, touched, seen, simd_row,
):  # fmt: skip
    """The gradients of the blocks low..high, added up; how many users and items they touch. Users
    need no table of everybody: their gradients are the first rows of `pull_user`, and `who` has
    their numbers. Nobody is looked up there as long as the blocks are in the order of users."""
    users = items = 0
    ascending = True
    for k in range(low, high):
        span, own = spans[k], users
        if users and user[k] == who[users - 1]:
            own = users - 1
        elif users and (user[k] < who[users - 1] or not ascending):
            ascending, own = False, 0
            while own < users and who[own] != user[k]:
                own += 1
        if own == users:
            who[users] = user[k]
            for f in range(width(vectors, simd_row)):
                pull_user[users, f] = 0.0
            users += 1
        add_block(
            vectors, user[k], rows, entries, span, ridge, by_pairs, scratch, pull_user, own,
            pull_items, simd_row,
        )  # fmt: skip
        for at in range(span[0], span[1]):
            items = _take(touched, items, seen, entries[at])
        for at in range(span[2], span[3]):
            items = _take(touched, items, seen, entries[at])
    return users, items


@njit(nogil=True, error_model="numpy", cache=True)
def _widest(edges):
    """The most that lies between two edges."""
    most = 0
    for k in range(edges.shape[0] - 1):
        most = max(most, edges[k + 1] - edges[k])
    return most


@njit(nogil=True, error_model="numpy", cache=True)
def learn_loop(
    vectors, rows, user, entries, spans, updates, rate, ridge, by_pairs, scratch, pull_items,
    seen, simd_row,
):  # fmt: skip
    """Update k takes one step on the blocks updates[k]..updates[k + 1], all at the rows as they
    were before it. Returns how many rows were moved, of users and of items. `pull_items` and
    `seen` are zeros and are left so."""
    size, widest = width(vectors, simd_row), _widest(updates)
    who = np.empty(widest, dtype=np.int64)
    pull_user = np.empty((widest, size))
    touched = np.empty(rows.shape[0], dtype=np.int64)
    gradient = np.empty(size, dtype=np.float32)
    moved_users = moved_items = 0
    for k in range(updates.shape[0] - 1):
        for block in range(updates[k] + AHEAD, min(updates[k + 1] + AHEAD, user.shape[0])):
            prefetch(vectors, user[block], 1)
        users, items = _add_update(
            vectors, rows, user, entries, spans, updates[k], updates[k + 1], ridge, by_pairs,
            scratch, who, pull_user, pull_items, touched, seen, simd_row,
        )  # fmt: skip
        for t in range(users):
            for f in range(size):
                gradient[f] = np.float32(pull_user[t, f])
            move(vectors, who[t], gradient, rate, simd_row)
        _apply(rows, pull_items, touched, items, seen, rate, gradient, simd_row)
        moved_users += users
        moved_items += items
    return moved_users, moved_items


@njit(nogil=True, error_model="numpy", cache=True)
def _keep(pull, touched, count, seen, numbers, gradients, at, simd_row):
    """Writes the touched rows' gradients down from place `at` on, and leaves `pull` and `seen` as
    zeros."""
    for t in range(count):
        row = touched[t]
        numbers[at + t] = row
        for f in range(width(pull, simd_row)):
            gradients[at + t, f] = np.float32(pull[row, f])
            pull[row, f] = 0.0
        seen[row] = False


@njit(nogil=True, error_model="numpy", cache=True)
def learn_together(
    vectors, rows, user, entries, spans, updates, rounds, rate, ridge, by_pairs, scratch,
    pull_items, seen, simd_row,
):  # fmt: skip
    """As `learn`, but the updates rounds[r]..rounds[r + 1] all start from the same rows; then they
    are applied, one after the other."""
    most_blocks = most_entries = 0
    for r in range(rounds.shape[0] - 1):
        low, high = updates[rounds[r]], updates[rounds[r + 1]]
        found = 0
        for k in range(low, high):
            found += spans[k, 1] - spans[k, 0] + spans[k, 3] - spans[k, 2]
        most_blocks, most_entries = max(most_blocks, high - low), max(most_entries, found)
    size, widest = width(vectors, simd_row), _widest(updates)
    who = np.empty(widest, dtype=np.int64)
    pull_user = np.empty((widest, size))
    user_rows = np.empty(most_blocks, dtype=np.int64)
    user_pull = np.empty((most_blocks, size), dtype=np.float32)
    item_rows = np.empty(most_entries, dtype=np.int64)
    item_pull = np.empty((most_entries, size), dtype=np.float32)
    touched = np.empty(rows.shape[0], dtype=np.int64)
    moved_users = moved_items = 0
    for r in range(rounds.shape[0] - 1):
        users = items = 0
        for k in range(rounds[r], rounds[r + 1]):
            more_users, more_items = _add_update(
                vectors, rows, user, entries, spans, updates[k], updates[k + 1], ridge, by_pairs,
                scratch, who, pull_user, pull_items, touched, seen, simd_row,
            )  # fmt: skip
            for t in range(more_users):
                user_rows[users + t] = who[t]
                for f in range(size):
                    user_pull[users + t, f] = np.float32(pull_user[t, f])
            _keep(pull_items, touched, more_items, seen, item_rows, item_pull, items, simd_row)
            users += more_users
            items += more_items
        move_rows(vectors, user_rows[:users], user_pull, rate, simd_row)
        move_rows(rows, item_rows[:items], item_pull, rate, simd_row)
        moved_users += users
        moved_items += items
    return moved_users, moved_items


@njit(nogil=True, error_model="numpy", cache=True)
def momentum_loop(
    vectors, rows, user, entries, spans, rate, momentum, ridge, by_pairs, scratch, pull_items,
    seen_item, simd_row,
):  # fmt: skip
    """A step per block along m ← momentum·m + (1 − momentum)·gradient, for the user's row and every
    item of the user's blocks so far; m starts at 0 with each user. The blocks of a user stand
    together. `pull_items` and `seen_item` are zeros and are left so."""
    size = width(vectors, simd_row)
    touched = np.empty(rows.shape[0], dtype=np.int64)
    speed = np.zeros(rows.shape, dtype=np.float32)
    own, pull_user = np.zeros(size, dtype=np.float32), np.zeros((1, size))
    keep, fresh = np.float32(momentum), np.float32(1.0 - momentum)
    items = 0
    for k in range(spans.shape[0]):
        u, span = user[k], spans[k]
        add_block(
            vectors, u, rows, entries, span, ridge, by_pairs, scratch, pull_user, 0, pull_items,
            simd_row,
        )  # fmt: skip
        for at in range(span[0], span[1]):
            items = _take(touched, items, seen_item, entries[at])
        for at in range(span[2], span[3]):
            items = _take(touched, items, seen_item, entries[at])
        for f in range(size):
            own[f] = keep * own[f] + fresh * np.float32(pull_user[0, f])
            pull_user[0, f] = 0.0
        move(vectors, u, own, rate, simd_row)
        for t in range(items):
            i = touched[t]
            for f in range(size):
                speed[i, f] = keep * speed[i, f] + fresh * np.float32(pull_items[i, f])
                pull_items[i, f] = 0.0
            move(rows, i, speed[i], rate, simd_row)
        if k + 1 == spans.shape[0] or user[k + 1] != u:
            own[:] = 0.0
            for t in range(items):
                speed[touched[t]] = 0.0
                seen_item[touched[t]] = False
            items = 0


@njit(nogil=True, error_model="numpy", cache=True)
def loss_loop(vectors, rows, user, entries, spans, out, simd_row):
    """The ranking loss of every block, without the ridge."""
    for k in range(spans.shape[0]):
        span, u, total = spans[k], user[k], 0.0
        for p in range(span[2], span[3]):
            high = score(vectors, u, rows, entries[p], simd_row)
            for n in range(span[0], span[1]):
                w = high - score(vectors, u, rows, entries[n], simd_row)
                # ln(1 + e^−w) without a power that could overflow.
                total += max(-w, 0.0) + math.log1p(math.exp(-abs(w)))
        out[k] = total / ((span[1] - span[0]) * (span[3] - span[2]))


USER, OWNER, END, BEGIN, NEGATIVES, POSITIVES, DRAWN = range(7)
"""What a plan notes of a block: its end, where it begins in the entries, how long its sides are,
and, where owners draw, how many of the negatives were drawn."""
Order = Literal["user", "time"]
"""How a table is replayed: user by user, or everybody's events as time goes."""
Ridge = Literal["rows", "pairs"]
"""The pull to 0: once for every row of a block, or averaged over its pairs."""
Negatives = Literal["touched", "untouched"]
"""What a positive is compared with: what she touched and did not like, as printed, or also items
that she has not touched (untouched.py)."""
Release = Literal["printed", "aggregated"]
"""What owners tell the orchestrator: each block's rows, or sums over many users."""
Ints = NDArray[np.int64]


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Events(Redacted):
    """Interactions in the order in which they are replayed. Private."""

    user: Ints
    item: NDArray[np.int32]
    positive: NDArray[np.bool_]
    time: Ints
    order: Order

    def __len__(self) -> int:
        return len(self.user)

    @classmethod
    def of(cls, table: Interactions, positive_from: float | None, order: Order) -> Events:
        """A table's entries; those rated `positive_from` or better are positive, or all of them. By
        (user, time, item), or by (time, user, item)."""
        rated = table.ratings is not None or positive_from is None
        if not rated or table.timestamps is None:
            raise DataError(
                "blocks are cut from ratings in the order of time; this table lacks "
                + ("ratings" if table.timestamps is not None else "time stamps")
            )
        user, time = table.users, table.timestamps
        if order not in ("user", "time"):
            raise ConfigError(f'order must be "user" or "time", not {order!r}')
        # Entries are stored by (user, item), which settles ties.
        at = np.lexsort((time, user)) if order == "user" else np.argsort(time, kind="stable")
        positive = np.ones(len(at), dtype=bool)
        if positive_from is not None and table.ratings is not None:
            positive = table.ratings[at] >= positive_from
        return cls(user[at], table.items[at], positive, time[at], order)


# --- one event at a time -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class EndedBlock(Redacted):
    """A block that has ended: at least one negative and one positive, each in their order."""

    negatives: tuple[int, ...]
    positives: tuple[int, ...]
    drawn: tuple[int, ...] = ()
    """Further negatives, which she has not touched (untouched.py)."""

    @property
    def lower(self) -> tuple[int, ...]:
        """All that the positives are compared with."""
        return self.negatives + self.drawn

    def without(self, items: frozenset[int]) -> EndedBlock | None:
        """The block less these items; nothing where a side would be empty."""
        sides = self.negatives, self.positives, self.drawn
        left = EndedBlock(*(tuple(i for i in side if i not in items) for side in sides))
        return left if left.lower and left.positives else None


@dataclass(slots=True, repr=False)
class OpenBlock(Redacted):
    """The block of a stream that is still being filled."""

    negatives: list[int] = field(default_factory=list)
    positives: list[int] = field(default_factory=list)

    def add(self, item: int, positive: bool) -> EndedBlock | None:
        """Takes the next event of the stream; the block that it ends, if it ends one."""
        if positive:
            if self.negatives:
                self.positives.append(item)
            return None
        ended = self.end()
        self.negatives.append(item)
        return ended

    def end(self) -> EndedBlock | None:
        """Ends the block where it has both sides; a run of negatives alone stays open."""
        if not self.positives:
            return None
        ended = EndedBlock(tuple(self.negatives), tuple(self.positives))
        self.negatives, self.positives = [], []
        return ended

    def remove(self, items: frozenset[int]) -> None:
        """Takes these items out. Positives that lose their last negative go with it."""
        self.negatives = [i for i in self.negatives if i not in items]
        self.positives = [i for i in self.positives if i not in items and self.negatives]


# --- whole streams -------------------------------------------------------------------------------


class Cuts(NamedTuple):
    """Where streams are cut. Negatives are `start..middle`, positives `middle..stop`. The last cut
    of a stream may be open: not `ended`, and perhaps without positives."""

    start: Ints
    middle: Ints
    stop: Ints
    ended: NDArray[np.bool_]


def cut(stream: Ints, positive: NDArray[np.bool_]) -> Cuts:
    """Cuts many streams at once; the entries of a stream stand together, in their order. The same
    blocks as an `OpenBlock` gives for each stream."""
    n = len(stream)
    if n == 0:
        none = np.zeros(0, dtype=np.int64)
        return Cuts(none, none, none, np.zeros(0, dtype=bool))
    first = np.r_[True, stream[1:] != stream[:-1]]
    after_positive = np.r_[False, positive[:-1]]
    start = np.flatnonzero(~positive & (first | after_positive))
    edges = np.r_[np.flatnonzero(first), n]
    end = edges[np.searchsorted(edges, start, side="right")]
    following = np.r_[start[1:], n]
    ended = following < end
    stop = np.where(ended, following, end)
    negatives = np.r_[0, np.cumsum(~positive)]
    middle = start + negatives[stop] - negatives[start]
    return Cuts(start, middle, stop, ended)


@dataclass(frozen=True, slots=True, repr=False)
class Blocks(Redacted):
    """Finished blocks, and the order in which they are learnt from. Private."""

    user: Ints
    spans: Ints
    """[n, 4]: the negatives are entries[a:b], the positives entries[c:d]."""
    entries: NDArray[np.int32]
    """Item numbers."""
    updates: Ints
    """Update k is one step on the blocks updates[k]..updates[k + 1], at once."""
    rounds: Ints | None = None
    """The updates rounds[r]..rounds[r + 1] all start from the same rows, and are then applied in
    their order. None where every update starts from what the one before it left."""
    drawn: Ints | None = None
    """How many of a block's negatives its user has not touched; they are the last ones. None where
    all were touched."""

    def __post_init__(self) -> None:
        # The kernels check nothing.
        a, b, c, d = self.spans.T
        inside = (a >= 0) & (a < b) & (b <= len(self.entries)) & (c >= 0) & (c < d)
        if len(self.spans) != len(self.user) or not (inside & (d <= len(self.entries))).all():
            raise DataError("every block needs a user, negatives and positives")
        _check_edges(self.updates, len(self.user), "updates must take every block")
        if self.rounds is not None:
            _check_edges(self.rounds, self.steps, "rounds must take every update")

    def __len__(self) -> int:
        return len(self.user)

    @property
    def steps(self) -> int:
        """Updates, each of which is one step."""
        return len(self.updates) - 1

    @classmethod
    def one_by_one(cls, user: Ints, spans: Ints, entries: NDArray[np.int32]) -> Blocks:
        """An update for every block."""
        return cls(user, spans, entries, np.arange(len(user) + 1, dtype=np.int64))

    @classmethod
    def of_users(cls, events: Events) -> Blocks:
        """Every user's blocks in turn, one by one; the end of a stream ends its last block."""
        if events.order != "user":
            raise ConfigError("blocks are cut user by user from events in the order of users")
        start, middle, stop, _ = cut(events.user, events.positive)
        whole = middle < stop
        spans = np.stack([start, middle, middle, stop], axis=1)[whole]
        return cls.one_by_one(events.user[start[whole]], spans, events.item.copy())

    def take(self, chosen: Ints) -> Blocks:
        """These blocks, one by one."""
        return Blocks.one_by_one(self.user[chosen], self.spans[chosen], self.entries)


def _check_edges(edges: Ints, n: int, what: str) -> None:
    whole = len(edges) and (edges[0], edges[-1]) == (0, n)
    if not whole or (np.diff(edges) < 0).any():
        raise DataError(f"{what} once, in order")


# --- learning ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockStep:
    """row ← row − learning_rate · gradient of the blocks' losses."""

    learning_rate: float = 0.005
    reg: float = 0.01
    """μ."""
    ridge: Ridge = "rows"

    def __post_init__(self) -> None:
        require_number("learning_rate", self.learning_rate, 0.0, 10.0)
        require_number("reg", self.reg, 0.0, 1e3, above=False)
        if self.ridge not in ("rows", "pairs"):
            raise ConfigError(f'ridge must be "rows" or "pairs", not {self.ridge!r}')


@dataclass(frozen=True, slots=True, repr=False)
class DriftModel:
    """A row for every user and every item."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"<Model users={self.users.shape} items={self.items.shape}>"

    @classmethod
    def start(
        cls, n_users: int, n_items: int, size: int, rng: Streams, spread: float | None = None
    ) -> DriftModel:
        """As `first_rows` has them. A row depends on the stream and its own number alone."""
        require_whole("embedding_size", size, 1, 4096)
        kinds = _kinds(n_users, n_items)
        return cls(*(first_rows(k, range(n), size, rng, spread) for k, n in kinds))

    def copy(self) -> DriftModel:
        return DriftModel(self.users.copy(), self.items.copy())

    def check(self) -> None:
        """Raises where a row has run off to infinity."""
        if not np.isfinite(self.users).all() or not np.isfinite(self.items).all():
            raise Diverged("the model ran off to infinity; lower learning_rate")


def _kinds(n_users: int, n_items: int) -> Sequence[tuple[Literal["users", "items"], int]]:
    return ("users", n_users), ("items", n_items)


def first_rows(
    kind: Literal["users", "items"],
    numbers: Sequence[int],
    size: int,
    rng: Streams,
    spread: float | None = None,
) -> NDArray[np.float32]:
    """The rows that users or items of these numbers start with: uniform on [0, 1) as printed, or
    around 0 with a standard deviation of `spread`."""
    counters = np.array(numbers, dtype=np.int64)
    unit = rng.child(f"init-{kind}").uniform(counters, size)
    if spread is not None:
        unit = (unit - 0.5) * (math.sqrt(12.0) * spread)
    return unit.astype(np.float32)


def learn(model: DriftModel, blocks: Blocks, step: BlockStep) -> tuple[int, int]:
    """All updates, one step each. Returns how many rows were moved in all, of users and items."""
    _check(model, blocks)
    work = (
        step.learning_rate, step.reg, step.ridge == "pairs", _scratch(blocks.spans),
        np.zeros(model.items.shape), np.zeros(len(model.items), dtype=bool), _simd_row(model),
    )  # fmt: skip
    what = model.users, model.items, blocks.user, blocks.entries, blocks.spans, blocks.updates
    if blocks.rounds is None:
        users, items = learn_loop(*what, *work)
    else:
        users, items = learn_together(*what, blocks.rounds, *work)
    return int(users), int(items)


def learn_momentum(model: DriftModel, blocks: Blocks, step: BlockStep, momentum: float) -> None:
    """A step per block along m ← momentum·m + (1 − momentum)·gradient; m starts at 0 with every
    user and moves all rows of the user's blocks so far."""
    _check(model, blocks)
    momentum_loop(
        model.users, model.items, blocks.user, blocks.entries, blocks.spans,
        step.learning_rate, momentum, step.reg, step.ridge == "pairs", _scratch(blocks.spans),
        np.zeros(model.items.shape), np.zeros(len(model.items), dtype=bool), _simd_row(model),
    )  # fmt: skip


def gradient(
    model: DriftModel, blocks: Blocks, step: BlockStep
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the sum of all the blocks' losses, by the users' rows and by the items'."""
    _check(model, blocks)
    users, items = np.zeros(model.users.shape), np.zeros(model.items.shape)
    add_blocks(
        model.users, blocks.user, model.items, blocks.entries, blocks.spans, step.reg,
        step.ridge == "pairs", _scratch(blocks.spans), users, items, _simd_row(model),
    )  # fmt: skip
    return users, items


def losses(model: DriftModel, blocks: Blocks) -> NDArray[np.float64]:
    """The ranking loss of each block, without the ridge."""
    _check(model, blocks)
    out = np.empty(len(blocks))
    loss_loop(
        model.users, model.items, blocks.user, blocks.entries, blocks.spans, out, _simd_row(model)
    )
    return out


def _simd_row(model: DriftModel) -> tuple[int, ...] | None:
    """For rows so short that a kernel of their own pays."""
    size = model.users.shape[1]
    return (0,) * size if size <= 16 else None


def _scratch(spans: Ints) -> NDArray[np.float64]:
    longest = int((spans[:, 1] - spans[:, 0]).max(initial=1))
    return np.empty((2, longest))


def _check(model: DriftModel, blocks: Blocks) -> None:
    if len(blocks.user) and not 0 <= blocks.user.min() <= blocks.user.max() < len(model.users):
        raise DataError("a block belongs to a user that the model does not have")
    used = blocks.entries
    if len(used) and not 0 <= used.min() <= used.max() < len(model.items):
        raise DataError("a block holds an item that the model does not have")
