"""The runner: systems of a study on its data sets, with settings that validation chooses, trained
with every seed. It knows neither papers nor tables.

A system is a `Kind` with settings, of which a *grid* is tried. A *set* of rows is asked for by
entries: which systems, `at` which settings, `by` which settings apart (each is chosen for itself),
with what `vary`-ing after the choice, and along which `curve` of training.
"""

from __future__ import annotations

import copy
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sottovoce.core.recommender import Scorer
from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError, DataNotFound, Diverged, UsageError
from sottovoce.evaluation.protocol import Evaluation
from sottovoce_papers.cells import Arrays, Cells, differing
from sottovoce_papers.claims import Floats, Row, StudyLine, interval
from sottovoce_papers.worlds import Part, StudyData, StudyWorld, laid_over

Settings = Mapping[str, Any]
END = 0.0
"""The stop at which a training without a length is measured."""


class Job(NamedTuple):
    """One training: settings on a part of a data set, with a seed."""

    world: StudyWorld
    settings: Settings
    """Without the length of training."""
    part: Part
    seed: int
    stops: tuple[float, ...]
    cells: Cells

    @property
    def split(self) -> Split:
        """What is learnt from and what is held out."""
        return self.world.split(self.part, self.seed)

    def measure(self, scorer: Scorer) -> Evaluation:
        """Return what a model recommends, measured as the study measures."""
        return self.world.measure(scorer, self.split, self.seed)

    def unmeasured(self) -> Evaluation:
        """Return an evaluation of nobody, for a training of which facts alone are kept."""
        nobody, n_items = np.zeros(0, dtype=np.int64), self.split.test.n_items
        return Evaluation(self.world.protocol(self.seed), nobody, {}, nobody > 0, 0, n_items)


class TrainedSystem(NamedTuple):
    """What a training came to."""

    looks: Mapping[float, Evaluation]
    """By length of training."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """What else is kept of it, which JSON can write. The study adds the seed and the seconds."""


class Kind(ABC):
    """How systems of one kind are trained. The study keeps and measures what comes out."""

    version: ClassVar[int] = 1
    """The version of the code that a training depends on. A change of digits must count it up."""
    seeded: ClassVar[bool] = True
    """Whether another seed makes another model."""
    alone: ClassVar[bool] = False
    """Whether trainings run one after the other, because they are timed or use every thread."""

    def along(self, settings: Settings) -> str:
        """The setting that says how long training goes on, if one training serves for several."""
        return ""

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        """Fill in what follows from the data."""
        return settings

    @abstractmethod
    def key(self, job: Job) -> object:
        """What a training depends on besides its data and seed, with all defaults filled in."""

    @abstractmethod
    def train(self, job: Job) -> TrainedSystem:
        """Train, and measure the model after each of the job's stops."""


KINDS: dict[str, str] = {
    "baseline": "sottovoce_papers.kinds:BaselineKind",
    "experiment": "sottovoce_papers.experiments:ExperimentKind",
    "bpr": "sottovoce_papers.fpl:BPRKind",
    "fpl": "sottovoce_papers.fpl:FPLKind",
    "fcf": "sottovoce_papers.fpl:FCFKind",
    "crowd": "sottovoce_papers.scale:CrowdKind",
    "year": "sottovoce_papers.year:YearKind",
    "fpl-baseline": "sottovoce_papers.fpl:FPLBaselineKind",
    "fmf": "sottovoce_papers.fmf:FMFKind",
    "costs": "sottovoce_papers.costs:CostKind",
    "attacked": "sottovoce_papers.costs:AttackedKind",
    "rival": "sottovoce_papers.rivals:RivalKind",
    "leak-baseline": "sottovoce_papers.negatives_leak:LeakBaselineKind",
    "poisoned": "sottovoce_papers.poisoning:PoisonedKind",
    "stuffed": "sottovoce_papers.stuffed:StuffedKind",
    "drift": "sottovoce_papers.drift:DriftKind",
    "drift-changing": "sottovoce_papers.drift_changes:ChangingKind",
    "drift-epoch": "sottovoce_papers.drift_parties:EpochKind",
    "drift-guesses": "sottovoce_papers.drift_parties:GuessesKind",
    "uc": "sottovoce_papers.uc:UCKind",
}
"""The kinds of systems by name, and where they are."""


def named(place: str) -> Any:
    """Return what a study names as `module:name`; a bare module is one of ours."""
    module, _, name = place.partition(":")
    try:
        found = import_module(module if "." in module else f"sottovoce_papers.{module}")
        return getattr(found, name)
    except (ImportError, AttributeError):
        raise ConfigError(f"there is no function {place}; a study names it module:name") from None


Look = tuple[Mapping[float, Evaluation], Mapping[str, Any]]
"""What is kept of one training: evaluations by its length, and facts."""


@dataclass(frozen=True, slots=True)
class StudySystem:
    """A system of a study, `[systems.KEY]` of its file."""

    key: str
    label: str
    kind: str
    settings: Settings = field(default_factory=dict)
    grids: tuple[Mapping[str, Any], ...] = ()
    """What validation chooses from: all combinations of each grid. In the place of values a grid
    may name a system whose choice is taken over."""
    words: str = ""
    """How a setting is told, as a template."""
    choose_seeds: int = 1
    """The number of seeds with which settings are chosen; 0 takes all."""
    data: tuple[str, ...] = ()
    """The data sets that it runs on; all by default."""
    why: str = ""
    """Why it does not run on other data, as a note of the page."""
    row: Settings = field(default_factory=dict)
    """Further columns of its rows."""
    seeds: int = 0
    """How many of the study's seeds are enough; 0 takes all."""
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By source of data: other settings and grids."""

    @classmethod
    def read(cls, key: str, table: Mapping[str, Any]) -> list[StudySystem]:
        """Read a table; with `each` it stands for several systems, named by a setting's values."""
        own = dict(table)
        many = own.pop("each", None)
        grid = own.pop("grid", None)
        own["grids"] = tuple(own.get("grids", ())) + ((grid,) if grid else ())
        unknown = sorted(set(own) - set(cls.__dataclass_fields__))
        if unknown or "kind" not in own or (many is None and "label" not in own):
            raise ConfigError(f"[systems.{key}] needs a label and a kind and knows no {unknown}")
        if own["kind"] not in KINDS:
            raise ConfigError(f"[systems.{key}] has no kind {own['kind']!r}; there are {[*KINDS]}")
        own["data"] = tuple(own.get("data", ()))
        if many is None:
            return [cls(key, **own)]
        ((name, values),) = many.items()
        settings = own.pop("settings", {})
        return [
            cls(key, **{"label": str(one), **own, "settings": {**settings, name: one}})
            for one in values
        ]

    def on(self, world: StudyWorld) -> tuple[Settings, Sequence[Mapping[str, Any]]]:
        """Return its settings and grids on these data."""
        other = self.at.get(world.config.source)
        if other is None:
            return self.settings, self.grids
        grid = other.get("grid")
        return laid_over(self.settings, other.get("settings", {})), [grid] if grid else []


@dataclass(frozen=True, slots=True, repr=False)
class TrainedLine(StudyLine):
    """A line of a system that the study trained."""

    system: StudySystem = field(kw_only=True)
    world: StudyWorld = field(kw_only=True)
    settings: Settings = field(kw_only=True)
    seeds: Sequence[int] = field(kw_only=True)
    """Those of its trainings, in the order of `runs`."""


class StudyRunner:
    """Trains what rows ask for, and fills them."""

    def __init__(
        self,
        cells: Cells,
        worlds: Mapping[str, StudyData],
        systems: Sequence[StudySystem],
        seeds: Sequence[int],
        chosen_by: str = "",
    ) -> None:
        self.cells, self.systems, self.seeds = cells, systems, tuple(seeds)
        self.chosen_by = chosen_by
        self.notes: list[str] = []
        """What was left out, and why."""
        self.worlds = self._there([one.world(name) for name, one in worlds.items()])
        self.notes += [
            f"{system.label} is not on {world.key}: {system.why}."
            for world in self.worlds
            for system in systems
            if system.why and world.key not in system.data
        ]
        self._kinds = {one.kind: named(KINDS[one.kind])() for one in systems}
        self._scores: dict[tuple[str, str], dict[str, float]] = {}

    def _there(self, worlds: Sequence[StudyWorld]) -> list[StudyWorld]:
        """The data sets that are on this machine; raises if none is."""
        found: list[StudyWorld] = []
        absent: dict[str, list[str]] = {}
        for world in worlds:
            try:
                self.cells.report(f"data: {world.key}", 0, 1)
                world.fingerprint  # noqa: B018
                found.append(world)
            except DataNotFound as error:
                absent.setdefault(str(error), []).append(world.key)
        for why, names in absent.items():
            verb = "is" if len(names) == 1 else "are"
            self.notes.append(f"{', '.join(names)} {verb} left out: {why}")
        if worlds and not found:
            raise DataNotFound("; ".join(self.notes))
        return found

    def apart(self) -> list[StudyRunner]:
        """Return a runner for each data set; all of them share what they learn."""
        found = [copy.copy(self) for _ in self.worlds]
        for one, world in zip(found, self.worlds, strict=True):
            one.worlds = [world]
        return found

    # --- rows -------------------------------------------------------------------------------------

    def lines(self, entries: Sequence[Mapping[str, Any]]) -> list[TrainedLine]:
        """Return the rows of a set: by data set, then by entry, system and setting."""
        found = []
        for world in self.worlds:
            for entry in entries:
                for system in self._asked(entry, world):
                    try:
                        found += self._lines(entry, system, world)
                    except ConfigError:
                        raise
                    except UsageError as error:  # such as a package that is not installed
                        self.notes.append(f"{system.label} is left out: {error}")
        return found

    def _asked(self, entry: Mapping[str, Any], world: StudyWorld) -> list[StudySystem]:
        keys = entry.get("systems", [one.key for one in self.systems])
        unknown = set(keys) - {one.key for one in self.systems}
        if unknown:
            raise ConfigError(f"there is no [systems.{sorted(unknown)[0]}]")
        asked = [one for one in self.systems if one.key in keys]
        if world.key not in entry.get("data", [world.key]):
            return []
        return [one for one in asked if not one.data or world.key in one.data]

    def _lines(
        self, entry: Mapping[str, Any], system: StudySystem, world: StudyWorld
    ) -> list[TrainedLine]:
        unknown = sorted(set(entry) - {"systems", "data", "at", "but", "by", "vary", "curve"})
        if unknown:
            raise ConfigError(f"an entry of a set has no {unknown[0]!r}")
        places = self._restricted(system, world, entry.get("at", {}), entry.get("but", {}))
        by = [name for name in entry.get("by", ()) if any(name in one for one in places)]
        groups = dict.fromkeys(json.dumps([one[name] for name in by]) for one in places)
        chosen = [
            self.best(system, world, [p for p in places if json.dumps([p[n] for n in by]) == group])
            for group in groups
        ]
        vary, kind = entry.get("vary", {}), self._kinds[system.kind]
        varied = [
            kind.prepared({**one, **dict(zip(vary, values, strict=True))}, world)
            for one in chosen
            for values in itertools.product(*vary.values())
        ]
        stops = entry.get("curve", ())
        jobs = [(one, seed) for one in varied for seed in self._seeds(system, world)]

        def look(job: tuple[Settings, int]) -> Look | None:
            try:
                return self._looked(system, world, job[0], "test", job[1], stops)
            except Diverged as error:
                self.notes.append(f"{system.label} on {world.key}, seed {job[1]}: {error}")
                return None

        what = f"{system.label} on {world.key}"
        results = self.cells.many(what, look, jobs, self._threads(system))
        several, lines = iter(results), []
        for one in varied:
            mine = {seed: next(several) for seed in self._seeds(system, world)}
            there = {seed: found for seed, found in mine.items() if found is not None}
            lines.append(self._line(system, world, one, there))
        return lines

    def _seeds(self, system: StudySystem, world: StudyWorld) -> Sequence[int]:
        if not self._kinds[system.kind].seeded:
            return self.seeds[:1]
        return self.seeds[: system.seeds or world.config.seeds or None]

    def _threads(self, system: StudySystem) -> int | None:
        """How many trainings run side by side; None for as many as there are threads."""
        return 1 if self._kinds[system.kind].alone else None

    def _line(
        self,
        system: StudySystem,
        world: StudyWorld,
        settings: Settings,
        by_seed: Mapping[int, Look],
    ) -> TrainedLine:
        found = list(by_seed.values())
        runs = [looks[max(looks)] for looks, _ in found]
        row: Row = {**world.words(), "system": system.label, "key": system.key, **system.row}
        row |= {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
        row["seeds"] = len(found)
        row["settings"] = system.words.format_map(settings)
        for metric, values in figures(runs).items():
            row[metric] = float(np.mean(values))
            row[f"{metric} half"] = interval(values)
            row[f"{metric} sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
        if found and len(found[0][0]) > 1:
            for stop in found[0][0]:
                some = figures([looks[stop] for looks, _ in found])
                row |= {f"{metric} after {stop:g}": float(np.mean(v)) for metric, v in some.items()}
        facts = [one for _, one in found]
        seeds = tuple(by_seed)
        return TrainedLine(
            row, runs, facts, system=system, world=world, settings=settings, seeds=seeds
        )

    # --- choosing ---------------------------------------------------------------------------------

    def candidates(self, system: StudySystem, world: StudyWorld) -> list[dict[str, Any]]:
        """Return every setting that a system's grids allow, each once."""
        settings, grids = system.on(world)
        found = []
        for grid in grids or [{}]:
            choices = [
                [self.chosen(value, world)[name]] if isinstance(value, str) else value
                for name, value in grid.items()
            ]
            for values in itertools.product(*choices):
                one = {**settings, **dict(zip(grid, values, strict=True))}
                found.append(self._kinds[system.kind].prepared(one, world))
        return list({json.dumps(one, sort_keys=True): one for one in found}.values())

    def chosen(self, key: str, world: StudyWorld) -> dict[str, Any]:
        """Return the best setting of the system of this key."""
        (system,) = [one for one in self.systems if one.key == key]
        return self.best(system, world, self.candidates(system, world))

    def _restricted(
        self, system: StudySystem, world: StudyWorld, at: Settings, but: Settings
    ) -> list[dict[str, Any]]:
        """The candidates with the settings `at`, and without those of `but`. In the place of a
        value the name of a system takes over what was chosen for it."""
        places = self.candidates(system, world)
        for wanted, here in ((at, True), (but, False)):
            for name, value in wanted.items():
                same = self.chosen(value, world)[name] if isinstance(value, str) else value
                places = [one for one in places if name not in one or (one[name] == same) == here]
        return places

    def best(
        self, system: StudySystem, world: StudyWorld, places: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the setting that does best on validation, the first of several."""
        if len(places) == 1:
            return places[0]
        scores = self._validated(system, world, places)
        return max(places, key=lambda one: scores[json.dumps(one, sort_keys=True)])

    def _validated(
        self, system: StudySystem, world: StudyWorld, places: Sequence[dict[str, Any]]
    ) -> Mapping[str, float]:
        """Scores of settings by their JSON. One training serves settings that differ in its length
        alone; one that diverges counts as the worst."""
        known = self._scores.setdefault((f"{system.key} {system.label}", world.key), {})
        asked = [one for one in places if json.dumps(one, sort_keys=True) not in known]
        if not asked:
            return known
        along = self._kinds[system.kind].along(asked[0])
        groups: dict[str, list[dict[str, Any]]] = {}
        for one in asked:
            bare = json.dumps({k: v for k, v in one.items() if k != along}, sort_keys=True)
            groups.setdefault(bare, []).append(one)
        seeds = self.seeds[: system.choose_seeds or None]
        jobs = [(group, seed) for group in groups.values() for seed in seeds]

        def score(job: tuple[list[dict[str, Any]], int]) -> list[float]:
            group, seed = job
            stops = [one[along] for one in group if along in one]
            try:
                looks, _ = self._looked(system, world, group[0], "validation", seed, stops)
            except Diverged:
                return [-1.0] * len(group)
            return [looks[float(one.get(along, END))].mean(self.chosen_by) for one in group]

        what = f"{system.label} on {world.key}, validation"
        scores: dict[str, list[float]] = {}
        found = self.cells.many(what, score, jobs, self._threads(system))
        for (group, _), values in zip(jobs, found, strict=True):
            for one, value in zip(group, values, strict=True):
                scores.setdefault(json.dumps(one, sort_keys=True), []).append(value)
        known |= {place: float(np.mean(values)) for place, values in scores.items()}
        return known

    # --- cells ------------------------------------------------------------------------------------

    def _looked(
        self,
        system: StudySystem,
        world: StudyWorld,
        settings: Settings,
        part: Part,
        seed: int,
        stops: Sequence[float] = (),
    ) -> Look:
        """Evaluations after these lengths of training, and the facts that were kept."""
        kind: Kind = self._kinds[system.kind]
        along = kind.along(settings)
        bare = {name: value for name, value in settings.items() if name != along}
        if not along:
            stops = (END,)
        elif not stops:
            stops = (settings[along],)
        wanted = tuple(sorted(map(float, stops)))
        job = Job(world, bare, part, seed, wanted, self.cells)
        key = [system.kind, kind.version, world.fingerprint, world.split_key, part, seed,
               differing(kind.key(job))]  # fmt: skip

        def train() -> Arrays:
            started = time.perf_counter()
            try:
                looks, facts = kind.train(job)
            except Diverged as error:
                nothing = {f"{stop:g} users": np.zeros(0) for stop in wanted}
                return nothing | {"diverged": np.array(str(error))}
            found: dict[str, Any] = {}
            for stop, look in looks.items():
                found |= packed(f"{stop:g}", look)
            took = {"seconds": time.perf_counter() - started, "seed": seed}
            text = json.dumps(took | dict(facts)).encode()
            return found | {"facts": np.frombuffer(text, dtype=np.uint8)}

        found = self.cells.kept(key, [f"{stop:g} users" for stop in wanted], train)
        if "diverged" in found:
            raise Diverged(str(found["diverged"]))
        looks = {stop: unpacked(f"{stop:g}", found, job) for stop in wanted}
        return looks, json.loads(bytes(found["facts"]))


def figures(runs: Sequence[Evaluation]) -> dict[str, Floats]:
    """Return every metric of a summary, a figure for each seed."""
    summaries = [run.summary() for run in runs]
    names = [name for name in summaries[0] if all(name in one for one in summaries)] if runs else []
    return {name: np.array([one[name] for one in summaries]) for name in names}


def packed(place: str, found: Evaluation) -> dict[str, Any]:
    """An evaluation as arrays of a cell."""
    arrays = {
        f"{place} users": found.users,
        f"{place} served": found.served,
        f"{place} skipped": np.array(found.skipped),
        **{f"{place} value {name}": values for name, values in found.values.items()},
    }
    return arrays if found.lists is None else {**arrays, f"{place} lists": found.lists}


def unpacked(place: str, found: Arrays, job: Job) -> Evaluation:
    start = f"{place} value "
    return Evaluation(
        protocol=job.world.protocol(job.seed),
        users=found[f"{place} users"],
        values={name[len(start) :]: v for name, v in found.items() if name.startswith(start)},
        served=found[f"{place} served"],
        skipped=int(found[f"{place} skipped"]),
        n_items=job.split.test.n_items,
        lists=found.get(f"{place} lists"),
    )
