"""The cost model beside real runs: what it says before, and what rounds then take.

    sottovoce bench plan [--quick] [--json]
    python benchmarks/plan.py --calibrate FILE.toml [ALGORITHM ...]

For each algorithm constants are measured on small worlds, and worlds of three larger sizes are run,
each in a process of its own, on one thread. A figure is what the plan says; the ratio is to what
was seen. Targets: time within a factor of 2, memory within 25 %, bytes of messages within 1 % where
they depend on draws, and exact elsewhere. Seconds are processor time, or those on the wall where
these are fewer; memory is the most that a process held while it ran (VmHWM).

`--calibrate` writes the constants that come with the package: of several experiments for each
algorithm, so that kinds of operations can be told apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.errors import DataNotFound
from sottovoce.experiment import Experiment, find_experiment, load_benchmark
from sottovoce.runs import measuring
from sottovoce.runs import plan as planning

Progress = Callable[[str], None]
fpl: Any = load_benchmark("fpl")
"""Its way of writing a figure down."""

FILES: dict[str, tuple[str, ...]] = {
    "pFPL+": ("presets/pfpl-plus",),
    "pFPL": ("presets/pfpl",),
    "sFPL": ("presets/sfpl",),
    "FCF": ("presets/fcf", "consent.share_positives=1.0"),
    "FMF-LDP": ("presets/fmf-published",),
    "gram": ("sound/gram",),
    "UC-FedRec": ("uc/town-mf",),
    "DRIFT": ("drift/movielens-100k",),
}
"""By system: the experiment and its settings."""
SMALL = (1_000, 8_000, 32_000)
SIZES = (64_000, 128_000, 256_000)
QUICK = (48_000,)
CALIBRATED = (2_000, 32_000)
MORE: dict[str, tuple[tuple[str, ...], ...]] = {
    "fpl": (
        ("presets/pfpl-plus", "algorithm.embedding_size=50"),
        ("presets/sfpl-plus",),
        ("presets/pfpl-plus", "algorithm.triples=100", "algorithm.configuration="),
        ("presets/pfpl-plus", "town.venues=3000"),
    ),
    "fcf": (
        ("presets/fcf", "algorithm.embedding_size=40"),
        ("presets/fcf", "town.venues=3000"),
    ),
    "fmf": (
        ("presets/fmf",),
        ("presets/fmf-published", "algorithm.embedding_size=32"),
        ("presets/fmf-published", "data.source=movielens-100k", "release.max_reports=20"),
    ),
    "gram": (
        ("sound/gram", "algorithm.most_head=200"),
        ("sound/gram", "data.source=movielens-100k"),
    ),
    "uc": (
        ("uc/town-mf", "algorithm.embedding_size=16"),
        ("uc/town-mf", "algorithm.cohort_size=64"),
        ("uc/town-mf", "algorithm.local_epochs=2"),
    ),
}
"""What else an algorithm's constants are fitted to."""


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    results: list[dict[str, Any]] = []
    for system, (name, *settings) in FILES.items():
        say(f"{system}: constants")
        experiment = Experiment.from_file(find_experiment(name), settings)
        try:
            crowd = planning.UsersAlike.of(experiment.prepared())
        except DataNotFound as error:
            say(f"{system} is left out: {error}")
            continue
        small = [_called("--real", str(size), name, *settings) for size in SMALL]
        constants = planning.Constants({experiment.algorithm.name: _fitted(small)})
        for size in QUICK if quick else SIZES:
            if small[-1]["seconds"] * small[-1]["rounds"] * size / SMALL[-1] > 60.0:
                continue  # of that the rest of a day could be made
            say(f"{system}: {size:,} devices")
            seen = _called("--real", str(size), name, *settings)
            said = planning.planned(experiment, crowd, planning.Where(size), constants)
            results += beside(f"{system}, {size:,} devices", said, seen)
    return {"bench": "plan", "machine": machine(), "results": results}


def beside(what: str, said: planning.RunPlan, seen: dict[str, Any]) -> list[dict[str, Any]]:
    """What the plan said, and its ratio to what was seen."""
    # It was run for a few rounds, without a checkpoint: their ledger rows are all there.
    rows = said.pending_bytes / said.pending_rounds * seen["rounds"]
    memory = (said.rank_bytes or 0.0) - said.pending_bytes + rows
    figures = (
        ("a round", said.seconds_round, seen["seconds"], "s", (0.5, 2.0)),
        ("memory", memory, seen["peak"], "bytes", (0.8, 1.25)),
        ("bytes of a message", said.up, seen["up"], "bytes", (0.99, 1.01)),
    )
    found = []
    for name, planned, measured, unit, (low, high) in figures:
        ratio = planned / measured
        most = said.largest and unit == "bytes" and name != "memory"
        one = fpl.row(f"{what}: {name}", planned, unit, peer=f"seen: {measured:.4g}", ratio=ratio)
        one["target"] = high
        one["met"] = ratio >= low if most else low <= ratio <= high
        found.append(one)
    return found


def machine() -> dict[str, Any]:
    return {**fpl.machine(), "timing": "processor time of one thread, or on the wall; best of 3"}


def _fitted(samples: list[dict[str, Any]]) -> planning.MeasuredCosts:
    process = min(one["process"] for one in samples)
    return measuring.fit(
        [measuring.RunSample.of(one["sample"]) for one in samples], process, "here"
    )


def _called(*arguments: str) -> Any:
    """What a process of its own says."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


def _real(devices: int, name: str, settings: list[str]) -> None:
    """What a world takes; the histories are there before."""
    experiment = Experiment.from_file(find_experiment(name), settings)
    prepared = experiment.prepared()
    measuring.run_sample(prepared, 600)  # compiles
    process = _peak()
    world = measuring.repeated(prepared, devices)
    _forget_peak()
    seen = measuring.SampledRun.of(world, keep_rows=True)
    seen.run()
    peak = _peak()
    del seen
    sample = measuring.run_sample(prepared, devices)
    print(json.dumps({
        "seconds": sample.seconds, "up": sample.up, "peak": peak, "process": process,
        "rounds": sample.rounds, "sample": sample.to_table(),
    }))  # fmt: skip


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _calibrate(path: Path, only: list[str]) -> None:
    """The constants of every algorithm, or of these, each fitted to all of its experiments."""
    before = planning.Constants.load()
    found = dict(before.algorithms)
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for name, *settings in FILES.values():
        algorithm = Experiment.from_file(find_experiment(name), settings).algorithm.name
        by_name.setdefault(algorithm, []).append((name, *settings))
    for algorithm, files in by_name.items():
        if only and algorithm not in only:
            continue
        print(algorithm, file=sys.stderr)
        seen = _called("--samples", json.dumps([*files, *MORE.get(algorithm, ())]))
        samples = [measuring.RunSample.of(one) for one in seen["samples"]]
        found[algorithm] = measuring.fit(samples, seen["process"], measuring.this_machine())
        planning.Constants(found, before.gpus, before.thread_gain, before.ledger_bytes).save(path)


def _samples(files: list[list[str]]) -> None:
    process, samples = 0.0, []
    for name, *settings in files:
        prepared = Experiment.from_file(find_experiment(name), settings).prepared()
        measuring.run_sample(prepared, 600)  # compiles
        process = process or _peak()
        for size in CALIBRATED:
            print(f"  {name} {settings} {size:,}", file=sys.stderr)
            samples.append(measuring.run_sample(prepared, size).to_table())
    print(json.dumps({"process": process, "samples": samples}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--real"]:
        _real(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    elif sys.argv[1:2] == ["--samples"]:
        _samples(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == ["--calibrate"]:
        _calibrate(Path(sys.argv[2]), sys.argv[3:])
    else:
        shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(shown, indent=1, ensure_ascii=False))
