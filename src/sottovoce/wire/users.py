"""What a user and the orchestrator of a DRIFT federation say to each other over HTTPS.

    GET  /v1/key        the orchestrator's key, with which users prove themselves
    POST /v1/enrol      a token, the user's public key and the proof that she has its private half
                        → her pass, and the orchestrator's key
    GET  /v1/directory  the signed directory; with If-None-Match, 304 if it has not changed
    POST /v1/recommend  how many → items and scores, best first; also items that she has seen, which
                        the orchestrator does not know
    POST /v1/leave      → 204; her row is gone, and her number is nobody's any more
    GET  /v1/rows       the rows of all items, for users who rank at home; with If-None-Match, 304
                        if they have not changed
    POST /v1/vector     at a data owner that keeps its users' vectors: a question → the asker's own

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
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sottovoce.algorithms.drift.messages import LARGEST
from sottovoce.errors import KeyTrouble, MessageError, VersionMismatch
from sottovoce.wire.fields import Fields
from sottovoce.wire.frames import DRIFT_PROTOCOLS, ITEM_ROWS, PROTOCOL, USER_QUESTION
from sottovoce.wire.interactions import KEY_BYTES, Identity
from sottovoce.wire.passes import PASS_BYTES, Pass
from sottovoce.wire.silo_files import TOKEN_BYTES

ENROL, DIRECTORY, KEY = "/v1/enrol", "/v1/directory", "/v1/key"
RECOMMEND, LEAVE = "/v1/recommend", "/v1/leave"
VECTOR, ROWS = "/v1/vector", "/v1/rows"
NONCE_BYTES = 16
PROOF_SECONDS = 300
"""How far the clocks of user and orchestrator may be apart."""
MOST_ITEMS = 100_000
"""A user cannot ask for more at once."""
LONGEST = 1024
"""Bytes of anything that a user sends."""

Purpose = Literal["recommend", "leave", "vector", "enrol"]
_COUNT = struct.Struct("<I")
_MAC_BYTES = 32
QUESTION_BYTES = USER_QUESTION.size + PASS_BYTES + _MAC_BYTES
"""Bytes of a question without content."""
_PURPOSE = b"sottovoce users 1\0"
_ANSWER = "the orchestrator's answer"
Floats = NDArray[np.float32]


# --- proofs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class UserQuestion:
    """What a user asks; read, but not yet believed."""

    given: Pass
    time: int
    nonce: bytes
    content: bytes
    _signed: bytes
    _mac: bytes

    def __repr__(self) -> str:
        return "<UserQuestion, redacted>"

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
    signed = USER_QUESTION.pack(int(now), os.urandom(NONCE_BYTES)) + given.encode() + content
    return signed + _mac(key, purpose, signed)


def read_question(body: bytes) -> UserQuestion:
    """Raises where this is no question."""
    begin, stop = USER_QUESTION.size + PASS_BYTES, len(body) - _MAC_BYTES
    time, nonce = USER_QUESTION.unpack(body)
    if stop < begin:
        raise MessageError("the question is too short")
    given = Pass.decode(body[USER_QUESTION.size : begin])
    return UserQuestion(given, time, nonce, body[begin:stop], body[:stop], body[stop:])


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
        fields = Fields.of_json(body, _ANSWER)
        items, scores = fields.of("items", list), fields.of("scores", list)
        good = len(items) == len(scores) == len(set(map(str, items)))
        for item, score in zip(items, scores, strict=False):
            good &= type(item) is int and 0 <= item < LARGEST
            good &= type(score) is float and math.isfinite(score)
        if not good:
            raise MessageError(f"{_ANSWER} cannot be read")
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
        fields = Fields.of_json(body)
        if fields.of("protocol", int) not in DRIFT_PROTOCOLS:
            raise VersionMismatch(
                f"this orchestrator speaks version {PROTOCOL} of the protocol; install its release"
            )
        sizes = {"token": TOKEN_BYTES, "public": KEY_BYTES, "proof": _MAC_BYTES}
        return cls(*(fields.hex(name, size) for name, size in sizes.items()))


def encode_key(orchestrator: bytes) -> bytes:
    """The answer to whoever asks with which key users prove themselves."""
    return json.dumps({"protocol": PROTOCOL, "orchestrator": orchestrator.hex()}).encode()


def decode_key(body: bytes) -> bytes:
    return Fields.of_json(body, _ANSWER).hex("orchestrator", KEY_BYTES)


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
        fields = Fields.of_json(body, _ANSWER)
        given = Pass.decode(fields.hex("pass", PASS_BYTES))
        given.check(issuer, federation)
        if given.public != public:
            raise KeyTrouble("the orchestrator gave out a pass for another key than was sent")
        return cls(given, fields.hex("orchestrator", KEY_BYTES))


# --- ranking at home -----------------------------------------------------------------------------


def encode_vector(row: Floats | None, size: int) -> bytes:
    told = np.zeros(size, dtype="<f4") if row is None else row.astype("<f4")
    return bytes([row is not None]) + told.tobytes()


def decode_vector(body: bytes, size: int) -> Floats | None:
    """Nothing if the owner keeps none."""
    if len(body) != 1 + 4 * size or body[0] > 1:
        raise MessageError("the data owner's answer cannot be read")
    row = np.frombuffer(body, "<f4", offset=1).astype(np.float32)
    if not np.isfinite(row).all():
        raise MessageError("the data owner's answer holds numbers that are not finite")
    return row if body[0] else None


def encode_item_rows(rows: Floats) -> bytes:
    return ITEM_ROWS.pack(*rows.shape) + rows.astype("<f4").tobytes()


def longest_rows(items: int, size: int) -> int:
    """Bytes of the rows of so many items."""
    return ITEM_ROWS.size + 4 * items * size


def decode_item_rows(body: bytes, most: int, size: int) -> Floats:
    """Decode rows of at most `most` items, each of `size` numbers."""
    items, width = ITEM_ROWS.unpack(body)
    if width != size or items > most or len(body) != longest_rows(items, size):
        raise MessageError(f"{_ANSWER} cannot be read")
    rows = np.frombuffer(body, "<f4", offset=ITEM_ROWS.size).astype(np.float32)
    if not np.isfinite(rows).all():
        raise MessageError(f"{_ANSWER} holds numbers that are not finite")
    return rows.reshape(items, size)
