"""An experiment file in, a run out.

`Experiment` is a TOML file read into frozen parts; unknown keys raise. `Federation` is those parts
put together on a split. `run_experiment` trains, evaluates and leaves a run folder behind.
"""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.base import Cohort
from sottovoce.algorithms.fpl import FPL, FPLConfig, Schedule, schedule
from sottovoce.baselines import BASELINES, Baseline
from sottovoce.consent import Consent, ConsentPolicy
from sottovoce.data.dataset import Dataset
from sottovoce.data.interactions import Interactions
from sottovoce.data.sources import load
from sottovoce.data.splitting import (
    Split,
    keep_active,
    leave_one_out,
    published_split,
    random_holdout,
    temporal_holdout,
    validation_split,
)
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.engines.base import Listener, Moment, Observer
from sottovoce.engines.interrupts import Interrupts
from sottovoce.engines.observers import AtRounds, Checkpoints, Periodically, Transcript
from sottovoce.engines.simulation import Simulation
from sottovoce.errors import ConfigError, DataError
from sottovoce.evaluation.protocol import Evaluation, Full, Given, Protocol, Sampled, evaluate
from sottovoce.ledger import Ledger
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import Release, ShareFraction
from sottovoce.recommender import FactorScorer, Scorer
from sottovoce.rng import Streams
from sottovoce.runs import RunFolder, environment

ALGORITHMS: Mapping[str, type[FPLConfig]] = {"fpl": FPLConfig}
RELEASES: Mapping[str, type[ShareFraction]] = {"share-fraction": ShareFraction}

Report = Callable[[str, int, int], None]
"""Progress: what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    source: str = "town"
    """A prepared data set by name, or "town", the generated one."""
    min_user_items: int = 0
    """Keep users with at least so many items."""
    min_item_users: int = 0
    """Keep items with at least so many users."""
    min_rating: float = 0.0
    """Only interactions rated so high count as positive; 0 takes all."""
    split: Literal["temporal", "random", "leave-one-out", "published"] = "temporal"
    """What is held out: each user's latest share, a random share, one item, or as published."""
    test_fraction: float = 0.2
    """Share held out by "temporal" and "random"."""
    hold_out: Literal["latest", "random"] = "latest"
    """Which item "leave-one-out" takes."""
    part: Literal["test", "validation"] = "test"
    """Evaluate on the test part, or on a validation part split from training in the same way."""


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    k: int = 10
    """Length of the lists."""
    candidates: Literal["full"] | int = "full"
    """Rank the whole catalogue, or the positive among so many sampled negatives."""
    every_epochs: int = 0
    """Evaluate after so many epochs, too; 0 only at the end."""

    def __post_init__(self) -> None:
        if self.k < 1 or self.every_epochs < 0:
            raise ConfigError("evaluation.k must be at least 1 and every_epochs not negative")

    def protocol(self, split: Split, seed: int) -> Protocol:
        if self.candidates == "full":
            return Protocol(self.k, Full())
        if split.negatives is not None and split.negatives.shape[1] == self.candidates:
            return Protocol(self.k, Given(split.negatives))
        return Protocol(self.k, Sampled(self.candidates, seed))


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    seed: int
    data: DataConfig
    algorithm: FPLConfig
    release: Release
    consent: ConsentPolicy
    evaluation: EvaluationConfig
    baselines: tuple[tuple[str, Baseline], ...]
    town: TownConfig
    table: Mapping[str, Any] = field(repr=False)
    """The file as read, for the manifest."""

    @classmethod
    def from_file(cls, path: Path, settings: Sequence[str] = ()) -> Experiment:
        """Read a TOML file, with `a.b=c` settings applied on top."""
        try:
            table = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        for setting in settings:
            config.assign(table, setting)
        table.setdefault("name", path.stem)
        return cls.from_table(table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Experiment:
        known = {
            "name", "seed", "data", "town", "algorithm", "release", "link", "consent",
            "evaluation", "baselines",
        }  # fmt: skip
        unknown = sorted(set(table) - known)
        if unknown:
            raise ConfigError(
                f"the experiment has unknown keys {unknown}; known are {sorted(known)}"
            )
        name, seed = table.get("name", "experiment"), table.get("seed", 0)
        if not isinstance(name, str) or isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError("name must be text and seed a whole number")
        return cls(
            name=name,
            seed=seed,
            data=config.build(DataConfig, _section(table, "data"), "data"),
            algorithm=_named(_section(table, "algorithm"), ALGORITHMS, "fpl", "algorithm"),
            release=_named(_section(table, "release"), RELEASES, "share-fraction", "release"),
            consent=ConsentPolicy.from_table(_section(table, "consent")),
            evaluation=config.build(EvaluationConfig, _section(table, "evaluation"), "evaluation"),
            baselines=tuple(_baselines(_section(table, "baselines"))),
            town=config.build(TownConfig, _section(table, "town"), "town"),
            table=json.loads(json.dumps(table, default=str)),
        )

    def streams(self) -> Streams:
        return Streams.from_seed(self.seed)

    def dataset(self) -> Dataset:
        """The data, loaded and filtered."""
        data = self.data
        found = generate_town(self.town) if data.source == "town" else load(data.source)
        if data.min_rating:
            if found.interactions.ratings is None:
                raise ConfigError(f"data.min_rating is set, but {found.name} has no ratings")
            kept = found.interactions.select(found.interactions.ratings >= data.min_rating)
            found = found.restrict(kept)
        if data.min_user_items or data.min_item_users:
            found = keep_active(found, data.min_user_items, data.min_item_users)
        if found.interactions.n_interactions == 0:
            raise DataError(f"no interaction of {found.name} is left after the filters")
        return found

    def split(self, dataset: Dataset) -> Split:
        data, rng = self.data, self.streams().child("split")
        table = dataset.interactions
        if data.split == "published":
            split = published_split(dataset)
        elif data.split == "leave-one-out":
            split = leave_one_out(table, data.hold_out, rng)
        elif data.split == "random":
            split = random_holdout(table, data.test_fraction, rng)
        else:
            split = temporal_holdout(table, data.test_fraction)
        if data.part == "test":
            return split
        one = data.split in ("leave-one-out", "published")
        which: Literal["latest", "random"] = "random" if data.split == "random" else data.hold_out
        return validation_split(split, None if one else data.test_fraction, which, rng)


@dataclass(slots=True)
class Federation:
    """The parties of a cross-device system on one training set, ready to run or to resume."""

    schedule: Schedule
    server: Server
    devices: Devices

    @classmethod
    def build(
        cls,
        settings: FPLConfig,
        train: Interactions,
        consent: Consent,
        release: Release,
        rng: Streams,
    ) -> Federation:
        users = np.arange(train.n_users, dtype=np.int64)
        cohort = Cohort(
            users, train, consent, np.zeros((train.n_users, settings.embedding_size), np.float32)
        )
        willing = np.flatnonzero(consent.takes_part & cohort.able())
        plan = schedule(settings, len(willing), int(train.counts[willing].sum()))
        algorithm = FPL(settings, plan.triples)
        cohort.vectors = algorithm.device_init(users, rng)
        devices = Devices.behind_door(algorithm, cohort, release, Ledger(), rng)
        return cls(plan, Server.start(algorithm, train.n_items, rng), devices)

    def accelerate(self, device: str) -> None:
        """Move whole rounds to a GPU (after a checkpoint was restored, if any)."""
        if self.schedule.cohort_size == 1:
            raise ConfigError(
                "one device a round is a sequential computation; leave it on --device cpu"
            )
        from sottovoce.algorithms.fpl_cuda import FPLOnGPU

        algorithm, n_items = self.server.algorithm, len(self.server.items)
        if not isinstance(algorithm, FPL):
            raise ConfigError("only FPL runs on a GPU")
        self.devices.accelerate(
            lambda rule: FPLOnGPU.load(algorithm, self.devices.cohort, n_items, rule, device)
        )

    def run(
        self,
        observers: Sequence[Observer] = (),
        listeners: Sequence[Listener] = (),
        *,
        threads: int = 1,
    ) -> None:
        plan = self.schedule
        Simulation(
            self.server,
            self.devices,
            plan.cohort_size,
            plan.rounds,
            observers,
            listeners,
            threads,
        ).run()

    def scorer(self) -> FactorScorer:
        """What every device would recommend by now. Devices that do not take part have learnt their
        vector at home from the published model; nothing of theirs has left."""
        return FactorScorer(
            self.devices.vectors_at_home(self.server.publish()), *split_items(self.server.items)
        )


def split_items(
    items: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Factors and biases of published item rows."""
    return np.ascontiguousarray(items[:, :-1]), np.ascontiguousarray(items[:, -1])


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """What a run gave, beside its folder."""

    experiment: Experiment
    dataset: Dataset
    split: Split
    federation: Federation
    evaluations: Mapping[str, Evaluation]
    """By system; the federated one comes last and is called by the experiment's system name."""
    system: str
    seconds: float
    folder: RunFolder | None


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    *,
    resume: bool = False,
    threads: int = 1,
    device: str = "cpu",
    transcript: bool = False,
    report: Report | None = None,
) -> Outcome:
    """Train, evaluate beside the baselines, and write the run folder (where `out` is given)."""
    tell = report or (lambda what, done, total: None)
    tell("data", 0, 1)
    dataset = experiment.dataset()
    split = experiment.split(dataset)
    rng = experiment.streams()
    train = split.train
    consent = experiment.consent.draw(
        np.arange(train.n_users, dtype=np.int64), rng, tuple(dataset.user_attributes)
    )
    federation = Federation.build(
        experiment.algorithm, train, consent, experiment.release, rng.child("federation")
    )
    tell("data", 1, 1)
    if out is None:
        return _run(experiment, dataset, split, federation, None, threads, device, (), tell)
    manifest = _manifest(experiment, dataset, federation)
    folder = RunFolder.claim(out, manifest, resume=resume)
    with folder.locked():
        listeners = [Transcript(out / "transcript")] if transcript else []
        return _run(
            experiment, dataset, split, federation, folder, threads, device, listeners, tell
        )


def _run(
    experiment: Experiment,
    dataset: Dataset,
    split: Split,
    federation: Federation,
    folder: RunFolder | None,
    threads: int,
    device: str,
    listeners: Sequence[Listener],
    tell: Report,
) -> Outcome:
    protocol = experiment.evaluation.protocol(split, experiment.seed)
    plan, started = federation.schedule, time.perf_counter()
    system = experiment.algorithm.configuration or "FPL"

    def judge(scorer: Scorer) -> Evaluation:
        return evaluate(scorer, split.train, split.test, protocol, threads=threads)

    def note(moment: Moment) -> None:
        line = {
            "round": moment.round,
            "epoch": moment.round / plan.rounds_per_epoch,
            **judge(federation.scorer()).summary(),
        }
        if folder is not None:
            folder.append_metrics(line)

    done = folder is not None and folder.finished
    if folder is not None and not done:
        _restore(federation, folder)
    if device != "cpu" and not done:
        federation.accelerate(device)
    step = max(1, min(plan.rounds_per_epoch, plan.rounds // 100))
    observers: list[Observer] = [
        Periodically(step, lambda m: tell("training", m.round, m.rounds)),
    ]
    if experiment.evaluation.every_epochs:
        each = experiment.evaluation.every_epochs * plan.rounds_per_epoch
        observers.append(AtRounds(tuple(range(each, plan.rounds, each)), note))

    def save(moment: Moment) -> None:
        if folder is not None:
            folder.save_checkpoint(moment.round, moment.items, moment.cohort.vectors, moment.ledger)

    interrupts = Interrupts(step, save)
    observers += [Checkpoints(step, save), interrupts]
    if done and folder is not None:
        scorer = FactorScorer(folder.vectors(), *split_items(folder.model()))
    else:
        with interrupts.heard():
            federation.run(observers, listeners, threads=threads)
        scorer = federation.scorer()
    evaluations: dict[str, Evaluation] = {}
    for number, (label, baseline) in enumerate(experiment.baselines):
        tell("baselines", number, len(experiment.baselines))
        fitted = baseline.fit(split.train, experiment.streams().child("baseline", label))
        evaluations[label] = judge(fitted)
    tell("evaluation", 0, 1)
    evaluations[system] = judge(scorer)
    tell("evaluation", 1, 1)
    seconds = time.perf_counter() - started
    if folder is not None and not done:
        summary = {name: e.summary() for name, e in evaluations.items()}
        folder.append_metrics({"round": plan.rounds, "final": True, **summary[system]})
        folder.finish(
            federation.server.items,
            scorer.user_factors,
            results=summary,
            protocol=evaluations[system].describe(),
            ledger={
                "releases": federation.devices.ledger.totals.releases,
                "positive_rows": federation.devices.ledger.totals.positive_rows,
                "negative_rows": federation.devices.ledger.totals.negative_rows,
                "bytes": federation.devices.ledger.totals.bytes,
            },
        )
    return Outcome(experiment, dataset, split, federation, evaluations, system, seconds, folder)


def _restore(federation: Federation, folder: RunFolder) -> None:
    saved = folder.load_checkpoint()
    if saved is None:
        return
    federation.server.items = saved.items
    federation.server.round = saved.round
    federation.devices.cohort.vectors = saved.vectors
    federation.devices.ledger.totals = saved.totals


def _manifest(experiment: Experiment, dataset: Dataset, federation: Federation) -> dict[str, Any]:
    fingerprint = dataset.fingerprint()
    content = json.dumps([experiment.table, fingerprint], sort_keys=True)
    plan = federation.schedule
    return {
        "identity": hashlib.blake2b(content.encode(), digest_size=16).hexdigest(),
        "name": experiment.name,
        "experiment": experiment.table,
        "seed": experiment.seed,
        "data": {"name": dataset.name, "fingerprint": fingerprint},
        "schedule": {name: getattr(plan, name) for name in plan.__dataclass_fields__},
        "consent": experiment.consent.words(),
        **environment(),
    }


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"[{name}] must be a table")
    return section


def _named(
    table: Mapping[str, Any], kinds: Mapping[str, type[Any]], default: str, where: str
) -> Any:
    fields = dict(table)
    name = fields.pop("name", default)
    if name not in kinds:
        raise ConfigError(f"{where}.name must be one of {sorted(kinds)}, not {name!r}")
    return config.build(kinds[name], fields, where)


def _baselines(table: Mapping[str, Any]) -> list[tuple[str, Baseline]]:
    """Each key is a label; its table may name the kind where the label is not one itself."""
    found = []
    for label, fields in table.items():
        if not isinstance(fields, dict):
            raise ConfigError(f"baselines.{label} must be a table (it may be empty)")
        found.append((label, _named(fields, BASELINES, label, f"baselines.{label}")))
    return found
