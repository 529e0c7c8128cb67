"""The aggregation helper of a secure sum: two addresses for the server, and two for its operator.

What it tells follows from its own folder alone: the fewest devices, the most groups and the noise
are those of the terms it keeps, whatever a question says. Nothing of a question is kept but its
round and the name of its set or its groups. The log has a line for each sum that was told: of which
round, and over how many devices, none of which it names.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sottovoce.core.links import SecureSum
from sottovoce.core.messages import MaskSum
from sottovoce.core.recommender import default_threads
from sottovoce.errors import MessageError
from sottovoce.parties.helper import (
    Answered,
    check_groups,
    noise_of,
    noise_spans,
    sum_name,
    sum_told,
)
from sottovoce.privacy.central import Spans
from sottovoce.services.kit.answers import JSON, OCTETS, Receive, Scope, Send, answer
from sottovoce.services.kit.application import Hosting
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.serving import Parts, Service, Start
from sottovoce.services.kit.told import CopyAlarm, TellingApplication, ToldSums
from sottovoce.stores.helper_folder import HelperFolder, HelperIntroduction, open_helper
from sottovoce.stores.sum_folder import KeptTerms
from sottovoce.wire.masked import (
    LONGEST_QUESTION,
    MaskSumQuestion,
    binding,
    decode_question,
    encode_mask_sum,
    is_signed,
    open_seed,
)
from sottovoce.wire.refusals import Reason, Refused, read_or_refuse
from sottovoce.wire.terms import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperLimits(Limits):
    waiting: ClassVar[int] = 2
    """Questions of the server that wait."""
    connections: int = 200
    per_address: int = 50
    body_seconds: float = 120.0
    write_seconds: float = 60.0


class Unopened(MessageError):
    """Seeds that were not sealed for this by these devices; the server may ask without them."""

    def __init__(self, which: list[int]) -> None:
        super().__init__(f"{len(which):,} seeds cannot be opened")
        self.which = which


class HelperRules:
    """What follows from terms that the helper keeps."""

    def __init__(self, introduction: HelperIntroduction) -> None:
        self.terms, self.link = introduction.terms, introduction.link
        self.spans = noise_spans(self.terms.build(), self.terms.release)
        if self.spans is None:
            noise_of(self.link, 0, 1, bytes(32))  # raises now where the terms cannot be kept


class Answering:
    """The rules of the helper over what is in its folder."""

    def __init__(self, folder: HelperFolder, threads: int = 1, log: Any = None) -> None:
        self._key, self._noise = folder.seal_key(), folder.noise_secret()
        self.kept = KeptTerms(folder, HelperRules)
        self._answers, self._threads = folder.answers(), threads
        self.alarm = CopyAlarm(self._answers, log)
        self.told = ToldSums("sum", log)

    def __repr__(self) -> str:
        return f"<Answering for {self.kept.federation}, redacted>"

    def require_ready(self) -> None:
        """Raise if what was told last cannot be read, without which nothing is told."""
        self._answers.require_there()

    @property
    def round(self) -> int:
        """The last one of which a sum was told."""
        return self._answers.last[0]

    def answer(self, payload: bytes) -> bytes:
        """The sum that was asked for. Before it is told, it is on the disk for whom."""
        started = time.perf_counter()
        question = read_or_refuse(decode_question, payload)
        kept = self.kept.named(question.terms)
        rules = kept.rules
        round, numbers = question.round, _numbers(question, rules.terms)
        spans = _spans_of(rules, round, numbers)
        answered = self._check(question, rules.link)
        bound = _bound(question, rules.terms)
        seeds = self._open(question, bound, again=answered == self._answers.last)
        self.alarm.keep(answered)
        self.kept.begin(kept)
        group = question.group if len(question.sizes) > 1 else None
        name = sum_name(bound, _sent(question)[question.group])
        how = self._noise.of_sum(name, group), self._threads, spans
        masks = sum_told(rules.link, round, seeds, numbers, *how)
        told = encode_mask_sum(MaskSum(round, len(seeds), masks, rules.terms.bits))
        self._say(question, len(seeds), time.perf_counter() - started)
        return told

    def _say(self, question: MaskSumQuestion, devices: int, seconds: float) -> None:
        facts = {"attempt": question.attempt}
        if len(question.sizes) > 1:
            facts |= {"group": question.group, "groups": len(question.sizes)}
        round = question.round
        self.told.tell("sum told", round=round, devices=devices, seconds=seconds, **facts)

    def unopened(self, payload: bytes) -> list[int]:
        """Which of these seeds cannot be opened, or were not sealed by their devices for this. The
        server then adds up the others, and forgets their messages. Nothing is told of any mask."""
        question = read_or_refuse(decode_question, payload)
        terms = self.kept.named(question.terms).rules.terms
        _numbers(question, terms)
        bound = _bound(question, terms)
        return [
            at
            for at, record in enumerate(question.records)
            if not is_signed(record, bound) or open_seed(record, self._key, bound) is None
        ]

    def _check(self, question: MaskSumQuestion, link: SecureSum) -> Answered:
        """What is to be kept before the sum is told. Raises where it must not be."""
        records, last = question.records, self._answers.last
        if len(question.sizes) > link.groups:
            raise Refused("too_many", "the terms do not permit so many sums in a round")
        if min(question.sizes) < link.min_devices:
            raise Refused("too_few", "a sum over so few devices is not told")
        if len({record.device for record in records}) < len(records):
            raise Refused("duplicate", "a device is named twice in one round")
        grouped = len(question.sizes) > 1 and question.round > last.round
        if grouped and last.grouped_rounds_left < 1:
            raise Refused("too_often", "there were too many rounds in groups; ask for one sum")
        try:
            return check_groups(link, last, question.round, _sent(question))
        except MessageError as error:
            reason: Reason = "late" if question.round < last.round else "second_submission"
            raise Refused(reason, str(error), status=409) from None

    def _open(self, question: MaskSumQuestion, bound: bytes, *, again: bool) -> list[bytes]:
        """The seeds of the group that is asked for. All groups must be good before one is told,
        since afterwards there can be no others; whoever asks `again` has shown that they are."""
        start = sum(question.sizes[: question.group])
        mine = slice(start, start + question.sizes[question.group])
        records = question.records[mine] if again else question.records
        if not all(is_signed(record, bound) for record in records):
            raise Refused("bad_signature", "a sealed seed was not signed by its device for this")
        seeds = [open_seed(record, self._key, bound) for record in records]
        which = [at for at, seed in enumerate(seeds) if seed is None]
        if which:
            raise Unopened(which)
        return [seed for seed in (seeds if again else seeds[mine]) if seed is not None]


def _sent(question: MaskSumQuestion) -> list[list[bytes]]:
    """The submissions of each group. Not their devices alone: from two sums over the same devices'
    first and second attempts one device's update could follow, too."""
    return [[one.device + one.sealed for one in group] for group in question.groups]


def _numbers(question: MaskSumQuestion, terms: Terms) -> int:
    """Return the numbers of each mask. The devices have signed how many, if the terms do not say
    it."""
    if terms.contributes != (question.numbers is not None):
        raise Refused("malformed", "the question is not one for these terms")
    numbers = terms.n_rows * terms.width if question.numbers is None else question.numbers
    if not 0 < numbers <= terms.most_numbers:
        raise Refused("malformed", "no message of these terms has so many numbers")
    return numbers


def _spans_of(rules: HelperRules, round: int, numbers: int) -> Spans | None:
    """Which noise they get."""
    try:
        return None if rules.spans is None else rules.spans(round, numbers)
    except MessageError as error:
        raise Refused("malformed", str(error)) from None


def _bound(question: MaskSumQuestion, terms: Terms) -> bytes:
    where = question.round, question.attempt, question.model, question.numbers
    return binding(terms, *where)


class HelperApplication(TellingApplication[HelperLimits]):
    name, prefix = "the helper", "masker_"
    tells = "a sum", "sums", "Sums"

    def __init__(self, hosting: Hosting[HelperLimits], answering: Answering, server: str) -> None:
        super().__init__(hosting, answering, server, hosting.limits.waiting)
        self._answering = answering
        self._serve(
            {
                "/v1/sums": ("POST", self._sum),
                "/v1/seeds": ("POST", self._seeds),
                "/v1/terms": ("POST", self._terms),
            }
        )

    async def _sum(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = await self._asked(scope, receive, LONGEST_QUESTION)
        try:
            told = await self._questions(lambda: self._answering.answer(payload))
        except Unopened as error:
            self._count("undecryptable")
            content = {"error": "undecryptable", "detail": str(error), "which": error.which}
            await answer(send, 409, [JSON], json.dumps(content).encode())
            return
        await answer(send, 200, [OCTETS], told)

    async def _seeds(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = await self._asked(scope, receive, LONGEST_QUESTION)
        which = await self._questions(lambda: self._answering.unopened(payload))
        await answer(send, 200, [JSON], json.dumps({"which": which}).encode())


@dataclass(frozen=True, slots=True)
class HelperService(Service[HelperFolder, HelperLimits]):
    """The aggregation helper of a secure sum."""

    threads: int | None = None

    name = "the helper"
    port = 8447
    limits = HelperLimits

    def open(self, path: Path) -> HelperFolder:
        return open_helper(path)

    def prepare(self, start: Start[HelperFolder, HelperLimits]) -> Parts:
        folder = start.folder
        start.stack.enter_context(folder.locked())
        answering = Answering(folder, self.threads or default_threads(), start.log)
        server = folder.introduction.token
        return Parts(
            lambda: HelperApplication(start.hosting, answering, server),
            lambda port: folder.ready_file,
        )
