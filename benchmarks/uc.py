"""UC-FedRec: how long a training takes, and what batching clients brings.

    sottovoce bench uc [--quick] [--json]

On a GPU: FedGNN on MovieLens 1M until HR@10 on validation reaches 0.84 among 50 candidates, and a
round of 512 clients at once beside the same round one client at a time. On the CPU, and with
--quick: the trade-off between recommendations and hiding gender on MovieLens 100K, and the same
comparison of rounds. Settings are those of the published tables (`reproduce uc-table2`).
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.algorithms.uc.system import UC, one_thread
from sottovoce.algorithms.uc.training import train
from sottovoce.core.cohort import Cohort
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import default_threads
from sottovoce.errors import UsageError
from sottovoce.experiment import load_benchmark
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import environment
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.uc import Facts, Show, UCKind, UCSnapshot, UCTrial, attacked, federated
from sottovoce_papers.uc import run as train_run
from sottovoce_papers.uc_data import AttributeWorld

Progress = Callable[[str], None]
fpl: Any = load_benchmark("fpl")
"""Its way of writing a figure down."""

SETTINGS = "uc-table2"
"""Whose settings are measured."""
WANTED, SECONDS, TIMES, QUICK_SECONDS = 0.84, 600.0, 50.0, 300.0
"""HR@10 to be reached, the most seconds that may take, the least that batching must bring on a GPU,
and the most seconds of the whole trade-off on the CPU."""
PUBLISHED = 357_425.0
"""Seconds of the published code's own log, 2,000 rounds on a GPU, HR@10 0.843 at best."""
BETAS = (0.5, 0.8)


@dataclass(frozen=True)
class Scale:
    """How large the comparison of rounds is."""

    clients: int
    """In a round."""
    alone: int
    """Of them trained one at a time; their time is multiplied."""
    turns: int


GPU, CPU = Scale(512, 16, 5), Scale(512, 16, 3)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    on_gpu = torch.cuda.is_available() and not quick
    if not (on_gpu or quick):
        say("there is no GPU that torch can see; the figures are those of --quick, on the CPU")
    with tempfile.TemporaryDirectory() as folder:
        study = UCBench.opened(Path(folder), "cuda" if on_gpu else "cpu")
        results = gpu(study, say) if on_gpu else cpu(study, say)
    return {"bench": "uc", "machine": machine(study), "results": results}


@dataclass(frozen=True)
class UCBench:
    """The data and settings that are measured."""

    world: AttributeWorld
    cells: Cells

    @classmethod
    def opened(cls, folder: Path, device: str) -> UCBench:
        """Those of the published tables. Nothing that was trained before is used."""
        table = installed(SETTINGS, quick=device == "cpu")
        worlds: Any = StudyFile(SETTINGS, table).worlds
        name = next(iter(worlds))
        return cls(
            worlds[name].world(name), Cells(folder, default_threads(), lambda *done: None, device)
        )

    def trial(self, **settings: Any) -> UCTrial:
        """A system with seed 0. Validation says when a training has arrived, so that its items are
        kept from it."""
        looks = {"final": False, "every": 10 if self.cells.device == "cpu" else 25}
        wanted = {"recommender": "gnn", "choose_from": 0.5, **looks, **settings}
        return UCTrial(self.world, UCKind().prepared(wanted, self.world), 0, self.cells)


def words(trial: UCTrial) -> str:
    """A system's name in rows."""
    return trial.settings.system + (f", β={trial.run.beta:g}" if trial.run.hide else "")


def machine(study: UCBench) -> dict[str, Any]:
    """What the figures were measured on."""
    here = environment()
    found = {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy")},
        "torch": torch.__version__,
    }
    if study.cells.device != "cpu":
        found["gpu"] = torch.cuda.get_device_name(study.cells.device)
    return found


# --- on a GPU ------------------------------------------------------------------------------------


def gpu(study: UCBench, say: Progress) -> list[dict[str, Any]]:
    trial = study.trial()
    say(f"a training on {study.world.title}")
    torch.cuda.reset_peak_memory_stats()
    results = training(trial)
    memory = torch.cuda.max_memory_allocated() / 2**20
    results.append(fpl.row("GPU memory of the training, at most", memory, "MiB"))
    say("rounds at once and one by one")
    return [*results, *rounds(trial, GPU, TIMES)]


@dataclass(slots=True)
class Clock:
    """A trainer that notes the seconds of training up to each look."""

    marks: list[float] = field(default_factory=list)
    looking: float = 0.0

    def __call__(self, trial: UCTrial, show: Show) -> None:
        begun = time.perf_counter()

        def look(snapshot: UCSnapshot) -> None:
            _finished(trial.cells.device)
            at = time.perf_counter()
            self.marks.append(at - begun - self.looking)
            show(snapshot)
            self.looking += time.perf_counter() - at

        federated(trial, look)


def training(trial: UCTrial) -> list[dict[str, Any]]:
    """One full run, the round chosen on validation as in the study."""
    clock = Clock()
    facts: Facts = json.loads(bytes(train_run(trial, clock)["facts"]))
    reached = np.flatnonzero(np.array(facts["validation"]) >= WANTED)
    name = f"{words(trial)} on {trial.world.title}"
    until = f"{name}, training until HR@10 on validation is {WANTED:g}"
    if len(reached):
        first = int(reached[0])
        at, test = clock.marks[first], facts["test"][first]
        until += f" (round {facts['stops'][first]:,}; on test {test:.4f} there)"
    else:
        at = clock.marks[-1]
        until += f" (never; {max(facts['validation']):.4f} at best)"
    arrival = fpl.row(until, at, "s", target=SECONDS, at_most=True)
    chosen = facts["test"][facts["stops"].index(facts["round"])]
    return [
        arrival if len(reached) else arrival | {"met": False},
        fpl.row(f"all {facts['rounds']:,} rounds", clock.marks[-1], "s"),
        fpl.row(f"{len(clock.marks):,} looks at validation and test, not counted above",
                clock.looking, "s"),
        fpl.row(f"HR@10 on test at the chosen round, {facts['round']:,}", chosen, "",
                target=WANTED),
        fpl.row("the published code's own log, another GPU, 2,000 rounds", PUBLISHED, "s"),
    ]  # fmt: skip


# --- on the CPU ----------------------------------------------------------------------------------


def cpu(study: UCBench, say: Progress) -> list[dict[str, Any]]:
    """The base model and two strengths of hiding gender, trained and attacked."""
    begun, worked = time.perf_counter(), processor_time()
    title = study.world.title
    say(f"{title}: the base model")
    trials = [study.trial(guess=["gender"])]
    _ = trials[0].model
    for beta in BETAS:
        say(f"{title}: gender hidden with β = {beta:g}")
        trials.append(study.trial(hide=["gender"], beta=beta, guess=["gender"]))
        _ = trials[-1].model
    say("attackers")
    trained = time.perf_counter() - begun
    results = trade_off(trials)
    whole = time.perf_counter() - begun
    results += [
        fpl.row(f"{len(trials)} trainings with their looks", trained, "s"),
        fpl.row("everything above: trained, measured and attacked", whole, "s",
                target=QUICK_SECONDS, at_most=True),
        fpl.row("the same, processor time", processor_time() - worked, "s"),
        fpl.row("most memory this process held", peak_memory(), "MiB"),
    ]  # fmt: skip
    say("rounds at once and one by one")
    return [*results, *rounds(trials[1], CPU, None)]


def trade_off(trials: Sequence[UCTrial]) -> list[dict[str, Any]]:
    """HR@10 and what attackers learn of gender, each beside the base model's."""
    plain, results = trials[0], []
    found = [trial.result() for trial in trials]
    base, leak = found[0][0].mean("HR@10"), attacked([found[0][1]], "gender")[0]
    for trial, (look, facts) in zip(trials, found, strict=True):
        name, peer = words(trial), None if trial is plain else words(plain)
        what = f"{name}: HR@10 among {trial.world.config.negatives + 1} candidates"
        hr = look.mean("HR@10")
        results.append(fpl.row(what, hr, "", peer=peer, ratio=None if peer is None else hr / base))
        (mine,) = attacked([facts], "gender")
        what = f"{name}: attackers' AUC on gender"
        if peer is None or leak.auc_gain <= 0:
            results.append(fpl.row(what, mine.auc, ""))
        else:
            left = mine.auc_gain / leak.auc_gain
            peer = f"{peer}, both less 0.5"
            results.append(fpl.row(what, mine.auc, "", peer=peer, ratio=left))
    return results


def processor_time() -> float:
    """Seconds of this process and of those it started and that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def peak_memory() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


# --- rounds --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rounds:
    """One round of the same clients: at once, as in training, and one client at a time."""

    algorithm: UC
    view: ModelView
    cohort: Cohort
    rows: NDArray[np.int64]
    place: torch.device

    @classmethod
    def of(cls, trial: UCTrial, clients: int) -> Rounds:
        halves, users = trial.world.halves, trial.world.table.n_users
        rng = Streams.from_seed(trial.seed)
        labels = trial.settings.labels(halves.labels, users)
        federation = Federation.build(
            trial.settings, halves.train, trial.consent, trial.release, rng, labels
        )
        server, willing = federation.server, federation.devices.willing()
        if not isinstance(server.algorithm, UC):
            raise UsageError("only UC-FedRec's rounds are measured here")
        rows = np.sort(willing[server.select(len(willing), min(clients, len(willing)))])
        view, place = server.publish(), torch.device(trial.cells.device)
        return cls(server.algorithm, view, federation.devices.cohort, rows, place)

    def at_once(self) -> NDArray[np.int64]:
        before = self.cohort.vectors[self.rows]
        total, _ = self.algorithm.learn_on(
            self.place, self.view, self.cohort, self.rows, Streams.from_seed(1)
        )
        self.cohort.vectors[self.rows] = before  # the next turn starts from there, too
        return total

    def alone(self, clients: int) -> NDArray[np.int64]:
        """The first so many, by the same local training; the model is unpacked once for all."""
        layout, how = self.algorithm.layout(self.view.items), self.algorithm.training(0)
        model = layout.model(self.view.items, self.cohort.vectors.copy(), self.place)
        total = torch.zeros(self.view.items.shape, dtype=torch.int64, device=self.place)
        rng, priors = Streams.from_seed(1), self.algorithm.priors()
        stream = rng.child("learn", self.view.round)
        with self._threads():
            for row in self.rows[:clients]:
                client = self.algorithm.clients(self.cohort, np.array([row]))
                mask = self.algorithm.masks(self.cohort, np.array([row]), rng).to(self.place)
                total += layout.sums(train(model, client, how, stream, priors, mask))
        found: NDArray[np.int64] = total.cpu().numpy()
        return found

    def _threads(self) -> AbstractContextManager[None]:
        """A single client's operations are too small for several threads."""
        return one_thread() if self.place.type == "cpu" else nullcontext()


def rounds(trial: UCTrial, scale: Scale, target: float | None) -> list[dict[str, Any]]:
    """Both ways take turns; the median counts."""
    work, device = Rounds.of(trial, scale.clients), trial.cells.device
    clients, alone = len(work.rows), min(scale.alone, len(work.rows))
    work.at_once()  # the first time takes longer
    work.alone(1)
    together, single = [], []
    for _ in range(scale.turns):
        together.append(_timed(work.at_once, device))
        single.append(_timed(lambda: work.alone(alone), device) / alone * clients)
    ours, theirs = statistics.median(together), statistics.median(single)
    name = f"a round of {clients:,} clients of {words(trial)}"
    return [
        fpl.row(f"{name}, one at a time ({alone} of them, multiplied)", theirs, "s"),
        fpl.row(f"{name}, at once", ours, "s", peer="the same, one at a time",
                ratio=theirs / ours, target=target),
    ]  # fmt: skip


def _timed(work: Callable[[], object], device: str) -> float:
    _finished(device)
    begun = time.perf_counter()
    work()
    _finished(device)
    return time.perf_counter() - begun


def _finished(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
    print(json.dumps(shown, indent=1, ensure_ascii=False))
