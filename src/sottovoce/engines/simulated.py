"""A simulation's devices: the door, and faster ways to what comes out of it.

Nothing leaves a simulation, so it may sum what devices would send without writing it out, run many
rounds of one device each at once, and compute on a GPU. Model, vectors and ledger are the same as
by the definition (`parties.device`). For the algorithms of this package, contract tests hold every
combination that can be put together to that; any other algorithm is held to it here, on some of its
devices, before its fast way is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Accelerator
from sottovoce.consent import Consent
from sottovoce.errors import ConfigError
from sottovoce.ledger import Ledger
from sottovoce.messages import BitReports, ModelView, SummedReports, add_up
from sottovoce.parties.device import Devices

D = TypeVar("D", bound=Devices)
_OURS = "sottovoce.algorithms."
_HELD = 16
"""Devices on which a stranger's fast way is compared with its definition."""


@dataclass(slots=True, repr=False)
class SimulatedDevices(Devices):
    """A cohort behind its door, in a simulation."""

    _accelerator: Accelerator | None = None
    _held: bool = False

    def change_consent(self, consent: Consent) -> None:
        if self._accelerator is not None:
            raise ConfigError("consent can change on --device cpu alone")
        super(SimulatedDevices, self).change_consent(consent)

    def accelerate(self, n_items: int, device: str) -> None:
        """From now on, compute whole rounds on `device`."""
        everyone = np.arange(len(self.cohort), dtype=np.int64)
        release = self._release
        scales = release.scales() if release.per_row else np.zeros(len(everyone))
        self._accelerator = self.algorithm.accelerated(
            self.cohort, n_items, release.rule(everyone, np.array([0])), self.rng, scales, device
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
        self, view: ModelView, rows: NDArray[np.int64], threads: int = 1
    ) -> SummedReports:
        """One round of these devices, as the sum of their messages."""
        algorithm, release = self._learning(), self._release
        fast = self._accelerator is not None
        if fast and self._link.clip:
            raise ConfigError("link.clip looks at every update by itself; leave it on --device cpu")
        if not fast and (release.per_row or algorithm.device_few(view, len(rows))):
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
        rule = release.report_rule(rows, view.round, *algorithm.sampling(view.items))
        made = algorithm.device_report(view, self._shown(), rows, rule, threads)
        return self._record_bits(view, rows, made)

    def _hold(self, view: ModelView) -> None:
        """Raises where the fast way of somebody else's algorithm is not its definition's: what it
        sums, what it books, or what its devices learn."""
        if self._held or type(self.algorithm).__module__.startswith(_OURS):
            return
        some = self.willing()[:_HELD]
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
            many = len(view.items)
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
