"""A download, zipped or unpacked: its files by base name, and delimited text as Arrow tables,
block by block, with errors that name the line."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
        return f"{self.path}: {self.members.get(base, base)}"

    @contextmanager
    def open(self, base: str) -> Iterator[IO[bytes]]:
        """The file's bytes. Damage found while reading raises CorruptData."""
        if base not in self.members:
            raise DataNotFound(f"{self.path} has no file {base}; is the download complete?")
        try:
            if self.path.is_dir():
                with (self.path / self.members[base]).open("rb") as stream:
                    yield stream
            else:
                with (
                    zipfile.ZipFile(self.path) as archive,
                    archive.open(self.members[base]) as stream,
                ):
                    yield stream
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise CorruptData(
                f"{self.where(base)} is damaged ({error}); download it again"
            ) from None


BLOCK = 1 << 25
INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()
_STAND_IN = "\x1f"


@dataclass(frozen=True, slots=True)
class TextLayout:
    """How a file is laid out. `columns` are its fields in order; `wanted` those to read."""

    columns: tuple[str, ...]
    wanted: Mapping[str, pa.DataType]
    delimiter: str = "\t"
    header: bool = False
    quoted: bool = False
    """Fields may be quoted (and then hold delimiters and line ends); read in one piece."""


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows of a file and the number of its first line."""

    line: int
    table: pa.Table


def read_text(archive: Archive, base: str, layout: TextLayout) -> pa.Table:
    """A whole file as one table."""
    blocks = [block.table for block in stream_text(archive, base, layout)]
    return pa.concat_tables(blocks)


def stream_text(archive: Archive, base: str, layout: TextLayout) -> Iterator[TextRows]:
    """A file in blocks of bounded size. Raises CorruptData naming file, line and reason."""
    where = archive.where(base)
    with archive.open(base) as stream:
        line = 1
        if layout.header:
            head = stream.readline()
            layout, line = _with_header(head, layout, where), 2
        empty = True
        for first, block in _blocks(stream, None if layout.quoted else BLOCK, line):
            if block and not block.isspace():
                empty = False
                yield TextRows(first, _parse(first, _utf8(block), layout, where))
        if empty:
            raise CorruptData(f"{where} is empty; download it again")


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
    text = _utf8(line).decode().removeprefix("\ufeff").rstrip("\r\n")
    return [field.strip().strip('"') for field in text.split(delimiter)]


def _with_header(head: bytes, layout: TextLayout, where: str) -> TextLayout:
    names = tuple(split_fields(head, layout.delimiter))
    for name in layout.wanted:
        if name not in names:
            have = ", ".join(names) if any(names) else "nothing"
            raise CorruptData(f"{where} has no column {name!r} in its first line ({have})")
    return TextLayout(names, layout.wanted, layout.delimiter, False, layout.quoted)


def _blocks(stream: IO[bytes], size: int | None, line: int) -> Iterator[tuple[int, bytes]]:
    """Pieces that end at a line end, each with the number of its first line."""
    if size is None:
        yield line, stream.read()
        return
    rest = b""
    while chunk := stream.read(size):
        chunk = rest + chunk
        cut = chunk.rfind(b"\n") + 1
        rest = chunk[cut:]
        if cut:
            yield line, chunk[:cut]
            line += chunk.count(b"\n", 0, cut)
    if rest:
        yield line, rest


def _utf8(block: bytes) -> bytes:
    """UTF-8 as it is; lines that are not UTF-8 are Latin-1, and some files mix the two."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return b"\n".join(_utf8_line(line) for line in block.split(b"\n"))
    return block


def _utf8_line(line: bytes) -> bytes:
    try:
        line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1").encode()
    return line


def _parse(first: int, block: bytes, layout: TextLayout, where: str) -> pa.Table:
    delimiter = layout.delimiter
    if len(delimiter) > 1:
        block = block.replace(delimiter.encode(), _STAND_IN.encode())
        delimiter = _STAND_IN
    try:
        return pacsv.read_csv(
            io.BytesIO(block),
            read_options=pacsv.ReadOptions(column_names=list(layout.columns)),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if layout.quoted else False,
                newlines_in_values=layout.quoted,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(layout.wanted),
                include_columns=list(layout.wanted),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        if not layout.quoted or b'"' not in block:
            _blame(first, block.decode(), layout, delimiter, where)
        if "straddling" in str(error):  # pyarrow's word for a row larger than its blocks
            raise CorruptData(
                f"{where} has a line of more than a megabyte; is a quote never closed?"
            ) from None
        raise CorruptData(f"{where}: {str(error).splitlines()[0]}") from None


def _blame(first: int, text: str, layout: TextLayout, delimiter: str, where: str) -> None:
    """Raise for the first line that does not fit; return where none is found."""
    places = [(layout.columns.index(name), name, kind) for name, kind in layout.wanted.items()]
    for number, line in enumerate(text.split("\n"), first):
        line = line.rstrip("\r")
        if not line:
            continue
        fields = line.split(delimiter)
        if len(fields) != len(layout.columns):
            raise CorruptData(
                f"{where}, line {number}: {len(fields)} fields where {len(layout.columns)} "
                f"belong ({', '.join(layout.columns)})"
            )
        for place, name, kind in places:
            if kind != TEXT and not _fits(fields[place], whole=kind == INT):
                raise CorruptData(
                    f"{where}, line {number}: {name} is {fields[place]!r}, which is not a "
                    f"{'whole ' if kind == INT else ''}number"
                )


def _fits(field: str, *, whole: bool) -> bool:
    try:
        if whole:
            int(field)
        else:
            float(field)
    except ValueError:
        return False
    return True
