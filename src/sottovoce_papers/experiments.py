"""Systems that are experiments (shipped files, or sections of one) or baselines under an
experiment's protocol: how they are trained, and how settings follow from the ε of a figure."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sottovoce.baselines import BASELINES
from sottovoce.baselines.lightgcn import LightGCN
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import evaluate
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.central import noise_for
from sottovoce.runs.home import baseline_at_home
from sottovoce.runs.tables import hints
from sottovoce.runs.train import run_experiment
from sottovoce.wire.terms import named
from sottovoce_papers.claims import Claim, Row, Sets, Spec, StudyLine, claim, groups
from sottovoce_papers.lines import END, Job, Kind, Settings, TrainedLine, TrainedSystem
from sottovoce_papers.worlds import laid_over

SECTIONS = ("algorithm", "release", "link", "consent", "home", "owners", "evaluation")
FLOOR = "Top-Pop"
OWN = "own epsilon"
"""The name under which an evaluation has each user's own ε."""


class ExperimentKind(Kind):
    """An experiment: a shipped `preset`, or sections of its own; or a `baseline`. `lay` is laid
    over a preset, which leaves it to its user. `epsilon` is what a user pays in all, and `pays` how
    settings follow from it; `mix` gives each user an ε of their own."""

    def key(self, job: Job) -> object:
        made = experiment_of(job)
        parts = [made.algorithm, made.release, made.link, made.consent, made.home, made.owners]
        return [sections_of(job.settings).get("baseline"), parts, made.evaluation]

    def train(self, job: Job) -> TrainedSystem:
        made, threads = experiment_of(job), job.cells.threads
        if "baseline" in job.settings:
            baseline = named(sections_of(job.settings)["baseline"], BASELINES, "", "baseline")
            if isinstance(baseline, LightGCN):
                baseline = replace(baseline, device=job.cells.device)
            split, dataset = job.split, job.world.dataset
            rng = made.streams().child("baseline", baseline.name)
            fitted = baseline.fit(split.train, rng)
            scorer = baseline_at_home(made, dataset, split.train, fitted)
            protocol = made.evaluation.protocol(split, made.seed)
            found = evaluate(scorer, split.train, split.test, protocol, threads=threads)
            return TrainedSystem({END: found}, {"warned": False})
        device = job.cells.device if job.settings.get("on_gpu") else "cpu"
        outcome = run_experiment(made, threads=threads, device=device)
        found = outcome.evaluations[outcome.system]
        own = outcome.consent.epsilon[found.users].astype(np.float64)
        found = replace(found, values={**found.values, OWN: own})
        warned = any(FLOOR in hint for hint in hints(outcome))
        return TrainedSystem({END: found}, {"warned": warned})


def experiment_of(job: Job) -> Experiment:
    """The experiment of a job, on its data with its seed."""
    sections = {k: v for k, v in sections_of(job.settings).items() if k in SECTIONS}
    own = job.settings.get("data", {})
    data = {**job.world.config.experiment(), **own, "part": job.part}
    return Experiment.from_table({"name": "study", "seed": job.seed, "data": data, **sections})


def sections_of(settings: Settings) -> dict[str, Any]:
    """The sections of an experiment that a system's settings stand for."""
    found = {k: v for k, v in settings.items() if k in (*SECTIONS, "baseline")}
    if "preset" in settings:
        text = find_experiment(settings["preset"]).read_text(encoding="utf-8")
        shipped = {k: v for k, v in tomllib.loads(text).items() if k in SECTIONS}
        shipped.pop("evaluation", None)
        found = laid_over(shipped, settings.get("lay", {}))
    if "epsilon" in settings:
        pays = settings.get("pays", "once")
        if pays not in PAYS:
            raise ConfigError(f"pays must be one of {', '.join(PAYS)}, not {pays!r}")
        more = PAYS[pays](found, settings["epsilon"], settings.get("times", 1))
        found = laid_over(found, more)
    return found | {"consent": {"mix": settings["mix"]}} if "mix" in settings else found


# --- what a user pays ----------------------------------------------------------------------------


def _once(sections: Settings, epsilon: float, times: int) -> dict[str, Any]:
    """The ε is the user's own."""
    if "baseline" in sections:
        return {"baseline": {"epsilon": epsilon}}
    mix = sections.get("consent", {}).get("mix", ())
    several = [{"epsilon": epsilon, **one} if one.get("takes_part", True) else one for one in mix]
    consent = {"mix": several} if several else {"epsilon": epsilon}
    return {"release": {"epsilon": epsilon}, "consent": consent}


def _times(sections: Settings, epsilon: float, times: int) -> dict[str, Any]:
    """A part of it for each of `times` equal costs."""
    return _once(sections, epsilon / times, 1)


def _sums(sections: Settings, epsilon: float, times: int) -> dict[str, Any]:
    """Noise on the sum of each round."""
    noise = noise_for(epsilon, sections["algorithm"]["rounds"])
    return {"link": {"noise": float(np.ceil(1000.0 * noise) / 1000.0)}}


def _reports(sections: Settings, epsilon: float, times: int) -> dict[str, Any]:
    """The ε of reports that go through an honest shuffler with those of `times` users."""
    k, rounds = sections["release"]["max_reports"], sections["algorithm"]["rounds"]
    one = report_epsilon(epsilon, k, rounds, times)
    tier = {"epsilon": one, "min_devices": times}
    chosen = {"epsilon": one, "max_reports": k, "total_epsilon": one * k * rounds}
    return {"release": {"tiers": [tier]}, "consent": chosen}


PAYS: Mapping[str, Callable[[Settings, float, int], dict[str, Any]]] = {
    "once": _once,
    "times": _times,
    "sums": _sums,
    "reports": _reports,
}


@cache
def report_epsilon(epsilon: float, reports: int, rounds: int, users: int) -> float:
    """The largest ε of a report, in steps of 1/1000, with which all of a user's reports cost no
    more than `epsilon` with an honest shuffler."""

    def fits(steps: int) -> bool:
        return certify(steps / 1000.0, reports, rounds, users).with_proxy <= epsilon

    low, high = 0, 64
    while high < 8000 and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise ConfigError(f"reports of {users:,} users cannot cost as little as ε = {epsilon:g}")
    return low / 1000.0


# --- columns and rows ----------------------------------------------------------------------------


def by_own_epsilon(line: TrainedLine) -> Row:
    """P@10 of those who have the same ε of their own, and who takes part."""
    mix = line.settings.get("mix")
    if mix is None:
        return {}
    alone = any("takes_part" in one for one in mix)
    row: Row = {"who": "the loudest alone" if alone else "everybody"}
    for one in mix:
        same = [run.values[OWN] == np.float32(one["epsilon"]) for run in line.runs]
        means = [run.per_user("P@10")[m].mean() for run, m in zip(line.runs, same, strict=True)]
        row[f"ε = {one['epsilon']:g}"] = float(np.mean(means))
    return row


def warned(line: TrainedLine) -> Row:
    """Whether a run says that it ends near popularity."""
    return {"warned": any(facts["warned"] for facts in line.facts)}


def beside_the_best(sets: Sets, values: Spec) -> list[StudyLine]:
    """Compare every system with the best central one on its data set, by NDCG@10."""
    central, found = values["central"], []
    for mine in groups(sets["main"], ["data"]).values():
        rows = [dict(line.row) for line in mine]
        best = max((r for r in rows if r["key"] in central), key=lambda r: float(r["NDCG@10"]))
        first = {**best, "system": f"best central ({best['system']})"}
        for row in [first, *(r for r in rows if r["key"] not in central)]:
            share = row["NDCG@10"] / best["NDCG@10"] if best["NDCG@10"] else 0.0
            found.append(StudyLine(row | {"share": share}))
    return found


def preset_claims(sets: Sets, spec: Spec) -> list[Claim]:
    """What a file is to reach on the median set, and that it says so if it does not pay."""
    found = []
    rows = [line.row for line in sets["table"]]
    floor = {row["data"]: row["NDCG@10"] for row in rows if row["system"] == FLOOR}
    for system in dict.fromkeys(row["system"] for row in rows if row["key"] not in spec["but"]):
        mine = [row for row in rows if row["system"] == system]
        least = spec["least"].get(mine[0]["key"])
        if least is not None:
            median = float(np.median([row["share"] for row in mine]))
            text = (
                f"{system} has {least:.0%} of the best central NDCG@10 or more, on the median set"
            )
            words = f"median of {len(mine)} sets: {median:.1%}"
            found.append(claim(text, (median >= least, words)))
        silent = [
            row["data"]
            for row in mine
            if row["NDCG@10"] <= floor[row["data"]] and not row["warned"]
        ]
        text = f"{system} is nowhere at or below {FLOOR} without saying so"
        found.append(claim(text, (not silent, ", ".join(silent) or "on none of these sets")))
    return found
