"""FCF over a secure sum: who knows the vectors reads the items that one user alone has."""

import numpy as np

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.attacks.suite.lone_in_sums import LONE_ITEMS
from sottovoce.attacks.views import SeenRound, Truth, View
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.parties.helper import Helper
from sottovoce.parties.secure_sum import summed
from sottovoce.privacy.mechanisms import Everything
from sottovoce.rng import Streams
from sottovoce.testing import random_world

USERS = np.arange(80, dtype=np.int64)
RNG = Streams.from_seed(6)
SPARSE = random_world(80, 600, 400, seed=3)


def attacked(train: Interactions, link: SecureSum, known: bool = True):
    settings = FCFConfig(embedding_size=8)
    algorithm, consent = settings.build(0), Consent.uniform(USERS, Choice(share_positives=1.0))
    cohort = Cohort(USERS, train, consent, algorithm.device_init(USERS, RNG))
    devices = SimulatedDevices.behind_door(
        algorithm, cohort, Everything(), Ledger(), RNG, link=link
    )
    view = ModelView(0, algorithm.server_init(train.n_items, RNG))
    sums = devices.report_summed(view, devices.willing()).dense(train.n_items)
    noise = Helper(link, sums.size, bytes(32)).noise(0)
    opened = summed(0, sums if noise is None else sums + noise.reshape(sums.shape), len(USERS))
    seen = (SeenRound(0, (opened,), view),)
    saw = View("server", seen, settings, Everything(), link, train.n_items, view.items)
    truth = Truth(
        train, train, consent.takes_part, consent.share_positives, {}, {}, cohort.vectors,
        {"vectors": {1: cohort.vectors}} if known else {},
    )  # fmt: skip
    assert LONE_ITEMS.applies(saw) == ""
    return LONE_ITEMS.run(saw, truth)


def test_items_of_one_user_are_hers_for_whoever_knows_the_vectors():
    found = attacked(SPARSE, SecureSum(min_devices=10))
    alone = int((np.bincount(SPARSE.items, minlength=600) == 1).sum())
    assert found.verdict == "broken"
    assert found.value > 0.95
    assert found.claims >= 0.9 * alone > 100


def test_without_the_vectors_nothing_is_claimed():
    assert attacked(SPARSE, SecureSum(min_devices=10), known=False).claims == 0


def test_central_noise_closes_it():
    found = attacked(SPARSE, SecureSum(min_devices=10, clip=1.0, noise=1.0))
    assert found.verdict != "broken"
