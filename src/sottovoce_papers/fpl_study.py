"""FPL and its baselines on one data set: settings chosen on validation, results on test. A cell
keeps the recommendation lists of one training, after several numbers of epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import CONFIGURATIONS, FPLConfig
from sottovoce.baselines import (
    BPRMF,
    Baseline,
    ItemKNN,
    MultVAE,
    Progress,
    Random,
    TopPop,
    UserKNN,
)
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, keep_active, temporal_holdout, validation_split
from sottovoce.engines.observers import AtRounds
from sottovoce.errors import CorruptData, Diverged, UsageError
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate, evaluate_lists
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import Report
from sottovoce_papers.study import Part, Study, repr_as, settings_of

CHOSEN_BY = "P@10"
"""The validation metric by which settings are chosen."""
FCF, FCF_IN_FPL = "FCF", "FCF (as in FPL)"
"""As published, and as FPL's authors most likely ran it."""
Lists = NDArray[np.int32]
B = TypeVar("B", bound=Baseline)


@dataclass(frozen=True, slots=True)
class FPLStudyConfig:
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


@dataclass(frozen=True, slots=True)
class FPLSetting:
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

    setting: FPLSetting
    epochs: float
    validation: float

    def words(self) -> str:
        return f"{self.setting.words()}, {self.epochs:g} epochs"


@dataclass(frozen=True, slots=True, repr=False)
class Evaluated:
    """One line of a table: a system, its settings in words, and a training for each seed."""

    system: str
    settings: str
    evaluations: Sequence[Evaluation]

    def summary(self) -> dict[str, float]:
        return mean_summary(self.evaluations)


@dataclass(frozen=True, slots=True)
class FCFBaseline(Baseline):
    """FCF with everybody taking part, in the shape of a baseline."""

    settings: FCFConfig

    def fit(self, train: Interactions, rng: Streams, progress: Progress | None = None) -> Scorer:
        users = np.arange(train.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(share_positives=1.0))
        federation = Federation.build(self.settings, train, consent, Everything(), rng)
        federation.devices.ledger.keep_rows = False
        federation.run()
        return federation.scorer()

    def words(self) -> str:
        s = self.settings
        alpha = f", confidence 1+{s.alpha:g}" if s.variant == "paper" else ""
        return f"rate {s.learning_rate:g}, F={s.embedding_size}, λ={s.reg:g}{alpha}"


Job = tuple[FPLSetting, Sequence[float], Part, int]
"""A setting, after which numbers of epochs it is looked at, the split, and the seed."""


class FPLStudy(Study):
    """Splits of one data set, and trained cells on them."""

    def __init__(self, settings: FPLStudyConfig, cells: Path, threads: int, report: Report) -> None:
        super().__init__(cells, threads, report)
        self.config = settings
        self.dataset: Dataset = keep_active(load(settings.source), settings.min_user_items)
        self.test = temporal_holdout(self.dataset.interactions, settings.test_fraction)
        self.validation = validation_split(self.test, settings.test_fraction)
        self.protocol = Protocol()
        self._fingerprint = self.dataset.fingerprint()

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        return cls(settings_of(FPLStudyConfig, name, quick), cells, threads, report)

    def split(self, part: Part) -> Split:
        return self.test if part == "test" else self.validation

    def describe_data(self) -> str:
        return self.dataset.name

    def describe(self) -> str:
        train, held = self.test.train, f"{self.config.test_fraction:.0%}"
        return (
            f"{self.dataset.name}, users with at least {self.config.min_user_items} items: "
            f"{train.n_users:,} users, {train.n_items:,} training items, "
            f"{train.n_interactions:,} training interactions; each user's latest "
            f"{held} held out; {self.protocol.describe()}; settings chosen by {CHOSEN_BY} on the "
            f"latest {held} of training, then trained on both"
        )

    # --- training ---------------------------------------------------------------------------------

    def fit(self, name: str, baseline: Baseline, part: Part) -> Evaluation:
        """A baseline that is trained once."""
        split = self.split(part)

        def train() -> Mapping[str, Lists]:
            rng, told = Streams.from_seed(0).child("baseline", name), partial(self.report, name)
            scorer = baseline.fit(split.train, rng, told)
            return {"lists": self._lists(scorer, split)}

        fcf = isinstance(baseline, FCFBaseline)
        settings = repr_as("Federated", baseline) if fcf else repr(baseline)
        about = {"baseline": name, "settings": settings, "part": part}
        found = self.kept([self._fingerprint, about], ["lists"], train)
        return evaluate_lists(found["lists"], split.train, split.test, self.protocol)

    def best(self, name: str, tried: Iterable[B]) -> tuple[B, Evaluation]:
        """The baseline that does best on validation, and what it does on test."""
        every = list(tried)
        worth = self.many(f"{name} on validation", partial(self._validated, name), every, threads=1)
        best = every[int(np.argmax(worth))]
        return best, self.fit(name, best, "test")

    def _validated(self, name: str, one: Baseline) -> float:
        try:
            return self.fit(name, one, "validation").mean(CHOSEN_BY)
        except Diverged:
            return -1.0

    def train(
        self, setting: FPLSetting, epochs: Sequence[float], part: Part, seed: int
    ) -> dict[float, Evaluation]:
        """A factor model after each of these numbers of epochs. A fraction of an epoch is rounded
        to whole rounds."""
        split = self.split(part)
        names = {f"{e:g}": e for e in sorted(epochs)}

        def train() -> Mapping[str, Lists]:
            run = self._bpr if setting.system == "BPR-MF" else self._fpl
            return run(setting, names, split, seed)

        about = {"setting": repr_as("Setting", setting), "part": part, "seed": seed}
        lists = self.kept([self._fingerprint, about], names, train)
        return {
            e: evaluate_lists(lists[name], split.train, split.test, self.protocol)
            for name, e in names.items()
        }

    def choose(
        self,
        what: str,
        settings: Sequence[FPLSetting],
        epochs: Sequence[float],
        seeds: Sequence[int],
    ) -> list[Chosen]:
        """All settings and epochs by mean validation score over the seeds, best first."""
        jobs: list[Job] = [(s, epochs, "validation", seed) for s in settings for seed in seeds]
        scores: dict[tuple[FPLSetting, float], list[float]] = {}
        results = self.many(what, lambda job: self.train(*job), jobs)
        for (setting, *_), by_epoch in zip(jobs, results, strict=True):
            for epoch, evaluation in by_epoch.items():
                scores.setdefault((setting, epoch), []).append(evaluation.mean(CHOSEN_BY))
        found = [Chosen(s, e, float(np.mean(v))) for (s, e), v in scores.items()]
        return sorted(found, key=lambda c: -c.validation)

    def final(self, what: str, chosen: Sequence[Chosen]) -> list[list[Evaluation]]:
        """Each choice, trained on all training data with every seed, on test."""
        seeds = self.config.seeds
        jobs: list[Job] = [(c.setting, (c.epochs,), "test", s) for c in chosen for s in seeds]
        results = self.many(what, lambda job: self.train(*job), jobs)
        flat = [next(iter(r.values())) for r in results]
        n = len(seeds)
        return [flat[k * n : (k + 1) * n] for k in range(len(chosen))]

    def _bpr(
        self, setting: FPLSetting, names: Mapping[str, float], split: Split, seed: int
    ) -> dict[str, Lists]:
        model = BPRMF(setting.embedding_size, setting.learning_rate)
        stops = [round(e) for e in names.values()]
        scorers = model.fit_steps(split.train, Streams.from_seed(seed), stops)
        return {n: self._lists(s, split) for n, s in zip(names, scorers, strict=True)}

    def _fpl(
        self, setting: FPLSetting, names: Mapping[str, float], split: Split, seed: int
    ) -> dict[str, Lists]:
        train = split.train
        settings = FPLConfig(
            embedding_size=setting.embedding_size,
            learning_rate=setting.learning_rate,
            configuration=setting.system,
        )
        users = np.arange(train.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(share_positives=setting.share))
        rng = Streams.from_seed(seed)
        federation = Federation.build(settings, train, consent, ShareFraction("draw"), rng)
        plan = federation.schedule
        stops = {max(1, round(e * plan.rounds_per_epoch)): n for n, e in names.items()}
        federation.schedule = replace(plan, rounds=max(stops))
        lists: dict[str, Lists] = {}

        def look(moment: Any) -> None:
            lists[stops[moment.round]] = self._lists(federation.scorer(), split)

        federation.devices.ledger.keep_rows = False
        federation.run([AtRounds(tuple(stops), look)])
        return lists

    def _lists(self, scorer: Scorer, split: Split) -> Lists:
        lists = evaluate(scorer, split.train, split.test, self.protocol, threads=1).lists
        if lists is None:
            raise CorruptData("full ranking gave no lists")
        return lists


# --- what is chosen ------------------------------------------------------------------------------


def _grid(
    study: FPLStudy, system: str, rate: float, size: int, coarse: bool = False
) -> list[FPLSetting]:
    shares = study.config.coarse_shares if coarse else study.config.shares
    return [FPLSetting(system, rate, size, share) for share in shares]


def choose_bpr(study: FPLStudy) -> list[Chosen]:
    """BPR-MF's learning rate, size and epochs, best first. FPL inherits the best."""
    config = study.config
    settings = [
        FPLSetting("BPR-MF", rate, size)
        for rate in config.learning_rates
        for size in config.embedding_sizes
    ]
    return study.choose("BPR-MF on validation", settings, config.epochs, config.seeds)


def choose_fpl(study: FPLStudy, bpr: Chosen) -> dict[float, dict[str, Chosen]]:
    """π and epochs of each configuration, by learning rate: first BPR-MF's with every π, then the
    others with a coarser grid."""
    inherited, size = bpr.setting.learning_rate, bpr.setting.embedding_size
    others = [rate for rate in study.config.learning_rates if rate != inherited]
    return {
        rate: {
            name: study.choose(
                f"{name} on validation, α={rate:g}",
                _grid(study, name, rate, size, coarse=rate != inherited),
                study.config.epochs,
                study.config.seeds[:1],
            )[0]
            for name in CONFIGURATIONS
        }
        for rate in (inherited, *others)
    }


def best_rates(by_rate: Mapping[float, Mapping[str, Chosen]]) -> dict[str, Chosen]:
    """Each configuration with the learning rate that suits it best."""
    return {
        name: max((found[name] for found in by_rate.values()), key=lambda c: c.validation)
        for name in CONFIGURATIONS
    }


def choose_equal_work(study: FPLStudy, bpr: Chosen) -> dict[str, Chosen]:
    """Every configuration with the triples that a single-draw one makes in the longest training.
    π is chosen for that budget."""
    longest, train = max(study.config.epochs), study.test.train
    triples = train.n_interactions // train.n_users  # T of the "+" configurations
    rate, size = bpr.setting.learning_rate, bpr.setting.embedding_size
    return {
        name: study.choose(
            f"{name} at equal triples",
            _grid(study, name, rate, size),
            [longest / triples if name.endswith("+") else longest],
            study.config.seeds[:1],
        )[0]
        for name in CONFIGURATIONS
    }


def baseline_rows(study: FPLStudy) -> tuple[list[Evaluated], list[str]]:
    """Baselines trained once; kNN and the VAE with validation-chosen settings."""
    config, notes = study.config, []
    rows = [
        Evaluated(name, "", [study.fit(name, model, "test")])
        for name, model in (("Random", Random()), ("Top-Pop", TopPop()))
    ]
    for name, kind in (("User-kNN", UserKNN), ("Item-kNN", ItemKNN)):
        knn, found = study.best(name, [kind(neighbors=k) for k in config.neighbours])
        rows.append(Evaluated(name, f"k={knn.neighbors}", [found]))
    sizes = zip(config.vae_hidden, config.vae_latent, strict=True)
    tried = [
        MultVAE(hidden_size=hidden, embedding_size=latent, epochs=epochs)
        for hidden, latent in sizes
        for epochs in config.vae_epochs
    ]
    try:
        vae, found = study.best("VAE", tried)
        words = f"{vae.hidden_size}-{vae.embedding_size}-{vae.hidden_size}, {vae.epochs} epochs"
        rows.append(Evaluated("VAE", words, [found]))
    except UsageError as error:
        notes.append(f"VAE left out: {error}")
    return rows, notes


def fcf_rows(study: FPLStudy) -> list[Evaluated]:
    """FCF as published and as FPL's authors most likely ran it, with what validation chose."""
    c = study.config
    published = [
        FCFConfig(embedding_size=size, alpha=alpha, reg=reg, rounds=c.fcf_rounds)
        for size in c.fcf_sizes
        for alpha in c.fcf_alphas
        for reg in c.fcf_regs
    ]
    in_fpl = [
        FCFConfig(embedding_size=size, learning_rate=rate, rounds=c.fcf_rounds, variant="fpl")
        for size in c.fcf_sizes
        for rate in c.fcf_rates
    ]
    rows = []
    for name, tried in ((FCF, published), (FCF_IN_FPL, in_fpl)):
        best, found = study.best(name, [FCFBaseline(one) for one in tried])
        rows.append(Evaluated(name, best.words(), [found]))
    return rows


def mean_summary(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """The mean over seeds of the summary."""
    summaries = [e.summary() for e in evaluations]
    return {name: float(np.mean([s[name] for s in summaries])) for name in summaries[0]}
