"""The node's app as Flower calls it. The store is on the owner's disk; Flower's own state is not
used, because it is lost with every restart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sottovoce.engines.flower.node import Outgoing, answer_question, answer_task
from sottovoce.errors import MessageError, StoreError
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import sealed_by
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.cohort_rounds import CohortQuestion, CohortTask

RECORD = "sottovoce"
"""The one record of every message."""


def record_of(message: Message) -> dict[str, Any]:
    """The fields of a message; raises where it is none of ours."""
    if not message.has_content() or RECORD not in message.content.config_records:
        raise MessageError("the message has no content of this program")
    return dict(message.content.config_records[RECORD])


def content_of(fields: dict[str, Any]) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord(fields)})


def build_client_app(open_hosted: Callable[[Context], Any]) -> ClientApp:
    """An app that answers from the devices that `open_hosted` (a context manager) gives."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with open_hosted(context) as hosted:
            return _reply(message, answer_task(hosted, CohortTask.from_content(record_of(message))))

    @app.query()
    def query(message: Message, context: Context) -> Message:
        with open_hosted(context) as hosted:
            asked = CohortQuestion.from_content(record_of(message))
            return _reply(message, answer_question(hosted, asked))

    return app


@contextmanager
def store_of_node(context: Context) -> Iterator[DeviceSession]:
    """The devices in the store that the node's configuration names."""
    path = context.node_config.get("store")
    if not isinstance(path, str):
        raise StoreError(
            "the node's configuration names no store; start the node with "
            "`sottovoce serve supernode STORE`"
        )
    with CohortStore.open(Path(path)) as store:
        yield DeviceSession(store, pack=sealed_by(store))


def _reply(message: Message, answer: Outgoing) -> Message:
    if answer.problem:  # whoever runs the node should know, too
        print(answer.problem, file=sys.stderr, flush=True)
    return Message(content_of(answer.to_content()), reply_to=message)


app = build_client_app(store_of_node)
