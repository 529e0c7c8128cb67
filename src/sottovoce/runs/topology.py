"""What every run shares, and what devices with a server and data owners answer for themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.baselines import Baseline
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import COUNTS, Ledger
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import Checkpoints, Report
from sottovoce.errors import said_of
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.runs.catalogue import CutCatalogue
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.home import baseline_at_home

Engine = Literal["simulation", "distributed", "https", "flower"]
CHECKPOINT_SECONDS = 10.0
"""Between two checkpoints, at least."""

Measures = dict[str, dict[str, float]]
"""By system, by measure."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an experiment is to be run."""

    engine: Engine = "simulation"
    device: str = "cpu"
    processes: int | None = None
    """Of device agents, gateways or owners, if the engine starts real ones."""
    threads: int = 1
    transcript: bool = False
    kept: bool = True
    """Whether there is a run folder."""
    ranks: Ranks = ALONE
    """Of the distributed engine, of which this process is one."""


@dataclass(frozen=True, slots=True, repr=False)
class RunOutcome(PreparedExperiment):
    """What a run gave, beside its folder."""

    evaluations: Mapping[str, Evaluation]
    """By system; the federated one comes last."""
    system: str
    """The name of the federated one."""
    seconds: float
    folder: RunFolder | None
    cut: CutCatalogue | None
    """What became of rare items, where they are cut."""


class Topology(ABC):
    """Who learns with whom: what a round is, what a checkpoint holds, who scores."""

    dataset: Dataset
    split: Split
    """What is learnt from, and what is to be found."""

    @property
    @abstractmethod
    def rounds(self) -> int: ...

    @property
    @abstractmethod
    def ledger(self) -> Ledger:
        """Of everybody."""

    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """What is known of it before it begins."""

    @abstractmethod
    def train(self, run: ActiveRun) -> None:
        """Goes on from where the run's folder is, at the start or at a checkpoint, to the end."""

    @abstractmethod
    def reopen(self, folder: RunFolder) -> None:
        """Takes up the state of a finished run."""

    @abstractmethod
    def save(self, folder: RunFolder, round: int) -> None:
        """Writes a checkpoint."""

    @abstractmethod
    def scorer(self) -> Scorer:
        """What would be recommended by now."""

    @abstractmethod
    def state(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The model's rows and the users' vectors, as they are kept at the end."""

    @abstractmethod
    def line(self, round: int, *, final: bool = False) -> dict[str, Any]:
        """Of metrics.jsonl, without what an evaluation adds."""

    def at_end(self, evaluation: Evaluation) -> dict[str, Any]:
        """What is known of it at the end, after this evaluation."""
        return {}

    def measures(self, scorer: Scorer, threads: int) -> dict[str, float]:
        """How well a scorer does by measures beside those of the protocol."""
        return {}

    def protocol_line(self, evaluation: Evaluation) -> str:
        return evaluation.describe()

    @abstractmethod
    def outcome(self, measures: Measures, **shared: Any) -> RunOutcome:
        """With what this kind of system has beside what is `shared`."""


@dataclass(slots=True, repr=False)
class ActiveRun:
    """An experiment under way."""

    experiment: Experiment
    options: RunOptions
    topology: Topology
    protocol: Protocol
    progress: Report
    folder: RunFolder | None = None
    cut: CutCatalogue | None = None
    looks_at: tuple[float, ...] = ()
    """Epochs after which it is evaluated on the way, in place of the experiment's own."""
    on_judged: Callable[[float, Mapping[str, float]], None] | None = None
    """Is told what comes of each of these evaluations, by its epoch, and may end the run by
    raising."""
    left_out: list[str] = field(default_factory=list)
    """Baselines that learn from all histories in one place, which no rank has."""

    def checkpoints(self, step: int) -> Checkpoints:
        return Checkpoints(step, self.save, CHECKPOINT_SECONDS, self.options.ranks)

    def trained(self, round: int) -> None:
        self.progress("training", round, self.topology.rounds)

    def save(self, round: int) -> None:
        if self.folder is not None:
            self.topology.save(self.folder, round)

    def stops(self, rounds_per_epoch: int) -> tuple[int, ...]:
        """Rounds after which it is evaluated on the way, in ascending order."""
        rounds, step = self.topology.rounds, self.experiment.evaluation.every_epochs
        if self.looks_at:
            asked = {max(1, round(epoch * rounds_per_epoch)) for epoch in self.looks_at}
            return tuple(sorted(stop for stop in asked if stop < rounds))
        step *= rounds_per_epoch
        return tuple(range(step, rounds, step)) if step else ()

    def note(self, round: int, *, judged: bool = True) -> None:
        """A line of metrics.jsonl."""
        if self.folder is None and (self.on_judged is None or not judged):
            return
        line = self.topology.line(round)
        if judged:
            line |= self.judge(self.topology.scorer()).summary()
        if self.folder is not None and self.options.ranks.first:
            self.folder.append_metrics(line)
        if self.on_judged is not None and judged:
            self.on_judged(float(line["epoch"]), line)

    def on_pace(self, round: int, seconds: list[float]) -> None:
        """Keeps how long each rank has worked, and says which of them others wait for."""
        if self.folder is None or not self.options.ranks.first:
            return
        line: dict[str, Any] = {"round": round, "seconds": [float(f"{one:.3f}") for one in seconds]}
        slow = slow_ranks(seconds)
        if slow:
            line["slow"] = slow
        self.folder.append_pace(line)

    def judge(self, scorer: Scorer, test: Interactions | None = None) -> Evaluation:
        """How well a scorer does, on these test items or on all."""
        split, options = self.topology.split, self.options
        return evaluate(
            scorer, split.train, split.test if test is None else test, self.protocol,
            threads=options.threads, ranks=options.ranks,
        )  # fmt: skip

    def judge_all(self) -> tuple[dict[str, Evaluation], Measures]:
        """Baselines first, the federated system last. A baseline that knows positives alone learns
        from those."""
        evaluations: dict[str, Evaluation] = {}
        measures: Measures = {}

        def judge(label: str, scorer: Scorer) -> None:
            evaluations[label] = self.judge(scorer)
            measures[label] = self.topology.measures(scorer, self.options.threads)
            if self.cut is not None:
                whole = self.cut.judge(label, lambda test: self.judge(scorer, test))
                measures[label] = {**measures[label], **whole}

        baselines, train = self.experiment.baselines, self.topology.split.train
        ranks = self.options.ranks
        for number, (label, baseline) in enumerate(baselines):
            self.progress("baselines", number, len(baselines))
            with said_of(f"the baseline {label}"):
                found = fitted(
                    self.experiment, self.topology.dataset, train, label, baseline, ranks
                )
                if found is None and ranks.together:
                    self.left_out.append(label)
                    continue
                judge(label, cast(Scorer, found))
        self.progress("evaluation", 0, 1)
        judge(self.experiment.system, self.topology.scorer())
        self.progress("evaluation", 1, 1)
        return evaluations, measures

    def finish(self, evaluations: Mapping[str, Evaluation], measures: Measures) -> None:
        if self.folder is None:
            return
        topology, system = self.topology, self.experiment.system
        results = {name: {**e.summary(), **measures[name]} for name, e in evaluations.items()}
        line, ranks = topology.line(topology.rounds, final=True), self.options.ranks
        if ranks.first:
            self.folder.append_metrics(line | results[system])
        booked = ranks.total(*(getattr(topology.ledger.totals, name) for name in COUNTS))
        items, vectors = topology.state()
        left_out: dict[str, Any] = {"baselines_left_out": self.left_out} if self.left_out else {}
        self.folder.finish(
            items,
            vectors,
            ranks=ranks,
            results=results,
            protocol=topology.protocol_line(evaluations[system]),
            ledger=dict(zip(COUNTS, booked, strict=True)),
            **left_out,
            **topology.at_end(evaluations[system]),
        )


def fitted(
    experiment: Experiment,
    dataset: Dataset,
    train: Interactions,
    label: str,
    baseline: Baseline,
    ranks: Ranks = ALONE,
) -> Scorer | None:
    """A baseline of an experiment, as it recommends at home; None where it needs all histories in
    one place and ranks share them."""
    mask = experiment.liked(train)
    liked = train if mask.all() else train.select(mask)
    if ranks.together:
        by_counts = baseline.fit_counts(ranks.all_sum(liked.item_counts.astype(np.int64)))
        if by_counts is None:
            return None
        found = by_counts
    else:
        rng = experiment.streams().child("baseline", label)
        found = baseline.fit(train if baseline.learns_from_dislikes else liked, rng)
    return baseline_at_home(experiment, dataset, liked, found)


def slow_ranks(seconds: list[float]) -> list[int]:
    """Ranks that others wait for: those that work half as long again as the one in the middle, and
    for a second more."""
    usual = sorted(seconds)[(len(seconds) - 1) // 2]
    return [k for k, one in enumerate(seconds) if one > max(1.5 * usual, usual + 1.0)]
