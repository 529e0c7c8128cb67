"""Copies of the parties of a federation of data owners."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sottovoce.errors import KeyTrouble, ServiceError, SottovoceError, UsageError
from sottovoce.services.copies.kind import FolderKind, Resumption, Whose
from sottovoce.stores import orchestrator_folder as orchestrators
from sottovoce.stores import owner_folder as owners
from sottovoce.stores.keys import read_private_key
from sottovoce.stores.orchestrator import DATABASE, OrchestratorStore
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import FederationFile

_MORE_USERS, _MORE_OWNERS, _MORE_VERSIONS = 1000, 100, 1_000_000
"""Numbers that are left out if nobody can say how many were given since the copy was made."""


# --- a data owner ---------------------------------------------------------------------------------


def _whose_owner(path: Path) -> Whose:
    folder = owners.open_owner_folder(path)
    federation = folder.federation.federation
    if (path / owners.IDENTITY).is_file():
        folder.identity()  # raises where it is another's
    return Whose.of(federation, federation.encode(), folder.application.public)


def _settle_owner(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    if next_round is not None:
        raise UsageError("a data owner follows the orchestrator's rounds; leave --next-round out")
    return Resumption(
        (
            "What users have sent since is lost: their stores do not send it again.",
            "Users who left since are back in it until the orchestrator's next round, in which the "
            "data owner is told of all who have left and forgets them again.",
            'Blocks that were counted since would be sent once more. With release = "aggregated" '
            "answers that the copy lacks are noted outside the folder, and the orchestrator has "
            "heard them, so that it refuses the next round: apply anew from another folder then. "
            "As printed nobody notices: put back the newest copy only.",
            "What users have spent is in their own ledgers; a data owner keeps none.",
        )
    )


OWNER = FolderKind(
    name="owner",
    words="a data owner",
    mark=owners.APPLICATION,
    whose=_whose_owner,
    settle=_settle_owner,
    files=(
        *("keys", owners.IDENTITY, owners.NODE, f"{owners.NODE}.pub", owners.NODE_ID),
        *(owners.FEDERATION, owners.APPLICATION, owners.ADMISSION, owners.GATEWAY_CA),
    ),
    keys=("keys", owners.IDENTITY, owners.NODE),
    databases=(owners.DATABASE,),
    locks=("owner.lock",),
)


# --- the orchestrator -----------------------------------------------------------------------------


def _whose_orchestrator(path: Path) -> Whose:
    found = FederationFile.read(path / orchestrators.FEDERATION)
    if not (path / DATABASE).is_file():
        raise ServiceError(f"{path / DATABASE} is not there; the federation's state was in it")
    if (path / orchestrators.ISSUER).is_file():
        key = read_private_key(path / orchestrators.ISSUER)
        if Issuer(found.federation, key).public != found.issuer:
            raise KeyTrouble(f"{orchestrators.ISSUER} is not the key of this federation's issuer")
    return Whose.of(found.federation, found.federation.encode(), found.issuer)


def _settle_orchestrator(copy: Path, before: Path | None, next_round: int | None) -> Resumption:
    newest, departed = _newest(before)
    known = newest is not None
    with OrchestratorStore.open(copy) as store:
        least = store.counters()
        forward = known and before is not None and _take_over(store, before)
        if newest is None:
            more = {"next_user": _MORE_USERS, "next_owner": _MORE_OWNERS}
            more |= dict.fromkeys(("version", "directory", "membership"), _MORE_VERSIONS)
            newest = {name: value + more.get(name, 0) for name, value in least.items()}
        else:
            newest = {name: max(value + 1, least[name]) for name, value in newest.items()}
        newest["round"] = max(newest["round"], next_round or 0)
        store.go_on_with(newest)
        for user in departed:
            if store.public(user) is not None:
                store.leave_user(user)
        at = store.round
    left = "Users who left since are back in it; they have to leave again."
    if known:
        left = "Users who left since have left the copy, too."
    lost = (
        "Users and data owners that came since are not known to it: they need new invitations "
        f"and admissions. Their numbers are given to nobody: new users begin with "
        f"{newest['next_user']:,}, new data owners with {newest['next_owner']:,}.",
        f"{left} Data owners that were removed since are back: remove them again. Items that "
        "were added since must be added again, in the same order.",
    )
    kept = (
        "Items, users, invitations and data owners are those of the former folder, with who has "
        "left or was removed. In the model, whoever came since begins anew.",
    )
    return Resumption(
        (
            f"It goes on with round {at}; data owners refuse rounds before their last one.",
            *(kept if forward else lost),
            "What users have spent is in their own ledgers; the orchestrator keeps none.",
        ),
        at,
    )


def _take_over(store: OrchestratorStore, before: Path) -> bool:
    """Whether the copy has what the folder that it replaces has."""
    with OrchestratorStore.open(before) as former:
        return store.take_over(former)


def _newest(folder: Path | None) -> tuple[dict[str, int] | None, list[int]]:
    """What the folder that is replaced has counted, and who has left it."""
    if folder is not None and (folder / DATABASE).is_file():
        with contextlib.suppress(SottovoceError), OrchestratorStore.open(folder) as store:
            return store.counters(), store.departed()
    return None, []


ORCHESTRATOR = FolderKind(
    name="orchestrator",
    words="the orchestrator of a federation",
    mark=orchestrators.ISSUER,
    whose=_whose_orchestrator,
    settle=_settle_orchestrator,
    files=("keys", orchestrators.FEDERATION, orchestrators.ISSUER, orchestrators.USERS),
    keys=("keys", orchestrators.ISSUER, orchestrators.USERS),
    databases=(DATABASE,),
    locks=("orchestrator.lock",),
    notes=lambda path: (
        "The folders superlink/ and gateway/ are not in it; they are made anew at the next start.",
    ),
)
