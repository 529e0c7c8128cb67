"""A trial with data owners, as far as it needs no processes."""

from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.engines.silo import SiloWorld
from sottovoce.errors import ConfigError, Stalled
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.rng import Streams
from sottovoce.services.silo_trial import SiloTrial


def world(**settings):
    config = DRIFTConfig(**{"window": 4, "epochs": 3, **settings})
    n = 10
    events = Events(
        np.zeros(n, np.int64), np.zeros(n, np.int32), np.zeros(n, bool), np.arange(n), config.order
    )
    consent = Consent.uniform(np.arange(1), Choice(), owners=("Drama", "Noir"))
    table = OwnerTable.of_membership(np.ones((2, 2), bool))
    door = InteractionDoor(consent, consent.owners, table)
    return SiloWorld.of(config, door, events, ("a", "b"), Streams.from_seed(1))


class Users:
    """An agent whose users have said nothing yet."""

    def __init__(self):
        self.heard, self.store, self.door = [], SimpleNamespace(ever_said=lambda: 0), self

    def interact_many(self, said, again):
        self.heard += said

    def waiting(self):
        return len(self.heard)


@pytest.mark.parametrize("silent", [(), ("Noir",)])
def test_an_epoch_begins_when_all_owners_know_that_the_last_one_is_over(tmp_path, silent):
    """Else they would refuse its events, which are older than their last, and learn from less."""
    trial = SiloTrial(world(), tmp_path)
    trial.agent = Users()
    trial.store = SimpleNamespace(rounds=lambda last: [SimpleNamespace(silent=silent)])
    for number, events in ((0, 4), (2, 2), (4, 4)):  # silence elsewhere does no harm
        trial.agent.heard.clear()
        assert trial.queue(number) == events
    if silent:
        with pytest.raises(Stalled, match=r"^Noir gave no answer when epoch 1 ended"):
            trial.queue(3)
    else:
        trial.agent.heard.clear()
        assert trial.queue(3) == 4


@pytest.mark.parametrize(
    ("settings", "processes", "words"),
    [
        ({"window": 0}, None, "algorithm.window"),
        ({"order": "user"}, None, "in the order of time"),
        ({}, 3, "there are 2"),
    ],
)
def test_what_cannot_be_tried_is_refused(tmp_path, settings, processes, words):
    with pytest.raises(ConfigError, match=words):
        SiloTrial(world(**settings), tmp_path, processes)
