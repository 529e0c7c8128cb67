"""What a user's reports cost her in all: two certificates.

A device sends k reports in each of T rounds. Each report is one bit about one coordinate, drawn
anew and independently of the others, and is ε-LDP by itself.

**Without a trusted proxy** the cost is kεT: plain composition of pure differential privacy, δ = 0.
It assumes the mechanism and nothing else; whoever sees all her reports with her name may be the
server, the proxy, or both.

**With a proxy** it is (ε', δ) by the numeric clone bound of 2021 (`clones`), composed k·T times. It
assumes

- a proxy that does not collude with the server, tells nobody who sent what or in which order, and
  lets go of a batch only as a whole;
- that all users of a batch use the same randomiser with the same ε: one batch for each tier;
- `users` honest users in the *smallest* batch, counted as those who reported, not as those who were
  asked; users who tell the server what they sent hide nobody and do not count;
- one report of each user in each shuffle. k reports in a round are taken as k shuffles, the j-th of
  which holds everyone's j-th report. That is valid because the k reports of a device are
  independent given its data and the published model, and because the pool of all n·k reports that
  the server really gets can be computed from those k batches: it tells less. The pool is not a
  crowd of n·k, since k of its reports are her own;
- that who takes part does not depend on anyone's data, and that a round's model may depend on
  earlier batches (adaptive composition) but on nothing else that is private.

**With a chain of m shufflers** of which j work with the server, the figure is that with a proxy as
long as j < m, and that without one if j = m. One honest shuffler is enough, wherever it
stands: it gets whole batches and sends each on as a whole, in an order that it alone knows, and
nobody else can take its layer off; its key must stay secret, also later. What dishonest ones, or
the server, still can do:

- *make devices up.* The first shuffler and the server can fill a batch with reports of their own.
  `users` counts the honest ones alone, which no minimum can check;
- *leave reports out*, of whom they like before the honest one, and of nobody that they could name
  behind it. Every shuffler counts what it gets; who it was nobody behind the first one can say. A
  batch below the tier's minimum stops at the honest one.

Neighbouring in both: one user's whole data replaced by any other, the same users taking part.

The clone rate of the 2023 paper would give smaller figures. Its errata restrict the theorem to some
randomisers, and we have not shown ours to be one, so that it is used nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sottovoce.errors import ConfigError
from sottovoce.privacy.clones import (
    MOST_REPORTS,
    composed_epsilon,
    jointly_composed_epsilon,
    shuffled_report,
)

DELTA = 1e-6
EPSILONS = (1e-4, 50.0)
"""Smallest and largest ε of one report that we account for."""
SMALLEST_DELTA = 1e-100
MOST_USERS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Certificate:
    """The total cost for one user of `reports` reports in each of `rounds` rounds.

    `without_proxy` is pure ε-differential privacy. `with_proxy` is (ε, delta)-differential privacy
    for batches of at least `users` users.
    """

    epsilon: float
    reports: int
    rounds: int
    users: int
    delta: float
    without_proxy: float
    with_proxy: float


@dataclass(frozen=True, slots=True)
class Sent:
    """Reports that one user has sent."""

    reports: int
    """How many, over all rounds."""
    epsilon: float
    """ε of each; infinity for a release that can vouch for nothing."""
    batch: int
    """Users in the smallest batch in which a proxy handed them on; 0 where there was no proxy."""


@dataclass(frozen=True, slots=True)
class Account:
    """What everything that one user has sent costs her, by both certificates."""

    reports: int
    without_proxy: float
    with_proxy: float
    delta: float


def certify(
    epsilon: float, reports: int, rounds: int, users: int, delta: float = DELTA
) -> Certificate:
    """Return both certificates; `users` is the smallest batch of all rounds."""
    _check(epsilon, reports, rounds, users, delta)
    plain = reports * rounds * epsilon
    mixed = composed_epsilon(shuffled_report(users, epsilon, delta), reports * rounds, delta)
    # Each is a bound by itself; in the last digit the other may be rounded above the plain one.
    return Certificate(epsilon, reports, rounds, users, delta, plain, min(plain, mixed))


def account(sent: Iterable[Sent], delta: float = DELTA) -> Account:
    """Both certificates for what has left, over all tiers, batches and federations.

    The clone bounds of all kinds of reports are composed together. Reports that went through no
    proxy count in full; both figures are infinite where something left that nothing can be said of.
    Which tier she reported in, and when, must not have depended on her data.
    """
    _check_delta(delta)
    known = [kind for kind in sent if kind.reports > 0 and kind.epsilon > 0]
    reports = sum(kind.reports for kind in known)
    plain = math.fsum(kind.reports * kind.epsilon for kind in known)
    if not math.isfinite(plain):
        return Account(reports, math.inf, math.inf, delta)
    low, high = EPSILONS
    shuffled = [k for k in known if k.batch > 1 and low <= k.epsilon <= high]
    if sum(kind.reports for kind in shuffled) > MOST_REPORTS:
        shuffled = []
    rest = math.fsum(k.reports * k.epsilon for k in known if k not in shuffled)
    composed = jointly_composed_epsilon(
        [
            (shuffled_report(min(k.batch, MOST_USERS), k.epsilon, delta), k.reports)
            for k in shuffled
        ],
        delta,
    )
    return Account(reports, plain, min(plain, rest + composed), delta)


def rounds_left(limit: float, spent: float, epsilon: float, reports: int) -> float:
    """How many more rounds of so many reports the limit has room for by plain composition; infinity
    where there is no limit."""
    if not math.isfinite(limit):
        return math.inf
    # The small number: 0.3 / 0.1 is three rounds.
    room = limit * (1.0 + 1e-12) - spent
    return float(max(0, math.floor(room / (reports * epsilon) * (1.0 + 1e-12))))


def rounded_up(epsilon: float) -> float:
    """To three digits behind the point, so that what is shown is still a bound."""
    return math.ceil(round(epsilon * 1000, 6)) / 1000 if math.isfinite(epsilon) else epsilon


def _check(epsilon: float, reports: int, rounds: int, users: int, delta: float) -> None:
    low, high = EPSILONS
    if not low <= epsilon <= high:  # also where it is not a number
        why = "nothing would be protected" if epsilon > high else "no report would say anything"
        if not epsilon > 0:
            why = "a budget is above zero"
        raise ConfigError(
            f"ε of one report must lie in {low:g} to {high:g}, not {epsilon:g}: {why}"
        )
    for number, what in ((reports, "reports per round"), (rounds, "rounds"), (users, "users")):
        if number < 1:
            raise ConfigError(f"the number of {what} must be at least 1, not {number}")
    if reports * rounds > MOST_REPORTS:
        raise ConfigError(
            f"{reports:,} reports in each of {rounds:,} rounds are more than the "
            f"{MOST_REPORTS:,} that we account for; take fewer of either"
        )
    if users > MOST_USERS:
        raise ConfigError(f"{users:,} users are more than there are people; at most {MOST_USERS:,}")
    _check_delta(delta)


def _check_delta(delta: float) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise ConfigError(f"δ must lie between 0 and 1 (from {SMALLEST_DELTA:g}), not {delta:g}")
