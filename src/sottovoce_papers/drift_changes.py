"""DRIFT with data owners and users who come and go, which the thesis leaves to future work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import count

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Events
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.significance import paired_t
from sottovoce.rng import Streams
from sottovoce_papers.claims import Sets, Spec, StudyLine, chosen, groups
from sottovoce_papers.drift import DriftKind, component_of, lists_of
from sottovoce_papers.lines import Job

Bools = NDArray[np.bool_]
GROUPS = {0.0: "there from the start", 1.0: "came later"}
"""Users by the value `group` of an evaluation."""
STREAM = "who comes and goes"


class ChangingKind(DriftKind):
    """DRIFT whose "owners" or "users" (`who`) come and go: the share `come` joins after `turn`
    epochs, `go` leaves then for good, and `away` of them miss each epoch. A user who leaves has no
    row any more, and items that no data owner holds are not recommended."""

    def passes(self, job: Job) -> Iterator[Blocks]:
        component = component_of(job.settings)
        if not isinstance(component, DRIFTConfig):
            raise ConfigError("only DRIFT has data owners who come and go")
        train, member = job.split.train, membership(job)
        every = Events.of(train, component.positive_from, component.order)
        for epoch in count(1):
            owners = present(job, "owners", member.shape[1], epoch)
            users = present(job, "users", train.n_users, epoch)
            held = member & owners
            offered: Bools = np.any(held, axis=1)
            kept = users[every.user] & offered[every.item]
            user, item, positive = every.user[kept], every.item[kept], every.positive[kept]
            events = Events(user, item, positive, every.time[kept], every.order)
            table = OwnerTable.of_membership(held)
            yield plan(events, table, component.theta, component.window)

    def looked(self, job: Job, stop: float, model: DriftModel) -> Evaluation:
        member, epoch = membership(job), int(stop)
        owners = present(job, "owners", member.shape[1], epoch, reach=True)
        users = present(job, "users", len(model.users), epoch, reach=True)
        offered = np.any(member & owners, axis=1)
        bias = np.where(offered, 0.0, -np.inf).astype(np.float32)
        found = lists_of(job, FactorScorer(model.users, model.items, bias))
        came = arriving(job, "users", len(model.users)).astype(np.float64)
        mine = users[found.users]
        values = {**found.values, "group": came[found.users]}
        return replace(
            found,
            users=found.users[mine],
            values={name: value[mine] for name, value in values.items()},
            served=found.served[mine],
        )


def membership(job: Job) -> Bools:
    """Which training item is in which genre, [items, owners]."""
    split = job.split
    numbers = split.dataset_items(np.arange(split.train.n_items))
    member: Bools = job.world.dataset.category_matrix()[numbers]
    return member


def arriving(job: Job, who: str, n: int) -> Bools:
    """Return who joins after the turn. All seeds have the same users, so that groups have means."""
    place, settings = _place(who, n), job.settings
    joins: Bools = place < (settings.get("come", 0.0) if settings.get("who") == who else 0.0)
    return joins


def present(job: Job, who: str, n: int, epoch: int, *, reach: bool = False) -> Bools:
    """Return who takes part in an epoch; with `reach`, also those who only miss this one."""
    settings = job.settings
    if settings.get("who") != who:
        return np.ones(n, dtype=bool)
    come, go, away = (float(settings.get(name, 0.0)) for name in ("come", "go", "away"))
    place, later = _place(who, n), epoch > settings.get("turn", 0)
    leaves = (place >= come) & (place < come + go)
    there: Bools = ~leaves if later else place >= come
    if reach or not away:
        return there
    draw = Streams.from_seed(0).child(STREAM, who, "away", str(epoch))
    return there & (draw.uniform(np.arange(n), 1)[:, 0] >= away)


def _place(who: str, n: int) -> NDArray[np.float64]:
    """Everybody's place on [0, 1), evenly spread in a drawn order: shares are exact."""
    order = Streams.from_seed(0).child(STREAM, who).uniform(np.arange(n), 1)[:, 0]
    place: NDArray[np.float64] = np.argsort(np.argsort(order, kind="stable")) / n
    return place


def gains(sets: Sets, values: Spec) -> list[StudyLine]:
    """The rows, with the share of the base line's gain over a random order that each keeps."""
    for mine in groups(sets["main"], ["data", "look"]).values():
        (random,) = chosen(mine, values["chance"])
        trained = [line for line in mine if line.runs and line is not random]
        for same in groups(trained, ["learning_rate"]).values():
            (base,) = chosen(same, values["base"])
            for line in same:
                gain, whole = (one.row["NDCG@10"] - random.row["NDCG@10"] for one in (line, base))
                line.row["kept"] = gain / whole
    return [*sets["main"]]


def compared(sets: Sets, values: Spec) -> list[StudyLine]:
    """Every group of users beside the same users in a federation that does not change."""
    found = []
    for mine in groups(sets["main"], ["data", "look"]).values():
        (base,), (random,) = (chosen(mine, values[n]) for n in ("base", "chance"))
        for line in (line for line in mine if line.row.get("who")):
            found += [StudyLine({**line.row, **row}) for row in _groups(line, base, random)]
    return found


def _groups(line: StudyLine, base: StudyLine, random: StudyLine) -> list[dict[str, object]]:
    both, rows = (line.over_seeds(), base.over_seeds(), random.over_seeds()), []
    shared = reduce(np.intersect1d, (one.users for one in both))
    places = [np.searchsorted(one.users, shared) for one in both]
    group = both[0].values["group"][places[0]]
    for number, label in GROUPS.items():
        mine = group == number
        if not mine.any():
            continue
        pairs = zip(both, places, strict=True)
        a, b, chance = (one.per_user("NDCG@10")[place][mine] for one, place in pairs)
        test, gain = paired_t(a, b), float(b.mean() - chance.mean())
        row = {"group": label, "n": int(mine.sum()), "NDCG@10": float(a.mean())}
        row |= {"unchanged": float(b.mean()), "change": test.difference, "p": test.p}
        rows.append(row | {"kept": 1.0 + test.difference / gain})
    return rows
