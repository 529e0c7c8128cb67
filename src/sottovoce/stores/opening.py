"""A person's store, opened by whoever does not know in which kind of federation she is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.errors import UsageError
from sottovoce.stores.device import CohortStore
from sottovoce.stores.person import ISSUER, PersonalStore, entries

if TYPE_CHECKING:
    from sottovoce.stores.user import UserStore


def open_store(
    path: Path, *, readonly: bool = False, agent: bool = False
) -> CohortStore | UserStore:
    """The store of a person, in whichever federation she is."""
    file = PersonalStore.open(path, readonly=readonly, agent=agent).file
    try:
        if ISSUER not in entries(file):
            return CohortStore(file)
        from sottovoce.stores.user import UserStore  # few need what it needs

        return UserStore(file)
    except BaseException:
        file.close()
        raise


def open_cohort(path: Path, *, readonly: bool = False) -> CohortStore:
    """A store that is not in a federation of data owners; raises if it is."""
    store = open_store(path, readonly=readonly)
    if isinstance(store, CohortStore):
        return store
    store.close()
    raise UsageError(
        f"{path} is in a federation of data owners, which has neither terms nor filters; see who "
        f"reads what with `sottovoce device consent {path}`"
    )
