"""What a conductor and the node of a cohort of devices say to each other, as plain tables.

Every field is checked when it arrives; what is off is rejected whole with `MessageError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError
from sottovoce.wire.fields import Fields, pack_numbers
from sottovoce.wire.frames import PROTOCOL, SAME_RELEASE, check_protocol
from sottovoce.wire.terms import Terms

Content = dict[str, int | str | bytes]
"""The fields of one message, in types that every transport knows."""

NOTHING = -1
"""Stands for a round that there is not: nothing counted, no model kept."""


@dataclass(frozen=True, slots=True, repr=False)
class CohortQuestion:
    """conductor → node: who is willing now? Also tells how the last round went."""

    terms: Terms
    round: int
    """The round that is open or comes next."""
    attempt: int
    counted: tuple[int, int] | None
    """Round and attempt of this node's last report that was counted."""
    model: bytes = b""
    """The model to learn from; empty if the node need not have it now."""
    published: bytes = b""
    """The version to recommend by and to keep, where that is another one."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} round={self.round} attempt={self.attempt}>"

    def to_content(self) -> Content:
        counted = self.counted or (NOTHING, NOTHING)
        other: Content = {"published": self.published} if self.published else {}
        return other | {
            "protocol": PROTOCOL,
            "terms": json.dumps(self.terms.to_table()),
            "round": self.round,
            "attempt": self.attempt,
            "counted_round": counted[0],
            "counted_attempt": counted[1],
            "model": self.model,
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> CohortQuestion:
        return cls(**_question(fields_of(content)))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CohortTask(CohortQuestion):
    """conductor → node: learn one round with these devices of yours."""

    numbers: NDArray[np.int64]

    def to_content(self) -> Content:
        return {**CohortQuestion.to_content(self), "numbers": pack_numbers(self.numbers)}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> CohortTask:
        fields = fields_of(content)
        return cls(**_question(fields), numbers=fields.numbers("numbers"))


@dataclass(frozen=True, slots=True, repr=False)
class CohortAnswer:
    """node → conductor: the devices that are willing now, the model version kept here and, to a
    task, the sum of their reports. `problem` names what stood in the way, in one sentence."""

    willing: NDArray[np.int64]
    kept: int
    round: int = NOTHING
    attempt: int = NOTHING
    sum: bytes = b""
    """Empty if none of the asked devices takes part."""
    devices: int = 0
    problem: str = ""

    def __repr__(self) -> str:
        return f"<CohortAnswer round={self.round} devices={self.devices}, redacted>"

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
    def from_content(cls, content: Mapping[str, Any]) -> CohortAnswer:
        fields = fields_of(content)
        return cls(
            fields.numbers("willing"),
            fields.of("kept", int),
            fields.of("round", int),
            fields.of("attempt", int),
            fields.of("sum", bytes),
            fields.of("devices", int),
            fields.sentence("problem"),
        )


def fields_of(content: Mapping[str, Any]) -> Fields:
    """The fields of a message of this version of the protocol."""
    check_protocol(content.get("protocol"), "the other side speaks", SAME_RELEASE)
    return Fields(content)


def _question(fields: Fields) -> dict[str, Any]:
    counted = fields.of("counted_round", int), fields.of("counted_attempt", int)
    try:
        table = json.loads(fields.of("terms", str))
    except (ValueError, RecursionError):
        raise MessageError("the terms of the federation cannot be read") from None
    return {
        "terms": Terms.from_table(table),
        "round": fields.of("round", int),
        "attempt": fields.of("attempt", int),
        "counted": None if counted[0] == NOTHING else counted,
        "model": fields.of("model", bytes),
        "published": fields.of("published", bytes) if "published" in fields else b"",
    }
