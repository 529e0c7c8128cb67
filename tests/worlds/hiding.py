"""Who hides an attribute: the guesses against which sight and attacks are measured."""

import numpy as np
from scipy.special import log_softmax, xlogy

from sottovoce.attacks.drift import ClaimOutcome
from sottovoce.attacks.filters import rank
from sottovoce.errors import DataError


def who_hides(sent, hides):
    """Claims that a client hides every attribute whose filter it did not send. Both are [clients,
    attributes]. The base rate: to claim it of everybody."""
    if sent.shape != hides.shape:
        raise DataError("it must be known of every client and filter whether it was sent")
    claimed, there = ~sent, int(hides.sum())
    right = int((claimed & hides).sum())
    return ClaimOutcome(
        "missing filters", "server", int(claimed.sum()), right, there, there / max(1, hides.size)
    )


def who_hides_by_size(changes, hides):
    """Ranks clients by how little the whole filter moved (its L2 norm), smallest first. `hides` is
    [clients]."""
    square = np.zeros(len(hides))
    for change in changes.values():
        if len(change) != len(hides):
            raise DataError("every client needs a change of every weight")
        square += (np.asarray(change, dtype=np.float64).reshape(len(hides), -1) ** 2).sum(axis=1)
    return rank("size of the filter's part", -square, hides)


def who_hides_by_guess(logits, target, hides):
    """Ranks users by how near the filter's guess is to the target of those who hide the attribute:
    KL(target ‖ q), smallest first. `logits` are [users, classes]."""
    log_q = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    distance = xlogy(target, target).sum() - log_q @ np.asarray(target, dtype=np.float64)
    return rank("nearness to the target", -distance, hides)
