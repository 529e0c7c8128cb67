"""One store of a person at the consent centre: what all kinds of federations have in common there.

Its methods are called one at a time, whoever asks: the page, or a command.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sottovoce.core.choice import ASKED, DrawnField
from sottovoce.core.consent import Choice
from sottovoce.core.words import Said, said
from sottovoce.errors import ConfigError, Told
from sottovoce.stores import timeline
from sottovoce.stores.device import CohortStore
from sottovoce.stores.timeline import Line
from sottovoce.stores.user import UserStore

S = TypeVar("S", bound=CohortStore | UserStore)
T = TypeVar("T")
_LISTS = ("hidden_attributes", "refused_owners", "never_send")
RECOMMENDED = 10
GRACE_SECONDS = 0.5
"""For what is being done when a page ends."""
RECEIPT = "sottovoce-receipt-1"
_COLUMNS = ("id", "time", "what", "to", "bytes", "epsilon", "items", "state", "sha256")
_PART = 10_000
"""Rows of a ledger that are read at a time."""


class Runner:
    """A thread with an event loop, for agents, whose connections live in one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class StoreDesk(ABC, Generic[S]):
    """One store of hers. One call at a time."""

    kind: str

    def __init__(self, name: str, store: S, runner: Runner, *, serves: bool) -> None:
        """`serves`: this process is the store's agent, and may ask and send."""
        self.name, self.runner, self.serves = name, runner, serves
        self.store: S = store
        self.turn = threading.RLock()
        self.number = int(store.numbers[0])

    def close(self) -> None:
        self.store.close()

    # --- what kinds of federations differ in ------------------------------------------------------

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Where she stands, what she can choose, who sees what."""

    @abstractmethod
    def weigh(self, choice: Choice, change: Mapping[str, Any]) -> dict[str, Any]: ...
    @abstractmethod
    def keep(self, choice: Choice) -> None:
        """A choice, from now on."""

    @abstractmethod
    def things(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """All of her history, newest first, and all categories."""

    @abstractmethod
    def names(self) -> set[str]:
        """Of all things that the federation knows."""

    @abstractmethod
    def preview(self) -> dict[str, Any]: ...
    @abstractmethod
    def body(self, index: int) -> bytes: ...
    @abstractmethod
    def send(self, nonce: str) -> tuple[str, Said]: ...
    def decline(self, nonce: str) -> Said:
        """Say no to what was shown."""
        raise Told("trouble.not_found")

    @abstractmethod
    def line_words(self, line: Line) -> tuple[Said, Said]:
        """What left, and to whom."""

    def epsilon(self, line: Line) -> float:
        """What it cost her by itself."""
        return line.epsilon

    @abstractmethod
    def inside(self, line: Line) -> list[tuple[str, str, float]]:
        """Id, title and weight of her things in what left, as far as that is known."""

    @abstractmethod
    def agree(self, digest: str) -> None: ...
    @abstractmethod
    def remove(self, items: Sequence[str]) -> int: ...
    @abstractmethod
    def forget_history(self) -> int: ...
    @abstractmethod
    def recommend(self, choice: Choice | None) -> list[tuple[str, str]]: ...
    @abstractmethod
    def terms_at(self, line: Line) -> dict[str, Any]:
        """For a receipt: under which terms it left."""

    # --- what they have in common -----------------------------------------------------------------

    def changed(self, change: Mapping[str, Any]) -> Choice:
        """Her choice with these changes; raises where they make none."""
        given = dict(change)
        if "total_epsilon" in given and given["total_epsilon"] is None:
            given["total_epsilon"] = math.inf
        now = self.store.choice(self.number)
        try:
            for name in given.keys() & set(_LISTS):
                given[name] = _names(given[name], getattr(now, name))
            return replace(now, **given)
        except (ConfigError, TypeError, ValueError) as error:
            raise Told("trouble.bad_input", what=str(error)) from None

    def choose(self, change: Mapping[str, Any]) -> None:
        """Keep a changed choice. What other programs have chosen meanwhile stays."""
        with self.store.file.transaction():
            self.keep(self.changed(change))

    def stop(self, everything: bool) -> None:
        self.choose({"takes_part": False})
        if everything:
            self.store.set_stopped(True)

    def start(self) -> None:
        self.store.set_stopped(False)

    def ledger(self, offset: int, limit: int) -> dict[str, Any]:
        rows = timeline.lines(self.store.file, self.number, offset, limit)
        total = timeline.count(self.store.file, self.number)
        return {"total": total, "rows": [self._row(line) for line in rows]}

    def row(self, name: str) -> dict[str, Any]:
        line = timeline.line(self.store.file, self.number, name)
        items = [{"item": i, "title": t, "weight": w} for i, t, w in self.inside(line)]
        return {"row": self._row(line), "items": items, "receipt": self.receipt(line)}

    def receipt(self, line: Line) -> dict[str, Any]:
        """After ISO/IEC TS 27560: who, to whom, what, under which terms and choice."""
        choice = [r.choice for r in self.store.records(self.number) if r.changed_at <= line.when]
        return {
            "version": RECEIPT,
            "id": f"{self.store.file.folder.name}/{line.name}",
            "time": _iso(line.when),
            **self.terms_at(line),
            "choice_in_force": choice[-1].table() if choice else None,
            "what": line.what,
            "bytes": line.bytes,
            "sha256": line.sha256 or None,
            "epsilon": _finite(self.epsilon(line)),
            "items": line.items,
            "state": line.state or "sent",
        }

    def export(self, format: str) -> Iterator[bytes]:
        """The whole ledger of this moment, newest first, a part at a time; as lines of JSON also
        with the names of things."""
        total = timeline.count(self.store.file, self.number)
        return self._exported(format, total)

    def _exported(self, format: str, total: int) -> Iterator[bytes]:
        if format == "csv":
            yield (",".join(_COLUMNS) + "\r\n").encode()
        for offset in range(0, total, _PART):
            with self.turn:
                # What has left meanwhile stands before all the others.
                new = timeline.count(self.store.file, self.number) - total
                size = min(_PART, total - offset)
                lines = timeline.lines(self.store.file, self.number, new + offset, size)
                part = b"".join(self._exported_line(format, line) for line in lines)
            yield part

    def _exported_line(self, format: str, line: Line) -> bytes:
        plain = {
            "id": line.name,
            "time": _iso(line.when),
            "what": line.what,
            "to": line.party or self.line_words(line)[1].key.rpartition(".")[2],
            "bytes": line.bytes,
            "epsilon": _finite(self.epsilon(line)),
            "items": line.items,
            "state": line.state or "sent",
            "sha256": line.sha256,
        }
        if format == "csv":
            out = io.StringIO()
            csv.writer(out).writerow([_cell(plain[name]) for name in _COLUMNS])
            return out.getvalue().encode()
        names = [title or item for item, title, _ in self.inside(line)]
        return (json.dumps({**plain, "things": names}, ensure_ascii=False) + "\n").encode()

    def _row(self, line: Line) -> dict[str, Any]:
        what, to = self.line_words(line)
        state = said(f"ledger.states.{line.state}") if line.state else said("ledger.states.sent")
        return {
            "id": line.name,
            "when": line.when,
            "what": what.to_json(),
            "to": to.to_json(),
            "bytes": line.bytes,
            "epsilon": _finite(self.epsilon(line)),
            "bounded": math.isfinite(self.epsilon(line)),
            "state": state.to_json(),
            "items": line.items,
            "sha256": line.sha256 or None,
        }

    def field(
        self, asked: DrawnField, choice: Choice, options: list[dict[str, Any]]
    ) -> dict[str, Any]:
        words = f"field.{asked.words or asked.name}"
        return {
            "name": asked.name,
            "kind": asked.drawn,
            "label": said(f"{words}.label").to_json(),
            "help": said(f"{words}.help").to_json(),
            "value": plain_value(getattr(choice, asked.name)),
            "least": asked.least,
            "most": _finite(asked.most),
            "steps": [
                {"value": value, "label": said(f"step.{name}").to_json()}
                for value, name in asked.steps
            ],
            "options": options,
        }

    def base(self) -> dict[str, Any]:
        """What every store says of itself."""
        choice = self.store.choice(self.number)
        return {
            "id": self.name,
            "name": self.store.path.name,
            "kind": self.kind,
            "takes_part": choice.takes_part,
            "stopped": self.store.stopped,
            "choice": {name: plain_value(getattr(choice, name)) for name in ASKED},
        }

    def require_looking(self) -> None:
        """Raise if what would leave cannot be shown. It can be shown while another process is the
        store's agent; if none is, this one becomes it."""
        self.serves = self.serves or self.store.file.serve()
        if self.store.stopped:
            raise Told("trouble.stopped")

    def require_sending(self) -> None:
        """Raise if nothing can be sent from here."""
        self.require_looking()
        if not self.serves:
            raise Told("busy.agent")


def plain_value(value: Any) -> Any:
    """As JSON has it: no limit is null."""
    if isinstance(value, tuple):
        return list(value)
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _names(asked: object, now: tuple[str, ...]) -> object:
    """A list of a choice after a change: a whole new list, or names to add and to drop. A page may
    have been drawn before somebody else changed the list, so it says what it adds and drops."""
    if isinstance(asked, list):
        return tuple(dict.fromkeys(asked))
    if not isinstance(asked, dict):
        return asked  # which a choice refuses
    add, drop = asked.get("add", []), asked.get("drop", [])
    if asked.keys() - {"add", "drop"} or not isinstance(add, list) or not isinstance(drop, list):
        raise ValueError("a list is changed by names to add and to drop")
    return tuple(dict.fromkeys([*(name for name in now if name not in drop), *add]))


def _iso(when: int) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat()


def _cell(value: Any) -> Any:
    """What a spreadsheet would take for a formula is text."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value
