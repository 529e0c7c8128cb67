"""What the length of messages tells whoever watches the wire.

Nobody can read what is inside TLS, but its length shows. Where a device sends a row for each item
that it has drawn, or packs its numbers, long histories make other lengths than short ones. Masked
updates and randomised reports all have one length.

Whether longer messages mean more items or fewer depends on how numbers are packed. Whoever runs a
few devices herself finds out; here it goes by one half of the users, and the other is attacked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.pairs import Ints
from sottovoce.attacks.views import (
    ATTACKS,
    CONFIDENCE_Z,
    Attack,
    Remedy,
    Result,
    TlsPacket,
    Truth,
    View,
)
from sottovoce.core.redacted import Redacted
from sottovoce.rng import Streams

PROMISE = "How long my device's messages are says nothing about me."


@dataclass(frozen=True, slots=True, repr=False)
class LengthGuess(Redacted):
    """Users' message lengths, less the mean of the round."""

    users: Ints
    lengths: NDArray[np.float64]
    rounds: int


def _needs(view: View) -> str:
    senders = {p.sender for p in view.messages(TlsPacket) if p.sender >= 0}
    return "" if len(senders) > 1 else "no messages of two devices were seen"


def _guess(view: View) -> LengthGuess:
    users: list[int] = []
    lengths: list[float] = []
    for seen in view.rounds:
        packets = [p for p in seen.messages if isinstance(p, TlsPacket) and p.sender >= 0]
        if packets:
            mean = math.fsum(p.bytes for p in packets) / len(packets)
            users += [p.sender for p in packets]
            # A round of one device has no mean to compare with.
            lengths += [p.bytes - mean * (len(packets) > 1) for p in packets]
    who, place, count = np.unique(users, return_inverse=True, return_counts=True)
    return LengthGuess(who, np.bincount(place, lengths) / count, len(view.rounds))


def _judge(guess: LengthGuess, truth: Truth) -> Result:
    """AUC of telling users with more items than the median from those with fewer."""
    counts = truth.train.counts[guess.users]
    known = Streams.from_seed(0).child("known to the observer").keys(guess.users) % 2 == 0
    middle, name = np.median(counts), "lengths of messages"
    sides = [
        (guess.lengths[half & (counts > middle)], guess.lengths[half & (counts < middle)])
        for half in (known, ~known)
    ]
    if not all(len(side) for half in sides for side in half):
        return Result("N1", name, "network", PROMISE, "AUC", 0.5, (0.0, 1.0), 0.5)
    sign = 1.0 if auc(*sides[0])[0] >= 0.5 else -1.0
    many, few = sides[1]
    value, interval = auc(sign * many, sign * few)
    alike = len(np.unique(np.round(guess.lengths, 6))) == 1
    words = "all messages were alike" if alike else f"of {len(many) + len(few):,} users"
    return Result(
        "N1", name, "network", PROMISE, "AUC", value, interval, 0.5,
        claims=len(many) + len(few),
        detail=f"who has more items than most, from lengths in {guess.rounds:,} rounds; {words}",
    )  # fmt: skip


def auc(
    above: NDArray[np.float64], below: NDArray[np.float64]
) -> tuple[float, tuple[float, float]]:
    """The chance that one of `above` is larger than one of `below`, with its 95 % interval (DeLong:
    by how much single users' shares differ)."""
    wins = _shares(above, below)
    losses = 1.0 - _shares(below, above)
    value = float(wins.mean())
    spread = _variance(wins) / len(above) + _variance(losses) / len(below)
    # Never narrower than if each of them were told apart by itself.
    n = min(len(above), len(below))
    half = CONFIDENCE_Z * math.sqrt(max(spread, value * (1.0 - value) / (4.0 * n)))
    return value, (max(0.0, value - half), min(1.0, value + half))


def _shares(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    pool = np.sort(np.round(other, 6))
    rounded = np.round(one, 6)
    low, high = np.searchsorted(pool, rounded, "left"), np.searchsorted(pool, rounded, "right")
    shares: NDArray[np.float64] = (low + high) / (2.0 * len(pool))
    return shares


def _variance(values: NDArray[np.float64]) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.25


ATTACK = ATTACKS.add(
    "lengths",
    Attack(
        "lengths of messages", "network", PROMISE, _guess, _judge, "N1", needs=_needs,
        remedy=Remedy("secure-sum", "masked updates, which all have one length (secure-sum)"),
        grows_with="users",
    ),
)  # fmt: skip
