"""FMF-LDP's Figures 2 to 4: the hit ratio against ε and k, over epochs, and by users and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.privacy.accountant import Certificate, certify
from sottovoce_papers.fmf_study import (
    FMF,
    GENERATED,
    Crowd,
    FMFLine,
    FMFSetting,
    FMFStudy,
    FMFSystem,
)
from sottovoce_papers.study import Claim, Row, claim, installed

Curve = tuple[list[float], list[float]]
CHANCE = 0.13
"""HR@10 up to which a system is at chance among a hundred candidates, 0.1, and noise."""
SAME = 0.01
"""Differences in HR@10 below this are not taken for a fall."""


@cache
def certified(epsilon: float, reports: int, rounds: int, users: int) -> Certificate:
    return certify(epsilon, reports, rounds, users)


def randomised(study: FMFStudy) -> dict[str, FMFSystem]:
    """The systems whose devices send reports, by key."""
    return {key: s for key, s in study.systems.items() if s.kind == FMF}


# --- figure 2 ------------------------------------------------------------------------------------


def figure2(study: FMFStudy, out: Path) -> dict[str, Any]:
    c, hold_out = study.config, study.config.hold_outs[0]
    points: list[FMFLine] = []
    for world in study.worlds:
        for key, system in randomised(study).items():
            for k in c.reports:
                for epsilon in c.epsilons:
                    best = study.choose(world, system, hold_out, k, epsilon)
                    points.append(study.line(world, key, hold_out, best))
    rows: list[Row] = []
    for p in points:
        s = p.setting
        price = certified(s.epsilon, s.reports, c.rounds, p.world.table.n_users)
        rows.append(
            {"world": p.world.name, "system": study.systems[p.system].label, "k": s.reports,
             "epsilon": s.epsilon, "HR@10": p.score(), "sd": p.spread(),
             "with_proxy": price.with_proxy, "without_proxy": price.without_proxy,
             "settings": study.systems[p.system].varied(s)}
        )  # fmt: skip
    columns = [
        Column("world", ""), Column("system", ""), Column("k", format="d"),
        Column("epsilon", "ε", "g"), Column("HR@10", format=".4f"), Column("sd", "± (sd)", ".4f"),
        Column("with_proxy", "ε certified, proxy", ".3g"),
        Column("without_proxy", "without", ",.0f"), Column("settings"),
    ]  # fmt: skip
    pictures = []
    for number, world in enumerate(study.worlds):
        for key, system in randomised(study).items():
            curves = {f"k = {k}": _line(points, world, key, k) for k in c.reports}
            picture = plots.lines(
                out / "figures" / f"fmf-figure2-{number + 1}-{key}", curves,
                x_label="ε of one report", y_label="HR@10",
                title=f"{system.label}: {world.name}", references={"chance": 0.1},
            )  # fmt: skip
            pictures.append(FigureBlock(picture.svg, f"HR@10 of {system.label} on {world.name}"))
    claims = _figure2_claims(study, points)
    table = Table("FMF-LDP, Figure 2: HR@10 against ε and k", columns, rows, study.describe())
    return study.result("fmf-figure2", out, [table], claims, pictures)


def _line(points: Sequence[FMFLine], world: Crowd, key: str, k: int) -> Curve:
    mine = [p for p in points if (p.world, p.system, p.setting.reports) == (world, key, k)]
    return [p.setting.epsilon for p in mine], [p.score() for p in mine]


def _figure2_claims(study: FMFStudy, points: Sequence[FMFLine]) -> list[Claim]:
    c = study.config
    found = []
    for key, system in randomised(study).items():
        mine = {
            (p.world.name, p.setting.reports, p.setting.epsilon): p.score()
            for p in points
            if p.system == key
        }
        names = [w.name for w in study.worlds]
        if 1 in c.reports:
            ones = [score for (_, k, _), score in mine.items() if k == 1]
            found.append(
                claim(f"{system.label}: one report a round (Harmony, k = 1) stays at chance",
                      (max(ones) <= CHANCE, f"HR@10 up to {max(ones):.3f}"))
            )  # fmt: skip
        many = [k for k in c.reports if k > 1]
        falls = [
            (mine[name, k, low] - mine[name, k, high], f"{name}, k={k}")
            for name in names for k in many for low, high in pairwise(c.epsilons)
        ]  # fmt: skip
        found.append(_steady(f"{system.label}: utility grows with ε", falls))
        falls = [
            (mine[name, low, e] - mine[name, high, e], f"{name}, ε={e:g}")
            for name in names for e in c.epsilons for low, high in pairwise(many)
        ]  # fmt: skip
        found.append(_steady(f"{system.label}: utility grows with k", falls))
        best = max(mine, key=lambda place: mine[place])
        found.append(
            claim(f"{system.label}: HR@10 of 0.7 and more is reached on the small item set",
                  (mine[best] >= 0.7,
                   f"{mine[best]:.3f} with k={best[1]}, ε={best[2]:g} on {best[0]}"))
        )  # fmt: skip
        if {50, 100, 250} <= set(many) and 2.5 in c.epsilons:
            last = names[-1]
            first = mine[last, 100, 2.5] / mine[last, 50, 2.5] - 1.0
            second = mine[last, 250, 2.5] / mine[last, 100, 2.5] - 1.0
            found.append(
                claim(f"{system.label}: k from 50 to 100 brings more than k from 100 to 250 "
                      "(about 10 % and 5 % in the paper)",
                      (0.0 < second < first, f"{first:+.1%} and {second:+.1%} on {last}, ε = 2.5"))
            )  # fmt: skip
    return found


def _steady(text: str, wrong: Sequence[tuple[float, str]]) -> Claim:
    """Whether all steps go the claimed way; `wrong` says how far each goes the other way."""
    worst = max(wrong, default=(0.0, "nowhere"))
    against = sum(step > SAME for step, _ in wrong)
    words = f"{against} of {len(wrong)} steps go the other way by more than {SAME:g}"
    return claim(text, (not against, f"{words}; the worst by {worst[0]:.3f} ({worst[1]})"))


# --- figure 3 ------------------------------------------------------------------------------------


def figure3(study: FMFStudy, out: Path) -> dict[str, Any]:
    c, hold_out = study.config, study.config.hold_outs[0]
    stops = tuple(range(1, c.rounds + 1))
    rows: list[Row] = []
    pictures = []
    learnt: dict[tuple[str, str, int], list[float]] = {}
    for number, world in enumerate(study.worlds):
        curves: dict[str, Curve] = {}
        for key, system in study.systems.items():
            for k in c.reports if system.kind == FMF else (0,):
                setting = study.choose(world, system, hold_out, k)
                points, values = _curve(study, world, key, setting, stops)
                label = f"{study.short(key)}, k = {k}" if k else study.short(key)
                curves[label] = ([float(p) for p in points], values)
                learnt[key, world.name, k] = values
                shown = {e: v for e, v in zip(points, values, strict=True)}
                rows.append(
                    {"world": world.name, "system": system.label, "k": k or None,
                     **{f"epoch {e}": shown.get(e) for e in _SHOWN if e <= c.rounds},
                     "settings": system.varied(setting)}
                )  # fmt: skip
        picture = plots.learning_curves(
            out / "figures" / f"fmf-figure3-{number + 1}", curves, metric="HR@10",
            title=f"Learning curves: {world.name}", references={"chance": 0.1},
        )  # fmt: skip
        pictures.append(FigureBlock(picture.svg, f"HR@10 over epochs on {world.name}"))
    columns = [
        Column("world", ""), Column("system", ""), Column("k", format="d"),
        *[Column(f"epoch {e}", format=".4f") for e in _SHOWN if e <= c.rounds],
        Column("settings"),
    ]  # fmt: skip
    table = Table("FMF-LDP, Figure 3: HR@10 over epochs", columns, rows, study.describe())
    claims = _figure3_claims(study, learnt)
    return study.result("fmf-figure3", out, [table], claims, pictures)


_SHOWN = (1, 2, 5, 10, 15, 20, 30)


def _curve(
    study: FMFStudy, world: Crowd, key: str, setting: FMFSetting, stops: tuple[int, ...]
) -> tuple[list[int], list[float]]:
    """Epochs and HR@10 after them. A central baseline is trained anew for each, or once for all
    where it knows no epochs."""
    hold_out = study.config.hold_outs[0]
    if setting.federated:
        line = study.line(world, key, hold_out, setting, stops)
        return list(stops), [line.score(round=e) for e in stops]
    points = [e for e in _SHOWN if e <= max(stops)]
    settings = [setting] * len(points)
    if hasattr(setting.component(), "epochs"):
        settings = [replace(setting, values=(*setting.values, ("epochs", e))) for e in points]
    return points, [study.line(world, key, hold_out, s).score() for s in settings]


def _figure3_claims(
    study: FMFStudy, learnt: Mapping[tuple[str, str, int], Sequence[float]]
) -> list[Claim]:
    found = []
    for key, system in randomised(study).items():
        mine = {(w, k): v for (one, w, k), v in learnt.items() if one == key}
        early = {place: max(curve[:10]) for place, curve in mine.items()}
        found.append(
            claim(f"{system.label}: HR@10 above 0.5 within ten epochs",
                  *[(v > 0.5, f"{v:.3f} on {w}, k={k}") for (w, k), v in early.items()])
        )  # fmt: skip
        few, many = min(study.config.reports), max(study.config.reports)
        pairs = [(mine[w.name, few], mine[w.name, many], w.name) for w in study.worlds]
        found.append(
            claim(f"{system.label}: more reports learn faster (k = {many} against {few})",
                  *[(sum(b) >= sum(a), f"mean over epochs {sum(b) / len(b):.3f} against "
                     f"{sum(a) / len(a):.3f} on {w}") for a, b, w in pairs])
        )  # fmt: skip
    return found


# --- figure 4 ------------------------------------------------------------------------------------


def figure4(study: FMFStudy, out: Path) -> dict[str, Any]:
    hold_out = study.config.hold_outs[0]
    scores: dict[tuple[str, Crowd], float] = {}
    rows: list[Row] = []
    for world in study.worlds:
        row: Row = {
            "source": world.config.source,
            "users": world.table.n_users,
            "items": world.table.n_items,
        }
        for key, system in study.systems.items():
            setting = study.choose(world, system, hold_out)
            row[key] = study.line(world, key, hold_out, setting).score()
            scores[key, world] = row[key]
        if world.config.source == GENERATED:
            row["paper"] = printed(study, world)
        rows.append(row)
    columns = [
        Column("source", ""), Column("users", format=",d"), Column("items", format=",d"),
        *[Column(key, s.label, ".4f") for key, s in study.systems.items()],
        Column("paper", "paper (MovieLens 20M)", ".4f"),
    ]  # fmt: skip
    pictures = []
    for source in dict.fromkeys(world.config.source for world in study.worlds):
        picture = plots.lines(
            out / "figures" / f"fmf-figure4-{source}",
            _by_items(study, scores, source),
            x_label="items",
            y_label="HR@10",
            title=f"HR@10 by items and users: {source}",
            references={"chance": 0.1},
        )
        pictures.append(
            FigureBlock(picture.svg, f"HR@10 by items, a line for each crowd, {source}")
        )
    table = Table("FMF-LDP, Figure 4: HR@10 by users and items", columns, rows, study.describe())
    claims = _figure4_claims(study, scores)
    return study.result("fmf-figure4", out, [table], claims, pictures)


def printed(study: FMFStudy, world: Crowd) -> float | None:
    shape = study.config.generated
    place = (world.config.users or shape.users, world.config.items or shape.items)
    scores = installed("fmf-figure4")["printed"]["scores"]
    return {(users, items): score for users, items, score in scores}.get(place)


def _by_items(
    study: FMFStudy, scores: Mapping[tuple[str, Crowd], float], source: str
) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for (key, world), score in scores.items():
        if key in randomised(study) and world.config.source == source:
            who = f"{world.config.users:,}" if world.config.users else "all"
            xs, ys = curves.setdefault(f"{study.short(key)}, {who}", ([], []))
            xs.append(float(world.table.n_items))
            ys.append(score)
    return curves


def _figure4_claims(study: FMFStudy, scores: Mapping[tuple[str, Crowd], float]) -> list[Claim]:
    found = []
    for key, system in randomised(study).items():
        lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for (one, world), score in scores.items():
            if one == key:
                place = (world.config.source, world.config.users)
                lines.setdefault(place, []).append((world.table.n_items, score))
        falls = [
            (b[1] - a[1], f"{source}, {users or 'all'} users, {a[0]:,} to {b[0]:,} items")
            for (source, users), line in lines.items()
            for a, b in pairwise(sorted(line))
        ]  # fmt: skip
        found.append(_steady(f"{system.label}: utility falls as items are added", falls))
        for source in dict.fromkeys(w.config.source for w in study.worlds):
            largest = max(
                (w.table.n_users for w in study.worlds if w.config.source == source), default=0
            )
            most = {
                w.table.n_items: scores[key, w]
                for w in study.worlds
                if w.config.source == source and w.table.n_users > 0.9 * largest
            }
            found.append(
                claim(f"{system.label}: with the most users HR@10 is above 0.5 on every item set "
                      f"({source})",
                      *[(s > 0.5, f"{s:.3f} with {n:,} items") for n, s in most.items()])
            )  # fmt: skip
    return found


STUDY = FMFStudy
VIEWS = {"fmf-figure2": figure2, "fmf-figure3": figure3, "fmf-figure4": figure4}
