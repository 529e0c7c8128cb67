"""Links: by which way a report reaches the server, and what the server sees of its sender."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Direct:
    """Straight to the server, as in FPL's papers: it sees who sent which rows with which values."""
