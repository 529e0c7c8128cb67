"""Lists of items, a user per line: `user item item …`, as LightGCN's train.txt and test.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sottovoce.data.dataset import PARTS
from sottovoce.data.gathering import EventBatch
from sottovoce.data.importers.base import (
    IMPORTERS,
    EventStream,
    Piece,
    Request,
    Streamed,
    counted,
    split_files,
)
from sottovoce.data.importers.files import Archive, TextNotes, bare, stream_lines
from sottovoce.data.importers.rows import Converter
from sottovoce.data.importers.table import encoding
from sottovoce.errors import ConfigError, CorruptData

SUFFIXES = (".txt", ".dat", ".csv", ".data")
_PEEK = 1 << 16


@IMPORTERS.register("lists")
class Lists(Streamed):
    """A user and her items per line, separated by spaces, as LightGCN's train.txt and test.txt."""

    listed_at = 80

    def fits(self, archive: Archive, only: str | None) -> bool:
        found = self.pieces(archive, only)
        return bool(found) and all(map(_ragged, found))

    def pieces(self, archive: Archive, only: str | None) -> tuple[Piece, ...]:
        return (Piece(archive, only),) if only is not None else split_files(archive, SUFFIXES)

    def stream(
        self, pieces: Sequence[Piece], request: Request, report: Callable[[int, int], None]
    ) -> EventStream:
        parts = {piece.part: piece.base for piece in pieces if piece.part is not None}
        decided = {"user": "the first word of a line", "item": "the other words"}
        if parts:
            told = (f"{PARTS[part]} {base}" for part, base in sorted(parts.items()))
            decided["split"] = ", ".join(told)
        stream = EventStream(iter(()), decided)
        stream.batches = _batches(pieces, stream, report)
        return stream


def _batches(
    pieces: Sequence[Piece], stream: EventStream, report: Callable[[int, int], None]
) -> Iterator[EventBatch]:
    notes, converter, alone = TextNotes(), Converter(), 0
    names = {"user": "user", "item": "item"}
    for piece, here in counted(pieces, report):
        if bare(piece.base).lower().endswith(".parquet"):
            raise ConfigError(f"{piece.where} is Parquet and holds no lists; leave --kind out")
        for line, text in stream_lines(piece.archive, piece.base, notes, here):
            words = pc.ascii_split_whitespace(
                pc.ascii_trim_whitespace(pa.array(text.decode().split("\n")))
            )
            lengths = words.value_lengths().to_numpy()
            flat, starts = words.flatten(), np.cumsum(lengths) - lengths
            filled = pc.not_equal(flat.take(pa.array(starts)), "").to_numpy(zero_copy_only=False)
            alone += int(np.count_nonzero(filled & (lengths == 1)))
            first = np.zeros(len(flat), bool)
            first[starts] = True
            users = flat.take(pa.array(np.repeat(starts, lengths - 1)))
            rows = np.repeat(np.arange(len(lengths)), lengths - 1)
            columns = {"user": users, "item": flat.filter(pa.array(~first))}
            yield converter.batch(
                columns, names, piece.where, partial(_line, line, rows),
                part=piece.part,
            )  # fmt: skip
    stream.decided["encoding"] = encoding(notes)
    if alone:
        stream.decided["left out"] = f"{alone:,} lines with a user and no items"


def _line(first: int, lines: NDArray[np.int64], row: int) -> int:
    return first + int(lines[row])


def _ragged(piece: Piece) -> bool:
    """Whether lines have different numbers of words, nothing but spaces between them, and each
    another user: in a table with a row that is broken, users come again."""
    try:
        with piece.archive.open(piece.base) as stream:
            peek = stream.read(_PEEK)
    except CorruptData:
        return False
    lines = peek.split(b"\n")
    lines = [line for line in (lines[:-1] if len(peek) == _PEEK else lines) if line.strip()]
    if not lines and len(peek) == _PEEK:
        lines = [peek]  # a line longer than that
    if any(mark in line for line in lines for mark in (b"\t", b",", b";", b"|", b"::")):
        return False
    words = [line.split() for line in lines]
    if not all(word.isdigit() for line in words for word in line):
        return False
    if len({line[0] for line in words}) < len(words):
        return False
    return len({len(line) for line in words}) > 1 or max(map(len, words), default=0) > 8
