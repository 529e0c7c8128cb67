"""The devices of a federation: who is invited, who has enrolled, who is asked. Every function works
within a transaction of the caller's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import sqlalchemy as sa

from sottovoce.engines.https.database import devices
from sottovoce.engines.https.records import AT_ONCE, Numbers, in_parts


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


def enrol(link: sa.Connection, token: bytes, public_key: bytes) -> int | None:
    """The device's number, or None where the token is not good for this key. The same token and
    key may come again: the first answer can have been lost."""
    row = link.execute(
        sa.select(devices.c.number, devices.c.public_key)
        .where(devices.c.token_hash == token_hash(token))
        .with_for_update()
    ).one_or_none()
    if row is None or (row.public_key is not None and bytes(row.public_key) != public_key):
        return None
    if row.public_key is None:
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
    """Devices that can be asked: enrolled and not dormant."""
    found = link.execute(
        sa.select(devices.c.number)
        .where(devices.c.public_key.is_not(None), devices.c.dormant.is_(False))
        .order_by(devices.c.number)
    ).scalars()
    return np.fromiter(found, dtype=np.uint32)


def count_devices(link: sa.Connection) -> tuple[int, int]:
    """Enrolled devices, and those among them that are asked."""
    enrolled = sa.select(sa.func.count()).where(devices.c.public_key.is_not(None))
    active = enrolled.where(devices.c.dormant.is_(False))
    return int(link.execute(enrolled).scalar() or 0), int(link.execute(active).scalar() or 0)


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
