"""Calls of a page: where each is reached, what it takes, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from sottovoce.core.words import said

MOST_ROWS, _MOST_NUMBER, _LONGEST_TEXT = 10_000, 2**53, 1000


class Refusal(Exception):
    """A request that is not answered with what it asks for."""

    def __init__(self, status: int, key: str, **values: object) -> None:
        super().__init__(key)
        self.status, self.said = status, said(key, **values)


def bad() -> NoReturn:
    raise Refusal(400, "trouble.refused")


def text(value: Any, most: int = _LONGEST_TEXT) -> str:
    return value if isinstance(value, str) and len(value) <= most else bad()


def number(value: Any, most: int = _MOST_NUMBER) -> int:
    """Of a query, so that it is text."""
    if not re.fullmatch(r"[0-9]{1,16}", value) or int(value) > most:
        bad()
    return int(value)


def whole(least: int, most: int) -> Callable[[Any], int]:
    """Of a body, so that it is a number."""
    return lambda value: value if type(value) is int and least <= value <= most else bad()


def wholes(least: int, most: int, at_most: int) -> Callable[[Any], list[int]]:
    """Some of them, and no more than so many."""
    read = whole(least, most)

    def several(value: Any) -> list[int]:
        good = isinstance(value, list) and 0 < len(value) <= at_most
        return [read(one) for one in value] if good else bad()

    return several


def yes_or_no(value: Any) -> bool:
    return value if isinstance(value, bool) else bad()


def table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else bad()


def texts(value: Any) -> list[str]:
    return [text(one) for one in value] if isinstance(value, list) else bad()


def one_of(*names: str) -> Callable[[Any], str]:
    return lambda value: value if value in names else bad()


def or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


rows = partial(number, most=MOST_ROWS)


@dataclass(frozen=True, slots=True)
class Call:
    """One of the provider's methods, and where it is reached."""

    method: str
    path: str
    name: str
    takes: Mapping[str, Callable[[Any], Any]]
    usual: Mapping[str, Any]
    """For what is left out."""
    role: str = ""
    """Who may ask, where not everybody may."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the method is given. Raises where something is missing, strange or unknown."""
        told = {**self.usual, **given}
        if told.keys() != self.takes.keys():
            bad()
        read = {name: take(given[name]) for name, take in self.takes.items() if name in given}
        return {**self.usual, **read}


def call(where: str, name: str, *, by: str = "", **takes: Any) -> Call:
    """A way to read each argument, or that with what is usual; `by` whom it may be asked."""
    method, path = where.split()
    usual = {key: one[1] for key, one in takes.items() if isinstance(one, tuple)}
    reads = {key: one[0] if isinstance(one, tuple) else one for key, one in takes.items()}
    return Call(method, f"/api/{path}", name, reads, usual, by)
