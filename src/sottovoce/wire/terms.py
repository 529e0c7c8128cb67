"""The terms of a federation: what every party must know and agree on.

The server publishes them, a device keeps the ones it agreed to and refuses others. They name the
algorithm and the release with all their settings, so that what may leave a device cannot change
without its user being asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from sottovoce import config
from sottovoce.algorithms.base import ALGORITHMS, AlgorithmSettings, FactorModel
from sottovoce.core.links import LINKS, Direct, Link, SecureSum, has_noise
from sottovoce.core.masking import BITS
from sottovoce.core.messages import GRID
from sottovoce.core.shares import NUMBER_BYTES
from sottovoce.errors import ConfigError, MessageError
from sottovoce.privacy.base import RELEASES, Release
from sottovoce.privacy.reports import KReports
from sottovoce.registry import Component, Registry
from sottovoce.wire.frames import PROTOCOL, SAME_RELEASE, check_protocol

T = TypeVar("T")

LARGEST_MODEL = 1 << 29
"""Bytes of a model's numbers. A device holds it in memory a few times over, and its store keeps it
as one value, which may have 10⁹ bytes."""
LARGEST_MASKED = 990_000_000
"""Bytes of a masked update, which a store keeps as one value."""


def named(table: Mapping[str, Any], kinds: Registry[type[T]], default: str, where: str) -> T:
    """The component that `table` names, built from the rest of the table."""
    fields = dict(table)
    name = fields.pop("name", default)
    if not isinstance(name, str) or name not in kinds:
        raise ConfigError(f"{where}.name must be one of {sorted(kinds)}, not {name!r}{kinds.hint}")
    return config.build(kinds[name], fields, where)


def check_fitting(algorithm: AlgorithmSettings, release: Release, link: Link) -> None:
    """Raises where these cannot work together, or where one of them was never registered."""
    if algorithm.family != "devices":
        raise ConfigError(f"{algorithm.name} has data owners, and no server for devices")
    for kinds, component in ((ALGORITHMS, algorithm), (RELEASES, release), (LINKS, link)):
        kinds.require(component)
    wanted, links = algorithm.releases, algorithm.links
    fits = [
        component.name in known or algorithm.name in component.algorithms
        for component, known in ((release, wanted), (link, links))
    ]
    if not all(fits):
        raise ConfigError(
            f"{algorithm.name} needs the release {' or '.join(wanted)} and the link "
            f"{' or '.join(links)}; leave release.name and link.name out to get {wanted[0]} and "
            f"{links[0]}"
        )
    link.check(algorithm, release)


@dataclass(frozen=True, slots=True)
class Terms:
    federation: str
    """A name that no other federation has."""
    n_items: int
    algorithm: AlgorithmSettings
    """With `triples` as a number: a device cannot know the others' mean."""
    release: Release
    link: Link = field(default_factory=Direct)

    def __post_init__(self) -> None:
        check_fitting(self.algorithm, self.release, self.link)
        if self.n_items < 2:
            raise ConfigError(f"a federation needs at least two items, not {self.n_items}")
        self.algorithm.check_terms()
        if self.n_rows * self.width * 4 > LARGEST_MODEL:
            raise ConfigError(
                f"a model of {self.n_rows:,} rows with {self.width:,} numbers each is larger "
                f"than {LARGEST_MODEL >> 20} MiB, which is the most that a device takes"
            )
        if self.secure_sum is not None and self.most_numbers * self.bits // 8 >= LARGEST_MASKED:
            raise ConfigError(
                f"a masked update of {self.most_numbers:,} numbers is too large; make "
                "embedding_size smaller"
            )

        if self.link.checking is not None:
            form = self.link.checking.form(self.n_items + 1, False)  # raises where it has no room
            if form.elements * NUMBER_BYTES >= LARGEST_MASKED:
                raise ConfigError(f"{self.n_items:,} items are too many for a checked sum")

    @classmethod
    def of(
        cls,
        federation: str,
        n_items: int,
        settings: AlgorithmSettings,
        triples: int,
        release: Release,
        link: Link | None = None,
    ) -> Terms:
        """The terms of a configuration whose number of draws was worked out to be `triples`."""
        return cls(federation, n_items, settings.in_terms(triples), release, link or Direct())

    @property
    def width(self) -> int:
        """Numbers per row: a vector and, in FPL, a bias; in UC-FedRec, a place for counting."""
        return self.algorithm.width

    @property
    def n_rows(self) -> int:
        """Rows of the model: one per item and, in UC-FedRec, those of its networks."""
        return self.algorithm.model_rows(self.n_items)

    @property
    def counts_senders(self) -> bool:
        """Whether the last number of a row in a report says 1, for its sender."""
        return self.algorithm.counts_senders and not has_noise(self.link)

    @property
    def noisy(self) -> bool:
        """Whether devices add noise to updates, from coins that serve once."""
        return self.release.adds_noise

    @property
    def triples(self) -> int:
        """Draws of a device and round; 0 where the algorithm draws no pairs."""
        return self.algorithm.draws

    @property
    def reporting(self) -> KReports | None:
        """The release, where randomised reports are what leaves."""
        return self.release.reporting

    @property
    def max_rows(self) -> int:
        """Most rows that one honest device can send in a round."""
        return min(2 * self.triples, self.n_items) if self.triples else self.n_rows

    @property
    def largest_value(self) -> float:
        """Largest absolute value of one number in an honest device's report."""
        return self.release.largest_value(self.triples)

    @property
    def secure_sum(self) -> SecureSum | None:
        """The link, where the server sees sums alone."""
        return self.link.summing

    @property
    def chained(self) -> bool:
        """Whether reports pass more than one shuffler."""
        return self.link.mixing is not None and bool(self.link.mixing.chain)

    @property
    def bits(self) -> int:
        """Bits of a masked number."""
        return (self.secure_sum and self.secure_sum.bits) or BITS[-1]

    @property
    def most_numbers(self) -> int:
        """The largest number of values in a device's masked message in any round."""
        return self.algorithm.most_numbers(self.n_items)

    @property
    def contributes(self) -> bool:
        """Whether contributions to sums that are opened once are what leaves."""
        return self.release.contributing is not None

    @property
    def noise_limit(self) -> int:
        """The same in steps of the grid, where devices add noise, which must not be cut; else 0."""
        return int(self.largest_value * GRID) if self.noisy else 0

    @property
    def revealing(self) -> bool:
        """Whether a single round may tell much of a history: because a device can name more than
        half of all items at once and so tells by what it does not name, or because everything
        leaves. A secure sum does not change that: it rests on others than her."""
        return self.release.is_revealing(self.triples, self.n_items)

    def build(self) -> FactorModel:
        return self.algorithm.build_under(self.release, self.link, self.triples)

    def to_table(self) -> dict[str, Any]:
        settings = {k: v for k, v in _fields(self.algorithm).items() if v is not None}
        settings.pop("configuration", None)
        return {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "n_items": self.n_items,
            "algorithm": {"name": self.algorithm.name, **settings},
            "release": {"name": self.release.name, **_fields(self.release)},
            "link": {"name": self.link.name, **self.link.table()},
        }

    @classmethod
    def from_table(cls, table: object) -> Terms:
        """From what a server published. Raises where the version differs or it makes no sense."""
        if not isinstance(table, dict):
            raise MessageError("the terms of a federation must be a table")
        check_protocol(table.get("protocol"), "the server speaks", SAME_RELEASE)
        known = {"protocol", "federation", "n_items", "algorithm", "release", "link"}
        if set(table) != known:
            raise MessageError(f"the terms of a federation must have the fields {sorted(known)}")
        federation, n_items = table["federation"], table["n_items"]
        parts = table["algorithm"], table["release"], table["link"]
        if not isinstance(federation, str) or not isinstance(n_items, int):
            raise MessageError("the terms of a federation have a field of the wrong type")
        if not all(isinstance(part, dict) for part in parts):
            raise MessageError("the terms of a federation have a field of the wrong type")
        link = parts[2]
        if link.get("name") == "secure-sum":
            link = {"groups": 1, "bits": 64, **link}
        try:
            return cls(
                federation,
                n_items,
                named(parts[0], ALGORITHMS, "", "algorithm"),
                named(parts[1], RELEASES, "", "release"),
                named(link, LINKS, "", "link"),
            )
        except ConfigError as error:
            raise MessageError(f"the terms of the federation make no sense: {error}") from None
        except OverflowError:
            raise MessageError("the terms of the federation have a number out of range") from None

    def digest(self) -> str:
        """Equal for equal terms, and different for different ones."""
        content = json.dumps(self.to_table(), sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _fields(component: Component) -> dict[str, Any]:
    """The settings of a component, which is a dataclass."""
    return asdict(component)  # type: ignore[call-overload, no-any-return]
