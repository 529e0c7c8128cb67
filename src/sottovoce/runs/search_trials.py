"""Trials of a search: settings that are proposed, and what comes of training with them.

Every trial of a search learns from the same training part and is judged on the same validation
part. What is proposed is a function of the trials before, and whether one is given up on the way
follows from what these had reached at the same epoch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.core.installed import needs
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError, Diverged, UsageError
from sottovoce.evaluation.metrics import every_metric
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.runs.devices import DeviceTopology
from sottovoce.runs.search_cost import Charge, charge_of
from sottovoce.runs.space import Settings, Space, Value, changed
from sottovoce.runs.topology import RunOptions
from sottovoce.runs.train import begun

if TYPE_CHECKING:
    import optuna

STARTUP = 8
"""Trials whose settings are drawn evenly, before former ones are looked at."""
LADDER = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Where trials are compared on the way, as parts of how long the experiment of the file learns.
Not earlier: settings that learn slowly and end best are below the median until then
(docs/results/presets.md, "Thirty trials of `tune`")."""
State = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a search goes about."""

    trials: int = 30
    seeds: int = 3
    """With how many seeds each finalist is trained, that of the file included."""
    finalists: int = 3
    batch: int = 4
    """Trials that are proposed together."""
    metric: str = ""
    """NDCG at the cut-off of the experiment by default."""
    prune: bool = True
    """Whether a trial is given up that is worse than the median of the others on the way."""
    jobs: int = 1
    """Processes. Results do not depend on them, nor on threads."""
    threads: int = 1
    device: str = "cpu"
    sampler_seed: int = 0
    """Another one proposes other settings; data and trainings are the same."""
    timeout: float = math.inf
    """Seconds after which no further batch begins."""

    def __post_init__(self) -> None:
        for name in ("trials", "seeds", "finalists", "batch", "jobs", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.sampler_seed < 0:
            raise UsageError(f"--sampler-seed must be at least 0, not {self.sampler_seed}")
        if not self.timeout > 0.0:
            raise UsageError(f"--timeout must be above 0, not {self.timeout:g}")


@dataclass(frozen=True, slots=True)
class Training:
    """What came of one training: a line of trials.journal."""

    number: int
    seed: int
    settings: Settings
    """None for the first one, which is as the file is."""
    state: State
    value: float | None
    """Of the metric at the end; where it was given up, None."""
    reached: tuple[tuple[float, float], ...] = ()
    """Epochs on the way, and the metric after each."""
    why: str = ""
    """What went wrong."""
    seconds: float = 0.0
    charge: Charge = field(default_factory=Charge)
    """What it would have cost a user of a real federation."""

    def to_line(self) -> dict[str, Any]:
        return asdict(self) | {"charge": self.charge.to_table()}

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Training:
        reached = tuple((float(epoch), float(value)) for epoch, value in line["reached"])
        return cls(**{**line, "reached": reached, "charge": Charge(**line["charge"])})


@dataclass(frozen=True, slots=True)
class TrialTask:
    """A training to be done, as a process is told of it."""

    number: int
    seed: int
    settings: Settings
    past: tuple[Training, ...] = ()
    """By which it is given up on the way; nothing where it goes to its end."""


@dataclass(frozen=True, slots=True, repr=False)
class SearchWorld:
    """What all trials share: data, split and how they are judged."""

    experiment: Experiment
    dataset: Dataset
    split: Split
    space: Space
    metric: str
    maximise: bool
    epochs: tuple[float, ...]
    """Where trials are compared on the way."""
    judged: int
    """How many test items there are."""
    options: SearchOptions

    @classmethod
    def of(cls, experiment: Experiment, space: Space, options: SearchOptions) -> SearchWorld:
        """Of an experiment whose part is "validation"."""
        if experiment.data.part != "validation":
            raise ConfigError('a search is for data.part = "validation" alone')
        metric, maximise = read_metric(options.metric, experiment.evaluation.cutoffs)
        prepared = experiment.prepared()
        run = begun(prepared, run_options(options), quiet)
        per_epoch = 1
        if isinstance(run.topology, DeviceTopology):
            per_epoch = run.topology.federation.schedule.rounds_per_epoch
        whole = run.topology.rounds / per_epoch
        looks = tuple(part * whole for part in LADDER)
        if not options.prune or not experiment.algorithm.gradual:
            looks = ()
        return cls(
            experiment, prepared.dataset, prepared.split, space, metric, maximise, looks,
            run.topology.split.test.n_interactions, options,
        )  # fmt: skip

    def better(self, value: float) -> float:
        """So that the smallest is the best."""
        return -value if self.maximise else value


def searched_experiment(table: Mapping[str, Any]) -> Experiment:
    """The experiment of a file as trials run it: on the validation part, without baselines."""
    other = ("baselines", "search", "seeds")
    kept = {name: value for name, value in table.items() if name not in other}
    if table.get("seeds"):  # of a file with several, the first
        kept["seed"] = table["seeds"][0]
    kept["data"] = {**kept.get("data", {}), "part": "validation"}
    kept["evaluation"] = {**kept.get("evaluation", {}), "every_epochs": 0}
    return Experiment.from_table(kept)


def read_metric(asked: str, cutoffs: Sequence[int]) -> tuple[str, bool]:
    """The metric by which trials are judged, and whether more of it is better."""
    known = {f"{one.key()}@{k}": one for k in cutoffs for one in every_metric()}
    name = asked or f"NDCG@{cutoffs[0]}"
    if name not in known:
        raise UsageError(
            f"evaluation gives no {name}; there are {', '.join(known)} (evaluation.k sets the "
            "cut-off)"
        )
    best = known[name].best
    if best is None:
        raise UsageError(f"more {name} is neither better nor worse; name another metric")
    return name, best == "max"


def best_of(trials: Sequence[Training], count: int, *, maximise: bool = True) -> list[Training]:
    """The best trials that went to their end, of equal settings one, the earlier first."""
    ended = [one for one in trials if one.state == "finished" and one.value is not None]
    ended.sort(key=lambda one: ((-1 if maximise else 1) * (one.value or 0.0), one.number))
    distinct: dict[str, Training] = {}
    for one in ended:
        distinct.setdefault(settings_key(one.settings), one)
    return list(distinct.values())[:count]


def proposed(world: SearchWorld, past: Sequence[Training]) -> list[dict[str, Value]]:
    """Return settings for the batch that follows these trials: a function of them alone."""
    import optuna

    batch, start = world.options.batch, len(past)
    streams = world.experiment.streams().child("search", world.options.sampler_seed)
    key = streams.child("batch", start // batch).key
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=key % 2**32
    )
    study, found = _study(world, past, sampler), list[dict[str, Value]]()
    for n in range(start, start + batch):
        inside = world.space.inside(world.space.values(world.experiment, {})) if n == 0 else None
        if inside is not None:
            study.enqueue_trial(inside)
        if n or inside is not None:
            asked = study.ask(world.space.distributions())
        found.append(world.space.settings(asked.params) if n else {})
    return found


def as_trial(world: SearchWorld, one: Training) -> optuna.trial.FrozenTrial:
    """Return a training as a trial of Optuna. It has no parameters if it lies outside of the
    searched ranges, as the file's own settings may. A training that failed counts as pruned, so
    that the sampler avoids its like."""
    import optuna

    inside = world.space.inside(world.space.values(world.experiment, one.settings))
    ended = one.state == "finished"
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.COMPLETE if ended else states.PRUNED,
        value=one.value if ended else None,
        params=dict(inside or {}),
        distributions=world.space.distributions() if inside else {},
        intermediate_values={_step(world, epoch): v for epoch, v in one.reached},
        user_attrs=one.to_line(),
    )


def _study(
    world: SearchWorld, past: Sequence[Training], sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """Return a study of former trials, those alone that lie within the searched ranges."""
    import optuna

    study = optuna.create_study(
        direction="maximize" if world.maximise else "minimize",
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
    )
    study.add_trials(one for one in (as_trial(world, one) for one in past) if one.params)
    return study


def _step(world: SearchWorld, epoch: float) -> int:
    """At which place of the ladder an epoch is."""
    return min(range(len(world.epochs)), key=lambda k: abs(world.epochs[k] - epoch), default=0)


class _GivenUp(Exception):
    """A trial is worse than others were by then."""


def run_trial(world: SearchWorld, task: TrialTask) -> Training:
    """Train once, to the end or until the pruner gives the trial up."""
    started, reached = time.perf_counter(), list[tuple[float, float]]()
    value: float | None = None
    state: State = "failed"
    why, charge = "", Charge()
    judge = _judge(world, task, reached)
    try:
        table = changed(world.experiment.table, task.settings) | {"seed": task.seed}
        experiment = Experiment.from_table(table)
        consent = experiment.records(world.dataset)
        prepared = PreparedExperiment(experiment, world.dataset, world.split, consent)
        seed = world.experiment.seed
        run = begun(prepared, run_options(world.options), quiet, seed)
        if run.topology.split.test.n_interactions != world.judged:
            raise ConfigError("these settings change what is judged, so that nothing compares")
        run.topology.ledger.keep_rows = False  # nobody reads them
        run.looks_at, run.on_judged = world.epochs, judge
        try:
            run.topology.train(run)
            found = run.judge_all()[0][experiment.system].summary()
            value, state = _figure(found, world.metric), "finished"
        except _GivenUp:
            state = "pruned"
        charge = charge_of(experiment, run.topology)
    except Diverged as error:
        why = f"diverged: {error}"
    except ConfigError as error:
        why = str(error)
    seconds = round(time.perf_counter() - started, 3)  # as it is written
    return Training(
        task.number, task.seed, task.settings, state, value, tuple(reached), why, seconds, charge
    )


def _judge(
    world: SearchWorld, task: TrialTask, reached: list[tuple[float, float]]
) -> Callable[[float, Mapping[str, float]], None]:
    """Keeps what a trial reaches on the way, and gives it up where it is worse than the median of
    the others."""
    import optuna

    trial = None
    if task.past:
        trial = _study(world, task.past, optuna.samplers.RandomSampler(seed=0)).ask()

    def judged(epoch: float, figures: Mapping[str, float]) -> None:
        value = _figure(figures, world.metric)
        reached.append((epoch, value))
        if trial is not None:
            trial.report(value, _step(world, epoch))
            if trial.should_prune():
                raise _GivenUp

    return judged


def _figure(figures: Mapping[str, float], metric: str) -> float:
    if metric not in figures:
        given = ", ".join(name for name in figures if "@" in name)
        raise ConfigError(f"this evaluation gives no {metric}; it gives {given}")
    return float(figures[metric])


def require_optuna() -> None:
    """Import Optuna and silence its own log. Raise if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UsageError(f"a search {needs('optuna')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def run_options(options: SearchOptions) -> RunOptions:
    each = max(1, options.threads // options.jobs)
    return RunOptions(device=options.device, threads=each, kept=False)


def settings_key(settings: Settings) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def quiet(what: str, done: int, total: int) -> None:
    """Shows nothing."""
