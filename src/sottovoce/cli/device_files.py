"""The files that `sottovoce device` reads: invitations and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.errors import DataError, DataNotFound

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.user_door import Event
    from sottovoce.wire.directory import Directory

History = tuple[list[str], list[int] | None]
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def for_owners(invitation: Path) -> bool:
    """Whether it is one to a federation of data owners: it names no server."""
    try:
        return "server" not in json.loads(invitation.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read_users(path: Path) -> list[tuple[int, str]]:
    """Numbers and names of a gateway's users."""
    found = []
    for line, row in csv_rows(path, "number"):
        number = whole_number(path, line, "number", row["number"])
        found.append((number, row.get("name") or str(number)))
    numbers = {str(number): number for number, _ in found}
    for number, name in found:
        if numbers.get(name, number) != number:
            raise DataError(
                f"{path}: user {number} is called {name!r}, which is the number of another user; "
                "nobody could tell them apart"
            )
    return found


def read_history(path: Path, store: CohortStore, alone: int | None) -> dict[int, History]:
    """Items and times by user: all of `alone`, or (None) of whom the column `user` names."""
    items: dict[int, list[str]] = {}
    times: dict[int, list[int]] = {}
    for line, row in csv_rows(path, *(["item"] if alone is not None else ["user", "item"])):
        if not row["item"]:
            raise DataError(f"{path}, line {line}: the item is missing")
        number = alone if alone is not None else _number(path, line, store, row["user"])
        items.setdefault(number, []).append(row["item"])
        if "timestamp" in row:
            stamp = whole_number(path, line, "timestamp", row["timestamp"])
            times.setdefault(number, []).append(stamp)
    return {number: (own, times.get(number)) for number, own in items.items()}


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


def csv_rows(path: Path, *required: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields of each row of a CSV file with a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            reader = csv.DictReader(source, strict=True, restkey="")
            columns = [name.strip() for name in reader.fieldnames or ()]
            missing = [name for name in required if name not in columns]
            if missing:
                raise DataError(
                    f"{path} has no column {missing[0]!r}; its header must name "
                    f"{' and '.join(required)}, and it names {', '.join(columns) or 'nothing'}"
                )
            reader.fieldnames = columns
            for row in reader:
                if len(row) != len(columns) or None in row.values():
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(columns)} fields were expected"
                    )
                yield reader.line_num, {name: value.strip() for name, value in row.items()}
    except FileNotFoundError:
        raise DataNotFound(f"there is no file {path}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file in UTF-8: {error}") from None


def whole_number(path: Path, line: int, what: str, text: str) -> int:
    try:
        value = int(text.removesuffix(".0"))
    except ValueError:
        value = 2**63
    if not -(2**63) <= value < 2**63:
        raise DataError(f"{path}, line {line}: the {what} {text!r} is no whole number")
    return value


def _number(path: Path, line: int, store: CohortStore, user: str) -> int:
    try:
        return store.find(user)
    except DataError as error:
        raise DataError(f"{path}, line {line}: {error}") from None
