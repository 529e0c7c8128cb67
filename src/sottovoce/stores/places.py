"""Places for devices that nobody has invited: the rules, who has one, and the key of challenges.
Every function works within a transaction of the caller's."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict

import sqlalchemy as sa

from sottovoce import config
from sottovoce.parties.places import PlaceRules
from sottovoce.stores import server as records
from sottovoce.stores.database import devices, places
from sottovoce.stores.server import KeyInUse, only_number
from sottovoce.wire.invitations import MAX_NUMBER

RULES, _CHALLENGE_KEY = "places", "challenge_key"
"""Keys of facts: the rules, and the key of challenges that all processes of a federation know as
theirs."""


def place_rules(link: sa.Connection) -> PlaceRules | None:
    """Return the rules by which devices come without an invitation; None if no operator ever opened
    places."""
    found = records.fact(link, RULES)
    return None if found is None else config.build(PlaceRules, json.loads(found), RULES)


def set_place_rules(link: sa.Connection, rules: PlaceRules) -> None:
    records.set_fact(link, RULES, json.dumps(asdict(rules)))


def places_table(link: sa.Connection) -> dict[str, int] | None:
    """The rules, and how many places are taken, as operators are shown them."""
    rules = place_rules(link)
    return None if rules is None else asdict(rules) | {"taken": count_places(link)}


def challenge_key(link: sa.Connection) -> bytes:
    """Drawn when it is first asked for; whoever asks has the turn then."""
    found = records.fact(link, _CHALLENGE_KEY)
    if found is None:
        found = secrets.token_hex(32)
        records.set_fact(link, _CHALLENGE_KEY, found)
    return bytes.fromhex(found)


def count_places(link: sa.Connection) -> int:
    """Devices that have come without an invitation, ever."""
    return int(link.execute(sa.select(sa.func.count()).select_from(places)).scalar() or 0)


def give_place(link: sa.Connection, public_key: bytes, most: int) -> int | None:
    """The next number for a device that nobody has invited; None where `most` have come so. The
    same key again has the number that it had. Whoever calls this has the turn
    (`Database.take_turn`), or two processes would give one number twice."""
    known = records.number_of_key(link, public_key)
    if known is not None:
        return known
    number = records.next_number(link)
    if number > MAX_NUMBER or count_places(link) >= most:
        return None
    # There is no token: this is the hash of one that nobody knows.
    nobody = secrets.token_bytes(32)
    row = {"number": number, "token_hash": nobody, "missed": 0, "dormant": False}
    try:
        with only_number(link):
            link.execute(devices.insert().values(**row, public_key=public_key))
    except KeyInUse:  # with an invitation, just now
        return records.number_of_key(link, public_key)
    link.execute(places.insert().values(number=number))
    return number
