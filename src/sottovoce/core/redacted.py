"""Private things do not print what they hold."""

from __future__ import annotations

from collections.abc import Sized


class Redacted:
    """Says what it is, and how many it is of, and nothing of what it holds. A dataclass that
    derives from it needs `repr=False`."""

    __slots__ = ()

    def __repr__(self) -> str:
        size = f" of {len(self):,}" if isinstance(self, Sized) else ""
        return f"<{type(self).__name__}{size}, redacted>"
