"""A data owner as a Flower node, beside its service for users: it says which rows it wants, and
sends gradients.

What it learns from stays on its own disk; Flower's state is not used.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.errors import MessageError, SottovoceError
from sottovoce.stores.owner import DataOwner
from sottovoce.stores.owner_folder import OwnerFolder
from sottovoce.stores.owner_memory import SetBack
from sottovoce.wire.cohort_rounds import NOTHING
from sottovoce.wire.silo_files import Admission
from sottovoce.wire.silo_rounds import GradientsSent, QueryRows, RowsWanted, TaskRows

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


class OwnerOfBlocks(Protocol):
    """As much of a `DataOwner` as the orchestrator speaks to."""

    @property
    def number(self) -> int: ...

    @property
    def federation(self) -> str: ...

    @property
    def items(self) -> frozenset[int]: ...

    def request(
        self,
        round: int,
        counted: int,
        *,
        flush: bool,
        departed: Iterable[int] = (),
        heard: int = NOTHING,
    ) -> RowRequest | None: ...

    def gradients(self, round: int, rows: Rows) -> Gradients | None: ...


class OwnerNode:
    """Answers for one data owner. No transport is known here."""

    def __init__(self, owner: OwnerOfBlocks, log: Any = None) -> None:
        self._owner, self._log = owner, log

    def _problem(self, round: int, error: SottovoceError) -> str:
        """What the orchestrator hears; the log of a store that was set back says so, too."""
        if isinstance(error, SetBack) and self._log is not None:
            self._log.error("set back", round=round, detail=f"{error}. Find out who put it back")
        return str(error)

    def answer_query(self, query: QueryRows) -> RowsWanted:
        """The owner learns how its last update went and who has left, and asks if one is due."""
        owner, request, problem = self._owner, None, ""
        try:
            _agree(owner, query.federation)
            request = owner.request(
                query.round,
                query.counted,
                flush=query.flush,
                departed=query.departed.tolist(),
                heard=query.heard,
            )
        except SottovoceError as error:
            problem = self._problem(query.round, error)
        items = np.array(sorted(owner.items), dtype=np.int64)
        return RowsWanted(owner.number, query.round, items, request, problem)

    def answer_task(self, task: TaskRows) -> GradientsSent:
        owner, gradients, problem = self._owner, None, ""
        try:
            _agree(owner, task.federation)
            gradients = owner.gradients(task.round, task.rows)
        except SottovoceError as error:
            problem = self._problem(task.round, error)
        return GradientsSent(owner.number, task.round, gradients, problem)


def build_owner_app(owner: OwnerOfBlocks, log: Any = None) -> ClientApp:
    """The app that answers for this owner, for `supernode.serve_app`."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from sottovoce.engines.flower.client_app import content_of, record_of

    app, node = ClientApp(), OwnerNode(owner, log)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        answer = node.answer_query(QueryRows.from_content(record_of(message)))
        return Message(content_of(answer.to_content()), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        answer = node.answer_task(TaskRows.from_content(record_of(message)))
        return Message(content_of(answer.to_content()), reply_to=message)

    return app


def _agree(owner: OwnerOfBlocks, federation: str) -> None:
    if federation != owner.federation:
        raise MessageError(
            f"this data owner is part of the federation {owner.federation}, not of the one asking"
        )


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
        from sottovoce.engines.flower.supernode import serve_app

        app, pause = build_owner_app(self._owner, self._log), _FIRST_PAUSE
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
