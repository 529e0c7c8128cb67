"""A search for good settings of an experiment, by Optuna, on the validation part alone.

manifest.json    what is searched, how, and once it is finished what was found
trials.journal   a line for every training, in Optuna's journal: its settings, what it reached by
                 epoch, its seconds, what it would have cost a user
best.toml        the experiment file with the best settings
report.html      tables and figures (figures/ has them as files)

**The test part is never read.** Data are split once, by the seed of the file; a trial learns from
what is left when both parts are taken away, and is judged on the validation part. Other seeds
change what is drawn in training, never the split.

**The same search always ends alike.** Settings are proposed for a whole batch before any of it is
trained, from the trials of earlier batches alone, by a sampler whose seed follows from the
experiment's and the batch's number; a trial is pruned by what trials of earlier batches reached at
the same epoch. So neither the number of processes nor their order matters, and a search that was
stopped, even by a kill, goes on and ends with the same best trial. A line that a kill cut short is
trained again. More trials may be asked for later: those before stay what they are.

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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
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
from sottovoce.runs.folder import FINISHED, RunFolder, environment
from sottovoce.runs.search_cost import Charge, SearchCost, cost_of
from sottovoce.runs.search_trials import (
    SearchOptions,
    SearchWorld,
    Training,
    TrialTask,
    as_trial,
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
"""The kind in a manifest whose folder is no run."""
JOURNAL = "trials.journal"

Train = Callable[[Sequence[TrialTask]], Iterator[Training]]
Keep = Callable[[Sequence[TrialTask]], None]


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
        """The standard deviation over seeds, if there are several."""
        return stdev(self.values) if len(self.values) > 1 else None

    def to_table(self) -> dict[str, Any]:
        return {
            "number": self.number, "settings": dict(self.settings), "values": list(self.values),
            "mean": self.mean, "spread": self.spread,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class SearchOutcome:
    """What a search found, with its folder."""

    folder: RunFolder
    experiment: Experiment
    """As it was searched: on the validation part, without baselines."""
    space: Space
    metric: str
    maximise: bool
    trials: tuple[Training, ...]
    again: tuple[Training, ...]
    """Trainings of finalists with other seeds."""
    finalists: tuple[Finalist, ...]
    """The best one first."""
    seconds: float

    @property
    def best(self) -> Finalist:
        return self.finalists[0]

    @property
    def cost(self) -> SearchCost:
        return cost_of([*self.trials, *self.again])


def search(
    experiment: Experiment,
    space: Space,
    out: Path,
    options: SearchOptions | None = None,
    *,
    report: Report | None = None,
) -> SearchOutcome:
    """Search, or continue the same search in this folder; `experiment` is that of
    `searched_experiment`. Raise if the folder holds another search."""
    require_optuna()
    options, tell = options or SearchOptions(), report or quiet
    started = time.perf_counter()
    tell("data", 0, 1)
    world = SearchWorld.of(experiment, space, options)
    tell("data", 1, 1)
    folder = RunFolder.claim(out, _manifest(world), resume=True)
    with folder.locked():
        _same_sampler(folder)
        journal = Journal(folder.path / JOURNAL, world)
        with workers(world) as train:
            keep = _kept(train, journal, options, tell)
            trials = _trials(world, journal, keep, started + options.timeout)
            finalists = _finals(world, trials, journal, keep)
        seconds = float(folder.manifest().get("seconds", 0.0)) + time.perf_counter() - started
        found = SearchOutcome(
            folder, experiment, space, world.metric, world.maximise, tuple(trials),
            tuple(journal.others(experiment.seed)), tuple(finalists), seconds,
        )  # fmt: skip
        folder.update_manifest(status=FINISHED, seconds=round(seconds, 3), search=summary_of(found))
    return found


def is_search(path: Path) -> bool:
    """Return whether a folder is that of a search."""
    there = (path / "manifest.json").is_file()
    return there and RunFolder.open(path).manifest().get("kind") == KIND


def reopened(path: Path) -> SearchOutcome:
    """Read a finished search from its folder."""
    require_optuna()
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
        summary, seconds = manifest["search"], float(manifest["seconds"])
        journal = Journal(folder.path / JOURNAL)
        trials = [journal.done[n, experiment.seed] for n in range(int(summary["trials"]))]
        finalists = [
            Finalist(int(one["number"]), one["settings"], tuple(one["values"]))
            for one in summary["finalists"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{path} is no whole search: {error}") from None
    return SearchOutcome(
        folder, experiment, space, metric, maximise, tuple(trials),
        tuple(journal.others(experiment.seed)), tuple(finalists), seconds,
    )  # fmt: skip


def summary_of(found: SearchOutcome) -> dict[str, Any]:
    """Return what a search has found, for its manifest and for JSON."""
    states = [one.state for one in found.trials]
    return {
        "metric": found.metric,
        "trials": len(found.trials),
        **{state: states.count(state) for state in ("finished", "pruned", "failed")},
        "as_in_file": found.trials[0].value,
        "best": found.best.to_table() | {"value": found.best.values[0]},
        "finalists": [one.to_table() for one in found.finalists],
        "cost": found.cost.to_table(),
    }


class Journal:
    """The trainings of a search, in a journal of Optuna. Each is one line, whole or not there."""

    def __init__(self, path: Path, world: SearchWorld | None = None) -> None:
        """Open it with what is whole in it; without a `world` it is only read."""
        import optuna
        from optuna.storages import journal

        self.world, self.done = world, dict[tuple[int, int], Training]()
        """By number and seed."""
        backend = journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
        if world is not None:  # a killed process leaves half a line, and a lock to wait for
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        try:
            storage = optuna.storages.JournalStorage(backend)
            if world is not None and not storage.get_all_studies():
                ways = optuna.study.StudyDirection
                way = ways.MAXIMIZE if world.maximise else ways.MINIMIZE
                optuna.create_study(storage=storage, study_name=KIND, direction=way)
            self.study = optuna.load_study(storage=storage, study_name=KIND)
            for line in (one.user_attrs for one in self.study.get_trials(deepcopy=False)):
                self._keep(Training.from_line(line))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"{path} is no whole journal: {error}") from None

    def add(self, one: Training) -> None:
        if self.world is None:
            raise RunError("this journal was opened to be read")
        self.study.add_trial(as_trial(self.world, one))
        self._keep(one)

    def _keep(self, one: Training) -> None:
        self.done[one.number, one.seed] = one

    def others(self, seed: int) -> list[Training]:
        """Return the trainings with other seeds than this."""
        return [self.done[key] for key in sorted(self.done) if key[1] != seed]


def _kept(train: Train, journal: Journal, options: SearchOptions, tell: Report) -> Keep:
    """Return what trains and keeps. All trainings of the search are reported as one stage: what is
    left is then left of the whole command, and what an earlier call has done is not counted as
    quick."""
    total = options.trials + min(options.finalists, options.trials) * (options.seeds - 1)

    def keep(tasks: Sequence[TrialTask]) -> None:
        tell("search", min(len(journal.done), total), total)
        for one in train(tasks):
            if one.number == 0 and one.state == "failed" and not one.why.startswith("diverged"):
                raise ConfigError(one.why)
            journal.add(one)
            tell("search", min(len(journal.done), total), total)

    return keep


def _trials(world: SearchWorld, journal: Journal, keep: Keep, deadline: float) -> list[Training]:
    """Train as many as are asked for, or those of the batches that began before the deadline."""
    options, seed, trials = world.options, world.experiment.seed, list[Training]()
    for start in range(0, options.trials, options.batch):
        numbers = range(start, min(start + options.batch, options.trials))
        missing = [n for n in numbers if (n, seed) not in journal.done]
        if start and len(missing) == len(numbers) and time.perf_counter() >= deadline:
            break
        asked, tasks = proposed(world, trials) if missing else [], []
        known = {settings_key(one.settings): one for one in reversed(trials)}
        for n in missing:
            before = known.get(settings_key(asked[n - start]))
            if before is not None:  # the same again: there is nothing to learn from it
                journal.add(replace(before, number=n, seconds=0.0, charge=Charge()))
            else:
                past = tuple(trials) if world.epochs else ()
                tasks.append(TrialTask(n, seed, asked[n - start], past))
        keep(tasks)
        trials += [journal.done[n, seed] for n in numbers]
    if not any(one.state == "finished" for one in trials):
        why = next((one.why for one in trials if one.why), "")
        raise RunError(f"no trial has come to its end: {why or 'all were given up'}")
    return trials


def _finals(
    world: SearchWorld, trials: Sequence[Training], journal: Journal, keep: Keep
) -> list[Finalist]:
    """Return the best trials with all their seeds, the best mean first."""
    options, seed = world.options, world.experiment.seed
    chosen = best_of(trials, options.finalists, maximise=world.maximise)
    seeds = [seed + k for k in range(1, options.seeds)]
    tasks = [TrialTask(one.number, s, one.settings) for one in chosen for s in seeds]
    keep([one for one in tasks if (one.number, one.seed) not in journal.done])
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
def workers(world: SearchWorld) -> Iterator[Train]:
    """Give what trains: this process, or several that end with it, however it ends."""
    jobs = world.options.jobs
    if jobs == 1:
        yield lambda tasks: (run_trial(world, task) for task in tasks)
        return
    spawn = get_context("spawn")
    ends, mine = spawn.Pipe(duplex=False)
    table = json.dumps(dict(world.experiment.table))
    pool = ProcessPoolExecutor(jobs, spawn, _begin, (ends, table, world.space, world.options))

    def results(asked: Sequence[Future[Any]]) -> Iterator[Any]:
        try:
            for one in as_completed(asked):
                yield one.result()
        except BrokenProcessPool:
            raise RunError(
                "a process of the search has ended, perhaps for want of memory; fewer --jobs need "
                "less, and the same command goes on"
            ) from None

    try:
        # All of them start before anything is timed.
        deque(results([pool.submit(os.getpid) for _ in range(jobs)]), maxlen=0)
        yield lambda tasks: results([pool.submit(_work, task) for task in tasks])
    except BaseException:
        mine.close()  # which ends those that are at work
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        mine.close()


def _begin(ends: Connection, table: str, space: Space, options: SearchOptions) -> None:
    """Prepare a process of a search."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that asks for trials answers it

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            ends.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    require_optuna()
    _here.append(SearchWorld.of(Experiment.from_table(json.loads(table)), space, options))


def _work(task: TrialTask) -> Training:
    return run_trial(_here[0], task)


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
