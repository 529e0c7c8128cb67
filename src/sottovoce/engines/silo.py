"""What a federation of data owners is given at the start, in simulation and for real, and what an
epoch of it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.aggregated import AggregatedPlan, Aggregation
from sottovoce.algorithms.drift.blocks import Blocks, BlockStep, DriftModel, Events, learn
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.interactions import Interactions
from sottovoce.core.redacted import Redacted
from sottovoce.data.dataset import Dataset
from sottovoce.engines.observers import Report
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.parties.silo_door import Departed, InteractionDoor
from sottovoce.rng import Streams

OTHER = "other"
"""The data owner that holds the items without a category."""
ONE = "all items"
"""The owner, where there is one."""

Sharing = Literal["categories", "one"]


@dataclass(frozen=True, slots=True, repr=False)
class SiloWorld(Redacted):
    """Everything that the parties are given at the start, each its own share."""

    config: DRIFTConfig
    door: InteractionDoor
    """The door of all users; it knows the data owners and what they hold."""
    departed: Departed
    """What it let go; the owners learn from nothing else."""
    catalogue: tuple[str, ...]
    """Ids of the items, by number."""
    root: Streams
    """Root of all random numbers, so that every engine gives the same model."""

    def __post_init__(self) -> None:
        if not self.door.has_let_go(self.departed):
            raise ConsentError(
                "data owners learn only from what their users' door has let go; see "
                "InteractionDoor.let_out"
            )
        if self.departed.epochs != self.config.epochs:
            raise ConsentError(
                f"the door has let go {self.departed.epochs:,} epochs, and owners would learn from "
                f"{self.config.epochs:,}"
            )

    @classmethod
    def of(
        cls,
        config: DRIFTConfig,
        door: InteractionDoor,
        events: Events,
        catalogue: tuple[str, ...],
        root: Streams,
    ) -> SiloWorld:
        """Make the world of everybody's events; the door lets out what may leave."""
        return cls(config, door, door.let_out(events, config.epochs), catalogue, root)

    @property
    def owners(self) -> tuple[str, ...]:
        """Names, by number; each holds something."""
        return self.door.owners

    @property
    def table(self) -> OwnerTable:
        return self.door.table

    @property
    def n_users(self) -> int:
        return self.door.n_users

    def blocks(self, *, first: bool = False) -> Blocks:
        """What an epoch learns from; the first one's are others where owners draw negatives, since
        they do not know yet what users will have touched."""
        if self.config.sums_over_people:
            return self.aggregated_plan(first=first).blocks
        left, config = self.departed, self.config
        drawing = config.drawing(self.root, known=not first)
        return plan(left.events, self.table, config.theta, config.window, left.told, drawing)

    def aggregated_plan(self, *, first: bool = False) -> AggregatedPlan:
        left, config = self.departed, self.config
        drawing = config.drawing(self.root, known=not first)
        return AggregatedPlan.of(left.events, self.table, config.window, left.told, drawing)

    def learning(self, blocks: Blocks, begun: DriftModel, epochs: int = 0) -> Learning:
        """All owners and their orchestrator, from a model on that has had so many epochs; owners
        that keep users' vectors begin with their own."""
        if self.config.sums_over_people:
            return self.aggregation()
        first = self.blocks(first=True) if self.config.draws and not epochs else None
        return _BlockLearning(begun, blocks, self.config.step(), first)

    def aggregation(self) -> Aggregation:
        plan, n_items = self.aggregated_plan(), len(self.catalogue)
        first = self.aggregated_plan(first=True) if self.config.draws else None
        return Aggregation(plan, self.config, self.n_users, n_items, self.root, first)

    def first_model(self) -> DriftModel:
        config = self.config
        return DriftModel.start(
            self.n_users, len(self.catalogue), config.embedding_size, self.root, config.spread
        )


class Learning(Protocol):
    """All owners and their orchestrator at full speed, epoch by epoch."""

    def epoch(self) -> object: ...

    def model(self) -> DriftModel:
        """What recommends by now."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """What epochs change beside the model; nothing if the model is all."""
        ...

    def take_up(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` showed."""
        ...


@dataclass(slots=True, repr=False)
class _BlockLearning:
    _model: DriftModel
    _blocks: Blocks
    _step: BlockStep
    _first: Blocks | None
    """Blocks of the first epoch, if it is still to come and has other blocks than later ones."""

    def epoch(self) -> None:
        learn(self._model, self._first or self._blocks, self._step)
        self._first = None

    def model(self) -> DriftModel:
        return self._model

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def take_up(self, state: Mapping[str, NDArray[Any]]) -> None:
        raise ConfigError("the model is all that changes; go on from that")


def held_out_blocks(world: SiloWorld, test: Interactions) -> Blocks:
    """The blocks that owners would have of held-out interactions with their items, without anything
    drawn."""
    known = test.select(test.items < len(world.catalogue))
    least = None if known.ratings is None else world.config.positive_from
    events = Events.of(known, least, world.config.order)
    events, told = world.door.would_leave(events)
    return plan(events, world.table, world.config.theta, told=told)


class OwnersTrial(Protocol):
    """A federation of real processes on this machine, made from a world and a folder."""

    def train(self, report: Report) -> DriftModel:
        """All epochs; goes on from where its folder is. Rows of users without events are 0."""
        ...

    def rounds(self) -> list[Mapping[str, Any]]:
        """How each round ended, and who was silent."""
        ...


# --- who holds what ------------------------------------------------------------------------------


def owners_of(dataset: Dataset, by: Sharing) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """The owners' names, and which item of the data they hold: [items, owners]. An owner for every
    category, and one for items without any, where there are such; or one for everything."""
    if by == "one":
        return (ONE,), np.ones((dataset.interactions.n_items, 1), dtype=bool)
    names, member = dataset.category_names(), dataset.category_matrix()
    if not names:
        raise ConfigError(
            f"the items of {dataset.name} have no categories to share them out by; set "
            'owners.by = "one"'
        )
    rest = ~member.any(axis=1)
    if not rest.any():
        return names, member
    if OTHER in names:
        member[:, names.index(OTHER)] |= rest
        return names, member
    return (*names, OTHER), np.column_stack([member, rest])


# --- what it comes to -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """What an epoch of a world comes to."""

    blocks: int
    updates: int
    rounds: int
    """0 where owners are served at once, or in turn."""
    user_rows: int
    item_rows: int
    """Rows that owners ask for, and give a gradient for."""
    members: int
    """Users who take part."""
    without_blocks: int
    """Users whose interactions make no block: all positive, say, or all negative."""
    empty_owners: tuple[str, ...]
    """Categories without an item in training; nobody stands for them."""
    withheld: int = 0
    """Items at owners of which no row ever leaves, since too few people touch them."""


def federated(world: SiloWorld, blocks: Blocks, members: int, empty: tuple[str, ...]) -> EpochFacts:
    config, withheld = world.config, 0
    rounds = 0 if blocks.rounds is None else len(blocks.rounds) - 1
    if not config.sums_over_people:
        updates, (users, items) = blocks.steps, rows_moved(blocks)
    else:  # every owner speaks in every round, of all its items
        rounds = -(-len(world.departed.events) // config.window) if config.window else 0
        updates, users = max(rounds, 1) * len(world.owners), 0
        held = sum(len(world.table.items(k)) for k in world.table.all_owners())
        items = max(rounds, 1) * held
        people = world.aggregated_plan().people(len(world.catalogue))
        withheld = int(((people > 0) & (people < config.min_users)).sum())
    without = members - len(np.unique(blocks.user))
    return EpochFacts(len(blocks), updates, rounds, users, items, members, without, empty, withheld)


def rows_moved(blocks: Blocks) -> tuple[int, int]:
    """Rows of users and of items that owners ask for in an epoch, and give a gradient for."""
    update = np.repeat(np.arange(blocks.steps), np.diff(blocks.updates))
    users = np.unique(update * (int(blocks.user.max(initial=0)) + 1) + blocks.user)
    # The blocks of a plan are without gaps: positives follow their negatives.
    sizes = blocks.spans[:, 3] - blocks.spans[:, 0]
    at = np.repeat(blocks.spans[:, 0] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    most = int(blocks.entries.max(initial=0)) + 1
    items = np.unique(np.repeat(update, sizes) * most + blocks.entries[at])
    return len(users), len(items)
