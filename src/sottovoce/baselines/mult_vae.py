"""Mult-VAE (Liang et al., WWW 2018): the configuration, without torch.

    x ── L2-normalise, dropout ── tanh ── (μ, log σ²) ── z ── tanh ── logits
         M items                  hidden    embedding         hidden  M items

Loss per user: −Σ_i x_i log softmax(logits)_i + β KL(N(μ, σ²) ‖ N(0, 1)), the KL summed over the
latent dimensions. β rises linearly from 0 to 0.2 over 200,000 batches. On small data it hardly
rises at all: Foursquare Italy has 3 batches per epoch, so 200 epochs end at β = 0.0006 and the
model is in effect a denoising autoencoder with noise it may learn to shrink. (Public code rises by
1/200,000 per batch and stops at 0.2.)
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.core.installed import needs
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError, UsageError
from sottovoce.rng import Streams

WIDEST = 1 << 16
"""Largest layer: a wider one is a slip of the pen, and would fill the memory."""


@BASELINES.register("mult-vae")
@dataclass(frozen=True, slots=True)
class MultVAE(Baseline):
    """A variational autoencoder with a multinomial likelihood; needs torch.

    Every draw comes from the `Streams`, none from torch's global state, so CPU and CUDA see the
    same batches, masks and noise; results agree up to the rounding of the matrix products. Users
    without positives are not learnt from, yet are given the decoder's answer to an empty row.

    Example:
        ```python
        fitted = sv.fit(sv.MultVAE(epochs=20), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "Mult-VAE"
    listed_at = 60

    hidden_size: int = 600
    """Width of the tanh layers on both sides (200, 300 or 600 in the grid of seed 002)."""
    embedding_size: int = 200
    """Latent dimensions (100, 100 or 200 in that grid)."""
    epochs: int = 100
    """Passes over the users (50, 100 or 200 in that grid)."""
    batch_size: int = 500
    """Users per step."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    dropout: float = 0.5
    """Share of a user's items hidden from the encoder."""
    device: str = "cpu"
    """Where torch computes: "cpu", "cuda" or "cuda:N"."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "embedding_size", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate must be positive, not {self.learning_rate}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}")
        for name in ("hidden_size", "embedding_size"):
            if getattr(self, name) > WIDEST:
                raise ConfigError(f"{name} must be at most {WIDEST:,}, not {getattr(self, name)}")

    def check(self) -> None:
        """Raises where torch or the device is missing."""
        _training().device_of(self.device)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        """The last layer is linear, so the result is a factor model: the decoder's hidden layer
        of every user against the output weights. Scoring needs no torch."""
        scorer: FactorScorer = _training().fit(self, train, rng, progress)
        return scorer

    def fold_in(self, fitted: Any, train: Interactions, histories: Interactions) -> FactorScorer:
        scorer: FactorScorer = _training().encoded(fitted.network, histories, self.batch_size)
        return scorer


def _training() -> ModuleType:
    """The part that needs torch."""
    try:
        return import_module("sottovoce.baselines.mult_vae_training")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(f"mult-vae {needs('torch')}") from None
