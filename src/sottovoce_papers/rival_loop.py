"""The one loop in which published rivals are trained: all clients of a round side by side.

A rival's client learns its own model from the user's positives and, for each, some items drawn as
negatives; the server averages what is shared. Here the clients of a round are rows of tensors, so
that a round of thousands takes a moment, on a processor or a GPU. Nothing is sent and nothing is
protected: these are references to compare with, not systems to deploy.

Fair negatives are drawn from the items outside the user's training part. Leaking ones, as in
published code, are drawn from the items outside both training and test part: then the one item that
is never drawn is the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.torch_draws import mixed, shifted, signed
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import GAMMA, Streams

if TYPE_CHECKING:
    from torch import Tensor

Params = dict[str, "Tensor"]
ROOM = {"cpu": 400_000, "cuda": 6_000_000}
"""The number of samples that are held at a time."""


@dataclass(frozen=True, slots=True)
class RivalSettings(ABC):
    """A rival with its settings. By default clients take SGD steps on the mean cross entropy."""

    system: ClassVar[str] = ""
    """Its name in messages."""
    alternating: ClassVar[bool] = False
    """Whether a client first moves its own parameters, and then, by them, its item rows."""

    embedding_size: int = 32
    """Length of an item's vector."""
    rounds: int = 100
    """Every client takes part in each of them."""
    negatives: int = 4
    """How many are drawn for each positive."""
    batch_size: int = 256
    """Samples of a local step."""
    local_epochs: int = 1
    """Passes over a client's samples in a round."""
    learning_rate: float = 0.1
    """Step size of a client's own parameters."""
    item_rate: float = 0.1
    """Step size of item rows on the client."""
    init_scale: float = 1.0
    """Standard deviation of the first values."""
    reg: float = 0.0
    """Weight decay: in every local step of a client all its numbers shrink by this share of the
    step, also item rows that it does not touch."""

    def __post_init__(self) -> None:
        for name in ("embedding_size", "rounds", "negatives", "batch_size", "local_epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "item_rate", "init_scale"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0.0 <= self.reg < 1.0:
            raise ConfigError(f"reg must lie between 0 and 1, not {self.reg}")

    @abstractmethod
    def begin(self, world: RivalWorld, rng: Streams) -> RivalClients:
        """Return the clients before the first round."""

    def sent(self, n_items: int) -> int:
        """Return the bytes that a client sends in a round, as published: everything that is shared,
        in single precision. It receives as many."""
        return 4 * n_items * self.embedding_size


@dataclass(frozen=True, slots=True, repr=False)
class Samples:
    """The samples of some clients in a round, in the order in which each client takes them."""

    users: Tensor
    """[U], those with most samples first."""
    sizes: NDArray[np.int64]
    """[U]: how many samples each has."""
    start: Tensor
    size: Tensor
    """[U]: where they are, and again how many."""
    pairs: Tensor
    """[samples], the place of a sample's user and item among the pairs below."""
    labels: Tensor
    """[samples], 1 for positives."""
    pair_user: Tensor
    """[pairs], place of a user in `users`."""
    pair_item: Tensor

    def steps(self, batch: int) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield for each local step: how many users take it (the first ones), their pairs and
        labels [users, batch], and which of these count."""
        import torch

        # Nothing is read back from a GPU on the way: it would have to finish first.
        last = len(self.pairs) - 1
        for first in range(0, int(self.sizes[0]), batch):
            active = int((self.sizes > first).sum())
            column = torch.arange(min(batch, int(self.sizes[0]) - first), device=self.size.device)
            place = (self.start[:active, None] + first + column).clamp(max=last)
            mask = column < self.size[:active, None] - first
            yield active, self.pairs[place], self.labels[place], mask


class RivalWorld:
    """The items of each user, and the draws of negatives. If `hidden` is given, negatives leak it:
    they are drawn from neither the training part nor this one."""

    def __init__(
        self, train: Interactions, device: str = "cpu", hidden: Interactions | None = None
    ) -> None:
        import torch

        self.device, self.n_users, self.n_items = device, train.n_users, train.n_items
        self.indptr = torch.tensor(train.indptr, device=device)
        self.items = torch.tensor(train.items.astype(np.int64), device=device)
        counts = np.diff(train.indptr)
        closed = _pairs(train)
        if hidden is not None:
            closed = np.union1d(closed, _pairs(hidden, train.n_items))
        owner, item = closed // train.n_items, closed % train.n_items
        taken = np.bincount(owner, minlength=train.n_users)
        rank = np.arange(len(closed)) - np.repeat(np.cumsum(taken) - taken, taken)
        # The r-th item that may be drawn for user u is r + how many of the user's are not above it.
        self._closed = torch.tensor(owner * train.n_items + item - rank, device=device)
        self._before = torch.tensor(np.cumsum(taken) - taken, device=device)
        self._open = torch.tensor(train.n_items - taken, device=device)
        able = np.flatnonzero((counts > 0) & (taken < train.n_items))
        if not len(able):
            raise ConfigError("nobody has a positive and another item to learn from")
        self.able = able[np.argsort(-counts[able], kind="stable")]
        self.counts = counts

    def parts(self, negatives: int, batch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the users that fit into memory together, those with most samples first; each takes
        as much of a batch as the first one."""
        room = ROOM["cuda" if self.device.startswith("cuda") else "cpu"]
        sizes = self.counts[self.able] * (1 + negatives)
        samples = np.cumsum(sizes)
        begin = 0
        while begin < len(self.able):
            before = samples[begin - 1] if begin else 0
            fits = int(np.searchsorted(samples, before + room, side="right"))
            stop = max(begin + 1, min(fits, begin + int(room // min(batch, sizes[begin]))))
            yield self.able[begin:stop]
            begin = stop

    def draw(self, users: Tensor, keys: Tensor, negatives: int) -> tuple[Tensor, Tensor]:
        """Return for each draw the place of its user in `users`, and an item."""
        import torch

        many = (self.indptr[users + 1] - self.indptr[users]) * negatives
        owner = torch.repeat_interleave(torch.arange(len(users), device=self.device), many)
        word = mixed(keys[owner] + (_numbered(many, owner) + 1) * signed(int(GAMMA)))
        who = users[owner]
        rank = (shifted(word, 32) * self._open[who]) >> 32
        wanted = who * self.n_items + rank
        below = torch.searchsorted(self._closed, wanted, right=True) - self._before[who]
        return owner, rank + below

    def samples(self, chosen: NDArray[np.int64], negatives: int, rng: Streams) -> Samples:
        """Draw the samples of these users in a round with this stream."""
        import torch

        users = torch.tensor(chosen, device=self.device)
        keys = _keys(rng.child("negatives"), chosen, self.device)
        below, drawn = self.draw(users, keys, negatives)
        many = self.indptr[users + 1] - self.indptr[users]
        above = torch.repeat_interleave(torch.arange(len(users), device=self.device), many)
        entry = _numbered(many, above)
        liked = self.items[self.indptr[users][above] + entry]
        owner, item = torch.cat([above, below]), torch.cat([liked, drawn])
        labels = torch.zeros(len(owner), device=self.device)
        labels[: len(above)] = 1.0
        size = many * (1 + negatives)
        number = torch.cat([entry, many[below] + _numbered(many * negatives, below)])
        salt = _keys(rng.child("order"), chosen, self.device)[owner]
        word = shifted(mixed(salt + (number + 1) * signed(int(GAMMA))), 30)
        order = torch.argsort((owner << 34) + word, stable=True)
        owner, item, labels = owner[order], item[order], labels[order]
        known, pairs = torch.unique(owner * self.n_items + item, return_inverse=True)
        return Samples(
            users, self.counts[chosen] * (1 + negatives), size.cumsum(0) - size, size, pairs,
            labels, known // self.n_items, known % self.n_items,
        )  # fmt: skip


def _pairs(table: Interactions, n_items: int | None = None) -> NDArray[np.int64]:
    """Return user * n_items + item of every entry whose item can be ranked."""
    limit = table.n_items if n_items is None else n_items
    owner = np.repeat(np.arange(table.n_users, dtype=np.int64), np.diff(table.indptr))
    kept = table.items < limit
    return owner[kept] * limit + table.items[kept]


def _numbered(many: Tensor, owner: Tensor) -> Tensor:
    """Number the entries of each owner, who has so `many` in a row."""
    import torch

    return torch.arange(len(owner), device=owner.device) - (many.cumsum(0) - many)[owner]


def _keys(rng: Streams, counters: NDArray[np.int64], device: str) -> Tensor:
    import torch

    return torch.tensor(np.asarray(rng.keys(counters)).view(np.int64), device=device)


def first_values(rng: Streams, rows: int, width: int, scale: float, device: str) -> Tensor:
    """Draw normal values, which depend on the stream alone."""
    import torch

    values = scale * rng.normal(np.arange(rows, dtype=np.int64), width)
    return torch.tensor(values.astype(np.float32), device=device)


class RivalClients(ABC):
    """A federation of a rival's clients between two rounds."""

    def __init__(self, settings: RivalSettings, world: RivalWorld, rng: Streams) -> None:
        self.settings, self.world = settings, world
        size, scale = settings.embedding_size, settings.init_scale
        self.items = first_values(
            rng.child("items"), world.n_items, size, scale, world.device
        )  # the server's table
        self._moved, self._left = self.items * 0.0, 0.0

    @abstractmethod
    def local(self, users: Tensor) -> Params:
        """Return these clients' own parameters [U, ...], without item rows."""

    @abstractmethod
    def keep(self, users: Tensor, params: Params) -> None:
        """Keep the clients' own parameters after a round, or add them up for the server."""

    @abstractmethod
    def logits(self, params: Params, rows: Tensor) -> Tensor:
        """Return scores [U, batch] of item rows [U, batch, ...]."""

    @abstractmethod
    def scorer(self) -> Scorer:
        """Return what each client recommends by after the last round."""

    def rows(self, samples: Samples) -> Tensor:
        """Return a client's copy of the item row of each pair."""
        return self.items[samples.pair_item]

    def penalty(self, rows: Tensor, round: int) -> Tensor | float:
        """Return what is added to the cross entropy: [U, batch]."""
        return 0.0

    def rate(self, round: int, steps: Tensor) -> Tensor:
        """Return the factor of each client's step sizes after so many local steps."""
        return steps * 0.0 + 1.0

    def learn(self, samples: Samples, round: int) -> None:
        """Train these clients for a round."""
        s, users = self.settings, samples.users
        before, params = self.rows(samples), self.local(users)
        table, steps = before.clone(), (samples.size * 0).to(before.dtype)
        left = steps + 1.0  # of an item row that is not touched
        for _ in range(s.local_epochs):
            for active, pairs, labels, mask in samples.steps(s.batch_size):
                mine = {name: value[:active] for name, value in params.items()}
                rate = self.rate(round, steps[:active])
                grads, moved = self._gradients(table[pairs], mine, labels, mask, round)
                for name, value in mine.items():
                    shape = (active, *(1,) * (value.ndim - 1))
                    step = s.learning_rate * rate.view(shape)
                    value -= step * (grads[name] + s.reg * value)
                if s.alternating:
                    _, moved = self._gradients(table[pairs], mine, labels, mask, round)
                if s.reg:
                    shrunk = steps * 0.0 + 1.0
                    shrunk[:active] -= s.item_rate * s.reg * rate
                    table *= shrunk[samples.pair_user, None]
                    left *= shrunk
                moved = (moved * rate[:, None, None]).flatten(0, 1)  # 0 outside the mask
                table.index_add_(0, pairs.flatten(), moved, alpha=-s.item_rate)
                steps[:active] += 1.0
        self.keep(users, params)
        self.gather(samples, before, table, left)

    def _gradients(
        self, rows: Tensor, params: Params, labels: Tensor, mask: Tensor, round: int
    ) -> tuple[Params, Tensor]:
        """Return the gradients of each client's mean loss over the batch."""
        import torch
        import torch.nn.functional as F

        rows = rows.requires_grad_()
        mine = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        with torch.enable_grad():
            loss = F.binary_cross_entropy_with_logits(
                self.logits(mine, rows), labels, reduction="none"
            )
            loss = (loss + self.penalty(rows, round)) * mask
            total = (loss.sum(1) / mask.sum(1)).sum()
        found = torch.autograd.grad(total, [rows, *mine.values()])
        return dict(zip(mine, found[1:], strict=True)), found[0]

    def gather(self, samples: Samples, before: Tensor, after: Tensor, left: Tensor) -> None:
        """Add up at the server how clients changed item rows, and what is `left` [U] of the other
        rows."""
        self._moved.index_add_(0, samples.pair_item, after - left[samples.pair_user, None] * before)
        self._left += float(left.sum())

    def fold(self, round: int) -> None:
        """Average at the server over all clients of the round, with the rows that they did not
        touch."""
        clients = len(self.world.able)
        self.items = self.items * (self._left / clients) + self._moved / clients
        self._moved, self._left = self.items * 0.0, 0.0


def train_rival(settings: RivalSettings, world: RivalWorld, rng: Streams) -> Scorer:
    """Train all rounds; the same `rng` gives the same scores on a processor."""
    import torch

    with torch.no_grad():
        rival = settings.begin(world, rng.child("start"))
        for round in range(settings.rounds):
            for chosen in world.parts(settings.negatives, settings.batch_size):
                drawn = world.samples(chosen, settings.negatives, rng.child("round", round))
                rival.learn(drawn, round)
            rival.fold(round)
            if round % 10 == 9:
                _check(settings, rival)
        _check(settings, rival)
        return rival.scorer()


def _check(settings: RivalSettings, rival: RivalClients) -> None:
    if not bool(rival.items.isfinite().all()):
        raise Diverged(f"{settings.system} ran off to infinity; lower its rates")
