"""Links: by which way a report reaches the server, and what each party sees on it.

`sees` is the sight table: for every party, the fields of every message that reaches it. A test
records what arrives and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

Sight = Mapping[str, Mapping[str, frozenset[str]]]
"""Party → message → fields."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Straight to the server, as in FPL's papers: it sees who sent which rows with which values."""

    sees: ClassVar[Sight] = MappingProxyType(
        {
            "server": {"DeviceReports": frozenset({"round", "sender", "item", "values"})},
            "device": {"ModelView": frozenset({"round", "items"})},
        }
    )
