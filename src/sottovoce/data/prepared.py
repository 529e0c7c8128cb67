"""The prepared format: a folder of Parquet files that `read_prepared` turns into a `Dataset`.

interactions.parquet  user, item, and optionally timestamp, rating, split ("train" or "test")
users.parquet         user, and one text column per attribute (optional file)
items.parquet         item, and optionally title, categories (list) or category, others (optional)
candidates.parquet    user, positive, negatives (list): sampled test candidates (optional file)
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.data.assembly import LISTS, RawTables, assemble, rows_of, texts
from sottovoce.data.dataset import Dataset, PublishedSplit
from sottovoce.errors import CorruptData, DataError, DataNotFound

EVENTS, USERS, ITEMS, CANDIDATES = (
    "interactions.parquet",
    "users.parquet",
    "items.parquet",
    "candidates.parquet",
)
_EVENT_COLUMNS = ("user", "item", "timestamp", "rating", "split")
_PROVENANCE = b"sottovoce.provenance"


def read_prepared(folder: Path | str, name: str | None = None) -> Dataset:
    """Read a prepared folder. Raises DataNotFound or CorruptData, naming file and reason."""
    folder = Path(folder)
    if not (folder / EVENTS).is_file():
        raise DataNotFound(
            f"{folder} is not a prepared data set: it has no {EVENTS}; "
            "make one with `sottovoce data import NAME PATH`"
        )
    events = _read(folder / EVENTS, ("user", "item"))
    unknown = [c for c in events.column_names if c not in _EVENT_COLUMNS]
    if unknown:
        raise CorruptData(
            f"{folder / EVENTS} has a column {unknown[0]!r} that means nothing here; "
            f"columns are {', '.join(_EVENT_COLUMNS)}"
        )
    raw = RawTables(
        events,
        _read(folder / USERS, ("user",)) if (folder / USERS).is_file() else None,
        _read(folder / ITEMS, ("item",)) if (folder / ITEMS).is_file() else None,
    )
    dataset = assemble(name or folder.name, raw, where=str(folder / EVENTS))
    told = (events.schema.metadata or {}).get(_PROVENANCE)
    published = _published(folder, events, dataset.interactions)
    provenance = told.decode() if told is not None else dataset.provenance
    return replace(dataset, published=published, provenance=provenance)


def write_prepared(dataset: Dataset, folder: Path | str, *, overwrite: bool = False) -> Path:
    """Write a prepared folder, whole or not at all; an existing one is kept unless told otherwise.

    Reading it back gives an equal fingerprint where ids are in the common order, as they are in
    everything the importers and the town make.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise DataError(f"{folder} exists already; choose another name or ask to overwrite it")
    if folder.exists() and not (folder / EVENTS).is_file():
        raise DataError(f"{folder} exists and is no data set; it will not be overwritten")
    partial = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    old = folder.parent / f".{folder.name}.{os.getpid()}.old"
    try:
        partial.mkdir(parents=True)
        for file, table in _tables(dataset).items():
            pq.write_table(table, partial / file, compression="zstd")
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    except OSError as error:
        raise DataError(f"{folder} could not be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _read(path: Path, needed: tuple[str, ...]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:  # read_table takes folders named a=b for columns
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptData(f"{path} cannot be read: {reason}; import the data set again") from None
    for column in needed:
        if column not in table.column_names:
            have = ", ".join(table.column_names) or "none"
            raise CorruptData(f"{path} has no column {column!r}; it has: {have}")
    if len(set(table.column_names)) != table.num_columns:
        raise CorruptData(f"{path} has two columns of one name: {', '.join(table.column_names)}")
    return table


def _published(folder: Path, events: pa.Table, table: Interactions) -> PublishedSplit | None:
    if "split" not in events.column_names:
        return None
    marks = texts(events["split"], f"{folder / EVENTS}, column split")
    strange = [m for m in pc.unique(marks).to_pylist() if m not in ("train", "test")]
    if strange:
        raise CorruptData(f"{folder / EVENTS}: split must say train or test, not {strange[0]!r}")
    test = events.filter(pc.equal(marks, "test"))
    users = _lookup(table.users_vocabulary(), test["user"], folder / EVENTS)
    items = _lookup(table.items_vocabulary(), test["item"], folder / EVENTS)
    keys = table.users * table.n_items + table.items
    held_out = np.isin(keys, users * table.n_items + items)
    return PublishedSplit(held_out, _negatives(folder / CANDIDATES, table))


def _negatives(path: Path, table: Interactions) -> NDArray[np.int32] | None:
    if not path.is_file():
        return None
    candidates = _read(path, ("user", "negatives"))
    rows = rows_of(table.users_vocabulary(), candidates["user"], str(path))
    lists = candidates["negatives"]
    if not isinstance(lists.type, LISTS):
        raise CorruptData(f"{path}, column negatives: it must hold lists, not {lists.type}")
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if len(lengths) != 1 or not lengths[0] or rows.min() < 0:
        raise CorruptData(f"{path}: every user needs the same number of negatives, at least one")
    flat = _lookup(table.items_vocabulary(), pc.list_flatten(lists), path)
    return flat.reshape(-1, lengths[0])[rows].astype(np.int32)


def _lookup(ids: Vocabulary, column: pa.ChunkedArray, path: Path) -> NDArray[np.int64]:
    found = pc.index_in(texts(column, str(path)), value_set=pa.array(ids.names(), pa.string()))
    if found.null_count:
        raise CorruptData(f"{path} names an id that does not occur among the interactions")
    rows: NDArray[np.int64] = found.to_numpy().astype(np.int64)
    return rows


def _tables(dataset: Dataset) -> dict[str, pa.Table]:
    table = dataset.interactions
    user_names, item_names = _ids(table.users_vocabulary()), _ids(table.items_vocabulary())
    events = {"user": user_names.take(pa.array(table.users))}
    events["item"] = item_names.take(pa.array(table.items))
    if table.timestamps is not None:
        events["timestamp"] = pa.array(table.timestamps)
    if table.ratings is not None:
        events["rating"] = pa.array(table.ratings)
    if dataset.published is not None:
        events["split"] = pa.array(np.where(dataset.published.held_out, "test", "train"))
    metadata = {_PROVENANCE: dataset.provenance.encode()}
    files = {EVENTS: pa.table(events).replace_schema_metadata(metadata)}
    if dataset.user_attributes:
        columns = {k: pa.array(v.texts()) for k, v in dataset.user_attributes.items()}
        files[USERS] = pa.table({"user": user_names, **columns})
    side = {k: pa.array(v.texts()) for k, v in dataset.item_attributes.items()}
    if dataset.item_titles is not None:
        side["title"] = pa.array(dataset.item_titles)
    if dataset.item_categories is not None:
        side["categories"] = pa.array(
            [list(row) for row in dataset.item_categories], pa.list_(pa.string())
        )
    if side:
        files[ITEMS] = pa.table({"item": item_names, **side})
    if dataset.published is not None and dataset.published.negatives is not None:
        negatives = dataset.published.negatives
        flat = item_names.take(pa.array(negatives.reshape(-1)))
        offsets = pa.array(np.arange(len(negatives) + 1, dtype=np.int32) * negatives.shape[1])
        lists = pa.ListArray.from_arrays(offsets, flat)
        files[CANDIDATES] = pa.table({"user": user_names, "negatives": lists})
    return files


def _ids(vocabulary: Vocabulary) -> pa.Array:
    names = vocabulary.names()
    if all(n.isascii() and n.isdecimal() and len(n) < 19 and str(int(n)) == n for n in names):
        return pa.array([int(n) for n in names], pa.int64())
    return pa.array(names, pa.string())
