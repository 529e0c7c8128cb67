"""Kinds of systems that several papers compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from sottovoce import config
from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.baselines import BASELINES, Baseline
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.engines.observers import AtRounds, Moment
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.privacy.base import Release
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce_papers.claims import Row, StudyLine, interval
from sottovoce_papers.lines import END, Job, Kind, Settings, TrainedSystem
from sottovoce_papers.worlds import StudyWorld


class BaselineKind(Kind):
    """A baseline of the library, `name` among its settings; each length is trained for itself."""

    def along(self, settings: Settings) -> str:
        return "epochs" if "epochs" in settings else ""

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        kind: Any = self._class(settings)
        usual = {field.name: field.default for field in fields(kind)}
        return {"epochs": usual["epochs"], **settings} if "epochs" in usual else settings

    def key(self, job: Job) -> object:
        return self.component(job.settings)

    def train(self, job: Job) -> TrainedSystem:
        looks = {}
        for stop in job.stops:
            length = {"epochs": int(stop)} if stop != END else {}
            model = self.component({**job.settings, **length})
            looks[stop] = job.measure(model.fit(job.split.train, self.rng(job)))
        return TrainedSystem(looks)

    def rng(self, job: Job) -> Streams:
        """What it draws from."""
        return Streams.from_seed(job.seed)

    def component(self, settings: Settings) -> Baseline:
        values: dict[str, Any] = {k: v for k, v in settings.items() if k != "name"}
        return config.build(self._class(settings), values, str(settings["name"]))

    def _class(self, settings: Settings) -> type[Baseline]:
        name = settings.get("name")
        if name not in BASELINES:
            raise ConfigError(f"there is no baseline {name!r}; there are {', '.join(BASELINES)}")
        return BASELINES[str(name)]


# --- federations ---------------------------------------------------------------------------------


def alike(
    settings: AlgorithmSettings, train: Interactions, choice: Choice, release: Release, rng: Streams
) -> Federation:
    """Return a federation of which all users make the same choice; its ledger keeps no rows."""
    consent = Consent.uniform(np.arange(train.n_users, dtype=np.int64), choice)
    made = Federation.build(settings, train, consent, release, rng)
    made.devices.ledger.keep_rows = False
    return made


def watched(
    federation: Federation, job: Job, stops: Mapping[int, float]
) -> dict[float, Evaluation]:
    """Run a federation, and measure it after these rounds, each of which stands for a length."""
    looks: dict[float, Evaluation] = {}

    def look(moment: Moment) -> None:
        looks[stops[moment.round]] = job.measure(federation.scorer())

    federation.run([AtRounds(tuple(stops), look)])
    return looks


# --- columns -------------------------------------------------------------------------------------


def over_users(line: StudyLine) -> Row:
    """Return the mean of every figure over users and half of its 95 % interval, and how long a
    training took."""
    if not line.runs:
        return {}
    values = line.over_seeds().values
    row: Row = {name: float(figures.mean()) for name, figures in values.items()}
    row |= {f"{name} half": interval(figures) for name, figures in values.items()}
    return row | {"seconds": min(one["seconds"] for one in line.facts)}
