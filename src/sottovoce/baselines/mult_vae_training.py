"""Mult-VAE's network, loss and training loop, in torch. The equations are in `mult_vae`, which
imports this when it fits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.baselines.base import Progress
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import Streams

if TYPE_CHECKING:
    from sottovoce.baselines.mult_vae import MultVAE

_KL_WEIGHT, _ANNEAL_STEPS = 0.2, 200_000


def beta(step: int) -> float:
    """The weight of the KL term in batch `step`, counted from 0."""
    return _KL_WEIGHT * min(1.0, step / _ANNEAL_STEPS)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BatchRows:
    """A batch of users' items, compressed by user."""

    items: Tensor
    owners: Tensor
    """The row of the batch each item belongs to."""
    starts: Tensor
    """Where each row begins in `items`."""
    weights: Tensor
    """What the encoder sees of each item."""

    @classmethod
    def of(
        cls,
        train: Interactions,
        users: NDArray[np.int64],
        device: torch.device,
        kept: NDArray[np.float64] | None = None,
    ) -> BatchRows:
        """BatchRows of unit length; `kept` then scales each interaction of the table (dropout)."""
        counts = train.counts[users]
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        entries = np.repeat(train.indptr[users] - starts, counts) + np.arange(counts.sum())
        weights = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
        if kept is not None:
            weights = weights * kept[entries]
        columns = (
            train.items[entries].astype(np.int64),
            np.repeat(np.arange(len(users)), counts),
            starts,
            weights.astype(np.float32),
        )
        return cls(*(torch.from_numpy(column).to(device) for column in columns))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Network:
    """Weights are [out, in]; the first layer is looked up by item, so it is [items, hidden]."""

    enter: Tensor
    enter_bias: Tensor
    latent: Tensor
    """μ above, log σ² below."""
    latent_bias: Tensor
    leave: Tensor
    leave_bias: Tensor
    output: Tensor
    output_bias: Tensor

    @classmethod
    def init(
        cls, n_items: int, hidden: int, embedding: int, rng: Streams, device: torch.device
    ) -> Network:
        """Xavier's uniform weights and zero biases."""

        def layer(name: str, rows: int, columns: int, fans: int) -> Tensor:
            draws = rng.child(name).uniform(np.arange(rows), columns)
            values = (2 * draws - 1) * np.sqrt(6 / fans)
            return torch.from_numpy(values.astype(np.float32)).to(device).requires_grad_()

        def zeros(size: int) -> Tensor:
            return torch.zeros(size, device=device, requires_grad=True)

        return cls(
            layer("enter", n_items, hidden, n_items + hidden),
            zeros(hidden),
            layer("latent", 2 * embedding, hidden, embedding + hidden),
            zeros(2 * embedding),
            layer("leave", hidden, embedding, embedding + hidden),
            zeros(hidden),
            layer("output", n_items, hidden, n_items + hidden),
            zeros(n_items),
        )

    def tensors(self) -> list[Tensor]:
        # dataclasses.astuple would copy them, and the optimiser would train the copies.
        return [getattr(self, field.name) for field in fields(self)]

    def encode(self, rows: BatchRows) -> tuple[Tensor, Tensor]:
        """μ and log σ². The input is sparse, so the first layer is a weighted sum of rows."""
        first = F.embedding_bag(
            rows.items, self.enter, rows.starts, mode="sum", per_sample_weights=rows.weights
        )
        both = F.linear(torch.tanh(first + self.enter_bias), self.latent, self.latent_bias)
        mean, log_variance = both.chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """The decoder's hidden layer; `output` and `output_bias` turn it into logits."""
        return torch.tanh(F.linear(z, self.leave, self.leave_bias))

    def loss(self, rows: BatchRows, noise: NDArray[np.float64], beta: float) -> Tensor:
        """Mean over the batch of −Σ x log softmax + β KL."""
        mean, log_variance = self.encode(rows)
        z = mean + torch.exp(0.5 * log_variance) * torch.from_numpy(noise).to(mean)
        logits = F.linear(self.decode(z), self.output, self.output_bias)
        likelihood = F.log_softmax(logits, dim=1)[rows.owners, rows.items].sum()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
        return (beta * kl - likelihood) / len(logits)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class EncodedScorer(FactorScorer):
    """A factor model with the network that made its users' vectors."""

    network: Network


def fit(
    config: MultVAE, train: Interactions, rng: Streams, progress: Progress | None
) -> FactorScorer:
    learners = np.flatnonzero(train.counts)
    if not len(learners):
        raise DataError("mult-vae has nothing to learn from: no user has a positive item")
    rng = rng.child("mult-vae")
    device = device_of(config.device)
    hidden, embedding = config.hidden_size, config.embedding_size
    network = Network.init(train.n_items, hidden, embedding, rng.child("init"), device)
    optimizer = torch.optim.Adam(network.tensors(), lr=config.learning_rate, fused=True)
    step = 0
    for epoch in range(config.epochs):
        draws = rng.child("epoch", epoch)
        order = draws.child("order").generator().permutation(learners)
        kept = _kept(config.dropout, train.n_interactions, draws.child("dropout"))
        total = torch.zeros((), device=device)
        for first in range(0, len(order), config.batch_size):
            users = order[first : first + config.batch_size]
            rows = BatchRows.of(train, users, device, kept)
            noise = draws.child("noise").normal(users, embedding)
            optimizer.zero_grad()
            loss = network.loss(rows, noise, beta(step))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach()
            step += 1
        if not bool(torch.isfinite(total)):
            raise Diverged(
                f"mult-vae diverged in epoch {epoch + 1}; "
                f"use a learning_rate below {config.learning_rate:g}"
            )
        if progress is not None:
            progress(epoch + 1, config.epochs)
    return encoded(network, train, config.batch_size)


def _kept(dropout: float, n_interactions: int, rng: Streams) -> NDArray[np.float64]:
    """0 for a dropped interaction, 1 / (1 − dropout) for one that stays."""
    draws = rng.uniform(np.zeros(1, dtype=np.int64), n_interactions)[0]
    return np.where(draws >= dropout, 1 / (1 - dropout), 0.0)


def encoded(network: Network, train: Interactions, batch_size: int) -> EncodedScorer:
    """What the network makes of these histories."""
    device = network.enter.device
    factors = np.empty((train.n_users, network.output.shape[1]), dtype=np.float32)
    with torch.no_grad():
        for first in range(0, train.n_users, batch_size):
            users = np.arange(first, min(first + batch_size, train.n_users))
            mean, _ = network.encode(BatchRows.of(train, users, device))
            factors[users] = network.decode(mean).cpu().numpy()
    output, bias = network.output.detach().cpu(), network.output_bias.detach().cpu()
    return EncodedScorer(factors, output.numpy(), bias.numpy(), network)


def device_of(name: str) -> torch.device:
    """The device of that name, where torch has it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f'device must be "cpu", "cuda" or "cuda:N", not {name!r}')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f'torch sees no device {name!r} here; use device = "cpu"')
    return device
