"""What every way from an experiment to a run shares: checks, the manifest, and what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.consent import Consent
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.errors import DataError
from sottovoce.evaluation.protocol import SLAB, Evaluation, Protocol
from sottovoce.experiment import Experiment
from sottovoce.runs import RunFolder, check_writable, environment
from sottovoce.trials import Engine

Report = Callable[[str, int, int], None]
"""Progress: what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
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
