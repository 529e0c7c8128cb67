"""FPL's paper: how FPL, BPR-MF and FCF are trained there, and what its tables count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import CONFIGURATIONS, FPLConfig, published_cost, schedule
from sottovoce.baselines import BPRMF
from sottovoce.core.consent import Choice
from sottovoce.data.importers.foursquare import TOP_CATEGORIES, top_category
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce.evaluation.plots import pareto_front
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.rng import Streams
from sottovoce_papers.claims import Claim, Row, Sets, Spec, StudyLine, claim, groups
from sottovoce_papers.kinds import BaselineKind, alike, watched
from sottovoce_papers.lines import Job, Kind, Settings, TrainedLine, TrainedSystem
from sottovoce_papers.worlds import StudyWorld


class BPRKind(Kind):
    """BPR-MF, with which FPL is compared; one training is measured after several epochs."""

    def along(self, settings: Settings) -> str:
        return "epochs"

    def key(self, job: Job) -> object:
        return config.build(BPRMF, dict(job.settings), "bpr")

    def train(self, job: Job) -> TrainedSystem:
        model = config.build(BPRMF, dict(job.settings), "bpr")
        rng = Streams.from_seed(job.seed)
        stops = [round(stop) for stop in job.stops]
        scorers = model.fit_steps(job.split.train, rng, stops)
        return TrainedSystem({s: job.measure(m) for s, m in zip(job.stops, scorers, strict=True)})


class FPLKind(Kind):
    """FPL in one of its configurations, with the share π of positive updates. `epochs` may be a
    fraction, which is rounded to whole rounds. `work` instead counts triples, in multiples of the
    positives: the "+" configurations draw X⁺/N times as many in an epoch."""

    def along(self, settings: Settings) -> str:
        return "epochs"

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        if "work" not in settings:
            return settings
        train = world.split("test", 0).train
        plus = str(settings["configuration"]).endswith("+")
        triples = train.n_interactions // train.n_users if plus else 1
        return {**settings, "epochs": settings["work"] / triples}

    def key(self, job: Job) -> object:
        return [self._config(job), job.settings["share"]]

    def train(self, job: Job) -> TrainedSystem:
        choice, release = Choice(share_positives=job.settings["share"]), ShareFraction("draw")
        rng = Streams.from_seed(job.seed)
        federation = alike(self._config(job), job.split.train, choice, release, rng)
        plan = federation.schedule
        stops = {max(1, round(e * plan.rounds_per_epoch)): e for e in job.stops}
        federation.schedule = replace(plan, rounds=max(stops))
        return TrainedSystem(watched(federation, job, stops))

    def _config(self, job: Job) -> FPLConfig:
        ours = ("share", "work")
        values = {name: value for name, value in job.settings.items() if name not in ours}
        return config.build(FPLConfig, values, "fpl")


class FCFKind(Kind):
    """FCF with everybody taking part; one training is measured after several rounds. Without a
    `reg` it has FPL's paper's rule for positive items: a twentieth of the learning rate."""

    version = 2
    seeded = False

    def along(self, settings: Settings) -> str:
        return "rounds"

    def prepared(self, settings: dict[str, Any], world: StudyWorld) -> dict[str, Any]:
        rate = settings.get("learning_rate", FCFConfig().learning_rate)
        return {"reg": rate / 20, **settings}

    def key(self, job: Job) -> object:
        return config.build(FCFConfig, dict(job.settings), "fcf")

    def train(self, job: Job) -> TrainedSystem:
        train, rounds = job.split.train, int(max(job.stops))
        settings = config.build(FCFConfig, {**job.settings, "rounds": rounds}, "fcf")
        name = "FCF" if settings.variant == "paper" else "FCF (as in FPL)"
        rng = Streams.from_seed(0).child("baseline", name)
        federation = alike(settings, train, Choice(share_positives=1.0), Everything(), rng)
        return TrainedSystem(watched(federation, job, {int(stop): stop for stop in job.stops}))


class FPLBaselineKind(BaselineKind):
    """A baseline of FPL's tables, which is trained once."""

    seeded = False
    names = {"random": "Random", "mult-vae": "VAE"}  # noqa: RUF012

    def along(self, settings: Settings) -> str:
        return ""

    def rng(self, job: Job) -> Streams:
        name = str(job.settings["name"])
        return Streams.from_seed(0).child("baseline", self.names.get(name, name))


# --- columns -------------------------------------------------------------------------------------


def cost(line: TrainedLine) -> Row:
    """The communication cost of an epoch, by the paper's formula."""
    if "share" not in line.settings:
        return {}
    train = line.world.split("test", 0).train
    plus = str(line.settings["configuration"]).endswith("+")
    counts = train.n_users, train.n_items, train.n_interactions
    found = published_cost(*counts, plus, line.settings["share"])
    return {"CCE": round(found), "reciprocal": 1e9 / found}


def bias(line: TrainedLine) -> Row:
    """Bias disparity by top category, the training bias B_T, and the largest gap between the
    disparity and what a random recommender has."""
    member, train = membership(line.world), line.world.split("test", 0).train
    found = [bias_disparity(run.lists, train, member) for run in line.runs if run.lists is not None]
    values = np.mean([one.disparity for one in found], axis=0)
    source = found[0].source
    gap = float(np.nanmax(np.abs(values - (1.0 - source) / source)))
    names = list(map(short, TOP_CATEGORIES))
    shown = dict(zip(names, values.tolist(), strict=True))
    shown |= {f"B_T {name}": one for name, one in zip(names, source.tolist(), strict=True)}
    uncounted = 1.0 - float(np.asarray(member.any(axis=1))[train.items].mean())
    return {**shown, "gap": gap, "uncounted": uncounted}


def membership(world: StudyWorld) -> NDArray[np.bool_]:
    """Which training venue is in which of Foursquare's nine top categories."""
    data, split = world.dataset, world.split("test", 0)
    leaves = data.item_categories or tuple(() for _ in range(data.interactions.n_items))
    numbers = split.dataset_items(np.arange(split.train.n_items))
    member = np.zeros((len(numbers), len(TOP_CATEGORIES)), dtype=bool)
    for row, item in enumerate(numbers):
        for leaf in leaves[int(item)]:
            top = top_category(leaf)
            if top is not None:
                member[row, TOP_CATEGORIES.index(top)] = True
    return member


def short(category: str) -> str:
    """The initials of a category."""
    words = category.replace(" Spot", "").split(" & ")
    return words[0] if len(words) == 1 else "&".join(w[0] for w in words)


# --- rows and claims that no table can say --------------------------------------------------------


def counted(sets: Sets, values: Spec) -> list[StudyLine]:
    """Table 3: communication cost and freshness, from published counts."""
    n, m, x = (values["counts"][name] for name in ("users", "items", "positives"))
    rows = []
    for name in CONFIGURATIONS:
        plus = name.endswith("+")
        plan = schedule(FPLConfig(configuration=name), n, x)
        rows += [
            {"system": name, "share": share,
             "CCE": round(published_cost(n, m, x, plus, share)), "CCE_paper": printed[plus],
             "CCE as run": round(plan.communication_cost(m, share)),
             "nFRSH": round(100 * plan.freshness, 4),
             "nFRSH_paper": values["freshness"][name]}
            for share, *printed in values["cost"]
        ]  # fmt: skip
    return [StudyLine(row) for row in rows]


def counts_agree(sets: Sets, spec: Spec) -> list[Claim]:
    """Whether Table 3 comes out to the last digit."""
    rows = [line.row for line in sets["main"]]
    found = []
    for text, ours in spec["columns"].items():
        same = [row[ours] == row[f"{ours}_paper"] for row in rows]
        found.append(claim(text, (all(same), f"{sum(same)} of {len(rows)} figures")))
    return found


def training_bias(sets: Sets, values: Spec) -> list[StudyLine]:
    """The bias of each training part by category, ours and the printed one (Table 1)."""
    names, found = [short(category) for category in TOP_CATEGORIES], []
    for source, lines in groups(sets["main"], ["source"]).items():
        row = lines[0].row
        shown = {"ours": [row[f"B_T {name}"] for name in names]}
        shown["paper"] = values["bias"].get(*source)
        for whose, bias in shown.items():
            if bias:
                row = {"system": f"{source[0]}, {whose}", **dict(zip(names, bias, strict=True))}
                found.append(StudyLine(row))
    return found


def brazil(sets: Sets, values: Spec) -> list[StudyLine]:
    """The printed Table 4, which is of Brazil."""
    names = [short(category) for category in TOP_CATEGORIES]
    return [
        StudyLine({"system": f"{name}, Brazil", **dict(zip(names, theirs, strict=True))})
        for name, theirs in values["brazil"].items()
    ]


def same_signs(sets: Sets, spec: Spec) -> list[Claim]:
    """Whether a system pushes the same categories up and down as printed for Brazil."""
    theirs = {line.row["system"]: line.row for line in sets["brazil"]}
    names, found = [short(category) for category in TOP_CATEGORIES], []
    for row in (line.row for line in sets["main"] if line.row["system"] in spec["systems"]):
        other = theirs[f"{row['system']}, Brazil"]
        apart = [name for name in names if np.sign(row[name]) != np.sign(other[name])]
        words = f"{len(names) - len(apart)} of {len(names)} signs agree"
        words += f"; not {', '.join(apart)}" if apart else ""
        found.append(claim(spec["text"].format_map(row), (not apart, words)))
    return found


def front(sets: Sets, spec: Spec) -> list[Claim]:
    """What is claimed of the points that no other beats on cost and precision (Figure 4)."""
    rows = [line.row for line in sets["main"]]
    best = [rows[int(k)] for k in pareto_front([(r["reciprocal"], r["P@10"]) for r in rows])]
    words = ", ".join(f"{row['system']} π={row['share']:g}" for row in best)
    top = max(best, key=lambda row: row["P@10"])["system"]
    cheap = any(not row["system"].endswith("+") for row in best)
    local, single = spec["texts"]
    return [
        claim(local, (top.endswith("+"), f"front: {words}")),
        claim(single, (cheap, "costs differ by less than 0.4 %: the model download dwarfs the "
                       "updates")),
    ]  # fmt: skip
