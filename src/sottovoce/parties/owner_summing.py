"""What a data owner has in memory where it sends sums over people (`release = "aggregated"`).

What has left an owner has left it, whether or not the orchestrator counts it. Were the same blocks
added up again, with those of one more user, the difference of both sums would be hers. So:

- An answer is on the disk before it leaves: the blocks in it are gone, and it is kept by itself.
- In one round the answer is the same as often as it is asked for.
- What was not counted goes into the next answer as it was. Beside it are sums of their own, over
  `min_users` other people each.
- When somebody leaves who may be in it, it is dropped, and not sent again.

Whether there is an answer does not depend on what people did: rows are refused before any block is
looked at, and what grows beyond all bounds is dropped without a word to the orchestrator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift import DRIFTConfig
from sottovoce.algorithms.drift_aggregated import (
    LARGEST_NUMBER,
    NOBODY,
    START,
    AggregatingOwner,
    Learnt,
)
from sottovoce.algorithms.drift_messages import Gradients, Rows
from sottovoce.algorithms.known_rows import Row
from sottovoce.errors import MessageError
from sottovoce.parties.owner_memory import OwnerMemory
from sottovoce.parties.owner_store import NONE, OwnerStore


class SummingMemory(OwnerMemory):
    """See the module's head. Private."""

    kind = AggregatingOwner
    owner: AggregatingOwner

    def __init__(self, number: int, settings: DRIFTConfig, store: OwnerStore) -> None:
        super().__init__(number, settings, store)
        self._settings = settings
        kept = store.sums.load(settings.embedding_size)
        self.owner.take_up(kept.learnt)
        self._sent = kept.sent
        self._answered_round = store.answered_round()

    def reach(self, round: int, heard: int, store: OwnerStore) -> None:
        """Raises also where an answer came in that this store does not know of."""
        super().reach(round, heard, store)
        if heard > self._answered_round:
            raise MessageError(
                f"this data owner's store is an older copy: an answer of round {heard} came in "
                "that is not in it, and its people must not be added up twice; put the newest "
                "store back, or apply anew from another folder"
            )

    def settle(self, accepted: bool, store: OwnerStore) -> None:
        """Blocks that are in no answer wait again in any case."""
        if self.asked_round == NONE:
            return
        if accepted and self._sent:
            self._sent = {}
            store.sums.put_sent({})
        self.owner.settle(False)
        store.settle(False)
        self.asked_round, self.waiting = NONE, len(self.owner.saved)
        self.more["counted" if accepted else "returned"] += 1

    def ask(self, round: int, flush: bool, store: OwnerStore) -> None:
        """In every round, or without a window in those that end streams: when an owner speaks must
        not say what it holds."""
        if self.items and (self.owner.due or flush):
            self.owner.request()
            store.ask(round)
            self.asked_round, self.waiting = round, 0

    def answer(self, round: int, rows: Rows, store: OwnerStore) -> Gradients:
        items = np.array(sorted(self.items), dtype=np.int64)
        if not np.array_equal(rows.items, items) or len(rows.users):
            raise MessageError("the answer lacks rows that were asked for, or has others")
        rows.check(self._settings.embedding_size)
        if not _within(rows.item_rows, LARGEST_NUMBER).all():
            raise MessageError("the rows are beyond all bounds")
        sent = self._add_up(round, rows, store)
        none = np.zeros((0, self._settings.embedding_size), dtype=np.float32)
        return Gradients(self.owner.number, rows.version, NOBODY, items, none, sent)

    def _add_up(self, round: int, rows: Rows, store: OwnerStore) -> Row:
        """Rows to send, one for each item; all that this changes is in the store. The second time
        in a round they are what has left already."""
        if self._answered_round == round:
            return _table(self._sent, rows.items, rows.item_rows.shape[1]).astype(np.float32)
        users = sorted({user for user, _ in self.owner.asked})
        with np.errstate(over="ignore", invalid="ignore"):  # see _drop_what_ran_off
            found = self.owner.gradients(self._as_if_counted(rows))
            before = _table(self._sent, found.items, self._settings.embedding_size)
            sent = (before + found.item_rows).astype(np.float32)
            sent[~_within(self._moved(rows.item_rows, sent), LARGEST_NUMBER)] = 0.0
        self.owner.settle(True)
        learnt = self.owner.learnt
        if self._drop_what_ran_off(learnt, users):
            self.owner.take_up(learnt)
        there = np.flatnonzero(sent.any(axis=1)).tolist()
        self._sent = {int(found.items[k]): sent[k] for k in there}
        self._answered_round = round
        store.answered(round)
        store.sums.put_vectors(learnt.vectors, users)
        store.sums.put_sums(learnt)
        store.sums.put_sent(self._sent)
        return sent

    def _as_if_counted(self, rows: Rows) -> Rows:
        """The rows less what has left and was not counted: an owner goes on from there."""
        if not self._sent:
            return rows
        pull = _table(self._sent, rows.items, rows.item_rows.shape[1])
        moved = self._moved(rows.item_rows, pull).astype(np.float32)
        return Rows(rows.version, rows.users, rows.items, rows.user_rows, moved)

    def _moved(self, rows: Row, pulls: NDArray[Any]) -> NDArray[np.float64]:
        return rows.astype(np.float64) - self._settings.learning_rate * pulls.astype(np.float64)

    def _drop_what_ran_off(self, learnt: Learnt, users: Iterable[int]) -> int:
        """Sums that no row could take, and vectors beyond the bounds, which begin anew; how many.
        Only the operator's counts tell of it."""
        size, rate = self._settings.embedding_size, self._settings.learning_rate
        lost = [u for u in users if not _within(learnt.vectors[u], LARGEST_NUMBER)]
        learnt.vectors.update({user: np.full(size, START) for user in lost})
        off = [i for i, s in learnt.waiting.items() if not _within(rate * s, 2 * LARGEST_NUMBER)]
        learnt.drop(off)
        self.more["refused_overflow"] += len(lost) + len(off)
        return len(lost) + len(off)

    def flush(self, round: int, store: OwnerStore) -> None:
        if self._answered_round == round:
            raise MessageError(f"the answer of round {round} has left; streams end in a later one")
        super().flush(round, store)

    def forget(self, user: int, store: OwnerStore) -> None:
        known = self.owner.vector(user) is not None
        super().forget(user, store)
        if known:
            store.sums.drop_vector(user)
            store.sums.put_sums(self.owner.learnt)
            self._sent = {}
            store.sums.put_sent({})

    def withdraw_items(self, items: frozenset[int], store: OwnerStore) -> None:
        super().withdraw_items(items, store)
        store.sums.put_sums(self.owner.learnt)
        self._sent = {item: row for item, row in self._sent.items() if item not in items}
        store.sums.put_sent(self._sent)

    def vector(self, user: int) -> Row | None:
        return self.owner.vector(user)

    def withheld(self) -> dict[str, int]:
        return {"withheld": self.owner.withheld()}


def memory_of(number: int, settings: DRIFTConfig, store: OwnerStore) -> OwnerMemory:
    """Of the kind that the settings ask for."""
    kind = SummingMemory if settings.release == "aggregated" else OwnerMemory
    return kind(number, settings, store)


def _within(rows: NDArray[Any], bound: float) -> NDArray[np.bool_]:
    """Of each row, whether all its numbers are."""
    within: NDArray[np.bool_] = (np.abs(rows) <= bound).all(axis=-1)
    return within


def _table(sent: Mapping[int, Row], items: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """A row for each of these items; zeros where there is none."""
    table = np.zeros((len(items), size))
    for place, item in enumerate(items.tolist()):
        if item in sent:
            table[place] = sent[item]
    return table
