"""Sottovoce: federated recommendation in which every user decides what leaves the device.

The names below are the public interface; they are imported when first used, so that importing the
package costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BPRMF": "baselines",
    "Choice": "core.consent",
    "Cohort": "core.cohort",
    "Consent": "core.consent",
    "ConsentPolicy": "core.consent",
    "Dataset": "data.dataset",
    "Devices": "parties.device",
    "Evaluation": "evaluation.protocol",
    "Experiment": "experiment",
    "FPL": "algorithms.fpl.system",
    "FPLConfig": "algorithms.fpl.system",
    "FactorScorer": "core.recommender",
    "Federation": "runs.federation",
    "Interactions": "core.interactions",
    "ItemKNN": "baselines",
    "Ledger": "core.ledger",
    "MultVAE": "baselines",
    "Protocol": "evaluation.protocol",
    "Random": "baselines",
    "RunFolder": "runs.folder",
    "Scorer": "core.recommender",
    "Server": "parties.server",
    "ShareFraction": "privacy.mechanisms",
    "Simulation": "engines.simulation",
    "SottovoceError": "errors",
    "Split": "data.splitting",
    "Streams": "rng",
    "TopPop": "baselines",
    "TownConfig": "data.town",
    "UserKNN": "baselines",
    "compare": "evaluation.significance",
    "evaluate": "evaluation.protocol",
    "generate_town": "data.town",
    "keep_active": "data.splitting",
    "leave_one_out": "data.splitting",
    "load": "data.sources",
    "run_experiment": "runs.train",
    "temporal_holdout": "data.splitting",
    "top_n": "core.recommender",
    "validation_split": "data.splitting",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    value = getattr(import_module(f"sottovoce.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Moved:
    """Says where a module of an earlier release is now. It is asked only if there is no such
    module."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.startswith("sottovoce."):
            table = Path(__file__).with_name("moved.txt")
            for line in table.read_text().splitlines():
                old, _, new = line.partition(" ")
                if old == fullname:
                    raise ImportError(f"{old} is {new} now; {table} has them all", name=fullname)


sys.meta_path.append(_Moved())
