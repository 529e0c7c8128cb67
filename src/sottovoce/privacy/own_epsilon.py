"""The release of gram: one contribution to a noisy sum in each of its stages, at an ε of her own.

What it promises. Noise of one size is added to the sums (by the helper of a secure sum), measured
by the largest ε that the terms permit. A user who accepts less adds less: her contribution is
scaled by c = μ(ε_u) / μ(ε_max), where μ(ε) is the distance at which two Gaussians of variance 1 are
(ε, δ)-indistinguishable. Whether she has contributed moves all sums of a period together by at most
c/σ of their noise, in the order in which they are published (adaptive composition of Gaussians:
the stages' shares of the noise add up to 1), so that what is published is (ε_u, δ)-differentially
private for *her*, toward everybody who sees it, the server included, while the server and the
helper do not put together what they have. Neighbours: she contributes, or she does not.

c is in no message, and the masked messages of all users have one size: nobody learns who whispers.
The helper, who draws the noise, can take it off what is published: what it can tell from the sums
is bounded by nothing but the number of users in them.

What is booked. A period has several batches, and she is in each stage once, in whichever batch
she is there: batches have no contribution in common, so that each tells of her only what she added
to it. A stage costs what it adds to what she has spent in this period: the first one its own price,
the next one the rest of ε_u; whoever missed the first pays the price of the second alone. Where her
ε or the terms were others then, stages count as they left (`beyond`): what is booked is the price
of all that she has told in the period, and never less. A user who has been in all stages of a
period is not asked again in it. Another period costs her ε_u again, and all of them together stay
within her `total_epsilon`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.config import require_number, require_whole
from sottovoce.core.choice import ASKED, DrawnField, loudness
from sottovoce.core.consent import Choice, Consent, affords
from sottovoce.core.contributions import STEPS
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import CHECKED, NOISE_BY, SUMMED, Link
from sottovoce.errors import ConsentError
from sottovoce.privacy.accountant import DELTA
from sottovoce.privacy.base import RELEASES, BoundRelease, Release, Sends
from sottovoce.privacy.central import Spans, noise_for, noise_on, price
from sottovoce.rng import Streams

EPSILONS = (1e-3, 64.0)
"""Smallest and largest ε of a user that the terms may permit."""
PUBLISHED = (
    "What is published, sums and model, is bounded for each user by the ε that she chose, at δ = "
    "{delta:g}, and above ε = 10 that protects nothing. "
)
BY_HELPER = (
    "The helper adds the noise: it can take it off what is published, nobody would notice if it "
    "left it out, and toward server and helper together nothing is bounded. See "
    "`sottovoce docs privacy`."
)
BY_TWO = (
    "Toward two of the aggregators together nothing is bounded. Bounds are checked, honesty is "
    "not: whoever keeps to them may still tell what is not so. See `sottovoce docs privacy`."
)
IN_PARTS = (
    "Devices add the noise, each a part: nobody else can leave it out or take it off, while "
    "{parts} devices of a sum keep to it. Toward server and helper together a user has the noise "
    "of her own part, which is next to none. See `sottovoce docs privacy`."
)


MOST_STAGES = 8
EVERY_STAGE = (1 << MOST_STAGES) - 1


def mark_of(round: int, stages: int, batches: int) -> int:
    """What `Cohort.sent` says of a device that was in this round alone: the period, and below it
    eight bits, one for each stage that she was in."""
    period, rest = divmod(round, stages * batches)
    return period << MOST_STAGES | 1 << rest % stages


def marked(sent: NDArray[np.int64], mark: int) -> NDArray[np.int64]:
    """`sent` after a round of this mark. A new period begins with nothing done, and what comes late
    of an old one changes nothing: the order of marks does not matter."""
    same, later = (
        sent >> MOST_STAGES == mark >> MOST_STAGES,
        sent >> MOST_STAGES > mark >> MOST_STAGES,
    )
    after: NDArray[np.int64] = np.where(same, sent | mark, np.where(later, sent, mark))
    return after


def was_in(sent: NDArray[np.int64], mark: int) -> NDArray[np.bool_]:
    """Return which devices were in the stage of this mark, or in a later period, by `sent`."""
    period, theirs = mark >> MOST_STAGES, sent >> MOST_STAGES
    done: NDArray[np.bool_] = (theirs > period) | (
        (theirs == period) & (sent & mark & EVERY_STAGE != 0)
    )
    return done


@lru_cache(maxsize=4096)
def distance(epsilon: float, delta: float) -> float:
    """μ(ε): a sensitivity of 1 and noise of 1/μ are (ε, δ)."""
    return 1.0 / noise_for(epsilon, 1, delta)


def auc_permitted(epsilons: NDArray[np.floating], delta: float) -> float:
    """How well those who took part may be told, on average, where each has an ε of her own."""
    levels, which = np.unique(epsilons, return_inverse=True)
    allowed = [_below(distance(float(one), delta) / math.sqrt(2.0)) for one in levels]
    return float(np.asarray(allowed)[which].mean())


def _below(x: float) -> float:
    """Φ(x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@RELEASES.register("own-epsilon")
@dataclass(frozen=True, slots=True)
class OwnEpsilon(Release):
    """A contribution of bounded norm leaves, scaled by the ε that its user accepts."""

    sends: ClassVar[Sends] = "contributions"
    reads: ClassVar[tuple[str, ...]] = ("epsilon", "total_epsilon")
    epsilon: float = 8.0
    """The largest ε of a user: the noise is measured by it, whoever accepts less adds less."""
    delta: float = DELTA
    """The probability with which a bound ε may fail; δ."""
    parts: int = 0
    """0: the helper draws the noise. Otherwise every device adds a part of it, and so many parts
    are the whole: no single party can leave it out, or take it off what is published. It holds for
    sums with so many devices that keep to it, so that `link.min_devices` is no less; more devices
    make more noise than is needed."""

    period_days: int = 0
    """Days from a user's contribution to one period until she contributes to another, by the clock
    of her device: however fast a server moves on, her ε is for so many days. 0: none. In simulation
    there is no clock."""

    def __post_init__(self) -> None:
        require_whole("release.parts", self.parts, 0, 1 << 20)
        require_whole("release.period_days", self.period_days, 0, 36_500)
        require_number("release.epsilon", self.epsilon, *EPSILONS, above=False)
        require_number("release.delta", self.delta, 1e-12, 1e-3, above=False)

    @property
    def contributing(self) -> OwnEpsilon:
        return self

    @property
    def adds_noise(self) -> bool:
        return self.parts > 0

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of a whole period, for a sensitivity of 1."""
        return 1.0 / distance(self.epsilon, self.delta)

    def loudness(self, epsilon: float) -> float:
        """μ of whoever accepts this ε: by how much of the noise of a whole period she moves its
        sums; 0 where it permits nothing."""
        own = min(epsilon, self.epsilon)
        return distance(own, self.delta) if own >= EPSILONS[0] else 0.0

    @property
    def steps(self) -> int:
        return STEPS

    def largest_value(self, draws: int) -> float:
        return 1.0

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
    ) -> BoundContributions:
        if consent.max_reports[consent.takes_part].any():
            raise ConsentError(
                "max_reports is set, but own-epsilon sends one contribution, not randomised "
                "reports; take it out of the consent, or choose a release that does"
            )
        levels, which = _levels(consent.epsilon.astype(np.float64))
        scale = [self.loudness(one) * self.sigma for one in levels.tolist()]
        return BoundContributions(
            "own-epsilon",
            users,
            rng,
            np.minimum(scale, 1.0)[which],
            consent.total_epsilon,
            self,
            noise,
        )

    # --- how it is shown --------------------------------------------------------------------------

    def asked_for(self) -> tuple[DrawnField, ...]:
        least, most = EPSILONS[0], self.epsilon
        own = DrawnField("epsilon", "epsilon", "epsilon.own", least, most, loudness(least, most))
        return own, ASKED["total_epsilon"]

    def cost(self, choice: Choice) -> float | None:
        """Return the cost of a period under this choice."""
        own = min(choice.epsilon, self.epsilon)
        return own if choice.takes_part and own >= EPSILONS[0] else None

    def objection(self, choice: Choice, *, noisy_sums: bool = False) -> str:
        if choice.max_reports:
            return (
                "The federation asks for one contribution, not for randomised reports: nothing "
                "leaves. Choose --reports 0."
            )
        own = self.cost(choice)
        if own is None:
            return (
                "The federation asks for one contribution, of which you choose the ε, and this "
                f"choice permits none: nothing leaves. Choose --epsilon from {EPSILONS[0]:g} to "
                f"{self.epsilon:g}."
            )
        if not own <= choice.total_epsilon * (1.0 + 1e-12):
            return (
                f"A contribution would cost ε = {own:g}, and this choice permits "
                f"{choice.total_epsilon:g} in all: nothing leaves. Choose a smaller --epsilon."
            )
        return ""

    def describe(self) -> str:
        return (
            f"one contribution to noisy sums, at an ε of her own of at most {self.epsilon:g} "
            f"(δ = {self.delta:g})"
        )

    def card(self) -> str:
        return f"one masked contribution, at an ε of her own of at most {self.epsilon:g}"

    def relied_on(self, choices: Sequence[Choice]) -> str:
        own = sorted({min(c.epsilon, self.epsilon) for c in choices if c.takes_part and c.epsilon})
        return "Your setting ε = " + " or ".join(f"{one:g}" for one in own)

    @property
    def unprotected(self) -> str:
        who = IN_PARTS.format(parts=self.parts) if self.parts else BY_HELPER
        return PUBLISHED.format(delta=self.delta) + who

    def caveats(self, link: Link | None = None) -> tuple[str, ...]:
        if link is None or link.checking is None:
            return SUMMED, self.unprotected
        said = PUBLISHED.format(delta=self.delta) + NOISE_BY[link.checking.noise_by]
        return CHECKED, f"{said} {BY_TWO}"


@dataclass(frozen=True, slots=True, repr=False)
class BoundContributions(BoundRelease):
    """`OwnEpsilon` bound to the records of one cohort."""

    kind: str
    users: NDArray[np.int64]
    rng: Streams
    scale: NDArray[np.float64]
    """c of each user; 0 for who permits nothing."""
    limit: NDArray[np.float64]
    settings: OwnEpsilon
    noise: bytes = b""
    """Root of the devices' own parts of the noise."""

    def __repr__(self) -> str:
        return f"<BoundContributions devices={len(self.users)}, redacted>"

    @property
    def spends(self) -> bool:
        return True

    @property
    def contributing(self) -> BoundContributions:
        return self

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """What a period costs each user."""
        return self._prices(np.ones(len(self.users)))

    def part(self, row: int, round: int, spans: Spans) -> NDArray[np.int64]:
        """What a device adds to its contribution where noise comes in parts; `spans` are those of
        the whole, for a noise of 1 in a period."""
        settings = self.settings
        each = settings.sigma * settings.steps / math.sqrt(settings.parts)
        user = int(self.users[row]).to_bytes(8, "little", signed=True)
        own = hashlib.blake2b(user, digest_size=32, key=self.noise, person=b"part of noise")
        return noise_on([(many, size * each) for many, size in spans], own.digest(), round)

    def costs(
        self,
        round: int,
        sent: NDArray[np.int64],
        shares: Sequence[float],
        batches: int = 1,
        beyond: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """What this round adds to what each user has spent, whose stages so far are `sent`
        (`marked`); `shares` are those of the stages in 1/noise². `beyond` is what she has told in
        the period of `sent` more than these stages would tell at her ε of today (or less, below 0),
        as a share of a whole period of today."""
        mark = mark_of(round, len(shares), batches)
        done, more = _done(sent, mark), self._more(sent, mark, beyond)
        after = self._added(done | mark & EVERY_STAGE, shares, more)
        cost: NDArray[np.float64] = np.maximum(after - self._added(done, shares, more), 0.0)
        return cost

    def room(
        self,
        spent: NDArray[np.float64],
        sent: NDArray[np.int64],
        shares: Sequence[float],
        round: int | None = None,
        batches: int = 1,
        beyond: NDArray[np.float64] | None = None,
    ) -> NDArray[np.bool_]:
        """Whose limit has room for what is left of the period, of those who permit something and
        may be in this round: who was in its stage in this period, or in a later period, may not.
        Without a round: in some stage of the period in which each one was last."""
        every = (1 << len(shares)) - 1
        if round is None:
            done, more = sent & EVERY_STAGE, self._more(sent, None, beyond)
            open = done != every
        else:
            mark = mark_of(round, len(shares), batches)
            done, more = _done(sent, mark), self._more(sent, mark, beyond)
            open = ~was_in(sent, mark)
        rest = self._added(done | every, shares, more) - self._added(done, shares, more)
        fits: NDArray[np.bool_] = (self.scale > 0) & open
        return fits & affords(spent, rest, self.limit)

    def _more(
        self, sent: NDArray[np.int64], mark: int | None, beyond: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """`beyond`, of those who were in the period of this mark."""
        if beyond is None:
            return np.zeros(len(self.users))
        same = True if mark is None else sent >> MOST_STAGES == mark >> MOST_STAGES
        more: NDArray[np.float64] = np.where(same, beyond, 0.0)
        return more

    def _added(
        self, done: NDArray[np.int64], shares: Sequence[float], more: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """ε of each user's part in these stages, given by their bits, and of what she has told
        beyond them."""
        stages, which = _levels(done)
        told = [share_of(bits, shares) for bits in stages.tolist()]
        return self._prices(np.array(told)[which] + more)

    def _prices(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """ε of each user's part in sums that have this share of 1/noise²."""
        scales, a = _levels(self.scale)
        levels, b = _levels(np.maximum(share, 0.0))
        pairs, which = _levels(a * len(levels) + b)
        sigma, delta = self.settings.sigma, self.settings.delta
        each = [
            price(sigma / (c * math.sqrt(part)), 1, delta) if c and part else 0.0
            for c, part in (
                (float(scales[one // len(levels)]), float(levels[one % len(levels)]))
                for one in pairs.tolist()
            )
        ]
        found: NDArray[np.float64] = np.array(each)[which]
        return found


def _levels(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values that there are, ascending, and which one each is. Where all are alike, as often,
    nothing is sorted."""
    if len(values) and bool(np.all(values == values[0])):
        return values[:1], np.zeros(len(values), dtype=np.int64)
    levels, which = np.unique(values, return_inverse=True)
    return levels, which


def share_of(stages: int, shares: Sequence[float]) -> float:
    """Return the share of 1/noise² in these stages, given by their bits; 1 for all stages."""
    share = math.fsum(one for k, one in enumerate(shares) if stages >> k & 1)
    return 1.0 if abs(share - 1.0) <= 1e-12 else share


def beyond(
    then: Sequence[tuple[float, float]], stages: int, shares: Sequence[float], now: float
) -> float:
    """What was told in these stages of a period beyond what they tell at the loudness of `now`
    (`OwnEpsilon.loudness`), as a share of a whole period; `then` are share and loudness of each
    contribution as it left. 0, to the last bit, where nothing has changed since."""
    if not now:
        return 0.0
    told = math.fsum(share * ((mu / now) * (mu / now)) for share, mu in then)
    return told - math.fsum(one for k, one in enumerate(shares) if stages >> k & 1)


def _done(sent: NDArray[np.int64], mark: int) -> NDArray[np.int64]:
    """The stages of this mark's period that each one was in, as bits."""
    done: NDArray[np.int64] = np.where(
        sent >> MOST_STAGES == mark >> MOST_STAGES, sent & EVERY_STAGE, 0
    )
    return done
