"""The server's half of a secure sum: adds up what it cannot read, and opens the sum of all."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing, FactorModel
from sottovoce.core.arrays import each, equal_spans
from sottovoce.core.links import Link, SecureSum
from sottovoce.core.masking import BITS, Words, no_words, unmasked
from sottovoce.core.messages import GRID, MaskedReports, MaskSum, SummedReports
from sottovoce.errors import ConfigError, MessageError, SpoiledSum, WrongSum
from sottovoce.privacy.base import Release

_FURTHEST = 40
"""Standard deviations of noise beyond which no number is taken for one."""
LENIENT = 2000
"""How many times the largest honest sum may be exceeded at most, with full leniency."""


class MaskedSum:
    """One round's submissions, as they come."""

    def __init__(
        self,
        round: int,
        rows: int,
        width: int,
        link: SecureSum,
        largest: float,
        sigma: float | None = None,
    ) -> None:
        """`largest` is the largest absolute value of a number in one honest device's update, in
        steps of the grid; `sigma` the standard deviation of the noise, if it is not the link's."""
        self.round, self._width, self._link = round, width, link
        self._sigma = sigma
        self._largest = largest
        self._bits = link.bits or BITS[-1]
        self._total: Words = no_words(rows * width, self._bits)
        self._senders: set[int] = set()

    @property
    def devices(self) -> int:
        return len(self._senders)

    def add(self, reports: MaskedReports, threads: int = 1) -> None:
        """Takes masked updates in any order; a second one of a device is refused with the whole."""
        if reports.round != self.round:
            raise MessageError(f"report for round {reports.round} in round {self.round}")
        if reports.masked.shape != (len(reports), len(self._total)):
            raise MessageError("a masked update has a number for every number of the model")
        new = set(reports.sender.tolist())
        if len(new) != len(reports) or self._senders & new:
            raise MessageError("a device reported twice in one round")
        self._senders |= new
        self._add(reports.masked, threads)

    def go_on(self, total: Words, senders: set[int]) -> None:
        """From what was added up before, and of whom."""
        if total.shape != self._total.shape or total.dtype != self._total.dtype:
            raise MessageError("a sum of masked updates does not have the numbers of the round")
        self._total, self._senders = total.copy(), set(senders)

    @property
    def total(self) -> Words:
        """The sum, masked."""
        return self._total

    def _add(self, masked: Words, threads: int) -> None:
        def part(span: slice) -> None:
            total = self._total[span]
            for one in masked:
                np.add(total, one[span], out=total)

        each(part, equal_spans(len(self._total), threads), threads)

    def open(self, told: MaskSum, leniency: float = 0.0, *, counted: bool = False) -> SummedReports:
        """The sum of the updates. Raises `WrongSum` where it cannot be one, `SpoiledSum` where that
        shows in its numbers: under a wrong sum of masks, or with a device's garbage in it, every
        number is uniform below 2^bits, and honest sums are smaller. (A helper or a device that
        adds little to the right sum is not found out.) With `leniency`, from 0 to 1, larger numbers
        pass, and are cut to what honest devices can add up to: `searching` says what for. Where
        rows are `counted`, the last number of each says how many devices sent it; a row of which
        these devices cannot be the senders is left out."""
        if told.round != self.round or told.devices != self.devices:
            raise WrongSum(
                f"the helper told the sum of {told.devices:,} masks of round {told.round}, and was "
                f"asked for {self.devices:,} of round {self.round}"
            )
        if told.masks.shape != self._total.shape or told.bits != self._bits:
            raise WrongSum("the helper told a sum of masks of another size than the model's")
        sums = unmasked(self._total, told.masks, self._width, self._bits)
        most = sum_limit(self._link, self.devices, self._largest, self._sigma)
        room = (1 << (self._bits - 2)) - most
        bound = most + int(leniency * min(LENIENT * most, room))
        if bool(np.any((sums > bound) | (sums < -bound))):
            raise SpoiledSum(
                "the sum that was opened is larger than these devices could have sent: the helper "
                "told a wrong sum of masks, or a device sent what no honest one does"
            )
        if counted and bool(np.any(sums[:, -1] % int(GRID))):
            raise SpoiledSum("the sum that was opened does not count its senders in whole numbers")
        opened = summed(self.round, np.clip(sums, -most, most), self.devices)
        return opened.well_counted() if counted else opened


def sum_limit(link: SecureSum, devices: int, largest: float, sigma: float | None = None) -> int:
    """The largest absolute value of a number in an honest sum, in steps of the grid; `sigma` is the
    standard deviation of the noise, if it is not the link's."""
    sigma = link.sigma if sigma is None else sigma
    one = min(largest, link.clip * GRID) if link.clip else largest
    most = int(devices * one + _FURTHEST * sigma)
    bits = link.bits or BITS[-1]
    if most > 1 << (bits - 2):
        raise ConfigError(
            f"{devices:,} devices could add up to numbers beyond 2**{bits - 2}, for which "
            f"{bits} bits have no room; ask fewer, or set link.bits higher"
        )
    return most


def most_devices(link: SecureSum, largest: float, sigma: float) -> int:
    """For the sum of which a number has room."""
    one = min(largest, link.clip * GRID) if link.clip else largest
    room = (1 << ((link.bits or BITS[-1]) - 2)) - _FURTHEST * sigma
    return int(room / one)


def sigma_of(algorithm: FactorModel, release: Release, link: SecureSum) -> float:
    """The largest standard deviation of the noise on a number of a sum, in its steps. Of noise in
    parts: as of so many devices as its parts; more of them add what is far below what they send."""
    own = release.contributing
    if own is None:
        return link.sigma
    return own.sigma * release.steps / math.sqrt(min(cast(Contributing, algorithm).shares))


def fitted(algorithm: FactorModel, release: Release, link: Link, draws: int, devices: int) -> Link:
    """The link with as few bits as a sum of so many devices needs, unless it says how many."""
    own, way = release.contributing, link.summing
    if way is None:
        return link
    largest = release.largest_value(draws) * release.steps
    sigma = sigma_of(algorithm, release, way)
    # A search needs room for garbage to show (`open`); contributions are not searched.
    return _fitted(way, devices, largest, sigma, lenient=own is None)


def _fitted(
    link: SecureSum, devices: int, largest: float, sigma: float, *, lenient: bool
) -> SecureSum:
    if link.bits:
        sum_limit(link, devices, largest, sigma)  # raises where they are too few
        return link
    most = sum_limit(link.of_bits(BITS[-1]), devices, largest, sigma)
    most *= LENIENT + 1 if lenient else 1
    enough = (bits for bits in BITS if most <= 1 << (bits - 2))
    return link.of_bits(next(enough, BITS[-1]))


def summed(round: int, sums: NDArray[np.int64], devices: int) -> SummedReports:
    """A table of sums as what a server folds: the rows that anybody sent."""
    item = np.flatnonzero(sums.any(axis=1)).astype(np.int32)
    return SummedReports(round, item, sums[item], devices)


# Who spoils secure sums: the server cannot see whose garbage is in a sum, but it can see into
# which sums a device falls when groups are drawn anew in every round. **Rounds.** As long as sums
# are good there is one for a round. After a spoiled one the next rounds are summed in groups that
# have no device in common, drawn afresh when all reports are in; spoiled groups are left out and
# the others count. Where too few devices report for two groups, or the terms permit one sum a
# round, the sum is over a part of them, half at first, and half of that after each spoiled one.
# It ends when sums stay good. **Evidence.** Let K of a round's n devices be in its f spoiled
# groups. Groups are drawn after everybody has reported, and at least f devices sent garbage; so
# an honest device, whatever the others send, is in a spoiled group with a chance of at most q =
# (K − f) / (n − f). Against that a bet is kept for every device: a share of it is put on "in a
# spoiled group again", at odds of 1 / q. What a fair bet has come to is above a million ever, in
# all time, with a chance of at most one in a million (Ville's inequality), however cunning the
# others are. That is when a device is shut out. Two bets run side by side, a bold one for those
# who send garbage always, a patient one for those who do it now and then; what counts is the mean
# of both. What counts as spoiled must not depend on honest devices: somebody who sends just so
# much that a sum passes a limit only with *her* update in it could have her shut out with
# himself. So the limit is drawn anew for every sum, far above all honest ones (`leniency`): one
# update more or less changes the chance of a sum to be spoiled by less than a hundredth, whatever
# garbage is in it. It convicts of garbage, that is of numbers that no honest sum has. Who adds
# little is not found; and a *proxy* that tells wrong sums can have anybody shut out.
