"""UC-FedRec on the devices: the local training of a whole cohort at once, in torch.

Every client has a copy of the weights of its own, stacked along the first axis, so that a step of
all clients is a few large operations. Of the items' table a client's copy holds the rows that its
draws touch. Per local epoch a client draws n pairs of an item of hers and another, and takes one
step of descent with momentum (which begins at 0 in each round) on

    −mean ln σ(h_u·h_i − h_u·h_j) + λ/2n Σ(‖h_u‖² + ‖h_i‖² + ‖h_j‖²) + w Σ_private KL(target ‖ q_t)

and each filter of a public attribute one on CE(g_t(h_u), y_t), where h_u counts as a constant, as
filters do in the line above. w = β / (1 − β), so that β = 0 asks for nothing.

Draws are functions of (the round's stream, user, number of the draw): a cohort of n gives what n
cohorts of one give, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.uc_fold import Updates
from sottovoce.algorithms.uc_networks import Model, Weights, divergence, guess
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import GAMMA, Streams

_GAMMA = int(GAMMA) - (1 << 64)
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How a client learns in a round. Rates, epochs and pairs are by default those of the published
    run, which takes thousands of rounds."""

    epochs: int = 30
    """E: steps per round."""
    pairs: int = 512
    """n: pairs per step."""
    rate: float = 0.1
    item_rate: float = 0.1
    """For items' embeddings. A step's gradient is a mean over its pairs, of which an item is in
    few, and the server takes the mean over all who drew it: at the rate of all else, items hardly
    move. Rates a thousand times as high need hundreds of rounds instead, and a far larger clip."""
    filter_rate: float = 0.005
    momentum: float = 0.9
    reg: float = 1e-5
    dropout: float = 0.1
    """Share of the towers' units that a step leaves out, to 1/256."""
    clip: float = 8.0
    """Largest L2 norm of what a client sends: of embeddings and towers together, and of the
    filters' weights together. Apart, so that sharing an attribute changes nothing of the rest."""
    target: Literal["uniform", "prior"] = "prior"
    """What filters should say of those who hide an attribute: all classes alike (as published; it
    tells who hides), or the classes' public shares."""
    move_nearest: bool = False
    """Whether a client also trains, and sends, the embeddings of its nearest users."""

    def __post_init__(self) -> None:
        for name in ("epochs", "pairs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        for name in ("rate", "item_rate", "filter_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0")
        for name in ("momentum", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1)")
        if not self.reg >= 0:
            raise ConfigError("reg must not be below 0")
        if self.target not in ("uniform", "prior"):
            raise ConfigError(f"target must be uniform or prior, not {self.target!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Clients:
    """What is private to a cohort's devices."""

    users: NDArray[np.int64]
    """Their rows in the users' table; they key all draws."""
    history: Interactions
    """A row per client."""
    labels: NDArray[np.int64]
    """[clients, attributes]; -1 where an attribute is not known, which hides it."""
    hidden: NDArray[np.bool_]
    """[clients, attributes]"""
    strength: NDArray[np.float32]
    """β of each client."""

    def __post_init__(self) -> None:
        n = len(self.users)
        if self.history.n_users != n or self.strength.shape != (n,):
            raise DataError("every client needs a history and a strength")
        if self.labels.shape != self.hidden.shape or len(self.labels) != n:
            raise DataError("labels and hidden attributes must have a row per client")
        if n and not bool(np.all((self.strength >= 0) & (self.strength < 1))):
            raise DataError("strength must lie in [0, 1)")
        counts = self.history.counts
        if not bool(np.all((counts > 0) & (counts < self.history.n_items))):
            raise DataError("a client learns from pairs: it needs some, but not all, of the items")

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<Clients, {len(self):,}, redacted>"

    def take(self, rows: NDArray[np.int64]) -> Clients:
        return Clients(
            self.users[rows],
            self.history.take_users(rows),
            self.labels[rows],
            self.hidden[rows],
            self.strength[rows],
        )

    def shared(self) -> NDArray[np.bool_]:
        """[clients, attributes]: known and not hidden."""
        public: NDArray[np.bool_] = ~self.hidden & (self.labels >= 0)
        return public


def train(
    model: Model,
    clients: Clients,
    how: LocalTraining,
    rng: Streams,
    priors: Sequence[Tensor] = (),
) -> Updates:
    """One round of these clients. `rng` is the round's stream; `priors` are the classes' public
    shares, per attribute, for the target of that name."""
    _check(model, clients)
    place = model.items.device
    pairs = Pairs.draw(clients, how, rng.child("pairs"), place)
    copy = _Copies.of(model, clients, pairs, how)
    terms = _Terms.of(model, clients, how, priors)
    drops = _Drops.of(model, clients, how, rng.child("dropout"))
    for epoch in range(how.epochs):
        copy.step(pairs.positives[epoch], pairs.negatives[epoch], terms, drops, epoch)
    return copy.updates(terms.shared)


@dataclass(frozen=True, slots=True, repr=False)
class Pairs:
    """All draws of a round. Positives and negatives are places in a client's own list of items."""

    items: Tensor
    """[C, R]: the items that a client touches, ascending; -1 behind the last."""
    positives: Tensor
    """[E, C, n]"""
    negatives: Tensor

    @classmethod
    def draw(cls, clients: Clients, how: LocalTraining, rng: Streams, place: torch.device) -> Pairs:
        """An item of the client, uniformly, and one that is not hers, uniformly."""
        n, draws, n_items = len(clients), how.epochs * how.pairs, clients.history.n_items
        counts_there = clients.history.counts
        # Row c: the items of client c, then a number that no item has.
        own = np.full((n, int(counts_there.max())), n_items, dtype=np.int64)
        own[np.arange(own.shape[1]) < counts_there[:, None]] = clients.history.items
        mine = torch.from_numpy(own).to(place)
        counts = torch.from_numpy(counts_there.astype(np.int64)).to(place)[:, None]
        word = words(_keys(clients, rng, place), draws)
        high, low = (word >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
        positive = mine.gather(1, (high * counts) >> 32)
        # The r-th item that is not hers is r plus the number of hers before it: those with
        # (k-th item) - k <= r.
        rank = (low * (n_items - counts)) >> 32
        before = mine - torch.arange(mine.shape[1], device=place)
        # Behind the last of hers nothing counts.
        before = torch.where(mine < n_items, before, n_items)
        negative = rank + torch.searchsorted(before, rank, right=True)
        touched = torch.zeros((n, n_items), dtype=torch.bool, device=place)
        touched.scatter_(1, positive, True).scatter_(1, negative, True)
        where = touched.long().cumsum(1) - 1
        size = int(where[:, -1].max()) + 1
        items = torch.full((n, size), -1, dtype=torch.int64, device=place)
        client, item = touched.nonzero(as_tuple=True)
        items[client, where[client, item]] = item
        shape = (n, how.epochs, how.pairs)
        return cls(
            items,
            where.gather(1, positive).view(shape).transpose(0, 1).contiguous(),
            where.gather(1, negative).view(shape).transpose(0, 1).contiguous(),
        )


@dataclass(frozen=True, slots=True, repr=False)
class _Terms:
    """What a step asks for beside good recommendations."""

    labels: Tensor
    """[C, A]; 0 where there is none."""
    shared: Tensor
    """[C, A], true where the attribute trains its filter; all others are hidden."""
    weight: Tensor
    """[C]: w"""
    targets: tuple[Tensor, ...]
    hides: bool
    shares: bool

    @classmethod
    def of(
        cls, model: Model, clients: Clients, how: LocalTraining, priors: Sequence[Tensor]
    ) -> _Terms:
        place = model.items.device
        shared = clients.shared()
        beta = clients.strength.astype(np.float64)
        targets = [torch.full((a.classes,), 1.0 / a.classes) for a in model.attributes]
        if how.target == "prior" and not shared.all():
            if len(priors) != len(targets):
                raise DataError("the target prior needs the classes' shares of every attribute")
            for attribute, prior in zip(model.attributes, priors, strict=True):
                if prior.shape != (attribute.classes,) or not bool((prior >= 0).all()):
                    raise DataError(f"{attribute.name}: there must be one share per class")
            targets = [(prior / prior.sum()).float() for prior in priors]
        return cls(
            torch.from_numpy(np.maximum(clients.labels, 0)).to(place),
            torch.from_numpy(shared).to(place),
            torch.from_numpy((beta / (1.0 - beta)).astype(np.float32)).to(place),
            tuple(target.to(place) for target in targets),
            hides=not bool(shared.all()),
            shares=bool(shared.any()),
        )

    def loss(self, user: Tensor, filters: Sequence[Weights]) -> Tensor:
        """Sum over clients of w ΣKL and of the filters' own losses; `user` is h_u [C, 1, width]."""
        total = user.new_zeros(())
        for t, weights in enumerate(filters):
            if self.hides:
                fixed = {name: weight.detach() for name, weight in weights.items()}
                log_q = F.log_softmax(guess(user, fixed)[:, 0], dim=1)
                pull = self.weight * ~self.shared[:, t]
                total = total + (pull * divergence(self.targets[t], log_q)).sum()
            if self.shares:
                logits = guess(user.detach(), weights)[:, 0]
                miss = F.cross_entropy(logits, self.labels[:, t], reduction="none")
                total = total + (miss * self.shared[:, t]).sum()
        return total


@dataclass(frozen=True, slots=True, repr=False)
class _Drops:
    """Which units of the towers a step leaves out."""

    keys: Tensor
    share: int
    """Of 256."""
    size: int

    @classmethod
    def of(cls, model: Model, clients: Clients, how: LocalTraining, rng: Streams) -> _Drops:
        share = round(256 * how.dropout) if model.recommender.kind != "mf" else 0
        return cls(_keys(clients, rng, model.items.device), share, model.recommender.size)

    def kept(self, epoch: int, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Factors [C, 1, d] for the user and [C, rows, d] for items; none where all are kept."""
        if not self.share:
            return None, None
        width = -(-self.size // 8)
        word = words(self.keys, (rows + 1) * width, first=epoch * (rows + 1) * width)
        byte = word.view(torch.uint8).view(len(word), rows + 1, 8 * width)[..., : self.size]
        factor = (byte >= self.share).float() * (256 / (256 - self.share))
        return factor[:, :1], factor[:, 1:]


@dataclass(slots=True, repr=False)
class _Copies:
    """The clients' weights, [C, ...], with their momentum."""

    model: Model
    how: LocalTraining
    user_rows: Tensor
    item_rows: Tensor
    around: Tensor
    """The nearest users that stay as they are, [C, k, d]."""
    items: Tensor
    """[C · R, d]"""
    item_speed: Tensor
    users: Tensor
    towers: dict[str, Tensor]
    filters: list[dict[str, Tensor]]
    speeds: list[Tensor]

    @classmethod
    def of(cls, model: Model, clients: Clients, pairs: Pairs, how: LocalTraining) -> _Copies:
        own = torch.from_numpy(clients.users).to(model.users.device)
        rows = own[:, None]
        around = rows[:, :0]
        if model.recommender.looks_around:
            nearest = model.nearest(own)
            rows, around = (nearest, around) if how.move_nearest else (rows, nearest[:, 1:])

        def copies(weight: Tensor) -> Tensor:
            return weight.expand(len(clients), *weight.shape).clone()

        items = model.items[pairs.items.clamp(min=0).flatten()]
        copy = cls(
            model,
            how,
            rows,
            pairs.items,
            model.users[around],
            items,
            torch.zeros_like(items),
            model.users[rows],
            {name: copies(weight) for name, weight in model.towers.items()},
            [{name: copies(w) for name, w in weights.items()} for weights in model.filters],
            [],
        )
        copy.speeds = [torch.zeros_like(weight) for weight, _ in copy.trained()]
        return copy

    def trained(self) -> list[tuple[Tensor, float]]:
        """All weights but the items', and their rates."""
        rest = [self.users, *self.towers.values()]
        filters = [weight for weights in self.filters for weight in weights.values()]
        how = self.how
        return [(w, how.rate) for w in rest] + [(w, how.filter_rate) for w in filters]

    def step(
        self, positives: Tensor, negatives: Tensor, terms: _Terms, drops: _Drops, epoch: int
    ) -> None:
        """One step of all clients on these pairs [C, n]."""
        n, pairs = positives.shape
        trained = self.trained()
        first = torch.arange(n, device=positives.device)[:, None] * self.item_rows.shape[1]
        place = (torch.cat([positives, negatives], dim=1) + first).flatten()
        rows = self.items[place].requires_grad_()
        for weight, _ in trained:
            weight.requires_grad_()
        user, item = self._represent(rows.view(n, 2 * pairs, -1), drops, epoch)
        loss = self._miss(user, item, pairs) + terms.loss(user, self.filters)
        leaves = [rows, *(weight for weight, _ in trained)]
        # A filter that nobody here shares has no slope.
        by_rows, *slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch.no_grad():
            # Only the batch's rows have a slope, but all have momentum.
            self.item_speed.mul_(self.how.momentum).index_add_(0, place, by_rows)
            self.items.add_(self.item_speed, alpha=-self.how.item_rate)
            for (weight, rate), speed, slope in zip(trained, self.speeds, slopes, strict=True):
                weight.requires_grad_(False)
                speed.mul_(self.how.momentum)
                if slope is not None:
                    speed.add_(slope)
                weight.add_(speed, alpha=-rate)

    def _represent(self, rows: Tensor, drops: _Drops, epoch: int) -> tuple[Tensor, Tensor]:
        recommender = self.model.recommender
        kept_user, kept_items = drops.kept(epoch, rows.shape[1])
        own = self.users[:, :1]
        around = own
        if recommender.looks_around:
            around = torch.cat([self.users, self.around], dim=1).mean(dim=1, keepdim=True)
        user = recommender.user(own, around, self.towers, kept_user)
        return user, recommender.item(rows, self.towers, kept_items)

    def _miss(self, user: Tensor, item: Tensor, pairs: int) -> Tensor:
        """Sum over clients of the pairs' mean loss and the penalty on long representations."""
        scores = (item @ user.mT)[..., 0]
        gap = scores[:, :pairs] - scores[:, pairs:]
        length = user.square().sum() + item.square().sum() / pairs
        return F.softplus(-gap).mean(dim=1).sum() + 0.5 * self.how.reg * length

    def updates(self, shared: Tensor) -> Updates:
        """What the clients' weights have become, less the model's."""
        model = self.model
        n, width = self.item_rows.shape
        there = (self.item_rows >= 0)[..., None]
        given = model.items[self.item_rows.clamp(min=0)]
        items = (self.items.view(n, width, -1) - given) * there
        users = self.users - model.users[self.user_rows]
        towers = {name: weight - model.towers[name] for name, weight in self.towers.items()}
        filters = [
            {name: weight - old[name] for name, weight in weights.items()}
            for weights, old in zip(self.filters, model.filters, strict=True)
        ]
        _clip([users, items, *towers.values()], self.how.clip)
        _clip([change for weights in filters for change in weights.values()], self.how.clip)
        return Updates(self.user_rows, users, self.item_rows, items, towers, tuple(filters), shared)


def words(keys: Tensor, draws: int, first: int = 0) -> Tensor:
    """Draws `first` to `first + draws` of each key, [len(keys), draws]: what `Streams.words` gives,
    as signed numbers."""
    offset = torch.arange(first + 1, first + draws + 1, device=keys.device) * _GAMMA
    z = keys[:, None] + offset
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _M1
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _M2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _keys(clients: Clients, rng: Streams, place: torch.device) -> Tensor:
    return torch.from_numpy(rng.keys(clients.users).view(np.int64)).to(place)


def _clip(changes: Iterable[Tensor], limit: float) -> None:
    """Shorten each client's changes, taken together, to `limit`, in place."""
    changes = list(changes)
    if not changes:
        return
    norm = torch.stack([c.flatten(1).norm(dim=1) for c in changes]).norm(dim=0)
    if not bool(norm.isfinite().all()):
        raise Diverged("a client's weights left the range of numbers; lower the rates")
    factor = (limit / norm.clamp(min=limit)).float()
    for change in changes:
        change.mul_(factor.view(-1, *[1] * (change.ndim - 1)))


def _check(model: Model, clients: Clients) -> None:
    if not len(clients):
        raise DataError("a cohort needs at least one client")
    if clients.history.n_items != len(model.items):
        raise DataError("the histories number other items than the model")
    if clients.users.min() < 0 or clients.users.max() >= len(model.users):
        raise DataError("a client has no row in the model's table of users")
    if clients.labels.shape[1] != len(model.attributes):
        raise DataError("labels need one column per filter")
    classes = np.array([a.classes for a in model.attributes], dtype=np.int64)
    if bool(np.any((clients.labels >= classes) | (clients.labels < -1))):
        raise DataError("a label names a class that its filter does not know")
