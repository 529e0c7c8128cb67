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
    from sottovoce.data.importers import KINDS, import_into, import_path
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

_NAMES = {
    "dataset": "Dataset Labels PublishedSplit",
    "interactions": "Interactions Vocabulary",
    "importers": "KINDS import_into import_path",
    "splitting": "Split keep_active keep_known leave_one_out published_split random_holdout "
    "temporal_holdout validation_split",
    "foursquare_categories": "TOP_CATEGORIES top_category with_top_categories",
    "town": "TownConfig TownShard generate_town stream_town",
    "sources": "available load prepared_folder prepared_root",
    "prepared": "read_prepared write_prepared",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

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
    "import_into",
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
