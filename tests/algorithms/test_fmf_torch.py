"""FMF-LDP by torch against the compiled kernels: the same run, bit for bit.

The torch path runs here on the CPU; on a machine with a GPU the same tests run there."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.one_bit import noise_keys, nonce
from sottovoce.engines.observers import MessageObserver
from sottovoce.errors import ConfigError, ConsentError, DataError, MessageError, Stalled
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams, chacha_words
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

torch = pytest.importorskip("torch")
from sottovoce.algorithms.fmf import accelerated, triton  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
        ],
    ),
]
WORLD = random_world(600, 25, 5000, seed=2)
TIERS = (Tier(0.5, 20), Tier(1.5, 20), Tier(4.0, 20))


def built(config, k=20, world=WORLD, tiers=TIERS, **limits):
    users = np.arange(world.n_users)
    permitted = [Choice(epsilon=e, max_reports=k, **limits) for e in (0.7, 1.5, 9.0)]
    consent = Consent.of(users, [*permitted, Choice(takes_part=False)], users % 4)
    return Federation.build(config, world, consent, KReports(k, tiers), Streams.from_seed(6))


def same(one, other):
    for a, b in zip((one, other), (other, one), strict=True):
        assert np.array_equal(a.server.items, b.server.items)
        assert np.array_equal(a.devices.cohort.vectors, b.devices.cohort.vectors)
        assert np.array_equal(a.devices.cohort.spent, b.devices.cohort.spent)
        assert a.devices.ledger.totals == b.devices.ledger.totals
        assert a.devices.ledger.pending().equals(b.devices.ledger.pending())
        assert a.proxy.held == b.proxy.held


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("size", "k"), [(1, 5), (3, 20), (5, 100), (9, 17)])
def test_the_counter_gives_the_same_run(device, size, k):
    config = FMFConfig(embedding_size=size, rounds=4, learning_rate=0.05, scale=3.0)
    plain, fast = built(config, k), built(config, k)
    plain.run()
    fast.accelerate(device)
    fast.run()
    same(plain, fast)
    assert np.abs(plain.server.items).max() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_users_without_items_and_tiers_that_are_held_back(device):
    rows = [WORLD.row(user) if user % 3 else WORLD.row(user)[:0] for user in range(200)]
    indptr = np.cumsum([0, *map(len, rows)])
    world = Interactions(indptr=indptr, items=np.concatenate(rows), n_items=25)
    config = FMFConfig(embedding_size=2, rounds=3)
    limits = {"total_epsilon": 30.0}  # of which the last tier has none left in the second round
    plain, fast = (built(config, 4, world, TIERS, **limits) for _ in range(2))
    plain.run()
    fast.accelerate(device)
    fast.run()
    same(plain, fast)


@pytest.mark.parametrize("device", DEVICES)
def test_coins_are_chacha(device):
    keys, rows = noise_keys(bytes(range(32)), np.arange(5)), np.array([3, 0, 4])
    noise = torch.tensor(keys.view(np.int32), device=device)
    make = triton.make_coins if device == "cuda" and triton.AVAILABLE else accelerated._coins
    round = (5 << 32) + 0xFFFFFFF0
    found = make(noise, torch.tensor(rows, device=device), round, 2).cpu().numpy()
    words = found.astype(np.int64) & 0xFFFFFFFF
    block = np.empty(16, dtype=np.uint32)
    for n, row in enumerate(rows):
        for b in range(2):
            chacha_words(keys[row], nonce(round), b, block)
            assert np.array_equal(words[16 * b : 16 * b + 16, n], block)


def test_whoever_listens_gets_reports():
    """Written out, and the run is the same."""

    class Listener(MessageObserver):
        def __init__(self):
            self.heard = set()

        def on_message(self, party, message):
            self.heard.add((party, type(message).__name__))

    config = FMFConfig(embedding_size=2, rounds=2)
    plain, fast, listener = built(config), built(config), Listener()
    plain.run()
    fast.accelerate("cpu")
    fast.run(message_observers=[listener])
    assert ("server", "Batch") in listener.heard
    same(plain, fast)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="published"):
        built(FMFConfig(variant="rotated", embedding_size=2)).accelerate("cpu")
    fast = built(FMFConfig(embedding_size=2, rounds=2))
    fast.accelerate("cpu")
    view, counter = fast.server.publish(), fast.devices._counter
    with pytest.raises(ConfigError, match="tier"):
        counter.count_reports(view, np.array([3]), 1)
    with pytest.raises(DataError, match="shape"):
        counter.count_reports(replace(view, items=view.items[:-1]), np.array([0]), 1)
    with pytest.raises(ConsentError):
        fast.devices.count_bits(view, np.array([3]))
    with pytest.raises(ConfigError, match="GPU"):
        built(FMFConfig(embedding_size=2)).devices.count_bits(view, np.array([0]))
    assert fast.proxy.passing(0, np.zeros(30, np.int32)) == [(0, 30)]
    with pytest.raises(MessageError, match="over"):
        fast.proxy.passing(0, np.zeros(30, np.int32))
    with pytest.raises(MessageError, match="tier"):
        fast.proxy.passing(1, np.array([9]))


def test_a_round_of_which_nothing_passes_stalls():
    fast = built(FMFConfig(embedding_size=2, rounds=9), 4, total_epsilon=3.0)
    fast.accelerate("cpu")
    with pytest.raises(Stalled, match="minimum"):
        fast.run()
