"""UC-FedRec's Figures 3, 6 and 8: recommendations against leakage, by protection and by how many
hide, and over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import Diverged
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.study import Claim, Floats, Row, claim, installed
from sottovoce_papers.uc_study import UCStudy
from sottovoce_papers.uc_systems import (
    ATTACKERS,
    BASE,
    PLACE,
    SAME,
    SCORES,
    UC,
    Guessed,
    UCSystem,
    described,
    guess,
    named,
    noisier,
    perturbed,
    places,
    share,
    stopped,
    train,
    trained,
)

CHANCE = 0.55
"""An AUC up to which an attribute counts as hidden."""
NEAR = 0.99
"""A curve has settled where it first reaches this share of its best value."""


# --- figure 3: trade-off --------------------------------------------------------------------------


def figure3(study: UCStudy, out: Path) -> dict[str, Any]:
    """HR@10 of those who hide an attribute against what attackers learn of it."""
    rows: list[Row] = []
    notes: list[str] = []
    claims, pictures = [], []
    for source, recommender in places(study):
        lines, untrained = protections(study, source, recommender)
        notes += untrained
        attributes = study.attributes(source)
        found = guess(study, lines, attributes)
        name = named(study, source, recommender)
        for attribute in attributes:
            points = [
                TradeOff(
                    line,
                    line.scores(partial(study.private, attribute=attribute)),
                    some[attribute],
                )
                for line, some in zip(lines, found, strict=True)
                if attribute in some
            ]
            if not points or points[0].line.group != BASE:
                continue
            base = points[0]
            for p in points:
                hr, ndcg = p.line.scores()
                rows.append(
                    {**described(study, source, recommender), "attribute": attribute,
                     "protection": p.line.label, "HR@10": hr, "NDCG@10": ndcg,
                     "private": p.scores[0], "private_ndcg": p.scores[1],
                     "kept": p.kept(base), **p.guessed.cells(),
                     **_printed3(source, recommender, attribute, p.line)}
                )  # fmt: skip
            claims += _claims3(points, attribute, name)
            picture = plots.lines(
                out / "figures" / f"uc-figure3-{source}-{recommender}-{attribute}",
                _curves(points),
                x_label=f"attackers on {attribute}: {points[0].guessed.measure}",
                y_label=f"HR@10 of those who hide {attribute}", title=name,
            )  # fmt: skip
            pictures.append(
                FigureBlock(picture.svg, f"HR@10 against leakage of {attribute}, {name}")
            )
    columns = [
        *PLACE, Column("attribute", "guessed"), Column("protection"), *SCORES,
        Column("private", "HR of those who hide it", ".4f"),
        Column("private_ndcg", "NDCG", ".4f"), Column("kept", "HR kept", ".1%"), *ATTACKERS,
        Column("paper_hr", "paper HR", ".3f"), Column("paper_ndcg", "paper NDCG", ".3f"),
        Column("paper_leak", "paper AUC or F1", ".3f"),
    ]  # fmt: skip
    table = Table("UC-FedRec, Figure 3: trade-off", columns, rows, study.describe(), notes)
    return study.result("uc-figure3", out, [table], claims, pictures)


@dataclass(frozen=True, slots=True, repr=False)
class TradeOff:
    """A system in the plane of one attribute."""

    line: UCSystem
    scores: tuple[float, float]
    """HR@10 and NDCG@10 of those who hide the attribute."""
    guessed: Guessed

    def kept(self, base: TradeOff) -> float:
        """The share of the base's HR@10."""
        return share(self.scores[0], base.scores[0])

    def beats(self, other: TradeOff) -> bool:
        """At least as private and as useful."""
        return self.guessed.auc <= other.guessed.auc and self.scores[0] >= other.scores[0]


def protections(study: UCStudy, source: str, recommender: Any) -> tuple[list[UCSystem], list[str]]:
    """The base model first, then UC-FedRec by β, then its rivals, each from weak to strong; and
    what of these could not be trained."""
    c, notes = study.config, []
    base = train(study, source, recommender)
    ours = [train(study, source, recommender, beta) for beta in c.betas]
    found = [base, *ours]
    for line in ours:
        cells = [stopped(study, b, u) for b, u in zip(base.cells, line.cells, strict=True)]
        found.append(trained(study, "early stopping", f"as {line.strength}", cells))
    for sigma in c.sigmas:
        made = [perturbed(study, cell, sigma) for cell in base.cells]
        runs, tables = tuple(r.measured for r in made), tuple(r.table for r in made)
        found.append(
            UCSystem("Gaussian noise", f"σ={sigma:g}", base.cells, runs, tables, made[0].tag)
        )
    for epsilon in sorted(c.epsilons, reverse=True):
        cells = [noisier(study, cell, epsilon) for cell in base.cells]
        try:
            found.append(trained(study, "noisier uploads", f"ε={epsilon:g}", cells))
        except Diverged:
            notes.append(f"Noisier uploads with ε={epsilon:g}: training leaves all numbers behind.")
    return found, notes


def _curves(points: Sequence[TradeOff]) -> dict[str, tuple[list[float], list[float]]]:
    """From the base model through each kind of protection; the base is a curve of one point."""
    base, curves = points[0], {}
    for group in dict.fromkeys(p.line.group for p in points):
        mine = [p for p in points if p.line.group == group]
        some = mine if group == BASE else [base, *mine]
        curves[group] = ([p.guessed.leak for p in some], [p.scores[0] for p in some])
    return curves


def _claims3(points: Sequence[TradeOff], attribute: str, name: str) -> list[Claim]:
    base, others = points[0], points[1:]
    ours = [p for p in others if p.line.group == UC]
    rivals = [p for p in others if p.line.group != UC]
    where = f"{attribute}, {name}"
    cheap = [p.line.label for p in others if p.scores[0] >= base.scores[0]]
    found = [
        claim(f"every protection costs HR@10: {where}",
              (not cheap, f"base {base.scores[0]:.3f}; " + (
                  f"not lower: {', '.join(cheap)}" if cheap else "all others are lower")))
    ]  # fmt: skip
    parts = []
    for p in ours:
        better = [r.line.label for r in rivals if r.beats(p)]
        words = f"{p.line.strength}: AUC {p.guessed.auc:.3f}, HR@10 {p.scores[0]:.3f}"
        parts.append((not better, f"{words}; beaten by {', '.join(better) or 'none'}"))
    found.append(
        claim(f"no rival is as private and as useful as UC-FedRec: {where}", *parts)
    )  # fmt: skip
    if not ours:
        return found
    last = ours[-1]
    if last.guessed.two_classes:
        left = last.kept(base)
        found.append(
            claim(f"with {last.line.strength} the AUC is at most {CHANCE} and 89 % of HR@10 is "
                  f"kept: {where} (paper, β=0.8: AUC 0.5, HR 0.75, 89.0 %)",
                  (last.guessed.auc <= CHANCE, f"AUC {last.guessed.auc:.3f}, from "
                   f"{base.guessed.auc:.3f}"),
                  (left >= 0.89, f"HR@10 {last.scores[0]:.3f}, {left:.1%}"))
        )  # fmt: skip
    parts = []
    for group in dict.fromkeys(p.line.group for p in rivals):
        reach = [p for p in rivals if p.line.group == group and p.guessed.auc <= last.guessed.auc]
        best = max(reach, key=lambda p: p.scores[0], default=None)
        if best is None:
            parts.append((True, f"{group} never hides it as well"))
        else:
            parts.append(
                (best.scores[0] < last.scores[0],
                 f"{best.line.label} keeps {best.kept(base):.1%}")
            )  # fmt: skip
    found.append(
        claim(f"rivals that hide it as well as {last.line.strength} keep less of HR@10 than its "
              f"{last.kept(base):.1%}: {where} (paper: noisier training 72 %, "
              "Gaussian noise 50 %)", *parts)
    )  # fmt: skip
    return found


def _printed3(source: str, recommender: str, attribute: str, line: UCSystem) -> Row:
    """Of all users: the paper's Table 2, and the text about this figure."""
    cell = line.cells[0]
    kind = {BASE: "base", UC: f"uc-{cell.beta:g}"}.get(line.group, "")
    found = installed("uc-figure3")["printed"].get(f"{source} {recommender} {kind}", {})
    return {
        "paper_hr": found.get("hr"),
        "paper_ndcg": found.get("ndcg"),
        "paper_leak": found.get(attribute),
    }


# --- figure 6: how many hide ----------------------------------------------------------------------


def figure6(study: UCStudy, out: Path) -> dict[str, Any]:
    """Trade-off by α, for the first attribute under study."""
    rows: list[Row] = []
    claims, pictures = [], []
    for source, recommender in places(study):
        attribute = study.attributes(source)[0]
        curves: dict[str, list[tuple[UCSystem, Guessed]]] = {}
        for alpha in study.config.alphas:
            base = train(study, source, recommender, alpha=alpha)
            lines = [
                base,
                *[train(study, source, recommender, b, alpha=alpha) for b in study.config.betas],
            ]
            found = guess(study, lines, [attribute])
            pairs = [
                (line, some[attribute])
                for line, some in zip(lines, found, strict=True)
                if attribute in some
            ]
            curves[f"α = {alpha:g}"] = pairs
            for line, guessed in pairs:
                hr, ndcg = line.scores()
                private = line.scores(partial(study.targets, attribute=attribute))[0]
                rows.append(
                    {**described(study, source, recommender), "alpha": alpha,
                     "protection": line.label, "attribute": attribute, "HR@10": hr,
                     "NDCG@10": ndcg, "private": private, "kept": share(hr, base.scores()[0]),
                     **guessed.cells()}
                )  # fmt: skip
        name = named(study, source, recommender)
        claims += _claims6(curves, attribute, name)
        picture = plots.lines(
            out / "figures" / f"uc-figure6-{source}-{recommender}",
            {a: ([g.leak for _, g in p], [x.scores()[0] for x, _ in p])
             for a, p in curves.items() if p},
            x_label=f"attackers on {attribute}: {_measure(curves)}", y_label="HR@10",
            title=f"{name}: the larger α, the fewer train the filters",
        )  # fmt: skip
        pictures.append(FigureBlock(picture.svg, f"HR@10 against leakage by α, {name}"))
    columns = [
        *PLACE, Column("alpha", "α", "g"), Column("protection"), Column("attribute", "guessed"),
        *SCORES, Column("private", "HR of those guessed", ".4f"), Column("kept", "HR kept", ".1%"),
        *ATTACKERS,
    ]  # fmt: skip
    table = Table("UC-FedRec, Figure 6: how many hide", columns, rows, study.describe())
    return study.result("uc-figure6", out, [table], claims, pictures)


def _measure(curves: Mapping[str, Sequence[tuple[UCSystem, Guessed]]]) -> str:
    two = all(g.two_classes for pairs in curves.values() for _, g in pairs)
    return "AUC" if two else "micro-F1"


def _claims6(
    curves: Mapping[str, Sequence[tuple[UCSystem, Guessed]]], attribute: str, name: str
) -> list[Claim]:
    curves = {alpha: pairs for alpha, pairs in curves.items() if pairs}
    halves, least = [], {}
    for alpha, pairs in curves.items():
        before, after = pairs[0][1].ranked, pairs[-1][1].ranked
        halves.append(
            (after <= before / 2, f"{alpha}: {before:+.3f} to {after:+.3f} "
             f"({pairs[-1][0].strength}), HR@10 {pairs[-1][0].scores()[0]:.3f}")
        )  # fmt: skip
        least[alpha] = min(g.leak for _, g in pairs)
    found = [
        claim(
            f"attackers' AUC − 0.5 on {attribute} falls by half and more at every α, {name}",
            *halves,
        )
    ]
    level = max(least.values())
    at = {alpha: _at_leak(pairs, level) for alpha, pairs in curves.items()}
    found.append(
        claim(f"at equal leakage ({level:.3f}) HR@10 falls as more users hide, {name} "
              "(paper, AUC 0.56: 0.75 with α=0.3, 0.63 with α=1)",
              *[(at[b] < at[a] - SAME, f"{b} {at[b]:.3f} against {at[a]:.3f} with {a}")
                for a, b in pairwise(at)])
    )  # fmt: skip
    return found


def _at_leak(pairs: Sequence[tuple[UCSystem, Guessed]], level: float) -> float:
    """HR@10 where a curve passes this leakage, on a straight line between its points."""
    points = sorted((g.leak, line.scores()[0]) for line, g in pairs)
    x, y = zip(*points, strict=True)
    return float(np.interp(level, x, y))


# --- figure 8: convergence ------------------------------------------------------------------------


def figure8(study: UCStudy, out: Path) -> dict[str, Any]:
    """HR@10 on validation by round."""
    rows: list[Row] = []
    claims, pictures, curves = [], [], []
    for source, recommender in places(study):
        attribute = study.attributes(source)[0]
        lines = [
            train(study, source, recommender),
            *[train(study, source, recommender, beta) for beta in study.config.betas],
        ]
        found = guess(study, lines, [attribute])
        courses = [Course.of(line) for line in lines]
        for course, some in zip(courses, found, strict=True):
            guessed = some.get(attribute)
            rows.append(
                {**described(study, source, recommender), "protection": course.label,
                 "best": float(course.hr.max()),
                 **{f"at {share:.0%}": course.reaches(share) for share in _MILESTONES},
                 "unsteady": course.unsteady, "rounds": int(course.stops[-1]),
                 "attribute": attribute, **(guessed.cells() if guessed else {})}
            )  # fmt: skip
            curves.append(
                {**described(study, source, recommender), "protection": course.label,
                 "rounds": course.stops.tolist(),
                 "HR@10": [round(v, 6) for v in course.hr.tolist()]}
            )  # fmt: skip
        name = named(study, source, recommender)
        claims += _claims8(courses, name)
        picture = plots.learning_curves(
            out / "figures" / f"uc-figure8-{source}-{recommender}",
            {course.label: (course.stops, course.hr) for course in courses},
            metric="HR@10 on validation", x_label="round", title=name,
        )  # fmt: skip
        pictures.append(FigureBlock(picture.svg, f"HR@10 on validation by round, {name}"))
    columns = [
        *PLACE, Column("protection"), Column("best", "best HR@10", ".4f"),
        *[Column(f"at {s:.0%}", f"round at {s:.0%} of it", "d") for s in _MILESTONES],
        Column("unsteady", "mean step back", ".4f"), Column("rounds", format=",d"),
        Column("attribute", "guessed"), *ATTACKERS,
    ]  # fmt: skip
    table = Table("UC-FedRec, Figure 8: convergence", columns, rows, study.describe())
    return study.result("uc-figure8", out, [table], claims, pictures, curves=curves)


_MILESTONES = (0.9, 0.95, NEAR)


@dataclass(frozen=True, slots=True, repr=False)
class Course:
    """A system's HR@10 on validation over rounds, the mean over seeds."""

    label: str
    stops: NDArray[np.int64]
    hr: Floats

    @classmethod
    def of(cls, line: UCSystem) -> Course:
        runs = line.trained
        # A run that left the range of numbers ends early.
        n = min(len(run.stops) for run in runs)
        mean = np.mean([run.validation_hr[:n] for run in runs], axis=0)
        return cls(line.label, runs[0].stops[:n], mean)

    def reaches(self, share: float) -> int:
        """The first round looked at with this share of the best value."""
        return int(self.stops[int(np.argmax(self.hr >= share * self.hr.max()))])

    @property
    def unsteady(self) -> float:
        """How far it falls from one look to the next, on average over all looks."""
        return float(np.mean(np.maximum(0.0, -np.diff(self.hr)))) if len(self.hr) > 1 else 0.0


def _claims8(courses: Sequence[Course], name: str) -> list[Claim]:
    base, found = courses[0], []
    for course in courses[1:]:
        ours, theirs = course.reaches(NEAR), base.reaches(NEAR)
        where = f"{course.label}, {name}"
        found.append(
            claim(f"it needs about as many rounds as the base model (a quarter more at most): "
                  f"{where}", (ours <= 1.25 * theirs, f"{NEAR:.0%} of its best at round {ours:,} "
                               f"against {theirs:,}"))
        )  # fmt: skip
        n = min(len(course.hr), len(base.hr))
        gap = base.hr[:n] - course.hr[:n]
        early, late = float(gap[: max(1, n // 4)].mean()), float(gap[-max(1, n // 4) :].mean())
        found.append(
            claim(f"it lags behind mainly at the beginning: {where}",
                  (early > late, f"HR@10 behind by {early:+.4f} in the first quarter of the rounds "
                                 f"and {late:+.4f} in the last"))
        )  # fmt: skip
        found.append(
            claim(f"it is less steady: {where}",
                  (course.unsteady > base.unsteady,
                   f"mean step back {course.unsteady:.4f} against {base.unsteady:.4f}"))
        )  # fmt: skip
    return found


STUDY = UCStudy
VIEWS = {"uc-figure3": figure3, "uc-figure6": figure6, "uc-figure8": figure8}
