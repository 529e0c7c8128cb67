"""Invitations: what an operator hands to a user, once and in confidence.

An invitation names the server and the authority to trust, and carries a one-time token that turns
the device's own key into an enrolled one. The device makes its signing key itself; it never leaves
the device.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.errors import KeyTrouble, MessageError, UsageError
from sottovoce.wire.files import DocumentFile
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.signing import KEY_BYTES, SIGNATURE_BYTES, is_signed

MAX_NUMBER = 2**32 - 1
_SECRET = "invitation"
_FRAGMENT = "sv="
_LONGEST_LINK = 1 << 16
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, repr=False)
class Invitation(DocumentFile):
    server: str
    """The server's address, as in https://example.org:8443."""
    ca: str
    """The certificate authority to trust, as PEM; empty for a plaintext server on loopback."""
    token: str
    """Good for one enrolment; hexadecimal. A secret."""
    number: int
    """The device's number in the federation."""
    federation: str

    _kind = "invitation"
    _from = "the operator"
    _secret = True
    _protocols = (PROTOCOL,)

    def __post_init__(self) -> None:
        if not self.server.startswith(("https://", "http://")):
            raise UsageError("the invitation's server must begin with https://; ask for another")
        if not 0 <= self.number <= MAX_NUMBER:
            raise UsageError(f"the invitation's number must lie between 0 and {MAX_NUMBER}")
        try:
            bytes.fromhex(self.token)
        except ValueError:
            raise UsageError("the invitation's token is not hexadecimal; ask for another") from None

    def __repr__(self) -> str:
        return f"<Invitation to {self.federation}, redacted>"

    def link(self, page: str) -> str:
        """The invitation as a link to a page that takes it up: all of it stands behind `#`, and no
        browser sends that to a server. A secret."""
        require_page(page)
        told = json.dumps(self.to_table(), separators=(",", ":")).encode()
        return f"{page}#{_FRAGMENT}{base64.urlsafe_b64encode(told).decode().rstrip('=')}"

    @classmethod
    def from_link(cls, link: str) -> Invitation:
        """Raises with one sentence where the link has no invitation."""
        wrong = UsageError("this link has no invitation behind its #; ask the operator for another")
        _, _, behind = link.strip().partition(f"#{_FRAGMENT}")
        if not behind or len(link) > _LONGEST_LINK:
            raise wrong
        try:
            told = base64.b64decode(behind + "=" * (-len(behind) % 4), b"-_", validate=True)
            table = json.loads(told)
        except (ValueError, RecursionError, binascii.Error):
            raise wrong from None
        return cls.from_table(table)

    def write_link(self, path: Path, page: str) -> None:
        """A file for the operator's eyes alone, with the link in a line. Never over another."""
        text = self.link(page) + "\n"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise UsageError(f"{path} is there already and is not overwritten") from None
        with os.fdopen(handle, "w", encoding="ascii") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())


def require_page(page: str) -> None:
    """Raises where an invitation cannot stand behind this address, or would travel unprotected."""
    wrong = UsageError(f"--link is the address of a page, like https://shop.example/, not {page!r}")
    try:
        parts = urlsplit(page)
        host = parts.hostname
    except ValueError:
        raise wrong from None
    if not host or not page.isascii() or not page.isprintable() or " " in page or "#" in page:
        raise wrong
    if parts.username is not None or parts.scheme not in ("https", "http"):
        raise wrong
    if parts.scheme == "http" and host not in _HERE:
        raise UsageError(
            f"the page {page} is not encrypted, so that others could put a page there that takes "
            "the invitation; use https://"
        )


class SecretStore(Protocol):
    """Where a device keeps what must stay secret: its store."""

    def secret(self, name: str) -> bytes | None: ...
    def set_secret(self, name: str, value: bytes) -> None: ...


def keep_invitation(store: SecretStore, invitation: Invitation) -> None:
    """In a device's store, where the agent looks for it."""
    store.set_secret(_SECRET, json.dumps(invitation.to_table(), indent=1).encode() + b"\n")


def kept_invitation(store: SecretStore) -> Invitation | None:
    """The invitation that a store holds, if any."""
    content = store.secret(_SECRET)
    return None if content is None else Invitation.from_table(json.loads(content))


def device_context(ca_pem: str) -> ssl.SSLContext:
    """What a device needs to speak TLS with the servers of one authority, and with no others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError):
        raise KeyTrouble(
            "the certificate authority of the invitation is no certificate; ask the operator for "
            "another invitation"
        ) from None
    return context


# --- devices without an invitation ----------------------------------------------------------------

# Such a device asks the server for a challenge, works on it for a while, and enrols its own key
# with what it found. The work is a number whose hash together with the challenge, the federation
# and the key begins with enough zero bits. It is good for this key alone, can be checked by one
# hash, and makes a crowd of made-up devices cost something; docs/privacy.md says how little that
# is. The signature is that of every enrolment, over the challenge in the place of an invitation's
# token.


WORK_BYTES = 8
MOST_BITS = 32
"""Most zero bits: more would keep a tab busy for an hour."""
_WORK, _POSSESSION = b"sottovoce work\0", b"sottovoce place\0"


@dataclass(frozen=True, slots=True, repr=False)
class PlaceRequest:
    """What a device posts to enrol with a challenge."""

    challenge: bytes
    work: bytes
    public_key: bytes
    signature: bytes

    _SIZES: ClassVar[dict[str, int]] = {
        "work": WORK_BYTES,
        "public_key": KEY_BYTES,
        "signature": SIGNATURE_BYTES,
    }

    def __repr__(self) -> str:
        return "<PlaceRequest, redacted>"

    @classmethod
    def made(
        cls, key: Ed25519PrivateKey, federation: str, challenge: bytes, work: bytes
    ) -> PlaceRequest:
        """Signed by the device whose key it is."""
        public = key.public_key().public_bytes_raw()
        signature = key.sign(_bound(_POSSESSION, federation, challenge, public))
        return cls(challenge, work, public, signature)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> PlaceRequest:
        """Raises where a part is missing or of another length."""
        names = ("challenge", *cls._SIZES)
        try:
            parts = {name: bytes.fromhex(table[name]) for name in names}
        except (KeyError, TypeError, ValueError):
            raise MessageError(f"{', '.join(names)} must be hexadecimal") from None
        for name, size in cls._SIZES.items():
            if len(parts[name]) != size:
                raise MessageError(f"{name} must be {size} bytes in hexadecimal")
        return cls(**parts)

    def to_bytes(self) -> bytes:
        parts = {name: getattr(self, name).hex() for name in ("challenge", *self._SIZES)}
        return json.dumps({"protocol": PROTOCOL, **parts}).encode()

    def is_worked(self, federation: str, bits: int) -> bool:
        """Whether so many zero bits were found for this key and challenge."""
        prefix = _bound(_WORK, federation, self.challenge, self.public_key)
        found = hashlib.sha256(prefix + self.work).digest()
        return int.from_bytes(found[:8], "big") >> (64 - bits) == 0

    def is_proven(self, federation: str) -> bool:
        """Whether the holder of the key wants this place."""
        statement = _bound(_POSSESSION, federation, self.challenge, self.public_key)
        return is_signed(self.public_key, statement, self.signature)


def worked(federation: str, challenge: bytes, public_key: bytes, bits: int) -> bytes:
    """The first number from 0 on that is work enough; about 2 to the power of `bits` are tried."""
    begun = hashlib.sha256(_bound(_WORK, federation, challenge, public_key))
    number = 0
    while True:
        work = number.to_bytes(WORK_BYTES, "little")
        tried = begun.copy()
        tried.update(work)
        if int.from_bytes(tried.digest()[:8], "big") >> (64 - bits) == 0:
            return work
        number += 1


def _bound(purpose: bytes, federation: str, challenge: bytes, public_key: bytes) -> bytes:
    """To one purpose, federation, challenge and key."""
    name = federation.encode()
    parts = [purpose, struct.pack("<I", len(name)), name, hashlib.sha256(challenge).digest()]
    return b"".join([*parts, public_key])
