"""Releases: which of a device's updates become a report, and at what price.

`ShareFraction` is FPL's own: negatives always leave, positives by the user's π. `Everything` is
FCF's: nothing is held back, and nothing is promised. Randomised reports are in `reports`.

What it promises. Consent that asks for what it cannot do (to hide attributes, to keep to an ε) is
refused, not ignored. `per="item"` fixes once a subset of at most π·|I_u| positives and never sends
a row for any other positive; `per="draw"` (as printed) tosses a coin for every draw, so that over
many rounds nearly every positive is sent at least once. Neither hides anything from a server that
does the algebra: one negative row gives the user's vector and the hidden positive away. Both
therefore cost infinity in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.consent import ALWAYS, Consent, ShareRule, thresholds
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.base import RELEASES, BoundRelease, Release
from sottovoce.rng import Streams, draw


@RELEASES.register("share-fraction")
@dataclass(frozen=True, slots=True)
class ShareFraction(Release):
    """Positives leave by π: per "draw" (a coin each time) or per "item" (a subset fixed once)."""

    per: Literal["draw", "item"] = "item"

    def __post_init__(self) -> None:
        if self.per not in ("draw", "item"):
            raise ConfigError(f'release.per must be "draw" or "item", not {self.per!r}')

    def is_revealing(self, triples: int, n_items: int) -> bool:
        """Where a device can name more than half of all items at once, it tells by what it does not
        name."""
        return 4 * triples > n_items

    def bind(
        self,
        users: NDArray[np.int64],
        consent: Consent,
        history: Interactions,
        rng: Streams,
        noise: bytes = b"",
        *,
        noisy_sums: bool = False,
    ) -> BoundShare:
        _require_no_more_than_shares(consent)
        if self.per == "draw":
            allowed = np.zeros(0, dtype=bool)
            threshold = thresholds(consent.share_positives)
        else:
            allowed = share_subsets(users, consent, history, rng)
            threshold = np.full(len(users), ALWAYS, dtype=np.uint64)
        return BoundShare(f"share-{self.per}", users, threshold, allowed, rng.child("share"))


def _require_no_more_than_shares(consent: Consent, release: str = "share-fraction") -> None:
    willing = consent.takes_part
    if consent.hidden_attributes[willing].any():
        raise ConsentError(
            f"hidden_attributes is set, but {release} hides no attribute; take it out of the "
            "consent, or choose a release that does"
        )
    if consent.max_reports[willing].any() or consent.epsilon[willing].any():
        raise ConsentError(
            f"epsilon and max_reports are set, but {release} adds no noise and cannot keep to "
            "them; take them out of the consent, or choose a release that does"
        )


@RELEASES.register("everything")
@dataclass(frozen=True, slots=True)
class Everything(Release):
    """Every update leaves, as in FCF. It needs the owners' consent to share every positive."""

    def bind(
        self,
        users: NDArray[np.int64],
        consent: Consent,
        history: Interactions,
        rng: Streams,
        noise: bytes = b"",
        *,
        noisy_sums: bool = False,
    ) -> BoundShare:
        _require_no_more_than_shares(consent, "everything")
        if np.any(consent.share_positives[consent.takes_part] < 1.0):
            raise ConsentError(
                "this system sends a row for every positive item, and somebody who takes part does "
                "not share them all; set share_positives = 1 for those who take part"
            )
        always = np.full(len(users), ALWAYS, dtype=np.uint64)
        return BoundShare("everything", users, always, np.zeros(0, dtype=bool), rng.child("share"))


@dataclass(frozen=True, slots=True, repr=False)
class BoundShare(BoundRelease):
    kind: str
    users: NDArray[np.int64]
    threshold: NDArray[np.uint64]
    allowed: NDArray[np.bool_]
    rng: Streams

    def rule(self, rows: NDArray[np.int64], rounds: NDArray[np.int64]) -> ShareRule:
        keys = self.rng.paired_keys(rounds, self.users[rows])
        return ShareRule(keys, self.threshold[rows], self.allowed)


def share_subsets(
    users: NDArray[np.int64], consent: Consent, history: Interactions, rng: Streams
) -> NDArray[np.bool_]:
    """A flag per interaction: the positives of u that may ever be sent, no more than π·|I_u|.

    The subset holds the items with the smallest keyed hashes, so it does not change from round to
    round, and as little as possible when the history or π changes.
    """
    # Rounded down, so that π is a bound: with one positive and π = 0.6, none may leave. The small
    # number makes up for π being stored in single precision.
    share = consent.share_positives.astype(np.float64)
    wanted = np.floor(share * history.counts + 1e-3).astype(np.int64)
    allowed = np.zeros(history.n_interactions, dtype=bool)
    keys = rng.lasting().keys(users)
    _flag_smallest(keys, history.indptr, history.items, wanted, allowed)
    return allowed


@njit(cache=True)
def _flag_smallest(keys, indptr, items, wanted, allowed):  # type: ignore[no-untyped-def]
    for u in range(len(keys)):
        start, stop = indptr[u], indptr[u + 1]
        words = np.empty(stop - start, dtype=np.uint64)
        for k in range(stop - start):
            words[k] = draw(keys[u], items[start + k])
        order = np.argsort(words)
        for k in range(min(wanted[u], stop - start)):
            allowed[start + order[k]] = True
