"""Child processes: logs in files, deaths noticed, none left behind."""

import os
import subprocess
import sys
import time

import pytest
from talk import until

from sottovoce.engines.processes import (
    Child,
    descendants,
    sottovoce_command,
    stop_all,
    wait_for,
)
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
    started = [Child(name, code, log=tmp_path / name) for name, code in (("a", SLEEP), ("b", DEAF))]
    for child in started:
        wait_for(child, lambda c=child: "up" in c.log.read_text(), 20)
    stop_all(started[:1])
    started[1].stop(1.0)
    assert not any(alive(c.process.pid) for c in started)


def test_processes_that_end_while_they_are_listed_are_no_error():
    restless = "while :; do (sleep 0 & sleep 0; wait); done"
    with subprocess.Popen(["sh", "-c", restless]) as parent:
        try:
            end, seen = time.monotonic() + 1, set()
            while time.monotonic() < end:
                seen.update(pid for pid, _ in descendants(parent.pid))
        finally:
            parent.kill()
    assert len(seen) > 20


def test_a_child_ends_with_the_block_also_where_the_work_fails(tmp_path):
    started = []

    def work():
        with Child("one", SLEEP, log=tmp_path / "one.log") as child:
            started.append(child)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert not alive(started[0].process.pid)


def test_a_death_is_told_with_the_last_words(tmp_path):
    dying = [sys.executable, "-c", "raise SystemExit('out of luck')"]
    with (
        Child("the server", dying, log=tmp_path / "server.log") as child,
        pytest.raises(ServiceError, match=r"server has ended.*out of luck.*server\.log"),
    ):
        wait_for(child, lambda: False, 20)


def test_waiting_has_an_end(tmp_path):
    with (
        Child("slow", SLEEP, log=tmp_path / "log") as child,
        pytest.raises(ServiceError, match="not ready after"),
    ):
        wait_for(child, lambda: False, 0.2)


def test_children_die_with_a_parent_that_is_killed(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from sottovoce.engines.processes import Child\n"
        f"child = Child('orphan', {SLEEP!r}, log=Path({str(tmp_path / 'log')!r}))\n"
        "print(child.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    until(lambda: not alive(pid))


def test_stopping_a_child_ends_what_it_started(tmp_path):
    script = "sleep 301 & echo $! > $0; wait"
    child = Child("sh", ["sh", "-c", script, tmp_path / "pid"], log=tmp_path / "log")
    with child:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid))


def test_a_file_in_the_folder_one_stands_in_is_no_library(tmp_path):
    (tmp_path / "rich.py").write_text("raise SystemExit('somebody else was run')\n")
    command = sottovoce_command("data", "show")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "somebody else" not in done.stdout + done.stderr
