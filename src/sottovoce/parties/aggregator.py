"""An aggregator of a checked sum: has two of three shares of what every device sends, and no
vector. Three organisations have one each, the server is the first. Simulation and the services
share these rules.

A round goes like this. Devices have sent, and nobody can send any more. All three aggregators name
the set of what was sent (`said`), and each tells a coin for it; the numbers by which devices are
checked follow from set and coins, so that no device knew them when it sent. Each tells its blinded
part of the checks: for who kept to the rules they add up to 0, and everybody else is left out. Then
each tells its blinded part of the sum over the others, in which its noise is. An aggregator answers
for one set of devices in a round: from the sums over two sets that differ in one device this
device's vector would follow. Set, coins and who is kept belong together: asked again for the same
three, it says the same, and to anything else it says nothing.

What an aggregator that does not keep to this can do: have devices left out, or spoil a sum (it adds
what it likes to its part). What it cannot: read anybody. Two of them together read everything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing, FactorModel
from sottovoce.core.links import LEAST_SIGMA, CheckedSum
from sottovoce.core.messages import CheckParts, SharedReports, SumPart
from sottovoce.core.one_bit import noise_root
from sottovoce.core.running import Draws
from sottovoce.core.shares import (
    AGGREGATORS,
    CHECKS,
    Elements,
    Form,
    Pair,
    added,
    check_parts,
    opened,
    share,
    sum_parts,
    zeros,
)
from sottovoce.errors import ConfigError, MessageError, WrongSum
from sottovoce.parties.helper import (
    NEVER,
    NoiseSecret,
    check_groups,
    noise_spans,
    set_name,
    sum_name,
)
from sottovoce.privacy.base import Release
from sottovoce.privacy.central import Spans, noise_on
from sottovoce.rng import Streams

_ELEMENTS_AT_ONCE, _DEVICES_AT_ONCE = 1 << 23, 256
FURTHEST = 40.0
"""Standard deviations of noise beyond which no number is taken for one."""

Shares = Callable[[], Iterable[Pair]]
"""The shares of all devices of a round, some at a time, in the order of their set."""


def at_once(form: Form) -> int:
    """Devices whose shares are in memory together."""
    return max(1, min(_DEVICES_AT_ONCE, _ELEMENTS_AT_ONCE // form.elements))


def said_of(bound: bytes, sent: Sequence[bytes]) -> bytes:
    """The name of all that aggregators must agree on before they tell anything: what the round is
    (`bound`), and what was sent in it, whatever the order."""
    return _hashed(b"set of shares", bound, set_name(sent))


def coin_of(own: bytes, said: bytes) -> bytes:
    """An aggregator's coin for a set, from a secret of its own; the same when it is asked again."""
    return hashlib.blake2b(said, digest_size=32, key=own, person=b"coin").digest()


def agreed(said: bytes, coins: Sequence[bytes]) -> bytes:
    """What the checks follow from, and all blinding: set and coins."""
    if len(coins) != AGGREGATORS or any(len(one) != 32 for one in coins):
        raise MessageError(f"{AGGREGATORS} aggregators have a coin of 32 bytes each")
    return _hashed(b"set and coins", said, *coins)


def _hashed(person: bytes, *parts: bytes) -> bytes:
    named = hashlib.blake2b(digest_size=32, person=person)
    for part in parts:
        named.update(len(part).to_bytes(4, "little") + part)
    return named.digest()


@dataclass(frozen=True, slots=True, repr=False)
class Aggregating:
    """What an aggregator computes, given what it knows."""

    link: CheckedSum
    number: int
    own: bytes
    """From which its coins are."""
    shared: tuple[bytes, bytes]
    """With the next aggregator, and with the one before."""
    noise_secret: NoiseSecret
    algorithm: FactorModel
    release: Release

    def __repr__(self) -> str:
        return f"<Aggregating number={self.number}, redacted>"

    def form(self, round: int, numbers: int) -> Form:
        """What devices share in a round whose sum has so many numbers."""
        return form_of(self.algorithm, self.link, round, numbers)

    def checks(
        self, form: Form, agreed: bytes, shares: Shares, devices: int, threads: int = 1
    ) -> Elements:
        """Its part of what opens of each device, [devices, CHECKS]."""
        blind = zeros(self.shared, _hashed(b"checks", agreed), devices * CHECKS)
        parts = [check_parts(form, self.number, some, agreed, threads) for some in shares()]
        found = np.concatenate([np.zeros((0, CHECKS), np.uint32), *parts])
        if len(found) != devices:
            raise MessageError("the shares of a round are not as many as they were")
        return added([found, blind.reshape(found.shape)])

    def total(
        self,
        round: int,
        form: Form,
        agreed: bytes,
        shares: Shares,
        kept: NDArray[np.bool_],
        name: bytes,
        draws: Draws | None = None,
    ) -> Elements:
        """Its part of the sum over the devices that are kept, with its noise. `name` is the sum's
        (`sum_name`)."""
        named = _hashed(b"sum", agreed, np.packbits(kept).tobytes())
        parts: list[NDArray[np.integer]] = [zeros(self.shared, named, form.numbers)]
        at = 0
        for some in shares():
            parts = [added([*parts, sum_parts(form, some, kept[at : at + some.devices])])]
            at += some.devices
        if at != len(kept):
            raise MessageError("the shares of a round are not as many as they were")
        noise = self.noise(round, form.numbers, name, draws)
        return added(parts if noise is None else [*parts, noise])

    def noise(
        self, round: int, numbers: int, name: bytes, draws: Draws | None = None
    ) -> NDArray[np.int64] | None:
        """What it adds to the sum of this name, in the sum's steps; None where that is not its
        business. The name does not depend on coins: the same contributions under other coins get
        the same noise, which would otherwise average out."""
        share = self.link.noise_of(self.number)
        if not share:
            return None
        scaled = [(many, sigma * share) for many, sigma in self.spans(round, numbers)]
        return noise_on(scaled, self.noise_secret.of_sum(name), round, draws)

    def spans(self, round: int, numbers: int) -> Spans:
        """Return the noise spans of the whole noise that is promised, in steps of the sum."""
        spans = noise_spans(self.algorithm, self.release)
        if spans is None:
            raise MessageError("a checked sum is for contributions, to which aggregators add noise")
        step = self.link.grid(self.form(round, numbers)).step
        found = [(many, sigma / step) for many, sigma in spans(round, numbers)]
        if min(sigma for _, sigma in found) * self.link.noise_of(1) < LEAST_SIGMA:
            raise ConfigError(
                "the noise on a checked sum would be finer than its whole numbers; choose a "
                "smaller release.epsilon, which is the largest that a user may choose"
            )
        return found

    def sigma(self, round: int, numbers: int) -> float:
        """The largest standard deviation of all noise on a number of a sum, in its steps."""
        return self.link.more_noise * max(sigma for _, sigma in self.spans(round, numbers))


def form_of(algorithm: FactorModel, link: CheckedSum, round: int, numbers: int) -> Form:
    """What devices share in a round whose sum has so many numbers."""
    return link.form(*cast(Contributing, algorithm).contribution(round, numbers))


def check_room(form: Form, sigma: float, devices: int) -> None:
    """Raises where the field has no room for the sum of so many devices."""
    if devices > form.most_devices(sigma):
        raise ConfigError(
            f"a checked sum of this round has room for {form.most_devices(sigma):,} devices, and "
            f"{devices:,} are asked; ask fewer, or let them come in algorithm.batches"
        )


def left_out(parts: Sequence[Elements]) -> NDArray[np.bool_]:
    """Return which devices' checks do not open to 0, from all aggregators' parts."""
    if len(parts) != AGGREGATORS or len({one.shape for one in parts}) != 1:
        raise WrongSum("the aggregators' parts of the checks do not fit each other")
    return np.asarray(added(parts).any(axis=1))


def opened_sum(
    form: Form, parts: Sequence[Elements], devices: int, sigma: float
) -> NDArray[np.int64]:
    """The sum over so many devices, from all aggregators' parts, with noise of at most `sigma`.
    Raises where it cannot be one: where parts are wrong, numbers are uniform below p."""
    if len(parts) != AGGREGATORS or {one.shape for one in parts} != {(form.numbers,)}:
        raise WrongSum("the aggregators' parts of the sum do not fit each other")
    found = opened(added(parts))
    one = form.most**2 if form.pairs else form.most
    far = math.ceil(FURTHEST * sigma)
    if len(found) and (int(found.min()) < -far or int(found.max()) > devices * one + far):
        raise WrongSum(
            "what was opened is no sum of what devices may add: an aggregator has told a wrong "
            "part, or another set was shown to it"
        )
    return found


class Aggregator:
    """An aggregator in memory."""

    def __init__(self, rules: Aggregating) -> None:
        self.rules = rules
        self._answered = NEVER
        self._sent: list[SharedReports] = []
        self._names: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Aggregator {self.rules.number}, redacted>"

    def take(self, reports: SharedReports, names: Sequence[bytes]) -> None:
        """What devices send it, and a name for what each has sent."""
        if self._sent and self._sent[0].round != reports.round:
            self._sent, self._names = [], []
        self._sent.append(reports)
        self._names += names

    def said(self, round: int) -> bytes:
        return said_of(round.to_bytes(8, "little"), self._names)

    def coin(self, round: int) -> bytes:
        return coin_of(self.rules.own, self.said(round))

    def checks(
        self, round: int, numbers: int, coins: Sequence[bytes], threads: int = 1
    ) -> CheckParts:
        rules, form = self.rules, self.rules.form(round, numbers)
        named = agreed(self.said(round), coins)
        found = rules.checks(form, named, self._shares(form), len(self._names), threads)
        return CheckParts(round, rules.number, found)

    def total(
        self,
        round: int,
        numbers: int,
        coins: Sequence[bytes],
        kept: NDArray[np.bool_],
        draws: Draws | None = None,
    ) -> SumPart:
        rules, form = self.rules, self.rules.form(round, numbers)
        sent = [name for name, one in zip(self._names, kept, strict=True) if one]
        named = agreed(self.said(round), coins)
        self._answered = check_groups(rules.link, self._answered, round, [sent], named)
        name = sum_name(round.to_bytes(8, "little"), sent)
        part = rules.total(round, form, named, self._shares(form), kept, name, draws)
        return SumPart(round, rules.number, len(sent), part)

    def _shares(self, form: Form) -> Shares:
        def some() -> Iterable[Pair]:
            for reports in self._sent:
                yield pair_of(form, self.rules.number, reports.secrets, reports.travelled)

        return some


def pair_of(
    form: Form,
    number: int,
    secrets: Sequence[tuple[bytes, bytes]],
    travelled: Sequence[Elements | None] | Elements,
) -> Pair:
    """An aggregator's shares of some devices, from the secrets that it has of each. The first has
    no need of what travelled."""
    both = [
        [share(form, (number + k) % AGGREGATORS, one[k], sent) for k in range(2)]
        for one, sent in zip(secrets, travelled, strict=True)
    ]
    return Pair(*(np.stack([mine[k] for mine in both]) for k in range(2)))


def in_memory(
    link: CheckedSum, algorithm: FactorModel, release: Release, rng: Streams
) -> tuple[Aggregator, ...]:
    """A simulation's three, whose secrets repeat with its seed."""

    def secret(*names: str | int) -> bytes:
        return noise_root(rng.child(*names).root)

    pairs = [secret("aggregators", "pair", k) for k in range(AGGREGATORS)]
    return tuple(
        Aggregator(
            Aggregating(
                link,
                k,
                secret("aggregators", "coins", k),
                (pairs[k], pairs[k - 1]),
                NoiseSecret(secret("aggregator", k), simulated=True),
                algorithm,
                release,
            )
        )
        for k in range(AGGREGATORS)
    )
