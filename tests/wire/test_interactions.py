"""Sealed interactions: who can open them, and what is refused."""

import struct

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import KeyTrouble, MessageError
from sottovoce.wire.interactions import (
    KEY_BYTES,
    MOST_MESSAGES,
    NONCE_BYTES,
    SEALED_BYTES,
    SHARED_BYTES,
    Identity,
    Offer,
    OpenedInteraction,
    SessionReceiver,
    SessionSender,
    SharedKey,
    begin,
)

USER, OWNER = 21, 4
USER_KEYS, OWNER_KEYS, OTHER_KEYS = Identity(), Identity(), Identity()


def session(user=USER, owner=OWNER):
    offer = Offer(owner, OWNER_KEYS)
    sender, hello = begin(user, USER_KEYS, owner, OWNER_KEYS.public, offer.public)
    return sender, offer.accept(user, USER_KEYS.public, hello)


def flipped(message, bit):
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# --- a session -----------------------------------------------------------------------------------


@given(
    sequence=st.integers(0, 2**64 - 1),
    kind=st.sampled_from(["negative", "positive", "end", "leave"]),
    item=st.integers(0, 2**32 - 1),
    time=st.integers(-(2**63), 2**63 - 1),
)
def test_the_owner_reads_what_the_user_sealed(sequence, kind, item, time):
    sender, receiver = session()
    sealed = sender.seal(sequence, kind, item, time)
    assert len(sealed) == SEALED_BYTES == 53
    assert receiver.open(sealed) == OpenedInteraction(USER, item, kind, time, sequence)


@pytest.mark.parametrize("kind", ["positive", "leave"])
def test_any_flipped_bit_is_refused_and_the_message_still_opens(kind):
    sender, receiver = session()
    receiver.open(sender.seal(0, "negative", 1, 0))
    sealed = sender.seal(1, kind, 7, 8)
    for bit in range(8 * len(sealed)):
        with pytest.raises(MessageError):
            receiver.open(flipped(sealed, bit))
    assert receiver.last == 0
    assert receiver.open(sealed) == OpenedInteraction(USER, 7, kind, 8, 1)


def test_a_repeated_nonce_is_refused():
    sender, receiver = session()
    first, second, third = (sender.seal(k, "positive", k, k) for k in range(3))
    receiver.open(first)
    receiver.open(third)
    for old in (first, second, third):
        with pytest.raises(MessageError, match="nonce is not new"):
            receiver.open(old)
    assert receiver.open(sender.seal(9, "negative", 9, 9)).item == 9


def test_a_lost_message_stops_nothing():
    sender, receiver = session()
    sender.seal(0, "positive", 1, 0)
    assert receiver.open(sender.seal(1, "positive", 2, 0)).sequence == 1


def test_nonces_are_unique_over_many_messages():
    sender, receiver = session()
    nonces, count = set(), 20_000
    for k in range(count):
        sealed = sender.seal(k, "negative" if k % 2 else "positive", k, k)
        nonces.add(sealed[:NONCE_BYTES])
    assert len(nonces) == count
    assert receiver.open(sealed) == OpenedInteraction(
        USER, count - 1, "negative", count - 1, count - 1
    )


def test_a_key_is_not_used_for_ever():
    sender, _ = session()
    sender._next = MOST_MESSAGES - 1
    sender.seal(0, "positive", 1, 0)
    with pytest.raises(KeyTrouble, match="begin another session"):
        sender.seal(1, "positive", 1, 0)


def test_what_kind_of_message_it_is_is_hidden():
    """Interactions liked or not, the end of a stream and a user's leaving look alike: same length,
    nothing in the clear but the counter."""
    kinds = ("positive", "negative", "end", "leave")
    sealed = [session()[0].seal(5, kind, 5, 6) for kind in kinds]
    short = [session()[0].seal(5, kind) for kind in ("end", "leave")]
    assert {len(message) for message in sealed + short} == {SEALED_BYTES}
    assert len({message[:NONCE_BYTES] for message in sealed + short}) == 1
    assert len({message[NONCE_BYTES:] for message in sealed + short}) == 6


def test_a_kind_that_is_none_is_refused():
    key, nonce = bytes(range(KEY_BYTES)), bytes(NONCE_BYTES)
    plain = struct.pack("<IIqBQ", USER, 1, 2, 4, 3)
    bound = OWNER.to_bytes(4, "little") + bytes(4) + nonce
    receiver = SessionReceiver(key, USER, OWNER)
    with pytest.raises(MessageError, match="no kind"):
        receiver.open(nonce + AESGCM(key).encrypt(nonce, plain, bound))
    assert receiver.last == -1


def test_a_message_is_bound_to_its_owner_its_user_and_its_counter():
    key = bytes(range(KEY_BYTES))
    sealed = SessionSender(key, USER, OWNER).seal(0, "positive", 1, 0)
    with pytest.raises(MessageError, match="not sealed for this session"):
        SessionReceiver(key, USER, OWNER + 1).open(sealed)
    with pytest.raises(MessageError, match="another user"):
        SessionReceiver(key, USER + 1, OWNER).open(sealed)
    # The counter is part of what is authenticated, beside being the nonce.
    nonce, body = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    bound = OWNER.to_bytes(4, "little") + bytes(4) + nonce
    assert len(AESGCM(key).decrypt(nonce, body, bound)) == SEALED_BYTES - NONCE_BYTES - 16
    assert SessionReceiver(key, USER, OWNER).open(sealed).item == 1


@pytest.mark.parametrize("length", [0, SEALED_BYTES - 1, SEALED_BYTES + 1])
def test_messages_of_another_length_are_refused(length):
    with pytest.raises(MessageError, match=f"{SEALED_BYTES} bytes"):
        session()[1].open(bytes(length))


@pytest.mark.parametrize(
    ("sequence", "item", "time"),
    [(0, -1, 0), (0, 2**32, 0), (0, 0, 2**63), (-1, 0, 0), (2**64, 0, 0)],
)
def test_numbers_that_do_not_fit_are_refused_without_using_a_nonce(sequence, item, time):
    sender, receiver = session()
    with pytest.raises(MessageError, match="does not fit") as refusal:
        sender.seal(sequence, "positive", item, time)
    assert not any(str(n) in str(refusal.value) for n in (sequence, item, time))
    assert receiver.open(sender.seal(1, "positive", 3, 0)).item == 3
    assert receiver.last == 0


# --- the agreement -------------------------------------------------------------------------------


def test_every_session_has_a_key_of_its_own():
    """So a session cannot be replayed to the owner, and counters may start again."""
    sender, first = session()
    sealed = sender.seal(0, "positive", 1, 0)
    _, second = session()
    with pytest.raises(MessageError, match="not sealed for this session"):
        second.open(sealed)
    assert first.open(sealed).item == 1


def test_a_hello_cannot_be_replayed():
    offer = Offer(OWNER, OWNER_KEYS)
    sender, hello = begin(USER, USER_KEYS, OWNER, OWNER_KEYS.public, offer.public)
    sealed = sender.seal(0, "positive", 1, 0)
    offer.accept(USER, USER_KEYS.public, hello).open(sealed)
    with pytest.raises(KeyTrouble, match="was used"):
        offer.accept(USER, USER_KEYS.public, hello)
    another = Offer(OWNER, OWNER_KEYS).accept(USER, USER_KEYS.public, hello)
    with pytest.raises(MessageError):
        another.open(sealed)


def test_who_lacks_the_users_key_cannot_speak_for_her():
    offer = Offer(OWNER, OWNER_KEYS)
    forger, hello = begin(USER, OTHER_KEYS, OWNER, OWNER_KEYS.public, offer.public)
    receiver = offer.accept(USER, USER_KEYS.public, hello)
    with pytest.raises(MessageError, match="not sealed for this session"):
        receiver.open(forger.seal(0, "positive", 1, 0))


def test_who_lacks_the_owners_key_cannot_read():
    """An offer from another party: the user agrees on a key that it cannot derive."""
    offer = Offer(OWNER, OTHER_KEYS)
    sender, hello = begin(USER, USER_KEYS, OWNER, OWNER_KEYS.public, offer.public)
    with pytest.raises(MessageError, match="not sealed for this session"):
        offer.accept(USER, USER_KEYS.public, hello).open(sender.seal(0, "positive", 1, 0))


@pytest.mark.parametrize(("user", "owner"), [(USER + 1, OWNER), (USER, OWNER + 1)])
def test_both_sides_must_mean_the_same_user_and_owner(user, owner):
    offer = Offer(OWNER, OWNER_KEYS)
    sender, hello = begin(user, USER_KEYS, owner, OWNER_KEYS.public, offer.public)
    with pytest.raises(MessageError):
        offer.accept(USER, USER_KEYS.public, hello).open(sender.seal(0, "positive", 1, 0))


@pytest.mark.parametrize("public", [bytes(32), bytes(31), b"", b"\1" + bytes(31)])
def test_public_keys_that_are_none_are_refused(public):
    with pytest.raises(KeyTrouble, match="not good"):
        begin(USER, USER_KEYS, OWNER, public, Identity().public)
    with pytest.raises(KeyTrouble, match="not good"):
        Offer(OWNER, OWNER_KEYS).accept(USER, USER_KEYS.public, public)


def test_an_identity_is_stored_and_read_back():
    again = Identity(USER_KEYS.private_bytes())
    assert again.public == USER_KEYS.public
    assert Identity().public != Identity().public
    for wrong in (b"", bytes(31)):
        with pytest.raises(KeyTrouble, match="32 bytes"):
            Identity(wrong)
        with pytest.raises(KeyTrouble, match="32 bytes"):
            SessionSender(wrong, USER, OWNER)


# --- the thesis's variant ------------------------------------------------------------------------


def test_the_shared_key_hides_ids_and_refuses_changed_ones():
    shared = SharedKey(SharedKey.new_key())
    sealed = shared.seal(3, 5, True)
    assert len(sealed) == SHARED_BYTES == 37
    assert shared.open(sealed) == (3, 5, True)
    for bit in range(8 * (len(sealed) - 1)):
        with pytest.raises(MessageError, match="not sealed with"):
            shared.open(flipped(sealed, bit))
    with pytest.raises(MessageError, match="37 bytes"):
        shared.open(sealed[:-1])
    with pytest.raises(MessageError, match="does not fit"):
        shared.seal(2**32, 1, True)


def test_what_the_shared_key_does_not_prevent():
    key = SharedKey.new_key()
    sealed = SharedKey(key).seal(3, 5, True)
    assert sealed[-1] == 1, "anyone on the way reads the flag"
    flip = flipped(sealed, 8 * (len(sealed) - 1))
    assert SharedKey(key).open(flip) == (3, 5, False), "and turns it round"
    any_user = SharedKey(key)
    assert any_user.open(sealed) == (3, 5, True), "any user reads the others' interactions"
    assert any_user.open(sealed) == any_user.open(sealed), "a message may be repeated"


def test_nothing_private_is_shown():
    offer = Offer(OWNER, OWNER_KEYS)
    sender, hello = begin(987, USER_KEYS, OWNER, OWNER_KEYS.public, offer.public)
    receiver = offer.accept(987, USER_KEYS.public, hello)
    opened = receiver.open(sender.seal(987, "positive", 987, 987))
    shown = f"{offer} {sender} {receiver} {opened} {USER_KEYS} {SharedKey(SharedKey.new_key())}"
    assert "987" not in shown
    assert USER_KEYS.private_bytes().hex() not in shown
