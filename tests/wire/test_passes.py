"""Passes: what an issuer signs is believed, and nothing else."""

from dataclasses import replace

import pytest

from sottovoce.errors import KeyTrouble, MessageError
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer, Pass, check_signature

ISSUER = Issuer("spring")
PUBLIC = Identity().public


def test_a_pass_with_any_flipped_bit_is_not_believed():
    content = ISSUER.admit(7, PUBLIC).encode()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((KeyTrouble, MessageError)):
            Pass.decode(bytes(changed)).check(ISSUER.public, "spring")


@pytest.mark.parametrize(
    ("issuer", "federation"),
    [
        (Issuer("spring").public, "spring"),
        (ISSUER.public, "autumn"),
        (ISSUER.public, ""),
        (bytes(32), "spring"),
        (b"short", "spring"),
        (b"", "spring"),
    ],
    ids=["other issuer", "other name", "no name", "zeros", "short", "no key"],
)
def test_a_pass_of_another_issuer_or_federation_is_not_believed(issuer, federation):
    with pytest.raises(KeyTrouble, match="not signed by this federation's issuer"):
        ISSUER.admit(7, PUBLIC).check(issuer, federation)


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(65), b"x" * 63])
def test_signatures_that_are_none_are_not_believed(signature):
    with pytest.raises(KeyTrouble, match="not signed"):
        replace(ISSUER.admit(7, PUBLIC), signature=signature).check(ISSUER.public, "spring")


@pytest.mark.parametrize("user", [-1, 2**32])
def test_users_have_numbers_that_fit(user):
    with pytest.raises(MessageError, match="does not fit"):
        ISSUER.admit(user, PUBLIC)
    with pytest.raises(MessageError, match="does not fit"):
        Pass(user, PUBLIC, bytes(64)).encode()


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33)], ids=len)
def test_public_keys_have_their_length(public):
    with pytest.raises(KeyTrouble, match="32 bytes"):
        ISSUER.admit(1, public)
    with pytest.raises(KeyTrouble, match="32 bytes"):
        Pass(1, public, bytes(64)).encode()


def test_a_signature_stands_for_its_purpose_and_its_federation_alone():
    """No way of cutting federation, purpose and content gives another statement that was signed."""
    signature = ISSUER.sign("pass", b"content")
    check_signature(ISSUER.public, "spring", "pass", b"content", signature)
    for federation, purpose, content in (
        ("spring", "directory", b"content"),
        ("spring", "pas", b"scontent"),
        ("springpass", "", b"content"),
        ("sprin", "gpass", b"content"),
        ("spring", "passcontent", b""),
        ("spring", "pass", b"content "),
    ):
        with pytest.raises(KeyTrouble, match=f"the {purpose} was not signed"):
            check_signature(ISSUER.public, federation, purpose, content, signature)


def test_an_issuer_is_stored_and_read_back():
    again = Issuer("spring", ISSUER.private_bytes())
    assert again.public == ISSUER.public
    again.admit(3, PUBLIC).check(ISSUER.public, "spring")
    assert again.admit(3, PUBLIC) == ISSUER.admit(3, PUBLIC)
    for wrong in (b"", bytes(31), bytes(33)):
        with pytest.raises(KeyTrouble, match="32 bytes"):
            Issuer("spring", wrong)


def test_nothing_secret_is_shown():
    shown = f"{ISSUER!r} {ISSUER.admit(987, PUBLIC)!r}"
    assert ISSUER.private_bytes().hex() not in shown
    assert "987" not in shown
