"""A round of UC-FedRec by Triton kernels is the round that torch makes, but for rounding."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from uc_world import HOW, PRIORS, RNG, clients_of, everything, model_of  # noqa: E402

from sottovoce.algorithms.uc import training, triton  # noqa: E402

INTERPRETED = getattr(getattr(triton.triton, "knobs", None), "runtime", None)
INTERPRETED = bool(INTERPRETED and INTERPRETED.interpret)
USABLE = triton.usable
DEVICES = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="Triton does not interpret here")
    ),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
        ],
    ),
]


def learnt(kind, how, device, quick, monkeypatch):
    usable = USABLE if device == "cuda" else lambda *_: True
    monkeypatch.setattr(training.fused, "usable", usable if quick else lambda *_: False)
    return training.train(model_of(kind, size=16).to(device), clients_of(), how, RNG, PRIORS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("negatives", [1, 3])
@pytest.mark.parametrize("kind", ["mf", "ncf", "gnn"])
def test_a_round_by_kernels_is_that_of_torch(kind, negatives, dropout, device, monkeypatch):
    how = replace(
        HOW, negatives=negatives, dropout=dropout, item_rate=5.0, reg=1e-2, clip=100.0, pairs=20
    )
    plain = everything(learnt(kind, how, device, False, monkeypatch))
    asked = []
    loss = triton.item_loss
    monkeypatch.setattr(training.fused, "item_loss", lambda *a: asked.append(1) or loss(*a))
    quick = everything(learnt(kind, how, device, True, monkeypatch))
    assert len(asked) == how.epochs
    for one, other in zip(plain, quick, strict=True):
        assert float(one.abs().max()) > 0
        assert float((one - other).abs().max()) <= 1e-4 * float(one.abs().max())


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_learn_stays(device, monkeypatch):
    how = replace(HOW, item_rate=0.0, tower_rate=0.0)
    plain = everything(learnt("ncf", how, device, False, monkeypatch))
    quick = everything(learnt("ncf", how, device, True, monkeypatch))
    for one, other in zip(plain, quick, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_kernels_are_for_pairs_on_a_gpu_alone():
    table = torch.zeros((3, 16))
    for kind in ("mf", "ncf", "gnn", "neumf"):
        assert not triton.usable(model_of(kind, size=16).recommender, table, 0.9)
