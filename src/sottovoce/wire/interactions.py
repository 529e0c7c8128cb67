"""Sealed interactions: what a user says to a data owner, readable by that owner alone.

`SessionSender` and `SessionReceiver` share a key for one user, one owner and one session. They
promise:

- Nobody else can read an interaction, not even whether it was positive, or change a bit of it.
- A message belongs to its owner and its place in the session: given to another owner, or a second
  time, or after a later one, it is refused. A lost message stops nothing.
- Nonces are the counter of the messages, so none is used twice under a key. A session lives in
  memory alone: who starts again begins another one.
- Inside is a sequence number of the user's, by which the owner knows an interaction that was sent
  again in a later session.
- That a stream ends, or that a user leaves, looks like an interaction from outside.
- Both sides are known to each other by their long-term keys, and who learns those keys later cannot
  read what was sent before (three X25519 agreements into HKDF-SHA256; each session adds a one-time
  key of both sides, so that a session cannot be replayed either).

The length of a message and who sends to whom are open.

`SharedKey` is the variant of the DRIFT thesis, for comparison: one key per owner in the hands of
all its users, the flag in the clear. Every user can read and forge what others send, and anyone on
the way can read and flip the flag.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce.errors import KeyTrouble, MessageError

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
MOST_MESSAGES = 1 << 32
"""Under one key; far below what GCM bears."""

Kind = Literal["negative", "positive", "end", "leave"]
"""An interaction, or: the stream ends, which closes its block; the user leaves."""
_KINDS: tuple[Kind, ...] = ("negative", "positive", "end", "leave")
_PLAIN = struct.Struct("<IIqBQ")
_PAIR = struct.Struct("<II")
_PURPOSE = b"sottovoce interaction 1\0"
SEALED_BYTES = NONCE_BYTES + _PLAIN.size + TAG_BYTES
SHARED_BYTES = NONCE_BYTES + _PAIR.size + TAG_BYTES + 1


@dataclass(frozen=True, slots=True, repr=False)
class OpenedInteraction:
    """A message as the owner reads it. Private."""

    user: int
    item: int
    """0 where the message is no interaction; so is the time."""
    kind: Kind
    time: int
    sequence: int
    """The user's own count of what she said to this owner, over all sessions."""

    def __repr__(self) -> str:
        return "<OpenedInteraction, redacted>"


# --- the agreement -------------------------------------------------------------------------------


class Identity:
    """A long-term key pair of a user or an owner. The other side must have the public half from a
    source it trusts."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes | None = None) -> None:
        """A new pair from the operating system, or the pair of a stored private key."""
        if private is not None and len(private) != KEY_BYTES:
            raise KeyTrouble(f"a private key has {KEY_BYTES} bytes")
        self._private = (
            X25519PrivateKey.generate()
            if private is None
            else X25519PrivateKey.from_private_bytes(private)
        )
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return "<Identity, redacted>"

    def private_bytes(self) -> bytes:
        """To be stored; never to be sent."""
        return self._private.private_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret shared with whoever has the private half of `public`."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # of a wrong length, or of low order, with which nothing is secret
            raise KeyTrouble(
                "the other side's public key is not good; nothing was agreed"
            ) from None


class Offer:
    """The owner's side of an agreement; good for one session. `public` goes to the user."""

    __slots__ = ("_identity", "_once", "_owner", "public")

    def __init__(self, owner: int, identity: Identity) -> None:
        self._owner, self._identity = owner, identity
        self._once: Identity | None = Identity()
        self.public = self._once.public

    def __repr__(self) -> str:
        return f"<Offer of owner {self._owner}, redacted>"

    def accept(self, user: int, user_public: bytes, hello: bytes) -> SessionReceiver:
        """The session with the user of that long-term key, who answered with `hello`. That the
        answer was hers shows with the first message that opens."""
        once, self._once = self._once, None
        if once is None:
            raise KeyTrouble("the offer was used; make another one for a new session")
        secrets = (once.agree(user_public), self._identity.agree(hello), once.agree(hello))
        parties = (user_public, self._identity.public, hello, once.public)
        return SessionReceiver(_derived(secrets, user, self._owner, parties), user, self._owner)


def begin(
    user: int, identity: Identity, owner: int, owner_public: bytes, offer: bytes
) -> tuple[SessionSender, bytes]:
    """The user's side: a session with the owner of that long-term key, and the hello to send."""
    once = Identity()
    secrets = (identity.agree(offer), once.agree(owner_public), once.agree(offer))
    parties = (identity.public, owner_public, once.public, offer)
    return SessionSender(_derived(secrets, user, owner, parties), user, owner), once.public


def _derived(
    secrets: tuple[bytes, ...], user: int, owner: int, parties: tuple[bytes, ...]
) -> bytes:
    info = _PURPOSE + _pair(user, owner) + b"".join(parties)
    salt = hashlib.sha256(info).digest()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(
        b"".join(secrets)
    )


# --- a session -----------------------------------------------------------------------------------


class SessionSender:
    """Seals a user's interactions with one owner's items."""

    __slots__ = ("_cipher", "_next", "_owner", "_user")

    def __init__(self, key: bytes, user: int, owner: int) -> None:
        """With a key that no other sender has ever had: nonces are counted from 0."""
        self._cipher = _cipher(key)
        self._user, self._owner = user, _owner_bytes(owner)
        self._next = 0

    def __repr__(self) -> str:
        return "<SessionSender, redacted>"

    def seal(self, sequence: int, kind: Kind, item: int = 0, time: int = 0) -> bytes:
        if self._next >= MOST_MESSAGES:
            raise KeyTrouble("the session's key is used up; begin another session")
        try:
            plain = _PLAIN.pack(self._user, item, time, _KINDS.index(kind), sequence)
        except struct.error:
            raise MessageError("an interaction has a number that does not fit a message") from None
        nonce = self._next.to_bytes(NONCE_BYTES, "big")
        self._next += 1
        return nonce + self._cipher.encrypt(nonce, plain, self._owner + nonce)


class SessionReceiver:
    """Opens what one user sends to one owner, in the order in which it was sealed."""

    __slots__ = ("_cipher", "_owner", "_user", "last")

    def __init__(self, key: bytes, user: int, owner: int) -> None:
        self._cipher = _cipher(key)
        self._user, self._owner = user, _owner_bytes(owner)
        self.last = -1
        """The counter of the newest message that was opened."""

    def __repr__(self) -> str:
        return "<SessionReceiver, redacted>"

    def open(self, sealed: bytes) -> OpenedInteraction:
        """Raises, and changes nothing, where the message was not sealed for this session or does
        not come after those that were opened."""
        if len(sealed) != SEALED_BYTES:
            raise MessageError(f"a sealed interaction has {SEALED_BYTES} bytes")
        nonce, body = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        counter = int.from_bytes(nonce, "big")
        if counter <= self.last:
            raise MessageError("the interaction's nonce is not new; it was refused")
        try:
            plain = self._cipher.decrypt(nonce, body, self._owner + nonce)
        except InvalidTag:
            raise MessageError("the interaction was not sealed for this session") from None
        user, item, time, kind, sequence = _PLAIN.unpack(plain)
        if user != self._user or kind >= len(_KINDS):
            raise MessageError("the interaction names another user than the session's, or no kind")
        self.last = counter
        return OpenedInteraction(user, item, _KINDS[kind], time, sequence)


# --- the thesis's variant ------------------------------------------------------------------------


class SharedKey:
    """One key per owner, which all its users have; the flag travels beside the ciphertext."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        self._cipher = _cipher(key)

    def __repr__(self) -> str:
        return "<SharedKey, redacted>"

    @classmethod
    def new_key(cls) -> bytes:
        return AESGCM.generate_key(8 * KEY_BYTES)

    def seal(self, user: int, item: int, positive: bool) -> bytes:
        """Nonces are random, as users who share a key cannot share a counter."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, _pair(user, item), None) + bytes([positive])

    def open(self, sealed: bytes) -> tuple[int, int, bool]:
        """User, item and flag. A repeated message opens again, and a flipped flag is believed."""
        if len(sealed) != SHARED_BYTES or sealed[-1] > 1:
            raise MessageError(f"a sealed interaction has {SHARED_BYTES} bytes and ends in a flag")
        try:
            plain = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:-1], None)
        except InvalidTag:
            raise MessageError("the interaction was not sealed with this owner's key") from None
        user, item = _PAIR.unpack(plain)
        return user, item, bool(sealed[-1])


def _pair(one: int, other: int) -> bytes:
    try:
        return _PAIR.pack(one, other)
    except struct.error:
        raise MessageError("an interaction has a number that does not fit a message") from None


def _owner_bytes(owner: int) -> bytes:
    return _pair(owner, 0)


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise KeyTrouble(f"a session's key has {KEY_BYTES} bytes")
    return AESGCM(key)
