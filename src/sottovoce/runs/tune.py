"""A search for good settings of an experiment, by Optuna, on the validation part alone.

manifest.json    what is searched, how, and once it is finished what was found
trials.jsonl     a line for every training: its settings, what it reached by epoch, its seconds
best.toml        the experiment file with the best settings
report.html      tables and figures (figures/ has them as files)

**The test part is never read.** Data are split once, by the seed of the file; a trial learns from
what is left when both parts are taken away, and is judged on the validation part. Other seeds
change what is drawn in training, never the split.

**The same search always ends alike.** Settings are proposed for a whole batch before any of it is
trained, from the trials of earlier batches alone, by a sampler whose seed follows from the
experiment's and the batch's number; a trial is given up by what trials of earlier batches reached
at the same epoch. So it matters neither how many processes train a batch nor which of them is
first, and a search that was stopped, even by a kill, goes on where it was and ends with the same
best trial. A line that a kill cut short is trained again. More trials may be asked for later: those
before stay what they are.

The first trial is the experiment as the file has it, so that a search never ends below it on the
validation part. The best few are trained again with other seeds, and the best of these is the one
with the best mean.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import Report
from sottovoce.errors import ConfigError, CorruptData, Diverged, RunError, UsageError
from sottovoce.evaluation.metrics import every_metric
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.runs.devices import DeviceTopology
from sottovoce.runs.folder import FINISHED, RunFolder, environment, write_text
from sottovoce.runs.search_cost import Charge, SearchCost, charge_of, cost_of
from sottovoce.runs.space import Settings, Space, Value, as_it_is, changed
from sottovoce.runs.topology import RunOptions
from sottovoce.runs.train import begun

if TYPE_CHECKING:
    import optuna

KIND = "search"
"""By which a manifest says that its folder is no run."""
STARTUP = 8
"""Trials whose settings are drawn evenly, before former ones are looked at."""
LADDER = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Where trials are compared on the way, as parts of how long the experiment of the file learns."""
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

    def __post_init__(self) -> None:
        for name in ("trials", "seeds", "finalists", "batch", "jobs", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Training:
    """What came of one training: a line of trials.jsonl."""

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
        table: dict[str, Any] = {
            "number": self.number,
            "seed": self.seed,
            "settings": dict(self.settings),
            "state": self.state,
            "value": self.value,
            "reached": [list(one) for one in self.reached],
            "seconds": round(self.seconds, 3),
            "charge": self.charge.to_table(),
        }
        return table | ({"why": self.why} if self.why else {})

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Training:
        return cls(
            int(line["number"]),
            int(line["seed"]),
            dict(line["settings"]),
            line["state"],
            None if line["value"] is None else float(line["value"]),
            tuple((float(epoch), float(value)) for epoch, value in line["reached"]),
            str(line.get("why", "")),
            float(line["seconds"]),
            Charge.from_table(line["charge"]),
        )


@dataclass(frozen=True, slots=True)
class Task:
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
        metric, maximise = read_metric(options.metric, experiment.evaluation.k)
        prepared = experiment.prepared()
        run = begun(prepared, _run_options(options), _quiet)
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


@dataclass(frozen=True, slots=True)
class Finalist:
    """A trial that was trained with several seeds."""

    number: int
    settings: Settings
    values: tuple[float, ...]
    """By seed, that of the file first."""

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, where there are several."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, slots=True, repr=False)
class SearchOutcome:
    """What a search gave, beside its folder."""

    folder: RunFolder
    experiment: Experiment
    """As it was searched: on the validation part, without baselines."""
    space: Space
    metric: str
    maximise: bool
    trials: tuple[Training, ...]
    again: tuple[Training, ...]
    """Of finalists, with other seeds."""
    finalists: tuple[Finalist, ...]
    """The best one first."""
    cost: SearchCost
    seconds: float

    @property
    def best(self) -> Finalist:
        return self.finalists[0]


def searched_experiment(table: Mapping[str, Any]) -> Experiment:
    """The experiment of a file as trials run it: on the validation part, without baselines."""
    kept = {name: value for name, value in table.items() if name not in ("baselines", "search")}
    kept["data"] = {**kept.get("data", {}), "part": "validation"}
    kept["evaluation"] = {**kept.get("evaluation", {}), "every_epochs": 0}
    return Experiment.from_table(kept)


def read_metric(asked: str, k: int) -> tuple[str, bool]:
    """The metric by which trials are judged, and whether more of it is better."""
    known = {f"{one.key()}@{k}": one for one in every_metric()}
    name = asked or f"NDCG@{k}"
    if name not in known:
        raise UsageError(
            f"evaluation gives no {name}; there are {', '.join(known)} (evaluation.k sets the "
            "cut-off)"
        )
    best = known[name].best
    if best is None:
        raise UsageError(f"more {name} is neither better nor worse; name another metric")
    return name, best == "max"


def search(
    experiment: Experiment,
    space: Space,
    out: Path,
    options: SearchOptions | None = None,
    *,
    report: Report | None = None,
) -> SearchOutcome:
    """Search, or go on with the same search in this folder; `experiment` is that of
    `searched_experiment`. Raises where the folder holds another one."""
    require_optuna()
    options, progress = options or SearchOptions(), report or _quiet
    started = time.perf_counter()
    progress("data", 0, 1)
    world = SearchWorld.of(experiment, space, options)
    progress("data", 1, 1)
    folder = RunFolder.claim(out, _manifest(world), resume=True)
    with folder.locked():
        _same_sampler(folder)
        journal = Journal.open(folder.path / "trials.jsonl")
        with workers(world, progress) as train:
            trials = _trials(world, journal, train, progress)
            finalists = _finals(world, trials, journal, train, progress)
        again = journal.others(experiment.seed)
        cost = cost_of([*trials, *again])
        before = float(folder.manifest().get("seconds", 0.0))
        seconds = before + time.perf_counter() - started
        found = SearchOutcome(
            folder, experiment, space, world.metric, world.maximise, tuple(trials), tuple(again),
            tuple(finalists), cost, seconds,
        )  # fmt: skip
        folder.update_manifest(status=FINISHED, seconds=round(seconds, 3), search=summary_of(found))
    return found


def is_search(path: Path) -> bool:
    """Whether a folder is that of a search."""
    there = (path / "manifest.json").is_file()
    return there and RunFolder.open(path).manifest().get("kind") == KIND


def reopened(path: Path) -> SearchOutcome:
    """A finished search, from its folder."""
    folder = RunFolder.open(path)
    manifest = folder.manifest()
    if manifest.get("kind") != KIND:
        raise RunError(f"{path} is not the folder of a search")
    if not folder.finished:
        raise RunError(f"the search in {path} has not finished; go on with the same command")
    from sottovoce.runs.space import read_space

    try:
        experiment = Experiment.from_table(manifest["experiment"])
        space = read_space(experiment, own=manifest["space"])
        metric, maximise = read_metric(manifest["metric"], experiment.evaluation.k)
        journal = Journal.open(folder.path / "trials.jsonl")
        summary, seconds = manifest["search"], float(manifest["seconds"])
        trials = [journal.done[n, experiment.seed] for n in range(int(summary["trials"]))]
        finalists = tuple(
            Finalist(int(one["number"]), one["settings"], tuple(one["values"]))
            for one in summary["finalists"]
        )
        again = journal.others(experiment.seed)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{path} is no whole search: {error}") from None
    return SearchOutcome(
        folder, experiment, space, metric, maximise, tuple(trials), tuple(again), finalists,
        cost_of([*trials, *again]), seconds,
    )  # fmt: skip


def summary_of(found: SearchOutcome) -> dict[str, Any]:
    """What a search has found, for its manifest and for JSON."""
    states = [one.state for one in found.trials]
    best = found.best

    def told(one: Finalist) -> dict[str, Any]:
        return {
            "number": one.number, "settings": dict(one.settings), "values": list(one.values),
            "mean": one.mean, "spread": one.spread,
        }  # fmt: skip

    return {
        "metric": found.metric,
        "trials": len(found.trials),
        **{state: states.count(state) for state in ("finished", "pruned", "failed")},
        "as_in_file": found.trials[0].value,
        "best": told(best) | {"value": best.values[0]},
        "finalists": [told(one) for one in found.finalists],
        "cost": found.cost.to_table(),
    }


# --- the journal ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Journal:
    """What is trained, on disk line by line."""

    path: Path
    done: dict[tuple[int, int], Training]
    """By number and seed."""

    @classmethod
    def open(cls, path: Path) -> Journal:
        """With what is whole in the file; a line that a kill cut short is dropped from it."""
        done: dict[tuple[int, int], Training] = {}
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                one = Training.from_line(json.loads(line))
                done[one.number, one.seed] = one
        journal = cls(path, done)
        if text.count("\n") != len(done) or not text.endswith("\n"):
            journal.sort()
        return journal

    def others(self, seed: int) -> list[Training]:
        """With other seeds than this."""
        return [self.done[key] for key in sorted(self.done) if key[1] != seed]

    def add(self, one: Training) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(one.to_line()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[one.number, one.seed] = one

    def sort(self) -> None:
        """By number, so that the file does not tell which process was first."""
        lines = [json.dumps(self.done[key].to_line()) + "\n" for key in sorted(self.done)]
        write_text(self.path, "".join(lines))


# --- the trials ----------------------------------------------------------------------------------

Train = Callable[[Sequence[Task]], Iterator[Training]]


def _trials(world: SearchWorld, journal: Journal, train: Train, progress: Report) -> list[Training]:
    options, seed = world.options, world.experiment.seed
    for start in range(0, options.trials, options.batch):
        progress("search", start, options.trials)
        past = [journal.done[n, seed] for n in range(start)]
        numbers = range(start, min(start + options.batch, options.trials))
        asked = dict(zip(range(start, start + options.batch), proposed(world, past), strict=True))
        known = {_key(one.settings): one for one in reversed(past)}
        tasks = []
        for n in numbers:
            if (n, seed) in journal.done:
                continue
            before = known.get(_key(asked[n]))
            if before is not None:  # the same again: there is nothing to learn from it
                journal.add(replace(before, number=n, seconds=0.0, charge=Charge()))
            else:
                tasks.append(Task(n, seed, asked[n], tuple(past) if world.epochs else ()))
        for one in train(tasks):
            if one.number == 0 and one.state == "failed" and not one.why.startswith("diverged"):
                raise ConfigError(one.why)
            journal.add(one)
            left = sum((n, seed) not in journal.done for n in numbers)
            progress("search", numbers[-1] + 1 - left, options.trials)
        journal.sort()
    trials = [journal.done[n, seed] for n in range(options.trials)]
    if not any(one.state == "finished" for one in trials):
        why = next((one.why for one in trials if one.why), "")
        raise RunError(f"no trial has come to its end: {why or 'all were given up'}")
    return trials


def _finals(
    world: SearchWorld,
    trials: Sequence[Training],
    journal: Journal,
    train: Train,
    progress: Report,
) -> list[Finalist]:
    """The best trials with all their seeds, the best mean first."""
    options, seed = world.options, world.experiment.seed
    chosen = best_of(trials, options.finalists, maximise=world.maximise)
    seeds = [seed + k for k in range(1, options.seeds)]
    pairs = [(one, other) for one in chosen for other in seeds]
    tasks = [Task(a.number, s, a.settings) for a, s in pairs if (a.number, s) not in journal.done]
    progress("finalists", len(pairs) - len(tasks), max(1, len(pairs)))
    for count, one in enumerate(train(tasks), start=1):
        journal.add(one)
        progress("finalists", len(pairs) - len(tasks) + count, len(pairs))
    journal.sort()
    found = []
    for one in chosen:
        values = [one.value, *(journal.done[one.number, other].value for other in seeds)]
        whole = tuple(value for value in values if value is not None)
        if len(whole) == len(values):  # none has diverged
            found.append(Finalist(one.number, one.settings, whole))
    if not found:
        raise RunError(
            "no finalist comes to its end with every seed; search in narrower ranges, or with "
            "--seeds 1"
        )
    found.sort(key=lambda one: (world.better(one.mean), one.number))
    return found


def best_of(trials: Sequence[Training], count: int, *, maximise: bool = True) -> list[Training]:
    """The best trials that went to their end, of equal settings one, the earlier first."""
    ended = [one for one in trials if one.state == "finished" and one.value is not None]
    ended.sort(key=lambda one: ((-1 if maximise else 1) * (one.value or 0.0), one.number))
    distinct: dict[str, Training] = {}
    for one in ended:
        distinct.setdefault(_key(one.settings), one)
    return list(distinct.values())[:count]


def proposed(world: SearchWorld, past: Sequence[Training]) -> list[dict[str, Value]]:
    """Settings for the batch that follows on these trials: a function of them alone."""
    import optuna

    batch, start = world.options.batch, len(past)
    key = world.experiment.streams().child("search", start // batch).key
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=key % 2**32
    )
    study, own = _study(world, past, sampler), as_in_file(world)
    found = []
    for n in range(start, start + batch):
        if n == 0:
            if (inside := world.space.inside(own)) is not None:
                study.enqueue_trial(inside)
                study.ask(world.space.distributions())
            found.append({})
        else:
            found.append(world.space.settings(study.ask(world.space.distributions()).params))
    return found


def as_in_file(world: SearchWorld) -> dict[str, Any]:
    """What is searched as the experiment has it."""
    names = [name for one in world.space.ranges for name in one.settings]
    return {name: as_it_is(world.experiment, name) for name in names}


def _study(
    world: SearchWorld, past: Sequence[Training], sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    """Former trials as Optuna knows them, those alone that the space has."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize" if world.maximise else "minimize",
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
    )
    distributions = world.space.distributions()
    for one in past:
        inside = world.space.inside({**as_in_file(world), **one.settings})
        if inside is None:
            continue
        ended = one.state == "finished"
        state = optuna.trial.TrialState.COMPLETE if ended else optuna.trial.TrialState.PRUNED
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=one.value if ended else None,
                params=dict(inside),
                distributions=distributions,
                intermediate_values={_step(world, epoch): v for epoch, v in one.reached},
            )
        )
    return study


def _step(world: SearchWorld, epoch: float) -> int:
    """At which place of the ladder an epoch is."""
    return min(range(len(world.epochs)), key=lambda k: abs(world.epochs[k] - epoch), default=0)


class _GivenUp(Exception):
    """A trial is worse than others were by then."""


def run_trial(world: SearchWorld, task: Task, progress: Report | None = None) -> Training:
    """One training, to its end or until it is given up."""
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
        run = begun(prepared, _run_options(world.options), progress or _quiet, seed)
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
    seconds = time.perf_counter() - started
    return Training(
        task.number, task.seed, task.settings, state, value, tuple(reached), why, seconds, charge
    )


def _judge(
    world: SearchWorld, task: Task, reached: list[tuple[float, float]]
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


# --- processes -----------------------------------------------------------------------------------

_here: list[SearchWorld] = []
"""In a process of a search: what all its trials share."""


@contextlib.contextmanager
def workers(world: SearchWorld, progress: Report) -> Iterator[Train]:
    """Who trains: this process, or several that end with it, however it ends."""
    jobs = world.options.jobs
    if jobs == 1:
        yield lambda tasks: (run_trial(world, task, progress) for task in tasks)
        return
    spawn = get_context("spawn")
    ends, mine = spawn.Pipe(duplex=False)
    table = json.dumps(dict(world.experiment.table))
    given = (ends, table, world.space, world.options)
    pool = ProcessPoolExecutor(jobs, spawn, _begin, given)

    def train(tasks: Sequence[Task]) -> Iterator[Training]:
        try:
            for done in as_completed([pool.submit(_work, task) for task in tasks]):
                yield done.result()
        except BrokenProcessPool:
            raise RunError(
                "a process of the search has ended, perhaps for want of memory; fewer --jobs need "
                "less, and the same command goes on"
            ) from None

    try:
        yield train
    except BaseException:
        mine.close()  # which ends those that are at work
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        mine.close()


def _begin(ends: Connection, table: str, space: Space, options: SearchOptions) -> None:
    """A process of a search begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that asks for trials answers it

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            ends.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _here.append(SearchWorld.of(Experiment.from_table(json.loads(table)), space, options))


def _work(task: Task) -> Training:
    return run_trial(_here[0], task)


# --- small things --------------------------------------------------------------------------------


def require_optuna() -> None:
    """Raises where it is missing."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UsageError(
            "a search needs optuna, which is not installed; install it with: "
            "pip install 'sottovoce[tune]'"
        ) from None


def _run_options(options: SearchOptions) -> RunOptions:
    each = max(1, options.threads // options.jobs)
    return RunOptions(device=options.device, threads=each, kept=False)


def _manifest(world: SearchWorld) -> dict[str, Any]:
    import optuna

    data = world.dataset
    content: dict[str, Any] = {
        "kind": KIND,
        "experiment": dict(world.experiment.table),
        "data": {"name": data.name, "fingerprint": data.fingerprint()},
        "space": world.space.words(),
        "metric": world.metric,
        "batch": world.options.batch,
        "prune": world.options.prune,
    }
    identity = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16)
    known = environment()
    known["versions"]["optuna"] = optuna.__version__
    return {
        **content,
        "identity": identity.hexdigest(),
        "name": world.experiment.name,
        "seed": world.experiment.seed,
        **known,
    }


def _same_sampler(folder: RunFolder) -> None:
    import optuna

    before = folder.manifest().get("versions", {}).get("optuna", optuna.__version__)
    if before != optuna.__version__:
        raise RunError(
            f"{folder.path} was begun with Optuna {before}, and {optuna.__version__} may propose "
            "other settings; install that one, or choose another --out"
        )


def _key(settings: Settings) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def _quiet(what: str, done: int, total: int) -> None:
    """Shows nothing."""


__all__ = [
    "Finalist", "SearchOptions", "SearchOutcome", "SearchWorld", "Training", "best_of", "proposed",
    "read_metric", "reopened", "run_trial", "search", "searched_experiment", "summary_of",
]  # fmt: skip
