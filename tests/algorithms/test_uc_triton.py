"""The kernels of a local step against torch: on a GPU, or by Triton's interpreter where
TRITON_INTERPRET=1 is set and Triton is installed."""

import os

import numpy as np
import pytest

from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams

torch = pytest.importorskip("torch")

from sottovoce.algorithms.uc import training, triton  # noqa: E402
from sottovoce.algorithms.uc.networks import Attribute, Recommender, UCModel  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PLACE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHARES = [torch.tensor([0.5, 0.5])]


def cohort(n=6, items=40):
    draw = np.random.default_rng(1)
    u, i = np.nonzero(draw.random((n, items)) < 0.2)
    history = Interactions.from_pairs(u, i, n_users=n, n_items=items)
    labels, hidden = draw.integers(0, 2, (n, 1)), draw.random((n, 1)) < 0.4
    users = np.arange(n)
    strength = np.full(n, 0.5, np.float32)
    return training.Clients(users, users + 5, history, labels, hidden, strength)


@pytest.mark.skipif(triton.triton is None, reason="Triton is not installed")
@pytest.mark.skipif(PLACE.type == "cpu" and not INTERPRETED, reason="needs a GPU")
@pytest.mark.parametrize("kind", ["mf", "ncf", "gnn"])
@pytest.mark.parametrize(("negatives", "dropout"), [(1, 0.1), (3, 0.1), (1, 0.0)])
def test_kernels_learn_what_torch_learns(monkeypatch, kind, negatives, dropout):
    filters = [Attribute("gender", 2, None)]
    model = UCModel.init(Recommender(kind, 16), 20, 40, filters, Streams.from_seed(3)).to(PLACE)
    how = training.LocalTraining(
        epochs=3, pairs=10, negatives=negatives, item_rate=5.0, dropout=dropout, clip=100.0,
        reg=1e-2,
    )  # fmt: skip
    found = []
    for on in (False, True):
        monkeypatch.setattr(training.fused, "usable", lambda *given, on=on: on)
        masks = torch.zeros(6, 16, device=PLACE)
        found.append(training.train(model, cohort(), how, Streams.from_seed(9), SHARES, masks))
    plain, fast = found
    pairs = [(plain.users, fast.users), (plain.items, fast.items)]
    pairs += [(plain.towers[name], fast.towers[name]) for name in plain.towers]
    for one, other in pairs:
        assert float(one.abs().max()) > 1e-4
        assert torch.allclose(one, other, rtol=0.0, atol=1e-5 * float(one.abs().max()))


def test_where_kernels_do_not_fit_torch_learns():
    on_cpu = torch.zeros(3, 16)
    assert not triton.usable(Recommender("mf", 16), on_cpu, 0.9)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_who_is_far_from_the_clip_keeps_every_bit(monkeypatch, norm):
    """Leaving out the exact norm changes nothing, near the limit nor far from it."""
    draw = torch.Generator().manual_seed(5)
    changes = [torch.randn(40, 7, 16, generator=draw), torch.randn(40, 9, generator=draw)]
    order = 2 if norm == "l2" else 1
    length = torch.cat([c.flatten(1) for c in changes], dim=1).norm(order, dim=1)
    for most in (0.5, 0.97, 0.99, 1.0, 1.01):
        for change in (limited := [c.clone() for c in changes]):
            change *= (most * 8.0 / length).view(-1, *[1] * (change.ndim - 1))
        exact = [c.clone() for c in limited]
        training.clip(limited, 8.0, norm)
        with monkeypatch.context() as patched:
            patched.setattr(training, "_FAR", 0.0)
            training.clip(exact, 8.0, norm)
        assert all(torch.equal(a, b) for a, b in zip(limited, exact, strict=True))
