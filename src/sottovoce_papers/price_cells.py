"""Cells of the price list: an experiment trained, timed and attacked once, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from sottovoce import config
from sottovoce.attacks.views import ATTACKS
from sottovoce.core.ledger import totals_of
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment
from sottovoce.privacy.central import noise_for
from sottovoce.runs.attack import attack_run
from sottovoce.runs.card import Card
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import DeviceOutcome, Report, RunOutcome, SiloOutcome, run_experiment
from sottovoce.wire.silo_rounds import gradients_bytes, request_bytes, rows_bytes
from sottovoce_papers.study import Study, check_sources, installed, laid_over

Table = Mapping[str, Any]
Attacker = Callable[[Path, int, int], Card]
"""From a run folder, how many rounds to look at (0: enough for the attacks), and threads."""
VERSION = 1
"""Of what a cell holds."""
SHOWN = ("P@10", "R@10", "NDCG@10", "IC@10")


@dataclass(frozen=True, slots=True)
class PriceConfig:
    sources: tuple[str, ...] = ("movielens-1m", "foursquare-italy")
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError("study.seeds needs one seed or several, each once")


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One way to run one system."""

    system: str
    label: str
    kind: str
    """ "printed", "sound", "sums" (without noise, which are not sound) or, beside them, "other"."""
    sections: Table = field(repr=False)
    """Of an experiment file."""
    at: Mapping[str, Table] = field(default_factory=dict, repr=False)
    """By source: what is laid over the sections there."""
    sources: tuple[str, ...] = ()
    """Where it runs; everywhere by default."""
    rounds: int = 0
    """Whose messages are attacked; 0: enough for the attacks."""
    epsilon: float = 0.0
    """What noise on the sums costs a user in all; link.noise follows from it, unless the release
    has the noise."""

    @classmethod
    def of(cls, table: Table, number: int) -> PriceRow:
        fields = dict(table)
        names = ("data", "algorithm", "release", "link", "consent", "owners", "evaluation")
        sections = {name: fields.pop(name) for name in names if name in fields}
        at = fields.pop("at", {})
        known = {f.name for f in dataclass_fields(cls)} - {"sections", "at"}
        if not {"system", "label", "kind"} <= set(fields) <= known:
            raise ConfigError(f"rows[{number}] needs a system, a label and a kind, and has others")
        fields["sources"] = tuple(fields.get("sources", ()))
        row = cls(sections=sections, at=at, **fields)
        if row.kind not in ("printed", "sound", "sums", "other"):
            raise ConfigError(f"rows[{number}].kind must be printed, sound, sums or other")
        return row

    def attacked(self, source: str) -> int:
        """Rounds whose messages are attacked on these data; 0: enough for the attacks."""
        return int(self.at.get(source, {}).get("rounds", self.rounds))

    def experiment(self, source: str, data: Table, seed: int) -> Experiment:
        """As it is on these data."""
        above = {k: v for k, v in self.at.get(source, {}).items() if k != "rounds"}
        table: dict[str, Any] = laid_over(dict(self.sections), above)
        table = laid_over({"data": dict(data)}, table) | {"name": "price-list", "seed": seed}
        table["baselines"] = {"top-pop": {}}
        if self.epsilon and "epsilon" not in table.get("release", {}):
            rounds = table["algorithm"].get("rounds", 0)
            if not rounds:
                raise ConfigError(f"{self.label}: noise for an ε needs algorithm.rounds")
            noise = math_up(noise_for(self.epsilon, rounds))
            table["link"] = {**table.get("link", {}), "noise": noise}
        return Experiment.from_table(table)


def math_up(value: float) -> float:
    """Rounded up in the third place, so that the price is no higher than it says."""
    return float(np.ceil(value * 1000) / 1000)


@dataclass(frozen=True, slots=True)
class PriceCell:
    """What a row came to on one data set."""

    accuracy: Mapping[str, float]
    top_pop: float
    protocol: str
    data: str
    devices: int
    rounds: int
    up: float
    """Bytes that a device sends in a round; of an owner in an epoch, in DRIFT."""
    down: float
    seconds: float
    """Of a round, all devices and the server, messages and masks included; of an epoch in DRIFT.
    Of several seeds the fastest: a machine is never faster than it is, but often slower."""
    digest: str
    """Of the model and everybody's vectors."""
    noise: float
    attacks: tuple[Mapping[str, Any], ...]
    left_out: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def joined(cls, cells: Mapping[int, PriceCell]) -> PriceCell:
        """Of several seeds: means of what was measured, and all attacks, done and left out."""
        first = next(iter(cells.values()))
        attacks = [{**a, "seed": seed} for seed, cell in cells.items() for a in cell.attacks]
        every = [one for cell in cells.values() for one in cell.left_out]
        left_out = {json.dumps(one, sort_keys=True): one for one in every}
        notes = [f"seed {seed}: {note}" for seed, cell in cells.items() for note in cell.notes]
        return replace(
            first,
            accuracy={
                name: float(np.mean([cell.accuracy[name] for cell in cells.values()]))
                for name in first.accuracy
            },
            top_pop=float(np.mean([cell.top_pop for cell in cells.values()])),
            up=float(np.mean([cell.up for cell in cells.values()])),
            seconds=min(cell.seconds for cell in cells.values()),
            digest="+".join(cell.digest for cell in cells.values()),
            attacks=tuple(attacks),
            left_out=tuple(left_out.values()),
            notes=tuple(notes if len(cells) > 1 else first.notes),
        )


def attack_folder(folder: Path, rounds: int, threads: int) -> Card:
    card = attack_run(folder, rounds=rounds or None, threads=threads)
    card.require_whole()
    return card


class PriceStudy(Study):
    """Rows on data sets; nothing is run twice."""

    prefix = "price-"

    def __init__(
        self,
        settings: PriceConfig,
        data: Mapping[str, Table],
        rows: Sequence[PriceRow],
        cells: Path,
        threads: int,
        report: Report,
        attacker: Attacker = attack_folder,
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.data, self.rows = settings, data, tuple(rows)
        self._attacker = attacker
        self._found: dict[str, list[tuple[PriceRow, PriceCell]]] = {}
        self._fingerprints: dict[str, str] = {}
        check_sources(settings.sources, data)

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        study = config.build(PriceConfig, table.get("study", {}), "study")
        rows = [PriceRow.of(row, number) for number, row in enumerate(table["rows"])]
        return cls(study, table["data"], rows, cells, threads, report)

    def describe_data(self) -> str:
        found = {source: self.results(source) for source in self.config.sources}
        return "; ".join(rows[0][1].data if rows else source for source, rows in found.items())

    def describe(self) -> str:
        named = ", ".join(map(str, self.config.seeds))
        seeds = f"mean of the seeds {named}" if len(self.config.seeds) > 1 else f"seed {named}"
        return (
            "each user's latest 20 % held out, top 10 of all training items that the user has not "
            f"touched; {seeds}; short trainings, so that accuracy is below that of "
            "the accuracy tables; attacks on the messages of the first rounds and on the final "
            "model"
        )

    def rows_of(self, source: str) -> list[PriceRow]:
        return [row for row in self.rows if not row.sources or source in row.sources]

    def results(self, source: str) -> list[tuple[PriceRow, PriceCell]]:
        """All rows of a data set, one after the other."""
        if source not in self._found:
            rows = self.rows_of(source)
            cells = self.many(source, lambda row: self.cell(row, source), rows, threads=1)
            self._found[source] = list(zip(rows, cells, strict=True))
        return self._found[source]

    def cell(self, row: PriceRow, source: str) -> PriceCell:
        """Over all seeds."""
        return PriceCell.joined(
            {seed: self._of_seed(row, source, seed) for seed in self.config.seeds}
        )

    def _of_seed(self, row: PriceRow, source: str, seed: int) -> PriceCell:
        experiment = row.experiment(source, self.data[source], seed)
        data = repr(experiment.data)
        if data not in self._fingerprints:
            self._fingerprints[data] = experiment.dataset().fingerprint()
        rounds = row.attacked(source)
        suite = [f"{attack.code} {attack.name}" for attack in ATTACKS.values()]
        about = {**experiment.table, "baselines": ""}
        key = ["price", VERSION, self._fingerprints[data], about, rounds, suite]
        found = self.kept(
            key, ["json"],
            lambda: {"json": np.frombuffer(self._measure(experiment, rounds), dtype=np.uint8)},
        )  # fmt: skip
        return _cell(json.loads(bytes(found["json"])))

    def _measure(self, experiment: Experiment, rounds: int) -> bytes:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run"
            outcome = run_experiment(experiment, out, threads=self.threads)
            card = self._attacker(out, rounds, self.threads)
            measured = _measured(outcome, card, self.threads)
        return json.dumps(asdict(measured)).encode()


def _cell(table: dict[str, Any]) -> PriceCell:
    for name in ("attacks", "left_out", "notes"):
        table[name] = tuple(table[name])
    return PriceCell(**table)


def _measured(outcome: RunOutcome, card: Card, threads: int) -> PriceCell:
    own, folder = outcome.evaluations[outcome.system], outcome.folder
    if folder is None:
        raise ConfigError("a cell of the price list needs a run folder")
    summary, train = own.summary(), outcome.split.train
    link = outcome.experiment.link
    if isinstance(outcome, SiloOutcome):
        devices, rounds, up, down, seconds = _owners(outcome)
    elif isinstance(outcome, DeviceOutcome):
        totals = totals_of(folder.ledger())
        plan, items = outcome.federation.schedule, outcome.federation.server.items
        devices, rounds = plan.cohort_size, plan.rounds
        up, down = totals.bytes / max(1, totals.releases), float(4 * items.size)
        seconds = _seconds(outcome, threads)
    else:
        raise ConfigError("the price list knows devices and data owners alone")
    return PriceCell(
        accuracy={name: float(summary[name]) for name in SHOWN if name in summary},
        top_pop=float(outcome.evaluations["top-pop"].summary()["P@10"]),
        protocol=own.describe(),
        data=f"{outcome.dataset.name}: {train.n_users:,} users, {train.n_items:,} training items, "
        f"{train.n_interactions:,} training interactions",
        devices=devices,
        rounds=rounds,
        up=up,
        down=down,
        seconds=seconds,
        digest=_digest(folder.model(), folder.vectors()),
        noise=float(getattr(link, "noise", 0.0)),
        attacks=tuple(card.attacks()),
        left_out=tuple(asdict(one) for one in card.not_applicable),
        notes=tuple(card.notes),
    )


def _digest(*arrays: np.ndarray[Any, Any]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class _Deaf:
    """Where somebody listens, messages are written out; nothing is kept of them here."""

    def on_message(self, party: str, message: object) -> None:
        pass


def _seconds(outcome: DeviceOutcome, threads: int) -> float:
    """Of one round by messages, as they would be sent: what devices learn, their masks, the server,
    the proxy. Everything is compiled by now: the run was attacked."""
    experiment = outcome.experiment
    settings = experiment.cross_device()
    algorithm, labels = experiment.on(outcome.dataset, outcome.consent)
    federation = Federation.build(
        algorithm, outcome.split.train, outcome.consent, settings.release,
        experiment.streams().child("federation"), labels, settings.link,
    )  # fmt: skip
    federation.schedule = replace(federation.schedule, rounds=1)
    started = time.perf_counter()
    federation.run([], [_Deaf()], threads=threads)
    return time.perf_counter() - started


def _owners(outcome: SiloOutcome) -> tuple[int, int, float, float, float]:
    """Data owners, epochs, and the bytes and seconds of an epoch; bytes are those of an owner."""
    world, facts = outcome.world, outcome.facts
    settings, owners = world.config, len(world.owners)
    rows, updates = facts.user_rows + facts.item_rows, max(1, facts.updates)

    def of_epoch(empty: int, each: int) -> int:
        return updates * empty + rows * each

    size = settings.embedding_size
    asked = of_epoch(request_bytes(0, 0), 4)
    sent = of_epoch(gradients_bytes(0, 0, size), 4 * (1 + size))
    given = of_epoch(rows_bytes(0, 0, size), 4 * (1 + size))
    seconds = outcome.seconds / settings.epochs
    return owners, settings.epochs, (asked + sent) / owners, given / owners, seconds
