"""The catalogue of a federation: id and title of every item, in an order that never changes, since
devices and models know items by their place.

Items come and go all the same. A new federation can have places to spare, which are named later;
an item that goes keeps its place and loses its title, and what has no title is not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.errors import MessageError, UsageError

Items = Sequence[tuple[str, str]]
"""Id and title, by place."""
_SPARE = "~spare-"


def with_spare(items: Items, many: int) -> list[tuple[str, str]]:
    """These items, and behind them so many places without one."""
    taken = [item for item, _ in items if item.startswith(_SPARE)]
    if many and taken:
        raise UsageError(f"an item must not be called {taken[0]}, as places to spare are")
    return [*items, *((f"{_SPARE}{len(items) + n}", "") for n in range(many))]


def spare_places(items: Items) -> list[int]:
    """Places without an item."""
    return [place for place, (item, _) in enumerate(items) if item.startswith(_SPARE)]


def changed(items: Items, added: Items, gone: Sequence[str]) -> list[tuple[str, str]]:
    """The catalogue with some items more, in places to spare, and without those that are gone. One
    that comes back has its place again."""
    found, free = list(items), spare_places(items)
    place = {item: at for at, (item, _) in enumerate(items)}
    strange = [item for item in gone if item not in place or place[item] in free]
    if strange:
        raise UsageError(f"{strange[0]} is not in the catalogue; nothing was changed")
    new = [item for item, _ in added if item not in place]
    if len(new) > len(free):
        raise UsageError(
            f"there are {len(free):,} places to spare for {len(new):,} new items; nothing was "
            "changed. A federation with more places is a new one"
        )
    for item in gone:
        found[place[item]] = item, ""
    for item, title in added:
        if item.startswith(_SPARE):
            raise UsageError(f"an item must not be called {item}, as places to spare are")
        found[place[item] if item in place else free.pop(0)] = item, title or item
    return found


def require_same_places(before: Items, after: Items) -> None:
    """Raises where an item that a device knows stands elsewhere: its history would be another's."""
    free = set(spare_places(before))
    moved = [
        old
        for place, ((old, _), (new, _)) in enumerate(zip(before, after, strict=True))
        if old != new and place not in free
    ]
    if moved:
        raise MessageError(
            f"the server's catalogue has another item in the place of {moved[0]}: nothing is sent "
            "until it is put right; tell the operator"
        )
