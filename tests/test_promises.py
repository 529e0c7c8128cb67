"""What π does not promise, shown on our own messages. The promises that hold are tested at the door
(tests/parties/test_device.py)."""

import numpy as np
import pytest

from sottovoce.algorithms.base import Cohort
from sottovoce.algorithms.fpl import FPL, FPLConfig
from sottovoce.consent import Choice, Consent
from sottovoce.ledger import Ledger
from sottovoce.messages import GRID
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.testing import random_world

CONFIG = FPLConfig(embedding_size=8)


@pytest.fixture
def overheard():
    """One round of 40 devices that share nothing positive and draw once, as the server sees it."""
    history, rng = random_world(40, 500, 800, seed=1), Streams.from_seed(2)
    users = np.arange(history.n_users)
    algorithm = FPL(CONFIG, triples=1)
    vectors = 5.0 * algorithm.device_init(users, rng)
    consent = Consent.uniform(users, Choice(share_positives=0.0))
    cohort = Cohort(users, history, consent, vectors.copy())
    devices = Devices.behind_door(algorithm, cohort, ShareFraction("item"), Ledger(), rng)
    view = Server.start(algorithm, history.n_items, rng).publish()
    return history, vectors, view, devices.report(view, devices.willing())


def invert(view, item, values):
    """From one negative row: the device's vector, and the score its hidden positive must have."""
    delta = values / GRID
    factors, bias = view.items[:, :-1].astype(float), view.items[:, -1].astype(float)
    strength = -delta[-1]
    vector = -(delta[:-1] + CONFIG.step().reg_negative * factors[item]) / strength
    score = np.log((1 - strength) / strength) + bias[item] + vector @ factors[item]
    return vector, score


def test_one_negative_row_gives_the_vector_and_the_hidden_positive_away(overheard):
    history, vectors, view, reports = overheard
    assert len(reports) == len(vectors)  # a row each, none of them for a positive item
    factors, bias = view.items[:, :-1].astype(float), view.items[:, -1].astype(float)
    found = 0
    for sender, item, values in zip(reports.sender, reports.item, reports.values, strict=True):
        assert item not in history.row(sender)
        vector, score = invert(view, item, values)
        np.testing.assert_allclose(vector, vectors[sender], atol=1e-4)
        guess = np.argmin(np.abs(bias + factors @ vector - score))
        found += guess in history.row(sender)
    chance = history.n_interactions / (history.n_users * history.n_items)
    assert chance < 0.06
    assert found > 0.9 * len(reports)
