"""The server as a service: what it needs to start, and the thread that moves its rounds on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sottovoce.errors import SottovoceError
from sottovoce.parties.places import PlaceRules
from sottovoce.services.kit.cors import Origins
from sottovoce.services.kit.serving import Also, Beside, Parts, Service, Start
from sottovoce.services.server.application import ServerApplication, ServerLimits
from sottovoce.services.server.operator import status
from sottovoce.services.server.reasons import Situation, reason, trouble_kind
from sottovoce.services.server.rounds import coordinator_of
from sottovoce.services.server.state import RoundState
from sottovoce.stores.acts import Actor
from sottovoce.stores.coordinator import Awaiting, Coordinator, Plan
from sottovoce.stores.database import Database
from sottovoce.stores.keys import ReportKeys, RoleTokens, drop_half_tokens
from sottovoce.stores.operating import TROUBLE, LastContacts, keep_since, note_act
from sottovoce.stores.places import place_rules, set_place_rules
from sottovoce.stores.server import catalogue_name, drop_fact, raise_target, require_catalogue
from sottovoce.stores.server_folder import ServerFolder, ShufflerSecrets, open_folder

_WATCH_SHARED, _WATCH_ALONE = 0.2, 1.0
"""Seconds after which a process looks into the database even if it heard nothing."""
_SPACING = 0.03
_RETRY = 1.0
_SWAP_SECONDS = 30.0
_REASONS, _REST = 1.0, 10
"""The reason of a wait is computed again after so many seconds, or after so many times the time
that it took."""
_QUIET = 90.0
"""Seconds without trouble after which there is none; whoever is asked again in vain is asked at
least so often."""


@dataclass(frozen=True, slots=True, repr=False)
class RunningServer:
    """What a page for the operator is given of the process that serves it."""

    folder: Callable[[], ServerFolder]
    """With the plan that is in force."""
    database: Database
    tokens: RoleTokens
    stands: Callable[[], Mapping[str, Any]]
    """Where the federation stands (`operator.status`), with its last round."""
    moved: Callable[[], None]
    """Is told that something has changed which may open or end a round."""
    log: Any


@dataclass(frozen=True, slots=True)
class ServerService(Service[ServerFolder, ServerLimits]):
    """The server of a federation. `skip_to_round` is for a database that was set back
    (`Coordinator.skip_to`); `console` makes a page for the operator, where there is to be one."""

    rounds: int | None = None
    skip_to_round: int | None = None
    console: Callable[[RunningServer], Also] | None = None
    origins: Sequence[str] = ()
    """Origins of pages that may be devices."""
    open_places: int | None = None
    """For devices without an invitation, unless an operator has decided about that before."""
    forwarded: str = ""
    """The header in which reverse proxies (`Limits.behind`) say who asks."""

    name = "the server"
    port = 8443
    limits = ServerLimits

    def open(self, path: Path) -> ServerFolder:
        return open_folder(path)

    def prepare(self, start: Start[ServerFolder, ServerLimits]) -> Parts:
        folder, plan = start.folder, start.folder.plan
        proxy = None
        if plan.proxied:
            proxy = ShufflerSecrets.of(folder.keys)
            ReportKeys(folder.keys).newest()
        store = start.keep(folder.database())
        if not store.shared:
            start.stack.enter_context(folder.locked())
        start.listen()
        origins = Origins.of(self.origins)
        with store.writing() as link:
            store.take_turn(link)
            drop_half_tokens(folder.keys)
            folder = folder.caught_up(link)
            catalogue, plan = folder.catalogue(link), folder.plan
            coordinator = coordinator_of(plan, time.monotonic, folder.keys)
            coordinator.start(link)
            require_catalogue(link, catalogue)
            drop_fact(link, TROUBLE)
            if self.rounds is not None:
                raise_target(link, self.rounds)
            if self.skip_to_round is not None:
                coordinator.skip_to(link, self.skip_to_round)
            decided = self._decide_places(link)
        if decided:
            start.log.warning("open places", detail=decided)
        folder.write_down(catalogue)
        state = RoundState(store, plan, catalogue_name(catalogue))
        state.refresh()
        contacts = LastContacts()
        running = Running(folder, store, state)
        rounds = RoundsThread(
            store,
            coordinator,
            state,
            start.log,
            contacts,
            running.follow,
            plan=lambda: running.folder.plan,
        )
        also: list[Also] = []
        if self.console is not None:

            def stands() -> Mapping[str, Any]:
                now = running.folder.plan
                return status(store, start.tally, 1, now, trouble=state.trouble)

            told = start.tokens, stands, rounds.wake, start.log
            also = [self.console(RunningServer(lambda: running.folder, store, *told))]
            start.stack.enter_context(also[0].listener)

        def application() -> ServerApplication:
            made = ServerApplication(
                start.hosting,
                plan,
                catalogue,
                store,
                state,
                moved=rounds.wake,
                proxy=proxy,
                contacts=contacts,
                origins=origins,
                forwarded=self.forwarded,
            )
            running.serve(made)
            return made

        return Parts(
            application,
            lambda port: folder.ready_file(port, shared=store.shared),
            [Beside(rounds.start, rounds.stop)],
            also=also,
        )

    def _decide_places(self, link: sa.Connection) -> str:
        """Open places where nobody has decided about them; else what goes before this option."""
        if self.open_places is None:
            return ""
        before = place_rules(link)
        if before is None:
            rules = PlaceRules(places=self.open_places)
            set_place_rules(link, rules)
            by, before_it = Actor.here(), {"before": asdict(PlaceRules())}
            note_act(link, by.who, by.how, "places", asdict(rules), before_it)
        elif before.places != self.open_places:
            return f"they stay {before.places}, as decided before; see `sottovoce serve places`"
        return ""


class Running:
    """A server process under the plan that is in force, and how it takes up another one: nobody
    who is connected notices but by what is published."""

    def __init__(self, folder: ServerFolder, database: Database, state: RoundState) -> None:
        self.folder, self._database, self._state = folder, database, state
        self._application: ServerApplication | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, application: ServerApplication) -> None:
        """In the event loop in which it runs."""
        self._application, self._loop = application, asyncio.get_running_loop()

    def follow(self) -> Coordinator:
        """Take up terms and catalogue as the database has them, and write them into the folder;
        who moves the rounds on from now on. Not in the event loop."""
        with self._database.writing() as link:
            self._database.take_turn(link)
            folder = self.folder.caught_up(link)
            catalogue = folder.catalogue(link)
            coordinator = coordinator_of(folder.plan, time.monotonic, folder.keys)
            coordinator.start(link)
        folder.write_down(catalogue)
        application, loop = self._application, self._loop
        if application is not None and loop is not None:
            ways = application.under(folder.plan, catalogue)
            done = threading.Event()

            def swap() -> None:
                application.follow(ways)
                done.set()

            with contextlib.suppress(RuntimeError):  # it has stopped
                loop.call_soon_threadsafe(swap)
                done.wait(_SWAP_SECONDS)
        self.folder = folder
        # Last: from here on devices are told.
        self._state.follow(folder.plan, catalogue_name(catalogue))
        return coordinator


class RoundsThread:
    """Moves rounds on if this process is the one to do it, and keeps the round state up to date."""

    def __init__(
        self,
        database: Database,
        coordinator: Coordinator,
        state: RoundState,
        log: Any,
        contacts: LastContacts,
        follow: Callable[[], Coordinator] | None = None,
        *,
        plan: Callable[[], Plan] | None = None,
    ) -> None:
        """`follow` takes up a changed plan and returns its coordinator. `plan` returns the plan in
        force; without it, the reason of a wait is not published."""
        self._follow, self._plan = follow, plan
        self._next_reason, self._said_of = 0.0, (-1, 0, "")
        self._database, self._coordinator, self._state = database, coordinator, state
        self._log, self._contacts = log, contacts
        self._quiet = 0.0
        self._tidied = -1
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self._died: Callable[[], None] = self._stopping.set

    def start(self, died: Callable[[], None]) -> None:
        """`died` is called where the thread ends by an error that nobody has foreseen."""
        self._died = died
        self._thread.start()

    def wake(self) -> None:
        """Something has happened that may end or open a round."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()
        self._thread.join(timeout=3)
        with contextlib.suppress(SottovoceError):
            self._contacts.store(self._database, now=True)

    def _run(self) -> None:
        try:
            self._move_until_stopped()
        finally:
            if not self._stopping.is_set():
                self._died()

    def _move_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._database.leading() as leader:
                    until = float("inf") if leader is not None else time.monotonic() + _RETRY
                    while not self._stopping.is_set() and time.monotonic() < until:
                        self._woken.clear()
                        events = [] if leader is None else self._coordinator.step(leader)
                        for event in events:
                            self._say(event)
                        self._state.refresh(None if leader is None else self._coordinator.looked)
                        if self._state.outdated and self._follow is not None:
                            self._coordinator = self._follow()
                            self._log.info("terms or catalogue taken up")
                            continue
                        self._tidy()
                        self._contacts.store(self._database)
                        if events or time.monotonic() >= self._quiet:
                            self._in_order()
                        self._say_why()
                        if not events:
                            self._wait()
            except SottovoceError as error:
                self._log.error("rounds do not move on", detail=str(error))
                if not isinstance(error, Awaiting):
                    self._in_trouble(str(error))
                self._say_why()
                self._stopping.wait(_RETRY)

    def _say_why(self) -> None:
        """Publish why rounds wait. It is computed when the round moves, and now and then."""
        at, begun = self._state.now.position, time.monotonic()
        where = at.round, at.attempt, at.state
        if self._plan is None or (where == self._said_of and begun < self._next_reason):
            return
        trouble = self._state.trouble
        try:
            with self._database.reading() as link:
                found = reason(Situation.read(link, self._plan(), trouble=trouble))
            kind = "" if found is None else found["kind"] or ""
        except SottovoceError as error:
            kind = trouble_kind(str(error))
        self._state.says_waits(kind)
        now = time.monotonic()
        self._said_of, self._next_reason = where, now + max(_REASONS, _REST * (now - begun))

    def _in_trouble(self, what: str) -> None:
        """The operator is told so, from this process and, if it can be written, from the
        database."""
        self._quiet = time.monotonic() + _QUIET
        if self._state.in_trouble("rounds", what):
            with contextlib.suppress(SottovoceError), self._database.writing() as link:
                keep_since(link, TROUBLE, what)

    def _in_order(self) -> None:
        if self._state.in_order("rounds"):
            with self._database.writing() as link:
                drop_fact(link, TROUBLE)

    def _tidy(self) -> None:
        now = self._state.now.position
        if now.state == "open" and now.round != self._tidied:
            with self._database.reading() as link:
                self._coordinator.tidy(link)
            self._tidied = now.round

    def _wait(self) -> None:
        longest = _WATCH_SHARED if self._database.shared else _WATCH_ALONE
        if self._state.now.position.state == "open":
            longest = min(longest, self._coordinator.seconds_left() + 0.001)
        self._woken.wait(longest)
        self._stopping.wait(_SPACING)  # many reports make one look

    def _say(self, event: Any) -> None:
        if event.what in ("published", "held_back"):
            say = self._log.warning if event.notices else self._log.info
            detail = {"detail": "; ".join(event.notices)} if event.notices else {}
            say(f"version {event.what.replace('_', ' ')}", version=event.round, **detail)
            return
        if event.what == "amended":
            self._log.info("terms changed", round=event.round)
            return
        words = {
            "opened": "round opened",
            "last_call": "round takes in what is on its way",
            "closing": "round is closing",
            "reopened": "round is open again",
        }
        self._log.info(
            words.get(event.what, "round over"),
            outcome=event.what,
            round=event.round,
            attempt=event.attempt,
            asked=event.asked,
            reported=event.reported,
            seconds=event.seconds,
        )
        if event.trouble:
            self._log.error("round given up", round=event.round, detail=event.trouble)
        for notice in event.notices:
            self._log.warning("round notice", round=event.round, detail=notice)
