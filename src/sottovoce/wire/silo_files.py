"""The files with which organisations and users join a DRIFT federation.

    federation.json   what the federation is; for whoever wants to join as a data owner
    application.json  a data owner asks to be let in
    admission.json    the orchestrator's answer to one data owner
    invitation.json   lets one user in; a secret

All are JSON (`wire.files`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from sottovoce.algorithms.drift.messages import LARGEST
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import KeyTrouble, UsageError
from sottovoce.wire.directory import OwnerEntry
from sottovoce.wire.files import DocumentFile
from sottovoce.wire.interactions import KEY_BYTES, Identity

TOKEN_BYTES = 32
MOST_OWNERS = 1 << 20
_NAME_LENGTH, _ITEM_LENGTH = 64, 500
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class FederationFile(DocumentFile):
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
class Application(DocumentFile):
    """A data owner asks to be let in."""

    name: str
    url: str
    """Address of its service for users, as https://HOST:PORT."""
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
class Admission(DocumentFile):
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
class UserInvitation(DocumentFile):
    """Lets one user in, once. To be handed over in confidence."""

    federation: str
    issuer: bytes
    """The issuer's public key."""
    url: str
    """Address of the orchestrator's service for users, as https://HOST:PORT."""
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
