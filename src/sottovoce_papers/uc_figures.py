"""UC-FedRec's Figures 4, 5 and 7: who pays for what is hidden, and whether the right thing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.study import Claim, Row, claim
from sottovoce_papers.uc_study import AttackJob, UCCell, UCStudy
from sottovoce_papers.uc_systems import (
    ATTACKERS,
    BASE,
    DOUBAN,
    GAP,
    ML,
    PLACE,
    SAME,
    SCORES,
    Guessed,
    Mask,
    UCSystem,
    apart,
    described,
    gap_cells,
    hidden_count,
    named,
    places,
    share,
    train,
)

# --- figure 4: those who hide nothing -------------------------------------------------------------


def figure4(study: UCStudy, out: Path) -> dict[str, Any]:
    """Do those who hide nothing pay?"""
    rows: list[Row] = []
    claims, pictures = [], []

    def open_users(cell: UCCell) -> Mask:
        return np.equal(hidden_count(study, cell), 0)

    def private(cell: UCCell) -> Mask:
        return hidden_count(study, cell) > 0

    for source, recommender in places(study):
        base = train(study, source, recommender)
        curves: dict[str, tuple[list[float], list[float]]] = {
            "those who hide nothing": ([], []), "those who hide something": ([], []),
        }  # fmt: skip
        parts = []
        for beta in study.config.betas:
            line = train(study, source, recommender, beta)
            # The same users under the base model, whose cells hide nothing.
            plain = UCSystem(base.group, "", line.cells, base.runs)
            for (label, (xs, ys)), users in zip(curves.items(), (open_users, private), strict=True):
                (hr, ndcg), (was, was_ndcg) = line.scores(users), plain.scores(users)
                gap = apart(line, plain, users)
                rows.append(
                    {**described(study, source, recommender), "beta": beta, "users": label,
                     "HR@10": hr, "NDCG@10": ndcg, "base": was, "base_ndcg": was_ndcg,
                     "kept": share(hr, was), "kept_ndcg": share(ndcg, was_ndcg), **gap_cells(gap),
                     **_printed4(source, recommender, beta, users is open_users)}
                )  # fmt: skip
                xs.append(beta)
                ys.append(hr)
                if users is open_users:
                    kept = share(hr, was)
                    parts.append(
                        (kept >= 0.96, f"β={beta:g}: {kept:.1%} ({hr:.3f} of {was:.3f}, "
                         f"{gap.difference:+.4f}, 95 % {gap.low:+.4f} to {gap.high:+.4f})")
                    )  # fmt: skip
        name = named(study, source, recommender)
        claims.append(
            claim(f"those who hide nothing keep 96 % of HR@10 and more, {name} "
                  "(paper: 96.4 % at β=0.7 on Douban)", *parts)
        )  # fmt: skip
        picture = plots.lines(
            out / "figures" / f"uc-figure4-{source}-{recommender}", curves,
            x_label="β, weight of hiding", y_label="HR@10", title=name,
            references={BASE: base.scores()[0]},
        )  # fmt: skip
        pictures.append(FigureBlock(picture.svg, f"HR@10 by β of both kinds of users, {name}"))
    columns = [
        *PLACE, Column("beta", "β", "g"), Column("users"), *SCORES,
        Column("base", "base HR", ".4f"), Column("base_ndcg", "base NDCG", ".4f"),
        Column("kept", "HR kept", ".1%"), Column("kept_ndcg", "NDCG kept", ".1%"),
        *GAP,
    ]  # fmt: skip
    table = Table("UC-FedRec, Figure 4: users who hide nothing", columns, rows, study.describe())
    return study.result("uc-figure4", out, [table], claims, pictures)


def _printed4(source: str, recommender: str, beta: float, nothing: bool) -> Row:
    if (source, recommender, beta, nothing) == (DOUBAN, "gnn", 0.7, True):
        return {"paper_hr": 0.698, "paper_ndcg": 0.477}
    return {}


# --- figure 5: the right filter -------------------------------------------------------------------


def figure5(study: UCStudy, out: Path) -> dict[str, Any]:
    """Attribute attacked × filter used, each on the users whom the filter protects."""
    rows: list[Row] = []
    claims, pictures = [], []
    for source, recommender in places(study):
        names, beta = study.attributes(source), study.config.betas[0]
        base = train(study, source, recommender)
        filters = {
            name: train(study, source, recommender, beta, attributes=(name,)) for name in names
        }
        found = _matrix(study, base, filters, names)
        for attribute in names:
            for used, line in filters.items():
                pair = found.get((attribute, used))
                if pair is None:
                    continue
                before, after = pair
                rows.append(
                    {**described(study, source, recommender), "attribute": attribute,
                     "filter": used,
                     "HR@10": line.scores()[0], "NDCG@10": line.scores()[1], **after.cells(),
                     "base_AUC": before.auc, "base_F1": before.f1,
                     "left": _share(after.ranked, before.ranked),
                     **_printed5(source, recommender, attribute, used)}
                )  # fmt: skip
        name = named(study, source, recommender)
        claims += _claims5(found, names, name)
        picture = plots.bias_bars(
            out / "figures" / f"uc-figure5-{source}-{recommender}",
            [f"{a} guessed" for a in names],
            {
                "no filter": [_mean_gain(found, a, names, 0) for a in names],
                **{f"filter of {f}": [_gain(found, a, f) for a in names] for f in names},
            },
            title=name,
            x_label="attackers' AUC − 0.5",
        )
        pictures.append(FigureBlock(picture.svg, f"attackers' AUC by attribute and filter, {name}"))
    columns = [
        *PLACE, Column("attribute", "guessed"), Column("filter"), *SCORES, *ATTACKERS,
        Column("base_AUC", "no filter: AUC", ".3f"), Column("base_F1", "F1", ".3f"),
        Column("left", "of AUC − 0.5 left", ".0%"),
        Column("paper_base", "paper: no filter", ".3f"), Column("paper", "paper", ".3f"),
    ]  # fmt: skip
    table = Table("UC-FedRec, Figure 5: the right filter", columns, rows, study.describe())
    return study.result("uc-figure5", out, [table], claims, pictures)


Matrix = dict[tuple[str, str], tuple[Guessed, Guessed]]
"""By attribute and filter: the base model, and the filter, on the same users."""


def _matrix(
    study: UCStudy, base: UCSystem, filters: Mapping[str, UCSystem], names: Sequence[str]
) -> Matrix:
    places_ = [(a, f) for a in names for f in filters]
    jobs = [
        AttackJob(cell, attribute, hidden=used)
        for attribute, used in places_
        for line in (base, filters[used])
        for cell in line.cells
    ]
    every = iter(study.attack_all(jobs))
    found: Matrix = {}
    for attribute, used in places_:
        pair = []
        for line in (base, filters[used]):
            seeds = [next(every) for _ in line.cells]
            pair.append(Guessed(attribute, tuple(a for a in seeds if a is not None)))
        if all(one.seeds for one in pair):
            found[attribute, used] = (pair[0], pair[1])
    return found


def _gain(found: Matrix, attribute: str, used: str, which: int = 1) -> float:
    pair = found.get((attribute, used))
    return float("nan") if pair is None else pair[which].ranked


def _mean_gain(found: Matrix, attribute: str, names: Sequence[str], which: int) -> float:
    return float(np.mean([_gain(found, attribute, used, which) for used in names]))


def _share(after: float, before: float) -> float | None:
    """What is left of an attacker's gain; nothing where there was none."""
    return max(0.0, after) / before if before > 0 else None


def _claims5(found: Matrix, names: Sequence[str], name: str) -> list[Claim]:
    own, others = [], []
    for attribute in names:
        left = {
            used: (found[attribute, used][1].auc, found[attribute, used][0].auc)
            for used in names
            if (attribute, used) in found
        }
        if attribute not in left:
            continue
        mine = left.pop(attribute)
        words = f"{attribute}: {mine[1]:.3f} to {mine[0]:.3f} by its own filter"
        for used, other in left.items():
            own.append(
                (mine[0] - mine[1] < other[0] - other[1],
                 f"{words}, {other[1]:.3f} to {other[0]:.3f} by that of {used}")
            )  # fmt: skip
            others.append(
                (other[0] < other[1], f"{attribute} by the filter of {used}: "
                 f"{other[1]:.3f} to {other[0]:.3f}")
            )  # fmt: skip
    return [
        claim(f"an attribute's own filter takes more of attackers' AUC than another, {name}", *own),
        claim(f"another attribute's filter takes some, too, {name}", *others),
    ]


def _printed5(source: str, recommender: str, attribute: str, used: str) -> Row:
    if (source, recommender, attribute) != (ML, "gnn", "age"):
        return {}
    return {"paper_base": 0.489, "paper": {"gender": 0.444, "age": 0.313}.get(used)}


# --- figure 7: how many attributes ----------------------------------------------------------------


def figure7(study: UCStudy, out: Path) -> dict[str, Any]:
    """HR@10 by the number of attributes that a user hides."""
    rows: list[Row] = []
    claims, pictures = [], []
    for source, recommender in places(study):
        base = train(study, source, recommender)
        most = len(study.attributes(source))
        curves: dict[str, tuple[list[float], list[float]]] = {}
        name = named(study, source, recommender)
        for beta in study.config.betas:
            line = train(study, source, recommender, beta)
            plain = UCSystem(base.group, "", line.cells, base.runs)
            kept: dict[int, tuple[float, float, float]] = {}
            for count in range(most + 1):

                def users(cell: UCCell, count: int = count) -> Mask:
                    return np.equal(hidden_count(study, cell), count)

                size = float(np.mean([users(cell).mean() for cell in line.cells]))
                if not size:
                    continue
                (hr, ndcg), (was, was_ndcg) = line.scores(users), plain.scores(users)
                gap = apart(line, plain, users)
                kept[count] = (hr, ndcg, was)
                rows.append(
                    {**described(study, source, recommender), "beta": beta, "hidden": count,
                     "share": size, "HR@10": hr, "NDCG@10": ndcg, "base": was,
                     "base_ndcg": was_ndcg, "kept": share(hr, was), **gap_cells(gap),
                     **_printed7(source, recommender, beta, count)}
                )  # fmt: skip
            curves[line.label] = (
                [float(k) for k in kept], [share(hr, was) for hr, _, was in kept.values()]
            )  # fmt: skip
            claims += _claims7(kept, f"{name}, β={beta:g}")
        picture = plots.lines(
            out / "figures" / f"uc-figure7-{source}-{recommender}", curves,
            x_label="attributes that a user hides", y_label="HR@10 over that of the base model",
            title=name, references={BASE: 1.0},
        )  # fmt: skip
        pictures.append(FigureBlock(picture.svg, f"HR@10 kept by hidden attributes, {name}"))
    columns = [
        *PLACE, Column("beta", "β", "g"), Column("hidden", "hides", "d"),
        Column("share", "of users", ".1%"), *SCORES, Column("base", "base HR", ".4f"),
        Column("base_ndcg", "base NDCG", ".4f"), Column("kept", "HR kept", ".1%"),
        *GAP,
    ]  # fmt: skip
    table = Table("UC-FedRec, Figure 7: how many attributes", columns, rows, study.describe())
    return study.result("uc-figure7", out, [table], claims, pictures)


def _printed7(source: str, recommender: str, beta: float, count: int) -> Row:
    if (source, recommender, beta, count) == (ML, "gnn", 0.5, 3):
        return {"paper_hr": 0.773, "paper_ndcg": 0.479}
    return {}


def _claims7(kept: Mapping[int, tuple[float, float, float]], name: str) -> list[Claim]:
    shares = {count: share(hr, was) for count, (hr, _, was) in kept.items()}
    found = [
        claim(f"the more attributes a user hides, the less of HR@10 she keeps, {name}",
              *[(shares[b] <= shares[a] + SAME,
                 f"{shares[a]:.1%} with {a}, {shares[b]:.1%} with {b}")
                for a, b in pairwise(shares)])
    ]  # fmt: skip
    if 0 in kept and len(kept) > 1:
        last = max(kept)
        hr, ndcg = (share(kept[last][k], kept[0][k]) for k in range(2))
        found.append(
            claim(f"who hides all {last} keeps 90 % of HR@10 of those who hide nothing, {name} "
                  "(paper: 91.7 %, NDCG 88.3 %)",
                  (hr >= 0.9, f"{hr:.1%} ({kept[last][0]:.3f} of {kept[0][0]:.3f}), "
                              f"NDCG {ndcg:.1%}"))
        )  # fmt: skip
    return found


STUDY = UCStudy
VIEWS = {"uc-figure4": figure4, "uc-figure5": figure5, "uc-figure7": figure7}
