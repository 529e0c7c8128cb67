"""The consent centre: what a page asks of one person's stores, in however many federations.

Methods take and return what JSON can say; sentences are `Said`, and are read in her language where
she reads them. No method lets anything leave but `send`, which sends what `preview` has shown.
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
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import sottovoce
from sottovoce.core.choice import ASKED, Asked
from sottovoce.core.consent import Choice
from sottovoce.core.words import Said, said
from sottovoce.errors import (
    ConfigError,
    MessageError,
    SottovoceError,
    StoreError,
    Told,
    Unreachable,
    Untrusted,
    UsageError,
    VersionMismatch,
    WrongClock,
)
from sottovoce.stores import timeline
from sottovoce.stores.device import CohortStore
from sottovoce.stores.encrypted import KEY, StoreFile
from sottovoce.stores.timeline import Line
from sottovoce.stores.user import UserStore, open_store

S = TypeVar("S", bound=CohortStore | UserStore)
T = TypeVar("T")
_LISTS = ("hidden_attributes", "refused_owners", "never_send")
RECOMMENDED = 10
_GRACE_SECONDS = 0.5
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
        self._thread.join(_GRACE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class Desk(ABC, Generic[S]):
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
        for name in given.keys() & set(_LISTS):
            given[name] = tuple(dict.fromkeys(given[name])) if isinstance(
                given[name], list
            ) else given[name]  # fmt: skip
        try:
            return replace(self.store.choice(self.number), **given)
        except (ConfigError, TypeError, ValueError) as error:
            raise Told("trouble.bad_input", what=str(error)) from None

    def stop(self, everything: bool) -> None:
        self.keep(replace(self.store.choice(self.number), takes_part=False))
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

    def field(self, asked: Asked, choice: Choice, options: list[dict[str, Any]]) -> dict[str, Any]:
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
        busy = not self.serves and self.store.file.served()
        return {
            "id": self.name,
            "name": self.store.path.name,
            "kind": self.kind,
            "busy": said("busy.agent").to_json() if busy else None,
            "takes_part": choice.takes_part,
            "stopped": self.store.stopped,
            "choice": {name: plain_value(getattr(choice, name)) for name in ASKED},
        }

    def require_agent(self) -> None:
        """This process, from now on, if no other one serves the store."""
        self.serves = self.serves or self.store.file.serve()
        if not self.serves:
            raise Told("busy.agent")
        if self.store.stopped:
            raise Told("trouble.stopped")


class Learner:
    """Attacks on her own messages, each store's in a thread of its own."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._turn = threading.Lock()

    def start(self, name: str, path: Path, number: int) -> dict[str, Any]:
        """Begin, unless it is under way."""
        with self._turn:
            if self._known.get(name, {}).get("running"):
                return self._shown(name)
            self._known[name] = {"running": True, "done": 0, "total": 1}
        threading.Thread(
            target=self._work, args=(name, path, number), name="attacks", daemon=True
        ).start()
        return self.look(name)

    def look(self, name: str) -> dict[str, Any]:
        with self._turn:
            return self._shown(name)

    def _shown(self, name: str) -> dict[str, Any]:
        nothing: dict[str, Any] = {"done": 0, "total": 0, "findings": None, "error": None}
        known = self._known.get(name, {})
        return nothing | {key: value for key, value in known.items() if key != "running"}

    def _work(self, name: str, path: Path, number: int) -> None:
        from sottovoce.web.learn import what_owners_read, what_they_learn

        def report(done: int, total: int) -> None:
            with self._turn:
                self._known[name] |= {"done": done, "total": total}

        found: dict[str, Any]
        try:
            with open_store(path, readonly=True) as store:
                if isinstance(store, UserStore):
                    findings = what_owners_read(store, number)
                else:
                    findings = what_they_learn(store, number, report=report)
            found = {"findings": [one.to_json() for one in findings]}
        except SottovoceError as error:
            found = {"error": said("trouble.bad_input", what=str(error)).to_json()}
        with self._turn:
            total = max(1, self._known[name]["total"])
            self._known[name] = {"running": False, "done": total, "total": total, **found}


class Centre:
    """All stores of one person. `close` it."""

    def __init__(
        self, paths: Sequence[Path], *, server: str | None = None, plaintext: bool = False
    ) -> None:
        """`server` is another address than the invitations'; `plaintext` is for a trial."""
        from sottovoce.web.of_devices import DeviceDesk
        from sottovoce.web.of_owners import OwnersDesk

        folders = [path.resolve() for path in paths]
        if not folders or len(set(folders)) != len(folders):
            raise UsageError("name at least one store, and each once")
        self._runner, self._desks = Runner(), dict[str, Desk[Any]]()
        self._learner = Learner()
        try:
            for number, path in enumerate(paths):
                store, serves = _opened(path)
                people = len(store.numbers)
                if people != 1:
                    store.close()
                    raise UsageError(
                        f"{path} is the store of {people:,} people; a page is one person's"
                    )
                name = f"s{number}"
                if isinstance(store, UserStore):
                    self._desks[name] = OwnersDesk(name, store, self._runner, serves=serves)
                else:
                    reached = {"server": server, "plaintext": plaintext}
                    self._desks[name] = DeviceDesk(
                        name, store, self._runner, serves=serves, reached=reached
                    )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for desk in list(self._desks.values()):
            # What is being written is durable or undone; who is stuck in the network is not waited
            # for.
            if desk.turn.acquire(timeout=_GRACE_SECONDS):
                desk.close()
                desk.turn.release()
        self._desks.clear()
        self._runner.close()

    # --- what a page asks -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "version": sottovoce.__version__,
            "stores": [self._described(desk) for desk in list(self._desks.values())],
        }

    def weigh(self, store: str, change: dict[str, Any]) -> dict[str, Any]:
        with self._desk(store) as desk:
            return desk.weigh(desk.changed(change), change)

    def choose(self, store: str, change: dict[str, Any]) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.keep(desk.changed(change))
            return desk.describe()

    def things(self, store: str, query: str, offset: int, limit: int) -> dict[str, Any]:
        with self._desk(store) as desk:
            found, categories = desk.things()
        if query:
            asked = query.casefold()
            found = [one for one in found if asked in f"{one['title']}\n{one['item']}".casefold()]
        return {
            "total": len(found),
            "things": found[offset : offset + limit],
            "categories": categories,
        }

    def known_names(self, store: str) -> set[str]:
        """What a rule about things can name here, as far as this device knows."""
        with self._desk(store) as desk:
            things, categories = desk.things()
            names = {name for one in things for name in (one["item"], one["title"])}
            return names | {one["name"] for one in categories} | desk.names()

    def preview(self, store: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.require_agent()
            return desk.preview()

    def body(self, store: str, index: int) -> bytes:
        with self._desk(store) as desk:
            return desk.body(index)

    def send(self, store: str, nonce: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.require_agent()
            state, words = desk.send(nonce)
            return {"state": state, "said": words.to_json(), "store": desk.describe()}

    def ledger(self, store: str, offset: int, limit: int) -> dict[str, Any]:
        with self._desk(store) as desk:
            return desk.ledger(offset, limit)

    def row(self, store: str, row: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            return desk.row(row)

    def export(self, store: str, format: str) -> tuple[str, Iterator[bytes]]:
        with self._desk(store) as desk:
            name = f"ledger-{desk.store.path.name}.{format}"
            return name, desk.export(format)

    def agree(self, store: str, digest: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.agree(digest)
            return desk.describe()

    def stop(self, store: str | None, everything: bool) -> dict[str, Any]:
        for name in list(self._desks) if store is None else [store]:
            with self._desk(name) as desk:
                desk.stop(everything)
        return self.state()

    def start(self, store: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.start()
        return self.state()

    def remove(self, store: str, items: list[str]) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.remove(items)
            return desk.describe()

    def erase(self, store: str, what: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            if what == "history":
                desk.forget_history()
            else:
                if not desk.serves and desk.store.file.served():
                    raise Told("trouble.store_in_use")
                folder = desk.store.file.folder
                desk.close()
                self._desks.pop(store)
                StoreFile.erase(folder)
        return self.state()

    def learn(self, store: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            return self._learner.start(store, desk.store.path, desk.number)

    def learnt(self, store: str) -> dict[str, Any]:
        return self._learner.look(store)

    def recommend(self, store: str, change: dict[str, Any] | None) -> dict[str, Any]:
        with self._desk(store) as desk:
            now = desk.recommend(None)
            after = None if change is None else desk.recommend(desk.changed(change))
        return {"now": _named(now), "after": None if after is None else _named(after)}

    # --- helpers ----------------------------------------------------------------------------------

    def _described(self, desk: Desk[Any]) -> dict[str, Any]:
        with desk.turn, _in_her_words():
            return desk.describe()

    def _desk(self, name: str) -> _Turn:
        desk = self._desks.get(name)
        if desk is None:
            raise Told("trouble.not_found")
        return _Turn(desk)


class _Turn:
    """A desk for as long as one call takes, whose troubles are told in her words."""

    def __init__(self, desk: Desk[Any]) -> None:
        self._desk, self._words = desk, _in_her_words()

    def __enter__(self) -> Desk[Any]:
        self._desk.turn.acquire()
        return self._desk

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._desk.turn.release()
        if error is not None:
            self._words.told(error)


class _in_her_words:
    """Troubles that she can do something about, as she would say them."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.told(error)

    @staticmethod
    def told(error: BaseException) -> None:
        if isinstance(error, Told):
            return
        if isinstance(error, StoreError):
            full = "no space" in str(error) or "full" in str(error)
            raise Told("trouble.disk_full" if full else "trouble.store_broken") from None
        if isinstance(error, Unreachable):
            raise Told("trouble.server_gone") from None
        if isinstance(error, WrongClock):
            raise Told("trouble.clock") from None
        strange = isinstance(error, MessageError) and not isinstance(error, VersionMismatch)
        if strange or isinstance(error, Untrusted):
            raise Told("trouble.untrusted") from None
        if isinstance(error, SottovoceError):
            raise Told("trouble.bad_input", what=str(error)) from None


def _opened(path: Path) -> tuple[CohortStore | UserStore, bool]:
    """The store, and whether this process is its agent now."""
    try:
        return open_store(path, agent=True), True
    except StoreError as error:
        if KEY in str(error):  # it is another's, no key, or others may read it
            raise Told("trouble.key") from None
        if "in use" not in str(error):
            raise
        return open_store(path), False


def plain_value(value: Any) -> Any:
    """As JSON has it: no limit is null."""
    if isinstance(value, tuple):
        return list(value)
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _named(found: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"item": item, "title": title or item} for item, title in found]


def _iso(when: int) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat()


def _cell(value: Any) -> Any:
    """What a spreadsheet would take for a formula is text."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value
