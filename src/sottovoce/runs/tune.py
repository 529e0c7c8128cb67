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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sottovoce.engines.observers import Report
from sottovoce.errors import ConfigError, CorruptData, RunError
from sottovoce.experiment import Experiment
from sottovoce.runs.folder import FINISHED, RunFolder, environment, write_text
from sottovoce.runs.search_cost import Charge, SearchCost, cost_of
from sottovoce.runs.search_trials import (
    SearchOptions,
    SearchWorld,
    Training,
    TrialTask,
    best_of,
    proposed,
    quiet,
    read_metric,
    require_optuna,
    run_trial,
    settings_key,
)
from sottovoce.runs.space import Settings, Space, read_space

KIND = "search"
"""By which a manifest says that its folder is no run."""


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
    options, progress = options or SearchOptions(), report or quiet
    started = time.perf_counter()
    progress("data", 0, 1)
    world = SearchWorld.of(experiment, space, options)
    progress("data", 1, 1)
    folder = RunFolder.claim(out, _manifest(world), resume=True)
    with folder.locked():
        _same_sampler(folder)
        journal = Journal.open(folder.path / "trials.jsonl")
        with workers(world, progress) as train:
            trials = _trials(world, journal, train, progress, started + options.timeout)
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
    try:
        experiment = Experiment.from_table(manifest["experiment"])
        space = read_space(experiment, own=manifest["space"])
        metric, maximise = read_metric(manifest["metric"], experiment.evaluation.cutoffs)
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

Train = Callable[[Sequence[TrialTask]], Iterator[Training]]


def _trials(
    world: SearchWorld, journal: Journal, train: Train, progress: Report, deadline: float
) -> list[Training]:
    """As many as are asked for, or those of the batches that began before the deadline."""
    options, seed = world.options, world.experiment.seed
    ended = 0
    for start in range(0, options.trials, options.batch):
        progress("search", start, options.trials)
        numbers = range(start, min(start + options.batch, options.trials))
        begun = any((n, seed) in journal.done for n in numbers)
        if start and not begun and time.perf_counter() >= deadline:
            break
        past = [journal.done[n, seed] for n in range(start)]
        asked = dict(zip(range(start, start + options.batch), proposed(world, past), strict=True))
        known = {settings_key(one.settings): one for one in reversed(past)}
        tasks = []
        for n in numbers:
            if (n, seed) in journal.done:
                continue
            before = known.get(settings_key(asked[n]))
            if before is not None:  # the same again: there is nothing to learn from it
                journal.add(replace(before, number=n, seconds=0.0, charge=Charge()))
            else:
                tasks.append(TrialTask(n, seed, asked[n], tuple(past) if world.epochs else ()))
        for one in train(tasks):
            if one.number == 0 and one.state == "failed" and not one.why.startswith("diverged"):
                raise ConfigError(one.why)
            journal.add(one)
            left = sum((n, seed) not in journal.done for n in numbers)
            progress("search", numbers[-1] + 1 - left, options.trials)
        journal.sort()
        ended = numbers[-1] + 1
    trials = [journal.done[n, seed] for n in range(ended)]
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
    tasks = [
        TrialTask(a.number, s, a.settings) for a, s in pairs if (a.number, s) not in journal.done
    ]
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

    def train(tasks: Sequence[TrialTask]) -> Iterator[Training]:
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


def _work(task: TrialTask) -> Training:
    return run_trial(_here[0], task)


# --- small things --------------------------------------------------------------------------------


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
        "looks": list(world.epochs),
        "sampler_seed": world.options.sampler_seed,
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
