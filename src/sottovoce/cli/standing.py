"""Where a federation stands, from the server that runs or from the folder's database."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.errors import ServiceError, UsageError


def status_of(where: str, ca: Path | None, token: Path | None) -> Mapping[str, Any]:
    if where.startswith(("https://", "http://")):
        return _status_at(where, ca, token)
    if ca is not None or token is not None:
        raise UsageError("--ca and --token go with the address of a server, not with a folder")
    return _status_in(Path(where))


def _status_at(url: str, ca: Path | None, token: Path | None) -> Mapping[str, Any]:
    from sottovoce.services.server.operator import Operator

    if token is None:
        raise UsageError(
            "an address needs --ca and --token, the server's ca.crt and operator.token"
        )
    with contextlib.closing(Operator.at(url, ca, token)) as operator:
        return operator.status()


_PATIENCE = 5.0
"""Seconds for an answer of the server on this machine; its database is asked after that."""


def _status_in(folder: Path) -> Mapping[str, Any]:
    """As the server says that runs from the folder: only it knows what it cannot write down, that
    its disk is full, say. If none answers, as the database has it."""
    from sottovoce.services.server.operator import Operator, status
    from sottovoce.stores.server_folder import open_folder, start_command

    found = open_folder(folder)
    if process := found.running():
        with (
            contextlib.suppress(ServiceError),
            contextlib.closing(Operator.of(found, str(process["url"]), _PATIENCE)) as operator,
        ):
            return operator.status()
    with contextlib.closing(found.database()) as store:
        # With PostgreSQL one may run elsewhere.
        running = store.shared or found.running() is not None
        return status(store, plan=found.plan, running=running, start=start_command(found.path))
