"""What a server tells Prometheus: where the federation stands, as `operator.status` says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sottovoce.core import waiting
from sottovoce.parties.server import Offered, quality_trouble, told_of
from sottovoce.services.kit.metrics import Figure, by, known, one_of, unix
from sottovoce.services.server.operator import status
from sottovoce.stores import operating, versions
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.wire.refusals import RefusalCounts

OUTCOMES = "goal", "deadline", "abandoned", "diverged", "wrong_sum", "sum_refused", "dropped"
STATES = "waiting", "open", "closing", "finished", "paused"
PARTIES = "devices", "helper", "shuffler", "aggregator 1", "aggregator 2", "operator", "server"
"""For which rounds may wait."""
Version = versions.ModelVersion | Offered


def figures(
    database: Database,
    tally: RefusalCounts,
    in_flight: int,
    plan: Plan | None = None,
    trouble: Mapping[str, str] | None = None,
    outcomes: operating.Outcomes | None = None,
) -> Iterator[Figure]:
    """`plan` and `trouble` as for `status`; `outcomes` remembers what it has counted."""
    now = status(database, tally, 1, plan, trouble=trouble)
    with database.reading() as link:
        counted, size = (outcomes or operating.Outcomes()).count(link), database.size(link)
        offered = versions.all_of(link)
    for name, words in (
        ("round", "Rounds folded so far."),
        ("attempt", "Attempt of the current round."),
        ("target", "Rounds to run."),
        ("reported", "Reports accepted in the open round."),
        ("goal", "Reports that the open round waits for."),
        ("asked", "Devices asked in the open round."),
        ("enrolled", "Devices that have enrolled and were not shut out."),
        ("active", "Enrolled devices that are asked."),
    ):
        yield Figure(name, words, now[name])
    yield Figure("shut_out", "Devices that were shut out.", len(now["shut_out"]))
    places = now["places"] or {"places": 0, "taken": 0}
    words = "Places for devices without an invitation, in all."
    yield Figure("open_places", words, places["places"])
    yield Figure("places_taken", "Devices that came without an invitation.", places["taken"])
    words = "Whether the server looks for a device that spoils sums."
    yield Figure("searching", words, int(now["search"]["on"]))
    yield from _of_rounds(now)
    ended = dict.fromkeys(OUTCOMES, 0) | counted
    yield by("outcome", "rounds", "Attempts at rounds that are over, by how they ended.", ended)
    yield from version_figures(now["published"], offered)
    words = "Whether an operator went back to the published version, which stays."
    yield Figure("published_pinned", words, int(now["pinned"] is not None))
    words = "Seconds after which a round ends, or is tried again; none without a plan."
    deadline = None if plan is None else plan.rules.deadline_seconds
    yield known("round_deadline_seconds", words, deadline)
    yield Figure("in_flight_bytes", "Bytes of reports being received.", in_flight)
    yield Figure("database_bytes", "Bytes of the database.", size)
    yield by("reason", "refused", "Messages refused, by reason.", now["refused"])


def _of_rounds(now: Mapping[str, Any]) -> Iterator[Figure]:
    idle, paused = now["state"] in ("waiting", "finished"), now["paused"] is not None
    state = "paused" if paused and idle else now["state"]
    words = "1 for the state in which the federation is."
    yield one_of("state", "state", words, STATES, state)
    yield Figure("paused", "Whether an operator has paused rounds.", int(paused))
    reason = now["reason"] or {"party": None, "since": None}
    words = "1 for the party for which rounds wait."
    yield one_of("party", "waiting", words, PARTIES, reason["party"])
    yield Figure(
        "waiting_reason",
        "1 for the reason for which rounds wait; `words` is its sentence.",
        [
            ((kind, wait.words), float(kind == reason.get("kind")))
            for kind, wait in waiting.ROUNDS.items()
        ],
        ("kind", "words"),
    )
    words = "Since when rounds wait for it, in seconds since 1970."
    yield known("waiting_since_timestamp_seconds", words, unix(reason["since"]))
    words = "When the open round was opened, in seconds since 1970."
    yield known("round_opened_timestamp_seconds", words, unix(now["opened"]))
    last = now["rounds"][-1] if now["rounds"] else {}
    yield known("last_round_seconds", "Seconds that the last round took.", last.get("seconds"))
    words = "When the last round ended, in seconds since 1970."
    yield known("last_round_end_timestamp_seconds", words, unix(last.get("ended")))
    words = "Devices that contributed to the last round."
    yield known("last_round_contributions", words, last.get("reported"))
    words = "Devices that were asked in the last round; 0 with a shuffler."
    yield known("last_round_asked", words, last.get("asked"))


def version_figures(published: int | None, offered: Sequence[Version]) -> Iterator[Figure]:
    """Return metrics of the version by which devices recommend, and of what they say about it."""
    words = "Version of the model by which devices recommend, where there are versions."
    yield known("published_version", words, published)
    later = [one for one in offered if one.held_back and one.version > (published or 0)]
    words = "Versions after the published one that were held back."
    yield Figure("versions_held_back", words, len(later))
    words = "Whether devices find the published version worse than another, or than popularity."
    yield Figure("quality_trouble", words, int(bool(quality_trouble(published, offered))))
    yield _quality(published, offered)


def _quality(published: int | None, offered: Sequence[Version]) -> Figure:
    """Return the quality of the published version and of popularity in the same sums, and of the
    newest version."""
    rates = {}
    found = told_of(published, offered)
    if found is not None:
        rates["published"] = found.quality.rate(found.which)
        rates["popularity"] = found.quality.rate("popularity")
    newest = max(offered, key=lambda one: (one.quality is not None, one.version), default=None)
    if newest is not None and newest.quality is not None:
        rates["newest"] = newest.quality.rate("candidate")
    values = [
        ((model, bound), value)
        for model, rate in rates.items()
        for bound, value in rate.to_table().items()
    ]
    words = (
        "Share of the users for whom one of ten recommendations is a hit, by what devices say, and "
        "its 95 % interval."
    )
    return Figure("quality", words, values, ("model", "bound"))
