"""The files with which owners and users join: what is written is read again, and what is wrong is
said in one sentence."""

import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import UsageError, VersionMismatch
from sottovoce.stores.allotment import identity_of_file
from sottovoce.stores.keys import authority_pem, init_keys, node_keys
from sottovoce.wire.silo_files import (
    Admission,
    Application,
    FederationFile,
    UserInvitation,
    node_identity,
    require_place,
    require_url,
)

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    init_keys(folder)
    node_keys(folder, "node")
    return folder


@pytest.fixture(scope="module")
def samples(keys):
    ca, node = authority_pem(keys), (keys / "node.pub").read_text()
    return {
        "federation": FederationFile("town-1", KEY, DRIFTConfig(theta=3), ("Älter", "b")),
        "application": Application(
            "Children's & co.", "https://example.org:8443", KEY, ca, node, (0, 2, 7)
        ),
        "admission": Admission("town-1", 4, "library", "example.org:9094", ca),
        "invitation": UserInvitation("town-1", KEY, "https://example.org", ca, KEY),
    }


KINDS = ["federation", "application", "admission", "invitation"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_again(samples, tmp_path, kind):
    file = samples[kind]
    file.write(tmp_path / "file.json")
    assert type(file).read(tmp_path / "file.json") == file
    assert type(file).from_table(file.to_table()) == file
    assert os.listdir(tmp_path) == ["file.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_not_overwritten_unless_that_is_wanted(samples, tmp_path, kind):
    place = tmp_path / "file.json"
    place.write_text("precious")
    with pytest.raises(UsageError, match="not overwritten"):
        samples[kind].write(place)
    assert place.read_text() == "precious"
    samples[kind].write(place, replace=True)
    assert type(samples[kind]).read(place) == samples[kind]
    assert os.listdir(tmp_path) == ["file.json"]


def test_an_invitation_is_a_secret(samples, tmp_path):
    invitation = samples["invitation"]
    before = os.umask(0)
    try:
        invitation.write(tmp_path / "invitation.json")
        samples["federation"].write(tmp_path / "federation.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "invitation.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "federation.json").stat().st_mode) == 0o644
    assert KEY.hex() not in repr(invitation)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_another_kind_of_file_is_recognised(samples, tmp_path, kind, other):
    if kind == other:
        return
    samples[other].write(tmp_path / "file.json")
    with pytest.raises(UsageError, match="has the fields"):
        type(samples[kind]).read(tmp_path / "file.json")


@pytest.mark.parametrize("kind", KINDS)
def test_bad_files_are_refused_in_one_sentence(samples, tmp_path, kind):
    cls, place = type(samples[kind]), tmp_path / "file.json"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        cls.read(place)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        cls.read(tmp_path)
    for content in (b"", b"\xff\xfe", b"{", b"[" * 100_000, b"[]", b"3", b'"text"', b"null"):
        place.write_bytes(content)
        with pytest.raises(UsageError, match="is no ") as error:
            cls.read(place)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_another_version_of_the_protocol_is_recognised(samples, kind):
    table = {**samples[kind].to_table(), "protocol": 99}
    with pytest.raises(VersionMismatch, match="version 99"):
        type(samples[kind]).from_table(table)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_release_before_still_open(samples, kind):
    former = {**samples[kind].to_table(), "protocol": 1}
    assert type(samples[kind]).from_table(former) == samples[kind]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("federation", "federation", ""),
        ("federation", "federation", "two\nlines"),
        ("federation", "federation", "x" * 65),
        ("federation", "issuer", "zz"),
        ("federation", "issuer", "00" * 31),
        ("federation", "settings", {"theta": 0}),
        ("federation", "settings", {"thetta": 2}),
        ("federation", "settings", []),
        ("federation", "catalogue", []),
        ("federation", "catalogue", ["a", "a"]),
        ("federation", "catalogue", ["a", ""]),
        ("federation", "catalogue", ["a", 3]),
        ("federation", "catalogue", "ab"),
        ("application", "name", " library"),
        ("application", "name", "<b>"),
        ("application", "name", "a\x1b[31m"),
        ("application", "name", 3),
        ("application", "url", "example.org"),
        ("application", "url", "https://example.org/path"),
        ("application", "url", "https://user@example.org"),
        ("application", "url", "http://example.org:8443"),
        ("application", "url", "https://example.org:0"),
        ("application", "public", "00"),
        ("application", "public", "00" * 32),
        ("application", "authority", ""),
        ("application", "authority", "-----BEGIN CERTIFICATE-----"),
        ("application", "node_key", "ssh-ed25519 AAAA"),
        ("application", "node_key", ""),
        ("application", "items", [2, 1]),
        ("application", "items", [1, 1]),
        ("application", "items", [-1, 1]),
        ("application", "items", [1.0]),
        ("application", "items", [True]),
        ("application", "items", [2**27]),
        ("admission", "number", -1),
        ("admission", "number", True),
        ("admission", "number", "1"),
        ("admission", "gateway", "example.org"),
        ("admission", "gateway", "https://example.org:3"),
        ("admission", "gateway", "example.org:99999"),
        ("admission", "ca", ""),
        ("invitation", "token", "00"),
        ("invitation", "token", "x"),
        ("invitation", "ca", "text"),
        ("invitation", "url", "http://example.org"),
    ],
)
def test_every_field_is_checked(samples, kind, field, value):
    table = {**samples[kind].to_table(), field: value}
    with pytest.raises(UsageError) as error:
        type(samples[kind]).from_table(table)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_is_missing_and_none_is_added(samples, kind):
    table = samples[kind].to_table()
    for name in set(table) - {"protocol"}:
        with pytest.raises(UsageError, match="has the fields"):
            type(samples[kind]).from_table({k: v for k, v in table.items() if k != name})
    with pytest.raises(UsageError, match="has the fields"):
        type(samples[kind]).from_table({**table, "more": 1})


def test_a_private_key_never_travels(samples, keys):
    table = samples["application"].to_table()
    secret = (keys / "ca.key").read_text()
    with pytest.raises(UsageError):
        Application.from_table({**table, "authority": table["authority"] + secret})
    with pytest.raises(UsageError):
        Application.from_table({**table, "node_key": (keys / "node").read_text()})
    with pytest.raises(UsageError):  # the server's certificate signs nothing
        Application.from_table({**table, "authority": (keys / "server.crt").read_text()})


def test_a_node_has_the_same_name_here_as_at_the_superlink(keys):
    text = (keys / "node.pub").read_text()
    assert node_identity(text) == identity_of_file(keys / "node.pub")
    assert node_identity(text.rsplit(" ", 1)[0]) == node_identity(text), "whatever the comment"
    line = (
        ed25519.Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    with pytest.raises(UsageError, match="Flower node"):
        node_identity(line.decode())


def test_plaintext_on_loopback_needs_no_authority(samples):
    invitation = samples["invitation"].to_table()
    found = UserInvitation.from_table({**invitation, "url": "http://127.0.0.1:8443", "ca": ""})
    assert found.ca == ""
    admission = samples["admission"].to_table()
    assert Admission.from_table({**admission, "gateway": "127.0.0.1:9091", "ca": ""}).ca == ""


def test_addresses():
    for good in ("https://example.org", "https://[::1]:8443", "http://localhost:1"):
        require_url("url", good)
    for good in ("example.org:1", "[::1]:9094", "127.0.0.1:65535"):
        require_place("gateway", good)
    for bad in ("", ":1", "::1:9094", "a b:1", "example.org:", "[::1]"):
        with pytest.raises(UsageError):
            require_place("gateway", bad)


def test_items_are_found_by_name(samples):
    federation = samples["federation"]
    assert federation.numbers(["b", "Älter", "b"]) == (0, 1)
    with pytest.raises(UsageError, match="'c' is not in the federation's catalogue, nor are 1"):
        federation.numbers(["b", "c", "d"])
