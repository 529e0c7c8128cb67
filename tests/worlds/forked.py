"""Processes that are forked from one that has loaded the program. Each is a real one, with its own
memory, signals, files and exit code, and ends as any interpreter does; only its start takes no
second. Whatever is about a start itself is tested with `python -m sottovoce`."""

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

from sottovoce.engines import processes

OURS = processes.sottovoce_command()
LOADED = (
    "sottovoce.cli",
    "sottovoce.services.agent.process",
    "sottovoce.services.server.process",
    "sottovoce.services.shuffler",
    "sottovoce.services.helper",
    "sottovoce.services.owner",
    "sottovoce.services.orchestrator",
    "sottovoce.web.console",
)
"""What the processes need."""
COMMAND = "from sottovoce.cli import main\nmain()\n"
"""As `python -m sottovoce`."""
_LONGEST = 1 << 17
_TETHER = 6
"""Words before the command in those that start a child; see `engines.processes`."""


class ForkedProcess:
    """As `subprocess.Popen([sys.executable, "-c", program, *arguments], ...)` in a session of its
    own. Without a file for it, what it says can be read from `communicate`."""

    def __init__(self, program, *arguments, output=None, environment=None):
        self.args = [sys.executable, "-c", program, *map(str, arguments)]
        order = {
            "program": program,
            "arguments": self.args[3:],
            "environment": dict(os.environ if environment is None else environment),
        }
        self.returncode = self.stdout = self.stderr = None
        self._exit, tell = os.pipe()
        if output is None:
            (out, stdout), (err, stderr) = os.pipe(), os.pipe()
            self.stdout, self.stderr = (os.fdopen(file, encoding="utf-8") for file in (out, err))
        else:
            stdout, stderr = os.dup(output.fileno()), os.dup(output.fileno())
        files = [tell, stdout, stderr]
        try:
            self.pid = _nursery().start(order, files)
        finally:
            for file in files:
                os.close(file)

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._exit], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            told = os.read(self._exit, 20)
            os.close(self._exit)
            self.returncode = int(told) if told else -signal.SIGKILL
        return self.returncode

    def communicate(self, timeout=None):
        """May be asked once."""
        said, end = {}, None if timeout is None else time.monotonic() + timeout
        files = [file for file in (self.stdout, self.stderr) if file is not None]

        def read(file):
            with file:
                said[file] = file.read()

        readers = [threading.Thread(target=read, args=(file,), daemon=True) for file in files]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():  # somebody else has its output
                raise subprocess.TimeoutExpired(self.args, timeout)
        return said.get(self.stdout), said.get(self.stderr)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __del__(self):
        if self.returncode is None and hasattr(self, "pid"):
            os.close(self._exit)


@contextlib.contextmanager
def children():
    """The services and agents that engines start are forked; all have ended afterwards."""
    start, started = subprocess.Popen, []

    def fork(words, **options):
        command = words[_TETHER:]
        if command[: len(OURS)] != OURS or options["stdout"] is subprocess.PIPE:
            return start(words, **options)
        output, environment = options["stdout"], options["env"]
        arguments = command[len(OURS) :]
        started.append(ForkedProcess(COMMAND, *arguments, output=output, environment=environment))
        return started[-1]

    with mock.patch.object(processes, "subprocess", _Other(subprocess, Popen=fork)):
        yield started
    left = [process.args[3:] for process in started if process.poll() is None]
    assert not left, f"left behind: {left}"


class _Other:
    """A module with something else in it."""

    def __init__(self, module, **others):
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name):
        return getattr(self._module, name)


def run(*arguments, timeout):
    """What `sottovoce` with these arguments says, and its exit code."""
    process = ForkedProcess(COMMAND, *arguments)
    try:
        said = process.communicate(timeout)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


class _Nursery:
    """The process that all others are forked from."""

    def __init__(self):
        self._turn = threading.Lock()
        self._link, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            here = str(Path(__file__).parent)
            program = (
                f"import sys\nsys.path.insert(0, {here!r})\nimport compiled, forked\n"
                "sys.path.pop(0)\ncompiled.use_locks()\n"
                f"exec(compile(forked.nursed({there.fileno()}), '<string>', 'exec'), "
                "{'__name__': '__main__'})\n"
            )
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # what cannot be sought is written to any kind of file
                stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        assert self._link.recv(_LONGEST) == b"loaded", self.process.stdout.read()

    def start(self, order, files):
        with self._turn:
            socket.send_fds(self._link, [json.dumps(order).encode()], files)
            return int(self._link.recv(_LONGEST))

    def close(self):
        self._link.close()
        self.process.communicate(timeout=60)


_nurseries = []
_first = threading.Lock()


def _nursery():
    """One for all tests of this process; another where a test that failed took it along."""
    with _first:
        if _nurseries and _nurseries[-1].process.poll() is not None:
            _nurseries.pop().close()
        if not _nurseries:
            _nurseries.append(_Nursery())
        return _nurseries[-1]


def close():
    """When all tests are over."""
    while _nurseries:
        _nurseries.pop().close()


# --- within the nursery ---------------------------------------------------------------------------


def nursed(link):
    """Returns in each process that is forked, with the program that it is to run."""
    import gc
    from importlib import import_module

    from numba import njit

    for name in LOADED:
        import_module(name)
    njit(lambda x: x)(1.0)  # the compiler loads itself when it is first needed
    gc.collect()
    gc.freeze()
    born, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(born, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    exits = {}
    with socket.socket(fileno=link) as asked:
        asked.send(b"loaded")
        while True:
            ready, _, _ = select.select([asked, born], [], [])
            if born in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(born, 4096)
            _tell(exits)
            if asked not in ready:
                continue
            order, files = _received(asked)
            if not order:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                asked.send(str(os.getpid()).encode())
                break
            exits[pid] = files[0]
            for file in files[1:]:
                os.close(file)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for file in (wake, born, *exits.values()):
        os.close(file)
    os.dup2(files[1], 1)
    os.dup2(files[2], 2)
    for file in files:
        os.close(file)
    told = json.loads(order)
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.argv[:] = ["-c", *told["arguments"]]
    return told["program"]


def _tell(exits):
    """Say how those ended that have."""
    while exits:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with open(exits.pop(pid), "wb", buffering=0) as tell, contextlib.suppress(OSError):
            tell.write(str(os.waitstatus_to_exitcode(status)).encode())


def _received(asked):
    files = array.array("i")
    order, ancillary, _, _ = asked.recvmsg(_LONGEST, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, data in ancillary:
        files.frombytes(data)
    return order, list(files)
