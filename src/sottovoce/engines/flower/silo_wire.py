"""What the orchestrator and a data owner say to each other over Flower: four kinds of content.

A round is a query (which rows do you want?) and, to owners that want any, a task (here they are).
Numbers travel as 4 bytes, rows in single precision. Every field is checked when it arrives; what is
off is rejected whole with `MessageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.engines.flower.wire import (
    NOTHING,
    Content,
    check_protocol,
    field_of,
    pack_numbers,
    printable,
    unpack_numbers,
)
from sottovoce.errors import MessageError
from sottovoce.wire.directory import PROTOCOL

_LARGEST = 2**62
_WIDEST = 4096
_SENTENCE = 500
_NONE, _OF_USERS, _OF_NOBODY = range(3)
"""Whether there are rows, and of whom; of nobody: of items alone, as owners send that add up."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False)
class QueryRows:
    """orchestrator → owner: which rows do you want in this round? Also tells which of the owner's
    updates was folded last, and who has left."""

    federation: str
    round: int
    counted: int
    """The round of the owner's last update that was folded; -1 where none was."""
    flush: bool
    """Whether all streams end now."""
    departed: Ints
    """Users of whom nothing may remain, ascending."""
    heard: int = NOTHING
    """The last round of which an answer of the owner with sums in it came in, counted or not; -1
    where none did."""

    def __repr__(self) -> str:
        return f"<QueryRows round={self.round} flush={self.flush}>"

    def to_content(self) -> Content:
        return {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "round": self.round,
            "counted": self.counted,
            "flush": int(self.flush),
            "departed": pack_numbers(self.departed),
            **({} if self.heard == NOTHING else {"heard": self.heard}),
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> QueryRows:
        check_protocol(content, PROTOCOL)
        round = _whole(content, "round")
        counted = _whole(content, "counted", NOTHING)
        heard = _whole(content, "heard", NOTHING) if "heard" in content else NOTHING
        if counted >= round or heard > round:
            raise MessageError("the orchestrator counts an update of a round that is to come")
        return cls(
            field_of(content, "federation", str),
            round,
            counted,
            bool(_whole(content, "flush", 0, 1)),
            unpack_numbers(field_of(content, "departed", bytes)),
            heard,
        )


@dataclass(frozen=True, slots=True, repr=False)
class RowsWanted:
    """owner → orchestrator: the users and items of finished blocks, where an update is due (or all
    items and nobody, where owners add up), and the items held now. `problem` says in one sentence
    what stood in the way."""

    owner: int
    round: int
    items: Ints
    request: RowRequest | None = None
    problem: str = ""

    def __repr__(self) -> str:
        return f"<RowsWanted by owner {self.owner} in round {self.round}, redacted>"

    def to_content(self) -> Content:
        asked = self.request
        return {
            "protocol": PROTOCOL,
            "owner": self.owner,
            "round": self.round,
            "items": pack_numbers(self.items),
            "wanted": _NONE if asked is None else _about(asked.users),
            "users_wanted": b"" if asked is None else pack_numbers(asked.users),
            "items_wanted": b"" if asked is None else pack_numbers(asked.items),
            "problem": self.problem[:_SENTENCE],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> RowsWanted:
        check_protocol(content, PROTOCOL)
        owner = _whole(content, "owner")
        users, items = _named(content, "users_wanted", "items_wanted")
        wanted = _whole(content, "wanted", _NONE, _OF_NOBODY)
        if not _agrees(wanted, users, items):
            raise MessageError("a request names users and items, or there is none")
        return cls(
            owner,
            _whole(content, "round"),
            unpack_numbers(field_of(content, "items", bytes)),
            RowRequest(owner, users, items) if wanted else None,
            printable(field_of(content, "problem", str)[:_SENTENCE]),
        )


@dataclass(frozen=True, slots=True, repr=False)
class TaskRows:
    """orchestrator → owner: the rows that were asked for in this round."""

    federation: str
    round: int
    rows: Rows

    def __repr__(self) -> str:
        return f"<TaskRows round={self.round}, redacted>"

    def to_content(self) -> Content:
        return {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "round": self.round,
            **_table(self.rows),
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> TaskRows:
        check_protocol(content, PROTOCOL)
        return cls(
            field_of(content, "federation", str),
            _whole(content, "round"),
            Rows(*_untable(content)),
        )


@dataclass(frozen=True, slots=True, repr=False)
class GradientsSent:
    """owner → orchestrator: what it computed from the rows; nothing where everybody concerned has
    left since. `problem` says in one sentence what stood in the way."""

    owner: int
    round: int
    gradients: Gradients | None = None
    problem: str = ""

    def __repr__(self) -> str:
        return f"<GradientsSent by owner {self.owner} in round {self.round}, redacted>"

    def to_content(self) -> Content:
        found = self.gradients
        nobody, nothing = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
        empty = Rows(0, nobody, nobody, nothing, nothing)
        return {
            "protocol": PROTOCOL,
            "owner": self.owner,
            "round": self.round,
            "sent": _NONE if found is None else _about(found.users),
            **_table(empty if found is None else found),
            "problem": self.problem[:_SENTENCE],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> GradientsSent:
        check_protocol(content, PROTOCOL)
        owner = _whole(content, "owner")
        found = Gradients(owner, *_untable(content))
        sent = _whole(content, "sent", _NONE, _OF_NOBODY)
        if not _agrees(sent, found.users, found.items):
            raise MessageError("gradients are of users and items, or there are none")
        return cls(
            owner,
            _whole(content, "round"),
            found if sent else None,
            printable(field_of(content, "problem", str)[:_SENTENCE]),
        )


def _about(users: Ints) -> int:
    return _OF_USERS if len(users) else _OF_NOBODY


def _agrees(about: int, users: Ints, items: Ints) -> bool:
    return bool(len(users)) == (about == _OF_USERS) and bool(len(items)) == (about != _NONE)


def _table(rows: Rows | Gradients) -> Content:
    return {
        "version": rows.version,
        "users": pack_numbers(rows.users),
        "items": pack_numbers(rows.items),
        "width": int(rows.user_rows.shape[1]),
        "user_rows": rows.user_rows.astype("<f4").tobytes(),
        "item_rows": rows.item_rows.astype("<f4").tobytes(),
    }


def _untable(content: Mapping[str, Any]) -> tuple[int, Ints, Ints, Floats, Floats]:
    version, width = _whole(content, "version"), _whole(content, "width", 1, _WIDEST)
    users, items = _named(content, "users", "items")
    user_rows = _rows(field_of(content, "user_rows", bytes), len(users), width)
    item_rows = _rows(field_of(content, "item_rows", bytes), len(items), width)
    return version, users, items, user_rows, item_rows


def _rows(payload: bytes, n: int, width: int) -> Floats:
    if len(payload) != 4 * n * width:
        raise MessageError("there must be a row for every user and item")
    return np.frombuffer(payload, "<f4").astype(np.float32).reshape(n, width)


def _named(content: Mapping[str, Any], users: str, items: str) -> tuple[Ints, Ints]:
    return (
        unpack_numbers(field_of(content, users, bytes)),
        unpack_numbers(field_of(content, items, bytes)),
    )


def _whole(content: Mapping[str, Any], name: str, low: int = 0, high: int = _LARGEST) -> int:
    value = field_of(content, name, int)
    if not low <= value <= high:
        raise MessageError(f"the message's field {name} is out of range")
    return value
