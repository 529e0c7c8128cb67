"""Why rounds wait: for which party, since when, and what the operator can do.

The reason is computed in one place. A running server reads the situation from its
database, adds what it alone knows (`trouble`), and publishes the kind of wait in the state of the
round. `serve status`, the console and the figures get the whole reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self, cast

import sqlalchemy as sa

from sottovoce.algorithms.base import Contributing
from sottovoce.core.waiting import WAITS
from sottovoce.parties.rounds import RoundMachine, Shortage, Tally
from sottovoce.parties.shuffler import spare_of
from sottovoce.stores import amending, batches, operating, sums, versions
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import WAITS as WAITS_FOR
from sottovoce.stores.coordinator import Plan, available
from sottovoce.stores.operating import REFUSED
from sottovoce.stores.server import Position

_NAMED = 20
"""The largest number of devices that a reason lists."""
_FULL = ("disk is full", "no space left", "disk full", "could not extend")
"""What databases and operating systems write if a disk is full."""
Reason = Mapping[str, str | None]
"""`kind` and its sentence `words` (`core.waiting`) are public. The others are for the operator:
`party`, `since` (UTC; None if unknown), `what` with the numbers, and what to `do`."""
_SILENT = "look who is silent with `sottovoce serve devices DIR --which silent`, or invite more"

_REFUSING = (
    "put back the catalogue that devices know: `sottovoce restore` from a newer copy, or "
    "the same changes again with `sottovoce serve catalogue`"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the reason follows from."""

    position: Position
    enrolled: int
    active: int
    """Enrolled devices that can be asked."""
    plan: Plan | None = None
    """None where only the database is known; then less can be told."""
    opened: str | None = None
    """When the open round was, or the last one."""
    ended: str | None = None
    """When the last round did."""
    paused: Mapping[str, str] | None = None
    away: Mapping[str, str] | None = None
    """Another party that does not answer (`operating.keep_since`)."""
    trouble: Mapping[str, str] | None = None
    """What is wrong with the server itself."""
    batches: Sequence[tuple[int, int, int]] = ()
    """Batches of the open round, through a shuffler: tier, parts that are here, parts in all."""
    summed: int | None = None
    """Submissions of the open round that can be in its sum, where there is one."""
    running: bool = True
    """Whether there is a server."""
    start: str = "sottovoce serve server DIR"
    """How to start it."""
    amendment: Mapping[str, Any] | None = None
    """A change of terms that waits (`amending.Proposed`)."""
    changed: str | None = None
    """When the terms were last changed."""
    shut_out: Sequence[int] = ()
    """Devices that had enrolled."""
    unagreed: int = 0
    """Enrolled devices that were not heard of since the terms were changed."""
    acted: str | None = None
    """When an operator last made rounds wait for devices (`operating.last_acted`)."""
    objections: Mapping[str, int] = field(default_factory=dict)
    """How many devices refuse what is published, by what they refuse."""
    gathering: int | None = None
    """Devices that were asked before the terms were changed, until a round opens under others."""
    contributed: int = 0
    """Contributions to the stage of the open round that came in earlier rounds of its period."""
    rests: str | None = None
    """When the rest of devices that contributed to an earlier period ends (UTC)."""
    held_back: int | None = None
    """The newest version of the model, if it was held back."""

    @classmethod
    def read(
        cls,
        link: sa.Connection,
        plan: Plan | None,
        *,
        trouble: Mapping[str, str] | None = None,
        running: bool = True,
        start: str = "sottovoce serve server DIR",
    ) -> Self:
        """Read the situation from the database; `trouble` is what only the server process knows."""
        now = records.position(link)
        enrolled, active = records.count_devices(link)
        amendment, gathering = amending.proposed(link), records.fact(link, amending.GATHERING)
        changed = amending.last_change(link)
        since = None if changed is None else changed["at"]
        opened, ended = operating.last_times(link)
        held_back = [one.version for one in versions.all_of(link)[-1:] if one.held_back]
        contributed, rests = 0, None
        if plan is not None and plan.terms.contributes:
            contributed = _contributed(link, plan, now)
            rests = _rests(link, plan, now, 0 if changed is None else int(changed["round"]))
        away = operating.since_when(link, operating.AWAY) if records.fact(link, WAITS_FOR) else None
        summing = plan is not None and plan.terms.link.adds_up is not None
        return cls(
            position=now,
            enrolled=enrolled,
            active=active,
            plan=plan,
            opened=opened,
            ended=ended,
            paused=operating.paused(link),
            away=away,
            trouble=trouble or operating.since_when(link, operating.TROUBLE),
            batches=[(one.tier, one.stored, one.parts) for one in batches.heads(link, now.round)],
            summed=sums.there(link, now.round, now.attempt) if summing else None,
            running=running,
            start=start,
            amendment=None if amendment is None else amendment.to_table(),
            changed=since,
            shut_out=operating.shut_out_devices(link),
            unagreed=0 if since is None else operating.count_unagreed(link, since),
            acted=operating.last_acted(link, now.round),
            objections=operating.count_objections(link),
            gathering=None if gathering is None else int(gathering),
            contributed=contributed,
            rests=rests,
            held_back=held_back[0] if held_back else None,
        )


def _contributed(link: sa.Connection, plan: Plan, now: Position) -> int:
    """Count the contributions to the stage of this round in earlier batches of its period. A device
    contributes to a stage once."""
    algorithm = cast(Contributing, plan.terms.build())
    each = len(algorithm.shares)
    first = algorithm.period(now.round) * each * algorithm.batches + algorithm.stage(now.round)
    return operating.count_reported(link, range(first, now.round + 1, each), now.attempt)


def _rests(link: sa.Connection, plan: Plan, now: Position, changed: int) -> str | None:
    """Return until when devices rest that contributed to an earlier period or under other terms."""
    own, algorithm = plan.terms.release.contributing, cast(Contributing, plan.terms.build())
    if own is None or not own.period_days:
        return None
    first = algorithm.period(now.round) * len(algorithm.shares) * algorithm.batches
    ended = operating.last_ended(link, max(first, changed))
    if ended is None:
        return None
    until = datetime.fromisoformat(ended) + timedelta(days=own.period_days)
    return until.isoformat(timespec="seconds") if until > datetime.now(UTC) else None


def trouble_kind(what: str) -> str:
    """Return the kind of wait for this error of the server."""
    return "disk_full" if any(words in what.lower() for words in _FULL) else "server_trouble"


def reason(now: Situation) -> Reason | None:
    """Return why rounds wait; None if the round moves on by itself."""
    at, plan = now.position, now.plan
    changing = now.amendment
    if changing is not None and changing["waits"] and at.state in ("finished", "waiting"):
        told = changing["party"], changing["since"], changing["waits"], changing["do"]
        return _reason("amendment", *told)
    if at.state == "finished" and (now.running or at.target):
        since = _latest(now.ended, now.changed)
        do = f"ask for more than {at.target} with `sottovoce serve target DIR --rounds N`"
        if now.held_back is not None:
            what = f"version {now.held_back} of the model was held back"
            do = f"see `sottovoce serve versions DIR`; publish it or another one, or {do}"
            return _reason("held_back", "operator", since, what, do)
        what = f"{at.target} of {at.target}"
        return _reason("done", "operator", since, what, do)
    if not now.running:
        do = f"start it with `{now.start}`"
        return _reason("no_server", "server", None, "no server runs from this folder", do)
    if now.away is not None:
        return _of_away(now.away)
    if now.trouble is not None:
        since, what = now.trouble["since"], now.trouble["what"]
        kind = trouble_kind(what)
        do = "see the server's log, and put right what it names"
        if kind == "disk_full":
            do = "make room on the disk of the server; nothing that was acknowledged is lost"
        return _reason(kind, "server", since, what, do)
    if at.state == "closing":
        return None
    if at.state == "open":
        if plan is None:
            what = f"round {at.round} waits for reports"
            return _reason("reports", "devices", now.opened, what, "wait")
        return _of_batches(now, plan) if plan.proxied else _of_reports(now, plan)
    if now.paused is not None:
        why = f": {now.paused['why']}" if now.paused["why"] else ""
        what = f"{now.paused['who']} has paused rounds{why}"
        do = "let them go on with `sottovoce serve pause DIR --undo`"
        since = _latest(now.paused["since"], now.ended, now.changed)
        return _reason("paused", "operator", since, what, do)
    return None if plan is None else _of_devices(now, plan)


def _of_away(away: Mapping[str, str]) -> Reason:
    """Another party does not answer, or refuses."""
    party = away["party"]
    kind = away.get("kind") or f"{party.split()[0]}_away"
    the = party if party.startswith("aggregator") else f"the {party}"
    again = "it is asked again by itself"
    do = f"see that {the} runs and can be reached; {again}"
    if kind.endswith("_terms"):
        command = party.split()[0]
        do = (
            f"have both keep the same terms: hand over the file of `sottovoce serve introduce "
            f"DIR`, for `sottovoce serve {command} DIR --introduction FILE`; if a copy was put "
            f"back, put back one that is as new as the other party; {again}"
        )
    elif kind.endswith("_refuses"):
        do = (
            f"see that {the} is that of this federation, of this release, and has the introduction "
            f"that `sottovoce serve introduce DIR` writes; {again}"
        )
    return _reason(kind, party, away["since"], away["what"], do)


def _latest(*moments: str | None) -> str | None:
    """Return the latest of these moments: a wait begins with the last event that led to it."""
    return max((at for at in moments if at is not None), default=None)


def _reason(kind: str, party: str, since: str | None, what: str, do: str) -> Reason:
    words = WAITS[kind].words
    return {
        "kind": kind, "words": words, "party": party, "since": since, "what": what, "do": do,
    }  # fmt: skip


def _of_devices(now: Situation, plan: Plan) -> Reason | None:
    """Return why no round can be opened with the devices that can be asked; None if it can."""
    at, machine = now.position, RoundMachine(plan.rules, plan.link_rules)
    since = _latest(now.ended, now.changed, now.acted)
    there = available(plan, now.enrolled, now.active, now.gathering)
    wait = machine.opening((at.round, at.attempt) == (0, 0), there)
    if wait is None:
        return None
    if wait.kind == "few_enrolled":
        what = f"{wait.have} of the {wait.need} devices that the first round needs have enrolled"
        do = "invite more with `sottovoce serve invite DIR`, or wait until they enrol"
        return _reason("few_enrolled", "devices", since, what, do)
    if wait.kind == "few_agreed":
        least = machine.need(now.active if there.goal is None else there.goal)
        return _of_agreement(now, wait, least, since)
    what = f"{wait.have} of {now.enrolled} enrolled devices can be asked, and a round needs"
    do = _REFUSING if now.objections else _SILENT
    return _reason("few_active", "devices", since, f"{what} {wait.need}{_who_cannot(now)}", do)


def _of_agreement(now: Situation, wait: Shortage, least: int, since: str | None) -> Reason:
    """After a change of terms, a round opens when most of the devices from before have agreed.
    When a round's time is over, `least` are enough."""
    what = f"{wait.have} of {now.gathering} devices have agreed to the changed terms by now"
    do = f"wait; a round opens when {wait.need} have agreed"
    if least < wait.need:
        do += f", or at the end of a round's time with those who have by then, {least} at least"
    return _reason("few_agreed", "devices", since, what, do)


def _who_cannot(now: Situation) -> str:
    """Say which enrolled devices cannot be asked, and why."""
    found = []
    if now.shut_out:
        some = ", ".join(map(str, now.shut_out[:_NAMED])) + (", …" if now.shut_out[_NAMED:] else "")
        found.append(f"{len(now.shut_out)} {_is(len(now.shut_out))} shut out: {some}")
    if now.unagreed:
        has = "has" if now.unagreed == 1 else "have"
        why = f"{has} not agreed to the changed terms yet, or {has} not asked since"
        found.append(f"{now.unagreed} {why}")
    for what, many in sorted(now.objections.items()):
        found.append(f"{many} refuse{'s' * (many == 1)} the {what}: {REFUSED[what]}")
    silent = now.enrolled - now.active - now.unagreed - sum(now.objections.values())
    if silent > 0:
        found.append(f"{silent} {_is(silent)} silent")
    return f"; {'; '.join(found)}" if found else ""


def _is(many: int) -> str:
    return "is" if many == 1 else "are"


def _of_reports(now: Situation, plan: Plan) -> Reason:
    """Return why an open round waits for the devices that were asked."""
    at = now.position
    there = at.reported if now.summed is None else now.summed
    machine = RoundMachine(plan.rules, plan.link_rules, plan.grace)
    wait = machine.wait(Tally(at.goal, at.asked, at.reported, there), called=at.last_call)
    least = machine.need(at.goal)
    what = f"{at.reported} of {at.goal} reports of round {at.round} are here"
    if there < at.reported:
        what += f", {there} of which can be summed"
    if there < least:
        summing = plan.terms.link.adds_up is not None and plan.link_rules.least == least
        needed = "its sum needs" if summing else "it needs"
        what += f"; {needed} at least {least}"
    if wait.until == "enough":
        return _of_contributions(now, what, wait.need)
    if wait.until == "grace":
        what += "; its deadline is over, and what is on its way still counts"
        do = f"wait: it ends within {plan.grace:.0f} seconds"
        return _reason("reports", "devices", now.opened, what, do)
    if wait.until == "others":
        # The others' submissions are kept, and nobody who was left out can send again.
        do = f"the round stays open until others come in their place: {_SILENT}"
        return _reason("reports", "devices", now.opened, what, do)
    ends = _deadline(now.opened, plan)
    when = "for the round's deadline" if ends is None else f"until {ends:%H:%M}, the deadline"
    so = "it ends then" if there >= least else "it is tried again then unless enough come"
    do = f"wait {when}: {so}"
    return _reason("reports", "devices", now.opened, what, do)


def _of_contributions(now: Situation, what: str, least: int) -> Reason:
    """Return why a sum over too few contributions stays open. A device contributes once."""
    left = now.enrolled + len(now.shut_out) - now.contributed
    if now.contributed and left < least:
        what += f"; {now.contributed} devices have contributed to this period in earlier batches"
        do = "invite more with `sottovoce serve invite DIR`: those who have contributed cannot help"
        return _reason("counted", "devices", now.opened, what, do)
    if now.rests is not None:
        until = datetime.fromisoformat(now.rests).astimezone()
        do = f"wait until {until:%Y-%m-%d}, or invite more with `sottovoce serve invite DIR`"
        return _reason("resting", "devices", now.opened, what, do)
    do = f"the round stays open until then: {_SILENT}"
    return _reason("reports", "devices", now.opened, what, do)


def _of_batches(now: Situation, plan: Plan) -> Reason:
    """Return why an open round waits for a shuffler, which waits for enough devices per tier."""
    at, release = now.position, plan.terms.reporting
    tiers = () if release is None else release.tiers
    begun = [(tier, here, all) for tier, here, all in now.batches if here < all]
    if begun:
        tier, here, parts = begun[0]
        what = f"{here} of {parts} parts of the batch of tier {tier} are here"
        do = "see with whoever runs the shuffler that it runs; it goes on by itself"
        return _reason("batch_part", "shuffler", now.opened, what, do)
    complete = {tier for tier, here, all in now.batches if here == all}
    missing = [tier for tier in range(len(tiers)) if tier not in complete]
    least = [tiers[tier].min_devices for tier in missing]
    if plan.terms.chained:
        least = [one + spare_of(one) for one in least]
    fewest = min(least, default=0)
    if now.enrolled < fewest:
        what = f"{now.enrolled} of the {fewest} devices that a batch has at least have enrolled"
        do = "invite more with `sottovoce serve invite DIR`, or wait until they enrol"
        return _reason("few_enrolled", "devices", now.opened, what, do)
    names = ", ".join(map(str, missing))
    what = (
        f"no batch of tier {names} of round {at.round} is here; one has at least {fewest} devices"
    )
    do = "ask whoever runs the shuffler whether it runs, and whether enough devices have reported"
    return _reason("batch", "shuffler", now.opened, what, do)


def _deadline(opened: str | None, plan: Plan) -> datetime | None:
    """Return when the round ends, by the clock of this machine; None if that is not known. After a
    restart of the server, and in a round that is open again, the time counts anew."""
    if opened is None:
        return None
    ends = datetime.fromisoformat(opened) + timedelta(seconds=plan.rules.deadline_seconds)
    return ends.astimezone() if ends > datetime.now(UTC) else None
