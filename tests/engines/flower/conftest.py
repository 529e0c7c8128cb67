"""What the tests of Flower share."""

import os

import pytest
from flower_world import COHORTS, ITEMS, KEY, SHARES, TRAIN, Town

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice
from sottovoce.engines.flower.gateway import find_nginx
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.terms import Terms


@pytest.fixture
def nginx():
    """Skip where there is none, or fail where services are required."""
    if find_nginx() is None:
        sentence = "nginx is not installed, so that the gateway cannot be tested"
        if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture
def town(tmp_path):
    config = FPLConfig(embedding_size=4, triples=6)
    terms = Terms.of("town", TRAIN.n_items, config, 6, ShareFraction())
    stores = {}
    for name, numbers in COHORTS.items():
        stores[name] = tmp_path / "stores" / name
        (tmp_path / "stores").mkdir(exist_ok=True)
        people = [(number, f"user {number}") for number in numbers]
        with CohortStore.create(stores[name], people, root_key=KEY) as store:
            store.set_catalogue([(item, item.title()) for item in ITEMS])
            for number in numbers:
                store.add_history(number, [ITEMS[i] for i in TRAIN.row(number)], None)
                store.set_choice(number, Choice(share_positives=SHARES[number]))
            DeviceSession(store).agree(terms)
    return Town(tmp_path / "server", stores, terms)
