"""Masks: a device's whole update, hidden so that only a sum of many can be read.

An update is a table of whole numbers of the grid, a row for every row of the model, zeros included,
so that its size says nothing. Its mask is as many numbers below 2⁶⁴, drawn with ChaCha20 (RFC 8439)
from a seed of 32 bytes that serves once. What leaves is update + mask modulo 2⁶⁴. To whoever lacks
the seed that is uniform, whatever the update; sums of masked updates less the sum of their masks
are the sums of the updates, exactly.

The stream is that of the `cryptography` library where it is installed, which is several times as
fast, and of the kernel in `one_bit` where not; both give the same numbers.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import NDArray

from sottovoce.core.arrays import each, equal_spans
from sottovoce.errors import ConfigError, MessageError
from sottovoce.rng import chacha_words

Words = NDArray[np.uint64]
SEED_BYTES = 32
MOST_NUMBERS = 1 << 34
"""Of one mask: ChaCha20 counts blocks of eight of them with 32 bits."""
_KEYSTREAM_BYTES = 1 << 19
"""Of a mask that are made and added at a time, so that they stay in a core's cache."""


def seeds_from(root: bytes, users: NDArray[np.int64], round: int) -> list[bytes]:
    """A simulation's seeds: they repeat with its seed, and without `root` tell nothing of each
    other. A real device draws its own from the operating system."""
    keyed = hashlib.blake2b(digest_size=SEED_BYTES, key=root, person=b"mask seed")
    keyed.update(round.to_bytes(8, "little"))
    seeds = []
    for user in users.tolist():
        one = keyed.copy()
        one.update(int(user).to_bytes(8, "little", signed=True))
        seeds.append(one.digest())
    return seeds


def expand(seed: bytes, numbers: int) -> Words:
    """The mask of a seed."""
    _check(seed, numbers)
    mask = np.zeros(numbers, dtype=np.uint64)
    _adder()(mask, seed)
    return mask


def masked(values: NDArray[np.int64], seed: bytes) -> Words:
    """An update, [rows, width] with a row for every row of the model, as it may leave."""
    hidden = np.ascontiguousarray(values, dtype=np.int64).view(np.uint64).ravel().copy()
    _check(seed, len(hidden))
    _adder()(hidden, seed)
    return hidden


def sum_masks(seeds: Sequence[bytes], numbers: int, threads: int = 1) -> Words:
    """The sum of these seeds' masks modulo 2⁶⁴."""
    for seed in seeds:
        _check(seed, numbers)
    total, turn, add = np.zeros(numbers, dtype=np.uint64), threading.Lock(), _adder()

    def part(span: slice) -> None:
        mine = np.zeros(numbers, dtype=np.uint64)
        for seed in seeds[span]:
            add(mine, seed)
        with turn:
            np.add(total, mine, out=total)

    each(part, equal_spans(len(seeds), threads), threads)
    return total


def unmasked(total: Words, masks: Words, width: int) -> NDArray[np.int64]:
    """The sum of updates, [rows, width], from the sum of masked ones and the sum of their masks."""
    if total.shape != masks.shape or len(total) % width:
        raise MessageError("a sum of masks does not have the numbers of the masked sum")
    return (total - masks).view(np.int64).reshape(-1, width)


def _check(seed: bytes, numbers: int) -> None:
    if len(seed) != SEED_BYTES:
        raise MessageError(f"the seed of a mask has {SEED_BYTES} bytes")
    if not 0 <= numbers < MOST_NUMBERS:
        raise ConfigError("a mask has fewer than 2**34 numbers")


@cache
def _adder() -> Callable[[Words, bytes], None]:
    """Adds the mask of a seed to what is there."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ModuleNotFoundError:
        return _add_by_kernel
    zeros, start = bytes(_KEYSTREAM_BYTES), bytes(16)

    def add(total: Words, seed: bytes) -> None:
        stream = Cipher(algorithms.ChaCha20(seed, start), None).encryptor()
        room = np.empty(_KEYSTREAM_BYTES // 8, dtype=np.uint64)
        for at in range(0, len(total), len(room)):
            part = total[at : at + len(room)]
            stream.update_into(zeros[: 8 * len(part)], room.view(np.uint8).data)
            part += room[: len(part)]

    return add


def _add_by_kernel(total: Words, seed: bytes) -> None:
    _add_stream(total, np.frombuffer(seed, dtype="<u4").astype(np.uint32))


@njit(nogil=True, cache=True)
def _add_stream(total, key):
    nothing, block = np.zeros(3, dtype=np.uint32), np.empty(16, dtype=np.uint32)
    for at in range(0, len(total), 8):
        chacha_words(key, nothing, uint32(at // 8), block)
        for k in range(min(8, len(total) - at)):
            total[at + k] += uint64(block[2 * k]) | (uint64(block[2 * k + 1]) << uint64(32))
