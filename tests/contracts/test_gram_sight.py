"""Sight of gram: what reaches the server, the helper and everyone is what the table of the secure
sum says, field by field, and what they can read of it is one noisy sum a round."""

from dataclasses import fields, replace

import numpy as np
import pytest

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import SEED_BYTES, unmasked
from sottovoce.core.messages import (
    MaskedReports,
    MaskSeeds,
    MaskSum,
    ModelView,
    SummedReports,
)
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

N = 60
TRAIN = random_world(N, 25, 500, seed=1)
TRAIN = replace(TRAIN, timestamps=np.random.default_rng(0).permutation(TRAIN.n_interactions))
MIX = [Choice(epsilon=0.5), Choice(epsilon=4.0), Choice(takes_part=False), Choice()]
LINK, RELEASE = SecureSum(20), OwnEpsilon(4.0)
CONFIG = GramConfig(least_head=8, most_head=8, embedding_size=6)


class Ears:
    def __init__(self):
        self.messages = {}

    def on_message(self, party, message):
        self.messages.setdefault(party, []).append(message)


def federation(mix=MIX, which=None):
    users = np.arange(N)
    consent = Consent.of(users, mix, users % len(mix) if which is None else which)
    return Federation.build(CONFIG, TRAIN, consent, RELEASE, Streams.from_seed(3), link=LINK)


@pytest.fixture(scope="module")
def run():
    made, ears = federation(), Ears()
    made.run(message_observers=[ears])
    return made, ears.messages


def test_each_party_sees_what_the_table_says_and_no_more(run):
    _, messages = run
    assert set(messages) == {"server", "proxy", "device"}
    kinds = {party: {type(m).__name__ for m in mine} for party, mine in messages.items()}
    assert kinds == {party: set(table) for party, table in LINK.sees.items()}
    for party, mine in messages.items():
        for message in mine:
            allowed = LINK.sees[party][type(message).__name__]
            assert {field.name for field in fields(message)} == allowed


def test_nobody_who_takes_no_part_or_permits_nothing_is_named(run):
    for mine in run[1].values():
        for message in mine:
            if isinstance(message, MaskedReports | MaskSeeds):
                assert set((message.sender % 4).tolist()) == {0, 1}


def test_the_server_reads_masked_numbers_and_one_noisy_sum_a_round(run):
    made, messages = run
    server = messages["server"]
    for round in range(2):
        masked = [m for m in server if isinstance(m, MaskedReports) and m.round == round]
        (told,) = [m for m in server if isinstance(m, MaskSum) and m.round == round]
        words = np.concatenate([m.masked for m in masked])
        assert len(words) == told.devices == N // 2
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
        sums = unmasked(words.sum(axis=0, dtype=words.dtype), told.masks, 1, told.bits)[:, 0]
        view = next(m for m in messages["device"] if m.round == round)
        exact = honest(view)
        noise = sums - exact
        sigmas = np.concatenate(
            [
                np.full(many, sigma * RELEASE.sigma * STEPS)
                for many, sigma in made.server.algorithm.noise_spans(round, len(sums))
            ]
        )
        assert (noise != 0).all()  # no number is without
        assert 0.6 < np.sqrt(np.mean((noise / sigmas) ** 2)) < 1.5


def honest(view):
    """The exact sum of a round, through a door of its own."""
    made = federation()
    many = made.server.algorithm.report_shape(view)[0]
    return made.devices.report_summed(view, made.devices.willing()).dense(many)[:, 0]


def test_the_helper_has_seeds_of_masks_and_nothing_of_anybody(run):
    """Its messages are the same whatever its users hold, but for the seeds, which are random."""
    for message in run[1]["proxy"]:
        assert isinstance(message, MaskSeeds)
        assert all(len(seed) == SEED_BYTES for seed in message.seeds)
        assert len(set(message.seeds)) == len(message.seeds)


def test_everyone_sees_models_that_follow_from_the_noisy_sums_alone(run):
    made, messages = run
    algorithm, items = made.server.algorithm, None
    memory = algorithm.server_memory(25)
    published = {m.round: m.items for m in messages["device"] if isinstance(m, ModelView)}
    assert not published[0].any()
    for round in range(2):
        items = published[0] if round == 0 else items
        assert np.array_equal(items, published[round])
        server = [m for m in messages["server"] if m.round == round]
        total = sum(
            m.masked.sum(axis=0, dtype=m.masked.dtype)
            for m in server
            if isinstance(m, MaskedReports)
        )
        (told,) = [m for m in server if isinstance(m, MaskSum)]
        sums = unmasked(total, told.masks, 1, told.bits)
        every = np.arange(len(sums), dtype=np.int32)
        opened = SummedReports(round, every, sums, told.devices)
        items, memory = algorithm.server_fold(items, memory, opened)
    assert np.array_equal(items, made.server.items)


def test_an_epsilon_is_in_no_message():
    """Whoever whispers: lengths, senders and order are the same, and no field holds it."""
    shapes = []
    for epsilon in (0.25, 4.0):
        which = (np.arange(N) != 7).astype(np.int64)
        made, ears = federation([Choice(epsilon=epsilon), Choice(epsilon=1.0)], which), Ears()
        made.run(message_observers=[ears])
        shapes.append(
            [
                (party, type(m).__name__, m.round, getattr(m, "sender", np.zeros(0)).tolist())
                + ((m.masked.shape,) if isinstance(m, MaskedReports) else ())
                for party, mine in ears.messages.items()
                for m in mine
                if m.round == 0
            ]
        )
    assert shapes[0] == shapes[1]
