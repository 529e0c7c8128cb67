"""What a proxy's operator sees, for Prometheus: counts by tier and round, which reveal no one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.engines.https.proxy_store import ProxyStore
from sottovoce.engines.https.refusals import Tally


def metrics(store: ProxyStore, tally: Tally, in_flight: int) -> bytes:
    """`tally` has what was counted and not stored yet."""
    with tally.settled() as new:
        refused = Counter(store.refused()) + Counter(new)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(store, refused, in_flight))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, store: ProxyStore, refused: Counter[str], in_flight: int) -> None:
        self._store, self._refused, self._in_flight = store, refused, in_flight

    def collect(self) -> Iterator[Metric]:
        now = self._store.position
        yield GaugeMetricFamily("sottovoce_proxy_round", "Round of the federation.", now.round)
        yield GaugeMetricFamily("sottovoce_proxy_open", "Whether it is open.", int(now.open))
        yield GaugeMetricFamily(
            "sottovoce_proxy_accounts", "Devices that have enrolled.", self._store.accounts()
        )
        yield GaugeMetricFamily(
            "sottovoce_proxy_in_flight_bytes", "Bytes of submissions being received or written.",
            self._in_flight,
        )  # fmt: skip
        held = GaugeMetricFamily(
            "sottovoce_proxy_held", "Devices whose reports are held.",
            labels=["round", "tier", "state"],
        )  # fmt: skip
        for batch in self._store.held():
            held.add_metric([str(batch.round), str(batch.tier), batch.state], batch.devices)
        yield held
        outcomes = CounterMetricFamily(
            "sottovoce_proxy_devices", "Devices whose reports were handed over or dropped.",
            labels=["outcome", "tier"],
        )  # fmt: skip
        for outcome, tier, devices in self._store.outcomes():
            outcomes.add_metric([outcome, str(tier)], devices)
        yield outcomes
        refused = CounterMetricFamily(
            "sottovoce_proxy_refused", "Messages refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._refused.items()):
            refused.add_metric([reason], count)
        yield refused
