"""One target, many inputs, and what was found."""

import collections
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import fuzz_decoders
import fuzz_parties
import fuzz_servers
from fuzz_choices import drawn
from fuzz_watch import ErrorLog, Trouble, resident

TARGETS = {
    target.name: target
    for target in (*fuzz_servers.TARGETS, *fuzz_parties.TARGETS, *fuzz_decoders.TARGETS)
}
CHEAP = fuzz_decoders.Decoders.name
SLOWEST = 1.0
"""Seconds that a request may take, each of three times."""
GROWTH = 24 << 20
"""Bytes by which memory may grow between a fifth of the inputs and the last one."""
_ROUND = 500
_MOST = 12
"""Findings of one target that are told apart and kept."""


@dataclass
class Report:
    """What became of the inputs of one target."""

    target: str
    seed: int
    inputs: int = 0
    seconds: float = 0.0
    grown: int = 0
    """Bytes, from a fifth of the inputs on."""
    slowest: float = 0.0
    findings: dict = field(default_factory=dict)
    """By kind: the first input that showed it, and how often it was seen."""
    answers: dict = field(default_factory=dict)
    """By address, how often each status was answered."""
    reasons: dict = field(default_factory=dict)
    """How often something was refused, by the word for it."""

    def to_table(self):
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class Runner:
    """Feeds one target. Findings do not stop it."""

    def __init__(self, name, seed, save=None):
        self.report, self._save = Report(name, seed), save
        self._folder = tempfile.TemporaryDirectory(prefix="sottovoce-fuzz-", dir=_memory())
        self._errors = ErrorLog().__enter__()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)  # as the server's own process does
        self.target = TARGETS[name](Path(self._folder.name))
        self._began = time.monotonic()
        self._early = 0
        self.guard(b"", self.target.reach, self.target.honest)

    def close(self):
        self.target.close()
        sys.setswitchinterval(self._interval)
        self._errors.__exit__()
        self._folder.cleanup()

    def feed(self, data):
        """One input."""
        self.report.inputs += 1
        seconds = self.timed(data)
        if seconds > SLOWEST:  # others may have kept the machine busy
            seconds = min(seconds, self.timed(data), self.timed(data))
        self.report.slowest = max(self.report.slowest, seconds)
        if seconds > SLOWEST:
            self.found(Trouble("slow", f"an input takes {seconds:.1f} s"), data)
        if self.report.inputs % _ROUND == 0:
            self.guard(data, self.target.tick, self.target.check)

    def timed(self, data):
        began = time.monotonic()
        try:
            self.target.send(data)
        except Trouble as trouble:
            self.found(trouble, data)
        for trouble in self._noticed():
            self.found(trouble, data)
        # Several requests may come on one connection.
        return (time.monotonic() - began) / max(1, getattr(self.target, "answered", 1))

    def mark(self):
        """A fifth of the inputs are through: what is needed once is there now."""
        self._early = resident()

    def end(self):
        """The last looks at the target."""
        report, target = self.report, self.target
        report.grown = max(0, resident() - self._early)
        if report.grown > GROWTH:
            sentence = f"memory grew by {report.grown >> 20} MiB over {report.inputs:,} inputs"
            self.found(Trouble("memory", sentence), b"")
        self.guard(b"", target.tick, target.check, target.honest, target.check)
        for line in target.log()[:3]:
            self.found(Trouble("logged", line), b"")
        report.seconds = round(time.monotonic() - self._began, 1)
        report.answers = {
            " ".join(address): {str(status): n for status, n in sorted(counts.items())}
            for address, counts in target.statuses.items()
        }
        report.reasons = dict(getattr(target, "reasons", {}))
        return report

    def guard(self, data, *looks):
        try:
            for look in looks:
                look()
        except Trouble as trouble:
            self.found(trouble, data)
        for trouble in self._noticed():
            self.found(trouble, data)

    def _noticed(self):
        """What was logged, or ended somewhere else."""
        for kept in (self._errors.troubles, getattr(_app(self.target), "unforeseen", [])):
            yield from kept
            kept.clear()

    def found(self, trouble, data):
        findings = self.report.findings
        if trouble.kind in findings:
            findings[trouble.kind]["times"] += 1
            return
        if len(findings) >= _MOST:
            return
        findings[trouble.kind] = {
            "times": 1,
            "target": self.report.target,
            "index": self.report.inputs - 1,
            "seed": self.report.seed,
            "data": data.hex(),
            "why": str(trouble),
            "sent": repr(getattr(self.target, "sending", ""))[:2000],
        }
        if self._save is not None:
            self._save.mkdir(parents=True, exist_ok=True)
            words = "".join(c if c.isalnum() else "-" for c in trouble.kind)[:60]
            place = self._save / f"{self.report.target}-{words}.json"
            place.write_text(json.dumps(findings[trouble.kind], indent=1) + "\n")


def run(name, inputs, seed, save=None):
    """So many generated inputs for one target."""
    runner = Runner(name, seed, save)
    try:
        for index in range(inputs):
            if index == inputs // 5:
                runner.mark()
            runner.feed(drawn(seed, name, index))
        return runner.end()
    finally:
        runner.close()


def run_all(shares, seed, save=None):
    """One target after the other, in this process."""
    return [run(name, inputs, seed, save) for name, inputs in shares.items()]


def replay(finding):
    """The input of a saved finding once more, in fresh state."""
    runner = Runner(finding["target"], finding["seed"])
    try:
        runner.mark()
        runner.feed(bytes.fromhex(finding["data"]))
        return runner.end()
    finally:
        runner.close()


def shares(inputs, names):
    """How many inputs each target gets: decoders are cheap, and get a third."""
    services = [name for name in names if name != CHEAP]
    counts = collections.Counter()
    if CHEAP in names:
        counts[CHEAP] = inputs // 3 if services else inputs
    for place, name in enumerate(services):
        rest = inputs - counts[CHEAP]
        counts[name] = rest // len(services) + (place < rest % len(services))
    return counts


def _app(target):
    return getattr(target, "app", None)


def _memory():
    """A folder in memory where there is one: it is not the disk that is looked at."""
    place = Path("/dev/shm")
    return place if place.is_dir() else None
