"""The terms of a federation: what every party must know and agree on.

The server publishes them, a device keeps the ones it agreed to and refuses others. They name the
algorithm and the release with all their settings, so that what may leave a device cannot change
without its owner being asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sottovoce import config
from sottovoce.algorithms.base import FactorModel
from sottovoce.algorithms.fcf import FCFConfig
from sottovoce.algorithms.fmf import FMFConfig
from sottovoce.algorithms.fpl import FPLConfig
from sottovoce.algorithms.uc_config import UCConfig
from sottovoce.errors import ConfigError, MessageError, VersionMismatch
from sottovoce.links import Direct, Link, Proxied, SecureSum, has_noise
from sottovoce.messages import GRID, LIMIT
from sottovoce.privacy.mechanisms import Everything, ShareFraction
from sottovoce.privacy.reports import KReports
from sottovoce.privacy.updates import Clipped, noise_scale

PROTOCOL = 2
"""The version of everything that parties say to each other."""

AlgorithmConfig = FPLConfig | FCFConfig | FMFConfig | UCConfig
ReleaseConfig = ShareFraction | Everything | KReports | Clipped
ALGORITHMS: Mapping[str, type[AlgorithmConfig]] = {
    "fpl": FPLConfig,
    "fcf": FCFConfig,
    "fmf": FMFConfig,
    "uc": UCConfig,
}
RELEASES: Mapping[str, type[ReleaseConfig]] = {
    "share-fraction": ShareFraction,
    "everything": Everything,
    "k-reports": KReports,
    "clipped": Clipped,
}
LINKS: Mapping[str, type[Link]] = {"direct": Direct, "proxy": Proxied, "secure-sum": SecureSum}
FITTING: Mapping[type[AlgorithmConfig], tuple[str, tuple[str, ...]]] = {
    FPLConfig: ("share-fraction", ("direct", "secure-sum")),
    FCFConfig: ("everything", ("direct", "secure-sum")),
    FMFConfig: ("k-reports", ("proxy",)),
    UCConfig: ("clipped", ("direct", "secure-sum")),
}
"""The release and the links that go with an algorithm, the first of them by default."""
LARGEST_MODEL = 1 << 29
"""Bytes of a model's numbers. A device holds it in memory a few times over, and its store keeps it
as one value, which may have 10⁹ bytes."""
LARGEST_MASKED = 990_000_000
"""Bytes of a masked update, which a store keeps as one value."""
_FURTHEST = 512
"""Scales of noise beyond which no number is taken for one: with the noise of the terms there is
none such in e⁵¹², with the eightfold noise of somebody who permits an eighth of their ε, in e⁶⁴."""


def named(
    table: Mapping[str, Any], kinds: Mapping[str, type[Any]], default: str, where: str
) -> Any:
    """The component that `table` names, built from the rest of the table."""
    fields = dict(table)
    name = fields.pop("name", default)
    if not isinstance(name, str) or name not in kinds:
        raise ConfigError(f"{where}.name must be one of {sorted(kinds)}, not {name!r}")
    return config.build(kinds[name], fields, where)


def name_of(part: object, kinds: Mapping[str, type[Any]]) -> str:
    """What `named` calls a component."""
    return next(name for name, kind in kinds.items() if type(part) is kind)


def check_fitting(algorithm: AlgorithmConfig, release: object, link: object) -> None:
    """Raises where these cannot work together."""
    wanted, links = FITTING[type(algorithm)]
    if type(release) is not RELEASES[wanted] or type(link) not in [LINKS[name] for name in links]:
        raise ConfigError(
            f"{name_of(algorithm, ALGORITHMS)} needs the release {wanted} and the link "
            f"{' or '.join(links)}; leave release.name and link.name out to get {wanted} and "
            f"{links[0]}"
        )
    if not isinstance(link, SecureSum):
        return
    if link.clip and isinstance(release, Clipped):
        if not link.noise:
            raise ConfigError(
                "in uc link.clip goes with link.noise alone: without noise rows count their "
                "senders, which clipping would change; release.clip limits updates there"
            )
        if isinstance(algorithm, UCConfig) and algorithm.recommender == "gnn":
            raise ConfigError(
                "link.noise is not for gnn: a device's update there depends on other users' "
                "embeddings, which clipping it does not bound; choose mf, ncf or neumf"
            )
        if release.norm != "l2":
            raise ConfigError(
                f'link.noise is for release.norm = "l2"; under "{release.norm}" devices add noise '
                "of their own, and clipping would cut it"
            )
    size = algorithm.cohort_size if isinstance(algorithm, FPLConfig | UCConfig) else "all"
    if isinstance(size, int) and size < link.min_devices:
        raise ConfigError(
            f"{size} devices are asked in a round, and a secure sum needs at least "
            f"link.min_devices = {link.min_devices}; ask more (nothing can hide in sFPL and sFPL+, "
            "which ask one)"
        )


def largest_value(release: ReleaseConfig, triples: int) -> float:
    """Largest absolute value of one number in an honest device's report."""
    noise = 0.0
    if isinstance(release, Clipped) and release.epsilon:
        least = release.hiding_epsilon or release.epsilon
        noise = _FURTHEST * noise_scale(release.clip, least) / GRID
    return LIMIT * max(1, triples) + noise


def build_algorithm(
    algorithm: AlgorithmConfig, release: ReleaseConfig, triples: int, link: Link | None = None
) -> FactorModel:
    """Both halves of an algorithm, under this release and link, for so many draws where it draws
    pairs."""
    if isinstance(algorithm, FMFConfig):
        if not isinstance(release, KReports):
            raise ConfigError("fmf needs the release k-reports")
        return algorithm.build(release.epsilons)
    if isinstance(algorithm, UCConfig):
        if not isinstance(release, Clipped):
            raise ConfigError("uc needs the release clipped")
        return algorithm.build(release.clip, release.norm, not has_noise(link))
    return algorithm.build(triples)


@dataclass(frozen=True, slots=True)
class Terms:
    federation: str
    """A name that no other federation has."""
    n_items: int
    algorithm: AlgorithmConfig
    """With `triples` as a number: a device cannot know the others' mean."""
    release: ReleaseConfig
    link: Link = field(default_factory=Direct)

    def __post_init__(self) -> None:
        check_fitting(self.algorithm, self.release, self.link)
        if self.n_items < 2:
            raise ConfigError(f"a federation needs at least two items, not {self.n_items}")
        if isinstance(self.algorithm, UCConfig):
            self._check_filters(self.algorithm)
        if self.n_rows * self.width * 4 > LARGEST_MODEL:
            raise ConfigError(
                f"a model of {self.n_rows:,} rows with {self.width:,} numbers each is larger "
                f"than {LARGEST_MODEL >> 20} MiB, which is the most that a device takes"
            )
        if self.secure_sum is not None and 8 * self.n_rows * self.width >= LARGEST_MASKED:
            raise ConfigError(
                f"a masked update of {self.n_rows:,} rows with {self.width:,} numbers each is too "
                "large; make embedding_size smaller"
            )
        if isinstance(self.algorithm, FPLConfig) and not isinstance(self.algorithm.triples, int):
            raise ConfigError(
                "algorithm.triples must be a number in a real federation, where nobody knows how "
                "many items the others have"
            )

    @classmethod
    def of(
        cls,
        federation: str,
        n_items: int,
        settings: AlgorithmConfig,
        triples: int,
        release: object,
        link: Link | None = None,
    ) -> Terms:
        """The terms of a configuration whose number of draws was worked out to be `triples`."""
        if not isinstance(release, ShareFraction | Everything | KReports | Clipped):
            raise ConfigError("this release cannot be named in the terms of a federation")
        if isinstance(settings, FPLConfig):
            settings = replace(settings, configuration="", triples=triples)
        return cls(federation, n_items, settings, release, link or Direct())

    def _check_filters(self, algorithm: UCConfig) -> None:
        algorithm.require_classes()
        if algorithm.recommender == "gnn":
            raise ConfigError(
                "gnn looks at other users' embeddings, which no server here has; in a real "
                "federation choose mf, ncf or neumf"
            )

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
        return isinstance(self.algorithm, UCConfig) and not has_noise(self.link)

    @property
    def noisy(self) -> bool:
        """Whether devices add noise to updates, from coins that serve once."""
        return isinstance(self.release, Clipped) and self.release.epsilon > 0

    @property
    def triples(self) -> int:
        """Draws of a device and round; 0 where the algorithm draws no pairs."""
        return int(self.algorithm.triples) if isinstance(self.algorithm, FPLConfig) else 0

    @property
    def reporting(self) -> KReports | None:
        """The release, where randomised reports are what leaves."""
        return self.release if isinstance(self.release, KReports) else None

    @property
    def max_rows(self) -> int:
        """Most rows that one honest device can send in a round."""
        return min(2 * self.triples, self.n_items) if self.triples else self.n_rows

    @property
    def largest_value(self) -> float:
        """Largest absolute value of one number in an honest device's report."""
        return largest_value(self.release, self.triples)

    @property
    def secure_sum(self) -> SecureSum | None:
        """The link, where the server sees sums alone."""
        return self.link if isinstance(self.link, SecureSum) else None

    @property
    def noise_limit(self) -> int:
        """The same in steps of the grid, where devices add noise, which must not be cut; else 0."""
        return int(self.largest_value * GRID) if self.noisy else 0

    @property
    def revealing(self) -> bool:
        """Whether a single round may tell much of a history: because a device can name more than
        half of all items at once and so tells by what it does not name, or because everything
        leaves. A secure sum does not change that: it rests on others than her."""
        if isinstance(self.release, KReports):
            return False
        if isinstance(self.release, Clipped):
            return not self.release.dense
        return isinstance(self.release, Everything) or 4 * self.triples > self.n_items

    def build(self) -> FactorModel:
        return build_algorithm(self.algorithm, self.release, self.triples, self.link)

    def to_table(self) -> dict[str, Any]:
        algorithm = {k: v for k, v in asdict(self.algorithm).items() if v is not None}
        algorithm.pop("configuration", None)
        return {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "n_items": self.n_items,
            "algorithm": {"name": name_of(self.algorithm, ALGORITHMS), **algorithm},
            "release": {"name": name_of(self.release, RELEASES), **asdict(self.release)},
            "link": {"name": name_of(self.link, LINKS), **_link_table(self.link)},
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
            link = {"groups": 1, **link}
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


def _link_table(link: Link) -> dict[str, Any]:
    """What was agreed to before there were groups has one sum a round, and says nothing of it."""
    table = asdict(link)
    if table.get("groups") == 1:
        del table["groups"]
    return table
