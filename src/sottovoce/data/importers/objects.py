"""Events as JSON: an object per line, or one list of objects."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    piece: Piece, notes: TextNotes, report: Callable[[int, int], None] = lambda *_: None
) -> Iterator[Objects]:
    """The objects of a file, a block at a time. A list is read whole."""
    with piece.archive.open(piece.base) as stream:
        head = stream.read(_PEEK).removeprefix(codecs.BOM_UTF8).lstrip()
        if not head:
            raise CorruptData(f"{piece.where} is empty")
        listed = head[:1] == b"["
        rest = stream.read() if listed else b""
    if listed:
        found = _parsed(head + rest, piece.where)
        yield [(n, _object(one, f"{piece.where}, entry {n}")) for n, one in enumerate(found, 1)]
        return
    for first, text in stream_lines(piece.archive, piece.base, notes, report):
        lines = [(n, line) for n, line in enumerate(text.split(b"\n"), first) if line.strip()]
        yield [
            (n, _object(_parsed(line, where), where))
            for n, line in lines
            for where in [f"{piece.where}, line {n}"]
        ]


def texts_of(objects: Objects, names: Sequence[str], where: str) -> dict[str, pa.Array]:
    """Columns of texts; what an object lacks is empty."""
    return {
        name: pa.array(
            [_text(row.get(name), f"{where}, row {n}: {name}") for n, row in objects], pa.string()
        )
        for name in names
    }


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
