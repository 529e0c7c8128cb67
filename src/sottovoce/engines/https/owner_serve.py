"""A data owner's process: it takes users' messages over HTTPS, and takes part in the orchestrator's
rounds as a Flower node; both on the same store."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.engines.https.keys import operator_token
from sottovoce.engines.https.listening import is_loopback, listen, logger
from sottovoce.engines.https.owner_folder import OwnerFolder, open_owner_folder
from sottovoce.engines.https.owner_service import OwnerLimits, OwnerService
from sottovoce.engines.https.refusals import Tally
from sottovoce.engines.https.serving import Beside, Process, tls_of
from sottovoce.errors import SottovoceError, UsageError
from sottovoce.parties.owner import DataOwner
from sottovoce.parties.silo_files import Admission

_SWITCH = 0.0005
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds until a node that was not let in knocks again; doubled each time."""
_NODE_ENDS = 20.0
Died = Callable[[], None]


def run_owner(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8445,
    *,
    plaintext: bool = False,
    users_only: bool = False,
    limits: OwnerLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the data owner in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed
    certificate. Port 0 takes a free one; where the service listens is in the ready file, and
    `ready` is told. With `users_only` it takes no part in the orchestrator's rounds. Raises with
    one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_owner_folder(path)
    if not users_only and importlib.util.find_spec("flwr") is None:
        raise ModuleNotFoundError("No module named 'flwr'", name="flwr")
    limits = limits or OwnerLimits()
    tally = Tally()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(contextlib.closing(folder.owner()))
        listener = stack.enter_context(listen(host, port))
        log = logger()
        admission = None if users_only else folder.admission()
        node = None if admission is None else Node(folder, admission, owner, log)
        if node is None:
            log.info("serving users only, without the orchestrator")
        process = Process("the data owner", folder, listener, context, tally, log)

        def service() -> OwnerService:
            return OwnerService(
                owner,
                token,
                tally,
                limits,
                node=lambda: "none" if node is None else node.state,
                failed=lambda error: log.error("not stored", detail=str(error)),
                died=process.fail,
            )

        beside = [] if node is None else [Beside(node.start, node.stop)]
        # Requests must not wait long for the threads that write and take part in rounds.
        sys.setswitchinterval(_SWITCH)
        process.run(service, limits, beside, ready)


class Node:
    """The owner's part in the orchestrator's rounds: a thread, with Flower's SuperNode as its
    child. An orchestrator that is away, or does not let it in, is asked again; users' messages are
    taken meanwhile."""

    def __init__(
        self, folder: OwnerFolder, admission: Admission, owner: DataOwner, log: Any
    ) -> None:
        from sottovoce.engines.flower.supernode import Connection

        secure = bool(admission.ca)
        self._connection = Connection(
            admission.gateway,
            folder.gateway_authority if secure else None,
            folder.node_key if secure else None,
        )
        self._folder, self._owner, self._log = folder, owner, log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""

    @property
    def state(self) -> str:
        """One word, or what stands in the way."""
        return self._trouble or "running"

    def start(self, died: Died) -> None:
        """`died` is called where it ends by an error that nobody has foreseen."""
        self._thread = threading.Thread(target=self._run, args=(died,), name="node", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_NODE_ENDS)

    def _run(self, died: Died) -> None:
        try:
            self._take_part()
        finally:
            if not self._stop.is_set():
                died()

    def _take_part(self) -> None:
        # Flower is imported late: it takes longer than all the rest, and users need not wait.
        from sottovoce.engines.flower.silo_node import build_owner_app
        from sottovoce.engines.flower.supernode import serve_app

        app, pause = build_owner_app(self._owner), _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._log.info("joining the orchestrator's rounds", at=self._connection.address)
                serve_app(
                    app, self._connection, self._folder.keep_node, self._folder.node, self._stop
                )
            except SottovoceError as error:
                self._trouble = str(error)
                self._log.error("not part of the orchestrator's rounds", detail=str(error))
                self._stop.wait(pause)
                self._trouble, pause = "", min(2 * pause, _LONGEST_PAUSE)
