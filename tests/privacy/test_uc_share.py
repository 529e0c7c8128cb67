"""UC-FedRec where users share a part of their items and hide attributes, both at once."""

import numpy as np
import pytest

from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView, add_up
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.privacy.mechanisms import share_subsets
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.testing import random_world
from sottovoce.wire.terms import Terms

torch = pytest.importorskip("torch")

N_ITEMS, N_USERS = 30, 40
RNG = Streams.from_seed(4)
GENDER = FilterConfig("gender", ("female", "male"), (0.3, 0.7))
TRAIN = random_world(N_USERS, N_ITEMS, 300, seed=2)
USERS = np.arange(N_USERS, dtype=np.int64)
CHOICES = [
    Choice(share_positives=0.0),
    Choice(share_positives=0.5, hidden_attributes=("gender",)),
    Choice(share_positives=1.0),
    Choice(share_positives=0.25),
]
CONSENT = Consent.of(USERS, CHOICES, USERS % 4, ("gender",))
TERMS = Terms(
    "town",
    N_ITEMS,
    UCConfig(
        embedding_size=6, local_epochs=3, pairs=8, item_rate=1.0, cooling=0.0, attributes=(GENDER,)
    ),
    Clipped(clip=1000.0),
    SecureSum(min_devices=10),
)


def door():
    algorithm = TERMS.build()
    vectors = algorithm.device_init(USERS, RNG)
    cohort = Cohort(USERS, TRAIN, CONSENT, vectors, labels=(USERS % 2)[:, None])
    return SimulatedDevices.behind_door(
        algorithm, cohort, TERMS.release, Ledger(), RNG, link=TERMS.link
    )


def view():
    return ModelView(0, TERMS.build().server_init(N_ITEMS, RNG))


def test_no_row_leaves_for_an_item_outside_of_her_subset():
    reports = door().report(view(), USERS)
    allowed = share_subsets(USERS, CONSENT, TRAIN, RNG)
    mine = set(zip(TRAIN.users.tolist(), TRAIN.items.tolist(), strict=True))
    may = set(zip(TRAIN.users[allowed].tolist(), TRAIN.items[allowed].tolist(), strict=True))
    sent = set(zip(reports.sender.tolist(), reports.item.tolist(), strict=True))
    assert sent & mine <= may
    assert len(sent & may) > 50  # and what may leave mostly does
    assert {u for u, i in sent & mine} & set(USERS[USERS % 4 == 0].tolist()) == set()


def test_who_shares_nothing_still_sends_other_items_and_filters():
    reports = door().report(view(), USERS)
    nothing = reports.item[np.isin(reports.sender, USERS[USERS % 4 == 0])]
    assert (nothing >= N_ITEMS).any()
    assert (nothing < N_ITEMS).any()
    hiding = reports.item[np.isin(reports.sender, USERS[USERS % 4 == 1])]
    assert not (hiding >= N_ITEMS).any()


def test_a_large_cohorts_sum_is_that_of_its_messages():
    written = add_up(0, [door().report(view(), USERS)], TERMS.width).dense(TERMS.n_rows)
    devices = door()
    summed = devices.report_summed(view(), USERS).dense(TERMS.n_rows)
    assert np.array_equal(written[:, -1], summed[:, -1])
    np.testing.assert_allclose(written, summed, atol=2**24 * 1e-4)
    assert devices.ledger.totals.positive_rows > 0
