"""The one door. Everything that leaves a device leaves here; nothing else builds a report.

Consent is read first; then the device learns, the release decides what may leave, the ledger gets a
row, and only then is there a report. Item rows have three ways out, which differ in how many
devices and rounds they serve at once, not in what leaves: `report` is the definition (a message per
device), the other two are the same sums without the messages. `report_masked` is `report` where
only a sum of many may be read. `report_bits` is the one way out of randomised reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Cohort,
    Counts,
    CrossDevice,
    FactorModel,
    Fusing,
    Reporting,
    Selective,
)
from sottovoce.consent import ALWAYS, Consent, ShareRule
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.ledger import Entries, Ledger
from sottovoce.links import Direct, Link, SecureSum, has_noise
from sottovoce.masking import masked, seeds_from
from sottovoce.messages import (
    BitReports,
    DeviceReports,
    MaskedReports,
    MaskSeeds,
    ModelView,
    SummedReports,
    Updates,
    add_sums,
    add_up,
)
from sottovoce.one_bit import noise_root
from sottovoce.privacy.central import clip_reports, room_for_sums
from sottovoce.privacy.mechanisms import BoundRelease, Release
from sottovoce.privacy.reports import BoundReports, KReports
from sottovoce.privacy.updates import BoundClipped, Clipped
from sottovoce.rng import Streams
from sottovoce.sums import sum_groups

_HOME_BATCH = 1024
_WRITTEN_AT_ONCE = 1 << 22
"""Numbers of plain updates that are written out together, or those of one device."""
SEALED_SEED_BYTES = 176
"""Of a mask's seed on its way to the proxy: the device's key, the sealed seed, a signature."""


class Accelerator(Protocol):
    """Computes whole rounds of one cohort elsewhere (a GPU) and keeps the devices' state there."""

    def learn_summed(
        self, view: ModelView, rows: NDArray[np.int64], learn_key: int, share_key: int
    ) -> tuple[NDArray[np.int64], Counts]: ...

    def vectors(self) -> NDArray[np.float32]: ...


@dataclass(slots=True, repr=False)
class Devices:
    """A cohort behind its door. A phone is a cohort of one."""

    algorithm: FactorModel
    cohort: Cohort
    ledger: Ledger
    rng: Streams
    _offer: Release | Clipped | KReports
    _noise: bytes
    _release: BoundRelease | BoundClipped | BoundReports
    _link: Link
    _accelerator: Accelerator | None = None

    @classmethod
    def behind_door(
        cls,
        algorithm: FactorModel,
        cohort: Cohort,
        release: Release | Clipped | KReports,
        ledger: Ledger,
        rng: Streams,
        noise: bytes | None = None,
        link: Link | None = None,
    ) -> Devices:
        """`noise` is the root of the private coins of randomised reports and of masks: 32 bytes
        that nobody else knows. A simulation leaves it out and gets one that repeats with its seed.
        `link` is the way that reports go; straight to the server where it is not given."""
        root = noise_root(rng.root) if noise is None else noise
        way = link or Direct()
        bound = _bound(algorithm, cohort, cohort.consent, release, rng, root, way)
        return cls(algorithm, cohort, ledger, rng, release, root, bound, way)

    def __repr__(self) -> str:
        return f"<Devices {len(self.cohort):,}, redacted>"

    def change_consent(self, consent: Consent) -> None:
        """From the next round on, these records hold; where they cannot, nothing changes."""
        if self._accelerator is not None:
            raise ConfigError("consent can change on --device cpu alone")
        if not np.array_equal(consent.users, self.cohort.users):
            raise ConsentError("consent records must belong to the cohort's devices, in order")
        self._release = _bound(
            self.algorithm, self.cohort, consent, self._offer, self.rng, self._noise, self._link
        )
        self.cohort.consent = consent

    def accelerate(self, load: Callable[[ShareRule], Accelerator]) -> None:
        """From now on, compute whole rounds on what `load` gives for the rule of all devices."""
        everyone = np.arange(len(self.cohort), dtype=np.int64)
        self._accelerator = load(self._sharing().rule(everyone, np.array([0])))

    def settle(self) -> None:
        """Bring the devices' state home from an accelerator."""
        if self._accelerator is not None:
            self.cohort.vectors = self._accelerator.vectors()

    @property
    def reports_bits(self) -> bool:
        """Whether randomised reports are what leaves."""
        return isinstance(self._release, BoundReports)

    @property
    def spends(self) -> bool:
        """Whether what leaves is paid for from owners' budgets."""
        return isinstance(self._release, BoundReports | BoundClipped) or has_noise(self._link)

    @property
    def fuses(self) -> bool:
        """Whether many rounds of one device each can be run at once."""
        return isinstance(self.algorithm, Fusing) and self._accelerator is None

    def noise_per_row(self) -> NDArray[np.float64]:
        """The scale of each device's noise on the rows that it sends, for an accelerator that adds
        it; 0 where there is none, or where it does not depend on the rows."""
        release = self._release
        if isinstance(release, BoundClipped) and release.per_row:
            return release.scales()
        return np.zeros(len(self.cohort))

    def willing(self) -> NDArray[np.int64]:
        """Rows of the devices that take part, can learn, and may still send."""
        cohort = self.cohort
        able = cohort.consent.takes_part & self.algorithm.device_able(cohort)
        rows = np.flatnonzero(able)
        return rows[self._permitted(rows)]

    def tiers(self) -> NDArray[np.int32]:
        """The tier in which each device reports, -1 where in none."""
        return self._reporting()[1].tier

    def report(self, view: ModelView, rows: NDArray[np.int64]) -> DeviceReports:
        """One round of these devices, as messages."""
        self._require_consent(rows)
        self._require_budget(rows)
        updates = self._learning().device_learn(view, self.cohort, rows, self.rng)
        rule = self._sharing().rule(rows, np.array([view.round]))
        reports, counts = self._merge(updates, rows, view.round, self._leaving(updates, rule))
        if isinstance(self._release, BoundClipped):
            reports = self._release.add_noise(reports, rows, *view.items.shape)
            counts = self._every_row(rows, counts, len(view.items))
        if self._clip:
            reports = clip_reports(reports, self._clip)
        self._record(rows, np.full(len(rows), view.round), counts, view.items.size)
        return reports

    def report_in_parts(self, view: ModelView, rows: NDArray[np.int64]) -> Iterator[DeviceReports]:
        """`report` of all, of so many devices at a time as there is room for: at first as if each
        sent a row for every item, then by what the last ones sent."""
        start, many = 0, self.at_once(rows, max(1, _WRITTEN_AT_ONCE // view.items.size))
        while start < len(rows):
            reports = self.report(view, rows[start : start + many])
            yield reports
            start += many
            many = max(1, min(2 * many, many * _WRITTEN_AT_ONCE // max(1, reports.values.size)))

    def at_once(self, rows: NDArray[np.int64], many: int) -> int:
        """Devices whose messages are made together: so many, unless they look at each other."""
        return len(rows) if self.algorithm.looks_around else many

    def report_masked(
        self, view: ModelView, rows: NDArray[np.int64], seeds: tuple[bytes, ...] | None = None
    ) -> tuple[MaskedReports, MaskSeeds]:
        """One round of these devices as masked messages and the seeds of their masks, which are for
        the proxy alone. A simulation leaves `seeds` out."""
        if not isinstance(self._link, SecureSum):
            raise ConfigError("masked reports are for a secure sum")
        reports, users = self.report(view, rows), self.cohort.users[rows]
        if seeds is None:
            seeds = tuple(seeds_from(self._noise, users, view.round))
        hidden = np.empty((len(rows), view.items.size), dtype=np.uint64)
        for row, (user, seed) in enumerate(zip(users.tolist(), seeds, strict=True)):
            whole, mine = np.zeros(view.items.shape, np.int64), reports.sender == user
            whole[reports.item[mine]] = reports.values[mine]
            hidden[row] = masked(whole, seed)
        return MaskedReports(view.round, users, hidden), MaskSeeds(view.round, users, seeds)

    def report_summed(
        self, view: ModelView, rows: NDArray[np.int64], threads: int = 1
    ) -> SummedReports:
        """One round of these devices, as the sum of their messages."""
        self._require_consent(rows)
        self._require_budget(rows)
        algorithm = self._learning()
        written = isinstance(self._release, BoundClipped) and self._release.per_row
        few = self._accelerator is None and algorithm.device_few(view, len(rows))
        if few or (written and self._accelerator is None):
            return add_up(view.round, [self.report(view, rows)], view.items.shape[1])
        if self._clip:
            return self._summed_in_parts(view, rows)
        if self._accelerator is not None:
            sums, counts = self._accelerator.learn_summed(
                view,
                rows,
                self.rng.child("learn", view.round).key,
                self._sharing().round_key(view.round),
            )
        else:
            rule = self._sharing().rule(rows, np.array([view.round]))
            sums, counts = algorithm.device_learn_summed(
                view, self.cohort, rows, rule, self.rng, threads
            )
        if isinstance(self._release, BoundClipped):
            if not self._release.per_row:  # an accelerator has added that already
                sums = self._release.add_noise_to_sums(sums, rows, view.round, threads)
            counts = self._every_row(rows, counts, len(view.items))
        self._record(rows, np.full(len(rows), view.round), counts, view.items.size)
        every_item = np.arange(len(sums), dtype=np.int32)
        return SummedReports(view.round, every_item, sums, len(rows))

    def report_rounds(
        self, items: NDArray[np.float32], first_round: int, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """len(rows) rounds of one device each, folded one by one; returns the model after them."""
        self._require_consent(rows)
        if not isinstance(self.algorithm, Fusing) or isinstance(self._link, SecureSum):
            raise ConfigError("this algorithm, or this link, runs its rounds one by one")
        rounds = np.arange(first_round, first_round + len(rows), dtype=np.int64)
        rule = self._sharing().rule(rows, rounds)
        after, counts = self.algorithm.device_learn_rounds(
            items, first_round, self.cohort, rows, rule, self.rng
        )
        self._record(rows, rounds, counts, items.size)
        return after

    def report_bits(self, view: ModelView, rows: NDArray[np.int64], threads: int = 1) -> BitReports:
        """One round of these devices as k randomised reports each. Their budgets are charged; one
        that has too little left is not asked, or this raises."""
        self._require_consent(rows)
        self._require_budget(rows)
        algorithm, release = self._reporting()
        rule = release.rule(rows, view.round, *algorithm.sampling(view.items))
        reports = algorithm.device_report(view, self.cohort, rows, rule, threads)
        self.cohort.spent[rows] += release.cost()[rows]
        self.cohort.sent[rows] += 1
        self.ledger.record(release.entries(rows, view.round))
        return BitReports(view.round, self.cohort.users[rows], release.tier[rows], reports)

    def vectors_at_home(self, view: ModelView) -> NDArray[np.float32]:
        """Every device's vector as it would recommend with now. Devices that do not take part (all
        of them, where a vector follows from the model) fit theirs to the published model. Nothing
        leaves, and the devices' own state stays as it is."""
        cohort, vectors = self.cohort, self.cohort.vectors.copy()
        fits = self.algorithm.device_able(cohort)
        if not self.algorithm.refits:
            fits &= ~cohort.consent.takes_part
        home = np.flatnonzero(fits)
        for start in range(0, len(home), _HOME_BATCH):
            rows = home[start : start + _HOME_BATCH]
            part = cohort.take(rows)
            self.algorithm.device_fit(view, part, self.rng)
            vectors[rows] = part.vectors
        return vectors

    @property
    def _clip(self) -> float:
        """The largest norm of an update as a whole; 0 where any may leave."""
        return self._link.clip if isinstance(self._link, SecureSum) else 0.0

    def _summed_in_parts(self, view: ModelView, rows: NDArray[np.int64]) -> SummedReports:
        """`report` of all, a part at a time, added up."""
        if self._accelerator is not None:
            raise ConfigError("link.clip looks at every update by itself; leave it on --device cpu")
        width = view.items.shape[1]
        total = SummedReports(view.round, np.zeros(0, np.int32), np.zeros((0, width), np.int64), 0)
        for reports in self.report_in_parts(view, rows):
            total = add_sums(view.round, [total, add_up(view.round, [reports], width)], width)
        return replace(total, devices=len(rows))  # who sends nothing counts, too

    def _learning(self) -> CrossDevice:
        if isinstance(self.algorithm, Reporting):
            raise ConfigError("this algorithm sends randomised reports, not item rows")
        return self.algorithm  # type: ignore[return-value]

    def _sharing(self) -> BoundRelease | BoundClipped:
        if isinstance(self._release, BoundReports):
            raise ConfigError("this release sends randomised reports, not item rows")
        return self._release

    def _reporting(self) -> tuple[Reporting, BoundReports]:
        if not isinstance(self.algorithm, Reporting) or not isinstance(self._release, BoundReports):
            raise ConfigError("this algorithm and release send item rows, not randomised reports")
        return self.algorithm, self._release

    def _require_consent(self, rows: NDArray[np.int64]) -> None:
        if not self.cohort.consent.takes_part[rows].all():
            raise ConsentError("a device that does not take part was asked to send")

    def _require_budget(self, rows: NDArray[np.int64]) -> None:
        if not self._permitted(rows).all():
            raise ConsentError("a device was asked to report beyond what its owner permits")

    def _permitted(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these devices' owners' limits have room for another round."""
        cohort, link = self.cohort, self._link
        if isinstance(link, SecureSum) and link.noise:
            limit = cohort.consent.total_epsilon[rows]
            return room_for_sums(link.noise, cohort.sent[rows], cohort.spent[rows], limit)
        if isinstance(self._release, BoundReports | BoundClipped):
            return self._release.permits(cohort.spent)[rows]
        return np.ones(len(rows), dtype=bool)

    def _leaving(self, updates: Updates, rule: ShareRule) -> NDArray[np.bool_]:
        if not len(rule.allowed) and np.all(rule.threshold == ALWAYS):
            return np.ones(len(updates), dtype=bool)
        positive = updates.positive
        entry = updates.entry[positive]
        leaves = np.ones(len(updates), dtype=bool)
        if np.all(rule.threshold == ALWAYS):
            leaves[positive] = rule.allowed[entry]
        else:
            leaves[positive] = rule.may_leave(entry.reshape(len(rule.keys), -1)).ravel()
        return leaves

    def _merge(
        self,
        updates: Updates,
        rows: NDArray[np.int64],
        round: int,
        leaves: NDArray[np.bool_],
    ) -> tuple[DeviceReports, Counts]:
        """Sum each device's leaving updates by item, items ascending."""
        row, item = updates.row[leaves], updates.item[leaves]
        positive = updates.positive[leaves]
        order = np.lexsort((item, row))
        row, item = row[order], item[order]
        first = np.ones(len(row), dtype=bool)
        first[1:] = (row[1:] != row[:-1]) | (item[1:] != item[:-1])
        starts = np.flatnonzero(first)
        sums = sum_groups(updates.values, np.flatnonzero(leaves)[order], starts)
        sent_positive = positive[order][starts]
        n = len(rows)
        counts = Counts(
            np.bincount(row[starts][sent_positive], minlength=n).astype(np.int32),
            np.bincount(row[starts][~sent_positive], minlength=n).astype(np.int32),
        )
        sender = self.cohort.users[rows][row[starts]]
        return DeviceReports(round, sender, item[starts], sums), counts

    def _every_row(self, rows: NDArray[np.int64], counts: Counts, n_rows: int) -> Counts:
        """What each device sends, where a row that says nothing is sent for all others, too."""
        if not isinstance(self._release, BoundClipped) or not self._release.dense:
            return counts
        own = self.cohort.history.counts[rows].astype(np.int32)
        return Counts(own, n_rows - own)

    def _record(
        self,
        rows: NDArray[np.int64],
        rounds: NDArray[np.int64],
        counts: Counts,
        numbers: int,
    ) -> None:
        """`numbers` are those of the whole model, which a masked report has."""
        sent, release = counts.positive.astype(np.int64) + counts.negative, self._sharing()
        epsilon = np.full(len(rows), release.epsilon)
        np.add.at(self.cohort.sent, rows, 1)
        if isinstance(release, BoundClipped):
            epsilon = release.epsilons[rows]
            self.cohort.spent[rows] += np.where(np.isfinite(epsilon), epsilon, 0.0)
        self.ledger.record(
            Entries(
                kind=release.kind,
                user=self.cohort.users[rows],
                round=rounds,
                positive_rows=counts.positive,
                negative_rows=counts.negative,
                bytes=(
                    np.full(len(rows), 8 * numbers + SEALED_SEED_BYTES, dtype=np.int64)
                    if isinstance(self._link, SecureSum)
                    else sent * self.algorithm.row_bytes
                ),
                epsilon=epsilon,
            )
        )


def _bound(
    algorithm: FactorModel,
    cohort: Cohort,
    consent: Consent,
    release: Release | Clipped | KReports,
    rng: Streams,
    noise: bytes,
    link: Link,
) -> BoundRelease | BoundClipped | BoundReports:
    """The release under these records; raises where it cannot keep to them."""
    if isinstance(algorithm, Selective):
        algorithm.device_check(consent)
    if isinstance(release, KReports):
        return release.bind(cohort.users, consent, rng, noise)
    if isinstance(release, Clipped):
        summed = has_noise(link)
        return release.bind(cohort.users, consent, cohort.history, rng, noise, noisy_sums=summed)
    return release.bind(cohort.users, consent, cohort.history, rng)
