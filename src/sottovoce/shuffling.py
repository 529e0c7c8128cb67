"""Uniform shuffles, by a ChaCha20 stream from 32 bytes that the operating system has drawn.

Every record goes to one of 2**b buckets by b bits of its own, and each bucket is then shuffled by
Fisher and Yates: any order is as likely as any other, and memory is touched in parts that fit the
processor's cache, so that a record costs the same among a million and among a hundred million. The
same seed gives the same order, whatever the threads.
"""

from __future__ import annotations

import secrets

import numpy as np
from numba import int64, njit, uint16, uint32, uint64
from numpy.typing import NDArray

from sottovoce.chacha import chacha_words
from sottovoce.errors import UsageError
from sottovoce.parallel import each

SEED_BYTES = 32
MOST_BITS = 16
_BUCKET = 1 << 18
"""Records of an average bucket, at most: a mebibyte, which stays in the cache."""
_CHUNK = 1 << 20
_PER_BLOCK = 32
"""Labels that one block of the stream yields, of 16 bits each."""
_TWO_32 = np.uint64(1 << 32)
_LABELS, _ORDER = 1, 2
"""What a stream is for; the first word of its nonce."""


def new_seed() -> bytes:
    """A seed from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


def shuffled(values: NDArray[np.uint32], seed: bytes, *, threads: int = 1) -> NDArray[np.uint32]:
    """The same values in a uniformly random order."""
    key, n = _key(seed), len(values)
    if n >= 1 << 32:
        raise UsageError("at most 2**32 - 1 records can be shuffled at once")
    bits = bucket_bits(n, _BUCKET)
    if not bits:
        out = np.array(values, dtype=np.uint32)
        _order(out, key, 0)
        return out
    buckets = 1 << bits
    starts = list(range(0, n, _CHUNK))
    labels = np.empty(n, dtype=np.uint16)
    counts = np.zeros((len(starts), buckets), dtype=np.int64)
    values = np.ascontiguousarray(values)
    out = np.empty(n, dtype=np.uint32)

    def label(chunk: int) -> None:
        first = starts[chunk]
        _label(key, first, labels[first : first + _CHUNK], bits, counts[chunk])

    def scatter(chunk: int) -> None:
        part = slice(starts[chunk], starts[chunk] + _CHUNK)
        _scatter(values[part], labels[part], places[chunk], out)

    def order(bucket: int) -> None:
        _order(out[ends[bucket] : ends[bucket + 1]], key, bucket)

    each(label, range(len(starts)), threads)
    # Bucket by bucket, and within a bucket chunk by chunk.
    flat = np.cumsum(counts.T.ravel())
    places = np.ascontiguousarray((flat - counts.T.ravel()).reshape(buckets, -1).T)
    ends = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    each(scatter, range(len(starts)), threads)
    each(order, range(buckets), threads)
    return out


def bucket_bits(n: int, largest: int) -> int:
    """The fewest bits for which an average bucket of n records has at most `largest`."""
    if n >= largest << MOST_BITS:
        raise UsageError(f"{n:,} records are too many to shuffle")
    return max(0, (n - 1) // largest).bit_length()


def labels_of(seed: bytes, first: int, count: int, bits: int) -> NDArray[np.uint16]:
    """The buckets of records first, first + 1, ...: independent and uniform. With `order_in` this
    is the shuffle of more records than fit into memory."""
    skipped = first % _PER_BLOCK
    labels = np.empty(skipped + count, dtype=np.uint16)
    _label(_key(seed), first - skipped, labels, bits, np.zeros(1 << bits, dtype=np.int64))
    return labels[skipped:]


def order_in(seed: bytes, bucket: int, size: int) -> NDArray[np.uint32]:
    """A uniformly random order of the `size` records of a bucket."""
    order = np.arange(size, dtype=np.uint32)
    _order(order, _key(seed), bucket)
    return order


def _key(seed: bytes) -> NDArray[np.uint32]:
    if len(seed) != SEED_BYTES:
        raise UsageError(f"a seed has {SEED_BYTES} bytes")
    return np.frombuffer(seed, dtype="<u4").astype(np.uint32)


@njit(nogil=True, cache=True)
def _label(key, first, labels, bits, counts):  # type: ignore[no-untyped-def]
    """Labels of records from `first` on, a multiple of 32, and how many there are of each."""
    block = np.empty(16, dtype=np.uint32)
    nonce = np.zeros(3, dtype=np.uint32)
    nonce[0] = _LABELS
    counter = first // _PER_BLOCK
    down = uint32(16 - bits)
    for start in range(0, len(labels), _PER_BLOCK):
        chacha_words(key, nonce, uint32(counter), block)
        counter += 1
        for k in range(min(_PER_BLOCK, len(labels) - start)):
            half = (block[k >> 1] >> uint32(16 * (k & 1))) & uint32(0xFFFF)
            label = half >> down
            labels[start + k] = uint16(label)
            counts[label] += 1


@njit(nogil=True, cache=True)
def _scatter(values, labels, places, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        label = labels[i]
        out[places[label]] = values[i]
        places[label] += 1


@njit(nogil=True, cache=True)
def _order(values, key, stream):  # type: ignore[no-untyped-def]
    """Fisher-Yates in place. A word that would favour small numbers is thrown away."""
    block = np.empty(16, dtype=np.uint32)
    nonce = np.zeros(3, dtype=np.uint32)
    nonce[0], nonce[1] = _ORDER, stream
    counter, at = 0, 16
    for last in range(len(values) - 1, 0, -1):
        n = uint64(last + 1)
        while True:
            if at == 16:
                chacha_words(key, nonce, uint32(counter), block)
                counter += 1
                at = 0
            product = uint64(block[at]) * n
            at += 1
            low = product & uint64(0xFFFFFFFF)
            if low >= n or low >= (_TWO_32 - n) % n:
                break
        other = int64(product >> uint64(32))
        values[last], values[other] = values[other], values[last]
