"""What a store knows of its users: an attribute's value by its name.

Values are used at home, and named nowhere else: neither in an error nor in a log nor in a repr.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import DataError
from sottovoce.parties.store_file import StoreFile

if TYPE_CHECKING:
    from sottovoce.algorithms.uc_config import FilterConfig


def of_user(file: StoreFile, number: int) -> dict[str, str]:
    rows = file.rows("SELECT name, value FROM attributes WHERE number = ? ORDER BY name", [number])
    return dict(rows)


def change(file: StoreFile, number: int, name: str, value: str | None, now: int) -> None:
    """Keep a value, or (None) forget it. A report that was prepared with another one will not
    leave, as if she had chosen anew."""
    if not name or value == "":
        raise DataError("an attribute needs a name and a value")
    with file.transaction():
        former = of_user(file, number).get(name)
        if former == value:
            return
        if value is None:
            file.write("DELETE FROM attributes WHERE (number, name) = (?, ?)", [number, name])
        else:
            file.write(
                "INSERT OR REPLACE INTO attributes VALUES (?, ?, ?, ?)", [number, name, value, now]
            )
        file.write(
            "INSERT INTO consent (number, choice, changed_at) SELECT number, choice, ?"
            " FROM consent WHERE number = ? ORDER BY version DESC LIMIT 1",
            [now, number],
        )
    if former is not None:
        file.cut_log()


def labels(
    file: StoreFile, users: NDArray[np.int64], filters: Sequence[FilterConfig]
) -> NDArray[np.int64]:
    """[users, filters]: classes; -1 where a value is missing, or is none of a filter's."""
    found = np.full((len(users), len(filters)), -1, dtype=np.int64)
    sql = "SELECT number, value FROM attributes WHERE name = ?"
    for column, wanted in enumerate(filters):
        rows = file.rows(sql, [wanted.name])
        codes = {value: wanted.code(value) for value in {value for _, value in rows}}
        numbers = np.array([number for number, _ in rows], dtype=np.int64)
        found[np.searchsorted(users, numbers), column] = [codes[value] for _, value in rows]
    return found
