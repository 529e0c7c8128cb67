"""What a cut of the catalogue costs: how a run does over the whole one.

Where `data.min_item_users` leaves rare items out, nobody is recommended any of them. Over the whole
catalogue they are there to be found: of each user's whole history the same rule holds items out,
and those of them that were cut are misses beside her test items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sottovoce.core.interactions import Interactions
from sottovoce.core.redacted import Redacted
from sottovoce.data.dataset import Dataset, positions
from sottovoce.data.splitting import Split
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.experiment import Experiment

SUFFIX = ", whole catalogue"
"""Of metrics in results."""


@dataclass(frozen=True, slots=True, repr=False)
class CutCatalogue(Redacted):
    """What was left out, and what came of it."""

    least: int
    """Users that an item needs to stay."""
    items: int
    of: int
    test: Interactions
    """Test items with those that were cut behind all others."""
    missing: int
    """Of them, entries that cannot be found."""
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    """By system, as they are judged."""

    def judge(self, label: str, judged: Callable[[Interactions], Evaluation]) -> dict[str, float]:
        """A system over the whole catalogue, by the names that results have."""
        found = judged(self.test).summary()
        self.accuracy[label] = {
            name: value for name, value in found.items() if not name.startswith(("IC@", "Gini@"))
        }
        return {f"{name}{SUFFIX}": value for name, value in self.accuracy[label].items()}

    def words(self, system: str, within: Mapping[str, float]) -> str:
        """What a reader of a run must know."""
        found = self.accuracy.get(system, {})
        wanted = [
            name for name in found if name.startswith(("P@", "HR@", "NDCG@")) and name in within
        ]
        figures = ", ".join(
            f"{name} {found[name]:.4f} in the place of {within[name]:.4f}" for name in wanted
        )
        return (
            f"the catalogue is cut to {self.items:,} of {self.of:,} items, those that "
            f"{self.least:,} users or more have (data.min_item_users), and {self.missing:,} of "
            f"{self.test.n_interactions:,} held-out items are among those that were cut; over the "
            f"whole catalogue, where they count as misses: {figures}"
        )


def cut_catalogue(experiment: Experiment, dataset: Dataset, split: Split) -> CutCatalogue | None:
    """None where nothing was cut, where no rank has all histories, and where candidates are drawn
    for each test item."""
    settings, ranks = experiment.data, dataset.shard.ranks
    full = experiment.evaluation.candidates == "full"
    if not settings.min_item_users or ranks.several or experiment.silo is not None or not full:
        return None
    if not experiment.names(dataset):  # nobody has the whole
        return None
    whole = experiment.uncut()
    table, left = whole.interactions, dataset.interactions
    if table.n_items == left.n_items:
        return None
    stays = np.zeros(table.n_items, dtype=bool)
    stays[positions(table.items_vocabulary(), left.items_vocabulary())] = True
    number = np.full(table.n_users, -1, dtype=np.int64)
    number[positions(table.users_vocabulary(), left.users_vocabulary())] = np.arange(left.n_users)
    held = experiment.split(whole)
    items = held.dataset_items(held.test.items)
    users = number[held.test.users]
    lost = ~stays[items] & (users >= 0)
    rare, place = np.unique(items[lost], return_inverse=True)
    test = split.test
    more = Interactions.from_pairs(
        np.concatenate([test.users, users[lost]]),
        np.concatenate([test.items, test.n_items + place]),
        n_users=test.n_users,
        n_items=test.n_items + len(rare),
    )
    return CutCatalogue(settings.min_item_users, left.n_items, table.n_items, more, int(lost.sum()))
