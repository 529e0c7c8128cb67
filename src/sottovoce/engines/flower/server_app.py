"""The conductor as Flower calls it: the grid is its transport."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from sottovoce.engines.flower.client_app import content_of, record_of
from sottovoce.engines.flower.conductor import Conductor
from sottovoce.engines.flower.members import Kind, OnlineNode, Reply
from sottovoce.engines.flower.silo_conductor import SiloConductor
from sottovoce.engines.flower.summed_conductor import SummedConductor
from sottovoce.engines.helper_client import HelperClient
from sottovoce.errors import ConfigError, MessageError, SottovoceError
from sottovoce.stores.allotment import identity_of
from sottovoce.stores.conductor import Checkpoint, only_one, write_status
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.server_folder import ServerFolder, open_folder, proxy_token
from sottovoce.wire.cohort_rounds import Content
from sottovoce.wire.masked import mask_sum_bytes


class GridTransport:
    """Messages over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def online(self) -> list[OnlineNode]:
        return [
            OnlineNode(node.node_id, identity_of(node.public_key), node.last_activated_at)
            for node in self._grid.get_nodes()
        ]

    def send(self, kind: Kind, letters: Mapping[int, Content], seconds: float) -> dict[int, str]:
        nodes = list(letters)
        messages = [Message(content_of(letters[n]), n, kind, ttl=seconds) for n in nodes]
        names = list(self._grid.push_messages(messages)) if messages else []
        return {node: name for node, name in zip(nodes, names, strict=False) if name}

    def collect(self, messages: Collection[str]) -> list[Reply]:
        """Matched by the message that is answered: an error names no right sender."""
        found = []
        for message in self._grid.pull_messages(list(messages)) if messages else ():
            to = message.metadata.reply_to_message_id
            if message.has_error():
                found.append(Reply(to, None, str(message.error.reason)))
                continue
            try:
                found.append(Reply(to, record_of(message)))
            except MessageError:
                found.append(Reply(to, {}))
        return found

    def clock(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def conduct(grid: Grid, context: Context) -> None:
    """One run, from the checkpoint to its target. A failure is left in the status file too."""
    settings = context.run_config
    folder = Path(str(settings["folder"]))
    try:
        with only_one(folder):
            if settings.get("kind") == "drift":
                _conduct_owners(folder, grid, context)
            else:
                _conduct_cohorts(folder, grid, context)
    except SottovoceError as error:
        status = {"state": "failed", "error": str(error), "kind": type(error).__name__}
        write_status(folder, {"run": str(context.run_id), **status})
        raise


def _conduct_cohorts(folder: Path, grid: Grid, context: Context) -> None:
    settings, found = context.run_config, open_folder(folder)
    options: dict[str, Any] = {
        "target": _whole(settings.get("rounds")),
        "nodes": _whole(settings.get("nodes")) or 1,
        "pinned": settings.get("pinned") is not False,
        "hold": settings.get("hold") is True,
        "run": str(context.run_id),
    }
    with Checkpoint(folder) as checkpoint:
        parts = folder, found.plan, checkpoint, GridTransport(grid)
        if found.plan.summed:
            SummedConductor(*parts, _helper(found).ask, **options).run()
        else:
            Conductor(*parts, **options).run()


def _helper(folder: ServerFolder) -> HelperClient:
    """The helper that the federation's terms name."""
    terms = folder.plan.terms
    if terms.secure_sum is None:
        raise ConfigError("only a secure sum has a helper")
    return HelperClient(terms.secure_sum, proxy_token(folder.keys), mask_sum_bytes(terms))


def _conduct_owners(folder: Path, grid: Grid, context: Context) -> None:
    settings = context.run_config
    with OrchestratorStore.open(folder) as store:
        SiloConductor(
            store,
            GridTransport(grid),
            target=_whole(settings.get("rounds")),
            owners=_whole(settings.get("nodes")) or 1,
            hold=settings.get("hold") is True,
            every_seconds=_seconds(settings.get("every_seconds"), 0.0),
            deadline_seconds=_seconds(settings.get("deadline_seconds"), 60.0),
            patience_seconds=_seconds(settings.get("patience_seconds"), 0.0),
            run=str(context.run_id),
        ).run()


def _seconds(value: object, otherwise: float) -> float:
    if value is None:
        return otherwise
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(f"a run's times must be seconds, not {value!r}")


def _whole(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ConfigError(f"a run's settings must be whole numbers, not {value!r}")


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    _end_with_executor()
    conduct(grid, context)


def _end_with_executor(seconds: float = 5.0) -> None:
    """Where the executor is gone, this process ends too, so that another conductor can go on.
    Flower's own way out waits for a SuperLink, which may be gone as well."""
    executor = os.getppid()

    def watch() -> None:
        while os.getppid() == executor:
            time.sleep(0.5)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="executor", daemon=True).start()
