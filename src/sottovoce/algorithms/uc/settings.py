"""The settings of UC-FedRec: a recommender, and filters for attributes that users may hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import ALGORITHMS, Schedule
from sottovoce.algorithms.uc.options import FilterConfig as FilterConfig
from sottovoce.algorithms.uc.options import UCOptions
from sottovoce.core.consent import Consent
from sottovoce.core.installed import needs
from sottovoce.core.links import Link, has_noise
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError, DataError, UsageError

if TYPE_CHECKING:
    from sottovoce.algorithms.uc.system import UC

SYSTEMS = {"mf": "MF", "ncf": "FedNCF", "neumf": "NeuMF", "gnn": "FedGNN"}


@ALGORITHMS.register("uc")
@dataclass(frozen=True, slots=True)
class UCConfig(UCOptions):
    releases: ClassVar[tuple[str, ...]] = ("clipped",)
    reads: ClassVar[tuple[str, ...]] = ("hidden_attributes", "strength", "strengths")
    published: ClassVar[str] = ""

    @property
    def system(self) -> str:
        """Its name in tables."""
        plain = SYSTEMS[self.recommender]
        return f"UC-{plain}" if self.attributes else plain

    def model_rows(self, n_items: int) -> int:
        """Rows of the model: items, towers, filters."""
        from sottovoce.algorithms.uc.rows import ModelLayout

        return ModelLayout.of(self, n_items).n_rows

    @property
    def counts_senders(self) -> bool:
        return True

    @property
    def needs_whole_cohort(self) -> bool:
        return self.recommender == "gnn"

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
        if self.needs_whole_cohort:
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

    def on_data(
        self,
        attributes: Mapping[str, Labels],
        consent: Consent,
        n_items: int,
        release: Any,
        places: bool = False,
        ranks: Ranks = ALONE,
    ) -> tuple[UCConfig, NDArray[np.int64]]:
        settings = self.resolved(attributes, consent, ranks)
        return settings, settings.labels(attributes, len(consent))

    def resolved(
        self, known: Mapping[str, Labels], consent: Consent, ranks: Ranks = ALONE
    ) -> UCConfig:
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
                here = np.bincount(labels.codes[shown], minlength=len(labels.values))
                counts = ranks.all_sum(here.astype(np.int64)) + 1.0
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


def _labels(known: Mapping[str, Labels], name: str) -> Labels:
    if name not in known:
        has = ", ".join(known) or "none"
        raise DataError(
            f"the data have no user attribute {name!r}; they have: {has}; take data that have it, "
            "or name others in algorithm.attributes"
        )
    return known[name]


def require_torch() -> None:
    """Raises where PyTorch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError(f"UC-FedRec {needs('torch')}") from None
