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
    """In which she has sent, in rounds of the noise in force."""
    spent: float
    """ε of these, and of all that costs an ε of its own."""
    after_next: float
    """The same after another round."""
    limit: float
    rounds_left: float
    delta: float

    def to_table(self) -> dict[str, Any]:
        """For JSON; null stands for no limit."""
        left = None if math.isinf(self.rounds_left) else int(self.rounds_left)
        return {
            "rounds": self.rounds,
            "spent": self.spent,
            "after_next_round": self.after_next,
            "limit": self.limit,
            "rounds_left": left,
            "delta": self.delta,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        so_far = f"{count_of(self.rounds, 'round')} of noisy sums cost ε = {bound_text(self.spent)}"
        told = (
            f"{so_far}, another makes it {bound_text(self.after_next)}, but for a chance of "
            f"{self.delta:g} and while the proxy does not work with the server."
        )
        if math.isinf(self.limit):
            return [told, "There is no limit in all: set one with --total-epsilon."]
        limit = f"The limit of {self.limit:.10g} in all"
        if self.rounds_left < 1:
            end = "no room for another round: nothing leaves; --total-epsilon raises it."
            return [told, f"{limit} has {end}"]
        return [told, f"{limit} has room for {count_of(int(self.rounds_left), 'more round')}."]


def of_store(
    store: CohortStore, number: int, terms: Terms | None, choice: Choice | None = None
) -> SumBudget | None:
    """The budget of a store's user, under her choice or another; None where she takes no part or
    sums have no noise under these terms."""
    from sottovoce.parties.store_limits import rounds_sent, sum_noise
    from sottovoce.privacy.accountant import DELTA
    from sottovoce.privacy.central import price, rounds_within

    noise = sum_noise(terms)
    choice = choice or store.choice(number)
    if not noise or not choice.takes_part:
        return None
    row = store.users.tolist().index(number)
    sent, other = int(rounds_sent(store, noise)[row]), float(store.spent()[row])
    limit, left = choice.total_epsilon, math.inf
    if math.isfinite(limit):
        left = max(0, (rounds_within(noise, limit - other) if limit >= other else 0) - sent)
    cost = price(noise, sent) if sent else 0.0
    return SumBudget(sent, other + cost, other + price(noise, sent + 1), limit, left, DELTA)
