"""Shell commands of a notebook. `sh` runs them; `stays` leaves a service running until `end`."""

from __future__ import annotations

import atexit
import os
import pathlib
import signal
import subprocess
import time

running: dict[str, subprocess.Popen[bytes]] = {}
plain = {name: value for name, value in os.environ.items() if "COLOR" not in name}


def sh(lines: str) -> None:
    """Run lines in bash and print what they print; the first one that fails ends it."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        env=plain,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(done.stdout.decode(errors="replace"), end="")
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}")


def stays(lines: str, until: str, seconds: float = 180.0) -> None:
    """Start what serves, as in a terminal of its own, and wait until it says `until`. The same
    lines again are a restart: Ctrl-C, and typed once more."""
    if lines in running:
        stop(running.pop(lines))
    log = pathlib.Path(f".terminal-{len(running) + 1}.log")
    with log.open("wb") as said:
        child = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", lines],
            env=plain,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running[lines] = child
    begun = time.monotonic()
    while until not in (told := log.read_text(errors="replace")):
        if child.poll() is not None or time.monotonic() > begun + seconds:
            raise RuntimeError(f"it did not say {until!r}: {told}")
        time.sleep(0.1)
    print(told, end="")


def wait_for(lines: str, words: str, seconds: float = 180.0) -> None:
    """Repeat a command until its output has these words, then print it."""
    begun, told = time.monotonic(), ""
    while words not in told:
        if time.monotonic() > begun + seconds:
            raise RuntimeError(f"{words!r} did not come: {told}")
        done = subprocess.run(["bash", "-c", lines], env=plain, capture_output=True, text=True)
        told = done.stdout + done.stderr
        time.sleep(0.5)
    print(told, end="")


def end() -> None:
    """Stop what still runs, the last one first, as Ctrl-C does."""
    while running:
        stop(running.popitem()[1])


def stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)


atexit.register(end)
