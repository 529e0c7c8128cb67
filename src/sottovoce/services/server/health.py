"""Whether the other parties of a federation answer, asked while somebody wants to know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2

from sottovoce.errors import KeyTrouble
from sottovoce.stores.keys import device_context
from sottovoce.wire.terms import Terms

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
