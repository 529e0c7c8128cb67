"""MF-NP, matrix factorisation without privacy: the model of FCF and FMF-LDP, learnt centrally.

It minimises Σ c_ui (p_ui − x_u·v_i)² + λ(Σ|x_u|² + Σ|v_i|²), c_ui = 1 + α for positives and 1 for
the rest (Hu et al. 2008). The users' vectors always come in closed form. The items' do too under
`solver="als"`, which is the best this model can do and the bound to compare with; `"adam"` steps
along the gradient of the summed loss, as FCF's server does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf.system import INIT_SCALE, adam_step, initial_items
from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer, default_threads
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams

Epoch = Callable[[NDArray[np.float32], NDArray[np.float32], int], NDArray[np.float32]]
"""New item vectors from the old ones, the users' and the number of the epoch."""


@BASELINES.register("mf-np")
@dataclass(frozen=True, slots=True)
class MFNP(Baseline):
    """MF-np: matrix factorisation by least squares, without privacy.

    Example:
        ```python
        fitted = sv.fit(sv.MFNP(embedding_size=16), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "MF-NP"
    listed_at = 70

    embedding_size: int = 48
    """Length of a user's or item's vector; F in the papers."""
    alpha: float = 4.0
    """Confidence of a positive is 1 + α, of everything else 1."""
    reg: float = 40.0
    """Pull of all vectors to 0; λ in the papers. Above 0, or users could have no solution."""
    epochs: int = 15
    """Passes over all users and items; "adam" wants some hundreds."""
    solver: Literal["als", "adam"] = "als"
    """How item vectors are found: in closed form, or by steps along the gradient."""
    learning_rate: float = 0.05
    """Step size of "adam"."""

    def __post_init__(self) -> None:
        require_whole("embedding_size", self.embedding_size, 1, closed_form.MOST_FACTORS)
        require_whole("epochs", self.epochs, 1, 1_000_000)
        require_number("alpha", self.alpha, 0.0, 1e6, above=False)
        require_number("reg", self.reg, 0.0, 1e6)
        require_number("learning_rate", self.learning_rate, 0.0, 10.0)
        if self.solver not in ("als", "adam"):
            raise ConfigError(f'solver must be "als" or "adam", not {self.solver!r}')

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        size = self.embedding_size
        items = initial_items(train.n_items, size, INIT_SCALE, rng)
        vectors = np.zeros((train.n_users, size), dtype=np.float32)
        if train.n_users and train.n_items:
            learn = self._exact(train) if self.solver == "als" else self._steps(train)
            for epoch in range(self.epochs):
                vectors = self._solve(items, train.indptr, train.items)
                items = learn(items, vectors, epoch)
                if progress is not None:
                    progress(epoch + 1, self.epochs)
            vectors = self._solve(items, train.indptr, train.items)
        return FactorScorer(vectors, items, np.zeros(train.n_items, dtype=np.float32))

    def fold_in(
        self, fitted: FactorScorer, train: Interactions, histories: Interactions
    ) -> FactorScorer:
        vectors = self._solve(fitted.item_factors, histories.indptr, histories.items)
        return replace(fitted, user_factors=vectors)

    def _solve(
        self, factors: NDArray[np.float32], indptr: NDArray[np.int64], entries: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """The best vector of each row, given those of the columns."""
        rows = np.arange(len(indptr) - 1, dtype=np.int64)
        return closed_form.solve(
            self._confidence(), factors, rows, indptr, entries, default_threads()
        )

    def _exact(self, train: Interactions) -> Epoch:
        users_of = Interactions.from_pairs(
            train.items, train.users, n_users=train.n_items, n_items=train.n_users
        )

        def epoch(
            items: NDArray[np.float32], vectors: NDArray[np.float32], number: int
        ) -> NDArray[np.float32]:
            return self._solve(vectors, users_of.indptr, users_of.items)

        return epoch

    def _steps(self, train: Interactions) -> Epoch:
        confidence, threads = self._confidence(), default_threads()
        moments = np.zeros((train.n_items, 2 * self.embedding_size), dtype=np.float32)

        def epoch(
            items: NDArray[np.float32], vectors: NDArray[np.float32], number: int
        ) -> NDArray[np.float32]:
            pull = closed_form.summed_gradient(
                confidence, items, vectors, train.indptr, train.items, threads
            )
            gradient = -2.0 * pull + 2.0 * self.reg * items.astype(np.float64)
            step, moments[:] = adam_step(gradient, moments, number + 1)
            return (items - self.learning_rate * step).astype(np.float32)

        return epoch

    def _confidence(self) -> closed_form.Confidence:
        return closed_form.Confidence(1.0 + self.alpha, 1.0, self.reg)
