"""Mult-VAE's network and training, in torch. Import it through `MultVAE.fit` only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.baselines.base import Progress
from sottovoce.baselines.mult_vae import MultVAE
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.recommender import FactorScorer
from sottovoce.rng import Streams


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Rows:
    """A batch of users' items, compressed by user."""

    items: Tensor
    owners: Tensor
    """The row of the batch each item belongs to."""
    starts: Tensor
    """Where each row begins in `items`."""
    weights: Tensor
    """What the encoder sees of each item."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Network:
    """Weights are [out, in]; the first layer is looked up by item, so it is [items, hidden]."""

    enter: Tensor
    enter_bias: Tensor
    latent: Tensor
    latent_bias: Tensor
    leave: Tensor
    leave_bias: Tensor
    output: Tensor
    output_bias: Tensor

    def encode(self, rows: _Rows) -> tuple[Tensor, Tensor]:
        """μ and log σ². The input is sparse, so the first layer is a weighted sum of its rows."""
        first = F.embedding_bag(
            rows.items, self.enter, rows.starts, mode="sum", per_sample_weights=rows.weights
        )
        both = F.linear(torch.tanh(first + self.enter_bias), self.latent, self.latent_bias)
        mean, log_variance = both.chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """The decoder's hidden layer; `output` and `output_bias` turn it into logits."""
        return torch.tanh(F.linear(z, self.leave, self.leave_bias))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


def fit(
    config: MultVAE, train: Interactions, rng: Streams, progress: Progress | None
) -> FactorScorer:
    rng = rng.child("mult-vae")
    learners = np.flatnonzero(train.counts)
    if not len(learners):
        raise DataError("mult-vae has nothing to learn from: no user has a positive item")
    device = _device(config.device)
    with _threads(config.threads):
        network = _init(config, train.n_items, rng.child("init"), device)
        optimizer = torch.optim.Adam(network.tensors(), lr=config.learning_rate, fused=True)
        step = 0
        for epoch in range(config.epochs):
            draws = rng.child("epoch", epoch)
            order = draws.child("order").generator().permutation(learners)
            kept = _kept(config.dropout, train, draws.child("dropout"))
            total = torch.zeros((), device=device)
            for first in range(0, len(order), config.batch_size):
                users = order[first : first + config.batch_size]
                noise = draws.child("noise").normal(users, config.embedding_size)
                optimizer.zero_grad()
                loss = _loss(network, _rows(train, users, device, kept), noise, config.beta(step))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach()
                step += 1
            if not bool(torch.isfinite(total)):
                raise Diverged(
                    f"mult-vae diverged in epoch {epoch + 1}; "
                    f"try a learning_rate below {config.learning_rate}"
                )
            if progress is not None:
                progress(epoch + 1, config.epochs)
        return _scorer(config, network, train, device)


def _loss(network: _Network, rows: _Rows, noise: NDArray[np.float64], beta: float) -> Tensor:
    mean, log_variance = network.encode(rows)
    z = mean + torch.exp(0.5 * log_variance) * torch.as_tensor(noise).to(mean)
    logits = F.linear(network.decode(z), network.output, network.output_bias)
    log_share = F.log_softmax(logits, dim=1)
    likelihood = log_share[rows.owners, rows.items].sum()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (beta * kl - likelihood) / len(logits)


def _rows(
    train: Interactions,
    users: NDArray[np.int64],
    device: torch.device,
    kept: NDArray[np.float64] | None = None,
) -> _Rows:
    """The users' items, rows of unit length; `kept` then scales each interaction of the table."""
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
    return _Rows(*(torch.from_numpy(column).to(device) for column in columns))


def _kept(dropout: float, train: Interactions, rng: Streams) -> NDArray[np.float64]:
    """0 for a dropped interaction, 1 / (1 − dropout) for one that stays."""
    draws = rng.uniform(np.zeros(1, dtype=np.int64), train.n_interactions)[0]
    return np.where(draws >= dropout, 1 / (1 - dropout), 0.0)


def _init(config: MultVAE, n_items: int, rng: Streams, device: torch.device) -> _Network:
    """Xavier's uniform weights, zero biases; the two latent halves are one layer each."""
    hidden, embedding = config.hidden_size, config.embedding_size

    def layer(name: str, rows: int, columns: int, fan: int) -> Tensor:
        draws = rng.child(name).uniform(np.arange(rows), columns)
        values = (2 * draws - 1) * np.sqrt(6 / fan)
        return torch.from_numpy(values.astype(np.float32)).to(device).requires_grad_()

    def zeros(size: int) -> Tensor:
        return torch.zeros(size, device=device, requires_grad=True)

    return _Network(
        layer("enter", n_items, hidden, n_items + hidden),
        zeros(hidden),
        layer("latent", 2 * embedding, hidden, embedding + hidden),
        zeros(2 * embedding),
        layer("leave", hidden, embedding, embedding + hidden),
        zeros(hidden),
        layer("output", n_items, hidden, n_items + hidden),
        zeros(n_items),
    )


def _scorer(
    config: MultVAE, network: _Network, train: Interactions, device: torch.device
) -> FactorScorer:
    factors = np.empty((train.n_users, config.hidden_size), dtype=np.float32)
    with torch.no_grad():
        for first in range(0, train.n_users, config.batch_size):
            users = np.arange(first, min(first + config.batch_size, train.n_users))
            mean, _ = network.encode(_rows(train, users, device))
            factors[users] = network.decode(mean).cpu().numpy()
    output, bias = network.output.detach().cpu(), network.output_bias.detach().cpu()
    return FactorScorer(factors, output.numpy(), bias.numpy())


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f'device must be "cpu", "cuda" or "cuda:N", not {name!r}') from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"torch sees no device {name!r} here; use device = 'cpu'")
    return device


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
