"""Flower's programs, as we start them: in an environment of their own, without the pages about
their interface, and a SuperNode on a socket in a folder of its own, which nobody else can open.

Flower offers neither as an option: a SuperNode listens on a port of loopback, where every account
of the machine can talk to it, and both serve `/docs` and `/openapi.json`.

    python -m sottovoce.engines.flower.quiet superlink WORDS...
    python -m sottovoce.engines.flower.quiet supernode SOCKET WORDS...
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from sottovoce.errors import ServiceError

_UMASK = 0o077


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of every Flower program: nothing is reported, looked up or installed, and
    its programs, which start each other by bare name, are those of this installation."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "PYTHONUNBUFFERED": "1",
        # A proxy for the outside must not get to see what this machine says to itself.
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])),
    }


def superlink_command(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", __name__, "superlink", *words]


def supernode_command(socket: Path, *words: str | Path) -> list[str | Path]:
    """Listens at `socket`, whose folder must be for its owner alone."""
    return [sys.executable, "-m", __name__, "supernode", socket, *words]


def main(arguments: list[str] | None = None) -> None:
    program, *words = sys.argv[1:] if arguments is None else arguments
    without_pages()
    if program == "supernode":
        socket, *words = words
        on_socket(Path(socket))
    # The function of that name hides the module.
    name = f"flower_{program}"
    module = importlib.import_module(f"flwr.{program}.cli.{name}")
    sys.argv = [name.replace("_", "-"), *words]
    getattr(module, name)()
    if program == "supernode":
        # It ends with its connection. By itself it would say why it has lost it, sign off, and
        # stay for ever: the thread that serves its worker goes on.
        sys.stdout.flush()
        os._exit(1)


def without_pages() -> None:
    """Applications that are made from now on describe themselves to nobody."""
    import fastapi

    make = fastapi.FastAPI.__init__

    @functools.wraps(make)
    def silent(self: Any, *parts: Any, **options: Any) -> None:
        hidden = {"docs_url": None, "redoc_url": None, "openapi_url": None}
        make(self, *parts, **{**options, **hidden})

    fastapi.FastAPI.__init__ = silent  # type: ignore[method-assign]


def on_socket(socket: Path) -> None:
    """Servers that are made from now on listen there and at no port."""
    import uvicorn

    if socket.parent.stat().st_mode & _UMASK:
        raise ServiceError(f"{socket.parent} may be entered by others; nothing listens in it")
    os.umask(_UMASK)
    make = uvicorn.Config.__init__

    @functools.wraps(make)
    def elsewhere(self: Any, *parts: Any, **options: Any) -> None:
        kept = {name: value for name, value in options.items() if name not in ("host", "port")}
        make(self, *parts, **{**kept, "uds": str(socket)})

    uvicorn.Config.__init__ = elsewhere  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
