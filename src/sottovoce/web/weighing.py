"""What a choice is worth before it is kept: how well somebody could guess, what it costs, and
whether anything would leave. In sentences for the person who chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.core.words import Said, said
from sottovoce.privacy.accountant import DELTA, rounded_up, rounds_left
from sottovoce.privacy.statements import guess, verdict
from sottovoce.stores.device_limits import sum_noise
from sottovoce.wire.plainly import is_bounded, objection

if TYPE_CHECKING:
    from sottovoce.core.consent import Choice
    from sottovoce.wire.terms import Terms

_PROTECTS = {False: 1.0, True: 4.0}
"""A limit that protects, by whether what leaves is a part of noisy sums."""
Worth = Literal["none", "good", "weak", "nothing"]


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a choice would mean."""

    right: float | None
    """Of 100 guesses; None where there are no odds."""
    odds: Said | None
    verdict: Worth
    said: tuple[Said, ...]
    objection: Said | None = None
    """Why nothing would leave, if so."""

    def to_json(self) -> dict[str, Any]:
        odds = None
        if self.odds is not None and self.right is not None:
            odds = {"right": round(self.right), "of": 100, "said": self.odds.to_json()}
        return {
            "odds": odds,
            "verdict": self.verdict,
            "said": [one.to_json() for one in self.said],
            "objection": None if self.objection is None else self.objection.to_json(),
        }


def weigh(
    choice: Choice, changed: Mapping[str, Any], terms: Terms | None, used: float = 0.0
) -> Weighed:
    """What this choice means under these terms, if so much is used already."""
    if not choice.takes_part:
        return Weighed(50.0, said("odds.coin"), "good", (said("verdict.no_part"),))
    delta = delta_of(terms)
    limit = limit_words(choice.total_epsilon, terms) if "total_epsilon" in changed else []
    worth = verdict(choice.total_epsilon, delta) if limit and math.isfinite(
        choice.total_epsilon
    ) else None  # fmt: skip
    if terms is None:
        return Weighed(None, None, worth or "none", tuple(limit))
    missing = [n for n in choice.hidden_attributes if n not in _filters(terms)]
    why = objection(terms, choice, missing, noisy_sums=bool(sum_noise(terms)))
    if why is not None:
        return Weighed(None, None, worth or "none", tuple(limit), why.said)
    cost = round_cost(choice, terms)
    if cost is None:
        return Weighed(None, said("odds.none"), "none", (said("verdict.none"), *limit))
    right, once = guess(cost, delta), verdict(cost, delta)
    words = said(f"verdict.{once}")
    if once == "good" and math.isinf(choice.total_epsilon):
        once, words = "weak", said("verdict.once")
    found = [words, *limit]
    found += lasting(choice, used, cost, "period" if terms.contributes else "round")
    return Weighed(right, odds_words(right, terms), worth or once, tuple(found))


def round_cost(choice: Choice, terms: Terms) -> float | None:
    """ε of a round, or of the rounds of noisy sums that there are; None where none bounds it."""
    noise = sum_noise(terms)
    if noise and not terms.contributes:
        from sottovoce.privacy.central import MOST_ROUNDS, price

        return price(noise, min(max(1, terms.algorithm.rounds), MOST_ROUNDS))
    return terms.release.cost(choice)


def delta_of(terms: Terms | None) -> float:
    """Of what leaves under these terms as a part of noisy sums; 0 elsewhere."""
    if terms is None:
        return 0.0
    if terms.release.contributing is not None:
        return terms.release.contributing.delta
    return DELTA if sum_noise(terms) else 0.0


def odds_words(right: float, terms: Terms | None) -> Said:
    """How often a guess is right, of whatever leaves under these terms."""
    kind = "all_reports"
    if terms is not None and terms.reporting is None:
        kind = "said" if terms.contributes or terms.link.adds_up is not None else "update"
    if round(right) >= 100:
        return said("odds.sure_reports" if kind == "all_reports" else "odds.sure")
    return said(f"odds.{kind}", right=round(right))


def limit_words(limit: float, terms: Terms | None) -> list[Said]:
    """What a limit on everything is worth."""
    if terms is not None and not is_bounded(terms):
        return [said("verdict.limit_useless")] if math.isfinite(limit) else []
    if math.isinf(limit):
        return [said("verdict.limit_none")]
    delta = delta_of(terms)
    worth = verdict(limit, delta)
    found = [said(f"verdict.limit_{worth}", limit=limit)]
    if worth != "good":
        found.append(said("verdict.try_instead", limit=_PROTECTS[bool(delta)]))
    return found


def lasting(choice: Choice, used: float, cost: float, each: str) -> list[Said]:
    """What a round (or period) uses, and for how many the limit has room."""
    found = [said(f"costs.{each}", cost=rounded_up(cost))]
    if math.isinf(choice.total_epsilon):
        return [*found, said("costs.no_limit")]
    left = int(rounds_left(choice.total_epsilon, used, cost, 1))
    if left < 1:
        return [*found, said("costs.no_room", limit=choice.total_epsilon)]
    return [*found, said(f"costs.lasts_{each}s", n=left, limit=choice.total_epsilon)]


def _filters(terms: Terms) -> set[str]:
    return {each.name for each in terms.algorithm.attributes}
