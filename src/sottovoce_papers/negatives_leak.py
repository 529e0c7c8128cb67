"""The leak in published figures: training negatives that are drawn from outside a user's whole
history never hit the test item, and so tell the model what it is. Each rival with and without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from scipy.stats import binom

from sottovoce.core.recommender import Scorer
from sottovoce.data.splitting import Split
from sottovoce.evaluation.protocol import Evaluation, Protocol, evaluate
from sottovoce.experiment import EvaluationConfig
from sottovoce.rng import Streams
from sottovoce_papers.claims import Claim, Row, Sets, Spec, claim, groups, paired
from sottovoce_papers.kinds import BaselineKind, over_users
from sottovoce_papers.lines import Job, TrainedLine
from sottovoce_papers.rivals import rival_of
from sottovoce_papers.worlds import Part, StudyData, StudyWorld

FAIR, LEAK, METRIC = "fair", "leak", "HR@10"
SPARE = 0.03
"""By how much HR@10 of a device that counts may differ from what chance makes of its draws."""


@dataclass(frozen=True, slots=True)
class LeakData(StudyData):
    """A data set that ranks test items among `candidates`, published ones where there are some, and
    among all items as well (metrics "full …")."""

    candidates: int = 99

    def world(self, name: str) -> StudyWorld:
        return LeakWorld(name, self)


class LeakWorld(StudyWorld):
    """The splits and candidates of an experiment on these data."""

    config: LeakData

    @property
    def title(self) -> str:
        return self.config.source

    def split(self, part: Part, seed: int) -> Split:
        with self._lock:
            if (part, 0) not in self._splits:
                self._splits[part, 0] = self._experiment(part, 0).split(self.dataset)
            return self._splits[part, 0]

    def protocol(self, seed: int) -> Protocol:
        return self._protocol(self.split("test", 0))

    def _protocol(self, split: Split) -> Protocol:
        return EvaluationConfig(candidates=self.config.candidates).protocol(split, 0)

    def measure(self, scorer: Scorer, split: Split, seed: int) -> Evaluation:
        found = evaluate(scorer, split.train, split.test, self._protocol(split), threads=1)
        full = evaluate(scorer, split.train, split.test, Protocol(10), threads=1).values
        return replace(found, values={**found.values, **{f"full {k}": v for k, v in full.items()}})


class LeakBaselineKind(BaselineKind):
    """A baseline next to rivals, trained once."""

    seeded = False

    def rng(self, job: Job) -> Streams:
        return super().rng(job).child("baseline", str(job.settings["name"]))


def columns(line: TrainedLine) -> Row:
    """Return means and intervals over users, and which negatives were drawn."""
    way = "baseline"
    if line.system.kind == "rival":
        way = LEAK if line.settings["leak"] else FAIR
    words = {FAIR: "outside training", LEAK: "outside the whole history", "baseline": "–"}
    return {"way": way, "negatives": words[way], **over_users(line)}


# --- claims ---------------------------------------------------------------------------------------


def claims(sets: Sets, spec: Spec) -> list[Claim]:
    """Return whether the leak lifts each rival, and whether a device that counts its negatives
    finds as much as its draws permit."""
    found = []
    for (source, system), mine in groups(sets["main"], ["source", "system"]).items():
        ways = {line.row["way"]: cast(TrainedLine, line) for line in mine if line.runs}
        if not {FAIR, LEAK} <= set(ways):
            continue
        fair, leak = (ways[way].over_seeds().per_user(METRIC) for way in (FAIR, LEAK))
        if ways[LEAK].settings["name"] == "counting":
            expected, chance = by_counting(ways[LEAK])
            text = (
                f"{source}: {system} finds the test item where negatives leak, as often as its "
                "draws permit, and knows nothing where they do not"
            )
            words = f"{METRIC} {leak.mean():.4f} with the leak, {expected:.4f} by its draws"
            fairly = f"{fair.mean():.4f} without, {chance:.4f} by chance"
            good = abs(leak.mean() - expected) < SPARE, abs(fair.mean() - chance) < SPARE
            found.append(claim(text, *zip(good, (words, fairly), strict=True)))
            continue
        test = paired(ways[LEAK], ways[FAIR], METRIC)
        words = (
            f"{METRIC} {leak.mean():.4f} with it, {fair.mean():.4f} without, by "
            f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]"
        )
        found.append(claim(f"{source}: the leak lifts {system}", (test.low > 0.0, words)))
    return found


def by_counting(line: TrainedLine) -> tuple[float, float]:
    """Return HR@10 among 99 candidates of a device that counts, by chance alone, with and without
    the leak. With it a user's open items are drawn m times each on average: exp(-m) of them are
    never drawn either, and the answer is among those by lot. An item that nobody has in training is
    never found."""
    rival, split = rival_of(line.settings), line.world.split("test", 0)
    known = float((split.test.items < split.train.n_items).mean())
    have = split.train.counts[split.test.counts > 0]
    draws = rival.rounds * rival.negatives * have / (split.train.n_items - have)
    others = np.arange(100)
    chance = binom.pmf(others[:, None], 99, np.exp(-draws))
    found = (chance * np.minimum(1.0, 10.0 / (others + 1.0))[:, None]).sum(0)
    return known * float(found.mean()), known * 0.1
