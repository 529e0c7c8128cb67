"""UC-FedRec's model as a table of rows, which is what servers publish and devices send.

Items come first, a row each; then the towers' weights, then each filter's, laid end to end and cut
into rows as long as an embedding. Behind the numbers of a row there is one more: 0 in a model, 1 in
an update, so that a sum of updates tells how many devices sent the row. (Where the sum will have
noise it is 0 in updates, too: to count would cost, and noise would spoil the count.) Rows of a
network are sent together or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.uc.networks import (
    DEEP,
    TWO_LAYERS,
    Attribute,
    Recommender,
    UCModel,
    Weights,
)
from sottovoce.algorithms.uc.options import UCOptions
from sottovoce.core.messages import GRID, LIMIT
from sottovoce.core.redacted import Redacted
from sottovoce.errors import Diverged
from sottovoce.rng import Streams


@dataclass(frozen=True, slots=True, repr=False)
class ClientUpdates(Redacted):
    """Each client's weights less those it was given, clipped where they are to be sent.

    Rows of items beyond a client's own are numbered -1 and hold zeros. Filters that a client does
    not train hold zeros, and `shared` tells which those are."""

    users: Tensor
    """[C, d]. These stay on the devices, and are not clipped."""
    item_rows: Tensor
    items: Tensor
    """[C, R, d], for the items in `item_rows` [C, R]."""
    liked: Tensor
    """[C]: how many of these are hers."""
    towers: Weights
    filters: tuple[Weights, ...]
    shared: Tensor

    def __len__(self) -> int:
        return len(self.users)

    def without(self, held: Tensor) -> ClientUpdates:
        """The same less some rows of items that clients have; `held` is [C, R]."""
        return replace(
            self,
            item_rows=self.item_rows.masked_fill(held, -1),
            items=self.items * ~held[..., None],
            liked=self.liked - held.sum(dim=1),
        )


Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Hidden = tuple[int, ...] | None
_HIDDEN: Mapping[str, Hidden] = {"moments": None, "two-layer": TWO_LAYERS, "deep": DEEP}


@dataclass(frozen=True, slots=True)
class NetworkPart:
    """A network's place in the table."""

    first: int
    rows: int
    shapes: Shapes

    @property
    def stop(self) -> int:
        return self.first + self.rows

    def weights(self, table: Tensor) -> dict[str, Tensor]:
        """From its rows, [..., rows, size]."""
        flat, found, start = table.flatten(-2), {}, 0
        for name, shape in self.shapes:
            stop = start + math.prod(shape)
            found[name] = flat[..., start:stop].reshape(*flat.shape[:-1], *shape)
            start = stop
        return found

    def lines(self, weights: Mapping[str, Tensor], size: int) -> Tensor:
        """The inverse: [..., rows, size]; networks may have leading axes."""
        axes = next(iter(weights.values())).ndim - len(self.shapes[0][1])
        flat = torch.cat([weights[name].flatten(axes) for name, _ in self.shapes], dim=axes)
        padded = torch.nn.functional.pad(flat, (0, self.rows * size - flat.shape[-1]))
        return padded.reshape(*padded.shape[:-1], self.rows, size)


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """Where everything stands in the table."""

    n_items: int
    recommender: Recommender
    attributes: tuple[Attribute, ...]
    towers: NetworkPart | None
    filters: tuple[NetworkPart, ...]
    n_rows: int

    @classmethod
    def of(cls, settings: UCOptions, n_items: int) -> ModelLayout:
        settings.require_classes()
        layers = _HIDDEN[settings.filters]
        filters = tuple((a.name, len(a.classes), layers) for a in settings.attributes)
        return _layout(settings.recommender, settings.embedding_size, filters, n_items)

    def start(self, scale: float, rng: Streams) -> NDArray[np.float32]:
        """The model before the first round."""
        size, table = self.recommender.size, np.zeros((self.n_rows, self.recommender.size + 1))
        numbers = np.arange(self.n_items, dtype=np.int64)
        uniform = rng.child("init-items").uniform(numbers, size)
        table[: self.n_items, :size] = scale * (2.0 * uniform - 1.0)
        networks = []
        if self.towers is not None:
            networks.append((self.towers, self.recommender.init(rng.child("init-towers"))))
        for part, attribute in zip(self.filters, self.attributes, strict=True):
            stream = rng.child("init-filter", attribute.name)
            networks.append((part, attribute.init(self.recommender, stream)))
        for part, weights in networks:
            table[self._span(part), :size] = part.lines(weights, size).numpy()
        return table.astype(np.float32)

    def model(
        self, table: NDArray[np.float32], vectors: NDArray[np.float32], place: torch.device
    ) -> UCModel:
        """The networks that a table and the users' embeddings stand for."""
        size = self.recommender.size
        rows = torch.tensor(table[:, :size], device=place)
        return UCModel(
            self.recommender,
            self.attributes,
            torch.tensor(vectors, device=place),
            rows[: self.n_items],
            {} if self.towers is None else self.towers.weights(rows[self._span(self.towers)]),
            tuple(part.weights(rows[self._span(part)]) for part in self.filters),
        )

    def sums(self, updates: ClientUpdates, counted: bool = True) -> Tensor:
        """[rows, size + 1]: what these clients send, added up on the grid."""
        size, place, one = self.recommender.size, updates.items.device, int(GRID) * counted
        total = torch.zeros((self.n_rows, size + 1), dtype=torch.int64, device=place)
        there = updates.item_rows >= 0
        known = updates.item_rows[there]
        total[:, :size].index_add_(0, known, on_grid(updates.items[there]))
        total[:, size].index_add_(0, known, torch.full_like(known, one))
        for part, lines, sent in self._networks(updates):
            total[self._span(part), :size] = on_grid(lines[sent]).sum(dim=0)
            total[self._span(part), size] = int(sent.sum()) * one
        return total

    def messages(
        self, updates: ClientUpdates, counted: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What each client sends: the rows' numbers, ascending, and their values on the grid,
        [rows, size + 1]."""
        networks = self._networks(updates)
        for client, item_rows in enumerate(updates.item_rows):
            there = item_rows >= 0
            numbers, values = [item_rows[there]], [on_grid(updates.items[client][there])]
            for part, lines, sent in networks:
                if bool(sent[client]):
                    numbers.append(torch.arange(part.first, part.stop, device=there.device))
                    values.append(on_grid(lines[client]))
            every = torch.cat(values)
            ones = torch.full_like(every[:, :1], int(GRID) * counted)
            yield torch.cat(numbers), torch.cat([every, ones], dim=1)

    def within(self, updates: ClientUpdates, clip: float) -> bool:
        """Whether what each client sends keeps to an L1 norm of `clip` on the grid."""
        size = on_grid(updates.items).abs().sum(dim=(1, 2))
        for _, lines, sent in self._networks(updates):
            size += on_grid(lines).abs().sum(dim=(1, 2)) * sent
        return bool((size <= int(clip * GRID)).all())

    def network_rows(self, shared: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many rows of networks each client sends, by what it shares [clients, attributes]."""
        towers = 0 if self.towers is None else self.towers.rows
        each = np.array([part.rows for part in self.filters], dtype=np.int64)
        count: NDArray[np.int64] = towers + shared @ each
        return count

    def _networks(self, updates: ClientUpdates) -> list[tuple[NetworkPart, Tensor, Tensor]]:
        """Each network: its place, its lines [clients, rows, size], and who sends it."""
        size, found = self.recommender.size, []
        if self.towers is not None:
            everyone = torch.ones(len(updates), dtype=torch.bool, device=updates.items.device)
            found.append((self.towers, self.towers.lines(updates.towers, size), everyone))
        for t, part in enumerate(self.filters):
            found.append((part, part.lines(updates.filters[t], size), updates.shared[:, t]))
        return found

    def _span(self, part: NetworkPart) -> slice:
        return slice(part.first, part.stop)


def on_grid(change: Tensor) -> Tensor:
    """Whole numbers of the grid, rounded towards 0, so that nothing grows."""
    least, most = change.aminmax() if change.numel() else (0.0, 0.0)
    if not (least >= -LIMIT and most <= LIMIT):  # NaN fails this, too
        raise Diverged("an update is not finite, or far too large; lower the step sizes, or clip")
    return change.double().mul_(GRID).trunc_().long()


@cache
def _layout(
    kind: str, size: int, filters: tuple[tuple[str, int, Hidden], ...], n_items: int
) -> ModelLayout:
    recommender = Recommender(kind, size)  # type: ignore[arg-type]
    attributes = tuple(Attribute(*each) for each in filters)
    first, parts = n_items, []
    for weights in [recommender.shapes(), *(a.shapes(recommender) for a in attributes)]:
        shapes = tuple(weights.items())
        rows = -(-sum(math.prod(shape) for _, shape in shapes) // size)
        parts.append(NetworkPart(first, rows, shapes))
        first += rows
    towers = parts[0] if parts[0].rows else None
    return ModelLayout(n_items, recommender, attributes, towers, tuple(parts[1:]), first)
