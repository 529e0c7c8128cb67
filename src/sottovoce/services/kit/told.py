"""What helper and aggregators have in common as services: they tell the federation's server, and
nobody else, what it asks for. Each time there is a line in the log, and there are figures for
Prometheus. Neither names a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

from sottovoce.parties.helper import Answered
from sottovoce.services.kit.answers import Receive, Scope, Send, answer_json, bears
from sottovoce.services.kit.application import Hosting, HttpApplication, L
from sottovoce.services.kit.metrics import Figure, by, known
from sottovoce.stores.noted import ENVIRONMENT
from sottovoce.stores.sum_folder import Answers, KeptTerms
from sottovoce.wire.refusals import Refused


class CopyAlarm:
    """Writes to the log when a folder turns out to be set back or to be one of two copies, and when
    nobody could notice that."""

    def __init__(self, answers: Answers, log: Any) -> None:
        self._answers, self._log = answers, log
        self.set_back, self._unnoted = 0, ""
        if answers.lacks_note and log is not None:
            log.warning(
                "no note",
                round=answers.last.round,
                detail="this folder has told sums, of which nothing is noted on this machine: if "
                "it is a copy that is older than what was told, or another copy of it runs, nobody "
                "notices. If it was moved here by `sottovoce restore`, all is well",
            )
        self._look()

    def keep(self, answered: Answered) -> None:
        """Keep an answer before it is given (`Answers.keep`)."""
        try:
            self._answers.keep(answered)
        finally:
            self._look()

    def _look(self) -> None:
        answers, log = self._answers, self._log
        set_back, unnoted = answers.set_back > self.set_back, answers.unnoted != self._unnoted
        self.set_back, self._unnoted = answers.set_back, answers.unnoted
        if set_back and log is not None:
            log.error(
                "set back",
                round=answers.last.round,
                detail="this folder lacked what was told under its keys: it was set back to an "
                "older copy, or a second copy runs; it goes on from what was told",
            )
        if unnoted and answers.unnoted and log is not None:
            log.warning(
                "not noted",
                detail=f"{answers.unnoted}, where what is told is noted outside the folder; if the "
                f"folder is set back, nobody notices. Name another place with ${ENVIRONMENT}",
            )


class _Last(NamedTuple):
    devices: int
    seconds: float
    ended: float


class ToldSums:
    """One thread tells; any may look."""

    def __init__(self, what: str, log: Any = None, clock: Callable[[], float] = time.time) -> None:
        """`what` in one word, as "sum"."""
        self._what, self._log, self._clock = what, log, clock
        self._last: _Last | None = None
        self.times = 0

    def tell(self, event: str, *, round: int, devices: int, seconds: float, **facts: int) -> None:
        """Another one was told, of so many devices, after so many seconds of work."""
        self.times += 1
        self._last = _Last(devices, seconds, self._clock())
        if self._log is not None:
            rounded = float(f"{seconds:.3f}")
            self._log.info(event, round=round, **facts, devices=devices, seconds=rounded)

    def figures(self) -> Iterator[Figure]:
        """Return the figures of the last answer; no numbers before the first."""
        what, last = self._what, self._last
        devices, seconds, ended = (None, None, None) if last is None else last
        words = f"Devices in the last {what} that was told since the start."
        yield known(f"last_{what}_devices", words, devices)
        yield known(f"last_{what}_seconds", f"Seconds that the last {what} took.", seconds)
        words = f"When the last {what} was told, in seconds since 1970."
        yield known(f"last_{what}_end_timestamp_seconds", words, ended)


class Telling(Protocol):
    """The rules of a party over what is in its folder."""

    told: ToldSums
    alarm: CopyAlarm

    @property
    def kept(self) -> KeptTerms[Any, Any]: ...

    @property
    def round(self) -> int:
        """The last round of which something was told."""

    def require_ready(self) -> None:
        """Raise if what was told last cannot be read, without which nothing is told."""


class TellingApplication(HttpApplication[L]):
    """The HTTP interface of a party that the federation's server alone may ask."""

    logs_refusals = True
    tells: ClassVar[tuple[str, str, str]]
    """What is told: in a sentence, as the name of a figure, and in words for many."""

    def __init__(self, hosting: Hosting[L], telling: Telling, server: str, waiting: int) -> None:
        """`server` is the token of the federation's server, of whose questions so many wait."""
        super().__init__(hosting)
        self._telling, self._server_token = telling, server
        # One at a time: what was told last decides what may be told next.
        self._questions = self._executor(waiting)

    async def _asked(self, scope: Scope, receive: Receive, longest: int) -> bytes:
        """Return what the server asks. Raise if somebody else does."""
        if not bears(scope, self._server_token):
            raise Refused("unknown_server", "only the server of the federation may ask for this")
        return await self._body(scope, receive, longest)

    async def _terms(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The names of the terms that are kept here: the server asks before it goes by others."""
        await self._asked(scope, receive, 0)
        names = await self._questions(self._telling.kept.names)
        await answer_json(send, {"terms": [name.hex() for name in names]})

    def require_ready(self) -> None:
        super().require_ready()
        self._telling.require_ready()

    def figures(self) -> Iterator[Figure]:
        telling, (one, many, words) = self._telling, self.tells
        yield Figure("round", f"Last round of which {one} was told.", telling.round)
        yield Figure(many, f"{words} told.", telling.told.times, counts=True)
        yield from telling.told.figures()
        words = "How often the folder was found to be set back to a copy."
        yield Figure("set_back", words, telling.alarm.set_back, counts=True)
        with self._tally.settled() as counts:
            refused = dict(sorted(counts.items()))
        yield by("reason", "refused", "Questions refused, by reason.", refused)
