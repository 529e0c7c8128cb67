"""Foursquare's old category tree (about 2012 to 2014), flattened to its nine top categories.

Written from knowledge of the tree, not compared with an official copy; `docs/data.md` has a check.
The TIST2015 files name only the leaf category of a venue; the papers report by top category.
Names are matched loosely (case, accents, punctuation), because the files carry damaged letters.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from dataclasses import replace
from importlib.resources import files
from typing import Final

from sottovoce.data.dataset import Dataset

LEAVES: Final[dict[str, list[str]]] = tomllib.loads(
    (files("sottovoce.data") / "foursquare_categories.toml").read_text(encoding="utf-8")
)
"""The known leaf names by top category."""
TOP_CATEGORIES: Final = tuple(LEAVES)


def top_category(leaf: str) -> str | None:
    """The top category of a leaf name (or of a top name); None if it is not known."""
    return _INDEX.get(_folded(leaf))


def with_top_categories(dataset: Dataset) -> Dataset:
    """The same data set with leaf categories replaced by top ones; unknown leaves are left out."""
    if dataset.item_categories is None:
        return dataset
    tops = {leaf: top_category(leaf) for row in dataset.item_categories for leaf in row}
    rolled = tuple(
        tuple(dict.fromkeys(top for leaf in row if (top := tops[leaf]) is not None))
        for row in dataset.item_categories
    )
    return replace(dataset, item_categories=rolled)


def _folded(leaf: str) -> str:
    plain = unicodedata.normalize("NFKD", leaf).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", " ", plain.lower()).strip()


def _stripped(leaf: str) -> str:
    # Some copies lost their accented letters altogether: "Café" reads "Caf" and control characters.
    return _folded(leaf.encode("ascii", "ignore").decode())


_INDEX: Final[dict[str, str]] = {
    key: top
    for top, leaves in LEAVES.items()
    for leaf in (*leaves, top)
    for key in (_folded(leaf), _stripped(leaf))
}
