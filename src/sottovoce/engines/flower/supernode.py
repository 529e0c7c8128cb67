"""A node as a service: Flower's SuperNode for the connection, our worker for the work.

Flower's part never sees the store. It runs as a child, and ends with this process.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.engines.flower.quiet import flower_environment, supernode_command
from sottovoce.engines.processes import Child, told_to_stop
from sottovoce.errors import KeyTrouble, ServiceError, SottovoceError, Unreachable, UsageError
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import sealed_by
from sottovoce.stores.session import DeviceSession

_NODE = "flower-node"
_KEPT_LINES = 60
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_NOT_LET_IN_PAUSE = 3.0
_STEADY = 120.0
"""A SuperNode that ran for so many seconds is started again without a long pause."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Connection:
    """How a node reaches its SuperLink: with a key by the gateway, or plaintext on loopback."""

    def __init__(self, address: str, authority: Path | None, key: Path | None) -> None:
        if not re.fullmatch(r".+:\d{1,5}", address) or "/" in address:
            raise UsageError(f"the SuperLink's address must be HOST:PORT, not {address!r}")
        if (authority is None) != (key is None):
            raise UsageError("a node needs both the authority's certificate and its own key")
        if authority is None and address.rpartition(":")[0] not in _LOOPBACK:
            raise UsageError(
                f"plaintext is for loopback only, and {address} is not; give the authority's "
                "certificate and the node's key"
            )
        for path in (authority, key):
            if path is not None and not path.is_file():
                raise KeyTrouble(
                    f"{path} is not there; the operator makes it with `sottovoce keys`"
                )
        self.address = address
        self.authority = None if authority is None else authority.absolute()
        self.key = None if key is None else key.absolute()

    def words(self) -> list[str | Path]:
        words: list[str | Path] = ["--superlink", self.address]
        if self.authority is None or self.key is None:
            return [*words, "--insecure"]
        return [
            *words,
            *("--root-certificates", self.authority),
            *("--auth-supernode-private-key", self.key),
        ]


def serve_node(
    store: Path,
    connection: Connection,
    stop: threading.Event,
    foreseen: str = "",
    *,
    patient: bool = False,
) -> None:
    """Serve the cohort in `store` until `stop` is set. `foreseen` is the digest of terms to which
    whoever runs it agrees, having seen them elsewhere. Raises where the store is in use, or, unless
    it is `patient`, where the SuperLink does not let the node in; a SuperLink that is away is
    waited for."""
    # Flower is imported late: a store that cannot be opened is told at once.
    with CohortStore.open(store.absolute(), agent=True) as opened:
        from sottovoce.engines.flower.client_app import build_client_app

        hosted = DeviceSession(opened, pack=sealed_by(opened), foreseen=foreseen)

        @contextmanager
        def devices(context: Any) -> Iterator[DeviceSession]:
            yield hosted

        serve_app(
            build_client_app(devices),
            connection,
            lambda node: opened.set_secret(_NODE, node),
            lambda: opened.secret(_NODE),
            stop,
            patient=patient,
        )


def serve_app(
    app: Any,
    connection: Connection,
    keep_node: Callable[[bytes], None],
    node: Callable[[], bytes | None],
    stop: threading.Event,
    *,
    patient: bool = False,
) -> None:
    """Serve with this ClientApp until `stop` is set. `keep_node` stores the name under which the
    SuperLink knows the node, `node` gives the one stored last. Raises where the SuperLink does not
    let the node in, unless it is `patient`; one that is away is waited for."""
    pause, signed_off, since = _FIRST_PAUSE, False, ""
    while not stop.is_set():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="sottovoce-node-") as folder:
            trouble = _serve_once(Path(folder), connection, app, keep_node, stop)
        if trouble is None:
            return
        if isinstance(trouble, NotLetIn) and not signed_off:
            # A node that was killed counts as connected for a minute, and as long as that the
            # SuperLink lets nobody in with its key.
            signed_off = True
            if _sign_off(connection, node()):
                continue
        if isinstance(trouble, NotLetIn) and patient:
            if not since:
                since = time.strftime("%H:%M")
                print(f"waits since {since}: {trouble}", file=sys.stderr, flush=True)
            stop.wait(_NOT_LET_IN_PAUSE)
            continue
        since = ""
        if isinstance(trouble, KeyTrouble):
            raise trouble
        steady = time.monotonic() - began > _STEADY
        pause = _FIRST_PAUSE if steady else min(2 * pause, _LONGEST_PAUSE)
        signed_off = signed_off and not steady
        print(f"{trouble}; trying again in {pause:g} seconds", file=sys.stderr, flush=True)
        stop.wait(pause)


class NotLetIn(KeyTrouble):
    """The SuperLink does not accept the node's key, or not now."""


def _serve_once(
    work: Path,
    connection: Connection,
    app: Any,
    keep_node: Callable[[bytes], None],
    stop: threading.Event,
) -> ServiceError | None:
    """One SuperNode, until it ends or is told to stop; why it ended by itself."""
    from sottovoce.engines.flower.worker import Worker

    secret, socket = secrets.token_bytes(32), work / "socket"
    (work / "secret").touch(mode=0o600)
    (work / "secret").write_bytes(secret)
    command = supernode_command(
        socket,
        *connection.words(),
        *("--isolation", "process", "--superexec-auth-secret-file", work / "secret"),
    )
    environment = flower_environment(work)
    with Child("the SuperNode", command, log=None, environment=environment) as child:
        told = _Teller(child, lambda node: keep_node(node.encode()))
        Worker(socket, secret, app).run(_Either(stop, child))
        return None if stop.is_set() else told.trouble(connection)


def _sign_off(connection: Connection, node: bytes | None) -> bool:
    """End the connection that this node had before it was killed; whether there was one."""
    if node is None or connection.authority is None or connection.key is None:
        return False
    from sottovoce.engines.flower.worker import sign_off

    return sign_off(connection.address, connection.authority, connection.key, int(node))


class _Either(threading.Event):
    """Set by whoever stops the node, or by the end of the SuperNode."""

    def __init__(self, stop: threading.Event, child: Child) -> None:
        super().__init__()
        self._stop, self._child = stop, child

    def is_set(self) -> bool:
        return self._stop.is_set() or not self._child.alive

    def wait(self, timeout: float | None = None) -> bool:
        return self._stop.wait(timeout) or self.is_set()


class _Teller:
    """Passes the SuperNode's lines on to standard error, remembers the last ones, and tells the
    name under which the SuperLink knows the node."""

    def __init__(self, child: Child, named: Callable[[str], None]) -> None:
        self._child, self._named = child, named
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        for line in self._child.process.stdout or ():
            text = line.decode(errors="replace").rstrip()
            if text:
                self._lines.append(text)
                print(text, file=sys.stderr, flush=True)
            if found := re.search(r"SuperNode ID: (\d+)", text):
                self._named(found[1])
                when = time.strftime("%H:%M")
                print(
                    f"connected at {when}; waits for the operator's training (`sottovoce serve "
                    "flower`) to ask",
                    file=sys.stderr,
                    flush=True,
                )

    def trouble(self, connection: Connection) -> ServiceError:
        """Why the SuperNode ended, in one sentence."""
        self._thread.join(2.0)
        said = "\n".join(self._lines)
        if "code: 2004" in said or "code: 2001" in said:
            return NotLetIn(
                f"the SuperLink at {connection.address} does not let this node in: send the "
                "operator the node's public key (the file that ends in .pub) to register; if it "
                "is registered, another node is connected with the same key"
            )
        if re.search(r"certificate|SSL", said):
            return KeyTrouble(
                f"the certificate of {connection.address} is not one of this federation's "
                "authority, has expired or names another host"
            )
        return Unreachable(
            f"the SuperNode ended with code {self._child.process.returncode}; what it said is above"
        )


def main(arguments: list[str] | None = None) -> None:
    """`python -m sottovoce.engines.flower.supernode`: what the trial engine starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--key", type=Path)
    given = parser.parse_args(arguments)
    try:
        with told_to_stop() as stop:
            serve_node(given.store, Connection(given.superlink, given.ca, given.key), stop)
    except SottovoceError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    os._exit(0)  # Flower's libraries leave threads behind


if __name__ == "__main__":
    main()
