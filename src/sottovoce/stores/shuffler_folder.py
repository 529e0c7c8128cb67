"""The folder of a proxy: whom it serves, its keys and what it holds.

`introduction.json` (all that it needs of the server; a secret), `keys/` (a certificate authority of
its own, which devices learn from the terms), `accounts.secret` (from which keys of accounts are
made), `terms.json` (the terms that the server published when the proxy first asked: others are not
followed), `proxy.db` (accounts and held reports), `proxy.json` (address and process of a running
proxy).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sottovoce.errors import KeyTrouble, MessageError, ServiceError, UsageError
from sottovoce.stores.keys import (
    SERVER_KEY,
    init_keys,
    read_secret,
    replace_file,
    write_new_files,
)
from sottovoce.stores.private import private_folder
from sottovoce.stores.ready import ServiceFolder
from sottovoce.stores.server_folder import (
    Introduction,
    read_introduction,
    write_introduction,
)
from sottovoce.stores.shuffler import ShufflerStore
from sottovoce.wire.terms import Terms

INTRODUCTION, SECRET, TERMS = "introduction.json", "accounts.secret", "terms.json"
DATABASE = "proxy.db"


@dataclass(frozen=True, slots=True, repr=False)
class ShufflerFolder(ServiceFolder):
    introduction: Introduction

    party: ClassVar[str] = "proxy"

    def store(self) -> ShufflerStore:
        """What the proxy holds. A new one would take reports twice: where it was lost, none is
        made."""
        place = self.path / DATABASE
        if not place.exists():
            raise ServiceError(
                f"{place} is not there, but what the proxy holds was in it; put it back, or make a "
                "new proxy in another folder"
            )
        return ShufflerStore(place)

    def account_secret(self) -> bytes:
        try:
            secret = bytes.fromhex(read_secret(self.path / SECRET).decode("ascii", "replace"))
        except ValueError:
            secret = b""
        if len(secret) != 32:
            raise KeyTrouble(f"{self.path / SECRET} is no secret; put the right file back")
        return secret

    def terms(self) -> Terms | None:
        """The terms that this proxy follows; None where it has never reached the server."""
        place = self.path / TERMS
        try:
            return Terms.from_table(json.loads(place.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServiceError(f"{place} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError, MessageError) as error:
            raise ServiceError(f"{place}: {error}; put the right file back") from None

    def keep_terms(self, terms: Terms) -> None:
        """For ever. Whole or not at all, whenever the process is killed."""
        content = json.dumps(terms.to_table(), indent=1) + "\n"
        replace_file(self.path / TERMS, content.encode())


def create_shuffler_folder(
    path: Path, introduction: Introduction, hosts: Sequence[str] = ()
) -> ShufflerFolder:
    """The folder of a new proxy, for its owner alone. Keys that are there already are used, since
    the terms of the federation may name them."""
    if (path / INTRODUCTION).exists():
        raise UsageError(f"{path} holds a proxy already; start it without --introduction")
    private_folder(path)
    if not (path / "keys" / SERVER_KEY).exists():
        init_keys(path / "keys", hosts)
    if not (path / SECRET).exists():
        write_new_files(path, {SECRET: secrets.token_hex(32).encode() + b"\n"})
    ShufflerStore(path / DATABASE).close()
    write_introduction(path / INTRODUCTION, introduction)
    return ShufflerFolder(path, introduction)


def open_shuffler_folder(path: Path) -> ShufflerFolder:
    """A folder that `create_shuffler_folder` made. Raises with one sentence where it is none."""
    place = path / INTRODUCTION
    if not place.exists():
        raise ServiceError(
            f"{path} holds no proxy; make one with `sottovoce serve shuffler {path} "
            "--introduction FILE`"
        )
    read_secret(place)
    return ShufflerFolder(path, read_introduction(place))
