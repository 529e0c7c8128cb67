"""From an experiment to a run: train, evaluate beside the baselines, leave a run folder behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from sottovoce.algorithms.drift.aggregated import Aggregation, in_turn
from sottovoce.algorithms.drift.blocks import Blocks, Events, Model, learn, losses
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.consent import Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import COUNTS, Ledger, Totals, totals_of
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import (
    AtRounds,
    Checkpoints,
    Ears,
    Interrupts,
    Listener,
    Moment,
    Observer,
    Periodically,
)
from sottovoce.engines.silo import (
    Federated,
    SiloTrial,
    SiloWorld,
    federated,
    held_out_blocks,
    owners_of,
)
from sottovoce.engines.transcripts import Transcript
from sottovoce.engines.trial import Trial, folder_of
from sottovoce.errors import ConfigError, DataError, RunError, said_of
from sottovoce.evaluation import saros_metrics
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate
from sottovoce.experiment import Experiment
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.parties.silo_door import InteractionDoor, Read
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import Checkpoint, RunFolder, load_arrays, save_arrays
from sottovoce.runs.outcomes import (
    Engine,
    check_before,
    check_engine,
    check_protocol,
    manifest_of,
    start_trial,
)
from sottovoce.runs.outcomes import Outcome as Outcome
from sottovoce.runs.outcomes import Report as Report


@dataclass(frozen=True, slots=True, repr=False)
class DeviceOutcome(Outcome):
    """What a run of a cross-device system gave."""

    federation: Federation


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
) -> Outcome:
    """Train, evaluate beside the baselines, and write the run folder (where `out` is given).

    `engine` says how messages travel. All give the same model; "https" and "flower" start real
    processes on this machine (so many `processes` of device agents or gateways) and need `out`.
    """
    if experiment.silo is not None:
        check_silo_options(device, transcript=transcript)
        return run_silo(
            experiment, out, resume=resume, threads=threads, engine=engine, processes=processes,
            report=report,
        )  # fmt: skip
    started = time.perf_counter()
    tell = report or (lambda what, done, total: None)
    check_before(experiment, out)
    tell("data", 0, 1)
    dataset, settings = experiment.dataset(), experiment.cross_device()
    split, consent = experiment.split(dataset), experiment.records(dataset)
    algorithm, labels = experiment.on(dataset, consent)
    federation = Federation.build(
        algorithm,
        split.train,
        consent,
        settings.release,
        experiment.party_streams(),
        labels,
        settings.link,
        experiment.defence,
    )
    check_engine(
        engine,
        device,
        split.train.n_users,
        kept=out is not None,
        proxied=federation.proxy is not None,
        summed=federation.masker is not None,
        defended=experiment.defence != NO_DEFENCE,
    )
    federation.check_device(device)
    if transcript and (device != "cpu" or engine != "simulation"):
        raise ConfigError(
            "a transcript needs every message written out in one place: leave it on "
            "--engine simulation --device cpu"
        )
    protocol = experiment.evaluation.protocol(split, experiment.seed)
    check_protocol(protocol, split)
    tell("data", 1, 1)
    run = _Run(experiment, split, federation, protocol, None, threads, tell)
    if out is None:
        evaluations = run.judge_all(run.train(device, ()))
    else:
        schedule = {"schedule": asdict(federation.schedule)}
        manifest = manifest_of(experiment, dataset, engine) | schedule
        run.folder = RunFolder.claim(out, manifest, resume=resume)
        with run.folder.locked():
            if engine == "simulation" or run.folder.finished:
                kept = Transcript(out / "transcript", manifest["identity"])
                scorer = run.resume(device, [kept] if transcript else [])
            else:
                trial = start_trial(
                    engine, experiment, dataset, federation, run.folder.path, processes
                )
                scorer = run.train_for_real(trial)
            evaluations = run.judge_all(scorer)
            if not run.folder.finished:
                run.finish(evaluations)
    seconds = time.perf_counter() - started
    return DeviceOutcome(
        experiment, dataset, split, consent, evaluations, experiment.system, seconds, run.folder,
        federation,
    )  # fmt: skip


@dataclass(slots=True, repr=False)
class _Run:
    experiment: Experiment
    split: Split
    federation: Federation
    protocol: Protocol
    folder: RunFolder | None
    threads: int
    tell: Report

    def resume(self, device: str, listeners: Sequence[Listener]) -> Scorer:
        """Go on from where the folder is: at the start, at a checkpoint, or at the end."""
        if self.folder is None or not self.folder.finished:
            saved = None if self.folder is None else self.folder.load_checkpoint()
            if saved is not None:
                if self.experiment.defence.burst:
                    raise RunError(
                        "what devices may still add to items (defence.burst) is not kept with a "
                        "run that was stopped; start it anew with another --out"
                    )
                self.federation.restore(saved)
            return self.train(device, listeners)
        items, vectors = self.folder.model(), self.folder.vectors()
        totals = totals_of(self.folder.ledger())
        rounds = self.federation.schedule.rounds
        self.federation.restore(Checkpoint(rounds, items, vectors, totals))
        # What devices that stay at home have learnt is in the saved vectors already.
        return self.federation.server.algorithm.device_scorer(vectors, items)

    def train(self, device: str, listeners: Sequence[Listener]) -> Scorer:
        if device != "cpu":
            self.federation.accelerate(device)
        plan = self.federation.schedule
        step = max(1, min(plan.rounds_per_epoch, plan.rounds // 100))
        interrupts = Interrupts(step, self._save)
        observers: list[Observer] = [
            Periodically(step, lambda m: self.tell("training", m.round, m.rounds)),
            Checkpoints(step, self._save),
            interrupts,
        ]
        if self.experiment.evaluation.every_epochs:
            each = self.experiment.evaluation.every_epochs * plan.rounds_per_epoch
            observers.insert(0, AtRounds(tuple(range(each, plan.rounds, each)), self._note))
        with interrupts.heard():
            self.federation.run(observers, listeners, threads=self.threads)
        return self.federation.scorer()

    def train_for_real(self, trial: Trial) -> Scorer:
        """The rounds are run by other processes, which keep their own state; Ctrl-C stops them
        where they are, and `--resume` lets them go on from there."""
        if self.folder is None:
            raise ConfigError("a trial needs a run folder")
        plan, each = self.federation.schedule, self.experiment.evaluation.every_epochs
        step = each * plan.rounds_per_epoch
        noted = {line["round"] for line in self.folder.metrics()}
        with trial.running():
            begun = trial.round()
            stops = [*range(step, plan.rounds, step)] if step else []
            for stop in [s for s in stops if s >= begun and s not in noted] + [plan.rounds]:
                trial.advance(stop, lambda done: self.tell("training", done, plan.rounds))
                state = trial.gather()
                self.federation.restore(
                    Checkpoint(state.round, state.items, state.vectors, Totals())
                )
                if stop < plan.rounds:
                    self._note(self._moment())
        for entries in trial.ledger():
            self.federation.devices.ledger.record(entries)
        self._save(self._moment())
        rounds, refused = trial.log()
        self.folder.save_rounds(rounds)
        self.folder.update_manifest(refused=dict(refused))
        return self.federation.scorer()

    def _moment(self) -> Moment:
        server, devices = self.federation.server, self.federation.devices
        rounds = self.federation.schedule.rounds
        return Moment(
            server.round, rounds, server.items, devices.cohort, devices.ledger, server.memory
        )

    def judge(self, scorer: Scorer) -> Evaluation:
        train, test = self.split.train, self.split.test
        return evaluate(scorer, train, test, self.protocol, threads=self.threads)

    def judge_all(self, scorer: Scorer) -> dict[str, Evaluation]:
        """Baselines first, the federated system last."""
        evaluations = {}
        baselines = self.experiment.baselines
        for number, (label, baseline) in enumerate(baselines):
            self.tell("baselines", number, len(baselines))
            rng = self.experiment.streams().child("baseline", label)
            with said_of(f"the baseline {label}"):
                evaluations[label] = self.judge(baseline.fit(self.split.train, rng))
        self.tell("evaluation", 0, 1)
        evaluations[self.experiment.system] = self.judge(scorer)
        self.tell("evaluation", 1, 1)
        return evaluations

    def finish(self, evaluations: Mapping[str, Evaluation]) -> None:
        if self.folder is None:
            return
        summary = {name: e.summary() for name, e in evaluations.items()}
        rounds, totals = self.federation.schedule.rounds, self.federation.devices.ledger.totals
        self.folder.append_metrics(
            {"round": rounds, "final": True, **summary[self.experiment.system]}
        )
        self.folder.finish(
            self.federation.server.items,
            self.federation.vectors(),
            results=summary,
            protocol=evaluations[self.experiment.system].describe(),
            ledger={name: getattr(totals, name) for name in COUNTS},
        )

    def _note(self, moment: Moment) -> None:
        if self.folder is not None:
            epoch = moment.round / self.federation.schedule.rounds_per_epoch
            summary = self.judge(self.federation.scorer()).summary()
            self.folder.append_metrics({"round": moment.round, "epoch": epoch, **summary})

    def _save(self, moment: Moment) -> None:
        if self.folder is not None:
            cohort = moment.cohort
            self.folder.save_checkpoint(
                moment.round, moment.items, cohort.vectors, moment.ledger, moment.memory,
                cohort.spent, cohort.sent,
            )  # fmt: skip


# From an experiment with data owners to a run: DRIFT in simulation or by real processes,
# evaluated beside the baselines, with a run folder left behind. In simulation an epoch is planned
# once and learnt from many times, and the run can be stopped between any two epochs. The model is
# the one that the parties' messages give, bit for bit.

CHECKPOINT_SECONDS = 10.0
_OWNERS = "owners-{}.npz"


@dataclass(frozen=True, slots=True, repr=False)
class SiloOutcome(Outcome):
    """What a run with data owners gave."""

    world: SiloWorld
    facts: Federated
    read: Read
    held_out: Mapping[str, Mapping[str, float]]
    """By system: MAP and NDCG over each user's held-out items alone, `own` and `legacy`."""


def check_silo_options(device: str, *, transcript: bool) -> None:
    """Raises where a run was asked for that data owners cannot have."""
    if device != "cpu":
        raise ConfigError("drift takes one small step after the other; leave it on --device cpu")
    if transcript:
        raise ConfigError(
            "a transcript is what a server gets from devices, and drift has none; leave out "
            "--transcript"
        )


def run_silo(
    experiment: Experiment,
    out: Path | None = None,
    *,
    resume: bool = False,
    threads: int = 1,
    engine: Engine = "simulation",
    processes: int | None = None,
    report: Report | None = None,
) -> SiloOutcome:
    """Train, evaluate beside the baselines, and write the run folder (where `out` is given).

    With "flower" the owners are processes of their own, and the model is that of the simulation
    with the same window.
    """
    started = time.perf_counter()
    tell = report or (lambda what, done, total: None)
    check_before(experiment, out)
    _check_engine(engine, _settings(experiment), kept=out is not None)
    tell("data", 0, 1)
    dataset = experiment.dataset()
    _check_data(experiment, dataset)
    whole, consent = experiment.split(dataset), experiment.records(dataset)
    world, empty = build_world(experiment, dataset, whole, consent)
    split = experiment.judged(whole, consent)
    if whole.test.n_interactions and not split.test.n_interactions:
        raise DataError(
            "nobody who takes part liked anything that was held out, so that nothing could be "
            f"evaluated; see algorithm.positive_from, which is {world.config.positive_from:g}"
        )
    protocol = experiment.evaluation.protocol(split, experiment.seed)
    check_protocol(protocol, split)
    blocks = world.blocks()
    facts = federated(world, blocks, int(consent.takes_part.sum()), empty)
    if not len(blocks):
        raise DataError(
            "no user has a block of negatives and the positives behind them at any owner, so that "
            f"there is nothing to learn from; see algorithm.positive_from, which is "
            f"{world.config.positive_from:g}"
        )
    tell("data", 1, 1)
    read = world.departed.read
    mine = whole.test.select(consent.takes_part[whole.test.users])
    run = _SiloRun(
        experiment, split, mine, consent, world, blocks, held_out_blocks(world, mine), protocol,
        None, threads, tell,
    )  # fmt: skip
    if out is None:
        evaluations, held_out = run.judge_all(run.train())
    else:
        about = _manifest(world, facts, read)
        run.folder = RunFolder.claim(
            out, manifest_of(experiment, dataset, engine) | about, resume=resume
        )
        with run.folder.locked():
            finished = run.folder.finished
            model = run.saved() if finished else run.go_on(engine, processes)
            evaluations, held_out = run.judge_all(model)
            if not finished:
                run.finish(model, evaluations, held_out)
    seconds = time.perf_counter() - started
    return SiloOutcome(
        experiment, dataset, split, consent, evaluations, experiment.system, seconds, run.folder,
        world, facts, read, held_out,
    )  # fmt: skip


# --- the world -----------------------------------------------------------------------------------


def build_world(
    experiment: Experiment, dataset: Dataset, split: Split, consent: Consent
) -> tuple[SiloWorld, tuple[str, ...]]:
    """The parties' shares of a training part, and the owners that would be empty. The door reads
    the users' consent."""
    settings, train = _settings(experiment), split.train
    if not consent.takes_part.any():
        raise ConfigError("nobody takes part; see consent.takes_part")
    names, member = owners_of(dataset, experiment.owners.by)
    member = member[split.item_map[: train.n_items]]
    there = np.flatnonzero(member.any(axis=0))
    owners = tuple(names[k] for k in there.tolist())
    world = SiloWorld.of(
        settings,
        InteractionDoor(consent, owners, OwnerTable.of_membership(member[:, there])),
        Events.of(train, settings.positive_from, settings.order),
        tuple(train.items_vocabulary().names()),
        experiment.streams().child("federation"),
    )
    return world, tuple(name for name in names if name not in world.owners)


def _settings(experiment: Experiment) -> DRIFTConfig:
    if experiment.silo is None:
        raise ConfigError(f"{experiment.name} has no data owners; algorithm.name must be drift")
    return experiment.silo


def _check_data(experiment: Experiment, dataset: Dataset) -> None:
    table, settings = dataset.interactions, _settings(experiment)
    lacks = [
        name
        for name, column in (("ratings", table.ratings), ("times", table.timestamps))
        if column is None
    ]
    if lacks:
        raise ConfigError(
            "drift learns from what users liked and disliked, in the order of time, and "
            f"{dataset.name} has no {' and no '.join(lacks)}; take data that have both, such as "
            "movielens-100k"
        )
    if experiment.data.min_rating >= settings.positive_from:
        raise ConfigError(
            f"data.min_rating = {experiment.data.min_rating:g} would leave no negatives, since "
            f"algorithm.positive_from is {settings.positive_from:g}; leave it out"
        )


def _check_engine(engine: Engine, settings: DRIFTConfig, *, kept: bool) -> None:
    """Raises where an engine cannot run with what was asked for, before anything is written."""
    if engine == "simulation":
        return
    if engine == "https":
        raise ConfigError(
            "data owners and their orchestrator talk through Flower; use --engine flower or "
            "--engine simulation"
        )
    if not kept:
        raise ConfigError("the flower engine needs a run folder")
    if not settings.window and not in_turn(settings):
        raise ConfigError(
            "owners far apart are served in rounds, not at once; say after how many interactions "
            "a round begins, such as --set algorithm.window=1000"
        )
    import_module(_TRIAL)  # now, where libraries may be missing


_TRIAL = "sottovoce.services.silo_trial"


def _manifest(world: SiloWorld, facts: Federated, read: Read) -> dict[str, Any]:
    owners = len(world.owners)
    users = np.bincount(read.owner, minlength=owners)
    messages = np.bincount(read.owner, read.positive + read.negative, owners).astype(np.int64)
    return {
        "schedule": {
            "rounds": world.config.epochs,
            "rounds_per_epoch": 1,
            "devices": facts.members,
            "blocks_per_epoch": facts.blocks,
            "updates_per_epoch": facts.updates,
            "owner_rounds_per_epoch": facts.rounds,
            "user_rows_per_epoch": facts.user_rows,
            "item_rows_per_epoch": facts.item_rows,
            "users_without_blocks": facts.without_blocks,
        }
        | ({} if world.config.release == "printed" else {"withheld_rows": facts.withheld}),
        "owners": [
            {
                "number": number,
                "name": name,
                "items": len(world.table.items(number)),
                "users": int(users[number]),
                "interactions_per_epoch": int(messages[number]),
            }
            for number, name in enumerate(world.owners)
        ],
        "empty_owners": list(facts.empty_owners),
    }


# --- the run -------------------------------------------------------------------------------------


@dataclass(slots=True, repr=False)
class _SiloRun:
    experiment: Experiment
    split: Split
    held_out: Interactions
    """What those who take part did, liked or not."""
    consent: Consent
    world: SiloWorld
    blocks: Blocks
    test_blocks: Blocks
    protocol: Protocol
    folder: RunFolder | None
    threads: int
    tell: Report

    def saved(self) -> Model:
        """The model of a finished run."""
        if self.folder is None:
            raise ConfigError("this run was not kept in a folder")
        return Model(self.folder.vectors(), self.folder.model())

    def go_on(self, engine: Engine, processes: int | None) -> Model:
        """From where the folder is, at the start or at a checkpoint, to the end of the training."""
        saved = None if self.folder is None else self.folder.load_checkpoint()
        at = 0 if saved is None else saved.round
        model = None if saved is None else Model(saved.vectors, saved.items)
        if engine == "simulation" or model is not None:
            return self.train(model, at)
        return self._train_for_real(processes)

    def train(self, begun: Model | None = None, at: int = 0) -> Model:
        """Epoch by epoch; Ctrl-C is answered between two of them."""
        config, ears, last = self.world.config, Ears(), time.monotonic()
        together = config.release == "aggregated" and at < config.epochs
        owners = self.world.aggregation() if together else None
        if owners and at:
            owners.take_up(load_arrays(self._owners_file(at)))
        model = begun or (owners.model() if owners else self.world.first_model())
        if begun is None:
            self._note(0, model)
        with ears.heard():
            for epoch in range(at + 1, config.epochs + 1):
                if owners is None:
                    learn(model, self.blocks, config.step())
                else:
                    owners.epoch()
                    model = owners.model()
                model.check()
                if epoch < config.epochs:
                    self._note(epoch, model)
                self.tell("training", epoch, config.epochs)
                due = time.monotonic() - last >= CHECKPOINT_SECONDS
                if epoch == config.epochs or due or ears.asked:
                    self._save(epoch, model, owners)
                    last = time.monotonic()
                if ears.asked:
                    raise KeyboardInterrupt
        return self._served(model)

    def _train_for_real(self, processes: int | None) -> Model:
        """By processes that keep their own state; Ctrl-C stops them where they are, and `--resume`
        lets them go on from there."""
        if self.folder is None:
            raise ConfigError("the flower engine needs a run folder")
        kind = import_module(_TRIAL).HttpsSiloTrial
        trial = cast(SiloTrial, kind(self.world, folder_of(self.folder.path), processes))
        model = trial.train(self.tell)
        model.check()
        self.folder.save_rounds(trial.rounds())
        self._save(self.world.config.epochs, model)
        return self._served(model)

    def _served(self, model: Model) -> Model:
        """The model as the orchestrator has it: without rows of those who never joined."""
        users = np.where(self.consent.takes_part[:, None], model.users, np.float32(0.0))
        return Model(users, model.items)

    def judge(self, scorer: Scorer) -> Evaluation:
        train, test = self.split.train, self.split.test
        return evaluate(scorer, train, test, self.protocol, threads=self.threads)

    def judge_all(self, model: Model) -> tuple[dict[str, Evaluation], dict[str, dict[str, float]]]:
        """Baselines first, the federated system last; and what they are by SAROS's own measures.
        A baseline that knows positives alone learns from those."""
        evaluations, held_out = {}, {}
        baselines = self.experiment.baselines
        liked = self.split.train.select(self.experiment.liked(self.split.train))
        for number, (label, baseline) in enumerate(baselines):
            self.tell("baselines", number, len(baselines))
            rng = self.experiment.streams().child("baseline", label)
            train = self.split.train if baseline.learns_from_dislikes else liked
            with said_of(f"the baseline {label}"):
                scorer = baseline.fit(train, rng)
                evaluations[label], held_out[label] = self.judge(scorer), self._by_held_out(scorer)
        self.tell("evaluation", 0, 1)
        own = FactorScorer.of(model.users, model.items)
        system = self.experiment.system
        evaluations[system], held_out[system] = self.judge(own), self._by_held_out(own)
        self.tell("evaluation", 1, 1)
        return evaluations, held_out

    def _by_held_out(self, scorer: Scorer) -> dict[str, float]:
        test, least = self.held_out, self._positive_from
        own = saros_metrics.own(scorer, test, least, threads=self.threads)
        legacy = saros_metrics.legacy(scorer, test, least, threads=self.threads)
        return {f"own {k}": v for k, v in own.means().items()} | {
            f"legacy {k}": v for k, v in legacy.means().items()
        }

    @property
    def _positive_from(self) -> float:
        return self.world.config.positive_from

    def finish(
        self,
        model: Model,
        evaluations: Mapping[str, Evaluation],
        held_out: Mapping[str, Mapping[str, float]],
    ) -> None:
        if self.folder is None:
            return
        epochs, system = self.world.config.epochs, self.experiment.system
        self._drop_owners_files(but=epochs)  # of which there is none
        results = {name: {**e.summary(), **held_out[name]} for name, e in evaluations.items()}
        self.folder.append_metrics(
            {"round": epochs, "epoch": epochs, "final": True}
            | self._losses(model)
            | results[system]
        )
        self.folder.finish(
            model.items,
            model.users,
            results=results,
            protocol=describe(evaluations[system], self._positive_from),
            ledger={name: getattr(self.world.door.ledger.totals, name) for name in COUNTS},
        )

    def _note(self, epoch: int, model: Model) -> None:
        if self.folder is None:
            return
        each = self.experiment.evaluation.every_epochs
        line: dict[str, Any] = {"round": epoch, "epoch": epoch} | self._losses(model)
        if each and epoch and epoch % each == 0:
            served = self._served(model)
            line |= self.judge(FactorScorer.of(served.users, served.items)).summary()
        self.folder.append_metrics(line)

    def _losses(self, model: Model) -> dict[str, float]:
        """The ranking loss of a block, on average, in training and test."""
        both = {"loss": self.blocks, "test_loss": self.test_blocks}
        return {name: float(losses(model, b).mean()) for name, b in both.items() if len(b)}

    def _save(self, epoch: int, model: Model, owners: Aggregation | None = None) -> None:
        if self.folder is None:
            return
        last = epoch == self.world.config.epochs
        if owners is not None and not last:
            save_arrays(self._owners_file(epoch), **owners.state())
        # Rows are for the whole run, so they come with its last epoch.
        ledger = self.world.door.ledger if last else Ledger()
        self.folder.save_checkpoint(epoch, model.items, model.users, ledger)
        self._drop_owners_files(but=epoch)

    def _owners_file(self, epoch: int) -> Path:
        """What aggregating owners hold after an epoch; written before its checkpoint."""
        if self.folder is None:
            raise ConfigError("this run was not kept in a folder")
        return self.folder.path / _OWNERS.format(f"{epoch:012d}")

    def _drop_owners_files(self, but: int) -> None:
        kept = self._owners_file(but)
        for path in kept.parent.glob(_OWNERS.format("*")):
            if path != kept:
                path.unlink()


def describe(evaluation: Evaluation, positive_from: float) -> str:
    """The protocol in one line, with what counts as a test item."""
    return f"{evaluation.describe()}; test items rated {positive_from:g} or better"
