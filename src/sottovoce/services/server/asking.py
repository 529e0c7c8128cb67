"""Whether those who keep terms of their own keep proposed ones: the helper of a secure sum, the
aggregators of a checked one, shufflers. Until all of them do, nobody is asked to go by them, since
what was sent under them would be refused. Also whether those parties answer at all, asked while
an operator wants to know."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2

from sottovoce.engines.client import Answer, Client
from sottovoce.engines.helper_client import TERMS, Ask
from sottovoce.errors import KeyTrouble, SottovoceError
from sottovoce.stores.amending import Waits
from sottovoce.stores.keys import device_context
from sottovoce.wire.shuffled import terms_name
from sottovoce.wire.terms import Terms


def not_kept(terms: Terms, asks: Mapping[str, Ask]) -> Waits | None:
    """The first of these that does not keep these terms; None where all do."""
    name = terms_name(terms).hex()
    for party, ask in asks.items():
        command = party.split()[0]
        do = (
            "have its operator agree: give her the file of `sottovoce serve introduce DIR`, for "
            f"`sottovoce serve {command} DIR --introduction FILE`"
        )
        try:
            answer = ask(b"", TERMS)
        except SottovoceError as error:
            why = f"the {party} cannot be asked whether it keeps the new terms: {error}"
            return Waits(party, why, "see whether it runs and can be reached from the server")
        if answer.status != 200 or name not in _named(answer):
            return Waits(party, f"the {party} does not keep the new terms yet", do)
    return None


def not_followed(terms: Terms) -> Waits | None:
    """The same of the shufflers of these terms."""
    link = terms.link.mixing
    if link is None:
        return None
    hops = [(link.url, link.authority), *((hop.url, hop.authority) for hop in link.chain)]
    for number, (url, authority) in enumerate(hops, 1):
        who = f"shuffler number {number}" if len(hops) > 1 else "the shuffler"
        try:
            answer = asyncio.run(_ask(url, authority))
        except SottovoceError as error:
            why = f"{who} cannot be asked whether it follows the new terms: {error}"
            return Waits("shuffler", why, "see whether it runs and can be reached from the server")
        if answer.status != 200 or terms_name(terms).hex() not in _named(answer):
            return Waits(
                "shuffler",
                f"{who} does not follow the new terms yet",
                "have its operator agree: give her the file of `sottovoce serve terms DIR --out "
                "FILE`, for `sottovoce serve shuffler DIR --terms FILE`",
            )
    return None


async def _ask(url: str, authority: str) -> Answer:
    client = Client(url, authority, plaintext=not authority)
    try:
        return await client.get("/v1/agreed")
    finally:
        await client.rest()


def _named(answer: Answer) -> list[str]:
    """The terms that somebody keeps, by name."""
    try:
        found = answer.table().get("terms")
    except SottovoceError:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


# --- whether they answer --------------------------------------------------------------------------


_SECONDS = 2.0
_FRESH = 10.0


@dataclass(frozen=True, slots=True)
class Party:
    """One of those whom the terms name."""

    name: str
    url: str
    authority: str


def parties(terms: Terms) -> Iterator[Party]:
    """All besides the server, in the order in which the terms name them."""
    link = terms.link
    if link.summing is not None and link.summing.url:
        yield Party("helper", link.summing.url, link.summing.authority)
    if link.mixing is not None and link.mixing.url:
        hops = [(link.mixing.url, link.mixing.authority)]
        hops += [(hop.url, hop.authority) for hop in link.mixing.chain]
        for number, (url, authority) in enumerate(hops, 1):
            yield Party("shuffler" if len(hops) == 1 else f"shuffler {number}", url, authority)
    if link.checking is not None:
        pairs = zip(link.checking.urls, link.checking.authorities, strict=False)
        for number, (url, authority) in enumerate(pairs, 1):
            yield Party(f"aggregator {number}", url, authority)


class PartyHealth:
    """What was last heard of each party. Nobody waits for an answer: whoever looks has them asked,
    where that was a while ago, and sees what is known by now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self._asked = -_FRESH
        self._asking = False
        self._known: dict[Party, dict[str, Any]] = {}

    def look(self, terms: Terms) -> list[dict[str, Any]]:
        """Each with `answers` (None: not known yet), what was said and when it was asked."""
        wanted = list(parties(terms))
        with self._turn:
            now = self._clock()
            known = dict(self._known)
            due = now - self._asked >= _FRESH or any(party not in known for party in wanted)
            if wanted and due and not self._asking:
                self._asking, self._asked = True, now
                threading.Thread(target=self._ask, args=[wanted], daemon=True).start()
        unknown = {"answers": None, "what": "is being asked", "at": None, "milliseconds": None}
        return [
            {"party": party.name, "url": party.url, **known.get(party, unknown)} for party in wanted
        ]

    def _ask(self, wanted: list[Party]) -> None:
        try:
            with ThreadPoolExecutor(len(wanted)) as several:
                found = dict(zip(wanted, several.map(_health, wanted), strict=True))
            with self._turn:
                self._known = found
        finally:
            self._asking = False


def _health(party: Party) -> dict[str, Any]:
    begun, answers = time.monotonic(), False
    try:
        trusted = device_context(party.authority) if party.url.startswith("https://") else False
        with httpx2.Client(verify=trusted, timeout=_SECONDS, trust_env=False) as http:
            answer = http.get(f"{party.url.rstrip('/')}/ready")
        answers = answer.status_code == 200
        what = "answers" if answers else f"answers with status {answer.status_code}"
        if answer.status_code == 503:
            what = "answers, and cannot do its work now"
    except KeyTrouble:
        what = "has no authority in the terms by which it could be known"
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        what = f"does not answer: {str(error).splitlines()[0] if str(error) else 'no answer'}"
    spent = round(1000 * (time.monotonic() - begun))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"answers": answers, "what": what, "at": at, "milliseconds": spent}
