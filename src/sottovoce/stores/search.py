"""What the server keeps of its search for devices that spoil sums. Every function works within a
transaction of the caller's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from sottovoce.parties.searching import Search
from sottovoce.stores.server import drop_fact, fact, set_fact

_SEARCH, _DRAWN = "search", "drawn_groups"


@dataclass(frozen=True, slots=True)
class Drawn:
    """The groups of a round. They are on the disk before the proxy is asked: a server that was
    killed asks for the same, since for others the proxy would not answer."""

    round: int
    attempt: int
    numbers: list[int]
    """Everybody of whom a submission counts, in a group or not."""
    groups: list[list[int]]


def found(link: sa.Connection) -> Search:
    kept = fact(link, _SEARCH)
    return Search() if kept is None else Search.from_table(json.loads(kept))


def keep(link: sa.Connection, search: Search) -> None:
    set_fact(link, _SEARCH, json.dumps(search.to_table()))


def forgive(link: sa.Connection, numbers: Sequence[int]) -> None:
    """Nothing speaks against these devices any more."""
    if fact(link, _SEARCH) is not None:
        keep(link, found(link).without(numbers))


def drawn(link: sa.Connection, round: int, attempt: int) -> Drawn | None:
    """The groups that were drawn for this attempt before."""
    kept = fact(link, _DRAWN)
    there = None if kept is None else Drawn(**json.loads(kept))
    return there if there is not None and (there.round, there.attempt) == (round, attempt) else None


def keep_drawn(link: sa.Connection, groups: Drawn) -> None:
    table = {name: getattr(groups, name) for name in Drawn.__slots__}
    set_fact(link, _DRAWN, json.dumps(table))


def forget_drawn(link: sa.Connection) -> None:
    """Groups of which nobody was asked for a sum are drawn anew."""
    drop_fact(link, _DRAWN)


def to_table(search: Search) -> dict[str, Any]:
    """As an operator sees it."""
    return {
        "on": search.on,
        "suspects": [
            {
                "number": number,
                "failed": mark.failed,
                "rounds": mark.rounds,
                "chance": mark.chance,
            }
            for number, mark in search.suspects().items()
        ],
    }
