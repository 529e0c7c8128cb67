"""Rows of a table, as texts or typed, to events: every value is read or its line is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sottovoce.data.assembly import THOUSANDTHS_FROM, check_ids, texts
from sottovoce.data.dataset import PARTS
from sottovoce.data.gathering import EventBatch
from sottovoce.data.importers.columns import PART_WORDS
from sottovoce.data.importers.files import TextNotes
from sottovoce.data.times import DayOrder, an_ambiguous_day, are_days, day_order, seconds_of_texts
from sottovoce.errors import ConfigError, CorruptData

_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_COMMA = r"^(\s*[+-]?\d+),(\d{1,2}|\d{4,})(\s*)$"
"""A decimal comma. Three digits after it may be thousands, and are refused."""

Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Converter:
    """Reads the columns of batch after batch in one way. Rows that cannot be read are refused, with
    their line, or, with `skip_bad`, left out and counted."""

    skip_bad: bool = False
    dates: DayOrder | None = None
    """The order of days with slashes; None until it is known."""
    notes: TextNotes = field(default_factory=TextNotes)
    times: str = ""
    """How times are written, once it is known: "numbers", "days", "texts", or "stamps" of Arrow."""
    latest: int = 0
    """The largest time, of numbers."""

    @property
    def bare_times(self) -> bool:
        return self.times == "numbers"

    def batch(
        self,
        columns: Mapping[str, Any],
        names: Mapping[str, str],
        where: str,
        place: Callable[[int], int],
        *,
        part: int | None = None,
        row: str = "line",
    ) -> EventBatch:
        """Columns by role, with their names in the file; `place` tells the line of a row."""
        columns = {role: _one(column) for role, column in columns.items()}
        bad: list[tuple[str, Mask, str]] = []
        for role in ("user", "item"):
            bad.append((role, _empty(columns[role]), "is empty: every event needs both ids"))
        times, ratings, parts = None, None, None
        if "timestamp" in columns:
            times, wrong = self._seconds(columns["timestamp"], where)
            bad.append(
                ("timestamp", wrong, "is no time (ISO texts such as 2024-05-01T10:00:00+02:00, or "
                 "numbers since 1970); it must hold times")
            )  # fmt: skip
        if "rating" in columns:
            ratings, wrong = _ratings(columns["rating"])
            bad.append(("rating", wrong, "is not a finite number"))
        if "split" in columns:
            parts, wrong = _parts(columns["split"])
            bad.append(("split", wrong, f"is none of {', '.join(PARTS)}"))
        elif part is not None:
            parts = np.full(len(columns["user"]), part, np.uint8)
        kept = None
        if any(wrong.any() for _, wrong, _ in bad):
            some = np.logical_or.reduce([wrong for _, wrong, _ in bad])
            first = int(np.argmax(some))
            if not self.skip_bad:
                role, _, why = next(entry for entry in bad if entry[1][first])
                value = columns[role][first].as_py()
                shown = "" if role in ("user", "item") else f" {str(value or '')[:60]!r}"
                raise CorruptData(
                    f"{where}, {row} {place(first)}: column {names[role]}:{shown} {why}; "
                    f"--skip-bad leaves such rows out{_without(role)}"
                )
            self.notes.skip(int(some.sum()), place(first))
            kept = pa.array(~some)
            times, ratings, parts = (
                column if column is None else column[~some] for column in (times, ratings, parts)
            )
        users, items = (
            columns[role] if kept is None else columns[role].filter(kept)
            for role in ("user", "item")
        )
        self._check(users, items, names, where)
        if times is not None and len(times):
            self.latest = max(self.latest, int(times.max()))
        return EventBatch(users, items, times, ratings, parts, where)

    def told(self) -> str:
        """How times were read, in words."""
        if self.times == "texts":
            days = f", days with slashes {self.dates}" if self.dates else ""
            return f"ISO texts (those without a zone as UTC{days})"
        if self.times == "stamps":
            return "time stamps"
        if self.times == "days":
            return "days such as 20240501"
        unit, latest = 0, self.latest
        while latest >= THOUSANDTHS_FROM:
            unit, latest = unit + 1, latest // 1000
        return f"{_UNITS[min(unit, len(_UNITS) - 1)]} since 1970"

    def _check(self, users: Any, items: Any, names: Mapping[str, str], where: str) -> None:
        for role, column in (("user", users), ("item", items)):
            if pa.types.is_string(column.type):
                long = pc.max(pc.utf8_length(column)).as_py() or 0
                odd = pc.any(pc.match_substring(column, "\0")).as_py()
                if long > 1000 or odd:  # then it is worth a look at each
                    check_ids(column.to_pylist(), f"{where}, column {names[role]}")

    def _seconds(self, column: Any, where: str) -> tuple[NDArray[np.int64], Mask]:
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            self.times = "stamps"
            whole = pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
            return _filled(whole), _nulls(whole)
        numbers = None
        if not pa.types.is_string(kind) or self.times != "texts":
            numbers, wrong = _numbers(column)
        if not self.times and numbers is not None:
            self.times = "texts" if wrong.all() and pa.types.is_string(kind) else "numbers"
            if self.times == "numbers" and not wrong.any() and are_days(numbers):
                self.times = "days"
        if self.times == "numbers" and numbers is not None:
            return numbers, wrong
        written = texts(column, "times")
        if self.dates is None:
            self.dates = day_order(written)
            if self.dates is None and (day := an_ambiguous_day(written)) is not None:
                raise ConfigError(
                    f"{where}: {day!r} can be read in two ways; say --dates day-first or "
                    "--dates month-first"
                )
        told = seconds_of_texts(written, self.dates)
        return _filled(told), _nulls(told)


def _without(role: str) -> str:
    return "" if role in ("user", "item") else f", --column {role}=- does without the column"


def _one(column: Any) -> Any:
    """One array, of texts where it is none of numbers or times."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    kind = column.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_string_view(kind.value_type):  # which cannot be taken from yet
            plain = column.dictionary.cast(pa.string())
            column = pa.DictionaryArray.from_arrays(column.indices, plain)
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_binary(kind):
        return texts(column, "column")
    return column


def _nulls(column: Any) -> Mask:
    mask: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _filled(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = pc.fill_null(column, 0).to_numpy()
    return values


def _empty(column: Any) -> Mask:
    if pa.types.is_string(column.type):
        column = pc.if_else(pc.equal(column, ""), None, column)
    elif pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    return _nulls(column)


def _floats(column: Any) -> Any:
    """64-bit numbers, null where there is none."""
    if not pa.types.is_string(column.type):
        try:
            return pc.cast(column, pa.float64(), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.nulls(len(column), pa.float64())
    try:
        return pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        column = pc.replace_substring_regex(column, _COMMA, r"\1.\2\3")
        fits = pc.match_substring_regex(column, _NUMBER)
        some = pc.if_else(fits, pc.utf8_trim_whitespace(column), None)
        return pc.cast(some, pa.float64())


def _numbers(column: Any) -> tuple[NDArray[np.int64], Mask]:
    """Whole numbers, and which rows have none."""
    try:
        whole = pc.cast(column, pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        floats = _floats(column)
        values = pc.fill_null(floats, np.nan).to_numpy(zero_copy_only=False)
        wrong = ~(np.abs(values) < 2**63)
        return np.floor(np.where(wrong, 0, values)).astype(np.int64), wrong
    return _filled(whole), _nulls(whole)


def _ratings(column: Any) -> tuple[NDArray[np.float32], Mask]:
    floats = _floats(column)
    with np.errstate(over="ignore"):
        values = pc.fill_null(floats, np.nan).to_numpy(zero_copy_only=False).astype(np.float32)
    return values, ~np.isfinite(values)


def _parts(column: Any) -> tuple[NDArray[np.uint8], Mask]:
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts(column, "column split")))
    found = pc.index_in(words, value_set=pa.array(list(PART_WORDS)))
    places = np.array([*PART_WORDS.values()], np.uint8)
    return places[_filled(found)], _nulls(found)
