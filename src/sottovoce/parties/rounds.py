"""When a round opens, ends and is tried again, and why it waits: a state machine without network,
disk and clock.

    open ──▶ closing ──▶ folded
     ▲ │        │ ├────▶ next      (nothing of it counts; the next round begins from the same model)
     │ └────────┼─┴────▶ again     (nothing of it counts; others are asked)
     └──reopened┘  └───▶ stuck     (only an operator can go on)

A host (the server, a Flower run) keeps an `Attempt` where it survives a crash. It shows the machine
what has come (`look`), asks other parties where a sum needs them, and tells the machine how that
ended (`after`). What is different on each kind of link is in `LinkRules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from sottovoce.core.messages import GRID, LIMIT
from sottovoce.errors import ConfigError, SottovoceError

Outcome = Literal["goal", "deadline", "abandoned"]
Phase = Literal["open", "closing", "folded", "again", "next", "stuck"]
Ended = Literal["opened", "too_few", "refused", "diverged"]
"""How it ended to make one aggregate of what has come: there is one; fewer contributions than it
needs are good; another party does not open them; or the model would run off to infinity."""


@dataclass(frozen=True, slots=True)
class RoundRules:
    """How a real federation runs its rounds. Simulation needs none of it."""

    over_selection: float = 0.3
    """Ask so many more devices than a round needs, as a share of them: some will not answer."""
    min_fraction: float = 0.7
    """At the deadline a round counts if so large a share of the devices it needs has reported;
    otherwise it is abandoned and tried again with others."""
    deadline_seconds: float = 600.0
    """How long a round waits for reports."""
    grace_seconds: float | None = None
    """How long it then waits for reports that are on their way, while no device begins another one.
    If it is not given: as long as the slowest line takes that is waited for
    (`stores.coordinator.Plan.grace`)."""
    min_devices: int = 1
    """Devices that must have enrolled before the first round opens."""
    poll_seconds: float = 60.0
    """How often a device asks whether there is a round for it."""
    dormant_after: int = 3
    """A device that was asked so many times in a row and stayed silent is not asked again until it
    checks in."""

    max_value: float = LIMIT
    """Largest absolute value of a number in a device's report; larger ones are cut to it. What an
    honest device sends in a round is rarely above 2."""

    def __post_init__(self) -> None:
        _within("max_value", self.max_value, 1e-6, LIMIT)
        _within("over_selection", self.over_selection, 0.0, 10.0)
        _within("min_fraction", self.min_fraction, 0.0, 1.0)
        _within("deadline_seconds", self.deadline_seconds, 0.1, 30 * 86400.0)
        if self.grace_seconds is not None:
            _within("grace_seconds", self.grace_seconds, 0.0, 86400.0)
        _within("poll_seconds", self.poll_seconds, 0.01, 86400.0)
        for name in ("min_devices", "dormant_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")

    def asked(self, goal: int, pool: int) -> int:
        """How many of `pool` devices to ask where `goal` reports are wanted."""
        return min(pool, math.ceil(goal * (1.0 + self.over_selection) - 1e-9))

    def least(self, goal: int) -> int:
        """The fewest reports with which a round counts."""
        return max(1, math.ceil(self.min_fraction * goal - 1e-9))

    @property
    def value_limit(self) -> int:
        """`max_value` in steps of the grid."""
        return round(self.max_value * GRID)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low:g}, {high:g}], not {value:g}")


@dataclass(frozen=True, slots=True)
class LinkRules:
    """What holds for rounds over one kind of link."""

    least: int = 1
    """Fewest contributions of which one aggregate is made; below it nobody is asked for a sum."""
    most: float = math.inf
    """Most contributions that an aggregate has room for."""
    joins: bool = False
    """Whether devices that come while a round is open take part in it."""
    once: bool = False
    """Whether nobody is asked a second time for what she has sent. Such a round is never tried
    again: it waits for enough."""
    fails: Literal["again", "next", "stuck"] = "again"
    """What becomes of a round that cannot be folded."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What has come in an open round."""

    goal: int
    """Contributions with which it ends."""
    asked: int
    reported: int
    """Contributions that have come."""
    usable: int
    """Those of them that can be in the aggregate."""
    begun: bool = False
    """Whether a part of another one has come."""
    all_in: Callable[[], bool] = lambda: False
    """Whether nothing that would count can be on its way."""


@dataclass(frozen=True, slots=True)
class Available:
    """The devices that a new round could ask."""

    enrolled: int
    active: int
    """Those who can be asked."""
    goal: int | None = None
    """Contributions that are wanted; None where everybody is asked."""
    agreed_before: int | None = None
    """How many were asked before the terms were changed, where this is the first round since."""
    seconds: float = 0.0
    """For how long this round could have been opened."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a round waits for."""

    kind: Literal["few_enrolled", "few_agreed", "few_active", "reports"]
    """One of `core.waiting`."""
    have: int
    need: int
    until: Literal["enough", "grace", "others", "deadline"] = "enough"
    """What ends the wait: enough contributions, whenever they come; the time of those that are on
    their way; others in the place of those that cannot be used; or the deadline."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a round, as a host keeps it."""

    number: int
    attempt: int
    opened_at: float
    """By the host's clock, which only goes forward; in a round that is open again, when it was."""
    phase: Phase = "open"
    called_at: float | None = None
    """When it was last asked for what is on its way, while nobody begins a contribution."""
    outcome: Outcome | None = None
    """Why it was closed."""


class PartyAway(SottovoceError):
    """Another party cannot be asked now, and is asked again."""

    def __init__(self, party: str, why: str, kind: Literal["away", "terms", "refuses"]) -> None:
        """`kind` is the end of a kind of wait (`core.waiting`)."""
        super().__init__(why)
        self.party, self.kind = party, kind


class TooFew(SottovoceError):
    """Fewer good contributions are left than an aggregate needs; nobody was asked for a sum."""


class NotOpened(SottovoceError):
    """What has come cannot be opened, and will not be."""

    def __init__(self, what: Literal["wrong_sum", "sum_refused"], why: str) -> None:
        super().__init__(why)
        self.what: Literal["wrong_sum", "sum_refused"] = what


class RoundMachine:
    """Decides about the rounds of one federation."""

    def __init__(self, rules: RoundRules, link: LinkRules, grace: float = 0.0) -> None:
        """`grace` is how long contributions on their way are waited for, in seconds."""
        self.rules, self.link, self.grace = rules, link, grace

    def need(self, goal: int) -> int:
        """The fewest contributions with which a round counts."""
        return max(self.rules.least(goal), self.link.least)

    def opening(self, first: bool, there: Available) -> Shortage | None:
        """What a round waits for before it opens; None if it can. `first` is the first attempt of
        all. Nothing is spent on rounds in which others are missing: after a change of terms, most
        of those who were asked before must have agreed, or a round's time must be over."""
        if first and there.enrolled < self.rules.min_devices:
            return Shortage("few_enrolled", there.enrolled, self.rules.min_devices)
        need = self.need(there.active if there.goal is None else there.goal)
        if there.agreed_before is not None:
            late = there.seconds >= self.rules.deadline_seconds
            enough = need if late else max(need, self.rules.least(there.agreed_before))
            return Shortage("few_agreed", there.active, enough) if there.active < enough else None
        return Shortage("few_active", there.active, need) if there.active < need else None

    def look(self, round: Attempt, tally: Tally, now: float) -> Attempt:
        """Return what becomes of an open round. Before it ends, contributions on their way get the
        time to come; it stays open if it cannot end any more."""
        if round.phase != "open":
            return round
        outcome = self._outcome(tally, now - round.opened_at)
        if outcome is None:
            return replace(round, called_at=None)
        if self.grace and not tally.all_in():
            if round.called_at is None:
                return replace(round, called_at=now)
            if now - round.called_at < self.grace:
                return round
        return replace(round, phase="again" if outcome == "abandoned" else "closing",
                       outcome=outcome)  # fmt: skip

    def wait(self, tally: Tally, *, called: bool) -> Shortage:
        """What an open round waits for; `called` says whether it takes in what is on its way."""
        have, need = tally.usable, self.need(tally.goal)
        if self.link.once and have < self.link.least:
            return Shortage("reports", have, self.link.least)
        if called:
            return Shortage("reports", have, need, "grace")
        if self._replaces(tally) and have < self.link.least:
            return Shortage("reports", have, need, "others")
        return Shortage("reports", have, need, "deadline")

    def after(self, round: Attempt, ended: Ended, now: float, *, others: bool = False) -> Attempt:
        """Return what becomes of a closing round, once its aggregate is there or cannot be.
        `others` says whether, with too few good contributions, others could come in the place of
        the bad ones: then the good ones are kept, and nobody pays twice. A second answer changes
        nothing."""
        if round.phase != "closing":
            return round
        if ended == "opened":
            return replace(round, phase="folded")
        if ended == "too_few" and others:
            # Who was asked gets the time of a round again; who joins is waited for anyhow.
            opened_at = round.opened_at if self.link.joins else now
            return replace(round, phase="open", outcome=None, called_at=None, opened_at=opened_at)
        return replace(round, phase=self.link.fails, outcome="abandoned")

    def seconds_left(self, round: Attempt, now: float) -> float:
        """The seconds until the deadline of an open round, or the end of its grace."""
        if round.called_at is not None:
            return max(0.0, round.called_at + self.grace - now)
        return max(0.0, round.opened_at + self.rules.deadline_seconds - now)

    def _outcome(self, tally: Tally, seconds: float) -> Outcome | None:
        due = self.rules.deadline_seconds + (self.grace if tally.begun else 0.0)
        late, need = seconds >= due, self.rules.least(tally.goal)
        everyone = tally.reported >= tally.asked and tally.reported >= need
        full = everyone or tally.reported >= tally.goal
        if tally.usable >= self.link.most:
            return "goal"
        if self.link.once:
            if tally.usable < self.link.least or not (full or late):
                return None
            return "goal" if full else "deadline"
        if tally.usable < self.link.least:
            # Others may still come in the place of those who were left out.
            over = late or tally.reported >= tally.asked
            return "abandoned" if over and not self._replaces(tally) else None
        if full:
            return "goal"
        if not late:
            return None
        return "deadline" if tally.reported >= need else "abandoned"

    def _replaces(self, tally: Tally) -> bool:
        return self.link.joins and tally.usable < tally.reported
