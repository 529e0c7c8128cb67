"""What the command line prints: tables and text on standard output, or one JSON object; progress
and errors on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from sottovoce.core.installed import program
from sottovoce.core.words import LANGUAGES, Said, say
from sottovoce.errors import SottovoceError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.core.ledger import Totals
    from sottovoce.evaluation.tables import Table
    from sottovoce.runs.train import Report

STAGES = {
    "data": "Preparing the data",
    "reading": "Reading (megabytes)",
    "dealing": "Dealing events out by user",
    "sorting": "Sorting and writing",
    "seeds": "Seeds",
    "training": "Devices learn",
    "search": "Trying settings",
    "baselines": "Fitting baselines",
    "evaluation": "Ranking for every user",
    "attacks": "Trying attacks",
    "audit": "Auditing with planted devices",
    "report": "Writing the report",
}
LANGUAGE_VARIABLE = "SOTTOVOCE_LANGUAGE"
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]|(?<=[\x00-\x7f])[\u200c\u200d]"
)
"""Control characters but tab and line feed, halves of characters, what turns the direction of
writing, and signs without a width, by which a name could look like another one. What joins letters
of other scripts, or pictures, stays."""

_MOST_NAMED = 40
BETWEEN_LINES = 10.0
"""Seconds between two lines of progress where there is no terminal."""
_STILL = 60.0
"""Seconds until a line says that nothing new is done."""


class Interrupted(SottovoceError):
    """Ctrl-C, with what to do next."""

    exit_code = 130


def console() -> Console:
    """Standard output; wide where it is not a terminal, so that tables are not folded."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # without this, it ends the process as if something had failed

    width = None if sys.stdout.isatty() else 140
    return Output(width=width, highlight=False, markup=False, emoji=False)


def show(*things: str | Table) -> None:
    """Text and tables, in order."""
    with _while_read():
        out = console()
        for thing in things:
            if isinstance(thing, str):
                out.print(printable(thing), soft_wrap=True)
            else:
                out.print(_printable_table(thing).to_terminal())
        sys.stdout.flush()


@contextlib.contextmanager
def _while_read() -> Iterator[None]:
    """Whoever reads standard output may have had enough, as `head` has: the rest goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        # The stream has bytes left, and would try them again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def language() -> str:
    """Of sentences for people: that of the environment variable `SOTTOVOCE_LANGUAGE`, or English.
    Errors stay English."""
    wanted = os.environ.get(LANGUAGE_VARIABLE, "").strip().lower()[:2] or LANGUAGES[0]
    if wanted not in LANGUAGES:
        raise UsageError(f"{LANGUAGE_VARIABLE} must be one of {', '.join(LANGUAGES)}")
    return wanted


def language_asked() -> str | None:
    """The language that `SOTTOVOCE_LANGUAGE` asks for; none if it is not set."""
    return language() if os.environ.get(LANGUAGE_VARIABLE, "").strip() else None


def told(*sentences: Said) -> list[str]:
    """The sentences in the reader's language, a line each."""
    spoken = language()
    return [say(sentence, spoken) for sentence in sentences]


def joined(*sentences: Said) -> str:
    """The same on one line."""
    return " ".join(told(*sentences))


def printable(text: str) -> str:
    """The text without what would steer a terminal: others' words may be in it. Lines stay."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The same on one line: an item's title is no place for a second one."""
    return printable(" ".join(text.split()))


def listed(names: Sequence[str]) -> str:
    """Names on one line, the first of many."""
    more = f", … ({len(names):,} in all)" if len(names) > _MOST_NAMED else ""
    return (", ".join(map(one_line, names[:_MOST_NAMED])) or "none") + more


def _printable_table(table: Table) -> Table:
    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return printable(value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{k: clean(getattr(value, k)) for k in ("value", "mark")})
        return value

    rows = [{key: clean(value) for key, value in row.items()} for row in table.rows]
    title, notes = printable(table.title), [printable(note) for note in table.notes]
    return replace(table, title=title, rows=rows, notes=notes)


def day(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def emit(content: Mapping[str, Any]) -> None:
    """The one JSON object of a command. What is not a finite number becomes null."""
    with _while_read():
        print(json.dumps(plain(content), allow_nan=False), flush=True)


def plain(value: Any) -> Any:
    """Nested values that JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def note(text: str) -> None:
    """A line on standard error, where there is one."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = _nowhere()


def fail(message: str, code: int, kind: str, as_json: bool) -> int:
    """One sentence on standard error, and the same as JSON where JSON was asked for."""
    message = " ".join(message.split())
    note(f"{'interrupted' if code == Interrupted.exit_code else 'error'}: {message}")
    try:
        if as_json:
            emit({"error": message, "kind": kind, "exit_code": code})
        sys.stdout.flush()
    except OSError:  # it may be what failed in the first place
        sys.stdout = _nowhere()
    return code


def _nowhere() -> TextIO:
    """For a stream that failed: it would be tried again, in vain, when the process ends."""
    return open(os.devnull, "w", encoding="utf-8")


def command(*words: object) -> str:
    """A command of this installation that a reader can paste into her shell: paths and names are
    quoted."""
    return shlex.join([*program("sottovoce"), *map(str, words)])


@contextlib.contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Within, Ctrl-C ends the command with exit code 130 and this advice."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(advice) from None


@contextlib.contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """Within, SIGTERM and a closed terminal end the command as Ctrl-C does. The event is set when
    that happens: a library may have caught what was raised, as one that waits for an answer."""
    asked = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        asked.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield asked  # others hear no signals
        return
    hangup = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
    numbers = [signal.SIGINT, signal.SIGTERM, *hangup]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def progress(*, lines: bool = False) -> Iterator[Report]:
    """A bar per stage on a terminal; elsewhere nothing, or `lines` now and then, of what takes
    long. Both say how long the stage may still take, by its pace so far."""
    if not sys.stderr.isatty():
        if not lines:
            yield lambda what, done, total: None
            return
        with _lines() as told:
            yield told
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        transient=True,
    )
    stages: dict[str, tuple[TaskID, StagePace]] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in stages:
            bar = bars.add_task(STAGES.get(what, what), total=total, left="")
            stages[what] = bar, StagePace(time.monotonic(), done)
        bar, pace = stages[what]
        left = pace.left(time.monotonic(), done, total)
        bars.update(bar, completed=done, total=total, left=left)

    with bars:
        yield report


@dataclass(slots=True)
class StagePace:
    """How fast a stage goes, from where it began: what was done before does not count."""

    started: float
    first: int
    last: int = 0

    def left(self, now: float, done: int, total: int) -> str:
        """How long it may still take; nothing where nobody can say, or it is done. A stage that
        begins anew has a new pace."""
        if done < max(self.first, self.last):
            self.started, self.first = now, done
        self.last = done
        gone = done - self.first
        if gone <= 0 or done >= total or now - self.started < 1.0:
            return ""
        return f"about {duration((now - self.started) / gone * (total - done))} left"


def duration(seconds: float) -> str:
    """Roughly, in words."""
    if seconds < 90:
        return f"{max(1, round(seconds / 10)) * 10} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def _lines() -> Iterator[Report]:
    """A line when something is done, every ten seconds at most; where nothing is, one a minute that
    says so."""
    begun = last = time.monotonic()
    at, told, guard, ended = "", "", threading.Lock(), threading.Event()
    paces: dict[str, StagePace] = {}

    def report(what: str, done: int, total: int) -> None:
        nonlocal at, last, told
        now = time.monotonic()
        with guard:
            left = paces.setdefault(what, StagePace(now, done)).left(now, done, total)
            at = f"{STAGES.get(what, what)}: {done:,} of {total:,}" + (f", {left}" if left else "")
            if now - last >= BETWEEN_LINES and at != told:
                note(at)
                last, told = now, at

    def watch() -> None:
        nonlocal last, told
        while not ended.wait(BETWEEN_LINES):
            now = time.monotonic()
            with guard:
                if at and now - last >= (BETWEEN_LINES if at != told else _STILL):
                    so_far = f" ({duration(now - begun)} so far)" if at == told else ""
                    note(at + so_far)
                    last, told = now, at

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield report
    finally:
        ended.set()
        watcher.join()


def totals_json(totals: Totals) -> dict[str, Any]:
    """Ledger sums for JSON. `epsilon` is null where no bound can be vouched for."""
    return dict(plain(totals))


def words(value: Any) -> str:
    """A plain value as a reader takes it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {words(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return " to ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value or "none")


def has_windows() -> bool:
    """Whether a browser can show itself: one in the terminal would take it over."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
