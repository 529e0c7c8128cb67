"""Malicious devices that push one item: what they reach without a defence, and what with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.base import CrossDevice
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.poisoning import (
    Allowed,
    Facts,
    FedRecAttack,
    HardUsers,
    Poisoner,
    Profiles,
    Twin,
    cold_targets,
    exposure,
    pushing_bits,
)
from sottovoce.config import require_whole
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.messages import Batch, ModelView, SummedReports, add_up
from sottovoce.core.recommender import Scorer
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, keep_active, temporal_holdout
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import evaluate
from sottovoce.evaluation.tables import Column, Table
from sottovoce.parties.defence import Defence, Guard, defended_groups
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import Report
from sottovoce_papers import stuffed
from sottovoce_papers.study import Arrays, Claim, Row, Study, claim, installed, repr_as, shown

NAME = "poisoning"
METRICS = ("P@10", "NDCG@10", "HR@10")
FIGURES = ("ER@10", "ER@20", *METRICS)
LOUD = 100.0
"""Norm of a row where an attacker does not bother to look harmless."""
FILLERS = 30
LATE_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class TargetDataConfig:
    source: str
    min_user_items: int = 0
    embedding_size: int = 10
    learning_rate: float = 0.05
    triples: int = 20
    rounds: int = 200
    cohort_size: int = 0
    """Devices per round; 0 asks all."""
    targets: int = 1
    sums: bool = False
    """Whether secure sums are attacked on it, too."""
    bits: bool = False
    """The same for randomised reports."""


@dataclass(frozen=True, slots=True)
class PoisoningConfig:
    worlds: tuple[TargetDataConfig, ...]
    shares: tuple[float, ...] = (0.001, 0.01, 0.05)
    """Malicious devices, beside the honest ones."""
    attacks: tuple[str, ...] = ("fedrecattack", "a-hum", "twin", "random", "popular")
    seed: int = 0
    public_share: float = 0.01
    """Of all interactions, which FedRecAttack knows."""
    burst: float = 1.0
    refill_draws: float = 12.0
    """An allowance comes back while a mean user draws each of her items so many times."""
    max_sum_norm: float = 3.0
    group_size: int = 20
    bit_rounds: int = 20
    bit_ways: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = set(self.attacks) - set(ATTACKS)
        if unknown:
            raise ConfigError(f"there is no attack {sorted(unknown)}; there are {list(ATTACKS)}")
        require_whole("study.group_size", self.group_size, 2)

    @classmethod
    def read(cls, quick: bool) -> PoisoningConfig:
        study = installed(NAME, quick)["study"]
        worlds = tuple(
            config.build(TargetDataConfig, w, "study.worlds") for w in study.pop("worlds")
        )
        plain = {**study, "worlds": ()}
        return replace(config.build(cls, plain, "study"), worlds=worlds)


@dataclass(frozen=True, slots=True)
class Case:
    """One training run. `way` is how messages come and what the server does about them."""

    world: int
    way: str
    attack: str = ""
    share: float = 0.0
    target: int = -1


class TargetData:
    def __init__(self, settings: TargetDataConfig, seed: int, public_share: float) -> None:
        self.config, self.seed = settings, seed
        data = load(settings.source)
        if settings.min_user_items:
            data = keep_active(data, settings.min_user_items)
        self.split: Split = temporal_holdout(data.interactions, 0.2)
        rng = Streams.from_seed(seed)
        self.facts = Facts.of(self.split.train, public_share, rng.child("public"))
        self.targets = cold_targets(self.split.train, settings.targets, rng).tolist()

    @cached_property
    def fingerprint(self) -> str:
        return self.split.train.fingerprint()

    @property
    def asked(self) -> int:
        return self.config.cohort_size or self.split.train.n_users

    def refill_rounds(self, draws: float) -> int:
        """Rounds in which a mean user draws each of her items so many times."""
        train = self.split.train
        mean = train.n_interactions / train.n_users
        return round(draws * mean / self.config.triples * train.n_users / self.asked)

    def describe(self) -> str:
        train, c = self.split.train, self.config
        fans = ", ".join(str(train.item_counts[t]) for t in self.targets)
        return (
            f"{c.source}: {train.n_users:,} users, {train.n_items:,} items, {self.asked:,} devices "
            f"a round, T={c.triples}, {c.rounds} rounds; targets with {fans} fans"
        )

    def federation(self, seed: int) -> Federation:
        c, train = self.config, self.split.train
        settings = FPLConfig(
            embedding_size=c.embedding_size,
            learning_rate=c.learning_rate,
            cohort_size=c.cohort_size or "all",
            triples=c.triples,
            rounds=c.rounds,
        )
        users = np.arange(train.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(share_positives=1.0))
        release = ShareFraction("draw")
        made = Federation.build(settings, train, consent, release, Streams.from_seed(seed))
        made.devices.ledger.keep_rows = False
        return made

    def judge(self, scorer: Scorer, targets: Sequence[int]) -> list[float]:
        train, test = self.split.train, self.split.test
        shown = [exposure(scorer, train, t, threads=1) for t in targets]
        found = evaluate(scorer, train, test, threads=1).summary()
        means = [float(np.mean([s[k] for s in shown])) for k in ("ER@10", "ER@20")]
        return [*means, *(found[m] for m in METRICS)]


ATTACKS = ("fedrecattack", "a-hum", "twin", "late-twin", "random", "popular")


def _poisoner(
    world: TargetData, federation: Federation, case: Case, senders: NDArray[np.int64], rng: Streams
) -> Poisoner:
    train, facts, target = world.split.train, world.facts, case.target
    triples, rate = world.config.triples, world.config.learning_rate
    allowed = Allowed(2 * triples, ShareFraction("draw").largest_value(triples))
    if case.attack == "fedrecattack":
        return FedRecAttack(target, facts, allowed)
    if case.attack == "a-hum":
        return HardUsers(target, allowed)
    if case.attack.endswith("twin"):
        return Twin(target, facts, allowed, LOUD, learning_rate=rate)
    popular = facts.popular[: max(FILLERS + 1, train.n_items // 10)]
    fillers = np.arange(train.n_items) if case.attack == "random" else popular
    algorithm: CrossDevice = federation.server.algorithm  # type: ignore[assignment]
    return Profiles.of(algorithm, target, fillers, train.n_items, FILLERS, senders, rng)


class Poisoning(Study):
    """Trainings among which some devices push one item, without and with a defence."""

    prefix = "poisoning-"

    def __init__(
        self,
        settings: PoisoningConfig,
        cells: Path,
        threads: int,
        report: Report,
        gram: stuffed.StuffedConfig | None = None,
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.gram = settings, gram or stuffed.StuffedConfig()
        self._stuffed: dict[tuple[Any, ...], stuffed.StuffedWorld] = {}
        self.worlds = [TargetData(w, settings.seed, settings.public_share) for w in settings.worlds]

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        return cls(PoisoningConfig.read(quick), cells, threads, report, cls.gram_settings(quick))

    @staticmethod
    def gram_settings(quick: bool) -> stuffed.StuffedConfig:
        return config.build(stuffed.StuffedConfig, installed(NAME, quick).get("gram", {}), "gram")

    def describe_data(self) -> str:
        return "; ".join(world.describe() for world in self.worlds)

    def describe(self) -> str:
        c = self.config
        return (
            f"seed {c.seed}; each user's latest 20 % held out; malicious devices come on top of "
            f"the honest ones; {c.public_share:.0%} of interactions are public; the defence lets a "
            f"device add {c.burst:g} to an item, which comes back in {c.refill_draws:g} draws of a "
            f"mean user; sums are capped at {c.max_sum_norm:g} times the median, groups have "
            f"{c.group_size} devices"
        )

    def cases(self) -> list[Case]:
        c, found = self.config, []
        for number, world in enumerate(self.worlds):
            ways = ["direct", "direct, defended"]
            if world.config.sums:
                ways += ["secure sum", "secure sum, capped", "secure sums of groups, capped"]
            for way in ways:
                found.append(Case(number, way))
                attacks = c.attacks if way.startswith("direct") else ("twin",)
                found += [
                    Case(number, way, attack, share, target)
                    for attack in attacks
                    for share in c.shares
                    for target in world.targets
                ]
            if world.config.bits:
                for way in c.bit_ways:
                    found.append(Case(number, way))
                    found += [Case(number, way, "bits", s, world.targets[0]) for s in c.shares]
        return found

    def case(self, case: Case) -> list[float]:
        world = self.worlds[case.world]
        # What a single case depends on.
        settings = replace(self.config, worlds=(), shares=(), attacks=(), bit_ways=())
        about = [NAME, world.fingerprint, repr_as("WorldConfig", world.config), repr(case),
                 repr(settings)]  # fmt: skip
        run = self.run_bits if "reports" in case.way else self.run_rows
        found = self.kept(about, ["figures"], lambda: {"figures": np.array(run(case))})
        return [float(v) for v in found["figures"]]

    # --- gram -------------------------------------------------------------------------------------

    def stuffed_rows(self) -> list[Row]:
        """What gram came to among devices that push or demote an item."""
        cases = list(stuffed.cases(self.gram, lambda one, kind: self._world(one).items(kind)))
        figures = self.many("gram, attacked", self.stuffed_case, cases)
        return stuffed.as_rows(dict(zip(cases, figures, strict=True)))

    def _world(self, case: stuffed.Stuffed) -> stuffed.StuffedWorld:
        about = (case.source, case.epsilon, case.recency, case.link)
        if about not in self._stuffed:
            self._stuffed[about] = stuffed.StuffedWorld(*about, self.gram.targets)
        return self._stuffed[about]

    def stuffed_case(self, case: stuffed.Stuffed) -> Arrays:
        world = self._world(case)
        about = [NAME, "gram", stuffed.VERSION, world.fingerprint, repr(world.algorithm),
                 repr(case), self.gram.targets]  # fmt: skip
        return self.kept(about, ["exposure"], lambda: world.run(case))

    # --- item rows --------------------------------------------------------------------------------

    def run_rows(self, case: Case) -> list[float]:
        world, c = self.worlds[case.world], self.config
        federation, rng = world.federation(c.seed), Streams.from_seed(c.seed).child("malicious")
        honest = federation.devices.willing()
        n, bad, poisoner = len(honest), np.zeros(0, np.int64), None
        if case.attack:
            bad = np.arange(n, n + max(1, round(case.share * n)), dtype=np.int64)
            poisoner = _poisoner(world, federation, case, bad, rng)
        begin = world.config.rounds - LATE_ROUNDS if case.attack.startswith("late") else 0
        server = federation.server
        guard = Defence(
            burst=c.burst if case.way == "direct, defended" else 0.0,
            refill_rounds=world.refill_rounds(c.refill_draws),
            max_sum_norm=c.max_sum_norm if case.way == "secure sum, capped" else 0.0,
        ).guard()
        for _ in range(world.config.rounds):
            view = server.publish()
            asked = server.select(n + len(bad), world.asked)
            good, evil = honest[asked[asked < n]], asked[asked >= n]
            sent = []
            if poisoner is not None and len(evil) and view.round >= begin:
                sent = [poisoner.device_poison(view, evil, rng)]
            if case.way.startswith("secure sums of groups"):
                server.fold(self._in_groups(federation, view, good, sent))
            else:
                server.fold(_summed(federation, view, good, sent, guard))
        targets = [case.target] if case.attack else world.targets
        return world.judge(federation.scorer(), targets)

    def _in_groups(
        self, federation: Federation, view: ModelView, good: NDArray[np.int64], sent: list[Any]
    ) -> SummedReports:
        """Malicious devices are spread over the groups, and own those in which they are."""
        width, size = view.items.shape[1], self.config.group_size
        order = Streams.from_seed(view.round).child("groups").generator().permutation(len(good))
        groups = np.array_split(good[order], max(1, len(good) // size))
        parts = [add_up(view.round, [federation.devices.report(view, g)], width) for g in groups]
        evil = np.unique(sent[0].sender) if sent else np.zeros(0, np.int64)
        for place, sender in enumerate(evil.tolist()):
            mine, at = sent[0].sender == sender, place % len(parts)
            message = replace(
                sent[0], sender=sent[0].sender[mine], item=sent[0].item[mine],
                values=sent[0].values[mine],
            )  # fmt: skip
            both = [parts[at], add_up(view.round, [message], width)]
            parts[at] = federation.server.add_sums(both)
        return defended_groups(view.round, parts, self.config.burst, width)

    # --- randomised reports -----------------------------------------------------------------------

    def run_bits(self, case: Case) -> list[float]:
        world, c = self.worlds[case.world], self.config
        train, rng = world.split.train, Streams.from_seed(c.seed)
        variant = case.way.split()[0]
        settings = FMFConfig(
            variant="rotated" if variant == "rotated" else "published",
            embedding_size=8 if variant == "rotated" else 5,
            learning_rate=0.02,
            rounds=c.bit_rounds,
        )
        release, k = KReports(100, (Tier(2.5, 100),)), 100
        users = np.arange(train.n_users, dtype=np.int64)
        consent = Consent.uniform(users, Choice(epsilon=2.5, max_reports=k))
        federation = Federation.build(settings, train, consent, release, rng)
        federation.devices.ledger.keep_rows = False
        server, devices = federation.server, federation.devices
        drawn = case.way.endswith("drawn coordinates")
        n_bad = max(1, round(case.share * train.n_users)) if case.attack else 0
        for _ in range(c.bit_rounds):
            view = server.publish()
            reports = devices.report_bits(view, users).reports.ravel()
            if n_bad:
                towards = view.items[world.facts.popular[:10]].mean(axis=0).astype(np.float64)
                mine = pushing_bits(view, case.target, towards, n_bad, k, variant, rng, drawn)
                reports = np.concatenate([reports, mine.ravel()])
            batch = Batch(view.round, 0, train.n_users + n_bad, reports)
            server.fold(server.count([batch]))
        targets = [case.target] if case.attack else world.targets[:1]
        return world.judge(federation.scorer(), targets)


def _summed(
    federation: Federation,
    view: ModelView,
    good: NDArray[np.int64],
    sent: list[Any],
    guard: Guard,
) -> SummedReports:
    server, width = federation.server, view.items.shape[1]
    if guard.defence.looks_at_devices:
        batches = [federation.devices.report(view, good), *sent]
        server.sum_reports(batches)  # the checks, which all of them pass
        return guard.sum_reports(view.round, batches, width)
    total = federation.devices.report_summed(view, good)
    if sent:
        total = server.add_sums([total, add_up(view.round, sent, width)])
    return guard.sum_opened(total)


MOST_MORE, MOST_LOST = 0.05, 0.02
"""What is allowed: exposure above clean, and accuracy lost, relatively."""


def poisoning(study: Poisoning, out: Path) -> dict[str, Any]:
    cases = study.cases()
    rows = as_rows(study, dict(zip(cases, study.many("training", study.case, cases), strict=True)))
    columns = [
        Column("data"), Column("way"), Column("attack"), Column("share", "malicious", ".1%"),
        *(Column(name, format=".3f") for name in FIGURES),
        Column("more", "ER@10 above clean", ".3f"), Column("lost", "NDCG@10 lost", ".1%"),
    ]  # fmt: skip
    tables = [Table("Poisoning", columns, rows, study.describe())]
    claims, of_gram = as_claims(study, rows), study.stuffed_rows()
    if of_gram:
        title = "gram among devices that push or demote an item"
        tables.append(shown(title, stuffed.COLUMNS, of_gram, stuffed.describe(study.gram)))
        claims += stuffed.as_claims(of_gram)
    return study.result(NAME, out, tables, claims, rows=[*rows, *of_gram])


def as_rows(study: Poisoning, found: Mapping[Case, Sequence[float]]) -> list[Row]:
    """The mean over targets. What is lost is measured by the clean run without any defence."""
    grouped: dict[Case, list[Sequence[float]]] = {}
    for case, figures in found.items():
        grouped.setdefault(replace(case, target=-1), []).append(figures)
    rows = []
    for case, all_targets in grouped.items():
        mean = dict(zip(FIGURES, np.mean(all_targets, axis=0).tolist(), strict=True))
        plain = case.way.split(",")[0]
        first = plain if "reports" in plain else "direct"
        clean = dict(zip(FIGURES, found[Case(case.world, first)], strict=True))
        rows.append(
            {
                "data": study.worlds[case.world].config.source,
                "way": case.way,
                "attack": case.attack or "none",
                "share": case.share,
                **mean,
                "more": mean["ER@10"] - clean["ER@10"],
                "lost": 1.0 - mean["NDCG@10"] / clean["NDCG@10"],
            }
        )
    return rows


def as_claims(study: Poisoning, rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    claims = []
    for world in study.worlds:
        mine = [r for r in rows if r["data"] == world.config.source and r["attack"] != "none"]
        plain = [r for r in mine if r["way"] == "direct"]
        worst = max(plain, key=lambda r: float(r["ER@10"]))
        claims.append(
            claim(
                f"{world.config.source}: without a defence the item is pushed",
                (worst["ER@10"] > 0.5, _words(worst)),
            )
        )
        for way in dict.fromkeys(r["way"] for r in mine if r["way"] != "direct"):
            for share in study.config.shares:
                some = [r for r in mine if r["way"] == way and r["share"] == share]
                most = max(some, key=lambda r: float(r["more"]))
                dear = max(some, key=lambda r: float(r["lost"]))
                claims.append(
                    claim(
                        f"{world.config.source}, {way}, {share:.1%} malicious: exposure at most "
                        f"{MOST_MORE} above clean, accuracy at most {MOST_LOST:.0%} below",
                        (most["more"] <= MOST_MORE, _words(most)),
                        (dear["lost"] <= MOST_LOST, f"{dear['attack']}: {dear['lost']:.1%} lost"),
                    )
                )
    return claims


def _words(row: Mapping[str, Any]) -> str:
    return f"{row['attack']} with {row['share']:.1%}: ER@10 {row['ER@10']:.3f}"


STUDY, VIEWS = Poisoning, {NAME: poisoning}
