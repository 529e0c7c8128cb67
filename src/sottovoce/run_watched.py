"""Which rounds of a run attacks look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sottovoce.algorithms.base import Schedule
from sottovoce.engines.base import Listener
from sottovoce.links import Link
from sottovoce.messages import ModelView
from sottovoce.privacy.base import Release

MOST_MODEL_BYTES = 1 << 30
"""Of published models that are kept in memory, over all rounds."""
OFTEN, SELDOM = 20, 3
"""How many times each device is heard, about."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The rounds that are looked at."""

    whole: int
    """Of the first of them every message."""
    sums: tuple[int, ...] = ()
    """Of these the sum that the server opens, and the models before and after it."""

    @property
    def models(self) -> frozenset[int]:
        """Rounds behind the first ones whose models are looked at."""
        after = {n for round in self.sums for n in (round, round + 1)}
        return frozenset(after | ({self.whole} if self.sums else set()))

    @property
    def end(self) -> int:
        """The round after the last of them."""
        return self.sums[-1] + 1 if self.sums else self.whole

    def words(self, rounds: int) -> str:
        if not self.sums:
            return f"{self.whole:,} of {rounds:,} rounds"
        return (
            f"{self.whole:,} of {rounds:,} rounds, and the sums and models of {len(self.sums):,} "
            "more, spread to the last"
        )


def watched(
    release: Release, link: Link, plan: Schedule, model_bytes: int, rounds: int | None = None
) -> Watched:
    """So many rounds, or by default as many as it takes to hear each device `OFTEN` times; `SELDOM`
    times where whole tables are sent, which tell everything at once. No more than memory holds.

    Masked updates are large and look like noise. So behind a secure sum devices are heard `SELDOM`
    times. Of as many rounds as are left the sums are looked at: half of all are the first ones, in
    which vectors are read best, and half are spread over the rest of the run, to its end."""
    summed = link.summing is not None
    often = summed or release.reporting is not None or (plan.triples > 0 and plan.cohort_size > 1)
    count = rounds or _hearings(plan, OFTEN if often else SELDOM)
    room = MOST_MODEL_BYTES // max(1, model_bytes * (2 if summed else 1))
    count = max(1, min(plan.rounds, count, room if rounds is None else count))
    if not summed:
        return Watched(count)
    whole = min(count, _hearings(plan, SELDOM))
    first = max(whole, count // 2)
    spread = np.linspace(first, plan.rounds - 1, count - first).round().astype(int)
    return Watched(whole, (*range(whole, first), *np.unique(spread).tolist()))


def _hearings(plan: Schedule, times: int) -> int:
    """Rounds in which each device is heard so many times, about."""
    return max(1, -(-times * plan.devices // max(1, plan.cohort_size)))


class Only:
    """Passes on what of some rounds is looked at: sums, and models."""

    def __init__(self, look: Watched, listeners: list[Listener]) -> None:
        self._sums, self._models = frozenset(look.sums), look.models
        self._listeners = listeners

    def hear(self, party: str, message: object) -> None:
        wanted = self._models if isinstance(message, ModelView) else self._sums
        if message.round in wanted:  # type: ignore[attr-defined]
            for listener in self._listeners:
                listener.hear(party, message)
