"""A12: what the published model tells of those from whom it was learnt.

The attacker has the last item table, as everybody has, and knows half of a target's items. She fits
the target's vector at home, as any device would, and looks how high the other items score.

- `held_or_not`: is this item one from which the model was learnt, or one that the target got to
  later (a test item)? Of each pair the higher score is guessed to be the former. Both sorts are
  what the target likes, so that a good recommender is not taken for a leak; and they are matched
  by popularity among other users. What is left beside memory is the drift of taste, and only a
  control shows how much that is: the same pairs by a model that never saw the targets.
- `took_part`: was this user among those from whom it was learnt at all? By how much better than
  other items her own, hidden half scores.

Secure sums do not help against either: the model itself tells. Noise on the sums does, by as much
as it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.filters import Ranking, rank
from sottovoce.attacks.views import (
    ATTACKS,
    CONFIDENCE_Z,
    PERMITTED,
    Attack,
    Remedy,
    Result,
    Truth,
    View,
    clustered,
)
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import ModelView
from sottovoce.core.redacted import Redacted
from sottovoce.errors import DataError, DoesNotApply
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
LEAST_ITEMS = 4
"""Items in training that a target has at least, so that there is a half to know and a half to
guess."""
MOST_TARGETS = 3_000
LEAST_CONTROL = 50
"""Users who did not take part, from which on they are the control."""
PAIRS, NEAR = 20, 10
"""In `took_part`: items of each user that are held against others, and how many places an other one
may be away in the order by popularity."""
_AT_ONCE = 512
_SIDES: Final = ("left", "right")


# --- the attacker at home ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Home:
    """All that is needed to recommend at home: the algorithm, which is public, and a model."""

    algorithm: Any
    model: ModelView

    @classmethod
    def of(cls, view: View) -> Home:
        return cls(_built(view), ModelView(len(view.rounds), view.final))

    def __repr__(self) -> str:
        return f"<Home {type(self.algorithm).__name__}>"

    def with_model(self, items: NDArray[np.float32]) -> Home:
        """The same with another model."""
        return replace(self, model=ModelView(self.model.round, items))

    def score(self, known: Interactions, users: Ints, items: Ints, rng: Streams) -> Floats:
        """Return a score for each pair of a user and an item, by vectors that are fitted to the
        known items."""
        found, place = np.zeros(len(users)), np.argsort(users, kind="stable")
        edges = np.searchsorted(users[place], np.arange(0, known.n_users + _AT_ONCE, _AT_ONCE))
        for part in range(len(edges) - 1):
            mine = place[edges[part] : edges[part + 1]]
            if not len(mine):
                continue
            targets = np.unique(users[mine])
            cohort = self._cohort(known.take_users(targets), targets, rng)
            self.algorithm.device_fit(self.model, cohort, rng.child("fit at home"))
            scorer = self.algorithm.device_scorer(cohort.vectors, self.model.items)
            table = np.asarray(scorer.scores(np.arange(len(targets))), dtype=np.float64)
            found[mine] = table[np.searchsorted(targets, users[mine]), items[mine]]
        return found

    def _cohort(self, history: Interactions, users: Ints, rng: Streams) -> Cohort:
        consent = Consent.uniform(users, Choice(share_positives=1.0))
        vectors = self.algorithm.device_init(users, rng.child("vectors at home"))
        attributes = len(getattr(getattr(self.algorithm, "config", None), "attributes", ()))
        labels = np.full((len(users), attributes), -1, dtype=np.int64)
        return Cohort(users, history, consent, vectors, labels=labels)


def _built(view: View) -> Any:
    """Both halves of the view's algorithm."""
    settings = view.algorithm
    if settings.family != "devices":
        raise DoesNotApply("the algorithm of this view has no vectors that could be fitted at home")
    # As for a server that reads rows: noise on sums does not change what a device fits at home.
    return settings.build_under(view.release, None, max(1, view.triples))


# --- the questions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class MemberPairs(Redacted):
    """Pairs of a member and a stranger to the training data, of the same user each."""

    known: Interactions
    """The half that the attacker knows."""
    users: Ints
    members: Ints
    strangers: Ints
    popularity: Floats
    """By how many others have it: of the members less that of the strangers."""

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def held_or_not(cls, train: Interactions, test: Interactions, rng: Streams) -> MemberPairs:
        """To each test item of a target the item of her hidden half that is nearest by how many
        other users have it."""
        hidden = _hidden_half(train, rng)
        targets = _targets(train, rng, test.counts > 0)
        often = train.item_counts
        users, members, strangers = [], [], []
        for user in targets.tolist():
            span = slice(int(train.indptr[user]), int(train.indptr[user + 1]))
            own = train.items[span][hidden[span]]
            unseen = np.setdiff1d(test.row(user), train.items[span])
            unseen = unseen[unseen < train.n_items]  # the model has no others
            if not len(own) or not len(unseen):
                continue
            apart = np.abs(np.log(often[own])[None, :] - np.log(often[unseen] + 1.0)[:, None])
            users.append(np.full(len(unseen), user))
            members.append(own[apart.argmin(axis=1)])
            strangers.append(unseen)
        return cls._of(train, hidden, users, members, strangers)

    @classmethod
    def took_part(cls, train: Interactions, rng: Streams, most: int = MOST_TARGETS) -> MemberPairs:
        """To items of each target's hidden half items that she does not have, about as popular."""
        hidden = _hidden_half(train, rng)
        targets = _targets(train, rng, np.ones(train.n_users, bool), most)
        draw = rng.child("strangers").generator()
        often = train.item_counts
        by_popularity = np.argsort(often, kind="stable")
        # Where an item would stand if she did not have it: in the middle of its equals.
        edges = [np.searchsorted(often[by_popularity], often - 1, side) for side in _SIDES]
        place = (edges[0] + edges[1]) // 2
        users, members, strangers = [], [], []
        for user in targets.tolist():
            span = slice(int(train.indptr[user]), int(train.indptr[user + 1]))
            own = draw.permutation(train.items[span][hidden[span]])[:PAIRS]
            step = draw.integers(-NEAR, NEAR + 1, len(own))
            other = by_popularity[np.clip(place[own] + step, 0, train.n_items - 1)]
            fresh = ~np.isin(other, train.items[span])
            users.append(np.full(int(fresh.sum()), user))
            members.append(own[fresh])
            strangers.append(other[fresh])
        return cls._of(train, hidden, users, members, strangers)

    @classmethod
    def _of(
        cls,
        train: Interactions,
        hidden: NDArray[np.bool_],
        users: list[Any],
        members: list[Any],
        strangers: list[Any],
    ) -> MemberPairs:
        none = np.zeros(0, np.int64)
        columns = [
            np.concatenate([none, *column]).astype(np.int64)
            for column in (users, members, strangers)
        ]
        often = train.item_counts.astype(np.float64)
        popularity = often[columns[1]] - 1.0 - often[columns[2]]
        return cls(train.select(~hidden), columns[0], columns[1], columns[2], popularity)

    def wins(self, home: Home, rng: Streams) -> Floats:
        """1 where the member scores higher, ½ where both score alike."""
        first = home.score(self.known, self.users, self.members, rng)
        second = home.score(self.known, self.users, self.strangers, rng)
        return _wins(first - second)

    def popular_wins(self) -> Floats:
        """The same by popularity alone."""
        return _wins(self.popularity)


class AgainstControl(NamedTuple):
    """An AUC against that of a control, with the 95 % interval of the AUC, as wide as that of
    their difference."""

    auc: float
    control: float
    interval: tuple[float, float]


def against_same(users: Ints, wins: Floats, control: Floats) -> AgainstControl:
    """Against a control on the same pairs."""
    auc, base = float(wins.mean()), float(control.mean())
    spread = _spread(users, wins - control)
    low, high = auc - CONFIDENCE_Z * spread, auc + CONFIDENCE_Z * spread
    return AgainstControl(auc, base, (max(0.0, low), min(1.0, high)))


def against_others(
    users: Ints, wins: Floats, other_users: Ints, other_wins: Floats
) -> AgainstControl:
    """Against other users, on the same model."""
    spread = np.hypot(_spread(users, wins), _spread(other_users, other_wins))
    auc, base = float(wins.mean()), float(other_wins.mean())
    low, high = auc - CONFIDENCE_Z * spread, auc + CONFIDENCE_Z * spread
    return AgainstControl(auc, base, (max(0.0, float(low)), min(1.0, float(high))))


def against_chance(users: Ints, wins: Floats) -> AgainstControl:
    _, where = np.unique(users, return_inverse=True)
    interval = clustered(np.bincount(where, wins), np.bincount(where))
    return AgainstControl(float(wins.mean()), 0.5, interval)


def tell_participants(
    question: MemberPairs, wins: Floats, takes_part: NDArray[np.bool_]
) -> Ranking:
    """How well those who took part are told from the others by the share of pairs won."""
    users, where = np.unique(question.users, return_inverse=True)
    share = np.bincount(where, wins) / np.bincount(where)
    return rank("took part", share, takes_part[users])


def _wins(gap: Floats) -> Floats:
    return np.asarray((np.sign(gap) + 1.0) / 2.0)


def _spread(users: Ints, values: Floats) -> float:
    """The standard error of a mean over pairs, where a user's pairs go together."""
    _, where = np.unique(users, return_inverse=True)
    n = int(where.max()) + 1
    left = np.bincount(where, values - values.mean())
    return float(np.sqrt((left**2).sum() * n / max(1, n - 1)) / len(values))


def _hidden_half(train: Interactions, rng: Streams) -> NDArray[np.bool_]:
    """Return a random half of every user's items, rounded down."""
    order = rng.child("halves").generator().random(train.n_interactions)
    place = np.lexsort((order, train.users))
    within = np.arange(train.n_interactions) - train.indptr[train.users]
    hidden = np.zeros(train.n_interactions, dtype=bool)
    hidden[place] = within < (train.counts // 2)[train.users]
    return hidden


def _targets(
    train: Interactions, rng: Streams, fit: NDArray[np.bool_], most: int = MOST_TARGETS
) -> Ints:
    users = np.flatnonzero(fit & (train.counts >= LEAST_ITEMS)).astype(np.int64)
    chosen = rng.child("targets").choose(len(users), most)
    return users[chosen]


_RNG = Streams.from_seed(12)
_HELD: Final = "Nobody can tell from the published model which of my items it was learnt from."
_PART: Final = "Nobody can tell from the published model whether I took part."
_CLOSED: Final = (
    "a secure sum does not change this, as it is the model itself that tells; noise on the sum "
    "(link.noise) does"
)
_BOUNDED: Final = "noise that was measured by users' ε is in every sum that it was learnt from"


def _said(home: Home) -> str:
    """What is, or would be, against it."""
    return _BOUNDED if home.algorithm.sends == "contributions" else _CLOSED


def _needs(view: View) -> str:
    if view.algorithm.family != "devices":
        return "No model of items is published here to which a vector could be fitted at home."
    return ""


def _judge_held(home: Home, truth: Truth) -> Result:
    """The control, best first: `truth.own["control"]`, the item table of the same system learnt
    without the targets; users who did not take part in this run; popularity alone."""
    question = MemberPairs.held_or_not(truth.train, truth.test, _RNG)
    inside = truth.takes_part[question.users]
    if not inside.any():
        return _result("A12", "member items", _HELD, AgainstControl(0.5, 0.5, (0.0, 1.0)), 0, "")
    wins = question.wins(home, _RNG)
    users, mine = question.users[inside], wins[inside]
    outside = np.unique(question.users[~inside])
    control = truth.own.get("control")
    if control is not None:
        table = np.asarray(control, dtype=np.float32)
        if table.shape != home.model.items.shape:
            raise DataError('truth.own["control"] must be an item table like the published one')
        other = question.wins(home.with_model(table), _RNG)[inside]
        found, by = against_same(users, mine, other), "a model that was learnt without them"
    elif len(outside) >= LEAST_CONTROL:
        found = against_others(users, mine, question.users[~inside], wins[~inside])
        by = f"{len(outside):,} users who did not take part"
    else:
        found = against_same(users, mine, question.popular_wins()[inside])
        by = "popularity alone, which overstates the leak where taste drifts: a control is missing"
    detail = f"held against {by}; {_said(home)}"
    return _result("A12", "member items", _HELD, found, len(mine), detail)


ALLOWED: Final = "Nobody tells whether I took part better than the ε of this run permits."


def by_epsilon(result: Result, truth: Truth) -> Result:
    """Held against what ε permits where one bounds what is published: nobody promises a coin there,
    and with enough users any ε above 0 is told from one. `truth.own["permitted"]` is that AUC."""
    permitted = truth.own.get("permitted")
    if permitted is None or not result.claims:
        return result
    detail = f"{result.detail}; ε permits an AUC of {permitted:.3f}, and a coin has .5"
    return replace(
        result, measure=PERMITTED, base_rate=float(permitted), promise=ALLOWED, detail=detail
    )


def _judge_part(home: Home, truth: Truth) -> Result:
    question = MemberPairs.took_part(truth.train, _RNG)
    users = np.unique(question.users)
    inside = truth.takes_part[users]
    if min(int(inside.sum()), int((~inside).sum())) < LEAST_CONTROL:
        detail = "everybody took part, or nearly nobody: there is nothing to tell"
        blank = against_chance(np.zeros(1, np.int64), np.full(1, 0.5))
        return _result("A12", "participation", _PART, blank, 0, detail)
    ranking = tell_participants(question, question.wins(home, _RNG), truth.takes_part)
    half = ranking.chance.high - 0.5
    ends = (max(0.0, ranking.auc - half), min(1.0, ranking.auc + half))
    found = AgainstControl(ranking.auc, 0.5, ends)
    result = _result("A12", "participation", _PART, found, len(users), _said(home))
    return by_epsilon(replace(result, looked=len(users)), truth)


def _result(
    code: str, name: str, promise: str, found: AgainstControl, claims: int, detail: str
) -> Result:
    return Result(
        code, name, "anyone", promise, "AUC", found.auc, found.interval, found.control,
        claims=claims, detail=detail,
    )  # fmt: skip


_NOISE: Final = Remedy("noise", "noise on the sum (link.clip, link.noise), at a loss of accuracy")
HELD = ATTACKS.add(
    "member-items",
    Attack(
        "member items", "anyone", _HELD, Home.of, _judge_held, "A12", needs=_needs, remedy=_NOISE,
        grows_with="users",
    ),
)  # fmt: skip
PART = ATTACKS.add(
    "participation",
    Attack(
        "participation", "anyone", _PART, Home.of, _judge_part, "A12", needs=_needs, remedy=_NOISE,
        grows_with="users",
    ),
)  # fmt: skip
