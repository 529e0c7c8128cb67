"""gram among devices that push or demote an item: over plain secure sums and over checked ones.

Part of the study of poisoning. What is told of an attack is the mean over items and draws of the
noise of how far exposure moves the attackers' way from that of the same run without them. Over a
checked sum several attacks within its checks are run, and the one is told which reached most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.gram.system import SCALE, Gram, GramConfig
from sottovoce.attacks.poisoning import cold_targets, exposure
from sottovoce.attacks.stuffing import Fakes, Stuffing, knowing, stuffed_model
from sottovoce.config import require_whole
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import ModelView
from sottovoce.core.one_bit import noise_root
from sottovoce.core.recommender import FactorScorer
from sottovoce.data.sources import load
from sottovoce.data.splitting import temporal_holdout
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import evaluate
from sottovoce.evaluation.tables import Column
from sottovoce.parties.helper import noise_spans
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce_papers.study import Claim, Row, claim

MOST_MORE, MOST_LOST = 0.05, 0.025
"""What is allowed: exposure beyond clean, and accuracy lost to the checks, relatively."""
VERSION = 1
"""Of what a cell holds."""
ALONE = 0.0
"""The share of malicious devices that stands for a single one."""
_FAKES = (10, 19, 40)
"""Popular items of a made-up history beside the target."""
_HEADS = 64
"""Of which sums are remembered."""
LINKS = ("secure sum", "checked sum")
ITEMS = ("cold", "end of the head", "middle of the head", "most popular")
"""Which items are attacked; the last ones are demoted."""


@dataclass(frozen=True, slots=True)
class StuffedConfig:
    sources: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = (1.0, 8.0)
    recency: tuple[bool, ...] = (True, False)
    shares: tuple[float, ...] = (0.001, 0.01, 0.05)
    draws: int = 2
    """Of the noise, and of honest devices' rounding."""
    targets: int = 2
    """Items of each kind."""
    partners: tuple[int, ...] = (5, 10, 15, 1000)
    """Over a checked sum: with how many popular items the target is paired."""
    entries: tuple[int, ...] = (0, 50)
    """What the target weighs there, of 256; 0: as much as an entry can."""

    def __post_init__(self) -> None:
        for name in ("sources", "epsilons", "recency", "shares", "partners", "entries"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        require_whole("study.gram.draws", self.draws, 1, 100)
        require_whole("study.gram.targets", self.targets, 1, 100)
        for name in ("partners", "entries"):
            if not getattr(self, name):
                raise ConfigError(f"study.gram.{name} names a number at least")


@dataclass(frozen=True, slots=True)
class Stuffed:
    """One run. `partners` of 0: weighed by somebody who knows a model of these users."""

    source: str
    epsilon: float
    recency: bool
    link: str
    draw: int
    attack: str = ""
    items: str = ""
    share: float = ALONE
    target: int = -1
    partners: int = 0
    entry: int = 0

    @property
    def clean(self) -> Stuffed:
        return replace(self, attack="", items="", share=ALONE, target=-1, partners=0, entry=0)


class StuffedWorld:
    """One data set, at one ε, with time or without, over one kind of sum."""

    def __init__(self, source: str, epsilon: float, recency: bool, link: str, targets: int) -> None:
        train_test = temporal_holdout(load(source).interactions, 0.2)
        self.train, self.test, self.targets = train_test.train, train_test.test, targets
        n = self.train.n_users
        self.release = OwnEpsilon(epsilon)
        consent = Consent.uniform(np.arange(n), Choice(epsilon=epsilon))
        self.link = CheckedSum() if link == "checked sum" else None
        settings = GramConfig(recency=recency)
        settings, _ = settings.on_data({}, consent, self.train.n_items, self.release)
        self.algorithm: Gram = settings.build_under(self.release, self.link, 1)
        self.consent, self.known_sums = consent, dict[int, dict[tuple[int, bytes], Any]]()
        counts = self.train.item_counts
        self.popular: tuple[int, ...] = tuple(np.argsort(-counts, kind="stable").tolist())

    @cached_property
    def fingerprint(self) -> str:
        return self.train.fingerprint()

    def cohort(self) -> Cohort:
        """Users as they are before a model: runs go on side by side."""
        n, size = self.train.n_users, self.algorithm.config.embedding_size
        vectors = np.zeros((n, size), np.float32)
        return Cohort(np.arange(n), self.train, self.consent, vectors)

    @cached_property
    def head(self) -> int:
        """Items that have pairs, without an attack."""
        return int(np.count_nonzero(self.model(0)[:, SCALE]))

    @cached_property
    def known(self) -> tuple[float, ...]:
        """What partners weigh to somebody who knows the model of another period."""
        return knowing(self.algorithm, self.model(1_000_000), self.train.n_users)

    def items(self, kind: str) -> list[int]:
        """Whom an attack is about."""
        many = np.arange(self.targets)
        if kind == "cold":
            return list(cold_targets(self.train, self.targets, Streams.from_seed(0)).tolist())
        if kind == "most popular":
            return list(self.popular[: self.targets])
        first = 0.97 if kind == "end of the head" else 0.6
        return [self.popular[rank] for rank in (self.head * (first - 0.05 * many)).astype(int)]

    def model(
        self, draw: int, stuffing: Stuffing | Fakes | None = None, devices: int = 0
    ) -> NDArray[np.float32]:
        rng = Streams.from_seed(draw)
        spans = noise_spans(self.algorithm, self.release)
        if spans is None:
            raise ConfigError("noise is the helper's here")
        more = self.algorithm.sigma / self.release.sigma
        return stuffed_model(
            self.algorithm,
            self.cohort(),
            np.ones(self.train.n_users),
            lambda round, numbers: [(many, more * one) for many, one in spans(round, numbers)],
            noise_root(rng.child("masker").root),
            stuffing or Stuffing(0, self.popular),
            devices,
            link=self.link,
            rng=rng,
            known=self._known(draw),
        )

    def _known(self, draw: int) -> dict[tuple[int, bytes], Any]:
        """What honest devices add up to in a draw; of few heads, as they are large."""
        if len(self.known_sums.setdefault(draw, {})) > _HEADS:
            self.known_sums[draw] = {}
        return self.known_sums[draw]

    def scorer(self, items: NDArray[np.float32]) -> FactorScorer:
        view, cohort = ModelView(len(self.algorithm.shares), items), self.cohort()
        self.algorithm.device_fit(view, cohort, Streams.from_seed(0))
        return self.algorithm.device_scorer(cohort.vectors, items)

    def run(self, case: Stuffed) -> dict[str, NDArray[Any]]:
        """The exposure of the case's item; without an attack, of all items that one is about, and
        accuracy."""
        if not case.attack:
            scorer = self.scorer(self.model(case.draw))
            asked = sorted({item for kind in ITEMS for item in self.items(kind)})
            found = evaluate(scorer, self.train, self.test, threads=1).summary()
            return {
                "items": np.array(asked),
                "exposure": np.array([self.exposure(scorer, item) for item in asked]),
                "P@10": np.array(found["P@10"]),
            }
        devices = round(case.share * self.train.n_users) or 1
        scorer = self.scorer(self.model(case.draw, self.attackers(case), devices))
        return {"exposure": np.array(self.exposure(scorer, case.target))}

    def attackers(self, case: Stuffed) -> Stuffing | Fakes:
        target, n_items = case.target, self.train.n_items
        if case.attack == "fakes":
            return Fakes(
                self.algorithm, target, self.popular, case.partners, n_items, self.link
            )  # fmt: skip
        return Stuffing(
            target,
            self.popular,
            "anything" if self.link is None else "checked",
            case.partners or n_items,
            weights=() if case.partners else self.known,
            demotes=case.attack == "demotion",
            entry=case.entry,
        )

    def exposure(self, scorer: FactorScorer, item: int) -> float:
        return exposure(scorer, self.train, item, (10,), threads=1)["ER@10"]


def cases(settings: StuffedConfig, items: Callable[[Stuffed, str], list[int]]) -> Iterator[Stuffed]:
    """All runs, those without an attack first; `items` are a world's of one kind."""
    worlds = [
        Stuffed(source, epsilon, recency, link, draw)
        for source in settings.sources
        for epsilon in settings.epsilons
        for recency in settings.recency
        for link in LINKS
        for draw in range(settings.draws)
    ]
    yield from worlds
    for world in worlds:
        for attack in ("stuffing", "fakes", "demotion"):
            kinds = ITEMS[3:] if attack == "demotion" else ITEMS[:3]
            plain = world.link == "secure sum" and attack != "fakes"
            shares = (ALONE,) if plain else settings.shares
            tried = (40,) if plain else (*settings.partners, 0)
            tried = _FAKES if attack == "fakes" else tried
            entries = settings.entries if attack == "stuffing" and not plain else (0,)
            for kind in kinds:
                for target, share, partners, entry in itertools.product(
                    items(world, kind), shares, tried, entries
                ):
                    yield replace(world, attack=attack, items=kind, share=share, target=target,
                                  partners=partners, entry=entry)  # fmt: skip


def as_rows(found: Mapping[Stuffed, Mapping[str, NDArray[Any]]]) -> list[Row]:
    """By what is attacked and how: the means over items and draws, of the attack that did most."""
    grouped: dict[tuple[Any, ...], dict[tuple[int, int], list[tuple[float, float]]]] = {}
    accuracy: dict[tuple[Any, ...], list[float]] = {}
    for case, figures in found.items():
        world = (case.source, case.epsilon, case.recency, case.link)
        if not case.attack:
            accuracy.setdefault(world, []).append(float(figures["P@10"]))
            continue
        clean = found[case.clean]
        at = int(np.flatnonzero(clean["items"] == case.target)[0])
        before, after = float(clean["exposure"][at]), float(figures["exposure"])
        key = (*world, case.attack, case.items, case.share)
        grouped.setdefault(key, {}).setdefault((case.partners, case.entry), []).append(
            (before, after)
        )
    rows: list[Row] = []
    for key, tried in grouped.items():
        source, epsilon, recency, link, attack, items, share = key
        sign = -1.0 if attack == "demotion" else 1.0
        means = {n: np.mean(pairs, axis=0) for n, pairs in tried.items()}
        best = max(means, key=lambda n: sign * float(means[n][1] - means[n][0]))
        before, after = means[best].tolist()
        world = (source, epsilon, recency, link)
        plain = float(np.mean(accuracy[(*world[:3], "secure sum")]))
        mine = float(np.mean(accuracy[world]))
        rows.append(
            {
                "data": source, "time": "with time" if recency else "plain", "epsilon": epsilon,
                "link": link, "attack": attack, "items": items,
                "malicious": f"{share:.1%}" if share else "one device", "share": share,
                "partners": best[0] or "knowing", "clean": before, "ER@10": after,
                "moved": sign * (after - before), "P@10": mine, "lost": 1.0 - mine / plain,
            }
        )  # fmt: skip
    return rows


COLUMNS = [
    Column("data"), Column("time"), Column("epsilon", "ε", "g"), Column("link"), Column("attack"),
    Column("items"), Column("malicious"), Column("partners"), Column("clean", format=".3f"),
    Column("ER@10", format=".3f"), Column("moved", "moved by", ".3f"),
    Column("P@10", "P@10, clean", ".4f"), Column("lost", "lost to the checks", ".1%"),
]  # fmt: skip


def as_claims(rows: Sequence[Row]) -> list[Claim]:
    """By data set and share: what checked sums hold back, and that plain ones do not."""
    claims = []
    for source in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == source]
        alone = [r for r in mine if r["link"] == "secure sum" and r["share"] == ALONE]
        least = min((r for r in alone if r["attack"] == "stuffing"), key=lambda r: r["moved"])
        claims.append(
            claim(
                f"{source}: one device owns a plain secure sum of gram",
                (least["moved"] > 0.5, words(least)),
            )
        )
        checked = [r for r in mine if r["link"] == "checked sum"]
        for items in dict.fromkeys(r["items"] for r in checked):
            for share in dict.fromkeys(r["share"] for r in checked):
                some = [r for r in checked if (r["items"], r["share"]) == (items, share)]
                most = max(some, key=lambda r: r["moved"])
                claims.append(
                    claim(
                        f"{source}, gram over checked sums, {items}, {share:.1%} malicious: "
                        f"exposure moves by at most {MOST_MORE}",
                        (most["moved"] <= MOST_MORE, words(most)),
                    )
                )
        for epsilon in dict.fromkeys(r["epsilon"] for r in checked):
            at = [r for r in checked if r["epsilon"] == epsilon]
            dear = max(at, key=lambda r: r["lost"])
            claims.append(
                claim(
                    f"{source}: what is checked costs gram at most {MOST_LOST:.1%} at ε = "
                    f"{epsilon:g}",
                    (dear["lost"] <= MOST_LOST, f"{dear['time']}: {dear['lost']:.1%} lost"),
                )
            )
    return claims


def describe(settings: StuffedConfig) -> str:
    return (
        "each user's latest 20 % held out; malicious devices come on top of the honest ones, all "
        f"at the ε of the row, δ = 10⁻⁶; means of {settings.targets} items and {settings.draws} "
        "draws of the noise; of the attacks that pass the checks that one is told which moved most"
    )


def words(row: Row) -> str:
    return (
        f"{row['attack']} at ε = {row['epsilon']:g}, {row['time']}, {row['items']}: ER@10 "
        f"{row['clean']:.3f} to {row['ER@10']:.3f}"
    )
