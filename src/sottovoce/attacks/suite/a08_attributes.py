"""A8: hidden attributes from embeddings.

The server of our systems does not hold them, they stay on the devices. This is the worst case:
somebody got hold of all of them, and of the attribute of those who share it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.attributes import Inference, TooLittle, infer
from sottovoce.attacks.views import ATTACKS, Attack, Result, Truth, View
from sottovoce.data.dataset import Labels
from sottovoce.errors import DataError
from sottovoce.rng import Streams

_NAME: Final = "attribute inference"
_PROMISE: Final = "What I hide of myself cannot be guessed, even from my device's own numbers."
_RNG = Streams.from_seed(8)


def _needs(view: View) -> str:
    if "representations" not in view.own:
        return (
            "Embeddings stay on the devices, and this attacker got hold of none "
            '(view.own["representations"]).'
        )
    return ""


def _guess(view: View) -> NDArray[np.float64]:
    """`view.own["representations"]`: what an attacker holds who got all users' embeddings, a row
    each."""
    return np.asarray(view.own["representations"], dtype=np.float64)


def _judge(table: NDArray[np.float64], truth: Truth) -> Result:
    """Attackers learn from those who share an attribute; what the others hide is read only to
    score. The attribute that is guessed best counts, the others are named."""
    found = []
    for name in sorted(truth.labels):
        codes, hides = truth.labels[name], truth.hidden.get(name)
        if hides is None or not hides.any():
            continue
        if len(table) != len(codes):
            raise DataError("every user needs a row of representations and a label")
        values = tuple(str(c) for c in range(int(codes.max(initial=0)) + 1))
        try:
            labels = Labels(codes.astype(np.int32), values)
            found.append(infer(table, labels, hides, _RNG, attribute=name))
        except TooLittle:
            continue
    if not found:
        detail = "no attribute is hidden by some and shared by enough others to learn from"
        return _result(0.5, (0.0, 1.0), 0, detail)
    worst = max(found, key=_leak)
    best = worst.by_auc
    low, high = best.auc_interval
    # The best of several attackers must beat what the best of so many would by chance.
    low = low if best.ranks else min(low, 0.5)
    return _result(best.auc or 0.5, (low, high), best.tried, "; ".join(i.verdict for i in found))


def _leak(found: Inference) -> tuple[bool, float]:
    return found.by_auc.ranks, found.by_auc.auc or 0.0


def _result(value: float, interval: tuple[float, float], claims: int, detail: str) -> Result:
    return Result(
        "A8", _NAME, "anyone", _PROMISE, "AUC", value, interval, 0.5, claims=claims, detail=detail
    )


ATTACK = ATTACKS.add(
    "attributes", Attack(_NAME, "anyone", _PROMISE, _guess, _judge, "A8", needs=_needs)
)
