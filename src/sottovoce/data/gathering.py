"""Events in any number and order to a prepared folder, in bounded memory.

Three passes. The first takes batches as they are read and keeps a record of a few bytes for each
event on disk, its ids as numbers in the order of their arrival. The second deals these records out
by user, when all users are known, into files of at most about `AT_ONCE` records. The third takes
one such file at a time, sorts it, collapses repeated events and writes a row group. In memory are
the ids, some counts for each, and one batch or file; the disk holds two copies of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sottovoce.data.assembly import Keep, check_ids, in_seconds, texts, whole
from sottovoce.data.dataset import PARTS, sorted_names
from sottovoce.data.prepared import EVENTS, ITEMS, PROVENANCE, USERS
from sottovoce.errors import CorruptData, DataError

AT_ONCE = 1 << 20
"""Records that are sorted at once; a single user may have more."""

Report = Callable[[str, int, int], None]
"""Progress: what is being done, how much is done, of how much."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Some events. Times are seconds, or bare numbers of which the largest of all tells the unit;
    parts are places in `PARTS`."""

    users: pa.Array
    items: pa.Array
    times: NDArray[np.int64] | None = None
    ratings: NDArray[np.float32] | None = None
    parts: NDArray[np.uint8] | None = None
    where: str = ""
    """The file, for errors."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be kept of what was gathered."""

    keep: Keep = "last"
    min_user_items: int = 0
    require_attribute: str | None = None


@dataclass(slots=True)
class WrittenEvents:
    """What was written."""

    users: int = 0
    items: int = 0
    interactions: int = 0
    events: int = 0
    repeated: int = 0
    in_two_parts: int = 0
    """Pairs of a user and an item that several parts of a ready split have."""
    parts: list[int] = field(default_factory=lambda: [0] * len(PARTS))
    provenance: str = ""


class Ids:
    """Ids and their numbers, in the order of arrival: an array of whole numbers for as long as all
    are that, then a table of texts."""

    def __init__(self) -> None:
        self._sorted: NDArray[np.int64] = np.empty(0, np.int64)
        self._places: NDArray[np.int32] = np.empty(0, np.int32)
        self._table: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._sorted) if self._table is None else len(self._table)

    def numbers(self, column: pa.Array, where: str) -> NDArray[np.int32]:
        """The number of each row's id; new ids get the next ones."""
        if pa.types.is_floating(column.type):
            column = whole(column, where)
        elif not pa.types.is_integer(column.type) or pa.types.is_uint64(column.type):
            column = texts(column, where)
        encoded = column.dictionary_encode()
        distinct, rows = encoded.dictionary, encoded.indices.to_numpy()
        found = _as_numbers(distinct)
        if self._table is None and found is None:
            self._table = {str(value): k for k, value in enumerate(self._arrived().tolist())}
        if self._table is None and found is not None:
            places = self._of_numbers(found)
        else:
            places = self._of_texts(texts(distinct, where).to_pylist(), where)
        numbers: NDArray[np.int32] = places[rows]
        return numbers

    def names(self) -> pa.Array:
        """In the order of their numbers."""
        return pa.array(self._arrived() if self._table is None else list(self._table))

    def order(self) -> NDArray[np.int64]:
        """Numbers in the common order of the ids."""
        if self._table is None:
            return self._places.astype(np.int64)
        names = list(self._table)
        first = next((name for name in names if not name.isdecimal()), None)
        if first is None or first.startswith("-"):
            return sorted_names(names)
        by_text: NDArray[np.int64] = pc.array_sort_indices(pa.array(names)).to_numpy()
        return by_text.astype(np.int64)

    def _arrived(self) -> NDArray[np.int64]:
        values = np.empty(len(self._sorted), np.int64)
        values[self._places] = self._sorted
        return values

    def _of_numbers(self, values: NDArray[np.int64]) -> NDArray[np.int32]:
        order = np.argsort(values)
        asked = values[order]
        at = np.minimum(np.searchsorted(self._sorted, asked), max(len(self) - 1, 0))
        known = self._sorted[at] == asked if len(self) else np.zeros(len(asked), bool)
        places = np.empty(len(asked), np.int32)
        places[known] = self._places[at[known]]
        places[~known] = len(self) + np.arange(len(asked) - int(known.sum()))
        if not known.all():
            every = np.concatenate([self._sorted, asked[~known]])
            merged = np.argsort(every, kind="stable")  # of two runs, which takes one pass
            self._places = np.concatenate([self._places, places[~known]])[merged]
            self._sorted = every[merged]
        found = np.empty(len(values), np.int32)
        found[order] = places
        return found

    def _of_texts(self, names: list[str], where: str) -> NDArray[np.int32]:
        table = self._table if self._table is not None else {}
        new = [name for name in names if name not in table]
        check_ids([*new], where)
        table.update(zip(new, range(len(table), len(table) + len(new)), strict=True))
        return np.fromiter((table[name] for name in names), np.int32, len(names))


def _as_numbers(distinct: pa.Array) -> NDArray[np.int64] | None:
    """As whole numbers, where each is written as a number would be."""
    try:
        numbers = pc.cast(distinct, pa.int64())
    except pa.ArrowInvalid:
        return None
    written = pc.cast(numbers, distinct.type)
    if pc.all(pc.equal(distinct, written)).as_py() is False:
        return None
    values: NDArray[np.int64] = numbers.to_numpy()
    return values


class Gathering:
    """Events on their way into a folder that is being made. `scratch` is on the same disk."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._users, self._items = Ids(), Ids()
        self._counts = np.empty(0, np.int64)
        self._latest = np.iinfo(np.int64).min
        self._events = 0
        self._kind: np.dtype[Any] | None = None
        scratch.mkdir(parents=True)

    def add(self, batch: EventBatch) -> None:
        if not len(batch.users):
            return
        kind = _kind(batch)
        if self._kind is None:
            self._kind = kind
        elif self._kind != kind:
            raise CorruptData(f"{batch.where} has other columns than what came before it")
        records = np.empty(len(batch.users), kind)
        records["user"] = self._users.numbers(batch.users, f"{batch.where}, column user")
        records["item"] = self._items.numbers(batch.items, f"{batch.where}, column item")
        if batch.times is not None:
            records["time"] = batch.times
            self._latest = max(self._latest, int(batch.times.max()))
        if batch.ratings is not None:
            records["rating"] = batch.ratings
        if batch.parts is not None:
            records["part"] = batch.parts
        here = np.bincount(records["user"], minlength=len(self._users))
        here[: len(self._counts)] += self._counts
        self._counts = here
        self._events += len(records)
        _append(self._scratch / "events", records)

    def write(
        self,
        folder: Path,
        wish: Wish,
        source: str,
        sides: tuple[pa.Table | None, pa.Table | None] = (None, None),
        *,
        bare_times: bool = False,
        report: Report | None = None,
    ) -> WrittenEvents:
        """The prepared files into `folder`, with what is known of users and items beside them."""
        if self._kind is None:
            raise CorruptData(f"{source} holds no interactions")
        done = WrittenEvents(events=self._events)
        order, item_order = self._users.order(), self._items.order()
        user_names = self._users.names().take(pa.array(order))
        item_names = self._items.names().take(pa.array(item_order))
        rank, item_rank = _inverse(order), _inverse(item_order)
        wanted = _known(user_names, sides[0], wish.require_attribute, source)
        used_users = np.zeros(len(rank), bool)
        used_items = np.zeros(len(item_rank), bool)
        schema = _schema(self._kind, user_names.type, item_names.type)
        seen = 0
        with pq.ParquetWriter(folder / EVENTS, schema, compression="zstd") as writer:
            for file in self._dealt(self._kind, order, rank, report):
                records = np.fromfile(file, self._kind)
                file.unlink()
                seen += len(records)
                users = rank[records["user"]]
                if wanted is not None:
                    records, users = records[wanted[users]], users[wanted[users]]
                kept = self._collapsed(records, users, item_rank, wish, done)
                if bare_times and "time" in kept:
                    kept["time"] = in_seconds(pa.array(kept["time"]), self._latest)
                if len(kept["user"]):
                    writer.write_table(_table(kept, user_names, item_names, schema), AT_ONCE)
                used_users[kept["user"]] = True
                used_items[kept["item"]] = True
                if report is not None:
                    report("sorting", seen, done.events)
            if not done.interactions:
                raise DataError(f"{source}: nobody is left; {_why(wish)}")
            done.users, done.items = int(used_users.sum()), int(used_items.sum())
            done.provenance = _story(source, done, wish)
            writer.add_key_value_metadata({PROVENANCE: done.provenance})
        about = ((USERS, "user", user_names, used_users), (ITEMS, "item", item_names, used_items))
        for (name, key, names, used), side in zip(about, sides, strict=True):
            if side is not None:
                there = texts(names.filter(pa.array(used)), source)
                rows = pc.is_in(texts(side[key], f"{source}: {name}"), value_set=there)
                pq.write_table(side.filter(rows), folder / name, compression="zstd")
        return done

    def _dealt(
        self,
        kind: np.dtype[Any],
        order: NDArray[np.int64],
        rank: NDArray[np.int64],
        report: Report | None,
    ) -> Iterator[Path]:
        """Files with the records of some users each, whose ids ascend from file to file; records
        of a user stay in the order in which they came."""
        every = self._scratch / "events"
        if self._events <= AT_ONCE:
            yield every
            return
        before = np.cumsum(self._counts[order]) - self._counts[order]
        file_of = (before // AT_ONCE)[rank]
        _, file_of = np.unique(file_of, return_inverse=True)
        if file_of.max() < 1 << 16:
            file_of = file_of.astype(np.uint16)  # which numpy sorts fast
        for first in range(0, self._events, AT_ONCE):
            records = np.fromfile(every, kind, AT_ONCE, offset=first * kind.itemsize)
            places = file_of[records["user"]]
            by_file = np.argsort(places, kind="stable")
            records, places = records[by_file], places[by_file]
            edges = np.flatnonzero(np.diff(places)) + 1
            for piece in np.split(np.arange(len(records)), edges):
                _append(self._scratch / f"{places[piece[0]]}", records[piece[0] : piece[-1] + 1])
            if report is not None:
                report("dealing", min(first + AT_ONCE, self._events), self._events)
        every.unlink()
        for number in range(int(file_of.max()) + 1):
            yield self._scratch / f"{number}"

    def _collapsed(
        self,
        records: NDArray[Any],
        users: NDArray[np.int64],
        item_rank: NDArray[np.int64],
        wish: Wish,
        done: WrittenEvents,
    ) -> dict[str, NDArray[Any]]:
        """One event of each user and item, by user and item."""
        items = item_rank[records["item"]]
        if not len(users):
            return {"user": users, "item": items}
        pair = (users - users.min()) * len(item_rank) + items
        names = records.dtype.names or ()
        if "time" in names:
            order = np.lexsort((records["time"], pair))
        else:
            order = np.argsort(pair, kind="stable")
        pair = pair[order]
        starts = np.flatnonzero(np.concatenate([[True], pair[1:] != pair[:-1]]))
        ends = np.concatenate([starts[1:], [len(pair)]])
        chosen = order[starts if wish.keep == "first" else ends - 1]
        done.repeated += len(pair) - len(starts)
        kept: dict[str, NDArray[Any]] = {"user": users[chosen], "item": items[chosen]}
        kept |= {name: records[name][chosen] for name in names if name in ("time", "rating")}
        if "part" in names:
            parts = records["part"][order]
            kept["part"] = np.maximum.reduceat(parts, starts)
            mixed = kept["part"] != np.minimum.reduceat(parts, starts)
            done.in_two_parts += int(mixed.sum())
        if wish.min_user_items > 1:
            active = np.bincount(kept["user"] - users.min()) >= wish.min_user_items
            some = active[kept["user"] - users.min()]
            kept = {name: column[some] for name, column in kept.items()}
        done.interactions += len(kept["user"])
        if "part" in kept:
            counts = np.bincount(kept["part"], minlength=len(PARTS))
            done.parts = [a + int(b) for a, b in zip(done.parts, counts, strict=True)]
        return kept


_COLUMNS = {"time": "timestamp", "rating": "rating", "part": "split"}


def _kind(batch: EventBatch) -> np.dtype[Any]:
    fields: list[tuple[str, str]] = [("user", "<i4"), ("item", "<i4")]
    fields += [("time", "<i8")] if batch.times is not None else []
    fields += [("rating", "<f4")] if batch.ratings is not None else []
    fields += [("part", "u1")] if batch.parts is not None else []
    return np.dtype(fields)


def _append(path: Path, records: NDArray[Any]) -> None:
    with path.open("ab") as file:
        file.write(records.tobytes())


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _schema(kind: np.dtype[Any], user: pa.DataType, item: pa.DataType) -> pa.Schema:
    types = {"time": pa.int64(), "rating": pa.float32(), "part": pa.string()}
    more = [(_COLUMNS[name], types[name]) for name in kind.names or () if name in types]
    return pa.schema([("user", user), ("item", item), *more])


def _table(
    kept: dict[str, NDArray[Any]], users: pa.Array, items: pa.Array, schema: pa.Schema
) -> pa.Table:
    columns = [users.take(pa.array(kept["user"])), items.take(pa.array(kept["item"]))]
    for name in ("time", "rating"):
        if name in kept:
            columns.append(pa.array(kept[name]))
    if "part" in kept:
        columns.append(pa.array(PARTS).take(pa.array(kept["part"])))
    return pa.table(columns, schema=schema)


def _known(
    names: pa.Array, about: pa.Table | None, attribute: str | None, source: str
) -> NDArray[np.bool_] | None:
    """Which users' attribute is known, where that is asked for."""
    if attribute is None:
        return None
    has = [name for name in (about.column_names if about is not None else []) if name != "user"]
    if about is None or attribute not in has:
        raise DataError(
            f"{source} has no user attribute {attribute!r}; it has: {', '.join(has) or 'none'}"
        )
    told = about.filter(pc.not_equal(pc.fill_null(texts(about[attribute], source), ""), ""))
    found = pc.is_in(texts(names, source), value_set=texts(told["user"], source).combine_chunks())
    known: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return known


def _why(wish: Wish) -> str:
    asked: Sequence[str] = [
        *([f"--min-user-items {wish.min_user_items}"] if wish.min_user_items else []),
        *([f"--require-attribute {wish.require_attribute}"] if wish.require_attribute else []),
    ]
    return f"ask for less than {' and '.join(asked)}"


def _story(source: str, done: WrittenEvents, wish: Wish) -> str:
    story = f"{source}: {done.events:,} events"
    if done.repeated:
        story += f", {done.repeated:,} repeated (user, item) events collapsed to the {wish.keep}"
    if done.in_two_parts:
        story += f", {done.in_two_parts:,} of them in two parts of the split counted for the later"
    if wish.require_attribute is not None:
        story += f"; users whose {wish.require_attribute} is known"
    if wish.min_user_items:
        story += f"; users with at least {wish.min_user_items} items"
    return story
