"""A node as a service: Flower's SuperNode for the connection, our worker for the work.

Flower's part never sees the store. It runs as a child, and ends with this process.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.engines.flower.processes import Child, flower_environment, free_port
from sottovoce.errors import KeyTrouble, ServiceError, SottovoceError, Unreachable, UsageError
from sottovoce.parties.hosted import Hosted
from sottovoce.parties.store import CohortStore

READY = "SuperNode ID"
_KEPT_LINES = 60
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
        self.address, self.authority, self.key = address, authority, key

    def words(self) -> list[str | Path]:
        words: list[str | Path] = ["--superlink", self.address]
        if self.authority is None or self.key is None:
            return [*words, "--insecure"]
        return [
            *words,
            *("--root-certificates", self.authority),
            *("--auth-supernode-private-key", self.key),
        ]


def serve_node(store: Path, connection: Connection, stop: threading.Event) -> None:
    """Serve the cohort in `store` until `stop` is set. Raises where the store is in use, or where
    the SuperLink does not let the node in."""
    # Flower is imported late: a store that cannot be opened is told at once.
    with CohortStore.open(store, agent=True) as opened:
        from sottovoce.engines.flower.client_app import build_client_app
        from sottovoce.engines.flower.worker import Worker

        hosted = Hosted(opened)

        @contextmanager
        def devices(context: Any) -> Iterator[Hosted]:
            yield hosted

        app = build_client_app(devices)
        with tempfile.TemporaryDirectory(prefix="sottovoce-node-") as folder:
            work = Path(folder)
            secret, port = secrets.token_bytes(32), free_port()
            (work / "secret").touch(mode=0o600)
            (work / "secret").write_bytes(secret)
            command: list[str | Path] = [
                *("flower-supernode", *connection.words()),
                *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process"),
                *("--superexec-auth-secret-file", work / "secret"),
            ]
            environment = flower_environment(work)
            with Child("the SuperNode", command, log=None, environment=environment) as child:
                told = _Teller(child)
                worker = Worker(f"127.0.0.1:{port}", secret, app)
                worker.run(_Either(stop, child))
                if not stop.is_set():
                    raise told.trouble(connection)


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
    """Passes the SuperNode's lines on to standard error and remembers the last ones."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        for line in self._child.process.stdout or ():
            text = line.decode(errors="replace").rstrip()
            if text:
                self._lines.append(text)
                print(text, file=sys.stderr, flush=True)

    def trouble(self, connection: Connection) -> ServiceError:
        """Why the SuperNode ended, in one sentence."""
        self._thread.join(2.0)
        said = "\n".join(self._lines)
        if "code: 2004" in said or "code: 2001" in said or "401" in said:
            return KeyTrouble(
                f"the SuperLink at {connection.address} does not know this node's key; send the "
                "operator the public key (the file that ends in .pub) to register"
            )
        if re.search(r"certificate|SSL", said):
            return KeyTrouble(
                f"the certificate of {connection.address} is not one of this federation's "
                "authority, has expired or names another host"
            )
        return Unreachable(
            f"the SuperNode ended with code {self._child.process.returncode}; its last words are "
            "above"
        )


def main(arguments: list[str] | None = None) -> None:
    """`python -m sottovoce.engines.flower.supernode`: what the trial engine starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--key", type=Path)
    given = parser.parse_args(arguments)
    stop = stop_on_signals()
    try:
        serve_node(given.store, Connection(given.superlink, given.ca, given.key), stop)
    except SottovoceError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    os._exit(0)  # Flower's libraries leave threads behind


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM or Ctrl-C sets."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    main()
