"""Rounds of a federation whose sums are checked: the server, which is the first of three
aggregators, passes on to the two others what devices share, and opens with them what all three have
told (`parties.aggregator`).

A submission is passed on in its round while that is open, and forgotten but for its record as soon
as both have taken it. A device whose shares do not fit is left out there and then, a device that is
beyond the bounds when the round is closed; both are named. If too few are left, nobody is asked for
a part of the sum, and the round is open again: a set with other devices in it has other coins, so
nobody who comes later knows them. A round of whose sum an aggregator has told a part is never tried
again: it is folded, or given up for the next one. While an aggregator is away, the round stays as
it is; whoever asks again for the same gets the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from sottovoce.core.links import SHARED_RECORD_BYTES
from sottovoce.core.messages import SummedReports
from sottovoce.core.recommender import default_threads
from sottovoce.core.shares import NUMBER_BYTES, Elements, Form
from sottovoce.engines.client import Answer
from sottovoce.engines.helper_client import Ask, HelperClient, SumRefused, check_reached
from sottovoce.errors import KeyTrouble, MessageError, Unreachable, WrongSum
from sottovoce.parties.aggregator import (
    Aggregating,
    Shares,
    agreed,
    coin_of,
    left_out,
    opened_sum,
    said_of,
)
from sottovoce.parties.helper import sum_name
from sottovoce.parties.secure_sum import summed
from sottovoce.parties.server import Server
from sottovoce.services.aggregator import PART_BYTES, shares_in
from sottovoce.services.server import summing
from sottovoce.services.server.asking import not_kept
from sottovoce.services.server.summing import BAD_SHARES, LOST, OUT_OF_RANGE, asking, doubled
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.aggregator_folder import OTHERS, aggregator_token, checked_link, first_rules
from sottovoce.stores.amending import Waits
from sottovoce.stores.collection import Collected, Collection, RoundNotes
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Leader
from sottovoce.wire.shared import (
    About,
    SetQuestion,
    SharedMessage,
    SharedRecord,
    decode_checks,
    decode_coin,
    decode_part,
    decode_shared,
    encode_question,
    encode_shares,
    open_secrets,
    part_bytes,
)
from sottovoce.wire.terms import Terms

SHARES, COINS, CHECKS, PARTS = "/v1/shares", "/v1/coins", "/v1/checks", "/v1/parts"
_AT_ONCE = 256
_ASKED = "aggregators were"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class _Asked:
    """What a round is about."""

    about: About
    bound: bytes
    form: Form
    numbers: int

    def __repr__(self) -> str:
        return f"<_Asked round={self.about.round}>"


class CheckedSums(Collection):
    """Contributions that come in shares."""

    def __init__(
        self,
        plan: Plan,
        rules: Aggregating,
        key: X25519PrivateKey,
        asks: Mapping[int, Ask],
    ) -> None:
        """`rules` and `key` are the server's own as an aggregator, `asks` its ways to the others,
        by their numbers."""
        self._plan, self._rules, self._key, self._asks = plan, rules, key, asks
        self._algorithm, self._threads = plan.terms.build(), default_threads()
        self._least = rules.link.min_devices

    @classmethod
    def of(cls, plan: Plan, keys: Path) -> CheckedSums:
        """From the server's key folder."""
        link = checked_link(plan.terms)
        longest = part_bytes(plan.terms.most_numbers)
        asks = {
            number: HelperClient(link, aggregator_token(keys, number), longest, number).ask
            for number in OTHERS
        }
        return cls(plan, *first_rules(plan.terms, keys), asks)

    def objection(self, terms: Terms) -> Waits | None:
        return not_kept(terms, {f"aggregator {number}": ask for number, ask in self._asks.items()})

    def add_up(self, leader: Leader, now: records.Position) -> None:
        with asking():
            self._add_up(leader, now)

    def collect(self, leader: Leader, now: records.Position, server: Server) -> Collected:
        with asking():
            total = self._open_sum(leader, now)
        with leader.reading() as link:
            return Collected(total, summing.left_out(link, now))

    def replaced(self, link: sa.Connection, now: records.Position) -> tuple[str, ...] | None:
        return summing.replaced(link, now, self._least, _ASKED)

    def over(self, link: sa.Connection, now: records.Position) -> RoundNotes:
        return RoundNotes(tuple(summing.note_devices(link, now)))

    def forget(self, link: sa.Connection, round: int) -> None:
        sums.forget(link, round)

    # --- passing on -------------------------------------------------------------------------------

    def _add_up(self, leader: Leader, now: records.Position) -> None:
        """Passes on all that waits, and keeps records of what both others have taken."""
        place = now.round, now.attempt
        with leader.reading() as link:
            asked = self._about(link, now)
        size = SHARED_RECORD_BYTES + asked.form.elements * NUMBER_BYTES
        many = max(1, min(_AT_ONCE, PART_BYTES // size))
        while True:
            with leader.reading() as link:
                part = sums.next_ones(link, *place, many)
            if not part:
                return
            read = {number: self._read(body, now, asked) for number, body in part}
            out = {number: BAD_SHARES for number, one in read.items() if one is None}
            devices = {n: one.record.device for n, one in read.items() if one is not None}
            out |= doubled(leader, devices)
            mine = [
                (n, one.record, one.travelled)
                for n, one in read.items()
                if one is not None and n not in out
            ]
            if mine:
                question = encode_shares(asked.about, [(record, sent) for _, record, sent in mine])
                for bad in self._of_all(question, SHARES, _bad):
                    out |= {mine[at][0]: BAD_SHARES for at in bad if at < len(mine)}
            kept = {n: record.content for n, record, _ in mine if n not in out}
            with leader.writing() as link:
                sums.taken(link, *place, kept, dict(sorted(out.items())))

    def _about(self, link: sa.Connection, now: records.Position) -> _Asked:
        view, model = summing.model_of(link, now.round, self._plan.terms.width)
        terms, numbers = self._plan.terms, self._algorithm.report_shape(view)[0]
        about = About.of(terms, now.round, now.attempt, model, numbers)
        form = self._rules.form(now.round, numbers)
        return _Asked(about, about.bound(terms), form, numbers)

    def _read(self, body: bytes, now: records.Position, asked: _Asked) -> SharedMessage | None:
        """A submission whose secrets for the server itself are good; the other aggregators look at
        everything."""
        try:
            found = decode_shared(body, now.round, now.attempt, asked.form.elements)
        except MessageError:
            return None
        mine = open_secrets(found.record, self._rules.number, self._key, asked.bound)
        return None if mine is None else found

    # --- opening ----------------------------------------------------------------------------------

    def _open_sum(self, leader: Leader, now: records.Position) -> SummedReports:
        self._add_up(leader, now)
        place = now.round, now.attempt
        while True:
            with leader.reading() as link:
                asked, seeds = self._about(link, now), sums.seeds(link, *place)
            if len(seeds) < self._least:
                raise summing.too_few(leader, now, self._least, _ASKED)
            named = {SharedRecord.of(content).name: n for n, content in seeds.items()}
            names = tuple(sorted(named))
            ordered = [SharedRecord.of(seeds[named[name]]) for name in names]
            lost, coins = self._coins(asked, names)
            if not lost:
                break
            with leader.writing() as link:
                sums.leave_out(link, *place, {named[names[at]]: LOST for at in lost})
        out = self._left_out(asked, names, coins, ordered)
        if out.all():  # that is nobody's fault but an aggregator's
            raise WrongSum(
                "nobody passes the checks: an aggregator has told wrong parts of them, or another "
                "set was shown to it"
            )
        gone = [named[name] for name, one in zip(names, out, strict=True) if one]
        many = len(names) - len(gone)
        enough = many >= self._least
        if gone:
            why = dict.fromkeys(gone, OUT_OF_RANGE)
            with leader.writing() as link:
                sums.leave_out(link, *place, why, keep_records=enough)
        if not enough:
            raise summing.too_few(leader, now, self._least, _ASKED)
        opened = self._sum(asked, names, coins, ordered, ~out)
        return summed(now.round, opened[:, None], many)

    def _coins(self, asked: _Asked, names: tuple[bytes, ...]) -> tuple[set[int], tuple[bytes, ...]]:
        """The coins of all three for a set; or the places of those that an aggregator lacks."""
        question, many = encode_question(SetQuestion(asked.about, names)), len(names)

        def read(number: int, answer: Answer) -> tuple[list[int], bytes]:
            if (answer.status, answer.reason) == (409, "missing"):
                lost = [at for at in _places(answer, "which") if at < many]
                if not lost:
                    raise SumRefused(f"aggregator {number} did not say what it lacks")
                return lost, b""
            return [], decode_coin(_told(number, answer), asked.about.round)

        told = self._of_all(question, COINS, read)
        own = coin_of(self._rules.own, said_of(asked.bound, names))
        return {at for lost, _ in told for at in lost}, (own, *(coin for _, coin in told))

    def _left_out(
        self,
        asked: _Asked,
        names: tuple[bytes, ...],
        coins: tuple[bytes, ...],
        ordered: Sequence[SharedRecord],
    ) -> NDArray[np.bool_]:
        """Return who does not pass the checks."""
        round, many = asked.about.round, len(names)
        question = encode_question(SetQuestion(asked.about, names, coins))

        def read(number: int, answer: Answer) -> Elements:
            return decode_checks(_told(number, answer), round, number, many).parts

        told = self._of_all(question, CHECKS, read)
        named = agreed(said_of(asked.bound, names), coins)
        shares = self._shares(asked, ordered)
        own = self._rules.checks(asked.form, named, shares, many, self._threads)
        return left_out([own, *told])

    def _sum(
        self,
        asked: _Asked,
        names: tuple[bytes, ...],
        coins: tuple[bytes, ...],
        ordered: Sequence[SharedRecord],
        kept: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """What opens over those who are kept, in steps of contributions."""
        round, many, numbers = asked.about.round, int(kept.sum()), asked.numbers
        question = encode_question(SetQuestion(asked.about, names, coins, kept))

        def read(number: int, answer: Answer) -> Elements:
            return decode_part(_told(number, answer), round, number, many, numbers).part

        told = self._of_all(question, PARTS, read)
        rules, form = self._rules, asked.form
        named = agreed(said_of(asked.bound, names), coins)
        summed_up = [name for name, one in zip(names, kept, strict=True) if one]
        name, shares = sum_name(asked.bound, summed_up), self._shares(asked, ordered)
        own = rules.total(round, form, named, shares, kept, name)
        sigma = rules.sigma(round, numbers)
        return rules.link.grid(form).step * opened_sum(form, [own, *told], many, sigma)

    def _shares(self, asked: _Asked, ordered: Sequence[SharedRecord]) -> Shares:
        def read(many: int) -> Iterator[list[tuple[SharedRecord, bytes | None]]]:
            for at in range(0, len(ordered), many):
                yield [(record, None) for record in ordered[at : at + many]]

        return shares_in(asked.form, self._rules.number, self._key, asked.bound, read)

    def _of_all(self, question: bytes, path: str, read: Callable[[int, Answer], T]) -> list[T]:
        """What both others answer to a question; they are asked at the same time."""

        def ask(number: int) -> Answer | Unreachable | KeyTrouble:
            try:
                return self._asks[number](question, path)
            except (Unreachable, KeyTrouble) as error:
                return error

        with ThreadPoolExecutor(len(self._asks)) as pool:
            answers = list(zip(self._asks, pool.map(ask, self._asks), strict=True))
        found = []
        for number, answer in answers:
            who = f"aggregator {number}"
            with asking(who):
                if not isinstance(answer, Answer):
                    raise answer
                check_reached(answer, who)
                if answer.status == 503:
                    raise Unreachable(answer.detail or "it has too much to do")
            try:
                found.append(read(number, answer))
            except SumRefused:
                raise
            except MessageError as error:
                raise WrongSum(f"{who}: {error}") from None
        return found


def _told(number: int, answer: Answer) -> bytes:
    """What an aggregator answered. Raises where it refused."""
    if answer.status != 200:
        raise SumRefused(
            f"aggregator {number} refused with status {answer.status}, "
            f"{answer.reason or 'no reason'}: {answer.detail}"
        )
    return answer.body


def _bad(number: int, answer: Answer) -> list[int]:
    """The places of submissions that an aggregator does not take."""
    _told(number, answer)
    return _places(answer, "bad")


def _places(answer: Answer, field: str) -> list[int]:
    named = answer.table().get(field)
    if not isinstance(named, list) or not all(type(at) is int and at >= 0 for at in named):
        raise SumRefused("an aggregator did not say which submissions it means")
    return named
