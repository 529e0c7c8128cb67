"""The shuffler: takes k reports of equal size from each device and round, parts them from whose
they are, and hands on whole tiers in an order that says nothing. Simulation and the service share
these rules and the shuffle; one keeps the reports in memory, open, the other on disk, sealed.

A report hides among those of the batch's honest devices. A shuffler cannot tell people from devices
that the server has made up: where all others are such, only the report's own randomness protects
it, and the certificate is that without a shuffler.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import int64, uint16, uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.arrays import each
from sottovoce.core.messages import Batch, BitReports
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.errors import ConfigError, MessageError, UsageError
from sottovoce.rng import chacha_words

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
    """The same values in a uniformly random order, by a ChaCha20 stream from the seed.

    Every record goes to one of 2**b buckets by b bits of its own, and each bucket is then shuffled
    by Fisher and Yates: any order is as likely as any other, and memory is touched in parts that
    fit the processor's cache, so that a record costs the same among a million and among a hundred
    million. The same seed gives the same order, whatever the threads.
    """
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


Rows = Callable[[], Iterable[NDArray[np.uint8]]]
"""All records of a batch, [n, size] at a time; the same ones in the same order at each call."""

_BUCKET_BYTES = 4 << 20
_AT_ONCE = 8
"""Buckets that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class ShufflerRules:
    """What a shuffler takes, and when it lets go of a tier's batch."""

    reports: int
    """k: each device sends so many a round, no more and no fewer."""
    minimum: tuple[int, ...]
    """For each tier, the devices below which nothing leaves the shuffler."""
    goal: tuple[int, ...] = ()
    """For each tier, the devices with which a batch waits no longer; none where it is empty."""
    hold_seconds: float = 60.0
    """How long a batch that has its minimum waits for its goal."""
    spare: tuple[int, ...] = ()
    """For each tier, the devices beyond the minimum that a batch must have to leave; none where it
    is empty."""

    def __post_init__(self) -> None:
        if self.reports < 1:
            raise ConfigError(f"a device sends at least one report a round, not {self.reports}")
        if not self.minimum or min(self.minimum) < 1:
            raise ConfigError("every tier needs a minimum of at least one device")
        if self.goal and len(self.goal) != len(self.minimum):
            raise ConfigError(f"there are {len(self.minimum)} tiers, but {len(self.goal)} goals")
        if not 0.0 <= self.hold_seconds < float("inf"):
            raise ConfigError("a batch can be held for a number of seconds, not for ever")

    def least(self, tier: int) -> int:
        """The devices below which no batch of this tier leaves."""
        return self.minimum[tier] + (self.spare[tier] if self.spare else 0)

    def releases(self, tier: int, devices: int, waited: float) -> bool:
        """Whether a batch of so many devices may go, `waited` seconds after it had its minimum. It
        never may below that, whatever the goal and the wait."""
        if devices < self.least(tier):
            return False
        return waited >= self.hold_seconds or bool(self.goal and devices >= self.goal[tier])


def spare_of(minimum: int) -> int:
    """Return how many devices beyond the minimum the first shuffler of a chain waits for. Shufflers
    behind it drop a batch of which too little can be opened, and one device must not cause that."""
    return -(-minimum // 20)


Seeds = Callable[[int, int, int], bytes]
"""By round, tier and place in the chain: from which seed a shuffler mixes."""


def fresh_seeds(round: int, tier: int, hop: int) -> bytes:
    return new_seed()


class Shuffler:
    """A shuffler in memory, or a chain of them, for one whole round at a time."""

    def __init__(self, minimum: Sequence[int], reports: int, shufflers: int = 1) -> None:
        spare = tuple(spare_of(least) if shufflers > 1 else 0 for least in minimum)
        self._rules = ShufflerRules(reports, tuple(minimum), hold_seconds=0.0, spare=spare)
        self._last = -1
        self.shufflers = shufflers
        """Each mixes what the one before it hands over."""
        self.seeds: Seeds = fresh_seeds
        self.held: Counter[int] = Counter()
        """Devices per tier whose reports were held back and dropped, over all rounds."""

    def collect(self, bits: BitReports, threads: int = 1, ranks: Ranks = ALONE) -> list[Batch]:
        """A batch for each tier that reaches its minimum (in a chain, with some to spare), shuffled
        with randomness from the operating system. Refuses a round that is over and a round in
        which anyone sent the wrong number of reports, named an unknown tier or sent twice. Of
        several ranks of a simulation, each shuffles what its devices sent, and the minimum is of
        all of them together."""
        rules = self._rules
        if bits.round <= self._last:
            raise MessageError(f"round {bits.round} is over")
        if bits.reports.shape != (len(bits.sender), rules.reports):
            raise MessageError(f"every device must send {rules.reports} reports")
        if bits.tier.shape != bits.sender.shape:
            raise MessageError("every device must name one tier")
        if len(np.unique(bits.sender)) != len(bits.sender):
            raise MessageError("a device sends twice in one round")
        batches = []
        for tier, devices in self.passing(bits.round, bits.tier, ranks):
            everyone = devices == len(bits)
            sent = bits.reports if everyone else bits.reports[bits.tier == tier]
            mixed = sent.ravel()
            for hop in range(self.shufflers):
                mixed = shuffled(mixed, self.seeds(bits.round, tier, hop), threads=threads)
            batches.append(Batch(bits.round, tier, devices, mixed))
        return batches

    def passing(
        self, round: int, tier: NDArray[np.int32], ranks: Ranks = ALONE
    ) -> list[tuple[int, int]]:
        """The tiers of a round that reach their minimum over all ranks, and how many devices each
        has here. The others are held back and dropped."""
        tiers = len(self._rules.minimum)
        if round <= self._last:
            raise MessageError(f"round {round} is over")
        if len(tier) and not 0 <= int(tier.min()) <= int(tier.max()) < tiers:
            raise MessageError("a device names a tier that is not in the terms")
        self._last, found = round, []
        here = np.bincount(tier, minlength=tiers).astype(np.int64)
        there = ranks.all_sum(here.copy()).tolist()
        for number, devices in enumerate(here.tolist()):
            if not devices:
                continue
            if self._rules.releases(number, there[number], 0.0):
                found.append((number, devices))
            else:
                self.held[number] += devices
        return found


def in_parts(
    rows: Rows, records: int, size: int, seed: bytes, *, per_part: int, first: int = 0
) -> Iterator[bytes]:
    """The records of a batch, `size` bytes each, in the uniformly random order that the seed gives,
    in parts of `per_part` records (the last one may be shorter), from part `first` on. Holds a
    bounded share of them in memory; the same seed gives the same parts."""
    bits = bucket_bits(records, max(1, _BUCKET_BYTES // size))
    counts = _bucket_counts(records, seed, bits)
    ends = np.cumsum(counts)
    skip = first * per_part
    bucket = int(np.searchsorted(ends, skip, side="right"))
    skip -= int(ends[bucket - 1]) if bucket else 0
    waiting = bytearray()
    while bucket < len(counts):
        stop = min(bucket + _AT_ONCE, len(counts))
        for content in _buckets(rows, size, seed, bits, bucket, counts[bucket:stop]):
            waiting += content[skip:].tobytes()
            skip = 0
            while len(waiting) >= per_part * size:
                yield bytes(waiting[: per_part * size])
                del waiting[: per_part * size]
        bucket = stop
    if waiting:
        yield bytes(waiting)


def _bucket_counts(records: int, seed: bytes, bits: int) -> NDArray[np.int64]:
    counts = np.zeros(1 << bits, dtype=np.int64)
    for start in range(0, records, 1 << 20):
        labels = labels_of(seed, start, min(1 << 20, records - start), bits)
        counts += np.bincount(labels, minlength=1 << bits)
    return counts


def _buckets(
    rows: Rows, size: int, seed: bytes, bits: int, first: int, counts: NDArray[np.int64]
) -> Iterator[NDArray[np.uint8]]:
    """The shuffled records of a few buckets, after one walk over all rows."""
    found = [np.empty((count, size), dtype=np.uint8) for count in counts.tolist()]
    filled = [0] * len(found)
    position = 0
    for some in rows():
        labels = labels_of(seed, position, len(some), bits)
        position += len(some)
        for k, content in enumerate(found):
            mine = some[labels == first + k] if bits else some
            content[filled[k] : filled[k] + len(mine)] = mine
            filled[k] += len(mine)
    for k, content in enumerate(found):
        if filled[k] != len(content):
            raise MessageError("the records of a batch are not as many as they were")
        yield content[order_in(seed, first + k, len(content))]


# --- reports that come twice ----------------------------------------------------------------------

# Whoever takes a layer off passes each report on once: a copy of somebody's would show which one it
# is.

AT_ONCE = 1 << 24
"""Reports among which duplicates are looked for at once."""

Bodies = Callable[[], Iterator[bytes]]
"""The parts of a batch from the first one on, each time it is called."""


def once(bodies: Bodies, reports: int, size: int, refused: Counter[str]) -> Iterator[bytes]:
    """The parts of a batch of so many sealed reports, `size` bytes each, of which each is there
    once."""
    twice = _repeated(bodies, reports, size)
    seen: set[int] = set()
    for body in bodies():
        if not len(twice):
            yield body
            continue
        table = np.frombuffer(body, np.uint8).reshape(-1, size)
        marks, keep = _marks(table), np.ones(len(table), np.bool_)
        for at in np.flatnonzero(np.isin(marks, twice)):
            keep[at] = int(marks[at]) not in seen
            seen.add(int(marks[at]))
        refused["duplicate"] += int((~keep).sum())
        yield table[keep].tobytes()


def _repeated(bodies: Bodies, reports: int, size: int) -> NDArray[np.uint64]:
    """Marks that more than one report has."""
    shares = -(-reports // AT_ONCE)
    found = [np.zeros(0, np.uint64)]
    for share in range(shares):
        marks = []
        for body in bodies():
            all_marks = _marks(np.frombuffer(body, np.uint8).reshape(-1, size))
            marks.append(all_marks[all_marks % np.uint64(shares) == share])
        values, times = np.unique(np.concatenate(marks), return_counts=True)
        found.append(values[times > 1])
    return np.concatenate(found)


def _marks(table: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The first bytes of each report's ephemeral key, which nobody draws twice."""
    return np.ascontiguousarray(table[:, :8]).view("<u8")[:, 0]
