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


@dataclass(frozen=True, slots=True)
class Proxied:
    """Through a proxy that strips who and when, mixes everybody's reports and cannot read them: the
    server sees the reports of a tier in an order that says nothing, and how many devices sent them.

    The proxy's address and certificate authority are part of the terms, so that a server cannot put
    another one in its place; in simulation there is none and both stay empty."""

    url: str = ""
    """Address of the proxy."""
    authority: str = ""
    """Certificate authority that vouches for it (PEM)."""

    sees: ClassVar[Sight] = MappingProxyType(
        {
            "proxy": {"BitReports": frozenset({"round", "sender", "tier"})},
            "server": {"Batch": frozenset({"round", "tier", "devices", "reports"})},
            "device": {"ModelView": frozenset({"round", "items"})},
        }
    )


Link = Direct | Proxied
