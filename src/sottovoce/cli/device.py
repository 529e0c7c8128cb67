"""`sottovoce device ...`: what a person does with her store, also while the agent runs.

A store knows its federation. These are the commands of all, and what they do in a federation of
devices; what they do in one of data owners is in `device_owners`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import device_owners, output
from sottovoce.cli.device_files import for_owners, read_history, read_users
from sottovoce.cli.options import Json, Store, User, with_choices
from sottovoce.core.words import Said, said
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.core.consent import Choice
    from sottovoce.stores.device import CohortStore


def init(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="Folder to make.")],
    invitation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The operator's invitation; may also come later."),
    ] = None,
    name: Annotated[str, typer.Option(help="What to call the user.")] = "me",
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A gateway's users: a CSV file with the columns number[,name]."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a store: encrypted, with its key beside it in a file that only you can read.

    STORE is the folder to make. Whoever has the whole folder can read it: keep store.key apart
    from copies. A store without an invitation works on its own; call this again with --invitation
    to join a federation (`sottovoce device join` does both).

    \b
    Examples:
      sottovoce device init ~/sottovoce --invitation invitation.json
      sottovoce device init gateway --users users.csv
    """
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.encrypted import DATABASE

    if invitation is not None and users is not None:
        raise UsageError("an invitation is for one device; choose one of --invitation and --users")
    card = None
    if invitation is not None:
        from sottovoce.wire.invitations import Invitation

        if for_owners(invitation):
            device_owners.join(path, invitation, as_json)
            return
        card = Invitation.read(invitation)
    if card is not None and (path / DATABASE).exists():
        store = CohortStore.open(path)
    else:
        people = [(card.number if card else 0, name)] if users is None else read_users(users)
        store = CohortStore.create(path, people)
    with store:
        if card is not None:
            store.accept(card)
        numbers = store.users.tolist()
    if as_json:
        federation = card.federation if card else None
        output.emit({"store": path, "users": len(numbers), "federation": federation})
        return
    made = said("device.made", path=str(path), n=len(numbers))
    if card is not None:
        made = said(
            "device.made_invited", path=str(path), n=len(numbers), federation=card.federation
        )
    output.show(*output.told(made, said("device.until_part")))
    if card is not None:
        output.show(
            *output.told(
                said("device.next_terms", command=f"sottovoce serve device {path} --once"),
                said("device.next_agree", command=f"sottovoce device agree {path}"),
                said("device.next_choose", command=f"sottovoce device consent {path} --help"),
            )
        )


def bring(
    path: Store,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file with a header.")],
    user: User = None,
    as_json: Json = False,
) -> None:
    """Add interactions from a CSV file. Importing a file twice adds nothing.

    FILE has a header and the columns item[,timestamp] (seconds since 1970), and for a store of
    several users also user (name or number). Everything is added, or nothing if a line is wrong.

    In a federation of data owners the columns are those of `sottovoce device send`; what you permit
    waits in the store until that, or `sottovoce serve device`, sends it.

    \b
    Example:
      sottovoce device import ~/sottovoce visits.csv
    """
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.user import UserStore, whose

    with open_store(path) as store:
        if isinstance(store, UserStore):
            device_owners.bring(store, file, whose(store, user), as_json)
            return
        alone = None if user is None and len(store.users) > 1 else whose(store, user)
        histories = read_history(file, store, alone)
        added = already = 0
        with store.file.transaction():
            for number, (items, times) in histories.items():
                new, old = store.add_history(number, items, times)
                added, already = added + new, already + old
        mentioned = {item for items, _ in histories.values() for item in items}
        unknown = [item for item in store.unknown() if item in mentioned]
    if as_json:
        output.emit(
            {"store": path, "added": added, "already_there": already, "unknown": len(unknown)}
        )
        return
    found = [said("device.added", n=added)]
    if already:
        found.append(said("device.already", n=already))
    output.show(output.joined(*found))
    if unknown:
        named = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
        output.show(output.joined(said("device.unknown", n=len(unknown), names=named)))


_PREVIEW = "sottovoce device preview"


@with_choices
def consent(
    path: Store,
    hide: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Hide an attribute, which must not be learnt; repeatable."
        ),
    ] = None,
    reveal: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Do not hide this attribute any more; repeatable."),
    ] = None,
    refuse: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OWNER", help="Refuse a data owner, which must see nothing; repeatable."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER", help="Do not refuse this data owner any more; repeatable."),
    ] = None,
    ask_first: Annotated[
        bool | None,
        typer.Option(
            "--ask-first/--by-itself",
            help="Whether each message waits for your yes (`sottovoce device preview --send`).",
        ),
    ] = None,
    user: User = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask, even if a limit protects nothing.")
    ] = False,
    as_json: Json = False,
    **changes: Any,
) -> None:
    """Show what may leave and who reads it, or change that. If you have not chosen, you take no
    part.

    This works while the agent runs. Earlier choices stay on record.

    In a federation of devices a change holds from the next round on: the agent reads the choice
    before every round, and again before the first byte leaves. A choice is no agreement to the
    federation's terms: nothing leaves before sottovoce device agree.

    A federation may ask for randomised reports instead of shares. A round of k reports costs k × ε.
    Once --total-epsilon has no room for another round, nothing leaves any more; what was spent
    never comes back, but the limit may be raised. The same holds if a helper adds noise to sums of
    updates, by what all rounds cost together there.

    What a new --epsilon or --total-epsilon is worth is said before it is set. If it protects
    nothing, you are asked first, on a terminal; --yes answers.

    A federation may have filters for attributes such as gender. What is hidden (--hide) trains no
    filter, and others' filters are used against its traces in what is learnt, by --strength (one
    number for all, or NAME=B for one attribute); see sottovoce device attributes.

    If you change your mind and hide an attribute after rounds in which you shared it, your device
    moves your embedding at once, until the published filter tells nothing more of it; in the rounds
    to come it is hidden. How far it moved, and why it stopped, is in sottovoce device ledger.
    Nothing is sent for this, and nothing is taken back: what left before, what the server or others
    have copied, and what the items' vectors learnt from you stays as it is. An attacker who looks
    where the filter does not look may still tell.

    In a federation of data owners, what you do with an item is read in full by every data owner
    that holds it and is not refused (--refuse). The orchestrator gets no interaction, but can work
    out from data owners' requests and gradients which items you came across and which you liked. If
    data owners send sums over people (release = "aggregated"), refuse all of those that hold an
    item, or none. The sums of one that you refuse and of one that you do not refuse differ by you.
    A choice is about the data owners that there are when you make it: one that joins later is told
    nothing until you choose again. A change holds at once, also for what waits to be sent. What a
    data owner has been told already it keeps, unless you leave it (sottovoce device leave).

    \b
    Examples:
      sottovoce device consent ~/sottovoce
      sottovoce device consent ~/sottovoce --reports 100 --epsilon 1 --total-epsilon 500
      sottovoce device consent ~/sottovoce --take-part --share-positives 0.3
      sottovoce device consent ~/sottovoce --hide gender --hide age --strength 0.7
      sottovoce device consent ~/sottovoce --hide age --strength gender=0.8 --strength age=0.3
      sottovoce device consent ~/sottovoce --ask-first
      sottovoce device consent ~/sottovoce --no-part
      sottovoce device consent ~/films --take-part --refuse Horror
      sottovoce device consent ~/films --allow Horror
    """
    from dataclasses import replace

    from sottovoce.cli import plainly, spent
    from sottovoce.cli.device_attributes import hiding, with_strengths
    from sottovoce.cli.device_terms import is_gateway
    from sottovoce.stores import word
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.session import DeviceSession
    from sottovoce.stores.user import UserStore, whose

    if "epsilon" in changes:
        spent.require_sane(changes["epsilon"])
    chosen = bool(changes or hide or reveal or refuse or allow)
    changing = chosen or ask_first is not None
    with open_store(path, readonly=not changing) as store:
        if isinstance(store, UserStore):
            if hide or reveal or ask_first is not None or changes.keys() - {"takes_part"}:
                raise UsageError(
                    "data owners read all that they get, so that here --take-part, --refuse and "
                    "--allow are what there is to choose"
                )
            part, number = changes.get("takes_part"), whose(store, user)
            device_owners.consent(store, number, part, refuse or [], allow or [], as_json)
            return
        if refuse or allow:
            raise UsageError("this federation has no data owners that could be refused or allowed")
        number, hosted, gateway = whose(store, user), DeviceSession(store), is_gateway(store)
        pending, known = hosted.pending, hosted.pending or hosted.terms
        choice = store.choice(number)

        def changed(now: Choice) -> Choice:
            hidden = hiding(now, hide or [], reveal or [], known)
            more = with_strengths(now, changes, known)
            return replace(now, **more, hidden_attributes=hidden)

        before, choice, moved = choice, changed(choice), None
        worth = plainly.worth(choice, changes, known)
        if chosen:
            plainly.ask_before(worth, yes=yes, as_json=as_json)
            choice, moved = hosted.change_choice(number, changed)
        anew = [name for name in choice.hidden_attributes if name not in before.hidden_attributes]
        no_model = hosted.model_round() is None
        if ask_first is not None:
            word.set_asks_first(store, ask_first)
        asks = word.asks_first(store)
        name, records = store.name(number), store.records(number)
        cost = spent.spent_so_far(store, number)
        sums = spent.sums_of_store(store, number, known, choice)
    means = output.told(*plainly.costs(choice, known, cost, sums))
    at_once = output.told(*plainly.hid(anew, moved, no_model=no_model))
    terms = []
    if known is None and (choice.takes_part or changes.get("takes_part")):
        terms = plainly.asking(path)
    elif known is not None and changes.get("takes_part"):
        terms = plainly.in_words(known, gateway=gateway)
    if choice.takes_part and pending is not None:
        terms += plainly.agreeing(pending, path)
    if as_json:
        earlier = [{"time": r.changed_at, **output.plain(r.choice)} for r in records]
        output.emit(
            {
                "store": path,
                "user": name,
                "changed": changing,
                "choice": output.plain(choice),
                "ask_first": asks,
                "hidden": moved and moved.to_table(),
                "at_once": at_once,
                "words": choice.words(),
                "round_cost": spent.round_cost(choice, known),
                "spent": cost,
                "means": means,
                "worth": output.told(*worth),
                "what_leaves": plainly.readers(known, gateway=gateway) if known else [],
                "agreed": known is not None and pending is None,
                "records": earlier,
            }
        )
        return
    output.show(output.joined(*plainly.chosen(choice, name)))
    if asks:
        output.show(output.joined(said("device.asks_first", command=f"{_PREVIEW} {path} --send")))
    if not choice.takes_part and changes.get("share_positives"):
        command = f"sottovoce device consent {path} --take-part"
        output.show(output.joined(said("device.share_waits", command=command)))
    output.show(*at_once, *terms, *means)
    if not changing and records:
        output.show(output.joined(said("device.earlier")))
        for record in records:
            (when,) = output.told(said("ledger.day", when=record.changed_at))
            output.show(f"  {when}: {output.joined(*plainly.chosen(record.choice, name))}")


def recommend(
    path: Store,
    n: Annotated[int, typer.Option("-n", help="How many items.")] = 10,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Recommend, from the model that was fetched last. This works offline.

    Scores order one user's items; they mean nothing across users.

    In a federation of data owners the orchestrator is asked. The question does not say what you
    have seen: it asks for more than you want, and what you know is taken out here. From data
    owners' updates the orchestrator can work much of it out all the same. If data owners keep your
    vectors (release = "aggregated"), those that you have told anything are asked for them, and the
    list is made here; the orchestrator is asked for the rows of all items.

    \b
    Examples:
      sottovoce device recommend ~/sottovoce
      sottovoce device recommend ~/films -n 5
    """
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.session import DeviceSession
    from sottovoce.stores.user import UserStore, whose

    if n < 1:
        raise UsageError(f"-n must be at least 1, not {n}")
    with open_store(path, readonly=True) as store:
        if isinstance(store, UserStore):
            device_owners.recommend(path, whose(store, user), n, as_json)
            return
        number, hosted = whose(store, user), DeviceSession(store)
        found, name, view = hosted.recommend(number, n), store.name(number), hosted.model()
    rows: list[dict[str, Any]] = [
        {"rank": rank, "item": item, "title": title, "score": score}
        for rank, (item, title, score) in enumerate(found, start=1)
    ]
    if as_json:
        round = None if view is None else view.round
        output.emit({"store": path, "user": name, "model": round, "recommendations": rows})
        return
    columns = [Column("rank", "#"), Column("item"), Column("title"), Column("score", format=".3f")]
    shown = [row | {key: output.one_line(row[key]) for key in ("item", "title")} for row in rows]
    output.show(Table(f"Recommended to {name}", columns, shown))


def ledger(
    path: Store,
    user: User = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, every line of it.")] = False,
    as_json: Json = False,
) -> None:
    """Show what has left this store, or may have: every report, with its rows, bytes and cost.

    Contacts are requests that only say that the device is there: its enrolments and check-ins. They
    are no releases, so they are not in the totals, nor in --csv. Neither is what you hid in a model
    that was trained already (sottovoce device consent --hide): how far your embedding moved, and
    why it stopped. Nothing left for it.

    The cost ε is the bound that the releases can vouch for: "none" (null in JSON) for every FPL or
    FCF release. For randomised reports there are two certificates: the plain sum, which assumes
    nothing, and the one with a shuffler that does not collude with the server.

    In a federation of data owners there is a line for every request with anything of yours in it.

    \b
    Examples:
      sottovoce device ledger ~/sottovoce
      sottovoce device ledger ~/sottovoce --csv
    """
    from sottovoce.cli import plainly, spent
    from sottovoce.core import ledger as ledgers
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.stores.device_limits import plain_releases
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.session import DeviceSession
    from sottovoce.stores.user import UserStore, whose

    if csv and as_json:
        raise UsageError("choose one of --csv and --json")
    with open_store(path, readonly=True) as store:
        number = None if user is None else whose(store, user)
        if isinstance(store, UserStore):
            device_owners.ledger(store, number, csv, as_json)
            return
        rows = store.ledger_rows(number)
        names = {int(n): store.name(int(n)) for n in store.users}
        totals = ledgers.totals_of(store.ledger(number))
        contacts, hidings = store.contacts(number), store.hidings(number)
        mine = slice(None) if number is None else store.users == number
        plain = int(plain_releases(store)[mine].sum())
        one = int(store.users[0]) if number is None and len(names) == 1 else number
        budget = None if one is None else spent.of_store(store, one, DeviceSession(store).terms)
        inside = [] if one is None or csv else _inside(store, one, rows.to_pylist(), as_json)
    lines = [{"when": output.day(line["time"]), **output.plain(line)} for line in rows.to_pylist()]
    for line, more in zip(lines, inside, strict=False):
        line |= more
    if as_json:
        head = {"store": path, "totals": output.totals_json(totals)}
        head |= {"budget": budget and budget.to_table(), "lines": lines}
        told = [{"when": output.day(c.at), **output.plain(c)} for c in contacts]
        hid = [{"when": output.day(at), **one.to_table()} for one, at in hidings]
        output.emit({**head, "contacts": told, "hidings": hid})
        return
    if csv:
        columns = [
            Column(name)
            for name in (
                *("when", "user", "round", "attempt", "state", "kind", "positive_rows"),
                *("negative_rows", "bytes", "wire_bytes", "devices", "digest"),
                *("reports", "report_epsilon", "batch", "epsilon"),
            )
        ]
        shown = [{c.key: line[c.key] for c in columns} for line in lines]
        print(Table("", columns, shown).to_csv(), end="", flush=True)
        return
    several = names if number is None and len(names) > 1 else None
    found = [*plainly.left(totals, plain), *(plainly.used(budget) if budget else ())]
    output.show(*dict.fromkeys(output.told(*found)))
    if lines:
        output.show(plainly.ledger_table(lines[-20:], several))
        output.show(*plainly.things_named(lines[-20:]))
    if contacts:
        output.show(output.joined(said("ledger.contacts", n=len(contacts))))
    if hidings:
        output.show(output.joined(said("hiding.head")))
        for hidden, at in hidings:
            (when,) = output.told(said("ledger.day", when=at))
            output.show(f"  {when}: {output.joined(*plainly.moved(hidden))}")


def _inside(
    store: CohortStore, number: int, rows: list[dict[str, Any]], as_json: bool
) -> list[dict[str, Any]]:
    """Of each report: which things of hers were in it, and what it was at the socket. For people
    the last ones are enough."""
    from sottovoce.stores import timeline

    found: list[dict[str, Any]] = [{} for _ in rows]
    for at in range(0 if as_json else max(0, len(rows) - 20), len(rows)):
        key = rows[at]["terms"], rows[at]["round"], rows[at]["attempt"]
        line = timeline.line(store.file, number, ".".join(map(str, key)))
        things = timeline.things(store, number, *key)
        named = [{"item": i, "title": t, "weight": w} for i, t, w in things]
        found[at] = {"body_sha256": line.sha256 or None, "things": named}
    return found


def status(path: Store, user: User = None, as_json: Json = False) -> None:
    """Say where a store stands: federation, history, choice, who reads what, budget, round, agent.

    In a federation of data owners it says what waits, what has left and who reads it, by data
    owner, and the number they know you by. Bytes are those of requests with anything of yours in
    them. Data owners read in full what they get, so no ε bounds what it tells them.

    \b
    Examples:
      sottovoce device status ~/sottovoce
      sottovoce device status ~/films
    """
    from sottovoce.cli import plainly, spent
    from sottovoce.cli.device_attributes import standing, to_json
    from sottovoce.cli.device_terms import is_gateway
    from sottovoce.core import ledger as ledgers
    from sottovoce.stores.device_limits import plain_releases
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.session import DeviceSession, expelled
    from sottovoce.stores.user import UserStore, whose
    from sottovoce.wire.invitations import kept_invitation

    with open_store(path, readonly=True) as store:
        if isinstance(store, UserStore):
            device_owners.status(store, whose(store, user), as_json)
            return
        if user is not None:
            raise UsageError("in a federation of devices the status is that of the whole store")
        hosted, invitation, out = DeviceSession(store), kept_invitation(store), expelled(store)
        terms, view, latest = hosted.terms, hosted.model(), hosted.latest()
        pending, gateway = hosted.pending, is_gateway(store)
        history, records = store.count_history(), store.choices()
        content: dict[str, Any] = {
            "store": path,
            "users": len(records),
            "taking_part": int(records.takes_part.sum()),
            "choice": records.row(0).words() if len(records) == 1 else None,
            "federation": invitation.federation if invitation else terms and terms.federation,
            "server": invitation.server if invitation else None,
            "interactions": history,
            "unknown_items": len(store.unknown()),
            "model": view.round if view else None,
            "latest": latest
            and {"round": latest.round, "attempt": latest.attempt, "state": latest.state},
            "terms": terms.digest() if terms else None,
            "agreed": terms is not None and pending is None,
            "other_terms_offered": hosted.offered is not None,
            "agent_running": store.file.served(),
            "shut_out": out and {"since": output.day(int(out.since)), "why": out.why},
        }
        alone = int(store.users[0]) if len(records) == 1 else None
        budget = None if alone is None else spent.of_store(store, alone, terms)
        sums = None if alone is None else spent.sums_of_store(store, alone, terms)
        known = [] if alone is None else standing(store, alone, terms)
        totals = ledgers.totals_of(store.ledger(None))
        plain = int(plain_releases(store).sum())
        mine = None if alone is None else (store.name(alone), records.row(0))
    shown = pending or terms
    leaves = plainly.readers(shown, gateway=gateway) if shown else []
    nothing: list[str] = []
    if not content["taking_part"]:
        nothing = output.told(said("quiet.nobody" if mine is None else "quiet.off"))
    elif out is not None:
        nothing = output.told(out.said)
    elif shown is None:
        nothing = plainly.asking(path)
    elif pending is not None:
        nothing = plainly.agreeing(pending, path, left=bool(totals.releases))
    if as_json:
        content |= {"attributes": to_json(known), "what_leaves": leaves}
        content["nothing_leaves"] = " ".join(nothing) or None
        costs = {"budget": budget and budget.to_table(), "sums": sums and sums.to_table()}
        output.emit({**content, **costs})
        return
    found = [*plainly.left(totals, plain), *(plainly.used(budget) if budget else ())]
    found += plainly.summed(sums) if sums else ()
    output.show(*dict.fromkeys(output.told(*found)))
    output.show(*_status_lines(content, mine, path), *nothing)
    if shown is not None:
        output.show(*plainly.in_words(shown, gateway=gateway, agreed=pending is None))


def _status_lines(
    content: Mapping[str, Any], mine: tuple[str, Choice] | None, path: Path
) -> list[str]:
    """Where a store stands: a label and a few words each; then what its one user chose."""
    from sottovoce.cli import plainly

    known, unknown = content["interactions"], content["unknown_items"]
    history = said("device.value.history", n=known)
    if unknown:
        history = said("device.value.history_unknown", n=known, unknown=unknown)
    people = said("device.value.people", n=content["users"], part=content["taking_part"])
    model = said("device.value.none")
    if content["model"] is not None:
        model = said("device.value.model", round=content["model"])
    found: dict[str, str | Said] = {
        "store": str(path),
        "federation": content["federation"] or said("device.value.alone"),
        "server": content["server"] or "",
        "people": people if mine is None else "",
        "history": history,
        "model": model,
        "agent": said(f"device.value.agent_{'on' if content['agent_running'] else 'off'}"),
    }
    kept = {key: value for key, value in found.items() if value}
    labels = output.told(*(said(f"device.head.{key}") for key in kept))
    values = [v if isinstance(v, str) else output.joined(v) for v in kept.values()]
    width = max(map(len, labels))
    lines = [f"{label:<{width}}  {value}" for label, value in zip(labels, values, strict=True)]
    return lines if mine is None else [*lines, output.joined(*plainly.chosen(mine[1], mine[0]))]
