"""That a device was shut out of its federation, as its own store keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sottovoce.core.words import Said, said
from sottovoce.wire.invitations import SecretStore
from sottovoce.wire.refusals import SHUT_OUT_BY_OPERATOR, WITHDRAWN

_KEPT = "shut-out"
_SAID = {SHUT_OUT_BY_OPERATOR: "quiet.shut_out", WITHDRAWN: "quiet.withdrawn"}


@dataclass(frozen=True, slots=True)
class Expulsion:
    why: str
    """In the server's words."""
    since: float
    """When this device was told."""
    asked: float
    """When it last asked whether that still holds."""

    @property
    def said(self) -> Said:
        """To the owner."""
        return said(_SAID.get(self.why, "quiet.shut_out_server"))


def expelled(store: SecretStore) -> Expulsion | None:
    """None where the device was not shut out, or is let in again."""
    found = store.secret(_KEPT)
    return Expulsion(**json.loads(found)) if found else None


def keep_expulsion(store: SecretStore, why: str, now: float) -> None:
    """The server has said so just now."""
    before = expelled(store)
    since = now if before is None else before.since
    store.set_secret(_KEPT, json.dumps(asdict(Expulsion(why, since, now))).encode())


def forget_expulsion(store: SecretStore) -> None:
    store.set_secret(_KEPT, b"")
