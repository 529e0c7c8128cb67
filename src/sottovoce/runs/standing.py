"""What bounds a run, or that nothing does: the first thing that its report says. Also whether a run
ends near popularity, which takes no learning at all, and what most likely caused it; this is said
only if enough users are judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from sottovoce.algorithms.base import AlgorithmSettings, Signs
from sottovoce.baselines.simple import TopPop
from sottovoce.core.links import Link
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.evaluation.report import Lead
from sottovoce.evaluation.significance import Comparison, compare
from sottovoce.experiment import Experiment
from sottovoce.privacy.accountant import rounded_up
from sottovoce.privacy.base import Release
from sottovoce.privacy.central import price
from sottovoce.privacy.statements import NOTHING
from sottovoce.runs.costs import tier_costs
from sottovoce.runs.devices import DeviceOutcome
from sottovoce.runs.topology import RunOutcome

if TYPE_CHECKING:
    import pyarrow as pa

PRINTED = "as printed: for comparison and attack"
_UNCHANGED = "This is the system of a paper, as the paper has it."


@dataclass(frozen=True, slots=True)
class RunStanding:
    """Where a run stands with what it promises."""

    printed: bool
    """Whether it is there to be compared and attacked."""
    kind: Literal["bounded", "sums", "open"]
    """An ε bounds what is told; or sums of many people hide single ones; or neither."""
    epsilon: float
    """What a user has spent at most, by what bounds it; infinite where nothing does."""
    words: tuple[str, ...]
    origin: str = ""
    """"as printed" or "ours"; nothing of a system that is not of this package."""

    @property
    def label(self) -> str:
        if self.kind == "bounded":
            weak = ", which protects nothing" if self.epsilon > NOTHING else ""
            bound = f"bounded: ε is {rounded_up(self.epsilon):,.10g} at most{weak}"
            return f"{PRINTED}; {bound}" if self.printed else bound
        if self.printed:
            return PRINTED
        if self.kind == "sums":
            return "sums of many people, without an ε"
        return "nothing bounds it: for comparison and attack"

    @property
    def short(self) -> str:
        """For a column of a table."""
        bound = {"bounded": "bounded by ε", "sums": "sums, no ε", "open": "no bound"}[self.kind]
        if self.kind == "bounded" and self.epsilon > NOTHING:
            bound = "ε too large"
        return f"{self.origin}, {bound}" if self.origin else bound

    def lead(self) -> Lead:
        weak = self.kind == "bounded" and self.epsilon > NOTHING
        if self.kind == "open" or self.printed:
            return Lead("open", self.label, self.words)
        return Lead("weak" if weak else self.kind, self.label, self.words)


def as_printed(algorithm: AlgorithmSettings, release: Release | None, link: Link | None) -> bool:
    """Whether these are a system of a paper, as the paper has it. No paper adds up under masks."""
    over_sums = link is not None and link.adds_up is not None
    return algorithm.as_printed and not over_sums and (release is None or release.as_printed)


def origin(experiment: Experiment) -> str:
    """What every table says of a system: "as printed" or "ours"; nothing of somebody else's."""
    algorithm = experiment.algorithm
    if as_printed(algorithm, experiment.release, experiment.link):
        return "as printed"
    return "ours" if type(algorithm).__module__.startswith("sottovoce.") else ""


def titled(experiment: Experiment) -> str:
    """The system with its origin, for the titles of tables."""
    said = origin(experiment)
    return f"{experiment.system} ({said})" if said else experiment.system


def standing(experiment: Experiment, ledger: pa.Table) -> RunStanding:
    """Of a run with this ledger."""
    return replace(_stands(experiment, ledger), origin=origin(experiment))


def _stands(experiment: Experiment, ledger: pa.Table) -> RunStanding:
    silo, link, release = experiment.silo, experiment.link, experiment.release
    if silo is not None:
        reads = "Data owners read in full what they are sent."
        if not silo.sums_over_people:
            return RunStanding(silo.as_printed, "open", math.inf, (
                *(_UNCHANGED,) * silo.as_printed, reads,
                "The orchestrator can tell who liked what. No ε bounds it.",
            ))  # fmt: skip
        return RunStanding(False, "sums", math.inf, (
            f"The orchestrator sees sums over {silo.min_users:,} people or more, and nobody alone.",
            f"{reads} No ε bounds what sums tell.",
        ))  # fmt: skip
    printed = as_printed(experiment.algorithm, release, link)
    first = (_UNCHANGED,) * printed
    epsilon, words = _bound(experiment, ledger)
    if math.isfinite(epsilon):
        if epsilon > NOTHING:
            words += (f"Above ε = {NOTHING:g} nothing is protected.",)
        return RunStanding(printed, "bounded", epsilon, first + words)
    if link is not None and link.adds_up is not None:
        return RunStanding(printed, "sums", math.inf, (
            *first,
            f"Only sums over at least {link.adds_up.min_devices:,} people are opened.",
            "Nobody reads what one of them sent, while the server and its helper work apart.",
            "No ε bounds what the sums tell.",
        ))  # fmt: skip
    return RunStanding(printed, "open", math.inf, (
        *first,
        "Whoever runs the server reads each message, and can work out what is behind it.",
        "No ε bounds what it learns.",
    ))  # fmt: skip


def _bound(experiment: Experiment, ledger: pa.Table) -> tuple[float, tuple[str, ...]]:
    """What all that a user sent has cost, at most, and while what holds."""
    link, release, users = experiment.link, experiment.release, ledger["user"].to_numpy()
    if not len(users):
        return 0.0, ("Nothing has left any of them.",)
    booked = float(np.bincount(users, ledger["epsilon"].to_numpy()).max())
    if release is not None and release.contributing is not None:
        most = release.contributing.epsilon
        apart = "the server and the helper work apart"
        if link is not None and link.checking is not None:
            apart = "no two of the three aggregators work together"
        return booked, (
            f"Each person's own ε bounds what is published of her; {most:g} is the most.",
            f"It holds while {apart}.",
        )
    if link is not None and link.noise:
        rounds = int(np.bincount(users).max())
        return price(link.noise, rounds), (
            f"Noise on every sum bounds what all rounds of a person tell; {rounds:,} at most.",
            "It holds while the server and the proxy work apart.",
        )
    if release is not None and release.reporting is not None:
        costs = [cost.account for cost in tier_costs(ledger)]
        plain = rounded_up(max((cost.without_proxy for cost in costs), default=0.0))
        return max((cost.with_proxy for cost in costs), default=0.0), (
            "Every report has noise; the bound is for all reports of a person together.",
            f"It holds while the proxy keeps apart from the server; otherwise ε is {plain:,.10g}.",
        )
    return booked, (
        "Everything that leaves has noise; the bound is for all that a person sent.",
        "It holds whoever reads it.",
    )


# --- near popularity ------------------------------------------------------------------------------


FEWEST_USERS = 100
"""With fewer it is chance that decides who is above whom."""
TIMES_AS_MANY = 2.0
"""Different items that a system should recommend, at least, as a multiple of popularity's."""
MOST_COVERED = 0.2
"""Share of the catalogue from which lists are varied, whatever popularity's are."""
_LOOKED_AT = 256
TUNE = "`sottovoce tune FILE` searches for better settings on the validation part"


def near_popularity(outcome: RunOutcome) -> list[str]:
    """Sentences, where a system ends below popularity, is no better by more than chance, or
    recommends hardly more different items. Baselines that are such a floor are compared with;
    Top-Pop, where there is none among them."""
    own, found = outcome.evaluations[outcome.system], []
    for label, floor in _floors(outcome).items():
        said = _said(outcome.system, own, label, floor)
        if said:
            found.append(f"{said}; {_why(outcome)}; {TUNE}")
    return found


def _floors(outcome: RunOutcome) -> dict[str, Evaluation]:
    """By the names that tables have for them."""
    asked = {
        baseline.title or label: outcome.evaluations[label]
        for label, baseline in outcome.experiment.baselines
        if baseline.floor and label in outcome.evaluations
    }
    if asked:
        return asked
    split, protocol = outcome.split, outcome.evaluations[outcome.system].protocol
    train = split.train
    liked = train.select(outcome.experiment.liked(train))
    scorer = TopPop().fit_counts(liked.item_counts)
    return {TopPop.title: evaluate(scorer, train, split.test, protocol)}


def _said(system: str, own: Evaluation, label: str, floor: Evaluation) -> str:
    first = next(iter(own.values))
    test = _against(system, own, label, floor, first)
    if test.significant() and test.mean < test.reference_mean:
        return f"{system} ends below {label} ({_figures(test)})"
    if test.test.n < FEWEST_USERS:
        return ""
    gains = (name for name in own.values if name.startswith("NDCG@") and name != first)
    for one in [test, *(_against(system, own, label, floor, name) for name in gains)]:
        if one.mean <= one.reference_mean or not one.significant():
            return f"{system} is no better than {label}, but for chance ({_figures(one)})"
    if own.lists is None or floor.lists is None:
        return ""
    mine, theirs = (len(np.unique(lists[lists >= 0])) for lists in (own.lists, floor.lists))
    if mine < min(TIMES_AS_MANY * theirs, MOST_COVERED * own.n_items):
        return (
            f"{system} recommends hardly more different items than {label} ({mine:,} against "
            f"{theirs:,}, of {own.n_items:,})"
        )
    return ""


def _against(
    system: str, own: Evaluation, label: str, floor: Evaluation, metric: str
) -> Comparison:
    return compare({label: floor, system: own}, metric, label)[0]


def _figures(test: Comparison) -> str:
    return f"{test.metric} {test.mean:.4f} against {test.reference_mean:.4f}"


def _why(outcome: RunOutcome) -> str:
    """What most likely caused it, or what to try."""
    algorithm, size = outcome.experiment.algorithm, 0
    if isinstance(outcome, DeviceOutcome):
        plan = outcome.federation.schedule
        algorithm = outcome.federation.server.algorithm.config
        suspects = algorithm.suspects(plan, signs_of(outcome))
        if suspects:
            return "; ".join(suspects)
        size = plan.cohort_size
    return algorithm.advice(size)


def signs_of(outcome: DeviceOutcome) -> Signs:
    """Of the first users who are judged."""
    federation = outcome.federation
    scorer = federation.server.algorithm.device_scorer(
        federation.vectors(), federation.server.recommending.items
    )
    users = outcome.evaluations[outcome.system].users[:_LOOKED_AT]
    scores = scorer.scores(users).astype(np.float64)
    scores[~np.isfinite(scores)] = 0.0
    scores -= scores.mean(axis=1, keepdims=True)
    variance, common = float(scores.var(axis=1).mean()), float(scores.mean(axis=0).var())
    return Signs(variance**0.5, common / variance if variance > 0 else 1.0)
