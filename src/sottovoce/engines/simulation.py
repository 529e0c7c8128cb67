"""Simulation: all devices as one cohort, in this process; or a rank's share of them (`core.ranks`),
whose sums are added to the others' before the server, which every rank has, folds them.

The engine knows no algorithm. It runs rounds, fuses rounds of a single device between two stops of
the observers, and writes messages out only where somebody listens, those of some devices at a time.
Whatever it chooses, the model, the vectors and the ledger are the same bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from hashlib import sha256
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Accelerator, Contributing
from sottovoce.core.consent import Consent
from sottovoce.core.hiding import Hidden
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import hop_party
from sottovoce.core.messages import (
    BitCounts,
    BitReports,
    DeviceReports,
    MaskSeeds,
    MaskSum,
    ModelView,
    SealedBatch,
    SummedReports,
    add_up,
)
from sottovoce.core.ranks import ALONE, WHOLE, Ranks, Shard
from sottovoce.core.running import Draws
from sottovoce.engines.observers import MessageObserver, Moment, Observer
from sottovoce.errors import ConfigError, Diverged, RankLost, SpoiledSum, Stalled
from sottovoce.parties.aggregator import (
    Aggregator,
    at_once,
    check_room,
    left_out,
    opened_sum,
)
from sottovoce.parties.device import Devices
from sottovoce.parties.helper import Helper
from sottovoce.parties.searching import Search, leniency
from sottovoce.parties.secure_sum import MaskedSum, summed
from sottovoce.parties.server import NO_DEFENCE, Server
from sottovoce.parties.shuffler import Shuffler

# --- devices: the door, and faster ways to what comes out of it ----------------------------------
# Nothing leaves a simulation, so it may sum what devices would send without writing it out, run
# many rounds of one device each at once, and compute on a GPU. Model, vectors and ledger are the
# same as by the definition (`parties.device`). For the algorithms of this package, contract tests
# hold every combination that can be put together to that; any other algorithm is held to it here,
# on some of its devices, before its fast way is used.

D = TypeVar("D", bound=Devices)
_OURS = "sottovoce.algorithms."
_HELD = 16
"""Devices on which a stranger's fast way is compared with its definition."""


@dataclass(slots=True, repr=False)
class SimulatedDevices(Devices):
    """A cohort behind its door, in a simulation."""

    _accelerator: Accelerator | None = None
    _accelerated: tuple[int, str] = (0, "cpu")
    """By how many items, and where."""
    _held: bool = False
    _sums_on: str = "cpu"
    """Where contributions are added up."""

    def change_consent(self, consent: Consent, view: ModelView | None = None) -> list[Hidden]:
        self.settle()
        hidden = super(SimulatedDevices, self).change_consent(consent, view)
        if self._accelerator is not None:
            self.accelerate(*self._accelerated)
        return hidden

    def accelerate(self, n_items: int, device: str) -> None:
        """From now on, compute whole rounds on `device`."""
        if self.contributes:
            self._sums_on = device
            return
        self._accelerated = n_items, device
        everyone = np.arange(len(self.cohort), dtype=np.int64)
        release = self._release
        scales = release.scales() if release.per_row else np.zeros(len(everyone))
        self._accelerator = self.algorithm.accelerated(
            self._shown(), n_items, release.rule(everyone, np.array([0])), self.rng, scales, device
        )

    def settle(self) -> None:
        """Bring the devices' state home from an accelerator."""
        if self._accelerator is not None:
            self.cohort.vectors = self._accelerator.vectors()

    @property
    def fuses(self) -> bool:
        """Whether many rounds of one device each can be run at once: where each round's budget,
        noise or bound must be looked at by itself, they cannot."""
        plain = not (self.spends or self._link.clip or self._link.summing)
        return self.algorithm.fuses and plain and self._accelerator is None

    def report_summed(
        self,
        view: ModelView,
        rows: NDArray[np.int64],
        threads: int = 1,
        company: int | None = None,
    ) -> SummedReports:
        """One round of these devices, as the sum of their messages. `company`: where they are a
        rank's share of a round, how many devices are in it."""
        if self.contributes:
            return self._summed_contributions(view, rows, threads)
        algorithm, release = self._learning(), self._release
        if company is not None and not algorithm.sums_alike and self._accelerator is None:
            return self.report_sum(view, rows)
        fast = self._accelerator is not None
        if fast and self._link.clip:
            raise ConfigError("link.clip looks at every update by itself; leave it on --device cpu")
        if not fast and (release.per_row or self.writes_messages(view, company or len(rows))):
            return add_up(view.round, [self.report(view, rows)], view.items.shape[1])
        if self._link.clip or not (fast or algorithm.sums):
            return self.report_sum(view, rows)
        self._hold(view)
        self._admit(rows)
        if self._accelerator is not None:
            learn_key = self.rng.child("learn", view.round).key
            sums, counts = self._accelerator.learn_summed(
                view, rows, learn_key, release.round_key(view.round)
            )
        else:
            rule = release.rule(rows, np.array([view.round]))
            sums, counts = algorithm.device_learn_summed(
                view, self._shown(), rows, rule, self.rng, threads
            )
        if not release.per_row:  # an accelerator has added that already
            sums = release.add_noise_to_sums(sums, rows, view.round, threads)
        self._record(rows, np.full(len(rows), view.round), counts, view.items.shape)
        every_item = np.arange(len(sums), dtype=np.int32)
        return SummedReports(view.round, every_item, sums, len(rows))

    def writes_messages(self, view: ModelView, devices: int) -> bool:
        """Whether so few take part that their messages cost less than a table of all rows."""
        return self.algorithm.sends == "rows" and self._learning().prefers_messages(view, devices)

    def _summed_contributions(
        self, view: ModelView, rows: NDArray[np.int64], threads: int
    ) -> SummedReports:
        algorithm = self._contributing()[0]
        if not algorithm.sums:
            return self.report_sum(view, rows)
        self._hold(view)
        sums = np.zeros(algorithm.report_shape(view)[0], dtype=np.int64)
        for made in self._contributions_in_parts(view, rows, threads):
            sums += algorithm.sum_contributions(made, threads, self._sums_on)
        for part in self._noise_parts(view, rows):
            sums += part
        every = np.arange(len(sums), dtype=np.int32)
        return SummedReports(view.round, every, sums[:, None], len(rows))

    def report_rounds(
        self, items: NDArray[np.float32], first_round: int, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """len(rows) rounds of one device each, folded one by one; returns the model after them."""
        algorithm = self._learning()
        if not self.fuses:
            raise ConfigError("this algorithm, release or link runs its rounds one by one")
        self._hold(ModelView(first_round, items))
        self._admit(rows, rounds=True)
        rounds = np.arange(first_round, first_round + len(rows), dtype=np.int64)
        rule = self._release.rule(rows, rounds)
        after, counts = algorithm.device_learn_rounds(
            items, first_round, self._shown(), rows, rule, self.rng
        )
        self._record(rows, rounds, counts, items.shape)
        return after

    def report_bits(self, view: ModelView, rows: NDArray[np.int64], threads: int = 1) -> BitReports:
        algorithm, release = self._reporting()
        if not algorithm.sums:
            return super(SimulatedDevices, self).report_bits(view, rows)
        self._hold(view)
        self._admit(rows)
        rule = release.report_rule(rows, view.round, algorithm.scale)
        made = algorithm.device_report(view, self._shown(), rows, rule, threads)
        return self._record_bits(view, rows, made)

    def _hold(self, view: ModelView) -> None:
        """Raises where the fast way of somebody else's algorithm is not its definition's: what it
        sums, what it books, or what its devices learn."""
        if self._held or type(self.algorithm).__module__.startswith(_OURS):
            return
        some = self.willing(view.round)[:_HELD]
        if not len(some):
            return
        self._held = True
        plain, fast = self._some(Devices, some), self._some(SimulatedDevices, some)
        fast._held = True
        rows, later = np.arange(len(some), dtype=np.int64), ModelView(view.round + 1, view.items)
        if self.reports_bits:
            one, other = plain.report_bits(view, rows), fast.report_bits(view, rows)
            same = np.array_equal(one.reports, other.reports)
        else:
            one_sum, other_sum = plain.report_sum(view, rows), fast.report_summed(view, rows)
            many = self.algorithm.report_shape(view)[0]
            same = np.array_equal(one_sum.dense(many), other_sum.dense(many))
        if same and fast.fuses:
            memory = self.algorithm.server_memory(len(view.items))
            told = plain.report_sum(later, rows[:1])
            after = self.algorithm.server_fold(view.items, memory, told)[0]
            same = np.array_equal(after, fast.report_rounds(view.items, later.round, rows[:1]))
        same &= np.array_equal(plain.cohort.vectors, fast.cohort.vectors)
        same &= plain.ledger.pending().equals(fast.ledger.pending())
        if not same:
            raise ConfigError(
                f"the fast way of {self.algorithm.config.name} does not give what its definition "
                "gives (sums, vectors or ledger differ), so that it is not used; mend it, or leave "
                "it out (sums = False, fuses = False)"
            )

    def _some(self, kind: type[D], rows: NDArray[np.int64]) -> D:
        """These devices by themselves, with copies of their state and a ledger of their own."""
        return kind.behind_door(
            self.algorithm, self.cohort.take(rows), self._offer, Ledger(), self.rng, self._noise,
            self._link,
        )  # fmt: skip


def joining(
    history: Interactions, rows: NDArray[np.int64], groups: int, shard: Shard = WHOLE
) -> NDArray[np.int64]:
    """Return in which of the groups each user joins: these rows in the order of their first
    interactions (of their numbers if there are no times, or equal ones), equally many in each
    group. Users outside of `rows` have -1. For a shard, the order is among the rows of all ranks.
    """
    ranks = shard.ranks
    first = shard.first + np.arange(history.n_users, dtype=np.int64)
    if history.timestamps is not None:
        never = np.iinfo(np.int64).max
        first = np.full(history.n_users, never, dtype=np.int64)
        np.minimum.at(first, history.users, history.timestamps)
    value, (everybody,) = first[rows], ranks.total(len(rows))
    sizes = [everybody // groups + (k < everybody % groups) for k in range(groups)]
    edges, ordered = np.cumsum(sizes)[:-1], np.sort(value)
    # For each edge, the time of who comes there: by halves, from what all ranks count.
    low = np.full(len(edges), np.iinfo(np.int64).min)
    high = np.full(len(edges), np.iinfo(np.int64).max)
    while np.any(low < high):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        enough = ranks.all_sum(np.searchsorted(ordered, middle, side="right")) > edges
        low, high = np.where(enough, low, middle + (low < high)), np.where(enough, middle, high)
    earlier = ranks.all_sum(np.searchsorted(ordered, low, side="left"))
    group = np.searchsorted(low, value, side="left")  # edges whose time is before hers
    ties = [np.flatnonzero(value == time) for time in low.tolist()]
    here = np.zeros((len(edges), ranks.size), dtype=np.int64)
    here[:, ranks.rank] = [len(tied) for tied in ties]
    before = ranks.all_sum(here)[:, : ranks.rank].sum(axis=1)
    for edge, tied in enumerate(ties):
        group[tied] += earlier[edge] + before[edge] + np.arange(len(tied)) >= edges[edge]
    found = np.full(history.n_users, -1, dtype=np.int64)
    found[rows] = group
    return found


def _held_back(round: int) -> Stalled:
    return Stalled(
        f"in round {round} no tier has its minimum of devices with enough budget left, so that the "
        "proxy holds everything back; lower rounds, or let the users permit more"
    )


_AGGREGATORS = ("server", "aggregator-1", "aggregator-2")
_MASKED_AT_ONCE = 16
"""Devices whose masked updates are in memory together."""


@dataclass(slots=True)
class Simulation:
    server: Server
    devices: SimulatedDevices
    cohort_size: int
    rounds: int
    observers: Sequence[Observer] = ()
    message_observers: Sequence[MessageObserver] = ()
    threads: int = 1
    fuse: bool = True
    """Run single-device rounds in blocks. Off, every round passes through its own message."""
    block: int = 200_000
    """Most rounds fused at once, so that an interrupt is answered soon."""
    proxy: Shuffler | None = None
    """Between the devices and the server, where randomised reports are what leaves."""
    masker: Helper | None = None
    """The helper that knows the masks, if the server sees sums alone."""
    largest_value: float = 0.0
    """Largest number in one device's update, in steps of the grid; a helper needs it."""
    masked: bool = True
    """Whether message observers see the masked updates of a secure sum. If not, the server's see
    what it opens, the sum, and that takes a fraction of the time."""
    least: int = 0
    """Fewest devices in a round, where it is everybody who is asked: those who may still send are
    enough. 0 where it must be `cohort_size`."""
    search: Search | None = None
    """For devices that spoil secure sums, as a server makes it; None ends the run at such a sum.
    With it messages are written out."""
    aggregators: Sequence[Aggregator] = ()
    """Three of them, where sums are checked."""
    joined: NDArray[np.int64] | None = None
    """The round from which each device is there; all from the first, where it is not given."""
    shut_out: set[int] = field(default_factory=set)
    """Users whom the search has found."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Rounds and users whose contributions did not pass the checks."""
    ranks: Ranks = ALONE
    """The ranks of which this process is one, with a share of the devices."""
    busy: float = 0.0
    """Seconds that this rank has worked since somebody last looked, and not waited for others."""
    on_pace: Callable[[int, list[float]], None] | None = None
    """Is told, by round, for how long each rank has worked since the last time."""

    def run(self) -> None:
        """Go on from the server's round to `rounds`."""
        self._check_ranks()
        willing = self.devices.willing(self.server.round)
        there = self.ranks.total(len(willing))[0]
        # Where devices spend, each round looks anew at who may send.
        too_few = there < self.cohort_size and not self.devices.spends
        if self.proxy is None and (too_few or self.cohort_size < 1):
            raise ConfigError(
                f"{self.cohort_size} devices are asked for in a round, {there} take part"
            )
        server = self.server
        fuse = self.fuse and self.cohort_size == 1 and self.devices.fuses
        fuse &= not self.ranks.together
        fuse &= server.guard.defence == NO_DEFENCE
        while server.round < self.rounds:
            stop = self._next_stop()
            if not self._held():
                server.round += 1
            elif self.proxy is not None:
                self._mixed_round(self.proxy)
            elif fuse and not self.message_observers:
                rows = willing[server.select_rounds(len(willing), stop - server.round)]
                after = self.devices.report_rounds(server.items, server.round, rows)
                server.advance(after, len(rows))
            else:
                self._round(self._asked(willing))
            self._look()

    def _asked(self, willing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return who is asked in this round, of those who were willing at the start: budgets may
        run out on the way."""
        if self.devices.spends:
            willing = self.devices.willing(self.server.round)
        if self.joined is not None:
            willing = willing[self.joined[willing] <= self.server.round]
        if self.shut_out:
            users = self.devices.cohort.users
            willing = willing[[users[row] not in self.shut_out for row in willing]]
        counts = self.ranks.counts(len(willing))
        there = sum(counts)
        size = max(self.least, there) if self.least else self.cohort_size
        if self.shut_out:
            size = max(self.least, min(size, there))
        if there < size:
            raise Stalled(
                f"in round {self.server.round} only {there:,} devices may still send, where "
                f"{size:,} are asked; lower rounds or cohort_size, or let the users permit more"
            )
        if size == there:
            return willing
        chosen = self.server.select(there, size) - sum(counts[: self.ranks.rank])
        return willing[chosen[(chosen >= 0) & (chosen < len(willing))]]

    def _round(self, rows: NDArray[np.int64]) -> None:
        view, kept = self.server.publish(), self.server.published
        self.devices.cohort.published = None if kept is None else kept.items
        self._tell("device", view)
        if self.masker is not None:
            self._summed_round(self.masker, view, rows)
        elif self.aggregators:
            self._checked_round(view, rows)
        elif self.message_observers or self.server.guard.defence.looks_at_devices:
            self.server.fold(self._sum_written(view, rows))
        else:
            self.server.fold(self._summed(view, rows))

    def _summed(self, view: ModelView, rows: NDArray[np.int64]) -> SummedReports:
        """The sum of what the devices of a round send, those of all ranks."""
        ranks, server, devices = self.ranks, self.server, self.devices
        if not ranks.together:
            return devices.report_summed(view, rows, self.threads)
        (company,) = ranks.total(len(rows))
        (n_rows, width), begun = server.algorithm.report_shape(view), time.perf_counter()
        item, sums = np.zeros(0, np.int32), np.zeros((0, width), np.int64)
        if len(rows):
            mine = devices.report_summed(view, rows, self.threads, company)
            item, sums = mine.item, mine.sums
        self.busy += time.perf_counter() - begun
        if devices.writes_messages(view, company):
            told = ranks.gather((item, sums))
            total = server.add_sums([SummedReports(view.round, *one, 0) for one in told])
            return replace(total, devices=company)
        if len(item) < n_rows:
            sums = SummedReports(view.round, item, sums, company).dense(n_rows)
        every = np.arange(n_rows, dtype=np.int32)
        return SummedReports(view.round, every, ranks.all_sum(sums), company)

    def _sum_written(self, view: ModelView, rows: NDArray[np.int64]) -> SummedReports:
        """The sum of the devices' messages."""
        written, server = self._written(view, rows), self.server
        sums = (server.sum_reports([part]) for part in written)
        return reduce(lambda one, other: server.add_sums([one, other]), sums)

    def _written(self, view: ModelView, rows: NDArray[np.int64]) -> Iterator[DeviceReports]:
        """The devices' messages, as the server sees them."""
        for reports in self.devices.report_in_parts(view, rows):
            self._tell("server", reports)
            yield reports

    def _mixed_round(self, proxy: Shuffler) -> None:
        """A round of everyone whose budget permits it, through the proxy."""
        view, rows = self.server.publish(), self.devices.willing()
        self._tell("device", view)
        begun = time.perf_counter()
        bits = self.devices.report_bits(view, rows, self.threads)
        self.busy += time.perf_counter() - begun
        # To the proxy they are sealed.
        self._tell("proxy", replace(bits, reports=np.zeros((len(bits), 0), np.uint32)))
        batches = proxy.collect(bits, self.threads, self.ranks)
        if not any(self.ranks.any(bool(batches))):
            raise _held_back(view.round)
        for batch in batches:
            for hop in range(1, proxy.shufflers):
                facts = batch.round, batch.tier, batch.devices, len(batch.reports)
                self._tell(hop_party(hop), SealedBatch(*facts))
            self._tell("server", batch)
        self._fold_counts(self.server.count(batches))

    def _fold_counts(self, counted: BitCounts) -> None:
        """What was counted here and by the other ranks."""
        ranks = self.ranks
        if ranks.several:
            devices, reports = ranks.total(*counted.devices), ranks.total(*counted.reports)
            counted = BitCounts(counted.round, devices, reports, ranks.all_sum(counted.sums))
        self.server.fold(counted)

    def _summed_round(self, masker: Helper, view: ModelView, rows: NDArray[np.int64]) -> None:
        """A round of which the server sees the sum alone."""
        link, (n_rows, width) = masker.link, self.server.algorithm.report_shape(view)
        numbers, draws = n_rows * width, self._draws(view)
        if self.search is None and not (self.message_observers and self.masked):
            clear = self._summed(view, rows)
            sums = clear.dense(n_rows)
            noise = masker.noise(view.round, numbers, draws)
            if noise is not None:
                sums += noise.reshape(sums.shape)
            whole = summed(view.round, sums, clear.devices)
            self._tell("server", whole)
            self.server.fold(whole)
            return
        users = self.devices.cohort.users[rows].tolist()
        groups = self._groups(masker, users)
        place = {user: k for k, group in enumerate(groups) for user in group}
        most = self.largest_value, masker.sigma(view.round, numbers, draws)
        totals = [MaskedSum(view.round, n_rows, width, link, *most) for _ in groups]
        seeds: dict[int, bytes] = {}
        many = self.devices.at_once(rows, _MASKED_AT_ONCE)
        for start in range(0, len(rows), many):
            masked, mine = self.devices.report_masked(view, rows[start : start + many])
            self._tell("server", masked)
            where = np.array([place.get(user, -1) for user in masked.sender.tolist()])
            for k in np.unique(where[where >= 0]):
                here = where == k
                part = replace(masked, sender=masked.sender[here], masked=masked.masked[here])
                totals[k].add(part)
            seeds |= zip(mine.sender.tolist(), mine.seeds, strict=True)
        named = [
            MaskSeeds(view.round, np.array(group), tuple(seeds[user] for user in group))
            for group in groups
        ]
        for one in named:
            self._tell("proxy", one)
        opened: list[SummedReports | None] = []
        if len(named) == 1:
            answers = [masker.sum_masks(named[0], self.threads, numbers, draws)]
        else:
            answers = masker.sum_groups(named, self.threads, numbers, draws)
        for number, (total, told) in enumerate(zip(totals, answers, strict=True)):
            self._tell("server", told)
            opened.append(self._opened(total, told, number))
        good = [one for one in opened if one is not None]
        if good:
            self.server.fold(self.server.add_sums(good))
        else:
            # Given up: the next round begins from the same model.
            self.server.round = self.server.algorithm.after_given_up(view.round)
        if self.search is not None:
            spoiled = [one is None for one in opened]
            self.search, out = self.search.after(users, groups, spoiled)
            self.shut_out |= set(out)

    def _checked_round(self, view: ModelView, rows: NDArray[np.int64]) -> None:
        """A round of which the server sees the sum over those who keep to the bounds."""
        rules, draws = self.aggregators[0].rules, self._draws(view)
        numbers = self.server.algorithm.report_shape(view)[0]
        form = rules.form(view.round, numbers)
        sigma = rules.sigma(view.round, numbers)
        check_room(form, sigma, *self.ranks.total(len(rows)))
        step, users = rules.link.grid(form).step, self.devices.cohort.users[rows]
        if not (self.message_observers and self.masked):
            total = self._summed(view, rows)
            sums = total.dense(numbers)
            for one in self.aggregators:
                noise = one.rules.noise(view.round, numbers, b"", draws)
                if noise is not None:
                    sums[:, 0] += step * noise
            whole = summed(view.round, sums, total.devices)
        else:
            many = at_once(form)
            for start in range(0, len(rows), many):
                told = self.devices.report_shared(view, rows[start : start + many])
                names = [sha256(one.tobytes()).digest() for one in told[0].travelled]
                for party, one, mine in zip(_AGGREGATORS, self.aggregators, told, strict=True):
                    self._tell(party, mine)
                    one.take(mine, names)
            coins = [one.coin(view.round) for one in self.aggregators]
            checks = [
                one.checks(view.round, numbers, coins, self.threads) for one in self.aggregators
            ]
            out = left_out([one.parts for one in checks])
            self.left_out += [(view.round, user) for user in users[out].tolist()]
            parts = [one.total(view.round, numbers, coins, ~out, draws) for one in self.aggregators]
            for message in (*checks[1:], *parts[1:]):
                self._tell("server", message)
            many = int((~out).sum())
            sums = step * opened_sum(form, [one.part for one in parts], many, sigma)
            whole = summed(view.round, sums[:, None], many)
        self._tell("server", whole)
        self.server.fold(whole)

    def _held(self) -> bool:
        """Whether there is the round that comes."""
        if not self.devices.contributes:
            return True
        return cast(Contributing, self.server.algorithm).held(self.server.round)

    def _draws(self, view: ModelView) -> Draws | None:
        """From which draws the helper puts the noise of this round together."""
        if not self.devices.contributes:
            return None
        return cast(Contributing, self.server.algorithm).noise_draws(view, self.server.memory)

    def _groups(self, masker: Helper, users: list[int]) -> list[list[int]]:
        """Return who is summed with whom."""
        if self.search is None:
            return [users]
        draws = self.server.rng.child("groups", self.server.round)

        def shuffle(order: list[int]) -> None:
            keys = draws.uniform(np.arange(len(order)), 1)[:, 0]
            order[:] = [order[place] for place in np.argsort(keys, kind="stable").tolist()]

        several = masker.grouped_rounds_left > 0
        return self.search.groups(users, masker.link, shuffle, several=several)

    def _opened(self, total: MaskedSum, told: MaskSum, number: int) -> SummedReports | None:
        """The sum of a group; None where somebody has spoiled it and is looked for."""
        if self.search is None:
            return total.open(told)
        draws = self.server.rng.child("leniency", told.round).uniform(np.array([number]), 1)
        try:
            return total.open(told, leniency(float(draws[0, 0])))
        except SpoiledSum:
            return None

    def _tell(self, party: str, message: object) -> None:
        for observer in self.message_observers:
            observer.on_message(party, message)

    def _next_stop(self) -> int:
        stops = [o.next_stop(self.server.round) for o in self.observers]
        return min([self.rounds, self.server.round + self.block, *stops])

    def _look(self) -> None:
        round = self.server.round
        end = round == self.rounds
        due = [o for o in self.observers if end or o.next_stop(round - 1) == round]
        if not due and not end:
            return
        self.devices.settle()
        server, devices = self.server, self.devices
        moment = Moment(
            round, self.rounds, server.items, devices.cohort, devices.ledger, server.memory
        )
        for what, numbers in (
            ("the users' vectors", devices.cohort.vectors),
            ("the items' vectors", server.items),
        ):
            if not np.isfinite(numbers).all():
                raise Diverged(f"{what} ran off to infinity by round {round}; lower learning_rate")
        self._compare(round)
        for observer in due:
            observer.look(moment)

    # --- ranks ------------------------------------------------------------------------------------

    def _check_ranks(self) -> None:
        """Raises where ranks cannot do what is asked for."""
        if not self.ranks.together:
            return
        if self.message_observers or self.search is not None:
            raise ConfigError(
                "messages are written out in one process alone; use --engine simulation"
            )
        if self.server.guard.defence.looks_at_devices:
            raise ConfigError(
                "[defence] looks at every device's message, and ranks exchange sums alone; use "
                "--engine simulation, or caps on sums (defence.max_sum_norm)"
            )
        if self.devices.algorithm.needs_whole_cohort:
            raise ConfigError(
                f"what a device of {self.devices.algorithm.config.system} learns depends on the "
                "other devices of its round, which are on other ranks; use --engine simulation"
            )

    def _compare(self, round: int) -> None:
        """Raises where ranks have come to different models; tells how long each has worked."""
        if not self.ranks.together:
            return
        digest = sha256(self.server.items.tobytes() + self.server.memory.tobytes()).hexdigest()
        told = self.ranks.gather((digest, self.busy))
        self.busy = 0.0
        other = next((k for k, (one, _) in enumerate(told) if one != told[0][0]), None)
        if other is not None:
            raise RankLost(
                f"by round {round} rank {other} has another model than rank 0, so that its machine "
                "computes otherwise; take machines of one kind, with the same packages",
                said=self.ranks.rank not in (0, other),
            )
        if self.on_pace is not None:
            self.on_pace(round, [seconds for _, seconds in told])
