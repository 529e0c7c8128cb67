"""What becomes of stores that were set back to an older copy."""

from __future__ import annotations

import secrets

from sottovoce.parties.store import NOISE_BYTES, CohortStore
from sottovoce.parties.user_store import UserStore


def releases(store: CohortStore | UserStore) -> int:
    """What has left the store, or may have; of all users, ever."""
    if isinstance(store, UserStore):
        return len(store.ledger())
    return sum(spent.releases for spent in store.budget())


def renew_coins(store: CohortStore) -> None:
    """The rounds that an older copy has forgotten come with new coins: the same coin for another
    value would tell how the two differ."""
    root = secrets.token_bytes(NOISE_BYTES)
    store.file.write("INSERT OR REPLACE INTO meta VALUES ('noise-root', ?)", [root])
