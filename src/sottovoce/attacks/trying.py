"""What may go wrong with an attack that is tried, and how that is told: the other attacks go on."""

from __future__ import annotations

import traceback
from pathlib import Path

from sottovoce.core.installed import needs
from sottovoce.errors import SottovoceError

FAULTS = (
    *(SottovoceError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, NameError, OSError, RuntimeError, StopIteration, TypeError, ValueError),
)
"""What a bug in an attack raises, or a library that is missing."""


def trouble(error: Exception) -> str:
    """What went wrong, without values, which may be private."""
    if isinstance(error, SottovoceError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"it {needs(error.name or 'a library')}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"{type(error).__name__} in {place.name} ({where})"
