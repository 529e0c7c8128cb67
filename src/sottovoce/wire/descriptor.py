"""The round descriptor: all that a device must read to know whether there is something to do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sottovoce.errors import MessageError
from sottovoce.wire.frames import SAME_RELEASE, check_protocol
from sottovoce.wire.sealing import KEY_BYTES, key_id

State = Literal["waiting", "open", "finished"]
Selection = Literal["all", "list"]
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Descriptor:
    federation: str
    terms: str
    """Digest of the terms in force."""
    round: int
    attempt: int
    state: State
    selection: Selection
    """Whether everyone is asked, or those of a list."""
    model: int
    """The round of the model to learn from."""
    poll_seconds: float
    report_key: bytes = b""
    """Public key to which reports are sealed, in an open round of a federation with a proxy."""
    published: int | None = None
    """The version to recommend by, where that is not always the newest model."""
    catalogue: str = ""
    """Name of the catalogue that is published."""
    roster: str = ""
    """Another one whenever somebody was shut out or let in again; it does not tell whom. Empty
    where that has never happened."""
    waits: str = ""
    """The kind of wait (`core.waiting`) if the round does not move on by itself; else empty."""

    @property
    def key(self) -> tuple[int, int]:
        return self.round, self.attempt

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Descriptor:
        """From what a server published; fields that are not known here are left alone."""
        check_protocol(table.get("protocol"), "the server speaks", SAME_RELEASE)
        texts = [table.get(name) for name in ("federation", "terms", "state", "selection")]
        names = [table.get(name, "") for name in ("catalogue", "roster")]
        counts = [table.get(name) for name in ("round", "attempt", "model")]
        seconds, version = table.get("poll_seconds"), table.get("published")
        if version is not None:
            counts.append(version)
        if (
            not all(isinstance(text, str) for text in (*texts, *names))
            or max(map(len, names)) > _LONGEST_NAME
            or not all(type(count) is int and 0 <= count < 2**32 for count in counts)
            or isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not abs(seconds) <= sys.float_info.max  # a whole number may be larger
            or texts[2] not in get_args(State)
            or texts[3] not in get_args(Selection)
        ):
            raise MessageError("what the server says of the round makes no sense")
        fields = ("federation", "terms", "round", "attempt", "state", "selection", "model")
        told = {name: table[name] for name in fields}
        key = _report_key(table.get("report_key"))
        told |= {"poll_seconds": float(seconds), "published": version}
        return cls(**told, report_key=key, catalogue=names[0], roster=names[1], waits=_kind(table))


def _kind(table: dict[str, Any]) -> str:
    """The kind of wait; empty if it makes no sense, because nothing depends on it."""
    told = table.get("waits", "")
    return told if isinstance(told, str) and len(told) <= _LONGEST_NAME else ""


def _report_key(told: object) -> bytes:
    if told is None:
        return b""
    try:
        public, id = bytes.fromhex(told["public"]), bytes.fromhex(told["id"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError, IndexError):
        public, id = b"", b""
    if len(public) != KEY_BYTES or id != key_id(public):
        raise MessageError("the report key that the server published makes no sense")
    return public
