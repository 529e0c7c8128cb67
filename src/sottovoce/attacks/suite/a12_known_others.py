"""A12 against gram: the best that anybody can do, who knows everything but whether she took part.

The server opens two noisy sums. This attacker knows what every other user has added to them, to the
last step, and takes it off; and he knows what the target would have added. Noise is all that hides
her, so this is no attack that anybody could make in earnest: it is as bad as it can be
(`attacks.one_shot`). What her ε permits is an AUC of Φ(μ/√2), μ being the distance of (ε, δ), and
the promise is broken only above that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.filters import rank
from sottovoce.attacks.views import ATTACKS, PERMITTED, Attack, Result, Truth, View
from sottovoce.core.contributions import STEPS, Contributions
from sottovoce.core.messages import SummedReports
from sottovoce.core.redacted import Redacted
from sottovoce.errors import DoesNotApply
from sottovoce.privacy.own_epsilon import auc_permitted
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
GRAM = frozenset({"gram"})
NOT_GRAM = "it is about sums that are opened once, which are gram's"
LEAST_TARGETS = 20
MOST_TARGETS = 3_000
_NAME: Final = "whoever knows everybody else"
_PROMISE: Final = "Nobody can tell whether I took part better than my ε permits, whatever he knows."


@dataclass(frozen=True, slots=True, repr=False)
class Contributed(Redacted):
    """What was really added to each round's sum, for scoring: `Truth.own["contributed"]`."""

    rounds: tuple[Contributions, ...]
    epsilons: Floats
    """That each of these users permits."""


@dataclass(frozen=True, slots=True, repr=False)
class OpenedOnce(Redacted):
    """What the server has opened, and what is public of its noise."""

    sums: tuple[Ints, ...]
    sigmas: tuple[float, ...]
    """By round, of a number that stands for itself; of one that stands for two places of a
    symmetric matrix it is 1/√2 of that. In steps of the grid."""
    delta: float
    algorithm: Any
    """Both halves of gram, by which contributions are added up."""


def opened_once(view: View) -> OpenedOnce:
    """The sums of all rounds of a view of gram's server."""
    algorithm = view.algorithm.build_under(view.release, view.link, 1)
    found = {}
    for seen in view.rounds:
        for message in seen.messages:
            if isinstance(message, SummedReports) and seen.published is not None:
                rows, _ = algorithm.report_shape(seen.published)
                found[message.round] = message.dense(rows)[:, 0]
    sums = tuple(found[round] for round in sorted(found))
    if len(sums) != len(algorithm.shares):
        raise DoesNotApply("the server has not opened the sums of all rounds")
    sigmas = [
        algorithm.noise_spans(round, len(one))[0][1] * algorithm.sigma * STEPS
        for round, one in enumerate(sums)
    ]
    return OpenedOnce(sums, tuple(sigmas), view.release.delta, algorithm)


def _symmetric(numbers: Ints, size: int) -> Floats:
    """Diagonal and upper triangle as a matrix."""
    table = np.zeros((size, size))
    table[np.triu_indices(size, 1)] = numbers[size:]
    table += table.T
    table[np.diag_indices(size)] = numbers[:size]
    return table


def alignment(
    made: Contributions, rests: Floats, rows: Ints, sigma: float
) -> tuple[Floats, Floats]:
    """Return, for each of these users over one round, ⟨rest/σ², x⟩ and ‖x/σ‖². `rests` is what is
    left of the sum, as a vector, or as a symmetric matrix if pairs are summed."""
    along, squares = np.zeros(len(rows)), np.zeros(len(rows))
    for at, row in enumerate(rows.tolist()):
        mine = slice(int(made.indptr[row]), int(made.indptr[row + 1]))
        place, steps = made.place[mine], made.steps[mine].astype(np.float64)
        if made.pairs:
            along[at] = steps @ rests[np.ix_(place, place)] @ steps
            squares[at] = float(steps @ steps) ** 2
        else:
            along[at], squares[at] = steps @ rests[place], steps @ steps
    return along / sigma**2, squares / sigma**2


def _judge(guess: OpenedOnce, truth: Truth) -> Result:
    known = truth.own.get("contributed")
    if not isinstance(known, Contributed):
        raise DoesNotApply("it needs what everybody else has added")
    many = len(known.epsilons)
    rng = Streams.from_seed(12).child("known others")
    rows = rng.choose(many, MOST_TARGETS)
    if many < LEAST_TARGETS:
        return _result(0.5, (0.0, 1.0), 0.5, 0, "there are too few users to tell apart")
    inside = np.zeros(len(rows), bool)
    inside[rng.child("in").generator().permutation(len(rows))[: len(rows) // 2]] = True
    along, squares = np.zeros(len(rows)), np.zeros(len(rows))
    for made, told, sigma in zip(known.rounds, guess.sums, guess.sigmas, strict=True):
        rest = told - guess.algorithm.sum_contributions(made, 1)
        table = _symmetric(rest, made.size) if made.pairs else rest.astype(np.float64)
        one, other = alignment(made, table, rows, sigma)
        along, squares = along + one, squares + other
    there = squares > 0
    inside, along, squares = inside[there], along[there], squares[there]
    # Taken off is what the others have added: in, her own is left.
    scores = (along + inside * squares) / np.sqrt(squares)
    own = known.epsilons[rows][there]
    permitted = auc_permitted(own[inside], guess.delta)
    ranking = rank(_NAME, scores, inside)
    half = ranking.chance.high - 0.5
    ends = (max(0.0, ranking.auc - half), min(1.0, ranking.auc + half))
    detail = (
        f"{ranking.hiding:,} users in the sums against {ranking.others:,} taken out of them, by an "
        f"attacker who knows all others to the last step; their ε permits an AUC of {permitted:.3f}"
    )
    return _result(ranking.auc, ends, permitted, len(scores), detail)


def _result(
    value: float, interval: tuple[float, float], permitted: float, claims: int, detail: str
) -> Result:
    return Result(
        "A12", _NAME, "server", _PROMISE, PERMITTED, value, interval, permitted, claims=claims,
        detail=detail, looked=claims,
    )  # fmt: skip


def _needs(view: View) -> str:
    return "" if view.messages(SummedReports) else "the server has opened no sum"


KNOWN = ATTACKS.add(
    "known-others",
    Attack(
        _NAME, "server", _PROMISE, opened_once, _judge, "A12", against=GRAM, elsewhere=NOT_GRAM,
        needs=_needs, grows_with="users",
    ),
)  # fmt: skip
