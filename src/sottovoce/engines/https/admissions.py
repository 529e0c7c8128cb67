"""What the server of a federation with a proxy gives to others: to a device, word that it has
enrolled (an admission), which the proxy asks for; to the proxy's operator, once and in confidence,
all that the proxy needs of the server (an introduction).

Files of the key folder: `admission.key` (signs admissions), `proxy.token` (by which the server
knows the proxy, or the proxy of a secure sum the server). Both have mode 600.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.engines.https.keys import read_secret, write_new_files
from sottovoce.engines.https.possession import is_signed
from sottovoce.errors import KeyTrouble, UsageError, VersionMismatch
from sottovoce.terms import PROTOCOL

ADMISSION_KEY, PROXY_TOKEN = "admission.key", "proxy.token"
_LARGEST = 1 << 20
_FIELDS = ("server", "ca", "federation", "verifying_key", "token")


@dataclass(frozen=True, slots=True, repr=False)
class Introduction:
    """All that a proxy needs to know of the server that it hands its batches to."""

    server: str
    """The server's address, as in https://example.org:8443."""
    ca: str
    """The server's certificate authority, as PEM; empty for a plaintext server on loopback."""
    federation: str
    verifying_key: str
    """By which admissions are known (Ed25519); hexadecimal."""
    token: str
    """By which the server knows the proxy; hexadecimal. A secret."""

    def __repr__(self) -> str:
        return f"<Introduction to {self.federation}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class ProxySecrets:
    """What a server process needs where reports come through a proxy."""

    admission_key: Ed25519PrivateKey
    token: str

    @classmethod
    def of(cls, folder: Path) -> ProxySecrets:
        """From the server's key folder."""
        return cls(admission_key(folder), proxy_token(folder))


def init_proxy_secrets(folder: Path) -> None:
    """Make the server's key for admissions and the proxy's token. Never over existing ones."""
    key = Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    token = secrets.token_hex(32).encode() + b"\n"
    write_new_files(folder, {ADMISSION_KEY: key, PROXY_TOKEN: token})


def init_proxy_token(folder: Path) -> None:
    """Make the token by which the proxy of a secure sum knows the server. Never over one."""
    write_new_files(folder, {PROXY_TOKEN: secrets.token_hex(32).encode() + b"\n"})


def proxy_token(folder: Path) -> str:
    """The secret with which the proxy hands over batches; or with which the server asks the proxy
    of a secure sum."""
    return read_secret(folder / PROXY_TOKEN).decode("ascii", "replace").strip()


def admission_key(folder: Path) -> Ed25519PrivateKey:
    path = folder / ADMISSION_KEY
    try:
        key = form.load_pem_private_key(read_secret(path), None)
    except (ValueError, TypeError):
        raise KeyTrouble(f"{path} is no private key; put the right file back") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyTrouble(f"{path} is not an Ed25519 key as the server makes it")
    return key


def admission_statement(federation: str, public_key: bytes) -> bytes:
    """What the server signs when a device has enrolled."""
    return b"sottovoce proxy admission\0" + federation.encode() + b"\0" + public_key


def enrolment_statement(federation: str, admission: bytes, challenge: bytes) -> bytes:
    """What a device signs to have an account with the proxy, which has asked so."""
    return b"sottovoce proxy enrolment 2\0" + federation.encode() + b"\0" + admission + challenge


def admit(key: Ed25519PrivateKey, federation: str, public_key: bytes) -> bytes:
    """The admission of a device by its public key. The same each time."""
    return key.sign(admission_statement(federation, public_key))


def is_admitted(
    verifying_key: bytes,
    federation: str,
    public_key: bytes,
    admission: bytes,
    signature: bytes,
    challenge: bytes,
) -> bool:
    """Whether the server admitted this key, and whoever shows the admission holds it and was asked
    with this challenge."""
    word = admission_statement(federation, public_key)
    answer = enrolment_statement(federation, admission, challenge)
    return is_signed(verifying_key, word, admission) and is_signed(public_key, answer, signature)


def introduce(keys: Path, server: str, ca: str, federation: str) -> Introduction:
    """What the proxy's operator is given, from the server's key folder."""
    public = admission_key(keys).public_key().public_bytes_raw()
    return Introduction(server, ca, federation, public.hex(), proxy_token(keys))


def write_introduction(path: Path, introduction: Introduction) -> None:
    """As a file of mode 600. Never over an existing one."""
    if path.exists():
        raise UsageError(f"{path} is there already and is not overwritten")
    content = json.dumps({"protocol": PROTOCOL, **asdict(introduction)}, indent=1) + "\n"
    write_new_files(path.parent, {path.name: content.encode()})


def read_introduction(path: Path) -> Introduction:
    """Raises with one sentence where the file is missing, of another version or none."""
    try:
        with path.open("rb") as source:
            return parse_introduction(json.loads(source.read(_LARGEST)))
    except OSError as error:
        raise UsageError(
            f"the introduction {path} cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no introduction; ask the server's operator for one") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_introduction(table: Any) -> Introduction:
    """From the content of a file."""
    if not isinstance(table, Mapping):
        raise UsageError("this is no introduction; ask the server's operator for one")
    spoken = table.get("protocol")
    if spoken != PROTOCOL:
        raise VersionMismatch(
            f"the introduction is for version {spoken!r} of the protocol, this program speaks "
            f"version {PROTOCOL}; install the release of Sottovoce that the server runs"
        )
    if set(table) != {"protocol", *_FIELDS} or not all(isinstance(table[f], str) for f in _FIELDS):
        raise UsageError(f"an introduction has the fields {', '.join(_FIELDS)}; ask for another")
    found = Introduction(**{name: table[name] for name in _FIELDS})
    if not found.server.startswith(("https://", "http://")):
        raise UsageError("the introduction's server must begin with https://; ask for another")
    try:
        good = len(bytes.fromhex(found.verifying_key)) == 32 and len(bytes.fromhex(found.token)) > 0
    except ValueError:
        good = False
    if not good:
        raise UsageError("the introduction's keys are not hexadecimal; ask for another")
    return found
