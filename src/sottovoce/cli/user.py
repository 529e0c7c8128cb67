"""`sottovoce user ...`: what a user of data owners permits, what she sends and what she gets."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.device import csv_rows, whole_number
from sottovoce.cli.options import Json
from sottovoce.errors import ConsentError, DataError, MessageError, ServiceError, UsageError

# The files that `sottovoce user` reads.

if TYPE_CHECKING:
    from sottovoce.stores.user_door import Event
    from sottovoce.wire.directory import Directory

_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_events(path: Path, directory: Directory, user: int) -> list[Event]:
    """A user's interactions, in the order of their times; those of one moment as they stand."""
    numbers = {name: number for number, name in enumerate(directory.catalogue)}
    events: list[Event] = []
    for line, row in csv_rows(path, "item", "timestamp"):
        item = numbers.get(row["item"])
        if item is None:
            raise DataError(
                f"{path}, line {line}: {row['item']!r} is not in the federation's catalogue"
            )
        positive = _positive(path, line, row, directory.settings.positive_from)
        time = whole_number(path, line, "timestamp", row["timestamp"])
        events.append((user, item, positive, time))
    return sorted(events, key=lambda event: event[3])


def _positive(path: Path, line: int, row: dict[str, str], positive_from: float) -> bool:
    if "positive" in row:
        flag = _FLAGS.get(row["positive"].lower())
        if flag is None:
            raise DataError(
                f"{path}, line {line}: positive must be 1 or 0, true or false, not "
                f"{row['positive']!r}"
            )
        return flag
    if "rating" not in row:
        raise DataError(f"{path} has neither a column 'rating' nor a column 'positive'")
    try:
        rating = float(row["rating"])
    except ValueError:
        rating = math.nan
    if not math.isfinite(rating):
        raise DataError(f"{path}, line {line}: the rating {row['rating']!r} is no number")
    return rating >= positive_from


# What `sottovoce user` says: who reads what, what waits and what has left.

if TYPE_CHECKING:
    from sottovoce.algorithms.drift.system import DRIFTConfig
    from sottovoce.core.consent import Choice
    from sottovoce.evaluation.tables import Table
    from sottovoce.services.agent.user_agent import Delivery
    from sottovoce.stores.user import UserStore

_WHY = {
    "consent": "not permitted any more",
    "owner": "the data owner has left",
    "item": "the data owner does not hold the item",
    "time": "older than what was told before",
    "departed": "you have left the federation",
}
"""Of what was not told, in words."""


def owner_views(store: UserStore, user: int) -> list[dict[str, Any]]:
    """What waits for each data owner and what has left for it, also those that are gone."""
    counts, reasons, releases = store.counts(user), store.reasons(user), store.ledger(user)
    names = {r.owner: r.party for r in releases if r.owner is not None}
    if store.has_directory:
        names |= {owner.number: owner.name for owner in store.world.directory.owners}
    views = []
    for number in sorted({*names, *counts}):
        states = counts.get(number, {})
        own = [r for r in releases if r.owner == number]
        views.append(
            {
                "owner": names.get(number, str(number)),
                "waiting": states.get("waiting", 0),
                "unanswered": states.get("left", 0),
                "arrived": states.get("arrived", 0),
                "refused": states.get("refused", 0),
                "dropped": states.get("dropped", 0),
                "given_up": states.get("given_up", 0),
                "why": reasons.get(number, {}),
                "interactions_left": sum(r.interactions for r in own),
                "requests": len(own),
                "bytes": sum(r.bytes for r in own),
                "epsilon": max((r.epsilon for r in own), default=0.0),
            }
        )
    return views


def user_view(store: UserStore, user: int) -> dict[str, Any]:
    """Where a user stands."""
    person, choice = store.person(user), store.choice(user)
    requests = [r for r in store.ledger(user) if r.owner is None]
    return {
        "federation": store.federation,
        "directory": store.world.directory.version if store.has_directory else None,
        "enrolled": person.given is not None,
        "number": None if person.given is None else person.given.user,
        "left_federation": person.departure or None,
        "takes_part": choice.takes_part,
        "refused_owners": choice.refused_owners,
        "seen": len(store.seen(user)),
        "owners": owner_views(store, user),
        "orchestrator": {"requests": len(requests), "bytes": sum(r.bytes for r in requests)},
    }


def owner_table(views: list[dict[str, Any]]) -> Table:
    from sottovoce.evaluation.tables import Column, Table

    columns = [
        Column("owner", "data owner"),
        Column("waiting", "waits", format=","),
        Column("unanswered", format=","),
        Column("arrived", format=","),
        Column("refused", format=","),
        Column("interactions_left", "interactions left", format=","),
        Column("bytes", format=","),
        Column("cost", "ε"),
    ]
    rows = [
        {column.key: view.get(column.key) for column in columns}
        | {"cost": "∞" if view["bytes"] else "0"}
        for view in views
    ]
    notes = [
        f"{view['owner']}: {count:,} not taken or not sent, {_WHY.get(word, word)}"
        for view in views
        for word, count in view["why"].items()
    ]
    return Table("What each data owner gets", columns, rows, notes=notes)


def consent_views(store: UserStore, user: int) -> list[dict[str, Any]]:
    """What each data owner would read under her choice."""
    directory, choice, unseen = store.world.directory, store.choice(user), store.unseen_owners(user)
    if not choice.takes_part:
        unseen = ()  # she chooses when she takes part
    holders = Counter(item for owner in directory.owners for item in owner.items)
    return [
        {
            "number": owner.number,
            "name": owner.name,
            "items": len(owner.items),
            "shared": sum(holders[item] > 1 for item in owner.items),
            "such_as": [directory.catalogue[item] for item in owner.items[:3]],
            "reads": choice.takes_part and owner.name not in (*choice.refused_owners, *unseen),
            "new": owner.name in unseen,
        }
        for owner in directory.owners
    ]


def choice_words(
    choice: Choice, owners: list[dict[str, Any]], settings: DRIFTConfig, path: Path
) -> list[str]:
    if not choice.takes_part:
        lines = ["You do not take part: nothing leaves. If you did, who would read what:"]
    else:
        lines = ["You take part. Who reads what:"]
    for owner in owners:
        items = f"{owner['items']:,} items" if owner["items"] != 1 else "1 item"
        such = ", ".join(output.one_line(name) for name in owner["such_as"])
        if owner["name"] in choice.refused_owners:
            lines.append(f"  {owner['name']}: refused, is told nothing ({items})")
        elif owner["new"]:
            lines.append(f"  {owner['name']}: new since you chose, is told nothing yet ({items})")
        else:
            lines.append(
                f"  {owner['name']}: which of its {items} (such as {such}) you came across, "
                "when, and whether you liked them"
            )
    read = any(owner["name"] not in choice.refused_owners for owner in owners)
    if read and settings.release == "aggregated":
        lines.append(
            f"  The orchestrator: sums of what is learnt from {settings.min_users:,} or more people"
        )
        told_to_others = [
            owner["name"]
            for owner in owners
            if owner["shared"] and owner["name"] in choice.refused_owners
        ]
        if told_to_others:
            lines.append(
                f"  Others hold items of {', '.join(told_to_others)}, too. You are in their sums "
                "and not in its: from the difference the orchestrator can tell much of what you "
                "did with these items. Refuse all who hold an item, or none, and you are in no "
                "such difference"
            )
    elif read:
        lines.append(
            "  The orchestrator: which of these items go into an update of the model for you, and "
            "it can work out whether you liked them"
        )
    if any(owner["new"] for owner in owners):
        lines.append(
            f"To let the new ones read: sottovoce user consent {path} --takes-part; to refuse one "
            "of them, add --refuse OWNER"
        )
    if not choice.takes_part:
        lines.append(f"To take part: sottovoce user consent {path} --takes-part [--refuse OWNER]")
    return lines


def delivery_words(delivery: Delivery) -> list[str]:
    lines = [f"{messages_text(delivery.arrived)} arrived, {delivery.waiting:,} wait."]
    if delivery.refused:
        lines.append(
            f"{messages_text(delivery.refused)} were refused by data owners; see the store."
        )
    lines += [f"{name}: {why}" for name, why in delivery.troubles.items()]
    return lines


def messages_text(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def changed_choice(
    store: UserStore, choice: Choice, takes_part: bool | None, refuse: list[str], allow: list[str]
) -> Choice:
    """The choice with these changes; raises where an owner is unknown or named twice."""
    from dataclasses import replace

    both = sorted(set(refuse) & set(allow))
    if both:
        raise UsageError(f"{both[0]} is to be refused and allowed at once; choose one")
    names = dict.fromkeys(choice.refused_owners)
    for name in refuse:
        names[store.world.directory.owner(name).name] = None
    for name in allow:
        if name not in names:
            store.world.directory.owner(name)
        names.pop(name, None)
    part = choice.takes_part if takes_part is None else takes_part
    return replace(choice, takes_part=part, refused_owners=tuple(names))


if TYPE_CHECKING:
    from sottovoce.services.agent.user_agent import Delivery
    from sottovoce.stores.user import UserStore

Store = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a user's store.")]
Number = Annotated[
    int | None,
    typer.Option("--user", metavar="N", help="Number; needed where a store has several users."),
]


def join(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="Folder to make.")],
    invitation: Annotated[
        Path, typer.Argument(metavar="INVITATION", help="File that the operator gave you.")
    ],
    as_json: Json = False,
) -> None:
    """Join a federation of data owners: make a store, and read who holds what.

    The store is encrypted, with its key beside it in a file that only you can read. INVITATION is a
    secret: whoever uses it first is let in, and nobody else. It is used when you take part
    (`sottovoce user consent`); until then only the public directory is read, and nothing of yours
    leaves the store but the address that every connection shows. Where the orchestrator did not
    answer, call this again; where it has moved, with another invitation.

    \b
    Examples:
      sottovoce user join ~/films invitation.json
      sottovoce user consent ~/films
      sottovoce user consent ~/films --takes-part
    """
    from sottovoce.services.agent.user_agent import UserAgent
    from sottovoce.stores.user import UserStore
    from sottovoce.wire.silo_files import UserInvitation

    card = UserInvitation.read(invitation)
    with UserStore.join(path, card) as store:
        try:
            with UserAgent(store) as agent:
                agent.refresh_directory()
        except (MessageError, ServiceError) as error:
            raise ServiceError(
                f"the store {path} is made, but has no directory of the federation yet, so call "
                f"this again: {error}"
            ) from None
        directory = store.world.directory
    if as_json:
        output.emit(
            {
                "store": path,
                "federation": directory.federation,
                "owners": [owner.name for owner in directory.owners],
                "items": len(directory.catalogue),
            }
        )
        return
    names = ", ".join(owner.name for owner in directory.owners) or "none yet"
    output.show(
        f"{path}: a store for the federation {directory.federation}, with "
        f"{len(directory.catalogue):,} items.",
        f"Its data owners: {names}.",
        "Nothing leaves the store until you take part. See what each of them would read: "
        f"sottovoce user consent {path}",
    )


def consent(
    path: Store,
    takes_part: Annotated[
        bool | None,
        typer.Option("--takes-part/--no-takes-part", help="Whether anything may leave at all."),
    ] = None,
    refuse: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER", help="A data owner that must see nothing; repeatable."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER", help="A data owner that is not refused any more."),
    ] = None,
    user: Number = None,
    as_json: Json = False,
) -> None:
    """Show what leaves and who reads it, or change that. A change holds at once.

    Whoever has not chosen takes no part, and nothing leaves. When you take part, what you do with
    an item is read in full by every data owner that holds it and is not refused. The orchestrator
    gets no interaction, but can work out from data owners' requests and gradients which items you
    came across and which you liked.

    Where data owners send sums over people (release = "aggregated"), refuse all of those that hold
    an item, or none: the sums of one that you refuse and of one that you do not differ by you.

    A choice is about the data owners that there are when you make it. One that joins later is told
    nothing until you choose again.

    A change also holds for what waits to be sent, and while another process sends. What a data
    owner has been told already it keeps, unless you leave it (`sottovoce user leave`). Earlier
    choices stay on record.

    \b
    Examples:
      sottovoce user consent ~/films
      sottovoce user consent ~/films --takes-part --refuse Horror
      sottovoce user consent ~/films --allow Horror
      sottovoce user consent ~/films --no-takes-part
    """
    from sottovoce.stores.user import UserStore
    from sottovoce.stores.user_door import UserDoor

    changing = takes_part is not None or bool(refuse) or bool(allow)
    with UserStore.open(path, readonly=not changing) as store:
        number, dropped = _user(store, user), 0
        choice = store.choice(number)
        if changing:
            choice = changed_choice(store, choice, takes_part, refuse or [], allow or [])
            dropped = UserDoor(store).choose(number, choice)
        owners, records = consent_views(store, number), store.records(number)
        settings = store.world.directory.settings
        told = {k for k, states in store.counts(number).items() if set(states) - {"dropped"}}
    if as_json:
        output.emit(
            {
                "store": path,
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
    output.show(*choice_words(choice, owners, settings, path))
    if dropped:
        output.show(f"{messages_text(dropped)} that waited will not be sent.")
    kept = [o["name"] for o in owners if not o["reads"] and o["number"] in told]
    if changing and kept:
        output.show(
            f"What was told before is still with {', '.join(kept)}; to have it deleted there, use "
            "sottovoce user leave."
        )


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
            help="Also say that nothing more comes for now, so that owners need not wait for your "
            "next dislike to learn from the last likes.",
        ),
    ] = False,
    user: Number = None,
    as_json: Json = False,
) -> None:
    """Tell the data owners what you liked and what not, as far as you permit it.

    FILE has a header and the columns item, timestamp (seconds since 1970), and rating or positive
    (1 or 0); ratings count as liked from the federation's own limit on. Each line goes, sealed, to
    the data owners that hold the item and that you do not refuse. Everything is taken, or nothing
    where a line is wrong. The same line is told once, however often you send it. Who does not
    answer is told later: call this again without FILE.

    \b
    Examples:
      sottovoce user send ~/films ratings.csv
      sottovoce user send ~/films
    """
    from sottovoce.stores.user import UserStore
    from sottovoce.stores.user_door import UserDoor

    said = None
    with UserStore.open(path, agent=True) as store:
        number, door = _user(store, user), UserDoor(store)
        if file is not None:
            if not store.choice(number).takes_part:
                raise ConsentError(
                    f"you do not take part, so nothing of {file} was read; to take part: "
                    f"sottovoce user consent {path} --takes-part"
                )
            said = door.interact_many(read_events(file, store.world.directory, number))
        if end:
            door.end_stream(number)
        with output.interruptible("what was not sent yet waits; run `sottovoce user send` again"):
            delivery = _deliver(store)
        unseen = store.unseen_owners(number) if store.choice(number).takes_part else ()
    for name in unseen:
        output.note(
            f"note: the data owner {name} is new since you chose and is told nothing; see "
            f"sottovoce user consent {path}"
        )
    if as_json:
        output.emit({"store": path, "said": said, **output.plain(delivery)})
        return
    if said is not None:
        output.show(
            f"{messages_text(said.messages)} for data owners; {said.known:,} were told before, "
            f"and of {said.at_home:,} interactions nothing leaves."
        )
    output.show(*delivery_words(delivery))


def interact(
    path: Store,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Its name in the catalogue.")],
    liked: Annotated[
        bool | None, typer.Option("--liked/--disliked", help="Whether you liked it.")
    ] = None,
    time: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="When, in seconds since 1970; now.")
    ] = None,
    user: Number = None,
    as_json: Json = False,
) -> None:
    """You liked one item, or did not. Sent at once where somebody may read it and answers.

    Where you take no part, or refuse every data owner that holds the item, it is noted at home as
    seen, and nothing leaves.

    \b
    Examples:
      sottovoce user interact ~/films "Alien (1979)" --liked
      sottovoce user interact ~/films "Alien (1979)" --disliked
    """
    from sottovoce.stores.user import UserStore
    from sottovoce.stores.user_door import UserDoor

    if liked is None:
        raise UsageError("say whether you liked it: --liked or --disliked")
    delivery = None
    with UserStore.open(path) as store:
        number = _user(store, user)
        place = store.world.directory.item(item)
        when = store.now() if time is None else time
        said = UserDoor(store).interact(number, place, liked, when)
        busy = store.file.served()
    if said.messages and not busy:
        with (
            UserStore.open(path, agent=True) as store,
            output.interruptible("it waits; run `sottovoce user send` to send it"),
        ):
            delivery = _deliver(store)
    if as_json:
        output.emit({"store": path, "item": item, "said": said, "delivery": delivery})
    elif said.at_home:
        output.show(f"{item}: noted here, and nothing leaves.")
    elif said.known:
        output.show(f"{item}: the data owners know already.")
    elif delivery is None:
        output.show(f"{item}: waits for the process that is sending from this store now.")
    else:
        output.show(*delivery_words(delivery))


def show(path: Store, user: Number = None, as_json: Json = False) -> None:
    """What waits, what has left and who reads it, by data owner; and the number they know you by.

    Bytes are those of requests with anything of yours in them. What data owners get they read in
    full, so that no ε bounds what it tells them.

    \b
    Example:
      sottovoce user show ~/films
    """
    from sottovoce.stores.user import UserStore

    with UserStore.open(path, readonly=True) as store:
        number = _user(store, user)
        choice, found = store.choice(number), user_view(store, number)
    if as_json:
        output.emit({"store": path, **found})
        return
    requests, size = found["orchestrator"]["requests"], found["orchestrator"]["bytes"]
    output.show(
        f"{store.federation}: {choice.owner_words()}. {found['seen']:,} items seen.",
        owner_table(found["owners"]),
        f"To the orchestrator: {requests:,} request{'' if requests == 1 else 's'}, {size:,} bytes.",
    )
    if found["enrolled"]:
        output.show(f"In this federation you are number {found['number']}.")
    if found["left_federation"]:
        done = "You have left" if found["left_federation"] == "done" else "You are leaving"
        output.show(f"{done} this federation.")


def recommend(
    path: Store,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 10,
    user: Number = None,
    as_json: Json = False,
) -> None:
    """Recommendations from the orchestrator's model, without what you have seen.

    The question does not say what you have seen: it asks for more than you want, and what you know
    is taken out here. From data owners' updates the orchestrator can work much of it out all the
    same. Where data owners keep your vectors (release = "aggregated"), those that you have told
    anything are asked for them, and the list is made here; the orchestrator is asked for the rows
    of all items.

    \b
    Example:
      sottovoce user recommend ~/films -n 5
    """
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.services.agent.user_agent import UserAgent
    from sottovoce.stores.user import UserStore

    if n < 1:
        raise UsageError(f"-n must be at least 1, not {n}")
    with UserStore.open(path) as store, UserAgent(store) as agent:
        number = _user(store, user)
        with output.interruptible("nothing was changed"):
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
    output.show(Table("Recommended to you", columns, shown))


def leave(
    path: Store,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Leave only this data owner, and stay with others."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")] = False,
    user: Number = None,
    as_json: Json = False,
) -> None:
    """Leave a data owner, or all of them and the federation: they delete what they hold of you.

    Nothing more goes there; what waits is dropped. Who does not answer is told later, by
    `sottovoce user send`. Your store stays with you. Your own row of the model is deleted when you
    leave the federation; what items' rows have learnt from you cannot be taken out of them. That
    nobody kept a copy, or a backup, cannot be shown.

    \b
    Examples:
      sottovoce user leave ~/films --owner Horror
      sottovoce user leave ~/films --yes
    """
    from sottovoce.stores.user import UserStore
    from sottovoce.stores.user_door import UserDoor

    with UserStore.open(path, agent=True) as store:
        number, door = _user(store, user), UserDoor(store)
        if owner is not None:
            store.world.directory.owner(owner)
        whom = f"data owner {owner}" if owner else f"the federation {store.federation}"
        _require_sure(yes, f"Leave {whom} for good?", as_json)
        asked = door.leave(number, owner)
        with output.interruptible("who was not told yet is told by `sottovoce user send`"):
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
    told = ", ".join(asked) or "nobody, as nobody has anything of you"
    output.show(f"Asked to forget you: {told}.", *delivery_words(delivery))
    if departure == "done":
        output.show("You have left the federation; the store stays with you.")


# --- helpers -------------------------------------------------------------------------------------


def _user(store: UserStore, user: int | None) -> int:
    users = store.users
    if user is None:
        if len(users) != 1:
            raise UsageError(f"the store {store.path} has {len(users):,} users; choose by --user")
        return users[0]
    return store.person(user).user


def _deliver(store: UserStore) -> Delivery:
    from sottovoce.services.agent.user_agent import UserAgent

    with UserAgent(store) as agent:
        return agent.send_all()


def _require_sure(yes: bool, question: str, as_json: bool) -> None:
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UsageError("leaving cannot be undone; say --yes to leave without being asked")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")
