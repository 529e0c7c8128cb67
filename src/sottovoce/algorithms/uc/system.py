"""UC-FedRec (Hu & Song 2024): both halves, for any of its recommenders.

| here        | paper | meaning                                                              |
|-------------|-------|----------------------------------------------------------------------|
| vectors     | e_u   | users' embeddings, which stay on their devices                       |
| items       | θ, φ  | items' embeddings, towers and filters, as one table (`uc_rows`)      |
| strength    | β     | weight of hiding against that of good recommendations, of each user  |

Each round: some devices take a few steps of local training (`uc_local`) and send how the rows they
used have changed; the server moves a row by the mean over those who sent it.

What it promises. An attribute that a user hides, or that her device does not know, trains nothing:
its value is not read. Filters trained by those who share an attribute pull the embeddings of those
who hide it to where the filter takes them for somebody else. That is no guarantee: how much other
attackers can still tell is measured (`attacks.attributes`), and one who knows the filter and looks
where it does not tells much more (`attacks.filters.unmasked`). Without noise a server reads in a
filter's update the class of who sent it (and of a filter of moments, her embedding), and in its
absence that she hides it; item rows are near multiples of her embedding, and name the items that
she used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.algorithms.base import Accelerator, CrossDevice
from sottovoce.algorithms.uc.networks import UCModel
from sottovoce.algorithms.uc.options import UCOptions
from sottovoce.algorithms.uc.protect import REASONS, Stopping, protect
from sottovoce.algorithms.uc.rows import ClientUpdates as Changes
from sottovoce.algorithms.uc.rows import ModelLayout
from sottovoce.algorithms.uc.training import Clients, LocalTraining, train
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.consent import Consent, ShareRule
from sottovoce.core.hiding import Hidden
from sottovoce.core.messages import GRID, Aggregate, ModelView, SummedReports, Updates
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.errors import ConfigError, Diverged, MessageError
from sottovoce.rng import Streams

_CPU = torch.device("cpu")
_FEW = 16
"""Of so many devices, messages cost no more than sums."""
_NUMBERS = 1 << 24
"""Numbers of clients' items that are in memory at once, a few times over, on the CPU."""
_HOME_STEPS = 200
_COOLEST = 0.02


@dataclass(frozen=True, slots=True)
class UC(CrossDevice):
    """Both halves of UC-FedRec, under a release that clips as `norm` says."""

    sums: ClassVar[bool] = True
    sums_alike: ClassVar[bool] = False
    config: UCOptions
    clip: float
    norm: Literal["l2", "l1", "scalar"]
    counted: bool = True
    """Whether rows count their senders, so that sums can be divided by that."""

    @property
    def row_bytes(self) -> int:
        """A row's number and its values, four bytes each."""
        return 4 + 4 * self.config.embedding_size

    def layout(self, table: NDArray[np.float32]) -> ModelLayout:
        """Of a model with so many rows."""
        networks = ModelLayout.of(self.config, 0).n_rows
        return ModelLayout.of(self.config, len(table) - networks)

    def model(
        self, table: NDArray[np.float32], vectors: NDArray[np.float32], place: torch.device = _CPU
    ) -> UCModel:
        """The networks that a published table and users' embeddings stand for."""
        return self.layout(table).model(table, vectors, place)

    # --- server -----------------------------------------------------------------------------------

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]:
        return ModelLayout.of(self.config, n_items).start(self.config.init_scale, rng)

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A row moves by the mean change over the devices that sent it; others stay. Where rows do
        not count their senders, by the sum of changes over as many as send a row on average."""
        if not isinstance(aggregate, SummedReports):
            raise MessageError("UC-FedRec folds sums of rows, not randomised reports")
        size, after = self.config.embedding_size, items.copy()
        sums, row = aggregate.sums, aggregate.item
        if self.counted:
            # What a device says of itself cannot count for more than one, nor for less.
            senders = np.clip(np.rint(sums[:, size] / GRID), 1, max(1, aggregate.devices))
        else:
            senders = self._usual_senders(items, aggregate.devices)[row]
        sent = sums.any(axis=1)
        change = sums[sent, :size] / GRID / senders[sent, None]
        after[row[sent], :size] = (after[row[sent], :size] + change).astype(np.float32)
        return after, memory

    def _usual_senders(self, items: NDArray[np.float32], devices: int) -> NDArray[np.float64]:
        """Of each row of the model, as far as it follows from what is public: a network's is sent
        by all, and of items each device sends as many as it draws."""
        c, n_items = self.config, self.layout(items).n_items
        drawn = min(n_items, c.local_epochs * c.pairs * (1 + c.negatives))
        usual = np.full(len(items), float(max(1, devices)))
        usual[:n_items] = max(1.0, devices * drawn / n_items)
        return usual

    # --- device -----------------------------------------------------------------------------------

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]:
        uniform = rng.child("init-users").uniform(users, self.config.embedding_size)
        return (self.config.init_scale * (2.0 * uniform - 1.0)).astype(np.float32)

    def device_check(self, consent: Consent) -> None:
        """Raises where somebody hides an attribute that has no filter."""
        self.config.hidden(consent)

    def device_scorer(self, vectors: NDArray[np.float32], items: NDArray[np.float32]) -> Scorer:
        model = self.model(items, vectors)
        if self.config.recommender == "neumf":
            return NetworkScorer(model)
        users, rows = (part.numpy() for part in model.represent())
        return FactorScorer(users, rows, np.zeros(len(rows), dtype=np.float32))

    def representations(
        self, vectors: NDArray[np.float32], items: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """h_u [users, width], which filters read."""
        found: NDArray[np.float32] = self.model(items, vectors).represent()[0].numpy()
        return found

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        """The embedding alone, by the same steps as in a round; what nobody sees hides nothing."""
        how = replace(
            self.training(0),
            epochs=_HOME_STEPS,
            tower_rate=0.0,
            item_rate=0.0,
            filter_rate=0.0,
            dropout=0.0,
            clip=float("inf"),
            norm="l2",
        )
        everyone = np.arange(len(cohort), dtype=np.int64)
        for rows in self._batches(everyone, how):
            clients = self.clients(cohort, rows)
            clients = replace(clients, strength=np.zeros_like(clients.strength))
            model = self.model(view.items, cohort.vectors)
            updates = train(model, clients, how, rng.child("home", view.round), self.priors())
            cohort.vectors[rows] += updates.users.numpy()

    def device_hide(
        self, view: ModelView, cohort: Cohort, hides: NDArray[np.bool_], names: Sequence[str]
    ) -> list[Hidden]:
        """Central protection (Eq. 12), by the published filters. The sum over what a user hides
        anew falls; what she hid before is left to the rounds that come."""
        c, found, targets = self.config, [], self._targets()
        known = [name for name in c.names if name in names]
        asked = hides[:, [list(names).index(name) for name in known]]
        model = self.model(view.items, cohort.vectors)
        with one_thread():
            for wish in np.unique(asked, axis=0):
                rows = np.flatnonzero((asked == wish).all(axis=1))
                wanted = [name for name, on in zip(known, wish, strict=True) if on]
                if not wanted:
                    continue
                target = [targets[c.names.index(name)] for name in wanted]
                moved = protect(model, rows, wanted, target, Stopping(furthest=c.furthest))
                cohort.vectors[rows] = moved.embeddings.numpy()
                found += [
                    Hidden(
                        user=int(cohort.users[row]),
                        round=view.round,
                        attributes=tuple(wanted),
                        before=float(moved.before[place]),
                        after=float(moved.after[place]),
                        moved=float(moved.moved[place]),
                        steps=int(moved.steps[place]),
                        reason=REASONS[moved.reason[place]],
                    )
                    for place, row in enumerate(rows.tolist())
                ]
        return sorted(found, key=lambda one: one.user)

    def _targets(self) -> list[torch.Tensor | None]:
        """What filters should say of those who hide an attribute, of each."""
        prior = self.config.target == "prior"
        return [one if prior else None for one in self.priors()]

    def device_learn(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64], rng: Streams
    ) -> Updates:
        """A device in company learns what it learns alone, bit for bit."""
        layout, stream = self.layout(view.items), rng.child("learn", view.round)
        how, model = self.training(view.round), layout.model(view.items, cohort.vectors, _CPU)
        sent: list[NDArray[np.int64]] = []
        values: list[NDArray[np.int64]] = []
        moved = []
        with one_thread():
            for part in self._alike(rows, how):
                clients, masks = self.clients(cohort, part), self.masks(cohort, part, rng)
                updates = train(model, clients, how, stream, self.priors(), masks)
                moved.append(updates.users.numpy())
                for numbers, changes in layout.messages(updates, self.counted):
                    sent.append(numbers.numpy())
                    values.append(changes.numpy())
        cohort.vectors[rows] += np.concatenate(moved)
        device = np.repeat(np.arange(len(rows)), [len(numbers) for numbers in sent])
        item = np.concatenate(sent)
        entry = cohort.history.find(rows[device], item)
        return Updates(
            row=device.astype(np.int32),
            entry=entry,
            item=item.astype(np.int32),
            positive=entry >= 0,
            values=np.concatenate(values).astype(np.int32),
        )

    def prefers_messages(self, view: ModelView, devices: int) -> bool:
        return devices <= _FEW

    def device_learn_summed(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
        threads: int,
    ) -> tuple[NDArray[np.int64], RowCounts]:
        """Equal to `device_learn` up to the rounding of single precision."""
        withheld = rule.allowed if len(rule.allowed) else None
        return self.learn_on(_CPU, view, cohort, rows, rng, allowed=withheld)

    def learn_on(
        self,
        place: torch.device,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rng: Streams,
        perturb: Callable[[Changes, NDArray[np.int64]], Changes] | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int64], RowCounts]:
        """A round of these devices as large operations on `place`. What they send passes through
        `perturb`, with the devices' rows, before it is added up. Of items that they have, rows
        leave for interactions that are `allowed` alone; all, where it is not given."""
        layout, how = self.layout(view.items), self.training(view.round)
        stream = rng.child("learn", view.round)
        model = layout.model(view.items, cohort.vectors, place)
        total = torch.zeros(view.items.shape, dtype=torch.int64, device=place)
        positive, negative = [], []
        for part in self._batches(rows, how, place):
            clients = self.clients(cohort, part)
            masks = self.masks(cohort, part, rng).to(place)
            updates = train(model, clients, how, stream, self.priors(), masks)
            cohort.vectors[part] += updates.users.cpu().numpy()
            if self.norm == "l1" and not layout.within(updates, self.clip):
                raise Diverged("an update was not clipped as it should be; nothing was sent")
            if allowed is not None:
                rows_sent = updates.item_rows.cpu().numpy()
                entry = cohort.history.find(np.repeat(part, rows_sent.shape[1]), rows_sent.ravel())
                held = ((entry >= 0) & ~allowed[entry]).reshape(rows_sent.shape)
                updates = updates.without(torch.from_numpy(held).to(place))
            sent = updates if perturb is None else perturb(updates, part)
            total += layout.sums(sent, self.counted)
            items = (updates.item_rows >= 0).sum(dim=1)
            positive.append(updates.liked.cpu().numpy())
            others = (items - updates.liked).cpu().numpy()
            negative.append(others + layout.network_rows(clients.shared()))
        counts = RowCounts(
            np.concatenate(positive).astype(np.int32), np.concatenate(negative).astype(np.int32)
        )
        return total.cpu().numpy(), counts

    def accelerated(
        self,
        cohort: Cohort,
        n_items: int,
        rule: ShareRule,
        rng: Streams,
        scales: NDArray[np.float64],
        device: str,
    ) -> Accelerator:
        from sottovoce.algorithms.uc.accelerated import UCOnTorch

        if len(rule.allowed):
            raise ConfigError(
                "somebody shares a part of her positive items, which is sorted out on the CPU; "
                "leave it on --device cpu"
            )
        return UCOnTorch.load(self.learn_on, cohort, rng, scales, device)

    def training(self, round: int) -> LocalTraining:
        """How devices learn in this round."""
        c, factor = self.config, self.pace(round)
        return LocalTraining(
            epochs=c.local_epochs,
            pairs=c.pairs,
            negatives=c.negatives,
            rate=c.learning_rate * factor,
            tower_rate=c.learning_rate * factor,
            item_rate=c.item_rate * factor,
            filter_rate=c.filter_rate * factor,
            momentum=c.momentum,
            reg=c.reg,
            dropout=c.dropout,
            clip=self.clip,
            norm=self.norm,
            target=c.target,
        )

    def pace(self, round: int) -> float:
        """What is left of the step sizes in this round."""
        last = self.config.cooling * self.config.rounds
        left = (self.config.rounds - round) / last if last else 1.0
        return float(min(1.0, max(_COOLEST, left)))

    def clients(self, cohort: Cohort, rows: NDArray[np.int64]) -> Clients:
        """These devices as local training takes them."""
        consent = cohort.consent.take(rows)
        return Clients(
            rows,
            cohort.users[rows],
            cohort.history.take_users(rows),
            cohort.labels[rows],
            self.config.hidden(consent),
            consent.strength_of(self.config.names),
        )

    def masks(self, cohort: Cohort, rows: NDArray[np.int64], rng: Streams) -> torch.Tensor:
        """Whom each device pretends to be; `rng` is the devices' own, which no server knows."""
        drawn = rng.child("mask").normal(cohort.users[rows], self.config.embedding_size)
        return torch.from_numpy(drawn.astype(np.float32))

    def priors(self) -> list[torch.Tensor]:
        """The classes' public shares, of each attribute."""
        return [torch.tensor(a.shares, dtype=torch.float32) for a in self.config.attributes]

    def _alike(self, rows: NDArray[np.int64], how: LocalTraining) -> Iterator[NDArray[np.int64]]:
        """Batches in which company changes nothing, as `train` promises of multiples of 4 pairs."""
        if how.pairs % 4 == 0 and self.config.recommender != "gnn":
            yield from self._batches(rows, how)
        else:
            yield from rows[:, None]

    def _batches(
        self, rows: NDArray[np.int64], how: LocalTraining, place: torch.device = _CPU
    ) -> Iterator[NDArray[np.int64]]:
        each = how.epochs * how.pairs * (1 + how.negatives) * self.config.embedding_size
        step = len(rows) if place.type == "cuda" else max(1, _NUMBERS // each)
        for start in range(0, len(rows), max(1, step)):
            yield rows[start : start + step]


@dataclass(frozen=True, slots=True, repr=False)
class NetworkScorer:
    """Scores that are no product of a user's and an item's factors."""

    model: UCModel

    @property
    def n_items(self) -> int:
        return len(self.model.items)

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.model.scores(torch.tensor(users)).numpy()
        return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums do not depend on the number of processors within."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
