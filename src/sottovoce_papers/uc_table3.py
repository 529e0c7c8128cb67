"""UC-FedRec's Table 3: hiding an attribute in a trained model without training again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.algorithms.uc.settings import SYSTEMS
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.study import Claim, Row, claim, installed, interval, shown
from sottovoce_papers.uc_study import AttackJob, UCCell, UCStudy
from sottovoce_papers.uc_systems import Rival, moved

if TYPE_CHECKING:
    from sottovoce.algorithms.uc.protect import Protected, Stopping

WHO = {"all": "all users", "own": "those who hide it"}


def table3(study: UCStudy, out: Path) -> dict[str, Any]:
    """Central protection of each attribute, for those who make it private."""
    rows = [
        _row(study, source, recommender, attribute)
        for source in study.config.sources
        for recommender in study.config.recommenders
        for attribute in study.attributes(source)
    ]
    claims = [c for row in rows for c in _claims(row)]
    return study.result("uc-table3", out, _tables(study, rows), claims, rows=rows)


def shared(study: UCStudy, source: str, recommender: str, seed: int) -> UCCell:
    """A model with filters that everybody has trained: nobody hides anything yet."""
    return study.cell(source, recommender, seed, 0.0, alpha=0.0)  # type: ignore[arg-type]


def protected(
    study: UCStudy, cell: UCCell, attribute: str, how: Stopping | None = None
) -> tuple[Rival, Protected, float]:
    """The model after those who now hide the attribute moved their embeddings; what became of each,
    and the seconds that it took."""
    import torch

    from sottovoce.algorithms.uc.protect import Stopping, protect

    how = how or Stopping(
        study.config.protect_rate, study.config.protect_below, study.config.protect_furthest,
        study.config.protect_steps,
    )  # fmt: skip
    trained, algorithm = study.trained(cell), study.algorithm(cell)
    model = algorithm.model(trained.rows, trained.embeddings, torch.device(study.device))
    shares = algorithm.priors()[cell.attributes.index(attribute)]
    target = shares if cell.target == "prior" else None
    users = np.flatnonzero(study.private(hiding(study, cell), attribute))
    protect(model, users[:1], attribute, target, how)  # so that no first call is timed
    begun = time.perf_counter()
    found = protect(model, users, attribute, target, how)
    seconds = time.perf_counter() - begun
    after = found.applied(model).users.cpu().numpy()
    return moved(study, cell, after, f"central {attribute} {how}"), found, seconds


def hiding(study: UCStudy, cell: UCCell) -> UCCell:
    """By which those who make an attribute private are drawn."""
    return replace(cell, alpha=study.config.alpha)


def _row(study: UCStudy, source: str, recommender: str, attribute: str) -> Row:
    """Means over seeds, with half of their 95 % intervals."""
    what = f"{SYSTEMS[recommender]}, {attribute}, {study.world(source).title}"
    cells = [shared(study, source, recommender, seed) for seed in study.config.seeds]
    study.train_all(cells, f"training, {what}")
    done = [protected(study, cell, attribute) for cell in cells]
    jobs = [AttackJob(cell, attribute, alpha=study.config.alpha) for cell in cells]
    jobs += [
        AttackJob(cell, attribute, rival.table, rival.tag, study.config.alpha)
        for cell, (rival, _, _) in zip(cells, done, strict=True)
    ]
    attacked = study.attack_all(jobs, f"attacks, {what}")
    values: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        values.setdefault(name, []).append(value)

    for k, (cell, (rival, found, seconds)) in enumerate(zip(cells, done, strict=True)):
        own = study.private(hiding(study, cell), attribute)
        for moment, measured in (("before", study.trained(cell)), ("after", rival.measured)):
            for who, users in (("all", np.ones(len(own), dtype=bool)), ("own", own)):
                hr, ndcg = measured.of(users)
                note(f"{who}_hr_{moment}", hr)
                note(f"{who}_ndcg_{moment}", ndcg)
            attack = attacked[k if moment == "before" else len(cells) + k]
            if attack is not None:
                for measure in ("auc", "either", "f1", "majority", "wins"):
                    note(f"{measure}_{moment}", float(getattr(attack, measure)))
        note("users", len(found))
        note("seconds", seconds)
        note("per_user", seconds / max(1, len(found)))
        note("steps", float(found.steps.mean()) if len(found) else 0.0)
        note("moved", float(found.moved.mean()) if len(found) else 0.0)
        note("kl_before", float(found.before.mean()) if len(found) else 0.0)
        note("kl_after", float(found.after.mean()) if len(found) else 0.0)
        for reason, count in found.counts().items():
            note(f"stopped: {reason}", count)
    row: Row = {
        "source": source, "recommender": recommender, "system": SYSTEMS[recommender],
        "attribute": attribute, "seeds": len(cells),
    }  # fmt: skip
    for name, one in values.items():
        row[name] = float(np.mean(one))
        row[f"{name}_ci"] = interval(one)
    theirs = installed("uc-table3")["printed"].get(f"{source} {attribute}")
    printed = theirs if recommender == "gnn" else None
    for place, moment in enumerate(("before", "after")):
        for measure in ("hr", "ndcg", "leak"):
            row[f"{measure}_{moment}_paper"] = printed[place][measure] if printed else None
        row[f"verdict_{moment}"] = _verdict(row, moment)
    return row


def _verdict(row: Mapping[str, Any], moment: str) -> str:
    wins, seeds = row.get(f"wins_{moment}"), row["seeds"]
    if wins is None:
        return "has too little to learn from"
    if not wins:
        return "does not beat chance"
    return f"{'still ' * (moment == 'after')}wins ({wins * seeds:.0f} of {seeds} seeds)"


# --- showing -------------------------------------------------------------------------------------


def _tables(study: UCStudy, rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    first = [Column("data"), Column("system", ""), Column("attribute")]
    costs = [*first, Column("moment", "")]
    for who, words in WHO.items():
        for measure in ("hr", "ndcg"):
            costs.append(Column(f"{who}_{measure}", f"{measure.upper()}@10, {words}", ".4f"))
            if who == "all":
                costs.append(Column(f"{measure}_paper", "printed", ".3f"))
    buys = [
        *first, Column("moment", ""), Column("auc", "AUC", ".3f"), Column("auc_ci", "±", ".3f"),
        Column("either", "or turned round", ".3f"),
        Column("f1", "F1", ".3f"), Column("f1_ci", "±", ".3f"), Column("majority", format=".3f"),
        Column("leak_paper", "printed F1", ".3f"), Column("verdict", "a strong attacker"),
    ]  # fmt: skip
    reasons = [name for name in rows[0] if name.startswith("stopped: ") and name[-3:] != "_ci"]
    ends = [
        *first, Column("users", "users", ",.0f"), Column("seconds", format=".3f"),
        Column("per_user", "seconds per user", ".2g"),
        *[Column(name, name.removeprefix("stopped: "), ",.1f") for name in reasons],
        Column("steps", "steps", ".1f"), Column("kl_before", "KL before", ".3f"),
        Column("kl_after", "KL after", ".4f"), Column("moved", "‖e′ − e‖", ".3f"),
    ]  # fmt: skip
    titled = [{**row, "data": study.world(row["source"]).title} for row in rows]
    moments = [_at(row, moment) for row in titled for moment in ("before", "after")]
    tables = (
        ("what it costs", costs, moments),
        ("what it buys", buys, moments),
        (f"seconds (on {study.device}), and which rule stopped how many users", ends, titled),
    )
    return [
        shown(f"UC-FedRec, Table 3, central protection: {title}", columns, lines, study.describe())
        for title, columns, lines in tables
    ]


def _at(row: Mapping[str, Any], moment: str) -> Row:
    """A row's figures of one moment under plain names."""
    found = {k: row[k] for k in ("data", "system", "attribute")} | {"moment": moment}
    names = [f"{who}_{m}" for who in WHO for m in ("hr", "ndcg")] + [
        "auc",
        "either",
        "f1",
        "majority",
    ]
    found |= {name: row.get(f"{name}_{moment}") for name in names}
    found |= {f"{name}_ci": row.get(f"{name}_{moment}_ci") for name in names}
    found |= {f"{m}_paper": row[f"{m}_{moment}_paper"] for m in ("hr", "ndcg", "leak")}
    return found | {"verdict": row[f"verdict_{moment}"]}


def _claims(row: Mapping[str, Any]) -> list[Claim]:
    what = f"{row['attribute']} in {row['system']}, {row['source']}"
    stops = {k.removeprefix("stopped: "): v for k, v in row.items() if k.startswith("stopped: ")}
    ended = ", ".join(f"{k} {v:,.0f}" for k, v in stops.items() if not k.endswith("_ci"))
    took = f"{row['seconds']:.3f} s for {row['users']:,.0f} users, {ended}"
    found = [claim(f"central protection of {what} takes less than a minute",
                   (row["seconds"] < 60, took))]  # fmt: skip
    if "auc_after" in row:
        parts = [
            (row[f"{m}_after"] < row[f"{m}_before"],
             f"{words} {row[f'{m}_before']:.3f} to {row[f'{m}_after']:.3f}")
            for m, words in (("either", "AUC, either way,"), ("f1", "F1"))
        ]  # fmt: skip
        words = f"F1 of the majority guess {row['majority_after']:.3f}; it {row['verdict_after']}"
        found.append(claim(f"a strong attacker gets less of {what}", *parts, (True, words)))
    kept = row["own_hr_after"] / max(row["own_hr_before"], 1e-9)
    words = f"HR@10 {row['own_hr_before']:.4f} to {row['own_hr_after']:.4f}, {kept:.3f} of it"
    found.append(claim(f"those who hide {what} keep 0.9 of their HR@10", (kept >= 0.9, words)))
    return found


STUDY, VIEWS = UCStudy, {"uc-table3": table3}
