"""What UC-FedRec's tables and figures count: columns of accuracy and leakage, rows by attribute and
by what users hide, and claims that no table can say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.uc.settings import SYSTEMS
from sottovoce.core.hiding import REASONS
from sottovoce.evaluation.significance import Paired, paired_t
from sottovoce_papers.claims import (
    Claim,
    Part,
    Row,
    Sets,
    Spec,
    StudyLine,
    chosen,
    claim,
    groups,
    interval,
)
from sottovoce_papers.lines import TrainedLine
from sottovoce_papers.uc import Attacked, UCTrial, attacked
from sottovoce_papers.uc_data import CUT

Mask = NDArray[np.bool_]
SAME = 0.005
"""Differences in HR@10 below this are not taken for a fall."""
MILESTONES = (0.9, 0.95, 0.99)
"""Shares of a curve's best value; it has settled where it first reaches the last."""


# --- columns -------------------------------------------------------------------------------------


def measured(line: TrainedLine) -> Row:
    """How a system recommends and what its training took, the mean over seeds."""
    row = line.row
    found: Row = {"model": SYSTEMS[row.get("recommender", "gnn")], "line": row["key"]}
    if "beta" in row:
        found["line"] += f" {row['beta']:g}"
    every = [one for one in line.facts if "full_hr" in one]
    for name in ("full_hr", "full_ndcg", "round", "seconds", "uploads", "sent_rows"):
        found[name] = float(np.mean([one[name] for one in every])) if every else None
    if every:
        found["numbers"] = found["sent_rows"] * every[0]["size"]
        found["upload epsilon"] = row.get("epsilon", 0.0) * found["numbers"]
    return found


def leaks(line: TrainedLine) -> Row:
    """What attackers learn of each attribute."""
    found: Row = {}
    for name in line.world.config.attributes:  # type: ignore[attr-defined]
        several = attacked(line.facts, name)
        found |= {f"{name} {key}": value for key, value in guesses(several).items()}
        known = [one.either for one in attacked(line.facts, name, "known")]
        found[f"{name} known"] = float(np.mean(known)) if known else None
    return found


def guesses(several: Sequence[Attacked]) -> Row:
    """Attackers' columns, the mean over seeds; empty where there was too little to learn from."""
    names = ("auc", "auc_low", "auc_high", "either", "f1", "majority", "gain", "leak", "paper_auc",
             "paper_f1", "paper_leak")  # fmt: skip
    found: Row = {}
    for name in names:
        values = [float(getattr(one, name)) for one in several]
        found[name] = float(np.mean(values)) if values else None
        found[f"{name} half"] = interval(values)
    if not several:
        little: Row = {"verdict": "has too little to learn from", "wins": None, "ranked": None}
        return found | little | {"measure": ""}
    n, wins = len(several), sum(one.wins for one in several)
    turned = sum(one.turned and not one.strong for one in several)
    how = f", {turned} turned round" if turned else ""
    found["verdict"] = f"still wins ({wins} of {n}{how})" if wins else "does not beat chance"
    found["wins"], found["ranked"] = wins, found["auc"] - 0.5
    found["measure"] = "AUC" if several[0].classes == 2 else "micro-F1"
    return found


def protection(line: TrainedLine) -> Row:
    """What central protection came to, and how those who ask for it are served."""
    trials = trials_of(line)
    if not trials:
        return {}
    found: Row = {"moment": "after" if trials[0].after.protect.move else "before",
                  "attribute": trials[0].after.protect.attribute}  # fmt: skip
    hr, ndcg = scores(line, [one.changed() for one in trials])
    found |= {"own HR": hr, "own NDCG": ndcg, **guesses(attacked(line.facts, found["attribute"]))}
    there = [one["protected"] for one in line.facts if "protected" in one]
    for name in ("users", "seconds", "steps", "moved", "before", "after"):
        found[f"protected {name}"] = float(np.mean([p[name] for p in there])) if there else None
    for reason in REASONS if there else ():
        found[reason] = float(np.mean([p["stopped"].get(reason, 0) for p in there]))
    return found


def course(line: TrainedLine) -> Row:
    """HR@10 on validation by round, the mean over seeds, and what the curve comes to."""
    every = [one for one in line.facts if one.get("validation")]
    if not every:
        return {}
    n = min(len(one["stops"]) for one in every)  # a run that diverged ends early
    stops = every[0]["stops"][:n]
    hr = np.mean([one["validation"][:n] for one in every], axis=0)
    found: Row = {f"HR after {stop}": float(v) for stop, v in zip(stops, hr, strict=True)}
    for share in MILESTONES:
        found[f"at {share:.0%}"] = int(stops[int(np.argmax(hr >= share * hr.max()))])
    steps = np.maximum(0.0, -np.diff(hr))
    found |= {"best": float(hr.max()), "unsteady": float(steps.mean()) if len(steps) else 0.0}
    return found | {"last round": stops[-1]}


# --- users ---------------------------------------------------------------------------------------


def trials_of(line: TrainedLine) -> list[UCTrial]:
    """A line's systems, a seed each, to ask who hides what."""
    world: Any = line.world
    cells: Any = None
    return [UCTrial(world, line.settings, seed, cells) for seed in line.seeds]


def hits(line: StudyLine, seed: int, metric: str = f"HR@{CUT}") -> NDArray[np.float64]:
    """[users]: the metric of each with this seed; 0 where nothing of hers is held out."""
    run, world = line.runs[seed], getattr(line, "world")  # noqa: B009
    found = np.zeros(world.table.n_users)
    found[run.users] = run.per_user(metric)
    return found


def scores(line: StudyLine, users: Sequence[Mask]) -> tuple[float | None, float | None]:
    """HR@10 and NDCG@10 of some users, who depend on the seed; the mean over seeds that have such
    users."""
    found = [
        [hits(line, k, f"{m}@{CUT}")[mask].mean() for m in ("HR", "NDCG")]
        for k, mask in enumerate(users)
        if mask.any()
    ]
    if not found:
        return None, None
    hr, ndcg = np.mean(found, axis=0).tolist()
    return hr, ndcg


def apart(ours: StudyLine, base: StudyLine, users: Sequence[Mask]) -> Paired:
    """HR@10 of these users less that of the same users under the base model. The interval is over
    users; of one who is in several seeds, the mean counts."""
    total, times = (np.zeros(len(users[0])) for _ in range(2))
    for k, mask in enumerate(users):
        total += mask * (hits(ours, k) - hits(base, k))
        times += mask
    gaps = total[times > 0] / times[times > 0]
    return paired_t(gaps, np.zeros(len(gaps)))


def beside(line: TrainedLine, base: StudyLine, users: Sequence[Mask]) -> Row:
    """How some users are served, beside the same users under the base model."""
    both = min(len(line.runs), len(base.runs), len(users))
    users = users[:both]
    (hr, ndcg), (was, was_ndcg) = scores(line, users), scores(base, users)
    gap = apart(line, base, users)
    ends = (gap.low, gap.high) if gap.n > 1 else (None, None)
    # Figures of all users do not hold for some of them.
    row = {k: v for k, v in line.row.items() if not k.startswith(("HR@", "NDCG@", "MRR@"))}
    return row | {
        "HR@10": hr, "NDCG@10": ndcg, "base HR": was, "base NDCG": was_ndcg,
        "kept": share(hr, was), "kept NDCG": share(ndcg, was_ndcg), "apart": gap.difference,
        "low": ends[0], "high": ends[1], "of users": float(np.mean([m.mean() for m in users])),
    }  # fmt: skip


def share(ours: float | None, theirs: float | None) -> float | None:
    """What is kept."""
    return ours / theirs if ours is not None and theirs else None


def with_base(sets: Sets) -> list[tuple[Any, StudyLine]]:
    """The trained lines, each with the base model's on the same data."""
    found = []
    for mine in groups(sets["main"], ["data", "recommender", "who", "alpha"]).values():
        bases = chosen(mine, {"key": "base"})
        found += [(line, bases[0]) for line in mine if bases and line.runs and bases[0].runs]
    return found


# --- rows ----------------------------------------------------------------------------------------


def by_attribute(sets: Sets, values: Spec) -> list[StudyLine]:
    """A row for each system and attribute: those who hide it are served so, and guessed so."""
    found = []
    for line, base in with_base(sets):
        for name in line.world.config.attributes:
            several = attacked(line.facts, name)
            if not several:
                continue
            users = [trial.guessed(name)[1] for trial in trials_of(line)]
            row = beside(line, base, users)
            row |= {"private HR": row["HR@10"], "private NDCG": row["NDCG@10"]}
            row |= {f"{m}@{CUT}": line.row[f"{m}@{CUT}"] for m in ("HR", "NDCG")}
            paper = line.row.get(f"{name}_paper")
            row |= {"attribute": name, "leak_paper": paper, **guesses(several)}
            found.append(StudyLine(row))
    return found


def by_count(sets: Sets, values: Spec) -> list[StudyLine]:
    """A row for each system and number of hidden attributes."""
    found = []
    for line, base in with_base(sets):
        trials = trials_of(line)
        most = len(line.world.config.attributes)
        for count in range(most + 1) if trials[0].run.hide else ():
            users = [np.equal(trial.hidden_count(), count) for trial in trials]
            if any(mask.any() for mask in users):
                found.append(StudyLine(beside(line, base, users) | {"hidden": count}))
    return found


def open_and_private(sets: Sets, values: Spec) -> list[StudyLine]:
    """A row for each system and for those who hide nothing, and those who hide something; the base
    model has one for everybody."""
    found = []
    for line, base in with_base(sets):
        trials = trials_of(line)
        if not trials[0].run.hide:
            row = {k: v for k, v in line.row.items() if k != "beta"}
            found.append(StudyLine(row | {"who is served": "everybody"}))
            continue
        for words, some in (("hide nothing", False), ("hide something", True)):
            users = [trial.hides_something() == some for trial in trials]
            if any(mask.any() for mask in users):
                found.append(StudyLine(beside(line, base, users) | {"who is served": words}))
    return found


# --- claims --------------------------------------------------------------------------------------


def _attributes(lines: Sequence[StudyLine]) -> list[str]:
    keys = [key for line in lines for key in line.row if key.endswith(" verdict")]
    return list(dict.fromkeys(key.removesuffix(" verdict") for key in keys))


def _per_model(
    parts_of: Callable[[Sequence[StudyLine], Spec], Sequence[Part]],
) -> Callable[[Sets, Spec], list[Claim]]:
    """Make a claim for each data set and recommender (or for each of the columns in `each`) of a
    function that returns the parts of one."""

    def claims(sets: Sets, spec: Spec) -> list[Claim]:
        lines = [one for one in sets[spec.get("set", "main")] if one.runs or type(one) is StudyLine]
        several = groups(chosen(lines, spec.get("where", {})), spec.get("each", ["data", "model"]))
        found = [(mine[0].row, parts_of(mine, spec)) for mine in several.values()]
        return [claim(spec["text"].format_map(row), *parts) for row, parts in found if parts]

    claims.__doc__ = parts_of.__doc__
    return claims


@_per_model
def halved(mine: Sequence[StudyLine], spec: Spec) -> list[Part]:
    """Whether systems halve what strong attackers gain over the base model, in each attribute."""
    parts, bases, ours = [], chosen(mine, spec["than"])[:1], chosen(mine, spec["of"])
    for base, line, name in product(bases, ours, _attributes(mine)):
        was, now = base.row[f"{name} gain"], line.row[f"{name} gain"]
        if was is not None and now is not None:
            wins = line.row[f"{name} wins"]
            words = f"{name} {was:+.3f} to {now:+.3f} (an attacker wins in {wins} seeds)"
            parts.append((was <= 0 or now <= was / 2, words))
    return parts


@_per_model
def less(mine: Sequence[StudyLine], spec: Spec) -> list[Part]:
    """Whether attackers learn less of every attribute from systems `of` than from `than`."""
    both = chosen(mine, spec["of"]), chosen(mine, spec["than"])
    pairs = [
        (name, line.row[f"{name} either"], other.row[f"{name} either"])
        for line, other, name in product(*both, _attributes(mine))
    ]
    return [
        (ours < theirs, f"{name} AUC {ours:.3f} against {theirs:.3f}")
        for name, ours, theirs in pairs
        if ours is not None and theirs is not None
    ]


@_per_model
def all_leak(mine: Sequence[StudyLine], spec: Spec) -> list[Part]:
    """Whether attackers beat chance on every attribute with every seed."""
    return [
        (line.row[f"{name} wins"] == len(line.runs),
         f"{name} AUC {line.row[f'{name} auc']:.3f}, F1 {line.row[f'{name} f1']:.3f} "
         f"(majority {line.row[f'{name} majority']:.3f})")
        for line in chosen(mine, spec["of"])
        for name in _attributes(mine)
        if line.row[f"{name} auc"] is not None
    ]  # fmt: skip


@_per_model
def above_guess(mine: Sequence[StudyLine], spec: Spec) -> list[Part]:
    """Whether what is printed of attributes with more than two values is above a constant guess."""
    rows = [(line.row, name) for line in mine for name in _attributes(mine)]
    printed = [
        (row["system"], name, row.get(f"{name}_paper"), row.get(f"{name} majority"))
        for row, name in rows
        if row.get(f"{name} measure") == "micro-F1"
    ]
    return [
        (paper >= usual, f"{system}, {name}: {paper:.3f} against {usual:.3f}")
        for system, name, paper, usual in printed
        if paper is not None and usual is not None
    ]


@_per_model
def unbeaten(mine: Sequence[StudyLine], spec: Spec) -> list[Part]:
    """Whether no rival is as private and as useful as a system `of`."""
    ours = chosen(mine, spec["of"])
    keys = {line.row["key"] for line in ours} | {"base"}
    rivals = [line.row for line in mine if line.row["key"] not in keys]
    parts = []
    for a in (line.row for line in ours):
        better = [
            f"{r['system']}, {r['settings']}"
            for r in rivals
            if r["either"] <= a["either"] and r["private HR"] >= a["private HR"]
        ]
        words = f"{a['settings']}: AUC {a['either']:.3f}, HR@10 {a['private HR']:.3f}"
        parts.append((not better, f"{words}; beaten by {', '.join(better) or 'none'}"))
    return parts


@_per_model
def equal_leakage(mine: Sequence[StudyLine], spec: Spec) -> list[Part]:
    """Whether HR@10 falls as more users hide, where attackers learn the same, which is read off
    straight lines between points."""
    curves = {f"α={a[0]:g}": some for a, some in groups(mine, ["alpha"]).items()}
    level = max(min(line.row["leak"] for line in some) for some in curves.values())
    at = {}
    for name, some in curves.items():
        leak, hr = np.array(sorted((one.row["leak"], one.row["HR@10"]) for one in some)).T
        at[name] = float(np.interp(level, leak, hr))
    return [
        (at[b] < at[a] - SAME, f"{b} {at[b]:.3f} against {at[a]:.3f} with {a}, at {level:.3f}")
        for a, b in pairwise(at)
    ]


def own_filter(sets: Sets, spec: Spec) -> list[Claim]:
    """Whether an attribute's own filter takes more of attackers' AUC than another, which takes
    some, too (Figure 5). Lines are alike in `of`, whose hiders are guessed."""
    found, own, others = [], [], []
    for (of,), mine in groups(sets["main"], ["of"]).items():
        base, line = (chosen(mine, {"key": key})[0].row for key in (spec["base"], spec["ours"]))
        names = _attributes(mine)
        fall = {n: base[f"{n} auc"] - line[f"{n} auc"] for n in names if line[f"{n} auc"]}
        words = ", ".join(f"{n} {base[f'{n} auc']:.3f} to {line[f'{n} auc']:.3f}" for n in fall)
        own += [(fall[of] > fall[n], f"filter of {of}: {words}") for n in fall if n != of]
        others += [(fall[n] > 0, f"filter of {of}: {words}") for n in fall if n != of]
    for text, parts in zip(spec["texts"], (own, others), strict=True):
        found += [claim(text, *parts)] * bool(parts)
    return found


def converges(sets: Sets, spec: Spec) -> list[Claim]:
    """Whether learning curves settle about when the base model's does, lag mainly at first, and are
    less steady (Figure 8)."""
    found = []
    base = chosen(sets["main"], {"key": "base"})[0].row
    start = "HR after "
    stops = [key for key in base if key.startswith(start)]
    for line in sets["main"]:
        row = line.row
        if row["key"] == "base" or "best" not in row:
            continue
        gap = np.array([base[key] - row[key] for key in stops if key in row])
        quarter, last = max(1, len(gap) // 4), f"at {MILESTONES[-1]:.0%}"
        early, late = float(gap[:quarter].mean()), float(gap[-quarter:].mean())
        parts = [
            (row[last] <= 1.25 * base[last], f"99 % of its best at round {row[last]:,} against "
             f"{base[last]:,}"),
            (early > late, f"behind by {early:+.4f} in the first quarter, {late:+.4f} in the last"),
            (row["unsteady"] > base["unsteady"], f"mean step back {row['unsteady']:.4f} against "
             f"{base['unsteady']:.4f}"),
        ]  # fmt: skip
        found += [
            claim(t.format_map(row), part) for t, part in zip(spec["texts"], parts, strict=True)
        ]
    return found
