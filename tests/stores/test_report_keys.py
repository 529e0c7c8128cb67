"""The ring of report keys: rotation while a server runs, and keys that are gone for good."""

import json
import os
import stat
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.errors import KeyTrouble, UsageError, VersionMismatch
from sottovoce.stores.keys import MOST_KEYS, REPORT_KEYS, ReportKeys
from sottovoce.stores.server_folder import (
    admission_key,
    admit,
    enrolment_statement,
    init_proxy_secrets,
    introduce,
    is_admitted,
    proxy_token,
    read_introduction,
    write_introduction,
)


@pytest.fixture
def ring(tmp_path):
    made = ReportKeys(tmp_path)
    made.create()
    return made


def test_a_ring_is_its_owners_alone(ring, tmp_path):
    place = tmp_path / REPORT_KEYS
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    ring.rotate()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert len(ring.all()) == 2
    place.chmod(0o640)
    with pytest.raises(KeyTrouble, match="chmod"):
        ring.newest()
    with pytest.raises(KeyTrouble, match="chmod"):
        ring.rotate()


def test_rotation_adds_a_key_and_the_former_one_is_still_found(ring):
    first = ring.newest()
    second = ring.rotate()
    assert ring.newest() == second != first
    assert ring.find(first.id) == first
    assert ReportKeys(ring._folder).find(first.id).private == first.private
    with pytest.raises(KeyTrouble, match="lacks"):
        ring.find(bytes(8))
    assert first.private.hex() not in repr(first)


def test_keys_older_than_every_needed_one_are_destroyed(ring, tmp_path):
    keys = [ring.newest(), *(ring.rotate() for _ in range(3))]
    assert ring.destroy_unneeded([]) == []
    assert ring.destroy_unneeded([keys[0].id, keys[3].id]) == []
    assert ring.destroy_unneeded([keys[2].id]) == [keys[0].id, keys[1].id]
    assert ring.all() == keys[2:], "one that no round has used yet stays"
    assert ring.destroy_unneeded([bytes(8)]) == []
    text = (tmp_path / REPORT_KEYS).read_text()
    assert keys[0].private.hex() not in text
    assert keys[2].private.hex() in text


def test_the_former_file_is_written_over(ring, tmp_path):
    ring.rotate()
    with (tmp_path / REPORT_KEYS).open("rb") as kept_open:
        ring.destroy_unneeded([ring.newest().id])
        assert set(kept_open.read()) == {0}
    assert not [name for name in os.listdir(tmp_path) if name.count(".") > 1 and "lock" not in name]


def test_many_rotate_at_once_and_none_is_lost(ring):
    failures = []

    def work():
        try:
            for _ in range(20):
                ring.rotate()
                ring.newest()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    keys = ring.all()
    assert len(keys) == len({key.id for key in keys}) == 81


def test_a_ring_has_an_end(ring, tmp_path):
    table = json.loads((tmp_path / REPORT_KEYS).read_text())
    (tmp_path / REPORT_KEYS).write_text(json.dumps({**table, "keys": table["keys"] * MOST_KEYS}))
    with pytest.raises(KeyTrouble, match="no round has used"):
        ring.rotate()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 1, "keys": []}', b'{"format": 2, "keys": ["00"]}',
                b'{"format": 1, "keys": ["00"]}', b'{"format": 1, "keys": [7]}', b"\0" * 100]
)  # fmt: skip
def test_what_is_no_ring_is_said(ring, tmp_path, content):
    (tmp_path / REPORT_KEYS).write_bytes(content)
    with pytest.raises(KeyTrouble, match="put the right file back"):
        ring.newest()


def test_a_ring_is_not_made_over_another(ring):
    before = ring.newest()
    with pytest.raises(KeyTrouble):
        ring.create()
    assert ring.newest() == before


# --- admissions and introductions -----------------------------------------------------------------


@pytest.fixture
def keys(tmp_path):
    init_proxy_secrets(tmp_path)
    return tmp_path


def test_an_admission_is_good_for_one_key_and_federation(keys):
    server, device = admission_key(keys), Ed25519PrivateKey.generate()
    public = device.public_key().public_bytes_raw()
    word, asked = admit(server, "town", public), b"asked once"
    signature = device.sign(enrolment_statement("town", word, asked))
    known = server.public_key().public_bytes_raw()
    assert is_admitted(known, "town", public, word, signature, asked)
    assert admit(server, "town", public) == word
    other = Ed25519PrivateKey.generate()
    theirs = other.public_key().public_bytes_raw()
    assert not is_admitted(known, "city", public, word, signature, asked)
    assert not is_admitted(theirs, "town", public, word, signature, asked)
    assert not is_admitted(known, "town", theirs, word, other.sign(signature), asked)
    stolen = other.sign(enrolment_statement("town", word, asked))
    assert not is_admitted(known, "town", public, word, stolen, asked)
    assert not is_admitted(known, "town", public[:31], word, signature, asked)
    assert not is_admitted(known, "town", public, word[:63], signature, asked)
    assert not is_admitted(known, "town", public, word, signature, b"asked again")


def test_secrets_are_their_owners_alone_and_not_made_twice(keys):
    assert len(bytes.fromhex(proxy_token(keys))) == 32
    for name in ("admission.key", "proxy.token"):
        assert stat.S_IMODE((keys / name).stat().st_mode) == 0o600
    with pytest.raises(KeyTrouble):
        init_proxy_secrets(keys)
    (keys / "proxy.token").chmod(0o644)
    with pytest.raises(KeyTrouble, match="chmod"):
        proxy_token(keys)


def test_an_introduction_is_written_and_read(keys, tmp_path):
    made = introduce(keys, "https://example.org:8443", "PEM", "town")
    write_introduction(tmp_path / "town.json", made)
    assert stat.S_IMODE((tmp_path / "town.json").stat().st_mode) == 0o600
    assert read_introduction(tmp_path / "town.json") == made
    assert made.token == proxy_token(keys)
    assert made.token not in repr(made)
    with pytest.raises(UsageError, match="already"):
        write_introduction(tmp_path / "town.json", made)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"protocol": 1}, VersionMismatch),
        ({"server": "example.org"}, UsageError),
        ({"verifying_key": "00"}, UsageError),
        ({"token": "xy"}, UsageError),
        ({"token": 7}, UsageError),
        ({"more": ""}, UsageError),
    ],
)
def test_what_is_no_introduction_is_one_sentence(keys, tmp_path, change, error):
    place = tmp_path / "town.json"
    write_introduction(place, introduce(keys, "https://example.org", "PEM", "town"))
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with pytest.raises(error):
        read_introduction(place)
    place.write_text("no JSON")
    with pytest.raises(UsageError, match="no introduction"):
        read_introduction(place)
    with pytest.raises(UsageError, match="cannot be read"):
        read_introduction(tmp_path / "elsewhere")
