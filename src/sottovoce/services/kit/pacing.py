"""How long a device waits before it asks again: jittered, so that devices do not come all at once,
and longer and longer where asking fails."""

from __future__ import annotations

import secrets
from collections.abc import Callable

LONGEST_BACK_OFF = 900.0
SHORTEST_TOLD = 1.0
_SHORTEST, _LONGEST = 0.01, 86400.0
_UNTOLD = 2.0
"""How often to ask a server that has not said it yet."""

Draw = Callable[[], float]
"""A number in [0, 1), drawn anew at each call."""

from_system: Draw = secrets.SystemRandom().random


class Pace:
    """The waits of one device."""

    def __init__(
        self, poll: float | None = None, draw: Draw = from_system, *, near: bool = False
    ) -> None:
        """`poll` holds whatever the server says. A server that is not `near`, on this machine, is
        not asked more often than every second at its own word."""
        self._fixed = poll
        self._shortest = _SHORTEST if near else SHORTEST_TOLD
        self._told = _UNTOLD
        self._draw = draw
        self._failures = 0

    def after_success(self, told: float) -> float:
        """Seconds to wait after the server answered and said how often to ask."""
        self._failures = 0
        self.heard(told)
        return self._poll * (0.75 + 0.5 * self._draw())

    def heard(self, told: float) -> None:
        """The server says how often to ask, whatever comes of it."""
        self._told = min(max(told, self._shortest), _LONGEST)

    def while_asked(self) -> float:
        """Seconds to wait while the owner has something to decide: as long as the server says, so
        that it goes on soon after she has."""
        if self._told == _UNTOLD and self._fixed is None:
            return self.after_failure()
        return self.after_success(self._told)

    def after_failure(self, retry_after: float = 0.0) -> float:
        """Seconds to wait after a failure: twice as long each time, up to a quarter of an hour, and
        never shorter than the server asked for."""
        longest = max(LONGEST_BACK_OFF, self._poll)
        wait = min(self._poll * 2.0 ** min(self._failures, 64), longest)
        self._failures += 1
        return max(wait * (0.5 + 0.5 * self._draw()), retry_after * (1.0 + 0.1 * self._draw()))

    @property
    def _poll(self) -> float:
        return self._told if self._fixed is None else self._fixed
