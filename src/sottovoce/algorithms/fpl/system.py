"""FPL, federated pair-wise learning (Anelli, Deldjoo, Di Noia, Ferrara, Narducci 2020).

| here              | paper | meaning                                          |
|-------------------|-------|--------------------------------------------------|
| items             | Q, b  | item rows, the last column being the bias        |
| vectors           | P     | user vectors, which never leave their devices    |
| learning_rate     | α     | step size, on the device and on the server       |
| triples           | T     | draws (u, i, j) per device and round             |
| cohort_size       | |U⁻|  | devices per round                                |
| share_positives   | π     | lives in the consent record, not here            |

Each round: the server publishes `items`; every selected device draws T triples with the item rows
frozen, moves its vector after each, and sums the changes it would make to item rows; what may leave
is the release's business; the server adds α times the sum of all reports.

A sum over more devices is a larger step, so that α has to be fitted to every federation. Ours, not
the paper's, is `server_rate`: the server divides every number of a sum by the root of the sum of
its squares in all rounds so far (Adagrad; as a server's step, Reddi et al. 2021). A step is then as
large for an item of ten people as for one of ten thousand. It is made of what the server sees
anyhow: devices, and what leaves them, stay as they are.

`draws_by` follows each user's positives instead of their mean: a user who has ten positives and
draws a hundred times learns nothing more of them, and tells items that she does not have. The
discussion paper of 2022 defines the "+" configurations so; the paper of 2020 has T = X⁺/N for all.
With "positives" a device draws exactly as often as it has positives. With "interaction",
which is ours, that number is rounded down to a power of two, and T is the most. Over a direct link
the number of rows of a report then says how many positives she has: exactly, or to a factor of two.

Two errors of the papers that matter here: the sum's σ is over the whole score (not per factor), and
pFPL+ makes X⁺/N times as many draws per epoch as pFPL although the text calls them equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    normal_rows,
    require_devices,
)
from sottovoce.algorithms.pairwise import factors
from sottovoce.config import require_whole
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.consent import ShareRule
from sottovoce.core.links import Link
from sottovoce.core.messages import GRID, Aggregate, ModelView, SummedReports, Updates, row_bytes
from sottovoce.errors import ConfigError, MessageError
from sottovoce.rng import Keys, Streams

CONFIGURATIONS: dict[str, tuple[int | Literal["all"], int | Literal["mean"]]] = {
    "sFPL": (1, 1),
    "sFPL+": (1, "mean"),
    "pFPL": ("all", 1),
    "pFPL+": ("all", "mean"),
}
"""Name → (cohort_size, triples)."""
_HOME_DRAWS = 500
_SATURATED = 20.0
"""Between two items of a user: her steps are then 0 or 1 in single precision."""
_FEW_DRAWS = 20.0
"""Draws of a positive below which a training has hardly begun."""
_ALIKE = 0.9
"""Share of scores' variance in common from which lists are nearly everybody's."""
_UNLIKE = 0.3
"""The same, below which what few have in common outweighs what everybody likes."""
_LEAST_SQUARE = np.float32(GRID**-2)
"""Square of the smallest sum that is not 0."""
_CELLS_PER_DRAW = 200
"""Numbers of a table that are cleared, added up and folded in the time of one written draw."""


@ALGORITHMS.register("fpl")
@dataclass(frozen=True, slots=True)
class FPLConfig(AlgorithmSettings):
    embedding_size: int = 10
    """Length of a user's or item's vector; F in the paper."""
    learning_rate: float = 0.05
    """Step size; α in the paper. Of devices alone where there is a `server_rate`."""
    server_rate: float | None = None
    """Step size of the server where it goes by Adagrad; it adds α times the sum where this is not
    given."""
    configuration: str = ""
    """sFPL, sFPL+, pFPL or pFPL+: sets `cohort_size` and `triples` as the paper does."""
    cohort_size: int | Literal["all"] = "all"
    """Devices per round; "all" takes every device that takes part."""
    triples: int | Literal["mean"] = "mean"
    """Draws per device and round; "mean" is the mean number of positives, rounded down."""
    draws_by: Literal["positives", "interaction"] | None = None
    """With "positives" a device draws as often as it has positives, `triples` times at most (with
    "mean" there is no limit). With "interaction" that number is rounded down to a power of two, and
    "mean" is twice the mean."""
    epochs: int = 20
    """An epoch is as many rounds as make |U⁻| · rounds = X⁺ contacts between devices and server."""
    rounds: int = 0
    """Total rounds; overrides `epochs` where it is not 0."""
    reg_user: float | None = None
    """Pull of the user's vector to 0; α/20 where it is not given."""
    reg_positive: float | None = None
    """The same for the positive item's row; α/20."""
    reg_negative: float | None = None
    """The same for the negative item's row; α/200."""
    reg_bias: float = 0.0
    """The same for biases."""
    init_scale: float = 0.1
    """Standard deviation of the initial values."""
    init_bias: Literal["normal", "zero"] = "normal"
    """Initial biases: drawn like the factors, or 0."""

    def __post_init__(self) -> None:
        if self.configuration:
            if self.configuration not in CONFIGURATIONS:
                raise ConfigError(
                    f"algorithm.configuration must be one of {list(CONFIGURATIONS)}, "
                    f"not {self.configuration!r}"
                )
            size, triples = CONFIGURATIONS[self.configuration]
            object.__setattr__(self, "cohort_size", size)
            object.__setattr__(self, "triples", triples)
        require_whole("embedding_size", self.embedding_size, 1, 4096)
        require_whole("epochs", self.epochs, 1, 1_000_000)
        require_whole("rounds", self.rounds, 0, 10**12)
        if self.cohort_size != "all":
            require_whole("cohort_size", self.cohort_size, 1)
        if self.triples != "mean":
            require_whole("triples", self.triples, 1, 1_000_000)
        if self.draws_by not in (None, "positives", "interaction"):
            raise ConfigError(
                f'draws_by can be "positives" or "interaction", not {self.draws_by!r}'
            )
        if not 0.0 < self.learning_rate <= 10.0:
            raise ConfigError(f"learning_rate must lie in (0, 10], not {self.learning_rate:g}")
        if self.server_rate is not None and not 0.0 < self.server_rate <= 10.0:
            raise ConfigError(f"server_rate must lie in (0, 10], not {self.server_rate:g}")
        for name in ("reg_user", "reg_positive", "reg_negative", "reg_bias", "init_scale"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < 1e3:
                raise ConfigError(f"{name} must lie in [0, 1000), not {value:g}")
        if self.init_bias not in ("normal", "zero"):
            raise ConfigError(f'init_bias must be "normal" or "zero", not {self.init_bias!r}')

    @property
    def width(self) -> int:
        """Numbers per item: its vector and its bias."""
        return self.embedding_size + 1

    @property
    def draws(self) -> int:
        return self.triples if isinstance(self.triples, int) else 0

    @property
    def system(self) -> str:
        """Its name in tables."""
        return self.configuration or "FPL"

    @property
    def as_printed(self) -> bool:
        """Adagrad and draws by powers of two are ours."""
        return self.server_rate is None and self.draws_by != "interaction"

    def plan(self, devices: int, positives: int) -> Schedule:
        return schedule(self, devices, positives)

    def build(self, triples: int) -> FPL:
        """Both halves, for so many draws per device and round."""
        return FPL(self, triples)

    def build_under(self, release: Any, link: Link | None, triples: int) -> FPL:
        return self.build(triples)

    def draws_each(self, plan: Schedule) -> float:
        if self.draws_by is None:
            return float(plan.triples)
        return min(float(plan.triples), plan.positives / plan.devices)

    def own_draws(self, held: NDArray[np.int64], triples: int) -> NDArray[np.int64]:
        """How often devices draw that hold so many positives."""
        if self.draws_by is None:
            return np.full(len(held), triples, dtype=np.int64)
        own: NDArray[np.int64] = np.maximum(held, 1)
        if self.draws_by == "interaction":
            own = np.int64(1) << np.floor(np.log2(own)).astype(np.int64)
        return np.minimum(own, triples)

    def most_draws(self, held: NDArray[np.int64], triples: int) -> int:
        return int(self.own_draws(held, triples).max(initial=1))

    def in_terms(self, triples: int) -> FPLConfig:
        return replace(self, configuration="", triples=triples)

    def check_terms(self) -> None:
        if self.draws:
            return
        # A configuration would set it to the mean again.
        instead = f"algorithm.configuration= --set algorithm.cohort_size={self.cohort_size}"
        instead = f"--set {instead} " if self.configuration else ""
        raise ConfigError(
            "algorithm.triples must be a number in a real federation, where nobody knows how many "
            f"items the others have; use {instead}--set algorithm.triples=50, say"
        )

    @property
    def waits_for(self) -> int | Literal["all"]:
        return self.cohort_size

    def describe(self, plan: Schedule) -> str:
        many = f"{plan.triples:,} pairs of items each"
        if self.draws_by is not None:
            many = "as many pairs of items as they have positives"
            if plan.triples < plan.positives:
                many += f", {plan.triples:,} at most"
        return (
            f"draw {many}, learn from them at home, and send what "
            "their owners permit. The server adds up what it gets and publishes the item table. "
            "No message carries a user's vector."
        )

    def traffic(self, plan: Schedule, n_items: int, share_positives: float) -> dict[str, str]:
        drawn = replace(plan, triples=round(self.draws_each(plan)))
        cost = drawn.communication_cost(n_items, share_positives)
        return {
            "CCE": f"{cost:,.0f} item rows exchanged per epoch (mean π {share_positives:.2f})",
            "freshness": f"{plan.rounds_per_epoch:,} model versions per epoch "
            f"(nFRSH {plan.freshness:.4%})",
            "up": f"{row_bytes(self.embedding_size)} bytes a row",
        }

    def searched(self) -> Mapping[str, str]:
        server = {} if self.server_rate is None else {"server_rate": "log:0.03:0.3"}
        return {
            "learning_rate": "log:0.001:0.1",
            **server,
            "reg_user+reg_positive+reg_negative": "log:0.001:0.1",
            "embedding_size": "8,16,32,64",
        }

    def idle(self) -> Mapping[str, str]:
        return {"epochs": f"algorithm.rounds = {self.rounds} overrides it"} if self.rounds else {}

    def advice(self, cohort_size: int) -> str:
        if self.server_rate is not None:
            return (
                f"try another algorithm.server_rate than {self.server_rate:g}, another "
                f"algorithm.reg_user than {self.step().reg_user:g}, or more rounds"
            )
        rate, several = self.learning_rate, cohort_size > 1
        why = f", since a round adds up the steps of {cohort_size:,} devices" if several else ""
        return (
            f"try a smaller algorithm.learning_rate, such as {rate / 5:.2g} instead of "
            f"{rate:g}{why}"
        )

    def suspects(self, plan: Schedule, signs: Signs) -> tuple[str, ...]:
        drawn = plan.rounds * plan.cohort_size * self.draws_each(plan) / plan.positives
        if signs.spread > _SATURATED:
            if self.server_rate is None:
                return (self.advice(plan.cohort_size),)
            return (
                f"scores lie {signs.spread:.2g} apart, where nothing is learnt any more: "
                f"algorithm.server_rate ({self.server_rate:g}) is likely too large",
            )
        if drawn < _FEW_DRAWS:
            return (
                f"each positive was drawn {drawn:.2g} times: more algorithm.rounds (there were "
                f"{plan.rounds:,}) most likely help",
            )
        alike = f"{signs.common:.0%} of what scores differ by is the same for all users"
        reg = self.step().reg_user
        if signs.common > _ALIKE:
            # By how many e-folds vectors were pulled to 0 in all.
            pulled = self.learning_rate * reg * drawn * plan.positives / plan.devices
            if pulled > 1.0:
                other = self.step().reg_positive
                pulls = f"algorithm.reg_user ({reg:g}) or reg_positive ({other:g})"
                return (f"{alike}: {pulls} is likely too large",)
            rate = f"algorithm.learning_rate ({self.learning_rate:g})"
            return (f"{alike}: {rate} is likely too small, or rounds too few",)
        if signs.common < _UNLIKE and self.server_rate is not None:
            return (f"only {alike}: algorithm.reg_user ({reg:g}) is likely too small",)
        return ()

    def step(self) -> factors.PairStep:
        rate = self.learning_rate
        return factors.PairStep(
            learning_rate=rate,
            reg_user=rate / 20 if self.reg_user is None else self.reg_user,
            reg_positive=rate / 20 if self.reg_positive is None else self.reg_positive,
            reg_negative=rate / 200 if self.reg_negative is None else self.reg_negative,
            reg_bias=self.reg_bias,
        )


def published_cost(
    devices: int, n_items: int, positives: int, plus: bool, share_positives: float
) -> float:
    """CCE as the paper computes it: ρ = X⁺ contacts; T = X⁺/N not rounded in the "+" columns."""
    triples = positives / devices if plus else 1.0
    return positives * (n_items + triples * (1.0 + share_positives))


def schedule(config: FPLConfig, devices: int, positives: int) -> Schedule:
    """The schedule for N devices with X⁺ positives between them."""
    require_devices(devices)
    cohort_size = devices if config.cohort_size == "all" else config.cohort_size
    if cohort_size > devices:
        raise ConfigError(f"cohort_size is {cohort_size}, but only {devices} devices take part")
    most = (2 if config.draws_by else 1) * positives // devices
    if config.draws_by == "positives":
        most = positives  # nobody has more
    triples = most if config.triples == "mean" else config.triples
    per_epoch = positives // cohort_size
    if triples < 1 or per_epoch < 1:
        raise ConfigError("there are fewer positives than devices; set triples and rounds yourself")
    rounds = config.rounds or config.epochs * per_epoch
    return Schedule(devices, positives, cohort_size, triples, per_epoch, rounds)


@dataclass(frozen=True, slots=True)
class FPL(CrossDevice):
    """Both halves of FPL, for a fixed number of triples per device and round."""

    sums: ClassVar[bool] = True
    config: FPLConfig
    triples: int

    @property
    def fuses(self) -> bool:
        """Where the server adds sums up as they are: fused rounds do that."""
        return self.config.server_rate is None

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.config.embedding_size)

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]:
        size = self.config.embedding_size
        numbers = np.arange(n_items, dtype=np.int64)
        items = self.config.init_scale * rng.child("init-items").normal(numbers, size + 1)
        if self.config.init_bias == "zero":
            items[:, size] = 0.0
        return items.astype(np.float32)

    def server_memory(self, n_items: int) -> NDArray[np.float32]:
        """Return the sum of squares so far of every number, if there is a `server_rate`."""
        columns = 0 if self.config.server_rate is None else self.config.width
        return np.zeros((n_items, columns), dtype=np.float32)

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]:
        return normal_rows(users, self.config.embedding_size, self.config.init_scale, rng)

    def device_learn(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64], rng: Streams
    ) -> Updates:
        history, model = cohort.history, factors.padded(view.items)
        keys, parts = self._keys(cohort, rows, view.round, rng), []
        for triples, place in self._groups(cohort, rows):
            entry, item, values = factors.learn_rows(
                self.config.step(),
                model,
                cohort.vectors,
                rows[place],
                history.indptr,
                history.items,
                keys[place],
                triples,
            )
            row = np.repeat(place, 2 * triples).astype(np.int32)
            parts.append((row, np.repeat(entry, 2), item, values))
        if len(parts) == 1:
            row, entry, item, values = parts[0]
        else:
            row, entry, item, values = (np.concatenate(one) for one in zip(*parts, strict=True))
            order = np.argsort(row, kind="stable")
            row, entry, item, values = row[order], entry[order], item[order], values[order]
        positive = np.tile([False, True], len(row) // 2)
        return Updates(row=row, entry=entry, item=item, positive=positive, values=values)

    def prefers_messages(self, view: ModelView, devices: int) -> bool:
        return devices * self.triples * _CELLS_PER_DRAW < view.items.size

    def device_learn_summed(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
        threads: int,
    ) -> tuple[NDArray[np.int64], RowCounts]:
        history, model = cohort.history, factors.padded(view.items)
        sums, positives, negatives = factors.learn_summed(
            self.config.step(),
            model,
            cohort.vectors,
            rows,
            history.indptr,
            history.items,
            self._keys(cohort, rows, view.round, rng),
            self._draws(cohort, rows),
            rule,
            threads,
            self._sieve(cohort),
        )
        return sums[:, : view.items.shape[1]], RowCounts(positives, negatives)

    def device_learn_rounds(
        self,
        items: NDArray[np.float32],
        first_round: int,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], RowCounts]:
        model, history = factors.padded(items), cohort.history
        rounds = np.arange(first_round, first_round + len(rows), dtype=np.int64)
        positives, negatives = factors.learn_rounds(
            self.config.step(),
            model,
            cohort.vectors,
            rows,
            history.indptr,
            history.items,
            rng.child("learn").paired_keys(rounds, cohort.users[rows]),
            self._draws(cohort, rows),
            rule,
            self._sieve(cohort),
        )
        return model[:, : items.shape[1]].copy(), RowCounts(positives, negatives)

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if not isinstance(aggregate, SummedReports):
            raise MessageError("FPL folds sums of item rows, not randomised reports")
        folded, rate = items.copy(), self.config.server_rate
        if rate is None:
            factors.fold_rows(self.config.step(), folded, aggregate.item, aggregate.sums)
            return folded, memory
        rows, squares = aggregate.item, memory.copy()
        sums = aggregate.sums / GRID
        squares[rows] = squares[rows] + sums**2
        # Where nothing was ever added there is nothing to divide.
        root = np.sqrt(np.maximum(squares[rows], _LEAST_SQUARE), dtype=np.float64)
        folded[rows] = folded[rows] + rate * sums / root
        return folded, squares

    def accelerated(
        self,
        cohort: Cohort,
        n_items: int,
        rule: ShareRule,
        rng: Streams,
        scales: NDArray[np.float64],
        device: str,
    ) -> Accelerator:
        from sottovoce.algorithms.fpl.accelerated import FPLOnGPU

        own = self.config.own_draws(cohort.history.counts, self.triples)
        return FPLOnGPU.load(
            self.config.step(), self.config.width, own, cohort, n_items, rule, device
        )

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        """By the same steps as in a round, on at least so many draws."""
        everyone = np.arange(len(cohort), dtype=np.int64)
        for triples, place in self._groups(cohort, everyone):
            for turn in range(-(-_HOME_DRAWS // triples)):
                self.device_learn(view, cohort, place, rng.child("home", turn))

    def _draws(self, cohort: Cohort, rows: NDArray[np.int64]) -> factors.Draws:
        """How often devices draw: all of them, or each."""
        if self.config.draws_by is None:
            return self.triples
        return self.config.own_draws(cohort.history.counts[rows], self.triples)

    def _groups(
        self, cohort: Cohort, rows: NDArray[np.int64]
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """How often devices draw, and which of them so often, by their places in `rows`."""
        if self.config.draws_by is None:
            return [(self.triples, np.arange(len(rows)))]
        own = self.config.own_draws(cohort.history.counts[rows], self.triples)
        return [(int(many), np.flatnonzero(own == many)) for many in np.unique(own)]

    def _sieve(self, cohort: Cohort) -> NDArray[np.uint8] | None:
        """Return the sieve of the cohort's histories if devices draw once; it is made once."""
        if self.triples == 1 and "sieve" not in cohort.scratch:
            history = cohort.history
            cohort.scratch["sieve"] = factors.make_sieve(history.indptr, history.items)
        return cohort.scratch.get("sieve")

    def _keys(self, cohort: Cohort, rows: NDArray[np.int64], round: int, rng: Streams) -> Keys:
        return rng.child("learn", round).keys(cohort.users[rows])
