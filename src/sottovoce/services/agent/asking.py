"""The agent of a device whose user may want to be asked each time.

If she wants to, the agent works out what would leave, logs that it waits for her answer, and sends
that very message after she has said yes, on her page or with `sottovoce device preview`. When the
round moves on, it asks again. If she does not want to be asked, it sends by itself.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sottovoce.errors import ConsentError
from sottovoce.services.agent.agent import ShutOut
from sottovoce.services.agent.by_hand import ByHand, Shown
from sottovoce.services.agent.loop import Sleep
from sottovoce.stores import word
from sottovoce.stores.device import CohortStore
from sottovoce.wire.descriptor import Descriptor

_WATCH_SECONDS = 0.5
"""Seconds between two looks for her answer."""


class AskingAgent(ByHand):
    """An agent that sends by itself or, if its user wants to be asked, after her yes."""

    def __init__(self, store: CohortStore, **options: Any) -> None:
        super().__init__(store, **options)
        self._asked_about: Shown | None = None
        """What waits for her answer."""
        self._sleep, self._plain_sleep = self._watch, self._sleep

    async def visit(self) -> Descriptor:
        """Visit the server once, and send what she has said yes to."""
        self._asked_about = None
        if not await self._aside(lambda: word.asks_first(self.store)):
            return await super().visit()
        self.tally.visits += 1
        shown, now, terms = await self._show()
        if shown.why == "not agreed":
            await self._aside(self.hosted.require_agreed)
        if now is None or terms is None:
            raise ConsentError("the store was stopped, or its terms changed, meanwhile")
        if not shown.messages:
            if shown.detail:
                self._say_once("nothing sent", now.key, why=shown.detail)
            return now
        # She said yes to bytes that have left before: they may be sent again.
        again = shown.report is not None and shown.report.state == "left"
        if again or shown.words <= await self._aside(lambda: word.allowed(self.store)):
            with contextlib.suppress(ShutOut):
                await self._press(shown, now, terms)
        else:
            self._asked_about = shown
            self._say_once("waits for your word", now.key, why=self._how(shown))
        return now

    def _how(self, shown: Shown) -> str:
        what = "a report" if shown.report is not None else f"a message ({shown.messages[-1].what})"
        return (
            f"{what} would leave, and nothing does before its user says yes; see `sottovoce device "
            f"preview {self.path} --send` or `sottovoce device page {self.path}`"
        )

    async def _watch(self, seconds: float) -> None:
        """Sleep for so many seconds, or until she has answered."""
        sleep: Sleep = self._plain_sleep
        while self._asked_about is not None and seconds > _WATCH_SECONDS:
            await sleep(_WATCH_SECONDS)
            seconds -= _WATCH_SECONDS
            if await self._aside(self._has_answered):
                return
        await sleep(seconds)

    def _has_answered(self) -> bool:
        waits, store = self._asked_about, self.store
        return waits is None or (
            not word.asks_first(store)
            or waits.words <= word.allowed(store)
            or word.declined(store)[0] == waits.name
        )
