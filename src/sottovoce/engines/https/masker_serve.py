"""A process of a secure sum's proxy: what it needs to start, what it does until it is told to
stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from sottovoce.engines.https.keys import operator_token
from sottovoce.engines.https.listening import is_loopback, listen, logger
from sottovoce.engines.https.masker_folder import open_masker
from sottovoce.engines.https.masker_service import MaskerLimits, MaskerService
from sottovoce.engines.https.refusals import Tally
from sottovoce.engines.https.serving import Process, tls_of
from sottovoce.errors import UsageError
from sottovoce.recommender import default_threads


def run_masker(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8447,
    *,
    plaintext: bool = False,
    threads: int | None = None,
    limits: MaskerLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the proxy in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed certificate.
    Port 0 takes a free one; where the proxy listens is in the ready file, and `ready` is told.
    Raises with one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder, tally, limits = open_masker(path), Tally(), limits or MaskerLimits()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        folder.seal_key(), folder.noise_key(), folder.answers()  # raise now where they cannot
        listener = stack.enter_context(listen(host, port))
        process = Process("the proxy", folder, listener, context, tally, logger())

        def service() -> MaskerService:
            return MaskerService(folder, token, tally, limits, threads or default_threads())

        process.run(service, limits, ready=ready)
