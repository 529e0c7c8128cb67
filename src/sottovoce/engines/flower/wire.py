"""What a conductor and a node say to each other: four kinds of content, as plain tables.

Every field is checked when it arrives; what is off is rejected whole with `MessageError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError, VersionMismatch
from sottovoce.wire.terms import PROTOCOL, Terms

Content = dict[str, int | str | bytes]
"""The fields of one message, in types that every transport knows."""

T = TypeVar("T", int, str, bytes)

NOTHING = -1
"""Stands for a round that there is not: nothing counted, no model kept."""


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """conductor → node: who is willing now? Also tells how the last round went."""

    terms: Terms
    round: int
    """The round that is open or comes next."""
    attempt: int
    counted: tuple[int, int] | None
    """Round and attempt of this node's last report that was counted."""
    model: bytes = b""
    """The model to keep; empty where the node need not have it now."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} round={self.round} attempt={self.attempt}>"

    def to_content(self) -> Content:
        counted = self.counted or (NOTHING, NOTHING)
        return {
            "protocol": PROTOCOL,
            "terms": json.dumps(self.terms.to_table()),
            "round": self.round,
            "attempt": self.attempt,
            "counted_round": counted[0],
            "counted_attempt": counted[1],
            "model": self.model,
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Question:
        return cls(**_question(content))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Task(Question):
    """conductor → node: learn one round with these devices of yours."""

    numbers: NDArray[np.int64]

    def to_content(self) -> Content:
        return {**Question.to_content(self), "numbers": pack_numbers(self.numbers)}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Task:
        return cls(
            **_question(content), numbers=unpack_numbers(field_of(content, "numbers", bytes))
        )


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """node → conductor: the devices that are willing now, the model version kept here and, to a
    task, the sum of their reports. `problem` names what stood in the way, in one sentence."""

    willing: NDArray[np.int64]
    kept: int
    round: int = NOTHING
    attempt: int = NOTHING
    sum: bytes = b""
    """Empty where none of the asked devices takes part."""
    devices: int = 0
    problem: str = ""

    def __repr__(self) -> str:
        return f"<Answer round={self.round} devices={self.devices}, redacted>"

    def to_content(self) -> Content:
        return {
            "protocol": PROTOCOL,
            "willing": pack_numbers(self.willing),
            "kept": self.kept,
            "round": self.round,
            "attempt": self.attempt,
            "sum": self.sum,
            "devices": self.devices,
            "problem": self.problem,
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Answer:
        check_protocol(content)
        return cls(
            unpack_numbers(field_of(content, "willing", bytes)),
            field_of(content, "kept", int),
            field_of(content, "round", int),
            field_of(content, "attempt", int),
            field_of(content, "sum", bytes),
            field_of(content, "devices", int),
            printable(field_of(content, "problem", str)[:500]),
        )


def pack_numbers(numbers: NDArray[np.int64]) -> bytes:
    """Numbers of devices (or of users, or items), ascending, four bytes each."""
    return np.asarray(numbers, dtype=np.int64).astype("<u4").tobytes()


def unpack_numbers(payload: bytes) -> NDArray[np.int64]:
    if len(payload) % 4:
        raise MessageError("a list of numbers has a broken length")
    numbers = np.frombuffer(payload, "<u4").astype(np.int64)
    if np.any(np.diff(numbers) <= 0):
        raise MessageError("numbers must be ascending and there once each")
    return numbers


def _question(content: Mapping[str, Any]) -> dict[str, Any]:
    check_protocol(content)
    try:
        table = json.loads(field_of(content, "terms", str))
    except (ValueError, RecursionError):
        raise MessageError("the terms of the federation cannot be read") from None
    counted = field_of(content, "counted_round", int), field_of(content, "counted_attempt", int)
    return {
        "terms": Terms.from_table(table),
        "round": field_of(content, "round", int),
        "attempt": field_of(content, "attempt", int),
        "counted": None if counted[0] == NOTHING else counted,
        "model": field_of(content, "model", bytes),
    }


def check_protocol(content: Mapping[str, Any], known: int = PROTOCOL) -> None:
    spoken = content.get("protocol")
    if spoken != known or isinstance(spoken, bool):
        raise VersionMismatch(
            f"the other side speaks version {spoken!r} of the protocol, this program version "
            f"{known}; install the same release of Sottovoce on both sides"
        )


def printable(text: str) -> str:
    """It will be shown to an operator, whose terminal must not be told anything by it."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def field_of(content: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise MessageError(f"the message's field {name} is missing or of the wrong type")
    return value
