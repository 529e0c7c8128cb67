"""The way into the outbox of a user's store."""

from __future__ import annotations

from sottovoce.parties.user_store import UserStore
from sottovoce.privacy.interactions import Kind

_OF = "user = ? AND owner = ?"
_TOLD = f"""
SELECT 1 FROM messages WHERE {_OF} AND item = ? AND time = ? AND kind IN ('negative', 'positive')
AND state <> 'dropped' AND sequence > coalesce(
    (SELECT max(sequence) FROM messages WHERE {_OF} AND item = 0 AND time = 0 AND kind = 'leave'),
    -1)
LIMIT 1
"""
"""Whether an owner was told of this, or will be, since she last made it forget everything."""


class Outbox:
    """Messages on their way into a store's outbox, all in one transaction."""

    def __init__(self, store: UserStore) -> None:
        self._store = store
        self._next: dict[tuple[int, int], int] = {}
        self._before: set[tuple[int, int]] = set()
        """Who has messages in the store already."""
        self._new: set[tuple[int, int, int, int]] = set()
        self.rows: list[tuple[int, int, int, Kind, int, int]] = []
        self.seen: list[tuple[int, int]] = []

    def told(self, user: int, owner: int, item: int, time: int) -> bool:
        """Whether the owner was told of this, or will be, since she last left it."""
        if (user, owner, item, time) in self._new:
            return True
        self._number(user, owner)
        if (user, owner) not in self._before:
            return False
        return self._store.file.row(_TOLD, [user, owner, item, time, user, owner]) is not None

    def put(self, user: int, owner: int, kind: Kind, item: int, time: int) -> None:
        number = self._number(user, owner)
        self._next[user, owner] = number + 1
        self._new.add((user, owner, item, time))
        self.rows.append((user, owner, number, kind, item, time))

    def write(self) -> None:
        file = self._store.file
        file.write_many("INSERT OR IGNORE INTO seen VALUES (?, ?)", self.seen)
        file.write_many(
            "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next",
            [(*pair, number) for pair, number in self._next.items()],
        )
        file.write_many(
            "INSERT INTO messages (user, owner, sequence, kind, item, time) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            self.rows,
        )

    def _number(self, user: int, owner: int) -> int:
        """The next message's."""
        if (user, owner) not in self._next:
            sql = f"SELECT next FROM counters WHERE {_OF}"
            row = self._store.file.row(sql, [user, owner])
            if row is not None:
                self._before.add((user, owner))
            self._next[user, owner] = 0 if row is None else int(row[0])
        return self._next[user, owner]
