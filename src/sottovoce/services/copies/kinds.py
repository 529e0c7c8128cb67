"""All kinds of folders that can be copied and put back."""

from __future__ import annotations

from pathlib import Path

from sottovoce.errors import UsageError, VersionMismatch
from sottovoce.services.copies.kind import Kind
from sottovoce.services.copies.of_helper import MASKER
from sottovoce.services.copies.of_server import SERVER
from sottovoce.services.copies.of_shuffler import PROXY
from sottovoce.services.copies.of_silos import ORCHESTRATOR, OWNER
from sottovoce.services.copies.of_stores import DEVICE, USER, store_kind

# All kinds of folders that can be copied and put back.

STORES = (DEVICE.name, USER.name)
_SERVICES = (SERVER, MASKER, PROXY, OWNER, ORCHESTRATOR)
_ALL = {kind.name: kind for kind in (*_SERVICES, DEVICE, USER)}


def kind_of(folder: Path) -> Kind:
    """Raises with one sentence where the folder is none of ours."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    for kind in _SERVICES:
        if (folder / kind.mark).is_file():
            return kind
    if (folder / DEVICE.mark).is_file():
        return store_kind(folder)
    raise UsageError(
        f"{folder} is not the folder of a server, proxy, data owner or orchestrator, nor a store"
    )


def kind_named(name: str) -> Kind:
    if name not in _ALL:
        raise VersionMismatch(
            f"this is a backup of {name[:40]!r}, which this release of Sottovoce does not know; "
            "use the release that made it"
        )
    return _ALL[name]
