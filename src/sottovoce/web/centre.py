"""The consent centre: what a page asks of one person's stores, in however many federations.

Methods take and return what JSON can say; sentences are `Said`, and are read in her language where
she reads them. No method lets anything leave but `send`, which sends what `preview` has shown.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sottovoce
from sottovoce.core.words import said
from sottovoce.errors import (
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
from sottovoce.stores.device import CohortStore
from sottovoce.stores.encrypted import KEY, StoreFile
from sottovoce.stores.opening import open_store
from sottovoce.stores.user import UserStore
from sottovoce.web.desk import GRACE_SECONDS, Runner, StoreDesk
from sottovoce.web.of_devices import DeviceDesk
from sottovoce.web.of_owners import OwnersDesk


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

        found: dict[str, Any] = {"error": said("trouble.unexpected").to_json()}
        try:
            with open_store(path, readonly=True) as store:
                if isinstance(store, UserStore):
                    findings = what_owners_read(store, number)
                else:
                    findings = what_they_learn(store, number, report=report)
            found = {"findings": [one.to_json() for one in findings]}
        except SottovoceError as error:
            found = {"error": said("trouble.bad_input", what=str(error)).to_json()}
        finally:  # also after a fault of ours: a page must not wait for ever
            with self._turn:
                total = max(1, self._known[name]["total"])
                self._known[name] = {"running": False, "done": total, "total": total, **found}


class Centre:
    """All stores of one person. `close` it."""

    def __init__(
        self, paths: Sequence[Path], *, server: str | None = None, plaintext: bool = False
    ) -> None:
        """`server` is another address than the invitations'; `plaintext` is for a trial."""
        folders = [path.resolve() for path in paths]
        if not folders or len(set(folders)) != len(folders):
            raise UsageError("name at least one store, and each once")
        self._runner, self._desks = Runner(), dict[str, StoreDesk[Any]]()
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
            if desk.turn.acquire(timeout=GRACE_SECONDS):
                desk.close()
                desk.turn.release()
        self._desks.clear()
        self._runner.close()

    # --- what a page asks -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        stores = []
        for name in list(self._desks):
            with self._desk(name) as desk:
                stores.append(desk.describe())
        return {"version": sottovoce.__version__, "stores": stores}

    def weigh(self, store: str, change: dict[str, Any]) -> dict[str, Any]:
        with self._desk(store) as desk:
            return desk.weigh(desk.changed(change), change)

    def choose(self, store: str, change: dict[str, Any]) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.choose(change)
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
            desk.require_looking()
            return desk.preview()

    def body(self, store: str, index: int) -> bytes:
        with self._desk(store) as desk:
            return desk.body(index)

    def send(self, store: str, nonce: str) -> dict[str, Any]:
        with self._desk(store) as desk:
            desk.require_sending()
            state, words = desk.send(nonce)
            return {"state": state, "said": words.to_json(), "store": desk.describe()}

    def decline(self, store: str, nonce: str) -> dict[str, Any]:
        """Say no to what `preview` has shown: it does not leave."""
        with self._desk(store) as desk:
            desk.require_looking()
            words = desk.decline(nonce)
            return {"state": "declined", "said": words.to_json(), "store": desk.describe()}

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

    @contextlib.contextmanager
    def _desk(self, name: str) -> Iterator[StoreDesk[Any]]:
        """One store, for as long as a call takes."""
        desk = self._desks.get(name)
        if desk is None:
            raise Told("trouble.not_found")
        with desk.turn, _in_her_words():
            yield desk


@contextlib.contextmanager
def _in_her_words() -> Iterator[None]:
    """Troubles that she can do something about, as she would say them."""
    try:
        yield
    except Told:
        raise
    except StoreError as error:
        full = "no space" in str(error) or "full" in str(error)
        raise Told("trouble.disk_full" if full else "trouble.store_broken") from None
    except Unreachable:
        raise Told("trouble.server_gone") from None
    except WrongClock:
        raise Told("trouble.clock") from None
    except Untrusted:
        raise Told("trouble.untrusted") from None
    except SottovoceError as error:
        if isinstance(error, MessageError) and not isinstance(error, VersionMismatch):
            raise Told("trouble.untrusted") from None
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


def _named(found: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"item": item, "title": title or item} for item, title in found]
