"""Whether a run ends near popularity, which takes no learning at all; and what most likely caused
it. Told of runs alone in which enough users are judged to tell."""

from __future__ import annotations

import numpy as np

from sottovoce.algorithms.base import Signs
from sottovoce.baselines.simple import TopPop
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.evaluation.significance import Comparison, compare
from sottovoce.runs.devices import DeviceOutcome
from sottovoce.runs.topology import RunOutcome

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
