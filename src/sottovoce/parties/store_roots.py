"""The two keys from which a store's users draw: what others may see, and private coins.

A draw depends on its key, the user and the round. Under other terms a round's number comes again,
with another model: the same coin for two values would tell how they differ, and no ε would bound
what that reveals; the same draws would tell that two reports are one device's. So every terms have
keys of their own, derived from the store's. Both have 256 bits from the operating system, but in a
trial, which has the draws and coins of the simulation.
"""

from __future__ import annotations

import hashlib
import secrets

from sottovoce.one_bit import noise_root
from sottovoce.parties.store_file import StoreFile
from sottovoce.rng import SECRET_BYTES, SecretStreams, Streams, streams_of

NOISE_BYTES = 32
_DRAWS, _FORMER, _COINS = "root-key", "former-root-key", "noise-root"


def first_roots(root_key: int | None) -> dict[str, bytes]:
    """Of a new store, by name; a trial gives a root key."""
    if root_key is None:
        return {_DRAWS: secrets.token_bytes(SECRET_BYTES), _COINS: secrets.token_bytes(NOISE_BYTES)}
    return {_DRAWS: streams_of(root_key).root_bytes(), _COINS: noise_root(root_key)}


def streams(file: StoreFile, era: int) -> Streams:
    """What is drawn under the `era`-th terms. Which positives may ever leave is drawn once for all
    terms."""
    former, root = _read(file, _FORMER), _streams(_read(file, _DRAWS))
    if not isinstance(root, SecretStreams) or not (era or former):
        return root
    now = root.child("terms", era) if era else root
    return now.with_lasting(_streams(former) if former else root)


def coins(file: StoreFile, era: int) -> bytes:
    """The root of the private coins under the `era`-th terms, 32 bytes."""
    root = _read(file, _COINS)
    if not root:  # a store of a former release
        with file.transaction():
            root = _read(file, _COINS) or secrets.token_bytes(NOISE_BYTES)
            _write(file, _COINS, root)
    if era == 0:
        return root
    place = b"terms" + era.to_bytes(8, "little")
    return hashlib.blake2b(place, key=root, digest_size=NOISE_BYTES).digest()


def renew(file: StoreFile) -> None:
    """From now on all is drawn from new keys. Only what may ever leave is still drawn from the
    first one: a second choice would let more leave than its owner permits."""
    with file.transaction():
        _renew_draws(file)
        _write(file, _COINS, secrets.token_bytes(NOISE_BYTES))


def renew_weak(file: StoreFile) -> None:
    """A store of a former release has a key of 64 bits, which could be computed from what was sent,
    and gets a new one. A trial keeps the key that it was given."""
    if _is_weak(file):
        with file.transaction():
            if _is_weak(file):
                _renew_draws(file)


def _is_weak(file: StoreFile) -> bool:
    key = _read(file, _DRAWS)
    return len(key) < SECRET_BYTES and _read(file, _COINS) != noise_root(_number(key))


def _renew_draws(file: StoreFile) -> None:
    if not _read(file, _FORMER):
        _write(file, _FORMER, _read(file, _DRAWS))
    _write(file, _DRAWS, secrets.token_bytes(SECRET_BYTES))


def _streams(key: bytes) -> Streams:
    return streams_of(_number(key))


def _number(key: bytes) -> int:
    return int.from_bytes(key, "little")


def _read(file: StoreFile, name: str) -> bytes:
    row = file.row("SELECT value FROM meta WHERE name = ?", [name])
    return b"" if row is None else bytes(row[0])


def _write(file: StoreFile, name: str, key: bytes) -> None:
    file.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", [name, key])
