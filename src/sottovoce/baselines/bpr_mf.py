"""BPR-MF, central: one triple at a time, the item rows move at once (Rendle et al. 2009).

A user is drawn uniformly, then a positive and a negative of hers; an epoch has X⁺ triples. It takes
the same steps as FPL (algorithms/pairwise/factors.py), rounded to the same grid, so that sFPL with
π = 1 and T = 1 equals it bit for bit when both are given the same random streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.algorithms.pairwise import factors
from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.core.consent import ALWAYS, ShareRule
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams

_BLOCK = 500_000


@BASELINES.register("bpr-mf")
@dataclass(frozen=True, slots=True)
class BPRMF(Baseline):
    """BPR-MF: pair-wise learning of factors by one party that sees everything.

    Example:
        ```python
        fitted = sv.fit(sv.BPRMF(embedding_size=32, epochs=40), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "BPR-MF"
    listed_at = 50

    embedding_size: int = 10
    """Length of a user's or item's vector."""
    learning_rate: float = 0.05
    """Step size."""
    epochs: int = 20
    """Passes of X⁺ triples."""
    reg_user: float | None = None
    """Pull of user vectors to 0; a twentieth of the learning rate where it is not given."""
    reg_positive: float | None = None
    """The same for positive items; a twentieth."""
    reg_negative: float | None = None
    """The same for negative items; a two-hundredth."""

    def __post_init__(self) -> None:
        self._settings()

    def _settings(self) -> FPLConfig:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return FPLConfig(configuration="sFPL", **fields)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        *_, scorer = self.fit_steps(train, rng, [self.epochs], progress)
        return scorer

    def fit_steps(
        self,
        train: Interactions,
        rng: Streams,
        epochs: list[int],
        progress: Progress | None = None,
    ) -> list[FactorScorer]:
        """The model after each of these epochs (ascending), from one training run."""
        config = replace(self._settings(), epochs=max(epochs))
        able = np.flatnonzero((train.counts > 0) & (train.counts < train.n_items))
        if not len(able):
            raise ConfigError("BPR-MF needs at least one user with a positive and another item")
        start = FPL(config, triples=1)
        model = factors.padded(start.server_init(train.n_items, rng))
        vectors = start.device_init(np.arange(train.n_users, dtype=np.int64), rng)
        per_epoch, total = train.n_interactions, train.n_interactions * max(epochs)
        stops = [e * per_epoch for e in epochs]
        size, scorers, done = self.embedding_size, [], 0
        sieve = factors.make_sieve(train.indptr, train.items)
        while done < total:
            until = min([done + _BLOCK, *[s for s in stops if s > done]])
            steps = np.arange(done, until, dtype=np.int64)
            rows = able[rng.child("select").choose_one(len(able), steps)]
            always = np.full(len(rows), ALWAYS, dtype=np.uint64)
            factors.learn_rounds(
                config.step(),
                model,
                vectors,
                rows,
                train.indptr,
                train.items,
                rng.child("learn").paired_keys(steps, rows),
                1,
                ShareRule(always, always, np.zeros(0, dtype=bool)),
                sieve,
            )
            done = until
            if progress is not None:
                progress(done, total)
            if done in stops:
                if not np.isfinite(vectors).all() or not np.isfinite(model).all():
                    raise Diverged("BPR-MF ran off to infinity; lower learning_rate")
                items = model[:, : size + 1]
                scorers.append(
                    FactorScorer(vectors.copy(), items[:, :size].copy(), items[:, size].copy())
                )
        return scorers
