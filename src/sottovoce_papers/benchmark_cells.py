"""Cells of the benchmark: a system trained and measured once on one data set, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from sottovoce import config
from sottovoce.baselines import BASELINES
from sottovoce.baselines.lightgcn import LightGCN
from sottovoce.core.ledger import totals_of
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError, Diverged
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.rng import Streams
from sottovoce.runs.attack import attack_run
from sottovoce.runs.devices import DeviceOutcome
from sottovoce.runs.standing import standing
from sottovoce.runs.train import Report, run_experiment
from sottovoce.wire.terms import named
from sottovoce_papers.rivals import WORST, best_case, cases_of, rival_of, rival_scorer
from sottovoce_papers.study import Arrays, Floats, Study, count_of, installed, laid_over

VERSION = 1
"""Of what a cell holds."""
METRICS = ("NDCG@10", "HR@10", "R@10")
Kind = Literal["ours", "rival", "central"]
NOT_ATTACKED = "not attacked"
_SECTIONS = ("algorithm", "release", "link", "consent", "home", "owners", "evaluation")
_KINDS = ("preset", "rival", "baseline")


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    sources: tuple[str, ...] = ("movielens-1m",)
    seeds: tuple[int, ...] = (0,)
    attacks: bool = False
    """Whether the attack suite is run on systems of ours."""
    rounds: int = 0
    """Of every rival; 0: its own."""

    def __post_init__(self) -> None:
        for name in ("sources", "seeds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.sources or not self.seeds:
            raise ConfigError("a benchmark needs a data set and a seed")


@dataclass(frozen=True, slots=True)
class BenchmarkSystem:
    """A system of ours (an experiment, from a preset or not), a rival, or a central reference."""

    label: str
    kind: Kind
    sections: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of an experiment; or `rival` or `baseline` alone."""
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    """What a rival's rates are chosen from, on the validation part."""
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """By source: what is laid over the sections there."""
    sources: tuple[str, ...] = ()
    """Where it runs; everywhere by default."""
    why: str = ""
    """Why not elsewhere."""

    @classmethod
    def of(cls, table: Mapping[str, Any], number: int) -> BenchmarkSystem:
        own, where = dict(table), f"systems[{number}]"
        sections = {name: own.pop(name) for name in (*_SECTIONS, *_KINDS[1:]) if name in own}
        preset = own.pop("preset", None)
        if preset is not None:
            sections = laid_over(_preset(preset), sections)
        known = {each.name for each in dataclass_fields(cls)} - {"sections", "kind"}
        if "label" not in own or not set(own) <= known or not sections:
            raise ConfigError(
                f"{where} needs a label and a preset, an algorithm, a rival or a baseline; it may "
                f"have {sorted(known | set(_SECTIONS))}, not {sorted(set(own) - known)}"
            )
        kinds = [name for name in ("rival", "baseline") if name in sections]
        if len(kinds) + ("algorithm" in sections) != 1:
            raise ConfigError(f"{where} must be one of an experiment, a rival and a baseline")
        kind: Kind = "ours"
        if kinds:
            kind = "rival" if kinds == ["rival"] else "central"
        own["sources"] = tuple(own.get("sources", ()))
        return cls(kind=kind, sections=sections, **own)

    def sections_at(self, source: str) -> dict[str, Any]:
        return laid_over(self.sections, self.at.get(source, {}))


def _preset(name: str) -> dict[str, Any]:
    """What a shipped experiment says of a system, not of its data."""
    table = tomllib.loads(find_experiment(name).read_text(encoding="utf-8"))
    return {key: table[key] for key in _SECTIONS if key in table and key != "evaluation"}


@dataclass(frozen=True, slots=True)
class BenchmarkFacts:
    """What a system came to, beside each user's figures. Bytes are those of one user in all, on
    average, in training; -1 where nobody knows."""

    up: float = -1.0
    down: float = -1.0
    epsilon: float = math.inf
    """What a user has spent at most; infinite where nothing bounds it."""
    bound: str = ""
    attacks: str = ""
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = ""
    test: str = ""
    """By which two can tell that they found the same items: a digest of the test part."""


def _facts(text: bytes) -> BenchmarkFacts:
    told = json.loads(text)
    if told.get("epsilon") is None:
        told["epsilon"] = math.inf
    return BenchmarkFacts(**told)


class BenchmarkStudy(Study):
    """Systems on data sets; nothing is run twice."""

    prefix = "benchmark-"

    def __init__(
        self,
        settings: BenchmarkConfig,
        data: Mapping[str, Mapping[str, Any]],
        systems: Sequence[BenchmarkSystem],
        cells: Path,
        threads: int,
        report: Report,
        device: str = "cpu",
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.data, self.systems = settings, data, tuple(systems)
        self.device = device
        self._loaded: dict[str, Dataset] = {}
        missing = [source for source in settings.sources if source not in data]
        if missing:
            raise ConfigError(
                f"the benchmark has no data set {missing[0]}; there are {', '.join(data)}"
            )
        for system in systems:
            if system.kind == "rival":
                rival_of(system.sections["rival"], system.label)

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        systems = [BenchmarkSystem.of(one, number) for number, one in enumerate(table["systems"])]
        settings = config.build(BenchmarkConfig, table.get("study", {}), "study")
        return cls(settings, table["data"], systems, cells, threads, report, device)

    def narrowed(
        self, sets: Sequence[str], systems: Sequence[str], *, attacks: bool = False
    ) -> Self:
        """With these data sets and systems alone, where any are named."""
        settings = replace(self.config, attacks=attacks or self.config.attacks)
        if sets:
            settings = replace(settings, sources=tuple(sets))
        labels = {system.label.casefold(): system for system in self.systems}
        unknown = [name for name in systems if name.casefold() not in labels]
        if unknown:
            known = ", ".join(system.label for system in self.systems)
            raise ConfigError(f"the benchmark has no system {unknown[0]!r}; there are {known}")
        chosen = [labels[name.casefold()] for name in systems] or self.systems
        return type(self)(
            settings, self.data, chosen, self.folder, self.threads, self.report, self.device
        )

    def describe(self) -> str:
        return (
            "full ranking over all items that a user has not; mean over users and "
            f"{count_of(self.config.seeds)}, 95 % by Student's t over users; the latest 20 % of "
            "each user's items are held out where there are times (otherwise a random 20 %, or the "
            "published split); rivals draw negatives from outside the training part, with rates "
            "chosen on the validation part; systems of ours are presets as shipped"
        )

    def describe_data(self) -> str:
        return "; ".join(self.config.sources)

    def systems_of(self, source: str) -> list[BenchmarkSystem]:
        return [one for one in self.systems if not one.sources or source in one.sources]

    # --- cells ------------------------------------------------------------------------------------

    def dataset(self, source: str) -> Dataset:
        if source not in self._loaded:
            self._loaded[source] = self._experiment(source, {}, 0).dataset()
        return self._loaded[source]

    def _experiment(
        self, source: str, sections: Mapping[str, Any], seed: int, part: str = "test"
    ) -> Experiment:
        parts = {name: value for name, value in sections.items() if name in _SECTIONS}
        data = {**self.data[source], "part": part}
        return Experiment.from_table({"name": "benchmark", "seed": seed, "data": data, **parts})

    def cell(
        self, source: str, system: BenchmarkSystem, seed: int
    ) -> tuple[Arrays, BenchmarkFacts]:
        """Each user's figures, and what they cost."""
        sections = system.sections_at(source)
        if system.kind == "rival":
            sections = {"rival": self._chosen(source, sections["rival"], system.grid)}
        return self._cell(source, sections, seed, "test")

    def _cell(
        self, source: str, sections: Mapping[str, Any], seed: int, part: str
    ) -> tuple[Arrays, BenchmarkFacts]:
        attacked = self.config.attacks and "algorithm" in sections and part == "test"
        fingerprint = self.dataset(source).fingerprint()
        key = [VERSION, source, fingerprint, self.data[source], part, sections, seed, attacked]
        found = self.kept(
            key, [*METRICS, "facts"], lambda: self._measured(source, sections, seed, part, attacked)
        )
        return found, _facts(bytes(found["facts"]))

    def _chosen(
        self, source: str, rival: Mapping[str, Any], grid: Mapping[str, list[Any]]
    ) -> dict[str, Any]:
        """A rival's settings, by NDCG@10 on the validation part."""
        rounds = {"rounds": self.config.rounds} if self.config.rounds else {}
        cases = cases_of({**rival, **rounds}, grid)

        def score(case: dict[str, Any]) -> float:
            found, _ = self._cell(source, {"rival": case}, 0, "validation")
            return float(found["NDCG@10"].mean())

        return best_case(cases, score)

    def _measured(
        self, source: str, sections: Mapping[str, Any], seed: int, part: str, attacked: bool
    ) -> Arrays:
        experiment = self._experiment(source, sections, seed, part)
        started = time.perf_counter()
        if "algorithm" in sections:
            found, facts = self._ours(experiment, sections, attacked)
        else:
            split = experiment.split(self.dataset(source))
            try:
                scorer, facts = self._others(split, sections, seed)
            except Diverged:
                if part == "test":
                    raise
                return {**dict.fromkeys(METRICS, WORST), "facts": np.frombuffer(b"{}", np.uint8)}
            facts |= {"seconds": time.perf_counter() - started, "test": answers_digest(split)}
            protocol = experiment.evaluation.protocol(split, seed)
            found = evaluate(scorer, split.train, split.test, protocol, threads=self.threads)
        told = BenchmarkFacts(**facts, protocol=found.describe())
        table = asdict(told) | {"epsilon": told.epsilon if math.isfinite(told.epsilon) else None}
        text = np.frombuffer(json.dumps(table).encode(), dtype=np.uint8)
        return {**{metric: found.per_user(metric) for metric in METRICS}, "facts": text}

    def _others(
        self, split: Split, sections: Mapping[str, Any], seed: int
    ) -> tuple[Scorer, dict[str, Any]]:
        """A rival, which sends in every round all that is shared; or a central reference, to which
        everybody hands over her history."""
        nothing: dict[str, Any] = {"epsilon": math.inf, "attacks": NOT_ATTACKED}
        if "rival" in sections:
            settings = rival_of(sections["rival"])
            sent = float(settings.sent(split.train.n_items) * settings.rounds)
            scorer = rival_scorer(sections["rival"], split, seed, self.device)
            about = {"up": sent, "down": sent, "bound": "no bound", "settings": sections["rival"]}
            return scorer, about | nothing
        baseline = named(sections["baseline"], BASELINES, "", "baseline")
        if isinstance(baseline, LightGCN):
            baseline = replace(baseline, device=self.device)
        scorer = baseline.fit(split.train, Streams.from_seed(seed).child("baseline", baseline.name))
        about = {"up": -1.0, "down": -1.0, "bound": "sees everything"}
        return scorer, about | nothing | {"settings": dict(sections["baseline"])}

    def _ours(
        self, experiment: Experiment, sections: Mapping[str, Any], attacked: bool
    ) -> tuple[Evaluation, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run"
            outcome = run_experiment(experiment, out, threads=self.threads)
            folder = outcome.folder
            if folder is None:
                raise ConfigError("a cell of the benchmark needs a run folder")
            ledger, users = folder.ledger(), outcome.split.n_users
            totals, where = totals_of(ledger), standing(experiment, ledger)
            down = -1.0
            if isinstance(outcome, DeviceOutcome):
                model = 4.0 * outcome.federation.server.items.size
                down = model * (totals.releases / users + 1)  # one to recommend by
            attacks = NOT_ATTACKED
            if attacked:
                attacks = _verdict(attack_run(out, threads=self.threads).attacks())
        return outcome.evaluations[outcome.system], {
            "up": totals.bytes / users, "down": down, "epsilon": where.epsilon,
            "bound": where.short, "attacks": attacks, "seconds": outcome.seconds,
            "settings": dict(sections), "test": answers_digest(outcome.split),
        }  # fmt: skip

    def row(self, source: str, system: BenchmarkSystem) -> dict[str, Any]:
        """Over all seeds; a central reference and each user's figures once."""
        seeds = self.config.seeds[:1] if system.kind == "central" else self.config.seeds
        cells = [self.cell(source, system, seed) for seed in seeds]
        facts = [told for _, told in cells]
        values: dict[str, Floats] = {
            metric: np.mean([found[metric] for found, _ in cells], axis=0) for metric in METRICS
        }
        verdicts = list(dict.fromkeys(told.attacks for told in facts))
        return {
            "data": source, "system": system.label, "kind": system.kind, "values": values,
            "up": float(np.mean([told.up for told in facts])),
            "down": float(np.mean([told.down for told in facts])),
            "epsilon": max(told.epsilon for told in facts), "bound": facts[0].bound,
            "attacks": "; ".join(verdicts), "seconds": min(told.seconds for told in facts),
            "settings": facts[0].settings, "protocol": facts[0].protocol, "test": facts[0].test,
        }  # fmt: skip

    def rows(self, source: str) -> list[dict[str, Any]]:
        chosen = self.systems_of(source)
        return self.many(source, lambda system: self.row(source, system), chosen, threads=1)


def answers_digest(split: Split) -> str:
    """Of who is to be recommended what, by the names of users and items."""
    found = hashlib.blake2b(digest_size=8)
    test = split.test
    users, items = test.users_vocabulary(), test.items_vocabulary()
    for user in range(test.n_users):
        row = test.items[test.indptr[user] : test.indptr[user + 1]].tolist()
        if row:
            names = "\t".join([users.name(user), *sorted(items.name(item) for item in row)])
            found.update(names.encode() + b"\n")
    return found.hexdigest()


def _verdict(attacks: Sequence[Mapping[str, Any]]) -> str:
    """What the suite came to, in a few words."""
    codes: dict[str, list[str]] = {}
    for one in attacks:
        codes.setdefault(str(one["verdict"]), []).append(str(one["code"]))
    parts = [f"{verdict}: {', '.join(dict.fromkeys(codes[verdict]))}" for verdict in sorted(codes)]
    return "; ".join(parts) or "nothing to attack"
