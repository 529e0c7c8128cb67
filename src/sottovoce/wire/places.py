"""How a device comes without an invitation: it asks the server for a challenge, works on it for a
while, and enrols its own key with what it found.

The work is a number whose hash together with the challenge, the federation and the key begins with
enough zero bits. It is good for this key alone, can be checked by one hash, and makes a crowd of
made-up devices cost something; how little that is, docs/privacy.md says. The signature is that of
every enrolment, over the challenge in the place of an invitation's token.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.errors import MessageError
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.signing import KEY_BYTES, SIGNATURE_BYTES, is_signed

WORK_BYTES = 8
MOST_BITS = 32
"""Of zeros: more would keep a tab busy for an hour."""
_WORK, _POSSESSION = b"sottovoce work\0", b"sottovoce place\0"


@dataclass(frozen=True, slots=True, repr=False)
class PlaceRequest:
    """What a device posts to enrol with a challenge."""

    challenge: bytes
    work: bytes
    public_key: bytes
    signature: bytes

    _SIZES: ClassVar[dict[str, int]] = {
        "work": WORK_BYTES,
        "public_key": KEY_BYTES,
        "signature": SIGNATURE_BYTES,
    }

    def __repr__(self) -> str:
        return "<PlaceRequest, redacted>"

    @classmethod
    def made(
        cls, key: Ed25519PrivateKey, federation: str, challenge: bytes, work: bytes
    ) -> PlaceRequest:
        """Signed by the device whose key it is."""
        public = key.public_key().public_bytes_raw()
        signature = key.sign(_bound(_POSSESSION, federation, challenge, public))
        return cls(challenge, work, public, signature)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> PlaceRequest:
        """Raises where a part is missing or of another length."""
        names = ("challenge", *cls._SIZES)
        try:
            parts = {name: bytes.fromhex(table[name]) for name in names}
        except (KeyError, TypeError, ValueError):
            raise MessageError(f"{', '.join(names)} must be hexadecimal") from None
        for name, size in cls._SIZES.items():
            if len(parts[name]) != size:
                raise MessageError(f"{name} must be {size} bytes in hexadecimal")
        return cls(**parts)

    def to_bytes(self) -> bytes:
        parts = {name: getattr(self, name).hex() for name in ("challenge", *self._SIZES)}
        return json.dumps({"protocol": PROTOCOL, **parts}).encode()

    def is_worked(self, federation: str, bits: int) -> bool:
        """Whether so many zero bits were found for this key and challenge."""
        prefix = _bound(_WORK, federation, self.challenge, self.public_key)
        found = hashlib.sha256(prefix + self.work).digest()
        return int.from_bytes(found[:8], "big") >> (64 - bits) == 0

    def is_proven(self, federation: str) -> bool:
        """Whether the holder of the key wants this place."""
        statement = _bound(_POSSESSION, federation, self.challenge, self.public_key)
        return is_signed(self.public_key, statement, self.signature)


def worked(federation: str, challenge: bytes, public_key: bytes, bits: int) -> bytes:
    """The first number from 0 on that is work enough; about 2 to the power of `bits` are tried."""
    begun = hashlib.sha256(_bound(_WORK, federation, challenge, public_key))
    number = 0
    while True:
        work = number.to_bytes(WORK_BYTES, "little")
        tried = begun.copy()
        tried.update(work)
        if int.from_bytes(tried.digest()[:8], "big") >> (64 - bits) == 0:
            return work
        number += 1


def _bound(purpose: bytes, federation: str, challenge: bytes, public_key: bytes) -> bytes:
    """To one purpose, federation, challenge and key."""
    name = federation.encode()
    parts = [purpose, struct.pack("<I", len(name)), name, hashlib.sha256(challenge).digest()]
    return b"".join([*parts, public_key])
