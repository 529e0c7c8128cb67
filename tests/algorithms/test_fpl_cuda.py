"""FPL's accelerator against the CPU engine: the same draws and ledger, nearly the same model.

The torch path runs here on the CPU; on a machine with a GPU the same test runs there."""

import numpy as np
import pytest
from machines import here_and_on_a_gpu

from sottovoce.algorithms.fpl.system import FPL, FPLConfig, schedule
from sottovoce.core.consent import Choice, Consent
from sottovoce.errors import ConfigError, UsageError
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

torch = pytest.importorskip("torch")
DEVICES = here_and_on_a_gpu()


def federation(train, configuration, per, size):
    users = np.arange(train.n_users)
    choices = [Choice(share_positives=s) for s in (0.0, 0.4, 1.0)] + [Choice(takes_part=False)]
    consent = Consent.of(users, choices, users % 4)
    config = FPLConfig(configuration=configuration, embedding_size=size, rounds=6)
    return Federation.build(config, train, consent, ShareFraction(per), Streams.from_seed(2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("configuration", ["pFPL", "pFPL+"])
@pytest.mark.parametrize("per", ["draw", "item"])
@pytest.mark.parametrize("size", [10, 50])
def test_the_accelerator_gives_the_same_run(device, configuration, per, size):
    train = random_world(90, 140, 1500, seed=3)
    plain, fast = (federation(train, configuration, per, size) for _ in range(2))
    plain.run()
    fast.accelerate(device)
    fast.run()
    assert fast.devices.ledger.totals == plain.devices.ledger.totals
    assert fast.devices.ledger.pending().equals(plain.devices.ledger.pending())
    scale = np.abs(plain.server.items).max()
    assert np.abs(fast.server.items - plain.server.items).max() <= 1e-5 * scale
    assert np.abs(fast.devices.cohort.vectors - plain.devices.cohort.vectors).max() <= 1e-5
    idle = np.arange(train.n_users) % 4 == 3
    start = FPL(FPLConfig(embedding_size=size), 1).device_init(
        np.arange(train.n_users), Streams.from_seed(2)
    )
    assert np.array_equal(fast.devices.cohort.vectors[idle], start[idle])


def test_sequential_configurations_stay_on_the_cpu():
    train = random_world(20, 30, 200, seed=1)
    with pytest.raises(ConfigError, match="sequential"):
        federation(train, "sFPL", "draw", 4).check_device("cuda")
    assert schedule(FPLConfig(configuration="sFPL"), 20, 200).cohort_size == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_gives_one_sentence():
    with pytest.raises(UsageError, match="no"):
        federation(random_world(20, 30, 200, seed=1), "pFPL", "draw", 4).check_device("cuda")
