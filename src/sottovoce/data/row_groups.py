"""A rank's share of a prepared data set, read row group by row group.

No rank ever has more than the rows of its users, `AT_ONCE` others, and the names of all users and
items. These names ranks find together: each looks for them in some of the row groups. Then each
reads those row groups in which, by their statistics, its users may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sottovoce.core.interactions import Vocabulary
from sottovoce.core.ranks import Ranks, Shard
from sottovoce.data.assembly import (
    NumberedEvents,
    check_ids,
    counts_time,
    in_seconds,
    named_by,
    present,
    ratings_of,
    texts,
    whole,
    whole_times,
)
from sottovoce.data.dataset import PARTS, sorted_names
from sottovoce.errors import CorruptData

AT_ONCE = 1 << 20
"""Rows that are decoded at once, at most."""


class ColumnIds:
    """Distinct ids in the common order: numbers, or texts."""

    def __init__(self, values: NDArray[np.integer] | pa.StringArray) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, some: slice) -> ColumnIds:
        return ColumnIds(self._values[some])

    def vocabulary(self) -> Vocabulary:
        values = self._values
        if isinstance(values, np.ndarray):
            return named_by(values)
        return Vocabulary(values.to_pylist())

    def places(self, column: pa.ChunkedArray, where: str) -> NDArray[np.int64]:
        """The place of each row's id among these; -1 where it is none of them."""
        values = self._values
        if isinstance(values, np.ndarray):
            asked = _whole_ids(column, where)
            at = np.minimum(np.searchsorted(values, asked), len(values) - 1)
            return np.where(values[at] == asked, at, -1)
        found = pc.index_in(texts(column, where), value_set=values)
        places: NDArray[np.int64] = pc.fill_null(found, -1).to_numpy().astype(np.int64)
        return places

    def edges(self) -> tuple[int, int] | tuple[str, str]:
        """The smallest and the largest, of texts as texts, whatever their common order."""
        if isinstance(self._values, np.ndarray):
            return int(self._values[0]), int(self._values[-1])
        found = pc.min_max(self._values)
        return found["min"].as_py(), found["max"].as_py()


def read_share(
    file: pq.ParquetFile, where: str, ranks: Ranks, users: range | None = None
) -> tuple[NumberedEvents, NDArray[np.uint8] | None]:
    """The events of a rank's users, of whom it may say which those are, and the part of the split
    in which the file has each, where it does."""
    rows, schema = file.metadata.num_rows, file.schema_arrow
    if rows == 0:
        raise CorruptData(f"{where} holds no interactions")
    everybody = _all_ids(file, "user", where, ranks)
    items = _all_ids(file, "item", where, ranks)
    span = ranks.span(len(everybody)) if users is None else users
    mine = everybody[span.start : span.stop]
    read: dict[str, list[NDArray[Any]]] = {name: [] for name in schema.names}
    for first, part in parts(file, schema.names, _holding(file, mine)):
        places = mine.places(part["user"], f"{where}, column user")
        kept = places >= 0
        columns: dict[str, NDArray[Any]] = {"user": places}
        columns["item"] = items.places(part["item"], f"{where}, column item")
        if "timestamp" in read:
            there = f"{where}, column timestamp"
            present(part["timestamp"], there, first)
            columns["timestamp"] = whole_times(part["timestamp"], there).to_numpy()
        if "rating" in read:
            columns["rating"] = ratings_of(part["rating"], f"{where}, column rating", first)
        if "split" in read:
            columns["split"] = part_of_rows(part["split"], where)
        for name, column in columns.items():
            read[name].append(column[kept])
    had = sum(map(len, read["user"]))
    unknown = any((column < 0).any() for column in read["item"])
    # Also where statistics were wrong, or somebody has written into the file since.
    if ranks.total(had) != (rows,) or not had or unknown:
        raise CorruptData(f"{where} is not what it says it is; import the data set again")
    found = {name: np.concatenate(read.pop(name)) for name in schema.names}
    if "timestamp" in found and counts_time(schema.field("timestamp").type):
        latest = max(ranks.gather(int(found["timestamp"].max())))
        found["timestamp"] = in_seconds(pa.array(found["timestamp"]), latest).to_numpy()
    events = NumberedEvents(
        found["user"],
        found["item"],
        mine.vocabulary(),
        items.vocabulary(),
        found.get("timestamp"),
        found.get("rating"),
        Shard(ranks, span.start),
    )
    return events, found.get("split")


def parts(
    file: pq.ParquetFile,
    columns: Sequence[str],
    groups: Sequence[int],
    at_once: int | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of some row groups, so many at once at most, with the number of the first."""
    starts = np.cumsum([0, *(file.metadata.row_group(g).num_rows for g in range(_groups(file)))])
    for _, run in groupby(enumerate(groups), lambda pair: pair[1] - pair[0]):
        neighbours = [group for _, group in run]
        first = int(starts[neighbours[0]])
        size = AT_ONCE if at_once is None else at_once
        for batch in file.iter_batches(size, row_groups=neighbours, columns=list(columns)):
            yield first, pa.Table.from_batches([batch])
            first += batch.num_rows


def part_of_rows(column: pa.ChunkedArray, where: str) -> NDArray[np.uint8]:
    """The place in `PARTS` of each row's part."""
    marks = texts(column, f"{where}, column split")
    found = pc.index_in(marks, value_set=pa.array(PARTS))
    if found.null_count:
        strange = marks.filter(found.is_null())[0].as_py()
        raise CorruptData(f"{where}: split must say {', '.join(PARTS)}, not {strange!r}")
    places: NDArray[np.uint8] = found.to_numpy().astype(np.uint8)
    return places


def _groups(file: pq.ParquetFile) -> int:
    return int(file.metadata.num_row_groups)


def _holding(file: pq.ParquetFile, ids: ColumnIds) -> list[int]:
    """The row groups in which these users may be, by the smallest and the largest id there."""
    schema, kind = file.metadata.schema, file.schema_arrow.field("user").type
    column = next(k for k in range(len(schema)) if schema.column(k).path == "user")
    groups, (low, high) = range(_groups(file)), ids.edges()
    if isinstance(low, int) and not pa.types.is_signed_integer(kind):
        return [*groups]
    found = []
    for group in groups:
        told = file.metadata.row_group(group).column(column).statistics
        known = told is not None and told.has_min_max and isinstance(told.min, type(low))
        if not known or (told.max >= low and told.min <= high):
            found.append(group)
    return found


def _all_ids(file: pq.ParquetFile, name: str, where: str, ranks: Ranks) -> ColumnIds:
    """The ids of the whole column: each rank looks through its part of the row groups, and then
    hears what the others have found."""
    kind, there = file.schema_arrow.field(name).type, f"{where}, column {name}"
    share = range(
        _groups(file) * ranks.rank // ranks.size, _groups(file) * (ranks.rank + 1) // ranks.size
    )
    more = "; every event needs a user and an item"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype = np.dtype(kind.to_pandas_dtype() if pa.types.is_integer(kind) else np.int64)
        numbers = np.empty(0, dtype)
        for first, part in parts(file, [name], share):
            present(part[name], there, first, more)
            numbers = np.union1d(numbers, _whole_ids(part[name], there))
        every = np.empty(0, dtype)
        for rank in range(ranks.size):
            theirs = np.concatenate([np.empty(0, np.uint8), *ranks.told_by(rank, numbers)])
            every = np.union1d(every, theirs.view(dtype))
        return ColumnIds(every)
    found = pa.array([], pa.string())
    for first, part in parts(file, [name], share):
        present(part[name], there, first, more)
        found = _united(found, pc.unique(texts(part[name], there)))
    names = found.to_pylist()
    check_ids(names, there)  # so that a NUL is in none of them
    told = np.array(bytearray("\0".join(names).encode()), np.uint8)
    for rank in range(ranks.size):
        heard = b"".join(piece.tobytes() for piece in ranks.told_by(rank, told)).decode()
        if heard and rank != ranks.rank:
            found = _united(found, pa.array(heard.split("\0"), pa.string()))
    return ColumnIds(found.take(pa.array(sorted_names(found.to_pylist()))))


def _united(one: pa.StringArray, other: pa.StringArray) -> pa.StringArray:
    return pc.unique(pa.concat_arrays([one, other]))


def _whole_ids(column: pa.ChunkedArray, where: str) -> NDArray[np.integer]:
    whole_ids = whole(column, where) if pa.types.is_floating(column.type) else column
    numbers: NDArray[np.integer] = whole_ids.to_numpy()
    return numbers
