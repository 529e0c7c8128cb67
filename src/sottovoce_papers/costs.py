"""What a system costs its users and what attacks on it come to: experiments that are run in a
folder, timed, and attacked if a study says so."""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.attacks.views import ATTACKS
from sottovoce.core.ledger import Totals, totals_of
from sottovoce.errors import ConfigError
from sottovoce.runs.attack import attack_run
from sottovoce.runs.devices import federation_of
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.standing import standing
from sottovoce.runs.train import DeviceOutcome, RunOutcome, SiloOutcome, run_experiment
from sottovoce.wire.silo_rounds import gradients_bytes, request_bytes, rows_bytes
from sottovoce_papers.experiments import ExperimentKind, experiment_of
from sottovoce_papers.lines import END, Job, TrainedSystem


class CostKind(ExperimentKind):
    """An experiment with its bytes, ε, time and a digest of its model. With `attacks` all attacks
    that apply are run on the messages of `attack_rounds` rounds (0: of as many as a verdict needs),
    and a round is timed with every message written out."""

    alone = True
    attacks = False
    """Whether attacks are run if the settings do not say so."""

    def key(self, job: Job) -> object:
        suite = [f"{attack.code} {attack.name}" for attack in ATTACKS.values()]
        attacked = [suite, job.settings.get("attack_rounds", 0)] if self._attacked(job) else []
        return [super().key(job), job.settings.get("data"), attacked]

    def _attacked(self, job: Job) -> bool:
        return bool(job.settings.get("attacks", self.attacks))

    def train(self, job: Job) -> TrainedSystem:
        if "baseline" in job.settings:
            looks, _ = super().train(job)
            return TrainedSystem(looks, {"bound": "sees everything"})
        experiment, threads = experiment_of(job), job.cells.threads
        with tempfile.TemporaryDirectory() as place:
            outcome = run_experiment(experiment, Path(place) / "run", threads=threads)
            folder = outcome.folder
            if folder is None:
                raise ConfigError("a run whose costs are counted needs a folder")
            facts = _facts(outcome, folder)
            if self._attacked(job):
                rounds = job.settings.get("attack_rounds", 0)
                card = attack_run(Path(place) / "run", rounds=rounds or None, threads=threads)
                card.require_whole()
                facts["attacks"] = card.attacks()
                if isinstance(outcome, DeviceOutcome):
                    facts["round seconds"] = _round_seconds(outcome, threads)
        return TrainedSystem({END: outcome.evaluations[outcome.system]}, facts)


class AttackedKind(CostKind):
    """A `CostKind` that is always attacked."""

    attacks = True


def _facts(outcome: RunOutcome, folder: RunFolder) -> dict[str, Any]:
    """Count bytes up and down: of a user in all, of a device in a round that asks it, and of a data
    owner in an epoch. Nobody counts what a data owner's users receive."""
    ledger, users = folder.ledger(), outcome.split.n_users
    totals, where = totals_of(ledger), standing(outcome.experiment, ledger)
    facts: dict[str, Any] = {
        "up": totals.bytes / users,
        "epsilon": where.epsilon if math.isfinite(where.epsilon) else None,
        "bound": where.short,
        "seconds": outcome.seconds,
        "noise": float(getattr(outcome.experiment.link, "noise", 0.0)),
        "model": _digest(folder.model(), folder.vectors()),
    }
    if isinstance(outcome, SiloOutcome):
        return facts | _of_owners(outcome)
    if not isinstance(outcome, DeviceOutcome):
        raise ConfigError("costs are counted of devices and data owners alone")
    return facts | _of_devices(outcome, totals, users)


def _of_devices(outcome: DeviceOutcome, totals: Totals, users: int) -> dict[str, Any]:
    plan, model = outcome.federation.schedule, 4.0 * outcome.federation.server.items.size
    return {
        "devices": plan.cohort_size,
        "rounds": plan.rounds,
        "round up": totals.bytes / max(1, totals.releases),
        "round down": model,
        "down": model * (totals.releases / users + 1),  # one to recommend by
    }


def _of_owners(outcome: SiloOutcome) -> dict[str, Any]:
    settings, owners, facts = outcome.world.config, len(outcome.world.owners), outcome.facts
    rows, updates = facts.user_rows + facts.item_rows, max(1, facts.updates)
    size = settings.embedding_size

    def of_epoch(empty: int, each: int) -> int:
        return updates * empty + rows * each

    asked = of_epoch(request_bytes(0, 0), 4)
    sent = of_epoch(gradients_bytes(0, 0, size), 4 * (1 + size))
    given = of_epoch(rows_bytes(0, 0, size), 4 * (1 + size))
    return {
        "devices": owners,
        "rounds": settings.epochs,
        "round up": (asked + sent) / owners,
        "round down": given / owners,
        "round seconds": outcome.seconds / settings.epochs,
    }


def _digest(*arrays: np.ndarray[Any, Any]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class _Discarding:
    """An observer of messages, for which they are written out; it keeps none."""

    def on_message(self, party: str, message: object) -> None:
        pass


def _round_seconds(outcome: DeviceOutcome, threads: int) -> float:
    """Time a round by messages, as they would be sent: what devices learn, their masks, the server,
    the proxy. Everything is compiled by now, because the run was attacked."""
    federation = federation_of(outcome)
    federation.schedule = replace(federation.schedule, rounds=1)
    started = time.perf_counter()
    federation.run([], [_Discarding()], threads=threads)
    return time.perf_counter() - started


def verdicts(attacks: list[Mapping[str, Any]]) -> str:
    """Return what all attacks on a run came to, in a few words."""
    codes: dict[str, list[str]] = {}
    for one in attacks:
        codes.setdefault(str(one["verdict"]), []).append(str(one["code"]))
    parts = [f"{verdict}: {', '.join(dict.fromkeys(codes[verdict]))}" for verdict in sorted(codes)]
    return "; ".join(parts) or "nothing to attack"
