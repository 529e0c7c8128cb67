"""Locks between processes, and what differs on Windows.

Windows is played here by a made-up `msvcrt`: that shows which branch is taken and how it calls the
C library, and not that Windows does as this one does."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import types

import pytest

from sottovoce.stores import locking, private

TAKE = "import sys, pathlib; from sottovoce.stores.locking import try_lock as t; "


def another(path, code):
    done = subprocess.run([sys.executable, "-c", TAKE + code, path], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


def test_one_process_has_a_lock(tmp_path):
    place = tmp_path / "it.lock"
    assert not locking.is_locked(place)
    held = locking.try_lock(place)
    assert held is not None
    assert locking.is_locked(place)
    assert another(place, "print(t(pathlib.Path(sys.argv[1])))") == "None"
    held.close()
    assert not locking.is_locked(place)
    with locking.lock(place):
        assert locking.try_lock(place) is None


def test_a_lock_ends_with_its_process(tmp_path):
    place = tmp_path / "it.lock"
    held = another(place, "x = t(pathlib.Path(sys.argv[1])); print(x is not None)")
    assert held == "True"
    assert not locking.is_locked(place)


class MadeUp(types.ModuleType):
    """`msvcrt` as its documentation describes it, within one process: a handle locks a byte."""

    LK_LOCK, LK_NBLCK, LK_UNLCK = 1, 2, 0

    def __init__(self):
        super().__init__("msvcrt")
        self.held, self.asked = False, []

    def locking(self, handle, mode, many):
        self.asked.append((mode, many))
        if self.held and len(self.asked) < 3:
            raise PermissionError(13, "Permission denied")
        self.held = True


@pytest.fixture
def windows(monkeypatch):
    made = MadeUp()
    monkeypatch.setitem(sys.modules, "msvcrt", made)
    with monkeypatch.context() as there:
        there.setattr(sys, "platform", "win32")
        importlib.reload(locking)
        yield made
    importlib.reload(locking)


def test_the_branch_of_windows(windows, tmp_path):
    place = tmp_path / "it.lock"
    with locking.try_lock(place) as held:
        assert held.tell() == 0
        assert locking.try_lock(place) is None
        with locking.lock(place):  # waits, and asks again
            pass
    assert windows.asked == [(2, 1), (2, 1), (1, 1)]


def test_modes_say_nothing_on_windows(windows, tmp_path):
    place = tmp_path / "secret"
    private.write_new(place, b"a\nb")
    place.chmod(0o644)
    assert private.others_may(place) == 0
    private.close_to_others(place)
    private.sync_folder(tmp_path)
    assert place.stat().st_mode & 0o777 == 0o644
    assert place.read_bytes() == b"a\nb"


def test_signals_reach_an_agent_whose_loop_knows_none(windows):
    from sottovoce.services.agent.process import on_signals

    async def told():
        stopped = asyncio.Event()
        with on_signals(stopped.set):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stopped.wait(), 10)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(told())
    assert signal.getsignal(signal.SIGTERM) is before
