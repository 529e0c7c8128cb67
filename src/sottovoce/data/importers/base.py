"""What every importer has, and the registry of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sottovoce.data.assembly import Keep, RawTables, assemble
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.files import Archive
from sottovoce.errors import DataError
from sottovoce.registry import Component, Registry


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
    """Of a plain table: which column plays which role."""
    delimiter: str | None = None


class Importer(Component, ABC):
    """A kind of files that can be turned into a data set."""

    __slots__ = ()
    certain: ClassVar[bool] = False
    """Whether what fits can be nothing else: such importers are asked before the others."""
    takes_country: ClassVar[bool] = False
    """Whether a country means something to it."""
    takes_columns: ClassVar[bool] = False
    """Whether columns and a delimiter mean something to it."""

    @abstractmethod
    def fits(self, archive: Archive, only: str | None) -> bool:
        """Whether these are such files; `only` is the one of them that was named, if one was."""

    @abstractmethod
    def dataset(self, archive: Archive, request: Request) -> Dataset:
        """The data set, put together and checked."""


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


IMPORTERS: Registry[type[Importer]] = Registry("importer", "sottovoce.data.importers", Importer)
