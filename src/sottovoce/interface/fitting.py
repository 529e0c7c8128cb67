"""Fitting, and what can be asked of what was fitted."""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from sottovoce.baselines import Baseline
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer, default_threads
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import Report
from sottovoce.errors import DataError, UsageError, said_of
from sottovoce.evaluation.protocol import evaluate
from sottovoce.evaluation.significance import compare_all
from sottovoce.experiment import EvaluationConfig, Experiment, PreparedExperiment, find_experiment
from sottovoce.interface.data import SplitDataset
from sottovoce.interface.results import ComparisonTable, Recommendations, Scores
from sottovoce.interface.speech import spoken
from sottovoce.interface.systems import System, lowered, on_data
from sottovoce.runs.attack import SECONDS, attack_run
from sottovoce.runs.card import Card
from sottovoce.runs.read import FinishedRun, Recommendation, best_items, person_of
from sottovoce.runs.side_by_side import CENTRAL
from sottovoce.runs.standing import RunStanding, standing
from sottovoce.runs.tables import hints, keys_shown, name_of
from sottovoce.runs.topology import fitted as fitted_baseline
from sottovoce.runs.train import run_experiment

ItemId = str | int
UserId = str | int


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Fitted(ABC):
    """What `fit` gives: it recommends, is evaluated, and can be attacked.

    Example:
        ```python
        fitted = sv.fit(sv.Gram(), sv.split(sv.load("town", residents=2000)))
        print(fitted.recommend("r0007", n=5))
        print(fitted.evaluate(["NDCG", "recall"], k=10))
        print(fitted.attack())
        ```
    """

    system: str
    """Its name in tables."""
    parts: SplitDataset
    """The data that it was fitted on."""
    scorer: Scorer
    """Scores of every user of the data and every item."""
    notes: tuple[str, ...]
    """What should be known of it, in sentences."""

    def __repr__(self) -> str:
        said = "".join(f"; {note}" for note in self.notes)
        return f"<{self.system} on {self.parts.dataset.name}; {self.bound}{said}>"

    @property
    @abstractmethod
    def bound(self) -> str:
        """What bounds what others learn of a user, in a few words."""

    @property
    @abstractmethod
    def folder(self) -> Path | None:
        """The run folder, if there is one that is kept."""

    @abstractmethod
    def attack(
        self,
        *,
        only: Sequence[str] = (),
        rounds: int | None = None,
        seconds: float = SECONDS,
        threads: int | None = None,
        progress: bool = False,
    ) -> Card:
        """Try every attack that applies, and hold it against what a guess reaches.

        Args:
            only: Codes or names of attacks, such as `["A12"]`; by default all.
            rounds: Rounds whose messages are looked at; by default as many as a verdict needs.
            seconds: About how long a second look may take, if the first one decides nothing.
            threads: Processors to use; by default all.
            progress: Whether to show how far it is.

        Returns:
            The report card: attack, party, value, interval, base rate and verdict of each, as
            `sottovoce attack` has them.

        Example:
            ```python
            card = fitted.attack()
            print(card)
            print(len(card.broken))
            ```
        """

    @abstractmethod
    def _judged(self) -> Split:
        """Its training part, and what its lists should find."""

    @abstractmethod
    def _of_newcomers(self, histories: Interactions) -> Scorer:
        """What people with these histories, who were never in training, recommend to themselves."""

    @abstractmethod
    def _world(self) -> PreparedExperiment: ...

    def recommend(
        self,
        users: UserId | Sequence[UserId] | None = None,
        n: int = 10,
        *,
        history: Sequence[ItemId] | None = None,
    ) -> Recommendations:
        """Recommend items that a person does not have, as her device computes it.

        Args:
            users: A user of the data by her id, or several.
            n: How many items for each.
            history: In the place of `users`: ids of the items of a person who was never in
                training, oldest first. Her vector is computed at home from the published model, and
                nothing is sent. gram, FCF and FMF-LDP compute what they would for a trained user
                with this history. FPL and UC-FedRec learn her vector by steps as in training, which
                gives about that.

        Returns:
            A list for each person, best first.

        Example:
            ```python
            print(fitted.recommend("u17", n=5))
            print(fitted.recommend(["u17", "u18"]).to_pandas())
            print(fitted.recommend(history=["item3", "item9"]).items)
            ```
        """
        if n < 1:
            raise UsageError(f"n must be at least 1, not {n}")
        if (users is None) == (history is None):
            raise UsageError("name users of the data, or give the history of a new person")
        world = self._world()
        if history is not None:
            if isinstance(history, str):
                raise UsageError(f"history is a list of items, as in [{history!r}]")
            mine = person_of(world.split.train, [str(item) for item in history])
            scorer = self._of_newcomers(mine)
            return Recommendations({"": best_items(world, scorer, 0, mine.row(0), n)})
        asked = [users] if isinstance(users, str | int | np.integer) else list(users or ())
        names = [str(user) for user in asked]
        return Recommendations({name: self._list(world, name, n) for name in names})

    def _list(self, world: PreparedExperiment, name: str, n: int) -> list[Recommendation]:
        user = self._number(name)
        return best_items(world, self.scorer, user, world.split.train.row(user), n)

    def _number(self, name: str) -> int:
        known = self.parts.train.users_vocabulary()
        if name not in known:
            shape = f"{known.name(0)!r} … {known.name(len(known) - 1)!r}"
            raise DataError(f"there is no user {name!r} in the data; ids look like {shape}")
        return known.index(name)

    def evaluate(
        self,
        metrics: Sequence[str] = (),
        k: int | Sequence[int] = 10,
        *,
        candidates: Literal["full"] | int = "full",
        seed: int = 0,
        threads: int | None = None,
    ) -> Scores:
        """Rank for every user with test items, and measure.

        Args:
            metrics: Such as `["NDCG", "recall", "HR", "MAP", "MRR"]`; by default the usual ones.
            k: Length of the lists, or several lengths.
            candidates: "full" ranks all items that the user does not have; a number ranks each test
                item among so many sampled ones.
            seed: By which these are drawn.
            threads: Processors to use; by default all.

        Returns:
            Each figure with its 95 % interval over users.

        Example:
            ```python
            scores = fitted.evaluate(["NDCG", "recall"], k=[5, 10])
            print(scores["recall@5"].low)
            ```
        """
        wanted = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        cutoffs = k if isinstance(k, int) else tuple(k)
        split = self._judged()
        with spoken():
            config = EvaluationConfig(cutoffs, wanted, candidates)
            protocol = config.protocol(split, seed)
            found = evaluate(
                self.scorer, split.train, split.test, protocol, threads=_processors(threads)
            )
        return Scores(self.system, found)


class _TemporaryRun:
    """A folder for a run that nobody asked to keep. It goes with whoever holds this."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="sottovoce-run-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FittedSystem(Fitted):
    """A federated system that was fitted, with its run."""

    run: FinishedRun
    stands: RunStanding
    keeper: _TemporaryRun | None = field(default=None, repr=False)
    """Holds the run's folder for as long as this is there, where nobody asked for one."""

    @property
    def bound(self) -> str:
        return self.stands.label

    @property
    def folder(self) -> Path | None:
        return None if self.keeper is not None else self.run.folder.path

    def attack(
        self,
        *,
        only: Sequence[str] = (),
        rounds: int | None = None,
        seconds: float = SECONDS,
        threads: int | None = None,
        progress: bool = False,
    ) -> Card:
        wanted = (only,) if isinstance(only, str) else tuple(only)
        with spoken(), _progress(progress) as report:
            return attack_run(
                self.run.folder.path, rounds=rounds, seconds=seconds, only=wanted,
                threads=_processors(threads), report=report,
            )  # fmt: skip

    def _judged(self) -> Split:
        return self.run.split

    def _world(self) -> PreparedExperiment:
        return self.run

    def _of_newcomers(self, histories: Interactions) -> Scorer:
        return self.run.scorer_for(histories)

    def _list(self, world: PreparedExperiment, name: str, n: int) -> list[Recommendation]:
        self._number(name)  # raises where she is not there
        with spoken():
            return self.run.recommend(name, n, self.scorer)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FittedBaseline(Fitted):
    """A central recommender that was fitted. It sees everybody's data."""

    baseline: Baseline
    prepared: PreparedExperiment

    @property
    def bound(self) -> str:
        return CENTRAL

    @property
    def folder(self) -> Path | None:
        return None

    def attack(
        self,
        *,
        only: Sequence[str] = (),
        rounds: int | None = None,
        seconds: float = SECONDS,
        threads: int | None = None,
        progress: bool = False,
    ) -> Card:
        raise UsageError(
            f"{self.system} is central: whoever runs it sees everybody's data, so that there is no "
            "promise to attack"
        )

    def _judged(self) -> Split:
        return self.parts.parts

    def _world(self) -> PreparedExperiment:
        return self.prepared

    def _of_newcomers(self, histories: Interactions) -> Scorer:
        found = self.baseline.fold_in(self.scorer, self.parts.train, histories)
        if found is None:
            raise DataError(
                f"{self.system} learns a vector for each user in training, and has none for a "
                "person who was not there; fit it again with her, or take ItemKNN or EASE"
            )
        return found


def fit(
    system: System | Baseline | Experiment | str | Path,
    parts: SplitDataset,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: bool = False,
) -> Fitted:
    """Fit a system or a baseline on the training part.

    Args:
        system: What `Gram`, `FPL`, `FCF`, `FMFLDP`, `DRIFT` or `UCFedRec` gives; a baseline, such
            as `TopPop()` or `EASE()`; the name or path of an experiment file, such as
            "sound/gram" or "tuned/fpl"; or an `Experiment`.
        parts: The data, as `split` gives them. They take the place of the experiment's own.
        seed: By which it learns; by default the experiment's own, and 0 for a baseline.
        out: A folder for the run. If it holds this run already, the run goes on from there, or is
            opened if it has finished.
        device: "cpu", or "cuda" for rounds on a GPU.
        threads: Processors to use; by default all. Results do not depend on it.
        progress: Whether to show how far it is, on a terminal or in lines.

    Returns:
        What was fitted.

    Example:
        ```python
        parts = sv.split(sv.load("ratings.csv"))
        gram = sv.fit(sv.Gram(epsilon=4.0), parts, seed=7, out="runs/gram")
        ease = sv.fit(sv.EASE(), parts)
        printed = sv.fit("tuned/fcf", parts)
        ```
    """
    if not isinstance(parts, SplitDataset):
        raise UsageError("fit needs data that were split: sv.fit(system, sv.split(data))")
    with spoken():
        if isinstance(system, str | Path):
            system = Experiment.from_file(find_experiment(str(system)))
        if isinstance(system, System):
            before, experiment = system.experiment(), system.experiment(parts)
        elif isinstance(system, Experiment):
            before = system
            table = {k: v for k, v in system.table.items() if k != "baselines"}
            table.setdefault("seed", system.seed)
            experiment = Experiment.from_table(on_data(table, parts, set()))
        elif hasattr(system, "fit"):
            if out is not None:
                raise UsageError("a baseline has no run folder; leave out=... out")
            if device != "cpu":
                raise UsageError(
                    "device= is for federated systems; a baseline that can use a GPU has a setting"
                )
            return _fit_baseline(system, parts, 0 if seed is None else seed, progress)
        else:
            raise UsageError(
                "fit takes a system, a baseline, an Experiment or the name of an experiment file, "
                f"not {type(system).__name__}"
            )
        if seed is not None:
            experiment = experiment.with_seed(seed)
        changed = lowered(before.table, experiment.table)
        return _fit_system(experiment, parts, out, device, threads, progress, changed)


def _fit_system(
    experiment: Experiment,
    parts: SplitDataset,
    out: str | Path | None,
    device: str,
    threads: int | None,
    progress: bool,
    changed: Sequence[str],
) -> FittedSystem:
    keeper = _TemporaryRun() if out is None else None
    place = Path(out or "") if keeper is None else keeper.path
    with _progress(progress) as report:
        outcome = run_experiment(
            experiment, place, resume=True, threads=_processors(threads), device=device,
            report=report, dataset=parts.dataset,
        )  # fmt: skip
    if outcome.folder is None:
        raise UsageError(f"the run in {place} has no folder")
    run = FinishedRun(experiment, outcome.dataset, outcome.split, outcome.consent, outcome.folder)
    return _of_run(run, parts, (*changed, *hints(outcome)), keeper)


def _of_run(
    run: FinishedRun,
    parts: SplitDataset,
    notes: Sequence[str],
    keeper: _TemporaryRun | None = None,
) -> FittedSystem:
    stands = standing(run.experiment, run.ledger())
    return FittedSystem(
        run.experiment.system, parts, run.scorer(), tuple(notes), run, stands, keeper
    )


def _fit_baseline(
    baseline: Baseline, parts: SplitDataset, seed: int, progress: bool
) -> FittedBaseline:
    experiment = Experiment.from_table({"seed": seed, **parts.sections()})
    label = baseline.name or type(baseline).__name__
    baseline.check()
    with _progress(progress) as report, said_of(f"the baseline {label}"):
        report("baselines", 0, 1)
        scorer = fitted_baseline(experiment, parts.dataset, parts.train, label, baseline)
        report("baselines", 1, 1)
    if scorer is None:
        raise UsageError(f"{label} gave nothing to score by")
    prepared = PreparedExperiment(
        experiment, parts.dataset, parts.parts, experiment.records(parts.dataset)
    )
    return FittedBaseline(name_of(label), parts, scorer, (), baseline, prepared)


def open_run(folder: str | Path, *, seed: int | None = None) -> FittedSystem:
    """Open a finished run again, made by `fit(out=…)` or by `sottovoce run`.

    Args:
        folder: The run's folder.
        seed: Of a run with several seeds, which one; by default the first.

    Returns:
        What `fit` gave, with the data that the run was made from.

    Example:
        ```python
        again = sv.open_run("runs/gram")
        print(again.recommend("u17"))
        ```
    """
    from sottovoce.runs.seeds import part_of

    with spoken():
        run = FinishedRun.open(part_of(Path(folder), seed))
        split = run.experiment.split(run.dataset)
        parts = SplitDataset(run.dataset, dict(run.experiment.table.get("data", {})), split)
        return _of_run(run, parts, ())


def compare(
    fitted: Sequence[Fitted],
    metrics: Sequence[str] = (),
    k: int | Sequence[int] = 10,
    *,
    reference: str | None = None,
    candidates: Literal["full"] | int = "full",
    threads: int | None = None,
) -> ComparisonTable:
    """Put fitted systems beside each other: figures, intervals, and what bounds each of them.

    Args:
        fitted: What `fit` gave, on the same data and split.
        metrics: Such as `["NDCG", "recall"]`; by default the usual ones.
        k: Length of the lists, or several lengths.
        reference: The system that the others are tested against, by its name in the table; by
            default the first one.
        candidates: "full" ranks all items that the user does not have; a number ranks each test
            item among so many sampled ones.
        threads: Processors to use; by default all.

    Returns:
        A table of systems by metrics, with 95 % intervals over users. A mark says that a system
        differs from the reference by more than chance, after Holm's correction over the table.

    Example:
        ```python
        table = sv.compare([sv.fit(sv.TopPop(), parts), sv.fit(sv.Gram(), parts)])
        print(table)
        table.to_pandas()
        ```
    """
    every = list(fitted)
    if not every:
        raise UsageError("there is nothing to compare; give what sv.fit gave, in a list")
    first = every[0].parts
    for one in every[1:]:
        if not _alike(first, one.parts):
            raise UsageError(
                f"{every[0].system} and {one.system} were fitted on different data or splits, so "
                "that their figures do not compare"
            )
    labels = _labels([one.system for one in every])
    evaluations = {
        label: one.evaluate(metrics, k, candidates=candidates, threads=threads).evaluation
        for label, one in zip(labels, every, strict=True)
    }
    against = labels[0] if reference is None else reference
    if against not in labels:
        raise UsageError(f"there is no system {reference!r} here; there are {', '.join(labels)}")
    keys = keys_shown(evaluations.values())
    tests = compare_all(evaluations, keys, [against]) if len(every) > 1 else []
    bounds = {
        label: one.stands.short if isinstance(one, FittedSystem) else one.bound
        for label, one in zip(labels, every, strict=True)
    }
    notes = tuple(
        f"{note}." if note.startswith(label) else f"{label}: {note}."
        for label, one in zip(labels, every, strict=True)
        for note in one.notes
    )
    held = f"Held out: {first.parts.protocol}."
    name = first.dataset.name
    return ComparisonTable(evaluations, bounds, tuple(tests), against, name, (held, *notes))


def _alike(one: SplitDataset, other: SplitDataset) -> bool:
    if one is other:
        return True
    tables = ((one.train, other.train), (one.test, other.test))
    same = all(a.fingerprint() == b.fingerprint() for a, b in tables)
    return same and one.dataset.fingerprint() == other.dataset.fingerprint()


def _labels(names: Sequence[str]) -> list[str]:
    """Names that differ: those that are there twice are numbered."""
    return [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


def _processors(threads: int | None) -> int:
    return default_threads() if threads is None else threads


@contextmanager
def _progress(asked: bool) -> Iterator[Report]:
    if not asked:
        yield lambda what, done, total: None
        return
    from sottovoce.cli.output import progress

    with progress(lines=not sys.stderr.isatty()) as report:
        yield report
