"""What a training on Flower tells Prometheus. Its rounds are held by a run at the SuperLink, which
has no listener of its own: beside the SuperLink's process, on a loopback port, this one reads what
the run keeps in the server's folder, and says that nothing runs where nothing does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sottovoce.errors import ServiceError
from sottovoce.parties.server import Offered
from sottovoce.services.kit.application import Hosting, HttpApplication
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.metrics import Figure, by, known, one_of, unix
from sottovoce.services.kit.serving import HttpListener, address_of, listen
from sottovoce.services.server.figures import version_figures
from sottovoce.stores.conductor import FILE, Checkpoint, conducted, read_status
from sottovoce.stores.keys import RoleTokens, server_context
from sottovoce.stores.server_folder import open_folder
from sottovoce.wire.refusals import RefusalCounts

HOST = "127.0.0.1"
STATES = "stopped", "starting", "waiting", "open", "summing", "closing", "finished", "failed"
OUTCOMES = "goal", "deadline", "abandoned"
PARTIES = "nodes", "helper", "operator"
_WAITS = {"waiting": "nodes", "open": "nodes", "summing": "helper", "failed": "operator"}
_SECONDS = 10.0


class FlowerApplication(HttpApplication[Limits]):
    """Has `/health` and `/metrics`, and nothing else."""

    name, prefix = "the SuperLink", "flower_"

    def __init__(self, hosting: Hosting[Limits], folder: Path) -> None:
        super().__init__(hosting)
        self._folder = folder
        self._serve({})

    def figures(self) -> Iterator[Figure]:
        folder = self._folder
        said, runs = read_status(folder), conducted(folder)
        kept = _read(folder)
        target = max(_number(said.get("target")), kept["target"])
        state = str(said.get("state", "starting"))
        if not runs and state not in ("finished", "failed"):
            state = "stopped"
        yield one_of("state", "state", "1 for the state of the training.", STATES, state)
        party = _WAITS.get(state)
        if state == "stopped" and kept["round"] < target:
            party = "operator"
        yield one_of("party", "waiting", "1 for whom rounds wait for.", PARTIES, party)
        yield Figure("round", "Rounds folded so far.", kept["round"])
        yield Figure("target", "Rounds to run.", target)
        for name, words in (
            ("nodes", "Nodes that are connected, as the run said last."),
            ("devices", "Devices of these nodes that take part."),
            ("reported", "Devices in what nodes have sent in the open round."),
            ("asked", "Devices asked in the open round."),
            ("goal", "Devices that the open round waits for."),
        ):
            yield Figure(name, words, _number(said.get(name)) if runs else 0.0)
        yield from _of_rounds(kept)
        words = "Seconds after which a round ends, or is tried again."
        yield known("round_deadline_seconds", words, _deadline(folder))
        yield from version_figures(kept["published"], kept["offered"])
        yield Figure("database_bytes", "Bytes of the checkpoint.", kept["bytes"])
        yield by("reason", "refused", "Messages refused, by reason.", kept["refused"])


def _deadline(folder: Path) -> float | None:
    """As the federation's rules have it; None if the folder has none."""
    if not (folder / "federation.json").exists():
        return None
    return open_folder(folder).plan.rules.deadline_seconds


def _number(said: object) -> float:
    return float(said) if isinstance(said, int | float) else 0.0


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / FILE).exists():  # there was no run yet
        return _kept(None)
    with Checkpoint(folder, readonly=True) as checkpoint:
        return _kept(checkpoint)


def _kept(checkpoint: Checkpoint | None) -> dict[str, Any]:
    """What the figures need of what is kept."""
    if checkpoint is None:
        nothing = dict.fromkeys(("opened", "ended", "last", "published"))
        return {**nothing, "round": 0, "target": 0, "outcomes": {}, "refused": {}, "offered": [],
                "bytes": 0}  # fmt: skip
    saved, last = checkpoint.load(), checkpoint.rounds(1)
    published, offered = checkpoint.published(0 if saved is None else len(saved.items))
    return {
        "opened": checkpoint.opened(),
        "ended": checkpoint.last_ended(),
        "last": last[-1] if last else None,
        "published": None if published is None else published.round,
        "round": 0 if saved is None else saved.round,
        "target": checkpoint.target(),
        "outcomes": checkpoint.outcomes(),
        "refused": checkpoint.refused(),
        "offered": [Offered.from_table(one) for one in offered],
        "bytes": checkpoint.size(),
    }


def _of_rounds(kept: dict[str, Any]) -> Iterator[Figure]:
    words = "When the open round was opened, in seconds since 1970."
    yield known("round_opened_timestamp_seconds", words, unix(kept["opened"]))
    last = kept["last"]
    seconds, reported = (None, None) if last is None else (last.seconds, last.reported)
    yield known("last_round_seconds", "Seconds that the last round took.", seconds)
    words = "When the last round ended, in seconds since 1970."
    yield known("last_round_end_timestamp_seconds", words, unix(kept["ended"]))
    yield known("last_round_contributions", "Devices in the last round.", reported)
    words = "Attempts at rounds that are over, by how they ended."
    yield by("outcome", "rounds", words, dict.fromkeys(OUTCOMES, 0) | kept["outcomes"])


@contextlib.contextmanager
def exposing(folder: Path, port: int) -> Iterator[str]:
    """Serve the figures of the training in this server's folder at a loopback port, over TLS with
    the folder's certificate, to whoever bears the token of a role; 0 takes a free port. Its URL."""
    keys = folder / "keys"
    tally, limits = RefusalCounts(), Limits()
    tokens, context = RoleTokens(keys), server_context(keys)
    with listen(HOST, port, "--metrics-port") as listener:
        loop, started = asyncio.new_event_loop(), threading.Event()
        stop = []

        async def serve() -> None:
            application = FlowerApplication(Hosting(tokens, tally, limits), folder)
            server = HttpListener(application, limits, context, tally, started.set)
            stop.append(server.stop)
            try:
                await server.serve(sockets=[listener])
            finally:
                application.close()

        def run() -> None:
            with contextlib.closing(loop):
                loop.run_until_complete(serve())

        thread = threading.Thread(target=run, name="figures", daemon=True)
        thread.start()
        if not started.wait(_SECONDS):
            raise ServiceError(f"nothing listens at {HOST}, port {port}; try again")
        try:
            yield address_of(listener, True)[0]
        finally:
            loop.call_soon_threadsafe(stop[0])
            thread.join(timeout=_SECONDS)
