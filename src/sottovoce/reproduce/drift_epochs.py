"""What the figures on an epoch's cost and on Θ share: DRIFT on the test split with the first seed,
by messages or all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.algorithms.blocks import Events, Model
from sottovoce.algorithms.drift import DRIFTConfig
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.engines.silo_simulation import SiloSimulation
from sottovoce.engines.silo_ways import Sealing
from sottovoce.errors import ConfigError, DataError
from sottovoce.reproduce.drift_study import DRIFT, DriftStudy, Job, StudyConfig, System, at_epoch
from sottovoce.rng import Streams
from sottovoce.running import Report


class EpochStudy(DriftStudy):
    """A study of one system, DRIFT by time with an owner for each genre."""

    def __init__(
        self,
        settings: StudyConfig,
        systems: Mapping[str, System],
        dataset: Dataset,
        cells: Path,
        threads: int,
        report: Report,
    ) -> None:
        super().__init__(settings, systems, dataset, cells, threads, report)
        component = systems[DRIFT].component(settings.positive_from[0])
        if not isinstance(component, AlgorithmSettings):
            raise ConfigError(f"[systems.{DRIFT}] must be of the kind drift")
        self.settings = replace(component, epochs=settings.epochs)
        train = self.test.train
        self.membership = dataset.category_matrix()[self.test.item_map[: train.n_items]]
        if not self.membership.any(axis=1).all():
            raise DataError(f"{dataset.name} has items without a category, which no owner holds")
        self.table = self.owners(self.test, systems[DRIFT])

    @property
    def test(self) -> Split:
        return self.split("test")

    @cached_property
    def events(self) -> Events:
        """The whole training part."""
        return Events.of(self.test.train, self.settings.positive_from, self.settings.order)

    def first(self, n: int) -> Events:
        """The first n interactions of the training part; all where n is 0."""
        e, n = self.events, n or len(self.events)
        return Events(e.user[:n], e.item[:n], e.positive[:n], e.time[:n], e.order)

    @property
    def seed(self) -> int:
        return self.config.seeds[0]

    def rng(self) -> Streams:
        return Streams.from_seed(self.seed)

    def start(self) -> Model:
        train = self.test.train
        return Model.start(train.n_users, train.n_items, self.settings.embedding_size, self.rng())

    def simulation(self, settings: DRIFTConfig, sealing: Sealing, **more: Any) -> SiloSimulation:
        users = range(self.test.n_users)
        return SiloSimulation(settings, self.table, users, self.rng(), sealing, **more)

    def trained(self) -> dict[int, dict[int, Model]]:
        """Models by Θ and epochs: after one, and after all."""
        ours, liked = self.systems[DRIFT], self.settings.positive_from
        jobs = [
            Job(
                replace(ours, label=f"Θ={theta}", settings={**ours.settings, "theta": theta}),
                liked, "test", self.seed,
            )
            for theta in self.config.thetas
        ]  # fmt: skip
        stops = sorted({1, self.config.epochs})
        return {
            theta: {stop: run.models[at_epoch(stop)] for stop in stops}
            for theta, run in zip(self.config.thetas, self.runs("training", jobs), strict=True)
        }

    def describe_data(self) -> str:
        copies = int(self.membership.sum(axis=1)[self.events.item].sum())
        return f"{super().describe_data()}; {copies:,} messages to owners"

    def describe(self) -> str:
        s = self.settings
        return (
            f"{self.test.protocol}; rated {s.positive_from:g} or better is liked; F="
            f"{s.embedding_size}, α={s.learning_rate:g}, μ={s.reg:g}, in the order of {s.order}"
        )


def same_model(one: Model, other: Model) -> bool:
    """Bit for bit."""
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)
