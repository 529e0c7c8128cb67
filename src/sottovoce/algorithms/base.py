"""What an algorithm is: both halves, the device's and the server's, and no loop over rounds.

Device code runs over a cohort of n ≥ 1 devices. Simulation passes all of them, a phone passes one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.choice import ASKED, DrawnField
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.consent import Consent, ShareRule
from sottovoce.core.contributions import Contributions, Profile
from sottovoce.core.hiding import Hidden
from sottovoce.core.knowledge import Prior, WithKnowledge
from sottovoce.core.links import Link
from sottovoce.core.messages import GRID, Aggregate, ModelView, SummedReports, Updates
from sottovoce.core.one_bit import ReportRule
from sottovoce.core.quality import Quality
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.core.running import Draws
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError, MessageError
from sottovoce.registry import Component, Registry
from sottovoce.rng import Streams

_INIT_SCALE = 0.1
"""Standard deviation of initial values."""
_DRAWN_AT_ONCE = 1024
_HOME_TURNS = 20
"""Rounds' worth of learning by which a vector is fitted at home."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How an algorithm plays out on N devices that hold X⁺ positives between them."""

    devices: int
    positives: int
    cohort_size: int
    triples: int
    """Draws per device and round; 0 where an algorithm draws no pairs."""
    rounds_per_epoch: int
    rounds: int

    def communication_cost(self, n_items: int, share_positives: float) -> float:
        """CCE of FPL in item rows exchanged per epoch, with whole T and rounds as they are run."""
        contacts = self.cohort_size * self.rounds_per_epoch
        return contacts * (n_items + self.triples * (1.0 + share_positives))

    @property
    def freshness(self) -> float:
        """Model versions per epoch, relative to one per positive (nFRSH)."""
        return self.rounds_per_epoch / self.positives


def require_devices(devices: int) -> None:
    """Raises where nobody takes part."""
    if devices < 1:
        raise ConfigError(
            "no device can take part: nobody both consents and has some, but not all, of the items"
        )


@dataclass(frozen=True, slots=True)
class Signs:
    """What a model's scores look like, by which it is told why a run ends near popularity. Of each
    user the scores are taken less their mean over all items."""

    spread: float
    """Their standard deviation."""
    common: float
    """The share of their variance that all users have in common: with 1 everybody has one list."""


class AlgorithmSettings(Component, ABC):
    """The settings of a system, as a frozen dataclass, by which it answers for itself. It has an
    `embedding_size`; and, unless it plans otherwise, `rounds`, and perhaps a `cohort_size`."""

    __slots__ = ()
    family: ClassVar[Literal["devices", "owners"]] = "devices"
    """Whether devices learn and a server adds up, or data owners read what users send them."""
    releases: ClassVar[tuple[str, ...]] = ("share-fraction",)
    """By name, the releases it goes with; the first by default."""
    links: ClassVar[tuple[str, ...]] = ("direct", "secure-sum")
    """The same for the ways to the server."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of the consent records that its devices need to learn; it sees no others."""
    gradual: ClassVar[bool] = True
    """Whether a model on the way is a worse one of the same kind, by which a search may give up."""
    embedding_size: int
    learning_rate: float
    rounds: int

    @abstractmethod
    def build_under(self, release: Any, link: Link | None, triples: int) -> FactorModel:
        """Both halves, under this release and link, for so many draws where it draws pairs."""

    def asked_for(self) -> tuple[DrawnField, ...]:
        """The fields of a choice that its devices learn by, as a page draws them."""
        return tuple(ASKED[name] for name in self.reads if name in ASKED)

    # --- its shape --------------------------------------------------------------------------------

    @property
    def system(self) -> str:
        """Its name in tables."""
        return self.name

    @property
    def width(self) -> int:
        """Numbers per row of the model."""
        return self.embedding_size

    def model_rows(self, n_items: int) -> int:
        """Rows of the model."""
        return n_items

    @property
    def asks(self) -> int | None:
        """Devices asked in a round, where that is a number; None where it is everybody."""
        size = getattr(self, "cohort_size", None)
        return size if isinstance(size, int) else None

    @property
    def draws(self) -> int:
        """Draws of a device and round; 0 where it draws no pairs, or does not say how many."""
        return 0

    def draws_each(self, plan: Schedule) -> float:
        """Draws of a device and round, on average, about."""
        return float(plan.triples)

    def most_draws(self, held: NDArray[np.int64], triples: int) -> int:
        """The most draws of any device in a round, if devices hold so many positives."""
        return triples

    @property
    def counts_senders(self) -> bool:
        """Whether the last number of a row in a report says 1, for its sender."""
        return False

    @property
    def needs_whole_cohort(self) -> bool:
        """Whether what a device learns depends on other devices' vectors."""
        return False

    @property
    def attributes(self) -> tuple[Any, ...]:
        """What devices must know of their owners."""
        return ()

    def plan(self, devices: int, positives: int) -> Schedule:
        """How it plays out on so many devices."""
        require_devices(devices)
        size = min(self.asks or devices, devices)
        return Schedule(devices, positives, size, 0, -(-devices // size), self.rounds)

    # --- what it takes ----------------------------------------------------------------------------

    # --- where it is put together -----------------------------------------------------------------

    def in_terms(self, triples: int) -> Self:
        """As the terms of a federation have it, where the number of draws was worked out."""
        return self

    def check_terms(self) -> None:
        """Raises where a real federation cannot run it so."""

    def on_data(
        self,
        attributes: Mapping[str, Labels],
        consent: Consent,
        n_items: int,
        release: Any,
        places: bool = False,
        ranks: Ranks = ALONE,
    ) -> tuple[Self, NDArray[np.int64] | None]:
        """The settings on data with these users and so many items, under this release, and what
        each device knows of its owner, where that matters. `places`: devices use at home in which
        place each item is. Users may be one rank's; what holds for all comes from all `ranks`."""
        return self, None

    def by_rule(self, users: int, positives: int, n_items: int) -> Self:
        """With numbers in the place of rules, on data with so many users, positives and items. In
        a real federation whoever sets it up knows these about, or names the numbers."""
        return self

    @property
    def waits_for(self) -> int | Literal["all"]:
        """Reports that a round of a real federation waits for: a number, or those of all who are
        asked."""
        return "all"

    def most_numbers(self, n_items: int) -> int:
        """Return the largest number of values in a device's message in any round, if a message has
        a number for each value of a sum."""
        return self.model_rows(n_items) * self.width

    @property
    def vector_space(self) -> tuple[object, ...]:
        """What the numbers of a vector depend on, beside the shape of the model."""
        return (self.name,)

    # --- how it is shown --------------------------------------------------------------------------

    published: ClassVar[str] = (
        "Everybody can read the models that are published. Who knows many of your items can tell "
        "from them, better than by chance, which others were learnt from."
    )
    """What everybody can tell from the published models, in sentences."""

    def describe(self, plan: Schedule) -> str:
        """What the devices of a round do, for a run's report: a sentence whose subject they are,
        and others."""
        return (
            "learn at home and send what their owners permit. The server makes a new model of it "
            "and publishes that."
        )

    def learning(self) -> str:
        """The settings by which it learns, for a run's report."""
        rate = getattr(self, "learning_rate", None)
        stepped = "" if rate is None else f", learning rate {rate:g}"
        return f"embedding size {self.embedding_size}{stepped}"

    def traffic(self, plan: Schedule, n_items: int, share_positives: float) -> dict[str, str]:
        """What a run's report says of communication beside bytes: words by label. Those for "up"
        follow the sum of what devices send."""
        return {}

    def searched(self) -> Mapping[str, str]:
        """Ranges of its settings that a search looks through where nobody names others, in the
        words of `sottovoce tune`."""
        return {}

    def idle(self) -> Mapping[str, str]:
        """Settings that change nothing beside the others, and why, in half-sentences."""
        return {}

    def advice(self, cohort_size: int) -> str:
        """What to try where it ends below popularity."""
        return "try more rounds, or other settings of the algorithm"

    def suspects(self, plan: Schedule, signs: Signs) -> tuple[str, ...]:
        """Which settings most likely caused that a run ends near popularity, in half-sentences, by
        what was measured; nothing where that tells nothing."""
        return ()

    def how_revealing(self, n_items: int) -> str:
        """Why a single report that can be read may give a history away."""
        if self.draws:
            return (
                f"with {self.draws:,} draws among {n_items:,} items, as the terms have it, a "
                "single report may tell the history by leaving it out"
            )
        return (
            f"with an update for each of {n_items:,} items, as the terms have it, a single report "
            "tells the history"
        )

    @property
    def remedies(self) -> tuple[str, ...]:
        """What it has of "aggregated", which a report card recommends to others."""
        return ()

    @property
    def as_printed(self) -> bool:
        """Whether it is as in a paper, so that it is there to be compared and attacked."""
        return False

    def caveats(self, link: Link | None = None) -> tuple[str, ...]:
        """What it does not protect where there are data owners and no release, a paragraph
        each."""
        return ()


ALGORITHMS: Registry[type[AlgorithmSettings]] = Registry(
    "algorithm", "sottovoce.algorithms", AlgorithmSettings
)


def normal_rows(
    users: NDArray[np.int64], size: int, scale: float, rng: Streams
) -> NDArray[np.float32]:
    """Vectors at first, drawn some at a time: draws take many times the room of what they give."""
    vectors, stream = np.empty((len(users), size), np.float32), rng.child("init-users")
    for start in range(0, len(users), _DRAWN_AT_ONCE):
        part = slice(start, start + _DRAWN_AT_ONCE)
        vectors[part] = scale * stream.normal(users[part], size)
    return vectors


class FactorModel(ABC):
    """What all algorithms of devices and a server share: a model of item rows between them, which
    the server holds and publishes, and a vector on each device, which stays there. An algorithm
    says what a device could tell; what of it leaves is the door's business.

    The defaults are those of plain factors: small random rows and vectors, the sum of updates added
    to the rows, scores by the product."""

    __slots__ = ()
    sends: ClassVar[Literal["rows", "bits", "contributions"]] = "rows"
    """What leaves a device: updates of rows (`CrossDevice`), randomised reports (`Reporting`) or
    contributions to sums that are opened once (`Contributing`)."""
    sums: ClassVar[bool] = False
    """Whether simulations have a way of their own for whole cohorts (`device_learn_summed`, or
    `device_report`), which gives what the definition gives."""
    sums_alike: ClassVar[bool] = True
    """Whether that gives the same bits in any company. If not, ranks go by the definition."""
    versioned: ClassVar[bool] = False
    """Whether a server publishes models that are offered (`offers`), one version after the other,
    and devices recommend by the published one. Otherwise by the newest."""
    config: Any
    """Its `AlgorithmSettings`."""

    @property
    def fuses(self) -> bool:
        """Whether many rounds of one device each can be run at once (`device_learn_rounds`)."""
        return False

    @property
    def row_bytes(self) -> int:
        """Bytes of one item's update, as the papers count them: its number, four for each value."""
        return 4 + 4 * int(self.config.width)

    @property
    def refits(self) -> bool:
        """Whether a device's vector follows from its history and the published model alone, so that
        everyone's is fitted anew to the newest one."""
        return False

    @property
    def needs_whole_cohort(self) -> bool:
        """Whether what a device learns depends on other devices' vectors, so that a round must be
        learnt by all of its devices at once."""
        return bool(self.config.needs_whole_cohort)

    def report_shape(self, view: ModelView) -> tuple[int, int]:
        """Rows, and numbers of each, of what a device sends in a round."""
        rows, width = view.items.shape
        return rows, width

    def after_given_up(self, round: int) -> int:
        """The round that follows on one whose sum could not be read."""
        return round + 1

    def begins_at(self, round: int) -> int:
        """The first round, from this one on, with which a server can begin that knows nothing of
        those before."""
        return round

    def begins_anew(self, round: int) -> int:
        """The first round, from this one on, that has nothing to do with those before, however
        these were counted: where a server goes on under other settings."""
        return self.begins_at(round)

    # --- server -----------------------------------------------------------------------------------

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]:
        """The model at first."""
        numbers = np.arange(self.config.model_rows(n_items), dtype=np.int64)
        drawn = rng.child("init-items").normal(numbers, self.config.width)
        return (_INIT_SCALE * drawn).astype(np.float32)

    def server_memory(self, n_items: int) -> NDArray[np.float32]:
        """What the server keeps to itself beside the model, a row per item, as it is at first."""
        return np.zeros((n_items, 0), dtype=np.float32)

    def server_carried(
        self,
        items: NDArray[np.float32],
        memory: NDArray[np.float32],
        n_items: int,
        more: int,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Model and memory of a server that goes on under these settings from a model of `n_items`
        items that others have made, with `more` items behind them: those are as a fresh start has
        them, and so is a memory that does not fit."""
        fresh = self.server_init(n_items + more, rng)
        start = self.server_memory(len(fresh))
        if memory.shape != (len(items), start.shape[1]):
            memory = start[: len(items)]
        place, new = [n_items] * more, slice(n_items, n_items + more)
        grown = np.insert(items, place, fresh[new], axis=0)
        return grown, np.insert(memory, place, start[new], axis=0)

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Model and memory after a round; what was given stays as it is."""
        if not isinstance(aggregate, SummedReports):
            raise MessageError(f"{self.config.system} folds sums of rows, not randomised reports")
        after = items.copy()
        after[aggregate.item] += (aggregate.sums / GRID).astype(np.float32)
        return after, memory

    def offers(self, round: int) -> bool:
        """Whether the model after so many rounds is whole, so that devices may recommend by it."""
        return True

    def quality(self, memory: NDArray[np.float32]) -> Quality | None:
        """How good the model is that is offered, by what its devices have said; None where they
        were not asked."""
        return None

    # --- device -----------------------------------------------------------------------------------

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]:
        """Every device's vector at first."""
        return normal_rows(users, self.config.embedding_size, _INIT_SCALE, rng)

    def device_able(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Devices whose history lets them learn."""
        return cohort.able()

    def device_check(self, consent: Consent) -> None:  # noqa: B027
        """Raises where somebody who takes part has chosen what it cannot give."""

    def device_scorer(self, vectors: NDArray[np.float32], items: NDArray[np.float32]) -> Scorer:
        """What devices with these vectors recommend by a published model."""
        return FactorScorer.of(vectors, items)

    def popularity(self, items: NDArray[np.float32]) -> tuple[NDArray[np.float64], float] | None:
        """How popular each item is by the published model, and the standard deviation of the noise
        on that; None where it does not say."""
        return None

    def device_scorer_knowing(
        self, vectors: NDArray[np.float32], items: NDArray[np.float32], prior: Prior
    ) -> Scorer:
        """`device_scorer` beside what is publicly known of the items."""
        return WithKnowledge(self.device_scorer(vectors, items), prior)

    @abstractmethod
    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        """Fit every vector of the cohort to the published model, at home."""

    def device_hide(
        self, view: ModelView, cohort: Cohort, hides: NDArray[np.bool_], names: Sequence[str]
    ) -> list[Hidden]:
        """Move the vectors of users who hide attributes from now on (`hides`, [users, names]), so
        that the published model tells less of what they hide, and say how far each has moved.
        Systems without filters have nothing to move by."""
        return []

    def representations(
        self, vectors: NDArray[np.float32], items: NDArray[np.float32]
    ) -> NDArray[np.float32] | None:
        """What filters, and attackers, read of every user, where that is not the vector."""
        return None

    def accelerated(
        self,
        cohort: Cohort,
        n_items: int,
        rule: ShareRule,
        rng: Streams,
        scales: NDArray[np.float64],
        device: str,
    ) -> Accelerator:
        """Whole rounds of this cohort on `device`; `rule` is that of all devices, `scales` are of
        the noise on each number that they send."""
        raise ConfigError(f"{self.config.system} does not run on a GPU; leave it on --device cpu")


class Accelerator(Protocol):
    """Computes whole rounds of one cohort elsewhere (a GPU) and keeps the devices' state there."""

    def learn_summed(
        self, view: ModelView, rows: NDArray[np.int64], learn_key: int, share_key: int
    ) -> tuple[NDArray[np.int64], RowCounts]: ...

    def vectors(self) -> NDArray[np.float32]: ...


class CrossDevice(FactorModel):
    """Devices send updates of item rows.

    `device_learn` is the definition, and all that is needed. What else there is gives the same
    results faster, in simulations alone, and contracts hold it to the definition."""

    __slots__ = ()

    @abstractmethod
    def device_learn(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64], rng: Streams
    ) -> Updates:
        """Learn from one round; the cohort's vectors move, the updates stay here."""

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        """By the same steps as in a round."""
        everyone = np.arange(len(cohort), dtype=np.int64)
        for turn in range(_HOME_TURNS):
            self.device_learn(view, cohort, everyone, rng.child("home", turn))

    def prefers_messages(self, view: ModelView, devices: int) -> bool:
        """Whether so few devices take part that writing their messages out costs less than tables
        with a row for every item."""
        return False

    def device_learn_summed(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
        threads: int,
    ) -> tuple[NDArray[np.int64], RowCounts]:
        """The sum of what these devices send, without writing it out (`sums`)."""
        raise ConfigError(f"{self.config.system} writes its messages out")

    def device_learn_rounds(
        self,
        items: NDArray[np.float32],
        first_round: int,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], RowCounts]:
        """The model after as many rounds as there are rows, of one device each (`fuses`)."""
        raise ConfigError(f"{self.config.system} runs its rounds one by one")


class Reporting(FactorModel):
    """Devices send randomised reports about single coordinates of what they would change."""

    __slots__ = ()
    sends: ClassVar[Literal["rows", "bits", "contributions"]] = "bits"

    @property
    @abstractmethod
    def tiers(self) -> int:
        """How many batches there can be in a round."""

    @abstractmethod
    def coordinates(self, n_items: int) -> int:
        """How many coordinates a report can be about."""

    @property
    def scale(self) -> float:
        """The factor by which values are multiplied before they are cut to [-1, 1]."""
        return 1.0

    def items_at(self, coordinates: NDArray[np.int64], n_items: int) -> NDArray[np.int64] | None:
        """Which item each coordinate is about; None where each is about all items at once."""
        return coordinates // int(self.config.embedding_size)

    @abstractmethod
    def device_values(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        coordinates: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """What each device would say of its coordinates, [rows, k], before it is scaled, cut and
        randomised; the cohort's vectors move. This is the definition."""

    def device_report(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ReportRule,
        threads: int,
    ) -> NDArray[np.uint32]:
        """Each device's randomised reports at once, for simulations (`sums`)."""
        raise ConfigError(f"{self.config.system} makes its reports one by one")


class Contributing(FactorModel):
    """Devices add a vector of bounded norm to a sum, and a noisy sum is all that anybody sees of
    them (`core.contributions`). A *batch* is a round of each *stage*, a *period* has so many
    batches, and a device is in each stage of a period once."""

    __slots__ = ()
    sends: ClassVar[Literal["rows", "bits", "contributions"]] = "contributions"

    @property
    @abstractmethod
    def shares(self) -> tuple[float, ...]:
        """How a period's ε is divided among its stages: their shares of 1/noise², 1 in all."""

    @property
    def batches(self) -> int:
        """Batches of a period."""
        return 1

    def stage(self, round: int) -> int:
        """Which one this round is of."""
        return round % len(self.shares)

    def batch(self, round: int) -> int:
        """Which one of its period this round is of."""
        return round // len(self.shares) % self.batches

    def period(self, round: int) -> int:
        """Which one this round is of."""
        return round // (len(self.shares) * self.batches)

    def held(self, round: int) -> bool:
        """Whether there is this round at all; nobody is asked in one that is left out."""
        return True

    def after_given_up(self, round: int) -> int:
        """The first round of the next batch: stages build on each other."""
        return round - self.stage(round) + len(self.shares)

    def begins_at(self, round: int) -> int:
        return self.after_given_up(round) if self.stage(round) else round

    def begins_anew(self, round: int) -> int:
        """The first round of the next period: under other settings a period has other stages, and
        nobody is in one of them twice."""
        whole = len(self.shares) * self.batches
        return -(-round // whole) * whole

    @abstractmethod
    def noise_spans(self, round: int, numbers: int) -> tuple[tuple[int, float], ...]:
        """How many of a sum's numbers get noise of which standard deviation, one span after the
        other, for a contribution of norm 1 and noise of 1 in a period."""

    def noise_draws(self, view: ModelView, memory: NDArray[np.float32]) -> Draws | None:
        """From which draws the noise of this round is put together, where batches share theirs;
        None where each has its own. It follows from what is published and how the server got
        there."""
        return None

    @abstractmethod
    def contribution(self, round: int, numbers: int) -> tuple[int, bool]:
        """Return the shape of a contribution to a round whose sum has so many numbers: how many
        places a device's vector has, and whether all products of its pairs are summed."""

    @abstractmethod
    def device_profile(self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64]) -> Profile:
        """What each device could tell: a vector of norm 1 at most."""

    def items_at(self, view: ModelView, places: NDArray[np.int32]) -> NDArray[np.int64]:
        """Which item each place of a device's vector is about; -1 where it is about none."""
        n_items = len(view.items)
        return np.where(places < n_items, places, -1).astype(np.int64)

    def sum_contributions(
        self, made: Contributions, threads: int, device: str = "cpu"
    ) -> NDArray[np.int64]:
        """The sum of what these devices send, without writing it out, for simulations (`sums`)."""
        raise ConfigError(f"{self.config.system} writes its contributions out")
