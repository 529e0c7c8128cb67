"""A store in a federation of data owners, at the consent centre."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.choice import ASKED
from sottovoce.core.consent import Choice
from sottovoce.core.words import Said, said
from sottovoce.errors import ConsentError, KeyTrouble, Told, Unreachable
from sottovoce.services.agent.user_agent import UserAgent
from sottovoce.stores import timeline
from sottovoce.stores.timeline import Line
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import ORCHESTRATOR, UserDoor
from sottovoce.web.desk import RECOMMENDED, StoreDesk
from sottovoce.wire.interactions import SEALED_BYTES
from sottovoce.wire.owners import HELLO_BYTES, MOST_SEALED, OFFER_BYTES, SESSION_BYTES
from sottovoce.wire.passes import PASS_BYTES
from sottovoce.wire.users import QUESTION_BYTES

_LINES = {"enrolment", "introduction", "interactions", "recommendation", "vector", "departure"}


@dataclass(frozen=True, slots=True, repr=False)
class _Message:
    """Something that would leave, as whoever gets it will read it."""

    what: Said
    to: Said
    body: bytes
    size: int
    """Bytes that leave."""
    exact: bool

    def __repr__(self) -> str:
        return "<_Message, redacted>"

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what.to_json(),
            "to": self.to.to_json(),
            "bytes": self.size,
            "sha256": hashlib.sha256(self.body).hexdigest(),
            "start": base64.b64encode(self.body[:512]).decode(),
            "exact": self.exact,
        }


@dataclass(frozen=True, slots=True, repr=False)
class _Shown:
    """What would leave now."""

    waiting: Mapping[str, Sequence[Mapping[str, Any]]]
    messages: tuple[_Message, ...]

    def __repr__(self) -> str:
        return "<_Shown, redacted>"

    @property
    def name(self) -> str:
        """Another for something else; empty where nothing would leave."""
        if not self.messages:
            return ""
        told = [(one.what.key, one.to.to_json(), one.body.hex()) for one in self.messages]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


class OwnersDesk(StoreDesk[UserStore]):
    """What is waiting here leaves when she sends it; each data owner reads what it gets in full."""

    kind = "owners"
    _shown: _Shown | None = None

    # --- where she stands -------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        store, choice = self.store, self.store.choice(self.number)
        told = sum(sent.interactions for sent in store.ledger(self.number))
        lines = timeline.lines(store.file, self.number, 0, 1)
        last = lines[0].when if lines else None
        return {
            **self.base(),
            "federation": store.federation,
            "address": store.url,
            "stands": self._stands(choice, told, last).to_json(),
            "quiet": _json(self._quiet(choice)),
            "printed": True,
            "fields": self._fields(choice),
            "meter": None,
            "terms": None,
            "readers": self._readers(choice),
            "history": {
                "items": len(store.seen(self.number)),
                "off": sum(not one["on"] for one in self.things()[0]),
                "unknown": 0,
                "version": store.world.directory.version if store.has_directory else 0,
            },
            "contributions": told,
            "last": last,
        }

    def _stands(self, choice: Choice, told: int, last: int | None) -> Said:
        if self.store.stopped:
            return said("stands.stopped")
        departure = self.store.person(self.number).departure
        if departure:
            return said("stands.left_federation" if departure == "done" else "stands.leaving")
        if told:
            return said("stands.owners", n=told, last=last)
        if last is not None:
            return said("stands.presence", last=last)
        return said("stands.nothing" if choice.takes_part else "stands.nothing_off")

    def _quiet(self, choice: Choice) -> Said | None:
        if self.store.stopped:
            return said("quiet.stopped")
        if self.store.person(self.number).departure:
            return said("quiet.left")
        if not choice.takes_part:
            return said("quiet.off")
        owners = self.store.readers(self.number) if self.store.has_directory else []
        if owners and not any(owner["reads"] for owner in owners):
            new = any(owner["new"] for owner in owners)
            return said("quiet.owners_new" if new else "quiet.all_refused")
        return None

    def _fields(self, choice: Choice) -> list[dict[str, Any]]:
        owners = self.store.readers(self.number) if self.store.has_directory else []
        options = [
            {
                "name": owner["name"],
                "label": owner["name"],
                "on": owner["name"] not in choice.refused_owners,
                "said": _sees(owner, choice).to_json(),
            }
            for owner in owners
        ]
        asked = (ASKED["takes_part"], ASKED["refused_owners"], ASKED["never_send"])
        return [self.field(one, choice, options * (one.drawn == "owners")) for one in asked]

    def _readers(self, choice: Choice) -> list[dict[str, Any]]:
        if not self.store.has_directory:
            return []
        found = [
            (said("reads.owner", name=owner["name"]), _sees(owner, choice))
            for owner in self.store.readers(self.number)
        ]
        settings = self.store.world.directory.settings
        if settings.release == "aggregated":
            found.append(
                (said("reads.orchestrator"), said("sees.sums_of_people", n=settings.min_users))
            )
        else:
            found.append((said("reads.orchestrator"), said("sees.requests")))
        return [{"who": who.to_json(), "sees": sees.to_json()} for who, sees in found]

    # --- choices and things -----------------------------------------------------------------------

    def weigh(self, choice: Choice, change: Mapping[str, Any]) -> dict[str, Any]:
        if not choice.takes_part:
            words, verdict = said("verdict.no_part"), "good"
        else:
            words, verdict = said("terms.owners"), "nothing"
        return {
            "odds": None,
            "verdict": verdict,
            "said": [words.to_json()],
            "objection": self._objection(choice),
            "technical": [choice.owner_words()],
        }

    def _objection(self, choice: Choice) -> dict[str, Any] | None:
        """Why nothing would leave. A choice is about all owners that there are now."""
        owners = self.store.world.directory.owners if self.store.has_directory else ()
        all_refused = {owner.name for owner in owners} <= set(choice.refused_owners)
        if choice.takes_part and self.store.person(self.number).departure:
            return said("quiet.left").to_json()
        if choice.takes_part and owners and all_refused:
            return said("quiet.all_refused").to_json()
        return None

    def keep(self, choice: Choice) -> None:
        known = {owner.name for owner in self.store.world.directory.owners} if (
            self.store.has_directory
        ) else set()  # fmt: skip
        for name in choice.refused_owners:
            if name not in known:
                raise Told("trouble.unknown_owner", name=name)
        UserDoor(self.store).choose(self.number, choice)

    def things(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        if not self.store.has_directory:
            return [], []
        tables = ("messages", "seen", "consent", "meta", "owners")
        return self.store.file.held("things on a page", tables, self._list_things)

    def _list_things(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        never = set(self.store.choice(self.number).never_send)
        catalogue = self.store.world.directory.catalogue
        times: dict[int, int] = {}
        for message in self.store.messages(self.number):
            if message["kind"] in ("negative", "positive"):
                item = message["item"]
                times[item] = max(times.get(item, 0), message["time"])
        seen = sorted(self.store.seen(self.number), key=lambda item: -times.get(item, 0))
        found: list[dict[str, Any]] = []
        for item in seen:
            name = catalogue[item]
            on = name not in never
            found.append(
                {"item": name, "title": name, "when": times.get(item), "categories": []}
                | {"on": on, "by": None if on else "item"}
            )
        return found, []

    def names(self) -> set[str]:
        return set(self.store.world.directory.catalogue) if self.store.has_directory else set()

    def remove(self, items: Sequence[str]) -> int:
        return UserDoor(self.store).forget(self.number, items)

    def forget_history(self) -> int:
        return UserDoor(self.store).forget(self.number)

    # --- what would leave -------------------------------------------------------------------------

    def preview(self) -> dict[str, Any]:
        self._shown = shown = self._show()
        items = [
            {"item": line["item"], "title": line["item"], "weight": 1.0}
            for lines in shown.waiting.values()
            for line in lines
            if line["item"]
        ]
        words = self._quiet(self.store.choice(self.number))
        if shown.name:
            words = said("preview.ready" if self.serves else "busy.agent")
        return {
            "ready": bool(shown.name),
            "said": (words or said("preview.nothing")).to_json(),
            "why": "",
            "nonce": (self.serves and shown.name) or None,
            "round": None,
            "epsilon": None,
            "items": items[:500],
            "total": len(items),
            "others": 0,
            "kept_back": sum(not one["on"] for one in self.things()[0]),
            "messages": [one.to_json() for one in shown.messages],
            "readers": self._readers(self.store.choice(self.number)),
        }

    def _show(self) -> _Shown:
        """What waits, under the newest directory that can be had."""
        person = self.store.person(self.number)
        with UserAgent(self.store) as agent:
            try:
                agent.refresh_directory()
            except Unreachable:  # data owners may answer all the same
                if not self.store.has_directory:
                    raise
            waiting = self._waiting()
            messages = []
            if waiting and person.given is None:
                body = agent.introduction(self.number)
                to = said("reads.orchestrator")
                messages.append(_Message(said("preview.enrolment"), to, body, len(body), True))
        messages += [_for_owner(owner, lines) for owner, lines in waiting.items()]
        if person.departure == "asked":
            words = said("ledger.departure"), said("reads.orchestrator")
            messages.append(_Message(*words, b"", QUESTION_BYTES, False))
        return _Shown(waiting, tuple(messages))

    def _waiting(self) -> dict[str, list[dict[str, Any]]]:
        """By data owner, what would leave for it, as it would read it."""
        if not self.store.has_directory:
            return {}
        world, found = self.store.world, dict[str, list[dict[str, Any]]]()
        for owner, kind, item, time in UserDoor(self.store).would_leave(self.number):
            name = world.directory.catalogue[item] if kind in _TOLD else ""
            line = {"item": name, "says": kind, "time": time}
            found.setdefault(world.owners[owner].name, []).append(line)
        return found

    def body(self, index: int) -> bytes:
        if self._shown is None or not 0 <= index < len(self._shown.messages):
            raise Told("trouble.not_found")
        return self._shown.messages[index].body

    def send(self, nonce: str) -> tuple[str, Said]:
        if not nonce or nonce != self._show().name:
            raise Told("preview.changed")
        self._shown = None
        before = timeline.count(self.store.file, self.number)
        try:
            with UserAgent(self.store) as agent:
                delivery = agent.send_all()
        except ConsentError:
            raise Told("preview.changed") from None
        told = timeline.count(self.store.file, self.number) > before
        silent = [name for name in delivery.troubles if name != ORCHESTRATOR]
        if delivery.refused:
            return "refused", said("preview.refused")
        if silent:
            return "left" if told else "nothing", said("trouble.owner_gone", name=silent[0])
        if ORCHESTRATOR in delivery.troubles and not delivery.arrived:
            raise Told("trouble.maybe_sent" if told else "trouble.server_gone")
        if not told:
            return "nothing", said("preview.nothing_sent")
        return "arrived", said("preview.arrived")

    # --- what has left ----------------------------------------------------------------------------

    def line_words(self, line: Line) -> tuple[Said, Said]:
        known = line.what in _LINES
        what = said(f"ledger.{line.what}") if known else said("ledger.other", what=line.what)
        owners = {owner.name for owner in self.store.world.directory.owners} if (
            self.store.has_directory
        ) else set()  # fmt: skip
        if line.party in owners:
            return what, said("reads.owner", name=line.party)
        return what, said("reads.orchestrator")

    def inside(self, line: Line) -> list[tuple[str, str, float]]:
        """All that this data owner was told, up to now: requests do not say which was in which."""
        if not line.items or not self.store.has_directory:
            return []
        told = self.store.file.held("told", ("messages", "meta", "owners"), self._told)
        return [(name, name, 1.0) for name in told.get(line.party, ())]

    def _told(self) -> dict[str, dict[str, None]]:
        """By data owner, names of the things that it was told of."""
        world, found = self.store.world, dict[str, dict[str, None]]()
        for one in self.store.messages(self.number):
            if one["owner"] in world.owners and one["sends"] and one["kind"] in _TOLD:
                names = found.setdefault(world.owners[one["owner"]].name, {})
                names[world.directory.catalogue[one["item"]]] = None
        return found

    def terms_at(self, line: Line) -> dict[str, Any]:
        return {
            "federation": self.store.federation,
            "controller": line.party or self.store.url,
            "terms": None,
            "round": None,
        }

    def agree(self, digest: str) -> None:
        raise Told("trouble.not_here")

    def recommend(self, choice: Choice | None) -> list[tuple[str, str]]:
        """The orchestrator is asked, which is on record as all that leaves; never for a choice that
        was not made, and not before she has sent that she is there."""
        if choice is not None or not self.serves or self.store.person(self.number).given is None:
            return []
        try:
            with UserAgent(self.store) as agent:
                found = agent.recommend(self.number, RECOMMENDED)
        except (ConsentError, KeyTrouble, Unreachable):
            return []
        return [(one.name, one.name) for one in found]


_TOLD = ("negative", "positive")


def _sees(owner: Mapping[str, Any], choice: Choice) -> Said:
    if owner["name"] in choice.refused_owners:
        return said("sees.interactions_none")
    return said("sees.interactions_new" if owner["new"] else "sees.interactions")


def _for_owner(owner: str, lines: Sequence[Mapping[str, Any]]) -> _Message:
    """All that goes to a data owner: her pass, a session with the first message, and the rest."""
    more = len(lines) - 1
    size = PASS_BYTES + OFFER_BYTES + HELLO_BYTES + len(lines) * SEALED_BYTES
    size += SESSION_BYTES * -(-more // MOST_SEALED)
    what = said("preview.interactions", n=len(lines))
    if not any(line["item"] for line in lines):
        what = said("ledger.departure")
    return _Message(what, said("reads.owner", name=owner), _readable(lines), size, False)


def _readable(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """What a data owner will read, before it is sealed."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def _json(words: Said | None) -> dict[str, Any] | None:
    return None if words is None else words.to_json()
