"""UC-FedRec over a secure sum: rows with one sender, and that the settings decide."""

import numpy as np
import pytest

from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce.attacks.suite.lone_in_sums import LONE_UPDATES
from sottovoce.attacks.views import SeenRound, Truth, View
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.parties.secure_sum import summed
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.testing import random_world
from sottovoce.wire.terms import Terms

torch = pytest.importorskip("torch")

N_USERS, N_ITEMS = 40, 300
TRAIN = random_world(N_USERS, N_ITEMS, 600, seed=3)
USERS = np.arange(N_USERS, dtype=np.int64)
RNG = Streams.from_seed(6)


def attacked(pairs):
    settings = UCConfig(embedding_size=8, local_epochs=4, pairs=pairs, item_rate=1.0, cooling=0.0)
    terms = Terms("town", N_ITEMS, settings, Clipped(clip=1000.0), SecureSum(min_devices=10))
    algorithm, consent = terms.build(), Consent.uniform(USERS, Choice(share_positives=1.0))
    vectors = algorithm.device_init(USERS, RNG)
    cohort = Cohort(USERS, TRAIN, consent, vectors.copy(), labels=np.zeros((N_USERS, 0), np.int64))
    devices = SimulatedDevices.behind_door(
        algorithm, cohort, terms.release, Ledger(), RNG, link=terms.link
    )
    sums = devices.report_summed(ModelView(0, algorithm.server_init(N_ITEMS, RNG)), USERS)
    opened = summed(0, sums.dense(terms.n_rows), N_USERS)
    seen = (SeenRound(0, (opened,)),)
    final = np.zeros((terms.n_rows, terms.width), np.float32)
    view = View("server", seen, settings, terms.release, terms.link, N_ITEMS, final)
    truth = Truth(
        TRAIN, TRAIN, consent.takes_part, consent.share_positives, {}, {}, cohort.vectors,
        {"vectors": {0: vectors}},
    )  # fmt: skip
    assert LONE_UPDATES.applies(view) == ""
    return LONE_UPDATES.run(view, truth)


def test_where_few_send_a_row_it_names_items_of_single_users():
    found = attacked(pairs=2)
    assert found.verdict == "broken"
    assert found.value > 0.7
    assert found.base_rate < 0.2
    assert found.claims > 20


def test_where_many_send_every_row_there_is_none_of_one_sender():
    found = attacked(pairs=256)
    assert found.verdict != "broken"
    assert "0 rows of the sum" in found.detail
