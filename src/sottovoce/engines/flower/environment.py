"""The environment in which Flower's programs run."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
