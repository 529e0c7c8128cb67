"""What operators do to a federation, and the log of it.

Each act is one transaction with its line in the log: both are there, or neither. Operators take
turns, so that of two who do the same at once one does it, and the other is told who did.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal

import sqlalchemy as sa

from sottovoce.config import assign
from sottovoce.errors import (
    ConfigError,
    MessageError,
    ServiceError,
    SottovoceError,
    UsageError,
)
from sottovoce.parties.places import PlaceRules
from sottovoce.stores import amending, keys, operating, places, sums, versions
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores.database import MOST_ROUNDS, Database, acts
from sottovoce.stores.server import catalogue_name
from sottovoce.stores.server_folder import ServerFolder, amended, invited, with_items
from sottovoce.wire.catalogue import Categories, Items, spare_places
from sottovoce.wire.invitations import MAX_NUMBER, Invitation
from sottovoce.wire.plainly import short
from sottovoce.wire.terms import Terms

Role = keys.Role
Clock = Callable[[], datetime]
LONGEST_NAME, LONGEST_LABEL, LONGEST_WHY, LONGEST_KEY = 64, 80, 200, 128
"""Characters of what operators write."""
_LONGEST_WHO = 2 * LONGEST_NAME + 8
_CHANGEABLE = "algorithm", "release", "link"
_NAMED = 20
"""Items that the log names, of those that came or went."""


class Unseen(Enum):
    """An operator who has not said what he saw."""

    UNSEEN = "unseen"


UNSEEN = Unseen.UNSEEN


class _Unchanged(Exception):
    """An act that would do nothing, with what there is."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The operator who acts, for the log."""

    who: str
    """The account on this machine; at the console the name given to a link, and the account that
    opened it where that is another."""
    how: Literal["command", "console"]

    def __post_init__(self) -> None:
        _require_text("a name", self.who, _LONGEST_WHO)
        if not self.who:
            raise UsageError("whoever acts needs a name")

    @classmethod
    def here(cls) -> Actor:
        """Return the operator who gives a command on this machine."""
        return cls(account_name(os.geteuid()), "command")

    @classmethod
    def at_console(cls, name: str, account: int | None) -> Actor:
        """Return the operator who gives this name at the console. Anybody can give any name, so the
        account that opened the link is named with it, unless it has that name."""
        _require_text("a name", name, LONGEST_NAME)
        opened = "unknown" if account is None else account_name(account)
        known = not name or (account is not None and name == opened)
        return cls(name if known else f"{name} (uid {opened})", "console")


def account_name(account: int) -> str:
    """Return the name of an account of this machine."""
    try:
        return pwd.getpwuid(account).pw_name[:LONGEST_NAME]
    except KeyError:
        return f"account {account}"


class Acts:
    """What an operator does to a federation: each act is one transaction, with its line in the
    log. An act with the `key` of an earlier one does nothing and returns what that one did."""

    def __init__(
        self,
        folder: ServerFolder,
        database: Database,
        actor: Actor,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._folder, self._actor, self._clock = folder, actor, clock
        self.database = database

    def invite(
        self,
        server: str,
        count: int = 1,
        *,
        numbers: Sequence[int] | None = None,
        label: str = "",
        key: str = "",
    ) -> list[Invitation]:
        """Invitations for the next `count` devices, or for these numbers. They are secrets and are
        not kept: the same key again raises."""
        label = label.strip()
        _require_text("a label", label, LONGEST_LABEL)
        made: list[Invitation] = []

        def act(link: sa.Connection) -> dict[str, Any]:
            made.extend(invited(link, self._folder, server, numbers, count=count))
            new = [invitation.number for invitation in made]
            if label:
                operating.set_labels(link, new, label)
            return {"numbers": spans(new)}

        about = {"label": label} if label else {}
        done = self._do("invite", about, key, act)
        if not made:
            raise UsageError(
                f"the invitations of devices {done['numbers']} were made before and cannot be "
                "shown again; shut these devices out and invite others"
            )
        return made

    def shut_out(self, numbers: Sequence[int], *, key: str = "") -> dict[str, Any]:
        """Ask these devices no more and take nothing from them."""

        def act(link: sa.Connection) -> dict[str, Any]:
            _require_known(link, numbers)
            new = sorted(set(numbers) - records.shut_out_among(link, numbers))
            if not new:
                raise UsageError(self._why_out(link, min(numbers)))
            records.shut(link, new)
            return {"numbers": new}

        return self._do("shut_out", {"numbers": sorted(set(numbers))}, key, act)

    def readmit(self, numbers: Sequence[int], *, key: str = "") -> dict[str, Any]:
        """Undo `shut_out`, also of devices that the server has shut out by itself."""

        def act(link: sa.Connection) -> dict[str, Any]:
            _require_known(link, numbers)
            back = sorted(records.shut_out_among(link, numbers))
            if not back:
                number = min(numbers)
                done = self._last(link, "readmit", lambda about: number in about["numbers"])
                since = "is not shut out" if done is None else f"was let in again {self._by(done)}"
                raise UsageError(f"device {number} {since}; nothing was done")
            records.readmit(link, back, unheard=not self._folder.plan.proxied)
            searches.forgive(link, back)
            sums.forgive(link, back)
            return {"numbers": back}

        return self._do("readmit", {"numbers": sorted(set(numbers))}, key, act)

    def label(self, number: int, text: str, *, key: str = "") -> dict[str, Any]:
        """Give a device a name by which operators know it; an empty one takes it away."""
        text = text.strip()
        _require_text("a label", text, LONGEST_LABEL)

        def act(link: sa.Connection) -> dict[str, Any]:
            _require_known(link, [number])
            before = operating.label_of(link, number)
            if before == text == "":
                raise UsageError(f"device {number} has no label; nothing was done")
            if before == text:
                done = self._last(link, "label", lambda about: about["number"] == number)
                by = "" if done is None else f" {self._by(done)}"
                raise UsageError(f"device {number} was given this label{by}; nothing was done")
            operating.set_labels(link, [number], text)
            return {"number": number, "label": text, "before": before}

        return self._do("label", {"number": number, "label": text}, key, act)

    def pause(self, why: str = "", *, key: str = "") -> dict[str, Any]:
        """Open no new round until `go_on`; one that is open goes on to its end."""
        _require_text("a reason", why, LONGEST_WHY)
        self._folder.require_own_rounds(
            "where a run is stopped and started again with `sottovoce serve flower`"
        )

        def act(link: sa.Connection) -> dict[str, Any]:
            found = operating.paused(link)
            if found is not None:
                by = f"{self._when(found['since'])} by {found['who']}"
                raise UsageError(f"rounds were paused {by}; nothing was done")
            pause = {"since": self._now(), "who": self._actor.who, "why": why}
            records.set_fact(link, operating.PAUSED, json.dumps(pause))
            return {"paused": pause}

        return self._do("pause", {"why": why}, key, act)

    def go_on(self, *, key: str = "") -> dict[str, Any]:
        """Undo `pause`."""

        def act(link: sa.Connection) -> dict[str, Any]:
            found = operating.paused(link)
            if found is None:
                done = self._last(link, "go_on")
                since = "are not paused" if done is None else f"were let go on {self._by(done)}"
                raise UsageError(f"rounds {since}; nothing was done")
            records.drop_fact(link, operating.PAUSED)
            return {"paused": None, "before": found}

        return self._do("go_on", {}, key, act)

    def open_places(self, rules: PlaceRules, *, key: str = "") -> dict[str, Any]:
        """Take devices without an invitation by these rules; with 0 places nobody any more. Those
        who have come stay."""

        def act(link: sa.Connection) -> dict[str, Any]:
            before = places.place_rules(link)
            if before == rules:
                raise UsageError("the places are so already; nothing was done")
            places.set_place_rules(link, rules)
            return {"before": asdict(before or PlaceRules())}

        return self._do("places", asdict(rules), key, act)

    def raise_target(self, rounds: int, *, key: str = "") -> dict[str, Any]:
        """Run at least so many rounds."""

        def act(link: sa.Connection) -> dict[str, Any]:
            before = records.position(link).target
            if rounds > MOST_ROUNDS:
                raise UsageError(f"a federation runs at most {MOST_ROUNDS:,} rounds")
            if rounds <= before:
                done = self._last(link, "target")
                by = "" if done is None else f", since {self._by(done)}"
                raise UsageError(
                    f"the target is {before:,} rounds already{by}; it can only be raised, and "
                    "nothing was done"
                )
            records.raise_target(link, rounds)
            return {"rounds": rounds, "before": before}

        return self._do("target", {"rounds": rounds}, key, act)

    def publish(
        self, version: int, *, seen: int | Unseen | None = UNSEEN, key: str = ""
    ) -> dict[str, Any]:
        """Have devices recommend by this version of the model. `seen` is the one that was published
        when the operator looked: if another one is by now, nothing is done."""

        def act(link: sa.Connection) -> dict[str, Any]:
            now = versions.published(link)
            if (now is not None and now == version) or (seen is not UNSEEN and now != seen):
                raise UsageError(self._why_published(link, now))
            before = versions.publish(link, version)
            return {"published": version, "before": before, "pinned": versions.pinned(link)}

        return self._do("publish", {"version": version}, key, act)

    def rotate_token(self, role: Role = "act", *, key: str = "") -> dict[str, Any]:
        """A new secret for a role; the old one is refused by a running server within a second."""
        with contextlib.ExitStack() as stack:

            def act(link: sa.Connection) -> dict[str, Any]:
                place = stack.enter_context(keys.new_token(self._folder.keys, role))
                return {"role": role, "file": str(place)}

            return self._do("token", {"role": role}, key, act)

    def rotate_report_key(self, *, key: str = "") -> dict[str, Any]:
        """A new key to which reports are sealed, from the next round on."""

        def act(link: sa.Connection) -> dict[str, Any]:
            ring = keys.ReportKeys(self._folder.keys)
            if not ring.exists:
                raise UsageError(
                    "there are no report keys: only the server of a federation with a shuffler has "
                    "some; nothing was done"
                )
            return {"report_key": ring.rotate().id.hex()}

        return self._do("report_key", {}, key, act)

    def propose(
        self,
        terms: Mapping[str, Any],
        catalogue: bytes | None = None,
        *,
        seen: str | None = None,
        key: str = "",
    ) -> dict[str, Any]:
        """Change the terms to this table, as soon as everybody agrees who keeps terms of their own
        and no round is open, and publish this catalogue with them. `seen` is the digest of the
        terms that the operator looked at: if others are in force by now, nothing is done."""
        self._folder.require_own_rounds("where terms do not change: make a new federation")

        def act(link: sa.Connection) -> dict[str, Any]:
            amending.proposed(link, hold=True)  # one that comes into force now goes first
            folder = self._folder.caught_up(link)
            now = folder.plan.terms
            if seen not in (None, now.digest()):
                raise UsageError("the terms were changed meanwhile; nothing was done, look again")
            try:
                after = Terms.from_table({**terms})
                amended(folder.plan, after)
            except (MessageError, ConfigError) as error:
                raise UsageError(f"{error}; nothing was done") from None
            before, who = folder.catalogue(link), self._actor.who
            told = amending.propose(link, now, after, before, catalogue, who=who, at=self._now())
            return told.to_table()

        return self._do("propose", {"catalogue": catalogue is not None}, key, act)

    def change_items(
        self, added: Items, gone: Sequence[str], categories: Categories = (), *, key: str = ""
    ) -> dict[str, Any]:
        """Items come into places to spare, with these categories where there are any, and others
        go. Devices take that up by themselves; nobody has to agree. Where all is so already,
        nothing is `changed`, and nothing comes into the log."""

        def act(link: sa.Connection) -> dict[str, Any]:
            amending.proposed(link, hold=True)
            folder = self._folder.caught_up(link)
            before = folder.catalogue(link)
            content = with_items(before, added, gone, categories)
            if content == with_items(before, (), ()):
                raise _Unchanged(catalogue_name(content))
            amending.change_catalogue(link, folder.plan.terms, before, content)
            return {"catalogue": catalogue_name(content), "changed": True}

        about = {"added": [item for item, _ in added][:_NAMED], "gone": list(gone)[:_NAMED]}
        try:
            return self._do("items", about | {"many": len(added) + len(gone)}, key, act)
        except _Unchanged as same:
            return {"catalogue": str(same), "changed": False}
        finally:
            self._folder.follow(self.database)  # also after one that was cut off before this

    def add_items(
        self, added: Items, categories: Categories = (), *, key: str = ""
    ) -> dict[str, Any]:
        """Items come: into places to spare if there are enough, else by a change of terms."""
        if not _places_missing(self._standing()[1], added):
            return self.change_items(added, (), categories, key=key)
        return self.change_terms((), added, categories, key=key)

    def change_terms(
        self,
        settings: Sequence[str],
        added: Items = (),
        categories: Categories = (),
        spare: int = 0,
        *,
        key: str = "",
    ) -> dict[str, Any]:
        """Propose the terms as they are with these settings ("release.epsilon=2"), with places for
        these items, and so many to spare besides."""
        terms, before = self._standing()
        table: dict[str, Any] = json.loads(json.dumps(terms.to_table()))
        for setting in settings:
            if setting.split(".")[0] not in _CHANGEABLE:
                raise UsageError(
                    f"only settings of {', '.join(_CHANGEABLE)} change, not {setting!r}; items "
                    "come with --add and --spare"
                )
            assign(table, setting)
        more = _places_missing(before, added) + spare
        catalogue = with_items(before, added, (), categories, more) if added or more else None
        table["n_items"] += more
        if catalogue is not None and table == terms.to_table():
            raise UsageError("there are places to spare for these; use `sottovoce serve catalogue`")
        return self.propose(table, catalogue, seen=terms.digest(), key=key)

    def _standing(self) -> tuple[Terms, bytes]:
        """Terms and catalogue that are in force."""
        with self.database.reading() as link:
            folder = self._folder.caught_up(link)
            return folder.plan.terms, folder.catalogue(link)

    def withdraw(self, *, key: str = "") -> dict[str, Any]:
        """Nothing comes of a change of terms that waits."""

        def act(link: sa.Connection) -> dict[str, Any]:
            return amending.withdraw(link).to_table()

        return self._do("withdraw", {}, key, act)

    def known(self, key: str) -> bool:
        """Whether there was an act with this key."""
        with self.database.reading() as link:
            found = link.execute(sa.select(acts.c.id).where(acts.c.key == key)).scalar()
        return found is not None

    def backup(
        self, place: str, copy: Callable[[], Mapping[str, Any]], *, key: str = ""
    ) -> dict[str, Any]:
        """Have the folder copied to this place, keys included, and what `copy` tells of it. The
        line is in the log before anything is copied, and says afterwards what came of it."""
        key, about, mine = key or secrets.token_hex(16), {"place": place, "keys": True}, []

        def act(link: sa.Connection) -> dict[str, Any]:
            mine.append(True)
            return {"begun": self._now()}

        done = self._do("backup", about, key, act)
        if not mine:
            if "failed" in done:
                raise UsageError(f"this backup was not made: {done['failed']}")
            if "begun" in done:
                when = self._when(done["begun"])
                raise UsageError(f"this backup was begun {when}, and nobody knows of its end yet")
            return done
        outcome: dict[str, Any] = {"failed": "it was broken off"}
        try:
            outcome = {**about, **copy()}
        except SottovoceError as error:
            outcome = {"failed": str(error)}
            raise
        finally:
            # A copy is a copy, whether or not the database can be written by now.
            with contextlib.suppress(ServiceError), self.database.writing() as link:
                now = json.dumps(outcome)
                link.execute(acts.update().where(acts.c.key == key).values(outcome=now))
        return outcome

    def note(self, what: str, about: Mapping[str, Any], *, key: str = "") -> None:
        """Have in the log what was done beside the database, such as a copy of it."""
        self._do(what, about, key, lambda link: {})

    def _do(
        self,
        what: str,
        about: Mapping[str, Any],
        key: str,
        act: Callable[[sa.Connection], dict[str, Any]],
    ) -> dict[str, Any]:
        """Once for each key: what it did, or has done."""
        _require_text("a key", key, LONGEST_KEY)
        with self.database.writing() as link:
            self.database.take_turn(link)
            if key:
                named = sa.select(acts.c.what, acts.c.outcome).where(acts.c.key == key)
                done = link.execute(named).one_or_none()
                if done is not None and done.what != what:
                    raise UsageError("this key was used for something else; nothing was done")
                if done is not None:
                    return dict(json.loads(done.outcome))
            outcome = act(link)
            by = self._actor.who, self._actor.how
            operating.note_act(link, *by, what, about, outcome, at=self._now(), key=key)
        return outcome

    def _now(self) -> str:
        return records.moment(self._clock())

    def _when(self, at: str) -> str:
        told = clock_time(at, self._clock())
        return f"at {told}" if ":" in told[:3] else f"on {told}"

    def _by(self, done: Mapping[str, Any]) -> str:
        return f"{self._when(done['at'])} by {done['who']}"

    def _last(
        self,
        link: sa.Connection,
        what: str,
        fits: Callable[[dict[str, Any]], bool] = lambda about: True,
    ) -> dict[str, Any] | None:
        """The newest act of this kind about which that holds."""
        rows = link.execute(sa.select(acts).where(acts.c.what == what).order_by(acts.c.id.desc()))
        found = next((row for row in rows if fits(json.loads(row.about))), None)
        return None if found is None else _table(found)

    def _why_out(self, link: sa.Connection, number: int) -> str:
        why = records.why_shut(link, [number]).get(number)
        if why is not None:
            return f"device {number} was shut out by the server ({why}); nothing was done"
        done = self._last(link, "shut_out", lambda about: number in about["numbers"])
        by = "before" if done is None else self._by(done)
        return f"device {number} was shut out {by}; nothing was done"

    def _why_published(self, link: sa.Connection, version: int | None) -> str:
        if version is None:
            return "no version is published by now; nothing was done"
        done = self._last(link, "publish")
        if done is not None and done["about"]["version"] == version:
            return f"version {version} was published {self._by(done)}; nothing was done"
        return f"version {version} is published by now; nothing was done"


def clock_time(at: str, now: datetime | None = None) -> str:
    """A kept time as an operator at this machine reads it: 18:04 today, 2026-11-17 18:04 later."""
    then, today = datetime.fromisoformat(at).astimezone(), (now or datetime.now(UTC)).astimezone()
    return f"{then:%H:%M}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"


def past_acts(link: sa.Connection, offset: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """How many acts there are, and some of them, newest first, each with its `words`."""
    total = int(link.execute(sa.select(sa.func.count()).select_from(acts)).scalar() or 0)
    rows = link.execute(sa.select(acts).order_by(acts.c.id.desc()).offset(offset).limit(limit))
    return total, [one | {"words": in_words(one)} for one in map(_table, rows)]


def in_words(act: Mapping[str, Any]) -> str:
    """What was done, in a short sentence for the log."""
    what, told = act["what"], {**act["about"], **act["outcome"]}
    say = _WORDS.get(what)
    try:
        return say(told) if say is not None else str(what).replace("_", " ")
    except (KeyError, TypeError, ValueError):  # of another release
        return str(what).replace("_", " ")


def _listed(items: Sequence[str]) -> str:
    more = ", …" if len(items) >= _NAMED else ""
    return ", ".join(map(str, items)) + more


def _stays(told: Mapping[str, Any]) -> str:
    return "" if told.get("pinned") is None else "; it stays, and new versions are held back"


def _changed(told: Mapping[str, Any]) -> str:
    """Settings that change, and whether items come."""
    found = [f"{name} {_value(a)} → {_value(b)}" for name, a, b in told["changes"]]
    return ", ".join([*found, *(["a new catalogue"] if told.get("catalogue") else [])])


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(short(value))


def _items_words(told: Mapping[str, Any]) -> str:
    parts = [("came", told["added"]), ("went", told["gone"])]
    return "items " + "; ".join(f"that {how}: {_listed(some)}" for how, some in parts if some)


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "invite": lambda told: (
        f"invited: {told['numbers']}" + (f", as {told['label']!r}" if told.get("label") else "")
    ),
    "shut_out": lambda told: f"shut out: {spans(told['numbers'])}",
    "readmit": lambda told: f"let in again: {spans(told['numbers'])}",
    "label": lambda told: (
        f"device {told['number']} is called {told['label']!r}"
        if told["label"]
        else f"device {told['number']} has no label any more"
    ),
    "pause": lambda told: "rounds paused" + (f": {told['why']}" if told["why"] else ""),
    "go_on": lambda told: "rounds let go on",
    "places": lambda told: (
        f"open places: {told['places']:,} in all, {told['per_hour']:,} an hour and "
        f"{told['per_day']:,} a day of one network, {told['bits']} bits of work"
        if told["places"]
        else "places closed: nobody comes without an invitation"
    ),
    "target": lambda told: f"target raised: {told['before']:,} → {told['rounds']:,} rounds",
    "publish": lambda told: f"version {told['version']} published{_stays(told)}",
    "token": lambda told: f"new token of who may {told['role']}",
    "report_key": lambda told: f"new report key {told['report_key']}",
    "propose": lambda told: f"terms proposed: {_changed(told)}",
    "withdraw": lambda told: f"terms withdrawn: {_changed(told)}",
    "in_force": lambda told: (
        f"terms in force that {told['proposed_by']} proposed, from round {told['round']} on: "
        f"{_changed(told)}"
    ),
    "items": _items_words,
    "backup": lambda told: (
        f"copied to {told['place']}" + ("" if told.get("keys", True) else ", without keys")
    ),
}


def spans(numbers: Iterable[int]) -> str:
    """Numbers in few words: 0-19, 30."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _places_missing(catalogue: bytes, added: Items) -> int:
    """How many of these items are new and find no place to spare."""
    known = [(item, title) for item, title in json.loads(catalogue)["items"]]
    new = {item for item, _ in added} - {item for item, _ in known}
    return max(0, len(new) - len(spare_places(known)))


def _table(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": row.at,
        "who": row.who,
        "how": row.how,
        "what": row.what,
        "about": json.loads(row.about),
        "outcome": json.loads(row.outcome),
    }


def _require_known(link: sa.Connection, numbers: Sequence[int]) -> None:
    if not numbers:
        raise UsageError("no device was named; nothing was done")
    possible = [number for number in numbers if 0 <= number <= MAX_NUMBER]
    strangers = set(numbers) - set(records.known_numbers(link, possible))
    if strangers:
        raise UsageError(f"device {min(strangers)} was never invited; look at the number again")


def _require_text(what: str, text: str, longest: int) -> None:
    if len(text) > longest or not text.isprintable():
        raise UsageError(f"{what} is one line of at most {longest} characters")
