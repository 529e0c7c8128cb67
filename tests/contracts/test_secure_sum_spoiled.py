"""Garbage in secure sums, in simulation: the search is the server's, and where there is nothing to
find it changes nothing."""

from dataclasses import replace

import numpy as np

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Direct, SecureSum
from sottovoce.engines.simulation import Simulation
from sottovoce.parties.searching import Search
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

USERS, LIAR = 64, 11
TRAIN = random_world(USERS, 40, 600, seed=4)
LINK = SecureSum(min_devices=8)


def built(link, rounds=12):
    settings = FPLConfig(embedding_size=5, triples=4, rounds=rounds)
    everyone = np.arange(USERS)
    consent = Consent.uniform(everyone, Choice(share_positives=0.5))
    rng = Streams.from_seed(7)
    return Federation.build(settings, TRAIN, consent, ShareFraction(), rng, None, link)


class Spoiling:
    """Devices of which one sends garbage in place of its masked update."""

    def __init__(self, devices, liar):
        self._devices, self._liar = devices, liar

    def __getattr__(self, name):
        return getattr(self._devices, name)

    def report_masked(self, view, rows, seeds=None):
        reports, seeds = self._devices.report_masked(view, rows, seeds)
        hidden = reports.masked.copy()
        draw = np.random.default_rng(view.round)
        for row in np.flatnonzero(reports.sender == self._liar):
            hidden[row] = draw.integers(0, 2**64, hidden.shape[1], np.uint64)
        return replace(reports, masked=hidden), seeds


def simulation(made, rounds, **options):
    devices = options.pop("devices", made.devices)
    return Simulation(
        made.server, devices, USERS, rounds, masker=made.masker,
        largest_value=made.largest_value, search=Search(), **options,
    )  # fmt: skip


def test_in_simulation_a_round_is_lost_and_the_liar_is_found_and_left_out():
    made = built(LINK)
    before = made.server.items.copy()
    run = simulation(made, 1, devices=Spoiling(made.devices, LIAR))
    run.run()
    assert np.array_equal(made.server.items, before)
    run.rounds = 8
    run.run()
    assert run.shut_out == {LIAR}
    assert not np.array_equal(made.server.items, before)
    run.rounds = 12
    run.run()
    assert (run.search.on, run.shut_out) == (False, {LIAR})
    assert np.isfinite(made.server.items).all()


def test_a_search_that_has_nothing_to_find_changes_no_bit():
    searched, plain, direct = built(LINK), built(LINK), built(Direct())
    simulation(searched, 3).run()
    Simulation(plain.server, plain.devices, USERS, 3, masker=plain.masker).run()
    Simulation(direct.server, direct.devices, USERS, 3).run()
    assert np.array_equal(searched.server.items, plain.server.items)
    assert np.array_equal(searched.server.items, direct.server.items)
