"""What the federated systems are compared with: central recommenders that see all the data.

Each is a frozen configuration with one method, `fit(train, rng, progress=None) -> Scorer`, and
registers itself in `BASELINES`, through which experiment files name it.
"""

from __future__ import annotations

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.baselines.bpr_mf import BPRMF
from sottovoce.baselines.dpals import DPALS
from sottovoce.baselines.dplcf import DPLCF
from sottovoce.baselines.ease import EASE
from sottovoce.baselines.ials import IALS
from sottovoce.baselines.knn import ItemKNN, UserKNN
from sottovoce.baselines.lightgcn import LightGCN
from sottovoce.baselines.mf_np import MFNP
from sottovoce.baselines.mult_vae import MultVAE
from sottovoce.baselines.saros import SAROS
from sottovoce.baselines.simple import Random, TopPop
from sottovoce.baselines.slim import SLIM

__all__ = [
    "BASELINES",
    "BPRMF",
    "DPALS",
    "DPLCF",
    "EASE",
    "IALS",
    "MFNP",
    "SAROS",
    "SLIM",
    "Baseline",
    "ItemKNN",
    "LightGCN",
    "MultVAE",
    "Progress",
    "Random",
    "TopPop",
    "UserKNN",
]
