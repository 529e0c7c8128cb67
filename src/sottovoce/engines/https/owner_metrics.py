"""What a data owner's operator sees, for Prometheus: counts, which reveal no one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry


def metrics(figures: Mapping[str, Any], in_flight: int) -> bytes:
    """From what the service says of itself to its operator."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures, in_flight))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, figures: Mapping[str, Any], in_flight: int) -> None:
        self._figures, self._in_flight = figures, in_flight

    def collect(self) -> Iterator[Metric]:
        found = self._figures
        yield GaugeMetricFamily("sottovoce_owner_items", "Items that it holds.", found["items"])
        held = GaugeMetricFamily(
            "sottovoce_owner_held", "What it keeps of all users together.", labels=["what"]
        )
        for what, count in found["held"].items():
            held.add_metric([what], count)
        yield held
        yield GaugeMetricFamily(
            "sottovoce_owner_in_flight_bytes", "Bytes of requests being received or written.",
            self._in_flight,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "sottovoce_owner_node_running", "Whether it takes part in the orchestrator's rounds.",
            int(found["node"] == "running"),
        )  # fmt: skip
        for name, label, words in (
            ("messages", "outcome", "Messages of users, by what became of them."),
            ("updates", "outcome", "Updates that the orchestrator counted, or did not."),
            ("refused", "reason", "Requests refused since the start, by reason."),
        ):
            family = CounterMetricFamily(f"sottovoce_owner_{name}", words, labels=[label])
            for which, count in found[name].items():
                family.add_metric([which], count)
            yield family
