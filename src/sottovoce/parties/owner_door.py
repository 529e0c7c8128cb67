"""A data owner's door for users: offers of sessions, and sessions, in memory alone."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sottovoce.errors import KeyTrouble, MessageError
from sottovoce.privacy.interactions import Identity, Offer, Receiver
from sottovoce.privacy.passes import Pass

ID_BYTES = 16
"""Of an offer or a session."""
MOST_OFFERS, MOST_OFFERS_EACH, MOST_SESSIONS = 1 << 14, 8, 1 << 17
"""At a time, in memory; beyond it the oldest goes. A user has one session."""
ANOTHER = "somebody else is known here under the number of this pass"


class UnknownSession(MessageError):
    """No such session, or offer of one, as after a restart; the user begins another one."""


class Session(NamedTuple):
    user: int
    public: bytes
    receiver: Receiver


class Door:
    """Has a lock of its own, so that nobody who knocks waits for the disk."""

    def __init__(self, owner: int, identity: Identity) -> None:
        self._owner, self._identity = owner, identity
        self._lock = threading.Lock()
        self._offers: OrderedDict[bytes, tuple[Pass, Offer]] = OrderedDict()
        self._offers_of: dict[int, list[bytes]] = {}
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._session_of: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return "<Door, redacted>"

    def offer(self, given: Pass) -> tuple[bytes, bytes]:
        name, offer = secrets.token_bytes(ID_BYTES), Offer(self._owner, self._identity)
        with self._lock:
            own = self._offers_of.setdefault(given.user, [])
            own.append(name)
            self._offers[name] = given, offer
            # Passes are no secrets: who floods with one must not push others' offers out.
            if len(own) > MOST_OFFERS_EACH:
                self._take_offer(own[0])
            if len(self._offers) > MOST_OFFERS:
                self._take_offer(next(iter(self._offers)))
        return name, offer.public

    def accept(
        self, name: bytes, hello: bytes, first: bytes, is_hers: Callable[[int, bytes], bool]
    ) -> bytes:
        with self._lock:
            given, offer = self._take_offer(name)
        if not is_hers(given.user, given.public):
            raise KeyTrouble(ANOTHER)
        receiver = offer.accept(given.user, given.public, hello)
        receiver.open(first)
        receiver.last = -1
        session = secrets.token_bytes(ID_BYTES)
        with self._lock:
            self._close(given.user)
            self._sessions[session] = Session(given.user, given.public, receiver)
            self._session_of[given.user] = session
            if len(self._sessions) > MOST_SESSIONS:
                self._close(next(iter(self._sessions.values())).user)
        return session

    def session(self, name: bytes) -> Session | None:
        with self._lock:
            found = self._sessions.get(name)
            if found is not None:
                self._sessions.move_to_end(name)
            return found

    def open_sessions(self) -> int:
        with self._lock:
            return len(self._sessions)

    def close(self, user: int) -> None:
        """Her session and the offers made to her."""
        with self._lock:
            self._close(user)
            for name in self._offers_of.pop(user, []):
                del self._offers[name]

    def _close(self, user: int) -> None:
        name = self._session_of.pop(user, None)
        if name is not None:
            del self._sessions[name]

    def _take_offer(self, name: bytes) -> tuple[Pass, Offer]:
        found = self._offers.pop(name, None)
        if found is None:
            raise UnknownSession("there is no such offer of a session, ask for another one")
        own = self._offers_of[found[0].user]
        own.remove(name)
        if not own:
            del self._offers_of[found[0].user]
        return found
