"""Reports are opened by helpers as they are in this process, also where helpers are killed, and no
helper outlives whoever started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sottovoce.services.kit import openers
from sottovoce.services.kit.openers import Openers
from sottovoce.stores.keys import ReportKey
from sottovoce.wire.sealing import SEALED_BYTES, report_info, seal_reports

KEY = ReportKey.of(bytes(range(32)))
PLACE = {"federation": "kleine-stadt-ü", "round": 2**32 - 1, "tier": 254}
GIVEN = KEY.private, report_info(KEY.public, **PLACE), SEALED_BYTES


def numbers(opened):
    return np.frombuffer(opened, "<u4").tolist()


@pytest.fixture(scope="module")
def sealed():
    reports = np.arange(300, dtype=np.uint32) * 7_654_321
    good = seal_reports(reports, KEY.public, **PLACE)
    other = seal_reports(reports[:5], KEY.public, **{**PLACE, "round": 3})
    return reports, good[: 100 * SEALED_BYTES] + other + good[100 * SEALED_BYTES :]


def children():
    """Processes that this one has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(os.getpid()) and fields[0] != "Z":
            found.append(int(path.parent.name))
    return set(found)


@pytest.mark.parametrize("helpers", [1, 3])
def test_helpers_open_what_this_process_opens(sealed, helpers, monkeypatch):
    monkeypatch.setattr(openers, "_CHUNK", 40)
    reports, content = sealed
    before = children()
    with Openers(*GIVEN).helped(len(reports), helpers) as some:
        assert len(children() - before) == helpers
        monkeypatch.setattr(some, "_here", None)  # nothing is opened here
        for _ in range(2):
            opened, refused = some.open(content)
            assert (numbers(opened), refused) == (reports.tolist(), 5)
        assert some.open(b"")[0] == b""
    assert children() == before


def test_few_reports_need_no_helper(sealed):
    reports, content = sealed
    before = children()
    with Openers(*GIVEN).helped(len(reports)) as some:
        assert children() == before
        opened, refused = some.open(content)
    assert (numbers(opened), refused) == (reports.tolist(), 5)


def test_a_helper_that_is_killed_or_never_starts_costs_time_alone(sealed, monkeypatch):
    monkeypatch.setattr(openers, "_CHUNK", 40)
    reports, content = sealed
    before = children()
    with Openers(*GIVEN).helped(len(reports), 2) as some:
        os.kill(min(children() - before), signal.SIGKILL)
        for _ in range(2):
            opened, refused = some.open(content)
            assert (numbers(opened), refused) == (reports.tolist(), 5)
    monkeypatch.setattr(openers.sys, "executable", "/nowhere/python")
    with Openers(*GIVEN).helped(len(reports), 2) as some:
        opened, refused = some.open(content)
    assert (numbers(opened), refused) == (reports.tolist(), 5)


PROGRAM = """
import os, time
from sottovoce.services.kit.openers import Openers
with Openers(bytes(range(32)), b"a", 52).helped(0, 1) as some:
    helper = some._idle.get()
    print(helper.pid, flush=True)
    time.sleep(60)
"""


def test_the_key_is_on_no_command_line_and_a_helper_ends_with_who_started_it():
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
    helper = int(parent.stdout.readline())
    told = (
        Path(f"/proc/{helper}/cmdline").read_bytes() + Path(f"/proc/{helper}/environ").read_bytes()
    )
    assert bytes(range(32)).hex().encode() not in told
    assert bytes(range(1, 32)) not in told
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{helper}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the helper is still there")
