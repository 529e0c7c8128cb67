"""The prepared format: a folder of Parquet files that `read_prepared` turns into a `Dataset`.

interactions.parquet  user, item, and optionally timestamp, rating, split (of `PARTS`)
users.parquet         user, and one text column per attribute (optional file)
items.parquet         item, and optionally title, categories (list) or category, others (optional)
candidates.parquet    user, positive, negatives (list): sampled test candidates (optional file)
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.data.assembly import (
    LISTS,
    NumberedEvents,
    aligned,
    numbered,
    present,
    rows_of,
    texts,
)
from sottovoce.data.dataset import PARTS, TEST, VALIDATION, Dataset, PublishedSplit
from sottovoce.data.row_groups import part_of_rows, parts, read_share
from sottovoce.errors import CorruptData, DataError, DataNotFound

EVENTS, USERS, ITEMS, CANDIDATES = (
    "interactions.parquet",
    "users.parquet",
    "items.parquet",
    "candidates.parquet",
)
_EVENT_COLUMNS = ("user", "item", "timestamp", "rating", "split")
PROVENANCE = b"sottovoce.provenance"
_LISTS_AT_ONCE = 1 << 14


def read_prepared(
    folder: Path | str,
    name: str | None = None,
    ranks: Ranks = ALONE,
    users: range | None = None,
) -> Dataset:
    """Read a prepared folder, or a rank's share of it: its span of all users, or these. Ranks read
    together, and their shares are those of the whole. Raises DataNotFound or CorruptData, naming
    file and reason."""
    folder = Path(folder)
    if not (folder / EVENTS).is_file():
        raise DataNotFound(
            f"{folder} is not a prepared data set: it has no {EVENTS}; "
            "make one with `sottovoce data import NAME PATH`"
        )
    if ranks.together:
        ranks.same("data", _digest(folder))
    path = folder / EVENTS
    with _opened(path, ("user", "item"), sparing=ranks.together) as file:
        schema, told = file.schema_arrow, (file.metadata.metadata or {}).get(PROVENANCE)
        unknown = [c for c in schema.names if c not in _EVENT_COLUMNS]
        if unknown:
            raise CorruptData(
                f"{path} has a column {unknown[0]!r} that means nothing here; "
                f"columns are {', '.join(_EVENT_COLUMNS)}"
            )
        if ranks.together:
            events, split = read_share(file, str(path), ranks, users)
        else:
            table = file.read()
            events, split = numbered(table, str(path)), None
            if "split" in schema.names:
                split = part_of_rows(table["split"], str(path))
            del table
    about_users = _read(folder / USERS, ("user",)) if (folder / USERS).is_file() else None
    about_items = _read(folder / ITEMS, ("item",)) if (folder / ITEMS).is_file() else None
    dataset = aligned(name or folder.name, events, about_users, about_items)
    published = None
    if split is not None:
        published = _published(folder, events, split, dataset.interactions)
    provenance = told.decode() if told is not None else dataset.provenance
    return replace(dataset, published=published, provenance=provenance)


def write_prepared(dataset: Dataset, folder: Path | str, *, overwrite: bool = False) -> Path:
    """Write a prepared folder, whole or not at all; an existing one is kept unless told otherwise.

    Reading it back gives an equal fingerprint where ids are in the common order, as they are in
    everything the importers and the town make.
    """
    with placed(Path(folder), overwrite=overwrite) as partial:
        for file, table in _tables(dataset).items():
            pq.write_table(table, partial / file, compression="zstd")
    return Path(folder)


def require_place(folder: Path, *, overwrite: bool) -> None:
    """Raises where a data set cannot go into this folder."""
    if folder.exists() and not overwrite:
        raise DataError(
            f"{folder} exists already; choose another name or ask to overwrite it (--overwrite)"
        )
    if folder.exists() and not (folder / EVENTS).is_file():
        raise DataError(f"{folder} exists and is no data set; it will not be overwritten")


@contextlib.contextmanager
def placed(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, which then becomes `folder`; where anything goes wrong, nothing is left of
    it and what was there before is there still. What a killed process has left is removed."""
    require_place(folder, overwrite=overwrite)
    partial = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    old = folder.parent / f".{folder.name}.{os.getpid()}.old"
    first = not folder.parent.exists()
    try:
        _sweep(folder)
        partial.mkdir(parents=True)
        yield partial
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
        if first and not folder.exists():
            with contextlib.suppress(OSError):  # it may not be there, or not be empty
                folder.parent.rmdir()


def _sweep(folder: Path) -> None:
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"):
        owner = left.name.removeprefix(f".{folder.name}.").removesuffix(".partial")
        if owner.isdecimal() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    if os.name != "posix":  # where the question would be a signal
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        pass
    return True


def _digest(folder: Path) -> str:
    """Return the digest by which ranks on other machines see whether they read the same."""
    told = []
    for name in (EVENTS, USERS, ITEMS, CANDIDATES):
        if (folder / name).is_file():
            with _readable(folder / name), open(folder / name, "rb") as file:
                told.append(f"{name} {hashlib.file_digest(file, 'blake2b').hexdigest()}")
    return ", ".join(told)


@contextlib.contextmanager
def _opened(
    path: Path, needed: tuple[str, ...], *, sparing: bool = False
) -> Iterator[pq.ParquetFile]:
    """A file with these columns; `sparing` has no more of it in memory than is being decoded."""
    options = {"pre_buffer": False, "buffer_size": 1 << 16} if sparing else {}
    # ParquetFile and not read_table, which takes folders named a=b for columns.
    with _readable(path), pq.ParquetFile(path, **options) as file:
        names = file.schema_arrow.names
        for column in needed:
            if column not in names:
                have = ", ".join(names) or "none"
                raise CorruptData(f"{path} has no column {column!r}; it has: {have}")
        if len(set(names)) != len(names):
            raise CorruptData(f"{path} has two columns of one name: {', '.join(names)}")
        yield file


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptData(f"{path} cannot be read: {reason}; import the data set again") from None


def _read(path: Path, needed: tuple[str, ...]) -> pa.Table:
    with _opened(path, needed) as file:
        return file.read()


def _published(
    folder: Path, events: NumberedEvents, split: NDArray[np.uint8], table: Interactions
) -> PublishedSplit:
    """A pair that several parts have is in the latest of them."""
    keys, ranks = table.users * table.n_items + table.items, events.shard.ranks

    def entries(part: int) -> NDArray[np.bool_]:
        rows = split == part
        return np.isin(keys, events.users[rows] * table.n_items + events.items[rows])

    test, validation = entries(TEST), None
    if ranks.total(int(np.count_nonzero(split == VALIDATION))) != (0,):
        validation = entries(VALIDATION) & ~test
    return PublishedSplit(test, _negatives(folder / CANDIDATES, table, ranks), validation)


def _negatives(path: Path, table: Interactions, ranks: Ranks) -> NDArray[np.int32] | None:
    if not path.is_file():
        return None
    candidates = _candidates(path, table.users_vocabulary(), ranks)
    rows = rows_of(table.users_vocabulary(), candidates["user"], str(path))
    lists = candidates["negatives"]
    if not isinstance(lists.type, LISTS):
        raise CorruptData(f"{path}, column negatives: it must hold lists, not {lists.type}")
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    alike = len({length for told in ranks.gather(lengths) for length in told}) == 1
    if not (alike and lengths and lengths[0]) or rows.min() < 0:
        raise CorruptData(f"{path}: every user needs the same number of negatives, at least one")
    flat = _lookup(table.items_vocabulary(), pc.list_flatten(lists), path)
    return flat.reshape(-1, lengths[0])[rows].astype(np.int32)


def _candidates(path: Path, users: Vocabulary, ranks: Ranks) -> pa.Table:
    """All of them, or, of several ranks, those of these users."""
    if not ranks.together:
        return _read(path, ("user", "negatives"))
    mine, found = pa.array(users.names(), pa.string()), []
    with _opened(path, ("user", "negatives"), sparing=True) as file:
        groups = range(file.metadata.num_row_groups)
        for first, part in parts(file, ("user", "negatives"), groups, _LISTS_AT_ONCE):
            present(part["user"], f"{path}, column user", first)
            found.append(part.filter(pc.is_in(texts(part["user"], str(path)), value_set=mine)))
        return pa.concat_tables(found) if found else file.schema_arrow.empty_table()


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
        events["split"] = pa.array(PARTS).take(pa.array(dataset.published.parts()))
    metadata = {PROVENANCE: dataset.provenance.encode()}
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
