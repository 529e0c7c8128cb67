"""What the federated systems are compared with: central recommenders that see all the data.

Each is a frozen configuration with one method, `fit(train, rng, progress=None) -> Scorer`.
Experiment files name them through `BASELINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sottovoce.baselines.base import Baseline, Progress
from sottovoce.baselines.bpr_mf import BPRMF
from sottovoce.baselines.dplcf import DPLCF
from sottovoce.baselines.knn import ItemKNN, UserKNN
from sottovoce.baselines.mf_np import MFNP
from sottovoce.baselines.mult_vae import MultVAE
from sottovoce.baselines.popular import TopPop
from sottovoce.baselines.saros import SAROS
from sottovoce.baselines.uniform import Random

BASELINES: Mapping[str, type[Baseline]] = MappingProxyType(
    {
        "random": Random,
        "top-pop": TopPop,
        "user-knn": UserKNN,
        "item-knn": ItemKNN,
        "bpr-mf": BPRMF,
        "mult-vae": MultVAE,
        "saros": SAROS,
        "mf-np": MFNP,
        "dplcf": DPLCF,
    }
)

__all__ = [
    "BASELINES",
    "BPRMF",
    "DPLCF",
    "MFNP",
    "SAROS",
    "Baseline",
    "ItemKNN",
    "MultVAE",
    "Progress",
    "Random",
    "TopPop",
    "UserKNN",
]
