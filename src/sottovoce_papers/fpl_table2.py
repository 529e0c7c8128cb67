"""FPL's Table 2 on Foursquare Italy: accuracy and diversity of FPL and its baselines.

Beside the paper's protocol (FPL inherits BPR-MF's learning rate and size) two things the paper does
not do: the same at every learning rate of the grid, and all configurations at equal numbers of
triples, since the "+" configurations draw X⁺/N times as many per epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.evaluation.seeds import over_seeds
from sottovoce.evaluation.significance import Comparison, compare
from sottovoce.evaluation.tables import Cell, Column
from sottovoce_papers.fpl_study import (
    FCF,
    FCF_IN_FPL,
    Chosen,
    Evaluated,
    FPLStudy,
    baseline_rows,
    best_rates,
    choose_bpr,
    choose_equal_work,
    choose_fpl,
    fcf_rows,
)
from sottovoce_papers.study import Claim, Row, claim, installed, shown

NAME = "fpl-table2"
FORMATS = {"P@10": ".5f", "R@10": ".5f", "IC@10": ".0f", "Gini@10": ".5f"}
FIGURES = [Column(metric, format=shape) for metric, shape in FORMATS.items()]
PLUS = {"sFPL": "sFPL+", "pFPL": "pFPL+"}
STUDY = FPLStudy


def table2(study: FPLStudy, out: Path) -> dict[str, Any]:
    baselines, notes = baseline_rows(study)
    ranked = choose_bpr(study)
    bpr = ranked[0]
    by_rate = choose_fpl(study, bpr)
    equal = choose_equal_work(study, bpr)
    systems = {rate: {"BPR-MF": _at_rate(ranked, rate, bpr), **by_rate[rate]} for rate in by_rate}
    plan = [c for found in systems.values() for c in found.values()] + [*equal.values()]
    finals = iter(study.final("test", plan))
    rated = {
        rate: [Evaluated(name, c.words(), next(finals)) for name, c in found.items()]
        for rate, found in systems.items()
    }
    fair = [Evaluated(name, c.words(), next(finals)) for name, c in equal.items()]
    lines = [*baselines, *fcf_rows(study), *rated[bpr.setting.learning_rate]]
    tests = _tests(lines)
    rows = [_row(line) for line in lines]
    rated_rows = {rate: [_row(x, f"α={rate:g}") for x in found] for rate, found in rated.items()}
    fair_rows = [_row(line, "equal triples") for line in fair]
    changed = [
        row | {"rate": rate, "change": Cell(_change(row, found[0]), _star(test, row))}
        for (rate, found), test in zip(rated_rows.items(), map(_tests, rated.values()), strict=True)
        for row in found
    ]
    usual = {row["system"]: row for row in rows}
    longest = max(study.config.epochs)
    protocol = study.describe()
    system, settings = Column("system", ""), Column("settings")
    beside: list[Column] = []
    for column in FIGURES:
        best = None if column.key in ("IC@10", "Gini@10") else "max"
        beside.append(Column(column.key, format=column.format, best=best))  # type: ignore[arg-type]
        beside.append(Column(f"{column.key}_paper", "paper", column.format))
    tables = [
        shown("FPL, Table 2, Italy: ours beside the paper's", [system, *beside, settings],
              [row | {"P@10": Cell(row["P@10"], _star(tests, row))} for row in rows], protocol,
              ["* differs from BPR-MF, paired t-test over users, Holm-corrected p < 0.05", *notes]),
        shown("The same with every learning rate of the grid",
              [Column("rate", "α", "g"), system, *FIGURES,
               Column("change", "P@10 against BPR-MF at this α", "+.1%"), settings],
              changed, protocol, ["* as above, within one learning rate"]),
        shown(f"At equal work: {longest:g}·X⁺ triples for every configuration",
              [system, *FIGURES, Column("change", "P@10 against the first table", "+.1%"),
               settings],
              [row | {"change": _change(row, usual[row["system"]])} for row in fair_rows],
              protocol),
    ]  # fmt: skip
    significance = [
        {"system": c.system, "reference": c.reference, "metric": c.metric,
         "difference": c.test.difference, "p": c.test.p, "p_holm": c.p_holm}
        for c in tests.values()
    ]  # fmt: skip
    return study.result(
        NAME, out, tables, _claims(lines, rated, fair, by_rate, tests),
        rows=[*rows, *[row for found in rated_rows.values() for row in found], *fair_rows],
        significance=significance,
    )  # fmt: skip


VIEWS = {NAME: table2}


def _at_rate(ranked: Sequence[Chosen], rate: float, best: Chosen) -> Chosen:
    """The best BPR-MF of this learning rate, of the size that FPL inherits."""
    size = best.setting.embedding_size
    return next(
        c for c in ranked if c.setting.learning_rate == rate and c.setting.embedding_size == size
    )


def _row(line: Evaluated, variant: str = "") -> Row:
    """Our figures beside the printed ones; FCF as published is not among these."""
    summary, printed = line.summary(), installed(NAME)["printed"]
    row: Row = {"system": line.system, "settings": line.settings}
    if variant:
        row["variant"] = variant
    for metric, theirs in zip(FORMATS, printed.get(line.system, [None] * 4), strict=True):
        row |= {metric: summary[metric], f"{metric}_paper": theirs}
    return row


def _change(row: Row, base: Row) -> float | None:
    """Of P@10, relatively; nothing for the base itself."""
    return row["P@10"] / base["P@10"] - 1.0 if row is not base and base["P@10"] else None


def _star(tests: Mapping[str, Comparison], row: Row) -> str:
    test = tests.get(row["system"])
    return "*" if test is not None and test.significant() else ""


def _tests(rows: Sequence[Evaluated]) -> dict[str, Comparison]:
    means = {row.system: over_seeds(dict(enumerate(row.evaluations))) for row in rows}
    return {c.system: c for c in compare(means, "P@10", "BPR-MF")}


def _claims(
    rows: Sequence[Evaluated],
    rated: Mapping[float, Sequence[Evaluated]],
    fair: Sequence[Evaluated],
    by_rate: Mapping[float, Mapping[str, Chosen]],
    tests: Mapping[str, Comparison],
) -> list[Claim]:
    p = {row.system: row.summary()["P@10"] for row in rows}
    even = {row.system: row.summary() for row in fair}
    inherited = next(iter(by_rate))
    factor, best_factor = max(
        ((f"{r.system}, {r.settings}", r.summary()["P@10"]) for s in rated.values() for r in s),
        key=lambda found: found[1],
    )
    tuned = best_rates(by_rate)
    not_one = sum(c.setting.share < 1.0 for c in by_rate[inherited].values())

    def shares(chosen: Mapping[str, Chosen]) -> str:
        return ", ".join(f"{n} π={c.setting.share:g}" for n, c in chosen.items())

    printed = installed(NAME)["printed_shares"]
    best_shares = ", ".join(f"{n} π={s:g}" for n, s in printed.items())
    best = ", ".join(f"{n} π={c.setting.share:g} (α={c.setting.learning_rate:g})"
                     for n, c in tuned.items())  # fmt: skip
    found = [
        claim("Top-Pop P@10 is 0.0270 ± 0.0002",
              (abs(p["Top-Pop"] - 0.0270) <= 2e-4, f"{p['Top-Pop']:.5f}")),
        claim("BPR-MF ≈ Top-Pop", _alike(rows, tests, "Top-Pop")),
        *_relations(rated[inherited], f"α={inherited:g}, which BPR-MF does best with"),
        claim("the best π is rarely 1",
              (not_one >= 3, f"{shares(by_rate[inherited])}; paper: {best_shares}; "
                             f"each with its best α: {best}")),
        claim("User-kNN is above the factor models",
              (p["User-kNN"] > best_factor,
               f"User-kNN {p['User-kNN']:.5f}, best factor model {best_factor:.5f} ({factor}), "
               f"against BPR-MF p={tests['User-kNN'].p_holm:.2g}")),
        claim("FCF was compared at its best, with negatives as published",
              (p[FCF_IN_FPL] >= p[FCF],
               f"without, as most likely run, {p[FCF_IN_FPL]:.5f}; with negatives "
               f"{p[FCF]:.5f}; Top-Pop {p['Top-Pop']:.5f}")),
        claim("at equal triples local computation still helps accuracy",
              *[(even[PLUS[n]]["P@10"] > even[n]["P@10"],
                 f"{PLUS[n]} {even[PLUS[n]]['P@10']:.5f}, {n} {even[n]['P@10']:.5f}")
                for n in PLUS]),
        claim("at equal triples local computation still widens coverage",
              *[_growth(even, n) for n in PLUS]),
    ]  # fmt: skip
    for rate in by_rate:
        if rate != inherited:
            found += _relations(rated[rate], f"α={rate:g}")
    return found


def _relations(rows: Sequence[Evaluated], where: str) -> list[Claim]:
    """What the paper says of FPL beside BPR-MF, within one learning rate."""
    tests = _tests(rows)
    score = {row.system: row.summary() for row in rows}

    def above(name: str) -> tuple[bool, str]:
        _, words = _alike(rows, tests, name)
        return score[name]["P@10"] > score["BPR-MF"]["P@10"] and tests[name].significant(), words

    return [
        claim(f"sFPL ≈ pFPL ≈ BPR-MF, at {where}",
              _alike(rows, tests, "sFPL"), _alike(rows, tests, "pFPL")),
        claim(f"sFPL+ and pFPL+ are above BPR-MF, at {where}", above("sFPL+"), above("pFPL+")),
        claim(f"coverage grows many times (≥ 3) with local computation, at {where}",
              *[_growth(score, n) for n in PLUS]),
    ]  # fmt: skip


def _alike(
    rows: Sequence[Evaluated], tests: Mapping[str, Comparison], name: str
) -> tuple[bool, str]:
    """Whether a system's P@10 is within 5 % of BPR-MF's, or not significantly different."""
    p = {row.system: row.summary()["P@10"] for row in rows}
    change = p[name] / p["BPR-MF"] - 1.0
    near = abs(change) <= 0.05 or not tests[name].significant()
    return near, f"{name} {p[name]:.5f} ({change:+.1%}, p={tests[name].p_holm:.2g})"


def _growth(score: Mapping[str, Mapping[str, float]], base: str) -> tuple[bool, str]:
    ratio = score[PLUS[base]]["IC@10"] / max(1.0, score[base]["IC@10"])
    return ratio >= 3.0, f"{PLUS[base]} recommends {ratio:.1f} × the items of {base}"
