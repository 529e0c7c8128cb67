"""Malicious devices that push one item: what they reach without a defence, and what with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.base import CrossDevice
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.poisoning import (
    Allowed,
    Facts,
    FedRecAttack,
    HardUsers,
    Poisoner,
    Profiles,
    Twin,
    cold_targets,
    exposure,
    pushing_bits,
)
from sottovoce.config import require_whole
from sottovoce.core.consent import Choice
from sottovoce.core.messages import Batch, ModelView, SummedReports, add_up
from sottovoce.core.recommender import Scorer
from sottovoce.errors import ConfigError
from sottovoce.evaluation.significance import over_seeds
from sottovoce.parties.defence import Defence, Guard, defended_groups
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce_papers.claims import Row, Sets, Spec, StudyLine
from sottovoce_papers.kinds import alike
from sottovoce_papers.lines import END, Job, Kind, Settings, TrainedLine, TrainedSystem

EXPOSURES = ("ER@10", "ER@20")
CLEAN = "none"
"""The attack of a training without malicious devices."""
ATTACKS = (CLEAN, "fedrecattack", "a-hum", "twin", "late-twin", "random", "popular", "bits")
WAYS = (
    *("direct", "direct, defended", "secure sum", "secure sum, capped"),
    *("secure sums of groups, capped", "rotated reports", "published reports"),
    "published reports, drawn coordinates",
)
LOUD = 100.0
"""The norm of a row of an attacker who does not try to look harmless."""
FILLERS = 30
LATE_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class PoisonedSettings:
    """A training among malicious devices, `[systems.KEY.settings]` of a study."""

    way: str = "direct"
    """How messages reach the server, and what the server does about malicious ones."""
    attack: str = CLEAN
    share: float = 0.0
    """The share of malicious devices, which come on top of the honest ones."""
    targets: int = 1
    """How many items are pushed, each in a training of its own."""
    embedding_size: int = 10
    learning_rate: float = 0.05
    triples: int = 20
    rounds: int = 200
    cohort_size: int = 0
    """Devices in a round; 0 asks all."""
    public_share: float = 0.01
    """The share of all interactions that FedRecAttack knows."""
    burst: float = 1.0
    """What a device may add to an item if the way is defended."""
    refill_draws: float = 12.0
    """An allowance comes back while a mean user draws each of their items so many times."""
    max_sum_norm: float = 3.0
    """The cap on a sum, in multiples of the median."""
    group_size: int = 20

    def __post_init__(self) -> None:
        for name, known in (("way", WAYS), ("attack", ATTACKS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"there is no {name} {getattr(self, name)!r}; there are {known}")
        require_whole("group_size", self.group_size, 2)


class PoisonedKind(Kind):
    """FPL, or FMF-LDP by randomised reports, among devices that push an item."""

    def key(self, job: Job) -> object:
        return settings_of(job.settings)

    def train(self, job: Job) -> TrainedSystem:
        training = PoisonedTraining(settings_of(job.settings), job)
        pushed = [training.scorer(target) for target in training.attacked]
        found = over_seeds(dict(enumerate(map(job.measure, pushed))))
        shown = training.exposures(pushed)
        return TrainedSystem({END: found}, dict(zip(EXPOSURES, shown, strict=True)))


def settings_of(settings: Settings) -> PoisonedSettings:
    """Return the settings of a training, checked."""
    return config.build(PoisonedSettings, dict(settings), "poisoned")


class PoisonedTraining:
    """The trainings of one line: one for each target, or one without malicious devices."""

    def __init__(self, settings: PoisonedSettings, job: Job) -> None:
        self.settings, self.train, self.seed = settings, job.split.train, job.seed
        rng = Streams.from_seed(job.seed)
        self.facts = Facts.of(self.train, settings.public_share, rng.child("public"))
        self.targets = cold_targets(self.train, settings.targets, rng).tolist()
        clean = settings.attack == CLEAN
        self.attacked: list[int | None] = [None] if clean else self.targets
        """The targets of the trainings; None for one without malicious devices."""

    def exposures(self, scorers: Sequence[Scorer]) -> list[float]:
        """Return the mean exposures of the targets, each by its own training if it is pushed."""
        several = [*scorers] * (len(self.targets) // len(scorers))
        pairs = zip(several, self.targets, strict=True)
        found = [exposure(scorer, self.train, target, threads=1) for scorer, target in pairs]
        return [float(np.mean([one[name] for one in found])) for name in EXPOSURES]

    def scorer(self, target: int | None) -> Scorer:
        """Train, with malicious devices if there is a target."""
        if "reports" in self.settings.way:
            return self._by_reports(target)
        return self._by_rows(target)

    # --- item rows --------------------------------------------------------------------------------

    def _by_rows(self, target: int | None) -> Scorer:
        s, n_users = self.settings, self.train.n_users
        federation, rng = self._federation(), Streams.from_seed(self.seed).child("malicious")
        honest, size = federation.devices.willing(), s.cohort_size or n_users
        n, bad, poisoner = len(honest), np.zeros(0, np.int64), None
        if target is not None:
            bad = np.arange(n, n + max(1, round(s.share * n)), dtype=np.int64)
            poisoner = self._poisoner(federation, target, bad, rng)
        begin = s.rounds - LATE_ROUNDS if s.attack.startswith("late") else 0
        draws = s.refill_draws * (self.train.n_interactions / n_users)
        guard = Defence(
            burst=s.burst if s.way == "direct, defended" else 0.0,
            refill_rounds=round(draws / s.triples * n_users / size),
            max_sum_norm=s.max_sum_norm if s.way == "secure sum, capped" else 0.0,
        ).guard()
        server = federation.server
        for _ in range(s.rounds):
            view = server.publish()
            asked = server.select(n + len(bad), size)
            good, evil = honest[asked[asked < n]], asked[asked >= n]
            sent = []
            if poisoner is not None and len(evil) and view.round >= begin:
                sent = [poisoner.device_poison(view, evil, rng)]
            if s.way.startswith("secure sums of groups"):
                server.fold(self._in_groups(federation, view, good, sent))
            else:
                server.fold(_summed(federation, view, good, sent, guard))
        return federation.scorer()

    def _federation(self) -> Federation:
        s = self.settings
        settings = FPLConfig(
            embedding_size=s.embedding_size,
            learning_rate=s.learning_rate,
            cohort_size=s.cohort_size or "all",
            triples=s.triples,
            rounds=s.rounds,
        )
        choice, rng = Choice(share_positives=1.0), Streams.from_seed(self.seed)
        return alike(settings, self.train, choice, ShareFraction("draw"), rng)

    def _poisoner(
        self, federation: Federation, target: int, senders: NDArray[np.int64], rng: Streams
    ) -> Poisoner:
        s, facts, n_items = self.settings, self.facts, self.train.n_items
        allowed = Allowed(2 * s.triples, ShareFraction("draw").largest_value(s.triples))
        if s.attack == "fedrecattack":
            return FedRecAttack(target, facts, allowed)
        if s.attack == "a-hum":
            return HardUsers(target, allowed)
        if s.attack.endswith("twin"):
            return Twin(target, facts, allowed, LOUD, learning_rate=s.learning_rate)
        popular = facts.popular[: max(FILLERS + 1, n_items // 10)]
        fillers = np.arange(n_items) if s.attack == "random" else popular
        algorithm: CrossDevice = federation.server.algorithm  # type: ignore[assignment]
        return Profiles.of(algorithm, target, fillers, n_items, FILLERS, senders, rng)

    def _in_groups(
        self, federation: Federation, view: ModelView, good: NDArray[np.int64], sent: list[Any]
    ) -> SummedReports:
        """Spread malicious devices over the groups, and let them own those in which they are."""
        width, size = view.items.shape[1], self.settings.group_size
        order = Streams.from_seed(view.round).child("groups").generator().permutation(len(good))
        groups = np.array_split(good[order], max(1, len(good) // size))
        parts = [add_up(view.round, [federation.devices.report(view, g)], width) for g in groups]
        evil = np.unique(sent[0].sender) if sent else np.zeros(0, np.int64)
        for place, sender in enumerate(evil.tolist()):
            mine, at = sent[0].sender == sender, place % len(parts)
            message = replace(
                sent[0],
                sender=sent[0].sender[mine],
                item=sent[0].item[mine],
                values=sent[0].values[mine],
            )
            both = [parts[at], add_up(view.round, [message], width)]
            parts[at] = federation.server.add_sums(both)
        return defended_groups(view.round, parts, self.settings.burst, width)

    # --- randomised reports -----------------------------------------------------------------------

    def _by_reports(self, target: int | None) -> Scorer:
        s, train, rng = self.settings, self.train, Streams.from_seed(self.seed)
        variant, drawn = s.way.split()[0], s.way.endswith("drawn coordinates")
        settings = FMFConfig(
            variant="rotated" if variant == "rotated" else "published",
            embedding_size=8 if variant == "rotated" else 5,
            learning_rate=0.02,
            rounds=s.rounds,
        )
        release, k = KReports(100, (Tier(2.5, 100),)), 100
        federation = alike(settings, train, Choice(epsilon=2.5, max_reports=k), release, rng)
        server, devices = federation.server, federation.devices
        users = np.arange(train.n_users, dtype=np.int64)
        n_bad = 0 if target is None else max(1, round(s.share * train.n_users))
        for _ in range(s.rounds):
            view = server.publish()
            reports = devices.report_bits(view, users).reports.ravel()
            if target is not None:
                towards = view.items[self.facts.popular[:10]].mean(axis=0).astype(np.float64)
                mine = pushing_bits(view, target, towards, n_bad, k, variant, rng, drawn)
                reports = np.concatenate([reports, mine.ravel()])
            batch = Batch(view.round, 0, train.n_users + n_bad, reports)
            server.fold(server.count([batch]))
        return federation.scorer()


def _summed(
    federation: Federation,
    view: ModelView,
    good: NDArray[np.int64],
    sent: list[Any],
    guard: Guard,
) -> SummedReports:
    server, width = federation.server, view.items.shape[1]
    if guard.defence.looks_at_devices:
        batches = [federation.devices.report(view, good), *sent]
        server.sum_reports(batches)  # the checks, which all of them pass
        return guard.sum_reports(view.round, batches, width)
    total = federation.devices.report_summed(view, good)
    if sent:
        total = server.add_sums([total, add_up(view.round, sent, width)])
    return guard.sum_opened(total)


# --- columns and rows ----------------------------------------------------------------------------


def exposures(line: TrainedLine) -> Row:
    """Return the mean exposure of the targets."""
    if line.system.kind != "poisoned":
        return {}
    return {name: float(np.mean([one[name] for one in line.facts])) for name in EXPOSURES}


def compared(sets: Sets, values: Spec) -> list[StudyLine]:
    """Return the rows next to the training without attack and defence: how much more the targets
    are shown, and which share of accuracy is lost."""
    lines = [*sets["main"]]
    for line in lines:
        row = line.row
        plain = row["way"].split(",")[0] if "reports" in row["way"] else "direct"
        (clean,) = [
            one.row
            for one in lines
            if (one.row["data"], one.row["way"], one.row["attack"]) == (row["data"], plain, CLEAN)
        ]
        row["more"] = row["ER@10"] - clean["ER@10"]
        row["lost"] = 1.0 - row["NDCG@10"] / clean["NDCG@10"]
    return lines
