"""Any table of events: delimited text, Parquet or JSON, packed or not, with its columns named or
guessed; one file, or the files of a ready split."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sottovoce.data.dataset import PARTS, Dataset
from sottovoce.data.gathering import EventBatch
from sottovoce.data.importers import objects
from sottovoce.data.importers.base import (
    IMPORTERS,
    EventStream,
    Piece,
    Request,
    Streamed,
    counted,
    gathered,
    split_files,
)
from sottovoce.data.importers.columns import Sample, choose_columns, is_item_name, left_out
from sottovoce.data.importers.files import (
    TEXT,
    Archive,
    TextLayout,
    TextNotes,
    bare,
    split_fields,
    stream_text,
)
from sottovoce.data.importers.rows import Converter
from sottovoce.errors import ConfigError, CorruptData, DataNotFound

SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".parquet", ".data", ".rating", ".jsonl", ".ndjson")
_PEEK = 1 << 16
_ROWS = 100
_AT_ONCE = 1 << 19
_MARKS = ("::", "\t", ",", ";", "|")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How a file is to be read: its columns by role, and of text the layout."""

    piece: Piece
    names: tuple[str, ...]
    chosen: Mapping[str, str]
    layout: TextLayout | None = None


def plan_table(piece: Piece, request: Request) -> TablePlan:
    """Looks at the first rows of a file."""
    if bare(piece.base).lower().endswith(".parquet"):
        return _plan_parquet(piece, request)
    if bare(piece.base).lower().endswith(objects.SUFFIXES):
        return _plan_json(piece, request)
    return _plan_text(piece, request)


def _plan_parquet(piece: Piece, request: Request) -> TablePlan:
    if not request.header or request.names or request.delimiter:
        raise ConfigError(
            f"{piece.where} is Parquet, which names its columns: leave --no-header, --columns and "
            "--delimiter out"
        )
    with _parquet(piece) as file:
        names = tuple(file.schema_arrow.names)
        first = next(file.iter_batches(_ROWS), None)
    sample: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        column = [] if first is None else first.column(number).to_pylist()
        sample[name] = [str(value) for value in column if value is not None]
    return TablePlan(piece, names, choose_columns(names, request.columns, piece.where, sample))


def _plan_json(piece: Piece, request: Request) -> TablePlan:
    if not request.header or request.names or request.delimiter:
        raise ConfigError(
            f"{piece.where} is JSON, which names its fields: leave --no-header, --columns and "
            "--delimiter out"
        )
    rows = next(objects.blocks_of(piece, TextNotes(), skip_bad=request.skip_bad), [])[:_ROWS]
    if not rows:
        raise CorruptData(f"{piece.where} has no rows")
    names = tuple(dict.fromkeys(name for _, row in rows for name in row))
    sample = {
        name: [str(row[name]) for _, row in rows if isinstance(row.get(name), str | int | float)]
        for name in names
    }
    return TablePlan(piece, names, choose_columns(names, request.columns, piece.where, sample))


def _plan_text(piece: Piece, request: Request) -> TablePlan:
    where = piece.where
    with piece.archive.open(piece.base) as stream:
        peek = stream.read(_PEEK)
    if peek.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise CorruptData(f"{where} is UTF-16 text; save it as UTF-8")
    if peek.startswith(b"PAR1"):
        raise CorruptData(f"{where} is Parquet by its content; let its name end in .parquet")
    lines = peek.removeprefix(codecs.BOM_UTF8).split(b"\n")
    lines = [line for line in (lines[:-1] if len(peek) == _PEEK else lines) if line.strip()]
    if not lines:
        raise CorruptData(f"{where} is empty")
    if b"\r" in lines[0].rstrip(b"\r"):
        raise CorruptData(f"{where} has line ends of one kind that is no longer used (CR); save it "
                          "with ordinary ones")  # fmt: skip
    delimiter = request.delimiter or _guess_delimiter(lines[: _ROWS // 5])
    head = split_fields(lines[0], delimiter)
    if len(head) == 1:
        raise ConfigError(
            f"{where}: the first line is one field ({head[0][:60]!r}); say what separates fields, "
            "as in --delimiter tab"
        )
    names = _names(head, request, where)
    rest = lines[1:] if request.header else lines
    rows = [fields for line in rest[:_ROWS] if len(fields := split_fields(line, delimiter))
            == len(names)]  # fmt: skip
    sample: Sample = {name: [row[k] for row in rows if row[k]] for k, name in enumerate(names)}
    chosen = choose_columns(names, request.columns, where, sample)
    mark = re.escape(delimiter.encode())
    whole = re.search(rb'(?:^|\n|%b)"[^"\n]*"(?:%b|\r?\n|$)' % (mark, mark), peek)
    quoted = len(delimiter) == 1 and (delimiter in ",;" or whole is not None)
    kinds = dict.fromkeys(chosen.values(), TEXT)
    layout = TextLayout(names, kinds, delimiter, request.header, quoted, request.skip_bad)
    return TablePlan(piece, names, chosen, layout)


def _names(head: Sequence[str], request: Request, where: str) -> tuple[str, ...]:
    if request.header:
        if request.names:
            raise ConfigError("--columns is for a table without a line of names: say --no-header")
        return tuple(head)
    if not request.names and len(head) == 2:
        return ("user", "item")
    if not request.names:
        raise ConfigError(
            f"{where} has {len(head)} columns without names (first {', '.join(head)[:80]}); name "
            "them in order, as in --columns user,item,rating,time (_ for one that means nothing)"
        )
    if len(request.names) != len(head):
        raise ConfigError(
            f"{where} has {len(head)} columns where --columns names {len(request.names)}; name "
            "each, _ for one that means nothing"
        )
    return request.names


def _guess_delimiter(lines: Sequence[bytes]) -> str:
    rows = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
    counts = {mark: [row.count(mark) for row in rows] for mark in _MARKS}
    even = [mark for mark in _MARKS if counts[mark][0] and len(set(counts[mark])) == 1]
    best = max(even or _MARKS, key=lambda mark: counts[mark][0] * len(mark))
    return best if counts[best][0] or " " not in rows[0] else " "


def stream_tables(
    plans: Sequence[TablePlan], request: Request, report: Callable[[int, int], None]
) -> EventStream:
    """The events of files that were looked at."""
    first = plans[0]
    for plan in plans[1:]:
        if [*plan.chosen] != [*first.chosen]:
            raise ConfigError(
                f"{first.piece.base} has columns for {', '.join(first.chosen)}, and "
                f"{plan.piece.base} for {', '.join(plan.chosen)}; files of one data set must "
                "agree: leave a column out with --column ROLE=-"
            )
    if first.piece.part is not None and "split" in first.chosen:
        raise ConfigError(
            f"{first.piece.where} is a part of a split, and has a column {first.chosen['split']!r} "
            "that says which; leave that out with --column split=-, or give one file"
        )
    converter = Converter(request.skip_bad, request.dates)
    stream = EventStream(iter(()), _decided(plans))
    stream.batches = _batches(plans, converter, stream, report)
    return stream


def _decided(plans: Sequence[TablePlan]) -> dict[str, str]:
    first = plans[0]
    told = {role: f"column {name}" for role, name in first.chosen.items()}
    parts = {plan.piece.part: plan.piece.base for plan in plans if plan.piece.part is not None}
    if parts:
        told["split"] = ", ".join(f"{PARTS[part]} {base}" for part, base in sorted(parts.items()))
    others = [name for name in left_out(first.names, first.chosen) if name not in ("", "_")]
    if others:
        told["left out"] = f"columns {', '.join(others)}"
    if first.layout is not None:
        told["separated by"] = {"\t": "tab", " ": "space"}.get(
            first.layout.delimiter, first.layout.delimiter
        )
    return told


def _batches(
    plans: Sequence[TablePlan],
    converter: Converter,
    stream: EventStream,
    report: Callable[[int, int], None],
) -> Iterator[EventBatch]:
    by_piece = {id(plan.piece): plan for plan in plans}
    for piece, here in counted([plan.piece for plan in plans], report):
        plan = by_piece[id(piece)]
        yield from _reader(plan)(plan, converter, here)
    stream.bare_times = converter.bare_times
    notes = converter.notes
    if "timestamp" in stream.decided:
        stream.decided["timestamp"] += f", {converter.told()}"
    if plans[0].layout is not None:
        stream.decided["encoding"] = encoding(notes)
    if notes.skipped:
        stream.decided["skipped"] = (
            f"{notes.skipped:,} rows that could not be read, the first in line "
            f"{notes.first_skipped:,}"
        )


def _reader(plan: TablePlan) -> Callable[..., Iterator[EventBatch]]:
    if plan.layout is not None:
        return _of_text
    return _of_json if bare(plan.piece.base).lower().endswith(objects.SUFFIXES) else _of_parquet


def encoding(notes: TextNotes) -> str:
    """Which encoding was taken, in words."""
    if not notes.not_utf8:
        return "UTF-8"
    return f"UTF-8, and Windows-1252 for {notes.not_utf8:,} lines that are not"


def _of_text(
    plan: TablePlan, converter: Converter, report: Callable[[int, int], None]
) -> Iterator[EventBatch]:
    if plan.layout is None:
        return
    piece = plan.piece
    blocks = stream_text(piece.archive, piece.base, plan.layout, converter.notes, report)
    for block in blocks:
        columns = {role: block.table[name] for role, name in plan.chosen.items()}
        yield converter.batch(columns, plan.chosen, piece.where, block.line_of, part=piece.part)


def _of_json(
    plan: TablePlan, converter: Converter, report: Callable[[int, int], None]
) -> Iterator[EventBatch]:
    piece, skip_bad = plan.piece, converter.skip_bad
    for block in objects.blocks_of(piece, converter.notes, report, skip_bad=skip_bad):
        found = objects.texts_of(block, [*plan.chosen.values()], piece.where, skip_bad=skip_bad)
        columns = {role: found[name] for role, name in plan.chosen.items()}
        numbers = [n for n, _ in block]
        yield converter.batch(
            columns, plan.chosen, piece.where, numbers.__getitem__, part=piece.part
        )


def _of_parquet(
    plan: TablePlan, converter: Converter, report: Callable[[int, int], None]
) -> Iterator[EventBatch]:
    piece, done = plan.piece, 0
    size = piece.archive.size(piece.base)
    with _parquet(piece) as file:
        total = max(1, file.metadata.num_rows)
        for batch in file.iter_batches(_AT_ONCE, columns=[*plan.chosen.values()]):
            columns = {role: batch.column(name) for role, name in plan.chosen.items()}
            yield converter.batch(
                columns, plan.chosen, piece.where, partial(_row_after, done),
                part=piece.part, row="row",
            )  # fmt: skip
            done += batch.num_rows
            report(size * done // total, size)


def read_table(table: pa.Table, request: Request, where: str) -> Dataset:
    """A table in memory to a data set, by the rules of files."""
    names = tuple(table.column_names)
    first = table.slice(0, _ROWS)
    sample = {
        name: [str(value) for value in first.column(number).to_pylist() if value is not None]
        for number, name in enumerate(names)
    }
    if not table.num_rows:
        raise CorruptData(f"{where} has no rows")
    chosen = choose_columns(names, request.columns, where, sample)
    converter = Converter(request.skip_bad, request.dates)
    stream = EventStream(iter(()), {})

    def batches() -> Iterator[EventBatch]:
        for start in range(0, table.num_rows, _AT_ONCE):
            part = table.slice(start, _AT_ONCE)
            columns = {role: part.column(name) for role, name in chosen.items()}
            place = partial(_row_after, start)
            yield converter.batch(columns, chosen, where, place, row="row")
        stream.bare_times = converter.bare_times

    stream.batches = batches()
    return gathered(stream, request, where, f"{where} (terms: those of its source)")


def read_history(path: Path) -> list[str]:
    """One person's items, oldest first: a JSON list, a table with a column of items and perhaps of
    times, or one item a line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataNotFound(f"{path} cannot be read: {error}") from None
    if path.suffix.lower() == ".json":
        return _listed(text, path)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise CorruptData(f"{path} has no items")
    marked = any(mark in lines[0] for mark in _MARKS)  # ids may have spaces
    some = [line.encode() for line in lines[: _ROWS // 5]]
    delimiter = _guess_delimiter(some) if marked else _MARKS[1]
    rows = [split_fields(line.encode(), delimiter) for line in lines]
    head, rest = rows[0], rows[1:]
    if len(head) == 1 and not is_item_name(head[0]):
        return [line.strip() for line in lines]
    if any(len(row) != len(head) for row in rest):
        raise CorruptData(f"{path} has rows with more or fewer fields than its first line")
    columns = {name: [row[k] for row in rest] for k, name in enumerate(head)}
    # Nobody is named: all rows are one person's.
    chosen = choose_columns([*head, ""], {"user": ""}, str(path), columns)
    made = {"user": pa.array(["-"] * len(rest), pa.string())}
    for role in ("item", "timestamp"):
        if role in chosen:
            made[role] = pa.array(columns[chosen[role]], pa.string())
    batch = Converter().batch(made, chosen, str(path), partial(_row_after, 1))
    items = [str(item) for item in batch.items.to_pylist()]
    if batch.times is None:
        return items
    return [items[k] for k in np.argsort(batch.times, kind="stable").tolist()]


def _listed(text: str, path: Path) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(type(one) in (str, int) for one in found):
        raise CorruptData(f"{path} must be a JSON list of items")
    return [str(one) for one in found]


def _row_after(before: int, row: int) -> int:
    return before + row + 1


@contextmanager
def _parquet(piece: Piece) -> Iterator[pq.ParquetFile]:
    """A Parquet file of an archive; what is wrong with it is told as CorruptData."""
    with piece.archive.seekable(piece.base) as path:
        try:
            with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise CorruptData(f"{piece.where} cannot be read: {reason}") from None


@IMPORTERS.register("table")
class PlainTable(Streamed):
    """A table with a row per event: delimited text, Parquet or JSON, one file or a ready split."""

    listed_at = 1000  # it takes whatever nobody else knows
    takes_columns = True

    def pieces(self, archive: Archive, only: str | None) -> tuple[Piece, ...]:
        if only is not None:
            return (Piece(archive, only),)
        tables = [base for base in archive.members if bare(base).lower().endswith(SUFFIXES)]
        return split_files(archive, SUFFIXES) or (
            (Piece(archive, tables[0]),) if len(tables) == 1 else ()
        )

    def stream(
        self, pieces: Sequence[Piece], request: Request, report: Callable[[int, int], None]
    ) -> EventStream:
        return stream_tables([plan_table(piece, request) for piece in pieces], request, report)
