"""FCF by torch against the compiled kernels: the same run, bit for bit.

The torch path runs here on the CPU; on a machine with a GPU the same tests run there."""

import sys

import numpy as np
import pytest
from machines import here_and_on_a_gpu

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf import accelerated as fcf_torch
from sottovoce.algorithms.fcf import triton as fcf_triton
from sottovoce.algorithms.fcf.accelerated import FCFOnTorch
from sottovoce.algorithms.fcf.system import FCF, FCFConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.messages import GRID, LIMIT, ModelView
from sottovoce.errors import DataError, Diverged, UsageError
from sottovoce.privacy.mechanisms import Everything
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

torch = pytest.importorskip("torch")
DEVICES = here_and_on_a_gpu()
RNG = Streams.from_seed(2)
SHARES_ALL = Choice(share_positives=1.0)


def cohort_of(history, config):
    users = np.arange(history.n_users)
    vectors = FCF(config).device_init(users, RNG)
    return Cohort(users, history, Consent.uniform(users, SHARES_ALL), vectors)


def both(device, history, config, items, rows):
    """Sums, counts and vectors of one round: by torch, and by the compiled kernels."""
    algorithm, view = FCF(config), ModelView(0, items)
    fast, plain = cohort_of(history, config), cohort_of(history, config)
    accelerator = FCFOnTorch.load(config.confidence(), fast, device)
    sums, counts = accelerator.learn_summed(view, rows, 0, 0)
    known = algorithm.device_learn_summed(view, plain, rows, None, RNG, 1)
    assert np.array_equal(counts.positive, known[1].positive)
    assert np.array_equal(counts.negative, known[1].negative)
    return (sums, accelerator.vectors()), (known[0], plain.vectors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", ["paper", "fpl"])
@pytest.mark.parametrize("size", [1, 5, 17])
def test_the_accelerator_gives_the_same_run(device, variant, size):
    train = random_world(90, 140, 1500, seed=3)
    users = np.arange(90)
    consent = Consent.of(users, [SHARES_ALL, Choice(takes_part=False)], users % 4 // 3)
    config = FCFConfig(embedding_size=size, rounds=6, variant=variant)
    plain, fast = (Federation.build(config, train, consent, Everything(), RNG) for _ in range(2))
    plain.run()
    fast.accelerate(device)
    fast.run()
    assert np.array_equal(fast.server.items, plain.server.items)
    assert np.array_equal(fast.devices.cohort.vectors, plain.devices.cohort.vectors)
    assert np.array_equal(fast.server.memory, plain.server.memory)
    assert fast.devices.ledger.totals == plain.devices.ledger.totals
    assert fast.devices.ledger.pending().equals(plain.devices.ledger.pending())
    assert not fast.devices.cohort.vectors[users % 4 == 3].any()


@pytest.mark.parametrize("device", DEVICES)
def test_it_gives_the_same_without_triton(device, monkeypatch):
    """The plain operations of torch, which is what runs here anyway, on the GPU as well."""
    monkeypatch.setattr(fcf_triton, "AVAILABLE", False)
    history, config = random_world(300, 260, 6000, seed=5), FCFConfig(embedding_size=7)
    items = FCF(config).server_init(260, RNG)
    fast, plain = both(device, history, config, items, np.arange(300))
    assert np.array_equal(fast[0], plain[0])
    assert np.array_equal(fast[1], plain[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [8, 33])
def test_chunks_change_nothing(device, size, monkeypatch):
    """Devices in no order, some missing, in chunks that are much smaller."""
    history, config = random_world(400, 260, 8000, seed=5), FCFConfig(embedding_size=size)
    rows = np.random.default_rng(1).permutation(400)[:311]
    items = FCF(config).server_init(260, RNG)
    monkeypatch.setattr(fcf_torch, "_SOLVE_BYTES", 24 * size * size * 100)
    monkeypatch.setattr(fcf_torch, "_CHUNK_BYTES", dict.fromkeys(("cpu", "cuda"), 4 * 260 * 60))
    fast, plain = both(device, history, config, items, rows)
    assert np.array_equal(fast[0], plain[0])
    assert np.array_equal(fast[1], plain[1])
    left_out = np.setdiff1d(np.arange(400), rows)
    assert not fast[1][left_out].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", ["paper", "fpl"])
def test_large_updates_are_cut_as_they_are_elsewhere(device, variant):
    history = random_world(60, 40, 400, seed=6)
    config = FCFConfig(embedding_size=4, reg=1e-6, variant=variant)
    items = (1e-3 * FCF(config).server_init(40, RNG)).astype(np.float32)
    fast, plain = both(device, history, config, items, np.arange(60))
    assert np.array_equal(fast[0], plain[0])
    assert np.abs(plain[0]).max() >= LIMIT * GRID


@pytest.mark.parametrize("device", DEVICES)
def test_nobody_is_fine_and_a_long_history_too(device):
    history, config = random_world(3, 30, 4000, seed=7), FCFConfig(embedding_size=3)
    assert history.counts.min() == 29
    items = FCF(config).server_init(30, RNG)
    fast, plain = both(device, history, config, items, np.arange(3))
    assert np.array_equal(fast[0], plain[0])
    nobody, _ = both(device, history, config, items, np.zeros(0, dtype=np.int64))
    assert not nobody[0].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e7])
def test_a_model_that_has_diverged_is_refused(device, bad):
    history, config = random_world(10, 20, 60, seed=8), FCFConfig(embedding_size=3)
    items = FCF(config).server_init(20, RNG)
    items[3, 1] = bad
    accelerator = FCFOnTorch.load(config.confidence(), cohort_of(history, config), device)
    with pytest.raises(Diverged, match="item vectors"):
        accelerator.learn_summed(ModelView(0, items), np.arange(10), 0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_singular_system_is_refused_here_and_there(device):
    history = random_world(10, 20, 60, seed=9)
    config = FCFConfig(embedding_size=3, variant="fpl", reg=1e-300)
    items = np.ones((20, 3), dtype=np.float32)
    cohort = cohort_of(history, config)
    accelerator = FCFOnTorch.load(config.confidence(), cohort, device)
    with pytest.raises(Diverged, match="reg"):
        accelerator.learn_summed(ModelView(0, items), np.arange(10), 0, 0)
    with pytest.raises(Diverged, match="reg"):
        closed_form.solve(config.confidence(), items, np.arange(10), history.indptr, history.items)
    assert not accelerator.vectors().any()


def test_another_shape_is_refused():
    history, config = random_world(10, 20, 60, seed=8), FCFConfig(embedding_size=3)
    accelerator = FCFOnTorch.load(config.confidence(), cohort_of(history, config), "cpu")
    for shape in [(21, 3), (20, 4)]:
        with pytest.raises(DataError, match="shape"):
            accelerator.learn_summed(ModelView(0, np.zeros(shape, np.float32)), np.arange(2), 0, 0)


def test_a_missing_device_or_torch_gives_one_sentence(monkeypatch):
    config = FCFConfig(embedding_size=3)
    cohort = cohort_of(random_world(10, 20, 60, seed=8), config)
    with pytest.raises(UsageError, match="'abacus'"):
        FCFOnTorch.load(config.confidence(), cohort, "abacus")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="GPU"):
            FCFOnTorch.load(config.confidence(), cohort, "cuda")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"\[torch\]"):
        FCFOnTorch.load(config.confidence(), cohort, "cpu")


def test_importing_it_does_not_import_torch():
    import subprocess

    code = "import sys; import sottovoce.algorithms.fcf.accelerated; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n")
