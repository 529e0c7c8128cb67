"""What becomes of stores that were set back to an older copy."""

from __future__ import annotations

from sottovoce.parties.store import CohortStore
from sottovoce.parties.user_store import UserStore


def releases(store: CohortStore | UserStore) -> int:
    """What has left the store, or may have; of all users, ever."""
    if isinstance(store, UserStore):
        return len(store.ledger())
    return sum(spent.releases for spent in store.budget())
