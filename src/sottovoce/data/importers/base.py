"""What every importer has, and the registry of all."""

from __future__ import annotations

import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from sottovoce.data.assembly import Keep, RawTables, assemble
from sottovoce.data.dataset import PARTS, Dataset
from sottovoce.data.gathering import EventBatch, Gathering, Report, Wish, WrittenEvents
from sottovoce.data.importers.columns import PART_WORDS
from sottovoce.data.importers.files import Archive, bare
from sottovoce.data.prepared import EVENTS, placed, read_prepared, write_prepared
from sottovoce.data.splitting import keep_active, keep_known
from sottovoce.data.times import DayOrder
from sottovoce.errors import DataError
from sottovoce.registry import Component, Registry


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of events, and which part of a ready split it is, if it is one."""

    archive: Archive
    base: str
    part: int | None = None

    @property
    def where(self) -> str:
        """The file as a message should name it."""
        return self.archive.where(self.base)


@dataclass(frozen=True, slots=True)
class Request:
    """What an importer is asked for, beside the download itself."""

    only: str | None = None
    """The one file of the archive that was named, if a file was."""
    name: str | None = None
    """What to call the data set."""
    keep: Keep = "last"
    """Which of repeated (user, item) events counts."""
    country: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Which column of a plain table plays which role."""
    delimiter: str | None = None
    header: bool = True
    """Whether a table's first line names its columns."""
    names: tuple[str, ...] = ()
    """Names for the columns of a table without a line of names."""
    skip_bad: bool = False
    """Whether rows that cannot be read are left out, and counted."""
    dates: DayOrder | None = None
    """The order of days with slashes, such as 31/12/2024; told by the file if it can be."""
    pieces: tuple[Piece, ...] = ()
    """The files of a ready split, where they were named one by one."""
    min_user_items: int | None = None
    require_attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has written."""

    users: int
    items: int
    interactions: int
    decided: Mapping[str, str]
    """What was found out about the files, and what was done with what did not fit."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Interactions of each part of a ready split."""


class Importer(Component, ABC):
    """A kind of files that can be turned into a data set."""

    __slots__ = ()
    certain: ClassVar[bool] = False
    """Whether what fits can be nothing else: such importers are asked before the others."""
    takes_country: ClassVar[bool] = False
    """Whether a country means something to it."""
    takes_columns: ClassVar[bool] = False
    """Whether columns and a delimiter mean something to it."""
    takes_parts: ClassVar[bool] = False
    """Whether the files of a ready split can be given to it one by one."""

    @abstractmethod
    def fits(self, archive: Archive, only: str | None) -> bool:
        """Whether these are such files; `only` is the one of them that was named, if one was."""

    @abstractmethod
    def dataset(self, archive: Archive, request: Request) -> Dataset:
        """The data set, put together and checked."""

    def write(
        self, archive: Archive, request: Request, folder: Path, *, overwrite: bool, report: Report
    ) -> Imported:
        """The data set into a prepared folder, whole or not at all."""
        dataset = self.asked(archive, request)
        write_prepared(dataset, folder, overwrite=overwrite)
        table = dataset.interactions
        return Imported(table.n_users, table.n_items, table.n_interactions, {"kind": self.name})

    def asked(self, archive: Archive, request: Request) -> Dataset:
        """The data set without those whom the request leaves out."""
        dataset = self.dataset(archive, request)
        if request.require_attribute is not None:
            dataset = keep_known(dataset, request.require_attribute)
            story = f"{dataset.provenance}; users whose {request.require_attribute} is known"
            dataset = replace(dataset, provenance=story)
        if request.min_user_items is not None:
            dataset = keep_active(dataset, min_user=request.min_user_items)
            story = f"{dataset.provenance}; users with at least {request.min_user_items} items"
            dataset = replace(dataset, provenance=story)
        return dataset


class Download(Importer):
    """A download that is told by the names of its files; the first one that fits wins."""

    __slots__ = ()
    files: ClassVar[tuple[str, ...]] = ()
    """What it must hold, the file of events first."""
    terms: ClassVar[str] = "terms: those of its source"
    """Under which terms the data may be used."""

    @abstractmethod
    def read(self, archive: Archive, request: Request) -> RawTables:
        """The tables of events, users and items."""

    def fits(self, archive: Archive, only: str | None) -> bool:
        complete = bool(self.files) and all(file in archive for file in self.files)
        return complete and (only is None or only in self.files)

    def dataset(self, archive: Archive, request: Request) -> Dataset:
        raw = self.read(archive, request)
        lacks = [name for name in ("user", "item") if name not in raw.events.column_names]
        if lacks:
            raise DataError(
                f"the importer {self.name} gave events without a column {' and '.join(lacks)}"
            )
        place = f", {request.country}" if request.country else ""
        return assemble(
            request.name or self.name,
            raw,
            where=archive.where(self.files[0]),
            keep=request.keep,
            source=f"{self.name}, {archive.path.name}{place} ({self.terms})",
        )


@dataclass(slots=True)
class EventStream:
    """Events of any number, a batch at a time. `decided` fills while they are read."""

    batches: Iterator[EventBatch]
    decided: dict[str, str]
    users: pa.Table | None = None
    items: pa.Table | None = None
    bare_times: bool = False
    """Whether times are numbers of which the largest tells the unit."""


class Streamed(Importer):
    """Files of one's own, which may be larger than memory."""

    __slots__ = ()
    takes_parts = True

    @abstractmethod
    def pieces(self, archive: Archive, only: str | None) -> tuple[Piece, ...]:
        """The files of events among these; none where there are none."""

    @abstractmethod
    def stream(
        self, pieces: Sequence[Piece], request: Request, report: Callable[[int, int], None]
    ) -> EventStream:
        """The events of these files; `report` hears of how many bytes how many are read."""

    def fits(self, archive: Archive, only: str | None) -> bool:
        return bool(self.pieces(archive, only))

    def dataset(self, archive: Archive, request: Request) -> Dataset:
        whole = replace(request, min_user_items=None, require_attribute=None)
        return self._read_back(archive, whole)

    def asked(self, archive: Archive, request: Request) -> Dataset:
        return self._read_back(archive, request)

    def write(
        self, archive: Archive, request: Request, folder: Path, *, overwrite: bool, report: Report
    ) -> Imported:
        pieces = request.pieces or self.pieces(archive, request.only)
        if not pieces:
            seen = ", ".join(sorted(archive.members)[:8]) or "nothing"
            raise DataError(
                f"{archive.path} holds no files of the kind {self.name} (it has {seen})"
            )

        def megabytes(done: int, total: int) -> None:
            report("reading", done // 10**6, max(1, total // 10**6))

        stream = self.stream(pieces, request, megabytes)
        source = f"{', '.join(piece.base for piece in pieces)} (terms: those of its source)"
        with placed(folder, overwrite=overwrite) as partial:
            done = _gather(stream, request, source, partial, report)
        parts = {name: count for name, count in zip(PARTS, done.parts, strict=True) if count}
        decided = {"kind": self.name, **stream.decided}
        return Imported(done.users, done.items, done.interactions, decided, parts)

    def _read_back(self, archive: Archive, request: Request) -> Dataset:
        with _aside() as folder:
            self.write(archive, request, folder, overwrite=False, report=lambda *_: None)
            base = (request.pieces or self.pieces(archive, request.only))[0].base
            return read_prepared(folder, request.name or bare(base).rsplit(".", 1)[0])


@contextmanager
def _aside() -> Iterator[Path]:
    """For what is written and read back, so that there is one way from events to a data set; for as
    long as that takes, in a folder that nobody else can read."""
    with tempfile.TemporaryDirectory(prefix="sottovoce-import-") as place:
        yield Path(place) / "set"


def gathered(stream: EventStream, request: Request, name: str, source: str) -> Dataset:
    """The data set of a stream of events, as an import would make it."""
    with _aside() as folder:
        with placed(folder) as partial:
            _gather(stream, request, source, partial, lambda *_: None)
        return read_prepared(folder, request.name or name)


def _gather(
    stream: EventStream, request: Request, source: str, folder: Path, report: Report
) -> WrittenEvents:
    scratch = folder / "scratch"
    gathering = Gathering(scratch)
    for batch in stream.batches:
        gathering.add(batch)
    done = gathering.write(
        folder,
        Wish(request.keep, request.min_user_items or 0, request.require_attribute),
        source,
        (stream.users, stream.items),
        bare_times=stream.bare_times,
        report=report,
    )
    scratch.rmdir()
    if done.repeated:
        stream.decided["repeated"] = f"{done.repeated:,} events collapsed to the {request.keep}"
    if done.in_two_parts:
        stream.decided["in two parts"] = (
            f"{done.in_two_parts:,} pairs of a user and an item, counted for the later part"
        )
    return done


def counted(
    pieces: Sequence[Piece], report: Callable[[int, int], None]
) -> Iterator[tuple[Piece, Callable[[int, int], None]]]:
    """Each file with a report that counts those before it."""
    sizes = [piece.archive.size(piece.base) for piece in pieces]
    for number, piece in enumerate(pieces):

        def here(done: int, total: int, before: int = sum(sizes[:number])) -> None:
            report(before + min(done, total), max(1, sum(sizes)))

        yield piece, here


def split_files(archive: Archive, suffixes: tuple[str, ...]) -> tuple[Piece, ...]:
    """The files of a ready split, told by their names (train.csv, mine.test.inter), in the order
    of the parts; none where there is no such split."""
    found: dict[int, list[str]] = {}
    for base in archive.members:
        if bare(base).lower().endswith(suffixes):
            stem = bare(base).lower().rsplit(".", 1)[0]
            words = [w for w in re.split(r"[^a-z]+", stem) if w in PART_WORDS]
            if len(words) == 1:
                found.setdefault(PART_WORDS[words[0]], []).append(base)
    if not {0, 2} <= set(found) or any(len(files) > 1 for files in found.values()):
        return ()
    return tuple(Piece(archive, found[part][0], part) for part in sorted(found))


IMPORTERS: Registry[type[Importer]] = Registry("importer", "sottovoce.data.importers", Importer)


@IMPORTERS.register("prepared")
class PreparedFolder(Importer):
    """A folder that `sottovoce data import` has written."""

    listed_at = 1001
    certain = True

    def fits(self, archive: Archive, only: str | None) -> bool:
        here = archive.path.is_dir() and archive.members.get(EVENTS) == EVENTS
        return here and only in (None, EVENTS)

    def dataset(self, archive: Archive, request: Request) -> Dataset:
        return read_prepared(archive.path, request.name)
