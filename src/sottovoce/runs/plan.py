"""What a run takes before it is run: time, memory, bytes and storage, from measured constants.

An algorithm says how many operations of which kinds a round of so many devices has
(`AlgorithmSettings.work`), and its parts say how long messages are. What one operation takes on a
machine, and what a device takes of its memory, is measured: rounds of a few sizes are run, and
constants that are no less than 0 are fitted to what they took. Then

    seconds of a round = Σ shared work · constant / (ranks · threads' gain)
                         + Σ work that every rank repeats · constant + the sum over ranks
    bytes of a rank    = a process + (devices · constant + interactions · constant) / ranks
                         + numbers of the model · constant + ledger rows since the last checkpoint

A world of another size is the experiment's own users, repeated. Evaluation and baselines are not
counted. Constants that come with the package say where and when they were measured.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import AlgorithmSettings, Contributing, FactorModel, Schedule
from sottovoce.core.consent import Consent
from sottovoce.core.links import Link
from sottovoce.errors import ConfigError
from sottovoce.evaluation.tables import Column, Table
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.parties.secure_sum import fitted
from sottovoce.privacy.base import Release
from sottovoce.privacy.reports import SEALED_BYTES
from sottovoce.runs.owners import build_world
from sottovoce.runs.tables import readable_bytes
from sottovoce.runs.topology import CHECKPOINT_SECONDS
from sottovoce.wire import interactions

SHIPPED = Path(__file__).with_name("constants.toml")
_LEDGER_ROW, _REPORTS_ROW = 40, 60
"""Bytes in memory of a ledger row, and of one of randomised reports."""
_VERSIONS = 8
"""Models that a server keeps."""


# --- constants ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What operations and devices of an algorithm take on a machine, for one thread."""

    seconds: Mapping[str, float]
    """By kind of operation."""
    bytes: Mapping[str, float]
    """"process", and of each "device", "entry" of a history and "number" of the model."""
    where: str
    when: str
    """A day."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything that a plan is computed from."""

    algorithms: Mapping[str, MeasuredCosts]
    gpus: Mapping[str, MeasuredCosts] = field(default_factory=dict)
    thread_gain: float = 1.0
    """What each further thread brings."""
    ledger_bytes: float = 8.0
    """What a ledger row takes on disk."""

    @classmethod
    def load(cls, path: Path | None = None) -> Constants:
        """Those that come with the package, or of a file that was written by `save`."""
        try:
            table = tomllib.loads((path or SHIPPED).read_text(encoding="utf-8"))
            both = [
                {name: MeasuredCosts(**one) for name, one in table.get(kind, {}).items()}
                for kind in ("algorithms", "gpus")
            ]
            return cls(both[0], both[1], **table.get("machine", {}))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
            raise ConfigError(f"{path} has no constants of a plan: {error}") from None

    def save(self, path: Path) -> None:
        lines = ["# What a plan is computed from (`sottovoce plan --measure`).", "", "[machine]"]
        lines += [f"{name} = {getattr(self, name):.6g}" for name in ("thread_gain", "ledger_bytes")]
        for kind, found in (("algorithms", self.algorithms), ("gpus", self.gpus)):
            for name, one in sorted(found.items()):
                lines += [
                    "",
                    f'[{kind}."{name}"]',
                    f'where = "{one.where}"',
                    f'when = "{one.when}"',
                ]
                for part in ("seconds", "bytes"):
                    said = (f'"{k}" = {v:.6g}' for k, v in getattr(one, part).items())
                    lines.append(f"{part} = {{ {', '.join(said)} }}")
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
        partial.replace(path)

    def with_measured(self, name: str, found: MeasuredCosts) -> Constants:
        return replace(self, algorithms={**self.algorithms, name: found})

    def of(self, name: str, *, gpu: bool = False) -> MeasuredCosts:
        found = (self.gpus if gpu else self.algorithms).get(name)
        if found is None:
            known = ", ".join(sorted(self.gpus if gpu else self.algorithms)) or "nothing"
            raise ConfigError(
                f"nothing was measured of {name}{' on a GPU' * gpu}, only of {known}"
                + ("" if gpu else "; measure it here with --measure")
            )
        return found


# --- what is known of the data --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsersAlike:
    """What a plan has to know of the devices: how they are, not how many."""

    algorithm: AlgorithmSettings
    """As it is on their data."""
    items: int
    held: NDArray[np.int64]
    """Interactions of each user who takes part, of some who stand for all."""
    consent: Consent
    """What the same users have chosen."""
    entries: float
    """Interactions of a user on average, also of those who take no part."""
    taking_part: float = 1.0
    """Which share of the users does."""
    table_bytes: float = 0.0
    """What a user takes in the tables of the data, of training and of test."""
    told: float = 1.0
    """Data owners that hear of an interaction."""

    @classmethod
    def of(cls, prepared: PreparedExperiment) -> UsersAlike:
        train, consent = prepared.split.train, prepared.consent
        there = consent.takes_part & (train.counts > 0)
        if not there.any():
            raise ConfigError("nobody takes part, so that there is nothing to plan")
        return cls(
            settings_on(prepared),
            train.n_items,
            train.counts[there].astype(np.int64),
            consent.take(np.flatnonzero(there)),
            train.n_interactions / train.n_users,
            float(there.mean()),
            _table_bytes(prepared) / train.n_users,
            _told(prepared),
        )

    @property
    def mean(self) -> float:
        return float(self.held.mean())

    def resized(self, items: int | None, each: int | None) -> UsersAlike:
        """With so many items, and interactions of everybody, where that is said."""
        items = items or self.items
        held = self.held if each is None else np.full_like(self.held, each)
        entries = self.entries if each is None else float(each)
        held_bytes = self.table_bytes * entries / self.entries
        if int(held.max()) >= items:
            raise ConfigError(f"of {items:,} items nobody can have {int(held.max()):,} or more")
        return replace(self, items=items, held=held, entries=entries, table_bytes=held_bytes)


def settings_on(prepared: PreparedExperiment) -> AlgorithmSettings:
    """Those of the algorithm, with what it takes from the data."""
    experiment = prepared.experiment
    if experiment.silo is not None:
        return experiment.silo
    return experiment.on(prepared.dataset, prepared.consent)[0]


def _told(prepared: PreparedExperiment) -> float:
    """How many data owners hear of an interaction; a server is one."""
    if prepared.experiment.silo is None:
        return 1.0
    read = build_world(prepared)[0].departed.read
    there = prepared.consent.takes_part[prepared.split.train.users]
    return int((read.positive + read.negative).sum()) / max(1, int(there.sum()))


def _table_bytes(prepared: PreparedExperiment) -> float:
    """What the data and both parts of their split take, which are in memory together."""
    split = prepared.split
    tables = (prepared.dataset.interactions, split.train, split.test)
    columns = [c for t in tables for c in (t.indptr, t.items, t.timestamps, t.ratings)]
    return float(sum(column.nbytes for column in columns if column is not None))


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    """The machines that a run would have."""

    devices: int
    ranks: int = 1
    threads: int = 1
    """Those of a rank."""
    gpu: bool = False
    """Whether each rank has one, which does what devices do."""
    network: float = 10.0
    """Between ranks, in Gbit a second."""

    def __post_init__(self) -> None:
        if min(self.devices, self.ranks, self.threads) < 1 or not self.network > 0:
            raise ConfigError("a plan needs at least one device, rank and thread, and a network")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run takes. Bytes are those of messages as the ledger counts them; a model travels
    uncompressed."""

    system: str
    devices: int
    items: int
    ranks: int
    threads: int
    gpu: bool
    cohort_size: int
    rounds: int
    seconds_round: float
    seconds: float
    sum_seconds: float
    """Of these of a round, what sums over ranks take."""
    rank_bytes: float | None
    """Most memory of a rank, its GPU's where it has one; None where nobody has measured it."""
    pending_bytes: float
    """Of these, what ledger rows since the last checkpoint take."""
    pending_rounds: int
    """Rounds since the last checkpoint, at most."""
    down: float
    """Bytes to a device in a round."""
    up: float
    """Bytes from it. The others below are those of all devices, of a round and of the run."""
    down_round: float
    up_round: float
    down_whole: float
    up_whole: float
    storage: float
    """Bytes of the run's folder: vectors, model, ledger."""
    server_storage: float
    """What the models that a real server keeps take."""
    requests: float
    """At a real server, a second, if every round lasts until its deadline."""
    measured: str
    """Where and when."""
    largest: bool
    """Whether a message's size depends on the data, and is the largest that it can be."""

    def to_table(self) -> dict[str, Any]:
        return asdict(self)


def planned(
    experiment: Experiment,
    users: UsersAlike,
    where: Where,
    constants: Constants,
    seen: Sequence[tuple[float, float]] = (),
) -> RunPlan:
    """What the experiment takes with so many devices there. `seen`: (devices of a rank, its most
    bytes) of runs that were made; a line through them takes the place of the constants of
    memory."""
    settings, taking = users.algorithm, max(1, round(where.devices * users.taking_part))
    plan = settings.plan(taking, round(taking * users.mean))
    up, down, largest = message_bytes(experiment, users, plan)
    work = settings.work(plan, users.items, experiment.release)
    if not work.shared:  # one step after the other, which ranks cannot share out
        where = replace(where, ranks=1, threads=1)
    found = constants.of(settings.name, gpu=where.gpu)
    if where.gpu and not set(work.shared or work.repeated) & set(found.seconds):
        raise ConfigError(
            f"nothing was measured on a GPU of what {experiment.system} does, only of other kinds "
            f"of {settings.name}"
        )
    rows, width = settings.model_rows(users.items), settings.width
    gain = 1.0 if where.gpu else 1.0 + (where.threads - 1) * constants.thread_gain
    over_ranks = _reducing(where, settings.numbers_sent(users.items))
    each = _cost(work.shared, found) / (where.ranks * gain)
    seconds = each + _cost(work.repeated, found) + over_ranks
    pending = min(plan.rounds, max(1, math.ceil(CHECKPOINT_SECONDS / max(seconds, 1e-9))))
    reports = experiment.release is not None and experiment.release.reporting is not None
    row = _REPORTS_ROW if reports else _LEDGER_ROW
    ledger = float(row * plan.cohort_size * pending)
    held: float | None = rank_bytes(where, users, found, rows * width, ledger)
    if not found.bytes:
        held = None
    if seen:
        held = _on_line(seen, where.devices / where.ranks)
    cohort, rules = plan.cohort_size, experiment.service
    asked = cohort * (1.0 + rules.over_selection)
    return RunPlan(
        system=experiment.system,
        devices=where.devices,
        items=users.items,
        ranks=where.ranks,
        threads=where.threads,
        gpu=where.gpu,
        cohort_size=cohort,
        rounds=plan.rounds,
        seconds_round=seconds,
        seconds=seconds * plan.rounds,
        sum_seconds=over_ranks,
        rank_bytes=held,
        pending_bytes=ledger / where.ranks,
        pending_rounds=pending,
        down=down,
        up=up,
        down_round=down * cohort,
        up_round=up * cohort,
        down_whole=down * cohort * plan.rounds,
        up_whole=up * cohort * plan.rounds,
        storage=4.0 * settings.embedding_size * where.devices
        + 4.0 * rows * width
        + constants.ledger_bytes * cohort * plan.rounds,
        server_storage=4.0 * rows * width * _VERSIONS,
        requests=taking / rules.poll_seconds + (asked + cohort) / rules.deadline_seconds,
        measured=f"{found.where}, {found.when}",
        largest=largest,
    )


def tables(made: RunPlan) -> list[Table]:
    """The plan, to be shown."""
    size, many = readable_bytes, 1 if made.gpu else made.threads
    one = "GPU" if made.gpu else "thread"
    said = {
        "devices": f"{made.devices:,}, {made.cohort_size:,} in a round",
        "ranks": f"{made.ranks:,}, each with {many} {one}{'s' * (many > 1)}",
        "a round": f"{_duration(made.seconds_round)}, of which adding up over ranks takes "
        f"{_duration(made.sum_seconds)}",
        "the whole run": f"{_duration(made.seconds)}, {made.rounds:,} rounds",
        "memory of a rank": "not measured" if made.rank_bytes is None else size(made.rank_bytes),
        "to a device in a round": size(made.down),
        "from a device in a round": size(made.up) + ", at most" * made.largest,
        "downloads": f"{size(made.down_round)} a round, {size(made.down_whole)} in all, unless a "
        "cache carries them",
        "uploads": f"{size(made.up_round)} a round, {size(made.up_whole)} in all",
        "run folder": size(made.storage),
        "models at a server": size(made.server_storage),
        "requests at a server": f"{made.requests:,.3g} a second",
    }
    notes = [f"Measured on {made.measured}. Evaluation and baselines are not counted."]
    rows = [{"what": what, "value": value} for what, value in said.items()]
    return [Table(f"Plan of {made.system}", [Column("what"), Column("value")], rows, notes=notes)]


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.3g} {unit}"
    return f"{seconds:.3g} s"


def message_bytes(
    experiment: Experiment, users: UsersAlike, plan: Schedule
) -> tuple[float, float, bool]:
    """Bytes of a device in a round, on average: up, down, and whether up is the most it can be."""
    settings, items = users.algorithm, users.items
    if experiment.silo is not None:
        return users.mean * users.told * interactions.SEALED_BYTES, 0.0, False
    release, link = _parts(experiment)
    down = 4.0 * settings.model_rows(items) * settings.width
    if release.reporting is not None:
        return release.reporting.max_reports * (SEALED_BYTES + link.layer_bytes), down, False
    algorithm = settings.build_under(release, link, plan.triples)
    way = fitted(algorithm, release, link, plan.triples, plan.cohort_size)
    if release.contributing is not None:
        sent = settings.numbers_sent(items)
        each = [_contribution(algorithm, way, stage, many) for stage, many in enumerate(sent)]
        return float(np.mean(each)), down, True
    rows = settings.rows_sent(plan.triples, items, users.held, users.consent, release)
    if release.dense:
        rows = settings.model_rows(items)
    numbers = settings.model_rows(items) * settings.width
    exact = way.message_bytes(np.ones(1, np.int64), algorithm.row_bytes, numbers)
    if way.summing is None:
        return rows * algorithm.row_bytes, down, False
    return float(exact[0]), down, False


def _parts(experiment: Experiment) -> tuple[Release, Link]:
    _, release, link = experiment.cross_device()
    return release, link


def _contribution(algorithm: FactorModel, link: Link, stage: int, numbers: int) -> int:
    if link.checking is not None:
        places = cast(Contributing, algorithm).contribution(stage, numbers)
        numbers = link.checking.form(*places).elements
    return int(link.message_bytes(np.zeros(1, np.int64), 0, numbers)[0])


def _cost(work: Mapping[str, float], found: MeasuredCosts) -> float:
    return sum(many * found.seconds.get(kind, 0.0) for kind, many in work.items())


def _reducing(where: Where, numbers: Sequence[int]) -> float:
    """Seconds in which ranks add up what they have: each sends and gets twice what it holds."""
    if where.ranks == 1:
        return 0.0
    moved = 8.0 * float(np.mean(numbers)) * 2.0 * (where.ranks - 1) / where.ranks
    return moved / (where.network * 1e9 / 8.0) + 1e-4 * math.ceil(math.log2(where.ranks))


def rank_bytes(
    where: Where, users: UsersAlike, found: MeasuredCosts, numbers: float, ledger: float = 0.0
) -> float:
    """The most memory of a rank."""
    devices = where.devices / where.ranks
    entries, each = devices * users.entries, found.bytes
    return (
        each.get("process", 0.0)
        + devices * (users.table_bytes + each.get("device", 0.0))
        + entries * each.get("entry", 0.0)
        + numbers * each.get("number", 0.0)
        + ledger / where.ranks
    )


def _on_line(seen: Sequence[tuple[float, float]], devices: float) -> float:
    x, y = np.array(seen, dtype=np.float64).T
    if len(np.unique(x)) < 2:
        raise ConfigError("memory that was seen must be of ranks of two sizes at least")
    slope, start = np.polyfit(x, y, 1)
    return float(start + slope * devices)
