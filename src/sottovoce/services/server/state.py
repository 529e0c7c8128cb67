"""What a server process knows of the federation right now, as it is told to devices.

A snapshot never changes; a new one takes its place. Requests read it without asking the database.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.core.messages import ModelView
from sottovoce.services.kit.documents import Document, Version
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.stores.server import Position
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.sealing import key_id


@dataclass(frozen=True, slots=True, repr=False)
class RoundSnapshot:
    position: Position
    selected: records.Numbers
    """Devices that were asked in the open round, ascending; none if no round is open."""
    everyone: bool
    """Any enrolled device may report, also one that came after the round was opened: it is then
    asked, too, and takes nobody's place."""
    versions: Mapping[int, Version]
    """The newest model, the one before, and the published version where there is one."""
    descriptor: Document
    before: tuple[int, int]
    """Round and attempt that this one came after."""

    def asks(self, number: int) -> bool:
        return self.everyone or self.asked(number)

    def asked(self, number: int) -> bool:
        """Whether it was asked when the round was opened."""
        # A number of another type would have all of them converted.
        at = int(self.selected.searchsorted(np.uint32(number)))
        return at < len(self.selected) and int(self.selected[at]) == number

    def open_for(self, round: int, attempt: int) -> bool:
        now = self.position
        return now.state == "open" and (now.round, now.attempt) == (round, attempt)

    @property
    def key(self) -> tuple[int, int]:
        """Round and attempt."""
        return self.position.round, self.position.attempt


class RoundState:
    """The newest snapshot. Any thread may read it."""

    def __init__(self, database: Database, plan: Plan, catalogue: str = "") -> None:
        """`catalogue` is the name of the one that is published."""
        self._database = database
        self._plan = plan
        self._digest, self._catalogue = plan.terms.digest(), catalogue
        self._everyone = plan.asks_all
        self._turn = threading.Lock()
        self._troubles: dict[str, dict[str, str]] = {}
        self._waits = ""
        self.outdated = False
        """Whether terms or catalogue were changed, and are to be taken up (`follow`). Until then
        nothing is told of what came after."""
        nothing = Position(-1, 0, "waiting", 0)
        self.now = self._snapshot(nothing, None, {}, (-1, 0))

    @property
    def trouble(self) -> Mapping[str, str] | None:
        """What this process cannot do, and since when: the first of its troubles."""
        return min(self._troubles.values(), key=lambda one: one["since"], default=None)

    def in_trouble(self, where: str, what: str) -> bool:
        """Note it, from any thread; whether it is new."""
        before = self._troubles.get(where)
        since = records.moment() if before is None else before["since"]
        self._troubles[where] = {"since": since, "what": what, "party": "server"}
        return before is None or before["what"] != what

    def in_order(self, where: str) -> bool:
        """Whether there was trouble until now."""
        return self._troubles.pop(where, None) is not None

    def says_waits(self, kind: str) -> None:
        """Publish the kind of wait (`core.waiting`); it is empty if the round moves on. There is no
        number in it: how many reports are here is not for everybody."""
        with self._turn:
            if kind == self._waits:
                return
            self._waits, old = kind, self.now
            self.now = replace(old, descriptor=self._describe(old.position))

    def follow(self, plan: Plan, catalogue: str) -> None:
        """Go by this plan and catalogue from now on."""
        with self._turn:
            self._plan, self._everyone = plan, plan.asks_all
            self._digest, self._catalogue = plan.terms.digest(), catalogue
            self.outdated = False
        self.refresh()

    def refresh(self, known: Position | None = None) -> RoundSnapshot:
        """Look into the database, unless the position is known already and has not moved. Any
        thread may ask."""
        with self._turn:
            old = self.now
            if known is not None and _same(known, old.position):
                return old
            with self._database.reading() as link:
                position = records.position(link)
                if _same(position, old.position):
                    return old
                if self._is_other(position):
                    self.outdated = True
                    return old
                selected = None
                if position.state == "open":
                    selected = records.selected(link, position.round, position.attempt)
                wanted = {position.round - 1, position.round}
                if position.published is not None:
                    wanted.add(position.published)
                versions = {round: old.versions[round] for round in wanted if round in old.versions}
                found = {
                    round: records.model(link, round, self._plan.terms.width)
                    for round in wanted
                    if round not in versions
                }
            for round, model in found.items():
                if model is not None:
                    versions[round] = Version.prepared(ModelView(round, model[0]), model[1])
            moved = (position.round, position.attempt) != old.key
            before = old.key if moved else old.before
            self.now = self._snapshot(position, selected, versions, before)
            return self.now

    def _is_other(self, position: Position) -> bool:
        """Whether this is a position under another plan, or with another catalogue."""
        here = position.terms or self._digest, position.catalogue or self._catalogue
        return here != (self._digest, self._catalogue or here[1])

    def _snapshot(
        self,
        position: Position,
        selected: records.Numbers | None,
        versions: Mapping[int, Version],
        before: tuple[int, int],
    ) -> RoundSnapshot:
        asked = np.zeros(0, np.uint32) if selected is None else selected
        told = self._describe(position)
        return RoundSnapshot(position, asked, self._everyone, versions, told, before)

    def _describe(self, position: Position) -> Document:
        ending = position.state == "closing" or position.last_call
        state = "waiting" if ending else position.state
        content: dict[str, Any] = {
            "protocol": PROTOCOL,
            "federation": self._plan.terms.federation,
            "terms": self._digest,
            "round": position.round,
            "attempt": position.attempt,
            "state": state,
            "selection": "all" if self._everyone else "list",
            "model": position.round,
            "poll_seconds": self._plan.rules.poll_seconds,
        }
        if position.published is not None:
            content["published"] = position.published
        if self._waits:
            content["waits"] = self._waits
        if self._catalogue:
            content["catalogue"] = self._catalogue
        if position.roster:
            content["roster"] = position.roster
        if state == "open" and position.report_key:
            key = position.report_key
            content["report_key"] = {"id": key_id(key).hex(), "public": key.hex()}
        return Document.of(json.dumps(content).encode())


def _same(new: Position, old: Position) -> bool:
    names = "round", "attempt", "state", "published", "terms", "catalogue", "roster", "last_call"
    return all(getattr(new, name) == getattr(old, name) for name in names)
