"""Masks: a device's whole update, hidden so that only a sum of many can be read.

An update is a table of whole numbers of the grid, a row for every row of the model, zeros included,
so that its size says nothing. Its mask is as many numbers below 2^bits, drawn with ChaCha20 (RFC
8439) from a seed of 32 bytes that serves once. What leaves is update + mask modulo 2^bits. To
whoever lacks the seed that is uniform, whatever the update; sums of masked updates less the sum of
their masks are the sums of the updates, exactly, as long as these are below 2^(bits - 1).

Numbers of 32 bits are held and drawn in 32 bits; those of 40 and 48 in 64, of which the upper ones
do not travel and do not count.

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
from numpy import uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.arrays import each, equal_spans
from sottovoce.errors import ConfigError, MessageError
from sottovoce.rng import chacha_words

Words = NDArray[np.uint32] | NDArray[np.uint64]
BITS = (32, 40, 48, 64)
"""How many a masked number can have."""
SEED_BYTES = 32
MOST_NUMBERS = 1 << 34
"""Most numbers of one mask: ChaCha20 counts blocks of eight numbers with 32 bits."""
_KEYSTREAM_BYTES = 1 << 17
"""Bytes of a mask that are made and added at a time, so that they stay in a core's cache."""


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


def no_words(numbers: int, bits: int) -> Words:
    """Return zeros to which masked numbers of so many bits are added."""
    if bits == 32:
        return np.zeros(numbers, dtype=np.uint32)
    return np.zeros(numbers, dtype=np.uint64)


def expand(seed: bytes, numbers: int, bits: int = 64) -> Words:
    """The mask of a seed."""
    _check(seed, numbers)
    mask = no_words(numbers, bits)
    _adder()(mask, seed)
    return _narrow(mask, bits)


def masked(values: NDArray[np.int64], seed: bytes, bits: int = 64) -> Words:
    """An update, [rows, width] with a row for every row of the model, as it may leave."""
    hidden = words_of(values, bits)
    _check(seed, len(hidden))
    _adder()(hidden, seed)
    return _narrow(hidden, bits)


def words_of(values: NDArray[np.int64], bits: int) -> Words:
    """Whole numbers modulo 2^bits, not masked yet."""
    whole = np.ascontiguousarray(values, dtype=np.int64).view(np.uint64).ravel()
    return whole.astype(np.uint32) if bits == 32 else whole.copy()


def sum_masks(seeds: Sequence[bytes], numbers: int, threads: int = 1, bits: int = 64) -> Words:
    """The sum of these seeds' masks modulo 2^bits (or, of 40 and 48, of 2⁶⁴)."""
    for seed in seeds:
        _check(seed, numbers)
    total, turn, add = no_words(numbers, bits), threading.Lock(), _adder()

    def part(span: slice) -> None:
        mine = no_words(numbers, bits)
        for seed in seeds[span]:
            add(mine, seed)
        with turn:
            np.add(total, mine, out=total)

    each(part, equal_spans(len(seeds), threads), threads)
    return total


def unmasked(total: Words, masks: Words, width: int, bits: int = 64) -> NDArray[np.int64]:
    """The sum of updates, [rows, width], from the sum of masked ones and the sum of their masks."""
    if total.shape != masks.shape or total.dtype != masks.dtype or len(total) % width:
        raise MessageError("a sum of masks does not have the numbers of the masked sum")
    # The upper bits of what is left are those of the sign.
    left = (total - masks).astype(np.uint64) << np.uint64(64 - bits)
    opened: NDArray[np.int64] = left.view(np.int64) >> np.int64(64 - bits)
    return opened.reshape(-1, width)


def to_bytes(words: Words, bits: int) -> bytes:
    """Masked numbers as they travel: the lower bits of each, little-endian."""
    if bits in (32, 64):
        return words.astype(f"<u{bits // 8}", copy=False).tobytes()
    whole = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(whole[:, : bits // 8]).tobytes()


def from_bytes(content: bytes | memoryview, bits: int) -> Words:
    """The inverse of `to_bytes`."""
    if bits in (32, 64):
        return np.frombuffer(content, f"<u{bits // 8}").astype(f"u{bits // 8}", copy=False)
    whole = np.zeros((len(content) // (bits // 8), 8), dtype=np.uint8)
    whole[:, : bits // 8] = np.frombuffer(content, np.uint8).reshape(-1, bits // 8)
    return whole.view("<u8").ravel().astype(np.uint64, copy=False)


def _narrow(words: Words, bits: int) -> Words:
    return words & np.uint64((1 << bits) - 1) if bits in (40, 48) else words


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
        room = np.empty(_KEYSTREAM_BYTES // total.itemsize, dtype=total.dtype)
        for at in range(0, len(total), len(room)):
            part = total[at : at + len(room)]
            stream.update_into(zeros[: part.nbytes], room.view(np.uint8).data)
            part += room[: len(part)]

    return add


def _add_by_kernel(total: Words, seed: bytes) -> None:
    key = np.frombuffer(seed, dtype="<u4").astype(np.uint32)
    (_add_short_stream if total.itemsize == 4 else _add_stream)(total, key)


@njit(nogil=True, cache=True)
def _add_short_stream(total, key):
    nothing, block = np.zeros(3, dtype=np.uint32), np.empty(16, dtype=np.uint32)
    for at in range(0, len(total), 16):
        chacha_words(key, nothing, uint32(at // 16), block)
        for k in range(min(16, len(total) - at)):
            total[at + k] += block[k]


@njit(nogil=True, cache=True)
def _add_stream(total, key):
    nothing, block = np.zeros(3, dtype=np.uint32), np.empty(16, dtype=np.uint32)
    for at in range(0, len(total), 8):
        chacha_words(key, nothing, uint32(at // 8), block)
        for k in range(min(8, len(total) - at)):
            total[at + k] += uint64(block[2 * k]) | (uint64(block[2 * k + 1]) << uint64(32))
