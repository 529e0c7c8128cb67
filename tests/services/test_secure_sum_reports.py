"""What devices of a secure sum send: the message, what the server checks of it before it is stored,
and how a device keeps it."""

import asyncio
import contextlib
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_sum_world import NOISY, SeedKeeper, SummedWorld, masker_folder
from server_world import ITEMS, USERS

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.masking import expand, masked
from sottovoce.core.messages import GRID, ModelView
from sottovoce.errors import ConsentError, KeyTrouble, UsageError
from sottovoce.rng import Streams
from sottovoce.services.server.checks import Checks
from sottovoce.services.server.state import RoundState
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession
from sottovoce.testing import random_world
from sottovoce.wire.masked import (
    binding,
    decode_masked,
    encode_masked,
    message_bytes,
    model_name,
    open_seed,
    seal_masked,
    seal_seed,
)
from sottovoce.wire.refusals import Refused
from sottovoce.wire.reports import encode_report
from sottovoce.wire.signing import OVERHEAD, seal

RNG = Streams.from_seed(3)


# --- what the server checks ----------------------------------------------------------------------


class Door:
    """The server's checks on reports of an open round."""

    def __init__(self, path):
        self.world = SummedWorld(path)
        self.world.step()
        self.board = RoundState(self.world.database, self.world.plan)
        self.board.refresh()
        self.checks = Checks(self.world.terms, self.board, self.world.database)

    def sealed(self, number, body, **changes):
        said = {"number": number, "round": 0, "attempt": 0, "nonce": bytes(16), "body": body}
        key = self.world.keepers[number].key
        return seal(key, self.world.terms.federation, "report", **{**said, **changes})

    def take(self, payload):
        async def aside(work):
            return work()

        return asyncio.run(self.checks.report(payload, aside))

    def refused(self, number, body, reason, **changes):
        with pytest.raises(Refused) as caught:
            self.take(self.sealed(number, body, **changes))
        assert caught.value.reason == reason, caught.value
        assert 400 <= caught.value.status < 500


@pytest.fixture
def door(tmp_path):
    made = Door(tmp_path)
    yield made
    made.world.close()


def test_a_good_message_is_taken_and_all_have_the_same_length(door):
    lengths = set()
    for number in range(USERS):
        body = door.world.body(number)
        taken = door.take(door.sealed(number, body))
        assert (taken.number, taken.body) == (number, body)
        lengths.add(len(body))
    nothing = door.world.body(0, values=np.zeros((ITEMS, 5), np.int64))
    assert lengths == {len(nothing)} == {message_bytes(door.world.terms, ITEMS * 5)}
    assert door.checks.longest == OVERHEAD + len(nothing)


def test_what_the_server_would_choke_on_later_is_refused_at_once(door):
    world, good = door.world, door.world.body(1)
    terms = world.terms
    door.refused(1, good[:-1], "malformed")
    door.refused(1, good + b"x", "malformed")
    door.refused(1, b"", "malformed")
    door.refused(1, b"SVM2" + good[4:], "version")
    view = ModelView(0, world.model())
    door.refused(1, encode_report(world.devices.report(view, np.array([1]))), "malformed")
    record, keeper = world.keepers[1].record(terms, 0), world.keepers[1]
    hidden = masked(np.zeros((ITEMS, 5), np.int64), keeper.seed(0))
    door.refused(1, encode_masked(terms, hidden, record, 1, 0), "malformed")
    door.refused(1, encode_masked(terms, hidden, record, 0, 1), "malformed")
    door.refused(1, encode_masked(terms, hidden[:-1], record, 0, 0), "malformed")
    door.take(door.sealed(1, encode_masked(terms, hidden, record, 0, 0)))


def test_a_seed_must_be_signed_by_its_sender_for_this(door):
    """Or one device could make the proxy refuse everybody's sum."""
    world, terms = door.world, door.world.terms
    other = replace(terms, federation="other-town")
    for record in (
        world.keepers[2].record(terms, 0),
        world.keepers[1].record(terms, 1),
        world.keepers[1].record(terms, 0, 1),
        world.keepers[1].record(other, 0),
        SeedKeeper().record(terms, 0),
        replace(world.keepers[1].record(terms, 0), signature=bytes(64)),
        replace(world.keepers[1].record(terms, 0), device=bytes(32)),
    ):
        door.refused(1, world.body(1, record=record), "bad_signature")


# --- the message ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "zz", "ab" * 31, "00" * 32])
def test_a_bad_key_in_the_terms_seals_nothing(tmp_path, key):
    folder = masker_folder(tmp_path / "masker")
    link = replace(folder.introduction.link, key=key)
    with pytest.raises(KeyTrouble):
        seal_seed(bytes(32), Ed25519PrivateKey.generate(), link, b"")


# --- the device ----------------------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path):
    return masker_folder(tmp_path / "masker")


class Packer:
    """What an agent does, with a key of its own."""

    def __init__(self):
        self.key, self.calls = Ed25519PrivateKey.generate(), 0

    def __call__(self, terms, attempt, view, reports, seeds):
        self.calls += 1
        return seal_masked(terms, attempt, view, reports, seeds, self.key)


def phone(path, terms, pack, users=(2,)):
    train = random_world(5, ITEMS, 60, seed=1)
    numbers = np.array(users)
    store = CohortStore.create(path, [(n, f"user {n}") for n in users], root_key=RNG.key)
    store.set_catalogue([(str(i), f"Venue {i}") for i in range(ITEMS)])
    store.add_histories(train.take_users(numbers))
    store.set_choices(Consent.uniform(np.arange(5), Choice(share_positives=0.5)).take(numbers))
    hosted = DeviceSession(store, pack=pack)
    hosted.agree(terms)
    return hosted


def view(round=0):
    rng = np.random.default_rng(round)
    return ModelView(round, rng.normal(scale=0.3, size=(ITEMS, 5)).astype(np.float32))


def seed_of(prepared, folder):
    terms = folder.introduction.terms
    message = decode_masked(prepared.message, terms, prepared.round, prepared.attempt, ITEMS * 5)
    name = model_name(view(prepared.round).items)
    bound = binding(terms, prepared.round, prepared.attempt, name)
    seed = open_seed(message.record, folder.seal_key(), bound)
    return seed, (message.masked - expand(seed, ITEMS * 5)).view(np.int64).reshape(ITEMS, 5)


def test_a_prepared_message_is_the_same_bytes_until_it_arrives(tmp_path, federation):
    pack = Packer()
    hosted = phone(tmp_path / "phone", federation.introduction.terms, pack)
    first = hosted.prepare(view(), 0, summed=False)
    hosted.leaving(first)
    hosted.store.close()
    with contextlib.closing(CohortStore.open(tmp_path / "phone", agent=True)) as store:
        again = DeviceSession(store, pack=pack)
        assert again.unresolved().message == first.message
        assert again.prepare(view(), 0, summed=False).message == first.message
        assert pack.calls == 1
        again.arrived(0, 0)
        table = store.ledger().to_pydict()
    assert table["bytes"] == [8 * ITEMS * 5 + 176]
    seed, values = seed_of(first, federation)
    assert values.any()
    assert seed not in first.message


def test_another_attempt_has_another_seed(tmp_path, federation):
    """Under one mask the difference of two messages would be that of the updates."""
    hosted = phone(tmp_path / "phone", federation.introduction.terms, Packer())
    with contextlib.closing(hosted.store):
        seeds, values = [], []
        for attempt in range(4):
            hosted.follow(0, attempt)
            prepared = hosted.prepare(view(), attempt, summed=False)
            hosted.leaving(prepared)
            seed, update = seed_of(prepared, federation)
            seeds.append(seed)
            values.append(update)
        assert len(set(seeds)) == 4
        assert all(np.array_equal(update, values[0]) for update in values)


def test_what_was_dropped_and_prepared_anew_has_another_seed(tmp_path, federation):
    hosted = phone(tmp_path / "phone", federation.introduction.terms, Packer())
    with contextlib.closing(hosted.store) as store:
        first = hosted.prepare(view(), 0, summed=False)
        store.set_choice(2, Choice(share_positives=0.7))
        with pytest.raises(ConsentError):
            hosted.leaving(first)
        second = hosted.prepare(view(), 0, summed=False)
        assert seed_of(first, federation)[0] != seed_of(second, federation)[0]


def test_the_update_is_clipped_before_it_is_masked(tmp_path):
    folder = masker_folder(tmp_path / "masker", **NOISY)
    hosted = phone(tmp_path / "phone", folder.introduction.terms, Packer())
    with contextlib.closing(hosted.store):
        _, values = seed_of(hosted.prepare(view(), 0, summed=False), folder)
    length = np.sqrt((values.astype(float) ** 2).sum()) / GRID
    assert 0 < length <= NOISY["clip"]


def test_masked_updates_are_no_sums_and_need_a_key(tmp_path, federation):
    terms = federation.introduction.terms
    cohort = phone(tmp_path / "cohort", terms, Packer(), users=(1, 2))
    with contextlib.closing(cohort.store):
        with pytest.raises(UsageError, match="each device itself"):
            cohort.prepare(view(), 0, summed=True)
        with pytest.raises(UsageError, match="report of one"):
            cohort.prepare(view(), 0, summed=False)
    hosted = phone(tmp_path / "phone", terms, None)
    with contextlib.closing(hosted.store), pytest.raises(UsageError, match="key to sign"):
        hosted.prepare(view(), 0, summed=False)
