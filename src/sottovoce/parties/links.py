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


@dataclass(frozen=True, slots=True)
class Gateway:
    """Through an organisation that hosts the devices, as on Flower: the server sees the sum over
    those of a cohort that took part, how many they were, and who is willing."""

    sees: ClassVar[Sight] = MappingProxyType(
        {
            "server": {
                "Answer": frozenset(
                    {"willing", "kept", "round", "attempt", "sum", "devices", "problem"}
                ),
                "SummedReports": frozenset({"round", "item", "sums", "devices"}),
            },
            "gateway": {"ModelView": frozenset({"round", "items"})},
        }
    )
