"""What π and FCF do not promise, shown on our own messages. The promises that hold are tested at
the door (tests/parties/test_device.py) and by audits (tests/statistics/test_audit.py)."""

import numpy as np
import pytest

from sottovoce.algorithms.fcf.system import FCF, FCFConfig
from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import GRID
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import Everything, ShareFraction
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


def read_upload(view, values):
    """From one FCF upload and the published model: the user's vector but for its sign, and the
    items that are hers. Nothing else is known to the attacker, not even α and λ."""
    rows, items = values / GRID, view.items.astype(float)
    direction = np.linalg.svd(rows, full_matrices=False)[2][0]
    along, published = rows @ direction, items @ direction
    # An item that is not hers has −|x|² v·û here, and most items are not.
    length = np.sqrt(np.median(-along / published))
    residual = along + length**2 * published
    return length * direction, np.flatnonzero(np.abs(residual) > 0.5 * length)


def test_one_fcf_upload_is_the_history_of_its_sender():
    """40 of 40 devices, every positive and no other item, from a single round."""
    history, rng = random_world(40, 300, 800, seed=5), Streams.from_seed(6)
    users = np.arange(history.n_users)
    algorithm = FCF(FCFConfig(embedding_size=6))
    consent = Consent.uniform(users, Choice(share_positives=1.0))
    cohort = Cohort(users, history, consent, algorithm.device_init(users, rng))
    devices = Devices.behind_door(algorithm, cohort, Everything(), Ledger(), rng)
    view = Server.start(algorithm, history.n_items, rng).publish()
    reports = devices.report(view, devices.willing())
    exposed = 0
    for sender in users:
        vector, positives = read_upload(view, reports.values[reports.sender == sender])
        exposed += np.array_equal(positives, history.row(sender))
        same = vector if vector @ cohort.vectors[sender] > 0 else -vector
        np.testing.assert_allclose(same, cohort.vectors[sender], atol=1e-4)
    assert exposed == 40
    assert devices.ledger.totals.positive_rows == history.n_interactions
    assert np.isinf(devices.ledger.pending()["epsilon"].to_numpy()).all()
