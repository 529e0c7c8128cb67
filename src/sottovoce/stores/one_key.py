"""A device has one key, and a key has one number, whichever process enrols it. Every function works
within a transaction of the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

from sottovoce.errors import MessageError

KEY_IN_USE = (
    "this key has enrolled under another number; a device uses one invitation, and every device "
    "has a key of its own"
)


class KeyInUse(MessageError):
    """A key that another number has."""

    def __init__(self) -> None:
        super().__init__(KEY_IN_USE)


@contextlib.contextmanager
def only_number(link: sa.Connection) -> Iterator[None]:
    """Give a key to a number within. Raises `KeyInUse`, and leaves the transaction as it was, if
    another number has it."""
    try:
        with link.begin_nested():
            yield
    except sa.exc.IntegrityError:
        raise KeyInUse from None
