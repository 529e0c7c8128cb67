"""A round of a secure sum: the server adds up what it cannot read, the proxy its masks.

    sottovoce bench secure-sum [--quick] [--json]

10,000 devices, 25,000 items, 21 numbers each: 525,000 numbers of 8 bytes from every device, zeros
included. Two threads for the server and for the proxy, one for a device.

What is measured of the server: adding up the masked updates, 16 at a time, from memory, and opening
the sum, the check of its size included. They lie in memory as 192 different updates, a multiple of
what any cache holds, and each is taken as that of 52 devices. What is not: receiving them, which
for 42 GB a round is the network's affair, checking signatures, and the disk. Of the proxy: making
and adding up the masks of 10,000 seeds, and the noise of a round; not opening the sealed seeds. The
sum that comes out is compared with that of the updates in the clear; were it another in a single
number, there would be no figures.

Peers: NumPy's plain sum of the same numbers, in one thread, one update after the other; and the
same work by the functions of Flower's SecAgg+, where it is installed: its server adds the updates
and takes off a mask for each, made from a seed of 32 bits with the Mersenne Twister. Its exchange
of keys and secret shares is left out.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.links import SEALED_SEED_BYTES, SecureSum
from sottovoce.core.masking import masked
from sottovoce.core.messages import GRID, MaskedReports, MaskSeeds, row_bytes
from sottovoce.errors import WrongSum
from sottovoce.parties.helper import Helper
from sottovoce.parties.secure_sum import MaskedSum
from sottovoce.privacy.central import gaussian_noise
from sottovoce.rng import Streams
from sottovoce.runs.folder import environment

Progress = Callable[[str], None]
THREADS = 2
AT_ONCE = 16
ROWS_SENT = 200
"""Of a device without a secure sum: a hundred draws of two items each."""
KEY = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Scale:
    devices: int = 10_000
    items: int = 25_000
    width: int = 21
    pool: int = 192
    """Different updates in memory, a multiple of AT_ONCE."""
    peer_devices: int = 20
    """Of Flower's work; multiplied."""
    turns: int = 2

    @property
    def numbers(self) -> int:
        return self.items * self.width


QUICK = Scale(devices=1_000, items=2_500, pool=96, peer_devices=10, turns=1)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else Scale()
    say("updates and masks")
    plain, hidden, seeds = updates(scale)
    server = proxy = numpy_sum = float("inf")
    for turn in range(scale.turns):
        say(f"turn {turn + 1} of {scale.turns}: the server, the proxy, NumPy")
        added, opened, made = one_round(scale, plain, hidden, seeds)
        server, proxy = min(server, added + opened), min(proxy, made)
        numpy_sum = min(numpy_sum, timed(lambda: plain_sum(scale, hidden)))
    flower = flower_seconds(scale, hidden, seeds)
    device = best(lambda: masked(plain[0], seeds[0]), 10)
    stream = keystream_seconds(scale)
    noise = best(lambda: gaussian_noise(KEY, 1, scale.numbers, 1e8), 5)
    sent, direct = 8 * scale.numbers + SEALED_SEED_BYTES, ROWS_SENT * row_bytes(scale.width - 1)
    size = f"{scale.devices:,} devices × {scale.items:,} items × {scale.width} values"
    results = [
        row(f"server, a round of {size}, {THREADS} threads", server, "s",
            f"NumPy, the plain sum, one thread: {numpy_sum:.4g}", server / numpy_sum,
            target=None if quick else 10.0),
        row(f"proxy, the masks of that round, {THREADS} threads", proxy, "s",
            "NumPy, the plain sum", proxy / numpy_sum),
        row("both together", server + proxy, "s", *beside(flower, server + proxy,
            f"Flower's functions for SecAgg+, {scale.peer_devices} devices multiplied")),
        row("proxy, the noise on a sum, one thread", 1e3 * noise, "ms"),
        row("device, masking its update, one thread", 1e3 * device, "ms",
            *beside(stream, device, "the bare stream of ChaCha20", 1e3)),
        row("bytes per device and round", sent, "bytes",
            f"direct link, {ROWS_SENT} rows: {direct:,}", sent / direct),
        row("received by the server in that round", scale.devices * sent / 1e9, "GB"),
    ]  # fmt: skip
    here = environment()
    machine = {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "numba")},
        "timing": f"wall time, best of {scale.turns} turns",
    }
    return {"bench": "secure-sum", "machine": machine, "results": results}


def row(
    name: str,
    value: float,
    unit: str,
    peer: str = "",
    ratio: float | None = None,
    target: float | None = None,
) -> dict[str, Any]:
    """One figure; the target is the most that the value may be."""
    return {
        "name": name,
        "value": float(f"{value:.4g}") if unit != "bytes" else value,
        "unit": unit,
        "peer": peer,
        "ratio": None if ratio is None else float(f"{ratio:.4g}"),
        "target": target,
        "met": None if target is None else value <= target,
    }


def beside(
    theirs: float | None, ours: float, name: str, unit: float = 1.0
) -> tuple[str, float | None]:
    """The words for a peer and the ratio to it; nothing where it is not installed."""
    return ("", None) if theirs is None else (f"{name}: {unit * theirs:.4g}", ours / theirs)


# --- the round ------------------------------------------------------------------------------------


def updates(scale: Scale) -> tuple[NDArray[np.int64], NDArray[np.uint64], list[bytes]]:
    """Different updates, [pool, items, width], the same masked, and the masks' seeds."""
    rng = Streams.from_seed(1).child("updates").generator()
    plain = np.zeros((scale.pool, scale.items, scale.width), dtype=np.int64)
    for one in plain:
        rows = rng.choice(scale.items, min(ROWS_SENT, scale.items), replace=False)
        one[rows] = rng.integers(-int(GRID), int(GRID), (len(rows), scale.width))
    seeds = [rng.bytes(32) for _ in range(scale.pool)]
    hidden = np.stack([masked(one, seed) for one, seed in zip(plain, seeds, strict=True)])
    return plain, hidden.astype(np.uint64), seeds


def one_round(
    scale: Scale, plain: NDArray[np.int64], hidden: NDArray[np.uint64], seeds: list[bytes]
) -> tuple[float, float, float]:
    """Seconds of adding up, of opening, and of the proxy."""
    link, who = SecureSum(min_devices=2), np.arange(scale.devices)
    total = MaskedSum(0, scale.items, scale.width, link, GRID)
    begun = time.perf_counter()
    for start in range(0, scale.devices, AT_ONCE):
        some, at = who[start : start + AT_ONCE], start % scale.pool
        total.add(MaskedReports(0, some, hidden[at : at + len(some)]), THREADS)
    added = time.perf_counter() - begun
    every = tuple(seeds[k % scale.pool] for k in range(scale.devices))
    begun = time.perf_counter()
    told = Helper(link, scale.numbers, KEY).sum_masks(MaskSeeds(0, who, every), THREADS)
    made = time.perf_counter() - begun
    begun = time.perf_counter()
    sums = total.open(told)
    opened = time.perf_counter() - begun
    times = np.bincount(np.arange(scale.devices) % scale.pool, minlength=scale.pool)
    expected = sum(int(n) * one for n, one in zip(times, plain, strict=True))
    if not np.array_equal(sums.dense(scale.items), expected):
        raise WrongSum("the sum of masked updates is not that of the updates")
    return added, opened, made


def plain_sum(scale: Scale, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The peer of the server: no check, no order, nothing to open."""
    total = np.zeros(numbers.shape[1], dtype=np.uint64)
    for k in range(scale.devices):
        total += numbers[k % scale.pool]
    return total


def flower_seconds(scale: Scale, hidden: NDArray[np.uint64], seeds: list[bytes]) -> float | None:
    """What Flower's server does for so many devices; nothing where it is not installed."""
    try:
        arithmetic = importlib.import_module("flwr.common.secure_aggregation.ndarrays_arithmetic")
        utils = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils")
    except ImportError:
        return None
    modulus, shape = 1 << 32, [(scale.numbers,)]
    cut = (hidden[: scale.peer_devices] % np.uint64(modulus)).astype(np.int64)

    def work() -> None:
        total = [np.zeros(scale.numbers, dtype=np.int64)]
        for one in cut:
            total = arithmetic.parameters_addition(total, [one])
        for seed in seeds[: len(cut)]:
            mask = utils.pseudo_rand_gen(seed, modulus, shape)
            total = arithmetic.parameters_subtraction(total, mask)
        arithmetic.parameters_mod(total, modulus)

    return timed(work) / len(cut) * scale.devices


def keystream_seconds(scale: Scale) -> float | None:
    """What no mask can do without."""
    try:
        ciphers = importlib.import_module("cryptography.hazmat.primitives.ciphers")
    except ImportError:
        return None
    zeros = bytes(8 * scale.numbers)
    room = bytearray(len(zeros))

    def work() -> None:
        made = ciphers.Cipher(ciphers.algorithms.ChaCha20(KEY, bytes(16)), None).encryptor()
        made.update_into(zeros, room)

    return best(work, 10)


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best(work: Callable[[], object], turns: int) -> float:
    work()  # the first time takes longer
    return min(timed(work) for _ in range(turns))


if __name__ == "__main__":
    shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
    print(json.dumps(shown, indent=1, ensure_ascii=False))
