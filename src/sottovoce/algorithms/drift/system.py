"""DRIFT: data owners hold items and users' blocks, an orchestrator holds the model (Nommay 2022).

    user ──(interaction)──▶ every data owner that holds the item
    data owner ──(which rows?)──▶ orchestrator ──(rows)──▶ data owner ──(gradients)──▶ orchestrator

The table of who holds which item is public, so that a user finds the owners alone and the
orchestrator sees no interaction. An owner asks for rows when it has Θ finished blocks, whoever
they belong to; the gradients are those of the sum of the blocks' losses (blocks.py), one row for
each user and item in them. Owners are served at once, or, with a `window`, together after every so
many interactions, as organisations far apart are.

What each party sees: an owner the interactions with its own items; the orchestrator the users and
items of each request, and gradients. An item's gradient is a multiple of the vectors of the users
who touched it, and the orchestrator has those: it can tell who it was, and whether she liked it.
Θ does not prevent that; `release = "aggregated"` does (aggregated.py).

With `negatives = "untouched"` owners also draw items of theirs that she has not touched, so that a
catalogue can be ranked (untouched.py); parties, messages and releases are the same.

The loop over events is in replay.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    ALGORITHMS,
    AlgorithmSettings,
    FactorModel,
    Schedule,
    require_devices,
)
from sottovoce.algorithms.drift import blocks as kernels
from sottovoce.algorithms.drift.blocks import (
    Blocks,
    BlockStep,
    DriftModel,
    EndedBlock,
    Ints,
    Negatives,
    OpenBlock,
    Order,
    Release,
    Ridge,
    first_rows,
    gradient,
    learn,
)
from sottovoce.algorithms.drift.messages import (
    Gradients,
    Interaction,
    KnownRows,
    OwnerTable,
    Row,
    RowRequest,
    Rows,
)
from sottovoce.algorithms.drift.untouched import Drawing, draw_for
from sottovoce.config import require_number, require_whole
from sottovoce.core.links import Link
from sottovoce.core.recommender import FactorScorer, recommend
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, DataError, MessageError, RunError
from sottovoce.rng import Streams

OWNERS = (
    "Sealing keeps interactions from the network, and from nobody else. A data owner reads every "
    "interaction with its items in full: who, what, when, and whether she liked it; an item in "
    "several categories is read by several owners. The orchestrator gets no interaction and still "
    "learns who touched what: owners' requests name the users and items of their blocks, and an "
    "item's gradient is a multiple of the vectors of the users behind it, which it holds, so that "
    "it can tell who it was and whether she liked it. Waiting for Θ blocks does not prevent that. "
    "The ledger therefore books an unbounded privacy cost for everything. Who must not be read can "
    "refuse owners, or take no part. See `sottovoce docs privacy`."
)
AGGREGATED_OWNERS = (
    "Sealing keeps interactions from the network. A data owner reads every interaction with its "
    "items in full: who, what, when, and whether she liked it. The orchestrator gets sums over "
    "many people, whose vectors it does not hold; our attacks on it do no better than guessing. "
    "There is no noise in the sums and no ε: they tell about how many touched an item and liked "
    "it. Who must not be read can refuse owners, or take no part. See `sottovoce docs privacy`."
)


@dataclass(frozen=True, slots=True)
class OwnerRelease:
    """What data owners send of what they have learnt."""

    over_people: bool
    """Whether a row is a sum over people, none of whom is named. Owners then keep users' vectors,
    the orchestrator knows no user, and users rank at home."""
    caveat: str
    remedies: tuple[str, ...] = ()


RELEASES: Mapping[str, OwnerRelease] = {
    "printed": OwnerRelease(False, OWNERS),
    "aggregated": OwnerRelease(True, AGGREGATED_OWNERS, ("aggregated",)),
}


@ALGORITHMS.register("drift")
@dataclass(frozen=True, slots=True)
class DRIFTConfig(AlgorithmSettings):
    family: ClassVar[Literal["devices", "owners"]] = "owners"
    releases: ClassVar[tuple[str, ...]] = ()
    links: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ("refused_owners", "never_send")
    embedding_size: int = 4
    """Length of a user's or item's vector."""
    learning_rate: float = 0.005
    """Step size."""
    reg: float = 0.01
    """Pull of all rows to 0; μ."""
    ridge: Ridge = "rows"
    """The pull counts once for every row of a block, or is averaged over its pairs."""
    theta: int = 2
    """Finished blocks with which an owner asks for an update; Θ."""
    epochs: int = 200
    """Passes over all interactions."""
    order: Order = "time"
    """A pass goes through all interactions in the order of time, or user by user."""
    positive_from: float = 3.0
    """Interactions with at least this rating are positive, the others negative; 3 as printed."""
    window: int = 0
    """0: an owner is served as soon as an update is due, as in the thesis. Otherwise all owners
    with a due update are served together after every so many interactions, from the same rows."""
    max_age: int = 100
    """Gradients of rows that are more versions old than this are refused. Updates of one round
    start from the same rows and do not make each other older."""
    release: Release = "printed"
    """As printed, or sums over people; window = 0 is then a whole epoch (aggregated.py)."""
    min_users: int = 10
    """"aggregated": how many people are behind every row that an owner sends, at least. Those for
    whom an item was merely drawn do not count."""
    negatives: Negatives = "touched"
    """What positives are compared with: "touched", as printed, is what the user touched and did not
    like; with "untouched", ours, owners also draw items of theirs that she has not touched, and
    the catalogue can be ranked (untouched.py)."""
    negatives_per_positive: int = 10
    """"untouched": how many items an owner draws for a positive."""
    init_scale: float | None = None
    """Standard deviation of the initial values, around 0. If it is not given, they are uniform on
    [0, 1) with "touched", as printed, and have 0.05 with "untouched"."""

    def __post_init__(self) -> None:
        require_whole("embedding_size", self.embedding_size, 1, 4096)
        require_whole("theta", self.theta, 1)
        require_whole("epochs", self.epochs, 1, 1_000_000)
        require_whole("window", self.window, 0)
        require_whole("max_age", self.max_age, 0)
        require_whole("min_users", self.min_users, 1, 1_000_000)
        require_number("positive_from", self.positive_from, -1e9, 1e9)
        if self.order not in ("user", "time"):
            raise ConfigError(f'order must be "user" or "time", not {self.order!r}')
        if self.release not in RELEASES:
            raise ConfigError(f'release is "printed" or "aggregated", not {self.release!r}')
        if self.negatives not in get_args(Negatives):
            raise ConfigError(f'negatives is "touched" or "untouched", not {self.negatives!r}')
        require_whole("negatives_per_positive", self.negatives_per_positive, 1, 1_000)
        if self.init_scale is not None:
            require_number("init_scale", self.init_scale, 0.0, 10.0)
        self.step()

    @property
    def system(self) -> str:
        """Its name in tables."""
        return "DRIFT, untouched negatives" if self.draws else "DRIFT"

    @property
    def draws(self) -> bool:
        """Whether owners draw negatives."""
        return self.negatives == "untouched"

    @property
    def spread(self) -> float | None:
        """Standard deviation of the initial values around 0; None for those on [0, 1)."""
        return 0.05 if self.init_scale is None and self.draws else self.init_scale

    @property
    def start(self) -> np.float32:
        """Every number of every vector at the start, where owners keep them: the mean of what rows
        start as."""
        return np.float32(0.5 if self.spread is None else 0.0)

    def drawing(self, rng: Streams, *, known: bool) -> Drawing | None:
        """How owners draw in a pass, the first one or a later one (`known`); None where they do
        not."""
        return Drawing(rng, self.negatives_per_positive, known) if self.draws else None

    def to_table(self) -> dict[str, Any]:
        """For other parties; what only drawn negatives need is left out while it is as by
        default."""
        table, plain = asdict(self), DRIFTConfig()
        ours = ("negatives", "negatives_per_positive", "init_scale")
        same = [name for name in ours if table[name] == getattr(plain, name)]
        return {name: value for name, value in table.items() if name not in same}

    def searched(self) -> Mapping[str, str]:
        return {
            "learning_rate": "log:0.0005:0.05",
            "reg": "log:0.001:0.1",
            "embedding_size": "4,8,16,32",
        }

    def plan(self, devices: int, positives: int) -> Schedule:
        """A round is an epoch of all users."""
        require_devices(devices)
        return Schedule(devices, positives, devices, 0, 1, self.epochs)

    def build_under(self, release: Any, link: Link | None, triples: int) -> FactorModel:
        raise ConfigError("drift has data owners, and no server for devices")

    def advice(self, cohort_size: int) -> str:
        if self.draws:
            return "algorithm.learning_rate, negatives_per_positive and embedding_size matter most"
        return (
            "it learns to put what a user liked before what she disliked, and never compares "
            "either with items that she has not touched, which are most of the catalogue; "
            'algorithm.negatives = "untouched" does'
        )

    @property
    def remedies(self) -> tuple[str, ...]:
        return RELEASES[self.release].remedies

    @property
    def as_printed(self) -> bool:
        return self.release == "printed" and not self.draws

    @property
    def sums_over_people(self) -> bool:
        """Whether owners send sums over people, and keep the users' vectors."""
        return RELEASES[self.release].over_people

    def caveats(self, link: Link | None = None) -> tuple[str, ...]:
        return (RELEASES[self.release].caveat,)

    def step(self) -> BlockStep:
        return BlockStep(self.learning_rate, self.reg, self.ridge)

    def epoch(self, model: DriftModel, blocks: Blocks) -> None:
        """One pass over the blocks, in place."""
        learn(model, blocks, self.step())
        model.check()


# --- the user's half -----------------------------------------------------------------------------


class User(Redacted):
    """Whoever interacts. Knows the public table, and addresses the owners herself. Which of her
    messages leave is for her door (parties/silo_door.py)."""

    def __init__(self, number: int, table: OwnerTable) -> None:
        self.number = number
        self._table = table

    def interact(self, item: int, positive: bool, time: int) -> list[Interaction]:
        """A message to each owner of the item, in the order of their numbers."""
        return [
            Interaction(owner, self.number, item, positive, time)
            for owner in self._table.owners(item)
        ]


# --- the data owner's half -----------------------------------------------------------------------


class Stream(NamedTuple):
    """What an owner keeps of a user's stream: the time of the last event, and the open block."""

    clock: int
    negatives: tuple[int, ...]
    positives: tuple[int, ...]


Saved = tuple[int, EndedBlock]
"""A finished block and its user."""


class Owner(Redacted):
    """One organisation: its items, and the blocks of the users who touched them.

    The blocks of an update are in the order of their users, one user's in the order in which they
    ended; so an update does not depend on whose message came first.
    """

    def __init__(
        self,
        number: int,
        items: Iterable[int],
        config: DRIFTConfig,
        rng: Streams | None = None,
    ) -> None:
        """`rng` is what it draws from, where it does; nobody else has it."""
        if config.draws and rng is None:
            raise ConfigError("a data owner that draws negatives needs a stream of its own")
        self.number = number
        self._items = set(items)
        self._config = config
        self._rng = rng
        self._touched: dict[int, set[int]] = {}
        self._sorted: Ints | None = None
        self._open: dict[int, OpenBlock] = {}
        self._clock: dict[int, int] = {}
        self._saved: list[Saved] = []
        self._asked: list[Saved] = []
        self._users: set[int] = set()

    @classmethod
    def restore(
        cls,
        number: int,
        items: Iterable[int],
        config: DRIFTConfig,
        users: Iterable[int],
        streams: Mapping[int, Stream],
        saved: Sequence[Saved],
        asked: Sequence[Saved],
        rng: Streams | None = None,
        touched: Mapping[int, Iterable[int]] | None = None,
    ) -> Owner:
        """An owner as `users`, `stream`, `saved`, `asked` and `touched` showed it."""
        owner = cls(number, items, config, rng)
        owner._touched = {user: set(known) for user, known in (touched or {}).items()}
        owner._users = set(users)
        owner._clock = {user: stream.clock for user, stream in streams.items()}
        owner._open = {
            user: OpenBlock(list(stream.negatives), list(stream.positives))
            for user, stream in streams.items()
        }
        owner._saved, owner._asked = list(saved), list(asked)
        return owner

    @property
    def due(self) -> bool:
        """Whether there are Θ finished blocks."""
        return len(self._saved) >= self._config.theta

    @property
    def users(self) -> frozenset[int]:
        """Of whom it may hold anything."""
        return frozenset(self._users)

    @property
    def items(self) -> frozenset[int]:
        return frozenset(self._items)

    @property
    def saved(self) -> tuple[Saved, ...]:
        """Finished blocks that wait, oldest first."""
        return tuple(self._saved)

    @property
    def asked(self) -> tuple[Saved, ...]:
        """Finished blocks whose rows were asked for, until `settle`."""
        return tuple(self._asked)

    def touched(self, user: int) -> frozenset[int]:
        """What she has touched here, where the owner draws what she has not; else nothing."""
        return frozenset(self._touched.get(user, ()))

    def stream(self, user: int) -> Stream | None:
        """What is kept of the user's stream; nothing where there is none."""
        if user not in self._clock:
            return None
        block = self._open[user]
        return Stream(self._clock[user], tuple(block.negatives), tuple(block.positives))

    def admit(self, user: int) -> None:
        """From here on this user's interactions are taken."""
        self._users.add(user)

    def forget(self, user: int) -> None:
        """The user leaves; nothing of her remains here."""
        self._users.discard(user)
        self._open.pop(user, None)
        self._clock.pop(user, None)
        self._touched.pop(user, None)
        self._saved = [(u, b) for u, b in self._saved if u != user]
        self._asked = [(u, b) for u, b in self._asked if u != user]

    def add_items(self, items: Iterable[int]) -> None:
        self._items.update(items)
        self._sorted = None

    def withdraw_items(self, items: Iterable[int]) -> None:
        """These items leave every block; a block that loses a side goes with them."""
        gone = frozenset(items)
        self._items -= gone
        self._sorted = None
        for known in self._touched.values():
            known -= gone
        for block in self._open.values():
            block.remove(gone)
        self._saved = [(u, left) for u, b in self._saved if (left := b.without(gone))]
        self._asked = [(u, left) for u, b in self._asked if (left := b.without(gone))]

    def receive(self, interaction: Interaction) -> bool:
        """Takes one interaction; whether an update is due. Refuses it whole, and changes nothing,
        where it is not for this owner or comes before the user's last one."""
        if interaction.owner != self.number:
            raise MessageError("the interaction is addressed to another data owner")
        if interaction.user not in self._users:
            raise MessageError("the interaction comes from a user who has not joined this owner")
        if interaction.item not in self._items:
            raise MessageError("the interaction is with an item that this owner does not hold")
        if interaction.time < self._clock.get(interaction.user, interaction.time):
            raise MessageError("the interaction is older than one that the user sent before it")
        self._clock[interaction.user] = interaction.time
        block = self._open.setdefault(interaction.user, OpenBlock())
        add = self._add_single if self._config.draws else _add
        self._save(interaction.user, add(block, interaction))
        return self.due

    def end_stream(self, user: int) -> bool:
        """The user's stream is over, which ends her block; whether an update is due."""
        self._clock.pop(user, None)
        block = self._open.pop(user, None)
        if block is not None:
            self._save(user, block.end())
        return self.due

    def request(self) -> RowRequest | None:
        """Asks for the rows of all finished blocks; nothing where there are none."""
        if self._asked:
            raise RunError("the owner waits for the answer to a request; settle that one first")
        self._asked, self._saved = sorted(self._saved, key=_user_of), []
        return self.request_again()

    def request_again(self) -> RowRequest | None:
        """The request that was made last, less whatever has left since; nothing where none is."""
        return RowRequest(self.number, *_named(self._asked)) if self._asked else None

    def gradients(self, rows: Rows) -> Gradients | None:
        """From the rows that were asked for. Nothing where everybody concerned has left since."""
        if not self._asked:
            return None
        users, items = _named(self._asked)
        if not _among(users, rows.users) or not _among(items, rows.items):
            raise MessageError("the answer lacks rows that were asked for")
        rows.check(self._config.embedding_size)
        local = DriftModel(
            rows.user_rows[np.searchsorted(rows.users, users)],
            rows.item_rows[np.searchsorted(rows.items, items)],
        )
        by_users, by_items = gradient(
            local, _numbered(self._asked, users, items), self._config.step()
        )
        return Gradients(
            self.number,
            rows.version,
            users,
            items,
            by_users.astype(np.float32),
            by_items.astype(np.float32),
        )

    def settle(self, accepted: bool) -> None:
        """After the orchestrator has answered: the blocks are done with, or wait for the next
        request."""
        if not accepted:
            self._saved = self._asked + self._saved
        self._asked = []

    def _add_single(self, block: OpenBlock, said: Interaction) -> EndedBlock | None:
        """A positive ends a block, with the dislikes before it and what is drawn."""
        known = self._touched.setdefault(said.user, set())
        known.add(said.item)
        if not said.positive:
            block.negatives.append(said.item)
            return None
        if self._rng is None:
            raise ConfigError("a data owner that draws negatives needs a stream of its own")
        if self._sorted is None:
            self._sorted = np.array(sorted(self._items), dtype=np.int64)
        many = self._config.negatives_per_positive
        drawn = draw_for(self._rng, said.user, said.item, self._sorted, known, many)
        negatives, block.negatives = tuple(block.negatives), []
        return EndedBlock(negatives, (said.item,), drawn) if negatives or drawn else None

    def _save(self, user: int, ended: EndedBlock | None) -> None:
        if ended is not None:
            self._saved.append((user, ended))


def _add(block: OpenBlock, said: Interaction) -> EndedBlock | None:
    return block.add(said.item, said.positive)


def _user_of(saved: Saved) -> int:
    return saved[0]


def _among(wanted: Ints, there: Ints) -> bool:
    """Whether all are there; mostly they are the same."""
    return np.array_equal(wanted, there) or bool(np.isin(wanted, there).all())


def _named(blocks: list[Saved]) -> tuple[Ints, Ints]:
    """The users and the items of blocks, ascending, each once."""
    users = np.unique(np.array([user for user, _ in blocks], dtype=np.int64))
    items = np.array([i for _, b in blocks for i in b.lower + b.positives], dtype=np.int64)
    return users, np.unique(items)


def _numbered(blocks: list[Saved], users: Ints, items: Ints) -> Blocks:
    """The blocks in the numbering of these users and items."""
    user = np.searchsorted(users, np.array([u for u, _ in blocks]))
    entries = np.array([i for _, b in blocks for i in b.lower + b.positives])
    sizes = np.array([(len(b.lower), len(b.positives)) for _, b in blocks])
    stop = np.cumsum(sizes.sum(axis=1))
    middle = stop - sizes[:, 1]
    spans = np.stack([middle - sizes[:, 0], middle, middle, stop], axis=1)
    return Blocks.one_by_one(user, spans, np.searchsorted(items, entries).astype(np.int32))


# --- the orchestrator's half ---------------------------------------------------------------------


class Orchestrator(Redacted):
    """Holds the model and the public table; recommends. Sees no interaction."""

    def __init__(self, config: DRIFTConfig, rng: Streams) -> None:
        self.table = OwnerTable()
        self.version = 0
        self._config = config
        self._rng = rng
        self._size = config.embedding_size
        self._users = KnownRows(self._size)
        self._items = KnownRows(self._size)

    @classmethod
    def restore(
        cls,
        config: DRIFTConfig,
        rng: Streams,
        version: int,
        table: OwnerTable,
        users: Mapping[int, Row],
        items: Mapping[int, Row],
    ) -> Orchestrator:
        """An orchestrator as its table and `known_rows` showed it at that version."""
        orchestrator = cls(config, rng)
        orchestrator.version, orchestrator.table = version, table
        for known, rows in ((orchestrator._users, users), (orchestrator._items, items)):
            for number, row in rows.items():
                known.put(number, row)
        return orchestrator

    @property
    def model(self) -> DriftModel:
        """A copy; rows of numbers that nobody has are 0."""
        return DriftModel(self._users.table.copy(), self._items.table.copy())

    def known_rows(self, kind: Literal["users", "items"]) -> Iterator[tuple[int, Row]]:
        """The number and the row of everybody who has joined, or of every item that ever did."""
        yield from (self._users if kind == "users" else self._items)

    def join_user(self, user: int) -> None:
        """A user who comes back starts anew."""
        if not self._users.has([user]):
            self._users.put(user, self._first("users", user))

    def leave_user(self, user: int) -> None:
        """The user's row is erased."""
        self._users.erase(user)

    def add_items(self, owner: int, items: Iterable[int]) -> None:
        """An owner joins with these items, or brings new ones. An item that was there before has
        the row it had."""
        listed = list(items)
        self.table.add(owner, listed)
        for item in listed:
            if not self._items.has([item]):
                self._items.put(item, self._first("items", item))

    def _first(self, kind: Literal["users", "items"], number: int) -> Row:
        row: Row = first_rows(kind, [number], self._size, self._rng, self._config.spread)[0]
        return row

    def withdraw_items(self, owner: int, items: Iterable[int]) -> None:
        """What no owner holds any more is not recommended; its row waits for its return."""
        self.table.withdraw(owner, items)

    def leave_owner(self, owner: int) -> None:
        self.table.withdraw(owner, self.table.items(owner))

    def answer(self, request: RowRequest) -> Rows:
        """The rows that an owner asks for."""
        self._check(request.owner, request.users, request.items)
        return Rows(
            self.version,
            request.users,
            request.items,
            self._users.table[request.users],
            self._items.table[request.items],
        )

    def fold(self, gradients: Gradients, began: int | None = None) -> None:
        """One step along the gradients. Refuses them whole where anything is off. `began` is the
        version before the first fold of the round that they belong to, where they belong to one."""
        self._check(gradients.owner, gradients.users, gradients.items)
        gradients.check(self._size)
        age = (self.version if began is None else began) - gradients.version
        if not 0 <= age <= self._config.max_age:
            raise MessageError(
                f"the gradients belong to rows of version {gradients.version}, the model is at "
                f"{self.version} and takes them up to {self._config.max_age} later; ask again"
            )
        rate = self._config.learning_rate
        kernels.move_rows(self._users.table, gradients.users, gradients.user_rows, rate)
        kernels.move_rows(self._items.table, gradients.items, gradients.item_rows, rate)
        self.version += 1

    def recommend(
        self, user: int, seen: Iterable[int], n: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The n best items that some owner holds, less those the user names as seen."""
        if not self._users.has([user]):
            raise DataError("nobody of that number has joined")
        bias = np.full(len(self._items.table), -np.inf, dtype=np.float32)
        bias[list(self.table)] = 0.0
        scorer = FactorScorer(self._users.table[[user]], self._items.table, bias)
        return recommend(scorer, 0, np.array(sorted(seen), dtype=np.int32), n)

    def _check(self, owner: int, users: Ints, items: Ints) -> None:
        if owner not in self.table.all_owners():
            raise MessageError(f"data owner {owner} has not joined")
        if not self._users.has(users) or not self.table.holds(owner, items.tolist()):
            raise MessageError("the message names a user or an item that the owner cannot have")
