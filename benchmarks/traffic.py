"""Bytes that a device sends and receives in a round, measured at the socket, beside what they must
be; and what downloading only the changed rows saves.

    sottovoce bench traffic [--quick] [--json]

Real agents take part in a real federation over TLS on loopback, with Italy's catalogue (a generated
town of its size where that data set is not there). A forwarder between them and the server counts
every byte: handshakes, questions whether there is a round, headers, signatures. The peer of each
figure is the least that has to travel: four bytes per number and per item number.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from sottovoce.data.sources import available
from sottovoce.engines.https.trial import HttpsTrial
from sottovoce.engines.versions import encode_delta, encode_model
from sottovoce.experiment import Experiment
from sottovoce.federation import Federation
from sottovoce.messages import row_bytes
from sottovoce.runs import environment
from sottovoce.trials import world_of

Progress = Callable[[str], None]
DEVICES = 8
CONFIGURATIONS = ("sFPL", "sFPL+", "pFPL", "pFPL+")
_CHUNK = 1 << 16


@dataclass
class Forwarder:
    """Passes connections on to a port of this machine and counts bytes each way."""

    target: int
    up: int = 0
    down: int = 0
    connections: int = 0
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def counts(self) -> tuple[int, int, int]:
        return self.up, self.down, self.connections

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.connections += 1
                for source, sink, name in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(
                        target=self._pass, args=(source, sink, name), daemon=True
                    ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                setattr(self, name, getattr(self, name) + len(chunk))
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def run(*, quick: bool, progress: Progress) -> dict[str, Any]:
    results = [*_measured(quick, progress), *_saved(quick, progress)]
    return {"bench": "traffic", "machine": environment()["hardware"], "results": results}


def _experiment(configuration: str, size: int, rounds: int) -> Experiment:
    italy = "foursquare-italy" in available()
    data: dict[str, Any] = {"source": "town"}
    if italy:  # as the experiment files under fpl/ take it
        data = {"source": "foursquare-italy", "min_user_items": 20}
    return Experiment.from_table(
        {
            "name": "traffic",
            "seed": 1,
            "data": data,
            "town": {"residents": 1400, "venues": 25_000},
            "algorithm": {
                "configuration": configuration,
                "embedding_size": size,
                "rounds": rounds,
            },
            "consent": {"share_positives": 0.5},
            "service": {"poll_seconds": 3.0, "deadline_seconds": 120.0},
        }
    )


def _federation(experiment: Experiment) -> tuple[Any, Federation]:
    dataset = experiment.dataset()
    federation = Federation.build(
        experiment.algorithm,
        experiment.split(dataset).train,
        experiment.records(dataset),
        experiment.release,
        experiment.streams().child("federation"),
    )
    return dataset, federation


def _measured(quick: bool, progress: Progress) -> Iterator[dict[str, Any]]:
    rounds = 3 if quick else 6
    for size in (10,) if quick else (10, 50):
        progress(f"{DEVICES} agents over TLS, vectors of {size}")
        experiment = _experiment("pFPL+", size, rounds)
        dataset, federation = _federation(experiment)
        whole = world_of(experiment, dataset, federation)
        few = federation.devices.willing()[:DEVICES]
        cohort = whole.cohort.take(few)
        cohort.users[:] = np.arange(DEVICES)
        cohort.consent.users[:] = np.arange(DEVICES)
        world = replace(
            whole,
            cohort=cohort,
            names=[whole.names[row] for row in few],
            cohort_size=DEVICES,
            rules=replace(whole.rules, min_devices=DEVICES),
        )
        yield from _one_fleet(world, size, rounds)


def _one_fleet(world: Any, size: int, rounds: int) -> Iterator[dict[str, Any]]:
    n_items, width = world.terms.n_items, world.terms.width
    forwarders: list[Forwarder] = []

    def reroute(url: str) -> str:
        forwarder = Forwarder(int(urlsplit(url).port or 0))
        forwarder.start()
        forwarders.append(forwarder)
        return f"https://127.0.0.1:{forwarder.port}"

    with tempfile.TemporaryDirectory() as folder:
        trial = HttpsTrial(world, Path(folder) / "services", DEVICES, reroute=reroute)
        with trial.running():
            tables, counts = [], []
            for target in (1, rounds):
                trial.advance(target, lambda done: None)
                tables.append(trial.gather().items)
                counts.append(np.array(forwarders[0].counts()))
        forwarders[0].close()
        (entries,) = trial.ledger()
    sent = (entries.positive_rows + entries.negative_rows).astype(np.int64)
    first = sent[entries.round == 0].sum() / DEVICES
    later = sent[entries.round > 0].sum() / DEVICES / (rounds - 1)
    model = 4 * n_items * width
    cost = 4 * width * (n_items + world.terms.triples * 1.5)
    up, down, _ = counts[0] / DEVICES
    what = f"vectors of {size}, {n_items:,} items, {world.terms.triples} draws"
    yield _row(
        f"first round, whole model, both ways ({what})",
        up + down,
        "least that must travel",
        model + first * row_bytes(size),
    )
    yield _row(f"the same beside one contact of CCE ({what})", up + down, "CCE in bytes", cost)
    changed = _changed_rows(tables, world, rounds)
    up, down, connections = (counts[1] - counts[0]) / DEVICES / (rounds - 1)
    least_down, least_up = changed * (4 + 4 * width), later * row_bytes(size)
    yield _row(
        f"later rounds, changed rows, both ways ({what})",
        up + down,
        "least that must travel",
        least_down + least_up,
    )
    yield _row(f"later rounds, down ({what})", down, "changed rows", least_down)
    yield _row(f"later rounds, up ({what})", up, "rows sent", least_up)
    yield _row(f"the same beside one contact of CCE ({what})", up + down, "CCE in bytes", cost)
    yield {"name": f"connections a round ({what})", "value": connections, "unit": "connections"}


def _changed_rows(tables: list[Any], world: Any, rounds: int) -> float:
    """Rows that change in one round, on average: from the rows that devices name."""
    per_round = (tables[0] != tables[1]).any(axis=1).sum()
    if rounds == 2:
        return float(per_round)
    # Rows that changed over several rounds overlap; with few devices hardly.
    return float(per_round) / (rounds - 1)


def _row(name: str, value: float, peer: str, least: float) -> dict[str, Any]:
    ratio = value / least
    target = 1.1 if peer != "CCE in bytes" else None
    return {
        "name": name,
        "value": round(float(value)),
        "unit": "bytes per device and round",
        "peer": f"{peer}: {least:,.0f}",
        "ratio": ratio,
        "target": target,
        "met": None if target is None else bool(ratio <= target),
    }


def _saved(quick: bool, progress: Progress) -> Iterator[dict[str, Any]]:
    """Fifty rounds of each configuration: what a device that keeps up downloads."""
    rounds = 10 if quick else 50
    codec = pa.Codec("zstd", compression_level=3)

    def packed(content: bytes) -> int:
        return min(len(content), len(codec.compress(content, asbytes=True)))

    for configuration in CONFIGURATIONS:
        progress(f"{rounds} rounds of {configuration}: whole models and changed rows")
        _, federation = _federation(_experiment(configuration, 50, rounds))
        server, willing = federation.server, federation.devices.willing()
        whole = whole_packed = delta = 0
        for round in range(rounds):
            view, before = server.publish(), server.items
            rows = willing[server.select(len(willing), federation.schedule.cohort_size)]
            server.fold(federation.devices.report_summed(view, rows))
            after = server.publish()
            changed = (before != after.items).any(axis=1)
            full = encode_model(after)
            whole += len(full)
            whole_packed += packed(full)
            delta += min(packed(full), packed(encode_delta(round, after, changed)))
        yield {
            "name": f"download of {rounds} rounds, {configuration}, kept up with",
            "value": delta / 1e6,
            "unit": "MB",
            "peer": f"whole models, uncompressed: {whole / 1e6:,.1f} MB "
            f"(compressed {whole_packed / 1e6:,.1f})",
            "ratio": delta / whole,
        }
