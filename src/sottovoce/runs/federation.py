"""The parties of a cross-device system, put together on one training set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import AlgorithmSettings, Contributing, Schedule
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Consent
from sottovoce.core.hiding import Hidden
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import LINKS, CheckedSum, Link, SecureSum
from sottovoce.core.one_bit import noise_root
from sottovoce.core.ranks import WHOLE, Ranks, Shard
from sottovoce.core.recommender import Scorer
from sottovoce.core.redacted import Redacted
from sottovoce.engines.observers import MessageObserver, Observer
from sottovoce.engines.simulation import SimulatedDevices, Simulation, joining
from sottovoce.errors import ConfigError
from sottovoce.parties.aggregator import Aggregator, in_memory
from sottovoce.parties.defence import Defence
from sottovoce.parties.helper import Helper, noise_spans
from sottovoce.parties.secure_sum import fitted
from sottovoce.parties.server import NO_DEFENCE, Offered, Server
from sottovoce.parties.shuffler import Shuffler, spare_of
from sottovoce.privacy.base import Release
from sottovoce.privacy.reports import KReports
from sottovoce.rng import SecretStreams, Streams
from sottovoce.runs.folder import RunCheckpoint
from sottovoce.wire.terms import check_fitting


@dataclass(frozen=True, slots=True, repr=False)
class MindsChanged(Redacted):
    """Users who hid attributes after so many rounds, and what that did at once."""

    number: int
    """Of the change, from 0."""
    round: int
    hidden: tuple[Hidden, ...]
    """By user."""
    items: NDArray[np.float32]
    """The model by whose filters vectors moved."""
    before: NDArray[np.float32]
    """Everybody's vector before it."""
    after: NDArray[np.float32]

    @property
    def users(self) -> NDArray[np.int64]:
        """The numbers of those who changed their minds."""
        return np.array([one.user for one in self.hidden], dtype=np.int64)


@dataclass(slots=True)
class Federation:
    """The parties of a cross-device system on one training set, ready to run or to resume."""

    schedule: Schedule
    server: Server
    devices: SimulatedDevices
    proxy: Shuffler | None = None
    """Between the devices and the server, where randomised reports are what leaves."""
    masker: Helper | None = None
    """Who knows the masks, where the server sees sums alone."""
    largest_value: float = 0.0
    """Of a number in one device's update, in steps of the grid."""
    aggregators: tuple[Aggregator, ...] = ()
    """Three of them, where sums are checked."""
    shard: Shard = WHOLE
    """Which of the devices are here, where a process of several has them."""
    later: Sequence[tuple[int, Consent]] = ()
    """After which rounds users change their minds, and the records from then on."""
    on_change: Callable[[MindsChanged], None] | None = None
    """Is told what each change did."""
    changed: int = 0
    """How many of them have been."""

    @classmethod
    def build(
        cls,
        settings: AlgorithmSettings,
        train: Interactions,
        consent: Consent,
        release: Release,
        rng: Streams,
        labels: NDArray[np.int64] | None = None,
        link: Link | None = None,
        defence: Defence = NO_DEFENCE,
        items_named: Mapping[str, NDArray[np.int32]] | None = None,
        shard: Shard = WHOLE,
        later: Sequence[tuple[int, Consent]] = (),
    ) -> Federation:
        """`labels` are what devices know of their owners, a column per attribute of the algorithm;
        nothing where it has none. `items_named` are the items that names in the records stand for.
        The link is the algorithm's first where it is not given. Histories and records are those of
        a `shard` of the users; the plan is for all of them. `later` are the records after a change
        of mind, by its round. Raises where the parts do not go together."""
        way = link or LINKS[settings.links[0]]()
        check_fitting(settings, release, way)
        users = consent.users
        cohort = Cohort(
            users,
            train,
            consent,
            np.zeros((train.n_users, settings.embedding_size), np.float32),
            labels=np.zeros((0, 0), np.int64) if labels is None else labels,
            items_named=items_named or {},
        )
        # Who takes part does not depend on how many draws there are, which depends on who does.
        told = cohort.sendable(consent)
        shown = replace(cohort, history=told)
        able = settings.build_under(release, way, 1).device_able(shown)

        def planned(willing: NDArray[np.int64]) -> Schedule:
            there = len(willing), int(told.counts[willing].sum())
            return settings.plan(*shard.ranks.total(*there))

        plan = planned(np.flatnonzero(consent.takes_part & able))
        algorithm = settings.build_under(release, way, plan.triples)
        way = fitted(algorithm, release, way, plan.triples, plan.cohort_size)
        cohort.vectors = algorithm.device_init(users, rng)
        devices = SimulatedDevices.behind_door(algorithm, cohort, release, Ledger(), rng, link=way)
        proxy = None
        reports = release.reporting
        if reports is not None:
            minimum = [tier.min_devices for tier in reports.tiers]
            shufflers = 1 if way.mixing is None else way.mixing.shufflers
            plan = planned(_check_tiers(devices, reports, shufflers, shard.ranks))
            proxy = Shuffler(minimum, reports.max_reports, shufflers)
        if release.contributing is not None:
            plan = planned(_check_contributions(devices, shard.ranks))
        server, masker = Server.start(algorithm, train.n_items, rng), None
        server.guard = defence.guard()
        if way.summing is not None:
            if plan.cohort_size < way.summing.min_devices:
                raise ConfigError(
                    f"a secure sum needs at least link.min_devices = {way.summing.min_devices} "
                    f"devices in a round, and {plan.cohort_size} are asked"
                )
            key, spans = noise_root(rng.child("masker").root), noise_spans(algorithm, release)
            masker = Helper(way.summing, server.items.size, key, spans)
        aggregators: tuple[Aggregator, ...] = ()
        if way.checking is not None:
            if plan.cohort_size < way.checking.min_devices:
                raise ConfigError(
                    f"a checked sum needs at least link.min_devices = {way.checking.min_devices} "
                    f"devices in a round, and {plan.cohort_size} are asked"
                )
            aggregators = in_memory(way.checking, algorithm, release, rng)
        most = release.largest_value(plan.triples) * release.steps
        _check_changes(later, plan.rounds, shard)
        for _, records in later:
            algorithm.device_check(records)
        return cls(plan, server, devices, proxy, masker, most, aggregators, shard, later)

    @property
    def _summing(self) -> SecureSum | CheckedSum | None:
        """The link, where the server sees sums alone."""
        if self.aggregators:
            return self.aggregators[0].rules.link
        return None if self.masker is None else self.masker.link

    @property
    def sum_width(self) -> int | None:
        """Numbers in a row of a sum, where that is not a row of the model."""
        return 1 if self.devices.contributes else None

    def restore(self, saved: RunCheckpoint) -> None:
        """Put every party where it was after a round."""
        self.server.round, self.server.items = saved.round, saved.items
        if len(saved.memory):
            self.server.memory = saved.memory
        self.devices.cohort.vectors = saved.vectors
        if len(saved.spent):
            self.devices.cohort.spent = saved.spent
        if len(saved.sent):
            self.devices.cohort.sent = saved.sent
        self.devices.ledger.totals = saved.totals
        # A checkpoint is of the moment before users change their minds after that round.
        self.changed = sum(after < saved.round for after, _ in self.later)
        if self.changed:
            self.devices.change_consent(self.later[self.changed - 1][1])
        self.server.published = saved.published
        self.server.offered = [Offered.from_table(one) for one in saved.offered]

    def check_device(self, device: str) -> None:
        """Raises where rounds cannot run on `device`."""
        if device == "cpu":
            return
        if self.devices.reports_bits:
            system = self.server.algorithm.config.system
            raise ConfigError(f"{system} does not run on a GPU; leave it on --device cpu")
        if self.schedule.cohort_size == 1:
            raise ConfigError(
                "one device a round is a sequential computation; leave it on --device cpu"
            )
        if isinstance(self.devices.rng, SecretStreams):
            raise ConfigError('draws = "secret" is for --device cpu')
        if self.server.guard.defence.looks_at_devices:
            raise ConfigError("[defence] looks at every message; leave it on --device cpu")
        if self.masker is not None and self.masker.link.clip:
            raise ConfigError("link.clip looks at every update; leave it on --device cpu")
        from sottovoce.algorithms.fpl.accelerated import require

        require(device)

    def accelerate(self, device: str) -> None:
        """Move whole rounds to `device` (after a checkpoint was restored, if any)."""
        self.devices.accelerate(len(self.server.items), device)

    def run(
        self,
        observers: Sequence[Observer] = (),
        message_observers: Sequence[MessageObserver] = (),
        *,
        threads: int = 1,
        masked: bool = True,
        on_pace: Callable[[int, list[float]], None] | None = None,
    ) -> None:
        """`masked`: whether observers see masked updates, or of each round the sum alone.
        `on_pace` is told for how long each rank has worked."""
        while True:
            left = [after for after, _ in self.later[self.changed :]]
            rounds = min([self.schedule.rounds, *left])
            self._run(rounds, observers, message_observers, threads, masked, on_pace)
            if not left or left[0] > self.server.round:
                return
            self._change_minds()

    def _change_minds(self) -> None:
        """The next change of mind, after the round that was the last."""
        number, consent = self.changed, self.later[self.changed][1]
        self.devices.settle()
        before, view = self.devices.cohort.vectors.copy(), self.server.recommending
        hidden = tuple(self.devices.change_consent(consent, view))
        self.changed += 1
        if self.on_change is not None:
            after = self.devices.cohort.vectors.copy()
            self.on_change(MindsChanged(number, view.round, hidden, view.items, before, after))

    def _run(
        self,
        rounds: int,
        observers: Sequence[Observer],
        message_observers: Sequence[MessageObserver],
        threads: int,
        masked: bool,
        on_pace: Callable[[int, list[float]], None] | None,
    ) -> None:
        plan, link = self.schedule, self._summing
        noisy = link is not None and (link.noise or self.devices.contributes)
        everybody = noisy and plan.cohort_size == plan.devices
        Simulation(
            self.server,
            self.devices,
            plan.cohort_size,
            rounds,
            observers,
            message_observers,
            threads,
            proxy=self.proxy,
            masker=self.masker,
            largest_value=self.largest_value,
            masked=masked,
            least=link.min_devices if link and everybody else 0,
            aggregators=self.aggregators,
            joined=self._joined(),
            ranks=self.shard.ranks,
            on_pace=on_pace,
        ).run()

    def _joined(self) -> NDArray[np.int64] | None:
        """From which round each device is there, where users come in batches."""
        if not self.devices.contributes:
            return None
        algorithm, cohort = cast(Contributing, self.server.algorithm), self.devices.cohort
        if algorithm.batches == 1:
            return None
        rows = np.flatnonzero(cohort.consent.takes_part)
        told = self.devices.sendable
        return len(algorithm.shares) * joining(told, rows, algorithm.batches, self.shard)

    def vectors(self) -> NDArray[np.float32]:
        """Every device's vector by now. Devices that do not take part have learnt theirs at home
        from the published model; nothing of theirs has left."""
        return self.devices.vectors_at_home(self.server.recommending)

    def representations(self) -> NDArray[np.float32]:
        """What UC-FedRec's filters, and attackers, read of every user."""
        found = self.server.algorithm.representations(self.vectors(), self.server.items)
        if found is None:
            raise ConfigError("only UC-FedRec has representations beside the vectors")
        return found

    def scorer(self) -> Scorer:
        """What every device would recommend by now."""
        return self.server.algorithm.device_scorer(self.vectors(), self.server.recommending.items)


def _check_changes(later: Sequence[tuple[int, Consent]], rounds: int, shard: Shard) -> None:
    """Raises where users cannot change their minds so."""
    if not later:
        return
    if shard.ranks.together:
        raise ConfigError(
            "consent.changes is for a run in one process or by real devices; use --engine "
            "simulation, https or flower"
        )
    after = max(round for round, _ in later)
    if after > rounds:
        raise ConfigError(
            f"consent.changes has after_round = {after:,}, and the run has {rounds:,} rounds; "
            "lower it, or set algorithm.rounds higher"
        )


def _check_contributions(devices: SimulatedDevices, ranks: Ranks) -> NDArray[np.int64]:
    """Rows of those who may contribute. Raises where nobody may."""
    willing = devices.willing()
    if ranks.total(len(willing)) == (0,):
        raise ConfigError(
            "nobody permits a contribution: those who take part need consent.epsilon, the ε that "
            "they accept, and total_epsilon of at least as much"
        )
    return willing


def _check_tiers(
    devices: SimulatedDevices, release: KReports, shufflers: int, ranks: Ranks
) -> NDArray[np.int64]:
    """Rows of those who may report. Raises where some tier would never reach its minimum."""
    willing = devices.willing()
    here = np.bincount(devices.tiers()[willing], minlength=len(release.tiers))
    there = ranks.all_sum(here.astype(np.int64))
    if not there.any():
        raise ConfigError(
            f"nobody permits a report: those who take part need consent.epsilon of at least "
            f"{release.tiers[0].epsilon:g}, max_reports of at least {release.max_reports} and "
            "total_epsilon of at least their product"
        )
    for tier, count in zip(release.tiers, there.tolist(), strict=True):
        spare = spare_of(tier.min_devices) if shufflers > 1 else 0
        if 0 < count < tier.min_devices + spare:
            more = f" and {spare:,} to spare in a chain of shufflers" if spare else ""
            raise ConfigError(
                f"{count:,} devices report at ε = {tier.epsilon:g}, where a batch needs "
                f"{tier.min_devices:,}{more}: nothing of theirs would ever be let go; lower the "
                "tier's min_devices, or leave the tier out"
            )
    return willing
