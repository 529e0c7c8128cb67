"""Tests that are cut off: they leave no process, and do not fail others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import leftovers

CUT_OFF = """
import gc, subprocess, sys, time
from multiprocessing import resource_tracker
import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)", PLACE]
# Leaves one behind that has no parent.
PARENT = [sys.executable, "-c",
    "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)", *SLEEP]


class Touchy:  # some libraries have such objects
    @property
    def __class__(self):
        raise RuntimeError("do not look at me")


touchy = [Touchy()]


@pytest.fixture(scope="module")
def serves_all():
    process = subprocess.Popen(SLEEP)
    yield process
    assert process.poll() is None, "it was ended with a test that it served"
    process.kill()
    process.wait()


def test_cut_off(serves_all):
    held = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, start_new_session=True)
    subprocess.run(PARENT)
    resource_tracker.ensure_running()
    time.sleep(600)


def test_of_others(serves_all):
    assert serves_all.poll() is None
    resource_tracker.ensure_running()
    gc.collect()
"""


def start_pytest(tmp_path, *options):
    """A pytest process of its own, by the rules of all tests here."""
    here = Path(__file__).parent
    (tmp_path / "test_cut_off.py").write_text(f"PLACE = {str(tmp_path)!r}\n{CUT_OFF}")
    command = [
        *(sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-rfE"),
        *("-c", here.parent / "pyproject.toml", "--rootdir", tmp_path, *options),
        tmp_path / "test_cut_off.py",
    ]
    outside = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**outside, "PYTHONPATH": str(here)},
        cwd=tmp_path,
    )


def still_there(tmp_path):
    """Sleepers of this test."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(tmp_path).encode() in words and leftovers.born(int(place.parent.name)):
            found.append(words)
    return found


@pytest.mark.parametrize(
    "options",
    [
        ("--timeout", "1"),
        pytest.param(("--timeout", "2", "-n", "1"), marks=pytest.mark.slow),
    ],
    ids=["alone", "with workers"],
)
def test_a_test_that_is_cut_off_leaves_nothing_behind(tmp_path, options):
    with start_pytest(tmp_path, *options) as process:
        said, _ = process.communicate(timeout=120)
    assert "1 failed, 1 passed" in said, said
    assert "Timeout" in said
    assert not still_there(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["thread", "SIGKILL"])
def test_a_run_that_is_cut_off_leaves_nothing_behind(tmp_path, ending):
    options = ("--timeout", "2", "--timeout-method", "thread") if ending == "thread" else ()
    with start_pytest(tmp_path, *options) as process:
        while ending == "SIGKILL" and len(still_there(tmp_path)) < 4:  # and pytest itself
            assert process.poll() is None
            time.sleep(0.05)
        if ending == "SIGKILL":
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
    until = time.monotonic() + 30
    while still_there(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.05)
