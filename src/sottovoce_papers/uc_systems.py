"""Systems of UC-FedRec's figures over seeds: how well they serve whom, and what attackers guess."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import each
from sottovoce.evaluation.report import FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.significance import Paired, paired_t
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.fpl_table2 import claims_table
from sottovoce_papers.study import kept
from sottovoce_papers.uc_study import Attack, Attacked, Cell, Job, UCStudy
from sottovoce_papers.uc_training import Measured, Trained

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Users = Callable[[Cell], Mask]
"""Some of the users; which ones depends on the seed."""
Row = dict[str, Any]
BASE, UC = "base model", "UC-FedRec"
ML, DOUBAN = "movielens-1m", "douban-book"
SAME = 0.005
"""Differences in HR@10 below this are not taken for a fall."""


@dataclass(frozen=True, slots=True, repr=False)
class System:
    """One system, with a run for each seed."""

    group: str
    """What kind of protection, such as Gaussian noise."""
    strength: str
    """How much of it, such as σ=3."""
    cells: tuple[Cell, ...]
    runs: tuple[Measured, ...]
    tables: tuple[NDArray[Any] | None, ...] = ()
    """Representations, where they are not those that were trained."""
    tag: str = ""
    """How they were made."""

    @property
    def label(self) -> str:
        return f"{self.group}, {self.strength}" if self.strength else self.group

    @property
    def trained(self) -> list[Trained]:
        """Its runs that are trainings of their own."""
        return [run for run in self.runs if isinstance(run, Trained)]

    def scores(self, users: Users | None = None) -> tuple[float, float]:
        """HR@10 and NDCG@10, the mean over seeds, of these users or of all."""
        pairs = zip(self.cells, self.runs, strict=True)
        found = [(r.hr, r.ndcg) if users is None else r.of(users(c)) for c, r in pairs]
        hr, ndcg = np.nanmean(found, axis=0)  # a seed may have no such user
        return float(hr), float(ndcg)

    def jobs(self, attribute: str) -> list[Job]:
        tables = self.tables or (None,) * len(self.cells)
        return [Job(c, attribute, t, self.tag) for c, t in zip(self.cells, tables, strict=True)]


def places(study: UCStudy) -> list[tuple[str, Any]]:
    """Sources and recommenders under study."""
    c = study.config
    return [(source, recommender) for source in c.sources for recommender in c.recommenders]


def described(study: UCStudy, source: str, recommender: Any) -> Row:
    plain = study.cell(source, recommender, 0).words()
    return {"data": study.world(source).title, "system": plain}


def named(study: UCStudy, source: str, recommender: Any) -> str:
    row = described(study, source, recommender)
    return f"{row['system']} on {row['data']}"


PLACE = (Column("data", ""), Column("system", ""))
SCORES = (Column("HR@10", format=".4f"), Column("NDCG@10", format=".4f"))
GAP = (
    Column("apart", "HR − base", "+.4f"), Column("low", "95 % from", "+.4f"),
    Column("high", "to", "+.4f"), Column("paper_hr", "paper HR", ".3f"),
    Column("paper_ndcg", "paper NDCG", ".3f"),
)  # fmt: skip
"""How far a line is from the base model, and what was printed."""


def train(
    study: UCStudy, source: str, recommender: Any, beta: float | None = None, **changes: Any
) -> System:
    """UC-FedRec with this β, or the base model; `changes` are to its cells."""
    cells = [study.cell(source, recommender, s, beta, **changes) for s in study.config.seeds]
    group, strength = (BASE, "") if beta is None else (UC, f"β={beta:g}")
    return trained(study, group, strength, cells)


def trained(study: UCStudy, group: str, strength: str, cells: Sequence[Cell]) -> System:
    """A system by its cells, one for each seed."""
    what = f"{cells[0].source}, {cells[0].words()}"
    return System(group, strength, tuple(cells), tuple(study.train_all(cells, what)))


def share(ours: float, theirs: float) -> float:
    """What is kept; all of it where there was nothing."""
    return ours / theirs if theirs > 0 else 1.0


def hidden_count(study: UCStudy, cell: Cell) -> NDArray[np.int64]:
    """How many attributes each user hides."""
    return np.asarray(study.hiders(cell).sum(axis=1), dtype=np.int64)


def apart(ours: System, base: System, users: Users) -> Paired:
    """HR@10 of these users less that of the same users under the base model. The interval is over
    users; of one who is in several seeds, the mean counts."""
    total: Floats = np.zeros(len(base.runs[0].hits))
    times: Floats = np.zeros(len(total))
    for cell, mine, theirs in zip(ours.cells, ours.runs, base.runs, strict=True):
        mask = users(cell)
        total += mask * (mine.hits.astype(np.float64) - theirs.hits)
        times += mask
    gaps = total[times > 0] / times[times > 0]
    return paired_t(gaps, np.zeros(len(gaps)))


def gap_cells(gap: Paired) -> Row:
    """Its columns of a table; a single user has no interval."""
    ends = (gap.low, gap.high) if gap.n > 1 else (None, None)
    return {"apart": gap.difference, "low": ends[0], "high": ends[1]}


# --- attackers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guessed:
    """The strongest attackers on one attribute of a system, seed by seed."""

    attribute: str
    seeds: tuple[Attacked, ...]

    @property
    def two_classes(self) -> bool:
        return all(a.classes == 2 for a in self.seeds)

    @property
    def auc(self) -> float:
        return self._mean("auc")

    @property
    def f1(self) -> float:
        return self._mean("f1")

    @property
    def gain(self) -> float:
        """AUC above 0.5 of two classes, F1 above the best constant guess of more."""
        return self._mean("gain")

    @property
    def ranked(self) -> float:
        """AUC above 0.5, whatever the classes: what tells little of many classes may still rank."""
        return self.auc - 0.5

    @property
    def measure(self) -> str:
        """As in the paper."""
        return "AUC" if self.two_classes else "micro-F1"

    @property
    def leak(self) -> float:
        """By that measure."""
        return self.auc if self.two_classes else self.f1

    @property
    def wins(self) -> int:
        """Seeds in which some attacker is better than chance."""
        return sum(a.wins for a in self.seeds)

    def cells(self) -> Row:
        """Its columns of a table."""
        return {
            "AUC": self.auc,
            "AUC_low": self._mean("auc_low"),
            "AUC_high": self._mean("auc_high"),
            "F1": self.f1,
            "majority": self._mean("majority"),
            "gain": self.gain,
            "wins": f"{self.wins} of {len(self.seeds)}",
        }

    def _mean(self, name: str) -> float:
        return float(np.mean([getattr(a, name) for a in self.seeds]))


ATTACKERS = (
    Column("AUC", "attackers' AUC", ".3f"), Column("AUC_low", "95 % from", ".3f"),
    Column("AUC_high", "to", ".3f"), Column("F1", "micro-F1", ".3f"),
    Column("majority", "constant guess", ".3f"), Column("gain", "gain", "+.3f"),
    Column("wins", "beat chance: seeds"),
)  # fmt: skip


def guess(
    study: UCStudy, systems: Sequence[System], attributes: Sequence[str]
) -> list[dict[str, Guessed]]:
    """Of each system, by attribute; nothing where there is too little to learn from."""
    asked = [(k, name) for k in range(len(systems)) for name in attributes]
    jobs = [systems[k].jobs(name) for k, name in asked]
    every = iter(study.attack_all([job for some in jobs for job in some]))
    found: list[dict[str, Guessed]] = [{} for _ in systems]
    for (k, name), some in zip(asked, jobs, strict=True):
        seeds = [next(every) for _ in some]
        there = tuple(a for a in seeds if a is not None)
        if there:
            found[k][name] = Guessed(name, there)
    return found


@dataclass(frozen=True, slots=True, repr=False)
class Elsewhere:
    """An attack on an attribute of those who hide another one."""

    cell: Cell
    attribute: str
    hidden: str


def guess_elsewhere(study: UCStudy, jobs: Sequence[Elsewhere]) -> list[Attacked | None]:
    """Attackers learn from those who share `hidden` and guess `attribute` of those who hide it.
    Side by side, and kept, as all attacks."""
    workers = max(1, min(study.threads, len(jobs)))
    done = 0
    study.report("attacks", 0, len(jobs))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def one(job: Elsewhere) -> Attacked | None:
            nonlocal done
            cell, world = job.cell, study.world(job.cell.source)
            table, private = study.trained(cell).table, study.private(cell, job.hidden)
            work = Attack(table, world.labels[job.attribute], private, cell.seed, job.attribute)
            content = hashlib.blake2b(table.tobytes(), digest_size=16).hexdigest()
            key = ["elsewhere", content, world.fingerprint, cell.seed, cell.alpha, job.attribute,
                   job.hidden]  # fmt: skip
            found = kept(
                study.folder, "uc-", key, ["attacked"],
                lambda: pool.submit(Attack.run, work).result() if workers > 1 else work.run(),
            )  # fmt: skip
            done += 1
            study.report("attacks", done, len(jobs))
            return Attacked.of_arrays(found)

        return each(one, jobs, workers)


# --- the end of each figure ----------------------------------------------------------------------


def finish(
    name: str,
    study: UCStudy,
    out: Path,
    table: Table,
    claims: Sequence[Mapping[str, Any]],
    pictures: Sequence[FigureBlock],
    reading: str,
    **more: Any,
) -> dict[str, Any]:
    report = write_report(
        out / "report.html",
        name,
        [
            Section("Results", [*pictures, table, claims_table(claims)]),
            Section("How to read this", [TextBlock(reading)]),
        ],
    )
    return {
        "name": name,
        "data": "; ".join(study.world(source).describe() for source in study.config.sources),
        "protocol": study.describe(),
        "rows": [dict(row) for row in table.rows],
        "claims": list(claims),
        "tables": [table],
        "report": str(report),
        **more,
    }
