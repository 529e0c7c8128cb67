"""FMF-LDP, federated matrix factorisation with randomised reports (Minto et al. 2021).

| here          | paper | meaning                                                          |
|---------------|-------|------------------------------------------------------------------|
| items         | V     | item vectors, no biases                                          |
| vectors       | x_u   | user vectors, in closed form as in FCF                           |
| max_reports   | k     | reports of a device and round; lives in the release              |
| epsilon       | ε     | cost of one report; the consent record and the tiers have it     |
| server_steps  |       | steps on the server per round, all with the same estimate        |
| learning_rate | kγ    | step size; `rate_per_user` is γ itself                           |

Each round: the server publishes `items`; every device solves for its vector, draws k coordinates
(item, factor), computes only those entries of its gradient −2 c_ui (p_ui − x_u·v_i) x_u, cuts each
to [-1, 1] and sends a randomised bit; the proxy mixes; the server estimates the mean of the cut
gradients and steps along it. `variant="rotated"` reports about something else and gets much more
out of the same reports at the same cost (`rotated`).

Where the paper errs: the printed sign of the update goes uphill; dividing by the number of users
instead of that of reports estimates k times the mean; the budget is kεT over T rounds, not kε.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, Reporting, Schedule
from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf.system import initial_items, solved
from sottovoce.algorithms.fmf import rotated
from sottovoce.config import require_number, require_whole
from sottovoce.core.cohort import Cohort
from sottovoce.core.links import Link
from sottovoce.core.messages import Aggregate, BitCounts, ModelView
from sottovoce.core.one_bit import (
    ReportRule,
    contrast,
)
from sottovoce.errors import ConfigError, MessageError
from sottovoce.rng import Streams

_MEMORY_ROUNDS = 1.5
"""Of rotated reports the estimate of round t counts c/(t + c) against what was learnt before."""


@ALGORITHMS.register("fmf")
@dataclass(frozen=True, slots=True)
class FMFConfig(AlgorithmSettings):
    releases: ClassVar[tuple[str, ...]] = ("k-reports",)
    links: ClassVar[tuple[str, ...]] = ("proxy",)
    published: ClassVar[str] = ""
    variant: Literal["published", "rotated"] = "published"
    """As published, or with reports about rotated histories, which tell more at the same cost."""
    embedding_size: int = 5
    """Length of a user's or item's vector; F in the paper."""
    learning_rate: float = 0.004
    """Step size on the server, along the mean of all reports. Not used by the variant "rotated",
    like `reg`'s part on the server, `server_steps` and `scale`."""
    rate_per_user: float | None = None
    """The same in the paper's units (it has 0.001), in the place of `learning_rate`: the paper
    divides by users instead of reports, so that its step is `max_reports` times as large."""
    alpha: float = 1.0
    """Confidence of a positive is 1 + α, of everything else 1."""
    reg: float = 1e-6
    """Pull of all vectors to 0; λ in the paper."""
    rounds: int = 20
    """Rounds; every device that takes part reports in each."""
    server_steps: int = 20
    """Steps per round, all with the same estimate."""
    scale: float = 1.0
    """Gradients are multiplied by it before they are cut to [-1, 1]."""
    init_scale: float = 0.1
    """Standard deviation of the initial values."""

    def __post_init__(self) -> None:
        if self.variant not in ("published", "rotated"):
            raise ConfigError(f'variant must be "published" or "rotated", not {self.variant!r}')
        require_whole("embedding_size", self.embedding_size, 1, closed_form.MOST_FACTORS)
        require_whole("rounds", self.rounds, 1, 1_000_000)
        require_whole("server_steps", self.server_steps, 1, 10_000)
        require_number("learning_rate", self.learning_rate, 0.0, 1e6)
        if self.rate_per_user is not None:
            require_number("rate_per_user", self.rate_per_user, 0.0, 1e6)
        require_number("alpha", self.alpha, 0.0, 1e6, above=False)
        require_number("reg", self.reg, 0.0, 1e6)
        require_number("scale", self.scale, 0.0, 1e6)
        require_number("init_scale", self.init_scale, 0.0, 1e3)

    @property
    def system(self) -> str:
        """Its name in tables."""
        return "FMF-LDP" if self.variant == "published" else "FMF-LDP (rotated)"

    def searched(self) -> Mapping[str, str]:
        own = {"learning_rate": "log:0.0004:0.04", "scale": "log:0.1:10"}
        if self.variant == "rotated":
            own = {}
        return {"alpha": "log:0.5:50", **own, "embedding_size": "2,4,8,16"}

    def confidence(self) -> closed_form.Confidence:
        return closed_form.Confidence(1.0 + self.alpha, 1.0, self.reg)

    def build(self, epsilons: NDArray[np.float64]) -> FMF:
        """Both halves, for tiers with these ε."""
        return FMF(self, tuple(float(e) for e in epsilons))

    def build_under(self, release: Any, link: Link | None, triples: int) -> FMF:
        settings = self
        if self.rate_per_user is not None:
            rate = self.rate_per_user * release.max_reports
            settings = replace(self, learning_rate=rate, rate_per_user=None)
        return settings.build(release.epsilons)

    def describe(self, plan: Schedule) -> str:
        return (
            "solve for their vectors at home and send randomised one-bit reports through a proxy "
            "that mixes everybody's, as long as their owners' limits have room. The server counts "
            "the bits of a batch and publishes the item table."
        )

    @property
    def as_printed(self) -> bool:
        return self.variant == "published"

    def learning(self) -> str:
        if self.variant == "rotated":  # the rate has no part there
            return f"embedding size {self.embedding_size}"
        return super(FMFConfig, self).learning()

    def advice(self, cohort_size: int) -> str:
        least = 'try algorithm.variant="rotated", which gets more out of the same reports'
        if self.variant == "rotated":
            least = "more users would help"
        return (
            f"the noise of the reports of {cohort_size:,} devices may be larger than what they "
            f"tell: {least}; more reports, a larger ε and more rounds help, too, and cost every "
            "user more"
        )


@dataclass(frozen=True, slots=True)
class FMF(Reporting):
    """Both halves of FMF-LDP."""

    sums: ClassVar[bool] = True
    config: FMFConfig
    epsilons: tuple[float, ...]
    """Cost of one report, by tier."""

    @property
    def row_bytes(self) -> int:
        return 0

    @property
    def refits(self) -> bool:
        return True

    @property
    def tiers(self) -> int:
        return len(self.epsilons)

    @property
    def _rotated(self) -> bool:
        return self.config.variant == "rotated"

    # --- server -----------------------------------------------------------------------------------

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]:
        config = self.config
        items = initial_items(n_items, config.embedding_size, config.init_scale, rng)
        if self._rotated:
            items[:, 0] = config.init_scale  # everyone's sum is positive: this becomes popularity
            items = rotated.orthogonal(items.astype(np.float64)).astype(np.float32)
        return items

    def server_carried(
        self,
        items: NDArray[np.float32],
        memory: NDArray[np.float32],
        n_items: int,
        more: int,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if not self._rotated:
            return super(FMF, self).server_carried(items, memory, n_items, more, rng)
        # Rows of nothing leave the columns orthogonal; the next rounds fill them.
        new = np.zeros((more, items.shape[1]), np.float32)
        return np.concatenate([items, new]), self.server_memory(n_items + more)

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        estimate = self.estimate(items, aggregate)
        config, after = self.config, items.astype(np.float64)
        if self._rotated:
            share = _MEMORY_ROUNDS / (aggregate.round + _MEMORY_ROUNDS)
            return rotated.moved(after, estimate, share).astype(np.float32), memory
        with np.errstate(over="ignore", invalid="ignore"):  # whoever runs the rounds looks at it
            for _ in range(config.server_steps):
                after -= config.learning_rate * (estimate + 2.0 * config.reg * after)
            return after.astype(np.float32), memory

    def estimate(self, items: NDArray[np.float32], aggregate: Aggregate) -> NDArray[np.float64]:
        """The mean of the devices' cut gradients (of what they report, turned back to items, in the
        variant "rotated"), without bias; of several tiers, the mean of their means, weighed by how
        precise each is."""
        if not isinstance(aggregate, BitCounts):
            raise MessageError("FMF-LDP folds randomised reports, not sums of item rows")
        n_items, size = items.shape
        if aggregate.sums.shape != (len(self.epsilons), self.coordinates(n_items)):
            raise MessageError("the counts have another shape than the model and the tiers")
        mean, weights = np.zeros(self.coordinates(n_items)), 0.0
        for tier, epsilon in enumerate(self.epsilons):
            reports = aggregate.reports[tier]
            if reports:
                signal = contrast(epsilon)
                weight = reports * signal**2
                mean += weight * aggregate.sums[tier] / (reports * signal)
                weights += weight
        if not weights:
            raise MessageError("a round without any batch cannot be folded")
        values = (mean / weights).reshape(-1, size)
        if self._rotated:
            turned: NDArray[np.float64] = size * rotated.turned_back(values, n_items)
            return turned
        estimate: NDArray[np.float64] = values / (1.0 / n_items / size) / self.scale
        return estimate

    # --- device -----------------------------------------------------------------------------------

    def coordinates(self, n_items: int) -> int:
        rows = rotated.order(n_items) if self._rotated else n_items
        return rows * self.config.embedding_size

    def items_at(self, coordinates: NDArray[np.int64], n_items: int) -> NDArray[np.int64] | None:
        return None if self._rotated else coordinates // self.config.embedding_size

    @property
    def scale(self) -> float:
        return 1.0 if self._rotated else self.config.scale  # signs need no scale

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]:
        return np.zeros((len(users), self.config.embedding_size), dtype=np.float32)

    def device_able(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Everyone: a device without any item sends fair coins, so that who reports says nothing of
        what anyone has."""
        return np.ones(len(cohort), dtype=bool)

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        cohort.vectors = solved(self.config.confidence(), view, cohort, None, 1)

    def device_values(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        coordinates: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """−2 c_ui (p_ui − x_u·v_i) x_uf, or what `rotated` says of a history."""
        history, size = cohort.history, self.config.embedding_size
        values = np.empty(coordinates.shape)
        if self._rotated:
            for place, row in enumerate(rows.tolist()):
                values[place] = rotated.values(view.items, history.row(row), coordinates[place])
            return values
        confidence = self.config.confidence()
        vectors = solved(confidence, view, cohort, rows, 1)
        cohort.vectors[rows] = vectors
        for place, row in enumerate(rows.tolist()):
            item, factor = np.divmod(coordinates[place], size)
            vector = vectors[place].astype(np.float64)
            dot = np.zeros(len(item))
            for f in range(size):  # one after the other, as the kernel adds up
                dot += vector[f] * view.items[item, f].astype(np.float64)
            mine = np.isin(item, history.row(row))
            weight = np.where(mine, confidence.positive * (1.0 - dot), confidence.other * -dot)
            values[place] = -2.0 * weight * vector[factor]
        return values

    def device_report(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ReportRule,
        threads: int,
    ) -> NDArray[np.uint32]:
        confidence, history = self.config.confidence(), cohort.history
        if self._rotated:
            return rotated.learn_reports(
                view.items, rows, history.indptr, history.items, rule, threads
            )
        vectors = solved(confidence, view, cohort, rows, threads)
        cohort.vectors[rows] = vectors
        return closed_form.learn_reports(
            confidence, view.items, vectors, rows, history.indptr, history.items, rule, threads
        )
