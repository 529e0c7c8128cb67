"""`sottovoce device join`: from an invitation to taking part, in one command that asks before
anything leaves."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from sottovoce.cli import device_owners, output, plainly
from sottovoce.cli.device_files import csv_rows, for_owners, read_history
from sottovoce.cli.options import (
    AgentsServer,
    Json,
    PlaintextTrial,
    with_choices,
)
from sottovoce.core.words import Said, said
from sottovoce.errors import ConsentError, MessageError, ServiceError, UsageError

if TYPE_CHECKING:
    from sottovoce.core.choice import DrawnField
    from sottovoce.core.consent import Choice
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.session import DeviceSession
    from sottovoce.wire.terms import Terms


@with_choices
def join(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="Folder to make.")],
    given: Annotated[
        Path | None,
        typer.Argument(
            metavar="[INVITATION]", help="The same as --invitation.", show_default=False
        ),
    ] = None,
    invitation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file that the operator gave you."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A CSV file as for `device import`, or with data owners as for `device send`.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What to call the user.")] = "me",
    agree: Annotated[
        str,
        typer.Option(metavar="DIGEST", help="Agree to the terms with this digest, which you saw."),
    ] = "",
    refuse: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OWNER", help="Refuse a data owner, which must see nothing; repeatable."
        ),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Go on as the agent, as `serve device` does.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Do not ask whether a limit that protects nothing is meant."),
    ] = False,
    server: AgentsServer = None,
    plaintext: PlaintextTrial = False,
    as_json: Json = False,
    **changes: Any,
) -> None:
    """Join a federation, of devices or of data owners, and take part if you want to.

    It makes the store, unless it is there. It asks the server for the terms, which sends nothing of
    yours, and shows who sees what and what you would agree to. On a terminal it asks whether you
    agree, whether you take part and how loudly. Then it adds your history. Elsewhere than on a
    terminal nothing is agreed to without --agree, with the digest of terms that you have seen, and
    nobody takes part without --take-part. Whoever says no has a store from which nothing leaves,
    and gets recommendations all the same. Call it again, with STORE alone, to go on where it was
    cut off.

    The invitation is a secret: whoever uses it first is let in, and nobody else. It is used once
    you take part; until then nothing of yours leaves the store but the address that every
    connection shows. In a federation of data owners this reads the public directory of who holds
    what, and --history is sent as `sottovoce device send --end` does. If the orchestrator did not
    answer, call this again; if it has moved, with another invitation.

    \b
    Examples:
      sottovoce device join ~/sottovoce --invitation invitation.json --history visits.csv --stay
      sottovoce device join ~/sottovoce --agree 0123456789abcdef0123456789abcdef --take-part \\
          --epsilon 1
      sottovoce device join ~/films --invitation invitation.json --history ratings.csv
    """
    if given is not None and invitation is not None:
        raise UsageError("the invitation is given twice; name it once")
    file = given or invitation
    if history is not None:
        for _ in csv_rows(history, "item"):  # a wrong file is told before anything is made
            pass
    if "epsilon" in changes:
        from sottovoce.cli import spent

        spent.require_sane(changes["epsilon"])
    asking = sys.stdin.isatty() and not as_json
    if _is_of_owners(path, file):
        if agree:
            raise UsageError("a federation of data owners has no terms; leave --agree out")
        if changes.keys() - {"takes_part"}:
            raise UsageError(
                "with data owners --take-part and --refuse are what there is to choose"
            )
        part = changes.get("takes_part")
        device_owners.join(path, file, as_json, history, part, refuse or [], asking)
    else:
        if refuse:
            raise UsageError("this federation has no data owners that could be refused")
        told = _join_devices(path, file, name, history, agree, changes, yes, asking,
                             as_json, stay, (server, plaintext))  # fmt: skip
        if as_json:
            output.emit(told)
    if stay:
        _stay(path, server, plaintext)


def _stay(path: Path, server: str | None, plaintext: bool) -> None:
    """Serve the store from now on. Where this process may be another command's, it has then loaded
    nothing that is for joining alone. Windows cannot replace a process: the caller would believe
    that it has ended."""
    from sottovoce.engines.processes import sottovoce_command
    from sottovoce.services.agent.process import Options, serve_devices

    if click.get_current_context().obj and os.name == "posix":
        words = ["--server", server] if server else []
        words += ["--plaintext"] if plaintext else []
        command = sottovoce_command("serve", "device", path.resolve(), *words)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)
    serve_devices([path], Options(server, plaintext))


def _is_of_owners(path: Path, file: Path | None) -> bool:
    from sottovoce.stores.encrypted import DATABASE
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.user import UserStore

    if file is not None:
        return for_owners(file)
    if not (path / DATABASE).exists():
        raise UsageError("name the file that the operator gave you, with --invitation FILE")
    with open_store(path, readonly=True) as store:
        return isinstance(store, UserStore)


def _join_devices(
    path: Path,
    file: Path | None,
    name: str,
    history: Path | None,
    digest: str,
    changes: dict[str, Any],
    yes: bool,
    asking: bool,
    as_json: bool,
    stay: bool,
    where: tuple[str | None, bool],
) -> dict[str, Any]:
    """From an invitation to the first visit; what was done. Whoever has agreed and chosen is asked
    nothing again."""
    from sottovoce.cli.device_terms import agree_to, what_changed
    from sottovoce.stores.opening import open_cohort
    from sottovoce.stores.session import DeviceSession

    federation = _make(path, file, name)
    show = (lambda *lines: None) if as_json else output.show
    if federation is not None:
        made = said("device.made_invited", path=str(path), n=1, federation=federation)
        show(*output.told(made))
    _require_free(path)
    settled = _settled(path)
    with output.interruptible("what was agreed to and chosen is kept; call this again"):
        try:
            _visit(path, where)
        except ServiceError as error:
            if not (settled and stay):
                raise
            output.note(f"note: {error}")  # the agent asks again and again
    with open_cohort(path) as store:
        hosted = DeviceSession(store)
        number = int(store.users[0])
        before, pending = hosted.terms, hosted.pending
        terms = pending or before
        if terms is None:
            raise ServiceError(f"the server has shown no terms; call this again for {path}")
        if pending is not None:
            show(*plainly.in_words(terms, gateway=False))
            show(*what_changed(before, pending))
            show(*output.told(said("terms.digest", digest=terms.digest())))
        else:
            show(*output.told(_agreed_when(hosted)))
        if digest:
            agree_to(hosted, terms, digest, path)
        elif pending is not None and asking and _agrees():
            hosted.agree(terms)
        agreed = hosted.pending is None
        if not agreed:
            left = _has_left(store)
            show(*plainly.agreeing(terms, path, left=left))
        added = 0 if history is None else _bring(store, history, show)
        chosen = bool(store.records(number))
        if agreed and asking and not chosen and "takes_part" not in changes:
            changes = {**_asked(terms, changes), **changes}
        if changes:
            choice = replace(store.choice(number), **changes)
            plainly.ask_before(plainly.worth(choice, changes, terms), yes=yes, as_json=as_json)
            store.change_choice(number, lambda now: replace(now, **changes))
        choice = store.choice(number)
        show(*_stands(store, choice, terms))
        if chosen:
            command = f"sottovoce device consent {path}"
            show(*output.told(said("device.change_choice", command=command)))
    part = agreed and choice.takes_part
    if part and not settled:
        with output.interruptible("your choice is kept; to go on: sottovoce serve device"):
            _visit(path, where)
    if part and not stay:
        show(*output.told(said("device.goes_on", command=f"sottovoce serve device {path}")))
    return {
        "store": path,
        "federation": terms.federation,
        "terms": terms.digest(),
        "agreed": agreed,
        "takes_part": choice.takes_part,
        "choice": output.plain(choice),
        "added": added,
    }


def _make(path: Path, file: Path | None, name: str) -> str | None:
    """The store of an invitation, if there is none yet; the federation that a new one is invited
    to."""
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.encrypted import DATABASE
    from sottovoce.wire.invitations import Invitation

    if file is None:
        return None
    card = Invitation.read(file)
    there = (path / DATABASE).exists()
    store = CohortStore.open(path) if there else CohortStore.create(path, [(card.number, name)])
    with store:
        store.accept(card)
    return None if there else card.federation


def _settled(path: Path) -> bool:
    """Whether she has agreed to terms and has chosen."""
    from sottovoce.stores.opening import open_cohort
    from sottovoce.stores.session import DeviceSession

    with open_cohort(path, readonly=True) as store:
        hosted = DeviceSession(store)
        agreed = hosted.terms is not None and hosted.pending is None
        return agreed and bool(store.records(int(store.users[0])))


def _require_free(path: Path) -> None:
    from sottovoce.stores.opening import open_cohort

    with open_cohort(path, readonly=True) as store:
        if store.file.served():
            raise ServiceError(
                f"another program works with the store {path} now, so nothing was asked or changed "
                f"here; see how it stands with `sottovoce device status {path}`"
            )


def _has_left(store: CohortStore) -> bool:
    """Whether anything has left this store, if only that it is there."""
    return bool(store.requests()) or store.ledger_rows().num_rows > 0


def _agreed_when(hosted: DeviceSession) -> Said:
    when = hosted.agreed_at
    return said("terms.agreed") if when is None else said("terms.agreed_on", when=when)


def _visit(path: Path, where: tuple[str | None, bool]) -> None:
    """Ask once: what is published, or, for one who takes part and has agreed, all there is to
    do."""
    from sottovoce.services.agent.process import Options, visit_once

    server, plaintext = where
    try:
        visit_once(path, Options(server=server, plaintext=plaintext, once=True))
    except ConsentError:  # she took part before she had seen terms; they are there now
        return
    except (MessageError, ServiceError) as error:
        from sottovoce.stores.opening import open_cohort

        with open_cohort(path, readonly=True) as store:
            left = _has_left(store)
        how = "is as it was" if left else "is made and nothing has left"
        raise ServiceError(f"the store {path} {how}; call this again later: {error}") from None


def _agrees() -> bool:
    return typer.confirm(f"{output.joined(said('terms.agree'))}?", default=False)


def _bring(store: CohortStore, file: Path, show: Any) -> int:
    number = int(store.users[0])
    items, times = read_history(file, store, number).get(number, ([], None))
    with store.file.transaction():
        added, already = store.add_history(number, items, times)
    found = [said("device.added", n=added)]
    if already:
        found.append(said("device.already", n=already))
    unknown = [item for item in store.unknown() if item in set(items)]
    show(output.joined(*found))
    if unknown:
        named = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
        show(output.joined(said("device.unknown", n=len(unknown), names=named)))
    return added


def _stands(store: CohortStore, choice: Choice, terms: Terms) -> list[str]:
    from sottovoce.cli import spent

    number = int(store.users[0])
    cost = spent.spent_so_far(store, number)
    sums = spent.sums_of_store(store, number, terms, choice)
    lines = [output.joined(*plainly.chosen(choice, store.name(number)))]
    return [*lines, *output.told(*plainly.costs(choice, terms, cost, sums))]


# --- what is asked on a terminal -----------------------------------------------------------------


def _asked(terms: Terms, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Whether she takes part, and by which steps; as the consent centre asks it."""
    what, means = output.told(said("field.takes_part.label"), said("field.takes_part.help"))
    output.show(means)
    if not typer.confirm(f"{what}?", default=False):
        return {"takes_part": False}
    found: dict[str, Any] = {"takes_part": True}
    for field in (*terms.release.asked_for(), *terms.algorithm.asked_for()):
        if field.name in changes:
            continue
        if field.drawn == "count":  # fewer than the terms ask for means that nothing leaves
            found[field.name] = int(field.most)
        elif field.drawn == "limit":
            limit = _asked_limit(field, replace(_taking_part(terms), **found), terms)
            found |= {} if limit is None else {field.name: limit}
        elif field.steps:
            found[field.name] = _asked_step(field, terms)
    return found


def _asked_step(field: DrawnField, terms: Terms) -> float:
    import click

    from sottovoce.web.weighing import weigh

    words = f"field.{field.words or field.name}"
    output.show(*output.told(said(f"{words}.label"), said(f"{words}.help")))
    for place, (value, name) in enumerate(field.steps, start=1):
        means = said(f"step.{name}")
        if field.drawn == "epsilon":
            means = said(f"step.means.{name}")
        line = output.joined(means)
        right = None
        if field.drawn == "epsilon":
            right = weigh(replace(_taking_part(terms), epsilon=value), {}, terms).right
        if right is not None:
            caption, odds = output.told(said("odds.caption"), said("odds.step", right=round(right)))
            line += f" {caption}: {odds}."
        output.show(f"  {place}  {line}")
    count = len(field.steps)
    number: int = typer.prompt(f"1-{count}", type=click.IntRange(1, count))
    value, name = field.steps[number - 1]
    output.show(f"  {number} = {output.joined(said(f'step.{name}'))}")
    return float(value)


def _taking_part(terms: Terms) -> Choice:
    """Somebody who lets leave as many reports as these terms ask for."""
    from sottovoce.core.choice import Choice

    reports = terms.reporting.max_reports if terms.reporting is not None else 0
    return Choice(max_reports=reports)


def _asked_limit(field: DrawnField, choice: Choice, terms: Terms) -> float | None:
    from sottovoce.cli import spent
    from sottovoce.web.weighing import protecting

    words = f"field.{field.name}"
    what, means, none = output.told(
        said(f"{words}.label"), said(f"{words}.help"), said("page.no_limit")
    )
    output.show(means)
    cost = spent.round_cost(choice, terms)
    if cost is not None:
        from sottovoce.privacy.accountant import rounded_up

        each = "period" if terms.contributes else "round"
        uses = {"cost": rounded_up(cost), "limit": max(protecting(terms), rounded_up(cost))}
        output.show(*output.told(said(f"{words}.{each}", **uses)))
    while True:
        text = typer.prompt(f"{what} ({none}: Enter)", default="", show_default=False).strip()
        if not text:
            return None
        try:
            limit = float(text.replace(",", "."))
        except ValueError:
            limit = math.nan
        if limit >= 0:
            return limit
