"""What users and a data owner's service say to each other over HTTPS.

A user shows her pass and gets an offer, answers it with her hello and her first sealed messages,
and from then on posts sealed messages by the name of the session. The service answers with an
`OwnerReceipt`, after what it tells of is on its disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.errors import MessageError
from sottovoce.wire.fields import Fields
from sottovoce.wire.frames import DRIFT_PROTOCOLS, PROTOCOL, SAME_RELEASE, check_protocol
from sottovoce.wire.interactions import KEY_BYTES, SEALED_BYTES
from sottovoce.wire.passes import PASS_BYTES

OWNER_PATH = "/v1/owner"
OFFERS_PATH = "/v1/offers"
SESSIONS_PATH = "/v1/sessions"
INTERACTIONS_PATH = "/v1/interactions"

OFFER_BYTES = SESSION_BYTES = 16
HELLO_BYTES = KEY_BYTES
MOST_SEALED = 2000
"""Messages in one request."""
LONGEST_OFFER_REQUEST = PASS_BYTES
LONGEST_SESSION_REQUEST = OFFER_BYTES + HELLO_BYTES + MOST_SEALED * SEALED_BYTES
LONGEST_INTERACTIONS = SESSION_BYTES + MOST_SEALED * SEALED_BYTES

_ANSWER = "the data owner's answer"
WHY = {
    "tag": "it was not sealed for this session",
    "item": "this data owner does not hold the item",
    "time": "it is older than one that was sent before it",
    "sequence": "its number is too large",
    "left": "it came after the user had left",
}
"""What the words in a receipt mean."""


# --- what users send ------------------------------------------------------------------------------


def encode_session(offer: bytes, hello: bytes, sealed: Sequence[bytes]) -> bytes:
    """The body of a request that begins a session."""
    if len(offer) != OFFER_BYTES or len(hello) != HELLO_BYTES:
        raise MessageError("an offer or a hello has the wrong length")
    return offer + hello + _joined(sealed)


def decode_session(body: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """Offer, hello and sealed messages."""
    start = OFFER_BYTES + HELLO_BYTES
    return body[:OFFER_BYTES], body[OFFER_BYTES:start], _split(body, start)


def encode_interactions(session: bytes, sealed: Sequence[bytes]) -> bytes:
    """The body of a request with more messages of a session."""
    if len(session) != SESSION_BYTES:
        raise MessageError("the name of a session has the wrong length")
    return session + _joined(sealed)


def decode_interactions(body: bytes) -> tuple[bytes, list[bytes]]:
    """Session and sealed messages."""
    return body[:SESSION_BYTES], _split(body, SESSION_BYTES)


def _joined(sealed: Sequence[bytes]) -> bytes:
    if not 1 <= len(sealed) <= MOST_SEALED:
        raise MessageError(f"a request has from 1 to {MOST_SEALED} messages")
    if any(len(one) != SEALED_BYTES for one in sealed):
        raise MessageError(f"a sealed interaction has {SEALED_BYTES} bytes")
    return b"".join(sealed)


def _split(body: bytes, start: int) -> list[bytes]:
    count, rest = divmod(len(body) - start, SEALED_BYTES)
    if rest or not 1 <= count <= MOST_SEALED:
        raise MessageError(
            f"the body has {start} bytes and then from 1 to {MOST_SEALED} messages of "
            f"{SEALED_BYTES} bytes each",
        )
    return [body[at : at + SEALED_BYTES] for at in range(start, len(body), SEALED_BYTES)]


# --- what the service answers ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerCard:
    """The public card of a data owner: who answers at an address."""

    federation: str
    number: int
    name: str
    public: bytes

    def encode(self) -> bytes:
        table = {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "number": self.number,
            "name": self.name,
            "public": self.public.hex(),
        }
        return json.dumps(table).encode()

    @classmethod
    def decode(cls, body: bytes) -> OwnerCard:
        fields = Fields.of_json(body, _ANSWER)
        spoken = fields.get("protocol")
        check_protocol(spoken, "the data owner speaks", SAME_RELEASE, DRIFT_PROTOCOLS)
        return cls(
            fields.of("federation", str),
            fields.whole("number"),
            fields.of("name", str),
            fields.hex("public", KEY_BYTES),
        )


@dataclass(frozen=True, slots=True)
class OfferMade:
    """An offer of the owner's, good for one session."""

    offer: bytes
    public: bytes

    def encode(self) -> bytes:
        return json.dumps({"offer": self.offer.hex(), "public": self.public.hex()}).encode()

    @classmethod
    def decode(cls, body: bytes) -> OfferMade:
        fields = Fields.of_json(body, _ANSWER)
        return cls(fields.hex("offer", OFFER_BYTES), fields.hex("public", KEY_BYTES))


@dataclass(frozen=True, slots=True, repr=False)
class OwnerReceipt:
    """What became of the messages of one request; all of it is on the owner's disk."""

    sequence: int
    """The highest sequence number that the owner has of this user."""
    taken: int
    repeated: int
    """Messages that it had before."""
    refused: tuple[tuple[int, str], ...]
    """The place in the request and the word of each message that was not taken; see `WHY`."""
    session: bytes | None = None
    """The session that was begun, where one was."""

    def __repr__(self) -> str:
        return f"<OwnerReceipt taken={self.taken} repeated={self.repeated}, redacted>"

    def encode(self) -> bytes:
        table: dict[str, Any] = {
            "sequence": self.sequence,
            "taken": self.taken,
            "repeated": self.repeated,
            "refused": [list(one) for one in self.refused],
        }
        if self.session is not None:
            table = {"session": self.session.hex(), **table}
        return json.dumps(table).encode()

    @classmethod
    def decode(cls, body: bytes, sent: int) -> OwnerReceipt:
        """The answer to a request of `sent` messages. Raises where it does not account for each
        of them once."""
        fields = Fields.of_json(body, _ANSWER)
        taken, repeated = fields.whole("taken"), fields.whole("repeated")
        refused = tuple(_one_refused(one) for one in fields.of("refused", list))
        places = {place for place, _ in refused}
        if len(places) < len(refused) or any(place >= sent for place in places):
            raise _unreadable()
        if taken + repeated + len(refused) != sent:
            raise MessageError("the data owner's receipt is not for what was sent")
        session = fields.hex("session", SESSION_BYTES) if "session" in fields else None
        # -1 if it has nothing of her.
        sequence = fields.whole("sequence", -1, (1 << 64) - 1)
        return cls(sequence, taken, repeated, refused, session)


def _one_refused(found: Any) -> tuple[int, str]:
    place, word = found if isinstance(found, list) and len(found) == 2 else (None, "")
    if type(place) is not int or place < 0 or not isinstance(word, str):
        raise _unreadable()
    if not re.fullmatch(r"[a-z_]{1,20}", word):
        raise _unreadable()
    return place, word


def _unreadable() -> MessageError:
    return MessageError(f"{_ANSWER} cannot be read")
