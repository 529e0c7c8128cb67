"""What a user and the orchestrator of a DRIFT federation say to each other over HTTPS.

    GET  /v1/key        the orchestrator's key, with which users prove themselves
    POST /v1/enrol      a token, the user's public key and the proof that she has its private half
                        → her pass, and the orchestrator's key
    GET  /v1/directory  the signed directory; with If-None-Match, 304 where it has not changed
    POST /v1/recommend  how many → items and scores, best first; also items that she has seen, which
                        the orchestrator does not know
    POST /v1/leave      → 204; her row is gone, and her number is nobody's any more

Whoever asks for recommendations or leaves shows her pass and proves that she has its private key:
an HMAC under a key that both sides compute (X25519, HKDF-SHA256), over the purpose, the time, a
nonce and the content. It is good once, for a few minutes. Whoever enrols proves it in the same way,
over her invitation and her key: so nobody gets a pass for somebody else's key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sottovoce.algorithms.drift.messages import LARGEST, Gradients, RowRequest, Rows
from sottovoce.errors import KeyTrouble, MessageError, VersionMismatch
from sottovoce.wire.directory import PROTOCOL
from sottovoce.wire.interactions import KEY_BYTES, PASS_BYTES, SEALED_BYTES, Identity, Pass
from sottovoce.wire.refusals import Refused
from sottovoce.wire.silo_files import TOKEN_BYTES

# What data owners and the orchestrator say to each other in DRIFT, as bytes. Numbers take four
# bytes, rows are in single precision; all little-endian. Lengths are checked, what is said is
# not: that is for who takes the message.

_REQUEST = struct.Struct("<III")
_ROWS = struct.Struct("<QII")
_GRADIENTS = struct.Struct("<IQII")


def request_bytes(users: int, items: int) -> int:
    """The length of a request for so many rows."""
    return _REQUEST.size + 4 * (users + items)


def rows_bytes(users: int, items: int, size: int) -> int:
    """The length of an answer: numbers, and rows in single precision."""
    return _ROWS.size + 4 * (1 + size) * (users + items)


def gradients_bytes(users: int, items: int, size: int) -> int:
    return _GRADIENTS.size + 4 * (1 + size) * (users + items)


def pack_request(request: RowRequest) -> bytes:
    head = _REQUEST.pack(request.owner, len(request.users), len(request.items))
    return head + _packed_numbers(request.users, request.items)


def unpack_request(content: bytes) -> RowRequest:
    owner, n_users, n_items = _head(_REQUEST, content)
    users, items, end = _numbers(content, _REQUEST.size, n_users, n_items)
    if end != len(content):
        raise MessageError("the request has another length than it says")
    return RowRequest(owner, users, items)


def pack_rows(rows: Rows) -> bytes:
    head = _ROWS.pack(rows.version, len(rows.users), len(rows.items))
    return head + _packed_rows(rows)


def unpack_rows(content: bytes) -> Rows:
    version, n_users, n_items = _head(_ROWS, content)
    return Rows(version, *_rows(content, _ROWS.size, n_users, n_items))


def pack_gradients(gradients: Gradients) -> bytes:
    head = _GRADIENTS.pack(
        gradients.owner, gradients.version, len(gradients.users), len(gradients.items)
    )
    return head + _packed_rows(gradients)


def unpack_gradients(content: bytes) -> Gradients:
    owner, version, n_users, n_items = _head(_GRADIENTS, content)
    return Gradients(owner, version, *_rows(content, _GRADIENTS.size, n_users, n_items))


def _packed_numbers(users: NDArray[np.int64], items: NDArray[np.int64]) -> bytes:
    return users.astype("<u4").tobytes() + items.astype("<u4").tobytes()


def _packed_rows(table: Rows | Gradients) -> bytes:
    rows = table.user_rows.astype("<f4").tobytes() + table.item_rows.astype("<f4").tobytes()
    return _packed_numbers(table.users, table.items) + rows


def _head(head: struct.Struct, content: bytes) -> tuple[int, ...]:
    if len(content) < head.size:
        raise MessageError("the message is too short")
    return head.unpack_from(content)


def _numbers(
    content: bytes, at: int, n_users: int, n_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    end = at + 4 * (n_users + n_items)
    if end > len(content):
        raise MessageError("the message is shorter than it says")
    numbers = np.frombuffer(content, "<u4", n_users + n_items, at).astype(np.int64)
    return numbers[:n_users], numbers[n_users:], end


def _rows(
    content: bytes, at: int, n_users: int, n_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    users, items, end = _numbers(content, at, n_users, n_items)
    n, rest = n_users + n_items, len(content) - end
    if rest % (4 * n or 1):
        raise MessageError("the message has another length than it says")
    rows = np.frombuffer(content, "<f4", offset=end).astype(np.float32)
    table = rows.reshape(n, rest // (4 * n) if n else 0)
    return users, items, table[:n_users], table[n_users:]


# What users ask for who rank at home, in a federation whose data owners keep their vectors. POST
# /v1/vector at a data owner: a question (orchestrator_wire) → the asker's own vector GET /v1/rows
# at the orchestrator: the rows of all items; with If-None-Match, 304 where they have not changed
# An answer with a vector is as long as one without.

VECTOR, ROWS = "/v1/vector", "/v1/rows"
_HOME_HEAD = struct.Struct("<4sII")
_HOME_MAGIC = b"SVR1"
Row = NDArray[np.float32]


def encode_vector(row: Row | None, size: int) -> bytes:
    told = np.zeros(size, dtype="<f4") if row is None else row.astype("<f4")
    return bytes([row is not None]) + told.tobytes()


def decode_vector(body: bytes, size: int) -> Row | None:
    """Nothing where the owner keeps none."""
    if len(body) != 1 + 4 * size or body[0] > 1:
        raise MessageError("the data owner's answer cannot be read")
    row = np.frombuffer(body, "<f4", offset=1).astype(np.float32)
    if not np.isfinite(row).all():
        raise MessageError("the data owner's answer holds numbers that are not finite")
    return row if body[0] else None


def encode_rows(rows: Row) -> bytes:
    return _HOME_HEAD.pack(_HOME_MAGIC, *rows.shape) + rows.astype("<f4").tobytes()


def longest_rows(items: int, size: int) -> int:
    """Bytes of the rows of so many items."""
    return _HOME_HEAD.size + 4 * items * size


def decode_rows(body: bytes, most: int, size: int) -> Row:
    """Of at most so many items, each of `size` numbers."""
    if len(body) < _HOME_HEAD.size:
        raise MessageError("the orchestrator's answer cannot be read")
    magic, items, width = _HOME_HEAD.unpack_from(body)
    whole = len(body) == longest_rows(items, size)
    if magic != _HOME_MAGIC or width != size or items > most or not whole:
        raise MessageError("the orchestrator's answer cannot be read")
    rows = (
        np.frombuffer(body, "<f4", offset=_HOME_HEAD.size).astype(np.float32).reshape(items, size)
    )
    if not np.isfinite(rows).all():
        raise MessageError("the orchestrator's answer holds numbers that are not finite")
    return rows


ENROL, DIRECTORY, KEY = "/v1/enrol", "/v1/directory", "/v1/key"
RECOMMEND, LEAVE = "/v1/recommend", "/v1/leave"
NONCE_BYTES = 16
PROOF_SECONDS = 300
"""How far the clocks of user and orchestrator may be apart."""
MOST_ITEMS = 100_000
"""A user cannot ask for more at once."""
LONGEST = 1024
"""Bytes of anything that a user sends."""

Purpose = Literal["recommend", "leave", "vector", "enrol"]
_MAGIC = b"SVU1"
_HEAD = struct.Struct(f"<4sQ{NONCE_BYTES}s")
_COUNT = struct.Struct("<I")
_MAC_BYTES = 32
_PURPOSE = b"sottovoce users 1\0"


# --- proofs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """What a user asks; read, but not yet believed."""

    given: Pass
    time: int
    nonce: bytes
    content: bytes
    _signed: bytes
    _mac: bytes

    def __repr__(self) -> str:
        return "<Question, redacted>"

    def is_proven(self, purpose: Purpose, federation: str, orchestrator: Identity) -> bool:
        """Whether whoever has the private half of the pass's key asked this, for this purpose."""
        try:
            shared = orchestrator.agree(self.given.public)
        except KeyTrouble:
            return False
        key = _proof_key(shared, federation, self.given.public, orchestrator.public)
        return hmac.compare_digest(_mac(key, purpose, self._signed), self._mac)


def ask(
    purpose: Purpose,
    content: bytes,
    given: Pass,
    identity: Identity,
    federation: str,
    orchestrator: bytes,
    now: float,
) -> bytes:
    """The body of a question; `orchestrator` is the public key of the enrolment's answer, `now` in
    seconds since 1970."""
    key = _proof_key(identity.agree(orchestrator), federation, identity.public, orchestrator)
    signed = _HEAD.pack(_MAGIC, int(now), os.urandom(NONCE_BYTES)) + given.encode() + content
    return signed + _mac(key, purpose, signed)


def read_question(body: bytes) -> Question:
    """Raises where this is no question."""
    begin, stop = _HEAD.size + PASS_BYTES, len(body) - _MAC_BYTES
    if body[:3] == _MAGIC[:3] and body[3:4] != _MAGIC[3:]:
        raise VersionMismatch("this was asked by another release of Sottovoce")
    if stop < begin or body[:4] != _MAGIC:
        raise MessageError("this is no question of a user")
    _, time, nonce = _HEAD.unpack_from(body)
    given = Pass.decode(body[_HEAD.size : begin])
    return Question(given, time, nonce, body[begin:stop], body[:stop], body[stop:])


def _proof_key(shared: bytes, federation: str, user: bytes, orchestrator: bytes) -> bytes:
    info = _PURPOSE + user + orchestrator + federation.encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(shared)


def _enrolment_mac(key: bytes, token: bytes, public: bytes) -> bytes:
    return _mac(key, "enrol", hashlib.sha256(token).digest() + public)


def _mac(key: bytes, purpose: Purpose, signed: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + signed, "sha256")


# --- contents ------------------------------------------------------------------------------------


def encode_count(n: int) -> bytes:
    """The content of a question for the n best items."""
    if not 1 <= n <= MOST_ITEMS:
        raise MessageError(f"one can ask for 1 to {MOST_ITEMS:,} items, not {n}")
    return _COUNT.pack(n)


def decode_count(content: bytes) -> int:
    if len(content) != _COUNT.size:
        raise MessageError("the question does not say how many items are wanted")
    n = int(_COUNT.unpack(content)[0])
    if not 1 <= n <= MOST_ITEMS:
        raise MessageError(f"one can ask for 1 to {MOST_ITEMS:,} items")
    return n


@dataclass(frozen=True, slots=True, repr=False)
class Recommended:
    """Items and scores, best first."""

    items: tuple[int, ...]
    scores: tuple[float, ...]

    def __repr__(self) -> str:
        return "<Recommended, redacted>"

    def encode(self) -> bytes:
        scores = [round(score, 6) for score in self.scores]
        table = {"items": list(self.items), "scores": scores}
        return json.dumps(table, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> Recommended:
        table = _table(body, {"items": list, "scores": list})
        items, scores = table["items"], table["scores"]
        if len(items) != len(scores) or len(set(map(str, items))) < len(items):
            raise MessageError("the orchestrator's answer cannot be read")
        for item, score in zip(items, scores, strict=True):
            if type(item) is not int or not 0 <= item < LARGEST:
                raise MessageError("the orchestrator's answer cannot be read")
            if type(score) is not float or not math.isfinite(score):
                raise MessageError("the orchestrator's answer cannot be read")
        return cls(tuple(items), tuple(scores))


@dataclass(frozen=True, slots=True, repr=False)
class Enrolment:
    """A user asks to be let in."""

    token: bytes
    public: bytes
    proof: bytes

    def __repr__(self) -> str:
        return "<Enrolment, redacted>"

    @classmethod
    def of(
        cls, token: bytes, identity: Identity, federation: str, orchestrator: bytes
    ) -> Enrolment:
        """By the holder of the key; `orchestrator` is the public key that it shows."""
        key = _proof_key(identity.agree(orchestrator), federation, identity.public, orchestrator)
        return cls(token, identity.public, _enrolment_mac(key, token, identity.public))

    def is_proven(self, federation: str, orchestrator: Identity) -> bool:
        """Whether it comes from whoever has the private half of the key in it."""
        try:
            shared = orchestrator.agree(self.public)
        except KeyTrouble:  # of low order, and so nobody's
            return False
        key = _proof_key(shared, federation, self.public, orchestrator.public)
        return hmac.compare_digest(_enrolment_mac(key, self.token, self.public), self.proof)

    def encode(self) -> bytes:
        parts = {"token": self.token, "public": self.public, "proof": self.proof}
        table = {name: value.hex() for name, value in parts.items()}
        return json.dumps({"protocol": PROTOCOL, **table}).encode()

    @classmethod
    def decode(cls, body: bytes) -> Enrolment:
        table = _table(body, {"protocol": int, "token": str, "public": str})
        # Earlier releases of the same protocol proved nothing.
        if table["protocol"] != PROTOCOL or "proof" not in table:
            raise VersionMismatch(
                f"this orchestrator speaks version {PROTOCOL} of the protocol with proofs of keys; "
                "install its release"
            )
        _table(body, {"proof": str})
        return cls(
            _bytes(table, "token", TOKEN_BYTES),
            _bytes(table, "public", KEY_BYTES),
            _bytes(table, "proof", _MAC_BYTES),
        )


def encode_key(orchestrator: bytes) -> bytes:
    """The answer to whoever asks with which key users prove themselves."""
    return json.dumps({"protocol": PROTOCOL, "orchestrator": orchestrator.hex()}).encode()


def decode_key(body: bytes) -> bytes:
    return _bytes(_table(body, {"orchestrator": str}), "orchestrator", KEY_BYTES)


@dataclass(frozen=True, slots=True, repr=False)
class Enrolled:
    """The orchestrator's answer."""

    given: Pass
    """The user's pass, with her number."""
    orchestrator: bytes
    """The key (X25519) with which she proves herself."""

    def __repr__(self) -> str:
        return "<Enrolled, redacted>"

    def encode(self) -> bytes:
        table = {"pass": self.given.encode().hex(), "orchestrator": self.orchestrator.hex()}
        return json.dumps(table).encode()

    @classmethod
    def decode(cls, body: bytes, federation: str, issuer: bytes, public: bytes) -> Enrolled:
        """Raises where it is not the pass of this federation's issuer for this key."""
        table = _table(body, {"pass": str, "orchestrator": str})
        given = Pass.decode(_bytes(table, "pass", PASS_BYTES))
        given.check(issuer, federation)
        if given.public != public:
            raise KeyTrouble("the orchestrator gave out a pass for another key than was sent")
        return cls(given, _bytes(table, "orchestrator", KEY_BYTES))


def _table(body: bytes, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise MessageError("the message is not JSON") from None
    if not isinstance(found, dict) or not all(
        type(found.get(name)) is kind for name, kind in kinds.items()
    ):
        raise MessageError(f"the message needs the fields {', '.join(kinds)}")
    return found


def _bytes(table: Mapping[str, Any], name: str, size: int) -> bytes:
    try:
        value = bytes.fromhex(table[name])
    except ValueError:
        value = b""
    if len(value) != size:
        raise MessageError(f"{name} must be {size} bytes in hexadecimal")
    return value


# What users and a data owner's service say to each other over HTTPS. A user shows her pass and
# gets an offer, answers it with her hello and her first sealed messages, and from then on posts
# sealed messages by the name of the session. The service answers with a `Receipt`, after what it
# tells of is on its disk.

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

UNKNOWN_SESSION = "session"
"""The word of a refusal (401) after which a user begins another session."""

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
        raise Refused(
            "malformed",
            f"the body has {start} bytes and then from 1 to {MOST_SEALED} messages of "
            f"{SEALED_BYTES} bytes each",
        )
    return [body[at : at + SEALED_BYTES] for at in range(start, len(body), SEALED_BYTES)]


# --- what the service answers ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerCard:
    """Who answers at an address. Public."""

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
        table = _owner_table(body)
        if table.get("protocol") != PROTOCOL:
            raise MessageError(
                f"the data owner speaks version {table.get('protocol')!r} of the protocol, this "
                f"program {PROTOCOL}"
            )
        name, federation = table.get("name"), table.get("federation")
        if not isinstance(name, str) or not isinstance(federation, str):
            raise _unreadable()
        return cls(federation, _count(table, "number"), name, _hex(table, "public", KEY_BYTES))


@dataclass(frozen=True, slots=True)
class OfferMade:
    """An offer of the owner's, good for one session."""

    offer: bytes
    public: bytes

    def encode(self) -> bytes:
        return json.dumps({"offer": self.offer.hex(), "public": self.public.hex()}).encode()

    @classmethod
    def decode(cls, body: bytes) -> OfferMade:
        table = _owner_table(body)
        return cls(_hex(table, "offer", OFFER_BYTES), _hex(table, "public", KEY_BYTES))


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
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
        return f"<Receipt taken={self.taken} repeated={self.repeated}, redacted>"

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
    def decode(cls, body: bytes, sent: int) -> Receipt:
        """The answer to a request of `sent` messages. Raises where it does not account for each
        of them once."""
        table = _owner_table(body)
        taken, repeated = _count(table, "taken"), _count(table, "repeated")
        listed = table.get("refused")
        if not isinstance(listed, list):
            raise _unreadable()
        refused = tuple(_one_refused(one) for one in listed)
        places = {place for place, _ in refused}
        if len(places) < len(refused) or any(place >= sent for place in places):
            raise _unreadable()
        if taken + repeated + len(refused) != sent:
            raise MessageError("the data owner's receipt is not for what was sent")
        session = _hex(table, "session", SESSION_BYTES) if "session" in table else None
        # -1 where it has nothing of her.
        return cls(_count(table, "sequence", -1), taken, repeated, refused, session)


def _one_refused(found: Any) -> tuple[int, str]:
    if not isinstance(found, list) or len(found) != 2:
        raise _unreadable()
    place, word = found
    if not isinstance(word, str) or not re.fullmatch(r"[a-z_]{1,20}", word):
        raise _unreadable()
    return _whole(place, 0), word


def _owner_table(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise _unreadable() from None
    if not isinstance(found, dict):
        raise _unreadable()
    return found


def _count(table: dict[str, Any], name: str, least: int = 0) -> int:
    return _whole(table.get(name), least)


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 64:
        raise _unreadable()
    return value


def _hex(table: dict[str, Any], name: str, size: int) -> bytes:
    try:
        value = bytes.fromhex(table[name])
    except (KeyError, TypeError, ValueError):
        value = b""
    if len(value) != size:
        raise _unreadable()
    return value


def _unreadable() -> MessageError:
    return MessageError("the data owner's answer cannot be read")
