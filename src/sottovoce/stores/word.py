"""The answers of a user who wants to be asked about each message before it leaves.

The door reads them before it lets anything go (`DeviceSession`), so no agent can send without her
yes. The page and the agent may be two processes: her answers pass through the store.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable

from sottovoce.errors import ConsentError, UsageError
from sottovoce.stores.device import ASKS_FIRST, CohortStore
from sottovoce.wire.signing import NONCE_BYTES

_ALLOWED, _DECLINED = "allowed-by-word", "declined-by-word"
_PRESENCE = "presence-shown"


def asks_first(store: CohortStore) -> bool:
    """Whether each message waits until its user has said yes to it."""
    return bool(store.secret(ASKS_FIRST))


def set_asks_first(store: CohortStore, asks: bool) -> None:
    """Set whether she is asked; this is durable when it returns."""
    if asks and len(store.numbers) != 1:
        raise UsageError(
            f"the store in {store.path} holds several people, who cannot be asked each time"
        )
    with store.file.transaction():
        store.set_secret(ASKS_FIRST, b"1" if asks else b"")
        store.set_secret(_ALLOWED, b"")


def of_report(nonce: bytes) -> str:
    """Return the name of a report. Its nonce identifies its bytes."""
    return f"report:{nonce.hex()}"


def of_contact(what: str, party: str, body: bytes) -> str:
    """Return the name of a request that only says that the device is there. A request to a shuffler
    contains the answer to a challenge, so its bytes are made when it is sent."""
    made = hashlib.sha256(body).hexdigest() if party == "server" else ""
    return f"{what}:{party}:{made}"


def allowed(store: CohortStore) -> set[str]:
    """Return the names of the messages that she has said yes to."""
    return set(json.loads(store.secret(_ALLOWED) or b"[]"))


def allow(store: CohortStore, names: Iterable[str]) -> None:
    """Note that she says yes to these messages, and to no other ones."""
    store.set_secret(_ALLOWED, json.dumps(sorted(names)).encode())


def require_word(store: CohortStore, name: str) -> None:
    """Raise if its user wants to be asked first and has not said yes to this message. A yes to a
    contact is used up by it. The caller holds a transaction."""
    if not asks_first(store):
        return
    known = allowed(store)
    if name not in known:
        raise ConsentError(
            "its user wants to be asked first and has not said yes to this message; look at it "
            f"with `sottovoce device preview {store.path} --send` or on her page"
        )
    if not name.startswith("report:"):
        allow(store, known - {name})


def decline(store: CohortStore, shown: str, key: tuple[int, int] | None) -> None:
    """Note that she says no to what was shown under this name. `key` is the round and attempt of
    the report in it; None if it has no report."""
    store.set_secret(_DECLINED, json.dumps({"shown": shown, "key": key}).encode())


def declined(store: CohortStore) -> tuple[str, tuple[int, int] | None]:
    """Return what she said no to last, as `decline` got it."""
    told = json.loads(store.secret(_DECLINED) or b'{"shown": "", "key": null}')
    return str(told["shown"]), None if told["key"] is None else (told["key"][0], told["key"][1])


def presence(store: CohortStore, key: tuple[int, int]) -> bytes:
    """Return the nonce for a check-in of this round and attempt. It stays the same until the
    check-in has left, so the process that shows it and the one that sends it use the same bytes."""
    round, attempt = key
    with store.file.transaction():
        kept = (store.secret(_PRESENCE) or b"").decode().split(".")
        if kept[:2] != [str(round), str(attempt)]:
            kept = [str(round), str(attempt), secrets.token_hex(NONCE_BYTES)]
            store.set_secret(_PRESENCE, ".".join(kept).encode())
    return bytes.fromhex(kept[2])


def forget_presence(store: CohortStore) -> None:
    """Forget the nonce of a check-in that has left: the next one gets another nonce."""
    store.set_secret(_PRESENCE, b"")
