"""How good `sottovoce tune` is in 30 trials, beside the best of a grid of 200 points.

    sottovoce bench tune [--quick] [--json]

pFPL+ on three data sets and the embedded town, judged on the validation part alone, both by the
seed of the file. The search may go anywhere between the ends of the grid. benchmarks/README.md says
how to read it. Data sets that are not there are left out; `--quick` is a small grid on a small
town.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sottovoce.core.recommender import default_threads
from sottovoce.data.sources import available
from sottovoce.experiment import Experiment, find_experiment, load_benchmark
from sottovoce.runs.search_trials import (
    SearchOptions,
    SearchWorld,
    Training,
    TrialTask,
    best_of,
    searched_experiment,
)
from sottovoce.runs.space import Settings, read_space
from sottovoce.runs.tune import Journal, search, workers

fpl: Any = load_benchmark("fpl")
Progress = Callable[[str], None]
TARGET = 0.95


@dataclass(frozen=True)
class Grid:
    """Values of the grid; the search has the ranges from the first to the last."""

    learning_rate: tuple[float, ...]
    reg: tuple[float, ...]
    embedding_size: tuple[int, ...]
    rounds: tuple[int, ...]
    trials: int
    searches: int = 1
    """That draw otherwise, and are alike in everything else."""

    def points(self) -> list[Settings]:
        found: list[Settings] = []
        for rate, reg, size, rounds in itertools.product(
            self.learning_rate, self.reg, self.embedding_size, self.rounds
        ):
            found.append(
                {
                    "algorithm.learning_rate": rate,
                    **{f"algorithm.reg_{part}": reg for part in ("user", "positive", "negative")},
                    "algorithm.embedding_size": size,
                    "algorithm.rounds": rounds,
                }
            )
        return found

    def ranges(self) -> list[str]:
        return [
            f"algorithm.learning_rate=log:{self.learning_rate[0]}:{self.learning_rate[-1]}",
            f"algorithm.reg_user+reg_positive+reg_negative=log:{self.reg[0]}:{self.reg[-1]}",
            f"algorithm.embedding_size={','.join(map(str, self.embedding_size))}",
            f"algorithm.rounds={self.rounds[0]}:{self.rounds[-1]}",
        ]


FULL = Grid((0.003, 0.007, 0.015, 0.03, 0.06), (0.001, 0.003, 0.01, 0.03, 0.1), (8, 16, 32, 64),
            (100, 400), 30, 3)  # fmt: skip
QUICK = Grid((0.01, 0.03), (0.003, 0.03), (8, 16), (40, 80), 8)
SETS = {
    "movielens-latest-small": ["data.source=movielens-latest-small"],
    "lastfm-2k": ["data.source=lastfm-2k", "data.split=random"],
    "movielens-100k": ["data.source=movielens-100k"],
    "town": [],
}
TOWN = {"town": ["town.residents=150"]}


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    grid, results = QUICK if quick else FULL, []
    there = TOWN if quick else {name: one for name, one in SETS.items() if name in available()}
    jobs = 1 if quick else default_threads()
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in there.items():
            results += compared(name, settings, grid, Path(folder) / name, jobs, say)
    for row in results:
        if quick:
            row["target"] = row["met"] = None
    return {"bench": "tune", "machine": fpl.machine(), "results": results}


def compared(
    name: str, settings: list[str], grid: Grid, folder: Path, jobs: int, say: Progress
) -> list[dict[str, Any]]:
    """The bests of searches that draw otherwise, beside the best of the grid. What is trained is
    kept in the folder, and taken from there if it is called again."""
    experiment = _experiment(settings, grid.rounds[-1])
    space = read_space(experiment, grid.ranges())
    options = SearchOptions(grid.trials, seeds=1, finalists=1, jobs=jobs, threads=jobs)
    folder.mkdir(parents=True, exist_ok=True)
    trained = whole_grid(name, SearchWorld.of(experiment, space, options), grid, folder, say)
    peer = best_of(trained, 1)[0].value or 0.0
    found = []
    for draw in range(grid.searches):
        say(f"{name}: {grid.trials} trials, search {draw + 1} of {grid.searches}")
        place = folder / f"search-{draw}"
        found.append(search(experiment, space, place, replace(options, sampler_seed=draw)))
    values = sorted(one.best.values[0] for one in found)
    spent = [sum(t.seconds for t in some) for some in (*(one.trials for one in found), trained)]
    metric, points = found[0].metric, f"the best of {len(trained)} points: {peer:.4f}"
    many = "1 search" if len(found) == 1 else f"{len(found)} searches"
    rows: list[dict[str, Any]] = [
        {
            "name": f"{name}: {grid.trials} trials, {which} of {many}", "value": value,
            "unit": metric, "ratio": value / peer, "peer": points,
        }
        for which, value in {"the worst": values[0], "the median": median(values)}.items()
    ]  # fmt: skip
    rows[0] |= {"target": TARGET, "met": rows[0]["ratio"] >= TARGET}
    rows[1] |= {"target": None, "met": None}
    seconds = fmean(spent[:-1])
    return [
        *rows,
        {
            "name": f"{name}: seconds of training in a search", "value": seconds, "unit": "s",
            "peer": f"the grid: {spent[-1]:.0f} s", "ratio": spent[-1] / max(seconds, 1e-9),
            "target": None, "met": None,
        },
    ]  # fmt: skip


def whole_grid(
    name: str, world: SearchWorld, grid: Grid, folder: Path, say: Progress
) -> list[Training]:
    """Every point of the grid, trained once."""
    journal, seed = Journal(folder / "grid.journal", world), world.experiment.seed
    points = grid.points()
    tasks = [
        TrialTask(number, seed, point)
        for number, point in enumerate(points)
        if (number, seed) not in journal.done
    ]
    say(f"{name}: a grid of {len(points)} points")
    with workers(world) as train:
        for one in train(tasks):
            journal.add(one)
    return [journal.done[number, seed] for number in range(len(points))]


def _experiment(settings: list[str], rounds: int) -> Experiment:
    path = find_experiment("tuned/fpl")
    given = [*settings, f"algorithm.rounds={rounds}"]
    return searched_experiment(Experiment.from_file(path, given).table)


if __name__ == "__main__":  # one set, on so many cores: what is trained is kept in a folder
    source, place, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    rows = compared(source, SETS[source], FULL, place, cores, lambda line: print(line))
    (place / "results.json").write_text(json.dumps(rows, indent=1))
    os.write(1, (json.dumps(rows) + "\n").encode())
