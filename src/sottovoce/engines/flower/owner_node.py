"""A data owner's part in the orchestrator's rounds, beside its service for users."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.stores.owner import DataOwner
from sottovoce.stores.owner_folder import OwnerFolder
from sottovoce.wire.silo_files import Admission

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds until a node that was not let in knocks again; doubled each time."""
_NODE_ENDS = 20.0
Died = Callable[[], None]


def require_flower() -> None:
    """Raises at once if Flower is not installed, which is imported late."""
    if importlib.util.find_spec("flwr") is None:
        raise ModuleNotFoundError("No module named 'flwr'", name="flwr")


class Participation:
    """The owner's part in the orchestrator's rounds: a thread, with Flower's SuperNode as its
    child. An orchestrator that is away, or does not let it in, is asked again; users' messages are
    taken meanwhile."""

    def __init__(
        self, folder: OwnerFolder, admission: Admission, owner: DataOwner, log: Any
    ) -> None:
        from sottovoce.engines.flower.supernode import Connection

        require_flower()
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
