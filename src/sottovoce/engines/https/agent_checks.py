"""What an agent looks at before it relies on it: who its store is of, and a server's catalogue."""

from __future__ import annotations

from typing import Any

from sottovoce.engines.https.client import SMALL
from sottovoce.engines.https.invitations import Invitation, kept_invitation
from sottovoce.errors import MessageError, UsageError
from sottovoce.parties.store import CohortStore
from sottovoce.terms import Terms

_LARGEST_CATALOGUE, _LARGEST_NAME = 1 << 26, 1 << 10


def identity(store: CohortStore) -> tuple[int, Invitation]:
    """The device's number and how it was invited."""
    users = store.users
    if len(users) != 1:
        raise UsageError(
            f"the store in {store.path} holds {len(users)} users, a device agent serves one; use a "
            "Flower node for a cohort"
        )
    invitation = kept_invitation(store)
    if invitation is None:
        raise UsageError(
            f"the store in {store.path} has no invitation; get one from the operator and run "
            f"`sottovoce device init {store.path} --invitation FILE`"
        )
    if invitation.number != int(users[0]):
        raise UsageError(
            f"the store in {store.path} is of device {int(users[0])}, its invitation of device "
            f"{invitation.number}; make a new store with the invitation"
        )
    return int(users[0]), invitation


def catalogue_limit(terms: Terms) -> int:
    """The most bytes that a catalogue may have."""
    return min(SMALL + terms.n_items * _LARGEST_NAME, _LARGEST_CATALOGUE)


def catalogue_items(table: dict[str, Any], terms: Terms) -> list[tuple[str, str]]:
    """Id and title of every item, from what a server published."""
    items = table.get("items")
    if (
        not isinstance(items, list)
        or len(items) != terms.n_items
        or not all(
            isinstance(item, list) and len(item) == 2 and all(map(_is_text, item)) for item in items
        )
    ):
        raise MessageError("the server's catalogue is not that of its terms")
    return [(item, title) for item, title in items]


def _is_text(value: object) -> bool:
    """Whether it is text that can be stored: JSON may name halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
