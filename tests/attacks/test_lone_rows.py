"""A secure sum hides whose an update is; rows that one device alone has sent show in the sum."""

import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.attacks.suite.a01_lone_rows import ATTACK, ON_SUMS
from sottovoce.attacks.views import SeenRound, Truth, View
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import GRID, LIMIT, ModelView
from sottovoce.engines.simulation import SimulatedDevices, Simulation
from sottovoce.parties.helper import Helper
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.testing import random_world

N_USERS, N_ITEMS, ROUNDS = 60, 400, 12
TRAIN = random_world(N_USERS, N_ITEMS, 900, seed=5)
USERS = np.arange(N_USERS, dtype=np.int64)


class Published:
    """Keeps models, what reaches the server, and, for judging alone, the vectors at the time."""

    def __init__(self, devices):
        self.devices, self.seen, self.vectors = devices, [], {}

    def on_message(self, party, message):
        if isinstance(message, ModelView):
            self.seen.append(
                SeenRound(message.round, (), ModelView(message.round, message.items.copy()))
            )
            self.vectors[message.round] = self.devices.cohort.vectors.copy()
        elif party == "server":
            last = self.seen[-1]
            self.seen[-1] = SeenRound(last.round, (*last.messages, message), last.published)


def attacked(triples, noise=0.0, clip=0.0, attack=ATTACK, **more):
    config = FPLConfig(embedding_size=8, learning_rate=0.05, triples=triples, **more)
    algorithm, rng = FPL(config, triples), Streams.from_seed(8)
    consent = Consent.uniform(USERS, Choice(share_positives=0.0))
    link = SecureSum(min_devices=40, clip=clip, noise=noise)
    cohort = Cohort(USERS, TRAIN, consent, algorithm.device_init(USERS, rng))
    devices = SimulatedDevices.behind_door(
        algorithm, cohort, ShareFraction(), Ledger(), rng, link=link
    )
    server, ear = Server.start(algorithm, N_ITEMS, rng), Published(devices)
    masker = Helper(link, server.items.size, bytes(32))
    Simulation(
        server, devices, N_USERS, ROUNDS, message_observers=[ear], masker=masker,
        largest_value=LIMIT * triples * GRID,
    ).run()  # fmt: skip
    view = View(attack.party, tuple(ear.seen), config, ShareFraction(), link, N_ITEMS, server.items)
    truth = Truth(
        TRAIN, TRAIN, consent.takes_part, consent.share_positives, {}, {}, cohort.vectors,
        {"vectors": ear.vectors},
    )  # fmt: skip
    assert [one.applies(view) == "" for one in (ATTACK, ON_SUMS) if one is not attack] == [False]
    assert attack.applies(view) == ""
    return attack.run(view, truth)


def test_where_few_draw_an_item_single_rows_give_hidden_positives_away():
    found = attacked(triples=1)
    assert found.verdict == "broken"
    assert found.value > 0.9
    assert found.claims > 300
    assert found.base_rate < 0.1


def test_where_many_draw_every_item_there_is_nothing_to_read():
    found = attacked(triples=200)  # 30 draws of an item in a round
    assert found.verdict != "broken"
    assert found.claims < 5


def test_central_noise_closes_it():
    found = attacked(triples=1, clip=0.5, noise=1.0)
    assert found.verdict != "broken"
    assert found.claims < 300


@pytest.mark.parametrize("rounds", [(), (0, 2)])
def test_only_rounds_in_a_row_are_compared(rounds):
    models = [ModelView(r, np.zeros((3, 11), np.float32)) for r in rounds]
    seen = tuple(SeenRound(m.round, (), m) for m in models)
    view = View("anyone", seen, FPLConfig(), ShareFraction(), SecureSum(), 3, np.zeros((3, 11)))
    assert ATTACK.guess(view) == []


def test_adagrad_hides_nothing_from_who_opens_the_sums():
    found = attacked(triples=1, attack=ON_SUMS, server_rate=0.1)
    assert found.verdict == "broken"
    assert found.value > 0.9
    assert found.claims > 300
    many = attacked(triples=200, attack=ON_SUMS, server_rate=0.1)
    assert many.verdict != "broken"
    assert many.claims < 5


def test_biases_that_are_pulled_to_zero_hide_nothing():
    found = attacked(triples=1, reg_bias=0.05)
    assert found.verdict == "broken"
    assert found.value > 0.9
