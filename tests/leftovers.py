"""Processes that tests have started, and their end.

They are known by a mark that they inherit, so that also one is found whose parent is gone, or as
descendants, since some overwrite what they inherit. As a program it waits until its standard input
ends, as it does when its parent is gone in whichever way, and ends all that have the mark.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "SOTTOVOCE_TESTS"


def watch(mark):
    """A process that ends what this one leaves behind."""
    command = [sys.executable, __file__, mark]
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=unmarked, start_new_session=True)


def now():
    """The time, as processes' births have it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


def marked(mark):
    """Processes with this mark, but for this one: number and birth."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in words and int(place.name) != os.getpid():
                found.append((int(place.name), born(int(place.name))))
    return found


def end(processes):
    """The numbers of those that were there; they are gone on return."""
    there = [(pid, when) for pid, when in processes if when and born(pid) == when]
    for pid, _ in there:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 600
    while any(born(pid) == when for pid, when in there) and time.monotonic() < until:
        time.sleep(0.01)
    return {pid for pid, _ in there}


def born(pid):
    """When it was born; empty where it is gone or waits for its parent to notice its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(marked(sys.argv[1]))
