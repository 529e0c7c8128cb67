"""The files with which organisations and users join a DRIFT federation.

    federation.json   what the federation is; for whoever wants to join as a data owner
    application.json  a data owner asks to be let in
    admission.json    the orchestrator's answer to one data owner
    invitation.json   lets one user in; a secret

All are JSON. Where one cannot be used, the reason is one sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from sottovoce import config
from sottovoce.algorithms.drift.messages import LARGEST
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import KeyTrouble, UsageError, VersionMismatch
from sottovoce.wire.directory import OwnerEntry
from sottovoce.wire.frames import DRIFT_PROTOCOLS, PROTOCOL, SAME_RELEASE, check_protocol
from sottovoce.wire.interactions import KEY_BYTES, Identity

TOKEN_BYTES = 32
MOST_OWNERS = 1 << 20
_LARGEST_FILE = 256 << 20
_NAME_LENGTH, _ITEM_LENGTH = 64, 500
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class SiloFile:
    """What the four kinds of files have in common."""

    _kind: ClassVar[str]
    _from: ClassVar[str]
    """Who makes such files, and gives another one."""
    _secret: ClassVar[bool] = False

    def to_table(self) -> dict[str, Any]:
        """As it stands in the file; bytes are hexadecimal."""
        table = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"protocol": PROTOCOL, **table}

    @classmethod
    def from_table(cls, table: object) -> Self:
        """From the content of a file. Raises with one sentence where it is none of this kind."""
        if not isinstance(table, dict):
            raise UsageError(f"this is no {cls._kind}; ask {cls._from} for another")
        names = [field.name for field in fields(cls)]
        if set(table) - {"protocol"} != set(names):
            raise UsageError(
                f"a file of this kind ({cls._kind}) has the fields {', '.join(names)}; ask "
                f"{cls._from} for another"
            )
        spoken = table.get("protocol")
        check_protocol(spoken, f"the {cls._kind} is for", SAME_RELEASE, DRIFT_PROTOCOLS)
        hints = typing.get_type_hints(cls)
        return cls(**{name: _value(name, hints[name], table[name]) for name in names})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises with one sentence where the file is missing or not of this kind."""
        try:
            with path.open("rb") as source:
                text = source.read(_LARGEST_FILE + 1)
        except OSError as error:
            raise UsageError(
                f"the {cls._kind} {path} cannot be read: {error.strerror or error}"
            ) from None
        if len(text) > _LARGEST_FILE:
            raise UsageError(f"{path} is too large for a file of this kind, {cls._kind}")
        try:
            return cls.from_table(json.loads(text))
        except (ValueError, RecursionError):
            raise UsageError(f"{path} is no {cls._kind}; ask {cls._from} for another") from None
        except (UsageError, VersionMismatch) as error:
            raise type(error)(f"{path}: {error}") from None

    def write(self, path: Path, *, replace: bool = False) -> None:
        """Whole or not at all, on the disk when this returns; over an existing file only with
        `replace`. A secret is for the operator's eyes alone."""
        text = json.dumps(self.to_table(), indent=1) + "\n"
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        mode = 0o600 if self._secret else 0o644
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            if replace:
                os.replace(fresh, path)
            else:
                os.link(fresh, path)
        except FileExistsError:
            raise UsageError(f"{path} is there already and is not overwritten") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True, slots=True)
class FederationFile(SiloFile):
    """What everybody may know of a federation before joining it."""

    federation: str
    """A name that no other federation has."""
    issuer: bytes
    """The issuer's public key."""
    settings: DRIFTConfig
    catalogue: tuple[str, ...]
    """The items' names; an item's number is its place."""

    _kind = "description of a federation"
    _from = "the orchestrator's operator"

    def __post_init__(self) -> None:
        require_name("federation", self.federation)
        _require_key("issuer", self.issuer)
        require_catalogue(self.catalogue)
        if self.settings.release == "aggregated" and self.settings.min_users < 2:
            raise UsageError("a sum over one person is hers: min_users must be at least 2")

    def numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        """The numbers of these items, ascending. Raises where one is not in the catalogue."""
        places = {name: number for number, name in enumerate(self.catalogue)}
        strange = [name for name in names if name not in places]
        if strange:
            raise UsageError(
                f"{strange[0]!r} is not in the federation's catalogue"
                + (f", nor are {len(strange) - 1:,} others" if strange[1:] else "")
            )
        return tuple(sorted({places[name] for name in names}))


@dataclass(frozen=True, slots=True)
class Application(SiloFile):
    """A data owner asks to be let in."""

    name: str
    url: str
    """Of its service for users, as https://HOST:PORT."""
    public: bytes
    """Its long-term key (X25519)."""
    authority: str
    """The certificate (PEM) that its service is trusted by; empty for plaintext on loopback."""
    node_key: str
    """The public key of its Flower node, one line as in a file that ends in .pub."""
    items: tuple[int, ...]
    """Numbers of the items that it holds, ascending."""

    _kind = "application"
    _from = "the data owner"

    def __post_init__(self) -> None:
        require_name("name", self.name)
        require_url("url", self.url)
        _require_key("public", self.public)
        try:
            Identity().agree(self.public)
        except KeyTrouble:  # of low order: nothing would be secret with it
            raise UsageError("public is nobody's key; make keys with `sottovoce keys`") from None
        require_authority("authority", self.authority, self.url)
        node_identity(self.node_key)
        require_items(self.items)

    @property
    def identity(self) -> str:
        """The name of its node, as `node_identity` says."""
        return node_identity(self.node_key)

    def entry(self, number: int) -> OwnerEntry:
        """As it stands in the directory once it has this number."""
        return OwnerEntry(number, self.name, self.url, self.public, self.authority, self.items)


@dataclass(frozen=True, slots=True)
class Admission(SiloFile):
    """The orchestrator's answer to one data owner."""

    federation: str
    number: int
    """The owner's, which no other one ever gets."""
    name: str
    gateway: str
    """HOST:PORT at which its node comes in."""
    ca: str
    """The certificate (PEM) that the orchestrator is trusted by; empty for plaintext on
    loopback."""

    _kind = "admission"
    _from = "the orchestrator's operator"

    def __post_init__(self) -> None:
        require_name("federation", self.federation)
        require_name("name", self.name)
        if not 0 <= self.number < MOST_OWNERS:
            raise UsageError(f"number must lie between 0 and {MOST_OWNERS - 1:,}")
        require_place("gateway", self.gateway)
        require_authority("ca", self.ca, f"http://{self.gateway}")


@dataclass(frozen=True, slots=True, repr=False)
class UserInvitation(SiloFile):
    """Lets one user in, once. To be handed over in confidence."""

    federation: str
    issuer: bytes
    """The issuer's public key."""
    url: str
    """Of the orchestrator's service for users, as https://HOST:PORT."""
    ca: str
    """The certificate (PEM) that this service is trusted by; empty for plaintext on loopback."""
    token: bytes
    """A secret."""

    _kind = "invitation"
    _from = "the orchestrator's operator"
    _secret = True

    def __post_init__(self) -> None:
        require_name("federation", self.federation)
        _require_key("issuer", self.issuer)
        require_url("url", self.url)
        require_authority("ca", self.ca, self.url)
        if len(self.token) != TOKEN_BYTES:
            raise UsageError(f"token must have {TOKEN_BYTES} bytes")

    def __repr__(self) -> str:
        return f"<UserInvitation to {self.federation}, redacted>"


# --- what stands in them -------------------------------------------------------------------------


def node_identity(node_key: str) -> str:
    """The name of a Flower node, from the text of its public key: what the engine's
    `allotment.identity_of` says of the key that the SuperLink holds."""
    wrong = UsageError(
        "node_key must be the public key of a Flower node, the line in the file NAME.pub of "
        "`sottovoce keys node`"
    )
    if "PRIVATE KEY" in node_key or len(node_key) > 4096 or "\n" in node_key.strip():
        raise wrong
    try:
        key = load_ssh_public_key(node_key.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise wrong from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise wrong
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def require_name(field: str, name: object) -> None:
    """Raises where this is no name that can stand in a line of text."""
    good = isinstance(name, str) and re.fullmatch(r"\w([\w .,&'()+-]*[\w.)+])?", name)
    if not good or len(str(name)) > _NAME_LENGTH:
        raise UsageError(
            f"{field} must be a name of at most {_NAME_LENGTH} letters, digits, spaces and "
            f"-_.,&'()+, not {str(name)[:_NAME_LENGTH]!r}"
        )


def require_catalogue(names: Sequence[object]) -> None:
    """Raises where these are not names of items, each once."""
    for name in names:
        if not isinstance(name, str) or not name.strip() or len(name) > _ITEM_LENGTH:
            raise UsageError(
                f"the catalogue needs a name of 1 to {_ITEM_LENGTH} characters for every item"
            )
    if not names:
        raise UsageError("the catalogue names no item")
    if len(names) > LARGEST:
        raise UsageError(f"the catalogue may name {LARGEST:,} items at most")
    if len(set(names)) < len(names):
        raise UsageError("the catalogue names an item more than once")


def require_items(items: Sequence[object]) -> None:
    """Raises where these are not numbers of items, ascending, each once."""
    numbers = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    if (
        len(numbers) < len(items)
        or numbers != sorted(set(numbers))
        or any(not 0 <= number < LARGEST for number in (*numbers[:1], *numbers[-1:]))
    ):
        raise UsageError("items must be numbers of items in the catalogue, ascending, each once")


def require_place(field: str, place: str) -> None:
    """Raises where this is not HOST:PORT."""
    if not _is_address(f"https://{place}") or ":" not in place.rpartition("]")[2]:
        raise UsageError(f"{field} is a place like example.org:9094, not {place[:200]!r}")


def require_url(field: str, url: str) -> None:
    """Raises where this is not the address of a service, and nothing but that."""
    if not _is_address(url):
        raise UsageError(f"{field} is an address like https://example.org:8443, not {url[:200]!r}")
    if url.startswith("http://") and urlsplit(url).hostname not in _LOOPBACK:
        raise UsageError(f"{field} must be an https:// address outside of this machine")


def require_authority(field: str, pem: str, url: str) -> None:
    """Raises where these are not certificates of authorities and nothing else. Plaintext on this
    machine needs none."""
    if not pem and url.startswith("http://") and urlsplit(url).hostname in _LOOPBACK:
        return
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        signs = all(
            one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for one in found
        )
    except (ValueError, x509.ExtensionNotFound):
        found, signs = [], False
    if not found or not signs or "PRIVATE KEY" in pem:
        raise UsageError(
            f"{field} must be the certificate of an authority, the file ca.crt of `sottovoce keys "
            "init`, and nothing else"
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme not in ("https", "http") or not host or port == 0:
        return False
    name = f"[{host}]" if ":" in host else host
    plain = f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")
    return url.lower() == plain and re.fullmatch(r"[a-z0-9.:_\[\]-]+", name) is not None


def _require_key(field: str, key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise UsageError(f"{field} must be a key of {KEY_BYTES} bytes")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _value(name: str, hint: Any, found: Any) -> Any:
    """What `_plain` gave that, for a field of this type."""
    kinds: dict[Any, tuple[type[Any], str]] = {
        str: (str, "text"),
        int: (int, "a whole number"),
        bytes: (str, "hexadecimal"),
    }
    other = (dict, "a table") if is_dataclass(hint) else (list, "a list")
    kind, words = kinds.get(hint, other)
    wrong = UsageError(f"{name} must be {words}")
    if not isinstance(found, kind) or isinstance(found, bool):
        raise wrong
    if hint is DRIFTConfig:
        return config.build(DRIFTConfig, found, name)
    if hint is bytes:
        try:
            return bytes.fromhex(found)
        except ValueError:
            raise wrong from None
    return tuple(found) if isinstance(found, list) else found
