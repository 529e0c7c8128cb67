"""A user who wants to be asked each time: her word for each message, before it leaves.

The door reads this before it lets anything go (`DeviceSession`), so that no agent can send without
her word. The page and the agent may be two processes: what she says goes through the store.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable

from sottovoce.errors import ConsentError, UsageError
from sottovoce.stores.device import CohortStore
from sottovoce.wire.signing import NONCE_BYTES

_ASKS, _ALLOWED, _DECLINED = "asks-first", "allowed-by-word", "declined-by-word"
_PRESENCE = "presence-shown"


def asks_first(store: CohortStore) -> bool:
    """Whether nothing leaves before its user has said yes to that very message."""
    return bool(store.secret(_ASKS))


def set_asks_first(store: CohortStore, asks: bool) -> None:
    """Durable, and read by the door before anything leaves."""
    if asks and len(store.numbers) != 1:
        raise UsageError(
            f"the store in {store.path} holds several people, who cannot be asked each time"
        )
    with store.file.transaction():
        store.set_secret(_ASKS, b"1" if asks else b"")
        store.set_secret(_ALLOWED, b"")


def of_report(nonce: bytes) -> str:
    """Name one report, whose bytes its nonce stands for."""
    return f"report:{nonce.hex()}"


def of_contact(what: str, party: str, body: bytes) -> str:
    """Name one request that only says that the device is there. To a shuffler it is made anew on
    the way, because an answer to its challenge is in it."""
    made = hashlib.sha256(body).hexdigest() if party == "server" else ""
    return f"{what}:{party}:{made}"


def allowed(store: CohortStore) -> set[str]:
    """The names of the messages that may leave by her word."""
    return set(json.loads(store.secret(_ALLOWED) or b"[]"))


def allow(store: CohortStore, names: Iterable[str]) -> None:
    """She says yes to these messages, and to none that she said yes to before."""
    store.set_secret(_ALLOWED, json.dumps(sorted(names)).encode())


def require_word(store: CohortStore, name: str) -> None:
    """Raise if its user wants to be asked first and has not said yes to this message. Within a
    transaction. A yes to a contact serves once."""
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
    """She says no to what was shown under this name: a report for this round and attempt, if one is
    among it."""
    store.set_secret(_DECLINED, json.dumps({"shown": shown, "key": key}).encode())


def declined(store: CohortStore) -> tuple[str, tuple[int, int] | None]:
    """What she said no to last."""
    told = json.loads(store.secret(_DECLINED) or b'{"shown": "", "key": null}')
    return str(told["shown"]), None if told["key"] is None else (told["key"][0], told["key"][1])


def presence(store: CohortStore, key: tuple[int, int]) -> bytes:
    """The nonce of a check-in of this round and attempt: the same until it has left, whichever
    process shows it or sends it."""
    round, attempt = key
    with store.file.transaction():
        kept = (store.secret(_PRESENCE) or b"").decode().split(".")
        if kept[:2] != [str(round), str(attempt)]:
            kept = [str(round), str(attempt), secrets.token_hex(NONCE_BYTES)]
            store.set_secret(_PRESENCE, ".".join(kept).encode())
    return bytes.fromhex(kept[2])


def forget_presence(store: CohortStore) -> None:
    """It has left; another one has another nonce."""
    store.set_secret(_PRESENCE, b"")
