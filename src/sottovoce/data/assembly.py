"""From raw event and side tables (Arrow) to a `Dataset`: numbering, collapsing, aligning.

Every reader ends here, so that all data sets share one numbering: users and items that interact,
by number where all ids are whole numbers, else by text. Side tables are aligned to it; rows about
others are left out. What ranks have by shares (`row_groups`) is aligned in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.ranks import ALONE, WHOLE, Ranks, Shard
from sottovoce.data.dataset import Dataset, Labels, sorted_names
from sottovoce.data.times import seconds_of_texts
from sottovoce.errors import CorruptData

Keep = Literal["first", "last"]

LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
LONGEST_ID = 1000
"""Characters of an id. Vocabularies are tables of fixed width: one endless id would fill memory."""


@dataclass(frozen=True, slots=True)
class RawTables:
    """What a reader found: `events` (user, item, timestamp?, rating?), `users`, `items`."""

    events: pa.Table
    users: pa.Table | None = None
    items: pa.Table | None = None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class NumberedEvents:
    """Events by number: of a range of users, who are named, and of all items."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    user_ids: Vocabulary
    item_ids: Vocabulary
    timestamps: NDArray[np.int64] | None = None
    ratings: NDArray[np.float32] | None = None
    shard: Shard = WHOLE


def assemble(
    name: str, raw: RawTables, *, where: str, source: str | None = None, keep: Keep = "last"
) -> Dataset:
    """Number, collapse and align. `where` is for errors; the provenance begins with `source`."""
    events = numbered(raw.events, where)
    return aligned(name, events, raw.users, raw.items, source=source, keep=keep)


def numbered(events: pa.Table, where: str) -> NumberedEvents:
    """The events of everybody."""
    if events.num_rows == 0:
        raise CorruptData(f"{where} holds no interactions")
    users, user_ids = number(events["user"], f"{where}, column user")
    items, item_ids = number(events["item"], f"{where}, column item")
    times = ratings = None
    if "timestamp" in events.column_names:
        there = f"{where}, column timestamp"
        present(events["timestamp"], there)
        times = seconds(events["timestamp"], there).to_numpy().astype(np.int64)
    if "rating" in events.column_names:
        ratings = ratings_of(events["rating"], f"{where}, column rating")
    return NumberedEvents(users, items, user_ids, item_ids, times, ratings)


def aligned(
    name: str,
    events: NumberedEvents,
    about_users: pa.Table | None,
    about_items: pa.Table | None,
    *,
    source: str | None = None,
    keep: Keep = "last",
) -> Dataset:
    """Collapse repeated events, and align what is known of users and items to them."""
    ranks = events.shard.ranks
    table = Interactions.from_pairs(
        events.users,
        events.items,
        n_users=len(events.user_ids),
        n_items=len(events.item_ids),
        timestamps=events.timestamps,
        ratings=events.ratings,
        user_ids=events.user_ids,
        item_ids=events.item_ids,
        keep=keep,
    )
    titles, categories, item_attributes = _item_side(
        about_items, events.item_ids, f"the items of {name}"
    )
    found, kept = ranks.total(len(events.users), table.n_interactions)
    repeated = found - kept
    story = f"{source or name}: {found:,} events"
    if repeated:
        story += f", {repeated:,} repeated (user, item) events collapsed to the {keep}"
    return Dataset(
        name=name,
        interactions=table,
        user_attributes=_user_side(about_users, events.user_ids, f"the users of {name}", ranks),
        item_titles=titles,
        item_categories=categories,
        item_attributes=item_attributes,
        provenance=story,
        shard=events.shard,
    )


def with_sides(dataset: Dataset, users: pa.Table | None, items: pa.Table | None) -> Dataset:
    """The data set with what tables say of its users and items, whose ids are in their columns user
    and item; it replaces what was known."""
    table, known = dataset.interactions, dataset
    if users is not None:
        where = f"the users of {dataset.name}"
        found = _user_side(users, table.users_vocabulary(), where, dataset.shard.ranks)
        known = replace(known, user_attributes=found, named_by={})
    if items is not None:
        where = f"the items of {dataset.name}"
        titles, categories, more = _item_side(items, table.items_vocabulary(), where)
        known = replace(
            known,
            item_titles=titles,
            item_categories=categories,
            item_attributes=more,
            named_by={},
        )
    return known


def number(column: pa.ChunkedArray, where: str) -> tuple[NDArray[np.int64], Vocabulary]:
    """Dense numbers and their names, in the common order."""
    present(column, where, more="; every event needs a user and an item")
    if pa.types.is_floating(column.type):
        column = whole(column, where)
    if pa.types.is_integer(column.type):
        unique, codes = np.unique(column.to_numpy(), return_inverse=True)
        return codes.astype(np.int64), named_by(unique)
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        column = texts(column, where).dictionary_encode()
    encoded = pa.concat_arrays(column.unify_dictionaries().chunks)
    codes = encoded.indices.to_numpy()
    # A dictionary may list ids that no event names.
    used = np.flatnonzero(np.bincount(codes, minlength=len(encoded.dictionary)))
    names = encoded.dictionary.take(pa.array(used)).to_pylist()
    check_ids(names, where)
    order = sorted_names(names)
    rank = np.zeros(len(encoded.dictionary), dtype=np.int64)
    rank[used[order]] = np.arange(len(names))
    return rank[codes], Vocabulary([names[k] for k in order])


def named_by(numbers: NDArray[np.integer]) -> Vocabulary:
    """Names that are numbers, which ascend."""
    if len(numbers) and numbers[0] == 0 and numbers[-1] == len(numbers) - 1:
        return Vocabulary.numbered(len(numbers))
    return Vocabulary(numbers.astype(np.str_))


def present(column: pa.ChunkedArray, where: str, first: int = 0, more: str = "") -> None:
    """Raises where a row is empty; `first` is the number of the first one."""
    if column.null_count:
        row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise CorruptData(f"{where}: row {row + 1} is empty{more}")


def check_ids(names: list[str | None], where: str) -> None:
    for name in names:
        if not name:
            raise CorruptData(f"{where}: there is an event without id; every event needs both ids")
        if len(name) > LONGEST_ID:
            raise CorruptData(
                f"{where}: the id {name[:20]!r}… has {len(name):,} characters; "
                f"ids may have {LONGEST_ID:,}"
            )
        if "\0" in name:
            raise CorruptData(f"{where}: the id {name!r} holds a NUL character")


def whole(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """As 64-bit whole numbers; raises where a value has a fraction or is no number."""
    try:
        return pc.cast(column, pa.int64())
    except pa.ArrowInvalid as error:
        raise CorruptData(f"{where}: {_reason(error)}; it must hold whole numbers") from None


def texts(column: Any, where: str) -> Any:
    """As text, nulls as they are."""
    try:
        return pc.cast(column, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CorruptData(f"{where}: {_reason(error)}; it must hold plain values") from None


def rows_of(
    ids: Vocabulary, keys: pa.ChunkedArray, where: str, ranks: Ranks = ALONE
) -> NDArray[np.int64]:
    """For every name of the vocabulary its row in a side table, -1 where it has none. Of ranks,
    each has other names."""
    keys = texts(keys, where).combine_chunks()
    if isinstance(keys, pa.ChunkedArray):
        keys = pa.concat_arrays(keys.chunks) if keys.num_chunks else pa.array([], pa.string())
    if keys.null_count or pc.count_distinct(keys).as_py() != len(keys):
        raise CorruptData(f"{where}: ids must be present and occur once")
    found = pc.index_in(pa.array(ids.names(), pa.string()), value_set=keys)
    rows: NDArray[np.int64] = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    named, known = ranks.total(len(rows), int(np.count_nonzero(rows >= 0)))
    if len(keys) and named and not known:
        raise CorruptData(f"{where}: none of the ids occurs among the interactions")
    return rows


def _user_side(
    table: pa.Table | None, ids: Vocabulary, where: str, ranks: Ranks
) -> dict[str, Labels]:
    if table is None:
        return {}
    rows = rows_of(ids, table["user"], where, ranks)
    names = [key for key in table.column_names if key != "user"]
    return {key: Labels.of(_pick(table, key, rows, where), ranks) for key in names}


def _item_side(
    table: pa.Table | None, ids: Vocabulary, where: str
) -> tuple[tuple[str, ...] | None, tuple[tuple[str, ...], ...] | None, dict[str, Labels]]:
    if table is None:
        return None, None, {}
    rows = rows_of(ids, table["item"], where)
    titles = categories = None
    if "title" in table.column_names:
        titles = tuple(_pick(table, "title", rows, where))
    if "categories" in table.column_names:
        lists = _text_lists(table["categories"], f"{where}, column categories")
        categories = tuple(lists[r] if r >= 0 else () for r in rows.tolist())
    elif "category" in table.column_names:
        single = _pick(table, "category", rows, where)
        categories = tuple((text,) if text else () for text in single)
    known = {"item", "title", "categories", "category"}
    others = [key for key in table.column_names if key not in known]
    return titles, categories, {key: Labels.of(_pick(table, key, rows, where)) for key in others}


def _text_lists(column: pa.ChunkedArray, where: str) -> list[tuple[str, ...]]:
    if not isinstance(column.type, LISTS):
        raise CorruptData(f"{where}: it must hold lists of texts, not {column.type}")
    lists = column.to_pylist()
    for row, names in enumerate(lists, 1):
        if not all(isinstance(name, str) for name in names or ()):
            raise CorruptData(f"{where}: row {row} must be a list of texts, not {names}")
    return [tuple(names or ()) for names in lists]


def _pick(table: pa.Table, key: str, rows: NDArray[np.int64], where: str) -> list[str]:
    values = texts(table[key], f"{where}, column {key}")
    return [value or "" for value in values.take(pa.array(rows, mask=rows < 0)).to_pylist()]


def ratings_of(column: pa.ChunkedArray, where: str, first: int = 0) -> NDArray[np.float32]:
    """Finite numbers; `first` is the number of the first row, for errors."""
    present(column, where, first)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise CorruptData(f"{where}: it must hold numbers, not {column.type}")
    with np.errstate(over="ignore"):
        values: NDArray[np.float32] = column.to_numpy().astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise CorruptData(f"{where}: row {first + bad[0] + 1} is not a finite number")
    return values


THOUSANDTHS_FROM = 10**11
"""Numbers from here on are taken as milliseconds: as seconds they would lie past the year 5000.
In the same way, a thousand times as many are microseconds, and a million times, nanoseconds."""


def seconds(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Seconds since 1970 from numbers (seconds or fractions), time stamps or ISO texts."""
    times = whole_times(column, where)
    return in_seconds(times, pc.max(times).as_py() or 0) if counts_time(column.type) else times


def counts_time(kind: pa.DataType) -> bool:
    """Whether it holds bare numbers, of which the largest tells the unit."""
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return not (texts or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def whole_times(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Whole numbers since 1970: seconds, or, of bare numbers, whatever they count."""
    kind = column.type
    if pa.types.is_boolean(kind):
        raise CorruptData(f"{where}: it must hold times, not {kind}")
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return _told(column, where)
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
        if pa.types.is_floating(kind):
            column = pc.cast(pc.floor(column), pa.int64())
        return pc.cast(column, pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CorruptData(f"{where}: {_reason(error)}; it must hold times") from None


def _told(texts: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    told = seconds_of_texts(texts)
    if told.null_count > texts.null_count:
        lost = pc.and_(pc.is_null(told), pc.is_valid(pa.concat_arrays(texts.chunks)))
        row = int(np.argmax(lost.to_numpy(zero_copy_only=False)))
        raise CorruptData(f"{where}: {texts[row].as_py()!r} is no time; it must hold times")
    return pa.chunked_array([told])


def in_seconds(times: Any, latest: int) -> Any:
    """Bare numbers as seconds, where this is the largest of all."""
    while latest >= THOUSANDTHS_FROM:
        times, latest = pc.divide(times, 1000), latest // 1000
    return times


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
