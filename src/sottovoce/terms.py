"""The terms of a federation: what every party must know and agree on.

The server publishes them, a device keeps the ones it agreed to and refuses others. They name the
algorithm and the release with all their settings, so that what may leave a device cannot change
without its owner being asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sottovoce import config
from sottovoce.algorithms.base import CrossDevice
from sottovoce.algorithms.fpl import FPL, FPLConfig
from sottovoce.errors import ConfigError, MessageError, VersionMismatch
from sottovoce.privacy.mechanisms import Release, ShareFraction

PROTOCOL = 1
"""The version of everything that parties say to each other."""

ALGORITHMS: Mapping[str, type[FPLConfig]] = {"fpl": FPLConfig}
RELEASES: Mapping[str, type[ShareFraction]] = {"share-fraction": ShareFraction}
LARGEST_MODEL = 1 << 29
"""Bytes of a model's numbers. A device holds it in memory a few times over, and its store keeps it
as one value, which may have 10⁹ bytes."""


def named(
    table: Mapping[str, Any], kinds: Mapping[str, type[Any]], default: str, where: str
) -> Any:
    """The component that `table` names, built from the rest of the table."""
    fields = dict(table)
    name = fields.pop("name", default)
    if not isinstance(name, str) or name not in kinds:
        raise ConfigError(f"{where}.name must be one of {sorted(kinds)}, not {name!r}")
    return config.build(kinds[name], fields, where)


@dataclass(frozen=True, slots=True)
class Terms:
    federation: str
    """A name that no other federation has."""
    n_items: int
    algorithm: FPLConfig
    """With `triples` as a number: a device cannot know the others' mean."""
    release: ShareFraction

    def __post_init__(self) -> None:
        if self.n_items < 2:
            raise ConfigError(f"a federation needs at least two items, not {self.n_items}")
        if self.n_items * self.width * 4 > LARGEST_MODEL:
            raise ConfigError(
                f"a model of {self.n_items:,} items with {self.width:,} numbers each is larger "
                f"than {LARGEST_MODEL >> 20} MiB, which is the most that a device takes"
            )
        if not isinstance(self.algorithm.triples, int):
            raise ConfigError(
                "algorithm.triples must be a number in a real federation, where nobody knows how "
                "many items the others have"
            )

    @classmethod
    def of(
        cls, federation: str, n_items: int, settings: FPLConfig, triples: int, release: Release
    ) -> Terms:
        """The terms of a configuration whose number of draws was worked out to be `triples`."""
        if not isinstance(release, ShareFraction):
            raise ConfigError("this release cannot be named in the terms of a federation")
        fixed = replace(settings, configuration="", triples=triples)
        return cls(federation, n_items, fixed, release)

    @property
    def width(self) -> int:
        """Numbers per item: its vector and its bias."""
        return self.algorithm.embedding_size + 1

    @property
    def triples(self) -> int:
        return int(self.algorithm.triples)

    @property
    def max_rows(self) -> int:
        """Most items that one honest device can name in a round."""
        return min(2 * self.triples, self.n_items)

    @property
    def revealing(self) -> bool:
        """Whether a single round may tell much of a history by what it does not name, because a
        device can name more than half of all items at once."""
        return 4 * self.triples > self.n_items

    def build(self) -> CrossDevice:
        return FPL(self.algorithm, self.triples)

    def to_table(self) -> dict[str, Any]:
        algorithm = {k: v for k, v in asdict(self.algorithm).items() if v is not None}
        del algorithm["configuration"]
        return {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "n_items": self.n_items,
            "algorithm": {"name": "fpl", **algorithm},
            "release": {"name": "share-fraction", **asdict(self.release)},
        }

    @classmethod
    def from_table(cls, table: object) -> Terms:
        """From what a server published. Raises where the version differs or it makes no sense."""
        if not isinstance(table, dict):
            raise MessageError("the terms of a federation must be a table")
        spoken = table.get("protocol")
        if spoken != PROTOCOL:
            raise VersionMismatch(
                f"the server speaks version {spoken!r} of the protocol, this program version "
                f"{PROTOCOL}; install the same release of Sottovoce on both sides"
            )
        known = {"protocol", "federation", "n_items", "algorithm", "release"}
        if set(table) != known:
            raise MessageError(f"the terms of a federation must have the fields {sorted(known)}")
        federation, n_items = table["federation"], table["n_items"]
        parts = table["algorithm"], table["release"]
        if not isinstance(federation, str) or not isinstance(n_items, int):
            raise MessageError("the terms of a federation have a field of the wrong type")
        if not all(isinstance(part, dict) for part in parts):
            raise MessageError("the terms of a federation have a field of the wrong type")
        try:
            return cls(
                federation,
                n_items,
                named(parts[0], ALGORITHMS, "", "algorithm"),
                named(parts[1], RELEASES, "", "release"),
            )
        except ConfigError as error:
            raise MessageError(f"the terms of the federation make no sense: {error}") from None
        except OverflowError:
            raise MessageError("the terms of the federation have a number out of range") from None

    def digest(self) -> str:
        """Equal for equal terms, and different for different ones."""
        content = json.dumps(self.to_table(), sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
