"""The files that `sottovoce device` reads: invitations and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from sottovoce.errors import DataError, DataNotFound, UsageError

if TYPE_CHECKING:
    from sottovoce.engines.https.invitations import Invitation
    from sottovoce.evaluation.tables import Table
    from sottovoce.parties.store import CohortStore

History = tuple[list[str], list[int] | None]


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


def join(store: CohortStore, card: Invitation) -> None:
    """Keep an invitation; its device has the number that it names."""
    from sottovoce.engines.https.invitations import keep_invitation, kept_invitation

    with store.file.transaction():
        kept, numbers = kept_invitation(store), store.users.tolist()
        if kept is not None and (kept.federation, kept.number) != (card.federation, card.number):
            raise UsageError(
                f"the store {store.path} is invited to another federation, or as another device; "
                f"make a new store"
            )
        if len(numbers) != 1:
            raise UsageError(f"{store.path} is a gateway's store; an invitation is for one device")
        if numbers[0] != card.number:
            store.renumber(numbers[0], card.number)
        keep_invitation(store, card)


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


def device_ledger_table(
    title: str, lines: list[dict[str, Any]], names: dict[int, str] | None
) -> Table:
    """Fits a terminal of 80 columns; --csv has the rest. With `names`, says whose report it is."""
    from sottovoce.evaluation.tables import Column, Table

    bits = any(line["reports"] for line in lines)
    rows_too = any(not line["reports"] for line in lines)
    columns = [
        *([] if names is None else [Column("user")]),
        *(Column("when"), Column("round"), Column("state")),
        *([Column("positive_rows", "pos"), Column("negative_rows", "neg")] if rows_too else []),
        *([Column("reports", format=","), Column("cost", "ε")] if bits else []),
        Column("bytes"),
    ]
    rows = []
    for line in lines:
        kept = ("state", "positive_rows", "negative_rows", "bytes", "reports")
        row = {key: line[key] for key in kept}
        row |= {"when": line["when"][:16], "round": f"{line['round']}.{line['attempt']}"}
        row["cost"] = "none" if line["epsilon"] is None else f"{line['epsilon']:g}"
        if names is not None:
            row["user"] = "\n".join(wrap(names.get(line["user"], str(line["user"])), 12))
        rows.append({column.key: row[column.key] for column in columns})
    notes = ["pos, neg: rows for items in the history, and for others"] if rows_too else []
    if bits:
        notes.append("ε: what the reports of a round cost together, in plain sum")
    return Table(title, columns, rows, notes=notes)


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
