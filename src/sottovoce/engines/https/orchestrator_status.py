"""What the operator of an orchestrator sees: counts and the names of data owners, no users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.engines.flower.checkpoint import conducted, read_status
from sottovoce.engines.https.refusals import Tally
from sottovoce.parties.orchestrator_store import OrchestratorStore

LAST_ROUNDS = 100


def figures(
    store: OrchestratorStore, tally: Tally | None = None, last: int = LAST_ROUNDS
) -> dict[str, Any]:
    """Where the federation stands; `tally` has what was counted and not stored yet."""
    with (tally or Tally()).settled() as new:
        refused = Counter(store.refused()) + Counter(new)
    owners = store.owners()
    return {
        "federation": store.federation,
        "round": store.round,
        "target": store.target(),
        "flush_requested": store.flush_requested,
        "users": store.n_users,
        "left": len(store.departed()),
        "items": store.n_items,
        "held": len({item for owner in owners for item in owner.items}),
        "owners": [
            {
                "number": owner.number,
                "name": owner.name,
                "url": owner.entry.url,
                "items": len(owner.items),
                "counted": owner.counted,
            }
            for owner in owners
        ],
        "refused": dict(sorted(refused.items())),
        "training": _training(store.folder),
        "rounds": [
            {**asdict(past), "seconds": round(past.seconds, 3)} for past in store.rounds(last)
        ],
    }


def _training(folder: Path) -> dict[str, Any]:
    """What the conductor of the rounds says, where one is at work."""
    if not conducted(folder):
        return {"state": "stopped"}
    said = read_status(folder)
    names = ("online", "waiting_for", "not_admitted", "problems")
    told = {name: said[name] for name in names if name in said}
    return {"state": str(said.get("state", "starting")), **told}


def metrics(now: Mapping[str, Any]) -> bytes:
    """The same for Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(now))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, now: Mapping[str, Any]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        for name, words in (
            ("round", "Rounds closed so far."),
            ("users", "Users who are enrolled."),
            ("left", "Users who have left."),
            ("items", "Items in the catalogue."),
            ("held", "Items that some data owner holds."),
        ):
            yield GaugeMetricFamily(f"sottovoce_orchestrator_{name}", words, self._now[name])
        yield GaugeMetricFamily(
            "sottovoce_orchestrator_owners", "Data owners.", len(self._now["owners"])
        )
        silent = GaugeMetricFamily(
            "sottovoce_orchestrator_silent",
            "Whether a data owner gave no answer in the last round.",
            labels=["owner"],
        )
        for past in self._now["rounds"][-1:]:
            for name in past["asked"]:
                silent.add_metric([name], float(name in past["silent"]))
        yield silent
        refused = CounterMetricFamily(
            "sottovoce_orchestrator_refused", "Messages refused, by reason.", labels=["reason"]
        )
        for reason, count in self._now["refused"].items():
            refused.add_metric([reason], count)
        yield refused
