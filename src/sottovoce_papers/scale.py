"""Accuracy against the number of users and ε: FPL, FMF-LDP and gram on one generated crowd, of
which more and more users take part (`data.crowd`; MovieLens 20M's catalogue and average user)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from sottovoce import config
from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.baselines.simple import TopPop
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.data.crowd import SeededCrowd, SeededCrowdConfig
from sottovoce.errors import ConfigError
from sottovoce.evaluation import plots
from sottovoce.evaluation.protocol import evaluate
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column
from sottovoce.privacy.base import Release
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import Report
from sottovoce_papers.study import Arrays, Claim, Row, Study, claim, installed, repr_as, shown

METRIC = "HR@10"
VERSION = 1
"""Of what a cell holds."""
ONE_ITEM = "one item held out of each user, full ranking over all items that she has not"


@dataclass(frozen=True, slots=True)
class ScaleConfig:
    users: tuple[int, ...] = (10_000, 138_493, 1_000_000, 10_000_000)
    """How many take part; 138,493 is MovieLens 20M's number."""
    crowd: SeededCrowdConfig = field(default_factory=lambda: SeededCrowdConfig(tastes=64))
    gram_epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    """Of a user, for all time of a period."""
    fmf_epsilons: tuple[float, ...] = (0.5, 2.5)
    """Of a report, of which a user sends k in every round."""
    fpl_shares: tuple[float, ...] = (0.5,)
    """π, which has no ε."""
    fpl: FPLConfig = field(default_factory=FPLConfig)
    fmf: FMFConfig = field(default_factory=FMFConfig)
    gram: GramConfig = field(default_factory=lambda: GramConfig(recency=False))
    max_reports: int = 100
    """k."""
    tested: int = 10_000
    """Users whose held-out item is looked for, the first ones; all take part."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("users", "gram_epsilons", "fmf_epsilons", "fpl_shares"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.users or min(self.users) < 100 or self.tested < 1:
            raise ConfigError("a crowd needs 100 users at least, and some who are tested")


@dataclass(frozen=True, slots=True)
class ScaleCell:
    """One training."""

    system: str
    settings: AlgorithmSettings
    release: Release
    choice: Choice
    epsilon: float | None
    what: str


class ScaleStudy(Study):
    """Systems on crowds of several sizes; nothing is trained twice."""

    prefix = "scale-"

    def __init__(
        self, settings: ScaleConfig, cells: Path, threads: int, report: Report, device: str
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.device = settings, device
        self.crowd = SeededCrowd(replace(settings.crowd, held_out=True))
        self._world: tuple[int, Interactions, Interactions, Interactions] | None = None

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick).get("study", {})
        settings = config.build(ScaleConfig, table, "study")
        return cls(settings, cells, threads, report, device)

    @property
    def _crowd(self) -> str:
        """As it stands in the keys of cells."""
        return repr_as("CrowdConfig", self.crowd.config)

    def describe(self) -> str:
        return (
            f"{ONE_ITEM}; {METRIC} of the first {self.config.tested:,} users; one seed; vectors "
            "are fitted at home to the published model"
        )

    def describe_data(self) -> str:
        crowd = self.config.crowd
        return (
            f"a generated crowd, {crowd.items:,} items, {crowd.count:,} of each user, "
            f"{crowd.tastes} tastes"
        )

    def world(self, users: int) -> tuple[Interactions, Interactions, Interactions]:
        """What the crowd has, what its tested users have, and what is held out of theirs."""
        if self._world is None or self._world[0] != users:
            train, out = self.crowd.generate(0, users, self.threads)
            tested = min(self.config.tested, users)
            some, _ = self.crowd.generate(0, tested)
            test = Interactions(
                indptr=np.arange(tested + 1, dtype=np.int64), items=out[:tested],
                n_items=train.n_items,
            )  # fmt: skip
            self._world = users, train, some, test
        return self._world[1:]

    def asked(self, users: int) -> list[ScaleCell]:
        """Everything that is trained on a crowd of this size."""
        config, found = self.config, []
        fpl = replace(config.fpl, cohort_size=min(users, _whole(config.fpl.cohort_size, users)))
        for share in config.fpl_shares:
            what = f"pFPL+, π = {share:g}"
            release = ShareFraction("draw")
            found.append(ScaleCell("FPL", fpl, release, Choice(share_positives=share), None, what))
        for epsilon in config.fmf_epsilons:
            release_k = KReports(config.max_reports, (Tier(epsilon),))
            choice = Choice(epsilon=epsilon, max_reports=config.max_reports)
            what = f"FMF-LDP, ε = {epsilon:g} a report"
            found.append(ScaleCell("FMF-LDP", config.fmf, release_k, choice, epsilon, what))
        for epsilon in config.gram_epsilons:
            own, choice = OwnEpsilon(epsilon=epsilon), Choice(epsilon=epsilon)
            what = f"gram, ε = {epsilon:g}"
            found.append(ScaleCell("gram", config.gram, own, choice, epsilon, what))
        return found

    def cell(self, users: int, asked: ScaleCell) -> Arrays:
        """Whether each tested user's item was among ten."""
        parts = [repr(part) for part in (asked.settings, asked.release, asked.choice)]
        key = [VERSION, users, self._crowd, parts, self.config.tested, self.config.seed]
        return self.kept(key, ["values"], lambda: self._train(users, asked))

    def popularity(self, users: int) -> Arrays:
        """The same by popularity alone."""

        def fit() -> Arrays:
            train, some, test = self.world(users)
            scorer = TopPop().fit(train, Streams.from_seed(self.config.seed))
            return {"values": evaluate(scorer, some, test, threads=self.threads).per_user(METRIC)}

        key = [VERSION, users, self._crowd, "top-pop", self.config.tested]
        return self.kept(key, ["values"], fit)

    def _train(self, users: int, asked: ScaleCell) -> Arrays:
        train, some, test = self.world(users)
        rng = Streams.from_seed(self.config.seed)
        consent = Consent.uniform(np.arange(users, dtype=np.int64), asked.choice)
        made = Federation.build(asked.settings, train, consent, asked.release, rng)
        made.devices.ledger.keep_rows = False
        if self.device != "cpu" and not made.devices.reports_bits:
            made.check_device(self.device)
            made.accelerate(self.device)
        made.run(threads=self.threads)
        algorithm, view = made.server.algorithm, made.server.recommending
        tested = made.devices.cohort.take(np.arange(some.n_users, dtype=np.int64))
        algorithm.device_fit(view, tested, rng)
        scorer = algorithm.device_scorer(tested.vectors, view.items)
        return {"values": evaluate(scorer, some, test, threads=self.threads).per_user(METRIC)}


def _whole(size: int | str, users: int) -> int:
    return users if isinstance(size, str) else size


def scale(study: ScaleStudy, out: Path) -> dict[str, Any]:
    """A row for each system, number of users and ε."""
    rows: list[Row] = []
    sizes = study.config.users
    many = sum(len(study.asked(users)) + 1 for users in sizes)
    for users in sizes:
        study.report(f"{users:,} users", len(rows), many)
        rows.append(_row("Top-Pop", "Top-Pop", users, None, study.popularity(users)))
        for asked in study.asked(users):
            study.report(f"{users:,} users: {asked.what}", len(rows), many)
            found = study.cell(users, asked)
            rows.append(_row(asked.system, asked.what, users, asked.epsilon, found))
    study.report("crowds", many, many)
    columns = [
        Column("what", "system"), Column("users", format=","),
        Column(METRIC, METRIC, ".4f", "max"), Column("half", "± (95 %, over users)", ".4f"),
    ]  # fmt: skip
    table = shown("Accuracy against the number of users", columns, rows, study.describe())
    picture = _draw(out / "figures" / "scale", rows)
    return study.result("scale", out, [table], _claims(rows), [picture], rows=rows)


def _row(system: str, what: str, users: int, epsilon: float | None, cell: Arrays) -> Row:
    values = cell["values"]
    half = float(1.96 * values.std() / np.sqrt(len(values)))
    return {
        "system": system, "what": what, "users": users, "epsilon": epsilon,
        METRIC: float(values.mean()), "half": half,
    }  # fmt: skip


def _curves(rows: Sequence[Row]) -> dict[str, tuple[list[float], list[float]]]:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        xs, ys = curves.setdefault(row["what"], ([], []))
        xs.append(float(np.log10(row["users"])))
        ys.append(row[METRIC])
    return curves


def _draw(path: Path, rows: Sequence[Row]) -> FigureBlock:
    path.parent.mkdir(parents=True, exist_ok=True)
    title = "Accuracy against the number of users"
    with plots.drawing(path, title, (7.2, 5.2)) as (figure, axes):
        for number, (name, (x, y)) in enumerate(_curves(rows).items()):
            colour, marker = plots.PALETTE[number % 6], plots.MARKERS[number % 6]
            axes.plot(x, y, color=colour, linewidth=1.6, marker=marker, markersize=5, label=name)
        ticks = sorted({float(np.log10(row["users"])) for row in rows})
        axes.set_xticks(ticks, [f"{round(10**tick):,}" for tick in ticks])
        axes.set(xlabel="users who take part", ylabel=METRIC)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return FigureBlock(plots.figure_files(path).svg, title, f"{METRIC}: {ONE_ITEM}.")


def _claims(rows: Sequence[Row]) -> list[Claim]:
    """That more users help who protects herself, and that the strictest need them most."""
    found = []
    curves = _curves(rows)
    for what, (x, y) in curves.items():
        if len(x) < 2 or not what.startswith(("gram", "FMF")):
            continue
        half = max(row["half"] for row in rows if row["what"] == what)
        text = f"{what}: more users make it better, or no worse"
        found.append(claim(text, (y[-1] >= y[0] - half, f"{METRIC} {y[0]:.4f} to {y[-1]:.4f}")))
    best: Mapping[str, float] = {what: y[-1] for what, (_, y) in curves.items()}
    grams = [what for what in best if what.startswith("gram")]
    if grams:
        strict, top = grams[0], best["Top-Pop"]
        text = f"{strict} is above popularity where users are most"
        found.append(claim(text, (best[strict] > top, f"{best[strict]:.4f} against {top:.4f}")))
    return found


STUDY = ScaleStudy
VIEWS = {"scale": scale}
