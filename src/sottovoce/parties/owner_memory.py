"""A data owner's streams and blocks in memory, which its store follows."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from sottovoce.algorithms.drift import DRIFTConfig, Owner
from sottovoce.algorithms.drift_messages import Gradients, Interaction, Rows
from sottovoce.algorithms.known_rows import Row
from sottovoce.errors import MessageError
from sottovoce.parties.owner_store import NONE, OwnerStore
from sottovoce.privacy.interactions import Opened

_END_OF_SEQUENCES = 1 << 63
"""What SQLite can store."""


class OwnerMemory:
    """What the store holds, and what of it is not written yet. Everything is done within a
    transaction of the store; where that fails, this memory must be thrown away. Private."""

    kind: ClassVar[type[Owner]] = Owner

    def __init__(self, number: int, settings: DRIFTConfig, store: OwnerStore) -> None:
        kept = store.load()
        self.owner = self.kind.restore(
            number, kept.items, settings, kept.sequences, kept.streams, kept.saved, kept.asked
        )
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

    def __repr__(self) -> str:
        return "<OwnerMemory, redacted>"

    def take(self, opened: Opened, public: bytes, store: OwnerStore) -> str:
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

    def withdraw_items(self, items: frozenset[int], store: OwnerStore) -> None:
        owner = self.owner
        owner.withdraw_items(items)
        self.items = owner.items
        streams = {u: s for u in self.lengths if (s := owner.stream(u)) is not None}
        store.withdraw_items(items, streams, owner.asked, owner.saved)
        self.lengths = {u: (len(s.negatives), len(s.positives)) for u, s in streams.items()}
        self.waiting = len(owner.saved)

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
        store.add_counts(+self.more)
        self.counts += self.more
        self.more.clear()
        self._touched.clear()
        self._restarted.clear()
