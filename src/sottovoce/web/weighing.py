"""What a choice is worth before it is kept: how well somebody could guess, what it costs, and
whether anything would leave. In sentences for the person who chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.core.words import Said, said
from sottovoce.privacy.accountant import DELTA, rounded_up, rounds_left
from sottovoce.privacy.central import MOST_ROUNDS, price, rounds_within
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
    choice: Choice,
    changed: Mapping[str, Any],
    terms: Terms | None,
    used: float = 0.0,
    rounds: int = 0,
) -> Weighed:
    """What this choice means under these terms, if so much is used already and so many rounds of
    noisy sums have been (`device_limits.spent_before`, `rounds_sent`)."""
    if not choice.takes_part:
        return Weighed(50.0, said("odds.coin"), "good", (said("verdict.no_part"),))
    delta = delta_of(terms)
    limit = limit_words(choice.total_epsilon, terms) if "total_epsilon" in changed else []
    kept = limit and math.isfinite(choice.total_epsilon) and (terms is None or is_bounded(terms))
    worth = verdict(choice.total_epsilon, delta) if kept else None
    if terms is None:
        return Weighed(None, None, worth or "none", tuple(limit))
    why = in_the_way(choice, terms, used, rounds)
    if why is not None:
        return Weighed(None, None, worth or "none", tuple(limit), why)
    cost = round_cost(choice, terms)
    if cost is None:
        return Weighed(None, said("odds.none"), "none", (said("verdict.none"), *limit))
    right, once = guess(cost, delta), verdict(cost, delta)
    words = said(f"verdict.{once}")
    if once == "good" and math.isinf(choice.total_epsilon):
        once, words = "weak", said("verdict.once")
    found = [words, *limit]
    if noise := _noise_on_sums(terms):
        found += _sums_last(choice, noise, used, rounds)
    else:
        found += lasting(choice, used, cost, "period" if terms.contributes else "round")
    return Weighed(right, odds_words(right, terms), worth or once, tuple(found))


def in_the_way(choice: Choice, terms: Terms, used: float = 0.0, rounds: int = 0) -> Said | None:
    """Why nothing leaves under this choice of somebody who takes part; None where something may."""
    known = {each.name for each in terms.algorithm.attributes}
    missing = [name for name in choice.hidden_attributes if name not in known]
    noise = _noise_on_sums(terms)
    why = objection(terms, choice, missing, noisy_sums=bool(sum_noise(terms)))
    if why is not None:
        return why.said
    cost = price(noise, 1) if noise else terms.release.cost(choice)
    # A period has several rounds, and one that was begun may go on.
    if cost is None or terms.contributes or math.isinf(choice.total_epsilon):
        return None
    if _sums_left(choice, noise, used, rounds) if noise else (
        rounds_left(choice.total_epsilon, used, cost, 1)
    ):  # fmt: skip
        return None
    if cost > choice.total_epsilon:
        return said("objection.limit", cost=rounded_up(cost), limit=choice.total_epsilon)
    return said("quiet.limit")


def round_cost(choice: Choice, terms: Terms) -> float | None:
    """ε of a round, or of the rounds of noisy sums that there are, as far as the limit lets any
    leave; None where none bounds it."""
    if noise := _noise_on_sums(terms):
        all_of_them = price(noise, min(max(1, terms.algorithm.rounds), MOST_ROUNDS))
        return min(all_of_them, choice.total_epsilon)
    return terms.release.cost(choice)


def _noise_on_sums(terms: Terms) -> float:
    """By which rounds are counted; 0 where what leaves has an ε of its own, or none."""
    return 0.0 if terms.contributes else sum_noise(terms)


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
        found.append(said("verdict.try_instead", limit=protecting(terms)))
    return found


def protecting(terms: Terms | None) -> float:
    """A limit on everything that protects under these terms."""
    return _PROTECTS[bool(delta_of(terms))]


def lasting(choice: Choice, used: float, cost: float, each: str) -> list[Said]:
    """What a round (or period) uses, and for how many the limit has room."""
    found = [said(f"costs.{each}", cost=rounded_up(cost))]
    if math.isinf(choice.total_epsilon):
        return [*found, said("costs.no_limit")]
    left = int(rounds_left(choice.total_epsilon, used, cost, 1))
    if left < 1:
        return [*found, said("costs.no_room", limit=choice.total_epsilon)]
    return [*found, said(f"costs.lasts_{each}s", n=left, limit=choice.total_epsilon)]


def _sums_last(choice: Choice, noise: float, used: float, rounds: int) -> list[Said]:
    """The same of noisy sums, of which many rounds cost less than so many times one."""
    before = price(noise, rounds) if rounds else 0.0
    found = [said("costs.round", cost=rounded_up(price(noise, rounds + 1) - before))]
    if math.isinf(choice.total_epsilon):
        return [*found, said("costs.no_limit")]
    left = _sums_left(choice, noise, used, rounds)
    return [*found, said("costs.lasts_rounds", n=left, limit=choice.total_epsilon)]


def _sums_left(choice: Choice, noise: float, used: float, rounds: int) -> int:
    return max(0, rounds_within(noise, choice.total_epsilon - used) - rounds)
