"""Times as people write them, in seconds since 1970.

ISO texts with and without a zone (those without are UTC), with or without seconds, days alone, and
three forms of well-known downloads. What is none of these is null: the reader knows its line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MICROSECONDS = 1_000_000
_ISO = (
    r"^(?P<year>\d{4})[-/](?P<month>\d{2})[-/](?P<day>\d{2})"
    r"(?:[Tt ](?P<hour>\d{2})(?::?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:[.,]\d+)?)?)?"
    r" ?(?P<zone>[Zz]|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_OTHERS = ("%a %b %d %H:%M:%S +0000 %Y", "%m %d, %Y", "%Y%m%d")
"""Twitter's (and Foursquare's), Amazon's, and days in one number."""


def seconds_of_texts(texts: Any) -> pa.Array:
    """Whole seconds since 1970, null where a text is no time."""
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
    found = _mixed(texts)
    for form in _OTHERS:
        if found.null_count:
            told = pc.strptime(texts, format=form, unit="s", error_is_null=True)
            if form == "%Y%m%d":  # and nothing that only begins so
                told = pc.if_else(pc.equal(pc.utf8_length(texts), 8), told, None)
            found = pc.coalesce(found, pc.cast(told, pa.int64()))
    return found


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


def _one(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    return column
