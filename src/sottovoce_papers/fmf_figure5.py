"""FMF-LDP's Figure 5: hit ratios beside private and other rivals, what each costs in privacy, and
what travels (§5.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.significance import paired_t
from sottovoce.evaluation.tables import Column, Table
from sottovoce.privacy.accountant import DELTA
from sottovoce_papers.fmf_figures import certified
from sottovoce_papers.fmf_study import FMF, GENERATED, Crowd, FMFLine, FMFStudy, HoldOut
from sottovoce_papers.study import Claim, Row, claim, installed

NAME = "fmf-figure5"
BOUND, NARROW, RIVAL, PUBLISHED, IMPROVED = "mf-np", "mf-np-5", "dplcf", "published", "improved"
POPULAR, RANDOM = "top-pop", "random"
WANTED = 0.62
"""The share of MF-NP's HR@10 that the improved version is to reach with MovieLens 1M's users."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a user pays in all."""

    without_proxy: float
    with_proxy: float


def figure5(study: FMFStudy, out: Path) -> dict[str, Any]:
    c = study.config
    lines: list[FMFLine] = []
    for world in study.worlds:
        generated = world.config.source == GENERATED
        for hold_out in ("random",) if generated else c.hold_outs:
            for key, system in study.systems.items():
                setting = study.choose(world, system, hold_out)
                lines.append(study.line(world, key, hold_out, setting))
    tables = [*[_scores(study, lines, world) for world in study.worlds], _traffic(study, lines)]
    claims = _claims(study, lines)
    pictures = _pictures(study, lines, out)
    rows = [
        {"world": world.name, **row}
        for world, table in zip(study.worlds, tables, strict=False)
        for row in table.rows
    ]
    kinds = [dict(row) for row in tables[-1].rows]
    return study.result(NAME, out, tables, claims, pictures, rows=rows, bytes=kinds)


def price(line: FMFLine, rounds: int) -> Price:
    """Both certificates of a system. DPLCF's server needs each row whole, so that a proxy could
    only mix rows, and a row of n_items · ε is too dear for the crowd to hide it."""
    if line.setting.kind == FMF:
        s = line.setting
        found = certified(s.epsilon, s.reports, rounds, line.world.table.n_users)
        return Price(found.without_proxy, found.with_proxy)
    if line.setting.kind == "dplcf":
        whole = line.setting.component().epsilon * line.world.table.n_items  # type: ignore[union-attr]
        return Price(whole, whole)
    if line.system == RANDOM:
        return Price(0.0, 0.0)
    return Price(math.inf, math.inf)


def posted_bytes(reports: int) -> int | None:
    """The length of what a device posts in a round; nothing where the packages of the services are
    not installed."""
    try:
        from sottovoce.wire.shuffled import submission_bytes
    except ImportError:
        return None
    return submission_bytes(reports)


# --- tables --------------------------------------------------------------------------------------


def _scores(study: FMFStudy, lines: Sequence[FMFLine], world: Crowd) -> Table:
    rows: list[Row] = []
    theirs = installed(NAME)["printed"]
    for line in lines:
        if line.world is not world:
            continue
        system, bound = study.systems[line.system], _other(lines, line, BOUND)
        cost, printed = price(line, study.config.rounds), theirs.get(line.system)
        row: Row = {
            "hold_out": line.hold_out,
            "system": system.label,
            **{f"HR@{k}": line.score(k) for k in study.config.cutoffs},
            "sd": line.spread(),
            "ratio": line.score() / bound.score() if bound else None,
            "without": _finite(cost.without_proxy),
            "with": _finite(cost.with_proxy),
            "settings": system.varied(line.setting),
        }
        if printed is not None:
            row["paper"] = printed[2]
            row["ratio_paper"] = printed[2] / theirs[BOUND][2]
        rows.append(row)
    columns = [
        Column("hold_out", "held out"),
        Column("system", ""),
        *[Column(f"HR@{k}", format=".4f") for k in study.config.cutoffs],
        Column("sd", "± (sd)", ".4f"),
        Column("ratio", "of MF-NP", ".3f"),
        Column("paper", "paper", ".4f"),
        Column("ratio_paper", "of MF-NP", ".3f"),
        Column("without", "ε, no proxy", ",.5g"),
        Column("with", "ε, proxy", ",.5g"),
        Column("settings"),
    ]
    return Table(f"FMF-LDP, Figure 5: {world.describe()}", columns, rows, study.describe(), _NOTES)


_NOTES = (
    "The paper's figures: HR@10, latest split, MovieLens 20M, 75,040 users × 9,781 items.",
    "ε is what a user's whole history costs in all: pure ε by plain composition (k·ε·T; n_items·ε "
    f"for DPLCF's one row), and (ε, {DELTA:g}) by the clone bound of 2021 where a proxy that does "
    "not collude mixes everybody's reports. A dash: raw data are seen, nothing is protected. "
    "DPLCF's server needs rows whole, so that a proxy could only mix rows, for which nothing "
    "better can be certified.",
)


def _traffic(study: FMFStudy, lines: Sequence[FMFLine]) -> Table:
    rows: list[Row] = []
    rounds, theirs = study.config.rounds, installed(NAME)["printed_traffic"]
    for line in lines:
        if line.setting.kind != FMF or line.hold_out != _first(lines, line.world):
            continue
        k = line.setting.reports
        up, down = posted_bytes(k), max(cell.model_bytes for cell in line.cells)
        items = line.world.config.items or line.world.table.n_items
        rows.append(
            {"world": line.world.name, "system": study.systems[line.system].label, "k": k,
             "up": up, "up_all": up * rounds if up is not None else None,
             "up_paper": theirs["up"] * k // 100,
             "up_all_paper": theirs["up"] * k // 100 * theirs["epochs"],
             "down": down, "down_all": down * rounds, "down_paper": theirs["down"].get(str(items))}
        )  # fmt: skip
    columns = [
        Column("world", ""),
        Column("system", ""),
        Column("k", format="d"),
        Column("up", "up per epoch", ",d"),
        Column("up_paper", "paper", ",d"),
        Column("up_all", "up in all", ",d"),
        Column("up_all_paper", "paper", ",d"),
        Column("down", "V down per epoch", ",d"),
        Column("down_paper", "paper", ",d"),
        Column("down_all", "down in all", ",d"),
    ]
    notes = [
        "Bytes of the messages as devices post and fetch them. Up: every report is sealed by "
        "itself to the server's key (52 bytes for a report of 4), behind a head that names round, "
        "terms and key and is authenticated; the paper's reports are readable by the proxy. Down: "
        "the item vectors, four bytes a number. TLS and HTTP come on top (`sottovoce bench "
        "traffic`)."
    ]
    return Table("Bytes of one device (§5.3)", columns, rows, notes=notes)


def _pictures(study: FMFStudy, lines: Sequence[FMFLine], out: Path) -> list[FigureBlock]:
    pictures = []
    places = list(dict.fromkeys((line.world.name, line.hold_out) for line in lines))
    for number, (world, hold_out) in enumerate(places):
        curves = {
            study.short(line.system): (
                [float(k) for k in study.config.cutoffs],
                [line.score(k) for k in study.config.cutoffs],
            )
            for line in lines
            if (line.world.name, line.hold_out) == (world, hold_out)
        }
        picture = plots.lines(
            out / "figures" / f"{NAME}-{number + 1}", curves, x_label="cut-off K",
            y_label="HR@K", title=f"{world}, {hold_out} item held out",
        )  # fmt: skip
        pictures.append(FigureBlock(picture.svg, f"Hit ratios on {world}"))
    return pictures


# --- claims --------------------------------------------------------------------------------------


def _claims(study: FMFStudy, lines: Sequence[FMFLine]) -> list[Claim]:
    found = []
    theirs = installed(NAME)["printed"]
    ratio, dplcf_ratio = (theirs[key][2] / theirs[BOUND][2] for key in (PUBLISHED, RIVAL))
    label = {key: system.label for key, system in study.systems.items()}
    published = [line for line in lines if line.system == PUBLISHED]
    improved = [line for line in lines if line.system == IMPROVED]

    def share(line: FMFLine, of: str, least: float) -> tuple[bool, str] | None:
        other = _other(lines, line, of)
        if other is None:
            return None
        reached = line.score() / other.score()
        return (
            reached >= least,
            f"{reached:.3f} ({line.score():.4f} of {other.score():.4f}) {_at(line)}",
        )

    def stated(text: str, parts: Sequence[tuple[bool, str] | None]) -> None:
        there = [part for part in parts if part is not None]
        if there:
            found.append(claim(text, *there))

    stated(
        f"{label.get(PUBLISHED, PUBLISHED)} reaches the paper's {ratio:.2f} of MF-NP's HR@10",
        [share(line, BOUND, ratio - 0.005) for line in published],
    )
    for text, of in (("MF-NP", BOUND), ("MF-NP with five factors", NARROW)):
        stated(
            f"{label.get(IMPROVED, IMPROVED)} reaches {WANTED} of the HR@10 of {text}, at the same "
            "ε, k and epochs",
            [share(line, of, WANTED) for line in improved],
        )
    stated(
        f"{label.get(IMPROVED, IMPROVED)} comes to DPLCF's {dplcf_ratio:.2f} of MF-NP's HR@10",
        [share(line, BOUND, dplcf_ratio - 0.005) for line in improved],
    )
    stated(
        f"{label.get(IMPROVED, IMPROVED)} is above {label.get(PUBLISHED, PUBLISHED)}",
        [_above(lines, line, PUBLISHED) for line in improved],
    )
    for line_kind in (published, improved):
        for other in (POPULAR, RANDOM):
            if line_kind and other in label:
                stated(
                    f"{label[line_kind[0].system]} is above {label[other]}",
                    [_above(lines, line, other) for line in line_kind],
                )
    stated(
        "order as printed: MF-NP, DPLCF, FMF-LDP, Random", [_ordered(lines, p) for p in published]
    )
    stated(
        "FMF-LDP costs a user less than DPLCF since k is far below the number of items",
        [_cheaper(study, lines, line) for line in published],
    )
    return found


def _above(lines: Sequence[FMFLine], line: FMFLine, other: str) -> tuple[bool, str] | None:
    rival = _other(lines, line, other)
    if rival is None:
        return None
    test = paired_t(line.hits(), rival.hits())
    words = f"{line.score():.4f} against {rival.score():.4f} (p={test.p:.2g}) {_at(line)}"
    return test.difference > 0 and test.p < 0.05, words


def _ordered(lines: Sequence[FMFLine], line: FMFLine) -> tuple[bool, str] | None:
    named = [_other(lines, line, key) for key in (BOUND, RIVAL, PUBLISHED, RANDOM)]
    scores = [one.score() for one in named if one is not None]
    words = " > ".join(f"{s:.3f}" for s in scores) + f" {_at(line)}"
    return scores == sorted(scores, reverse=True), words


def _cheaper(study: FMFStudy, lines: Sequence[FMFLine], line: FMFLine) -> tuple[bool, str] | None:
    rival = _other(lines, line, RIVAL)
    if rival is None or line.hold_out != _first(lines, line.world):
        return None
    rounds = study.config.rounds
    ours, theirs = price(line, rounds), price(rival, rounds)
    words = (
        f"{ours.without_proxy:,.0f} (k·ε·T) against {theirs.without_proxy:,.0f} without a trusted "
        f"proxy, {ours.with_proxy:.1f} against {theirs.with_proxy:,.0f} with one, {line.world.name}"
    )
    return ours.without_proxy < theirs.without_proxy, words


def _other(lines: Sequence[FMFLine], line: FMFLine, system: str) -> FMFLine | None:
    """Another system on the same world and hold-out."""
    for one in lines:
        if (one.system, one.world, one.hold_out) == (system, line.world, line.hold_out):
            return one
    return None


def _first(lines: Sequence[FMFLine], world: Crowd) -> HoldOut:
    return next(line.hold_out for line in lines if line.world is world)


def _at(line: FMFLine) -> str:
    return f"on {line.world.name}, {line.hold_out}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


STUDY, VIEWS = FMFStudy, {"fmf-figure5": figure5}
