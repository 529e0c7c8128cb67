"""What an operator sees."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.engines.https import batches, records, roster, searches
from sottovoce.engines.https.database import Database
from sottovoce.engines.https.refusals import Tally

LAST_ROUNDS = 100


def status(
    database: Database, tally: Tally | None = None, last: int = LAST_ROUNDS
) -> dict[str, Any]:
    """Where the federation stands, with its last rounds; `tally` has what a running server has
    counted and not stored yet."""
    with contextlib.ExitStack() as stack:
        new = {} if tally is None else stack.enter_context(tally.settled())
        link = stack.enter_context(database.reading())
        now = records.position(link)
        enrolled, active = roster.count_devices(link)
        shut_out = roster.shut_numbers(link)
        why = roster.why_shut(link, shut_out)
        search = searches.found(link)
        refused = Counter(records.refused(link)) + Counter(new)
        past = records.past_rounds(link, last)
        handed_over = batches.heads(link, now.round)
    return {
        "round": now.round,
        "attempt": now.attempt,
        "state": now.state,
        "target": now.target,
        "reported": now.reported,
        "goal": now.goal,
        "asked": now.asked,
        "enrolled": enrolled,
        "active": active,
        "shut_out": shut_out,
        "shut_out_why": {str(number): words for number, words in sorted(why.items())},
        "search": searches.to_table(search),
        "batches": [
            {"tier": b.tier, "devices": b.devices, "parts": b.parts, "stored": b.stored}
            for b in handed_over
        ],
        "refused": dict(sorted(refused.items())),
        "rounds": [attempt.to_table() for attempt in past],
    }


def metrics(database: Database, tally: Tally, in_flight: int) -> bytes:
    """The same for Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(status(database, tally, last=1), in_flight))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, now: dict[str, Any], in_flight: int) -> None:
        self._now, self._in_flight = now, in_flight

    def collect(self) -> Iterator[Metric]:
        for name, words in (
            ("round", "Rounds folded so far."),
            ("attempt", "Attempt of the current round."),
            ("target", "Rounds to run."),
            ("reported", "Reports accepted in the open round."),
            ("goal", "Reports that the open round waits for."),
            ("asked", "Devices asked in the open round."),
            ("enrolled", "Devices that have enrolled and were not shut out."),
            ("active", "Enrolled devices that are asked."),
        ):
            yield GaugeMetricFamily(f"sottovoce_{name}", words, self._now[name])
        yield GaugeMetricFamily(
            "sottovoce_searching",
            "Whether the server looks for a device that spoils sums.",
            int(self._now["search"]["on"]),
        )
        yield GaugeMetricFamily(
            "sottovoce_in_flight_bytes", "Bytes of reports being received.", self._in_flight
        )
        refused = CounterMetricFamily(
            "sottovoce_refused", "Messages refused, by reason.", labels=["reason"]
        )
        for reason, count in self._now["refused"].items():
            refused.add_metric([reason], count)
        yield refused
