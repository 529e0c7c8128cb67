"""What an experiment's release would cost a user, choice by choice, before anything leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sottovoce.core.consent import Choice
from sottovoce.errors import ConfigError, UsageError
from sottovoce.evaluation.tables import Column, Table
from sottovoce.experiment import Experiment
from sottovoce.privacy import central
from sottovoce.privacy.accountant import DELTA, certify, rounded_up, rounds_left
from sottovoce.privacy.base import Release
from sottovoce.privacy.statements import bound_text, odds

MOST_TIMES = 1_000_000
_SHUFFLED = (
    "With a shuffler: by the clone bound of 2021, if the shuffler does not work with the server, "
    "all of a batch report with the same ε, and no batch has fewer honest users."
)
_SUMMED = (
    "With a helper: by the exact formula of the Gaussian mechanism, if the helper does not work "
    "with the server. Against the two together nothing is promised."
)
_CHECKED = "With aggregators: if no two of the three organisations work together."
_LOCAL = "Devices add the noise themselves: no other party has to be trusted for it."
_COMPARED = "Every figure compares all data of one user with any others in their place."


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a user with one choice would spend. An ε is infinite where nothing bounds it."""

    choice: str
    share: float
    """The share of the users who choose so."""
    each: Literal["round", "period"]
    times: int | None
    """For how many rounds or periods she sends; no more than her limit has room for. None if the
    data decide it and it does not matter for the cost."""
    cost: float
    """ε of one of them, in plain sum."""
    apart: float
    """ε of all of them, while the parties that have to work apart do."""
    together: float
    """ε of all of them, if they do not."""
    delta: float
    """The chance with which `apart` may fail."""
    batch: int = 0
    """Users in the smallest batch, where reports are shuffled."""
    why_not: str = ""
    """Why nothing leaves under this choice."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an experiment would cost its users."""

    rows: tuple[Foreseen, ...]
    assumed: tuple[str, ...]
    """What the figures rest on."""
    unprotected: tuple[str, ...]
    """What no figure covers."""

    def table(self, title: str) -> Table:
        columns = [
            Column("share", "of users", ".0%"),
            Column("choice"),
            Column("times", "sends", ","),
            Column("cost", "ε of each", ",.10g"),
            Column("apart", "ε in all, parties apart", ",.10g"),
            Column("together", "ε in all, together", ",.10g"),
        ]
        shown = [
            {
                "share": row.share,
                "choice": row.choice,
                "times": "every time" if row.times is None else row.times,
                **{
                    name: rounded_up(value) if math.isfinite(value) else "none"
                    for name, value in (
                        ("cost", row.cost),
                        ("apart", row.apart),
                        ("together", row.together),
                    )
                },
            }
            for row in self.rows
        ]
        return Table(title, columns, shown, notes=list(self.assumed))

    def sentences(self) -> list[str]:
        """What the dearest choice means, and which choices send nothing."""
        dearest = max(self.rows, key=lambda row: row.apart)
        said = [f"{row.choice}: {row.why_not}" for row in self.rows if row.why_not]
        if dearest.apart == 0.0:
            return [*said, "Nothing leaves under these choices."]
        if math.isinf(dearest.apart):
            return [*said, "No ε bounds what leaves."]
        but = f", but for a chance of {dearest.delta:g}" if dearest.delta else ""
        return [
            *said,
            f"The dearest choice costs ε = {bound_text(dearest.apart)}{but}: what anyone sees "
            f"{odds(dearest.apart)}.",
        ]


def outlook(experiment: Experiment, users: int | None = None, rounds: int | None = None) -> Outlook:
    """What each choice of the experiment costs, with `users` in the smallest batch of reports (the
    least that the terms permit if it is not given), in so many rounds or periods (the file's)."""
    for number, what in ((users, "users"), (rounds, "rounds")):
        if number is not None and not 1 <= number <= 10**10:
            raise UsageError(f"--{what} must be at least 1 and at most 10,000,000,000")
    caveats = tuple(experiment.algorithm.caveats())
    if experiment.silo is not None:
        words = [choice.owner_words() for choice in experiment.consent.choices]
        parts = [choice.takes_part for choice in experiment.consent.choices]
        rows = tuple(
            Foreseen(text, share, "round", None, math.inf, math.inf, math.inf, 0.0)
            if part
            else Foreseen(text, share, "round", 0, 0.0, 0.0, 0.0, 0.0)
            for text, part, share in zip(words, parts, _shares(experiment), strict=True)
        )
        return Outlook(rows, (), caveats)
    release = experiment.cross_device().release
    times = _times(experiment, rounds)
    choices = zip(experiment.consent.choices, _shares(experiment), strict=True)
    rows = tuple(_foreseen(experiment, one, share, users, times) for one, share in choices)
    caveats = tuple(dict.fromkeys([*release.caveats(experiment.link), *caveats]))
    return Outlook(rows, tuple(_assumed(experiment)), caveats)


def _shares(experiment: Experiment) -> list[float]:
    weights = np.array(experiment.consent.weights)
    found: list[float] = (weights / weights.sum()).tolist()
    return found


def _times(experiment: Experiment, rounds: int | None) -> int | None:
    """For how many rounds or periods a user sends, at most; None if nothing bounds them anyway."""
    algorithm, release, link = experiment.cross_device()
    if rounds is not None:
        return min(rounds, MOST_TIMES)
    if release.contributing is not None:
        return 1
    known = getattr(algorithm, "rounds", 0)
    if not known and (link.noise or release.adds_noise):
        raise UsageError(
            "how many rounds these epochs are depends on the data; say --rounds, or set "
            "algorithm.rounds"
        )
    return min(int(known), MOST_TIMES) if known else None


def _foreseen(
    experiment: Experiment, choice: Choice, share: float, users: int | None, times: int | None
) -> Foreseen:
    _, release, link = experiment.cross_device()
    each: Literal["round", "period"] = "period" if release.contributing is not None else "round"
    nothing = Foreseen(choice.words(), share, each, 0, 0.0, 0.0, 0.0, 0.0)
    if not choice.takes_part:
        return nothing
    why = release.objection(choice, noisy_sums=bool(link.noise))
    if why:
        return replace(nothing, why_not=why)
    cost = None if link.noise else release.cost(choice)
    if times is None or (cost is None and not link.noise):
        return replace(nothing, times=times, cost=math.inf, apart=math.inf, together=math.inf)
    if cost is None:
        limit = choice.total_epsilon
        room = central.rounds_within(link.noise, limit) if math.isfinite(limit) else times
        sent = min(times, room, central.MOST_ROUNDS)
        one, total = (central.price(link.noise, n) if n else 0.0 for n in (min(sent, 1), sent))
        return replace(
            nothing, times=sent, cost=one, apart=total,
            together=math.inf if sent else 0.0, delta=DELTA,
        )  # fmt: skip
    sent = int(min(times, rounds_left(choice.total_epsilon, 0.0, cost, 1)))
    spent = replace(nothing, times=sent, cost=cost, apart=sent * cost, together=sent * cost)
    if release.contributing is not None:
        apart_alone = math.inf if sent else 0.0
        return replace(spent, together=apart_alone, delta=sent * release.contributing.delta)
    if release.reporting is None or not sent:
        return spent
    reports, tier = release.reporting, _tier(release, choice, cost)
    batch = users or tier
    found = certify(cost / reports.max_reports, reports.max_reports, sent, batch)
    return replace(spent, apart=found.with_proxy, delta=found.delta, batch=batch)


def _tier(release: Release, choice: Choice, cost: float) -> int:
    """The fewest devices in a batch of the tier that a round of this cost is in."""
    reports = release.reporting
    if reports is None:
        raise ConfigError("there are no tiers without reports")
    each = cost / reports.max_reports
    return min(reports.tiers, key=lambda one: abs(one.epsilon - each)).min_devices


def _assumed(experiment: Experiment) -> Iterator[str]:
    _, release, link = experiment.cross_device()
    mixing = link.mixing
    if release.reporting is not None:
        yield _SHUFFLED
        if mixing is not None and mixing.chain:
            many = mixing.shufflers
            yield (
                f"Reports pass {many} shufflers: the smaller figure holds if at most {many - 1} of "
                f"them work with the server, the other one if all {many} do. A dishonest first "
                "shuffler, or the server, can make devices up, which hide nobody; any dishonest "
                "one can leave reports out."
            )
    elif link.checking is not None:
        yield _CHECKED
    elif link.noise or release.contributing is not None:
        yield _SUMMED
    elif release.adds_noise:
        yield _LOCAL
    else:
        return
    yield _COMPARED
