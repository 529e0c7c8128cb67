"""What an operator asks a running server, with the operator's token."""

from __future__ import annotations

import contextlib
import ssl
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from sottovoce.core.messages import ModelView
from sottovoce.engines.client import loopback
from sottovoce.errors import KeyTrouble, ServiceError, Unreachable, UsageError
from sottovoce.parties.server import quality_trouble
from sottovoce.services.server.reasons import Situation, reason
from sottovoce.stores import amending, batches, operating, sums, versions
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.stores.keys import CA_CERTIFICATE, OPERATOR_TOKEN, device_context
from sottovoce.stores.places import places_table
from sottovoce.stores.server_folder import ServerFolder
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import decode_model

_SECONDS = 30.0


@dataclass(slots=True, repr=False)
class Operator:
    """A connection that is kept open; `close` it."""

    url: str
    _http: httpx2.Client

    @classmethod
    def of(cls, folder: ServerFolder, url: str, seconds: float = _SECONDS) -> Operator:
        """With the keys of the server's own folder."""
        ca, token = folder.keys / CA_CERTIFICATE, folder.keys / OPERATOR_TOKEN
        return cls.at(url, None if url.startswith("http://") else ca, token, seconds)

    @classmethod
    def at(cls, url: str, ca: Path | None, token: Path, seconds: float = _SECONDS) -> Operator:
        """With the authority's certificate and the operator's token, as files. Plain HTTP, on this
        machine only, needs no certificate."""
        plaintext = url.startswith("http://")
        if plaintext and not loopback(url):
            raise UsageError(f"{url} is not encrypted, and the token is a secret; use https://")
        if ca is None and not plaintext:
            raise UsageError(f"{url} needs the certificate of the federation's authority, ca.crt")
        secret = _read(token)
        if token.stat().st_mode & 0o077:
            raise KeyTrouble(f"{token} may be read by others; run `chmod 600 {token}`")
        trusted = False if ca is None else _context(ca)
        http = httpx2.Client(
            base_url=url,
            verify=trusted,
            headers={"authorization": f"Bearer {secret.strip()}"},
            timeout=seconds,
            trust_env=False,
        )
        return cls(url, http)

    def close(self) -> None:
        self._http.close()

    def status(self) -> Mapping[str, Any]:
        try:
            return dict(self._ask("GET", "/v1/operator/status").json())
        except (ValueError, TypeError):
            raise ServiceError(f"what answers at {self.url} is no server of Sottovoce") from None

    def raise_target(self, rounds: int) -> None:
        self._ask("POST", "/v1/operator/target", {"rounds": rounds})

    def model(self, round: int, terms: Terms) -> ModelView:
        """The published model, as every device can get it."""
        content = self._ask("GET", f"/v1/model/{round}").content
        return decode_model(content, n_items=terms.n_rows, width=terms.width)

    def _ask(self, method: str, path: str, content: Any = None) -> httpx2.Response:
        try:
            answer = self._http.request(
                method, path, json=content, headers={"accept-encoding": "identity"}
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(f"the server at {self.url} does not answer: {error}") from None
        if answer.status_code == 401:
            raise KeyTrouble(f"the token is not that of the operator of {self.url}")
        if answer.status_code == 403:
            raise KeyTrouble(f"the token is for looking at {self.url} only")
        if answer.is_error:
            raise ServiceError(
                f"the server at {self.url} refused {path} with status {answer.status_code}"
            )
        return answer


def _context(ca: Path) -> ssl.SSLContext:
    authority = _read(ca)
    try:
        return device_context(authority)
    except KeyTrouble:
        raise KeyTrouble(f"{ca} is no certificate; take the federation's ca.crt") from None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise KeyTrouble(f"{path} cannot be read: {error.strerror}") from None


LAST_ROUNDS = 100


def status(
    database: Database,
    tally: RefusalCounts | None = None,
    last: int = LAST_ROUNDS,
    plan: Plan | None = None,
    *,
    running: bool = True,
    trouble: Mapping[str, str] | None = None,
    start: str = "sottovoce serve server DIR",
) -> dict[str, Any]:
    """Where the federation stands, with its last rounds; `tally` has what a running server has
    counted and not stored yet, `trouble` what is wrong with it. With the plan it says in full why
    no round moves on; also where no server is `running`, and how to `start` one."""
    with contextlib.ExitStack() as stack:
        new = {} if tally is None else stack.enter_context(tally.settled())
        link = stack.enter_context(database.reading())
        now = records.position(link)
        shut_out = records.shut_numbers(link)
        why = records.why_shut(link, shut_out)
        search = searches.found(link)
        refused = Counter(records.refused(link)) + Counter(new)
        past = records.past_rounds(link, last)
        handed_over = batches.heads(link, now.round)
        offered, pinned = versions.all_of(link), versions.pinned(link)
        waits = records.fact(link, "waits") or ""
        since = min((one.round for one in past), default=now.round)
        out, times = sums.out_since(link, since), operating.times_since(link, since)
        places = places_table(link)
        changed = amending.last_change(link)
        situation = Situation.read(link, plan, trouble=trouble, running=running, start=start)
    return {
        "round": now.round,
        "attempt": now.attempt,
        "state": now.state,
        "target": now.target,
        "reported": now.reported,
        "goal": now.goal,
        "asked": now.asked,
        "enrolled": situation.enrolled,
        "active": situation.active,
        "shut_out": shut_out,
        "shut_out_why": {str(number): words for number, words in sorted(why.items())},
        "objections": dict(situation.objections),
        "search": searches.to_table(search),
        "batches": [
            {"tier": b.tier, "devices": b.devices, "parts": b.parts, "stored": b.stored}
            for b in handed_over
        ],
        "refused": dict(sorted(refused.items())),
        "waits": waits,
        "rounds": [
            one.to_table()
            | dict(zip(("opened", "ended"), times.get(where, (None, None)), strict=True))
            | ({"left_out": out[where]} if where in out else {})
            for one in past
            for where in [(one.round, one.attempt)]
        ],
        "opened": situation.opened if now.state in ("open", "closing") else None,
        "paused": situation.paused,
        "places": places,
        "running": running,
        **({} if running else {"start": start}),
        "terms": now.terms,
        "changed": changed if changed is not None and changed["round"] == now.round else None,
        "amendment": situation.amendment,
        "reason": reason(situation),
        "published": now.published,
        "pinned": pinned,
        "versions": [version.to_table(now.published) for version in offered],
        "quality_trouble": quality_trouble(now.published, offered),
    }


def devices(
    database: Database, offset: int, limit: int, query: str = "", which: operating.Which = "all"
) -> dict[str, Any]:
    """The devices of a federation, some at a time (`operating.list_devices`)."""
    with database.reading() as link:
        changed = amending.last_change(link)
        at = None if changed is None else changed["at"]
        return operating.list_devices(link, offset, limit, query, which, changed=at)
