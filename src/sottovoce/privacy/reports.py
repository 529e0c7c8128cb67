"""The release of FMF-LDP: k randomised one-bit reports of each device and round.

What it promises. Each report is ε-LDP by itself, whatever the device holds: its coordinate is drawn
without looking at private data, and its bit is 1 with a probability between 1/(e^ε+1) and
e^ε/(e^ε+1). A device takes part only in the tier of the largest published ε that its owner accepts,
only if she accepts k reports a round, and only while k·ε more stays within her limit for all time.
What k reports in each of T rounds cost in all is the accountant's business (`accountant`): kεT
towards whoever knows whose reports they are, much less towards a server behind an honest proxy.

The bits are randomised with ChaCha20 under a key of 256 bits that each device has to itself. The
server reads coordinates in the clear, and from a generator that can be inverted it could tell which
of them one device drew (attack A13): real devices draw them from ChaCha20, too, a simulation only
with `draws = "secret"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.choice import ASKED, LOUDNESS, DrawnField
from sottovoce.core.consent import Choice, Consent, affords
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Entries
from sottovoce.core.one_bit import ReportRule, lowest, noise_keys
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.base import RELEASES, BoundRelease, Release, Sends
from sottovoce.rng import Streams

SEALED_BYTES = 52
"""Bytes of one report on the wire: 4 for the report, 48 for its seal."""
MOST_TIERS = 255
MOST_REPORTS = 10_000
REPORTS = (
    "Each randomised report is protected by its ε alone, and the costs of all reports of all "
    "rounds add up. Towards whoever knows which reports are a user's own, because proxy and server "
    "collude or because the proxy is broken into, only the plain sum holds, and above ε = 10 that "
    "protects nothing. The smaller figure needs a proxy that keeps its word and honest others in "
    "the batch. That a device takes part, and in which tier, is not hidden from the proxy. See "
    "`sottovoce docs privacy`."
)


@dataclass(frozen=True, slots=True)
class Tier:
    """Devices that report with the same ε and are mixed with each other alone."""

    epsilon: float
    """Privacy cost of one report."""
    min_devices: int = 100
    """The proxy lets no batch of fewer devices go."""

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, int | float):
            raise ConfigError("a tier's epsilon must be a number")
        lowest(self.epsilon)
        if isinstance(self.min_devices, bool) or not isinstance(self.min_devices, int):
            raise ConfigError("a tier's min_devices must be a whole number")
        if self.min_devices < 2:
            raise ConfigError(
                f"a tier's min_devices must be at least 2, not {self.min_devices}: a batch of one "
                "device hides nobody"
            )


@RELEASES.register("k-reports")
@dataclass(frozen=True, slots=True)
class KReports(Release):
    """Randomised reports, in tiers."""

    sends: ClassVar[Sends] = "bits"
    reads: ClassVar[tuple[str, ...]] = ("epsilon", "max_reports", "total_epsilon")
    max_reports: int = 100
    """k: reports of each device and round."""
    tiers: tuple[Tier, ...] = (Tier(2.5),)
    """By ascending ε."""

    def __post_init__(self) -> None:
        k: object = self.max_reports
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST_REPORTS:
            raise ConfigError(
                f"max_reports must be a whole number from 1 to {MOST_REPORTS:,}, not {k!r}"
            )
        object.__setattr__(self, "tiers", tuple(self.tiers))
        if not all(isinstance(tier, Tier) for tier in self.tiers):
            raise ConfigError("tiers must be a list of tables with epsilon and min_devices")
        steps = np.diff([tier.epsilon for tier in self.tiers])
        if not 1 <= len(self.tiers) <= MOST_TIERS or np.any(steps <= 0):
            raise ConfigError(
                f"a release needs one to {MOST_TIERS} tiers, by ascending epsilon, each once"
            )

    @property
    def epsilons(self) -> NDArray[np.float64]:
        return np.array([tier.epsilon for tier in self.tiers])

    def asked_for(self) -> tuple[DrawnField, ...]:
        names = [name for _, name in LOUDNESS]
        tiers = [float(tier.epsilon) for tier in self.tiers]
        steps = tuple(zip(tiers, names, strict=False)) if len(tiers) <= len(names) else ()
        k = self.max_reports
        return (
            DrawnField("epsilon", "epsilon", "epsilon.report", 0.0, tiers[-1], steps),
            DrawnField("max_reports", "count", most=k, steps=((0, "none"), (k, "all"))),
            ASKED["total_epsilon"],
        )

    def tier_of(self, consent: Consent) -> NDArray[np.int32]:
        """The tier of each device: the largest ε that its owner accepts; -1 where there is none,
        where she accepts fewer than k reports, or where she has chosen what this release cannot
        give."""
        # Single precision rounds 0.7 up; nobody's choice is exceeded by more than that.
        tier = np.searchsorted(self.epsilons.astype(np.float32), consent.epsilon, side="right") - 1
        fits = consent.max_reports >= self.max_reports
        fits &= (consent.share_positives == 0) & ~consent.hidden_attributes.any(axis=1)
        return np.where(fits, tier, -1).astype(np.int32)

    @property
    def reporting(self) -> KReports:
        return self

    @property
    def as_printed(self) -> bool:
        """Several tiers are ours."""
        return len(self.tiers) == 1

    def is_revealing(self, triples: int, n_items: int) -> bool:
        return False

    def bind(
        self,
        users: NDArray[np.int64],
        consent: Consent,
        history: Interactions,
        rng: Streams,
        noise: bytes = b"",
        *,
        noisy_sums: bool = False,
    ) -> BoundReports:
        willing = consent.takes_part
        if consent.hidden_attributes[willing].any():
            raise ConsentError(
                "hidden_attributes is set, but k-reports hides no attribute; take it out of the "
                "consent, or choose a release that does"
            )
        if consent.share_positives[willing].any():
            raise ConsentError(
                "share_positives is set, but k-reports lets nothing leave but randomised reports; "
                "leave it at 0, or choose a release that shares"
            )
        return BoundReports(
            self, users, self.tier_of(consent), consent.total_epsilon, rng.child("reports"),
            noise_keys(noise, users),
        )  # fmt: skip

    def objection(self, choice: Choice, *, noisy_sums: bool = False) -> str:
        if self.cost(choice) is not None:
            return ""
        if choice.share_positives:
            return (
                "The federation asks for randomised reports and takes no share of positive-item "
                "updates: nothing leaves until the share is 0. Choose --share-positives 0."
            )
        k, least = self.max_reports, self.tiers[0].epsilon
        return (
            f"The federation asks for {k:,} report{'s' * (k != 1)} a round at an ε of {least:g} or "
            "more each, which this choice does not permit: nothing leaves. Permit it with "
            f"--reports {k} --epsilon {least:g}."
        )

    def describe(self) -> str:
        tiers = ", ".join(f"{t.epsilon:g} (≥ {t.min_devices:,} devices)" for t in self.tiers)
        return f"{self.max_reports:,} randomised reports a round at ε = {tiers}"

    def card(self) -> str:
        return f"k = {self.max_reports:,} randomised reports a round at ε = {self._tiers()} each"

    def relied_on(self, choices: Sequence[Choice]) -> str:
        return f"Your setting of k = {self.max_reports} reports a round at ε = {self._tiers()} each"

    def _tiers(self) -> str:
        return " or ".join(f"{tier.epsilon:g}" for tier in self.tiers)

    @property
    def unprotected(self) -> str:
        return REPORTS


@dataclass(frozen=True, slots=True, repr=False)
class BoundReports(BoundRelease):
    """`KReports` bound to the records of one cohort."""

    settings: KReports
    users: NDArray[np.int64]
    tier: NDArray[np.int32]
    limit: NDArray[np.float64]
    rng: Streams
    noise: NDArray[np.uint32]
    kind: str = "k-reports"

    def cost(self) -> NDArray[np.float64]:
        """What a round costs each device: k·ε of its tier; 0 for those in none."""
        each = self.settings.max_reports * self.settings.epsilons
        return np.where(self.tier >= 0, each[self.tier], 0.0)

    @property
    def spends(self) -> bool:
        return True

    @property
    def reporting(self) -> BoundReports:
        return self

    @property
    def epsilons(self) -> NDArray[np.float64]:
        return self.cost()

    def permits(
        self, spent: NDArray[np.float64], times: NDArray[np.int64] | int = 1
    ) -> NDArray[np.bool_]:
        """Devices that are in a tier and whose owner's limit leaves room for so many rounds."""
        cost = np.maximum(times, 1) * self.cost()
        return affords(spent, cost, self.limit) & (self.tier >= 0)

    def entries(self, rows: NDArray[np.int64], round: int) -> Entries:
        """A ledger row for each of these devices."""
        tiers, n, k = self.settings.tiers, len(rows), self.settings.max_reports
        batch = np.array([tier.min_devices for tier in tiers], dtype=np.int64)
        none = np.zeros(n, dtype=np.int32)
        return Entries(
            kind=self.kind,
            user=self.users[rows],
            round=np.full(n, round, dtype=np.int64),
            positive_rows=none,
            negative_rows=none,
            bytes=np.full(n, k * SEALED_BYTES, dtype=np.int64),
            epsilon=self.cost()[rows],
            reports=np.full(n, k, dtype=np.int32),
            report_epsilon=self.settings.epsilons[self.tier[rows]],
            batch=batch[self.tier[rows]],
        )

    def report_rule(self, rows: NDArray[np.int64], round: int, scale: float) -> ReportRule:
        """What the algorithm's kernels need to draw and randomise these devices' reports."""
        lows = np.array([lowest(tier.epsilon) for tier in self.settings.tiers], dtype=np.uint64)
        return ReportRule(
            keys=self.rng.child(round).keys(self.users[rows]),
            noise=self.noise[rows],
            round=round,
            low=lows[self.tier[rows]],
            reports=self.settings.max_reports,
            scale=scale,
        )
