"""What the operator of a service sees, for Prometheus: counts, which reveal no one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.errors import KeyTrouble
from sottovoce.stores.keys import show_keys


class Figure(NamedTuple):
    name: str
    """Without the service's prefix."""
    words: str
    value: float | Sequence[tuple[Sequence[str], float]]
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
            family = CounterMetricFamily if figure.counts else GaugeMetricFamily
            name = f"sottovoce_{self._prefix}{figure.name}"
            if isinstance(figure.value, int | float):
                yield family(name, figure.words, figure.value)
                continue
            made = family(name, figure.words, labels=figure.labels)
            for labels, value in figure.value:
                made.add_metric(labels, value)
            yield made
