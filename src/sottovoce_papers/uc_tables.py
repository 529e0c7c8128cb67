"""UC-FedRec's Tables 1 and 2: what base models leak, and what filters and early stopping change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.algorithms.uc.settings import SYSTEMS
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.study import Claim, Row, claim, installed, interval, plus_minus, shown
from sottovoce_papers.uc_study import UCCell, UCStudy
from sottovoce_papers.uc_systems import Guessed, guess, knowing, stopped, trained
from sottovoce_papers.uc_training import Trained

MEASURES = ("hr", "ndcg", "full_hr", "full_ndcg")
HEADINGS = {"hr": "HR@10", "ndcg": "NDCG@10", "full_hr": "HR full", "full_ndcg": "NDCG full"}


@dataclass(frozen=True, slots=True, repr=False)
class UCLine:
    """One system on one source."""

    label: str
    kind: str
    """"base", "early", "scalar", or "uc-" and β."""
    cells: Sequence[UCCell]
    """One for each seed."""
    trained: Sequence[Trained]
    guessed: Mapping[str, Guessed]
    """By attribute, if there was enough to learn from."""

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

    def leak(self, attribute: str, measure: str) -> float | None:
        """The mean over the seeds in which there was enough to learn from."""
        found = self.guessed.get(attribute)
        return None if found is None else float(np.mean(found.values(measure)))

    def leak_half(self, attribute: str, measure: str) -> float | None:
        found = self.guessed.get(attribute)
        return None if found is None else interval(found.values(measure))

    def wins(self, attribute: str) -> int:
        """Seeds in which an attacker beats chance."""
        return self.guessed[attribute].wins if attribute in self.guessed else 0

    def verdict(self, attribute: str) -> str:
        found = self.guessed.get(attribute)
        return "has too little to learn from" if found is None else found.verdict()


def lines(
    study: UCStudy, source: str, kinds: Mapping[str, tuple[str, Sequence[UCCell]]]
) -> list[UCLine]:
    """Trained and attacked lines; `kinds` names each with its label and cells."""
    systems = {kind: trained(study, label, "", cells) for kind, (label, cells) in kinds.items()}
    found = guess(study, list(systems.values()), study.attributes(source))
    return [
        UCLine(one.label, kind, one.cells, one.trained, guessed)
        for (kind, one), guessed in zip(systems.items(), found, strict=True)
    ]


def row(
    line: UCLine, base: UCLine | None, printed: Mapping[str, float], attributes: Sequence[str]
) -> Row:
    """All figures of a line, ours and the printed ones. `base` is what it is held against."""
    found: Row = {
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
        seeds = line.guessed[name].seeds if name in line.guessed else ()
        found[f"{name}_paper"] = printed.get(name)
        found[f"{name}_left"] = None if base is None else gain_left(line, base, name)
        found[f"{name}_families"] = families(line, name)
        found[f"{name}_verdict"] = line.verdict(name)
        found[f"{name}_verdicts"] = [one.verdict for one in seeds]
    return found


def gain_left(line: UCLine, base: UCLine, attribute: str, measure: str = "gain") -> float | None:
    """The share of the attackers' gain over a guess that is left; None where there was none."""
    before, now = base.leak(attribute, measure), line.leak(attribute, measure)
    if before is None or now is None or before <= 0:
        return None
    return now / before


def families(line: UCLine, attribute: str) -> dict[str, float]:
    """The mean AUC of each attacker."""
    found = line.guessed[attribute].seeds if attribute in line.guessed else ()
    names = found[0].families if found else {}
    return {name: float(np.mean([one.families.get(name, 0.5) for one in found])) for name in names}


Part = tuple[bool, str]
Kinds = dict[str, tuple[str, Sequence[UCCell]]]
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
    return _table(study, out, "uc-table2", _rows_of_table2, _claims_of_table2)


def table1(study: UCStudy, out: Path) -> dict[str, Any]:
    """Base models, and noise on each number that leaves."""
    return _table(study, out, "uc-table1", _rows_of_table1, _claims_of_table1)


def _table(
    study: UCStudy,
    out: Path,
    name: str,
    kinds: Callable[[UCStudy, str, str], Kinds],
    claims_of: Callable[[UCStudy, str, Sequence[UCLine]], list[Claim]],
) -> dict[str, Any]:
    rows: list[Row] = []
    tables: list[Table] = []
    claims: list[Claim] = []
    printed = installed(name)["printed"]
    for source in study.config.sources:
        there: list[UCLine] = []
        ours: list[Row] = []
        attributes = study.attributes(source)
        for recommender in study.config.recommenders:
            found = lines(study, source, kinds(study, source, recommender))
            base = next((line for line in found if line.kind == "base"), None)
            for line in found:
                known = printed.get(f"{source} {recommender} {line.kind}", {})
                told = _known(study, line, attributes)
                ours.append(row(line, base, known, attributes) | told)
            there += found
        tables += _tables(study, source, name, ours, there)
        claims += claims_of(study, source, there)
        rows += ours
    file = installed(name)
    reading = f"{file['reading']}\n\n{file['reading_tables']}"
    return study.result(name, out, tables, claims, rows=rows, reading=reading)


# --- lines ---------------------------------------------------------------------------------------


def _rows_of_table2(study: UCStudy, source: str, recommender: str) -> Kinds:
    seeds, betas = study.config.seeds, study.config.betas
    base = [study.cell(source, recommender, seed) for seed in seeds]  # type: ignore[arg-type]
    found: Kinds = {"base": (SYSTEMS[recommender], base)}
    protected = {
        beta: [study.cell(source, recommender, seed, beta) for seed in seeds]  # type: ignore[arg-type]
        for beta in betas
    }
    if betas and (study.config.early or not study.config.final):
        what = f"{SYSTEMS[recommender]}, {study.world(source).title}"
        study.train_all([*base, *protected[betas[0]]], what)
        early = [stopped(study, one, uc) for one, uc in zip(base, protected[betas[0]], strict=True)]
        found["early"] = (f"{SYSTEMS[recommender]}, early stopping", early)
    for beta, cells in protected.items():
        found[f"uc-{beta:g}"] = (f"UC-{SYSTEMS[recommender]}, β={beta:g}", cells)
    if betas and study.config.as_published:
        cells = [replace(cell, **AS_PUBLISHED) for cell in protected[betas[0]]]
        label = f"UC-{SYSTEMS[recommender]}, β={betas[0]:g}, filters as published"
        found["published"] = (label, cells)
    return found


def _rows_of_table1(study: UCStudy, source: str, recommender: str) -> Kinds:
    seeds = study.config.seeds
    base = [study.cell(source, recommender, seed) for seed in seeds]  # type: ignore[arg-type]
    found: Kinds = {"base": (SYSTEMS[recommender], base)}
    if recommender == "mf":
        c = study.config
        noisy = [
            replace(cell, norm="scalar", epsilon=c.scalar_epsilon, clip=c.scalar_clip)
            for cell in base
        ]
        label = f"MF, ε={c.scalar_epsilon:g} for each number (as LDP-Rec)"
        found["scalar"] = (label, noisy)
    return found


def _known(study: UCStudy, line: UCLine, attributes: Sequence[str]) -> dict[str, float | None]:
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
    there: Sequence[UCLine],
) -> list[Table]:
    title = f"UC-FedRec, Table {name[-1]}, {study.world(source).title}"
    columns = [Column("system", "")]
    for measure in MEASURES:
        columns += [Column(measure, HEADINGS[measure], ".4f"), Column(f"{measure}_ci", "±", ".4f")]
        if not measure.startswith("full"):
            columns.append(Column(f"{measure}_paper", "printed", ".3f"))
    columns += [Column("kept", "of base's HR", ".3f"), Column("rounds", format=".0f"),
                Column("seconds", "seconds to train", ".1f")]  # fmt: skip
    found = [shown(f"{title}: recommendations", columns, rows, study.describe(), _prices(there))]
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
        found.append(shown(f"{title}: {name}", columns, rows, how, _chances(rows, name)))
    return found


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


def _prices(there: Sequence[UCLine]) -> list[str]:
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
        printed = ", ".join(
            f"{k} {v:g}" for k, v in installed("uc-table1")["printed"]["fedfast"].items()
        )
        notes.append(f"FedFast-BPR of the printed table is not run here; printed: {printed}.")
    return notes


# --- claims --------------------------------------------------------------------------------------


def _claims_of_table2(study: UCStudy, source: str, there: Sequence[UCLine]) -> list[Claim]:
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


def _claims_of_table1(study: UCStudy, source: str, there: Sequence[UCLine]) -> list[Claim]:
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


def _accurate(line: UCLine, hr: float, ndcg: float) -> Claim:
    parts = []
    for name, goal in (("hr", hr), ("ndcg", ndcg)):
        parts.append((line.mean(name) >= goal, f"{HEADINGS[name]} {_spread(line, name)}"))
    full = f"full ranking HR@10 {line.mean('full_hr'):.4f}, NDCG@10 {line.mean('full_ndcg'):.4f}"
    return claim(f"{line.label}: HR@10 ≥ {hr}, NDCG@10 ≥ {ndcg}", *parts, (True, full))


def _keeps(line: UCLine, base: UCLine, goal: float) -> Part:
    kept = line.mean("hr") / max(base.mean("hr"), 1e-9)
    words = f"HR@10 {_spread(line, 'hr')} of {_spread(base, 'hr')}: {kept:.3f}, wanted {goal:g}"
    return kept >= goal, words


def _small(line: UCLine, base: UCLine) -> Part:
    now, before, either = (x.leak("gender", m) for x, m in
                           ((line, "auc"), (base, "auc"), (line, "either")))  # fmt: skip
    if now is None or before is None or either is None:
        return False, "gender: too little to learn from"
    words = f"gender AUC {now:.3f} (base {before:.3f}), or turned round {either:.3f}"
    return max(now, either) <= LARGEST_AUC, words


def _halved(line: UCLine, base: UCLine, attribute: str, measure: str) -> Part:
    before, now = base.leak(attribute, measure), line.leak(attribute, measure)
    if before is None or now is None:
        return False, f"{attribute}: too little to learn from"
    share = gain_left(line, base, attribute, measure)
    if share is None:
        return True, f"{attribute}: the base has no gain ({before:+.3f}; now {now:+.3f})"
    wins = f"an attacker still beats chance in {line.wins(attribute)} of {len(line.cells)} seeds"
    return share <= 0.5, f"{attribute} {before:+.3f} to {now:+.3f}, {share:.2f} of it left; {wins}"


def _less(line: UCLine, other: UCLine, attribute: str) -> Part:
    mine, theirs = line.leak(attribute, "either"), other.leak(attribute, "either")
    if mine is None or theirs is None:
        return False, f"{attribute}: too little to learn from"
    return mine < theirs, f"{attribute} AUC {mine:.3f} against {theirs:.3f}"


def _leaks(line: UCLine, attribute: str) -> Part:
    found = line.guessed.get(attribute)
    if found is None:
        return False, f"{attribute}: too little to learn from"
    auc, f1, majority = (np.mean(found.values(m)) for m in ("auc", "f1", "majority"))
    words = f"{attribute} AUC {auc:.3f}, F1 {f1:.3f} (majority {majority:.3f})"
    return found.wins == len(found.seeds), words


def _spread(line: UCLine, measure: str) -> str:
    return plus_minus(line.values(measure))


STUDY, VIEWS = UCStudy, {"uc-table1": table1, "uc-table2": table2}
