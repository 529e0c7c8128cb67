"""FCF, federated collaborative filtering (Ammad-ud-din et al. 2019).

| here          | paper | meaning                                                   |
|---------------|-------|-----------------------------------------------------------|
| items         | V     | item vectors, no biases                                   |
| vectors       | x_u   | user vectors, which never leave their devices             |
| alpha         | α     | confidence of a positive is 1 + α, of everything else 1   |
| reg           | λ     | pull of all vectors to 0                                  |

Each round: the server publishes `items`; every device solves for its vector in closed form and
sends f(u,i) = c_ui (p_ui − x_u·v_i) x_u for **every** item; the server takes a step of Adam along
−2 Σ_u f(u,i) + 2λ v_i.

Raw data stays on the device, and nothing else is protected: the upload is a rank-one matrix, from
which whoever sees it reads the user's vector and every positive. The release is therefore called
"everything", costs infinity, and wants consent to share every positive.

`variant="fpl"` is what the authors of FPL most likely compared with: confidence 1 for positives and
0 for all else, so that there is no negative signal, and plain steps on the rows of positives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    ALGORITHMS,
    Accelerator,
    AlgorithmSettings,
    CrossDevice,
    Schedule,
    Signs,
)
from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.config import require_number, require_whole
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.consent import ShareRule
from sottovoce.core.links import Link
from sottovoce.core.messages import GRID, Aggregate, ModelView, SummedReports, Updates
from sottovoce.errors import ConfigError, MessageError
from sottovoce.rng import Streams

_ADAM = (0.9, 0.999, 1e-8)
INIT_SCALE = 0.1
"""Standard deviation of the initial values of item vectors."""
_MOST = 1e6
_UNKNOWN = (
    "algorithm.by_density needs to know how dense the data are, which nobody does in a real "
    "federation; name algorithm.alpha and algorithm.reg in its place (a run on data that are alike "
    "says which, in its manifest)"
)
_HARDLY_MOVED = 0.5
"""Distance that a number of the model has moved in all rounds, below which vectors are nearly as
they were drawn."""
_ALIKE = 0.9
"""Share of scores' variance in common from which lists are nearly everybody's."""


@ALGORITHMS.register("fcf")
@dataclass(frozen=True, slots=True)
class FCFConfig(AlgorithmSettings):
    releases: ClassVar[tuple[str, ...]] = ("everything",)
    embedding_size: int = 10
    """Length of a user's or item's vector; F in the paper."""
    learning_rate: float = 0.05
    """Step size of Adam on the server (of plain steps in the variant "fpl")."""
    alpha: float = 4.0
    """Confidence of a positive is 1 + α; not used by the variant "fpl"."""
    reg: float = 1.0
    """Pull of all vectors to 0; λ in the paper. Above 0, or users could have no solution."""
    by_density: bool = False
    """Whether `alpha` and `reg` are multiples of what suits the density of the data (`by_rule`)."""
    rounds: int = 50
    """Rounds; every device that takes part is in each."""
    variant: Literal["paper", "fpl"] = "paper"
    """As published, or as the authors of FPL most likely ran it."""

    def __post_init__(self) -> None:
        require_whole("embedding_size", self.embedding_size, 1, closed_form.MOST_FACTORS)
        require_whole("rounds", self.rounds, 1, 1_000_000)
        require_number("learning_rate", self.learning_rate, 0.0, 10.0)
        require_number("alpha", self.alpha, 0.0, _MOST, above=False)
        require_number("reg", self.reg, 0.0, _MOST)
        if self.variant not in ("paper", "fpl"):
            raise ConfigError(f'variant must be "paper" or "fpl", not {self.variant!r}')

    @property
    def system(self) -> str:
        """Its name in tables."""
        return "FCF" if self.variant == "paper" else "FCF (as in FPL)"

    @property
    def as_printed(self) -> bool:
        """Rules by the density of the data are ours."""
        return self.variant == "paper" and not self.by_density

    def by_rule(self, users: int, positives: int, n_items: int) -> FCFConfig:
        """Where it goes by density: α is a multiple of 1/(50 · density), and λ one of α · 1.5 √m,
        with m the geometric mean of positives per user and per item. With multiples of 1 these are
        the rules of iALS (`baselines/ials.py`), but for what is rare there."""
        if not self.by_density:
            return self
        alpha = self.alpha * users * n_items / (50.0 * max(1, positives))
        reg = self.reg * 1.5 * math.sqrt(positives / math.sqrt(users * n_items)) * alpha
        found = {"alpha": min(alpha, _MOST), "reg": min(max(reg, 1.0 / _MOST), _MOST)}
        return FCFConfig(**{**asdict(self), "by_density": False, **found})

    def check_terms(self) -> None:
        if self.by_density:
            raise ConfigError(_UNKNOWN)

    def learning(self) -> str:
        which = "multiples of the rules for " if self.by_density else ""
        least = super(FCFConfig, self).learning()
        return f"{least}, {which}α = {self.alpha:.3g} and λ = {self.reg:.3g}"

    def searched(self) -> Mapping[str, str]:
        if self.by_density:  # multiples of rules
            return {
                "learning_rate": "log:0.005:0.1",
                "reg": "log:0.3:3",
                "alpha": "log:0.5:16",
                "embedding_size": "16,32,64",
            }
        weight = {} if self.variant == "fpl" else {"alpha": "log:0.5:50"}
        return {
            "learning_rate": "log:0.005:0.1",
            "reg": "log:0.5:50",
            **weight,
            "embedding_size": "8,16,32",
        }

    def confidence(self) -> closed_form.Confidence:
        if self.by_density:
            raise ConfigError(_UNKNOWN)
        if self.variant == "fpl":
            return closed_form.Confidence(1.0, 0.0, self.reg)
        return closed_form.Confidence(1.0 + self.alpha, 1.0, self.reg)

    def build_under(self, release: Any, link: Link | None, triples: int) -> FCF:
        return self.build(triples)

    def build(self, triples: int) -> FCF:
        """Both halves; it draws no pairs."""
        return FCF(self)

    def describe(self, plan: Schedule) -> str:
        rows = "a row for each of their positive items" if self._plain else "a row for every item"
        return (
            f"solve for their vectors at home and send {rows}, from which their vectors and all "
            "their positives can be read. The server adds up what it gets and publishes the item "
            "table."
        )

    def advice(self, cohort_size: int) -> str:
        return f"try another algorithm.learning_rate than {self.learning_rate:g}, or more rounds"

    def suspects(self, plan: Schedule, signs: Signs) -> tuple[str, ...]:
        if self.variant == "paper" and plan.rounds * self.learning_rate < _HARDLY_MOVED:
            return (
                f"Adam moves a number by {self.learning_rate:g} a round at most: more "
                f"algorithm.rounds (there were {plan.rounds:,}) or a larger "
                "algorithm.learning_rate most likely help",
            )
        if signs.common > _ALIKE:
            return (
                f"{signs.common:.0%} of what scores differ by is the same for all users: "
                f"algorithm.reg ({self.reg:g}) is likely too large",
            )
        return ()

    def how_revealing(self, n_items: int) -> str:
        if self._plain:
            return (
                "with an update for each positive item, as the terms have it, a report is the "
                "history"
            )
        return super(FCFConfig, self).how_revealing(n_items)

    @property
    def _plain(self) -> bool:
        """Whether a row leaves for positives alone."""
        return self.variant == "fpl"


@dataclass(frozen=True, slots=True)
class FCF(CrossDevice):
    """Both halves of FCF."""

    sums: ClassVar[bool] = True
    config: FCFConfig

    @property
    def row_bytes(self) -> int:
        """A row for every item needs no item numbers."""
        return 4 * self.config.embedding_size

    @property
    def refits(self) -> bool:
        return True

    # --- server -----------------------------------------------------------------------------------

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]:
        return initial_items(n_items, self.config.embedding_size, INIT_SCALE, rng)

    def server_memory(self, n_items: int) -> NDArray[np.float32]:
        """Adam's two moments of every number."""
        columns = 2 * self.config.embedding_size if self.config.variant == "paper" else 0
        return np.zeros((n_items, columns), dtype=np.float32)

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if not isinstance(aggregate, SummedReports):
            raise MessageError("FCF folds sums of item rows, not randomised reports")
        rate, reg = self.config.learning_rate, self.config.reg
        # By what was sent, not by how: messages leave rows of zeros out, sums at the door do not.
        sums = aggregate.dense(len(items))
        gradient = -2.0 / GRID * sums + 2.0 * reg * items.astype(np.float64)
        if self.config.variant == "fpl":
            gradient[~sums.any(axis=1)] = 0.0
            return (items - rate * gradient).astype(np.float32), memory
        step, moments = adam_step(gradient, memory, aggregate.round + 1)
        return (items - rate * step).astype(np.float32), moments

    # --- device -----------------------------------------------------------------------------------

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]:
        return np.zeros((len(users), self.config.embedding_size), dtype=np.float32)

    def device_able(self, cohort: Cohort) -> NDArray[np.bool_]:
        able: NDArray[np.bool_] = cohort.history.counts > 0
        return able

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        cohort.vectors = solved(self.config.confidence(), view, cohort, None, 1)

    def device_learn(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64], rng: Streams
    ) -> Updates:
        history, n_items = cohort.history, view.items.shape[0]
        vectors = self._solve(view, cohort, rows, 1)
        values = closed_form.learn_rows(
            self.config.confidence(), view.items, vectors, rows, history.indptr, history.items
        )
        counts = history.counts[rows]
        place = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        before = np.cumsum(counts) - counts
        mine = np.repeat(history.indptr[rows] - before, counts) + np.arange(len(place))
        if self.config.variant == "fpl":  # of positives alone
            held = history.items[mine]
            positive = np.ones(len(mine), dtype=bool)
            return Updates(place, mine, held, positive, values[place, held])
        entry = np.full((len(rows), n_items), -1, dtype=np.int64)
        entry[place, history.items[mine]] = mine
        return Updates(
            row=np.repeat(np.arange(len(rows), dtype=np.int32), n_items),
            entry=entry.ravel(),
            item=np.tile(np.arange(n_items, dtype=np.int32), len(rows)),
            positive=entry.ravel() >= 0,
            values=values.reshape(-1, values.shape[2]),
        )

    def device_learn_summed(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
        threads: int,
    ) -> tuple[NDArray[np.int64], RowCounts]:
        history = cohort.history
        vectors = self._solve(view, cohort, rows, threads)
        sums = closed_form.learn_summed(
            self.config.confidence(),
            view.items,
            vectors,
            rows,
            history.indptr,
            history.items,
            threads,
        )
        confidence, held = self.config.confidence(), history.counts[rows]
        return sums, confidence.rows_sent(held, len(view.items))

    def accelerated(
        self,
        cohort: Cohort,
        n_items: int,
        rule: ShareRule,
        rng: Streams,
        scales: NDArray[np.float64],
        device: str,
    ) -> Accelerator:
        from sottovoce.algorithms.fcf.accelerated import FCFOnTorch

        return FCFOnTorch.load(self.config.confidence(), cohort, device)

    def _solve(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64], threads: int
    ) -> NDArray[np.float32]:
        vectors = solved(self.config.confidence(), view, cohort, rows, threads)
        cohort.vectors[rows] = vectors
        return vectors


def solved(
    confidence: closed_form.Confidence,
    view: ModelView,
    cohort: Cohort,
    rows: NDArray[np.int64] | None,
    threads: int,
) -> NDArray[np.float32]:
    """The closed-form vectors of these devices, or of all. Without history a vector is 0."""
    everyone = np.arange(len(cohort), dtype=np.int64)
    history = cohort.history
    return closed_form.solve(
        confidence,
        view.items,
        everyone if rows is None else rows,
        history.indptr,
        history.items,
        threads,
    )


def initial_items(n_items: int, size: int, scale: float, rng: Streams) -> NDArray[np.float32]:
    numbers = np.arange(n_items, dtype=np.int64)
    return (scale * rng.child("init-items").normal(numbers, size)).astype(np.float32)


def adam_step(
    gradient: NDArray[np.float64], moments: NDArray[np.float32], step: int
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Adam's direction in its `step`-th step, and the moments after it ([n, 2 · width])."""
    first, second, floor = _ADAM
    width = gradient.shape[1]
    mean = first * moments[:, :width].astype(np.float64) + (1 - first) * gradient
    square = second * moments[:, width:].astype(np.float64) + (1 - second) * gradient**2
    direction = (mean / (1 - first**step)) / (np.sqrt(square / (1 - second**step)) + floor)
    return direction, np.hstack([mean, square]).astype(np.float32)
