"""Residents who are made up, as one process: they enrol and contribute over HTTPS with signed
messages, as agents do, for demos and tests. A person's device is `agent`, never this.

They share a few connections. They go on where they were if they are killed (`ResidentsDoor`); what
had left then and was not answered is not sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.base import Contributing
from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.messages import ModelView
from sottovoce.engines.client import Answer, Busy, Client, good, loopback
from sottovoce.errors import MessageError, SottovoceError, Unreachable, UsageError
from sottovoce.parties.leaving import Leaving, body_of
from sottovoce.services.agent.agent import enrolment
from sottovoce.services.agent.loop import Log
from sottovoce.services.kit.pacing import Draw, Pace, from_system
from sottovoce.stores.keys import replace_file
from sottovoce.stores.prepared import items_named
from sottovoce.stores.residents import ResidentsDoor, Secret
from sottovoce.wire.catalogue import catalogue_limit, categories_in, items_in
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.signing import DIGEST_HEADER, NONCE_BYTES, digest_of, seal
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import decode_model, full_size

T = TypeVar("T")
_CONNECTIONS = 24
_AT_ONCE = 250
_MADE_AT_ONCE = 64
_TRIES, _FIRST_WAIT = 8, 0.2
_HABITS = "habits.json"
Visits = Callable[[int], Interactions]
"""Where residents have been, by the period in which they are asked."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What residents of a demo do besides what they chose. Others have none."""

    hold_seconds: float = 0.0
    """How long they wait before they send in the last stage of a period, unless they are told to
    go on: a newcomer has so long to come in."""
    hold_from: int = 0
    """The first round in which they do."""
    first_share: float = 1.0
    """The share of their visits, the earliest, with which they begin."""
    more_share: float = 0.0
    """The share that each further period adds."""
    poll_seconds: float | None = None
    """How often they ask; as the server says if it is not given."""

    def __post_init__(self) -> None:
        config.require_number("hold_seconds", self.hold_seconds, 0.0, 1e9, above=False)
        config.require_whole("hold_from", self.hold_from, 0)
        config.require_number("first_share", self.first_share, 0.0, 1.0, above=False)
        config.require_number("more_share", self.more_share, 0.0, 1.0, above=False)
        if self.poll_seconds is not None:
            config.require_number("poll_seconds", self.poll_seconds, 0.01, 1e9, above=False)

    def write(self, folder: Path) -> None:
        """For `serve residents` in this folder."""
        replace_file(folder / _HABITS, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> Habits:
        """Those of a folder; without such a file, none."""
        place = folder / _HABITS
        if not place.exists():
            return cls()
        try:
            return config.build(cls, json.loads(place.read_bytes()), _HABITS)
        except (OSError, ValueError, RecursionError):
            raise UsageError(f"{place} does not say what residents do; remove it") from None

    def visits_of(self, history: Interactions) -> Visits:
        """The visits up to each period, of this whole history."""
        times = history.timestamps

        def visits(period: int) -> Interactions:
            share = self.first_share + self.more_share * period
            if share >= 1.0 or times is None:
                return history
            return history.select(times <= np.quantile(times, share))

        return visits


class Residents:
    """All of them, and their way to one server."""

    def __init__(
        self,
        door: ResidentsDoor,
        invitations: Sequence[Invitation],
        visits: Visits,
        *,
        log: Log,
        habits: Habits | None = None,
        go_on: Path | None = None,
        draw: Draw = from_system,
        secret: Secret = secrets.token_bytes,
    ) -> None:
        """Invitations are those of the door's users, in order. Who makes the file `go_on` tells
        those who wait to go on, once: they remove it."""
        self._door, self._invitations, self._visits = door, list(invitations), visits
        if [one.number for one in invitations] != door.users.tolist():
            raise UsageError("residents need an invitation each")
        first = self._invitations[0]
        if any((one.server, one.federation) != (first.server, first.federation)
               for one in invitations):  # fmt: skip
            raise UsageError("the invitations are to several federations")
        plain = first.server.startswith("http://")
        self._clients = [
            Client(first.server, first.ca, plaintext=plain) for _ in range(_CONNECTIONS)
        ]
        self._federation, self._log, self._secret = first.federation, log, secret
        self._habits = habits or Habits()
        self._pace = Pace(self._habits.poll_seconds, draw, near=loopback(first.server))
        self._terms = ""
        self._period = -1
        self._catalogue: list[tuple[str, str]] = []
        self._named: dict[str, NDArray[np.int32]] = {}
        self._done: tuple[int, int] | None = None
        self._since: tuple[tuple[int, int], float] | None = None
        self._go_on = go_on
        self.counted = 0

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    now = await self.visit()
                    wait = self._pace.after_success(now.poll_seconds)
                except SottovoceError as error:
                    wait = self._pace.after_failure(
                        error.retry_after if isinstance(error, Busy) else 0
                    )
                    wait = min(wait, 5.0)
                    self._log("failed", why=str(error), retry_seconds=round(wait, 1))
                await asyncio.sleep(wait)
        finally:
            await asyncio.gather(*(client.rest() for client in self._clients))

    async def visit(self) -> Descriptor:
        """Ask once, and do what there is to do."""
        now = await self._look()
        if now.terms != self._terms:
            await self._meet(now)
        await self._enrol()
        if now.state == "open" and now.key != self._done and not self._holds(now):
            await self._contribute(now)
        return now

    # --- what is published ------------------------------------------------------------------------

    async def _look(self) -> Descriptor:
        now = Descriptor.from_table(self._good(await self._client.get("/v1/round")).table())
        if now.federation != self._federation:
            raise MessageError("the server serves another federation than the invitations name")
        return now

    async def _meet(self, now: Descriptor) -> None:
        terms = Terms.from_table(self._good(await self._client.get("/v1/terms")).table())
        limit = catalogue_limit(terms.n_items)
        answer = await self._client.get("/v1/catalogue", limit=limit, packed=True)
        table = self._good(answer).table()
        self._catalogue = items_in(table, terms.n_items)
        self._named = items_named(self._catalogue, categories_in(table, terms.n_items))
        self._period = -1
        await asyncio.to_thread(self._move, terms, now.round)
        self._terms = terms.digest()
        self._log("agreed", items=terms.n_items)

    def _move(self, terms: Terms, round: int) -> None:
        """To the visits of the period that the round is of."""
        period = _period(terms, round)
        if period != self._period:
            items = [item for item, _ in self._catalogue]
            self._door.meet(terms, fitted(self._visits(period), items), self._named)
            self._period = period

    async def _view(self, now: Descriptor) -> ModelView:
        terms = self._door.terms
        limit = full_size(terms.n_rows, terms.width) + terms.n_rows + 1024
        answer = await self._client.download(f"/v1/model/{now.model}", limit)
        body = self._good(answer).body
        view = decode_model(body, n_items=terms.n_rows, width=terms.width, have=None)
        if view.round != now.model:
            raise MessageError("the server sent the model of another round")
        return view

    def _holds(self, now: Descriptor) -> bool:
        """Whether they wait before they send in this round."""
        habits, terms = self._habits, self._door.terms
        if not habits.hold_seconds or now.round < habits.hold_from or not _last(terms, now.round):
            return False
        time = asyncio.get_running_loop().time()
        if self._since is None or self._since[0] != now.key:
            self._since = now.key, time
            self._log("waiting", round=now.round, seconds=habits.hold_seconds)
        told = self._go_on is not None and self._go_on.exists()
        if told and self._go_on is not None:
            self._go_on.unlink(missing_ok=True)
        return not told and time < self._since[1] + habits.hold_seconds

    # --- what leaves ------------------------------------------------------------------------------

    async def _enrol(self) -> None:
        door = self._door
        rows = np.flatnonzero(door.takes_part & ~door.enrolled).tolist()
        for start in range(0, len(rows), _AT_ONCE):
            done: list[int] = []

            async def one(client: Client, row: int, done: list[int] = done) -> None:
                body = enrolment(door.key(row), self._invitations[row])
                leaving = door.contact(row, "enrolment", body)
                self._good(await client.post("/v1/enrol", leaving))
                done.append(row)

            try:
                await self._by_all(one, rows[start : start + _AT_ONCE])
            finally:
                await asyncio.to_thread(door.has_enrolled, done)
        if rows:
            self._log("enrolled", devices=len(rows))

    async def _contribute(self, now: Descriptor) -> None:
        """Of everybody who may, each her own message."""
        view = await self._view(now)
        await asyncio.to_thread(self._move, self._door.terms, now.round)
        rows = await asyncio.to_thread(self._door.willing, now.round)
        messages = self._door.reports(view, now.attempt, rows)
        refused: dict[str, int] = {}
        counted = self.counted

        async def one(client: Client, what: tuple[int, Leaving]) -> None:
            row, leaving = what
            sealed = leaving.wrapped(self._sealing(row, now))
            told = {DIGEST_HEADER: digest_of(body_of(sealed))}
            answer = await client.post("/v1/reports", sealed, headers=told)
            if 200 <= answer.status < 300 or (answer.status, answer.reason) == (409, "replay"):
                self.counted += 1
            else:
                reason = answer.reason or str(answer.status)
                refused[reason] = refused.get(reason, 0) + 1

        self._done = now.key
        made = asyncio.create_task(asyncio.to_thread(_some, messages))
        while ready := await made:
            made = asyncio.create_task(asyncio.to_thread(_some, messages))
            await self._by_all(one, ready)
        spent = self._door.spent
        self._log(
            "contributed", round=now.round, attempt=now.attempt, counted=self.counted - counted,
            refused=refused, most_epsilon=round(float(spent.max(initial=0.0)), 3),
        )  # fmt: skip

    def _sealing(self, row: int, now: Descriptor) -> Callable[[bytes], bytes]:
        """Puts a body into this resident's signed envelope."""
        about = {"number": int(self._door.users[row]), "round": now.round, "attempt": now.attempt}
        key, nonce = self._door.key(row), self._secret(NONCE_BYTES)
        return lambda body: seal(key, self._federation, "report", **about, nonce=nonce, body=body)

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def _client(self) -> Client:
        return self._clients[0]

    def _good(self, answer: Answer) -> Answer:
        return good(answer, "server", self._client.url)

    async def _by_all(
        self, work: Callable[[Client, T], Awaitable[None]], what: Sequence[T]
    ) -> None:
        """Over all connections, one thing at a time on each. Whoever is too busy is asked again."""
        waiting = list(reversed(what))

        async def over(client: Client) -> None:
            while waiting:
                one = waiting.pop()
                for attempt in range(_TRIES):
                    try:
                        await work(client, one)
                        break
                    except Unreachable as error:
                        if attempt + 1 == _TRIES:
                            raise
                        told = error.retry_after if isinstance(error, Busy) else 0.0
                        await asyncio.sleep(max(told, _FIRST_WAIT * 2.0**attempt))

        results = await asyncio.gather(
            *(over(client) for client in self._clients), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _some(messages: Iterator[tuple[int, Leaving]]) -> list[tuple[int, Leaving]]:
    return list(islice(messages, _MADE_AT_ONCE))


def _period(terms: Terms, round: int) -> int:
    """Which one this round is of; 0 where there are none."""
    return cast(Contributing, terms.build()).period(round) if terms.contributes else 0


def _last(terms: Terms, round: int) -> bool:
    """Whether a period ends with this round."""
    return _period(terms, round) != _period(terms, round + 1) or not terms.contributes


def fitted(visits: Interactions, catalogue: Sequence[str]) -> Interactions:
    """The same visits by the numbers that a catalogue gives to items; those that it does not know
    are left out."""
    places = {item: at for at, item in enumerate(catalogue)}
    names = visits.items_vocabulary()
    number = np.array([places.get(names.name(n), -1) for n in range(visits.n_items)], np.int64)
    mine = number[visits.items] >= 0
    return Interactions.from_pairs(
        visits.users[mine],
        number[visits.items[mine]],
        n_users=visits.n_users,
        n_items=len(catalogue),
        timestamps=None if visits.timestamps is None else visits.timestamps[mine],
        item_ids=Vocabulary(catalogue),
    )


# --- the process ----------------------------------------------------------------------------------


def serve_residents(residents: Residents) -> int:
    """Until SIGTERM or SIGINT; how many reports counted."""
    return asyncio.run(_serve(residents))


async def _serve(residents: Residents) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(residents.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return residents.counted
