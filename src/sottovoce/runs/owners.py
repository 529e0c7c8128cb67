"""Runs of data owners and their orchestrator: in simulation, or by real processes.

In simulation an epoch is planned once and learnt from many times, and the run can be stopped
between any two epochs. The model is the one that the parties' messages give, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.aggregated import in_turn
from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Events, losses
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.consent import Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.silo import (
    EpochFacts,
    Learning,
    OwnersTrial,
    SiloWorld,
    federated,
    held_out_blocks,
    owners_of,
)
from sottovoce.engines.trial import folder_of
from sottovoce.errors import ConfigError, DataError
from sottovoce.evaluation import saros_metrics
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.parties.silo_door import InteractionDoor, Read
from sottovoce.runs.folder import RunFolder, load_arrays, save_arrays
from sottovoce.runs.topology import ActiveRun, Measures, RunOptions, RunOutcome, Topology

_TRIAL = "sottovoce.services.silo_trial"
_OWNERS = "owners-{}.npz"
"""What owners hold after an epoch beside the model; written before its checkpoint."""


@dataclass(frozen=True, slots=True, repr=False)
class SiloOutcome(RunOutcome):
    """What a run with data owners gave."""

    world: SiloWorld
    facts: EpochFacts
    read: Read
    held_out: Mapping[str, Mapping[str, float]]
    """By system: MAP and NDCG over each user's held-out items alone, `own` and `legacy`."""


def check_owner_options(settings: DRIFTConfig, options: RunOptions) -> None:
    """Raises if a run was asked for that data owners cannot have, before anything is read."""
    if options.device != "cpu":
        raise ConfigError("drift takes one small step after the other; leave it on --device cpu")
    if options.transcript:
        raise ConfigError(
            "a transcript is what a server gets from devices, and drift has none; leave out "
            "--transcript"
        )
    if options.engine == "simulation":
        return
    if options.engine == "distributed":
        raise ConfigError(
            "data owners take one small step after the other on one model, so that ranks would "
            "wait for each other; use --engine simulation or --engine flower"
        )
    if options.engine == "https":
        raise ConfigError(
            "data owners and their orchestrator talk through Flower; use --engine flower or "
            "--engine simulation"
        )
    if not options.kept:
        raise ConfigError("the flower engine needs a run folder")
    if not settings.window and not in_turn(settings):
        raise ConfigError(
            "owners far apart are served in rounds, not at once; say after how many interactions "
            "a round begins, such as --set algorithm.window=1000"
        )
    import_module(_TRIAL)  # now, if libraries are missing


def build_world(prepared: PreparedExperiment) -> tuple[SiloWorld, tuple[str, ...]]:
    """The parties' shares of a training part, and the owners that would be empty. The door reads
    the users' consent."""
    experiment, train, consent = prepared.experiment, prepared.split.train, prepared.consent
    settings = _settings(experiment)
    if not consent.takes_part.any():
        raise ConfigError("nobody takes part; see consent.takes_part")
    names, member = owners_of(prepared.dataset, experiment.owners.by)
    member = member[prepared.split.item_map[: train.n_items]]
    there = np.flatnonzero(member.any(axis=0))
    owners = tuple(names[k] for k in there.tolist())
    world = SiloWorld.of(
        settings,
        InteractionDoor(
            consent,
            owners,
            OwnerTable.of_membership(member[:, there]),
            experiment.items_named(prepared.dataset, train),
        ),
        Events.of(train, None if train.ratings is None else settings.positive_from, settings.order),
        tuple(train.items_vocabulary().names()),
        experiment.streams().child("federation"),
    )
    return world, tuple(name for name in names if name not in world.owners)


def _settings(experiment: Experiment) -> DRIFTConfig:
    if experiment.silo is None:
        raise ConfigError(f"{experiment.name} has no data owners; algorithm.name must be drift")
    return experiment.silo


def check_owner_data(experiment: Experiment, dataset: Dataset) -> None:
    """Raises if data owners could not learn from these data."""
    table, settings = dataset.interactions, _settings(experiment)
    columns = {"ratings": settings.draws or table.ratings, "times": table.timestamps}
    lacks = [name for name, column in columns.items() if column is None]
    if lacks:
        without = "" if settings.draws else '; algorithm.negatives = "untouched" needs no ratings'
        raise ConfigError(
            "drift learns from what users liked and disliked, in the order of time, and "
            f"{dataset.name} has no {' and no '.join(lacks)}; take data that have both, such as "
            f"town or movielens-100k{without}"
        )
    if experiment.data.min_rating >= settings.positive_from and not settings.draws:
        raise ConfigError(
            f"data.min_rating = {experiment.data.min_rating:g} would leave no negatives, since "
            f"algorithm.positive_from is {settings.positive_from:g}; leave it out, or let owners "
            'draw some (algorithm.negatives = "untouched")'
        )


@dataclass(slots=True, repr=False)
class OwnersTopology(Topology):
    """A round of it is an epoch."""

    dataset: Dataset
    split: Split
    held_out: Interactions
    """What those who take part did, liked or not."""
    consent: Consent
    world: SiloWorld
    facts: EpochFacts
    blocks: Blocks
    test_blocks: Blocks
    relevant: Literal["liked", "all"]
    model: DriftModel
    learning: Learning | None = None

    @classmethod
    def of(cls, prepared: PreparedExperiment, options: RunOptions) -> OwnersTopology:
        experiment, split, consent = prepared.experiment, prepared.split, prepared.consent
        world, empty = build_world(prepared)
        see = f"see algorithm.positive_from, which is {world.config.positive_from:g}"
        judged = experiment.judged(split, consent)
        if split.test.n_interactions and not judged.test.n_interactions:
            raise DataError(
                "nobody who takes part liked anything that was held out, so that nothing could be "
                f"evaluated; {see}"
            )
        blocks = world.blocks()
        facts = federated(world, blocks, int(consent.takes_part.sum()), empty)
        if not len(blocks):
            raise DataError(
                "no user has a block of negatives and the positives behind them at any owner, so "
                f"that there is nothing to learn from; {see}"
            )
        held_out = split.test.select(consent.takes_part[split.test.users])
        return cls(
            prepared.dataset, judged, held_out, consent, world, facts, blocks,
            held_out_blocks(world, held_out), experiment.evaluation.relevant, world.first_model(),
        )  # fmt: skip

    @property
    def rounds(self) -> int:
        return self.world.config.epochs

    @property
    def ledger(self) -> Ledger:
        return self.world.door.ledger

    def manifest(self) -> dict[str, Any]:
        world, facts, read = self.world, self.facts, self.world.departed.read
        owners = len(world.owners)
        users = np.bincount(read.owner, minlength=owners)
        messages = np.bincount(read.owner, read.positive + read.negative, owners).astype(np.int64)
        schedule = {
            "rounds": self.rounds,
            "rounds_per_epoch": 1,
            "devices": facts.members,
            "blocks_per_epoch": facts.blocks,
            "updates_per_epoch": facts.updates,
            "owner_rounds_per_epoch": facts.rounds,
            "user_rows_per_epoch": facts.user_rows,
            "item_rows_per_epoch": facts.item_rows,
            "users_without_blocks": facts.without_blocks,
        }
        if world.config.sums_over_people:
            schedule["withheld_rows"] = facts.withheld
        return {
            "schedule": schedule,
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

    def train(self, run: ActiveRun) -> None:
        saved = None if run.folder is None else run.folder.load_checkpoint()
        if saved is not None:
            self.model = DriftModel(saved.vectors, saved.items)
        if saved is None and run.options.engine != "simulation":
            self._by_processes(run)
        elif saved is None or saved.round < self.rounds:
            self._simulate(run, 0 if saved is None else saved.round)
        # As the orchestrator has it: without rows of those who never joined.
        self.model = self._served()
        if run.folder is not None:
            _drop_owner_states(run.folder, but=self.rounds)  # of which there is none

    def _simulate(self, run: ActiveRun, at: int) -> None:
        """Epoch by epoch; Ctrl-C is answered between two of them."""
        self.learning = learning = self.world.learning(self.blocks, self.model, at)
        if at and run.folder is not None and learning.state():
            learning.take_up(load_arrays(_owner_state(run.folder, at)))
        if not at:
            self.model = learning.model()
            run.note(0, judged=False)
        checkpoints, looks = run.checkpoints(1), run.stops(1)
        with checkpoints.deferred():
            for epoch in range(at + 1, self.rounds + 1):
                learning.epoch()
                self.model = learning.model()
                self.model.check()
                if epoch < self.rounds:
                    run.note(epoch, judged=epoch in looks)
                run.trained(epoch)
                checkpoints.at(epoch, self.rounds)

    def _by_processes(self, run: ActiveRun) -> None:
        """By processes that keep their own state; Ctrl-C stops them where they are, and `--resume`
        lets them go on from there."""
        if run.folder is None:
            raise ConfigError("the flower engine needs a run folder")
        kind, folder = import_module(_TRIAL).SiloTrial, folder_of(run.folder.path)
        trial = cast(OwnersTrial, kind(self.world, folder, run.options.processes))
        self.model = trial.train(run.progress)
        self.model.check()
        run.folder.save_rounds(trial.rounds())
        run.save(self.rounds)

    def reopen(self, folder: RunFolder) -> None:
        self.model = DriftModel(folder.vectors(), folder.model())

    def save(self, folder: RunFolder, round: int) -> None:
        last = round == self.rounds
        held = {} if last or self.learning is None else self.learning.state()
        if held:
            save_arrays(_owner_state(folder, round), **held)
        # Rows are for the whole run, so they come with its last epoch.
        ledger = self.ledger if last else Ledger()
        folder.save_checkpoint(round, self.model.items, self.model.users, ledger)
        _drop_owner_states(folder, but=round)

    def _served(self) -> DriftModel:
        there = self.consent.takes_part[:, None]
        return DriftModel(np.where(there, self.model.users, np.float32(0.0)), self.model.items)

    def scorer(self) -> Scorer:
        served = self._served()
        return FactorScorer.of(served.users, served.items)

    def state(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.model.items, self.model.users

    def line(self, round: int, *, final: bool = False) -> dict[str, Any]:
        """With the ranking loss of a block, on average, in training and test."""
        both = {"loss": self.blocks, "test_loss": self.test_blocks}
        means = {name: float(losses(self.model, b).mean()) for name, b in both.items() if len(b)}
        return {"round": round, "epoch": round} | ({"final": True} if final else {}) | means

    def measures(self, scorer: Scorer, threads: int) -> dict[str, float]:
        """Those of the SAROS paper, `own`, and of its public code, `legacy`."""
        found: dict[str, float] = {}
        if self.held_out.ratings is None:  # nothing says which items they should put first
            return found
        least = self.world.config.positive_from
        for name, kind in (("own", saros_metrics.own), ("legacy", saros_metrics.legacy)):
            means = kind(scorer, self.held_out, least, threads=threads).means()
            found |= {f"{name} {measure}": value for measure, value in means.items()}
        return found

    def protocol_line(self, evaluation: Evaluation) -> str:
        """With what counts as a test item, where not everything does."""
        least = self.world.config.positive_from
        if self.relevant == "all" or self.held_out.ratings is None:
            return evaluation.describe()
        return f"{evaluation.describe()}; test items rated {least:g} or better"

    def outcome(self, measures: Measures, **shared: Any) -> SiloOutcome:
        world, read = self.world, self.world.departed.read
        return SiloOutcome(**shared, world=world, facts=self.facts, read=read, held_out=measures)


def _owner_state(folder: RunFolder, epoch: int) -> Path:
    return folder.path / _OWNERS.format(f"{epoch:012d}")


def _drop_owner_states(folder: RunFolder, but: int) -> None:
    kept = _owner_state(folder, but)
    for path in folder.path.glob(_OWNERS.format("*")):
        if path != kept:
            path.unlink()
