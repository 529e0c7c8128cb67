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
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce.algorithms.known_rows import LARGEST
from sottovoce.errors import KeyTrouble, MessageError, VersionMismatch
from sottovoce.parties.directory import PROTOCOL
from sottovoce.parties.silo_files import TOKEN_BYTES
from sottovoce.privacy.interactions import KEY_BYTES, Identity
from sottovoce.privacy.passes import PASS_BYTES, Pass

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
