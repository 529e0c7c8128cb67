"""UC-FedRec's networks in torch: four base recommenders, and one filter per attribute.

Weights are explicit arguments, and every layer works on any number of leading axes: `[C, ...]` are
the copies of C clients, which learn side by side; `[1, ...]` is the server's model. A user's score
for an item is the product of their representations, `h_u · h_i`, for

    MF      h = e
    NCF     h = [e ; unit(leaky(W e + b))], a tower for users and one for items
    GNN     the same, and the users' tower adds V · mean(e of the nearest users, herself included)

and a network's output for

    NeuMF   h = e = [g ; m];  v · [g_u * g_i ; MLP(m_u, m_i)] + c   (He et al., 2017)

Weights are [out, in]. Numbers are drawn from `Streams`, so a model depends on its seed alone.

On a processor, sums over one user's numbers are not matrix products: a library's product may round
otherwise for one client than for many, and a device must find what a simulation finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams

Weights = Mapping[str, Tensor]
Kind = Literal["mf", "ncf", "gnn", "neumf"]

SLOPE = 0.2
"""What a leaky unit lets through of numbers below 0."""
NEAREST = 10
"""Users that a user's tower averages over, herself included."""
TWO_LAYERS = (128,)
DEEP = (512, 1024, 512, 256, 128)
"""Hidden sizes of a filter about as large as those of the published code (1.35 M weights)."""
_FIRST_SPREAD = 1e-3
_LEAST = 1e-8
_RARE = 0.02
"""Classes with a share far below this count for less: nobody has seen enough of them."""
_PULLS = (10.0, 1.0, 0.1)
"""How strongly a linear guess takes all directions for alike, in units of how much e_u varies."""
_SLAB = 1 << 22
"""Numbers that an evaluation holds at a time: 16 MB, which caches like."""


@dataclass(frozen=True, slots=True)
class Recommender:
    """A base recommender: which towers stand on the embeddings."""

    kind: Kind = "gnn"
    size: int = 128
    """d: numbers in an embedding."""

    def __post_init__(self) -> None:
        if self.kind not in ("mf", "ncf", "gnn", "neumf"):
            raise ConfigError(f"the recommender must be mf, ncf, gnn or neumf, not {self.kind!r}")
        least = 5 if self.kind == "neumf" else 1
        if self.size < least:
            raise ConfigError(f"an embedding for {self.kind} needs at least {least} numbers")

    @property
    def width(self) -> int:
        """Numbers in a representation, which is what filters and attackers read."""
        return 2 * self.size if self.drops else self.size

    @property
    def needs_whole_cohort(self) -> bool:
        """Whether a user's representation depends on other users."""
        return self.kind == "gnn"

    @property
    def drops(self) -> bool:
        """Whether there are towers, whose units dropout may leave out."""
        return self.kind in ("ncf", "gnn")

    @property
    def pairwise(self) -> bool:
        """Whether it learns that one item is liked more than another (BPR), rather than which are
        liked (cross entropy)."""
        return self.kind != "neumf"

    @property
    def parts(self) -> tuple[int, int]:
        """NeuMF: numbers of an embedding for the product, and for the network."""
        return self.size // 5, self.size - self.size // 5

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The towers' (or NeuMF's network's) weights by name."""
        square, bias = (self.size, self.size), (self.size,)
        if self.kind == "mf":
            return {}
        if self.kind == "neumf":
            product, wide = self.parts
            layers = _layers((2 * wide, wide, wide // 2, wide // 4))
            return layers | {"out": (1, product + wide // 4), "out_bias": (1,)}
        towers = {"user": square, "user_bias": bias, "item": square, "item_bias": bias}
        return towers | ({"around": square} if self.kind == "gnn" else {})

    def init(self, rng: Streams) -> dict[str, Tensor]:
        """The towers' first weights (Xavier's); biases are 0."""
        return _first(self.shapes(), rng)

    def user(
        self, own: Tensor, around: Tensor, towers: Weights, kept: Tensor | None = None
    ) -> Tensor:
        """h_u [C, B, width] of embeddings [C, B, d] and the means of their nearest [C, B, d]; the
        latter count for a GNN only. `kept` scales the tower's units (dropout)."""
        if not self.drops:
            return own
        units = _linear(own, towers["user"], towers["user_bias"])
        if self.kind == "gnn":
            units = units + times(around, towers["around"])
        return _beside(own, units, kept)

    def item(self, rows: Tensor, towers: Weights, kept: Tensor | None = None) -> Tensor:
        """h_i [C, B, width] of embeddings [C, B, d]."""
        if not self.drops:
            return rows
        return _beside(rows, _linear(rows, towers["item"], towers["item_bias"]), kept)

    def score(self, user: Tensor, item: Tensor, towers: Weights) -> Tensor:
        """[C, B]: the scores of items [C, B, width] for one user each [C, 1, width]."""
        if self.kind != "neumf":
            return _products(user, item)
        user_factors, user_rest = user.split_with_sizes(self.parts, -1)
        factors, rest = item.split_with_sizes(self.parts, -1)
        by_user, by_item = towers["weight0"].chunk(2, -1)
        first = times(rest, by_item) + _linear(user_rest, by_user, towers["bias0"])
        return self._judge(user_factors * factors, first, towers)

    def _judge(self, products: Tensor, first: Tensor, towers: Weights) -> Tensor:
        """[C, B]: NeuMF's scores from the products g_u * g_i and its first layer's sums."""
        values = F.relu(first)
        for layer in (1, 2):
            values = F.relu(_linear(values, towers[f"weight{layer}"], towers[f"bias{layer}"]))
        sizes = (products.shape[-1], values.shape[-1])
        for_products, for_values = towers["out"].split_with_sizes(sizes, -1)
        told = _products(for_products, products) + _products(for_values, values)
        return told + towers["out_bias"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that has a filter: a network, or the moments of those who share.

    A filter of moments holds the mean of e_u over those who share (`center`), how it varies
    (`moments`), and how it goes with classes (`means`: of (1 − share)(e_u − center) for one's own
    class, −share (e_u − center) for the others). From these follow all linear guesses at once, from
    the plainest, which goes by classes' means alone, to those that make the most of directions in
    which e_u varies little. A network is but one guess: fooling it, by a nudge where it looks,
    fools no other attacker.
    """

    name: str
    classes: int
    hidden: tuple[int, ...] | None = TWO_LAYERS
    """The layers between; none for a linear network, None for a filter of moments."""

    def __post_init__(self) -> None:
        if self.classes < 2 or any(size < 1 for size in self.hidden or ()):
            raise ConfigError(f"{self.name}: a filter needs two classes and layers with units")

    def shapes(self, recommender: Recommender) -> dict[str, tuple[int, ...]]:
        """`weight0`, `bias0`, `weight1`, ... of a network that reads h_u, or moments of e_u."""
        if self.hidden is None:
            size = recommender.size
            return {"center": (size,), "moments": (size, size), "means": (self.classes, size)}
        return _layers((recommender.width, *self.hidden, self.classes))

    def init(self, recommender: Recommender, rng: Streams) -> dict[str, Tensor]:
        """The filter's first weights; biases are 0, and moments tell nothing."""
        shapes = self.shapes(recommender)
        if self.hidden is not None:
            return _first(shapes, rng)
        weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
        weights["moments"].fill_diagonal_(_FIRST_SPREAD)
        return weights


def guess(representations: Tensor, weights: Weights) -> Tensor:
    """A network's logits [C, B, classes] for representations [C, B, width]."""
    layers = len(weights) // 2
    values = representations
    for layer in range(layers):
        if layer:
            values = F.leaky_relu(values, SLOPE)
        values = _linear(values, weights[f"weight{layer}"], weights[f"bias{layer}"])
    return values


@dataclass(frozen=True, slots=True, repr=False)
class Guesses:
    """The linear guesses of a filter of moments: logits are ln shares + lines · (e_u − center)."""

    center: Tensor
    spread: Tensor
    """[d, d], its square root: times a standard normal vector, somebody like those who share."""
    lines: Tensor
    """[guesses, classes, d]"""
    shares: Tensor

    @classmethod
    def of(cls, weights: Weights, shares: Tensor) -> Guesses:
        """As linear discriminants have it, with what varies pulled to the same in all directions,
        less and less. What devices send may be noise, so that nothing here relies on moments that
        can be."""
        place, square = shares.device, weights["moments"].double()
        # On the processor: so small a table need not wait for a GPU that others use.
        spread, axes = (x.to(place) for x in torch.linalg.eigh(((square + square.mT) / 2).cpu()))
        spread = spread.clamp(min=0.0)
        usual = spread.mean().clamp(min=_LEAST)
        sides = (weights["means"] / (shares + _RARE)[:, None]).double() @ axes
        lines = [sides * (1.0 + pull) / (spread + pull * usual) @ axes.mT for pull in _PULLS]
        root = axes * spread.sqrt()
        return cls(weights["center"], root.float(), torch.stack(lines).float(), shares)

    def bend(self) -> Tensor:
        """[d, d]: how KL(shares ‖ q), on average over guesses, bends about the center, where it is
        lowest. In double precision: rounded to single, it would bend the wrong way somewhere."""
        lines, shares = self.lines.double(), self.shares.double() / self.shares.double().sum()
        spread = torch.diag(shares) - shares[:, None] * shares
        return (lines.mT @ spread @ lines).mean(dim=0)

    def tell(self, representations: Tensor) -> Tensor:
        """[C, B]: how far these say of representations [C, B, width] other than the shares: the
        mean of KL(shares ‖ q) over them."""
        own = representations[..., : len(self.center)] - self.center
        flat = self.lines.flatten(0, 1)
        logits = times(own, flat.expand(len(own), *flat.shape))
        logits = logits.reshape(*logits.shape[:-1], *self.lines.shape[:2])
        log_q = F.log_softmax(logits + self.shares.clamp(min=_LEAST).log(), dim=-1)
        return divergence(self.shares, log_q.flatten(0, 2)).view(log_q.shape[:3]).mean(dim=-1)


def tells(representations: Tensor, weights: Weights, target: Tensor) -> Tensor:
    """[C, B]: how far what a filter, or on average each guess of one of moments, says of these
    [C, B, width] is from `target`: KL(target ‖ q). Weights are those of one filter for all."""
    if "moments" in weights:
        return Guesses.of(weights, target).tell(representations)
    stacked = {name: weight[None] for name, weight in weights.items()}
    log_q = F.log_softmax(guess(representations, stacked), dim=-1)
    return divergence(target, log_q.flatten(0, 1)).view(log_q.shape[:2])


def divergence(target: Tensor, log_q: Tensor) -> Tensor:
    """KL(target ‖ q) for each row of log q."""
    return torch.xlogy(target, target).sum() - (target * log_q).sum(dim=1)


@dataclass(frozen=True, slots=True, repr=False)
class UCModel:
    """What the server holds: embeddings of users [N, d] and items [M, d], towers, filters."""

    recommender: Recommender
    attributes: tuple[Attribute, ...]
    users: Tensor
    items: Tensor
    towers: Weights
    filters: tuple[Weights, ...]

    def __post_init__(self) -> None:
        size = self.recommender.size
        if self.users.shape[1:] != (size,) or self.items.shape[1:] != (size,):
            raise DataError(f"embeddings must be rows of {size} numbers")
        if _shapes(self.towers) != self.recommender.shapes():
            raise DataError(f"towers have other weights than {self.recommender.kind} needs")
        if len(self.filters) != len(self.attributes):
            raise DataError("a model needs one filter per attribute")
        for attribute, weights in zip(self.attributes, self.filters, strict=True):
            if _shapes(weights) != attribute.shapes(self.recommender):
                raise DataError(f"{attribute.name}: the filter has other weights than it needs")

    def __repr__(self) -> str:
        shape = f"{len(self.users):,} users, {len(self.items):,} items"
        return f"<Model {self.recommender.kind}, {shape}, {len(self.filters)} filters>"

    @classmethod
    def init(
        cls,
        recommender: Recommender,
        n_users: int,
        n_items: int,
        attributes: Sequence[Attribute],
        rng: Streams,
    ) -> UCModel:
        """The model before the first round. Filters change nothing of the rest."""
        return cls(
            recommender,
            tuple(attributes),
            xavier(rng.child("users"), n_users, recommender.size),
            xavier(rng.child("items"), n_items, recommender.size),
            recommender.init(rng.child("towers")),
            tuple(a.init(recommender, rng.child("filter", a.name)) for a in attributes),
        )

    def to(self, device: torch.device | str) -> UCModel:
        return UCModel(
            self.recommender,
            self.attributes,
            self.users.to(device),
            self.items.to(device),
            {name: weight.to(device) for name, weight in self.towers.items()},
            tuple({name: w.to(device) for name, w in f.items()} for f in self.filters),
        )

    def nearest(self, rows: Tensor, k: int = NEAREST) -> Tensor:
        """[len(rows), k]: each user and those with the most similar embeddings (cosine)."""
        units = F.normalize(self.users, dim=1)
        similar = units[rows] @ units.T
        similar[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        return similar.topk(min(k, len(units)), dim=1).indices

    def represent(self) -> tuple[Tensor, Tensor]:
        """h_u [N, width] and h_i [M, width]: all that attackers need, and, but for NeuMF, all that
        recommendations need."""
        every = torch.arange(len(self.users), device=self.users.device)
        return self._users(every), self.recommender.item(self.items[None], self._towers())[0]

    def scores(self, rows: Tensor) -> Tensor:
        """[len(rows), M]: what these users think of every item. Beside the result it holds no more
        than 256 MB."""
        if self.recommender.kind != "neumf":
            items = self.recommender.item(self.items[None], self._towers())[0]
            return self._users(rows) @ items.T
        wide = self.recommender.parts[1]
        towers = self._towers()
        by_user, by_item = self.towers["weight0"].chunk(2, -1)
        by_items = self.items[:, -wide:] @ by_item.T
        told = self.users.new_empty((len(rows), len(self.items)))
        pairs = max(1, _SLAB // (4 * self.recommender.size))
        for some in range(0, len(self.items), pairs):
            there = slice(some, some + pairs)
            step = max(1, pairs // len(self.items[there]))
            for start in range(0, len(rows), step):
                users = self.users[rows[start : start + step]]
                by_users = users[:, -wide:] @ by_user.T + self.towers["bias0"]
                first = (by_users[:, None] + by_items[there]).view(1, -1, wide)
                products = users[:, None, :-wide] * self.items[there, :-wide]
                slab = self.recommender._judge(products.flatten(0, 1)[None], first, towers)
                told[start : start + step, there] = slab.view(len(users), -1)
        return told

    def _users(self, rows: Tensor) -> Tensor:
        """h_u of these users."""
        own = self.users[rows]
        around = own
        if self.recommender.needs_whole_cohort:
            parts = torch.split(rows, max(1, _SLAB // max(1, len(self.users))))
            around = torch.cat([self.users[self.nearest(part)].mean(dim=1) for part in parts])
        return self.recommender.user(own[None], around[None], self._towers())[0]

    def _towers(self) -> dict[str, Tensor]:
        return {name: weight[None] for name, weight in self.towers.items()}


def xavier(rng: Streams, rows: int, columns: int) -> Tensor:
    """Uniform on ±√(6 / (rows + columns)); a row does not depend on how many follow, but for the
    bound."""
    draws = 2.0 * rng.uniform(np.arange(rows), columns) - 1.0
    return torch.from_numpy((draws * np.sqrt(6.0 / (rows + columns))).astype(np.float32))


def _layers(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a network with layers of these sizes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (enter, leave) in enumerate(pairwise(sizes)):
        shapes |= {f"weight{layer}": (leave, enter), f"bias{layer}": (leave,)}
    return shapes


def _first(shapes: Mapping[str, tuple[int, ...]], rng: Streams) -> dict[str, Tensor]:
    return {
        name: xavier(rng.child(name), *shape) if len(shape) == 2 else torch.zeros(shape)
        for name, shape in shapes.items()
    }


def _shapes(weights: Weights) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def _linear(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return times(values, weight) + bias[..., None, :]


def times(values: Tensor, weight: Tensor) -> Tensor:
    """[C, B, out] of values [C, B, in] and weights [C, out, in]."""
    if values.is_cuda:
        return values @ weight.mT
    if values.shape[-2] == 1:
        return (values * weight).sum(dim=-1)[..., None, :]
    # A product rounds otherwise where a client's part does not begin at a multiple of 16 bytes.
    odd = -weight.shape[-2] % 4
    if odd:
        return (values @ F.pad(weight, (0, 0, 0, odd)).mT)[..., :-odd]
    return values @ weight.mT


def _products(one: Tensor, rows: Tensor) -> Tensor:
    """[C, B] of one row each [C, 1, W] and rows [C, B, W]."""
    return (rows @ one.mT)[..., 0] if rows.is_cuda else (rows * one).sum(dim=-1)


def _beside(embedding: Tensor, units: Tensor, kept: Tensor | None) -> Tensor:
    active = F.leaky_relu(units, SLOPE)
    if kept is not None:
        active = active * kept
    return torch.cat([embedding, F.normalize(active, dim=-1)], dim=-1)
