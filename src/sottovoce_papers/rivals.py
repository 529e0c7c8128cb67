"""Published federated recommenders as references to compare with: FedMF, FedNCF, PFedRec, FedRAP;
and a device that learns nothing and only counts what it drew.

All have an item table that the server averages, and ask every client in every round. They differ in
what a client keeps for itself: a vector (FedMF, FedNCF), a score function and its last round's view
of the items (PFedRec), or a table of its own for good (FedRAP). The more a client remembers of the
items that it drew as negatives, the more it can learn of the one that it never drew.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams
from sottovoce_papers.lines import END, Job, Kind, Settings, TrainedSystem
from sottovoce_papers.rival_loop import (
    Params,
    RivalClients,
    RivalSettings,
    RivalWorld,
    Samples,
    first_values,
    train_rival,
)

if TYPE_CHECKING:
    from torch import Tensor

LAYERS = (64, 32, 16, 8)
"""FedNCF's network: the halves of the first are a user's and an item's part."""


# --- FedMF ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FedMF(RivalSettings):
    """Matrix factorisation: users' vectors stay, item rows are averaged. Published for ratings with
    squared errors under homomorphic encryption, which changes no number (Chai, Wang, Chen, Yang:
    Secure Federated Matrix Factorization, 2019); this is the plain version for implicit feedback
    that later papers compare with. A client sends the gradient of all its samples at once."""

    system = "FedMF"

    batch_size: int = 1 << 20
    learning_rate: float = 3.0
    item_rate: float = 1.0
    """Times the number of items."""
    init_scale: float = 0.1

    def begin(self, world: RivalWorld, rng: Streams) -> RivalClients:
        return FedMFClients(_scaled(self, world), world, rng)


class FedMFClients(RivalClients):
    def __init__(self, settings: RivalSettings, world: RivalWorld, rng: Streams) -> None:
        super().__init__(settings, world, rng)
        self.vectors = first_values(
            rng.child("users"), world.n_users, settings.embedding_size, settings.init_scale,
            world.device,
        )  # fmt: skip

    def local(self, users: Tensor) -> Params:
        return {"vector": self.vectors[users]}

    def keep(self, users: Tensor, params: Params) -> None:
        self.vectors[users] = params["vector"]

    def logits(self, params: Params, rows: Tensor) -> Tensor:
        return (rows * params["vector"][:, None]).sum(2)

    def scorer(self) -> Scorer:
        items = self.items.cpu().numpy()
        return FactorScorer(self.vectors.cpu().numpy(), items, np.zeros(len(items), np.float32))


# --- FedNCF --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FedNCF(RivalSettings):
    """NeuMF on devices: users' vectors stay; item rows are averaged over those who have moved them,
    the network over everybody (the decomposed average of Perifanis & Efraimidis: Federated Neural
    Collaborative Filtering, 2022). SGD instead of Adam."""

    system = "FedNCF"

    embedding_size: int = 48
    """16 for the product and 32 for the network."""
    batch_size: int = 1024
    local_epochs: int = 2
    learning_rate: float = 0.3
    item_rate: float = 100.0
    init_scale: float = 0.1

    def __post_init__(self) -> None:
        RivalSettings.__post_init__(self)
        if self.embedding_size <= LAYERS[0] // 2:
            raise ConfigError(f"FedNCF's vectors need more than {LAYERS[0] // 2} numbers")

    def begin(self, world: RivalWorld, rng: Streams) -> RivalClients:
        return FedNCFClients(self, world, rng)

    def sent(self, n_items: int) -> int:
        sizes = itertools.pairwise(LAYERS)
        network = sum((a + 1) * b for a, b in sizes)
        last = self.embedding_size - LAYERS[0] // 2 + LAYERS[-1] + 1
        return 4 * (n_items * self.embedding_size + network + last)


class FedNCFClients(FedMFClients):
    def __init__(self, settings: RivalSettings, world: RivalWorld, rng: Streams) -> None:
        super().__init__(settings, world, rng)
        import torch

        self.network: Params = {}
        product = settings.embedding_size - LAYERS[0] // 2
        sizes = [*itertools.pairwise(LAYERS), (product + LAYERS[-1], 1)]
        for number, (wide, narrow) in enumerate(sizes):
            scale = math.sqrt(2.0 / (wide + narrow))
            stream = rng.child("network", number)
            self.network[f"w{number}"] = first_values(stream, wide, narrow, scale, world.device)
            self.network[f"b{number}"] = torch.zeros(narrow, device=world.device)
        self._added = {name: value * 0.0 for name, value in self.network.items()}
        self._senders = torch.zeros(world.n_items, device=world.device)

    def local(self, users: Tensor) -> Params:
        shared = {
            name: value.expand(len(users), *value.shape).clone()
            for name, value in self.network.items()
        }
        return {**super().local(users), **shared}

    def keep(self, users: Tensor, params: Params) -> None:
        super().keep(users, params)
        for name in self.network:
            self._added[name] += params[name].sum(0)

    def logits(self, params: Params, rows: Tensor) -> Tensor:
        import torch

        half, last = LAYERS[0] // 2, len(LAYERS) - 1
        vector = params["vector"][:, None]
        hidden = torch.cat(
            [vector[..., -half:].expand(*rows.shape[:2], half), rows[..., -half:]], 2
        )
        for number in range(last):
            bias = params[f"b{number}"][:, None]
            hidden = torch.relu(torch.baddbmm(bias, hidden, params[f"w{number}"]))
        both = torch.cat([vector[..., :-half] * rows[..., :-half], hidden], 2)
        return torch.baddbmm(params[f"b{last}"][:, None], both, params[f"w{last}"])[..., 0]

    def gather(self, samples: Samples, before: Tensor, after: Tensor, left: Tensor) -> None:
        super().gather(
            samples, before, after, left * 0.0 + 1.0
        )  # clients that did not move a row do not count
        ones = (samples.pair_item * 0 + 1).to(self._senders.dtype)
        self._senders.index_add_(0, samples.pair_item, ones)

    def fold(self, round: int) -> None:
        self.items = self.items + self._moved / self._senders.clamp(min=1.0)[:, None]
        self._moved, self._senders, self._left = self.items * 0.0, self._senders * 0.0, 0.0
        for name in self.network:
            self.network[name] = self._added[name] / len(self.world.able)
            self._added[name] = self._added[name] * 0.0

    def scorer(self) -> Scorer:
        return ByTorch(self, self._all)

    def _all(self, users: Tensor) -> Tensor:
        import torch

        shared = {name: value[None] for name, value in self.network.items()}
        one = [
            self.logits({"vector": self.vectors[user : user + 1], **shared}, self.items[None])
            for user in users.tolist()
        ]
        return torch.cat(one)


# --- PFedRec -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PFedRec(RivalSettings):
    """A score function of one's own, which stays, on item rows that the server averages and each
    client tunes for itself; it recommends by what it has tuned last (Zhang et al.: Dual
    Personalization on Federated Recommendation, IJCAI 2023)."""

    system = "PFedRec"
    alternating = True

    learning_rate: float = 0.1
    item_rate: float = 8.0
    """Times the number of items."""

    def begin(self, world: RivalWorld, rng: Streams) -> RivalClients:
        return PFedRecClients(_scaled(self, world), world, rng)


class PFedRecClients(RivalClients):
    def __init__(self, settings: RivalSettings, world: RivalWorld, rng: Streams) -> None:
        super().__init__(settings, world, rng)
        import torch

        size = settings.embedding_size
        bound = 1.0 / math.sqrt(size)
        first = rng.child("score").uniform(np.zeros(1, np.int64), size)[0] * 2 * bound - bound
        start = torch.tensor(first.astype(np.float32), device=world.device)
        self.weights = start.expand(world.n_users, size).clone()
        self.offsets = torch.zeros(world.n_users, device=world.device)
        self._base, self._shrunk = self.items, torch.ones_like(self.offsets)
        self._own: list[tuple[Tensor, Tensor]] = []

    def local(self, users: Tensor) -> Params:
        return {"weight": self.weights[users], "offset": self.offsets[users]}

    def keep(self, users: Tensor, params: Params) -> None:
        self.weights[users], self.offsets[users] = params["weight"], params["offset"]

    def logits(self, params: Params, rows: Tensor) -> Tensor:
        return (rows * params["weight"][:, None]).sum(2) + params["offset"][:, None]

    def gather(self, samples: Samples, before: Tensor, after: Tensor, left: Tensor) -> None:
        super().gather(samples, before, after, left)
        self._shrunk[samples.users] = left
        user = samples.users[samples.pair_user]
        score = (after * self.weights[user]).sum(1)
        self._own.append((user * self.world.n_items + samples.pair_item, score))

    def fold(self, round: int) -> None:
        if round < self.settings.rounds - 1:
            self._own.clear()
        else:  # a client recommends by the table that it got, and by what it made of it
            self._base = self.items
        super().fold(round)

    def scorer(self) -> Scorer:
        import torch

        pairs, scores = (torch.cat(part) for part in zip(*self._own, strict=True))
        pairs, order = torch.sort(pairs)
        scores, n_items = scores[order], self.world.n_items

        def every(users: Tensor) -> Tensor:
            table = self.weights[users] @ self._base.T * self._shrunk[users, None]
            low = torch.searchsorted(pairs, users * n_items)
            high = torch.searchsorted(pairs, (users + 1) * n_items)
            for place, (first, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
                table[place, pairs[first:stop] % n_items] = scores[first:stop]
            return table

        return ByTorch(self, every)


# --- FedRAP --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FedRAP(RivalSettings):
    """A table of items of each client's own, which stays, added to one that the server averages;
    the two are driven apart, and the shared one is made sparse, more so with every round (Li, Long,
    Zhou: Federated Recommendation with Additive Personalization, ICLR 2024)."""

    system = "FedRAP"

    batch_size: int = 2048
    local_epochs: int = 10
    learning_rate: float = 0.5
    item_rate: float = 200.0
    apart: float = 0.1
    """λ: the weight of the distance between both tables, which is to grow."""
    sparse: float = 0.1
    """μ: the weight of the absolute values of the shared table."""
    decay: float = 0.97
    """The factor of both rates from round to round."""
    local_decay: float = 0.95
    """The factor of both rates from local step to local step."""

    def begin(self, world: RivalWorld, rng: Streams) -> RivalClients:
        return FedRAPClients(self, world, rng)


class FedRAPClients(PFedRecClients):
    settings: FedRAP

    def __init__(self, settings: FedRAP, world: RivalWorld, rng: Streams) -> None:
        super().__init__(settings, world, rng)
        own = first_values(
            rng.child("own"), world.n_items, settings.embedding_size, settings.init_scale,
            world.device,
        )  # fmt: skip
        self.own = own.expand(world.n_users, *own.shape).clone()

    def rows(self, samples: Samples) -> Tensor:
        import torch

        mine = self.own[samples.users[samples.pair_user], samples.pair_item]
        return torch.cat([mine, self.items[samples.pair_item]], 1)

    def logits(self, params: Params, rows: Tensor) -> Tensor:
        mine, shared = rows.chunk(2, dim=2)
        return super().logits(params, mine + shared)

    def penalty(self, rows: Tensor, round: int) -> Tensor:
        s, grown = self.settings, math.tanh(round / 10.0)
        mine, shared = rows.chunk(2, dim=2)
        away = (mine - shared).square().mean(2)
        return grown * (s.sparse * shared.abs().mean(2) - s.apart * away)

    def rate(self, round: int, steps: Tensor) -> Tensor:
        slower: Tensor = self.settings.decay**round * self.settings.local_decay**steps
        return slower

    def gather(self, samples: Samples, before: Tensor, after: Tensor, left: Tensor) -> None:
        mine, shared = after.chunk(2, dim=1)
        if self.settings.reg:
            self.own[samples.users] *= left[:, None, None]
        self.own[samples.users[samples.pair_user], samples.pair_item] = mine
        size = self.settings.embedding_size
        RivalClients.gather(self, samples, before[:, size:], shared, left)

    def fold(self, round: int) -> None:
        RivalClients.fold(self, round)

    def scorer(self) -> Scorer:
        def every(users: Tensor) -> Tensor:
            return ((self.own[users] + self.items) @ self.weights[users][:, :, None])[..., 0]

        return ByTorch(self, every)


# --- counting ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counting(RivalSettings):
    """A device that learns nothing, sends nothing, and recommends what it has drawn as a negative
    least often; equal counts by lot."""

    system = "a device that counts its negatives"

    def begin(self, world: RivalWorld, rng: Streams) -> RivalClients:
        return CountingClients(self, world, rng)

    def sent(self, n_items: int) -> int:
        return 0


class CountingClients(RivalClients):
    def __init__(self, settings: RivalSettings, world: RivalWorld, rng: Streams) -> None:
        super().__init__(settings, world, rng)
        import torch

        self.counts = torch.zeros(world.n_users * world.n_items, device=world.device)
        self._lots = rng.child("lots")

    def learn(self, samples: Samples, round: int) -> None:
        user = samples.users[samples.pair_user]
        pair = (user * self.world.n_items + samples.pair_item)[samples.pairs]
        self.counts.index_add_(0, pair, 1.0 - samples.labels)

    def local(self, users: Tensor) -> Params:
        return {}

    def keep(self, users: Tensor, params: Params) -> None:
        pass

    def logits(self, params: Params, rows: Tensor) -> Tensor:
        return rows.sum(2) * 0.0

    def scorer(self) -> Scorer:
        import torch

        def every(users: Tensor) -> Tensor:
            lots = self._lots.uniform(users.cpu().numpy(), self.world.n_items).astype(np.float32)
            counts = self.counts.view(self.world.n_users, -1)[users]
            return -counts - 0.5 * torch.tensor(lots, device=counts.device)

        return ByTorch(self, every)


# --- what they share -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class ByTorch:
    """A `Scorer` that computes scores on the device that trained the rival."""

    rival: RivalClients
    every: Any
    """A function from users to their scores of all items."""

    @property
    def n_items(self) -> int:
        return self.rival.world.n_items

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        import torch

        with torch.no_grad():
            place = self.rival.world.device
            tiles = torch.split(torch.tensor(np.asarray(users), device=place), 64)
            found: NDArray[np.float32] = torch.cat([self.every(t) for t in tiles]).cpu().numpy()
            return found


def _scaled(settings: RivalSettings, world: RivalWorld) -> RivalSettings:
    """Return the settings with item rates times the number of items."""
    return replace(settings, item_rate=settings.item_rate * world.n_items)


RIVALS: Mapping[str, type[RivalSettings]] = {
    "fedmf": FedMF,
    "fedncf": FedNCF,
    "pfedrec": PFedRec,
    "fedrap": FedRAP,
    "counting": Counting,
}


# --- in studies ----------------------------------------------------------------------------------


class RivalKind(Kind):
    """A rival, `name` among its settings, on the study's device. With `leak` its clients never draw
    what is in the test part."""

    alone = True

    def key(self, job: Job) -> object:
        return [rival_of(job.settings), bool(job.settings.get("leak"))]

    def train(self, job: Job) -> TrainedSystem:
        rival, split, started = rival_of(job.settings), job.split, time.perf_counter()
        hidden = split.test if job.settings.get("leak") else None
        world = RivalWorld(split.train, job.cells.device, hidden)
        scorer = train_rival(rival, world, Streams.from_seed(job.seed).child("rival"))
        seconds = time.perf_counter() - started
        sent = float(rival.sent(split.train.n_items) * rival.rounds)
        facts = {"up": sent, "down": sent, "bound": "no bound", "seconds": seconds}
        return TrainedSystem({END: job.measure(scorer)}, facts)


def rival_of(settings: Settings) -> RivalSettings:
    """Return the rival that a system's settings name."""
    fields = {name: value for name, value in settings.items() if name not in ("name", "leak")}
    name = str(settings.get("name"))
    if name not in RIVALS:
        raise ConfigError(f"a rival's name must be one of {sorted(RIVALS)}, not {name!r}")
    return config.build(RIVALS[name], fields, name)
