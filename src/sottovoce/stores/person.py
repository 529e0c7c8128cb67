"""The store of a person, or of many, in whichever federation: what all such stores have in common.

A folder with an encrypted database and its key, for the owner's eyes alone. Every change is durable
when the method returns. Several processes may have a store open, so that she can change her mind
while another process sends; only one of them may be the agent. A federation of devices asks for
more (`device.CohortStore`), and so does one of data owners (`user.UserStore`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from sottovoce.core.consent import Choice
from sottovoce.errors import DataError
from sottovoce.stores.encrypted import StoreFile

_STOPPED = "stopped"
ISSUER = "issuer"
"""The entry by which a store is in a federation of data owners."""
AT_HOME = Choice(takes_part=False)
"""What holds for a user until she chooses."""


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """A choice as it was made."""

    choice: Choice
    changed_at: int


@dataclass(frozen=True, slots=True)
class RequestSent:
    """A request that left with something of a user's in it: a row of the ledger."""

    user: int
    owner: int | None
    """The data owner that got it; None for other parties."""
    party: str
    """The name of whoever got it, as it was then."""
    what: str
    """enrolment, check-in, introduction, interactions, recommendation, vector or departure."""
    interactions: int
    """Those that left for the first time."""
    messages: int
    """All sealed messages in it."""
    bytes: int
    """Bytes of this user's part in the request's body."""
    epsilon: float
    """Infinite if whoever gets it reads it; 0 if no history is in it. That the user is there, its
    party knows from then on."""
    at: int


class PersonalStore:
    """Users with their choices, and what has left of them. A phone has one user."""

    def __init__(self, file: StoreFile, clock: Callable[[], float] = time.time) -> None:
        self.file = file
        self._clock = clock

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, agent: bool = False) -> Self:
        """`agent=True` is for the one process that serves the store's users; a second one is
        refused. Others, readers and writers, may come and go meanwhile."""
        file = StoreFile(Path(path), readonly=readonly, agent=agent)
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.file.folder}, redacted>"

    @property
    def path(self) -> Path:
        return self.file.folder

    def now(self) -> int:
        return int(self._clock())

    # --- users and secrets -----------------------------------------------------------------------

    @property
    def numbers(self) -> list[int]:
        """The users', ascending."""
        return [n for (n,) in self.file.rows("SELECT number FROM users ORDER BY number")]

    def name(self, number: int) -> str:
        found = self.file.value("SELECT name FROM users WHERE number = ?", [int(number)])
        if found is None:
            raise DataError(f"user {number} is not in the store {self.path}")
        return str(found)

    def find(self, user: str) -> int:
        """The number of the user of this name, or of this number (which may be written #5, for
        names that are numbers, too)."""
        rows = self.file.rows("SELECT number FROM users WHERE name = ? LIMIT 2", [user])
        named = [int(number) for (number,) in rows]
        numbered = self._numbered(user)
        found = sorted({*named, *numbered})
        if len(found) == 1:
            return found[0]
        if not found:
            raise DataError(f"there is no user {user!r} in the store {self.path}")
        if numbered:
            raise DataError(
                f"{user!r} is the name of one user and the number of another in the store "
                f"{self.path}; say which number is meant: " + " or ".join(f"#{n}" for n in found)
            )
        raise DataError(
            f"there are several users {user!r} in the store {self.path}; say the number, as in "
            f"#{found[0]}"
        )

    def _numbered(self, user: str) -> list[int]:
        digits = user.removeprefix("#")
        if not (digits.isdecimal() and digits.isascii() and len(digits) <= 10):
            return []
        sql = "SELECT number FROM users WHERE number = ?"
        return [int(number) for (number,) in self.file.rows(sql, [int(digits)])]

    def secret(self, name: str) -> bytes | None:
        """An entry that other parts keep here: keys, addresses."""
        return self._meta(f"secret:{name}")

    def set_secret(self, name: str, value: bytes) -> None:
        self._set_meta(f"secret:{name}", value)

    def _meta(self, name: str) -> bytes | None:
        return entries(self.file).get(name)

    def _set_meta(self, name: str, value: bytes) -> None:
        with self.file.transaction():
            write_entry(self.file, name, bytes(value))

    # --- stopping --------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether no byte is to leave for anybody, not even a question for what is published."""
        return bool(self._meta(_STOPPED))

    def set_stopped(self, stopped: bool) -> None:
        """Durable, and read by every agent before it asks anything."""
        self._set_meta(_STOPPED, b"1" if stopped else b"")

    # --- choices ---------------------------------------------------------------------------------

    def choice(self, number: int) -> Choice:
        """The choice in force for one user."""
        self.name(number)
        text = self.file.value(
            "SELECT choice FROM consent WHERE number = ? ORDER BY version DESC LIMIT 1",
            [int(number)],
        )
        return AT_HOME if text is None else choice_of(text)

    def records(self, number: int) -> list[ChoiceRecord]:
        """Every choice that a user has made, oldest first."""
        sql = "SELECT choice, changed_at FROM consent WHERE number = ? ORDER BY version"
        rows = self.file.rows(sql, [int(number)])
        return [ChoiceRecord(choice_of(text), at) for text, at in rows]

    # --- the ledger ------------------------------------------------------------------------------

    def requests(self, number: int | None = None) -> list[RequestSent]:
        """What has left, or may have, oldest first; of one user or of all. The reports of a
        federation of devices are beside it (`CohortStore.ledger`)."""
        where, values = ("", []) if number is None else ("WHERE number = ?", [int(number)])
        sql = (
            "SELECT number, party, what, bytes, epsilon, at, owner, interactions, messages "
            f"FROM contacts {where}"
        )
        return [
            RequestSent(user, owner, party, what, interactions, messages, size, epsilon, at)
            for user, party, what, size, epsilon, at, owner, interactions, messages in (
                self.file.rows(f"{sql} ORDER BY id", values)
            )
        ]

    def note_contacts(self, sent: Iterable[RequestSent]) -> None:
        """On record from here on, for good. To be written before the requests leave."""
        columns = ["number", *(field.name for field in fields(RequestSent)[1:])]
        with self.file.transaction():
            self.file.write_many(
                f"INSERT INTO contacts ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' * len(columns))})",
                map(astuple, sent),
            )


def entries(file: StoreFile) -> dict[str, bytes]:
    """What a store has under names: keys, addresses, counters."""
    return file.held("meta", ("meta",), lambda: dict(file.rows("SELECT name, value FROM meta")))


def write_entry(file: StoreFile, name: str, value: bytes) -> None:
    """Within a transaction."""
    held = entries(file)
    file.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", [name, value])
    file.hold("meta", ("meta",), held | {name: value})


def choice_text(choice: Choice) -> str:
    """As stores keep it."""
    return json.dumps(choice.table(), sort_keys=True)


@lru_cache(maxsize=256)
def choice_of(text: str) -> Choice:
    return Choice(**json.loads(text))
