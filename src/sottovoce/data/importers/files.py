"""A download, zipped or unpacked: its files by base name, and delimited text as Arrow tables,
block by block, with errors that name the line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from sottovoce.errors import CorruptData, DataNotFound


@dataclass(frozen=True, slots=True)
class Archive:
    """Files of a zip or a folder. Where a base name occurs twice, the least nested one counts."""

    path: Path
    members: dict[str, str]

    @classmethod
    def at(cls, path: Path, *, deep: bool = True) -> Archive:
        """The archive at a path; `deep=False` leaves the folder's own folders aside."""
        if path.is_dir():
            found = path.glob("**/*" if deep else "*")
            inside = [p.relative_to(path).as_posix() for p in found if p.is_file()]
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                files = [i for i in archive.infolist() if not i.is_dir()]
            if any(i.flag_bits & 1 for i in files):
                raise CorruptData(f"{path} is encrypted; unpack it and give the folder")
            inside = [i.filename for i in files]
        elif path.suffix.lower() == ".zip":
            raise CorruptData(f"{path} is not a zip file, or is cut short; download it again")
        else:
            raise DataNotFound(f"{path} is neither a folder nor a zip file")
        members: dict[str, str] = {}
        for member in sorted(inside, key=lambda m: (m.count("/"), m)):
            base = member.rsplit("/", 1)[-1]
            if not base.startswith("."):
                members.setdefault(base, member)
        return cls(path, members)

    def __contains__(self, base: object) -> bool:
        return base in self.members

    def where(self, base: str) -> str:
        """The file as a message should name it."""
        if self.path.is_dir():
            return str(self.path / self.members.get(base, base))
        return f"{self.path}: {self.members.get(base, base)}"

    @contextmanager
    def open(self, base: str) -> Iterator[IO[bytes]]:
        """The file's bytes, unpacked where its name says that they are packed. Damage found while
        reading raises CorruptData."""
        with self.opened(base) as found:
            yield found.stream

    @contextmanager
    def opened(self, base: str) -> Iterator[Opened]:
        """The same, with how far one has come."""
        if base not in self.members:
            raise DataNotFound(f"{self.path} has no file {base}; is the download complete?")
        try:
            with ExitStack() as stack:
                raw: IO[bytes]
                if self.path.is_dir():
                    place = self.path / self.members[base]
                    raw, size = stack.enter_context(place.open("rb")), place.stat().st_size
                else:
                    archive = stack.enter_context(zipfile.ZipFile(self.path))
                    size = archive.getinfo(self.members[base]).file_size
                    raw = stack.enter_context(archive.open(self.members[base]))
                yield Opened(stack.enter_context(_unpacked(raw, base)), raw, size)
        except _DAMAGE as error:
            raise CorruptData(
                f"{self.where(base)} is damaged ({error}); download it again"
            ) from None

    def size(self, base: str) -> int:
        """Bytes of a file, as `opened` counts them."""
        if self.path.is_dir():
            return (self.path / self.members[base]).stat().st_size
        with zipfile.ZipFile(self.path) as archive:
            return archive.getinfo(self.members[base]).file_size

    @contextmanager
    def seekable(self, base: str) -> Iterator[Path]:
        """A plain file with the same bytes: itself, or a copy for as long as it is needed."""
        if self.path.is_dir() and bare(base) == base:
            yield self.path / self.members[base]
            return
        with self.open(base) as stream, tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.flush()
            yield Path(copy.name)


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is being read: its unpacked bytes, the packed ones, and how many those are."""

    stream: IO[bytes]
    raw: IO[bytes]
    size: int


PACKED = (".gz", ".bz2", ".xz", ".zst")
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, lzma.LZMAError),
    pa.ArrowInvalid,
)


def bare(base: str) -> str:
    """A file's name without what says that it is packed."""
    return base[: base.rindex(".")] if base.lower().endswith(PACKED) else base


def _unpacked(raw: IO[bytes], base: str) -> IO[bytes]:
    name = base.lower()
    if name.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if name.endswith(".bz2"):
        return bz2.BZ2File(raw)
    if name.endswith(".xz"):
        return lzma.LZMAFile(raw)
    if name.endswith(".zst"):
        unpacked = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        return io.BufferedReader(unpacked, 1 << 20)
    return raw


BLOCK = 1 << 25
LONGEST_RECORD = 1 << 26
"""Bytes of one record, at most: a quote that is never closed would swallow the file."""
INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()
_STAND_IN = "\x1f"
ENDS = b"\n"


@dataclass(frozen=True, slots=True)
class TextLayout:
    """How a file is laid out. `columns` are its fields in order; `wanted` those to read."""

    columns: tuple[str, ...]
    wanted: Mapping[str, pa.DataType]
    delimiter: str = "\t"
    header: bool = False
    quoted: bool = False
    """Fields may be quoted, and then hold delimiters and line ends."""
    skips: bool = False
    """Whether rows with too few or too many fields are left out rather than refused."""


@dataclass(slots=True)
class TextNotes:
    """What was found on the way."""

    not_utf8: int = 0
    """Lines that are not UTF-8, and were taken as Windows-1252."""
    skipped: int = 0
    first_skipped: int = 0
    """The line of the first row that was left out."""

    def skip(self, rows: int, line: int) -> None:
        if rows and not self.skipped:
            self.first_skipped = line
        self.skipped += rows


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows of a file and the number of its first line."""

    line: int
    table: pa.Table
    text: bytes = field(repr=False)
    layout: TextLayout

    def line_of(self, row: int) -> int:
        """The line on which a row begins."""
        width = len(self.layout.columns)
        whole = (n for n, fields in _records(self.line, self.text, self.layout)
                 if len(fields) == width)  # fmt: skip
        return next((n for k, n in enumerate(whole) if k == row), self.line)


def read_text(archive: Archive, base: str, layout: TextLayout) -> pa.Table:
    """A whole file as one table."""
    blocks = [block.table for block in stream_text(archive, base, layout)]
    return pa.concat_tables(blocks)


def stream_text(
    archive: Archive,
    base: str,
    layout: TextLayout,
    notes: TextNotes | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Iterator[TextRows]:
    """A file in blocks of bounded size. Raises CorruptData naming file, line and reason. `report`
    hears how many of how many bytes are read."""
    where, notes = archive.where(base), notes or TextNotes()
    with archive.opened(base) as found:
        line, empty = 1, True
        if layout.header:
            head = found.stream.readline()
            layout, line = _with_header(head, layout, where), 2
        for first, block in _blocks(found.stream, layout, line, where):
            if block and not block.isspace():
                empty = False
                text = _single(_utf8(block, notes), layout)
                yield TextRows(first, _parse(first, text, layout, where, notes), text, layout)
            if report is not None:
                report(found.raw.tell(), found.size)
        if empty:
            raise CorruptData(f"{where} is empty; download it again")


def stream_lines(
    archive: Archive,
    base: str,
    notes: TextNotes,
    report: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Whole lines, a block at a time, with the number of the first one."""
    with archive.opened(base) as found:
        layout = TextLayout((), {})
        for first, block in _blocks(found.stream, layout, 1, archive.where(base), BLOCK // 4):
            yield first, _utf8(block, notes)
            if report is not None:
                report(found.raw.tell(), found.size)


def time_column(
    block: TextRows, column: str, form: str, where: str, rows: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Times in `form` (as strptime) to seconds since 1970, of the rows that are marked."""
    texts = block.table[column].filter(rows)
    times = pc.strptime(texts, format=form, unit="s", error_is_null=True)
    if times.null_count:
        bad = int(np.argmax(times.is_null().to_numpy(zero_copy_only=False)))
        line = block.line + int(np.flatnonzero(rows.to_numpy(zero_copy_only=False))[bad])
        raise CorruptData(f"{where}, line {line}: {texts[bad].as_py()!r} is not a time")
    return pc.cast(times, pa.int64())


def split_fields(line: bytes, delimiter: str) -> list[str]:
    """The fields of a header line."""
    text = _utf8(line, TextNotes()).decode().removeprefix("\ufeff").rstrip("\r\n")
    if len(delimiter) == 1 and '"' in text:
        try:
            return [name.strip() for name in next(csv.reader([text], delimiter=delimiter))]
        except csv.Error:
            pass  # split as it stands
    return [name.strip().strip('"') for name in text.split(delimiter)]


def _with_header(head: bytes, layout: TextLayout, where: str) -> TextLayout:
    names = tuple(split_fields(head, layout.delimiter))
    for name in layout.wanted:
        if name not in names:
            have = ", ".join(names) if any(names) else "nothing"
            raise CorruptData(f"{where} has no column {name!r} in its first line ({have})")
    return replace(layout, columns=names, header=False)


def _blocks(
    stream: IO[bytes], layout: TextLayout, line: int, where: str, size: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Pieces that end at the end of a record, each with the number of its first line."""
    rest = b""
    while chunk := stream.read(size or BLOCK):
        chunk = rest + chunk
        if line == 1:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        cut = _cut(chunk, layout.delimiter.encode()) if layout.quoted else chunk.rfind(b"\n") + 1
        rest = chunk[cut:]
        if len(rest) > LONGEST_RECORD:
            raise CorruptData(
                f"{where}, line {line + chunk[:cut].count(ENDS)}: a record of "
                f"more than {LONGEST_RECORD >> 20} megabytes; is a quote never closed?"
            )
        if cut:
            yield line, chunk[:cut]
            line += chunk.count(b"\n", 0, cut)
    if rest:
        yield line, rest


def _cut(chunk: bytes, delimiter: bytes) -> int:
    """Where the last whole record ends, of text that begins with one. A quote opens a field only
    where the field begins."""
    mark = re.escape(delimiter)
    # Fields with a line end in them are rare: without one, the last line end is the place.
    spans = rb'"[^"\n]*+(?:""[^"\n]*+)*+\n'
    if not re.match(spans, chunk) and not re.search(rb"[\r\n%b]%b" % (mark, spans), chunk):
        return chunk.rfind(b"\n") + 1
    cut = at = 0
    opening = re.compile(rb'(?:(?<=[\r\n%b])|\A)"[^"]*+(?:""[^"]*+)*+("|\Z)' % mark)
    while True:
        found = opening.search(chunk, at)
        plain = chunk.rfind(b"\n", at, found.start() if found else len(chunk))
        cut = max(cut, plain + 1)
        if found is None or not found.group(1):
            return cut
        at = found.end()


def _utf8(block: bytes, notes: TextNotes) -> bytes:
    """UTF-8 as it is; lines that are not UTF-8 are Windows-1252, and some files mix the two."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return b"\n".join(_utf8_line(line, notes) for line in block.split(b"\n"))
    return block


def _utf8_line(line: bytes, notes: TextNotes) -> bytes:
    try:
        line.decode()
    except UnicodeDecodeError:
        notes.not_utf8 += 1
        try:
            return line.decode("cp1252").encode()
        except UnicodeDecodeError:  # it lacks five of the 256, which Latin-1 has
            return line.decode("latin-1").encode()
    return line


def _single(block: bytes, layout: TextLayout) -> bytes:
    """With a delimiter of one character."""
    if len(layout.delimiter) > 1:
        return block.replace(layout.delimiter.encode(), _STAND_IN.encode())
    return block


def _delimiter(layout: TextLayout) -> str:
    return _STAND_IN if len(layout.delimiter) > 1 else layout.delimiter


def _parse(first: int, block: bytes, layout: TextLayout, where: str, notes: TextNotes) -> pa.Table:
    skipped = 0

    def skip(row: object) -> str:
        nonlocal skipped
        skipped += 1
        return "skip"

    try:
        table = pacsv.read_csv(
            io.BytesIO(block),
            read_options=pacsv.ReadOptions(
                column_names=list(layout.columns), block_size=max(1 << 20, len(block))
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=_delimiter(layout),
                quote_char='"' if layout.quoted else False,
                newlines_in_values=layout.quoted,
                invalid_row_handler=skip if layout.skips else None,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(layout.wanted),
                include_columns=list(layout.wanted),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        _blame(first, block, layout, where)
        raise CorruptData(f"{where}: {str(error).splitlines()[0]}") from None
    if skipped:
        width = len(layout.columns)
        bad = (n for n, fields in _records(first, block, layout) if len(fields) != width)
        notes.skip(skipped, next(bad, first))
    return table


def _records(first: int, text: bytes, layout: TextLayout) -> Iterator[tuple[int, list[str]]]:
    """The fields of every record with the line on which it begins; slow, for what went wrong."""
    mark = _delimiter(layout)
    if not layout.quoted or b'"' not in text:
        for number, line in enumerate(text.decode().split("\n"), first):
            if line.rstrip("\r"):
                yield number, line.rstrip("\r").split(mark)
        return
    reader = csv.reader(io.StringIO(text.decode(), newline=""), delimiter=mark)
    number = first
    try:
        for fields in reader:
            if fields:
                yield number, fields
            number = first + reader.line_num
    except csv.Error:  # a field that is too long, which is most likely all lines from a quote on
        yield number, ["\n"]


def _blame(first: int, text: bytes, layout: TextLayout, where: str) -> None:
    """Raise for the first record that does not fit; return where none is found."""
    places = [(layout.columns.index(name), name, kind) for name, kind in layout.wanted.items()]
    for number, fields in _records(first, text, layout):
        if len(fields) != len(layout.columns):
            unclosed = any("\n" in text for text in fields[-1:])
            raise CorruptData(
                f"{where}, line {number}: {len(fields)} fields where {len(layout.columns)} "
                f"belong ({', '.join(layout.columns)})"
                f"{'; is a quote never closed?' if unclosed else ''}"
            )
        for place, name, kind in places:
            if kind != TEXT and not _fits(fields[place], whole=kind == INT):
                raise CorruptData(
                    f"{where}, line {number}: {name} is {fields[place]!r}, which is not a "
                    f"{'whole ' if kind == INT else ''}number"
                )


def _fits(text: str, *, whole: bool) -> bool:
    try:
        if whole:
            int(text)
        else:
            float(text)
    except ValueError:
        return False
    return True
