"""The devices of a federation: who is invited, who has enrolled, who is asked. Every function works
within a transaction of the caller's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import sqlalchemy as sa

from sottovoce.engines.https.database import devices, meta, shut_out
from sottovoce.engines.https.records import AT_ONCE, Numbers, in_parts, set_fact, shut_out_among

_WELCOME = devices.c.number.not_in(sa.select(shut_out.c.number))
_INVITED = sa.select(devices.c.number).where(
    devices.c.token_hash == sa.bindparam("token"), _WELCOME
)
_WHY = "shut_out_why:"
"""Of a fact, before the number of a device that the server itself has shut out."""


def token_hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def invite(link: sa.Connection, numbers: Iterable[int], tokens: Iterable[bytes]) -> None:
    """Expect these devices. Only hashes of their tokens are kept."""
    rows = [
        {"number": n, "token_hash": token_hash(t), "missed": 0, "dormant": False}
        for n, t in zip(numbers, tokens, strict=True)
    ]
    for start in range(0, len(rows), AT_ONCE):
        link.execute(devices.insert(), rows[start : start + AT_ONCE])


def known_numbers(link: sa.Connection, numbers: Sequence[int]) -> list[int]:
    """Those of `numbers` that were invited before."""
    found: list[int] = []
    for part in in_parts(numbers):
        found += link.execute(
            sa.select(devices.c.number).where(devices.c.number.in_(part))
        ).scalars()
    return found


def next_number(link: sa.Connection) -> int:
    last = link.execute(sa.select(sa.func.max(devices.c.number))).scalar()
    return 0 if last is None else int(last) + 1


def is_invited(link: sa.Connection, token: bytes) -> bool:
    """Whether somebody was invited with this token and not shut out. Changes and holds nothing."""
    return link.execute(_INVITED, {"token": token_hash(token)}).first() is not None


def enrol(link: sa.Connection, token: bytes, public_key: bytes) -> int | None:
    """The device's number, or None where the token is not good for this key, or for nobody since
    the number was shut out. The same token and key may come again: the first answer can have been
    lost."""
    row = link.execute(
        sa.select(devices.c.number, devices.c.public_key)
        .where(devices.c.token_hash == token_hash(token), _WELCOME)
        .with_for_update()
    ).one_or_none()
    if row is None or (row.public_key is not None and bytes(row.public_key) != public_key):
        return None
    if row.public_key is None:
        other = sa.select(devices.c.number).where(devices.c.public_key == public_key)
        if link.execute(other).first() is not None:  # one device is one number
            return None
        link.execute(
            devices.update().where(devices.c.number == row.number).values(public_key=public_key)
        )
    return int(row.number)


def public_keys(link: sa.Connection) -> dict[int, bytes]:
    rows = link.execute(
        sa.select(devices.c.number, devices.c.public_key).where(devices.c.public_key.is_not(None))
    )
    return {row.number: bytes(row.public_key) for row in rows}


def public_key(link: sa.Connection, number: int) -> bytes | None:
    found = link.execute(sa.select(devices.c.public_key).where(devices.c.number == number)).scalar()
    return None if found is None else bytes(found)


def pool(link: sa.Connection) -> Numbers:
    """Devices that can be asked: enrolled, not shut out and not dormant."""
    found = link.execute(
        sa.select(devices.c.number)
        .where(devices.c.public_key.is_not(None), devices.c.dormant.is_(False), _WELCOME)
        .order_by(devices.c.number)
    ).scalars()
    return np.fromiter(found, dtype=np.uint32)


def count_devices(link: sa.Connection) -> tuple[int, int]:
    """Devices that have enrolled and were not shut out, and those among them that are asked."""
    enrolled = sa.select(sa.func.count()).where(devices.c.public_key.is_not(None), _WELCOME)
    active = enrolled.where(devices.c.dormant.is_(False))
    return int(link.execute(enrolled).scalar() or 0), int(link.execute(active).scalar() or 0)


def count_keys(link: sa.Connection) -> int:
    """Devices that have ever enrolled."""
    query = sa.select(sa.func.count()).where(devices.c.public_key.is_not(None))
    return int(link.execute(query).scalar() or 0)


def shut(link: sa.Connection, numbers: Sequence[int], why: str = "") -> None:
    """Ask these devices no more and take nothing from them, whether they have enrolled or not.
    `why` is what they are told, where it is not the operator's own decision."""
    new = sorted(set(numbers) - shut_out_among(link, numbers))
    if new:
        link.execute(shut_out.insert(), [{"number": number} for number in new])
    if why:
        for number in new:
            set_fact(link, f"{_WHY}{number}", why)


def readmit(link: sa.Connection, numbers: Sequence[int]) -> None:
    """Undo `shut`."""
    for part in in_parts(numbers):
        link.execute(shut_out.delete().where(shut_out.c.number.in_(part)))
        link.execute(meta.delete().where(meta.c.key.in_([f"{_WHY}{n}" for n in part])))


def why_shut(link: sa.Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Why the server has shut these devices out; nothing of those whom the operator has."""
    told: dict[int, str] = {}
    for part in in_parts(numbers):
        names = [f"{_WHY}{number}" for number in part]
        rows = link.execute(sa.select(meta.c.key, meta.c.value).where(meta.c.key.in_(names)))
        told |= {int(row.key.removeprefix(_WHY)): row.value for row in rows}
    return told


def shut_numbers(link: sa.Connection) -> list[int]:
    """Everybody who was shut out, ascending."""
    return list(link.execute(sa.select(shut_out.c.number).order_by(shut_out.c.number)).scalars())


def seen(link: sa.Connection, numbers: Iterable[int]) -> None:
    """These devices are there: they are asked again."""
    for part in in_parts(list(numbers)):
        link.execute(
            devices.update()
            .where(devices.c.number.in_(part), devices.c.missed > 0)
            .values(missed=0, dormant=False)
        )


def missed(link: sa.Connection, numbers: Sequence[int], dormant_after: int) -> None:
    for part in in_parts(numbers):
        link.execute(
            devices.update()
            .where(devices.c.number.in_(part))
            .values(
                missed=devices.c.missed + 1,
                dormant=sa.or_(devices.c.dormant, devices.c.missed + 1 >= dormant_after),
            )
        )
