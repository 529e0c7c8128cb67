"""A data owner as a Flower node: it says which rows it wants, and sends gradients.

What it learns from stays on its own disk; Flower's state is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.errors import MessageError, SottovoceError
from sottovoce.wire.cohort_rounds import NOTHING
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

    def __init__(self, owner: OwnerOfBlocks) -> None:
        self._owner = owner

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
            problem = str(error)
        items = np.array(sorted(owner.items), dtype=np.int64)
        return RowsWanted(owner.number, query.round, items, request, problem)

    def answer_task(self, task: TaskRows) -> GradientsSent:
        owner, gradients, problem = self._owner, None, ""
        try:
            _agree(owner, task.federation)
            gradients = owner.gradients(task.round, task.rows)
        except SottovoceError as error:
            problem = str(error)
        return GradientsSent(owner.number, task.round, gradients, problem)


def build_owner_app(owner: OwnerOfBlocks) -> ClientApp:
    """The app that answers for this owner, for `supernode.serve_app`."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from sottovoce.engines.flower.client_app import content_of, record_of

    app, node = ClientApp(), OwnerNode(owner)

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
