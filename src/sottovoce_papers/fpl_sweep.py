"""FPL's Figures 2 to 4 and Table 4 on Foursquare Italy: one sweep over π, four views of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.fpl.system import CONFIGURATIONS, published_cost
from sottovoce.data.foursquare_categories import TOP_CATEGORIES as CATEGORIES
from sottovoce.data.foursquare_categories import top_category
from sottovoce.evaluation import plots
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce.evaluation.plots import pareto_front
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.fpl_study import (
    Chosen,
    FPLStudy,
    baseline_rows,
    best_rates,
    choose_bpr,
    choose_fpl,
    mean_summary,
)
from sottovoce_papers.study import Claim, Row, claim, installed, shown

Sweep = dict[str, dict[float, list[Evaluation]]]
Curves = dict[str, tuple[list[float], list[float]]]


def sweep(study: FPLStudy) -> tuple[Sweep, dict[str, Chosen]]:
    """Every configuration at every π on test, at its own validation-chosen rate and epochs."""
    chosen = best_rates(choose_fpl(study, choose_bpr(study)[0]))
    cells = [
        replace(best, setting=replace(best.setting, share=share))
        for best in chosen.values()
        for share in study.config.shares
    ]
    results = iter(study.final("π on test", cells))
    return {
        name: {share: next(results) for share in study.config.shares} for name in chosen
    }, chosen


def points(found: Sweep, metric: str) -> Curves:
    """By configuration: shares, and the metric at each."""
    return {
        name: (list(by_share), [mean_summary(e)[metric] for e in by_share.values()])
        for name, by_share in found.items()
    }


def cost(study: FPLStudy, name: str, share: float) -> float:
    train = study.test.train
    return published_cost(
        train.n_users, train.n_items, train.n_interactions, name.endswith("+"), share
    )


def figure2(study: FPLStudy, out: Path) -> dict[str, Any]:
    found, chosen = sweep(study)
    curves = points(found, "F1@10")
    picture = plots.metric_by_share(
        out / "figures" / "fpl-figure2", curves, metric="F1@10", title="F1 by share of positives"
    )
    best = {name: x[int(np.argmax(y))] for name, (x, y) in curves.items()}
    nothing = {n: (y[x.index(0.0)], max(y)) for n, (x, y) in curves.items() if 0.0 in x}
    claims = [
        claim("F1 peaks at a π below 1 in most configurations",
              (sum(share < 1.0 for share in best.values()) >= 3,
               ", ".join(f"{n}: π={s:g}" for n, s in best.items()))),
        claim("sharing no positive at all (π = 0) teaches nothing",
              (all(at_0 < 0.25 * most for at_0, most in nothing.values()),
               "F1 at π=0 " + ", ".join(f"{n} {at_0:.5f}" for n, (at_0, _) in nothing.items()))),
    ]  # fmt: skip
    return _finish("fpl-figure2", study, found, chosen, claims, picture.svg, out)


def figure3(study: FPLStudy, out: Path) -> dict[str, Any]:
    found, chosen = sweep(study)
    precision, coverage = points(found, "P@10"), points(found, "IC@10")
    picture = plots.trade_off(
        out / "figures" / "fpl-figure3",
        {n: (coverage[n][1], precision[n][1]) for n in found},
        x_label="item coverage, IC@10 (items)",
        y_label="precision, P@10",
        title="Accuracy and diversity as π grows",
    )
    claims = [_wider(precision, coverage, base) for base in ("sFPL", "pFPL")]
    return _finish("fpl-figure3", study, found, chosen, claims, picture.svg, out)


def _wider(precision: Curves, coverage: Curves, base: str) -> Claim:
    """Coverage at each one's most accurate π: at π = 0 lists are nearly random and cover most."""

    def at_best(name: str) -> tuple[float, float]:
        best = int(np.argmax(precision[name][1]))
        return coverage[name][0][best], coverage[name][1][best]

    (share, one), (plus_share, many) = at_best(base), at_best(base + "+")
    return claim(
        f"at its most accurate, {base}+ covers more of the catalogue than {base}",
        (many > one, f"{many:.0f} items (π={plus_share:g}) against {one:.0f} (π={share:g})"),
    )


def figure4(study: FPLStudy, out: Path) -> dict[str, Any]:
    found, chosen = sweep(study)
    precision = points(found, "P@10")
    reciprocal = {n: [1e9 / cost(study, n, s) for s in x] for n, (x, _) in precision.items()}
    picture = plots.trade_off(
        out / "figures" / "fpl-figure4",
        {n: (reciprocal[n], precision[n][1]) for n in found},
        x_label="10⁹ / communication cost per epoch",
        y_label="precision, P@10",
        title="Accuracy against communication cost",
        front=True,
    )
    names = [(n, s) for n, (x, _) in precision.items() for s in x]
    both = [pair for n in found for pair in zip(reciprocal[n], precision[n][1], strict=True)]
    precise = {(n, s): p for n, curve in precision.items() for s, p in zip(*curve, strict=True)}
    front = [names[int(k)] for k in pareto_front(np.array(both))]
    claims = [
        claim("the most accurate points on the front come from local computation",
              (max(front, key=lambda f: precise[f])[0].endswith("+"),
               "front: " + ", ".join(f"{n} π={s:g}" for n, s in front))),
        claim("cheap configurations are on the front, too",
              (any(not n.endswith("+") for n, _ in front),
               "costs differ by less than 0.4 %: the model download dwarfs the updates")),
    ]  # fmt: skip
    return _finish("fpl-figure4", study, found, chosen, claims, picture.svg, out)


def table4(study: FPLStudy, out: Path) -> dict[str, Any]:
    """Bias disparity by top category, at each configuration's validation-chosen π."""
    bpr = choose_bpr(study)[0]
    chosen = best_rates(choose_fpl(study, bpr))
    baselines, notes = baseline_rows(study)
    finals = study.final("test", [bpr, *chosen.values()])
    systems: dict[str, Sequence[Evaluation]] = {row.system: row.evaluations for row in baselines}
    systems |= dict(zip(["BPR-MF", *chosen], finals, strict=True))
    member, train = membership(study), study.test.train
    measured = {
        name: np.mean([bias_disparity(_lists(e), train, member).disparity for e in found], axis=0)
        for name, found in systems.items()
    }
    source = bias_disparity(_lists(systems["Random"][0]), train, member).source
    printed = installed("fpl-table4")["printed"]
    short = [_short(c) for c in CATEGORIES]
    columns = [Column("system", ""), *[Column(c, format="+.4f") for c in short]]
    shares = [columns[0], *[Column(c, format=".4f") for c in short]]
    rows = [_line(n, short, v) for n, v in measured.items()]
    bias = [_line("B_T ours", short, source),
            _line("B_T paper, Italy", short, printed["italy_bias"])]  # fmt: skip
    brazil = [_line(f"{n}, Brazil", short, v) for n, v in printed["brazil"].items()]
    uncounted = 1.0 - float(np.asarray(member.any(axis=1))[train.items].mean())
    note = f"{uncounted:.2%} of the training check-ins are at venues without a top category."
    tables = [
        Table("Bias disparity on Italy (0: as in the training data)", columns, rows,
              study.describe(), [note, *notes]),
        Table("Training bias B_T", shares, bias),
        Table("The paper's Table 4 (Brazil), for the signs", columns, brazil),
    ]  # fmt: skip
    gap = np.nanmax(np.abs(measured["Random"] - (1.0 - source) / source))
    claims = [
        claim("a random recommender gives (1 − B)/B in every category",
              (bool(gap < 0.1), f"largest gap {gap:.3f}")),
        *[_same_signs(n, measured[n], printed["brazil"][n]) for n in ("BPR-MF", *CONFIGURATIONS)],
    ]  # fmt: skip
    picture = plots.bias_bars(
        out / "figures" / "fpl-table4",
        CATEGORIES,
        {n: measured[n] for n in ("BPR-MF", *CONFIGURATIONS)},
        title="Bias disparity by category, Italy",
    )
    theirs = {
        n: {f"{c}_paper_brazil": v for c, v in zip(short, values, strict=True)}
        for n, values in printed["brazil"].items()
    }
    return study.result(
        "fpl-table4", out, tables, claims,
        [FigureBlock(picture.svg, "Bias disparity by category")],
        rows=[row | theirs.get(row["system"], {}) for row in rows],
    )  # fmt: skip


def _line(system: str, short: Sequence[str], values: Iterable[float]) -> Row:
    return {"system": system, **{c: float(v) for c, v in zip(short, values, strict=True)}}


def membership(study: FPLStudy) -> NDArray[np.bool_]:
    """Which training venue is in which of Foursquare's nine top categories."""
    data = study.dataset
    leaves = data.item_categories or tuple(() for _ in range(data.interactions.n_items))
    numbers = study.test.dataset_items(np.arange(study.test.train.n_items))
    member = np.zeros((len(numbers), len(CATEGORIES)), dtype=bool)
    for row, item in enumerate(numbers):
        for leaf in leaves[int(item)]:
            top = top_category(leaf)
            if top is not None:
                member[row, CATEGORIES.index(top)] = True
    return member


def _lists(evaluation: Evaluation) -> NDArray[np.int32]:
    lists = evaluation.lists
    return lists if lists is not None else np.zeros((0, 0), dtype=np.int32)


def _short(category: str) -> str:
    words = category.replace(" Spot", "").split(" & ")
    return words[0] if len(words) == 1 else "&".join(w[0] for w in words)


def _same_signs(name: str, ours: NDArray[np.float64], theirs: Sequence[float]) -> Claim:
    same = np.sign(ours) == np.sign(theirs)
    different = [c for c, s in zip(CATEGORIES, same, strict=True) if not s]
    words = f"{int(same.sum())} of {len(same)} signs agree"
    return claim(
        f"{name} pushes the same categories up and down as on Brazil",
        (bool(same.all()), words + (f"; not {', '.join(different)}" if different else "")),
    )


def _finish(
    name: str,
    study: FPLStudy,
    found: Sweep,
    chosen: Mapping[str, Chosen],
    claims: Sequence[Claim],
    picture: Path,
    out: Path,
) -> dict[str, Any]:
    columns = [
        Column("system", ""), Column("share_positives", "π", ".1f"),
        *[Column(m, format=".5f") for m in ("P@10", "R@10", "F1@10")],
        Column("IC@10", format=".0f"), Column("Gini@10", format=".5f"), Column("CCE", format=",d"),
    ]  # fmt: skip
    rows = [
        {"system": system, "share_positives": share, **mean_summary(evaluations),
         "CCE": round(cost(study, system, share))}
        for system, by_share in found.items()
        for share, evaluations in by_share.items()
    ]  # fmt: skip
    notes = [f"{n}: {c.words()} (π varied)" for n, c in chosen.items()]
    table = shown(f"{name} on {study.dataset.name}", columns, rows, study.describe(), notes)
    alt = installed(name)["reading"].split(".")[0]
    blocks = [FigureBlock(picture, alt)]
    return study.result(name, out, [table], claims, blocks, figure=str(picture))


STUDY = FPLStudy
VIEWS = {
    "fpl-figure2": figure2,
    "fpl-figure3": figure3,
    "fpl-figure4": figure4,
    "fpl-table4": table4,
}
