"""Runs side by side in a table that a reader can sort, filter and compare in the page itself.

The table is whole without a script. `pages/compared.js` adds what moves, and reads all it needs
from the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sottovoce.errors import UsageError


@dataclass(frozen=True, slots=True)
class Aspect:
    """A column. Numbers have a `format`; words have none."""

    key: str
    label: str
    format: str = ""
    best: Literal["max", "min"] | None = None
    change: Literal["", "difference", "ratio"] = ""
    """How a value is held against that of a chosen row; empty: not at all."""
    own_world: bool = False
    """Whether values compare under one protocol on one data set alone."""
    choose: bool = False
    """Whether rows can be chosen by a value of it."""
    shown: bool = True
    """Whether it is there from the start; a script hides it otherwise."""

    def text(self, value: str | float | None) -> str:
        """A dash where there is nothing to show."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, str):
            return value
        return "no bound" if math.isinf(value) else format(value, self.format)

    @property
    def digits(self) -> int:
        """Behind the point."""
        found = re.search(r"\.(\d+)f", self.format)
        return int(found.group(1)) if found else 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with what belongs to it."""

    value: str | float | None
    half: float = math.nan
    """Half the width of its 95 % interval."""
    text: str = ""
    """Shown in the place of the value."""
    choice: str = ""
    """By which rows are chosen, where that is not the text."""
    href: str = ""
    differs: tuple[str, ...] = ()
    """Names of the rows from which it differs by more than chance."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    name: str
    world: str
    """Data and protocol: rows of one world compare."""
    entries: Mapping[str, Entry | str | float | None]
    href: str = ""
    central: bool = False
    """Whether it is a baseline that has seen everything."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The table; the first column is the name of a row."""

    title: str
    aspects: Sequence[Aspect]
    rows: Sequence[ComparedRow]
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        known, names = {one.key for one in self.aspects}, [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise UsageError("two rows of a comparison have one name")
        for row in self.rows:
            unknown = sorted(set(row.entries) - known)
            if unknown:
                raise UsageError(f"a comparison has no column {unknown[0]!r}")

    def places(self) -> dict[str, str]:
        """The id of each row in the page, by its name."""
        return {row.name: f"row{number}" for number, row in enumerate(self.rows, 1)}

    def content(self) -> dict[str, Any]:
        """For the template."""
        places, worlds = self.places(), list(dict.fromkeys(row.world for row in self.rows))
        best = {one.key: self._best(one, len(worlds)) for one in self.aspects}
        rows = [
            {
                "attributes": {
                    "id": places[row.name],
                    "data-world": worlds.index(row.world) + 1,
                    "class": "central" if row.central else None,
                },
                "cells": [
                    _named(row),
                    *(
                        _cell(one, _entry(row, one.key), best[one.key], places)
                        for one in self.aspects
                    ),
                ],
            }
            for row in self.rows
        ]
        heads = [{"attributes": {}, "label": "run"}, *map(_head, self.aspects)]
        return {"title": self.title, "columns": heads, "rows": rows, "notes": self.notes}

    def _best(self, aspect: Aspect, worlds: int) -> str | None:
        """As it is shown, so that equal texts are never told apart; None where rows do not
        compare, or one alone has a value."""
        values = [_entry(row, aspect.key).value for row in self.rows]
        numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
        if aspect.best is None or len(numbers) < 2 or (aspect.own_world and worlds > 1):
            return None
        return aspect.text(max(numbers) if aspect.best == "max" else min(numbers))


def _entry(row: ComparedRow, key: str) -> Entry:
    found = row.entries.get(key)
    return found if isinstance(found, Entry) else Entry(found)


def _named(row: ComparedRow) -> dict[str, Any]:
    return {"attributes": {"scope": "row"}, "text": row.name, "href": row.href, "half": ""}


def _head(aspect: Aspect) -> dict[str, Any]:
    number = bool(aspect.format)
    return {
        "label": aspect.label,
        "attributes": {
            "class": "number" if number else None,
            "data-kind": "number" if number else None,
            "data-best": aspect.best,
            "data-digits": aspect.digits or None,
            "data-change": aspect.change or None,
            "data-world": "own" if aspect.own_world else None,
            "data-choose": "yes" if aspect.choose else None,
            "data-shown": None if aspect.shown else "no",
        },
    }


def _cell(
    aspect: Aspect, entry: Entry, best: str | None, places: Mapping[str, str]
) -> dict[str, Any]:
    value, text = entry.value, entry.text or aspect.text(entry.value)
    kinds = ["number"] * bool(aspect.format) + ["best"] * (best is not None and text == best)
    raw = None
    if isinstance(value, int | float) and not math.isnan(value):
        raw = "Infinity" if math.isinf(value) else f"{value:.12g}"
    differs = " ".join(places[name] for name in entry.differs if name in places)
    return {
        "attributes": {
            "class": " ".join(kinds) or None,
            "data-v": raw,
            "data-choice": entry.choice or None,
            "data-differs": differs or None,
        },
        "text": text,
        "href": entry.href,
        "half": "" if math.isnan(entry.half) else aspect.text(entry.half),
    }
