"""What the operator of a service sees, for Prometheus: counts, which reveal no one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry


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
