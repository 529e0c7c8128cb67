"""The proxy of a secure sum: knows masks, and no update. Simulation and the service (engines/https)
share its rules.

It answers for one set of devices in a round, whatever it is asked: from the sums over two sets that
differ in one device this device's update would follow. The same set again gets the same answer,
noise included, so that a server that was killed can go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError
from sottovoce.links import SecureSum
from sottovoce.masking import Words, sum_masks
from sottovoce.messages import GRID, MaskSeeds, MaskSum
from sottovoce.privacy.central import gaussian_noise

Answered = tuple[int, bytes]
"""The last round for which there was an answer, and the name of its set."""
NEVER: Answered = (-1, b"")


def set_name(sent: Sequence[bytes]) -> bytes:
    """The name of a set of submissions, whatever their order."""
    named = hashlib.blake2b(digest_size=32)
    for one in sorted(sent):
        named.update(len(one).to_bytes(4, "little") + one)
    return named.digest()


def check_set(link: SecureSum, answered: Answered, round: int, sent: Sequence[bytes]) -> bytes:
    """The name of a set of submissions, each of which says whose it is and has its seed. Raises
    where the sum over it must not be told."""
    if len(set(sent)) != len(sent):
        raise MessageError("a device is named twice in one sum")
    if len(sent) < link.min_devices:
        raise MessageError(
            f"a sum over {len(sent):,} devices is not told, the least is {link.min_devices:,}"
        )
    name = set_name(sent)
    if round < answered[0]:
        raise MessageError(f"round {round} is over")
    if round == answered[0] and name != answered[1]:
        raise MessageError(
            f"the sum of round {round} was told for other devices; from the two sums together one "
            "device's update could follow"
        )
    return name


def sum_told(
    link: SecureSum,
    round: int,
    seeds: Sequence[bytes],
    numbers: int,
    noise_key: bytes,
    threads: int = 1,
) -> Words:
    """What the server gets for these seeds: their masks, less the noise of the round, which is thus
    in what it opens. The noise is a function of key and round."""
    masks = sum_masks(seeds, numbers, threads)
    noise = noise_of(link, round, numbers, noise_key)
    return masks if noise is None else masks - noise.view(np.uint64)


def noise_of(
    link: SecureSum, round: int, numbers: int, noise_key: bytes
) -> NDArray[np.int64] | None:
    """The noise on the sum of a round, in steps of the grid; none where the terms have none."""
    if not link.noise:
        return None
    return gaussian_noise(noise_key, round, numbers, link.noise * link.clip * GRID)


class Masker:
    """The proxy in memory."""

    def __init__(self, link: SecureSum, numbers: int, noise_key: bytes) -> None:
        """`numbers` are those of an update; `noise_key` is 32 bytes that nobody else knows."""
        self.link, self._numbers, self._noise_key = link, numbers, noise_key
        self._answered = NEVER

    def __repr__(self) -> str:
        return f"<Masker min_devices={self.link.min_devices}, redacted>"

    def sum_masks(self, seeds: MaskSeeds, threads: int = 1) -> MaskSum:
        """The sum over these devices, which the server has named."""
        if len(seeds.seeds) != len(seeds.sender):
            raise MessageError("every device needs one seed")
        if len(np.unique(seeds.sender)) != len(seeds.sender):
            raise MessageError("a device is named twice in one sum")
        sent = [
            int(user).to_bytes(8, "little", signed=True) + seed
            for user, seed in zip(seeds.sender, seeds.seeds, strict=True)
        ]
        name = check_set(self.link, self._answered, seeds.round, sent)
        self._answered = seeds.round, name
        masks = sum_told(
            self.link, seeds.round, seeds.seeds, self._numbers, self._noise_key, threads
        )
        return MaskSum(seeds.round, len(seeds), masks)

    def noise(self, round: int) -> NDArray[np.int64] | None:
        """What it would add to a round's sum; for a simulation that writes no messages out."""
        return noise_of(self.link, round, self._numbers, self._noise_key)
