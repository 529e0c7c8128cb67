"""Making the store of a cohort from an organisation's own files."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core.consent import Choice, Consent
from sottovoce.data.dataset import Dataset
from sottovoce.errors import (
    ConfigError,
    ConsentError,
    CorruptData,
    DataError,
    DataNotFound,
    MessageError,
)
from sottovoce.stores.device import CohortStore
from sottovoce.wire.catalogue import categories_in

Catalogue = tuple[Sequence[tuple[str, str]], Sequence[Sequence[str]]]
"""Id and title of every item, by the number it has in the federation; and its categories, where
there are any."""

_TRUE, _FALSE = ("yes", "true", "1"), ("no", "false", "0")
_NUMBERS = {
    "share_positives": "from 0 to 1",
    "epsilon": "from 0 on",
    "total_epsilon": "from 0 on",
}
"""Columns of a consent file, with what they may be."""


@dataclass(frozen=True, slots=True)
class MadeCohort:
    """What is in a new store."""

    users: int
    first: int
    """The number of the first user in the federation; the others follow."""
    interactions: int
    unknown_items: int
    """Items of histories that the federation's catalogue does not have; they are kept."""
    take_part: int


def make_cohort(
    path: Path,
    dataset: Dataset,
    catalogue: Catalogue | None,
    choices: Mapping[str, Choice],
    first: int = 0,
) -> MadeCohort:
    """A store with a user for every user of the data set, numbered from `first` on in its order.
    Who has no choice takes no part. The store is there whole, or not at all."""
    history = dataset.interactions
    names = history.users_vocabulary().names()
    strangers = sorted(set(choices) - set(names))
    if strangers:
        raise DataError(f"the consent file names {strangers[0]!r}, who is not in the data")
    titles, categories = items_of(dataset) if catalogue is None else catalogue
    users = [(first + row, name) for row, name in enumerate(names)]
    numbers = np.array([number for number, _ in users], dtype=np.int64)
    store = CohortStore.create(path, users)
    try:
        with store:
            store.set_catalogue(titles, categories)
            added, _ = store.add_histories(history)
            chosen = [choices.get(name, Choice(takes_part=False)) for name in names]
            consent = Consent.of(numbers, chosen, np.arange(len(chosen), dtype=np.int64))
            store.set_choices(consent)
            unknown = len(store.unknown())
    except BaseException:
        shutil.rmtree(path)
        raise
    return MadeCohort(len(users), first, added, unknown, int(consent.takes_part.sum()))


def items_of(dataset: Dataset) -> Catalogue:
    """The data set's own items as a catalogue."""
    names = dataset.interactions.items_vocabulary()
    items = [(names.name(n), dataset.title(n)) for n in range(dataset.interactions.n_items)]
    return items, dataset.item_categories or ()


def read_server_catalogue(path: Path) -> Catalogue:
    """The `catalogue.json` of a federation's server."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        items = [(str(item), str(title)) for item, title in table["items"]]
        return items, categories_in(table, len(items))
    except FileNotFoundError:
        raise DataNotFound(f"the catalogue {path} is not there") from None
    except (ValueError, KeyError, TypeError, MessageError):
        raise CorruptData(
            f"{path} is no catalogue; ask the operator for the federation's catalogue.json"
        ) from None


def read_choices(path: Path) -> dict[str, Choice]:
    """Choices from a CSV file with the columns user and, if there, takes_part (yes or no),
    share_positives (0 to 1), epsilon and total_epsilon. A user in the file takes part unless she
    says no."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as source:
            rows = list(csv.DictReader(source))
    except FileNotFoundError:
        raise DataNotFound(f"the consent file {path} is not there") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptData(f"{path} is not a CSV file in UTF-8: {error}") from None
    found: dict[str, Choice] = {}
    for line, row in enumerate(rows, start=2):
        user = row.get("user")
        if not user:
            raise CorruptData(
                f"{path}, line {line}: the user is missing; the columns are user, takes_part, "
                "share_positives, epsilon and total_epsilon"
            )
        if user in found:
            raise CorruptData(f"{path}, line {line}: {user!r} is there twice")
        found[user] = _choice(row, f"{path}, line {line}")
    return found


def _choice(row: Mapping[str, str | None], where: str) -> Choice:
    part = (row.get("takes_part") or "yes").strip().lower()
    if part not in (*_TRUE, *_FALSE):
        raise CorruptData(f"{where}: takes_part must be yes or no, not {part!r}")
    given: dict[str, Any] = {"takes_part": part in _TRUE}
    for name, rule in _NUMBERS.items():
        text = row.get(name)
        try:
            given |= {name: float(text)} if text else {}
            Choice(**given)
        except (ValueError, ConfigError, ConsentError):
            raise CorruptData(f"{where}: {name} must be a number {rule}") from None
    return Choice(**given)
