"""FedGNN of Wu et al.: how well it recommends beside popularity and matrix factorisation, and what
A11 makes of its pseudo items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from sottovoce import config
from sottovoce.attacks.drift import ClaimOutcome
from sottovoce.baselines import BPRMF, Baseline, TopPop
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.sources import load
from sottovoce.data.splitting import temporal_holdout
from sottovoce.errors import ConfigError, DataNotFound
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate, evaluate_lists
from sottovoce.evaluation.tables import Column
from sottovoce.rng import Streams
from sottovoce.runs.train import Report
from sottovoce_papers.study import (
    Arrays,
    Claim,
    Row,
    Study,
    claim,
    count_of,
    installed,
    interval,
    shown,
)
from sottovoce_papers.wu_graph import KEY_BYTES, device_part, device_tokens
from sottovoce_papers.wu_item_sets import (
    by_direction,
    by_frequency,
    by_popularity,
    by_recurrence,
    score,
    score_names,
    sights,
)
from sottovoce_papers.wu_matcher import Matcher
from sottovoce_papers.wu_system import Uploads, WuConfig, WuFedGNN

NAME = "wu-fedgnn"
METRICS = ("P@10", "NDCG@10", "HR@10")
POPULAR, FACTORS = "Top-Pop", "BPR-MF"
PRINTED, FIXED = "printed", "fixed"
KEY = bytes(KEY_BYTES)
"""What devices share and the third party does not have. A study has no secrets."""


@dataclass(frozen=True, slots=True)
class WuStudyConfig:
    sources: tuple[str, ...] = ("town",)
    """Data sets; the first that is there is taken."""
    test_fraction: float = 0.2
    seeds: tuple[int, ...] = (0,)
    watched: int = 200
    """Users whose uploads are attacked, the first ones: all of them would fill memory."""
    neighbours: int = 20
    """Whom the third party tells a device of, for each item at most."""
    top: int = 50
    """Tokens that the third party tries to name."""

    def __post_init__(self) -> None:
        if not self.sources or not self.seeds:
            raise ConfigError("study.sources and study.seeds must not be empty")


@dataclass(frozen=True, slots=True)
class WuVariant:
    """FedGNN in one way."""

    label: str
    settings: WuConfig


@dataclass(frozen=True, slots=True, repr=False)
class WuCell:
    """One training: how well it recommends, and how many claims of each attack were true."""

    evaluation: Evaluation
    outcomes: Sequence[ClaimOutcome]


class WuStudy(Study):
    """Trainings on one data set, each user's latest items held out."""

    prefix = "wu-"

    def __init__(
        self,
        settings: WuStudyConfig,
        variants: Mapping[str, WuVariant],
        dataset: Dataset,
        cells: Path,
        threads: int,
        report: Report,
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.variants, self.dataset = settings, variants, dataset
        self.split = temporal_holdout(dataset.interactions, settings.test_fraction)
        self._fingerprint = dataset.fingerprint()

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        settings = config.build(WuStudyConfig, table["study"], "study")
        variants = {
            key: WuVariant(
                one["label"],
                config.build(WuConfig, table["settings"] | one["settings"], f"systems.{key}"),
            )
            for key, one in table["systems"].items()
        }
        return cls(settings, variants, first_there(settings.sources), cells, threads, report)

    def describe_data(self) -> str:
        train = self.split.train
        return (
            f"{self.dataset.name}: {train.n_users:,} users, {train.n_items:,} training items, "
            f"{train.n_interactions:,} training interactions"
        )

    def describe(self) -> str:
        return (
            f"each user's latest {self.config.test_fraction:.0%} held out; "
            f"{Protocol().describe()}; {count_of(self.config.seeds)}; attacks on the uploads of "
            f"the first {self.config.watched:,} users in all passes"
        )

    def baseline(self, name: str, model: Baseline, seed: int) -> Evaluation:
        def train() -> Arrays:
            return self._lists(model.fit(self.split.train, Streams.from_seed(seed)))

        return self._evaluation(
            self.kept(["wu", self._fingerprint, name, repr(model), seed], ["lists"], train)
        )

    def cell(self, settings: WuConfig, seed: int) -> WuCell:
        c = self.config
        about = [c.test_fraction, c.watched, c.neighbours, c.top]
        key = ["wu", self._fingerprint, repr(settings), *about, seed]
        found = self.kept(key, ["lists", "outcomes"], lambda: self._train(settings, seed))
        outcomes = [ClaimOutcome(*one) for one in json.loads(str(found["outcomes"]))]
        return WuCell(self._evaluation(found), outcomes)

    def _train(self, settings: WuConfig, seed: int) -> Arrays:
        train, rng = self.split.train, Streams.from_seed(seed)
        matcher = Matcher(self.config.neighbours)
        seen: list[Uploads] = []

        def observe(round: int, model: object, sent: Uploads) -> None:
            mine = sent.users < self.config.watched
            if mine.any():
                seen.append(
                    replace(sent, users=sent.users[mine], items=sent.items[mine],
                            rows=sent.rows[mine], layer=sent.layer[mine])
                )  # fmt: skip

        scorer = WuFedGNN(settings).fit(train, rng, matcher, key=KEY, observe=observe)
        users = np.arange(train.n_users)
        own = device_part(train, users, settings.most_items, rng.child("fedgnn"))
        known, pseudo = sights(seen), settings.pseudo_items
        claims = [by_recurrence(known), by_popularity(known, pseudo), by_direction(known, pseudo)]
        names = by_frequency(*matcher.counted(), train.item_counts, self.config.top)
        outcomes = [
            *[score(one, known, own) for one in claims],
            score_names(*names, device_tokens(KEY, np.arange(train.n_items))),
        ]
        kept = [(o.attack, o.party, o.claimed, o.right, o.there, o.base_rate) for o in outcomes]
        return {**self._lists(scorer), "outcomes": np.array(json.dumps(kept))}

    def _lists(self, scorer: Scorer) -> Arrays:
        found = evaluate(scorer, self.split.train, self.split.test, threads=1).lists
        return {} if found is None else {"lists": found}

    def _evaluation(self, found: Arrays) -> Evaluation:
        return evaluate_lists(found["lists"], self.split.train, self.split.test)


def first_there(sources: Sequence[str]) -> Dataset:
    """The first of these data sets that is on this machine."""
    for source in sources[:-1]:
        try:
            return load(source)
        except DataNotFound:
            continue
    return load(sources[-1])


def wu_fedgnn(study: WuStudy, out: Path) -> dict[str, Any]:
    seeds = study.config.seeds
    found: dict[str, list[Evaluation]] = {
        name: [study.baseline(name, model, seed) for seed in seeds]
        for name, model in ((POPULAR, TopPop()), (FACTORS, BPRMF()))
    }
    jobs = [(variant.settings, seed) for variant in study.variants.values() for seed in seeds]
    cells = iter(study.many("FedGNN", lambda job: study.cell(*job), jobs, threads=1))
    trained = {key: [next(cells) for _ in seeds] for key in study.variants}
    for key, variant in study.variants.items():
        found[variant.label] = [cell.evaluation for cell in trained[key]]
    rows = [_row(name, evaluations) for name, evaluations in found.items()]
    attacks = [
        {"run": study.variants[key].label, "seed": seed, **outcome.to_table()}
        | {"precision": outcome.precision, "recall": outcome.recall, "claims": outcome.claimed}
        for key, seeded in trained.items()
        for seed, cell in zip(seeds, seeded, strict=True)
        for outcome in cell.outcomes
    ]
    accuracy = [Column("system", "")]
    for metric in METRICS:
        accuracy += [Column(metric, format=".4f", best="max"), Column(f"{metric}_ci", "±", ".4f")]
    guesses = [
        Column("run", ""), Column("seed"), Column("attack"), Column("party", "by"),
        Column("precision", format=".3f"), Column("recall", format=".3f"),
        Column("base_rate", "by chance", ".3f"), Column("claims", format=",d"), Column("verdict"),
    ]  # fmt: skip
    tables = [
        shown("FedGNN of Wu et al.: accuracy", accuracy, rows, study.describe()),
        shown("What is guessed about items (A11)", guesses, attacks, notes=_prices(study)),
    ]
    claims = _claims(study, {row["system"]: row for row in rows}, trained)
    return study.result(NAME, out, tables, claims, rows=rows, attacks=attacks)


def _row(name: str, evaluations: Sequence[Evaluation]) -> Row:
    row: Row = {"system": name}
    for metric in METRICS:
        values = [one.summary()[metric] for one in evaluations]
        row |= {
            metric: float(np.mean(values)),
            f"{metric}_ci": interval(values),
            f"{metric}_paper": None,  # it prints errors of ratings
        }
    return row


def _prices(study: WuStudy) -> list[str]:
    notes = []
    for variant in study.variants.values():
        s = variant.settings
        sent = s.pseudo_items + s.most_items
        notes.append(
            f"{variant.label}: an upload costs ε = ∞; ε = {s.epsilon_per_number:g} holds for one "
            f"number, {s.epsilon_of_numbers(sent):,.0f} for all of an upload of {sent:,} items, "
            "if the items were known anyway."
        )
    return notes


def _claims(
    study: WuStudy, rows: Mapping[str, Row], trained: Mapping[str, Sequence[WuCell]]
) -> list[Claim]:
    def guessed(key: str, attack: str) -> list[ClaimOutcome]:
        return [o for cell in trained.get(key, ()) for o in cell.outcomes if o.attack == attack]

    def held(outcomes: Sequence[ClaimOutcome]) -> list[tuple[bool, str]]:
        return [
            (not o.succeeds, f"{o.attack}: {o.precision:.1%} of what it names is true, "
             f"{o.base_rate:.1%} by chance, {o.recall:.1%} found")
            for o in outcomes
        ]  # fmt: skip

    popular, claims = rows[POPULAR]["HR@10"], []
    for variant in study.variants.values():
        ours = rows[variant.label]["HR@10"]
        words = f"HR@10 {ours:.4f} against {popular:.4f}; BPR-MF {rows[FACTORS]['HR@10']:.4f}"
        claims.append(claim(f"{variant.label}: it is above Top-Pop", (ours > popular, words)))
    if PRINTED in trained:
        text = "as printed, pseudo items hide a user's own from a server that looks twice (A11)"
        claims.append(claim(text, *held(guessed(PRINTED, "recurrence"))))
    if FIXED in trained:
        text = "pseudo items that are drawn once hide a user's own"
        for attack in ("recurrence", "popularity", "direction"):
            claims.append(claim(f"{text} from {attack}", *held(guessed(FIXED, attack))))
    some = next(iter(trained))
    text = "the third party cannot name popular items by their frequency"
    return [*claims, claim(text, *held(guessed(some, "frequency")))]


STUDY, VIEWS = WuStudy, {NAME: wu_fedgnn}
