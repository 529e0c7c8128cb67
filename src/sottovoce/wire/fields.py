"""Reading the fields of a table that somebody else has sent: each is checked, and what is off is
refused with one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError

T = TypeVar("T")
_LARGEST = 2**62


class Fields:
    """A table, and what its sender calls it in a sentence."""

    def __init__(self, table: object, what: str = "the message") -> None:
        if not isinstance(table, Mapping):
            raise MessageError(f"{what} cannot be read")
        self._table: Mapping[str, Any] = table
        self._what = what

    @classmethod
    def of_json(cls, body: bytes | str, what: str = "the message") -> Fields:
        try:
            return cls(json.loads(body), what)
        except (ValueError, RecursionError):
            raise MessageError(f"{what} cannot be read") from None

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> object:
        """Whatever it is, or nothing."""
        return self._table.get(name)

    def of(self, name: str, kind: type[T]) -> T:
        value = self._table.get(name)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise MessageError(f"{self._what}'s field {name} is missing or of the wrong type")
        return value

    def whole(self, name: str, low: int = 0, high: int = _LARGEST) -> int:
        value = self.of(name, int)
        if not low <= value <= high:
            raise MessageError(f"{self._what}'s field {name} is out of range")
        return value

    def hex(self, name: str, size: int) -> bytes:
        """Bytes that stand there in hexadecimal."""
        try:
            value = bytes.fromhex(self.of(name, str))
        except ValueError:
            value = b""
        if len(value) != size:
            raise MessageError(f"{self._what}'s field {name} must be {size} bytes in hexadecimal")
        return value

    def numbers(self, name: str) -> NDArray[np.int64]:
        """As `pack_numbers` wrote them."""
        return unpack_numbers(self.of(name, bytes))

    def sentence(self, name: str, longest: int = 500) -> str:
        """It will be shown to an operator, whose terminal must not be told anything by it."""
        return "".join(sign if sign.isprintable() else "?" for sign in self.of(name, str)[:longest])


def pack_numbers(numbers: NDArray[np.int64]) -> bytes:
    """Numbers of devices, users or items, ascending, four bytes each."""
    return np.asarray(numbers, dtype=np.int64).astype("<u4").tobytes()


def unpack_numbers(payload: bytes) -> NDArray[np.int64]:
    if len(payload) % 4:
        raise MessageError("a list of numbers has a broken length")
    numbers = np.frombuffer(payload, "<u4").astype(np.int64)
    if (numbers[1:] <= numbers[:-1]).any():
        raise MessageError("numbers must be ascending and there once each")
    return numbers
