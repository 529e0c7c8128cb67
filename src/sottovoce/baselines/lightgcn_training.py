"""LightGCN's propagation, loss and training loop, in torch. The equations are in `lightgcn`, which
imports this when it fits."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from sottovoce.baselines.base import Progress
from sottovoce.baselines.mult_vae_training import device_of as device_of
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import DataError, Diverged
from sottovoce.rng import Streams

if TYPE_CHECKING:
    from sottovoce.baselines.lightgcn import LightGCN


def adjacency(train: Interactions) -> Any:
    """D^(−½) A D^(−½) as a CSR array over users, then items; symmetric."""
    users, items = train.n_users, train.n_items
    weights = 1.0 / np.sqrt(train.counts[train.users] * train.item_counts[train.items])
    table = csr_array((weights.astype(np.float32), train.items, train.indptr), shape=(users, items))
    turned = table.T.tocsr()
    indptr = np.concatenate([table.indptr, table.indptr[-1] + turned.indptr[1:]])
    indices = np.concatenate([table.indices + users, turned.indices])
    values = np.concatenate([table.data, turned.data])
    return csr_array((values, indices, indptr), shape=(users + items, users + items))


def propagate(graph: Tensor, rows: Tensor, layers: int) -> Tensor:
    """The mean of the rows and of what they become in each layer."""
    total, moved = rows, rows
    for _ in range(layers):
        moved = graph @ moved
        total = total + moved
    return total / (layers + 1)


class Propagation(torch.autograd.Function):
    """`propagate`, which is linear and symmetric: gradients go back by the same way, and nothing
    but the graph has to be kept for them."""

    @staticmethod
    def forward(ctx: Any, graph: Tensor, rows: Tensor, layers: int) -> Tensor:
        ctx.graph, ctx.layers = graph, layers
        return propagate(graph, rows, layers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, propagate(ctx.graph, gradient, ctx.layers), None


def batch_loss(start: Tensor, final: Tensor, triples: Tensor, reg: float) -> Tensor:
    """Return the loss of triples [3, B], whose numbers are those of nodes: a user, a positive, a
    negative."""
    user, positive, negative = final[triples]
    ranking = F.softplus((user * (negative - positive)).sum(dim=1)).sum()
    return (ranking + 0.5 * reg * start[triples].square().sum()) / triples.shape[1]


def draw_negatives(
    train: Interactions, users: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """An item for each of these users, uniformly from those that are not in her training row."""
    keys = train.users.astype(np.int64) * train.n_items + train.items  # ascending
    found = rng.integers(0, train.n_items, len(users))
    wrong = np.arange(len(users))
    while len(wrong):
        wanted = users[wrong] * train.n_items + found[wrong]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        wrong = wrong[keys[place] == wanted]
        found[wrong] = rng.integers(0, train.n_items, len(wrong))
    return found


def fit(
    config: LightGCN, train: Interactions, rng: Streams, progress: Progress | None
) -> FactorScorer:
    able = (train.counts < train.n_items)[train.users]  # a negative can be drawn
    users, items = train.users[able].astype(np.int64), train.items[able].astype(np.int64)
    if not len(users):
        raise DataError("lightgcn needs at least one user with a positive and another item")
    rng, device = rng.child("lightgcn"), device_of(config.device)
    graph = _on(adjacency(train), device)
    start = _initial(train, config.embedding_size, rng.child("init")).to(device)
    start.requires_grad_()
    optimizer = torch.optim.Adam([start], lr=config.learning_rate)
    for epoch in range(config.epochs):
        draws = rng.child("epoch", epoch)
        order = draws.child("order").generator().permutation(len(users))
        negatives = draw_negatives(train, users, draws.child("negatives").generator())
        table = np.stack([users, items + train.n_users, negatives + train.n_users])[:, order]
        triples = torch.from_numpy(table).to(device)
        total = torch.zeros((), device=device)
        for first in range(0, len(users), config.batch_size):
            batch = triples[:, first : first + config.batch_size]
            optimizer.zero_grad()
            final = Propagation.apply(graph, start, config.layers)  # type: ignore[no-untyped-call]
            loss = batch_loss(start, final, batch, config.reg)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach()
        if not bool(torch.isfinite(total)):
            raise Diverged(
                f"lightgcn diverged in epoch {epoch + 1}; "
                f"use a learning_rate below {config.learning_rate:g}"
            )
        if progress is not None:
            progress(epoch + 1, config.epochs)
    with torch.no_grad():
        rows = propagate(graph, start, config.layers).cpu().numpy()
    vectors = np.where(train.counts[:, None] > 0, rows[: train.n_users], np.float32(0))
    bias = np.zeros(train.n_items, dtype=np.float32)
    return FactorScorer(vectors, rows[train.n_users :].copy(), bias)


def _initial(train: Interactions, size: int, rng: Streams) -> Tensor:
    """Xavier's uniform values, of users and of items by themselves."""

    def drawn(name: str, many: int) -> NDArray[np.float64]:
        draws = rng.child(name).uniform(np.arange(many), size)
        return np.asarray((2 * draws - 1) * np.sqrt(6 / (many + size)))

    both = np.concatenate([drawn("users", train.n_users), drawn("items", train.n_items)])
    return torch.from_numpy(both.astype(np.float32))


def _on(graph: Any, device: torch.device) -> Tensor:
    indptr, indices = (
        torch.from_numpy(part.astype(np.int64)) for part in (graph.indptr, graph.indices)
    )
    values = torch.from_numpy(graph.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that CSR may change in torch
        found = torch.sparse_csr_tensor(indptr, indices, values, graph.shape)
        return found.to(device)
