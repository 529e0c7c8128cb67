"""A6: DRIFT's orchestrator and the directions of gradients.

As printed, an item's gradient less the ridge is a combination of the vectors of those who touched
it, and the orchestrator holds these vectors (`attacks.drift`). With release = "aggregated" it holds
none, and gets sums. It then does what is left to it:

- It compares every sum with the vectors that it would have started users with, and names the best.
- It looks for rows that one person alone is behind: the ridge in a row counts the blocks that are
  in it, and a vector hardly differs from the public start at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift import blocks as kernels
from sottovoce.algorithms.drift.blocks import DriftModel
from sottovoce.algorithms.drift.messages import Gradients
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.attacks.drift import (
    AGGREGATED,
    DRIFT,
    ORCHESTRATOR_ALONE,
    Claim,
    DriftTruth,
    cosine_claims,
)
from sottovoce.attacks.views import ATTACKS, Attack, Result, Truth, View, clustered

Ints = NDArray[np.int64]
NEAR = 0.35
"""How far from one block the count in a row may be, for the row to be one person's."""
FEWEST = 0.02
"""The share of rows that is claimed where none looks like one person's."""
WHO = "Who runs the recommendations cannot tell what I touched, and whether I liked it."
ALONE = "What I do is never sent on without that of others."


class TouchedItems(NamedTuple):
    """That these users touched these items, and liked them or not. Private."""

    users: Ints
    items: Ints
    liked: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"<TouchedItems {len(self.users):,}, redacted>"


class OnePerson(NamedTuple):
    """That one person alone is behind these rows: [n, 2], message and item, of so many rows."""

    rows: Ints
    looked_at: int


def _needs(view: View) -> str:
    if view.algorithm.ridge != "rows":
        return 'the attack knows the pull to 0 of ridge = "rows" alone'
    if "model" not in view.own:
        return "the view lacks the orchestrator's own model"
    return "" if view.messages(Gradients) else "no gradients arrived"


def _sums_need(view: View) -> str:
    if not view.algorithm.sums_over_people:
        return "as printed, rows of one person are the rule; see who they are"
    return _needs(view)


def _followed(view: View) -> Iterator[tuple[int, Gradients, DriftModel]]:
    """Every update, and the model that it was made from. Gradients of one version come together;
    they are applied when a later version is spoken of, as the orchestrator does."""
    config: DRIFTConfig = view.algorithm
    model: DriftModel = view.own["model"].copy()
    waiting: list[Gradients] = []
    for number, sent in enumerate(view.messages(Gradients)):
        if waiting and sent.version != waiting[0].version:
            for before in waiting:
                rate = config.learning_rate
                kernels.move_rows(model.users, before.users, before.user_rows, rate)
                kernels.move_rows(model.items, before.items, before.item_rows, rate)
            waiting = []
        yield number, sent, model
        waiting.append(sent)


def _who(view: View) -> TouchedItems:
    config: DRIFTConfig = view.algorithm
    claims: list[Claim] = []
    for _, sent, model in _followed(view):
        if config.sums_over_people:
            claims += _nearest(sent, model, view.own["first_users"], view.own["users"])
        else:
            claims += cosine_claims(sent, model, config.step(), named=False)
    every = sorted(set(claims))
    users, items, liked = (np.array(c) for c in zip(*every, strict=True)) if every else [[]] * 3
    return TouchedItems(
        np.asarray(users, dtype=np.int64),
        np.asarray(items, dtype=np.int64),
        np.asarray(liked, bool),
    )


def _nearest(
    sent: Gradients, model: DriftModel, first: NDArray[np.float32], members: Ints
) -> list[Claim]:
    """For each row, less what the ridge and the public start explain, the member whose vector, less
    the start, it is nearest to."""
    rows = np.flatnonzero(sent.item_rows.any(axis=1))
    seen = sent.item_rows[rows].astype(np.float64)
    directions = first[members].astype(np.float64) - first.mean(dtype=np.float64)
    lengths = np.linalg.norm(directions, axis=1)
    claims = []
    for row, item in zip(seen, sent.items[rows].tolist(), strict=True):
        basis = np.linalg.qr(_known(model.items[item]))[0]
        left = row - basis @ (basis.T @ row)
        along = directions @ left / np.where(lengths > 0, lengths, 1.0)
        user = int(members[np.abs(along).argmax()])
        # A sum against the start is one of likes, whoever is in it.
        claims.append(Claim(user, item, bool(row.sum() < 0)))
    return claims


def _known(item: NDArray[np.float32]) -> NDArray[np.float64]:
    """The directions that are no person's: the item's own row, and where all vectors start."""
    return np.stack([item.astype(np.float64), np.ones(len(item))], axis=1)


def _judge_who(guess: TouchedItems, truth: Truth) -> Result:
    known: DriftTruth = truth.own["drift"]
    n_items = max(truth.train.n_items, int(known.item.max(initial=0)) + 1)

    def keys(users: Ints, items: Ints, liked: NDArray[np.bool_]) -> Ints:
        found: Ints = (users * n_items + items) * 2 + liked
        return found

    there = np.unique(keys(known.user, known.item, known.liked))
    right = np.isin(keys(*guess), there)
    # What naming any other member would have been worth.
    popular = np.bincount(there % (2 * n_items), minlength=2 * n_items)
    share = (popular[keys(*guess) % (2 * n_items)] - right) / max(1, len(known.members) - 1)
    if not len(right):
        return Result("A6", "cosine", "orchestrator", WHO, "precision", 0.0, (0.0, 1.0), 0.0)
    _, where = np.unique(guess.users, return_inverse=True)
    interval = clustered(np.bincount(where, right), np.bincount(where))
    return Result(
        "A6", "cosine", "orchestrator", WHO, "precision", float(right.mean()), interval,
        float(share.mean()), float(np.isin(there, keys(*guess)).mean()), len(right),
        "user, item and whether she liked it",
    )  # fmt: skip


def _alone(view: View) -> OnePerson:
    config: DRIFTConfig = view.algorithm
    found: list[tuple[float, int, int]] = []
    for number, sent, model in _followed(view):
        for at in np.flatnonzero(sent.item_rows.any(axis=1)).tolist():
            item = int(sent.items[at])
            row = sent.item_rows[at].astype(np.float64)
            count = np.linalg.lstsq(_known(model.items[item]), row, rcond=None)[0][0]
            found.append((abs(count / (2.0 * config.reg or 1.0) - 1.0), number, item))
    found.sort()
    claimed = [row for row in found if row[0] < NEAR]
    if len(claimed) < FEWEST * len(found):
        claimed = found[: max(1, round(FEWEST * len(found)))]
    rows = np.array([row[1:] for row in claimed], dtype=np.int64).reshape(-1, 2)
    return OnePerson(rows, len(found))


def _judge_alone(guess: OnePerson, truth: Truth) -> Result:
    known: DriftTruth = truth.own["drift"]
    people = {(m, i): n for m, i, n in known.rows.tolist()}
    right = np.array([people.get((m, i)) == 1 for m, i in guess.rows.tolist()], dtype=bool)
    name = "a row of one person"
    if not len(right):
        return Result("A6", name, "orchestrator", ALONE, "precision", 0.0, (0.0, 1.0), 0.0)
    single = int((known.rows[:, 2] == 1).sum())
    fewest = int(known.rows[:, 2].min())
    # Where no row is one person's, whichever was claimed would have been wrong: all count.
    tried = right if single else np.zeros(max(len(right), guess.looked_at), dtype=bool)
    return Result(
        "A6", name, "orchestrator", ALONE, "precision", float(right.mean()),
        clustered(tried.astype(np.int64), np.ones(len(tried), dtype=np.int64)),
        single / max(1, guess.looked_at), float(right.sum() / single) if single else np.nan,
        len(right), f"{fewest:,} people or more are behind every row",
    )  # fmt: skip


COSINE = ATTACKS.add(
    "cosine",
    Attack(
        "cosine", "orchestrator", WHO, _who, _judge_who, "A6", against=DRIFT,
        elsewhere=ORCHESTRATOR_ALONE, needs=_needs, remedy=AGGREGATED,
    ),
)  # fmt: skip
ONE_PERSON = ATTACKS.add(
    "one-person",
    Attack(
        "a row of one person", "orchestrator", ALONE, _alone, _judge_alone, "A6", against=DRIFT,
        elsewhere=ORCHESTRATOR_ALONE, needs=_sums_need, remedy=AGGREGATED,
    ),
)  # fmt: skip
