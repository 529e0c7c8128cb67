"""The rules by which a server takes devices that nobody has invited: how many in all, how many of
one network, and how much work each has to show."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sottovoce.errors import ConfigError
from sottovoce.wire.invitations import MOST_BITS

HOUR, DAY = 3600, 86400
CALM = 100
"""Devices that may come within an hour before those behind them have more work to do."""
MORE_BITS = 4
"""Bits of work that a rush adds at most."""
MOST_PLACES = 10**9


@dataclass(frozen=True, slots=True)
class PlaceRules:
    """What the operator wants; without places nobody comes in without an invitation."""

    places: int = 0
    """Devices in all, ever: to shut one out gives no place back."""
    per_hour: int = 10
    """Devices of one network: an IPv4 address, or a /56 of IPv6."""
    per_day: int = 30
    bits: int = 18
    """Zero bits that the work of each must have when nobody else comes."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("places", 0, MOST_PLACES),
            ("per_hour", 1, MOST_PLACES),
            ("per_day", 1, MOST_PLACES),
            ("bits", 0, MOST_BITS - MORE_BITS),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must lie between {least} and {most:,}")

    def bits_after(self, lately: int) -> int:
        """Bits of work for the next one if so many came within the hour: one more whenever twice as
        many have come as are calm, up to a bound, so that a rush costs its makers and a visitor
        still gets in."""
        return self.bits + min(MORE_BITS, max(0, (lately // CALM).bit_length() - 1))


class Arrivals:
    """How many devices came from which network in this hour and on this day. A network is known by
    a hash under a key that is drawn for the hour, or the day, and thrown away with it; nothing is
    written anywhere. Not for several threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._spans = _Span(HOUR, clock, draw), _Span(DAY, clock, draw)

    def __repr__(self) -> str:
        return "<Arrivals, redacted>"

    @property
    def lately(self) -> int:
        """Devices that came within the hour."""
        return self._spans[0].total

    def wait(self, network: str, rules: PlaceRules) -> int:
        """Seconds until another device of this network may come; 0: now."""
        limits = rules.per_hour, rules.per_day
        return max(
            span.left if span.count(network) >= most else 0
            for span, most in zip(self._spans, limits, strict=True)
        )

    def came(self, network: str) -> None:
        """One device more; to be said before it has its place, so that several at once count."""
        for span in self._spans:
            span.add(network, 1)

    def went(self, network: str) -> None:
        """It got no place after all."""
        for span in self._spans:
            span.add(network, -1)

    def forget(self) -> int:
        """Throw away what is over, also if nobody comes; in how many seconds there is more."""
        for span in self._spans:
            span.forget()
        return self._spans[0].left


class _Span:
    """One hour after the other, or day."""

    def __init__(
        self, seconds: int, clock: Callable[[], float], draw: Callable[[int], bytes]
    ) -> None:
        self._seconds, self._clock, self._draw = seconds, clock, draw
        self._number, self._key = -1, b""
        self._counts: Counter[bytes] = Counter()

    @property
    def left(self) -> int:
        return self._seconds - int(self._clock() % self._seconds)

    @property
    def total(self) -> int:
        self.forget()
        return self._counts.total()

    def count(self, network: str) -> int:
        return self._counts[self._mark(network)]

    def add(self, network: str, more: int) -> None:
        mark = self._mark(network)
        self._counts[mark] = max(0, self._counts[mark] + more)
        if not self._counts[mark]:
            del self._counts[mark]

    def forget(self) -> None:
        now = int(self._clock() // self._seconds)
        if now != self._number:
            self._number, self._key, self._counts = now, self._draw(32), Counter()

    def _mark(self, network: str) -> bytes:
        self.forget()
        return hmac.digest(self._key, network.encode(), "sha256")[:16]
