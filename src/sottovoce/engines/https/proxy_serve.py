"""A proxy process: what it needs to start, what it does until it is told to stop."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from sottovoce.engines.https.keys import operator_token
from sottovoce.engines.https.listening import is_loopback, listen, logger
from sottovoce.engines.https.proxy_folder import open_proxy_folder
from sottovoce.engines.https.proxy_handover import Courier, Goal
from sottovoce.engines.https.proxy_service import ProxyLimits, ProxyService
from sottovoce.engines.https.refusals import Tally
from sottovoce.engines.https.serving import Beside, Process, tls_of
from sottovoce.errors import UsageError

_SWITCH = 0.0005


def run_proxy(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8444,
    *,
    goal: Goal | None = None,
    hold_seconds: float = 60.0,
    plaintext: bool = False,
    limits: ProxyLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the proxy in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed certificate.
    Port 0 takes a free one; where the proxy listens is in the ready file, and `ready` is told.
    Raises with one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_proxy_folder(path)
    limits = limits or ProxyLimits()
    tally = Tally()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        store = folder.store()
        stack.callback(store.close)
        listener = stack.enter_context(listen(host, port))
        log = logger()
        courier = Courier(folder, store, log, goal=goal or {}, hold_seconds=hold_seconds)
        process = Process("the proxy", folder, listener, context, tally, log)

        def service() -> ProxyService:
            return ProxyService(
                folder,
                token,
                store,
                courier,
                tally,
                limits,
                failed=lambda error: log.error("not stored", detail=str(error)),
                died=process.fail,
            )

        # Requests must not wait long for the threads that write and hand over.
        sys.setswitchinterval(_SWITCH)
        process.run(service, limits, [Beside(courier.start, courier.stop)], ready)
