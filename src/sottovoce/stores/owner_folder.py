"""The folder of a data owner: what it is part of, its keys and what it holds.

Made in two steps. First `federation.json` (what it wants to join), `keys/` (a certificate authority
of its own, which users learn from the directory), `identity.key` (its long-term key, a secret),
`node` and `node.pub` (the keys of its Flower node) and `application.json`, which goes to the
orchestrator's operator. Then, with the answer, `admission.json` and `owner.db` (users' blocks).
`owner.json` has the address and process of a running service, `node.id` the name under which the
orchestrator knew the node last.
"""

from __future__ import annotations

import contextlib
import csv
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from sottovoce.errors import DataError, DataNotFound, KeyTrouble, ServiceError, UsageError
from sottovoce.stores.keys import (
    SERVER_KEY,
    authority_pem,
    init_keys,
    node_keys,
    read_private_key,
    replace_file,
    write_new_files,
)
from sottovoce.stores.locking import ServiceFolder
from sottovoce.stores.owner import DataOwner
from sottovoce.stores.private import private_folder
from sottovoce.wire.interactions import Identity
from sottovoce.wire.silo_files import (
    Admission,
    Application,
    FederationFile,
    require_name,
    require_url,
)

APPLICATION = "application.json"
FEDERATION, ADMISSION, DATABASE = "federation.json", "admission.json", "owner.db"
IDENTITY, NODE, NODE_ID, GATEWAY_CA = "identity.key", "node", "node.id", "gateway.crt"


@dataclass(frozen=True, slots=True, repr=False)
class OwnerFolder(ServiceFolder):
    federation: FederationFile
    application: Application

    party: ClassVar[str] = "owner"

    @property
    def node_key(self) -> Path:
        """The private key of the Flower node; its public half is in the application."""
        return self.path / NODE

    @property
    def gateway_authority(self) -> Path:
        """The certificate by which the orchestrator's gateway is trusted."""
        return self.path / GATEWAY_CA

    def identity(self) -> Identity:
        identity = Identity(read_private_key(self.path / IDENTITY))
        if identity.public != self.application.public:
            raise KeyTrouble(
                f"{self.path / IDENTITY} is not the key that was applied with; put the right file "
                "back"
            )
        return identity

    def admission(self) -> Admission | None:
        """The orchestrator's answer; None where there is none yet."""
        place = self.path / ADMISSION
        return Admission.read(place) if place.exists() else None

    def owner(self) -> DataOwner:
        """What the owner holds. Where it was lost, no other is made: users would take it for the
        one that has their messages."""
        if self.admission() is None:
            raise ServiceError(
                f"{self.application.name} has not been admitted yet: send "
                f"{self.path / APPLICATION} to the orchestrator's operator, and keep the answer "
                f"with `sottovoce serve owner {self.path} --admission FILE`"
            )
        if not (self.path / DATABASE).exists():
            raise ServiceError(
                f"{self.path / DATABASE} is not there, but what users have sent was in it; put it "
                "back, or apply anew from another folder"
            )
        return DataOwner.open(self.path, self.identity())

    def keep_node(self, node: bytes) -> None:
        """Remember the name under which the orchestrator knows the node. Without it a node that was
        killed is let in again after a minute, so a full disk is no reason to stop."""
        with contextlib.suppress(KeyTrouble, OSError):
            replace_file(self.path / NODE_ID, node)

    def node(self) -> bytes | None:
        try:
            return (self.path / NODE_ID).read_bytes() or None
        except FileNotFoundError:
            return None


def create_owner_folder(
    path: Path,
    federation: FederationFile,
    name: str,
    url: str,
    items: Sequence[int],
    hosts: Sequence[str] = (),
) -> OwnerFolder:
    """The folder of a data owner that wants to join, for its operator alone, with its application
    in it. `url` is where users will reach it. Keys that are there already are used."""
    if (path / APPLICATION).exists():
        raise UsageError(f"{path} holds a data owner already; start it without --make")
    if not items:
        raise UsageError("a data owner needs at least one item of the catalogue")
    require_name("name", name)
    require_url("url", url)
    host = urlsplit(url).hostname or ""
    private_folder(path)
    if not (path / "keys" / SERVER_KEY).exists():
        init_keys(path / "keys", [host, *hosts])
    if not (path / IDENTITY).exists():
        private = Identity().private_bytes()
        write_new_files(path, {IDENTITY: private.hex().encode() + b"\n"})
    if not (path / NODE).exists():
        node_keys(path, NODE)
    authority = "" if url.startswith("http://") else authority_pem(path / "keys")
    application = Application(
        name,
        url,
        Identity(read_private_key(path / IDENTITY)).public,
        authority,
        (path / f"{NODE}.pub").read_text().strip(),
        tuple(sorted(set(items))),
    )
    federation.write(path / FEDERATION, replace=True)
    application.write(path / APPLICATION)
    return OwnerFolder(path, federation, application)


def open_owner_folder(path: Path) -> OwnerFolder:
    """A folder that `create_owner_folder` made. Raises with one sentence where it is none."""
    if not (path / APPLICATION).exists():
        raise ServiceError(
            f"{path} holds no data owner; make one with `sottovoce serve owner {path} --make "
            "FEDERATION --name NAME --items FILE --url URL`"
        )
    federation = FederationFile.read(path / FEDERATION)
    return OwnerFolder(path, federation, Application.read(path / APPLICATION))


def keep_federation(folder: OwnerFolder, newer: FederationFile) -> OwnerFolder:
    """The same federation with a longer catalogue."""
    known = folder.federation
    same = (newer.federation, newer.issuer, newer.settings) == (
        known.federation,
        known.issuer,
        known.settings,
    )
    if not same or newer.catalogue[: len(known.catalogue)] != known.catalogue:
        raise UsageError(
            f"this is not the federation that {folder.path} is part of with a longer catalogue"
        )
    newer.write(folder.path / FEDERATION, replace=True)
    return OwnerFolder(folder.path, newer, folder.application)


def keep_admission(folder: OwnerFolder, admission: Admission, draws: int | None = None) -> bool:
    """Keep the orchestrator's answer and make the place for what users send; whether this is the
    first one. A later one may name another gateway, and nothing else. `draws` is for trials: the
    root of what the owner draws, which is a secret of its own if it is not given."""
    mine = folder.federation.federation, folder.application.name
    if (admission.federation, admission.name) != mine:
        raise UsageError(
            f"the admission is for {admission.name} in the federation {admission.federation}, and "
            f"this is {mine[1]}, which applied to {mine[0]}"
        )
    before = folder.admission()
    if before is not None and before.number != admission.number:
        raise UsageError(
            f"{folder.application.name} was admitted as number {before.number}, and this admission "
            f"says {admission.number}; apply anew from another folder"
        )
    if not (folder.path / DATABASE).exists():
        if before is not None:
            folder.owner()  # says what to do
        _make_owner(folder, admission, draws).close()
    elif before is None:
        with contextlib.closing(DataOwner.open(folder.path, folder.identity())) as found:
            if found.number != admission.number:
                raise UsageError(
                    f"{folder.path / DATABASE} belongs to the data owner {found.number}, the "
                    f"admission is for {admission.number}"
                )
    fresh = folder.path / f".{GATEWAY_CA}.{secrets.token_hex(4)}.crt"
    write_new_files(folder.path, {fresh.name: admission.ca.encode()})
    os.replace(fresh, folder.gateway_authority)
    admission.write(folder.path / ADMISSION, replace=True)
    return before is None


def _make_owner(folder: OwnerFolder, admission: Admission, draws: int | None) -> DataOwner:
    return DataOwner.create(
        folder.path,
        number=admission.number,
        name=admission.name,
        federation=admission.federation,
        issuer=folder.federation.issuer,
        settings=folder.federation.settings,
        items=folder.application.items,
        identity=folder.identity(),
        draws=draws,
    )


# --- items ---------------------------------------------------------------------------------------


def read_items(path: Path, catalogue: Sequence[str]) -> list[int]:
    """The numbers of the items that a file lists, ascending: one in a line, or a CSV file with the
    column item. Either all are names in the catalogue, or all are numbers."""
    listed = _listed(path)
    if not listed:
        raise DataError(f"{path} lists no item")
    places = {name: number for number, name in enumerate(catalogue)}
    if all(item in places for item in listed):
        return sorted({places[item] for item in listed})
    numbers = [
        int(item) if item.isascii() and item.isdigit() and len(item) < 12 else -1 for item in listed
    ]
    if all(0 <= number < len(catalogue) for number in numbers):
        return sorted(set(numbers))
    wrong = next(
        (
            item
            for item, number in zip(listed, numbers, strict=True)
            if item not in places and not 0 <= number < len(catalogue)
        ),
        None,
    )
    if wrong is None:
        raise DataError(f"{path} lists some items by name and some by number; choose one of both")
    raise DataError(
        f"{path}: {wrong[:100]!r} is not in the federation's catalogue, which has "
        f"{len(catalogue):,} items"
    )


def _listed(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            lines = source.read().splitlines()
    except FileNotFoundError:
        raise DataNotFound(f"{path} is not there") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    if path.suffix.lower() != ".csv":
        return [line.strip() for line in lines if line.strip()]
    try:
        rows = list(csv.DictReader(lines, strict=True))
    except csv.Error as error:
        raise DataError(f"{path} is no CSV file: {error}") from None
    if rows and "item" not in rows[0]:
        raise DataError(f"{path} has no column item")
    return [row["item"].strip() for row in rows if (row["item"] or "").strip()]
