"""Times as people write them, in seconds since 1970.

ISO texts with and without a zone (those without are UTC), with or without seconds, days alone, days
such as 31.12.2024 and 31/12/2024, and three forms of well-known downloads. What is none of these is
null: the reader knows its line.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MICROSECONDS = 1_000_000
_ISO = (
    r"^(?P<year>\d{4})[-/](?P<month>\d{2})[-/](?P<day>\d{2})"
    r"(?:[Tt ](?P<hour>\d{2})(?::?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:[.,]\d+)?)?)?"
    r" ?(?P<zone>[Zz]|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_DAYS = (
    r"^(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})[./-](?P<year>\d{4})"
    r"(?:[T,]? *(?P<clock>\d{1,2}:\d{2}(?::\d{2})?))?$"
)
DayOrder = Literal["day-first", "month-first"]
_OTHERS = ("%a %b %d %H:%M:%S +0000 %Y", "%m %d, %Y", "%Y%m%d")
"""Twitter's (and Foursquare's), Amazon's, and days in one number."""


def seconds_of_texts(texts: Any, order: DayOrder | None = None) -> pa.Array:
    """Whole seconds since 1970, null where a text is no time. Days with slashes are read in this
    order; without one they are null."""
    texts = _one(pc.utf8_trim_whitespace(texts))
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            whole = pc.cast(pc.cast(texts, kind), pa.int64())
        except pa.ArrowInvalid:
            continue
        return pa.array(
            np.floor_divide(pc.fill_null(whole, 0).to_numpy(), _MICROSECONDS),
            mask=whole.is_null().to_numpy(zero_copy_only=False),
        )
    found = pc.coalesce(_mixed(texts), _with_days(texts, order))
    for form in _OTHERS:
        if found.null_count:
            told = pc.strptime(texts, format=form, unit="s", error_is_null=True)
            if form == "%Y%m%d":  # and nothing that only begins so
                told = pc.if_else(pc.equal(pc.utf8_length(texts), 8), told, None)
            found = pc.coalesce(found, pc.cast(told, pa.int64()))
    return found


def day_order(texts: Any) -> DayOrder | None:
    """Which order days with slashes are written in, by the first one that leaves no choice; None if
    none does, or if there are none."""
    parts = pc.extract_regex(_one(pc.utf8_trim_whitespace(texts)), _DAYS)
    slashes = pc.not_equal(pc.struct_field(parts, "mark"), ".")
    first, second = (
        pc.greater(pc.cast(pc.struct_field(parts, name), pa.int64()), 12)
        for name in ("first", "second")
    )
    if pc.any(pc.and_(slashes, first)).as_py():
        return "day-first"
    return "month-first" if pc.any(pc.and_(slashes, second)).as_py() else None


def an_ambiguous_day(texts: Any) -> str | None:
    """The first text that is a day with slashes."""
    texts = _one(pc.utf8_trim_whitespace(texts))
    parts = pc.extract_regex(texts, _DAYS)
    some = texts.filter(pc.fill_null(pc.not_equal(pc.struct_field(parts, "mark"), "."), False))
    return str(some[0].as_py()) if len(some) else None


def are_days(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    """Whether whole numbers are days such as 20240501: as seconds, all lie in 1970."""
    if not len(numbers) or numbers.min() < 19_000_101 or numbers.max() > 21_001_231:
        return False
    return not seconds_of_texts(pa.array(numbers).cast(pa.string())).null_count


def _mixed(texts: pa.Array) -> pa.Array:
    """ISO texts of which some have a zone, or which Arrow does not read."""
    parts = pc.extract_regex(texts, _ISO)

    def part(name: str) -> Any:
        return pc.struct_field(parts, name)

    def number(name: str) -> Any:
        text = part(name)
        return pc.cast(pc.if_else(pc.equal(text, ""), "00", text), pa.int64())

    day = pc.binary_join_element_wise(part("year"), part("month"), part("day"), "-")
    read = pc.strptime(day, format="%Y-%m-%d", unit="s", error_is_null=True)
    same = pc.equal(pc.strftime(read, format="%Y-%m-%d"), day)  # no 30th of February
    hour, minute, second = number("hour"), number("minute"), number("second")
    clock = pc.and_(pc.less(hour, 24), pc.and_(pc.less(minute, 60), pc.less(second, 61)))
    zone = part("zone")
    digits = pc.replace_substring_regex(zone, r"[^0-9]", "")
    digits = pc.utf8_rpad(digits, 4, "0")
    ahead = pc.add(
        pc.multiply(pc.cast(pc.utf8_slice_codeunits(digits, 0, 2), pa.int64()), 3600),
        pc.multiply(pc.cast(pc.utf8_slice_codeunits(digits, 2, 4), pa.int64()), 60),
    )
    ahead = pc.if_else(pc.starts_with(zone, "-"), pc.negate(ahead), ahead)
    of_day = pc.add(pc.add(pc.multiply(hour, 3600), pc.multiply(minute, 60)), second)
    told = pc.subtract(pc.add(pc.cast(read, pa.int64()), of_day), ahead)
    return pc.if_else(pc.and_(same, clock), told, pa.scalar(None, pa.int64()))


def _with_days(texts: pa.Array, order: DayOrder | None) -> pa.Array:
    """Days such as 31.12.2024 (the day first, always) or 31/12/2024, perhaps with a clock."""
    parts = pc.extract_regex(texts, _DAYS)

    def part(name: str) -> Any:
        return pc.struct_field(parts, name)

    dotted = pc.equal(part("mark"), ".")
    day_first = pc.or_(dotted, pa.scalar(order == "day-first"))
    readable = pc.or_(dotted, pa.scalar(order is not None))
    day = pc.if_else(day_first, part("first"), part("second"))
    month = pc.if_else(day_first, part("second"), part("first"))
    clock = pc.if_else(pc.equal(part("clock"), ""), "0:00", part("clock"))
    clock = pc.if_else(pc.equal(pc.count_substring(clock, ":"), 1), _joined(clock, "00"), clock)
    date = [part("year"), pc.utf8_lpad(month, 2, "0"), pc.utf8_lpad(day, 2, "0")]
    iso = pc.binary_join_element_wise(
        pc.binary_join_element_wise(*date, "-"), pc.utf8_lpad(clock, 8, "0"), " "
    )
    return _mixed(pc.if_else(pc.fill_null(readable, False), iso, None))


def _joined(clock: Any, seconds: str) -> Any:
    return pc.binary_join_element_wise(clock, seconds, ":")


def _one(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    return column
