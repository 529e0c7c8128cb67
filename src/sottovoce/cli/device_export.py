"""`sottovoce device export`: all that a store holds, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Store, User
from sottovoce.cli.output import plain
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.user import UserStore


def export(
    path: Store,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write; - is standard output.")
    ],
    user: User = None,
    as_json: Json = False,
) -> None:
    """Write everything that a store holds about its users, as JSON lines in a file of mode 600.

    FILE must not be there yet. It gets history, attributes, choices, ledger, contacts, budget,
    vectors and terms, and in a federation of data owners also what waits for whom. It gets neither
    keys nor the published model. The file is not encrypted, and nothing can be put back from it:
    for that there is sottovoce backup.

    \b
    Examples:
      sottovoce device export ~/sottovoce everything.jsonl
      sottovoce device export ~/sottovoce - | gpg -e -r me > everything.gpg
    """
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.user import whose

    shown = str(file) == "-"
    if shown and as_json:
        raise UsageError("- prints JSON lines by itself; leave --json out, or name a file")
    if shown and sys.stdout.isatty():
        raise UsageError(
            "this would show the whole history on the terminal; name a file, or pipe it on (| less)"
        )
    with open_store(path, readonly=True) as store:
        number = None if user is None else whose(store, user)
        with output.interruptible("nothing was exported"):
            if shown:
                print_export(store, number)
                return
            lines = write_export(file, store, number)
    if as_json:
        output.emit({"store": path, "file": file, "lines": lines})
    else:
        output.show(f"{file}: {lines:,} lines. It is not encrypted; keep it where only you read.")


def write_export(path: Path, store: CohortStore | UserStore, number: int | None) -> int:
    """Write what the store holds about one user, or all; how many lines. Whole or not at all."""
    try:
        from sottovoce.stores.locking import NEW

        handle = os.open(path, os.O_WRONLY | NEW | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} is there already and is not overwritten") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out, store.file.snapshot():
            lines = _write(out, store, number)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return lines


def print_export(store: CohortStore | UserStore, number: int | None) -> None:
    """The same on standard output."""
    with (
        open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as out,
        store.file.snapshot(),
    ):
        _write(out, store, number)


def _write(out: TextIO, store: CohortStore | UserStore, number: int | None) -> int:
    lines = 0
    for entry in _everything(store, number):
        out.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
        lines += 1
    return lines


def _everything(store: CohortStore | UserStore, number: int | None) -> Iterator[dict[str, Any]]:
    from sottovoce.stores.session import DeviceSession
    from sottovoce.stores.user import UserStore

    if isinstance(store, UserStore):
        yield from _with_owners(store, number)
        return
    hosted, users = DeviceSession(store), store.users.tolist()
    terms = hosted.terms
    vectors = hosted.vectors() if terms is not None else None
    if terms is not None:
        yield {"kind": "terms", **terms.to_table()}
    for row, user in enumerate(users):
        if number is not None and user != number:
            continue
        yield {"kind": "user", "number": user, "name": store.name(user)}
        for item, stamp in store.interactions(user):
            yield {"kind": "interaction", "number": user, "item": item, "timestamp": stamp}
        for name, value in store.attributes(user).items():
            yield {"kind": "attribute", "number": user, "name": name, "value": value}
        for record in store.records(user):
            choice = plain(record.choice)
            yield {"kind": "choice", "number": user, "time": record.changed_at, **choice}
        for spent in store.budget(user):
            yield {"kind": "budget", **_renamed(plain(spent), "kind", "release")}
        for sent in store.sent_reports(user):
            yield {"kind": "spent", **plain(sent)}
        for contact in store.contacts(user):
            yield {"kind": "contact", **plain(contact)}
        if vectors is not None:
            yield {"kind": "vector", "number": user, "vector": vectors[row].tolist()}
    for line in store.ledger_rows(number).to_pylist():
        yield {"kind": "report", **_renamed(plain(line), "kind", "release")}


def _with_owners(store: UserStore, number: int | None) -> Iterator[dict[str, Any]]:
    """What there is in a federation of data owners."""
    for user in store.users if number is None else [number]:
        person = store.person(user)
        known = None if person.given is None else person.given.user
        yield {"kind": "user", "number": user, "name": person.name, "known_as": known}
        for item in sorted(store.seen(user)):
            name = store.world.directory.catalogue[item]
            yield {"kind": "interaction", "number": user, "item": name}
        for record in store.records(user):
            choice = plain(record.choice)
            yield {"kind": "choice", "number": user, "time": record.changed_at, **choice}
        for message in store.messages(user):
            yield {"kind": "message", "number": user, **_renamed(message, "kind", "says")}
    for release in store.ledger(number):
        yield {"kind": "release", **plain(release)}


def _renamed(entry: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in entry.items()}
