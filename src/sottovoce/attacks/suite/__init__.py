"""The attack suite: a file for each attack, found by itself."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from sottovoce.attacks.views import Attack


@cache
def every_attack() -> tuple[Attack, ...]:
    """All attacks, by the names of their files. A file has one `ATTACK`, or several `ATTACKS`."""
    found: list[Attack] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        content = import_module(f"{__name__}.{module}")
        found += content.ATTACKS if hasattr(content, "ATTACKS") else [content.ATTACK]
    return tuple(found)
