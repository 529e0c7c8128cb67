"""What `sottovoce device ...` says to a person who knows nothing of the project, as sentences of
the catalogue: consequences first, no ε."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sottovoce.cli import output, spent
from sottovoce.core.hiding import BROKEN, REASONS, Hidden
from sottovoce.core.words import Said, said
from sottovoce.errors import UsageError
from sottovoce.privacy.statements import guess, verdict

if TYPE_CHECKING:
    from sottovoce.core.consent import Choice
    from sottovoce.core.ledger import Totals
    from sottovoce.evaluation.tables import Table
    from sottovoce.wire.plainly import Onlooker
    from sottovoce.wire.terms import Terms

_NAMED = 10


def chosen(choice: Choice, name: str) -> list[Said]:
    """A choice as the person reads it who made it."""
    if not choice.takes_part:
        return [said("device.takes_no_part", name=name)]
    found = [said("device.takes_part", name=name)]
    if choice.share_positives:
        found.append(said("device.shares", share=choice.share_positives))
    elif not (choice.max_reports or choice.epsilon):
        found.append(said("device.shares_none"))
    if choice.max_reports:
        loud = {"n": choice.max_reports, "epsilon": choice.epsilon}
        found.append(said("device.speaks_reports", **loud))
    elif choice.epsilon:
        found.append(said("device.speaks", epsilon=choice.epsilon))
    if math.isfinite(choice.total_epsilon):
        found.append(said("device.limit", limit=choice.total_epsilon))
    if choice.hidden_attributes:
        found.append(said("device.hides", names=list(choice.hidden_attributes)))
    if choice.refused_owners:
        found.append(said("device.refuses", names=list(choice.refused_owners)))
    if choice.never_send:
        found.append(said("device.never", names=list(choice.never_send)))
    return found


# --- what a limit is worth, before it is set -----------------------------------------------------


def worth(choice: Choice, changes: Mapping[str, Any], terms: Terms | None) -> list[Said]:
    """What the loudness and the limit of a choice protect, where one of them is changed."""
    from sottovoce.web.weighing import delta_of, limit_words, odds_words

    found: list[Said] = []
    cost = spent.round_cost(choice, terms)
    if terms is None and choice.max_reports and choice.epsilon:
        cost = choice.max_reports * choice.epsilon
    if changes.keys() & {"epsilon", "max_reports"} and cost is not None:
        delta = delta_of(terms)
        found.append(odds_words(guess(cost, delta), terms))
        found.append(said(f"verdict.{verdict(cost, delta)}"))
    if "total_epsilon" in changes:
        found += limit_words(choice.total_epsilon, terms)
    return found


def ask_before(found: Sequence[Said], *, yes: bool, as_json: bool) -> None:
    """Says what a limit is worth before it is set; where it protects nothing, asks on a terminal.
    Raises where the answer is no."""
    if as_json:
        return
    output.show(*output.told(*found))
    bad = {"verdict.limit_nothing", "verdict.limit_none", "verdict.nothing"}
    if yes or not bad & {one.key for one in found} or not sys.stdin.isatty():
        return
    if not typer.confirm(output.joined(said("verdict.ask"))):
        raise UsageError("nothing was changed")


# --- what is hidden at once ----------------------------------------------------------------------

_STOPPED = dict(zip(REASONS, ("nothing", "far", "tired", "broken"), strict=True))


def hid(names: Sequence[str], hidden: Hidden | None, *, no_model: bool) -> list[Said]:
    """What became of a device's own numbers when its user hid these attributes, and what that
    cannot take back."""
    if not names:
        return []
    if hidden is not None:
        return [*moved(hidden), said("hiding.cannot")]
    return [said("hiding.first", names=list(names))] if no_model else []


def moved(hidden: Hidden) -> list[Said]:
    """How far a vector moved, and why it stopped; or that it could not move."""
    names, why = list(hidden.attributes), _STOPPED[hidden.reason]
    if hidden.reason == REASONS[BROKEN]:
        return [said(f"hiding.{why}", names=names)]
    way = float(f"{hidden.moved:.3g}")
    return [said("hiding.moved", names=names, moved=way), said(f"hiding.{why}")]


# --- what a choice costs -------------------------------------------------------------------------


def costs(
    choice: Choice, terms: Terms | None, used: float, sums: spent.SumBudget | None = None
) -> list[Said]:
    """Whether anything leaves under a choice, what a round of it uses, how long the limit lasts."""
    from sottovoce.cli.device_attributes import without_filter
    from sottovoce.wire.plainly import is_bounded, objection

    if not choice.takes_part:
        return []
    if terms is None:
        most = choice.max_reports * choice.epsilon
        return _round(choice, used, most, choice.max_reports) if most else []
    why = objection(terms, choice, without_filter(choice, terms), noisy_sums=sums is not None)
    if why is not None:
        advice = [said("device.choose", options=why.options)] if why.options else []
        return [why.said, *advice]
    cost = spent.round_cost(choice, terms)
    if cost is not None:
        reports = terms.reporting.max_reports if terms.reporting is not None else 0
        return _round(choice, used, cost, reports, "period" if terms.contributes else "round")
    if sums is not None:
        return summed(sums)
    if math.isfinite(choice.total_epsilon) and not is_bounded(terms):
        return [said("verdict.limit_useless")]
    return [said("verdict.none")]


def _round(
    choice: Choice, used: float, cost: float, reports: int, each: str = "round"
) -> list[Said]:
    from sottovoce.web.weighing import lasting

    first, *rest = lasting(choice, used, cost, each)
    if reports:
        first = said("costs.reports", n=reports, cost=_up(cost))
    return [first, *rest]


def _up(epsilon: float) -> float:
    from sottovoce.privacy.accountant import rounded_up

    return rounded_up(epsilon)


def summed(sums: spent.SumBudget) -> list[Said]:
    """What rounds of noisy sums have used."""
    all_used = _up(sums.cost + sums.other)
    found = [said("costs.sums", n=sums.rounds, spent=all_used)] if sums.rounds else []
    found.append(said("costs.next", after=_up(sums.after_next)))
    if math.isinf(sums.limit):
        found.append(said("costs.no_limit"))
    elif sums.rounds_left < 1:
        found.append(said("costs.no_room", limit=sums.limit))
    else:
        found.append(said("costs.lasts_rounds", n=int(sums.rounds_left), limit=sums.limit))
    if sums.plain:
        found.append(said("costs.plain", n=sums.plain))
    return [*found, said("costs.helper")]


def used(budget: spent.Budget) -> list[Said]:
    """What has been used of a limit, and what that is worth."""
    shown = _up(budget.spent)
    left = budget.rounds_left
    if math.isinf(budget.limit):
        found = [said("stands.meter_open", spent=shown)]
    elif left is None:
        found = [said("stands.meter_plain", spent=shown, limit=budget.limit)]
    elif left < 1:
        found = [said("stands.meter_full", spent=shown, limit=budget.limit)]
    else:
        key = "stands.meter_periods" if budget.each == "period" else "stands.meter"
        found = [said(key, spent=shown, limit=budget.limit, n=int(left))]
    worth = verdict(budget.spent, budget.account.delta if budget.sums else 0.0)
    if worth != "good":
        found.append(said(f"stands.meter_{worth}"))
    if budget.unbounded:
        found.append(said("ledger.total_words.no_bound"))
    return found


# --- who sees what, and the terms ----------------------------------------------------------------


def seen(found: Sequence[Onlooker]) -> list[str]:
    """Who sees what, a line for each of them."""
    lines: dict[str, list[str]] = {}
    for reader in found:
        who, sees = output.told(reader.who, reader.sees)
        lines.setdefault(who, []).append(sees)
    return [f"{who}: {' '.join(sees)}" for who, sees in lines.items()]


def readers(terms: Terms, *, gateway: bool) -> list[str]:
    """Who sees what under these terms, a line for each of them."""
    from sottovoce.wire.plainly import onlookers

    return seen(onlookers(terms, gateway=gateway))


def agreeing(terms: Terms, path: Path, *, left: bool = False) -> list[str]:
    """That nothing leaves yet, or nothing more, and how to agree."""
    command = f"sottovoce device agree {path} --terms {terms.digest()}"
    why = said("quiet.terms_changed" if left else "quiet.terms")
    return output.told(why, said("terms.agree_hint", command=command))


def asking(path: Path) -> list[str]:
    """That nobody knows the terms, and how to ask for them."""
    return output.told(
        said("quiet.no_terms"),
        said("device.next_terms", command=f"sottovoce serve device {path} --once"),
        said("device.next_agree", command=f"sottovoce device agree {path}"),
    )


def in_words(terms: Terms, *, gateway: bool, agreed: bool = False) -> list[str]:
    """Who sees what under these terms, and what else she would agree to, or has."""
    from sottovoce.wire.plainly import agreed_to

    what = said("device.terms_agreed" if agreed else "device.terms")
    first, second = output.told(said("device.who_reads"), what)
    sight = [f"  {line}" for line in readers(terms, gateway=gateway)]
    rest = [f"  {line}" for line in output.told(*agreed_to(terms, gateway=gateway))]
    return [first, *sight, second, *rest]


# --- what has left -------------------------------------------------------------------------------


def left(totals: Totals, plain: int) -> list[Said]:
    """Sums of a ledger; of its releases, `plain` had no noise at all, not even in a sum."""
    if not totals.releases:
        return [said("stands.nothing")]
    found = [said("ledger.total_words.left", n=totals.releases, size=totals.bytes)]
    if totals.reports:
        found.append(said("ledger.total_words.reports", n=totals.reports))
    if totals.positive_rows or totals.negative_rows:
        rows = {"positive": totals.positive_rows, "negative": totals.negative_rows}
        found.append(said("ledger.total_words.rows", **rows))
    if math.isfinite(totals.epsilon):
        return found
    how = "no_bound" if 0 < plain < totals.releases else "no_noise" if plain else "helper_noise"
    return [*found, said(f"ledger.total_words.{how}")]


def ledger_table(lines: Sequence[dict[str, Any]], names: Mapping[int, str] | None) -> Table:
    """What left, newest last. With `names`, says whose it is."""
    from sottovoce.evaluation.tables import Column, Table

    keys = ["when", "what", "state", "size", "used"]
    heads = output.told(*(said(f"ledger.{key}") for key in keys))
    whose = [] if names is None else [Column("who", output.joined(said("ledger.who")))]
    columns = [*whose, *(Column(key, head) for key, head in zip(keys, heads, strict=True))]
    rows = []
    for line in lines:
        cost = line["epsilon"]
        shown = said("ledger.no_bound") if cost is None else said("ledger.number", number=_up(cost))
        values = output.told(
            said("ledger.day", when=line["time"]),
            said(f"ledger.{_kind(line)}"),
            said(f"ledger.states.{line['state']}"),
            said("page.size", size=line["bytes"]),
            shown,
        )
        row = dict(zip(keys, values, strict=True))
        if names is not None:
            row["who"] = output.one_line(names.get(line["user"], str(line["user"])))
        rows.append(row)
    (title,) = output.told(said("page.ledger"))
    return Table(title, columns, rows)


def things_named(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Which things were in each of these reports, a line for each report."""
    found = []
    for line in lines:
        names = [output.one_line(one["title"]) for one in line.get("things", ())]
        if names:
            when, many = said("ledger.day", when=line["time"]), said("ledger.items_n", n=len(names))
            head = ": ".join(output.told(when, many))
            more = ", …" if len(names) > _NAMED else ""
            found.append(f"  {head}: {', '.join(names[:_NAMED])}{more}")
    return found


def _kind(line: Mapping[str, Any]) -> str:
    if line["kind"] == "own-epsilon":
        return "contribution"
    if line["reports"]:
        return "reports"
    return "update" if line["epsilon"] is None else "update_noise"
