"""The catalogue of a federation: id and title of every item, in an order that never changes, since
devices and models know items by their place.

It may name categories of items, so that people can speak of many items by one name.

Items come and go all the same. A new federation can have places to spare, which are named later;
an item that goes keeps its place and loses its title, and what has no title is not recommended.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sottovoce.errors import CorruptData, MessageError, UsageError

Items = Sequence[tuple[str, str]]
"""Id and title, by place."""
Categories = Sequence[Sequence[str]]
"""Categories of every item, by place; empty if a federation names none."""
_SPARE = "~spare-"
LONGEST_NAME = 500
"""Bytes of an item's id or title or of a category, at most."""
_SHOWN = 40
"""Characters of a name that an error shows."""
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that show what is around them in another order."""


OBJECTION = b"catalogue"
"""The body of a check-in by which a device says that it refuses the catalogue that is published."""


class OtherItems(MessageError):
    """A catalogue has another item in a place that a device knows."""


def catalogue_limit(n_items: int) -> int:
    """The most bytes that a published catalogue may have: devices take no more."""
    return min((1 << 16) + n_items * 1024, 1 << 26)


def require_fit(after: bytes, before: bytes = b"{}") -> None:
    """Raises where devices would not take a catalogue that an operator has made, or nobody could
    read a name in it. What was there `before` may stay as it is."""
    table = json.loads(after)
    known = _names(json.loads(before))
    for name in _names(table):
        if name not in known and not _is_name(name):
            shown = ascii(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!a} and so on"
            raise UsageError(
                f"{shown} is no name of an item or a category: ids, titles and categories have 1 "
                f"to {LONGEST_NAME} bytes and can be read; nothing was changed"
            )
    n_items = len(table["items"])
    try:
        if after != before:
            require_good_ids(table["items"], categories_in(table, n_items))
    except MessageError as error:
        raise UsageError(f"devices would refuse this catalogue: {error}") from None
    most = catalogue_limit(n_items)
    if len(after) > max(most, len(before)):
        raise UsageError(
            f"the catalogue would have {len(after):,} bytes, and devices take {most:,} for "
            f"{n_items:,} items; nothing was changed, use shorter titles or fewer categories"
        )


def _names(table: Mapping[str, Any]) -> dict[str, None]:
    """Return items, titles and categories, each once; what has no title is left out."""
    found = {item: None for item, _ in table.get("items", ())}
    found |= {title: None for _, title in table.get("items", ()) if title}
    return found | dict.fromkeys(table.get("categories", {}).get("names", ()))


def _is_name(text: str) -> bool:
    return is_text(text) and bool(text.strip()) and text == cleaned(text)


def cleaned(text: str) -> str:
    """A title or category of a published data set, as it may stand in a catalogue."""
    seen = "".join("\ufffd" if _is_unseen(one) else one for one in text)
    return seen.encode()[:LONGEST_NAME].decode(errors="ignore")


def _is_unseen(one: str) -> bool:
    return unicodedata.category(one) in _UNSEEN or one in _TURNING


def as_table(items: Items, categories: Categories) -> dict[str, Any]:
    """A catalogue as it is published."""
    table: dict[str, Any] = {"items": [list(item) for item in items]}
    names = sorted({name for each in categories for name in each if name})
    if names:
        place = {name: at for at, name in enumerate(names)}
        of = [sorted({place[name] for name in each if name}) for each in categories]
        table["categories"] = {"names": names, "of": of}
    return table


def items_in(table: Mapping[str, Any], n_items: int) -> list[tuple[str, str]]:
    """Id and title of every item, from what a server published. Raises if it is not the catalogue
    of so many items."""
    items = table.get("items")
    if (
        not isinstance(items, list)
        or len(items) != n_items
        or not all(
            isinstance(item, list) and len(item) == 2 and all(map(is_text, item)) for item in items
        )
    ):
        raise MessageError("the server's catalogue is not that of its terms")
    found = [(item, title) for item, title in items]
    require_good_ids(found, categories_in(table, n_items))
    return found


def categories_in(table: Mapping[str, Any], n_items: int) -> list[tuple[str, ...]]:
    """The categories of every item of a published catalogue; empty where it has none. Raises where
    they are not what they should be."""
    if "categories" not in table:
        return []
    found = table["categories"]
    if not isinstance(found, dict) or found.keys() != {"names", "of"}:
        raise MessageError("a catalogue's categories must be names, and of which item each is")
    names, of = found["names"], found["of"]
    if not isinstance(names, list) or not all(is_text(name) and name for name in names):
        raise MessageError("the categories of a catalogue must have names")
    if len({*names}) != len(names):
        raise MessageError("a catalogue must not name two categories alike")
    if not isinstance(of, list) or len(of) != n_items:
        raise MessageError("a catalogue must say of every item of which categories it is")
    for places in of:
        if not isinstance(places, list) or not all(
            type(place) is int and 0 <= place < len(names) for place in places
        ):
            raise MessageError("a catalogue gives an item a category that it does not name")
        if any(one >= other for one, other in pairwise(places)):
            raise MessageError("an item's categories must ascend, each once")
    return [tuple(names[place] for place in places) for places in of]


def is_text(value: object) -> bool:
    """Whether it is text that can be stored: JSON may name halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_spare(items: Items, many: int) -> list[tuple[str, str]]:
    """These items, and behind them so many places without one."""
    taken = [
        item
        for place, (item, title) in enumerate(items)
        if item.startswith(_SPARE) and (title or item != f"{_SPARE}{place}")
    ]
    if many and taken:
        raise UsageError(f"an item must not be called {taken[0]}, as places to spare are")
    return [*items, *((f"{_SPARE}{len(items) + n}", "") for n in range(many))]


def spare_places(items: Items) -> list[int]:
    """Places without an item."""
    return [
        place for place, (item, title) in enumerate(items) if item.startswith(_SPARE) and not title
    ]


def require_good_ids(items: Items, categories: Categories) -> None:
    """Raise if two items of a published catalogue have the same id, or if an id that is reserved
    for places to spare has a title or a category. Such a place may change its id, and what a user
    has said of it or of its categories would not hold for the item under its next id."""
    if len({item for item, _ in items}) < len(items):
        raise MessageError("a catalogue must not name two items alike")
    of = categories or [()] * len(items)
    for (item, title), names in zip(items, of, strict=True):
        if item.startswith(_SPARE) and (title or names):
            raise MessageError(
                f"the catalogue gives {item[:_SHOWN]!a} a title or a category, but ids that begin "
                f"with {_SPARE} are reserved for places without an item; nothing is sent until it "
                "is put right: tell the operator"
            )


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
            "changed. `sottovoce serve terms --add` makes more, and devices are asked to agree"
        )
    for item in gone:
        found[place[item]] = item, ""
    for item, title in added:
        if item.startswith(_SPARE):
            raise UsageError(f"an item must not be called {item}, as places to spare are")
        found[place[item] if item in place else free.pop(0)] = item, title or item
    return found


def changed_categories(
    items: Items, categories: Categories, after: Items, added: Items, more: Categories
) -> list[tuple[str, ...]]:
    """The categories of the items `after` a change by which some were `added`, with these
    categories (or, where there are none, those that they had)."""
    known = dict(zip((item for item, _ in items), categories, strict=True)) if categories else {}
    if more:
        known |= dict(zip((item for item, _ in added), more, strict=True))
    return [tuple(known.get(item, ())) for item, _ in after] if any(known.values()) else []


def with_former_categories(
    before: Items, known: Categories, after: Items, categories: Categories
) -> list[tuple[str, ...]]:
    """These categories, and those that items were known to have: none is ever taken from them."""
    had = {item: names for (item, _), names in zip(before, known, strict=True)}
    now = categories or [()] * len(after)
    return [
        tuple(sorted({*had.get(item, ()), *names}))
        for (item, _), names in zip(after, now, strict=True)
    ]


def require_same_places(before: Items, after: Items) -> None:
    """Raises where an item that a device knows stands elsewhere, or is not there: its history would
    be another's. More may stand behind them."""
    free = set(spare_places(before))
    moved = [
        old
        for place, (old, _) in enumerate(before)
        if place not in free and (place >= len(after) or after[place][0] != old)
    ]
    if moved:
        raise OtherItems(
            f"the server's catalogue has another item in the place of {moved[0]}: nothing of the "
            "history is sent until it is put right; tell the operator"
        )


def items_of(
    rows: Iterable[Mapping[str, Any]], where: str
) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    """Id and title of each item in the rows of a table that somebody has written, and its
    categories, from a column of that name with | between them; none where there is no such
    column."""
    found = list(rows)
    if not found or "item" not in found[0]:
        raise CorruptData(f"{where} needs a column called item, with a row for every item")
    ids = ["" if row["item"] is None else str(row["item"]) for row in found]
    items = [(item, str(row.get("title") or item)) for item, row in zip(ids, found, strict=True)]
    if len({item for item, _ in items}) < len(items):
        raise CorruptData(f"{where} names an item more than once")
    if "categories" not in found[0]:
        return items, []
    return items, [_categories(row["categories"]) for row in found]


def _categories(value: Any) -> tuple[str, ...]:
    parts = value.split("|") if isinstance(value, str) else value or ()
    return tuple(name for part in parts if (name := str(part).strip()))
