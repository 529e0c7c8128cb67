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
from sottovoce.evaluation.report import FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.tables import Cell, Column, Table, Value
from sottovoce_papers.fpl_published import BRAZIL_DISPARITY, ITALY_BIAS
from sottovoce_papers.fpl_table2 import baseline_rows, best_rates, choose_bpr, choose_fpl
from sottovoce_papers.study import Chosen, Study, mean_summary

Sweep = dict[str, dict[float, list[Evaluation]]]
Line = dict[str, Value | Cell]
Curves = dict[str, tuple[list[float], list[float]]]


def sweep(study: Study) -> tuple[Sweep, dict[str, Chosen]]:
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


def cost(study: Study, name: str, share: float) -> float:
    train = study.test.train
    return published_cost(
        train.n_users, train.n_items, train.n_interactions, name.endswith("+"), share
    )


def figure2(study: Study, out: Path) -> dict[str, Any]:
    found, chosen = sweep(study)
    curves = points(found, "F1@10")
    picture = plots.metric_by_share(
        out / "figures" / "fpl-figure2", curves, metric="F1@10", title="F1 by share of positives"
    )
    best = {name: x[int(np.argmax(y))] for name, (x, y) in curves.items()}
    inner = [n for n, share in best.items() if share < 1.0]
    claims = [
        {
            "claim": "F1 peaks at a π below 1 in most configurations",
            "holds": len(inner) >= 3,
            "detail": ", ".join(f"{n}: π={s:g}" for n, s in best.items()),
        },
        {
            "claim": "sharing no positive at all (π = 0) teaches nothing",
            "holds": all(y[x.index(0.0)] < 0.25 * max(y) for x, y in curves.values() if 0.0 in x),
            "detail": "F1 at π=0 "
            + ", ".join(f"{n} {y[x.index(0.0)]:.5f}" for n, (x, y) in curves.items() if 0.0 in x),
        },
    ]
    return _finish("fpl-figure2", study, found, chosen, claims, picture.svg, out, _FIGURE2)


def figure3(study: Study, out: Path) -> dict[str, Any]:
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
    return _finish("fpl-figure3", study, found, chosen, claims, picture.svg, out, _FIGURE3)


def _wider(precision: Curves, coverage: Curves, base: str) -> dict[str, Any]:
    """Coverage at each one's most accurate π: at π = 0 lists are nearly random and cover most."""

    def at_best(name: str) -> tuple[float, float]:
        best = int(np.argmax(precision[name][1]))
        return coverage[name][0][best], coverage[name][1][best]

    (share, one), (plus_share, many) = at_best(base), at_best(base + "+")
    return {
        "claim": f"at its most accurate, {base}+ covers more of the catalogue than {base}",
        "holds": many > one,
        "detail": f"{many:.0f} items (π={plus_share:g}) against {one:.0f} (π={share:g})",
    }


def figure4(study: Study, out: Path) -> dict[str, Any]:
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
        {
            "claim": "the most accurate points on the front come from local computation",
            "holds": max(front, key=lambda f: precise[f])[0].endswith("+"),
            "detail": "front: " + ", ".join(f"{n} π={s:g}" for n, s in front),
        },
        {
            "claim": "cheap configurations are on the front, too",
            "holds": any(not n.endswith("+") for n, _ in front),
            "detail": "costs differ by less than 0.4 %: the model download dwarfs the updates",
        },
    ]  # fmt: skip
    return _finish("fpl-figure4", study, found, chosen, claims, picture.svg, out, _FIGURE4)


def table4(study: Study, out: Path) -> dict[str, Any]:
    """Bias disparity by top category, at each configuration's validation-chosen π."""
    bpr = choose_bpr(study)[0]
    chosen = best_rates(choose_fpl(study, bpr))
    baselines, notes = baseline_rows(study)
    finals = study.final("test", [bpr, *chosen.values()])
    systems: dict[str, Sequence[Evaluation]] = {row.system: row.evaluations for row in baselines}
    systems |= dict(zip(["BPR-MF", *chosen], finals, strict=True))
    member = membership(study)
    train = study.test.train
    measured = {
        name: np.mean([bias_disparity(_lists(e), train, member).disparity for e in found], axis=0)
        for name, found in systems.items()
    }
    source = bias_disparity(_lists(systems["Random"][0]), train, member).source
    short = [_short(c) for c in CATEGORIES]
    columns = [Column("system", ""), *[Column(c, format="+.4f") for c in short]]
    rows = [_line(n, short, v) for n, v in measured.items()]
    bias = [
        _line("B_T ours", short, source),
        _line("B_T paper, Italy", short, ITALY_BIAS),
    ]
    brazil = [_line(f"{n}, Brazil", short, v) for n, v in BRAZIL_DISPARITY.items()]
    placed = np.asarray(member.any(axis=1))
    uncounted = 1.0 - float(placed[train.items].mean())
    note = f"{uncounted:.2%} of the training check-ins are at venues without a top category."
    tables = [
        Table("Bias disparity on Italy (0: as in the training data)", columns, rows,
              study.describe(), [note, *notes]),
        Table("Training bias B_T", [columns[0], *[Column(c, format=".4f") for c in short]], bias),
        Table("The paper's Table 4 (Brazil), for the signs", columns, brazil),
    ]  # fmt: skip
    expected = (1.0 - source) / source
    claims = [
        {
            "claim": "a random recommender gives (1 − B)/B in every category",
            "holds": bool(np.nanmax(np.abs(measured["Random"] - expected)) < 0.1),
            "detail": f"largest gap {np.nanmax(np.abs(measured['Random'] - expected)):.3f}",
        },
        *[_same_signs(name, measured[name]) for name in ("BPR-MF", *CONFIGURATIONS)],
    ]
    picture = plots.bias_bars(
        out / "figures" / "fpl-table4",
        CATEGORIES,
        {n: measured[n] for n in ("BPR-MF", *CONFIGURATIONS)},
        title="Bias disparity by category, Italy",
    )
    report = write_report(
        out / "report.html",
        "FPL, Table 4, on Foursquare Italy",
        [
            Section("Results", [*tables, FigureBlock(picture.svg, "Bias disparity by category")]),
            Section("How to read this", [TextBlock(_TABLE4)]),
        ],
    )
    return {
        "name": "fpl-table4",
        "data": study.dataset.name,
        "protocol": study.describe(),
        "rows": [_beside_brazil(row, short) for row in rows],
        "claims": claims,
        "tables": tables,
        "report": str(report),
    }  # fmt: skip


def _line(system: str, short: Sequence[str], values: Iterable[float]) -> Line:
    return {"system": system, **{c: float(v) for c, v in zip(short, values, strict=True)}}


def _beside_brazil(row: Line, short: Sequence[str]) -> Line:
    printed = BRAZIL_DISPARITY.get(str(row["system"]), ())
    return row | {f"{c}_paper_brazil": v for c, v in zip(short, printed, strict=bool(printed))}


def membership(study: Study) -> NDArray[np.bool_]:
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


def _same_signs(name: str, ours: NDArray[np.float64]) -> dict[str, Any]:
    theirs = np.array(BRAZIL_DISPARITY[name])
    same = np.sign(ours) == np.sign(theirs)
    different = [c for c, s in zip(CATEGORIES, same, strict=True) if not s]
    return {
        "claim": f"{name} pushes the same categories up and down as on Brazil",
        "holds": bool(same.all()),
        "detail": f"{int(same.sum())} of {len(same)} signs agree"
        + (f"; not {', '.join(different)}" if different else ""),
    }


def _finish(
    name: str,
    study: Study,
    found: Sweep,
    chosen: Mapping[str, Chosen],
    claims: Sequence[Mapping[str, Any]],
    picture: Path,
    out: Path,
    reading: str,
) -> dict[str, Any]:
    rows: list[Line] = []
    for system, by_share in found.items():
        for share, evaluations in by_share.items():
            summary = mean_summary(evaluations)
            keep = {k: summary[k] for k in ("P@10", "R@10", "F1@10", "IC@10", "Gini@10")}
            rows.append(
                {"system": system, "share_positives": share, **keep,
                 "CCE": round(cost(study, system, share))}
            )  # fmt: skip
    columns = [
        Column("system", ""),
        Column("share_positives", "π", ".1f"),
        *[Column(m, format=".5f") for m in ("P@10", "R@10", "F1@10")],
        Column("IC@10", format=".0f"),
        Column("Gini@10", format=".5f"),
        Column("CCE", format=",d"),
    ]
    notes = [f"{n}: {c.words()} (π varied)" for n, c in chosen.items()]
    table = Table(f"{name} on {study.dataset.name}", columns, rows, study.describe(), notes)
    report = write_report(
        out / "report.html",
        name,
        [
            Section("Results", [FigureBlock(picture, reading.split(".")[0]), table]),
            Section("How to read this", [TextBlock(reading)]),
        ],
    )
    return {
        "name": name,
        "data": study.dataset.name,
        "protocol": study.describe(),
        "rows": rows,
        "claims": list(claims),
        "tables": [table],
        "report": str(report),
        "figure": str(picture),
    }


_FIGURE2 = """\
F1 of precision and recall as the share of positives grows. The paper's figure starts at π = 0.1; \
ours at 0, where only negatives are sent and the model learns next to nothing."""
_FIGURE3 = """\
Item coverage against precision; each path runs from π = 0 to the white point at π = 1."""
_FIGURE4 = """\
Precision against the reciprocal of the communication cost per epoch; the red line joins the \
points that no other beats on both. Cost per epoch is nearly the same everywhere because the \
download of the model dominates, so this plane says little about what a federation would pay; the \
number of epochs, which the paper leaves out, matters far more."""
_TABLE4 = """\
Bias disparity compares how often a category is recommended with how often it is visited, both \
relative to its share of the catalogue. The paper prints this table for Brazil only; its rows \
stand below ours for their signs. The files carry leaf categories; the mapping to the nine top \
categories is ours."""
