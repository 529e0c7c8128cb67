"""Public names of which some have no docstring: the check of docstrings must find these."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dumb:
    size: int = 1

    def act(self) -> None: ...

    def _hidden(self) -> None: ...


@dataclass(frozen=True)
class Said:
    """It has words."""

    size: int = 1
    """How large it is."""

    @property
    def half(self) -> float:
        """It is half of it."""
        return self.size / 2


def silent() -> None: ...


def spoken() -> None:
    """It does nothing."""
