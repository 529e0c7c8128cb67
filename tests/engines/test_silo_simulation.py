"""DRIFT by sealed bytes: the same model as by messages, what travels, and where the time goes."""

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner, User
from sottovoce.core.interactions import Interactions
from sottovoce.engines.silo_simulation import (
    AGREEMENT_BYTES,
    KINDS,
    PHASES,
    SEALINGS,
    SECURITY,
    SESSION_BYTES,
    SiloSimulation,
    WirePacket,
)
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams
from sottovoce.wire import silo_rounds as silo_bytes
from sottovoce.wire.interactions import SEALED_BYTES, SHARED_BYTES

RNG = Streams.from_seed(3)
N_USERS, N_ITEMS, N_OWNERS = 12, 20, 4
DRAW = np.random.default_rng(8)
MEMBER = DRAW.random((N_ITEMS, N_OWNERS)) < 0.3
MEMBER[np.arange(N_ITEMS), np.arange(N_ITEMS) % N_OWNERS] = True
TABLE = OwnerTable.of_membership(MEMBER)
TRAIN = Interactions.from_pairs(
    DRAW.integers(0, N_USERS, 220), DRAW.integers(0, N_ITEMS, 220), n_users=N_USERS,
    n_items=N_ITEMS, timestamps=DRAW.integers(0, 150, 220), ratings=DRAW.integers(1, 6, 220),
)  # fmt: skip
RECORD = 22
"""What TLS adds to a message."""


def events(order="time"):
    return Events.of(TRAIN, 4.0, order)


def simulation(config, sealing, **more):
    return SiloSimulation(config, TABLE, range(N_USERS), RNG, sealing, **more)


def by_messages(config, epochs):
    orchestrator = Orchestrator(config, RNG)
    owners = {}
    for k in TABLE.all_owners():
        orchestrator.add_items(k, TABLE.items(k))
        owners[k] = Owner(k, TABLE.items(k), config)
    users = {u: User(u, TABLE) for u in range(N_USERS)}
    for u in users:
        orchestrator.join_user(u)
        for owner in owners.values():
            owner.admit(u)
    stream = Events.of(TRAIN, 4.0, config.order)
    done = [replay(stream, users, owners, orchestrator, config.window) for _ in range(epochs)]
    return orchestrator.model, sum(d.updates for d in done)


@pytest.mark.parametrize("sealing", SEALINGS)
@pytest.mark.parametrize("order", ["time", "user"])
@pytest.mark.parametrize(("theta", "window"), [(1, 0), (2, 0), (5, 0), (2, 30)])
def test_the_model_is_the_replay_s_bit_for_bit(sealing, order, theta, window):
    config = DRIFTConfig(theta=theta, window=window, order=order, embedding_size=4)
    expected, updates = by_messages(config, epochs=2)
    wired = simulation(config, sealing)
    costs = [wired.epoch(events(order)) for _ in range(2)]
    assert sum(cost.updates for cost in costs) == updates > 10
    np.testing.assert_array_equal(wired.model.users, expected.users)
    np.testing.assert_array_equal(wired.model.items, expected.items)


def test_it_goes_on_from_a_model():
    config = DRIFTConfig(embedding_size=4)
    expected, _ = by_messages(config, epochs=2)
    first = simulation(config, "none")
    first.epoch(events())
    second = simulation(config, "pairs", model=first.model)
    second.epoch(events())
    np.testing.assert_array_equal(second.model.users, expected.users)
    np.testing.assert_array_equal(second.model.items, expected.items)


@pytest.mark.parametrize(
    ("sealing", "interaction", "record"),
    [("none", 17, 0), ("shared", SHARED_BYTES, 0),
     ("pairs", SESSION_BYTES + SEALED_BYTES, RECORD)],
)  # fmt: skip
def test_every_byte_is_counted(sealing, interaction, record):
    config, packets = DRIFTConfig(embedding_size=4), []

    def watch(party, message):
        if isinstance(message, WirePacket):
            packets.append(message)

    wired = simulation(config, sealing, witness=watch)
    cost = wired.epoch(events())
    messages = int(MEMBER.sum(axis=1)[events().item].sum())
    assert cost.messages["interaction"] == messages
    assert cost.bytes["interaction"] == messages * interaction
    assert cost.messages["request"] == cost.messages["rows"] == cost.updates
    assert cost.messages["gradients"] == cost.updates
    rows = (cost.bytes["request"] - cost.updates * (silo_bytes.request_bytes(0, 0) + record)) // 4
    for kind, expected in (
        ("rows", silo_bytes.rows_bytes(0, rows, 4)),
        ("gradients", silo_bytes.gradients_bytes(0, rows, 4)),
    ):
        head = {"rows": silo_bytes.rows_bytes, "gradients": silo_bytes.gradients_bytes}[kind]
        heads = (cost.updates - 1) * head(0, 0, 4) + cost.updates * record
        assert cost.bytes[kind] == expected + heads
    assert sum(cost.bytes.values()) == sum(len(p.content) for p in packets)
    assert sum(cost.messages.values()) == len(packets)


def test_keys_are_agreed_on_once_for_a_user_and_an_owner():
    wired = simulation(DRIFTConfig(), "pairs")
    first, second = wired.epoch(events()), wired.epoch(events())
    met = {(u, k) for u, i in zip(events().user, events().item, strict=True)
           for k in np.flatnonzero(MEMBER[i]).tolist()}  # fmt: skip
    assert first.messages["keys"] == 4 * len(met)
    assert first.bytes["keys"] == AGREEMENT_BYTES * len(met)
    assert first.seconds["keys"] > 0
    assert (second.messages["keys"], second.seconds["keys"]) == (0, 0.0)
    assert second.bytes["interaction"] == first.bytes["interaction"]


@pytest.mark.parametrize("sealing", SEALINGS)
def test_the_time_is_split_by_phase(sealing):
    cost = simulation(DRIFTConfig(), sealing).epoch(events())
    assert set(cost.seconds) == set(PHASES)
    assert set(cost.messages) == set(cost.bytes) == set(KINDS)
    assert min(cost.seconds.values()) >= 0
    assert cost.total == pytest.approx(sum(cost.seconds.values()))
    assert cost.share(*PHASES) == pytest.approx(1.0)
    for phase in ("blocks", "gradients", "update", "transport"):
        assert cost.seconds[phase] > 0
    spent = {phase for phase in SECURITY if cost.seconds[phase] > 0}
    assert spent == {"none": set(), "shared": {"encryption", "decryption"}}.get(
        sealing, set(SECURITY)
    )


def test_it_can_run_on_a_part_of_the_events():
    every = events()
    few = Events(*(getattr(every, k)[:40] for k in ("user", "item", "positive", "time")), "time")
    cost = simulation(DRIFTConfig(), "pairs").epoch(few)
    assert cost.messages["interaction"] == MEMBER.sum(axis=1)[few.item].sum()


def test_a_way_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="sealing must be one of"):
        simulation(DRIFTConfig(), "rot13")


def test_nothing_private_is_shown():
    wired = simulation(DRIFTConfig(), "pairs")
    shown = [
        wired,
        wired.owners[0],
        wired.orchestrator,
        WirePacket(("user", 7), ("owner", 1), b"secr"),
    ]
    text = " ".join(map(repr, shown))
    assert "secr" not in text
    assert "7" not in repr(shown[-1])
