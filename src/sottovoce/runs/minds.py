"""What it did to a run when users changed their minds: how far their vectors moved, what that cost
them and the others, and what attackers are given to compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.hiding import Hidden
from sottovoce.core.redacted import Redacted
from sottovoce.errors import CorruptData
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.runs.folder import load_arrays, save_arrays

Costs = dict[str, dict[str, float]]
"""By group ("changed", "others"), the means of metrics."""


@dataclass(frozen=True, slots=True, repr=False)
class KeptChange(Redacted):
    """One change of mind in a run."""

    number: int
    """From 0, in the order of the run."""
    round: int
    hidden: tuple[Hidden, ...]
    """By user, how far her vector moved."""
    metrics: Mapping[str, Costs]
    """At once: "before" and "after"."""
    items: NDArray[np.float32]
    """The model of that moment."""
    before: NDArray[np.float32]
    """Everybody's vector before it."""
    after: NDArray[np.float32]

    @property
    def users(self) -> NDArray[np.int64]:
        return np.array([one.user for one in self.hidden], dtype=np.int64)

    def save(self, run: Path) -> None:
        told = {"round": self.round, "metrics": self.metrics}
        table = told | {"hidden": [one.to_table() for one in self.hidden]}
        save_arrays(
            run / f"minds-{self.number:03d}.npz",
            items=self.items,
            before=self.before,
            after=self.after,
            table=np.array(json.dumps(table)),
        )

    def summary(self, end: Evaluation) -> dict[str, Any]:
        """For the manifest; `end` is the evaluation after the last round."""
        way = np.array([one.moved for one in self.hidden])
        told = {
            name: float(np.mean([getattr(one, name) for one in self.hidden] or [0.0]))
            for name in ("before", "after")
        }
        at_end = by_minds(end, np.isin(np.arange(len(self.before)), self.users))
        return {
            "after_round": self.round,
            "hide": sorted({name for one in self.hidden for name in one.attributes}),
            "users": len(self.hidden),
            "moved": {"mean": float(way.mean()), "most": float(way.max())} if len(way) else None,
            "filter_tells": told,
            "stopped": dict(Counter(one.reason for one in self.hidden)),
            "metrics": {**self.metrics, "end": at_end},
        }


def kept_changes(run: Path) -> list[KeptChange]:
    """All that a run folder has, in their order."""
    return [_load(number, path) for number, path in enumerate(sorted(run.glob("minds-*.npz")))]


def _load(number: int, path: Path) -> KeptChange:
    arrays = load_arrays(path)
    try:
        table = json.loads(str(arrays["table"]))
        hidden = tuple(
            Hidden(**{**one, "attributes": tuple(one["attributes"])}) for one in table["hidden"]
        )
        tables = (arrays[name] for name in ("items", "before", "after"))
        return KeptChange(number, int(table["round"]), hidden, table["metrics"], *tables)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{path} is no record of a change of mind: {error}") from None


def by_minds(found: Evaluation, changed: NDArray[np.bool_]) -> Costs:
    """The means of metrics over those who changed their minds and over the others."""
    mine = changed[found.users]
    groups = {"changed": mine, "others": ~mine}
    return {
        group: {
            "users": int(rows.sum()),
            **{name: float(values[rows].mean()) for name, values in found.values.items()},
        }
        for group, rows in groups.items()
        if rows.any()
    }


def lines(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a run says of them: a few lines each."""
    found = []
    for one in changes:
        moved, tells = one["moved"], one["filter_tells"]
        what = f"After round {one['after_round']:,}, {one['users']:,} users hid "
        what += ", ".join(one["hide"]) or "nothing"
        if moved:
            what += (
                f": their embeddings moved by {moved['mean']:.3g} on average (at most "
                f"{moved['most']:.3g}), and the filter tells {tells['after']:.2g} of them instead "
                f"of {tells['before']:.2g}"
            )
        found.append(what)
        for group, words in (("changed", "those who changed"), ("others", "the others")):
            told = [one["metrics"][when].get(group) for when in ("before", "after", "end")]
            if all(told):
                each = [
                    f"{name} {told[0][name]:.4f}, {told[1][name]:.4f} at once, "
                    f"{told[2][name]:.4f} at the end"
                    for name in told[0]
                    if name.startswith(("HR@", "NDCG@"))
                ]
                found.append(f"  {words} ({told[0]['users']:,}): {'; '.join(each)}")
    return found
