"""Studies that are still programs: a file's settings, cells, and a view that gives rows and claims.
Studies as data are in `files.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sottovoce.errors import ConfigError
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.train import Report
from sottovoce_papers.cells import Arrays as Arrays
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import Claim, Floats, Row, claim, count_of, interval, plus_minus
from sottovoce_papers.files import installed
from sottovoce_papers.show import files_of, page_of
from sottovoce_papers.worlds import Part, laid_over

__all__ = [
    "Arrays", "Claim", "Floats", "Part", "Row", "Study", "check_sources", "claim", "count_of",
    "installed", "interval", "laid_over", "plus_minus", "repr_as", "shown",
]  # fmt: skip


def repr_as(name: str, thing: object) -> str:
    """A dataclass as it was written when its class had another name: keys of cells must last."""
    return name + repr(thing)[len(type(thing).__name__) :]


def check_sources(sources: Iterable[str], data: Mapping[str, object]) -> None:
    """Raises where a study asks for a data set that its file does not describe."""
    for source in sources:
        if source not in data:
            raise ConfigError(f"there is no [data.{source}]")


class Study(Cells, ABC):
    """The settings of a table or figure, and its cells. A paper's study says how to train one."""

    @classmethod
    @abstractmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        """The study of an installed file."""

    @abstractmethod
    def describe(self) -> str:
        """How figures came about."""

    @abstractmethod
    def describe_data(self) -> str:
        """What was learnt from."""

    def result(
        self,
        name: str,
        out: Path,
        tables: Sequence[Table],
        claims: Sequence[Claim],
        pictures: Sequence[FigureBlock] = (),
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        protocol: str = "",
        reading: str = "",
        **more: Any,
    ) -> dict[str, Any]:
        """Writes the report, and returns what `reproduce` says. The rows are by default those of
        the first table."""
        text = reading or installed(name)["reading"]
        page = page_of(out / "report.html", tables, claims, pictures, text)
        return {
            "name": name,
            "data": self.describe_data(),
            "protocol": protocol or self.describe(),
            "rows": [dict(row) for row in (tables[0].rows if rows is None else rows)],
            "claims": list(claims),
            **more,
            "figures": files_of(pictures),
            "tables": list(tables),
            "report": str(page),
        }


def shown(
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
    protocol: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """A table of these columns alone, from rows that have others as well."""
    keys = [column.key for column in columns]
    return Table(title, columns, [{k: row.get(k) for k in keys} for row in rows], protocol, notes)
