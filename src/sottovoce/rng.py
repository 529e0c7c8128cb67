"""Counter-based randomness: every draw is a pure function of (seed, purpose, counters).

A draw does not depend on which draws came before it, so results are the same whatever the
batching, the order, the number of threads or the engine. The generator is the splitmix64
finaliser over a keyed counter: fast and good enough for simulation, **not** for protection.
Draws that carry a privacy guarantee come from the operating system in deployment.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
LOW32 = np.uint64(0xFFFFFFFF)


@njit(inline="always")
def mix(z):  # type: ignore[no-untyped-def]
    """The splitmix64 finaliser: a bijection of 64-bit words that scatters nearby inputs."""
    z = (z ^ (z >> uint64(30))) * _M1
    z = (z ^ (z >> uint64(27))) * _M2
    return z ^ (z >> uint64(31))


@njit(inline="always")
def below(word, n):  # type: ignore[no-untyped-def]
    """A 32-bit word scaled to [0, n). Off uniform by at most n / 2**32, relatively."""
    return (word * uint64(n)) >> uint64(32)


def mix_array(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` for whole arrays."""
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


@dataclass(frozen=True, slots=True)
class Streams:
    """A node in the tree of random streams. `child` names a purpose or a counter.

    >>> root = Streams.from_seed(7)
    >>> root.child("learn", 3) == root.child("learn").child(3)
    True
    """

    key: int

    @classmethod
    def from_seed(cls, seed: int) -> Streams:
        return cls(_digest(f"seed:{seed}"))

    def child(self, *names: str | int) -> Streams:
        key = self.key
        for name in names:
            word = _digest(f"name:{name}") if isinstance(name, str) else int(name)
            key = _mix_int((key + (word + 1) * int(GAMMA)) & _MASK)
        return Streams(key)

    def keys(self, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
        """One key per counter (a user, say): `child(c).key` for each c."""
        with np.errstate(over="ignore"):
            words = (counters.astype(np.uint64) + np.uint64(1)) * GAMMA
            return mix_array(np.uint64(self.key) + words)

    def paired_keys(self, outer: NDArray[np.int64], inner: NDArray[np.int64]) -> NDArray[np.uint64]:
        """`child(outer, inner).key` for pairs of counters (a round and a user, say)."""
        with np.errstate(over="ignore"):
            words = (inner.astype(np.uint64) + np.uint64(1)) * GAMMA
            return mix_array(self.keys(outer) + words)

    def words(self, counters: NDArray[np.int64], draws: int) -> NDArray[np.uint64]:
        """64-bit words, shape [len(counters), draws]; row c depends on c alone."""
        with np.errstate(over="ignore"):
            offset = np.arange(1, draws + 1, dtype=np.uint64) * GAMMA
            return mix_array(self.keys(counters)[:, None] + offset[None, :])

    def uniform(self, counters: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
        """Uniform on [0, 1), shape [len(counters), draws]."""
        return (self.words(counters, draws) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, counters: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
        """Standard normal (Box-Muller), shape [len(counters), draws]."""
        u = self.uniform(counters, 2 * draws)
        radius = np.sqrt(-2.0 * np.log1p(-u[:, :draws]))
        wave: NDArray[np.float64] = radius * np.cos(2.0 * np.pi * u[:, draws:])
        return wave

    def generator(self) -> np.random.Generator:
        """A NumPy generator for work outside the per-user path (splits, towns)."""
        return np.random.Generator(np.random.PCG64(self.key))

    def choose_one(self, n: int, counters: NDArray[np.int64]) -> NDArray[np.int64]:
        """`child(c).choose(n, 1)` for each counter c."""
        with np.errstate(over="ignore"):
            word = mix_array(self.keys(counters) + GAMMA) >> np.uint64(32)
            return ((word * np.uint64(n)) >> np.uint64(32)).astype(np.int64)

    def choose(self, n: int, size: int) -> NDArray[np.int64]:
        """`size` distinct numbers below n, uniform without replacement, in ascending order."""
        if size >= n:
            return np.arange(n, dtype=np.int64)
        if size == 1:
            word = _mix_int((self.key + int(GAMMA)) & _MASK)
            return np.array([((word >> 32) * n) >> 32], dtype=np.int64)
        return np.sort(self.generator().choice(n, size, replace=False)).astype(np.int64)


_MASK = (1 << 64) - 1


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * int(_M1)) & _MASK
    z = ((z ^ (z >> 27)) * int(_M2)) & _MASK
    return z ^ (z >> 31)
