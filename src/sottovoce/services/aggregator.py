"""An aggregator of a checked sum: four addresses for the server, and two for its operator.

What it tells follows from its own folder alone: the fewest devices and the noise are those of the
terms it keeps, whatever a question says. It keeps what devices have shared until a later round
begins, sealed as it came. The log has a line for each part of a sum that was told, which names no
device. Everything that it tells follows from what is on the disk, so that it says the same after a
crash.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.core.links import SHARED_RECORD_BYTES
from sottovoce.core.messages import CheckParts, SumPart
from sottovoce.core.recommender import default_threads
from sottovoce.core.shares import NUMBER_BYTES, Elements, Form, Pair
from sottovoce.errors import ConfigError, MessageError, ServiceError
from sottovoce.parties.aggregator import (
    Shares,
    agreed,
    at_once,
    coin_of,
    pair_of,
    said_of,
)
from sottovoce.parties.helper import check_groups, sum_name
from sottovoce.services.kit.answers import JSON, OCTETS, Receive, Scope, Send, answer
from sottovoce.services.kit.application import Handler, Hosting
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.serving import Parts, Service, Start
from sottovoce.services.kit.told import CopyAlarm, TellingApplication, ToldSums
from sottovoce.stores.aggregator_folder import (
    AggregatorFolder,
    AggregatorIntroduction,
    SharesFile,
    open_aggregator,
)
from sottovoce.stores.sum_folder import AgreedTerms, KeptTerms
from sottovoce.wire.frames import SHARES
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.shared import (
    LONGEST_QUESTION,
    About,
    SetQuestion,
    SharedRecord,
    decode_question,
    decode_shares,
    elements_of,
    encode_checks,
    encode_coin,
    encode_part,
    fits,
    is_signed,
    most_elements,
    open_secrets,
)
from sottovoce.wire.terms import Terms

PART_BYTES = 32 << 20
"""Bytes of submissions that travel together, unless one is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorLimits(Limits):
    waiting: ClassVar[int] = 2
    """Questions of the server that wait."""
    connections: int = 200
    per_address: int = 50
    body_seconds: float = 120.0
    write_seconds: float = 60.0


class Missing(MessageError):
    """Submissions that were never kept here; the server may send them again."""

    def __init__(self, which: list[int]) -> None:
        super().__init__(f"{len(which):,} submissions are not here")
        self.which = which


def longest_part(terms: Terms) -> int:
    """Bytes of submissions that are passed on together, at most."""
    one = SHARED_RECORD_BYTES + most_elements(terms) * NUMBER_BYTES
    return SHARES.size + max(PART_BYTES, one)


def shares_in(
    form: Form,
    number: int,
    key: X25519PrivateKey,
    bound: bytes,
    read: Callable[[int], Iterable[Sequence[tuple[SharedRecord, bytes | None]]]],
) -> Shares:
    """An aggregator's shares of submissions that were found to be good. `read` gets how many are
    wanted at a time. The server needs no more than records, since its shares follow from its
    secrets."""

    def some() -> Iterable[Pair]:
        for part in read(at_once(form)):
            secrets = [open_secrets(record, number, key, bound) for record, _ in part]
            if any(one is None for one in secrets):
                raise ServiceError("secrets do not open that did before; look at the keys")
            travelled: list[Elements | None] = [
                None if sent is None else elements_of(sent) for _, sent in part
            ]
            yield pair_of(form, number, [one for one in secrets if one is not None], travelled)

    return some


class OpeningRules:
    """What follows from terms that the aggregator keeps."""

    def __init__(self, folder: AggregatorFolder) -> None:
        self.terms, self.computes = folder.introduction.terms, folder.rules()
        self.longest = longest_part(self.terms)


_Using = AgreedTerms[AggregatorIntroduction, OpeningRules]


class Opening:
    """The rules of an aggregator over what is in its folder."""

    def __init__(
        self, folder: AggregatorFolder, shares: SharesFile, threads: int = 1, log: Any = None
    ) -> None:
        self._key, self._number = folder.seal_key(), folder.introduction.number
        self.kept = KeptTerms(folder, lambda one: OpeningRules(folder.under(one)))
        self._answers, self._shares, self._threads = folder.answers(), shares, threads
        self.alarm = CopyAlarm(self._answers, log)
        self.told = ToldSums("part", log)

    def __repr__(self) -> str:
        return f"<Opening for {self.kept.federation}, redacted>"

    def require_ready(self) -> None:
        """Raise if what was told last cannot be read, without which nothing is told."""
        self._answers.require_there()

    @property
    def longest(self) -> int:
        """Bytes of what is passed on together, at most."""
        return max(kept.rules.longest for kept in self.kept.known())

    @property
    def round(self) -> int:
        """The last one of which a part of a sum was told."""
        return self._answers.last.round

    def take(self, payload: bytes) -> list[int]:
        """Keeps submissions, and says which it does not: those that were not signed by their
        devices for this, whose secrets do not open or are not those that they committed to, or with
        which something else has travelled."""
        about, sent = read_or_refuse(decode_shares, payload)
        _, form, bound = self._about(about)
        if any(len(travelled) != form.elements * NUMBER_BYTES for _, travelled in sent):
            raise Refused("malformed", f"{form.elements:,} numbers travel of a device")
        bad = [at for at, one in enumerate(sent) if not self._is_good(form, bound, *one)]
        good = [one for at, one in enumerate(sent) if at not in set(bad)]
        self._shares.keep(_place(bound), about.round, good)
        return bad

    def coin(self, payload: bytes) -> bytes:
        """Its coin for a set of submissions, which it has."""
        question = read_or_refuse(decode_question, payload)
        using, _, bound = self._about(question.about)
        self._require(question, bound)
        own = coin_of(using.rules.computes.own, said_of(bound, question.names))
        return encode_coin(question.about.round, own)

    def checks(self, payload: bytes) -> bytes:
        """Its part of what opens of each device of a set."""
        question = read_or_refuse(decode_question, payload, coins=True)
        using, form, bound = self._about(question.about)
        self._require(question, bound)
        named = agreed(said_of(bound, question.names), question.coins)
        shares, many = self._shares_of(form, bound, question.names), len(question.names)
        found = using.rules.computes.checks(form, named, shares, many, self._threads)
        return encode_checks(CheckParts(question.about.round, self._number, found))

    def part(self, payload: bytes) -> bytes:
        """Its part of the sum. Before it is told, it is on the disk for whom."""
        started = time.perf_counter()
        question = read_or_refuse(decode_question, payload, coins=True, kept=True)
        using, form, bound = self._about(question.about)
        rules = using.rules.computes
        self._require(question, bound)
        round, kept = question.about.round, question.kept
        if kept is None:
            raise Refused("malformed", "nobody is kept")
        names = [name for name, one in zip(question.names, kept, strict=True) if one]
        if len(names) < rules.link.min_devices:
            raise Refused("too_few", "a sum over so few devices is not told")
        if len(names) > form.most_devices(rules.sigma(round, question.about.numbers)):
            raise Refused("too_many", "the field has no room for the sum of so many devices")
        named = agreed(said_of(bound, question.names), question.coins)
        try:
            answered = check_groups(rules.link, self._answers.last, round, [names], named)
        except MessageError as error:
            raise Refused("second_submission", str(error), status=409) from None
        shares = self._shares_of(form, bound, question.names)
        self.alarm.keep(answered)
        self.kept.begin(using)
        part = rules.total(round, form, named, shares, kept, sum_name(bound, names))
        told = encode_part(SumPart(round, rules.number, len(names), part))
        self.told.tell(
            "part of a sum told",
            round=round,
            attempt=question.about.attempt,
            devices=len(names),
            left_out=len(question.names) - len(names),
            seconds=time.perf_counter() - started,
        )
        return told

    def _about(self, about: About) -> tuple[_Using, Form, bytes]:
        """Return the terms of a question, what devices share in its round, and what their records
        are bound to."""
        using = self.kept.named(about.terms)
        terms = using.rules.terms
        if about.round < self._answers.last.round:
            raise Refused("late", f"round {about.round} is over", status=409)
        if about.numbers > terms.most_numbers:
            raise Refused("malformed", "no sum of these terms has so many numbers")
        try:
            form = using.rules.computes.form(about.round, about.numbers)
        except (MessageError, ConfigError) as error:
            raise Refused("malformed", str(error)) from None
        return using, form, about.bound(terms)

    def _is_good(self, form: Form, bound: bytes, record: SharedRecord, travelled: bytes) -> bool:
        return (
            is_signed(record, bound)
            and fits(record, travelled, form.elements)
            and open_secrets(record, self._number, self._key, bound) is not None
        )

    def _require(self, question: SetQuestion, bound: bytes) -> None:
        """Raises unless all of these submissions are here, and each is another device's."""
        there = self._shares.devices(_place(bound))
        missing = [at for at, name in enumerate(question.names) if name not in there]
        if missing:
            raise Missing(missing)
        if len({there[name] for name in question.names}) < len(question.names):
            raise Refused("duplicate", "a device is named twice in one round")

    def _shares_of(self, form: Form, bound: bytes, names: Sequence[bytes]) -> Shares:
        def read(many: int) -> Iterable[Sequence[tuple[SharedRecord, bytes | None]]]:
            return self._shares.some(_place(bound), names, many)

        return shares_in(form, self._number, self._key, bound, read)


def _place(bound: bytes) -> bytes:
    return hashlib.sha256(bound).digest()


class AggregatorApplication(TellingApplication[AggregatorLimits]):
    name, prefix = "the aggregator", "aggregator_"
    tells = "a part", "parts", "Parts of sums"

    def __init__(self, hosting: Hosting[AggregatorLimits], opening: Opening, server: str) -> None:
        super().__init__(hosting, opening, server, hosting.limits.waiting)
        self._opening = opening
        answers = self._answers
        self._serve(
            {
                "/v1/shares": ("POST", self._take),
                "/v1/coins": ("POST", answers(opening.coin)),
                "/v1/checks": ("POST", answers(opening.checks)),
                "/v1/parts": ("POST", answers(opening.part)),
                "/v1/terms": ("POST", self._terms),
            }
        )

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = await self._asked(scope, receive, self._opening.longest)
        bad = await self._questions(lambda: self._opening.take(payload))
        await answer(send, 200, [JSON], json.dumps({"bad": bad}).encode())

    def _answers(self, tell: Callable[[bytes], bytes]) -> Handler:
        async def told(scope: Scope, receive: Receive, send: Send) -> None:
            payload = await self._asked(scope, receive, LONGEST_QUESTION)
            try:
                found = await self._questions(lambda: tell(payload))
            except Missing as error:
                content = {"error": "missing", "detail": str(error), "which": error.which}
                await answer(send, 409, [JSON], json.dumps(content).encode())
                return
            await answer(send, 200, [OCTETS], found)

        return told


@dataclass(frozen=True, slots=True)
class AggregatorService(Service[AggregatorFolder, AggregatorLimits]):
    """An aggregator of a checked sum."""

    threads: int | None = None

    name = "the aggregator"
    port = 8448
    limits = AggregatorLimits

    def open(self, path: Path) -> AggregatorFolder:
        return open_aggregator(path)

    def prepare(self, start: Start[AggregatorFolder, AggregatorLimits]) -> Parts:
        folder = start.folder
        start.stack.enter_context(folder.locked())
        shares = start.keep(folder.shares())
        answering = Opening(folder, shares, self.threads or default_threads(), start.log)
        server = folder.introduction.token
        return Parts(
            lambda: AggregatorApplication(start.hosting, answering, server),
            lambda port: folder.ready_file,
        )
