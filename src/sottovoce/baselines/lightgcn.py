"""LightGCN (He et al., SIGIR 2020): the configuration, without torch.

Users and items are the nodes of a graph whose edges are the positives. With A its adjacency matrix,
D its degrees and E⁰ the embeddings that are learnt,

    Eᵏ⁺¹ = D^(−½) A D^(−½) Eᵏ,   E = (E⁰ + E¹ + … + Eᴷ) / (K + 1),   score(u, i) = e_u · e_i

There are no weights and no non-linearity between layers. Loss of a batch of B triples, each of a
user, an item of hers and one drawn uniformly from all others:

    (Σ −log σ(e_u · e_i − e_u · e_j) + reg/2 (|e⁰_u|² + |e⁰_i|² + |e⁰_j|²)) / B

As in the paper: embeddings of 64, drawn after Xavier, Adam, batches of 1,024, three layers of equal
weight. An epoch goes once through all positives. The paper has a step of .001 and up to a thousand
epochs, with early stopping; here a step of .005 gets further in fewer: on the validation part of
MovieLens 100K NDCG@10 is .152 after 60 epochs, and with .001 .131 after 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.config import require_number, require_whole
from sottovoce.core.installed import needs
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import UsageError
from sottovoce.rng import Streams


@BASELINES.register("lightgcn")
@dataclass(frozen=True, slots=True)
class LightGCN(Baseline):
    """Embeddings that are averaged along the graph of users and items; needs torch.

    Every draw comes from the `Streams`, none from torch's global state. A user without positives is
    alone in the graph and gets zeros.

    Example:
        ```python
        fitted = sv.fit(sv.LightGCN(epochs=20), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "LightGCN"
    listed_at = 62

    embedding_size: int = 64
    """Length of a user's or item's vector."""
    layers: int = 3
    """How far an interaction is passed on; K. 0: matrix factorisation."""
    learning_rate: float = 5e-3
    """Adam's step size (.001 in the paper)."""
    reg: float = 1e-4
    """Pull of a batch's embeddings to 0; λ in the paper."""
    epochs: int = 60
    """Passes over the positives."""
    batch_size: int = 1024
    """Triples per step."""
    device: str = "cpu"
    """Where torch computes: "cpu", "cuda" or "cuda:N"."""

    def __post_init__(self) -> None:
        require_whole("embedding_size", self.embedding_size, 1, 1 << 12)
        require_whole("layers", self.layers, 0, 100)
        require_number("learning_rate", self.learning_rate, 0.0, 1e3)
        require_number("reg", self.reg, 0.0, 1e6, above=False)
        require_whole("epochs", self.epochs, 1, 1_000_000)
        require_whole("batch_size", self.batch_size, 1, 1 << 24)

    def check(self) -> None:
        """Raises where torch or the device is missing."""
        _training().device_of(self.device)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        """The result is a factor model; scoring needs no torch."""
        scorer: FactorScorer = _training().fit(self, train, rng, progress)
        return scorer


def _training() -> ModuleType:
    """The part that needs torch."""
    try:
        return import_module("sottovoce.baselines.lightgcn_training")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(f"lightgcn {needs('torch')}") from None
