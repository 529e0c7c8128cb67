"""The public directory of a DRIFT federation: its settings, its catalogue, and who holds what.

Everybody may read it. It is signed by the issuer, so that nobody can put another key or address in
an owner's place; whoever keeps a directory takes only a newer one of the same federation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sottovoce import config
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import DataError, KeyTrouble, MessageError, SottovoceError
from sottovoce.wire.frames import DRIFT_PROTOCOLS, PROTOCOL, SAME_RELEASE, check_protocol
from sottovoce.wire.interactions import KEY_BYTES
from sottovoce.wire.passes import Issuer, check_signature

_PURPOSE = "directory"


@dataclass(frozen=True, slots=True)
class OwnerEntry:
    """A data owner, as everybody may know it."""

    number: int
    name: str
    url: str
    """Address of its service for users, as https://HOST:PORT."""
    public: bytes
    """Its long-term key (X25519)."""
    authority: str
    """The certificate (PEM) that its service is trusted by."""
    items: tuple[int, ...]
    """Numbers of the items that it holds, ascending."""

    def to_table(self) -> dict[str, Any]:
        return {**asdict(self), "public": self.public.hex(), "items": list(self.items)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> OwnerEntry:
        return cls(
            int(table["number"]),
            str(table["name"]),
            str(table["url"]),
            bytes.fromhex(table["public"]),
            str(table["authority"]),
            tuple(int(item) for item in table["items"]),
        )


@dataclass(frozen=True, slots=True)
class Directory:
    federation: str
    """A name that no other federation has."""
    issuer: bytes
    """The issuer's public key."""
    version: int
    """Grows with every change."""
    settings: DRIFTConfig
    catalogue: tuple[str, ...]
    """The items' names; an item's number is its place."""
    owners: tuple[OwnerEntry, ...]
    """By number."""

    def __post_init__(self) -> None:
        if self.version < 0:
            raise DataError("versions of a directory are counted from 0")
        numbers = [owner.number for owner in self.owners]
        if numbers != sorted(set(numbers)):
            raise DataError("data owners must be listed by number, each once")
        if numbers and numbers[0] < 0:
            raise DataError("data owners are numbered from 0")
        if len({owner.name for owner in self.owners}) < len(numbers):
            raise DataError("every data owner needs a name of its own")
        for owner in self.owners:
            if not (owner.name and owner.name.isprintable() and owner.url.isprintable()):
                raise DataError(f"data owner {owner.number} needs a name and address in one line")
            if len(owner.public) != KEY_BYTES:
                raise DataError(
                    f"the public key of data owner {owner.name} must have {KEY_BYTES} bytes"
                )
            ascending = list(owner.items) == sorted(set(owner.items))
            ends = (*owner.items[:1], *owner.items[-1:])
            if not ascending or any(not 0 <= item < len(self.catalogue) for item in ends):
                raise DataError(
                    f"data owner {owner.name} lists items that are not in the catalogue"
                )

    def table(self) -> OwnerTable:
        table = OwnerTable()
        for owner in self.owners:
            table.add(owner.number, owner.items)
        return table

    def owner(self, name: str) -> OwnerEntry:
        for owner in self.owners:
            if owner.name == name:
                return owner
        known = ", ".join(owner.name for owner in self.owners) or "none"
        raise DataError(f"there is no data owner {name!r} in this federation; there are: {known}")

    def numbered(self, number: int) -> OwnerEntry:
        for owner in self.owners:
            if owner.number == number:
                return owner
        raise DataError(f"there is no data owner {number} in this federation")

    def item(self, name: str) -> int:
        try:
            return self.catalogue.index(name)
        except ValueError:
            raise DataError(f"{name!r} is not in the federation's catalogue") from None

    # --- as it travels ----------------------------------------------------------------------------

    def sign(self, issuer: Issuer) -> bytes:
        """As JSON text with the signature in front of it."""
        if (issuer.federation, issuer.public) != (self.federation, self.issuer):
            raise KeyTrouble("the directory belongs to another issuer")
        content = json.dumps(
            {
                "protocol": PROTOCOL,
                "federation": self.federation,
                "issuer": self.issuer.hex(),
                "version": self.version,
                "settings": self.settings.to_table(),
                "catalogue": list(self.catalogue),
                "owners": [owner.to_table() for owner in self.owners],
            },
            separators=(",", ":"),
        ).encode()
        return issuer.sign(_PURPOSE, content).hex().encode() + b"\n" + content

    @classmethod
    def read(cls, signed: bytes, federation: str, issuer: bytes) -> Directory:
        """A directory that this federation's issuer has signed. Raises where it is none."""
        head, _, content = signed.partition(b"\n")
        try:
            signature = bytes.fromhex(head.decode("ascii"))
        except ValueError:
            raise MessageError("the directory cannot be read") from None
        check_signature(issuer, federation, _PURPOSE, content, signature)
        try:
            table = json.loads(content)
            spoken = table["protocol"]
            check_protocol(spoken, "the directory is of", SAME_RELEASE, DRIFT_PROTOCOLS)
            if (table["federation"], table["issuer"]) != (federation, issuer.hex()):
                raise MessageError("the directory is of another federation")
            return cls(
                federation,
                issuer,
                int(table["version"]),
                config.build(DRIFTConfig, table["settings"], "settings"),
                tuple(str(name) for name in table["catalogue"]),
                tuple(OwnerEntry.from_table(entry) for entry in table["owners"]),
            )
        except SottovoceError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise MessageError("the directory cannot be read") from None
