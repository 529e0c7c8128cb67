"""Child processes: logs in files, deaths noticed, none left behind."""

import os
import subprocess
import sys
import time

import pytest

from sottovoce.engines.processes import children
from sottovoce.errors import ServiceError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)",
]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_none_is_left_behind_even_one_that_does_not_listen(tmp_path):
    with children(tmp_path) as group:
        started = [group.start("meek", SLEEP), group.start("deaf", DEAF)]
        for child in started:
            group.wait_for(child, lambda c=child: "up" in c.log.read_text(), 20)
        group.stop(patience=1.0)
        assert not any(alive(c.process.pid) for c in started)


def test_all_end_where_the_work_fails(tmp_path):
    started = []

    def work():
        with children(tmp_path) as group:
            started.append(group.start("one", SLEEP))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert not alive(started[0].process.pid)


def test_a_death_is_told_with_the_last_words(tmp_path):
    with children(tmp_path) as group:
        dying = group.start("server", [sys.executable, "-c", "raise SystemExit('out of luck')"])
        with pytest.raises(ServiceError, match=r"server has stopped.*out of luck.*server\.log"):
            group.wait_for(dying, lambda: False, 20)


def test_waiting_has_an_end(tmp_path):
    with children(tmp_path) as group:
        child = group.start("slow", SLEEP)
        with pytest.raises(ServiceError, match="not ready after"):
            group.wait_for(child, lambda: False, 0.2)


def test_children_die_with_a_parent_that_is_killed(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from sottovoce.engines.processes import Children\n"
        f"child = Children(Path({str(tmp_path)!r})).start('orphan', {SLEEP!r})\n"
        "print(child.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(pid)
