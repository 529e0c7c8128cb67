"""What every way from an experiment to a run shares: checks, the manifest, and what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce.core.consent import Consent
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.trial import Trial, TrialWorld, folder_of, trial_rules
from sottovoce.errors import ConfigError, DataError
from sottovoce.evaluation.protocol import SLAB, Evaluation, Protocol
from sottovoce.experiment import Experiment
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import RunFolder, check_writable, environment
from sottovoce.wire.terms import Terms

# Which engine runs an experiment, and what it is given.

Engine = Literal["simulation", "https", "flower"]
MOST_DEVICES = 512
_TRIALS = {"https": "sottovoce.services.trial", "flower": "sottovoce.engines.flower.trial"}
"""Users of a trial: each is a device with a store of its own."""
_OPEN_TO_GATEWAYS = (
    "in a secure sum every device masks its own update, and Flower's gateways see the updates of "
    "the devices they host; use --engine https or --engine simulation"
)


def check_engine(
    engine: Engine,
    device: str,
    users: int,
    *,
    kept: bool,
    proxied: bool = False,
    summed: bool = False,
    defended: bool = False,
) -> None:
    """Raises where an engine cannot run with what was asked for, before anything is written."""
    if engine == "simulation":
        return
    if device != "cpu" or not kept:
        raise ConfigError(f"the {engine} engine needs --device cpu and a run folder")
    if engine == "flower" and proxied:
        raise ConfigError(
            "randomised reports go through a proxy to a server that must not know whose they are, "
            "and Flower's gateways say who sends; use --engine https or --engine simulation"
        )
    if engine == "flower" and summed:
        raise ConfigError(_OPEN_TO_GATEWAYS)
    if engine == "flower" and defended:
        raise ConfigError(
            "[defence] is the server's, and Flower's gateways tell it sums over their devices; use "
            "--engine https or --engine simulation"
        )
    if engine == "https" and users > MOST_DEVICES:
        raise ConfigError(
            f"{users:,} users would be {users:,} devices on this machine; a trial takes at most "
            f"{MOST_DEVICES}: use fewer users, --engine flower, or --engine simulation"
        )
    import_module(_TRIALS[engine])  # now, where libraries may be missing


def start_trial(
    engine: Engine,
    experiment: Experiment,
    dataset: Dataset,
    federation: Federation,
    run: Path,
    processes: int | None,
) -> Trial:
    """The trial of an experiment in its run folder, new or to be gone on with."""
    world = world_of(experiment, dataset, federation)
    if engine == "https":
        from sottovoce.services.trial import HttpsTrial

        return HttpsTrial(world, folder_of(run), processes or 8)
    if federation.masker is not None:
        raise ConfigError(_OPEN_TO_GATEWAYS)
    from sottovoce.engines.flower.trial import FlowerTrial

    return FlowerTrial(world, folder_of(run), processes or 3)


def world_of(experiment: Experiment, dataset: Dataset, federation: Federation) -> TrialWorld:
    """What the parties of an experiment are given at the start."""
    plan, devices = federation.schedule, federation.devices
    settings = experiment.cross_device()
    everything, train = dataset.interactions.items_vocabulary(), devices.cohort.history
    content = json.dumps([experiment.table, dataset.fingerprint()], sort_keys=True)
    digest = hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
    n_items = train.n_items
    named = experiment.table.get("service", {})
    return TrialWorld(
        terms=Terms.of(
            f"{experiment.name}-{digest}",
            n_items,
            experiment.on(dataset, devices.cohort.consent)[0],
            plan.triples,
            settings.release,
            settings.link,
        ),
        rules=trial_rules(experiment.service, list(named), plan.devices),
        cohort_size=plan.cohort_size,
        root_key=devices.rng.root,
        cohort=devices.cohort,
        names=train.users_vocabulary().names(),
        catalogue=[
            (name, dataset.title(everything.index(name)))
            for name in train.items_vocabulary().names()
        ],
        defence=experiment.defence,
    )


Report = Callable[[str, int, int], None]
"""Progress: what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True, repr=False)
class RunOutcome:
    """What a run gave, beside its folder."""

    experiment: Experiment
    dataset: Dataset
    split: Split
    """What was learnt from, and what was to be found."""
    consent: Consent
    evaluations: Mapping[str, Evaluation]
    """By system; the federated one comes last."""
    system: str
    """The name of the federated one."""
    seconds: float
    folder: RunFolder | None


def check_before(experiment: Experiment, out: Path | None) -> None:
    """Raises what can be known before the data are read."""
    if out is not None:
        check_writable(out)
    for _, baseline in experiment.baselines:
        baseline.check()


def check_protocol(protocol: Protocol, split: Split) -> None:
    """Raises before the training what the evaluation would raise after it."""
    users = np.flatnonzero(split.test.counts)
    if not len(users):
        raise DataError(
            "no user has test items, so that nothing could be evaluated; hold out more "
            "(data.test_fraction), or keep users with more items (data.min_user_items)"
        )
    for start in range(0, len(users), SLAB):
        protocol.candidates.draw(split.train, split.test, users[start : start + SLAB])


def manifest_of(experiment: Experiment, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """What is known of a run before it begins."""
    fingerprint = dataset.fingerprint()
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
