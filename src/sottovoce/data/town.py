"""The default world: a made-up town whose residents visit named venues for a year.

Every resident's visits are a pure function of the seed and the resident's number, so a town can be
generated shard by shard, in any order, on any machine. How a resident chooses:

    kind of venue  k ~ softmax(log weight_k + leans of gender, age, occupation + personal taste)
    venue          within kind k: at home in her district, at her other haunt, or anywhere in town,
                   by popularity (Zipf)

The leans make attributes readable from histories; district, haunt and taste make the town
learnable beyond popularity.

Each visited venue has a rating from 1 to 5: the resident's taste for its kind, the quality of the
venue, and luck. Ratings have random streams of their own, so that visits do not depend on them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.ranks import ALONE, Ranks, Shard
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.errors import ConfigError
from sottovoce.rng import GAMMA, Streams, mix

START = 1_704_067_200
"""The first second of the town's year: 1 January 2024, UTC."""
YEAR = 366 * 86_400
_AGE_SHARES = (0.18, 0.24, 0.26, 0.19, 0.13)
# Share of each occupation within each age band.
_JOB_SHARES = (
    (0.70, 0.00, 0.04, 0.06, 0.04, 0.08, 0.08, 0.00),
    (0.12, 0.10, 0.18, 0.12, 0.12, 0.14, 0.22, 0.00),
    (0.00, 0.14, 0.18, 0.16, 0.14, 0.16, 0.22, 0.00),
    (0.00, 0.14, 0.12, 0.18, 0.12, 0.16, 0.20, 0.08),
    (0.00, 0.00, 0.00, 0.06, 0.00, 0.04, 0.00, 0.90),
)
_JOB_LEAN = 1.1
_MOST = 6.0
_MEAN_RATING, _TASTE_SHARE, _QUALITY_SHARE, _LUCK_SHARE = 2.9, 0.35, 0.8, 0.6
"""A rating before it is rounded: its level, and the weights of taste, quality and luck."""


@dataclass(frozen=True, slots=True)
class VenueKind:
    """A kind of venue, how common it is, and whom it draws; leans are log-weights."""

    top: str
    leaf: str
    heads: tuple[str, ...]
    weight: float
    female: float
    young: float
    jobs: tuple[str, ...]


_WORDS = tomllib.loads((files("sottovoce.data") / "town.toml").read_text(encoding="utf-8"))
GENDERS, AGE_BANDS, OCCUPATIONS, _DISTRICTS, _TAILS = (
    tuple(_WORDS[name]) for name in ("genders", "age_bands", "occupations", "districts", "tails")
)
KINDS = tuple(
    VenueKind(top, leaf, tuple(heads), weight, female, young, tuple(jobs))
    for top, leaf, heads, weight, female, young, jobs in _WORDS["kinds"]
)


@dataclass(frozen=True, slots=True)
class TownConfig:
    """Size and character of a town. The default trains in seconds."""

    residents: int = 1000
    """How many people live there; each is a user."""
    venues: int = 600
    """How many places they can visit; each is an item."""
    visits_per_resident: float = 48.0
    """Mean visits in the year; repeated visits to a venue count once in the data set."""
    districts: int = 8
    """Parts of the town; people mostly visit places of their own."""
    seed: int = 2024
    """The same seed gives the same town."""
    taste: float = 1.0
    """Spread of personal taste over kinds of venue; 0 leaves only what attributes explain."""
    leaning: float = 1.0
    """How strongly gender, age and occupation shape tastes; 0 hides them from histories."""
    locality: float = 0.8
    """Share of visits in the home district or the other haunt."""
    popularity: float = 1.0
    """Exponent of the Zipf law of venue popularity."""

    def __post_init__(self) -> None:
        for name in ("residents", "venues", "districts", "seed"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise ConfigError(f"town: {name} must be a whole number")
        _within("residents", self.residents, 1, 10**9)
        _within("venues", self.venues, len(KINDS), 10**8)
        _within("districts", self.districts, 1, 10**6)
        _within("visits_per_resident", self.visits_per_resident, 1, 10_000)
        _within("taste", self.taste, 0, 10)
        _within("leaning", self.leaning, 0, 10)
        _within("popularity", self.popularity, 0, 4)
        _within("locality", self.locality, 0, 1)


def _within(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"town: {name} must be a number from {low:,} to {high:,}, not {value!r}")


@dataclass(frozen=True, slots=True)
class TownShard:
    """Residents [first, first + n): their visits (items are venue numbers) and attributes."""

    first: int
    interactions: Interactions
    attributes: dict[str, Labels]


@dataclass(frozen=True, slots=True)
class _World:
    """Venues, grouped for drawing: by kind over the whole town, and by (district, kind)."""

    kind: NDArray[np.int64]
    district: NDArray[np.int64]
    quality: NDArray[np.float64]
    town_start: NDArray[np.int64]
    town_venues: NDArray[np.int64]
    town_mass: NDArray[np.float64]
    local_start: NDArray[np.int64]
    local_venues: NDArray[np.int64]
    local_mass: NDArray[np.float64]


def generate_town(
    config: TownConfig | None = None, ranks: Ranks = ALONE, residents: range | None = None
) -> Dataset:
    """The whole town as a data set, or a rank's share of its residents, who may be named; venues
    that nobody, on any rank, visited are left out."""
    config = TownConfig() if config is None else config
    mine = ranks.span(config.residents) if residents is None else residents
    shards = list(stream_town(config, 1 << 16, mine))
    visits = [shard.interactions for shard in shards]
    items = np.concatenate([v.items for v in visits])
    seen = np.flatnonzero(ranks.all_sum(np.bincount(items, minlength=config.venues)))
    number = np.zeros(config.venues, dtype=np.int32)
    number[seen] = np.arange(len(seen), dtype=np.int32)
    world = _world(config)
    names = venue_names(world.kind, world.district, _streams(config).child("names").generator())
    places = district_names(config.districts)
    made = Dataset(
        name="town",
        interactions=Interactions(
            indptr=np.concatenate([[0], np.cumsum(np.concatenate([v.counts for v in visits]))]),
            items=number[items],
            n_items=len(seen),
            timestamps=np.concatenate([_times_of(v) for v in visits]),
            ratings=np.concatenate([_ratings_of(v) for v in visits]),
            user_ids=_padded("r", np.arange(mine.start, mine.stop), config.residents),
            item_ids=_padded("v", seen, config.venues),
        ),
        user_attributes={
            key: Labels(
                np.concatenate([shard.attributes[key].codes for shard in shards]), labels.values
            ).canonical(ranks)
            for key, labels in shards[0].attributes.items()
        },
        item_titles=tuple(names[i] for i in seen),
        item_categories=tuple((KINDS[k].top,) for k in world.kind[seen]),
        item_attributes={
            "kind": Labels.of([KINDS[k].leaf for k in world.kind[seen]]),
            "district": Labels.of([places[d] for d in world.district[seen]]),
        },
        provenance=f"generated: {config}",
        shard=Shard(ranks, mine.start),
    )
    return replace(made, known_as=made.recipe()) if ranks.together else made


def stream_town(
    config: TownConfig, shard_users: int = 1 << 16, residents: range | None = None
) -> Iterator[TownShard]:
    """The town's residents, or those of a range, in shards of `shard_users`. Memory is bounded by
    one shard.

    What a resident does is the same whatever the size of the shards.
    """
    if shard_users < 1:
        raise ConfigError("town: shard_users must be at least 1")
    world, wanted = _world(config), residents or range(config.residents)
    for first in range(wanted.start, wanted.stop, shard_users):
        yield _shard(config, world, first, min(first + shard_users, wanted.stop))


def district_names(count: int) -> tuple[str, ...]:
    """The first `count` districts; past the list they are numbered."""
    rounds = -(-count // len(_DISTRICTS))
    named = [n if r == 0 else f"{n} {r + 1}" for r in range(rounds) for n in _DISTRICTS]
    return tuple(named[:count])


def venue_names(
    kinds: NDArray[np.int64], districts: NDArray[np.int64], shuffle: np.random.Generator
) -> tuple[str, ...]:
    """One distinct name per venue, such as "Caffè del Ponte"; later ones also name the district."""
    places = district_names(int(districts.max()) + 1 if len(districts) else 0)
    supplies: dict[int, Iterator[str]] = {}
    taken: set[str] = set()
    names: list[str] = []
    for kind, district in zip(kinds.tolist(), districts.tolist(), strict=True):
        if kind not in supplies:
            plain = [f"{head} {tail}" for head in KINDS[kind].heads for tail in _TAILS]
            supplies[kind] = iter([plain[i] for i in shuffle.permutation(len(plain))])
        name = next(supplies[kind], None)
        if name is None:
            head = KINDS[kind].heads[int(shuffle.integers(len(KINDS[kind].heads)))]
            name = f"{head} {_TAILS[int(shuffle.integers(len(_TAILS)))]}, {places[district]}"
        plain_name, again = name, 2
        while name in taken:
            name, again = f"{plain_name} {again}", again + 1
        taken.add(name)
        names.append(name)
    return tuple(names)


def _shard(config: TownConfig, world: _World, first: int, end: int) -> TownShard:
    users = np.arange(first, end, dtype=np.int64)
    streams = _streams(config)
    draw = streams.child("residents").uniform(users, 6)
    gender = (draw[:, 0] < 0.5).astype(np.int64)
    age = np.searchsorted(np.cumsum(_AGE_SHARES)[:-1], draw[:, 1], side="right")
    job_edges = np.cumsum(_JOB_SHARES, axis=1)[:, :-1]
    job = (draw[:, 2, None] >= job_edges[age]).sum(axis=1)
    home = (draw[:, 3] * config.districts).astype(np.int64)
    haunt = (draw[:, 4] * config.districts).astype(np.int64)
    # A shifted exponential of mean 1: some residents are far more active than most.
    activity = np.minimum(0.35 - 0.65 * np.log1p(-draw[:, 5]), _MOST)
    planned = np.maximum(np.rint(activity * config.visits_per_resident), 1).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(planned)])
    venues = np.empty(offsets[-1], dtype=np.int32)
    times = np.empty(offsets[-1], dtype=np.int64)
    counts = np.empty(len(users), dtype=np.int64)
    taste = _tastes(config)[gender, age, job]
    keys = streams.child("visits").keys(users)
    _visit(
        keys, offsets, taste, home, haunt, config.taste, config.locality,
        world.town_start, world.town_venues, world.town_mass,
        world.local_start, world.local_venues, world.local_mass,
        venues, times, counts,
    )  # fmt: skip
    indptr = np.concatenate([[0], np.cumsum(counts)])
    kept = np.arange(indptr[-1]) + np.repeat(offsets[:-1] - indptr[:-1], counts)
    visited = venues[kept]
    ratings = np.empty(len(visited), dtype=np.float32)
    _rate(
        keys, streams.child("ratings").keys(users), indptr, visited,
        taste - np.log([kind.weight for kind in KINDS]), config.taste,
        world.kind, world.quality, ratings,
    )  # fmt: skip
    return TownShard(
        first,
        Interactions(indptr, visited, config.venues, timestamps=times[kept], ratings=ratings),
        {
            "gender": Labels(gender.astype(np.int32), GENDERS),
            "age": Labels(age.astype(np.int32), AGE_BANDS),
            "occupation": Labels(job.astype(np.int32), OCCUPATIONS),
            "district": Labels(home.astype(np.int32), district_names(config.districts)),
        },
    )


@njit(nogil=True, cache=True)
def _visit(  # type: ignore[no-untyped-def]
    keys, offsets, taste, home, haunt, spread, locality,
    town_start, town_venues, town_mass, local_start, local_venues, local_mass,
    venues, times, counts,
):  # fmt: skip
    """Fills venues and times of every resident, ascending by venue, the last visit of each."""
    kinds = taste.shape[1]
    mass = np.empty(kinds)
    for u in range(len(keys)):
        key, draw = keys[u], uint64(0)
        total = 0.0
        for k in range(kinds):
            draw += uint64(2)
            total += np.exp(taste[u, k] + spread * _normal(key, draw))
            mass[k] = total
        base, n = offsets[u], 0
        for _ in range(offsets[u + 1] - base):
            draw += uint64(4)
            k = min(np.searchsorted(mass, _unit(key, draw) * total), kinds - 1)
            where, which = _unit(key, draw + uint64(1)), _unit(key, draw + uint64(2))
            venue = -1
            if where < locality:
                # Two visits in three of the local ones are at home, the third at the other haunt.
                district = home[u] if where * 3.0 < locality * 2.0 else haunt[u]
                group = district * kinds + k
                if local_start[group] < local_start[group + 1]:
                    venue = _pick(local_start, local_venues, local_mass, group, which)
            if venue < 0:
                venue = _pick(town_start, town_venues, town_mass, k, which)
            time = START + np.int64(_unit(key, draw + uint64(3)) * YEAR)
            n = _insert(venues, times, base, n, venue, time)
        counts[u] = n


@njit(nogil=True, cache=True)
def _rate(  # type: ignore[no-untyped-def]
    taste_keys, luck_keys, indptr, venues, leaning, spread, kind, quality, ratings
):
    """Fills the rating of every visited venue. `taste_keys` are those of `_visit`, which give each
    resident the taste by which she went there."""
    kinds = leaning.shape[1]
    taste, share = np.empty(kinds), _TASTE_SHARE / max(1.0, spread)
    for u in range(len(taste_keys)):
        for k in range(kinds):
            taste[k] = leaning[u, k] + spread * _normal(taste_keys[u], uint64(2 * (k + 1)))
        for at in range(indptr[u], indptr[u + 1]):
            venue = venues[at]
            stars = (
                _MEAN_RATING
                + share * taste[kind[venue]]
                + _QUALITY_SHARE * quality[venue]
                + _LUCK_SHARE * _normal(luck_keys[u], uint64(2 * (venue + 1)))
            )
            ratings[at] = min(max(np.rint(stars), 1.0), 5.0)


@njit(inline="always")
def _normal(key, draw):  # type: ignore[no-untyped-def]
    """Standard normal, a function of the key and of two draws, this one and the next."""
    radius = np.sqrt(-2.0 * np.log(1.0 - _unit(key, draw)))
    return radius * np.cos(2.0 * np.pi * _unit(key, draw + uint64(1)))


@njit(inline="always")
def _unit(key, draw):  # type: ignore[no-untyped-def]
    """Uniform on [0, 1), a function of key and draw number."""
    return np.float64(mix(key + draw * GAMMA) >> uint64(11)) * 2.0**-53


@njit(inline="always")
def _pick(start, venues, mass, group, u):  # type: ignore[no-untyped-def]
    """A venue of the group, by popularity; `mass` is cumulative and ends at 1 within a group."""
    low, high = start[group], start[group + 1] - 1
    while low < high:
        middle = (low + high) // 2
        if mass[middle] <= u:
            low = middle + 1
        else:
            high = middle
    return venues[low]


@njit(inline="always")
def _insert(venues, times, base, n, venue, time):  # type: ignore[no-untyped-def]
    """Into the sorted row at `base` of length n; a known venue keeps its later time."""
    low, high = base, base + n
    while low < high:
        middle = (low + high) // 2
        if venues[middle] < venue:
            low = middle + 1
        else:
            high = middle
    if low < base + n and venues[low] == venue:
        times[low] = max(times[low], time)
        return n
    for place in range(base + n, low, -1):
        venues[place] = venues[place - 1]
        times[place] = times[place - 1]
    venues[low] = venue
    times[low] = time
    return n + 1


def _world(config: TownConfig) -> _World:
    generator = _streams(config).child("venues").generator()
    weight = np.array([k.weight for k in KINDS])
    rest = generator.choice(len(KINDS), config.venues - len(KINDS), p=weight / weight.sum())
    kind = generator.permutation(np.concatenate([np.arange(len(KINDS)), rest])).astype(np.int64)
    district = generator.integers(config.districts, size=config.venues, dtype=np.int64)
    rank = generator.permutation(config.venues) + 1.0
    popularity = np.power(rank, -config.popularity).astype(np.float64)
    local = district * len(KINDS) + kind
    return _World(
        kind,
        district,
        _streams(config).child("quality").generator().standard_normal(config.venues),
        *_grouped(kind, len(KINDS), popularity),
        *_grouped(local, config.districts * len(KINDS), popularity),
    )


def _grouped(
    group: NDArray[np.int64], groups: int, popularity: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Venues by group: start of each group, venues, cumulative popularity within the group."""
    order = np.argsort(group, kind="stable").astype(np.int64)
    sizes = np.bincount(group, minlength=groups)
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    # Shares first: every group then adds exactly one to the running sum, however rare its venues.
    totals = np.bincount(group, weights=popularity, minlength=groups)
    running = np.cumsum((popularity / totals[group])[order])
    groups_before = np.cumsum(sizes > 0) - 1
    return start, order, running - np.repeat(groups_before, sizes)


def _tastes(config: TownConfig) -> NDArray[np.float64]:
    """Log-weights of kinds, shape [genders, age bands, occupations, kinds]."""
    weight = np.log([k.weight for k in KINDS])
    female = np.array([k.female for k in KINDS])
    young = np.array([k.young for k in KINDS])
    jobs = np.array([[job in k.jobs for k in KINDS] for job in OCCUPATIONS], dtype=np.float64)
    lean = (
        np.array([0.5, -0.5])[:, None, None, None] * female
        + np.array([1.0, 0.6, 0.0, -0.6, -1.0])[None, :, None, None] * young
        + _JOB_LEAN * jobs[None, None, :, :]
    )
    table: NDArray[np.float64] = weight + config.leaning * lean
    return table


def _streams(config: TownConfig) -> Streams:
    return Streams.from_seed(config.seed).child("town")


def _padded(letter: str, numbers: NDArray[np.int64], count: int) -> Vocabulary:
    width = max(4, len(str(count - 1)))
    return Vocabulary([f"{letter}{n:0{width}d}" for n in numbers.tolist()])


def _times_of(visits: Interactions) -> NDArray[np.int64]:
    return visits.timestamps if visits.timestamps is not None else np.zeros(0, dtype=np.int64)


def _ratings_of(visits: Interactions) -> NDArray[np.float32]:
    return visits.ratings if visits.ratings is not None else np.zeros(0, dtype=np.float32)
