"""What a search would have cost the users of a real federation.

A search in simulation costs nobody anything beyond what reading their data has cost already. In a
real federation each training would be told, also the part of one that was given up, and users would
pay for all of them. A training is charged what it would have cost the user who pays most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Protocol

from sottovoce.experiment import Experiment
from sottovoce.privacy.accountant import DELTA, Sent, account, rounded_up
from sottovoce.privacy.central import price
from sottovoce.privacy.own_epsilon import distance
from sottovoce.privacy.statements import NOTHING
from sottovoce.runs.devices import DeviceTopology
from sottovoce.runs.topology import Topology

INSTEAD = (
    "Settings that were found on public data, and are constants in a federation's terms, cost its "
    "users nothing."
)

ORDERS: tuple[float, ...] = tuple(1.0 + 10.0 ** (k / 20.0) for k in range(-60, 101))
"""Orders at which Rényi divergences are looked at: from 1.001 to 100,001."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What trainings cost a user together: Gaussian mechanisms, pure ones, or both in turn.

    Their Rényi divergence of order λ is at most λ·squares/2 + Σ min(ε, λ·ε²/2) (Bun and Steinke
    2016)."""

    squares: float = 0.0
    """Sum of the squared distances of Gaussians, of sensitivity over noise."""
    pure: tuple[float, ...] = ()
    """ε of each pure one; infinity where nothing bounds it."""

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.squares + other.squares, self.pure + other.pure)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.squares) and all(map(math.isfinite, self.pure))

    def renyi(self, order: float) -> float:
        """Return the bound on the divergence of this order."""
        return order * self.squares / 2.0 + math.fsum(
            min(one, order * one * one / 2.0) for one in self.pure
        )

    def epsilon(self, delta: float = DELTA) -> float:
        """Return ε at this δ: exact of Gaussians alone, otherwise by the best order (Canonne,
        Kamath and Steinke 2020)."""
        if not self.bounded:
            return math.inf
        if not self.pure:
            return price(1.0 / math.sqrt(self.squares), 1, delta) if self.squares else 0.0
        found = [
            self.renyi(order)
            + math.log1p(-1.0 / order)
            - (math.log(delta) + math.log(order)) / (order - 1.0)
            for order in ORDERS
        ]
        plain = math.inf if self.squares else math.fsum(self.pure)
        return max(0.0, min(*found, plain))


@dataclass(frozen=True, slots=True)
class Charge:
    """What one training costs a user, at most. Nothing at all where nothing left."""

    bounded: bool = True
    squares: float = 0.0
    """Of the distance by which noisy sums tell of her."""
    pure: float = 0.0
    """ε of what devices add noise to themselves."""
    reports: int = 0
    report_epsilon: float = 0.0
    batch: int = 0

    def to_table(self) -> dict[str, Any]:
        """What there is of it."""
        nothing = Charge()
        names = ("bounded", "squares", "pure", "reports", "report_epsilon", "batch")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value != getattr(nothing, name)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Charge:
        return cls(**table)

    @property
    def loss(self) -> Loss:
        """Without a proxy, where reports are what leaves."""
        if not self.bounded:
            return Loss(pure=(math.inf,))
        pure = self.pure + self.reports * self.report_epsilon
        return Loss(self.squares, (pure,) if pure else ())

    @property
    def sent(self) -> Sent:
        return Sent(self.reports, self.report_epsilon, self.batch)


class Charged(Protocol):
    @property
    def charge(self) -> Charge: ...


@dataclass(frozen=True, slots=True)
class SearchCost:
    """ε for one user at δ = `delta`; infinite where nothing bounds it."""

    trainings: int
    """In which something left, those with other seeds and those that were given up included."""
    one: float
    """The dearest one by itself."""
    told: float
    """All of them, each told by itself."""
    delta: float = DELTA
    proxy: bool = False
    """Whether both hold with a proxy that keeps apart from the server."""

    def to_table(self) -> dict[str, Any]:
        figures = {"one": self.one, "told": self.told}
        shown = {name: rounded_up(v) if math.isfinite(v) else None for name, v in figures.items()}
        return {
            "trainings": self.trainings,
            **{f"epsilon_{name}": value for name, value in shown.items()},
            "delta": self.delta,
            "words": " ".join(self.words()),
        }

    def words(self) -> list[str]:
        """In sentences."""
        first = "This search was a simulation, on data that lie here."
        if not self.trainings:
            return [first, "Nothing would have left a device."]
        each = f"each of its {self.trainings:,} trainings, also those given up on the way,"
        if not math.isfinite(self.told):
            return [
                first,
                f"In a real federation {each} would tell the server something of every user, and "
                "no ε bounds what one of them tells.",
                INSTEAD,
            ]
        proxy = " with a proxy that keeps apart from the server" if self.proxy else ""
        weak = f" Above ε = {NOTHING:g} nothing is protected." if self.told > NOTHING else ""
        return [
            first,
            f"In a real federation {each} would cost: a user would pay up to "
            f"ε = {_shown(self.told)} at δ = {self.delta:g}{proxy}, where the dearest one alone "
            f"costs {_shown(self.one)}.{weak}",
            "That leaves out what it costs to tell how good a trial was, which devices would say "
            "with noise.",
            INSTEAD,
        ]


def charge_of(experiment: Experiment, topology: Topology) -> Charge:
    """What has left by now in a training, for the user who pays most."""
    if not isinstance(topology, DeviceTopology):
        return Charge(bounded=False)
    release, link = experiment.cross_device()[1:]
    devices = topology.federation.devices
    spent, sent = devices.cohort.spent, devices.cohort.sent
    if not len(sent) or not sent.any():
        return Charge()
    if release.contributing is not None:
        most, delta = float(spent.max()), release.contributing.delta
        return Charge(squares=distance(most, delta) ** 2 if most else 0.0)
    if link.noise:
        return Charge(squares=float(sent.max()) / link.noise**2)
    reports = release.reporting
    if reports is not None:
        tiers, dearest = devices.tiers(), Charge()
        for number, tier in enumerate(reports.tiers):
            rounds = int(sent[tiers == number].max(initial=0))
            found = Charge(
                reports=rounds * reports.max_reports, report_epsilon=tier.epsilon,
                batch=tier.min_devices,
            )  # fmt: skip
            dearest = max(dearest, found, key=lambda one: one.reports * one.report_epsilon)
        return dearest
    if release.adds_noise and spent.max() > 0.0:
        return Charge(pure=float(spent.max()))
    return Charge(bounded=False)


def cost_of(trainings: Sequence[Charged]) -> SearchCost:
    """Of all trainings of a search."""
    charges = [one.charge for one in trainings if one.charge != Charge()]
    losses = [one.loss for one in charges]
    if not losses:
        return SearchCost(0, 0.0, 0.0)
    dearest = max(one.epsilon(DELTA) for one in losses)
    total: Loss = reduce(add, losses)
    if any(one.reports for one in charges) and total.bounded:
        each = [account([one.sent], DELTA).with_proxy for one in charges]
        told = account([one.sent for one in charges], DELTA).with_proxy
        return SearchCost(len(losses), max(each), told, DELTA, True)
    return SearchCost(len(losses), dearest, total.epsilon(DELTA), DELTA)


def _shown(epsilon: float) -> str:
    return f"{rounded_up(epsilon):,.4g}"
