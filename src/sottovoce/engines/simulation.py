"""Simulation: all devices as one cohort, in this process.

The engine knows no algorithm. It runs rounds, fuses rounds of a single device between two stops of
the observers, and writes messages out only where somebody listens, those of some devices at a time.
Whatever it chooses, the model, the vectors and the ledger are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from sottovoce.engines.base import Listener, Moment, Observer
from sottovoce.engines.simulated import SimulatedDevices
from sottovoce.errors import ConfigError, Diverged, SpoiledSum, Stalled
from sottovoce.messages import DeviceReports, MaskSeeds, MaskSum, ModelView, SummedReports
from sottovoce.parties.masker import Masker
from sottovoce.parties.proxy import Proxy
from sottovoce.parties.searching import Search, leniency
from sottovoce.parties.secure_sum import MaskedSum, summed
from sottovoce.parties.server import NO_DEFENCE, Server

_MASKED_AT_ONCE = 16
"""Devices whose masked updates are in memory together."""


@dataclass(slots=True)
class Simulation:
    server: Server
    devices: SimulatedDevices
    cohort_size: int
    rounds: int
    observers: Sequence[Observer] = ()
    listeners: Sequence[Listener] = ()
    threads: int = 1
    fuse: bool = True
    """Run single-device rounds in blocks. Off, every round passes through its own message."""
    block: int = 200_000
    """Most rounds fused at once, so that an interrupt is heard soon."""
    proxy: Proxy | None = None
    """Between the devices and the server, where randomised reports are what leaves."""
    masker: Masker | None = None
    """Who knows the masks, where the server sees sums alone."""
    largest_value: float = 0.0
    """Of a number in one device's update, in steps of the grid; a masker needs it."""
    masked: bool = True
    """Whether listeners hear the masked updates of a secure sum. If not, the server's hear what it
    opens, the sum, and that takes a fraction of the time."""
    least: int = 0
    """Fewest devices in a round, where it is everybody who is asked: those who may still send are
    enough. 0 where it must be `cohort_size`."""
    search: Search | None = None
    """For devices that spoil secure sums, as a server makes it; None ends the run at such a sum.
    With it messages are written out."""
    shut_out: set[int] = field(default_factory=set)
    """Users whom the search has found."""

    def run(self) -> None:
        """Go on from the server's round to `rounds`."""
        willing = self.devices.willing()
        # Where devices spend, each round looks anew at who may send.
        too_few = len(willing) < self.cohort_size and not self.devices.spends
        if self.proxy is None and (too_few or self.cohort_size < 1):
            raise ConfigError(
                f"{self.cohort_size} devices are asked for in a round, {len(willing)} take part"
            )
        server = self.server
        fuse = self.fuse and self.cohort_size == 1 and self.devices.fuses
        fuse &= server.guard.defence == NO_DEFENCE
        while server.round < self.rounds:
            stop = self._next_stop()
            if self.proxy is not None:
                self._mixed_round(self.proxy)
            elif fuse and not self.listeners:
                rows = willing[server.select_rounds(len(willing), stop - server.round)]
                after = self.devices.report_rounds(server.items, server.round, rows)
                server.advance(after, len(rows))
            else:
                self._round(self._asked(willing))
            self._look()

    def _asked(self, willing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Who is asked in this round, of those who were willing at the start: budgets may run out
        on the way."""
        if self.devices.spends:
            willing = self.devices.willing()
        size = max(self.least, len(willing)) if self.least else self.cohort_size
        if self.shut_out:
            users = self.devices.cohort.users
            willing = willing[[users[row] not in self.shut_out for row in willing]]
            size = max(self.least, min(size, len(willing)))
        if len(willing) < size:
            raise Stalled(
                f"in round {self.server.round} only {len(willing):,} devices may still send, where "
                f"{size:,} are asked; lower rounds or cohort_size, or let the users permit more"
            )
        return willing[self.server.select(len(willing), size)]

    def _round(self, rows: NDArray[np.int64]) -> None:
        view = self.server.publish()
        self._tell("device", view)
        if self.masker is not None:
            self._summed_round(self.masker, view, rows)
        elif self.listeners or self.server.guard.defence.looks_at_devices:
            self.server.fold(self._sum_written(view, rows))
        else:
            self.server.fold(self.devices.report_summed(view, rows, self.threads))

    def _sum_written(self, view: ModelView, rows: NDArray[np.int64]) -> SummedReports:
        """The sum of the devices' messages."""
        written, server = self._written(view, rows), self.server
        if server.guard.defence.looks_at_devices:  # all of them together
            return server.sum_reports(list(written))
        sums = (server.sum_reports([part]) for part in written)
        return reduce(lambda one, other: server.add_sums([one, other]), sums)

    def _written(self, view: ModelView, rows: NDArray[np.int64]) -> Iterator[DeviceReports]:
        """The devices' messages, as the server hears them."""
        for reports in self.devices.report_in_parts(view, rows):
            self._tell("server", reports)
            yield reports

    def _mixed_round(self, proxy: Proxy) -> None:
        """A round of everyone whose budget permits it, through the proxy."""
        view, rows = self.server.publish(), self.devices.willing()
        self._tell("device", view)
        bits = self.devices.report_bits(view, rows, self.threads)
        # To the proxy they are sealed.
        self._tell("proxy", replace(bits, reports=np.zeros((len(bits), 0), np.uint32)))
        batches = proxy.collect(bits, self.threads)
        if not batches:
            raise Stalled(
                f"in round {view.round} no tier has its minimum of devices with enough budget "
                "left, so that the proxy holds everything back; lower rounds, or let the users "
                "permit more"
            )
        for batch in batches:
            self._tell("server", batch)
        self.server.fold(self.server.count(batches))

    def _summed_round(self, masker: Masker, view: ModelView, rows: NDArray[np.int64]) -> None:
        """A round of which the server sees the sum alone."""
        link, (n_rows, width) = masker.link, view.items.shape
        if self.search is None and not (self.listeners and self.masked):
            sums = self.devices.report_summed(view, rows, self.threads).dense(n_rows)
            noise = masker.noise(view.round)
            if noise is not None:
                sums += noise.reshape(sums.shape)
            whole = summed(view.round, sums, len(rows))
            self._tell("server", whole)
            self.server.fold(whole)
            return
        users = self.devices.cohort.users[rows].tolist()
        groups = self._groups(masker, users)
        place = {user: k for k, group in enumerate(groups) for user in group}
        totals = [MaskedSum(view.round, n_rows, width, link, self.largest_value) for _ in groups]
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
            answers = [masker.sum_masks(named[0], self.threads)]
        else:
            answers = masker.sum_groups(named, self.threads)
        for number, (total, told) in enumerate(zip(totals, answers, strict=True)):
            self._tell("server", told)
            opened.append(self._opened(total, told, number))
        good = [one for one in opened if one is not None]
        if good:
            self.server.fold(self.server.add_sums(good))
        else:
            self.server.round += 1  # given up: the next round begins from the same model
        if self.search is not None:
            spoiled = [one is None for one in opened]
            self.search, out = self.search.after(users, groups, spoiled)
            self.shut_out |= set(out)

    def _groups(self, masker: Masker, users: list[int]) -> list[list[int]]:
        """Who is summed with whom."""
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
        for listener in self.listeners:
            listener.hear(party, message)

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
        for observer in due:
            observer.look(moment)
