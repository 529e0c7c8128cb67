"""A14: PubPara, by which a server reads items out of what a single device uploads.

It is of "Interaction Privacy Vulnerability in Federated Recommendation and Lossless Countermeasure"
(ACM TOIS, 2025). We had its abstract alone, and no code: the server of a federation is curious;
what a user prefers is stored in the parameters that her device *uploads* after it has learnt at
home, rather than in those that stay there; so the server tells from uploads which items she has,
quickly and without training anything. The rest is our reading. A device's rows all move along its
own vector, whatever the loss. So the vector is the direction that explains most of an upload, and
items are ranked by how far their rows went along it. Which end is hers is told by the items'
biases, which rise for what she has. Where there are none it is told by the longer tail: a few items
are hers and go far, the many others go less. Rounds are added up.

Where the server sees no single upload, what it could learn of members from the released model is
A12's question (`a12_shadows`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sottovoce.attacks.filters import rank
from sottovoce.attacks.pairs import Floats, Ints, device_rows
from sottovoce.attacks.views import (
    ATTACKS,
    SECURE_SUM,
    Attack,
    Claims,
    Result,
    Truth,
    View,
    clustered,
)
from sottovoce.core.messages import DeviceReports

_UPLOAD: Final = (
    "What my device uploads are numbers of a model; they do not say which items I have."
)


_GUESSES = 10
"""Items that are claimed of a user."""
_TURNS = 20
"""Turns of the power method. An upload has hardly more than one direction."""


class UploadGuess(NamedTuple):
    users: Ints
    """Users who were attacked."""
    scores: Floats
    """[users, items]: higher where she has it."""


def _read_uploads(view: View) -> UploadGuess:
    rows = device_rows(view)
    rows = rows.take(rows.item < view.n_items)
    width = view.final.shape[1] - bool(view.algorithm.counts_senders)
    biased = width > view.algorithm.embedding_size
    users, place = np.unique(rows.sender, return_inverse=True)
    scores = np.zeros((len(users), view.n_items))
    order = np.lexsort((rows.round, place))
    edges = np.flatnonzero(np.diff(place[order]) | np.diff(rows.round[order])) + 1
    for upload in np.split(order, edges) if len(order) else ():
        scores[place[upload[0]], rows.item[upload]] += along_vector(
            rows.values[upload, :width], biased
        )
    return UploadGuess(users.astype(np.int64), scores)


def along_vector(rows: Floats, biased: bool) -> Floats:
    """How far each row of one upload goes along the device's vector, in shares of the farthest.
    `biased`: the last number of a row is the item's bias, along which every vector has a 1."""
    axis = rows[np.argmax((rows**2).sum(axis=1))]
    for _ in range(_TURNS):
        axis = rows.T @ (rows @ axis)
        length = float(np.linalg.norm(axis))
        if not length:
            return np.zeros(len(rows))
        axis = axis / length
    far: Floats = rows @ axis
    far /= np.abs(far).max()
    hers = axis[-1] if biased else (far**3).sum()
    return far if float(hers) >= 0.0 else -far


def _judge_uploads(guess: UploadGuess, truth: Truth) -> Result:
    popular = truth.train.item_counts.astype(np.float64)
    found, chance = [], []
    for user, score in zip(guess.users.tolist(), guess.scores, strict=True):
        has = np.zeros(len(score), bool)
        has[truth.train.row(user)] = True
        if 0 < int(has.sum()) < len(has):
            found.append(rank("pubpara", score, has).auc)
            chance.append(rank("popularity", popular - has, has).auc)
    if not found:
        return Result("A14", "PubPara", "server", _UPLOAD, "AUC", 0.5, (0.0, 1.0), 0.5)
    each, value = np.array(found), float(np.mean(found))
    low, high = clustered(each, np.ones(len(each), np.int64))
    detail = (
        f"items of {len(each):,} users, ranked by how far their rows went along the vector that "
        "explains an upload best, against popularity"
    )
    return Result(
        "A14", "PubPara", "server", _UPLOAD, "AUC", value, (min(low, value), max(high, value)),
        float(np.mean(chance)), claims=guess.scores.size, detail=detail,
    )  # fmt: skip


def _no_uploads(view: View) -> str:
    if not view.messages(DeviceReports):
        return "the server reads no single upload: what it opens is a sum, or coins"
    if not any(seen.published for seen in view.rounds):
        return "it needs the published model of a round that was recorded"
    return ""


def _farthest(guess: UploadGuess) -> Claims:
    """Return the few items of each user whose rows moved farthest."""
    best = np.argsort(-guess.scores, axis=1, kind="stable")[:, :_GUESSES]
    farther = np.take_along_axis(guess.scores, best, axis=1) > 0
    users = np.repeat(guess.users[:, None], best.shape[1], axis=1)
    return Claims(users[farther], best[farther].astype(np.int64))


UPLOADS = ATTACKS.add(
    "pubpara",
    Attack(
        "PubPara", "server", _UPLOAD, _read_uploads, _judge_uploads, "A14",
        needs=_no_uploads, remedy=SECURE_SUM, claimed=_farthest, grows_with="users",
    ),
)  # fmt: skip
