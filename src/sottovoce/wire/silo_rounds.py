"""What the orchestrator and the data owners of a DRIFT federation say to each other in a round.

A request, rows and gradients are bytes: numbers of four bytes, rows in single precision, all
little-endian. The simulation counts these bytes, and over Flower the same ones travel, in tables
that also say of which federation and round they are: a query (which rows do you want?) and, to
owners that want any, a task (here they are). What is off is rejected whole with `MessageError`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.errors import MessageError
from sottovoce.wire.cohort_rounds import NOTHING, Content, fields_of
from sottovoce.wire.fields import pack_numbers, unpack_numbers
from sottovoce.wire.frames import PROTOCOL

_REQUEST = struct.Struct("<III")
_ROWS = struct.Struct("<QII")
_GRADIENTS = struct.Struct("<IQII")
_LARGEST = 2**62
_WIDEST = 4096
_SENTENCE = 500

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


# --- bytes ---------------------------------------------------------------------------------------


def request_bytes(users: int, items: int) -> int:
    """The length of a request for so many rows."""
    return _REQUEST.size + 4 * (users + items)


def rows_bytes(users: int, items: int, size: int) -> int:
    """The length of an answer: numbers, and rows in single precision."""
    return _ROWS.size + 4 * (1 + size) * (users + items)


def gradients_bytes(users: int, items: int, size: int) -> int:
    return _GRADIENTS.size + 4 * (1 + size) * (users + items)


def encode_row_request(request: RowRequest) -> bytes:
    head = _REQUEST.pack(request.owner, len(request.users), len(request.items))
    return head + pack_numbers(request.users) + pack_numbers(request.items)


def decode_row_request(content: bytes) -> RowRequest:
    owner, n_users, n_items = _head(_REQUEST, content)
    users, items, end = _numbers(content, _REQUEST.size, n_users, n_items)
    if end != len(content):
        raise MessageError("the request has another length than it says")
    return RowRequest(owner, users, items)


def encode_rows(rows: Rows) -> bytes:
    return _ROWS.pack(rows.version, len(rows.users), len(rows.items)) + _table(rows)


def decode_rows(content: bytes) -> Rows:
    version, n_users, n_items = _head(_ROWS, content)
    return Rows(_version(version), *_rows(content, _ROWS.size, n_users, n_items))


def encode_gradients(found: Gradients) -> bytes:
    counts = len(found.users), len(found.items)
    return _GRADIENTS.pack(found.owner, found.version, *counts) + _table(found)


def decode_gradients(content: bytes) -> Gradients:
    owner, version, n_users, n_items = _head(_GRADIENTS, content)
    rows = _rows(content, _GRADIENTS.size, n_users, n_items)
    return Gradients(owner, _version(version), *rows)


def _table(table: Rows | Gradients) -> bytes:
    rows = table.user_rows.astype("<f4").tobytes() + table.item_rows.astype("<f4").tobytes()
    return pack_numbers(table.users) + pack_numbers(table.items) + rows


def _head(head: struct.Struct, content: bytes) -> tuple[int, ...]:
    if len(content) < head.size:
        raise MessageError("the message is too short")
    return head.unpack_from(content)


def _version(version: int) -> int:
    if version > _LARGEST:
        raise MessageError("the message's version of the model is out of range")
    return version


def _numbers(content: bytes, at: int, n_users: int, n_items: int) -> tuple[Ints, Ints, int]:
    middle, end = at + 4 * n_users, at + 4 * (n_users + n_items)
    if end > len(content):
        raise MessageError("the message is shorter than it says")
    return unpack_numbers(content[at:middle]), unpack_numbers(content[middle:end]), end


def _rows(content: bytes, at: int, n_users: int, n_items: int) -> tuple[Ints, Ints, Floats, Floats]:
    users, items, end = _numbers(content, at, n_users, n_items)
    n, rest = n_users + n_items, len(content) - end
    if rest % (4 * n or 1) or not 4 * n <= rest <= 4 * n * _WIDEST:
        raise MessageError("the message has another length than it says")
    rows = np.frombuffer(content, "<f4", offset=end).astype(np.float32)
    table = rows.reshape(n, rest // (4 * n) if n else 0)
    return users, items, table[:n_users], table[n_users:]


# --- a round -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class QueryRows:
    """orchestrator → owner: which rows do you want in this round? Also tells which of the owner's
    updates was folded last, and who has left."""

    federation: str
    round: int
    counted: int
    """The round of the owner's last update that was folded; -1 if none was."""
    flush: bool
    """Whether all streams end now."""
    departed: Ints
    """Users of whom nothing may remain, ascending."""
    heard: int = NOTHING
    """The last round of which an answer of the owner with sums in it came in, counted or not; -1
    if none did."""

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
        fields = fields_of(content)
        round, counted = fields.whole("round"), fields.whole("counted", NOTHING)
        heard = fields.whole("heard", NOTHING) if "heard" in fields else NOTHING
        if counted >= round or heard > round:
            raise MessageError("the orchestrator counts an update of a round that is to come")
        return cls(
            fields.of("federation", str),
            round,
            counted,
            bool(fields.whole("flush", 0, 1)),
            fields.numbers("departed"),
            heard,
        )


@dataclass(frozen=True, slots=True, repr=False)
class RowsWanted:
    """owner → orchestrator: the users and items of finished blocks, if an update is due (or all
    items and nobody, if owners add up), and the items held now. `problem` says in one sentence what
    stood in the way."""

    owner: int
    round: int
    items: Ints
    request: RowRequest | None = None
    problem: str = ""

    def __repr__(self) -> str:
        return f"<RowsWanted by owner {self.owner} in round {self.round}, redacted>"

    def to_content(self) -> Content:
        return {
            "protocol": PROTOCOL,
            "owner": self.owner,
            "round": self.round,
            "items": pack_numbers(self.items),
            "request": b"" if self.request is None else encode_row_request(self.request),
            "problem": self.problem[:_SENTENCE],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> RowsWanted:
        fields = fields_of(content)
        owner, asked = fields.whole("owner"), fields.of("request", bytes)
        request = decode_row_request(asked) if asked else None
        if request is not None:
            _check_named(owner, request)
        return cls(
            owner,
            fields.whole("round"),
            fields.numbers("items"),
            request,
            fields.sentence("problem", _SENTENCE),
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
            "rows": encode_rows(self.rows),
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> TaskRows:
        fields = fields_of(content)
        rows = decode_rows(fields.of("rows", bytes))
        return cls(fields.of("federation", str), fields.whole("round"), rows)


@dataclass(frozen=True, slots=True, repr=False)
class GradientsSent:
    """owner → orchestrator: what it computed from the rows; nothing if everybody concerned has left
    since. `problem` says in one sentence what stood in the way."""

    owner: int
    round: int
    gradients: Gradients | None = None
    problem: str = ""

    def __repr__(self) -> str:
        return f"<GradientsSent by owner {self.owner} in round {self.round}, redacted>"

    def to_content(self) -> Content:
        return {
            "protocol": PROTOCOL,
            "owner": self.owner,
            "round": self.round,
            "gradients": b"" if self.gradients is None else encode_gradients(self.gradients),
            "problem": self.problem[:_SENTENCE],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> GradientsSent:
        fields = fields_of(content)
        owner, sent = fields.whole("owner"), fields.of("gradients", bytes)
        found = decode_gradients(sent) if sent else None
        if found is not None:
            _check_named(owner, found)
        return cls(owner, fields.whole("round"), found, fields.sentence("problem", _SENTENCE))


def _check_named(owner: int, message: RowRequest | Gradients) -> None:
    """Check which rows are named. Rows of users are absent if data owners send sums; rows of items
    are always there."""
    if message.owner != owner or not len(message.items):
        raise MessageError("a request or gradients name their owner and items, or there are none")
