"""How an algorithm plays out on so many devices, and what a round of it takes."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Schedule:
    """How an algorithm plays out on N devices that hold X⁺ positives between them."""

    devices: int
    positives: int
    cohort_size: int
    triples: int
    """Draws per device and round; 0 where an algorithm draws no pairs."""
    rounds_per_epoch: int
    rounds: int

    def communication_cost(self, n_items: int, share_positives: float) -> float:
        """CCE of FPL in item rows exchanged per epoch, with whole T and rounds as they are run."""
        contacts = self.cohort_size * self.rounds_per_epoch
        return contacts * (n_items + self.triples * (1.0 + share_positives))

    @property
    def freshness(self) -> float:
        """Model versions per epoch, relative to one per positive (nFRSH)."""
        return self.rounds_per_epoch / self.positives


def require_devices(devices: int) -> None:
    """Raises where nobody takes part."""
    if devices < 1:
        raise ConfigError(
            "no device can take part: nobody both consents and has some, but not all, of the items"
        )


@dataclass(frozen=True, slots=True)
class Signs:
    """What a model's scores look like, by which it is told why a run ends near popularity. Of each
    user the scores are taken less their mean over all items."""

    spread: float
    """Their standard deviation."""
    common: float
    """The share of their variance that all users have in common: with 1 everybody has one list."""
