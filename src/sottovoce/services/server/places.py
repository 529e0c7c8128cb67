"""Devices that come without an invitation, where the operator has opened places: they are given a
challenge, and a number for their key and the work that they show.

Challenges cost no memory, and what is wrong with an answer is found by a hash or two before the
database is asked. Of networks only counts are known (`parties.places.Arrivals`): each process has
its own, and nobody else is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sottovoce.parties.places import Arrivals, PlaceRules
from sottovoce.services.kit.answers import Receive, Scope, Send, answer_json
from sottovoce.services.kit.application import BoundedExecutor
from sottovoce.services.kit.connections import network_of, networks
from sottovoce.services.kit.questions import Challenges
from sottovoce.stores import operating
from sottovoce.stores import places as stored
from sottovoce.stores import server as records
from sottovoce.stores.database import Database
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.invitations import PlaceRequest
from sottovoce.wire.refusals import SHUT_OUT_BY_OPERATOR, Refused, read_or_refuse
from sottovoce.wire.signing import is_weak

SECONDS = 600
"""Seconds in which a device has to work and to answer: a slow one may need minutes in a rush."""
_WAITING = 64
"""Devices that wait for the database."""
_FRESH = 1.0
"""So long a process goes by what it knows of the rules."""


class _Known(NamedTuple):
    rules: PlaceRules
    full: bool
    challenges: Challenges


class Places:
    def __init__(
        self,
        federation: str,
        database: Database,
        behind: Sequence[str] = (),
        forwarded: str = "",
        *,
        arrivals: Arrivals | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`behind` are reverse proxies, and `forwarded` is the header in which they say for whom
        they ask. `clock` is the one that all processes of a federation have in common."""
        self._federation, self._database, self._clock = federation, database, clock
        self._behind, self._forwarded = networks(behind), forwarded.lower().encode()
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self._executor = BoundedExecutor("the server", _WAITING)
        self._known: tuple[float, _Known | None] = -_FRESH, None
        self._looking: asyncio.Future[_Known | None] | None = None
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle = self._loop.call_soon(self._forget)

    def close(self) -> None:
        self._next.cancel()
        self._executor.close()

    async def ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `GET /v1/challenge`. Whoever could get no place is told so before she works."""
        known = await self._open()
        self._require_turn(self._network(scope), known.rules)
        bits = known.rules.bits_after(self._arrivals.lately)
        content = {
            "protocol": PROTOCOL,
            "federation": self._federation,
            "challenge": known.challenges.new(bytes([bits])).hex(),
            "bits": bits,
            "seconds": SECONDS,
        }
        await answer_json(send, content, (b"cache-control", b"no-store"))

    async def take(self, scope: Scope, table: dict[str, Any]) -> tuple[int, bytes]:
        """Number and key of a device that comes with an answered challenge. What costs least comes
        first. The same answer again has the same number: the first one can have been lost."""
        request = read_or_refuse(PlaceRequest.from_table, table)
        if is_weak(request.public_key):
            raise Refused("malformed", "a public key has 32 bytes and is one device's alone")
        known = await self._open(full=True)
        bits = known.challenges.opened(request.challenge)[0]
        if not request.is_worked(self._federation, bits):
            raise Refused("bad_work", f"the work has not the {bits} zero bits that were asked for")
        network, key = self._network(scope), request.public_key
        before = await self._executor(lambda: self._checked(request))
        if before is not None:
            return before, key
        self._require_turn(network, known.rules)
        self._arrivals.came(network)
        try:
            return await self._executor(lambda: self._give(key)), key
        except BaseException:
            self._arrivals.went(network)
            raise

    def _require_turn(self, network: str, rules: PlaceRules) -> None:
        wait = self._arrivals.wait(network, rules)
        if wait:
            why = "as many devices of your network as may have come lately; come back later"
            raise Refused("too_often", why, retry_seconds=wait)

    def _network(self, scope: Scope) -> str:
        return network_of(scope, self._forwarded, self._behind)

    # --- what the database knows ------------------------------------------------------------------

    def _checked(self, request: PlaceRequest) -> int | None:
        """The number that this key has already. Raises where the key is not its sender's, or was
        shut out."""
        if not request.is_proven(self._federation):
            raise Refused("bad_signature", "the enrolment was not signed with the key it brings")
        with self._database.reading() as link:
            number = records.number_of_key(link, request.public_key)
            self._require_welcome(link, number)
        return number

    def _give(self, key: bytes) -> int:
        with self._database.writing() as link:
            self._database.take_turn(link)
            # As they are now: places may have been closed, or taken, while she worked.
            rules = stored.place_rules(link)
            number = stored.give_place(link, key, 0 if rules is None else rules.places)
            if number is None:
                raise _no_place(closed=rules is None or not rules.places)
            self._require_welcome(link, number)
            operating.enrolled(link, number)
            records.seen(link, [number])
        return number

    def _require_welcome(self, link: Any, number: int | None) -> None:
        if number is not None and records.shut_out_among(link, [number]):
            why = records.why_shut(link, [number]).get(number)
            raise Refused("shut_out", SHUT_OUT_BY_OPERATOR if why is None else why)

    async def _open(self, *, full: bool = False) -> _Known:
        """The rules; raises where places are not open, or all taken, unless who has one asks. All
        who ask at once look into the database together, once in a while."""
        if self._loop.time() - self._known[0] >= _FRESH:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.ensure_future(self._executor(self._look))
            known = await asyncio.shield(self._looking)
            self._known = self._loop.time(), known
        known = self._known[1]
        if known is None or (known.full and not full):
            raise _no_place(closed=known is None)
        return known

    def _look(self) -> _Known | None:
        with self._database.reading() as link:
            rules = stored.place_rules(link)
            if rules is None or not rules.places:
                return None
            full = stored.count_places(link) >= rules.places
        before = self._known[1]
        if before is not None:
            return _Known(rules, full, before.challenges)
        with self._database.writing() as link:
            self._database.take_turn(link)
            key = stored.challenge_key(link)
        return _Known(rules, full, Challenges(clock=self._clock, key=key, seconds=SECONDS))

    def _forget(self) -> None:
        self._next = self._loop.call_later(self._arrivals.forget(), self._forget)


def _no_place(*, closed: bool) -> Refused:
    if closed:
        return Refused("no_place", "nobody comes in here without an invitation; ask for one")
    return Refused("no_place", "all places for devices without an invitation are taken")
