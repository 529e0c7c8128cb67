"""Sealed reports: HPKE as RFC 9180 has it, one report in each, bound to what it is for."""

import hashlib
import hmac
import struct

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.errors import KeyTrouble
from sottovoce.wire.sealing import SEALED_BYTES, key_id, open_reports, seal_reports

KEY = X25519PrivateKey.generate()
PRIVATE, PUBLIC = KEY.private_bytes_raw(), KEY.public_key().public_bytes_raw()
PLACE = {"federation": "little-town", "round": 7, "tier": 1}
REPORTS = np.array([0, 1, 2**32 - 1, 81, 81], np.uint32)


# --- HPKE written out from the RFC: base mode, X25519, HKDF-SHA256, AES-128-GCM -------------------

KEM, SUITE = b"KEM" + bytes.fromhex("0020"), b"HPKE" + bytes.fromhex("002000010001")


def extract(suite, salt, label, secret):
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")


def expand(suite, key, label, info, length):
    head = struct.pack(">H", length) + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, head + b"\1", "sha256")[:length]


def key_and_nonce(enc, private, info):
    key = X25519PrivateKey.from_private_bytes(private)
    shared = key.exchange(X25519PublicKey.from_public_bytes(enc))
    context = enc + key.public_key().public_bytes_raw()
    secret = expand(KEM, extract(KEM, b"", b"eae_prk", shared), b"shared_secret", context, 32)
    id_hash = extract(SUITE, b"", b"psk_id_hash", b"")
    schedule = b"\0" + id_hash + extract(SUITE, b"", b"info_hash", info)
    scheduled = extract(SUITE, secret, b"secret", b"")
    return (
        expand(SUITE, scheduled, b"key", schedule, 16),
        expand(SUITE, scheduled, b"base_nonce", schedule, 12),
    )


def test_the_rfcs_own_vector_and_what_we_seal_are_opened_by_the_same_few_lines():
    """Appendix A.1.1. The library takes no associated data, which the vector has."""
    enc = bytes.fromhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431")
    private = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    key, nonce = key_and_nonce(enc, private, b"Ode on a Grecian Urn")
    assert key.hex() == "4531685d41d65f03dc48f6b8302c05b0"
    assert nonce.hex() == "56d890e5accaaf011cff4b7d"
    sealed = bytes.fromhex(
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )
    opened = AESGCM(key).decrypt(nonce, sealed, b"Count-0")
    assert opened == b"Beauty is truth, truth beauty"

    ours = seal_reports(REPORTS[3:4], PUBLIC, **PLACE)
    info = b"sottovoce report\0little-town\0" + struct.pack("<IB32s", 7, 1, key_id(PUBLIC))
    key, nonce = key_and_nonce(ours[:32], PRIVATE, info)
    assert AESGCM(key).decrypt(nonce, ours[32:], b"") == struct.pack("<I", 81)
    other, _ = key_and_nonce(ours[:32], PRIVATE, info[:-1])
    with pytest.raises(InvalidTag):
        AESGCM(other).decrypt(nonce, ours[32:], b"")


# --- ours -----------------------------------------------------------------------------------------


def test_what_is_sealed_is_opened_in_order():
    sealed = seal_reports(REPORTS, PUBLIC, **PLACE)
    assert len(sealed) == len(REPORTS) * SEALED_BYTES == 5 * 52
    opened, refused = open_reports(sealed, PRIVATE, **PLACE)
    assert opened.tolist() == REPORTS.tolist()
    assert opened.dtype == np.uint32
    assert refused == 0
    assert len(seal_reports(REPORTS[:0], PUBLIC, **PLACE)) == 0


def test_nothing_of_a_report_shows():
    """Equal reports give other bytes each time, and all have the same length."""
    sealed = seal_reports(np.full(200, 5, np.uint32), PUBLIC, **PLACE)
    blobs = [sealed[at : at + SEALED_BYTES] for at in range(0, len(sealed), SEALED_BYTES)]
    assert len(set(blobs)) == 200
    assert len({blob[:32] for blob in blobs}) == 200, "a key of its own for each"
    assert len({blob[32:36] for blob in blobs}) > 190
    assert {len(blob) for blob in blobs} == {SEALED_BYTES}


@pytest.mark.parametrize(
    "change", [{"round": 8}, {"tier": 0}, {"federation": "little-town2"}, {"federation": ""}]
)
def test_for_anything_else_it_is_refused(change):
    sealed = seal_reports(REPORTS, PUBLIC, **PLACE)
    opened, refused = open_reports(sealed, PRIVATE, **{**PLACE, **change})
    assert (len(opened), refused) == (0, len(REPORTS))


def test_with_another_key_it_is_refused():
    sealed = seal_reports(REPORTS, PUBLIC, **PLACE)
    other = X25519PrivateKey.generate().private_bytes_raw()
    assert open_reports(sealed, other, **PLACE)[1] == len(REPORTS)


def test_every_flipped_bit_is_noticed_and_the_neighbours_are_opened():
    sealed = seal_reports(REPORTS, PUBLIC, **PLACE)
    for bit in range(SEALED_BYTES * 8):
        broken = bytearray(sealed)
        broken[SEALED_BYTES + bit // 8] ^= 1 << bit % 8
        opened, refused = open_reports(bytes(broken), PRIVATE, **PLACE)
        assert refused == 1, bit
        assert opened.tolist() == [0, 2**32 - 1, 81, 81]


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), b"\1" + bytes(31)])
def test_a_key_that_hides_nothing_is_not_used(public):
    with pytest.raises(KeyTrouble):
        seal_reports(REPORTS, public, **PLACE)


def test_a_key_is_named_by_its_whole_hash():
    """Of eight bytes, 2**32 keys would have two with the same name."""
    assert key_id(PUBLIC) == hashlib.sha256(PUBLIC).digest()
