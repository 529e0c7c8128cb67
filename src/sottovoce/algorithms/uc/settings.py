"""The settings of UC-FedRec: a recommender, and filters for attributes that users may hide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, Schedule
from sottovoce.config import require_number, require_whole
from sottovoce.core.consent import Consent
from sottovoce.core.links import Link, has_noise
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError, ConsentError, DataError, UsageError

if TYPE_CHECKING:
    from sottovoce.algorithms.uc.system import UC

RECOMMENDERS = ("mf", "ncf", "neumf", "gnn")
SYSTEMS = {"mf": "MF", "ncf": "FedNCF", "neumf": "NeuMF", "gnn": "FedGNN"}
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


@ALGORITHMS.register("uc")
@dataclass(frozen=True, slots=True)
class UCConfig(AlgorithmSettings):
    releases: ClassVar[tuple[str, ...]] = ("clipped",)
    reads: ClassVar[tuple[str, ...]] = ("hidden_attributes", "strength")
    published: ClassVar[str] = ""
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
    cooling: float = 0.25
    """Share of the rounds, at the end, over which all step sizes fall to 0."""
    target: Literal["prior", "uniform"] = "prior"
    """What filters should say of those who hide an attribute: the classes' shares, or, as
    published, all classes alike, which marks them."""
    filters: Literal["moments", "two-layer", "deep"] = "moments"
    """How attributes are told apart: by the moments of those who share, which give every linear
    guess, by networks of two layers, as published, or by networks about as large as those of the
    published code. A network that tells nothing keeps no other attacker from telling."""
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
        names = self.names
        if len(set(names)) != len(names):
            raise ConfigError("attributes names one twice")

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes'."""
        return tuple(a.name for a in self.attributes)

    @property
    def width(self) -> int:
        """Numbers per row of the model: an embedding, and a place where updates say 1, so that
        the server knows how many devices sent the row."""
        return self.embedding_size + 1

    @property
    def system(self) -> str:
        """Its name in tables."""
        plain = SYSTEMS[self.recommender]
        return f"UC-{plain}" if self.attributes else plain

    def model_rows(self, n_items: int) -> int:
        """Rows of the model: items, towers, filters."""
        from sottovoce.algorithms.uc.rows import Layout

        return Layout.of(self, n_items).n_rows

    @property
    def counts_senders(self) -> bool:
        return True

    @property
    def looks_around(self) -> bool:
        return self.recommender == "gnn"

    def require_classes(self) -> None:
        """Raises where an attribute's classes are not known."""
        for attribute in self.attributes:
            if not attribute.classes:
                raise ConfigError(
                    f"the classes of the attribute {attribute.name!r} and their shares must be "
                    "named (classes, shares) where there are no data to tell them"
                )

    def build(self, clip: float, norm: Literal["l2", "l1", "scalar"], counted: bool = True) -> UC:
        """Both halves, under a release that clips so; where sums have noise, nothing is counted."""
        require_torch()
        from sottovoce.algorithms.uc.system import UC

        self.require_classes()
        return UC(self, clip, norm, counted)

    def build_under(self, release: Any, link: Link | None, triples: int) -> UC:
        return self.build(release.clip, release.norm, not has_noise(link))

    def check_terms(self) -> None:
        self.require_classes()
        if self.looks_around:
            raise ConfigError(
                "gnn looks at other users' embeddings, which no server here has; in a real "
                "federation choose mf, ncf or neumf"
            )

    @property
    def vector_space(self) -> tuple[object, ...]:
        return self.name, self.recommender

    def describe(self, plan: Schedule) -> str:
        return (
            "train for some steps at home and send how the rows of items and networks that they "
            "used have changed. Filters are trained by those who share an attribute, and pull the "
            "embeddings of those who hide it. The server takes means and publishes items, networks "
            "and filters; embeddings of users stay on their devices."
        )

    def advice(self, cohort_size: int) -> str:
        return "try more rounds, or another algorithm.item_rate; noise in updates costs most"

    def how_revealing(self, n_items: int) -> str:
        tells = ", and the value of each attribute that is shared" * bool(self.names)
        return (
            "with an update for each item that it learns from, as the terms have it, a single "
            f"report may tell much of the history{tells}"
        )

    def server_reads(self, release: Any, n_items: int) -> tuple[str, ...]:
        reader = "Whoever runs the server reads every report by itself and knows that it is yours"
        if release.dense:
            return f"{reader}, but for its noise.", *self._noisy_reports(release)
        networks = "" if self.recommender == "mf" else "; and of the recommender's networks"
        return (
            f"{reader}: your device's number, the round, and the address it came from.",
            "What leaves in a round: changes of some items' rows, by name, items of the history "
            f"among them{networks}.",
            "The server can compute from them which of the items are yours and, nearly, your "
            "embedding, which holds your tastes.",
            *self._filter_reports(),
            f"Each number has noise: its ε = {release.epsilon:g} bounds what one number tells, not "
            "what a report of thousands does."
            if release.adds_noise
            else "No ε bounds what it learns.",
        )

    def _noisy_reports(self, release: Any) -> list[str]:
        whose = ", also of the filters of hidden attributes" if self.attributes else ""
        told = [
            f"What leaves in a round: a change of every row of the model{whose}, with noise on "
            f"each number, by which a report costs ε = {release.epsilon:g} in all. What rounds "
            "cost adds up."
        ]
        if release.hiding_epsilon:
            told.append(
                "Who hides an attribute adds more noise, so that a report costs ε = "
                f"{release.hiding_epsilon:g}. How much noise there is can be seen: it tells that "
                "something is hidden."
            )
        return told

    def _filter_reports(self) -> list[str]:
        if not self.attributes:
            return []
        told = [
            "For each attribute that is shared, the change of its filter leaves, too, in which a "
            "server can read the value. Filters of which no change comes tell it what is hidden, "
            "or not known."
        ]
        if self.filters == "moments":
            told.append(
                "Who shares an attribute sends her embedding with it: all that the model knows of "
                "her tastes, from which what she hides may be guessed. Who alone shares an "
                "attribute shows her value to everybody who reads the model."
            )
        return told

    def on_data(
        self, attributes: Mapping[str, Labels], consent: Consent
    ) -> tuple[UCConfig, NDArray[np.int64]]:
        settings = self.resolved(attributes, consent)
        return settings, settings.labels(attributes, len(consent))

    def resolved(self, known: Mapping[str, Labels], consent: Consent) -> UCConfig:
        """With the classes of the data and their shares among those who take part and share them,
        where the file does not name them."""
        found = []
        for attribute in self.attributes:
            labels = _labels(known, attribute.name)
            if not attribute.classes:
                shown = consent.takes_part & (labels.codes >= 0)
                if attribute.name in consent.attributes:
                    column = consent.attributes.index(attribute.name)
                    shown &= ~consent.hidden_attributes[:, column]
                counts = np.bincount(labels.codes[shown], minlength=len(labels.values)) + 1.0
                shares = tuple((counts / counts.sum()).round(6).tolist())
                attribute = replace(attribute, classes=labels.values, shares=shares)
            found.append(attribute)
        return replace(self, attributes=tuple(found))

    def labels(self, known: Mapping[str, Labels], users: int) -> NDArray[np.int64]:
        """[users, attributes], by class; -1 where a value is not known, or is none of the
        classes."""
        columns = []
        for attribute in self.attributes:
            labels = _labels(known, attribute.name)
            codes = np.array([*(attribute.code(v) for v in labels.values), -1], dtype=np.int64)
            columns.append(codes[labels.codes])
        return np.stack(columns, axis=1) if columns else np.zeros((users, 0), dtype=np.int64)

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


def _labels(known: Mapping[str, Labels], name: str) -> Labels:
    if name not in known:
        has = ", ".join(known) or "none"
        raise DataError(f"the data have no user attribute {name!r}; they have: {has}")
    return known[name]


def require_torch() -> None:
    """Raises where PyTorch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError(
            'UC-FedRec needs PyTorch; install it with `pip install "sottovoce[torch]"`'
        ) from None
