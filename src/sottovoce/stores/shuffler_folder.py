"""The folder of a proxy: whom it serves, its keys and what it holds.

`introduction.json` (all that it needs of the server; a secret), `keys/` (a certificate authority of
its own, which devices learn from the terms), `accounts.secret` (from which keys of accounts are
made), `terms.json` (the terms that the server published when the proxy first asked: others are not
followed unless its operator agrees), `next.json` (those that she has agreed to and the server has
not brought into force yet, in that order), `proxy.db` (accounts and held reports), `proxy.json`
(address and process of a running proxy). Of a shuffler behind another one also `seal.key`, which
opens the layer that devices seal for it, and `hop.json`, which says what the terms need of it:
address, authority and public key. Which batches have left is kept outside the folder (`left`).
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce import config
from sottovoce.core.links import Hop
from sottovoce.errors import ConfigError, KeyTrouble, MessageError, ServiceError, UsageError
from sottovoce.stores.keys import (
    SERVER_KEY,
    authority_pem,
    init_keys,
    read_private_key,
    read_secret,
    replace_file,
    write_new_files,
)
from sottovoce.stores.locking import ServiceFolder
from sottovoce.stores.noted import Marks
from sottovoce.stores.private import private_folder
from sottovoce.stores.server_folder import (
    Introduction,
    read_introduction,
    require_address,
    write_introduction,
)
from sottovoce.stores.shuffler import ShufflerPosition, ShufflerStore
from sottovoce.wire.frames import PROTOCOL, check_protocol
from sottovoce.wire.sealing import public_of
from sottovoce.wire.terms import Terms

INTRODUCTION, SECRET, TERMS = "introduction.json", "accounts.secret", "terms.json"
NEXT_TERMS = "next.json"
DATABASE = "proxy.db"
SEAL_KEY, HOP_FILE = "seal.key", "hop.json"
_LARGEST_HOP = 1 << 16


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
                f"{place} is not there, but what the shuffler holds was in it; put it back, or "
                "make a new shuffler in another folder"
            )
        return ShufflerStore(place)

    def marks(self) -> Marks:
        """The marks of what has left, which are not in the folder."""
        return Marks(self.path, self.account_secret())

    def discard_before(self, round: int) -> None:
        """Discard what the folder holds, and go on with this round, which no device has sent in.
        For a folder whose marks are lost. Raise if it knows of a later round."""
        with contextlib.closing(self.store()) as store:
            if round <= store.position.round:
                raise UsageError(
                    f"{self.path} knows of round {store.position.round}; --next-round is a later "
                    "one, in which no device has sent"
                )
            self.marks().begin(round)
            store.move(ShufflerPosition(round), sealed=True)

    def account_secret(self) -> bytes:
        try:
            secret = bytes.fromhex(read_secret(self.path / SECRET).decode("ascii", "replace"))
        except ValueError:
            secret = b""
        if len(secret) != 32:
            raise KeyTrouble(f"{self.path / SECRET} is no secret; put the right file back")
        return secret

    def seal_key(self) -> bytes:
        """Opens the layer that is for this shuffler."""
        return read_private_key(self.path / SEAL_KEY)

    def require_place(self, terms: Terms) -> None:
        """Raises where the terms have somebody else at this shuffler's place in the chain."""
        link, hop = terms.link.mixing, self.introduction.hop
        if link is None or hop >= link.shufflers:
            raise ServiceError(
                f"the terms of the federation {terms.federation} have no shuffler number {hop + 1}"
            )
        if hop and link.chain[hop - 1].public() != public_of(self.seal_key()):
            raise KeyTrouble(
                f"the terms of the federation {terms.federation} name another key for shuffler "
                f"number {hop + 1} than that of {self.path / SEAL_KEY}: nothing that devices seal "
                "could be opened here; put the right key back"
            )

    def terms(self) -> Terms | None:
        """The terms that this proxy follows; None where it has never reached the server."""
        return next(iter(_terms_in(self.path / TERMS)), None)

    def agreed(self) -> list[Terms]:
        """Those that its operator has agreed to since, in that order."""
        return _terms_in(self.path / NEXT_TERMS)

    def keep_terms(self, terms: Terms) -> None:
        """Until others are agreed to; what was agreed to before them is over. Each file whole or
        not at all, whenever the process is killed."""
        agreed = self.agreed()
        replace_file(self.path / TERMS, _content(terms.to_table()))
        if terms in agreed:
            self._keep_agreed(agreed[agreed.index(terms) + 1 :])

    def _keep_agreed(self, agreed: Sequence[Terms]) -> None:
        if agreed:
            replace_file(self.path / NEXT_TERMS, _content([one.to_table() for one in agreed]))
        else:
            (self.path / NEXT_TERMS).unlink(missing_ok=True)

    def agree(self, terms: Terms) -> None:
        """Follow these terms as soon as the server goes by them, and until then also others that
        were agreed to before: it may go by those first. The terms that are followed, once more,
        take back all that was agreed to. Raises where they are another federation's, or have
        somebody else in this shuffler's place."""
        known = self.introduction.federation
        if terms.federation != known:
            raise UsageError(
                f"these are terms of the federation {terms.federation}, and {self.path} serves "
                f"{known}; use another folder for another federation"
            )
        if terms.reporting is None:
            raise UsageError("under these terms nothing goes through a shuffler")
        self.require_place(terms)
        agreed = self.agreed()
        if terms != self.terms():
            self._keep_agreed([one for one in agreed if one != terms] + [terms])
        elif agreed:  # she does not agree to the others any more
            self._keep_agreed([])
        else:
            raise UsageError(f"{self.path} follows these terms already; nothing was changed")


def _content(table: Any) -> bytes:
    return (json.dumps(table, indent=1) + "\n").encode()


def _terms_in(place: Path) -> list[Terms]:
    """Those of a file with one or several; none where it is not there."""
    try:
        found = json.loads(place.read_bytes())
        return [Terms.from_table(one) for one in (found if isinstance(found, list) else [found])]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ServiceError(f"{place} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, MessageError) as error:
        raise ServiceError(f"{place}: {error}; put the right file back") from None


def init_shuffler(path: Path, url: str, hosts: Sequence[str] = ()) -> Hop:
    """Make the keys of a shuffler behind another one, for its owner alone; what the terms will say
    of it."""
    require_address(url, "--url")
    if (path / SEAL_KEY).exists():
        raise UsageError(f"{path} has the keys of a shuffler already; they are not overwritten")
    private_folder(path)
    if not (path / "keys" / SERVER_KEY).exists():
        init_keys(path / "keys", hosts)
    key = X25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    hop = Hop(url, authority_pem(path / "keys"), public)
    told = json.dumps({"protocol": PROTOCOL, **asdict(hop)}, indent=1) + "\n"
    private = key.private_bytes_raw().hex().encode() + b"\n"
    write_new_files(path, {HOP_FILE: told.encode(), SEAL_KEY: private})
    return hop


def read_hop(path: Path) -> Hop:
    """From a file that `init_shuffler` made. Raises with one sentence where it is none."""
    advice = "ask the shuffler's operator for another"
    try:
        with path.open("rb") as source:
            table = json.loads(source.read(_LARGEST_HOP))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise UsageError(f"{path} is no hop.json of a shuffler; {advice}")
    check_protocol(table.pop("protocol", None), f"{path} is for", "install the same release")
    try:
        return config.build(Hop, table, "hop")
    except ConfigError as error:
        raise UsageError(f"{path}: {error}; {advice}") from None


def create_shuffler_folder(
    path: Path, introduction: Introduction, hosts: Sequence[str] = ()
) -> ShufflerFolder:
    """The folder of a new proxy, for its owner alone. Keys that are there already are used, since
    the terms of the federation may name them."""
    if (path / INTRODUCTION).exists():
        raise UsageError(f"{path} holds a shuffler already; start it without --introduction")
    if introduction.hop and not (path / SEAL_KEY).exists():
        raise UsageError(
            f"{path} has no {SEAL_KEY}, whose public key the terms of the federation name; make it "
            f"first, with `sottovoce serve shuffler {path} --init --url URL`"
        )
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
            f"{path} holds no shuffler; make one with `sottovoce serve shuffler {path} "
            "--introduction FILE`"
        )
    read_secret(place)
    return ShufflerFolder(path, read_introduction(place))
