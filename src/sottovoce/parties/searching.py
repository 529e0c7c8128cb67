"""Who spoils secure sums: the server cannot see whose garbage is in a sum, but it can see into
which sums a device falls when groups are drawn anew in every round.

**Rounds.** As long as sums are good there is one for a round. After a spoiled one the next rounds
are summed in groups that have no device in common, drawn afresh when all reports are in; spoiled
groups are left out and the others count. Where too few devices report for two groups, or the terms
permit one sum a round, the sum is over a part of them, half at first, and half of that after each
spoiled one. It ends when sums stay good.

**Evidence.** Let K of a round's n devices be in its f spoiled groups. Groups are drawn after
everybody has reported, and at least f devices sent garbage; so an honest device, whatever the
others send, is in a spoiled group with a chance of at most q = (K − f) / (n − f). Against that a
bet is kept for every device: a share of it is put on "in a spoiled group again", at odds of 1 / q.
What a fair bet has come to is above a million ever, in all time, with a chance of at most one in a
million (Ville's inequality), however cunning the others are. That is when a device is shut out. Two
bets run side by side, a bold one for those who send garbage always, a patient one for those who do
it now and then; what counts is the mean of both.

What counts as spoiled must not depend on honest devices: somebody who sends just so much that a sum
passes a limit only with *her* update in it could have her shut out with himself. So the limit is
drawn anew for every sum, far above all honest ones (`leniency`): one update more or less changes
the chance of a sum to be spoiled by less than a hundredth, whatever garbage is in it.

It convicts of garbage, that is of numbers that no honest sum has. Who adds little is not found; and
a *proxy* that tells wrong sums can have anybody shut out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from sottovoce.core.links import SecureSum

SURE = 1_000_000
"""An honest device is ever shut out with a chance of at most one in so many."""
_BOLD, _PATIENT = 0.9, 0.3
"""The share of a bet that is put on a device."""
_MOST_PATIENCE = 64
_MOST_HALVINGS = 40
_UNSEEN = 0.01
"""A search goes on while somebody who always sends garbage could have been in no good sum by more
than this chance."""

_STEPS = 20.0
"""Steps of leniency; in each the chance of a sum to be spoiled grows e times."""
_SLACK = 1.01
"""Factor by which the bound on an honest device's chance is raised. A step of leniency is 100 times
the largest sum of a group of two or more; exchanging one of its devices changes a sum by no more
than the 200th part of that."""

Shuffle = Callable[[list[int]], object]
"""Puts a list into an order that says nothing; in a real federation by the operating system."""


def leniency(uniform: float) -> float:
    """By how much a sum may exceed honest ones, as a share of the most; from a number that is
    uniform on [0, 1)."""
    return max(0.0, 1.0 + math.log1p(-uniform) / _STEPS)


@dataclass(frozen=True, slots=True)
class Mark:
    """What spoiled sums say of a device."""

    failed: int = 0
    """Rounds in which it was in a spoiled sum, while others were not."""
    rounds: int = 0
    """Rounds with a spoiled sum in which it reported."""
    bold: float = 0.0
    patient: float = 0.0
    """Logarithms of what the two bets on it have come to."""

    @property
    def chance(self) -> float:
        """An upper bound on an honest device's chance to ever get this far."""
        high, low = max(self.bold, self.patient), min(self.bold, self.patient)
        worth = high + math.log1p(math.exp(low - high)) - math.log(2.0)
        return math.exp(-max(0.0, worth))

    @property
    def convicts(self) -> bool:
        return self.chance * SURE <= 1.0

    def after(self, failed: bool, q: float) -> Mark:
        """After a round in which an honest device fails with a chance of at most `q`."""
        bold, patient = (
            bet + math.log1p(share * (1.0 / q - 1.0) if failed else -share)
            for bet, share in ((self.bold, _BOLD), (self.patient, _PATIENT))
        )
        return Mark(self.failed + failed, self.rounds + 1, bold, patient)

    @property
    def words(self) -> str:
        return (
            f"of {self.rounds:,} rounds with spoiled sums it was in one of these in "
            f"{self.failed:,}, which happens to at most one honest device in {SURE:,}"
        )


@dataclass(frozen=True, slots=True)
class Search:
    """Where the server's search stands. It never changes; what follows is another one."""

    on: bool = False
    patience: int = 0
    """Good rounds in a row after which it ends; more after each one that found nobody."""
    calm: int = 0
    """Good rounds in a row so far."""
    unseen: float = 1.0
    """The chance of a device to have been in none of their sums."""
    halvings: int = 1
    """How often the devices of a round are halved if there is one sum."""
    marks: Mapping[int, Mark] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Search on={self.on} marks={len(self.marks)}>"

    def groups(
        self, numbers: Sequence[int], link: SecureSum, shuffle: Shuffle, *, several: bool = True
    ) -> list[list[int]]:
        """Which of these devices are summed together; all of them unless it is on. Without
        `several` there is one sum."""
        order = list(numbers)
        if not self.on:
            return [order]
        shuffle(order)
        n = len(order)
        many = min(link.groups, n // link.min_devices) if several else 1
        if many > 1:
            edges = [place * n // many for place in range(many + 1)]
            return [sorted(order[a:b]) for a, b in pairwise(edges)]
        return [sorted(order[: max(link.min_devices, n >> self.halvings)])]

    def after(
        self, numbers: Sequence[int], groups: Sequence[Sequence[int]], spoiled: Sequence[bool]
    ) -> tuple[Search, dict[int, Mark]]:
        """The search after a round of these devices in these groups, and who is to be shut out,
        with what speaks against them."""
        if not self.on and not any(spoiled):
            return self, {}
        if not self.on:
            patience = max(1, min(_MOST_PATIENCE, 2 * self.patience))
            return replace(self, on=True, patience=patience, calm=0, unseen=1.0, halvings=1), {}
        if not any(spoiled):
            return self._calmer(sum(map(len, groups)) / len(numbers)), {}
        bad = [group for group, wrong in zip(groups, spoiled, strict=True) if wrong]
        inside = {number for group in bad for number in group}
        q = _SLACK * (len(inside) - len(bad)) / (len(numbers) - len(bad))
        halvings = min(self.halvings + (len(groups) == 1), _MOST_HALVINGS)
        rougher = replace(self, calm=0, unseen=1.0, halvings=halvings)
        if q >= 1.0:  # all of them: that tells nothing of anybody
            return rougher, {}
        marks = dict(self.marks)
        for number in numbers:
            marks[number] = marks.get(number, Mark()).after(number in inside, q)
        out = {number: mark for number, mark in marks.items() if mark.convicts}
        kept = {number: mark for number, mark in marks.items() if number not in out}
        return replace(rougher, marks=kept, patience=0 if out else self.patience), out

    def _calmer(self, covered: float) -> Search:
        calm, unseen = self.calm + 1, self.unseen * (1.0 - covered)
        on = calm < self.patience or unseen > _UNSEEN
        halvings = max(1, self.halvings - 1)
        return replace(self, on=on, calm=calm, unseen=unseen, halvings=halvings)

    def without(self, numbers: Sequence[int]) -> Search:
        """The same with nothing against these devices."""
        gone = set(numbers)
        return replace(self, marks={n: m for n, m in self.marks.items() if n not in gone})

    def suspects(self, most: int = 10) -> dict[int, Mark]:
        """Those against whom most speaks, at odds of ten to one or more."""
        there = sorted(self.marks.items(), key=lambda each: (each[1].chance, each[0]))
        return {number: mark for number, mark in there[:most] if mark.chance <= 0.1}

    def to_table(self) -> dict[str, Any]:
        return {
            "on": self.on,
            "patience": self.patience,
            "calm": self.calm,
            "unseen": self.unseen,
            "halvings": self.halvings,
            "marks": {
                str(n): [m.failed, m.rounds, m.bold, m.patient] for n, m in self.marks.items()
            },
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Search:
        """The inverse of `to_table`."""
        marks = {int(number): Mark(*mark) for number, mark in table["marks"].items()}
        return cls(**{**table, "marks": marks})
