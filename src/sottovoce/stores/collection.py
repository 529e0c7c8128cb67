"""How contributions come over each kind of link, and how one aggregate is made of them.

`Coordinator` carries the rounds of a server; a `Collection` is all that it has to know of a link.
Here is that of reports that the server can read; those of sums and of batches, which ask other
parties, are in `services/server`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from sottovoce.core.messages import Aggregate, SummedReports, cut
from sottovoce.parties.server import Server
from sottovoce.stores import server as records
from sottovoce.stores.amending import Waits
from sottovoce.stores.database import Leader
from sottovoce.wire.reports import decode_report
from sottovoce.wire.terms import Terms


@dataclass(frozen=True, slots=True, repr=False)
class Collected:
    """What was made of the contributions to a round."""

    aggregate: Aggregate | None
    """None if nothing has come that would change the model."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How much was left out of it, by reason."""


@dataclass(frozen=True, slots=True)
class RoundNotes:
    """What the operator is told of a round that is over."""

    notices: tuple[str, ...] = ()
    dropped: bool = False
    """Whether all that came was dropped on its way."""


class Collection(ABC):
    """The contributions to the rounds of a server over one kind of link."""

    takes_time = True
    """Whether it takes a while to make one aggregate of them. Devices then read meanwhile that the
    round is not open any more."""

    @abstractmethod
    def collect(self, leader: Leader, now: records.Position, server: Server) -> Collected:
        """Make one aggregate of all that has come. Raises `PartyAway`, `TooFew` or `NotOpened`.
        Nothing comes in any more; asked again, also after a crash, it gives the same."""

    def add_up(self, leader: Leader, now: records.Position) -> None:  # noqa: B027
        """Add up what has come in an open round, so that messages need not be kept. Raises as
        `collect` does."""

    def report_key(self) -> bytes | None:
        """Public key to which what devices send in the next round is sealed, if there is one."""
        return None

    def replaced(self, link: sa.Connection, now: records.Position) -> tuple[str, ...] | None:
        """What the operator is told if others are waited for in the place of those whose
        contributions are bad; None if that would not help."""
        return None

    def over(self, link: sa.Connection, now: records.Position) -> RoundNotes:
        """Say what a round that is over has shown of its devices, and shut out whom it must, while
        what was kept of it is still there."""
        return RoundNotes()

    def forget(self, link: sa.Connection, round: int) -> None:  # noqa: B027
        """Let go of what is kept of rounds up to this one."""

    def tidy(self, link: sa.Connection) -> None:  # noqa: B027
        """Let go of what the rounds so far do not need any more. To be called when one was opened,
        in every process."""

    def objection(self, terms: Terms) -> Waits | None:
        """Which party that keeps terms of its own does not keep these; None if all do."""
        return None


class PlainReports(Collection):
    """Reports that the server can read."""

    takes_time = False

    def __init__(self, limit: int) -> None:
        """Values beyond `limit`, in steps of the grid, are cut to it."""
        self._limit = limit

    def collect(self, leader: Leader, now: records.Position, server: Server) -> Collected:
        n_items, width = server.items.shape
        total: list[SummedReports] = []
        with leader.reading() as link:
            for part in records.bodies(link, now.round, now.attempt):
                reports = [
                    cut(
                        decode_report(
                            body, sender=number, n_items=n_items, width=width, round=now.round
                        ),
                        self._limit,
                    )
                    for number, body in part
                ]
                total = [server.add_sums([*total, server.sum_reports(reports)])]
        return Collected(server.add_sums(total))
