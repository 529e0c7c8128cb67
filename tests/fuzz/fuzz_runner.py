"""One target in fresh state, and what is watched while inputs come."""

import sys
import tempfile
import time
from pathlib import Path

import fuzz_decoders
import fuzz_parties
import fuzz_servers
from fuzz_watch import ErrorLog, Trouble, resident
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

TARGETS = {
    target.name: target
    for target in (*fuzz_servers.TARGETS, *fuzz_parties.TARGETS, *fuzz_decoders.TARGETS)
}
LONG = 128
"""Bytes of an input: as many decisions as the longest message takes."""
SLOWEST = 1.0
"""Seconds of a processor that a request may take."""
GROWTH = 24 << 20
"""Bytes by which memory may grow in a long search, once what is needed once is there."""
_ROUND, _WARM = 500, 20_000


def share(name, inputs):
    """How many inputs a target gets: decoders are cheap, and get a third."""
    decoders = fuzz_decoders.Decoders.name
    return inputs // 3 if name == decoders else 2 * inputs // 3 // (len(TARGETS) - 1)


class Fuzzed:
    """Feeds a target; whatever must not be is raised as Trouble."""

    def __init__(self, name, *, memory=False):
        self.inputs, self._memory, self._early = 0, memory, 0
        shared = Path("/dev/shm")  # it is not the disk that is looked at
        self._folder = tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)  # as the server's own process does
        self._errors = ErrorLog().__enter__()
        self.target = TARGETS[name](Path(self._folder.name))

    def __enter__(self):
        self.all_of(self.target.reach, self.target.honest)
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                target = self.target
                self.all_of(target.tick, target.check, target.honest, target.check)
                if lines := target.log():
                    raise Trouble("logged", lines[0])
        finally:
            self.target.close()
            self._errors.__exit__()
            sys.setswitchinterval(self._interval)
            self._folder.cleanup()

    def feed(self, data):
        """One input."""
        self.inputs += 1
        began = time.process_time()
        self.all_of(lambda: self.target.send(data))
        seconds = time.process_time() - began
        if seconds > SLOWEST * max(1, getattr(self.target, "answered", 1)):
            raise Trouble("slow", f"an input takes {seconds:.1f} s")
        if self.inputs % _ROUND == 0:
            self.all_of(self.target.tick, self.target.check)
            if self._memory and self.inputs >= _WARM:
                self._early = self._early or resident()
                if (grown := resident() - self._early) > GROWTH:
                    raise Trouble("memory", f"it grew by {grown >> 20} MiB")

    def all_of(self, *looks):
        """Call each, and raise what was logged meanwhile, or ended somewhere else. What one input
        has brought about is not found again with the next one."""
        elsewhere = (self._errors.troubles, getattr(self.target.app, "unforeseen", []))
        try:
            for look in looks:
                look()
            for kept in elsewhere:
                if kept:
                    raise kept[0]
        finally:
            for kept in elsewhere:
                kept.clear()


def search(name, fuzzed, inputs):
    """Feed a target with inputs of Hypothesis, which makes a finding small, keeps it in its
    database and begins with it the next time."""

    def feed(data):
        fuzzed.feed(data)

    feed.__name__ = feed.__qualname__ = (
        f"feed_{name.replace('-', '_')}"  # the database tells targets apart by it
    )
    how = settings(
        max_examples=inputs, deadline=None, suppress_health_check=list(HealthCheck),
        phases=set(Phase) - {Phase.explain},
    )  # fmt: skip
    how(given(data=st.binary(min_size=LONG, max_size=LONG))(feed))()
