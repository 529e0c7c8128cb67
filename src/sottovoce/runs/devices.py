"""Runs of devices and a server: in simulation, or by real processes on this machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.ledger import Ledger, Totals, totals_of
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.observers import AtRounds, Observer, Periodically
from sottovoce.engines.transcripts import MessageKeeper, Transcript
from sottovoce.engines.trial import (
    Gathered,
    Trial,
    TrialWorld,
    change_minds,
    folder_of,
    trial_rules,
)
from sottovoce.errors import ConfigError, RunError
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.runs.federation import Federation, MindsChanged
from sottovoce.runs.folder import RunCheckpoint, RunFolder
from sottovoce.runs.home import scorer_at_home
from sottovoce.runs.minds import KeptChange, by_minds, kept_changes
from sottovoce.runs.topology import ActiveRun, Engine, Measures, RunOptions, RunOutcome, Topology
from sottovoce.wire.terms import Terms

MOST_DEVICES = 512
"""Users of a trial over HTTPS: each is a device with a store of its own."""
_TRIALS = {"https": "sottovoce.services.trial", "flower": "sottovoce.engines.flower.trial"}
_GATEWAYS = 3
"""Of a trial on Flower, where nobody says how many."""


@dataclass(frozen=True, slots=True, repr=False)
class DeviceOutcome(RunOutcome):
    """What a run of a cross-device system gave."""

    federation: Federation


def federation_of(prepared: PreparedExperiment) -> Federation:
    """The parties of an experiment, ready to run or to resume."""
    experiment = prepared.experiment
    settings = experiment.cross_device()
    algorithm, labels = experiment.on(prepared.dataset, prepared.consent)
    return Federation.build(
        algorithm,
        prepared.split.train,
        prepared.consent,
        settings.release,
        experiment.party_streams(),
        labels,
        settings.link,
        experiment.defence,
        experiment.items_named(prepared.dataset, prepared.split.train),
        prepared.dataset.shard,
        experiment.later(prepared.consent),
    )


@dataclass(slots=True, repr=False)
class DeviceTopology(Topology):
    experiment: Experiment
    dataset: Dataset
    split: Split
    federation: Federation
    changes: list[KeptChange] = field(default_factory=list)
    """What changes of mind did, where there are any."""
    reopened: Scorer | None = None
    """Of a finished run. What devices that stay at home have learnt is in its saved vectors."""

    @classmethod
    def of(cls, prepared: PreparedExperiment, options: RunOptions) -> DeviceTopology:
        federation = federation_of(prepared)
        check_engine(options, federation, prepared.split.train.n_users)
        federation.check_device(options.device)
        if options.transcript and (options.device != "cpu" or options.engine != "simulation"):
            raise ConfigError(
                "a transcript needs every message written out in one place: leave it on "
                "--engine simulation --device cpu"
            )
        return cls(prepared.experiment, prepared.dataset, prepared.split, federation)

    @property
    def rounds(self) -> int:
        return self.federation.schedule.rounds

    @property
    def ledger(self) -> Ledger:
        return self.federation.devices.ledger

    def manifest(self) -> dict[str, Any]:
        """With the numbers that rules came to, where the file has some."""
        asked, found = self.experiment.algorithm, self.federation.server.algorithm.config
        ruled = {
            one.name: getattr(found, one.name)
            for one in fields(found)
            if getattr(found, one.name) != getattr(asked, one.name)
            and type(getattr(found, one.name)) in (int, float)
        }
        rules = {"by_rule": ruled} if ruled else {}
        return {"schedule": asdict(self.federation.schedule), **rules}

    def train(self, run: ActiveRun) -> None:
        if run.options.engine in ("simulation", "distributed"):
            self._simulate(run)
        else:
            self._by_processes(run)

    def _simulate(self, run: ActiveRun) -> None:
        shard, users = self.dataset.shard, self.split.n_users
        saved = None if run.folder is None else run.folder.load_checkpoint(shard, users)
        if saved is not None:
            if self.experiment.defence.burst:
                raise RunError(
                    "what devices may still add to items (defence.burst) is not kept with a "
                    "run that was stopped; start it anew with another --out"
                )
            self.federation.restore(saved)
            if run.folder is not None:
                every = kept_changes(run.folder.path)
                self.changes = [one for one in every if one.round < saved.round]
        if run.options.device != "cpu":
            self.federation.accelerate(run.options.device)
        plan = self.federation.schedule
        step = max(1, min(plan.rounds_per_epoch, plan.rounds // 100))
        checkpoints = run.checkpoints(step)
        observers: list[Observer] = [
            AtRounds(run.stops(plan.rounds_per_epoch), lambda m: run.note(m.round)),
            Periodically(step, lambda m: run.trained(m.round)),
            checkpoints,
        ]
        kept = []
        if run.options.transcript and run.folder is not None:
            identity = run.folder.manifest()["identity"]
            keeper = MessageKeeper(width=self.federation.sum_width)
            kept.append(Transcript(run.folder.path / "transcript", identity, keeper))
        self.federation.on_change = lambda change: self._note_minds(run, change)
        with checkpoints.deferred():
            self.federation.run(observers, kept, threads=run.options.threads, on_pace=run.on_pace)

    def _note_minds(self, run: ActiveRun, change: MindsChanged) -> None:
        """What a change of mind did to recommendations at once, and what an attacker would have
        got before and after it."""
        rows = np.isin(self.federation.devices.cohort.users, change.users)
        now = self.federation.vectors()
        then = np.where(rows[:, None], change.before, now)
        told = {
            when: by_minds(run.judge(self._at_home(vectors, change.items)), rows)
            for when, vectors in (("before", then), ("after", now))
        }
        found = KeptChange(
            change.number, change.round, change.hidden, told, change.items, then, now
        )
        self.changes.append(found)
        if run.folder is not None:
            found.save(run.folder.path)

    def _by_processes(self, run: ActiveRun) -> None:
        """The rounds are run by other processes, which keep their own state; Ctrl-C stops them
        where they are, and `--resume` lets them go on from there."""
        if run.folder is None:
            raise ConfigError("a trial needs a run folder")
        trial, rounds = self._trial(run.options, run.folder.path), self.rounds
        noted = {line["round"] for line in run.folder.metrics()}
        self.changes = kept_changes(run.folder.path)
        done = {change.number for change in self.changes}
        with trial.running():
            begun = trial.round()
            looks = run.stops(self.federation.schedule.rounds_per_epoch)
            stops = {s for s in looks if s >= begun and s not in noted} | {rounds}
            later = [one for one in enumerate(self.federation.later) if one[0] not in done]
            for stop in sorted(stops | {after for _, (after, _) in later if after >= begun}):
                trial.advance(stop, run.trained)
                state = self._gathered(trial)
                if stop in stops - {rounds}:
                    run.note(state.round)
                for number, (after, consent) in later:
                    if after == stop:
                        view = state.published or ModelView(state.round, state.items)
                        hidden = change_minds(trial.stores(), consent, view)
                        then, state = state.vectors, self._gathered(trial)
                        change = MindsChanged(
                            number, stop, tuple(hidden), view.items, then, state.vectors
                        )
                        self._note_minds(run, change)
        for entries in trial.ledger():
            self.ledger.record(entries)
        run.save(self.federation.server.round)
        log, refused = trial.log()
        run.folder.save_rounds(log)
        run.folder.update_manifest(refused=dict(refused))

    def _gathered(self, trial: Trial) -> Gathered:
        """Where everybody is, which is then so here, too."""
        state = trial.gather()
        self.federation.restore(
            RunCheckpoint(
                state.round,
                state.items,
                state.vectors,
                Totals(),
                published=state.published,
                offered=state.offered,
            )
        )
        return state

    def _trial(self, options: RunOptions, run: Path) -> Trial:
        """New in its run folder, or to be gone on with."""
        world = world_of(self.experiment, self.dataset, self.federation)
        if options.engine == "https":
            from sottovoce.services.trial import HttpsTrial

            return HttpsTrial(world, folder_of(run), options.processes or 8)
        from sottovoce.engines.flower.trial import FlowerTrial

        return FlowerTrial(world, folder_of(run), options.processes or _GATEWAYS)

    def reopen(self, folder: RunFolder) -> None:
        shard = self.dataset.shard
        items, vectors = folder.model(), folder.vectors(shard, self.split.n_users)
        totals = totals_of(folder.ledger()) if shard.ranks.first else Totals()
        offered = folder.manifest().get("model_versions", [])
        self.federation.restore(
            RunCheckpoint(self.rounds, items, vectors, totals, offered=tuple(offered))
        )
        self.reopened = self._at_home(vectors, items)

    def save(self, folder: RunFolder, round: int) -> None:
        server, cohort = self.federation.server, self.federation.devices.cohort
        folder.save_checkpoint(
            round, server.items, cohort.vectors, self.ledger, server.memory, cohort.spent,
            cohort.sent, server.published, [one.to_table() for one in server.offered],
            self.dataset.shard,
        )  # fmt: skip

    def scorer(self) -> Scorer:
        return self.reopened or self._at_home(
            self.federation.vectors(), self.federation.server.recommending.items
        )

    def _at_home(self, vectors: NDArray[np.float32], items: NDArray[np.float32]) -> Scorer:
        algorithm, train = self.federation.server.algorithm, self.split.train
        return scorer_at_home(self.experiment, self.dataset, train, algorithm, vectors, items)

    def state(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.federation.server.recommending.items, self.federation.vectors()

    def at_end(self, evaluation: Evaluation) -> dict[str, Any]:
        offered, found = self.federation.server.offered, dict[str, Any]()
        if offered:
            found["model_versions"] = [one.to_table() for one in offered]
        if self.changes:
            found["changes_of_mind"] = [one.summary(evaluation) for one in self.changes]
        return found

    def line(self, round: int, *, final: bool = False) -> dict[str, Any]:
        if final:
            return {"round": round, "final": True}
        return {"round": round, "epoch": round / self.federation.schedule.rounds_per_epoch}

    def outcome(self, measures: Measures, **shared: Any) -> DeviceOutcome:
        return DeviceOutcome(**shared, federation=self.federation)


def check_engine(options: RunOptions, federation: Federation, users: int) -> None:
    """Raises if an engine cannot run with what was asked for, before anything is written."""
    engine: Engine = options.engine
    if engine == "simulation":
        return
    if engine == "distributed":
        _check_ranks(options, federation)
        return
    if options.device != "cpu" or not options.kept:
        raise ConfigError(f"the {engine} engine needs --device cpu and a run folder")
    if engine == "flower":
        if federation.proxy is not None:
            raise ConfigError(
                "randomised reports go through a proxy to a server that must not know whose they "
                "are, and Flower's gateways say who sends; use --engine https or --engine "
                "simulation"
            )
        if federation.aggregators:
            raise ConfigError(
                "in a checked sum every device is checked by itself, and Flower's gateways send "
                "for many; use --engine https or --engine simulation"
            )
        if federation.masker is not None:
            _check_gateways(federation, federation.masker.link, options.processes or _GATEWAYS)
        if federation.server.guard.defence != NO_DEFENCE:
            raise ConfigError(
                "[defence] is the server's, and Flower's gateways tell it sums over their "
                "devices; use --engine https or --engine simulation"
            )
    elif users > MOST_DEVICES:
        raise ConfigError(
            f"{users:,} users would be {users:,} devices on this machine; a trial takes at most "
            f"{MOST_DEVICES}: use fewer users, --engine flower, or --engine simulation"
        )
    import_module(_TRIALS[engine])  # now, if libraries are missing


def _check_ranks(options: RunOptions, federation: Federation) -> None:
    """Raises where ranks cannot do what one process can."""
    if not options.ranks.together:
        raise ConfigError("the distributed engine runs in ranks; see `sottovoce run --processes`")
    if options.transcript:
        raise ConfigError(
            "a transcript needs every message written out in one place: leave it on --engine "
            "simulation --device cpu"
        )


def _check_gateways(federation: Federation, link: SecureSum, gateways: int) -> None:
    """Raises where so many gateways cannot take part in a secure sum."""
    if not federation.devices.contributes:
        raise ConfigError(
            "in a secure sum every device masks its own update, and Flower's gateways see the "
            "updates of the devices they host; use --engine https or --engine simulation"
        )
    if gateways < link.min_devices:
        raise ConfigError(
            f"a gateway counts as one device of a secure sum: {gateways} are fewer than "
            f"link.min_devices = {link.min_devices}; start more with --processes, or set "
            "link.min_devices lower"
        )


def world_of(experiment: Experiment, dataset: Dataset, federation: Federation) -> TrialWorld:
    """What the parties of an experiment are given at the start."""
    plan, devices = federation.schedule, federation.devices
    settings = experiment.cross_device()
    everything, train = dataset.interactions.items_vocabulary(), devices.cohort.history
    names = train.items_vocabulary().names()
    numbers = [everything.index(name) for name in names]
    known = dataset.item_categories
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
            settings.link if federation.masker is None else federation.masker.link,
        ),
        rules=trial_rules(experiment.service, list(named), plan.devices),
        cohort_size=plan.cohort_size,
        root_key=devices.rng.root,
        cohort=devices.cohort,
        names=train.users_vocabulary().names(),
        catalogue=[(name, dataset.title(n)) for name, n in zip(names, numbers, strict=True)],
        categories=() if known is None else [known[n] for n in numbers],
        defence=experiment.defence,
    )
