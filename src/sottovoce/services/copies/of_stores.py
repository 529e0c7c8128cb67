"""Copies of stores: of a device, a cohort, or a user of data owners. An old one has forgotten what
left since, so that nothing leaves it until its owner says so again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from sottovoce.errors import ServiceError, StoreError, UsageError
from sottovoce.services.copies.kind import FolderKind, Resumption, Whose
from sottovoce.stores import device as store_roots
from sottovoce.stores.device import CohortStore
from sottovoce.stores.encrypted import DATABASE, KEY, LOCK, StoreFile
from sottovoce.stores.opening import open_store
from sottovoce.stores.user import UserStore, releases


def store_kind(folder: Path) -> FolderKind:
    """Return the kind of a folder that holds a store."""
    with open_store(folder, readonly=True) as store:
        return USER if isinstance(store, UserStore) else DEVICE


def _whose(path: Path) -> Whose:
    place = path / KEY
    if not (path / DATABASE).is_file() or not place.is_file():
        raise ServiceError(f"{path} lacks {DATABASE} or {KEY}; this is no whole store")
    return Whose.of("", place.read_bytes().strip())


def _copy(source: Path, target: Path) -> None:
    """Encrypted with the same key."""
    open_store(source.parent, readonly=True).close()  # says what is wrong, if anything is
    StoreFile.copy(source.parent, target)


def _settle_device(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    _no_round(next_round)
    with CohortStore.open(copy) as store:
        _refuse_newer(before, store)
        with store.file.transaction():
            for number in store.users.tolist():
                choice = store.choice(number)
                limit = 0.0 if math.isfinite(choice.total_epsilon) else math.inf
                store.set_choice(number, replace(choice, takes_part=False, total_epsilon=limit))
            store_roots.renew(store.file)
    return Resumption(
        (
            "Nobody in it takes part until its owner says so again: the copy has forgotten what "
            "left since, and its ledger and budget are too low by that.",
            "A limit on ε over all rounds is 0 now. Set it anew, lower than it was by all that may "
            "have left since: `sottovoce device consent STORE --take-part --total-epsilon E`.",
            "Coins are drawn from a new key, so that no old one is tossed again for another value.",
        )
    )


def _settle_user(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    _no_round(next_round)
    with UserStore.open(copy) as store:
        _refuse_newer(before, store)
        with store.file.transaction():
            for user in store.users:
                choice = replace(store.choice(user), takes_part=False)
                store.record_choice(user, choice, looked=False)
    return Resumption(
        (
            "Nobody in it takes part until she says so again (`sottovoce device consent`): the "
            "copy has forgotten what left since, and its ledger is too short by that.",
            "Messages that data owners have had already are refused there as repeated.",
        )
    )


def _refuse_newer(before: Path | None, copy: CohortStore | UserStore) -> None:
    """A store that can be read and knows of more that left is not replaced by one that has
    forgotten it."""
    if before is None:
        return
    try:
        with open_store(before, readonly=True) as store:
            more = releases(store) - releases(copy)
    except StoreError:
        return
    if more > 0:
        raise UsageError(
            f"the store in {before} can be read and knows of {more:,} report(s) or message(s) that "
            "left after the copy was made; an older copy would let as much leave again, so the "
            "store stays (move it away yourself if you must)"
        )


def _no_round(next_round: int | None) -> None:
    if next_round is not None:
        raise UsageError("a store follows the server's rounds; leave --next-round out")


DEVICE = FolderKind(
    name="device",
    words="a store",
    mark=DATABASE,
    whose=_whose,
    settle=_settle_device,
    files=(KEY,),
    keys=(KEY,),
    databases=(DATABASE,),
    copy=_copy,
    locks=(LOCK,),
)
USER = replace(DEVICE, name="user", words="a user's store", settle=_settle_user)
