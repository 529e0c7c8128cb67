"""A data owner's streams and blocks in memory, which its store follows."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.aggregated import (
    LARGEST_NUMBER,
    NOBODY,
    AggregatingOwner,
    Learnt,
)
from sottovoce.algorithms.drift.messages import Gradients, Interaction, Row, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig, Owner
from sottovoce.errors import MessageError
from sottovoce.stores.owner_store import NONE, OwnerStore
from sottovoce.wire.interactions import OpenedInteraction

MARK_BYTES = 16
_END_OF_SEQUENCES = 1 << 63
"""What SQLite can store."""


class SetBack(MessageError):
    """A data owner's store that is an older copy, or of which two run."""


class OwnerMemory:
    """What the store holds, and what of it is not written yet. Everything is done within a
    transaction of the store; where that fails, this memory must be thrown away. Private."""

    kind: ClassVar[type[Owner]] = Owner

    def __init__(self, number: int, settings: DRIFTConfig, store: OwnerStore) -> None:
        kept = store.load()
        self.owner = self.kind.restore(
            number, kept.items, settings, kept.sequences, kept.streams, kept.saved, kept.asked,
            kept.draws, kept.touched,
        )  # fmt: skip
        self.items, self.sequences, self.publics = kept.items, kept.sequences, kept.publics
        self.asked_round, self.flushed_round = kept.asked_round, kept.flushed_round
        self.last_round = kept.last_round
        self.counts, self.more = kept.counts, Counter[str]()
        self.lengths = {u: (len(s.negatives), len(s.positives)) for u, s in kept.streams.items()}
        """Of the open blocks on the disk."""
        self.waiting = len(kept.saved)
        """Blocks on the disk that were not asked for."""
        self.left: set[int] = set()
        """Users who were forgotten, or would have been."""
        self._touched: set[int] = set()
        self._restarted: set[int] = set()
        self._known = {user: set(items) for user, items in kept.touched.items()}
        """By user: what she has touched, as far as it is on the disk."""

    def __repr__(self) -> str:
        return "<OwnerMemory, redacted>"

    def take(self, opened: OpenedInteraction, public: bytes, store: OwnerStore) -> str:
        """One message of the user with this long-term key; a word where it is not taken."""
        user = opened.user
        if opened.sequence <= self.sequences.get(user, NONE):
            return "repeated"
        if opened.sequence >= _END_OF_SEQUENCES:
            return "sequence"
        if opened.kind == "leave":
            self.forget(user, store)
            return ""
        if user not in self.sequences:
            self.owner.admit(user)
            self.publics[user] = public
        self.sequences[user] = opened.sequence
        self._touched.add(user)
        if opened.kind == "end":
            self.owner.end_stream(user)
            self._restarted.add(user)
            return ""
        if opened.item not in self.items:
            return "item"
        positive = opened.kind == "positive"
        try:
            self.owner.receive(
                Interaction(self.owner.number, user, opened.item, positive, opened.time)
            )
        except MessageError:  # the user and the item are known here
            return "time"
        return ""

    def forget(self, user: int, store: OwnerStore) -> None:
        self.left.add(user)
        if user not in self.sequences:
            return
        self.write(store)
        self.owner.forget(user)
        del self.sequences[user], self.publics[user]
        self.lengths.pop(user, None)
        self._known.pop(user, None)
        self.waiting = len(self.owner.saved)
        store.forget(user)

    def settle(self, accepted: bool, store: OwnerStore) -> None:
        """The update that was asked for last, if there is one."""
        if self.asked_round == NONE:
            return
        self.owner.settle(accepted)
        store.settle(accepted)
        self.asked_round, self.waiting = NONE, len(self.owner.saved)
        self.more["counted" if accepted else "returned"] += 1

    def reach(self, round: int, heard: int, store: OwnerStore) -> None:
        """Raises where a later round was asked in already: a question that was overtaken speaks of
        counts that do not hold any more."""
        if round < self.last_round:
            raise MessageError(f"the question is of round {round}, which is over")
        if round > self.last_round:
            self.last_round = round
            store.reached(round)

    def flush(self, round: int, store: OwnerStore) -> None:
        """All streams end."""
        for user in sorted(self.lengths):
            self.owner.end_stream(user)
        store.end_streams()
        store.flushed(round)
        self.lengths, self.flushed_round = {}, round
        self.write(store)

    def ask(self, round: int, flush: bool, store: OwnerStore) -> None:
        if self.owner.due or (flush and self.owner.saved):
            self.owner.request()
            store.ask(round)
            self.asked_round, self.waiting = round, 0

    def answer(self, round: int, rows: Rows, store: OwnerStore) -> Gradients | None:
        """From the rows that were asked for in this round. Changes nothing, unless sums leave."""
        return self.owner.gradients(rows)

    def require_newest(self) -> None:
        """Raise if an answer must not leave. Gradients of single users may leave again."""

    def withdraw_items(self, items: frozenset[int], store: OwnerStore) -> None:
        owner = self.owner
        owner.withdraw_items(items)
        self.items = owner.items
        streams = {u: s for u in self.lengths if (s := owner.stream(u)) is not None}
        store.withdraw_items(items, streams, owner.asked, owner.saved)
        self.lengths = {u: (len(s.negatives), len(s.positives)) for u, s in streams.items()}
        self.waiting = len(owner.saved)
        for known in self._known.values():
            known -= items

    def vector(self, user: int) -> Row | None:
        """Her vector, where owners keep them."""
        return None

    def withheld(self) -> dict[str, int]:
        """How many items' sums wait for more people, where there are such."""
        return {}

    def write(self, store: OwnerStore) -> None:
        """Bring the store up to what is in memory."""
        ended = self.owner.saved[self.waiting :]
        store.add_blocks(ended)
        self.waiting += len(ended)
        self._restarted.update(user for user, _ in ended)
        store.drop_parts(self._restarted & self.lengths.keys())
        for user in self._restarted:
            self.lengths.pop(user, None)
        users: list[tuple[int, int, int | None, bytes]] = []
        parts = []
        for user in self._touched:
            stream = self.owner.stream(user)
            clock = None if stream is None else stream.clock
            users.append((user, self.sequences[user], clock, self.publics[user]))
            if stream is None:
                continue
            negatives, positives = self.lengths.get(user, (0, 0))
            self.lengths[user] = len(stream.negatives), len(stream.positives)
            if self.lengths[user] != (negatives, positives):
                parts.append((user, stream.negatives[negatives:], stream.positives[positives:]))
        store.put_users(users)
        store.add_parts(parts)
        for user in self._touched:
            if new := self.owner.touched(user) - self._known.get(user, set()):
                store.add_touched(user, new)
                self._known.setdefault(user, set()).update(new)
        store.add_counts(+self.more)
        self.counts += self.more
        self.more.clear()
        self._touched.clear()
        self._restarted.clear()


# What a data owner has in memory where it sends sums over people (`release = "aggregated"`). What
# has left an owner has left it, whether or not the orchestrator counts it. Were the same blocks
# added up again, with those of one more user, the difference of both sums would be hers. So: - An
# answer is on the disk before it leaves: the blocks in it are gone, and it is kept by itself. -
# In one round the answer is the same as often as it is asked for. - What was not counted goes
# into the next answer as it was. Beside it are sums of their own, over `min_users` other people
# each. - When somebody leaves who may be in it, it is dropped, and not sent again. Whether there
# is an answer does not depend on what people did: rows are refused before any block is looked at,
# and what grows beyond all bounds is dropped without a word to the orchestrator.


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
        self._answered_round, self._mark = store.answered_last()
        self._note = store.last_answer()

    def reach(self, round: int, heard: int, store: OwnerStore) -> None:
        """Raises also where an answer came in that this store does not know of."""
        super().reach(round, heard, store)
        if heard > self._answered_round:
            raise _older_copy(f"an answer of round {heard} came in that is not in it")
        self.require_newest()

    def require_newest(self) -> None:
        """Raise if another copy of this store has answered since this one did, whatever the
        orchestrator says of it. Otherwise the last answer is noted for all copies."""
        if self._note is not None and not self._note.keep(self._answered_round, self._mark):
            raise _older_copy("another copy of it has answered since")

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
        self._answered_round, self._mark = round, secrets.token_bytes(MARK_BYTES)
        store.answered(round, self._mark)
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
        learnt.vectors.update({user: np.full(size, self._settings.start) for user in lost})
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
    """Return the memory of the kind that the settings ask for."""
    kind = SummingMemory if settings.release == "aggregated" else OwnerMemory
    return kind(number, settings, store)


def _older_copy(why: str) -> SetBack:
    return SetBack(
        f"this data owner's store is an older copy: {why}, and its people must not be added up "
        "twice; put the newest store back, or apply anew from another folder"
    )


def _within(rows: NDArray[Any], bound: float) -> NDArray[np.bool_]:
    """Return which rows have all their numbers within the bound."""
    within: NDArray[np.bool_] = (np.abs(rows) <= bound).all(axis=-1)
    return within


def _table(sent: Mapping[int, Row], items: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """A row for each of these items; zeros where there is none."""
    table = np.zeros((len(items), size))
    for place, item in enumerate(items.tolist()):
        if item in sent:
            table[place] = sent[item]
    return table
