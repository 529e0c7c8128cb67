"""What became of a user's vector when she hid attributes in a model that was trained already."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sottovoce.core.redacted import Redacted

REASONS = (
    "the filter tells nothing",
    "as far as permitted",
    "all steps taken",
    "the filter gives no number",
)
"""Why a vector stopped moving, or did not move."""
HIDDEN, FAR, TIRED, BROKEN = range(4)


@dataclass(frozen=True, slots=True, repr=False)
class Hidden(Redacted):
    """One user hid one or more attributes, and her vector moved at once. Nothing of it leaves."""

    user: int
    round: int
    """The round of the published model by whose filters it moved."""
    attributes: tuple[str, ...]
    before: float
    """How far the filters told something else of her than of anybody, summed over attributes:
    KL(target ‖ q). 0 if they give no number."""
    after: float
    moved: float
    """‖e′ − e‖₂"""
    steps: int
    reason: str
    """One of `REASONS`."""

    def to_table(self) -> dict[str, Any]:
        return asdict(self) | {"attributes": list(self.attributes)}
