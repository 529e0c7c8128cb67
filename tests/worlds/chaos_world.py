"""What befalls a service: it is killed at any moment, its disk is full, or fails to keep what was
written. The processes are real; they are forked from one that has loaded the program, so that
hundreds of starts do not take hours."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from server_world import ServerProcess

_FAULTS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int wanted(const char *fault, int fd) {
    const char *folder = getenv("FAULTS");
    char place[4096];
    struct stat found;
    int before = errno, yes = 0;
    if (folder && fd > 2 && snprintf(place, sizeof place, "%s/%s", folder, fault) > 0)
        yes = access(place, F_OK) == 0 && fstat(fd, &found) == 0 &&
              (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode));
    errno = before;
    return yes;
}

#define FAILS(fault, fd, why) do { if (wanted(fault, fd)) { errno = why; return -1; } } while (0)
#define THE(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))

int fsync(int fd) { FAILS("fsync", fd, EIO); return THE(fsync)(fd); }
int fdatasync(int fd) { FAILS("fsync", fd, EIO); return THE(fdatasync)(fd); }
ssize_t write(int fd, const void *from, size_t n) {
    FAILS("full", fd, ENOSPC); return THE(write)(fd, from, n);
}
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
    FAILS("full", fd, ENOSPC); return THE(pwrite)(fd, from, n, at);
}
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) {
    FAILS("full", fd, ENOSPC); return THE(pwrite64)(fd, from, n, at);
}
"""
"""Stands before the C library: while there is a file of that name, nothing can be written, or what
was written is not kept."""

_NURSERY = """
import json, os, signal, sys, traceback
from pathlib import Path
from sottovoce.errors import SottovoceError
from sottovoce.services.kit.serving import serve as serve_folder
from sottovoce.services.{module} import {service}

def serve(order):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    options = order["options"]
    limits = {service}.limits(**options.pop("limits", {{}}))
    plain = options.pop("plaintext", False)
    try:
        made = {service}(**options)
        serve_folder(made, Path(order["path"]), port=0, plaintext=plain, limits=limits)
    except SottovoceError as error:
        print(f"error: {{error}}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(99)
    os._exit(0)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes care of the dead
print("loaded", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        serve(json.loads(line))
    print(child, flush=True)
"""

PARTIES = {
    "server": ("server.process", "ServerService", "server.json"),
    "proxy": ("shuffler", "ShufflerService", "proxy.json"),
    "masker": ("helper", "HelperService", "masker.json"),
    "owner": ("owner", "OwnerService", "owner.json"),
    "orchestrator": ("orchestrator", "OrchestratorService", "orchestrator.json"),
}


def fault_library(folder):
    """The library that makes disks fail; skips where there is no compiler."""
    if shutil.which("gcc") is None:
        sentence = "gcc is not installed, so that a failing disk cannot be made"
        if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)
    folder.mkdir(exist_ok=True)
    source, made = folder / "faults.c", folder / "faults.so"
    source.write_text(_FAULTS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", source, "-o", made, "-ldl"], check=True)
    return made


class Nursery:
    """Starts processes of one party quickly, on a disk that fails when it is told to."""

    def __init__(self, party, folder):
        module, service, self.ready_files = PARTIES[party]
        self.faults = folder / "faults"
        library = fault_library(self.faults)
        program = _NURSERY.format(module=module, service=service)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "LD_PRELOAD": str(library), "FAULTS": str(self.faults)},
        )
        self._turn = threading.Lock()
        assert self._process.stdout.readline() == b"loaded\n"

    def start(self, order):
        with self._turn:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    @contextlib.contextmanager
    def failing(self, fault):
        """Within, the disk is "full", or an "fsync" fails."""
        place = self.faults / fault
        place.touch()
        try:
            yield
        finally:
            place.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


class Forked(ServerProcess):
    """A service of a nursery."""

    def __init__(self, nursery, path, *, wait=True, **options):
        self.path, self.ready_files = path, nursery.ready_files
        self.log = nursery.faults / f"log-{secrets.token_hex(3)}.txt"
        order = {"path": str(path), "log": str(self.log), "options": options}
        self.process = _Process(nursery.start(order))
        self.ready = None
        if wait:
            try:
                self.wait_until_ready()
            except BaseException:
                self.kill()
                raise


class _Process:
    """Somebody else's child."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout=60):
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, "it does not end"
            time.sleep(0.005)


@dataclass
class Figures:
    """What a run has seen."""

    kills: int = 0
    full: int = 0
    fsync: int = 0
    answers: int = 0
    """Whatever was asked and not turned away."""
    acknowledged: int = 0
    again: int = 0
    """Sent again, because an answer was lost, and found to be there."""
    turned_away: int = 0
    seconds: float = 0.0
    starts: list = field(default_factory=list)

    def say(self, party):
        """For whoever runs it by hand, with -s."""
        start = np.median(self.starts) if self.starts else 0.0
        print(
            f"\n{party}: {self.kills} kills, {self.full} times full, {self.fsync} times no fsync, "
            f"{self.acknowledged} acknowledged, {self.again} sent again and there, "
            f"{self.turned_away} turned away, 0 lost, 0 doubled, {self.seconds:.0f} s "
            f"(a start takes {start:.2f} s)"
        )


class Mishaps:
    """A service that is killed so many times, at moments that the seed says: after some answers
    and a little while. Before every third kill its disk is full or fails, until some were turned
    away, and is well again before the kill or not."""

    def __init__(self, nursery, start, *, kills, seed, answers=12):
        self._nursery, self._start, self._kills = nursery, start, kills
        self._rng, self._answers = np.random.default_rng(seed), answers
        self.figures = Figures()
        self.process = self._begin()
        self.over = threading.Event()
        self._trouble = None
        self._thread = threading.Thread(target=self._run)

    def _begin(self):
        began = time.monotonic()
        process = self._start()
        self.figures.starts.append(time.monotonic() - began)
        return process

    @property
    def port(self):
        return self.process.port

    def __enter__(self):
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._kills = 0
        self._thread.join()
        self.process.kill()
        self.figures.seconds = time.monotonic() - self._began
        if kind is None and self._trouble is not None:
            raise self._trouble

    def _run(self):
        try:
            while self.figures.kills < self._kills:
                self._mishap(self.figures.kills)
        except BaseException as error:
            self._trouble = error
        finally:
            self.over.set()

    def _mishap(self, number):
        figures, rng = self.figures, self._rng
        self._wait_for("answers", int(rng.integers(0, self._answers)))
        with contextlib.ExitStack() as stack:
            if number % 3 == 2:
                fault = "full" if number % 2 else "fsync"
                setattr(figures, fault, getattr(figures, fault) + 1)
                stack.enter_context(self._nursery.failing(fault))
                self._wait_for("turned_away", int(rng.integers(1, 6)))
                assert self.process.process.poll() is None, self.process.log.read_text()
                if rng.random() < 0.5:
                    stack.close()
                    self._wait_for("answers", int(rng.integers(0, self._answers)))
            self.process.kill()
        self._read_log(self.process)
        figures.kills += 1
        self.process = self._begin()

    def _wait_for(self, what, count, seconds=3.0):
        """Until there are so many more, and a little while."""
        wanted, end = getattr(self.figures, what) + count, time.monotonic() + seconds
        while getattr(self.figures, what) < wanted and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(self._rng.uniform(0.0, 0.02))

    def _read_log(self, process):
        said = process.log.read_text()
        assert "Traceback" not in said, said
        assert "unforeseen" not in said, said
        process.log.unlink()
