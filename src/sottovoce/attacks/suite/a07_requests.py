"""A7: what the requests of DRIFT's data owners tell, by what they name, and by their lengths.

As printed a request names the users and items of finished blocks; where it names one user, all is
said but the sign. With release = "aggregated" it names all items of the owner and nobody, so that
the attacker can do no better than to name anybody. An item that is named, but of which no row is
sent, was touched by too few people for a sum, where requests are not padded. And whoever also
watches the users' lines knows who talked to an owner before a sum came.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.messages import Gradients, OwnerTable, RowRequest
from sottovoce.attacks.drift import AGGREGATED, DRIFT, ORCHESTRATOR_ALONE, DriftTruth, request_pairs
from sottovoce.attacks.views import (
    ATTACKS,
    CONFIDENCE_Z,
    Attack,
    Claims,
    Result,
    TlsPacket,
    Truth,
    View,
    clustered,
    judge_claims,
)
from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
ANYBODY = 5_000
"""Pairs that are claimed where requests name no user."""
WHO = "Who runs the recommendations cannot tell what I touched."
RARE = "Nobody beyond the owner learns that a film was touched by me alone, or by a few."
WHEN = "When sums are sent says nothing about me, even to one who sees whom I talk to."
LINES = 20_000
"""Pairs that are claimed of those who talked to an owner and the items that it sent then."""
LENGTH = "How long messages are says nothing about what was done."


class Touched(NamedTuple):
    """That these items were touched, of those held: [n, 2], message and item."""

    claimed: Ints
    held: Ints


def _needs(view: View) -> str:
    if "users" not in view.own or "table" not in view.own:
        return "the view lacks who has joined, or the public table of who holds what"
    return "" if view.messages(RowRequest) else "no requests arrived"


# --- who touched what ----------------------------------------------------------------------------


def _who(view: View) -> Claims:
    requests = view.messages(RowRequest)
    alone = [r for r in requests if len(r.users) == 1]
    pairs = request_pairs(alone or [r for r in requests if len(r.users)])
    if len(pairs):
        return Claims(pairs[:, 0], pairs[:, 1])
    draw = Streams.from_seed(0).child("anybody").generator()
    items = np.concatenate([r.items for r in requests])
    return Claims(draw.choice(view.own["users"], ANYBODY), draw.choice(items, ANYBODY)).unique()


def _judge_who(guess: Claims, truth: Truth) -> Result:
    known: DriftTruth = truth.own["drift"]
    n_items = max(truth.train.n_items, int(known.item.max(initial=0)) + 1)
    touched = Interactions.from_pairs(
        known.user, known.item, n_users=known.n_users, n_items=n_items
    )
    return judge_claims("request log", "A7", "orchestrator", WHO, guess, touched)


# --- items that few touched ----------------------------------------------------------------------


def _rare(view: View) -> Touched:
    table: OwnerTable = view.own["table"]
    requests: dict[int, list[RowRequest]] = {}
    for request in view.messages(RowRequest):
        requests.setdefault(request.owner, []).append(request)
    claimed: list[Ints] = []
    held: list[Ints] = []
    for number, sent in enumerate(view.messages(Gradients)):
        named = requests[sent.owner].pop(0).items
        summed = sent.items[sent.item_rows.any(axis=1)]
        if not view.algorithm.sums_over_people:
            summed = summed[:0]  # every row is a few people's
        for found, items in ((claimed, named), (held, np.array(sorted(table.items(sent.owner))))):
            left = items[~np.isin(items, summed)]
            found.append(np.stack([np.full(len(left), number), left], axis=1))
    none = np.zeros((0, 2), dtype=np.int64)
    return Touched(np.concatenate([none, *claimed]), np.concatenate([none, *held]))


def _judge_rare(guess: Touched, truth: Truth) -> Result:
    known: DriftTruth = truth.own["drift"]
    n_items = max(truth.train.n_items, int(known.item.max(initial=0)) + 1)
    there = np.unique(known.message * n_items + known.item)
    right, held = (np.isin(r[:, 0] * n_items + r[:, 1], there) for r in guess)
    name = "items that few touched"
    if not len(right):
        return Result("A7", name, "orchestrator", RARE, "precision", 0.0, (0.0, 1.0), 0.0)
    _, where = np.unique(guess.claimed[:, 1], return_inverse=True)
    return Result(
        "A7", name, "orchestrator", RARE, "precision", float(right.mean()),
        clustered(np.bincount(where, right), np.bincount(where)), float(held.mean()),
        float(right.sum() / max(1, held.sum())), len(right), "named, and not in a sum",
    )  # fmt: skip


# --- when sums come ------------------------------------------------------------------------------


class Timed(NamedTuple):
    """That these users touched these items; and how many ever talked to the owner. Private."""

    claims: Claims
    talkers: Ints


def _lines_need(view: View) -> str:
    return _needs(view) or ("" if "lines" in view.own else "nobody watched the users' lines")


def _when(view: View) -> Timed:
    sent = view.messages(Gradients)
    lines: tuple[Ints, ...] = view.own["lines"]
    items = [g.items[g.item_rows.any(axis=1)] for g in sent]
    ever: dict[int, set[int]] = {}
    for message, line in zip(sent, lines, strict=True):
        ever.setdefault(message.owner, set()).update(line.tolist())
    sizes = np.array([len(i) * len(u) for i, u in zip(items, lines, strict=True)], dtype=np.int64)
    total = np.cumsum(sizes)
    if not len(total) or not total[-1]:
        none = np.zeros(0, dtype=np.int64)
        return Timed(Claims(none, none), none)
    draw = Streams.from_seed(0).child("lines").generator()
    users, chosen, talkers = [], [], []
    for place in np.unique(draw.integers(0, total[-1], LINES)).tolist():
        at = int(np.searchsorted(total, place, side="right"))
        user, item = divmod(place - int(total[at] - sizes[at]), len(items[at]))
        users.append(lines[at][user])
        chosen.append(items[at][item])
        talkers.append(len(ever[sent[at].owner]))
    return Timed(Claims(np.array(users), np.array(chosen)), np.array(talkers, dtype=np.int64))


def _judge_when(guess: Timed, truth: Truth) -> Result:
    """Against anybody who ever talked to the same owner: that much the lines tell in any case."""
    known: DriftTruth = truth.own["drift"]
    n_items = max(truth.train.n_items, int(known.item.max(initial=0)) + 1)
    name, claims = "sums and users' lines", guess.claims
    if not len(claims):
        return Result("A7", name, "orchestrator", WHEN, "precision", 0.0, (0.0, 1.0), 0.0)
    there = np.unique(known.user * n_items + known.item)
    right = np.isin(claims.users * n_items + claims.items, there)
    popular = np.bincount(there % n_items, minlength=n_items)[claims.items]
    base = (popular - right) / np.maximum(1, guess.talkers - 1)
    _, where = np.unique(claims.users, return_inverse=True)
    return Result(
        "A7", name, "orchestrator", WHEN, "precision", float(right.mean()),
        clustered(np.bincount(where, right), np.bincount(where)), float(base.mean()),
        claims=len(claims), detail="for one who also sees who talks to which owner, and when",
    )  # fmt: skip


# --- lengths -------------------------------------------------------------------------------------


def _lengths_need(view: View) -> str:
    return "" if len(_lengths(view)) else "no owner said anything"


def _lengths(view: View) -> Ints:
    """Return the lengths of all gradients as they came: every second message of an owner to the
    orchestrator."""
    said: dict[int, int] = {}
    found = []
    for packet in view.messages(TlsPacket):
        if packet.receiver == "orchestrator":
            said[packet.sender] = said.get(packet.sender, 0) + 1
            if said[packet.sender] % 2 == 0:
                found.append((packet.sender, packet.bytes))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _judge_lengths(guess: Ints, truth: Truth) -> Result:
    """Whether a longer message has more items behind it than others of the same owner, as an
    AUC."""
    known: DriftTruth = truth.own["drift"]
    pairs = np.unique(np.stack([known.message, known.item], axis=1), axis=0)
    items = np.bincount(pairs[:, 0], minlength=len(guess))
    name, wins, n_many, n_few = "lengths", 0.0, 0, 0
    for owner in np.unique(guess[:, 0]).tolist():
        mine = guess[:, 0] == owner
        many = items[mine] > np.median(items[mine])
        order = np.sort(guess[mine, 1][~many])
        longer = guess[mine, 1][many]
        below = np.searchsorted(order, longer, "left")
        wins += float((below + np.searchsorted(order, longer, "right")).sum() / 2)
        n_many += len(longer) * len(order)
        n_few += min(len(longer), len(order))
    if not n_many:
        return Result("A7", name, "network", LENGTH, "AUC", 0.5, (0.0, 1.0), 0.5, claims=0)
    auc = wins / n_many
    half = CONFIDENCE_Z * float(np.sqrt(max(auc * (1 - auc), 1e-6) / n_few))
    return Result(
        "A7", name, "network", LENGTH, "AUC", auc, (max(0.0, auc - half), min(1.0, auc + half)),
        0.5, claims=len(guess),
    )  # fmt: skip


_WHAT: Final[dict[str, Any]] = {
    "against": DRIFT,
    "elsewhere": ORCHESTRATOR_ALONE,
    "needs": _needs,
    "remedy": AGGREGATED,
}
REQUESTS = ATTACKS.add(
    "requests",
    Attack("request log", "orchestrator", WHO, _who, _judge_who, "A7", **_WHAT),
)
FEW = ATTACKS.add(
    "few-touched",
    Attack("items that few touched", "orchestrator", RARE, _rare, _judge_rare, "A7", **_WHAT),
)
USERS_LINES = ATTACKS.add(
    "users-lines",
    Attack(
        "sums and users' lines", "orchestrator", WHEN, _when, _judge_when, "A7",
        **_WHAT | {"needs": _lines_need},
    ),
)  # fmt: skip
LENGTHS = ATTACKS.add(
    "owners-lengths",
    Attack(
        "lengths", "network", LENGTH, _lengths, _judge_lengths, "A7", against=DRIFT,
        elsewhere="this is what whoever reads DRIFT's network could do", needs=_lengths_need,
    ),
)  # fmt: skip
