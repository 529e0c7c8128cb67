"""Flower's programs, as we start them: without the pages about their interface, and a SuperNode on
a socket in a folder of its own, which nobody else on the machine can open.

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
