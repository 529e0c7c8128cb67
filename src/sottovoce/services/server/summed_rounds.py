"""Rounds of a federation whose server sees sums alone: it adds up what it cannot read, and asks the
helper for the sum of exactly these masks. (`checked_rounds` has those with three aggregators.)

A message is added up and forgotten as soon as the helper has said that it can open its seed, so
that the server keeps a sum and seeds, not messages. While somebody who spoils sums is looked for,
messages wait until the round ends, since only then it is drawn who is summed with whom.

A round that the helper was asked about is never tried again, because the helper answers for one set
of devices in a round: it is folded, or given up for the next round. While the helper is away, the
round stays closing; whoever asks again for the same submissions gets the same answer. After a
spoiled sum rounds are summed in groups until it is found out whose fault that is
(`parties/secure_sum.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from sottovoce.core.masking import from_bytes, to_bytes
from sottovoce.core.messages import MaskedReports, ModelView, SummedReports, add_sums, cut_sum
from sottovoce.engines.client import Answer
from sottovoce.engines.helper_client import (
    SEEDS,
    SUMS,
    Ask,
    SumRefused,
    check_reached,
    is_undecryptable,
    told_sum,
    which_unopened,
)
from sottovoce.errors import ConfigError, MessageError, SpoiledSum
from sottovoce.parties.rounds import NotOpened
from sottovoce.parties.searching import Mark, leniency
from sottovoce.parties.secure_sum import MaskedSum, sigma_of
from sottovoce.parties.server import Server
from sottovoce.services.server import summing
from sottovoce.services.server.asking import not_kept
from sottovoce.services.server.summing import UNDECRYPTABLE, asking, doubled
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.amending import Waits
from sottovoce.stores.collection import Collected, Collection, RoundNotes
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Leader
from sottovoce.stores.search import Drawn
from sottovoce.wire.masked import (
    SealedSeed,
    decode_masked,
    encode_group_question,
    encode_question,
    message_bytes,
)
from sottovoce.wire.terms import Terms

_AT_ONCE, _BYTES_AT_ONCE = 256, 32 << 20
"""Most messages, and bytes of messages, that are added up together."""
_ASKED = "helper was"


class _Elsewise(MessageError):
    """The helper was asked for what it cannot tell, has told nothing, and may be asked otherwise:
    without some devices, or without groups."""

    def __init__(self, without: Sequence[int] = ()) -> None:
        super().__init__("the helper is to be asked otherwise")
        self.without = without


@dataclass(frozen=True, slots=True, repr=False)
class _Opened:
    """What was opened of a round."""

    drawn: Drawn
    spoiled: tuple[bool, ...]
    """Which of its groups."""
    total: SummedReports | None
    """The sum of the other groups; None if there are none."""
    why: str = ""
    """What was wrong with a spoiled one."""


class MaskedSums(Collection):
    """Reports that are masked, with a helper that knows the masks."""

    def __init__(self, plan: Plan, ask: Ask) -> None:
        link = plan.terms.secure_sum
        if link is None:
            raise ConfigError("only a secure sum needs a helper that knows masks")
        release = plan.terms.release
        self._plan, self._link, self._ask = plan, link, ask
        self._algorithm = plan.terms.build()
        self._sigma = sigma_of(self._algorithm, release, link)
        self._largest = plan.terms.largest_value * release.steps
        self._opened: _Opened | None = None

    def objection(self, terms: Terms) -> Waits | None:
        return not_kept(terms, {"helper": self._ask})

    def add_up(self, leader: Leader, now: records.Position) -> None:
        with asking():
            self._add_up(leader, now)

    def collect(self, leader: Leader, now: records.Position, server: Server) -> Collected:
        self._opened = None
        with asking():
            opened = self._opened = self._open_sums(leader, now)
        if opened.total is None:
            raise NotOpened("wrong_sum", opened.why)
        with leader.reading() as link:
            out = summing.left_out(link, now)
        if any(opened.spoiled):
            out["spoiled_group"] = sum(opened.spoiled)
        # Noise belongs to the sum and is not cut.
        noisy = self._link.noise or self._plan.terms.contributes
        return Collected(
            opened.total if noisy else cut_sum(opened.total, self._plan.value_limit), out
        )

    def replaced(self, link: sa.Connection, now: records.Position) -> tuple[str, ...] | None:
        return summing.replaced(link, now, self._link.min_devices, _ASKED)

    def over(self, link: sa.Connection, now: records.Position) -> RoundNotes:
        notices = summing.note_devices(link, now)
        opened, self._opened = self._opened, None
        if opened is not None and opened.drawn.round == now.round:
            notices += self._note_search(link, opened)
        return RoundNotes(tuple(notices))

    def forget(self, link: sa.Connection, round: int) -> None:
        sums.forget(link, round)

    def _add_up(self, leader: Leader, now: records.Position) -> None:
        """Adds all that waits to the sum of the round, but for those whose seeds the helper cannot
        open."""
        place = now.round, now.attempt
        with leader.reading() as link:
            view, name = summing.model_of(link, now.round, self._plan.terms.width)
        rows, width = self._algorithm.report_shape(view)
        size = message_bytes(self._plan.terms, rows * width)
        many = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // size))
        while True:
            with leader.reading() as link:
                part = sums.next_ones(link, *place, many)
                before = sums.total(link, *place)
            if not part:
                return
            read = [
                (number, decode_masked(body, self._plan.terms, *place, rows * width))
                for number, body in part
            ]
            out = doubled(leader, {number: one.record.device for number, one in read})
            bad = self._unopened(now, name, rows * width, [one.record for _, one in read])
            out |= {part[at][0]: UNDECRYPTABLE for at in bad}
            good = [(number, one) for number, one in read if number not in out]
            total = self._total(now.round, (rows, width))
            if before is not None:
                total.go_on(from_bytes(before, self._plan.terms.bits), set())
            for number, message in good:
                total.add(MaskedReports(now.round, np.array([number]), message.masked[None, :]))
            seeds = {number: message.record.content for number, message in good}
            with leader.writing() as link:
                sums.added(link, *place, to_bytes(total.total, self._plan.terms.bits), seeds, out)

    def _unopened(
        self, now: records.Position, model: bytes, numbers: int, sealed: list[SealedSeed]
    ) -> set[int]:
        """The places of those that the helper cannot open."""
        question = encode_question(*self._named(now, model), sealed, self._of_each(numbers))
        answer = self._ask(question, SEEDS)
        check_reached(answer)
        if answer.status != 200:
            raise SumRefused(
                f"the helper did not say which seeds it can open: status {answer.status}, "
                f"{answer.reason or 'no reason'}: {answer.detail}"
            )
        return set(which_unopened(answer, len(sealed)))

    def _total(self, round: int, shape: tuple[int, int]) -> MaskedSum:
        return MaskedSum(round, *shape, self._link, self._largest, self._sigma)

    def _named(self, now: records.Position, model: bytes) -> tuple[Terms, int, int, bytes]:
        return self._plan.terms, now.round, now.attempt, model

    def _of_each(self, numbers: int) -> int | None:
        """What questions say of the numbers of a message."""
        return numbers if self._plan.terms.contributes else None

    def _open_sums(self, leader: Leader, now: records.Position) -> _Opened:
        """The sums of the round's updates. Where the helper cannot open some seeds, they are over
        the others."""
        with leader.reading() as link:
            view, name = summing.model_of(link, now.round, self._plan.terms.width)
            drawn = searches.drawn(link, now.round, now.attempt)
            searching = searches.found(link).on
        if drawn is None and not searching:
            return self._open_one(leader, now, view, name)
        several = True
        while True:
            if drawn is None:
                drawn = self._draw(leader, now, several)
            if min(map(len, drawn.groups)) < self._link.min_devices:
                raise summing.too_few(leader, now, self._link.min_devices, _ASKED)
            try:
                return self._open_groups(leader, now, view, name, drawn)
            except _Elsewise as error:
                several &= bool(error.without)
                self._leave_out(leader, now, dict.fromkeys(error.without, UNDECRYPTABLE))
                drawn = None

    def _open_one(
        self,
        leader: Leader,
        now: records.Position,
        view: ModelView,
        model: bytes,
    ) -> _Opened:
        """The sum of all, which was added up as they came."""
        self._add_up(leader, now)
        place, (rows, width) = (now.round, now.attempt), self._algorithm.report_shape(view)
        with leader.reading() as link:
            kept, seeds = sums.total(link, *place), sums.seeds(link, *place)
        if kept is None or len(seeds) < self._link.min_devices:
            raise summing.too_few(leader, now, self._link.min_devices, _ASKED)
        total = self._total(now.round, (rows, width))
        total.go_on(from_bytes(kept, self._plan.terms.bits), set(seeds))
        sealed = [SealedSeed.of(content) for content in seeds.values()]
        named = self._named(now, model)
        answer = self._ask(encode_question(*named, sealed, self._of_each(rows * width)), SUMS)
        if is_undecryptable(answer):
            which = ", ".join(str(list(seeds)[at]) for at in which_unopened(answer, len(seeds)))
            raise SumRefused(
                f"the helper cannot open the seeds of devices {which}, which it could open before"
            )
        drawn = Drawn(*place, list(seeds), [list(seeds)])
        try:
            return _Opened(drawn, (False,), self._read(total, answer))
        except SpoiledSum as error:
            return _Opened(drawn, (True,), None, str(error))

    def _leave_out(self, leader: Leader, now: records.Position, out: Mapping[int, str]) -> None:
        with leader.writing() as link:
            sums.taken(link, now.round, now.attempt, {}, out)

    def _draw(self, leader: Leader, now: records.Position, several: bool) -> Drawn:
        """Draw who is summed with whom. Groups are drawn when nobody can send anything any more,
        and are on the disk before anybody is told of them."""
        place, terms = (now.round, now.attempt), self._plan.terms
        with leader.reading() as link:
            search = searches.found(link)
            view, _ = summing.model_of(link, now.round, terms.width)
            rows, width = self._algorithm.report_shape(view)
            devices = {
                number: decode_masked(body, terms, *place, rows * width).record.device
                for number, body in sums.bodies(link, *place)
            }
        out = doubled(leader, devices)
        self._leave_out(leader, now, out)
        numbers = [number for number in devices if number not in out]
        shuffle = secrets.SystemRandom().shuffle
        groups = search.groups(numbers, self._link, shuffle, several=several)
        drawn = Drawn(now.round, now.attempt, numbers, groups)
        if search.on:
            with leader.writing() as link:
                searches.keep_drawn(link, drawn)
        return drawn

    def _open_groups(
        self,
        leader: Leader,
        now: records.Position,
        view: ModelView,
        model: bytes,
        drawn: Drawn,
    ) -> _Opened:
        groups, shape = drawn.groups, self._algorithm.report_shape(view)
        with leader.reading() as link:
            totals, sealed = self._add_groups(link, now, groups, shape)
        everyone = [number for group in groups for number in group]
        good: list[SummedReports] = []
        spoiled: list[bool] = []
        why = ""
        for place, total in enumerate(totals):
            where = self._named(now, model)
            if len(groups) == 1:
                question = encode_question(*where, sealed[0])
            else:
                question = encode_group_question(*where, sealed, place)
            answer = self._ask(question, SUMS)
            if is_undecryptable(answer):
                raise _Elsewise([everyone[at] for at in which_unopened(answer, len(everyone))])
            if (answer.status, answer.reason) == (429, "too_often") and len(groups) > 1:
                raise _Elsewise
            try:
                good.append(self._read(total, answer))
                spoiled.append(False)
            except SpoiledSum as error:
                spoiled.append(True)
                why = str(error)
        opened = add_sums(now.round, good, shape[1]) if good else None
        return _Opened(drawn, tuple(spoiled), opened, why)

    def _add_groups(
        self,
        link: sa.Connection,
        now: records.Position,
        groups: Sequence[Sequence[int]],
        shape: tuple[int, int],
    ) -> tuple[list[MaskedSum], list[list[SealedSeed]]]:
        """For every group the masked updates added up, and their seeds in the group's order."""
        totals = [self._total(now.round, shape) for _ in groups]
        place = {number: k for k, group in enumerate(groups) for number in group}
        found: dict[int, SealedSeed] = {}
        numbers, at = shape[0] * shape[1], (now.round, now.attempt)
        for number, body in sums.bodies(link, *at):
            if number not in place:
                continue
            message = decode_masked(body, self._plan.terms, *at, numbers)
            one = MaskedReports(now.round, np.array([number]), message.masked[None, :])
            totals[place[number]].add(one)
            found[number] = message.record
        return totals, [[found[number] for number in group] for group in groups]

    def _read(self, total: MaskedSum, answer: Answer) -> SummedReports:
        """The opened sum, from the helper's answer."""
        told = told_sum(answer, self._plan.terms)
        lenient = 0.0  # contributions come once, and nobody is looked for
        if not self._plan.terms.contributes:
            lenient = leniency(secrets.SystemRandom().random())
        return total.open(told, lenient, counted=self._plan.terms.counts_senders)

    def _note_search(self, link: sa.Connection, opened: _Opened) -> list[str]:
        """What a search has found; those who spoil sums are shut out."""
        before, notices, drawn = searches.found(link), list[str](), opened.drawn
        search, out = before, dict[int, Mark]()
        if not self._plan.terms.contributes:
            search, out = before.after(drawn.numbers, drawn.groups, opened.spoiled)
        if search != before:
            searches.keep(link, search)
        if any(opened.spoiled) and search.on:
            notices.append(
                f"{sum(opened.spoiled)} of {len(drawn.groups)} sums were spoiled and left out; "
                "the next rounds are summed in groups that are drawn anew, to see by whom"
            )
        for number, mark in sorted(out.items()):
            why = f"the server has shut this device out, because it spoils sums: {mark.words}"
            records.shut(link, [number], why)
            notices.append(f"device {number} was shut out: {mark.words}")
        if before.on and not search.on:
            notices.append("sums are good again, and there is one for a round")
        return notices
