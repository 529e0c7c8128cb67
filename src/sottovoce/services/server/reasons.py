"""Why no round moves on now: which party it waits for, since when, and what the operator can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sottovoce.stores.coordinator import Plan
from sottovoce.stores.operating import REFUSED
from sottovoce.stores.server import Position

_NAMED = 20
"""Devices that a reason names."""
Reason = Mapping[str, str | None]
"""`party`, `since` (UTC; None where nobody knows), `what` and `do`."""
_SILENT = "look who is silent with `sottovoce serve devices DIR --which silent`, or invite more"

_REFUSING = (
    "put back the catalogue that devices know: `sottovoce serve restore` from a newer copy, or "
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
    """Of the open round, through a shuffler: tier, parts that are here, parts in all."""
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


def reason(now: Situation) -> Reason | None:
    """None where a round moves on by itself at once."""
    at, plan = now.position, now.plan
    changing = now.amendment
    if changing is not None and changing["waits"] and at.state in ("finished", "waiting"):
        return _told(changing["party"], changing["since"], changing["waits"], changing["do"])
    if at.state == "finished" and (now.running or at.target):
        do = f"ask for more than {at.target} with `sottovoce serve target DIR --rounds N`"
        what = "as many rounds as were asked for are done"
        return _told("operator", _latest(now.ended, now.changed), what, do)
    if not now.running:
        do = f"start it with `{now.start}`"
        return _told("server", None, "no server runs from this folder", do)
    if now.away is not None:
        party = now.away["party"]
        the = party if party.startswith("aggregator") else f"the {party}"
        do = f"see that {the} runs and can be reached; it is asked again by itself"
        return _told(party, now.away["since"], now.away["what"], do)
    if now.trouble is not None:
        do = "see the server's log, and put right what it names"
        return _told("server", now.trouble["since"], now.trouble["what"], do)
    if at.state == "closing":
        return None
    if at.state == "open":
        if plan is None:
            return _told("devices", now.opened, f"round {at.round} waits for reports", "wait")
        return _of_batches(now, plan) if plan.proxied else _of_reports(now, plan)
    if now.paused is not None:
        why = f": {now.paused['why']}" if now.paused["why"] else ""
        what = f"{now.paused['who']} has paused rounds{why}"
        do = "let them go on with `sottovoce serve go-on DIR`"
        since = _latest(now.paused["since"], now.ended, now.changed)
        return _told("operator", since, what, do)
    return None if plan is None else _of_devices(now, plan)


def _latest(*moments: str | None) -> str | None:
    """What rounds wait for is not older than the last of what led to it."""
    return max((at for at in moments if at is not None), default=None)


def _told(party: str, since: str | None, what: str, do: str) -> Reason:
    return {"party": party, "since": since, "what": what, "do": do}


def _of_devices(now: Situation, plan: Plan) -> Reason | None:
    """No round can be opened with those who are there."""
    at, rules = now.position, plan.rules
    since = _latest(now.ended, now.changed, now.acted)
    if (at.round, at.attempt) == (0, 0) and now.enrolled < rules.min_devices:
        what = f"{now.enrolled} of the {rules.min_devices} devices that the first round needs"
        do = "invite more with `sottovoce serve invite DIR`, or wait until they enrol"
        return _told("devices", since, f"{what} have enrolled", do)
    if plan.proxied:
        return None
    if now.gathering is not None and now.active < rules.least(now.gathering):
        what = f"{now.active} of {now.gathering} devices have agreed to the changed terms by now"
        do = "wait; a round opens when most have agreed, or later with those who have by then"
        return _told("devices", since, what, do)
    goal = now.active if plan.cohort_size == "all" or plan.asks_all else plan.cohort_size
    least = max(rules.least(goal), _least_of_sum(plan))
    if now.active >= least:
        return None
    what = f"{now.active} of {now.enrolled} enrolled devices can be asked, and a round needs"
    do = _REFUSING if now.objections else _SILENT
    return _told("devices", since, f"{what} {least}{_who_cannot(now)}", do)


def _who_cannot(now: Situation) -> str:
    """Who was there before and cannot be asked."""
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
    """An open round waits for those who were asked."""
    at, sum_of = now.position, _least_of_sum(plan)
    least = max(plan.rules.least(at.goal), sum_of)
    what = f"{at.reported} of {at.goal} reports of round {at.round} are here"
    there = at.reported if now.summed is None else now.summed
    if there < at.reported:
        what += f", {there} of which can be summed"
    if there < least:
        needed = "its sum needs" if sum_of == least else "it needs"
        what += f"; {needed} at least {least}"
    if plan.terms.contributes and there < sum_of:
        return _told("devices", now.opened, what, f"the round stays open until then: {_SILENT}")
    if at.last_call:
        what += "; its deadline is over, and what is on its way still counts"
        return _told("devices", now.opened, what, f"wait: it ends within {plan.grace:.0f} seconds")
    ends = _deadline(now.opened, plan)
    if ends is None:
        return _told("devices", now.opened, what, "wait for the round's deadline")
    so = "it ends then" if there >= least else "it is tried again then unless enough come"
    return _told("devices", now.opened, what, f"wait until {ends:%H:%M}, the deadline: {so}")


def _of_batches(now: Situation, plan: Plan) -> Reason:
    """An open round waits for a shuffler, which waits for enough devices of each tier."""
    at, release = now.position, plan.terms.reporting
    tiers = () if release is None else release.tiers
    begun = [(tier, here, all) for tier, here, all in now.batches if here < all]
    if begun:
        tier, here, parts = begun[0]
        what = f"{here} of {parts} parts of the batch of tier {tier} are here"
        do = "see with whoever runs the shuffler that it runs; it goes on by itself"
        return _told("shuffler", now.opened, what, do)
    complete = {tier for tier, here, all in now.batches if here == all}
    missing = [tier for tier in range(len(tiers)) if tier not in complete]
    fewest = min((tiers[tier].min_devices for tier in missing), default=0)
    if now.enrolled < fewest:
        what = f"{now.enrolled} of the {fewest} devices that a batch has at least have enrolled"
        do = "invite more with `sottovoce serve invite DIR`, or wait until they enrol"
        return _told("devices", now.opened, what, do)
    names = ", ".join(map(str, missing))
    what = (
        f"no batch of tier {names} of round {at.round} is here; one has at least {fewest} devices"
    )
    do = "ask whoever runs the shuffler whether it runs, and whether enough devices have reported"
    return _told("shuffler", now.opened, what, do)


def _least_of_sum(plan: Plan) -> int:
    link = plan.terms.link.adds_up
    return 0 if link is None else link.min_devices


def _deadline(opened: str | None, plan: Plan) -> datetime | None:
    """By the clock of this machine. A server that was started again counts from its start."""
    if opened is None:
        return None
    seconds = timedelta(seconds=plan.rules.deadline_seconds)
    return (datetime.fromisoformat(opened) + seconds).astimezone()
