"""What rounds of noisy sums have cost one user so far, in words: limit, rounds left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.cli.budget import bound_text, count_of

if TYPE_CHECKING:
    from sottovoce.consent import Choice
    from sottovoce.parties.store import CohortStore
    from sottovoce.terms import Terms


@dataclass(frozen=True, slots=True)
class SumBudget:
    """One user's. `limit` and `rounds_left` are infinite where she has set none."""

    rounds: int
    """Of noisy sums in which she has sent, in rounds of the noise in force."""
    cost: float
    """ε of these."""
    other: float
    """ε of all that costs an ε of its own."""
    after_next: float
    """ε of both after another round."""
    limit: float
    rounds_left: float
    delta: float
    plain: int
    """Releases that nothing bounds."""

    def to_table(self) -> dict[str, Any]:
        """For JSON; null stands for no limit."""
        left = None if math.isinf(self.rounds_left) else int(self.rounds_left)
        return {
            "rounds": self.rounds,
            "spent": self.cost + self.other,
            "other_releases": self.other,
            "after_next_round": self.after_next,
            "limit": self.limit,
            "rounds_left": left,
            "delta": self.delta,
            "releases_without_noise": self.plain,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        so_far = f"{count_of(self.rounds, 'round')} of noisy sums cost ε = {bound_text(self.cost)}"
        others = f" and other releases ε = {bound_text(self.other)}" if self.other else ""
        told = (
            f"{so_far}{others}, another makes it {bound_text(self.after_next)}"
            f"{' in all' if self.other else ''}, but for a chance of {self.delta:g} and while the "
            "proxy does not work with the server."
        )
        return [told, self._limit(), *([self._plain()] if self.plain else [])]

    def _limit(self) -> str:
        if math.isinf(self.limit):
            return "There is no limit in all: set one with --total-epsilon."
        limit = f"The limit of {self.limit:.10g} in all"
        if self.rounds_left < 1:
            end = "no room for another round: nothing leaves; --total-epsilon raises it."
            return f"{limit} has {end}"
        return f"{limit} has room for {count_of(int(self.rounds_left), 'more round')}."

    def _plain(self) -> str:
        them, each = ("it", "it") if self.plain == 1 else ("them", "each")
        limit = "" if math.isinf(self.limit) else f"; {each} takes a round of the limit"
        earlier = count_of(self.plain, "earlier release")
        return f"{earlier} left without noise on sums, and no ε bounds {them}{limit}."


def of_store(
    store: CohortStore, number: int, terms: Terms | None, choice: Choice | None = None
) -> SumBudget | None:
    """The budget of a store's user, under her choice or another; None where she takes no part or
    sums have no noise under these terms."""
    from sottovoce.parties.store_limits import (
        plain_releases,
        rounds_sent,
        spent_on_sums,
        sum_noise,
    )
    from sottovoce.privacy.accountant import DELTA
    from sottovoce.privacy.central import MOST_ROUNDS, price, rounds_within

    noise = sum_noise(terms)
    choice = choice or store.choice(number)
    if not noise or not choice.takes_part:
        return None
    row = store.users.tolist().index(number)
    sent, plain = int(rounds_sent(store, noise)[row]), int(plain_releases(store)[row])
    rounds, other = sent - plain, float(store.spent()[row])
    limit, left = choice.total_epsilon, math.inf
    if math.isfinite(limit):
        left = max(0, (rounds_within(noise, limit - other) if limit >= other else 0) - sent)
    # `rounds` ends at MOST_ROUNDS, the price does not.
    cost = max(price(noise, rounds), float(spent_on_sums(store)[row])) if rounds else 0.0
    after = max(cost, price(noise, min(rounds + 1, MOST_ROUNDS)))
    return SumBudget(rounds, cost, other, other + after, limit, left, DELTA, plain)
