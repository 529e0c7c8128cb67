"""A round of a checked sum: what a device sends, and what an aggregator has to do for it.

    sottovoce bench checked-sum [--quick] [--json]

10,000 devices with 60 of the 500 items of a head each; popularities of 3,667 and of 40,000 items.
What is measured of an aggregator: making its two shares of every device from secrets and from what
travelled, its part of the checks, its part of the sum with its noise, from memory, in a process of
its own whose memory is looked at. What is not: receiving and keeping messages. The sum that three
aggregators open is compared with the plain one; were it another in a single number, or a device
left out, there would be no figures.

Peers, for the same devices: the helper of a plain secure sum, which adds up their masks (all pairs,
32 bits each); and NumPy's product of the same vectors in the clear, which protects nothing.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.contributions import numbers_of
from sottovoce.core.links import SEALED_SEED_BYTES, SHARED_RECORD_BYTES, CheckedSum, SecureSum
from sottovoce.core.masking import seeds_from, sum_masks
from sottovoce.core.shares import AGGREGATORS, NUMBER_BYTES, Form, Pair, bits_of, split
from sottovoce.errors import WrongSum
from sottovoce.experiment import load_benchmark
from sottovoce.parties.aggregator import (
    Aggregating,
    agreed,
    at_once,
    in_memory,
    left_out,
    opened_sum,
    pair_of,
)
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.folder import environment

sums: Any = load_benchmark("secure-sum")
Progress = Callable[[str], None]
HEAD, OWN = 500, 60
THREADS = 2
LINK, RELEASE = CheckedSum(), OwnEpsilon(1.0)
COINS = [bytes([k]) * 32 for k in range(AGGREGATORS)]
Secrets = list[tuple[bytes, ...]]


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    devices = 500 if quick else 10_000
    say(f"three aggregators, {devices:,} devices")
    called = subprocess.run(  # so that its memory is its own
        [sys.executable, __file__, "--measured", str(devices)],
        stdout=subprocess.PIPE,
        check=True,
    )
    seen = json.loads(called.stdout)
    messages = devices * bytes_of(LINK.form(HEAD, True))
    masks, product = helper_seconds(devices), product_seconds(devices)
    results = [
        sums.row("an aggregator: shares, checks and its part of the sum, "
            f"{devices:,} devices × head of {HEAD}, {THREADS} threads",
            seen["shares"] + seen["checks"] + seen["sum"], "s",
            f"a plain secure sum's helper, the same devices' masks: {masks:.4g}",
            (seen["shares"] + seen["checks"] + seen["sum"]) / masks, target=60.0),
        sums.row("of that, its part of the sum", seen["sum"], "s",
            f"NumPy, the product in the clear: {product:.4g}", seen["sum"] / product),
        sums.row("of that, checks", 1e3 * seen["checks"] / devices, "ms a device", target=2.0),
        sums.row(f"an aggregator's memory, {messages / 1e6:.0f} MB of messages in it",
            seen["memory"] / 2**20, "MiB", target=1024.0),
        sums.row("a device: bits and shares of a head", 1e3 * seen["device"], "ms"),
    ]  # fmt: skip
    for items, most in ((3_667, 60_000), (40_000, 650_000)):
        form = LINK.form(items + 1, False)
        say(f"popularity of {items:,} items")
        checked = popularity_seconds(form)
        plain = NUMBER_BYTES * (items + 1) + SEALED_SEED_BYTES
        sent = bytes_of(form)
        results += [
            sums.row(f"bytes up, popularity of {items:,} items", sent, "bytes",
                f"plain secure sum, 32 bits: {plain:,}", sent / plain, target=most),
            sums.row("shares and checks of it", 1e3 * checked, "ms a device", target=2.0),
        ]  # fmt: skip
    head, plain = LINK.form(HEAD, True), NUMBER_BYTES * numbers_of(HEAD, True) + SEALED_SEED_BYTES
    results.append(
        sums.row(f"bytes up, pairs of a head of {HEAD}", bytes_of(head), "bytes",
            f"plain secure sum, 32 bits: {plain:,}", bytes_of(head) / plain, target=50_000)
    )  # fmt: skip
    here = environment()
    machine = {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "numba")},
        "timing": "wall time, once, after a small round that compiles",
    }
    return {"bench": "checked-sum", "machine": machine, "results": results}


def bytes_of(form: Form) -> int:
    return NUMBER_BYTES * form.elements + SHARED_RECORD_BYTES


def measured(devices: int) -> dict[str, float]:
    """Seconds of one aggregator in this process, and the most memory that it took."""
    round_of(50)  # compiles
    return round_of(devices)


def round_of(devices: int) -> dict[str, float]:
    algorithm = GramConfig(popularity_share=0.1).build_under(RELEASE, LINK, 1)
    rules = [one.rules for one in in_memory(LINK, algorithm, RELEASE, Streams.from_seed(1))]
    entries, form = vectors(devices), LINK.form(HEAD, True)
    own = secrets_of(devices)
    start = time.perf_counter()
    travelled = np.empty((devices, form.elements), dtype=np.uint32)
    for at, mine in enumerate(own):
        travelled[at] = split(bits_of(form, entries[at : at + 1])[0], mine)
    device = (time.perf_counter() - start) / devices
    named, kept = agreed(b"a set", COINS), np.ones(devices, dtype=bool)
    checks, parts, seconds = [], [], {}
    for one in rules:
        spent = [0.0]
        start = time.perf_counter()
        checks.append(
            one.checks(form, named, sharing(one, own, travelled, spent), devices, THREADS)
        )
        checking, shares = time.perf_counter() - start - spent[0], spent[0]
        spent[0], start = 0.0, time.perf_counter()
        parts.append(one.total(1, form, named, sharing(one, own, travelled, spent), kept, b""))
        summing, shares = time.perf_counter() - start - spent[0], shares + spent[0]
        if one.number == 1:  # who adds the noise, and has the share that travelled
            memory = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seconds = {"shares": shares, "checks": checking, "sum": summing, "memory": memory}
    noise = rules[1].noise(1, form.numbers, b"")
    whole = entries.T @ entries
    plain = np.concatenate([np.diag(whole), whole[np.triu_indices(HEAD, 1)]])
    if left_out(checks).any() or not np.array_equal(
        opened_sum(form, parts, devices, 1e6), plain + noise
    ):
        raise WrongSum("the checked sum is not the plain one")
    return {**seconds, "device": device}


def sharing(
    rules: Aggregating, own: Secrets, travelled: np.ndarray, spent: list[float]
) -> Callable[[], Iterator[Pair]]:
    """An aggregator's shares, some at a time, and the seconds that they take."""

    def some() -> Iterator[Pair]:
        form = LINK.form(HEAD, True)
        many = at_once(form)
        for at in range(0, len(own), many):
            start = time.perf_counter()
            mine = [
                (q[rules.number], q[(rules.number + 1) % AGGREGATORS]) for q in own[at : at + many]
            ]
            pair = pair_of(form, rules.number, mine, travelled[at : at + many])
            spent[0] += time.perf_counter() - start
            yield pair

    return some


def popularity_seconds(form: Form) -> float:
    """Shares and checks of one device."""
    algorithm = GramConfig(popularity_share=0.1).build_under(RELEASE, LINK, 1)
    rules = in_memory(LINK, algorithm, RELEASE, Streams.from_seed(1))[1].rules
    rng, own = np.random.default_rng(0), secrets_of(at_once(form))
    travelled = rng.integers(0, 2**31 - 1, form.elements, dtype=np.uint32)
    mine = [(q[1], q[2]) for q in own]
    many, best = at_once(form), float("inf")
    for _ in range(3):
        start = time.perf_counter()
        pair = pair_of(form, 1, mine[:many], [travelled] * many)
        rules.checks(form, bytes(32), lambda: [pair], many, THREADS)  # noqa: B023
        best = min(best, (time.perf_counter() - start) / many)
    return best


def helper_seconds(devices: int) -> float:
    """The masks of as many devices of a plain secure sum."""
    seeds = seeds_from(bytes(32), np.arange(devices), 1)
    start = time.perf_counter()
    sum_masks(seeds, numbers_of(HEAD, True), THREADS, SecureSum(bits=32).bits)
    return time.perf_counter() - start


def product_seconds(devices: int) -> float:
    clear = vectors(devices).astype(np.float64)
    start = time.perf_counter()
    clear.T @ clear
    return time.perf_counter() - start


def vectors(devices: int) -> np.ndarray:
    """So many of the head's items each, all alike, as long as is permitted."""
    rng = np.random.default_rng(0)
    found = np.zeros((devices, HEAD), dtype=np.int64)
    places = np.argsort(rng.random((devices, HEAD)), axis=1)[:, :OWN]
    np.put_along_axis(found, places, int(256 / OWN**0.5), axis=1)
    return found


def secrets_of(devices: int) -> Secrets:
    seeds = seeds_from(bytes(range(32)), np.arange(AGGREGATORS * devices), 0)
    return [tuple(seeds[at : at + AGGREGATORS]) for at in range(0, len(seeds), AGGREGATORS)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measured"]:
        print(json.dumps(measured(int(sys.argv[2]))))
    else:
        print(json.dumps(run(quick="--quick" in sys.argv), indent=1))
