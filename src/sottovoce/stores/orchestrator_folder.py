"""The folder of a DRIFT federation's orchestrator: its keys, its state, and who is let in.

`federation.json` (what everybody may know; goes to those who want to join as data owners),
`issuer.key` (signs passes and the directory), `users.key` (with which users prove themselves),
`keys/` (a certificate authority of its own), `orchestrator.db` (the model, users and data owners),
`orchestrator.json` (addresses and process of a running orchestrator) and, where it trains,
`superlink/` and `gateway/`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import ServiceError, UsageError
from sottovoce.stores.keys import (
    SERVER_KEY,
    authority_pem,
    init_keys,
    read_private_key,
    write_new_files,
)
from sottovoce.stores.locking import ServiceFolder
from sottovoce.stores.orchestrator import DATABASE, OrchestratorStore
from sottovoce.stores.private import private_folder
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import (
    Admission,
    Application,
    FederationFile,
    UserInvitation,
    require_catalogue,
    require_name,
    require_place,
    require_url,
)

FEDERATION, ISSUER, USERS = "federation.json", "issuer.key", "users.key"
_MOST_INVITED = 100_000


@dataclass(frozen=True, slots=True, repr=False)
class OrchestratorFolder(ServiceFolder):
    federation: str

    party: ClassVar[str] = "orchestrator"

    @property
    def federation_file(self) -> Path:
        return self.path / FEDERATION

    def issuer(self) -> Issuer:
        return Issuer(self.federation, read_private_key(self.path / ISSUER))

    def users_identity(self) -> Identity:
        """The key with which users prove themselves."""
        return Identity(read_private_key(self.path / USERS))

    def store(self) -> OrchestratorStore:
        """The federation's state. Where it was lost, no other is made: numbers would be given out
        twice."""
        place = self.path / DATABASE
        if not place.exists():
            raise ServiceError(
                f"{place} is not there, but the state of this federation was in it; put it back "
                "from a copy, or make a new federation in another folder"
            )
        return OrchestratorStore.open(self.path)


def create_orchestrator_folder(
    path: Path,
    catalogue: Sequence[str],
    settings: DRIFTConfig,
    *,
    name: str | None = None,
    hosts: Sequence[str] = (),
    root_key: int | None = None,
) -> OrchestratorFolder:
    """The folder of a new federation, for its operator alone. `name` is what its own name begins
    with, `hosts` are names of this machine. Keys that are there already are used; the root key is
    drawn from the operating system unless a trial sets it."""
    if (path / FEDERATION).exists():
        raise UsageError(f"{path} holds a federation already; start it without --make")
    if (path / DATABASE).exists():
        raise UsageError(f"{path / DATABASE} is there already; choose another folder")
    require_catalogue(catalogue)
    if name is not None:
        require_name("--name", name)
    stem = name or re.sub(r"[^A-Za-z0-9_]+", "-", path.absolute().name).strip("-") or "federation"
    federation = f"{stem[:50] if name is None else stem}-{secrets.token_hex(4)}"
    issuer = Issuer(federation)
    about = FederationFile(federation, issuer.public, settings, tuple(catalogue))
    private_folder(path)
    if not (path / "keys" / SERVER_KEY).exists():
        init_keys(path / "keys", hosts)
    # Of an attempt that broke off; nothing was signed with them yet.
    for file in (ISSUER, USERS):
        (path / file).unlink(missing_ok=True)
    write_new_files(
        path,
        {
            ISSUER: issuer.private_bytes().hex().encode() + b"\n",
            USERS: Identity().private_bytes().hex().encode() + b"\n",
        },
    )
    OrchestratorStore.create(path, federation, settings, catalogue, root_key).close()
    about.write(path / FEDERATION)
    return OrchestratorFolder(path, federation)


def open_orchestrator_folder(path: Path) -> OrchestratorFolder:
    """A folder that `create_orchestrator_folder` made. Raises with one sentence where it is
    none."""
    place = path / FEDERATION
    if not place.exists():
        raise ServiceError(
            f"{path} holds no orchestrator; make one with `sottovoce serve orchestrator {path} "
            "--make --catalogue FILE`"
        )
    folder = OrchestratorFolder(path, FederationFile.read(place).federation)
    for file in (ISSUER, USERS):
        read_private_key(path / file)
    return folder


def publish_federation(folder: OrchestratorFolder, store: OrchestratorStore) -> FederationFile:
    """Bring `federation.json` up to what the store says."""
    about = FederationFile(
        store.federation, folder.issuer().public, store.settings, tuple(store.catalogue)
    )
    about.write(folder.federation_file, replace=True)
    return about


# --- who is let in -------------------------------------------------------------------------------


def admit(
    folder: OrchestratorFolder, store: OrchestratorStore, application: Application, gateway: str
) -> Admission:
    """Let a data owner in; the orchestrator may be running. One that is in already, with the same
    keys, keeps its number, and what else it says anew is taken up."""
    require_place("--gateway", gateway)
    strange = [item for item in application.items if item >= len(store.catalogue)]
    if strange:
        raise UsageError(
            f"{application.name} lists item {strange[0]}, and the catalogue has "
            f"{len(store.catalogue):,}; it needs the newest federation.json"
        )
    number = store.admit_owner(application)
    return Admission(
        store.federation, number, application.name, gateway, authority_pem(folder.keys)
    )


def remove(store: OrchestratorStore, name: str) -> int:
    """Take a data owner out; the number it had."""
    for owner in store.owners():
        if owner.name == name:
            store.remove_owner(owner.number)
            return int(owner.number)
    known = ", ".join(owner.name for owner in store.owners()) or "none"
    raise UsageError(f"there is no data owner {name!r} in this federation; there are: {known}")


def request_flush(store: OrchestratorStore) -> None:
    """Let the next round end all streams. Where no more rounds were to be run, it is one more."""
    store.request_flush()
    if 0 < store.target() <= store.round:
        store.raise_target(store.round + 1)


def invite(
    folder: OrchestratorFolder, store: OrchestratorStore, count: int, url: str
) -> list[UserInvitation]:
    """Invitations for so many users, who reach the orchestrator at `url`. It may be running."""
    require_url("--url", url)
    if not 1 <= count <= _MOST_INVITED:
        raise UsageError(f"invite 1 to {_MOST_INVITED:,} users at once, not {count}")
    authority = "" if url.startswith("http://") else authority_pem(folder.keys)
    issuer = folder.issuer().public
    return [
        UserInvitation(store.federation, issuer, url, authority, token)
        for token in store.invite(count)
    ]


def extend_catalogue(
    folder: OrchestratorFolder, store: OrchestratorStore, names: Sequence[str]
) -> int:
    """Append the items that the catalogue does not have yet; how many. `names` may begin with those
    it has. The orchestrator may be running."""
    require_catalogue(names)
    known = set(store.catalogue)
    new = [name for name in names if name not in known]
    if new:
        store.set_catalogue((*store.catalogue, *new))
    publish_federation(folder, store)
    return len(new)
