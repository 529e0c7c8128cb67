"""The door of simulated DRIFT users: nothing passes it that a user does not permit, what passes is
booked, and data owners learn from nothing else."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable
from sottovoce.algorithms.drift.replay import address
from sottovoce.algorithms.drift.system import DRIFTConfig, User
from sottovoce.core.consent import Choice, Consent
from sottovoce.engines.silo import SiloWorld
from sottovoce.engines.silo_simulation import SiloSimulation
from sottovoce.errors import ConfigError, ConsentError, DataError
from sottovoce.parties.silo_door import SEALED_BYTES, Departed, InteractionDoor
from sottovoce.rng import Streams

OWNERS = ("red", "green")
TABLE = OwnerTable.of_membership(np.array([[True, False], [False, True], [True, True]]))
CHOICES = [Choice(), Choice(refused_owners=("red",)), Choice(takes_part=False)]
CONSENT = Consent.of(np.arange(3), CHOICES, np.arange(3), owners=OWNERS)
"""Ada permits all, Bea refuses red, Cleo stays at home."""
ADA, BEA, CLEO = range(3)
ROOT = Streams.from_seed(1)


def events(*said, order="time"):
    user, item, liked = zip(*said, strict=True)
    return Events(
        np.array(user, np.int64), np.array(item, np.int32), np.array(liked, bool),
        np.arange(len(said)), order,
    )  # fmt: skip


EVERYTHING = events(*((u, i, u != i) for i in range(3) for u in range(3)))


def door(consent=CONSENT):
    return InteractionDoor(consent, OWNERS, TABLE)


def sent(departed):
    return [(m.user, m.item, m.owner) for part in departed.messages() for m in part]


def rows(here):
    return [
        (r["kind"], r["user"], r["round"], r["positive_rows"], r["negative_rows"], r["bytes"])
        for r in here.ledger.pending().to_pylist()
    ]


# --- nothing goes around it -----------------------------------------------------------------------


def test_owners_learn_from_nothing_that_the_door_did_not_let_go():
    """Everybody's events as they are, with somebody's idea of who may be told, or by another door,
    which has them in another ledger."""
    here, config = door(), DRIFTConfig(epochs=1)
    others = door(Consent.uniform(np.arange(3), Choice(), owners=OWNERS)).let_out(EVERYTHING)
    for stream in (EVERYTHING, (EVERYTHING, address(EVERYTHING, TABLE)), others, None):
        with pytest.raises(ConsentError, match="learn only from what their users' door has let go"):
            SiloWorld(config, here, stream, ("a", "b", "c"), ROOT)
    assert SiloWorld(config, here, here.let_out(EVERYTHING), ("a", "b", "c"), ROOT).blocks()


def test_only_a_door_makes_what_has_departed():
    here = door()
    left = here.let_out(EVERYTHING)
    everybody = address(EVERYTHING, TABLE)
    with pytest.raises(ConsentError, match="only a door"):
        Departed(EVERYTHING, everybody, (0, 1), 1, left.read, left.door, object())
    with pytest.raises((ConsentError, ValueError, TypeError)):
        replace(left, told=everybody)
    with pytest.raises(ConsentError):
        replace(left, told=everybody, key=None)
    with pytest.raises(AttributeError):
        left.told = everybody
    assert sent(copy.copy(left)) == sent(left)

    class Loose(Departed):
        def __post_init__(self, key):
            pass

    loose = Loose(EVERYTHING, everybody, (0, 1), 1, left.read, left.door, None)
    with pytest.raises(ConsentError, match="learn only from"):
        SiloWorld(DRIFTConfig(epochs=1), here, loose, ("a", "b", "c"), ROOT)


def test_owners_learn_as_often_as_was_let_go():
    here = door()
    with pytest.raises(ConsentError, match="has let go 2 epochs, and owners would learn from 5"):
        SiloWorld(DRIFTConfig(epochs=5), here, here.let_out(EVERYTHING, 2), ("a", "b", "c"), ROOT)
    with pytest.raises(ConfigError, match="epochs"):
        here.let_out(EVERYTHING, 0)


def test_a_user_who_asks_nobody_is_stopped_at_the_door():
    """She addresses every owner; the simulation with a wire lets go what she permits."""
    here, heard = door(), []

    def watch(party, message):
        if party[0] == "owner" and isinstance(message, Interaction):
            heard.append((message.user, message.item, message.owner))

    config = DRIFTConfig(theta=100)
    SiloSimulation(config, TABLE, range(3), ROOT, "none", watch, door=here).epoch(EVERYTHING)
    assert heard == sent(door().let_out(EVERYTHING))
    for user in (CLEO, 77):
        assert not here.let_out_one(User(user, TABLE).interact(2, True, 9))
    assert [m.owner for m in here.let_out_one(User(BEA, TABLE).interact(2, True, 9))] == [1]


# --- what passes ----------------------------------------------------------------------------------


def test_what_passes_is_what_users_permit_and_every_epoch_is_booked():
    here = door()
    left = here.let_out(EVERYTHING, 3)
    assert sent(left) == [
        (ADA, 0, 0), (ADA, 1, 1), (BEA, 1, 1), (ADA, 2, 0), (ADA, 2, 1), (BEA, 2, 1),
    ]  # fmt: skip
    one = 3 * SEALED_BYTES
    assert rows(here) == [
        ("interactions:red", ADA, 3, 3, 3, 2 * one),
        ("interactions:green", ADA, 3, 6, 0, 2 * one),
        ("interactions:green", BEA, 3, 3, 3, 2 * one),
    ]
    assert here.ledger.totals.epsilon == np.inf


def test_of_what_goes_to_nobody_only_the_turn_is_left():
    """Windows count it, as they count what leaves."""
    left = door().let_out(events((BEA, 0, True), (CLEO, 2, True), (BEA, 1, True)))
    assert left.events.user.tolist() == [BEA, BEA]
    assert left.events.item.tolist() == [0, 1]
    assert left.events.positive.tolist() == [False, True]
    assert left.events.time.tolist() == [0, 2]
    assert left.told.pointer.tolist() == [0, 0, 1]


def test_what_is_never_sent_needs_a_meaning_and_no_stranger_is_mistaken():
    choices = [Choice(never_send=("c",)), Choice(), Choice()]
    consent = Consent.of(np.arange(3), choices, np.arange(3), owners=OWNERS)
    with pytest.raises(DataError, match="never_send names 'c'"):
        InteractionDoor(consent, OWNERS, TABLE)
    here = InteractionDoor(consent, OWNERS, TABLE, {"c": np.array([2], np.int32)})
    seen = {(user, item) for user, item, _ in sent(here.let_out(EVERYTHING))}
    assert seen == {(u, i) for u in range(3) for i in range(3)} - {(ADA, 2)}
    last = Consent.uniform(np.array([1]), Choice(never_send=("c",)), owners=OWNERS)
    alone = InteractionDoor(last, OWNERS, TABLE, {"c": np.array([2], np.int32)})
    assert {user for user, _, _ in sent(alone.let_out(EVERYTHING))} == {BEA}


def test_what_would_leave_is_shown_and_not_booked():
    here = door()
    shown, told = here.would_leave(EVERYTHING)
    assert not rows(here)
    left = here.let_out(EVERYTHING)
    assert np.array_equal(shown.user, left.events.user)
    assert np.array_equal(told.owner, left.told.owner)


def test_the_first_events_of_what_left():
    left = door().let_out(EVERYTHING)
    assert sent(left.first(4)) == sent(left)[:3]
    assert sent(left.first(None)) == sent(left.first(99)) == sent(left)
    assert left.first(2).read.user.tolist() == [ADA]


def test_a_device_is_a_cohort_of_one():
    whole = door().let_out(EVERYTHING)
    for user in range(3):
        alone = door(CONSENT.take(np.array([user])))
        assert sent(alone.let_out(EVERYTHING)) == [m for m in sent(whole) if m[0] == user]


def test_owners_need_not_be_numbered_without_gaps():
    sparse = OwnerTable()
    for place, number in enumerate((7, 1007)):
        sparse.add(number, TABLE.items(place))
    left = InteractionDoor(CONSENT, OWNERS, sparse).let_out(EVERYTHING)
    dense = sent(door().let_out(EVERYTHING))
    assert sent(left) == [(u, i, (7, 1007)[k]) for u, i, k in dense]
    one_by_one = InteractionDoor(CONSENT, OWNERS, sparse).users()[BEA]
    assert [m.owner for m in one_by_one.interact(2, True, 0)] == [1007]


def test_a_door_knows_all_owners_and_their_items():
    with pytest.raises(ConsentError, match="no consent record says what blue may see"):
        InteractionDoor(CONSENT, ("red", "blue"), TABLE)
    with pytest.raises(DataError, match="must have a name"):
        InteractionDoor(CONSENT, ("red",), TABLE)
    with pytest.raises(DataError, match="no data owner holds"):
        InteractionDoor(CONSENT, OWNERS, TABLE).let_out(events((ADA, 5, True)))


def test_what_is_private_stays_out_of_reprs():
    here = door()
    assert "redacted" in repr(here)
    assert "redacted" in repr(here.let_out(EVERYTHING))
