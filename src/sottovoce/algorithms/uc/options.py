"""What UC-FedRec can be told: its recommender, how it learns, which attributes have filters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.config import require_number, require_whole
from sottovoce.core.consent import Consent
from sottovoce.errors import ConfigError, ConsentError

RECOMMENDERS = ("mf", "ncf", "neumf", "gnn")
MOST_CLASSES = 10_000


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """An attribute that users may hide."""

    name: str
    classes: tuple[str, ...] = ()
    """Its values. In an experiment they come from the data."""
    shares: tuple[float, ...] = ()
    """How frequent each is, as everybody knows; in an experiment, among those who share it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "shares", tuple(self.shares))
        if not self.name:
            raise ConfigError("an attribute needs a name")
        if not self.classes and not self.shares:
            return
        if not 2 <= len(self.classes) <= MOST_CLASSES:
            raise ConfigError(
                f"{self.name} needs 2 to {MOST_CLASSES:,} classes, not {len(self.classes)}"
            )
        if len(set(self.classes)) != len(self.classes) or not all(self.classes):
            raise ConfigError(f"the classes of {self.name} must have names that differ")
        if len(self.shares) != len(self.classes):
            raise ConfigError(f"{self.name} needs one share per class")
        if not all(math.isfinite(s) and s >= 0 for s in self.shares) or not sum(self.shares) > 0:
            raise ConfigError(f"the shares of {self.name} must not be negative, nor all 0")

    def code(self, value: str | None) -> int:
        """The class of a value; -1 where it is none of them, or not known."""
        return self.classes.index(value) if value in self.classes else -1


@dataclass(frozen=True, slots=True)
class UCOptions(AlgorithmSettings):
    recommender: Literal["mf", "ncf", "neumf", "gnn"] = "mf"
    """What stands on the embeddings: nothing; a tower on each side; NeuMF; towers, of which the
    users' looks at the most similar users, too (in simulation only)."""
    embedding_size: int = 64
    """Length of a user's or item's embedding; d in the paper."""
    learning_rate: float = 0.1
    """Step size on users' embeddings and towers."""
    item_rate: float = 30.0
    """The same on items' embeddings: a step is on the mean over its pairs, of which an item is in
    few, and the server takes the mean over devices."""
    filter_rate: float = 0.03
    """The same on filters; for moments, what a round counts for against those before."""
    momentum: float = 0.9
    """What a local step keeps of the former one's direction."""
    reg: float = 3e-4
    """Pull of representations to 0."""
    dropout: float = 0.1
    """Share of a tower's units that a local step leaves out."""
    local_epochs: int = 10
    """Steps of a device in a round; E in the paper."""
    pairs: int = 256
    """Pairs of a liked and another item per step; n in the paper."""
    negatives: int = 1
    """Other items per liked one."""
    cohort_size: int = 512
    """Devices asked in a round; all where there are fewer."""
    rounds: int = 500
    """How many rounds are run."""
    cooling: float = 0.25
    """Share of the rounds, at the end, over which all step sizes fall to 0."""
    target: Literal["prior", "uniform"] = "prior"
    """What filters should say of those who hide an attribute: the classes' shares, or, as
    published, all classes alike, which marks them."""
    filters: Literal["moments", "two-layer", "deep"] = "moments"
    """How attributes are told apart: by the moments of those who share, which give every linear
    guess, by networks of two layers, as published, or by networks about as large as those of the
    published code. A network that tells nothing keeps no other attacker from telling."""
    furthest: float = 100.0
    """The longest way that a user's embedding moves when she hides an attribute in a model that
    is trained already; T in the paper."""
    init_scale: float = 0.035
    """Largest initial value of an embedding."""
    attributes: tuple[FilterConfig, ...] = ()
    """Attributes that users may hide, each with a filter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        if self.recommender not in RECOMMENDERS:
            raise ConfigError(
                f"recommender must be one of {list(RECOMMENDERS)}, not {self.recommender!r}"
            )
        if self.filters not in ("moments", "two-layer", "deep"):
            raise ConfigError(
                f'filters must be "moments", "two-layer" or "deep", not {self.filters!r}'
            )
        if self.target not in ("prior", "uniform"):
            raise ConfigError(f'target must be "prior" or "uniform", not {self.target!r}')
        require_whole("embedding_size", self.embedding_size, 5, 4096)
        require_whole("local_epochs", self.local_epochs, 1, 10_000)
        require_whole("pairs", self.pairs, 1, 1_000_000)
        require_whole("negatives", self.negatives, 1, 1_000)
        require_whole("cohort_size", self.cohort_size, 1)
        require_whole("rounds", self.rounds, 1, 10_000_000)
        for name in ("learning_rate", "item_rate", "filter_rate"):
            require_number(name, getattr(self, name), 0.0, 1e6)
        for name in ("momentum", "dropout", "cooling"):
            require_number(name, getattr(self, name), 0.0, 1.0, above=False)
        for name in ("momentum", "dropout"):
            if getattr(self, name) == 1:
                raise ConfigError(f"{name} must be below 1")
        require_number("reg", self.reg, 0.0, 1e3, above=False)
        require_number("init_scale", self.init_scale, 0.0, 1e3)
        require_number("furthest", self.furthest, 0.0, 1e12, above=False)
        names = self.names
        if len(set(names)) != len(names):
            raise ConfigError("attributes names one twice")

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes'."""
        return tuple(a.name for a in self.attributes)

    @property
    def as_printed(self) -> bool:
        """Filters of moments, and shares of classes as a target, are ours; NeuMF is another
        paper's."""
        printed = self.filters == "two-layer" and self.target == "uniform"
        return printed and self.recommender != "neumf"

    def searched(self) -> Mapping[str, str]:
        return {
            "learning_rate": "log:0.01:1",
            "item_rate": "log:3:300",
            "reg": "log:1e-5:1e-2",
            "embedding_size": "16,32,64",
        }

    @property
    def width(self) -> int:
        """Numbers per row of the model: an embedding, and a place where updates say 1, so that
        the server knows how many devices sent the row."""
        return self.embedding_size + 1

    def require_classes(self) -> None:
        """Raises where an attribute's classes are not known."""
        for attribute in self.attributes:
            if not attribute.classes:
                raise ConfigError(
                    f"the classes of the attribute {attribute.name!r} and their shares must be "
                    "named (classes, shares) if there are no data to tell them"
                )

    def hidden(self, consent: Consent) -> NDArray[np.bool_]:
        """[users, attributes]: what each hides, of the attributes that have filters. Raises where
        somebody who takes part hides another."""
        hidden = np.zeros((len(consent), len(self.attributes)), dtype=bool)
        for column, name in enumerate(consent.attributes):
            if name in self.names:
                hidden[:, self.names.index(name)] = consent.hidden_attributes[:, column]
            elif bool((consent.hidden_attributes[:, column] & consent.takes_part).any()):
                raise ConsentError(
                    f"hidden_attributes names {name!r}, for which this federation has no filter; "
                    f"it has filters for {list(self.names)}"
                )
        return hidden
