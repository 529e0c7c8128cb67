"""Keys of a federation's server: a certificate authority of its own, the server's certificate, and
the secrets that only the operator has.

Files of a key folder: `ca.crt` (what devices trust), `ca.key` (signs certificates; the server does
not need it and it may be kept elsewhere), `server.crt`, `server.key`, `operator.token` (for who may
look and act), `viewer.token` (for who may only look), `superexec.secret` (between the processes of
a Flower server). All but certificates have mode 600. A federation with a proxy has some more
(`admissions`, `report_keys`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import ssl
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.errors import KeyTrouble, UsageError
from sottovoce.stores.locking import lock
from sottovoce.stores.private import sync_folder, write_new
from sottovoce.wire.interactions import KEY_BYTES
from sottovoce.wire.invitations import device_context as device_context
from sottovoce.wire.sealing import key_id

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
OPERATOR_TOKEN, SUPEREXEC_SECRET = "operator.token", "superexec.secret"
VIEWER_TOKEN = "viewer.token"
FILES = (
    *(CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY),
    *(OPERATOR_TOKEN, VIEWER_TOKEN, SUPEREXEC_SECRET),
)
Role = Literal["look", "act"]
TOKENS: Mapping[Role, str] = {"look": VIEWER_TOKEN, "act": OPERATOR_TOKEN}
"""The file with the secret of each role."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names that every server certificate is good for."""
DAYS = 825
CA_DAYS = 3650
_LOOK_SECONDS = 0.5
_EARLIER = timedelta(days=1)  # a device whose clock is a little slow can still come in


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What `keys show` says of a certificate. Nothing of it is secret."""

    file: str
    subject: str
    hosts: tuple[str, ...]
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal."""
    not_before: datetime
    not_after: datetime
    trouble: str
    """Why it cannot be used now; empty where it can."""


def init_keys(
    folder: Path, hosts: Sequence[str] = (), days: int = DAYS, *, now: datetime | None = None
) -> None:
    """Make a certificate authority, a server certificate for `hosts` and loopback, and the
    operator's secrets. Refuses to overwrite any of them; leaves nothing behind where it fails."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise KeyTrouble(
            f"{folder} has keys already ({', '.join(there)}); they are not overwritten: use "
            "`sottovoce keys renew` for a new server certificate, or choose another folder"
        )
    now = _moment(now)
    ca_key, server_key = _new_key(), _new_key()
    ca = _authority(ca_key, now)
    server = _server_certificate(ca, ca_key, server_key, _hosts(hosts), _days(days), now)
    contents = {
        CA_CERTIFICATE: ca.public_bytes(form.Encoding.PEM),
        CA_KEY: _key_pem(ca_key),
        SERVER_CERTIFICATE: server.public_bytes(form.Encoding.PEM),
        SERVER_KEY: _key_pem(server_key),
        OPERATOR_TOKEN: _new_secret(),
        VIEWER_TOKEN: _new_secret(),
        SUPEREXEC_SECRET: _new_secret(),
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_new_files(folder, contents)


def renew_keys(
    folder: Path, hosts: Sequence[str] = (), days: int = DAYS, *, now: datetime | None = None
) -> None:
    """A new server certificate from the same authority, for the same names unless others are given.
    Devices that trust the authority need nothing new. The server's key stays; a lost one is made
    anew."""
    now = _moment(now)
    ca = _certificate(folder / CA_CERTIFICATE)
    _in_force(ca, folder / CA_CERTIFICATE, now, "make new keys and new invitations")
    ca_key = _private_key(folder / CA_KEY)
    if ca_key.public_key() != ca.public_key():
        raise KeyTrouble(f"{folder / CA_KEY} is not the key of {folder / CA_CERTIFICATE}")
    if not hosts and (folder / SERVER_CERTIFICATE).exists():
        hosts = _names(_certificate(folder / SERVER_CERTIFICATE))
    if (folder / SERVER_KEY).exists():
        server_key = _private_key(folder / SERVER_KEY)
    else:
        server_key = _new_key()
        write_new_files(folder, {SERVER_KEY: _key_pem(server_key)})
    server = _server_certificate(ca, ca_key, server_key, _hosts(hosts), _days(days), now)
    # One file replaced at once: a crash leaves the old certificate or the new one.
    fresh = folder / f".{SERVER_CERTIFICATE}.{secrets.token_hex(4)}"
    write_new(fresh, server.public_bytes(form.Encoding.PEM), 0o644)
    os.replace(fresh, folder / SERVER_CERTIFICATE)


def show_keys(folder: Path, *, now: datetime | None = None) -> list[CertificateFacts]:
    """The authority's and the server's certificate, and whether they can be used now."""
    now = _moment(now)
    found = []
    for name in (CA_CERTIFICATE, SERVER_CERTIFICATE):
        certificate = _certificate(folder / name)
        trouble = ""
        try:
            _in_force(certificate, folder / name, now, "run `sottovoce keys renew`")
        except KeyTrouble as error:
            trouble = str(error)
        found.append(
            CertificateFacts(
                file=name,
                subject=certificate.subject.rfc4514_string(),
                hosts=tuple(_names(certificate)),
                fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
                not_before=certificate.not_valid_before_utc,
                not_after=certificate.not_valid_after_utc,
                trouble=trouble,
            )
        )
    return found


def server_context(folder: Path, *, now: datetime | None = None) -> ssl.SSLContext:
    """What a server needs to speak TLS. A client may show a certificate; one of another authority
    fails the handshake. Raises where a key is missing, expired or readable by others."""
    now = _moment(now)
    certificate_file, key_file = folder / SERVER_CERTIFICATE, folder / SERVER_KEY
    ca_file = folder / CA_CERTIFICATE
    renew = f"run `sottovoce keys renew {folder}`"
    ca = _certificate(ca_file)
    _in_force(ca, ca_file, now, "make new keys and new invitations")
    certificate = _certificate(certificate_file)
    _in_force(certificate, certificate_file, now, renew)
    if _private_key(key_file).public_key() != certificate.public_key():
        raise KeyTrouble(f"{key_file} is not the key of {certificate_file}; {renew}")
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        # Every device of the federation would turn away from it.
        raise KeyTrouble(
            f"{certificate_file} was not issued by the authority {ca_file}; put the right files "
            f"back, or {renew}"
        ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_file, key_file)
    context.load_verify_locations(ca_file)
    context.verify_mode = ssl.CERT_OPTIONAL
    # Devices come on a fresh connection and never resume one: tickets would only cost bytes.
    context.num_tickets = 0
    return context


def authority_pem(folder: Path) -> str:
    """The authority's certificate, which invitations carry."""
    _certificate(folder / CA_CERTIFICATE)
    return (folder / CA_CERTIFICATE).read_text()


def operator_token(folder: Path) -> str:
    """The secret with which the operator asks for status and sets targets."""
    return read_token(folder / OPERATOR_TOKEN).decode()


def read_token(path: Path) -> bytes:
    """The secret of a role. Raises where it is not as it was written: one that can be guessed would
    open everything."""
    token = read_secret(path).strip()
    if not re.fullmatch(rb"[0-9a-f]{64}", token):
        raise KeyTrouble(f"{path} is no token, which has 64 hexadecimal digits; put it back")
    return token


def role_token(folder: Path, role: Role) -> Path:
    """Where the secret of a role is."""
    place = folder / TOKENS[role]
    read_token(place)
    return place


def drop_half_tokens(folder: Path) -> None:
    """Delete what a process that was killed while it made a new token has left. Only who has the
    turn of operators may do so."""
    for name in TOKENS.values():
        for left in folder.glob(f".{name}.*"):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def new_token(folder: Path, role: Role) -> Iterator[Path]:
    """Within and afterwards the role has a new secret; where anything raises, the old one again.
    Only who has the turn of operators may do so."""
    drop_half_tokens(folder)
    place = folder / TOKENS[role]
    fresh, before = (folder / f".{place.name}.{secrets.token_hex(4)}" for _ in range(2))
    with contextlib.ExitStack() as stack:
        stack.callback(before.unlink, missing_ok=True)
        stack.callback(fresh.unlink, missing_ok=True)
        write_new_files(folder, {fresh.name: _new_secret()})
        # A second name: to give the old one back needs no room on the disk.
        there = place.exists()
        if there:
            os.link(place, before)
        os.replace(fresh, place)
        sync_folder(folder)
        try:
            yield place
        except BaseException:
            if there:
                os.replace(before, place)
            else:
                place.unlink()
            raise


class RoleTokens:
    """The secrets of roles as they are in a key folder now. A new one counts within a second, and
    the old one no more; without a good one nobody has the role. Any thread may ask."""

    def __init__(self, folder: Path) -> None:
        """Raises where the operator has none."""
        self.folder = folder
        self._known: dict[Role, tuple[tuple[int, ...], bytes]] = {}
        self._next = 0.0
        operator_token(folder)
        self._look()  # whoever asks during a look goes by the one before it
        self._next = 0.0

    def role_of(self, token: bytes) -> Role | None:
        """What whoever shows this token may do; None: nothing."""
        self._look()
        found = [role for role, (_, own) in self._known.items() if hmac.compare_digest(own, token)]
        return "act" if "act" in found else next(iter(found), None)

    def proof(self, role: Role, *what: str | int) -> str | None:
        """As `proof_by` makes it with the role's token; None where the role has none."""
        self._look()
        known = self._known.get(role)
        return None if known is None else proof_by(known[1], *what)

    def mark(self, role: Role) -> bytes:
        """Another one as soon as the role's token is; it does not tell which token that is."""
        self._look()
        known = self._known.get(role)
        return b"" if known is None else hashlib.sha256(b"role token\0" + known[1]).digest()

    def _look(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK_SECONDS
        before, now = self._known, {}
        for role, name in TOKENS.items():
            with contextlib.suppress(OSError, KeyTrouble):
                there = (self.folder / name).stat()
                stamp = there.st_mtime_ns, there.st_ino, there.st_size, there.st_mode
                known = before.get(role)
                if known is None or known[0] != stamp:
                    known = stamp, read_token(self.folder / name)
                now[role] = known
        self._known = now  # at once: others look at it meanwhile


def proof_by(token: bytes, *what: str | int) -> str:
    """Shows whoever has the same token that somebody who has it says this, and tells nobody
    else anything of it."""
    said = json.dumps(["sottovoce", *what]).encode()
    return hmac.new(token, said, hashlib.sha256).hexdigest()


def _new_secret() -> bytes:
    return secrets.token_hex(32).encode() + b"\n"


def node_keys(folder: Path, name: str) -> Path:
    """A key pair by which a Flower node proves who it is: ECDSA P-384 in OpenSSH's format. The path
    of the private key; the public one, which is registered, is beside it with `.pub`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise UsageError(f"a node's name has letters, digits, - and _ only, not {name!r}")
    private, public = folder / name, folder / f"{name}.pub"
    if private.exists() or public.exists():
        raise KeyTrouble(f"{private} is there already and is not overwritten; choose another name")
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_new_files(folder, {private.name: secret, public.name: line + f" {name}\n".encode()})
    return private


def _moment(now: datetime | None) -> datetime:
    return datetime.now(UTC) if now is None else now


def _days(days: int) -> timedelta:
    if not 1 <= days <= CA_DAYS:
        raise UsageError(f"days must lie between 1 and {CA_DAYS}, not {days}")
    return timedelta(days=days)


def _hosts(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, *LOOPBACK]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
            continue
        except ValueError:
            pass
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
            raise UsageError(f"a host is a name or an address without port, not {host!r}")
        names.append(x509.DNSName(host))
    return names


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    # The random part keeps two federations' authorities apart in lists and logs.
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"Sottovoce CA {secrets.token_hex(4)}")]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    hosts: list[x509.GeneralName],
    valid: timedelta,
    now: datetime,
) -> x509.Certificate:
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sottovoce server")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - _EARLIER, ca.not_valid_before_utc))
        .not_valid_after(min(now + valid, ca.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise KeyTrouble(
            f"{path} is not there; make keys with `sottovoce keys init {path.parent}`"
        ) from None
    except OSError as error:
        raise KeyTrouble(f"{path} cannot be read: {error.strerror or error}") from None


def read_secret(path: Path) -> bytes:
    """The content of a file that only its owner can read. Raises where others can, or it is not
    there."""
    content = _read(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise KeyTrouble(f"{path} may be read by others; run `chmod 600 {path}`")
    if not content.strip():
        raise KeyTrouble(f"{path} is empty; put the right file back")
    return content


def read_private_key(path: Path) -> bytes:
    """A long-term key of 32 bytes, which stands in the file in hexadecimal."""
    return private_key_in(read_secret(path), path)


def private_key_in(content: bytes, path: Path) -> bytes:
    """Return such a key from what the file at `path` says."""
    try:
        private = bytes.fromhex(content.decode("ascii", "replace"))
    except ValueError:
        private = b""
    if len(private) != KEY_BYTES:
        raise KeyTrouble(f"{path} is no key; put the right file back")
    return private


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise KeyTrouble(f"{path} is no certificate; put the right file back") from None


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = read_secret(path)
    try:
        key = form.load_pem_private_key(content, None)
    except (ValueError, TypeError):
        raise KeyTrouble(f"{path} is no private key; put the right file back") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeyTrouble(f"{path} is not an elliptic-curve key as `sottovoce keys init` makes it")
    return key


def _in_force(certificate: x509.Certificate, path: Path, now: datetime, advice: str) -> None:
    if now > certificate.not_valid_after_utc:
        raise KeyTrouble(
            f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d} (this machine's clock "
            f"says {now:%Y-%m-%d %H:%M} UTC); {advice}"
        )
    if now < certificate.not_valid_before_utc:
        raise KeyTrouble(
            f"{path} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d} on, and this "
            f"machine's clock says {now:%Y-%m-%d %H:%M} UTC; set the clock right"
        )


def write_new_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """All files or none; never over an existing one."""
    written: list[Path] = []
    try:
        for name, content in contents.items():
            public = name.endswith((".crt", ".pub"))
            write_new(folder / name, content, 0o644 if public else 0o600)
            written.append(folder / name)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise KeyTrouble(
            f"files cannot be written to {folder}: {error.strerror or error}"
        ) from None


def replace_file(place: Path, content: bytes) -> None:
    """Whole or not at all, and on the disk when this returns."""
    fresh = f".{place.name}.{secrets.token_hex(4)}"
    write_new_files(place.parent, {fresh: content})
    os.replace(place.parent / fresh, place)
    sync_folder(place.parent)


# The keys to which reports are sealed: a ring of them in the server's key folder. `report-
# keys.json` has mode 600 and holds the newest key and those before it that may still be needed. A
# round is opened with the newest key and closed with the same one, whatever was added meanwhile.
# Keys that no round of the last few needs are destroyed: what was sealed to them, and may lie in
# a copy somewhere, cannot be read any more by anyone.

REPORT_KEYS = "report-keys.json"
KEPT_ROUNDS = 3
"""A former key is kept until so many rounds have been opened without it."""
MOST_KEYS = 1000

_FORMAT = 1


@dataclass(frozen=True, slots=True, repr=False)
class ReportKey:
    private: bytes
    public: bytes

    @classmethod
    def of(cls, private: bytes) -> ReportKey:
        key = X25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    @property
    def id(self) -> bytes:
        return key_id(self.public)

    def __repr__(self) -> str:
        return f"<ReportKey {self.id.hex()}, redacted>"


class ReportKeys:
    """The ring of one key folder. Any process may read it and add to it at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / REPORT_KEYS

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self) -> ReportKey:
        """The ring with its first key. Never over an existing one."""
        key = _new_report_key()
        write_new_files(self._folder, {REPORT_KEYS: _content([key])})
        return key

    def all(self) -> list[ReportKey]:
        """Oldest first; there is at least one."""
        while True:
            before = self._version()
            keys = _parsed(read_secret(self._path))
            # Again if the file was replaced, and the former one wiped, while it was read.
            if keys or before == self._version():
                break
        if not keys:
            raise KeyTrouble(f"{self._path} is no ring of report keys; put the right file back")
        return keys

    def newest(self) -> ReportKey:
        """The key with which the next round is opened."""
        return self.all()[-1]

    def find(self, id: bytes) -> ReportKey:
        """The key of that name. Raises where it was destroyed or is in another copy of the ring."""
        for key in self.all():
            if key.id == id:
                return key
        raise KeyTrouble(
            f"{self._path} lacks the report key {id.hex()}, to which the reports of a round are "
            "sealed; put the right file back"
        )

    def rotate(self) -> ReportKey:
        """A new key, used from the next round on."""
        with self._locked():
            keys = self.all()
            if len(keys) >= MOST_KEYS:
                raise KeyTrouble(
                    f"{self._path} holds {len(keys)} keys that no round has used; let the server "
                    "open a round before another one is added"
                )
            self._replace([*keys, _new_report_key()])
            return self.newest()

    def destroy_unneeded(self, needed: Iterable[bytes]) -> list[bytes]:
        """Destroy every key that is older than all of the `needed` ones; the names of those."""
        wanted = set(needed)
        with self._locked():
            keys = self.all()
            first = min((n for n, key in enumerate(keys) if key.id in wanted), default=0)
            if first:
                self._replace(keys[first:])
            return [key.id for key in keys[:first]]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        read_secret(self._path)
        with lock(self._folder / f".{REPORT_KEYS}.lock"):
            yield

    def _version(self) -> tuple[int, int] | None:
        """Another one for another file at this place; None if there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _replace(self, keys: Sequence[ReportKey]) -> None:
        """Whole or not at all. What the former file held is written over, as far as the disk heeds
        that."""
        fresh = f".{REPORT_KEYS}.{secrets.token_hex(4)}"
        write_new_files(self._folder, {fresh: _content(keys)})
        with self._path.open("r+b") as former:
            os.replace(self._folder / fresh, self._path)
            sync_folder(self._folder)
            former.write(bytes(os.fstat(former.fileno()).st_size))
            former.flush()
            os.fsync(former.fileno())


def _new_report_key() -> ReportKey:
    return ReportKey.of(X25519PrivateKey.generate().private_bytes_raw())


def _content(keys: Sequence[ReportKey]) -> bytes:
    table = {"format": _FORMAT, "keys": [key.private.hex() for key in keys]}
    return json.dumps(table).encode() + b"\n"


def _parsed(content: bytes) -> list[ReportKey]:
    """The keys of a ring; none where it is not one."""
    try:
        table = json.loads(content)
        private = [bytes.fromhex(text) for text in table["keys"]]
        good = table["format"] == _FORMAT and all(len(key) == KEY_BYTES for key in private)
    except (ValueError, RecursionError, KeyError, TypeError):
        return []
    return [ReportKey.of(key) for key in private] if good else []
