"""gram: two noisy sums over users, and a linear item model from them.

| here    | meaning                                                                    |
|---------|----------------------------------------------------------------------------|
| q       | popularity: the first sum, of everybody's weighted items                   |
| head    | the items of which pairs are summed, the most popular by q                  |
| G       | the second sum, of x xᵀ over users, x a unit vector over her head items     |
| Y, s    | factors and scales of head items, from G                                   |

Round 0: a device tells its items, weighted, as one vector of norm 1, and that it is there (the
count). Round 1: the products of all pairs of its head items. What is published after each is a
table with a row for every item: q, the scale (above 0 in the head), the factors. Everything else,
the model too, follows from the two noisy sums alone (`model`). At home an item scores
q_j + (Σ v_i Y_i) · Y_j s_j, where v is the unit vector of what her items weigh there. That is
nobody's business: new ones count at once, and those that are never sent count, too.

With several batches both rounds are held for each, among those who have joined since. q and G are
then the sums over all batches of the period so far (`sums`); the head is chosen anew in each, and
until its pairs are in, the factors of the batch before stand: items that are about to leave the
head have a scale below 0, of which devices take the size. A period begins with nothing.

With a `quality_share` there is a third round, in which devices say how good the model is on their
latest items, which they keep out of both sums for that (`quality`).

`recency=False`, or a history without times, weighs all items alike ("plain").

What leaves, and what that costs: release "own-epsilon". McSherry and Mironov (2009) have released a
noisy item covariance; the linear model is that of EASE (Steck 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, Contributing, Schedule
from sottovoce.algorithms.gram import model, quality
from sottovoce.algorithms.gram.kernels import add_factors, sum_pairs
from sottovoce.algorithms.gram.model import RunningSums
from sottovoce.config import require_number, require_whole
from sottovoce.core.arrays import read_only
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Consent
from sottovoce.core.contributions import STEPS, Contributions, Profile, numbers_of, places_of
from sottovoce.core.interactions import Interactions, positions, recency
from sottovoce.core.knowledge import Prior
from sottovoce.core.links import Link
from sottovoce.core.messages import Aggregate, ModelView, SummedReports
from sottovoce.core.quality import Quality
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.core.recommender import FactorScorer
from sottovoce.core.running import Draws, deviation, draw_size
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError, DataError, MessageError
from sottovoce.rng import Streams

FIRST_SHARE = 0.1
"""What the first round has where nobody says how many users there are."""
COUNTED = 0.1
"""The square of what the count has of round 0's norm."""
_MOST_PAIRED = 90_000
"""Items of which all pairs have a place among the draws of noise."""
Q, SCALE, FACTORS = 0, 1, 2
"""Columns of the model: popularity, scale, and the first factor."""


@ALGORITHMS.register("gram")
@dataclass(frozen=True, slots=True)
class GramConfig(AlgorithmSettings):
    releases: ClassVar[tuple[str, ...]] = ("own-epsilon",)
    links: ClassVar[tuple[str, ...]] = ("secure-sum", "checked-sum")
    published: ClassVar[str] = "Everybody can read the models that are published."
    gradual: ClassVar[bool] = False  # a stage is no model yet
    embedding_size: int = 128
    """Most factors that are published."""
    recency: bool = True
    """Whether later items weigh more, in what is sent and at home."""
    memory: float = 8.0
    """At home an item's weight falls by e with so many later ones."""
    popularity_share: float = 0.0
    """What the first round has of 1/noise²; the second has the rest, and there is none with 1. 0:
    by how many users and items there are, which is public (`model.first_share`)."""
    least_head: int = 100
    """Fewest items in the head."""
    most_head: int = 1000
    """Most items in the head: a contribution has half as many numbers as its square."""
    batches: int = 1
    """Batches of a period: groups in which users come one after the other, each user counted once.
    """
    pairs_from: int = 0
    """The first batch in which pairs are summed, of all who have joined by then: before, too little
    is known of which items matter."""
    quality_share: float = 0.0
    """What a last round has of 1/noise², in which devices say how good the model is on items that
    they held out; the others share the rest. 0: there is none, and nothing is held out."""
    held_out: float = 0.1
    """Which part of her items, the latest, a user holds out then; at least one."""
    noise: Literal["independent", "factorised"] = "independent"
    """With several batches: whether each has noise of its own, or later ones take back most of what
    earlier ones added (`core.running`), which pays at the end and costs at the beginning."""
    model_bits: int = 8
    """Bits of each number that is published (`model.rounded`); with 32 numbers are published as
    they are."""
    support: float = 0.0
    """What pairs may say of an item at most, as a multiple of the root of its popularity for each
    user, so that few devices cannot push it by few pairs. 0: by the link, `model.SUPPORT` over
    checked sums, and no limit elsewhere, where nothing keeps a device from owning the sum."""

    def __post_init__(self) -> None:
        require_whole("embedding_size", self.embedding_size, 1, 4096)
        require_number("memory", self.memory, 0.0, 1e6, above=False)
        require_number("popularity_share", self.popularity_share, 0.0, 1.0, above=False)
        require_whole("least_head", self.least_head, 2, 20_000)
        require_whole("most_head", self.most_head, self.least_head, 20_000)
        require_whole("batches", self.batches, 1, 520)
        require_whole("pairs_from", self.pairs_from, 0, self.batches - 1)
        require_number("quality_share", self.quality_share, 0.0, 0.9, above=False)
        require_number("held_out", self.held_out, 0.0, 0.5, above=False)
        if self.noise not in ("independent", "factorised"):
            raise ConfigError(f"noise is independent or factorised, not {self.noise!r}")
        require_whole("model_bits", self.model_bits, 2, 32)
        require_number("support", self.support, 0.0, 1e6, above=False)

    @property
    def width(self) -> int:
        return FACTORS + self.embedding_size

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the shares of the stages, in 1/noise²."""
        first, last = self.popularity_share or FIRST_SHARE, self.quality_share
        learnt = (first, 1.0 - first) if first < 1.0 else (1.0,)
        return (*((1.0 - last) * share for share in learnt), last) if last else learnt

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """Return the rounds of a period."""
        return len(self.shares) * self.batches

    @property
    def factorised(self) -> bool:
        return self.noise == "factorised" and self.batches > 1

    def held(self, stage: int) -> int:
        """In how many batches of a period there is this stage."""
        return self.batches - self.pairs_from * (stage > 0)

    def deviation(self, done: int, stage: int = 0) -> float:
        """Return the deviation of the noise on the sum of so many batches, in units of a single
        release."""
        return deviation(done, self.held(stage), self.factorised)

    def on_data(
        self,
        attributes: Mapping[str, Labels],
        consent: Consent,
        n_items: int,
        release: Any,
        places: bool = False,
        ranks: Ranks = ALONE,
    ) -> tuple[Self, None]:
        if self.popularity_share:
            return self, None
        (users,) = ranks.total(int(np.count_nonzero(consent.takes_part)))
        if self.factorised and n_items > _MOST_PAIRED:
            raise ConfigError(f"factorised noise takes at most {_MOST_PAIRED:,} items")
        sigma = release.sigma * self.deviation(self.batches)  # as it will be in the end
        share = model.first_share(users, n_items, sigma, places)
        return replace(self, popularity_share=share), None

    def searched(self) -> Mapping[str, str]:
        weight = {"memory": "log:2:64"} if self.recency else {}
        return {"embedding_size": "32,64,128,256", "most_head": "500,1000,2000", **weight}

    def build_under(self, release: Any, link: Link | None, triples: int) -> Gram:
        checking = None if link is None else link.checking
        if checking is None:
            return Gram(self, release.sigma, release.parts, support=self.support)
        return Gram(
            self,
            checking.more_noise * release.sigma,
            counted=checking.largest**2,
            support=self.support or model.SUPPORT,
        )

    def check_terms(self) -> None:
        if self.factorised or self.pairs_from:
            raise ConfigError(
                'noise = "factorised" and pairs_from run in simulation alone by now; leave them out'
            )

    def most_numbers(self, n_items: int) -> int:
        return max(n_items + 1, numbers_of(min(self.most_head, n_items), True))

    def describe(self, plan: Schedule) -> str:
        return (
            "add a vector of their items to one sum and, for the most popular items, the products "
            "of its pairs to another. Both are masked, so that the server opens noisy sums alone, "
            "and makes a linear item model of them."
        ) + (
            f" Of their latest items ({self.held_out:.0%}) they tell nothing in these, and say in "
            "a last sum whether the model would have recommended one of them."
            if self.quality_share
            else ""
        )

    def learning(self) -> str:
        time = f", memory of {self.memory:g} items at home" if self.recency else ", times unused"
        joined = f", {self.batches} batches with {self.noise} noise" if self.batches > 1 else ""
        return (
            f"at most {self.embedding_size} factors and {self.most_head:,} items with "
            f"pairs{time}{joined}"
        )

    def advice(self, cohort_size: int) -> str:
        return (
            f"{cohort_size:,} users may be too few for the ε that they permit: try more users, a "
            "larger release.epsilon with their consent, or public knowledge of the items"
        )

    def how_revealing(self, n_items: int) -> str:
        return "a contribution is masked, and what is published has noise"

    @property
    def remedies(self) -> tuple[str, ...]:
        return ("aggregated", "noise")


@dataclass(frozen=True, slots=True)
class Gram(Contributing):
    """Both halves of gram."""

    sums: ClassVar[bool] = True
    versioned: ClassVar[bool] = True
    config: GramConfig
    sigma: float
    """Deviation of the noise that a period's sums have, for a contribution of norm 1."""
    parts: int = 0
    """Parts of which the noise is made up, if devices add it."""
    counted: float = COUNTED
    """The square of what the count has of round 0's norm; less where entries are capped."""
    support: float = 0.0
    """What pairs may say of an item (`GramConfig.support`); 0: there is no limit."""

    @property
    def shares(self) -> tuple[float, ...]:
        return self.config.shares

    @property
    def batches(self) -> int:
        return self.config.batches

    def held(self, round: int) -> bool:
        return self.stage(round) == 0 or self.batch(round) >= self.config.pairs_from

    @property
    def refits(self) -> bool:
        return True

    @property
    def _rules(self) -> model.Rules:
        return model.TIMED if self.config.recency else model.PLAIN

    @property
    def _has_pairs(self) -> bool:
        return self.config.popularity_share != 1.0

    def _asks(self, round: int) -> bool:
        """Whether this round is about how good the model is."""
        return bool(self.config.quality_share) and self.stage(round) == len(self.shares) - 1

    # --- what travels -----------------------------------------------------------------------------

    def report_shape(self, view: ModelView) -> tuple[int, int]:
        if self._asks(view.round):
            return quality.NUMBERS, 1
        if self.stage(view.round) == 0:
            return len(view.items) + 1, 1
        return numbers_of(len(_head(view.items)), True), 1

    def noise_spans(self, round: int, numbers: int) -> tuple[tuple[int, float], ...]:
        stage = self.stage(round)
        each = 1.0 / math.sqrt(self.shares[stage])
        if self._asks(round):
            return ((numbers, each),)
        if self.config.factorised:
            each *= draw_size(self.config.held(stage))
        if stage == 0:
            return ((numbers, each),)
        # A pair stands once for its two places in a symmetric matrix.
        places = places_of(numbers)
        return (places, each), (numbers - places, each / math.sqrt(2.0))

    def contribution(self, round: int, numbers: int) -> tuple[int, bool]:
        pairs = self.stage(round) > 0 and not self._asks(round)
        return (places_of(numbers), True) if pairs else (numbers, False)

    def items_at(self, view: ModelView, places: NDArray[np.int32]) -> NDArray[np.int64]:
        if self._asks(view.round):
            return np.full(len(places), -1, dtype=np.int64)
        if self.stage(view.round) == 0:
            return super(Gram, self).items_at(view, places)
        return _head(view.items)[places].astype(np.int64)

    def noise_draws(self, view: ModelView, memory: NDArray[np.float32]) -> Draws | None:
        if not self.config.factorised or self._asks(view.round):
            return None
        stage, n = self.stage(view.round), len(view.items)
        batch = self.batch(view.round) - (self.batches - self.config.held(stage))
        rounds = tuple(view.round - back * len(self.shares) for back in range(batch + 1))
        if stage == 0:
            return Draws(rounds, (np.arange(n + 1),), (np.full(n + 1, batch),))
        kept = RunningSums.read(self._split(memory)[0])
        head = kept.head
        first, second = np.triu_indices(len(head), 1)
        pairs = head[second] * (head[second] - 1) // 2 + head[first]
        return Draws(rounds, (head, pairs), kept.pair_ages())

    # --- server -----------------------------------------------------------------------------------

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]:
        return np.zeros((n_items, self.config.width), dtype=np.float32)

    def server_memory(self, n_items: int) -> NDArray[np.float32]:
        """The running sums; of a single batch, in its first place, how many users there are, each
        counted by her scale. Where there is a round about quality, its sums are in the first row's
        last places."""
        learnt = np.zeros((n_items, 1), dtype=np.float32)
        if self.batches > 1:
            learnt = RunningSums.empty(0, n_items).memory()
        return self._beside(learnt, np.zeros((n_items, self._told), dtype=np.float32))

    def server_carried(
        self,
        items: NDArray[np.float32],
        memory: NDArray[np.float32],
        n_items: int,
        more: int,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Carry the model over to a catalogue with more items. Nothing is known of new items yet,
        and a period begins with nothing."""
        new = self.server_init(more, rng)
        return np.concatenate([items, new]), self.server_memory(n_items + more)

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if self.parts and isinstance(aggregate, SummedReports):
            # More devices than needed have made more noise; of batches, as if all were like this.
            more = math.sqrt(max(1, aggregate.devices) / self.parts)
            whole = replace(self, sigma=more * self.sigma, parts=0)
            return whole.server_fold(items, memory, aggregate)
        learnt, told = self._split(memory)
        if self._asks(aggregate.round):  # of the model, which stays as it is
            told = told.copy()
            told[0, :-1] = _opened(aggregate, quality.NUMBERS)
            told[0, -1] = self.sigma / math.sqrt(self.config.quality_share)
            return items, self._beside(learnt, told)
        items, learnt = self._folded(items, learnt, aggregate)
        items = model.rounded(items, self.config.model_bits, FACTORS)
        return items, self._beside(learnt, np.zeros_like(told))

    @property
    def _told(self) -> int:
        """Numbers of the memory for what devices say of the model: sums, and their noise."""
        return quality.NUMBERS + 1 if self.config.quality_share else 0

    def _split(
        self, memory: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What the model follows from, and what devices say of it."""
        learnt = memory.shape[1] - self._told
        return np.ascontiguousarray(memory[:, :learnt]), memory[:, learnt:]

    def _beside(
        self, learnt: NDArray[np.float32], told: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        return np.hstack([learnt, told]) if self._told else learnt

    def _folded(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        shape = self.report_shape(ModelView(aggregate.round, items))
        sums = _opened(aggregate, shape[0])
        items, memory = items.copy(), memory.copy()
        if self.batches > 1:
            return self._fold_batch(items, memory, aggregate.round, sums)
        if self.stage(aggregate.round) == 0:
            q = sums[:-1] / math.sqrt(1.0 - self.counted)
            count = max(0.0, float(sums[-1]) / math.sqrt(self.counted))
            items[:, Q], memory[0, 0] = q, count
            if self._has_pairs:
                size = self._head_size(count, self.sigma, len(q))
                _announce(items, model.choose_head(q, size))
            return items, memory
        self._learn(items, sums, self.sigma / math.sqrt(self.shares[1]), float(memory[0, 0]))
        return items, memory

    def _fold_batch(
        self,
        items: NDArray[np.float32],
        memory: NDArray[np.float32],
        round: int,
        sums: NDArray[np.float64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """One of several: what is published follows from the sums of all so far."""
        kept, deviation = RunningSums.read(memory), self.config.deviation
        if kept.period != self.period(round):
            kept = RunningSums.empty(self.period(round), len(items))
        if self.stage(round) == 0:
            kept.q += sums[:-1] / math.sqrt(1.0 - self.counted)
            kept.count += float(sums[-1]) / math.sqrt(self.counted)
            kept.done += 1
            items[:, Q] = kept.q
            if self._has_pairs:
                noise = self.sigma * deviation(kept.done)
                preferred = kept.q.copy()
                # What leaves the head is lost: not for a difference that may be noise.
                preferred[kept.age > 0] += noise / math.sqrt(self.shares[0] * (1.0 - self.counted))
                batches = max(1, self.batch(round) + 1 - self.config.pairs_from)
                sigma = self.sigma * deviation(batches, 1)
                size = self._head_size(max(kept.count, 0.0), sigma, len(items))
                kept.move_head(model.choose_head(preferred, size))
                _announce(items, kept.head)
            return items, kept.memory()
        kept.add_pairs(sums)
        each = np.concatenate(kept.pair_ages())
        oldest = int(each.max(initial=1))
        # Brought to one size of noise, that of pairs which were there from the beginning.
        known = np.array([1.0, *(deviation(age + 1, 1) for age in range(oldest))])
        level = kept.pairs * (known[oldest] / known[each])
        noise = self.sigma / math.sqrt(self.shares[1]) * known[oldest]
        self._learn(items, level, noise, max(kept.count, 0.0))
        return items, kept.memory()

    def _head_size(self, count: float, sigma: float, n_items: int) -> int:
        least, most = self.config.least_head, self.config.most_head
        return model.head_size(count, sigma, n_items, least, most, self._rules)

    def _learn(
        self, items: NDArray[np.float32], sums: NDArray[np.float64], noise: float, count: float
    ) -> None:
        """Put the model of the head's pairs into the table."""
        head = _head(items)
        fitted = model.fit_pairs(
            sums, noise, count, self._rules, self.config.embedding_size,
            items[head, Q].astype(np.float64), self.support,
        )  # fmt: skip
        items[:, SCALE:] = 0.0
        if fitted is not None:
            factors, scale = fitted
            items[head, SCALE] = scale
            items[head, FACTORS : FACTORS + factors.shape[1]] = factors

    def offers(self, round: int) -> bool:
        """After the last round of a batch that there is."""
        return self.stage(round) == 0 or not self.held(round)

    def quality(self, memory: NDArray[np.float32]) -> Quality | None:
        if not self._told:
            return None
        sums = self._split(memory)[1][0]
        return quality.quality_of(sums[:-1], float(sums[-1])) if sums[-1] > 0 else None

    # --- device -----------------------------------------------------------------------------------

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]:
        return np.zeros((len(users), self.config.embedding_size), dtype=np.float32)

    def device_able(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Everybody: who takes part must not follow from what she has."""
        return np.ones(len(cohort), dtype=bool)

    def device_profile(self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64]) -> Profile:
        if len(view.items) != cohort.history.n_items:
            raise DataError(
                f"the model is of another catalogue, with {len(view.items):,} items; these devices "
                f"know {cohort.history.n_items:,}"
            )
        history = cohort.history.repeat_users(rows)  # whose names nobody needs
        if self.config.quality_share:
            history, held = quality.parted(history, self.config.held_out)
            if self._asks(view.round):
                return quality.told(self._hits(view.items, cohort.published, history, held), held)
        weights = self._sent_weights(history)
        if self.stage(view.round) == 0:
            return _with_count(history, _unit(history.indptr, weights), self.counted)
        place = np.full(history.n_items, -1, dtype=np.int32)
        head = _head(view.items)
        place[head] = np.arange(len(head), dtype=np.int32)
        inside = place[history.items] >= 0
        kept = history.select(inside)
        found = np.diff(kept.indptr).astype(np.int32)
        unit = _unit(kept.indptr, weights[inside])
        return Profile(kept.indptr, place[kept.items], unit, len(head), True, found)

    def sum_contributions(
        self, made: Contributions, threads: int, device: str = "cpu"
    ) -> NDArray[np.int64]:
        if not made.pairs:
            # Exact: so many whole numbers as fit into memory add up to less than 2**53.
            return np.bincount(made.place, made.steps, minlength=made.size).astype(np.int64)
        if device == "cpu":
            return sum_pairs(made.indptr, made.place, made.steps, made.size, threads)
        from sottovoce.algorithms.gram.accelerated import sum_pairs_on

        return sum_pairs_on(made.indptr, made.place, made.steps, made.size, device)

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        """Her items' factors, added up by what each weighs at home (a vector of norm 1)."""
        cohort.vectors = self._vectors(view.items, cohort.history)

    def _vectors(self, items: NDArray[np.float32], history: Interactions) -> NDArray[np.float32]:
        memory = self.config.memory if self.config.recency else 0.0
        weights = _unit(history.indptr, recency(history, memory))
        found = np.empty((history.n_users, items.shape[1] - FACTORS), dtype=np.float32)
        add_factors(
            read_only(history.indptr, np.int64), read_only(history.items, np.int32),
            read_only(weights, np.float64), read_only(items[:, FACTORS:], np.float32), found,
        )  # fmt: skip
        return found

    def _hits(
        self,
        items: NDArray[np.float32],
        published: NDArray[np.float32] | None,
        before: Interactions,
        held: Interactions,
    ) -> tuple[NDArray[np.bool_], ...]:
        """By the model of the round, by the published one, and by popularity alone."""
        popular = items.copy()
        popular[:, SCALE:] = 0.0
        # Where no other is known, the model of the round is compared with itself.
        other = items if published is None else _as_long(published, len(items))
        return tuple(
            quality.hits(self.device_scorer(self._vectors(one, before), one), before, held)
            for one in (items, other, popular)
        )

    def device_scorer(
        self, vectors: NDArray[np.float32], items: NDArray[np.float32]
    ) -> FactorScorer:
        """By popularity, and for items of the head by factors, which weigh much more."""
        scaled = items[:, FACTORS:] * np.abs(items[:, SCALE, None])
        return FactorScorer(vectors, scaled, np.ascontiguousarray(items[:, Q]))

    def popularity(self, items: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
        noise = self.sigma / math.sqrt(self.shares[0] * (1.0 - self.counted))
        noise *= self.config.deviation(self.batches)
        return items[:, Q].astype(np.float64), noise

    def device_scorer_knowing(
        self, vectors: NDArray[np.float32], items: NDArray[np.float32], prior: Prior
    ) -> FactorScorer:
        """The prior in the place of popularity; without factors it is all there is."""
        nothing = np.zeros(len(items), dtype=np.float32)
        pairs = replace(self.device_scorer(vectors, items), item_bias=nothing)
        return prior.added(pairs, model.KNOWLEDGE)

    def _sent_weights(self, history: Interactions) -> NDArray[np.float64]:
        """Return the weight of each entry in what is sent: more, the later it came."""
        if not self.config.recency:
            return np.ones(history.n_interactions)
        many = np.repeat(history.counts, history.counts)
        weights: NDArray[np.float64] = np.sqrt((positions(history) + 1.0) / many)
        return weights


def _opened(aggregate: Aggregate, numbers: int) -> NDArray[np.float64]:
    """The numbers of a sum."""
    if not isinstance(aggregate, SummedReports):
        raise MessageError("gram folds sums of contributions, not randomised reports")
    sums: NDArray[np.float64] = aggregate.dense(numbers)[:, 0] / STEPS
    return sums


def _head(items: NDArray[np.float32]) -> NDArray[np.int64]:
    """Items whose pairs are summed, by the model that is published."""
    return np.flatnonzero(items[:, SCALE] > 0)


def _as_long(older: NDArray[np.float32], n_items: int) -> NDArray[np.float32]:
    """A model of before items came, which are added at the end: it knows of them what it knows of
    its least popular one."""
    if len(older) >= n_items:
        return older[:n_items]
    new = np.zeros((n_items - len(older), older.shape[1]), dtype=np.float32)
    new[:, Q] = older[:, Q].min(initial=0.0)
    return np.vstack([older, new])


def _announce(items: NDArray[np.float32], head: NDArray[np.int64]) -> None:
    """Say which items have pairs from now on; factors stay in force for all that have some."""
    size = np.abs(items[:, SCALE])
    items[:, SCALE] = np.where(size > 0, -size, 0.0)
    items[head, SCALE] = np.where(size[head] > 0, size[head], 1.0)


def _unit(indptr: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights of each row, scaled to a norm of 1."""
    many = np.diff(indptr)
    rows = np.repeat(np.arange(len(many)), many)
    squares = np.bincount(rows, weights**2, minlength=len(many))
    unit: NDArray[np.float64] = weights / np.sqrt(squares)[rows]
    return unit


def _with_count(history: Interactions, unit: NDArray[np.float64], counted: float) -> Profile:
    """Her items, and behind all of them that she is there."""
    n, last = history.n_users, history.indptr[1:]
    place = np.insert(history.items, last, np.int32(history.n_items)).astype(np.int32)
    value = np.insert(math.sqrt(1.0 - counted) * unit, last, math.sqrt(counted))
    indptr = history.indptr + np.arange(n + 1)
    counts = history.counts.astype(np.int32)
    return Profile(indptr, place, value, history.n_items + 1, False, counts)
