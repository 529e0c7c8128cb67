"""Counter-based randomness: every draw is a pure function of (seed, purpose, counters).

A draw does not depend on which draws came before it, so results are the same whatever the
batching, the order, the number of threads or the engine. There are two generators:

- `Streams`: the splitmix64 finaliser over a keyed counter. It is fast and good enough for
  simulation, and **not** for protection: it can be inverted, so that a few draws which somebody
  sees give the key away, and with it all other draws.
- `SecretStreams`: ChaCha20 under keys of 256 bits. Whoever sees any number of draws learns nothing
  about the others. Real devices and servers draw from it all that another party can see or infer
  from, and a simulation can (`draws = "secret"`).

Both have the same methods. Compiled loops call `draw` with a key of either, and are compiled for
each.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit, primitive
from sottovoce.errors import ConfigError

# ChaCha20 (RFC 8439) in compiled loops, which cannot call a library's generator.

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"


BLOCK_WORDS = 16
"""Words of 32 bits in a block."""


@njit(inline="always")
def _turned(x, n):
    return uint32((x << uint32(n)) | (x >> uint32(32 - n)))


@njit(inline="always")
def quarter(a, b, c, d):
    a = uint32(a + b)
    d = _turned(uint32(d ^ a), 16)
    c = uint32(c + d)
    b = _turned(uint32(b ^ c), 12)
    a = uint32(a + b)
    d = _turned(uint32(d ^ a), 8)
    c = uint32(c + d)
    b = _turned(uint32(b ^ c), 7)
    return a, b, c, d


@njit(nogil=True, cache=True)
def chacha_words(key, nonce, counter, out):
    """One block of ChaCha20 (RFC 8439, section 2.3) as 16 words."""
    k0, k1, k2, k3, k4, k5, k6, k7 = (
        key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7],
    )  # fmt: skip
    c0, c1, c2, c3 = uint32(0x61707865), uint32(0x3320646E), uint32(0x79622D32), uint32(0x6B206574)
    n0, n1, n2, n3 = uint32(counter), nonce[0], nonce[1], nonce[2]
    a0, a1, a2, a3 = c0, c1, c2, c3
    b0, b1, b2, b3 = k0, k1, k2, k3
    e0, e1, e2, e3 = k4, k5, k6, k7
    d0, d1, d2, d3 = n0, n1, n2, n3
    for _ in range(10):
        a0, b0, e0, d0 = quarter(a0, b0, e0, d0)
        a1, b1, e1, d1 = quarter(a1, b1, e1, d1)
        a2, b2, e2, d2 = quarter(a2, b2, e2, d2)
        a3, b3, e3, d3 = quarter(a3, b3, e3, d3)
        a0, b1, e2, d3 = quarter(a0, b1, e2, d3)
        a1, b2, e3, d0 = quarter(a1, b2, e3, d0)
        a2, b3, e0, d1 = quarter(a2, b3, e0, d1)
        a3, b0, e1, d2 = quarter(a3, b0, e1, d2)
    out[0], out[1], out[2], out[3] = a0 + c0, a1 + c1, a2 + c2, a3 + c3
    out[4], out[5], out[6], out[7] = b0 + k0, b1 + k1, b2 + k2, b3 + k3
    out[8], out[9], out[10], out[11] = e0 + k4, e1 + k5, e2 + k6, e3 + k7
    out[12], out[13], out[14], out[15] = d0 + n0, d1 + n1, d2 + n2, d3 + n3


@chacha_words.alone
def _chacha_words(key, nonce, counter, out):
    start = np.array([counter, *nonce], dtype="<u4").tobytes()
    out[:] = np.frombuffer(_keystream(key, start, out.nbytes), dtype="<u4")


def _keystream(key: NDArray[np.uint32], start: bytes, many: int) -> bytes:
    """So many bytes of ChaCha20, by the library that a device signs with."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    whole = algorithms.ChaCha20(key.astype("<u4").tobytes(), start)
    return Cipher(whole, None).encryptor().update(bytes(many))


GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
LOW32 = np.uint64(0xFFFFFFFF)
_PER_BLOCK = BLOCK_WORDS // 2
"""Draws of 64 bits in a block of ChaCha20."""
SECRET_BYTES = 32

Keys = NDArray[np.uint64] | NDArray[np.uint32]
"""One key per counter: [n] of the fast generator, [n, 8] of ChaCha20."""


@njit(alone=True, inline="always")
def mix(z):
    """The splitmix64 finaliser: a bijection of 64-bit words that scatters nearby inputs."""
    z = (z ^ (z >> uint64(30))) * _M1
    z = (z ^ (z >> uint64(27))) * _M2
    return z ^ (z >> uint64(31))


@njit(alone=True, inline="always")
def below(word, n):
    """A 32-bit word scaled to [0, n). Off uniform by at most n / 2**32, relatively."""
    return (word * uint64(n)) >> uint64(32)


def _compiled_draw() -> Any:
    """`draw` as compiled loops have it."""
    from numba import types
    from numba.extending import overload

    def drawn(key, number):
        raise NotImplementedError  # what is called is one of those below

    @overload(drawn)
    def _(key, number):
        if isinstance(key, types.Integer):
            return lambda key, number: mix(key + uint64(number + 1) * GAMMA)

        def secret(key, number):
            block = np.empty(BLOCK_WORDS, dtype=np.uint32)
            chacha_words(key, np.zeros(3, dtype=np.uint32), uint32(number // _PER_BLOCK), block)
            at = 2 * (number % _PER_BLOCK)
            return uint64(block[at]) | (uint64(block[at + 1]) << uint64(32))

        return secret

    return drawn


@primitive(_compiled_draw)
def draw(key: Any, number: int) -> np.uint64:
    """The 64-bit word that draw `number` of a key gives; compiled loops have it compiled."""
    word: np.uint64 = words_of(np.asarray(key)[None], 1, int(number))[0, 0]
    return word


@njit(nogil=True, cache=True)
def _secret_words(keys, first, out):
    """out[n, t] = draw(keys[n], first + t), a block at a time."""
    block, nonce = np.empty(BLOCK_WORDS, dtype=np.uint32), np.zeros(3, dtype=np.uint32)
    for n in range(out.shape[0]):
        made = -1
        for t in range(out.shape[1]):
            number = first + t
            if number // _PER_BLOCK != made:
                made = number // _PER_BLOCK
                chacha_words(keys[n], nonce, uint32(made), block)
            at = 2 * (number % _PER_BLOCK)
            out[n, t] = uint64(block[at]) | (uint64(block[at + 1]) << uint64(32))


@_secret_words.alone
def _(keys, first, out):
    block, before = divmod(first, _PER_BLOCK)
    start = (block & 0xFFFFFFFF).to_bytes(16, "little")
    many = 8 * (before + out.shape[1])
    for n in range(len(out)):
        words = np.frombuffer(_keystream(keys[n], start, many), dtype="<u8")
        out[n] = words[before:]


def mix_array(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` for whole arrays."""
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def words_of(keys: Keys, draws: int, first: int = 0) -> NDArray[np.uint64]:
    """`draw(keys[n], first + t)` for every key and t below `draws`, [len(keys), draws]."""
    if keys.ndim == 2:
        out = np.empty((len(keys), draws), dtype=np.uint64)
        _secret_words(np.ascontiguousarray(keys, dtype=np.uint32), first, out)
        return out
    with np.errstate(over="ignore"):
        offset = np.arange(first + 1, first + draws + 1, dtype=np.uint64) * GAMMA
        return mix_array(cast(NDArray[np.uint64], keys)[:, None] + offset[None, :])


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

    @property
    def root(self) -> int:
        """The number from which `streams_of` makes these streams again."""
        return self.key

    def root_bytes(self) -> bytes:
        """`root` as it is kept."""
        return self.root.to_bytes(8, "little")

    def child(self, *names: str | int) -> Streams:
        key = self.key
        for name in names:
            word = _digest(f"name:{name}") if isinstance(name, str) else int(name)
            key = _mix_int((key + (word + 1) * int(GAMMA)) & _MASK)
        return Streams(key)

    def lasting(self) -> Streams:
        """The streams of what is drawn once for all rounds and terms."""
        return self.child("share-subset")

    def keys(self, counters: NDArray[np.int64]) -> Keys:
        """One key per counter (a user, say): that of `child(c)` for each c."""
        return _fast_keys(np.uint64(self.key), counters)

    def paired_keys(self, outer: NDArray[np.int64], inner: NDArray[np.int64]) -> Keys:
        """The key of `child(outer, inner)` for pairs of counters (a round and a user, say)."""
        return _fast_keys(_fast_keys(np.uint64(self.key), outer), inner)

    def words(self, counters: NDArray[np.int64], draws: int) -> NDArray[np.uint64]:
        """64-bit words, shape [len(counters), draws]; row c depends on c alone."""
        return words_of(self.keys(counters), draws)

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
        word = self.words(counters, 1)[:, 0] >> np.uint64(32)
        return ((word * np.uint64(n)) >> np.uint64(32)).astype(np.int64)

    def choose(self, n: int, size: int) -> NDArray[np.int64]:
        """`size` distinct numbers below n, uniform without replacement, in ascending order."""
        if size >= n:
            return np.arange(n, dtype=np.int64)
        if size == 1:
            word = _mix_int((self.key + int(GAMMA)) & _MASK)
            return np.array([((word >> 32) * n) >> 32], dtype=np.int64)
        return np.sort(self.generator().choice(n, size, replace=False)).astype(np.int64)


class SecretStreams(Streams):
    """Streams that nobody without the secret can tell from chance, whatever else of them is known.

    >>> root = SecretStreams(bytes(32))
    >>> root.child("learn", 3).root == root.child("learn").child(3).root
    True
    """

    __slots__ = ("_lasting", "_secret")

    _secret: bytes
    _lasting: Streams | None

    def __init__(self, secret: bytes, lasting: Streams | None = None) -> None:
        """`lasting` is where what is drawn once for all is drawn from, if not from here."""
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"a secret has {SECRET_BYTES} bytes")
        object.__setattr__(self, "_secret", secret)
        object.__setattr__(self, "_lasting", lasting)

    @classmethod
    def from_seed(cls, seed: int) -> Streams:
        """For simulations alone: who knows the seed knows every draw."""
        return cls(hashlib.blake2b(f"seed:{seed}".encode(), digest_size=SECRET_BYTES).digest())

    def __repr__(self) -> str:
        return "<SecretStreams, redacted>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStreams) and self._secret == other._secret

    def __hash__(self) -> int:
        return hash(self._secret)

    @property
    def key(self) -> int:
        raise ConfigError("secret draws have no key of 64 bits; they are made on --device cpu")

    @property
    def root(self) -> int:
        return int.from_bytes(self._secret, "little")

    def root_bytes(self) -> bytes:
        return self._secret

    def with_lasting(self, lasting: Streams) -> SecretStreams:
        """These streams, with what is drawn once for all drawn from others."""
        return SecretStreams(self._secret, lasting)

    def child(self, *names: str | int) -> SecretStreams:
        secret = self._secret
        for name in names:
            what = f"name:{name}" if isinstance(name, str) else f"number:{int(name)}"
            secret = _derived(secret, what.encode())
        return SecretStreams(secret)

    def lasting(self) -> Streams:
        return self._lasting.lasting() if self._lasting else self.child("share-subset")

    def keys(self, counters: NDArray[np.int64]) -> Keys:
        return _as_words(_derived(self._secret, _number(c)) for c in _listed(counters))

    def paired_keys(self, outer: NDArray[np.int64], inner: NDArray[np.int64]) -> Keys:
        pairs = zip(*(_listed(c) for c in np.broadcast_arrays(outer, inner)), strict=True)
        return _as_words(_derived(_derived(self._secret, _number(a)), _number(b)) for a, b in pairs)

    def generator(self) -> np.random.Generator:
        raise ConfigError("NumPy's generators are not for secret draws")

    def choose(self, n: int, size: int) -> NDArray[np.int64]:
        if size >= n:
            return np.arange(n, dtype=np.int64)
        if size == 1:
            word = int(words_of(self._own(), 1)[0, 0]) >> 32
            return np.array([(word * n) >> 32], dtype=np.int64)
        return np.sort(np.argsort(words_of(self._own(), n)[0], kind="stable")[:size])

    def _own(self) -> Keys:
        return _as_words([self._secret])


def streams_of(root: int) -> Streams:
    """The streams of a root key: secret ones of a key of 256 bits, fast ones of 64 bits."""
    if not 0 <= root < 1 << (8 * SECRET_BYTES):
        raise ConfigError("a root key is a whole number of at most 256 bits")
    return Streams(root) if root <= _MASK else SecretStreams(root.to_bytes(SECRET_BYTES, "little"))


_MASK = (1 << 64) - 1


def _fast_keys(
    key: np.uint64 | NDArray[np.uint64], counters: NDArray[np.int64]
) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return mix_array(key + (counters.astype(np.uint64) + np.uint64(1)) * GAMMA)


def _derived(secret: bytes, what: bytes) -> bytes:
    return hashlib.blake2b(what, key=secret, digest_size=SECRET_BYTES).digest()


def _number(counter: int) -> bytes:
    return f"number:{counter}".encode()


def _listed(counters: NDArray[np.int64]) -> list[int]:
    return [int(c) for c in np.asarray(counters).ravel()]


def _as_words(secrets: Any) -> NDArray[np.uint32]:
    found = np.frombuffer(b"".join(secrets), dtype="<u4").astype(np.uint32)
    return found.reshape(-1, SECRET_BYTES // 4)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * int(_M1)) & _MASK
    z = ((z ^ (z >> 27)) * int(_M2)) & _MASK
    return z ^ (z >> 31)
