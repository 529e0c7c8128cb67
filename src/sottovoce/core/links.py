"""Links: by which way a report reaches the server, and what each party sees on it.

`sees` is the sight table: for every party, the fields of every message that reaches it. A test
records what arrives and compares.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.config import require_number, require_whole
from sottovoce.core.contributions import PAIR_STEPS, STEPS, Grid
from sottovoce.core.masking import BITS
from sottovoce.core.messages import GRID
from sottovoce.core.shares import NUMBER_BYTES, Form
from sottovoce.errors import ConfigError
from sottovoce.registry import Component, Registry

Sight = Mapping[str, Mapping[str, frozenset[str]]]
"""Party → message → fields."""
LEAST_SIGMA, MOST_SIGMA = 32.0, 2.0**41
"""Bounds of the noise on sums, in steps of the grid."""
MOST_GROUPS = 64
SHARED_RECORD_BYTES = 560
"""Bytes that travel with a device's shares: its key, commitments, sealed secrets, a signature."""
MOST_SHUFFLERS = 16
"""In a chain."""
HOP_KEY_BYTES, LAYER_BYTES = 32, 48
"""Bytes of a shuffler's key, and bytes that a seal to it adds to a report."""
HOP = "hop"
"""In a sight table, every shuffler but the first one."""
SEALED_SEED_BYTES = 176
"""Bytes of a mask's seed on its way to the helper: the device's key, the sealed seed, a signature.
"""

SUMMED = (
    "The server opens the sum over all devices of a round and sees no single update; the proxy "
    "sees masks, and no update. That holds while the two do not put together what they have: "
    "together they read everything. Devices that the server has made up hide nobody. Both see who "
    "takes part in which round."
)
OPEN_SUMS = (
    "The sums themselves are not protected. A row to which one device alone has added is this "
    "device's row, and who follows the published models sees the sums, too; the more devices draw "
    "an item in a round, the fewer such rows there are. So there is no ε, and the ledger books an "
    "unbounded privacy cost for every release. Noise on the sums (link.clip and link.noise) would "
    "bound it. See `sottovoce docs privacy`."
)
NOISY_SUMS = (
    "The proxy adds noise to every sum, and every update was clipped as a whole: what the server "
    "and everybody else can tell of a user from all sums and models is bounded by the run's "
    "certificate, and above ε = 10 that protects nothing. Against server and proxy together there "
    "is no such bound, which is why the ledger books an unbounded privacy cost for every release. "
    "See `sottovoce docs privacy`."
)


class Link(Component, ABC):
    """A way to the server, as a frozen dataclass. What it does not say is as on the direct way."""

    __slots__ = ()
    sees: ClassVar[Sight]
    algorithms: ClassVar[tuple[str, ...]] = ()
    """By name, algorithms it goes with beside those that name it among theirs."""
    shows_devices: ClassVar[bool] = False
    """Whether the server sees what single devices send."""
    shows_sums: ClassVar[bool] = False
    """Whether it sees sums of what they send."""
    deployed: ClassVar[tuple[str, ...]] = ()
    """Settings that stay empty in simulation, and that a real federation must have."""

    @property
    def clip(self) -> float:
        """The largest L2 norm of an update as a whole; 0 does not limit it."""
        return 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on sums, as a multiple of `clip`; 0 where there is
        none."""
        return 0.0

    @property
    def summing(self) -> SecureSum | None:
        """Itself, where devices mask what a helper knows the masks of."""
        return None

    @property
    def adds_up(self) -> SecureSum | CheckedSum | None:
        """Itself, where the server sees sums alone, of whatever kind."""
        return self.summing or self.checking

    @property
    def checking(self) -> CheckedSum | None:
        """Itself, where aggregators check what they cannot see."""
        return None

    @property
    def mixing(self) -> Proxied | None:
        """Itself, where a proxy mixes what leaves."""
        return None

    def message_bytes(
        self, rows: NDArray[np.int64], row_bytes: int, numbers: int
    ) -> NDArray[np.int64]:
        """Return the bytes of a device's message with so many rows of the model's `numbers`."""
        return rows * row_bytes

    @property
    def layer_bytes(self) -> int:
        """That a randomised report has more on this way than its seal to the server."""
        return 0

    def check(self, algorithm: Any, release: Any) -> None:
        """Raises where this link cannot carry what these components make together."""

    def hosts(self, release: Any) -> str:
        """Why an organisation cannot host devices on this way under this release, in a sentence;
        empty where it can."""
        return ""

    # --- how it is shown --------------------------------------------------------------------------

    def describe(self) -> str:
        """Which way it is, for a report card."""
        return f"by the link {self.name}"

    @property
    def remedies(self) -> tuple[str, ...]:
        """What it has of "secure-sum" and "noise", which a report card recommends to others."""
        return ("secure-sum",) * (self.adds_up is not None) + ("noise",) * (self.noise > 0)

    def caveats(self, *, bounded: bool = False) -> tuple[str, ...]:
        """What it does not protect, a paragraph each; nothing where that is the release's to say.
        `bounded`: an ε of its own bounds each update, whoever sees it."""
        return ()

    def at(self, **deployed: str) -> Self:
        """The same with these settings of a real federation."""
        return replace(self, **deployed)  # type: ignore[type-var]

    def table(self) -> dict[str, Any]:
        """Its settings, as terms have them."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


LINKS: Registry[type[Link]] = Registry("link", "sottovoce.core.links", Link)


@LINKS.register("direct")
@dataclass(frozen=True, slots=True)
class Direct(Link):
    """Straight to the server, as in FPL's papers: it sees who sent which rows with which values."""

    shows_devices = True
    shows_sums = True
    sees: ClassVar[Sight] = MappingProxyType(
        {
            "server": {"DeviceReports": frozenset({"round", "sender", "item", "values"})},
            "device": {"ModelView": frozenset({"round", "items"})},
        }
    )

    def describe(self) -> str:
        return "straight to the server, which reads every update"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Through an organisation that hosts the devices, as on Flower: the server sees the sum over
    those of a cohort that took part, how many they were, and who is willing."""

    sees: ClassVar[Sight] = MappingProxyType(
        {
            "server": {
                "CohortAnswer": frozenset(
                    {"willing", "kept", "round", "attempt", "sum", "devices", "problem"}
                ),
                "SummedReports": frozenset({"round", "item", "sums", "devices"}),
            },
            "gateway": {"ModelView": frozenset({"round", "items"})},
        }
    )


@dataclass(frozen=True, slots=True)
class Hop:
    """A shuffler behind the first one, of another organisation than all before it. In simulation
    there is none, and everything stays empty."""

    url: str = ""
    """Its address, to which the shuffler before it turns."""
    authority: str = ""
    """Certificate authority that vouches for it (PEM)."""
    key: str = ""
    """Its public key in hexadecimal, to which devices seal their reports for it."""

    def __post_init__(self) -> None:
        given = (self.url, self.key)
        if any(given) and not all(given):
            raise ConfigError("a shuffler of link.chain needs url, authority and key")
        if self.key:
            self.public()

    def public(self) -> bytes:
        """Its key. Raises where it is none."""
        try:
            found = bytes.fromhex(self.key)
        except ValueError:
            found = b""
        if len(found) != HOP_KEY_BYTES or len(self.key) != 2 * HOP_KEY_BYTES:
            raise ConfigError(
                f"the key of a shuffler in link.chain must be {HOP_KEY_BYTES} bytes in hexadecimal"
            )
        return found


@LINKS.register("proxy")
@dataclass(frozen=True, slots=True)
class Proxied(Link):
    """Through a shuffler that strips who and when, mixes everybody's reports and cannot read them:
    the server sees the reports of a tier in an order that says nothing, and how many devices sent
    them. With a chain, through several, each of which mixes again: no report can be linked to
    another one or to a device as long as one of them is honest.

    Addresses, certificate authorities and keys are part of the terms, so that a server cannot put
    other shufflers in their place; in simulation there are none and they stay empty."""

    url: str = ""
    """Address of the first shuffler, to which devices turn."""
    authority: str = ""
    """Certificate authority that vouches for it (PEM)."""
    chain: tuple[Hop, ...] = ()
    """The shufflers behind the first one, in the order in which reports pass them."""

    deployed = ("url", "authority")
    sees: ClassVar[Sight] = MappingProxyType(
        {
            "proxy": {"BitReports": frozenset({"round", "sender", "tier"})},
            HOP: {"SealedBatch": frozenset({"round", "tier", "devices", "records"})},
            "server": {"Batch": frozenset({"round", "tier", "devices", "reports"})},
            "device": {"ModelView": frozenset({"round", "items"})},
        }
    )

    def __post_init__(self) -> None:
        if len(self.chain) >= MOST_SHUFFLERS:
            raise ConfigError(f"link.chain has at most {MOST_SHUFFLERS - 1} further shufflers")
        for what, all_of_them in (
            ("url", [_place(url) for url in (self.url, *(hop.url for hop in self.chain)) if url]),
            ("key", [hop.public() for hop in self.chain if hop.key]),
        ):
            if len(set(all_of_them)) < len(all_of_them):
                raise ConfigError(
                    f"two shufflers of the chain have the same {what}: one organisation would be "
                    "there twice, and two seals of one hide no more than one"
                )

    @property
    def mixing(self) -> Proxied:
        return self

    @property
    def shufflers(self) -> int:
        """How many there are, the first one among them."""
        return 1 + len(self.chain)

    @property
    def layer_bytes(self) -> int:
        return LAYER_BYTES * len(self.chain)

    def table(self) -> dict[str, Any]:
        """What was agreed to before there were chains says nothing of one."""
        table = super(Proxied, self).table()
        if not self.chain:
            del table["chain"]
        else:
            table["chain"] = list(table["chain"])
        return table

    def hosts(self, release: Any) -> str:
        return (
            "randomised reports go through a proxy to a server that must not know whose they are, "
            "and Flower's gateways say who sends; use `sottovoce serve server`"
        )

    def describe(self) -> str:
        if self.chain:
            return f"through a chain of {self.shufflers} shufflers that mix and cannot read reports"
        return "through a proxy that mixes reports and cannot read them"


@LINKS.register("secure-sum")
@dataclass(frozen=True, slots=True)
class SecureSum(Link):
    """No single update is visible to anyone: the server gets it masked, a proxy the seed of the
    mask, sealed to its key, and only the sum over at least `min_devices` devices is opened.

    It holds while the server and the proxy do not put together what they have. Neither can tell
    people from devices that the server has made up: where all others are such, there is no sum to
    hide in. What the sum itself tells is not hidden, but for `noise`."""

    min_devices: int = 20
    """Devices below which the proxy says nothing; on Flower gateways, each of which sends one
    message for all of its devices."""
    clip: float = 0.0
    """The largest L2 norm of an update as a whole; 0 does not limit it."""
    noise: float = 0.0
    """Standard deviation of the Gaussian noise on the sum, as a multiple of `clip`; the proxy adds
    it, so that nobody sees the sum without it. 0 adds none."""
    groups: int = 8
    """Most sums of a round, over groups of at least `min_devices` that have no device in common,
    while the server looks for a device that spoils sums; otherwise there is one. With 1 it is one
    always; terms then say nothing of it."""
    bits: int = 0
    """Bits of a number on its way: 32, 40, 48 or 64. Fewer bits have room for the sum of fewer
    devices; 0 takes as few as the federation's devices need. With 64 the terms do not mention it.
    """
    url: str = ""
    """Address of the proxy, to which the server turns; empty in simulation, like the two below."""
    authority: str = ""
    """Certificate authority that vouches for it (PEM)."""
    key: str = ""
    """The proxy's public key in hexadecimal, to which devices seal their seeds."""

    shows_sums = True
    deployed = ("url", "authority", "key")
    sees: ClassVar[Sight] = MappingProxyType(
        {
            "server": {
                "MaskedReports": frozenset({"round", "sender", "masked"}),
                "MaskSum": frozenset({"round", "devices", "masks", "bits"}),
            },
            "proxy": {"MaskSeeds": frozenset({"round", "sender", "seeds"})},
            "device": {"ModelView": frozenset({"round", "items"})},
        }
    )

    def __post_init__(self) -> None:
        require_whole("link.min_devices", self.min_devices, 2)
        require_whole("link.groups", self.groups, 1, MOST_GROUPS)
        if self.bits and self.bits not in BITS:
            raise ConfigError(f"link.bits must be one of 32, 40, 48 and 64, or 0, not {self.bits}")
        require_number("link.clip", self.clip, 0.0, 2.0**20, above=False)
        require_number("link.noise", self.noise, 0.0, 1e6, above=False)
        if self.noise and not self.clip:
            raise ConfigError(
                "link.noise is measured by link.clip, the largest norm of an update; set both"
            )
        if self.noise:
            require_sigma(self.sigma)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a number of a sum, in steps of the grid."""
        return self.noise * self.clip * GRID

    @property
    def summing(self) -> SecureSum:
        return self

    def hosts(self, release: Any) -> str:
        """Contributions may be added up before they are masked: each user's bound holds whoever
        does it, and the noise is the proxy's."""
        if release.sends == "contributions":
            return ""
        return (
            "in a secure sum every device masks its own update, and Flower's gateways see the "
            "updates of the devices they host; use `sottovoce serve server`"
        )

    def of_bits(self, bits: int) -> SecureSum:
        """The same with numbers of so many."""
        return replace(self, bits=bits)

    def message_bytes(
        self, rows: NDArray[np.int64], row_bytes: int, numbers: int
    ) -> NDArray[np.int64]:
        each = (self.bits or BITS[-1]) // 8
        return np.full(len(rows), each * numbers + SEALED_SEED_BYTES, dtype=np.int64)

    def check(self, algorithm: Any, release: Any) -> None:
        if (self.clip or self.noise) and release.sends == "contributions":
            raise ConfigError(
                f"leave link.clip and link.noise out: {algorithm.name} has a bound and noise of "
                "its own, by release.epsilon"
            )
        own = release.contributing
        if own is not None and own.parts > self.min_devices:
            raise ConfigError(
                f"release.parts = {own.parts:,} parts of noise are the whole: set link.min_devices "
                "to at least as many, or sums of fewer devices would have less"
            )
        if self.clip and release.clips:
            if not self.noise:
                raise ConfigError(
                    f"in {algorithm.name} link.clip goes with link.noise alone: without noise rows "
                    "count their senders, which clipping would change; release.clip limits updates "
                    "there"
                )
            if algorithm.needs_whole_cohort:
                raise ConfigError(
                    "link.noise is not for gnn: a device's update there depends on other users' "
                    "embeddings, which clipping it does not bound; choose mf, ncf or neumf"
                )
            if release.adds_noise:
                raise ConfigError(
                    f'link.noise is for release.norm = "l2"; under "{release.norm}" devices add '
                    "noise of their own, and clipping would cut it"
                )
        size = algorithm.asks
        if size is not None and size < self.min_devices:
            raise ConfigError(
                f"{size} devices are asked in a round, and a secure sum needs at least "
                f"link.min_devices = {self.min_devices}; ask more (nothing can hide in sFPL and "
                "sFPL+, which ask one)"
            )

    def describe(self) -> str:
        noise = f", with noise of {self.noise:g} times {self.clip:g}" if self.noise else ""
        return f"masked; sums of at least {self.min_devices:,} devices are opened{noise}"

    def caveats(self, *, bounded: bool = False) -> tuple[str, ...]:
        if bounded:
            return (SUMMED,)
        return SUMMED, NOISY_SUMS if self.noise else OPEN_SUMS

    def table(self) -> dict[str, Any]:
        """One sum a round, and 64 bits a number, go without saying."""
        table = super(SecureSum, self).table()
        if self.groups == 1:
            del table["groups"]
        if self.bits == BITS[-1]:
            del table["bits"]
        return table


def hop_party(hop: int) -> str:
    """How message observers call a shuffler by its place in the chain, from 0."""
    return f"{HOP}-{hop + 1}" if hop else "proxy"


def _place(url: str) -> str:
    """The same for addresses that lead to the same place."""
    plain = url.lower().rstrip("/")
    return plain.removesuffix(":443" if plain.startswith("https:") else ":80")


CHECKED = (
    "Three aggregators, of which the server is one, have two of three shares of every "
    "contribution each. None of them alone learns anything of it, and what is opened is the noisy "
    "sum, and of each device whether it kept to the bounds; who did not is left out. That holds "
    "while no two of the three put together what they have: together they read everything. An "
    "aggregator that does not keep to the rules can have devices left out and can spoil a sum; it "
    "reads nobody. All three see who takes part in which round. Devices that the server has made "
    "up hide nobody."
)
NOISE_BY = MappingProxyType(
    {
        "helper": (
            "The first helper adds the noise: it can take it off what is published, and nobody "
            "would notice if it left it out."
        ),
        "halves": (
            "Each of the three adds half of the noise: what is published is bounded towards each "
            "of them alone, too, and it is bounded as long as two of them add theirs."
        ),
    }
)
_PAIR_BOUND = PAIR_STEPS**2
_PAIR_LOUDNESS = 12 * _PAIR_BOUND // 10
"""Honest devices hardly notice it; one loud item beside many quiet ones is what it rules out. See
"Stuffing" in docs/privacy/gram.md for what norm, largest entry and loudness hold back together."""
_PLACE_WEIGHTS, _PLACE_UNIT = (1, 2, 4, 8), 64
"""Entries up to 15 of 64 steps: a catalogue is long, and every bit costs 4 bytes."""
_FEW, _FEW_WEIGHTS, _FEW_UNIT = 64, tuple(1 << k for k in range(12)), 1 << 12
"""Where places are few, entries may be finer, and nearly as large as the norm."""


@LINKS.register("checked-sum")
@dataclass(frozen=True, slots=True)
class CheckedSum(Link):
    """A sum that checks what nobody sees: three aggregators of three organisations, the server is
    the first, have shares of every contribution (`core.shares`). A device whose vector is beyond
    the bounds is named and left out, and the others go on.

    It holds while no two of the three put together what they have."""

    min_devices: int = 20
    """Devices below which aggregators say nothing; who is left out does not count."""
    noise_by: str = "helper"
    """Which aggregators add the noise: "helper", aggregator 1 alone, or "halves", where each of the
    three adds half of the variance. What is published is then bounded towards each of them as well,
    at 1.5 times the variance."""
    largest_pair: int = 127
    """The largest entry of a vector whose pairs are summed, of 256 to its norm. Loudness is what
    holds attackers back; a smaller entry hardly adds to that, and who has fewer head items than
    fill the norm with it (4 with 127, 26 with 50) is heard less: where catalogues are sparse, that
    is most users."""
    urls: tuple[str, ...] = ()
    """Addresses of aggregators 1 and 2, to which the server turns; empty in simulation, like the
    two below."""
    authorities: tuple[str, ...] = ()
    """Certificate authorities that vouch for them (PEM)."""
    keys: tuple[str, ...] = ()
    """Public keys of aggregators 0, 1 and 2 in hexadecimal, to which devices seal."""

    shows_sums = True
    groups: ClassVar[int] = 1
    deployed = ("urls", "authorities", "keys")
    sees: ClassVar[Sight] = MappingProxyType(
        {
            "server": {
                "SharedReports": frozenset({"round", "sender", "secrets", "travelled"}),
                "CheckParts": frozenset({"round", "aggregator", "parts"}),
                "SumPart": frozenset({"round", "aggregator", "devices", "part"}),
            },
            **{
                f"aggregator-{number}": {
                    "SharedReports": frozenset({"round", "sender", "secrets", "travelled"})
                }
                for number in (1, 2)
            },
            "device": {"ModelView": frozenset({"round", "items"})},
        }
    )

    def __post_init__(self) -> None:
        require_whole("link.min_devices", self.min_devices, 2)
        if self.noise_by not in NOISE_BY:
            raise ConfigError(f'link.noise_by is "helper" or "halves", not {self.noise_by!r}')
        require_whole("link.largest_pair", self.largest_pair, 8, PAIR_STEPS)
        for name, many in (("urls", 2), ("authorities", 2), ("keys", 3)):
            found = getattr(self, name)
            if not found:
                continue
            if len(found) != many or not all(isinstance(one, str) and one for one in found):
                raise ConfigError(f"link.{name} names {many} of them, one for each organisation")
            if len(set(found)) < many:
                raise ConfigError(
                    f"link.{name} names one organisation twice: who has two of three shares reads "
                    "everything; name three organisations"
                )

    @property
    def checking(self) -> CheckedSum:
        return self

    def form(self, places: int, pairs: bool) -> Form:
        """What devices share of a contribution, and what is checked of it."""
        if pairs:
            weights = _weights_to(self.largest_pair)
            return Form(places, weights, _PAIR_BOUND, True, _PAIR_LOUDNESS)
        if places <= _FEW:
            return Form(places, _FEW_WEIGHTS, _FEW_UNIT**2, False)
        return Form(places, _PLACE_WEIGHTS, _PLACE_UNIT**2, False)

    @property
    def largest(self) -> float:
        """The largest value of an entry that a norm of 1 permits."""
        return sum(_PLACE_WEIGHTS) / _PLACE_UNIT

    def grid(self, form: Form) -> Grid:
        """To which whole numbers contributions are cut."""
        unit = math.isqrt(form.bound)
        step = 1 if form.pairs else STEPS // unit
        return Grid(step, form.most, unit, form.loudness)

    def noise_of(self, aggregator: int) -> float:
        """Which part of the noise's standard deviation an aggregator adds."""
        if self.noise_by == "halves":
            return math.sqrt(0.5)
        return 1.0 if aggregator == 1 else 0.0

    @property
    def more_noise(self) -> float:
        """The standard deviation of all noise, where 1 is what is promised."""
        return math.sqrt(1.5) if self.noise_by == "halves" else 1.0

    def hosts(self, release: Any) -> str:
        return (
            "in a checked sum every device is checked by itself, and Flower's gateways send for "
            "many; use `sottovoce serve server`"
        )

    def message_bytes(
        self, rows: NDArray[np.int64], row_bytes: int, numbers: int
    ) -> NDArray[np.int64]:
        """`numbers` are those that are shared."""
        return np.full(len(rows), NUMBER_BYTES * numbers + SHARED_RECORD_BYTES, dtype=np.int64)

    def check(self, algorithm: Any, release: Any) -> None:
        own = release.contributing
        if own is None:
            raise ConfigError("a checked sum is for contributions; choose algorithm gram")
        if own.parts:
            raise ConfigError(
                "leave release.parts out: aggregators add the noise of a checked sum; "
                'link.noise_by = "halves" divides it among them'
            )

    def describe(self) -> str:
        noise = "one of them adds" if self.noise_by == "helper" else "each adds half of"
        return (
            f"in three shares; sums of at least {self.min_devices:,} devices are checked and "
            f"opened by three aggregators, {noise} the noise"
        )

    def caveats(self, *, bounded: bool = False) -> tuple[str, ...]:
        return (CHECKED,)


def _weights_to(most: int) -> tuple[int, ...]:
    """Return the fewest weights of bits that reach every number up to this one: powers of two, and
    the rest."""
    powers = tuple(1 << k for k in range((most + 1).bit_length() - 1))
    rest = most - sum(powers)
    return tuple(sorted((*powers, rest))) if rest else powers


def require_sigma(sigma: float) -> None:
    """Raises where there is no noise on sums of this standard deviation, in steps of the grid."""
    if not LEAST_SIGMA <= sigma <= MOST_SIGMA:
        raise ConfigError(
            f"the standard deviation of noise must lie in [{LEAST_SIGMA:g}, 2**41] steps of the "
            f"grid of 2**-24, not at {sigma:g}; change link.noise or link.clip"
        )


def has_noise(link: Link | None) -> bool:
    """Whether it is a sum to which noise is added."""
    return link is not None and link.noise > 0
