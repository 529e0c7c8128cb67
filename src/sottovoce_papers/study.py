"""The one kind of study: experiments are trained once each, kept on disk as cells, measured, and
shown beside the printed figures.

A table or figure is a file of settings (`experiments/reproduce/NAME.toml`: what is varied, over
which seeds, what was printed, how to read it) and a view, which turns a study into rows and claims.
A *cell* is what one training left behind. An interrupted study goes on where it was, and tables and
figures share their cells; several may run side by side, in processes that nobody coordinates: what
one of them is training, the others leave to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sottovoce import config
from sottovoce.core.arrays import each
from sottovoce.core.installed import shipped_folder
from sottovoce.errors import ConfigError
from sottovoce.evaluation.report import FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.folder import load_arrays, save_arrays
from sottovoce.runs.train import Report

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]
Part = Literal["validation", "test"]
Row = dict[str, Any]
Claim = dict[str, Any]
Given = TypeVar("Given")
Found = TypeVar("Found")


def installed(name: str, quick: bool = False) -> dict[str, Any]:
    """The file of a table or figure, laid over the one that it extends; `quick` lays its [quick]
    table over the rest."""
    path = shipped_folder("experiments") / "reproduce" / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "extends" in table:
        table = laid_over(installed(table["extends"]), table)
    return laid_over(table, table.get("quick", {})) if quick else table


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables are laid over each other, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = laid_over(old, value) if both and old is not None else value
    return merged


def settings_of(kind: type[Found], name: str, quick: bool) -> Found:
    """The [study] table of an installed file."""
    return config.build(kind, installed(name, quick).get("study", {}), "study")


def repr_as(name: str, thing: object) -> str:
    """A dataclass as it was written when its class had another name: keys of cells must last."""
    return name + repr(thing)[len(type(thing).__name__) :]


def check_sources(sources: Iterable[str], data: Mapping[str, object]) -> None:
    """Raises where a study asks for a data set that its file does not describe."""
    for source in sources:
        if source not in data:
            raise ConfigError(f"there is no [data.{source}]")


class Study(ABC):
    """The settings of a table or figure, and its cells. A paper's study says how to train one."""

    prefix: ClassVar[str] = ""
    """With which the files of a paper's cells begin."""

    def __init__(self, cells: Path, threads: int, report: Report) -> None:
        self.folder, self.threads, self.report = cells, threads, report

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

    def kept(
        self, key: Sequence[object], names: Iterable[str], train: Callable[[], Arrays]
    ) -> Arrays:
        """What the folder has of the training that `key` describes, which JSON can write. If one of
        `names` is missing, train() is added to it, by one process at a time."""
        path, wanted = self._place(key), set(names)
        found = _there(path)
        if not wanted <= set(found):
            self.folder.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                found = _there(path)
                if not wanted <= set(found):
                    found = {**found, **train()}
                    save_arrays(path, **found)
        return found

    def has(self, key: Sequence[object]) -> bool:
        """Whether something is kept under this key."""
        return self._place(key).exists()

    def busy(self, key: Sequence[object]) -> bool:
        """Whether somebody is training it right now."""
        try:
            with open(_claim(self._place(key)), "rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _place(self, key: Sequence[object]) -> Path:
        text = json.dumps(list(key), sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return self.folder / f"{self.prefix}{digest}.npz"

    def many(
        self,
        what: str,
        work: Callable[[Given], Found],
        parts: Sequence[Given],
        threads: int | None = None,
    ) -> list[Found]:
        """work(part) of every part, side by side, reported as it goes."""
        done = 0
        self.report(what, 0, len(parts))

        def one(part: Given) -> Found:
            nonlocal done
            found = work(part)
            done += 1
            self.report(what, done, len(parts))
            return found

        return each(one, parts, self.threads if threads is None else threads)

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
        columns = [Column(key) for key in ("claim", "holds", "detail")]
        claimed = Table("What is claimed, tested", columns, list(claims))
        text = TextBlock(reading or installed(name)["reading"])
        sections = [
            Section("Results", [*tables, claimed, *pictures]),
            Section("How to read this", [text]),
        ]
        page = write_report(out / "report.html", tables[0].title, sections)
        return {
            "name": name,
            "data": self.describe_data(),
            "protocol": protocol or self.describe(),
            "rows": [dict(row) for row in (tables[0].rows if rows is None else rows)],
            "claims": list(claims),
            **more,
            "tables": list(tables),
            "report": str(page),
        }


def _there(path: Path) -> dict[str, NDArray[Any]]:
    return load_arrays(path) if path.exists() else {}


def _claim(path: Path) -> Path:
    """The file that whoever trains a cell holds; a process that is killed lets go of it."""
    return path.with_suffix(".claim")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Within, no other process and no other thread trains this cell; waits until that is so."""
    claim = _claim(path)
    while True:
        with open(claim, "ab") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever held it before has removed the file: another one counts now.
            if not claim.exists() or not os.path.samestat(os.fstat(handle.fileno()), claim.stat()):
                continue
            try:
                yield
            finally:
                claim.unlink(missing_ok=True)
            return


# --- what is claimed, and how it is shown --------------------------------------------------------


def claim(text: str, *parts: tuple[bool, str]) -> Claim:
    """It holds if all its parts do."""
    detail = "; ".join(words for _, words in parts)
    return {"claim": text, "holds": all(holds for holds, _ in parts), "detail": detail}


def interval(values: Sequence[float] | Floats, confidence: float = 0.95) -> float | None:
    """Half of Student's interval of the mean; nothing for a single value."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error


def plus_minus(values: Sequence[float] | Floats) -> str:
    """The mean, and half of its interval if there are several values."""
    half = interval(values)
    return f"{np.mean(values):.4f}" + ("" if half is None else f" ± {half:.4f}")


def count_of(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"


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
