"""From an experiment to a run: train, evaluate beside the baselines, leave a run folder behind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sottovoce.data.splitting import Split
from sottovoce.engines.base import Listener, Moment, Observer
from sottovoce.engines.interrupts import Interrupts
from sottovoce.engines.observers import AtRounds, Checkpoints, Periodically
from sottovoce.engines.transcripts import Transcript
from sottovoce.engines.trial import Trial
from sottovoce.errors import ConfigError, RunError, said_of
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate
from sottovoce.experiment import Experiment
from sottovoce.federation import Federation
from sottovoce.ledger import COUNTS, Totals, totals_of
from sottovoce.outcomes import Outcome as Outcome
from sottovoce.outcomes import Report as Report
from sottovoce.outcomes import check_before, check_protocol, manifest_of
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.recommender import Scorer
from sottovoce.runs import Checkpoint, RunFolder
from sottovoce.silo_running import check_silo_options, run_silo
from sottovoce.trials import Engine, check_engine, start_trial


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
