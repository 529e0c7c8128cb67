"""A store in a federation of data owners, at the consent centre."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.choice import ASKED
from sottovoce.core.consent import Choice
from sottovoce.core.words import Said, said
from sottovoce.errors import ConsentError, KeyTrouble, Told, Unreachable
from sottovoce.services.agent.user_agent import UserAgent
from sottovoce.stores import timeline
from sottovoce.stores.timeline import Line
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor
from sottovoce.web.centre import RECOMMENDED, Desk
from sottovoce.wire.interactions import SEALED_BYTES

_LINES = {"enrolment", "interactions", "recommendation", "vector", "departure"}


class OwnersDesk(Desk[UserStore]):
    """What is waiting here leaves when she sends it; each data owner reads what it gets in full."""

    kind = "owners"

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
            "objection": None,
            "technical": [choice.owner_words()],
        }

    def keep(self, choice: Choice) -> None:
        if self.store.has_directory:
            for name in choice.refused_owners:
                self.store.world.directory.owner(name)
        UserDoor(self.store).choose(self.number, choice)

    def things(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        if not self.store.has_directory:
            return [], []
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
        waiting, name = self._waiting()
        items = [
            {"item": line["item"], "title": line["item"], "weight": 1.0}
            for lines in waiting.values()
            for line in lines
        ]
        words = said("preview.ready") if waiting else self._quiet(self.store.choice(self.number))
        enrolled = self.store.person(self.number).given is not None
        messages = [] if enrolled or not waiting else [_enrolment()]
        messages += [_for_owner(owner, lines) for owner, lines in waiting.items()]
        return {
            "ready": bool(waiting),
            "said": (words or said("preview.nothing")).to_json(),
            "why": "",
            "nonce": name,
            "round": None,
            "epsilon": None,
            "items": items[:500],
            "total": len(items),
            "others": 0,
            "kept_back": sum(not one["on"] for one in self.things()[0]),
            "messages": messages,
            "readers": self._readers(self.store.choice(self.number)),
        }

    def _waiting(self) -> tuple[dict[str, list[dict[str, Any]]], str | None]:
        """By data owner, what waits for it, as it would read it; and a name for all of that."""
        if not self.store.has_directory:
            return {}, None
        world, found = self.store.world, dict[str, list[dict[str, Any]]]()
        for one in self.store.messages(self.number):
            if one["state"] not in ("waiting", "left") or one["owner"] not in world.owners:
                continue
            item = world.directory.catalogue[one["item"]] if one["kind"] in _TOLD else ""
            line = {"item": item, "says": one["kind"], "time": one["time"]}
            found.setdefault(world.owners[one["owner"]].name, []).append(line)
        if not found:
            return {}, None
        text = json.dumps(found, sort_keys=True)
        return found, hashlib.sha256(text.encode()).hexdigest()[:32]

    def body(self, index: int) -> bytes:
        waiting, _ = self._waiting()
        if self.store.person(self.number).given is None:
            index -= 1
        if not 0 <= index < len(waiting):
            raise Told("trouble.not_found")
        return _readable(list(waiting.values())[index])

    def send(self, nonce: str) -> tuple[str, Said]:
        if nonce != self._waiting()[1]:
            raise Told("preview.changed")
        try:
            with UserAgent(self.store) as agent:
                delivery = agent.send_all()
        except ConsentError:
            raise Told("preview.changed") from None
        if delivery.refused:
            return "refused", said("preview.refused")
        if delivery.waiting:
            return "left", said("trouble.owner_gone", name=next(iter(delivery.troubles), ""))
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
        world = self.store.world
        numbers = {owner.number for owner in world.directory.owners if owner.name == line.party}
        names = dict.fromkeys(
            world.directory.catalogue[one["item"]]
            for one in self.store.messages(self.number)
            if one["owner"] in numbers and one["sends"] and one["kind"] in _TOLD
        )
        return [(name, name, 1.0) for name in names]

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
        was not made."""
        if choice is not None or not self.serves:
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


def _for_owner(owner: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body = _readable(lines)
    return {
        "what": said("preview.interactions", n=len(lines)).to_json(),
        "to": said("reads.owner", name=owner).to_json(),
        "bytes": len(lines) * SEALED_BYTES,
        "sha256": hashlib.sha256(body).hexdigest(),
        "start": base64.b64encode(body[:512]).decode(),
        "exact": False,
    }


def _enrolment() -> dict[str, Any]:
    return {
        "what": said("preview.enrolment").to_json(),
        "to": said("reads.orchestrator").to_json(),
        "bytes": 0,
        "sha256": hashlib.sha256(b"").hexdigest(),
        "start": "",
        "exact": False,
    }


def _readable(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """What a data owner will read, before it is sealed."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def _json(words: Said | None) -> dict[str, Any] | None:
    return None if words is None else words.to_json()
