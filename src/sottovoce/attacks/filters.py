"""What the server can guess from a device's updates of UC-FedRec's filters (A9, A10).

- A9, the label: a network learns by q − onehot(y), which is also the slope of its last bias. Steps
  go downhill, so the bias of her own class moves up and all others move down, step after step. Of
  a filter of moments the center moves along her embedding, and of the classes' means only that of
  her own class moves the same way.
- A10, who hides what: who hides an attribute does not train its filter. Where a filter's rows are
  missing, or zero, that says so. Where every row is there, with noise, the size of the filter's
  part is what is left to look at; and in the model itself, how near a filter's guess for a user
  lies to the target towards which private users are pulled.

All take plain arrays: the change of each weight of one filter, a row per client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.drift import ClaimOutcome, Floats, Interval, Ints
from sottovoce.attacks.views import CONFIDENCE_Z
from sottovoce.errors import DataError, DoesNotApply

Changes = Mapping[str, NDArray[Any]]
"""`weight0`, `bias0`, `weight1`, ... of a network, or `center`, `moments` and `means`; each
[clients, ...], and [out, in] for weights."""
Mask = NDArray[np.bool_]


class LabelGuesses(NamedTuple):
    """A guess for every client, and how many are right of those whose filter part is there."""

    guesses: Ints
    """-1 where there is nothing to guess from."""
    outcome: ClaimOutcome


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well a score tells those who hide an attribute from the others."""

    attack: str
    party: str
    hiding: int
    others: int
    auc: float
    chance: Interval
    """Where the AUC lies in 95 % of cases if the score has nothing to do with it."""

    @property
    def succeeds(self) -> bool:
        """Beyond chance; to either side, since who hides less may be told as well."""
        return not self.chance.low <= self.auc <= self.chance.high

    def to_table(self) -> dict[str, object]:
        return {
            "attack": self.attack,
            "party": self.party,
            "value": self.auc,
            "interval": list(self.chance),
            "base_rate": 0.5,
            "verdict": "guesses" if self.succeeds else "no better than chance",
        }


# --- A9 ------------------------------------------------------------------------------------------


def label_from_bias(changes: Changes, labels: Ints, inputs: Floats | None = None) -> LabelGuesses:
    """The class whose bias in the last layer moved up most. `inputs` [clients, units] is what that
    layer reads, for an attacker who knows the representations: then the weights count as well, as
    they move by the same slope times their input. `labels` score the guesses (-1: not scored)."""
    layer = len(changes) // 2 - 1
    if layer < 0 or f"bias{layer}" not in changes or f"weight{layer}" not in changes:
        raise DataError("a filter has weights and biases, weight0, bias0 and so on")
    score = np.asarray(changes[f"bias{layer}"], dtype=np.float64).copy()
    if score.ndim != 2 or labels.shape != (len(score),):
        raise DataError("every client needs a label and a change of every bias")
    if inputs is not None:
        weight = np.asarray(changes[f"weight{layer}"], dtype=np.float64)
        score += np.einsum("nci,ni->nc", weight, inputs)
    return _scored("filter bias" if inputs is None else "filter bias and weights", score, labels)


def label_from_moments(
    changes: Changes, labels: Ints, published: Floats | None = None, inputs: Floats | None = None
) -> LabelGuesses:
    """The class whose mean moved most along the center, or along `inputs` [clients, d], which are
    embeddings less the center, for an attacker who knows these. `published` [classes, d] are the
    means that devices were given, times the step at which they follow: means also come nearer to
    0 by that, whoever she is. `labels` score the guesses (-1: not scored)."""
    if "center" not in changes or "means" not in changes:
        raise DataError("a filter of moments has a center and means")
    means = np.asarray(changes["means"], dtype=np.float64)
    along = np.asarray(changes["center"] if inputs is None else inputs, dtype=np.float64)
    if means.ndim != 3 or along.shape != (len(means), means.shape[2]):
        raise DataError("every client needs a change of the center and of every mean")
    if labels.shape != (len(means),):
        raise DataError("every client needs a label")
    there: Mask = np.asarray(means.any(axis=(1, 2)))
    if published is not None:
        means = means + published
    score = np.einsum("ncd,nd->nc", means, along) * there[:, None]
    name = "filter moments" if inputs is None else "filter moments and embeddings"
    return _scored(name, score, labels)


def _scored(name: str, score: Floats, labels: Ints) -> LabelGuesses:
    """The highest score is the guess, where there is any."""
    there = score.any(axis=1)
    guesses = np.where(there, score.argmax(axis=1), -1)
    scored = there & (labels >= 0)
    truth = labels[scored]
    majority = np.bincount(truth).max() / len(truth) if len(truth) else 0.0
    right = int((guesses[scored] == truth).sum())
    known = int((labels >= 0).sum())
    outcome = ClaimOutcome(name, "server", len(truth), right, known, float(majority))
    return LabelGuesses(guesses.astype(np.int64), outcome)


def ranked(values: Floats) -> Floats:
    """The rank of each number from 1 on, that of equal ones being their mean. (SciPy's takes long
    to import.)"""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    places: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[which]
    return places


def rank(attack: str, score: Floats, hides: Mask) -> Ranking:
    """The AUC of a score that should be higher for those who hide, and where chance would put it
    (from its spread over all orders of the clients; equal scores count half)."""
    if score.shape != hides.shape or score.ndim != 1 or not bool(np.isfinite(score).all()):
        raise DataError("every client needs a finite score")
    hiding, n = int(hides.sum()), len(hides)
    others = n - hiding
    if not hiding or not others:
        raise DoesNotApply("there must be clients who hide the attribute and clients who do not")
    ranks = ranked(score)
    auc = (float(ranks[hides].sum()) - hiding * (hiding + 1) / 2) / (hiding * others)
    spread = math.sqrt(float(((ranks - ranks.mean()) ** 2).sum()) / (n * (n - 1) * hiding * others))
    chance = Interval(max(0.0, 0.5 - CONFIDENCE_Z * spread), min(1.0, 0.5 + CONFIDENCE_Z * spread))
    return Ranking(attack, "server", hiding, others, auc, chance)


def unmasked(embeddings: Floats, center: Floats, lines: Floats) -> Floats:
    """Embeddings [users, d] without the directions in which a published filter of moments looks
    (`lines` [guesses, classes, d]). There, those who hide pretend to be somebody; whoever knows the
    filter looks elsewhere, at what it does not."""
    apart = (lines - lines.mean(axis=1, keepdims=True)).reshape(-1, lines.shape[-1])
    _, size, axes = np.linalg.svd(apart.astype(np.float64), full_matrices=False)
    axes = axes[size > 1e-4 * max(float(size[0]), 1e-30)]
    found: Floats = embeddings - (embeddings - center) @ axes.T @ axes
    return found
