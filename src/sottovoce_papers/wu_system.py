"""FedGNN (Wu, Wu, Cao, Huang and Xie, 2021), both halves. Devices send gradients, not weights.

A round: the server publishes items' embeddings and the layer (`wu_graph.py`); each device of the
cohort computes slopes on its own graph, steps its own embedding at home, and sends the slopes of
its items' embeddings and of the layer, hidden among pseudo items, cut and with noise. The server
takes the mean, weighted by the number of items sent, and steps.

The paper learns ratings. For implicit feedback we take pairs instead [our decision]: an item of
hers and one of the round's pseudo items, loss −Σ ln σ(score_i − score_j). It is a sum, so that a
row's slope is that of its own pair: a mean's would shrink with every item a user has, and drown in
the noise so much the sooner. The negatives of the pairs are pseudo items and send their true slopes
(no other item of a device has one); all other pseudo items send Gaussian numbers with the mean and
the standard deviation of the true rows, coordinate by coordinate.

What is promised: no formal guarantee. With noise λ and clip δ, ε = 2δ/λ holds for a single number
of an upload, if the set of items is taken as known. But the set is sent in the clear, and depends
on the user: an upload costs ∞ (`WuConfig.epsilon`). What the server can make of the sets and the
rows is in `wu_item_sets.py`; what the third party that finds neighbours sees, in
`wu_matcher.py`.

Draws are functions of (the run's stream, round, user): a cohort of n sends what n of one send.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError, DataError, Diverged, MessageError, UsageError
from sottovoce.rng import Streams
from sottovoce_papers.wu_graph import (
    Graphs,
    Layer,
    Neighbours,
    WuModel,
    device_part,
    device_tokens,
    embeddings,
    require_pairs,
)
from sottovoce_papers.wu_matcher import Matcher

Progress = Callable[[int, int], None]
"""Called with (rounds done, rounds in all)."""
_NEVER = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class WuConfig:
    """By default as printed."""

    embedding_size: int = 64
    learning_rate: float = 0.01
    """Of the layer."""
    item_rate: float = 0.01
    """Of items' embeddings. The server's mean is over all devices of a round, few of which have the
    same item: at the rate of all else items hardly move, and in three passes nothing is learnt from
    implicit feedback. Some hundred times as high works, with the other rates at about 0.1."""
    user_rate: float = 0.01
    """Of users' embeddings, which are stepped at home, by slopes that are cut but have no noise."""
    cohort_size: int = 128
    epochs: int = 3
    """Passes over all users, each of whom takes part once in a pass. The third party is asked once
    per pass."""
    pseudo_items: int = 1000
    """Others that a device sends beside its own; all there are where these are fewer."""
    pseudo: Literal["fresh", "fixed"] = "fresh"
    """Whether they are drawn anew in each round, as printed, which lets the server find a user's
    items as those that come again; or once per device."""
    clip: float = 0.1
    """δ: every number is cut to ±δ; `inf` cuts nothing."""
    noise: float = 0.2
    """λ: the scale of Laplace's noise on every number; 0 for none."""
    most_items: int = 100
    """Items of a device that its graph has, as in the authors' code; drawn once per device."""

    def __post_init__(self) -> None:
        for name in ("embedding_size", "cohort_size", "epochs", "pseudo_items", "most_items"):
            require_whole(name, getattr(self, name), 1)
        for name in ("learning_rate", "item_rate", "user_rate"):
            require_number(name, getattr(self, name), 0, 1e6, above=False)
        require_number("clip", self.clip, 0, math.inf)
        require_number("noise", self.noise, 0, 1e6, above=False)
        if self.pseudo not in ("fresh", "fixed"):
            raise ConfigError(f"pseudo must be fresh or fixed, not {self.pseudo!r}")

    @property
    def epsilon(self) -> float:
        """What an upload costs in truth: ∞, as it names the items in the clear."""
        return math.inf

    @property
    def epsilon_per_number(self) -> float:
        """2δ/λ, which the paper calls its ε: of one number, were the items known anyway."""
        return 2.0 * self.clip / self.noise if self.noise else math.inf

    def epsilon_of_numbers(self, sent_items: int) -> float:
        """Of all numbers of an upload together, were the items known anyway."""
        size = self.embedding_size
        return (sent_items * size + size * size + 4 * size) * self.epsilon_per_number


@dataclass(frozen=True, slots=True, repr=False)
class WuClients:
    """What is private to a cohort's devices."""

    users: NDArray[np.int64]
    """Their numbers; they key all draws."""
    history: Interactions
    """A row per device: all items of hers, none of which is ever a pseudo item."""
    learnt: Interactions
    """The part of them that the graph has."""
    vectors: NDArray[np.float32]
    """[C, d]: the users' embeddings."""
    around: Neighbours | None = None

    def __post_init__(self) -> None:
        n = len(self.users)
        if {self.history.n_users, self.learnt.n_users, len(self.vectors)} != {n}:
            raise DataError("every device needs a history, a part of it and an embedding")
        if self.learnt.n_items != self.history.n_items:
            raise DataError("a history and its part must have the same catalogue")
        if self.vectors.ndim != 2 or not np.isfinite(self.vectors).all():
            raise DataError("users' embeddings must be rows of finite numbers")
        require_pairs(self.history)
        if n and self.learnt.counts.min() < 1:
            raise DataError("a device's graph needs an item")

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<WuClients, {len(self):,}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class Uploads:
    """What devices send to the server, which sees who sends it."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    """[C, S]: own and pseudo items, ascending; -1 behind the last."""
    rows: NDArray[np.float32]
    """[C, S, d]: slopes of their embeddings."""
    layer: NDArray[np.float32]
    """[C, d² + 4d]: slopes of the layer."""

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<Uploads of {len(self):,} devices, redacted>"


# --- the device's half ---------------------------------------------------------------------------


def device_learn(
    model: WuModel, clients: WuClients, config: WuConfig, round: int, rng: Streams
) -> tuple[NDArray[np.float32], Uploads]:
    """A round of these devices: their embeddings after it, and what they send. `rng` is the run's
    stream."""
    size, place = config.embedding_size, model.items.device
    if model.layer.size != size or clients.vectors.shape[1] != size:
        raise DataError(f"embeddings must be rows of {size} numbers")
    if not len(clients):
        raise DataError("a round needs at least one device")
    if len(model.items) != clients.history.n_items:
        raise DataError("the model and the histories are of different catalogues")
    now = rng.child("round", round)
    cover = _draw_cover(clients, config, rng if config.pseudo == "fixed" else now)
    graphs = Graphs.of(clients.learnt, clients.around, size, place)
    there = torch.from_numpy(cover < len(model.items)).to(place)
    others = torch.from_numpy(np.minimum(cover, len(model.items) - 1)).to(place)
    chance = now.child("negatives").uniform(clients.users, graphs.items.shape[1])
    drawn = torch.from_numpy(chance).to(place) * there.sum(dim=1, keepdim=True)
    slopes = _slopes(model, graphs, clients, others, drawn.long())
    draws = now.child("gaussian").normal(
        clients.users, min(config.pseudo_items, len(model.items)) * size
    )
    gauss = torch.from_numpy(draws.astype(np.float32)).to(place).view(len(clients), -1, size)
    pseudo = _disguise(slopes, graphs.has_item, gauss[:, : cover.shape[1]])
    rows = torch.cat([slopes.own, pseudo], dim=1)
    items = torch.cat(
        [
            torch.where(graphs.has_item, graphs.items, len(model.items)),
            torch.from_numpy(cover).to(place),
        ],
        dim=1,
    )
    items, order = items.sort(dim=1)
    sent = items < len(model.items)
    width = int(sent.sum(dim=1).max())
    items, order, sent = items[:, :width], order[:, :width], sent[:, :width]
    rows = rows.gather(1, order[..., None].expand(*order.shape, size))
    if not all(bool(torch.isfinite(x).all()) for x in (rows, slopes.layer, slopes.user)):
        raise Diverged("slopes are no longer finite; lower item_rate and user_rate")
    rows = _cut(rows, clients.users, config, now.child("noise", "rows"))
    layer = _cut(slopes.layer, clients.users, config, now.child("noise", "layer"))
    step: NDArray[np.float32] = slopes.user.clamp(-config.clip, config.clip).cpu().numpy()
    return clients.vectors - np.float32(config.user_rate) * step, Uploads(
        clients.users.copy(),
        torch.where(sent, items, -1).cpu().numpy(),
        (rows * sent[..., None]).cpu().numpy(),
        layer.cpu().numpy(),
    )


def _draw_cover(clients: WuClients, config: WuConfig, rng: Streams) -> NDArray[np.int64]:
    """Each device's pseudo items [C, P], ascending; the catalogue's size behind the last."""
    history, n_items = clients.history, clients.history.n_items
    keys = rng.child("pseudo").words(clients.users, n_items)
    keys[history.users, history.items] = _NEVER
    width = min(config.pseudo_items, n_items - int(history.counts.min(initial=n_items - 1)))
    chosen = np.argpartition(keys, width - 1, axis=1)[:, :width].astype(np.int64)
    hers = np.take_along_axis(keys, chosen, axis=1) == _NEVER
    return np.sort(np.where(hers, n_items, chosen), axis=1)


@dataclass(frozen=True, slots=True, repr=False)
class _Slopes:
    own: Tensor
    """[C, I, d]"""
    cover: Tensor
    """[C, P, d]: those of the negatives."""
    used: Tensor
    """[C, P]: which pseudo items were negatives."""
    user: Tensor
    layer: Tensor


def _slopes(
    model: WuModel, graphs: Graphs, clients: WuClients, others: Tensor, drawn: Tensor
) -> _Slopes:
    """Of every device's loss, by everything in it. `drawn` [C, I] are places in `others`."""
    n, size = len(graphs), model.layer.size
    users = torch.from_numpy(clients.vectors).to(model.items.device).requires_grad_()
    own = model.items[graphs.items].requires_grad_()
    negative = model.items[others.gather(1, drawn)].requires_grad_()
    layer = model.layer.copies(n)
    layer.weight.requires_grad_()
    layer.attention.requires_grad_()
    items = layer.project(own)
    hidden = layer.users(layer.project(users[:, None])[:, 0], items, graphs)
    ahead = ((items - layer.project(negative)) @ hidden[..., None])[..., 0]
    loss = -(F.logsigmoid(ahead) * graphs.has_item).sum()
    leaves = [own, negative, users, layer.weight, layer.attention]
    by_own, by_negative, by_user, by_weight, by_attention = torch.autograd.grad(loss, leaves)
    by_negative = by_negative * graphs.has_item[..., None]
    cover = by_own.new_zeros(n, others.shape[1], size)
    cover.scatter_add_(1, drawn[..., None].expand_as(by_negative), by_negative)
    used = torch.zeros(others.shape, dtype=torch.int64, device=others.device)
    used.scatter_add_(1, drawn, graphs.has_item.long())
    layer_slope = torch.cat([by_weight.flatten(1), by_attention.flatten(1)], dim=1)
    return _Slopes(by_own, cover, used > 0, by_user, layer_slope)


def _disguise(slopes: _Slopes, has_item: Tensor, gauss: Tensor) -> Tensor:
    """Rows of all pseudo items: where there is no true one, Gaussian with the true ones' mean and
    standard deviation."""
    true = torch.cat([slopes.own, slopes.cover], dim=1)
    counted = torch.cat([has_item, slopes.used], dim=1)[..., None]
    count = counted.sum(dim=1, keepdim=True)
    mean = (true * counted).sum(dim=1, keepdim=True) / count
    spread = (((true - mean) ** 2 * counted).sum(dim=1, keepdim=True) / count).sqrt()
    return torch.where(slopes.used[..., None], slopes.cover, mean + spread * gauss)


def _cut(values: Tensor, users: NDArray[np.int64], config: WuConfig, rng: Streams) -> Tensor:
    """Every number cut to ±δ, with Laplace noise of scale λ."""
    values = values.clamp(-config.clip, config.clip)
    if not config.noise:
        return values
    u = rng.uniform(users, values[0].numel()) + (2.0**-54 - 0.5)
    noise = -config.noise * np.sign(u) * np.log1p(-2.0 * np.abs(u))
    return values + torch.from_numpy(noise.astype(np.float32)).to(values).view(values.shape)


# --- the server's half ---------------------------------------------------------------------------


def server_fold(model: WuModel, uploads: Uploads, config: WuConfig) -> WuModel:
    """The model after a round; raises, and changes nothing, where an upload is not good."""
    n_items, size = model.items.shape
    n, width = uploads.items.shape if uploads.items.ndim == 2 else (-1, -1)
    if len(uploads.users) != n or uploads.rows.shape != (n, width, size):
        raise MessageError(f"an upload must have {size} numbers for each of its items")
    if uploads.layer.shape != (n, size * size + 4 * size):
        raise MessageError("an upload must have the slopes of the layer")
    sent = uploads.items >= 0
    if uploads.items.size and not -1 <= uploads.items.min() <= uploads.items.max() < n_items:
        raise MessageError("an upload names an item that there is not")
    if bool((sent[:, 1:] & (uploads.items[:, 1:] <= uploads.items[:, :-1])).any()):
        raise MessageError("an upload must name each item once, in ascending order")
    if not (np.isfinite(uploads.rows).all() and np.isfinite(uploads.layer).all()):
        raise MessageError("an upload holds numbers that are not finite")
    weights = sent.sum(axis=1).astype(np.float32)
    if not weights.sum():
        return model
    place = model.items.device
    share = torch.from_numpy(weights / weights.sum()).to(place)
    chosen = torch.from_numpy(sent).to(place)
    rows = (torch.from_numpy(uploads.rows).to(place) * share[:, None, None])[chosen]
    slope = torch.zeros_like(model.items)
    slope.index_add_(0, torch.from_numpy(uploads.items).to(place)[chosen], rows)
    layer = share @ torch.from_numpy(uploads.layer).to(place)
    by_weight, by_attention = layer[: size * size], layer[size * size :]
    return WuModel(
        model.items - config.item_rate * slope,
        Layer(
            model.layer.weight - config.learning_rate * by_weight.view(size, size),
            model.layer.attention - config.learning_rate * by_attention.view(4, size),
        ),
    )


# --- all of it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WuFedGNN:
    """Trains in one process, for studies: everybody's devices, the server and, where one is given,
    the third party."""

    config: WuConfig = WuConfig()
    device: str = "cpu"
    """Where torch computes: "cpu", "cuda" or "cuda:N"."""

    def rounds(self, train: Interactions) -> int:
        """In all passes."""
        return self.config.epochs * self._per_pass(_able(train))

    def fit(
        self,
        train: Interactions,
        rng: Streams,
        finder: Matcher | None = None,
        *,
        key: bytes = b"",
        rounds: int | None = None,
        progress: Progress | None = None,
        observe: Callable[[int, WuModel, Uploads], None] | None = None,
    ) -> FactorScorer:
        """Learn from every user who has some, but not all, of the items. `finder` is the third
        party, and `key` what the devices share and it does not have; without one, graphs end at a
        user's items. `observe` is given what the server sees: round, published model, uploads."""
        able = _able(train)
        if not len(able):
            raise DataError("no user has some, but not all, of the items: there are no pairs")
        config, place = self.config, _place(self.device)
        total = self.rounds(train) if rounds is None else rounds
        rng = rng.child("fedgnn")
        world = _World(config, train, finder, key, rng)
        model = WuModel.init(train.n_items, config.embedding_size, rng.child("init")).to(place)
        per_pass = self._per_pass(able)
        for r in range(total):
            turn, step = divmod(r, per_pass)
            if step == 0:
                order = rng.child("pass", turn).generator().permutation(able)
                world.ask(turn)
            users = np.sort(order[step * config.cohort_size : (step + 1) * config.cohort_size])
            vectors, uploads = device_learn(model, world.clients(users), config, r, rng)
            world.vectors[users] = vectors
            if observe is not None:
                observe(r, model, uploads)
            model = server_fold(model, uploads, config)
            if progress is not None:
                progress(r + 1, total)
        world.ask(total)
        return world.scorer(model)

    def _per_pass(self, able: NDArray[np.int64]) -> int:
        return -(-len(able) // self.config.cohort_size)


class _World:
    """All devices and their state."""

    def __init__(
        self,
        config: WuConfig,
        train: Interactions,
        finder: Matcher | None,
        key: bytes,
        rng: Streams,
    ) -> None:
        self.config, self.train, self.finder, self.rng = config, train, finder, rng
        every = np.arange(train.n_users)
        self.learnt = device_part(train, every, config.most_items, rng)
        self.vectors = embeddings(every, config.embedding_size, rng.child("users"))
        self.tokens = None if finder is None else device_tokens(key, self.learnt.items)

    def ask(self, turn: int) -> None:
        """Everybody tells the third party her tokens and embedding."""
        if self.finder is not None and self.tokens is not None:
            draws = self.rng.child("matching", turn)
            self.finder.submit(self.tokens, self.learnt.indptr, self.vectors, draws)

    def around(self, users: NDArray[np.int64]) -> Neighbours | None:
        return None if self.finder is None else self.finder.answer(users)

    def clients(self, users: NDArray[np.int64]) -> WuClients:
        return WuClients(
            users,
            self.train.take_users(users),
            self.learnt.take_users(users),
            self.vectors[users],
            self.around(users),
        )

    def scorer(self, model: WuModel) -> FactorScorer:
        """h_u·We_j as a product of two factors. Each device computes its own."""
        size, place = self.config.embedding_size, model.items.device
        factors = np.zeros((self.train.n_users, size), dtype=np.float32)
        for start in range(0, self.train.n_users, self.config.cohort_size):
            users = np.arange(start, min(start + self.config.cohort_size, self.train.n_users))
            graphs = Graphs.of(self.learnt.take_users(users), self.around(users), size, place)
            own = model.layer.project(torch.from_numpy(self.vectors[users]).to(place))
            hidden = model.layer.users(own, model.layer.project(model.items[graphs.items]), graphs)
            factors[users] = (hidden @ model.layer.weight).cpu().numpy()
        return FactorScorer.of(factors, model.items.cpu().numpy())


def _able(train: Interactions) -> NDArray[np.int64]:
    counts = train.counts
    return np.flatnonzero((counts > 0) & (counts < train.n_items))


def _place(device: str) -> torch.device:
    try:
        place = torch.device(device)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError):  # of many kinds, all of which mean this
        raise UsageError(f"torch cannot use the device {device!r} here") from None
    return place
