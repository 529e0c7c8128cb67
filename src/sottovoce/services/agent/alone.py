"""One device's agent without the command line that started it.

`sottovoce serve device STORE` becomes this process: what reads commands takes 6 MB, and an agent
runs for weeks. Where something goes wrong the command line is loaded after all, which has the words
for it.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

WORD = "--alone"
"""By which `python -m sottovoce` knows the agent; what was asked for follows."""


def speak_anywhere() -> None:
    """A terminal without π shows "?" from now on, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def become(given: dict[str, Any]) -> NoReturn:
    """Replace this process by the agent of one store, which imports from the same places."""
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    # One device's arrays are small: the threads that multiply matrices have buffers, and no work.
    environment = {
        **os.environ,
        "PYTHONPATH": places,
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
    }
    command = [sys.executable, "-P", "-X", "no_debug_ranges", "-m", "sottovoce", WORD]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [*command, json.dumps(given)], environment)


def stay(store: Path, options: dict[str, Any], *, replace: bool, as_json: bool = False) -> Any:
    """Serve this store. The process becomes its agent if it may be replaced; if not, this returns
    what the agent did. Windows cannot replace a process: the caller would believe that it has
    ended."""
    asked = {"store": str(store), "options": options, "json": as_json}
    if replace and os.name == "posix":
        become(asked)
    return serve(asked)


def given(words: list[str]) -> dict[str, Any] | None:
    """What `become` asked for; None where these are the words of somebody else."""
    if len(words) != 2 or words[0] != WORD:
        return None
    try:
        told = json.loads(words[1])
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and {"store", "options", "json"} <= set(told) else None


def serve(given: dict[str, Any]) -> Any:
    """Runs the agent, and returns what it did."""
    from sottovoce import compiled

    compiled.leave_out()
    from sottovoce.services.agent.process import Options, serve_devices

    return serve_devices([Path(given["store"])], Options(**given["options"]))
