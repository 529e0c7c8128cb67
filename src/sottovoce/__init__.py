"""Sottovoce: federated recommendation in which every user decides what leaves the device.

The names below are the public interface; they are imported when first used, so that importing the
package costs nothing.

    import sottovoce as sv

    parts = sv.split(sv.load("ratings.csv"), test_fraction=0.2)
    gram = sv.fit(sv.Gram(epsilon=4.0), parts, seed=7)
    print(gram.recommend("u17", n=5))
    print(sv.compare([sv.fit(sv.TopPop(), parts), gram, sv.fit(sv.FPL(), parts)]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.baselines import BPRMF as BPRMF
    from sottovoce.baselines import DPALS as DPALS
    from sottovoce.baselines import DPLCF as DPLCF
    from sottovoce.baselines import EASE as EASE
    from sottovoce.baselines import IALS as IALS
    from sottovoce.baselines import MFNP as MFNP
    from sottovoce.baselines import SAROS as SAROS
    from sottovoce.baselines import SLIM as SLIM
    from sottovoce.baselines import ItemKNN as ItemKNN
    from sottovoce.baselines import LightGCN as LightGCN
    from sottovoce.baselines import MultVAE as MultVAE
    from sottovoce.baselines import Random as Random
    from sottovoce.baselines import TopPop as TopPop
    from sottovoce.baselines import UserKNN as UserKNN
    from sottovoce.core.interactions import Interactions as Interactions
    from sottovoce.data.dataset import Dataset as Dataset
    from sottovoce.errors import SottovoceError as SottovoceError
    from sottovoce.evaluation.protocol import Evaluation as Evaluation
    from sottovoce.experiment import Experiment as Experiment
    from sottovoce.interface.data import SplitDataset as SplitDataset
    from sottovoce.interface.data import load as load
    from sottovoce.interface.data import split as split
    from sottovoce.interface.fitting import Fitted as Fitted
    from sottovoce.interface.fitting import compare as compare
    from sottovoce.interface.fitting import fit as fit
    from sottovoce.interface.fitting import open_run as open_run
    from sottovoce.interface.results import ComparisonTable as ComparisonTable
    from sottovoce.interface.results import Recommendations as Recommendations
    from sottovoce.interface.results import Scores as Scores
    from sottovoce.interface.systems import DRIFT as DRIFT
    from sottovoce.interface.systems import FCF as FCF
    from sottovoce.interface.systems import FMFLDP as FMFLDP
    from sottovoce.interface.systems import FPL as FPL
    from sottovoce.interface.systems import Gram as Gram
    from sottovoce.interface.systems import System as System
    from sottovoce.interface.systems import UCFedRec as UCFedRec
    from sottovoce.runs.card import Card as Card
    from sottovoce.runs.read import Recommendation as Recommendation
    from sottovoce.runs.train import run_experiment as run_experiment

__version__ = "0.2.0"

_HOMES = {
    "BPRMF": "baselines",
    "Card": "runs.card",
    "ComparisonTable": "interface.results",
    "DPALS": "baselines",
    "DPLCF": "baselines",
    "DRIFT": "interface.systems",
    "Dataset": "data.dataset",
    "EASE": "baselines",
    "Evaluation": "evaluation.protocol",
    "Experiment": "experiment",
    "FCF": "interface.systems",
    "FMFLDP": "interface.systems",
    "FPL": "interface.systems",
    "Fitted": "interface.fitting",
    "Gram": "interface.systems",
    "IALS": "baselines",
    "Interactions": "core.interactions",
    "ItemKNN": "baselines",
    "LightGCN": "baselines",
    "MFNP": "baselines",
    "MultVAE": "baselines",
    "Random": "baselines",
    "Recommendation": "runs.read",
    "Recommendations": "interface.results",
    "SAROS": "baselines",
    "SLIM": "baselines",
    "Scores": "interface.results",
    "SottovoceError": "errors",
    "SplitDataset": "interface.data",
    "System": "interface.systems",
    "TopPop": "baselines",
    "UCFedRec": "interface.systems",
    "UserKNN": "baselines",
    "compare": "interface.fitting",
    "fit": "interface.fitting",
    "load": "interface.data",
    "open_run": "interface.fitting",
    "run_experiment": "runs.train",
    "split": "interface.data",
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
