"""Events as JSON: an object per line, or one list of objects."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sottovoce.data.importers.base import Piece
from sottovoce.data.importers.files import TextNotes, stream_lines
from sottovoce.errors import CorruptData

SUFFIXES = (".json", ".jsonl", ".ndjson")
_PEEK = 1 << 16

Objects = list[tuple[int, Mapping[str, Any]]]
"""Objects with their numbers: of lines, or of places in a list."""


def blocks_of(
    piece: Piece,
    notes: TextNotes,
    report: Callable[[int, int], None] = lambda *_: None,
    *,
    skip_bad: bool = False,
) -> Iterator[Objects]:
    """Yield the objects of a file, a block at a time. A list is read whole. With `skip_bad`, rows
    that are no objects are left out and counted."""
    with piece.archive.open(piece.base) as stream:
        head = stream.read(_PEEK).removeprefix(codecs.BOM_UTF8).lstrip()
        if not head:
            raise CorruptData(f"{piece.where} is empty")
        listed = head[:1] == b"["
        rest = stream.read() if listed else b""
    skipped = notes if skip_bad else None
    if listed:
        found = _parsed(head + rest, piece.where)
        yield _good(enumerate(found, 1), _object, f"{piece.where}, entry", skipped)
        return
    for first, text in stream_lines(piece.archive, piece.base, notes, report):
        lines = ((n, line) for n, line in enumerate(text.split(b"\n"), first) if line.strip())
        block = _good(lines, _object_on, f"{piece.where}, line", skipped)
        if block:
            yield block


def texts_of(
    objects: Objects, names: Sequence[str], where: str, *, skip_bad: bool = False
) -> dict[str, pa.Array]:
    """Columns of texts. A value is empty if its object lacks it or, with `skip_bad`, if it is
    neither a text nor a number."""

    def text(value: Any, place: str) -> str:
        try:
            return _text(value, place)
        except CorruptData:
            if not skip_bad:
                raise
            return ""

    return {
        name: pa.array(
            [text(row.get(name), f"{where}, row {n}: {name}") for n, row in objects], pa.string()
        )
        for name in names
    }


def _good(
    rows: Iterable[tuple[int, Any]],
    read: Callable[[Any, str], Mapping[str, Any]],
    where: str,
    skipped: TextNotes | None,
) -> Objects:
    good: Objects = []
    for n, row in rows:
        try:
            good.append((n, read(row, f"{where} {n}")))
        except CorruptData as error:
            if skipped is None:
                raise CorruptData(f"{error}; --skip-bad leaves such rows out") from None
            skipped.skip(1, n)
    return good


def _object_on(line: bytes, where: str) -> Mapping[str, Any]:
    return _object(_parsed(line, where), where)


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{where} is no JSON: {error}") from None


def _object(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise CorruptData(f"{where} must be an object with named fields")
    return found


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CorruptData(f"{where} must be a text or a number, not {json.dumps(value)[:40]}")
    return str(value)
