"""Data for Python: files, prepared sets and frames become a `Dataset`, and that is split."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sottovoce.core.interactions import Interactions
from sottovoce.data.assembly import with_sides
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers import import_path
from sottovoce.data.importers.base import Request
from sottovoce.data.importers.columns import id_column
from sottovoce.data.importers.table import read_table
from sottovoce.data.sources import TOWN, available
from sottovoce.data.splitting import Split
from sottovoce.data.times import DayOrder
from sottovoce.errors import CorruptData, DataNotFound, UsageError
from sottovoce.experiment import Experiment
from sottovoce.interface.speech import spoken

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    Frame: TypeAlias = pa.Table | pd.DataFrame | pl.DataFrame | Mapping[str, Sequence[Any]]

How: TypeAlias = Literal["auto", "temporal", "random", "leave-one-out", "published"]


def load(
    source: str | Path | Frame,
    *,
    columns: Mapping[str, str] | None = None,
    users: str | Path | Frame | None = None,
    items: str | Path | Frame | None = None,
    min_rating: float = 0.0,
    min_user_items: int = 0,
    min_item_users: int = 0,
    name: str | None = None,
    skip_bad: bool = False,
    delimiter: str | None = None,
    header: bool = True,
    names: Sequence[str] = (),
    dates: DayOrder | None = None,
    kind: str = "auto",
    residents: int | None = None,
) -> Dataset:
    """Load interactions from a file, a prepared data set or a data frame.

    Columns are found by their names, as `sottovoce data import` finds them: user, item, and perhaps
    a time and a rating ("user_id", "movieId", "timestamp", "stars" …). Nothing is written anywhere.

    Args:
        source: A CSV, TSV, Parquet or JSON file, an official download such as `ml-1m.zip`, a
            folder; the name of a prepared data set ("movielens-100k") or "town", the generated one;
            or a frame of pandas, Polars or pyarrow, or a dictionary of columns.
        columns: Which column plays which role, if names leave it open, such as
            `{"user": "uid", "timestamp": "-"}`; roles are user, item, timestamp, rating and split,
            and "-" leaves a role out.
        users: A table of what is known of users: an id, and a column for each attribute.
        items: The same of items: an id, and perhaps title, category or categories (a list).
        min_rating: Only interactions that are rated so high count; 0 takes all.
        min_user_items: Leave out users with fewer items.
        min_item_users: Leave out items with fewer users.
        name: What to call the data; by default after the file, or "frame".
        skip_bad: Leave out rows that cannot be read, in the place of an error.
        delimiter: What separates the fields of a text file, if it cannot be guessed.
        header: Whether the first line of a text file names its columns.
        names: Names of the columns of a text file without such a line.
        dates: How days such as 03/04/2024 are written, "day-first" or "month-first", if the file
            does not tell.
        kind: Which importer reads the file; by default the one that knows it.
        residents: How many people live in the generated town.

    Returns:
        The data set; `describe()` says what there is.

    Example:
        ```python
        import sottovoce as sv

        data = sv.load("ratings.csv", min_user_items=5)
        town = sv.load("town", residents=2000)
        frame = sv.load({"user": ["a", "a", "b"], "item": ["x", "y", "x"]})
        ```
    """
    filters: dict[str, Any] = {
        "min_rating": min_rating,
        "min_user_items": min_user_items,
        "min_item_users": min_item_users,
    }
    text = {"delimiter": delimiter, "header": header, "names": tuple(names), "dates": dates}
    with spoken():
        if residents is not None and source != TOWN:
            raise UsageError('residents is for "town", the generated data set')
        if isinstance(source, str) and source in available():
            town = {"town": {"residents": residents}} if residents is not None else {}
            experiment = Experiment.from_table({"data": {"source": source, **filters}, **town})
            found = experiment.dataset()
            if columns or skip_bad:
                raise UsageError(f"{source} is prepared; columns and skip_bad are for files")
        else:
            found = _imported(source, columns, name, skip_bad, text, kind)
            found = Experiment.from_table({"data": {"source": found.name, **filters}}).filtered(
                found
            )
        if name is not None:
            found = replace(found, name=name)
        return with_sides(found, _side(users, "user"), _side(items, "item"))


def _imported(
    source: str | Path | Frame,
    columns: Mapping[str, str] | None,
    name: str | None,
    skip_bad: bool,
    text: Mapping[str, Any],
    kind: str,
) -> Dataset:
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.exists():
            raise DataNotFound(
                f"{source} is neither a file nor a prepared data set; data sets here are "
                f"{', '.join(available())}"
            )
        return import_path(path, kind, columns=columns, name=name, skip_bad=skip_bad, **text)
    request = Request(name=name, columns=columns or {}, skip_bad=skip_bad, dates=text["dates"])
    return read_table(arrow(source, "the frame"), request, name or "frame")


def arrow(frame: Frame, where: str) -> pa.Table:
    """A frame of whatever library as a pyarrow table; a sentence where it is none."""
    import pyarrow as pa

    try:
        if isinstance(frame, Mapping):
            return pa.table({str(key): values for key, values in frame.items()})
        pandas = sys.modules.get("pandas")
        if pandas is not None and isinstance(frame, pandas.DataFrame):
            return pa.Table.from_pandas(frame, preserve_index=False)
        if isinstance(frame, pa.Table) or hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = "; ".join(str(part) for part in error.args) or type(error).__name__
        raise CorruptData(
            f"{where} has a column with values of several types ({reason.splitlines()[0]}); "
            'make it of one, for example with .astype("str") in pandas'
        ) from None
    raise UsageError(
        f"{where} must be a file, the name of a data set, or a frame of pandas, Polars or pyarrow, "
        f"not {type(frame).__name__}"
    )


def _side(source: str | Path | Frame | None, role: Literal["user", "item"]) -> pa.Table | None:
    """A table about users or items, with its ids in a column called by the role."""
    if source is None:
        return None
    where = f"the table of {role}s"
    if isinstance(source, str | Path):
        table, where = _read_side(Path(source)), str(source)
    else:
        table = arrow(source, where)
    ids = id_column(table.column_names, role, where)
    return table.rename_columns([role if name == ids else name for name in table.column_names])


def _read_side(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataNotFound(f"{path} does not exist; give a CSV or Parquet file, or a frame")
    try:
        return pq.read_table(path) if path.suffix == ".parquet" else pacsv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SplitDataset:
    """A data set in a training and a test part, as `split` makes it.

    All systems that are compared learn from the same `train`, and are judged by the same `test`.

    Example:
        ```python
        parts = sv.split(sv.load("town"))
        print(parts.train.n_interactions, parts.test.n_interactions)
        ```
    """

    dataset: Dataset
    settings: Mapping[str, Any]
    """The section [data] of an experiment that says the same."""
    parts: Split

    def __repr__(self) -> str:
        return f"<SplitDataset {self.dataset.name}: {self.parts!r}; {self.parts.protocol}>"

    @property
    def train(self) -> Interactions:
        """What is learnt from."""
        return self.parts.train

    @property
    def test(self) -> Interactions:
        """What is to be found."""
        return self.parts.test

    def sections(self) -> dict[str, Any]:
        """The sections of an experiment file that name these data and this split."""
        town = self.dataset.named_by.get("town")
        return {"data": dict(self.settings), **({"town": dict(town)} if town else {})}


def split(
    data: Dataset | str | Path | Frame,
    *,
    test_fraction: float | None = None,
    how: How = "auto",
    seed: int = 0,
    part: Literal["test", "validation"] = "test",
) -> SplitDataset:
    """Hold out a part of every user's interactions, by which systems are judged.

    Args:
        data: What `load` gives, or anything that it takes.
        test_fraction: Share of each user's interactions that is held out; 0.2 by default.
        how: "temporal" holds out the latest, "random" any, "leave-one-out" one of each user (the
            latest if there are times), "published" those of a split that came with the data.
            "auto" takes the published split if there is one and no share is asked for; else the
            latest if there are times; else random ones.
        seed: By which random ones are drawn.
        part: "validation" holds out a second part, of the training part, to tune on.

    Returns:
        The two parts, with the data set.

    Example:
        ```python
        parts = sv.split(data, test_fraction=0.2)
        tuning = sv.split(data, how="leave-one-out", part="validation")
        ```
    """
    dataset = data if isinstance(data, Dataset) else load(data)
    times = dataset.interactions.timestamps is not None
    if how == "auto":
        ready = dataset.published is not None and test_fraction is None
        how = "published" if ready else "temporal" if times else "random"
    settings: dict[str, Any] = {
        **dataset.named_by.get("data", {"source": dataset.name}),
        "split": how,
        "test_fraction": 0.2 if test_fraction is None else test_fraction,
    }
    if how == "leave-one-out" and not times:
        settings["hold_out"] = "random"
    if "random" in (how, settings.get("hold_out")) or (part == "validation" and not times):
        settings["split_seed"] = seed
    if part != "test":
        settings["part"] = part
    with spoken():
        experiment = Experiment.from_table({"data": settings})
        return SplitDataset(dataset, settings, experiment.split(dataset))
