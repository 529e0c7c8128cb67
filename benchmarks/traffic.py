"""Bytes that a device sends and receives in a round, measured at the socket, beside what they must
be; and what downloading only the changed rows saves.

    sottovoce bench traffic [--quick] [--json]

Devices take part in a real federation over TLS on loopback, with Italy's catalogue (a generated
town of its size where that data set is not there). A forwarder between them and the server counts
every byte, handshakes, headers and signatures too; each visit has a connection of its own. The
least that has to travel is four bytes per number and per item number (a whole model needs no item
numbers); CCE is one contact as FPL's paper counts it, in bytes.

Then what a device sends and receives in a whole training, on MovieLens 1M (the town where that is
not there), beside a year of gram with four versions of its model. Some rounds are played by eight
devices, counted in the same way, and every visit has the whole model, as where thousands take part
and every row changes; a training is so many rounds of these. Of gram, a year is a visit for each
stage of her period, and one for each other version. Its devices are given the model, and asked for
pairs of as many items, as the simulation of all users came to. P@10 is that of the simulation.
Devices that ask in vain are left out in all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sottovoce.algorithms.gram.system import SCALE
from sottovoce.core.messages import row_bytes
from sottovoce.data.sources import available
from sottovoce.engines.processes import free_port
from sottovoce.engines.trial import TrialWorld
from sottovoce.errors import Stalled
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import environment
from sottovoce.runs.train import run_experiment
from sottovoce.services.agent.agent import Agent
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import Introduction, ServerFolder
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
                threading.Thread(target=self._connect, args=(near, far), daemon=True).start()

    def _connect(self, near: socket.socket, far: socket.socket) -> None:
        """Until both sides have said all."""
        with near, far:
            back = threading.Thread(target=self._pass, args=(far, near, "down"), daemon=True)
            back.start()
            self._pass(near, far, "up")
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                setattr(self, name, getattr(self, name) + len(chunk))
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def run(*, quick: bool, progress: Progress) -> dict[str, Any]:
    results = [*_measured(quick, progress), *_saved(quick, progress), *_year(quick, progress)]
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
        world = _few(world_of(experiment, dataset, federation), federation)
        yield from _one_fleet(world, size)


def _few(whole: TrialWorld, federation: Federation, guests: int = 0) -> TrialWorld:
    """The same with so many devices alone, and behind them those of guests, who take no part."""
    some = federation.devices.willing()[: DEVICES + guests]
    cohort, numbers = whole.cohort.take(some), np.arange(len(some))
    consent = replace(cohort.consent, users=numbers, takes_part=numbers < DEVICES)
    return replace(
        whole,
        cohort=replace(cohort, users=numbers, consent=consent),
        names=[whole.names[row] for row in some],
        cohort_size=DEVICES,
        rules=replace(whole.rules, min_devices=DEVICES),
    )


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


# --- a year, and a training -----------------------------------------------------------------------

VERSIONS = 4
"""Of gram's model in a year."""
TIMES_LESS = 50.0
"""Than FPL: what a year of gram is to be."""
_FPL: dict[str, Any] = {
    "algorithm": {
        "configuration": "pFPL+", "embedding_size": 16, "learning_rate": 0.01, "rounds": 40,
        "reg_user": 0.02, "reg_positive": 0.02, "reg_negative": 0.02,
    },
    "consent": {"share_positives": 0.5},
}  # fmt: skip
_FCF: dict[str, Any] = {
    "algorithm": {
        "name": "fcf", "embedding_size": 10, "learning_rate": 0.05, "alpha": 4.0, "reg": 10.0,
        "rounds": 50,
    },
    "consent": {"share_positives": 1.0},
}  # fmt: skip
_FMF: dict[str, Any] = {
    "algorithm": {"name": "fmf", "variant": "rotated", "embedding_size": 8, "rounds": 20},
    "release": {
        "name": "k-reports", "max_reports": 100, "tiers": [{"epsilon": 2.5, "min_devices": DEVICES}]
    },
    "consent": {"epsilon": 2.5, "max_reports": 100, "total_epsilon": 5000.0},
}  # fmt: skip
_SUM = {"link": {"name": "secure-sum", "min_devices": DEVICES}}
TRAININGS: dict[str, dict[str, Any]] = {
    "FPL as printed": _FPL | {"release": {"per": "draw"}},
    "FPL over a secure sum": _FPL | {"release": {"per": "item"}} | _SUM,
    "FCF as printed": _FCF,
    "FCF over a secure sum": _FCF | _SUM,
    "FMF-LDP, rotated": _FMF,
}
EPSILONS = (0.5, 1.0, 2.0, 8.0)
_PATIENCE = 100
"""Visits until a report must have counted."""


@dataclass(frozen=True)
class Cost:
    """Bytes up and down, and the accuracy that they buy."""

    name: str
    up: float
    down: float
    accuracy: float | None

    @property
    def total(self) -> float:
        return self.up + self.down

    def row(self, peers: list[Cost]) -> dict[str, Any]:
        """As a result; beside the first of `peers`, which is to be `TIMES_LESS` as much."""
        parts = [f"up {self.up:,.0f}, down {self.down:,.0f}"]
        if self.accuracy is not None:
            parts.append(f"P@10 {self.accuracy:.4f}")
        parts += [f"{each.total / self.total:,.1f} × less than {each.name}" for each in peers]
        found: dict[str, Any] = {
            "name": self.name, "value": round(self.total), "unit": "bytes",
            "peer": "; ".join(parts),
        }  # fmt: skip
        if peers:
            ratio = peers[0].total / self.total
            found |= {"ratio": ratio, "target": TIMES_LESS, "met": bool(ratio >= TIMES_LESS)}
        return found


def _year(quick: bool, progress: Progress) -> Iterator[dict[str, Any]]:
    data = {"source": "movielens-1m" if "movielens-1m" in available() and not quick else "town"}
    costs = {}
    for name, sections in TRAININGS.items():
        if quick and name.endswith("as printed"):
            continue
        progress(f"a training of {name}")
        costs[name] = _training(name, data, sections, quick)
        yield costs[name].row([])
    peers = [costs[name] for name in ("FPL over a secure sum", "FPL as printed") if name in costs]
    for epsilon in EPSILONS[1:2] if quick else EPSILONS:
        progress(f"a year of gram, ε = {epsilon:g}")
        yield _gram_year(data, epsilon).row(peers)


def _named(data: dict[str, Any], sections: dict[str, Any]) -> Experiment:
    service = {"poll_seconds": 3.0, "deadline_seconds": 300.0}
    table = {"name": "traffic", "seed": 1, "data": data, "service": service}
    return Experiment.from_table(table | sections)


def _training(name: str, data: dict[str, Any], sections: dict[str, Any], quick: bool) -> Cost:
    experiment = _named(data, sections)
    accuracy = None if quick else _accuracy(experiment)[0]
    prepared = experiment.prepared(experiment.dataset())
    federation = federation_of(prepared)
    world = _few(world_of(experiment, prepared.dataset, federation), federation)
    up, down = _counted(world, 2)
    rounds = federation.schedule.rounds
    return Cost(f"{name}, {rounds} rounds", rounds * up, rounds * down, accuracy)


def _accuracy(experiment: Experiment) -> tuple[float, NDArray[np.float32]]:
    """P@10 of a simulation, and its model."""
    found: Any = run_experiment(experiment)
    accuracy = float(found.evaluations[found.system].per_user("P@10").mean())
    return accuracy, found.federation.server.items


def _gram_year(data: dict[str, Any], epsilon: float) -> Cost:
    sections: dict[str, Any] = {
        "algorithm": {"name": "gram"}, "release": {"epsilon": epsilon},
        "consent": {"epsilon": epsilon}, **_SUM,
    }  # fmt: skip
    accuracy, table = _accuracy(_named(data, sections))
    head = int(np.count_nonzero(table[:, SCALE] > 0))
    forced = {"name": "gram", "least_head": max(2, head), "most_head": max(2, head)}
    experiment = _named(data, sections | {"algorithm": forced})
    prepared = experiment.prepared(experiment.dataset())
    federation = federation_of(prepared)
    world = _few(world_of(experiment, prepared.dataset, federation), federation, guests=1)
    up, down = _counted(world, world.terms.algorithm.rounds, table)
    return Cost(f"a year of gram, ε = {epsilon:g}, {head} items with pairs", up, down, accuracy)


def _counted(
    world: TrialWorld, rounds: int, table: NDArray[np.float32] | None = None
) -> tuple[float, float]:
    """Mean bytes up and down of a device's visit in these rounds. With a `table`, which is
    published at the start: in these rounds together and, for the other versions of a year, in as
    many visits as a guest's."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        forwarders = [stack.enter_context(contextlib.closing(Forwarder(0))) for _ in range(2)]

        def reroute(url: str) -> str:
            forwarders[0].target = int(urlsplit(url).port or 0)
            return f"https://127.0.0.1:{forwarders[0].port}"

        for each in forwarders:
            each.start()
        place = Path(folder) / "services"
        if world.terms.reporting is not None:  # the shuffler's address, before it is in the terms
            (place / "proxy").mkdir(parents=True)
            (place / "proxy" / "port").write_text(str(forwarders[1].port))
        trial = _CountedTrial(world, place, 0, reroute, table=table, between=forwarders[1])
        with trial.running():
            return asyncio.run(_tour(trial, forwarders, rounds))


@dataclass(slots=True, repr=False)
class _CountedTrial(HttpsTrial):
    """A trial whose shuffler is behind a forwarder, too, and that may begin with a model."""

    table: NDArray[np.float32] | None = None
    between: Forwarder = field(default_factory=lambda: Forwarder(0))

    @property
    def first(self) -> int:
        """The round it begins with: with a model, that of the next period."""
        return 0 if self.table is None else self.world.terms.algorithm.rounds

    def _prepared(self) -> ServerFolder:
        made = HttpsTrial._prepared(self)
        if self.table is None:
            return made
        rows, memory = len(self.table), self.world.terms.build().server_memory(len(self.table))
        with contextlib.closing(made.database()) as database, database.writing() as link:
            Coordinator(made.plan, time.time).start(link)
            changed = np.full(rows, self.first, dtype=np.int32)
            records.save_model(link, self.first, self.table, changed, memory)
        return made

    def _start_shuffler(self, introduced: Introduction) -> None:
        """Elsewhere than the terms say, which is where the forwarder listens."""
        port = self.folder / "proxy" / "port"
        self.between.target = free_port()
        port.write_text(str(self.between.target))
        HttpsTrial._start_shuffler(self, introduced)


async def _tour(
    trial: _CountedTrial, forwarders: list[Forwarder], rounds: int
) -> tuple[float, float]:
    url = f"https://127.0.0.1:{forwarders[0].port}"
    first, year = trial.first, trial.table is not None

    async def visit(agent: Agent, whole: bool) -> NDArray[np.float64]:
        if whole:
            forget(agent)
        before = [each.counts() for each in forwarders]
        await agent.visit()
        await agent.rest()
        passed = [await each.since(b) for each, b in zip(forwarders, before, strict=True)]
        both: NDArray[np.float64] = np.array(passed, dtype=np.float64).sum(axis=0)
        return both

    async def contribute(agent: Agent, whole: bool) -> NDArray[np.float64]:
        """The first visit in which something left and counted."""
        counted = agent.tally.counted
        for _ in range(_PATIENCE):
            passed = await visit(agent, whole)
            if agent.tally.counted > counted:
                return passed
            await asyncio.sleep(0.1)
        raise Stalled("a device's report did not count; there are no figures")

    def forget(agent: Agent) -> None:
        """As if it had no model of this federation: it gets a whole one."""
        model = agent.hosted.model()
        if model is not None:
            agent.hosted.keep_model(replace(model, round=first + rounds + 1))

    with contextlib.ExitStack() as stack:
        everyone = range(len(trial.world.cohort))
        stores = [stack.enter_context(CohortStore.open(trial.store(row))) for row in everyone]
        agents = [Agent(store, server=url) for store in stores[:DEVICES]]
        # For guests every visit is on another day, on which they look for a newer model.
        clocks = [itertools.count(0.0, 1e6).__next__ for _ in stores[DEVICES:]]
        guests = [
            Agent(store, server=url, clock=clock)
            for store, clock in zip(stores[DEVICES:], clocks, strict=True)
        ]
        for agent in [*agents, *guests]:  # to enrol, or to learn the terms, is not part of a round
            await agent.visit()
            await agent.rest()
        trial.operator().raise_target(first + rounds)
        visits, other = [], np.zeros(2)
        for round in range(first, first + rounds):
            while trial.round() < round or trial.operator().status()["state"] != "open":
                await asyncio.sleep(0.05)
            if round == first:
                for agent in guests:
                    other += await visit(agent, True)
            for agent in agents:
                visits.append(await contribute(agent, not year or round == first))
        for agent in [*agents, *guests]:
            await agent.close()
    mean = np.mean(visits, axis=0)
    if year:
        mean = rounds * mean + (VERSIONS - 1) * other
    return float(mean[0]), float(mean[1])
