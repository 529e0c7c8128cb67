"""The FPL study on one data set: settings chosen on validation, results on test, nothing run twice.

A *cell* is one training run of one system, looked at after several epochs; its recommendation lists
are kept on disk, so that an interrupted study goes on where it was and figures share their runs.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.fpl.system import CONFIGURATIONS, FPLConfig
from sottovoce.baselines import BPRMF, Baseline
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, keep_active, temporal_holdout, validation_split
from sottovoce.engines.observers import AtRounds
from sottovoce.errors import CorruptData
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate, evaluate_lists
from sottovoce.experiment import shipped_folder
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import load_arrays, save_arrays
from sottovoce.runs.train import Report

# Results of training runs, kept on disk: an interrupted study goes on where it was, and figures
# share their runs.

Arrays = Mapping[str, NDArray[Any]]


def kept(
    folder: Path,
    prefix: str,
    key: Sequence[object],
    names: Iterable[str],
    train: Callable[[], Arrays],
) -> Arrays:
    """What the folder has of the run that `key` describes, which JSON can write. Where one of
    `names` is missing, train() is added to it. Files of a study begin with its prefix."""
    text = json.dumps(list(key), sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    path = folder / f"{prefix}{digest}.npz"
    found = load_arrays(path) if path.exists() else {}
    if not set(names) <= set(found):
        folder.mkdir(parents=True, exist_ok=True)
        found = {**found, **train()}
        save_arrays(path, **found)
    return found


Part = Literal["validation", "test"]
CHOSEN_BY = "P@10"
"""The validation metric by which settings are chosen."""


@dataclass(frozen=True, slots=True)
class StudyConfig:
    source: str = "foursquare-italy"
    min_user_items: int = 20
    test_fraction: float = 0.2
    seeds: tuple[int, ...] = (0, 1, 2)
    """Factor models are trained with each; their figures are means."""
    learning_rates: tuple[float, ...] = (0.005, 0.05, 0.5)
    embedding_sizes: tuple[int, ...] = (10, 20, 50)
    epochs: tuple[int, ...] = (10, 20, 30, 40, 50)
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    coarse_shares: tuple[float, ...] = (0.1, 0.2, 0.4, 0.7, 1.0)
    """Shares tried where FPL's own learning rate is tuned."""
    neighbours: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    vae_hidden: tuple[int, ...] = (200, 300, 600)
    vae_latent: tuple[int, ...] = (100, 100, 200)
    vae_epochs: tuple[int, ...] = (50, 100, 200)
    fcf_sizes: tuple[int, ...] = (10,)
    fcf_alphas: tuple[float, ...] = (4.0,)
    """Confidences of FCF as published."""
    fcf_regs: tuple[float, ...] = (10.0,)
    fcf_rates: tuple[float, ...] = (0.03,)
    """Learning rates of FCF as FPL's authors most likely ran it."""
    fcf_rounds: int = 50

    @classmethod
    def read(cls, name: str, quick: bool) -> StudyConfig:
        """The installed file of a table or figure; `quick` lays its [quick] table over [study]."""
        table = installed(name)
        below = installed(table["extends"]) if "extends" in table else {}
        study = below.get("study", {}) | table.get("study", {})
        if quick:
            study = study | below.get("quick", {}) | table.get("quick", {})
        return config.build(cls, study, "study")


def installed(name: str) -> dict[str, Any]:
    """The file of a published table or figure."""
    return tomllib.loads((shipped_folder("experiments") / "reproduce" / f"{name}.toml").read_text())


@dataclass(frozen=True, slots=True)
class Setting:
    """One system as trained: FPL in a configuration, or BPR-MF."""

    system: str
    learning_rate: float
    embedding_size: int
    share: float = 1.0

    def words(self) -> str:
        share = f", π={self.share:g}" if self.system in CONFIGURATIONS else ""
        return f"α={self.learning_rate:g}, F={self.embedding_size}{share}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A setting and how long to train it, chosen on validation."""

    setting: Setting
    epochs: float
    validation: float

    def words(self) -> str:
        return f"{self.setting.words()}, {self.epochs:g} epochs"


class Study:
    """Splits of one data set, and trained cells on them."""

    def __init__(self, settings: StudyConfig, cells: Path, threads: int, report: Report) -> None:
        self.config = settings
        self.dataset: Dataset = keep_active(load(settings.source), settings.min_user_items)
        self.test = temporal_holdout(self.dataset.interactions, settings.test_fraction)
        self.validation = validation_split(self.test, settings.test_fraction)
        self.protocol = Protocol()
        self.threads = threads
        self._report = report
        self._folder = cells
        self._fingerprint = self.dataset.fingerprint()

    def split(self, part: Part) -> Split:
        return self.test if part == "test" else self.validation

    def describe(self) -> str:
        train = self.test.train
        return (
            f"{self.dataset.name}, users with at least {self.config.min_user_items} items: "
            f"{train.n_users:,} users, {train.n_items:,} training items, "
            f"{train.n_interactions:,} training interactions; each user's latest "
            f"{self.config.test_fraction:.0%} held out; {self.protocol.describe()}; settings "
            f"chosen by {CHOSEN_BY} on the latest {self.config.test_fraction:.0%} of training, "
            "then trained on both"
        )

    # --- training ---------------------------------------------------------------------------------

    def fit(self, name: str, baseline: Baseline, part: Part) -> Evaluation:
        """A baseline that is trained once."""
        split = self.split(part)

        def train() -> Mapping[str, NDArray[np.int32]]:
            scorer = baseline.fit(split.train, Streams.from_seed(0).child("baseline", name))
            return {"lists": self._lists(scorer, split)}

        about = {"baseline": name, "settings": repr(baseline), "part": part}
        found = kept(self._folder, "", [self._fingerprint, about], ["lists"], train)
        return evaluate_lists(found["lists"], split.train, split.test, self.protocol)

    def train(
        self, setting: Setting, epochs: Sequence[float], part: Part, seed: int
    ) -> dict[float, Evaluation]:
        """A factor model after each of these numbers of epochs. A fraction of an epoch is rounded
        to whole rounds."""
        split = self.split(part)
        names = {f"{e:g}": e for e in sorted(epochs)}

        def train() -> Mapping[str, NDArray[np.int32]]:
            run = self._bpr if setting.system == "BPR-MF" else self._fpl
            return run(setting, names, split, seed)

        about = {"setting": repr(setting), "part": part, "seed": seed}
        lists = kept(self._folder, "", [self._fingerprint, about], names, train)
        return {
            e: evaluate_lists(lists[name], split.train, split.test, self.protocol)
            for name, e in names.items()
        }

    def train_many(
        self, what: str, jobs: Sequence[tuple[Setting, Sequence[float], Part, int]]
    ) -> list[dict[float, Evaluation]]:
        """Several cells, side by side on the study's threads."""
        done = 0
        self._report(what, 0, len(jobs))

        def one(job: tuple[Setting, Sequence[float], Part, int]) -> dict[float, Evaluation]:
            nonlocal done
            result = self.train(*job)
            done += 1
            self._report(what, done, len(jobs))
            return result

        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(one, jobs))

    # --- choosing ---------------------------------------------------------------------------------

    def choose(
        self, what: str, settings: Sequence[Setting], epochs: Sequence[float], seeds: Sequence[int]
    ) -> list[Chosen]:
        """All settings and epochs by mean validation score over the seeds, best first."""
        jobs = [(s, epochs, "validation", seed) for s in settings for seed in seeds]
        results = self.train_many(what, jobs)  # type: ignore[arg-type]
        scores: dict[tuple[Setting, float], list[float]] = {}
        for (setting, *_), by_epoch in zip(jobs, results, strict=True):
            for epoch, evaluation in by_epoch.items():
                scores.setdefault((setting, epoch), []).append(evaluation.mean(CHOSEN_BY))
        found = [Chosen(s, e, float(np.mean(v))) for (s, e), v in scores.items()]
        return sorted(found, key=lambda c: -c.validation)

    def final(self, what: str, chosen: Sequence[Chosen]) -> list[list[Evaluation]]:
        """Each choice, trained on all training data with every seed, on test."""
        jobs = [(c.setting, (c.epochs,), "test", s) for c in chosen for s in self.config.seeds]
        results = self.train_many(what, jobs)  # type: ignore[arg-type]
        flat = [next(iter(r.values())) for r in results]
        n = len(self.config.seeds)
        return [flat[k * n : (k + 1) * n] for k in range(len(chosen))]

    # --- inside -----------------------------------------------------------------------------------

    def _bpr(
        self, setting: Setting, names: Mapping[str, float], split: Split, seed: int
    ) -> dict[str, NDArray[np.int32]]:
        model = BPRMF(setting.embedding_size, setting.learning_rate)
        scorers = model.fit_steps(
            split.train, Streams.from_seed(seed), [round(e) for e in names.values()]
        )
        return {n: self._lists(s, split) for n, s in zip(names, scorers, strict=True)}

    def _fpl(
        self, setting: Setting, names: Mapping[str, float], split: Split, seed: int
    ) -> dict[str, NDArray[np.int32]]:
        train = split.train
        settings = FPLConfig(
            embedding_size=setting.embedding_size,
            learning_rate=setting.learning_rate,
            configuration=setting.system,
        )
        consent = Consent.uniform(
            np.arange(train.n_users, dtype=np.int64), Choice(share_positives=setting.share)
        )
        rng = Streams.from_seed(seed)
        federation = Federation.build(settings, train, consent, ShareFraction("draw"), rng)
        plan = federation.schedule
        stops = {max(1, round(e * plan.rounds_per_epoch)): n for n, e in names.items()}
        federation.schedule = replace(plan, rounds=max(stops))
        lists: dict[str, NDArray[np.int32]] = {}

        def look(moment: Any) -> None:
            lists[stops[moment.round]] = self._lists(federation.scorer(), split)

        federation.devices.ledger.keep_rows = False
        federation.run([AtRounds(tuple(stops), look)])
        return lists

    def _lists(self, scorer: Scorer, split: Split) -> NDArray[np.int32]:
        lists = evaluate(scorer, split.train, split.test, self.protocol, threads=1).lists
        if lists is None:
            raise CorruptData("full ranking gave no lists")
        return lists


def averaged(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The mean over seeds of each user's values, for paired tests. Lists are the first seed's."""
    first = evaluations[0]
    values = {
        name: np.mean([e.per_user(name) for e in evaluations], axis=0) for name in first.values
    }
    return replace(first, values=values)


def mean_summary(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """The mean over seeds of the summary."""
    summaries = [e.summary() for e in evaluations]
    return {name: float(np.mean([s[name] for s in summaries])) for name in summaries[0]}
