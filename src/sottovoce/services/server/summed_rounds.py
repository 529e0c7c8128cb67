"""Rounds of a federation whose server sees sums alone: it adds up what it cannot read, and asks the
helper for the sum of exactly these masks. (`checked_rounds` has those with three aggregators.)

A message is added up and forgotten as soon as the helper has said that it can open its seed, so
that the server keeps a sum and seeds, not messages. While somebody who spoils sums is looked for,
messages wait until the round ends, since only then it is drawn who is summed with whom.

A submission whose seed the helper cannot open is dropped. If too few are left, nobody is asked for
a sum: the round is open again, and the others' submissions stay. A round that the helper was asked
about is never tried again, because the helper answers for one set of devices in a round: it is
folded, or given up for the next round. While the helper is away, the round stays closing; whoever
asks again for the same submissions gets the same answer. After a spoiled sum rounds are summed in
groups until it is found out whose fault that is (`parties/secure_sum.py`).
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import sqlalchemy as sa

from sottovoce.core.masking import from_bytes, to_bytes
from sottovoce.core.messages import MaskedReports, ModelView, SummedReports, add_sums, cut_sum
from sottovoce.engines.client import Answer
from sottovoce.engines.helper_client import (
    SEEDS,
    SUMS,
    Ask,
    HelperElsewhere,
    HelperTerms,
    SumRefused,
    check_reached,
    is_undecryptable,
    told_sum,
    which_unopened,
)
from sottovoce.errors import (
    ConfigError,
    KeyTrouble,
    MessageError,
    ServiceError,
    SpoiledSum,
    Unreachable,
    WrongSum,
)
from sottovoce.parties.searching import Mark, leniency
from sottovoce.parties.secure_sum import MaskedSum, most_devices, sigma_of
from sottovoce.parties.server import Server
from sottovoce.services.server.asking import not_kept
from sottovoce.stores import operating, sums
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores.amending import Waits
from sottovoce.stores.coordinator import Awaiting, Clock, Coordinator, Event, Plan, Verdict, What
from sottovoce.stores.database import Leader
from sottovoce.stores.search import Drawn
from sottovoce.wire.masked import (
    SealedSeed,
    decode_masked,
    encode_group_question,
    encode_question,
    message_bytes,
    model_name,
)
from sottovoce.wire.terms import Terms

UNDECRYPTABLE, DOUBLED = "undecryptable", "doubled_key"
BAD_SHARES, OUT_OF_RANGE, LOST = "bad_shares", "out_of_range", "lost"
"""Why somebody is left out."""
FAULTS = frozenset({UNDECRYPTABLE, DOUBLED, BAD_SHARES, OUT_OF_RANGE})
"""Those of a device itself."""
_WORDS = {
    UNDECRYPTABLE: "the helper could not open the seeds of devices {}",
    DOUBLED: "devices {} have the key of another one",
    BAD_SHARES: "the shares of devices {} are not what they have signed, sealed or committed to",
    OUT_OF_RANGE: "what devices {} have shared is beyond the bounds that are checked",
    LOST: "an aggregator has lost the shares of devices {}",
}
_ENOUGH = 16
"""Messages that wait, for which it pays to write the sum anew."""
_AT_ONCE, _BYTES_AT_ONCE = 256, 32 << 20
"""Most messages, and bytes of messages, that are added up together."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class _Elsewise(MessageError):
    """The helper was asked for what it cannot tell, has told nothing, and may be asked otherwise:
    without some devices, or without groups."""

    def __init__(self, without: Sequence[int] = ()) -> None:
        super().__init__("the helper is to be asked otherwise")
        self.without = without


class _TooFew(Exception):
    """Fewer good submissions are left than a sum needs."""


@dataclass(frozen=True, slots=True, repr=False)
class _Opened:
    """What was opened of a round."""

    drawn: Drawn
    spoiled: tuple[bool, ...]
    """Which of its groups."""
    total: SummedReports | None
    """The sum of the other groups; None if there are none."""
    why: str
    """What was wrong with a spoiled one."""


class SumCoordinator(Coordinator, ABC):
    """`Coordinator` where the server adds up what it cannot read, and somebody else helps to open
    the sum."""

    _asked = "helper was"
    """The party that helps to open sums, and a verb."""

    def __init__(self, plan: Plan, clock: Clock, least: int, most: int) -> None:
        """A sum is over `least` devices at least, and over `most` at most."""
        super().__init__(plan, clock)
        self._least, self._most = least, most
        self._waits_for = "the helper"
        self._opened: _Opened | None = None
        self._notices: tuple[str, ...] = ()
        self._pause, self._next_try = _FIRST_PAUSE, -math.inf

    @abstractmethod
    def _add_up(self, leader: Leader, now: records.Position) -> None:
        """Takes all that waits into the round, but for those who are left out."""

    @abstractmethod
    def _open_sums(self, leader: Leader, now: records.Position) -> _Opened:
        """The sums of the round's updates."""

    def start(self, link: sa.Connection) -> None:
        super().start(link)
        records.set_fact(link, "waits", "")  # since when it is away stays known, in case it is

    def skip_to(self, link: sa.Connection, round: int) -> None:
        super().skip_to(link, round)
        sums.forget(link, round - 1)

    def _carried(self, link: sa.Connection, round: int) -> None:
        sums.forget(link, round - 1)
        records.set_fact(link, "waits", "")
        records.drop_fact(link, operating.AWAY)

    # --- below the minimum nothing is asked -------------------------------------------------------

    def _choose(
        self, link: sa.Connection, round: int, attempt: int
    ) -> tuple[int, records.Numbers] | None:
        choice = super()._choose(link, round, attempt)
        return None if choice is None or len(choice[1]) < self._least else choice

    def _verdict(self, link: sa.Connection, now: records.Position) -> Verdict | None:
        verdict = super()._verdict(link, now)
        good = sums.there(link, now.round, now.attempt)
        if good >= self._most:
            return "goal"
        if self._plan.terms.contributes:
            # Whoever has contributed is not asked for it again: the round waits for enough.
            enough, late = good >= self._least, verdict is not None
            ended: Verdict = "goal" if verdict == "goal" else "deadline"
            return ended if enough and late else None
        if verdict is None or good >= self._least:
            return verdict
        # Others may still come in the place of those who were left out.
        held = self._plan.asks_all and good < now.reported
        everyone = now.reported >= now.asked
        late = everyone or self._elapsed() >= self._plan.rules.deadline_seconds
        return "abandoned" if late and not held else None

    def _all_in(self, link: sa.Connection, now: records.Position) -> bool:
        full = sums.there(link, now.round, now.attempt) >= self._most
        return full or super()._all_in(link, now)

    def seconds_left(self) -> float:
        # A round of contributions may be open after its deadline.
        return super().seconds_left() or _FIRST_PAUSE

    def _due(self, link: sa.Connection, now: records.Position) -> bool:
        if now.state == "closing":
            return self._clock() >= self._next_try
        return super()._due(link, now)

    # --- adding up --------------------------------------------------------------------------------

    def _doubled(self, leader: Leader, devices: Mapping[int, bytes]) -> dict[int, str]:
        """Those of these numbers, each with the key that signed its message, whose key is another
        number's: the helper and the aggregators refuse the whole set if a key is twice in it."""
        with leader.reading() as link:
            keys = sums.keys_of(link, list(devices))
        seen, out = set[bytes](), dict[int, str]()
        for number, key in sorted(devices.items()):
            if key in seen or keys.get(number) != key:
                out[number] = DOUBLED
            else:
                seen.add(key)
        return out

    def step(self, leader: Leader) -> list[Event]:
        self._add_some(leader)
        return super().step(leader)

    def _add_some(self, leader: Leader) -> None:
        """Adds up what has come in, where that is enough to pay. While the helper is away it
        waits, and when there is no more room the server takes nothing in."""
        if self._clock() < self._next_try:
            return
        with leader.reading() as link:
            now = records.position(link)
            if now.state != "open" or searches.found(link).on:
                return
            many = sums.waiting(link, now.round, now.attempt)
        if many >= _ENOUGH:
            try:
                self._add_up(leader, now)
                self._goes_on(leader)
            except (Unreachable, KeyTrouble) as error:
                raise self._waits(leader, now, error) from None
            except (SumRefused, WrongSum) as error:
                self._later()
                raise ServiceError(f"round {now.round}: {error}") from None

    def _model(self, link: sa.Connection, round: int) -> tuple[ModelView, bytes]:
        """The round's model and its name."""
        found = records.model(link, round, self._plan.terms.width)
        if found is None:
            raise ServiceError(f"the database lacks the model of round {round}")
        return ModelView(round, found[0]), model_name(found[0])

    def _waits(self, leader: Leader, now: records.Position, error: Exception) -> Awaiting:
        """The operator is told for whom."""
        self._later()
        why = f"round {now.round} waits for {self._waits_for}: {error}"
        with leader.writing() as link:
            records.set_fact(link, "waits", why)
            party = self._waits_for.removeprefix("the ")
            kind = f"{party.split()[0]}_{_ending(error)}"
            operating.keep_since(link, operating.AWAY, why, party, kind)
        return Awaiting(why)

    def _goes_on(self, leader: Leader) -> None:
        self._pause = _FIRST_PAUSE
        with leader.reading() as link:
            waited = records.fact(link, "waits") or records.fact(link, operating.AWAY)
        if waited:
            with leader.writing() as link:
                records.set_fact(link, "waits", "")
                records.drop_fact(link, operating.AWAY)

    def _later(self) -> None:
        self._next_try = self._clock() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    # --- the sum ----------------------------------------------------------------------------------

    def _ended(self, leader: Leader, now: records.Position) -> list[Event]:
        self._pause, self._next_try = _FIRST_PAUSE, -math.inf
        # Asking takes a while, and nobody should be told meanwhile that the round is open.
        return [Event("closing", now.round, now.attempt, now.asked, now.reported)]

    def _close(self, leader: Leader, now: records.Position) -> list[Event]:
        self._opened, self._notices = None, ()
        try:
            self._opened = self._open_sums(leader, now)
        except (Unreachable, KeyTrouble) as error:
            raise self._waits(leader, now, error) from None
        except _TooFew:
            self._goes_on(leader)
            with leader.writing() as link:
                reopened = self._reopen(link, now)
            if reopened is not None:
                return [reopened]
            with leader.writing() as link:
                over, *opened = self._give_up(link, now, "sum_refused", self._too_few(link, now))
            return [replace(over, notices=self._notices), *opened]
        except (WrongSum, SumRefused) as error:
            what: What = "wrong_sum" if isinstance(error, WrongSum) else "sum_refused"
            self._goes_on(leader)
            with leader.writing() as link:
                over, *opened = self._give_up(link, now, what, str(error))
            return [replace(over, notices=self._notices), *opened]
        self._goes_on(leader)
        if self._opened.total is None:
            with leader.writing() as link:
                over, *opened = self._give_up(link, now, "wrong_sum", self._opened.why)
        else:
            over, *opened = super()._close(leader, now)
        return [replace(over, notices=self._notices), *opened]

    def _too_few(self, link: sa.Connection, now: records.Position) -> str:
        good = sums.there(link, now.round, now.attempt)
        return (
            f"{good:,} good submissions are left, and a sum needs {self._least:,}; the "
            f"{self._asked} not asked"
        )

    def _reopen(self, link: sa.Connection, now: records.Position) -> Event | None:
        """Wait for others in the place of those who were left out; None if that would not help:
        nobody is left, or another party has lost what devices sent, which they cannot send
        again."""
        place = now.round, now.attempt
        good, out = sums.there(link, *place), sums.who_is_out(link, *place)
        if not good or not FAULTS.issuperset(out.values()):
            return None
        records.move_round(link, *place, "closing", "open", outcome=None)
        searches.forget_drawn(link)
        self._go_on(link)
        if not self._plan.asks_all:  # whoever was asked gets the time of a round again
            self._watched = None
            self._watch(*place)
        notices = (f"{self._too_few(link, now)}; the round is open again", *self._named_out(out))
        return Event("reopened", *place, now.asked, good, notices=notices)

    def _fold(self, link: sa.Connection, server: Server, now: records.Position) -> dict[str, int]:
        opened = self._opened
        if opened is None or opened.total is None or opened.total.round != now.round:
            raise ServiceError(f"the sum of round {now.round} is not here")
        total = opened.total
        # Noise belongs to the sum and is not cut.
        noisy = self._plan.terms.link.noise or self._plan.terms.contributes
        server.fold(total if noisy else cut_sum(total, self._plan.value_limit))
        return self._counts(link, now)

    def _forget(self, link: sa.Connection, now: records.Position) -> None:
        super()._forget(link, now)
        self._note(link, now)
        sums.forget(link, now.round)

    # --- what is said of devices ------------------------------------------------------------------

    def _note(self, link: sa.Connection, now: records.Position) -> None:
        """What a round that is over says of its devices, before its messages are forgotten. Whoever
        was left out by its own fault again and again is shut out."""
        place = now.round, now.attempt
        out = sums.who_is_out(link, *place)
        bad = [number for number, reason in out.items() if reason in FAULTS]
        notices = self._named_out(out)
        # Where most cannot be used, it is rather another party's fault.
        if len(bad) < sums.there(link, *place):
            for number, times in sums.offended(link, bad).items():
                why = (
                    "the server has shut this device out, because what it sent could not be used "
                    f"in {times} rounds"
                )
                records.shut(link, [number], why)
                notices.append(f"device {number} was shut out: it was left out of {times} rounds")
        self._notices = tuple(notices)

    def _named_out(self, out: Mapping[int, str]) -> list[str]:
        """Return sentences that name the devices left out of a round, and why."""
        return [
            words.format(", ".join(str(n) for n, why in out.items() if why == reason))
            + "; left out"
            for reason, words in _WORDS.items()
            if reason in out.values()
        ]

    def _counts(self, link: sa.Connection, now: records.Position) -> dict[str, int]:
        """How many were left out of the round, by reason."""
        return dict(Counter(sums.who_is_out(link, now.round, now.attempt).values()))

    # --- rounds without a sum ---------------------------------------------------------------------

    def _abandon(
        self,
        link: sa.Connection,
        now: records.Position,
        what: Literal["abandoned", "diverged"],
        state: str = "open",
    ) -> list[Event]:
        self._opened = None
        self._note(link, now)
        sums.forget(link, now.round)
        over, *opened = super()._abandon(link, now, what, state)
        return [replace(over, notices=self._notices), *opened]

    def _diverged(self, link: sa.Connection, now: records.Position) -> list[Event]:
        return self._give_up(link, now, "diverged", "folding would have made the model run off")

    def _give_up(
        self, link: sa.Connection, now: records.Position, what: What, why: str
    ) -> list[Event]:
        """Nothing of the round counts, and the next one begins from the same model."""
        found = records.model(link, now.round, self._plan.terms.width)
        if found is None:
            raise ServiceError(f"the database lacks the model of round {now.round}")
        items, changed = found
        over = self._end(link, now, "closing", "abandoned", "abandoned", what)
        records.drop_reports(link, now.round, now.attempt)
        self._note(link, now)
        sums.forget(link, now.round)
        memory = records.memory(link, now.round, len(items))
        after = self._algorithm.after_given_up(now.round)
        records.save_model(link, after, items, changed, memory)
        records.count_refusals(link, {what: 1})
        opened = self._open(link, after, 0) if after < now.target else None
        ended = replace(over, trouble=f"round {now.round} does not count: {why}")
        return [ended] if opened is None else [ended, opened]


def _ending(error: Exception) -> str:
    """How the kind of wait for a helper ends (`core.waiting`)."""
    if isinstance(error, HelperTerms):
        return "terms"
    return "refuses" if isinstance(error, HelperElsewhere | KeyTrouble) else "away"


class SummedCoordinator(SumCoordinator):
    """The same where reports are masked, and a helper knows the masks."""

    def __init__(self, plan: Plan, clock: Clock, ask: Ask) -> None:
        link = plan.terms.secure_sum
        if link is None:
            raise ConfigError("only a secure sum needs a helper that knows masks")
        release = plan.terms.release
        self._sigma = sigma_of(plan.terms.build(), release, link)
        self._largest = plan.terms.largest_value * release.steps
        most = most_devices(link, self._largest, self._sigma)
        super().__init__(plan, clock, link.min_devices, most)
        self._link, self._ask = link, ask

    def _objection(self, terms: Terms) -> Waits | None:
        return not_kept(terms, {"helper": self._ask})

    def _add_up(self, leader: Leader, now: records.Position) -> None:
        """Adds all that waits to the sum of the round, but for those whose seeds the helper cannot
        open."""
        place = now.round, now.attempt
        with leader.reading() as link:
            view, name = self._model(link, now.round)
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
            out = self._doubled(leader, {number: one.record.device for number, one in read})
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
            view, name = self._model(link, now.round)
            drawn = searches.drawn(link, now.round, now.attempt)
            searching = searches.found(link).on
        if drawn is None and not searching:
            return self._open_one(leader, now, view, name)
        several = True
        while True:
            if drawn is None:
                drawn = self._draw(leader, now, several)
            if min(map(len, drawn.groups)) < self._link.min_devices:
                raise _TooFew
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
            raise _TooFew
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
            return _Opened(drawn, (False,), self._read(total, answer), "")
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
            search, view = searches.found(link), self._model(link, now.round)[0]
            rows, width = self._algorithm.report_shape(view)
            devices = {
                number: decode_masked(body, terms, *place, rows * width).record.device
                for number, body in sums.bodies(link, *place)
            }
        out = self._doubled(leader, devices)
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

    def _note(self, link: sa.Connection, now: records.Position) -> None:
        """Also what a search has found; those who spoil sums are shut out."""
        super()._note(link, now)
        opened = self._opened
        if opened is None:
            return
        before, notices = searches.found(link), list(self._notices)
        drawn = opened.drawn
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
        self._notices = tuple(notices)

    def _counts(self, link: sa.Connection, now: records.Position) -> dict[str, int]:
        counts, opened = super()._counts(link, now), self._opened
        spoiled = 0 if opened is None else sum(opened.spoiled)
        return counts | ({"spoiled_group": spoiled} if spoiled else {})
