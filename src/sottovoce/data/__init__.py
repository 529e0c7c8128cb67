"""Data sets: the interaction table, named sources, importers, splits and the generated town.

Names are loaded on first use, so that importing one of them costs no more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.core.interactions import Interactions, Vocabulary
    from sottovoce.data.dataset import Dataset, Labels, PublishedSplit
    from sottovoce.data.foursquare_categories import (
        TOP_CATEGORIES,
        top_category,
        with_top_categories,
    )
    from sottovoce.data.importers import KINDS, import_path
    from sottovoce.data.prepared import read_prepared, write_prepared
    from sottovoce.data.sources import available, load, prepared_folder, prepared_root
    from sottovoce.data.splitting import (
        Split,
        keep_active,
        keep_known,
        leave_one_out,
        published_split,
        random_holdout,
        temporal_holdout,
        validation_split,
    )
    from sottovoce.data.town import TownConfig, TownShard, generate_town, stream_town

_HOMES = {
    "Dataset": "dataset",
    "Interactions": "interactions",
    "KINDS": "importers",
    "Labels": "dataset",
    "PublishedSplit": "dataset",
    "Split": "splitting",
    "TOP_CATEGORIES": "foursquare_categories",
    "TownConfig": "town",
    "TownShard": "town",
    "Vocabulary": "interactions",
    "available": "sources",
    "generate_town": "town",
    "import_path": "importers",
    "keep_active": "splitting",
    "keep_known": "splitting",
    "leave_one_out": "splitting",
    "load": "sources",
    "prepared_folder": "sources",
    "prepared_root": "sources",
    "published_split": "splitting",
    "random_holdout": "splitting",
    "read_prepared": "prepared",
    "stream_town": "town",
    "temporal_holdout": "splitting",
    "top_category": "foursquare_categories",
    "validation_split": "splitting",
    "with_top_categories": "foursquare_categories",
    "write_prepared": "prepared",
}

__all__ = [
    "Dataset",
    "Interactions",
    "KINDS",
    "Labels",
    "PublishedSplit",
    "Split",
    "TOP_CATEGORIES",
    "TownConfig",
    "TownShard",
    "Vocabulary",
    "available",
    "generate_town",
    "import_path",
    "keep_active",
    "keep_known",
    "leave_one_out",
    "load",
    "prepared_folder",
    "prepared_root",
    "published_split",
    "random_holdout",
    "read_prepared",
    "stream_town",
    "temporal_holdout",
    "top_category",
    "validation_split",
    "with_top_categories",
    "write_prepared",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "sottovoce.core" if _HOMES[name] == "interactions" else __name__
    return getattr(import_module(f"{home}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
