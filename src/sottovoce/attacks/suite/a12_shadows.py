"""A12 by shadow models: who took part, by an attacker who learns the model with and without her.

She knows the targets' items and all other users. She learns shadow models with the same public
settings: pairs of them, each of the targets in one model of every pair and not in the other. From
these she learns how members differ in what a model says of their items, and then judges a model
that she did not learn. Where enough users of the run did not take part, it is the released model.
Where everybody did, there is nobody to tell: then each pair is judged by what the others taught,
and the question is in which of the two a target is. A model that does not depend on the target
gives .5 by construction, as coins decide which one it is.

She knows more than any real attacker, so that "holds" says something. The recipe is that of shadow
training (Shokri et al. 2017), with each target held against herself (as in Carlini et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.filters import rank
from sottovoce.attacks.suite.a12_membership import (
    LEAST_CONTROL,
    Home,
    MemberPairs,
    against_chance,
    by_epsilon,
)
from sottovoce.attacks.views import ATTACKS, Attack, Remedy, Result, Truth, View
from sottovoce.core.interactions import Interactions
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, DoesNotApply
from sottovoce.rng import Streams

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_RNG = Streams.from_seed(14)
_PART: Final = "Nobody who learns the same model with and without me can tell whether I took part."
_NAME: Final = "shadow models"
PAIRS = 3
"""Pairs of shadow models."""
TARGETS = 400
WORK = 12_000_000
"""Steps, of all devices together, by which one shadow model is learnt. Of a larger world it is
learnt from fewer users, and the result says so."""


@dataclass(frozen=True, slots=True, repr=False)
class Again(Redacted):
    """The same system once more, for the judge: `Truth.own["again"]`."""

    learn: Callable[[Mask, Streams], NDArray[np.float32]]
    """The item table, learnt from those of the run's users who take part by this mask. Who did not
    in the run chooses like somebody who did."""
    work: float = 0.0
    """Steps that all devices take together on the way."""
    least: int = 0
    """Devices without which there is no sum."""


class ShadowPairs(NamedTuple):
    """What shadow models say of the targets."""

    clues: Floats
    """[pairs, 2, targets, clues]: first by the model with the target in it, then by the other."""

    def direction(self) -> Floats:
        """Along which members differ most from strangers, by linear discriminant."""
        apart = (self.clues[:, 0] - self.clues[:, 1]).reshape(-1, self.clues.shape[-1])
        spread = apart.T @ apart / len(apart)
        steady = spread + (1e-6 * float(np.trace(spread)) + 1e-12) * np.eye(len(spread))
        return np.asarray(np.linalg.solve(steady, apart.mean(axis=0)))

    def wins(self) -> Floats:
        """[pairs, targets]: 1 where a pair's model with the target in it is told by what the other
        pairs taught, ½ where both look alike."""
        won = []
        for number, (inside, outside) in enumerate(self.clues):
            others = ShadowPairs(np.delete(self.clues, number, axis=0))
            won.append((np.sign((inside - outside) @ others.direction()) + 1.0) / 2.0)
        return np.array(won)

    def score(self, clues: Floats) -> Floats:
        """Return scores, higher for members, of what another model says [targets, clues]. Each
        target is held against what half of all shadow models say about her with her data and half
        without."""
        middle = self.clues.mean(axis=(0, 1))
        found: Floats = (clues - middle) @ self.direction()
        return found


@dataclass(frozen=True, slots=True, repr=False)
class Question(Redacted):
    """Pairs of an item of a target and another one, by which a model is asked about her."""

    targets: Ints
    pairs: MemberPairs
    whole: Interactions

    @classmethod
    def about(cls, train: Interactions, fit: Mask, rng: Streams, most: int) -> Question:
        pairs = MemberPairs.took_part(train, rng, train.n_users)
        there = np.unique(pairs.users[fit[pairs.users]])
        targets = there[rng.child("shadowed").choose(len(there), most)]
        mine = np.isin(pairs.users, targets)
        kept = MemberPairs(
            pairs.known, pairs.users[mine], pairs.members[mine], pairs.strangers[mine],
            pairs.popularity[mine],
        )  # fmt: skip
        return cls(targets, kept, train)

    def clues(self, home: Home) -> Floats:
        """[targets, 3]: how much better her items score than others, by her other half and by all
        of them; and how often they do."""
        pairs, found = self.pairs, []
        place = np.searchsorted(self.targets, pairs.users)
        count = np.bincount(place, minlength=len(self.targets))
        users = np.concatenate([pairs.users, pairs.users])
        items = np.concatenate([pairs.members, pairs.strangers])
        for known in (pairs.known, self.whole):
            first, second = np.split(home.score(known, users, items, _RNG), 2)
            gap = first - second
            scale = float(np.abs(gap).mean()) or 1.0
            found.append(np.bincount(place, gap / scale, len(count)) / count)
            if known is pairs.known:
                found.append(np.bincount(place, np.sign(gap), len(count)) / count)
        return np.stack(found, axis=1)


def shadows(
    home: Home, question: Question, others: Mask, again: Again, rng: Streams
) -> ShadowPairs:
    """Learns them: in each pair a random half of the targets is in the one model, the rest in the
    other, and all of `others` are in both."""
    n, found = len(question.targets), []
    for number in range(PAIRS):
        first = np.zeros(n, bool)
        first[rng.child("in", number).generator().permutation(n)[: n // 2]] = True
        said = []
        for side in (first, ~first):
            part = others.copy()
            part[question.targets] = side
            try:
                table = again.learn(part, rng.child("shadow", number, int(side is first)))
            except ConfigError as error:
                raise DoesNotApply(f"no shadow model can be learnt of it: {error}") from None
            said.append(question.clues(home.with_model(table)))
        inside = np.where(first[:, None], said[0], said[1])
        outside = np.where(first[:, None], said[1], said[0])
        found.append([inside, outside])
    return ShadowPairs(np.array(found))


def _judge_part(home: Home, truth: Truth) -> Result:
    again = truth.own.get("again")
    if not isinstance(again, Again):
        raise DoesNotApply("it needs the whole run, to learn shadow models with its settings")
    train, part = truth.train, truth.takes_part
    asks = train.counts > 0
    outsiders = int((asks & ~part).sum())
    released = min(outsiders, int((asks & part).sum())) >= LEAST_CONTROL
    question = Question.about(train, _balanced(asks, part) if released else asks & part, _RNG,
                              TARGETS)  # fmt: skip
    inside = part[question.targets]
    if len(question.targets) < 4 or (released and inside.all()):
        return _part_result(0.5, (0.0, 1.0), 0, "there are too few users to tell apart")
    others = part.copy()
    others[question.targets] = False
    others, words = _few_enough(others, train, again, len(question.targets))
    learnt = shadows(home, question, others, again, _RNG)
    if not released:
        wins = learnt.wins()
        users = np.tile(question.targets, len(wins))
        found = against_chance(users, wins.ravel())
        detail = (
            f"{len(wins)} pairs of models with the run's settings, each of {len(inside):,} users "
            f"in one of a pair{words}: in which one she is, by what the other pairs taught"
        )
        result = _part_result(found.auc, found.interval, wins.size, detail, len(inside))
        return by_epsilon(result, truth)
    ranking = rank(_NAME, learnt.score(question.clues(home)), inside)
    half = ranking.chance.high - 0.5
    ends = (max(0.0, ranking.auc - half), min(1.0, ranking.auc + half))
    detail = (
        f"{ranking.hiding:,} users who took part against {ranking.others:,} who did not, in the "
        f"released model, by what {len(learnt.clues)} pairs of models with its settings "
        f"taught{words}"
    )
    return by_epsilon(_part_result(ranking.auc, ends, len(inside), detail, len(inside)), truth)


def _balanced(asks: Mask, part: Mask) -> Mask:
    """Users of whom as many took part as did not."""
    fit = asks & ~part
    members = np.flatnonzero(asks & part)
    chosen = _RNG.child("balanced").choose(len(members), int(fit.sum()))
    fit[members[chosen]] = True
    return fit


def _few_enough(others: Mask, train: Interactions, again: Again, targets: int) -> tuple[Mask, str]:
    """Return as many of the others as `WORK` allows, and what to say about it."""
    there = np.flatnonzero(others)
    if again.work <= WORK:
        return others, ""
    wanted = int(train.n_users * WORK / again.work) - targets // 2
    kept = there[_RNG.child("fewer").choose(len(there), max(wanted, again.least, LEAST_CONTROL))]
    fewer = np.zeros_like(others)
    fewer[kept] = True
    if len(kept) == len(there):
        return others, ""
    return fewer, f", learnt with {len(kept):,} of {len(there):,} others, a smaller world"


def _part_result(
    value: float, interval: tuple[float, float], claims: int, detail: str, looked: int = 0
) -> Result:
    return Result(
        "A12", _NAME, "anyone", _PART, "AUC", value, interval, 0.5, claims=claims, detail=detail,
        looked=looked,
    )  # fmt: skip


def _no_model(view: View) -> str:
    if view.algorithm.family != "devices":
        return "No model of items is published here to which a vector could be fitted at home."
    return ""


PART = ATTACKS.add(
    "shadow-models",
    Attack(
        _NAME, "anyone", _PART, Home.of, _judge_part, "A12", needs=_no_model,
        remedy=Remedy("noise", "noise on the sum (link.clip, link.noise), at a loss of accuracy"),
        grows_with="users",
    ),
)  # fmt: skip
