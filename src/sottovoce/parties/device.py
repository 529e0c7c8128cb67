"""The one door. Everything that leaves a device leaves here; nothing else builds a report.

The algorithm says what a device could tell, and is believed nothing: which of it is about items
that she has is looked up in her history. Consent and budget are read first; then the device learns,
the release decides what may leave, the link's bound is kept, the budget is charged and the ledger
gets a row, and only then is there a report. There are three of them: `report` (rows of the model),
`report_masked` (the same where only a sum of many may be read) and `report_bits` (randomised
reports). Where a sum is opened once, `_contributions` makes what `report_masked` masks: what the
algorithm gives is scaled, cut and held to its bound here. What real devices and gateways send is
made by these alone. A simulation, which sends nothing, has faster ways to the same results
(`engines.simulation`).

What somebody never sends is taken out of her history first. Whatever leaves, and whether anything
does, is worked out from the rest (`sendable`), as if she had never had it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing, CrossDevice, FactorModel, Reporting
from sottovoce.core.arrays import ascending, distinct, each, sum_groups
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.consent import Consent, ShareRule, newly_hidden
from sottovoce.core.contributions import Contributions, cut, cut_to, joined
from sottovoce.core.hiding import Hidden
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.core.links import CheckedSum, Direct, Link, has_noise
from sottovoce.core.masking import BITS, masked, no_words, seeds_from
from sottovoce.core.messages import (
    BitReports,
    DeviceReports,
    MaskedReports,
    MaskSeeds,
    ModelView,
    SharedReports,
    SummedReports,
    Updates,
    add_sums,
    add_up,
)
from sottovoce.core.one_bit import drawn_coordinates, noise_root, randomised
from sottovoce.core.redacted import Redacted
from sottovoce.core.shares import AGGREGATORS, Form, bits_of, split
from sottovoce.errors import ConfigError, ConsentError, MessageError
from sottovoce.privacy.base import BoundRelease, Release
from sottovoce.privacy.central import clip_reports, room_for_sums
from sottovoce.privacy.own_epsilon import MOST_STAGES, BoundContributions, mark_of, marked, was_in
from sottovoce.privacy.reports import BoundReports
from sottovoce.rng import Streams

SENT = {
    "rows": "item rows",
    "bits": "randomised reports",
    "contributions": "contributions to a sum",
}
_HOME_BATCH = 1024
_WRITTEN_AT_ONCE = 1 << 20
"""Numbers of plain updates that are written out together, or those of one device."""
_CUT_AT_ONCE = 1 << 12
"""Devices of a thread whose contributions are in memory together."""


@dataclass(frozen=True, slots=True, repr=False)
class Contents(Redacted):
    """Which of a user's own items are in what leaves, and how much of each. It stays at home."""

    items: NDArray[np.int32]
    """By number, ascending."""
    weight: NDArray[np.float64]
    """Comparable within one report alone."""


@dataclass(slots=True, repr=False)
class Devices(Redacted):
    """A cohort behind its door. A phone is a cohort of one."""

    algorithm: FactorModel
    cohort: Cohort
    ledger: Ledger
    rng: Streams
    _offer: Release
    _noise: bytes
    _release: BoundRelease
    _link: Link
    sendable: Interactions
    """The histories without what is never sent. All that leaves is worked out from these."""
    _seen: Cohort | None = None
    contents: Contents | None = None
    """The contents of the last report, if it was one device's report; for its user's eyes."""

    @classmethod
    def behind_door(
        cls,
        algorithm: FactorModel,
        cohort: Cohort,
        release: Release,
        ledger: Ledger,
        rng: Streams,
        noise: bytes | None = None,
        link: Link | None = None,
    ) -> Self:
        """`noise` is the root of the private coins of randomised reports and of masks: 32 bytes
        that nobody else knows. A simulation leaves it out and gets one that repeats with its seed.
        `link` is the way that reports go; straight to the server where it is not given."""
        if algorithm.sends != release.sends:
            raise ConfigError(
                f"{algorithm.config.name} and the release {release.name} do not go together: one "
                f"sends {SENT[algorithm.sends]}, the other {SENT[release.sends]}"
            )
        root = noise_root(rng.root) if noise is None else noise
        way = link or Direct()
        history = cohort.sendable(cohort.consent)
        bound = _bound(algorithm, history, cohort.consent, release, rng, root, way)
        return cls(algorithm, cohort, ledger, rng, release, root, bound, way, history)

    def change_consent(self, consent: Consent, view: ModelView | None = None) -> list[Hidden]:
        """From the next round on, these records hold; where they cannot, nothing changes. By a
        published model, what users hide from now on is hidden in their vectors at once; how far
        each has moved is returned."""
        if not np.array_equal(consent.users, self.cohort.users):
            raise ConsentError("consent records must belong to the cohort's devices, in order")
        history = self.cohort.sendable(consent)
        self._release = _bound(
            self.algorithm, history, consent, self._offer, self.rng, self._noise, self._link
        )
        hides = newly_hidden(self.cohort.consent, consent)
        self.sendable, self.cohort.consent, self._seen = history, consent, None
        if view is None or not hides.any():
            return []
        return self.algorithm.device_hide(view, self.cohort, hides, consent.attributes)

    @property
    def reports_bits(self) -> bool:
        """Whether randomised reports are what leaves."""
        return self.algorithm.sends == "bits"

    @property
    def contributes(self) -> bool:
        """Whether contributions to sums that are opened once are what leaves."""
        return self.algorithm.sends == "contributions"

    @property
    def spends(self) -> bool:
        """Whether what leaves is paid for from owners' budgets."""
        return self._release.spends or has_noise(self._link)

    def willing(self, round: int | None = None) -> NDArray[np.int64]:
        """Rows of the devices that take part, can learn, and may still send: in this round, which
        matters to contributions alone. Without it, of contributions: in some stage of the period in
        which each of them was last, which is the first one at the start."""
        rows = np.flatnonzero(self.able())
        return rows[self._permitted(rows, round)]

    def able(self) -> NDArray[np.bool_]:
        """Devices that take part and can learn from what they may send."""
        able: NDArray[np.bool_] = self.algorithm.device_able(self._shown())
        return self.cohort.consent.takes_part & able

    def has_sent(self, rows: NDArray[np.int64], round: int) -> NDArray[np.bool_]:
        """Which of these devices have contributed to the stage of this round in its period."""
        algorithm, _ = self._contributing()
        mark = mark_of(round, len(algorithm.shares), algorithm.batches)
        return was_in(self.cohort.sent[rows], mark)

    def tiers(self) -> NDArray[np.int32]:
        """The tier in which each device reports, -1 where in none."""
        return self._reporting()[1].tier

    # --- what leaves ------------------------------------------------------------------------------

    def report(self, view: ModelView, rows: NDArray[np.int64]) -> DeviceReports:
        """One round of these devices, as messages."""
        algorithm = self._learning()
        self._admit(rows)
        learnt = algorithm.device_learn(view, self._shown(), rows, self.rng)
        updates = _believed(learnt, self.sendable, rows, view, algorithm.config.name)
        rule = self._release.rule(rows, np.array([view.round]))
        reports, counts = self._merge(updates, rows, view.round, _leaving(updates, rule))
        if len(rows) == 1:
            self._keep_contents(rows, reports.item, np.linalg.norm(reports.values, axis=1))
        else:
            self.contents = None
        reports = self._release.add_noise(reports, rows, *view.items.shape)
        if self._link.clip:
            reports = clip_reports(reports, self._link.clip)
        self._record(rows, np.full(len(rows), view.round), counts, view.items.shape)
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

    def report_sum(self, view: ModelView, rows: NDArray[np.int64]) -> SummedReports:
        """`report` of all, added up, as the organisation that hosts them sends it."""
        if self.contributes:
            sums = np.zeros(self.algorithm.report_shape(view), dtype=np.int64)
            for one in self._contributed(view, rows):
                sums[:, 0] += one
            every = np.arange(len(sums), dtype=np.int32)
            return SummedReports(view.round, every, sums, len(rows))
        width = view.items.shape[1]
        total = SummedReports(view.round, np.zeros(0, np.int32), np.zeros((0, width), np.int64), 0)
        for reports in self.report_in_parts(view, rows):
            total = add_sums(view.round, [total, add_up(view.round, [reports], width)], width)
        return replace(total, devices=len(rows))  # who sends nothing counts, too

    def at_once(self, rows: NDArray[np.int64], many: int) -> int:
        """Devices whose messages are made together: so many, unless they look at each other."""
        return len(rows) if self.algorithm.needs_whole_cohort else many

    def report_masked(
        self,
        view: ModelView,
        rows: NDArray[np.int64],
        seeds: tuple[bytes, ...] | None = None,
        *,
        summed: bool = False,
    ) -> tuple[MaskedReports, MaskSeeds]:
        """One round of these devices as masked messages and the seeds of their masks, which are for
        the proxy alone. A simulation leaves `seeds` out. `summed`: as one message, their sum, which
        goes by the number of the first of them; of contributions alone."""
        if self._link.summing is None or (summed and not self.contributes):
            raise ConfigError(
                "masked reports are for a secure sum, and sums of them for contributions"
            )
        users, shape = self.cohort.users[rows], self.algorithm.report_shape(view)
        if summed:
            written, users = iter([self.report_sum(view, rows).sums]), users[:1]
        else:
            written = self._contributed(view, rows) if self.contributes else self._rows(view, rows)
        if seeds is None:
            seeds = tuple(seeds_from(self._noise, users, view.round))
        bits = self._link.summing.bits or BITS[-1]
        hidden = no_words(len(users) * shape[0] * shape[1], bits).reshape(len(users), -1)
        for row, (whole, seed) in enumerate(zip(written, seeds, strict=True)):
            hidden[row] = masked(whole, seed, bits)
        return MaskedReports(view.round, users, hidden), MaskSeeds(view.round, users, seeds)

    def report_shared(
        self,
        view: ModelView,
        rows: NDArray[np.int64],
        secrets: Sequence[tuple[bytes, ...]] | None = None,
    ) -> tuple[SharedReports, ...]:
        """One round of these devices in shares: what each aggregator gets. `secrets` are three of
        each device; a simulation leaves them out."""
        link, users = self._link.checking, self.cohort.users[rows]
        if link is None:
            raise ConfigError("only a checked sum takes shares")
        form = _shared(link, self._contributing()[0], view)
        made = self._contributions(view, rows)
        if secrets is None:
            roots = seeds_from(self._noise, users, view.round)
            secrets = [tuple(_share_secret(root, k) for k in range(AGGREGATORS)) for root in roots]
        step = link.grid(form).step
        entries = np.zeros((len(rows), form.places), dtype=np.int64)
        of = np.repeat(np.arange(len(rows)), np.diff(made.indptr))
        entries[of, made.place] = made.steps // step
        bits = bits_of(form, entries)
        travelled = np.stack([split(one, mine) for one, mine in zip(bits, secrets, strict=True)])
        return tuple(
            SharedReports(
                view.round,
                users,
                tuple((mine[k], mine[(k + 1) % AGGREGATORS]) for mine in secrets),
                travelled,
            )
            for k in range(AGGREGATORS)
        )

    def _rows(self, view: ModelView, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """`report` of each, with a row for every row of the model."""
        reports = self.report(view, rows)
        for user in self.cohort.users[rows].tolist():
            whole, mine = np.zeros(view.items.shape, np.int64), reports.sender == user
            whole[reports.item[mine]] = reports.values[mine]
            yield whole

    def _contributed(self, view: ModelView, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        made, noise = self._contributions(view, rows), self._noise_parts(view, rows)
        return (made.whole(row) + next(noise, 0) for row in range(len(rows)))

    def _noise_parts(self, view: ModelView, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """What each of these devices adds of the noise; nothing where the helper adds it."""
        algorithm, release = self._contributing()
        if not release.settings.parts:
            return
        spans = algorithm.noise_spans(view.round, algorithm.report_shape(view)[0])
        for row in rows.tolist():
            yield release.part(row, view.round, spans)

    def _contributions(self, view: ModelView, rows: NDArray[np.int64]) -> Contributions:
        """One round of these devices, as what each adds to the sum. It leaves masked alone."""
        self._admit(rows, view.round)
        made = self._cut(view, rows)
        items = self._contributing()[0].items_at(view, made.place)
        self._keep_contents(rows, items, made.steps)
        self._book_contributions(view, rows, made.items, made.numbers)
        return made

    def _contributions_in_parts(
        self, view: ModelView, rows: NDArray[np.int64], threads: int
    ) -> Iterator[Contributions]:
        """`_contributions` of all, of some devices after the others, in so many threads. They are
        booked together, when the last are made: where some are refused, none are."""
        if len(rows) == 1:
            yield self._contributions(view, rows)
            return
        self._admit(rows, view.round)
        self.contents = None
        self._shown()  # made once, before threads ask for it
        many = max(1, self.at_once(rows, _CUT_AT_ONCE))
        parts = [rows[first : first + many] for first in range(0, len(rows), many)]
        items, numbers = [np.zeros(0, dtype=np.int32)], self.algorithm.report_shape(view)[0]
        for first in range(0, len(parts), threads):
            some = each(partial(self._cut, view), parts[first : first + threads], threads)
            items += [made.items for made in some]
            yield joined(some)
        self._book_contributions(view, rows, np.concatenate(items), numbers)

    def _cut(self, view: ModelView, rows: NDArray[np.int64]) -> Contributions:
        """What each of these devices would add; nothing is booked yet, and nothing has left."""
        algorithm, release = self._contributing()
        profile = algorithm.device_profile(view, self._shown(), rows)
        who = self.cohort.users[rows], release.scale[rows]
        made = cut_profile(algorithm, self._link, self.rng, profile, view, *who)
        if (made.numbers, 1) != algorithm.report_shape(view):
            raise MessageError(
                f"{algorithm.config.name} gave a profile of another size than the round's; nothing "
                "was sent"
            )
        return made

    def _book_contributions(
        self, view: ModelView, rows: NDArray[np.int64], items: NDArray[np.int32], numbers: int
    ) -> None:
        """Charge the budgets and write the rows of contributions that tell of so many items each,
        in so many numbers."""
        algorithm, release = self._contributing()
        if self._link.checking is not None:
            numbers = _shared(self._link.checking, algorithm, view).elements
        shares, batches = algorithm.shares, algorithm.batches
        so_far = self.cohort.sent, self.cohort.beyond
        epsilon = release.costs(view.round, so_far[0], shares, batches, so_far[1])[rows]
        self._charge(rows, epsilon, mark_of(view.round, len(shares), batches))
        self.ledger.record(
            Entries(
                kind=release.kind,
                user=self.cohort.users[rows],
                round=np.full(len(rows), view.round),
                positive_rows=items,
                negative_rows=np.zeros_like(items),
                bytes=self._link.message_bytes(items.astype(np.int64), 0, numbers),
                epsilon=epsilon,
            )
        )

    def report_bits(self, view: ModelView, rows: NDArray[np.int64]) -> BitReports:
        """One round of these devices as k randomised reports each. Coordinates are drawn here, what
        a device would say of them is asked of the algorithm, and what it says is randomised here.
        Budgets are charged; a device that has too little left is not asked, or this raises."""
        algorithm, release = self._reporting()
        self._admit(rows)
        rule = release.report_rule(rows, view.round, algorithm.scale)
        many = algorithm.coordinates(len(view.items))
        drawn = drawn_coordinates(rule, many)
        values = algorithm.device_values(view, self._shown(), rows, drawn)
        about = algorithm.items_at(drawn[:1].ravel(), len(view.items))
        about = np.arange(len(view.items)) if about is None else about
        self._keep_contents(rows, about, np.ones(len(about)))
        return self._record_bits(view, rows, randomised(rule, drawn, values))

    # --- at home ----------------------------------------------------------------------------------

    def vectors_at_home(self, view: ModelView) -> NDArray[np.float32]:
        """Every device's vector as it would recommend with now. Devices that do not take part, or
        have what they never send (all of them, where a vector follows from the model) fit theirs to
        the published model. Nothing leaves, and the devices' own state stays as it is."""
        cohort, vectors = self.cohort, self.cohort.vectors.copy()
        fits = self.algorithm.device_able(cohort)
        if not self.algorithm.refits:
            fits &= ~cohort.consent.takes_part | (self.sendable.counts < cohort.history.counts)
        home = np.flatnonzero(fits)
        for start in range(0, len(home), _HOME_BATCH):
            rows = home[start : start + _HOME_BATCH]
            part = cohort.take(rows)
            self.algorithm.device_fit(view, part, self.rng)
            vectors[rows] = part.vectors
        return vectors

    # --- consent and budget -----------------------------------------------------------------------

    def _admit(
        self, rows: NDArray[np.int64], round: int | None = None, *, rounds: bool = False
    ) -> None:
        """Raises unless all of these may send: once, or (`rounds`) as often as they stand there.
        Contributions are sent in a `round`."""
        if not self.cohort.consent.takes_part[rows].all():
            raise ConsentError("a device that does not take part was asked to send")
        # In order, as a server asks them, each can be there once only, which is faster to see.
        once = rounds or np.all(rows[1:] > rows[:-1]) or len(distinct(rows)) == len(rows)
        if not once:
            raise ConsentError("a device was asked twice in one round")
        if not self._permitted(rows, round).all():
            raise ConsentError("a device was asked to report beyond what its owner permits")

    def _permitted(self, rows: NDArray[np.int64], round: int | None = None) -> NDArray[np.bool_]:
        """Which of these devices' owners' limits have room for as many rounds as each stands
        there; of contributions, who may be in this round (`willing`)."""
        cohort, noise = self.cohort, self._link.noise
        if not noise and not self._release.spends:
            return np.ones(len(rows), dtype=bool)
        if self.contributes:
            algorithm, release = self._contributing()
            room = release.room(
                cohort.spent, cohort.sent, algorithm.shares, round, algorithm.batches, cohort.beyond
            )
            return room[rows]
        times = np.bincount(rows, minlength=len(cohort)).astype(np.int64)
        if not noise:
            return self._release.permits(cohort.spent, times)[rows]
        sent, limit = cohort.sent[rows] + times[rows] - 1, cohort.consent.total_epsilon[rows]
        return room_for_sums(noise, sent, cohort.spent[rows], limit)

    def _shown(self) -> Cohort:
        """The cohort as its algorithm sees it: of consent the fields that it reads, of histories
        what may ever be sent, and no more."""
        cohort = self.cohort
        seen = self._seen
        same = seen is not None and seen.vectors is cohort.vectors
        if seen is None or not same or seen.published is not cohort.published:
            self._seen = replace(
                cohort,
                consent=cohort.consent.only(self.algorithm.config.reads),
                history=self.sendable,
                items_named={},
                scratch={} if seen is None else seen.scratch,  # of this history alone
            )
            return self._seen
        return seen

    # --- the ledger -------------------------------------------------------------------------------

    def _record(
        self,
        rows: NDArray[np.int64],
        rounds: NDArray[np.int64],
        counts: RowCounts,
        shape: tuple[int, ...],
    ) -> None:
        """Charge the budgets and write the rows of what leaves: of a model of this shape each
        device sends so many."""
        release, epsilon = self._release, self._release.epsilons[rows]
        if release.dense:  # a row that says nothing is sent for all others, too
            own = self.sendable.counts[rows].astype(np.int32)
            counts = RowCounts(own, shape[0] - own)
        self._charge(rows, epsilon)
        sent = counts.positive.astype(np.int64) + counts.negative
        self.ledger.record(
            Entries(
                kind=release.kind,
                user=self.cohort.users[rows],
                round=rounds,
                positive_rows=counts.positive,
                negative_rows=counts.negative,
                bytes=self._link.message_bytes(sent, self.algorithm.row_bytes, shape[0] * shape[1]),
                epsilon=epsilon,
            )
        )

    def _record_bits(
        self, view: ModelView, rows: NDArray[np.int64], reports: NDArray[np.uint32]
    ) -> BitReports:
        """The same for randomised reports, which are in the book when they are returned."""
        release = self._reporting()[1]
        self._charge(rows, release.cost()[rows])
        entries = release.entries(rows, view.round)
        more = entries.reports.astype(np.int64) * self._link.layer_bytes
        self.ledger.record(replace(entries, bytes=entries.bytes + more))
        return BitReports(view.round, self.cohort.users[rows], release.tier[rows], reports)

    def _charge(
        self, rows: NDArray[np.int64], epsilon: NDArray[np.float64], mark: int | None = None
    ) -> None:
        """`mark`: of the stage, where contributions are what leaves."""
        if mark is None:
            np.add.at(self.cohort.sent, rows, 1)
        else:
            sent, beyond = self.cohort.sent[rows], self.cohort.beyond[rows]
            self.cohort.beyond[rows] = np.where(
                sent >> MOST_STAGES == mark >> MOST_STAGES, beyond, 0.0
            )
            self.cohort.sent[rows] = marked(sent, mark)
        if self._release.spends:
            np.add.at(self.cohort.spent, rows, np.where(np.isfinite(epsilon), epsilon, 0.0))

    # --- helpers ----------------------------------------------------------------------------------

    def _keep_contents(
        self, rows: NDArray[np.int64], items: NDArray[np.integer], weight: NDArray[Any]
    ) -> None:
        """Keep the contents of one device's report, with the weight of each item."""
        self.contents = None
        if len(rows) == 1:
            own = self._shown().history.row(int(rows[0]))
            mine, weight = np.isin(items, own), np.abs(weight).astype(np.float64)
            found, place = np.unique(items[mine], return_inverse=True)
            sums = np.zeros(len(found))
            np.add.at(sums, place, weight[mine])
            self.contents = Contents(found.astype(np.int32), sums)

    def _learning(self) -> CrossDevice:
        if self.algorithm.sends != "rows":
            sent = SENT[self.algorithm.sends]
            raise ConfigError(f"this algorithm sends {sent}, not item rows")
        return cast(CrossDevice, self.algorithm)

    def _reporting(self) -> tuple[Reporting, BoundReports]:
        reporting = self._release.reporting
        if reporting is None:
            raise ConfigError("this algorithm and release send item rows, not randomised reports")
        return cast(Reporting, self.algorithm), reporting

    def _contributing(self) -> tuple[Contributing, BoundContributions]:
        release = self._release.contributing
        if release is None:
            raise ConfigError("this algorithm and release send no contributions to a sum")
        return cast(Contributing, self.algorithm), release

    def _merge(
        self,
        updates: Updates,
        rows: NDArray[np.int64],
        round: int,
        leaves: NDArray[np.bool_],
    ) -> tuple[DeviceReports, RowCounts]:
        """Sum each device's leaving updates by item, items ascending."""
        row, item, positive = updates.row, updates.item, updates.positive
        if leaves.all() and ascending(row, item):  # a row for every item, say
            sums = updates.values.astype(np.int64)
        else:
            row, item, positive = row[leaves], item[leaves], positive[leaves]
            order = np.lexsort((item, row))
            row, item = row[order], item[order]
            first = np.ones(len(row), dtype=bool)
            first[1:] = (row[1:] != row[:-1]) | (item[1:] != item[:-1])
            starts = np.flatnonzero(first)
            sums = sum_groups(updates.values, np.flatnonzero(leaves)[order], starts)
            row, item, positive = row[starts], item[starts], positive[order][starts]
        n = len(rows)
        whole, own = (np.bincount(r, minlength=n).astype(np.int32) for r in (row, row[positive]))
        sender = self.cohort.users[rows][row]
        return DeviceReports(round, sender, item, sums), RowCounts(own, whole - own)


def cut_profile(
    algorithm: Contributing,
    link: Link,
    rng: Streams,
    profile: object,
    view: ModelView,
    users: NDArray[np.int64],
    scale: NDArray[np.float64],
) -> Contributions:
    """Return what may leave of these users' profiles, given the scale of each. If sums are checked,
    these are whole numbers. How they are rounded may depend on draws; what they add up to at most
    does not."""
    if link.checking is None:
        return cut(profile, scale, algorithm.config.name)
    grid = link.checking.grid(_shared(link.checking, algorithm, view))
    keys = rng.child("fixed-point", view.round).keys(users)
    return cut_to(profile, scale, algorithm.config.name, grid, keys)


def _shared(link: CheckedSum, algorithm: Contributing, view: ModelView) -> Form:
    """What devices share in this round."""
    return link.form(*algorithm.contribution(view.round, algorithm.report_shape(view)[0]))


def _share_secret(root: bytes, which: int) -> bytes:
    """A simulation's; a real device draws its own from the operating system."""
    return hashlib.blake2b(bytes([which]), digest_size=32, key=root, person=b"share").digest()


def _leaving(updates: Updates, rule: ShareRule) -> NDArray[np.bool_]:
    """Which updates may leave."""
    leaves, positive = np.ones(len(updates), dtype=bool), updates.positive
    row = updates.row[positive].astype(np.int64)
    leaves[positive] = rule.may_leave(row, updates.entry[positive])
    return leaves


def _believed(
    updates: object, history: Interactions, rows: NDArray[np.int64], view: ModelView, name: str
) -> Updates:
    """What an algorithm gives, if it is what it says: whole numbers for rows of the model, and of
    every item whether its owner has it and may send it. Nothing leaves otherwise."""
    n_rows, width = view.items.shape
    if type(updates) is not Updates:
        raise MessageError(
            f"{name} gave {type(updates).__name__} in place of a device's Updates; nothing was sent"
        )
    n = len(updates)
    values = updates.values
    if values.shape != (n, width) or values.dtype.kind != "i":
        raise MessageError(
            f"{name} gave updates of type {values.dtype} and shape {values.shape}, where whole "
            f"numbers of the grid, [{n}, {width}], are wanted; nothing was sent"
        )
    item, row = updates.item, updates.row
    if {len(item), len(row), len(updates.entry), len(updates.positive)} != {n} or (
        n
        and not (
            0 <= int(item.min()) <= int(item.max()) < n_rows
            and 0 <= int(row.min()) <= int(row.max()) < len(rows)
        )
    ):
        raise MessageError(
            f"{name} gave updates of rows that the model, or of devices that the round has not; "
            "nothing was sent"
        )
    entry = history.find(rows[row], cast(NDArray[np.int64], item))
    if not np.array_equal(entry >= 0, updates.positive) or not np.array_equal(
        entry[updates.positive], updates.entry[updates.positive]
    ):
        raise ConsentError(
            f"{name} says of an item that its owner has that she has it not, or the other way "
            "round; nothing was sent"
        )
    return updates


def _bound(
    algorithm: FactorModel,
    history: Interactions,
    consent: Consent,
    release: Release,
    rng: Streams,
    noise: bytes,
    link: Link,
) -> BoundRelease:
    """The release under these records, of what may be sent; raises where it cannot keep to
    them."""
    algorithm.device_check(consent)
    bound = release.bind(consent.users, consent, history, rng, noise, noisy_sums=has_noise(link))
    # The door keeps to `never_send` itself. A limit on all rounds together binds where an ε bounds
    # what leaves, and says so (`Choice`).
    known = {*release.reads, *algorithm.config.reads, "never_send", "total_epsilon"}
    unread = [name for name in consent.asked() if name not in known]
    if unread:
        raise ConsentError(
            f"{unread[0]} is set, but neither {algorithm.config.name} nor the release "
            f"{release.name} keeps to it; take it out of the consent, or choose others that do"
        )
    return bound
