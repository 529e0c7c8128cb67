"""What the command line prints: tables and text on standard output, or one JSON object; progress
and errors on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import SottovoceError

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.evaluation.tables import Table
    from sottovoce.ledger import Totals
    from sottovoce.running import Report

STAGES = {
    "data": "Preparing the data",
    "training": "Devices learn",
    "baselines": "Fitting baselines",
    "evaluation": "Ranking for every user",
    "report": "Writing the report",
}


class Interrupted(SottovoceError):
    """Ctrl-C, with what to do next."""

    exit_code = 130


def console() -> Console:
    """Standard output; wide where it is not a terminal, so that tables are not folded."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    return Console(width=width, highlight=False, markup=False, emoji=False)


def show(*things: str | Table) -> None:
    """Text and tables, in order."""
    out = console()
    for thing in things:
        if isinstance(thing, str):
            out.print(thing, soft_wrap=True)
        else:
            out.print(thing.to_terminal())


def emit(content: Mapping[str, Any]) -> None:
    """The one JSON object of a command. What is not a finite number becomes null."""
    print(json.dumps(plain(content), allow_nan=False))


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
    print(text, file=sys.stderr)


def fail(message: str, code: int, kind: str, as_json: bool) -> int:
    """One sentence on standard error, and the same as JSON where JSON was asked for."""
    message = " ".join(message.split())
    note(f"{'interrupted' if code == Interrupted.exit_code else 'error'}: {message}")
    if as_json:
        emit({"error": message, "kind": kind, "exit_code": code})
    return code


@contextlib.contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Within, Ctrl-C ends the command with exit code 130 and this advice."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(advice) from None


@contextlib.contextmanager
def progress() -> Iterator[Report]:
    """A bar per stage on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    stages: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in stages:
            stages[what] = bars.add_task(STAGES.get(what, what), total=total)
        bars.update(stages[what], completed=done, total=total)

    with bars:
        yield report


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
