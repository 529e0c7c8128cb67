"""Blocks of interactions, as SAROS and DRIFT cut a stream, and the step that is taken on them.

A block is a run η of negatives and the run Π of positives behind it. It ends when a negative
follows positives, or with the stream. Positives before the first negative are in no block, and a
run of negatives that no positive follows is none. What a block loses:

    1/(|η||Π|) Σ_p Σ_n ln(1 + exp(−v·(ψ_p − ψ_n))) + μ(|v|² + Σ_p |ψ_p|² + Σ_n |ψ_n|²)

over the positives p and the negatives n; with `ridge="pairs"` the last two sums are means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import drift_kernels as kernels
from sottovoce.config import require_number, require_whole
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import Streams

Order = Literal["user", "time"]
"""How a table is replayed: user by user, or everybody's events as time goes."""
Ridge = Literal["rows", "pairs"]
"""The pull to 0: once for every row of a block, or averaged over its pairs."""
Release = Literal["printed", "aggregated"]
"""What owners tell the orchestrator: each block's rows, or sums over many users."""
Ints = NDArray[np.int64]


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Events:
    """Interactions in the order in which they are replayed. Private."""

    user: Ints
    item: NDArray[np.int32]
    positive: NDArray[np.bool_]
    time: Ints
    order: Order

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        return f"<Events n={len(self):,} by {self.order}, redacted>"

    @classmethod
    def of(cls, table: Interactions, positive_from: float, order: Order) -> Events:
        """A table's entries; those rated `positive_from` or better are positive. By (user, time,
        item), or by (time, user, item)."""
        if table.ratings is None or table.timestamps is None:
            raise DataError(
                "blocks are cut from ratings in the order of time; this table lacks "
                + ("ratings" if table.timestamps is not None else "time stamps")
            )
        user, time = table.users, table.timestamps
        if order not in ("user", "time"):
            raise ConfigError(f'order must be "user" or "time", not {order!r}')
        # Entries are stored by (user, item), which settles ties.
        at = np.lexsort((time, user)) if order == "user" else np.argsort(time, kind="stable")
        return cls(user[at], table.items[at], table.ratings[at] >= positive_from, time[at], order)


# --- one event at a time -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Block:
    """A block that has ended: at least one negative and one positive, each in their order."""

    negatives: tuple[int, ...]
    positives: tuple[int, ...]

    def __repr__(self) -> str:
        return "<Block, redacted>"

    def without(self, items: frozenset[int]) -> Block | None:
        """The block less these items; nothing where a side would be empty."""
        negatives = tuple(i for i in self.negatives if i not in items)
        positives = tuple(i for i in self.positives if i not in items)
        return Block(negatives, positives) if negatives and positives else None


@dataclass(slots=True, repr=False)
class OpenBlock:
    """The block of a stream that is still being filled."""

    negatives: list[int] = field(default_factory=list)
    positives: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return "<OpenBlock, redacted>"

    def add(self, item: int, positive: bool) -> Block | None:
        """Takes the next event of the stream; the block that it ends, if it ends one."""
        if positive:
            if self.negatives:
                self.positives.append(item)
            return None
        ended = self.end()
        self.negatives.append(item)
        return ended

    def end(self) -> Block | None:
        """Ends the block where it has both sides; a run of negatives alone stays open."""
        if not self.positives:
            return None
        ended = Block(tuple(self.negatives), tuple(self.positives))
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
class Blocks:
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

    def __repr__(self) -> str:
        return f"<Blocks n={len(self):,} in {self.steps:,} updates, redacted>"

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
class Model:
    """A row for every user and every item."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"<Model users={self.users.shape} items={self.items.shape}>"

    @classmethod
    def start(cls, n_users: int, n_items: int, size: int, rng: Streams) -> Model:
        """Uniform on [0, 1). A row depends on the stream and its own number alone."""
        require_whole("embedding_size", size, 1, 4096)
        return cls(*(first_rows(k, range(n), size, rng) for k, n in _kinds(n_users, n_items)))

    def copy(self) -> Model:
        return Model(self.users.copy(), self.items.copy())

    def check(self) -> None:
        """Raises where a row has run off to infinity."""
        if not np.isfinite(self.users).all() or not np.isfinite(self.items).all():
            raise Diverged("the model ran off to infinity; lower learning_rate")


def _kinds(n_users: int, n_items: int) -> Sequence[tuple[Literal["users", "items"], int]]:
    return ("users", n_users), ("items", n_items)


def first_rows(
    kind: Literal["users", "items"], numbers: Sequence[int], size: int, rng: Streams
) -> NDArray[np.float32]:
    """The rows that users or items of these numbers start with."""
    counters = np.array(numbers, dtype=np.int64)
    return rng.child(f"init-{kind}").uniform(counters, size).astype(np.float32)


def learn(model: Model, blocks: Blocks, step: BlockStep) -> tuple[int, int]:
    """All updates, one step each. Returns how many rows were moved in all, of users and items."""
    _check(model, blocks)
    work = (
        step.learning_rate, step.reg, step.ridge == "pairs", _scratch(blocks.spans),
        np.zeros(model.items.shape), np.zeros(len(model.items), dtype=bool), _lanes(model),
    )  # fmt: skip
    what = model.users, model.items, blocks.user, blocks.entries, blocks.spans, blocks.updates
    if blocks.rounds is None:
        users, items = kernels.learn(*what, *work)
    else:
        users, items = kernels.learn_together(*what, blocks.rounds, *work)
    return int(users), int(items)


def learn_momentum(model: Model, blocks: Blocks, step: BlockStep, momentum: float) -> None:
    """A step per block along m ← momentum·m + (1 − momentum)·gradient; m starts at 0 with every
    user and moves all rows of the user's blocks so far."""
    _check(model, blocks)
    kernels.learn_momentum(
        model.users, model.items, blocks.user, blocks.entries, blocks.spans,
        step.learning_rate, momentum, step.reg, step.ridge == "pairs", _scratch(blocks.spans),
        np.zeros(model.items.shape), np.zeros(len(model.items), dtype=bool), _lanes(model),
    )  # fmt: skip


def gradient(
    model: Model, blocks: Blocks, step: BlockStep
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the sum of all the blocks' losses, by the users' rows and by the items'."""
    _check(model, blocks)
    users, items = np.zeros(model.users.shape), np.zeros(model.items.shape)
    kernels.add_blocks(
        model.users, blocks.user, model.items, blocks.entries, blocks.spans, step.reg,
        step.ridge == "pairs", _scratch(blocks.spans), users, items, _lanes(model),
    )  # fmt: skip
    return users, items


def losses(model: Model, blocks: Blocks) -> NDArray[np.float64]:
    """The ranking loss of each block, without the ridge."""
    _check(model, blocks)
    out = np.empty(len(blocks))
    kernels.losses(
        model.users, model.items, blocks.user, blocks.entries, blocks.spans, out, _lanes(model)
    )
    return out


def _lanes(model: Model) -> tuple[int, ...] | None:
    """For rows so short that a kernel of their own pays."""
    size = model.users.shape[1]
    return (0,) * size if size <= 16 else None


def _scratch(spans: Ints) -> NDArray[np.float64]:
    longest = int((spans[:, 1] - spans[:, 0]).max(initial=1))
    return np.empty((2, longest))


def _check(model: Model, blocks: Blocks) -> None:
    if len(blocks.user) and not 0 <= blocks.user.min() <= blocks.user.max() < len(model.users):
        raise DataError("a block belongs to a user that the model does not have")
    used = blocks.entries
    if len(used) and not 0 <= used.min() <= used.max() < len(model.items):
        raise DataError("a block holds an item that the model does not have")
