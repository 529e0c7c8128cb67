"""Which column of a table is what: told by its name, and where names leave it open, by its values.

Where several would do, the answer is a question: one sentence with the columns and the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from sottovoce.data.times import seconds_of_texts
from sottovoce.errors import ConfigError, CorruptData

ROLES = ("user", "item", "timestamp", "rating", "split")
NONE = "-"
"""For `--column ROLE=-`: no column plays this role."""

_USUAL: Mapping[str, tuple[str, ...]] = {
    # Of the names of one role those of a former line come before those of a later one.
    "user": (
        "user userid uid usr useridx userhash",
        "reviewerid customerid visitorid memberid accountid clientid profileid playerid readerid "
        "listenerid personid userkey",
        "username customer visitor member account reviewer reader",
    ),
    "item": (
        "item itemid iid itemidx",
        "movieid filmid asin parentasin venueid locationid poiid placeid bookid isbn productid "
        "businessid artistid songid trackid newsid articleid gameid appid sku skuid gmapid "
        "recipeid animeid jokeid beerid storyid videoid showid courseid hotelid listingid",
        "movie film venue poi place location book product business artist song track article game "
        "app recipe anime video show course hotel",
    ),
    "timestamp": (
        "timestamp unixreviewtime unixtimestamp unixtime eventtime ts timestampms epoch",
        "time datetime date createdat created ratedat reviewtime visitedat playedat checkintime "
        "utctime utctimestamp localtime eventdate when",
    ),
    "rating": ("rating", "score stars overall ratingvalue bookrating ratings userrating value"),
    "split": ("split", "part subset partition set"),
}
_TIMELY = re.compile(r"time|date|stamp|(_at|At)$", re.IGNORECASE)
_OF_THINGS = re.compile(r"birth|dob|release|publish|expir", re.IGNORECASE)
"""Times of people and things rather than of events."""

PART_WORDS = {
    **dict.fromkeys(("train", "training", "tr"), 0),
    **dict.fromkeys(("valid", "validation", "val", "vali", "dev", "development", "tune"), 1),
    **dict.fromkeys(("test", "testing", "tst", "te"), 2),
}
"""How the parts of a ready split are called, to their places in `PARTS`."""

Sample = Mapping[str, Sequence[str]]
"""The first values of each column, as texts."""


def choose_columns(
    names: Sequence[str], given: Mapping[str, str] | None, where: str, sample: Sample | None = None
) -> dict[str, str]:
    """Which column plays which role. Raises where user or item cannot be found, and where several
    columns would do."""
    given, sample = dict(given or {}), sample or {}
    for role, name in given.items():
        if role not in ROLES:
            raise ConfigError(f"unknown column role {role!r}; roles are {', '.join(ROLES)}")
        if name == NONE and role in ("user", "item"):
            raise ConfigError(f"every event needs a {role}: --column {role}={NONE} cannot be")
        if name != NONE and name not in names:
            raise ConfigError(f"{where} has no column {name!r}; it has: {', '.join(names)}")
    chosen = {role: name for role, name in given.items() if name != NONE}
    for role in ROLES:
        if role not in given:
            free = [name for name in names if name and name not in chosen.values()]
            found = _found(role, [*dict.fromkeys(free)], sample, where)
            if found is not None:
                chosen[role] = found
    for role in ("user", "item"):
        if role not in chosen:
            raise ConfigError(_unknown(role, names, where))
    for name in chosen.values():
        if list(names).count(name) > 1:
            raise CorruptData(f"{where} has two columns {name!r}; rename one of them")
    used = [name for name in names if list(chosen.values()).count(name) > 1]
    if used:
        raise ConfigError(f"{where}: the column {used[0]!r} cannot play two roles")
    return {role: chosen[role] for role in ROLES if role in chosen}


def id_column(names: Sequence[str], role: str, where: str) -> str:
    """The column of a table about users or items that has their ids."""
    found = _found(role, names, {}, where)
    if found is None:
        raise ConfigError(f"{where} has no column for the {role} (columns: {', '.join(names)}); "
                          f"call it {role}")  # fmt: skip
    return found


def is_item_name(name: str) -> bool:
    """Whether a column of this name would be taken for that of items."""
    return any(_plain(name) in tier.split() for tier in _USUAL["item"])


def left_out(names: Sequence[str], chosen: Mapping[str, str]) -> list[str]:
    """Columns that mean nothing here."""
    return [name for name in names if name not in chosen.values()]


def numbers_only(fields: Sequence[str]) -> bool:
    """Whether a first line holds values rather than names."""
    filled = [text for text in fields if text]
    return bool(filled) and all(_number(text) for text in filled)


def _found(role: str, names: Sequence[str], sample: Sample, where: str) -> str | None:
    fits = _FITS.get(role)
    for tier in _USUAL[role]:
        usual = tier.split()
        named = [name for name in names if _plain(name) in usual]
        if role == "split":
            named = [name for name in named if _plain(name) == "split" or _parts(sample.get(name))]
        if len(named) > 1 and fits is not None:
            named = [name for name in named if fits(sample.get(name, ()))] or named
        if named:
            return _one(role, named, where)
    if role == "timestamp":
        timely = [name for name in names if _TIMELY.search(name) and not _OF_THINGS.search(name)]
        for some, holds in ((timely, _times), (names, _iso)):
            named = [
                name for name in some if holds(sample.get(name, ())) and not _OF_THINGS.search(name)
            ]
            if named:
                return _one(role, named, where)
    return None


def _one(role: str, names: Sequence[str], where: str) -> str:
    if len(names) > 1:
        none = "" if role in ("user", "item") else f" (--column {role}={NONE} for none)"
        raise ConfigError(
            f"{where}: the {role} could be the column {' or '.join(names)}; say which, as in "
            f"--column {role}={names[0]}{none}"
        )
    return names[0]


def _unknown(role: str, names: Sequence[str], where: str) -> str:
    if numbers_only(names):
        return (
            f"{where}: the first line holds no names of columns but values ({', '.join(names)}); "
            f"say --no-header and --columns with a name for each, as in --columns user,item,rating"
        )
    return (
        f"{where}: no column looks like the {role} (columns: {', '.join(names)}); "
        f"say which it is, as in --column {role}=NAME, or --no-header if it has no line of names"
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(values: Sequence[str]) -> bool:
    return bool(values) and all(map(_number, values))


def _iso(values: Sequence[str]) -> bool:
    if not values or any(len(text) < len("2024-05-01") for text in values):
        return False
    return not seconds_of_texts(pa.array(values, pa.string())).null_count


def _times(values: Sequence[str]) -> bool:
    """Texts that are times, or numbers that would be of our age."""
    return _iso(values) or (_numbers(values) and all(float(text) >= 1e8 for text in values))


def _parts(values: Sequence[str] | None) -> bool:
    return bool(values) and all(text.strip().lower() in PART_WORDS for text in values or ())


_FITS: Mapping[str, Callable[[Sequence[str]], bool]] = {"timestamp": _times, "rating": _numbers}
"""Where names leave several columns, those with such values come first."""
