"""Mult-VAE's training loop, in torch. `MultVAE.fit` imports it when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.baselines.base import Progress
from sottovoce.baselines.mult_vae import MultVAE
from sottovoce.baselines.mult_vae_network import Network, Rows
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.recommender import FactorScorer
from sottovoce.rng import Streams


def fit(
    config: MultVAE, train: Interactions, rng: Streams, progress: Progress | None
) -> FactorScorer:
    learners = np.flatnonzero(train.counts)
    if not len(learners):
        raise DataError("mult-vae has nothing to learn from: no user has a positive item")
    rng = rng.child("mult-vae")
    device = device_of(config.device)
    hidden, embedding = config.hidden_size, config.embedding_size
    with _threads(config.threads):
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
                rows = Rows.of(train, users, device, kept)
                noise = draws.child("noise").normal(users, embedding)
                optimizer.zero_grad()
                loss = network.loss(rows, noise, config.beta(step))
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
        return _scorer(network, train, config.batch_size, device)


def _kept(dropout: float, n_interactions: int, rng: Streams) -> NDArray[np.float64]:
    """0 for a dropped interaction, 1 / (1 − dropout) for one that stays."""
    draws = rng.uniform(np.zeros(1, dtype=np.int64), n_interactions)[0]
    return np.where(draws >= dropout, 1 / (1 - dropout), 0.0)


def _scorer(
    network: Network, train: Interactions, batch_size: int, device: torch.device
) -> FactorScorer:
    factors = np.empty((train.n_users, network.output.shape[1]), dtype=np.float32)
    with torch.no_grad():
        for first in range(0, train.n_users, batch_size):
            users = np.arange(first, min(first + batch_size, train.n_users))
            mean, _ = network.encode(Rows.of(train, users, device))
            factors[users] = network.decode(mean).cpu().numpy()
    output, bias = network.output.detach().cpu(), network.output_bias.detach().cpu()
    return FactorScorer(factors, output.numpy(), bias.numpy())


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


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """torch's thread count is one for the process, so it is put back."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
