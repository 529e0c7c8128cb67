"""Keys and invitations: modes, dates, names, and what is refused, as files and over real TLS."""

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sottovoce.cli import keys as cli
from sottovoce.errors import KeyTrouble, UsageError, VersionMismatch
from sottovoce.stores import keys
from sottovoce.wire.invitations import Invitation

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "keys"
    keys.init_keys(folder, ["federation.example.org", "192.0.2.7"])
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "keys")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def handshake(server, client, name):
    """The client's error, or None, in a TLS handshake with this server name."""
    left, right = socket.socketpair()
    trouble = []

    def serve():
        try:
            with server.wrap_socket(left, server_side=True) as tls:
                tls.recv(1)
        except OSError as error:
            trouble.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=name) as tls:
            tls.send(b"x")
            return None
    except ssl.SSLError as error:
        return error
    finally:
        right.close()
        thread.join(10)
        left.close()


def test_private_files_have_mode_600(made):
    assert sorted(path.name for path in made.iterdir()) == sorted(keys.FILES)
    for name in keys.FILES:
        assert mode(made / name) == (0o644 if name.endswith(".crt") else 0o600), name
    assert mode(made) == 0o700


def test_modes_do_not_depend_on_the_umask(tmp_path):
    before = os.umask(0)
    try:
        keys.init_keys(tmp_path / "keys")
        keys.node_keys(tmp_path / "keys", "node")
    finally:
        os.umask(before)
    assert {mode(tmp_path / "keys" / n) for n in ("ca.key", "server.key", "node")} == {0o600}


def test_a_device_that_has_the_authority_gets_in_under_every_name(made):
    server, client = keys.server_context(made), keys.device_context(keys.authority_pem(made))
    for name in ("federation.example.org", "192.0.2.7", "localhost", "127.0.0.1", "::1"):
        assert handshake(server, client, name) is None


def test_init_twice_refuses_and_changes_nothing(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(KeyTrouble, match=r"has keys already .* not overwritten"):
        keys.init_keys(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kept", ["ca.key", "operator.token"])
def test_init_refuses_even_where_one_file_is_left(folder, kept):
    for path in folder.iterdir():
        if path.name != kept:
            path.unlink()
    with pytest.raises(KeyTrouble, match=kept):
        keys.init_keys(folder)
    assert [path.name for path in folder.iterdir()] == [kept]


def test_init_where_nothing_can_be_written_is_one_sentence(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", full)
    with pytest.raises(KeyTrouble, match="No space left on device"):
        keys.init_keys(tmp_path / "keys")
    assert list((tmp_path / "keys").iterdir()) == []


def test_an_expired_certificate_says_so_and_what_to_do(tmp_path):
    keys.init_keys(tmp_path, days=30, now=NOW - timedelta(days=31))
    with pytest.raises(KeyTrouble, match=r"server.crt expired on .*keys renew"):
        keys.server_context(tmp_path)
    server, ca = keys.show_keys(tmp_path)[1], keys.show_keys(tmp_path)[0]
    assert "expired" in server.trouble
    assert ca.trouble == ""
    keys.renew_keys(tmp_path)
    keys.server_context(tmp_path)


def test_an_expired_authority_needs_new_keys(tmp_path):
    keys.init_keys(tmp_path, now=NOW - timedelta(days=keys.CA_DAYS + 1))
    with pytest.raises(KeyTrouble, match=r"ca.crt expired .*new keys"):
        keys.server_context(tmp_path)
    with pytest.raises(KeyTrouble, match=r"ca.crt expired"):
        keys.renew_keys(tmp_path)


def test_a_wrong_clock_is_named(folder):
    past = NOW - timedelta(days=3000)
    with pytest.raises(KeyTrouble, match=r"valid only from .*clock says.*set the clock right"):
        keys.server_context(folder, now=past)
    assert "set the clock right" in keys.show_keys(folder, now=past)[0].trouble


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(KeyTrouble, match=rf"{name} is not there; .*keys init"):
        keys.server_context(folder)


def test_the_authority_key_may_be_elsewhere(folder):
    (folder / "ca.key").unlink()
    keys.server_context(folder)
    with pytest.raises(KeyTrouble, match=r"ca.key is not there"):
        keys.renew_keys(folder)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
@pytest.mark.parametrize("content", [b"", b"garbage\n", b"\xff\x00" * 50])
def test_garbage_is_one_sentence(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(KeyTrouble, match=name):
        keys.server_context(folder)


def test_a_key_that_others_may_read_is_refused(folder):
    for name in ("server.key", "operator.token"):
        (folder / name).chmod(0o640)
    with pytest.raises(KeyTrouble, match=r"server.key may be read by others; run `chmod 600"):
        keys.server_context(folder)
    with pytest.raises(KeyTrouble, match=r"operator.token may be read by others"):
        keys.operator_token(folder)


def test_a_key_of_another_certificate_is_refused(folder, tmp_path):
    keys.init_keys(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "server.key", folder / "server.key")
    with pytest.raises(KeyTrouble, match="is not the key of"):
        keys.server_context(folder)


def test_renewing_keeps_the_authority_and_the_names(folder):
    ca, before = keys.show_keys(folder)
    pem = keys.authority_pem(folder)
    keys.renew_keys(folder, days=400)
    ca_after, after = keys.show_keys(folder)
    assert ca_after == ca
    assert keys.authority_pem(folder) == pem
    assert set(after.hosts) == set(before.hosts)
    assert after.fingerprint != before.fingerprint
    assert abs(after.not_after - NOW - timedelta(days=400)) < timedelta(hours=1)
    # A device that trusted the authority before the renewal still comes in.
    assert handshake(keys.server_context(folder), keys.device_context(pem), "192.0.2.7") is None
    assert sorted(path.name for path in folder.iterdir()) == sorted(keys.FILES)


def test_renewing_for_another_name_and_with_a_lost_key(folder):
    (folder / "server.key").unlink()
    keys.renew_keys(folder, ["new.example.org"])
    assert "new.example.org" in keys.show_keys(folder)[1].hosts
    assert "federation.example.org" not in keys.show_keys(folder)[1].hosts
    assert mode(folder / "server.key") == 0o600
    keys.server_context(folder)


def test_a_server_certificate_does_not_outlive_its_authority(tmp_path):
    keys.init_keys(tmp_path, now=NOW - timedelta(days=keys.CA_DAYS - 100))
    keys.renew_keys(tmp_path, days=825)
    ca, server = keys.show_keys(tmp_path)
    assert server.not_after <= ca.not_after


@pytest.mark.parametrize("host", ["https://x.org", "x.org:8443", "", "a b", "-x"])
def test_a_host_that_is_none_is_refused(tmp_path, host):
    with pytest.raises(UsageError, match="without port"):
        keys.init_keys(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_operator_tokens_are_long_and_differ(made, tmp_path):
    keys.init_keys(tmp_path)
    tokens = {keys.operator_token(made), keys.operator_token(tmp_path)}
    assert len(tokens) == 2
    assert {len(bytes.fromhex(token)) for token in tokens} == {32}


def test_node_keys_are_what_openssh_makes(tmp_path):
    private = keys.node_keys(tmp_path, "library-1")
    key = serialization.load_ssh_private_key(private.read_bytes(), None)
    kind, data, comment = (tmp_path / "library-1.pub").read_text().split()
    assert (kind, comment) == ("ecdsa-sha2-nistp384", "library-1")
    assert (
        data
        in key.public_key()
        .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        .decode()
    )
    assert mode(private) == 0o600
    if shutil.which("ssh-keygen"):
        told = subprocess.run(
            ["ssh-keygen", "-y", "-f", private], capture_output=True, text=True, check=True
        )
        assert told.stdout.split()[:2] == [kind, data]
    with pytest.raises(KeyTrouble, match="not overwritten"):
        keys.node_keys(tmp_path, "library-1")
    for name in ("ca.crt", "../x", "", "a/b"):
        with pytest.raises(UsageError):
            keys.node_keys(tmp_path, name)


def test_certificates_hold_what_strict_verifiers_ask_for(made):
    for name, is_ca in (("ca.crt", True), ("server.crt", False)):
        certificate = x509.load_pem_x509_certificate((made / name).read_bytes())
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert (basic.critical, basic.value.ca) == (True, is_ca)
        certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    client = keys.device_context(keys.authority_pem(made))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert handshake(keys.server_context(made), client, "localhost") is None


def test_a_device_context_of_nonsense(made):
    for pem in ("", "nonsense", "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(KeyTrouble, match="another invitation"):
            keys.device_context(pem)


# The command line.


def call(*arguments):
    app = typer.Typer()
    for name in ("init", "show", "renew", "node"):
        app.command(name)(getattr(cli, name))
    return app(args=[str(a) for a in arguments], standalone_mode=False)


def test_the_commands_print_facts_and_no_secrets(tmp_path, capsys):
    folder = tmp_path / "keys"
    call("init", folder, "--host", "a.example.org", "--days", "30", "--json")
    told = json.loads(capsys.readouterr().out)
    assert [c["file"] for c in told["certificates"]] == ["ca.crt", "server.crt"]
    assert "a.example.org" in told["certificates"][1]["hosts"]
    call("show", folder)
    text = capsys.readouterr().out
    assert told["certificates"][1]["fingerprint"] in text
    call("renew", folder)
    call("node", folder, "n1", "--json")
    text += capsys.readouterr().out
    assert (folder / "n1.pub").exists()
    assert keys.operator_token(folder) not in text
    assert "PRIVATE" not in text
    with pytest.raises(KeyTrouble):
        call("init", folder)


def test_importing_the_commands_is_light():
    code = "import sys, sottovoce.cli.keys; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def tokens_of(folder):
    """As they are looked at now."""
    tokens = keys.RoleTokens(folder)

    def role_of(token):
        tokens._next = 0.0
        return tokens.role_of(token)

    return tokens, role_of


def test_a_role_is_closed_as_soon_as_its_token_is_gone_or_none(tmp_path):
    keys.init_keys(tmp_path)
    tokens, role_of = tokens_of(tmp_path)
    for role, name in keys.TOKENS.items():
        place = tmp_path / name
        whole = place.read_bytes()
        token, mark = whole.strip(), tokens.mark(role)
        assert role_of(token) == role
        for bad in (b"", b"\n", b"x", token[:-1], token + b"0", b"g" * 64, token.upper() + b"\n"):
            place.write_bytes(bad)
            assert role_of(token) is None, bad
            assert role_of(bad.strip()) is None
            assert tokens.mark(role) != mark
            assert tokens.proof(role, "what") is None
            place.write_bytes(whole)
            assert role_of(token) == role
        place.chmod(0o644)
        assert role_of(token) is None
        place.chmod(0o600)
        assert role_of(token) == role
        place.write_bytes(token)
        assert role_of(token) == role
        place.unlink()
        assert role_of(token) is None
        place.write_bytes(whole)
        place.chmod(0o600)
    (tmp_path / "operator.token").write_bytes(b"x")
    with pytest.raises(KeyTrouble, match="64 hexadecimal digits"):
        keys.RoleTokens(tmp_path)


def test_half_a_new_token_is_deleted_with_the_next_one(tmp_path):
    keys.init_keys(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom sottovoce.stores import keys\n"
        "with keys.new_token(Path(sys.argv[1]), 'act'):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path])
    assert {path.name for path in tmp_path.iterdir()} > before, "the former token lies there"
    with keys.new_token(tmp_path, "look"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == before


# Invitations.

INVITATION = Invitation("https://localhost:8443", "PEM", "ab" * 32, 7, "town-1")


def test_an_invitation_comes_back_and_is_private(tmp_path):
    path = tmp_path / "invitation.json"
    before = os.umask(0)
    try:
        INVITATION.write(path)
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert Invitation.read(path) == INVITATION
    assert "ab" not in repr(INVITATION)
    with pytest.raises(UsageError, match="not overwritten"):
        INVITATION.write(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"protocol": 1}, VersionMismatch),
        ({"number": -1}, UsageError),
        ({"number": True}, UsageError),
        ({"number": 2**32}, UsageError),
        ({"token": "secret-xyz"}, UsageError),
        ({"server": "localhost"}, UsageError),
        ({"server": None}, UsageError),
        ({"more": 1}, UsageError),
    ],
)
def test_a_wrong_invitation_is_one_sentence_without_its_token(tmp_path, change, expected):
    path = tmp_path / "invitation.json"
    INVITATION.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(expected) as caught:
        Invitation.read(path)
    assert "ab" * 32 not in str(caught.value)
    assert "secret-xyz" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_no_invitation_at_all(tmp_path, content):
    path = tmp_path / "invitation.json"
    path.write_bytes(content)
    with pytest.raises((UsageError, VersionMismatch)):
        Invitation.read(path)
    with pytest.raises(UsageError, match="cannot be read"):
        Invitation.read(tmp_path / "nothing")


def test_a_pair_of_another_federation_is_refused(folder, tmp_path):
    """Key and certificate go together, but no device of this federation would trust them."""
    keys.init_keys(tmp_path / "other")
    for name in ("server.key", "server.crt"):
        shutil.copy(tmp_path / "other" / name, folder / name)
    with pytest.raises(KeyTrouble, match=r"server.crt was not issued by the authority .*ca.crt"):
        keys.server_context(folder)
    keys.renew_keys(folder)
    keys.server_context(folder)


def test_who_asks_while_another_one_looks_for_the_first_time_is_known(tmp_path, monkeypatch):
    keys.init_keys(tmp_path / "keys")
    token, read, found = keys.operator_token(tmp_path / "keys").encode(), keys.read_token, []
    tokens = keys.RoleTokens(tmp_path / "keys")

    def read_slowly(place):
        found.append(tokens.role_of(token))
        return read(place)

    monkeypatch.setattr(keys, "read_token", read_slowly)
    assert tokens.role_of(token) == "act"
    assert set(found) <= {"act"}
