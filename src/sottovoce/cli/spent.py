"""What one user has spent so far, by randomised reports and by noisy sums: limit, rounds left,
certificates; and, for a run's ledger, the same in words."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce.errors import UsageError
from sottovoce.privacy.statements import NOTHING, bound_text, count_of, odds

if TYPE_CHECKING:
    import pyarrow as pa

    from sottovoce.core.consent import Choice
    from sottovoce.core.ledger import Totals
    from sottovoce.privacy.accountant import Account, Sent
    from sottovoce.stores.device import CohortStore
    from sottovoce.wire.terms import Terms

_METER, _OWN = 24, "own-epsilon"


@dataclass(frozen=True, slots=True)
class SumBudget:
    """One user's budget of noisy sums. `limit` and `rounds_left` are infinite if she has set
    none."""

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


def sums_of_store(
    store: CohortStore, number: int, terms: Terms | None, choice: Choice | None = None
) -> SumBudget | None:
    """The budget of a store's user, under her choice or another; None where she takes no part or
    sums have no noise under these terms."""
    from sottovoce.privacy.accountant import DELTA
    from sottovoce.privacy.central import MOST_ROUNDS, price, rounds_within
    from sottovoce.stores.device_limits import (
        plain_releases,
        rounds_sent,
        spent_on_sums,
        sum_noise,
    )

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


@dataclass(frozen=True, slots=True)
class Budget:
    """One user's budget. `limit` and `rounds_left` are infinite where she has set none."""

    account: Account
    limit: float
    round_cost: float | None
    """k·ε of another round; None where none is to come."""
    rounds_left: float | None
    smallest_batch: int
    """Of those in which her reports were handed on; 0 where some went without a proxy."""
    unbounded: bool
    """Whether other releases have left, too, of which nothing can be vouched for."""
    sums: float = 0.0
    """ε of noisy sums, which is spent as well."""
    each: str = "round"
    """What `round_cost` is the cost of: of contributions, a period."""

    @property
    def spent(self) -> float:
        """Of the limit."""
        return self.account.without_proxy + self.sums

    def to_table(self) -> dict[str, Any]:
        """For JSON; null stands for no limit, and for no bound."""
        left = self.rounds_left
        return {
            "reports": self.account.reports,
            "spent": self.spent,
            "noisy_sums": {"epsilon": self.sums, "delta": self.account.delta},
            "limit": self.limit,
            "round_cost": self.round_cost,
            "rounds_left": None if left is None or math.isinf(left) else int(left),
            "certificates": {
                "without_proxy": {"epsilon": self.account.without_proxy, "delta": 0.0},
                "with_proxy": {
                    "epsilon": self.account.with_proxy,
                    "delta": self.account.delta,
                    "smallest_batch": self.smallest_batch,
                },
            },
            "other_releases_without_bound": self.unbounded,
        }

    def lines(self) -> list[str]:
        """The same for people; the figure that assumes nothing comes first."""
        spent, sent = self.account.without_proxy, count_of(self.account.reports, "report")
        told = []
        if math.isfinite(self.limit):
            told.append(f"Budget: {meter(self.spent, self.limit)}{self._rounds()}.")
        else:
            told.append(f"Budget: ε = {bound_text(self.spent)} spent, no limit is set.")
        if self.sums:
            told.append(
                f"Of this, noisy sums cost ε = {bound_text(self.sums)}, but for a chance of "
                f"{self.account.delta:g} and while their proxy does not work with their server."
            )
        if self.account.reports:
            told += [
                f"Without a trusted proxy, {sent} cost ε = {bound_text(spent)} (plain sum): what "
                f"anyone sees who knows which reports are yours {odds(spent)}.",
                self._with_proxy(),
            ]
        if self.unbounded:
            told.append(
                f"This is the cost of the randomised reports{' and noisy sums' * bool(self.sums)} "
                "alone; other releases have left, too, for which no ε can be vouched."
            )
        return told

    def _rounds(self) -> str:
        if self.rounds_left is None:
            return ""
        if self.rounds_left < 1:
            return f", no further {self.each} fits: nothing leaves any more"
        return f", {count_of(int(self.rounds_left), self.each)} left"

    def _with_proxy(self) -> str:
        if self.smallest_batch < 2:
            return "Some reports went through no proxy, which hides them in no crowd."
        proved, weak = self.account.with_proxy, ""
        if proved > NOTHING:
            weak = " This protects nothing either."
        if proved >= 0.99 * self.account.without_proxy:
            weak = " So few users hide nobody at this ε: shuffling gains nothing."
        return (
            f"With a proxy that does not collude with the server: ε = {bound_text(proved)} but for "
            f"a chance of {self.account.delta:g} (clone bound of 2021; assumes that all of a batch "
            f"report with the same ε and that no batch had fewer than {self.smallest_batch:,} "
            f"honest users).{weak}"
        )


def of_store(store: CohortStore, number: int, terms: Terms | None) -> Budget | None:
    """The budget of a store's user; None where it does not matter to her."""
    from sottovoce.privacy.accountant import Sent
    from sottovoce.stores.device_limits import plain_releases, spent_on_sums

    choice, row = store.choice(number), store.users.tolist().index(number)
    own = _contributed(store.ledger(number))
    sent = [
        Sent(s.reports - own[s.epsilon] * (s.batch == 0), s.epsilon, s.batch)
        for s in store.sent_reports(number)
    ]
    sent, cost = [one for one in sent if one.reports], round_cost(choice, terms)
    if not sent and not own and cost is None:
        return None
    unbounded = bool(plain_releases(store)[row])
    sums = float(spent_on_sums(store)[row]) + math.fsum(own.elements())
    contributes = terms is not None and terms.contributes
    return _budget(sent, choice, cost, unbounded, sums, "period" if contributes else "round")


def _contributed(table: pa.Table) -> Counter[float]:
    """How often contributions of each cost are in a ledger."""
    rows = zip(table["kind"].to_pylist(), table["epsilon"].to_pylist(), strict=True)
    return Counter(epsilon for kind, epsilon in rows if kind == _OWN)


def spent_so_far(store: CohortStore, number: int) -> float:
    """All ε that a store's user has spent, on noisy sums, too."""
    from sottovoce.stores.device_limits import spent_on_sums

    row = store.users.tolist().index(number)
    return float(store.spent()[row] + spent_on_sums(store)[row])


def of_ledger(table: pa.Table, choice: Choice) -> Budget | None:
    """The same from one user's rows of a run's ledger; None where no ε bounds what she has sent."""
    from sottovoce.privacy.accountant import Sent

    counted: dict[tuple[float, int], int] = {}
    cost, unbounded, sums = None, False, math.fsum(_contributed(table).elements())
    columns = ("kind", "epsilon", "reports", "report_epsilon", "batch")
    for kind, epsilon, reports, each, batch in zip(
        *(table[name].to_pylist() for name in columns), strict=True
    ):
        unbounded |= math.isinf(epsilon)
        if kind == _OWN:
            continue
        if not reports and 0 < epsilon < math.inf:  # an update with noise counts as one report
            reports, each, batch = 1, epsilon, 0
        if reports:
            counted[each, batch] = counted.get((each, batch), 0) + reports
            cost = reports * each
    if not counted and not sums:
        return None
    sent = [Sent(reports, *key) for key, reports in sorted(counted.items())]
    return _budget(sent, choice, cost, unbounded, sums)


def _budget(
    sent: list[Sent],
    choice: Choice,
    cost: float | None,
    unbounded: bool,
    sums: float = 0.0,
    each: str = "round",
) -> Budget:
    from sottovoce.privacy.accountant import account, rounds_left

    found = account(sent)
    spent = found.without_proxy + sums
    left = None if cost is None else rounds_left(choice.total_epsilon, spent, cost, 1)
    batch = min((s.batch for s in sent), default=0)
    return Budget(found, choice.total_epsilon, cost, left, batch, unbounded, sums, each)


def round_cost(choice: Choice, terms: Terms | None) -> float | None:
    """ε of a round under these terms; None where nothing is sent under this choice, or nothing that
    an ε bounds."""
    return None if terms is None else terms.release.cost(choice)


def require_sane(epsilon: float) -> None:
    """Raises where this is no limit on what a report may cost."""
    from sottovoce.core.one_bit import LARGEST_EPSILON

    if epsilon > LARGEST_EPSILON:
        raise UsageError(
            f"--epsilon {epsilon:g} is no limit: no report costs more than {LARGEST_EPSILON:g}, "
            "and long before that nothing is protected"
        )


def meter(spent: float, limit: float) -> str:
    """A bar of text, never shown full before it is."""
    share = 1.0 if limit <= 0 else min(1.0, spent / (limit * (1 - 1e-12)))
    full = min(_METER, math.floor(share * _METER))
    bar = "#" * full + "-" * (_METER - full)
    return (
        f"[{bar}] ε = {bound_text(spent)} of {limit:.10g} spent, {math.floor(100 * share + 1e-9)} %"
    )


def what_left(who: str, totals: Totals) -> str:
    """Sums of a ledger in one sentence."""
    from sottovoce.runs.tables import readable_bytes

    parts = [f"{totals.releases:,} releases"]
    if totals.reports:
        parts.append(f"{totals.reports:,} randomised reports")
    if totals.positive_rows or totals.negative_rows or not totals.reports:
        parts.append(f"{totals.positive_rows:,} positive rows")
        parts.append(f"{totals.negative_rows:,} negative rows")
    return f"What left {who}: {', '.join(parts)}, {readable_bytes(totals.bytes)}."


def what_owners_read(who: str, totals: Totals) -> str:
    """The same where interactions went to data owners."""
    from sottovoce.runs.tables import readable_bytes

    return (
        f"What data owners have read of {who}: {totals.positive_rows:,} positive and "
        f"{totals.negative_rows:,} negative interactions, those of every epoch counted; "
        f"{readable_bytes(totals.bytes)}."
    )


def bound_line(totals: Totals, most: float | None = None) -> str:
    """The bound that the releases can vouch for; `most`, of all users' releases, is what the one
    who spent most has spent: a sum over users bounds nobody's."""
    if math.isinf(totals.epsilon):
        return "Guaranteed bound on the privacy cost ε: none, see `sottovoce docs privacy`."
    if most is not None and totals.reports:
        return (
            f"No user has spent more than ε = {bound_text(most)}, in plain sum; --user has both "
            "certificates of one."
        )
    if most is not None:
        return f"No user has spent more than ε = {bound_text(most)}."
    return f"Guaranteed bound on the privacy cost ε: {totals.epsilon:.10g}."
