"""The helper of a secure sum: knows masks, and no update. Simulation and the service (services)
share its rules.

It answers for one set of devices in a round, whatever it is asked: from the sums over two sets that
differ in one device this device's update would follow. Where the terms permit it, that set may come
in groups that have no device in common, each of which could be a set by itself: so a server finds
out who spoils sums, and every device is still in one sum of a round at most. The same groups in the
same order get the same answers, noise included, so that a server that was killed can go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing, FactorModel
from sottovoce.core.links import CheckedSum, SecureSum
from sottovoce.core.masking import BITS, Words, sum_masks, words_of
from sottovoce.core.messages import MaskSeeds, MaskSum
from sottovoce.core.running import Draws, weights
from sottovoce.errors import MessageError
from sottovoce.privacy.base import Release
from sottovoce.privacy.central import Spans, noise_on

GROUPED_ROUNDS = 64
"""Rounds in groups for which there is room at first."""
REGAINED_AFTER = 4
"""Rounds with one sum after which there is room for another one in groups."""


@dataclass(frozen=True, slots=True, repr=False)
class NoiseSecret:
    """The secret from which a helper or an aggregator derives the noise of its sums."""

    key: bytes
    """32 bytes that nobody else knows."""
    simulated: bool = False
    """Whether the noise is that of a simulation: a function of key, round and group alone. Only a
    trial that must repeat a simulation bit for bit sets this. If such a party is put back to an
    older copy, two sums of one round have the same noise."""

    def __repr__(self) -> str:
        return "<NoiseSecret, redacted>"

    def of_sum(self, name: bytes, group: int | None = None) -> bytes:
        """Return the key of the noise on the sum with this `sum_name`. Another sum gets independent
        noise, even if this party has forgotten the first one. The same sum gets the same noise, so
        that asking again tells nothing new."""
        if self.simulated:
            return _group_key(self.key, group)
        person = b"noise of a sum"
        return hashlib.blake2b(name, digest_size=32, key=self.key, person=person).digest()


def _group_key(key: bytes, group: int | None) -> bytes:
    """Return a key of its own for each group, so that no two sums of a round share their noise."""
    if group is None:
        return key
    person, place = b"noise of a group", group.to_bytes(4, "little")
    return hashlib.blake2b(place, digest_size=32, key=key, person=person).digest()


class Answered(NamedTuple):
    """What the helper remembers of all that it has told."""

    round: int
    """The last one of which something was told."""
    name: bytes
    """Name of the set, or of its groups."""
    spent: int = 0
    """Part of the allowance for rounds in groups that was used, in parts of `REGAINED_AFTER`."""

    @property
    def grouped_rounds_left(self) -> int:
        """Rounds in groups for which there is room now."""
        return GROUPED_ROUNDS - -(-self.spent // REGAINED_AFTER)


NEVER = Answered(-1, b"")


def set_name(sent: Sequence[bytes]) -> bytes:
    """The name of a set of submissions, whatever their order."""
    named = hashlib.blake2b(digest_size=32)
    for one in sorted(sent):
        named.update(len(one).to_bytes(4, "little") + one)
    return named.digest()


def sum_name(bound: bytes, sent: Sequence[bytes]) -> bytes:
    """Return the name of a sum: what the submissions are `bound` to (federation, terms, round,
    attempt, model), and exactly the submissions that are added up, in any order."""
    named = hashlib.blake2b(digest_size=32, person=b"name of a sum")
    named.update(len(bound).to_bytes(4, "little") + bound + set_name(sent))
    return named.digest()


def groups_name(groups: Sequence[Sequence[bytes]]) -> bytes:
    """The name of several groups in this order, which no set has: each place has its own noise."""
    named = hashlib.blake2b(digest_size=32, person=b"groups")
    for group in groups:
        named.update(set_name(group))
    return named.digest()


def check_groups(
    link: SecureSum | CheckedSum,
    answered: Answered,
    round: int,
    groups: Sequence[Sequence[bytes]],
    agreed: bytes = b"",
) -> Answered:
    """What the helper has to remember before it tells the sums over these groups of submissions,
    each of which says whose it is and has its seed. Raises if they must not be told. An aggregator
    remembers the set and the coins that it `agreed` to, too."""
    if len(groups) > max(1, link.groups):
        raise MessageError(
            f"{len(groups):,} sums in a round are not told, the terms permit {link.groups:,}"
        )
    everyone = [one for group in groups for one in group]
    if len(set(everyone)) != len(everyone):
        raise MessageError("a device is named twice in one round")
    least = min(map(len, groups), default=0)
    if least < link.min_devices:
        raise MessageError(
            f"a sum over {least:,} devices is not told, the least is {link.min_devices:,}"
        )
    name = set_name(groups[0]) if len(groups) == 1 else groups_name(groups)
    if agreed:
        name = sum_name(agreed, groups[0])
    if round < answered.round:
        raise MessageError(f"round {round} is over")
    if round == answered.round and name != answered.name:
        others = "other devices, sets or coins" if agreed else "other devices or groups"
        raise MessageError(
            f"the sum of round {round} was told for {others}; from both answers together one "
            "device's update could follow"
        )
    if round == answered.round:
        return answered
    if len(groups) == 1:
        return Answered(round, name, max(0, answered.spent - 1))
    if answered.grouped_rounds_left < 1:
        raise MessageError(
            f"the sums of {GROUPED_ROUNDS} rounds were told in groups; there is room for another "
            f"one after {REGAINED_AFTER} rounds with one sum"
        )
    return Answered(round, name, answered.spent + REGAINED_AFTER)


def sum_told(
    link: SecureSum,
    round: int,
    seeds: Sequence[bytes],
    numbers: int,
    noise_key: bytes,
    threads: int = 1,
    spans: Spans | None = None,
    draws: Draws | None = None,
) -> Words:
    """What the server gets for these seeds: their masks, less the noise, which is thus in what it
    opens. `noise_key` serves for this sum alone (`NoiseSecret.of_sum`)."""
    bits = link.bits or BITS[-1]
    masks = sum_masks(seeds, numbers, threads, bits)
    noise = noise_of(link, round, numbers, noise_key, spans, draws)
    return masks if noise is None else masks - words_of(noise, bits)


def noise_of(
    link: SecureSum,
    round: int,
    numbers: int,
    noise_key: bytes,
    spans: Spans | None = None,
    draws: Draws | None = None,
) -> NDArray[np.int64] | None:
    """The noise on a sum, in steps of the grid; none where the terms have none. By `spans` where it
    is not the link's; put together from `draws` where batches share theirs. Those may come from the
    server: whatever they say, nobody's contribution is told with less noise than she pays for
    (`core.running`)."""
    if spans is None:
        if not link.noise:
            return None
        spans = ((numbers, link.sigma),)
    return noise_on(spans, noise_key, round, draws)


def noise_spans(algorithm: FactorModel, release: Release) -> Callable[[int, int], Spans] | None:
    """Return which noise the numbers of a round get; None if the link decides."""
    own = release.contributing
    if own is None or own.parts:  # devices add their own
        return None
    contributing, unit = cast(Contributing, algorithm), own.sigma * release.steps

    def spans(round: int, numbers: int) -> Spans:
        found = contributing.noise_spans(round, numbers)
        return tuple((many, each * unit) for many, each in found)

    return spans


class Helper:
    """The helper in memory, of a simulation. It cannot be put back to an older copy, and its noise
    is a function of key, round and group."""

    def __init__(
        self,
        link: SecureSum,
        numbers: int,
        noise_key: bytes,
        spans: Callable[[int, int], Spans] | None = None,
    ) -> None:
        """`numbers` are those of an update, if they are the same in all rounds; `noise_key` is 32
        bytes that nobody else knows; `spans` says of a round and its numbers which noise they get,
        if that is not the link's."""
        self.link, self._numbers, self._noise_key = link, numbers, noise_key
        self._spans = spans
        self._answered = NEVER

    def __repr__(self) -> str:
        return f"<Helper min_devices={self.link.min_devices}, redacted>"

    @property
    def grouped_rounds_left(self) -> int:
        return self._answered.grouped_rounds_left

    def sum_masks(
        self,
        seeds: MaskSeeds,
        threads: int = 1,
        numbers: int | None = None,
        draws: Draws | None = None,
    ) -> MaskSum:
        """The sum over these devices, which the server has named."""
        return self.sum_groups([seeds], threads, numbers, draws)[0]

    def sum_groups(
        self,
        groups: Sequence[MaskSeeds],
        threads: int = 1,
        numbers: int | None = None,
        draws: Draws | None = None,
    ) -> list[MaskSum]:
        """The sums over these groups of devices, which have none in common."""
        if any(len(group.seeds) != len(group.sender) for group in groups):
            raise MessageError("every device needs one seed")
        senders = np.concatenate([group.sender for group in groups])
        if len(np.unique(senders)) != len(senders):
            raise MessageError("a device is named twice in one round")
        (round,) = {group.round for group in groups}
        sent = [
            [
                int(user).to_bytes(8, "little", signed=True) + seed
                for user, seed in zip(group.sender, group.seeds, strict=True)
            ]
            for group in groups
        ]
        self._answered = check_groups(self.link, self._answered, round, sent)
        link, many = self.link, self._numbers if numbers is None else numbers
        spans = self._spans_of(round, many)
        places = [None] if len(groups) == 1 else range(len(groups))
        keys = [_group_key(self._noise_key, place) for place in places]
        return [
            MaskSum(
                round,
                len(group),
                sum_told(link, round, group.seeds, many, key, threads, spans, draws),
                link.bits or BITS[-1],
            )
            for key, group in zip(keys, groups, strict=True)
        ]

    def noise(
        self, round: int, numbers: int | None = None, draws: Draws | None = None
    ) -> NDArray[np.int64] | None:
        """What it would add to a round's sum; for a simulation that writes no messages out."""
        many = self._numbers if numbers is None else numbers
        spans = self._spans_of(round, many)
        return noise_of(self.link, round, many, self._noise_key, spans=spans, draws=draws)

    def sigma(self, round: int, numbers: int, draws: Draws | None = None) -> float:
        """The largest standard deviation of the noise on a number of this round's sum."""
        spans = self._spans_of(round, numbers)
        if spans is None:
            return self.link.sigma
        several = 1.0 if draws is None else float(np.linalg.norm(weights(len(draws.rounds))))
        return several * max(sigma for _, sigma in spans)

    def _spans_of(self, round: int, numbers: int) -> Spans | None:
        return None if self._spans is None else self._spans(round, numbers)
