"""What one report costs: SELECTs on the device's store and on the server's database, and decodings.

A real little federation over HTTPS, by the commands that an operator and device owners type, so
that it does not matter in which modules they are. The server is a process of its own. The devices
are in this one, and visit by `serve device --once`, round by round: each visit makes one report,
and none finds nothing to do, so that the devices' figures are the same every time. The server's
depend a little on how many reports it happens to write at once, and on its look at the database
every second. Counted are the rounds after the first, when everybody has enrolled. What an agent
that goes on running would remember from visit to visit is read anew in each of them.

A decoding is a call of a function of ours that is named `decode…` or `open_envelope`; one that
another one makes is not counted again. A module is on a report's way if a function of it runs
between the device's visit and the fold.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import sqlite3
import sqlite3.dbapi2
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SRC = Path(__file__).resolve().parents[1] / "src"
DEVICES, ROUNDS = 4, 5
_DECODER = re.compile(r"decode\w*|open_envelope")
_VALUES = re.compile(r"(?:\bx)?'(?:[^']|'')*'|-?\b\d+(?:\.\d+)?\b", re.IGNORECASE)
_QUIET_SECONDS, _PATIENCE_SECONDS = 0.4, 240.0
_MODULE_SECONDS = 0.2
"""A module that runs all the time is noted so often."""
_PLAN = f"""
name = "facts"

[algorithm]
name = "fpl"
embedding_size = 8
triples = 10
rounds = {3 * ROUNDS}

[service]
min_devices = {DEVICES}
over_selection = 0.0
"""

Note = Callable[[str, str], None]
"""Told what happened: `select`, `decode` or `module`, and which."""
Counts = dict[str, Counter[str]]
"""How often what happened, by party: `device`, `server`."""


@dataclass(frozen=True, slots=True)
class Trace:
    reports: int
    """That were folded."""
    selects: Counts
    """By statement, with `?` for its values."""
    decoded: Counts
    """By decoder."""
    modules: Counts
    """By module that has run."""

    def per_report(self, counts: Counts, *parties: str) -> float:
        total = sum(counts[party].total() for party in parties or counts)
        return round(total / self.reports, 2)

    def most_frequent(self, counts: Counts) -> list[str]:
        found = [(n, party, what) for party in counts for what, n in counts[party].items()]
        found.sort(key=lambda one: (-one[0], *one[1:]))
        return [f"{n / self.reports:6.2f} {party}: {what[:160]}" for n, party, what in found]


# --- what is heard in a process -------------------------------------------------------------------


def plain(statement: str) -> str:
    """On one line, with `?` for its values."""
    return " ".join(_VALUES.sub("?", statement).split())


def listen(note: Note) -> None:
    """From now on, in this process and in the threads that it starts."""

    def ran(statement: str) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            note("select", plain(statement))

    connect = sqlite3.connect

    def listened_connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_trace_callback(ran)
        return connection

    sqlite3.connect = sqlite3.dbapi2.connect = listened_connect  # type: ignore[assignment]
    import apsw

    def executed(cursor: object, statement: str, values: object) -> bool:
        ran(statement)
        return True

    apsw.connection_hooks.append(lambda connection: connection.set_exec_trace(executed))
    decoders: dict[CodeType, bool] = {}
    modules: dict[CodeType, str] = {}
    noted: dict[str, float] = {}

    def is_decoder(code: CodeType) -> bool:
        if code not in decoders:
            ours = code.co_filename.startswith(str(SRC))
            decoders[code] = ours and _DECODER.fullmatch(code.co_name) is not None
        return decoders[code]

    def passed(code: CodeType) -> None:
        if code not in modules:
            ours = code.co_filename.startswith(str(SRC))
            modules[code] = str(Path(code.co_filename).relative_to(SRC)) if ours else ""
        name, now = modules[code], time.monotonic()
        if name and now > noted.get(name, 0.0) + _MODULE_SECONDS:
            noted[name] = now
            note("module", name)

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        passed(frame.f_code)
        if not is_decoder(frame.f_code):
            return
        if frame.f_back is None or not is_decoder(frame.f_back.f_code):
            place = Path(frame.f_code.co_filename).relative_to(SRC)
            note("decode", f"{place}: {frame.f_code.co_qualname}")

    threading.setprofile(called)
    sys.setprofile(called)


def into(path: Path) -> Note:
    """Writes each on a line of its own, at once; modules beside the rest, since some always run."""
    files = [place.open("a", encoding="utf-8", buffering=1) for place in (path, _beside(path))]
    return lambda kind, what: print(json.dumps([kind, what]), file=files[kind == "module"])


def _beside(path: Path) -> Path:
    return path.with_suffix(".modules")


def heard(path: Path) -> list[tuple[str, str]]:
    return [(kind, what) for kind, what in map(json.loads, path.read_text().splitlines())]


# --- the federation -------------------------------------------------------------------------------


def sottovoce(*arguments: str | int | Path) -> Any:
    """What a command in this process answers."""
    from sottovoce.cli import call

    words = list(map(str, arguments))
    out, log = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(log):
        code = call([*words, "--json"])
    if code != 0:
        raise RuntimeError(f"`sottovoce {' '.join(words)}` ended with {code}: {log.getvalue()}")
    return json.loads(out.getvalue())


@contextlib.contextmanager
def serving(place: Path, trace: Path) -> Iterator[None]:
    """A server process, in which everything is heard."""
    (place / "plan.toml").write_text(_PLAN)
    items = "".join(f"p{i},Place {i}\n" for i in range(40))
    (place / "items.csv").write_text("item,title\n" + items)
    command = [sys.executable, __file__, trace, "serve", "server", place / "town"]
    command += ["--experiment", place / "plan.toml", "--catalogue", place / "items.csv"]
    command += ["--port", "0"]
    with (place / "server.log").open("wb") as log:
        server = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        try:
            until = time.monotonic() + _PATIENCE_SECONDS
            while not (place / "town" / "server.json").exists():
                if server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((place / "server.log").read_text())
                time.sleep(0.05)
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


def settle(path: Path) -> None:
    """Until the server has folded what came in: it runs no statements any more."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.time() - path.stat().st_mtime < _QUIET_SECONDS:
        if time.monotonic() > until:
            raise RuntimeError("the server does not come to rest")
        time.sleep(0.05)


def devices_of(place: Path) -> list[Path]:
    """Everybody's stores: invited, with something to learn from, willing to take part."""
    sottovoce("serve", "invite", place / "town", "--count", DEVICES, "--out", place / "invited")
    stores = []
    for number, invitation in enumerate(sorted((place / "invited").iterdir())):
        store, visits = place / f"device-{number}", place / "visits.csv"
        visits.write_text("item\n" + "".join(f"p{(number * 7 + i) % 40}\n" for i in range(12)))
        sottovoce("device", "init", store, "--invitation", invitation)
        sottovoce("serve", "device", store, "--once")  # brings the terms and the catalogue
        sottovoce("device", "import", store, visits)
        sottovoce("device", "consent", store, "--take-part", "--share-positives", "1.0")
        sottovoce(
            "device", "agree", store, "--terms", sottovoce("device", "agree", store)["digest"]
        )
        stores.append(store)
    return stores


def measure() -> Trace:
    """Takes about half a minute."""
    reports = 0
    selects: Counts = {"device": Counter(), "server": Counter()}
    decoded: Counts = {"device": Counter(), "server": Counter()}
    modules: Counts = {"device": Counter(), "server": Counter()}
    kinds = {"select": selects, "decode": decoded, "module": modules}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        traces = {party: place / f"{party}.trace" for party in selects}
        with serving(place, traces["server"]):
            stores = devices_of(place)
            listen(into(traces["device"]))
            full = 0
            for _ in range(3 * ROUNDS):
                files = [(who, f) for who, path in traces.items() for f in (path, _beside(path))]
                before = {file: len(heard(file)) for _, file in files}
                told = sottovoce("serve", "device", *stores, "--once")
                settle(traces["server"])
                if any(store["counted"] != 1 for store in told["stores"]):
                    continue  # they have only enrolled, or the server was slow
                full += 1
                if full == 1:
                    continue
                reports += len(stores)
                for party, file in files:
                    for kind, what in heard(file)[before[file] :]:
                        kinds[kind][party][what] += 1
                if full > ROUNDS:
                    return Trace(reports, selects, decoded, modules)
    raise RuntimeError("the devices' reports are not folded, or too slowly")


if __name__ == "__main__":
    from sottovoce.cli import call

    listen(into(Path(sys.argv[1])))
    sys.exit(call(sys.argv[2:]))
