"""What `sottovoce user` says: who reads what, what waits and what has left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.cli import output
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.algorithms.drift import DRIFTConfig
    from sottovoce.consent import Choice
    from sottovoce.engines.https.user_agent import Delivery
    from sottovoce.evaluation.tables import Table
    from sottovoce.parties.user_store import UserStore

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
