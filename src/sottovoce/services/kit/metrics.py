"""What the operator of a service sees, for Prometheus: counts, which reveal no one."""

from __future__ import annotations

import bisect
import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

import sottovoce
from sottovoce.errors import KeyTrouble
from sottovoce.services.kit.answers import Send
from sottovoce.stores.keys import show_keys
from sottovoce.wire.frames import PROTOCOL

BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of the histogram of answer times, in seconds."""


class Histogram(NamedTuple):
    """A histogram: the number of values in each of `BUCKETS` and above them, and their sum."""

    counts: tuple[int, ...]
    sum: float

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts that Prometheus expects."""
        ends = [*map(str, BUCKETS), "+Inf"]
        return list(zip(ends, map(float, itertools.accumulate(self.counts)), strict=True))


class Figure(NamedTuple):
    name: str
    """Without the service's prefix."""
    words: str
    value: float | Sequence[tuple[Sequence[str], float]] | dict[tuple[str, ...], Histogram]
    """One number, or one for each value of the labels."""
    labels: tuple[str, ...] = ()
    counts: bool = False
    """Whether it only grows."""


def by(label: str, name: str, words: str, counts: Mapping[str, int]) -> Figure:
    """What was counted, by one label."""
    return Figure(name, words, [((k,), n) for k, n in counts.items()], (label,), counts=True)


def known(name: str, words: str, value: float | None) -> Figure:
    """One number, or none where it is not known: the series is named in any case."""
    return Figure(name, words, [] if value is None else value)


def one_of(label: str, name: str, words: str, all_of: Iterable[str], now: str | None) -> Figure:
    """1 for what is the case now, if anything, and 0 for the others."""
    values = dict.fromkeys(all_of, 0.0) | ({now: 1.0} if now is not None else {})
    return Figure(name, words, [((k,), v) for k, v in values.items()], (label,))


def unix(moment: str | None) -> float | None:
    """Seconds since 1970 of a time in ISO's form, as stores keep it."""
    return None if not moment else datetime.fromisoformat(moment).timestamp()


def of_service(service: str, keys: Path) -> Iterator[Figure]:
    """What every service has: certificates that expire and a disk that fills up."""
    try:
        ends = [
            ((service, one.file.removesuffix(".crt")), one.not_after.timestamp())
            for one in show_keys(keys)
        ]
    except KeyTrouble:  # plain HTTP, say
        ends = []
    words = "When a certificate expires, in seconds since 1970."
    labels = ("service", "certificate")
    yield Figure("certificate_expires_timestamp_seconds", words, ends, labels)
    try:
        disk = [((service,), float(each)) for each in shutil.disk_usage(keys)[::2]]
        size, free = disk[:1], disk[1:]
    except OSError:
        size, free = [], []
    words = "Size of the disk on which the service's folder is."
    yield Figure("disk_size_bytes", words, size, ("service",))
    words = "What is free on the disk on which the service's folder is."
    yield Figure("disk_free_bytes", words, free, ("service",))


def build(service: str) -> Iterator[Figure]:
    """Yield the release that runs, as labels of the value 1."""
    words = "1, with the release and the number of its protocol."
    labels = (sottovoce.__version__, str(PROTOCOL), service.removeprefix("the "))
    yield Figure("build_info", words, [(labels, 1.0)], ("version", "protocol", "service"))


class RequestCounts:
    """Counts of answered requests by route and status, and the times that they took. A route is one
    that the service knows, without what follows in the address. Use it in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._answered: Counter[tuple[str, str]] = Counter()
        self._within: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def counted(self, route: str | None, send: Send) -> Send:
        """Wrap the `send` of one request, to count it when its answer begins."""
        begun, name = self._clock(), route or "other"

        async def counting(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._count(name, message["status"], self._clock() - begun)
            await send(message)

        return counting

    def at_hand(self, route: str) -> None:
        """Count a request that was answered at once from a prepared answer."""
        self._answered[route, "2xx"] += 1

    def _count(self, name: str, status: int, seconds: float) -> None:
        self._answered[name, f"{status // 100}xx"] += 1
        within = self._within.setdefault(name, [0] * (len(BUCKETS) + 1))
        within[bisect.bisect_left(BUCKETS, seconds)] += 1
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def figures(self) -> Iterator[Figure]:
        """Yield the figures. They are copied first, because the loop goes on counting."""
        answered, within, seconds = dict(self._answered), dict(self._within), dict(self._seconds)
        words = "Requests that were answered, by address and status."
        counts = [(key, float(many)) for key, many in sorted(answered.items())]
        yield Figure("requests", words, counts, ("route", "status"), counts=True)
        words = "Seconds until an answer began, by address, of answers that were not ready before."
        yield Figure(
            "request_seconds",
            words,
            {(name,): Histogram(tuple(within[name]), seconds[name]) for name in sorted(seconds)},
            ("route",),
        )


def of_process() -> bytes:
    """Return what the collectors of `prometheus_client` measure of process and interpreter."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry)


def exposition(prefix: str, figures: Iterable[Figure]) -> bytes:
    """The figures in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(prefix, figures))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, prefix: str, figures: Iterable[Figure]) -> None:
        self._prefix, self._figures = prefix, figures

    def collect(self) -> Iterator[Metric]:
        for figure in self._figures:
            name = f"sottovoce_{self._prefix}{figure.name}"
            if isinstance(figure.value, dict):
                spread = HistogramMetricFamily(name, figure.words, labels=figure.labels)
                for which, value in figure.value.items():
                    spread.add_metric(which, value.buckets, value.sum)
                yield spread
                continue
            family = CounterMetricFamily if figure.counts else GaugeMetricFamily
            if isinstance(figure.value, int | float):
                yield family(name, figure.words, figure.value)
                continue
            made = family(name, figure.words, labels=figure.labels)
            for labels, number in figure.value:
                made.add_metric(labels, number)
            yield made
