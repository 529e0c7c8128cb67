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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.choice import DrawnField
from sottovoce.core.consent import ALWAYS, Choice, Consent, ShareRule, thresholds
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.base import RELEASES, BoundRelease, Release
from sottovoce.rng import Streams, draw

SHARES = (
    "The share π decides which rows for positive items are sent. It does not hide the others from "
    "a server that does the algebra: one negative row gives away the device's vector and, with it, "
    "the positive item behind the draw. The ledger therefore books an unbounded privacy cost for "
    "every release. Who must not be read should not take part: such a device sends nothing and is "
    "still served from the published model. See `sottovoce docs privacy`."
)
EVERYTHING = (
    "A device sends rows that are multiples of its vector, for every item or for its positives "
    "alone: whoever sees one upload reads every positive item from it, and much of the vector. "
    "Nothing is protected, and the ledger books an unbounded privacy cost for every release. Who "
    "must not be read should not take part: such a device sends nothing and is still served from "
    "the published model. See `sottovoce docs privacy`."
)


@RELEASES.register("share-fraction")
@dataclass(frozen=True, slots=True)
class ShareFraction(Release):
    """Positives leave by π: per "draw" (a coin each time) or per "item" (a subset fixed once)."""

    reads: ClassVar[tuple[str, ...]] = ("share_positives",)
    per: Literal["draw", "item"] = "item"
    """A share of the items may leave, drawn once, or a coin is tossed at every draw, as printed."""

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

    def objection(self, choice: Choice, *, noisy_sums: bool = False) -> str:
        return no_epsilon(choice, "no noise")

    @property
    def as_printed(self) -> bool:
        return self.per == "draw"

    def describe(self) -> str:
        if self.per == "item":
            return "a subset of positives fixed once per device (per item)"
        return "a coin for every draw (per draw, as printed in the paper)"

    def card(self) -> str:
        return f"rows of items, of her positives a share π, drawn by {self.per}"

    def relied_on(self, choices: Sequence[Choice]) -> str:
        shares = sorted({f"{choice.share_positives:g}" for choice in choices})
        return "Your setting π = " + " or ".join(shares)

    @property
    def unprotected(self) -> str:
        return SHARES


def no_epsilon(choice: Choice, noise: str) -> str:
    """The objection of a release of item rows to a choice that limits what a report costs."""
    if not choice.max_reports and not choice.epsilon:
        return ""
    return (
        f"The federation asks for item rows and adds {noise}, so that it cannot keep to an ε: "
        "nothing leaves. Choose --reports 0 --epsilon 0."
    )


def every_positive(choice: Choice) -> str:
    """The objection of a release that needs all positives to a choice that shares fewer."""
    if choice.share_positives >= 1:
        return ""
    return (
        "The federation asks for the rows of all positive items, which this choice does not "
        "permit: nothing leaves. Only --share-positives 1 permits it."
    )


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

    reads: ClassVar[tuple[str, ...]] = ("share_positives",)

    def asked_for(self) -> tuple[DrawnField, ...]:
        return (DrawnField("share_positives", "share", steps=((0.0, "none"), (1.0, "all"))),)

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

    def objection(self, choice: Choice, *, noisy_sums: bool = False) -> str:
        return no_epsilon(choice, "no noise") or every_positive(choice)

    @property
    def as_printed(self) -> bool:
        return True

    def describe(self) -> str:
        return "everything that is learnt"

    def card(self) -> str:
        return "everything that was learnt"

    @property
    def unprotected(self) -> str:
        return EVERYTHING


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
    most = wanted(consent.share_positives.astype(np.float64), history.counts)
    allowed = np.zeros(history.n_interactions, dtype=bool)
    keys = rng.lasting().keys(users)
    _flag_smallest(keys, history.indptr, history.items, most, allowed)
    return allowed


def wanted(share: NDArray[np.float64], held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many positives of each user may ever be sent. It is rounded down, so that π is a
    bound: with one positive and π = 0.6 none may leave. The small number makes up for π being
    stored in single precision."""
    return np.floor(share * held + 1e-3).astype(np.int64)


@njit(alone=True, cache=True)
def _flag_smallest(keys, indptr, items, wanted, allowed):  # type: ignore[no-untyped-def]
    for u in range(len(keys)):
        start, stop = indptr[u], indptr[u + 1]
        words = np.empty(stop - start, dtype=np.uint64)
        for k in range(stop - start):
            words[k] = draw(keys[u], items[start + k])
        order = np.argsort(words)
        for k in range(min(wanted[u], stop - start)):
            allowed[start + order[k]] = True
