"""The state of a federation, from its running server or from the database of its folder."""

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
"""Seconds to wait for the server on this machine before its database is read instead."""


def _status_in(folder: Path) -> Mapping[str, Any]:
    """Ask the server that runs from the folder; if none answers, read the database. The server
    knows more: if the disk is full, for example, it cannot write that down."""
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
        # With PostgreSQL, a server may run on another machine.
        running = store.shared or found.running() is not None
        return status(store, plan=found.plan, running=running, start=start_command(found.path))
