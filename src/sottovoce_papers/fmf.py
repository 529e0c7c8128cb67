"""FMF-LDP's paper: how FMF is trained there, what it costs a user, and what travels."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from sottovoce import config
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.consent import Choice
from sottovoce.core.messages import ModelView
from sottovoce.privacy.accountant import Certificate, certify
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.wire.versions import encode_model
from sottovoce_papers.claims import Claim, Row, Sets, Spec, StudyLine, claim, groups
from sottovoce_papers.kinds import alike, watched
from sottovoce_papers.lines import Job, Kind, Settings, TrainedLine, TrainedSystem
from sottovoce_papers.worlds import StudyWorld

OURS = ("reports", "epsilon", "stop")
"""Settings that are not the algorithm's: k, ε of one report, and after which round to look."""


class FMFKind(Kind):
    """FMF-LDP, where each user sends k reports of ε in every round. The number of rounds is a
    setting, since a server may plan ahead; one training is measured after several of them."""

    def along(self, settings: Settings) -> str:
        return "stop"

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        return {**settings, "stop": settings["rounds"]}

    def key(self, job: Job) -> object:
        return [self._config(job.settings), job.settings["reports"], job.settings["epsilon"]]

    def train(self, job: Job) -> TrainedSystem:
        k, epsilon = job.settings["reports"], float(job.settings["epsilon"])
        settings, train = self._config(job.settings), job.split.train
        choice, release = Choice(epsilon=epsilon, max_reports=k), KReports(k, (Tier(epsilon),))
        federation = alike(settings, train, choice, release, Streams.from_seed(job.seed))
        looks = watched(federation, job, {int(stop): stop for stop in job.stops})
        last = encode_model(ModelView(settings.rounds, federation.server.items))
        return TrainedSystem(looks, {"model_bytes": len(last)})

    def _config(self, settings: Settings) -> FMFConfig:
        values = {name: value for name, value in settings.items() if name not in OURS}
        return config.build(FMFConfig, values, "fmf")


# --- columns -------------------------------------------------------------------------------------


@cache
def certified(epsilon: float, reports: int, rounds: int, users: int) -> Certificate:
    """What all of a user's reports cost."""
    return certify(epsilon, reports, rounds, users)


def price(line: TrainedLine) -> Row:
    """What a user pays in all, without and with a proxy that does not collude. DPLCF's server needs
    each row whole, so that a proxy could only mix rows, and a row of n_items · ε is too dear for
    the crowd to hide it."""
    settings, table = line.settings, line.world.table
    without = shuffled = math.inf
    if line.system.kind == "fmf":
        rounds = settings["rounds"]
        found = certified(settings["epsilon"], settings["reports"], rounds, table.n_users)
        without, shuffled = found.without_proxy, found.with_proxy
    elif settings["name"] == "dplcf":
        without = shuffled = settings["epsilon"] * table.n_items
    elif settings["name"] == "random":
        without = shuffled = 0.0
    return {
        "without": without if math.isfinite(without) else None,
        "with": shuffled if math.isfinite(shuffled) else None,
    }


def course(line: TrainedLine) -> Row:
    """What a learning curve comes to, and its name in a plot."""
    curve = [
        value for name, value in line.row.items() if name.startswith("HR@10 after ")
    ]  # in the order of the rounds
    short, k = _short(line.row), line.row.get("reports")
    return {
        "within ten": max(curve[:10], default=None),
        "mean over epochs": float(np.mean(curve)) if curve else None,
        "curve": f"{short}, k = {k}" if k else short,
    }


def crowd(line: TrainedLine) -> Row:
    """Return how many users and items were drawn, for plots and printed figures."""
    c, short = line.world.config, _short(line.row)
    users = c.users or (c.shape.users if c.shape else 0)
    return {
        "drawn": c.users,
        "printed": f"{users} {c.items}",
        "curve": f"{short}, {c.users:,}" if c.users else f"{short}, all",
    }


def _short(row: Row) -> str:
    """The name of a system in a plot: of FMF-LDP what stands in brackets."""
    name = str(row["system"])
    return name.partition("(")[2].partition(")")[0] or name


# --- rows and claims that no table can say --------------------------------------------------------


def by_world(sets: Sets, values: Spec) -> list[StudyLine]:
    """Figure 4's table: a row for each crowd, a column for each system."""
    found = []
    for mine in groups(sets["main"], ["data"]).values():
        row = {name: mine[0].row[name] for name in ("source", "users", "items")}
        place = str(mine[0].row["printed"])
        scores = values["scores"]
        printed = {f"{users} {items}": score for users, items, score in scores}
        shaped = row["source"] in ("generated", "movielens-20m")
        row["paper"] = printed.get(place) if shaped else None
        found.append(StudyLine(row | {line.row["key"]: line.row["HR@10"] for line in mine}))
    return found


def most_users(sets: Sets, spec: Spec) -> list[Claim]:
    """Whether a system learns every item set with the most users that there are."""
    found = []
    lines = [line for line in sets["main"] if line.row["key"] in spec["systems"]]
    for mine in groups(lines, ["system", "source"]).values():
        largest = max(line.row["users"] for line in mine)
        most = [line.row for line in mine if line.row["users"] > 0.9 * largest]
        parts = [(r["HR@10"] > 0.5, f"{r['HR@10']:.3f} with {r['items']:,} items") for r in most]
        found.append(claim(spec["text"].format_map(mine[0].row), *parts))
    return found


def diminishing(sets: Sets, spec: Spec) -> list[Claim]:
    """Whether k from 50 to 100 brings more than from 100 to 250, with the most users."""
    found = []
    for mine in groups(sets["main"], ["system"]).values():
        last = mine[-1].row["data"]
        rows = [line.row for line in mine if (line.row["data"], line.row["epsilon"]) == (last, 2.5)]
        by_k = {row["reports"]: row["HR@10"] for row in rows}
        if {50, 100, 250} <= set(by_k):
            first, second = by_k[100] / by_k[50] - 1.0, by_k[250] / by_k[100] - 1.0
            words = f"{first:+.1%} and {second:+.1%} on {last}, ε = 2.5"
            found.append(claim(spec["text"].format_map(rows[0]), (0.0 < second < first, words)))
    return found


def posted_bytes(reports: int) -> int | None:
    """The length of what a device posts in a round; None if the services' packages are missing."""
    try:
        from sottovoce.wire.shuffled import submission_bytes
    except ImportError:
        return None
    return submission_bytes(reports)


def traffic(sets: Sets, values: Spec) -> list[StudyLine]:
    """Bytes of one device (§5.3), with the first hold-out of each crowd."""
    theirs, found = values["traffic"], []
    for mine in groups(sets["main"], ["data"]).values():
        first = mine[0].row["hold_out"]
        for line in mine:
            row = line.row
            if not row.get("reports") or row["hold_out"] != first:
                continue
            k, rounds = row["reports"], row["rounds"]
            up, down = posted_bytes(k), max(facts["model_bytes"] for facts in line.facts)
            printed = theirs["up"] * k // 100
            shape = row["items"], row["embedding_size"]
            asked = str(row["asked items"] or row["items"])
            found.append(
                {"data": row["data"], "system": row["system"], "k": k, "up": up,
                 "up_all": up * rounds if up is not None else None, "up_paper": printed,
                 "up_all_paper": printed * theirs["epochs"], "down": down,
                 "down_all": down * rounds, "down_paper": theirs["down"].get(asked),
                 "items": shape[0], "share": k * rounds / (shape[0] * shape[1])}
            )  # fmt: skip
    return [StudyLine(row) for row in found]
