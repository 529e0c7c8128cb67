"""UC-FedRec's networks in torch: three base recommenders, and one filter per attribute.

Weights are explicit arguments, and every layer works on any number of leading axes: `[C, ...]` are
the copies of C clients, which learn side by side; `[1, ...]` is the server's model. A user's score
for an item is the product of their representations, `h_u · h_i`:

    MF      h = e
    NCF     h = [e ; unit(leaky(W e + b))], a tower for users and one for items
    GNN     the same, and the users' tower adds V · mean(e of the nearest users, herself included)

Weights are [out, in]. Numbers are drawn from `Streams`, so a model depends on its seed alone.
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
Kind = Literal["mf", "ncf", "gnn"]

SLOPE = 0.2
"""What a leaky unit lets through of numbers below 0."""
NEAREST = 10
"""Users that a user's tower averages over, herself included."""
TWO_LAYERS = (128,)
DEEP = (512, 1024, 512, 256, 128)
"""Hidden sizes of a filter about as large as those of the published code (1.35 M weights)."""


@dataclass(frozen=True, slots=True)
class Recommender:
    """A base recommender: which towers stand on the embeddings."""

    kind: Kind = "gnn"
    size: int = 128
    """d: numbers in an embedding."""

    def __post_init__(self) -> None:
        if self.kind not in ("mf", "ncf", "gnn"):
            raise ConfigError(f"the recommender must be mf, ncf or gnn, not {self.kind!r}")
        if self.size < 1:
            raise ConfigError(f"an embedding needs at least one number, not {self.size}")

    @property
    def width(self) -> int:
        """Numbers in a representation, which is what filters and attackers read."""
        return self.size if self.kind == "mf" else 2 * self.size

    @property
    def looks_around(self) -> bool:
        """Whether a user's representation depends on other users."""
        return self.kind == "gnn"

    def init(self, rng: Streams) -> dict[str, Tensor]:
        """The towers' first weights (Xavier's)."""
        if self.kind == "mf":
            return {}
        square = (self.size, self.size)
        towers = {
            "user": xavier(rng.child("user"), *square),
            "user_bias": torch.zeros(self.size),
            "item": xavier(rng.child("item"), *square),
            "item_bias": torch.zeros(self.size),
        }
        return towers | (
            {"around": xavier(rng.child("around"), *square)} if self.kind == "gnn" else {}
        )

    def user(
        self, own: Tensor, around: Tensor, towers: Weights, kept: Tensor | None = None
    ) -> Tensor:
        """h_u [C, B, width] of embeddings [C, B, d] and the means of their nearest [C, B, d]; the
        latter count for a GNN only. `kept` scales the tower's units (dropout)."""
        if self.kind == "mf":
            return own
        units = _linear(own, towers["user"], towers["user_bias"])
        if self.kind == "gnn":
            units = units + around @ towers["around"].mT
        return _beside(own, units, kept)

    def item(self, rows: Tensor, towers: Weights, kept: Tensor | None = None) -> Tensor:
        """h_i [C, B, width] of embeddings [C, B, d]."""
        if self.kind == "mf":
            return rows
        return _beside(rows, _linear(rows, towers["item"], towers["item_bias"]), kept)


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that has a filter."""

    name: str
    classes: int
    hidden: tuple[int, ...] = TWO_LAYERS

    def __post_init__(self) -> None:
        if self.classes < 2 or any(size < 1 for size in self.hidden):
            raise ConfigError(f"{self.name}: a filter needs two classes and layers with units")

    def init(self, width: int, rng: Streams) -> dict[str, Tensor]:
        """The filter's first weights: `weight0`, `bias0`, `weight1`, ..."""
        sizes = (width, *self.hidden, self.classes)
        weights: dict[str, Tensor] = {}
        for layer, (enter, leave) in enumerate(pairwise(sizes)):
            weights[f"weight{layer}"] = xavier(rng.child(layer), leave, enter)
            weights[f"bias{layer}"] = torch.zeros(leave)
        return weights


def guess(representations: Tensor, weights: Weights) -> Tensor:
    """A filter's logits [C, B, classes] for representations [C, B, width]."""
    layers = len(weights) // 2
    values = representations
    for layer in range(layers):
        if layer:
            values = F.leaky_relu(values, SLOPE)
        values = _linear(values, weights[f"weight{layer}"], weights[f"bias{layer}"])
    return values


def divergence(target: Tensor, log_q: Tensor) -> Tensor:
    """KL(target ‖ q) for each row of log q."""
    return torch.xlogy(target, target).sum() - (target * log_q).sum(dim=1)


@dataclass(frozen=True, slots=True, repr=False)
class Model:
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
        if len(self.filters) != len(self.attributes):
            raise DataError("a model needs one filter per attribute")

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
    ) -> Model:
        """The model before the first round. Filters change nothing of the rest."""
        return cls(
            recommender,
            tuple(attributes),
            xavier(rng.child("users"), n_users, recommender.size),
            xavier(rng.child("items"), n_items, recommender.size),
            recommender.init(rng.child("towers")),
            tuple(a.init(recommender.width, rng.child("filter", a.name)) for a in attributes),
        )

    def to(self, device: torch.device | str) -> Model:
        return Model(
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
        """h_u [N, width] and h_i [M, width]: all that recommendations, and attackers, need."""
        own, rows = self.users[None], self.items[None]
        around = own
        if self.recommender.looks_around:
            every = torch.arange(len(self.users), device=self.users.device)
            around = self.users[self.nearest(every)].mean(dim=1)[None]
        towers = {name: weight[None] for name, weight in self.towers.items()}
        return (
            self.recommender.user(own, around, towers)[0],
            self.recommender.item(rows, towers)[0],
        )


def xavier(rng: Streams, rows: int, columns: int) -> Tensor:
    """Uniform on ±√(6 / (rows + columns)); a row does not depend on how many follow, but for the
    bound."""
    draws = 2.0 * rng.uniform(np.arange(rows), columns) - 1.0
    return torch.from_numpy((draws * np.sqrt(6.0 / (rows + columns))).astype(np.float32))


def _linear(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return values @ weight.mT + bias[..., None, :]


def _beside(embedding: Tensor, units: Tensor, kept: Tensor | None) -> Tensor:
    active = F.leaky_relu(units, SLOPE)
    if kept is not None:
        active = active * kept
    return torch.cat([embedding, F.normalize(active, dim=-1)], dim=-1)
