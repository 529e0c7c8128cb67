"""Lines of the UC-FedRec study's tables: a system with all its seeds, and what attackers got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.algorithms.uc_config import SYSTEMS
from sottovoce.reproduce.drift_study import interval
from sottovoce.reproduce.uc_attacked import Attacked
from sottovoce.reproduce.uc_published import Printed
from sottovoce.reproduce.uc_study import Cell, Job, UCStudy
from sottovoce.reproduce.uc_training import Trained

MEASURES = ("hr", "ndcg", "full_hr", "full_ndcg")
HEADINGS = {"hr": "HR@10", "ndcg": "NDCG@10", "full_hr": "HR full", "full_ndcg": "NDCG full"}


@dataclass(frozen=True, slots=True, repr=False)
class Line:
    """One system on one source."""

    label: str
    kind: str
    """"base", "early", "scalar", or "uc-" and β."""
    cells: Sequence[Cell]
    """One for each seed."""
    trained: Sequence[Trained]
    attacked: Mapping[str, Sequence[Attacked | None]]
    """By attribute, for each seed."""

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

    def found(self, attribute: str) -> list[Attacked]:
        """Of the seeds in which there was enough to learn from."""
        return [one for one in self.attacked.get(attribute, ()) if one is not None]

    def leaks(self, attribute: str, measure: str) -> list[float]:
        return [float(getattr(one, measure)) for one in self.found(attribute)]

    def leak(self, attribute: str, measure: str) -> float | None:
        """The mean over seeds."""
        values = self.leaks(attribute, measure)
        return float(np.mean(values)) if values else None

    def leak_half(self, attribute: str, measure: str) -> float | None:
        return interval(self.leaks(attribute, measure))

    def wins(self, attribute: str) -> int:
        """Seeds in which an attacker beats chance."""
        return sum(one.wins for one in self.found(attribute))

    def verdict(self, attribute: str) -> str:
        """Whether a strong attacker still wins, in words."""
        seeds = len(self.found(attribute))
        if not seeds:
            return "has too little to learn from"
        if not self.wins(attribute):
            return "does not beat chance"
        turned = sum(bool(one.turned and not one.strong) for one in self.found(attribute))
        how = f", {turned} turned round" if turned else ""
        return f"still wins ({self.wins(attribute)} of {seeds} seed{'s' * (seeds > 1)}{how})"


def lines(
    study: UCStudy, source: str, kinds: Mapping[str, tuple[str, Sequence[Cell]]]
) -> list[Line]:
    """Trained and attacked lines; `kinds` names each with its label and cells."""
    every = [cell for _, cells in kinds.values() for cell in cells]
    title = study.world(source).title
    trained = study.train_all(every, f"training, {title}")
    attributes = study.attributes(source)
    jobs = [Job(cell, attribute) for cell in every for attribute in attributes]
    attacked = study.attack_all(jobs, f"attacks, {title}")
    found, place = [], 0
    for kind, (label, cells) in kinds.items():
        span = range(place, place + len(cells))
        by_attribute = {
            name: [attacked[k * len(attributes) + t] for k in span]
            for t, name in enumerate(attributes)
        }
        found.append(Line(label, kind, cells, [trained[k] for k in span], by_attribute))
        place += len(cells)
    return found


def system(recommender: str) -> str:
    return SYSTEMS[recommender]


def row(
    line: Line, base: Line | None, printed: Printed, attributes: Sequence[str]
) -> dict[str, Any]:
    """All figures of a line, ours and the printed ones. `base` is what it is held against."""
    found: dict[str, Any] = {
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
        found[f"{name}_paper"] = printed.get(name)
        found[f"{name}_left"] = None if base is None else gain_left(line, base, name)
        found[f"{name}_families"] = families(line, name)
        found[f"{name}_verdict"] = line.verdict(name)
        found[f"{name}_verdicts"] = [one.verdict for one in line.found(name)]
    return found


def gain_left(line: Line, base: Line, attribute: str, measure: str = "gain") -> float | None:
    """The share of the attackers' gain over a guess that is left; None where there was none."""
    before, now = base.leak(attribute, measure), line.leak(attribute, measure)
    if before is None or now is None or before <= 0:
        return None
    return now / before


def families(line: Line, attribute: str) -> dict[str, float]:
    """The mean AUC of each attacker."""
    found = line.found(attribute)
    names = found[0].families if found else {}
    return {name: float(np.mean([one.families.get(name, 0.5) for one in found])) for name in names}
