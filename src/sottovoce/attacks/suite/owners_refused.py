"""What a data owner of DRIFT learns about users who refuse it.

By design an owner reads everything about its own items, from those who let it. Of the others it can
only guess that they did what most do.
"""

from __future__ import annotations

import numpy as np

from sottovoce.algorithms.drift.messages import Interaction
from sottovoce.attacks.drift import DRIFT, DriftTruth
from sottovoce.attacks.views import ATTACKS, Attack, Claims, Result, Truth, View, judge_claims

PROMISE = "Data owners that I refuse learn nothing of what I do."
MOST = 5
"""Items that are claimed of everybody of whom nothing was heard."""


def _needs(view: View) -> str:
    if "users" not in view.own or "owner" not in view.own:
        return "the view lacks who has joined"
    return "" if view.messages(Interaction) else "no interactions arrived"


def _guess(view: View) -> tuple[int, Claims]:
    """What was read, and of those who sent nothing what most touch."""
    messages = view.messages(Interaction)
    users = np.array([m.user for m in messages], dtype=np.int64)
    items = np.array([m.item for m in messages], dtype=np.int64)
    popular = np.argsort(-np.bincount(items), kind="stable")[:MOST]
    silent = np.setdiff1d(view.own["users"], users)
    claims = Claims(
        np.concatenate([users, np.repeat(silent, len(popular))]),
        np.concatenate([items, np.tile(popular, len(silent))]),
    )
    return view.own["owner"], claims.unique()


def _judge(guess: tuple[int, Claims], truth: Truth) -> Result:
    """Over those who refuse the owner."""
    owner, claims = guess
    refused, known = truth.own["refused"], truth.own["drift"]
    members = known.members if isinstance(known, DriftTruth) else np.zeros(0, np.int64)
    shut = np.zeros(truth.train.n_users, bool) if refused is None else refused[:, owner]
    mine = shut[claims.users] & np.isin(claims.users, members)
    about = Claims(claims.users[mine], claims.items[mine])
    return judge_claims("refused owner", "O1", "owner", PROMISE, about, truth.train)


ATTACK = ATTACKS.add(
    "refused-owner",
    Attack(
        "refused owner", "owner", PROMISE, _guess, _judge, "O1", against=DRIFT,
        elsewhere="this is what a data owner could do, from what it gets", needs=_needs,
        grows_with="users",
    ),
)  # fmt: skip
