"""The folder of an aggregator of a checked sum (`sum_folder`), and what the server has as the first
of the three.

Beside what `sum_folder` says: `coins.secret` (from which its coins are), `shares.db` (what devices
have shared in the present round), `aggregator.json` (address and process of a running one).
The server has the same secrets in its key folder, and a token for each of the two others.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.core.links import SHARED_RECORD_BYTES, CheckedSum
from sottovoce.core.shares import AGGREGATORS
from sottovoce.errors import KeyTrouble, ServiceError, UsageError
from sottovoce.parties.aggregator import Aggregating
from sottovoce.parties.helper import NoiseSecret
from sottovoce.stores.file import SQLiteFile
from sottovoce.stores.keys import read_private_key, read_secret, write_new_files
from sottovoce.stores.private import private_folder, stamp, unstamp
from sottovoce.stores.sum_folder import (
    SumFolder,
    SumIntroduction,
    begin_folder,
    init_folder,
    introduced,
    public_of,
    read_noise,
)
from sottovoce.wire.shared import SharedRecord, pair_secrets
from sottovoce.wire.terms import Terms

COINS_SECRET, SHARES = "coins.secret", "shares.db"
OTHERS = tuple(range(1, AGGREGATORS))
"""Aggregators that are not the server."""
_KEY, _COINS, FIRST_NOISE = "aggregator.key", "aggregator-coins.secret", "aggregator-noise.secret"
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, repr=False)
class AggregatorIntroduction(SumIntroduction):
    number: int
    """Which of the three it is."""

    who: ClassVar[str] = "aggregator"
    sums: ClassVar[str] = "checked sum"
    command: ClassVar[str] = "aggregator"

    @property
    def link(self) -> CheckedSum:
        return checked_link(self.terms)

    @property
    def key(self) -> str:
        return self.link.keys[self.number]

    def more(self) -> dict[str, int]:
        return {"number": self.number}

    @classmethod
    def of(cls, terms: Terms, token: str, **more: Any) -> Self:
        if set(more) != {"number"} or type(more["number"]) is not int:
            raise ValueError("the number of the aggregator is missing")
        if more["number"] not in OTHERS:
            raise ValueError("there is no such aggregator")
        return cls(terms, token, more["number"])


def checked_link(terms: Terms) -> CheckedSum:
    """The link of terms that name three aggregators. Raises where they do not."""
    link = terms.link.checking
    if link is None or not (link.keys and link.urls and link.authorities):
        raise UsageError(
            f"the federation {terms.federation} has no checked sum with three aggregators; "
            "nothing is to be aggregated there"
        )
    return link


@dataclass(frozen=True, slots=True, repr=False)
class AggregatorFolder(SumFolder[AggregatorIntroduction]):
    party: ClassVar[str] = "aggregator"

    def under(self, introduction: AggregatorIntroduction) -> AggregatorFolder:
        """The same folder with other terms."""
        return AggregatorFolder(self.path, introduction)

    def rules(self) -> Aggregating:
        """What it computes by, from its keys. Raises where the terms name others."""
        self.require_key()
        own = read_private_key(self.path / COINS_SECRET)
        introduced, noise = self.introduction, self.noise_secret()
        return rules_of(introduced.terms, introduced.number, self.seal_key(), own, noise)

    def shares(self) -> SharesFile:
        place = self.path / SHARES
        return SharesFile(place, make=not place.exists())


def rules_of(
    terms: Terms, number: int, key: X25519PrivateKey, own: bytes, noise: NoiseSecret
) -> Aggregating:
    shared = pair_secrets(terms, number, key)
    link = checked_link(terms)
    return Aggregating(link, number, own, shared, noise, terms.build(), terms.release)


def init_aggregator(path: Path, hosts: Sequence[str] = ()) -> str:
    """Make the keys of an aggregator, for its owner alone; its public key, which goes into the
    terms."""
    return init_folder(path, hosts, {COINS_SECRET: _secret()})


def create_aggregator(path: Path, introduction: AggregatorIntroduction) -> AggregatorFolder:
    """A folder with keys becomes that of a federation, once and for all."""
    return begin_folder(AggregatorFolder(path, introduction))


def open_aggregator(path: Path) -> AggregatorFolder:
    """A folder that `create_aggregator` made. Raises with one sentence where it is none."""
    return AggregatorFolder(path, introduced(path, AggregatorIntroduction))


def _secret() -> bytes:
    return secrets.token_bytes(32).hex().encode() + b"\n"


# --- the server, which is the first of them -------------------------------------------------------


def init_first(keys: Path) -> str:
    """Make what a server needs as an aggregator, in its key folder, unless it is there; its public
    key, which goes into the terms."""
    if not (keys / _KEY).exists():
        private_folder(keys)
        key = X25519PrivateKey.generate()
        contents = {token_file(number): _secret() for number in OTHERS}
        contents |= {_COINS: _secret(), FIRST_NOISE: _secret()}
        contents[_KEY] = key.private_bytes_raw().hex().encode() + b"\n"
        write_new_files(keys, contents)
    return public_of(_first_key(keys))


def first_rules(terms: Terms, keys: Path) -> tuple[Aggregating, X25519PrivateKey]:
    """What the server computes by as an aggregator, and the key to which devices seal. Raises where
    the terms name another one."""
    key = _first_key(keys)
    if checked_link(terms).keys[0] != public_of(key):
        raise KeyTrouble(
            f"the terms of the federation {terms.federation} name another key than that of "
            f"{keys / _KEY}: devices would seal to somebody else; put the right file back"
        )
    own, noise = read_private_key(keys / _COINS), read_noise(keys / FIRST_NOISE)
    return rules_of(terms, 0, key, own, noise), key


def token_file(number: int) -> str:
    return f"aggregator-{number}.token"


def aggregator_token(keys: Path, number: int) -> str:
    """Return the token by which aggregator `number` knows the server."""
    return read_secret(keys / token_file(number)).decode("ascii", "replace").strip()


def aggregator_introduction(terms: Terms, keys: Path, number: int) -> AggregatorIntroduction:
    """What the operator of aggregator `number` is given, from the server's folder."""
    return AggregatorIntroduction(terms, aggregator_token(keys, number), number)


def _first_key(keys: Path) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(read_private_key(keys / _KEY))


# --- what devices have shared ---------------------------------------------------------------------


class SharesFile(SQLiteFile):
    """Submissions of the present round by what they are bound to and by name: records, in which
    secrets stay sealed, and what travelled beside."""

    schema = """
        CREATE TABLE shares (
            bound BLOB NOT NULL,
            name BLOB NOT NULL,
            round INTEGER NOT NULL,
            device BLOB NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (bound, name)
        );
        CREATE INDEX shares_by_round ON shares (round);
        """
    application_id = 0x53564147
    name = "the file of shares"
    kind = "file of shares"
    error = ServiceError
    version_error = ServiceError

    def keep(self, bound: bytes, round: int, sent: Sequence[tuple[SharedRecord, bytes]]) -> None:
        """They are on the disk when this returns; those that are there stay. What was kept of
        earlier rounds is deleted."""
        rows = []
        for record, travelled in sent:
            name = record.name
            body = stamp(record.content + travelled, "shares", bound.hex(), name.hex())
            rows.append((bound, name, round, record.device, body))
        with self.transaction():
            self.write("DELETE FROM shares WHERE round < ?", (round,))
            self.write_many("INSERT OR IGNORE INTO shares VALUES (?, ?, ?, ?, ?)", rows)

    def devices(self, bound: bytes) -> dict[bytes, bytes]:
        """The device of each submission, by name."""
        found = self.rows("SELECT name, device FROM shares WHERE bound = ?", (bound,))
        return {bytes(name): bytes(device) for name, device in found}

    def some(
        self, bound: bytes, names: Sequence[bytes], many: int
    ) -> Iterator[list[tuple[SharedRecord, bytes]]]:
        """These submissions in this order, so many at a time."""
        for at in range(0, len(names), min(many, _AT_ONCE)):
            part = names[at : at + min(many, _AT_ONCE)]
            marks = ", ".join("?" * len(part))
            sql = f"SELECT name, body FROM shares WHERE bound = ? AND name IN ({marks})"
            found = {bytes(name): bytes(body) for name, body in self.rows(sql, (bound, *part))}
            yield [self._read(bound, name, found.get(name, b"")) for name in part]

    def _read(self, bound: bytes, name: bytes, body: bytes) -> tuple[SharedRecord, bytes]:
        content = unstamp(body, "shares", bound.hex(), name.hex())
        if not content:
            raise ServiceError(
                f"{self.path} is damaged, or lacks what it had; the round cannot be opened: have "
                "the server skip it"
            )
        record = SharedRecord.of(content[:SHARED_RECORD_BYTES])
        return record, content[SHARED_RECORD_BYTES:]
