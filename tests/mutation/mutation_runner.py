"""Runs tests against mutants: one pytest session collects and warms everything up, then each mutant
is a fork of it in which one function has other code."""

import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from collections import defaultdict

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings
from mutation_makers import function_of, put_in

LIMIT = 10
"""Seconds of processor time beyond five times its usual time after which a test has found that a
mutant runs in circles."""
STUCK = 600
"""Seconds on the clock after which it is given up: what waits for ever was not killed by a test."""
MEMORY = 8 << 30


class Runner:
    """`left_out` has parts of names of tests."""

    def __init__(self, mutants, left_out, jobs, told):
        self.mutants, self.left_out = mutants, left_out
        self.jobs, self.told = jobs, told
        self.outcomes = {}
        """Of each mutant, by name: "killed", "survived", "stuck" or "not reached"."""

    def pytest_sessionstart(self):
        # Loaded before the tests are: a failure is enough, it need not be the smallest.
        settings.register_profile(
            "mutation", derandomize=True, deadline=None, database=None,
            phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items):
        items[:] = [i for i in items if not any(part in i.nodeid for part in self.left_out)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        if session.testsfailed or not session.items:
            raise pytest.UsageError("the tests cannot be collected")
        self._pass(session.items)  # kernels are compiled in the first pass, and timed in the second
        seconds, hits = self._pass(session.items)
        self.told(f"{len(session.items)} tests in {sum(seconds.values()):.0f} s")
        running = {}
        for mutant in self.mutants:
            while len(running) >= self.jobs:
                self._one_done(running)
            calling = hits[mutant.module, mutant.function]
            items = [item for item in calling if item.nodeid.startswith(mutant.tests)]
            items.sort(key=lambda item: seconds[item.nodeid])
            if items:
                running[_fork(mutant, items, seconds)] = mutant
            else:
                self._done(mutant, "not reached")
        while running:
            self._one_done(running)
        return True

    def _pass(self, items):
        """Every test once, as the code is: how long each takes, and which functions it calls."""
        whose = {}
        for mutant in self.mutants:
            code = function_of(mutant).__code__
            whose[code] = mutant.module, mutant.function
        seconds, hits, called = {}, defaultdict(list), set()

        def watch(frame, event, _):
            if event == "call" and frame.f_code in whose:
                called.add(whose[frame.f_code])

        for item, after in zip(items, [*items[1:], None], strict=True):
            called.clear()
            began = time.perf_counter()
            sys.setprofile(watch)
            threading.setprofile(watch)
            try:
                reports = runtestprotocol(item, log=False, nextitem=after)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            seconds[item.nodeid] = time.perf_counter() - began
            for report in reports:
                if report.failed:
                    raise pytest.UsageError(f"{item.nodeid} fails as it is:\n{report.longreprtext}")
            for each in called:
                hits[each].append(item)
        return seconds, hits

    def _one_done(self, running):
        pid, status = os.wait()
        if pid in running:
            code = os.waitstatus_to_exitcode(status)
            outcome = {0: "survived", -signal.SIGALRM: "stuck"}.get(code, "killed")
            self._done(running.pop(pid), outcome)

    def _done(self, mutant, outcome):
        self.outcomes[mutant.name] = outcome
        if outcome != "killed":
            self.told(f"{outcome}: {mutant.name}")
        if not len(self.outcomes) % 50:
            self.told(f"{len(self.outcomes)} of {len(self.mutants)}")


def _fork(mutant, items, seconds):
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        faulthandler.disable()
        signal.alarm(STUCK)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
        put_in(mutant)
        for item, after in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, LIMIT + 5 * seconds[item.nodeid])
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=after)):
                os._exit(1)
        os._exit(0)
    finally:
        os._exit(2)
