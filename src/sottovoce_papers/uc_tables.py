"""UC-FedRec's Tables 1 and 2: what base models leak, and what filters and early stopping change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.algorithms.uc.settings import SYSTEMS
from sottovoce.evaluation.report import Section, TextBlock, write_report
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.drift_study import interval
from sottovoce_papers.fpl_table2 import claim, claims_table
from sottovoce_papers.uc_rivals import knowing, stopped
from sottovoce_papers.uc_study import Attacked, Cell, Job, UCStudy
from sottovoce_papers.uc_training import Trained

# Figures printed in the UC-FedRec paper, for comparison with ours. Its Tables 1 and 2 call HR@10
# "NDCG" and NDCG@10 "Recall"; here each has its own name. Gender is AUC, all other attributes are
# micro-F1.

Printed = Mapping[str, float]
_ML, _DB = "movielens-1m", "douban-book"

TABLE2: Mapping[tuple[str, str, str], Printed] = {
    (_ML, "gnn", "base"): {
        "hr": 0.843, "ndcg": 0.544, "gender": 0.817, "age": 0.489, "occupation": 0.171,
    },
    (_ML, "gnn", "early"): {
        "hr": 0.794, "ndcg": 0.509, "gender": 0.787, "age": 0.364, "occupation": 0.158,
    },
    (_ML, "gnn", "uc-0.5"): {
        "hr": 0.783, "ndcg": 0.509, "gender": 0.631, "age": 0.283, "occupation": 0.128,
    },
    (_ML, "gnn", "uc-0.8"): {"hr": 0.75, "ndcg": 0.457, "gender": 0.5},
    (_ML, "ncf", "base"): {
        "hr": 0.784, "ndcg": 0.496, "gender": 0.755, "age": 0.358, "occupation": 0.152,
    },
    (_ML, "ncf", "early"): {
        "hr": 0.742, "ndcg": 0.471, "gender": 0.653, "age": 0.284, "occupation": 0.131,
    },
    (_ML, "ncf", "uc-0.5"): {
        "hr": 0.734, "ndcg": 0.471, "gender": 0.602, "age": 0.212, "occupation": 0.117,
    },
    (_DB, "gnn", "base"): {"hr": 0.724, "ndcg": 0.492, "location": 0.265},
    (_DB, "gnn", "early"): {"hr": 0.692, "ndcg": 0.483, "location": 0.249},
    (_DB, "gnn", "uc-0.5"): {"hr": 0.688, "ndcg": 0.482, "location": 0.221},
    (_DB, "ncf", "base"): {"hr": 0.696, "ndcg": 0.489, "location": 0.263},
    (_DB, "ncf", "early"): {"hr": 0.686, "ndcg": 0.476, "location": 0.245},
    (_DB, "ncf", "uc-0.5"): {"hr": 0.683, "ndcg": 0.477, "location": 0.225},
}  # fmt: skip
"""By source, recommender and kind of line; β = 0.8 is from the text."""

TABLE1: Mapping[tuple[str, str, str], Printed] = {
    (_ML, "gnn", "base"): TABLE2[(_ML, "gnn", "base")],
    (_ML, "ncf", "base"): TABLE2[(_ML, "ncf", "base")],
    (_ML, "mf", "scalar"): {
        "hr": 0.694, "ndcg": 0.433, "gender": 0.685, "age": 0.296, "occupation": 0.136,
    },
}  # fmt: skip
"""LDP-Rec is its matrix factorisation with noise on each number."""

FEDFAST = {"hr": 0.72, "ndcg": 0.46, "gender": 0.745, "age": 0.353, "occupation": 0.15}
"""FedFast-BPR of Table 1, which is not run here."""

TABLE3: Mapping[tuple[str, str], tuple[Printed, Printed]] = {
    (_ML, "age"): (
        {"hr": 0.829, "ndcg": 0.535, "leak": 0.387},
        {"hr": 0.768, "ndcg": 0.502, "leak": 0.291},
    ),
    (_DB, "location"): (
        {"hr": 0.721, "ndcg": 0.492, "leak": 0.304},
        {"hr": 0.698, "ndcg": 0.473, "leak": 0.265},
    ),
}
"""Central protection, before and after."""


# Lines of the UC-FedRec study's tables: a system with all its seeds, and what attackers got.

MEASURES = ("hr", "ndcg", "full_hr", "full_ndcg")
HEADINGS = {"hr": "HR@10", "ndcg": "NDCG@10", "full_hr": "HR full", "full_ndcg": "NDCG full"}


@dataclass(frozen=True, slots=True, repr=False)
class Line:
    """One system on one source."""

    label: str
    kind: str
    """"base", "early", "scalar", or "uc-" and β."""
    cells: Sequence[Cell]
    """One for each seed."""
    trained: Sequence[Trained]
    attacked: Mapping[str, Sequence[Attacked | None]]
    """By attribute, for each seed."""

    @property
    def source(self) -> str:
        return self.cells[0].source

    @property
    def recommender(self) -> str:
        return self.cells[0].recommender

    def values(self, measure: str) -> list[float]:
        return [float(getattr(one, measure)) for one in self.trained]

    def mean(self, measure: str) -> float:
        return float(np.mean(self.values(measure)))

    def half(self, measure: str) -> float | None:
        """Half of the 95 % interval over seeds."""
        return interval(self.values(measure))

    def found(self, attribute: str) -> list[Attacked]:
        """Of the seeds in which there was enough to learn from."""
        return [one for one in self.attacked.get(attribute, ()) if one is not None]

    def leaks(self, attribute: str, measure: str) -> list[float]:
        return [float(getattr(one, measure)) for one in self.found(attribute)]

    def leak(self, attribute: str, measure: str) -> float | None:
        """The mean over seeds."""
        values = self.leaks(attribute, measure)
        return float(np.mean(values)) if values else None

    def leak_half(self, attribute: str, measure: str) -> float | None:
        return interval(self.leaks(attribute, measure))

    def wins(self, attribute: str) -> int:
        """Seeds in which an attacker beats chance."""
        return sum(one.wins for one in self.found(attribute))

    def verdict(self, attribute: str) -> str:
        """Whether a strong attacker still wins, in words."""
        seeds = len(self.found(attribute))
        if not seeds:
            return "has too little to learn from"
        if not self.wins(attribute):
            return "does not beat chance"
        turned = sum(bool(one.turned and not one.strong) for one in self.found(attribute))
        how = f", {turned} turned round" if turned else ""
        return f"still wins ({self.wins(attribute)} of {seeds} seed{'s' * (seeds > 1)}{how})"


def lines(
    study: UCStudy, source: str, kinds: Mapping[str, tuple[str, Sequence[Cell]]]
) -> list[Line]:
    """Trained and attacked lines; `kinds` names each with its label and cells."""
    every = [cell for _, cells in kinds.values() for cell in cells]
    title = study.world(source).title
    trained = study.train_all(every, f"training, {title}")
    attributes = study.attributes(source)
    jobs = [Job(cell, attribute) for cell in every for attribute in attributes]
    attacked = study.attack_all(jobs, f"attacks, {title}")
    found, place = [], 0
    for kind, (label, cells) in kinds.items():
        span = range(place, place + len(cells))
        by_attribute = {
            name: [attacked[k * len(attributes) + t] for k in span]
            for t, name in enumerate(attributes)
        }
        found.append(Line(label, kind, cells, [trained[k] for k in span], by_attribute))
        place += len(cells)
    return found


def system(recommender: str) -> str:
    return SYSTEMS[recommender]


def row(
    line: Line, base: Line | None, printed: Printed, attributes: Sequence[str]
) -> dict[str, Any]:
    """All figures of a line, ours and the printed ones. `base` is what it is held against."""
    found: dict[str, Any] = {
        "source": line.source, "recommender": line.recommender, "kind": line.kind,
        "system": line.label, "rounds": float(np.mean([one.round for one in line.trained])),
        "seconds": line.mean("seconds"), "seeds": len(line.cells),
    }  # fmt: skip
    for measure in MEASURES:
        found[measure] = line.mean(measure)
        found[f"{measure}_ci"] = line.half(measure)
        found[f"{measure}_paper"] = printed.get(measure)
    found["kept"] = None if base is None else line.mean("hr") / max(base.mean("hr"), 1e-9)
    for name in attributes:
        for measure in ("auc", "either", "f1", "majority"):
            found[f"{name}_{measure}"] = line.leak(name, measure)
            if measure != "majority":
                found[f"{name}_{measure}_ci"] = line.leak_half(name, measure)
        found[f"{name}_paper"] = printed.get(name)
        found[f"{name}_left"] = None if base is None else gain_left(line, base, name)
        found[f"{name}_families"] = families(line, name)
        found[f"{name}_verdict"] = line.verdict(name)
        found[f"{name}_verdicts"] = [one.verdict for one in line.found(name)]
    return found


def gain_left(line: Line, base: Line, attribute: str, measure: str = "gain") -> float | None:
    """The share of the attackers' gain over a guess that is left; None where there was none."""
    before, now = base.leak(attribute, measure), line.leak(attribute, measure)
    if before is None or now is None or before <= 0:
        return None
    return now / before


def families(line: Line, attribute: str) -> dict[str, float]:
    """The mean AUC of each attacker."""
    found = line.found(attribute)
    names = found[0].families if found else {}
    return {name: float(np.mean([one.families.get(name, 0.5) for one in found])) for name in names}


Part = tuple[bool, str]
Kinds = dict[str, tuple[str, Sequence[Cell]]]
WANTED = {"gnn": (0.84, 0.54), "ncf": (0.78, 0.49)}
"""HR@10 and NDCG@10 of base models on MovieLens 1M."""
KEPT = {0.5: 0.92, 0.8: 0.89}
"""Share of the base's HR@10 that is left, by β."""
LARGEST_AUC = 0.55
"""Of gender, at β = 0.8."""
AS_PUBLISHED: Mapping[str, Any] = {
    "target": "uniform",
    "overrides": (("filters", "two-layer"), ("filter_rate", 0.05)),
}
"""Networks of two layers, which are to say that all classes are alike."""


def table2(study: UCStudy, out: Path) -> dict[str, Any]:
    """Base models, early stopping, and UC-FedRec with each β."""
    return _table(study, out, "uc-table2", _rows_of_table2, TABLE2, _claims_of_table2, _READING_2)


def table1(study: UCStudy, out: Path) -> dict[str, Any]:
    """Base models, and noise on each number that leaves."""
    return _table(study, out, "uc-table1", _rows_of_table1, TABLE1, _claims_of_table1, _READING_1)


def cells_of_table2(study: UCStudy) -> list[Cell]:
    """Every training of Table 2, for a machine that only trains. Those of early stopping follow
    from the others, which are trained."""
    found: list[Cell] = []
    for source in study.config.sources:
        for recommender in study.config.recommenders:
            kinds = _rows_of_table2(study, source, recommender)
            found += [cell for _, cells in kinds.values() for cell in cells]
    return found


def cells_of_table1(study: UCStudy) -> list[Cell]:
    return [
        cell
        for source in study.config.sources
        for recommender in study.config.recommenders
        for _, cells in _rows_of_table1(study, source, recommender).values()
        for cell in cells
    ]


def _table(
    study: UCStudy,
    out: Path,
    name: str,
    kinds: Callable[[UCStudy, str, str], Kinds],
    printed: Mapping[tuple[str, str, str], Printed],
    claims_of: Callable[[UCStudy, str, Sequence[Line]], list[dict[str, Any]]],
    reading: str,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    tables: list[Table] = []
    claims: list[dict[str, Any]] = []
    for source in study.config.sources:
        there: list[Line] = []
        ours: list[dict[str, Any]] = []
        attributes = study.attributes(source)
        for recommender in study.config.recommenders:
            found = lines(study, source, kinds(study, source, recommender))
            base = next((line for line in found if line.kind == "base"), None)
            for line in found:
                known = printed.get((source, recommender, line.kind), {})
                told = _known(study, line, attributes)
                ours.append(row(line, base, known, attributes) | told)
            there += found
        tables += _tables(study, source, name, ours, there)
        claims += claims_of(study, source, there)
        rows += ours
    sections = [
        Section("Results", [*tables, claims_table(claims)]),
        Section("How to read this", [TextBlock(reading + _READING)]),
    ]
    report = write_report(out / "report.html", name, sections)
    return {
        "name": name,
        "data": "; ".join(study.world(source).describe() for source in study.config.sources),
        "protocol": study.describe(),
        "rows": rows,
        "claims": claims,
        "tables": tables,
        "report": str(report),
    }


# --- lines ---------------------------------------------------------------------------------------


def _rows_of_table2(study: UCStudy, source: str, recommender: str) -> Kinds:
    seeds, betas = study.config.seeds, study.config.betas
    base = [study.cell(source, recommender, seed) for seed in seeds]  # type: ignore[arg-type]
    found: Kinds = {"base": (system(recommender), base)}
    protected = {
        beta: [study.cell(source, recommender, seed, beta) for seed in seeds]  # type: ignore[arg-type]
        for beta in betas
    }
    if betas and (study.config.early or not study.config.final):
        what = f"{system(recommender)}, {study.world(source).title}"
        study.train_all([*base, *protected[betas[0]]], what)
        early = [stopped(study, one, uc) for one, uc in zip(base, protected[betas[0]], strict=True)]
        found["early"] = (f"{system(recommender)}, early stopping", early)
    for beta, cells in protected.items():
        found[f"uc-{beta:g}"] = (f"UC-{system(recommender)}, β={beta:g}", cells)
    if betas and study.config.as_published:
        cells = [replace(cell, **AS_PUBLISHED) for cell in protected[betas[0]]]
        label = f"UC-{system(recommender)}, β={betas[0]:g}, filters as published"
        found["published"] = (label, cells)
    return found


def _rows_of_table1(study: UCStudy, source: str, recommender: str) -> Kinds:
    seeds = study.config.seeds
    base = [study.cell(source, recommender, seed) for seed in seeds]  # type: ignore[arg-type]
    found: Kinds = {"base": (system(recommender), base)}
    if recommender == "mf":
        c = study.config
        noisy = [
            replace(cell, norm="scalar", epsilon=c.scalar_epsilon, clip=c.scalar_clip)
            for cell in base
        ]
        label = f"MF, ε={c.scalar_epsilon:g} for each number (as LDP-Rec)"
        found["scalar"] = (label, noisy)
    return found


def _known(study: UCStudy, line: Line, attributes: Sequence[str]) -> dict[str, float | None]:
    """The best AUC of attackers who know the published filter, by attribute; mean over seeds."""
    found: dict[str, float | None] = {}
    for name in attributes:
        jobs = [job for cell in line.cells if (job := knowing(study, cell, name)) is not None]
        told = [one.either for one in study.attack_all(jobs) if one is not None] if jobs else []
        found[f"{name}_known"] = float(np.mean(told)) if told else None
    return found


# --- showing -------------------------------------------------------------------------------------


def _tables(
    study: UCStudy,
    source: str,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    there: Sequence[Line],
) -> list[Table]:
    title = f"UC-FedRec, Table {name[-1]}, {study.world(source).title}"
    columns = [Column("system", "")]
    for measure in MEASURES:
        columns += [Column(measure, HEADINGS[measure], ".4f"), Column(f"{measure}_ci", "±", ".4f")]
        if not measure.startswith("full"):
            columns.append(Column(f"{measure}_paper", "printed", ".3f"))
    columns += [Column("kept", "of base's HR", ".3f"), Column("rounds", format=".0f"),
                Column("seconds", "seconds to train", ".1f")]  # fmt: skip
    found = [_shown(f"{title}: recommendations", columns, rows, study.describe(), _prices(there))]
    how = (
        "the best of three families of attackers, each on the table as it is and aligned, on users "
        "who hide the attribute; turned round: the best AUC, or 1 less the worst; gain: this above "
        "0.5 of two classes, F1 above the majority guess of more; intervals over seeds"
    )
    for name in study.attributes(source):
        printed = "printed AUC" if name == "gender" else "printed F1"
        columns = [
            Column("system", ""),
            Column(f"{name}_auc", "AUC", ".3f"), Column(f"{name}_auc_ci", "±", ".3f"),
            Column(f"{name}_either", "or turned round", ".3f"),
            Column(f"{name}_f1", "F1", ".3f"), Column(f"{name}_f1_ci", "±", ".3f"),
            Column(f"{name}_majority", "majority", ".3f"), Column(f"{name}_paper", printed, ".3f"),
            Column(f"{name}_left", "gain left", ".2f"),
            Column(f"{name}_known", "AUC, filter known", ".3f"),
            Column(f"{name}_verdict", "a strong attacker"),
        ]  # fmt: skip
        found.append(_shown(f"{title}: {name}", columns, rows, how, _chances(rows, name)))
    return found


def _shown(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    protocol: str,
    notes: Sequence[str],
) -> Table:
    keys = [column.key for column in columns]
    return Table(title, columns, [{k: r[k] for k in keys} for r in rows], protocol, notes)


def _chances(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Printed values that a constant guess beats."""
    found = []
    for r in rows:
        printed, majority = r[f"{name}_paper"], r[f"{name}_majority"]
        if name != "gender" and None not in (printed, majority) and printed < majority:
            found.append(f"{r['system']} {printed:.3f} < {majority:.3f}")
    if not found:
        return []
    return [f"Printed below what a constant guess gets right: {'; '.join(found)}."]


def _prices(there: Sequence[Line]) -> list[str]:
    """What noise on each number truly costs."""
    notes = []
    for line in there:
        cell = line.cells[0]
        if cell.norm != "scalar":
            continue
        size = line.trained[0].embeddings.shape[1]
        numbers = line.mean("sent_rows") * size
        once, uploads = cell.epsilon * numbers, line.mean("uploads")
        notes.append(
            f"{line.label}: ε = {cell.epsilon:g} holds for one number. An upload has "
            f"{numbers:,.0f} of them and costs ε = {once:,.0f}, and all {uploads:,.0f} uploads of "
            f"a user cost ε = {once * uploads:,.0f}; which rows are sent is in clear besides, so "
            "that nothing can be proved of the whole."
        )
    if any(line.source == "movielens-1m" and line.kind == "scalar" for line in there):
        printed = ", ".join(f"{k} {v:g}" for k, v in FEDFAST.items())
        notes.append(f"FedFast-BPR of the printed table is not run here; printed: {printed}.")
    return notes


# --- claims --------------------------------------------------------------------------------------


def _claims_of_table2(study: UCStudy, source: str, there: Sequence[Line]) -> list[dict[str, Any]]:
    where = study.world(source).title
    found = []
    for recommender in study.config.recommenders:
        by_kind = {line.kind: line for line in there if line.recommender == recommender}
        base, attributes = by_kind["base"], study.attributes(source)
        if source == "movielens-1m" and recommender in WANTED:
            found.append(_accurate(base, *WANTED[recommender]))
        for beta in study.config.betas:
            line = by_kind[f"uc-{beta:g}"]
            keeps = _keeps(line, base, KEPT.get(beta, min(KEPT.values())))
            if beta == max(KEPT) and "gender" in attributes:
                found.append(claim(f"{line.label}, {where}: gender AUC ≤ {LARGEST_AUC}",
                                   _small(line, base), keeps))  # fmt: skip
            else:
                found.append(claim(f"{line.label} keeps its accuracy, {where}", keeps))
            for measure, words in (("gain", "gain"), ("auc_gain", "AUC above 0.5")):
                parts = [_halved(line, base, name, measure) for name in attributes]
                text = f"{line.label} halves a strong attacker's {words}, {where}"
                found.append(claim(text, *parts))
        if "early" in by_kind and study.config.betas:
            uc, early = by_kind[f"uc-{study.config.betas[0]:g}"], by_kind["early"]
            parts = [_less(uc, early, name) for name in attributes]
            text = f"at about equal HR on validation {uc.label} leaks less than early stopping"
            found.append(claim(f"{text}, {where}", *parts))
    return found


def _claims_of_table1(study: UCStudy, source: str, there: Sequence[Line]) -> list[dict[str, Any]]:
    where, found = study.world(source).title, []
    attributes = study.attributes(source)
    for line in there:
        if line.kind == "base":
            parts = [_leaks(line, name) for name in attributes]
            found.append(claim(f"{line.label} leaks every attribute, {where}", *parts))
    for noisy in (line for line in there if line.kind == "scalar"):
        base = next(x for x in there if (x.recommender, x.kind) == (noisy.recommender, "base"))
        parts = [_less(noisy, base, name) for name in attributes]
        found.append(claim(f"noise on each number makes {base.label} leak less, {where}", *parts))
        lost = noisy.mean("hr") / max(base.mean("hr"), 1e-9)
        words = f"HR@10 {noisy.mean('hr'):.4f} against {base.mean('hr'):.4f}, {lost:.3f} of it"
        found.append(claim(f"and less accurate, {where}", (lost < 1, words)))
    return found


def _accurate(line: Line, hr: float, ndcg: float) -> dict[str, Any]:
    parts = []
    for name, goal in (("hr", hr), ("ndcg", ndcg)):
        parts.append((line.mean(name) >= goal, f"{HEADINGS[name]} {_spread(line, name)}"))
    full = f"full ranking HR@10 {line.mean('full_hr'):.4f}, NDCG@10 {line.mean('full_ndcg'):.4f}"
    return claim(f"{line.label}: HR@10 ≥ {hr}, NDCG@10 ≥ {ndcg}", *parts, (True, full))


def _keeps(line: Line, base: Line, goal: float) -> Part:
    kept = line.mean("hr") / max(base.mean("hr"), 1e-9)
    words = f"HR@10 {_spread(line, 'hr')} of {_spread(base, 'hr')}: {kept:.3f}, wanted {goal:g}"
    return kept >= goal, words


def _small(line: Line, base: Line) -> Part:
    now, before, either = (x.leak("gender", m) for x, m in
                           ((line, "auc"), (base, "auc"), (line, "either")))  # fmt: skip
    if now is None or before is None or either is None:
        return False, "gender: too little to learn from"
    words = f"gender AUC {now:.3f} (base {before:.3f}), or turned round {either:.3f}"
    return max(now, either) <= LARGEST_AUC, words


def _halved(line: Line, base: Line, attribute: str, measure: str) -> Part:
    before, now = base.leak(attribute, measure), line.leak(attribute, measure)
    if before is None or now is None:
        return False, f"{attribute}: too little to learn from"
    share = gain_left(line, base, attribute, measure)
    if share is None:
        return True, f"{attribute}: the base has no gain ({before:+.3f}; now {now:+.3f})"
    wins = f"an attacker still beats chance in {line.wins(attribute)} of {len(line.cells)} seeds"
    return share <= 0.5, f"{attribute} {before:+.3f} to {now:+.3f}, {share:.2f} of it left; {wins}"


def _less(line: Line, other: Line, attribute: str) -> Part:
    mine, theirs = line.leak(attribute, "either"), other.leak(attribute, "either")
    if mine is None or theirs is None:
        return False, f"{attribute}: too little to learn from"
    return mine < theirs, f"{attribute} AUC {mine:.3f} against {theirs:.3f}"


def _leaks(line: Line, attribute: str) -> Part:
    found = line.found(attribute)
    if not found:
        return False, f"{attribute}: too little to learn from"
    auc = float(np.mean([one.auc for one in found]))
    f1, majority = (float(np.mean([getattr(o, m) for o in found])) for m in ("f1", "majority"))
    words = f"{attribute} AUC {auc:.3f}, F1 {f1:.3f} (majority {majority:.3f})"
    return line.wins(attribute) == len(found), words


def _spread(line: Line, measure: str) -> str:
    half = line.half(measure)
    return f"{line.mean(measure):.4f}" + ("" if half is None else f" ± {half:.4f}")


_READING_1 = """\
What users' representations tell before anybody hides anything. The paper's LDP-Rec adds noise to \
each number of an upload; here that is matrix factorisation with the same noise, and its true \
price stands below the table. A user's own embedding does not leave her device here and gets no \
noise; attackers are given it all the same, so that this line shows what noise on items' rows \
alone does. FedFast-BPR is not ours and was not run.

"""

_READING_2 = """\
UC-FedRec has a filter for every attribute at once; each user hides each attribute with \
probability α. Early stopping is the base model at the first look whose HR@10 on validation is \
that of UC-FedRec with the first β, or better, so that both recommend about equally well there. \
Filters are of the kind that the settings name, and pull to the classes' shares; "as published" \
are networks of two layers that are to find all classes alike.

"""

_READING = """\
The printed tables call HR@10 "NDCG" and NDCG@10 "Recall"; here the names are put right. Printed \
attackers were trained and tested on users irrespective of consent, with one small network, and \
without a majority guess beside them: several printed values lie below what a constant guess gets \
right, so they show a weak attacker, not protection. Ours learn from users who share the \
attribute and guess it of those who hide it; the best of six is shown, picked by its success, so \
that leakage looks larger rather than smaller. Micro-F1 is the share guessed right.

An AUC far below 0.5 is no protection: it says that protection has overshot, and whoever knows it \
turns the guesses round. So the best AUC stands beside the best that can be had by turning some \
attacker round, and gains count the larger.

"AUC, filter known" is that of the same attackers on embeddings without the directions in which \
the published filter looks. Those who hide pretend there to be somebody else, and what the filter \
does not look at goes with their tastes as before: against somebody who knows it, filters hide \
much less.

"A strong attacker still wins" means that at least one attacker, as it is or turned round, beats \
chance after allowing for the number of attackers, in so many of the seeds. The AUC of many \
classes is the mean of each against the rest, and can be above 0.5 where no guess beats the \
majority.

Who hides what, the candidates and the attackers' draws are the same for all systems of a seed. \
Intervals are Student's, over seeds: they say how far another start and other hiding users would \
move a figure. The round is chosen on validation; test is looked at once."""
