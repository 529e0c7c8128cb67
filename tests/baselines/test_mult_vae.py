"""Mult-VAE: the loss against a dense reference, its schedule, and what it leaves alone."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from sottovoce.baselines import MultVAE
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged, UsageError
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

RNG = Streams.from_seed(2)
TINY: dict[str, Any] = {
    "hidden_size": 12,
    "embedding_size": 4,
    "epochs": 3,
    "batch_size": 16,
}


def test_loss_is_the_printed_one(sparse: Interactions) -> None:
    from sottovoce.baselines.mult_vae_training import BatchRows, Network

    users, beta, cpu = np.array([5, 0, 7, 20]), 0.3, torch.device("cpu")
    network = Network.init(sparse.n_items, 6, 3, RNG, cpu)
    w1, b1, w2, b2, w3, b3, w4, b4 = (
        tensor.detach().numpy().astype(np.float64) for tensor in network.tensors()
    )
    noise = RNG.normal(users, 3)
    kept = 2.0 * (RNG.uniform(np.zeros(1, dtype=np.int64), sparse.n_interactions)[0] < 0.5)

    x = np.zeros((len(users), sparse.n_items))
    dropped = np.zeros_like(x)
    for row, user in enumerate(users):
        entries = slice(sparse.indptr[user], sparse.indptr[user + 1])
        x[row, sparse.items[entries]] = 1
        dropped[row, sparse.items[entries]] = kept[entries]
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    latent = np.tanh((unit * dropped) @ w1 + b1) @ w2.T + b2
    mean, log_variance = latent[:, :3], latent[:, 3:]
    z = mean + np.exp(log_variance / 2) * noise
    logits = np.tanh(z @ w3.T + b3) @ w4.T + b4
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    kl = -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)).sum(axis=1)
    expected = (-(x * log_softmax).sum(axis=1) + beta * kl).mean()

    loss = network.loss(BatchRows.of(sparse, users, cpu, kept), noise, beta)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_scores_are_the_decoder_at_the_mean(sparse: Interactions) -> None:
    # A learning rate of 1e-12 leaves the network as it was drawn.
    from sottovoce.baselines.mult_vae_training import BatchRows, Network

    config = MultVAE(**TINY, learning_rate=1e-12)
    scores = config.fit(sparse, RNG).scores(np.arange(sparse.n_users))
    cpu = torch.device("cpu")
    network = Network.init(sparse.n_items, 12, 4, RNG.child("mult-vae", "init"), cpu)
    mean, _ = network.encode(BatchRows.of(sparse, np.arange(sparse.n_users), cpu))
    logits = network.decode(mean) @ network.output.T + network.output_bias
    np.testing.assert_allclose(scores, logits.detach().numpy(), atol=1e-6)
    assert np.ptp(scores) > 0.01


def test_beta_rises_linearly_and_stops() -> None:
    from sottovoce.baselines.mult_vae_training import beta

    steps = (0, 100_000, 200_000, 1_000_000)
    assert [beta(step) for step in steps] == pytest.approx([0, 0.1, 0.2, 0.2])
    # Foursquare Italy: 3 batches in each of 200 epochs.
    assert beta(600) == pytest.approx(0.0006)


def test_dropout_hides_its_share_and_keeps_the_expectation() -> None:
    from sottovoce.baselines.mult_vae_training import _kept

    kept = _kept(0.25, 40_000, RNG)
    assert set(kept) == {0.0, 1 / 0.75}
    # Five standard errors of a share of 40,000.
    assert abs((kept == 0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 40_000)


def test_every_epoch_draws_anew(sparse: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    from sottovoce.baselines.mult_vae_training import Network

    seen: list[tuple[Any, Any]] = []
    loss = Network.loss

    def spy(self: Any, rows: Any, noise: Any, beta: float) -> Any:
        seen.append((rows, noise))
        return loss(self, rows, noise, beta)

    monkeypatch.setattr(Network, "loss", spy)
    MultVAE(**TINY | {"epochs": 2, "batch_size": 100}).fit(sparse, RNG)
    (first, first_noise), (second, second_noise) = seen
    assert not torch.equal(first.items, second.items)
    assert not np.array_equal(np.sort(first_noise, axis=0), np.sort(second_noise, axis=0))
    hidden = [sorted(rows.items[rows.weights == 0].tolist()) for rows in (first, second)]
    assert hidden[0] != hidden[1]


def test_leaves_global_state_alone(sparse: Interactions) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    MultVAE(**TINY).fit(sparse, RNG)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_does_not_depend_on_global_seeds(sparse: Interactions) -> None:
    before = torch.get_rng_state()
    try:
        fits = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            fits.append(MultVAE(**TINY).fit(sparse, RNG).item_factors)
    finally:
        torch.set_rng_state(before)
    np.testing.assert_array_equal(fits[0], fits[1])


def test_a_user_without_positives_is_answered_but_not_learnt_from(
    checkerboard: Interactions,
) -> None:
    last = checkerboard.indptr[-1]
    longer = Interactions(np.append(checkerboard.indptr, last), checkerboard.items, 20)
    with_empty, without = (MultVAE(**TINY).fit(train, RNG) for train in (longer, checkerboard))
    np.testing.assert_array_equal(with_empty.item_factors, without.item_factors)
    answer = with_empty.scores(np.array([20]))
    assert np.isfinite(answer).all()
    assert np.ptp(answer) > 0


def test_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="nothing to learn from"):
        MultVAE(**TINY).fit(Interactions.from_pairs([], [], n_users=3, n_items=5), RNG)


def test_divergence_is_an_error(sparse: Interactions) -> None:
    with pytest.raises(Diverged, match="use a learning_rate below"):
        MultVAE(**TINY, learning_rate=1e30).fit(sparse, RNG)


@pytest.mark.parametrize("device", ["toaster", "meta", "cuda:99"])
def test_refuses_devices_it_cannot_use(device: str, sparse: Interactions) -> None:
    with pytest.raises(ConfigError, match=device):
        MultVAE(**TINY, device=device).fit(sparse, RNG)


def test_says_what_to_install_without_torch(
    sparse: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [
        name for name in sys.modules if name.startswith("sottovoce.baselines.mult_vae_")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"mult-vae needs torch, .*\[torch\]'$"):
        MultVAE(**TINY).fit(sparse, RNG)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_cuda_agrees_with_cpu(sparse: Interactions) -> None:
    users = np.arange(sparse.n_users)
    cpu, cuda = (
        MultVAE(**TINY, device=device).fit(sparse, RNG).scores(users) for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(cpu, cuda, atol=1e-4)
