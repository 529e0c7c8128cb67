"""Bytes that a device sends and receives in a round, measured at the socket, beside what they must
be; and what downloading only the changed rows saves.

    sottovoce bench traffic [--quick] [--json]

Devices take part in a real federation over TLS on loopback, with Italy's catalogue (a generated
town of its size where that data set is not there). A forwarder between them and the server counts
every byte, handshakes, headers and signatures too; each visit has a connection of its own. The
least that has to travel is four bytes per number and per item number (a whole model needs no item
numbers); CCE is one contact as FPL's paper counts it, in bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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

from sottovoce.algorithms.base import Cohort
from sottovoce.core.messages import row_bytes
from sottovoce.data.sources import available
from sottovoce.engines.trial import TrialWorld
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import world_of
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import environment
from sottovoce.services.agent.agent import Agent
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores.device import CohortStore
from sottovoce.wire.versions import encode_delta, encode_model

Progress = Callable[[str], None]
DEVICES = 8
ROUNDS = 5
CONFIGURATIONS = ("sFPL", "sFPL+", "pFPL", "pFPL+")
_CHUNK = 1 << 16


@dataclass
class Forwarder:
    """Passes connections on to a port of this machine and counts bytes each way."""

    target: int
    up: int = 0
    down: int = 0
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def counts(self) -> tuple[int, int]:
        return self.up, self.down

    async def since(self, before: tuple[int, int]) -> tuple[int, int]:
        """What has passed since, once nothing passes any more."""
        last = (-1, -1)
        while last != self.counts():
            last = self.counts()
            await asyncio.sleep(0.05)
        return last[0] - before[0], last[1] - before[1]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
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
    dataset, system = experiment.dataset(), experiment.cross_device()
    federation = Federation.build(
        system.algorithm,
        experiment.split(dataset).train,
        experiment.records(dataset),
        system.release,
        experiment.streams().child("federation"),
    )
    return dataset, federation


def _measured(quick: bool, progress: Progress) -> Iterator[dict[str, Any]]:
    for size in (10,) if quick else (10, 50):
        progress(f"{DEVICES} devices over TLS, vectors of {size}")
        experiment = _experiment("pFPL+", size, ROUNDS)
        dataset, federation = _federation(experiment)
        whole = world_of(experiment, dataset, federation)
        few = federation.devices.willing()[:DEVICES]
        cohort = whole.cohort.take(few)
        numbers = np.arange(DEVICES)
        world = replace(
            whole,
            cohort=Cohort(
                numbers, cohort.history, replace(cohort.consent, users=numbers), cohort.vectors
            ),
            names=[whole.names[row] for row in few],
            cohort_size=DEVICES,
            rules=replace(whole.rules, min_devices=DEVICES),
        )
        yield from _one_fleet(world, size)


def _one_fleet(world: TrialWorld, size: int) -> Iterator[dict[str, Any]]:
    forwarders: list[Forwarder] = []

    def reroute(url: str) -> str:
        forwarders.append(Forwarder(int(urlsplit(url).port or 0)))
        forwarders[0].start()
        return f"https://127.0.0.1:{forwarders[0].port}"

    with tempfile.TemporaryDirectory() as folder:
        trial = HttpsTrial(world, Path(folder) / "services", 0, reroute=reroute)
        with trial.running():
            seen = asyncio.run(_play(trial, forwarders[0]))
        forwarders[0].close()
        (entries,) = trial.ledger()
    n_items, width = world.terms.n_items, world.terms.width
    sent = (entries.positive_rows + entries.negative_rows).astype(np.int64)
    model, cost = 4 * n_items * width, 4 * width * (n_items + world.terms.triples * 1.5)
    what = f"vectors of {size}"
    up, down = seen.first
    yield _row(
        f"round with a whole model, both ways; {what}",
        up + down,
        "least",
        model + sent[entries.round == 0].mean() * row_bytes(size),
    )
    yield _row(f"the same beside CCE; {what}", up + down, "CCE", cost)
    up, down = seen.later
    least_up = sent[entries.round > 0].mean() * row_bytes(size)
    least_down = seen.changed * (4 + 4 * width)
    yield _row(
        f"round with changed rows, both ways; {what}", up + down, "least", least_up + least_down
    )
    yield _row(f"its download; {what}", down, "least", least_down)
    yield _row(f"its upload; {what}", up, "least", least_up)
    yield _row(f"the same beside CCE; {what}", up + down, "CCE", cost)
    yield {
        "name": f"asking in vain, both ways; {what}",
        "value": sum(seen.idle),
        "unit": "bytes",
        "peer": f"up {seen.idle[0]:,.0f}, down {seen.idle[1]:,.0f}",
    }


@dataclass(frozen=True)
class Seen:
    """Mean bytes up and down of a visit to the server, each on a connection of its own."""

    first: tuple[float, float]
    later: tuple[float, float]
    idle: tuple[float, float]
    changed: float
    """Rows that a round changed."""


async def _play(trial: HttpsTrial, forwarder: Forwarder) -> Seen:
    """Every device visits once a round; the first of them once more, in vain."""
    url = f"https://127.0.0.1:{forwarder.port}"
    trial.operator().raise_target(ROUNDS)
    visits: dict[str, list[tuple[int, int]]] = {"first": [], "later": [], "idle": []}
    tables = []
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(CohortStore.open(trial.store(row))) for row in range(DEVICES)]
        agents = [Agent(store, server=url) for store in stores]
        for agent in agents:  # to enrol is not part of a round
            await agent.visit()
            await agent.client.rest()
            model = agent.hosted.model()
            if model is not None:  # as if it had none of this federation: it gets a whole one
                agent.hosted.keep_model(replace(model, round=ROUNDS + 1))
        for round in range(ROUNDS):
            while trial.round() < round or trial.operator().status()["state"] != "open":
                await asyncio.sleep(0.05)
            tables.append(trial.operator().model(round, trial.world.terms).items)
            for agent in agents:
                before = forwarder.counts()
                await agent.visit()
                await agent.client.rest()
                kind = "first" if round == 0 else "later"
                visits[kind].append(await forwarder.since(before))
                if agent is agents[0]:
                    before = forwarder.counts()
                    await agent.visit()
                    await agent.client.rest()
                    visits["idle"].append(await forwarder.since(before))
        for agent in agents:
            await agent.close()
    means = {kind: np.mean(found, axis=0).tolist() for kind, found in visits.items()}
    changed = [(a != b).any(axis=1).sum() for a, b in itertools.pairwise(tables)]
    return Seen(**{k: (v[0], v[1]) for k, v in means.items()}, changed=float(np.mean(changed)))


def _row(name: str, value: float, peer: str, least: float) -> dict[str, Any]:
    target = 1.1 if peer == "least" else None
    return {
        "name": name,
        "value": round(value),
        "unit": "bytes",
        "peer": f"{peer}: {least:,.0f}",
        "ratio": value / least,
        "target": target,
        "met": None if target is None else bool(value / least <= target),
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
