"""Invitations: what an operator hands to a user, once and in confidence.

An invitation names the server and the authority to trust, and carries a one-time token that turns
the device's own key into an enrolled one. The device makes its signing key itself; it never leaves
the device.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from sottovoce.errors import KeyTrouble, UsageError
from sottovoce.wire.files import DocumentFile
from sottovoce.wire.frames import PROTOCOL

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
