"""From an experiment to a run: train, evaluate beside the baselines, leave a run folder behind."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import Report as Report
from sottovoce.errors import DataError, RunError, UsageError
from sottovoce.evaluation.protocol import SLAB, Protocol
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.runs.catalogue import cut_catalogue
from sottovoce.runs.devices import DeviceOutcome as DeviceOutcome
from sottovoce.runs.devices import DeviceTopology
from sottovoce.runs.folder import RunFolder, check_writable, environment
from sottovoce.runs.owners import OwnersTopology, check_owner_data, check_owner_options
from sottovoce.runs.owners import SiloOutcome as SiloOutcome
from sottovoce.runs.topology import ActiveRun, Engine, RunOptions, Topology
from sottovoce.runs.topology import RunOutcome as RunOutcome


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    *,
    resume: bool = False,
    threads: int = 1,
    device: str = "cpu",
    engine: Engine = "simulation",
    processes: int | None = None,
    transcript: bool = False,
    report: Report | None = None,
    ranks: Ranks = ALONE,
    dataset: Dataset | None = None,
) -> RunOutcome:
    """Train, evaluate beside the baselines, and write the run folder (if `out` is given).

    Args:
        experiment: What to run.
        out: The folder of the run; without one nothing is written.
        resume: Whether to go on if the folder holds this run already.
        threads: Processors to use.
        device: "cpu", or "cuda" for rounds on a GPU.
        engine: How messages travel. All engines give the same model; "https" and "flower" start
            real processes on this machine, and need `out`.
        processes: Of device agents or gateways, if the engine starts some.
        transcript: Whether to keep every message, so that attacks need not enact rounds again.
        report: Is called with the stage, what is done and what there is to do.
        ranks: With the "distributed" engine, of which ranks this process is one
            (`engines.distributed.joined`). Each calls this with the same arguments, and gets the
            users of its shard.
        dataset: Data in the place of those that the experiment names. The folder keeps a copy of
            them, unless the experiment names what they were loaded by.

    Returns:
        The evaluations by system, the federated one last, and what was trained.

    Example:
        ```python
        from pathlib import Path
        from sottovoce.experiment import find_experiment

        experiment = sv.Experiment.from_file(find_experiment("papers/fpl"))
        outcome = sv.run_experiment(experiment, Path("runs/fpl"), threads=2)
        print(outcome.evaluations[outcome.system].mean("P@10"))
        ```
    """
    started = time.perf_counter()
    progress = report or (lambda what, done, total: None)
    kept = out is not None
    if experiment.seeds:
        raise UsageError(
            f"{experiment.name} has several seeds, and this is a run of one; leave seeds out, or "
            "use run_seeds"
        )
    options = RunOptions(engine, device, processes, threads, transcript, kept, ranks)
    if out is not None:
        check_writable(out)
    for _, baseline in experiment.baselines:
        baseline.check()
    if experiment.silo is not None:
        check_owner_options(experiment.silo, options)
    progress("data", 0, 1)
    ranks.same("versions of packages", json.dumps(environment()["versions"]))
    ranks.same("experiment (its file, --set or seed)", json.dumps(experiment.table, sort_keys=True))
    strange = dataset is not None and not experiment.names(dataset)
    if dataset is None:
        dataset = experiment.dataset(ranks)
    if experiment.silo is not None:
        check_owner_data(experiment, dataset)
    prepared = experiment.prepared(dataset)
    run = begun(prepared, options, progress)
    topology = run.topology
    progress("data", 1, 1)
    run.cut = cut_catalogue(experiment, dataset, topology.split)
    if out is None:
        topology.train(run)
        evaluations, measures = run.judge_all()
    else:
        manifest = manifest_of(experiment, dataset, engine) | topology.manifest()
        ranks.same("data", manifest["identity"])
        run.folder = _claimed(out, manifest, resume, ranks)
        with run.folder.locked(ranks):
            if strange:
                run.folder.keep_data(dataset)
            finished = run.folder.finished
            if finished:
                topology.reopen(run.folder)
            else:
                topology.train(run)
            evaluations, measures = run.judge_all()
            if not finished:
                run.finish(evaluations, measures)
    return topology.outcome(
        measures,
        experiment=experiment,
        dataset=dataset,
        split=topology.split,
        consent=prepared.consent,
        evaluations=evaluations,
        system=experiment.system,
        seconds=time.perf_counter() - started,
        folder=run.folder,
        cut=run.cut,
    )


def begun(
    prepared: PreparedExperiment, options: RunOptions, progress: Report, seed: int | None = None
) -> ActiveRun:
    """A run that is ready to be trained. Sampled candidates are drawn by `seed`, where that is not
    the experiment's own."""
    experiment = prepared.experiment
    kind = DeviceTopology if experiment.silo is None else OwnersTopology
    topology: Topology = kind.of(prepared, options)
    drawn = experiment.seed if seed is None else seed
    protocol = experiment.evaluation.protocol(topology.split, drawn, prepared.dataset.shard)
    check_protocol(protocol, topology.split, options.ranks)
    return ActiveRun(experiment, options, topology, protocol, progress)


def _claimed(out: Path, manifest: dict[str, Any], resume: bool, ranks: Ranks) -> RunFolder:
    """The folder, which the first rank claims and all must see."""
    if ranks.first:
        RunFolder.claim(out, manifest, resume=resume)
        ranks.begun()
    ranks.meet()
    folder = RunFolder.open(out)
    if folder.manifest().get("identity") != manifest["identity"]:
        raise RunError(
            f"{out} is not on rank {ranks.rank} what it is on rank 0; the machines of a run need a "
            "disk in common for its folder"
        )
    return folder


def check_protocol(protocol: Protocol, split: Split, ranks: Ranks = ALONE) -> None:
    """Raises before the training what the evaluation would raise after it."""
    users = np.flatnonzero(split.test.counts)
    if ranks.total(len(users)) == (0,):
        raise DataError(
            "no user has test items, so that nothing could be evaluated; hold out more "
            "(data.test_fraction), or keep users with more items (data.min_user_items)"
        )
    for start in range(0, len(users), SLAB):
        protocol.candidates.draw(split.train, split.test, users[start : start + SLAB])


def manifest_of(experiment: Experiment, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """What is known of a run before it begins."""
    fingerprint = dataset.fingerprint()  # of a shard: that of the whole
    content = json.dumps([experiment.table, fingerprint], sort_keys=True)
    return {
        "identity": hashlib.blake2b(content.encode(), digest_size=16).hexdigest(),
        "engine": engine,
        "name": experiment.name,
        "experiment": experiment.table,
        "seed": experiment.seed,
        "data": {"name": dataset.name, "fingerprint": fingerprint},
        "consent": experiment.consent.words(owners=experiment.silo is not None),
        **environment(),
    }
