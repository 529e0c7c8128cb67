"""The keys to which reports are sealed: a ring of them in the server's key folder.

`report-keys.json` has mode 600 and holds the newest key and those before it that may still be
needed. A round is opened with the newest key and closed with the same one, whatever was added
meanwhile. Keys that no round of the last few needs are destroyed: what was sealed to them, and may
lie in a copy somewhere, cannot be read any more by anyone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.engines.https.keys import read_secret, write_new_files
from sottovoce.engines.https.sealing import KEY_BYTES, key_id
from sottovoce.errors import KeyTrouble

REPORT_KEYS = "report-keys.json"
KEPT_ROUNDS = 3
"""A former key is kept until so many rounds have been opened without it."""
MOST_KEYS = 1000

_FORMAT = 1


@dataclass(frozen=True, slots=True, repr=False)
class ReportKey:
    private: bytes
    public: bytes

    @classmethod
    def of(cls, private: bytes) -> ReportKey:
        key = X25519PrivateKey.from_private_bytes(private)
        return cls(private, key.public_key().public_bytes_raw())

    @property
    def id(self) -> bytes:
        return key_id(self.public)

    def __repr__(self) -> str:
        return f"<ReportKey {self.id.hex()}, redacted>"


class ReportKeys:
    """The ring of one key folder. Any process may read it and add to it at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / REPORT_KEYS

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self) -> ReportKey:
        """The ring with its first key. Never over an existing one."""
        key = _new_key()
        write_new_files(self._folder, {REPORT_KEYS: _content([key])})
        return key

    def all(self) -> list[ReportKey]:
        """Oldest first; there is at least one."""
        # Once more, where the file was written over between opening and reading it.
        keys = _parsed(read_secret(self._path)) or _parsed(read_secret(self._path))
        if not keys:
            raise KeyTrouble(f"{self._path} is no ring of report keys; put the right file back")
        return keys

    def newest(self) -> ReportKey:
        """The key with which the next round is opened."""
        return self.all()[-1]

    def find(self, id: bytes) -> ReportKey:
        """The key of that name. Raises where it was destroyed or is in another copy of the ring."""
        for key in self.all():
            if key.id == id:
                return key
        raise KeyTrouble(
            f"{self._path} lacks the report key {id.hex()}, to which the reports of a round are "
            "sealed; put the right file back"
        )

    def rotate(self) -> ReportKey:
        """A new key, used from the next round on."""
        with self._locked():
            keys = self.all()
            if len(keys) >= MOST_KEYS:
                raise KeyTrouble(
                    f"{self._path} holds {len(keys)} keys that no round has used; let the server "
                    "open a round before another one is added"
                )
            self._replace([*keys, _new_key()])
            return self.newest()

    def destroy_unneeded(self, needed: Iterable[bytes]) -> list[bytes]:
        """Destroy every key that is older than all of the `needed` ones; the names of those."""
        wanted = set(needed)
        with self._locked():
            keys = self.all()
            first = min((n for n, key in enumerate(keys) if key.id in wanted), default=0)
            if first:
                self._replace(keys[first:])
            return [key.id for key in keys[:first]]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        read_secret(self._path)
        handle = os.open(self._folder / f".{REPORT_KEYS}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _replace(self, keys: Sequence[ReportKey]) -> None:
        """Whole or not at all. What the former file held is written over, as far as the disk heeds
        that."""
        fresh = f".{REPORT_KEYS}.{secrets.token_hex(4)}"
        write_new_files(self._folder, {fresh: _content(keys)})
        with self._path.open("r+b") as former:
            os.replace(self._folder / fresh, self._path)
            _sync_folder(self._folder)
            former.write(bytes(os.fstat(former.fileno()).st_size))
            former.flush()
            os.fsync(former.fileno())


def _new_key() -> ReportKey:
    return ReportKey.of(X25519PrivateKey.generate().private_bytes_raw())


def _content(keys: Sequence[ReportKey]) -> bytes:
    table = {"format": _FORMAT, "keys": [key.private.hex() for key in keys]}
    return json.dumps(table).encode() + b"\n"


def _parsed(content: bytes) -> list[ReportKey]:
    """The keys of a ring; none where it is not one."""
    try:
        table = json.loads(content)
        private = [bytes.fromhex(text) for text in table["keys"]]
        good = table["format"] == _FORMAT and all(len(key) == KEY_BYTES for key in private)
    except (ValueError, RecursionError, KeyError, TypeError):
        return []
    return [ReportKey.of(key) for key in private] if good else []


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
