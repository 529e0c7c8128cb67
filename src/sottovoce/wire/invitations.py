"""Invitations: what an operator hands to a device owner, once and in confidence.

An invitation names the server and the authority to trust, and carries a one-time token that turns
the device's own key into an enrolled one. The device makes its signing key itself; it never leaves
the device.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from sottovoce.errors import UsageError
from sottovoce.wire.frames import PROTOCOL, check_protocol

MAX_NUMBER = 2**32 - 1
_LARGEST = 1 << 20
_SECRET = "invitation"


@dataclass(frozen=True, slots=True, repr=False)
class Invitation:
    server: str
    """The server's address, as in https://example.org:8443."""
    ca: str
    """The certificate authority to trust, as PEM; empty for a plaintext server on loopback."""
    token: str
    """Good for one enrolment; hexadecimal. A secret."""
    number: int
    """The device's number in the federation."""
    federation: str

    def __repr__(self) -> str:
        return f"<Invitation to {self.federation}, redacted>"


class SecretStore(Protocol):
    """Where a device keeps what must stay secret: its store."""

    def secret(self, name: str) -> bytes | None: ...
    def set_secret(self, name: str, value: bytes) -> None: ...


def keep_invitation(store: SecretStore, invitation: Invitation) -> None:
    """In a device's store, where the agent looks for it."""
    store.set_secret(_SECRET, _text(invitation).encode())


def kept_invitation(store: SecretStore) -> Invitation | None:
    """The invitation that a store holds, if any."""
    content = store.secret(_SECRET)
    return None if content is None else parse_invitation(json.loads(content))


def write_invitation(path: Path, invitation: Invitation) -> None:
    """As a file of mode 600. Never over an existing one."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} is there already and is not overwritten") from None
    with os.fdopen(handle, "w") as out:
        os.fchmod(out.fileno(), 0o600)
        out.write(_text(invitation))
        out.flush()
        os.fsync(out.fileno())


def read_invitation(path: Path) -> Invitation:
    """Raises with one sentence where the file is missing, of another version or no invitation."""
    try:
        with path.open("rb") as source:
            text = source.read(_LARGEST)
    except OSError as error:
        raise UsageError(
            f"the invitation {path} cannot be read: {error.strerror or error}"
        ) from None
    try:
        return parse_invitation(json.loads(text))
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no invitation; ask the operator for another") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_invitation(table: Any) -> Invitation:
    """From the content of a file."""
    if not isinstance(table, dict):
        raise UsageError("this is no invitation; ask the operator for another")
    advice = "install the release of Sottovoce that the operator uses"
    check_protocol(table.get("protocol"), "the invitation is for", advice)
    kinds = {"server": str, "ca": str, "token": str, "number": int, "federation": str}
    if set(table) - {"protocol"} != set(kinds) or not all(
        isinstance(table[name], kind) and not isinstance(table[name], bool)
        for name, kind in kinds.items()
    ):
        raise UsageError(f"an invitation has the fields {', '.join(kinds)}; ask for another")
    invitation = Invitation(**{name: table[name] for name in kinds})
    if not invitation.server.startswith(("https://", "http://")):
        raise UsageError("the invitation's server must begin with https://; ask for another")
    if not 0 <= invitation.number <= MAX_NUMBER:
        raise UsageError(f"the invitation's number must lie between 0 and {MAX_NUMBER}")
    try:
        bytes.fromhex(invitation.token)
    except ValueError:
        raise UsageError("the invitation's token is not hexadecimal; ask for another") from None
    return invitation


def _text(invitation: Invitation) -> str:
    return json.dumps({"protocol": PROTOCOL, **asdict(invitation)}, indent=1) + "\n"
