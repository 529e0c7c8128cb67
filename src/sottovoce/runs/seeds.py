"""The same experiment with several seeds: one folder, with an ordinary run in it for each seed.

manifest.json    what was run, which seeds, and in the end the mean and spread of every figure
seed-1/          the run of seed 1, as `seed = 1` alone would leave it; and so on
report.html      all of them together

Seeds go one after the other. A run that is stopped goes on in the part where it was.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.engines.observers import Report
from sottovoce.errors import CorruptData, RunError, UsageError
from sottovoce.evaluation.protocol import Evaluation, listed
from sottovoce.evaluation.significance import over_seeds, spread_content
from sottovoce.experiment import MOST_SEEDS, Experiment
from sottovoce.runs.folder import FINISHED, RunFolder, check_writable, environment
from sottovoce.runs.topology import Engine, RunOutcome
from sottovoce.runs.train import run_experiment

SEEDS = "seeds"
"""In a manifest: which ones. Ordinary runs have none."""


@dataclass(frozen=True, slots=True, repr=False)
class SeededOutcome:
    """What several seeds gave."""

    folder: RunFolder
    system: str
    data: str
    by_seed: Mapping[int, Mapping[str, Evaluation]]
    """By seed, by system; the federated one comes last."""
    seconds: float

    def evaluations(self) -> dict[str, Evaluation]:
        """Every system's mean over the seeds."""
        first = next(iter(self.by_seed.values()))
        return {
            system: over_seeds({seed: found[system] for seed, found in self.by_seed.items()})
            for system in first
        }

    def known(self) -> dict[Path, Mapping[str, Evaluation]]:
        """By the folder of each part."""
        return {part_folder(self.folder.path, seed): e for seed, e in self.by_seed.items()}


def run_seeds(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    threads: int = 1,
    device: str = "cpu",
    engine: Engine = "simulation",
    processes: int | None = None,
    transcript: bool = False,
    report: Report | None = None,
    each: Callable[[int, RunOutcome], None] | None = None,
) -> SeededOutcome:
    """Train and evaluate every seed of the experiment, as `run_experiment` does one. `each` is
    called with every seed that is done."""
    check_engine(engine)
    started, tell = time.perf_counter(), report or (lambda what, done, total: None)
    check_writable(out)
    content = json.dumps(experiment.table, sort_keys=True)
    manifest = {
        "identity": hashlib.blake2b(content.encode(), digest_size=16).hexdigest(),
        "engine": engine,
        "name": experiment.name,
        "experiment": experiment.table,
        SEEDS: list(experiment.seeds),
        **environment(),
    }
    for _, baseline in experiment.baselines:
        baseline.check()
    folder = RunFolder.claim(out, manifest, resume=resume)
    found: dict[int, Mapping[str, Evaluation]] = {}
    with folder.locked():
        for number, seed in enumerate(experiment.seeds):
            tell(SEEDS, number, len(experiment.seeds))
            outcome = run_experiment(
                experiment.with_seed(seed),
                part_folder(out, seed),
                resume=True,
                threads=threads,
                device=device,
                engine=engine,
                processes=processes,
                transcript=transcript,
                report=report,
            )
            found[seed] = outcome.evaluations
            if each is not None:
                each(seed, outcome)
        tell(SEEDS, len(experiment.seeds), len(experiment.seeds))
        whole = SeededOutcome(
            folder, outcome.system, outcome.dataset.name, found, time.perf_counter() - started
        )
        means = whole.evaluations()
        if not folder.finished:
            folder.update_manifest(
                status=FINISHED,
                results={system: one.summary() for system, one in means.items()},
                spread={system: spread_content(one) for system, one in means.items()},
                protocol=means[outcome.system].describe(),
            )
    return whole


def check_engine(engine: Engine) -> None:
    """Raises where it cannot go through several seeds: ranks are started for one run."""
    if engine == "distributed":
        raise UsageError(
            "--engine distributed takes one seed at a time; say which with --set seed=1, and leave "
            "seeds out"
        )


def part_folder(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def parts_of(folder: Path) -> dict[int, Path]:
    """The runs in a folder, by seed: itself, or those of its seeds."""
    manifest = RunFolder.open(folder).manifest()
    seeds = _seeds_in(manifest, folder)
    if not seeds:
        seed = manifest.get("seed", 0)
        return {seed if isinstance(seed, int) else 0: folder}
    if manifest.get("status") != FINISHED:
        raise RunError(f"{folder} has not finished; go on with `sottovoce run … --resume`")
    return {seed: part_folder(folder, seed) for seed in seeds}


def part_of(folder: Path, seed: int | None = None) -> Path:
    """The run of one seed in a folder: of this one, or of the first."""
    manifest = RunFolder.open(folder).manifest()
    seeds = _seeds_in(manifest, folder)
    known = seeds or [manifest.get("seed", 0)]
    if seed is not None and seed not in known:
        has = f"the seed{'s' * (len(known) > 1)} {listed(*known)}"
        raise UsageError(f"{folder} has {has}, and not {seed}")
    if not seeds:
        return folder
    return part_folder(folder, seeds[0] if seed is None else seed)


def _seeds_in(manifest: Mapping[str, Any], folder: Path) -> list[int]:
    seeds = manifest.get(SEEDS, [])
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise CorruptData(f"the manifest of {folder} has something else for seeds")
    return seeds


def seeds_asked(text: str, first: int) -> tuple[int, ...]:
    """Of `--seeds`: how many, from the experiment's own on, or which ones (with commas)."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or (len(numbers) == 1 and "," not in text and numbers[0] < 1):
        raise UsageError(f"--seeds wants how many (3) or which ones (1,2,3), not {text!r}")
    if "," in text:
        return tuple(numbers)
    return tuple(range(first, first + min(numbers[0], MOST_SEEDS + 1)))
