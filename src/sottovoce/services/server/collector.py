"""Where the proxy hands over its batches: what is looked at before a part is stored, and when it is
acknowledged."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from sottovoce.privacy.reports import KReports
from sottovoce.services.kit.answers import (
    Receive,
    Scope,
    Send,
    answer,
    content_length,
    discard,
    header,
    read_body,
)
from sottovoce.services.kit.executor import Aside
from sottovoce.services.server import shuffled_rounds as batches
from sottovoce.services.server.state import Board
from sottovoce.stores import server as roster
from sottovoce.stores.database import Database
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.sealing import key_id
from sottovoce.wire.shuffled import LONGEST_PART, BatchPart, decode_part

_AT_ONCE = 4
"""Parts that are received or wait for the disk; more are told to come back."""


class Collector:
    """One server process's. Parts are stored one after the other."""

    def __init__(
        self,
        release: KReports,
        token: str,
        database: Database,
        board: Board,
        *,
        body_seconds: float,
        moved: Callable[[], None],
    ) -> None:
        """`token` is the proxy's; `moved` is called when a batch is complete."""
        self._release, self._token = release, token
        self._database, self._board = database, board
        self._body_seconds, self._moved = body_seconds, moved
        self._aside = Aside(_AT_ONCE, threads=1)
        self._receiving = 0

    def close(self) -> None:
        self._aside.close()

    async def take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/batches: acknowledged when the part is on the disk."""
        said = header(scope, b"authorization")
        if not hmac.compare_digest(said, f"Bearer {self._token}".encode()):
            if content_length(scope):
                await discard(receive)
            raise Refused("unknown_proxy", "this needs the token of the federation's proxy")
        if self._receiving >= _AT_ONCE:
            raise Refused("overload", "the server has too much to do; come back later")
        self._receiving += 1
        try:
            payload = await read_body(scope, receive, LONGEST_PART, self._body_seconds)
            part = read_or_refuse(decode_part, payload)
            del payload
            await self._aside(lambda: self._store(part))
        finally:
            self._receiving -= 1
        await answer(send, 204, [], b"")

    def _store(self, part: BatchPart) -> None:
        self._check(part)
        with self._database.writing() as link:
            if part.devices > roster.count_keys(link):
                raise Refused("malformed", "a batch of more devices than have enrolled")
            complete = batches.accept(link, part, self._release.max_reports)
        if complete:
            self._moved()

    def _check(self, part: BatchPart) -> None:
        """Raises where no honest proxy of this federation would send the part now."""
        tiers = self._release.tiers
        if part.tier >= len(tiers):
            raise Refused("malformed", f"the terms have {len(tiers)} tiers, numbered from 0")
        if part.devices < tiers[part.tier].min_devices:
            raise Refused("too_few", "a batch of fewer devices than the terms promise")
        most = part.devices * self._release.max_reports
        if part.parts > most:
            raise Refused("malformed", "a batch has more parts than reports")
        now = self._board.now.position
        if part.round > now.round:  # another process may have moved on, and told the proxy
            now = self._board.refresh().position
        if part.round > now.round:
            raise Refused("malformed", f"round {part.round} has not been opened")
        if part.round == now.round and now.report_key and part.key != key_id(now.report_key):
            raise Refused("wrong_key", "the reports are sealed to another key than the round's")
