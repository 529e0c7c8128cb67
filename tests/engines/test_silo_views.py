"""Views of a federation of data owners: what reached each party, all of it and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import DriftModel, Events, learn
from sottovoce.algorithms.drift.messages import Gradients, Interaction, OwnerTable, RowRequest, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.attacks.views import TlsPacket
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.engines.silo import SiloWorld
from sottovoce.engines.silo_simulation import SiloSimulation
from sottovoce.engines.silo_simulation import WirePacket as Wire
from sottovoce.engines.silo_views import silo_views
from sottovoce.errors import ConfigError
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.rng import Streams

N_USERS, N_ITEMS, N = 40, 30, 700
DRAW = np.random.default_rng(4)
TRAIN = Interactions.from_pairs(
    DRAW.integers(0, N_USERS, N), DRAW.integers(0, N_ITEMS, N), n_users=N_USERS, n_items=N_ITEMS,
    timestamps=DRAW.integers(0, N, N), ratings=DRAW.integers(1, 6, N),
)  # fmt: skip
MEMBER = DRAW.random((N_ITEMS, 3)) < 0.3
MEMBER[np.arange(N_ITEMS), np.arange(N_ITEMS) % 3] = True
REFUSED = DRAW.random((N_USERS, 3)) < [0.0, 0.3, 0.1]
EVENTS = Events.of(TRAIN, 4.0, "time")
PRINTED = DRIFTConfig(theta=2)
SUMS = DRIFTConfig(release="aggregated", min_users=3, window=100)


def world(config, refused=None):
    consent = Consent.uniform(np.arange(N_USERS), Choice(), owners=("a", "b", "c"))
    if refused is not None:
        consent = replace(consent, refused_owners=refused)
    door = InteractionDoor(consent, consent.owners, OwnerTable.of_membership(MEMBER))
    return SiloWorld.of(config, door, EVENTS, tuple(map(str, range(N_ITEMS))), Streams.from_seed(5))


@pytest.mark.parametrize("config", [PRINTED, SUMS])
def test_the_orchestrator_s_view_is_what_reaches_it_by_the_wire(config):
    """As SiloSimulation's witness has it, in the same order."""
    here, got = world(config), []

    def watch(party, message):
        if party[0] == "orchestrator":
            got.append(message)

    wired = SiloSimulation(config, here.table, range(N_USERS), here.root, "none", witness=watch)
    for _ in range(2):
        wired.epoch(EVENTS)
    view = silo_views(here, rounds=2)[0]["orchestrator"]
    mine = [m for seen in view.rounds for m in seen.messages]
    assert [type(m) for m in mine] == [type(m) for m in got]
    for one, other in zip(mine, got, strict=True):
        assert one.items.tolist() == other.items.tolist()
        assert one.users.tolist() == other.users.tolist()
        if not isinstance(one, RowRequest):
            assert np.array_equal(one.item_rows, other.item_rows)
    assert np.array_equal(view.final, wired.model.items)


def test_the_network_sees_the_lengths_of_the_sealed_wire():
    here, wire = world(SUMS), []

    def watch(_party, message):
        if isinstance(message, Wire):
            wire.append(message)

    SiloSimulation(SUMS, here.table, range(N_USERS), here.root, "pairs", watch).epoch(EVENTS)
    said = sorted(len(p.content) for p in wire if p.receiver[0] == "orchestrator")
    packets = silo_views(here)[0]["network"].messages(TlsPacket)
    assert sorted(p.bytes for p in packets if p.receiver == "orchestrator") == said
    assert all(p.sender < 0 for p in packets if p.receiver == "orchestrator")
    assert sum(p.sender >= 0 for p in packets) == len(here.departed.told.owner)


def test_an_owner_s_view_has_its_own_messages_and_no_refusals():
    views, own = silo_views(world(SUMS, REFUSED))
    view = views["owner"]
    assert view.own["owner"] == 1, "the one that most refuse"
    heard = view.messages(Interaction)
    assert {m.owner for m in heard} == {1}
    assert not {m.user for m in heard} & set(np.flatnonzero(REFUSED[:, 1]).tolist())
    assert np.array_equal(own["refused"], REFUSED)
    assert not view.messages(RowRequest)
    assert not view.messages(Gradients)
    assert view.messages(Rows)


def test_the_truth_is_what_the_plan_says():
    here = world(PRINTED)
    truth = silo_views(here, events=10_000)[1]["drift"]
    blocks = here.blocks()
    assert truth.message.max() + 1 == blocks.steps
    user = np.repeat(blocks.user, blocks.spans[:, 3] - blocks.spans[:, 0])
    assert sorted(zip(truth.user, truth.item, strict=True)) == sorted(
        zip(user, blocks.entries, strict=True)
    )
    assert truth.rows[:, 2].min() == 1


def test_behind_every_sum_are_enough_people():
    truth = silo_views(world(SUMS), rounds=2)[1]["drift"]
    assert truth.rows[:, 2].min() >= SUMS.min_users
    assert len(truth.rows) > 20


def test_the_view_starts_from_the_orchestrator_s_own_model():
    here = world(PRINTED)
    view = silo_views(here, events=10_000)[0]["orchestrator"]
    model = here.first_model()
    assert np.array_equal(view.own["model"].users, model.users)
    learn(model, here.blocks(), PRINTED.step())
    assert np.array_equal(view.final, model.items)
    sums = silo_views(world(SUMS))[0]["orchestrator"]
    assert sums.own["model"].users.shape == (0, 4), "it holds no user"


def test_a_part_of_the_events_and_another_model():
    here = world(PRINTED)
    few = silo_views(here, events=60)[1]["drift"]
    assert len(few.user) <= 60 * 3
    other = DriftModel(np.zeros((N_USERS, 4), np.float32), np.ones((N_ITEMS, 4), np.float32))
    assert silo_views(here, other, events=60)[0]["orchestrator"].final is other.items
    with pytest.raises(ConfigError, match="rounds"):
        silo_views(here, rounds=0)
