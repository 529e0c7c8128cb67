"""An algorithm of one's own in one file: federated SGD on squared errors.

    sottovoce --with examples/my_algorithm.py run experiment.toml

where the experiment says [algorithm] name = "squares". Releases, links, services, ledger, reports
and attacks come with it: an algorithm says what a device could tell, the door decides what leaves.
"""

from dataclasses import dataclass

import numpy as np

from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, CrossDevice
from sottovoce.core.messages import GRID, Updates


@ALGORITHMS.register("squares")
@dataclass(frozen=True, slots=True)
class Squares(AlgorithmSettings):
    embedding_size: int = 8
    learning_rate: float = 0.05
    rounds: int = 30
    others: int = 4
    """Items that a device has not, for each round."""

    def build_under(self, release, link, triples):
        return Learner(self)


@dataclass(frozen=True, slots=True)
class Learner(CrossDevice):
    config: Squares

    def device_learn(self, view, cohort, rows, rng):
        parts = []
        for place, row in enumerate(rows.tolist()):
            mine, vector = cohort.history.row(row), cohort.vectors[row]
            stream = rng.child("squares", view.round, int(cohort.users[row]))
            drawn = np.setdiff1d(stream.choose(len(view.items), self.config.others), mine)
            item = np.concatenate([mine, drawn])
            error = (np.arange(len(item)) < len(mine)) - view.items[item] @ vector
            change = self.config.learning_rate * error[:, None] * vector
            cohort.vectors[row] += self.config.learning_rate * error @ view.items[item]
            parts.append((np.full(len(item), place), item, change))
        place, item, change = (np.concatenate(column) for column in zip(*parts, strict=True))
        entry = cohort.history.find(rows[place], item.astype(np.int64))
        values = np.rint(change * GRID).astype(np.int32)
        return Updates(place.astype(np.int32), entry, item.astype(np.int32), entry >= 0, values)
