"""The release of UC-FedRec: updates of a whole model, clipped, with or without noise.

What it promises.

- `norm="l2"` bounds how far an upload can move the model, and hides nothing: it costs infinity,
  and a limit on ε is refused unless sums of uploads have noise (`central`). Of items that she has,
  rows leave for a subset of at most π·n alone, fixed once, as in FPL.
- `norm="scalar"` is the noise of the cited works: every number is cut to ±clip and gets discrete
  Laplace noise of scale 2·clip/ε. That is ε for each number and n·ε for n of them
  (`price_per_number`), and the rows that are sent say in clear what she touched and which
  attributes she hides. In the ledger it costs infinity.
- `norm="l1"` cuts the upload as a whole to an L1 norm of clip, sends every row of the model, zeros
  included, and adds the same noise to every number: ε for the upload, whatever her items, her
  attributes and what she hides of them; T uploads cost T·ε. The scale is a little larger than
  2·clip/ε, which pays for all rounding, so that ε holds as it stands.

How much noise there is can be seen. ε comes from the terms, her own limit (`Consent.epsilon`) and
`hiding_epsilon`, which is for those who hide an attribute: whoever sees the noise then knows that
she hides one. Without `hiding_epsilon` that is hidden, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.config import require_number
from sottovoce.core.choice import ASKED, DrawnField, loudness
from sottovoce.core.consent import ALWAYS, Choice, Consent, ShareRule, affords
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Link
from sottovoce.core.messages import GRID, LIMIT, DeviceReports
from sottovoce.core.one_bit import LARGEST_EPSILON, noise_keys
from sottovoce.errors import ConfigError, ConsentError, DataError
from sottovoce.privacy.base import RELEASES, BoundRelease, Release
from sottovoce.privacy.laplace import MOST_SCALE, ROUNDING, add_laplace, add_laplace_sums
from sottovoce.privacy.mechanisms import every_positive, no_epsilon, share_subsets
from sottovoce.rng import Streams

Norm = Literal["l2", "l1", "scalar"]
MOST_OWN = 8
"""How many times the noise of the release a device may add by its owner's word."""
_FURTHEST = 512
"""Scales of noise beyond which no number is taken for one: with the noise of the terms there is
none such in e⁵¹², with the eightfold noise of somebody who permits an eighth of their ε, in e⁶⁴."""
_SPARE = Fraction(1, 1 << 16)
"""How much larger than 2·clip/ε the scale is, to pay for rounding."""
FILTERED = (
    "Hiding an attribute keeps its value out of all training, and filters pull her embedding to "
    "where they can tell nothing. That is no guarantee: other attackers may still guess better "
    "than chance, because tastes go with attributes. Nothing else is hidden from the server: item "
    "rows name what she used and are near multiples of her embedding, a filter's update tells her "
    "class of an attribute that she shares, and its absence that she hides it. Who shares any "
    "attribute sends her embedding in the update of a filter of moments, as is the default; where "
    "she alone shares it, everybody reads her class in the published filter. The ledger books an "
    "unbounded privacy cost for every upload, also where noise is added to each number alone. Who "
    "must not be read should not take part. See `sottovoce docs privacy`."
)
NOISY = (
    "Every upload has the same rows and is protected by its ε as a whole: items, attributes, and "
    "what is hidden of them. The costs of all rounds add up, and above ε = 10 that protects "
    "nothing. How much noise a device adds can be seen, so that a limit of one's own is no secret. "
    "Filters are no guarantee: other attackers may still guess better than chance. See "
    "`sottovoce docs privacy`."
)
SUMMED_FILTERS = (
    "Filters are no guarantee: other attackers may still guess better than chance, because tastes "
    "go with attributes; and where she alone of a round shares an attribute, everybody reads her "
    "class in the published filter."
)
NOISY_FILTERS = (
    "Filters are no guarantee: other attackers may still guess better than chance, because tastes "
    "go with attributes. The certificate takes the shares of an attribute's classes as public; an "
    "experiment that does not name them has counted them from the data."
)


@RELEASES.register("clipped")
@dataclass(frozen=True, slots=True)
class Clipped(Release):
    """Updates leave clipped; with an ε, also with noise."""

    reads: ClassVar[tuple[str, ...]] = ("share_positives", "epsilon", "total_epsilon")
    clip: float = 8.0
    """The largest norm of an upload; with norm="scalar", of each number."""
    norm: Norm = "l2"
    """An upload is cut by its length (l2), by the sum of its numbers (l1), or number by number."""
    epsilon: float = 0.0
    """Privacy cost of an upload (l1) or of each of its numbers (scalar); 0 adds no noise (l2)."""
    hiding_epsilon: float = 0.0
    """The same for users who hide an attribute, at most `epsilon`; 0 treats all alike."""

    def __post_init__(self) -> None:
        if self.norm not in ("l2", "l1", "scalar"):
            raise ConfigError(f'release.norm must be "l2", "l1" or "scalar", not {self.norm!r}')
        require_number("release.clip", self.clip, 1.0 / GRID, 2.0**20)
        for name in ("epsilon", "hiding_epsilon"):
            require_number(f"release.{name}", getattr(self, name), 0.0, 1e6, above=False)
        if self.norm == "l2":
            if self.epsilon or self.hiding_epsilon:
                raise ConfigError(
                    'release.norm="l2" adds no noise; leave epsilon and hiding_epsilon at 0, or '
                    'choose the norm "l1" (ε for an upload) or "scalar" (ε for each number)'
                )
            return
        if not self.epsilon:
            raise ConfigError(
                f'release.norm="{self.norm}" adds noise and needs an epsilon above 0; without '
                'noise, choose the norm "l2"'
            )
        if self.hiding_epsilon > self.epsilon:
            raise ConfigError(
                "release.hiding_epsilon must not be above release.epsilon: who hides something "
                "gets no less noise"
            )
        if self.norm == "scalar" and self.clip > LIMIT:
            raise ConfigError(f"release.clip must be at most {LIMIT:g} for each number")
        noise_scale(self.clip, self.hiding_epsilon or self.epsilon)

    @property
    def dense(self) -> bool:
        """Whether every row of the model is sent, so that rows say nothing."""
        return self.norm == "l1"

    @property
    def shows_hiding(self) -> bool:
        return self.hiding_epsilon > 0

    @property
    def kind(self) -> str:
        return f"clipped-{self.norm}"

    @property
    def clips(self) -> bool:
        return True

    @property
    def adds_noise(self) -> bool:
        return self.epsilon > 0

    @property
    def noise_bound(self) -> float:
        if not self.epsilon:
            return 0.0
        return _FURTHEST * noise_scale(self.clip, self.hiding_epsilon or self.epsilon) / GRID

    def is_revealing(self, triples: int, n_items: int) -> bool:
        return not self.dense

    def asked_for(self) -> tuple[DrawnField, ...]:
        if not self.dense:
            return (ASKED["share_positives"],)
        least, most = self.epsilon / MOST_OWN, self.epsilon
        own = DrawnField("epsilon", "epsilon", "epsilon.update", least, most, loudness(least, most))
        return own, ASKED["total_epsilon"]

    def bind(
        self,
        users: NDArray[np.int64],
        consent: Consent,
        history: Interactions,
        rng: Streams,
        noise: bytes = b"",
        *,
        noisy_sums: bool = False,
    ) -> BoundClipped:
        """`noise` is the root of the devices' private noise, 32 bytes. With `noisy_sums` somebody
        else adds noise to the sums of updates, by which a limit on ε can be kept (l2)."""
        self._require_fit(consent, noisy_sums)
        level = np.full(len(users), self.epsilon)
        if self.hiding_epsilon:
            level[consent.hidden_attributes.any(axis=1)] = self.hiding_epsilon
        if self.norm == "l1":
            # In single precision, as consent has it, so that 0.7 is no less than 0.7.
            own = consent.epsilon
            level = np.where((own > 0) & (own < level.astype(np.float32)), own, level)
        allowed = np.zeros(0, dtype=bool)
        if self.norm == "l2" and np.any(consent.share_positives[consent.takes_part] < 1.0):
            allowed = share_subsets(users, consent, history, rng)
        return BoundClipped(
            self, users, level, consent.total_epsilon, rng.child("share"),
            noise_keys(noise, users), allowed,
        )  # fmt: skip

    def objection(self, choice: Choice, *, noisy_sums: bool = False) -> str:
        if self.dense:
            return self._noisy_objection(choice)
        if math.isfinite(choice.total_epsilon) and not noisy_sums:
            return (
                "The federation sends what no ε bounds, so that it cannot keep to a limit: nothing "
                "leaves. Choose --total-epsilon inf."
            )
        if self.norm == "l2":
            return no_epsilon(choice, "no noise")
        return no_epsilon(choice, "noise to single numbers alone") or every_positive(choice)

    def _noisy_objection(self, choice: Choice) -> str:
        if choice.max_reports:
            return (
                "The federation asks for updates of its model, not for randomised reports: nothing "
                "leaves. Choose --reports 0."
            )
        if self.cost(choice) is not None:
            return ""
        return (
            f"The federation asks for an update a round at ε = {self.epsilon:g}, or at what you "
            "accept, which this choice does not permit: nothing leaves. Permit it with --epsilon "
            f"{min(self.epsilon, LARGEST_EPSILON):g}."
        )

    @property
    def as_printed(self) -> bool:
        return self.norm != "l1"

    def describe(self) -> str:
        if self.norm == "l2":
            return f"updates of the rows that were used, with an L2 norm of at most {self.clip:g}"
        own = f" ({self.hiding_epsilon:g} for those who hide something)"
        cost = f"ε = {self.epsilon:g}{own if self.hiding_epsilon else ''}"
        if self.norm == "l1":
            return (
                f"noisy updates of every row, {cost} an upload, cut to an L1 norm of {self.clip:g}"
            )
        return (
            f"noisy updates of the rows that were used, {cost} for each number, cut to "
            f"{self.clip:g}"
        )

    def card(self) -> str:
        noise = f" with noise at ε = {self.epsilon:g}" if self.epsilon else ", no noise"
        return f"updates cut to {self.clip:g}{noise}"

    def relied_on(self, choices: Sequence[Choice]) -> str:
        noise = f" with noise at ε = {self.epsilon:g}" if self.epsilon else ""
        return f"Hiding attributes{noise}"

    @property
    def unprotected(self) -> str:
        return NOISY if self.dense else FILTERED

    def caveats(self, link: Link | None = None) -> tuple[str, ...]:
        # Noise of the devices' own bounds each upload by itself, whoever sees it.
        said = link.caveats(bounded=self.dense) if link is not None else ()
        if link is None or not said:
            return (self.unprotected,)
        return *said, NOISY if self.dense else NOISY_FILTERS if link.noise else SUMMED_FILTERS

    def _require_fit(self, consent: Consent, noisy_sums: bool) -> None:
        willing = consent.takes_part
        if consent.max_reports[willing].any():
            raise ConsentError(
                f"max_reports is set, but {self.kind} sends updates, not randomised reports; take "
                "it out of the consent, or choose a release that does"
            )
        shares = consent.share_positives[willing] == 1.0
        limited = consent.epsilon[willing] > 0
        if self.dense:
            if not np.all(shares | limited):
                raise ConsentError(
                    "somebody who takes part neither shares every positive item nor accepts a "
                    "privacy cost; set epsilon, the most that an upload may cost, or "
                    "share_positives = 1 for those who take part"
                )
            least = float(consent.epsilon[willing][limited].min(initial=np.inf))
            # In single precision, as consent has it.
            if least < np.float32((self.hiding_epsilon or self.epsilon) / MOST_OWN):
                raise ConsentError(
                    f"somebody who takes part permits ε = {least:g} an upload, which is less than "
                    f"1/{MOST_OWN} of the release's: the server would refuse so much noise; permit "
                    "more, or take no part"
                )
            return
        beyond = np.isfinite(consent.total_epsilon[willing]).any() and not noisy_sums
        if limited.any() or beyond:
            raise ConsentError(
                f"epsilon{'' if noisy_sums else ' or total_epsilon'} is set, but {self.kind} adds "
                f"{'no noise' if self.norm == 'l2' else 'noise to each number alone'} and cannot "
                "keep to it; take it out of the consent, or choose a release that does"
            )
        if self.norm == "scalar" and not shares.all():
            raise ConsentError(
                "this release sends a row for every positive item, and somebody who takes part "
                "does not share them all; set share_positives = 1 for those who take part"
            )


@dataclass(frozen=True, slots=True, repr=False)
class BoundClipped(BoundRelease):
    """`Clipped` bound to the records of one cohort."""

    settings: Clipped
    users: NDArray[np.int64]
    level: NDArray[np.float64]
    """ε by which each device's noise is measured; 0 where there is none."""
    limit: NDArray[np.float64]
    rng: Streams
    noise: NDArray[np.uint32]
    allowed: NDArray[np.bool_]
    """A flag per interaction: the positives for which a row may leave; empty where all may."""

    def __repr__(self) -> str:
        return f"<BoundClipped {self.kind} devices={len(self.users)}, redacted>"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.settings.kind

    @property
    def spends(self) -> bool:
        return True

    @property
    def dense(self) -> bool:
        return self.settings.dense

    @property
    def per_row(self) -> bool:
        """Whether noise depends on which rows a device sends, so that sums do not suffice."""
        return self.settings.norm == "scalar"

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """What an upload costs each device, by what we can prove."""
        return self.level if self.dense else super(BoundClipped, self).epsilons

    def price_per_number(
        self, numbers: NDArray[np.int64] | int, rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """What an upload of so many numbers costs these devices (all of them by default) beside
        saying which rows it has. For norm="scalar": ε for each number."""
        if self.settings.norm != "scalar":
            return self.epsilons if rows is None else self.epsilons[rows]
        return np.asarray(numbers) * (self.level if rows is None else self.level[rows])

    def scales(self) -> NDArray[np.float64]:
        """Return the scale of each device's noise on one number; 0 if there is none."""
        if self.settings.norm == "l2":
            return np.zeros(len(self.users))
        levels, which = np.unique(self.level, return_inverse=True)
        each = [noise_scale(self.settings.clip, float(level)) / GRID for level in levels]
        found: NDArray[np.float64] = np.array(each)[which]
        return found

    def permits(
        self, spent: NDArray[np.float64], times: NDArray[np.int64] | int = 1
    ) -> NDArray[np.bool_]:
        return affords(spent, np.maximum(times, 1) * self.epsilons, self.limit)

    def rule(self, rows: NDArray[np.int64], rounds: NDArray[np.int64]) -> ShareRule:
        """Every update leaves, but for positives outside of a user's subset."""
        keys = self.rng.paired_keys(rounds, self.users[rows])
        return ShareRule(keys, np.full(len(rows), ALWAYS, dtype=np.uint64), self.allowed)

    def add_noise(
        self,
        reports: DeviceReports,
        rows: NDArray[np.int64],
        n_rows: int,
        width: int,
        threads: int = 1,
    ) -> DeviceReports:
        """The reports of these devices as they may leave: with a row for every row of the model
        (l1), and with noise on all numbers but the last of a row, which counts devices. Raises
        where a report is larger than its noise can hide. A round has one report of a device."""
        if self.settings.norm == "l2":
            return reports
        if len(reports) and not 0 <= int(reports.item.min()) <= int(reports.item.max()) < n_rows:
            raise DataError("a report has a row that the model does not have")
        device = self._devices(reports.sender, rows)
        values = np.ascontiguousarray(reports.values, dtype=np.int64)
        if values.shape != (len(reports), width) or width < 2:
            raise DataError(f"a report needs rows of {width} numbers, the last of which counts")
        self._require_small(values, device, len(rows))
        if self.dense:
            item = np.tile(np.arange(n_rows, dtype=np.int32), len(rows))
            every = np.zeros((len(rows), n_rows, width), dtype=np.int64)
            every[device, reports.item] = values
            every[:, :, -1] = int(GRID)
            reports = replace(
                reports,
                sender=np.repeat(self.users[rows], n_rows),
                item=item,
                values=every.reshape(-1, width),
            )
            device = np.repeat(np.arange(len(rows), dtype=np.int64), n_rows)
        else:
            reports = replace(reports, values=values.copy())
        keys, scales = self.noise[rows], self._scales(rows, n_rows * (width - 1))
        at = reports.item.astype(np.int64)
        add_laplace(reports.values, at, device, keys, scales, reports.round, width - 1, threads)
        return reports

    def add_noise_to_sums(
        self,
        sums: NDArray[np.int64],
        rows: NDArray[np.int64],
        round: int,
        threads: int = 1,
    ) -> NDArray[np.int64]:
        """The sum over these devices of what `add_noise` gives, from the sum of what it gets. What
        each of them adds cannot be checked here: `within_l1` must have been."""
        if self.settings.norm == "l2":
            return sums
        if not self.dense:
            raise ConfigError(
                f"the noise of {self.kind} depends on which rows a device sends; add it to messages"
            )
        noisy = np.array(sums, dtype=np.int64, order="C")
        if not within_l1(noisy[:, :-1], len(rows) * self.settings.clip):
            raise ConsentError("updates are larger than their noise can hide")
        noisy[:, -1] = len(rows) * int(GRID)
        keys, columns = self.noise[rows], noisy.shape[1] - 1
        add_laplace_sums(
            noisy, keys, self._scales(rows, len(noisy) * columns), round, columns, threads
        )
        return noisy

    def _scales(self, rows: NDArray[np.int64], numbers: int) -> NDArray[np.int64]:
        levels, which = np.unique(self.level[rows], return_inverse=True)
        if len(levels) and numbers * ROUNDING > levels[0] * float(_SPARE / 2):
            raise ConfigError(f"a model of {numbers:,} numbers is too large for so small an ε")
        scales = [noise_scale(self.settings.clip, float(level)) for level in levels]
        return np.array(scales, dtype=np.int64)[which]

    def _devices(self, sender: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of `rows` has sent each row of a report."""
        users = self.users[rows]
        order = np.argsort(users)
        place = np.searchsorted(users[order], sender)
        if len(sender) and (place.max() >= len(users) or np.any(users[order][place] != sender)):
            raise DataError("a report is by a device that was not asked")
        return order[place].astype(np.int64)

    def _require_small(
        self, values: NDArray[np.int64], device: NDArray[np.int64], devices: int
    ) -> None:
        size = np.abs(values[:, :-1])
        most = steps(self.settings.clip)
        if self.settings.norm == "l1":
            total = np.zeros(devices, dtype=np.int64)
            np.add.at(total, device, size.sum(axis=1))
            fits = not bool(np.any(total > most))
        else:
            fits = not bool(np.any(size > most))
        if not fits:
            raise ConsentError("an update is larger than its noise can hide; it must be clipped")


def steps(clip: float) -> int:
    """The clip in whole steps of the grid, rounded down."""
    return math.floor(Fraction(clip) * int(GRID))


def within_l1(values: NDArray[np.integer], clip: float) -> bool:
    """Whether these whole numbers of the grid keep to an L1 norm of clip together. The column that
    counts devices is not one of them."""
    return int(np.abs(values.astype(np.int64)).sum()) <= steps(clip)


def noise_scale(clip: float, epsilon: float) -> int:
    """The noise, in steps of the grid, by which two updates of norm clip cannot be told apart but
    by ε: 2·clip/ε, rounded up, and a little more for rounding elsewhere."""
    scale = math.ceil(2 * steps(clip) / Fraction(epsilon) * (1 + _SPARE))
    if scale > MOST_SCALE:
        raise ConfigError(
            f"ε = {epsilon:g} with clip = {clip:g} needs more noise than there is room for; lower "
            "the clip, or raise ε"
        )
    return scale
