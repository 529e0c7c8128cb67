"""The files that `sottovoce user` reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.cli.device_files import csv_rows, whole_number
from sottovoce.errors import DataError

if TYPE_CHECKING:
    from sottovoce.parties.directory import Directory
    from sottovoce.parties.user import Event

_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_events(path: Path, directory: Directory, user: int) -> list[Event]:
    """A user's interactions, in the order of their times; those of one moment as they stand."""
    numbers = {name: number for number, name in enumerate(directory.catalogue)}
    events: list[Event] = []
    for line, row in csv_rows(path, "item", "timestamp"):
        item = numbers.get(row["item"])
        if item is None:
            raise DataError(
                f"{path}, line {line}: {row['item']!r} is not in the federation's catalogue"
            )
        positive = _positive(path, line, row, directory.settings.positive_from)
        time = whole_number(path, line, "timestamp", row["timestamp"])
        events.append((user, item, positive, time))
    return sorted(events, key=lambda event: event[3])


def _positive(path: Path, line: int, row: dict[str, str], positive_from: float) -> bool:
    if "positive" in row:
        flag = _FLAGS.get(row["positive"].lower())
        if flag is None:
            raise DataError(
                f"{path}, line {line}: positive must be 1 or 0, true or false, not "
                f"{row['positive']!r}"
            )
        return flag
    if "rating" not in row:
        raise DataError(f"{path} has neither a column 'rating' nor a column 'positive'")
    try:
        rating = float(row["rating"])
    except ValueError:
        rating = math.nan
    if not math.isfinite(rating):
        raise DataError(f"{path}, line {line}: the rating {row['rating']!r} is no number")
    return rating >= positive_from
