"""The operator's console: what a server process knows of its federation, and what an operator does.

It shows counts, states and times, and of single devices their number, label, state and last
contact: nothing of what a device has sent. Whatever changes something is one of `Acts`, with the
name of who did it, and needs the role "act".
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import sottovoce
from sottovoce.errors import UsageError
from sottovoce.services.copies.copying import backup_place, make_backup
from sottovoce.services.kit.serving import Also, listen
from sottovoce.services.server import operator
from sottovoce.services.server.asking import PartyHealth
from sottovoce.services.server.process import RunningServer
from sottovoce.stores import amending, operating
from sottovoce.stores import server as records
from sottovoce.stores.acts import Actor, Acts, past_acts
from sottovoce.stores.keys import ReportKeys, Role, RoleTokens, show_keys
from sottovoce.stores.operating import Which
from sottovoce.stores.server_folder import DATABASE
from sottovoce.web import calls as take
from sottovoce.web.calls import Refusal, call
from sottovoce.web.entrance import Entrance, Guest, PageSession, same
from sottovoce.web.page import JSON, PAGED, PageApplication, as_json
from sottovoce.web.process import ASKS, HOST, LIMITS, NONCE_BYTES, SERVES, PageConnection
from sottovoce.wire.catalogue import items_of
from sottovoce.wire.invitations import MAX_NUMBER
from sottovoce.wire.plainly import settings as exact_settings
from sottovoce.wire.plainly import short

MOST_INVITED = 10_000
"""In one download."""
MOST_NAMED = 10_000
"""Devices in one act."""
_LINK_BYTES = 4096
_SESSIONS = 16
"""Of each role."""
_KEPT_SECONDS, _REST = 1.0, 10
"""How long several who look share one look into the database, and how many times as long as it
took."""

_key = partial(take.text, most=128)
_device = take.whole(0, MAX_NUMBER)
_devices = take.wholes(0, MAX_NUMBER, MOST_NAMED)
_ACTING: dict[str, Any] = {"by": "act", "key": _key}
CALLS = (
    call("GET state", "state"),
    call("GET rounds", "rounds", **PAGED),
    call("GET missing", "missing", round=take.number, attempt=take.number, **PAGED),
    call(
        "GET devices",
        "devices",
        query=(take.text, ""),
        which=(take.one_of("all", "active", "silent", "shut-out", "invited"), "all"),
        **PAGED,
    ),
    call("GET versions", "versions"),
    call("GET terms", "terms"),
    call("GET health", "health"),
    call("GET storage", "storage"),
    call("GET acts", "acts", **PAGED),
    call(
        "POST invite",
        "invite",
        count=take.whole(1, MOST_INVITED),
        server=take.text,
        label=(take.text, ""),
        **_ACTING,
    ),
    call("POST shut_out", "shut_out", numbers=_devices, **_ACTING),
    call("POST readmit", "readmit", numbers=_devices, **_ACTING),
    call("POST label", "label", number=_device, text=take.text, **_ACTING),
    call("POST pause", "pause", why=(take.text, ""), **_ACTING),
    call("POST go_on", "go_on", **_ACTING),
    call("POST target", "target", rounds=take.whole(1, 2**31 - 1), **_ACTING),
    call(
        "POST publish",
        "publish",
        version=take.whole(0, 2**31 - 1),
        seen=take.or_none(take.whole(0, 2**31 - 1)),
        **_ACTING,
    ),
    call("POST rotate", "rotate", what=take.one_of("act", "look", "report"), **_ACTING),
    call("POST backup", "backup", place=take.text, **_ACTING),
    call("POST propose", "propose", items=partial(take.text, most=1 << 20), **_ACTING),
    call("POST withdraw", "withdraw", **_ACTING),
)


@dataclass(frozen=True, slots=True)
class ConsoleViews:
    """What several who look at one server share."""

    server: RunningServer
    health: PartyHealth
    start: str
    """Another one each time the server starts."""
    kept: _Kept

    @classmethod
    def of(cls, server: RunningServer) -> ConsoleViews:
        return cls(server, PartyHealth(), secrets.token_hex(8), _Kept())

    def status(self) -> Mapping[str, Any]:
        return self.kept.get(self.server.stands)


class _Kept:
    """Something that is worked out anew after a while, and once for all who ask."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._until = 0.0
        self._found: Mapping[str, Any] = {}

    def get(self, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        with self._turn:
            begun = time.monotonic()
            if begun >= self._until:
                self._found = make()
                now = time.monotonic()
                self._until = now + max(_KEPT_SECONDS, _REST * (now - begun))
            return self._found

    def forget(self) -> None:
        self._until = 0.0


class Console:
    """The console of one session: every call of the page."""

    def __init__(self, views: ConsoleViews, session: PageSession) -> None:
        self._views, self._server, self._session = views, views.server, session

    # --- views ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        found = dict(self._views.status())
        past = found.pop("rounds")
        search = found.pop("search")
        for name in ("shut_out_why", "batches", "versions"):
            found.pop(name, None)
        guest = self._session.guest
        return {
            **found,
            "federation": self._server.folder().plan.terms.federation,
            "shut_out": len(found["shut_out"]),
            "search": {
                "on": bool(search["on"]),
                "suspects": [one["number"] for one in search["suspects"]],
            },
            "spends": self._server.folder().plan.terms.contributes,
            "last": _line(past[-1]) if past else None,
            "now": records.moment(),
            "start": self._views.start,
            "release": sottovoce.__version__,
            "session": {
                "id": hashlib.sha256(self._session.token.encode()).hexdigest()[:16],
                "name": guest.name,
                "role": guest.role,
            },
            "url": (self._server.folder().running() or {}).get("url", ""),
        }

    def rounds(self, offset: int, limit: int) -> dict[str, Any]:
        """Attempts that are over, newest first."""
        with self._server.database.reading() as link:
            total, lines = operating.round_lines(link, offset, limit)
        return {"total": total, "rows": lines}

    def missing(self, round: int, attempt: int, offset: int, limit: int) -> dict[str, Any]:
        """Who was asked in a round that is over and did not report."""
        with self._server.database.reading() as link:
            found = operating.missing_in(link, round, attempt)
        if found is None:
            raise UsageError(f"round {round}, attempt {attempt}, is not over, or was never there")
        numbers = found[offset : offset + limit].tolist()
        return {"total": len(found), "rows": numbers}

    def devices(self, query: str, which: Which, offset: int, limit: int) -> dict[str, Any]:
        return operator.devices(self._server.database, offset, limit, query, which)

    def versions(self) -> dict[str, Any]:
        found = self._views.status()
        return {name: found[name] for name in ("published", "pinned", "versions")}

    def terms(self) -> dict[str, Any]:
        """Those in force, those before, and what waits."""
        terms = self._server.folder().plan.terms
        with self._server.database.reading() as link:
            past, waits = amending.history(link), amending.proposed(link)
        lines = ((name, short(value)) for name, value in exact_settings(terms).items())
        return {
            "federation": terms.federation,
            "digest": terms.digest(),
            "settings": [{"setting": name, "value": str(value)} for name, value in lines],
            "history": past[::-1],
            "amendment": None if waits is None else waits.to_table(),
        }

    def health(self) -> dict[str, Any]:
        folder = self._server.folder()
        certificates = [
            {
                "file": fact.file,
                "hosts": list(fact.hosts),
                "until": fact.not_after.isoformat(timespec="seconds"),
                "trouble": fact.trouble,
            }
            for fact in show_keys(folder.keys)
        ]
        return {
            "parties": self._views.health.look(folder.plan.terms),
            "certificates": certificates,
            "report_keys": ReportKeys(folder.keys).exists,
        }

    def storage(self) -> dict[str, Any]:
        folder, database = self._server.folder(), self._server.database
        if database.shared:
            with database.reading() as link:
                size = link.execute(sa.text("SELECT pg_database_size(current_database())")).scalar()
            kind = "PostgreSQL"
        else:
            files = (folder.path / f"{DATABASE}{end}" for end in ("", "-wal"))
            size, kind = sum(one.stat().st_size for one in files if one.exists()), "SQLite"
        disk = shutil.disk_usage(folder.path)
        return {"kind": kind, "database": int(size or 0), "free": disk.free, "disk": disk.total}

    def acts(self, offset: int, limit: int) -> dict[str, Any]:
        with self._server.database.reading() as link:
            total, rows = past_acts(link, offset, limit)
        return {"total": total, "rows": rows}

    # --- acts -------------------------------------------------------------------------------------

    def invite(self, count: int, server: str, label: str, key: str) -> tuple[str, Iterator[bytes]]:
        """The files, for one download: they are kept nowhere."""
        made = self._acts().invite(server, count, label=label, key=key)
        self._moved()
        files = {
            f"device-{one.number}.json": json.dumps(one.to_table(), indent=1).encode() + b"\n"
            for one in made
        }
        if len(files) == 1:
            ((name, content),) = files.items()
            return name, iter([content])
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as together:
            for name, content in files.items():
                together.writestr(name, content)
        numbers = [one.number for one in made]
        return f"devices-{min(numbers)}-{max(numbers)}.zip", iter([packed.getvalue()])

    def shut_out(self, numbers: list[int], key: str) -> dict[str, Any]:
        return self._done(self._acts().shut_out(numbers, key=key))

    def readmit(self, numbers: list[int], key: str) -> dict[str, Any]:
        return self._done(self._acts().readmit(numbers, key=key))

    def label(self, number: int, text: str, key: str) -> dict[str, Any]:
        return self._done(self._acts().label(number, text, key=key))

    def pause(self, why: str, key: str) -> dict[str, Any]:
        return self._done(self._acts().pause(why, key=key))

    def go_on(self, key: str) -> dict[str, Any]:
        return self._done(self._acts().go_on(key=key))

    def target(self, rounds: int, key: str) -> dict[str, Any]:
        return self._done(self._acts().raise_target(rounds, key=key))

    def publish(self, version: int, seen: int | None, key: str) -> dict[str, Any]:
        return self._done(self._acts().publish(version, seen=seen, key=key))

    def rotate(self, what: str, key: str) -> dict[str, Any]:
        if what == "report":
            return self._done(self._acts().rotate_report_key(key=key))
        return self._done(self._acts().rotate_token("act" if what == "act" else "look", key=key))

    def backup(self, place: str, key: str) -> dict[str, Any]:
        if not Path(place).is_absolute():
            raise UsageError(f"a backup needs a whole path on the server's machine, not {place!r}")
        folder = self._server.folder().path

        def copy() -> dict[str, Any]:
            try:
                found = make_backup(folder, Path(place))
            except OSError as error:
                why = error.strerror or error
                raise UsageError(f"nothing was copied to {place}: {why}") from None
            return {"files": found.files, "bytes": found.bytes}

        acts = self._acts()
        if not acts.known(key):
            backup_place(folder, Path(place))
        return self._done(acts.backup(place, copy, key=key))

    def propose(self, items: str, key: str) -> dict[str, Any]:
        """New items, as CSV."""
        try:
            rows = list(csv.DictReader(io.StringIO(items), strict=True))
        except csv.Error as error:
            raise UsageError(f"this is no CSV: {error}; nothing was done") from None
        added, categories = items_of(rows, "the table of items")
        return self._done(self._acts().add_items(added, categories, key=key))

    def withdraw(self, key: str) -> dict[str, Any]:
        return self._done(self._acts().withdraw(key=key))

    def _acts(self) -> Acts:
        actor = Actor.at_console(self._session.guest.name, self._session.user)
        return Acts(self._server.folder(), self._server.database, actor)

    def _done(self, outcome: dict[str, Any]) -> dict[str, Any]:
        self._moved()
        return outcome

    def _moved(self) -> None:
        self._views.kept.forget()
        self._server.moved()


def _line(past: Mapping[str, Any]) -> dict[str, Any]:
    """A round that is over, with the number of those who were missing."""
    return {**past, "missing": len(past["missing"])}


# --- who comes in ---------------------------------------------------------------------------------

_AGAIN = "open the console anew with `sottovoce console`"


class ConsoleApplication(PageApplication):
    """Answers browsers of operators, and `sottovoce console`, which asks for a link."""

    def __init__(
        self, views: ConsoleViews, tokens: RoleTokens, entrance: Entrance, port: int
    ) -> None:
        super().__init__(
            lambda session: Console(views, session),
            entrance,
            port,
            calls=CALLS,
            programs={"/link": self._link},
            start="console.html",
            language="en",
            log=views.server.log,
        )
        self._tokens = tokens
        self._nonce = secrets.token_hex(NONCE_BYTES)

    def seen_as(self, user: int | None) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            scope["user"] = user
            await self(scope, receive, send)

        return answer

    def no_session(self, document: bool, ended: bool) -> Refusal:
        why = (
            f"The token by which you came in was changed; {_AGAIN}."
            if ended
            else f"This page has no session here: it is over, or the server was started anew; "
            f"{_AGAIN}."
        )
        return Refusal(401, "trouble.other", why=why)

    def used_link(self) -> Refusal:
        why = f"This link was used, or is too old; {_AGAIN}."
        return Refusal(403, "trouble.other", why=why)

    def not_allowed(self) -> Refusal:
        why = "You may look, and not act; nothing was done."
        return Refusal(403, "trouble.other", why=why)

    async def _link(self, request: Request) -> Response:
        """A link for whoever proves to have the token of a role (`link.py`). Before that it is
        proved to them, and to whoever else asks, that this is the server."""
        try:
            if request.headers.get("origin") is not None:
                raise Refusal(403, "trouble.origin")
            asked = await self._body(request, _LINK_BYTES)
            role, theirs = asked.get("role"), asked.get("nonce")
            if role not in ("look", "act") or not _is_nonce(theirs):
                raise Refusal(400, "trouble.refused")
            if set(asked) == {"role", "nonce"}:
                told = {"nonce": self._nonce, "proof": self._proof(role, SERVES, theirs)}
                return Response(as_json(told), media_type=JSON)
            name, proof = asked.get("name"), asked.get("proof")
            if set(asked) != {"role", "nonce", "name", "proof"} or not (
                isinstance(name, str) and isinstance(proof, str)
            ):
                raise Refusal(400, "trouble.refused")
            # A session ends with the token by which it was asked for.
            mark = self._tokens.mark(role)
            if not same(proof, self._proof(role, ASKS, name, theirs)):
                raise _no_token()
            Actor.at_console(name, None)
        except Refusal as refusal:
            return self._trouble(request.scope, refusal)
        except UsageError as error:
            return self._trouble(request.scope, Refusal(400, "trouble.other", why=str(error)))
        guest = Guest(role, name, lambda: self._tokens.mark(role) == mark)
        return Response(as_json({"key": self._entrance.fresh_key(guest)}), media_type=JSON)

    def _proof(self, role: Role, what: str, *more: str) -> str:
        """For this port and since this start: of no use elsewhere or later."""
        found = self._tokens.proof(role, what, self._port, role, *more, self._nonce)
        if found is None:
            raise _no_token()
        return found


def _no_token() -> Refusal:
    why = "this needs the token of that role as it is in the server's folder now"
    return Refusal(401, "trouble.other", why=why)


def _is_nonce(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and bool(re.fullmatch(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}", given))


def console_of(port: int = 0) -> Callable[[RunningServer], Also]:
    """Makes the console of a server that starts, at this port of loopback or at a free one."""

    def make(server: RunningServer) -> Also:
        listener = listen(HOST, port)
        entrance = Entrance(most=_SESSIONS)

        def application() -> ConsoleApplication:
            views = ConsoleViews.of(server)
            return ConsoleApplication(views, server.tokens, entrance, listener.getsockname()[1])

        return Also("console", application, listener, LIMITS, PageConnection)

    return make
