"""Invitations: what an operator hands to a user, once and in confidence.

An invitation names the server and the authority to trust, and carries a one-time token that turns
the device's own key into an enrolled one. The device makes its signing key itself; it never leaves
the device.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from sottovoce.errors import UsageError
from sottovoce.wire.files import DocumentFile
from sottovoce.wire.frames import PROTOCOL

MAX_NUMBER = 2**32 - 1
_SECRET = "invitation"


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
