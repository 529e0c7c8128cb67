"""`sottovoce device ...` in a federation of data owners: what a person permits, what she sends and
what she gets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output, plainly
from sottovoce.cli.device_files import read_events
from sottovoce.cli.options import Json, Store, User
from sottovoce.core.words import Said, said
from sottovoce.errors import ConsentError, MessageError, ServiceError, UsageError

if TYPE_CHECKING:
    from sottovoce.algorithms.drift.system import DRIFTConfig
    from sottovoce.core.consent import Choice
    from sottovoce.services.agent.user_agent import Delivery
    from sottovoce.stores.device import CohortStore
    from sottovoce.stores.user import UserStore
    from sottovoce.stores.user_door import Interacted

# --- what commands of all federations do here ----------------------------------------------------


def join(
    path: Path,
    invitation: Path | None,
    as_json: bool,
    history: Path | None = None,
    takes_part: bool | None = None,
    refuse: list[str] | None = None,
    asking: bool = False,
) -> None:
    """Make a store, unless it is there, and read who holds what; where she takes part, tell the
    data owners that she does not refuse what is in her history."""
    from sottovoce.services.agent.user_agent import UserAgent
    from sottovoce.stores.user import ALONE, UserStore
    from sottovoce.stores.user_door import UserDoor
    from sottovoce.wire.silo_files import UserInvitation

    def opened() -> UserStore:
        if invitation is None:
            return _open(path, agent=True)
        return UserStore.join(path, UserInvitation.read(invitation))

    with opened() as store:
        try:
            with UserAgent(store) as agent:
                agent.refresh_directory()
        except (MessageError, ServiceError) as error:
            raise ServiceError(
                f"the store {path} is made, but has no directory of the federation yet, so call "
                f"this again: {error}"
            ) from None
        directory = store.world.directory
        names = [owner.name for owner in directory.owners]
        done = delivery = None
        ends, chosen = 0, bool(store.records(ALONE))
        if not as_json:
            _joined_words(store, path, names)
        if asking and takes_part is None and not refuse and not chosen and names:
            takes_part, refuse = _ask_part(store, names, refuse or [])
        if takes_part is not None or refuse:
            with store.file.transaction():
                choice = store.changed(store.choice(ALONE), takes_part, refuse or [], [])
                UserDoor(store).choose(ALONE, choice)
        choice = store.choice(ALONE)
        if history is not None:
            # Where she takes no part it is noted at home, and nothing leaves.
            events = read_events(history, directory, ALONE)
            done = UserDoor(store).interact_many(events)
        if choice.takes_part:
            if done is not None:
                ends = UserDoor(store).end_stream(ALONE)
            with output.interruptible("what was not sent yet waits; run `sottovoce device send`"):
                delivery = _deliver(store)
        if not as_json and (takes_part is not None or refuse or chosen):
            settings = directory.settings
            output.show(*_choice_words(choice, store.readers(ALONE), settings, path))
    if as_json:
        output.emit(
            {
                "store": path,
                "federation": directory.federation,
                "owners": names,
                "items": len(directory.catalogue),
                "takes_part": choice.takes_part,
                "said": done,
                "delivery": None if delivery is None else output.plain(delivery),
            }
        )
        return
    if done is not None:
        output.show(_said_words(done, ends))
    if delivery is not None:
        output.show(*_delivery_words(delivery))


def _joined_words(store: UserStore, path: Path, names: list[str]) -> None:
    found = [
        said("device.made_owners", path=str(path), federation=store.federation),
        said("device.things", n=len(store.world.directory.catalogue)),
        said("device.owners_are", names=names),
    ]
    if not store.choice(store.users[0]).takes_part:
        found.append(said("device.until_part_owners"))
        found.append(said("device.next_readers", command=f"sottovoce device consent {path}"))
    output.show(*output.told(*found))


def _ask_part(store: UserStore, names: list[str], refuse: list[str]) -> tuple[bool, list[str]]:
    """Whether she takes part, and which of the data owners may read; asked on a terminal."""
    number = store.users[0]
    settings = store.world.directory.settings
    output.show(*_choice_words(store.choice(number), store.readers(number), settings, None))
    part = output.joined(said("field.takes_part.label"))
    if not typer.confirm(f"{part}?", default=False):
        return False, refuse
    output.show(*output.told(said("field.refused_owners.label"), said("field.refused_owners.help")))
    refused = [
        name
        for name in names
        if name not in refuse and not typer.confirm(f"  {output.one_line(name)}", default=False)
    ]
    return True, [*refuse, *refused]


def bring(store: UserStore, file: Path, number: int, as_json: bool) -> None:
    """Put interactions into the outbox, as far as she permits them."""
    from sottovoce.stores.user_door import UserDoor

    done = UserDoor(store).interact_many(read_events(file, store.world.directory, number))
    if as_json:
        output.emit({"store": store.path, "said": done})
    else:
        output.show(_said_words(done))


def consent(
    store: UserStore,
    number: int,
    takes_part: bool | None,
    refuse: list[str],
    allow: list[str],
    as_json: bool,
) -> None:
    """Show who reads what, or change that."""
    from sottovoce.stores.user_door import UserDoor

    changing = takes_part is not None or bool(refuse) or bool(allow)
    choice, dropped = store.choice(number), 0
    if changing:
        with store.file.transaction():
            choice = store.changed(store.choice(number), takes_part, refuse, allow)
            dropped = UserDoor(store).choose(number, choice)
    owners, records = store.readers(number), store.records(number)
    settings = store.world.directory.settings
    told = {k for k, states in store.counts(number).items() if set(states) - {"dropped"}}
    if as_json:
        output.emit(
            {
                "store": store.path,
                "changed": changing,
                "takes_part": choice.takes_part,
                "refused_owners": choice.refused_owners,
                "dropped": dropped,
                "owners": owners,
                "records": [
                    {
                        "time": r.changed_at,
                        "takes_part": r.choice.takes_part,
                        "refused_owners": r.choice.refused_owners,
                    }
                    for r in records
                ],
            }
        )
        return
    output.show(*_choice_words(choice, owners, settings, store.path))
    if dropped:
        output.show(output.joined(said("device.dropped", n=dropped)))
    kept = [o["name"] for o in owners if not o["reads"] and o["number"] in told]
    if changing and kept:
        command = f"sottovoce device leave {store.path}"
        output.show(output.joined(said("device.still_there", names=kept, command=command)))


def status(store: UserStore, number: int, as_json: bool) -> None:
    """What waits, what has left and who reads it."""
    choice, found = store.choice(number), store.standing(number)
    if as_json:
        output.emit({"store": store.path, **found})
        return
    requests, size = found["orchestrator"]["requests"], found["orchestrator"]["bytes"]
    part = said("device.you_take_part" if choice.takes_part else "device.you_take_no_part")
    output.show(
        f"{store.federation}: {output.joined(part, said('device.seen', n=found['seen']))}",
        *_owner_words(found["owners"]),
        output.joined(said("device.orchestrator", n=requests, size=size)),
    )
    if found["enrolled"]:
        output.show(output.joined(said("device.number", number=str(found["number"]))))
    if found["left_federation"]:
        done = found["left_federation"] == "done"
        output.show(output.joined(said("stands.left_federation" if done else "stands.leaving")))


def recommend(path: Path, number: int, n: int, as_json: bool) -> None:
    """Ask the orchestrator, or the keepers of her vectors."""
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.services.agent.user_agent import UserAgent
    from sottovoce.stores.user import UserStore

    with (
        UserStore.open(path) as store,
        UserAgent(store) as agent,
        output.interruptible("nothing was changed"),
    ):
        found = agent.recommend(number, n)
    for name in agent.left_out:
        output.note(f"note: {name} did not answer; its vector is left out")
    rows: list[dict[str, Any]] = [
        {"rank": rank, "item": one.name, "score": one.score}
        for rank, one in enumerate(found, start=1)
    ]
    if as_json:
        output.emit({"store": path, "recommendations": rows, "left_out": agent.left_out})
        return
    columns = [Column("rank", "#"), Column("item"), Column("score", format=".3f")]
    shown = [row | {"item": output.one_line(row["item"])} for row in rows]
    output.show(Table(output.joined(said("device.recommended_you")), columns, shown))


def ledger(store: UserStore, number: int | None, csv: bool, as_json: bool) -> None:
    """Every request with anything of hers in it, oldest first."""
    from sottovoce.evaluation.tables import Column, Table

    releases = store.ledger(number)
    lines = [{"when": output.day(r.at), **output.plain(r)} for r in releases]
    told = sum(r.interactions for r in releases)
    if as_json:
        size = sum(r.bytes for r in releases)
        epsilon = max((r.epsilon for r in releases), default=0.0)
        totals = {"releases": len(lines), "interactions": told, "bytes": size, "epsilon": epsilon}
        output.emit({"store": store.path, "totals": totals, "lines": lines})
        return
    names = ("when", "user", "party", "what", "interactions", "messages", "bytes", "epsilon")
    rows = [{name: line[name] for name in names} for line in lines]
    if csv:
        print(Table("", [Column(name) for name in names], rows).to_csv(), end="", flush=True)
        return
    _ledger_words(lines, told)


# --- commands for federations of data owners alone -----------------------------------------------


def send(
    path: Store,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A CSV file; without it, only what waits is sent."),
    ] = None,
    end: Annotated[
        bool,
        typer.Option(
            "--end",
            help="Also say that nothing more comes for now. Data owners then need not wait for "
            "your next dislike to learn from the last likes.",
        ),
    ] = False,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Tell the data owners what you liked and what not, as far as you permit it.

    FILE has a header and the columns item, timestamp (seconds since 1970), and rating or positive
    (1 or 0); ratings count as liked from the federation's own limit on. Each line goes, sealed, to
    the data owners that hold the item and that you do not refuse. Everything is taken, or nothing
    if a line is wrong. The same line is told once, however often you send it. A data owner that
    does not answer is told later: call this again without FILE.

    \b
    Examples:
      sottovoce device send ~/films ratings.csv
      sottovoce device send ~/films
    """
    from sottovoce.stores.user import whose
    from sottovoce.stores.user_door import UserDoor

    done, ends = None, 0
    with _open(path, agent=True) as store:
        number, door = whose(store, user), UserDoor(store)
        if file is not None:
            if not store.choice(number).takes_part:
                raise ConsentError(
                    f"you do not take part, so nothing of {file} was read; to take part: "
                    f"sottovoce device consent {path} --take-part"
                )
            done = door.interact_many(read_events(file, store.world.directory, number))
        if end:
            ends = door.end_stream(number)
        with output.interruptible("what was not sent yet waits; run `sottovoce device send` again"):
            delivery = _deliver(store)
        unseen = store.unseen_owners(number) if store.choice(number).takes_part else ()
    for name in unseen:
        output.note(
            f"note: the data owner {name} is new since you chose and is told nothing; see "
            f"sottovoce device consent {path}"
        )
    if as_json:
        output.emit({"store": path, "said": done, **output.plain(delivery)})
        return
    if done is not None:
        output.show(_said_words(done, ends))
    output.show(*_delivery_words(delivery))


def interact(
    path: Store,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="The item's name in the catalogue.")],
    liked: Annotated[
        bool | None, typer.Option("--liked/--disliked", help="Whether you liked it.")
    ] = None,
    time: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS", help="The time, in seconds since 1970. By default it is now."
        ),
    ] = None,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Say that you liked one item, or did not. It is sent at once, if somebody may read it and
    answers.

    If you take no part, or refuse every data owner that holds the item, it is noted at home as
    seen, and nothing leaves.

    \b
    Examples:
      sottovoce device interact ~/films "Alien (1979)" --liked
      sottovoce device interact ~/films "Alien (1979)" --disliked
    """
    from sottovoce.stores.user import whose
    from sottovoce.stores.user_door import UserDoor

    if liked is None:
        raise UsageError("say whether you liked it: --liked or --disliked")
    delivery = None
    with _open(path) as store:
        number = whose(store, user)
        place = store.world.directory.item(item)
        when = store.now() if time is None else time
        done = UserDoor(store).interact(number, place, liked, when)
        busy = store.file.served()
    if done.messages and not busy:
        with (
            _open(path, agent=True) as store,
            output.interruptible("it waits; run `sottovoce device send` to send it"),
        ):
            delivery = _deliver(store)
    if as_json:
        output.emit({"store": path, "item": item, "said": done, "delivery": delivery})
    elif done.at_home:
        output.show(output.joined(said("device.noted_here", item=item)))
    elif done.known:
        output.show(output.joined(said("device.known_already", item=item)))
    elif delivery is None:
        output.show(output.joined(said("device.waits_process", item=item)))
    else:
        output.show(*_delivery_words(delivery))


def leave(
    path: Store,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Leave only this data owner, and stay with others."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")] = False,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Leave a federation for good; or a data owner, or all of them, who delete what they hold.

    In a federation of devices nothing leaves any more, and the store forgets its invitation and
    keys: nobody is told, and there is no way back without another invitation. What was sent stays
    in sums and models that were published. Your history, choices and ledger stay with you.

    In a federation of data owners they are asked to delete what they hold of you. Nothing more goes
    there; what waits is dropped. A data owner that does not answer is told later, by `sottovoce
    device send`. Your store stays with you. Your own row of the model is deleted when you leave the
    federation; what items' rows have learnt from you cannot be taken out of them. That nobody kept
    a copy, or a backup, cannot be shown.

    \b
    Examples:
      sottovoce device leave ~/films --owner Horror
      sottovoce device leave ~/films --yes
    """
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.user import UserStore, whose
    from sottovoce.stores.user_door import UserDoor

    with open_store(path, agent=True) as store:
        if not isinstance(store, UserStore):
            _leave_devices(store, owner, yes, as_json)
            return
        number, door = whose(store, user), UserDoor(store)
        if owner is not None:
            store.world.directory.owner(owner)
        whom = f"data owner {owner}" if owner else f"the federation {store.federation}"
        _require_sure(yes, f"Leave {whom} for good?", as_json)
        asked = door.leave(number, owner)
        with output.interruptible("who was not told yet is told by `sottovoce device send`"):
            delivery = _deliver(store)
        departure = store.person(number).departure
    if as_json:
        output.emit(
            {
                "store": path,
                "asked_to_forget": asked,
                "left_federation": departure or None,
                **output.plain(delivery),
            }
        )
        return
    forget = said("device.asked_to_forget", names=list(asked)) if asked else None
    output.show(output.joined(forget or said("device.asked_nobody")), *_delivery_words(delivery))
    if departure == "done":
        output.show(output.joined(said("device.has_left")))


def _leave_devices(store: CohortStore, owner: str | None, yes: bool, as_json: bool) -> None:
    if owner is not None:
        raise UsageError("this federation has no data owners; leave --owner out to leave all of it")
    _require_sure(yes, "Leave the federation for good?", as_json)
    store.leave_federation()
    if as_json:
        output.emit({"store": store.path, "asked_to_forget": [], "left_federation": "done"})
    else:
        output.show(*output.told(said("device.has_left"), said("stop.before_sum")))


# --- helpers -------------------------------------------------------------------------------------


def _open(path: Path, *, agent: bool = False) -> UserStore:
    """Raises if it is the store of a federation of devices."""
    from sottovoce.stores.opening import open_store
    from sottovoce.stores.user import UserStore

    store = open_store(path, agent=agent)
    if isinstance(store, UserStore):
        return store
    store.close()
    raise UsageError(
        f"{path} is in no federation of data owners, and nobody there is told single interactions; "
        f"`sottovoce serve device {path}` takes part in a federation of devices, and `sottovoce "
        f"device consent {path} --no-part` ends that"
    )


def _deliver(store: UserStore) -> Delivery:
    from sottovoce.services.agent.user_agent import UserAgent

    with UserAgent(store) as agent:
        return agent.send_all()


def _said_words(done: Interacted, ends: int = 0) -> str:
    found = [said("device.queued", n=done.messages)]
    if ends:
        found.append(said("device.ends", n=ends))
    if done.known:
        found.append(said("device.known_before", n=done.known))
    if done.at_home:
        found.append(said("device.stay_home", n=done.at_home))
    return output.joined(*found)


def _choice_words(
    choice: Choice, owners: list[dict[str, Any]], settings: DRIFTConfig, path: Path | None
) -> list[str]:
    """Whether she takes part, and what each data owner reads or would; with a path, also how to
    choose otherwise."""
    here = said("device.you_take_part" if choice.takes_part else "device.you_take_no_part")
    head = said("device.who_reads" if choice.takes_part else "device.would_read")
    from sottovoce.wire.plainly import Onlooker

    found = [Onlooker(said("reads.owner", name=o["name"]), _owner_sees(choice, o)) for o in owners]
    conductor = said("reads.orchestrator")
    if any(owner["name"] not in choice.refused_owners for owner in owners):
        if settings.release == "aggregated":
            found.append(Onlooker(conductor, said("sees.sums_of_people", n=settings.min_users)))
            split = [
                o["name"] for o in owners if o["shared"] and o["name"] in choice.refused_owners
            ]
            if split:
                found.append(Onlooker(conductor, said("sees.difference", names=split)))
        else:
            found.append(Onlooker(conductor, said("sees.requests")))
    lines = [*output.told(here, head), *(f"  {line}" for line in plainly.seen(found))]
    if path is None:
        return lines
    command = f"sottovoce device consent {path} --take-part"
    if any(owner["new"] for owner in owners):
        lines += output.told(said("device.allow_new", command=command))
    if not choice.takes_part:
        lines += output.told(said("device.join_part", command=command))
    return lines


def _owner_sees(choice: Choice, owner: dict[str, Any]) -> Said:
    if owner["name"] in choice.refused_owners:
        return said("sees.interactions_none")
    return said("sees.interactions_new" if owner["new"] else "sees.interactions")


def _owner_words(views: list[dict[str, Any]]) -> list[str]:
    """What each data owner has been told, a line each."""
    lines = []
    for view in views:
        found = [said("device.was_told", n=view["interactions_left"])]
        if view["waiting"]:
            found.append(said("device.wait", n=view["waiting"]))
        if view["unanswered"]:
            found.append(said("device.no_answer", n=view["unanswered"]))
        if view["refused"]:
            found.append(said("device.were_refused", n=view["refused"]))
        lines.append(f"  {output.one_line(view['owner'])}: {output.joined(*found)}")
    return lines


def _ledger_words(lines: list[dict[str, Any]], told: int) -> None:
    """Every request, in words: when, what, to whom."""
    from sottovoce.evaluation.tables import Column, Table

    if not lines:
        output.show(output.joined(said("stands.nothing")))
        return
    output.show(output.joined(said("ledger.total_words.owners", n=told)))
    keys = ["when", "what", "to", "items", "size"]
    heads = output.told(*(said(f"ledger.{key}") for key in keys))
    rows = []
    for line in lines[-20:]:
        when, what, size = output.told(
            said("ledger.day", when=line["at"]),
            said(f"ledger.{line['what'].replace('-', '_')}"),
            said("page.size", size=line["bytes"]),
        )
        row = {"when": when, "what": what, "to": output.one_line(line["party"])}
        rows.append(row | {"items": line["interactions"], "size": size})
    columns = [Column(key, head) for key, head in zip(keys, heads, strict=True)]
    output.show(Table(output.joined(said("page.ledger")), columns, rows))


def _delivery_words(delivery: Delivery) -> list[str]:
    found = [said("device.arrived", n=delivery.arrived), said("device.wait", n=delivery.waiting)]
    lines = [output.joined(*found)]
    if delivery.refused:
        lines += output.told(said("device.were_refused", n=delivery.refused))
    lines += [f"{name}: {why}" for name, why in delivery.troubles.items()]
    return lines


def _require_sure(yes: bool, question: str, as_json: bool) -> None:
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UsageError("leaving cannot be undone; say --yes to leave without being asked")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")
